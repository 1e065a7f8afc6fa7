"""nvfp4.Experts with quantized inputs (W4A4): against quantize and gemm for each expert, to the bit; scales of
checkpoints and of calibration, and what is stored."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from backend_table import ROWS
from conftest import Backend
from expert_layers import INNER, KINDS, E, H, keep, make, routing
from torch import Tensor

import nvfp4
from nvfp4 import _C, _api
from nvfp4.layers.experts import stack as experts_stack
from nvfp4.layers.experts.module import Experts
from nvfp4.layers.experts.stack import Stack

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def quantizing(generator: torch.Generator, static: bool, *kind: Any, **more: Any) -> Experts:
    """Experts whose gate and up have other input scales, and of which one has none."""
    experts = make(generator, *kind, batch_invariant=True, activations="nvfp4", **more)
    for stack in (experts.gate_up, experts.down) if static else ():
        stack.input_global_scale = (torch.rand(stack.weight_global_scale.shape, generator=generator) + 0.5) / 64
        stack.input_global_scale[2] = torch.nan
    return experts


def product(stack: Stack, expert: int, x: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Rows of one expert by quantize and gemm of matrices, part by part."""
    given, parts = stack.input_global_scale, []
    if given is None:
        factor = nvfp4.amax_scale(x, by_row=True)
        data, scale = nvfp4.quantize(x, global_scale=factor)
    else:
        known = given[~given.isnan()]
        factor = known.max() if given[expert].isnan().all() else given[expert].max()
        data, scale = nvfp4.quantize(x, global_scale=factor)
    for p in range(stack.shape[1]):
        bias = None if stack.bias is None else stack.bias[expert, p].float()
        alpha = stack.weight_global_scale[expert, p]
        operands = (data, stack.weight[expert, p], scale, stack.weight_scale[expert, p])
        if given is None:
            y = nvfp4.gemm(*operands, alpha=alpha[None], out_dtype="float32", batch_invariant=True) * factor[:, None]
            parts.append((y if bias is None else y + bias).to(dtype))
        else:
            options = {"alpha": (alpha * factor)[None], "bias": bias, "out_dtype": dtype, "batch_invariant": True}
            parts.append(nvfp4.gemm(*operands, **options))
    return parts


