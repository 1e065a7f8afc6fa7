"""Tells what a model may leave out of a checkpoint, and a checkpoint out of a model, as transformers has it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

import torch

from nvfp4.layers.hosts import is_pretrained

# Tensors that no model class reads: layers that predict further tokens, and what older versions stored.
LEFT_OUT = (r"(^|\.)mtp\.", r"rotary_(pos_)?emb\.inv_freq$", r"\.attn\.masked_bias$")


def left_out(model: torch.nn.Module, renamed: Callable[[str], str] = str) -> Callable[[str], str | None]:
    """A function of a tensor's full name: why a model has no place for it, if its class leaves it out; None otherwise.

    Args:
        model: its class names tensors to ignore in `_keys_to_ignore_on_load_unexpected`, as classes of transformers do.
        renamed: how transformers renames the checkpoint's tensors.
    """
    modules = {name for name, _ in model.named_modules(remove_duplicate=False)}
    own = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    patterns = [re.compile(pattern) for pattern in (*own, *LEFT_OUT)]
    tops = {name.partition(".")[0] for name in model.state_dict()} if is_pretrained(model) else None
    config = getattr(model, "config", None)
    layers, more = (getattr(config, key, None) for key in ("num_hidden_layers", "num_nextn_predict_layers"))
    kind = type(model).__name__

    def why(name: str) -> str | None:
        module, _, local = name.rpartition(".")
        if module in modules and local != "inv_freq":
            return None
        # transformers knows the names of the model's parameters, not of a layer's scales.
        for key in (renamed(name), renamed(f"{module}.weight")):
            place = key.rpartition(".")[0]
            if place in modules:
                break
        if place in modules and local != "inv_freq":
            return None
        new = f"{place}.{local}"
        if any(pattern.search(form) for pattern in patterns for form in (name, new)):
            return f"is not in the model: {kind} leaves it out"
        match = re.match(r"(?:model\.)?layers\.(\d{1,9})\.", new)
        if match and isinstance(layers, int) and isinstance(more, int) and layers <= int(match[1]) < layers + more:
            return f"is not in the model: {kind} leaves out layers that predict further tokens"
        if tops is not None and tops.isdisjoint((name.partition(".")[0], new.partition(".")[0])):
            return f"is not in the model: {kind} has no {new.partition('.')[0]}"
        return None

    return why


def is_head(model: Any, name: str, given: Collection[str]) -> bool:
    """Whether a linear layer of a model of transformers is a head, or in one, which a checkpoint may lack: it lies
    outside the base model, or the checkpoint has nothing of the module that it is in.

    Args:
        given: names of the parameters in the model that the checkpoint has.
    """
    if not is_pretrained(model):
        return False
    prefix = f"{model.base_model_prefix}."
    if any(key.startswith(f"{name}.") for key in given):
        return False
    if hasattr(model, model.base_model_prefix) and not name.startswith(prefix):
        return True
    parent = name.rpartition(".")[0]
    return bool(parent) and not any(key.startswith(f"{parent}.") for key in given)
