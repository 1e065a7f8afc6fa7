"""nvfp4.dequantize_model: dense layers of the right values, the report, joined and shared layers, errors."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import nvfp4
from nvfp4.layers.fused import FusedPart
from nvfp4.layers.packed import PackedLinear

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(64, 96), nn.Linear(64, 96), nn.Linear(96, 64)
        self.norm = nn.LayerNorm(64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


def exact(layer: nvfp4.Linear) -> Tensor:
    """The weight in fp64, from the packed tensors."""
    packed = layer.packed()
    values = nvfp4.dequantize(packed.weight, packed.weight_scale, scale_layout="linear").double()
    return values * packed.weight_global_scale.double()


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("dtype", [None, *DTYPES])
def test_dense_layers_have_the_nvfp4_weights(dtype: torch.dtype | None, fuse: bool, generator: torch.Generator) -> None:
    model = Gated().bfloat16().eval()
    quantized = nvfp4.quantize_model(copy.deepcopy(model), activations=None)
    other = copy.deepcopy(model)
    nvfp4.quantize_model(other, activations=None)  # the same layers, unfused, to compare with
    weights = {name: exact(other.get_submodule(name)) for name in ("gate_proj", "up_proj", "down_proj")}
    nvfp4.quantize_model(model, activations=None, fuse=fuse)
    assert isinstance(model.up_proj, FusedPart) == fuse
    bias = model.down_proj.bias
    report = nvfp4.dequantize_model(model, dtype)
    assert [layer.name for layer in report.layers] == [*weights]
    kind, roundoff = dtype or torch.bfloat16, {torch.float32: 2**-24, torch.bfloat16: 2**-8, torch.float16: 2**-11}
    for layer in report.layers:
        linear, weight = model.get_submodule(layer.name), weights[layer.name]
        assert type(linear) is nn.Linear and not linear.training and linear.weight.requires_grad
        assert linear.weight.dtype == linear.bias.dtype == kind
        error = (linear.weight.detach().double() - weight).abs()
        bound = weight.abs() * (roundoff[kind] + 2**-24)  # to fp32, then to the dtype
        if kind == torch.float16:
            bound += 2**-25  # half of its smallest subnormal
        assert (error <= bound).all()
        assert layer.error == pytest.approx(float(error.norm() / weight.norm()), rel=1e-6)
        assert layer.bytes_after == sum(t.nbytes for t in linear.parameters())
    assert torch.equal(model.down_proj.bias, bias.to(kind)) and model.down_proj.bias.data_ptr() != bias.data_ptr()
    assert report.bytes_after == sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
    if not fuse:
        assert report.bytes_before == quantized.bytes_after
    model.to(kind)
    assert model(torch.randn(3, 64, generator=generator).to(kind)).shape == (3, 64)


def test_the_report_says_that_a_weight_is_exact(generator: torch.Generator) -> None:
    """value * scale * 2^n has 6 significant bits, which all three dtypes hold."""
    data, scale = nvfp4.quantize(torch.randn(40, 64, generator=generator), scale_layout="linear")
    layer = nvfp4.Linear.from_packed(PackedLinear(data, scale, torch.tensor(0.5), torch.tensor(2.0)))
    for dtype in DTYPES:
        report = nvfp4.dequantize_model(nn.Sequential(layer), dtype)
        assert report.layers[0].error == 0 and report.layers[0].input_global_scale == 2.0
    assert "40x64" in str(report) and "0.0000" in str(report)


def test_hooks_and_shared_layers_are_kept() -> None:
    linear, calls = nn.Linear(64, 64), []
    model = nn.ModuleDict({"a": linear, "b": nn.ModuleDict({"c": linear})})
    handle = linear.register_forward_hook(lambda *arguments: calls.append(1))
    nvfp4.quantize_model(model)
    assert [layer.name for layer in nvfp4.dequantize_model(model).layers] == ["a"]
    assert type(model["a"]) is nn.Linear and model["a"] is model["b"]["c"]
    model["a"](torch.ones(1, 64))
    handle.remove()
    model["a"](torch.ones(1, 64))
    assert calls == [1]


def test_rejected_calls_leave_the_model_alone() -> None:
    model = nn.Sequential(nvfp4.Linear(64, 32))
    calls = {
        "model: is of type str; must be a torch.nn.Module": lambda: nvfp4.dequantize_model("model"),
        "model: has no nvfp4.Linear; must have 1 or more": lambda: nvfp4.dequantize_model(nn.Linear(4, 4)),
        "model: is the layer itself; use its to_linear": lambda: nvfp4.dequantize_model(model[0]),
        "dtype: is float64; must be float16, bfloat16 or float32": lambda: nvfp4.dequantize_model(model, torch.float64),
    }
    for message, call in calls.items():
        with pytest.raises(nvfp4.Error) as error:
            call()
        assert str(error.value) == message
    assert type(model[0]) is nvfp4.Linear


def test_a_model_of_transformers_becomes_dense(tmp_path: object) -> None:
    """By our function and by transformers' own method; what is saved then is a dense checkpoint."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=64, dtype="bfloat16")
    ids = torch.arange(12)[None]
    for i, make_dense in enumerate((nvfp4.dequantize_model, lambda model: model.dequantize())):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        nvfp4.quantize_model(model, activations=None)
        model.save_pretrained(f"{tmp_path}/quantized{i}")
        nvfp4.transformers  # noqa: B018  (registers the format)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(f"{tmp_path}/quantized{i}")
        for own in (model, loaded):
            make_dense(own)
            assert {type(m) for m in own.modules() if isinstance(m, nn.Linear)} == {nn.Linear}
            assert own.model.layers[0].mlp.up_proj.weight.dtype == torch.bfloat16
            assert getattr(own, "hf_quantizer", None) is None and not hasattr(own.config, "quantization_config")
            own.save_pretrained(f"{tmp_path}/dense{i}", safe_serialization=True)
            other = transformers.AutoModelForCausalLM.from_pretrained(f"{tmp_path}/dense{i}")
            with torch.no_grad():
                assert torch.equal(other(ids).logits, own(ids).logits)
            own.half()  # which transformers forbids for a quantized model
        assert torch.equal(model.lm_head.weight, loaded.lm_head.weight)
