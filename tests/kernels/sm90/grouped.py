"""Products of csrc/kernels/sm90/grouped.cu behind its pre-passes, csrc/kernels/sm90/reorder.cu."""

from __future__ import annotations

from typing import Any

import numpy
from emulate import Emulator, Module
from harness.headers import Config, Struct
from harness.launch import EVICT_FIRST, SWIZZLE_128, UINT16, Generator, compile_ptx
from harness.values import NAN, ceil_div, decode, swizzle_scales
from paths import CSRC
from sm90.gemm import HEADERS
from units import grouped as grouped_units

CONFIGS = HEADERS.configs("grouped")
Schedule, ReorderSchedule, E2m1Schedule = (
    HEADERS.structs[f"sm90_{name}_schedule"] for name in ("grouped", "reorder", "reorder_e2m1")
)
STAGE_K, TILE_N, BOX_ROWS = (HEADERS.value(f"SM90_GROUPED_{name}") for name in ("STAGE_K", "TILE_N", "BOX_ROWS"))
THREADS = HEADERS.value("SM90_REORDER_THREADS")
WIDTHS = {96: (16, 48, 64, 80, 96), 152: (104, 120, 136, 152)}
VALUES_E2M1 = 0  # of problem.h


def reorder_ptx() -> str:
    return compile_ptx(CSRC / "kernels/sm90/reorder.cu", "sm90")


class Product(grouped_units.Product):
    """A row of A is put into order once for each row of the result that it is."""

    def make_workspace(self) -> None:
        """Before what must not wait for the GPU, as making an array does."""
        self.spans = ceil_div(self.k, STAGE_K)
        self.workspace = self.emulator.empty((self.m, self.spans * STAGE_K * 2), numpy.uint8)
        self.claimed = self.emulator.array(numpy.array([0xDEAD], "u4"))

    def queue(self, reorder: Module, module: Module, config: Config, ctas: int) -> None:
        self.queue_reorder(reorder, config)
        both = self.activation is not None and self.parts == 2
        made = Schedule(
            b_cache_policy=EVICT_FIRST, claimed=self.claimed.address, stages_k=self.spans,
            tiles_n=ceil_div(self.n, TILE_N // (1 + both)),
        )  # fmt: skip
        if self.activation:
            self.activation.fill(made.numbers, self.parts)
        made.b = self.values_map(1, (STAGE_K // 2, BOX_ROWS, 1))
        dims, pitch = (self.spans * STAGE_K, self.m, 1), self.spans * STAGE_K * 2
        for i, width in enumerate(WIDTHS[config.mma_tile_n]):
            made.a[i] = self.tensor_map(
                UINT16, self.workspace, dims, (pitch, self.m * pitch), (STAGE_K, width, 1), SWIZZLE_128
            )
        self.start(module, config, made, ctas, config.shared_bytes, wait=False)

    def queue_reorder(self, reorder: Module, config: Config) -> None:
        rows = self.placed_rows.address if self.placed_rows else 0
        before = ReorderSchedule(
            a=self.arrays[0].address, a_pitch=self.a_pitch, a_rows=len(self.values), rows=rows,
            to=self.workspace.address, claimed=self.claimed.address, count=self.m, k=self.k, spans=self.spans,
            bf16=config.bf16,
        )  # fmt: skip
        self.emulator.launch(
            reorder["nvfp4_sm90_reorder"], grid=HEADERS.value("SM90_REORDER_CTAS", self.m, self.spans),
            block=THREADS, args=[bytes(before)], programmatic=True, wait=False,
        )  # fmt: skip


class E2m1Product(Product):
    """A is NVFP4. The scales of groups lie in another order, with NaN between them. The last group has none if
    `lacks_scales`."""

    def __init__(
        self, emulator: Emulator, generator: Generator, config: Config, ends: list[int], n: int, k: int,
        lacks_scales: bool = False, **more: Any,
    ) -> None:  # fmt: skip
        self.random, self.lacks_scales = generator, lacks_scales
        super().__init__(emulator, generator, config, ends, n, k, gathers=False, **more)

    def place_a(self) -> None:
        random, k, groups = self.random, self.k, len(self.ends)
        data = random.integers(0, 256, (1, self.m, k // 2), numpy.uint8)
        bits = random.choice(numpy.array([0x30, 0x38, 0xB8, 0x40], "u1"), (1, self.m, k // 16))
        self.values = decode(data, bits)[0]
        self.a_pitch, self.a_type = ceil_div(k // 2, 16) * 16 + 16, VALUES_E2M1
        rows = numpy.full((self.m, self.a_pitch), 0xFF, "u1")
        rows[:, : k // 2] = data[0]
        self.arrays[0] = self.emulator.array(rows)
        begins = numpy.maximum.accumulate([0, *self.ends[:-1]])
        blocks = [ceil_div(max(0, end - begin), 128) for begin, end in zip(begins, self.ends)]
        order = random.permutation(groups)
        first = numpy.zeros(groups, "i4")
        first[order] = (numpy.cumsum([blocks[e] for e in order]) - [blocks[e] for e in order]) * 128
        linear = numpy.full((1, sum(blocks) * 128, k // 16), NAN, "u1")
        for begin, end, at in zip(begins, self.ends, first):
            linear[0, at : at + end - begin] = bits[0, begin:end]
        if self.lacks_scales:
            first[-1] += 1
            self.values[begins[-1] : self.ends[-1]] = numpy.nan
        self.arrays[1] = self.emulator.array(swizzle_scales(linear))
        self.placed_first = self.emulator.array(first)
        self.scale_rows_count = linear.shape[1]

    def make_workspace(self) -> None:
        """Zeros, so that a row that is not to be read from it gives no NaN by itself."""
        super().make_workspace()
        self.workspace.numpy()[...] = 0

    def problem(self) -> Struct:
        one = super().problem()
        one.g.scale_a, one.g.scale_a_pitch = self.arrays[1].address, ceil_div(self.k, 64) * 512
        one.scale_rows, one.scale_a_rows = self.placed_first.address, self.scale_rows_count
        return one

    def queue_reorder(self, reorder: Module, config: Config) -> None:
        chunks = HEADERS.value("SM90_REORDER_CHUNKS", self.spans)
        tile_m = HEADERS.value("SM90_REORDER_TILE_M")
        before = E2m1Schedule(to=self.workspace.address, claimed=self.claimed.address, spans=self.spans, chunks=chunks)
        tiles = (self.m + min(len(self.ends), self.m) * (tile_m - 1)) // tile_m
        self.emulator.launch(
            reorder["nvfp4_sm90_reorder_e2m1"], grid=tiles * chunks, block=THREADS,
            args=[bytes(self.problem()), bytes(before)], programmatic=True, wait=False,
        )  # fmt: skip
