"""Tensor memory: allocation, tcgen05.ld and st in every shape, wait, and the order that fences give."""

from __future__ import annotations

import itertools
from contextlib import nullcontext

import numpy
import pytest
from tensor_core import COLUMNS, HEADER, LANES, POISON, Emulator, EmulatorError, random_of, run_tensor_core

THREADS = 128
PER_COLUMN = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}  # registers of .x1
WIDTH = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8, "16x32bx2": 1}  # columns of .x1
FORMS = [(shape, 1 << n) for shape, registers in PER_COLUMN.items() for n in range(8) if registers << n <= 128]


def place(shape: str, register: int, thread: int) -> tuple[int, int]:
    """(lane, column) of a register of a thread of the warp, from the fragments' figures."""
    if shape == "32x32b":
        return thread, register
    if shape == "16x32bx2":
        return thread % 16, register
    row, pair = divmod(thread, 4)
    if shape == "16x64b":  # even threads have rows 0-7, odd ones rows 8-15
        return row + 8 * (pair % 2), pair // 2 + 2 * register
    if shape == "16x128b":  # four columns a row; every second register is 8 rows below
        block, below = divmod(register, 2)
        return row + 8 * below, pair + 4 * block
    block, within = divmod(register, 4)  # 16x256b: two neighbouring columns a thread
    below, column = divmod(within, 2)
    return row + 8 * below, 2 * pair + column + 8 * block


def access(kind: str, shape: str, repeat: int, packed: bool, at: int, split: int, wait: bool = True) -> str:
    """All warps: registers between tensor memory at `at` (relative) and extra[thread][register]."""
    count = repeat * PER_COLUMN[shape]
    registers = [f"%a{i}" for i in range(count)]
    names = "{" + ", ".join(registers) + "}"
    modifier = {"ld": ".pack::16b", "st": ".unpack::16b"}[kind] if packed else ""
    offset = f", {split}" if shape == "16x32bx2" else ""
    operands = f"{names}, [%at]{offset}" if kind == "ld" else f"[%at]{offset}, {names}"
    instruction = f"tcgen05.{kind}.sync.aligned.{shape}.x{repeat}{modifier}.b32 {operands};"
    waiting = f"tcgen05.wait::{kind}.sync.aligned;" if wait else ""
    if kind == "ld":
        moves = [f"st.global.u32 [%from + {4 * i}], {r};" for i, r in enumerate(registers)]
        lines = [instruction, waiting, *moves]
    else:
        moves = [f"ld.global.u32 {r}, [%from + {4 * i}];" for i, r in enumerate(registers)]
        lines = [*moves, instruction, waiting]
    return "\n".join(
        [
            "{",
            f".reg .b32 %a<{count}>;",
            f"add.u32 %at, %where, {at};",
            f"mul.lo.u32 %i, %thread, {4 * count};",
            "cvt.u64.u32 %from, %i;",
            "ld.param.u64 %offset, [extra];",
            "add.u64 %from, %from, %offset;",
            *lines,
            "}",
        ]
    )


def cells(shape: str, repeat: int, packed: bool, column: int, upper: bool, split: int):
    """For each thread and register: the lane and the one or two columns."""
    for thread in range(THREADS):
        for register in range(repeat * PER_COLUMN[shape]):
            lane, at = place(shape, register, thread % 32)
            lane += thread // 32 * 32 + 16 * upper
            at = column + at * (2 if packed else 1)
            if shape == "16x32bx2" and thread % 32 >= 16:
                at += split
            yield thread, register, lane, at


def geometry(random: numpy.random.Generator, shape: str, repeat: int, packed: bool) -> tuple[int, int, bool] | None:
    """A random column, split offset and half of the quarter that fit; None if the form is too wide."""
    width = WIDTH[shape] * repeat * (2 if packed else 1)
    halves = 2 if shape == "16x32bx2" else 1
    if width * halves > COLUMNS:
        return None
    split = int(random.integers(width, COLUMNS - width + 1)) // 2 * 2 if halves == 2 else 0
    column = int(random.integers(0, COLUMNS - width - split + 1))
    return column, split, bool(shape != "32x32b" and random.integers(2))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape, repeat", FORMS)
