"""Experts by weights="search" and "gptq": the bytes of each are those of a lone layer that reads its rows."""

from __future__ import annotations

import copy
import math
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nvfp4
from nvfp4.layers.experts.mixture import describe
from nvfp4.layers.experts.module import Experts
from nvfp4.layers.gptq import default_damping, factor, gptq
from nvfp4.quantizing import experts as quantizing_experts
from nvfp4.quantizing import quantize_model as quantizing
from nvfp4.quantizing.experts import quantized
from nvfp4.quantizing.quantize_model import Options, quantize
from nvfp4.quantizing.weights import Result

transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors", reason="comes with the extra `test`")

from moe_models import HIDDEN, INNER, MODELS, STACKED, VOCABULARY, E  # noqa: E402

# A stack; one without gate; interleaved, transposed and with biases; transposed, with rows in the order of experts.
LAYOUTS = ("qwen3-moe", "nemotron-h", "gpt-oss", "llama-4")
WEIGHTS = ("search", "gptq")


def raw(t: Tensor) -> Tensor:
    return t.contiguous().view(torch.uint8)


def state(model: nn.Module) -> dict[str, bytes]:
    return {name: raw(t.detach().reshape(-1)).numpy().tobytes() for name, t in model.state_dict().items()}


def made(name: str, generator: torch.Generator) -> Any:
    """A random model. Its experts' largest values differ."""
    config = MODELS[name]()
    config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    for key, t in model.named_parameters():
        if "experts." in key:
            t.copy_(torch.randn(t.shape, generator=generator) / 4)
            if t.ndim == 3:
                t *= torch.rand(E, generator=generator).add_(0.5)[:, None, None]
        elif t.ndim > 1 or key.endswith(("bias", "sinks")):  # older classes leave some as they find them in memory
            t.copy_(torch.randn(t.shape, generator=generator) / 10)
    return model


