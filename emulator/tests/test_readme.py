"""The README's program runs by the README's three lines, and its variants give the messages that the README shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from emulate import build

README = Path(__file__).resolve().parent.parent / "README.md"
SYNC = "    __syncthreads();\n"

pytestmark = pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc")


def block(language: str, word: str) -> str:
    """The README's fenced block in that language that contains the word."""
    (found,) = (b for b in re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL) if word in b)
    return found


def run(folder: Path, change: tuple[str, str] = ("", ""), seeds: int = 1) -> list[tuple[str, str, int]]:
    """Compiles the program by the README's second line and runs it by the third: stdout, stderr and status by seed."""
    program = block("cuda", "reverse.cu")
    assert change[0] in program
    (folder / "reverse.cu").write_text(program.replace(*change) if change[0] else program)
    make, compile_it, run_it = block("sh", "nvcc").splitlines()
    assert make == "make -C emulator -j2"
    subprocess.run(compile_it, shell=True, cwd=folder, check=True)
    run_it = run_it.replace("emulator/build", str(build().parent))
    clean = {key: value for key, value in os.environ.items() if not key.startswith("EMULATE_")}
    outcomes = []
    for seed in range(seeds):
        environment = {**clean, "EMULATE_SEED": str(seed)}
        done = subprocess.run(run_it, shell=True, cwd=folder, env=environment, capture_output=True, text=True)
        outcomes.append((done.stdout, done.stderr, done.returncode))
    return outcomes


def test_three_lines(tmp_path: Path) -> None:
    assert set(run(tmp_path, seeds=20)) == {("0 of 256 wrong\n", "", 0)}


def test_without_the_barrier(tmp_path: Path) -> None:
    assert "128 of 256 wrong\n" in {output for output, _, _ in run(tmp_path, (SYNC, ""), seeds=4)}


def plain(text: str) -> str:
    """The message on one line, without addresses and line numbers."""
    return re.sub(r"0x[0-9a-f]{3,}|ptx:\d+", "?", " ".join(text.split()))


@pytest.mark.parametrize(
    ("word", "change"),
    [
        ("right behind", ("x[threadIdx.x] = s", "x[threadIdx.x + 1] = s")),
        ("deadlock", (SYNC, '    asm volatile("bar.sync 1, 288;");\n')),
    ],
)
def test_messages(tmp_path: Path, word: str, change: tuple[str, str]) -> None:
    ((_, errors, _),) = run(tmp_path, change)
    assert plain(errors).startswith(plain(block("text", word)))
