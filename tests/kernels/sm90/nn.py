"""Products of csrc/kernels/sm90/nn.cu, A . B of 16-bit A [M, K] and NVFP4 B [K, N]: schedule, grid, and launches to
mutate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy
from emulate import Emulator, Module
from harness import launch, verify
from harness.headers import Config, Struct, headers_of
from harness.launch import SWIZZLE_128, UINT8, UINT16, Generator, Problem
from harness.values import BF16, FP16, FP32, INTEGER_SCALES, ceil_div, decode, stored, swizzle_scales

HEADERS = headers_of("sm90")
CONFIGS = HEADERS.configs("nn")
Schedule = HEADERS.structs["sm90_nn_schedule"]
STAGE_K, TILE_N = HEADERS.value("SM90_NN_STAGE_K"), HEADERS.value("SM90_NN_TILE_N")


class Product(launch.Product):
    """Multiples of 1/4: sums are exact in fp32 as long as 432 K <= 2^24. Rows of A and B are followed by bytes that
    nothing may read, rows of the result by guard bytes."""

    def __init__(
        self, emulator: Emulator, generator: Generator, config: Config, m: int, n: int, k: int, l: int = 1,
        out_type: int = FP32, out_align: int = 16,
    ) -> None:  # fmt: skip
        self.emulator, self.config, self.m, self.n, self.k, self.l = emulator, config, m, n, k, l
        self.a_type = BF16 if config.bf16 else FP16
        self.a = generator.integers(-12, 13, (l, m, k)) / 2
        self.codes = generator.integers(0, 256, (l, k, n // 2), numpy.uint8)
        self.scales = generator.choice(INTEGER_SCALES, (l, k, n // 16))
        self.place_result(out_type, out_align)

    def place(self) -> None:
        """Copies the operands to the device."""
        self.a_pitch, self.b_pitch = ceil_div(2 * self.k, 16) * 16 + 16, ceil_div(self.n // 2, 16) * 16 + 16
        a = numpy.full((self.batches(0), self.m, self.a_pitch // 2), 0xFFFF, "u2")  # NaN
        a[:, :, : self.k] = stored(self.a[: len(a)], self.a_type)
        b = numpy.full((self.batches(1), self.k, self.b_pitch), 0x77, "u1")
        b[:, :, : self.n // 2] = self.codes[: len(b)]
        scales = swizzle_scales(self.scales[: len(b)])
        empty = numpy.zeros(16, "u1")
        self.arrays = [self.emulator.array(x if x.size else empty) for x in (a, b, scales)]

    def share(self, which: int) -> None:
        self.shared = which
        for name in (("a",), ("codes", "scales"))[which]:
            setattr(self, name, numpy.repeat(getattr(self, name)[:1], self.l, axis=0))

    def problem(self) -> Struct:
        a, b, scales = (array.address for array in self.arrays)
        scale_pitch = ceil_div(self.n, 64) * 512
        own_a, own_b = self.shared != 0, self.shared != 1
        made = Problem(
            m=self.m, n=self.n, k=self.k, l=self.l, a=a, b=b, a_pitch=self.a_pitch, b_pitch=self.b_pitch,
            a_batch=own_a * self.m * self.a_pitch, b_batch=own_b * self.k * self.b_pitch, scale_b=scales,
            scale_b_pitch=scale_pitch, scale_b_batch=own_b * ceil_div(self.k, 128) * scale_pitch, out=self.out.address,
            out_pitch=self.out_pitch, out_batch=self.m * self.out_pitch, alpha_value=1.0, a_type=self.a_type,
            product_kind=1, out_type=self.out_type, bias_type=FP32, aligned16=1,
        )  # fmt: skip
        for name, value in self.extras.items():
            setattr(made, name, value)
        return made

    def launch(self, module: Module, split_k: int = 1, wait: bool = True) -> None:
        self.place()
        config = self.config
        tiles_m, tiles_n = ceil_div(self.m, config.tile_m), ceil_div(self.n, TILE_N)
        made = Schedule(
            a_batches=self.batches(0), b_batches=self.batches(1), tiles_m=tiles_m, tiles_n=tiles_n, split_k=split_k,
            inv_split_k=ceil_div(1 << 31, split_k),
        )  # fmt: skip
        if self.k:
            a_dims, b_dims = (self.k, self.m, self.batches(0)), (self.n // 2, self.k, self.batches(1))
            a_box, b_box = (STAGE_K, min(self.m, config.tile_m), 1), (TILE_N // 2, STAGE_K, 1)
            a_strides, b_strides = (self.a_pitch, self.m * self.a_pitch), (self.b_pitch, self.k * self.b_pitch)
            made.a = self.tensor_map(UINT16, self.arrays[0], a_dims, a_strides, a_box, SWIZZLE_128)
            made.b = self.tensor_map(UINT8, self.arrays[1], b_dims, b_strides, b_box, SWIZZLE_128)
        self.emulator.launch(
            module[config.kernel], grid=tiles_m * tiles_n * self.l * split_k, block=config.threads,
            args=[bytes(self.problem()), bytes(made)], shared=config.shared_bytes,
            cluster=split_k if split_k > 1 else None, wait=wait,
        )  # fmt: skip

    def expected(self) -> numpy.ndarray:
        return self.a @ decode(self.codes, self.scales) * self.alpha + self.added


@dataclass(frozen=True)
class Launch(verify.Launch):
    """One launch of a kernel, for mutations."""

    config_name: str
    note: str
    k: int
    split_k: int = 1
    bias: bool = False
    for_verifier = False
    schedule = Schedule

    @property
    def config(self) -> Config:
        return CONFIGS[self.config_name]

    def start(self, emulator: Any, module: Any, generator: Generator) -> list[Product]:
        product = Product(emulator, generator, self.config, self.config.tile_m, TILE_N, self.k)
        if self.bias:
            product.set_epilogue(generator, bias=FP32)
        product.launch(module, self.split_k, wait=False)
        return [product]
