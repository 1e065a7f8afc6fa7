"""The emulator against what an H200 gave: tests/emulator/silicon, one test a source file of kernels."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

EMULATOR = Path(__file__).resolve().parent.parent
SILICON = EMULATOR / "silicon"
LIBRARY = EMULATOR / "build" / "libcuda.so.1"
SOURCES = sorted(path.stem for path in (SILICON / "vectors").glob("*.npz"))


@pytest.mark.parametrize("source", SOURCES)
def test_agrees_with_silicon(source: str) -> None:
    if not LIBRARY.exists():
        pytest.skip(f"the emulator is not built: there is no {LIBRARY}")
    seed = os.environ.get("EMULATE_SEED") or str(random.SystemRandom().randrange(1 << 31))
    environment = os.environ | {"EMULATE_DEVICE": "sm_90", "EMULATE_SEED": seed}
    command = [sys.executable, SILICON / "record.py", "--check", "--library", LIBRARY, "--source", source]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"EMULATE_SEED={seed}\n{done.stdout}\n{done.stderr}"


def test_every_source_has_vectors() -> None:
    assert {path.stem for path in SILICON.glob("*.cu")} | {"encodings"} == set(SOURCES)
