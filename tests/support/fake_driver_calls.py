"""Programs on a libcuda that runs nothing (support/fake_libcuda.c): what they print, launch and call. Each is a process
of its own, since the driver is opened once a process."""

from __future__ import annotations

import os
from pathlib import Path

from python_server import python

CALL = """
import numpy as np, nvfp4
def call(m, n, k, l=None, backend="sm80", layout="128x4"):
    batch = () if l is None else (l,)
    scale = lambda rows: np.zeros(batch + (-(-rows // 128) * 128, -(-k // 64) * 4), np.uint8)
    a, b = (np.zeros(batch + (rows, k // 2), np.uint8) for rows in (m, n))
    out = np.full(batch + (m, n), 7, np.float16)
    nvfp4.gemm(a, b, scale(m), scale(n), out=out, backend=backend, scale_layout=layout)
    return out
def force(kernel, m, n, k):
    # The first plan on this kernel of sm90 with swap_ab is the one that is taken from now on.
    for i in range(400):
        nvfp4._C.set_candidate(i)
        plan = nvfp4.info(m, n, k, device=0, backend="sm90")["plan"]
        if plan["kernel"] == kernel and plan["swap_ab"]: return plan
    raise KeyError(kernel)
"""


def run(code: str, library: Path | str, **variables: str) -> str:
    """Returns what the process prints: its output, or the message of the nvfp4.Error that ended it."""
    program = f"{CALL}\ntry:\n    {code}\nexcept nvfp4.Error as error:\n    print(error)\n"
    environment = {**os.environ, "NVFP4_LIBCUDA": str(library), **variables}
    done = python("-c", program, library="numpy", env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def launches(code: str, library: Path, log: Path, **variables: str) -> list[list[str]]:
    assert run(code, library, FAKE_LOG=str(log), **variables) == ""
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def called(code: str, library: Path, log: Path, **variables: str) -> tuple[str, list[str]]:
    """Returns what the process prints, and the entry points that were called."""
    said = run(code, library, FAKE_CALLS=str(log), **variables)
    return said, log.read_text().split()
