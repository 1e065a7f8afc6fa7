"""The commands of csrc/nvfp4.h that compile a program in C, as they stand there but with -O0, which takes less time."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import FULL
from paths import CSRC, ROOT

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
BUILT = (ROOT / "build/cuda/fatbins.inc").is_file()


def commands() -> list[str]:
    """Indented lines of the header's first comment, which begin with gcc; a backslash continues a line."""
    comment = (CSRC / "nvfp4.h").read_text().partition("*/")[0]
    text = "\n".join(line.removeprefix(" *") for line in comment.splitlines())
    return [match.replace("\\\n", " ") for match in re.findall(r"^   (gcc(?:.*\\\n)*.*)$", text, re.MULTILINE)]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with links to the checkout's."""
    (tmp_path / "csrc").symlink_to(CSRC)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    return tmp_path


def compile_and_run(command: str, checkout: Path) -> bytes:
    assert command.count(" -O3 ") == 1
    done = subprocess.run(["sh", "-c", command.replace(" -O3 ", " -O0 ")], cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    ran = subprocess.run([checkout / "example"], capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stdout.startswith("4 0 2\n8 0 4\n"), ran.stdout + ran.stderr
    return (checkout / "example").read_bytes()


def test_there_are_two_commands_and_they_name_all_files() -> None:
    cpu, gpu = commands()
    assert "NVFP4_CUDA" not in cpu and "-DNVFP4_CUDA" in gpu
    for command in (cpu, gpu):
        found = re.search(r"\$\((find .*)\)", command)
        assert found
        named = subprocess.run(
            ["sh", "-c", found[1]], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split()
        core = [path for path in CSRC.rglob("*.c") if path.relative_to(CSRC).parts[0] not in ("bindings", "contest")]
        assert sorted(named) == sorted(str(path.relative_to(ROOT)) for path in core)


def test_a_program_for_the_cpu(checkout: Path) -> None:
    compile_and_run(commands()[0], checkout)


@pytest.mark.skipif(BUILT and not FULL, reason="the next test does it with a build's own code")
def test_a_program_with_gpu_code(checkout: Path, random_bytes: bytes) -> None:
    """The fat binaries are in the program, and the library finds their architectures."""
    folder = checkout / "build/cuda"
    folder.mkdir(parents=True)
    fatbin = folder / "sm80_gemm.fatbin"
    fatbin.write_bytes(random_bytes)
    lines = [
        f'FATBIN(sm80_gemm, "{fatbin}", "sm_80 compute_80")',
        "#undef FATBIN_ARCHS",
        '#define FATBIN_ARCHS "sm_80"',
    ]
    (folder / "fatbins.inc").write_text("\n".join(lines) + "\n")
    assert random_bytes in compile_and_run(commands()[1], checkout)


@pytest.fixture
def random_bytes() -> bytes:
    return Path("/dev/urandom").open("rb").read(1000)


@pytest.mark.skipif(not BUILT, reason="no build has left GPU code in build/cuda")
def test_a_program_with_the_gpu_code_of_this_checkout(checkout: Path) -> None:
    """All of it: what a build writes is what the command takes."""
    (checkout / "build").symlink_to(ROOT / "build")
    program = compile_and_run(commands()[1], checkout)
    fatbins = re.findall(r'FATBIN\(\w+, "(.*?)"', (ROOT / "build/cuda/fatbins.inc").read_text())
    assert fatbins and all(Path(path).read_bytes() in program for path in fatbins)
