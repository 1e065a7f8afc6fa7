"""A checkpoint's NVFP4 layers from files or tensors, without a model."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4._text import shown
from nvfp4.checkpoints import comfy_kitchen, compressed_tensors, fp8, kv_cache, modelopt, self_described, torchao
from nvfp4.checkpoints.comfy_kitchen import swap_nibbles
from nvfp4.checkpoints.common import (
    AUTO,
    W4A4,
    W4A4_DYNAMIC,
    W4A16,
    Checkpoint,
    Recipe,
    Verdict,
    add_layer,
    chosen,
    noted,
    table,
)
from nvfp4.checkpoints.experts.container import Container, Place, place_of
from nvfp4.checkpoints.files import READER_ERRORS, check_file, is_there, read_json
from nvfp4.checkpoints.grouping import check_unclaimed, grouped, has_scale, keep, other_kind
from nvfp4.checkpoints.names import Modules
from nvfp4.checkpoints.nibble_order import order_of
from nvfp4.checkpoints.shards import files_of, find_index, parts_of, unread_files, weight_map
from nvfp4.checkpoints.unmarked_layout import HINT, SWIZZLED, layout_of
from nvfp4.layers.fp8 import Fp8Linear, Fp8Tensors
from nvfp4.layers.linear import Linear
from nvfp4.layers.packed import PackedLinear, prefix_errors
from nvfp4.layers.traversal import as_linear, is_plain, large

HF_QUANT = "hf_quant_config.json"
ACTIVATIONS = {W4A4: "nvfp4", W4A4_DYNAMIC: "nvfp4", W4A16: None, AUTO: AUTO}
FORMATS = {compressed_tensors.NAME: compressed_tensors, modelopt.NAME: modelopt}


def read(
    source: str | Path | Mapping[str, Tensor],
    format: str | None = None,
    rows: Mapping[str, int] | None = None,
    errors: dict[str, str] | None = None,
    mmap: bool = True,
    activations: str | None = AUTO,
    unwanted: Callable[[str], str | None] | None = None,
    gather: Callable[[Place], str | None] | None = None,
) -> Checkpoint:
    """A checkpoint without a model.

    Args:
        source, format, activations, mmap: as of load.
        rows: N of layers that the format pads.
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
            recipe = read_recipe(path if path.is_dir() else path.parent)
    if recipe is None and torchao.is_described(metadata):
        checkpoint = self_described.read_torchao(tensors, metadata, errors, activations)
    elif recipe is None and (format == comfy_kitchen.NAME or comfy_kitchen.is_marked(tensors, metadata)):
        checkpoint = self_described.read_comfy(tensors, metadata, rows or {}, errors, activations)
    else:
        if recipe is None:
            name = recognised(where, tensors)
            if name == modelopt.NAME and format is None:
                layout = layout_of(where, grouped(tensors)[0])
                why = f", and the layout is {layout.name} by {layout.why}"
                if layout.name == SWIZZLED:
                    return read_swizzled(where, tensors, why, rows or {}, errors, activations)
            recipe = Recipe(name, lambda module: Verdict(AUTO, f"its tensors have the names of {name}{why}"))
        if format not in (None, recipe.format):
            raise _C.Error(f"format: is {format!r}, but {where} is a checkpoint of {recipe.format}")
        checkpoint = sort(tensors, recipe, errors, activations, unwanted, gather)
        if why and errors is None and order_of(checkpoint) == "reversed":
            raise _C.Error(f"{where}: has the names of ModelOpt, but the nibbles of each byte look reversed; {HINT}")
    checkpoint.skipped |= unread
    return checkpoint


def read_swizzled(
    where: str,
    tensors: Mapping[str, Tensor],
    why: str,
    rows: Mapping[str, int],
    errors: dict[str, str] | None,
    activations: str | None,
) -> Checkpoint:
    """Layers of comfy-kitchen without a mark, if the data tell the order of the nibbles, which is an option there."""
    checkpoint = self_described.read_comfy(tensors, {}, rows, errors, activations)
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


