"""The C core without Python: each program here and in tests/plan is built against the C files alone, which is also what
nvfp4.h promises, and run under AddressSanitizer and UBSan, and as aarch64 code under qemu.

CI_FULL=1 draws more shapes, runs them a third time as optimized code, which is how the package is built, and runs as
aarch64 code also what takes 60 s there: test_cpu and the planners."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import FULL
from paths import BENCHMARKS, CSRC, ROOT, TESTS

PROGRAMS = sorted([*TESTS.glob("core/test_*.c"), *TESTS.glob("plan/test_*.c")])
CORE = sorted(path for path in CSRC.rglob("*.c") if path.parent.name not in ("python", "torch"))
OWN_TABLE = ("test_new_backend", "test_plan_cache")  # programs with backends of their own
# Files whose code only a CPU with this flag runs: elsewhere they are not optimized, which takes gcc 10 s a build.
ISA = {
    "avx512vnni.c": "avx512_vnni",
    "w4a16_avx512.c": "avx512_vnni",
    "quantize_avx512.c": "avx512_vnni",
    "amx.c": "amx_tile",
}
# Programs that put functions of their own in place of others.
WRAPPED = {
    "test_allocations": [f"-Wl,--wrap={name}" for name in ("malloc", "calloc", "realloc", "aligned_alloc")],
    "test_cpu": ["-Wl,--wrap=parallel_for"],
}
WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Werror"]


@dataclass
class Build:
    compiler: str
    flags: list[str]
    shapes: int  # that test_cpu draws: a sanitizer and an emulator are slow
    runner: list[str] = field(default_factory=list)

    def missing(self) -> list[str]:
        return [tool for tool in [self.compiler, *self.runner[:1]] if not shutil.which(tool)]


BUILDS = {
    "native": Build("gcc", ["-O3"], 100),
    "sanitized": Build(
        "gcc", ["-Og", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"], 24 if FULL else 6
    ),
    "aarch64": Build("aarch64-linux-gnu-gcc", ["-O3"], 12, ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]),
}


@pytest.fixture(scope="session", params=BUILDS)
def core(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Build, list[Path]]:
    """A build and the object files of the core."""
    build = BUILDS[request.param]
    if request.param == "native" and not FULL:
        pytest.skip("CI_FULL=1 runs it: 30 s, and every other test runs this code")
    if build.missing():
        pytest.skip(f"{' and '.join(build.missing())} not installed")
    folder = tmp_path_factory.mktemp(request.param)
    cpu = Path("/proc/cpuinfo").read_text()
    plain = [name for name, flag in ISA.items() if flag not in cpu] if request.param != "aarch64" else []

    def compile_one(source: Path) -> Path:
        output = folder / ("-".join(source.relative_to(CSRC).parts) + ".o")
        flags = ["-O0"] if source.name in plain else build.flags
        done = subprocess.run(
            [build.compiler, *WARNINGS, *flags, f"-I{CSRC}", "-c", str(source), "-o", str(output)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return output

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return build, list(pool.map(compile_one, CORE))


def build_and_run(
    core: tuple[Build, list[Path]], program: Path, folder: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    build, objects = core
    if program.stem in OWN_TABLE:
        objects = [path for path in objects if path.name != "plan-backends.c.o"]
    binary = folder / program.stem
    command = [build.compiler, *WARNINGS, *build.flags, f"-I{CSRC}", str(program), *map(str, objects)]
    command += [*WRAPPED.get(program.stem, []), "-lm", "-ldl", "-lpthread", "-o", str(binary)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # qemu-user 7.2 cannot fork a process of several threads.
    environment = os.environ | {"NVFP4_TEST_FORK": "0" if build.runner else "1"}
    # GCC 13 keeps 64-byte vectors in frames of 32-byte alignment if these are AddressSanitizer's own (GCC bug 110027).
    environment["ASAN_OPTIONS"] = "detect_stack_use_after_return=0"
    command = [*build.runner, str(binary), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_program(core: tuple[Build, list[Path]], program: Path, tmp_path: Path) -> None:
    if core[0].runner and not FULL and program.stem.endswith(("_plan", "_choose", "_cpu")):
        pytest.skip("CI_FULL=1 runs it emulated")
    done = build_and_run(core, program, tmp_path, os.environ["NVFP4_TEST_SEED"], str(core[0].shapes))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout, "a test that prints nothing may have tested nothing"


def test_example(core: tuple[Build, list[Path]], tmp_path: Path) -> None:
    """test_c_library.py looks at what it prints, and builds it as a user does."""
    done = build_and_run(core, ROOT / "examples/product.c", tmp_path)
    assert done.returncode == 0 and done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("compiler", [["gcc", "-std=c11"], ["g++", "-x", "c++", "-std=c++17"]], ids=["C11", "C++17"])
def test_public_header(compiler: list[str], core: tuple[Build, list[Path]], tmp_path: Path) -> None:
    """tests/core/test_header.c as a user's program in either language, with every warning."""
    build, objects = core
    if build.runner:
        pytest.skip("test_program runs it as C11")
    strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", *build.flags, f"-I{CSRC}"]
    source = [*compiler, *strict, "-c", str(TESTS / "core/test_header.c"), "-o", str(tmp_path / "header.o")]
    link = [compiler[0], *build.flags, str(tmp_path / "header.o"), *map(str, objects), "-lm", "-ldl", "-lpthread"]
    for command in (source, [*link, "-o", str(tmp_path / "header")]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    done = subprocess.run([tmp_path / "header"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip().endswith(" 0 failed"), done.stdout + done.stderr


def test_pool_under_thread_sanitizer(tmp_path: Path) -> None:
    command = ["gcc", *WARNINGS, "-O1", "-g", "-fsanitize=thread"]
    empty = tmp_path / "empty.c"
    empty.write_text("int main(void) { return 0; }\n")
    for source in (empty, TESTS / "core/test_threads.c"):
        binary = tmp_path / source.stem
        built = subprocess.run(
            [*command, f"-I{CSRC}", str(source), "-lpthread", "-o", str(binary)], capture_output=True
        )
        run = [str(binary), os.environ["NVFP4_TEST_SEED"], "50"]
        done = built if built.returncode else subprocess.run(run, capture_output=True)
        if source == empty and done.returncode:
            pytest.skip("no ThreadSanitizer that runs here")
        assert done.returncode == 0, (done.stdout + done.stderr).decode()


@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
def test_benchmark_of_the_cpu_kernels_compiles() -> None:
    """Nothing else calls the core by its inner headers from outside."""
    flags = ["-fsyntax-only", "-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{CSRC}"]
    subprocess.run(["gcc", *flags, str(BENCHMARKS / "cpu_limits.c")], check=True)


@pytest.mark.parametrize("compiler", ["gcc -xc -std=c11", "clang -xc -std=c11", "g++ -std=c++17", "clang++ -std=c++17"])
def test_header_alone(compiler: str, tmp_path: Path) -> None:
    """A copy of the header, with none of the library's other files beside it."""
    command = compiler.split()
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0].rstrip('+')} not installed")
    shutil.copy(CSRC / "nvfp4.h", tmp_path)
    source = tmp_path / "program.cpp"
    source.write_text('#include "nvfp4.h"\nint main(void) { return NVFP4_GATED_ARGS.alpha == NVFP4_SWIGLU; }\n')
    command += ["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        (
            "NVFP4_BACKEND_SM90 = 3",
            "NVFP4_BACKEND_SM90 = 6",
            "NVFP4_BACKEND_SM90 is not",
        ),
        ("NVFP4_BACKEND_SM120 = 5,", "", "NVFP4_BACKEND_SM120"),
        ("NVFP4_FP16,", "NVFP4_FP8, NVFP4_FP16,", "nvfp4.h: NVFP4_FP16 is another number for kernels"),
        ("NVFP4_LINEAR = 1", "NVFP4_LINEAR = 2", "nvfp4.h: NVFP4_LINEAR is another number for kernels"),
        ("NVFP4_SEARCH = 2", "NVFP4_SEARCH = 3", "nvfp4.h: NVFP4_SEARCH is another number for kernels"),
        ("NVFP4_SWIGLU = 3", "NVFP4_SWIGLU = 4", "nvfp4.h: NVFP4_SWIGLU is another number for kernels"),
    ],
)
def test_numbers_of_the_header_are_compared(old: str, new: str, named: str, tmp_path: Path) -> None:
    """The core does not compile with a header that has another number than backends.def or the kernels."""
    header = (CSRC / "nvfp4.h").read_text()
    assert header.count(old) == 1
    (tmp_path / "nvfp4.h").write_text(header.replace(old, new))
    command = ["gcc", *WARNINGS, "-fsyntax-only", f"-I{tmp_path}", f"-I{CSRC}", str(CSRC / "api/header.c")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode and named in done.stderr, done.stderr


@pytest.mark.parametrize("file", ["common/format.h", "common/activations.h"])
def test_the_header_has_the_enumerators_of_the_kernels(file: str) -> None:
    """Also one that only one of the two files has, which no assertion of header.c names."""

    def enums(path: Path) -> dict[str, list[str]]:
        found = re.findall(r"typedef enum (\w+) \{(.*?)\}", path.read_text(), re.S)
        return {name: re.findall(r"^\s*(NVFP4_\w+)", body, re.M) for name, body in found}

    theirs, ours = enums(CSRC / file), enums(CSRC / "nvfp4.h")
    assert theirs and all(theirs.values()) and {name: ours[name] for name in theirs} == theirs


def test_the_header_has_a_backend_for_each_row() -> None:
    rows = re.findall(r"^NVFP4_BACKEND\((\w+)", (CSRC / "backends.def").read_text(), re.M)
    (body,) = re.findall(r"typedef enum nvfp4_backend \{(.*?)\}", (CSRC / "nvfp4.h").read_text(), re.S)
    assert len(rows) >= 5 and re.findall(r"NVFP4_BACKEND_(\w+)", body) == rows


def test_driver_prototypes_equal_the_toolkits(tmp_path: Path) -> None:
    nvcc = os.environ.get("NVFP4_NVCC") or shutil.which("nvcc")
    if not nvcc:
        pytest.skip("nvcc not installed: no cuda.h to compare with")
    source = TESTS / "core/cuda_abi.c"
    command = [nvcc, "-c", f"-I{CSRC}", "-Xcompiler", ",".join(WARNINGS), str(source), "-o", str(tmp_path / "abi.o")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
