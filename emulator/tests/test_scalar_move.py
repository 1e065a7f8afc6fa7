"""mov, packing and unpacking, special registers, addresses: cvta and isspacep."""

from __future__ import annotations

import numpy
import pytest
from scalar import Emulator, EmulatorError, Op, check, integers, random_of, rejected

COUNT = 512
HEADER = ".version 9.0\n.target sm_100a\n.address_size 64\n"
SHARED_WINDOW = 1 << 56  # where generic addresses of shared memory begin


def test_mov() -> None:
    random = random_of("mov")
    ops = [
        Op(f"mov.{t} {{d}}, {{a}}", (int(t[1:]),) * 2, lambda a: a)
        for t in ("b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64")
    ]
    ops += [
        Op("mov.b16 {d}, -2", (16, 16), lambda a: 0xFFFE),
        Op("mov.u32 {d}, 0x80000001", (32, 32), lambda a: 0x80000001),
        Op("mov.f32 {d}, 0f3FC00000", (32, 32), lambda a: 0x3FC00000),
        Op("mov.f32 {d}, 0.1", (32, 32), lambda a: 0x3DCCCCCD),
        Op("mov.f64 {d}, -2.5", (64, 64), lambda a: 0xC004000000000000),
        Op("mov.b64 {d}, 0xfedcba9876543210", (64, 64), lambda a: 0xFEDCBA9876543210),
        Op("mov.u32 {d}, WARP_SZ", (32, 32), lambda a: 32),
    ]
    check(ops, [integers(random, COUNT, 64) for _ in range(3)], random)


def test_packing() -> None:
    random = random_of("packing")
    ops = [
        Op("mov.b32 {d}, {{{a}, {b}}}", (32, 16, 16), lambda a, b: a | b << 16),
        Op("mov.b64 {d}, {{{a}, {b}}}", (64, 32, 32), lambda a, b: a | b << 32),
        Op("mov.b16 {d}, {{{a}, {b}}}", (16, 8, 8), lambda a, b: a | b << 8),
        Op("mov.b32 {d}, {{{a}, {b}, {c}, {a}}}", (32, 8, 8, 8), lambda a, b, c: a | b << 8 | c << 16 | a << 24),
        Op("mov.b64 {d}, {{{a}, {b}, {c}, {a}}}", (64, 16, 16, 16), lambda a, b, c: a | b << 16 | c << 32 | a << 48),
        Op("mov.b64 {d}, {{{a}, 7}}", (64, 32), lambda a: a | 7 << 32),
        Op("mov.b32 {{{d}, %u0}}, {a}", (16, 32), lambda a: a),
        Op("mov.b32 {{_, {d}}}, {a}", (16, 32), lambda a: a >> 16),
        Op("mov.b64 {{{d}, _}}, {a}", (32, 64), lambda a: a),
        Op("mov.b64 {{%s0, {d}}}, {a}", (32, 64), lambda a: a >> 32),
        Op("mov.b64 {{%u0, %u1, {d}, _}}, {a}", (16, 64), lambda a: a >> 32),
        Op("mov.b32 {{%b5, %b6, %b7, {d}}}, {a}", (8, 32), lambda a: a >> 24),
        Op("mov.b16 {{_, {d}}}, {a}", (8, 16), lambda a: a >> 8),
        Op("mov.b128 %q0, {{{a}, {b}}}; mov.b128 {{_, {d}}}, %q0", (64, 64, 64), lambda a, b: b),
        Op("mov.b128 %q0, {{{a}, {b}}}; mov.b128 %q1, %q0; mov.b128 {{{d}, _}}, %q1", (64, 64, 64), lambda a, b: a),
        Op(
            "mov.b128 %q0, {{{a}, {b}, {c}, {a}}}; mov.b128 {{%s0, %s1, {d}, %s2}}, %q0",
            (32, 32, 32, 32),
            lambda a, b, c: c,
        ),
    ]
    check(ops, [integers(random, COUNT, 64) for _ in range(3)], random)