def test_load(shape: str, repeat: int, packed: bool) -> None:
    random = random_of(f"load {shape} {repeat} {packed}")
    placed = geometry(random, shape, repeat, packed)
    if placed is None:
        return
    column, split, upper = placed
    image = random.integers(0, 2**32, (1, LANES, COLUMNS), dtype=numpy.uint32)
    got = numpy.zeros((THREADS, repeat * PER_COLUMN[shape]), numpy.uint32)
    body = access("ld", shape, repeat, packed, column + (upper << 20), split)
    after = run_tensor_core("", numpy.zeros(4), image, seed=int(random.integers(100)), warps=body, extra=got)
    expected = numpy.zeros_like(got)
    for thread, register, lane, at in cells(shape, repeat, packed, column, upper, split):
        low = image[0, lane, at]
        expected[thread, register] = low & 0xFFFF | image[0, lane, at + 1] << 16 if packed else low
    numpy.testing.assert_array_equal(got, expected)
    numpy.testing.assert_array_equal(after, image)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape, repeat", FORMS)
def test_store(shape: str, repeat: int, packed: bool) -> None:
    random = random_of(f"store {shape} {repeat} {packed}")
    placed = geometry(random, shape, repeat, packed)
    if placed is None:
        return
    column, split, upper = placed
    image = random.integers(0, 2**32, (1, LANES, COLUMNS), dtype=numpy.uint32)
    values = random.integers(0, 2**32, (THREADS, repeat * PER_COLUMN[shape]), dtype=numpy.uint32)
    expected = image.copy()
    hit = numpy.zeros((LANES, COLUMNS), int)
    for thread, register, lane, at in cells(shape, repeat, packed, column, upper, split):
        value = values[thread, register]
        hit[lane, at] += 1
        if packed:
            expected[0, lane, at], expected[0, lane, at + 1] = value & 0xFFFF, value >> 16
        else:
            expected[0, lane, at] = value
    assert hit.max() == 1
    body = access("st", shape, repeat, packed, column + (upper << 20), split)
    after = run_tensor_core("", numpy.zeros(4), image, seed=int(random.integers(100)), warps=body, extra=values)
    numpy.testing.assert_array_equal(after, expected)


def test_registers_are_poison_until_the_wait() -> None:
    random = random_of("no wait")
    image = random.integers(0, 2**31, (1, LANES, 32), dtype=numpy.uint32)
    for seed in range(4):
        got = numpy.zeros((THREADS, 8), numpy.uint32)
        body = access("ld", "32x32b", 8, False, 0, 0, wait=False) + "\ntcgen05.wait::ld.sync.aligned;"
        run_tensor_core("", numpy.zeros(4), image, seed=seed, warps=body, extra=got)
        assert (got == POISON).all()


def test_moves_may_come_before_the_wait() -> None:
    """Compilers rename registers, and pack them in pairs, between a load and its wait."""
    random = random_of("moves")
    image = random.integers(0, 2**32, (1, LANES, 32), dtype=numpy.uint32)
    got = numpy.zeros((THREADS, 2), numpy.uint32)
    body = """
  { .reg .b32 %a, %b, %c, %e; .reg .b64 %pair;
  tcgen05.ld.sync.aligned.32x32b.x2.b32 {%a, %b}, [%where];
  mov.b32 %c, %a;
  mov.b64 %pair, {%b, %c};
  tcgen05.wait::ld.sync.aligned;
  mov.b64 {%a, %e}, %pair;
  mul.wide.u32 %from, %thread, 8;
  ld.param.u64 %offset, [extra];
  add.u64 %from, %from, %offset;
  st.global.v2.u32 [%from], {%e, %a};
  }"""
    for seed in range(6):
        run_tensor_core("", numpy.zeros(4), image, seed=seed, warps=body, extra=got)
        numpy.testing.assert_array_equal(got, image[0, :, :2])


def test_a_store_is_late_until_its_wait() -> None:
    random = random_of("late store")
    image = random.integers(0, 2**31, (1, LANES, 32), dtype=numpy.uint32)
    body = """
  { .reg .b32 %a; mov.b32 %a, 1234;
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%where], {%a};
  WAIT
  tcgen05.ld.sync.aligned.32x32b.x1.b32 {%a}, [%where];
  tcgen05.wait::ld.sync.aligned;
  tcgen05.wait::st.sync.aligned;
  mul.wide.u32 %from, %thread, 4;
  ld.param.u64 %offset, [extra];
  add.u64 %from, %from, %offset;
  st.global.u32 [%from], %a;
  }"""
    stale = 0
    for seed in range(20):
        got = numpy.zeros(THREADS, numpy.uint32)
        run_tensor_core("", numpy.zeros(4), image, seed=seed, warps=body.replace("WAIT", ""), extra=got)
        stale += not (got == 1234).all()
        run_tensor_core(
            "",
            numpy.zeros(4),
            image,
            seed=seed,
            warps=body.replace("WAIT", "tcgen05.wait::st.sync.aligned;"),
            extra=got,
        )
        assert (got == 1234).all()
    assert stale > 0


