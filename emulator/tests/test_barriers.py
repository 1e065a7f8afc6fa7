"""bar, barrier and barrier.cluster. Where the ISA is silent, an H200's behaviour (barrier.c)."""

from __future__ import annotations

import numpy
import pytest
from small_kernel import EmulatorError, random_of, run

STORE = "mul.wide.u32 %d0, %t, 4; add.u64 %d0, %d0, %a0; st.global.u32 [%d0], %r1;"
SPIN = "mov.u32 %r9, 150; SPIN{0}: sub.u32 %r9, %r9, 1; setp.ne.u32 %p9, %r9, 0; @%p9 bra SPIN{0};"


def threads_of(body: str, block: int, seed: int, **more: object) -> list[int]:
    out = run("mov.u32 %r1, 0;" + body + STORE, [numpy.zeros(block, numpy.uint32)], block=block, seed=seed, **more)[0]
    return [int(v) for v in out]


WARP_0 = "setp.lt.u32 %p0, %t, 32; @%p0 bra W0;"

# name: (block, body, what threads store)
PASSES: dict[str, tuple[int, str, list[int]]] = {
    # a warp counts as a whole, lanes that do not exist included
    "partial warp": (48, "barrier.sync 1, 64; mov.u32 %r1, 1;", [1] * 48),
    "partial warp, bar": (48, "bar.sync 1, 64; mov.u32 %r1, 1;", [1] * 48),
    "partial warp, no count": (48, "bar.sync 1; mov.u32 %r1, 1;", [1] * 48),
    # ... and lanes that have left
    "exited lanes": (
        64,
        "sub.u32 %r2, %t, 32; setp.lt.u32 %p1, %r2, 5; @%p1 exit; barrier.sync 1, 64; mov.u32 %r1, 1;",
        [1] * 32 + [0] * 5 + [1] * 27,
    ),
    "fragments arrive once": (
        64,
        WARP_0
        + SPIN.format(0)
        + """barrier.sync 1, 64; mov.u32 %r1, 1; bra END;
        W0: setp.lt.u32 %p1, %lane, 16; @%p1 bra LOW;"""
        + SPIN.format(1)
        + "mov.u32 %r1, 2; barrier.arrive 1, 64; bra END; LOW: mov.u32 %r1, 1; barrier.arrive 1, 64; END:",
        [1] * 16 + [2] * 16 + [1] * 32,
    ),
    "fragments and exits": (
        64,
        WARP_0
        + """barrier.sync 1, 64; mov.u32 %r1, 1; bra END;
        W0: setp.lt.u32 %p1, %lane, 7; @%p1 exit; setp.lt.u32 %p1, %lane, 20; @%p1 bra LOW;"""
        + SPIN.format(0)
        + "barrier.sync 1, 64; mov.u32 %r1, 1; bra END; LOW: barrier.sync 1, 64; mov.u32 %r1, 1; END:",
        [0] * 7 + [1] * 57,
    ),
    "a warp has exited, no count": (
        96,
        WARP_0 + "bar.sync 0; mov.u32 %r1, 1; bra END; W0: exit; END:",
        [0] * 32 + [1] * 64,
    ),
    "a warp exits while others wait": (
        96,
        WARP_0 + "barrier.sync 0; mov.u32 %r1, 1; bra END; W0:" + SPIN.format(0) + "exit; END:",
        [0] * 32 + [1] * 64,
    ),
    # lanes that arrive again before the rest of their warp has come wait for it
    "arrive twice": (
        64,
        WARP_0
        + """barrier.sync 1, 96; mov.u32 %r1, 1; bra END;
        W0: setp.lt.u32 %p1, %lane, 16; @%p1 bra LOW;"""
        + SPIN.format(0)
        + """barrier.arrive 1, 96; barrier.arrive 1, 96; bra END;
        LOW: barrier.arrive 1, 96; barrier.arrive 1, 96; END:""",
        [0] * 32 + [1] * 32,
    ),
}


@pytest.mark.parametrize("name", PASSES)
def test_who_arrives(name: str) -> None:
    block, body, expected = PASSES[name]
    for seed in range(4):
        assert threads_of(body, block, seed) == expected


