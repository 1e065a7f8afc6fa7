"""How far a product in fp32 may be off, by kernel: derived in ops/test_gemm_bounds.py."""

from __future__ import annotations

import torch
from backend_table import ROWS

U = 2.0**-24  # half a unit in the last place of fp32


def gamma(n: int) -> float:
    return n * U / (1 - n * U)


def roundings(kernel: str, k: int, a_16_bit: bool = False, ranks: int = 1) -> int:
    """The roundings of a sum of k products. Each of several ranks sums an equal share of them, and the ranks' sums are
    added in fp32, in any order: ranks - 1 additions at most for one of them."""
    k, more = k // ranks, ranks - 1
    if kernel in ROWS:  # a backend of the GPU
        bound = ROWS[kernel]["a16_roundings" if a_16_bit else "roundings"]
        return bound["per_block"] * (k // bound["block_k"]) + bound["constant"] + more
    return (k + 8 if kernel == "amx" or a_16_bit else k // 16 + 8) + more


class Bounded:
    """fp64 values and how far those of a kernel in fp32 may be off, through the steps of an epilogue, each of which
    rounds once."""

    def __init__(self, sums: torch.Tensor, magnitude: torch.Tensor, count: int) -> None:
        """fp64 sums of products, and of their absolute values, that pass through `count` roundings."""
        self.value, self.error = sums, gamma(count) * magnitude + U * magnitude

    def _round(self) -> None:
        self.error = self.error + U * (self.value.abs() + self.error)

    def multiply(self, factor: torch.Tensor) -> None:
        self.value, self.error = self.value * factor.double(), self.error * factor.double().abs()
        self._round()

    def add(self, term: torch.Tensor) -> None:
        self.value = self.value + term.double()
        self._round()

    def verdict(self, result: torch.Tensor, expected: torch.Tensor) -> str:
        """ "" or what is wrong; `expected` says which values are NaN, and the shape and dtype."""
        value, error = self.value.reshape(expected.shape), self.error.reshape(expected.shape)
        info = torch.finfo(expected.dtype)
        error = error + info.eps / 2 * (value.abs() + error) + info.tiny * info.eps
        known = ~expected.isnan() & (value.abs() + error < info.max)
        wrong = known & ~((result.double() - value).abs() <= error) | (expected.isnan() != result.isnan())
        return f"{int(wrong.sum())} values are not within the bound" if wrong.any() else ""
