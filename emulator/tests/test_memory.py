"""Loads, stores, fences and cache hints; allocations, and faults of invalid addresses."""

from __future__ import annotations

import numpy
import pytest
from small_kernel import Emulator, EmulatorError, entry, load_only, module, random_of, run

TYPES = ["b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"]
BITS = {name: int(name[1:]) for name in TYPES}
REGISTER = {16: "%h", 32: "%r", 64: "%d"}
POISON32 = 0xFFFFFFFF


def forms() -> list[tuple[str, int, int]]:
    """(type, vector, bits of the registers)"""
    made = []
    for name in TYPES:
        for vector in (1, 2, 4, 8):
            if BITS[name] * vector > (256 if BITS[name] >= 32 else 128) or (vector == 8 and BITS[name] != 32):
                continue
            widths = [w for w in (16, 32, 64) if w >= BITS[name]] if name[0] != "f" else [BITS[name]]
            made += [(name, vector, width) for width in widths]
    return made


def addresses(pattern: str, lanes: int, rows: int, random: numpy.random.Generator) -> numpy.ndarray:
    """The element that each lane reads or writes."""
    if pattern == "dense":
        return numpy.arange(lanes) + int(random.integers(0, rows - lanes + 1))
    if pattern == "uniform":
        return numpy.full(lanes, random.integers(0, rows))
    if pattern == "strided":
        return numpy.arange(lanes) * (rows // lanes)
    return random.permutation(rows)[:lanes]


def vector(names: list[str]) -> str:
    return names[0] if len(names) == 1 else "{" + ", ".join(names) + "}"


def suffix(count: int) -> str:
    return f".v{count}" if count > 1 else ""


def lanes_of(mask: int) -> numpy.ndarray:
    return (mask >> numpy.arange(32, dtype=numpy.uint64) & numpy.uint64(1)).astype(bool)


def extended(raw: numpy.ndarray, name: str, width: int) -> numpy.ndarray:
    """The registers' values, as unsigned numbers of their width."""
    signed = name[0] == "s"
    values = raw.view(f"{'i' if signed else 'u'}{BITS[name] // 8}")
    return values.astype(numpy.int64 if signed else numpy.uint64).astype(numpy.uint64) & numpy.uint64((1 << width) - 1)


ROWS = 96


def address_text(space: str, size: int) -> tuple[str, str]:
    """Instructions that leave the address of the lane's element (whose index is %r0) in %d9, and the qualifier."""
    offset = f"  mul.wide.u32 %d8, %r0, {size};\n"
    if space in ("global", "generic global"):
        return offset + "  add.u64 %d9, %a1, %d8;\n", ".global" if space == "global" else ""
    if space in ("shared", "generic shared"):
        base = "  mov.u64 %d7, smem;\n"
        if space == "generic shared":
            return base + "  cvta.shared.u64 %d7, %d7;\n" + offset + "  add.u64 %d9, %d7, %d8;\n", ""
        return base + offset + "  add.u64 %d9, %d7, %d8;\n", ".shared"
    base = "  mov.u64 %d7, own;\n"
    if space == "generic local":
        return base + "  cvta.local.u64 %d7, %d7;\n" + offset + "  add.u64 %d9, %d7, %d8;\n", ""
    return base + offset + "  add.u64 %d9, %d7, %d8;\n", ".local"


SPACES = ["global", "generic global", "shared", "generic shared", "local", "generic local"]


def fill(space: str, size: int) -> str:
    """Copies the rows of %a1 to where the space has them, byte by byte."""
    if "global" in space:
        return ""
    where = "smem" if "shared" in space else "own"
    kind = "shared" if "shared" in space else "local"
    first, step = ("%t", 32) if kind == "shared" else ("0", 1)
    return f"""
  mov.u32 %r1, {first};
FILL:
  cvt.u64.u32 %d1, %r1;
  add.u64 %d2, %a1, %d1;
  ld.global.u8 %r2, [%d2];
  mov.u64 %d3, {where};
  add.u64 %d3, %d3, %d1;
  st.{kind}.u8 [%d3], %r2;
  add.u32 %r1, %r1, {step};
  setp.lt.u32 %p1, %r1, {ROWS * size};
  @%p1 bra FILL;
  bar.sync 0;
"""


def prologue(space: str, size: int) -> str:
    local = f"  .local .align 32 .b8 own[{ROWS * size}];\n" if "local" in space else ""
    return f"""{local}{fill(space, size)}
  mul.wide.u32 %d0, %t, 4;
  add.u64 %d1, %a2, %d0;
  ld.global.u32 %r0, [%d1];
  cvt.u32.u64 %r3, %a3;
  shr.u32 %r3, %r3, %t;
  and.b32 %r3, %r3, 1;
  setp.ne.u32 %p0, %r3, 0;
"""


@pytest.mark.parametrize("space", SPACES)
def test_loads(space: str) -> None:
    random = random_of(f"loads {space}")
    for name, count, width in forms():
        size = BITS[name] // 8 * count
        if size == 32 and "global" not in space:
            continue
        raw = random.integers(0, 256, ROWS * size, dtype=numpy.uint8)
        index = addresses(str(random.choice(["dense", "uniform", "strided", "scattered"])), 32, ROWS, random)
        mask = int(random.choice([0xFFFFFFFF, int(random.integers(1, 2**32))]))
        registers = [f"{REGISTER[width]}{10 + i}" for i in range(count)]
        store = "".join(
            f"  st.global.b{width} [%d5+{i * width // 8}], {register};\n" for i, register in enumerate(registers)
        )
        to_address, qualifier = address_text(space, size)
        body = f"""{prologue(space, size)}{to_address}
{"".join(f"  mov.b{width} {register}, {0x5A5A};" for register in registers)}
  @%p0 ld{qualifier}{suffix(count)}.{name} {vector(registers)}, [%d9];
  mul.wide.u32 %d5, %t, {count * width // 8};
  add.u64 %d5, %a0, %d5;
{store}"""
        out = numpy.zeros((32, count), dtype=f"u{width // 8}")
        (got, *_) = run(body, [out, raw, index.astype(numpy.uint32), mask], shared=ROWS * 32)
        expected = extended(raw, name, width).reshape(ROWS, count)[index]
        expected[~lanes_of(mask)] = 0x5A5A
        numpy.testing.assert_array_equal(got.astype(numpy.uint64), expected, f"{space} {name} x{count} in {width}")


@pytest.mark.parametrize("space", SPACES)
def test_stores(space: str) -> None:
    random = random_of(f"stores {space}")
    for name, count, width in forms():
        size = BITS[name] // 8 * count
        if size == 32 and "global" not in space:
            continue
        raw = random.integers(0, 256, ROWS * size, dtype=numpy.uint8)
        index = addresses(str(random.choice(["dense", "strided", "scattered"])), 32, ROWS, random)
        mask = int(random.choice([0xFFFFFFFF, int(random.integers(1, 2**32))]))
        source = random.integers(0, 256, 32 * count * width // 8, dtype=numpy.uint8)
        registers = [f"{REGISTER[width]}{10 + i}" for i in range(count)]
        load = "".join(
            f"  ld.global.b{width} {register}, [%d5+{i * width // 8}];\n" for i, register in enumerate(registers)
        )
        to_address, qualifier = address_text(space, size)
        # what was stored is copied back row by row: for local memory by the lane that wrote it
        back = "" if "global" in space else f"  bar.sync 0;\n  add.u64 %d6, %a0, 0;\n  mul.wide.u32 %d4, %r0, {size};\n"
        if back:
            back += "  add.u64 %d6, %d6, %d4;\n"
            back += "".join(
                f"  ld{qualifier}.u8 %r20, [%d9+{i}];\n  @%p0 st.global.u8 [%d6+{i}], %r20;\n" for i in range(size)
            )
        body = f"""{prologue(space, size)}{to_address}
  mul.wide.u32 %d5, %t, {count * width // 8};
  add.u64 %d5, %a4, %d5;
{load}  @%p0 st{qualifier}{suffix(count)}.{name} [%d9], {vector(registers)};
{back}"""
        out = raw.copy()
        results = run(body, [out, raw.copy(), index.astype(numpy.uint32), mask, source], shared=ROWS * 32)
        got = results[1] if "global" in space else results[0]
        values = source.view(f"u{width // 8}").astype(f"u{BITS[name] // 8}").reshape(32, count)
        expected = raw.copy().view(f"u{BITS[name] // 8}").reshape(ROWS, count)
        expected[index[lanes_of(mask)]] = values[lanes_of(mask)]
        numpy.testing.assert_array_equal(
            got, expected.reshape(-1).view(numpy.uint8), f"{space} {name} x{count} from {width}"
        )


def test_128_bits() -> None:
    random = random_of("b128")
    raw = random.integers(0, 2**64, (64, 2), dtype=numpy.uint64)
    body = """
  mul.wide.u32 %d0, %t, 16;
  add.u64 %d1, %a1, %d0;
  ld.global.b128 %q0, [%d1+512];
  cvt.u32.u64 %r0, %d0;
  add.u32 %r0, %r0, %smem;
  st.shared.b128 [%r0], %q0;
  bar.sync 0;
  xor.b32 %r1, %t, 31;
  mad.lo.u32 %r1, %r1, 16, %smem;
  ld.shared.b128 %q1, [%r1];
  add.u64 %d2, %a0, %d0;
  st.global.b128 [%d2], %q1;
"""
    got, _ = run(body, [numpy.zeros((32, 2), numpy.uint64), raw])
    numpy.testing.assert_array_equal(got, raw[32:][::-1])


def test_parameters_and_constants() -> None:
    random = random_of("constants")
    table = random.integers(0, 2**32, 64, dtype=numpy.uint32)
    text = ", ".join(map(str, table))
    body = """
  mul.wide.u32 %d0, %lane, 4;
  mov.u64 %d1, table;
  add.u64 %d1, %d1, %d0;
  ld.const.u32 %r0, [%d1];
  ld.const.v2.u32 {%r1, %r2}, [table+8];
  ld.param.v2.u32 {%r3, %r4}, [a5];
  ld.param.u16 %r5, [a5+2];
  ld.param::entry.s8 %r6, [a5+7];
  cvta.const.u64 %d2, %d1;
  ld.u32 %r7, [%d2+128];
  mul.wide.u32 %d3, %t, 32;
  add.u64 %d3, %a0, %d3;
  st.global.v8.b32 [%d3], {%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7};
"""
    value = 0x9A_76_54_32_10_FE_DC_BA
    (got,) = run(
        body,
        [numpy.zeros((32, 8), numpy.uint32), 0, 0, 0, 0, value],
        variables=f".const .align 16 .u32 table[64] = {{{text}}};\n",
    )
    lane = numpy.arange(32)
    expected = numpy.empty((32, 8), numpy.uint32)
    expected[:, 0] = table[lane]
    expected[:, 1:3] = table[2:4]
    expected[:, 3:7] = [value & POISON32, value >> 32, value >> 16 & 0xFFFF, 0xFFFFFF9A]
    expected[:, 7] = table[lane + 32]
    numpy.testing.assert_array_equal(got, expected)


def test_uninitialised_memory_is_poison() -> None:
    body = """
  mad.lo.u32 %r0, %t, 4, %smem;
  ld.shared.u32 %r1, [%r0];
  mul.wide.u32 %d0, %t, 4;
  add.u64 %d1, %a0, %d0;
  st.global.u32 [%d1], %r1;
"""
    (got,) = run(body, [numpy.zeros(32, numpy.uint32)])
    assert (got == POISON32).all()
    emulator = Emulator()
    assert (emulator.empty(1000, numpy.uint8).numpy() == 0xFF).all()


# ---- modifiers ------------------------------------------------------------------------------------------------------

LOADS = [
    "ld.global.ca.u32",
    "ld.global.cg.u32",
    "ld.global.cs.u32",
    "ld.global.lu.u32",
    "ld.global.cv.u32",
    "ld.weak.global.u32",
    "ld.volatile.global.u32",
    "ld.relaxed.cta.global.u32",
    "ld.relaxed.cluster.global.u32",
    "ld.relaxed.gpu.global.u32",
    "ld.relaxed.sys.global.u32",
    "ld.acquire.gpu.global.u32",
    "ld.acquire.sys.u32",
    "ld.mmio.relaxed.sys.global.u32",
    "ld.global.relaxed.gpu.u32",
    "ld.global.nc.u32",
    "ld.global.ca.nc.u32",
    "ld.global.nc.L1::evict_last.u32",
    "ld.global.nc.L1::no_allocate.L2::128B.u32",
    "ld.global.L1::evict_normal.u32",
    "ld.global.L1::evict_unchanged.u32",
    "ld.global.L1::evict_first.u32",
    "ld.global.L2::64B.u32",
    "ld.global.L2::256B.u32",
    "ld.L2::128B.u32",
    "ldu.global.u32",
    "ldu.u32",
    "ld.relaxed.gpu.global.L1::no_allocate.L2::256B.u32",
]
STORES = [
    "st.global.wb.u32",
    "st.global.cg.u32",
    "st.global.cs.u32",
    "st.global.wt.u32",
    "st.weak.global.u32",
    "st.volatile.global.u32",
    "st.relaxed.cta.global.u32",
    "st.release.gpu.global.u32",
    "st.release.sys.u32",
    "st.mmio.relaxed.sys.global.u32",
    "st.global.L1::evict_last.u32",
    "st.global.L1::no_allocate.u32",
    "st.relaxed.cta.global.L1::no_allocate.u32",
]


def test_every_modifier_of_loads_and_stores() -> None:
    random = random_of("modifiers")
    hinted = ["ld.global.L2::cache_hint.u32", "ld.global.nc.L1::evict_first.L2::cache_hint.L2::256B.u32"]
    lines = ["  createpolicy.fractional.L2::evict_last.b64 %d10, 0.5;", "  mul.wide.u32 %d0, %t, 4;"]
    for i, load in enumerate(LOADS + hinted):
        policy = ", %d10" if "hint" in load else ""
        store = STORES[i % len(STORES)]
        lines += [
            f"  add.u64 %d1, %a1, {128 * i};",
            "  add.u64 %d1, %d1, %d0;",
            f"  {load} %r1, [%d1]{policy};",
            f"  add.u64 %d2, %a0, {128 * i};",
            "  add.u64 %d2, %d2, %d0;",
            f"  {store} [%d2], %r1;",
        ]
    lines += ["  st.global.L1::evict_first.L2::cache_hint.u32 [%d2], %r1, %d10;"]
    source = random.integers(0, 2**32, (len(LOADS) + 2, 32), dtype=numpy.uint32)
    got, _ = run("\n".join(lines), [numpy.zeros_like(source), source])
    numpy.testing.assert_array_equal(got, source)


@pytest.mark.parametrize(
    "instruction",
    [
        "ld.global.unheard.u32 %r1, [%a0];",
        "ld.global.v3.u32 {%r1, %r2, %r3}, [%a0];",
        "ld.global.v2.u32 {%r1, %r2, %r3}, [%a0];",
        "ld.global.v8.u64 {%d1, %d2, %d3, %d4, %d5, %d6, %d7, %d8}, [%a0];",
        "ld.global.u32 %h1, [%a0];",
        "ld.release.gpu.global.u32 %r1, [%a0];",
        "ld.relaxed.global.u32 %r1, [%a0];",
        "ld.mmio.sys.global.u32 %r1, [%a0];",
        "ld.shared.nc.u32 %r1, [%smem];",
        "st.acquire.gpu.global.u32 [%a0], %r1;",
        "st.const.u32 [%a0], %r1;",
        "st.global.f16 [%a0], %h1;",
        "fence.proxy.unheard;",
        "fence.acq_rel;",
        "fence.sync_restrict::shared::cta.cluster;",
        "membar.gpu;",
        "prefetch.shared.L1 [%a0];",
        "prefetch.global.L3 [%a0];",
        "discard.global.L2 [%a0], 64;",
        "atom.global.add.s64 %d1, [%a0], %d2;",
        "atom.global.exch.u32 %r1, [%a0], %r2;",
        "atom.global.add.f16 %h1, [%a0], %h2;",
        "red.acquire.gpu.global.add.u32 [%a0], %r1;",
        "cp.async.cg.shared.global [%smem], [%a0], 8;",
        "shfl.idx.b32 %r1, %r2, 0, 31;",
    ],
)
def test_what_is_unknown_is_rejected(instruction: str) -> None:
    with pytest.raises(EmulatorError) as rejected:
        load_only(f"  {instruction}")
    assert instruction in str(rejected.value)


def test_fences_and_caches() -> None:
    fences = [f"fence.{kind}.{scope};" for kind in ("sc", "acq_rel", "acquire", "release") for scope in ("cta", "sys")]
    fences += [
        "fence.cluster;",
        "fence.acquire.sync_restrict::shared::cluster.cluster;",
        "fence.release.sync_restrict::shared::cta.cluster;",
        "fence.mbarrier_init.release.cluster;",
        "fence.proxy.alias;",
        "fence.proxy.async;",
        "fence.proxy.async.global;",
        "fence.proxy.async.shared::cta;",
        "fence.proxy.async.shared::cluster;",
        "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;",
        "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;",
        "fence.proxy.tensormap::generic.release.gpu;",
        "fence.proxy.tensormap::generic.acquire.gpu [%a0], 128;",
        "membar.cta;",
        "membar.gl;",
        "membar.sys;",
        "membar.proxy.alias;",
        "prefetch.global.L1 [%a0];",
        "prefetch.L2 [%a0];",
        "prefetch.local.L1 [%a0];",
        "prefetch.global.L2::evict_last [%a0];",
        "prefetchu.L1 [%a0];",
        "applypriority.global.L2::evict_normal [%a0], 128;",
        "createpolicy.range.global.L2::evict_last.L2::evict_first.b64 %d1, [%a0], 1024, 4096;",
        "createpolicy.fractional.L2::evict_first.b64 %d1;",
        "createpolicy.cvt.L2.b64 %d1, %d2;",
    ]
    run("\n".join(f"  {line}" for line in fences), [numpy.zeros(64, numpy.uint32)])
    (got,) = run("  discard.global.L2 [%a0+128], 128;", [numpy.zeros(96, numpy.uint32)])
    assert (got == numpy.repeat([0, POISON32, 0], 32)).all()


# ---- faults ---------------------------------------------------------------------------------------------------------


def fault_of(body: str, arguments: list[object], **settings: object) -> str:
    with pytest.raises(EmulatorError) as raised:
        run(body, arguments, **settings)
    return str(raised.value)


@pytest.mark.parametrize(
    ("instruction", "words"),
    [
        ("ld.global.u32 %r1, [%a0+4096];", ["reads 4 bytes", "right behind the allocation of 4096 bytes"]),
        ("ld.global.v4.u32 {%r1,%r2,%r3,%r4}, [%a0+4128];", ["32 bytes behind the end of the allocation of 4096"]),
        ("st.global.u64 [%a0+-16], %d1;", ["writes 8 bytes", "16 bytes before the allocation of 4096 bytes"]),
        ("ld.global.u32 %r1, [%a0+2];", ["must be a multiple of 4"]),
        ("st.global.v2.u64 [%a0+8], {%d1, %d2};", ["must be a multiple of 16"]),
        ("ld.global.u32 %r1, [64];", ["null pointer"]),
        ("ld.shared.u32 %r1, [%smem+4096];", ["outside of the shared memory", "4096 bytes"]),
        ("ld.shared.u32 %r1, [0];", ["outside of the shared memory"]),
        ("st.shared.u32 [%smem+0x1000000], %r1;", ["CTA 1 of the cluster", "shared::cta"]),
        ("ld.shared::cluster.u32 %r1, [%smem+0x1000000];", ["CTA 1 of a cluster of 1"]),
        ("mov.u64 %d1, smem; cvta.shared.u64 %d1, %d1; ld.shared.u32 %r1, [%d1];", ["generic address"]),
        ("mov.u64 %d1, smem; cvta.shared.u64 %d1, %d1; ld.global.u32 %r1, [%d1];", ["generic address"]),
        ("mov.u64 %d1, own; ld.local.u32 %r1, [%d1+64];", ["64 bytes of local memory"]),
        ("mov.u64 %d1, 0x5000000000000000; ld.u32 %r1, [%d1];", ["no window"]),
        ("atom.global.add.u32 %r1, [%a0+4094], 1;", ["must be a multiple of 4"]),
        ("red.shared.add.u32 [%smem+4096], 1;", ["outside of the shared memory"]),
        ("cp.async.ca.shared.global [%smem], [%a0+4092], 8;", ["multiple of 8"]),
        ("cp.async.ca.shared.global [%smem+4096], [%a0], 4;", ["copies to 4 bytes", "outside of the shared"]),
        ("cp.async.ca.shared.global [%smem], [%a0+8192], 4;", ["copies from 4 bytes"]),
        ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%smem+8];", ["must be a multiple of 16"]),
    ],
)
def test_faults(instruction: str, words: list[str]) -> None:
    said = fault_of(f"  .local .align 8 .b8 own[64];\n  {instruction}", [numpy.zeros(1024, numpy.uint32)])
    for word in ["kernel run", "warp 0", *words]:
        assert word in said, said


def test_one_lane_of_many_is_out_of_bounds() -> None:
    random = random_of("one lane")
    bad = int(random.integers(0, 32))
    offsets = random.permutation(32).astype(numpy.uint32) * 4
    offsets[bad] = 128 + 4 * random.integers(0, 8)
    body = """
  mul.wide.u32 %d0, %t, 4;
  add.u64 %d1, %a1, %d0;
  ld.global.u32 %r0, [%d1];
  cvt.u64.u32 %d2, %r0;
  add.u64 %d2, %d2, %a0;
  st.global.u32 [%d2], %r0;
"""
    said = fault_of(body, [numpy.zeros(32, numpy.uint32), offsets])
    assert f"lane {bad} " in said and "allocation of 128 bytes" in said


def test_freed_memory() -> None:
    emulator = Emulator()
    kernel = emulator.load(module(entry("  ld.global.u32 %r0, [%a0];")))["run"]
    gone, kept = emulator.array(numpy.zeros(100, numpy.uint32)), emulator.array(numpy.zeros(4, numpy.uint32))
    emulator.launch(kernel, args=[gone, kept, 0, 0, 0, 0])
    address = gone.address
    gone.free()
    with pytest.raises(EmulatorError, match="allocation of 400 bytes .* has been freed"):
        emulator.launch(kernel, args=[address, 0, 0, 0, 0, 0])


def test_allocations() -> None:
    """Many of them, of random sizes and lives: aligned, apart from each other, and memory is given back."""
    random = random_of("allocations")
    emulator = Emulator()
    live = {}
    for step in range(2000):
        if live and random.random() < 0.45:
            key = list(live)[int(random.integers(len(live)))]
            array = live.pop(key)
            assert (array.numpy() == key % 251).all()
            array.free()
        else:
            array = emulator.empty(int(random.choice([1, 255, 256, 5000, 100000])), numpy.uint8)
            assert array.address % 256 == 0 and (array.numpy() == 0xFF).all()
            array.numpy()[:] = step % 251
            live[step] = array
    spans = sorted((a.address, a.address + a.nbytes) for a in live.values())
    assert all(end + 256 <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))


def test_host_memory() -> None:
    emulator = Emulator(host_memory=0)
    kernel = emulator.load(module(entry("  ld.global.u32 %r0, [%a0];\n  st.global.u32 [%a1], %r0;")))["run"]
    host = numpy.full(4, 77, numpy.uint32)
    out = emulator.array(numpy.zeros(1, numpy.uint32))
    with pytest.raises(EmulatorError, match="not device memory"):
        emulator.launch(kernel, args=[host.ctypes.data, out, 0, 0, 0, 0])
    emulator = Emulator(host_memory=1)
    kernel = emulator.load(module(entry("  ld.global.u32 %r0, [%a0];\n  st.global.u32 [%a1], %r0;")))["run"]
    out = emulator.array(numpy.zeros(1, numpy.uint32))
    emulator.launch(kernel, args=[host.ctypes.data, out, 0, 0, 0, 0])
    assert out.numpy()[0] == 77
