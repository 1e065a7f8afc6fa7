"""The emulator against what an H200 gave: tests/emulator/silicon, one test a source file of kernels, each with a fresh
seed for the timing (EMULATE_SEED repeats one)."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EMULATOR = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(EMULATOR))
from emulate import build  # noqa: E402

SILICON = EMULATOR / "silicon"
SOURCES = sorted(path.stem for path in (SILICON / "vectors").glob("*.npz"))


@pytest.fixture(scope="module")
def library() -> Path:
    return build()


@pytest.mark.parametrize("source", SOURCES)
def test_agrees_with_silicon(source: str, library: Path) -> None:
    has_nvcc = os.environ.get("NVFP4_NVCC") or shutil.which("nvcc")
    if not has_nvcc and not os.environ.get("CI"):
        pytest.skip("nvcc not installed: the kernels cannot be compiled")
    seed = os.environ.get("EMULATE_SEED") or str(random.SystemRandom().randrange(1 << 31))
    print(f"EMULATE_SEED={seed}")
    environment = os.environ | {"EMULATE_DEVICE": "sm_90", "EMULATE_SEED": seed}
    command = [sys.executable, SILICON / "record.py", "--check", "--library", library, "--source", source]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"EMULATE_SEED={seed}\n{done.stdout}\n{done.stderr}"


def test_every_source_has_vectors() -> None:
    assert {path.stem for path in SILICON.glob("*.cu")} | {"encodings"} == set(SOURCES)
