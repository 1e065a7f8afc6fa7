"""Schedule and grid of csrc/kernels/sm90/prefill.cu: any number of concurrent clusters."""

from __future__ import annotations

from typing import Any

from emulate import Emulator, Module
from harness.headers import Config, Struct
from harness.launch import SWIZZLE_128, UINT16, Generator
from harness.values import BF16, FP16, ceil_div
from sm90 import units
from sm90.operands import FAMILY, STAGE_K, Dequantizing

CONFIGS = {name: c for name, c in FAMILY.configs("prefill").items() if not c.a16}  # of NVFP4 A
A16_CONFIGS = {name: c for name, c in FAMILY.configs("prefill").items() if c.a16}
PrefillOperand, PrefillSchedule = FAMILY.structs["sm90_prefill_operand"], FAMILY.structs["sm90_prefill_schedule"]


class PrefillProduct(Dequantizing):
    """One product, and its two launches."""

    span = STAGE_K

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

    def mma_b(self, config: Config, which: int) -> Struct:
        return self.operand(config, which, False)

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
            split_k_tiles=split_k_tiles, k_stages=ceil_div(self.k, STAGE_K), swap_ab=int(swap_ab),
        )  # fmt: skip

    def launch_prefill(
        self, dequant: Module | None, module: Module, config: Config, swap_ab: bool, clusters: int, wait: bool = True
    ) -> None:
        """dequant: None: without the pre-pass, `outputs` hold what it writes."""
        mma_a, mma_b = (1, 0) if swap_ab else (0, 1)
        e2m1 = bool(config.mma_a_e2m1)
        operands = [] if self.k == 0 or config.a16 else [mma_b] if e2m1 else [mma_b, mma_a]
        for which in operands:
            if which not in self.outputs:  # freeing memory would wait for the previous calls
                self.outputs[which] = self.dequant_output(which)
        if operands and dequant:
            self.dequantize(dequant, [(which, self.outputs[which]) for which in operands])
        schedule = self.prefill_schedule(config, swap_ab, clusters)
        schedule.mma_a, schedule.mma_b = self.operand(config, mma_a, e2m1), self.mma_b(config, mma_b)
        grid = 2 * min(clusters, max(schedule.dp_pairs, schedule.split_k_tiles))
        self.start(module, config, schedule, grid, config.shared_bytes, cluster=2, wait=wait)


class A16Product(PrefillProduct, units.Product):
    """16-bit A, which is mma_b as it lies in memory: one launch."""

    def __init__(self, emulator: Emulator, generator: Generator, config: Config, *sizes: int, **options: Any) -> None:
        super().__init__(emulator, generator, *sizes, a_type=BF16 if config.bf16 else FP16, **options)

    def mma_b(self, config: Config, which: int) -> Struct:
        operand = PrefillOperand(rows=self.m, batches=self.batches(0))
        if self.k:
            dims, strides = (self.k, self.m, self.batches(0)), (self.a_pitch, self.m * self.a_pitch)
            box = (STAGE_K, config.mma_tile_m, 1)
            operand.values = self.tensor_map(UINT16, self.arrays[0], dims, strides, box, SWIZZLE_128)
        return operand

    def launch_a16(self, module: Module, config: Config, clusters: int, wait: bool = True) -> None:
        self.launch_prefill(None, module, config, True, clusters, wait)
