"""The number formats and the tensor core's rule once more, in exact fractions and without looking at the C code."""

import ctypes
import math
import struct
import subprocess
from fractions import Fraction
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "src"
RN, RZ, RM, RP, RNA = range(5)
SATFINITE, RELU = 1, 2
NAN, INF = math.nan, math.inf


class Format:
    """exponent bits, mantissa bits, bias; specials: 'ieee', 'nan' (all ones only) or 'none'."""

    def __init__(self, exponent: int, mantissa: int, bias: int, specials: str) -> None:
        self.exponent, self.mantissa, self.bias, self.specials = exponent, mantissa, bias, specials
        self.width = exponent + mantissa
        self.nan = (1 << self.width) - 1
        self.largest = self.nan - {"ieee": 1 << mantissa, "nan": 1, "none": 0}[specials]
        self.smallest_exponent = 1 - bias

    def decode(self, bits: int) -> Fraction | float:
        magnitude, negative = bits & self.nan, bits >> self.width & 1
        if magnitude > self.largest:
            if self.specials == "ieee" and magnitude == self.largest + 1:
                return -INF if negative else INF
            return NAN
        field, mantissa = divmod(magnitude, 1 << self.mantissa)
        significand = Fraction(mantissa, 1 << self.mantissa) + (1 if field else 0)
        value = significand * Fraction(2) ** (max(field, 1) - self.bias)
        return -value if negative else value

    def encode(self, x: Fraction | float, rounding: int, flags: int = 0, negative_zero: bool = False) -> int:
        if isinstance(x, float) and math.isnan(x):
            return self.nan
        negative = x < 0 or (x == 0 and negative_zero)
        if abs(x) == INF:
            magnitude = self.beyond(True, flags)
        else:
            magnitude = self.round(abs(Fraction(x)), rounding, negative, flags)
        if self.specials == "nan" and magnitude == self.nan:
            return magnitude
        if negative and flags & RELU:
            return 0
        return magnitude | (negative << self.width)

    def beyond(self, away: bool, flags: int) -> int:
        return self.largest if flags & SATFINITE or self.specials == "none" or not away else self.largest + 1

    def round(self, x: Fraction, rounding: int, negative: bool, flags: int) -> int:
        exponent = max(floor_log2(x), self.smallest_exponent) if x else self.smallest_exponent
        unit = Fraction(2) ** (exponent - self.mantissa)
        below, rest = divmod(x / unit, 1)
        up = {
            RN: rest > Fraction(1, 2) or (rest == Fraction(1, 2) and below % 2 == 1),
            RNA: rest >= Fraction(1, 2),
            RZ: False,
            RM: negative and rest > 0,
            RP: not negative and rest > 0,
        }[rounding]
        rounded = (below + up) * unit
        if rounded > self.decode(self.largest):
            away = rounding in (RN, RNA) or (rounding == RM and negative) or (rounding == RP and not negative)
            return self.beyond(away, flags)
        if rounded == 0:
            return 0
        exponent = max(floor_log2(rounded), self.smallest_exponent)
        mantissa = int(rounded / Fraction(2) ** (exponent - self.mantissa))
        return ((exponent - self.smallest_exponent) << self.mantissa) + mantissa


def floor_log2(x: Fraction) -> int:
    guess = x.numerator.bit_length() - x.denominator.bit_length()
    return guess if Fraction(2) ** guess <= x else guess - 1


F32 = Format(8, 23, 127, "ieee")
FORMATS = {
    "f16": Format(5, 10, 15, "ieee"),
    "bf16": Format(8, 7, 127, "ieee"),
    "tf32": Format(8, 10, 127, "ieee"),
    "e4m3": Format(4, 3, 7, "nan"),
    "e5m2": Format(5, 2, 15, "ieee"),
    "e2m3": Format(2, 3, 1, "none"),
    "e3m2": Format(3, 2, 3, "none"),
    "e2m1": Format(2, 1, 1, "none"),
}


