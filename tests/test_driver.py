"""The host's side of a GPU call, on a libcuda that runs nothing (tests/fake_driver): what is refused, in which words,
and what is launched. Each case is a process of its own, since the driver is opened once a process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import ragged
import sanitize

import nvfp4

HERE = Path(__file__).resolve().parent

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

CALL = """
import numpy as np, nvfp4
def call(m, n, k, l=None, backend="sm80", layout="128x4"):
    batch = () if l is None else (l,)
    scale = lambda rows: np.zeros(batch + (-(-rows // 128) * 128, -(-k // 64) * 4), np.uint8)
    a, b = (np.zeros(batch + (rows, k // 2), np.uint8) for rows in (m, n))
    out = np.full(batch + (m, n), 7, np.float16)
    nvfp4.gemm(a, b, scale(m), scale(n), out=out, backend=backend, scale_layout=layout)
    return out
"""


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("fake") / "libcuda_fake.so"
    source = HERE / "fake_driver" / "libcuda.c"
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return library


def run(code: str, library: Path | str, **variables: str) -> str:
    """What the process prints: its output, or the sentence of the nvfp4.Error it ended with."""
    program = f"{CALL}\ntry:\n    {code}\nexcept nvfp4.Error as error:\n    print(error)\n"
    environment = {**os.environ, "NVFP4_LIBCUDA": str(library), **variables}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def launches(code: str, library: Path, log: Path, **variables: str) -> list[list[str]]:
    assert run(code, library, FAKE_LOG=str(log), **variables) == ""
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def test_one_launch_a_call(fake_driver: Path, tmp_path: Path) -> None:
    (name, grid, threads, shared, queue), *rest = launches("call(128, 7168, 2048)", fake_driver, tmp_path / "log")
    assert name.startswith("nvfp4_sm80_gemm_") and int(grid) > 0 and int(threads) % 32 == 0
    assert all(row[0] == "nvfp4_sm80_split_reduce" for row in rest) and len(rest) <= 1


def test_batch_is_one_launch(fake_driver: Path, tmp_path: Path) -> None:
    rows = launches("call(128, 7168, 2048, l=3)", fake_driver, tmp_path / "log")
    assert sum("gemm" in row[0] for row in rows) == 1


def test_split_along_k_for_a_small_grid(fake_driver: Path, tmp_path: Path) -> None:
    names = [row[0] for row in launches("call(1, 64, 65536)", fake_driver, tmp_path / "log")]
    assert len(names) == 2 and names[1] == "nvfp4_sm80_split_reduce"


def test_empty_result_launches_nothing(fake_driver: Path, tmp_path: Path) -> None:
    assert launches("call(0, 64, 64); call(64, 0, 64); call(4, 4, 64, l=0)", fake_driver, tmp_path / "log") == []


def test_no_library() -> None:
    said = run("call(16, 16, 64)", "/nonexistent/libcuda.so")
    assert "/nonexistent/libcuda.so" in said and "580" in said


def test_library_named_in_another_encoding() -> None:
    assert "/nonexistent/?" in run("call(16, 16, 64)", os.fsdecode(b"/nonexistent/\xff"))
    assert "/nonexistent/?" in run("print(nvfp4.info()['driver_reason'])", os.fsdecode(b"/nonexistent/\xff"))


def test_shape_of_no_tensor(fake_driver: Path) -> None:
    said = run("nvfp4.info(2**30, 2**30, 64, 2**30, backend='sm80')", fake_driver)
    assert said == "shape: M, N, L are 1073741824, 1073741824, 1073741824; their product must be at most 2^60"


def test_failure_to_open_is_said_again() -> None:
    code = "\n    ".join(["for _ in range(2):", "    try: call(16, 16, 64)", "    except nvfp4.Error as e: print(e)"])
    first, second = run(code, "/nonexistent/libcuda.so").splitlines()
    assert first == second


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"FAKE_VERSION": "12080"}, ["CUDA 12.8", "13.0", "580"]),
        ({"FAKE_DEVICES": "0"}, ["cuda:0", "0 device"]),
        ({"FAKE_CC": "75"}, ["Fake GPU 0", "7.5", "8.0"]),
        ({"FAKE_MISSING": "cuLaunchKernelEx"}, ["cuLaunchKernelEx"]),
        ({"FAKE_REFUSE": "cuInit"}, ["cuInit", "fake refusal"]),
        ({"FAKE_REFUSE": "cuDevicePrimaryCtxRetain"}, ["context", "fake refusal"]),
        ({"FAKE_REFUSE": "cuLibraryLoadData"}, ["load the GPU code", "fake refusal"]),
        ({"FAKE_REFUSE": "cuLaunchKernelEx"}, ["nvfp4_sm80_gemm", "fake refusal"]),
        ({"FAKE_PAGEABLE": "0"}, ["backend: is sm80", "on the CPU"]),
    ],
    ids=lambda value: next(iter(value.items())).__str__() if isinstance(value, dict) else "",
)
def test_refusals_are_sentences(fake_driver: Path, variables: dict[str, str], words: list[str]) -> None:
    said = run("call(16, 16, 64)", fake_driver, **variables)
    assert said and all(word in said for word in words), said


@pytest.mark.parametrize("cc", ["80", "86", "89", "90", "100", "120"])
def test_every_gpu_gets_a_kernel_that_fits(fake_driver: Path, tmp_path: Path, cc: str) -> None:
    limit = 101376 if cc in ("86", "120") else 166912
    for m, n, k in [(1, 4096, 7168), (16, 4096, 7168), (64, 512, 256), (128, 7168, 2048), (2304, 4608, 7168)]:
        log = tmp_path / f"{m}-{n}-{k}"
        rows = launches(f"call({m}, {n}, {k})", fake_driver, log, FAKE_CC=cc)
        assert rows and all(int(row[3]) <= limit for row in rows)


RAGGED = {
    "exact": [(case.m, case.n, case.k, case.l or 1) for case in ragged.cases()],
    "sanitized": sanitize.SHAPES,
}


@pytest.mark.parametrize("shapes", RAGGED.values(), ids=RAGGED)
def test_ragged_sets_reach_every_instantiation(fake_driver: Path, shapes: list[tuple[int, ...]]) -> None:
    """With K cut and not, on an H200's facts: a kernel that no exact test plans would be tested by nobody."""
    plans = f"[nvfp4.info(*shape, device=0, backend='sm80')['plan'] for shape in {shapes}]"
    planned = json.loads(run(f"import json; print(json.dumps({plans}))", fake_driver))
    configs = (HERE.parent / "csrc/sm80_configs.h").read_text()
    names = [f"nvfp4_{name}" for name in re.findall(r"X\((sm80_gemm_\w+),", configs)]
    assert len(names) > 1
    assert {(plan["kernel"], plan["split_k"] > 1) for plan in planned} == {(n, cut) for n in names for cut in (0, 1)}


def test_host_memory_stays_on_the_cpu_unless_asked(fake_driver: Path, tmp_path: Path) -> None:
    assert launches("call(16, 16, 64, backend=None)", fake_driver, tmp_path / "log") == []
