"""Launches csrc/kernels/sm90/dequant.cu and csrc/kernels/sm90/prefill.cu on the emulated H200 without the planner:
either instantiation, either order of the operands, any number of concurrent clusters.

Structs and constants mirror csrc/kernels/sm90/prefill_config.h. Operands, expected products and checks are those of
tests/kernels/sm100/launch.py.
"""

from __future__ import annotations

import ctypes
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import sm100.launch  # noqa: E402  (which finds the emulator)
from emulate import Array, Emulator, Module  # noqa: E402
from sm100.launch import CSRC, SWIZZLE_128, UINT8, UINT16, TensorMap, compile_ptx, only_entry  # noqa: E402

STAGE_K, MMA_TILE_M, MMA_TILE_N = 64, 128, 256
THREADS, DEQUANT_THREADS, DEQUANT_K = 384, 512, 256
MOST_THIN_CTAS = 264  # CTAs of the pre-pass with one row a thread (csrc/kernels/sm90/dequant_plan.c)
UNIT = 4096.0  # DECODED_PRODUCT_UNIT: dequantized operands are scaled by 2^-6 each


@dataclass(frozen=True)
class Config:
    """A row of SM90_PREFILL_CONFIGS."""

    name: str
    mma_a_e2m1: bool
    stages: int

    @property
    def kernel(self) -> str:
        return f"nvfp4_{self.name}"

    @property
    def shared_bytes(self) -> int:
        stage = MMA_TILE_N * 128 + (MMA_TILE_M * 32 + 1024 if self.mma_a_e2m1 else MMA_TILE_M * 128)
        return self.stages * stage + 8 * 2560 + 16 * self.stages


def configs() -> dict[str, Config]:
    rows = re.findall(r"X\((sm90_prefill_\w+), (\d), (\d+)\)", (CSRC / "kernels/sm90/prefill_config.h").read_text())
    return {name: Config(name, mma_a_e2m1 == "1", int(stages)) for name, mma_a_e2m1, stages in rows}


class DequantOperand(ctypes.Structure):
    """sm90_dequant_operand."""

    _fields_ = (
        [("data", ctypes.c_uint64), ("scale", ctypes.c_uint64)]
        + [(name, ctypes.c_int64) for name in ("pitch", "batch", "scale_pitch", "scale_batch")]
        + [("to", ctypes.c_uint64), ("rows", ctypes.c_int32), ("padding", ctypes.c_int32)]
    )


class DequantSchedule(ctypes.Structure):
    """sm90_dequant_schedule."""

    _fields_ = (
        [("first", DequantOperand), ("second", DequantOperand), ("k", ctypes.c_int64)]
        + [(name, ctypes.c_int32) for name in ("scale_layout", "first_ctas", "second_ctas")]
        + [(name, ctypes.c_int32) for name in ("rows_per_thread", "flags", "padding")]
        + [("zeroed", ctypes.c_uint64)]
    )  # fmt: skip


class PrefillOperand(ctypes.Structure):
    """sm90_prefill_operand."""

    _fields_ = (
        [("values", TensorMap), ("scale", ctypes.c_uint64)]
        + [(name, ctypes.c_int64) for name in ("scale_pitch", "scale_batch")]
        + [("rows", ctypes.c_int32), ("batches", ctypes.c_int32), ("padding", ctypes.c_uint8 * 32)]
    )


class PrefillSchedule(ctypes.Structure):
    """sm90_prefill_schedule."""

    _fields_ = (
        [("mma_a", PrefillOperand), ("mma_b", PrefillOperand)]
        + [
            (name, ctypes.c_int32)
            for name in ("tiles_mma_m", "tiles_mma_n", "dp_pairs", "split_k_tiles", "k_stages", "swap_ab")
        ]
        + [("padding", ctypes.c_uint8 * 40)]
    )


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