def ids_of(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randint(VOCABULARY, shape, generator=generator)


def mixtures(model: Any) -> dict[str, Any]:
    return {name: m for name, m in model.named_modules() if name.endswith(".experts")}


def parts_of(name: str, module: Any, e: int) -> list[Tensor]:
    """The matrices of an expert, each [N, K], by the layout of its class: gate and up, or up; and down."""
    first = module.up_proj[e] if name == "nemotron-h" else module.gate_up_proj[e]
    if name == "gpt-oss":
        return [first[:, ::2].T, first[:, 1::2].T, module.down_proj[e].T]
    if name == "llama-4":
        return [first[:, :INNER].T, first[:, INNER:].T, module.down_proj[e].T]
    return [*first.split(INNER), module.down_proj[e]]


class Read:
    """Records what a module of experts reads: its tokens, and of each expert the rows of both products."""

    def __init__(self, name: str, module: Any) -> None:
        self.name, self.tokens = name, torch.empty(0)
        self.rows: dict[int, tuple[Tensor, Tensor]] = {}
        self.handle = module.register_forward_pre_hook(self.note, with_kwargs=True)

    def note(self, module: Any, given: Any, keywords: Any) -> None:
        x, *more = [*given, *keywords.values()]
        self.tokens = x = x.detach().reshape(-1, HIDDEN)
        for e in range(E):
            if self.name == "llama-4":
                own = x.view(E, -1, HIDDEN)[e]
                own = own[own.any(1)]
            else:
                own = x[(more[0] == e).any(1)]
            if len(own):
                *first, _ = parts_of(self.name, module, e)
                inner = [own @ part.mT for part in first]
                options: dict[str, Any] = {"activation": "relu2" if self.name == "nemotron-h" else "silu"}
                if self.name == "gpt-oss":
                    bias = module.gate_up_proj_bias[e]
                    inner = [inner[0] + bias[::2], inner[1] + bias[1::2]]
                    options = {"activation": "swiglu", "limit": 7.0, "alpha": 1.702}
                self.rows[e] = own, nvfp4.gated(inner[0], inner[1] if len(inner) > 1 else None, **options)


def read_by(name: str, model: Any, ids: Tensor) -> dict[str, Read]:
    reads = {key: Read(name, module) for key, module in mixtures(model).items()}
    model(ids)
    for read in reads.values():
        read.handle.remove()
    return reads


def mean_squares(x: Tensor) -> Tensor:
    squares = x.square().sum(0).double()
    return (squares / squares.mean()).float()


def hessian(x: Tensor) -> Tensor:
    return torch.zeros(x.shape[1], x.shape[1]).addmm_(x.T, x)


def lone(weight: Tensor, weights: str, scale: Tensor, statistics: Tensor | None, rows: int) -> tuple[Tensor, Tensor]:
    """The bytes of a weight with this global scale."""
    if weights == "gptq" and statistics is not None and statistics.ndim == 2:
        return gptq(weight, factor(statistics, default_damping(weight.shape[1], rows)), scale)[:2]
    given = {"importance": statistics, "scale_layout": "linear"}
    return nvfp4.quantize(weight, global_scale=scale, block_scale="search", **given)


def global_scale_of(weight: Tensor) -> Tensor:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight = nn.Parameter(weight.contiguous())
    return nvfp4.Linear.from_linear(linear, None, weights="search").weight_global_scale


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("tokens", [200, 2])
def test_bytes_of_a_lone_layer(tokens: int, name: str, weights: str, generator: torch.Generator) -> None:
    """Each expert is quantized by the rows that are routed to it. Two tokens leave experts that read none: their gate
    and up are searched by the mean squares of all tokens, and down without samples."""
    model, ids = made(name, generator), ids_of(generator, 1, tokens)
    dense, reads = copy.deepcopy(model), read_by(name, model, ids)
    report = nvfp4.quantize_model(model, "experts_only", None, lambda m: m(ids), weights=weights)
    missed = {key: [e for e in range(E) if e not in read.rows] for key, read in reads.items()}
    assert report.unreached == {key: which for key, which in missed.items() if which} and mixtures(model)
    assert tokens > 2 or all(missed.values())
    rows = {row.name: row for row in report.layers}
    for key, module in mixtures(dense).items():
        own, read = mixtures(model)[key], reads[key]
        assert type(own) is Experts
        sums = torch.zeros(3, dtype=torch.float64)
        for which, stack in enumerate((own.gate_up, own.down)):
            parts = [parts_of(name, module, e) for e in range(E)]
            matrices = [torch.cat(p[:-1]) if which == 0 else p[-1].contiguous() for p in parts]
            scales = torch.stack([global_scale_of(matrix) for matrix in matrices])
            if name in STACKED:
                scales = scales.amax().expand(E)
            assert torch.equal(stack.weight_global_scale, scales[:, None].expand(stack.shape[:2]))
            assert (len(scales.unique()) == 1) == (name in STACKED)
            get = stack.matrices()
            for e, matrix in enumerate(matrices):
                x = read.rows[e][which] if e in read.rows else None
                statistics = mean_squares(read.tokens) if which == 0 else None
                if x is not None:
                    statistics = mean_squares(x) if weights == "search" else hessian(x)
                data, scale = lone(matrix, weights, scales[e], statistics, 0 if x is None else len(x))
                found = [torch.cat([get(e, p)[i].view(torch.uint8) for p in range(stack.shape[1])]) for i in range(2)]
                assert torch.equal(found[0], data) and torch.equal(found[1], raw(scale)), (key, e, which)
                if x is not None:
                    h = (x.double().T @ x.double()) if weights == "gptq" else x.double().square().sum(0).diag()
                    plain = nvfp4.quantize(matrix, global_scale=global_scale_of(matrix), scale_layout="linear")
                    both = (data, scale, scales[e]), (*plain, global_scale_of(matrix))
                    for i, (codes, blocks, g) in enumerate(both):
                        d = (matrix - nvfp4.dequantize(codes, blocks, global_scale=g, scale_layout="linear")).double()
                        sums[i] += (d @ h * d).sum()
                    sums[2] += (matrix.double() @ h * matrix).sum()
        row = rows[key]
        assert row.output_error == pytest.approx(float((sums[0] / sums[2]).sqrt()), rel=1e-3)
        assert row.output_error_before == pytest.approx(float((sums[1] / sums[2]).sqrt()), rel=1e-3)
        assert row.output_error < row.output_error_before and row.seconds > 0
        assert row.rows == min(len(x) for x, _ in read.rows.values())


@pytest.mark.parametrize("activations", ["nvfp4", None])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_bytes_do_not_depend_on_hessian_bytes(
    name: str, activations: str | None, generator: torch.Generator
) -> None:
    """One Hessian at a time needs a call of `calibrate` for each. Further calls see the dense model."""
    model, ids = made(name, generator), ids_of(generator, 1, 100)
    expected, outputs, reports = {}, {}, {}
    for max_bytes in (None, 1, 4 * HIDDEN**2 * 3):
        own, logits = copy.deepcopy(model), list[Tensor]()
        calibrate = lambda m: logits.append(m(ids).logits)  # noqa: B023, E731
        given: dict[str, Any] = {"weights": "gptq", "hessian_bytes": max_bytes}
        reports[max_bytes] = nvfp4.quantize_model(own, "mlp_only", activations, calibrate, **given)
        expected[max_bytes], outputs[max_bytes] = state(own), logits
    assert expected[1] == expected[None] == expected[4 * HIDDEN**2 * 3]
    assert reports[1] == reports[None] and len(outputs[None]) == 1
    missed = sum(map(len, reports[1].unreached.values()))
    assert len(outputs[1]) >= 2 * (E * len(mixtures(model)) - missed) > len(outputs[4 * HIDDEN**2 * 3]) > 1
    assert all(torch.equal(y, outputs[None][0]) for y in outputs[1])


@pytest.mark.parametrize("name", LAYOUTS)
def test_search_without_samples(name: str, generator: torch.Generator) -> None:
    """The bytes that loading with weights="search" gives."""
    model = made(name, generator)
    dense = copy.deepcopy(model)
    report = nvfp4.quantize_model(model, "experts_only", None, weights="search")
    for key, module in mixtures(dense).items():
        expected, error = quantized(module, describe(module), name in STACKED, "search")
        assert state(mixtures(model)[key]) == state(expected)
        row = next(row for row in report.layers if row.name == key)
        assert row.error == pytest.approx(error) and row.output_error is None and row.rows is None


@pytest.mark.parametrize("weights", ["round", *WEIGHTS])
def test_an_expert_of_zeros_shares_the_scale_of_others(weights: str, generator: torch.Generator) -> None:
    """It has no scale of its own, and no row that reaches down has a number but zero."""
    model, ids = made("llama-4", generator), ids_of(generator, 1, 100)
    dense = copy.deepcopy(model)
    for module in mixtures(model).values():
        module.gate_up_proj[1] = 0
    calibrate = None if weights == "round" else lambda m: m(ids)
    nvfp4.quantize_model(model, "experts_only", None, calibrate, weights=weights)
    for key, own in mixtures(model).items():
        first = mixtures(dense)[key].gate_up_proj
        scale = torch.stack([global_scale_of(first[e].T) for e in range(E) if e != 1]).amax()
        assert bool((own.gate_up.weight_global_scale == scale).all()) and not (own.gate_up.weight[1] & 0x77).any()
        assert own.down.weight[1].any()


@pytest.mark.parametrize("mode", ["inference", "autocast"])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_modes_of_calibrate(weights: str, mode: str, generator: torch.Generator) -> None:
    """Statistics are fp32 also where the samples run in inference mode or under autocast."""
    model, ids = made("gpt-oss", generator), ids_of(generator, 1, 100)
    plain, calls = copy.deepcopy(model), list[object]()

    def calibrate(m: Any) -> None:
        calls.append(m)
        with torch.inference_mode() if mode == "inference" else torch.autocast("cpu", torch.bfloat16):
            m(ids)

    given: dict[str, Any] = {"hessian_bytes": 4 * HIDDEN**2 * 3} if weights == "gptq" else {}
    report = nvfp4.quantize_model(model, "experts_only", None, calibrate, weights=weights, **given)
    expected = nvfp4.quantize_model(plain, "experts_only", None, lambda m: m(ids), weights=weights)
    assert (len(calls) > 1) == (weights == "gptq")
    if mode == "inference":
        assert report == expected and state(model) == state(plain)
    assert not any(t.is_inference() for t in model.state_dict().values())
    for row, other in zip(report.layers, expected.layers):
        assert row.output_error == pytest.approx(other.output_error, rel=0.1)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LAYOUTS)
