"""The emulator against results recorded on an H200 (golden/): one test for each source file of kernels, each
with a fresh EMULATE_SEED. And cases where the hardware's rules and the emulator's checks meet."""

import csv
import fnmatch
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from emulate import Emulator, EmulatorError, build

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
SOURCES = sorted([*(path.stem for path in GOLDEN.glob("*.cu")), "encodings"])


@pytest.fixture(scope="module")
def library() -> Path:
    return build()


@pytest.mark.parametrize("source", SOURCES)
def test_agrees_with_hardware(source: str, library: Path) -> None:
    has_nvcc = os.environ.get("NVCC") or shutil.which("nvcc")
    if not has_nvcc and not os.environ.get("CI"):
        pytest.skip("nvcc not installed: the kernels cannot be compiled")
    seed = os.environ.get("EMULATE_SEED") or str(random.SystemRandom().randrange(1 << 31))
    print(f"EMULATE_SEED={seed}")
    # In some of these kernels a warp polls a barrier that others take two phases further, which works on hardware.
    environment = os.environ | {"EMULATE_DEVICE": "sm_90", "EMULATE_SEED": seed, "EMULATE_FENCES": "hardware"}
    command = [sys.executable, GOLDEN / "record.py", "--check", "--library", library, "--source", source]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"EMULATE_SEED={seed}\n{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="module")
def listed() -> list[list[str]]:
    """Source file, kernel and name of each case."""
    command = [sys.executable, GOLDEN / "record.py", "--list"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line.split() for line in done.stdout.splitlines()]


def test_every_case_has_vectors(listed: list[list[str]]) -> None:
    """And each source file cases; no vector is of a case that is gone."""
    sources, _, names = (set(column) for column in zip(*listed))
    assert sources | {"encodings"} == set(SOURCES)
    with np.load(GOLDEN / "vectors.npz") as vectors:
        recorded = {key.partition("/")[0] for key in vectors.files}
    assert recorded == names | {"encodings", "provenance"}
    readme = (GOLDEN / "README.md").read_text(encoding="utf-8").replace("\n", " ")
    assert f"{len(names)} cases from {len(sources)} source files" in readme


def test_findings_name_recorded_cases(listed: list[list[str]]) -> None:
    names = {name for *_, name in listed} | {"encodings"}
    with (GOLDEN / "findings.csv").open(encoding="utf-8", newline="") as file:
        findings = list(csv.DictReader(file))
    assert len(findings) >= 30
    for finding in findings:
        assert finding["subject"] and finding["question"] and finding["answer"]
        for pattern in finding["cases"].split():
            assert fnmatch.filter(names, pattern), f"{finding['question']}: no case is named {pattern}"


STORE = """
.version 8.6
.target sm_90
.address_size 64
.visible .entry store(.param .align 64 .b8 map[128]) {
  .shared .align 128 .b8 box[128];
  .reg .b64 %m;
  mov.b64 %m, map;
  cvta.param.u64 %m, %m;
  fence.proxy.async;
  cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%m, {64}], [box];
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
  ret;
}
"""


@pytest.mark.parametrize("room", [0, 3, 13])
def test_store_behind_the_end_keeps_to_the_allocation(room: int, library: Path) -> None:
    """A store that clips by 16 bytes reaches behind a tensor of 83 bytes, but only into memory that was allocated."""
    emulator = Emulator("sm_90", random.randrange(1 << 31), library)
    kernel = emulator.load(STORE)["store"]
    behind = emulator.array(np.zeros(64, np.uint8))  # anything that lies behind in the host's memory
    memory = emulator.array(np.zeros(83 + room, np.uint8))
    tensor_map = emulator.tensor_map(0, memory, [83], [], [64])
    emulator.launch(kernel, 1, 1, [tensor_map])
    assert memory.numpy().tolist() == [0] * 64 + [0xFF] * (19 + room)  # shared memory starts as 0xff
    assert not behind.numpy().any()


def test_copies_by_an_interleaved_map_are_rejected(library: Path) -> None:
    emulator = Emulator("sm_90", 0, library)
    memory = emulator.array(np.zeros(64 * 16 * 4, np.uint16))
    tensor_map = emulator.tensor_map(1, memory, [64, 16, 4], [128, 2048], [8, 8, 2], interleave=1)
    ptx = STORE.replace(".1d", ".3d").replace("{64}", "{0, 0, 0}")
    with pytest.raises(EmulatorError, match="is interleaved"):
        emulator.launch(emulator.load(ptx)["store"], 1, 1, [tensor_map])
