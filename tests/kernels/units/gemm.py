"""Schedule and grid of csrc/kernels/units/gemm.cuh: any number of SMs, any number of pairs a pass."""

from __future__ import annotations

import functools
from typing import Any

import numpy
from emulate import Emulator, Module
from harness import launch
from harness.headers import Config, Struct, headers_of
from harness.launch import EVICT_FIRST, EVICT_LAST, SWIZZLE_128, UINT8, UINT16, shared_limit
from harness.values import BF16, FP16, ceil_div, stored
from paths import CSRC, gpu_backends

BACKENDS = [name for name in gpu_backends() if (CSRC / "kernels" / name / "units.cu").exists()]
CONFIGS = {name: config for of in BACKENDS for name, config in headers_of(of).configs("units").items()}
HEADERS = headers_of(BACKENDS[0])  # sizes are those of csrc/kernels/units
Schedule = HEADERS.structs["units_schedule"]
STEP_K, ATOMS = HEADERS.value("UNITS_STEP_K"), HEADERS.value("UNITS_ATOMS")
PASS_PAIRS = HEADERS.value("UNITS_PASS_PAIRS")
A_TYPES = (None, FP16, BF16)  # by the column `a`


def schedule(config: Config, n: int, k: int, l: int, sms: int, max_pairs: int = 0) -> tuple[Struct, int]:
    """Without the operands; and the bytes of shared memory. max_pairs: of a pass, fewer than have room; 0: those."""
    units = HEADERS.value("UNITS_ALL", n)
    ctas = min(units, max(1, sms // l))
    pairs = ceil_div(units // ctas + (units % ctas > 0), 2)
    room = min((shared_limit(config) - config.stages_bytes) // config.sums_bytes, max_pairs or PASS_PAIRS)
    pass_pairs = ceil_div(pairs, ceil_div(pairs, room))
    made = Schedule(
        ctas=ctas, cta_units=units // ctas, larger_ctas=units % ctas, full_units=HEADERS.value("UNITS_FULL", n),
        steps=ceil_div(k, STEP_K), pass_pairs=pass_pairs,
    )  # fmt: skip
    return made, config.stages_bytes + pass_pairs * config.sums_bytes


class Product(launch.Product):
    """16-bit A: small integers, so that sums are exact."""

    constant_b = False

    def __init__(
        self, emulator: Emulator, generator: launch.Generator, m: int, n: int, k: int, l: int = 1,
        a_type: int | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(emulator, generator, m, n, k, l, **options)
        self.a_type = a_type
        if a_type is not None:
            self.a_pitch = 2 * k + 16 * int(generator.integers(2))
            self.values = generator.integers(-12, 13, (l, m, k)) / 2
            self.place_a()

    def place_a(self) -> None:
        """Copies `values` to the device. NaN follows the rows."""
        assert self.a_type is not None
        rows = numpy.full((self.l, self.m, self.a_pitch // 2), 0xFFFF, "u2")
        rows[:, :, : self.k] = stored(self.values, self.a_type)
        self.arrays[0] = self.emulator.array(rows)

    def problem(self) -> Struct:
        made = super().problem()
        if self.a_type is not None:
            made.a_type, made.scale_a, made.scale_a_pitch, made.scale_a_batch = self.a_type, 0, 0, 0
            made.a_pitch, made.a_batch = self.a_pitch, self.m * self.a_pitch
            for name, value in self.extras.items():
                setattr(made, name, value)
        return made

    def decoded(self, which: int) -> numpy.ndarray:
        return self.values if which == 0 and self.a_type is not None else super().decoded(which)

    def launch(self, module: Module, config: Config, sms: int = 132, wait: bool = True, max_pairs: int = 0) -> None:
        made, shared = schedule(config, self.n, self.k, self.l, sms, max_pairs)
        assert shared <= shared_limit(config)
        made.a_cache_policy, made.b_cache_policy, made.early_b = EVICT_LAST, EVICT_FIRST, int(self.constant_b)
        b, sfb, l, blocks = self.arrays[2], self.arrays[3], self.l, ceil_div(self.n, 128)
        if self.n >= 128:
            dims = (self.k // 2, 32, self.n // 128 * 4, l)
            strides = (self.pitch, 32 * self.pitch, self.n * self.pitch)
            for name, rows in (("b_pairs", 4), ("b_units", 2)):
                made_map = self.tensor_map(UINT8, b, dims, strides, (STEP_K // 2, rows, 4, 1), SWIZZLE_128)
                setattr(made, name, made_map)
        if self.n % 128:
            made.b_tail = self.values_map(1, (STEP_K // 2, 4, 1), SWIZZLE_128)
        atoms = ceil_div(self.k, 64)
        dims, strides = (512, atoms, blocks, l), (512, atoms * 512, blocks * atoms * 512)
        made.b_scales = self.tensor_map(UINT8, sfb, dims, strides, (64, ATOMS, 1, 1))
        rows = self.extras.get("m", self.m)
        if self.a_type is None:
            made.a = self.values_map(0, (STEP_K // 2, rows, 1), SWIZZLE_128)
        else:
            dims, strides = (self.k, self.m, l), (self.a_pitch, self.m * self.a_pitch)
            made.a = self.tensor_map(UINT16, self.arrays[0], dims, strides, (64, rows, 1), SWIZZLE_128)
        self.start(module, config, made, made.ctas * l, shared, wait=wait)


def products_of(config: Config) -> functools.partial[Product]:
    """Makes the products that this instantiation takes."""
    return functools.partial(Product, a_type=A_TYPES[config.a])
