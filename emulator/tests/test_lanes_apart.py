"""EMULATE_LANES=apart: lanes of a warp wait for each other only where PTX says so. A missing bar.warp.sync shows in
most seeds; with it, and with each other instruction that makes lanes wait, every seed gives the right result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from small_kernel import Emulator, EmulatorError, entry, module

SEEDS = 40
SYNC = "bar.warp.sync -1;"
LANES = numpy.arange(32, dtype=numpy.uint32)


def outcome(body: str, seed: int, lanes: str = "apart", block: int = 32, device: str = "sm_90") -> numpy.ndarray:
    """A word of each thread."""
    emulator = Emulator(device, seed, lanes=lanes)
    got = emulator.empty(block, numpy.uint32)
    source = emulator.array(numpy.arange(1024, dtype=numpy.uint32) + 1000)
    kernel = emulator.load(module(entry(body), device))["run"]
    emulator.launch(kernel, 1, block, [got, source, 0, 0, 0, 0], 8192)
    return got.numpy().copy()


def wrong_seeds(body: str, right: numpy.ndarray, lanes: str = "apart", block: int = 32) -> list[int]:
    return [seed for seed in range(SEEDS) if (outcome(body, seed, lanes, block) != right).any()]


PLACES = """
  shl.b32 %r0, %t, 2;
  add.u32 %r1, %smem, %r0;         // own word
  xor.b32 %r2, %r0, 124;
  add.u32 %r2, %smem, %r2;         // the word of lane 31 - lane
  cvt.u64.u32 %d0, %r0;
  add.u64 %d1, %a0, %d0;           // own result
  add.u64 %d2, %a1, %d0;           // own source
  xor.b32 %r3, %r0, 4;
  cvt.u64.u32 %d3, %r3;
  add.u64 %d3, %a1, %d3;           // the source of the next lane
"""

EXCHANGE = (
    PLACES
    + """
  st.shared.u32 [%r1], %t;
  SYNC
  ld.shared.u32 %r5, [%r2];
  st.global.u32 [%d1], %r5;
"""
)

GLOBAL = (
    PLACES
    + """
  st.global.u32 [%d2], %t;
  SYNC
  ld.global.u32 %r5, [%d3];
  st.global.u32 [%d1], %r5;
"""
)

# Reads before it overwrites: the words of a second round need a barrier on both sides.
ROUNDS = (
    PLACES
    + """
  mov.u32 %r8, 0;
  mov.u32 %r9, 0;
LOOP:
  mad.lo.u32 %r6, %r8, 100, %t;
  st.shared.u32 [%r1], %r6;
  bar.warp.sync -1;
  ld.shared.u32 %r5, [%r2];
  add.u32 %r9, %r9, %r5;
  SYNC
  add.u32 %r8, %r8, 1;
  setp.lt.u32 %p0, %r8, 4;
  @%p0 bra LOOP;
  st.global.u32 [%d1], %r9;
"""
)

CP_ASYNC = (
    PLACES
    + """
  mov.u32 %r5, 0;
  st.shared.u32 [%r1], %r5;
  bar.warp.sync -1;
  cp.async.ca.shared.global [%r1], [%d2], 4;
  cp.async.commit_group;
  cp.async.wait_group 0;
  SYNC
  ld.shared.u32 %r5, [%r2];
  st.global.u32 [%d1], %r5;
"""
)

# Lane 0 alone writes, all read: a value that the warp computes once.
BROADCAST = (
    PLACES
    + """
  mov.u32 %r5, 0;
  st.shared.u32 [%r1], %r5;
  bar.warp.sync -1;
  setp.ne.u32 %p0, %lane, 0;
  @%p0 bra JOIN;
  ld.global.u32 %r5, [%d2];
  st.shared.u32 [%smem], %r5;
JOIN:
  SYNC
  ld.shared.u32 %r5, [%smem];
  st.global.u32 [%d1], %r5;
