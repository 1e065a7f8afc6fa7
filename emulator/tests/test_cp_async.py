"""cp.async: sizes and zero fill, groups and arrivals; reads before the wait and without it."""

from __future__ import annotations

import numpy
import pytest
from small_kernel import EmulatorError, random_of, run

SEEDS = range(8)


@pytest.mark.parametrize(
    "form",
    [
        "ca.shared.global",
        "ca.shared::cta.global",
        "cg.shared.global",
        "ca.shared.global.L2::128B",
        "cg.shared.global.L2::cache_hint.L2::256B",
    ],
)
@pytest.mark.parametrize("fill", ["", "size", "constant", "ignored", "not ignored"])
def test_sizes(form: str, fill: str) -> None:
    random = random_of(f"cp.async {form} {fill}")
    for size in (16,) if "cg" in form else (4, 8, 16):
        memory = random.integers(0, 256, (64, size), dtype=numpy.uint8)
        table = numpy.zeros((32, 4), numpy.uint32)
        table[:, 0] = random.integers(0, 64, 32)  # from
        table[:, 1] = random.permutation(32)  # to
        table[:, 2] = random.integers(0, size + 1, 32)  # bytes of the source
        table[:, 3] = random.integers(0, 2, 32)
        guard = int(random.integers(1, 2**32))
        constant = int(random.integers(0, size + 1))
        extra = {"size": ", %r12", "constant": f", {constant}", "ignored": ", %p1", "not ignored": ", !%p1"}.get(
            fill, ""
        )
        extra += ", %d20" if "hint" in form else ""
        body = f"""
  createpolicy.fractional.L2::evict_last.b64 %d20, 1.0;
  mul.wide.u32 %d0, %t, 16;
  add.u64 %d1, %a2, %d0;
  ld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%d1];
  setp.ne.u32 %p1, %r13, 0;
  mul.wide.u32 %d2, %r10, {size};
  add.u64 %d2, %d2, %a1;
  mad.lo.u32 %r1, %r11, {size}, %smem;
  mov.u32 %r2, {guard};
  shr.u32 %r2, %r2, %t;
  and.b32 %r2, %r2, 1;
  setp.ne.u32 %p2, %r2, 0;
  @%p2 cp.async.{form} [%r1], [%d2], {size}{extra};
  cp.async.wait_all;
  bar.sync 0;
  mov.u32 %r3, 0;
OUT:
  mad.lo.u32 %r4, %t, {size}, %r3;
  add.u32 %r5, %r4, %smem;
  ld.shared.u8 %r6, [%r5];
  cvt.u64.u32 %d3, %r4;
  add.u64 %d3, %d3, %a0;
  st.global.u8 [%d3], %r6;
  add.u32 %r3, %r3, 1;
  setp.lt.u32 %p0, %r3, {size};
  @%p0 bra OUT;
"""
        expected = numpy.full((32, size), 0xFF, numpy.uint8)
        for lane in range(32):
            if not guard >> lane & 1:
                continue
            ignored = table[lane, 3] != (fill == "not ignored")
            used = {"size": table[lane, 2], "constant": constant}.get(
                fill, 0 if "ignored" in fill and ignored else size
            )
            row = memory[table[lane, 0]].copy()
            row[used:] = 0
            expected[table[lane, 1]] = row
        for seed in SEEDS:
            got, *_ = run(body, [numpy.zeros((32, size), numpy.uint8), memory, table], seed=seed)
            numpy.testing.assert_array_equal(got, expected, f"{size} seed {seed}")


def test_an_ignored_source_is_not_read() -> None:
    body = """
  setp.eq.u32 %p1, 0, 0;
  mad.lo.u32 %r1, %t, 16, %smem;
  cp.async.cg.shared.global [%r1], [%a0+65536], 16, %p1;
  mov.u32 %r2, 0;
  cp.async.cg.shared.global [%r1+512], [%a0+65536], 16, %r2;
  cp.async.wait_all;
"""
    run(body, [numpy.zeros(4, numpy.uint32)])
    with pytest.raises(EmulatorError, match="more than the 16 bytes"):
        run(body.replace("mov.u32 %r2, 0", "mov.u32 %r2, 17"), [numpy.zeros(4, numpy.uint32)])


STAGES, STEPS, THREADS = 3, 11, 64


def pipeline(allowed: int, waits: bool = True, syncs: bool = True) -> str:
    """Rows of %a1 through STAGES buffers, summed up by a thread of the other warp."""
    wait = f"  cp.async.wait_group {allowed};" if waits else ""
    sync = "  bar.sync 0;" if syncs else ""

    def copy(step: str) -> str:
        return f"""
  rem.u32 %r1, {step}, {STAGES};
  mad.lo.u32 %r1, %r1, {THREADS}, %t;
  mad.lo.u32 %r1, %r1, 16, %smem;
  mad.lo.u32 %r2, {step}, {THREADS}, %t;
  mul.wide.u32 %d1, %r2, 16;
  add.u64 %d1, %d1, %a1;
  setp.lt.u32 %p1, {step}, {STEPS};
  @%p1 cp.async.cg.shared.global [%r1], [%d1], 16;
  cp.async.commit_group;
"""

    return f"""
  xor.b32 %r9, %t, 33;
  mov.u32 %r20, 0;
  mov.u32 %r10, 0;
{copy("0")}{copy("1")}
LOOP:
{wait}
{sync}
  add.u32 %r11, %r10, {STAGES - 1};
{copy("%r11")}
  rem.u32 %r1, %r10, {STAGES};
  mad.lo.u32 %r1, %r1, {THREADS}, %r9;
  mad.lo.u32 %r1, %r1, 16, %smem;
  ld.shared.v4.u32 {{%r2, %r3, %r4, %r5}}, [%r1];
  mad.lo.u32 %r20, %r20, 3, %r2;
  xor.b32 %r20, %r20, %r5;
  add.u32 %r10, %r10, 1;
  setp.lt.u32 %p0, %r10, {STEPS};
  @%p0 bra LOOP;
  mul.wide.u32 %d0, %t, 4;
  add.u64 %d0, %d0, %a0;
  st.global.u32 [%d0], %r20;
"""


