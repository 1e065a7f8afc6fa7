"""Whole files of torchao, comfy-kitchen and GGUF for nvfp4.load. Each says itself how its layers are stored."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4._text import shown
from nvfp4.checkpoints import comfy_kitchen, gguf, mxfp4, torchao
from nvfp4.checkpoints.checkpoint import Checkpoint, noted
from nvfp4.checkpoints.files import READER_ERRORS, check_file, parse_json
from nvfp4.checkpoints.gguf_header import check_header
from nvfp4.checkpoints.grouping import check_unclaimed, grouped, has_scale, keep, other_kind
from nvfp4.checkpoints.names import Modules, Names
from nvfp4.checkpoints.options import COMFY, TORCHAO, TORCHAO_ACTIVATIONS, check_flag, check_keys, check_off
from nvfp4.checkpoints.recipe import AUTO, table
from nvfp4.checkpoints.shards import parts_of
from nvfp4.checkpoints.stacks import add_layer
from nvfp4.checkpoints.tensors import chosen
from nvfp4.layers.buffers import round_up
from nvfp4.layers.checks import prefix_errors
from nvfp4.layers.packed import BLOCK, PackedLinear

SPLIT = ("split.count", "split.no")  # of a GGUF file in parts
Errors = dict[str, str] | None  # of the layers by name, where they are not raised


# ---- torchao ----


def read_torchao(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str], errors: Errors = None, wanted: str | None = AUTO
) -> Checkpoint:
    """Tensors of flatten_tensor_state_dict, torchao/prototype/safetensors in torchao 0.18, and its metadata: of each
    tensor its `_type` and, as `_data`, the attributes of the NVFP4Tensor."""
    checkpoint, (modules, names) = Checkpoint(torchao.NAME), grouped(tensors)
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
            checkpoint.why[module] = f"metadata of {name}"
            continue
        checkpoint.why[module] = f"metadata of {name}"
        mine = {local: own.pop(local) for local in torchao.KNOWN if local in own}
        data = table(description, "_data", f"metadata of {name}: ")
        check_keys(f"metadata of {name}: ", data, TORCHAO)
        check_block(f"metadata of {name}: ", data, "block_size")
        swizzled = bool(data.get("is_swizzled_scales", False))
        activations = table(data, "act_quant_kwargs", f"metadata of {name}: ")
        kind = table(activations, "_data", f"metadata of {name}: act_quant_kwargs.")
        check_keys(f"metadata of {name}: act_quant_kwargs.", kind, TORCHAO_ACTIVATIONS)
        check_block(f"metadata of {name}: act_quant_kwargs.", kind, "block_size")
        dynamic = bool(kind.get("use_dynamic_per_tensor_scale", False))

        mode = chosen(mine, torchao.INPUT_SCALE, "nvfp4" if activations else None, wanted)
        if not activations and torchao.INPUT_SCALE not in mine:
            dynamic = True  # where the caller wants quantized activations
        read = functools.partial(torchao.read, is_swizzled_scales=swizzled, activations=mode, dynamic=dynamic)
        with noted(module, errors):
            add_layer(checkpoint, module, mine, "_weight_qdata", read)
    for module, own in modules.items():
        skip_other(checkpoint, module, own)
        keep(checkpoint, module, own, names)
    check_unclaimed(checkpoint, errors)
    return checkpoint


def check_block(where: str, given: Mapping[str, Any], key: str) -> None:
    if given.get(key) not in (None, BLOCK):
        raise _C.Error(f"{where}{key}: is {shown(given[key])}; must be {BLOCK}")


def skip_other(checkpoint: Checkpoint, module: str, own: Mapping[str, Tensor]) -> None:
    """Names a layer that no mark describes and whose tensors are quantized in a known other way."""
    other = other_kind(own)
    if other is not None and module not in checkpoint.skipped:
        checkpoint.skipped[module] = f"is quantized in another way: {other}"
        checkpoint.why[module] = "its tensors"


# ---- comfy-kitchen ----


def rows_of(model: torch.nn.Module) -> dict[str, int]:
    """N of the model's linear layers, which files of comfy-kitchen pad to a multiple of 16."""
    found = {name: getattr(module, "out_features", None) for name, module in model.named_modules()}
    return {name: n for name, n in found.items() if isinstance(n, int)}


