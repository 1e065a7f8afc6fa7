"""Tests on the emulated GPU, in processes of their own: a process opens one CUDA driver."""

from __future__ import annotations

import subprocess
import sys

import emulate
from paths import TESTS


def driver() -> dict[str, str]:
    """The environment in which the emulated GPU is the only one, also to torch."""
    return {"NVFP4_LIBCUDA": str(emulate.build()), "CUDA_VISIBLE_DEVICES": ""}


def command(device: str, *arguments: str) -> list[str]:
    """To be run in tests/."""
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--emulate={device}", *arguments]


def emulated(device: str, *arguments: str) -> str:
    """The output of such a run, which must pass."""
    done = subprocess.run(command(device, *arguments), cwd=TESTS, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    return done.stdout
