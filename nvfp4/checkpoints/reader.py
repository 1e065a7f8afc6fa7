"""A checkpoint's NVFP4 layers from files or tensors, without a model."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4._text import shown
from nvfp4.checkpoints import comfy_kitchen, compressed_tensors, modelopt, others, torchao
from nvfp4.checkpoints.common import (
    AUTO,
    W4A4,
    W4A4_DYNAMIC,
    W4A16,
    Checkpoint,
    Recipe,
    add_layer,
    by_module,
    noted,
    table,
)
from nvfp4.checkpoints.files import READER_ERRORS, check_file, check_name, is_there, read_json
from nvfp4.linear import Linear
from nvfp4.packed import PackedLinear

KV_CACHE = ("k_scale", "v_scale", "kv_scale", "q_scale", "prob_scale")  # names of scales beside a layer
INDEX = "model.safetensors.index.json"
ACTIVATIONS = {W4A4: "nvfp4", W4A4_DYNAMIC: "nvfp4", W4A16: None, AUTO: AUTO}
FORMATS = {compressed_tensors.NAME: compressed_tensors, modelopt.NAME: modelopt}


def read(
    source: str | Path | Mapping[str, Tensor],
    format: str | None = None,
    rows: Mapping[str, int] | None = None,
    errors: dict[str, str] | None = None,
    mmap: bool = True,
) -> Checkpoint:
    """A checkpoint without a model.

    Args:
        source, format, mmap: as of load.
        rows: N of layers that the format pads.
        errors: where the error message of a layer goes, instead of being raised.
    """
    metadata: dict[str, str] = {}
    recipe, where = None, "source"
    if isinstance(source, Mapping):
        tensors = dict(source)
    else:
        where, path = str(source), Path(source)
        if path.suffix == ".gguf" and not path.is_dir():
            return others.read_gguf(path, errors, mmap)
        tensors, metadata = read_files(path, mmap)
        if format is None and not torchao.is_described(metadata) and not comfy_kitchen.is_marked(tensors, metadata):
            recipe = read_recipe(path if path.is_dir() else path.parent)
    if recipe is None:
        if torchao.is_described(metadata):
            return others.read_torchao(tensors, metadata, errors)
        if format == comfy_kitchen.NAME or comfy_kitchen.is_marked(tensors, metadata):
            return others.read_comfy(tensors, metadata, rows or {}, errors)
        recipe = Recipe(recognised(where, tensors), lambda name: AUTO)
    return sort(tensors, recipe, errors)


# ---- files ----


def read_files(path: Path, mmap: bool = True) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a file, of the files that an index names, or of the folder's *.safetensors files; mapped, or read
    into memory. And the files' metadata."""
    try:
        import safetensors.torch
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError:
        raise ModuleNotFoundError("nvfp4.load needs safetensors: pip install safetensors", name="safetensors") from None
    index, folder = path / INDEX, path if path.is_dir() else None
    expected: dict[str, str] = {}
    if folder is None:
        files = [path]
    elif is_there(index):
        expected = weight_map(index)
        files = [path / name for name in sorted(set(expected.values()))]
    else:
        files = sorted(path.glob("*.safetensors"))
    if not files:
        hint = "; of GGUF give the file itself" if any(path.glob("*.gguf")) else ""
        raise _C.Error(f"{path}: has no *.safetensors file{hint}")
    tensors: dict[str, Tensor] = {}
    metadata: dict[str, str] = {}
    for file in files:
        if expected and not is_there(file):
            raise _C.Error(f"{file}: does not exist, but {INDEX} names it")
        check_file(file, folder)
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
    for name, file_name in expected.items():
        if name not in tensors:
            raise _C.Error(f"{name}: is not in {file_name}, where {INDEX} says it is")
    return tensors, metadata


def weight_map(index: Path) -> dict[str, str]:
    found = read_json(index, index.parent).get("weight_map")
    if not isinstance(found, dict) or not found or not all(isinstance(name, str) for name in found.values()):
        raise _C.Error(f"{index}: weight_map is {shown(found)}; must be an object of tensor names with file names")
    for name in set(found.values()):
        check_name(str(index), name)
    return found


