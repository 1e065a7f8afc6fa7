"""The dequantize pre-pass csrc/kernels/sm90/dequant.cu, and schedule and grid of csrc/kernels/sm90/prefill.cu: any
number of concurrent clusters."""

from __future__ import annotations

from typing import Any

import numpy
from emulate import Array, Emulator, Module
from harness.headers import Config, Struct, family
from harness.launch import compile_ptx
from harness.values import ceil_div
from sm90.operands import Dequantizing, DequantOperand, dequantized

FAMILY = family("sm90")
CONFIGS = FAMILY.configs("prefill")
DequantSchedule = FAMILY.structs["sm90_dequant_schedule"]
PrefillOperand, PrefillSchedule = FAMILY.structs["sm90_prefill_operand"], FAMILY.structs["sm90_prefill_schedule"]
STAGE_K = FAMILY.value("SM90_PREFILL_STAGE_K")
MOST_THIN_CTAS = 264  # CTAs of the pre-pass with one row a thread (csrc/kernels/sm90/dequant_plan.c)


def dequant_ptx() -> str:
    return compile_ptx(FAMILY.folder / "dequant.cu", "sm90")


class PrefillProduct(Dequantizing):
    """One product, and its two launches."""

    def __init__(self, emulator: Emulator, *arguments: Any, **options: Any) -> None:
        self.outputs: dict[int, Array] = {}  # dequantized operands
        super().__init__(emulator, *arguments, **options)

    @property
    def k_stages(self) -> int:
        return ceil_div(self.k, STAGE_K)

    def dequant_output(self, which: int) -> Array:
        """Poisoned memory for a dequantized operand."""
        return self.emulator.empty((self.batches(which), self.rows(which), self.k_stages * STAGE_K), numpy.float16)

    def dequant_ctas(self, which: int, rows_per_thread: int) -> int:
        return FAMILY.value("SM90_DEQUANT_CTAS", self.rows(which), self.k, self.batches(which), rows_per_thread)

    def dequantize(
        self,
        module: Module,
        operands: list[tuple[int, Array]],
        wait: bool = False,
        rows_per_thread: int = 0,
        flags: int = 0,
        zeroed: Array | None = None,
    ) -> None:
        """rows_per_thread: 0: the planner's rule. flags: words of `zeroed` to zero, for stream-K kernels."""
        if not rows_per_thread:
            rows_per_thread = 1 if sum(self.dequant_ctas(which, 1) for which, _ in operands) <= MOST_THIN_CTAS else 4
        ctas = [self.dequant_ctas(which, rows_per_thread) for which, _ in operands]
        filled = [DequantOperand(to=to.address, **self.placed(which)) for which, to in operands]
        schedule = DequantSchedule(
            first=filled[0], k=self.k, scale_layout=int(self.linear), first_ctas=ctas[0],
            rows_per_thread=rows_per_thread,
        )  # fmt: skip
        if zeroed:
            schedule.flags, schedule.zeroed = flags, zeroed.address
        if len(filled) == 2:
            schedule.second, schedule.second_ctas = filled[1], ctas[1]
        self.emulator.launch(
            module["nvfp4_sm90_dequant"], grid=sum(ctas), block=FAMILY.value("SM90_DEQUANT_THREADS"),
            args=[bytes(schedule)], programmatic=True, wait=wait,
        )  # fmt: skip

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
        return PrefillSchedule(
            tiles_mma_m=tiles_mma_m, tiles_mma_n=tiles_mma_n, dp_pairs=pairs - split_k_tiles // 2,
            split_k_tiles=split_k_tiles, k_stages=self.k_stages, swap_ab=int(swap_ab),
        )  # fmt: skip

    def launch_prefill(
        self, dequant: Module, module: Module, config: Config, swap_ab: bool, clusters: int, wait: bool = True
    ) -> None:
        mma_a, mma_b = (1, 0) if swap_ab else (0, 1)
        e2m1 = bool(config.mma_a_e2m1)
        operands = [] if self.k == 0 else [mma_b] if e2m1 else [mma_b, mma_a]
        for which in operands:
            if which not in self.outputs:  # freeing memory would wait for the previous calls
                self.outputs[which] = self.dequant_output(which)
        if operands:
            self.dequantize(dequant, [(which, self.outputs[which]) for which in operands])
        schedule = self.prefill_schedule(config, swap_ab, clusters)
        schedule.mma_a, schedule.mma_b = self.operand(config, mma_a, e2m1), self.operand(config, mma_b, False)
        grid = 2 * min(clusters, max(schedule.dp_pairs, schedule.split_k_tiles))
        self.start(module, config, schedule, grid, config.shared_bytes, cluster=2, wait=wait)

    def expected_dequant(self, which: int) -> numpy.ndarray:
        """[batches, rows, 64 * k_stages] in the kernel's order along K."""
        return dequantized(self.decoded(which)[: self.batches(which)])
