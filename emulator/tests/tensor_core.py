"""A kernel around a few tcgen05 instructions, for test_tmem.py and test_tcgen05.py.

Four warps a CTA fill shared memory and tensor memory from images in global memory, one thread runs the instructions
under test, and the four warps write tensor memory back as an image: [CTA, lane, column] of 32-bit cells.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy
from emulate import Emulator, EmulatorError  # noqa: F401
from random_data import random_of  # noqa: F401

LANES, COLUMNS = 128, 512
DATA = 1024  # offset of the image behind the start of dynamic shared memory
POISON = 0xFFFFFFFF


HEADER = """
.version 9.0
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
"""

# Registers: %taddr is the allocation, %data the shared address of the image, %rank the CTA's.
KERNEL = """
.visible .entry run(.param .u64 shared_image, .param .u64 tensor_image, .param .u64 result,
                  .param .u64 extra)
{{
  .reg .pred %p, %q, %elected, %wait;
  .reg .b32 %thread, %warp, %lid, %rank, %taddr, %data, %mbar, %slot, %i, %at, %word, %column, %phase, %where;
  .reg .b32 %v<8>, %t<64>;
  .reg .b64 %shared, %tensor, %result, %from, %offset, %d<32>;
  .reg .b16 %mask;
  mov.u32 %thread, %tid.x;
  shr.u32 %warp, %thread, 5;
  and.b32 %lid, %thread, 31;
  mov.u32 %rank, %cluster_ctarank;
  ld.param.u64 %shared, [shared_image];
  ld.param.u64 %tensor, [tensor_image];
  ld.param.u64 %result, [result];
  mov.u32 %mbar, smem;
  add.u32 %slot, %mbar, 8;
  add.u32 %data, %mbar, {data};
  mul.wide.u32 %offset, %rank, {shared_bytes};
  add.u64 %shared, %shared, %offset;
  mad.lo.u32 %i, %rank, {lanes}, %thread;
  mul.wide.u32 %offset, %i, {row_bytes};
  add.u64 %tensor, %tensor, %offset;
  add.u64 %result, %result, %offset;
  setp.ne.u32 %p, %thread, 0;
  @%p bra after_init;
  mbarrier.init.shared::cta.b64 [%mbar], 1;
  fence.mbarrier_init.release.cluster;
after_init:
  {meet}
  setp.ne.u32 %p, %warp, 0;
  @%p bra after_alloc;
  tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%slot], {columns};
after_alloc:
  // the image of shared memory
  shl.b32 %i, %thread, 2;
fill_shared:
  setp.ge.u32 %p, %i, {shared_bytes};
  @%p bra filled_shared;
  cvt.u64.u32 %from, %i;
  add.u64 %from, %from, %shared;
  ld.global.u32 %word, [%from];
  add.u32 %at, %data, %i;
  st.shared.u32 [%at], %word;
  add.u32 %i, %i, 512;
  bra fill_shared;
filled_shared:
  fence.proxy.async.shared::cta;
  bar.sync 0;
  ld.shared.u32 %taddr, [%slot];
  // the image of tensor memory
  shl.b32 %where, %warp, 21;
  add.u32 %where, %where, %taddr;
  mov.u32 %column, 0;
fill_tensor:
  add.u32 %at, %where, %column;
  mul.wide.u32 %from, %column, 4;
  add.u64 %from, %from, %tensor;
  ld.global.v4.u32 {{%v0, %v1, %v2, %v3}}, [%from];
  ld.global.v4.u32 {{%v4, %v5, %v6, %v7}}, [%from + 16];
  tcgen05.st.sync.aligned.32x32b.x8.b32 [%at], {{%v0, %v1, %v2, %v3, %v4, %v5, %v6, %v7}};
  add.u32 %column, %column, 8;
  setp.lt.u32 %p, %column, {columns};
  @%p bra fill_tensor;
  tcgen05.wait::st.sync.aligned;
  tcgen05.fence::before_thread_sync;
  bar.sync 0;
  {cluster_sync}
  tcgen05.fence::after_thread_sync;
  setp.ne.u32 %p, %thread, 0;
  setp.ne.u32 %q, %rank, 0;
  or.pred %p, %p, %q;
  @%p bra after_body;
  {body}
  {commit}
after_body:
  mbarrier.try_wait.parity.shared::cta.b64 %wait, [%mbar], 0;
  @!%wait bra after_body;
  tcgen05.fence::after_thread_sync;
  {warps}
  mov.u32 %column, 0;
dump:
  add.u32 %at, %where, %column;
  tcgen05.ld.sync.aligned.32x32b.x8.b32 {{%v0, %v1, %v2, %v3, %v4, %v5, %v6, %v7}}, [%at];
  tcgen05.wait::ld.sync.aligned;
  mul.wide.u32 %from, %column, 4;
  add.u64 %from, %from, %result;
  st.global.v4.u32 [%from], {{%v0, %v1, %v2, %v3}};
  st.global.v4.u32 [%from + 16], {{%v4, %v5, %v6, %v7}};
  add.u32 %column, %column, 8;
  setp.lt.u32 %p, %column, {columns};
  @%p bra dump;
  {publish}
  bar.sync 0;
  {cluster_sync}
  setp.ne.u32 %p, %warp, 0;
  @%p bra done;
  tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %taddr, {columns};
done:
  ret;
}}
"""

CLUSTER_SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
COMMIT = {
    1: "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%mbar];",
    2: "mov.b16 %mask, 3;\n"
    "  tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%mbar], %mask;",
}


def run_tensor_core(
    body: str,
    shared: numpy.ndarray,
    tensor: numpy.ndarray,
    group: int = 1,
    seed: int = 0,
    commit: str | None = None,
    warps: str = "",
    extra: numpy.ndarray | None = None,
    publish: str = "tcgen05.fence::before_thread_sync;",
    **settings: str | int,
) -> numpy.ndarray:
    """The tensor memory that `body` leaves. shared: bytes [CTA, n]; tensor: cells [CTA, 128, columns]. `commit` stands
    behind the body; `warps` is what all four warps do then, with [extra], which is written back; `publish` stands
    between the loads of the result and the barrier ahead of the deallocation."""
    shared = numpy.ascontiguousarray(shared, dtype=numpy.uint8).reshape(group, -1)
    tensor = numpy.ascontiguousarray(tensor, dtype=numpy.uint32).reshape(group, LANES, -1)
    assert shared.shape[1] % 4 == 0
    columns = tensor.shape[2]
    text = HEADER + KERNEL.format(
        data=DATA,
        shared_bytes=shared.shape[1],
        lanes=LANES,
        row_bytes=4 * columns,
        group=group,
        meet="barrier.cluster.arrive.aligned;\n  barrier.cluster.wait.aligned;" if group == 2 else "",
        columns=columns,
        cluster_sync=CLUSTER_SYNC if group == 2 else "",
        body=body,
        commit=COMMIT[group] if commit is None else commit,
        warps=warps,
        publish=publish,
    )
    emulator = Emulator("sm_100", seed=seed, **settings)
    kernel = emulator.load(text)["run"]
    result = emulator.empty(tensor.shape, numpy.uint32)
    other = emulator.array(numpy.zeros(1, numpy.uint32) if extra is None else extra)
    emulator.launch(
        kernel,
        grid=group,
        block=128,
        cluster=group if group == 2 else None,
        shared=DATA + shared.shape[1],
        args=[emulator.array(shared), emulator.array(tensor), result, other],
    )
    if extra is not None:
        extra[...] = other.numpy()
    return result.numpy().copy()


# ---- layouts in shared memory, by the definitions in the manual -----------------------------------------------------

SWIZZLES = {"none": (0, 16), "32": (6, 32), "64": (4, 64), "128": (2, 128), "128_32": (1, 128)}  # code, row bytes


def swizzled(name: str, address: int) -> int:
    """The XOR of PTX ISA 5.5.7, bit by bit."""
    pairs = {"none": [], "32": [(4, 7)], "64": [(4, 7), (5, 8)], "128": [(4, 7), (5, 8), (6, 9)]}
    pairs["128_32"] = [(5, 7), (6, 8)]
    for to, by in pairs[name]:
        address ^= (address >> by & 1) << to
    return address


def descriptor_bits(swizzle: str, leading: int, stride: int) -> int:
    """A descriptor of version 1 with start address 0."""
    return leading >> 4 << 16 | stride >> 4 << 32 | 1 << 46 | SWIZZLES[swizzle][0] << 61


def descriptor(register: str, bits: int, offset: int, scratch: str = "%t63") -> str:
    """PTX that makes a descriptor of the image's byte `offset`."""
    return f"""
  add.u32 {scratch}, %data, {offset};
  and.b32 {scratch}, {scratch}, 0x3ffff;
  shr.u32 {scratch}, {scratch}, 4;
  cvt.u64.u32 {register}, {scratch};
  or.b64 {register}, {register}, {bits:#x};
"""


