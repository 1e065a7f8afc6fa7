"""What a program is refused, or faulted, for although it would compute the right thing here: targets, versions, and
rules of the text whose breach hardware may punish at another time."""

from __future__ import annotations

import re

import pytest
from small_kernel import EmulatorError, entry, module, run

from emulate import Emulator


def load(body: str, target: str, device: str = "sm_100", version: str = "9.0") -> str:
    """The sentence with which the module is refused; empty if it is not."""
    text = (
        module(entry(body))
        .replace(".target sm_100a", f".target {target}")
        .replace(".version 9.0", f".version {version}")
    )
    try:
        Emulator(device).load(text)
    except EmulatorError as refusal:
        return str(refusal)
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
        refusal = load("", target, device)
        assert bool(refusal) == (device not in devices.split()), (target, device, refusal)
        assert not refusal or (target in refusal and device in refusal)


def test_version_is_known() -> None:
    assert load("", "sm_100a", version="9.0") == ""
    assert "version 9.9 of PTX is not known" in load("", "sm_100a", version="9.9")
    assert "version 10 of PTX is not known" in load("", "sm_100a", version="10.0")
