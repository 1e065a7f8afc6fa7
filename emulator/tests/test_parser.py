"""PTX as text: directives, variables and their initial values, constant expressions, scopes, operands, and the
messages for invalid PTX."""

from __future__ import annotations

import ctypes
import re
import struct
import time
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from scalar import EmulatorError
from small_kernel import HEADER, Emulator, entry, load_only, module, random_of, run

U64 = (1 << 64) - 1


def value_of(body: str, variables: str = "", lanes: int = 1) -> list[int]:
    """%d0 after the body, in each lane."""
    store = "mul.wide.u32 %d31, %lane, 8;\nadd.u64 %d31, %d31, %a0;\nst.global.u64 [%d31], %d0;"
    (out,) = run(body + "\n" + store, [numpy.zeros(lanes, numpy.uint64)], variables=variables, block=lanes)
    return [int(v) for v in out]


def rejection(text: str) -> str:
    with pytest.raises(EmulatorError) as caught:
        Emulator().load(text)
    return str(caught.value)


def global_bytes(emulator: Emulator, loaded: Any, name: str) -> bytes:
    address, size = ctypes.c_uint64(), ctypes.c_size_t()
    emulator.call("cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(size), loaded.handle, name.encode())
    return ctypes.string_at(address.value, size.value)


# ---- constant expressions -------------------------------------------------------------------------------------------


def signed(value: int) -> int:
    value &= U64
    return value - (1 << 64) if value >> 63 else value


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


BINARY: dict[str, Callable[[int, int], int]] = {
    "*": lambda a, b: a * b,
    "/": quotient,
    "%": lambda a, b: a - b * quotient(a, b),
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "&": lambda a, b: a & b,
    "^": lambda a, b: a ^ b,
    "|": lambda a, b: a | b,
    "&&": lambda a, b: bool(a) and bool(b),
    "||": lambda a, b: bool(a) or bool(b),
}
LEVELS = [
    ["||"], ["&&"], ["|"], ["^"], ["&"], ["==", "!="], ["<", "<=", ">", ">="], ["<<", ">>"], ["+", "-"],
    ["*", "/", "%"],
]  # fmt: skip
LEVEL = {operator: level for level, names in enumerate(LEVELS) for operator in names}


def literal(random: numpy.random.Generator) -> tuple[str, int]:
    value = int(random.integers(0, 1 << int(random.integers(1, 40))))
    return [f"{value}", f"{value:#x}", f"0{value:o}", f"{value:#b}"][int(random.integers(4))], value


def expression(random: numpy.random.Generator, depth: int, lowest: int = 0) -> tuple[str, int]:
    """Text, with as few parentheses as C's precedences allow, and its value as 64-bit signed arithmetic has it."""
    kind = int(random.integers(8))
    if not depth or kind == 0:
        return literal(random)
    if kind == 1:
        text, value = expression(random, depth - 1, len(LEVELS))
        operator = "-~!+"[int(random.integers(4))]
        return f"{operator} {text}", signed({"-": -value, "~": ~value, "!": int(not value), "+": value}[operator])
    if kind == 2 and lowest == 0:
        texts, values = zip(*(expression(random, depth - 1, 1) for _ in range(3)), strict=True)
        return "({} ? {} : {})".format(*texts), values[1] if values[0] else values[2]
    operator = list(BINARY)[int(random.integers(len(BINARY)))]
    level = LEVEL[operator]
    left, a = expression(random, depth - 1, level)
    right, b = expression(random, depth - 1, level + 1)
    if operator in ("/", "%") and b == 0:
        right, b = "7", 7
    if operator in ("<<", ">>"):
        right, b = str(b & 31), b & 31
    text = f"{left} {operator} {right}"
    return (f"({text})" if level < lowest else text), signed(int(BINARY[operator](a, b)))


def test_constant_expressions() -> None:
    random = random_of("constant expressions")
    texts, expected = zip(*(expression(random, 4) for _ in range(200)), strict=True)
    body = "\n".join(f"mov.b64 %d0, {text};\nst.global.u64 [%a0+{8 * i}], %d0;" for i, text in enumerate(texts))
    (out,) = run(body, [numpy.zeros(len(texts), numpy.uint64)], block=1)
    for text, value, got in zip(texts, expected, out, strict=True):
        assert signed(int(got)) == value, text


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("0xFFFFFFFFFFFFFFFFU / 2", 0x7FFFFFFFFFFFFFFF),
        ("18446744073709551615", U64),
        ("(.s64) -9223372036854775808 / -1", 1 << 63),
        ("WARP_SZ * 3", 96),
        ("(.u64) -1 > 0", 1),
        ("-1 > 0", 0),
        ("0d3FF0000000000000", 0x3FF0000000000000),
        ("1.5", struct.unpack("<Q", struct.pack("<d", 1.5))[0]),
        ("-2.5e-3", struct.unpack("<Q", struct.pack("<d", -2.5e-3))[0]),
    ],
)
def test_constants(text: str, bits: int) -> None:
    assert value_of(f"mov.b64 %d0, {text};") == [bits]


