"""Schedule and grid of csrc/kernels/sm120/grouped.cu."""

from __future__ import annotations

from emulate import Module
from harness import groups
from harness.headers import Config
from harness.launch import EVICT_FIRST, EVICT_LAST
from harness.values import ceil_div
from sm120.gemm import HEADERS

CONFIGS = HEADERS.configs("grouped")
Schedule = HEADERS.structs["sm120_grouped_schedule"]


class Groups(groups.Groups):
    def launch(self, module: Module, config: Config, grid: int = 0, wait: bool = True) -> None:
        by_tma, row_bytes = self.pitch % 16 == 0, config.stage_k // 2
        schedule = Schedule(
            mma_a=self.operand(row_bytes, 1, config.mma_tile_m, EVICT_FIRST),
            mma_b=self.operand(row_bytes, 0, config.mma_tile_n, EVICT_LAST),
            tiles_n=ceil_div(self.n, config.mma_tile_m),
            scales_by_tma=int(by_tma and not self.linear), values_by_tma=int(by_tma),
        )  # fmt: skip
        if self.activation:
            schedule.pairs = self.parts - 1
            self.set_numbers(schedule.numbers)
        self.start(module, config, schedule, grid or max(1, self.tiles(config)), config.shared_bytes, wait=wait)

    def tiles(self, config: Config) -> int:
        return self.along(config) * ceil_div(self.n, config.mma_tile_m) * (1 if self.activation else self.parts)
