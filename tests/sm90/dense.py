"""Launches csrc/sm90_dequant.cu and csrc/sm90_prefill.cu on the emulated H200 by hand: either instantiation, either
order of the operands, as if the GPU had any number of clusters.

The structs are those of csrc/sm90_prefill_configs.h, as are the constants; the operands, the expected product and the
judgement are those of tests/sm100/launch.py.
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

STAGE_K, TILE_X, TILE_Y = 64, 128, 256
THREADS, EXPAND_THREADS, EXPAND_K = 384, 512, 256
MOST_THIN_CTAS = 264  # CTAs of the expansion with a row a thread (csrc/sm90_dequant_plan.c)
UNIT = 4096.0  # DECODED_PRODUCT_UNIT: the expanded operands are each 2^6 too small


@dataclass(frozen=True)
class Config:
    """A row of SM90_PREFILL_CONFIGS."""

    name: str
    x_raw: bool
    stages: int

    @property
    def kernel(self) -> str:
        return f"nvfp4_{self.name}"

    @property
    def shared_bytes(self) -> int:
        stage = TILE_Y * 128 + (TILE_X * 32 + 1024 if self.x_raw else TILE_X * 128)
        return self.stages * stage + 8 * 2560 + 16 * self.stages


def configs() -> dict[str, Config]:
    rows = re.findall(r"X\((sm90_prefill_\w+), (\d), (\d+)\)", (CSRC / "sm90_prefill_configs.h").read_text())
    return {name: Config(name, x_raw == "1", int(stages)) for name, x_raw, stages in rows}


class ExpandOperand(ctypes.Structure):
    """sm90_dequant_operand."""

    _fields_ = (
        [("data", ctypes.c_uint64), ("scale", ctypes.c_uint64)]
        + [(name, ctypes.c_int64) for name in ("pitch", "batch", "scale_pitch", "scale_batch")]
        + [("to", ctypes.c_uint64), ("rows", ctypes.c_int32), ("padding", ctypes.c_int32)]
    )


class ExpandSchedule(ctypes.Structure):
    """sm90_dequant_schedule."""

    _fields_ = (
        [("first", ExpandOperand), ("second", ExpandOperand), ("k", ctypes.c_int64)]
        + [(name, ctypes.c_int32) for name in ("scale_layout", "first_ctas", "second_ctas")]
        + [(name, ctypes.c_int32) for name in ("rows_a_thread", "flags", "padding")]
        + [("zeroed", ctypes.c_uint64)]
    )  # fmt: skip


class DenseOperand(ctypes.Structure):
    """sm90_prefill_operand."""

    _fields_ = (
        [("values", TensorMap), ("scale", ctypes.c_uint64)]
        + [(name, ctypes.c_int64) for name in ("scale_pitch", "scale_batch")]
        + [("rows", ctypes.c_int32), ("batches", ctypes.c_int32), ("padding", ctypes.c_uint8 * 32)]
    )


class DenseSchedule(ctypes.Structure):
    """sm90_prefill_schedule."""

    _fields_ = (
        [("x", DenseOperand), ("y", DenseOperand)]
        + [(name, ctypes.c_int32) for name in ("tiles_x", "tiles_y", "whole", "halved", "k_stages", "swap_ab")]
        + [("padding", ctypes.c_uint8 * 40)]
    )


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


class DenseProduct(sm100.launch.Product):
    """One product, and its two launches."""

    def __init__(self, emulator: Emulator, *arguments: Any, **options: Any) -> None:
        self.shared: int | None = None  # the operand, 0 or 1, that all batches have in common
        self.places: dict[int, Array] = {}  # where operands are expanded
        self.more: dict[str, float] = {}  # fields of the problem: alpha, bias and what belongs to them
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
        """Makes all batches use the first batch of that operand."""
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

    def expand_operand(self, which: int, to: Array) -> ExpandOperand:
        data, scale = self.arrays[2 * which : 2 * which + 2]
        scale_batch, batch = self.distances(which)
        return ExpandOperand(
            data=data.address, scale=scale.address, pitch=self.pitch, batch=batch,
            scale_pitch=self.problem().sfa_pitch, scale_batch=scale_batch, to=to.address, rows=(self.m, self.n)[which],
        )  # fmt: skip

    def expanded(self, which: int) -> Array:
        """Poisoned memory for an operand."""
        return self.emulator.empty((self.batches(which), (self.m, self.n)[which], self.k_stages * 64), numpy.float16)

    def expand_ctas(self, which: int, rows_a_thread: int) -> int:
        """SM90_DEQUANT_CTAS."""
        blocks = ceil_div((self.m, self.n)[which], 32 * rows_a_thread)
        return blocks * ceil_div(self.k, EXPAND_K) * self.batches(which)

    def expand(
        self,
        module: Module,
        operands: list[tuple[int, Array]],
        wait: bool = False,
        rows_a_thread: int = 0,
        flags: int = 0,
        zeroed: Array | None = None,
    ) -> None:
        """rows_a_thread: by the plan's rule unless given. flags: so many words of `zeroed`, for helped kernels."""
        if not rows_a_thread:
            rows_a_thread = 1 if sum(self.expand_ctas(which, 1) for which, _ in operands) <= MOST_THIN_CTAS else 4
        ctas = [self.expand_ctas(which, rows_a_thread) for which, _ in operands]
        filled = [self.expand_operand(which, to) for which, to in operands]
        schedule = ExpandSchedule(
            first=filled[0], k=self.k, scale_layout=int(self.linear), first_ctas=ctas[0], rows_a_thread=rows_a_thread
        )
        if zeroed:
            schedule.flags, schedule.zeroed = flags, zeroed.address
        if len(filled) == 2:
            schedule.second, schedule.second_ctas = filled[1], ctas[1]
        self.emulator.launch(
            module["nvfp4_sm90_dequant"], grid=sum(ctas), block=EXPAND_THREADS, args=[bytes(schedule)],
            programmatic=True, wait=wait,
        )  # fmt: skip

    def operand(self, which: int, raw: bool) -> DenseOperand:
        rows, batches = (self.m, self.n)[which], self.batches(which)
        operand = DenseOperand(rows=rows, batches=batches)
        if raw:
            operand.scale, operand.scale_pitch = self.arrays[2 * which + 1].address, self.problem().sfa_pitch
            operand.scale_batch = self.distances(which)[0]
        if not self.k:
            return operand
        if raw:
            operand.values.opaque[:] = self.emulator.tensor_map(
                UINT8, self.arrays[2 * which], (self.k // 2, rows, batches), (self.pitch, rows * self.pitch),
                (32, 128, 1),
            )  # fmt: skip
        else:
            pitch = self.k_stages * 128
            operand.values.opaque[:] = self.emulator.tensor_map(
                UINT16, self.places[which], (self.k_stages * 64, rows, batches), (pitch, rows * pitch), (64, 128, 1),
                swizzle=SWIZZLE_128,
            )  # fmt: skip
        return operand

    def dense_schedule(self, swap_ab: bool, clusters: int) -> DenseSchedule:
        """All but the operands; clusters: that run at once."""
        x, y = (1, 0) if swap_ab else (0, 1)
        rows = (self.m, self.n)
        tiles_x, tiles_y = ceil_div(rows[x], TILE_X), ceil_div(rows[y], TILE_Y)
        pairs = ceil_div(tiles_x, 2) * tiles_y * self.l
        rest = pairs % clusters
        halved = 2 * rest if 2 * rest <= clusters else 0
        return DenseSchedule(
            tiles_x=tiles_x, tiles_y=tiles_y, whole=pairs - halved // 2, halved=halved, k_stages=self.k_stages,
            swap_ab=int(swap_ab),
        )  # fmt: skip

    def launch_dense(
        self, expand: Module, module: Module, config: Config, swap_ab: bool, clusters: int, wait: bool = True
    ) -> None:
        x, y = (1, 0) if swap_ab else (0, 1)
        expanded = [] if self.k == 0 else [y] if config.x_raw else [y, x]
        for which in expanded:
            if which not in self.places:  # memory that is freed would wait for the calls before
                self.places[which] = self.expanded(which)
        if expanded:
            self.expand(expand, [(which, self.places[which]) for which in expanded])
        schedule = self.dense_schedule(swap_ab, clusters)
        schedule.x, schedule.y = self.operand(x, config.x_raw), self.operand(y, False)
        self.emulator.launch(
            module[config.kernel],
            grid=2 * min(clusters, max(schedule.whole, schedule.halved)),
            block=THREADS,
            args=[bytes(self.problem()), bytes(schedule)],
            shared=config.shared_bytes,
            cluster=2,
            programmatic=True,
            wait=wait,
        )

    def expected_expansion(self, which: int) -> numpy.ndarray:
        """[batches, rows, 64 * k_stages] in the order of the kernel: zeros beyond K, 2^-6 of the numbers."""
        rows, batches = (self.m, self.n)[which], self.batches(which)
        numbers = numpy.zeros((batches, rows, self.k_stages * 64))
        data = self.data[which][:batches, :, : self.k // 2]
        numbers[:, :, : self.k] = sm100.launch.decode(data, self.scales[which][:batches]) / UNIT**0.5
        # Value 16t + 8w + e of each 64: its pair of word w is q = (e % 2) * 2 + e // 4, in which it is e // 2 % 2.
        apart = numbers.reshape(batches, rows, self.k_stages, 4, 2, 2, 2, 2)  # ..., t, w, e // 4, e // 2 % 2, e % 2
        return apart.transpose(0, 1, 2, 4, 7, 5, 3, 6).reshape(numbers.shape)  # ..., w, e % 2, e // 4, t, e // 2 % 2


def expand_ptx() -> str:
    return compile_ptx(CSRC / "sm90_dequant.cu", family="sm90")


def dense_ptx(config: Config) -> str:
    return only_entry(compile_ptx(CSRC / "sm90_prefill.cu", family="sm90"), config.kernel)
