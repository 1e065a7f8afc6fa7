"""Whether a checkpoint fits a model: names as the model has them, and what must be there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from nvfp4 import _C
from nvfp4.checkpoints.checkpoint import Checkpoint
from nvfp4.checkpoints.left_out import left_out
from nvfp4.layers.fp8 import Fp8Linear, Fp8Tensors
from nvfp4.layers.hosts import is_pretrained, services
from nvfp4.layers.linear import Linear
from nvfp4.layers.packed import PackedLinear
from nvfp4.layers.traversal import as_linear, is_plain


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
