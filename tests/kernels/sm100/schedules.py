"""Launches of csrc/kernels/sm100/gemm.cu for the static verifier, and its PTX rewritten for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness import verify
from harness.headers import Config
from harness.launch import Generator
from harness.values import FP16, FP32
from sm100.gemm import CONFIGS, STAGE_K, Product, Schedule, mma_tile_m, splits


@dataclass(frozen=True)
class Launch(verify.Launch):
    """One launch of a kernel, of one cluster by default."""

    config_name: str
    note: str
    m: int
    n: int
    stages: int  # along K
    tail: int = 0  # values along K behind the last whole stage
    split_k: int = 1
    in_stages: bool = False  # where partial sums go
    swap_ab: bool = True
    clusters: int = 1
    linear: bool = False  # scales
    pitch: int = 0  # of the values, in bytes; 0: dense
    constant_b: bool = False
    fp16: bool = False  # the output; else fp32
    late: str = ""  # the operand that a grid before writes late
    aligned: bool = True  # scales are 4-byte aligned, output rows 32-byte: the verifier cannot compute it

    schedule = Schedule
    inlined = ("kernels/sm100/cp_async_producer.cuh", "kernels/sm100/epilogue.cuh", "kernels/sm100/schedule.cuh")
    inlined += ("kernels/sm100/column_pairs.cuh",)

    @property
    def config(self) -> Config:
        return CONFIGS[self.config_name]

    @property
    def size(self) -> tuple[int, int, int]:
        return self.m, self.n, self.stages * STAGE_K + self.tail

    def start(self, emulator: Any, module: Any, generator: Generator) -> list[Product]:
        out_type = FP16 if self.fp16 else FP32
        product = Product(emulator, generator, *self.size, linear=self.linear, pitch=self.pitch, out_type=out_type)
        product.constant_b = self.constant_b
        form = {"in_stages": self.in_stages, "wait": False}
        with self.grid_before(emulator, product):
            product.launch(module, self.config, self.swap_ab, self.split_k, self.clusters, **form)
        return [product]

    def readable(self, text: str) -> str:
        text = never_ready(split_multiply_add(text))
        if self.config.multicast > 1 and self.config.mma_tile_n == 64:
            text = first_half(text)
        if self.config.mma_tile_n < 64:
            return two_mma_for_one(text, self.config.mma_tile_n)
        if self.config.cta_group == 2 and re.search(r"tcgen05\.alloc\b[^;]*, 256;", text):
            return allocate_all(text)
        return text


def launches() -> Iterator[verify.Launch]:
    """Launches of every instantiation: a pipeline of stages that wraps, several tiles for one CTA so that the
    accumulator pipeline wraps, every split_k, both values of swap_ab, a last stage that is not whole. Then those of
    grouped.cu."""
    for name, config in CONFIGS.items():
        m, n = mma_tile_m(config), config.mma_tile_n * config.multicast
        # Time grows with the square of the instructions: kernels of more than 4 stages wrap once and two stages more.
        twice = config.stages <= 4
        yield Launch(name, "wrap", n, m, 2 * config.stages + 1 if twice else config.stages + 2)
        tiles = 2 * config.accumulators + 1
        if config.mma_tile_n > 64:
            yield Launch(name, "tiles", m, n * tiles, 1, tail=192, swap_ab=False)
        else:
            # Several tiles of mma_a, not of mma_b: the second of two tiles that share a scale atom reads it from its
            # third column on, and the verifier orders a cp before an mma only where the mma reads from the first one.
            yield Launch(name, "tiles", m * tiles, n, 1, tail=192, swap_ab=False)
        yield Launch(name, "tail", n, m, 1, tail=16 if config.cp_async else 64)
        yield Launch(name, "column pairs", n, m, 1, fp16=True)
        if not config.cp_async:
            yield Launch(name, "constant b", n, m, config.stages + 1, constant_b=True)
        for split in splits(config)[1:]:
            yield Launch(name, f"split {split}", n, m, split + 1, split_k=split)
            yield Launch(name, f"split {split} in stages", n, m, split, split_k=split, in_stages=True)
        if config.cp_async:
            yield Launch(name, "all cp.async", n, m, config.stages + 1, pitch=128 * (config.stages + 1) + 8)
            form = {"linear": True, "aligned": False, "pitch": 136}
            yield Launch(name, "linear, bytes", n - 3, m - 5, 1, tail=16, **form)
    from sm100 import grouped_mutations  # which rewrites PTX as this module does

    yield from grouped_mutations.PROVEN


# ---- rewriting PTX that sentryward 0.1.1 does not support ----------------------------------------------------------


def substitute(pattern: str, by: str, text: str) -> str:
    made, count = re.subn(pattern, by, text)
    assert count, f"nothing in the PTX looks like {pattern}"
    return made


def split_multiply_add(text: str) -> str:
    """Replaces mad by mul and add: the verifier loses a tensor memory address in mad."""
    return re.sub(
        r"mad\.lo\.s32 (%r\d+), (%r\d+), (%r\d+|\d+), (%r\d+);",
        r"{ .reg .b32 product; mul.lo.s32 product, \2, \3; add.s32 \1, product, \4; }",
        text,
    )


def never_ready(text: str) -> str:
    """Lets tests of an mbarrier fail, of which the verifier knows no result: the wait for the same phase follows."""
    return re.sub(r"mbarrier\.test_wait\.[\w.:]+ done, \[%r\d+\], %r\d+;", "setp.ne.u32 done, 0, 0;", text)


def first_half(text: str) -> str:
    """Lets both tiles of a multicast read a scale atom from its first column on, as HALVES in mutations.py does."""
    double = r"(?:shl\.b32 (%r\d+), %r\d+, 1|add\.s32 (%r\d+), (%r\d+), \3);"  # as nvcc or NVRTC writes it
    return substitute(rf"{double}\nadd\.s32 (%r\d+), (?:\1|\2), 16;", r"mov.b32 \4, 16;", text)


def allocate_all(text: str) -> str:
    """Allocates all 512 columns: only then does the verifier know that a pair's allocations have the same address."""
    return substitute(r"(tcgen05\.(?:de)?alloc\b[^;]*), 256;", r"\1, 512;", text)


