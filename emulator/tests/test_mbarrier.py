"""mbarrier: counts and phases against a model, threads that meet at one, remote arrivals, waits, faults, deadlocks."""

from __future__ import annotations

import dataclasses

import numpy
import pytest
from emulate import EmulatorError
from small_kernel import random_of, run

COUNT_MAX = 2**20 - 1
SEEDS = range(12)


@dataclasses.dataclass
class Model:
    """One barrier (PTX ISA 9.7.13.15)."""

    expected: int
    pending: int = 0
    transactions: int = 0
    phase: int = 0

    def __post_init__(self) -> None:
        self.pending = self.expected

    def arrive(self, count: int, drop: bool = False) -> None:
        self.pending -= count
        self.expected -= count if drop else 0
        self.settle()

    def transact(self, count: int) -> None:
        self.transactions += count
        self.settle()

    def settle(self) -> None:
        if self.pending == 0 and self.transactions == 0:
            self.phase += 1
            self.pending = self.expected


class Program:
    """Random operations by one thread on one barrier; what the model says they give is in `wanted`."""

    def __init__(self, random: numpy.random.Generator) -> None:
        self.random = random
        self.model = Model(int(random.integers(2, 40)))
        self.lines = [f"mbarrier.init.shared::cta.b64 [%smem], {self.model.expected};"]
        self.wanted: list[int] = []
        self.state_phase: int | None = None
        for _ in range(150):
            self.step()

    def record(self, register: str, value: int) -> None:
        self.lines.append(f"st.global.b32 [%a0 + {4 * len(self.wanted)}], {register};")
        self.wanted.append(value)

    def step(self) -> None:
        model, random = self.model, self.random
        choice = random.choice(
            ["arrive", "expect", "complete", "arrive_expect", "drop", "parity", "state", "no_complete", "try"]
        )
        semantics = random.choice(["", ".release.cta", ".release.cluster", ".relaxed.cluster"])
        space = random.choice([".shared::cta", ".shared", ".shared::cluster"])
        room = model.pending
        count = int(random.integers(1, room + 1)) if room else 0
        balance = int(random.integers(1, 5000))
        if choice == "arrive" and count:
            self.lines.append(f"mbarrier.arrive{semantics}{space}.b64 _, [%smem], {count};")
            model.arrive(count)
        elif choice == "drop" and room and model.expected > 1:
            self.lines.append(f"mbarrier.arrive_drop{semantics}{space}.b64 _, [%smem];")
            model.arrive(1, drop=True)
        elif choice == "expect":
            self.lines.append(f"mbarrier.expect_tx{space}.b64 [%smem], {balance};")
            model.transact(balance)
        elif choice == "complete":
            # mostly what is due, so that phases end
            if model.transactions > 0 and random.integers(4):
                balance = model.transactions
            self.lines.append(f"mbarrier.complete_tx.relaxed.cta{space}.b64 [%smem], {balance};")
            model.transact(-balance)
        elif choice == "arrive_expect" and room:
            due = -model.transactions if model.transactions < 0 else balance
            self.lines.append(f"mbarrier.arrive.expect_tx{semantics}.shared::cta.b64 %d0, [%smem], {due};")
            self.state_phase = model.phase
            model.transactions += due
            model.arrive(1)
        elif choice == "no_complete" and room > 1:
            self.lines.append("mbarrier.arrive.noComplete.shared.b64 %d0, [%smem], 1;")
            self.lines.append("mbarrier.pending_count.b64 %r1, %d0;")
            self.record("%r1", room)
            self.state_phase = model.phase
            model.arrive(1)
        elif choice in ("parity", "try"):
            parity = int(random.integers(2))
            over = model.phase % 2 != parity
            if choice == "try" and not over:
                return  # it would wait for ever
            name = "try_wait" if choice == "try" else "test_wait"
            self.lines.append(f"mbarrier.{name}.parity.shared::cta.b64 %p0, [%smem], {parity};")
            self.lines.append("selp.b32 %r1, 1, 0, %p0;")
            self.record("%r1", int(over))
        elif choice == "state" and self.state_phase is not None and model.phase - self.state_phase <= 1:
            self.lines.append("mbarrier.test_wait.acquire.cta.shared::cta.b64 %p0, [%smem], %d0;")
            self.lines.append("selp.b32 %r1, 1, 0, %p0;")
            self.record("%r1", int(model.phase > self.state_phase))


