"""Schedule and grid of csrc/kernels/sm90/gemv.cu: any number of SMs and split along K."""

from __future__ import annotations

from emulate import Module
from harness import launch
from harness.headers import Config, Struct, family
from harness.launch import SHARED_LIMIT
from harness.values import ceil_div

FAMILY = family("sm90")
CONFIGS = FAMILY.configs("gemv")
Schedule = FAMILY.structs["sm90_gemv_schedule"]


def schedule(config: Config, n: int, k: int, l: int, sms: int, split_k: int = 0) -> tuple[Struct, int]:
    """The schedule by the header's rule, or with that split_k; and the bytes of shared memory."""
    steps, tiles = config.steps(k), config.tiles(n)
    ctas = max(min(tiles, max(1, sms // l)), ceil_div(tiles, config.partials_limit // config.partials_bytes(1, 1)))
    tiles_per_cta = ceil_div(tiles, ctas)
    splits = [1] + [s for s in (2, 4, 8, 16, 32) if s <= min(config.warps, steps)]
    splits = [s for s in splits if config.partials_bytes(tiles_per_cta, s) <= config.partials_limit]
    busiest = {s: ceil_div(tiles_per_cta, config.warps // s) * ceil_div(steps, s) for s in splits}
    split_k = split_k or min(splits, key=lambda s: (busiest[s], s))
    stages = FAMILY.value("SM90_GEMV_STAGES_BYTES", config.warps, min(config.stages, busiest[split_k]))
    made = Schedule(ctas, tiles_per_cta, tiles % ctas, steps, split_k.bit_length() - 1)
    return made, config.partials_bytes(tiles_per_cta, split_k) + config.a_bytes(steps) + stages


class Product(launch.Product):
    def launch(self, module: Module, config: Config, sms: int = 132, split_k: int = 0, wait: bool = True) -> None:
        made, shared = schedule(config, self.n, self.k, self.l, sms, split_k)
        assert shared <= SHARED_LIMIT
        self.start(module, config, made, made.ctas * self.l, shared, wait=wait)
