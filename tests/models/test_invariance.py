"""nvfp4.set_batch_invariant and the arguments of this name: a sequence has the same bits alone and in any batch."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_models
import torch
from paths import ROOT
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import nvfp4
from nvfp4 import _api

ROWS = (slice(0, 1), slice(3, 4), slice(5, 8), slice(7, 40))
SIZES = tiny_models.SIZES | {"head_dim": 16}
MIXTURE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}


def layer(activations: str | None) -> nvfp4.Linear:
    made = nvfp4.Linear.from_linear(nn.Linear(256, 96), activations, None if activations is None else 0.002)
    made.batch_invariant = True
    return made


# ---- layers ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("activations", [None, "nvfp4"])
def test_rows_of_a_layer(activations: str | None, dtype: torch.dtype, device: str, generator: torch.Generator) -> None:
    """And their gradients. With fp32 and W4A16 torch's product would depend on the number of rows."""
    own = layer(activations).to(device)
    x = torch.randn(40, 256, generator=generator).to(device, dtype).requires_grad_(activations is None)
    whole = own(x)
    dy = torch.randn(whole.shape, generator=generator).to(device, dtype)
    for rows in ROWS:
        part = x[rows].detach().requires_grad_(activations is None)
        y = own(part)
        assert torch.equal(y, whole[rows])
        if activations is None:
            gradients = [torch.autograd.grad(out, at, g, retain_graph=True)[0] for out, at, g in
                         ((y, part, dy[rows]), (whole, x, dy))]  # fmt: skip
            assert torch.equal(gradients[0], gradients[1][rows])


def test_an_fp32_product_is_that_of_the_dense_weight(device: str, generator: torch.Generator) -> None:
    """Each part of x is exact in bf16, so the sums of K = 256 products have the bound of fp32 sums, three times."""
    own = layer(None)
    x = torch.randn(40, 256, generator=generator)
    weight = own.dequantize(torch.float32).double()
    wanted = x.double() @ weight.T + own.bias.double()
    bound = 3 * 258 * 2.0**-24 * (x.double().abs() @ weight.abs().T + own.bias.double().abs())
    assert ((own.to(device)(x.to(device)).cpu() - wanted).abs() <= bound).all()


