"""Whether a checkpoint fits a model: names as the model has them, and what must be there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4.checkpoints import comfy_kitchen
from nvfp4.checkpoints.checkpoint import Checkpoint
from nvfp4.checkpoints.comfy_files import check_padding
from nvfp4.checkpoints.experts.targets import described
from nvfp4.checkpoints.left_out import is_head, left_out
from nvfp4.layers.buffers import round_up
from nvfp4.layers.checks import prefix_errors, short
from nvfp4.layers.fp8 import Fp8Linear, Fp8Tensors
from nvfp4.layers.hosts import is_pretrained, services
from nvfp4.layers.linear import Linear
from nvfp4.layers.packed import BLOCK, PackedLinear
from nvfp4.layers.readers import emptied, reader_of
from nvfp4.layers.traversal import as_linear, is_plain


def check_layer(name: str, packed: PackedLinear | Fp8Tensors, modules: Mapping[str, torch.nn.Module]) -> None:
    old = modules.get(name)
    if old is None:
        stack = name.partition(".experts.")[0] + ".experts"
        if ".experts." in name and stack in modules:
            kind = type(modules[stack]).__name__
            raise _C.Error(f"{name}: is one of the experts of a {kind} in the model, which nvfp4 does not know")
        raise _C.Error(f"{name}: is a layer of the checkpoint but no module of the model")
    if not is_replaced(old):
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


def tied_biases(
    checkpoint: Checkpoint, model: torch.nn.Module, names: Mapping[str, str], renamed: Callable[[str], str]
) -> dict[str, tuple[str, Tensor]]:
    """The layers whose bias the model ties to a tensor that the checkpoint has under another name, such as BERT's
    `cls.predictions.decoder` to `cls.predictions.bias`: the name in the model, and the tensor.

    Args:
        names: of each layer the name of its module.
        renamed: the name in the model of a tensor of the checkpoint.
    """
    keys = getattr(model, "all_tied_weights_keys", {}) if is_pretrained(model) else {}
    sources = {
        name: keys[f"{names[name]}.bias"]
        for name, packed in checkpoint.all_layers.items()
        if packed.bias is None and f"{names[name]}.bias" in keys
    }
    given = {renamed(name): t for name, t in checkpoint.tensors.items()} if sources else {}
    return {name: (source, given[source]) for name, source in sources.items() if source in given}


Renamed = Callable[[str], tuple[str, str | None]]


def renaming(model: torch.nn.Module) -> Renamed | None:
    """How transformers renames a checkpoint's tensors, for a model of transformers."""
    if not is_pretrained(model):
        return None
    renamed: Renamed = services("transformers").renamer(model)
    return renamed


def unwanted_by(model: torch.nn.Module, renamed: Renamed | None) -> Callable[[str], str | None]:
    """Which tensors of a checkpoint a model's class leaves out, by their names in the checkpoint."""
    return left_out(model) if renamed is None else left_out(model, lambda name: renamed(name)[0])


def fit(checkpoint: Checkpoint, model: torch.nn.Module, unwanted: Callable[[str], str | None]) -> None:
    """Skips what the model's class leaves out, and renames the rest as transformers does."""
    for name in [*checkpoint.layers, *checkpoint.experts]:
        if reason := unwanted(f"{name}.weight"):
            checkpoint.skipped[name] = reason
            checkpoint.layers.pop(name, None)
            checkpoint.experts.pop(name, None)
    for name in [*checkpoint.tensors]:
        if reason := unwanted(name):
            del checkpoint.tensors[name]
            checkpoint.skipped[checkpoint.kept.pop(name, name)] = reason
    names = {name for name, _ in model.named_modules(remove_duplicate=False)}
    strange = any(name not in names for name in checkpoint.all_layers)
    if is_pretrained(model) and (strange or any(name.rpartition(".")[0] not in names for name in checkpoint.tensors)):
        services("transformers").rename(model, checkpoint)
    own = {name: name for name in checkpoint.all_layers}
    for name, (_, bias) in tied_biases(checkpoint, model, own, lambda name: name).items():
        if name in checkpoint.layers:
            checkpoint.layers[name] = replace(checkpoint.layers[name], bias=bias)
        else:
            checkpoint.fp8[name] = replace(checkpoint.fp8[name], bias=bias)
    keep_dense(checkpoint, model)


def is_replaced(old: torch.nn.Module) -> bool:
    """Whether a quantized layer can take a module's place."""
    return is_plain(old) or type(old) in (Linear, Fp8Linear)