@pytest.mark.parametrize("words", [1, 31, 32, 45])
def test_special_registers(words: int) -> None:
    """Those of a thread, with odd blocks; clocks never go back."""
    registers = {
        "%tid.x": lambda t: t[0],
        "%tid.y": lambda t: t[1],
        "%ntid.x": lambda t: words,
        "%ntid.y": lambda t: 3,
        "%ctaid.y": lambda t: 1,
        "%laneid": lambda t: (t[1] * words + t[0]) % 32,
        "%warpid": lambda t: (t[1] * words + t[0]) // 32,
        "%lanemask_lt": lambda t: (1 << (t[1] * words + t[0]) % 32) - 1,
        "%lanemask_ge": lambda t: 0xFFFFFFFF & ~((1 << (t[1] * words + t[0]) % 32) - 1),
    }
    moves = "\n".join(f"mov.u32 %r, {name}; st.global.b32 [%d+{4 * k}], %r;" for k, name in enumerate(registers))
    last = 4 * len(registers)
    ptx = f"""{HEADER}
.visible .entry run(.param .u64 out) {{
  .reg .b32 %r, %n, %x, %y; .reg .b64 %d, %e, %c<4>; .reg .pred %p;
  mov.u32 %r, %ctaid.y; setp.ne.u32 %p, %r, 1; @%p ret;
  mov.u32 %n, %ntid.x; mov.u32 %x, %tid.x; mov.u32 %y, %tid.y;
  mad.lo.u32 %n, %n, %y, %x;
  mul.wide.u32 %e, %n, {last + 4};
  ld.param.u64 %d, [out];
  add.u64 %d, %d, %e;
  {moves}
  mov.u64 %c0, %clock64; mov.u64 %c1, %globaltimer; mov.u64 %c2, %clock64;
  setp.ge.u64 %p, %c2, %c0; selp.u32 %r, 1, 0, %p; st.global.b32 [%d+{last}], %r;
  ret;
}}"""
    emulator = Emulator("sm_100")
    out = emulator.empty((3, words, len(registers) + 1), numpy.uint32)
    emulator.launch(emulator.load(ptx)["run"], grid=(1, 2), block=(words, 3), args=[out])
    got = out.numpy()
    for y in range(3):
        for x in range(words):
            assert list(got[y, x]) == [f((x, y)) for f in registers.values()] + [1]


SPACES = ("const", "global", "local", "shared", "shared::cta", "shared::cluster", "param", "param::entry")
INSIDE = {
    "global": {"global"},
    "shared": {"shared", "shared::cta", "shared::cluster"},
    "local": {"local"},
    "const": {"const"},
    "param": {"global", "param", "param::entry"},
}


@pytest.mark.parametrize("space", INSIDE)
def test_addresses(space: str) -> None:
    """A variable of each space by its generic address, and back; isspacep of each space."""
    tests = "\n".join(
        f"isspacep.{s} %p, %g; selp.u32 %r, 1, 0, %p; st.global.u32 [%d+{4 * k}], %r;" for k, s in enumerate(SPACES)
    )
    at = 4 * len(SPACES)
    variable = {"local": "cell", "shared": "cell", "global": "word", "const": "fixed", "param": "given"}[space]
    take = f"cvta.{space}.u64 %g, {variable}+4;"
    store = "" if space in ("const", "param") else f"mov.u32 %r, 77; st.{space}.u32 [{variable}+4], %r;"
    names = {"local": ".local .align 8 .b32 cell[4];", "shared": ".shared .align 8 .b32 cell[4];"}.get(space, "")
    ptx = f"""{HEADER}
.global .align 8 .b32 word[4] = {{1, 77, 3, 4}};
.const .align 8 .b32 fixed[4] = {{1, 77, 3, 4}};
.visible .entry run(.param .u64 out, .param .align 8 .b8 given[16]) {{
  .reg .b32 %r; .reg .b64 %d, %g, %a, %b; .reg .pred %p;
  {names}
  ld.param.u64 %d, [out];
  {store}
  {take}
  {tests}
  ld.u32 %r, [%g]; st.global.u32 [%d+{at}], %r;
  cvta.to.{space}.u64 %a, %g;
  ld.{space}.u32 %r, [%a]; st.global.u32 [%d+{at + 4}], %r;
  cvta.{space}.u64 %b, %a; setp.eq.u64 %p, %b, %g; selp.u32 %r, 1, 0, %p; st.global.u32 [%d+{at + 8}], %r;
  ret;
}}"""
    emulator = Emulator("sm_100")
    out = emulator.empty(len(SPACES) + 3, numpy.uint32)
    given = numpy.array([1, 77, 3, 4], numpy.uint32).tobytes()
    emulator.launch(emulator.load(ptx)["run"], block=1, args=[out, given])
    expected = [int(s in INSIDE[space]) for s in SPACES] + [77, 77, 1]
    assert list(out.numpy()) == expected


