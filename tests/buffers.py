"""Tensors inside larger blocks of random bytes, so that a test sees every byte that a call wrote."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

GUARD = 256  # bytes before and after
POISON = 0xFF  # a NaN in fp16, bf16, fp32 and e4m3


class Guarded:
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
        row = shape[-1] * dtype.itemsize
        pitch = row if pitch is None else pitch
        size = GUARD + -(-math.prod(shape[:-1]) * pitch // 16) * 16 + GUARD
        self.bytes = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator).to(device)
        self._layout = (tuple(shape), dtype, self._strides(shape, pitch // dtype.itemsize))
        self.tensor = self._view(self.bytes)
        if values is None:
            self._as_bytes(self.tensor).fill_(POISON)
        else:
            self._as_bytes(self.tensor).copy_(self._as_bytes(values.to(device)))
        self._before = self.bytes.clone()

    @staticmethod
    def _strides(shape: Sequence[int], pitch: int) -> tuple[int, ...]:
        strides = [1]
        for size in reversed(shape[1:]):
            strides.insert(0, pitch if len(strides) == 1 else strides[0] * size)
        return tuple(strides)

    @staticmethod
    def _as_bytes(x: torch.Tensor) -> torch.Tensor:
        return x.view(torch.uint8) if x.numel() else torch.empty(0, dtype=torch.uint8, device=x.device)

    def _view(self, block: torch.Tensor) -> torch.Tensor:
        shape, dtype, strides = self._layout
        return block[GUARD:-GUARD].view(dtype).as_strided(shape, strides, GUARD // dtype.itemsize)

    def unchanged(self) -> bool:
        """Nothing was written."""
        return torch.equal(self.bytes, self._before)

    def unchanged_around(self) -> bool:
        """Nothing was written but the tensor."""
        expected = self._before.clone()
        self._as_bytes(self._view(expected)).copy_(self._as_bytes(self.tensor))
        return torch.equal(self.bytes, expected)