def place_k_major(
    image: numpy.ndarray, offset: int, rows: numpy.ndarray, swizzle: str, leading: int, stride: int
) -> None:
    """Puts rows of K bytes (a multiple of 16) into the image: 9.7.16.3.3, canonical layouts."""
    pitch = SWIZZLES[swizzle][1]
    for r, row in enumerate(rows):
        for u in range(len(row) // 16):
            step = leading if swizzle == "none" else 16
            # the image lies DATA behind a multiple of 1024, so that its offsets and addresses agree in the low bits
            at = swizzled(swizzle, offset + r % 8 * pitch + r // 8 * stride + u * step)
            image[at : at + 16] = row[16 * u : 16 * u + 16]


def place_mn_major(
    image: numpy.ndarray, offset: int, rows: numpy.ndarray, size: int, swizzle: str, leading: int, stride: int
) -> None:
    """The same for [rows, K bytes] of elements of `size` bytes with M or N contiguous."""
    per_unit, width = 16 // size, SWIZZLES[swizzle][1] // 16
    group = 4 if swizzle == "128_32" else 8
    for r in range(rows.shape[0]):
        unit, inside = divmod(r, per_unit)
        for k in range(rows.shape[1] // size):
            if swizzle == "none":
                at = offset + unit * stride + k % 8 * 16 + k // 8 * leading
            else:
                at = offset + unit % width * 16 + unit // width * leading
                at = swizzled(swizzle, at + k % group * width * 16 + k // group * stride)
            image[at + inside * size : at + (inside + 1) * size] = rows[r, k * size : (k + 1) * size]


# ---- values of the formats ------------------------------------------------------------------------------


def minifloat(code: int, exponent_bits: int, mantissa_bits: int, bias: int) -> float:
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) & 1 else 1.0
    exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1)
    mantissa = code & ((1 << mantissa_bits) - 1)
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)


@dataclass(frozen=True)
class Format:
    code: int  # in the instruction descriptor
    bits: int
    values: tuple[tuple[int, float], ...]  # codes whose products and sums stay exact in f32

    def draw(self, random: numpy.random.Generator, shape: tuple[int, ...]) -> tuple[numpy.ndarray, numpy.ndarray]:
        at = random.integers(0, len(self.values), shape)
        codes, values = zip(*self.values)
        return numpy.array(codes, numpy.uint32)[at], numpy.array(values)[at]


def small(exponent_bits: int, mantissa_bits: int, bias: int, bits: int) -> tuple[tuple[int, float], ...]:
    """All codes of an 8-, 6- or 4-bit format that are at most 8 in magnitude and multiples of 1/8."""
    table = [(c, minifloat(c, exponent_bits, mantissa_bits, bias)) for c in range(1 << bits)]
    return tuple((c, v) for c, v in table if abs(v) <= 8 and v * 8 == int(v * 8))


def integers_as(kind: str) -> tuple[tuple[int, float], ...]:
    out = []
    for v in range(-32, 33):
        x = numpy.float32(v / 4)
        bits = int(x.view(numpy.uint32))
        if kind == "f16":
            bits = int(numpy.float16(x).view(numpy.uint16))
        if kind == "bf16":
            bits >>= 16
        out.append((bits, float(x)))
    return tuple(out)


FORMATS = {
    "f16": Format(0, 16, integers_as("f16")),
    "bf16": Format(1, 16, integers_as("bf16")),
    "tf32": Format(2, 32, integers_as("tf32")),
    "e4m3": Format(0, 8, small(4, 3, 7, 8)),
    "e5m2": Format(1, 8, small(5, 2, 15, 8)),
    "e2m3": Format(3, 6, small(2, 3, 1, 6)),
    "e3m2": Format(4, 6, small(3, 2, 3, 6)),
    "e2m1": Format(5, 4, small(2, 1, 1, 4)),
    "packed": Format(1, 4, small(2, 1, 1, 4)),
    "u8": Format(0, 8, tuple((v, v) for v in range(256))),
    "s8": Format(1, 8, tuple((v & 255, v) for v in range(-128, 128))),
}
DEPTH = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}


