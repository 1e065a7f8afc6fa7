"""Branches, calls with parameters of every kind, recursion, and the functions that the system defines."""

from __future__ import annotations

import ctypes
import math
import struct

import numpy
import pytest
from scalar import EmulatorError
from small_kernel import load_only, random_of, run

AT = "mul.wide.u32 %d30, %t, 4; add.u64 %d31, %a1, %d30; add.u64 %d30, %a0, %d30;\n"  # of out, of in


def per_thread(body: str, given: numpy.ndarray, variables: str = "", seed: int = 0) -> numpy.ndarray:
    """The body has the thread's input in %r0 and leaves its output in %r1."""
    text = AT + "ld.global.u32 %r0, [%d31];\n" + body + "\nst.global.u32 [%d30], %r1;"
    out, _ = run(
        text,
        [numpy.zeros(given.size, numpy.uint32), given.astype(numpy.uint32)],
        block=given.size,
        variables=variables,
        seed=seed,
    )
    return out


def call(name: str, prototype: str = "") -> str:
    return f"""{{ .param .b32 p; st.param.b32 [p], %r0; .param .b32 r;
    {prototype} call (r), {name}, (p){", proto" if prototype else ""}; ld.param.b32 %r1, [r]; }}"""


@pytest.mark.parametrize("seed", range(3))
def test_brx(seed: int) -> None:
    random = random_of(f"brx {seed}")
    count = int(random.integers(1, 9))
    order = random.integers(0, count, 2 * count)
    table = ", ".join(f"L{i}" for i in order)
    cases = "\n".join(f"L{i}: add.u32 %r1, %r1, {100 + i}; bra.uni END;" for i in range(count))
    index = random.integers(0, order.size, 64)
    body = f"mov.u32 %r1, %t;\nts: .branchtargets {table};\nbrx.idx %r0, ts;\n{cases}\nEND:"
    out = per_thread(body, index, seed=seed)
    assert list(out) == [t + 100 + int(order[i]) for t, i in enumerate(index)]
    with pytest.raises(EmulatorError, match=f"the index is {order.size}, and there are {order.size} targets"):
        per_thread(body, index * 0 + order.size)


def test_parameters_of_every_kind() -> None:
    """Scalars of each size, structures, vectors, registers and constants, in and out."""
    random = random_of("parameters")
    given = random.integers(0, 1 << 32, 32, dtype=numpy.uint32)
    functions = """
    .func (.param .align 16 .b8 out[16]) mixed (.param .b8 a, .param .b16 b, .param .align 16 .b8 s[16], .param .b64 d,
                                                .param .b32 e)
    {
      .reg .b16 h, g; .reg .b32 x<4>, y; .reg .b64 w;
      ld.param.u8 h, [a];
      ld.param.u16 g, [b];
      ld.param.v4.u32 {x0, x1, x2, x3}, [s];
      ld.param.u64 w, [d];
      ld.param.u32 y, [e];
      cvt.u32.u16 x0, h;
      cvt.u32.u16 y, g;
      add.u32 x1, x1, y;
      ld.param.u32 y, [e];
      xor.b32 x2, x2, y;
      cvt.u32.u64 y, w;
      add.u32 x3, x3, y;
      st.param.v4.b32 [out], {x0, x1, x2, x3};
    }
    .func (.reg .u32 sum, .reg .pred odd) registers (.reg .u32 a, .reg .b64 b, .reg .pred c, .reg .u16 d)
    {
      .reg .u32 low;
      cvt.u32.u64 low, b;
      add.u32 sum, a, low;
      @c add.u32 sum, sum, 1;
      cvt.u32.u16 low, d;
      add.u32 sum, sum, low;
      and.b32 low, sum, 1;
      setp.eq.u32 odd, low, 1;
      ret;
    }
    """
    body = """
    .param .b8 a; .param .b16 b; .param .align 16 .b8 s[16]; .param .b64 d; .param .align 16 .b8 out[16];
    cvt.u64.u32 %d0, %r0;
    st.param.b8 [a], %r0;
    st.param.b16 [b], %r0;
    st.param.v2.b64 [s], {%d0, %d0};
    st.param.b64 [d], %d0;
    call.uni (out), mixed, (a, b, s, d, 0x1234567);
    ld.param.v4.b32 {%r2, %r3, %r4, %r5}, [out];
    add.u32 %r1, %r2, %r3;
    xor.b32 %r1, %r1, %r4;
    add.u32 %r1, %r1, %r5;
    setp.lt.u32 %p1, %r0, 0x80000000;
    call (%r6, %p2), registers, (%r1, %d0, %p1, 7);
    mov.u32 %r1, %r6;
    @%p2 add.u32 %r1, %r1, 1000;
    """
    expected = []
    for v in map(int, given):
        r1 = (((v & 0xFF) + (v & 0xFFFF)) ^ v ^ 0x1234567) + v  # s is {v, 0, v, 0}
        total = (r1 + v + (v < 0x80000000) + 7) & 0xFFFFFFFF
        expected.append((total + (1000 if total & 1 else 0)) & 0xFFFFFFFF)
    assert list(per_thread(body, given, functions)) == expected


