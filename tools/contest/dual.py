"""The competition's task nvfp4_dual_gemm: its shapes, its inputs, and its definition in plain torch."""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .amalgamate import SOURCES

if TYPE_CHECKING:
    import torch

    from .method import Data

NAME = "nvfp4_dual_gemm"
TASK = SOURCES / "contest/task_dual_gemm.yml"
VALUES = 0b10111011  # of a byte: 0, 0.5, 1, 1.5 and their negatives


def definition(task: str) -> ModuleType:
    """The module with generate_input, ref_kernel and check_implementation of a task: this one or nvfp4.reference."""
    from nvfp4 import reference

    return sys.modules[__name__] if task == NAME else reference


def load_task(task: str = NAME) -> dict[str, Any]:
    """The content of the yml file of this task, or of one that reference.load_task knows."""
    from nvfp4 import reference

    return reference.load_task(TASK if task == NAME else task)


def generate_input(
    m: int,
    n: int,
    k: int,
    l: int,  # noqa: E741 (the problem's name for the batch)
    seed: int,
    *,
    exact: bool = False,
    device: torch.device | str | None = None,
    drawn_on: torch.device | str = "cpu",
) -> Data:
    """(a, b1, b2, sfa, sfb1, sfb2, sfa_permuted, sfb1_permuted, sfb2_permuted, c), laid out, placed on `device` and
    drawn on `drawn_on` as by reference.generate_input.

    Scales are uniform in [0, 1), rounded to e4m3; with `exact` they are 0 or 1, and then no sum rounds. Bytes of
    padding of the permuted scales are NaN.
    """
    import torch

    from nvfp4 import reference

    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    drawn = {"generator": torch.Generator(drawn_on).manual_seed(seed), "device": drawn_on}

    def values(rows: int) -> torch.Tensor:
        byte = torch.randint(0, 256, (l, rows, k // 2), dtype=torch.uint8, **drawn) & VALUES
        return byte.to(device).permute(1, 2, 0).view(torch.float4_e2m1fn_x2)

    def scale_pair(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        uniform = torch.rand((l, rows, k // reference.BLOCK), **drawn)
        linear = (uniform.round() if exact else uniform).to(torch.float8_e4m3fn).to(device)
        swizzled = reference.swizzle(reference.as_bytes(linear), reference.E4M3_NAN).view(torch.float8_e4m3fn)
        return linear.permute(1, 2, 0), swizzled.permute(3, 4, 1, 5, 2, 0)

    data = [values(rows) for rows in (m, n, n)]
    linear, permuted = zip(*(scale_pair(rows) for rows in (m, n, n)))
    c = torch.full((l, m, n), math.nan, dtype=torch.float16, device=device).permute(1, 2, 0)
    return (*data, *linear, *permuted, c)


def ref_kernel(data: Data) -> torch.Tensor:
    """The result, in a new tensor laid out as c: silu(gate) * up in fp32 of fp32 products, rounded once."""
    import torch

    from nvfp4 import reference

    a, b1, b2, sfa, sfb1, sfb2 = (reference.as_bytes(x).permute(2, 0, 1) for x in data[:6])
    gate, up = (
        reference.gemm(a, b, sfa, sfb, scale_layout="linear", out_dtype=torch.float32)
        for b, sfb in ((b1, sfb1), (b2, sfb2))
    )
    return reference.gated(gate, up, "silu", out_dtype=torch.float16).permute(1, 2, 0)


def check_implementation(data: Data, output: torch.Tensor, *, exact: bool = False) -> tuple[bool, str]:
    """(whether output is right, why not or how near it is), as reference.check_implementation."""
    from nvfp4 import reference

    return reference.compare(output, ref_kernel(data), exact=exact)
