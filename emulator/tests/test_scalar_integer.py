"""Integer arithmetic, the carry chain, logic, shifts, bit fields, prmt, integer comparison and selection."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scalar import Op, check, integers, random_of, rejected

COUNT = 1024


def signed(x: int, bits: int) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def of_type(kind: str, function: Callable[..., int]) -> Callable[..., int]:
    """The function on values of a type, from and to bits."""
    bits = int(kind[1:])
    return lambda *x: function(*(signed(v, bits) if kind[0] == "s" else v for v in x))


def quotient(a: int, b: int) -> int:
    if b == 0:
        return -1
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a: int, b: int) -> int:
    return a - b * quotient(a, b) if b else a


def clamp(x: int, kind: str) -> int:
    bits = int(kind[1:])
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
    return min(max(x, low), high)


def arithmetic(kind: str) -> list[Op]:
    n = int(kind[1:])
    same, three = (n, n, n), (n, n, n, n)
    ops = [
        Op(f"add.{kind} {{d}}, {{a}}, {{b}}", same, of_type(kind, lambda a, b: a + b)),
        Op(f"sub.{kind} {{d}}, {{a}}, {{b}}", same, of_type(kind, lambda a, b: a - b)),
        Op(f"mul.lo.{kind} {{d}}, {{a}}, {{b}}", same, of_type(kind, lambda a, b: a * b)),
        Op(f"mul.hi.{kind} {{d}}, {{a}}, {{b}}", same, of_type(kind, lambda a, b: a * b >> n)),
        Op(f"mad.lo.{kind} {{d}}, {{a}}, {{b}}, {{c}}", three, of_type(kind, lambda a, b, c: a * b + c)),
        Op(f"mad.hi.{kind} {{d}}, {{a}}, {{b}}, {{c}}", three, of_type(kind, lambda a, b, c: (a * b >> n) + c)),
        Op(f"sad.{kind} {{d}}, {{a}}, {{b}}, {{c}}", three, of_type(kind, lambda a, b, c: abs(a - b) + c)),
        Op(f"div.{kind} {{d}}, {{a}}, {{b}}", same, of_type(kind, quotient)),
        Op(f"rem.{kind} {{d}}, {{a}}, {{b}}", same, of_type(kind, remainder)),
        Op(f"min.{kind} {{d}}, {{a}}, {{b}}", same, of_type(kind, min)),
        Op(f"max.{kind} {{d}}, {{a}}, {{b}}", same, of_type(kind, max)),
        Op(f"add.{kind} {{a}}, {{a}}, {{a}}; mov.b{n} {{d}}, {{a}}", (n, n), of_type(kind, lambda a: 2 * a)),
    ]
    if n < 64:
        wide = (2 * n, n, n)
        ops += [
            Op(f"mul.wide.{kind} {{d}}, {{a}}, {{b}}", wide, of_type(kind, lambda a, b: a * b)),
            Op(
                f"mad.wide.{kind} {{d}}, {{a}}, {{b}}, {{c}}",
                (*wide, 2 * n),
                lambda a, b, c: of_type(kind, lambda a, b: a * b)(a, b) + c,
            ),
        ]
    if kind[0] == "s":
        ops += [
            Op(f"abs.{kind} {{d}}, {{a}}", (n, n), of_type(kind, abs)),
            Op(f"neg.{kind} {{d}}, {{a}}", (n, n), of_type(kind, lambda a: -a)),
        ]
    return ops


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_arithmetic(kind: str) -> None:
    random = random_of(f"integer {kind}")
    check(arithmetic(kind), [integers(random, COUNT, int(kind[1:])) for _ in range(3)], random)


def halves(x: int, sign: bool, bits: int = 16) -> list[int]:
    return [signed(x >> at, bits) if sign else x >> at & ((1 << bits) - 1) for at in range(0, 32, bits)]


def packed(function: Callable[[int, int], int], sign: bool) -> Callable[[int, int], int]:
    def run(a: int, b: int) -> int:
        parts = [function(x, y) & 0xFFFF for x, y in zip(halves(a, sign), halves(b, sign), strict=True)]
        return parts[0] | parts[1] << 16

    return run


def dot(a: int, b: int, c: int, first: int, a_bits: int, a_sign: bool, b_sign: bool) -> int:
    return c + sum(x * y for x, y in zip(halves(a, a_sign, a_bits), halves(b, b_sign, 8)[first:], strict=False))


def saturating() -> list[Op]:
    two, three = (32, 32, 32), (32, 32, 32, 32)
    s24 = lambda x: signed(x, 24)  # noqa: E731
    ops = [
        Op("add.sat.s32 {d}, {a}, {b}", two, of_type("s32", lambda a, b: clamp(a + b, "s32"))),
        Op("sub.sat.s32 {d}, {a}, {b}", two, of_type("s32", lambda a, b: clamp(a - b, "s32"))),
        Op("add.sat.u32 {d}, {a}, {b}", two, lambda a, b: clamp(a + b, "u32")),
        Op(
            "mad.hi.sat.s32 {d}, {a}, {b}, {c}",
            three,
            of_type("s32", lambda a, b, c: clamp((a * b >> 32) + c, "s32")),
        ),
        Op("mul24.lo.u32 {d}, {a}, {b}", two, lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF)),
        Op("mul24.hi.u32 {d}, {a}, {b}", two, lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 16),
        Op("mul24.lo.s32 {d}, {a}, {b}", two, lambda a, b: s24(a) * s24(b)),
        Op("mul24.hi.s32 {d}, {a}, {b}", two, lambda a, b: s24(a) * s24(b) >> 16),
        Op("mad24.lo.s32 {d}, {a}, {b}, {c}", three, lambda a, b, c: s24(a) * s24(b) + c),
        Op("mad24.hi.u32 {d}, {a}, {b}, {c}", three, lambda a, b, c: ((a & 0xFFFFFF) * (b & 0xFFFFFF) >> 16) + c),
        Op(
            "mad24.hi.sat.s32 {d}, {a}, {b}, {c}",
            three,
            lambda a, b, c: clamp((s24(a) * s24(b) >> 16) + signed(c, 32), "s32"),
        ),
        Op("min.relu.s32 {d}, {a}, {b}", two, of_type("s32", lambda a, b: max(min(a, b), 0))),
        Op("max.relu.s32 {d}, {a}, {b}", two, of_type("s32", lambda a, b: max(a, b, 0))),
        Op("add.u16x2 {d}, {a}, {b}", two, packed(lambda a, b: a + b, False)),
        Op("add.s16x2 {d}, {a}, {b}", two, packed(lambda a, b: a + b, True)),
        Op("min.u16x2 {d}, {a}, {b}", two, packed(min, False)),
        Op("max.u16x2 {d}, {a}, {b}", two, packed(max, False)),
        Op("min.s16x2 {d}, {a}, {b}", two, packed(min, True)),
        Op("max.s16x2 {d}, {a}, {b}", two, packed(max, True)),
        Op("min.s16x2.relu {d}, {a}, {b}", two, packed(lambda a, b: max(min(a, b), 0), True)),
        Op("max.relu.s16x2 {d}, {a}, {b}", two, packed(lambda a, b: max(a, b, 0), True)),
    ]
    for p in "us":
        for q in "us":
            types, signs = f"{p}32.{q}32", (p == "s", q == "s")
            for part, first, bits in (("dp4a", 0, 8), ("dp2a.lo", 0, 16), ("dp2a.hi", 2, 16)):
                text = f"{part}.{types} {{d}}, {{a}}, {{b}}, {{c}}"
                ops.append(Op(text, three, lambda a, b, c, f=first, n=bits, s=signs: dot(a, b, c, f, n, *s)))
    return ops


def test_saturation_and_packed() -> None:
    random = random_of("integer saturating")
    check(saturating(), [integers(random, COUNT, 32) for _ in range(3)], random)


def carries(n: int) -> list[Op]:
    full, kind = (1 << n) - 1, f"u{n}"
    high = lambda a, b: a * b >> n  # noqa: E731
    extra = {32: "%s", 64: "%e"}[n]

    def chain(a: int, b: int, c: int) -> int:
        total = (c << 2 * n | b << n | a) + (a << 2 * n | c << n | b)
        return total >> 2 * n & full

    def differences(a: int, b: int, c: int) -> int:
        return ((c << 2 * n | b << n | a) - (a << 2 * n | c << n | b)) >> 2 * n & full

    t, u = f"{extra}0", f"{extra}1"
    three = (n, n, n, n)
    return [
        Op(f"add.cc.{kind} {t}, {{a}}, {{b}}; addc.{kind} {{d}}, {{c}}, 0", three, lambda a, b, c: c + (a + b > full)),
        Op(
            f"add.cc.{kind} {t}, {{a}}, {{b}}; addc.cc.s{n} {u}, {{b}}, {{c}}; addc.{kind} {{d}}, {{c}}, {{a}}",
            three,
            chain,
        ),
        Op(
            f"sub.cc.{kind} {t}, {{a}}, {{b}}; subc.cc.s{n} {u}, {{b}}, {{c}}; subc.{kind} {{d}}, {{c}}, {{a}}",
            three,
            differences,
        ),
        Op(
            f"mad.lo.cc.{kind} {t}, {{a}}, {{b}}, {{c}}; madc.hi.{kind} {{d}}, {{a}}, {{b}}, 0",
            three,
            lambda a, b, c: a * b + c >> n,
        ),
        Op(
            f"mad.hi.cc.{kind} {t}, {{a}}, {{b}}, {{c}}; madc.lo.cc.{kind} {u}, {{a}}, {{b}}, {{c}}; "
            f"addc.{kind} {{d}}, {t}, {u}",
            three,
            lambda a, b, c: (high(a, b) + c) + (lo := (a * b & full) + c + (high(a, b) + c > full)) + (lo > full),
        ),
        Op(
            f"mad.hi.cc.s{n} {t}, {{a}}, {{b}}, {{c}}; addc.{kind} {{d}}, 0, 0",
            three,
            lambda a, b, c: (signed(a, n) * signed(b, n) >> n & full) + c > full,
        ),
    ]


@pytest.mark.parametrize("bits", [32, 64])
def test_carry_chain(bits: int) -> None:
    random = random_of(f"carry {bits}")
    check(carries(bits), [integers(random, COUNT, bits) for _ in range(3)], random)


def find(a: int, bits: int, sign: bool, shift: bool) -> int:
    value = signed(a, bits) if sign else a
    place = (value if value >= 0 else ~value).bit_length() - 1
    return place if place < 0 or not shift else bits - 1 - place


def nth(mask: int, base: int, offset: int) -> int:
    offset = signed(offset, 32)
    if offset == 0:
        return base if mask >> base & 1 else -1
    places = range(base, 32) if offset > 0 else range(base, -1, -1)
    found = [i for i in places if mask >> i & 1]
    return found[abs(offset) - 1] if abs(offset) <= len(found) else -1


def extract(a: int, b: int, c: int, bits: int, sign: bool) -> int:
    position, length = b & 255, c & 255
    if not length:
        return 0
    s = a >> min(position + length - 1, bits - 1) & 1 if sign else 0
    return sum((a >> (position + i) & 1 if i < length and position + i < bits else s) << i for i in range(bits))


def insert(a: int, b: int, c: int, length: int, bits: int) -> int:
    for i in range(length & 255):
        at = (c & 255) + i
        if at < bits:
            b = b & ~(1 << at) | (a >> i & 1) << at
    return b


def table(a: int, b: int, c: int, lut: int) -> int:
    return sum((lut >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i for i in range(32))


def permute(a: int, b: int, selectors: list[int]) -> int:
    pair, result = b << 32 | a, 0
    for at, selector in enumerate(selectors):
        byte = pair >> 8 * (selector & 7) & 255
        result |= (byte if not selector & 8 else 255 if byte & 128 else 0) << 8 * at
    return result


PRMT = {
    "f4e": lambda n: [n, n + 1, n + 2, n + 3],
    "b4e": lambda n: [n, (n - 1) & 7, (n - 2) & 7, (n - 3) & 7],
    "rc8": lambda n: [n] * 4,
    "ecl": lambda n: [max(n, i) for i in range(4)],
    "ecr": lambda n: [min(n, i) for i in range(4)],
    "rc16": lambda n: [(n & 1) * 2, (n & 1) * 2 + 1] * 2,
}


def bit_ops(random) -> list[Op]:
    ops = []
    for n in (16, 32, 64):
        two = (n, n, n)
        ops += [
            Op(f"and.b{n} {{d}}, {{a}}, {{b}}", two, lambda a, b: a & b),
            Op(f"or.b{n} {{d}}, {{a}}, {{b}}", two, lambda a, b: a | b),
            Op(f"xor.b{n} {{d}}, {{a}}, {{b}}", two, lambda a, b: a ^ b),
            Op(f"not.b{n} {{d}}, {{a}}", (n, n), lambda a: ~a),
            Op(f"cnot.b{n} {{d}}, {{a}}", (n, n), lambda a: a == 0),
            Op(f"shl.b{n} {{d}}, {{a}}, {{b}}", (n, n, 32), lambda a, b, n=n: a << min(b, n)),
            Op(f"shr.b{n} {{d}}, {{a}}, {{b}}", (n, n, 32), lambda a, b, n=n: a >> min(b, n)),
            Op(f"shr.u{n} {{d}}, {{a}}, {{b}}", (n, n, 32), lambda a, b, n=n: a >> min(b, n)),
            Op(f"shr.s{n} {{d}}, {{a}}, {{b}}", (n, n, 32), lambda a, b, n=n: signed(a, n) >> min(b, n)),
            Op(f"shl.b{n} {{d}}, {{a}}, 3", (n, n), lambda a: a << 3),
        ]
        if n == 16:
            continue
        ops += [
            Op(f"popc.b{n} {{d}}, {{a}}", (32, n), lambda a: a.bit_count()),
            Op(f"clz.b{n} {{d}}, {{a}}", (32, n), lambda a, n=n: n - a.bit_length()),
            Op(f"brev.b{n} {{d}}, {{a}}", (n, n), lambda a, n=n: int(f"{a:0{n}b}"[::-1], 2)),
            Op(
                f"bfi.b{n} {{d}}, {{a}}, {{b}}, {{c}}, 13",
                (n, n, n, 32),
                lambda a, b, c, n=n: insert(a, b, c, 13, n),
            ),
            Op(
                f"bfi.b{n} {{d}}, {{a}}, {{b}}, 5, {{c}}",
                (n, n, n, 32),
                lambda a, b, c, n=n: insert(a, b, 5, c, n),
            ),
        ]
        for s in "us":
            for shift in ("", ".shiftamt"):
                text = f"bfind{shift}.{s}{n} {{d}}, {{a}}"
                ops.append(Op(text, (32, n), lambda a, n=n, s=s, h=bool(shift): find(a, n, s == "s", h)))
            text = f"bfe.{s}{n} {{d}}, {{a}}, {{b}}, {{c}}"
            ops.append(Op(text, (n, n, 32, 32), lambda a, b, c, n=n, s=s: extract(a, b, c, n, s == "s")))
    three = (32, 32, 32, 32)
    pair = lambda a, b: b << 32 | a  # noqa: E731
    for lut in [0x80, 0xFE, 0x40, 0x1A, *random.integers(0, 256, 4)]:
        ops.append(
            Op(f"lop3.b32 {{d}}, {{a}}, {{b}}, {{c}}, {lut}", three, lambda a, b, c, t=int(lut): table(a, b, c, t))
        )
    ops += [
        Op("lop3.or.b32 {d}|%p7, {a}, {b}, {c}, 0x80, %p6", three, lambda a, b, c: a & b & c),
        Op(
            "setp.lt.s32 %p6, {a}, {b}; lop3.or.b32 _|%p7, {a}, {b}, {c}, 0x80, %p6; selp.b32 {d}, 1, 0, %p7",
            three,
            lambda a, b, c: (a & b & c) != 0 or signed(a, 32) < signed(b, 32),
        ),
        Op(
            "setp.lt.s32 %p6, {a}, {b}; lop3.and.b32 _|%p7, {a}, {b}, {c}, 0xfe, %p6; selp.b32 {d}, 1, 0, %p7",
            three,
            lambda a, b, c: (a | b | c) != 0 and signed(a, 32) < signed(b, 32),
        ),
        Op("shf.l.clamp.b32 {d}, {a}, {b}, {c}", three, lambda a, b, c: pair(a, b) << min(c, 32) >> 32),
        Op("shf.r.clamp.b32 {d}, {a}, {b}, {c}", three, lambda a, b, c: pair(a, b) >> min(c, 32)),
        Op("shf.l.wrap.b32 {d}, {a}, {b}, {c}", three, lambda a, b, c: pair(a, b) << (c & 31) >> 32),
        Op("shf.r.wrap.b32 {d}, {a}, {b}, {c}", three, lambda a, b, c: pair(a, b) >> (c & 31)),
        Op("and.b32 {b}, {b}, 31; fns.b32 {d}, {a}, {b}, {c}", three, lambda a, b, c: nth(a, b & 31, c)),
        Op("and.b32 {b}, {b}, 31; fns.b32 {d}, {a}, {b}, -3", (32, 32, 32), lambda a, b: nth(a, b & 31, -3)),
        Op("bmsk.clamp.b32 {d}, {a}, {b}", (32, 32, 32), lambda a, b: 0 if a > 31 else ((1 << min(b, 32)) - 1) << a),
        Op("bmsk.wrap.b32 {d}, {a}, {b}", (32, 32, 32), lambda a, b: ((1 << (b & 31)) - 1) << (a & 31)),
        Op("szext.clamp.u32 {d}, {a}, {b}", (32, 32, 32), lambda a, b: a & ((1 << min(b, 32)) - 1)),
        Op("szext.wrap.u32 {d}, {a}, {b}", (32, 32, 32), lambda a, b: a & ((1 << (b & 31)) - 1)),
        Op("szext.clamp.s32 {d}, {a}, {b}", (32, 32, 32), lambda a, b: signed(a, min(b, 32)) if b else 0),
        Op("szext.wrap.s32 {d}, {a}, {b}", (32, 32, 32), lambda a, b: signed(a, b & 31) if b & 31 else 0),
        Op("prmt.b32 {d}, {a}, {b}, {c}", three, lambda a, b, c: permute(a, b, [c >> 4 * i & 15 for i in range(4)])),
    ]
    for mode, select in PRMT.items():
        text = f"prmt.b32.{mode} {{d}}, {{a}}, {{b}}, {{c}}"
        ops.append(Op(text, three, lambda a, b, c, f=select: permute(a, b, f(c & 3))))
    return ops


def test_bits() -> None:
    random = random_of("bits")
    check(bit_ops(random), [integers(random, COUNT, 64) for _ in range(3)], random)


COMPARE = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
BOOLEAN = {"and": lambda x, y: x and y, "or": lambda x, y: x or y, "xor": lambda x, y: x != y}


def compare_ops(kind: str) -> list[Op]:
    n = int(kind[1:])
    names = ["eq", "ne"] if kind[0] == "b" else [*COMPARE, *(UNSIGNED if kind[0] == "u" else [])]
    ops = []
    for name in names:
        test = of_type(kind, COMPARE[UNSIGNED.get(name, name)])
        ops.append(Op(f"setp.{name}.{kind} {{d}}, {{a}}, {{b}}", (1, n, n), lambda a, b, f=test: bool(f(a, b))))
        ops.append(Op(f"set.{name}.u32.{kind} {{d}}, {{a}}, {{b}}", (32, n, n), lambda a, b, f=test: -f(a, b)))
        ops.append(
            Op(f"set.{name}.f32.{kind} {{d}}, {{a}}, {{b}}", (32, n, n), lambda a, b, f=test: 0x3F800000 * f(a, b))
        )
        for boolean, combine in BOOLEAN.items():
            text = f"setp.{name}.{boolean}.{kind} {{d}}|%p7, {{a}}, {{b}}, {{c}}"
            ops.append(Op(text, (1, n, n, 1), lambda a, b, c, f=test, g=combine: bool(g(f(a, b), bool(c)))))
            text = f"setp.{name}.{boolean}.{kind} _|{{d}}, {{a}}, {{b}}, !{{c}}"
            ops.append(Op(text, (1, n, n, 1), lambda a, b, c, f=test, g=combine: bool(g(not f(a, b), not c))))
        text = f"set.{name}.xor.s32.{kind} {{d}}, {{a}}, {{b}}, !{{c}}"
        ops.append(Op(text, (32, n, n, 1), lambda a, b, c, f=test: -(bool(f(a, b)) != (not c))))
    ops.append(Op(f"selp.{kind} {{d}}, {{a}}, {{b}}, {{c}}", (n, n, n, 1), lambda a, b, c: a if c else b))
    ops.append(Op(f"slct.{kind}.s32 {{d}}, {{a}}, {{b}}, {{c}}", (n, n, n, 32), lambda a, b, c: b if c >> 31 else a))
    return ops


@pytest.mark.parametrize("kind", ["b16", "u16", "s16", "b32", "u32", "s32", "b64", "u64", "s64"])
def test_comparison(kind: str) -> None:
    random = random_of(f"compare {kind}")
    inputs = [integers(random, COUNT, int(kind[1:])) for _ in range(3)]
    same = random.random(COUNT) < 0.3
    inputs[1][same] = inputs[0][same]
    inputs[2][random.random(COUNT) < 0.4] = 0
    check(compare_ops(kind), inputs, random)


def test_predicates() -> None:
    two = (1, 1, 1)
    ops = [
        Op("and.pred {d}, {a}, {b}", two, lambda a, b: a & b),
        Op("or.pred {d}, {a}, {b}", two, lambda a, b: a | b),
        Op("xor.pred {d}, {a}, {b}", two, lambda a, b: a ^ b),
        Op("not.pred {d}, {a}", (1, 1), lambda a: 1 - a),
        Op("mov.pred {d}, {a}", (1, 1), lambda a: a),
    ]
    random = random_of("predicates")
    check(ops, [random.integers(0, 2, COUNT) for _ in range(3)], random)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("add.b32 %r1, %r2, %r3;", "add"),
        ("add.u32.wide %r1, %r2, %r3;", "wide"),
        ("mul.u32 %r1, %r2, %r3;", "lo"),
        ("setp.lo.s32 %p1, %r1, %r2;", "unsigned"),
        ("setp.lt.b32 %p1, %r1, %r2;", "comparison"),
        ("lop3.b32 %r1, %r2, %r3, %r4, 256;", "255"),
        ("shl.u32 %r1, %r2, %r3;", "shl"),
        ("istypep.texref %p1, %d1;", "istypep"),
        ("bfe.b32 %r1, %r2, %r3, %r4;", "bfe"),
    ],
)
def test_rejected(text: str, words: str) -> None:
    rejected(text, words)