def build(directory: Path) -> ctypes.CDLL:
    library = directory / "libarithmetic.so"
    names = ("scalar/formats.c", "tensor/arithmetic.c", "tensor/arithmetic_lanes.c", "tensor/arithmetic_operand.c")
    command = ["gcc", "-std=c11", "-O2", "-march=native", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*command, "-I", SOURCES, "-o", library, *(SOURCES / name for name in names), "-lm"], check=True)
    c = ctypes.CDLL(str(library))
    for name in FORMATS:
        getattr(c, f"{name}_from_float").argtypes = [ctypes.c_float, ctypes.c_int, ctypes.c_int]
        wide = ctypes.c_uint32 if name == "tf32" else ctypes.c_uint16 if name.endswith("f16") else ctypes.c_uint8
        getattr(c, f"{name}_from_float").restype = wide
        getattr(c, f"{name}_to_float").argtypes = [wide]
        getattr(c, f"{name}_to_float").restype = ctypes.c_float
    c.ue8m0_from_float.argtypes = [ctypes.c_float, ctypes.c_int, ctypes.c_int]
    c.ue8m0_from_float.restype = ctypes.c_uint8
    for name in ("ue4m3_to_float", "ue8m0_to_float"):
        getattr(c, name).argtypes, getattr(c, name).restype = [ctypes.c_uint8], ctypes.c_float
    c.ue8m0_to_bf16.argtypes, c.ue8m0_to_bf16.restype = [ctypes.c_uint8], ctypes.c_uint16
    for name in ("f16_from_double", "bf16_from_double"):
        getattr(c, name).argtypes, getattr(c, name).restype = (
            [ctypes.c_double, ctypes.c_int, ctypes.c_int],
            ctypes.c_uint16,
        )
    c.f32_from_double.argtypes, c.f32_from_double.restype = [ctypes.c_double, ctypes.c_int], ctypes.c_float
    for name, kind in (("format_from_int64", ctypes.c_int64), ("format_from_uint64", ctypes.c_uint64)):
        getattr(c, name).argtypes = [ctypes.c_void_p, kind, ctypes.c_int, ctypes.c_int]
        getattr(c, name).restype = ctypes.c_uint64
    c.tensor_rejection.restype = ctypes.c_char_p
    return c


# --- tensor core -----------------------------------------------------------------------------------------------------

ELEMENTS = ["f16", "bf16", "tf32", "e4m3", "e5m2", "e2m3", "e3m2", "e2m1", "e2m1_shifted", "e2m1_packed", "s8", "u8"]
SM80_MMA, SM90_MMA, SM90_WGMMA, SM100 = range(4)
D_F32, D_F16, D_S32 = range(3)
UNSCALED, UE4M3, UE8M0 = range(3)


class TensorOp(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int) for name in ["architecture", "rule", "m", "n", "k", "a_type", "b_type", "d_type"]),
        ("a", ctypes.c_void_p),
        ("a_stride", ctypes.c_ssize_t),
        ("b", ctypes.c_void_p),
        ("b_stride", ctypes.c_ssize_t),
        ("c", ctypes.c_void_p),
        ("c_stride", ctypes.c_ssize_t),
        ("c_step", ctypes.c_ssize_t),
        ("d", ctypes.c_void_p),
        ("d_stride", ctypes.c_ssize_t),
        ("d_step", ctypes.c_ssize_t),
        ("scale_type", ctypes.c_int),
        ("blocks", ctypes.c_int),
        ("sfa", ctypes.c_void_p),
        ("sfa_stride", ctypes.c_ssize_t),
        ("sfb", ctypes.c_void_p),
        ("sfb_stride", ctypes.c_ssize_t),
        ("negate_a", ctypes.c_bool),
        ("negate_b", ctypes.c_bool),
        ("saturate", ctypes.c_bool),
        ("scale_input_d", ctypes.c_int),
    ]


