"""quantize_model by weights="search" and "gptq": files, reports, presets, what is rejected, what interrupts."""

from __future__ import annotations

import copy
import math
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nvfp4
from nvfp4.quantizing import quantize_model as quantizing
from nvfp4.quantizing.quantize_model import Options, quantize
from nvfp4.quantizing.selection import PRESETS, reason_of
from nvfp4.quantizing.weights import Result, Weights

K = 64


def raw(t: Tensor) -> Tensor:
    return t.reshape(-1).view(torch.uint8)


def state(model: nn.Module) -> dict[str, bytes]:
    return {name: raw(t.detach().contiguous()).numpy().tobytes() for name, t in model.state_dict().items()}


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(K, 96, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(96, K)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


@pytest.fixture
def model() -> nn.Sequential:
    model = nn.Sequential(MLP(), MLP()).requires_grad_(False)
    model[1].up_proj.weight *= 3  # siblings whose own global scales differ
    return model


@pytest.fixture
def samples(generator: torch.Generator) -> Tensor:
    return torch.randn(300, K, generator=generator) * torch.rand(K, generator=generator).mul_(4).exp_()


# ---- files ----


@pytest.mark.parametrize("activations", ["nvfp4", None])
@pytest.mark.parametrize("weights", ["search", "gptq"])
@pytest.mark.parametrize("format", ["modelopt", "compressed-tensors"])
def test_saved_models_load_with_equal_results(
    weights: str, activations: str | None, format: str, model: nn.Sequential, samples: Tensor, tmp_path: Path
) -> None:
    """Siblings have one global scale in the files, so hosts that merge scales change nothing."""
    pytest.importorskip("safetensors", reason="comes with the extra `test`")
    dense = copy.deepcopy(model)
    nvfp4.quantize_model(model, (), activations, lambda m: m(samples), weights=weights)
    nvfp4.save(model, tmp_path, format=format)
    nvfp4.load(tmp_path, loaded := copy.deepcopy(dense))
    with torch.inference_mode():
        assert torch.equal(loaded(samples), model(samples))
    for block in loaded:
        assert torch.equal(block.gate_proj.weight_global_scale, block.up_proj.weight_global_scale)
    assert loaded[1].gate_proj.weight_global_scale != loaded[0].gate_proj.weight_global_scale


def test_joined_siblings_have_one_scale(model: nn.Sequential, samples: Tensor) -> None:
    for weights in ("search", "gptq"):
        joined, apart = copy.deepcopy(model), copy.deepcopy(model)
        calibrate = {"activations": None, "calibrate": lambda m: m(samples), "weights": weights}
        nvfp4.quantize_model(joined, fuse=True, **calibrate)
        nvfp4.quantize_model(apart, **calibrate)
        assert all(block.gate_proj.joined().weight_global_scale.ndim == 0 for block in joined)
        torch.testing.assert_close(joined(samples), apart(samples), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("weights", ["search", "gptq"])
def test_the_transposed_layers_of_gpt2(weights: str) -> None:
    transformers = pytest.importorskip("transformers")
    tokens = {"vocab_size": 64, "bos_token_id": 1, "eos_token_id": 1}
    config = transformers.GPT2Config(n_embd=64, n_inner=96, n_layer=1, n_head=4, n_positions=32, **tokens)
    model, ids = transformers.GPT2LMHeadModel(config).eval(), torch.arange(24).view(2, 12)
    dense = copy.deepcopy(model)
    report = nvfp4.quantize_model(model, activations=None, calibrate=lambda m: m(ids), weights=weights)
    assert len(report.layers) == 4 and all(row.rows == 24 for row in report.layers)
    linear = nn.Linear(64, 192)
    own = dense.transformer.h[0].attn.c_attn
    linear.weight, linear.bias = nn.Parameter(own.weight.detach().T.contiguous()), own.bias
    read: list[Tensor] = []
    own.register_forward_pre_hook(lambda m, x: read.append(x[0].detach()))
    dense(ids)
    x = read[0].reshape(-1, 64)
    given: dict[str, Any] = {"hessian": torch.zeros(64, 64).addmm_(x.T, x), "damping": 1.0}
    if weights == "search":
        mean = x.square().sum(0).double()
        given = {"importance": (mean / mean.mean()).float()}
    expected = nvfp4.Linear.from_linear(linear, None, weights=weights, **given)
    assert torch.equal(model.transformer.h[0].attn.c_attn.weight, expected.weight)


# ---- tied ----


def test_tied_layers_and_weights(generator: torch.Generator) -> None:
    """A layer with several names is quantized once, from all its inputs. Layers that share a weight become layers of
    their own, each by its inputs; an embedding keeps the shared weight."""
    shared = nn.Linear(K, K, bias=False).requires_grad_(False)
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared), "c": nn.Linear(K, K, bias=False)})
    model["embed"], model["head"] = nn.Embedding(80, K), nn.Linear(K, 80, bias=False)
    model["c"].weight, model["head"].weight = shared.weight, model["embed"].weight
    x, y, z = (torch.randint(-5, 6, (n, K), generator=generator).float() for n in (90, 70, 160))

    def calibrate(m: nn.ModuleDict) -> None:
        m["a"](x), m["b"](y), m["c"](z), m["head"](z)

    embedding = model["embed"].weight
    report = nvfp4.quantize_model(model, (), None, calibrate, weights="gptq")
    assert {row.name: row.rows for row in report.layers} == {"a": 160, "c": 160, "head": 160}
    assert model["a"] is model["b"][0] and model["embed"].weight is embedding
    both = torch.cat([x, y])
    expected = nvfp4.Linear.from_linear(shared, None, weights="gptq", hessian=both.T @ both, damping=0.16)
    assert torch.equal(model["a"].weight, expected.weight) and not torch.equal(model["c"].weight, expected.weight)


