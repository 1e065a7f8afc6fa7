"""Expected memory contents for test_sm100_stages.py, computed from the definitions without the emulator."""

from __future__ import annotations

import numpy
from harness.values import VALUES


def box(source: numpy.ndarray, corner: tuple[int, ...], shape: tuple[int, ...]) -> numpy.ndarray:
    """A box of the source from that corner on, zeros outside the source."""
    made = numpy.zeros(shape, source.dtype)
    first = [max(c, 0) for c in corner]
    last = [min(c + s, n) for c, s, n in zip(corner, shape, source.shape)]
    if all(f < l for f, l in zip(first, last)):
        there = tuple(slice(f - c, l - c) for f, l, c in zip(first, last, corner))
        made[there] = source[tuple(slice(f, l) for f, l in zip(first, last))]
    return made


def swizzled(rows: numpy.ndarray) -> numpy.ndarray:
    """Rows of 128 bytes in the 128-byte swizzle: the index of a 16-byte chunk is XORed with row % 8."""
    chunks = rows.reshape(-1, 8, 16)
    row = numpy.arange(len(chunks))[:, None]
    return chunks[row, numpy.arange(8) ^ row % 8].reshape(-1)


def tensor_core(
    a: numpy.ndarray, sfa: numpy.ndarray, b: numpy.ndarray, sfb: numpy.ndarray
) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray]:
    """The accumulator after a chain of tcgen05.mma with K = 64, computed in integers: [M, N] fp32; the exact sum in
    float64; and the magnitude of which a step's error is less than 2^-23 (the largest partial sum, plus a term for
    truncation where terms cancel).

    a, b: e2m1 codes [rows, K]; sfa, sfb: e4m3 bytes [rows, K/16]. A step takes four exact sums of 16 products times
    their scales, and the accumulator; truncates each 35 bits below the largest exponent; adds them; truncates to 24
    bits.
    """
    doubled = (2 * VALUES).astype(numpy.int64)

    def scale(byte: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Significand in eighths, exponent; zero has no exponent that could be the largest."""
        exponent, mantissa = (byte >> 3 & 15).astype(numpy.int64), (byte & 7).astype(numpy.int64)
        significand = numpy.where(exponent == 0, mantissa, 8 + mantissa)
        return significand, numpy.where(significand == 0, -126, numpy.maximum(exponent, 1) - 7)

    def truncate(value: numpy.ndarray, left: numpy.ndarray) -> numpy.ndarray:
        """value * 2^left, truncated toward zero."""
        up, down = numpy.clip(left, 0, 40), numpy.clip(-left, 0, 62)
        return numpy.sign(value) * (numpy.abs(value) << up >> down)

    qa, ea = scale(sfa)
    qb, eb = scale(sfb)
    m, n, steps = len(a), len(b), a.shape[1] // 64
    total = numpy.zeros((m, n))  # always a number that fp32 has
    exact, largest = numpy.zeros((m, n)), numpy.zeros((m, n))
    for step in range(steps):
        terms = []
        for block in range(4 * step, 4 * step + 4):
            values = slice(16 * block, 16 * block + 16)
            dot = (doubled[a[:, values]] @ doubled[b[:, values]].T) * qa[:, block, None] * qb[None, :, block]
            terms.append((dot, ea[:, block, None] + eb[None, :, block]))  # dot * 2^(exponent - 8)
        fraction, exponent = numpy.frexp(total)
        c = (fraction * 2**24).astype(numpy.int64)  # c * 2^(exponent - 24), the leading bit worth 2^(exponent - 1)
        c_exponent = numpy.where(c == 0, -126, exponent - 1)
        top = numpy.maximum.reduce([c_exponent, *(e for _, e in terms)])
        added = truncate(c, 35 - 23 - (top - c_exponent))
        for dot, e in terms:
            added += truncate(dot, 35 - 8 - (top - e))
            exact += numpy.ldexp(dot.astype(float), e - 8)
        bits = numpy.frexp(numpy.abs(added).astype(float))[1]
        lost = numpy.clip(bits - 24, 0, None)
        total = numpy.ldexp((numpy.sign(added) * (numpy.abs(added) >> lost << lost)).astype(float), top - 35)
        # Five numbers are truncated at 2^(top - 35): in units of 2^-23 less than 6 * 2^(top - 12).
        largest = numpy.maximum(largest, numpy.abs(exact) + numpy.ldexp(6.0, top - 12))
    return total.astype(numpy.float32), exact, largest


def codes(data: numpy.ndarray) -> numpy.ndarray:
    """Bytes of two e2m1 values [rows, K/2] to codes [rows, K]."""
    return numpy.stack([data & 15, data >> 4], axis=-1).reshape(len(data), -1)