def element(kind: str, row: bytes, k: int) -> Fraction | float | int:
    if kind == "s8":
        return struct.unpack_from("b", row, k)[0]
    if kind == "u8":
        return row[k]
    if kind == "tf32":
        return FORMATS["tf32"].decode(struct.unpack_from("<I", row, 4 * k)[0] >> 13)
    if kind in ("f16", "bf16"):
        return FORMATS[kind].decode(struct.unpack_from("<H", row, 2 * k)[0])
    if kind == "e2m1_packed":
        return FORMATS["e2m1"].decode(row[k // 2] >> 4 * (k % 2) & 15)
    if kind == "e2m1_shifted":
        return FORMATS["e2m1"].decode(row[k] >> 2 & 15)
    form = FORMATS[kind]
    return form.decode(row[k] & ((2 << form.width) - 1))


def scale(kind: int, byte: int) -> Fraction | float:
    if kind == UE4M3:
        return FORMATS["e4m3"].decode(byte & 127)
    return NAN if byte == 255 else Fraction(2) ** (byte - 127)


def exponent_of(x: Fraction, smallest: int) -> int:
    return max(floor_log2(abs(x)), smallest) if x else -126


def smallest_exponent(kind: str) -> int:
    return FORMATS[kind.split("_")[0]].smallest_exponent


def to_result(x: Fraction, d_type: int, mantissa: int) -> int:
    """Toward zero to fp32, where it may go to infinity, or to the nearest fp16; never to -0."""
    if d_type == D_F16:
        bits = FORMATS["f16"].encode(x, RN)
        return bits if bits & 0x7FFF else 0
    if abs(x) >= Fraction(2) ** 128:
        return 0xFF800000 if x < 0 else 0x7F800000
    bits = Format(8, mantissa, 127, "ieee").encode(x, RZ) << (23 - mantissa)
    return bits if bits & 0x7FFFFFFF else 0


def special(values: list[Fraction | float], d_type: int) -> int:
    nan, inf = (0x7FFF, 0x7C00) if d_type == D_F16 else (0x7FFFFFFF, 0x7F800000)
    infinities = {x for x in values if isinstance(x, float)}
    if any(math.isnan(x) for x in infinities) or len(infinities) > 1:
        return nan
    return inf | (0x8000 if d_type == D_F16 else 0x80000000) if -INF in infinities else inf


def decode_c(bits: int, d_type: int) -> Fraction | float:
    return FORMATS["f16"].decode(bits) if d_type == D_F16 else F32.decode(bits)


def multiply(x: Fraction | float, y: Fraction | float) -> Fraction | float:
    """Infinity times zero is NaN; a fraction times a float would lose bits."""
    if isinstance(x, Fraction) and isinstance(y, Fraction):
        return x * y
    return math.copysign(float(x != 0), x) * math.copysign(float(y != 0), y) * INF if x == x and y == y else NAN


def fused(terms: list[tuple[Fraction, int]], bits: int) -> Fraction:
    """Every term cut toward zero below 2^(largest exponent - bits), then summed."""
    unit = Fraction(2) ** (max(exponent for _, exponent in terms) - bits)
    return sum(int(value / unit) for value, _ in terms) * unit


def output(op: TensorOp, a: bytes, b: bytes, sfa: bytes, sfb: bytes, c_bits: int) -> int:
    """One D element from a row of A and of B (with their scales) and C."""
    kinds = ELEMENTS[op.a_type], ELEMENTS[op.b_type]
    xs = [element(kinds[0], a, k) for k in range(op.k)]
    ys = [element(kinds[1], b, k) for k in range(op.k)]
    if op.negate_a != op.negate_b:
        xs = [-x for x in xs]
    if op.d_type == D_S32:
        total = sum(x * y for x, y in zip(xs, ys)) + struct.unpack("<i", struct.pack("<I", c_bits))[0]
        if op.saturate:
            total = min(max(total, -(2**31)), 2**31 - 1)
        return total & 0xFFFFFFFF
    c = decode_c(c_bits, op.d_type)
    if kinds[0] == "e2m1_packed":
        scales = [(scale(op.scale_type, p), scale(op.scale_type, q)) for p, q in zip(sfa, sfb)]
        if c != c or any(p != p or q != q for p, q in scales):
            return 0x7FFFFFFF
        if isinstance(c, float):
            return special([c], op.d_type)
        least = -6 if op.scale_type == UE4M3 else -127
        terms = [(c, exponent_of(c, -126))]
        for group in range(4):
            p, q = scales[group * op.blocks // 4]
            dot = sum(x * y for x, y in list(zip(xs, ys))[16 * group : 16 * group + 16])
            terms.append((dot * p * q, exponent_of(p, least) + exponent_of(q, least)))
        return to_result(fused(terms, 35), op.d_type, 23)

    fp8 = kinds[0] in ("e4m3", "e5m2")
    order, count, bits, mantissa = list(range(op.k)), op.k, 25, 23
    via_f16 = fp8 and op.architecture == SM90_MMA
    if via_f16:
        order = [k for k in range(op.k) if k % 4 < 2] + [k for k in range(op.k) if k % 4 >= 2]
        count = op.k // 2
    if op.architecture == SM80_MMA:
        bits, count = 24, min(op.k, 4 if kinds[0] == "tf32" else 16 if fp8 else 8)
    if fp8 and op.architecture in (SM80_MMA, SM90_WGMMA):
        bits = mantissa = 13
    least = [-14 if via_f16 else smallest_exponent(kind) for kind in kinds]
    factor, lift = Fraction(1), 0
    if op.blocks:
        p, q = scale(op.scale_type, sfa[0]), scale(op.scale_type, sfb[0])
        if p != p or q != q:
            return 0x7FFFFFFF
        factor, lift = p * q, exponent_of(p, -127) + exponent_of(q, -127)
    running = 0 if via_f16 else c_bits
    for start in range(0, op.k, count):
        now = decode_c(running, op.d_type)
        pairs = [(xs[k], ys[k]) for k in order[start : start + count]]
        values = [now, *(multiply(x, y) for x, y in pairs)]
        if any(isinstance(value, float) for value in values):
            running = special(values, op.d_type)
            continue
        shrunk = now / 2**op.scale_input_d
        exponent = exponent_of(now, -14 if op.d_type == D_F16 else -126) - (op.scale_input_d if now else 0)
        terms = [(shrunk, exponent)]
        for x, y in pairs:
            terms.append((x * y * factor, exponent_of(x, least[0]) + exponent_of(y, least[1]) + lift))
        running = to_result(fused(terms, bits), op.d_type, mantissa)
    if not via_f16:
        return running
    total = decode_c(running, op.d_type)
    if isinstance(total, float) or isinstance(c, float):
        return special([total, c], op.d_type)
    form = FORMATS["f16"] if op.d_type == D_F16 else F32
    return form.encode(total + c, RN)
