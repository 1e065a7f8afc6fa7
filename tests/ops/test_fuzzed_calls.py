"""Fuzz: 2,000 mutated calls (fuzzed_calls.py) in a process of their own, whose death is the failure of the call that
ran.

NVFP4_FUZZED_CALLS=100000 is their number; 10,000 with CI_FULL=1.
"""

from __future__ import annotations

import os
from random import Random

import fuzzed_calls
import numpy as np
import pytest
import torch
from call_workers import Workers
from conftest import FULL

import nvfp4

COUNT = int(os.environ.get("NVFP4_FUZZED_CALLS", 10_000 if FULL else 2000))
PARTS = {"gemm": 820, "gemm_of_16_bit_a": 420, "custom_kernel": 200, "quantize": 140, "dequantize": 100}  # of 2,000


@pytest.mark.parametrize("name", fuzzed_calls.CALLS)
def test_calls(name: str, workers: Workers) -> None:
    draw = Random(f"{os.environ['NVFP4_TEST_SEED']} {name}")
    for _ in range(PARTS.get(name, 64) * COUNT // 2000):
        seed = draw.getrandbits(31)
        verdict = workers.ask("cpu", "fuzzed_calls.verdict", name, seed)
        assert not verdict, f"{verdict}\n{fuzzed_calls.describe(name, seed)}"


@pytest.mark.skipif(fuzzed_calls.ml_dtypes is None, reason="ml_dtypes comes with the extra `test`")
def test_bfloat16_of_numpy_is_compared_by_its_bits() -> None:
    data, scale = nvfp4.quantize(np.float32([[1.5] * 16]), scale_layout="linear")
    x = nvfp4.dequantize(data, scale, scale_layout="linear", out_dtype=torch.bfloat16)
    assert x.dtype.name == "bfloat16" and torch.equal(
        fuzzed_calls.as_torch(x), torch.full((1, 16), 1.5, dtype=torch.bfloat16)
    )


def test_a_negated_view_is_read_with_its_sign() -> None:
    """The sign of a view such as z.conj().imag is a flag in the tensor, not in its memory."""
    alpha = torch.tensor([1 + 2j]).conj().imag
    assert alpha.is_neg() and alpha.item() == -2
    a, scale = nvfp4.quantize(torch.full((1, 16), 6.0))
    out = nvfp4.gemm(a, a, scale, scale, alpha=alpha, out_dtype=torch.float32)
    assert out.item() == -2 * 16 * 36