def read_comfy(
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    rows: Mapping[str, int],
    errors: Errors = None,
    wanted: str | None = AUTO,
) -> Checkpoint:
    """Tensors by comfy_kitchen's names. Layers with another mark than "nvfp4" are skipped. Without any mark, layers are
    those with a weight_scale_2."""
    checkpoint, (modules, names) = Checkpoint(comfy_kitchen.NAME), grouped(tensors)
    marks = comfy_marks(modules, metadata, errors)
    if not comfy_kitchen.is_marked(tensors, metadata):
        unmarked = ({"format": comfy_kitchen.NVFP4}, "format is given, and it has a weight_scale_2")
        marks = {module: unmarked for module, own in modules.items() if "weight_scale_2" in own}
    for module, own in modules.items():
        if "scaled_fp8" in own:
            checkpoint.skipped[names[module, "scaled_fp8"]] = "is a mark of FP8 layers"
            del own["scaled_fp8"]
        mark, place = marks.get(module, ({}, ""))
        if mark:
            checkpoint.why[module] = place
        if mark.get("format") == comfy_kitchen.NVFP4:
            known = rows.get(module)
            stored = own["weight"].shape[0] if "weight" in own and own["weight"].ndim else None
            given = known if known is not None and round_up(known, comfy_kitchen.ROWS) == stored else None
            with noted(module, errors):
                mode = comfy_mode(f"{module}.{comfy_kitchen.MARK}: ", mark)
                mode = chosen(own, comfy_kitchen.INPUT_SCALE, mode, mode if wanted == AUTO else wanted)
                read = functools.partial(comfy_kitchen.read, rows=given, activations=mode)
                add_layer(checkpoint, module, own, "weight", read)
            continue
        if mark:
            checkpoint.skipped[module] = f"is quantized in another way: {mark.get('format')}"
        skip_other(checkpoint, module, own)
        keep(checkpoint, module, own, names)
    check_unclaimed(checkpoint, errors)
    return checkpoint


def comfy_marks(
    modules: Mapping[str, dict[str, Tensor]], metadata: Mapping[str, str], errors: Errors
) -> dict[str, tuple[dict[str, Any], str]]:
    """Each layer's mark and its place: a tensor beside the layer, which is removed, or else in the metadata."""
    marks: dict[str, tuple[dict[str, Any], str]] = {}
    where = f"{comfy_kitchen.METADATA}.layers"
    if comfy_kitchen.METADATA in metadata:
        content = parse_json(comfy_kitchen.METADATA, metadata[comfy_kitchen.METADATA])
        layers = table(content, "layers", f"{comfy_kitchen.METADATA}.")
        patterns, found = Names(list(layers), where), Modules(modules)
        patterns.bind(found)
        for pattern in patterns.unmatched(found):
            with noted(f"{where}: {pattern}", errors):
                raise _C.Error(f"{where}: {shown(pattern)} matches no layer of the checkpoint")
        for module, own in modules.items():
            match = patterns.find(module)
            if match is not None and (not match.subtree or has_scale(own)):
                marks[module] = dict(table(layers, match.pattern, f"{where}.")), f"{where} has {match}"
    for module, own in modules.items():
        if comfy_kitchen.MARK in own:
            place = f"{module}.{comfy_kitchen.MARK}"
            text = comfy_kitchen.mark_text(place, own.pop(comfy_kitchen.MARK))
            marks[module] = parse_json(place, text), place
            if not own:
                with noted(place, errors):
                    raise _C.Error(f"{place}: marks a layer that has no tensors")
    return marks