@pytest.mark.parametrize("bits", [0x3F800000, 0x80000000, 0x7FC12345, 0x7F812345, 0xFF800000, 0x00000001])
def test_float_literals_keep_their_bits(bits: int) -> None:
    assert value_of(f"mov.f32 %r0, 0f{bits:08X};\ncvt.u64.u32 %d0, %r0;") == [bits]


# ---- variables ------------------------------------------------------------------------------------------------------

FORMAT = {"u8": "B", "s8": "b", "b8": "B", "u16": "H", "s16": "h", "u32": "I", "s32": "i", "b32": "I", "u64": "Q",
          "s64": "q", "b64": "Q", "f32": "f", "f64": "d"}  # fmt: skip


def scalar_text(kind: str, random: numpy.random.Generator) -> tuple[str, bytes]:
    code = FORMAT[kind]
    size = struct.calcsize(code)
    data = random.bytes(size)
    if kind[0] == "f":
        return f"0{'f' if size == 4 else 'd'}{int.from_bytes(data, 'little'):0{2 * size}X}", data
    return str(struct.unpack("<" + code, data)[0]), data


@pytest.mark.parametrize("kind", FORMAT)
def test_initial_values(kind: str) -> None:
    """Scalars, lists that are too short, nested ones, and arrays whose first dimension the list gives."""
    random = random_of(f"initial {kind}")
    size = struct.calcsize(FORMAT[kind])
    given = [scalar_text(kind, random) for _ in range(6)]
    texts, data = [t for t, _ in given], [d for _, d in given]
    rows = f"{{{{{texts[0]}, {texts[1]}}}, {{{texts[2]}}}, {{{texts[3]}, {texts[4]}, {texts[5]}}}}}"
    expected_rows = b"".join([*data[:2], bytes(size), data[2], bytes(2 * size), *data[3:]])
    emulator = Emulator()
    loaded = emulator.load(
        HEADER.format(target="sm_100a")
        + f".global .{kind} one = {texts[0]};\n.visible .const .align 16 .{kind} few[9] = {{{', '.join(texts)}}};\n"
        + f".global .{kind} rows[3][3] = {rows};\n.global .{kind} open[][3] = {rows}, none[5];\n"
    )
    assert global_bytes(emulator, loaded, "one") == data[0]
    assert global_bytes(emulator, loaded, "few") == b"".join(data) + bytes(3 * size)
    assert global_bytes(emulator, loaded, "rows") == expected_rows
    assert global_bytes(emulator, loaded, "open") == expected_rows
    assert global_bytes(emulator, loaded, "none") == bytes(5 * size)