def two_mma_for_one(text: str, mma_tile_n: int) -> str:
    """Replaces an mma of N < 64 by two. The verifier decodes block-scaled mma only for N = 64, 128, 192 or 256.

    The two together access everything that the one does and more, so if they have no race it has none: an unscaled mma
    of the same operands (32 bytes of a row) into the same columns, and a scaled mma of mma_a by 64 rows of mma_a into
    columns 320 further on, which exist because all 512 are allocated. N is at least 16, the least whose footprint the
    verifier knows.
    """
    plain = 1 << 4 | max(mma_tile_n, 16) // 8 << 17 | 128 // 16 << 24
    scaled = 1 << 7 | 1 << 10 | 64 // 8 << 17 | 128 // 128 << 27
    product = r"tcgen05\.mma\.cta_group::1\.kind::mxf4nvf4\.block_scale\.block16 "
    operands = r"\[(%r\d+)\], (%rd\d+), (%rd\d+), %r\d+, \[(%r\d+)\], \[(%r\d+)\], (\w+);"
    by = (
        "{ .reg .b32 plain, scaled, other; "
        f"mov.b32 plain, {plain}; mov.b32 scaled, {scaled}; add.s32 other, \\1, 320; "
        r"tcgen05.mma.cta_group::1.kind::f8f6f4 [\1], \2, \3, plain, \6; "
        r"tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16 [other], \2, \2, scaled, [\4], [\5], \6; }"
    )
    return allocate_all(substitute(product + operands, by, text))
