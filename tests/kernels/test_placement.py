"""`python tools/lab placement`: the debug build records SM, start and end of each CTA, Python decodes and
shows it, and the release build contains none of it."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy
import pytest
import torch
from conftest import in_full
from emulate import Emulator, Module
from harness.headers import Config, headers_of
from harness.launch import Generator, compile_ptx, only_entry, ptx_of
from lab import placement
from lab.__main__ import main
from lab.placement import ENTRY, HEADER
from paths import CSRC
from sm90 import gemm as sm90
from sm100 import gemm as sm100

import nvfp4
from nvfp4 import _C
from nvfp4.cli import machine, show

needs_nvcc = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")
INCLUDE, HOOK = '#include "kernels/common/placement.cuh"\n', re.compile(r"^ *RECORD_CTA\(\); *\\\n", re.M)
HOOKED = ("sm100/gemm.cu", "sm100/grouped.cu", "sm120/gemm.cu", "sm120/grouped.cu")
HOOKED += ("sm90/gemm.cu", "sm90/gemv.cu", "sm90/grouped.cu", "sm90/prefill.cu")


# --- without the flag -----------------------------------------------------------------------------------------------


def test_every_kernel_has_one_hook() -> None:
    """The macro, alone in a line: what test_dump.py finds of sm100/gemm.cu, the same PTX without it, holds for all."""
    for path in CSRC.glob("kernels/**/*.cu*"):
        text, name = path.read_text(), str(path.relative_to(CSRC / "kernels"))
        if name == "common/placement.cuh":
            continue
        hooks = len(HOOK.findall(text))
        assert (hooks, text.count(INCLUDE)) == ((1, 1) if name in HOOKED else (0, 0)), name
        rest = HOOK.sub("", text.replace(INCLUDE, ""))
        assert not re.search(r"RECORD_CTA|nvfp4_placement|placement\.c?u?h", rest), name


# --- emulated -------------------------------------------------------------------------------------------------------


DEBUG = headers_of("sm100", "NVFP4_DUMP")  # the debug build's headers


def recording(emulator: Emulator, module: Module, capacity: int) -> object:
    """A record that the module's kernels write."""
    record = emulator.array(numpy.zeros(HEADER.size + capacity * ENTRY.size, numpy.uint8))
    record.numpy()[:4] = list(capacity.to_bytes(4, "little"))
    address, size = ctypes.c_uint64(), ctypes.c_size_t()
    found = (ctypes.byref(address), ctypes.byref(size), module.handle, b"nvfp4_placement")
    emulator.call("cuModuleGetGlobal_v2", *found)
    assert size.value == 8
    emulator.call("cuMemcpyHtoD_v2", address, struct.pack("<Q", record.address), ctypes.c_size_t(8))
    return record


def check_record(ctas: Sequence[placement.Cta], launches: int, grid: int, cluster: int, sms: int) -> None:
    assert sorted((c.call, c.cta) for c in ctas) == [(i + 1, j) for i in range(launches) for j in range(grid)]
    for c in ctas:
        assert c.cluster_size == cluster and c.cluster == c.cta // cluster
        assert 0 <= c.sm < sms and c.clocks > 0 and 0 <= c.start < c.end
    for one in ctas:  # CTAs of a cluster are on SMs of their own, and run at the same time
        for other in ctas:
            if (one.call, one.cluster) == (other.call, other.cluster) and one.cta != other.cta:
                assert one.sm != other.sm and one.start < other.end and other.start < one.end
    assert min(c.start for c in ctas) == 0


@needs_nvcc
@in_full
def test_recorded_on_the_emulated_b200(random: Generator) -> None:
    """Two launches of pairs split along K; the same product, without the record, leaves it as it is."""
    config: Config = sm100.CONFIGS["sm100_gemm_256x64"]
    debug = DEBUG.configs()[config.name]
    emulator = Emulator("sm_100", seed=int(random.integers(2**30)))
    module = emulator.load(only_entry(ptx_of(config, "-DNVFP4_DUMP"), config.kernel))

    class Debug(sm100.Product):
        """With the debug build's schedule, which asks for no dump."""

        def schedule(self, *arguments: object) -> object:
            of_debug = DEBUG.structs["sm100_schedule"]  # longer: the dump stands at its end
            return of_debug.from_buffer_copy(bytes(super().schedule(*arguments)).ljust(ctypes.sizeof(of_debug), b"\0"))

    product = Debug(emulator, random, 60, 500, 1024)
    record = recording(emulator, module, 16)
    for _ in range(2):
        product.launch(module, debug, True, 2)
    product.check()
    check_record(placement.decode(record.numpy().tobytes(), ""), 2, 8, 4, 148)
    product.launch(module, debug, True, 2)  # more than fit
    with pytest.raises(show.CommandError, match="24 CTAs ran, and the record holds 16"):
        placement.decode(record.numpy().tobytes(), "")


