"""nvfp4.load: a checkpoint's NVFP4 layers, alone or in a model."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4._text import unwatched, watched
from nvfp4.checkpoints import comfy_files, comfy_kitchen, fp8, kv_cache, modelopt
from nvfp4.checkpoints.checkpoint import Checkpoint, check_scales
from nvfp4.checkpoints.experts.targets import gatherer, made
from nvfp4.checkpoints.files import file_errors
from nvfp4.checkpoints.fit import (
    check_layers,
    check_tensors,
    fit,
    missing_heads,
    own_tensors,
    renaming,
    unwanted_by,
)
from nvfp4.checkpoints.read import read, report_dense
from nvfp4.checkpoints.recipe import AUTO
from nvfp4.checkpoints.tensors import check_activations
from nvfp4.layers.checks import check_type
from nvfp4.layers.dense import find_dense
from nvfp4.layers.experts.stack import Stack
from nvfp4.layers.fp8 import Fp8Linear, Fp8Tensors
from nvfp4.layers.hosts import layers_replaced
from nvfp4.layers.invariance import check_invariant, set_batch_invariant
from nvfp4.layers.linear import Linear
from nvfp4.layers.packed import PackedLinear
from nvfp4.layers.traversal import keep_hooks

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
    batch_invariant: bool = False,
) -> Checkpoint:
    """Reads a checkpoint of NVFP4 layers, and FP8 layers beside them. If a model is given, puts it into the model.

    Args:
        source (str, PathLike or dict): the checkpoint.
            It is a folder with config.json and *.safetensors files, one such file, a GGUF file, or a dict of tensors by
            their full names. Files need safetensors, or gguf.
            One file of a checkpoint in several files (-00001-of-00003) stands for all.
            Files are mapped into memory: a tensor's bytes are read when they are used.
            A weight that a file does not align to 8 bytes is copied for its nvfp4.Linear. All weights of GGUF and
            comfy-kitchen are copied too, since their nibbles have another order.
        model (torch.nn.Module, optional): a model. Default: None.
            Its modules have the checkpoint's names, or, in a model of transformers, those that transformers makes of
            them.
            Each layer of the checkpoint replaces the torch.nn.Linear, nvfp4.Linear or nvfp4.Fp8Linear of its name, on
            that layer's device. An nvfp4.Experts, or an nvfp4.Fp8Experts for FP8 experts, replaces a module of
            transformers that holds all experts of a mixture.
            In place of a layer on the meta device it lies on the CPU, still in the mapped file.
            All other tensors are copied into the parameters and buffers of their names. A parameter or buffer on the
            meta device becomes the file's tensor.
            Buffers that a state dict leaves out stay as they are.
            Tensors that the model's class leaves out are skipped, such as layers that predict further tokens (MTP).
            A head of a model of transformers that the checkpoint lacks stays as it is, with a warning.
        format (str, optional): None, "modelopt" or "comfy-kitchen". Default: None.
            None takes the format from the source.
            "modelopt" and "comfy-kitchen" are for tensors without a configuration or a mark (`comfy_quant` or
            `scaled_fp8` tensors, or `_quantization_metadata` of the file), which have the same names in both. With None
            their layout follows from the shapes, or from the data if they tell it; otherwise it is an error.
        mesh (DeviceMesh, optional): the mesh, as for torch's parallelize_module. Default: None.
        plan (dict, optional): a plan for torch's parallelize_module, with styles of nvfp4.parallel. Default: None.
            Give mesh and plan together. A rank then reads only its slices.
        activations (str, optional): the mode of the layers: "auto", "nvfp4" or None. Default: "auto".
            "auto" keeps each layer's mode in the checkpoint.
            "nvfp4" quantizes the activations in all layers (W4A4), with the stored input scale, or with a dynamic one
            where none is stored.
            None keeps 16-bit activations in all layers (W4A16); stored input scales are neither used nor checked. See
            nvfp4.Linear.
            FP8 layers keep their mode with "nvfp4", and 16-bit activations with None.
            An input scale that is missing, 0 or infinite is an error only where it is used. So None loads such a
            checkpoint, and "nvfp4" loads one without input scales.
        mmap (bool, optional): whether a model's tensors on the CPU stay in the mapped files. Default: True.
            If another program truncates such a file later, the system ends this process by SIGBUS at the next use of
            what is missing.
            False reads files into memory, and they can then be changed or deleted. Reading takes twice the memory of
            the largest file.
        batch_invariant (bool, optional): makes the bits of a sequence independent of its batch in all NVFP4 layers of
            the model, see set_batch_invariant. Default: False.

    The configuration, `quantization_config` of config.json or hf_quant_config.json, gives the format, each layer's mode
    (W4A4 or W4A16) and the names of ignored layers. Without a configuration, as for a dict, the format follows from
    the names, and a layer with an input scale is W4A4. A file of torchao describes its layers itself.

    Returns:
        A Checkpoint. It tells what was skipped: scales of a KV cache, and layers that are quantized in another way.
        FP8 layers are in `fp8`; in a model they are nvfp4.Fp8Linear.
        Stacked experts [E, N, K/2] are in `experts`, one layer for each. The experts of a model are in `mixtures`.
        `dense` names the large tensors that are neither NVFP4 nor FP8.

    Raises:
        nvfp4.Error: a file is missing or damaged, or the format is unknown.
            A tensor is missing, or has a wrong shape or dtype.
            A block scale is NaN or negative, or all of a layer's scales are 0 but its values are not.
            The model does not fit the checkpoint, or has experts that compute what nvfp4 does not know.
            A plan cannot split a layer.
            batch_invariant is True and a layer of the checkpoint is FP8, or W4A4 with dynamic input scales.
            The message names the file or the tensor. The model is unchanged.

    Examples:
        >>> import nvfp4, torch
        >>> from nvfp4.checkpoints import modelopt
        >>> layer = nvfp4.Linear.from_linear(torch.nn.Linear(64, 32), activations=None)
        >>> tensors = {f"0.{name}": t for name, t in modelopt.write(layer.packed()).items()}
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32))
        >>> nvfp4.load(tensors, model).format, model[0]
        ('modelopt', nvfp4.Linear(in_features=64, out_features=32, bias=True, W4A16))
    """
    check_format(format)
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
    check_type("batch_invariant", batch_invariant, bool, "a bool")
    for name, given in (("plan", plan is not None), ("batch_invariant", batch_invariant)):
        if given and model is None:
            raise _C.Error(f"{name}: is given without a model; must be for one")
    sizes = {} if model is None else comfy_files.sizes_of(model)
    renamed = None if model is None else renaming(model)
    unwanted = None if model is None else unwanted_by(model, renamed)
    gather = None if model is None else gatherer(model, renamed)
    checkpoint = read(source, format, sizes, activations=activations, mmap=mmap, unwanted=unwanted, gather=gather)
    fp8.warn_of_inputs(checkpoint.fp8_and_experts)
    if model is not None and unwanted is not None:
        fit(checkpoint, model, unwanted)
    checks = len(checkpoint.layers) + sum(map(len, checkpoint.experts.values())) if plan is None else 0
    with watched(
        checks + (len(checkpoint.all_layers) + len(checkpoint.containers) if model is not None else 0)
    ) as step:
        if plan is None:
            check_scales(checkpoint, step=step)
        if model is not None:
            if batch_invariant:
                check_invariant({**checkpoint.layers, **checkpoint.fp8_and_experts})
            put(checkpoint, model, None if mesh is None or plan is None else (mesh, plan), step)
    if model is None:
        report_dense(checkpoint)
    else:
        if batch_invariant:
            set_batch_invariant(model)
        layers = [module for module in model.modules() if isinstance(module, (Linear, Fp8Linear, Stack))]
        checkpoint.dense, checkpoint.other_bytes = find_dense(model, layers)
    return checkpoint


def check_format(format: str | None) -> None:
    given = (modelopt.NAME, comfy_kitchen.NAME)
    if format is not None and format not in given:
        names = " or ".join(map(repr, given))
        raise _C.Error(f"format: is {format!r}; must be None, {names}: other sources say their own")


# ---- the model ----


def put(
    checkpoint: Checkpoint,
    model: torch.nn.Module,
    split: tuple[DeviceMesh, Mapping[str, ParallelStyle]] | None = None,
    step: Callable[[str], None] = unwatched,
) -> None:
    """Puts a checkpoint into a model. Checks everything first, so that an error changes nothing.

    Args:
        split: load's mesh and plan.
        step: is called with the name of each layer.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    check_layers(checkpoint, modules)
    own = own_tensors(checkpoint, modules)
    check_tensors(checkpoint, own)
    for name in missing_heads(checkpoint, model, modules, own):
        warnings.warn(
            f"{name}: is not in the checkpoint and stays as it is in the model", stacklevel=4
        )  # past put, load and file_errors
    parts, styles = ({}, {}) if split is None else split_layers(checkpoint, model, *split)
    replace_modules(modules, made_layers(checkpoint, modules, parts, step))
    with torch.no_grad():
        fill(checkpoint.tensors, own, modules)
    if split is not None and styles:
        from torch.distributed.tensor.parallel import parallelize_module

        parallelize_module(model, split[0], styles, src_data_rank=None)
    if checkpoint.kv_cache is not None:
        kv_cache.attach(model, checkpoint.kv_cache)
    layers_replaced(model)