def row_bytes(codes: numpy.ndarray, name: str) -> numpy.ndarray:
    """Rows of K elements as the 32 bytes that shared memory holds."""
    kind, (rows, k) = FORMATS[name], codes.shape
    if name == "packed":
        return (codes[:, ::2] | codes[:, 1::2] << 4).astype(numpy.uint8)
    if kind.bits >= 8:
        return codes.astype(f"<u{kind.bits // 8}").view(numpy.uint8).reshape(rows, -1)
    out = numpy.full((rows, k), 0xEE, numpy.uint8)  # 16 packed elements and padding in 16 bytes
    for r in range(rows):
        for unit in range(0, k, 16):
            packed = sum(int(codes[r, unit + i]) << (kind.bits * i) for i in range(16))
            out[r, unit : unit + 2 * kind.bits] = list(packed.to_bytes(2 * kind.bits, "little"))
    return out


def tensor_bytes(codes: numpy.ndarray, name: str) -> numpy.ndarray:
    """The same as A in tensor memory has it: one element a byte, e2m1 in bits 5-2."""
    if name == "packed" or FORMATS[name].bits >= 8:
        return row_bytes(codes, name)
    return (codes << (2 if name == "e2m1" else 0)).astype(numpy.uint8)


# ---- where test_tcgen05*.py put operands

# columns of tensor memory, and bytes of the image of shared memory
D_COLUMN, A_COLUMN, SFA_COLUMN, SFB_COLUMN, TENSOR_COLUMNS = 0, 256, 280, 290, 512
A_AT, B_AT, IMAGE = 0, 32768, 98304


def put_scales(image: numpy.ndarray, column: int, codes: numpy.ndarray, first_byte: int) -> None:
    """Row i in lane i % 32 of every quarter, column i / 32."""
    cells = image.view(numpy.uint8).reshape(LANES, -1, 4)
    for i, row in enumerate(codes):
        for quarter in range(4):
            cells[32 * quarter + i % 32, column + i // 32, first_byte : first_byte + len(row)] = row
