"""Products of csrc/kernels/sm90/grouped_few.cu: any number of CTAs."""

from __future__ import annotations

from emulate import Module
from harness.headers import Config
from harness.launch import EVICT_FIRST, SWIZZLE_128
from harness.values import ceil_div
from sm90.gemm import HEADERS
from units import grouped as grouped_units

CONFIGS = HEADERS.configs("grouped_few")
Schedule = HEADERS.structs["sm90_grouped_few_schedule"]
STAGE_K = HEADERS.value("SM90_GROUPED_FEW_STAGE_K")
TILE_N, BOX_ROWS = (HEADERS.value(f"SM90_GROUPED_{name}") for name in ("TILE_N", "BOX_ROWS"))


class Product(grouped_units.Product):
    """Results have 16 bits. A tile has columns of both parts of an activation."""

    early_b = 0

    def launch_few(self, module: Module, config: Config, ctas: int = 132, wait: bool = True) -> None:
        both = self.activation is not None and self.parts == 2
        made = Schedule(
            b_cache_policy=EVICT_FIRST, stages_k=ceil_div(self.k, STAGE_K),
            tiles_n=ceil_div(self.n, TILE_N // (1 + both)), early_b=self.early_b,
        )  # fmt: skip
        if self.activation:
            self.activation.fill(made.numbers, self.parts)
        made.b = self.values_map(1, (STAGE_K // 2, BOX_ROWS, 1), SWIZZLE_128)
        self.start(module, config, made, ctas, config.shared_bytes, wait=wait)
