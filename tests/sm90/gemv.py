"""Launches the kernels of csrc/sm90_gemv.cu on the emulated H200 by hand: any instantiation, number of SMs and cut of
K, whether plan.c would choose it or not.

The structs are those of csrc/device/problem.h and csrc/sm90_gemv_configs.h; the instantiations are read from the
header. What products are made of is sm100/launch.py's.
"""

from __future__ import annotations

import ctypes
import re
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import sm100.launch  # noqa: E402
from sm100.launch import CSRC, Module, Problem, compile_ptx  # noqa: E402

STEP_K, UNIT_ROWS = 512, 8
PARTS_LIMIT = 16384  # bytes
SHARED_LIMIT = 227 * 1024  # of a CTA


@dataclass(frozen=True)
class Config:
    """A row of SM90_GEMV_CONFIGS."""

    name: str
    rows: int
    warps: int
    stages: int

    @property
    def kernel(self) -> str:
        return f"nvfp4_{self.name}"


def configs() -> dict[str, Config]:
    rows = re.findall(r"X\((sm90_gemv_\w+), ([\d, ]+)\)", (CSRC / "sm90_gemv_configs.h").read_text())
    return {name: Config(name, *map(int, numbers.split(","))) for name, numbers in rows}


def gemv_ptx() -> str:
    return compile_ptx(CSRC / "sm90_gemv.cu", family="sm90")


class Schedule(ctypes.Structure):
    """sm90_gemv_schedule."""

    _fields_ = [
        (name, ctypes.c_int32) for name in ("ctas", "units_per_cta", "units_left", "steps", "log2_cut", "padding")
    ]


def schedule(config: Config, n: int, k: int, l: int, sms: int, cut: int = 0) -> tuple[Schedule, int]:
    """By the rule of the header, or with that cut; and the bytes of shared memory."""
    steps, units = -(-k // STEP_K), n // 128 * 16 + -(-min(n % 128, 32) // 2)
    unit_bytes = config.rows * UNIT_ROWS * 4
    ctas = max(min(units, max(1, sms // l)), -(-units // (PARTS_LIMIT // unit_bytes)))
    units_per_cta = -(-units // ctas)
    cuts = [1] + [c for c in (2, 4, 8, 16, 32) if c <= min(config.warps, steps)]
    cuts = [c for c in cuts if units_per_cta * c * unit_bytes <= PARTS_LIMIT]
    busiest = {c: -(-units_per_cta // (config.warps // c)) * -(-steps // c) for c in cuts}
    cut = cut or min(cuts, key=lambda c: (busiest[c], c))
    slots = min(config.stages, busiest[cut])
    a_bytes = config.rows * steps * (STEP_K // 16) * (16 + 4 if config.rows == 1 else 16 + 8)
    ring_bytes = config.warps * slots * UNIT_ROWS * (STEP_K // 2 + STEP_K // 16)
    made = Schedule(ctas, units_per_cta, units % ctas, steps, cut.bit_length() - 1)
    return made, units_per_cta * cut * unit_bytes + a_bytes + ring_bytes


class Product(sm100.launch.Product):
    """Sums are exact in fp32 as long as 324 K <= 2^22: equal bits in any order of summation."""

    def launch(
        self,
        module: Module,
        config: Config,
        sms: int = 132,
        cut: int = 0,
        problem: Problem | None = None,
        wait: bool = True,
    ) -> None:
        made, shared = schedule(config, self.n, self.k, self.l, sms, cut)
        assert shared <= SHARED_LIMIT
        self.emulator.launch(
            module[config.kernel],
            grid=made.ctas * self.l,
            block=32 * config.warps,
            args=[bytes(problem or self.problem()), bytes(made)],
            shared=shared,
            programmatic=True,
            wait=wait,
        )