class PrefillProduct(sm100.launch.Product):
    """One product, and its two launches."""

    def __init__(self, emulator: Emulator, *arguments: Any, **options: Any) -> None:
        self.shared: int | None = None  # the operand, 0 or 1, that all batches share
        self.outputs: dict[int, Array] = {}  # dequantized operands
        self.more: dict[str, float] = {}  # fields of the problem: alpha, bias, ...
        super().__init__(emulator, *arguments, **options)

    def problem(self) -> sm100.launch.Problem:
        p = super().problem()
        if self.shared is not None:
            for name in ("a_batch", "sfa_batch") if self.shared == 0 else ("b_batch", "sfb_batch"):
                setattr(p, name, 0)
        for name, value in self.more.items():
            setattr(p, name, value)
        return p

    def share(self, which: int) -> None:
        """Makes all batches use the first batch of an operand."""
        self.shared = which
        self.data[which] = numpy.repeat(self.data[which][:1], self.l, axis=0)
        self.scales[which] = numpy.repeat(self.scales[which][:1], self.l, axis=0)

    def batches(self, which: int) -> int:
        return 1 if which == self.shared else self.l

    def distances(self, which: int) -> tuple[int, int]:
        """scale_batch and batch of an operand."""
        p = self.problem()
        return (p.sfa_batch, p.sfb_batch)[which], (p.a_batch, p.b_batch)[which]

    @property
    def k_stages(self) -> int:
        return ceil_div(self.k, STAGE_K)

    def dequant_operand(self, which: int, to: Array) -> DequantOperand:
        data, scale = self.arrays[2 * which : 2 * which + 2]
        scale_batch, batch = self.distances(which)
        return DequantOperand(
            data=data.address, scale=scale.address, pitch=self.pitch, batch=batch,
            scale_pitch=self.problem().sfa_pitch, scale_batch=scale_batch, to=to.address, rows=(self.m, self.n)[which],
        )  # fmt: skip

    def dequant_output(self, which: int) -> Array:
        """Poisoned memory for a dequantized operand."""
        return self.emulator.empty((self.batches(which), (self.m, self.n)[which], self.k_stages * 64), numpy.float16)

    def dequant_ctas(self, which: int, rows_per_thread: int) -> int:
        """SM90_DEQUANT_CTAS."""
        blocks = ceil_div((self.m, self.n)[which], 32 * rows_per_thread)
        return blocks * ceil_div(self.k, DEQUANT_K) * self.batches(which)

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
        filled = [self.dequant_operand(which, to) for which, to in operands]
        schedule = DequantSchedule(
            first=filled[0],
            k=self.k,
            scale_layout=int(self.linear),
            first_ctas=ctas[0],
            rows_per_thread=rows_per_thread,
        )
        if zeroed:
            schedule.flags, schedule.zeroed = flags, zeroed.address
        if len(filled) == 2:
            schedule.second, schedule.second_ctas = filled[1], ctas[1]
        self.emulator.launch(
            module["nvfp4_sm90_dequant"], grid=sum(ctas), block=DEQUANT_THREADS, args=[bytes(schedule)],
            programmatic=True, wait=wait,
        )  # fmt: skip

    def operand(self, which: int, e2m1: bool) -> PrefillOperand:
        rows, batches = (self.m, self.n)[which], self.batches(which)
        operand = PrefillOperand(rows=rows, batches=batches)
        if e2m1:
            operand.scale, operand.scale_pitch = self.arrays[2 * which + 1].address, self.problem().sfa_pitch
            operand.scale_batch = self.distances(which)[0]
        if not self.k:
            return operand
        if e2m1:
            operand.values.opaque[:] = self.emulator.tensor_map(
                UINT8, self.arrays[2 * which], (self.k // 2, rows, batches), (self.pitch, rows * self.pitch),
                (32, 128, 1),
            )  # fmt: skip
        else:
            pitch = self.k_stages * 128
            operand.values.opaque[:] = self.emulator.tensor_map(
                UINT16, self.outputs[which], (self.k_stages * 64, rows, batches), (pitch, rows * pitch), (64, 128, 1),
                swizzle=SWIZZLE_128,
            )  # fmt: skip
        return operand

    def prefill_schedule(self, swap_ab: bool, clusters: int) -> PrefillSchedule:
        """Without the operands. clusters: concurrent ones."""
        mma_a, mma_b = (1, 0) if swap_ab else (0, 1)
        rows = (self.m, self.n)
        tiles_mma_m, tiles_mma_n = ceil_div(rows[mma_a], MMA_TILE_M), ceil_div(rows[mma_b], MMA_TILE_N)
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
        dequantized = [] if self.k == 0 else [mma_b] if config.mma_a_e2m1 else [mma_b, mma_a]
        for which in dequantized:
            if which not in self.outputs:  # freeing memory would wait for the previous calls
                self.outputs[which] = self.dequant_output(which)
        if dequantized:
            self.dequantize(dequant, [(which, self.outputs[which]) for which in dequantized])
        schedule = self.prefill_schedule(swap_ab, clusters)
        schedule.mma_a, schedule.mma_b = self.operand(mma_a, config.mma_a_e2m1), self.operand(mma_b, False)
        self.emulator.launch(
            module[config.kernel],
            grid=2 * min(clusters, max(schedule.dp_pairs, schedule.split_k_tiles)),
            block=THREADS,
            args=[bytes(self.problem()), bytes(schedule)],
            shared=config.shared_bytes,
            cluster=2,
            programmatic=True,
            wait=wait,
        )

    def expected_dequant(self, which: int) -> numpy.ndarray:
        """[batches, rows, 64 * k_stages] in the kernel's order along K: zeros past K, values times 2^-6."""
        rows, batches = (self.m, self.n)[which], self.batches(which)
        numbers = numpy.zeros((batches, rows, self.k_stages * 64))
        data = self.data[which][:batches, :, : self.k // 2]
        numbers[:, :, : self.k] = sm100.launch.decode(data, self.scales[which][:batches]) / UNIT**0.5
        # Value 16t + 8w + e of 64 is element e // 2 % 2 of pair q = (e % 2) * 2 + e // 4 of word w.
        apart = numbers.reshape(batches, rows, self.k_stages, 4, 2, 2, 2, 2)  # ..., t, w, e // 4, e // 2 % 2, e % 2
        return apart.transpose(0, 1, 2, 4, 7, 5, 3, 6).reshape(numbers.shape)  # ..., w, e % 2, e // 4, t, e // 2 % 2


def dequant_ptx() -> str:
    return compile_ptx(CSRC / "kernels/sm90/dequant.cu", family="sm90")


def prefill_ptx(config: Config) -> str:
    return only_entry(compile_ptx(CSRC / "kernels/sm90/prefill.cu", family="sm90"), config.kernel)
