"""Schedule and grid of csrc/kernels/sm100/grouped.cu."""

from __future__ import annotations

from emulate import Module
from harness import groups
from harness.headers import Config
from harness.launch import EVICT_FIRST, EVICT_LAST
from harness.values import ceil_div
from sm100.gemm import CTA_ROWS, HEADERS, STAGE_K, column_pairs

CONFIGS = HEADERS.configs("grouped")
Schedule = HEADERS.structs["sm100_grouped_schedule"]
BOX_ROWS = HEADERS.value("SM100_GROUPED_BOX_ROWS")


class Groups(groups.Groups):
    def launch(self, module: Module, config: Config, grid: int = 0, wait: bool = True) -> None:
        assert config.matrices == (self.parts if self.activation else 1), f"{config} has other tiles"
        schedule = Schedule(
            mma_a=self.operand(STAGE_K // 2, 1, CTA_ROWS, EVICT_FIRST),
            mma_b=self.operand(STAGE_K // 2, 0, BOX_ROWS, EVICT_LAST),
            tiles_n=ceil_div(self.n, CTA_ROWS), column_pairs=column_pairs(self.problem().g, True),
        )  # fmt: skip
        if self.activation:
            self.set_numbers(schedule.numbers)
        self.start(module, config, schedule, grid or max(1, self.tiles(config)), config.shared_bytes, wait=wait)

    def tiles(self, config: Config) -> int:
        return self.along(config) * ceil_div(self.n, CTA_ROWS) * (self.parts // config.matrices)