def test_shared_in_a_cluster() -> None:
    """Another CTA's shared memory is in .shared::cluster and not in .shared::cta."""
    ptx = f"""{HEADER}
.visible .entry run(.param .u64 out) {{
  .reg .b32 %r, %x; .reg .b64 %d, %g, %o, %a; .reg .pred %p;
  .shared .align 8 .b32 cell[4];
  ld.param.u64 %d, [out];
  mov.u32 %x, %cluster_ctarank;
  mul.wide.u32 %o, %x, 16; add.u64 %d, %d, %o;
  cvta.shared.u64 %g, cell;
  xor.b32 %x, %x, 1;
  isspacep.shared %p, %g; selp.u32 %r, 1, 0, %p; st.global.u32 [%d], %r;
  mapa.u64 %a, %g, %x;
  isspacep.shared::cta %p, %a; selp.u32 %r, 1, 0, %p; st.global.u32 [%d+4], %r;
  isspacep.shared::cluster %p, %a; selp.u32 %r, 1, 0, %p; st.global.u32 [%d+8], %r;
  setp.ne.u64 %p, %a, %g; selp.u32 %r, 1, 0, %p; st.global.u32 [%d+12], %r;
  ret;
}}"""
    emulator = Emulator("sm_100")
    out = emulator.empty((2, 4), numpy.uint32)
    emulator.launch(emulator.load(ptx)["run"], grid=2, block=1, cluster=2, args=[out])
    assert out.numpy().tolist() == [[1, 0, 1, 1]] * 2


PLAIN = HEADER.replace("sm_100a", "sm_80")  # for every device
TO_SPACE = """{header}
.visible .entry run(.param .u64 generic) {{
  .reg .b32 %r; .reg .b64 %d, %a;
  ld.param.u64 %d, [generic];
  cvta.to.{space}.u64 %a, %d;
  ld.{space}.u32 %r, [%a];
  ret;
}}"""


@pytest.mark.parametrize("device", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("space", ["shared", "local"])
def test_a_wrong_space_faults_at_the_access(space: str, device: str) -> None:
    """The address is one of global memory."""
    emulator = Emulator(device)
    kernel = emulator.load(TO_SPACE.format(header=PLAIN, space=space))["run"]
    with pytest.raises(EmulatorError, match=rf"ld\.{space}"):
        emulator.launch(kernel, block=1, args=[0x7F12_3456_0000])


@pytest.mark.parametrize(
    ("device", "given", "expected"),
    [
        ("sm_90", 0, 0),
        ("sm_90", 0x7F12_3456_0500, 0x3456_0500),
        ("sm_100", 0, 0),
        ("sm_120", 2**64 - 1, 2**32 - 1),
        ("sm_80", 0, 2**64 - SHARED_WINDOW),
    ],
)
def test_cvta_to_shared_outside_the_window(device: str, given: int, expected: int) -> None:
    """As in the machine code of ptxas 13.0: sm_90 and later keep the low 32 bits, sm_80 subtracts the window's base."""
    ptx = f"""{PLAIN}
.visible .entry run(.param .u64 out, .param .u64 generic) {{
  .reg .b64 %d, %a;
  ld.param.u64 %d, [out]; ld.param.u64 %a, [generic];
  cvta.to.shared.u64 %a, %a;
  st.global.u64 [%d], %a;
  ret;
}}"""
    emulator = Emulator(device)
    out = emulator.empty(1, numpy.uint64)
    emulator.launch(emulator.load(ptx)["run"], block=1, args=[out, given])
    assert int(out.numpy()[0]) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mov.b64 {%r1, %r2, %r3}, %d1;", "3 elements"),
        ("mov.f32 {%h1, %h2}, %r1;", "packing"),
        ("cvta.u64 %d1, %d2;", "space"),
        ("cvta.shared.u32 %r1, %r2;", "64 bits"),
        ("isspacep %p1, %d1;", "space"),
        ("mov.b8 %b1, %b2;", "mov"),
        ("mov.b32 %d1, %r1;", "."),
    ],
)
def test_rejected(text: str, words: str) -> None:
    rejected(text, words)