FUNCTIONS = "\n".join(
    f""".func (.param .b32 r) f{i} (.param .b32 a)
    {{ .reg .b32 x; ld.param.b32 x, [a]; mad.lo.u32 x, x, {i + 2}, {i * 31}; st.param.b32 [r], x; ret; }}"""
    for i in range(5)
)
PROTOTYPE = "proto: .callprototype (.param .b32 _) _ (.param .b32 _);"


@pytest.mark.parametrize("seed", range(4))
def test_calls_through_registers(seed: int) -> None:
    """Each lane may reach another function: of a table, of a register, of a list of targets."""
    random = random_of(f"indirect {seed}")
    given = random.integers(0, 1000, 64)
    table = ".global .u64 table[5] = {f0, f1, f2, f3, f4};"
    body = f"""
    rem.u32 %r2, %r0, 5;
    mul.wide.u32 %d0, %r2, 8;
    mov.u64 %d1, table;
    add.u64 %d1, %d1, %d0;
    ld.global.u64 %d2, [%d1];
    {call("%d2", PROTOTYPE)}
    mov.u32 %r3, %r1;
    mov.u64 %d2, f1;
    setp.gt.u32 %p1, %r0, 500;
    @%p1 mov.u64 %d2, f3;
    {call("%d2", "proto: .calltargets f3, f1;")}
    add.u32 %r1, %r1, %r3;
    """

    def f(i: int, x: int) -> int:
        return x * (i + 2) + i * 31

    expected = [f(v % 5, v) + f(3 if v > 500 else 1, v) for v in map(int, given)]
    assert list(per_thread(body, given, FUNCTIONS + table, seed)) == expected


def test_call_to_nowhere() -> None:
    with pytest.raises(EmulatorError, match="no function at 0x7b"):
        per_thread("mov.u64 %d2, 123;\n" + call("%d2", PROTOTYPE), numpy.arange(3), FUNCTIONS)
    two = ".func (.param .b32 r) g (.param .b32 a, .param .b32 b) { ret; }"
    with pytest.raises(EmulatorError, match="not those of the function `g`"):
        per_thread("mov.u64 %d2, g;\n" + call("%d2", PROTOTYPE), numpy.arange(3), two)
    with pytest.raises(EmulatorError, match="not those of `g`"):
        per_thread(call("g"), numpy.arange(3), two)