def read_files(path: Path, mmap: bool = True) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a checkpoint's files, mapped or read into memory, and the files' metadata."""
    if not path.is_dir():
        check_file(path)
    index = find_index(path)
    expected = {} if index is None else weight_map(index)
    if index is None or (not path.is_dir() and path != index and path.name not in expected.values()):
        files, expected = files_of(path)[0] if path.is_dir() else parts_of(path), {}
    else:
        files = [index.parent / name for name in sorted(set(expected.values()))]
    if not files:
        hint = "; of GGUF give the file itself" if any(path.glob("*.gguf")) else ""
        raise _C.Error(f"{path}: has no *.safetensors file{hint}")
    by = "" if index is None else index.name
    for file in files:
        if expected and not is_there(file):
            raise _C.Error(f"{file}: does not exist, but {by} names it")
        check_file(file, None if file == path else path if path.is_dir() else path.parent)
    tensors, metadata = read_tensors(files, mmap)
    for name, file_name in expected.items():
        if name not in tensors:
            raise _C.Error(f"{name}: is not in {file_name}, where {by} says it is")
    return tensors, metadata


def read_tensors(files: Iterable[Path], mmap: bool = True) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors and the metadata of *.safetensors files, which are regular files."""
    try:
        import safetensors.torch
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError:
        raise ModuleNotFoundError("nvfp4.load needs safetensors: pip install safetensors", name="safetensors") from None
    tensors: dict[str, Tensor] = {}
    metadata: dict[str, str] = {}
    for file in files:
        try:
            if mmap:
                with safe_open(str(file), framework="pt") as opened:
                    metadata |= opened.metadata() or {}
                    own = {name: opened.get_tensor(name) for name in sorted(opened.keys())}
            else:
                content = file.read_bytes()
                own = safetensors.torch.load(content)  # checks the header's length
                metadata |= json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__", {})
        except (SafetensorError, *READER_ERRORS) as error:
            raise _C.Error(f"{file}: is no safetensors file, or damaged: {error}") from None
        for name in own:
            if name in tensors:
                raise _C.Error(f"{name}: is in {file.name} and in another file")
        tensors |= own
    return tensors, metadata


def read_recipe(folder: Path) -> Recipe | None:
    """The recipe of config.json or hf_quant_config.json; None if neither says how the model is quantized. Where the
    first does not describe the layers, the second does if it is there."""
    given: dict[str, Mapping[str, Any]] = {}
    for name in ("config.json", HF_QUANT):
        path = folder / name
        if not is_there(path) or describes(given.get("config.json", {})):
            continue
        config: Mapping[str, Any] = read_json(path, folder)
        try:
            if name != HF_QUANT:  # models of text and images may have it in the part for text
                text = table(config, "text_config")
                config = table(config, "quantization_config") or table(text, "quantization_config", "text_config.")
        except _C.Error as error:
            raise _C.Error(f"{path}: {error}") from None
        if config:
            given[name] = config
    name = HF_QUANT if HF_QUANT in given else "config.json"
    if name not in given:
        return None
    if given.get("config.json", {}).get("config_groups") and not describes(unwrapped(given[name])):
        name = "config.json"
    try:
        method = modelopt.NAME if name == HF_QUANT else given[name].get("quant_method")
        if method == modelopt.FP8 and modelopt.has_nvfp4(given[name]):
            method = modelopt.NAME
        if method not in list(FORMATS):
            raise _C.Error(f"quant_method is {shown(method)}; must be {' or '.join(FORMATS)}")
        return FORMATS[str(method)].recipe(given[name])
    except _C.Error as error:
        raise _C.Error(f"{folder / name}: {error}") from None