@pytest.mark.parametrize("number", range(8))
def test_model(number: int) -> None:
    program = Program(random_of(f"mbarrier model {number}"))
    body = "\n".join([*program.lines, "mbarrier.inval.shared.b64 [%smem];"])  # whatever its transaction count is
    (out,) = run(body, [numpy.zeros(len(program.wanted) + 1, numpy.uint32)], device="sm_90", block=1, seed=number)
    assert out[:-1].tolist() == program.wanted


@pytest.mark.parametrize("seed", SEEDS)
def test_pipeline(seed: int) -> None:
    """Warps 0 and 1 fill stages of a pipeline, warps 2 and 3 read them: full and empty barriers, with parities."""
    random = random_of(f"pipeline {seed}")
    stages, rounds = int(random.integers(1, 5)), int(random.integers(5, 20))
    data = random.integers(0, 2**32, (rounds, 64), dtype=numpy.uint32)
    body = f"""
    setp.ne.u32 %p0, %t, 0;
    @%p0 bra READY;
    mov.u32 %r0, 0;
INIT:
    shl.b32 %r1, %r0, 4;
    add.u32 %r1, %r1, %smem;
    mbarrier.init.shared::cta.b64 [%r1], 64;
    mbarrier.init.shared::cta.b64 [%r1 + 8], 64;
    add.u32 %r0, %r0, 1;
    setp.lt.u32 %p1, %r0, {stages};
    @%p1 bra INIT;
READY:
    bar.sync 0;
    mov.u32 %r0, 0;   // round
    mov.u32 %r2, 0;   // stage
    mov.u32 %r3, 0;   // parity
    and.b32 %r4, %t, 63;
    setp.ge.u32 %p5, %t, 64;
LOOP:
    shl.b32 %r5, %r2, 4;
    add.u32 %r5, %r5, %smem;      // its barriers: full, empty
    mad.lo.u32 %r6, %r2, 256, %smem;
    mad.lo.u32 %r6, %r4, 4, %r6;  // its word
    mad.lo.u32 %r7, %r0, 64, %r4;
    mul.wide.u32 %d0, %r7, 4;
    @%p5 bra READ;
    xor.b32 %r8, %r3, 1;
EMPTY:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r5 + 8], %r8;
    @!%p2 bra EMPTY;
    add.u64 %d1, %a0, %d0;
    ld.global.u32 %r9, [%d1];
    st.shared.u32 [%r6 + 1024], %r9;
    mbarrier.arrive.shared::cta.b64 _, [%r5];
    bra NEXT;
READ:
    mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r5], %r3;
    @!%p2 bra READ;
    ld.shared.u32 %r9, [%r6 + 1024];
    add.u64 %d1, %a1, %d0;
    st.global.u32 [%d1], %r9;
    mbarrier.arrive.shared::cta.b64 _, [%r5 + 8];
NEXT:
    add.u32 %r0, %r0, 1;
    add.u32 %r2, %r2, 1;
    setp.eq.u32 %p3, %r2, {stages};
    @%p3 xor.b32 %r3, %r3, 1;
    @%p3 mov.u32 %r2, 0;
    setp.lt.u32 %p4, %r0, {rounds};
    @%p4 bra LOOP;
    """
    _, out = run(body, [data, numpy.zeros_like(data)], device="sm_90", block=128, seed=seed)
    numpy.testing.assert_array_equal(out, data)


