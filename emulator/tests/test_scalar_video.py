"""Video instructions: every operation, types, selectors, masks, saturation and second operations drawn at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy
import pytest
from scalar import Op, check, integers, random_of, rejected

COUNT = 256
THREE = (32, 32, 32, 32)
OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "vadd": lambda a, b: a + b,
    "vsub": lambda a, b: a - b,
    "vavrg": lambda a, b: (a + b + 1) // 2 if a + b >= 0 else (a + b) // 2,
    "vabsdiff": lambda a, b: abs(a - b),
    "vmin": min,
    "vmax": max,
}
COMPARISONS: dict[str, Callable[[int, int], int]] = {
    "eq": lambda a, b: int(a == b),
    "ne": lambda a, b: int(a != b),
    "lt": lambda a, b: int(a < b),
    "le": lambda a, b: int(a <= b),
    "gt": lambda a, b: int(a > b),
    "ge": lambda a, b: int(a >= b),
}


def part(register: int, selector: str, kind: str) -> int:
    """The part of 32 bits that the selector ("b2", "h1", "" for all) takes, as a number of the type."""
    bits = {"b": 8, "h": 16, "": 32}[selector[:1]]
    value = register >> bits * int(selector[1:] or 0) & (1 << bits) - 1
    return value - (1 << bits) if kind == "s32" and value >> bits - 1 else value


def clamped(value: int, bits: int, kind: str) -> int:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind == "s32" else (0, (1 << bits) - 1)
    return min(max(value, low), high)


def merged(c: int, value: int, place: int, bits: int) -> int:
    mask = (1 << bits) - 1 << place * bits
    return c & ~mask | value << place * bits & mask


def scalar(random: numpy.random.Generator) -> Op:
    d, a, b = (str(random.choice(["u32", "s32"])) for _ in range(3))
    to, from_a, from_b = (str(random.choice(["", "b0", "b1", "b2", "b3", "h0", "h1"])) for _ in range(3))
    second = "" if to else str(random.choice(["", "add", "min", "max"]))
    sat = bool(random.integers(2))
    name = str(random.choice([*OPERATIONS, "vset", "vshl", "vshr"]))
    name = "vadd" if name == "vavrg" else name
    compare = str(random.choice(list(COMPARISONS)))
    mode = str(random.choice(["clamp", "wrap"]))
    if name == "vset":
        text, sat, d = f"vset.{a}.{b}.{compare}", False, "u32"
    elif name in ("vshl", "vshr"):
        b = "u32"
        text = f"{name}.{d}.{a}.u32{'.sat' * sat}.{mode}"
    else:
        text = f"{name}.{d}.{a}.{b}{'.sat' * sat}"

    def expect(x: int, y: int, z: int) -> int:
        p, q = part(x, from_a, a), part(y, from_b, b)
        if name in ("vshl", "vshr"):
            q = q & 31 if mode == "wrap" else min(q, 32)
            value = p << q if name == "vshl" else p >> q
        else:
            value = COMPARISONS[compare](p, q) if name == "vset" else OPERATIONS[name](p, q)
        bits = {"b": 8, "h": 16, "": 32}[to[:1]]
        if sat:
            value = clamped(value, bits, d)
        third = part(z, "", d)
        if second:
            value = value + third if second == "add" else min(value, third) if second == "min" else max(value, third)
        return (merged(z, value, int(to[1]), bits) if to else value) & 0xFFFFFFFF

    dot = "{d}" + f".{to}" * bool(to), "{a}" + f".{from_a}" * bool(from_a), "{b}" + f".{from_b}" * bool(from_b)
    third = ", {c}" if to or second else ""
    return Op(f"{text}{f'.{second}' if second else ''} {', '.join(dot)}{third}", THREE, expect)


def selected(random: numpy.random.Generator, parts: int, first: int) -> tuple[str, Sequence[int]]:
    if random.integers(2):
        return "", range(first, first + parts)
    chosen = [int(i) for i in random.integers(0, 2 * parts, parts)]
    return f".{'b' if parts == 4 else 'h'}{''.join(str(i) for i in reversed(chosen))}", chosen


def several(random: numpy.random.Generator, parts: int) -> Op:
    d, a, b = (str(random.choice(["u32", "s32"])) for _ in range(3))
    letter, bits = ("b", 8) if parts == 4 else ("h", 16)
    add = bool(random.integers(2))
    sat = not add and bool(random.integers(2))
    name = str(random.choice([*OPERATIONS, "vset"]))
    compare = str(random.choice(list(COMPARISONS)))
    mask = int(random.integers(1, 1 << parts))
    places = [i for i in range(parts) if mask >> i & 1]
    to = "" if len(places) == parts else f".{letter}{''.join(str(i) for i in reversed(places))}"
    from_a, a_parts = selected(random, parts, 0)
    from_b, b_parts = selected(random, parts, parts)
    sat = sat and name != "vset"
    text = f"vset{parts}.{a}.{b}.{compare}" if name == "vset" else f"{name}{parts}.{d}.{a}.{b}{'.sat' * sat}"

    def expect(x: int, y: int, z: int) -> int:
        result = z
        for i in places:
            pair = y << 32 | x
            p, q = (
                part(pair >> bits * j & (1 << bits) - 1, f"{letter}0", kind)
                for j, kind in ((a_parts[i], a), (b_parts[i], b))
            )
            value = COMPARISONS[compare](p, q) if name == "vset" else OPERATIONS[name](p, q)
            if sat:
                value = clamped(value, bits, d)
            result = result + value if add else merged(result, value, i, bits)
        return result & 0xFFFFFFFF

    return Op(f"{text}{'.add' * add} {{d}}{to}, {{a}}{from_a}, {{b}}{from_b}, {{c}}", THREE, expect)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_video(parts: int) -> None:
    random = random_of(f"video {parts}")
    ops = [scalar(random) if parts == 1 else several(random, parts) for _ in range(60)]
    check(ops, [integers(random, COUNT, 32) for _ in range(3)], random)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vadd.u32.u32.f32 %r1, %r2, %r3;", "types"),
        ("vadd4.u32.u32.u32.sat.add %r1, %r2, %r3, %r4;", "sat"),
        ("vmax2.u32.u32.u32 %r1.h01, %r2, %r3, %r4;", "mask"),
        ("vmax2.u32.u32.u32 %r1, %r2.h4, %r3, %r4;", "parts"),
        ("vset.u32.u32 %r1, %r2, %r3;", "comparison"),
        ("vshl.u32.u32.u32 %r1, %r2, %r3;", "clamp"),
        ("add.u32 %r1, %r2.b0, %r3;", "selector"),
    ],
)
def test_rejected(text: str, words: str) -> None:
    rejected(text, words)
