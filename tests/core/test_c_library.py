"""The library for programs in C and C++: what tools/build_library.sh makes, and docs/c-api.md's commands and example.

Here gcc does not optimize, which takes a sixth of the time. What the functions compute is tested elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from emulated_runs import driver
from paths import CSRC, ROOT, module_at

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
EXAMPLE = ROOT / "examples/product.c"
PAGE = (ROOT / "docs/c-api.md").read_text(encoding="utf-8")
BUILT = ROOT / "build/cuda/images.inc"
COMPILERS = ["gcc -std=c11", "clang -std=c11", "g++ -x c++ -std=c++17", "clang++ -x c++ -std=c++17"]
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic"]


def fenced(language: str) -> str:
    (block,) = re.findall(rf"(?ms)^```{language}\n(.*?)^```$", PAGE)
    return str(block)


def new_checkout(folder: Path) -> Path:
    """A folder with links to the checkout's, and none to what was built there."""
    for name in ("csrc", "examples", "tools"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "gcc").write_text('#!/bin/sh\nexec gcc "$@" -O0\n')
    (folder / "gcc").chmod(0o755)
    return folder


def run(checkout: Path, command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("NVFP4_", "CC", "EMULATE"))}
    environment |= {"HOME": str(checkout), "CC": str(checkout / "gcc")} | variables
    return subprocess.run(["bash", "-ec", command], cwd=checkout, env=environment, capture_output=True, text=True)


def printed(done: subprocess.CompletedProcess[str]) -> tuple[str, float]:
    """The kernel and the error that the example prints."""
    assert done.returncode == 0, done.stdout + done.stderr
    *_, first, second, third = done.stdout.splitlines()
    kernel, error = re.fullmatch(r"24 x 40 x 256 by (\S+)", first), re.fullmatch(r"largest error: (\S+) of .*", second)
    assert kernel and error and third == "status 1: b: K is 128 but a has K = 256", done.stdout
    return kernel[1], float(error[1])


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A checkout without GPU code after the page's commands, and what these printed."""
    if not shutil.which("pkg-config"):
        pytest.skip("pkg-config not installed")
    checkout = new_checkout(tmp_path_factory.mktemp("page"))
    return checkout, run(checkout, fenced("sh"))


