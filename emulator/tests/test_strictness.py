"""Rejections and faults of programs that would compute the right result here: targets, versions, and rules of the
ISA whose violation fails on hardware at another time."""

from __future__ import annotations

import re

import numpy
import pytest
from emulate import Emulator
from small_kernel import EmulatorError, entry, module, run


def load(body: str, target: str, device: str = "sm_100", version: str = "9.0") -> str:
    """The message with which the module is rejected; empty if it is not."""
    text = (
        module(entry(body))
        .replace(".target sm_100a", f".target {target}")
        .replace(".version 9.0", f".version {version}")
    )
    try:
        Emulator(device).load(text)
    except EmulatorError as rejection:
        return str(rejection)
    return ""


def device_of(target: str) -> str:
    number = int(re.sub(r"\D", "", target))
    return next(d for d in ("sm_80", "sm_90", "sm_100", "sm_120") if int(d[3:]) >= number)


# instruction, targets that have it, targets that have not ("Target ISA Notes" of each)
TARGETS = [
    ("mbarrier.init.shared.b64 [%smem], 1;", "80 90 100", ""),
    ("mbarrier.try_wait.parity.shared.b64 %p0, [%smem], 0;", "90 90a 100", "80"),
    ("mbarrier.arrive.noComplete.b64 %d0, [%smem], 2;", "80 90", ""),
    ("mbarrier.arrive.shared.b64 %d0, [%smem], 2;", "90", "80"),
    ("mbarrier.arrive.expect_tx.shared.b64 %d0, [%smem], 16;", "90", "80"),
    ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%smem], [%a0], 16, [%smem];", "90 120", "80"),
    ("cp.async.bulk.commit_group;", "90", "80"),
    ("fence.proxy.async;", "90", "80"),
    ("fence.mbarrier_init.release.cluster;", "90", "80"),
    ("mapa.shared::cluster.u32 %r0, %smem, 0;", "90", "80"),
    ("barrier.cluster.arrive;", "90 100", "80"),
    ("elect.sync %r0|%p0, -1;", "90", "80"),
    ("griddepcontrol.wait;", "90", "80"),
    ("setmaxnreg.inc.sync.aligned.u32 232;", "90a 100a 100f 120a 120f", "90 100 120"),
    ("wgmma.fence.sync.aligned;", "90a", "90 100a"),
    ("tcgen05.wait::ld.sync.aligned;", "100a 100f", "90a 100 120a 120f"),
    ("tcgen05.fence::before_thread_sync;", "100a 100f", "100 120a"),
    ("redux.sync.min.f32 %r0, %r1, -1;", "100a 100f", "100 120a 90a"),
    ("redux.sync.min.u32 %r0, %r1, -1;", "80 100", ""),
    ("cvt.rn.satfinite.e2m3x2.f32 %h0, %r0, %r1;", "100a 100f 120a 120f", "90a 100 120"),
    ("cvt.rz.satfinite.ue8m0x2.f32 %h0, %r0, %r1;", "100a 100f 120a 120f", "90a 100 120"),
    ("cvt.rn.satfinite.e4m3x2.f32 %h0, %r0, %r1;", "90 100", "80"),
    ("fma.rn.f32x2 %d0, %d1, %d2, %d3;", "100 120", "90a"),
    ("tensormap.replace.tile.rank.global.b1024.b32 [%a0], 1;", "90a 100a 100f 120a", "90 100"),
    ("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%smem], %r0, [%smem];", "90", "80"),
    ("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%smem], {%r0};", "90", "80"),
    (
        "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e2m1.e2m1.f32 {%r0, %r1, %r2, %r3}, "
        "{%r4, %r5, %r6, %r7}, {%r8, %r9}, {%r0, %r1, %r2, %r3};",
        "120a 120f",
        "120",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("instruction", "good", "bad"), TARGETS, ids=[row[0].split()[0] for row in TARGETS])