def unwrapped(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of hf_quant_config.json that describes layers."""
    own = config.get("quantization")
    return own if isinstance(own, Mapping) else config


def describes(config: Mapping[str, Any]) -> bool:
    """Whether `quantization_config` of config.json says enough, so that hf_quant_config.json need not be read."""
    if config.get("quant_method") == modelopt.FP8:
        return modelopt.has_nvfp4(config)
    return bool(config) and (config.get("quant_algo") != modelopt.MIXED or bool(config.get("quantized_layers")))


def recognised(where: str, tensors: Mapping[str, Tensor]) -> str:
    """The format by the names of tensors."""
    if any(name.endswith("weight_packed") for name in tensors):
        return compressed_tensors.NAME
    if any(name.endswith("weight_scale_2") for name in tensors):
        return modelopt.NAME
    raise _C.Error(
        f"{where}: has neither a weight_packed (compressed-tensors) nor a weight_scale_2 (ModelOpt); "
        "no known format of NVFP4"
    )


# ---- tensors ----


def sort(
    tensors: Mapping[str, Tensor],
    recipe: Recipe,
    errors: dict[str, str] | None = None,
    wanted: str | None = AUTO,
    unwanted: Callable[[str], str | None] | None = None,
    gather: Callable[[Place], str | None] | None = None,
) -> Checkpoint:
    """Reads the layers; leaves what is none.

    Args:
        errors: where the error message of a layer goes, instead of being raised.
        wanted: load's `activations`.
        unwanted, gather: as of read; a module whose tensors are all unwanted may be quantized in any way.
    """
    checkpoint = Checkpoint(recipe.format, skipped=dict(recipe.options))
    cache: dict[str, Tensor] = {}
    modules, names = grouped(tensors)
    check_marks(recipe, modules, errors)
    for module, own in modules.items():
        prefix = f"{module}." if module else ""
        place = place_of(module) if gather is not None else None
        target = None if place is None or gather is None else gather(place)
        reason = unwanted_module(unwanted, [names[module, local] for local in own]) if target is None else None
        if reason is not None:
            checkpoint.skipped[module] = reason
            continue
        for local in [local for local in own if local in kv_cache.NAMES]:
            checkpoint.skipped[names[module, local]] = kv_cache.REASON
            cache[names[module, local]] = own.pop(local)
        verdict, other, ours = recipe.look(module), other_kind(own), is_layer(recipe.format, own)
        named = (verdict.subtree if verdict.mode is None else verdict.mode, *verdict.others)
        if (eight := fp8.chosen(own, named)) is not None:
            if target is not None:
                raise _C.Error(f"{module}: is FP8 and one of the experts {target} of the model; must be NVFP4")
            checkpoint.why[module] = verdict.why
            with noted(module, errors), prefix_errors(module):
                checkpoint.fp8[module] = fp8.read(own, recipe.format, eight, wanted is None)
            continue
        mode = verdict.subtree if ours and verdict.mode is None and verdict.subtree else verdict.mode
        excluded = mode is not None and (mode in fp8.ACTIVATIONS or compressed_tensors.contradicts(mode))
        if ours and excluded and mode not in ACTIVATIONS:
            mode = next((other for other in verdict.others if other in ACTIVATIONS), None)
            if mode is None:
                with noted(module, errors):
                    raise _C.Error(f"{module}: is {verdict.mode} by the configuration, but its tensors are NVFP4")
                continue
        if mode is not None and mode not in ACTIVATIONS:
            if has_scale(own) or other:  # a target "Linear" also matches the names of other modules
                checkpoint.skipped[module] = f"is quantized in another way: {mode}"
                checkpoint.why[module] = verdict.why
        elif ours:
            weight = "weight_packed" if "weight_packed" in own else "weight"
            checkpoint.why[module] = verdict.why
            if place is not None and target is not None:
                joined = any(names[module, local] == f"{module}_{local}" for local in own)
                gather_layer(checkpoint, target, place, own, recipe.format, mode, wanted, joined)
                continue
            with noted(module, errors):
                check_mode(prefix, own, recipe.format, mode, wanted)
                input_scale = FORMATS[recipe.format].INPUT_SCALE
                activations = chosen(own, input_scale, ACTIVATIONS[str(mode)], wanted, mode == W4A4_DYNAMIC)
                read_one = functools.partial(FORMATS[recipe.format].read, activations=activations)
                add_layer(checkpoint, module, own, weight, read_one, rows=True)
            continue
        elif other:
            checkpoint.skipped[module] = f"is quantized in another way: {other}"
            checkpoint.why[module] = verdict.why
        keep(checkpoint, module, own, names)
    checkpoint.kv_cache = kv_cache.KvCache(recipe.format, cache, recipe.kv_cache)
    check_unclaimed(checkpoint, errors)
    return checkpoint


def unwanted_module(unwanted: Callable[[str], str | None] | None, names: list[str]) -> str | None:
    """Why none of a module's tensors is read; None: one is."""
    if unwanted is None:
        return None
    first = unwanted(names[0])
    return first if first is not None and all(unwanted(name) for name in names[1:]) else None


def gather_layer(
    checkpoint: Checkpoint,
    target: str,
    place: Place,
    own: dict[str, Tensor],
    format_name: str,
    mode: str | None,
    wanted: str | None,
    joined: bool,
) -> None:
    """Adds a layer of an expert, or a stack, to the experts of a module of the model. Some may lack an input scale."""
    format = FORMATS[format_name]
    container = checkpoint.containers.setdefault(target, Container(place.container, format, wanted))
    if container.name != place.container:
        raise _C.Error(f"{place.container}: and {container.name} are both {target} of the model")
    check_mode(f"{place.container}.{place.local.format(place.expert)}.", own, format_name, mode, None)
    dynamic = mode == W4A4_DYNAMIC
    activations = chosen(own, format.INPUT_SCALE, ACTIVATIONS[str(mode)], wanted, dynamic)
    container.add(place, own, activations, joined, dynamic)


def report_dense(checkpoint: Checkpoint) -> None:
    """Notes the large tensors that are in no NVFP4 or FP8 layer."""
    checkpoint.other_bytes = sum(t.nbytes for t in checkpoint.tensors.values())
    everything = checkpoint.packed_bytes + checkpoint.fp8_bytes + checkpoint.other_bytes
    checkpoint.dense = large(checkpoint.tensors, everything)


def check_marks(recipe: Recipe, modules: Mapping[str, Any], errors: dict[str, str] | None) -> None:
    """Rejects a configuration that describes layers which the checkpoint does not have."""
    found = Modules(modules)
    for patterns in recipe.names:
        patterns.bind(found)
    for patterns in recipe.marks:
        for pattern in patterns.unmatched(found):
            with noted(f"{patterns.where}: {pattern}", errors):
                raise _C.Error(f"{patterns.where}: {shown(pattern)} matches no layer of the checkpoint")


def check_mode(prefix: str, own: Mapping[str, Tensor], format_name: str, mode: str | None, wanted: str | None) -> None:
    input_scale = FORMATS[format_name].INPUT_SCALE
    if mode is None:
        raise _C.Error(f"{prefix.rstrip('.')}: the configuration leaves it unquantized, but its tensors are NVFP4")
    if mode == W4A4 and wanted == AUTO and input_scale not in own:
        raise _C.Error(f"{prefix}{input_scale}: is missing; the configuration says {mode}")


def is_layer(format_name: str, own: Mapping[str, Tensor]) -> bool:
    """Whether a module's tensors are an NVFP4 layer's, whole or not."""
    if other_kind(own):
        return False
    if format_name == compressed_tensors.NAME:
        return "weight_packed" in own or "weight_global_scale" in own
    weight = own.get("weight")
    return "weight_scale_2" in own or (weight is not None and weight.dtype == torch.uint8 and "weight_scale" in own)


# ---- a model's layers ----


def check_layer(name: str, packed: PackedLinear | Fp8Tensors, modules: Mapping[str, torch.nn.Module]) -> None:
    old = modules.get(name)
    if old is None:
        stack = name.partition(".experts.")[0] + ".experts"
        if ".experts." in name and stack in modules:
            kind = type(modules[stack]).__name__
            raise _C.Error(f"{name}: is one of the experts of a {kind} in the model, which nvfp4 does not know")
        raise _C.Error(f"{name}: is a layer of the checkpoint but no module of the model")
    if not is_plain(old) and type(old) not in (Linear, Fp8Linear):
        raise _C.Error(f"{name}: is a {type(old).__name__} in the model; must be a torch.nn.Linear")
    if not name:
        kind = "Linear" if isinstance(packed, PackedLinear) else "Fp8Linear"
        raise _C.Error(f"model: is the layer itself; use nvfp4.{kind}.from_packed")
    dense = old if isinstance(old, Fp8Linear) else as_linear(old)
    assert dense is not None
    ours, theirs = (packed.out_features, packed.in_features), (dense.out_features, dense.in_features)
    if ours != theirs:
        raise _C.Error(f"{name}: is {ours[0]} x {ours[1]} (N x K); must be {theirs[0]} x {theirs[1]} for the model")
    if (packed.bias is None) != (old.bias is None):
        has, has_not = ("model", "checkpoint") if packed.bias is None else ("checkpoint", "model")
        raise _C.Error(f"{name}.bias: is in the {has} but not in the {has_not}")
