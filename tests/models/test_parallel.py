"""nvfp4.parallel on two and four ranks, by gloo on a CPU: parallel_checks.py has the checks, all run by one process."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import gpu
from python_server import python

PROGRAM = Path(__file__).with_name("parallel_checks.py")
CHECKS = [
    node.name
    for file in (PROGRAM, PROGRAM.with_name("reduce_checks.py"))
    for node in ast.parse(file.read_text()).body
    if isinstance(node, ast.FunctionDef) and any(getattr(each, "id", "") == "check" for each in node.decorator_list)
]


def run(folder: Path, device: str, ranks: int) -> dict[str, list[str]]:
    """Runs all checks and returns what every rank says of each."""
    if device == "cpu":
        done = python(PROGRAM, folder, device, str(ranks), timeout=300)
    else:  # from tests/support/python_server.py it failed twice on two H200s, for a reason that is not known
        command = [sys.executable, PROGRAM, folder, device, str(ranks)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    print(done.stderr[-6000:])  # shown if a test fails
    assert done.returncode == 0
    said = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
    names = {name for each in said for name in each}
    return {name: [each[name] for each in said if name in each] for name in names}


@pytest.fixture(scope="module")
def on_the_cpu(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    pytest.importorskip("safetensors", reason="comes with the extra `test`")
    if request.config.getoption("--emulate"):
        pytest.skip("is not what --emulate asks for")
    return run(tmp_path_factory.mktemp("ranks"), "cpu", 4)


@pytest.fixture(scope="module")
def on_gpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    if not gpu() or torch.cuda.device_count() < 2:
        pytest.skip("needs two NVIDIA GPUs")
    return run(tmp_path_factory.mktemp("ranks"), "cuda", 4 if torch.cuda.device_count() >= 4 else 2)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("check", CHECKS)
def test_on_a_cpu(check: str, ranks: int, on_the_cpu: dict[str, list[str]]) -> None:
    assert on_the_cpu.get(f"{check}[{ranks}]") == [""] * ranks


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("check", CHECKS)
def test_on_gpus(check: str, ranks: int, on_gpus: dict[str, list[str]]) -> None:
    if ranks > torch.cuda.device_count():
        pytest.skip(f"needs {ranks} NVIDIA GPUs")
    assert on_gpus.get(f"{check}[{ranks}]") == [""] * ranks
