"""Launches of csrc/kernels/sm120/gemm.cu for the static verifier."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness import verify
from harness.headers import Config
from harness.launch import Generator
from harness.values import FP16, FP32
from sm120.gemm import CONFIGS, Product, Schedule, splits


@dataclass(frozen=True)
class Launch(verify.Launch):
    """One launch of a kernel, of one cluster by default."""

    config_name: str
    note: str
    m: int
    n: int
    k: int
    l: int = 1
    split_k: int = 1
    swap_ab: bool = True
    clusters: int = 1  # 0: one for each tile
    linear: bool = False  # scales
    pitch: int = 0  # of the values, in bytes; 0: dense
    constant_b: bool = False
    fp16: bool = False  # the output; else fp32
    late: str = ""  # the operand that a grid before writes late
    group_m: int = 1
    aligned: bool = True  # scales are 4-byte aligned, output rows 16-byte: the verifier cannot compute it

    schedule = Schedule
    inlined = ("kernels/sm120/store.cuh", "kernels/sm120/tile.cuh")

    @property
    def config(self) -> Config:
        return CONFIGS[self.config_name]

    @property
    def size(self) -> tuple[int, int, int]:
        return self.m, self.n, self.k

    def start(self, emulator: Any, module: Any, generator: Generator) -> list[Product]:
        form = {"linear": self.linear, "pitch": self.pitch, "out_type": FP16 if self.fp16 else FP32}
        product = Product(emulator, generator, *self.size, self.l, **form)
        product.constant_b, product.group_m = self.constant_b, self.group_m
        with self.grid_before(emulator, product):
            product.launch(module, self.config, self.swap_ab, self.split_k, self.clusters, wait=False)
        return [product]


def launches() -> Iterator[Launch]:
    """Launches of every instantiation: a pipeline that wraps, several tiles for one CTA, every split_k, both values of
    swap_ab, every way to load, a last stage that is not whole."""
    for name, config in CONFIGS.items():
        m, n, k = config.mma_tile_m, config.mma_tile_n, config.stage_k
        wraps = (config.stages + 2) * k
        yield Launch(name, "wrap", n, m, wraps)
        yield Launch(name, "tiles", m, 2 * n, 2 * k, l=2, swap_ab=False)
        yield Launch(name, "tail", n, m, k + 64)
        yield Launch(name, "constant b", n, m, wraps, constant_b=True)
        yield Launch(name, "linear", n, m, wraps, linear=True)
        yield Launch(name, "bytes", n, m, 2 * k + 48, linear=True, aligned=False)
        yield Launch(name, "rows on 8 bytes", n, m, wraps, pitch=wraps // 2 + 8)
        yield Launch(name, "fp16", n, m, k, fp16=True)
        for split in splits(config)[1:]:
            size = (n, m) if split == 2 else (m, n)
            yield Launch(name, f"split {split}", *size, 256 * (split + 1), split_k=split, swap_ab=split == 2)
