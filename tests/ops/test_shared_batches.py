"""Operands that serve every batch (batch stride 0) and outputs whose batches lie inside the rows, c being out itself:
equal bits, on every backend."""

from __future__ import annotations

import math
import random

import pytest
import torch
from conftest import Backend

import nvfp4
from nvfp4 import reference

CONTEST = torch.tensor(reference.SCALE_SETS["contest"], dtype=torch.uint8)


def operand(
    batches: int, rows: int, k: int, shared: bool, linear: bool, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    count = 1 if shared else batches
    data = torch.randint(0, 256, (count, rows, k // 2), dtype=torch.uint8, generator=generator)
    scale = CONTEST[torch.randint(0, len(CONTEST), (count, rows, k // 16), generator=generator)]
    scale = scale.expand(batches, -1, -1)
    if not linear:  # that layout has no strides
        scale = reference.swizzle(scale.contiguous(), padding=reference.E4M3_NAN)
    return data.expand(batches, -1, -1), scale


def output(form: str, batches: int, m: int, n: int, dtype: torch.dtype) -> torch.Tensor:
    """Poisoned."""
    if form == "batches inside rows":
        padded = torch.full((m, batches, -(-n // 16) * 16), math.nan, dtype=dtype)
        return padded.transpose(0, 1)[:, :, :n]
    pitch = n if form == "contiguous" else -(-(n + 8) // 8) * 8
    return torch.full((batches, m, pitch), math.nan, dtype=dtype)[:, :, :n]


@pytest.mark.parametrize("form", ["contiguous", "pitch", "batches inside rows"])
@pytest.mark.parametrize("shared", ["a", "b", "both"])
@pytest.mark.parametrize("linear", [False, True], ids=["128x4", "linear"])
def test_batches(backend: Backend, form: str, shared: str, linear: bool, generator: torch.Generator) -> None:
    draw = random.Random(generator.initial_seed())
    batches, m, n = draw.choice((2, 3)), draw.choice((1, 3, 9, 17, 40, 130)), draw.choice((8, 40, 140, 300))
    k, dtype = draw.choice((64, 128, 320, 1120)), draw.choice((torch.float16, torch.bfloat16, torch.float32))
    a, scale_a = operand(batches, m, k, shared in ("a", "both"), linear, generator)
    b, scale_b = operand(batches, n, k, shared in ("b", "both"), linear, generator)
    out = output(form, batches, m, n, dtype)
    add = None
    if draw.random() < 0.5:
        add = torch.randn(out.shape, generator=generator).to(dtype)
        out.copy_(add)
    beta = 0.0 if add is None else 0.5
    layout = "linear" if linear else "128x4"
    expected = reference.gemm(
        *(x.contiguous() for x in (a, b, scale_a, scale_b)),
        out_dtype=dtype,
        scale_layout=layout,
        c=add,
        beta=beta if add is not None else 0.0,
    )
    # to() keeps strides only of non-overlapping contiguous tensors.
    on_device = torch.empty_strided(out.shape, out.stride(), dtype=dtype, device=backend.device).copy_(out)
    operands = [
        x
        if backend.device == "cpu"
        else x[:1].to(backend.device).expand_as(x)
        if x.stride(0) == 0
        else x.to(backend.device)
        for x in (a, b, scale_a, scale_b)
    ]
    nvfp4.gemm(
        *operands,
        out=on_device,
        scale_layout=layout,
        backend=backend.name,
        c=None if add is None else on_device,
        beta=beta,
    )
    equal, message = reference.compare(on_device.cpu(), expected, exact=True)
    assert equal, (batches, m, n, k, dtype, add is not None, message)
