"""Whole files of torchao, comfy-kitchen and GGUF for nvfp4.load. Each says itself how its layers are stored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4.checkpoints import comfy_kitchen, gguf, torchao
from nvfp4.checkpoints.common import Checkpoint, add_layer, by_module, noted, table
from nvfp4.checkpoints.files import READER_ERRORS, parse_json
from nvfp4.checkpoints.gguf_header import check_header
from nvfp4.packed import PackedLinear, round_up

Errors = dict[str, str] | None  # of the layers by name, where they are not raised


# ---- torchao ----


def read_torchao(tensors: Mapping[str, Tensor], metadata: Mapping[str, str], errors: Errors = None) -> Checkpoint:
    """Tensors of flatten_tensor_state_dict, torchao/prototype/safetensors in torchao 0.18, and its metadata: of each
    tensor its `_type` and, as `_data`, the attributes of the NVFP4Tensor."""
    checkpoint, modules = Checkpoint(torchao.NAME), by_module(tensors)
    for name, text in sorted(metadata.items()):  # a file keeps no order of them
        module, _, parameter = name.rpartition(".")
        if name == "tensor_names" or not text.startswith("{"):
            continue
        description = parse_json(f"metadata of {name}", text)
        kind = description.get("_type")
        if kind == "Tensor" or "_data" not in description:
            continue
        own = modules.get(module, {})
        if kind != "NVFP4Tensor" or parameter != "weight":
            checkpoint.skipped[module] = f"is quantized in another way: {kind} of {parameter}"
            continue
        mine = {local: own.pop(local) for local in torchao.KNOWN if local in own}
        data = table(description, "_data", f"metadata of {name}: ")
        swizzled = bool(data.get("is_swizzled_scales", False))
        activations = table(data, "act_quant_kwargs", f"metadata of {name}: ")
        kind = table(activations, "_data", f"metadata of {name}: act_quant_kwargs.")
        dynamic = bool(kind.get("use_dynamic_per_tensor_scale", False))

        def read(
            given: Mapping[str, Tensor],
            swizzled: bool = swizzled,
            w4a4: bool = bool(activations),
            dynamic: bool = dynamic,
        ) -> PackedLinear:
            return torchao.read(given, swizzled, "nvfp4" if w4a4 else None, dynamic)

        with noted(module, errors):
            add_layer(checkpoint, module, mine, "_weight_qdata", read)
    for module, own in modules.items():
        checkpoint.tensors |= {f"{module}.{local}" if module else local: t for local, t in own.items()}
    return checkpoint


# ---- comfy-kitchen ----


def rows_of(model: torch.nn.Module) -> dict[str, int]:
    """N of the model's linear layers, which files of comfy-kitchen pad to a multiple of 16."""
    found = {name: getattr(module, "out_features", None) for name, module in model.named_modules()}
    return {name: n for name, n in found.items() if isinstance(n, int)}


def read_comfy(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str], rows: Mapping[str, int], errors: Errors = None
) -> Checkpoint:
    """Tensors by comfy_kitchen's names. Layers with another mark than "nvfp4" are skipped. Without any mark, layers are
    those with a weight_scale_2."""
    checkpoint, modules = Checkpoint(comfy_kitchen.NAME), by_module(tensors)
    marks: dict[str, Any] = {}
    if comfy_kitchen.METADATA in metadata:
        content = parse_json(comfy_kitchen.METADATA, metadata[comfy_kitchen.METADATA])
        layers = table(content, "layers", f"{comfy_kitchen.METADATA}.")
        marks = {name: table(layers, name, f"{comfy_kitchen.METADATA}.layers.").get("format") for name in layers}
    for module, own in modules.items():
        if comfy_kitchen.MARK in own:
            where = f"{module}.{comfy_kitchen.MARK}"
            marks[module] = parse_json(where, comfy_kitchen.mark_text(where, own.pop(comfy_kitchen.MARK))).get("format")
    if not comfy_kitchen.is_marked(tensors, metadata):
        marks = {module: "nvfp4" for module, own in modules.items() if "weight_scale_2" in own}
    for module, own in modules.items():
        mark = marks.get(module)
        if mark == "nvfp4":
            known = rows.get(module)
            stored = own["weight"].shape[0] if "weight" in own and own["weight"].ndim else None
            given = known if known is not None and round_up(known, comfy_kitchen.ROWS) == stored else None

            def read(tensors: Mapping[str, Tensor], given: int | None = given) -> PackedLinear:
                return comfy_kitchen.read(tensors, given)

            with noted(module, errors):
                add_layer(checkpoint, module, own, "weight", read)
            continue
        if mark is not None:
            checkpoint.skipped[module] = f"is quantized in another way: {mark}"
        checkpoint.tensors |= {f"{module}.{local}" if module else local: t for local, t in own.items()}
    return checkpoint


# ---- GGUF ----


def read_blocks(own: Mapping[str, Tensor]) -> PackedLinear:
    return gguf.read(own["blocks"], own.get("scale"), own.get("input_scale"), own.get("bias"))


def read_gguf(path: Path, errors: Errors = None, mmap: bool = True) -> Checkpoint:
    """Tensors of type 40 and their `.scale` and `.input_scale`. Other tensors of 16 or 32 bits as they are, and those
    of other types as bytes, with a reason in `skipped`."""
    try:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader
    except ModuleNotFoundError:
        raise ModuleNotFoundError("nvfp4.load needs gguf for GGUF files: pip install gguf", name="gguf") from None
    check_header(path, GGML_QUANT_SIZES)
    try:
        stored = GGUFReader(path, "c").tensors  # mapped; torch has no tensors that cannot be written
    except READER_ERRORS as error:
        raise _C.Error(f"{path}: is no GGUF file, or damaged: {error}") from None
    checkpoint, tensors, packed = Checkpoint(gguf.NAME), {}, set()
    for entry in stored:
        t = torch.from_numpy(entry.data)
        if not mmap:
            t = t.clone()
        if entry.tensor_type == GGMLQuantizationType.BF16:
            t = t.view(torch.bfloat16)
        elif entry.tensor_type == GGMLQuantizationType.NVFP4 and entry.name.endswith("weight"):
            packed.add(entry.name)
        elif t.dtype == torch.uint8:
            checkpoint.skipped[entry.name] = f"is quantized in another way: {entry.tensor_type.name}"
        tensors[entry.name] = t
    for module, own in by_module(tensors).items():
        prefix = f"{module}." if module else ""
        if f"{prefix}weight" in packed:
            scales = [local for local in ("scale", "input_scale", "bias") if local in own]
            mine = {"blocks": own.pop("weight")} | {local: own.pop(local) for local in scales}
            with noted(module, errors):
                add_layer(checkpoint, module, mine, "blocks", read_blocks)
        checkpoint.tensors |= {prefix + local: t for local, t in own.items()}
    return checkpoint
