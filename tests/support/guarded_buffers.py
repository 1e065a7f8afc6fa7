"""Tensors with memory that faults beside them, among random bytes, so that a test sees every byte that a call wrote."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from guarded_memory import Memory, extent

ALIGNMENT = 16  # bytes; kernels have paths for data that lie so
POISON = 0xFF  # a NaN in fp16, bf16, fp32 and e4m3


class Guarded(Memory):
    """`tensor` has the given shape and contiguous rows, `pitch` bytes apart (default: the row size)."""

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        *,
        generator: torch.Generator,
        pitch: int | None = None,
        values: torch.Tensor | None = None,
    ) -> None:
        pitch = pitch or shape[-1] * dtype.itemsize
        strides = [math.prod(shape[i + 1 : -1]) * pitch // dtype.itemsize for i in range(len(shape) - 1)] + [1]
        edge = ("begin", "end")[int(torch.randint(2, (), generator=generator))]
        slack = -extent(shape, strides) * dtype.itemsize % ALIGNMENT if edge == "end" else 0
        super().__init__(shape, strides, dtype, generator=generator, edge=edge, slack=slack, device=str(device))
        if values is not None:
            self.tensor.copy_(values)
        elif self.tensor.numel():
            self.tensor.view(torch.uint8).fill_(POISON)
        self.freeze(writable=True)
