"""Schedule and grid of csrc/kernels/sm90/prefill.cu: any number of concurrent clusters."""

from __future__ import annotations

from typing import Any

import numpy
from emulate import Array, Emulator, Module
from harness.headers import Config, Struct
from harness.launch import Generator
from harness.values import BF16, FP16, ceil_div
from sm90.operands import HEADERS, STAGE_K, Dequantizing, DequantOperand
from units.gemm import Product as A16Operands

ALL_CONFIGS = HEADERS.configs("prefill")
CONFIGS = {name: c for name, c in ALL_CONFIGS.items() if not c.bf16 and not c.divided}  # of any product of NVFP4 A
DIVIDED = {name: c for name, c in ALL_CONFIGS.items() if not c.bf16 and c.divided}
PrefillOperand, PrefillSchedule = HEADERS.structs["sm90_prefill_operand"], HEADERS.structs["sm90_prefill_schedule"]
CHUNK = HEADERS.value("SM90_DEQUANT_K")
PIECES = HEADERS.value("SM90_PREFILL_BLOCK_PIECES")
READY, BAND = HEADERS.value("SM90_PREFILL_READY_CHUNKS"), HEADERS.value("SM90_PREFILL_BAND")


class PrefillProduct(Dequantizing):
    """One product, and its two launches."""

    span = STAGE_K
    flags: Array | None = None  # of a kernel that dequantizes mma_b itself
    lacks_a_piece = False  # the flag of the last block and the number of pieces: one less than the pre-pass has written

    def operand(self, config: Config, which: int, e2m1: bool) -> Struct:
        operand = PrefillOperand(rows=self.rows(which), batches=self.batches(which))
        if e2m1:
            placed = self.placed(which)
            operand.scale, operand.scale_pitch = placed["scale"], placed["scale_pitch"]
            operand.scale_batch = placed["scale_batch"]
        if self.k and e2m1:
            operand.values = self.values_map(which, (STAGE_K // 2, config.mma_tile_m, 1))
        elif self.k:
            operand.values = self.fp16_map(which, self.outputs[which], config.mma_tile_m)
        return operand

    def prefill_schedule(self, config: Config, swap_ab: bool, clusters: int) -> Struct:
        """Without the operands. clusters: concurrent ones."""
        mma_a, mma_b = (1, 0) if swap_ab else (0, 1)
        tiles_mma_m = ceil_div(self.rows(mma_a), config.mma_tile_m)
        tiles_mma_n = ceil_div(self.rows(mma_b), config.mma_tile_n)
        pairs = ceil_div(tiles_mma_m, 2) * tiles_mma_n * self.l
        rest = pairs % clusters
        split_k_tiles = 2 * rest if 2 * rest <= clusters else 0
        made = PrefillSchedule(
            tiles_mma_m=tiles_mma_m, tiles_mma_n=tiles_mma_n, dp_pairs=pairs - split_k_tiles // 2,
            split_k_tiles=split_k_tiles, k_stages=ceil_div(self.k, STAGE_K), swap_ab=int(swap_ab),
        )  # fmt: skip
        chunks = ceil_div(self.k, CHUNK)
        if config.divided:
            assert made.dp_pairs and self.batches(mma_b) == 1 and chunks > READY
            made.chunks, made.blocks = chunks, tiles_mma_n * chunks
            made.group_tiles = min(tiles_mma_n, ceil_div(clusters, min(ceil_div(tiles_mma_m, 2), BAND)))
        return made

    def place_flags(self, schedule: Struct, mma_b: int) -> None:
        """Whatever lies in the workspace, unless it is that of another call."""
        if not self.flags or self.flags.shape[0] != schedule.blocks + 2:
            words = numpy.random.default_rng(schedule.blocks).choice(
                [0, PIECES - 1, PIECES, 2**32 - 1], schedule.blocks + 2
            )
            self.flags = self.emulator.array(words.astype("u4"))
        schedule.flags = self.flags.address
        schedule.mma_b_e2m1 = DequantOperand(to=self.outputs[mma_b].address, **self.placed(mma_b))

    def launch_prefill(
        self, dequant: Module | None, module: Module, config: Config, swap_ab: bool, clusters: int, wait: bool = True
    ) -> None:
        """dequant: None: without the pre-pass, `outputs` hold what it writes."""
        mma_a, mma_b = (1, 0) if swap_ab else (0, 1)
        e2m1 = bool(config.mma_a_e2m1)
        operands = [] if self.k == 0 else [mma_b] if e2m1 else [mma_b, mma_a]
        for which in operands:
            if which not in self.outputs:  # freeing memory would wait for the previous calls
                self.outputs[which] = self.dequant_output(which)
        schedule = self.prefill_schedule(config, swap_ab, clusters)
        part: dict[str, Any] = {}
        if schedule.group_tiles:
            self.place_flags(schedule, mma_b)
            part = {
                "part": (min(self.rows(mma_b), schedule.group_tiles * config.mma_tile_n), READY * CHUNK),
                "flags": schedule.blocks + 2, "zeroed": self.flags, "ready": schedule.group_tiles * READY,
            }  # fmt: skip
        if operands and dequant:
            self.dequantize(dequant, [(which, self.outputs[which]) for which in operands], **part)
        if self.lacks_a_piece and self.flags:
            self.emulator.synchronize()
            self.flags.numpy()[[schedule.blocks - 1, schedule.blocks + 1]] -= 1
        schedule.mma_a, schedule.mma_b = self.operand(config, mma_a, e2m1), self.operand(config, mma_b, False)
        grid = 2 * min(clusters, max(schedule.dp_pairs, schedule.split_k_tiles))
        self.start(module, config, schedule, grid, config.shared_bytes, cluster=2, wait=wait)


class A16Product(PrefillProduct, A16Operands):
    """16-bit A, which is mma_b."""

    def __init__(self, emulator: Emulator, generator: Generator, config: Config, *sizes: int, **options: Any) -> None:
        super().__init__(emulator, generator, *sizes, a_type=BF16 if config.bf16 else FP16, **options)

    def placed(self, which: int) -> dict[str, int]:
        if which:
            return super().placed(which)
        batch = self.problem().a_batch
        return {"data": self.arrays[0].address, "pitch": self.a_pitch, "batch": batch, "rows": self.m,
                "type": int(self.a_type or 0)}  # fmt: skip