def split_layers(
    checkpoint: Checkpoint, model: torch.nn.Module, mesh: DeviceMesh, plan: Mapping[str, ParallelStyle]
) -> tuple[Mapping[str, Linear], Mapping[str, ParallelStyle]]:
    """This rank's parts of the layers that a plan splits, and the plan's styles for dense layers."""
    from nvfp4.layers import parallel  # here: imports torch.distributed.tensor, which takes a second

    parts, styles = parallel.split_layers(checkpoint.layers, model, mesh, plan)
    for name in styles:
        if name in checkpoint.fp8:
            raise _C.Error(f"plan: has {name}, which is FP8 and cannot be split; must name NVFP4 or dense layers")
    check_scales(checkpoint, parts)
    return parts, styles


def made_layers(
    checkpoint: Checkpoint,
    modules: Mapping[str, torch.nn.Module],
    parts: Mapping[str, Linear],
    step: Callable[[str], None],
) -> dict[int, torch.nn.Module]:
    """The layers and the experts of a checkpoint as modules, by the id of the module that each replaces."""
    layers: dict[int, torch.nn.Module] = {}
    for name, container in checkpoint.containers.items():
        step(f"load {name}")
        checkpoint.mixtures[name] = layers[id(modules[name])] = made(name, container, modules[name])
    checkpoint.containers = {}
    for name, packed in checkpoint.all_layers.items():
        step(f"load {name}")
        old = modules[name]
        device = old.weight.device
        layer = (parts[name] if name in parts else module_of(packed, old)).train(old.training)
        keep_hooks(old, layer)
        layers[id(old)] = layer if name in parts or device.type == "meta" else layer.to(device)
    return layers


def replace_modules(modules: Mapping[str, torch.nn.Module], new: Mapping[int, torch.nn.Module]) -> None:
    """Puts new modules in place of others, by their ids, wherever the model has them."""
    for module in list(modules.values()):
        for key, child in module._modules.items():
            if id(child) in new:
                setattr(module, key, new[id(child)])


def module_of(packed: PackedLinear | Fp8Tensors, old: torch.nn.Module) -> Linear | Fp8Linear:
    """The layer of these tensors in place of an old one, which says the dtype of the dense weight."""
    if isinstance(packed, Fp8Tensors):
        return Fp8Linear.from_packed(packed)
    if isinstance(old, Fp8Linear):
        return Linear.from_packed(packed)
    return Linear.from_packed(packed, dtype=old.dtype if isinstance(old, Linear) else old.weight.dtype)


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
