"""cvt: integers, floating point, the small formats and their pairs and fours; cvt.pack."""

from __future__ import annotations

import bisect
import math
from fractions import Fraction

import numpy
import pytest
from scalar import BF16, F16, F32, F64, NAN, Flushing, Format, Op, check, floats, integers, random_of, rejected

COUNT = 640
INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
FLOATS = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64}
WIDTH = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64, **{t: int(t[1:]) for t in INTEGERS}}
ROUNDINGS = ("rn", "rz", "rm", "rp")


def value_of(kind: str, x: int) -> int:
    bits = int(kind[1:])
    x &= (1 << bits) - 1
    return x - (1 << bits) if kind[0] == "s" and x >> (bits - 1) else x


def bounds(kind: str) -> tuple[int, int]:
    bits = int(kind[1:])
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


def container(kind: str) -> int:
    """Registers of cvt's 8-bit types have 16 bits or more in what compilers write."""
    return max(WIDTH[kind], 16)


def test_between_integers() -> None:
    random = random_of("cvt integers")
    ops = []
    for to in INTEGERS:
        low, high = bounds(to)
        for source in INTEGERS:
            resize = lambda a, t=to, s=source: value_of(t, value_of(s, a))  # noqa: E731
            for wide_to in {container(to), 32, 64} - {16 if WIDTH[to] > 16 else 0, 32 if WIDTH[to] > 32 else 0}:
                for wide_from in {container(source), 64}:
                    ops.append(Op(f"cvt.{to}.{source} {{d}}, {{a}}", (wide_to, wide_from), resize))
            first, last = bounds(source)
            if first < low or last > high:
                clamp = lambda a, s=source, b=(low, high): min(max(value_of(s, a), b[0]), b[1])  # noqa: E731
                ops.append(Op(f"cvt.sat.{to}.{source} {{d}}, {{a}}", (container(to), container(source)), clamp))
    check(ops, [integers(random, COUNT, 64) for _ in range(3)], random)


