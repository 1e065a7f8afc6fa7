"""Launches, placement and order: ids, limits, dependent grids, cancelled clusters, deadlocks, livelocks."""

from __future__ import annotations

import ctypes
import re

import numpy
import pytest
from small_kernel import Emulator, EmulatorError, entry, module, random_of, run

TICKET = """
mov.u32 %r0, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r0, %r0, %r2, %t;
atom.global.add.u32 %r1, [%a1], 1;
mul.wide.u32 %d0, %r0, 4; add.u64 %d0, %d0, %a0; st.global.u32 [%d0], %r1;
"""


def order_of(seed: int) -> bytes:
    """In which order the lanes of 12 blocks come to a counter."""
    counters = [numpy.zeros(12 * 64, numpy.uint32), numpy.zeros(1, numpy.uint32)]
    return run(TICKET, counters, grid=12, block=64, seed=seed)[0].tobytes()


def test_a_seed_repeats() -> None:
    orders = {seed: order_of(seed) for seed in (0, 1, 2, 3, 2**63 + 5)}
    assert len(set(orders.values())) > 1
    assert all(order_of(seed) == order for seed, order in orders.items())


REGISTERS = [
    "tid.x",
    "tid.y",
    "tid.z",
    "ntid.x",
    "ntid.y",
    "ntid.z",
    "ctaid.x",
    "ctaid.y",
    "ctaid.z",
    "nctaid.x",
    "nctaid.y",
    "nctaid.z",
    "clusterid.x",
    "clusterid.y",
    "clusterid.z",
    "nclusterid.x",
    "nclusterid.y",
    "nclusterid.z",
    "cluster_ctaid.x",
    "cluster_ctaid.y",
    "cluster_ctaid.z",
    "cluster_nctaid.x",
    "cluster_nctaid.y",
    "cluster_nctaid.z",
    "cluster_ctarank",
    "cluster_nctarank",
    "laneid",
    "warpid",
    "smid",
    "nsmid",
    "lanemask_lt",
    "lanemask_ge",
    "dynamic_smem_size",
    "total_smem_size",
]


