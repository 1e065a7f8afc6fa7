"""Whole files for ComfyUI, for nvfp4.load. Marks say how each layer is stored; ComfyUI looks in three places:

    _quantization_metadata   the file's metadata: JSON with `layers`, a mark for each name. It counts before a tensor
    comfy_quant              a tensor beside a layer: the JSON of its mark in bytes, such as {"format": "nvfp4"}
    scaled_fp8               a tensor of former FP8 files, where there is no _quantization_metadata. Each layer below it
                             with a scale_weight, and perhaps a scale_input, is FP8. Two elements stand for
                             full_precision_matrix_mult

    format of a mark         tensors of the layer
    nvfp4                    see comfy_kitchen.py
    float8_e4m3fn            weight [N, K], weight_scale, input_scale
    mxfp8                    weight [N, K], both rounded up to a multiple of 32; weight_scale: e8m0 for each 32 values
                             of a row, in the 128x4 layout

A mark may have full_precision_matrix_mult, which keeps 16-bit inputs. Source: comfy/ops.py, comfy/utils.py and
comfy/quant_ops.py in ComfyUI (0271a46, 09708ea).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C, _api
from nvfp4._text import shown
from nvfp4.checkpoints import comfy_kitchen, fp8
from nvfp4.checkpoints.checkpoint import Checkpoint, in_another_way, noted
from nvfp4.checkpoints.comfy_kitchen import INPUT_SCALE, MARK, METADATA, NAME, NVFP4, SCALED_FP8
from nvfp4.checkpoints.files import parse_json
from nvfp4.checkpoints.grouping import check_unclaimed, grouped, has_scale, keep, skip_other
from nvfp4.checkpoints.names import Modules, Names
from nvfp4.checkpoints.options import COMFY, check_block, check_flag, check_keys, check_off
from nvfp4.checkpoints.recipe import AUTO, table
from nvfp4.checkpoints.stacks import add_layer
from nvfp4.checkpoints.tensors import chosen
from nvfp4.layers.buffers import aligned, round_up
from nvfp4.layers.checks import check_tensor, prefix_errors, short
from nvfp4.layers.fp8 import FP8, GROUP
from nvfp4.layers.packed import BLOCK

Errors = dict[str, str] | None  # of the layers by name, where they are not raised
Size = tuple[int, int]  # N and K of a model's layer
Mark = tuple[dict[str, Any], str]  # and its place
FP8_FORMAT, MXFP8_FORMAT = "float8_e4m3fn", "mxfp8"
FULL = "full_precision_matrix_mult"
NAMES_OF_SCALED_FP8 = {"scale_weight": "weight_scale", "scale_input": INPUT_SCALE}


def sizes_of(model: torch.nn.Module) -> dict[str, Size]:
    """N and K of the model's linear layers, which files for ComfyUI may round up."""
    found = {
        name: (getattr(module, "out_features", None), getattr(module, "in_features", None))
        for name, module in model.named_modules()
    }
    return {name: (n, k) for name, (n, k) in found.items() if isinstance(n, int) and isinstance(k, int)}


def read_comfy(
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    sizes: Mapping[str, Size],
    errors: Errors = None,
    wanted: str | None = AUTO,
) -> Checkpoint:
    """Tensors by ComfyUI's names. Layers with a mark of another format are skipped. Without any mark, layers are those
    with a weight_scale_2."""
    checkpoint, (modules, names) = Checkpoint(NAME), grouped(tensors)
    marks = marks_of(checkpoint, modules, names, metadata, errors)
    if not comfy_kitchen.is_marked(tensors, metadata):
        unmarked = ({"format": NVFP4}, "format is given, and it has a weight_scale_2")
        marks = {module: unmarked for module, own in modules.items() if "weight_scale_2" in own}
    for module, own in modules.items():
        if module in marks:
            mark, checkpoint.why[module] = marks[module]
            with noted(module, errors):
                kind = mark.get("format")
                if not isinstance(kind, str):
                    raise _C.Error(f"{module}.{MARK}: format: is {shown(kind)}; must be {' or '.join(READERS)}")
                if kind in READERS:
                    READERS[kind](checkpoint, module, own, mark, sizes.get(module), wanted)
                    continue
                checkpoint.skipped[module] = (
                    f"{in_another_way(kind)}; of ComfyUI's formats nvfp4 reads {', '.join(READERS)}: "
                    "convert the layer to one of them or to 16 bits"
                )
        if module in marks and module not in checkpoint.skipped:
            continue  # its error is noted
        skip_other(checkpoint, module, own)
        keep(checkpoint, module, own, names)
    check_unclaimed(checkpoint, errors)
    return checkpoint


