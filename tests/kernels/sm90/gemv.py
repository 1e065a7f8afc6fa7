"""Schedule and grid of csrc/kernels/sm90/gemv.cu: any number of SMs and split along K."""

from __future__ import annotations

import functools
from typing import Any

import numpy
from emulate import Emulator, Module
from harness import launch
from harness.headers import Config, Struct, headers_of
from harness.launch import SHARED_LIMIT
from harness.values import BF16, FP16, ceil_div, stored

HEADERS = headers_of("sm90")
CONFIGS = HEADERS.configs("gemv")
QUANTIZING = {  # those that quantize A
    name: Config(HEADERS, ("SM90_GEMV_", "SM90_"), name, config.columns)
    for name, config in HEADERS.configs("gemv_quantize").items()
}
Schedule = HEADERS.structs["sm90_gemv_schedule"]


def schedule(config: Config, n: int, k: int, l: int, sms: int, split_k: int = 0) -> tuple[Struct, int]:
    """The schedule by the header's rule, or with that split_k; and the bytes of shared memory."""
    steps, tiles = config.steps(k), config.tiles(n)
    ctas = max(min(tiles, max(1, sms // l)), ceil_div(tiles, config.partials_limit // config.partials_bytes(1, 1)))
    tiles_per_cta = ceil_div(tiles, ctas)
    splits = [1] + [s for s in (2, 4, 8, 16, 32) if s <= min(config.warps, steps)]
    splits = [s for s in splits if config.partials_bytes(tiles_per_cta, s) <= config.partials_limit]
    busiest = {s: ceil_div(tiles_per_cta, config.warps // s) * ceil_div(steps, s) for s in splits}
    split_k = split_k or min(splits, key=lambda s: (busiest[s], s))
    stages = HEADERS.value("SM90_GEMV_STAGES_BYTES", config.warps, min(config.stages, busiest[split_k]))
    made = Schedule(ctas, tiles_per_cta, tiles % ctas, steps, split_k.bit_length() - 1)
    a_bytes = config.a_bytes(steps) + (config.x_bytes(steps) if config.name in QUANTIZING else 0)
    return made, config.partials_bytes(tiles_per_cta, split_k) + a_bytes + stages


class Product(launch.Product):
    def launch(self, module: Module, config: Config, sms: int = 132, split_k: int = 0, wait: bool = True) -> None:
        made, shared = schedule(config, self.n, self.k, self.l, sms, split_k)
        assert shared <= SHARED_LIMIT
        self.complete(made)
        self.start(module, config, made, made.ctas * self.l, shared, wait=wait)

    def complete(self, made: Struct) -> None:
        """Fills the schedule's other members."""


class Quantized(Product):
    """A is 16-bit numbers that quantize to the values and scales of `data`, each block of which has a 6 or -6."""

    global_scale = 0.125

    def __init__(
        self, emulator: Emulator, generator: launch.Generator, m: int, n: int, k: int, l: int = 1, x_type: int = BF16,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(emulator, generator, m, n, k, l, **options)
        self.data[0][:, :, : k // 2 : 8] |= 7
        self.x_type, self.in_memory = x_type, bool(generator.integers(2))  # of the global scale
        self.place_x(self.decoded(0) * self.global_scale, int(generator.integers(2)))

    def place_x(self, x: numpy.ndarray, spaces: int) -> None:
        """Copies x to the device. NaN follows each row, and A's own scales are NaN."""
        rows = numpy.full((self.l, self.m, self.k + 8 * spaces), 0xFFFF, "u2")
        rows[:, :, : self.k] = stored(x, self.x_type)
        self.arrays[0] = self.emulator.array(rows)
        self.arrays[1].numpy()[...] = 0xFF
        self.kept["global_scale"] = self.emulator.array(numpy.float32([self.global_scale]))
        self.extras |= {"a_type": self.x_type, "scale_a": 0, "a_pitch": 2 * rows.shape[2]}
        self.extras["a_batch"] = self.m * self.extras["a_pitch"]

    def complete(self, made: Struct) -> None:
        made.global_value = numpy.nan if self.in_memory else self.global_scale
        made.global_scale = self.kept["global_scale"].address if self.in_memory else 0


def products_of(config: Config) -> functools.partial[Product]:
    """Makes the products that this instantiation takes."""
    if config.name not in QUANTIZING:
        return functools.partial(Product)
    return functools.partial(Quantized, x_type=(FP16, BF16)[config.x - 1])