def loop(experts: Experts, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    each = torch.zeros(index.numel(), H, dtype=hidden.dtype)
    places = torch.full(index.shape, -1, dtype=torch.int32)
    for t in range(len(hidden)):
        for j, e in enumerate(index[t].tolist()):
            if 0 <= e < E:
                gate, *up = product(experts.gate_up, e, hidden[t : t + 1], hidden.dtype)
                options = {"limit": experts.limit, "alpha": experts.alpha, "out_dtype": "float32"}
                h = nvfp4.gated(gate, up[0] if up else None, experts.activation, **options)
                places[t, j] = t * index.shape[1] + j
                each[int(places[t, j])] = product(experts.down, e, h, hidden.dtype)[0]
    return nvfp4.moe_combine(each, places, weights, out_dtype=hidden.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(("activation", "gated"), KINDS)
def test_equal_bits_of_each_expert(
    activation: str, gated: bool, static: bool, bias: bool, dtype: torch.dtype, generator: torch.Generator
) -> None:
    more = {"limit": 2.0} if activation == "swiglu" else {}
    experts = quantizing(generator, static, activation, gated, bias=bias, dtype=dtype, **more)
    hidden = torch.randn(9, H, generator=generator).to(dtype)
    hidden[3] = 0
    routed = routing(generator)
    y = experts(hidden, *routed)
    assert torch.equal(y, loop(experts, hidden, *routed)) and y.any() and y.isfinite().all()
    assert torch.equal(keep(experts)(hidden, *routed), y)
    assert experts.mode == ("W4A4" if static else "W4A4 dynamic")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("static", [True, False])
def test_calls_of_quantizers(
    static: bool, dtype: torch.dtype, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call quantizes what all experts read, each row with the scale of its expert. That of a token alone is
    computed once for all of its experts. The activation is quantized in the call that computes it, or the product."""
    experts = quantizing(generator, static)
    found: Counter[str] = Counter()

    def counting(name: str) -> Callable[..., Any]:
        function = getattr(_api, name)

        def call(x: Tensor, *arguments: Any, **more: Any) -> Any:
            found[f"{name} of {len(x)}" if name == "amax_scale" else name] += 1
            return function(x, *arguments, **more)

        return call

    for name in ("quantize", "gated_quantize", "gated_grouped_quantize", "amax_scale"):
        monkeypatch.setattr(_api, name, counting(name))
    index, weights = routing(generator)
    experts(torch.randn(9, H, generator=generator).to(dtype), index, weights)
    places = index.numel()
    if not static:
        assert found == {"quantize": 2, "amax_scale of 9": 1, f"amax_scale of {places}": 1}
    elif dtype == torch.float32:  # products that are not rounded to 16 bits
        assert found == {"quantize": 1, "gated_quantize": 1}
    else:
        assert found == {"quantize": 1, "gated_grouped_quantize": 1}


@pytest.mark.parametrize("static", [True, False])
def test_bits_of_a_token_depend_on_no_other(static: bool, generator: torch.Generator) -> None:
    """Seven tokens alone have the bits that they have among 40; dynamic scales are those of a token."""
    experts = quantizing(generator, static)
    hidden, (index, weights) = torch.randn(40, H, generator=generator), routing(generator, 40)
    whole = experts(hidden, index, weights)
    some = torch.randperm(40, generator=generator)[:7]
    assert torch.equal(experts(hidden[some], index[some], weights[some]), whole[some])


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(("activation", "gated"), [("relu2", False), ("silu", True)])
def test_equal_bits_on_every_backend(
    activation: str, gated: bool, static: bool, backend: Backend, generator: torch.Generator
) -> None:
    """Where no sum rounds, whatever the order: few bits are left of an activation that is quantized."""
    if "uint8" not in ROWS[backend.name]["product_kinds"].get("grouped_gemm", []):
        pytest.skip("has no such kernel")
    anywhere = "uint8" in ROWS[backend.name]["linear_scales"]["grouped_gemm"]  # else rows are on 16 bytes
    experts = quantizing(generator, static, activation, gated, integers=True, inner=INNER if anywhere else 64)
    for stack in (experts.gate_up, experts.down) if static else ():
        stack.input_global_scale = torch.full_like(stack.weight_global_scale, 2.0**-4)
    hidden = torch.randint(-1, 2, (9, H), generator=generator).half()
    index, weights = routing(generator)
    weights = torch.tensor([0.5, 1.0, 2.0])[torch.randint(3, weights.shape, generator=generator)]
    _C.set_default_backend("cpu")
    wanted = experts(hidden, index, weights)
    try:
        _C.set_default_backend(backend.name if backend.emulated else None)
        moved = copy.deepcopy(experts).to(backend.device)
        got = moved(*(t.to(backend.device) for t in (hidden, index, weights)))
    finally:
        _C.set_default_backend(None)
    assert torch.equal(got.cpu(), wanted) and wanted.any() and wanted.isfinite().all()


@pytest.mark.parametrize("static", [True, False])
def test_on_a_gpu(static: bool, cuda: Any, generator: torch.Generator) -> None:
    """Sums in another order round otherwise, and a value that is quantized may then be the next one."""
    experts = quantizing(generator, static)
    hidden, routed = torch.randn(40, H, generator=generator).half(), routing(generator, 40)
    wanted = experts(hidden, *routed).float()
    moved = copy.deepcopy(experts).cuda()
    given = [t.cuda() for t in (hidden, *routed)]
    got = moved(*given)
    assert float((got.float().cpu() - wanted).norm() / wanted.norm()) < 0.02
    graph = torch.cuda.CUDAGraph()
    fresh = copy.deepcopy(experts).cuda()
    with torch.cuda.graph(graph):
        out = fresh(*given)
    graph.replay()
    assert torch.equal(out, got) and torch.equal(fresh(*given), got)


def test_a_graph_follows_a_state_dict(cuda: Any, generator: torch.Generator) -> None:
    """It reads input scales that were computed before it was made."""
    experts, other = (quantizing(generator, True).cuda() for _ in range(2))
    hidden, routed = torch.randn(40, H, generator=generator).half(), routing(generator, 40)
    given = [t.cuda() for t in (hidden, *routed)]
    experts(*given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = experts(*given)
    experts.load_state_dict(other.state_dict())
    graph.replay()
    assert torch.equal(out, other(*given))


@pytest.mark.parametrize("inference", [False, True])
def test_known_scales_stay_in_their_place(
    inference: bool, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A capture takes what is known of the buffers as they are; changes of the buffers are written there."""
    stack, other = (quantizing(generator, static=True).gate_up for _ in range(2))
    other.input_global_scale.mul_(3)
    other.weight_global_scale.mul_(5)
    with torch.inference_mode(inference):
        known = stack.input_scales()
    monkeypatch.setattr(experts_stack, "is_captured", lambda t: True)
    assert stack.input_scales() is known
    stack.load_state_dict(other.state_dict())
    assert stack.input_scales() is known
    assert all(torch.equal(a, b) for a, b in zip(known, other.input_scales()))
    stack.input_global_scale.mul_(2)
    captured = stack.input_scales()  # computed in the graph, since nothing is known of the new values
    assert captured is not known and torch.equal(captured[0], known[0] * 2)
    monkeypatch.undo()
    copied = copy.deepcopy(stack)
    for t in (copied.input_global_scale, copied.weight_global_scale):
        t.mul_(2)  # as many changes as the copied tensors had
    assert torch.equal(copied.input_scales()[1], stack.input_scales()[1] * 4)
    assert stack.input_scales() is known and torch.equal(captured[0], known[0])


def test_router_weights_on_the_input_and_rows_in_order(generator: torch.Generator) -> None:
    experts = quantizing(generator, True, apply_router_weight_on_input=True)
    hidden, (index, weights) = torch.randn(9, H, generator=generator), routing(generator, k=1)
    plain = copy.deepcopy(experts)
    plain.apply_router_weight_on_input = False
    ones = torch.ones_like(weights)
    assert torch.equal(experts(hidden, index, weights), plain(hidden * weights, index, ones))
    rows = torch.randn(2 * E, H, generator=generator)
    expert = torch.arange(E).repeat_interleave(2)[:, None]
    assert torch.equal(plain(rows), plain(rows, expert, torch.ones(2 * E, 1)))


def test_scales_are_those_of_now(generator: torch.Generator) -> None:
    """They may be changed in place or replaced, and follow a state dict, a copy, a pickle and a cast."""
    experts = quantizing(generator, True)
    hidden, routed = torch.randn(9, H, generator=generator), routing(generator)
    first = experts(hidden, *routed)
    assert torch.equal(experts(hidden, *routed), first)
    for other in (copy.deepcopy(experts), pickle.loads(pickle.dumps(experts)), copy.deepcopy(experts).double().float()):
        assert torch.equal(other(hidden, *routed), first)
    experts.gate_up.input_global_scale.mul_(1.5)
    second = experts(hidden, *routed)
    assert torch.equal(second, loop(experts, hidden, *routed)) and not torch.equal(second, first)
    experts.down.input_global_scale = experts.down.input_global_scale / 3
    experts.down.weight_global_scale.div_(2)
    third = experts(hidden, *routed)
    assert torch.equal(third, loop(experts, hidden, *routed)) and not torch.equal(third, second)
    other = quantizing(generator, False)
    other.load_state_dict(experts.state_dict())
    assert other.mode == "W4A4" and torch.equal(other(hidden, *routed), third)
    other.load_state_dict(quantizing(generator, False).state_dict())
    assert other.mode == "W4A4 dynamic"


@pytest.mark.parametrize("static", [True, False])
def test_compiled(static: bool, generator: torch.Generator) -> None:
    experts = quantizing(generator, static, bias=True)
    run = torch.compile(experts, fullgraph=True, backend="aot_eager", dynamic=True)
    torch._dynamo.reset()
    for tokens in (5, 9):
        hidden, routed = torch.randn(tokens, H, generator=generator), routing(generator, tokens)
        with torch.no_grad():
            assert torch.equal(run(hidden, *routed), experts(hidden, *routed))


def test_no_gradient(generator: torch.Generator) -> None:
    experts = quantizing(generator, True)
    hidden, (index, weights) = torch.randn(9, H, generator=generator), routing(generator)
    for given in ((hidden.clone().requires_grad_(), weights), (hidden, weights.clone().requires_grad_())):
        y = experts(given[0], index, given[1])
        assert torch.equal(y, experts(hidden, index, weights)) and y.requires_grad
        with pytest.raises(nvfp4.Error, match=r"^activations: is 'nvfp4' \(W4A4\), which has no gradient"):
            y.sum().backward()


def test_repr_and_arguments(generator: torch.Generator) -> None:
    text = "5, hidden_size=64, intermediate_size=48, activation='silu', gated=True, W4A4, input_global_scale={}, "
    for static, kind in ((True, "static"), (False, "dynamic")):
        assert quantizing(generator, static).extra_repr() == text.format(kind) + "batch_invariant=True"
    with pytest.raises(nvfp4.Error, match="^activations: is 'fp8'; must be 'nvfp4' or None$"):
        Experts(E, H, 48, activations="fp8")


# ---- checkpoints ----

transformers = pytest.importorskip("transformers")
from moe_models import FORMATS, IDS, MODELS, Mixture, content  # noqa: E402

import nvfp4.transformers  # noqa: E402


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Mixture:
    return Mixture("qwen3-moe", "W4A4", tmp_path_factory.mktemp("w4a4"))


def experts_of(model: Any) -> Experts:
    return model.model.layers[0].mlp.experts


def test_scales_that_are_settled(generator: torch.Generator) -> None:
    """They are computed once, also of buffers of inference mode, until a buffer is another tensor."""
    stack = quantizing(generator, static=True).gate_up
    stack.input_global_scale[0] = 3.0
    with torch.inference_mode():
        stack.input_global_scale = stack.input_global_scale.clone()
        before = stack.input_scales()
        assert stack.input_scales()[0] is not before[0]  # there is no version
        stack.settle()
        settled = stack.input_scales()
        assert all(torch.equal(a, b) for a, b in zip(settled, before))
        assert stack.input_scales()[0] is settled[0] and stack.input_scales()[1] is settled[1]
    stack.input_global_scale = stack.input_global_scale * 2
    assert torch.equal(stack.input_scales()[0], settled[0] * 2)
    stack.input_global_scale = None
    stack.settle()
    assert stack.input_scales()[0] is None


def loaded(how: str, own: Mixture, folder: Path) -> Any:
    if how == "transformers":
        return nvfp4.transformers.load(folder, dtype=torch.float32)
    model = own.from_config()
    nvfp4.load(folder, model)
    return model


@pytest.mark.parametrize("how", ["load", "transformers"])
@pytest.mark.parametrize("format_name", FORMATS)
def test_experts_that_no_sample_reached(how: str, format_name: str, own: Mixture, tmp_path: Path) -> None:
    """They have no input scale, take the largest of the others, and are saved without one. Damaged scales, and none at
    all, are errors."""
    key, tensors = FORMATS[format_name].INPUT_SCALE, own.stored(format_name)
    place = "model.layers.0.mlp.experts"
    for e, (one, more) in enumerate(((1.0, 1.0), (1.5, 1.5), (1.0, 2.0))):
        for local, factor in (("gate_proj", one), ("up_proj", more)):
            tensors[f"{place}.{e}.{local}.{key}"] = tensors[f"{place}.{e}.{local}.{key}"] * factor
    missing = [f"{place}.3.{local}.{key}" for local in ("gate_proj", "up_proj", "down_proj")]
    partial = {name: t for name, t in tensors.items() if name not in missing}
    folder = own.write(tmp_path / "partial", format_name, partial)
    model = loaded(how, own, folder)
    stack = experts_of(model).gate_up
    given = stack.input_global_scale
    assert given[3].isnan().all() and not given[:3].isnan().any()
    known = given.nan_to_num(0).amax(1)
    wanted = known.clone()
    wanted[3] = known.max()
    assert torch.equal(stack.input_scales()[0], wanted) and len(wanted.unique()) > 1
    nvfp4.save(model, tmp_path / "saved", format_name)
    assert content(tmp_path / "saved") == content(folder)

    name = f"{place}.2.down_proj.{key}"
    damaged = own.write(tmp_path / "damaged", format_name, tensors | {name: torch.zeros_like(tensors[name])})
    with pytest.raises(nvfp4.Error, match="down_proj.*: is 0; must be positive and finite"):
        loaded(how, own, damaged)
    none = {name: t for name, t in tensors.items() if not (place in name and "down_proj" in name and key in name)}
    with pytest.raises(nvfp4.Error, match="is missing, as those of all other experts are; the mode is W4A4"):
        loaded(how, own, own.write(tmp_path / "none", format_name, none))


@pytest.mark.parametrize("how", ["load", "transformers"])
def test_scales_of_each_token(how: str, own: Mixture, tmp_path: Path) -> None:
    """W4A4 without input scales, as compressed-tensors has it, is dynamic, and stored so."""
    model = own.from_config()
    nvfp4.quantize_model(model)
    assert experts_of(model).mode == "W4A4 dynamic"
    nvfp4.save(model, tmp_path / "read", "compressed-tensors")
    again = loaded(how, own, tmp_path / "read")
    assert experts_of(again).mode == "W4A4 dynamic" and experts_of(again).gate_up.input_global_scale is None
    assert torch.equal(again(IDS).logits, loaded(how, own, tmp_path / "read")(IDS).logits)
    nvfp4.save(again, tmp_path / "saved", "compressed-tensors")
    assert content(tmp_path / "saved") == content(tmp_path / "read")
    with pytest.raises(nvfp4.Error, match="is W4A4 without an input_global_scale; modelopt cannot store that"):
        nvfp4.save(again, tmp_path / "modelopt", "modelopt")
    again.save_pretrained(tmp_path / "by transformers")
    assert torch.equal(loaded(how, own, tmp_path / "by transformers")(IDS).logits, again(IDS).logits)


# ---- calibration ----


def what_experts_read(model: Any, ids: Tensor) -> dict[str, Tensor]:
    """The largest absolute values that both products of each expert read, by transformers' own loop."""
    found: dict[str, Tensor] = {}

    def watch(name: str) -> Callable[..., None]:
        def hook(module: Any, given: Any, keywords: Any) -> None:
            x, index, _ = [*given, *keywords.values()][:3]
            amax = found.setdefault(name, torch.zeros(2, module.num_experts))
            for t, row in enumerate(index.tolist()):
                for e in row:
                    inner = torch.nn.functional.linear(x[t], module.gate_up_proj[e])
                    gate, up = inner.chunk(2)
                    h = torch.nn.functional.silu(gate) * up
                    amax[:, e] = torch.stack((x[t].abs().max(), h.abs().max())).maximum(amax[:, e])

        return hook

    hooks = [
        module.register_forward_pre_hook(watch(name), with_kwargs=True)
        for name, module in model.named_modules()
        if name.endswith(".experts")
    ]
    with torch.no_grad():
        model(ids)
    for handle in hooks:
        handle.remove()
    return found


def test_calibration_finds_what_each_expert_reads(own: Mixture, tmp_path: Path) -> None:
    model = own.from_config()
    ids = torch.tensor([[5]])  # one token cannot reach all experts
    read = what_experts_read(model, ids)
    report = nvfp4.quantize_model(model, calibrate=lambda m: m(ids))
    rows = {row.name: row for row in report.layers}
    for name, amax in read.items():
        experts = model.get_submodule(name)
        missed = report.unreached[name]
        assert missed == (amax[0] == 0).nonzero().flatten().tolist() and 0 < len(missed) < E + 1
        for i, stack in enumerate((experts.gate_up, experts.down)):
            wanted = torch.where(amax[i] > 0, amax[i], amax[i].max()) / 2688
            assert torch.allclose(stack.input_global_scale, wanted[:, None].expand(stack.shape[:2]), rtol=1e-5)
        assert rows[name].input_global_scale == float(experts.gate_up.input_global_scale.max())
        assert experts.mode == "W4A4" and experts.activations == "nvfp4"
    for format_name in FORMATS:
        nvfp4.save(model, tmp_path / format_name, format_name)
        other = own.from_config()
        nvfp4.load(tmp_path / format_name, other)
        assert experts_of(other).mode == "W4A4" and torch.equal(other(IDS).logits, model(IDS).logits)


@pytest.mark.parametrize("name", ["gpt-oss", "llama-4"])
def test_stacks_share_a_scale(name: str, tmp_path: Path) -> None:
    """ModelOpt's stacks have one input scale."""
    model = transformers.AutoModelForCausalLM.from_config(MODELS[name]()).eval()
    nvfp4.quantize_model(model, calibrate=lambda m: m(IDS))
    (experts, *_) = [module for module in model.modules() if isinstance(module, Experts)]
    for stack in (experts.gate_up, experts.down):
        assert len(stack.input_global_scale.unique()) == 1
    model.save_pretrained(tmp_path / "saved")
    other = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(other(IDS).logits, model(IDS).logits)


def test_activations_and_inputs_that_are_not_finite(own: Mixture) -> None:
    model = own.from_config()
    nvfp4.quantize_model(model, activations=None)
    assert experts_of(model).mode == "W4A16"
    model = own.from_config()
    with torch.no_grad():
        model.model.layers[0].mlp.experts.gate_up_proj.fill_(1e30)
    with pytest.raises(nvfp4.Error, match=r"^model.layers.0.mlp.experts.input: amax is .* while calibrating"):
        nvfp4.quantize_model(model, ignore=["*proj", "lm_head"], calibrate=lambda m: m(IDS))
    assert not any(isinstance(module, Experts) for module in model.modules())
