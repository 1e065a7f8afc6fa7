"""Products of csrc/kernels/sm90/grouped.cu behind its pre-pass, csrc/kernels/sm90/reorder.cu."""

from __future__ import annotations

import numpy
from emulate import Module
from harness.headers import Config
from harness.launch import EVICT_FIRST, UINT8, compile_ptx
from harness.values import ceil_div
from paths import CSRC
from sm90 import grouped_units

FAMILY = grouped_units.FAMILY
CONFIGS = FAMILY.configs("grouped")
Schedule, ReorderSchedule = (FAMILY.structs[f"sm90_{name}_schedule"] for name in ("grouped", "reorder"))
STAGE_K, TILE_N = FAMILY.value("SM90_STAGE_K"), FAMILY.value("SM90_GROUPED_TILE_N")
THREADS = FAMILY.value("SM90_REORDER_THREADS")


def reorder_ptx() -> str:
    return compile_ptx(CSRC / "kernels/sm90/reorder.cu", "sm90")


class Product(grouped_units.Product):
    """A row of A is put into order once, or where A has more rows than the result, once for each row of the result."""

    def make_workspace(self) -> None:
        """Before what must not wait for the GPU, as making an array does."""
        self.stages = ceil_div(self.k, STAGE_K)
        self.count = min(self.m, len(self.values))
        self.workspace = self.emulator.empty((self.count, self.stages * STAGE_K * 2), numpy.uint8)

    def queue(self, reorder: Module, module: Module, config: Config, ctas: int) -> None:
        gathers = len(self.values) > self.m
        rows = self.placed_rows.address if gathers and self.placed_rows else 0
        before = ReorderSchedule(
            a=self.arrays[0].address, a_pitch=self.a_pitch, a_rows=len(self.values), rows=rows,
            to=self.workspace.address, count=self.count, k=self.k, stages=self.stages, bf16=config.bf16,
        )  # fmt: skip
        self.emulator.launch(
            reorder["nvfp4_sm90_reorder"], grid=FAMILY.value("SM90_REORDER_CTAS", self.count, self.stages),
            block=THREADS, args=[bytes(before)], programmatic=True, wait=False,
        )  # fmt: skip
        made = Schedule(
            b_cache_policy=EVICT_FIRST, a=self.workspace.address, a_is_gathered=int(gathers),
            tiles_n=ceil_div(self.n, TILE_N),
        )  # fmt: skip
        dims, strides = (self.k // 2, self.n, self.l), (self.pitch, self.n * self.pitch)
        made.b = self.tensor_map(UINT8, self.arrays[2], dims, strides, (STAGE_K // 2, TILE_N, 1))
        self.start(module, config, made, ctas, config.shared_bytes, wait=False)