def pipeline_result(memory: numpy.ndarray) -> numpy.ndarray:
    total = numpy.zeros(THREADS, numpy.uint32)
    for step in range(STEPS):
        rows = memory[step].reshape(THREADS, 4)[numpy.arange(THREADS) ^ 33]
        total = (total * numpy.uint32(3) + rows[:, 0]) ^ rows[:, 3]
    return total


def outcomes(body: str, memory: numpy.ndarray, seeds: range) -> list[bool]:
    right = []
    for seed in seeds:
        try:
            got, _ = run(body, [numpy.zeros(THREADS, numpy.uint32), memory], block=THREADS, seed=seed, device="sm_80")
        except EmulatorError as fault:
            assert "exited while" in str(fault)
            right.append(False)
            continue
        right.append(bool((got == pipeline_result(memory)).all()))
    return right


def test_a_pipeline() -> None:
    memory = random_of("pipeline").integers(0, 2**32, (STEPS, THREADS * 4), dtype=numpy.uint32)
    assert all(outcomes(pipeline(STAGES - 2), memory, range(24)))


@pytest.mark.parametrize("body", [pipeline(STAGES - 1), pipeline(0, waits=False), pipeline(STAGES - 2, syncs=False)])
def test_a_pipeline_that_waits_too_little(body: str) -> None:
    memory = random_of("short wait").integers(0, 2**32, (STEPS, THREADS * 4), dtype=numpy.uint32)
    assert not all(outcomes(body, memory, range(20)))


@pytest.mark.parametrize("increment", [True, False])
def test_arrivals(increment: bool) -> None:
    """A consumer warp waits on an mbarrier for what the producer warp copies."""
    memory = random_of("arrivals").integers(0, 2**32, (32, 4), dtype=numpy.uint32)
    body = f"""
  setp.ne.u32 %p0, %t, 0;
  @%p0 bra READY;
  mbarrier.init.shared.b64 [%smem+2048], {32 if increment else 64};
READY:
  bar.sync 0;
  mad.lo.u32 %r1, %lane, 16, %smem;
  setp.ge.u32 %p1, %t, 32;
  @%p1 bra CONSUMER;
  mul.wide.u32 %d0, %lane, 16;
  add.u64 %d1, %a1, %d0;
  cp.async.ca.shared.global [%r1], [%d1], 8;
  cp.async.ca.shared.global [%r1+8], [%d1+8], 8;
  cp.async.mbarrier.arrive{"" if increment else ".noinc"}.shared.b64 [%smem+2048];
  mbarrier.arrive.shared.b64 %d5, [%smem+2048];
  ret;
CONSUMER:
  mbarrier.try_wait.parity.shared.b64 %p2, [%smem+2048], 0;
  @!%p2 bra CONSUMER;
  ld.shared.v4.u32 {{%r2, %r3, %r4, %r5}}, [%r1];
  mul.wide.u32 %d0, %lane, 16;
  add.u64 %d1, %a0, %d0;
  st.global.v4.u32 [%d1], {{%r2, %r3, %r4, %r5}};
"""
    for seed in range(12):
        got, _ = run(body, [numpy.zeros_like(memory), memory], block=64, seed=seed)
        numpy.testing.assert_array_equal(got, memory)


def test_copies_are_writes_of_the_generic_proxy() -> None:
    """A bulk copy sees them after a fence.proxy.async behind the wait, and not without one."""
    memory = random_of("generic proxy").integers(0, 2**32, (32, 4), dtype=numpy.uint32)
    body = """
  mul.wide.u32 %d0, %t, 16;
  add.u64 %d1, %a1, %d0;
  mad.lo.u32 %r1, %t, 16, %smem;
  cp.async.cg.shared.global [%r1], [%d1], 16;
  cp.async.wait_all;
  FENCE
  bar.sync 0;
  setp.ne.u32 %p0, %t, 0;
  @%p0 bra DONE;
  cp.async.bulk.global.shared::cta.bulk_group [%a0], [%smem], 512;
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
DONE:
"""
    for seed in SEEDS:
        for fence, right in (("fence.proxy.async.shared::cta;", True), ("", False)):
            got, _ = run(body.replace("FENCE", fence), [numpy.zeros_like(memory), memory], seed=seed)
            numpy.testing.assert_array_equal(got, memory if right else numpy.full_like(memory, 0xFFFFFFFF))
