"""Products whose results are defined to the bit, on every backend and every instruction set of the CPU."""

from __future__ import annotations

import os

import exact_products
import pytest
import torch
from conftest import FULL, Backend, is_emulated, one_in
from python_server import python

CASES = exact_products.cases()


def test_enough_cases() -> None:
    assert len(CASES) >= 300 and len(set(CASES)) == len(CASES)
    for field, values in {
        "layout": ("128x4", "linear"),
        "out_dtype": exact_products.DTYPES,
        "alpha": exact_products.ALPHAS,
        "bias": exact_products.BIASES,
        "c": exact_products.CS,
        "l": (None, 1, 2, 3),
        "pitched": (False, True),
        "typed": (False, True),
    }.items():
        assert {getattr(case, field) for case in CASES} == set(values)
    assert all(1 in {getattr(case, field) for case in CASES} for field in "mn")
    assert {case.k % 64 for case in CASES} == {0, 16, 32, 48}
    assert max(case.k for case in CASES) <= exact_products.LIMIT


@pytest.mark.parametrize("case", one_in(9 if is_emulated() else 1, CASES), ids=str)
def test_equal_bits(case: exact_products.Case, backend: Backend) -> None:
    if not exact_products.takes(case, backend.name):
        pytest.skip("the backend has no kernel for this A and layout")
    assert exact_products.run(case, backend.name, backend.device) == ""


@pytest.mark.parametrize("isa", ["reference", "portable", "avx2", "avx512vnni", "amx"])
def test_instruction_sets(isa: str) -> None:
    """Every way to compute on a CPU, each in a process of its own since NVFP4_CPU is read once. Of the two slow ones a
    third."""
    step = 3 if isa in ("reference", "portable") and not FULL else 1
    result = python(exact_products.__file__, "cpu", str(step), env={**os.environ, "NVFP4_CPU": isa})
    if "this CPU has not the instructions" in result.stderr:
        pytest.skip(f"this CPU has not the instructions of {isa}")
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    assert int(result.stdout.split(" cases on cpu, 0 wrong")[0].split()[-1]) >= len(CASES) // step


def test_the_judge_sees_one_wrong_bit() -> None:
    case = exact_products.Case(5, 7, 48)
    call = exact_products.Call(case, exact_products.generator("judge"), "cpu")
    assert call.verdict() != ""  # still NaN
    call.out.tensor.copy_(call.expected)
    assert call.verdict() == ""
    call.out.tensor.view(torch.int16)[4, 6] ^= 1
    assert "1 of 35 values are wrong" in call.verdict()


def test_the_judge_sees_a_byte_beside_the_output() -> None:
    case = exact_products.Case(5, 7, 48, pitched=True)
    call = exact_products.Call(case, exact_products.generator("judge"), "cpu")
    call.out.tensor.copy_(call.expected)
    pitch = call.out.tensor.stride(0)
    call.out.tensor.as_strided((1,), (1,), call.out.tensor.storage_offset() + pitch - 1).view(torch.int16)[0] ^= 1
    assert call.verdict() == "bytes around out were written"
