"""Layers of nvfp4.Experts with random weights, and routings of tokens to them."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

import nvfp4
from nvfp4.layers.experts.module import Experts
from nvfp4.layers.experts.stack import Stack

E, H, INNER, TOKENS = 5, 64, 48, 9
KINDS = [("silu", True), ("gelu_tanh", True), ("swiglu", True), ("silu", False), ("gelu_tanh", False), ("relu2", False)]


def filled(stack: Stack, generator: torch.Generator, integers: bool = False) -> None:
    """Random values; or 0, 1 and -1 with scales that are powers of 2."""
    shape = stack.weight.shape
    if integers:
        nibbles = torch.tensor([0x0, 0x2, 0xA])[torch.randint(3, (*shape, 2), generator=generator)]
        stack.weight = (nibbles[..., 0] | nibbles[..., 1] << 4).to(torch.uint8)
        scales = torch.tensor([1.0, 2.0])[torch.randint(2, stack.weight_scale.shape, generator=generator)]
        stack.weight_global_scale = torch.tensor([0.5, 1.0])[torch.randint(2, shape[:2], generator=generator)]
    else:
        stack.weight = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
        scales = torch.rand(stack.weight_scale.shape, generator=generator) + 0.5
        stack.weight_global_scale = (torch.rand(shape[:2], generator=generator) + 0.5) / 16
    stack.weight_scale = scales.to(torch.float8_e4m3fn)
    used = nvfp4.swizzle(torch.ones(shape[2], shape[3] // 8, dtype=torch.uint8))  # its padding may hold anything
    stack.weight_scale.view(torch.uint8)[..., used.reshape(stack.weight_scale.shape[2:]) == 0] = 0x7F
    if stack.bias is not None:
        stack.bias = torch.randn(stack.bias.shape, generator=generator)


def keep(experts: Experts) -> Experts:
    """The same experts with a tensor for each matrix, as in mapped files."""
    kept = copy.deepcopy(experts)
    for stack in (kept.gate_up, kept.down):
        get, (count, parts, _, _) = stack.matrices(), stack.shape
        pairs = [[tuple(t.clone() for t in get(e, p)) for e in range(count)] for p in range(parts)]
        for p, row in enumerate(pairs):
            stack.keep(p, [data for data, _ in row], [scale for _, scale in row])
    return kept


def make(generator: torch.Generator, activation: str = "silu", gated: bool = True, **more: Any) -> Experts:
    integers, inner = more.pop("integers", False), more.pop("inner", INNER)
    experts = Experts(E, H, inner, activation, gated, **more)
    for stack in (experts.gate_up, experts.down):
        filled(stack, generator, integers)
    return experts.eval()


def routing(generator: torch.Generator, tokens: int = TOKENS, k: int = 3) -> tuple[Tensor, Tensor]:
    """Experts with duplicates, and some that are elsewhere; expert 0 is never called."""
    index = torch.randint(1, E + 2, (tokens, k), generator=generator)
    index[0, 0] = -1
    return index, torch.rand(tokens, k, generator=generator)