def test_target_has_the_instruction(instruction: str, good: str, bad: str) -> None:
    for target in good.split():
        assert load(instruction, f"sm_{target}", device_of(target)) == "", target
    for target in bad.split():
        assert re.search(r"needs .*target", load(instruction, f"sm_{target}", device_of(target))), target


@pytest.mark.parametrize(
    ("target", "devices"),
    [
        ("sm_75", "sm_80 sm_90 sm_100 sm_120"),
        ("sm_90", "sm_90 sm_100 sm_120"),
        ("sm_90a", "sm_90"),
        ("sm_100", "sm_100 sm_120"),
        ("sm_100f", "sm_100"),
        ("sm_100a", "sm_100"),
        ("sm_103", "sm_120"),
        ("sm_103a", ""),
        ("sm_103f", ""),
        ("sm_120", "sm_120"),
        ("sm_120f", "sm_120"),
        ("sm_121a", ""),
    ],
)
def test_target_runs_on_the_device(target: str, devices: str) -> None:
    for device in ("sm_80", "sm_90", "sm_100", "sm_120"):
        rejection = load("", target, device)
        assert bool(rejection) == (device not in devices.split()), (target, device, rejection)
        assert not rejection or (target in rejection and device in rejection)


def test_version_is_known() -> None:
    assert load("", "sm_100a", version="9.0") == ""
    assert "version 9.9 of PTX is not known" in load("", "sm_100a", version="9.9")
    assert "version 10 of PTX is not known" in load("", "sm_100a", version="10.0")


def test_functions_that_nothing_calls_are_decoded() -> None:
    function = ".func idle(.param .b32 x) {{ .reg .b32 %r; ld.param.b32 %r, [x]; {0} ret; }}\n"
    emulator = Emulator("sm_100")
    emulator.load(module(entry(""), variables=function.format("add.u32 %r, %r, 1;")))
    with pytest.raises(EmulatorError, match="frobnicate.*not known"):
        emulator.load(module(entry(""), variables=function.format("frobnicate.u32 %r, %r;")))


def message(body: str, device: str = "sm_90", seed: int = 0, fences: str = "text", **launch: object) -> str:
    """The fault of a run; empty if there is none."""
    emulator = Emulator(device, seed, fences=fences)
    kernel = emulator.load(module(entry(body), device))["run"]
    x = emulator.array(numpy.arange(4096, dtype=numpy.uint32))
    options = {"shared": 4096, **launch}
    try:
        emulator.launch(kernel, args=[x, 0, 0, 0, 0, 0], **options)
    except EmulatorError as fault:
        return str(fault)
    return ""


FIRST = "setp.eq.u32 %p0, %t, 0;\n"


def test_mbarrier_is_not_initialised_twice() -> None:
    twice = FIRST + "@%p0 mbarrier.init.shared.b64 [%smem], 1;\n{0}@%p0 mbarrier.init.shared.b64 [%smem], 2;"
    assert "again" in message(twice.format(""))
    assert message(twice.format(""), fences="hardware") == ""
    assert message(twice.format("@%p0 mbarrier.inval.shared.b64 [%smem];\n")) == ""


@pytest.mark.parametrize("seed", range(8))
def test_block_does_not_exit_with_bytes_expected(seed: int) -> None:
    body = (
        FIRST + "@%p0 mbarrier.init.shared.b64 [%smem], 1;\n@%p0 mbarrier.expect_tx.relaxed.cta.shared.b64 [%smem], 64;"
    )
    assert re.search(r"exited while phase 0 of the mbarrier .* tx-count of 64 ", message(body, seed=seed))
    assert message(body, seed=seed, fences="hardware") == ""


def test_block_does_not_exit_with_copies_under_way() -> None:
    body = "shl.b32 %r0, %t, 2;\nadd.u32 %r0, %smem, %r0;\ncp.async.ca.shared.global [%r0], [%a0], 4;\n"
    assert re.search("exited while .*cp.async", message(body, "sm_80", seed=1))
    assert message(body, "sm_80", seed=1, fences="hardware") == ""
    for seed in range(8):
        assert message(body + "cp.async.wait_all;", "sm_80", seed=seed) == ""