def test_outputs_come_closer(name: str, dtype: torch.dtype, weights: str, generator: torch.Generator) -> None:
    """The products' on the samples. Logits of a random model tell nothing: another choice of a router changes them."""
    model, ids = made(name, generator).to(dtype), ids_of(generator, 8, 60)
    report = nvfp4.quantize_model(model, "experts_only", None, lambda m: m(ids), weights=weights)
    assert report.layers and all(row.output_error < 0.95 * row.output_error_before for row in report.layers)


# ---- lists ----


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(HIDDEN, INNER, bias=False) for _ in range(2))
        self.w2 = nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class Listed(nn.Module):
    """A list of experts, each a module with linear layers. Token t goes to the experts t % 3 and 3."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(Expert() for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.experts[3](x)
        for e in range(3):
            y[e::3] += self.experts[e](x[e::3])
        return y


@pytest.mark.parametrize("weights", WEIGHTS)
def test_lists(weights: str, generator: torch.Generator) -> None:
    """The layers of an expert that no sample reaches are searched, gate and up by what the other experts' read."""
    model = Listed().requires_grad_(False)
    dense = copy.deepcopy(model)
    x = torch.randn(90, HIDDEN, generator=generator) * torch.rand(HIDDEN, generator=generator).mul_(4).exp_()
    report = nvfp4.quantize_model(model, (), None, lambda m: m(x), weights=weights)
    assert report.unreached_layers == ["experts.4.w1", "experts.4.w3", "experts.4.w2"]
    for e, (own, old) in enumerate(zip(model.experts, dense.experts)):
        rows = x if e == 3 else x[e::3] if e < 3 else None
        scale = torch.stack([global_scale_of(t.weight) for t in (old.w1, old.w3)]).amax()
        if rows is None:
            others = torch.stack([own.square().sum(0).double() for own in (x[::3], x[1::3], x[2::3], x)]).sum(0)
            statistics = (others / others.mean()).float()
        else:
            statistics = mean_squares(rows) if weights == "search" else hessian(rows)
        for layer, linear in ((own.w1, old.w1), (own.w3, old.w3)):
            data, _ = lone(linear.weight, weights, scale, statistics, 0 if rows is None else len(rows))
            assert torch.equal(layer.weight_global_scale, scale) and torch.equal(layer.weight, data)
    plain = nvfp4.Linear.from_linear(dense.experts[4].w2, None, weights="search")
    assert torch.equal(model.experts[4].w2.weight, plain.weight)


