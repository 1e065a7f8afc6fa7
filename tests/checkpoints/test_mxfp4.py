"""MXFP4 layers are read as NVFP4 with equal values: every code and exponent, spans, damage, each producer's layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from mxfp4_files import (
    GPT_OSS,
    MODELOPT,
    as_blocks,
    compressed_tensors,
    definition,
    dense,
    gguf_row,
    gpt_oss,
    llama,
    quantized,
    random_layer,
)
from tiny_models import logits
from torch import Tensor, nn

import nvfp4
from nvfp4.checkpoints import mxfp4
from nvfp4.checkpoints.convert import convert
from nvfp4.checkpoints.inspect import inspect
from nvfp4.layers.packed import PackedLinear

safetensors = pytest.importorskip("safetensors.torch", reason="comes with the extra `test`")
transformers = pytest.importorskip("transformers")

N, K = 24, 160


def read(values: Tensor, exponents: Tensor) -> PackedLinear:
    return mxfp4.read({"weight": values, "weight_scale": exponents})


def fails(message: str, values: Tensor, exponents: Tensor) -> None:
    with pytest.raises(nvfp4.Error) as error:
        read(values, exponents)
    assert message in str(error.value)


# ---- values ----


def test_every_code_with_every_exponent() -> None:
    values = torch.arange(256, dtype=torch.uint8).view(16, 16)  # each pair of codes
    for exponent in range(255):
        exponents = torch.full((16, 1), exponent, dtype=torch.uint8)
        layer = read(values, exponents)
        assert torch.equal(dense(layer), definition(values, exponents))
        assert layer.weight_global_scale.double() == 2.0 ** (exponent - 127 - 8)
        assert torch.equal(layer.weight, values)


@pytest.mark.parametrize("least", [0, 60, 237])
def test_a_span_of_17_octaves(least: int, generator: torch.Generator) -> None:
    """Blocks of zeros do not count, whatever their exponent."""
    for _ in range(20):
        values, exponents = random_layer(generator, N, K, least=least, span=17)
        values[0, :32], exponents[0, :2] = 0x21, torch.tensor([least, least + 17])
        layer = read(values, exponents)
        assert torch.equal(dense(layer), definition(values, exponents))
        assert layer.weight_global_scale.shape == () and layer.weight_global_scale.double() == 2.0 ** (least + 17 - 135)


def test_rows_beyond_it_have_a_global_scale_each(generator: torch.Generator, tmp_path: Path) -> None:
    values, exponents = random_layer(generator, N, K, least=20, span=17)
    exponents[::2] = (exponents[::2].int() + 40).clamp(max=254).to(torch.uint8)
    values[:, :16], exponents[:, 0] = 0x33, exponents[:, 0].clamp(20, 77)
    exponents[::2, 0], exponents[1::2, 0] = 77, 37
    layer = read(values, exponents)
    assert layer.weight_global_scale.shape == (N,) and torch.equal(dense(layer), definition(values, exponents))
    x = torch.randint(-2, 3, (3, K), generator=generator).double()
    y = nvfp4.Linear.from_packed(layer)(x.float()).double()
    wanted = x @ definition(values, exponents).T
    assert (y - wanted).abs().max() <= 2**-20 * (x.abs() @ definition(values, exponents).abs().T).max()
    model = nn.Sequential(nvfp4.Linear.from_packed(layer))
    for format in ("modelopt", "compressed-tensors"):
        with pytest.raises(nvfp4.Error, match=r"^0\.weight_global_scale: shape is \[24\]"):
            nvfp4.save(model, tmp_path / "out", format)
    assert not (tmp_path / "out").exists()


def test_a_row_beyond_it_is_an_error(generator: torch.Generator) -> None:
    values, exponents = random_layer(generator, N, K)
    values[5, :32], exponents[5, :2] = 0x11, torch.tensor([100, 118])
    message = "weight_scale: row 5 has exponents from -27 to -9, which span 18 octaves; must span at most 17"
    fails(message, values, exponents.clamp(100, 118))


def test_blocks_of_zeros_alone() -> None:
    layer = read(torch.full((N, K // 2), 0x80, dtype=torch.uint8), torch.zeros(N, K // 32, dtype=torch.uint8))
    assert torch.equal(dense(layer), torch.zeros(N, K)) and float(layer.weight_global_scale) > 0


def test_a_zero_block_of_the_largest_exponent_is_found_among_many() -> None:
    """More blocks of zeros have the largest exponent than are looked at before all are."""
    values = torch.zeros(2 * mxfp4.LOOKED_AT, 32, dtype=torch.uint8)
    exponents = torch.full((2 * mxfp4.LOOKED_AT, 2), 200, dtype=torch.uint8)
    values[-1], exponents[-1] = 0x75, torch.tensor([120, 103])
    layer = read(values, exponents)
    assert torch.equal(dense(layer), definition(values, exponents))
    assert layer.weight_global_scale.double() == 2.0 ** (120 - 135)


def test_damage(generator: torch.Generator) -> None:
    values, exponents = random_layer(generator, N, K)
    exponents[3, 2] = 0xFF
    fails("weight_scale: is 0xFF (NaN) at row 3, column 2; must be 0 to 0xFE", values, exponents)
    fails("weight: K is 144; must be a multiple of 32", values[:, :72], exponents)
    own = {"blocks": as_blocks(values), "scales": exponents[:-1]}
    with pytest.raises(nvfp4.Error, match=r"^scales: shape is \[23, 5\]; must be \[24, 5\]"):
        mxfp4.read(own)
    with pytest.raises(nvfp4.Error, match=r"^weight: shape is \[1, 24, 80\]; must be that of one layer$"):
        read(values[None], exponents[None])
    with pytest.raises(nvfp4.Error, match=r"^weight: shape is \[1, 1, 24, 80\]; must be \[N, K/2\] or \[E, N, K/2\]$"):
        read(values[None, None], exponents[None, None])
    own = {"blocks": as_blocks(values)[None, None], "scales": exponents[None, None]}
    with pytest.raises(nvfp4.Error, match=r"^blocks: shape is .*; must be \[N, K/32, 16\] or \[E, N, K/32, 16\]$"):
        mxfp4.read(own)
    with pytest.raises(nvfp4.Error, match="^zero_point: is no tensor"):
        mxfp4.read({"weight": values, "weight_scale": exponents, "zero_point": values})


def test_a_subnormal_global_scale_is_kept_or_refused(generator: torch.Generator, tmp_path: Path) -> None:
    values, exponents = random_layer(generator, N, K, least=0, span=2)
    exponents.clamp_(max=2)
    values[0, 0] = 1
    layer = read(values, exponents)
    assert torch.equal(dense(layer), definition(values, exponents))
    model = nn.Sequential(nvfp4.Linear.from_packed(layer))
    nvfp4.save(model, tmp_path / "one", "modelopt")
    again = nvfp4.load(tmp_path / "one").layers["0"]
    assert torch.equal(again.weight_global_scale, layer.weight_global_scale)
    with pytest.raises(
        nvfp4.Error, match=r"^0\.weight_global_scale: is .*; its reciprocal must be positive and finite"
    ):
        nvfp4.save(model, tmp_path / "two", "compressed-tensors")


# ---- layouts ----


@pytest.mark.parametrize("layout", ["compressed-tensors", "modelopt", "deepseek", "gpt-oss"])
def test_tensors_without_a_configuration(layout: str, generator: torch.Generator) -> None:
    values, exponents = random_layer(generator, N, K)
    bias = torch.randn(N, generator=generator)
    own = {
        "compressed-tensors": {"weight_packed": values, "weight_scale": exponents},
        "modelopt": {"weight": values, "weight_scale": exponents},
        "deepseek": {"weight": values.view(torch.int8), "scale": exponents.view(torch.float8_e8m0fnu)},
        "gpt-oss": {"blocks": as_blocks(values), "scales": exponents},
    }[layout]
    checkpoint = nvfp4.load({f"model.up.{name}": t for name, t in (own | {"bias": bias}).items()})
    (layer,) = checkpoint.layers.values()
    assert torch.equal(dense(layer), definition(values, exponents)) and layer.activations is None
    assert layer.bias is bias and layer.weight.data_ptr() == values.data_ptr()  # no copy of the values
    assert [*checkpoint.mxfp4] == ["model.up"]


def test_a_stack_of_gpt_oss(generator: torch.Generator) -> None:
    values, exponents = random_layer(generator, 3, N, K)
    tensors = {"mlp.experts.gate_up_proj_blocks": as_blocks(values), "mlp.experts.gate_up_proj_scales": exponents}
    tensors["mlp.experts.gate_up_proj_bias"] = torch.randn(3, N, generator=generator)
    checkpoint = nvfp4.load(tensors)
    assert checkpoint.format == "mxfp4"
    layers = checkpoint.experts["mlp.experts.gate_up_proj"]
    for i, layer in enumerate(layers):
        assert torch.equal(dense(layer), definition(values[i], exponents[i]))
        assert torch.equal(layer.weight_global_scale, layers[0].weight_global_scale)
        assert layer.bias is not None and torch.equal(layer.bias, tensors["mlp.experts.gate_up_proj_bias"][i])
    exponents[1, 2, 3] = 0xFF
    with pytest.raises(nvfp4.Error, match=r"^mlp.experts.gate_up_proj\[1\].scales: is 0xFF \(NaN\) at row 2, column 3"):
        nvfp4.load(tensors)


def test_experts_of_unlike_spans_have_scales_of_their_own(generator: torch.Generator) -> None:
    values, exponents = random_layer(generator, 2, N, K)
    values[:, 0, 0], exponents[:, 0, 0] = 0x11, 115
    exponents[1] = (exponents[1].int() + 30).clamp(max=254).to(torch.uint8)
    layers = mxfp4.read_stack("up", {"blocks": as_blocks(values), "scales": exponents})
    for i, layer in enumerate(layers):
        assert torch.equal(dense(layer), definition(values[i], exponents[i]))
    assert layers[0].weight_global_scale < layers[1].weight_global_scale


def test_gguf(generator: torch.Generator, tmp_path: Path) -> None:
    """Type 39, of one layer and of a stack of experts, in a file of the package gguf."""
    gguf = pytest.importorskip("gguf")
    values, exponents = random_layer(generator, N, K)
    stack, scales = random_layer(generator, 3, N, K)
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    for name, t in (("blk.0.up.weight", gguf_row(values, exponents)), ("blk.0.exps.weight", gguf_row(stack, scales))):
        writer.add_tensor(name, t.numpy(), raw_dtype=gguf.GGMLQuantizationType.MXFP4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = nvfp4.load(tmp_path / "model.gguf")
    layer, experts = checkpoint.layers["blk.0.up"], checkpoint.experts["blk.0.exps"]
    assert torch.equal(dense(layer), definition(values, exponents)) and not checkpoint.skipped
    assert all(torch.equal(dense(x), definition(stack[i], scales[i])) for i, x in enumerate(experts))
    theirs = gguf.quants.dequantize(gguf_row(values, exponents).numpy(), gguf.GGMLQuantizationType.MXFP4)
    assert torch.equal(torch.from_numpy(theirs).double(), definition(values, exponents))


# ---- files ----


CONFIGS = {
    "modelopt": MODELOPT,
    "modelopt, FP8 inputs": MODELOPT | {"quant_algo": "W4A8_MXFP4_FP8", "group_size": 32},
    "compressed-tensors": compressed_tensors(),
    "compressed-tensors, MXFP4 inputs": compressed_tensors(inputs=True),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_files_of_producers(kind: str, generator: torch.Generator, tmp_path: Path) -> None:
    model = quantized(llama(), tmp_path, CONFIGS[kind], generator)
    checkpoint = nvfp4.load(tmp_path)
    assert len(checkpoint.layers) == 14 and checkpoint.mxfp4.keys() == checkpoint.layers.keys()
    assert {layer.activations for layer in checkpoint.layers.values()} == {"nvfp4" if "MXFP4 inputs" in kind else None}
    for name, layer in checkpoint.layers.items():
        assert torch.equal(dense(layer).float(), model.get_submodule(name).weight)
    assert all(x.activations == "nvfp4" for x in nvfp4.load(tmp_path, activations="nvfp4").layers.values())
    found = inspect(tmp_path)
    assert not found.damaged and {layer.format for layer in found.layers} == {"mxfp4"} and not found.skipped


def test_a_layer_that_the_configuration_leaves_out(generator: torch.Generator, tmp_path: Path) -> None:
    config = MODELOPT | {"ignore": ["lm_head", "model.layers.1.mlp.up_proj"]}
    quantized(llama(), tmp_path, config, generator)
    with pytest.raises(
        nvfp4.Error, match="^model.layers.1.mlp.up_proj: the configuration leaves it unquantized, but its "
    ):
        nvfp4.load(tmp_path)


@pytest.mark.parametrize("format", ["modelopt", "compressed-tensors"])
@pytest.mark.parametrize("kind", ["modelopt", "compressed-tensors"])
def test_convert(kind: str, format: str, generator: torch.Generator, tmp_path: Path) -> None:
    model = quantized(llama(), tmp_path / "in", CONFIGS[kind], generator)
    read, report = convert(tmp_path / "in", tmp_path / "out", format)
    assert len(report.layers) == len(read.mxfp4) == 14 and not report.rounded
    again = nvfp4.load(tmp_path / "out")
    assert again.format == format and not again.mxfp4
    for name, layer in again.layers.items():
        assert torch.equal(dense(layer).float(), model.get_submodule(name).weight)


def test_gpt_oss_as_modelopt_has_it(generator: torch.Generator, tmp_path: Path) -> None:
    """nvfp4.load into a model, and convert: stacks [E, K/2, N] with one global scale, as ModelOpt writes them."""
    model = quantized(gpt_oss(), tmp_path / "in", GPT_OSS, generator)
    ours = gpt_oss().eval()
    checkpoint = nvfp4.load(tmp_path / "in", ours)
    assert len(checkpoint.mixtures) == 2 and not checkpoint.skipped
    torch.testing.assert_close(logits(ours), logits(model), rtol=1e-5, atol=1e-5)
    convert(tmp_path / "in", tmp_path / "out", "modelopt")
    nvfp4.save(ours, tmp_path / "saved", "modelopt")
    for folder in ("out", "saved"):
        tensors = safetensors.load_file(tmp_path / folder / "model.safetensors")
        stack = "model.layers.0.mlp.experts.gate_up_proj"
        assert tensors[stack].shape == (4, 32, 192) and tensors[f"{stack}_weight_scale"].shape == (4, 4, 192)
        assert tensors[f"{stack}_weight_scale_2"].shape == () and tensors[f"{stack}_bias"].shape == (4, 192)
        config = json.loads((tmp_path / folder / "config.json").read_text())["quantization_config"]
        assert config["quant_algo"] == "W4A16_NVFP4"
        again = gpt_oss().eval()
        nvfp4.load(tmp_path / folder, again)
        assert torch.equal(logits(again), logits(ours))


@pytest.mark.parametrize("activations", [None, "nvfp4"])
def test_experts_beyond_17_octaves(activations: str | None, generator: torch.Generator, tmp_path: Path) -> None:
    """Their rows have a global scale each: results, gradients, a state dict; formats store none."""
    model = quantized(gpt_oss(), tmp_path, GPT_OSS, generator)
    tensors = safetensors.load_file(tmp_path / "model.safetensors")
    for name in ("gate_up_proj", "down_proj"):
        stack = f"model.layers.0.mlp.experts.{name}"
        blocks, scales = tensors[f"{stack}_blocks"], tensors[f"{stack}_scales"]
        blocks[1, 2:4, 0], scales[1, 2], scales[1, 3] = 0x11, 100, 121
        model.load_state_dict({stack: definition(blocks.flatten(-2), scales).float().transpose(1, 2)}, strict=False)
    safetensors.save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    ours, again = gpt_oss().eval(), gpt_oss().eval()
    nvfp4.load(tmp_path, ours, activations=activations)
    nvfp4.load(tmp_path, again, activations=activations)
    experts = ours.model.layers[0].mlp.experts
    shapes = [tuple(stack.weight_global_scale.shape) for stack in (experts.gate_up, experts.down)]
    assert shapes == [(4, 2, 96), (4, 1, 64)]
    again.load_state_dict(ours.state_dict())
    assert torch.equal(logits(again), logits(ours))
    if activations is None:
        torch.testing.assert_close(logits(ours), logits(model), rtol=1e-5, atol=1e-5)
        x = torch.randn(12, 64, generator=generator)
        index, weights = torch.arange(24).view(12, 2) % 4, torch.rand(12, 2, generator=generator)
        found = []
        for own in (ours, model):
            found.append(x.clone().requires_grad_())
            own.model.layers[0].mlp.experts(found[-1], index, weights).square().sum().backward()
        largest = float(found[1].grad.abs().max())
        torch.testing.assert_close(found[0].grad, found[1].grad, rtol=0, atol=1e-5 * largest)
    for format in ("modelopt", "compressed-tensors")[activations is not None :]:
        with pytest.raises(nvfp4.Error, match=r"^model.layers.0.mlp.experts.gate_up.weight_global_scale: shape is \[4"):
            nvfp4.save(ours, tmp_path / "out", format)
    with pytest.raises(nvfp4.Error, match=r"^model.layers.0.mlp.experts.\w+\[1\].weight_global_scale: shape is"):
        convert(tmp_path, tmp_path / "out", "modelopt")
    assert not (tmp_path / "out").exists()


def test_memory_of_loading(generator: torch.Generator) -> None:
    """128 experts in 36 layers: a model's tensors, and beside them what one layer takes."""
    experts, count, rows = 128, 36, 64
    values, exponents = random_layer(generator, experts, rows, 64)
    tensors = {f"layers.{i}.experts.up_proj_blocks": as_blocks(values) for i in range(count)}
    tensors |= {f"layers.{i}.experts.up_proj_scales": exponents for i in range(count)}
    checkpoint = nvfp4.load(tensors)
    assert len(checkpoint.experts) == count
    for stack in checkpoint.experts.values():
        assert {x.weight.untyped_storage().data_ptr() for x in stack} == {values.untyped_storage().data_ptr()}
        assert sum(x.weight_scale.nbytes for x in stack) == 2 * exponents.nbytes