def comfy_mode(where: str, mark: Mapping[str, Any]) -> str | None:
    """The `activations` of a layer by its mark."""
    check_keys(where, mark, COMFY)
    for key in ("group_size", "block_size"):
        check_block(where, mark, key)
    check_off(where, mark, ("convrot",), "a rotation of the inputs at run time")
    return None if check_flag(where, mark, "full_precision_matrix_mult") else "nvfp4"


# ---- GGUF ----


def read_blocks(own: Mapping[str, Tensor], activations: str | None = AUTO) -> PackedLinear:
    return gguf.read(own["blocks"], own.get("scale"), own.get("input_scale"), own.get("bias"), activations)


def read_gguf(path: Path, errors: Errors = None, wanted: str | None = AUTO, mmap: bool = True) -> Checkpoint:
    """Tensors of type 40 and their `.scale` and `.input_scale`, and of type 39 (MXFP4). Other tensors of 16 or 32 bits
    as they are, and those of other types as bytes, with a reason in `skipped`."""
    try:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader
    except ModuleNotFoundError:
        raise ModuleNotFoundError("nvfp4.load needs gguf for GGUF files: pip install gguf", name="gguf") from None
    files, stored = parts_of(path), []
    for number, file in enumerate(files):
        check_file(file, None if file == path else path.parent)
        check_header(file, GGML_QUANT_SIZES)
        try:
            reader = GGUFReader(file, "c")  # mapped; torch has no tensors that cannot be written
            fields = [reader.get_field(key) for key in SPLIT]
            count, place = (default if x is None else int(x.contents()) for x, default in zip(fields, (1, 0)))
        except READER_ERRORS as error:
            raise _C.Error(f"{file}: is no GGUF file, or damaged: {error}") from None
        if count != len(files) or place != number:
            raise _C.Error(
                f"{file}: is part {place + 1} of {count} by its header, and {number + 1} of {len(files)} by its name; "
                "parts are named NAME-00001-of-00003.gguf"
            )
        stored += reader.tensors
    checkpoint, tensors, packed, mx = Checkpoint(gguf.NAME), dict[str, Tensor](), set(), set()
    for entry in stored:
        if entry.name in tensors:
            raise _C.Error(f"{entry.name}: is in two parts of {path.name}")
        t = torch.from_numpy(entry.data)
        if not mmap:
            t = t.clone()
        if entry.tensor_type == GGMLQuantizationType.BF16:
            t = t.view(torch.bfloat16)
        elif entry.tensor_type == GGMLQuantizationType.NVFP4 and entry.name.endswith("weight"):
            packed.add(entry.name)
        elif entry.tensor_type == GGMLQuantizationType.MXFP4 and entry.name.endswith("weight"):
            mx.add(entry.name)
        elif t.dtype == torch.uint8:
            checkpoint.skipped[entry.name] = f"is quantized in another way: {entry.tensor_type.name}"
        tensors[entry.name] = t
    modules, names = grouped(tensors)
    for module, own in modules.items():
        prefix = f"{module}." if module else ""
        if f"{prefix}weight" in packed:
            scales = [local for local in ("scale", "input_scale", "bias") if local in own]
            mine = {"blocks": own.pop("weight")} | {local: own.pop(local) for local in scales}
            checkpoint.why[module] = f"{prefix}weight has type 40 (NVFP4)"
            with noted(module, errors):
                mode = chosen(mine, "input_scale", AUTO, wanted)
                add_layer(checkpoint, module, mine, "blocks", functools.partial(read_blocks, activations=mode))
        elif f"{prefix}weight" in mx:
            stored = own.pop("weight")
            bias = {"bias": own.pop("bias")} if "bias" in own else {}
            checkpoint.why[module] = f"{prefix}weight has type 39 (MXFP4)"
            with noted(module, errors):
                with prefix_errors(module):
                    mine = gguf.mxfp4_tensors(stored) | bias
                mxfp4.add(checkpoint, module, mine, "nvfp4" if wanted == "nvfp4" else None)
        keep(checkpoint, module, own, names)
    check_unclaimed(checkpoint, errors)
    return checkpoint
