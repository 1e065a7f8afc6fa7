"""The GPU's kernels on an emulated GPU (emulator/), as part of an ordinary run of the tests: each device that it
can pose as, each test in one of the emulator's kinds of timing. It is another process, since a process opens one CUDA
driver.

`pytest --emulate sm_80 --seeds 4` runs everything that needs a GPU there, in all kinds of timing.
"""

from __future__ import annotations

import importlib
import json
import os
import random
from dataclasses import dataclass

import emulate
import pytest
from backend_table import ON_GPU, OWN, ROWS, backends_of, device_of
from conftest import FULL
from emulated_runs import driver, emulated
from paths import KERNELS, TESTS
from python_server import python

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")


@dataclass(frozen=True)
class Run:
    name: str
    device: str
    arguments: tuple[str, ...]
    least: int  # tests that must have passed


def ragged(device: str, backend: str) -> Run:
    """A ninth of 335 ragged shapes, layouts, types and epilogues, equal to the CPU's to the bit."""
    arguments = ("ops/test_gemm_exact.py", "-k", f"equal_bits and {backend}")
    return Run(f"ragged products of {backend}", device, arguments, 300 if FULL else 35)


def one_of_each_kind(device: str) -> Run:
    """GPUs with a backend of their own run that; others sm80's, which differ from sm_80's in how they decode e2m1. Of
    the kernels for every GPU, quantizers among them, all newer emulated GPUs run one PTX, compute_90's: here sm_90
    tests it, and on the others test_guarded_calls.py and test_generated_calls.py do."""
    backend = backends_of(device)[0]
    files, chosen = ("scale_layouts", "batch_invariant"), backend
    if device == "sm_90" or FULL:
        files += ("quantize", "fused")
        chosen = f"{backend} or (sm80 and test_decode)"
    if backend in OWN or FULL:
        files += ("epilogue", "nan", "shared_batches", "custom_kernel")
    files += importlib.import_module(f"{backend}.backend").ALSO_EMULATED
    if FULL:
        files += ("transpose_b",)
    arguments = ("kernels/test_decode.py", *(f"ops/test_{name}.py" for name in files), "-k", chosen)
    return Run(f"one of each kind on {device}", device, arguments, 50)


def bounds(device: str, backend: str) -> Run:
    """Sums that round, of up to 16384 products."""
    return Run(f"bounds of {backend}", device, ("ops/test_gemm_bounds.py", "-k", backend), 18)


def promises_of_groups(backend: str) -> Run:
    """Products that every kernel adds in one order, and experts, also of quantized inputs if it takes those."""
    chosen = f"{backend} and not bfloat16 and (plans or size or other or without or every_backend or two_calls)"
    experts = ("models/test_experts_w4a4.py",) if "uint8" in ROWS[backend]["product_kinds"]["grouped_gemm"] else ()
    files = ("grouped_invariance", "gated_grouped_gemm", "gated_grouped_quantize")
    arguments = (*(f"ops/test_{name}.py" for name in files), *experts, "-k", chosen)
    least = {"sm80": 17, "sm100": 7}.get(backend, 10 if experts else 3)  # sm100: of an NVFP4 a, in one layout
    return Run(f"promises of groups of {backend}", device_of(backend), arguments, least)


RUNS = [
    *(run(device_of(name), name) for run in (ragged, bounds) for name in ON_GPU),
    *(promises_of_groups(name) for name in ON_GPU if "grouped_gemm" in ROWS[name]["product_kinds"]),
    *(one_of_each_kind(device) for device in emulate.DEVICES if device != "sm_80"),
]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_runs(run: Run) -> None:
    passed = int(emulated(run.device, *run.arguments).split(" passed")[0].split()[-1])
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
    done = python(KERNELS / "product_bits.py", env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sha256"] == recorded["sha256"], f"EMULATE_SEED={seed}"


@pytest.mark.parametrize("backend", OWN)
def test_check_runs_on_it(backend: str) -> None:
    """NVFP4_LIBCUDA alone is enough."""
    environment = {**os.environ, **driver(), "EMULATE_DEVICE": device_of(backend)}
    done = python("-m", "nvfp4", "check", "--only", "1", env=environment, cwd=TESTS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Emulated " in done.stdout and "1 of 1 tests passed" in done.stdout and f"nvfp4_{backend}_" in done.stdout


def test_a_gpu_that_is_only_emulated_is_not_timed() -> None:
    environment = {**os.environ, **driver()}
    done = python("-m", "nvfp4", "bench", "--shapes", "1x64x64", env=environment, cwd=TESTS)
    assert done.returncode == 2 and "Emulated B200" in done.stderr, done.stdout + done.stderr