def dense_in_model(
    checkpoint: Checkpoint, modules: Mapping[str, torch.nn.Module], names: Mapping[str, str]
) -> dict[str, str]:
    """The layers of a checkpoint whose dense weight the model's classes read, with the reason: FP8 layers whose module
    is derived from torch.nn.Linear, and so computes something else, such as DeepSeek-V4's `wo_a`; layers whose weight
    the module above reads, such as T5's `wo`; layers of comfy-kitchen whose K is no multiple of 16 before it is padded.

    Args:
        names: of each layer the name of its module.
    """
    found = {}
    for name in checkpoint.all_layers:
        old, reader = modules.get(names[name]), reader_of(names[name], modules)
        if old is not None and is_plain(old) and reader is not None:
            kind = "NVFP4" if name in checkpoint.layers else "FP8"
            found[name] = f"is {kind} in the checkpoint and dense in the model: {reader} reads its weight itself"
    own = {names[name]: name for name in checkpoint.all_layers}
    for module, reader in emptied(modules, own).items():
        kind = "NVFP4" if own[module] in checkpoint.layers else "FP8"
        why = f"{reader} asks for a parameter of the module that holds it"
        found[own[module]] = f"is {kind} in the checkpoint and dense in the model: {why}"
    for name, packed in checkpoint.layers.items() if checkpoint.format == comfy_kitchen.NAME else ():
        k = inputs_of(modules.get(names[name]))
        if k != packed.in_features and round_up(k, BLOCK) == packed.in_features:
            found[name] = f"is NVFP4 in the checkpoint and dense in the model: K is {k}, no multiple of {BLOCK}"
    for name in checkpoint.fp8:
        old = modules.get(names[name])
        if isinstance(old, torch.nn.Linear) and not is_replaced(old):
            found[name] = f"is FP8 in the checkpoint and a dense {type(old).__name__} in the model"
    return found


def inputs_of(module: torch.nn.Module | None) -> int:
    """K of a linear layer that computes x . W^T + bias and nothing else; 0 for any other module."""
    linear = as_linear(module) if module is not None and is_plain(module) else None
    return 0 if linear is None else linear.in_features


def keep_dense(checkpoint: Checkpoint, model: torch.nn.Module) -> None:
    """Gives the layers of dense_in_model their dense weight."""
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, reason in dense_in_model(checkpoint, modules, {name: name for name in checkpoint.all_layers}).items():
        packed = checkpoint.layers.pop(name, None)
        if packed is not None:
            bias, weight = packed.bias, Linear.from_packed(packed).to_linear().weight.detach()
            k = inputs_of(modules[name])
            if k and k < weight.shape[1]:
                with prefix_errors(name):
                    check_padding(weight, k)
                weight = weight[:, :k]
        else:
            layer = checkpoint.fp8.pop(name)
            bias, weight = layer.bias, layer.dense(modules[name].weight.dtype)
        checkpoint.tensors[f"{name}.weight"] = weight
        if bias is not None:
            checkpoint.tensors[f"{name}.bias"] = bias
        checkpoint.skipped[name] = reason


def check_layers(checkpoint: Checkpoint, modules: Mapping[str, torch.nn.Module]) -> None:
    """Rejects layers and experts that the modules of a model cannot take."""
    for name, experts in checkpoint.experts.items():
        raise _C.Error(f"{name}: is a stack of {len(experts)} experts, which a model cannot take")
    for name, packed in checkpoint.all_layers.items():
        check_layer(name, packed, modules)
    for name, container in checkpoint.containers.items():
        about = described(name, modules[name])
        container.check(about.gated, about.experts)


def own_tensors(checkpoint: Checkpoint, modules: Mapping[str, torch.nn.Module]) -> dict[str, Tensor]:
    """The parameters and buffers of a model by their names, without those of layers and experts that the checkpoint
    replaces."""
    replaced = {id(modules[name]) for name in (*checkpoint.all_layers, *checkpoint.containers)}
    for name in checkpoint.containers:
        replaced |= {id(child) for child in modules[name].modules()}
    return {
        f"{name}.{key}" if name else key: t
        for name, module in modules.items()
        if id(module) not in replaced
        for key, t in (*module._parameters.items(), *module._buffers.items())
        if t is not None
    }


def check_tensors(checkpoint: Checkpoint, own: Mapping[str, Tensor]) -> None:
    """Rejects tensors of a checkpoint that the model does not have, or has in another shape or kind of dtype."""
    for name, t in checkpoint.tensors.items():
        if (skipped := checkpoint.kept.get(name, name)) in checkpoint.skipped:
            raise _C.Error(f"{name}: cannot be put into the model: {checkpoint.skipped[skipped]}")
        if name not in own:
            raise _C.Error(f"{name}: is in the checkpoint but not in the model")
        if own[name].shape != t.shape:
            raise _C.Error(f"{name}: shape is {list(t.shape)}; must be {list(own[name].shape)} for the model")
        if t.is_floating_point() != own[name].is_floating_point():
            raise _C.Error(f"{name}: dtype is {short(t.dtype)}; the model has {short(own[name].dtype)}")


def missing_heads(
    checkpoint: Checkpoint, model: torch.nn.Module, modules: Mapping[str, torch.nn.Module], own: Mapping[str, Tensor]
) -> list[str]:
    """The names of a model's heads that a checkpoint lacks. Any other parameter or buffer that it lacks is an error,
    unless a state dict leaves it out."""
    given = {id(own[name]) for name in checkpoint.tensors}  # a tied parameter has two names
    heads: set[str] = set()
    taken = (*checkpoint.all_layers, *checkpoint.containers)
    filled = {*checkpoint.tensors, *(f"{name}.weight" for name in taken)}
    for name, t in own.items():
        module, _, key = name.rpartition(".")
        if id(t) in given or key in modules[module]._non_persistent_buffers_set:
            continue
        if not t.is_meta and is_head(model, module, filled):
            heads.add(module)
        else:
            raise _C.Error(f"{name}: is in the model but not in the checkpoint")
    return sorted(heads)
