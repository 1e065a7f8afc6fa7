"""How far a product in fp32 may be off, by kernel: derived in api/test_gemm_bounds.py."""

from __future__ import annotations

from family_table import ROWS

U = 2.0**-24  # half a unit in the last place of fp32


def gamma(n: int) -> float:
    return n * U / (1 - n * U)


def roundings(kernel: str, k: int, a_16_bit: bool = False, ranks: int = 1) -> int:
    """The roundings of a sum of k products. Each of several ranks sums an equal share of them, and the ranks' sums are
    added in fp32, in any order: ranks - 1 additions at most for one of them."""
    k, more = k // ranks, ranks - 1
    if kernel in ROWS:  # a family of the GPU
        bound = ROWS[kernel]["roundings"]
        return bound["per_block"] * (k // bound["block_k"]) + bound["constant"] + more
    return (k + 8 if kernel == "amx" or a_16_bit else k // 16 + 8) + more
