"""Layers as they are read into a Checkpoint: one layer, or a stack of experts [E, N, K/2]."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4.checkpoints.checkpoint import Checkpoint
from nvfp4.layers.packed import PackedLinear

MAX_EXPERTS = 16384  # of a stack; each takes 0.2 ms and 2 KB beside its tensors
PAIRED = ("weight_scale_2", "weight_global_scale", "input_scale", "input_global_scale")


def add_layer(
    checkpoint: Checkpoint,
    name: str,
    own: Mapping[str, Tensor],
    weight: str,
    read: Callable[[Mapping[str, Tensor]], PackedLinear],
    rows: bool = False,
) -> None:
    """Reads a layer, or a stack of experts if own[weight] is [E, N, K/2], into the checkpoint.

    Args:
        rows: whether rows of the tensors are rows of the layer, as ours.
    """
    if weight in own and own[weight].ndim == 3:
        one = functools.partial(read_halves, weight=weight, read=read) if rows else read
        checkpoint.experts[name] = read_experts(name, upright(own, weight) if rows else own, weight, one)
        return
    try:
        checkpoint.layers[name] = read(own)
    except _C.Error as error:
        raise _C.Error(f"{name}.{error}" if name else str(error)) from None


def read_experts(
    name: str, own: Mapping[str, Tensor], weight: str, read: Callable[[Mapping[str, Tensor]], PackedLinear]
) -> list[PackedLinear]:
    """The layers of a stack of E experts. Its tensors are stacked too, or have one element, for all experts.

    Args:
        name: of the module, for error messages.
        own: the module's tensors.
        weight: the name of the one that has the shape [E, N, K/2].
        read: reads one expert's tensors.
    """
    count, size = own[weight].shape[0], own[weight].numel()
    if count > MAX_EXPERTS or (count and not size):
        raise _C.Error(
            f"{name}.{weight}: shape is {list(own[weight].shape)}; must have values, and at most {MAX_EXPERTS} experts"
        )
    for local, t in own.items():
        if t.numel() != 1 and (t.ndim == 0 or t.shape[0] != count):
            raise _C.Error(f"{name}.{local}: shape is {list(t.shape)}; must begin with {count}, the number of experts")
    layers = []
    for i in range(count):
        expert = {local: t[i] if t.ndim and t.shape[0] == count else t for local, t in own.items()}
        try:
            layers.append(read(expert))
        except _C.Error as error:
            raise _C.Error(f"{name}[{i}].{error}") from None
    return layers


def upright(own: Mapping[str, Tensor], weight: str) -> Mapping[str, Tensor]:
    """A stack's tensors with N before K. The shapes of weight and block scales say which of them comes first."""
    values, scale = own[weight], own.get("weight_scale")
    if scale is None or scale.ndim != 3 or values.shape[2] != scale.shape[2] or values.shape[1] != scale.shape[1] * 8:
        return own
    return {**own, weight: values.transpose(1, 2), "weight_scale": scale.transpose(1, 2)}


def read_halves(
    own: Mapping[str, Tensor], weight: str, read: Callable[[Mapping[str, Tensor]], PackedLinear]
) -> PackedLinear:
    """An expert's layer. Gate and up that are joined along N may have a global scale each, in a tensor of two."""
    pairs = {local for local, t in own.items() if local.endswith(PAIRED) and t.numel() == 2}
    if not pairs or own[weight].shape[0] % 2:
        return read(own)
    rows = own[weight].shape[0] // 2
    halves = []
    for i in range(2):
        part = {
            local: t[i * rows : (i + 1) * rows] if t.ndim and t.shape[0] == 2 * rows else t for local, t in own.items()
        }
        halves.append(read(part | {local: own[local].flatten()[i] for local in pairs}))
    first = halves[0]
    given = [half.input_global_scale for half in halves if half.input_global_scale is not None]
    if len(given) == 2 and not given[0].is_meta and not torch.equal(*given):
        values = " and ".join(f"{float(t):g}" for t in given)
        raise _C.Error(f"input_global_scale: is {values} for gate and up, which have one input; must be equal")
    scales = [half.weight_global_scale.expand(rows) for half in halves]
    return PackedLinear(
        own[weight],
        own["weight_scale"],
        torch.cat(scales),
        first.input_global_scale,
        own.get("bias"),
        first.activations,
        first.pre_quant_scale,
    )
