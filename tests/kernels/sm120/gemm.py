"""Operands, schedule and grid of csrc/kernels/sm120/gemm.cu."""

from __future__ import annotations

from emulate import Module
from harness import launch
from harness.headers import Config, Struct, headers_of
from harness.launch import EVICT_FIRST, EVICT_LAST, SWIZZLE_64, SWIZZLE_128
from harness.values import ceil_div

HEADERS = headers_of("sm120")
CONFIGS = HEADERS.configs("gemm")
Operand, Schedule = HEADERS.structs["mma_operand"], HEADERS.structs["sm120_schedule"]
PART_K = HEADERS.value("SM120_PART_K")
SHARED_LIMIT = 101376  # of a CTA


def splits(config: Config) -> list[int]:
    """Every split_k: partial sums have room in place of the stages."""
    room = config.stages * config.stage_bytes
    return [1, *(split for split in (2, 4, 8) if config.partials_bytes(split) <= room)]


class Product(launch.Product):
    constant_b = False  # the caller's word: grids before do not write B
    group_m = 1

    def operand(self, config: Config, which: int, box_rows: int, cache_policy: int) -> Struct:
        operand = Operand(cache_policy=cache_policy, **self.placed(which))
        if self.k and self.pitch % 16 == 0:
            row_bytes = config.stage_k // 2
            swizzle = {128: SWIZZLE_128, 64: SWIZZLE_64}[row_bytes]
            operand.values = self.values_map(which, (row_bytes, box_rows, 1), swizzle)
        return operand

    def schedule(self, config: Config, swap_ab: bool, split_k: int) -> Struct:
        mma_a, mma_b = (1, 0) if swap_ab else (0, 1)
        tiles_mma_m = ceil_div(self.rows(mma_a), config.mma_tile_m)
        tiles_mma_n = ceil_div(self.rows(mma_b), config.mma_tile_n)
        values_by_tma = self.pitch % 16 == 0
        scales_by_tma = values_by_tma and not self.linear and self.k % 64 == 0
        return Schedule(
            mma_a=self.operand(config, mma_a, config.mma_tile_m, EVICT_FIRST),
            mma_b=self.operand(config, mma_b, config.mma_tile_n, EVICT_LAST),
            tiles=tiles_mma_m * tiles_mma_n * self.l, tiles_mma_m=tiles_mma_m, tiles_mma_n=tiles_mma_n,
            group_m=self.group_m, split_k=split_k, k_parts=ceil_div(self.k, PART_K), swap_ab=int(swap_ab),
            scales_by_tma=int(scales_by_tma), values_by_tma=int(values_by_tma),
            constant_operand=1 + mma_b if self.constant_b and scales_by_tma else 0,
        )  # fmt: skip

    def launch(
        self, module: Module, config: Config, swap_ab: bool = True, split_k: int = 1, clusters: int = 0,
        wait: bool = True,
    ) -> None:  # fmt: skip
        """clusters: of the grid; 0: one for each tile."""
        schedule = self.schedule(config, swap_ab, split_k)
        grid = (clusters or schedule.tiles) * split_k
        self.start(module, config, schedule, grid, config.shared_bytes, split_k, wait)