def integral(x: Fraction, mode: str) -> int:
    floor = x.numerator // x.denominator
    ceiling = -(-x.numerator // x.denominator)
    if mode[:2] == "rn":
        return round(x)  # ties to even
    return {"rz": floor if x >= 0 else ceiling, "rm": floor, "rp": ceiling}[mode[:2]]


def to_integer(kind: str, f: Format, mode: str, ftz: bool, x: int) -> int:
    x = f.flush(x) if ftz else x
    low, high = bounds(kind)
    if f.is_nan(x):
        return 1 << (WIDTH[kind] - 1) if f is F64 or WIDTH[kind] == 64 else 0
    if f.is_infinite(x):
        return low if f.is_negative(x) else high
    return min(max(integral(f.value(x), mode), low), high)


def spread(random: numpy.random.Generator, f: Format) -> numpy.ndarray:
    """Floating-point numbers, half of them in the reach of integers, with ties."""
    x = floats(random, COUNT, *f)
    halves = [int(v) for v in integers(random, COUNT, 64)]
    for i in numpy.flatnonzero(random.random(COUNT) < 0.5):
        value = Fraction(value_of("s64", halves[i]) >> int(random.integers(0, 64)), 1 << int(random.integers(0, 3)))
        x[i] = f.encode(value, "rz")
    return x


@pytest.mark.parametrize("source", FLOATS)
def test_float_to_integer(source: str) -> None:
    random = random_of(f"cvt integer {source}")
    f, ops = FLOATS[source], []
    for to in INTEGERS:
        for mode in ("rni", "rzi", "rmi", "rpi"):
            for ftz in ("", ".ftz") if f is F32 else ("",):
                g = lambda x, t=to, m=mode, z=ftz: to_integer(t, f, m, bool(z), x)  # noqa: E731
                ops.append(Op(f"cvt.{mode}{ftz}.{to}.{source} {{d}}, {{a}}", (container(to), WIDTH[source]), g))
    ops.append(
        Op(f"cvt.rzi.s16.{source} {{d}}, {{a}}", (64, WIDTH[source]), lambda x: to_integer("s16", f, "rz", False, x))
    )
    check(ops, [spread(random, f)] * 3, random)


def saturated(f: Format, x: int) -> int:
    return 0 if f.is_nan(x) or f.is_negative(x) else min(x, f.bias << f.mantissa_bits)


@pytest.mark.parametrize("to", FLOATS)
def test_integer_to_float(to: str) -> None:
    random = random_of(f"cvt float {to}")
    f, ops = FLOATS[to], []
    for source in INTEGERS:
        for mode in ROUNDINGS:
            for sat in ("", ".sat") if f is not BF16 else ("",):

                def convert(x: int, s: str = source, m: str = mode, sat: str = sat) -> int:
                    result = f.encode(Fraction(value_of(s, x)), m, False)
                    return saturated(f, result) if sat else result

                ops.append(Op(f"cvt.{mode}{sat}.{to}.{source} {{d}}, {{a}}", (WIDTH[to], container(source)), convert))
    check(ops, [integers(random, COUNT, 64) for _ in range(3)], random)


def recode(to: Format, f: Format, mode: str, x: int) -> int:
    if f.is_nan(x):
        if F64 not in (to, f):
            return NAN[to]
        shift = to.mantissa_bits - f.mantissa_bits  # the payload moves along
        payload = x & ((1 << f.mantissa_bits) - 1)
        payload = payload << shift if shift > 0 else payload >> -shift
        return (to.sign if x & f.sign else 0) | to.infinity | 1 << (to.mantissa_bits - 1) | payload
    if f.is_infinite(x):
        return to.infinity | (to.sign if f.is_negative(x) else 0)
    return to.encode(f.value(x), mode, f.is_negative(x))


def finite(f: Format, x: int) -> int:
    return x - 1 if f.is_infinite(x) else x


def positive(f: Format, x: int) -> int:
    return 0 if not f.is_nan(x) and f.is_negative(x) else x


def test_between_floats() -> None:
    random = random_of("cvt floats")
    rank = {"bf16": 1, "f16": 2, "f32": 3, "f64": 4}
    for source, f in FLOATS.items():
        ops = []
        for to, g in FLOATS.items():
            if source == to:
                continue
            narrows = rank[to] < rank[source] or (source == "bf16" and to == "f16")
            for mode in ROUNDINGS if narrows else ("",):
                for ftz in ("", ".ftz") if "f32" in (source, to) else ("",):
                    for sat in ("", ".sat") if to != "bf16" else ("",):

                        def convert(x: int, g=g, f=f, m=mode or "rn", z=ftz, sat=sat) -> int | None:
                            if f is BF16 and f.is_nan(x) and not sat:
                                return None  # an unspecified NaN
                            x = f.flush(x) if z and f is F32 else x
                            result = recode(Flushing(*g) if z and g is F32 else g, f, m, x)
                            return saturated(g, result) if sat else result

                        dot = f".{mode}" if mode else ""
                        ops.append(
                            Op(f"cvt{dot}{ftz}{sat}.{to}.{source} {{d}}, {{a}}", (WIDTH[to], WIDTH[source]), convert)
                        )
        for mode in ROUNDINGS:
            for ftz in ("", ".ftz") if f is F32 else ("",):

                def whole(x: int, f=f, m=mode, z=ftz) -> int | None:
                    if f.is_nan(x):
                        return None if f is F64 else NAN[f]
                    x = f.flush(x) if z else x
                    return (
                        x if f.is_infinite(x) else f.encode(Fraction(integral(f.value(x), m)), "rn", f.is_negative(x))
                    )

                ops.append(Op(f"cvt.{mode}i{ftz}.{source}.{source} {{d}}, {{a}}", (WIDTH[source],) * 2, whole))
        check(ops, [spread(random, f)] * 3, random)


def test_f32_to_half_and_tf32() -> None:
    random = random_of("cvt half")
    ops = []
    for to, g in (("f16", F16), ("bf16", BF16)):
        for mode in ("rn", "rz"):
            for relu in ("", ".relu"):
                for satfinite in ("", ".satfinite"):

                    def convert(x: int, g=g, m=mode, r=relu, s=satfinite) -> int:
                        result = recode(g, F32, m, x)
                        result = finite(g, result) if s else result
                        return positive(g, result) if r else result

                    pair = lambda a, b, h=convert: h(a) << 16 | h(b)  # noqa: E731
                    m = f"{mode}{relu}{satfinite}"
                    ops.append(Op(f"cvt.{m}.{to}.f32 {{d}}, {{a}}", (16, 32), convert))
                    ops.append(Op(f"cvt.{m}.{to}x2.f32 {{d}}, {{a}}, {{b}}", (32, 32, 32), pair))
    tf32 = Format(8, 10)
    for mode in ("rna", "rn", "rz"):
        for relu in ("", ".relu") if mode != "rna" else ("",):
            for satfinite in ("", ".satfinite"):

                def narrow(x: int, m=mode, r=relu, s=satfinite) -> int:
                    if F32.is_nan(x):
                        return 0x7FFFE000 if m != "rna" else (x & 0xFFFFE000) - (0x2000 if s else 0)
                    result = recode(tf32, F32, m, x) if not F32.is_infinite(x) else x >> 13
                    result = finite(tf32, result) if s else result
                    return (positive(tf32, result) if r else result) << 13

                ops.append(Op(f"cvt.{mode}{satfinite}{relu}.tf32.f32 {{d}}, {{a}}", (32, 32), narrow))
    check(ops, [spread(random, F32) for _ in range(3)], random)


# ---- small formats: by the table of all their numbers ----------------------------------------------------------------


class Small:
    def __init__(self, exponent_bits: int, mantissa_bits: int, last: int, nan: int | None) -> None:
        """last: the pattern of the largest number; nan: the pattern of NaN, None: there is none."""
        self.f = Format(exponent_bits, mantissa_bits)
        self.last, self.nan, self.sign = last, nan, self.f.sign
        wide = Format(exponent_bits + 1, mantissa_bits)  # of the same numbers, without special patterns
        shift = wide.bias - self.f.bias
        self.values = []
        for code in range(last + 1):
            exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
            scale = Fraction(2) ** (max(exponent, 1) - wide.bias + shift - mantissa_bits)
            self.values.append(scale * (mantissa + ((1 << mantissa_bits) if exponent else 0)))

    def decode(self, code: int) -> Fraction | None:
        magnitude = code & (self.sign - 1)
        if magnitude > self.last:
            return None
        return -self.values[magnitude] if code & self.sign else self.values[magnitude]

    def nearest(self, x: int, f: Format = F32, relu: bool = False) -> int:
        """To nearest, ties to even, too large ones to the largest."""
        if f.is_nan(x):
            return self.last if self.nan is None else self.nan
        sign = self.sign if f.is_negative(x) else 0
        if relu and sign:
            return 0
        if f.is_infinite(x):
            return self.last | sign
        m = abs(f.value(x))
        above = bisect.bisect_left(self.values, m)
        if above > self.last:
            return self.last | sign
        if above and (d := (m - self.values[above - 1]) - (self.values[above] - m)) <= 0 and (d or above & 1):
            above -= 1
        return above | sign

    def randomly(self, x: int, fraction: Fraction, relu: bool) -> int:
        if F32.is_nan(x) or F32.is_infinite(x):
            return self.nearest(x, F32, relu)
        sign = self.sign if F32.is_negative(x) else 0
        if relu and sign:
            return 0
        m = abs(F32.value(x))
        below = bisect.bisect_right(self.values, m) - 1
        if below >= self.last:
            return self.last | sign
        share = (m - self.values[below]) / (self.values[below + 1] - self.values[below])
        return (below + (share + fraction >= 1)) | sign


SMALL = {
    "e4m3": Small(4, 3, 0x7E, 0x7F),
    "e5m2": Small(5, 2, 0x7B, 0x7F),
    "e2m3": Small(2, 3, 0x1F, None),
    "e3m2": Small(3, 2, 0x1F, None),
    "e2m1": Small(2, 1, 0x7, None),
}


def places(name: str) -> int:
    return 4 if name == "e2m1" else 8


def register(name: str, count: int) -> int:
    return places(name) * count


def reach(random: numpy.random.Generator, f: Format) -> numpy.ndarray:
    """Numbers of f around those of the small formats and between them."""
    x = floats(random, COUNT, *f)
    for i in numpy.flatnonzero(random.random(COUNT) < 0.7):
        small = SMALL[str(random.choice(list(SMALL)))]
        code = int(random.integers(0, small.last))
        share = Fraction(int(random.integers(0, 9)), 8)
        value = small.values[code] * (1 - share) + small.values[code + 1] * share
        x[i] = f.encode(value, "rn") ^ (f.sign * int(random.integers(0, 2))) ^ int(random.random() < 0.2)
    return x


@pytest.mark.parametrize("name", SMALL)
def test_small(name: str) -> None:
    random = random_of(f"cvt {name}")
    small, n = SMALL[name], places(name)
    ops = []
    for relu in ("", ".relu"):
        narrow = lambda x, r=relu: small.nearest(x, F32, bool(r))  # noqa: E731
        ops.append(
            Op(
                f"cvt.rn.satfinite{relu}.{name}x2.f32 {{d}}, {{a}}, {{b}}",
                (register(name, 2), 32, 32),
                lambda a, b, h=narrow: h(a) << n | h(b),
            )
        )
    for four in ("", ".relu"):

        def randomly(a: int, b: int, c: int, r: str = four) -> int:
            first, second = c >> 16, c & 0xFFFF
            if n == 4:
                first, second = c >> 24 << 8 | c >> 8 & 255, (c >> 16 & 255) << 8 | c & 255
            shares = [Fraction(first, 1 << 16)] * 2 + [Fraction(second, 1 << 16)] * 2
            result = 0
            for x, share in zip((a, b, b, a), shares, strict=True):
                result = result << n | small.randomly(x, share, bool(r))
            return result

        text = f"cvt.rs{four}.satfinite.{name}x4.f32 {{d}}, {{{{{{a}}, {{b}}, {{b}}, {{a}}}}}}, {{c}}"
        ops.append(Op(text, (register(name, 4), 32, 32, 32), randomly))
    x = [reach(random, F32), reach(random, F32), integers(random, COUNT, 32)]
    check(ops, x, random)
    for kind, f in (("f16", F16), ("bf16", BF16)):
        ops = []
        for relu in ("", ".relu"):
            narrow = lambda x, r=relu, f=f: small.nearest(x, f, bool(r))  # noqa: E731
            text = f"cvt.rn.satfinite{relu}.{name}x2.{kind}x2 {{d}}, {{a}}"
            ops.append(Op(text, (register(name, 2), 32), lambda a, h=narrow: h(a >> 16) << n | h(a & 0xFFFF)))
        check(ops, [reach(random, f) | reach(random, f) << 16] * 3, random)
    ops = []
    for relu in ("", ".relu"):

        def widen(code: int, r: str = relu) -> int:
            code &= 2 * small.sign - 1
            value = small.decode(code)
            if value is None:
                infinite = small is SMALL["e5m2"] and code & (small.sign - 1) == small.last + 1
                if not infinite:
                    return NAN[F16]
                return 0 if r and code & small.sign else 0x7C00 | (0x8000 if code & small.sign else 0)
            return (
                positive(F16, F16.encode(value, "rn", bool(code & small.sign)))
                if r
                else F16.encode(value, "rn", bool(code & small.sign))
            )

        text = f"cvt.rn{relu}.f16x2.{name}x2 {{d}}, {{a}}"
        ops.append(Op(text, (32, register(name, 2)), lambda a, h=widen: h(a >> n) << 16 | h(a & ((1 << n) - 1))))
    check(ops, [integers(random, COUNT, 16)] * 3, random)


def test_random_half() -> None:
    """.rs to f16x2 and bf16x2: the random bits are those below the last place."""
    random = random_of("cvt rs")
    ops = []
    for to, g, bits in (("f16", F16, 13), ("bf16", BF16, 16)):
        for m in ("", ".relu", ".satfinite", ".relu.satfinite"):

            def one(x: int, r: int, g=g, bits=bits, m=m) -> int:
                if F32.is_nan(x) or F32.is_infinite(x):
                    result = recode(g, F32, "rn", x)
                else:
                    down = g.encode(abs(F32.value(x)), "rz", False)
                    if (
                        down == g.infinity - 1
                        and abs(F32.value(x)) >= 2 * g.value(1 << (g.exponent_bits - 1 + g.mantissa_bits)) * 2**g.bias
                    ):
                        result = g.infinity
                    else:
                        following = g.value(down + 1) if down + 1 < g.infinity else Fraction(2) ** (g.bias + 1)
                        share = (abs(F32.value(x)) - g.value(down)) / (following - g.value(down))
                        result = down + (share + Fraction(r & ((1 << bits) - 1), 1 << bits) >= 1)
                    result = min(result, g.infinity) | (g.sign if F32.is_negative(x) else 0)
                result = finite(g, result) if "satfinite" in m else result
                return positive(g, result) if "relu" in m else result

            pair = lambda a, b, c, h=one: h(a, c >> 16) << 16 | h(b, c & 0xFFFF)  # noqa: E731
            ops.append(Op(f"cvt.rs{m}.{to}x2.f32 {{d}}, {{a}}, {{b}}, {{c}}", (32, 32, 32, 32), pair))
    check(ops, [spread(random, F32), reach(random, F32), integers(random, COUNT, 32)], random)


def test_scales() -> None:
    """ue8m0: powers of two, below or above."""
    random = random_of("cvt ue8m0")

    def scale(x: int, f: Format, mode: str) -> int:
        if f.is_nan(x):
            return 0xFF
        if f.is_infinite(x):
            return 0xFE
        m = abs(f.value(x))
        if not m:
            return 0
        exponent = m.numerator.bit_length() - m.denominator.bit_length()
        exponent -= m < Fraction(2) ** exponent
        exponent += mode == "rp" and m != Fraction(2) ** exponent
        return min(max(exponent + 127, 0), 0xFE)

    for source, f in (("f32", F32), ("bf16x2", BF16)):
        ops = []
        for mode in ("rz", "rp"):
            if f is F32:
                text = f"cvt.{mode}.satfinite.ue8m0x2.f32 {{d}}, {{a}}, {{b}}"
                both = lambda a, b, m=mode: scale(a, F32, m) << 8 | scale(b, F32, m)  # noqa: E731
                ops.append(Op(text, (16, 32, 32), both))
            else:
                text = f"cvt.{mode}.satfinite.ue8m0x2.{source} {{d}}, {{a}}"
                both = lambda a, m=mode: scale(a >> 16, BF16, m) << 8 | scale(a & 0xFFFF, BF16, m)  # noqa: E731
                ops.append(Op(text, (16, 32), both))
        x = [floats(random, COUNT, *f) | (floats(random, COUNT, *f) << 16 if f is BF16 else 0) for _ in range(3)]
        check(ops, x, random)

    def widen(code: int) -> int:
        return NAN[BF16] if code == 255 else BF16.encode(Fraction(2) ** (code - 127), "rn")

    op = Op("cvt.rn.bf16x2.ue8m0x2 {d}, {a}", (32, 16), lambda a: widen(a >> 8) << 16 | widen(a & 255))
    check([op], [integers(random, COUNT, 16)] * 3, random)


def test_pack() -> None:
    random = random_of("cvt.pack")
    ops = []
    for bits in (2, 4, 8, 16):
        for sign in "us":
            low, high = bounds(f"{sign}{bits}")
            clamp = lambda x, b=(low, high), n=bits: min(max(value_of("s32", x), b[0]), b[1]) & ((1 << n) - 1)  # noqa: E731
            if bits == 16:
                text = f"cvt.pack.sat.{sign}16.s32 {{d}}, {{a}}, {{b}}"
                ops.append(Op(text, (32, 32, 32), lambda a, b, h=clamp: h(a) << 16 | h(b)))
            else:
                text = f"cvt.pack.sat.{sign}{bits}.s32.b32 {{d}}, {{a}}, {{b}}, {{c}}"
                together = lambda a, b, c, h=clamp, n=bits: c << 2 * n | h(a) << n | h(b)  # noqa: E731
                ops.append(Op(text, (32, 32, 32, 32), together))
    check(ops, [integers(random, COUNT, 32) for _ in range(3)], random)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cvt.f16.f32 %h1, %r1;", "rounding"),
        ("cvt.s32.f32 %r1, %r2;", "rzi"),
        ("cvt.rn.f32.f16 %r1, %h1;", "exact"),
        ("cvt.rn.e4m3x2.f32 %h1, %r1, %r2;", "satfinite"),
        ("cvt.rm.f16x2.f32 %r1, %r2, %r3;", "rounding"),
        ("cvt.rn.satfinite.s2f6x2.f32 %h1, %r1, %r2;", "s2f6x2|type"),
        ("cvt.rni.f32.f64 %r1, %d1;", "type"),
        ("cvt.rn.relu.f32.f64 %r1, %d1;", "relu"),
        ("cvt.rn.f32.s32.s32 %r1, %r2;", "s32"),
    ],
)
def test_rejected(text: str, words: str) -> None:
    rejected(text, words)


def test_tables() -> None:
    """The tables of the small formats are those of their descriptions."""
    largest = {"e4m3": 448, "e5m2": 57344, "e2m3": 7.5, "e3m2": 28, "e2m1": 6}
    least = {"e4m3": 2**-9, "e5m2": 2**-16, "e2m3": 0.125, "e3m2": 0.0625, "e2m1": 0.5}
    for name, small in SMALL.items():
        assert (float(small.values[-1]), float(small.values[1])) == (largest[name], least[name])
        assert not math.isnan(float(small.values[small.last]))