TMEM = """
  shr.u32 %r1, %t, 5;
  setp.eq.u32 %p0, %r1, 0;
  @%p0 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%smem], 32;
  bar.sync 0;
  tcgen05.fence::after_thread_sync;
  ld.shared.b32 %r2, [%smem];
  {address}
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%r3], {{%t}};
  tcgen05.wait::st.sync.aligned;
  tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r4}}, [%r3];
  tcgen05.wait::ld.sync.aligned;
  tcgen05.fence::before_thread_sync;
  bar.sync 0;
"""
DEALLOC = "@%p0 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 32;\n"


def test_lane_of_tensor_memory_is_of_the_warps_quarter() -> None:
    own = TMEM.format(address="shl.b32 %r3, %r1, 21; add.u32 %r3, %r3, %r2;") + DEALLOC
    zero = TMEM.format(address="mov.b32 %r3, %r2;") + DEALLOC
    assert message(own, "sm_100", block=128) == ""
    assert re.search(r"begins at lane 0, but warp [123] of the CTA reaches lanes", message(zero, "sm_100", block=128))
    assert message(zero, "sm_100", block=128, fences="hardware") == ""


def test_columns_left_allocated_name_the_alloc() -> None:
    kept = TMEM.format(address="shl.b32 %r3, %r1, 21; add.u32 %r3, %r3, %r2;")
    assert re.search(r":\d+ `.*tcgen05\.alloc.*32 columns .* still allocated", message(kept, "sm_100", block=128))


REMOTE = """
  mov.u32 %r0, %cluster_ctarank;
  setp.eq.u32 %p0, %t, 0;
  @%p0 mbarrier.init.shared.b64 [%smem], 1;
  @%p0 fence.mbarrier_init.release.cluster;
  barrier.cluster.arrive;
  barrier.cluster.wait;
  setp.eq.and.u32 %p1, %r0, 1, %p0;
  mapa.shared::cluster.u32 %r1, %smem, 0;
  @%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1];
"""


def test_remote_arrival_takes_its_time() -> None:
    """Block 1 arrives at block 0's barrier and says so by a relaxed store; the phase may still go on."""
    body = REMOTE + """
  add.u32 %r2, %r1, 64;
  @%p1 st.relaxed.cluster.shared::cluster.u32 [%r2], 7;
  setp.eq.u32 %p2, %r0, 0;
  @!%p2 bra $behind;
$told:
  ld.relaxed.cluster.shared::cta.u32 %r3, [%smem+64];
  setp.ne.u32 %p3, %r3, 7;
  @%p3 bra $told;
  mbarrier.test_wait.parity.shared.b64 %p4, [%smem], 0;
  selp.u32 %r4, 1, 0, %p4;
  st.global.u32 [%a0], %r4;
$until:
  mbarrier.try_wait.parity.shared.b64 %p4, [%smem], 0;
  @!%p4 bra $until;
$behind:
  barrier.cluster.arrive;
  barrier.cluster.wait;
"""  # fmt: skip
    seen = set()
    for seed in range(24):
        out = run(body, [numpy.zeros(1, numpy.uint32)], device="sm_90", seed=seed, grid=2, cluster=2)[0]
        seen.add(int(out[0]))
    assert seen == {0, 1}


@pytest.mark.parametrize("seed", range(12))
def test_cluster_barrier_comes_after_remote_arrivals(seed: int) -> None:
    assert message(REMOTE + "barrier.cluster.arrive;\nbarrier.cluster.wait;", seed=seed, grid=2, cluster=2) == ""


def test_block_does_not_exit_before_a_remote_arrival() -> None:
    faults = {message(REMOTE, seed=seed, grid=2, cluster=2) for seed in range(32)}
    assert any("exited while" in f and "remote arrival" in f for f in faults), faults