def test_initial_addresses() -> None:
    emulator = Emulator()
    loaded = emulator.load(
        HEADER.format(target="sm_100a")
        + """
.global .u32 a[100];
.const .u64 tables[5] = {a, a+12, generic(a), generic(a)+400, 7};
.global .b8 bytes[9] = {0xFF(a), 0xFF00(a), 0xFF0000(generic(a)), 0xFF000000(a), 0xFF00000000(a), 0xFF0000000000(a),
                        0xFF000000000000(a), 0xFF00000000000000(a), 5};
.global .u64 self = self;
.global .u64 .v2 pair[2] = {{1, a}, {3, self}};
"""
    )
    address = ctypes.c_uint64()
    size = ctypes.c_size_t()
    emulator.call("cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(size), loaded.handle, b"a")
    a = address.value
    assert size.value == 400
    assert struct.unpack("<5Q", global_bytes(emulator, loaded, "tables")) == (a, a + 12, a, a + 400, 7)
    assert global_bytes(emulator, loaded, "bytes") == struct.pack("<QB", a, 5)
    emulator.call("cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(size), loaded.handle, b"self")
    assert struct.unpack("<Q", global_bytes(emulator, loaded, "self")) == (address.value,)
    assert struct.unpack("<4Q", global_bytes(emulator, loaded, "pair")) == (1, a, 3, address.value)


def test_globals_have_exact_bounds() -> None:
    with pytest.raises(EmulatorError, match="run.*ld.global.u8"):
        value_of("ld.global.u8 %r0, [g+5];", ".global .align 8 .b8 g[5];")


@pytest.mark.parametrize("seed", range(3))
def test_shared_layout(seed: int) -> None:
    """Static variables do not overlap and are aligned; the dynamic array is at the aligned end; what no function names
    takes no room."""
    random = random_of(f"shared {seed}")
    aligns = [1 << int(random.integers(0, 8)) for _ in range(6)]
    sizes = [int(random.integers(1, 300)) for _ in range(6)]
    module_scope = "".join(
        f".shared .align {a} .b8 v{i}[{n}];\n" for i, (a, n) in enumerate(zip(aligns[:3], sizes[:3], strict=True))
    )
    local = "".join(f".shared .align {aligns[i]} .b8 v{i}[{sizes[i]}];\n" for i in range(3, 6))
    body = local + "".join(f"mov.u32 %r0, v{i};\nst.global.u32 [%a0+{4 * i}], %r0;\n" for i in range(6))
    body += "st.global.u32 [%a0+24], %smem;"
    (out,) = run(
        body,
        [numpy.zeros(7, numpy.uint32)],
        variables=module_scope + ".shared .b8 unused[100000];\n",
        block=1,
        shared=16,
    )
    at = [int(v) & 0xFFFFFF for v in out]
    spans = sorted((at[i], at[i] + sizes[i]) for i in range(6))
    assert spans[0][0] >= 1024
    assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))
    assert all(at[i] % aligns[i] == 0 for i in range(6))
    assert at[6] % 1024 == 0 and spans[-1][1] <= at[6] < spans[-1][1] + 1024


def test_addresses_of_parameters_and_locals() -> None:
    random = random_of("addresses")
    data = random.integers(0, 1 << 32, 4, dtype=numpy.uint32)
    text = (
        HEADER.format(target="sm_90")
        + """
.visible .entry run(.param .u64 .ptr .global .align 16 out, .param .align 16 .b8 s[16], .param .u8 c)
{
  .reg .b64 %d<8>; .reg .b32 %r<8>;
  .local .align 8 .b8 depot[32];
  ld.param.u64 %d0, [out];
  mov.b64 %d1, s;
  add.u64 %d2, %d1, 4;
  ld.param.u32 %r0, [%d2+4];
  cvta.param.u64 %d3, %d1;
  ld.u32 %r1, [%d3+12];
  ld.param.v2.u32 {%r2, %r3}, [s];
  mov.u64 %d4, depot;
  st.local.u32 [%d4+8], %r1;
  cvta.local.u64 %d5, %d4;
  ld.u32 %r4, [%d5+8];
  ld.local.u32 %r5, [depot+8];
  ld.param.u8 %r6, [c];
  st.global.v4.u32 [%d0], {%r2, %r3, %r0, %r4};
  st.global.v2.u32 [%d0+16], {%r5, %r6};
}
"""
    )
    emulator = Emulator("sm_90")
    out = emulator.array(numpy.zeros(6, numpy.uint32))
    emulator.launch(emulator.load(text)["run"], args=[out, data.tobytes(), 77], block=1)
    assert list(out.numpy()) == [*data, data[3], 77]


