"""Experts of checkpoints: six models of transformers in the layouts of producers, names, modes, errors and times."""

from __future__ import annotations

import copy
import functools
import importlib.util
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch", reason="comes with transformers")
import transformers  # noqa: E402
from memory_maps import mapping  # noqa: E402
from moe_models import COMMON, FORMATS, HIDDEN, IDS, INNER, MODELS, E, Mixture, content  # noqa: E402
from paths import ROOT  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

import nvfp4  # noqa: E402
import nvfp4.transformers  # noqa: E402
from nvfp4.hosts.transformers import quantizers  # noqa: E402
from nvfp4.layers.experts.mixture import describe, is_mixture, matrices  # noqa: E402
from nvfp4.layers.experts.module import Experts  # noqa: E402
from nvfp4.layers.packed import PackedLinear  # noqa: E402

transformers.utils.logging.disable_progress_bar()

# fp32: each of some 20 products sums up to 96 terms. bf16: both round four results of a module to 2^-9.
BOUND, BOUND_BF16 = 1e-5, 0.02


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Mixture]:
    made: dict[Any, Mixture] = {}

    def make(name: str, mode: str = "W4A16") -> Mixture:
        if (name, mode) not in made:
            made[name, mode] = Mixture(name, mode, tmp_path_factory.mktemp(name))
        return made[name, mode]

    return make


def loaded(how: str, own: Mixture, folder: Path, **more: Any) -> Any:
    """The model in fp32. Nothing warns."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if how == "load":
            model = own.from_config()
            nvfp4.load(folder, model, **more)
        else:
            model = nvfp4.transformers.load(folder, dtype=torch.float32, **more)
    assert not [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    return model


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(IDS).logits.float()


def error(y: Tensor, wanted: Tensor) -> float:
    return float((y - wanted).norm() / wanted.norm())


def tokens(model: Any) -> Tensor:
    return model.generate(IDS, max_new_tokens=32, min_new_tokens=32, do_sample=False)


# ---- six models ----


@pytest.mark.parametrize("how", ["load", "transformers"])
@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("mode", ["W4A16", "W4A4"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_tokens_and_equal_bytes(
    name: str, mode: str, format_name: str, how: str, mixture: Callable[..., Mixture], tmp_path: Path
) -> None:
    """The logits of transformers' loop over the dequantized weights, and 32 of its tokens; saved as it was read."""
    own = mixture(name, mode)
    folder = own.write(tmp_path / "read", format_name)
    model = loaded(how, own, folder, activations=None)  # other layers would quantize their inputs
    found = [module for module in model.modules() if isinstance(module, Experts)]
    assert len(found) == own.mixtures and not [m for m in model.modules() if type(m).__name__.endswith("TextExperts")]
    assert error(logits(model), logits(own.dense)) < BOUND
    if how == "transformers" and format_name == "modelopt" and mode == "W4A16":
        assert torch.equal(tokens(model), tokens(own.dense))
    kept = loaded(how, own, folder)
    if how == "transformers":
        kept.save_pretrained(tmp_path / "saved")
    else:
        nvfp4.save(kept, tmp_path / "saved", format_name)
    if how == "transformers" or name in ("qwen3-moe", "deepseek-v3", "gpt-oss", "llama-4"):  # others are renamed
        assert content(tmp_path / "saved") == content(folder)
    again = loaded(how, own, tmp_path / "saved")
    assert torch.equal(logits(again), logits(kept))
    assert all(module.mode == mode for module in again.modules() if isinstance(module, Experts))


@pytest.mark.parametrize("how", ["load", "transformers"])
@pytest.mark.parametrize("name", ["qwen3-moe", "llama-4"])
def test_divisors_are_written_as_they_were_read(
    name: str, how: str, mixture: Callable[..., Mixture], generator: torch.Generator, tmp_path: Path
) -> None:
    """Experts, stacks of them and other layers have divisors, many of which are not the reciprocal of their
    reciprocal."""
    own = mixture(name, "W4A4")
    tensors = own.stored("compressed-tensors")
    for key, t in tensors.items():
        if key.endswith("global_scale"):
            tensors[key] = t * (torch.rand((), generator=generator) + 0.5)
    model = loaded(how, own, own.write(tmp_path / "read", "compressed-tensors", tensors))
    if how == "transformers":
        model.save_pretrained(tmp_path / "saved")
    else:
        nvfp4.save(model, tmp_path / "saved", "compressed-tensors")
    assert content(tmp_path / "saved") == content(tmp_path / "read")


