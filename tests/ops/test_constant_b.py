"""gemm(..., constant_b=True) behind the kernel that writes a: the same bits as without, and who passes the flags. What
may be read early: kernels/test_dependent_launch.py, and on a GPU kernels/test_late_operands.py."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import Backend

import nvfp4
from nvfp4 import _C

PLANS = 3  # of a shape, on an emulated GPU


@pytest.mark.parametrize(("m", "n", "k"), [(3, 200, 544), (9, 260, 1056), (40, 300, 1056), (70, 140, 1600)])
def test_same_bits_behind_quantize(m: int, n: int, k: int, backend: Backend, generator: torch.Generator) -> None:
    """Random plans: A and B as mma_a, with the pre-pass and without. Two calls share the workspace's memory."""
    weight, x = (torch.randn(rows, k, generator=generator).to(backend.device) for rows in (n, m))
    b, scale_b = nvfp4.quantize(weight)
    expected = None
    count = 1 if backend.name == "cpu" else nvfp4.info(m, n, k, device=0, backend=backend.name)["plan"]["candidates"]
    draw = random.Random(f"{os.environ['NVFP4_TEST_SEED']} {m}")
    try:
        for rank in sorted(draw.sample(range(count), min(count, PLANS)) if backend.emulated else range(count)):
            if count > 1:
                _C.set_candidate(rank)
            a, scale_a = nvfp4.quantize(x)
            options = {"out_dtype": torch.float32, "backend": backend.name}
            expected = nvfp4.gemm(a, b, scale_a, scale_b, **options)
            for _ in range(2):
                a, scale_a = nvfp4.quantize(x)
                assert torch.equal(nvfp4.gemm(a, b, scale_a, scale_b, **options, constant_b=True), expected), rank
    finally:
        _C.set_candidate(0)
    assert expected is not None


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The flags of all calls from now on."""
    seen: list[int] = []

    def recording(call: Callable[..., Any], behind_backend: int) -> Callable[..., Any]:
        def record(*arguments: Any) -> Any:
            seen.append(arguments[behind_backend])
            return call(*arguments)

        return record

    monkeypatch.setattr(_C, "gemm", recording(_C.gemm, 10))
    monkeypatch.setattr(_C, "quantize_gemm", recording(_C.quantize_gemm, 11))
    return seen


def test_flags(flags: list[int]) -> None:
    x = torch.ones(2, 32)
    a, scale_a = nvfp4.quantize(x)
    for batch_invariant in (False, True):
        for constant_b in (False, True):
            nvfp4.gemm(a, a, scale_a, scale_a, batch_invariant=batch_invariant, constant_b=constant_b)
            assert flags.pop() == batch_invariant + 2 * constant_b
            nvfp4.quantize_gemm(x, a, scale_a, batch_invariant=batch_invariant, constant_b=constant_b)
            assert flags.pop() == batch_invariant + 2 * constant_b


@pytest.mark.parametrize("activations", ["nvfp4", None])
def test_linear_does_not_pass_it(activations: str | None, flags: list[int]) -> None:
    """What precedes the product may have written the weight."""
    layer = nvfp4.Linear(32, 8, activations=activations)
    with torch.inference_mode():
        layer(torch.ones(2, 32, dtype=torch.float16))
    assert flags == [0]


def test_experts_pass_it_and_the_ends_of_their_second_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """moe_route, which writes the ends, is right before the first product, and a product lies between it and the
    second."""
    seen: list[tuple[int, int]] = []  # rows of a matrix, flags

    def recording(call: Callable[..., Any]) -> Callable[..., Any]:
        def record(*arguments: Any) -> Any:
            seen.append((arguments[1].shape[-2], next(x for x in arguments[10:] if type(x) is int)))
            return call(*arguments)

        return record

    for name in ("grouped_gemm", "gated_grouped_gemm"):
        monkeypatch.setattr(_C, name, recording(getattr(_C, name)))
    layer = nvfp4.Experts(3, 32, 16, activations=None)
    ids, weights = torch.tensor([[0, 2]]), torch.ones(1, 2)
    with torch.inference_mode():
        layer(torch.ones(1, 32, dtype=torch.float16), ids, weights)
    assert seen == [(16, _C.CONSTANT_B), (32, _C.CONSTANT_B + _C.CONSTANT_ENDS)]
