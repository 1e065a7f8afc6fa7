"""The linear layers of a model, quantized one by one, and which of them are joined."""

from __future__ import annotations

import dataclasses
import time

import torch
from torch import Tensor

from nvfp4 import _api
from nvfp4.layers.fused import FUSED
from nvfp4.layers.linear import Linear
from nvfp4.layers.traversal import as_linear, keep_hooks
from nvfp4.quantizing.report import QuantizedLayer

ERROR_ROWS = 1024  # rows of a weight that are fp32 at a time; a multiple of the scale tile's 128


def quantize_layer(
    name: str,
    old: torch.nn.Module,
    activations: str | None,
    input_scale: float | None,
    block_scale: str,
    fused: tuple[str, ...] = (),
    weights: str = "round",
) -> tuple[Linear, QuantizedLayer]:
    """Makes an NVFP4 layer of a linear layer, with its hooks, and describes it."""
    begin, linear = time.perf_counter(), as_linear(old)
    assert linear is not None
    layer = Linear.from_linear(linear, activations, input_scale, block_scale, weights)
    error = weight_error(linear.weight, layer.weight, layer.weight_scale, layer.weight_global_scale)
    row = describe(name, linear, layer, error, input_scale, fused)
    return replace_layer(old, layer), dataclasses.replace(row, seconds=time.perf_counter() - begin)


def replace_layer(old: torch.nn.Module, layer: Linear) -> Linear:
    """Gives an NVFP4 layer the mode and the hooks of the linear layer that it replaces."""
    keep_hooks(old, layer.train(old.training))
    return layer


def describe(
    name: str,
    linear: torch.nn.Linear,
    layer: Linear,
    error: float,
    input_scale: float | None,
    fused: tuple[str, ...],
) -> QuantizedLayer:
    return QuantizedLayer(
        name,
        (layer.out_features, layer.in_features),
        error,
        linear.weight.nbytes + (0 if linear.bias is None else linear.bias.nbytes),
        sum(t.nbytes for t in layer.buffers()),
        input_scale,
        fused,
    )


def weight_error(
    weight: Tensor, data: Tensor, block_scales: Tensor, global_scale: Tensor, scale_layout: str = "128x4"
) -> float:
    """|weight - its NVFP4| / |weight|, by slices of rows."""
    if weight.is_meta:
        return 0.0
    lost = total = 0.0
    for row in range(0, len(weight), ERROR_ROWS):
        rows = slice(row, row + ERROR_ROWS)
        w = weight[rows].float()
        total += float(w.square().sum(dtype=torch.float64))
        w = w - _api.dequantize(data[rows], block_scales[rows], global_scale=global_scale, scale_layout=scale_layout)
        lost += float(w.square().sum(dtype=torch.float64))
    return (lost / total) ** 0.5 if total else 0.0


def fusible(
    model: torch.nn.Module, linears: dict[str, torch.nn.Module], scales: dict[str, float]
) -> dict[str, tuple[str, ...]]:
    """Maps each layer that can be joined with its siblings to the names of all of them, in the model's order."""
    groups: dict[str, tuple[str, ...]] = {}
    for parent, _ in model.named_modules():
        for siblings in FUSED:
            names = [f"{parent}.{sibling}" if parent else sibling for sibling in siblings]
            if not all(name in linears for name in names):
                continue
            layers = [layer for name in names if (layer := as_linear(linears[name])) is not None]
            if len({layer.in_features for layer in layers}) != 1 or len({scales.get(name) for name in names}) != 1:
                continue
            if len({None if layer.bias is None else layer.bias.dtype for layer in layers}) != 1:
                continue
            if len({layer.weight.device for layer in layers}) == 1:
                ordered = tuple(name for name in linears if name in names)
                groups |= dict.fromkeys(names, ordered)
    return groups