@pytest.mark.parametrize("name", MODELS)
def test_experts_in_16_bits(name: str, mixture: Callable[..., Mixture], tmp_path: Path) -> None:
    own = mixture(name)
    folder = own.write(tmp_path / "read", "modelopt")
    for dtype in (torch.bfloat16, torch.float16):
        model, dense = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype), own.reference(dtype)
        compared: list[float] = []
        for name, module in dense.named_modules():
            if name.endswith(".experts"):
                hook = functools.partial(compare, own=model.get_submodule(name), errors=compared)
                module.register_forward_hook(hook, with_kwargs=True)
        logits(dense)
        assert len(compared) == own.mixtures and max(compared) < BOUND_BF16


def compare(module: nn.Module, given: Any, keywords: Any, y: Tensor, own: nn.Module, errors: list[float]) -> None:
    """A hook that runs another module on the same inputs."""
    with torch.no_grad():
        errors.append(error(own(*given, **keywords).float(), y.float()))


def test_what_transformers_leaves_in_fp32_gets_the_dtype(
    mixture: Callable[..., Mixture], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers 5.17 casts no parameter of a quantized checkpoint that it renames, such as Mixtral's router. Later
    versions ask the quantizer, which is made to answer in that way here."""
    folder = mixture("mixtral").write(tmp_path / "read", "modelopt")
    monkeypatch.setattr(quantizers.ModelOptQuantizer, "get_new_dtype", lambda *_: None, raising=False)
    model = nvfp4.transformers.load(folder, dtype=torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert logits(model).isfinite().all()
    monkeypatch.setattr(transformers.MixtralForCausalLM, "_keep_in_fp32_modules_strict", {"post_attention_layernorm"})
    model = nvfp4.transformers.load(folder, dtype=torch.bfloat16)
    in_fp32 = {name for name, p in model.named_parameters() if p.dtype == torch.float32}
    assert in_fp32 == {f"model.layers.{i}.post_attention_layernorm.weight" for i in range(2)}


def test_gradients_reach_the_router(mixture: Callable[..., Mixture], tmp_path: Path) -> None:
    own = mixture("qwen3-moe")
    model = loaded("transformers", own, own.write(tmp_path / "read", "modelopt"))
    for one in (model, own.dense):
        one.zero_grad()
        one(IDS).logits.square().mean().backward()
    for key in ("model.layers.0.mlp.gate.weight", "model.embed_tokens.weight"):
        given, wanted = (one.get_parameter(key).grad for one in (model, own.dense))
        assert error(given, wanted) < 100 * BOUND


@pytest.mark.parametrize("how", ["load", "transformers"])
def test_experts_stay_in_the_mapped_file(how: str, mixture: Callable[..., Mixture], tmp_path: Path) -> None:
    own = mixture("qwen3-moe")
    folder = own.write(tmp_path / "read", "modelopt")
    model = loaded(how, own, folder)
    place = f"{folder}/model.safetensors"
    for layer in model.model.layers:
        for stack in (layer.mlp.experts.gate_up, layer.mlp.experts.down):
            for values, scales in stack.kept:
                assert all(place in mapping(t) for t in (*values, *scales) if t.data_ptr() % 8 == 0)
    model.to(torch.float32)
    assert place in mapping(model.model.layers[1].mlp.experts.down.kept[0][0][3])


@pytest.mark.parametrize("mode", ["W4A16", "W4A4"])
def test_a_compiled_model_in_a_mapped_file(mode: str, mixture: Callable[..., Mixture], tmp_path: Path) -> None:
    """Its results equal those of stacks in memory; nothing is copied."""
    own = mixture("qwen3-moe", mode)
    folder = own.write(tmp_path / "read", "modelopt")
    model, stacked = (loaded("load", own, folder).requires_grad_(False) for _ in range(2))
    for module in stacked.modules():
        if isinstance(module, Experts):
            module.gate_up.gather(torch.device("cpu"))
            module.down.gather(torch.device("cpu"))
    torch._dynamo.reset()
    run = torch.compile(model, fullgraph=True, backend="aot_eager")
    y = run(IDS).logits
    assert torch.equal(y, model(IDS).logits) and torch.equal(y, stacked(IDS).logits)
    values, _ = model.model.layers[1].mlp.experts.down.kept[0]
    assert f"{folder}/model.safetensors" in mapping(values[3])


def test_the_example_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "experts.md").read_text(encoding="utf-8")
    example = page.split("```python\n")[1].split("```")[0]
    model = AutoModelForCausalLM.from_config(MODELS["qwen3-moe"]()).eval()
    exec(example, {"mixture": model, "ids": torch.tensor([[5]]), "target": str(tmp_path / "saved")})
    assert capsys.readouterr().out.startswith("W4A4 {'model.layers.0.mlp.experts': [")


# ---- quantize_model ----


@pytest.mark.parametrize("name", MODELS)
def test_quantize_model(name: str, tmp_path: Path) -> None:
    """The report names experts and those without a sample; saved and loaded by both."""
    torch.manual_seed(torch.randint(2**31, ()).item())
    model = AutoModelForCausalLM.from_config(MODELS[name](), dtype=torch.bfloat16).eval()
    before = {
        key: t.nbytes for key, t in model.named_parameters() if "experts." in key and t.ndim > 1 and "shared" not in key
    }
    config = MODELS[name]()
    report = nvfp4.quantize_model(model, calibrate=lambda m: m(torch.tensor([[5]])))
    mixtures = {key for key, module in model.named_modules() if isinstance(module, Experts)}
    found = {layer.name: layer for layer in report.layers if layer.name in mixtures}
    assert found.keys() == mixtures == report.unreached.keys() and not mixtures & report.skipped.keys()
    assert not [key for key in report.skipped if "experts." in key]
    for layer in found.values():
        assert (
            layer.shape == (E, HIDDEN, INNER) and 0.05 < layer.error < 0.15 and layer.bytes_after < layer.bytes_before
        )
    assert sum(layer.bytes_before for layer in found.values()) >= sum(before.values())
    for missed in report.unreached.values():  # one token has one or two experts
        assert len(missed) in (E - 1, E - 2)
    assert f"not reached: {sorted(mixtures)[0]}: experts [" in str(report)
    wanted = logits(model)
    model.save_pretrained(tmp_path / "a")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "a", dtype=torch.bfloat16)
    assert torch.equal(logits(again), wanted)
    for format_name in FORMATS:
        other = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        nvfp4.save(model, tmp_path / format_name, format_name)
        nvfp4.load(tmp_path / format_name, other)
        assert format_name != "modelopt" or torch.equal(logits(other), wanted)
        for key, t in model.state_dict().items():
            if "global_scale" in key:  # compressed-tensors stores the rounded reciprocal
                assert (other.state_dict()[key] / t - 1).abs().max() <= 2.0**-22
            else:
                assert torch.equal(other.state_dict()[key].view(torch.uint8), t.view(torch.uint8))


def test_quantize_model_leaves_experts(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_config(MODELS["qwen3-moe"]()).eval()
    report = nvfp4.quantize_model(model, ignore=["lm_head", "*.0.mlp.experts"])
    assert report.skipped["model.layers.0.mlp.experts"] == "ignore has '*.0.mlp.experts'"
    assert [layer.name for layer in report.layers if layer.name.endswith("experts")] == ["model.layers.1.mlp.experts"]
    model = AutoModelForCausalLM.from_config(MODELS["qwen3-moe"]()).eval()
    with torch.no_grad():
        model.model.layers[0].mlp.experts.down_proj[2, 3, 4] = torch.inf
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(
        nvfp4.Error, match=r"^model.layers.0.mlp.experts.down_proj: has a value that is NaN or infinite"
    ):
        nvfp4.quantize_model(model)
    assert all(torch.equal(t, before[key]) for key, t in model.state_dict().items())


def test_activations_that_nvfp4_does_not_have() -> None:
    """A class is taken by what it computes, not by its name."""
    model = AutoModelForCausalLM.from_config(MODELS["qwen3-moe"]()).eval()
    experts = model.model.layers[0].mlp.experts
    assert describe(experts).activation == "silu"
    experts._apply_gate = lambda gate_up: torch.sin(gate_up.chunk(2, -1)[0]) * gate_up.chunk(2, -1)[1]
    assert describe(experts) == "is a Qwen3MoeExperts with an activation that nvfp4 does not have"
    experts._apply_gate = lambda gate_up: nn.functional.gelu(gate_up.chunk(2, -1)[0]) * gate_up.chunk(2, -1)[1]
    assert isinstance(describe(experts), str)  # not its approximation
    experts._apply_gate = lambda gate_up: nn.functional.silu(gate_up[:, ::2]) * gate_up[:, 1::2]
    assert isinstance(describe(experts), str)
    report = nvfp4.quantize_model(model)
    assert report.skipped["model.layers.0.mlp.experts"].endswith("with an activation that nvfp4 does not have")
    other = AutoModelForCausalLM.from_config(MODELS["qwen3-moe"]()).model.layers[0].mlp.experts
    other.act_fn = nn.GELU(approximate="tanh")
    assert describe(other).activation == "gelu_tanh"
    other.has_post_expert_norm = True
    assert "with a norm after each expert" in str(describe(other))


def test_mixed_precision(mixture: Callable[..., Mixture], tmp_path: Path) -> None:
    """quantized_layers names the module of all experts. Other layers are W4A4; shared experts are ordinary layers."""
    own = mixture("deepseek-v3")
    tensors = own.stored("modelopt")
    shared = [name for name in own.layers if "shared_experts" in name]
    for name in shared:
        tensors[f"{name}.input_scale"] = torch.tensor(0.01)
    attention = [name for name in own.layers if "experts" not in name]
    quantized = {name: {"quant_algo": "W4A16_NVFP4", "group_size": 16} for name in attention}
    quantized |= {name: {"quant_algo": "NVFP4", "group_size": 16} for name in shared}
    quantized["model.layers.1.mlp.experts"] = {"quant_algo": "W4A16_NVFP4", "group_size": 16}
    folder = own.write(tmp_path / "read", "modelopt", tensors, quant_algo="MIXED_PRECISION", quantized_layers=quantized)
    model = loaded("transformers", own, folder)
    assert model.model.layers[1].mlp.shared_experts.up_proj.activations == "nvfp4"
    assert model.model.layers[1].mlp.experts.mode == "W4A16"
    model.save_pretrained(tmp_path / "saved")
    assert content(tmp_path / "saved") == content(folder)
    nvfp4.save(model, tmp_path / "other", "compressed-tensors")
    again = own.from_config()
    nvfp4.load(tmp_path / "other", again)
    assert torch.equal(logits(again), logits(model))


def test_activations_of_experts(mixture: Callable[..., Mixture], tmp_path: Path) -> None:
    """`activations` comes before what the checkpoint says, with its input scales or dynamic ones."""
    wanted = {("W4A16", "nvfp4"): "W4A4 dynamic", ("W4A4", "nvfp4"): "W4A4", ("W4A4", None): "W4A16"}
    for (mode, activations), found in wanted.items():
        own = mixture("qwen3-moe", mode)
        folder = own.write(tmp_path / f"{mode} {activations}", "modelopt")
        for how in ("load", "transformers"):
            model = loaded(how, own, folder, activations=activations)
            experts = model.model.layers[0].mlp.experts
            assert experts.mode == found and experts.activations == activations
            assert (experts.down.input_global_scale is None) == (found != "W4A4")
            assert model.model.layers[0].self_attn.q_proj.activations == activations


def test_experts_that_the_model_cannot_take(mixture: Callable[..., Mixture], tmp_path: Path) -> None:
    own = mixture("qwen3-moe")
    folder = own.write(tmp_path / "read", "modelopt")
    model = own.from_config()
    model.model.layers[0].mlp.experts.has_post_expert_norm = True
    with pytest.raises(nvfp4.Error, match=r"^model.layers.0.mlp.experts: is a Qwen3MoeExperts with a norm after each"):
        nvfp4.load(folder, model)
    assert not any(isinstance(module, (nvfp4.Linear, Experts)) for module in model.modules())


@pytest.mark.parametrize("name", ["gpt-oss", "nemotron-h"])
def test_experts_take_another_checkpoint(name: str, mixture: Callable[..., Mixture], tmp_path: Path) -> None:
    """An nvfp4.Experts of a model is replaced too; it knows whether gate and up alternate in the model's stacks."""
    own = mixture(name)
    folder = own.write(tmp_path / "read", "modelopt")
    model = own.from_config()
    for _ in range(2):
        nvfp4.load(folder, model)
        assert error(logits(model), logits(own.dense)) < BOUND
    model = own.from_config()
    nvfp4.quantize_model(model, activations=None)
    nvfp4.load(folder, model)
    assert error(logits(model), logits(own.dense)) < BOUND


# ---- time ----


def test_time_and_objects_of_many_experts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No object is made for each expert. Reading takes less than 1 ms of processor time for each of their layers."""
    experts, layers = 256, 2
    sizes = COMMON | {"hidden_size": 32, "num_hidden_layers": layers, "num_attention_heads": 2, "vocab_size": 64}
    config = transformers.Qwen3MoeConfig(
        **sizes, head_dim=16, num_experts=experts, num_experts_per_tok=2, moe_intermediate_size=16, intermediate_size=32
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    tensors = {name: torch.zeros(t.shape) for name, t in model.state_dict().items() if "experts" not in name}
    for layer in range(layers):
        for e in range(experts):
            for local, (n, k) in {"gate_proj": (16, 32), "up_proj": (16, 32), "down_proj": (32, 16)}.items():
                name = f"model.layers.{layer}.mlp.experts.{e}.{local}"
                tensors[f"{name}.weight"] = torch.zeros(n, k // 2, dtype=torch.uint8)
                tensors[f"{name}.weight_scale"] = torch.ones(n, k // 16).to(torch.float8_e4m3fn)
                tensors[f"{name}.weight_scale_2"] = torch.tensor(0.5)
    safetensors.save_file(tensors, tmp_path / "model.safetensors")
    made = []
    monkeypatch.setattr(PackedLinear, "__post_init__", lambda self: made.append(self))
    nvfp4.load(tmp_path, AutoModelForCausalLM.from_config(config))  # imports
    start = time.process_time()
    nvfp4.load(tmp_path, model)
    each = (time.process_time() - start) / (experts * layers * 3)
    assert not made and each < 1e-3
    (gates, _), (ups, _) = model.model.layers[1].mlp.experts.gate_up.kept
    assert len(gates) == len(ups) == experts and {t.shape for t in gates} == {(16, 16)}


# ---- other programs ----


@pytest.mark.skipif(importlib.util.find_spec("modelopt") is None, reason="needs nvidia-modelopt")
@pytest.mark.parametrize("name", MODELS)
def test_checkpoints_that_modelopt_wrote(name: str, tmp_path: Path) -> None:
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint

    model = AutoModelForCausalLM.from_config(MODELS[name](), dtype=torch.bfloat16).eval()
    dense = {key: matrices(m, describe(m)) for key, m in model.named_modules() if is_mixture(m)}
    dense = {key: [weight.float().clone() for weight in weights] for key, (weights, _) in dense.items()}
    model.config.architectures = [type(model).__name__]
    config = copy.deepcopy(mtq.NVFP4_DEFAULT_CFG)
    mtq.quantize(model, config, lambda m: [m(IDS + i) for i in range(4)])
    export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=tmp_path)
    read = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    found = {key: m for key, m in read.named_modules() if isinstance(m, Experts)}
    assert found.keys() == dense.keys() and {m.mode for m in found.values()} == {"W4A4"}
    for key, m in found.items():
        for stack, weight in zip((m.gate_up, m.down), dense[key]):
            assert stack.input_global_scale is not None and stack.shape[:3] == weight.shape[:3]
            get = stack.matrices()
            for e, one in enumerate(weight):
                for p, matrix in enumerate(one):
                    data, scale = get(e, p)
                    scale = nvfp4.swizzle(scale.contiguous())
                    values = nvfp4.dequantize(data, scale, global_scale=stack.weight_global_scale[e, p])
                    assert error(values, matrix) < 0.12  # of rounding to 4 bits
    assert logits(read).isfinite().all()
    read.save_pretrained(tmp_path / "saved")
    assert content(tmp_path / "saved") == content(tmp_path)
