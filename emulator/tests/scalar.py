"""Instructions between registers, for test_scalar_*.py: each is run for many inputs, on full warps and under a guard,
and its result's bits are compared with an independent computation in Python's integers and fractions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy
from emulate import Emulator, EmulatorError  # noqa: F401
from random_data import random_of  # noqa: F401

UNTOUCHED = 0xA5A5A5A5A5A5A5A5  # in destinations before a guarded instruction


class Op(NamedTuple):
    """`text` has {d} {a} {b} {c} for registers. widths: of d, then a, b, c; 1 is a predicate (0 or 1 in the data).
    `expect` takes the operands' bits and gives the result's; None: whatever it gives is fine."""

    text: str
    widths: Sequence[int]
    expect: Callable[..., int | None]


PREFIX = {1: "%p", 8: "%b", 16: "%h", 32: "%r", 64: "%d"}
LOAD = {8: "b8", 16: "b16", 32: "b32", 64: "b64"}


def body(op: Op, number: int, guarded: bool) -> str:
    names = {n: f"{PREFIX[w]}{i}" for i, (n, w) in enumerate(zip("dabc", op.widths, strict=False))}
    lines = []
    for name, width in list(zip("dabc", op.widths, strict=False))[1:]:
        place = f"[%in{'abc'.index(name)}]"
        if width == 1:
            lines += [f"ld.global.b32 %t, {place};", f"setp.ne.b32 {names[name]}, %t, 0;"]
        else:
            lines.append(f"ld.global.{LOAD[width]} {names[name]}, {place};")
    width, d = op.widths[0], names["d"]
    if width == 1:
        lines.append(f"setp.ne.b32 {d}, 1, 0;")
    else:
        lines.append(f"ld.global.{LOAD[width]} {d}, [%out];")
    text = op.text.format(**names)
    lines += [f"{'@%guard ' if guarded else ''}{part.strip()};" for part in text.split(";") if part.strip()]
    if width == 1:
        lines += [f"selp.u32 %t, 1, 0, {d};", "st.global.b32 [%out], %t;"]
    else:
        lines.append(f"st.global.{LOAD[width]} [%out], {d};")
    return "\n  ".join(lines) + "\n  add.u64 %out, %out, %step;\n"


def program(ops: Sequence[Op], guarded: bool) -> str:
    bodies = "".join(body(op, k, guarded) for k, op in enumerate(ops))
    return f"""
