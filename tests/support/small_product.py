"""A small product, for tests of how calls are read rather than of what is computed."""

from __future__ import annotations

from typing import Any

import torch

M, N, K = 5, 7, 64


def operands(generator: torch.Generator) -> list[torch.Tensor]:
    """a, b, scale_a, scale_b (128x4), as uint8; finite."""
    a, b = (torch.randint(0, 256, (rows, K // 2), dtype=torch.uint8, generator=generator) for rows in (M, N))
    scales = torch.randint(0, 0x7F, (2, 128, 4), dtype=torch.uint8, generator=generator)
    return [a, b, *scales]


def bits(x: Any) -> bytes:
    return (x.contiguous().view(torch.uint8).numpy() if isinstance(x, torch.Tensor) else x).tobytes()
