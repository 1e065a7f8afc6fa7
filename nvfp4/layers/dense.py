"""The parameters of a model that stay dense beside its NVFP4 layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from nvfp4.layers.traversal import as_linear

LARGE_BYTES, LARGE_SHARE = 10**6, 0.01  # of a tensor that a report names: the smaller of both


def large(tensors: Mapping[str, Tensor], everything: int) -> dict[str, int]:
    """The bytes of tensors with more than 1 MB, or more than 1 % of all bytes."""
    limit = min(LARGE_BYTES, everything * LARGE_SHARE)
    return {name: t.nbytes for name, t in tensors.items() if t.nbytes > limit}


def find_dense(model: torch.nn.Module, layers: Iterable[torch.nn.Module], saved: int = 0) -> tuple[dict[str, int], int]:
    """The bytes of each large parameter that is not in one of these layers, and of all other parameters and buffers. A
    tensor with several names counts once, under the first. `saved`: the bytes by which the model was larger before, of
    which a large one is a part."""
    taken = {id(t) for layer in layers for t in (*layer.parameters(recurse=False), *layer.buffers(recurse=False))}
    everything = sum(t.nbytes for t in (*model.parameters(), *model.buffers())) + saved
    others = {name: t for name, t in model.named_parameters() if id(t) not in taken}
    buffers = sum(t.nbytes for t in model.buffers() if id(t) not in taken)
    return large(others, everything), sum(t.nbytes for t in others.values()) + buffers


def not_linear(model: torch.nn.Module, dense: Mapping[str, int]) -> dict[str, str]:
    """Dense parameters that may be weights of products but are in no linear layer, with the reason: those with 3
    dimensions or more (experts), and those with 2 that are no embedding."""
    found = {}
    for name, count in dense.items():
        t, module = model.get_parameter(name), model.get_submodule(name.rpartition(".")[0])
        embedding = isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag))
        if t.ndim > 2 or (t.ndim == 2 and not embedding and as_linear(module) is None):
            kind = type(module).__name__
            shape = "x".join(map(str, t.shape))
            found[name] = f"is a parameter {shape} of a {kind}, no torch.nn.Linear; {count} bytes stay dense"
    return found