.version 9.0
.target sm_100a
.address_size 64
.visible .entry run(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 guards, .param .u64 out, .param .u64 step)
{{
  .reg .pred %guard, %p<8>;
  .reg .b8 %b<8>;
  .reg .b16 %h<8>, %u<8>;
  .reg .b32 %r<8>, %s<8>, %t, %i, %n;
  .reg .b64 %d<8>, %e<8>, %in<3>, %out, %step, %at, %where;
  .reg .b128 %q<4>;
  mov.u32 %i, %ctaid.x;
  mov.u32 %n, %ntid.x;
  mov.u32 %t, %tid.x;
  mad.lo.u32 %i, %i, %n, %t;
  mul.wide.u32 %at, %i, 8;
  ld.param.u64 %in0, [a];
  ld.param.u64 %in1, [b];
  ld.param.u64 %in2, [c];
  ld.param.u64 %out, [out];
  ld.param.u64 %step, [step];
  add.u64 %in0, %in0, %at;
  add.u64 %in1, %in1, %at;
  add.u64 %in2, %in2, %at;
  add.u64 %out, %out, %at;
  ld.param.u64 %where, [guards];
  add.u64 %where, %where, %at;
  ld.global.u32 %t, [%where];
  setp.ne.u32 %guard, %t, 0;
  {bodies}
  ret;
}}
"""


def run(ops: Sequence[Op], inputs: Sequence[numpy.ndarray], random: numpy.random.Generator, guarded: bool):
    """(results [op, element], guards)"""
    count = len(inputs[0])
    guards = (random.random(count) < random.choice([0.03, 0.5, 0.97])).astype(numpy.uint64)
    # whole warps with one lane, and with all of them but one
    guards[:32], guards[32:64] = 0, 1
    guards[random.integers(0, 32)] ^= 1
    guards[32 + random.integers(0, 32)] ^= 1
    emulator = Emulator("sm_100", seed=int(random.integers(0, 1 << 31)))
    arrays = [emulator.array(x.astype(numpy.uint64)) for x in inputs]
    out = emulator.array(numpy.full((len(ops), count), UNTOUCHED, numpy.uint64))
    kernel = emulator.load(program(ops, guarded))["run"]
    args = [*arrays, emulator.array(guards), out, 8 * count]
    emulator.launch(kernel, grid=-(-count // 128), block=128, args=args)
    return out.numpy().copy(), guards


def check(ops: Sequence[Op], inputs: Sequence[numpy.ndarray], random: numpy.random.Generator) -> None:
    """Inputs: three arrays of bits, a multiple of 128 of them."""
    cells = [[int(v) for v in x] for x in inputs]
    expected = []
    for op in ops:
        masks = [(1 << w) - 1 if w > 1 else None for w in op.widths[1:]]
        columns = [[v & m if m else int(v & 0xFFFFFFFF != 0) for v in cells[j]] for j, m in enumerate(masks)]
        expected.append([op.expect(*values) for values in zip(*columns, strict=True)])
    for guarded in (False, True):
        got, guards = run(ops, inputs, random, guarded)
        for k, op in enumerate(ops):
            width = max(op.widths[0], 1)
            mask = (1 << width) - 1
            stored = 32 if width == 1 else width
            wrong = []
            for i, want in enumerate(expected[k]):
                value = int(got[k, i]) & ((1 << stored) - 1)
                active = not guarded or guards[i]
                if not active:
                    want = 1 if width == 1 else UNTOUCHED & mask
                if want is not None and value != want & mask:
                    wrong.append((i, value, want & mask, active))
                assert width == 1 or int(got[k, i]) >> stored == UNTOUCHED >> stored
            if wrong:
                i, value, want, active = wrong[0]
                operands = ", ".join(hex(cells[j][i] & ((1 << w) - 1)) for j, w in enumerate(op.widths[1:]))
                raise AssertionError(
                    f"{op.text}{' (guarded)' if guarded else ''}: {len(wrong)} of {len(expected[k])} wrong; element {i}"
                    f"{'' if active else ', whose guard is false'}: ({operands}) gave {value:#x}, expected {want:#x}"
                )


def rejected(text: str, words: str, registers: str = "") -> None:
    """A program with this instruction does not load, with a message that has these words."""
    ptx = program([], False).replace("ret;", f"{text}\n  ret;")
    try:
        Emulator("sm_100").load(ptx.replace(".reg .b8", f"{registers}\n  .reg .b8", 1))
    except EmulatorError as error:
        assert re.search(words, str(error)), f"{text}: rejected with: {error}"
        return
    raise AssertionError(f"{text} was accepted")


# ---- inputs ---------------------------------------------------------------------------------------------------------


def integers(random: numpy.random.Generator, count: int, bits: int) -> numpy.ndarray:
    """Uniform, of every length, and the numbers around powers of two."""
    full = (1 << 64) - 1
    uniform = random.integers(0, full, count, dtype=numpy.uint64, endpoint=True)
    short = uniform >> random.integers(0, 64, count).astype(numpy.uint64)
    power = numpy.uint64(1) << random.integers(0, bits, count).astype(numpy.uint64)
    near = power + random.integers(-2, 3, count).astype(numpy.uint64)
    small = random.integers(-3, 66, count).astype(numpy.uint64)
    kind = random.integers(0, 5, count)
    return numpy.choose(kind, [uniform, short, near, ~near, small])


def floats(random: numpy.random.Generator, count: int, exponent_bits: int, mantissa_bits: int) -> numpy.ndarray:
    """Bits of every exponent; half of them near one, few mantissa bits (ties), subnormals, infinities, NaN, zeros."""
    top, bias = (1 << exponent_bits) - 1, (1 << (exponent_bits - 1)) - 1
    reach = min(bias - 1, 30)
    anywhere = random.integers(0, top + 1, count)
    near = random.integers(bias - reach, bias + reach + 1, count)
    low = random.integers(0, 3, count)
    exponent = numpy.choose(random.integers(0, 8, count), [anywhere, anywhere, near, near, near, near, low, near])
    mantissa = random.integers(0, 1 << mantissa_bits, count, dtype=numpy.uint64)
    kept = random.integers(0, mantissa_bits + 1, count).astype(numpy.uint64)
    cut = (mantissa >> kept) << kept
    ones = mantissa | ((numpy.uint64(1) << kept) - numpy.uint64(1))
    mantissa = numpy.choose(random.integers(0, 4, count), [mantissa, cut, ones, cut])
    sign = random.integers(0, 2, count).astype(numpy.uint64) << numpy.uint64(exponent_bits + mantissa_bits)
    values = sign | exponent.astype(numpy.uint64) << numpy.uint64(mantissa_bits) | mantissa
    special = random.integers(0, 16, count)
    infinity = numpy.uint64(top << mantissa_bits)
    values = numpy.where(special == 0, sign, values)
    values = numpy.where(special == 1, sign | infinity, values)
    return numpy.where(special == 2, sign | infinity | mantissa, values)


# ---- floating point by fractions -------------------------------------------------------------------------------------


class Format(NamedTuple):
    exponent_bits: int
    mantissa_bits: int

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent_bits) - 1) << self.mantissa_bits

    @property
    def sign(self) -> int:
        return 1 << (self.exponent_bits + self.mantissa_bits)

    def is_nan(self, x: int) -> bool:
        return x & (self.sign - 1) > self.infinity

    def is_infinite(self, x: int) -> bool:
        return x & (self.sign - 1) == self.infinity

    def is_negative(self, x: int) -> bool:
        return bool(x & self.sign)

    def flush(self, x: int) -> int:
        return x if x & self.infinity else x & self.sign

    def value(self, x: int) -> Fraction:
        """Of a finite number."""
        exponent, mantissa = (x & self.infinity) >> self.mantissa_bits, x & ((1 << self.mantissa_bits) - 1)
        if exponent:
            mantissa |= 1 << self.mantissa_bits
        shift = max(exponent, 1) - self.bias - self.mantissa_bits
        magnitude = Fraction(mantissa << shift) if shift >= 0 else Fraction(mantissa, 1 << -shift)
        return -magnitude if x & self.sign else magnitude

    def encode(self, x: Fraction, mode: str, negative: bool | None = None) -> int:
        """Rounded by rn, rz, rm, rp or rna; the sign of zero is `negative`."""
        sign = self.sign if (x < 0 if x else negative) else 0
        if not x:
            return sign
        m = abs(x)
        exponent = m.numerator.bit_length() - m.denominator.bit_length()
        if m < (Fraction(2) ** exponent):
            exponent -= 1
        smallest = 1 - self.bias
        exponent = max(exponent, smallest)
        units = m / Fraction(2) ** (exponent - self.mantissa_bits)
        whole = units.numerator // units.denominator
        rest = units - whole
        up = {
            "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole & 1),
            "rna": rest >= Fraction(1, 2),
            "rz": False,
            "rm": bool(rest and sign),
            "rp": bool(rest and not sign),
        }[mode]
        bits = ((exponent - smallest) << self.mantissa_bits) + whole + bool(up)
        if bits >= self.infinity:
            finite = mode == "rz" or (mode == "rm" and not sign) or (mode == "rp" and bool(sign))
            bits = self.infinity - 1 if finite else self.infinity
        return bits | sign


class Flushing(Format):
    """With .ftz: a result that would be subnormal if exponents had no end is a zero."""

    def encode(self, x: Fraction, mode: str, negative: bool | None = None) -> int:
        endless = Format(self.exponent_bits + 4, self.mantissa_bits)
        rounded = endless.value(endless.encode(x, mode, negative))
        if abs(rounded) < Fraction(2) ** (1 - self.bias):
            return self.sign if (x < 0 if x else negative) else 0
        return super().encode(x, mode, negative)


F16, BF16, F32, F64 = Format(5, 10), Format(8, 7), Format(8, 23), Format(11, 52)
NAN = {F16: 0x7FFF, BF16: 0x7FFF, F32: 0x7FFFFFFF, F64: 0xFFF8000000000000}
