"""Launches the kernels of csrc/kernels/sm90/gemv.cu on the emulated H200 without the planner: any instantiation, number
of SMs and split along K.

Structs mirror csrc/kernels/common/problem.h and csrc/kernels/sm90/gemv_config.h; the instantiations are read from the
header. Operands and checks are those of sm100/launch.py."""

from __future__ import annotations

import ctypes
import re
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import sm100.launch  # noqa: E402
from sm100.launch import CSRC, Module, Problem, compile_ptx  # noqa: E402

STEP_K, TILE_N = 512, 8
PARTIALS_LIMIT = 16384  # bytes
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
    rows = re.findall(r"X\((sm90_gemv_\w+), ([\d, ]+)\)", (CSRC / "kernels/sm90/gemv_config.h").read_text())
    return {name: Config(name, *map(int, numbers.split(","))) for name, numbers in rows}


def gemv_ptx() -> str:
    return compile_ptx(CSRC / "kernels/sm90/gemv.cu", family="sm90")


class Schedule(ctypes.Structure):
    """sm90_gemv_schedule."""

    _fields_ = [
        (name, ctypes.c_int32) for name in ("ctas", "tiles_per_cta", "full_ctas", "steps", "log2_split_k", "padding")
    ]


def schedule(config: Config, n: int, k: int, l: int, sms: int, split_k: int = 0) -> tuple[Schedule, int]:
    """The schedule by the header's rule, or with that split_k; and the bytes of shared memory."""
    steps, tiles = -(-k // STEP_K), n // 128 * 16 + -(-min(n % 128, 32) // 2)
    tile_bytes = config.rows * TILE_N * 4
    ctas = max(min(tiles, max(1, sms // l)), -(-tiles // (PARTIALS_LIMIT // tile_bytes)))
    tiles_per_cta = -(-tiles // ctas)
    splits = [1] + [s for s in (2, 4, 8, 16, 32) if s <= min(config.warps, steps)]
    splits = [s for s in splits if tiles_per_cta * s * tile_bytes <= PARTIALS_LIMIT]
    busiest = {s: -(-tiles_per_cta // (config.warps // s)) * -(-steps // s) for s in splits}
    split_k = split_k or min(splits, key=lambda s: (busiest[s], s))
    stages = min(config.stages, busiest[split_k])
    a_bytes = config.rows * steps * (STEP_K // 16) * (16 + 4 if config.rows == 1 else 16 + 8)
    stages_bytes = config.warps * stages * TILE_N * (STEP_K // 2 + STEP_K // 16)
    made = Schedule(ctas, tiles_per_cta, tiles % ctas, steps, split_k.bit_length() - 1)
    return made, tiles_per_cta * split_k * tile_bytes + a_bytes + stages_bytes


class Product(sm100.launch.Product):
    """Sums are exact in fp32 for 324 K <= 2^22: equal bits in any order of summation."""

    def launch(
        self,
        module: Module,
        config: Config,
        sms: int = 132,
        split_k: int = 0,
        problem: Problem | None = None,
        wait: bool = True,
    ) -> None:
        made, shared = schedule(config, self.n, self.k, self.l, sms, split_k)
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
