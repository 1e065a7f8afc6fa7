"""An ordinary CUDA program, built with nvcc -cudart shared, runs on the emulator through LD_LIBRARY_PATH alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from small_kernel import Emulator

pytestmark = pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc")
SOURCE = Path(__file__).with_name("runtime_program.cu")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("runtime") / "program"
    targets = [f"-gencode=arch=compute_{t},code=compute_{t}" for t in ("90a", "100a")]
    done = subprocess.run(
        ["nvcc", "-std=c++17", "-cudart", "shared", *targets, "-o", str(made), str(SOURCE)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return made


def run(program: Path, device: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    folder = str(Path(Emulator().library._name).parent)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("EMULATE_")}
    return subprocess.run(
        [str(program), *arguments],
        capture_output=True,
        text=True,
        env={**clean, "LD_LIBRARY_PATH": folder, "EMULATE_DEVICE": device, **variables},
    )


EXPECTED = """\
1 device: {device}
constant: 0 wrong, time passes
dynamic shared memory: 63 0
variables: 69 70 80
block 0 says 42 words 1.50
block 1 says 42 words 1.50
clusters: 101 102 103 100 105 106 107 104
cooperative: 384
kernel: 4 shared, 1024 threads, 4 blocks
rejected: cudaErrorInvalidConfiguration, cudaErrorInvalidConfiguration, then cudaSuccess
done
"""
DEVICES = {
    "sm_90": "Emulated H200, 9.0, 132 SMs, 232448 bytes a block",
    "sm_100": "Emulated B200, 10.0, 148 SMs, 232448 bytes a block",
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(3))
def test_the_program(program: Path, device: str, seed: int) -> None:
    done = run(program, device, EMULATE_SEED=str(seed))
    lines = done.stdout.splitlines()
    lines[4:6] = sorted(lines[4:6])  # blocks print in any order
    assert "\n".join(lines) + "\n" == EXPECTED.format(device=DEVICES[device])
    assert done.returncode == 0
    assert re.fullmatch(r"emulator: .*weigh.*: block.x is 2000; it must be 1 to 1024\n", done.stderr)


def test_a_fault(program: Path) -> None:
    """The error of an asynchronous launch comes from a later call and sticks; the message goes to stderr."""
    done = run(program, "sm_90", "wild")
    assert done.returncode == 3
    assert done.stdout.splitlines()[1:] == [
        "launch: cudaSuccess",
        "after: cudaErrorLaunchFailure",
        "still: cudaErrorLaunchFailure",
    ]
    assert re.match(r"emulator: kernel .*wild.*, block \(0,0,0\), warp 0 lane 0 .*`st\.global", done.stderr)


def test_a_device_that_it_was_not_built_for(program: Path) -> None:
    done = run(program, "sm_80")
    assert done.returncode == 1
    assert "the fatbin has nothing that sm_80 runs: it has" in done.stderr