# name: (block, body, message)
FAULTS: dict[str, tuple[int, str, str]] = {
    "arrive twice counts twice": (
        64,
        WARP_0 + "bar.sync 1, 64; bra END; W0: bar.arrive 1, 64; bar.arrive 1, 64; END:",
        r"deadlock(.|\n)*waits at barrier 1: phase 1, 1 of 2 warps have arrived \(1\)|64 threads",
    ),
    "with and without a count": (48, WARP_0 + "bar.sync 1, 64; bra END; W0: bar.sync 1; END:", "a thread count here"),
    "without and with, the same number": (
        64,
        WARP_0 + SPIN.format(0) + "bar.sync 0; bra END; W0: bar.arrive 0, 64; END:",
        "used without a thread count here, and with one",
    ),
    "an exited warp, with a count": (
        64,
        WARP_0 + "bar.sync 1, 64; bra END; W0: exit; END:",
        r"deadlock(.|\n)*warp 1 lanes ffffffff.*waits at barrier 1: phase 0, 1 of 2 warps have arrived \(1\)",
    ),
    "halves of a warp at two": (
        32,
        "setp.lt.u32 %p0, %lane, 16; @%p0 bra L; barrier.sync 2; bra END; L: barrier.sync 1; END:",
        r"comes to barrier \d while lanes \w+ of the warp are at barrier \d",
    ),
    "counts differ": (
        96,
        WARP_0 + "bar.sync 1, 96; bra END; W0: bar.sync 1, 64; END:",
        "for 96 threads here|used for 64",
    ),
    "no multiple of a warp": (
        32,
        "mov.u32 %r3, 40; bar.sync 1, %r3;",
        "a thread count of 40; it must be a multiple of 32",
    ),
    "barrier 16": (32, "mov.u32 %r3, 16; bar.sync %r3;", "barrier 16; there are 16, 0 to 15"),
    "half a warp never comes": (
        64,
        "setp.eq.u32 %p0, %t, 40; @%p0 bra ALONE; barrier.sync 3; bra END; ALONE: bar.warp.sync -1; END:",
        r"deadlock(.|\n)*barrier 3: phase 0, 1 of 2 warps have arrived \(0\), of warp 1 only lanes fffffeff of f+",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_hangs_or_faults(name: str) -> None:
    block, body, message = FAULTS[name]
    for seed in range(3):
        with pytest.raises(EmulatorError, match=message):
            threads_of(body, block, seed)


@pytest.mark.parametrize("form", ["bar.red", "barrier.red.aligned", "barrier.red"])
def test_reductions(form: str) -> None:
    """Votes of all threads, twice in a row through one barrier, so that a late reader must not get the later result."""
    random = random_of(f"red {form}")
    block = int(random.choice([32, 80, 256]))
    votes = random.integers(0, 2, (3, block)).astype(numpy.uint32)
    if block == 80:
        votes[1] = 1
    body = """
    mul.wide.u32 %d0, %t, 4; add.u64 %d1, %d0, %a1;
    """
    stride = 4 * block
    for i in range(3):
        body += f"ld.global.u32 %r{2 + i}, [%d1+{i * stride}]; setp.ne.u32 %p{i}, %r{2 + i}, 0;\n"
    body += "".join(
        f"{form}.popc.u32 %r{10 + i}, 5, %p{i}; {form}.and.pred %p{4 + i}, 5, %p{i};"
        f"{form}.or.pred %p{8 + i}, 5, !%p{i};\n"
        for i in range(3)
    )
    body += "mov.u32 %r1, 0;\n"
    for i in range(3):
        body += f"""selp.u32 %r20, 1, 0, %p{4 + i}; selp.u32 %r21, 2, 0, %p{8 + i};
        mul.lo.u32 %r23, %r{10 + i}, 4; add.u32 %r23, %r23, %r20; add.u32 %r23, %r23, %r21;
        add.u64 %d2, %d0, %a0; st.global.u32 [%d2+{i * stride}], %r23;"""
    for seed in range(4):
        out, _ = run(body, [numpy.zeros((3, block), numpy.uint32), votes], block=block, seed=seed)
        for i in range(3):
            expected = 4 * votes[i].sum() + int(votes[i].all()) + 2 * int(not votes[i].all())
            assert set(out[i]) == {expected}


def test_producer_and_consumer() -> None:
    """Two named barriers hand a stage back and forth: arrive does not wait, sync does."""
    body = """
    mov.u32 %r0, 0; mov.u32 %r1, 0;
    setp.lt.u32 %p0, %t, 32; @%p0 bra PRODUCER;
    CONSUME: bar.sync 1, 64; ld.shared.u32 %r2, [%smem]; mad.lo.u32 %r1, %r1, 3, %r2; bar.arrive 2, 64;
    add.u32 %r0, %r0, 1; setp.lt.u32 %p1, %r0, 20; @%p1 bra CONSUME; bra END;
    PRODUCER: setp.eq.u32 %p2, %r0, 0; @%p2 bra FIRST; bar.sync 2, 64; FIRST:
    mad.lo.u32 %r3, %r0, 7, 1; st.shared.u32 [%smem], %r3; bar.arrive 1, 64;
    add.u32 %r0, %r0, 1; setp.lt.u32 %p1, %r0, 20; @%p1 bra PRODUCER; bar.sync 2, 64;
    END:
    """
    expected = 0
    for i in range(20):
        expected = (expected * 3 + 7 * i + 1) & 0xFFFFFFFF
    for seed in range(8):
        assert threads_of(body, 64, seed) == [0] * 32 + [expected] * 32


# ---- barrier.cluster ------------------------------------------------------------------------------------------------

RANK = "mov.u32 %r10, %cluster_ctarank;"


@pytest.mark.parametrize("seed", range(6))
def test_cluster_barriers(seed: int) -> None:
    """Each block reads what its neighbour wrote before the barrier, round after round; the last round lets nobody leave
    before its memory has been read."""
    body = (
        RANK
        + """
    mov.u32 %r0, 0; mov.u32 %r1, 0; mov.u32 %r11, %cluster_nctarank;
    add.u32 %r12, %r10, 1; rem.u32 %r12, %r12, %r11; mapa.shared::cluster.u32 %r13, %smem, %r12;
    shl.b32 %r14, %t, 2; add.u32 %r15, %smem, %r14; add.u32 %r13, %r13, %r14;
    ROUND: mad.lo.u32 %r2, %r0, 1000, %r10; mad.lo.u32 %r2, %t, 100000, %r2; st.shared.u32 [%r15], %r2;
    barrier.cluster.arrive.release; barrier.cluster.wait.acquire;
    ld.shared::cluster.u32 %r3, [%r13]; add.u32 %r1, %r1, %r3;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    add.u32 %r0, %r0, 1; setp.lt.u32 %p1, %r0, 3; @%p1 bra ROUND;
    mad.lo.u32 %r4, %ctaid.x, 40, %t; mul.wide.u32 %d0, %r4, 4; add.u64 %d0, %d0, %a0; st.global.u32 [%d0], %r1;
    """
    )
    out = run(body, [numpy.zeros((8, 40), numpy.uint32)], grid=8, cluster=4, block=40, seed=seed)[0]
    for cta in range(8):
        neighbour = (cta % 4 + 1) % 4
        assert list(out[cta]) == [sum(r * 1000 + neighbour + 100000 * t for r in range(3)) for t in range(40)]


@pytest.mark.parametrize("seed", range(4))
def test_exited_threads_have_arrived_at_the_cluster(seed: int) -> None:
    """Also those that had arrived in this very phase, which must not count twice."""
    body = (
        RANK
        + """
    mov.u32 %r1, 0;
    setp.eq.u32 %p0, %r10, 1; @%p0 bra SECOND;
    barrier.cluster.arrive;
    setp.lt.u32 %p1, %t, 8; @%p1 exit;
    barrier.cluster.wait;
    barrier.cluster.arrive; barrier.cluster.wait;
    ld.global.u32 %r1, [%a1];
    bra END;
    SECOND: setp.lt.u32 %p2, %t, 20; @%p2 exit;
    barrier.cluster.arrive; barrier.cluster.wait;
    """
        + SPIN.format(0)
        + """
    st.global.u32 [%a1], 7;
    barrier.cluster.arrive; barrier.cluster.wait;
    END: setp.eq.u32 %p3, %r10, 1; @%p3 exit;
    """
        + STORE
    )
    out, _ = run(
        body, [numpy.zeros(32, numpy.uint32), numpy.zeros(1, numpy.uint32)], grid=2, cluster=2, block=32, seed=seed
    )
    assert list(out) == [0] * 8 + [7] * 24


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("barrier.cluster.arrive; barrier.cluster.arrive;", "has arrived at the cluster's barrier already"),
        ("barrier.cluster.wait;", "waits at the cluster's barrier without having arrived"),
        (
            RANK
            + "setp.eq.u32 %p0, %r10, 0; @%p0 bra A; bar.sync 1, 64; A: barrier.cluster.arrive; barrier.cluster.wait;",
            r"deadlock(.|\n)*waits at the cluster's barrier: phase 0, 32 of 64 threads have arrived, 0 have exited",
        ),
        ("setp.eq.u32 %p0, %lane, 0; @%p0 barrier.cluster.arrive.aligned;", r"\.aligned, but only lanes 00000001"),
    ],
)
def test_cluster_faults(body: str, message: str) -> None:
    for seed in range(3):
        with pytest.raises(EmulatorError, match=message):
            run(body, [], grid=2, cluster=2, seed=seed)