# ---- scopes and names -----------------------------------------------------------------------------------------------


def test_scopes_shadow() -> None:
    body = """
    mov.u64 %d0, 0;
    { .reg .b64 %d<3>; .reg .b32 %r<2>; mov.u64 %d1, 5; mov.u64 %d0, 9; mov.u64 x, %d1; }
    { .reg .pred P1; .reg .b64 %d0;
      mov.u64 %d0, 100;
      setp.ne.u32 P1, %t, 77;
      @P1 bra DONE;
      bra SKIP;
      DONE: add.u64 x, x, %d0; }
    { bra DONE;
      mov.u64 x, 0;
      DONE: { DONE: bra OUT; } }
    SKIP: mov.u64 x, 1;
    OUT: add.u64 %d0, %d0, x;
    """
    assert value_of(".reg .u64 x;\n" + body) == [105]


def test_vector_registers_and_elements() -> None:
    body = """
    .reg .v4 .u32 v; .reg .v2 .b64 w;
    ld.global.v4.u32 v, [%a1];
    mov.b64 w.x, %a0;
    mov.b64 w.y, 5;
    add.u32 v.x, v.r, v.w;
    st.global.v4.u32 [w.x], v;
    """
    given = numpy.array([1, 2, 3, 4], numpy.uint32)
    out, _ = run(body, [numpy.zeros(4, numpy.uint32), given], block=1)
    assert list(out) == [5, 2, 3, 4]


def test_special_registers_as_operands() -> None:
    body = """
    add.u32 %r0, %laneid, %ntid.x;
    mov.u64 %d1, %clock64;
    add.u32 %r1, %clock, 0;
    sub.u32 %r2, %clock, %r1;
    setp.lt.u32 %p0, %r2, 100000;
    @!%p0 mov.u32 %r0, 0;
    cvt.u64.u32 %d0, %r0;
    """
    assert value_of(body, lanes=8) == [lane + 8 for lane in range(8)]


@pytest.mark.parametrize(
    ("target", "devices"),
    [
        ("sm_52", "sm_80 sm_90 sm_100 sm_120"),
        ("sm_80", "sm_80 sm_90 sm_100 sm_120"),
        ("sm_90a", "sm_90"),
        ("sm_100a", "sm_100"),
        ("sm_100f", "sm_100"),
        ("sm_103a", ""),
        ("sm_120a, debug", "sm_120"),
        ("sm_120", "sm_120"),
    ],
)
def test_targets(target: str, devices: str) -> None:
    for device in ("sm_80", "sm_90", "sm_100", "sm_120"):
        text = f".version 8.7\n.target {target}\n.address_size 64\n"
        if device in devices.split():
            Emulator(device).load(text)
        else:
            with pytest.raises(EmulatorError, match=rf"its .target is {target.split(',')[0]}, which {device} does not"):
                Emulator(device).load(text)


def test_directives() -> None:
    load_only(
        """
        .pragma "nounroll";
        .loc 1 13 8, function_name $L__info_string0, inlined_at 1 21 3
        .local .align 8 .b8 d[4];
        """,
        variables="""
        .file 1 "a/b.cu", 1234, 56
        .pragma "enable_smem_spilling";
        .extern .func (.param .b32 func_retval0) vprintf (.param .b64 a, .param .b64 b) ;
        .extern .func never (.param .b64 a) .noreturn;
        .weak .func ( .reg .u32 r ) twice ( .reg .u32 x ) { add.u32 r, x, x; ret; }
        .alias again, twice;
        .common .global .b32 shared_by_files;
        .global .attribute(.managed) .align 4 .u32 m;
        .extern .global .u32 later; .visible .global .u32 later = 3;
        .visible .entry other ( .param .u64 .ptr .shared .align 8 p )
        .maxntid 128, 2, 1 .minnctapersm 2 .maxnreg 64 .reqnctapercluster 2, 1 .explicitcluster
        { /* a comment
          over lines */ ret; }
        .section .debug_info { .b8 1 .b32 $a-$b+1 $a: .b64 .debug_str }
        @@DWARF .byte 0
        """,
    )