@pytest.mark.parametrize("case", range(3))
def test_special_registers(case: int) -> None:
    random = random_of(f"special {case}")
    cluster = [[1, 1, 1], [2, 1, 2], [1, 4, 2]][case]
    grid = [c * int(random.integers(1, 4)) for c in cluster]
    block = [int(v) for v in random.integers(1, 6, 3)]
    threads, ctas = int(numpy.prod(block)), int(numpy.prod(grid))
    body = """
    mad.lo.u32 %r0, %ctaid.z, %nctaid.y, %ctaid.y; mad.lo.u32 %r0, %r0, %nctaid.x, %ctaid.x;
    mad.lo.u32 %r1, %tid.z, %ntid.y, %tid.y; mad.lo.u32 %r1, %r1, %ntid.x, %tid.x;
    mad.lo.u32 %r0, %r0, %r20, %r1;
    """.replace("%r20", str(threads))
    body += f"mul.wide.u32 %d0, %r0, {4 * len(REGISTERS)}; add.u64 %d0, %d0, %a0;"
    for i, name in enumerate(REGISTERS):
        body += f"mov.u32 %r2, %{name}; st.global.u32 [%d0+{4 * i}], %r2;"
    out = run(
        body,
        [numpy.zeros((ctas, threads, len(REGISTERS)), numpy.uint32)],
        device="sm_90",
        grid=grid,
        block=block,
        cluster=None if case == 0 else cluster,
        shared=4096,
        seed=case,
    )[0]
    for cta in range(ctas):
        place = [cta % grid[0], cta // grid[0] % grid[1], cta // grid[0] // grid[1]]
        inside = [p % c for p, c in zip(place, cluster, strict=True)]
        for thread in range(threads):
            lane = thread % 32
            expected = dict(
                zip(
                    REGISTERS,
                    [thread % block[0], thread // block[0] % block[1], thread // block[0] // block[1]]
                    + block
                    + place
                    + grid
                    + [p // c for p, c in zip(place, cluster, strict=True)]
                    + [g // c for g, c in zip(grid, cluster, strict=True)]
                    + inside
                    + cluster
                    + [inside[0] + cluster[0] * (inside[1] + cluster[1] * inside[2]), int(numpy.prod(cluster))]
                    + [lane, thread // 32, int(out[cta, 0, REGISTERS.index("smid")]), 132]
                    + [(1 << lane) - 1, 2**32 - (1 << lane), 4096, 4096],
                    strict=True,
                )
            )
            assert dict(zip(REGISTERS, map(int, out[cta, thread]), strict=True)) == expected
        assert out[cta, 0, REGISTERS.index("smid")] < 132


RESIDENT = """
mov.u32 %r0, %smid; mul.wide.u32 %d0, %r0, 4; add.u64 %d0, %d0, %a0;
setp.ne.u32 %p0, %t, 0; @%p0 bra WAIT;
atom.global.add.u32 %r1, [%d0], 1; add.u32 %r1, %r1, 1;
atom.global.max.u32 %r2, [%a1], %r1;
nanosleep.u32 10; nanosleep.u32 10; nanosleep.u32 10;
WAIT: bar.sync 0;
@%p0 exit;
atom.global.add.u32 %r1, [%d0], -1;
"""


@pytest.mark.parametrize(
    ("device", "block", "shared", "most"),
    [
        ("sm_100", 1024, 0, 2),
        ("sm_120", 1024, 0, 1),
        ("sm_90", 32, 112 * 1024, 2),
        ("sm_80", 32, 160 * 1024, 1),
        ("sm_90", 32, 70 * 1024, 3),
    ],
)
def test_blocks_share_an_sm_as_far_as_it_holds_them(device: str, block: int, shared: int, most: int) -> None:
    seen = 0
    for seed in range(24):
        emulator = Emulator(device, seed)
        kernel = emulator.load(module(entry(RESIDENT), device))["run"]
        counts, highest = emulator.array(numpy.zeros(256, numpy.uint32)), emulator.array(numpy.zeros(1, numpy.uint32))
        emulator.launch(kernel, 24, block, [counts, highest, 0, 0, 0, 0], shared)
        assert not counts.numpy().any()
        seen = max(seen, int(highest.numpy()[0]))
        assert seen <= most
        if seen == most:
            return
    raise AssertionError(f"at most {seen} blocks were on an SM, which holds {most}")


# ---- dependent grids ------------------------------------------------------------------------------------------------

SPIN = "mov.u32 %r9, 300; SPIN{0}: sub.u32 %r9, %r9, 1; setp.ne.u32 %p9, %r9, 0; @%p9 bra SPIN{0};"
PRIMARY = entry(
    SPIN.format(0) + "griddepcontrol.launch_dependents;" + SPIN.format(1) + "st.global.u32 [%a0], 1;", "primary"
)
# a1: before the wait; a1 + 4: behind it
DEPENDENT = entry(
    """ld.global.u32 %r0, [%a0]; st.global.u32 [%a1], %r0; griddepcontrol.wait;
    ld.global.u32 %r0, [%a0]; st.global.u32 [%a1+4], %r0;""",
    "dependent",
)
LAST = entry("griddepcontrol.launch_dependents;", "passes")


def chain(names: list[tuple[str, bool]], seed: int) -> list[int]:
    emulator = Emulator("sm_90", seed)
    loaded = emulator.load(module([PRIMARY, DEPENDENT, LAST], "sm_90"))
    flag, out = emulator.array(numpy.zeros(1, numpy.uint32)), emulator.array(numpy.full(2, 9, numpy.uint32))
    for name, programmatic in names:
        emulator.launch(loaded[name], 2, 32, [flag, out, 0, 0, 0, 0], programmatic=programmatic, wait=False)
    emulator.synchronize()
    return [int(v) for v in out.numpy()]


def test_a_dependent_grid_overlaps() -> None:
    """Before griddepcontrol.wait it sees old data in some seed, behind it never; without the attribute never at all."""
    before = set()
    for seed in range(12):
        early, late = chain([("primary", False), ("dependent", True)], seed)
        before.add(early)
        assert late == 1
        assert chain([("primary", False), ("dependent", False)], seed) == [1, 1]
    assert before == {0, 1}


def test_three_grids() -> None:
    """As on an H200: where the second grid waits for nothing and has ended, the third's wait is for the first too; and
    the third does start while the first still runs."""
    before = set()
    for seed in range(16):
        early, late = chain([("primary", False), ("passes", True), ("dependent", True)], seed)
        before.add(early)
        assert late == 1
        assert chain([("primary", False), ("passes", True), ("dependent", False)], seed) == [1, 1]
    assert before == {0, 1}


def test_a_grid_that_does_not_trigger_is_waited_for() -> None:
    quiet = PRIMARY.replace("griddepcontrol.launch_dependents;", "").replace("primary", "quiet")
    for seed in range(8):
        emulator = Emulator("sm_90", seed)
        loaded = emulator.load(module([quiet, DEPENDENT], "sm_90"))
        flag, out = emulator.array(numpy.zeros(1, numpy.uint32)), emulator.array(numpy.full(2, 9, numpy.uint32))
        emulator.launch(loaded["quiet"], 2, 32, [flag, out, 0, 0, 0, 0], wait=False)
        emulator.launch(loaded["dependent"], 2, 32, [flag, out, 0, 0, 0, 0], programmatic=True)
        assert list(out.numpy()) == [1, 1]


# ---- clusters that are cancelled ------------------------------------------------------------------------------------

STEAL = """
setp.eq.u32 %p0, %t, 0; mov.u32 %r0, %ctaid.x; mov.u32 %r5, 0;
@%p0 mbarrier.init.shared.b64 [%smem+16], 1; fence.mbarrier_init.release.cluster;
@!%p0 bra GO; atom.global.add.u32 %r1, [%a1], 1; GO: bar.sync 0;
WORK:
mul.wide.u32 %d0, %r0, 4; add.u64 %d0, %d0, %a0; @%p0 red.global.add.u32 [%d0], 1;
@!%p0 bra ASKED;
mbarrier.arrive.expect_tx.shared.b64 _, [%smem+16], 16;
clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%smem], [%smem+16];
ASKED:
POLL: mbarrier.try_wait.parity.shared.b64 %p1, [%smem+16], %r5; @!%p1 bra POLL;
xor.b32 %r5, %r5, 1;
ld.shared.b128 %q0, [%smem];
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, %q0;
@!%p2 bra END;
clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r0, %q0;
fence.proxy.async.shared::cta;
bar.sync 0;
bra WORK;
END:
"""


def test_every_block_is_done_once() -> None:
    """Blocks that run take the numbers of those that have not started; how many start is the seed's choice."""
    started = set()
    for seed in range(8):
        done, count = run(
            STEAL, [numpy.zeros(40, numpy.uint32), numpy.zeros(1, numpy.uint32)], grid=40, block=64, seed=seed
        )
        assert list(done) == [1] * 40
        started.add(int(count[0]))
    assert len(started) > 1 and min(started) < 40


# ---- limits ---------------------------------------------------------------------------------------------------------

DIRECTIVES = """
.visible .entry few() .maxntid 64, 2, 1 { ret; }
.visible .entry exact() .reqntid 32, 2, 1 { ret; }
.visible .entry pair() .reqnctapercluster 2, 1, 1 .reqntid 32 { ret; }
.visible .entry asks() .explicitcluster { ret; }
.visible .entry plain() { ret; }
.shared .b8 big[40960];
.visible .entry large() { .reg .b32 r; ld.shared.b32 r, [big]; ret; }
"""

LIMITS: list[tuple[str, str, dict[str, object], str]] = [
    ("sm_90", "plain", {"block": 1025}, "block.x is 1025; it must be 1 to 1024"),
    ("sm_90", "plain", {"block": 0}, "block.x is 0; it must be 1 to 1024"),
    ("sm_90", "plain", {"block": (1, 1, 65)}, "block.z is 65; it must be 1 to 64"),
    ("sm_90", "plain", {"block": (32, 32, 2)}, "a block of 2048 threads; at most 1024 fit"),
    ("sm_90", "plain", {"grid": (1, 65536)}, "grid.y is 65536; it must be 1 to 65535"),
    ("sm_90", "plain", {"grid": 0}, "grid.x is 0"),
    ("sm_90", "few", {"block": 160}, "a block of 160 threads; its .maxntid allows 128"),
    ("sm_90", "exact", {"block": 64}, "a block of 64,1,1 threads; its .reqntid is 32,2,1"),
    ("sm_90", "pair", {"grid": 4, "cluster": 4}, "a cluster of 4,1,1 CTAs; its .reqnctapercluster is 2,1,1"),
    ("sm_90", "pair", {"grid": 3}, "grid.x is 3, not a multiple of cluster.x = 2"),
    ("sm_90", "asks", {}, "no cluster was asked for, and it is .explicitcluster"),
    ("sm_90", "plain", {"grid": 32, "cluster": 32}, "a cluster of 32 CTAs; at most 16 fit"),
    ("sm_90", "plain", {"grid": (2, 3), "cluster": (2, 2)}, "grid.y is 3, not a multiple of cluster.y = 2"),
    ("sm_80", "plain", {"grid": 2, "cluster": 2}, "clusters need compute capability 9.0"),
    ("sm_90", "plain", {"shared": 232449}, "232449 bytes of dynamic shared memory; sm_90 has at most 232448"),
    ("sm_80", "plain", {"shared": 166913}, "at most 166912"),
    ("sm_120", "plain", {"shared": 101377}, "at most 101376"),
    (
        "sm_100",
        "large",
        {"shared": 16384},
        "16384 bytes of dynamic shared memory; MAX_DYNAMIC_SHARED_SIZE_BYTES is 8192",
    ),
]


@pytest.mark.parametrize(("device", "name", "options", "message"), LIMITS)
def test_limits(device: str, name: str, options: dict[str, object], message: str) -> None:
    text = DIRECTIVES
    if device == "sm_80":
        text = re.sub(r".*(cluster|maxntid|reqntid).*\n", "", text)
    emulator = Emulator(device)
    kernel = emulator.load(module([text], device))[name]
    with pytest.raises(EmulatorError, match=re.escape(message)):
        emulator.launch(kernel, **{"block": 32, **options})  # type: ignore[arg-type]
    allowed = {"few": 128, "exact": (32, 2), "pair": 32}.get(name, 1024)
    emulator.launch(kernel, 16 if name != "asks" else 2, allowed, cluster=(2 if name in ("pair", "asks") else None))


def test_wrong_arguments() -> None:
    emulator = Emulator("sm_90")
    kernel = emulator.load(module(entry(""), "sm_90"))["run"]
    with pytest.raises(ValueError, match="takes 6 arguments, 2 are given"):
        emulator.launch(kernel, args=[1, 2])
    with pytest.raises(ValueError, match="an argument of 7 bytes for a parameter of 8"):
        emulator.launch(kernel, args=[b"1234567", 0, 0, 0, 0, 0])
    with pytest.raises(KeyError, match="the module has no entry nothing"):
        emulator.load(module(entry(""), "sm_90"))["nothing"]


# ---- deadlocks ------------------------------------------------------------------------------------------------------

INIT = "setp.ne.u32 %p0, %t, 0; @%p0 bra MADE; mbarrier.init.shared.b64 [%smem], 3; MADE: bar.sync 0;"
FOREVER = "POLL: mbarrier.try_wait.parity.shared.b64 %p1, [%smem], 0; @!%p1 bra POLL;"
DEADLOCKS: dict[str, tuple[str, dict[str, object], list[str]]] = {
    "mbarrier": (
        INIT + "@!%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%smem], 48;" + FOREVER,
        {"block": 64},
        [
            "deadlock: ",
            r"kernel run, block \(0,0,0\), warp 1 lanes ffffffff, ptx:\d+ `mbarrier.try_wait.*`: waits for 0 at",
            r"mbarrier 0x400: phase 0 \(parity 0\), 2 of 3 arrivals still due, tx-count 48",
            r"48 bytes expected, 0 completed",
            r"last arrivals: block \(0,0,0\) warp 0 at line \d+ \(count 1\)",
        ],
    ),
    "mbarrier, polled by test_wait": (
        INIT + FOREVER.replace("try_wait", "test_wait"),
        {},
        ["deadlock: warps do nothing but poll", r"`(mbarrier.test_wait|@!%p1 bra)"],
    ),
    "named barrier": (
        "setp.lt.u32 %p0, %t, 32; @%p0 bra END; bar.sync 7, 96; END:",
        {"block": 96},
        [r"waits at barrier 7: phase 0, 2 of 3 warps have arrived \(1-2\)"],
    ),
    "cluster": (
        "mov.u32 %r0, %cluster_ctarank; setp.eq.u32 %p0, %r0, 1; @%p0 bra SKIP; "
        "barrier.cluster.arrive; barrier.cluster.wait; SKIP: bar.sync 1, 64;",
        {"grid": 2, "cluster": 2},
        [
            r"block \(0,0,0\).*waits at the cluster's barrier: phase 0, 32 of 64 threads have arrived, 0 have exited",
            r"block \(1,0,0\).*waits at barrier 1",
        ],
    ),
    "lanes": (
        "setp.lt.u32 %p0, %lane, 4; @%p0 bra A; bar.warp.sync -1; A: vote.sync.any.pred %p1, %p0, -1;",
        {},
        [
            r"lanes fffffff0.*waits for lanes 0000000f of its warp to come here",
            r"lanes 0000000f.*lanes fffffff0 of its",
        ],
    ),
    "tensor memory": (
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%smem], 512;"
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%smem], 512;",
        {},
        ["waits for 512 columns of tensor memory"],
    ),
    "spinning on memory": (
        "SPIN: ld.acquire.gpu.global.u32 %r0, [%a0]; setp.eq.u32 %p0, %r0, 0; @%p0 bra SPIN;",
        {"arguments": [numpy.zeros(1, numpy.uint32)]},
        ["deadlock: warps do nothing but poll, and nothing is under way", "ld.acquire|setp|bra"],
    ),
    "sleeping": (
        "SPIN: nanosleep.u32 100; bra SPIN;",
        {},
        ["deadlock: warps do nothing but poll, and nothing is under way"],
    ),
}


@pytest.mark.parametrize("name", DEADLOCKS)
def test_deadlocks_are_told(name: str) -> None:
    body, options, messages = DEADLOCKS[name]
    for seed in range(3):
        arguments = options.get("arguments", [])
        with pytest.raises(EmulatorError) as caught:
            run(body, arguments, seed=seed, **{k: v for k, v in options.items() if k != "arguments"})  # type: ignore[arg-type]
        for message in messages:
            assert re.search(message, str(caught.value)), f"{message}\n{caught.value}"


def test_many_blocks_are_told_shortly() -> None:
    with pytest.raises(EmulatorError) as caught:
        run("setp.lt.u32 %p0, %t, 32; @%p0 bra END; bar.sync 7, 96; END:", [], grid=100, block=96)
    lines = str(caught.value).splitlines()
    assert len(lines) <= 50
    assert re.search(r"and \d+ more", lines[-1]) or len(lines) < 49


def test_sleep_until_a_moment() -> None:
    """A second of %globaltimer passes where nothing but nanosleep runs; %clock64 goes on with it."""
    body = """
    mov.u64 %d0, %globaltimer; mov.u64 %d3, %clock64;
    WAIT: nanosleep.u32 1000000; mov.u64 %d1, %globaltimer; sub.u64 %d2, %d1, %d0;
    setp.lt.u64 %p0, %d2, 1000000000; @%p0 bra WAIT;
    mov.u64 %d4, %clock64; sub.u64 %d4, %d4, %d3; st.global.u64 [%a0], %d2; st.global.u64 [%a0+8], %d4;
    """
    for seed in range(3):
        slept, clocks = run(body, [numpy.zeros(2, numpy.uint64)], seed=seed)[0]
        assert 10**9 <= slept < 11 * 10**8
        assert clocks > 10**9


def test_addresses_that_are_not_mapped() -> None:
    """With readable host memory, an access to an unmapped page faults at its instruction, and the process goes on."""
    emulator = Emulator("sm_90", host_memory=1)
    loaded = emulator.load(module([entry("st.global.u32 [%a0], 1;"), entry(ASYNC, "copies")], "sm_90"))
    host = (ctypes.c_uint32 * 64)()
    emulator.launch(loaded["run"], args=[ctypes.addressof(host), 0, 0, 0, 0, 0])
    assert host[0] == 1
    for name, opcode in (("run", "st.global.u32"), ("copies", "cp.async.bulk")):
        for seed in range(4):
            emulator.set("seed", seed)
            with pytest.raises(EmulatorError, match=f"{opcode}.*address 0x10.. is not mapped|{opcode}.*0x10"):
                emulator.launch(loaded[name], args=[0x1000, 0, 0, 0, 0, 0], shared=128)
    emulator.launch(loaded["run"], args=[ctypes.addressof(host) + 4, 0, 0, 0, 0, 0])
    assert host[1] == 1


ASYNC = """
mbarrier.init.shared.b64 [%smem+64], 32;
mbarrier.arrive.expect_tx.shared.b64 _, [%smem+64], 2;
elect.sync _|%p0, -1;
@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%smem], [%a0], 64, [%smem+64];
POLL: mbarrier.try_wait.parity.shared.b64 %p1, [%smem+64], 0; @!%p1 bra POLL;
""".replace(
    "mbarrier.init.shared.b64 [%smem+64], 32;",
    "elect.sync _|%p0, -1; @%p0 mbarrier.init.shared.b64 [%smem+64], 32;"
    "fence.mbarrier_init.release.cluster; bar.sync 0;",
)