# ---- marks ----


def marks_of(
    checkpoint: Checkpoint,
    modules: Mapping[str, dict[str, Tensor]],
    names: dict[tuple[str, str], str],
    metadata: Mapping[str, str],
    errors: Errors,
) -> dict[str, Mark]:
    """Each layer's mark, the last of these places where it has one. Tensors that are marks are removed."""
    marks = {} if METADATA in metadata else by_scaled_fp8(modules, names)
    for module, own in modules.items():
        if own.pop(SCALED_FP8, None) is not None:
            checkpoint.skipped[names[module, SCALED_FP8]] = "is a mark of FP8 layers"
        if MARK in own:
            place = f"{module}.{MARK}"
            text = comfy_kitchen.mark_text(place, own.pop(MARK))
            marks[module] = parse_json(place, text), place
            if not own:
                with noted(place, errors):
                    raise _C.Error(f"{place}: marks a layer that has no tensors")
                del marks[module]
    return marks | by_metadata(modules, metadata, errors)


def by_scaled_fp8(modules: Mapping[str, dict[str, Tensor]], names: dict[tuple[str, str], str]) -> dict[str, Mark]:
    """The marks that a tensor scaled_fp8 stands for. Their scales get the names that they have in newer files."""
    marks: dict[str, Mark] = {}
    for place, full in [(module, own[SCALED_FP8].numel() == 2) for module, own in modules.items() if SCALED_FP8 in own]:
        for module, own in modules.items():
            if "scale_weight" not in own or not f"{module}.".startswith(f"{place}." if place else ""):
                continue
            for old, new in NAMES_OF_SCALED_FP8.items():
                if old in own:
                    own[new], names[module, new] = own.pop(old), names[module, old]
            marks[module] = {"format": FP8_FORMAT, FULL: full}, names[place, SCALED_FP8]
    return marks


def by_metadata(
    modules: Mapping[str, dict[str, Tensor]], metadata: Mapping[str, str], errors: Errors
) -> dict[str, Mark]:
    """The marks in the metadata of the file."""
    if METADATA not in metadata:
        return {}
    marks: dict[str, Mark] = {}
    where = f"{METADATA}.layers"
    layers = table(parse_json(METADATA, metadata[METADATA]), "layers", f"{METADATA}.")
    patterns, found = Names(list(layers), where), Modules(modules)
    patterns.bind(found)
    for pattern in patterns.unmatched(found):
        with noted(f"{where}: {pattern}", errors):
            raise _C.Error(f"{where}: {shown(pattern)} matches no layer of the checkpoint")
    for module, own in modules.items():
        match = patterns.find(module)
        if match is not None and (not match.subtree or has_scale(own)):
            marks[module] = dict(table(layers, match.pattern, f"{where}.")), f"{where} has {match}"
    return marks


def keeps_inputs(module: str, mark: Mapping[str, Any], block: int | None) -> bool:
    """Whether a mark says that a layer's inputs stay in 16 bits. Rejects options that change what it computes."""
    where = f"{module}.{MARK}: "
    check_keys(where, mark, COMFY)
    for key in ("group_size", "block_size"):
        if block is not None:
            check_block(where, mark, key, block)
    check_off(where, mark, ("convrot",), "a rotation of the inputs at run time")
    return check_flag(where, mark, FULL)


# ---- layers, a reader for each format ----


def add_nvfp4(
    checkpoint: Checkpoint,
    module: str,
    own: dict[str, Tensor],
    mark: Mapping[str, Any],
    size: Size | None,
    wanted: str | None,
) -> None:
    stored = own["weight"].shape[0] if "weight" in own and own["weight"].ndim else None
    rows = size[0] if size is not None and round_up(size[0], comfy_kitchen.ROWS) == stored else None
    mode = None if keeps_inputs(module, mark, BLOCK) else "nvfp4"
    mode = chosen(own, INPUT_SCALE, mode, mode if wanted == AUTO else wanted)
    read = functools.partial(comfy_kitchen.read, rows=rows, activations=mode)
    add_layer(checkpoint, module, own, "weight", read)


