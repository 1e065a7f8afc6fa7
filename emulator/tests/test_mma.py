"""mma.sync: layouts of fragments and sums, against exact fractions; and forms that are rejected.

The places of elements are written down once more from the tables of PTX ISA 9.7.14.5, the sums are those of
arithmetic.py, which know nothing of registers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from fractions import Fraction

import numpy
import pytest
from arithmetic import (
    D_F16,
    D_F32,
    D_S32,
    ELEMENTS,
    FORMATS,
    RM,
    RN,
    RP,
    RZ,
    SM80_MMA,
    SM90_MMA,
    SM100,
    UE4M3,
    UE8M0,
    UNSCALED,
    Format,
    TensorOp,
    output,
)
from small_kernel import EmulatorError, load_only, random_of, run

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1}
D_TYPES = {"f32": D_F32, "f16": D_F16, "s32": D_S32}
ARCHITECTURES = {"sm_80": SM80_MMA, "sm_90": SM90_MMA, "sm_100": SM90_MMA, "sm_120": SM100}
GROUP, THREAD = numpy.arange(32) // 4, numpy.arange(32) % 4


@dataclass
class Case:
    """m, n, k and types; `bits` is what an element takes in a register."""

    m: int
    n: int
    k: int
    d: str
    a: str
    b: str
    kind: str = ""
    scale: str = ""
    blocks: int = 0
    saturate: bool = False

    @property
    def bits(self) -> int:
        return 4 if self.kind.startswith("mxf4") else BITS.get(self.a, 8)

    @property
    def text(self) -> str:
        parts = ["mma.sync.aligned", f"m{self.m}n{self.n}k{self.k}", "row.col"]
        if self.kind:
            parts.append(f"kind::{self.kind}")
        if self.blocks:
            parts += ["block_scale", f"scale_vec::{self.blocks}X"]
        if self.saturate:
            parts.append("satfinite")
        return ".".join([*parts, self.d, self.a, self.b, self.d, *([self.scale] if self.scale else [])])

    def __str__(self) -> str:
        return self.text.removeprefix("mma.sync.aligned.")


# --- fragments -------------------------------------------------------------------------------------------------------


def places(case: Case, which: str) -> list[tuple[numpy.ndarray, numpy.ndarray]]:
    """Of each element i of a thread, for all lanes: row and column in A; column and row in B."""
    per, rows = 32 // case.bits, case.m // 8 if which == "a" else 1
    size = (case.m if which == "a" else case.n) * case.k // 32
    result = []
    for i in range(size):
        register = i // per
        outer = GROUP + 8 * (register % rows)
        result.append((outer, THREAD * per + i % per + 4 * per * (register // rows)))
    return result


def pack(case: Case, which: str, matrix: numpy.ndarray) -> numpy.ndarray:
    """Elements (as unsigned patterns, [row or column, k]) to registers, [register, lane]."""
    per = 32 // case.bits
    where = places(case, which)
    registers = numpy.zeros((len(where) // per, 32), numpy.uint32)
    for i, (outer, k) in enumerate(where):
        registers[i // per] |= (matrix[outer, k].astype(numpy.uint64) << (case.bits * (i % per))).astype(numpy.uint32)
    return registers


def accumulator_places(case: Case) -> list[tuple[numpy.ndarray, numpy.ndarray]]:
    return [(GROUP + 8 * (i // 2), THREAD * 2 + i % 2) for i in range(case.m * case.n // 32)]


def pack_accumulator(case: Case, matrix: numpy.ndarray) -> numpy.ndarray:
    cells = numpy.array([matrix[place] for place in accumulator_places(case)], numpy.uint32)
    return cells[0::2] | cells[1::2] << 16 if case.d == "f16" else cells


def unpack_accumulator(case: Case, registers: numpy.ndarray) -> numpy.ndarray:
    if case.d == "f16":
        halves = numpy.empty((2 * len(registers), 32), numpy.uint32)
        halves[0::2], halves[1::2] = registers & 0xFFFF, registers >> 16
        registers = halves
    matrix = numpy.zeros((case.m, case.n), numpy.uint32)
    for place, cells in zip(accumulator_places(case), registers, strict=True):
        matrix[place] = cells
    return matrix


# --- the kernel ------------------------------------------------------------------------------------------------------


def load(name: str, pointer: str, count: int, wide: bool = False) -> str:
    size, kind = (8, "b64") if wide else (4, "b32")
    lines = [
        f".reg .{kind} %{name}<{max(count, 1)}>;",
        f"mul.wide.u32 %d0, %lane, {size}; add.u64 %d0, %d0, {pointer};",
    ]
    lines += [f"ld.global.{kind} %{name}{i}, [%d0 + {32 * size * i}];" for i in range(count)]
    return "\n".join(lines)


def registers(name: str, count: int) -> str:
    return "{" + ", ".join(f"%{name}{i}" for i in range(count)) + "}"


def execute(
    text: str,
    a: numpy.ndarray,
    b: numpy.ndarray,
    c: numpy.ndarray,
    device: str,
    tail: str = "",
    scales: numpy.ndarray | None = None,
    *,
    in_place: bool,
) -> numpy.ndarray:
    """Registers of A, B and C in, those of D out. scales: of each lane, what %r0 and %r1 hold."""
    wide = a.dtype == numpy.uint64
    d = "c" if in_place else "e"
    size, kind = (8, "b64") if wide else (4, "b32")
    body = "\n".join(
        [
            load("x", "%a0", len(a), wide),
            load("y", "%a1", len(b), wide),
            load("c", "%a2", len(c), wide),
            "mul.wide.u32 %d0, %lane, 4; add.u64 %d0, %d0, %a4;",
            "ld.global.u32 %r0, [%d0]; ld.global.u32 %r1, [%d0 + 128];",
            f".reg .{kind} %e<{len(c)}>;",
            f"{text} {registers(d, len(c))}, {registers('x', len(a))}, {registers('y', len(b))}, "
            f"{registers('c', len(c))}{tail};",
            f"mul.wide.u32 %d0, %lane, {size}; add.u64 %d0, %d0, %a3;",
            *[f"st.global.{kind} [%d0 + {32 * size * i}], %{d}{i};" for i in range(len(c))],
        ]
    )
    if scales is None:
        scales = numpy.zeros((2, 32), numpy.uint32)
    return run(body, [a, b, c, numpy.full_like(c, 0xFFFFFFFF), scales], device=device)[3]


# --- inputs ----------------------------------------------------------------------------------------------------------


def elements(random: numpy.random.Generator, kind: str, shape: tuple[int, int]) -> numpy.ndarray:
    """Patterns: numbers of some magnitudes, subnormals and, in one row, everything that the format has."""
    if kind in ("tf32", "f16", "bf16"):
        values = random.standard_normal(shape) * 2.0 ** random.integers(-8, 9, shape)
        values[random.random(shape) < 0.1] = 0
        single = values.astype(numpy.float32).view(numpy.uint32)
        bits = single if kind == "tf32" else single >> 16
        if kind == "f16":
            bits = values.astype(numpy.float16).view(numpy.uint16).astype(numpy.uint32)
        wild = random.integers(0, 1 << BITS[kind], shape[1], numpy.uint64)
    else:
        width = BITS.get(kind) or FORMATS[kind].width + 1
        bits = random.integers(0, 1 << width, shape, numpy.uint64)
        wild = bits[0].copy()
        if kind in FORMATS:
            bits[(bits & FORMATS[kind].nan) > FORMATS[kind].largest] = 0
    bits = bits.astype(numpy.uint64)
    bits[random.integers(0, shape[0])] = wild
    return bits


def accumulators(random: numpy.random.Generator, kind: str, shape: tuple[int, int]) -> numpy.ndarray:
    if kind == "s32":
        return random.integers(0, 1 << 32, shape, numpy.uint64).astype(numpy.uint32)
    values = random.standard_normal(shape) * 2.0 ** random.integers(-8, 9, shape)
    if kind == "f16":
        return values.astype(numpy.float16).view(numpy.uint16).astype(numpy.uint32)
    return values.astype(numpy.float32).view(numpy.uint32)


def row_bytes(case: Case, kind: str, row: numpy.ndarray) -> bytes:
    """A row as arithmetic.py reads it."""
    if case.bits == 4:
        return bytes(int(low) | int(high) << 4 for low, high in zip(row[0::2], row[1::2], strict=True))
    size = {16: 2, 32: 4}.get(case.bits, 1)
    return b"".join(int(x).to_bytes(size, "little") for x in row)


def element_name(case: Case, kind: str) -> str:
    if kind == "e2m1":
        return "e2m1_packed" if case.bits == 4 else "e2m1_shifted"
    return kind


def expected(
    case: Case, device: str, a: numpy.ndarray, b: numpy.ndarray, c: numpy.ndarray, sfa: list[bytes], sfb: list[bytes]
) -> numpy.ndarray:
    op = TensorOp(
        architecture=ARCHITECTURES[device],
        m=case.m,
        n=case.n,
        k=case.k,
        a_type=ELEMENTS.index(element_name(case, case.a)),
        b_type=ELEMENTS.index(element_name(case, case.b)),
        d_type=D_TYPES[case.d],
        scale_type={"": UNSCALED, "ue4m3": UE4M3, "ue8m0": UE8M0}[case.scale],
        blocks=case.blocks,
        saturate=case.saturate,
    )
    rows = [row_bytes(case, case.a, row) for row in a]
    columns = [row_bytes(case, case.b, row) for row in b]
    return numpy.array(
        [[output(op, rows[i], columns[j], sfa[i], sfb[j], int(c[i, j])) for j in range(case.n)] for i in range(case.m)],
        numpy.uint32,
    )


# --- floating point and 8-bit integers -------------------------------------------------------------------------------

FP8 = [("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e5m2")]
NARROW = ["e4m3", "e5m2", "e3m2", "e2m3", "e2m1"]
HALVES = [
    *(Case(16, 8, k, d, "f16", "f16") for k in (8, 16) for d in ("f16", "f32")),
    *(Case(16, 8, k, "f32", "bf16", "bf16") for k in (8, 16)),
    *(Case(16, 8, k, "f32", "tf32", "tf32") for k in (4, 8)),
]
INTEGERS = [
    Case(m, 8, k, "s32", a, b, saturate=saturate)
    for m, k in ((8, 16), (16, 16), (16, 32))
    for a, b in (("s8", "s8"), ("u8", "s8"), ("s8", "u8"), ("u8", "u8"))
    for saturate in (False, True)
]
FP8_CASES = [Case(16, 8, k, d, a, b) for k in (16, 32) for d in ("f16", "f32") for a, b in FP8]
KINDS = [Case(16, 8, 32, d, a, b, "f8f6f4") for a in NARROW for b in NARROW for d in ("f16", "f32")]
TABLE = [
    *((case, device) for case in [*HALVES, *INTEGERS] for device in ("sm_80", "sm_90")),
    *((case, device) for case in HALVES for device in ("sm_100", "sm_120")),
    *((case, device) for case in FP8_CASES for device in ("sm_90", "sm_100", "sm_120")),
    *((case, "sm_120") for case in KINDS),
]


@pytest.mark.parametrize(("case", "device"), TABLE, ids=str)
def test_sums(case: Case, device: str) -> None:
    random = random_of(f"{case} {device}")
    a, b = elements(random, case.a, (case.m, case.k)), elements(random, case.b, (case.n, case.k))
    shift = [2 * (case.bits == 8 and kind == "e2m1") for kind in (case.a, case.b)]
    a, b = a << shift[0], b << shift[1]
    if case.kind:  # the padding of 6- and 4-bit elements does not count
        for matrix, kind in ((a, case.a), (b, case.b)):
            used = FORMATS[kind].width + 1
            mask = ((1 << used) - 1) << (2 if kind == "e2m1" else 0)
            matrix |= random.integers(0, 256, matrix.shape, numpy.uint64) & (255 ^ mask)
    c = accumulators(random, case.d, (case.m, case.n))
    result = execute(
        case.text,
        pack(case, "a", a),
        pack(case, "b", b),
        pack_accumulator(case, c),
        device,
        in_place=bool(random.integers(2)),
    )
    none = [b""] * 16
    numpy.testing.assert_array_equal(unpack_accumulator(case, result), expected(case, device, a, b, c, none, none))


# --- block scales ----------------------------------------------------------------------------------------------------

SCALED = [
    *(Case(16, 8, 32, "f32", a, b, "mxf8f6f4", "ue8m0", 1) for a in NARROW for b in NARROW),
    Case(16, 8, 64, "f32", "e2m1", "e2m1", "mxf4", "ue8m0", 2),
    Case(16, 8, 64, "f32", "e2m1", "e2m1", "mxf4nvf4", "ue8m0", 2),
    Case(16, 8, 64, "f32", "e2m1", "e2m1", "mxf4nvf4", "ue4m3", 4),
]


def scale_rows(
    random: numpy.random.Generator, case: Case, rows: int, lane_of: list[int], byte: int
) -> tuple[list[bytes], numpy.ndarray]:
    """Scales of each row, and the register that holds them among noise."""
    words = random.integers(0, 1 << 32, 32, numpy.uint64).astype(numpy.uint32)
    result = []
    for row in range(rows):
        low, high = (110, 140) if case.scale == "ue8m0" else (0x20, 0x50)
        scales = random.integers(low, high, case.blocks)
        if row == rows - 1 and random.integers(2):
            scales[random.integers(case.blocks)] = 255  # NaN
        value = int.from_bytes(bytes(scales.tolist()), "little") << 8 * byte
        mask = ((1 << 8 * case.blocks) - 1) << 8 * byte
        words[lane_of[row]] = (int(words[lane_of[row]]) & ~mask & 0xFFFFFFFF) | value
        result.append(bytes(scales.tolist()))
    return result, words


@pytest.mark.parametrize("case", SCALED, ids=str)
@pytest.mark.parametrize("form", ["immediate", "braces"])
def test_block_scales(case: Case, form: str) -> None:
    random = random_of(f"scaled {case} {form}")
    a, b = elements(random, case.a, (case.m, case.k)), elements(random, case.b, (case.n, case.k))
    a, b = (matrix << 2 * (case.bits == 8 and kind == "e2m1") for matrix, kind in ((a, case.a), (b, case.b)))
    c = accumulators(random, case.d, (case.m, case.n))
    choices = {1: [0, 1, 2, 3], 2: [0, 2], 4: [0]}[case.blocks]
    bytes_ = random.choice(choices), random.choice(choices)
    threads = random.integers(2), random.integers(4)
    of_a = [4 * (row % 8) + 2 * threads[0] + row // 8 for row in range(16)]
    of_b = [4 * column + threads[1] for column in range(8)]
    sfa, data_a = scale_rows(random, case, 16, of_a, int(bytes_[0]))
    sfb, data_b = scale_rows(random, case, 8, of_b, int(bytes_[1]))
    if form == "immediate":
        tail, before = f", %r0, {{{bytes_[0]}, {threads[0]}}}, %r1, {{{bytes_[1]}, {threads[1]}}}", ""
    else:
        before = "".join(f"mov.b16 %h{i}, {x}; " for i, x in enumerate([*bytes_, *threads]))
        tail = ", {%r0}, {%h0, %h2}, {%r1}, {%h1, %h3}"
    result = execute(
        before + case.text,
        pack(case, "a", a),
        pack(case, "b", b),
        pack_accumulator(case, c),
        "sm_120",
        tail,
        numpy.array([data_a, data_b]),
        in_place=bool(random.integers(2)),
    )
    numpy.testing.assert_array_equal(unpack_accumulator(case, result), expected(case, "sm_120", a, b, c, sfa, sfb))


@pytest.mark.parametrize("selector", ["{1, 0}, %r1, {0, 0}", "{0, 2}, %r1, {0, 0}", "{0, 0}, %r1, {0, 4}"])
def test_selectors_that_do_not_exist(selector: str) -> None:
    case = SCALED[-1]
    zeros = [numpy.zeros((count, 32), numpy.uint32) for count in (4, 2, 4)]
    with pytest.raises(EmulatorError, match="byte-id|thread-id"):
        execute(case.text, *zeros, "sm_120", f", %r0, {selector}", in_place=False)


# --- small integers and bits -----------------------------------------------------------------------------------------


def signed(matrix: numpy.ndarray, kind: str) -> numpy.ndarray:
    values = matrix.astype(numpy.int64)
    return numpy.where(values > 7, values - 16, values) if kind == "s4" else values


@pytest.mark.parametrize(("m", "k"), [(8, 32), (16, 32), (16, 64)])
@pytest.mark.parametrize(("a_kind", "b_kind"), [("s4", "s4"), ("u4", "s4"), ("s4", "u4"), ("u4", "u4")])
@pytest.mark.parametrize("saturate", [False, True])
def test_nibbles(m: int, k: int, a_kind: str, b_kind: str, saturate: bool) -> None:
    case = Case(m, 8, k, "s32", a_kind, b_kind, saturate=saturate)
    random = random_of(str(case))
    a, b = (random.integers(0, 16, (rows, k), numpy.uint64) for rows in (m, 8))
    c = accumulators(random, "s32", (m, 8))
    c[0], c[1] = 0x7FFFFFF0, 0x80000010
    result = execute(
        case.text, pack(case, "a", a), pack(case, "b", b), pack_accumulator(case, c), "sm_80", in_place=False
    )
    total = signed(a, a_kind) @ signed(b, b_kind).T + c.view(numpy.int32)
    if saturate:
        total = total.clip(-(2**31), 2**31 - 1)
    numpy.testing.assert_array_equal(unpack_accumulator(case, result), total.astype(numpy.uint32))


@pytest.mark.parametrize(("m", "k"), [(8, 128), (16, 128), (16, 256)])
@pytest.mark.parametrize("operation", ["xor", "and"])
def test_bits(m: int, k: int, operation: str) -> None:
    case = Case(m, 8, k, "s32", "b1", "b1")
    random = random_of(f"{case} {operation}")
    a, b = (random.integers(0, 2, (rows, k), numpy.uint64) for rows in (m, 8))
    c = accumulators(random, "s32", (m, 8))
    result = execute(
        f"{case.text}.{operation}.popc",
        pack(case, "a", a),
        pack(case, "b", b),
        pack_accumulator(case, c),
        "sm_80",
        in_place=True,
    )
    pairs = a[:, None] ^ b[None] if operation == "xor" else a[:, None] & b[None]
    numpy.testing.assert_array_equal(unpack_accumulator(case, result), (pairs.sum(axis=2) + c).astype(numpy.uint32))


# --- fp64 ------------------------------------------------------------------------------------------------------------

F64 = Format(11, 52, 1023, "ieee")


@pytest.mark.parametrize(("m", "k"), [(8, 4), (16, 4), (16, 8), (16, 16)])
@pytest.mark.parametrize(("suffix", "rounding"), [("", RN), (".rn", RN), (".rz", RZ), (".rm", RM), (".rp", RP)])
def test_fp64(m: int, k: int, suffix: str, rounding: int) -> None:
    """A chain of fused multiply-adds, k ascending."""
    random = random_of(f"f64 {m} {k} {suffix}")
    a, b, c = (
        random.standard_normal(shape) * 2.0 ** random.integers(-5, 6, shape) for shape in ((m, k), (8, k), (m, 8))
    )
    halves = m // 8
    x = numpy.array([a[GROUP + 8 * (i % halves), THREAD + 4 * (i // halves)] for i in range(m * k // 32)])
    y = numpy.array([b[GROUP, THREAD + 4 * i] for i in range(k // 4)])
    z = numpy.array([c[GROUP + 8 * (i // 2), 2 * THREAD + i % 2] for i in range(m // 4)])
    text = f"mma.sync.aligned.m{m}n8k{k}.row.col.f64.f64.f64.f64{suffix}"
    result = execute(text, *(v.view(numpy.uint64) for v in (x, y, z)), "sm_90", in_place=False)
    for i in range(m // 4):
        for lane in range(32):
            row, column = GROUP[lane] + 8 * (i // 2), 2 * THREAD[lane] + i % 2
            total = Fraction(c[row, column])
            for at in range(k):
                bits = F64.encode(Fraction(a[row, at]) * Fraction(b[column, at]) + total, rounding)
                total = Fraction(struct.unpack("<d", struct.pack("<Q", bits))[0])
            assert bits == int(result[i, lane]), f"value {i} of lane {lane}"


# --- what is rejected -------------------------------------------------------------------------------------------------

A4, B2, C4, C2 = "{%r0,%r1,%r2,%r3}", "{%r4,%r5}", "{%r6,%r7,%r8,%r9}", "{%r6,%r7}"
SCALE_TAIL = ", %r10, {0, 0}, %r11, {0, 0}"


@pytest.mark.parametrize(
    ("text", "device", "reason"),
    [
        (f"mma.sync.aligned.m16n8k32.row.col.f32.e2m1.e2m1.f32 {C4},{A4},{B2},{C4};", "sm_120", "needs a .kind"),
        (f"mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {C4},{A4},{B2},{C4};", "sm_80", "sm_89"),
        (
            f"mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e4m3.e4m3.f32 {C4},{A4},{B2},{C4};",
            "sm_100",
            "sm_120a",
        ),
        (
            "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.f32.e4m3.e4m3.f32.ue8m0 "
            f"{C4},{A4},{B2},{C4}{SCALE_TAIL};",
            "sm_120",
            "block_scale",
        ),
        (
            "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.f32.e2m1.e2m1.f32.ue8m0 "
            f"{C4},{A4},{B2},{C4}{SCALE_TAIL};",
            "sm_120",
            "scale_vec",
        ),
        (
            "mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue8m0 "
            f"{C4},{A4},{B2},{C4}{SCALE_TAIL};",
            "sm_120",
            "does not exist",
        ),
        (
            "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue4m3 "
            f"{C4},{A4},{B2},{C4}{SCALE_TAIL};",
            "sm_120",
            "4X",
        ),
        (f"mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32 {C4},{A4},{B2},{C4};", "sm_90", "cannot be multiplied"),
        (f"mma.sync.aligned.m16n8k16.row.col.f16.bf16.bf16.f16 {C2},{A4},{B2},{C2};", "sm_90", "f16 accumulator"),
        (f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {C4},{A4},{{%r4}},{C4};", "sm_90", "do not hold"),
        (f"mma.sync.aligned.m16n8k16.row.col.satfinite.f32.f16.f16.f32 {C4},{A4},{B2},{C4};", "sm_90", "saturation"),
        (f"mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32 {C4},{A4},{B2},{C4};", "sm_90", "col"),
        (f"mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {C4},{A4},{A4},{C4},%r5,0;", "sm_90", "sparse"),
        (f"mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {C4},{B2},{B2},{C4};", "sm_90", "m8n8k4"),
    ],
)
def test_rejected(text: str, device: str, reason: str) -> None:
    with pytest.raises(EmulatorError, match=reason):
        load_only(text, device)


def test_part_of_a_warp() -> None:
    case = HALVES[0]
    body = f"setp.lt.u32 %p0, %lane, 16; @%p0 {case.text} {C2},{B2},{{%r4}},{C2};"
    with pytest.raises(EmulatorError, match="aligned"):
        run(body, [], device="sm_80")
