"""Runs a submission like the competition's harness: next to a module `task`, in a separate process, on cloned tensors.

Without a B200, and with a CPU torch, the emulated GPU of emulator/ runs it. The file still goes through
torch's load_inline unchanged; only the environment of the process differs: nvcc also emits PTX, which the emulator
runs; the emulator's CUDA runtime comes first on the library path; two libraries of a CUDA torch that load_inline links,
and nothing calls, are empty. Tensors are in host memory, which the emulated GPU reads.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import nvfp4

from . import dual
from .amalgamate import SOURCES

SECONDS = 900  # a run that takes longer counts as hanging
RUNTIME = "libcudart.so.13"
PTX = "-gencode arch=compute_100a,code=compute_100a"
TASK = "from typing import TypeVar\n\ninput_t = TypeVar('input_t')\noutput_t = TypeVar('output_t')\n"


def run(path: Path, task: str, nvcc: Path) -> tuple[bool | None, str]:
    """Whether the results are right (None: no GPU to run on), and an explanation."""
    missing = [name for name in ("torch", "ninja") if importlib.util.find_spec(name) is None]
    if missing:
        return None, f"is not installed: pip install {' '.join(missing)}"
    import torch

    if torch.cuda.is_available() and torch.cuda.get_device_capability() == (10, 0):
        return in_process(path, task, torch.cuda.get_device_name(), environment(nvcc))
    if torch.version.cuda is not None:
        return None, "there is no B200, and this torch has its own CUDA runtime, which the emulator's cannot replace"
    driver, why_not = emulator()
    if driver is None:
        return None, f"there is no B200, and no emulated one: {why_not}"
    try:
        with emulated(driver, nvcc) as settings:
            return in_process(path, task, "an emulated B200", settings)
    except subprocess.CalledProcessError as error:
        return False, f"g++ cannot link a library: {last_line(error.stderr)}"


def environment(nvcc: Path) -> dict[str, str]:
    """The environment of the process that compiles and runs."""
    import ninja

    path = os.pathsep.join([ninja.BIN_DIR, os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": path, "CUDA_HOME": str(nvcc.parent.parent)}


def emulator() -> tuple[Path | None, str]:
    """The emulated GPU's driver, in the same folder as its runtime, or the reason why there is none."""
    named = Path(os.environ.get("NVFP4_LIBCUDA", ""))
    if named.name and named.with_name(RUNTIME).is_file():
        return named.resolve(), ""
    script = SOURCES.parent / "emulator/emulate.py"
    spec = importlib.util.spec_from_file_location("emulate", script)
    emulate = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(emulate)
        return emulate.build(), ""
    except (ImportError, OSError, RuntimeError) as error:
        return None, str(error)


@contextlib.contextmanager
def emulated(driver: Path, nvcc: Path) -> Iterator[dict[str, str]]:
    """The process environment with an emulated GPU."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("c10_cuda", "torch_cuda"):
            command = ["g++", "-shared", "-x", "c++", os.devnull, "-o", f"{folder}/lib{name}.so"]
            subprocess.run(command, capture_output=True, text=True, check=True)
        Path(folder, "libcudart.so").symlink_to(driver.with_name(RUNTIME))
        settings = environment(nvcc)

        def before(name: str, separator: str, *values: str) -> None:
            settings[name] = separator.join([*values, *filter(None, [settings.get(name)])])

        before("LIBRARY_PATH", os.pathsep, folder)
        before("LD_LIBRARY_PATH", os.pathsep, folder, str(driver.parent))
        before("NVCC_APPEND_FLAGS", " ", PTX)
        settings |= {"EMULATE_DEVICE": "sm_100", "EMULATE_FENCES": "text", "EMULATE_HOST_MEMORY": "1"}
        yield settings


def in_process(path: Path, task: str, where: str, settings: dict[str, str]) -> tuple[bool, str]:
    nonce = secrets.token_hex()  # prefix of the verdict's line, so that output of the file cannot forge one
    with tempfile.TemporaryDirectory() as folder:
        # The harness has both files in one folder. load_inline's build goes there too unless the caller sets a cache.
        shutil.copy(path, Path(folder, "submission.py"))
        Path(folder, "task.py").write_text(TASK)
        settings = {"TORCH_EXTENSIONS_DIR": f"{folder}/extensions", **settings}
        command = [sys.executable, "-m", "contest.execute", folder, task]
        ours = [str(file.resolve().parents[1]) for file in (Path(__file__), Path(nvfp4.__file__))]
        settings["PYTHONPATH"] = os.pathsep.join(filter(None, [*ours, settings.get("PYTHONPATH")]))
        try:
            done = subprocess.run(command, env=settings, input=nonce, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return False, f"no answer after {SECONDS} s, on {where}"
    if done.returncode == 0:
        verdicts = [line.removeprefix(nonce) for line in done.stdout.splitlines() if line.startswith(nonce)]
        if not verdicts:
            return False, f"it ended the process before there were results, on {where}"
        answer = json.loads(verdicts[-1])
        return answer["passed"], f"{answer['why']}, on {where} (built in {answer['build_s']:.0f} s)"
    said = done.stderr.strip() or done.stdout
    errors = [line.strip() for line in said.splitlines() if "error" in line.lower()]
    why = errors[-1] if errors else f"ended with status {done.returncode}: {last_line(said)}"
    return False, f"{why}, on {where}"


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no output"])[-1]


def main(folder: str, name: str) -> None:
    """In that process: prints the nonce from standard input and the verdict."""
    nonce = sys.stdin.read()

    import torch
    from torch.utils import cpp_extension

    if cpp_extension.CUDA_HOME is None:  # a CPU torch does not look for it
        cpp_extension.CUDA_HOME = os.environ["CUDA_HOME"]
    sys.path.insert(0, folder)
    start = time.perf_counter()
    from submission import custom_kernel

    built = time.perf_counter() - start
    problem, test = dual.definition(name), dual.load_task(name)["tests"][0]
    # Two calls with different data, compared after both: a cached result would be the first one's.
    calls = []
    for seed in (test["seed"], test["seed"] + 42):
        form = {"exact": True} if name == dual.NAME and calls else {}
        data = problem.generate_input(**test | {"seed": seed}, **form)
        copy = tuple(tensor.clone() for tensor in data)
        calls.append((data, copy, custom_kernel(copy), form or {"exact": name != dual.NAME}))
    finish()
    passed, whys = True, []
    for data, copy, output, form in calls:
        if passed and output.data_ptr() != copy[-1].data_ptr():
            passed, whys = False, ["what was returned is not c"]
        if passed:
            passed, why = problem.check_implementation(data, output, **form)
            whys = [*whys, why] if passed else [why]
    why = "; ".join(dict.fromkeys(whys))
    shape = "x".join(str(test[key]) for key in "mnkl" if key in test)
    clear = "test 1" if torch.cuda.is_available() else "test 1 in host memory"
    verdict = json.dumps({"passed": passed, "why": f"{clear}, {shape}: {why}", "build_s": built})
    print(f"\n{nonce}{verdict}", flush=True)


def finish() -> None:
    """Waits for the GPU: by torch, or by the CUDA runtime if torch has no CUDA."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return
    error = ctypes.CDLL(RUNTIME).cudaDeviceSynchronize()
    if error:
        raise RuntimeError(f"CUDA error {error} while the kernel ran")


if __name__ == "__main__":
    main(*sys.argv[1:])
