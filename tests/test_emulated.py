"""The GPU's kernels on an emulated GPU (tests/emulator), as part of an ordinary run of the tests: each device that it
can pose as, several timings a test. It is another process, since a process opens one CUDA driver.

`pytest --emulate sm_80` runs everything that needs a GPU there, not only what is chosen here.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import emulate
import pytest

import nvfp4

TESTS = Path(__file__).parent

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")


def driver() -> dict[str, str]:
    """The environment in which the emulated GPU is the only one, also to torch."""
    return {"NVFP4_LIBCUDA": str(emulate.build()), "CUDA_VISIBLE_DEVICES": ""}


def emulated(device: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--emulate={device}", *arguments]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    return done.stdout


def test_ragged_products_with_five_timings() -> None:
    """Every case, on the oldest GPU: 335 ragged shapes, layouts, types and epilogues, equal to the CPU's to the bit."""
    output = emulated("sm_80", "--seeds=5", "test_gemm_exact.py", "-k", "equal_bits and sm80")
    assert int(output.split(" passed")[0].split()[-1]) >= 5 * 300


def test_ragged_products_of_sm100_with_four_timings() -> None:
    """The same cases on the B200's own kernels, as plan.c chooses them: each kind of timing once."""
    output = emulated("sm_100", "--seeds=4", "test_gemm_exact.py", "-k", "equal_bits and sm100")
    assert int(output.split(" passed")[0].split()[-1]) >= 4 * 300


def test_ragged_products_of_sm90_with_four_timings() -> None:
    """And on Hopper's."""
    output = emulated("sm_90", "--seeds=4", "test_gemm_exact.py", "-k", "equal_bits and sm90")
    assert int(output.split(" passed")[0].split()[-1]) >= 4 * 300


def test_every_plan_of_sm90() -> None:
    """What plan.c could choose as well, on a few shapes: a sample of it."""
    output = emulated("sm_90", "--seeds=4", "test_sm90_plans.py", "-k", "sm90")
    assert int(output.split(" passed")[0].split()[-1]) >= 4 * 14


def test_every_plan_of_sm100() -> None:
    """What plan.c could choose as well, on a few shapes."""
    output = emulated("sm_100", "--seeds=2", "test_sm100_plans.py", "-k", "sm100")
    assert int(output.split(" passed")[0].split()[-1]) >= 2 * 7


@pytest.mark.parametrize(("device", "family"), [("sm_90", "sm90"), ("sm_100", "sm100")])
def test_bounds(device: str, family: str) -> None:
    """Sums that round, of up to 16384 products."""
    emulated(device, "test_gemm_bounds.py", "-k", family)


@pytest.mark.parametrize("device", [name for name in emulate.DEVICES if name != "sm_80"])
def test_one_of_each_kind(device: str) -> None:
    """Later GPUs run other PTX, whose decoding of e2m1 differs; H200 and B200 their own kernels beside sm80's."""
    files = (
        "test_decode.py",
        "test_epilogue.py",
        "test_layouts.py",
        "test_nan.py",
        "test_quantize.py",
        "test_shared_batches.py",
    )
    emulated(device, *files, "test_custom_kernel.py", "-k", "sm80 or sm90 or sm100")


def test_bits_of_an_h200() -> None:
    """Sums that round at every step come out as a real H200 computed them, whatever the timing."""
    recorded = json.loads((TESTS / "product_bits_sm90.json").read_text())
    seed = random.SystemRandom().randrange(2**31)
    environment = {
        **os.environ,
        **driver(),
        "EMULATE_DEVICE": "sm_90",
        "EMULATE_SEED": str(seed),
    }
    command = [sys.executable, "product_bits.py"]
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
