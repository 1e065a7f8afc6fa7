"""Inputs from seeds: every bit comes from splitmix64, so no version of any library changes them."""

import numpy as np

ALL = (1 << 64) - 1


def words64(seed: int, count: int) -> np.ndarray:
    """The first `count` outputs of splitmix64 from `seed`."""
    gamma = 0x9E3779B97F4A7C15
    with np.errstate(over="ignore"):
        z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(gamma) + np.uint64(seed * 0x632BE59BD9B4E019 & ALL)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def words32(seed: int, count: int) -> np.ndarray:
    return (words64(seed, count) >> np.uint64(32)).astype(np.uint32)


def integers(seed: int, count: int, low: int, high: int) -> np.ndarray:
    """Integers of [low, high], near enough to uniform."""
    return (words64(seed, count) >> np.uint64(33)).astype(np.int64) % (high - low + 1) + low


def _three_rows(special: list[int], random: np.ndarray, n: int) -> np.ndarray:
    """Rows x, y, z of n inputs: pairs of special values first, in an order that lets each meet many, then random."""
    rows = random.reshape(3, n).copy()
    s = np.array(special, dtype=random.dtype)
    half = n // 2
    i = np.arange(half)
    rows[0, :half] = s[i % len(s)]
    rows[1, :half] = s[(i // len(s) * 5 + i * 3 + 1) % len(s)]
    rows[2, : half // 2] = s[(i[: half // 2] * 7 + 2) % len(s)]
    return rows.reshape(-1)


def rows_int32(seed: int, n: int) -> np.ndarray:
    special = [
        0,
        1,
        2,
        3,
        31,
        32,
        33,
        0x7FFFFFFF,
        0x80000000,
        0x80000001,
        0xFFFFFFFF,
        0xFFFFFFFE,
        0x7FFF,
        0x8000,
        0xFFFF,
    ]
    special += [0x800000, 0x7FFFFF, 0x12345678, 0xFF, 0x80, 77]
    random = words32(seed, 3 * n)
    random[::5] >>= np.uint32(20)
    return _three_rows(special, random, n)


def rows_int64(seed: int, n: int) -> np.ndarray:
    special = [
        0,
        1,
        2,
        63,
        64,
        65,
        1 << 63,
        (1 << 63) - 1,
        ALL,
        ALL - 1,
        1 << 32,
        (1 << 32) - 1,
        1 << 31,
        0x123456789ABCDEF,
    ]
    random = words64(seed, 3 * n)
    random[::5] >>= np.uint64(40)
    return _three_rows(special, random, n)


F32_SPECIAL = [
    0x00000000,
    0x80000000,
    0x3F800000,
    0xBF800000,
    0x7F800000,
    0xFF800000,
    0x7FC00000,
    0x7F812345,
    0xFFC01234,
]
F32_SPECIAL += [
    0x00000001,
    0x807FFFFF,
    0x00800000,
    0x7F7FFFFF,
    0xFF7FFFFF,
    0x3F000000,
    0x3FC00000,
    0xC0200000,
    0x4B000001,
]
F32_SPECIAL += [
    0x4F000000,
    0xCF000000,
    0x4F800000,
    0x5F000000,
    0x33800000,
    0x477FF000,
    0x43800000,
    0x3B000000,
    0x42FE8000,
]


def rows_f32(seed: int, n: int) -> np.ndarray:
    """All bit patterns, but every other exponent near 1 so that sums cancel and conversions do not saturate."""
    random = words32(seed, 3 * n)
    near = (random & np.uint32(0x807FFFFF)) | (
        (np.uint32(120) + (random >> np.uint32(8)) % np.uint32(24)) << np.uint32(23)
    )
    random[::2] = near[::2]
    return _three_rows(F32_SPECIAL, random, n)


def rows_f64(seed: int, n: int) -> np.ndarray:
    special = [
        0,
        1 << 63,
        0x3FF << 52,
        0xBFF << 52,
        0x7FF << 52,
        0xFFF << 52,
        0x7FF8 << 48,
        1,
        (1 << 63) | ((1 << 52) - 1),
    ]
    special += [1 << 52, 0x7FEFFFFFFFFFFFFF, 0x3FE << 52, 0x3FF8 << 48, 0xC004 << 48, 0x41DFFFFFFFC00000, 0x41F << 52]
    special += [0x43E << 52, 0x3690000000000000, 0x380FFFFFFFFFFFFF, 0x47EFFFFFF0000000]
    random = words64(seed, 3 * n)
    near = random & np.uint64(0x800FFFFFFFFFFFFF) | (
        np.uint64(1015) + (random >> np.uint64(9)) % np.uint64(40)
    ) << np.uint64(52)
    random[::2] = near[::2]
    return _three_rows(special, random, n)


def rows_half(seed: int, n: int, exponent_bits: int) -> np.ndarray:
    """Two 16-bit floats a word: f16 with 5 exponent bits, bf16 with 8."""
    mantissa = 15 - exponent_bits
    one = ((1 << (exponent_bits - 1)) - 1) << mantissa
    inf = ((1 << exponent_bits) - 1) << mantissa
    half = [0, 0x8000, one, one | 0x8000, inf, inf | 0x8000, inf | 1 << (mantissa - 1), inf | 1, 0x8000 | inf | 5]
    half += [
        1,
        0x8001,
        (1 << mantissa) - 1,
        1 << mantissa,
        inf - 1,
        0x8000 | (inf - 1),
        one + (1 << mantissa - 1),
        one - 1,
    ]
    special = [h | half[(i * 5 + 3) % len(half)] << 16 for i, h in enumerate(half)]
    random = words32(seed, 3 * n)
    return _three_rows(special, random, n)


def rows_moderate_f32(seed: int, n: int) -> np.ndarray:
    """For the approximate functions: x positive and wide, y anything not extreme, z in [-8, 8]."""
    bits = words64(seed, 3 * n)
    unit = (bits >> np.uint64(40)).astype(np.float64) / 2.0**24
    x = np.exp2(unit[:n] * 60 - 30)
    y = np.exp2(unit[n : 2 * n] * 40 - 20) * np.where(bits[n : 2 * n] & np.uint64(1), -1.0, 1.0)
    z = unit[2 * n :] * 16 - 8
    return np.concatenate([x, y, z]).astype(np.float32).view(np.uint32)


def small_integers(seed: int, count: int, kind: str, largest: int = 3) -> np.ndarray:
    """`count` values of [-largest, largest] as bits of a float type; sums of their products are exact in f32."""
    value = integers(seed, count, -largest, largest)
    return encode(value.astype(np.float64), kind)


def encode(value: np.ndarray, kind: str) -> np.ndarray:
    """Values to bits. The eight-bit types only for small integers, which they hold exactly."""
    value = np.asarray(value, dtype=np.float64)
    if kind == "f16":
        return value.astype(np.float16).view(np.uint16)
    if kind == "bf16":
        return (value.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    if kind in ("f32", "tf32"):
        return value.astype(np.float32).view(np.uint32)
    half = value.astype(np.float16).view(np.uint16)
    if kind == "e5m2":
        return (half >> np.uint16(8)).astype(np.uint8)
    if kind == "e4m3":
        magnitude = np.abs(value)
        exponent = np.floor(np.log2(np.where(magnitude == 0, 1, magnitude)))
        fraction = magnitude / np.exp2(exponent) * 8 - 8
        code = np.where(magnitude == 0, 0, (exponent + 7) * 8 + fraction).astype(np.uint8)
        return code | np.where(value < 0, 0x80, 0).astype(np.uint8)
    raise ValueError(kind)


def noise(seed: int, count: int, kind: str, spread: int = 6) -> np.ndarray:
    """Random finite values of a float type, exponents within `spread` of 1; fractions use every bit."""
    bits = words32(seed, count)
    sign, rest = bits >> np.uint32(31), bits >> np.uint32(8)
    mantissa_bits, exponent_bits = {
        "f16": (10, 5),
        "bf16": (7, 8),
        "tf32": (23, 8),
        "f32": (23, 8),
        "e4m3": (3, 4),
        "e5m2": (2, 5),
    }[kind]
    bias = (1 << (exponent_bits - 1)) - 1
    exponent = bias - spread + words32(seed + 7919, count) % np.uint32(spread + 2)
    mantissa = (rest if mantissa_bits == 23 else rest >> np.uint32(5)) & np.uint32((1 << mantissa_bits) - 1)
    width = 1 + mantissa_bits + exponent_bits
    code = sign << np.uint32(width - 1) | exponent.astype(np.uint32) << np.uint32(mantissa_bits) | mantissa
    return code.astype({32: np.uint32, 16: np.uint16, 8: np.uint8}[width])


def counter(count: int, bytes_each: int) -> np.ndarray:
    """1, 2, 3, ... in words of that many bytes: shows where every element went."""
    kind = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[bytes_each]
    return np.arange(1, count + 1).astype(kind)