def add_fp8(
    checkpoint: Checkpoint,
    module: str,
    own: dict[str, Tensor],
    mark: Mapping[str, Any],
    size: Size | None,
    wanted: str | None,
) -> None:
    """Without an input scale inputs stay in 16 bits. ComfyUI rounds them to FP8 as they are, where the GPU multiplies
    FP8."""
    keeps = keeps_inputs(module, mark, None)
    with prefix_errors(module):
        weight_of(own, FP8_FORMAT)
        mine = {local: t for local, t in own.items() if local != INPUT_SCALE or not keeps}
        mode = fp8.STATIC if INPUT_SCALE in mine else fp8.W8A16
        checkpoint.fp8[module] = fp8.read(mine, NAME, mode, wanted is None)


def add_mxfp8(
    checkpoint: Checkpoint,
    module: str,
    own: dict[str, Tensor],
    mark: Mapping[str, Any],
    size: Size | None,
    wanted: str | None,
) -> None:
    mode = fp8.MXFP8 if keeps_inputs(module, mark, GROUP) else fp8.MXFP8_INPUTS
    if own.pop(INPUT_SCALE, None) is not None:
        checkpoint.skipped[f"{module}.{INPUT_SCALE}"] = "is of no use: MXFP8 inputs have a scale for each 32 values"
    with prefix_errors(module):
        weight, bias = weight_of(own, MXFP8_FORMAT), own.get("bias")
        stored = n, k = weight.shape
        if size is not None and tuple(round_up(x, GROUP) for x in size) == stored:
            n, k = size
        elif bias is not None and round_up(bias.numel(), GROUP) == n:
            n = bias.numel()
        check_padding(weight, k)
        scale = group_scales(own, *stored)[:n, : round_up(k, GROUP) // GROUP]
        mine = {**own, "weight": weight[:n, :k].contiguous(), "weight_scale": scale.contiguous()}
        checkpoint.fp8[module] = fp8.read(mine, NAME, mode, wanted is None)


READERS = {NVFP4: add_nvfp4, FP8_FORMAT: add_fp8, MXFP8_FORMAT: add_mxfp8}


def weight_of(own: Mapping[str, Tensor], kind: str) -> Tensor:
    if "weight" not in own:
        raise _C.Error(f"weight: is missing; a layer of {kind} has weight, weight_scale")
    weight = own["weight"]
    check_tensor("weight", weight, FP8)
    if weight.ndim != 2:
        raise _C.Error(f"weight: has {weight.ndim} dimensions; must have 2 ([N, K])")
    return weight


def group_scales(own: Mapping[str, Tensor], rows: int, columns: int) -> Tensor:
    """The e8m0 scales [N, K/32] of MXFP8 as bytes."""
    if "weight_scale" not in own:
        raise _C.Error(f"weight_scale: is missing; a layer of {MXFP8_FORMAT} has weight, weight_scale")
    scale, groups = own["weight_scale"], round_up(columns, GROUP) // GROUP
    wanted = [round_up(rows, 128), round_up(groups, 4)]
    if scale.dtype not in (torch.uint8, fp8.E8M0) or scale.numel() != wanted[0] * wanted[1]:
        raise _C.Error(
            f"weight_scale: is {short(scale.dtype)} {list(scale.shape)}; must be uint8 or {short(fp8.E8M0)} {wanted}, "
            f"the 128x4 layout for a weight of {rows} x {columns}"
        )
    return _api.unswizzle(aligned(scale.view(torch.uint8), 16).reshape(-1), rows, groups)


def check_padding(weight: Tensor, columns: int) -> None:
    """Rejects a weight with values in columns past those of the model's layer."""
    if columns < weight.shape[1] and not weight.is_meta and bool(weight[:, columns:].float().any()):
        raise _C.Error(
            f"weight: has values in columns {columns} to {weight.shape[1] - 1}; must have zeros there, as the model's "
            f"layer has {columns} inputs"
        )