RECURSIVE = """
.func (.param .b32 r) ackermann (.param .b32 m, .param .b32 n);
.func (.param .b32 r) fib (.param .b32 a)
{
  .reg .b32 n, x, y; .reg .pred p;
  .local .b32 kept[2];
  ld.param.b32 n, [a];
  mov.u32 x, n;
  setp.lt.u32 p, n, 2;
  @p bra END;
  sub.u32 x, n, 1;
  { .param .b32 q; st.param.b32 [q], x; .param .b32 s; call (s), fib, (q); ld.param.b32 y, [s]; }
  st.local.b32 [kept+4], y;
  sub.u32 x, n, 2;
  { .param .b32 q; st.param.b32 [q], x; .param .b32 s; call (s), fib, (q); ld.param.b32 x, [s]; }
  ld.local.b32 y, [kept+4];
  add.u32 x, x, y;
END:
  st.param.b32 [r], x;
}
.func (.param .b32 r) is_odd (.param .b32 a);
.func (.param .b32 r) is_even (.param .b32 a)
{
  .reg .b32 n; .reg .pred zero;
  ld.param.b32 n, [a];
  setp.eq.u32 zero, n, 0;
  @zero st.param.b32 [r], 1;
  @zero ret;
  sub.u32 n, n, 1;
  { .param .b32 q; st.param.b32 [q], n; .param .b32 s; call (s), is_odd, (q); ld.param.b32 n, [s]; }
  st.param.b32 [r], n;
}
.func (.param .b32 r) is_odd (.param .b32 a)
{
  .reg .b32 n; .reg .pred zero;
  ld.param.b32 n, [a];
  setp.eq.u32 zero, n, 0;
  @zero st.param.b32 [r], 0;
  @zero ret;
  sub.u32 n, n, 1;
  { .param .b32 q; st.param.b32 [q], n; .param .b32 s; call (s), is_even, (q); ld.param.b32 n, [s]; }
  st.param.b32 [r], n;
}
.func (.param .b32 r) forever (.param .b32 a)
{ .param .b32 q; .param .b32 s; call (s), forever, (q); }
.func (.param .b32 r) leaves (.param .b32 a)
{ .reg .b32 n; .reg .pred p; ld.param.b32 n, [a]; setp.gt.u32 p, n, 9; @p exit; st.param.b32 [r], n; }
"""


@pytest.mark.parametrize("seed", range(4))
def test_recursion(seed: int) -> None:
    random = random_of(f"recursion {seed}")
    fib = [0, 1]
    while len(fib) < 12:
        fib.append(fib[-1] + fib[-2])
    given = random.integers(0, 12, 48)
    assert list(per_thread(call("fib"), given, RECURSIVE, seed)) == [fib[v] for v in given]
    given = random.integers(0, 40, 48)
    assert list(per_thread(call("is_even"), given, RECURSIVE, seed)) == [int(v % 2 == 0) for v in given]
    assert list(per_thread(call("is_odd"), given, RECURSIVE, seed)) == [int(v % 2) for v in given]


def test_recursion_has_an_end() -> None:
    with pytest.raises(EmulatorError, match="nested deeper"):
        per_thread(call("forever"), numpy.arange(2), RECURSIVE)


def test_exit_in_a_function() -> None:
    given = numpy.array([3, 12, 9, 10, 0])
    assert list(per_thread(call("leaves"), given, RECURSIVE)) == [3, 0, 9, 0, 0]


@pytest.mark.parametrize("opcode", ["trap", "brkpt"])
def test_traps(opcode: str) -> None:
    with pytest.raises(EmulatorError, match=rf"run.*lane 5.*`@%p1 {opcode};`"):
        per_thread(f"setp.eq.u32 %p1, %r0, 5; @%p1 {opcode}; mov.u32 %r1, 0;", numpy.arange(8))


# ---- functions of the system ----------------------------------------------------------------------------------------

EXTERN = """
.extern .func (.param .b32 func_retval0) vprintf (.param .b64 a, .param .b64 b);
.extern .func (.param .b64 func_retval0) malloc (.param .b64 a);
.extern .func free (.param .b64 a);
.extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
"""


def string(name: str, text: str) -> str:
    data = text.encode() + b"\0"
    return f".global .align 1 .b8 {name}[{len(data)}] = {{{', '.join(map(str, data))}}};\n"