def test_deadlock_says_who_has_arrived_at_the_clusters_barrier() -> None:
    body = """
  mov.u32 %r0, %cluster_ctarank;
  shr.u32 %r1, %t, 5;
  mad.lo.u32 %r2, %r0, 2, %r1;
  setp.eq.u32 %p0, %r2, 3;
  @%p0 bra $stay;
  barrier.cluster.arrive;
  barrier.cluster.wait;
  bra $behind;
$stay:
  bar.sync 3, 64;
$behind:
"""
    said = message(body, block=64, grid=2, cluster=2)
    assert "arrived, of CTA 0: warps 0-1; CTA 1: warps 0)" in said
    assert re.search(r"barrier 3: .*1 of 2 warps have arrived \(1\)", said)


# CTAs 0 and 1 initialise a barrier each and meet; then a thread signals the own barrier, or the other CTA's at %r1.
SIGNALLED = """
  mov.u32 %r0, %cluster_ctarank;
  xor.b32 %r0, %r0, 1;
  mapa.shared::cluster.u32 %r1, %smem, %r0;
  setp.eq.u32 %p0, %t, 0;
  setp.eq.u32 %p1, %t, 33;
  @%p0 mbarrier.init.shared::cta.b64 [%smem], 1;
  {fence}
  barrier.cluster.arrive.{order}.aligned;
  barrier.cluster.wait.acquire.aligned;
  {late}
  @%p1 bra SIGNAL;
  bra WAIT;
SIGNAL:
  {signal}
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p2, [%smem], 0;
  @!%p2 bra WAIT;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
"""
EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem], 16;"
# by the async proxy
COPY = EXPECT + "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%smem+64], [%a0], 16, [%smem];"
COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%smem];"
MULTICAST = (
    "mov.u16 %h1, 1; shl.b16 %h0, %h1, %r0;"
    "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%smem], %h0;"
)
CANCEL = EXPECT + (
    "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%smem+64], [%smem];"
)
# by a thread of the other CTA
ARRIVE = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1];"
STORE = """
  mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r1], 4;
  add.u32 %r2, %r1, 64;
  st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r2], %t, [%r1];
"""


@pytest.mark.parametrize(
    ("fence", "order", "late", "copies", "arrivals"),
    [
        ("@%p0 fence.mbarrier_init.release.cluster;", "relaxed", "", True, True),
        ("@%p0 fence.proxy.async.shared::cta;", "relaxed", "", True, True),
        ("@%p0 fence.acq_rel.cluster;", "relaxed", "", False, True),
        ("@%p0 fence.acq_rel.cta;", "relaxed", "", False, False),
        ("", "release", "", False, True),
        ("", "relaxed", "", False, False),
        ("@%p1 fence.mbarrier_init.release.cluster;", "relaxed", "", False, False),  # by a thread of another warp,
        ("@!%p0 fence.mbarrier_init.release.cluster;", "relaxed", "", False, False),  # by every thread but that one
        ("", "relaxed", "@%p1 fence.mbarrier_init.release.cluster;", False, False),
        ("", "release", "@%p1 fence.proxy.async;", True, True),  # which has synchronised with it
    ],
)
@pytest.mark.parametrize("signal", [COPY, COMMIT, MULTICAST, CANCEL, ARRIVE, STORE])
def test_init_must_be_visible_to_what_signals(
    fence: str, order: str, late: str, copies: bool, arrivals: bool, signal: str
) -> None:
    body = SIGNALLED.format(fence=fence, order=order, late=late, signal=signal)
    by_thread = signal in (ARRIVE, STORE)
    whose = "other CTAs" if by_thread else "the async proxy"
    line = module(entry(body), "sm_100").split("mbarrier.init")[0].count("\n") + 1
    for seed in range(4):
        got = message(body, "sm_100", seed, block=64, grid=2, cluster=2)
        if arrivals if by_thread else copies:
            assert got == ""
        else:
            assert f"mbarrier.init (line {line}) visible to {whose}" in got
        assert message(body, "sm_100", seed, fences="hardware", block=64, grid=2, cluster=2) == ""