@needs_nvcc
def test_recorded_on_the_emulated_h200(random: Generator, tmp_path: Path) -> None:
    config = sm90.CONFIGS["sm90_gemm_128x8"]
    source = tmp_path / "gemm.cu"
    text = (CSRC / "kernels/sm90/gemm.cu").read_text()
    source.write_text(text.replace("SM90_GEMM_CONFIGS(KERNEL)", f"KERNEL({config.row})"))
    emulator = Emulator("sm_90", seed=int(random.integers(2**30)))
    module = emulator.load(compile_ptx(source, "sm90", "-DNVFP4_DUMP"))
    product = sm90.Product(emulator, random, 8, 300, 512)
    expected, record = product.expected(), recording(emulator, module, 6)
    product.launch(module, config, split_k=2, in_stages=True)
    product.check(expected)
    check_record(placement.decode(record.numpy().tobytes(), ""), 1, 6, 2, 132)


# --- the command ----------------------------------------------------------------------------------------------------


DECODE = placement.decode


def record_of(entries: Sequence[tuple[int, ...]], capacity: int = 9, count: int | None = None) -> bytes:
    entries_bytes = b"".join(ENTRY.pack(*entry) for entry in entries)
    return HEADER.pack(capacity, len(entries) if count is None else count) + entries_bytes.ljust(9 * ENTRY.size, b"\0")


# CTA, CTAs, cluster, SM, start, end, clocks: two launches of two CTAs, written in another order than they ran in.
ENTRIES = [
    (0, 2, 2, 7, 3000, 4500, 9),
    (1, 2, 2, 8, 1250, 3500, 8),
    (0, 2, 2, 7, 1000, 2000, 7),
    (1, 2, 2, 7, 3100, 5000, 6),
]


def test_decoding() -> None:
    found = placement.decode(record_of(ENTRIES), "s")
    assert [(c.call, c.cta, c.cluster, c.sm, c.start, c.end, c.clocks) for c in found] == [
        (1, 0, 0, 7, 0.0, 1.0, 7),
        (1, 1, 0, 8, 0.25, 2.5, 8),
        (2, 0, 0, 7, 2.0, 3.5, 9),
        (2, 1, 0, 7, 2.1, 4.0, 6),
    ]
    with pytest.raises(show.CommandError, match="CTA 0 has not ended"):
        placement.decode(record_of([(0, 2, 2, 7, 3000, 0, 0)]), "s")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With a fake record: its calls, tables, CSV and picture."""
    asked: list[tuple[int, int]] = []

    def ask(device: int, memory: int) -> None:
        asked.append((device, memory))

    plan = {"plan": {"backend": "sm90", "kernel": "sm90_fake", "grid": 2}}
    calls: list[int] = []
    target = machine.Target(torch.device("cuda", 0), torch.device("cpu"), "sm90")
    monkeypatch.setattr(_C, "placement", ask, raising=False)
    monkeypatch.setattr(placement, "info", lambda *_, **__: plan)
    monkeypatch.setattr(placement, "gemm", lambda *_, **__: calls.append(len(asked)))
    monkeypatch.setattr(placement, "decode", lambda memory, shape: DECODE(record_of(ENTRIES), shape))
    monkeypatch.setattr(machine, "pick_target", lambda _: target)
    monkeypatch.setattr(machine, "describe", lambda _: "a fake GPU")
    csv, picture = tmp_path / "p.csv", tmp_path / "p.svg"
    words = ["placement", "--shapes", "4x16x64", "--repeat", "2", "--csv", str(csv), "--plot", str(picture)]
    assert main(words) == 0
    assert calls == [0, 1, 1] and asked[0][1] > 0 and asked[1:] == [(0, 0)]
    told = capsys.readouterr().out
    assert "4x16x64 by sm90_fake on a fake GPU" in told
    assert re.search(r"^ +1 +2 +2 +0 +0.00 +0.25 +1.00 +2.50$", told, re.M)
    assert re.search(r"^ +2 +2 +1 +1 +2.00 +2.10 +3.50 +4.00$", told, re.M)
    assert re.search(r"^ +1 +0 of 2 +7 +2.10 +4.00 +6$", told, re.M)
    assert (
        csv.read_text().splitlines()[1] == "4x16x64,1,0,0,2,7,0.000,1.000,7" and len(csv.read_text().splitlines()) == 5
    )
    assert "4x16x64" in picture.read_text()
    bars = placement.figure(placement.decode(b"", "s")).axes[0].collections
    (second,) = [bar for bar in bars if bar.get_paths()[0].get_extents().y0 == 7.45]
    assert second.get_paths()[0].get_extents().x0 == pytest.approx(2.1)  # two CTAs on SM 7 at once


def test_what_the_command_rejects(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*more: str) -> str:
        assert main(["placement", "--backend", "cpu", *more]) == 2
        return capsys.readouterr().err

    if not hasattr(_C, "placement"):
        assert "needs a debug build" in said() and "NVFP4_DUMP=1 pip" in said()
    assert "there is no folder" in said("--csv", "/nowhere/p.csv")
    monkeypatch.setattr(_C, "placement", lambda *_: None, raising=False)
    assert "(cpu); only sm90, sm100 and sm120 kernels record it" in said("--shapes", "4x16x64")
