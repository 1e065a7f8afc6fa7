"""tcgen05.cp, mma, shift and commit: layouts and descriptors on exact data, kind::mxf4nvf4 bit for bit, and faults
of wrong programs."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy
import pytest
from tensor_core import (
    A_AT,
    A_COLUMN,
    B_AT,
    D_COLUMN,
    DEPTH,
    FORMATS,
    IMAGE,
    LANES,
    POISON,
    SFA_COLUMN,
    SFB_COLUMN,
    SWIZZLES,
    TENSOR_COLUMNS,
    descriptor,
    descriptor_bits,
    minifloat,
    place_k_major,
    place_mn_major,
    put_scales,
    random_of,
    row_bytes,
    run_tensor_core,
    tensor_bytes,
)

# ---- tcgen05.cp ------------------------------------------------------------------------------------------------------

COPIES = {
    "128x256b": (128, 32, lambda r: [r]),
    "128x128b": (128, 16, lambda r: [r]),
    "4x256b": (4, 32, lambda r: [32 * r]),
    "64x128b.warpx2::02_13": (64, 16, lambda r: [r, r + 64]),
    "64x128b.warpx2::01_23": (64, 16, lambda r: [r, r + 32] if r < 32 else [r + 32, r + 64]),
    "32x128b.warpx4": (32, 16, lambda r: [r, r + 32, r + 64, r + 96]),
}


def expand(row: numpy.ndarray, form: str) -> numpy.ndarray:
    """A row after a decompressing copy: element i of a unit of 16 bytes becomes byte i."""
    if not form:
        return row
    bits, up = (4, 2) if "b4" in form else (6, 0)
    out = numpy.zeros_like(row)
    for unit in range(0, len(row), 16):
        packed = int.from_bytes(row[unit : unit + 16].tobytes(), "little")
        for i in range(16):
            out[unit + i] = (packed >> (bits * i) & ((1 << bits) - 1)) << up
    return out


@pytest.mark.parametrize("form", ["", ".b8x16.b4x16_p64", ".b8x16.b6x16_p32"])
@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize("shape", COPIES)
def test_copy(shape: str, swizzle: str, form: str) -> None:
    random = random_of(f"cp {shape} {swizzle} {form}")
    rows, width, lanes = COPIES[shape]
    group = int(random.integers(1, 3))
    pitch = SWIZZLES[swizzle][1]
    stride = 8 * pitch * int(random.integers(1, 3))
    leading = 16 * 8 * 16 if swizzle == "none" else 16
    if swizzle == "none":
        stride = 128
    shared = random.integers(0, 256, (group, 34816), dtype=numpy.uint8)
    image = random.integers(0, 2**32, (group, LANES, 32), dtype=numpy.uint32)
    column = int(random.integers(0, 32 - width // 4 + 1))
    expected = image.copy()
    for c in range(group):
        source = random.integers(0, 256, (rows, width), dtype=numpy.uint8)
        place_k_major(shared[c], 1024, source, swizzle, leading, stride)
        for r in range(rows):
            for lane in lanes(r):
                expected[c, lane, column : column + width // 4] = expand(source[r], form).view(numpy.uint32)
    body = descriptor("%d0", descriptor_bits(swizzle, leading, stride), 1024)
    body += f"tcgen05.cp.cta_group::{group}.{shape}{form} [%taddr + {column}], %d0;"
    after = run_tensor_core(body, shared, image, group, seed=int(random.integers(100)))
    numpy.testing.assert_array_equal(after, expected)


@pytest.mark.parametrize("group", [1, 2])
def test_shift(group: int) -> None:
    random = random_of(f"shift {group}")
    image = random.integers(0, 2**32, (group, LANES, 32), dtype=numpy.uint32)
    expected = image.copy()
    expected[:, 65:96, 8:16] = image[:, 64:95, 8:16]
    body = f"add.u32 %at, %taddr, {64 << 16 | 8};\ntcgen05.shift.cta_group::{group}.down [%at];"
    after = run_tensor_core(body, numpy.zeros((group, 4)), image, group, seed=int(random.integers(100)))
    numpy.testing.assert_array_equal(after, expected)


# ---- tcgen05.mma: one instruction on random exact data ---------------------------------------------------------------


@dataclass
class Case:
    kind: str
    a: str
    b: str
    m: int
    n: int
    group: int = 1
    weight_stationary: bool = False
    a_swizzle: str = "128"
    b_swizzle: str = "128"
    a_major: str = "k"
    b_major: str = "k"
    a_in_tmem: bool = False
    accumulate: bool = True
    d: str = "f32"
    negate_a: bool = False
    negate_b: bool = False
    masked: bool = False
    scale_d: int = 0
    blocks: int = 0
    scale_type: str = "ue8m0"
    lane: int = 0  # of D, for M = 64
    ashift: bool = False

    @property
    def folds(self) -> int:
        """Parts of N that lie above each other in the lanes."""
        if self.weight_stationary:
            return 128 // self.m
        return 2 if self.group == 2 and self.m == 128 else 1

    def cell(self, row: int, column: int) -> tuple[int, int, int]:
        """(CTA, lane, column) of an element of D."""
        cta, row = divmod(row, self.m // self.group)
        if self.m == 64 and not self.weight_stationary and self.group == 1:
            return cta, self.lane + row // 16 * 32 + row % 16, column
        part, column = divmod(column, self.n // self.folds)
        return cta, row + part * (self.m // self.group), column

    def instruction_bits(self, sfa: int = 0, sfb: int = 0) -> int:
        a, b = FORMATS[self.a].code, FORMATS[self.b].code
        bits = a << 7 | b << 10 | self.negate_a << 13 | self.negate_b << 14
        bits |= (self.a_major == "mn") << 15 | (self.b_major == "mn") << 16 | self.n >> 3 << 17
        if self.kind.startswith("mx"):
            return bits | sfb << 4 | (self.scale_type == "ue8m0") << 23 | self.m >> 7 << 27 | sfa << 29
        return bits | {"f16": 0, "f32": 1, "s32": 2}[self.d] << 4 | self.m >> 4 << 24


def put_operand(
    shared: numpy.ndarray,
    at: int,
    rows: numpy.ndarray,
    swizzle: str,
    major: str,
    name: str,
    random: numpy.random.Generator,
) -> int:
    """Places an operand and gives the descriptor's bits."""
    pitch = SWIZZLES[swizzle][1]
    if major == "k":
        stride = 8 * pitch + (128 if swizzle == "none" else 8 * pitch) * int(random.integers(0, 2))
        leading = stride * (len(rows) // 8 + 1) if swizzle == "none" else 16 * int(random.integers(0, 9))
        place_k_major(shared, at, rows, swizzle, leading, stride)
        return descriptor_bits(swizzle, leading, stride)
    size = FORMATS[name].bits // 8
    groups = (4 if swizzle == "128_32" else 8) * pitch
    if swizzle == "none":
        stride = 128
        leading = 128 * (len(rows) // (16 // size) + int(random.integers(0, 3)))
    else:
        leading = groups  # to the next swizzled row's width along M or N
        stride = groups * (len(rows) * size // pitch + 1 + int(random.integers(0, 2)))
    place_mn_major(shared, at, rows, size, swizzle, leading, stride)
    return descriptor_bits(swizzle, leading, stride)


def d_bits(values: numpy.ndarray, d: str) -> numpy.ndarray:
    if d == "f32":
        return values.astype(numpy.float32).view(numpy.uint32)
    if d == "s32":
        return values.astype(numpy.int64).astype(numpy.uint32)
    return values.astype(numpy.float16).view(numpy.uint16).astype(numpy.uint32)


def scale_codes(case: Case, random: numpy.random.Generator, rows: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    if case.scale_type == "ue8m0":
        codes = random.integers(126, 129, (rows, case.blocks))
        return codes.astype(numpy.uint8), 2.0 ** (codes - 127.0)
    codes = random.integers(0x30, 0x40, (rows, case.blocks))  # 0.5 to 1.875
    return codes.astype(numpy.uint8), numpy.vectorize(lambda c: minifloat(int(c), 4, 3, 7))(codes)


def run_case(case: Case, random: numpy.random.Generator, seed: int) -> None:
    k = DEPTH[case.kind]
    a_codes, a = FORMATS[case.a].draw(random, (case.m, k))
    b_codes, b = FORMATS[case.b].draw(random, (case.n, k))
    group, rows, columns = case.group, case.m // case.group, case.n // case.group
    shared = random.integers(0, 256, (group, IMAGE), dtype=numpy.uint8)
    image = random.integers(0, 2**32, (group, LANES, TENSOR_COLUMNS), dtype=numpy.uint32)
    a_bits = b_bits = 0
    for c in range(group):
        if not case.a_in_tmem:
            mine = row_bytes(a_codes[c * rows : (c + 1) * rows], case.a)
            state = numpy.random.default_rng(seed)  # both CTAs: the same strides
            a_bits = put_operand(shared[c], A_AT, mine, case.a_swizzle, case.a_major, case.a, state)
        mine = row_bytes(b_codes[c * columns : (c + 1) * columns], case.b)
        b_bits = put_operand(
            shared[c], B_AT, mine, case.b_swizzle, case.b_major, case.b, numpy.random.default_rng(seed + 1)
        )
    if case.a_in_tmem:
        cells = tensor_bytes(a_codes, case.a).view(numpy.uint32)
        for row in range(case.m):
            for part in range(case.folds):
                cta, lane, _ = case.cell(row, part * (case.n // case.folds))
                image[cta, lane, A_COLUMN : A_COLUMN + 8] = cells[row]
    if case.ashift:
        a = numpy.concatenate([numpy.vstack([x[:1], x[:-1]]) for x in numpy.split(a, group)])
    before = random.integers(-64, 65, (case.m, case.n)) / (1 if case.d == "s32" else 4)
    if case.d == "f16":
        before = before / 16
    place = numpy.array([[case.cell(i, j) for j in range(case.n)] for i in range(case.m)])
    where = tuple(place[..., x] for x in range(3))
    if case.accumulate:
        image[where] = d_bits(before, case.d) | (image[where] & 0xFFFF0000 if case.d == "f16" else 0)
    sfa_id, sfb_id = 0, 0
    left, right = a * (-1) ** case.negate_a, b * (-1) ** case.negate_b
    if case.blocks:
        choices = {1: [0, 1, 2, 3], 2: [0, 2], 4: [0]}[case.blocks]
        sfa_id, sfb_id = (int(random.choice(choices)) for _ in range(2))
        sfa_codes, sfa = scale_codes(case, random, case.m)
        sfb_codes, sfb = scale_codes(case, random, case.n)
        for c in range(group):
            put_scales(image[c], SFA_COLUMN, sfa_codes[c * rows : (c + 1) * rows], sfa_id)
            put_scales(image[c], SFB_COLUMN, sfb_codes, sfb_id)
        left = left * numpy.repeat(sfa, k // case.blocks, axis=1)
        right = right * numpy.repeat(sfb, k // case.blocks, axis=1)
    product = left @ right.T
    total = product + before * 2.0**-case.scale_d * case.accumulate
    expected = image.copy()
    bits = d_bits(total, case.d)
    if case.d == "f16":
        bits |= image[where] & 0xFFFF0000
    expected[where] = bits
    masks = [0] * (4 * group)
    if case.masked:
        masks = [int(x) for x in random.integers(0, 2**32, 4 * group)]
        off = numpy.array(
            [[masks[4 * c + lane // 32] >> (lane % 32) & 1 for lane in range(LANES)] for c in range(group)]
        )
        expected[off == 1] = image[off == 1]

    mask = ""
    if case.masked:
        mask = "{" + ", ".join(f"{x:#x}" for x in masks) + "}, "
    body = descriptor("%d1", b_bits, B_AT)
    operand = f"[%taddr + {A_COLUMN + (case.lane << 16)}]"
    if not case.a_in_tmem:
        body += descriptor("%d0", a_bits, A_AT)
        operand = "%d0"
    body += f"add.u32 %t0, %taddr, {D_COLUMN + (case.lane << 16)};\n"
    body += f"mov.u32 %t1, {case.instruction_bits(sfa_id, sfb_id):#x};\n"
    body += f"setp.eq.u32 %q, %thread, {0 if case.accumulate else 1};\n"
    name = f"tcgen05.mma{'.ws' * case.weight_stationary}.cta_group::{group}.kind::{case.kind}"
    if case.blocks:
        vector = {1: "block32", 2: "block32", 4: "block16"}[case.blocks]
        body += f"{name}.block_scale.{vector} [%t0], {operand}, %d1, %t1, "
        body += f"[%taddr + {SFA_COLUMN}], [%taddr + {SFB_COLUMN}], %q;\n"
    else:
        scale = f", {case.scale_d}" if case.scale_d else ""
        body += f"{name}{'.ashift' * case.ashift} [%t0], {operand}, %d1, %t1, {mask}%q{scale};\n"
    after = run_tensor_core(body, shared, image, group, seed=seed)
    different = numpy.argwhere(after != expected)
    assert not len(different), f"{case}, seed {seed}: first differs at {different[0]}"


DENSE = {
    "f16": [("f16", "f16"), ("bf16", "bf16")],
    "tf32": [("tf32", "tf32")],
    "f8f6f4": [
        (a, b) for a in ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1") for b in ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")
    ],
    "i8": [("u8", "u8"), ("s8", "s8"), ("u8", "s8")],
}
LAYOUTS = {  # (group, M, .ws): the letters of 9.7.16.10.5
    "D": (1, 128, False), "F": (1, 64, False), "A": (2, 256, False), "B": (2, 128, False), "E": (1, 64, True),
    "G": (1, 32, True),
}  # fmt: skip


def random_case(random: numpy.random.Generator, kind: str, layout: str) -> Case:
    group, m, weight_stationary = LAYOUTS[layout]
    a, b = DENSE[kind][random.integers(len(DENSE[kind]))]
    step = 32 * group if kind == "i8" else 16 * group
    n = int(random.choice([64, 128, 256] if weight_stationary else numpy.arange(step, 257, step)))
    swizzles = [s for s in SWIZZLES if s != "128_32"]
    case = Case(kind, a, b, m, n, group, weight_stationary)
    case.a_swizzle, case.b_swizzle = (str(random.choice(list(SWIZZLES))) for _ in range(2))
    case.d = "s32" if kind == "i8" else "f32"
    if FORMATS[a].bits >= 8 and random.integers(2):
        case.a_major, case.a_swizzle = "mn", "128_32" if kind == "tf32" else str(random.choice(swizzles))
    if FORMATS[b].bits >= 8 and random.integers(2):
        case.b_major, case.b_swizzle = "mn", "128_32" if kind == "tf32" else str(random.choice(swizzles))
    # the tile along M or N must fill the swizzled row
    for side, extent, name in (("a", m // group, a), ("b", n // group, b)):
        if (
            getattr(case, f"{side}_major") == "mn"
            and extent * FORMATS[name].bits // 8 % SWIZZLES[getattr(case, f"{side}_swizzle")][1]
        ):
            setattr(case, f"{side}_major", "k")
    case.accumulate = bool(random.integers(4))
    case.masked = not weight_stationary and not random.integers(3)
    if kind != "i8":
        case.negate_a, case.negate_b = bool(random.integers(2)), bool(random.integers(2))
    if kind in ("f16", "tf32") and not weight_stationary and not random.integers(3):
        case.scale_d = int(random.integers(1, 5))
    if layout == "F":
        case.lane = 16 * int(random.integers(2))
    if not random.integers(3) and (m == 128 or m == 256 or not weight_stationary):
        case.a_in_tmem, case.a_major = True, "k"
        case.ashift = layout in "AD" and not random.integers(2)
    if kind == "f16" and a == b == "f16" and not random.integers(3):
        case.d = "f16"
    return case


@pytest.mark.parametrize("attempt", range(4))
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", DENSE)
def test_dense(kind: str, layout: str, attempt: int) -> None:
    random = random_of(f"dense {kind} {layout} {attempt}")
    case = random_case(random, kind, layout)
    run_case(case, random, int(random.integers(1000)))


@pytest.mark.parametrize("attempt", range(4))
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("kind, blocks, scale_type", [
    ("mxf8f6f4", 1, "ue8m0"), ("mxf4", 2, "ue8m0"), ("mxf4nvf4", 2, "ue8m0"), ("mxf4nvf4", 4, "ue8m0"),
    ("mxf4nvf4", 4, "ue4m3"),
])  # fmt: skip
def test_block_scaled(kind: str, blocks: int, scale_type: str, group: int, attempt: int) -> None:
    random = random_of(f"scaled {kind} {blocks} {scale_type} {group} {attempt}")
    a, b = DENSE["f8f6f4"][random.integers(25)] if kind == "mxf8f6f4" else ("packed", "packed")
    n = int(random.choice(numpy.arange(8 * group, 257, 8 * group)))
    case = Case(kind, a, b, 128 * group, n, group, blocks=blocks, scale_type=scale_type)
    case.a_swizzle, case.b_swizzle = (str(random.choice(list(SWIZZLES))) for _ in range(2))
    case.accumulate = bool(random.integers(4))
    case.negate_a, case.negate_b = bool(random.integers(2)), bool(random.integers(2))
    case.a_in_tmem = not random.integers(3)
    run_case(case, random, int(random.integers(1000)))


# ---- kind::mxf4nvf4, bit for bit -------------------------------------------------------------------------------------


def truncated(value: Fraction, unit: Fraction) -> Fraction:
    return unit * (abs(value) // unit) * (1 if value >= 0 else -1)


def exponent_of(x: Fraction) -> int:
    """floor(log2 |x|)"""
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if abs(x) >= Fraction(2) ** e else e - 1


def to_f32_toward_zero(x: Fraction) -> numpy.float32:
    if x == 0:
        return numpy.float32(0)
    unit = Fraction(2) ** (max(exponent_of(abs(x)), -126) - 23)
    return numpy.float32(float(truncated(x, unit)))


def block_scaled_element(a, b, sfa, sfb, c: float) -> numpy.float32:
    """Four groups of 16 summed exactly and scaled; aligned with C to the largest exponent, cut at 35 bits."""
    terms = []  # value, exponent by which it is aligned: that of the scales, not normalised
    for g in range(4):
        dot = sum(Fraction(x) * Fraction(y) for x, y in zip(a[16 * g : 16 * g + 16], b[16 * g : 16 * g + 16]))
        if sfa[g] == 0 or sfb[g] == 0:
            continue
        exponents = [max(s >> 3, 1) - 7 for s in (int(sfa[g]), int(sfb[g]))]
        scale = Fraction(minifloat(int(sfa[g]), 4, 3, 7)) * Fraction(minifloat(int(sfb[g]), 4, 3, 7))
        terms.append((dot * scale, sum(exponents)))
    if c:
        terms.append((Fraction(float(c)), max(exponent_of(abs(Fraction(float(c)))), -126)))
    if not terms:
        return numpy.float32(0)
    unit = Fraction(2) ** (max(e for _, e in terms) - 35)
    return to_f32_toward_zero(sum(truncated(v, unit) for v, _ in terms))


def test_block_scaled_bits() -> None:
    random = random_of("block scaled bits")
    n, values = 64, [minifloat(c, 2, 1, 1) for c in range(16)]
    a_codes, b_codes = (random.integers(0, 16, (rows, 64), dtype=numpy.uint32) for rows in (128, n))
    sfa, sfb = (random.integers(0, 0x7F, (rows, 4)).astype(numpy.uint8) for rows in (128, n))
    c = random.standard_normal((128, n)) * 2.0 ** random.integers(-30, 30, (128, n))
    c = c.astype(numpy.float32)
    shared = numpy.full(IMAGE, POISON & 255, numpy.uint8)
    image = numpy.full((LANES, TENSOR_COLUMNS), POISON, numpy.uint32)
    place_k_major(shared, A_AT, row_bytes(a_codes, "packed"), "128", 16, 1024)
    place_k_major(shared, B_AT, row_bytes(b_codes, "packed"), "128", 16, 1024)
    image[:, :n] = c.view(numpy.uint32)
    put_scales(image, SFA_COLUMN, sfa, 0)
    put_scales(image, SFB_COLUMN, sfb, 0)
    # the constants that compiled kernels hold: 128 x 64, and a 128-byte swizzle
    body = descriptor("%d0", 0x4000404000010000, A_AT) + descriptor("%d1", 0x4000404000000000, B_AT)
    body += f"""
  mov.u32 %t1, 0x08100480;
  tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X [%taddr], %d0, %d1, %t1,
    [%taddr + {SFA_COLUMN}], [%taddr + {SFB_COLUMN}], 1;"""
    after = run_tensor_core(body, shared, image, seed=int(random.integers(100)))[0, :, :n].view(numpy.float32)
    a, b = ([[values[x] for x in row] for row in codes] for codes in (a_codes, b_codes))
    for i, j in zip(random.integers(0, 128, 300), random.integers(0, n, 300)):
        expected = block_scaled_element(a[i], b[j], sfa[i], sfb[j], c[i, j])
        assert after[i, j] == expected, (i, j, after[i, j], expected)
