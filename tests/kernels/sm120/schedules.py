"""Launches of csrc/kernels/sm120/gemm.cu for mutations. The static verifier knows no block-scaled mma.sync, so it
proves none of them: the emulator alone judges."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness import verify
from harness.headers import Config
from harness.launch import Generator
from harness.predecessor import Predecessor
from harness.values import FP16, FP32
from paths import CSRC
from sm120.gemm import CONFIGS, Product, Schedule


@dataclass(frozen=True)
class Launch(verify.Launch):
    """One launch of a kernel."""

    config_name: str
    note: str
    m: int
    n: int
    k: int
    l: int = 1
    split_k: int = 1
    swap_ab: bool = True
    clusters: int = 0  # 0: one for each tile
    linear: bool = False  # scales
    pitch: int = 0  # of the values, in bytes; 0: dense
    constant_b: bool = False
    fp16: bool = False  # the output; else fp32
    late: str = ""  # the operand that a grid before writes late
    group_m: int = 1

    schedule = Schedule
    for_verifier = False

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

    def grid_before(self, emulator: Any, product: Product) -> contextlib.AbstractContextManager[None]:
        if not self.late:
            return contextlib.nullcontext()
        before = Predecessor(emulator, "sm120")
        before.writes(product.memory(self.late))
        return before.launched()

    def source(self) -> str:
        """With the files that mutations edit in place of their includes."""
        text = super().source()
        for name in ("store.cuh", "tile.cuh"):
            include = f'#include "kernels/sm120/{name}"\n'
            text = text.replace(include, (CSRC / "kernels/sm120" / name).read_text(), 1).replace(include, "")
        return text


def launches() -> Iterator[Launch]:
    """For the static verifier: none."""
    yield from ()
