"""The GPU's kernels on an emulated GPU (emulator/), as part of an ordinary run of the tests: each device that it
can pose as, several timings a test. It is another process, since a process opens one CUDA driver. These begin when the
session begins, at low priority beside its other tests, which mostly use one core, and are waited for at its end.

`pytest --emulate sm_80` runs everything that needs a GPU there, not only what is chosen here.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import emulate
import pytest
from emulated import command, driver
from paths import KERNELS, TESTS

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")


@dataclass(frozen=True)
class Run:
    name: str
    device: str
    arguments: tuple[str, ...]
    least: int  # tests that must have passed

    def command(self) -> list[str]:
        return ["nice", "-n", "10", *command(self.device, *self.arguments)]


def ragged(device: str, family: str, timings: int) -> Run:
    """Every case: 335 ragged shapes, layouts, types and epilogues, equal to the CPU's to the bit."""
    arguments = (f"--seeds={timings}", "api/test_gemm_exact.py", "-k", f"equal_bits and {family}")
    return Run(f"ragged products of {family}", device, arguments, timings * 300)


def one_of_each_kind(device: str) -> Run:
    """Later GPUs run other PTX, whose decoding of e2m1 differs; H200 and B200 their own kernels beside sm80's."""
    files = ("epilogue", "layouts", "nan", "quantize", "shared_batches", "custom_kernel")
    arguments = ("kernels/test_decode.py", *(f"api/test_{name}.py" for name in files), "-k", "sm80 or sm90 or sm100")
    return Run(f"one of each kind on {device}", device, arguments, 50)


RUNS = [
    ragged("sm_80", "sm80", 5),  # on the oldest GPU
    ragged("sm_90", "sm90", 4),  # each kind of timing once
    ragged("sm_100", "sm100", 4),
    # What the plan could choose as well, on a few shapes; of sm90 a sample.
    Run("plans of sm90", "sm_90", ("--seeds=2", "plan/test_sm90.py", "-k", "sm90"), 2 * 14),
    Run("plans of sm100", "sm_100", ("--seeds=2", "plan/test_sm100.py", "-k", "sm100"), 2 * 7),
    # Sums that round, of up to 16384 products.
    Run("bounds of sm90", "sm_90", ("api/test_gemm_bounds.py", "-k", "sm90"), 20),
    Run("bounds of sm100", "sm_100", ("api/test_gemm_bounds.py", "-k", "sm100"), 20),
    *(one_of_each_kind(device) for device in emulate.DEVICES if device != "sm_80"),
]


class Background:
    """Runs, two at a time, each of which takes one core."""

    def __init__(self, runs: list[Run]) -> None:
        self.lock = threading.Lock()
        self.started: list[subprocess.Popen[str]] = []
        self.ended = False
        self.pool = ThreadPoolExecutor(2)
        self.outputs = {run.name: self.pool.submit(self.output, run) for run in runs}

    def output(self, run: Run) -> str:
        driver()  # one of them builds the emulator, the other waits for that
        with self.lock:
            if self.ended:
                return ""
            pipe = subprocess.PIPE
            process = subprocess.Popen(run.command(), cwd=TESTS, stdout=pipe, stderr=pipe, text=True)
            self.started.append(process)
        output, errors = process.communicate()
        assert process.returncode == 0, output[-5000:] + errors[-2000:]
        return output

    def end(self) -> None:
        """Of a session that stops before its end as well: nothing goes on without it."""
        with self.lock:
            self.ended = True
            for process in self.started:
                if process.poll() is None:
                    process.terminate()
        self.pool.shutdown(cancel_futures=True)


background: Background | None = None


def begin(runs: list[Run]) -> None:
    """Those that the session will ask for (conftest.py)."""
    global background
    if nvfp4.info()["archs"]:
        background = Background(runs)


def end() -> None:
    if background:
        background.end()


@pytest.fixture
def outputs() -> dict[str, Future[str]]:
    return background.outputs


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_runs(run: Run, outputs: dict[str, Future[str]]) -> None:
    passed = int(outputs[run.name].result().split(" passed")[0].split()[-1])
    assert passed >= run.least


def test_bits_of_an_h200() -> None:
    """Sums that round at every step come out as a real H200 computed them, whatever the timing."""
    recorded = json.loads((KERNELS / "product_bits_sm90.json").read_text())
    seed = random.SystemRandom().randrange(2**31)
    environment = {
        **os.environ,
        **driver(),
        "EMULATE_DEVICE": "sm_90",
        "EMULATE_SEED": str(seed),
    }
    command = [sys.executable, "kernels/product_bits.py"]
    done = subprocess.run(command, env=environment, cwd=TESTS, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sha256"] == recorded["sha256"], f"EMULATE_SEED={seed}"


@pytest.mark.parametrize(
    ("device", "name", "family"), [("sm_90", "Emulated H200", "sm90"), ("sm_100", "Emulated B200", "sm100")]
)
def test_check_runs_on_it(device: str, name: str, family: str) -> None:
    """NVFP4_LIBCUDA alone is enough."""
    environment = {**os.environ, **driver(), "EMULATE_DEVICE": device}
    command = [sys.executable, "-m", "nvfp4", "check", "--only", "1"]
    done = subprocess.run(command, env=environment, cwd=TESTS, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert name in done.stdout and "1 of 1 tests passed" in done.stdout and f"nvfp4_{family}_" in done.stdout


def test_a_gpu_that_is_only_emulated_is_not_timed() -> None:
    environment = {**os.environ, **driver()}
    command = [sys.executable, "-m", "nvfp4", "bench", "--shapes", "1x64x64"]
    done = subprocess.run(command, env=environment, cwd=TESTS, capture_output=True, text=True)
    assert done.returncode == 2 and "Emulated B200" in done.stderr, done.stdout + done.stderr