# ---- order between warps ------------------------------------------------------------------------------------------

# Warp 0 stores to lane 0-31; the core shifts these rows; warp 0 loads them again.
EXCHANGE = """
  { .reg .b32 %a;
  bar.sync 1; // earlier fences are older than all that follows
  mov.b32 %a, %thread;
  setp.ne.u32 %p, %warp, 0;
  @%p bra waiting;
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%where], {%a};
  tcgen05.wait::st.sync.aligned;
  BEFORE
waiting:
  bar.sync 1;
  setp.ne.u32 %p, %thread, 32;
  @%p bra shifted;
  AFTER
  tcgen05.shift.cta_group::1.down [%taddr];
  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%mbar];
shifted:
  mbarrier.try_wait.parity.shared::cta.b64 %wait, [%mbar], 1;
  @!%wait bra shifted;
  AGAIN
  }"""


def exchange(seed: int, missing: str, **settings: str) -> numpy.ndarray:
    body = EXCHANGE
    for name, fence in {"BEFORE": "before", "AFTER": "after", "AGAIN": "after"}.items():
        body = body.replace(name, "" if name == missing else f"tcgen05.fence::{fence}_thread_sync;")
    image = numpy.zeros((1, LANES, 32), numpy.uint32)
    return run_tensor_core("", numpy.zeros(4), image, seed=seed, warps=body, **settings)[0, :32, 0]


@pytest.mark.parametrize("missing", ["", "BEFORE", "AFTER", "AGAIN"])
def test_fences(missing: str) -> None:
    right = numpy.concatenate([[0], numpy.arange(31)]).astype(numpy.uint32)
    for seed in range(8):
        got = exchange(seed, missing)
        if missing:
            assert not (got == right).all(), seed
        else:
            numpy.testing.assert_array_equal(got, right)
        numpy.testing.assert_array_equal(exchange(seed, missing, fences="hardware"), right)


# ---- allocation -----------------------------------------------------------------------------------------------------

ALLOCATE = """
.visible .entry allocate(.param .u64 result)
{{
  .reg .b32 %r<16>; .reg .b64 %rd<8>; .reg .pred %p<4>;
  ld.param.u64 %rd0, [result];
  mov.u32 %r0, smem;
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, %ctaid.x;
  mov.u32 %r9, {columns};
  mov.u32 %r10, {columns};
  {body}
  ret;
}}
"""
ALLOC = "tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%r0], %r9;\nld.shared.u32 %r1, [%r0];\n"
MEET = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"  # a pair's CTAs, before they allocate
DEALLOC = "tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r1, %r10;\n"
RELINQUISH = "tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;\n"
STORE = "mad.wide.u32 %rd1, %r4, 4, %rd0;\nst.global.u32 [%rd1], %r1;\n"


def allocate(
    body: str, columns: int = 64, group: int = 1, grid: int = 1, seed: int = 0, block: int = 32, **settings: str | int
) -> numpy.ndarray:
    emulator = Emulator("sm_100", seed=seed, **settings)
    body = (MEET if group == 2 else "") + body.replace("{group}", str(group))
    text = HEADER + ALLOCATE.format(columns=columns, body=body)
    result = emulator.empty(grid, numpy.uint32)
    emulator.launch(
        emulator.load(text)["allocate"],
        grid=grid,
        block=block,
        cluster=group if group == 2 else None,
        shared=64,
        args=[result],
    )
    return result.numpy().copy()


@pytest.mark.parametrize("columns", [32, 64, 128, 256, 512])
def test_allocation_contends(columns: int) -> None:
    """More CTAs than fit: those that come late wait until others deallocate."""
    for seed in range(4):
        got = allocate(ALLOC + STORE + DEALLOC, columns, grid=64, seed=seed)
        assert (got % 32 == 0).all() and (got + columns <= COLUMNS).all()


