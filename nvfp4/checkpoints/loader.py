"""nvfp4.load: a checkpoint's NVFP4 layers, alone or in a model."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nvfp4 import _C
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
    check_activations,
    check_scales,
    noted,
    table,
    with_activations,
)
from nvfp4.linear import Linear
from nvfp4.model import keep_hooks, prepare_saving
from nvfp4.packed import PackedLinear, check_type, short

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ParallelStyle

KV_CACHE = ("k_scale", "v_scale", "kv_scale", "q_scale", "prob_scale")  # names of scales beside a layer
INDEX = "model.safetensors.index.json"
ACTIVATIONS = {W4A4: "nvfp4", W4A4_DYNAMIC: "nvfp4", W4A16: None, AUTO: AUTO}
FORMATS = {compressed_tensors.NAME: compressed_tensors, modelopt.NAME: modelopt}


def load(
    source: str | Path | Mapping[str, Tensor],
    model: torch.nn.Module | None = None,
    format: str | None = None,
    mesh: DeviceMesh | None = None,
    plan: Mapping[str, ParallelStyle] | None = None,
    activations: str | None = AUTO,
) -> Checkpoint:
    """Reads a checkpoint of NVFP4 layers, and puts it into a model.

    Args:
        source: a folder with config.json and *.safetensors files, one such file, a GGUF file, or a dict of tensors by
            their full names. Files are mapped into memory: a tensor's bytes are read when they are used. A weight that
            a file does not align to 8 bytes is copied for its nvfp4.Linear, and so are all weights of GGUF and
            comfy-kitchen, whose nibbles have another order. Needs safetensors, or gguf.
        model: a model whose modules have the checkpoint's names. Each layer of the checkpoint replaces the
            torch.nn.Linear or nvfp4.Linear of its name, on that layer's device, or on the CPU and still in the mapped
            file if that was on the meta device. All other tensors are copied into the parameters and buffers of their
            names; those on the meta device become the file's tensors. Buffers that a state dict leaves out stay as they
            are. None: there is no model to change.
        format: None: what the source says. "comfy-kitchen" for such tensors without a mark (`comfy_quant` tensors, or
            `_quantization_metadata` of the file), whose names are ModelOpt's.
        mesh, plan: of torch's parallelize_module, with styles of nvfp4.parallel: a rank reads its slices alone.
        activations: "auto": each layer's mode is the checkpoint's. None: 16-bit activations in all layers (W4A16);
            stored input scales are dropped. "nvfp4": quantized activations in all layers (W4A4), with the stored input
            scale, or where there is none with a dynamic one. See nvfp4.Linear.

    The format and each layer's mode (W4A4 or W4A16), with its ignored names, are those of the configuration:
    `quantization_config` of config.json, or hf_quant_config.json. Without one, as for a dict, the format follows from
    the names, and a layer with an input scale is W4A4. A file of torchao describes its layers itself.

    Returns:
        A Checkpoint, which tells what was skipped: scales of a KV cache, and layers that are quantized in another way.
        Stacked experts [E, N, K/2] are in `experts`, one layer for each.

    Raises:
        nvfp4.Error: a file is missing or damaged, the format is unknown, a tensor is missing or has a wrong shape or
            dtype, a block scale is NaN or negative, all of a layer's are 0 but its values are not, or the model does
            not fit the checkpoint: it cannot take stacked experts. The message names the file or the tensor. The model
            is unchanged. So it is where a plan cannot split a layer.

    Example:
        >>> import nvfp4, torch
        >>> from nvfp4.checkpoints import modelopt
        >>> layer = nvfp4.Linear.from_linear(torch.nn.Linear(64, 32), activations=None)
        >>> tensors = {f"0.{name}": t for name, t in modelopt.write(layer.packed()).items()}
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32))
        >>> nvfp4.load(tensors, model).format, model[0]
        ('modelopt', Linear(in_features=64, out_features=32, bias=True, activations=None))
    """
    if format not in (None, comfy_kitchen.NAME):
        raise _C.Error(f"format: is {format!r}; must be None or {comfy_kitchen.NAME!r}: other sources say their own")
    check_activations(activations)
    check_type("source", source, (str, os.PathLike, Mapping), "a path, or a dict of tensors by name")
    if isinstance(source, Mapping):
        for name, t in source.items():
            check_type("source: a name", name, str, "a string")
            check_type(name, t, Tensor, "a torch.Tensor")
    if model is not None:
        check_type("model", model, torch.nn.Module, "a torch.nn.Module")
    if (mesh is None) != (plan is None):
        raise _C.Error("plan: and mesh must be given together")
    if plan is not None and model is None:
        raise _C.Error("plan: is given without a model; must be for one")
    rows = {} if model is None else others.rows_of(model)
    checkpoint = read(source, format, rows)
    for name, packed in checkpoint.layers.items():
        checkpoint.layers[name] = with_activations(packed, activations)
    for name, experts in checkpoint.experts.items():
        checkpoint.experts[name] = [with_activations(packed, activations) for packed in experts]
    if plan is None:
        check_scales(checkpoint)
    if model is not None:
        put(checkpoint, model, None if mesh is None or plan is None else (mesh, plan))
    return checkpoint


def read(
    source: str | Path | Mapping[str, Tensor],
    format: str | None = None,
    rows: Mapping[str, int] | None = None,
    errors: dict[str, str] | None = None,
) -> Checkpoint:
    """A checkpoint without a model.

    Args:
        source, format: as of load.
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
            return others.read_gguf(path, errors)
        tensors, metadata = read_files(path)
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