def test_the_commands_of_the_page(page: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    checkout, done = page
    _, error = printed(done)
    assert 0 < error < 1e-7
    first = f"{checkout}/nvfp4: libnvfp4.a, libnvfp4.so and nvfp4.h, for the CPU alone: no build has left GPU code in "
    assert done.stdout.startswith(first), done.stdout
    files = {str(path.relative_to(checkout / "nvfp4")) for path in (checkout / "nvfp4").rglob("*") if path.is_file()}
    libraries = {"lib/libnvfp4.a", "lib/libnvfp4.so", "lib/libnvfp4.so.0"}
    assert files == {"include/nvfp4.h", "lib/pkgconfig/nvfp4.pc"} | libraries


def test_the_folder_may_be_moved(page: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    moved = shutil.copytree(page[0] / "nvfp4", tmp_path / "moved", symlinks=True)
    for option, name in (("libdir", "lib"), ("includedir", "include")):
        told = run(tmp_path, f"pkg-config --variable={option} nvfp4", PKG_CONFIG_PATH=f"{moved}/lib/pkgconfig").stdout
        assert Path(told.strip()).resolve() == moved / name


def functions_of_the_header() -> set[str]:
    code = re.sub(r"(?s)/\*.*?\*/", "", (CSRC / "nvfp4.h").read_text())
    found = re.findall(r"(?m)^(?!static)[\w ]+[ *](nvfp4_\w+)\([^()]*\); *$", code)
    assert len(found) > 30
    return set(found)


def test_the_libraries_define_the_functions_of_the_header_alone(
    page: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    """A static library with more global names would clash with a program's own `fail`, or call it."""
    folder = page[0] / "nvfp4/lib"
    for options in (["-D", "libnvfp4.so"], ["-g", "libnvfp4.a"]):
        command = ["nm", "--defined-only", "--format=posix", *options[:-1], str(folder / options[-1])]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        assert {line.split()[0] for line in lines if len(line.split()) > 1} == functions_of_the_header(), options


@pytest.mark.parametrize("library", ["-lnvfp4", "lib/libnvfp4.a -lpthread"])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_example_in_both_languages(
    compiler: str, library: str, page: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    command, prefix = compiler.split(), page[0] / "nvfp4"
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0].rstrip('+')} not installed")
    command += [*STRICT, f"-I{prefix}/include", str(EXAMPLE), "-x", "none", f"-L{prefix}/lib", *library.split()]
    command += ["-lm", "-ldl", f"-Wl,-rpath,{prefix}/lib", "-o", str(tmp_path / "product")]
    done = subprocess.run(command, cwd=prefix, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    printed(run(page[0], str(tmp_path / "product")))


def test_the_page_shows_the_example() -> None:
    text = EXAMPLE.read_text()
    assert fenced("c") in text and len(text.splitlines()) < 150
    assert len(PAGE.splitlines()) <= 80
    includes = re.findall(r"(?m)^#include (.*)$", text)
    assert [name for name in includes if name[0] == '"'] == ['"nvfp4.h"']


def with_gpu_code(checkout: Path, images: str) -> Path:
    (checkout / "build/cuda").mkdir(parents=True)
    (checkout / "build/cuda/images.inc").write_text(images)
    return checkout


def test_gpu_code_of_a_build(tmp_path: Path) -> None:
    """All of it is in both libraries, the command names its GPUs, and the example runs it on the emulated one."""
    image = tmp_path / "sm80_gemm.sm_80"
    image.write_bytes(os.urandom(1000))
    fake = module_at(ROOT / "build_backend/nvfp4_cuda.py").table([("sm80_gemm", "sm_80", image, 1000)])
    checkout = with_gpu_code(new_checkout(tmp_path), BUILT.read_text() if BUILT.is_file() else fake)
    done = run(
        checkout, "tools/build_library.sh lib && gcc -Ilib/include examples/product.c -Llib/lib -lnvfp4 -lm -o it"
    )
    assert done.returncode == 0, done.stderr
    text = (checkout / "build/cuda/images.inc").read_text()
    (archs,) = re.findall(r'#define IMAGE_ARCHS "(.*)"', text)
    assert done.stdout.endswith(f", with GPU code for {archs}\n")
    images = [Path(path).read_bytes() for path in re.findall(r'IMAGE\(\w+, \w+, "(.*?)"', text)]
    for library in ("libnvfp4.a", "libnvfp4.so"):
        data = (checkout / "lib/lib" / library).read_bytes()
        assert images and all(image in data for image in images)
    if BUILT.is_file():
        variables = driver() | {"EMULATE_DEVICE": "sm_80", "EMULATE_QUIET": "1", "LD_LIBRARY_PATH": "lib/lib"}
        kernel, error = printed(run(checkout, "./it 0", **variables))
        assert kernel.startswith("nvfp4_sm80_") and error < 1e-7


def test_an_older_build_is_rejected(tmp_path: Path) -> None:
    """Its kernels may be those of other sources. Nothing is written."""
    checkout = with_gpu_code(new_checkout(tmp_path), "")
    os.utime(checkout / "build/cuda/images.inc", (1e9, 1e9))
    done = run(checkout, "tools/build_library.sh lib")
    assert done.returncode == 1 and not (checkout / "lib").exists()
    assert re.match(r"build/cuda: is older than csrc/\S+; must have the GPU code of these sources\.", done.stderr)


def test_the_code_of_a_debug_build_is_rejected(tmp_path: Path) -> None:
    checkout = with_gpu_code(new_checkout(tmp_path), "")
    module_at(ROOT / "build_backend/nvfp4_cuda.py").write_images({}, checkout / "build/cuda", ["-g", "-DNVFP4_DUMP"])
    done = run(checkout, "tools/build_library.sh lib")
    assert done.returncode and "#error build/cuda has the code of a build with NVFP4_DUMP" in done.stderr, done.stderr
    assert not (checkout / "lib").exists()


def test_another_compiler_is_rejected(tmp_path: Path) -> None:
    if not shutil.which("clang"):
        pytest.skip("clang not installed")
    done = run(new_checkout(tmp_path), "tools/build_library.sh lib", CC="clang")
    assert done.returncode == 1 and not (tmp_path / "lib").exists()
    assert done.stderr.startswith("CC: is clang; must be gcc.")
