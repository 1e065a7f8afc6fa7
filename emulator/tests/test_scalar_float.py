"""Floating point: arithmetic in every rounding by fractions, minima, tests of properties, comparison, approximations
rounded correctly; f32, f32x2, f64, f16, bf16, their pairs and mixed operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy
import pytest
from scalar import BF16, F16, F32, F64, NAN, Flushing, Format, Op, check, floats, random_of, rejected

COUNT = 640
ROUNDINGS = ("rn", "rz", "rm", "rp")
NEXT = {"add": 2, "sub": 2, "mul": 2, "fma": 3, "mad": 3, "div": 2, "rcp": 1, "sqrt": 1}


def nan_of(f: Format, *operands: int) -> int:
    """The NaN of a result: of f64, the first operand that is one, made quiet."""
    if f is F64:
        for x in operands:
            if f.is_nan(x):
                return x | 1 << 51
    return NAN[f]


def sum_of(f: Format, x: tuple[Fraction, bool], y: tuple[Fraction, bool], mode: str) -> int:
    """Of two numbers with the signs of their zeros."""
    total = x[0] + y[0]
    negative = x[1] if x[1] == y[1] else mode == "rm"
    return f.encode(total, mode, negative)


def arithmetic(f: Format, op: str, mode: str, *x: int) -> int:
    sign = [f.is_negative(v) for v in x]
    infinite = [f.is_infinite(v) for v in x]
    zero = [not v & (f.sign - 1) for v in x]
    if any(f.is_nan(v) for v in x):
        return nan_of(f, *x)
    inf = lambda negative: f.infinity | (f.sign if negative else 0)  # noqa: E731
    if op == "rcp":
        return arithmetic(f, "div", mode, f.bias << f.mantissa_bits, x[0])
    if op in ("add", "sub"):
        second = sign[1] != (op == "sub")
        if infinite[0] or infinite[1]:
            if infinite[0] and infinite[1] and sign[0] != second:
                return NAN[f]
            return inf(sign[0] if infinite[0] else second)
        y = f.value(x[1])
        return sum_of(f, (f.value(x[0]), sign[0]), (-y if op == "sub" else y, second), mode)
    if op == "sqrt":
        if zero[0] or (infinite[0] and not sign[0]):
            return x[0]
        return NAN[f] if sign[0] else root(f, f.value(x[0]), mode)
    negative = sign[0] != sign[1]
    if op == "div":
        if (infinite[0] and infinite[1]) or (zero[0] and zero[1]):
            return NAN[f]
        if infinite[0] or zero[1]:
            return inf(negative)
        if infinite[1]:
            return f.sign if negative else 0
        return f.encode(f.value(x[0]) / f.value(x[1]), mode, negative)
    if (infinite[0] and zero[1]) or (zero[0] and infinite[1]):
        return NAN[f]
    if infinite[0] or infinite[1]:
        clash = op in ("fma", "mad") and infinite[2] and sign[2] != negative
        return NAN[f] if clash else inf(negative)
    product = f.value(x[0]) * f.value(x[1])
    if op == "mul":
        return f.encode(product, mode, negative)
    return x[2] if infinite[2] else sum_of(f, (product, negative), (f.value(x[2]), sign[2]), mode)


def root(f: Format, x: Fraction, mode: str) -> int:
    """Between two neighbours of 200 bits, which no rounding tells apart, or exact."""
    shift = 2 * (f.mantissa_bits + f.bias + 100)
    scaled = (x.numerator << shift) // x.denominator
    floor = math.isqrt(scaled)
    exact = floor * floor == scaled and (x.numerator << shift) % x.denominator == 0
    return f.encode(Fraction(2 * floor + (not exact), 2 << shift // 2), mode)


def saturate(f: Format, x: int) -> int:
    one = f.bias << f.mantissa_bits
    return 0 if f.is_nan(x) or f.is_negative(x) else min(x, one)


def wrapped(f: Format, op: str, mode: str, ftz: bool, sat: bool) -> Callable[..., int]:
    def run(*x: int) -> int:
        x = tuple(f.flush(v) for v in x) if ftz else x
        result = arithmetic(Flushing(*f) if ftz else f, op, mode, *x)
        return saturate(f, result) if sat else result

    return run


def registers(op: str) -> str:
    return ", ".join(["{d}", "{a}", "{b}", "{c}"][: NEXT[op] + 1])


def inputs(random, f: Format, count: int = COUNT):
    """Three arrays; some sums cancel, some products are about the least normal number."""
    x = [floats(random, count, *f) for _ in range(3)]
    near = random.random(count) < 0.2
    x[1][near] = x[0][near] ^ f.sign ^ random.integers(0, 4, count).astype("u8")[near]
    least = random.random(count) < 0.1
    x[0][least] = ((f.bias << f.mantissa_bits) + random.integers(-3, 2, count).astype("u8"))[least]
    x[1][least] = ((1 << f.mantissa_bits) + random.integers(0, 3, count).astype("u8"))[least]
    x[2][least] = random.choice(numpy.array([0, f.sign, 1], "u8"), count)[least]
    return x


@pytest.mark.parametrize("op", NEXT)
def test_f32(op: str) -> None:
    random = random_of(f"f32 {op}")
    ops = []
    for mode in ROUNDINGS:
        for ftz in ("", ".ftz"):
            for sat in ("", ".sat") if op in ("add", "sub", "mul", "fma", "mad") else ("",):
                text = f"{op}.{mode}{ftz}{sat}.f32 {registers(op)}"
                ops.append(Op(text, (32,) * (NEXT[op] + 1), wrapped(F32, op, mode, bool(ftz), bool(sat))))
    if op in ("add", "sub", "mul"):
        ops.append(Op(f"{op}.f32 {registers(op)}", (32, 32, 32), wrapped(F32, op, "rn", False, False)))
    check(ops, inputs(random, F32), random)


@pytest.mark.parametrize("op", NEXT)
def test_f64(op: str) -> None:
    random = random_of(f"f64 {op}")
    ops = [
        Op(f"{op}.{m}.f64 {registers(op)}", (64,) * (NEXT[op] + 1), wrapped(F64, op, m, False, False))
        for m in ROUNDINGS
    ]
    check(ops, inputs(random, F64), random)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "fma"])
def test_f32x2(op: str) -> None:
    random = random_of(f"f32x2 {op}")
    ops = []
    for mode in ROUNDINGS:
        for ftz in ("", ".ftz"):
            half = wrapped(F32, op, mode, bool(ftz), False)
            text = f"{op}.{mode}{ftz}.f32x2 {registers(op)}"
            both = lambda *x, f=half: (  # noqa: E731
                f(*(v & 0xFFFFFFFF for v in x)) | f(*(v >> 32 for v in x)) << 32
            )
            ops.append(Op(text, (64,) * (NEXT[op] + 1), both))
    low, high = inputs(random, F32), inputs(random, F32)
    check(ops, [a | b << 32 for a, b in zip(low, high)], random)


@pytest.mark.parametrize(("name", "f"), [("f16", F16), ("bf16", BF16)])
def test_mixed(name: str, f: Format) -> None:
    random = random_of(f"mixed {name}")
    ops = []

    def widened(x: int) -> int:
        if f.is_nan(x) or f.is_infinite(x):
            return NAN[F32] if f.is_nan(x) else F32.infinity | (F32.sign if f.is_negative(x) else 0)
        return F32.encode(f.value(x), "rn", f.is_negative(x))

    for mode in ROUNDINGS:
        for sat in ("", ".sat"):
            for op in ("add", "sub"):
                g = wrapped(F32, op, mode, False, bool(sat))
                text = f"{op}.{mode}{sat}.f32.{name} {{d}}, {{a}}, {{b}}"
                ops.append(Op(text, (32, 16, 32), lambda a, b, g=g: g(widened(a), b)))
            g = wrapped(F32, "fma", mode, False, bool(sat))
            text = f"fma.{mode}{sat}.f32.{name} {{d}}, {{a}}, {{b}}, {{c}}"
            ops.append(Op(text, (32, 16, 16, 32), lambda a, b, c, g=g: g(widened(a), widened(b), c)))
    small = [floats(random, COUNT, *f) for _ in range(2)]
    check(ops[2::3], [small[0], small[1], floats(random, COUNT, 8, 23)], random)
    check([op for i, op in enumerate(ops) if i % 3 < 2], [small[0], floats(random, COUNT, 8, 23), small[1]], random)


def half_result(f: Format, result: int, modifier: str) -> int:
    if "sat" in modifier:
        return saturate(f, result)
    if "relu" in modifier and not f.is_nan(result) and f.is_negative(result):
        return 0
    return result


def pairs(function: Callable[..., int]) -> Callable[..., int]:
    return lambda *x: function(*(v & 0xFFFF for v in x)) | function(*(v >> 16 for v in x)) << 16


@pytest.mark.parametrize(("name", "f"), [("f16", F16), ("bf16", BF16)])
def test_half(name: str, f: Format) -> None:
    random = random_of(f"half {name}")
    ops = []
    for op in ("add", "sub", "mul", "fma"):
        variants = ["", ".ftz", ".sat", ".ftz.sat"] if f is F16 else [""]
        variants += [".relu", ".oob", ".oob.relu", *([".ftz.relu"] if f is F16 else [])] if op == "fma" else []
        for v in variants:

            def half(*x: int, op: str = op, v: str = v) -> int:
                if "oob" in v and any(y & 0x7FFF == 0x7FF7 for y in x[:2]):
                    return 0
                x = tuple(f.flush(y) for y in x) if "ftz" in v else x
                return half_result(f, arithmetic(Flushing(*f) if "ftz" in v else f, op, "rn", *x), v)

            text = f"{op}.rn{v}.{name}"
            ops.append(Op(f"{text} {registers(op)}", (16,) * (NEXT[op] + 1), half))
            ops.append(Op(f"{text}x2 {registers(op)}", (32,) * (NEXT[op] + 1), pairs(half)))
    for op in ("neg", "abs"):

        def sign(x: int, op: str = op) -> int:
            return NAN[f] if f.is_nan(x) else x ^ 0x8000 if op == "neg" else x & 0x7FFF

        ops.append(Op(f"{op}.{name} {{d}}, {{a}}", (16, 16), sign))
        ops.append(Op(f"{op}.{name}x2 {{d}}, {{a}}", (32, 32), pairs(sign)))
    low, high = inputs(random, f), inputs(random, f)
    for x in (*low, *high):
        x[random.random(COUNT) < 0.05] = random.choice([0x7FF7, 0xFFF7])  # what TMA fills with
    check(ops, [a | b << 16 for a, b in zip(low, high)], random)


def extreme(f: Format, name: str, modifier: str, *x: int) -> int:
    """min and max, over two or three."""
    if ".ftz" in modifier:
        x = tuple(f.flush(v) for v in x)
    sign = (x[0] ^ x[1]) & f.sign
    if ".abs" in modifier:
        x = tuple(v & (f.sign - 1) for v in x)
    numbers = [v for v in x if not f.is_nan(v)]
    if not numbers or (".NaN" in modifier and len(numbers) < len(x)):
        return nan_of(f, *x)
    order = lambda v: -(v & (f.sign - 1)) - 1 if f.is_negative(v) else v  # noqa: E731
    result = (min if name == "min" else max)(numbers, key=order)
    return result & (f.sign - 1) | sign if "xorsign" in modifier else result


def test_min_max() -> None:
    random = random_of("min max")
    ops = []
    for name in ("min", "max"):
        for ftz in ("", ".ftz"):
            for nan in ("", ".NaN"):
                for signs in ("", ".xorsign.abs"):
                    m = ftz + nan + signs
                    g = lambda *x, n=name, m=m: extreme(F32, n, m, *x)  # noqa: E731
                    ops.append(Op(f"{name}{m}.f32 {{d}}, {{a}}, {{b}}", (32, 32, 32), g))
                for absolute in ("", ".abs"):
                    m = ftz + nan + absolute
                    g = lambda *x, n=name, m=m: extreme(F32, n, m, *x)  # noqa: E731
                    ops.append(Op(f"{name}{m}.f32 {{d}}, {{a}}, {{b}}, {{c}}", (32, 32, 32, 32), g))
    check(ops, inputs(random, F32), random)
    g = {n: lambda *x, n=n: extreme(F64, n, "", *x) for n in ("min", "max")}
    check([Op(f"{n}.f64 {{d}}, {{a}}, {{b}}", (64, 64, 64), g[n]) for n in g], inputs(random, F64), random)
    for kind, f in (("f16", F16), ("bf16", BF16)):
        ops = []
        for name in ("min", "max"):
            for ftz in ("", ".ftz") if f is F16 else ("",):
                for nan in ("", ".NaN"):
                    for signs in ("", ".xorsign.abs"):
                        m = ftz + nan + signs
                        h = lambda *x, n=name, m=m, f=f: extreme(f, n, m, *x)  # noqa: E731
                        ops.append(Op(f"{name}{m}.{kind} {{d}}, {{a}}, {{b}}", (16, 16, 16), h))
                        ops.append(Op(f"{name}{m}.{kind}x2 {{d}}, {{a}}, {{b}}", (32, 32, 32), pairs(h)))
        low, high = inputs(random, f), inputs(random, f)
        check(ops, [a | b << 16 for a, b in zip(low, high)], random)


PROPERTIES = {
    "finite": lambda f, x: x & f.infinity != f.infinity,
    "infinite": lambda f, x: f.is_infinite(x),
    "number": lambda f, x: not f.is_nan(x),
    "notanumber": lambda f, x: f.is_nan(x),
    "normal": lambda f, x: (x & f.infinity != f.infinity and x & f.infinity != 0) or not x & (f.sign - 1),
    "subnormal": lambda f, x: x & f.infinity == 0 and x & (f.sign - 1) != 0,
}


@pytest.mark.parametrize(("name", "f"), [("f32", F32), ("f64", F64)])
def test_signs_and_properties(name: str, f: Format) -> None:
    random = random_of(f"signs {name}")
    n = int(name[1:])
    ops = [Op(f"testp.{p}.{name} {{d}}, {{a}}", (1, n), lambda x, g=g: int(g(f, x))) for p, g in PROPERTIES.items()]
    keep = f.sign - 1
    ops += [
        Op(f"copysign.{name} {{d}}, {{a}}, {{b}}", (n, n, n), lambda a, b: a & f.sign | b & keep),
        Op(f"abs.{name} {{d}}, {{a}}", (n, n), lambda a: nan_of(f, a) if f.is_nan(a) else a & keep),
        Op(f"neg.{name} {{d}}, {{a}}", (n, n), lambda a: nan_of(f, a) if f.is_nan(a) else a ^ f.sign),
    ]
    if f is F32:
        ops += [
            Op("abs.ftz.f32 {d}, {a}", (n, n), lambda a: NAN[f] if f.is_nan(a) else f.flush(a) & keep),
            Op("neg.ftz.f32 {d}, {a}", (n, n), lambda a: NAN[f] if f.is_nan(a) else f.flush(a) ^ f.sign),
        ]
    check(ops, inputs(random, f), random)


ORDERED = {"eq": {0}, "ne": {-1, 1}, "lt": {-1}, "le": {-1, 0}, "gt": {1}, "ge": {1, 0}, "num": {-1, 0, 1}}
COMPARISONS = {**ORDERED, **{f"{k}u": v | {None} for k, v in ORDERED.items() if k != "num"}, "nan": {None}}


def relation(f: Format, a: int, b: int) -> int | None:
    if f.is_nan(a) or f.is_nan(b):
        return None
    x, y = ((-1 if f.is_negative(v) else 1) * (v & (f.sign - 1)) for v in (a, b))
    return (x > y) - (x < y)


@pytest.mark.parametrize(("name", "f"), [("f32", F32), ("f64", F64), ("f16", F16), ("bf16", BF16)])
def test_comparison(name: str, f: Format) -> None:
    random = random_of(f"compare {name}")
    n = {"f32": 32, "f64": 64}.get(name, 16)
    ops = []
    for comparison, accepted in COMPARISONS.items():
        for ftz in ("", ".ftz") if f in (F32, F16) else ("",):

            def test(a: int, b: int, ftz: str = ftz, accepted=accepted) -> bool:
                return relation(f, f.flush(a) if ftz else a, f.flush(b) if ftz else b) in accepted

            ops += [
                Op(f"setp.{comparison}{ftz}.{name} {{d}}, {{a}}, {{b}}", (1, n, n), lambda a, b, t=test: int(t(a, b))),
                Op(
                    f"setp.{comparison}.or{ftz}.{name} %p7|{{d}}, {{a}}, {{b}}, {{c}}"
                    if n != 16
                    else f"setp.{comparison}.or{ftz}.{name} {{d}}, {{a}}, {{b}}, {{c}}",
                    (1, n, n, 1),
                    lambda a, b, c, t=test: int(t(a, b) != (n != 16) or c),
                ),
                Op(f"set.{comparison}{ftz}.u32.{name} {{d}}, {{a}}, {{b}}", (32, n, n), lambda a, b, t=test: -t(a, b)),
            ]
            if n == 16:
                one = f.bias << f.mantissa_bits
                text = f"set.{comparison}{ftz}.{name}.{name} {{d}}, {{a}}, {{b}}"
                ops.append(Op(text, (16, 16, 16), lambda a, b, t=test, one=one: one * t(a, b)))
                text = f"set.{comparison}{ftz}.{name}x2.{name}x2 {{d}}, {{a}}, {{b}}"
                ops.append(Op(text, (32, 32, 32), pairs(lambda a, b, t=test, one=one: one * t(a, b))))
                text = f"set.{comparison}{ftz}.u32.{name}x2 {{d}}, {{a}}, {{b}}"
                ops.append(Op(text, (32, 32, 32), pairs(lambda a, b, t=test: 0xFFFF * t(a, b))))
                text = f"setp.{comparison}{ftz}.{name}x2 {{d}}|%p7, {{a}}, {{b}}"
                ops.append(Op(text, (1, 32, 32), lambda a, b, t=test: int(t(a & 0xFFFF, b & 0xFFFF))))
                text = f"setp.{comparison}.xor{ftz}.{name}x2 %p7|{{d}}, {{a}}, {{b}}, {{c}}"
                ops.append(Op(text, (1, 32, 32, 1), lambda a, b, c, t=test: int(t(a >> 16, b >> 16) != bool(c))))
            else:
                text = f"set.{comparison}{ftz}.f32.{name} {{d}}, {{a}}, {{b}}"
                ops.append(Op(text, (32, n, n), lambda a, b, t=test: 0x3F800000 * t(a, b)))
    x = inputs(random, f)
    if n == 16:
        x = [a | b << 16 for a, b in zip(x, inputs(random, f))]
    same = random.random(COUNT) < 0.3
    x[1][same] = x[0][same]
    x[2][random.random(COUNT) < 0.4] = 0
    check(ops, x, random)


def test_slct_by_f32() -> None:
    random = random_of("slct")
    at_least_zero = lambda x: not F32.is_nan(x) and (not F32.is_negative(x) or x == F32.sign)  # noqa: E731
    ops = []
    for kind in ("b16", "f32", "u64"):
        n = int(kind[1:])
        for ftz in ("", ".ftz"):
            g = lambda a, b, c, z=ftz: a if at_least_zero(F32.flush(c) if z else c) else b  # noqa: E731
            ops.append(Op(f"slct{ftz}.{kind}.f32 {{d}}, {{a}}, {{b}}, {{c}}", (n, n, n, 32), g))
    check(ops, inputs(random, F32), random)


# ---- approximations: correctly rounded, closer than hardware's ------------------------------------------------------


def real(bits: int, f: Format) -> float:
    if f.is_nan(bits):
        return math.nan
    if f.is_infinite(bits):
        return -math.inf if f.is_negative(bits) else math.inf
    return math.copysign(float(f.value(bits)), -1 if f.is_negative(bits) else 1)


def power_of_two(x: float) -> float:
    return math.inf if x > 1023 else 0.0 if x < -1074 else 2.0**x


def logarithm(x: float) -> float:
    return math.nan if x < 0 else -math.inf if x == 0 else math.log2(x)


def inverse_root(x: float) -> float:
    return math.nan if x < 0 else math.copysign(math.inf, x) if x == 0 else 1 / math.sqrt(x)


def reciprocal(x: float) -> float:
    return math.copysign(math.inf, x) if x == 0 else 1 / x


def circular(function: Callable[[float], float]) -> Callable[[float], float]:
    return lambda x: math.nan if math.isinf(x) else function(x)


FUNCTIONS = {
    "rcp": reciprocal,
    "sqrt": lambda x: x if x == 0 else math.nan if x < 0 else math.sqrt(x),
    "rsqrt": inverse_root,
    "sin": circular(math.sin),
    "cos": circular(math.cos),
    "lg2": logarithm,
    "ex2": power_of_two,
    "tanh": math.tanh,
}


def near(f: Format, function: Callable[[float], float], ftz: bool) -> Callable[[int], int]:
    """Correctly rounded: what the emulator promises."""

    def run(x: int) -> int:
        x = f.flush(x) if ftz else x
        if f.is_nan(x):
            return NAN[f]
        y = function(real(x, f))
        if math.isnan(y):
            return NAN[f]
        if math.isinf(y):
            return f.infinity | (f.sign if y < 0 else 0)
        result = f.encode(Fraction(y), "rn", math.copysign(1, y) < 0)
        return f.flush(result) if ftz else result

    return run


def test_approximations() -> None:
    random = random_of("approximations")
    ops = []
    for name, function in FUNCTIONS.items():
        for ftz in ("", ".ftz") if name != "tanh" else ("",):
            ops.append(Op(f"{name}.approx{ftz}.f32 {{d}}, {{a}}", (32, 32), near(F32, function, bool(ftz))))
    check(ops, inputs(random, F32), random)
    for kind, f in (("f16", F16), ("bf16", BF16)):
        ftz = ".ftz" if f is BF16 else ""
        ops = [
            Op(f"tanh.approx.{kind} {{d}}, {{a}}", (16, 16), near(f, math.tanh, False)),
            Op(f"tanh.approx.{kind}x2 {{d}}, {{a}}", (32, 32), pairs(near(f, math.tanh, False))),
            Op(f"ex2.approx{ftz}.{kind} {{d}}, {{a}}", (16, 16), near(f, power_of_two, bool(ftz))),
            Op(f"ex2.approx{ftz}.{kind}x2 {{d}}, {{a}}", (32, 32), pairs(near(f, power_of_two, bool(ftz)))),
        ]
        low, high = inputs(random, f), inputs(random, f)
        check(ops, [a | b << 16 for a, b in zip(low, high)], random)


def test_approximate_division() -> None:
    random = random_of("approximate division")

    def full(a: int, b: int) -> int:
        return arithmetic(F32, "div", "rn", a, b)

    def approximate(a: int, b: int) -> int:
        if F32.is_nan(a) or F32.is_nan(b):
            return NAN[F32]
        magnitude = b & (F32.sign - 1)
        if F32.infinity > magnitude > (126 + 127) << 23:
            return NAN[F32] if F32.is_infinite(a) else (a ^ b) & F32.sign
        return full(a, b)

    ops = [
        Op("div.full.f32 {d}, {a}, {b}", (32, 32, 32), full),
        Op("div.full.ftz.f32 {d}, {a}, {b}", (32, 32, 32), wrapped(F32, "div", "rn", True, False)),
    ]
    x = inputs(random, F32)
    check(ops, x, random)
    check([Op("div.approx.f32 {d}, {a}, {b}", (32, 32, 32), approximate)], x, random)


def test_words_of_f64() -> None:
    """rcp and rsqrt.approx.ftz.f64: the upper words alone."""
    random = random_of("words")

    def word(function: Callable[[float], float]) -> Callable[[int], int]:
        def run(x: int) -> int:
            x &= ~0xFFFFFFFF
            x = F64.flush(x)
            if F64.is_nan(x):
                return 0x7FFFFFFF00000000
            y = function(real(x, F64))
            if math.isnan(y):
                return 0x7FFFFFFF00000000
            if math.isinf(y):
                return F64.infinity | (F64.sign if y < 0 else 0)
            result = Format(11, 20).encode(Fraction(y), "rna", math.copysign(1, y) < 0) << 32
            return F64.flush(result)

        return run

    ops = [
        Op("rcp.approx.ftz.f64 {d}, {a}", (64, 64), word(reciprocal)),
        Op("rsqrt.approx.ftz.f64 {d}, {a}", (64, 64), word(inverse_root)),
    ]
    check(ops, inputs(random, F64), random)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fma.f32 %r1, %r2, %r3, %r4;", "rounding"),
        ("add.rna.f32 %r1, %r2, %r3;", "rna"),
        ("add.sat.f64 %d1, %d2, %d3;", "sat"),
        ("add.ftz.bf16 %h1, %h2, %h3;", "ftz"),
        ("mul.rn.sat.f32x2 %d1, %d2, %d3;", "sat"),
        ("rsqrt.rn.f32 %r1, %r2;", "rsqrt"),
        ("ex2.approx.bf16 %h1, %h2;", "ftz"),
        ("min.xorsign.f32 %r1, %r2, %r3;", "abs"),
        ("sin.approx.f64 %d1, %d2;", "f64"),
        ("add.f32.f32 %r1, %r2, %r3;", "f32"),
    ],
)
def test_rejected(text: str, words: str) -> None:
    rejected(text, words)
