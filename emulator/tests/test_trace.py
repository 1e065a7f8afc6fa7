"""The trace: counts and bytes as counted by hand, and a timeline that a viewer can load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
from small_kernel import Emulator, EmulatorError, entry, module

COUNTED = """
mov.u32 %r0, 0;
LOOP: add.u32 %r0, %r0, 1; setp.lt.u32 %p0, %r0, 5; @%p0 bra LOOP;
mul.wide.u32 %d0, %t, 4; add.u64 %d0, %d0, %a0;
ld.global.u32 %r1, [%d0];
setp.lt.u32 %p1, %lane, 8;
@%p1 mad.lo.u32 %r1, %r1, 3, 1;
mul.wide.u32 %d1, %t, 16; cvt.u32.u64 %r2, %d1; add.u32 %r2, %r2, %smem;
st.shared.v2.u32 [%r2], {%r1, %r0};
bar.sync 0;
ld.shared.u64 %d2, [%r2];
st.global.u16 [%d0], %h0;
"""


def traced(path: Path, entries: list[str], launches: list[dict[str, Any]], seed: int = 0, device: str = "sm_90") -> Any:
    emulator = Emulator(device, seed, trace=str(path))
    loaded = emulator.load(module(entries, device))
    for options in launches:
        name = options.pop("name", "run")
        arguments = [emulator.array(a) if isinstance(a, numpy.ndarray) else a for a in options.pop("args")]
        emulator.launch(loaded[name], args=arguments + [0] * (6 - len(arguments)), **options)
    emulator.synchronize()
    emulator.set("trace", "")
    return json.loads(path.read_text())


def test_counts_and_bytes(tmp_path: Path) -> None:
    data = numpy.zeros(256, numpy.uint32)
    for seed in range(3):
        trace = traced(
            tmp_path / "t.json", [entry(COUNTED)], [{"args": [data], "grid": 3, "block": 40, "shared": 4096}], seed
        )
        (kernel,) = trace["kernels"]
        assert [kernel[k] for k in ("kernel", "grid", "block", "cluster")] == ["run", [3, 1, 1], [40, 1, 1], [1, 1, 1]]
        counts = kernel["instructions"]
        warps, lanes = 6, 120  # 3 blocks of a whole warp and one of 8 lanes
        expected = {
            "add.u32": [6 * warps, 6 * lanes],  # five of the loop, one of the address
            "bra": [4 * warps, 4 * lanes],
            "setp.lt.u32": [6 * warps, 6 * lanes],
            "ld.global.u32": [warps, lanes],
            "mad.lo.u32": [warps, 8 * warps],
            "st.shared.v2.u32": [warps, lanes],
            "bar.sync": [warps, lanes],
            "ld.shared.u64": [warps, lanes],
            "st.global.u16": [warps, lanes],
            "ld.param.u64": [6 * warps, 6 * lanes],
            "ret": [warps, lanes],
        }
        assert {name: counts[name] for name in expected} == expected
        each = {
            "global read by threads": 4 * 40,
            "global written by threads": 2 * 40,
            "shared read by threads": 8 * 40,
            "shared written by threads": 8 * 40,
        }
        assert {k: v // 3 for k, v in kernel["bytes"].items()} == each
        assert sorted(c["block"] for c in kernel["ctas"]) == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]
        assert all(c["bytes"] == each for c in kernel["ctas"])
        assert all(0 <= c["sm"] < 132 for c in kernel["ctas"])


COPIES = """
elect.sync _|%p0, -1; @!%p0 bra WAIT;
mbarrier.init.shared.b64 [%smem+1024], 1; fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared.b64 _, [%smem+1024], 768;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%smem], [%a0], 256, [%smem+1024];
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%smem+256], [%a0+256], 512, [%smem+1024];
WAIT: bar.sync 0;
POLL: mbarrier.try_wait.parity.shared.b64 %p1, [%smem+1024], 0; @!%p1 bra POLL;
@!%p0 bra END;
cp.async.bulk.global.shared::cta.bulk_group [%a1], [%smem], 128;
cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
END:
"""


@pytest.mark.parametrize("seed", range(4))
def test_timeline(tmp_path: Path, seed: int) -> None:
    """Every asynchronous operation is in it, with its bytes, its block, and an end that is not before its beginning."""
    launch = {"args": [numpy.zeros(1024, numpy.uint8), numpy.zeros(128, numpy.uint8)], "grid": 5, "shared": 2048}
    trace = traced(tmp_path / "t.json", [entry(COPIES)], [launch], seed)
    events = trace["traceEvents"]
    assert sorted(e["args"]["bytes"] for e in events if e["args"]["bytes"]) == [128] * 5 + [256] * 5 + [512] * 5
    assert {e["pid"] for e in events} == {c["cta"] for c in trace["kernels"][0]["ctas"]}
    assert all(e["ph"] == "X" and e["dur"] >= 0 and e["ts"] > 0 and e["name"] for e in events)
    assert trace["kernels"][0]["bytes"]["bulk copies from global"] == 5 * 768
    assert trace["kernels"][0]["bytes"]["bulk copies to global"] == 5 * 128


def test_overlapping_grids_have_their_own_bytes(tmp_path: Path) -> None:
    first = entry(
        "griddepcontrol.launch_dependents; ld.global.u64 %d0, [%a0]; bar.sync 0; ld.global.u64 %d0, [%a0];", "first"
    )
    second = entry("ld.global.u32 %r0, [%a0]; griddepcontrol.wait;", "second")
    data = numpy.zeros(2, numpy.uint64)
    for seed in range(6):
        launches = [
            {"name": "first", "args": [data], "grid": 4, "block": 64, "wait": False},
            {"name": "second", "args": [data], "grid": 4, "programmatic": True},
        ]
        trace = traced(tmp_path / "t.json", [first, second], launches, seed)
        assert {k["kernel"]: k["bytes"] for k in trace["kernels"]} == {
            "first": {"global read by threads": 4 * 64 * 16},
            "second": {"global read by threads": 4 * 32 * 4},
        }
        assert [len(k["ctas"]) for k in trace["kernels"]] == [4, 4]


def test_what_ran_before_is_not_counted(tmp_path: Path) -> None:
    """Nor a kernel that faulted; and the file is whole JSON after each."""
    path = tmp_path / "t.json"
    emulator = Emulator("sm_90")
    loaded = emulator.load(module([entry("abs.s32 %r0, 1; setp.eq.u64 %p0, %a0, 1; @%p0 trap;")], "sm_90"))["run"]
    emulator.launch(loaded, args=[0] * 6)
    emulator.set("trace", str(path))
    with pytest.raises(EmulatorError, match="trap"):
        emulator.launch(loaded, args=[1] + [0] * 5)
    assert json.loads(path.read_text())["kernels"] == []
    for count in (1, 2):
        emulator.launch(loaded, args=[0] * 6)
        kernels = json.loads(path.read_text())["kernels"]
        assert [k["instructions"]["abs.s32"] for k in kernels] == [[1, 32]] * count
    emulator.set("trace", "")
    assert len(json.loads(path.read_text())["kernels"]) == 2


def test_a_file_that_cannot_be_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    emulator = Emulator("sm_90", trace=str(tmp_path / "no" / "t.json"))
    emulator.launch(emulator.load(module(entry(""), "sm_90"))["run"], args=[0] * 6)
    assert "t.json cannot be written" in capfd.readouterr().err
