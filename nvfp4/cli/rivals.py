"""What `nvfp4 bench` compares on one shape: our product and what torch offers for the same numbers.

Every contestant multiplies the same values. Weights of torch's plain products are expanded beforehand and outside the
timing; "dequantise + matmul" starts from the NVFP4 bytes, as we do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import gemm, swizzle
from .machine import available_memory, last_level_cache, need_torch
from .show import Failure
from .timing import Contestant

if TYPE_CHECKING:
    import torch

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
SCALE_BYTES = (0x30, 0x48)  # e4m3 of 0.5 up to below 4: results stay far inside fp16
AGREEMENT = 2e-2  # relative Frobenius norm: bf16 results round at 2^-9, and a wrong product is off by about 1


@dataclass(frozen=True)
class Shape:
    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def operations(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """The least that must move: both operands and their scales read, fp16 results written."""
        return (self.m + self.n) * (self.k // 2 + self.k // 16) + 2 * self.m * self.n


@dataclass
class Operand:
    data: torch.Tensor  # [rows, K/2]
    linear: torch.Tensor  # [rows, K/16]
    swizzled: torch.Tensor


def operands(count: int, rows: int, k: int, device: torch.device, generator: torch.Generator) -> list[Operand]:
    """Random operands, each in memory of its own."""
    torch = need_torch()
    words = torch.randint(-(2**62), 2**62, (count, rows, k // 16), device=device, generator=generator)
    scale = torch.randint(*SCALE_BYTES, words.shape, device=device, generator=generator, dtype=torch.uint8)
    scale = scale.view(torch.float8_e4m3fn)
    return [Operand(*tensors) for tensors in zip(words.view(torch.uint8), scale, swizzle(scale))]


def pair_table(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[256, 2]: the two values that a byte holds, low nibble first."""
    torch = need_torch()
    values = torch.tensor([*E2M1, *(-v for v in E2M1)], dtype=dtype, device=device)
    byte = torch.arange(256, device=device)
    return torch.stack([values[byte & 15], values[byte >> 4]], dim=1)


def expand(operand: Operand, table: torch.Tensor) -> torch.Tensor:
    """The operand in the table's dtype, exact in fp16 and in bf16; one gather and one multiplication in place."""
    rows = operand.data.shape[0]
    blocks = table[operand.data.int()].view(rows, -1, 16)
    return blocks.mul_(operand.linear.to(table.dtype).unsqueeze(2)).view(rows, -1)


@dataclass
class Bench:
    contestants: list[Contestant]  # ours first
    sets: dict[str, int]  # input sets that each one rotates through
    cold: bool  # each one's sets together exceed the last-level cache


def line_up(shape: Shape, device: torch.device, backend: str | None, seed: int) -> Bench:
    """Makes the inputs and the contestants, and checks that all compute the same product."""
    torch = need_torch()
    generator = torch.Generator(device).manual_seed(seed)
    dtypes = [torch.float16] if device.type == "cuda" else [torch.bfloat16, torch.float32]
    tables = {dtype: pair_table(dtype, device) for dtype in dtypes}
    values = shape.n * shape.k
    weights = {"nvfp4": values * 9 // 16} | {name(dtype): values * dtype.itemsize for dtype in dtypes}
    sets, cold = rotation(weights, device)

    a, b = (operands(sets["nvfp4"], rows, shape.k, device, generator) for rows in (shape.m, shape.n))
    packed = list(zip(a, b))
    out = torch.full((shape.m, shape.n), math.nan, dtype=torch.float16, device=device)

    def ours(i: int) -> torch.Tensor:
        a, b = packed[i % len(packed)]
        return gemm(a.data, b.data, a.swizzled, b.swizzled, out=out, backend=backend)

    def dequantise(i: int) -> torch.Tensor:
        a, b = packed[i % len(packed)]
        return expand(a, tables[dtypes[0]]) @ expand(b, tables[dtypes[0]]).T

    contestants = [Contestant("nvfp4", ours)]
    for dtype in dtypes:
        # Set i of the expanded operands has the values of packed set i, modulo how many there are of those.
        count = sets[name(dtype)]
        wide = [tuple(expand(x, tables[dtype]) for x in packed[i % len(packed)]) for i in range(count)]
        buffer = torch.empty((shape.m, shape.n), dtype=dtype, device=device)

        def matmul(i: int, wide=wide, buffer=buffer) -> torch.Tensor:
            a, b = wide[i % len(wide)]
            return torch.matmul(a, b.T, out=buffer)

        contestants.append(Contestant(name(dtype), matmul))
    contestants.append(Contestant("torch dequantise + matmul", dequantise))

    expected = contestants[0].call(0).double()
    for rival in contestants[1:]:
        error = ((rival.call(0).double() - expected).norm() / expected.norm()).item()
        if not error < AGREEMENT:
            raise Failure(f"{shape}: nvfp4 and {rival.name} differ by {error:.3g} in norm; nothing was timed")
    return Bench(contestants, sets, cold)


def name(dtype: torch.dtype) -> str:
    short = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
    return f"torch {short[str(dtype).removeprefix('torch.')]} matmul"


def rotation(weights: dict[str, int], device: torch.device) -> tuple[dict[str, int], bool]:
    """How many input sets each contestant rotates through, and whether that keeps the CPU's caches cold.

    On a GPU the clock evicts the L2 itself and three sets are enough; on a CPU the sets of each contestant together
    exceed the last-level cache, as far as half of the free memory allows.
    """
    if device.type == "cuda":
        return dict.fromkeys(weights, 3), True
    cache = last_level_cache() or 64 * 2**20
    wanted = {contestant: 1 + math.ceil(cache / size) for contestant, size in weights.items()}
    total = sum(wanted[contestant] * size for contestant, size in weights.items())
    share = min(1.0, available_memory() / 2 / total)
    sets = {contestant: max(1, int(count * share)) for contestant, count in wanted.items()}
    return sets, sets == wanted