@pytest.mark.parametrize("seed", range(4))
def test_remote_arrival(seed: int) -> None:
    """Every thread of a cluster of four arrives at the barrier of CTA 2, which then sees their words."""
    body = """
    mov.u32 %r0, %cluster_ctarank;
    mapa.shared::cluster.u32 %r1, %smem, 2;
    setp.eq.u32 %p0, %t, 0;
    setp.eq.u32 %p1, %r0, 2;
    and.pred %p0, %p0, %p1;
    @%p0 mbarrier.init.shared::cta.b64 [%smem], 128;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    mad.lo.u32 %r2, %r0, 32, %t;
    shl.b32 %r3, %r2, 2;
    add.u32 %r4, %r1, %r3;
    st.shared::cluster.u32 [%r4 + 64], %r2;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1];
    @!%p1 bra DONE;
WAIT:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%smem], 0;
    @!%p2 bra WAIT;
    mov.u32 %r5, 0;
COPY:
    mad.lo.u32 %r6, %r5, 32, %t;
    shl.b32 %r6, %r6, 2;
    add.u32 %r7, %r6, %smem;
    ld.shared.u32 %r8, [%r7 + 64];
    cvt.u64.u32 %d0, %r6;
    add.u64 %d0, %a0, %d0;
    st.global.u32 [%d0], %r8;
    add.u32 %r5, %r5, 1;
    setp.lt.u32 %p3, %r5, 4;
    @%p3 bra COPY;
DONE:
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    """
    (out,) = run(body, [numpy.zeros(128, numpy.uint32)], device="sm_90", grid=4, cluster=4, seed=seed)
    numpy.testing.assert_array_equal(out, numpy.arange(128))


def test_a_wait_may_end_early() -> None:
    """try_wait without a loop: the seed's time limit shows it to be a mistake."""
    body = """
    setp.eq.u32 %p0, %t, 0;
    @%p0 mbarrier.init.shared::cta.b64 [%smem], 32;
    bar.sync 0;
    setp.ge.u32 %p1, %t, 32;
    @%p1 bra WAIT;
    mbarrier.arrive.shared::cta.b64 _, [%smem];
    bra DONE;
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%smem], 0;
    selp.b32 %r0, 1, 0, %p2;
    sub.u32 %r1, %t, 32;
    mul.wide.u32 %d0, %r1, 4;
    add.u64 %d0, %a0, %d0;
    st.global.u32 [%d0], %r0;
DONE:
    """
    seen = set()
    for seed in range(200):
        (out,) = run(body, [numpy.full(32, 7, numpy.uint32)], device="sm_90", block=64, seed=seed)
        assert set(out.tolist()) in ({0}, {1})
        assert seed % 4 or out[0] == 1, "an eager seed waits to the end"
        seen.add(int(out[0]))
    assert seen == {0, 1}


def test_inval_frees_the_place() -> None:
    body = """
    mbarrier.init.shared::cta.b64 [%smem], 1;
    mbarrier.arrive.shared::cta.b64 _, [%smem];
    mbarrier.inval.shared::cta.b64 [%smem];
    st.shared.b64 [%smem], 5;
    mbarrier.init.shared::cta.b64 [%smem], 2;
    mbarrier.test_wait.parity.shared::cta.b64 %p0, [%smem], 1;
    selp.b32 %r0, 1, 0, %p0;
    st.global.u32 [%a0], %r0;
    """
    (out,) = run(body, [numpy.zeros(1, numpy.uint32)], device="sm_90", block=1)
    assert out[0] == 1


