"""FP8 layers by their definition in fp64, without the code under test."""

from __future__ import annotations

import math

import torch
from error_bounds import U, gamma
from torch import Tensor

import nvfp4

BLOCK, GROUP = 128, 32
HALF = {torch.float32: U, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}  # half a unit in the last place


def scale_shape(scales: str, n: int, k: int) -> tuple[int, ...]:
    blocks, groups = (math.ceil(n / BLOCK), math.ceil(k / BLOCK)), (n, math.ceil(k / GROUP))
    return {"tensor": (), "channel": (n,), "block": blocks, "group": groups}[scales]


def nearest(x: Tensor) -> Tensor:
    """The e4m3 value that is nearest to a number in fp64, of two the even one; 448 is the largest."""
    exponent = torch.frexp(x).exponent.clamp_min(-5)  # x < 2^exponent; subnormal values have the step of 2^-6
    step = 2.0 ** (exponent - 4).double()
    return ((x / step).round() * step).clamp(-448, 448)


def parts(x: Tensor, activations: str) -> Tensor:
    """The largest absolute value of what shares a scale, for each value."""
    if activations == "tensor":
        return x.abs().amax().expand(x.shape)
    if activations == "token":
        return x.abs().amax(-1, keepdim=True).expand(x.shape)
    largest = [piece.abs().amax(-1, keepdim=True).expand(piece.shape) for piece in x.split(BLOCK, -1)]
    return torch.cat(largest, -1)


def quantized(x: Tensor, activations: str, input_scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """FP8 values in fp64 of x [M, K] in fp32, and the scale in the shape that Fp8Linear gives it. The scale and the
    quotient are rounded to fp32."""
    largest = parts(x, activations)
    each = torch.where(largest == 0, torch.ones_like(largest), largest / 448)
    if input_scale is not None:
        return nearest((x / input_scale).double()), input_scale
    scale = {"tensor": each[0, 0], "token": each[:, :1], "block": each[:, ::BLOCK]}[activations]
    return nearest((x / each).double()), scale


def values(layer: nvfp4.Fp8Linear, x: Tensor) -> Tensor:
    """What a layer multiplies [M, K]: the input, or its FP8 values times their scales."""
    rows = x.reshape(-1, x.shape[-1])
    if layer.activations is None:
        return rows.double()
    q, scale = quantized(rows.float(), layer.activations, layer.input_scale)
    scale = scale.double()
    if layer.activations == "block":
        scale = scale.repeat_interleave(BLOCK, -1)[:, : x.shape[-1]]
    return q * scale


def weight_of(weight: Tensor, scale: Tensor) -> Tensor:
    """value * scale, in fp64, where it is exact."""
    n, k = weight.shape
    scale = scale.double()
    if scale.ndim == 1:
        scale = scale[:, None]
    if scale.shape == scale_shape("group", n, k):
        scale = scale.repeat_interleave(GROUP, 1)[:, :k]
    elif scale.ndim == 2 and scale.shape != (n, 1):
        scale = scale.repeat_interleave(BLOCK, 0)[:n].repeat_interleave(BLOCK, 1)[:, :k]
    return weight.double() * scale


def defined(layer: nvfp4.Fp8Linear, x: Tensor) -> Tensor:
    """The layer's result in fp64 [..., N]."""
    y = values(layer, x) @ weight_of(layer.weight, layer.weight_scale).T
    if layer.bias is not None:
        y = y + layer.bias.double()
    return y.reshape(*x.shape[:-1], -1)


def bound_of(layer: nvfp4.Fp8Linear, x: Tensor) -> Tensor:
    """How far a result may be off. Sums round K times in fp32, scales and bias 3 times; with blocks each operand rounds
    in fp32 and to the dtype, with groups none does. The result rounds once to the dtype, whose least number counts in
    fp16."""
    u, k = HALF[x.dtype], x.shape[-1]
    blocks = layer.activations == "block" or layer.scales == "block"
    operands = ((1 + U) * (1 + u)) ** 2 - 1 if blocks else 0.0
    magnitude = values(layer, x).abs() @ weight_of(layer.weight, layer.weight_scale).abs().T
    least = 2.0**-25 if x.dtype == torch.float16 else 0.0
    if blocks and least:  # of operands: below 2^-14 they round by 2^-25
        magnitude = magnitude + k * least / u
    bias = torch.zeros(1) if layer.bias is None else layer.bias.double().abs()
    sums = magnitude * (1 + operands) * gamma(k + 3) + magnitude * operands + bias * 3 * U
    return sums * (1 + u) + defined(layer, x).abs() * u + least
