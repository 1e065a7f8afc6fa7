"""Schedule and grid of csrc/kernels/sm90/skinny.cu: any number of SMs."""

from __future__ import annotations

from emulate import Module
from harness import launch
from harness.headers import Config, Struct, family
from harness.launch import EVICT_FIRST, EVICT_LAST, SHARED_LIMIT, SWIZZLE_128
from harness.values import ceil_div

FAMILY = family("sm90")
CONFIGS = FAMILY.configs("skinny")
Schedule = FAMILY.structs["sm90_skinny_schedule"]
STEP_K = FAMILY.value("SM90_SKINNY_STEP_K")


def schedule(config: Config, n: int, k: int, l: int, sms: int) -> tuple[Struct, int]:
    """Without the operands; and the bytes of shared memory."""
    tiles = ceil_div(n, 8 * config.b_units)
    ctas = min(tiles, max(1, sms // l))
    offset = ceil_div(config.stages_bytes, 16) * 16 if tiles > ctas else 0
    made = Schedule(ctas=ctas, tiles=tiles, steps=ceil_div(k, STEP_K), sums_offset=offset)
    return made, max(config.stages_bytes, offset + config.sums_bytes)


class Product(launch.Product):
    def launch(self, module: Module, config: Config, sms: int = 132, wait: bool = True) -> None:
        made, shared = schedule(config, self.n, self.k, self.l, sms)
        if shared > SHARED_LIMIT:  # no room for several tiles a CTA: no candidate
            made, shared = schedule(config, self.n, self.k, self.l, made.tiles * self.l)
        assert shared <= SHARED_LIMIT
        made.a_cache_policy, made.b_cache_policy = EVICT_LAST, EVICT_FIRST
        made.a = self.values_map(0, (STEP_K // 2, self.extras.get("m", self.m), 1), SWIZZLE_128)
        made.b = self.values_map(1, (STEP_K // 2, 8 * config.b_units, 1), SWIZZLE_128)
        self.start(module, config, made, made.ctas * self.l, shared, wait=wait)
