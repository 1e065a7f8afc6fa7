"""A checkpoint's NVFP4 layers from files or tensors, without a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from nvfp4 import _C
from nvfp4.checkpoints import comfy_files, comfy_kitchen, compressed_tensors, modelopt, mxfp4, self_described, torchao
from nvfp4.checkpoints.checkpoint import Checkpoint
from nvfp4.checkpoints.comfy_kitchen import swap_nibbles
from nvfp4.checkpoints.configuration import PARAMS, read_recipe
from nvfp4.checkpoints.experts.naming import Place
from nvfp4.checkpoints.files import is_there
from nvfp4.checkpoints.grouping import grouped
from nvfp4.checkpoints.modules import read_modules
from nvfp4.checkpoints.nibble_order import order_of
from nvfp4.checkpoints.recipe import AUTO, Recipe, Verdict
from nvfp4.checkpoints.shards import is_mistral, read_files, unread_files
from nvfp4.checkpoints.tensors import check_kind
from nvfp4.checkpoints.unmarked_layout import HINT, SWIZZLED, layout_of
from nvfp4.layers.dense import large


def read(
    source: str | Path | Mapping[str, Tensor],
    format: str | None = None,
    sizes: Mapping[str, tuple[int, int]] | None = None,
    errors: dict[str, str] | None = None,
    mmap: bool = True,
    activations: str | None = AUTO,
    unwanted: Callable[[str], str | None] | None = None,
    gather: Callable[[Place], str | None] | None = None,
) -> Checkpoint:
    """A checkpoint without a model.

    Args:
        source, format, activations, mmap: as of load.
        sizes: N and K of layers, which the format may pad.
        errors: where the error message of a layer goes, instead of being raised.
        unwanted: why a tensor of this name is not read; None: it is.
        gather: the module of the model that takes all experts beside one, by its name; None: there is none.
    """
    metadata: dict[str, str] = {}
    unread: dict[str, str] = {}
    recipe, where, why = None, "source", ""
    if isinstance(source, Mapping):
        tensors = dict(source)
    else:
        where, path = str(source), Path(source)
        if path.suffix == ".gguf" and not path.is_dir():
            return self_described.read_gguf(path, errors, activations, mmap)
        tensors, metadata = read_files(path, mmap)
        unread = unread_files(path)
        if format is None and not torchao.is_described(metadata) and not comfy_kitchen.is_marked(tensors, metadata):
            folder = path if path.is_dir() else path.parent
            recipe = read_recipe(folder, is_there(folder / PARAMS) and is_mistral(path))
    for key, t in tensors.items():
        check_kind(key, t)
    if recipe is None and torchao.is_described(metadata):
        checkpoint = self_described.read_torchao(tensors, metadata, errors, activations)
    elif recipe is None and (format == comfy_kitchen.NAME or comfy_kitchen.is_marked(tensors, metadata)):
        checkpoint = comfy_files.read_comfy(tensors, metadata, sizes or {}, errors, activations)
    else:
        if recipe is None:
            name = recognised(where, tensors)
            if name == modelopt.NAME and format is None:
                layout = layout_of(where, grouped(tensors)[0])
                why = f", and the layout is {layout.name} by {layout.why}"
                if layout.name == SWIZZLED:
                    return read_swizzled(where, tensors, why, sizes or {}, errors, activations)
            recipe = Recipe(name, lambda module: Verdict(AUTO, f"its tensors have the names of {name}{why}"))
        if format not in (None, recipe.format):
            raise _C.Error(f"format: is {format!r}, but {where} is a checkpoint of {recipe.format}")
        checkpoint = read_modules(tensors, recipe, errors, activations, unwanted, gather)
        if why and errors is None and order_of(checkpoint) == "reversed":
            raise _C.Error(f"{where}: has the names of ModelOpt, but the nibbles of each byte look reversed; {HINT}")
    checkpoint.skipped |= unread
    return checkpoint


def read_swizzled(
    where: str,
    tensors: Mapping[str, Tensor],
    why: str,
    sizes: Mapping[str, tuple[int, int]],
    errors: dict[str, str] | None,
    activations: str | None,
) -> Checkpoint:
    """Layers of comfy-kitchen without a mark, if the data tell the order of the nibbles, which is an option there."""
    checkpoint = comfy_files.read_comfy(tensors, {}, sizes, errors, activations)
    order = order_of(checkpoint)
    if order is None:
        raise _C.Error(f"{where}: no mark says which nibble comes first{why}, and the data do not tell; {HINT}")
    if order == "reversed":
        checkpoint.layers = {name: replace(x, weight=swap_nibbles(x.weight)) for name, x in checkpoint.layers.items()}
    first = "high" if order == "in order" else "low"
    for name in checkpoint.layers:
        checkpoint.why[name] = f"it has a weight_scale_2{why}; other tensors show that the {first} nibble comes first"
    return checkpoint


# ---- files ----


def recognised(where: str, tensors: Mapping[str, Tensor]) -> str:
    """The format by the names of tensors."""
    if any(name.endswith("weight_packed") for name in tensors):
        return compressed_tensors.NAME
    if any(name.endswith("weight_scale_2") for name in tensors):
        return modelopt.NAME
    if any(mxfp4.names_of(own) is not None for own in grouped(tensors)[0].values()):
        return mxfp4.NAME
    raise _C.Error(
        f"{where}: has no weight_packed (compressed-tensors), no weight_scale_2 (ModelOpt) and no MXFP4 layer; "
        "no known format of NVFP4"
    )


# ---- tensors ----


def report_dense(checkpoint: Checkpoint) -> None:
    """Notes the large tensors that are in no NVFP4 or FP8 layer."""
    checkpoint.other_bytes = sum(t.nbytes for t in checkpoint.tensors.values())
    everything = checkpoint.packed_bytes + checkpoint.fp8_bytes + checkpoint.other_bytes
    checkpoint.dense = large(checkpoint.tensors, everything)


# ---- a model's layers ----
