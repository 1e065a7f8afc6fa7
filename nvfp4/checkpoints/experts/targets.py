"""The experts of a checkpoint in a model: which module takes them, and what it becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from nvfp4 import _C
from nvfp4.checkpoints.experts.container import Container
from nvfp4.checkpoints.experts.naming import Place
from nvfp4.layers.experts.mixture import Description, describe, is_mixture, of_experts
from nvfp4.layers.experts.module import Experts
from nvfp4.layers.experts.routed import RoutedExperts
from nvfp4.layers.traversal import keep_hooks

PROBES = ("gate_up_proj", "up_proj", "down_proj")  # parameters of transformers' modules of experts


def gatherer(
    model: torch.nn.Module, renamed: Callable[[str], tuple[str, str | None]] | None = None
) -> Callable[[Place], str | None]:
    """A function of an expert's place in a checkpoint: the name of the model's module that has all experts.

    Args:
        renamed: how transformers renames the checkpoint's tensors, of a model of transformers.
    """
    found = {
        name
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, RoutedExperts) or is_mixture(module)
    }
    known: dict[str, str | None] = {}

    def names(place: Place) -> Iterable[str]:
        yield f"{place.container}."
        if renamed is not None:
            for key in (f"{place.local.format(0)}.weight", *PROBES):
                yield renamed(f"{place.container}.{key}")[0]

    def target(place: Place) -> str | None:
        for name in names(place):
            while "." in name:
                name = name.rpartition(".")[0]
                if name in found:
                    return name
        return None

    def gather(place: Place) -> str | None:
        if place.container not in known:
            known[place.container] = target(place) if found else None
        return known[place.container]

    return gather


def described(name: str, module: torch.nn.Module) -> Description:
    """The computation of a module that takes the checkpoint's experts."""
    if isinstance(module, RoutedExperts):
        return of_experts(module)
    about = describe(module)
    if isinstance(about, str):
        raise _C.Error(f"{name}: {about}")
    return about


def made(name: str, container: Container, old: torch.nn.Module) -> RoutedExperts:
    """The module with a checkpoint's experts, in place of one of the model and on its device."""
    about = described(name, old)
    new = placeholder(container, about, old)
    device = next(iter((*old.parameters(), *old.buffers()))).device
    filled = container.fill(new, about.interleaved, device)
    keep_hooks(old, filled)  # those of accelerate want values
    return filled


def placeholder(container: Container, about: Description, old: torch.nn.Module) -> RoutedExperts:
    """A module for a checkpoint's experts on the meta device, in place of one of the model."""
    ours = isinstance(old, RoutedExperts)
    new = container.make(about, old.bias_dtype or torch.float32 if ours else next(old.parameters()).dtype)
    if ours:
        new.apply_router_weight_on_input = old.apply_router_weight_on_input
    if isinstance(old, Experts) and isinstance(new, Experts):
        new.batch_invariant = old.batch_invariant
    return new.train(old.training)
