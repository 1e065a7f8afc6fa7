"""Linear layers in a model: which modules they are, where they stand, and what a replaced one hands to the new one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch

from nvfp4.layers.fused import FusedPart
from nvfp4.layers.linear import Linear

HOOKS = (
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
    *("_backward_hooks", "_backward_pre_hooks", "_is_full_backward_hook"),
)


def keep_hooks(old: torch.nn.Module, new: torch.nn.Module) -> None:
    """Gives a module the forward and backward hooks of the one that it replaces. Their handles still remove them. Hooks
    of torch.nn.utils (weight_norm, pruning) compute the weight, which is quantized, and are left out. The hook of
    accelerate, which a device_map needs, wraps the new module's forward."""
    for name in HOOKS:
        hooks = getattr(old, name)
        if isinstance(hooks, dict) and any(computes_weight(hook) for hook in hooks.values()):
            hooks = type(hooks)((key, hook) for key, hook in hooks.items() if not computes_weight(hook))
        setattr(new, name, hooks)
    if (placed := getattr(old, "_hf_hook", None)) is not None:
        from accelerate.hooks import add_hook_to_module  # here: only a model that accelerate dispatched has one

        add_hook_to_module(new, placed)


def computes_weight(hook: object) -> bool:
    return type(hook).__module__.startswith("torch.nn.utils.")


def as_linear(module: Any) -> torch.nn.Linear | None:
    """A torch.nn.Linear, or one that shares the tensors of GPT-2's Conv1D, which has its weight as [K, N]. None for
    another module."""
    if isinstance(module, torch.nn.Linear):
        return module
    kind = conv1d()
    if kind is None or not isinstance(module, kind):
        return None
    (in_features, out_features), bias = module.weight.shape, module.bias
    linear = torch.nn.Linear(in_features, out_features, device="meta")
    linear.weight = torch.nn.Parameter(module.weight.detach().t(), requires_grad=False)
    linear.bias = bias
    return linear.train(module.training)


def is_plain(module: torch.nn.Module) -> bool:
    """Whether a module that as_linear takes computes x . W^T + bias and nothing else; a subclass may not."""
    return type(module) in (torch.nn.Linear, conv1d())


def conv1d() -> Any:
    """The class of GPT-2's linear layers, if transformers is loaded."""
    return getattr(sys.modules.get("transformers.pytorch_utils"), "Conv1D", None)


def places_of(
    model: torch.nn.Module, layers: Mapping[str, torch.nn.Module]
) -> dict[str, list[tuple[torch.nn.Module, str]]]:
    """Maps each layer's name to the modules that have it as a child, with its name there."""
    names = {id(layer): name for name, layer in layers.items()}
    places: dict[str, list[tuple[torch.nn.Module, str]]] = {name: [] for name in layers}
    for module in model.modules():
        for attribute, child in module._modules.items():
            if id(child) in names:
                places[names[id(child)]].append((module, attribute))
    return places


def put(places: list[tuple[torch.nn.Module, str]], layer: torch.nn.Module) -> None:
    for module, attribute in places:
        setattr(module, attribute, layer)


def find_layers(model: torch.nn.Module) -> dict[str, Linear | FusedPart]:
    """The NVFP4 layers by name. A joined layer is listed by its parts."""
    found: dict[str, Linear | FusedPart] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, (Linear, FusedPart)) and name.rpartition(".")[0] not in found:
            found[name] = module
    return found