@pytest.mark.parametrize("base", [0, 32, 96, 448])
def test_first_column(base: int) -> None:
    assert allocate(ALLOC + STORE + DEALLOC, 64, tmem_base=base)[0] == base
    second = ALLOC + "mov.u32 %r11, %r1;\n" + ALLOC + STORE + DEALLOC + "mov.u32 %r1, %r11;\n" + DEALLOC
    assert allocate(second, 64, tmem_base=base)[0] == (base + 64 if base < 448 else 0)


def test_pairs_get_the_same_column() -> None:
    for seed in range(6):
        got = allocate(ALLOC + RELINQUISH + STORE + DEALLOC, 256, group=2, grid=32, seed=seed)
        numpy.testing.assert_array_equal(got[::2], got[1::2])


def test_pairs_meet_before_they_allocate() -> None:
    """The ISA: a program that allocates for a pair must make sure that the other CTA has been launched."""
    alone = (ALLOC + RELINQUISH + STORE + DEALLOC).replace("{group}", "2")
    emulator = Emulator("sm_100")
    kernel = emulator.load(HEADER + ALLOCATE.format(columns=64, body=alone))["allocate"]
    for fences, message in (("text", "may not have been launched"), ("hardware", "")):
        emulator.set("fences", fences)
        with pytest.raises(EmulatorError, match=message) if message else nullcontext():
            emulator.launch(kernel, grid=2, cluster=2, shared=64, args=[emulator.empty(2, numpy.uint32)])


OF_FIRST = "setp.eq.u32 %p0, %r4, 0;\n"
FLAG = "add.u64 %rd2, %rd0, 8;\n"


def test_a_dealloc_of_a_pair_need_not_wait() -> None:
    """CTA 1 deallocates when CTA 0 says that it has done so: an ordered program may not rely on either."""
    told = (
        OF_FIRST
        + FLAG
        + ALLOC
        + "@%p0 bra OWN;\nPOLL: ld.relaxed.gpu.global.u32 %r5, [%rd2];\n"
        + "setp.eq.u32 %p1, %r5, 0;\n@%p1 bra POLL;\nOWN:\n"
        + DEALLOC
        + "mov.u32 %r5, 1;\n@%p0 st.relaxed.gpu.global.u32 [%rd2], %r5;\n"
    )
    ended = {"text": set(), "hardware": set()}
    for seed, fences in itertools.product(range(12), ended):
        emulator = Emulator("sm_100", seed=seed, fences=fences)
        text = HEADER + ALLOCATE.format(columns=64, body=MEET + told.replace("{group}", "2"))
        result = emulator.array(numpy.zeros(4, numpy.uint32))
        try:
            emulator.launch(emulator.load(text)["allocate"], grid=2, cluster=2, shared=64, args=[result])
            ended[fences].add("both")
        except EmulatorError as fault:
            assert "deadlock" in str(fault)
            ended[fences].add("neither")
    assert ended == {"text": {"both", "neither"}, "hardware": {"neither"}}


def test_a_pair_deallocates_the_same() -> None:
    two = ALLOC + "mov.u32 %r11, %r1;\n" + ALLOC + OF_FIRST + "@!%p0 bra SECOND;\n"
    swapped = "mov.u32 %r12, %r1;\nmov.u32 %r1, %r11;\nmov.u32 %r11, %r12;\nSECOND:\n"
    rest = DEALLOC + "mov.u32 %r1, %r11;\n" + DEALLOC
    for seed in range(6):
        allocate(two + "SECOND:\n" + rest, 64, group=2, grid=2, seed=seed)
        with pytest.raises(EmulatorError, match="CTAs of the pair must do the same, but this one does dealloc"):
            allocate(two + swapped + rest, 64, group=2, grid=2, seed=seed)


def test_programs_that_never_wait() -> None:
    """A use of the register waits for the load by itself, says the text: what hardware does, strict mode does not."""
    body = (
        ALLOC
        + """
  mov.u32 %r5, 41;
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%r1], {%r5};
  tcgen05.wait::st.sync.aligned;
  tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r6}, [%r1];
  add.u32 %r6, %r6, 1;
  mad.wide.u32 %rd1, %r4, 4, %rd0;
  st.global.u32 [%rd1], %r6;
"""
        + DEALLOC
    )
    for seed in range(8):
        assert allocate(body, seed=seed, fences="hardware")[0] == 42
    with pytest.raises(EmulatorError, match="still under way|can still touch"):
        allocate(body, seed=1)