"""
)

CASES = {
    "shared": (EXCHANGE, 31 - LANES),
    "global": (GLOBAL, LANES ^ 1),
    "overwritten": (ROUNDS, 4 * (31 - LANES) + 600),
    "cp.async": (CP_ASYNC, 1031 - LANES),
    "broadcast": (BROADCAST, numpy.full(32, 1000, numpy.uint32)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_missing_barrier_is_seen(name: str) -> None:
    body, right = CASES[name]
    wrong = wrong_seeds(body.replace("SYNC", ""), right)
    print(f"{len(wrong)} of {SEEDS} seeds")
    assert len(wrong) > SEEDS / 2
    assert {seed % 4 for seed in wrong} == {0, 1, 2, 3}  # every kind of timing


@pytest.mark.parametrize("name", CASES)
def test_with_the_barrier_every_seed_is_right(name: str) -> None:
    body, right = CASES[name]
    assert not wrong_seeds(body.replace("SYNC", SYNC), right)


@pytest.mark.parametrize("name", ["shared", "cp.async"])
def test_together_sees_none(name: str) -> None:
    """The reason for the setting."""
    body, right = CASES[name]
    assert not wrong_seeds(body.replace("SYNC", ""), right, lanes="together")


# What else makes the lanes of a warp wait for each other, and for their stores.
MEETINGS = {
    "shfl": "shfl.sync.idx.b32 %r10, %t, 0, 31, -1;",
    "vote": "vote.sync.any.pred %p1, %p0, -1;",
    "match": "match.any.sync.b32 %r10, %t, -1;",
    "redux": "redux.sync.add.u32 %r10, %t, -1;",
    "elect": "elect.sync %r10|%p1, -1;",
    "bar.sync": "bar.sync 0;",
    "barrier": "barrier.sync 0;",
    "bar.red": "bar.red.popc.u32 %r10, 0, %p0;",
    "cluster": "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;",
    "ldmatrix": "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r10}, [%smem];",
    "setmaxnreg": "setmaxnreg.dec.sync.aligned.u32 24;",
}


@pytest.mark.parametrize("name", MEETINGS)
def test_lanes_meet(name: str) -> None:
    body = EXCHANGE.replace("SYNC", "setp.eq.u32 %p0, %t, 3;" + MEETINGS[name])
    assert not wrong_seeds(body, 31 - LANES)


@pytest.mark.parametrize("mask", [0x0000FFFF, 0x55555555, 0xFFFFFFFE])
def test_a_barrier_of_some_lanes(mask: int) -> None:
    """Members see each other's stores; the other lanes neither wait nor are waited for."""
    body = EXCHANGE.replace("SYNC", f"setp.eq.u32 %p1, %r15, 0; @!%p1 bra IN; bra OUT; IN: bar.warp.sync {mask}; OUT:")
    inside = f"mov.u32 %r15, {mask}; shr.u32 %r15, %r15, %t; and.b32 %r15, %r15, 1;"
    body = PLACES + inside + body[len(PLACES) :]
    partner = body.replace("xor.b32 %r2, %r0, 124", "xor.b32 %r2, %r0, 8")  # lane ^ 2
    members = (mask >> LANES.astype(int)) & (mask >> (LANES.astype(int) ^ 2)) & 1 == 1
    others = False
    for seed in range(SEEDS):
        got = outcome(partner, seed)
        numpy.testing.assert_array_equal(got[members], (LANES ^ 2)[members])
        others |= bool((got[~members] != (LANES ^ 2)[~members]).any())
    assert others == bool((~members).any())


def test_branches_need_no_meeting() -> None:
    """Lanes that took different branches meet at the next barrier, in loops of different lengths too."""
    body = (
        PLACES
        + """
  mov.u32 %r8, 0;
  mov.u32 %r9, 0;
LOOP:
  and.b32 %r6, %t, 3;
  setp.eq.u32 %p0, %r6, 0;
  @%p0 bra ZERO;
  st.shared.u32 [%r1], %t;
SPIN:
  sub.u32 %r6, %r6, 1;
  setp.ne.u32 %p1, %r6, 0;
  @%p1 bra SPIN;
  bra JOIN;
ZERO:
  add.u32 %r7, %t, 1000;
  st.shared.u32 [%r1], %r7;
JOIN:
  bar.warp.sync -1;
  ld.shared.u32 %r5, [%r2];
  add.u32 %r9, %r9, %r5;
  bar.warp.sync -1;
  add.u32 %r8, %r8, 1;
  setp.lt.u32 %p0, %r8, 5;
  @%p0 bra LOOP;
  st.global.u32 [%d1], %r9;
"""
    )
    other = 31 - LANES
    assert not wrong_seeds(body, 5 * (other + numpy.where(other % 4 == 0, 1000, 0)).astype(numpy.uint32))


def test_a_lane_that_waits_for_another() -> None:
    """Lanes make progress independently: lane 0 polls what lane 31 writes."""
    body = (
        PLACES
        + """
  mov.u32 %r5, 0;
  st.shared.u32 [%r1], %r5;
  bar.warp.sync -1;
  setp.ne.u32 %p0, %lane, 31;
  @%p0 bra READ;
  mov.u32 %r6, 42;
  st.shared.u32 [%smem], %r6;
READ:
  ld.volatile.shared.u32 %r5, [%smem];
  setp.ne.u32 %p0, %r5, 42;
  @%p0 bra READ;
  st.global.u32 [%d1], %r5;
"""
    )
    assert not wrong_seeds(body, numpy.full(32, 42, numpy.uint32))


def test_the_environment_asks_for_it() -> None:
    code = (
        "from test_lanes_apart import *\n"
        "emulator = Emulator('sm_90', 0)\n"
        "got = emulator.empty(32, numpy.uint32)\n"
        "kernel = emulator.load(module(entry(EXCHANGE.replace('SYNC', '')), 'sm_90'))['run']\n"
        "def wrong(seed):\n"
        "    emulator.set('seed', seed)\n"
        "    emulator.launch(kernel, 1, 32, [got, got, 0, 0, 0, 0], 8192)\n"
        "    return (got.numpy() != 31 - LANES).any()\n"
        "print(sum(wrong(seed) for seed in range(SEEDS)))\n"
    )
    here = Path(__file__).resolve().parent
    counts = {}
    for lanes in ("together", "apart"):
        variables = {**os.environ, "EMULATE_LANES": lanes, "PYTHONPATH": f"{here}:{here.parent}"}
        done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        counts[lanes] = int(done.stdout)
    assert counts["together"] == 0 and counts["apart"] > SEEDS / 2


def test_the_setting_is_checked() -> None:
    with pytest.raises(EmulatorError, match="must be together or apart"):
        Emulator("sm_90", lanes="both")
