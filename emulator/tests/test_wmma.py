"""wmma: loads, multiplications and stores of every shape, type and layout, against numpy, exactly. Elements are small
integers, so that every sum is exact in every order."""

from __future__ import annotations

import re

import numpy
import pytest
from small_kernel import EmulatorError, load_only, random_of, run

SHAPES = {"m16n16k16": (16, 16, 16), "m8n32k16": (8, 32, 16), "m32n8k16": (32, 8, 16)}
FLOATS = [(s, t, d, c) for s in SHAPES for t, d, c in (("f16", "f32", "f32"), ("f16", "f16", "f16"))]
FLOATS += [("m16n16k16", "f16", "f32", "f16"), ("m16n16k16", "f16", "f16", "f32")]
FLOATS += [(s, "bf16", "f32", "f32") for s in SHAPES]
BYTES = [(s, t, "s32", "s32") for s in SHAPES for t in ("s8", "u8")]
CASES = [*FLOATS, *BYTES, ("m16n16k8", "tf32", "f32", "f32"), ("m8n8k4", "f64", "f64", "f64")]
CASES += [("m8n8k32", t, "s32", "s32") for t in ("s4", "u4")] + [("m8n8k128", "b1", "s32", "s32")]
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f64": 64, "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1, "f32": 32, "s32": 32}


