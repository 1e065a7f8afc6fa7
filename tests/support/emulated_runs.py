"""Tests on the emulated GPU, in processes of their own: a process opens one CUDA driver."""

from __future__ import annotations

import emulate
from paths import TESTS
from python_server import python


def driver() -> dict[str, str]:
    """The environment in which the emulated GPU is the only one, also to torch."""
    return {"NVFP4_LIBCUDA": str(emulate.build()), "CUDA_VISIBLE_DEVICES": ""}


def emulated(device: str, *arguments: str) -> str:
    """The output of such a run, which must pass."""
    options = ("-q", "-p", "no:cacheprovider", f"--emulate={device}")
    done = python("-m", "pytest", *options, *arguments, cwd=TESTS)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    return done.stdout