def read_files(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a file, of the files that an index names, or of the folder's *.safetensors files; mapped. And the
    files' metadata."""
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError:
        raise ModuleNotFoundError("nvfp4.load needs safetensors: pip install safetensors", name="safetensors") from None
    if not path.exists():
        raise _C.Error(f"{path}: does not exist")
    index = path / INDEX
    expected: dict[str, str] = {}
    if not path.is_dir():
        files = [path]
    elif index.exists():
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
        if not file.is_file():
            raise _C.Error(f"{file}: does not exist, but {INDEX} names it")
        try:
            with safe_open(str(file), framework="pt") as opened:
                metadata |= opened.metadata() or {}
                for name in sorted(opened.keys()):
                    if name in tensors:
                        raise _C.Error(f"{name}: is in {file.name} and in another file")
                    tensors[name] = opened.get_tensor(name)
        except SafetensorError as error:
            raise _C.Error(f"{file}: is no safetensors file, or damaged: {error}") from None
    for name, file_name in expected.items():
        if name not in tensors:
            raise _C.Error(f"{name}: is not in {file_name}, where {INDEX} says it is")
    return tensors, metadata


def weight_map(index: Path) -> dict[str, str]:
    found = read_json(index).get("weight_map")
    if not isinstance(found, dict) or not found or not all(isinstance(name, str) for name in found.values()):
        raise _C.Error(f"{index}: weight_map is {found!r}; must be an object of tensor names with file names")
    return found


def read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise _C.Error(f"{path}: is no file")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise _C.Error(f"{path}: is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise _C.Error(f"{path}: is a {type(content).__name__}; must be an object")
    return content


def read_recipe(folder: Path) -> Recipe | None:
    """The recipe of config.json or hf_quant_config.json; None if neither says how the model is quantized."""
    for name in ("config.json", "hf_quant_config.json"):
        path = folder / name
        if not path.exists():
            continue
        config: Mapping[str, Any] = read_json(path)
        try:
            config = config if name == "hf_quant_config.json" else table(config, "quantization_config")
            if not config:
                continue
            method = modelopt.NAME if name == "hf_quant_config.json" else config.get("quant_method")
            if method not in list(FORMATS):
                raise _C.Error(f"quant_method is {method!r}; must be {' or '.join(FORMATS)}")
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


# ---- the model ----


def put(
    checkpoint: Checkpoint,
    model: torch.nn.Module,
    split: tuple[DeviceMesh, Mapping[str, ParallelStyle]] | None = None,
) -> None:
    """Checks everything first, so that an error changes nothing.

    Args:
        split: load's mesh and plan.
    """
    for name, experts in checkpoint.experts.items():
        raise _C.Error(f"{name}: is a stack of {len(experts)} experts, which a model cannot take")
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, packed in checkpoint.layers.items():
        check_layer(name, packed, modules)
    replaced = {id(modules[name]) for name in checkpoint.layers}
    own = {
        f"{name}.{key}" if name else key: t
        for name, module in modules.items()
        if id(module) not in replaced
        for key, t in (*module._parameters.items(), *module._buffers.items())
        if t is not None
    }
    for name, t in checkpoint.tensors.items():
        if name.rpartition(".")[0] in checkpoint.skipped:
            raise _C.Error(f"{name}: cannot be put into the model: {checkpoint.skipped[name.rpartition('.')[0]]}")
        if name not in own:
            raise _C.Error(f"{name}: is in the checkpoint but not in the model")
        if own[name].shape != t.shape:
            raise _C.Error(f"{name}: shape is {list(t.shape)}; must be {list(own[name].shape)} for the model")
        if t.is_floating_point() != own[name].is_floating_point():
            raise _C.Error(f"{name}: dtype is {short(t.dtype)}; the model has {short(own[name].dtype)}")
    given = {id(own[name]) for name in checkpoint.tensors}  # a tied parameter has two names
    buffers = {name for name, module in modules.items() for key in module._non_persistent_buffers_set}
    for name, t in own.items():
        module, _, key = name.rpartition(".")
        temporary = module in buffers and key in modules[module]._non_persistent_buffers_set
        if id(t) not in given and not temporary:
            raise _C.Error(f"{name}: is in the model but not in the checkpoint")

    parts: dict[str, Linear] = {}
    styles: dict[str, ParallelStyle] = {}
    if split is not None:
        from nvfp4 import parallel  # here: imports torch.distributed.tensor, which takes a second

        parts, styles = parallel.split_layers(checkpoint.layers, model, *split)
        check_scales(checkpoint, parts)
    layers: dict[int, Linear] = {}
    for name, packed in checkpoint.layers.items():
        old = modules[name]
        device = old.weight.device
        layer = (parts[name] if name in parts else Linear.from_packed(packed)).train(old.training)
        keep_hooks(old, layer)
        layers[id(old)] = layer if name in parts or device.type == "meta" else layer.to(device)
    for module in list(modules.values()):
        for key, child in module._modules.items():
            if id(child) in layers:
                setattr(module, key, layers[id(child)])
    with torch.no_grad():
        fill(checkpoint.tensors, own, modules)
    if split is not None and styles:
        from torch.distributed.tensor.parallel import parallelize_module

        parallelize_module(model, split[0], styles, src_data_rank=None)
    prepare_saving(model)


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


def fill(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor], modules: Mapping[str, torch.nn.Module]) -> None:
    """Copies tensors into those of the model. One on the meta device is replaced, wherever the model has it."""
    new: dict[int, Tensor] = {}
    for name, t in tensors.items():
        old = own[name]
        if not old.is_meta:
            old.copy_(t)
        elif isinstance(old, torch.nn.Parameter):
            new[id(old)] = torch.nn.Parameter(t, requires_grad=old.requires_grad and t.is_floating_point())
        else:
            new[id(old)] = t
    owners: list[Any] = [own for module in modules.values() for own in (module._parameters, module._buffers)]
    for owner in owners:
        for key, t in owner.items():
            if t is not None and id(t) in new:
                owner[key] = new[id(t)]
