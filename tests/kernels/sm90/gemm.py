"""Operands, schedule and grid of csrc/kernels/sm90/gemm.cu. Where the kernel does not dequantize mma_b, the pre-pass or
NumPy does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy
from emulate import Array, Emulator
from harness.headers import Config, Struct, headers_of
from harness.launch import EVICT_FIRST, EVICT_LAST, Generator
from harness.values import ceil_div
from sm90.operands import Dequantizing, DequantOperand, dequantized

HEADERS = headers_of("sm90")
CONFIGS = {name: c for name, c in HEADERS.configs("gemm").items() if not c.bf16}  # of NVFP4 A
MmaAOperand, MmaBOperand = HEADERS.structs["sm90_mma_a_operand"], HEADERS.structs["sm90_mma_b_operand"]
Schedule = HEADERS.structs["sm90_schedule"]
STAGE_K = HEADERS.value("SM90_STAGE_K")
PRELOAD_STAGES = HEADERS.value("SM90_PRELOAD_STAGES")
SPLITS = range(1, 9)


@dataclass(frozen=True)
class StreamK:
    """The division of work of a stream-K kernel, as in sm90_schedule."""

    worker_clusters: int
    streamk_stages: int
    worker_stages: int
    dp_tiles: int = 0


def inverse(n: int) -> int:
    return ceil_div(2**31, n)


class Product(Dequantizing):
    span = STAGE_K
    partial_tiles: Array | None = None  # of stream-K workers
    fixup_flags: Array | None = None

    def mma_a_operand(self, which: int, box_rows: int) -> Struct:
        placed = self.placed(which)
        names = ("scale", "scale_pitch", "scale_batch", "rows")
        operand = MmaAOperand(cache_policy=EVICT_FIRST, **{name: placed[name] for name in names})
        if self.k:
            operand.values = self.values_map(which, (STAGE_K // 2, box_rows, 1))
        return operand

    def mma_b_operand(self, which: int, config: Config) -> Struct:
        operand = MmaBOperand(cache_policy=EVICT_LAST, rows=self.rows(which))
        box_rows = config.mma_tile_n
        if self.k and config.dequant_from_stages:
            box_rows = HEADERS.value("SM90_RAW_BOX_ROWS", box_rows, operand.rows)
            operand.values = self.values_map(which, (STAGE_K // 2, box_rows, 1))
        elif self.k and not config.dequant_b_in_kernel:
            if which not in self.outputs:
                self.outputs[which] = self.emulator.array(dequantized(self.decoded(which), self.span).astype("f2"))
            operand.values = self.fp16_map(which, self.outputs[which], box_rows)
        return operand

    def schedule(
        self, config: Config, swap_ab: bool, split_k: int, in_stages: bool = False, streamk: StreamK | None = None
    ) -> Struct:
        mma_a, mma_b = (1, 0) if swap_ab else (0, 1)
        tiles_mma_m = ceil_div(self.rows(mma_a), config.mma_tile_m)
        tiles_mma_n = ceil_div(self.rows(mma_b), config.mma_tile_n)
        stages = ceil_div(self.k, STAGE_K) - (streamk.streamk_stages if streamk else 0)
        in_kernel = config.dequant_b_in_kernel
        made = Schedule(
            mma_a=self.mma_a_operand(mma_a, config.mma_tile_m),
            mma_b=self.mma_b_operand(mma_b, config),
            mma_b_e2m1=DequantOperand(**self.placed(mma_b)) if in_kernel else DequantOperand(),
            tiles=tiles_mma_m * tiles_mma_n * self.l, tiles_mma_m=tiles_mma_m, tiles_mma_n=tiles_mma_n,
            split_k=split_k, stages_per_split=stages // split_k,
            splits_with_one_more=stages % split_k, swap_ab=int(swap_ab), partials_in_stages=int(in_stages),
            preload_stages=PRELOAD_STAGES if not in_kernel or (self.constant_b and swap_ab) else 0,
            inv_split_k=inverse(split_k),
        )  # fmt: skip
        if streamk:
            self.set_streamk(made, config, streamk)
        return made

    def set_streamk(self, made: Struct, config: Config, streamk: StreamK) -> None:
        """Unless it has one, a workspace of its own, with zero flags, as the dequantize pre-pass leaves them."""
        workers = streamk.worker_clusters * made.split_k
        if not self.partial_tiles or not self.fixup_flags:
            room = (workers + made.tiles - streamk.dp_tiles) * config.partial_tile_bytes
            self.partial_tiles = self.emulator.array(numpy.full(room, 0xFF, "u1"))
            self.fixup_flags = self.emulator.array(numpy.zeros(workers, "u4"))
        made.dp_tiles, made.k_stages = streamk.dp_tiles, ceil_div(self.k, STAGE_K)
        made.worker_clusters, made.streamk_stages = streamk.worker_clusters, streamk.streamk_stages
        made.worker_stages = streamk.worker_stages
        made.inv_streamk_stages = inverse(streamk.streamk_stages)
        made.inv_worker_stages = inverse(streamk.worker_stages)
        made.partial_tiles, made.fixup_flags = self.partial_tiles.address, self.fixup_flags.address

    def clusters(self, config: Config, schedule: Struct, split_k: int, streamk: StreamK | None = None) -> int:
        return streamk.worker_clusters + schedule.tiles - streamk.dp_tiles if streamk else schedule.tiles

    def grid(self, config: Config, split_k: int, clusters: int) -> tuple[tuple[int, int], int]:
        return (split_k, clusters), split_k


# ---- random sizes and data


def product(
    emulator: Emulator,
    random: Generator,
    swap_ab: bool,
    mma_m: int,
    mma_n: int,
    k: int,
    l: int = 1,
    apart: int = 0,
    **form: int,
) -> Product:
    """Random data. Rows on 16 bytes, as tensor maps require, `apart` more bytes between them."""
    m, n = (mma_n, mma_m) if swap_ab else (mma_m, mma_n)
    print(f"{m} x {n} x {k} x {l}, {form}, rows {apart} bytes apart")
    return Product(emulator, random, m, n, k, l, pitch=(k // 2 + 15) // 16 * 16 + apart, **form)


def tail(random: Generator) -> int:
    """Values along K behind the last full stage."""
    return int(random.choice([0, *range(16, STAGE_K, 16)]))


def rows(most: int, random: Generator) -> int:
    return int(random.integers(1, most + 1))