def test_printf(capfd: pytest.CaptureFixture[str]) -> None:
    """As C's own printf prints the same."""
    random = random_of("printf")
    libc = ctypes.CDLL(None)
    integers = ["%d", "%5i", "%-7u|", "%+d", "%08x", "%#X", "%o", "% d", "%.4d", "%hd", "%c"]
    wide = ["%ld", "%lld", "%llu", "%20lx", "%zu", "%-18p|"]
    floats = ["%f", "%.3e", "%10.2f", "%g", "%G", "%a", "%-12.1f|", "%+.0f", "%f"]
    pieces: list[tuple[str, str, object]] = [(f, "I", int(random.integers(33, 127))) for f in integers]
    pieces += [(f, "Q", int(random.integers(1, 1 << 62))) for f in wide]
    pieces += [(f, "d", float(v)) for f, v in zip(floats, random.standard_normal(9) * 1e3, strict=True)]
    pieces[-1] = ("%f", "d", math.inf)
    random.shuffle(pieces)  # type: ignore[arg-type]
    format_text = "100%% " + " ".join(f for f, _, _ in pieces) + " [%s] [%*d] [%6.2s]\n"
    buffer = ctypes.create_string_buffer(4096)
    values: list[object] = [
        ctypes.c_double(v) if k == "d" else ctypes.c_uint64(v) if k == "Q" else ctypes.c_uint32(v) for _, k, v in pieces
    ]
    libc.snprintf(buffer, 4096, format_text.encode(), *values, b"word", 9, -77, b"abcdef")
    stores, offset = [], 0
    for _, kind, value in [*pieces, ("", "s", "word"), ("", "I", 9), ("", "I", 0xFFFFFFB3), ("", "s", "cut")]:
        size = 4 if kind == "I" else 8
        offset = -(-offset // size) * size
        if kind == "s":
            stores.append(f"mov.u64 %d2, {value}; cvta.global.u64 %d2, %d2; st.local.b64 [args+{offset}], %d2;")
        elif size == 4:
            stores.append(f"st.local.b32 [args+{offset}], {value};")
        else:
            bits = struct.unpack("<Q", struct.pack("<" + kind, value))[0]
            stores.append(f"mov.b64 %d2, {bits}; st.local.b64 [args+{offset}], %d2;")
        offset += size
    body = f"""
    .local .align 8 .b8 args[{offset}];
    {" ".join(stores)}
    mov.u64 %d0, format; cvta.global.u64 %d0, %d0;
    mov.u64 %d1, args; cvta.local.u64 %d1, %d1;
    {{ .param .b64 f; st.param.b64 [f], %d0; .param .b64 v; st.param.b64 [v], %d1; .param .b32 r;
      call.uni (r), vprintf, (f, v); ld.param.b32 %r1, [r]; }}
    """
    strings = string("format", format_text) + string("word", "word") + string("cut", "abcdef")
    capfd.readouterr()
    out = per_thread(body, numpy.arange(2), EXTERN + strings)
    libc.fflush(None)
    assert capfd.readouterr().out == 2 * buffer.value.decode()
    assert list(out) == 2 * [len(pieces) + 4]


def test_assertions_say_where() -> None:
    body = """
    setp.ne.u32 %p1, %r0, 3;
    @%p1 bra FINE;
    { .param .b64 a; mov.u64 %d0, what; st.param.b64 [a], %d0; .param .b64 b; mov.u64 %d0, where; st.param.b64 [b], %d0;
      .param .b32 c; st.param.b32 [c], 22; .param .b64 d; mov.u64 %d0, whose; st.param.b64 [d], %d0;
      .param .b64 e; st.param.b64 [e], 1; call.uni __assertfail, (a, b, c, d, e); }
    FINE: mov.u32 %r1, 1;
    """
    strings = string("what", "x > 0") + string("where", "k.cu") + string("whose", "void k(int)")
    with pytest.raises(EmulatorError, match=r"lane 3.*k\.cu:22: void k\(int\): assertion `x > 0` failed"):
        per_thread(body, numpy.arange(8), EXTERN + strings)


def test_malloc() -> None:
    body = """
    { .param .b64 n; st.param.b64 [n], 8; .param .b64 r; call (r), malloc, (n); ld.param.b64 %d0, [r]; }
    st.u32 [%d0+4], %r0;
    bar.warp.sync -1;
    ld.u32 %r1, [%d0+4];
    { .param .b64 n; st.param.b64 [n], %d0; call free, (n); }
    """
    given = random_of("malloc").integers(0, 1 << 32, 32, dtype=numpy.uint32)
    assert list(per_thread(body, given, EXTERN)) == list(given)
    with pytest.raises(EmulatorError, match=r"writes"):
        per_thread(body.replace("[%d0+4], %r0", "[%d0+8], %r0"), given, EXTERN)
    with pytest.raises(EmulatorError, match="no allocation"):
        per_thread(body + "\n{ .param .b64 n; st.param.b64 [n], %d0; call free, (n); }", given, EXTERN)


def test_other_functions_of_the_system_are_rejected() -> None:
    with pytest.raises(EmulatorError, match="`clock_of_another_planet`.*linker"):
        load_only("call clock_of_another_planet;", variables=".extern .func clock_of_another_planet;")