# ---- reports ----


def test_the_report_is_sorted_by_damage(model: nn.Sequential, samples: Tensor) -> None:
    idle = nn.ModuleDict({"used": model[1], "idle": nn.Linear(32, 16), "odd": nn.Linear(40, 16)}).requires_grad_(False)
    report = nvfp4.quantize_model(idle, (), None, lambda m: m["used"](samples), weights="gptq")
    assert report.unreached_layers == ["idle"] and report.skipped == {
        "odd": "in_features is 40, no positive multiple of 16"
    }
    rows = {row.name: row for row in report.layers}
    assert rows["idle"].output_error is None and rows["idle"].rows is None
    lines = str(report).splitlines()
    listed = [line.split()[0] for line in lines[2 : 2 + len(report.layers)]]
    assert listed == sorted(rows, key=lambda name: -rows[name].damage)
    assert "GPTQ changes outputs less and weights more than rounding does: judge by the output error." in lines
    assert "not reached: idle: quantized by 'search'" in lines
    assert f"{rows['used.up_proj'].output_error:.4f}" in next(line for line in lines if line.startswith("used.up_proj"))
    plain = nn.Sequential(nn.Linear(32, 16))
    assert "rounded" not in str(nvfp4.quantize_model(plain)) and "rounded" in lines[0]


def test_a_raised_damping_is_reported(model: nn.Sequential, samples: Tensor) -> None:
    """One row: H has rank 1, and rounding to fp32 leaves eigenvalues of some -1e-7 and above -4e-6 of its trace."""
    report = nvfp4.quantize_model(model, (), None, lambda m: m(samples[:1]), weights="gptq", damping=1e-8)
    raised = [row for row in report.layers if row.damping is not None]
    assert raised and all(
        row.damping == pytest.approx(1e-8 * 10 ** round(math.log10(row.damping / 1e-8))) for row in raised
    )
    assert f"damping: {raised[0].name}: raised to {raised[0].damping:g}" in str(report)


def test_plot(model: nn.Sequential, samples: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="comes with the extra `test`")
    report = nvfp4.quantize_model(model, (), None, lambda m: m(samples), weights="gptq")
    report.plot(tmp_path / "errors.svg")
    report.plot(str(tmp_path / "errors.png"))
    assert "</svg>" in (tmp_path / "errors.svg").read_text() and (tmp_path / "errors.png").stat().st_size > 1000
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(nvfp4.Error, match=r"^report: plot needs matplotlib, .*; pip install 'matplotlib>=3.8'$"):
        report.plot(tmp_path / "other.svg")
    without = nvfp4.quantize_model(nn.Sequential(nn.Linear(32, 16)), weights="search")
    with pytest.raises(
        nvfp4.Error, match="^report: has no output errors; must be of quantize_model with calibrate and"
    ):
        without.plot(tmp_path / "other.svg")
    assert not (tmp_path / "other.svg").exists()


# ---- presets of ignore ----