# ---- rejections ------------------------------------------------------------------------------------------------------

REJECTED = [
    ("frobnicate.b32 %r0, %r1;", "`frobnicate` is not known"),
    ("add.u32 %r0, %r1;", "operand 3"),
    ("add.u32 %r0, %r1, %r2, %r3;", "operand 4"),
    ("add.u32.u32 %r0, %r1, %r2;", "u32"),
    ("add.u32 %r0, %d1, %r2;", "`%d1` has 64 bits"),
    ("add.u32 %r0, %p1, %r2;", "`%p1` is a predicate"),
    ("add.u32 %r0, nothing, %r2;", "`nothing` is not declared"),
    ("add.u32 %r0, %nothing, %r2;", "`%nothing` is neither"),
    ("add.u32 5, %r1, %r2;", "a register is needed"),
    ("add.u32 %r0, [%r1], %r2;", "memory operand"),
    ("add.u32 %r0|%p0, %r1, %r2;", r"`\|` is not known"),
    ("add.f32 %r0, %r1, 1;", "literal 0f"),
    ("bra elsewhere;", "`elsewhere` is not declared"),
    ("@%r0 bra x; x:", "`%r0` is no predicate"),
    ("x: x: ret;", "twice"),
    (".reg .u32 %t;\n.reg .u32 %t;", "declared twice"),
    (".reg .u99 z;", "expected a type"),
    (".reg .u32 z[4];", "registers have no dimensions"),
    (".local .align 3 .b8 z[4];", "power of two"),
    ("mov.u32 %r0, 0f12;", "8 digits"),
    ("mov.u32 %r0, 12z;", "expected a number"),
    ("mov.u32 %r0, (1 << 3;", r"expected `\)`"),
    ("mov.u32 %r0, 1 / (3 - 3);", "division by zero"),
    ("mov.u32 %r0, " + "(" * 100 + "1" + ")" * 100 + ";", "nested too deeply"),
    ("tex.2d.v4.f32.f32 {%r0, %r1, %r2, %r3}, [%d0, {%r0, %r1}];", "`tex` is not known"),
    ("call nowhere;", "`nowhere` is not declared"),
]


@pytest.mark.parametrize(("body", "reason"), REJECTED, ids=[r for _, r in REJECTED])
def test_rejections_name_line_and_text(body: str, reason: str) -> None:
    text = module(entry("\n\n" + body))
    said = rejection(text)
    assert re.search(reason, said), said
    line = int(re.search(r":(\d+): `", said)[1])
    lines = text.split("\n")
    shown = re.search(r"`(.*?)`: ", said)[1]
    assert shown[:20] in lines[line - 1], (said, lines[line - 1])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "image is neither|expected `.version`"),
        ("hello", "not PTX"),
        (".version 9.0\n", "there is no .target"),
        (".version 9.0\n.target gpu\n", "`gpu` is not known"),
        (".version 9.0\n.target sm_90\n.address_size 32\n", "64-bit"),
        (".version 9.0\n.target sm_90\n.global .texref t;\n", "textures"),
        (".version 9.0\n.target sm_90\n.entry k { .reg .u32 r;\n", "does not end"),
        (".version 9.0\n.target sm_90\n/* ", "comment does not end"),
        (".version 9.0\n.target sm_90\n.blurb 3;", "directive"),
        (".version 9.0\n.target sm_90\n.entry k() .blocksareclusters { ret; }", "directive"),
        (".version 9.0\n.target sm_90\n.func f; .entry k { call f; }", "linker"),
        (".version 9.0\n.target sm_90\n.global .u64 p = q;", "`q`"),
        (".version 9.0\n.target sm_90\n.global .u8 p[2] = {1, 2, 3};", "more initial values"),
    ],
)
def test_rejected_modules(text: str, reason: str) -> None:
    assert re.search(reason, rejection(text))


