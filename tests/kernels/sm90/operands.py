"""What the Hopper kernels share: dequantized operands, and the order of their values."""

from __future__ import annotations

import numpy
from emulate import Array
from harness import launch
from harness.headers import Struct, family
from harness.launch import SWIZZLE_128, UINT16
from harness.values import ceil_div

DequantOperand = family("sm90").structs["sm90_dequant_operand"]
UNIT = 64.0  # dequantized values are divided by it


def dequantized(values: numpy.ndarray) -> numpy.ndarray:
    """[L, R, K] as csrc/kernels/sm90/dequant.cu writes them, [L, R, 64 ceil(K/64)], zeros past K. Value 16t + 8w + e of
    64 is element e // 2 % 2 of pair q = (e % 2) * 2 + e // 4 of word w."""
    l, rows, k = values.shape
    padded = numpy.zeros((l, rows, ceil_div(k, 64) * 64))
    padded[:, :, :k] = values / UNIT
    apart = padded.reshape(l, rows, -1, 4, 2, 2, 2, 2)  # ..., t, w, e // 4, e // 2 % 2, e % 2
    return apart.transpose(0, 1, 2, 4, 7, 5, 3, 6).reshape(padded.shape)  # ..., w, e % 2, e // 4, t, e // 2 % 2


class Dequantizing(launch.Product):
    def fp16_map(self, which: int, array: Array, box_rows: int) -> Struct:
        """Of a dequantized operand in that array."""
        width, rows = ceil_div(self.k, 64) * 64, self.rows(which)
        dims, strides = (width, rows, self.batches(which)), (2 * width, 2 * width * rows)
        return self.tensor_map(UINT16, array, dims, strides, (64, box_rows, 1), SWIZZLE_128)
