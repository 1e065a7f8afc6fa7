"""`make install`: what it puts into PREFIX runs without the checkout's files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from emulate import build

HERE = Path(__file__).resolve().parent.parent
ONE = """
.version 9.0
.target sm_80
.address_size 64
.visible .entry one(.param .u64 out)
{
  .reg .u64 a, i; .reg .u32 t;
  ld.param.u64 a, [out]; mov.u32 t, %tid.x; mul.wide.u32 i, t, 4; add.u64 a, a, i; st.global.u32 [a], 1; ret;
}
"""


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    command = ["make", "-s", "-C", str(HERE), "install", f"PREFIX={tmp_path / 'prefix'}", f"BUILD={build().parent}"]
    subprocess.run(command, check=True)
    return tmp_path / "prefix" / "bin"


def said(*command: object, folder: Path) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("EMULATE_", "PYTHONPATH"))}
    done = subprocess.run(list(map(str, command)), cwd=folder, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_program_finds_the_driver(bin_folder: Path, tmp_path: Path) -> None:
    program = "import ctypes; print([ctypes.CDLL(name)._name for name in ('libcuda.so.1', 'libcudart.so.13')]); "
    program += "print(ctypes.CDLL('libcuda.so.1').cuInit(0), open('/proc/self/maps').read())"
    shown = said(bin_folder / "emulate-cuda", "python3", "-c", program, folder=tmp_path)
    assert "\n0 " in shown
    assert all(f"prefix/lib/cuda-emulator/{name}" in shown for name in ("libcuda.so.1", "libcudart.so.13"))


def test_a_kernel_runs(bin_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "one.ptx").write_text(ONE)
    words = ("one.ptx", "--block", "32", "--arg", "u32[32]=zeros")
    shown = said(bin_folder / "emulate-ptx", *words, folder=tmp_path)
    assert shown.strip() == "memory 0: uint32[32] [1 1 1 ... 1 1 1]"