# ---- errors, interruption ----


@pytest.mark.parametrize("weights", WEIGHTS)
def test_errors_change_nothing(weights: str, generator: torch.Generator) -> None:
    model, ids = made("qwen3-moe", generator), ids_of(generator, 1, 40)
    place = "model.layers.1.mlp.experts"
    model.get_submodule(place).gate_up_proj[2] = 0  # so that large inputs leave down's finite
    before = state(model)
    with pytest.raises(nvfp4.Error, match="^calibrate: reaches no expert; must run the model on samples$"):
        nvfp4.quantize_model(model, "experts_only", None, lambda m: None, weights=weights)

    def with_nan(m: Any) -> None:
        x = torch.randn(5, HIDDEN, generator=generator)
        x[3, 7] = math.nan
        m.get_submodule(place)(x, torch.full((5, 1), 2), torch.ones(5, 1))

    for activations in ("nvfp4", None):
        with pytest.raises(nvfp4.Error, match=rf"^{place}.input: amax is nan while calibrating; must be finite$"):
            nvfp4.quantize_model(model, "experts_only", activations, with_nan, weights=weights)

    def too_large(m: Any) -> None:
        m(ids)
        m.get_submodule(place)(torch.full((5, HIDDEN), 1e25), torch.full((5, 1), 2), torch.ones(5, 1))

    if weights == "gptq":
        with pytest.raises(
            nvfp4.Error,
            match=rf"^{place}.2.gate_up_proj.hessian: has a value that is NaN or infinite; must be finite$",
        ):
            nvfp4.quantize_model(model, "experts_only", None, too_large, weights=weights)
        calls: list[Any] = []

        def once(m: Any) -> None:
            calls.append(m)
            m(ids if len(calls) == 1 else ids[:, :1])

        with pytest.raises(nvfp4.Error, match="^calibrate: (gives|reaches) .*must run the model on the same samples"):
            nvfp4.quantize_model(model, "experts_only", None, once, weights=weights, hessian_bytes=1)
    assert state(model) == before and not any(module._forward_pre_hooks for module in model.modules())
    meta = made("qwen3-moe", generator).to("meta")
    with pytest.raises(
        nvfp4.Error, match=rf"experts.gate_up_proj: is on the meta device; must have values for weights='{weights}'$"
    ):
        nvfp4.quantize_model(meta, "experts_only", None, print, weights=weights)


@pytest.mark.parametrize("weights", ("round", *WEIGHTS))
def test_dense_layers_go_one_by_one(weights: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each goes before the next one is replaced."""
    model, ids = made("qwen3-moe", generator), ids_of(generator, 1, 40)
    dense = {
        name: weakref.ref(module)
        for name, module in model.named_modules()
        if type(module) is nn.Linear or name in mixtures(model)
    }
    put, alive = quantizing.put, list[int]()

    def counted(*given: Any) -> None:
        alive.append(sum(module() is not None for module in dense.values()))
        put(*given)

    for place in (quantizing, quantizing_experts):
        monkeypatch.setattr(place, "put", counted)
    nvfp4.quantize_model(model, ["lm_head"], calibrate=lambda m: m(ids), weights=weights)
    assert alive == [*range(len(dense), 1, -1)] and sum(module() is not None for module in dense.values()) == 1


@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_run_goes_on_with_results_of_another(weights: str, generator: torch.Generator) -> None:
    model, ids = made("gpt-oss", generator), ids_of(generator, 1, 100)
    expected, results = copy.deepcopy(model), dict[str, Result]()
    options = Options(activations=None, calibrate=lambda m: m(ids), weights=weights)
    report = quantize(expected, "experts_only", options, results)
    assert len(results) == 2 * E * len(mixtures(model))
    some = {name: results[name] for name in [*results][:7]}
    assert quantize(model, "experts_only", options, given := dict(some)) == report and state(model) == state(expected)
    assert given.keys() == results.keys() and all(given[name] is result for name, result in some.items())