INIT = "mbarrier.init.shared::cta.b64 [%smem], 2;\n"
FAULTS = {
    "no barrier": ("mbarrier.arrive.shared::cta.b64 _, [%smem];", "no mbarrier at shared address"),
    "wait on none": ("mbarrier.test_wait.parity.shared::cta.b64 %p0, [%smem + 8], 0;", "no mbarrier"),
    "invalidated": (
        INIT + "mbarrier.inval.shared::cta.b64 [%smem];\nmbarrier.arrive.shared::cta.b64 _, [%smem];",
        "no mbarrier",
    ),
    "misaligned": ("mbarrier.init.shared::cta.b64 [%smem + 4], 1;", "not a multiple of 8"),
    "outside": ("mbarrier.init.shared::cta.b64 [%smem + 8192], 1;", "outside of the shared memory"),
    "count 0": ("mbarrier.init.shared::cta.b64 [%smem], 0;", "count 0"),
    "count too large": (f"mbarrier.init.shared::cta.b64 [%smem], {COUNT_MAX + 1};", "1 to 1048575"),
    "double init": (
        INIT + "mbarrier.arrive.shared::cta.b64 _, [%smem];\n" + INIT,
        "again while it is in use .phase 0, 1 of 2",
    ),
    "underflow": (INIT + "mbarrier.arrive.shared::cta.b64 _, [%smem], 3;", "only 2 of 2 arrivals are still due"),
    "underflow in a phase held by transactions": (
        INIT
        + "mbarrier.expect_tx.shared::cta.b64 [%smem], 16;\nmbarrier.arrive.shared::cta.b64 _, [%smem], 2;\n"
        + "mbarrier.arrive.shared::cta.b64 _, [%smem];",
        r"only 0 of 2 arrivals .* \(tx-count 16\)",
    ),
    "arrives no times": (INIT + "mbarrier.arrive.shared::cta.b64 _, [%smem], 0;", "arrives 0 times"),
    "tx overflow": (
        INIT + f"mbarrier.expect_tx.shared::cta.b64 [%smem], {COUNT_MAX};\n"
        "mbarrier.expect_tx.shared::cta.b64 [%smem], 1;",
        "to 1048576",
    ),
    "tx underflow": (
        INIT + f"mbarrier.complete_tx.shared::cta.b64 [%smem], {COUNT_MAX};\n"
        "mbarrier.complete_tx.shared::cta.b64 [%smem], 1;",
        "to -1048576",
    ),
    "noComplete that completes": (
        INIT + "mbarrier.arrive.noComplete.shared::cta.b64 %d0, [%smem], 2;",
        "in spite of .noComplete",
    ),
    "old state": (
        INIT
        + "mbarrier.arrive.shared::cta.b64 %d0, [%smem];\n"
        + "mbarrier.arrive.shared::cta.b64 _, [%smem];\nmbarrier.arrive.shared::cta.b64 _, [%smem], 2;\n"
        + "mbarrier.test_wait.shared::cta.b64 %p0, [%smem], %d0;",
        "the state is of phase 0",
    ),
    "store over it": (
        INIT + "mbarrier.arrive.shared::cta.b64 _, [%smem];\nst.shared.u32 [%smem + 4], 0;",
        "an mbarrier is in use",
    ),
    "generic address that is global": ("mbarrier.arrive.b64 _, [%a0];", "not in shared memory"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault(name: str) -> None:
    body, message = FAULTS[name]
    with pytest.raises(EmulatorError, match=message):
        run(body, [numpy.zeros(1, numpy.uint32)], device="sm_90", block=1)


REJECTED = {
    "wait in the cluster": ("mbarrier.try_wait.parity.shared::cluster.b64 %p0, [%smem], 0;", "state space"),
    "state from the cluster": ("mbarrier.arrive.shared::cluster.b64 %d0, [%smem];", "must be _"),
    "unknown operation": ("mbarrier.poke.b64 [%smem];", "unknown mbarrier operation"),
    "scope alone": ("mbarrier.arrive.cta.shared::cta.b64 _, [%smem];", "together"),
    "unknown modifier": ("mbarrier.arrive.fast.shared::cta.b64 _, [%smem];", "fast"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_rejected(name: str) -> None:
    body, message = REJECTED[name]
    with pytest.raises(EmulatorError, match=message):
        run(body, [numpy.zeros(1, numpy.uint32)], device="sm_90", block=1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("poll", [False, True])
def test_deadlock(seed: int, poll: bool) -> None:
    """Nobody arrives a third time: the report says what the barrier has and who arrived."""
    wait = "mbarrier.test_wait" if poll else "mbarrier.try_wait"
    body = f"""
    mbarrier.init.shared::cta.b64 [%smem], 3;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem], 48;
    mbarrier.arrive.shared::cta.b64 _, [%smem];
    mbarrier.complete_tx.shared::cta.b64 [%smem], 32;
WAIT:
    {wait}.parity.shared::cta.b64 %p0, [%smem], 0;
    @!%p0 bra WAIT;
    """
    with pytest.raises(EmulatorError, match="deadlock") as report:
        run(body, [], device="sm_90", block=1, seed=seed)
    if not poll:
        for part in ("phase 0", "1 of 3 arrivals still due", "tx-count 16", "48 bytes expected", "32 completed"):
            assert part in str(report.value)
        assert "last arrivals: block (0,0,0) warp 0 at line" in str(report.value)