def test_presets() -> None:
    """The names are those of ModelOpt's patterns."""
    kept = {
        "model.layers.3.mlp.up_proj": {"mlp_only"},
        "model.layers.3.self_attn.q_proj": set(),
        "model.layers.3.mlp.experts": {"mlp_only", "experts_only"},
        "model.layers.3.mlp.experts.7.down_proj": {"mlp_only", "experts_only"},
        "model.layers.3.block_sparse_moe.experts.7.w1": {"mlp_only", "experts_only"},
        "model.layers.3.mlp.shared_experts.up_proj": {"mlp_only"},
        "model.layers.3.mlp.gate": set(),
        "model.layers.3.block_sparse_moe.gate": set(),
        "model.layers.3.mlp.shared_expert_gate": set(),
        "backbone.layers.3.mixer.up_proj": {"mlp_only"},
        "backbone.layers.3.mixer.in_proj": set(),
        "model.visual.blocks.0.mlp.fc1": set(),
        "mtp.layers.0.mlp.up_proj": set(),
        "lm_head": set(),
        "mlp.up_proj": {"mlp_only"},
        "experts.3.w1": {"mlp_only", "experts_only"},
    }
    for name, presets in kept.items():
        assert {preset for preset in PRESETS if reason_of(name, preset) is None} == presets, name
    block = nn.ModuleDict({"mlp": MLP(), "self_attn": nn.ModuleDict({"q_proj": nn.Linear(32, 32)})})
    model = nn.ModuleDict({"layers": nn.ModuleList([block])})
    report = nvfp4.quantize_model(model, "mlp_only")
    assert [row.name.rpartition(".")[2] for row in report.layers] == ["gate_proj", "up_proj", "down_proj"]
    assert report.skipped == {"layers.0.self_attn.q_proj": "ignore is 'mlp_only'"}
    with pytest.raises(nvfp4.Error) as error:
        nvfp4.quantize_model(nn.Sequential(MLP()), "experts_only")
    assert str(error.value) == "ignore: 'experts_only' leaves no layer of the model to quantize; must leave 1 or more"
    with pytest.raises(nvfp4.Error, match="or 'mlp_only' or 'experts_only'$"):
        nvfp4.quantize_model(model, "attention_only")


# ---- errors ----


def test_errors_change_nothing(model: nn.Sequential, samples: Tensor) -> None:
    def once(m: nn.Module) -> None:
        calls.append(m)
        m(samples if len(calls) == 1 else samples[:50])

    def never_again(m: nn.Module) -> None:
        calls.append(m)
        if len(calls) == 1:
            m(samples)

    calls: list[nn.Module] = []
    nan, far = samples.clone(), samples.clone()
    nan[7, 3], far[7, 3] = math.nan, 1e30
    gptq = {"activations": None, "weights": "gptq"}
    cases: dict[str, dict[str, Any]] = {
        "weights: is 'awq'; must be 'round', 'search' or 'gptq'": {"weights": "awq"},
        "weights: is None; must be 'round', 'search' or 'gptq'": {"weights": None},
        "block_scale: is 'search'; must be 'amax6' or 'four_over_six'": {"block_scale": "search"},
        "calibrate: is None but weights is 'gptq'; must be a function that runs the model on samples": gptq,
        "calibrate: is given but activations is None; there are no input scales then": {
            "activations": None,
            "calibrate": print,
        },
        "calibrate: is of type int; must be a function of the model": gptq | {"calibrate": 3},
        "damping: is given but weights is 'search'; must be None then": {"weights": "search", "damping": 0.1},
        "damping: is of type str; must be a number or None": gptq | {"calibrate": print, "damping": ".1"},
        "damping: is -1; must be positive and finite": gptq | {"calibrate": print, "damping": -1},
        "hessian_bytes: is given but weights is 'round'; must be None then": {"hessian_bytes": 10},
        "hessian_bytes: is of type float; must be an int or None": gptq | {"calibrate": print, "hessian_bytes": 1e9},
        "hessian_bytes: is of type bool; must be an int or None": gptq | {"calibrate": print, "hessian_bytes": True},
        "hessian_bytes: is 0; must be positive": gptq | {"calibrate": print, "hessian_bytes": 0},
        "calibrate: reaches no linear layer; must run the model on samples": gptq | {"calibrate": lambda m: None},
        "0.gate_proj.input: amax is nan while calibrating; must be finite": gptq | {"calibrate": lambda m: m(nan)},
        "0.gate_proj.hessian: has a value that is NaN or infinite; must be finite": gptq
        | {"calibrate": lambda m: m[0].gate_proj(far)},
        "calibrate: gives 0.down_proj 50 rows in a later call and 300 in its first; must run the model on the same "
        "samples each time": gptq | {"calibrate": once, "hessian_bytes": 1},
        "calibrate: reaches 0.down_proj in its first call but in no later one; must run the model on the same samples "
        "each time": gptq | {"calibrate": never_again, "hessian_bytes": 1},
    }
    before = state(model)
    for message, given in cases.items():
        calls.clear()
        with pytest.raises(nvfp4.Error) as error:
            nvfp4.quantize_model(model, (), **given)
        assert str(error.value) == message
        assert state(model) == before and not any(module._forward_pre_hooks for module in model.modules())
    with pytest.raises(nvfp4.Error, match="^calibrate: reaches no linear layer; must run the model on samples$"):
        nvfp4.quantize_model(model, (), None, lambda m: m(samples[:0]), weights="search")
    meta = nn.Sequential(nn.Linear(32, 16, device="meta"))
    with pytest.raises(nvfp4.Error, match="^0.weight: is on the meta device; must have values for weights='search'$"):
        nvfp4.quantize_model(meta, weights="search")


