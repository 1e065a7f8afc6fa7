"""nvfp4.load of files of torchao, comfy-kitchen and GGUF, and of stacked experts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nvfp4
from nvfp4.checkpoints import comfy_kitchen, compressed_tensors, gguf, modelopt, torchao
from nvfp4.layers.packed import PackedLinear

safetensors = pytest.importorskip("safetensors.torch", reason="comes with the extra `test`")

FP8 = torch.float8_e4m3fn
N, K = 40, 128


def packed(generator: torch.Generator, w4a4: bool = False, bias: bool = False) -> PackedLinear:
    return PackedLinear(
        torch.randint(0, 256, (N, K // 2), dtype=torch.uint8, generator=generator),
        torch.randint(0, 0x7F, (N, K // 16), dtype=torch.uint8, generator=generator).view(FP8),
        torch.rand((), generator=generator) * 0.01 + 1e-4,
        torch.rand((), generator=generator) + 0.1 if w4a4 else None,
        torch.randn(N, generator=generator) if bias else None,
        "nvfp4" if w4a4 else None,
    )


def same(a: PackedLinear, b: PackedLinear, but: tuple[str, ...] = ()) -> bool:
    def described(t: Any) -> Any:
        return (t.dtype, t.shape, t.contiguous().reshape(-1).view(torch.uint8).tolist()) if torch.is_tensor(t) else t

    return all(described(getattr(a, name)) == described(getattr(b, name)) for name in vars(a) if name not in but)


def full(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{name}.{local}": t.contiguous() for local, t in tensors.items()}


def rejected(message: str, *arguments: Any) -> None:
    with pytest.raises(nvfp4.Error) as error:
        nvfp4.load(*arguments)
    assert str(error.value) == message


# ---- torchao ----


def described(swizzled: bool, w4a4: bool, dynamic: bool = False) -> str:
    kind = {"_type": "QuantizeTensorToNVFP4Kwargs", "_data": {"use_dynamic_per_tensor_scale": dynamic}}
    data = {"is_swizzled_scales": swizzled, "block_size": 16, "act_quant_kwargs": kind if w4a4 else None}
    return json.dumps({"_type": "NVFP4Tensor", "_data": data, "_tensor_data_names": ["qdata", "scale"]})


def test_a_file_of_torchao(tmp_path: Path, generator: torch.Generator) -> None:
    """Each layer in its own layout and mode; a layer of another kind is kept as it is stored."""
    layers = {"a": packed(generator, bias=True), "b": packed(generator, True), "c": packed(generator)}
    tensors = full("a", torchao.write(layers["a"], True)) | full("b", torchao.write(layers["b"]))
    tensors |= full("c", torchao.write(layers["c"])) | {"f._weight_qdata": torch.ones(2), "norm.weight": torch.ones(3)}
    metadata = {"a.weight": described(True, False), "b.weight": described(False, True)}
    metadata |= {"c.weight": described(False, True, dynamic=True), "norm.weight": '{"_type": "Tensor"}'}
    metadata |= {"f.weight": '{"_type": "Float8Tensor", "_data": {}}', "format": "pt"}
    metadata["tensor_names"] = json.dumps(list(metadata))
    file = tmp_path / "model.safetensors"

    def saved() -> Path:
        safetensors.save_file(tensors, file, metadata)
        return file

    checkpoint = nvfp4.load(saved())
    assert checkpoint.format == "torchao" and list(checkpoint.layers) == ["a", "b", "c"]
    assert same(checkpoint.layers["a"], layers["a"]) and same(checkpoint.layers["b"], layers["b"])
    assert same(checkpoint.layers["c"], layers["c"], ("activations",))
    assert checkpoint.layers["c"].activations == "nvfp4" and checkpoint.layers["c"].input_global_scale is None
    assert checkpoint.skipped == {"f": "is quantized in another way: Float8Tensor of weight"}
    assert set(checkpoint.tensors) == {"f._weight_qdata", "norm.weight"}
    metadata["f.weight"] = json.dumps({"_type": "a" * 10**6, "_data": {}})
    reason = nvfp4.load(saved()).skipped["f"]
    assert reason.startswith("is quantized in another way: 'aaa") and len(reason) < 200
    tensors["b._weight_scale"].view(torch.uint8)[5, 7] = 0x7F
    rejected("b._weight_scale: is nan at row 5, column 7 (1 of 320 are such); must be finite", saved())
    del tensors["b._weight_scale"]
    safetensors.save_file(tensors, file, metadata)
    message = "b._weight_scale: is missing; a layer of torchao has _weight_qdata, _weight_scale"
    rejected(message, tmp_path)
    safetensors.save_file(tensors, file, metadata | {"b.weight": '{"NVFP4Tensor"'})
    with pytest.raises(nvfp4.Error, match="^metadata of b.weight: is no JSON: "):
        nvfp4.load(file)


def test_what_torchao_flattens(tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, QuantizeTensorToNVFP4Kwargs
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    weight, scale = torch.randn(N, K), torch.tensor(1e-3)
    for kind in (None, QuantizeTensorToNVFP4Kwargs(), QuantizeTensorToNVFP4Kwargs(use_dynamic_per_tensor_scale=True)):
        for swizzled in (False, True):
            theirs = NVFP4Tensor.to_nvfp4(
                weight, per_tensor_scale=scale, is_swizzled_scales=swizzled, act_quant_kwargs=kind
            )
            tensors, metadata = flatten_tensor_state_dict({"0.weight": theirs, "0.bias": torch.ones(N)})
            safetensors.save_file(tensors, tmp_path / "model.safetensors", metadata)
            model = nn.Sequential(nn.Linear(K, N))
            layer = nvfp4.load(tmp_path, model).layers["0"]
            assert torch.equal(layer.weight, theirs.qdata) and torch.equal(layer.bias, torch.ones(N))
            assert layer.weight_global_scale == scale and layer.activations == (None if kind is None else "nvfp4")
            static = kind is not None and not kind.use_dynamic_per_tensor_scale
            assert (layer.input_global_scale is not None) == static
            ours = nvfp4.dequantize(model[0].weight, model[0].weight_scale, global_scale=scale)
            assert torch.allclose(ours, theirs.dequantize(torch.float32), rtol=2**-22, atol=0)


# ---- comfy-kitchen ----


@pytest.mark.parametrize("marked", ["tensor", "metadata", "argument"])
def test_a_file_for_comfyui(marked: str, tmp_path: Path, generator: torch.Generator) -> None:
    """The model says how many of the 48 stored rows are the layer's."""
    layers = {"0": packed(generator), "1": packed(generator, bias=True)}
    tensors = full("0", comfy_kitchen.write(layers["0"])) | full("1", comfy_kitchen.write(layers["1"]))
    tensors["0.input_scale"] = torch.tensor(0.5)
    metadata = {"format": "pt"}
    marks = {name: {"format": "nvfp4"} for name in "01"}
    if marked != "argument":
        tensors |= {"2.weight": torch.zeros(4, 4).to(torch.float8_e5m2), "2.weight_scale": torch.tensor(1.0)}
        marks["2"] = {"format": "float8_e5m2"}
    if marked == "tensor":
        for name, mark in marks.items():
            tensors[f"{name}.comfy_quant"] = torch.tensor(list(json.dumps(mark).encode()), dtype=torch.uint8)
    if marked == "metadata":
        metadata["_quantization_metadata"] = json.dumps({"format_version": "1.0", "layers": marks})
    file = tmp_path / "model.safetensors"
    safetensors.save_file(tensors, file, metadata)
    given = ("comfy-kitchen",) if marked == "argument" else ()
    checkpoint = nvfp4.load(file, None, *given)
    assert checkpoint.format == "comfy-kitchen" and checkpoint.layers["0"].out_features == 48
    if marked != "argument":
        other = (
            "is quantized in another way: float8_e5m2; of ComfyUI's formats nvfp4 reads nvfp4, float8_e4m3fn, mxfp8: "
            "convert the layer to one of them or to 16 bits"
        )
        assert checkpoint.skipped == {"2": other}
        assert set(checkpoint.tensors) == {"2.weight", "2.weight_scale"}
        rejected(
            f"2.weight: cannot be put into the model: {other}",
            file,
            nn.Sequential(nn.Linear(K, N, bias=False), nn.Linear(K, N)),
            *given,
        )
        return
    model = nn.Sequential(nn.Linear(K, N, bias=False), nn.Linear(K, N))
    read = nvfp4.load(file, model, *given).layers
    for name, layer in layers.items():
        assert same(read[name], layer, ("activations", "input_global_scale")) and read[name].activations == "nvfp4"
    assert read["0"].input_global_scale == 0.5 and read["1"].input_global_scale is None
    damaged = layers["1"].weight_scale.clone()
    damaged.view(torch.uint8)[39, 0] = 0xFF
    message = "1.weight_scale: is nan at row 39, column 0 (1 of 320 are such); must be finite"
    rejected(message, tensors | {"1.weight_scale": nvfp4.swizzle(damaged)}, None, *given)
    tensors["1.weight_scale"] = tensors["1.weight_scale"].bfloat16()
    rejected("1.weight_scale: dtype is bfloat16; must be float8_e4m3fn", tensors, None, *given)
    rejected(
        "format: is 'GGUF'; must be None, 'modelopt' or 'comfy-kitchen': other sources say their own",
        file,
        None,
        "GGUF",
    )


