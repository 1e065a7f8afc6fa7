"""Shared by the tests of the Hopper kernels: dequantized operands, the order of their values, and the dequantize
pre-pass csrc/kernels/sm90/dequant.cu."""

from __future__ import annotations

from typing import Any

import numpy
from emulate import Array, Emulator, Module
from harness import launch
from harness.headers import Struct, headers_of
from harness.launch import SWIZZLE_128, UINT16, compile_ptx
from harness.values import FP16, ceil_div

HEADERS = headers_of("sm90")
DequantOperand, DequantSchedule = HEADERS.structs["sm90_dequant_operand"], HEADERS.structs["sm90_dequant_schedule"]
STAGE_K = HEADERS.value("SM90_PREFILL_STAGE_K")
MAX_THIN_CTAS = 264  # CTAs of the pre-pass with one row a thread (csrc/kernels/sm90/dequant_plan.c)
UNIT = 64.0  # dequantized values are divided by it


def dequant_ptx() -> str:
    return compile_ptx(HEADERS.folder / "dequant.cu", "sm90")


def dequantized(values: numpy.ndarray, span: int) -> numpy.ndarray:
    """[L, R, K] as csrc/kernels/sm90/dequant.cu writes them, [L, R, 128 ceil(K/128)], zeros past K. Of `span` values,
    lane t of a quad has scale groups t (64), or 2t and 2t + 1, one in each half (128). Value 8w + e of a group is
    element e // 2 % 2 of pair q = (e % 2) * 2 + e // 4 of word w."""
    l, rows, k = values.shape
    padded = numpy.zeros((l, rows, ceil_div(k, 128) * 128))
    padded[:, :, :k] = values / UNIT
    groups = (2, 4) if span == 64 else (4, 2)  # (half, t) or (t, half)
    apart = padded.reshape(l, rows, -1, *groups, 2, 2, 2, 2)  # ..., w, e // 4, e // 2 % 2, e % 2
    if span == 128:
        apart = apart.swapaxes(3, 4)
    # ..., half, w, e % 2, e // 4, t, e // 2 % 2
    return apart.transpose(0, 1, 2, 3, 5, 8, 6, 4, 7).reshape(padded.shape)


class Dequantizing(launch.Product):
    """A product with operands that the pre-pass dequantizes."""

    span: int  # values along K that the kernel reorders together
    constant_b = False  # the caller's word: grids before do not write B

    def __init__(self, emulator: Emulator, *arguments: Any, **options: Any) -> None:
        self.outputs: dict[int, Array] = {}  # dequantized operands
        super().__init__(emulator, *arguments, **options)

    @property
    def width(self) -> int:
        return int(HEADERS.value("SM90_DEQUANT_PITCH", self.k)) // 2

    def dequant_output(self, which: int) -> Array:
        """Poisoned memory for a dequantized operand."""
        return self.emulator.empty((self.batches(which), self.rows(which), self.width), numpy.float16)

    def dequant_ctas(self, which: int, rows_per_thread: int, part: tuple[int, int] | None = None) -> int:
        rows, k = part or (self.rows(which), self.k)
        return HEADERS.value("SM90_DEQUANT_CTAS", rows, k, self.batches(which), rows_per_thread)

    def dequantize(
        self,
        module: Module,
        operands: list[tuple[int, Array]],
        wait: bool = False,
        rows_per_thread: int = 0,
        flags: int = 0,
        zeroed: Array | None = None,
        part: tuple[int, int] | None = None,
        x: tuple[int, Array] | None = None,
        **fields: float,
    ) -> None:
        """rows_per_thread: 0: the planner's rule. flags: words of `zeroed` to zero, for stream-K kernels. part: rows of
        the operand and values along K, from the beginning; x: the type and the values [batches, rows, K] of a
        16-bit A that the kernel quantizes; fields: others of the schedule."""
        if not rows_per_thread:
            thin = sum(self.dequant_ctas(which, 1, part) for which, _ in operands) <= MAX_THIN_CTAS
            rows_per_thread = 1 if thin else 4
        ctas = [self.dequant_ctas(which, rows_per_thread, part) for which, _ in operands]
        filled = [DequantOperand(to=to.address, **self.placed(which)) for which, to in operands]
        if part:
            filled[0].rows = part[0]
        kernel = "nvfp4_sm90_dequant"
        if x is not None:
            kernel = f"nvfp4_sm90_fake_quantize_{'fp16' if x[0] == FP16 else 'bf16'}"
            a = filled[[which for which, _ in operands].index(0)]
            a.type, a.data, a.scale = x[0], x[1].address, 0
            a.pitch, a.batch = 2 * self.k, 2 * self.k * self.m
        schedule = DequantSchedule(
            first=filled[0], k=self.k, scale_layout=int(self.linear), first_ctas=ctas[0],
            rows_per_thread=rows_per_thread, span=self.span,
            chunks=ceil_div(part[1] if part else self.k, HEADERS.value("SM90_DEQUANT_K")), **fields,
        )  # fmt: skip
        schedule.launch_first = int(self.constant_b and [which for which, _ in operands] == [0])  # mma_a is B
        if zeroed:
            schedule.flags, schedule.zeroed = flags, zeroed.address
        if len(filled) == 2:
            schedule.second, schedule.second_ctas = filled[1], ctas[1]
        self.emulator.launch(
            module[kernel], grid=sum(ctas), block=HEADERS.value("SM90_DEQUANT_THREADS"),
            args=[bytes(schedule)], programmatic=True, wait=wait,
        )  # fmt: skip

    def expected_dequant(self, which: int) -> numpy.ndarray:
        """[batches, rows, width] in the kernel's order along K."""
        return dequantized(self.decoded(which)[: self.batches(which)], self.span)

    def fp16_map(self, which: int, array: Array, box_rows: int) -> Struct:
        """The tensor map of a dequantized operand in that array."""
        width, rows = self.width, self.rows(which)
        dims, strides = (width, rows, self.batches(which)), (2 * width, 2 * width * rows)
        return self.tensor_map(UINT16, array, dims, strides, (64, box_rows, 1), SWIZZLE_128)
