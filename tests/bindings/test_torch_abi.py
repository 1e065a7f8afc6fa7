"""csrc/bindings/torch/shim.h and csrc/bindings/dlpack.h against the headers of the torch that is installed, or of
another one in the folder NVFP4_TORCH_INCLUDE: .ci/hosts names those of the oldest and of the newest torch."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from paths import ROOT

OTHER = os.environ.get("NVFP4_TORCH_INCLUDE")
INCLUDE = Path(OTHER) if OTHER else Path(torch.__file__).parent / "include"
BINDINGS = Path("csrc/bindings")
SOURCE = Path("tests/bindings/torch_abi.cpp")


def compiles(folder: Path) -> subprocess.CompletedProcess[str]:
    command = ["g++", "-std=c++17", "-fsyntax-only", f"-isystem{INCLUDE}", f"-I{folder / 'csrc'}", str(folder / SOURCE)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """tests/bindings/torch_abi.cpp and what it includes of ours, to be changed."""
    if shutil.which("g++") is None or not (OTHER or (INCLUDE / "torch/csrc/stable/c/shim.h").exists()):
        pytest.skip("needs g++ and torch's headers")
    for name in (SOURCE, BINDINGS / "torch/shim.h", BINDINGS / "dlpack.h"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_declarations_equal_torchs(copy: Path) -> None:
    result = compiles(copy)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("torch/shim.h", "(torch_tensor tensor, int64_t *out)", "(torch_tensor tensor, int32_t *out)"),
        ("torch/shim.h", "int32_t device_index, torch_tensor *out", "torch_tensor *out"),
        ("dlpack.h", "uint16_t lanes", "uint32_t lanes"),
        ("dlpack.h", "DL_FLOAT8_E4M3FN = 10", "DL_FLOAT8_E4M3FN = 11"),
    ],
)
def test_a_difference_is_seen(copy: Path, file: str, old: str, new: str) -> None:
    path = copy / BINDINGS / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    result = compiles(copy)
    assert result.returncode != 0
    assert "static assertion failed" in result.stderr