# ---- GGUF ----


def test_a_gguf_file(tmp_path: Path, generator: torch.Generator, random: np.random.Generator) -> None:
    """A file that gguf writes: layers with and without scales, experts with a vector of them, and other types."""
    package = pytest.importorskip("gguf")
    kind = package.GGMLQuantizationType
    layers = {"blk.0.a": packed(generator, True, bias=True), "blk.0.b": packed(generator)}
    experts = [packed(generator) for _ in range(3)]
    writer = package.GGUFWriter(tmp_path / "model.gguf", "llama")
    for name, layer in layers.items():
        for local, t in gguf.write(layer).items():
            raw = kind.NVFP4 if local == "blocks" else None
            name_of = f"{name}.{'weight' if local == 'blocks' else local}"
            writer.add_tensor(name_of, t.reshape(-1).numpy() if t.ndim < 2 else t.numpy(), raw_dtype=raw)
    stack = torch.stack([gguf.write(layer)["blocks"] for layer in experts])
    writer.add_tensor("blk.0.exps.weight", stack.numpy(), raw_dtype=kind.NVFP4)
    writer.add_tensor("blk.0.exps.scale", np.array([float(x.weight_global_scale) for x in experts], np.float32))
    other = random.standard_normal((4, 64)).astype(np.float32)
    writer.add_tensor("norm.weight", other[0])
    bf16 = torch.from_numpy(other).bfloat16()
    writer.add_tensor("embed.weight", bf16.view(torch.int16).numpy().view(np.uint8), raw_dtype=kind.BF16)
    writer.add_tensor("q8.weight", package.quants.quantize(other, kind.Q8_0), raw_dtype=kind.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = nvfp4.load(tmp_path / "model.gguf")
    assert checkpoint.format == "GGUF" and list(checkpoint.layers) == list(layers)
    assert all(same(checkpoint.layers[name], layer) for name, layer in layers.items())
    assert len(checkpoint.experts["blk.0.exps"]) == 3
    assert all(same(a, b) for a, b in zip(checkpoint.experts["blk.0.exps"], experts))
    assert checkpoint.skipped == {"q8.weight": "is quantized in another way: Q8_0"}
    assert torch.equal(checkpoint.tensors["embed.weight"], bf16)
    assert torch.equal(checkpoint.tensors["norm.weight"], torch.from_numpy(other[0]))
    whole = (tmp_path / "model.gguf").read_bytes()
    for content in (whole[:-4000], whole[:100], b"GGUX" + whole[4:], b""):
        (tmp_path / "model.gguf").write_bytes(content)
        with pytest.raises(nvfp4.Error, match="model.gguf: is no GGUF file, or damaged: "):
            nvfp4.load(tmp_path / "model.gguf")
    rejected(f"{tmp_path / 'none.gguf'}: does not exist", tmp_path / "none.gguf")


# ---- experts ----


@pytest.mark.parametrize("format", [modelopt, compressed_tensors])
def test_stacked_experts(format: Any, generator: torch.Generator) -> None:
    """One layer for each. Scales are stacked as [E], [E, 1] or [E, 1, 1], or one serves all."""
    layers = [packed(generator, True, bias=True) for _ in range(3)]
    each = [format.write(layer) for layer in layers]
    stacked = {name: torch.stack([tensors[name] for tensors in each]) for name in each[0]}
    for shape in ((3,), (3, 1), (3, 1, 1)):
        given = {name: t.reshape(shape) if t.numel() == 3 else t for name, t in stacked.items()}
        checkpoint = nvfp4.load(full("moe.up", given) | {"norm.weight": torch.ones(2)})
        assert not checkpoint.layers and not checkpoint.skipped and list(checkpoint.tensors) == ["norm.weight"]
        for tensors, read in zip(each, checkpoint.experts["moe.up"]):
            assert same(read, format.read(tensors))
    given = stacked | {format.INPUT_SCALE: torch.tensor(0.25)}
    assert {float(x.input_global_scale) for x in nvfp4.load(full("e", given)).experts["e"]} <= {0.25, 4.0}
    rejected("e: is a stack of 3 experts, which a model cannot take", full("e", given), nn.Sequential())
    name = "weight_packed" if format is compressed_tensors else "weight"
    rejected(
        "e.weight_scale: shape is [2, 40, 8]; must begin with 3, the number of experts",
        full("e", given | {"weight_scale": given["weight_scale"][:2]}),
    )
    rejected(
        f"e[0].{name.replace('_packed', '')}: K is 56; must be a positive multiple of 16",
        full("e", given | {name: given[name][..., :28]}),
    )