SAMPLE = module(
    entry("""
    { .param .b32 p0; st.param.b32 [p0], %r0; .param .b32 r0;
      call.uni (r0), twice, (p0); ld.param.b32 %r1, [r0]; }
    @!%p1 bra END;
    ld.global.v4.f32 {%r1, %r2, %r3, %r4}, [%a0+-16];
    setp.lt.u32 %p1|%p2, %r1, %tid.x;
    mov.b64 {%r1, _}, %d1;
    END: ts: .branchtargets END, END;
    brx.idx %r1, ts;
    """),
    variables=""".func (.param .b32 r) twice (.param .b32 a) { .reg .b32 x; ld.param.b32 x, [a]; st.param.b32 [r], x; }
    .global .align 8 .b8 t[4][2] = {{1, 0xFF(t)}, {2}};""",
)


def test_damaged_text_gives_messages() -> None:
    """Truncated and altered text is rejected with file and line, or is PTX still."""
    random = random_of("damage")
    marks = list("{}[]();,.%@!|:<>\"'+-0") + ["\x01", "\xff", "call ", ".reg ", "0f", "/*"]
    emulator = Emulator()
    emulator.load(SAMPLE)
    rejected = 0
    for _ in range(600):
        text = SAMPLE
        for _ in range(int(random.integers(1, 4))):
            at = int(random.integers(20, len(text)))
            mark = marks[int(random.integers(len(marks)))]
            kind = int(random.integers(4))
            text = [
                text[:at],
                text[:at] + mark + text[at + 1 :],
                text[:at] + mark + text[at:],
                text[:at] + text[at + 5 :],
            ][kind]
            if len(text) < 21:
                break
        try:
            emulator.load(text.encode("latin-1"))
        except EmulatorError as error:
            rejected += 1
            assert re.search(r"ptx:\d+: `|^ptx: |neither PTX nor", str(error)), error
    assert rejected > 200


def test_large_modules_load_quickly() -> None:
    random = random_of("large")
    lines = [
        f"fma.rn.f32 %f{random.integers(2000)}, %f{random.integers(2000)}, %f{random.integers(2000)}, 0f{i:08X};"
        if i % 3
        else f"ld.shared.v2.u32 {{%q{random.integers(2000)}, %q{random.integers(2000)}}}, [%smem+{8 * (i % 500)}];"
        for i in range(14000)
    ]
    text = module(entry(".reg .f32 %f<2000>; .reg .b32 %q<2000>;\n" + "\n".join(lines)))
    assert len(text) > 600_000
    emulator = Emulator()
    begin = time.perf_counter()
    emulator.load(text)
    assert time.perf_counter() - begin < 1.0  # 0.04 s; a busy machine is slower


def test_elements_of_arrays() -> None:
    """name[i] is the address of an element, in bytes of its type; more may be added."""
    variables = ".shared .align 16 .b8 first[64]; .shared .v2 .f32 pairs[8]; .global .u64 table[4] = {5, 6, 7, 8};"
    body = """
    mov.u32 %r1, first; mov.u32 %r2, first[3]; mov.u32 %r3, pairs; mov.u32 %r4, pairs[2]+4;
    sub.u32 %r2, %r2, %r1; sub.u32 %r4, %r4, %r3; mad.lo.u32 %r0, %r2, 100, %r4;
    mov.u64 %d0, table[2]; ld.global.u32 %r5, [%d0]; mad.lo.u32 %r0, %r0, 100, %r5; cvt.u64.u32 %d0, %r0;
    """
    assert value_of(body, variables=variables)[0] == (3 * 100 + 20) * 100 + 7
