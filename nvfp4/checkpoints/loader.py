"""nvfp4.load: a checkpoint's NVFP4 layers, alone or in a model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4._saving import prepare_saving
from nvfp4.checkpoints import comfy_kitchen, others
from nvfp4.checkpoints.common import AUTO, Checkpoint, check_activations, check_scales, with_activations
from nvfp4.checkpoints.files import file_errors
from nvfp4.checkpoints.reader import check_layer, read
from nvfp4.linear import Linear
from nvfp4.modules import keep_hooks
from nvfp4.packed import check_type, short

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ParallelStyle


@file_errors("source")
def load(
    source: str | Path | Mapping[str, Tensor],
    model: torch.nn.Module | None = None,
    format: str | None = None,
    mesh: DeviceMesh | None = None,
    plan: Mapping[str, ParallelStyle] | None = None,
    activations: str | None = AUTO,
    mmap: bool = True,
) -> Checkpoint:
    """Reads a checkpoint of NVFP4 layers and, if a model is given, puts it into the model.

    Args:
        source (str, PathLike or dict): the checkpoint.
            It is a folder with config.json and *.safetensors files, one such file, a GGUF file, or a dict of tensors by
            their full names. Files need safetensors, or gguf.
            Files are mapped into memory: a tensor's bytes are read when they are used.
            A weight that a file does not align to 8 bytes is copied for its nvfp4.Linear. So are all weights of GGUF
            and comfy-kitchen, whose nibbles have another order.
        model (torch.nn.Module, optional): a model whose modules have the checkpoint's names. Default: None.
            Each layer of the checkpoint replaces the torch.nn.Linear or nvfp4.Linear of its name, on that layer's
            device.
            In place of a layer on the meta device it lies on the CPU, still in the mapped file.
            All other tensors are copied into the parameters and buffers of their names. A parameter or buffer on the
            meta device becomes the file's tensor.
            Buffers that a state dict leaves out stay as they are.
        format (str, optional): None or "comfy-kitchen". Default: None.
            None takes the format from the source.
            "comfy-kitchen" is for tensors of ComfyUI without a mark (`comfy_quant` tensors, or `_quantization_metadata`
            of the file), whose names are ModelOpt's.
        mesh (DeviceMesh, optional): the mesh, as for torch's parallelize_module. Default: None.
        plan (dict, optional): a plan for torch's parallelize_module, with styles of nvfp4.parallel. Default: None.
            mesh and plan are given together. A rank then reads its slices alone.
        activations (str, optional): the mode of the layers: "auto", "nvfp4" or None. Default: "auto".
            "auto" keeps each layer's mode in the checkpoint.
            "nvfp4" quantizes the activations in all layers (W4A4), with the stored input scale, or with a dynamic one
            where none is stored.
            None keeps 16-bit activations in all layers (W4A16); stored input scales are dropped. See nvfp4.Linear.
        mmap (bool, optional): whether a model's tensors on the CPU stay in the mapped files. Default: True.
            If another program truncates such a file later, the system ends this process by SIGBUS at the next use of
            what is missing.
            False reads files into memory, and they can then be changed or deleted. Reading takes twice the memory of
            the largest file.

    The configuration, `quantization_config` of config.json or hf_quant_config.json, gives the format, each layer's mode
    (W4A4 or W4A16) and the names of ignored layers. Without a configuration, as for a dict, the format follows from
    the names, and a layer with an input scale is W4A4. A file of torchao describes its layers itself.

    Returns:
        A Checkpoint. It tells what was skipped: scales of a KV cache, and layers that are quantized in another way.
        Stacked experts [E, N, K/2] are in `experts`, one layer for each.

    Raises:
        nvfp4.Error: a file is missing or damaged, or the format is unknown.
            A tensor is missing, or has a wrong shape or dtype.
            A block scale is NaN or negative, or all of a layer's scales are 0 but its values are not.
            The model does not fit the checkpoint, or the checkpoint has stacked experts, which no model can take.
            A plan cannot split a layer.
            The message names the file or the tensor. The model is unchanged.

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
    checkpoint = read(source, format, rows, mmap=mmap)
    for name, packed in checkpoint.layers.items():
        checkpoint.layers[name] = with_activations(packed, activations)
    for name, experts in checkpoint.experts.items():
        checkpoint.experts[name] = [with_activations(packed, activations) for packed in experts]
    if plan is None:
        check_scales(checkpoint)
    if model is not None:
        put(checkpoint, model, None if mesh is None or plan is None else (mesh, plan))
    return checkpoint


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