# ---- interruption ----


@pytest.mark.parametrize(
    ("weights", "where"),
    [("search", "calibrate"), ("search", "keep"), ("gptq", "calibrate"), ("gptq", "later calibrate"), ("gptq", "keep")],
)
def test_an_interrupted_call_leaves_the_model(
    weights: str, where: str, model: nn.Sequential, samples: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def interrupt_third(*given: object) -> None:
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt

    def calibrate(m: nn.Module) -> None:
        calls.append(m)
        m(samples)
        if where == "calibrate" or (where == "later calibrate" and len(calls) == 2):
            raise KeyboardInterrupt

    given: dict[str, Any] = {"hessian_bytes": 1} if weights == "gptq" else {}
    if where == "keep":
        monkeypatch.setattr(Weights, "keep", interrupt_third)
        calibrate = lambda m: m(samples)  # noqa: E731
    before = state(model)
    with pytest.raises(KeyboardInterrupt):
        nvfp4.quantize_model(model, (), None, calibrate, weights=weights, **given)
    assert state(model) == before and not any(module._forward_pre_hooks for module in model.modules())
    assert all(type(block.gate_proj) is nn.Linear for block in model)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_waits_while_layers_are_replaced(
    model: nn.Sequential, samples: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = quantizing.put

    def press(*given: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        put(*given)

    monkeypatch.setattr(quantizing, "put", press)
    with pytest.raises(KeyboardInterrupt):
        nvfp4.quantize_model(model, (), None, lambda m: m(samples), weights="gptq")
    assert all(type(layer) is nvfp4.Linear for block in model for layer in block.children())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class Stored(dict[str, Result]):
    """Stops a run after so many results."""

    left = 3

    def __setitem__(self, name: str, result: Result) -> None:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        super().__setitem__(name, result)


@pytest.mark.parametrize("weights", ["search", "gptq"])
def test_an_interrupted_run_goes_on(weights: str, model: nn.Sequential, samples: Tensor) -> None:
    """With the results that it has: the second run makes the others alone, and gives the same bytes and report."""
    expected = copy.deepcopy(model)
    calibrate: Callable[[nn.Module], Tensor] = lambda m: m(samples)  # noqa: E731
    report = nvfp4.quantize_model(expected, (), None, calibrate, weights=weights)
    stored, options = Stored(), Options(activations=None, calibrate=calibrate, weights=weights)
    with pytest.raises(KeyboardInterrupt):
        quantize(model, (), options, stored)
    first = dict(stored)
    assert len(first) == 3
    stored.left = 3
    assert quantize(model, (), options, stored) == report and state(model) == state(expected)
    assert stored.left == 0 and all(stored[name] is result for name, result in first.items())


def test_layers_on_several_devices(model: nn.Sequential, samples: Tensor) -> None:
    """Each is quantized where it lies, and siblings on two devices share nothing."""
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU that PyTorch can use")
    expected = copy.deepcopy(model[0])
    nvfp4.quantize_model(expected, (), None, lambda m: m(samples), weights="gptq")
    model[1].to("cuda")

    def calibrate(m: nn.Sequential) -> None:
        m[1](m[0](samples).cuda())

    nvfp4.quantize_model(model, (), None, calibrate, weights="gptq")
    assert state(model[0]) == state(expected)
    assert all(t.is_cuda for t in model[1].buffers())
    again = copy.deepcopy(model)
    assert torch.equal(again[1](samples.cuda()), model[1](samples.cuda()))


@pytest.mark.parametrize("activations", ["nvfp4", None])
@pytest.mark.parametrize("weights", ["search", "gptq"])
def test_input_scales_of_experts(weights: str, activations: str | None) -> None:
    """They do not depend on how weights are quantized."""
    transformers = pytest.importorskip("transformers")
    from moe_models import MODELS

    dense = transformers.AutoModelForCausalLM.from_config(MODELS["qwen3-moe"]()).eval()
    ids = torch.arange(48).view(2, 24)
    rows = {}
    for how in ("round", weights):
        model = copy.deepcopy(dense)
        calibrate = None if how == "round" and activations is None else lambda m: m(ids)
        report = nvfp4.quantize_model(model, activations=activations, calibrate=calibrate, weights=how)
        rows[how] = {row.name: row for row in report.layers if row.name.endswith("experts")}
        with torch.inference_mode():
            assert bool(model(ids).logits.isfinite().all())
    assert rows["round"] and rows["round"].keys() == rows[weights].keys()
    for name, row in rows[weights].items():
        assert row.output_error is not None and row.output_error < rows["round"][name].error
        assert row.input_global_scale == rows["round"][name].input_global_scale
        assert (row.input_global_scale is None) == (activations is None)
