"""Number formats and scale layouts in NumPy, from their definitions."""

from __future__ import annotations

import numpy

FP16, BF16, FP32 = 4, 5, 6  # nvfp4_dtype
TYPES = (FP32, FP16, BF16)
VALUES = numpy.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])  # of e2m1 codes
NAN = 0x7F  # an e4m3 byte
INTEGER_SCALES = numpy.array([0x00, 0x38, 0x40, 0x44], numpy.uint8)  # 0, 1, 2, 3


def e4m3(byte: int) -> float:
    exponent, mantissa = byte >> 3 & 15, byte & 7
    if byte & 127 == NAN:
        return float("nan")
    return mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)


E4M3 = numpy.array([e4m3(byte) for byte in range(256)])


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def swizzle_scales(scales: numpy.ndarray, padding: int = NAN) -> numpy.ndarray:
    """[L, R, S] to the 128x4 layout, [L, ceil(R/128), ceil(S/4), 512], padded with that byte."""
    l, rows, columns = scales.shape
    blocks, atoms = ceil_div(rows, 128), ceil_div(columns, 4)
    padded = numpy.full((l, blocks * 128, atoms * 4), padding, numpy.uint8)
    padded[:, :rows, :columns] = scales
    # (l, block, j, i, atom, s) of row 32j + i to (l, block, atom, i, j, s)
    return padded.reshape(l, blocks, 4, 32, atoms, 4).transpose(0, 1, 4, 3, 2, 5).reshape(l, blocks, atoms, 512)


def decode(data: numpy.ndarray, scales: numpy.ndarray) -> numpy.ndarray:
    """Values times scales in float64: data [L, R, K/2], scales [L, R, K/16]."""
    values = numpy.stack([VALUES[data & 15], VALUES[data >> 4]], axis=-1).reshape(*data.shape[:2], -1)
    return values * numpy.repeat(E4M3[scales], 16, axis=-1)


def stored(values: numpy.ndarray, kind: int) -> numpy.ndarray:
    """fp32 numbers as the bits of that type, to nearest even."""
    single = numpy.ascontiguousarray(values, "f4")
    if kind == FP32:
        return single.view("u4")
    if kind == FP16:
        return single.astype("f2").view("u2")
    bits = single.view("u4")
    return (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype("u2")


def loaded(bits: numpy.ndarray, kind: int) -> numpy.ndarray:
    """The bits of that type as fp32."""
    if kind == BF16:
        return (bits.view("u2").astype("u4") << 16).view("f4")
    return bits.view("f4" if kind == FP32 else "f2").astype("f4")


def rounded(values: numpy.ndarray, kind: int) -> numpy.ndarray:
    """fp32 numbers rounded to nearest even to that type, as fp32."""
    return loaded(stored(values, kind), kind)