def encode(values: numpy.ndarray, kind: str) -> numpy.ndarray:
    """Rows of small integers as the bytes of rows of elements."""
    if kind == "bf16":
        return (values.astype(numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16).view(numpy.uint8)
    if kind in ("s4", "u4"):
        nibbles = (values & 15).astype(numpy.uint8)
        return nibbles[:, ::2] | nibbles[:, 1::2] << 4
    if kind == "b1":
        return numpy.packbits(values.astype(numpy.uint8), axis=1, bitorder="little")
    dtype = {"f16": "f2", "f32": "f4", "tf32": "f4", "f64": "f8", "s32": "i4", "s8": "i1", "u8": "u1"}[kind]
    return numpy.ascontiguousarray(values.astype(dtype)).view(numpy.uint8)


def placed(values: numpy.ndarray, kind: str, layout: str, extra: int) -> tuple[numpy.ndarray, int]:
    """In memory, by rows or columns, each with 0xff bytes behind it; and the stride in elements."""
    lines = encode(numpy.ascontiguousarray(values if layout == "row" else values.T), kind)
    padded = numpy.full((lines.shape[0], lines.shape[1] + 16 * extra), 0xFF, numpy.uint8)
    padded[:, : lines.shape[1]] = lines
    return padded, padded.shape[1] * 8 // BITS[kind]


def registers(matrix: str, m: int, n: int, k: int, kind: str) -> int:
    if kind == "f16" and matrix in "ab":
        return 8
    size = {"a": m * k, "b": n * k, "c": m * n}[matrix] * BITS[kind]
    return size // 32 // (64 if kind == "f64" else 32)


def names(matrix: str, m: int, n: int, k: int, kind: str) -> str:
    prefix = "%w" if kind == "f64" else "%v"
    first = {"a": 0, "b": 8, "c": 16}[matrix]
    return "{" + ", ".join(f"{prefix}{first + i}" for i in range(registers(matrix, m, n, k, kind))) + "}"


@pytest.mark.parametrize("space", ["", ".global", ".shared"])
@pytest.mark.parametrize(("shape", "kind", "d", "c"), CASES)
def test_multiply(shape: str, kind: str, d: str, c: str, space: str) -> None:
    random = random_of(f"{shape} {kind} {d} {c} {space}")
    m, n, k = (int(i) for i in re.fullmatch(r"m(\d+)n(\d+)k(\d+)", shape).groups())  # type: ignore[union-attr]
    low, high = {"u8": (0, 256), "u4": (0, 16), "s8": (-128, 128), "s4": (-8, 8), "b1": (0, 2)}.get(kind, (-4, 5))
    a, b = random.integers(low, high, (m, k)), random.integers(low, high, (k, n))
    start = random.integers(-9, 10, (m, n))
    a_layout, b_layout, c_layout, d_layout = (str(random.choice(["row", "col"])) for _ in range(4))
    if BITS[kind] < 8:
        a_layout, b_layout = "row", "col"
    operation = str(random.choice(["xor", "and"])) if kind == "b1" else ""
    extra = [int(i) for i in random.integers(0, 3, 4)]
    a_data, a_stride = placed(a, kind, a_layout, extra[0])
    b_data, b_stride = placed(b, kind, b_layout, extra[1])
    c_data, c_stride = placed(start, c, c_layout, extra[2])
    d_data, d_stride = placed(numpy.zeros((m, n), int), d, d_layout, extra[3])
    d_data[:] = 0xFF
    types = f"{d}.{c}" if kind == "f16" else f"{d}.{kind}.{kind}.{c}"
    copies, places = "", {"a": "[%a0]", "b": "[%a1]", "c": "[%a2]"}
    if space == ".shared":
        for i, data in enumerate((a_data, b_data, c_data)):
            at = 8192 * i
            for offset in range(0, data.size, 16):
                copies += f"ld.global.v4.b32 {{%r1, %r2, %r3, %r4}}, [%a{i} + {offset}];\n"
                copies += f"st.shared.v4.b32 [%smem + {at + offset}], {{%r1, %r2, %r3, %r4}};\n"
            copies += f"add.u32 %r{10 + i}, %smem, {at};\n"
            places["abc"[i]] = f"[%r{10 + i}]"
    fragment = {x: names(x, m, n, k, t) for x, t in (("a", kind), ("b", kind), ("c", c), ("d", d)) if x != "d"}
    result = names("c", m, n, k, d)
    body = f"""
  .reg .b32 %v<32>;
  .reg .f64 %w<32>;
  {copies}
  bar.warp.sync -1;
  wmma.load.a.sync.aligned.{a_layout}.{shape}{space}.{kind} {fragment["a"]}, {places["a"]}, {a_stride};
  wmma.load.b.sync.aligned.{b_layout}.{shape}{space}.{kind} {fragment["b"]}, {places["b"]}, {b_stride};
  wmma.load.c.sync.aligned.{c_layout}.{shape}{space}.{c} {fragment["c"]}, {places["c"]}, {c_stride};
  wmma.mma{f".{operation}.popc" * bool(operation)}.sync.aligned.{a_layout}.{b_layout}.{shape}.{types}
      {result}, {fragment["a"]}, {fragment["b"]}, {fragment["c"]};
  wmma.store.d.sync.aligned.{d_layout}.{shape}.global.{d} [%a3], {result}, {d_stride};
"""
    got = run(body, [a_data, b_data, c_data, d_data], shared=32768, device=str(random.choice(["sm_80", "sm_90"])))[3]
    if kind == "b1":
        both = a[:, :, None] ^ b[None] if operation == "xor" else a[:, :, None] & b[None]
        total = both.sum(axis=1) + start
    else:
        total = a @ b + start
    wanted, _ = placed(total, d, d_layout, extra[3])
    assert numpy.array_equal(got, wanted), f"{a_layout} {b_layout} {c_layout} {d_layout} {operation} {extra}"


def test_fragments_elementwise() -> None:
    """An operation on all elements of a fragment is one on the matrix; without a stride, lines are adjacent."""
    random = random_of("elementwise")
    a = random.integers(-9, 10, (16, 16)).astype(numpy.float32)
    regs = ", ".join(f"%f{i}" for i in range(8))
    doubled = "\n".join(f"add.f32 %f{i}, %f{i}, %f{i};" for i in range(8))
    body = f"""
  .reg .f32 %f<8>;
  wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {{{regs}}}, [%a0];
  {doubled}
  wmma.store.d.sync.aligned.col.m16n16k16.global.f32 [%a1], {{{regs}}};
"""
    _, got = run(body, [a, numpy.full_like(a, numpy.nan)], device="sm_80")
    assert numpy.array_equal(got, 2 * a.T)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("wmma.load.a.sync.aligned.row.m16n16k8.f16 {%r1}, [%a0];", "does not go with"),
        ("wmma.load.a.sync.aligned.col.m8n8k32.s4 {%r1}, [%a0];", "by rows"),
        ("wmma.load.a.sync.aligned.row.m16n16k16.s8 {%r1, %r2, %r3}, [%a0];", "registers"),
        ("wmma.load.c.sync.aligned.row.m16n16k16.bf16 {%r1}, [%a0];", "no type of C"),
        ("wmma.mma.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32 {%r1, %r2}, {%r3}, {%r4}, {%r5, %r6};", "popc"),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.u4.s32 {%r1}, {%r1}, {%r1}, {%r1};", "together"),
    ],
)
def test_rejected(text: str, words: str) -> None:
    with pytest.raises(EmulatorError, match=words):
        load_only(text, "sm_80")


def test_faults() -> None:
    regs = ", ".join(f"%r{i}" for i in range(8))
    load = f"wmma.load.c.sync.aligned.row.m16n16k16.global.s32 {{{regs}}}"
    with pytest.raises(EmulatorError, match="all lanes must give the same"):
        run(f"cvt.u64.u32 %d1, %t; add.u64 %d1, %d1, %a0; {load}, [%d1], 16;", [numpy.zeros(512, "i4")])
    with pytest.raises(EmulatorError, match="behind the allocation"):
        run(f"{load}, [%a0], 32;", [numpy.zeros(256, "i4")])
