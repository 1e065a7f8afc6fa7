"""scalar/formats.c and tensor/arithmetic*.c, built alone, against exact fractions, numpy and torch."""

import ctypes
import math
import os
import random
import struct
import zlib
from collections.abc import Callable
from fractions import Fraction

import numpy
import pytest
import torch
from arithmetic import (
    D_F16,
    D_F32,
    D_S32,
    ELEMENTS,
    F32,
    FORMATS,
    INF,
    NAN,
    RELU,
    RM,
    RN,
    RNA,
    RP,
    RZ,
    SATFINITE,
    SM80_MMA,
    SM90_MMA,
    SM90_WGMMA,
    SM100,
    UE4M3,
    UE8M0,
    UNSCALED,
    TensorOp,
    build,
    output,
)

SMALL = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")


def random_of(name: str) -> random.Random:
    """Fresh every run; EMULATE_TEST_SEED, printed in pytest's header, repeats it."""
    return random.Random(f"{os.environ.get('EMULATE_TEST_SEED', '0')} {zlib.crc32(name.encode())}")


@pytest.fixture(scope="module")
def c(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build(tmp_path_factory.mktemp("arithmetic"))


def f32(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def same(x: float, y: float) -> bool:
    return (x != x and y != y) or (x == y and math.copysign(1, x) == math.copysign(1, y))


# --- formats ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["f16", "bf16", *SMALL])
def test_every_pattern_decodes_to_the_definition(c: ctypes.CDLL, name: str) -> None:
    form = FORMATS[name]
    for bits in range(2 << form.width):
        value = form.decode(bits)
        expected = -0.0 if value == 0 and bits else float(value)
        assert same(getattr(c, f"{name}_to_float")(bits), expected), f"{name} {bits:#x}"


def test_decoders_agree_with_numpy_and_torch(c: ctypes.CDLL) -> None:
    halves = numpy.arange(65536, dtype=numpy.uint16)
    bytes_ = torch.arange(256, dtype=torch.uint8)
    others = {
        "f16": halves.view(numpy.float16).astype(numpy.float32),
        "bf16": torch.from_numpy(halves.view(numpy.int16)).view(torch.bfloat16).float().numpy(),
        "e4m3": bytes_.view(torch.float8_e4m3fn).float().numpy(),
        "e5m2": bytes_.view(torch.float8_e5m2).float().numpy(),
        "ue8m0": bytes_.view(torch.float8_e8m0fnu).float().numpy(),
        "ue4m3": bytes_.view(torch.float8_e4m3fn).float().abs().numpy(),
    }
    for name, values in others.items():
        for bits, value in enumerate(values.tolist()):
            assert same(getattr(c, f"{name}_to_float")(bits), value), f"{name} {bits:#x}"
    for bits in range(256):
        expected = 0x7FFF if bits == 255 else FORMATS["bf16"].encode(Fraction(c.ue8m0_to_float(bits)), RN)
        assert c.ue8m0_to_bf16(bits) == expected


def test_e2m1_is_the_table(c: ctypes.CDLL) -> None:
    table = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert [c.e2m1_to_float(code) for code in range(8)] == table
    assert [c.e2m1_to_float(code | 0xF8) for code in range(8)] == [-x for x in table]
    ties = {0.25: 0, 0.75: 2, 1.25: 2, 1.75: 4, 2.5: 4, 3.5: 6, 5.0: 6}
    for x, code in ties.items():
        assert c.e2m1_from_float(x, RN, SATFINITE) == code
    assert c.e2m1_from_float(NAN, RN, SATFINITE) == 7
    assert c.e2m1_from_float(-INF, RN, SATFINITE) == 15


def interesting(name: str, draw: random.Random) -> list[float]:
    """All values of a small format (some of a large one), all ties, their fp32 neighbours, and the far ends."""
    form = FORMATS[name]
    codes = range(form.largest) if form.width < 8 else [draw.randrange(form.largest) for _ in range(1500)]
    points: set[float] = set()
    for code in [*codes, 0, 1, form.largest - 1]:
        below, above = form.decode(code), form.decode(code + 1) if code < form.largest - 1 else form.decode(code)
        for x in (below, (below + above) / 2, (3 * below + above) / 4):
            points.add(float(numpy.float32(float(x))))
    points |= {float(form.decode(form.largest)), float(form.decode(form.largest)) * 1.0625}
    for exponent in (-149, -140, -127, -126, -30, -18, -12, -9, 5, 8, 9, 15, 16, 17, 100, 127):
        points.add(math.ldexp(1.0, exponent))
    points |= {f32(draw.getrandbits(31) % 0x7F800000) for _ in range(500)} | {f32(0x7F7FFFFF)}
    for x in list(points):
        if x < 3e38:
            points |= {
                float(numpy.nextafter(numpy.float32(x), numpy.float32(0))),
                float(numpy.nextafter(numpy.float32(x), numpy.float32(INF))),
            }
    return [x for x in points if x <= f32(0x7F7FFFFF)]  # a larger double would be passed as infinity


@pytest.mark.parametrize("name", FORMATS)
def test_rounding_of_every_mode(c: ctypes.CDLL, name: str) -> None:
    form, encode = FORMATS[name], getattr(c, f"{name}_from_float")
    shift = 13 if name == "tf32" else 0
    draw = random_of(name)
    for x in interesting(name, draw):
        rounding, flags = draw.choice((RN, RN, RZ, RM, RP, RNA)), draw.randrange(4)
        for value in (x, -x):
            for mode, flag in ((RN, SATFINITE), (rounding, flags)):
                expected = form.encode(Fraction(value), mode, flag, negative_zero=math.copysign(1, value) < 0)
                assert encode(value, mode, flag) >> shift == expected, f"{name} of {value.hex()}, {mode}, {flag}"


@pytest.mark.parametrize("name", FORMATS)
def test_nan_infinity_and_zero(c: ctypes.CDLL, name: str) -> None:
    form, encode = FORMATS[name], getattr(c, f"{name}_from_float")
    shift, nan = (13, 0x7FFFFFFF) if name == "tf32" else (0, form.nan)
    for flags in range(4):
        for x in (NAN, -NAN, f32(0xFFC12345), f32(0x7F800001)):
            assert encode(x, RN, flags) == nan
        for rounding in (RN, RZ, RM, RP):
            for x in (INF, -INF):
                assert encode(x, rounding, flags) >> shift == form.encode(x, rounding, flags)
            assert encode(0.0, rounding, flags) == 0
            assert encode(-0.0, rounding, flags) >> shift == (0 if flags & RELU else 1 << form.width)


def test_half_conversions_agree_with_numpy_and_torch(c: ctypes.CDLL) -> None:
    draw = random_of("half conversions")
    patterns = [draw.getrandbits(32) for _ in range(20000)]
    patterns += [(h << 13) + (112 << 23) + d & 0xFFFFFFFF for h in range(0, 0x7C00, 7) for d in (0xFFF, 0x1000, 0x1001)]
    floats = numpy.array(patterns, dtype=numpy.uint32).view(numpy.float32)
    with numpy.errstate(over="ignore"):
        halves = floats.astype(numpy.float16)
    brains = torch.from_numpy(floats.copy()).bfloat16().view(torch.int16).tolist()
    for x, half, brain in zip(floats.tolist(), halves.view(numpy.uint16).tolist(), brains):
        if x == x:
            assert c.f16_from_float(x, RN, 0) == half
            assert c.bf16_from_float(x, RN, 0) == brain & 0xFFFF
    for _ in range(20000):  # doubles: numpy rounds once from 64 bits
        x = math.ldexp(draw.uniform(-2, 2), draw.randrange(-30, 18))
        with numpy.errstate(over="ignore"):
            assert c.f16_from_double(x, RN, 0) == int(numpy.float64(x).astype(numpy.float16).view(numpy.uint16))
            assert same(c.f32_from_double(x * 2.0**-120, RN), float(numpy.float32(x * 2.0**-120)))
    tie_and_a_bit = 1 + 2.0**-11 + 2.0**-40  # would round twice through fp32
    assert c.f16_from_double(tie_and_a_bit, RN, 0) == 0x3C01
    for name in ("e4m3", "e5m2"):
        kind = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[name]
        inside = torch.from_numpy(floats.copy())
        inside = inside[inside.abs() < 440]
        expected = inside.to(kind).view(torch.uint8).tolist()
        assert [getattr(c, f"{name}_from_float")(x, RN, SATFINITE) for x in inside.tolist()] == expected


def test_ue8m0_rounds_to_powers_of_two(c: ctypes.CDLL) -> None:
    draw = random_of("ue8m0")
    points = [f32(draw.getrandbits(31) % 0x7F800000) for _ in range(5000)]
    points += [f32(bits << 20) for bits in range(0x7F8)] + [f32(0x00400001), f32(0x003FFFFF), f32(0x7F7FFFFF)]
    for x in points:
        for value in (x, -x):
            for rounding in (RZ, RP):
                exact = Fraction(abs(value))
                power = max(exact.numerator.bit_length() - exact.denominator.bit_length(), -127) if exact else -127
                while power > -127 and Fraction(2) ** power > exact:
                    power -= 1
                if rounding == RP and Fraction(2) ** power < exact:
                    power += 1
                assert c.ue8m0_from_float(value, rounding, SATFINITE) == min(power + 127, 254), value.hex()
                assert c.ue8m0_from_float(value, rounding, 0) == power + 127, value.hex()
    for rounding in (RZ, RP):
        assert c.ue8m0_from_float(NAN, rounding, SATFINITE) == 255
        assert c.ue8m0_from_float(INF, rounding, SATFINITE) == 254
        assert c.ue8m0_from_float(INF, rounding, 0) == 255


def test_integers_round_once(c: ctypes.CDLL) -> None:
    draw = random_of("integers")
    symbols = {"f16": FORMATS["f16"], "bf16": FORMATS["bf16"], "f32": F32}
    for _ in range(5000):
        x = draw.getrandbits(64) >> draw.randrange(64)
        for name, form in symbols.items():
            address = ctypes.addressof(ctypes.c_char.in_dll(c, f"format_{name}"))
            rounding = draw.choice((RN, RZ, RM, RP))
            assert c.format_from_uint64(address, x, rounding, 0) == form.encode(Fraction(x), rounding), x
            signed = x - (1 << 64 if x >> 63 else 0)
            assert c.format_from_int64(address, signed, rounding, 0) == form.encode(Fraction(signed), rounding), signed


# --- tensor core -----------------------------------------------------------------------------------------------------


def random_float(draw: random.Random, exponent: int, mantissa: int, mode: int, center: int) -> int:
    """A pattern: anything; exponents close together; zeros; subnormals; few bits. Now and then a special."""
    top = (1 << exponent) - 1
    field = draw.randrange(top) if mode in (0, 3) else min(center % top + draw.randrange(4), top - 1)
    fraction = draw.getrandbits(mantissa)
    if mode == 2:
        field = draw.choice((0, 0, 1, field))
    if mode == 3 and draw.random() < 0.5:
        field = fraction = 0
    if mode == 4:
        field, fraction = min(top // 2 + draw.randrange(3), top), fraction >> (mantissa - 2) << (mantissa - 2)
    if draw.random() < 0.0005:
        field = top
    return draw.getrandbits(1) << (exponent + mantissa) | field << mantissa | fraction


def random_row(draw: random.Random, kind: str, k: int) -> bytes:
    mode, center = draw.randrange(5), draw.getrandbits(8)
    if kind in ("f16", "bf16"):
        sizes = (5, 10) if kind == "f16" else (8, 7)
        return b"".join(struct.pack("<H", random_float(draw, *sizes, mode, center)) for _ in range(k))
    if kind == "tf32":
        return b"".join(struct.pack("<I", random_float(draw, 8, 23, mode, center)) for _ in range(k))
    if kind in ("e4m3", "e5m2"):
        sizes = (4, 3) if kind == "e4m3" else (5, 2)
        return bytes(random_float(draw, *sizes, mode, center) for _ in range(k))
    row = draw.randbytes(k // 2 if kind == "e2m1_packed" else k)
    return bytes(x if mode != 3 or draw.random() < 0.5 else 0 for x in row)


def random_scales(draw: random.Random, kind: int, count: int) -> bytes:
    mode, center = draw.randrange(3), draw.getrandbits(8)
    scales = draw.randbytes(count)
    if mode == 1:
        scales = bytes(center + x % 8 & 255 for x in scales)
    if mode == 2:
        scales = bytes((0x30 if kind == UE4M3 else 120) + x % 16 for x in scales)
    return bytes(x & 0xFE if (x & 127) == 127 and draw.random() < 0.98 else x for x in scales)


def run(function: Callable[..., None], op: TensorOp, row_bytes: tuple[int, int], data: dict[str, bytes]) -> bytes:
    """D in rows of n cells of 4 bytes; what is not written stays 0xA5."""
    d = ctypes.create_string_buffer(b"\xa5" * (op.m * op.n * 4), op.m * op.n * 4)
    keep = {name: ctypes.create_string_buffer(part, max(len(part), 1)) for name, part in data.items()}
    for name, buffer in keep.items():
        setattr(op, name, ctypes.addressof(buffer))
    op.d = ctypes.addressof(d)
    op.a_stride, op.b_stride = row_bytes
    op.sfa_stride = op.sfb_stride = op.blocks
    op.c_stride = op.d_stride = op.n * 4
    op.c_step = op.d_step = 4
    function(ctypes.byref(op))
    return d.raw


CASES = [
    *((arch, "f16", "f16", d, k) for arch in range(4) for d in (D_F32, D_F16) for k in (8, 16)),
    *((arch, "bf16", "bf16", D_F32, k) for arch in range(4) for k in (8, 16)),
    *((arch, "tf32", "tf32", D_F32, k) for arch in range(4) for k in (4, 8)),
    *((arch, "e4m3", "e5m2", d, k) for arch in range(4) for d in (D_F32, D_F16) for k in (16, 32)),
    *((arch, "e4m3", "e4m3", d, 32) for arch in range(4) for d in (D_F32, D_F16)),
    *((SM100, a, b, d, 32) for a, b in (("e2m1", "e4m3"), ("e2m3", "e3m2")) for d in (D_F32, D_F16)),
    (SM100, "e2m1_shifted", "e2m1_shifted", D_F32, 32),
    *((arch, a, b, D_S32, 32) for arch in range(4) for a, b in (("s8", "s8"), ("u8", "s8"), ("u8", "u8"))),
    *((SM100, a, b, D_F32, 32, UE8M0, 1) for a in ("e4m3", "e5m2", "e2m1") for b in ("e4m3", "e2m3", "e3m2")),
    *((SM100, "e2m1_packed", "e2m1_packed", D_F32, 64, UE4M3, blocks) for blocks in (2, 4)),
    *((SM100, "e2m1_packed", "e2m1_packed", D_F32, 64, UE8M0, blocks) for blocks in (2, 4)),
]


def make(
    draw: random.Random,
    m: int,
    n: int,
    arch: int,
    a: str,
    b: str,
    d: int,
    k: int,
    scale: int = UNSCALED,
    blocks: int = 0,
) -> tuple[TensorOp, tuple[int, int], dict[str, bytes]]:
    op = TensorOp(architecture=arch, m=m, n=n, k=k, a_type=ELEMENTS.index(a), b_type=ELEMENTS.index(b), d_type=d)
    op.scale_type, op.blocks = scale, blocks
    op.negate_a, op.negate_b = draw.random() < 0.2, draw.random() < 0.2
    op.saturate = d == D_S32 and draw.random() < 0.5
    if arch == SM100 and a in ("f16", "bf16", "tf32") and draw.random() < 0.2:
        op.scale_input_d = draw.randrange(16)
    rows = {"a": [random_row(draw, a, k) for _ in range(m)], "b": [random_row(draw, b, k) for _ in range(n)]}
    data = {name: b"".join(part) for name, part in rows.items()}
    mode, center = draw.randrange(5), draw.getrandbits(8)
    if mode == 1:
        center = 120 + center % 16
    if d == D_S32:
        cells = [struct.pack("<I", draw.getrandbits(32) | draw.choice((0, 0x7FFF0000))) for _ in range(m * n)]
    elif d == D_F16:
        cells = [struct.pack("<HH", random_float(draw, 5, 10, mode, center), 0xFFFF) for _ in range(m * n)]
    else:
        cells = [struct.pack("<I", random_float(draw, 8, 23, mode, center)) for _ in range(m * n)]
    data["c"] = b"".join(cells)
    data["sfa"], data["sfb"] = random_scales(draw, scale, m * blocks), random_scales(draw, scale, n * blocks)
    return op, (len(rows["a"][0]), len(rows["b"][0])), data


def describe(op: TensorOp, m: int, n: int) -> str:
    fields = {name: getattr(op, name) for name, kind in TensorOp._fields_ if kind in (ctypes.c_int, ctypes.c_bool)}
    return f"D[{m}][{n}] of {fields}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_every_output_follows_the_rule(c: ctypes.CDLL, case: tuple) -> None:
    draw = random_of(f"rule {case}")
    for _ in range(4):
        op, sizes, data = make(draw, 9, 10, *case)
        assert c.tensor_rejection(ctypes.byref(op)) is None
        d = run(c.tensor_multiply, op, sizes, data)
        for m in range(op.m):
            for n in range(op.n):
                at = 4 * (m * op.n + n)
                width = 2 if op.d_type == D_F16 else 4
                expected = output(
                    op,
                    data["a"][m * sizes[0] : (m + 1) * sizes[0]],
                    data["b"][n * sizes[1] : (n + 1) * sizes[1]],
                    data["sfa"][m * op.blocks : (m + 1) * op.blocks],
                    data["sfb"][n * op.blocks : (n + 1) * op.blocks],
                    int.from_bytes(data["c"][at : at + width], "little"),
                )
                got = int.from_bytes(d[at : at + width], "little")
                assert got == expected, f"{describe(op, m, n)}: {got:#x}, not {expected:#x}"
                assert d[at + width : at + 4] == b"\xa5" * (4 - width), "the upper half of a cell was written"


@pytest.mark.parametrize("rule", [0, 1], ids=["hardware", "fp64"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_eight_lanes_give_the_bits_of_one(c: ctypes.CDLL, case: tuple, rule: int) -> None:
    draw = random_of(f"lanes {case} {rule}")
    for _ in range(4):
        op, sizes, data = make(draw, draw.randrange(1, 34), draw.randrange(1, 34), *case)
        op.rule = rule
        fast = run(c.tensor_multiply, op, sizes, data)
        slow = run(c.tensor_multiply_by_element, op, sizes, data)
        for at in range(0, len(fast), 4):
            assert fast[at : at + 4] == slow[at : at + 4], describe(op, *divmod(at // 4, op.n))


def test_fp64_rule_is_the_exact_sum_for_small_data(c: ctypes.CDLL) -> None:
    """Integers: every rule gives the same, and so does numpy."""
    draw = random_of("fp64")
    for rule in (0, 1):
        for arch in range(4):
            a = numpy.array([[draw.randrange(-16, 17) for _ in range(16)] for _ in range(16)], dtype=numpy.float16)
            b = numpy.array([[draw.randrange(-16, 17) for _ in range(16)] for _ in range(8)], dtype=numpy.float16)
            start = numpy.array([[draw.randrange(-999, 999) for _ in range(8)] for _ in range(16)], dtype=numpy.float32)
            op = TensorOp(architecture=arch, rule=rule, m=16, n=8, k=16, a_type=0, b_type=0, d_type=D_F32)
            data = {"a": a.tobytes(), "b": b.tobytes(), "c": start.tobytes(), "sfa": b"", "sfb": b""}
            d = numpy.frombuffer(run(c.tensor_multiply, op, (32, 32), data), dtype=numpy.float32).reshape(16, 8)
            assert (d == a.astype(numpy.float64) @ b.T.astype(numpy.float64) + start).all()


def dot(c: ctypes.CDLL, arch: int, kind: str, k: int, a: list[int], b: list[int], start: float) -> float:
    code = {"f16": "<H", "e4m3": "B"}[kind]
    pad = [0] * (k - len(a))
    op = TensorOp(architecture=arch, m=1, n=1, k=k, a_type=ELEMENTS.index(kind), b_type=ELEMENTS.index(kind))
    data = {"c": struct.pack("<f", start), "sfa": b"", "sfb": b""}
    for name, row in (("a", a), ("b", b)):
        data[name] = b"".join(struct.pack(code, x) for x in row + pad)
    size = k * struct.calcsize(code)
    return struct.unpack("<f", run(c.tensor_multiply, op, (size, size), data))[0]


def test_what_tells_the_architectures_apart(c: ctypes.CDLL) -> None:
    one, tiny = 0x3C00, 0x0001  # 1 and 2^-24 in fp16
    # 2^-24 * 1 beside 1: kept by 24 places, and one more is kept by 25; cancelling the 1 shows it.
    rows = [one, one, tiny], [one, 0xBC00, one]
    assert [dot(c, arch, "f16", 16, *rows, 0.0) for arch in range(4)] == [2.0**-24] * 4
    rows = [one, one, tiny], [one, 0xBC00, 0x3800]
    assert [dot(c, arch, "f16", 16, *rows, 0.0) for arch in range(4)] == [0.0, 2.0**-25, 2.0**-25, 2.0**-25]
    # sm_80 sums 8 products at a time, so a later 1 does not push the early small product out.
    rows = [tiny, *[0] * 8, one, one], [0x3400, *[0] * 8, one, 0xBC00]
    assert [dot(c, arch, "f16", 16, *rows, 0.0) for arch in range(4)] == [0.0, 0.0, 0.0, 0.0]
    rows = [one, one, *[0] * 6, tiny], [one, 0xBC00, *[0] * 6, 0x3400]
    assert [dot(c, arch, "f16", 16, *rows, 0.0) for arch in range(4)] == [2.0**-26, 0.0, 0.0, 0.0]
    # fp8: 13 places in wgmma, 25 in tcgen05; mma.sync of sm_90 adds C last, to nearest.
    e4m3_one, e4m3_tiny = 0x38, 0x01  # 1 and 2^-9
    got = [dot(c, arch, "e4m3", 32, [e4m3_one, e4m3_tiny], [e4m3_one, e4m3_tiny], 0.0) for arch in range(4)]
    assert got == [1.0, 1 + 2.0**-18, 1.0, 1 + 2.0**-18]
    three, start = 0x44, 2.0**25 + 4  # fp32 goes in steps of 4 here
    got = [dot(c, arch, "e4m3", 32, [e4m3_one], [three], start) for arch in (SM90_MMA, SM100)]
    assert got == [start + 4, start]


def test_rejections_are_clauses(c: ctypes.CDLL) -> None:
    good = {
        "architecture": SM100,
        "m": 128,
        "n": 128,
        "k": 64,
        "a_type": 9,
        "b_type": 9,
        "scale_type": UE4M3,
        "blocks": 4,
    }
    assert c.tensor_rejection(ctypes.byref(TensorOp(**good))) is None
    wrong = [
        {"k": 32},
        {"blocks": 1},
        {"blocks": 0, "scale_type": UNSCALED},
        {"architecture": SM90_WGMMA},
        {"b_type": 7},
        {"d_type": D_F16},
        {"m": 512},
        {"n": 0},
        {"saturate": True},
        {"scale_input_d": 1},
        {"a_type": 0, "b_type": 1, "k": 16, "scale_type": UNSCALED, "blocks": 0},
        {"a_type": 1, "b_type": 1, "k": 16, "scale_type": UNSCALED, "blocks": 0, "d_type": D_F16},
        {"a_type": 10, "b_type": 11, "k": 32, "scale_type": UNSCALED, "blocks": 0},
        {"a_type": 5, "b_type": 5, "k": 32, "scale_type": UNSCALED, "blocks": 0, "architecture": SM80_MMA},
    ]
    for change in wrong:
        rejection = c.tensor_rejection(ctypes.byref(TensorOp(**{**good, **change})))
        assert rejection and b" " in rejection, change