@pytest.mark.parametrize(
    "body, columns, group, message",
    [
        (ALLOC + DEALLOC, 48, 1, "48 columns: the number must be a power of two from 32 to 512"),
        (ALLOC + DEALLOC, 16, 1, "power of two from 32 to 512"),
        (ALLOC + DEALLOC, 1024, 1, "power of two from 32 to 512"),
        (ALLOC, 64, 1, "exited with 64 columns of tensor memory still allocated"),
        (RELINQUISH + ALLOC + DEALLOC, 64, 1, "may not allocate any more"),
        (ALLOC + "add.u32 %r1, %r1, 32;\n" + DEALLOC, 64, 1, "is no allocation"),
        (ALLOC + "mov.u32 %r10, 32;\n" + DEALLOC, 64, 1, "is no allocation"),
        (ALLOC + DEALLOC + DEALLOC, 64, 1, "is no allocation"),
        (ALLOC + "mov.u32 %r9, 128;\n" + ALLOC, 64, 1, "may not be larger"),
        (ALLOC + DEALLOC.replace("{group}", "2"), 64, 1, "cta_group::1 already"),
        (ALLOC, 64, 2, "still allocated"),
        ("setp.gt.u32 %p0, %r3, 15;\n@%p0 " + ALLOC, 64, 1, ".aligned"),
    ],
)
def test_allocation_rules(body: str, columns: int, group: int, message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        allocate(body, columns, group, grid=group)


def test_too_much_is_a_deadlock() -> None:
    with pytest.raises(EmulatorError, match="(?i)deadlock"):
        allocate(ALLOC + ALLOC, 512)


@pytest.mark.parametrize(
    "body, message",
    [
        ("add.u32 %at, %where, 32;", "has not allocated column 32"),
        ("add.u32 %at, %where, 25;", "has not allocated column 32"),
        ("xor.b32 %at, %where, 0x200000;", "reaches lanes"),
        ("add.u32 %at, %where, 0x10000;", "begins at lane"),
        ("add.u32 %at, %where, 0x100000;", "begins at lane"),
        ("add.u32 %at, %where, 511;", "do not exist"),
        ("add.u32 %at, %where, %lid;", "all threads of the warp must agree"),
    ],
)
@pytest.mark.parametrize("kind", ["ld", "st"])
def test_access_rules(kind: str, body: str, message: str) -> None:
    names = "{%v0, %v1, %v2, %v3, %v4, %v5, %v6, %v7}"
    operands = f"{names}, [%at]" if kind == "ld" else f"[%at], {names}"
    body += f"\ntcgen05.{kind}.sync.aligned.32x32b.x8.b32 {operands};\n"
    with pytest.raises(EmulatorError, match=message):
        run_tensor_core("", numpy.zeros(4), numpy.zeros((1, LANES, 32)), warps=body)


@pytest.mark.parametrize(
    "instruction, message",
    [
        ("tcgen05.ld.sync.aligned.16x256b.x64.b32 {%v0}, [%at];", "at most 128 registers"),
        ("tcgen05.ld.sync.aligned.32x32b.x2.b32 {%v0}, [%at];", "the vector has 1 registers"),
        ("tcgen05.ld.sync.aligned.32x32b.x3.b32 {%v0}, [%at];", "needs a repetition"),
        ("tcgen05.ld.sync.aligned.32x64b.x1.b32 {%v0}, [%at];", "needs one of the shapes"),
        ("tcgen05.ld.sync.aligned.32x32b.x1.unpack::16b.b32 {%v0}, [%at];", "unpack::16b"),
        ("tcgen05.ld.red.sync.aligned.32x32b.x2.max.f32 {%v0, %v1}, %v2, [%at];", "tcgen05.ld.red"),
        ("tcgen05.wait::all.sync.aligned;", "wait::all"),
        ("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%slot], 48;", "power of two"),
        ("tcgen05.alloc.sync.aligned.shared::cta.b32 [%slot], 64;", "cta_group"),
    ],
)
def test_rejections_at_load(instruction: str, message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        run_tensor_core("", numpy.zeros(4), numpy.zeros((1, LANES, 32)), warps=instruction)