def read_recipe(folder: Path) -> Recipe | None:
    """The recipe of config.json or hf_quant_config.json; None if neither says how the model is quantized."""
    for name in ("config.json", "hf_quant_config.json"):
        path = folder / name
        if not is_there(path):
            continue
        config: Mapping[str, Any] = read_json(path, folder)
        try:
            config = config if name == "hf_quant_config.json" else table(config, "quantization_config")
            if not config:
                continue
            method = modelopt.NAME if name == "hf_quant_config.json" else config.get("quant_method")
            if method not in list(FORMATS):
                raise _C.Error(f"quant_method is {shown(method)}; must be {' or '.join(FORMATS)}")
            return FORMATS[str(method)].recipe(config)
        except _C.Error as error:
            raise _C.Error(f"{path}: {error}") from None
    return None


def recognised(where: str, tensors: Mapping[str, Tensor]) -> str:
    """The format by the names of tensors."""
    if any(name.rpartition(".")[2] == "weight_packed" for name in tensors):
        return compressed_tensors.NAME
    if any(name.rpartition(".")[2] == "weight_scale_2" for name in tensors):
        return modelopt.NAME
    raise _C.Error(
        f"{where}: has neither a weight_packed (compressed-tensors) nor a weight_scale_2 (ModelOpt); "
        "no known format of NVFP4"
    )


# ---- tensors ----


def sort(tensors: Mapping[str, Tensor], recipe: Recipe, errors: dict[str, str] | None = None) -> Checkpoint:
    """Reads the layers; leaves what is none. With `errors`, notes the error of a layer there and goes on."""
    checkpoint = Checkpoint(recipe.format)
    for module, own in by_module(tensors).items():
        prefix = f"{module}." if module else ""
        for local in [local for local in own if local in KV_CACHE]:
            checkpoint.skipped[prefix + local] = "is a scale of the KV cache, which nvfp4 does not have"
            del own[local]
        mode = recipe.mode(module)
        if mode is not None and mode not in ACTIVATIONS:
            if any("scale" in local for local in own):  # a target "Linear" also matches the names of other modules
                checkpoint.skipped[module] = f"is quantized in another way: {mode}"
        elif is_layer(recipe.format, own):
            weight = "weight_packed" if "weight_packed" in own else "weight"
            with noted(module, errors):
                activations = layer_activations(prefix, own, recipe.format, mode)
                read_one = functools.partial(FORMATS[recipe.format].read, activations=activations)
                add_layer(checkpoint, module, own, weight, read_one)
            continue
        checkpoint.tensors |= {prefix + local: t for local, t in own.items()}
    return checkpoint


def layer_activations(prefix: str, own: Mapping[str, Tensor], format_name: str, mode: str | None) -> str | None:
    input_scale = FORMATS[format_name].INPUT_SCALE
    if mode is None:
        raise _C.Error(f"{prefix.rstrip('.')}: the configuration leaves it unquantized, but its tensors are NVFP4")
    if mode == W4A4 and input_scale not in own:
        raise _C.Error(f"{prefix}{input_scale}: is missing; the configuration says {mode}")
    return ACTIVATIONS[mode]


def is_layer(format_name: str, own: Mapping[str, Tensor]) -> bool:
    """Whether a module's tensors are an NVFP4 layer's, whole or not."""
    if format_name == compressed_tensors.NAME:
        return "weight_packed" in own or "weight_global_scale" in own
    weight = own.get("weight")
    return "weight_scale_2" in own or (weight is not None and weight.dtype == torch.uint8 and "weight_scale" in own)


# ---- a model's layers ----


def check_layer(name: str, packed: PackedLinear, modules: Mapping[str, torch.nn.Module]) -> None:
    old = modules.get(name)
    if old is None:
        raise _C.Error(f"{name}: is a layer of the checkpoint but no module of the model")
    if type(old) is not torch.nn.Linear and type(old) is not Linear:
        raise _C.Error(f"{name}: is a {type(old).__name__} in the model; must be a torch.nn.Linear")
    if not name:
        raise _C.Error("model: is the layer itself; use nvfp4.Linear.from_packed")
    ours, theirs = (packed.out_features, packed.in_features), (old.out_features, old.in_features)
    if ours != theirs:
        raise _C.Error(f"{name}: is {ours[0]} x {ours[1]} (N x K); must be {theirs[0]} x {theirs[1]} for the model")
    if (packed.bias is None) != (old.bias is None):
        has, has_not = ("model", "checkpoint") if packed.bias is None else ("checkpoint", "model")
        raise _C.Error(f"{name}.bias: is in the {has} but not in the {has_not}")
