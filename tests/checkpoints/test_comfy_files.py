"""nvfp4.load of files for ComfyUI: where marks stand, padded layers, FP8 and MXFP8 beside NVFP4, errors."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nvfp4
from nvfp4.checkpoints import comfy_kitchen
from nvfp4.layers.buffers import round_up
from nvfp4.layers.packed import PackedLinear

safetensors = pytest.importorskip("safetensors.torch", reason="comes with the extra `test`")

FP8, E5M2, E8M0 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu
N, K = 48, 64


def integer(generator: torch.Generator, low: int, high: int) -> int:
    return int(torch.randint(low, high + 1, (), generator=generator))


def nvfp4_tensors(generator: torch.Generator, n: int = N, k: int = K) -> dict[str, Tensor]:
    """A layer as comfy-kitchen stores it, padded with zeros to a multiple of 16, whose values are those of a weight."""
    weight = torch.zeros(round_up(n, 16), round_up(k, 16))
    weight[:n, :k] = torch.randn(n, k, generator=generator)
    layer = nvfp4.Linear.from_linear(linear(weight))
    return comfy_kitchen.write(layer.packed())


def linear(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight = nn.Parameter(weight)
    return layer


def fp8_tensors(generator: torch.Generator, n: int = N, k: int = K) -> dict[str, Tensor]:
    weight = torch.randn(n, k, generator=generator) * 50
    return {"weight": weight.to(FP8), "weight_scale": torch.rand((), generator=generator) + 0.1}


def mxfp8_tensors(generator: torch.Generator, n: int = N, k: int = K) -> tuple[dict[str, Tensor], Tensor]:
    """A layer padded to multiples of 32, and its numbers."""
    rows, columns = round_up(n, 32), round_up(k, 32)
    values = torch.zeros(rows, columns)
    values[:n, :k] = torch.randn(n, k, generator=generator) * 50
    codes = torch.randint(120, 131, (rows, columns // 32), dtype=torch.uint8, generator=generator)
    weight = values.to(FP8)
    numbers = weight.double() * codes.view(E8M0).double().repeat_interleave(32, 1)
    return {"weight": weight, "weight_scale": nvfp4.swizzle(codes).view(E8M0)}, numbers[:n, :k]


def named(name: str, tensors: dict[str, Tensor], mark: dict[str, Any] | None = None) -> dict[str, Tensor]:
    found = {f"{name}.{local}": t.contiguous().clone() for local, t in tensors.items()}
    return found if mark is None else found | {f"{name}.comfy_quant": marked(mark)}


def marked(mark: Any) -> Tensor:
    return torch.tensor(list(json.dumps(mark).encode()), dtype=torch.uint8)


def written(folder: Path, tensors: dict[str, Tensor], layers: dict[str, Any] | None = None) -> Path:
    metadata = None if layers is None else {"_quantization_metadata": json.dumps({"layers": layers})}
    safetensors.save_file(tensors, folder / "model.safetensors", metadata)
    return folder / "model.safetensors"


def rejected(message: str, source: Any, model: nn.Module | None = None) -> None:
    before = (
        None if model is None else {name: (id(t), t.clone()) for name, t in model.state_dict(keep_vars=True).items()}
    )
    with pytest.raises(nvfp4.Error) as error:
        nvfp4.load(source, model)
    assert str(error.value) == message
    if model is not None and before is not None:
        after = model.state_dict(keep_vars=True)
        assert {name: id(t) for name, t in after.items()} == {name: own[0] for name, own in before.items()}
        assert all(torch.equal(t, before[name][1]) for name, t in after.items())


# ---- padded layers ----


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_padding_of_n_and_k_is_cut_to_the_models_layer(bias: bool, before: bool, generator: torch.Generator) -> None:
    """A K that is no multiple of 16 makes a dense layer of the same weights, and the report says so."""
    n, k = integer(generator, 1, 47), 16 * integer(generator, 0, 5) + integer(generator, 1, 15)
    tensors = nvfp4_tensors(generator, n, k)
    expected = nvfp4.Linear.from_packed(comfy_kitchen.read(tensors)).dequantize(torch.float32)[:n, :k]
    if bias:
        tensors["bias"] = torch.randn(n, generator=generator)
    if before:
        tensors["pre_quant_scale"] = torch.rand(k, generator=generator) + 0.5
        expected = expected * tensors["pre_quant_scale"]
    model = nn.Sequential(nn.Linear(k, n, bias=bias))
    with torch.no_grad():
        model[0].weight.fill_(float("nan"))
    checkpoint = nvfp4.load(named("0", tensors, {"format": "nvfp4"}), model)
    assert type(model[0]) is nn.Linear and model[0].weight.shape == (n, k)
    assert torch.allclose(model[0].weight, expected, rtol=2**-22, atol=0)
    assert not bias or torch.equal(model[0].bias, tensors["bias"])
    reason = f"is NVFP4 in the checkpoint and dense in the model: K is {k}, no multiple of 16"
    assert checkpoint.skipped == {"0": reason} and not checkpoint.layers
    layer = nvfp4.load(named("0", tensors, {"format": "nvfp4"})).layers["0"]
    assert layer.in_features == round_up(k, 16) and layer.out_features == (n if bias else round_up(n, 16))
    if layer.pre_quant_scale is not None:
        assert torch.equal(layer.pre_quant_scale[:k], tensors["pre_quant_scale"])
        assert bool((layer.pre_quant_scale[k:] == 1).all())


def test_values_in_the_padding_are_an_error(generator: torch.Generator) -> None:
    (mx, _), mark = mxfp8_tensors(generator, N, 96), {"format": "mxfp8", "full_precision_matrix_mult": True}
    for tensors, own, k in ((nvfp4_tensors(generator, N, 80), {"format": "nvfp4"}, 80), (mx, mark, 96)):
        message = (
            f"0.weight: has values in columns 72 to {k - 1}; must have zeros there, as the model's layer has 72 inputs"
        )
        rejected(message, named("0", tensors, own), nn.Sequential(nn.Linear(72, N, bias=False)))


def test_another_k_is_an_error(generator: torch.Generator) -> None:
    tensors = named("0", nvfp4_tensors(generator), {"format": "nvfp4"})
    message = "0: is 48 x 64 (N x K); must be 48 x 48 for the model"
    rejected(message, tensors, nn.Sequential(nn.Linear(48, N, bias=False)))


# ---- FP8 and MXFP8 ----


@pytest.mark.parametrize("place", ["tensor", "metadata", "scaled_fp8"])
def test_fp8_layers_beside_nvfp4_ones(place: str, tmp_path: Path, generator: torch.Generator) -> None:
    """With an input scale they are W8A8, without one or with full_precision_matrix_mult W8A16."""
    own = fp8_tensors(generator)
    static = own | {"input_scale": torch.tensor(0.25)}
    stored = {"a.0": own, "a.1": static, "a.2": static}
    modes: dict[str, Any] = {"a.0": None, "a.1": "tensor", "a.2": None}
    marks: dict[str, Any] = {name: {"format": "float8_e4m3fn"} for name in stored}
    marks["a.2"]["full_precision_matrix_mult"] = True
    old = {"weight": "weight", "weight_scale": "scale_weight", "input_scale": "scale_input"}
    tensors: dict[str, Tensor] = {}
    for name, layer in stored.items():
        if place == "scaled_fp8":
            layer = {old[local]: t for local, t in layer.items()}
        tensors |= named(name, layer, marks[name] if place == "tensor" else None)
    if place == "scaled_fp8":
        elements = integer(generator, 0, 1) * 2
        tensors["a.scaled_fp8"] = torch.zeros(elements).to(FP8)
        modes = {"a.0": None, "a.1": None if elements else "tensor", "a.2": None if elements else "tensor"}
        marks = {}
    tensors |= named("b", nvfp4_tensors(generator), None if place == "metadata" else {"format": "nvfp4"})
    marks["b"] = {"format": "nvfp4"}
    file = written(tmp_path, tensors, marks if place == "metadata" else None)
    checkpoint = nvfp4.load(file)
    assert list(checkpoint.layers) == ["b"] and not checkpoint.tensors
    assert {name: layer.activations for name, layer in checkpoint.fp8.items()} == modes
    model = nn.ModuleDict({"a": nn.Sequential(*(nn.Linear(K, N, bias=False) for _ in range(3)))})
    model["b"] = nn.Linear(K, N, bias=False)
    nvfp4.load(file, model)
    x, expected = torch.randn(5, K, generator=generator), own["weight"].double() * own["weight_scale"]
    for i in range(3):
        layer = model["a"][i]
        assert isinstance(layer, nvfp4.Fp8Linear) and torch.equal(
            layer.weight.view(torch.uint8), own["weight"].view(torch.uint8)
        )
        if modes[f"a.{i}"] is None:
            assert torch.allclose(layer(x).double(), x.double() @ expected.T, rtol=0, atol=1e-3)
    assert all(layer.activations is None for layer in nvfp4.load(file, activations=None).fp8.values())


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("as_bytes", [False, True])
def test_mxfp8_layers_are_cut_to_the_models_size(full: bool, as_bytes: bool, generator: torch.Generator) -> None:
    n, k = integer(generator, 1, 150), integer(generator, 1, 300)
    stored, numbers = mxfp8_tensors(generator, n, k)
    if as_bytes:
        stored["weight_scale"] = stored["weight_scale"].view(torch.uint8)
    mark = {"format": "mxfp8", "full_precision_matrix_mult": full, "group_size": 32}
    tensors = named("0", stored | {"input_scale": torch.tensor(0.5)}, mark)
    model = nn.Sequential(nn.Linear(k, n, bias=False))
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always")
        checkpoint = nvfp4.load(tensors, model)
    assert len(noticed) == (0 if full else 1)  # inputs stay in 16 bits
    assert model[0].scales == "group" and model[0].activations is None
    assert torch.equal(checkpoint.fp8["0"].dense(torch.float32).double(), numbers)
    assert list(checkpoint.skipped) == ["0.input_scale"]
    alone = nvfp4.load(named("0", stored, mark | {"full_precision_matrix_mult": True})).fp8["0"]
    assert alone.weight.shape == (round_up(n, 32), round_up(k, 32))
    given = stored | {"bias": torch.zeros(n)}
    assert nvfp4.load(named("0", given, mark | {"full_precision_matrix_mult": True})).fp8["0"].out_features == n


def test_comfy_kitchens_own_mxfp8_and_fp8(generator: torch.Generator) -> None:
    pytest.importorskip("comfy_kitchen")
    from comfy_kitchen.tensor import QuantizedTensor

    n, k = integer(generator, 1, 150), integer(generator, 1, 300)
    weight = torch.randn(n, k, generator=generator)
    for kind, layout in (("mxfp8", "TensorCoreMXFP8Layout"), ("float8_e4m3fn", "TensorCoreFP8Layout")):
        theirs = QuantizedTensor.from_float(weight, layout)
        mark = {"format": kind, "full_precision_matrix_mult": True}
        model = nn.Sequential(nn.Linear(k, n, bias=False))
        checkpoint = nvfp4.load(named("0", theirs.state_dict("weight"), mark), model)
        assert torch.equal(checkpoint.fp8["0"].dense(torch.float32), theirs.dequantize())


# ---- marks ----


def test_the_metadata_count_before_a_tensor(tmp_path: Path, generator: torch.Generator) -> None:
    """ComfyUI overwrites the tensor by the metadata, and so does load."""
    tensors = named("a", nvfp4_tensors(generator), {"format": "nvfp4", "full_precision_matrix_mult": True})
    file = written(tmp_path, tensors, {"a": {"format": "nvfp4"}})
    checkpoint = nvfp4.load(file)
    assert checkpoint.layers["a"].activations == "nvfp4" and not checkpoint.tensors
    assert checkpoint.why["a"].startswith("_quantization_metadata.layers has ")


def test_block_scales_as_bytes_and_stacks(generator: torch.Generator) -> None:
    """ComfyUI reads scales that former files store as bytes, and experts with their number in the mark."""
    tensors = nvfp4_tensors(generator)
    expected = comfy_kitchen.read(tensors)
    given = tensors | {"weight_scale": tensors["weight_scale"].view(torch.uint8)}
    read = nvfp4.load(named("a", given, {"format": "nvfp4"})).layers["a"]
    assert torch.equal(read.weight_scale.view(torch.uint8), expected.weight_scale.view(torch.uint8))
    stack = {name: torch.stack([t, t]) for name, t in tensors.items()}
    experts = nvfp4.load(named("e", stack, {"format": "nvfp4", "num_experts": 2})).experts["e"]
    assert len(experts) == 2 and all(isinstance(own, PackedLinear) for own in experts)


OTHER = "of ComfyUI's formats nvfp4 reads nvfp4, float8_e4m3fn, mxfp8: convert the layer to one of them or to 16 bits"
SVDQUANT = (
    "is a factor of SVDQuant, whose layers add a product of low rank to that of the weight, which nvfp4 does not do: "
    "take the model's checkpoint without SVDQuant"
)


def test_what_is_rejected(generator: torch.Generator) -> None:
    """The message names the layer, and the model is as before."""
    four, eight, (mx, _) = nvfp4_tensors(generator), fp8_tensors(generator), mxfp8_tensors(generator)
    nv, f8, m8 = ({"format": kind} for kind in ("nvfp4", "float8_e4m3fn", "mxfp8"))
    wide = {name: t.to(torch.int8) if name == "weight" else t for name, t in four.items()}
    layout = "the 128x4 layout for a weight of 64 x 64"
    integers = {"weight": torch.ones(N, K, dtype=torch.int8), "weight_scale": torch.ones(N, 1)}
    factors = {"svdquant_lora_a": torch.ones(4, K), "svdquant_lora_b": torch.ones(N, 4)}
    for message, tensors, mark in (
        (f"0.svdquant_lora_a: {SVDQUANT}", four | factors, nv),
        ("0.weight: dtype is int8; must be uint8", wide, nv),
        ("0.weight: dtype is uint8; must be float8_e4m3fn", eight | {"weight": four["weight"]}, f8),
        ("0.weight: has 3 dimensions; must have 2 ([N, K])", eight | {"weight": eight["weight"][None]}, f8),
        ("0.weight: is missing; a layer of mxfp8 has weight, weight_scale", {"weight_scale": mx["weight_scale"]}, m8),
        ("0.weight_scale: is missing; a layer of mxfp8 has weight, weight_scale", {"weight": mx["weight"]}, m8),
        (
            f"0.weight_scale: is float32 []; must be uint8 or float8_e8m0fnu [128, 4], {layout}",
            mx | {"weight_scale": torch.tensor(1.0)},
            m8,
        ),
        ("0.comfy_quant: format: is None; must be nvfp4 or float8_e4m3fn or mxfp8", four, {"scale": 1}),
        ("0.comfy_quant: format: is ['nvfp4']; must be nvfp4 or float8_e4m3fn or mxfp8", four, {"format": ["nvfp4"]}),
        ("0.comfy_quant: group_size: is 16; must be 32", mx, m8 | {"group_size": 16}),
        (
            f"0.weight: cannot be put into the model: is quantized in another way: int8_tensorwise; {OTHER}",
            integers,
            {"format": "int8_tensorwise"},
        ),
    ):
        rejected(message, named("0", tensors, mark), nn.Sequential(nn.Linear(K, N, bias=False)))
    damaged = mx["weight_scale"].view(torch.uint8).clone().fill_(0xFF)
    with pytest.raises(nvfp4.Error, match="^0.weight_scale: is nan"):
        nvfp4.load(named("0", mx | {"weight_scale": damaged}, m8))