@pytest.mark.parametrize("activations", [None, "nvfp4"])
def test_gemm_is_told(activations: str | None, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU every product of gemm is batch invariant, so bits alone would not tell."""
    told: list[bool] = []

    def spied(name: str, call: Callable[..., Any]) -> None:
        def tell(*arguments: Any, **options: Any) -> Any:
            told.append(options["batch_invariant"])
            return call(*arguments, **options)

        monkeypatch.setattr(_api, name, tell)

    for name in ("gemm", "quantize_gemm"):
        spied(name, getattr(_api, name))
    own = layer(activations)
    for value in (True, False):
        own.batch_invariant = value
        x = torch.randn(3, 256, generator=generator).bfloat16().requires_grad_(activations is None)
        y = own(x)
        if activations is None:
            y.sum().backward()
        assert told and set(told) == {value}
        told.clear()


def test_what_keeps_the_attribute(generator: torch.Generator) -> None:
    own = layer(None)
    for other in (copy.deepcopy(own), pickle.loads(pickle.dumps(own)), nvfp4.Linear.fuse([own, layer(None)])):
        assert other.batch_invariant and "batch_invariant=True" in repr(other)
    other = layer(None)
    other.batch_invariant = False
    assert "batch_invariant" not in repr(other)
    with pytest.raises(nvfp4.Error, match="^layers: batch_invariant of layer 1 is False but of layer 0 True"):
        nvfp4.Linear.fuse([own, other])
    assert nvfp4.Linear(64, 32, batch_invariant=True).batch_invariant
    with pytest.raises(nvfp4.Error, match="^batch_invariant: is of type int; must be a bool"):
        nvfp4.Linear(64, 32, batch_invariant=1)


def test_a_dynamic_scale_is_an_error() -> None:
    own = nvfp4.Linear(64, 32, batch_invariant=True)
    with pytest.raises(nvfp4.Error, match="^input_global_scale: is None, so its input scale is that of all rows"):
        own(torch.ones(2, 64))


def test_sums_of_three_ranks_are_an_error() -> None:
    from nvfp4.layers.parallel import RowwiseLinear

    own = layer(None)
    own.__class__ = RowwiseLinear
    own.mesh = SimpleNamespace(size=lambda: 3)
    with pytest.raises(nvfp4.Error, match="^batch_invariant: is True for a layer whose sums of 3 ranks"):
        own(torch.ones(2, 256))


# ---- models ----


def model(activations: str | None = None, calibrated: bool = True, **options: Any) -> nn.Sequential:
    made = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32))
    calibrate = (lambda m: m(torch.randn(8, 64))) if activations is not None and calibrated else None
    nvfp4.quantize_model(made, activations=activations, calibrate=calibrate, **options)
    return made


@pytest.mark.parametrize("fuse", [False, True])
def test_set_batch_invariant(fuse: bool) -> None:
    made = nn.ModuleDict({"q_proj": nn.Linear(64, 64), "k_proj": nn.Linear(64, 32), "v_proj": nn.Linear(64, 32)})
    made = nn.ModuleDict({"attention": made, "experts": nvfp4.Experts(4, 64, 32)})
    nvfp4.quantize_model(made, activations=None, fuse=fuse)
    layers = [m for m in made.modules() if isinstance(m, (nvfp4.Linear, nvfp4.Experts))]
    assert len(layers) == (2 if fuse else 4) and not any(m.batch_invariant for m in layers)
    for value in (True, False):
        nvfp4.set_batch_invariant(made, value)
        assert all(m.batch_invariant == value for m in layers)


def test_set_batch_invariant_rejects() -> None:
    """And changes nothing."""
    dynamic = model("nvfp4", calibrated=False)
    eight = nn.Sequential(layer(None), nvfp4.Fp8Linear(64, 32))
    eight[0].batch_invariant = False
    cases: dict[str, tuple[Any, ...]] = {
        r"^0\.input_global_scale: is None, so its input scale": (dynamic,),
        r"^1\.weight: is FP8, which torch multiplies; must be NVFP4 for batch_invariant=True": (eight,),
        r"^model: has no nvfp4\.Linear or nvfp4\.Experts": (nn.Linear(64, 32),),
        r"^model: is of type int; must be a torch\.nn\.Module": (3,),
        r"^batch_invariant: is of type str; must be a bool": (eight, "yes"),
    }
    for message, arguments in cases.items():
        with pytest.raises(nvfp4.Error, match=message):
            nvfp4.set_batch_invariant(*arguments)
    assert not dynamic[0].batch_invariant and not eight[0].batch_invariant
    nvfp4.set_batch_invariant(dynamic, False)


def test_quantize_model() -> None:
    for activations in (None, "nvfp4"):
        assert model(activations, batch_invariant=True)[2].batch_invariant
        assert not model(activations)[2].batch_invariant
    made = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32))
    calls = {
        "^batch_invariant: is True, but without calibrate the input scales": {},
        "^2: is not reached by calibrate, so its input scale": {"calibrate": lambda m: m[0](torch.ones(2, 64))},
        "^batch_invariant: is of type int": {"activations": None, "batch_invariant": 1},
    }
    for message, more in calls.items():
        with pytest.raises(nvfp4.Error, match=message):
            nvfp4.quantize_model(made, **{"batch_invariant": True} | more)
    partly = nn.Sequential(model("nvfp4", calibrated=False), nn.Linear(32, 32))
    with pytest.raises(nvfp4.Error, match=r"^0\.0\.input_global_scale: is None"):
        nvfp4.quantize_model(partly, activations=None, batch_invariant=True)
    assert type(made[0]) is type(made[2]) is type(partly[1]) is nn.Linear


def test_load(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    nvfp4.save(model("nvfp4"), tmp_path / "static")
    nvfp4.save(model("nvfp4", calibrated=False), tmp_path / "dynamic", "compressed-tensors")
    made = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32))
    with pytest.raises(nvfp4.Error, match=r"^0\.input_global_scale: is None, so its input scale"):
        nvfp4.load(tmp_path / "dynamic", made, batch_invariant=True)
    assert type(made[0]) is nn.Linear
    for folder, options in (("dynamic", {"activations": None}), ("static", {})):
        nvfp4.load(tmp_path / folder, made, batch_invariant=True, **options)
        assert made[0].batch_invariant and made[2].batch_invariant
    nvfp4.load(tmp_path / "static", made)
    assert not made[0].batch_invariant
    with pytest.raises(nvfp4.Error, match="^batch_invariant: is given without a model; must be for one"):
        nvfp4.load(tmp_path / "static", batch_invariant=True)
    with pytest.raises(nvfp4.Error, match="^batch_invariant: is of type int; must be a bool"):
        nvfp4.load(tmp_path / "static", made, batch_invariant=1)


# ---- models of transformers ----


class RowByRow(TorchDispatchMode):
    """Computes torch's products with one row, or one matrix of a batch, at a time, but not those inside of NVFP4
    layers. Each row is copied: the order of additions may depend on the address."""

    def __init__(self, layers: list[Any]) -> None:
        super().__init__()
        self.inside = False
        for own in layers:
            own.register_forward_pre_hook(lambda *_: setattr(self, "inside", True))
            own.register_forward_hook(lambda *_: setattr(self, "inside", False))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def each(t: Tensor) -> list[Tensor]:
            return [one.clone() for one in t.split(1)]

        aten = torch.ops.aten
        if self.inside:
            return func(*args, **(kwargs or {}))
        if func is aten.mm.default:
            return torch.cat([func(row, args[1]) for row in each(args[0])])
        if func is aten.addmm.default:
            return torch.cat([func(args[0], row, args[2]) for row in each(args[1])])
        if func is aten.bmm.default:
            return torch.cat([func(*pair) for pair in zip(*map(each, args))])
        return func(*args, **(kwargs or {}))


def of_transformers(kind: str) -> Any:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{kind}Config")(**SIZES, **(MIXTURE if kind == "Qwen3Moe" else {}))
    kwargs = {"dtype": torch.float32, "attn_implementation": "eager"}
    return transformers.AutoModelForCausalLM.from_config(config, **kwargs).eval()


def by_quantize_model(made: Any, folder: Path, activations: str | None, ids: Tensor) -> Any:
    calibrate = None if activations is None else (lambda m: m(ids))
    nvfp4.quantize_model(made, ignore=(), activations=activations, calibrate=calibrate, batch_invariant=True)
    return made


def by_load(made: Any, folder: Path, activations: str | None, ids: Tensor) -> Any:
    fresh = copy.deepcopy(made)
    nvfp4.save(by_quantize_model(made, folder, activations, ids), folder)
    nvfp4.load(folder, fresh, batch_invariant=True)
    return fresh


def by_transformers_load(made: Any, folder: Path, activations: str | None, ids: Tensor) -> Any:
    by_quantize_model(made, folder, activations, ids).save_pretrained(folder)
    return nvfp4.transformers.load(folder, batch_invariant=True, attn_implementation="eager")


def by_from_pretrained(made: Any, folder: Path, activations: str | None, ids: Tensor) -> Any:
    from transformers import AutoModelForCausalLM

    made.save_pretrained(folder)
    config = nvfp4.transformers.NVFP4Config(activations=None, ignore=[], batch_invariant=True)
    return AutoModelForCausalLM.from_pretrained(folder, quantization_config=config, attn_implementation="eager")


@pytest.mark.parametrize("length", [1, 13])
@pytest.mark.parametrize("way", [by_quantize_model, by_load, by_transformers_load, by_from_pretrained])
@pytest.mark.parametrize("activations", [None, "nvfp4"])
@pytest.mark.parametrize("kind", ["Llama", "Qwen3Moe"])
def test_a_sequence_alone_and_in_batches(
    kind: str,
    activations: str | None,
    way: Callable[..., Any],
    length: int,
    generator: torch.Generator,
    tmp_path: Path,
) -> None:
    """Equal logits, also where a sequence has other neighbours, and after tokens that are in the cache. Torch's part,
    attention and the routers of experts, runs row by row."""
    if way is by_from_pretrained and activations is not None:
        pytest.skip("input scales are computed at each call")
    ids = torch.randint(SIZES["vocab_size"], (17, length), generator=generator)
    made = way(of_transformers(kind), tmp_path, activations, ids)
    layers = [m for m in made.modules() if isinstance(m, (nvfp4.Linear, nvfp4.Experts))]
    assert len(layers) == (15 if kind == "Llama" else 11) and all(m.batch_invariant for m in layers)
    assert kind == "Llama" or len([m for m in layers if isinstance(m, nvfp4.Experts)]) == 2
    batches = [[3], [0, 3], [16, 5, 3, 2], [*range(17)], [3] * 7]
    later = torch.randint(SIZES["vocab_size"], (17, 1), generator=generator)
    with torch.no_grad(), RowByRow(layers):
        found = []
        for batch in batches:
            first = made(ids[batch], use_cache=True)
            second = made(later[batch], past_key_values=first.past_key_values)
            found.append(torch.cat((first.logits, second.logits), 1)[batch.index(3)])
    assert found[0].isfinite().all() and len(found[0].unique()) > 1
    assert all(torch.equal(logits, found[0]) for logits in found[1:])


def test_the_example_of_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "batch-invariance.md").read_text(encoding="utf-8")
    example = page.split("```python\n")[1].split("```")[0]
    made = of_transformers("Qwen3Moe")
    nvfp4.quantize_model(made, activations=None)
    made.save_pretrained(tmp_path)
    scope: dict[str, Any] = {"folder": str(tmp_path)}
    exec(example, scope)
    layers = [m for m in scope["model"].modules() if isinstance(m, (nvfp4.Linear, nvfp4.Experts))]
    assert len(layers) == 10 and all(m.batch_invariant for m in layers)


def test_arguments_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(nvfp4.Error, match="^batch_invariant: is True, but without calibrate"):
        nvfp4.transformers.NVFP4Config(batch_invariant=True)
    assert nvfp4.transformers.NVFP4Config(activations=None, batch_invariant=True).to_dict()["batch_invariant"] is True
    with pytest.raises(nvfp4.Error, match="^batch_invariant: is of type int; must be a bool"):
        nvfp4.transformers.load(tmp_path, batch_invariant=1)
    made = of_transformers("Llama")
    nvfp4.quantize_model(made)
    made.save_pretrained(tmp_path)
    with pytest.raises(nvfp4.Error, match=r"^model\.layers\.0\.\S+\.input_global_scale: is None, so its input scale"):
        nvfp4.transformers.load(tmp_path, batch_invariant=True)
    loaded = nvfp4.transformers.load(tmp_path, batch_invariant=True, activations=None)
    assert loaded.model.layers[0].mlp.up_proj.batch_invariant
