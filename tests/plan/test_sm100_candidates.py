"""Every candidate plan of a product on sm100, not only the first: each instantiation, with and without swap_ab and
split-K, launched by the package. All give the same bits."""

from __future__ import annotations

import exact_products
import pytest
import torch
from conftest import Backend
from harness.headers import headers_of

import nvfp4
from nvfp4 import _C

CASES = [
    exact_products.Case(9, 200, 1088, 2, out_dtype=torch.float32, alpha="vector", bias="out", c="c", pitched=True),
    exact_products.Case(131, 70, 2112, alpha="float", c="out"),
    exact_products.Case(260, 140, 320, bias="fp32", typed=True),
    exact_products.Case(300, 7, 528, 2, layout="linear", out_dtype=torch.bfloat16, alpha="one"),
    exact_products.Case(35, 150, 1072, pitched=True),
    exact_products.Case(40, 24, 1152, out_dtype=torch.float32, bias="fp32"),
    exact_products.Case(24, 40, 0, bias="fp32", c="c"),
]
DEVICE = 0


def plan(case: exact_products.Case) -> dict[str, object]:
    """The plan for dense, aligned operands in the 128x4 layout; cases for cp.async kernels have other candidates."""
    return nvfp4.info(case.m, case.n, case.k, case.l or 1, device=DEVICE, backend="sm100")["plan"]


@pytest.fixture
def sm100(backend: Backend) -> Backend:
    if backend.name != "sm100":
        pytest.skip("tests sm100")
    return backend


def test_every_instantiation_is_among_them(sm100: Backend, candidate: None) -> None:
    found = set()
    for case in CASES:
        for i in range(plan(case)["candidates"]):
            _C.set_candidate(i)
            found.add((plan(case)["kernel"], plan(case)["split_k"] > 1))
    names = [config.kernel for config in headers_of("sm100").configs().values()]
    assert len(names) > 1 and found == {(name, split) for name in names for split in (False, True)}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equal_bits(case: exact_products.Case, sm100: Backend, candidate: None) -> None:
    """An index beyond the last candidate selects the last one, so counting too far is no error."""
    for i in range(96):
        _C.set_candidate(i)
        if i and i >= plan(case)["candidates"]:
            break
        assert exact_products.run(case, "sm100", sm100.device) == "", f"candidate {i}: {plan(case)}"
    else:
        pytest.fail("more plans than this test tries")
