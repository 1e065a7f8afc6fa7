"""The installed package: what it links, its size, its import time; and the build."""

from __future__ import annotations

import fcntl
import importlib.machinery
import importlib.metadata
import os
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import emulate
import pytest
from paths import ROOT, SUPPORT, module_at, proven_backends

import nvfp4
from nvfp4 import _C

MODULE = Path(_C.__file__)


class Elf:
    """The part of a 64-bit little-endian ELF file that the dynamic linker reads (System V ABI, chapter 5)."""

    NEEDED, STRTAB, SYMTAB, RPATH, RUNPATH = 1, 5, 6, 15, 29

    def __init__(self, data: bytes) -> None:
        assert data[:6] == b"\x7fELF\x02\x01"
        self.data = data
        (offset,) = struct.unpack_from("<Q", data, 32)
        size, count = struct.unpack_from("<HH", data, 54)
        headers = [struct.unpack_from("<IIQQQQQQ", data, offset + i * size) for i in range(count)]
        self.loads = [(address, where, length) for kind, _, where, address, _, length, _, _ in headers if kind == 1]
        where, length = next((where, length) for kind, _, where, _, _, length, _, _ in headers if kind == 2)
        self.dynamic = list(struct.iter_unpack("<QQ", data[where : where + length]))

    def entry(self, tag: int) -> list[int]:
        return [value for key, value in self.dynamic if key == tag]

    def at(self, address: int) -> int:
        return next(where + address - start for start, where, size in self.loads if start <= address < start + size)

    def string(self, offset: int) -> str:
        start = self.at(self.entry(self.STRTAB)[0]) + offset
        return self.data[start : self.data.index(b"\0", start)].decode()

    def symbols(self) -> list[tuple[str, bool]]:
        """Name and whether it is defined here, of all but local symbols. The string table follows the symbols."""
        start, end = self.at(self.entry(self.SYMTAB)[0]), self.at(self.entry(self.STRTAB)[0])
        rows = struct.iter_unpack("<IBBHQQ", self.data[start : start + (end - start) // 24 * 24])
        return [(self.string(name), section != 0) for name, info, _, section, _, _ in rows if info >> 4]


@pytest.fixture(scope="module")
def elf() -> Elf:
    return Elf(MODULE.read_bytes())


def test_needs_only_the_c_library(elf: Elf) -> None:
    needed = {elf.string(offset) for offset in elf.entry(Elf.NEEDED)}
    loader = {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
    assert "libc.so.6" in needed
    assert needed <= {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0"} | loader


def test_no_path_of_the_building_machine(elf: Elf) -> None:
    assert not elf.entry(Elf.RPATH) and not elf.entry(Elf.RUNPATH)
    assert str(ROOT).encode() not in elf.data


def test_exports_nothing_but_its_entry(elf: Elf) -> None:
    symbols = elf.symbols()
    assert ("PyObject_GetAttrString", False) in symbols or any(not here for name, here in symbols if name[:2] == "Py")
    assert [name for name, here in symbols if here and name not in ("_init", "_fini")] == ["PyInit__C"]
    private = [name for name, _ in symbols if name.startswith("_Py") and not name.endswith("_SizeT")]
    assert set(private) <= STABLE_PRIVATE


# Names with an underscore that the limited API of 3.10 expands to, besides PyArg_ParseTuple's and its kin's with
# _SizeT (CPython, Misc/stable_abi).
STABLE_PRIVATE = {"_Py_Dealloc", "_Py_NoneStruct", "_Py_TrueStruct", "_Py_FalseStruct", "_Py_NotImplementedStruct"}


def test_size() -> None:
    """6.7 MB are compressed GPU code, of products 5.1, of quantizers and the steps around experts 1.6: machine code for
    nine names of GPUs, and PTX for five."""
    assert MODULE.stat().st_size < 7_800_000


def installed() -> importlib.metadata.Distribution:
    """The installed package. `python -m pytest` puts the checkout first into sys.path, where a build may leave an
    egg-info, which has no WHEEL."""
    return next(found for found in importlib.metadata.distributions(name="nvfp4") if found.read_text("WHEEL"))


def test_the_installed_package_is_found_behind_an_egg_info(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvfp4.egg-info").mkdir()
    (tmp_path / "nvfp4.egg-info/PKG-INFO").write_text("Metadata-Version: 2.4\nName: nvfp4\nVersion: 0.0.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.metadata.version("nvfp4") == "0.0.0" != installed().version


def test_one_module_for_every_python_from_3_10() -> None:
    assert MODULE.name == "_C.abi3.so"
    assert ".abi3.so" in importlib.machinery.EXTENSION_SUFFIXES
    tags = re.findall(r"^Tag: (.+)$", installed().read_text("WHEEL") or "", re.M)
    assert tags and all(tag.startswith("cp310-abi3-linux_") for tag in tags)


def test_import_is_fast_and_light(tmp_path: Path) -> None:
    """7 ms of processor time without byte code. Beside other programs the time that passes is three times as long."""
    code = (
        "import sys, time; before = set(sys.modules); start = time.process_time(); import nvfp4; "
        "print(time.process_time() - start, *({'torch', 'numpy', 'rich'} & set(sys.modules) - before))"
    )
    seconds = []
    for _ in range(7):
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
        first, *imported = done.stdout.split()
        assert imported == []
        seconds.append(float(first))
    assert statistics.median(seconds) < 0.015, seconds


def test_imports_where_there_is_no_torch_or_numpy(tmp_path: Path) -> None:
    """-S leaves out site-packages, so that the package stands beside the standard library alone."""
    (tmp_path / "nvfp4").symlink_to(Path(nvfp4.__file__).parent)
    code = "import nvfp4; print(nvfp4.info()['version'])"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == nvfp4.__version__, done.stderr


def test_version_is_the_headers() -> None:
    (header,) = re.findall(r'#define NVFP4_VERSION\s+"(.+)"', (ROOT / "csrc/nvfp4.h").read_text())
    assert nvfp4.__version__ == installed().version == header


def test_requires_nothing() -> None:
    requirements = installed().requires or []
    assert requirements and all("extra ==" in requirement for requirement in requirements)


def test_code_for_every_gpu_since_ampere() -> None:
    archs = nvfp4.info()["archs"]
    if not archs:
        pytest.skip("this build has no GPU code")
    assert {arch for row in nvfp4._C.backends() for arch in row["architectures"]} == set(archs)
    assert {"sm_80", "sm_89", "sm_90", "sm_100", "sm_120"} <= set(archs)
    assert any(arch.startswith("compute_") for arch in archs), "PTX for what comes after"


def test_definition_and_task_are_in_the_package() -> None:
    package = Path(nvfp4.__file__).parent
    for name in ("reference.py", "task.yml"):
        assert (package / name).read_text() == (ROOT / name).read_text()
    assert (package / "task_gemv.yml").is_file()
    assert (package / "py.typed").is_file()


# The build: the search for NVRTC, the wheels if there is none, and what is compiled again.


@pytest.fixture
def finder(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """build_backend/nvfp4_cuda.py on a machine without NVRTC."""
    module = module_at(ROOT / "build_backend/nvfp4_cuda.py")
    for name in ("NVFP4_CUDA", "NVFP4_NVRTC", "NVFP4_ARCHS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", [])
    return module


HEADERS_NEEDED = ("cuda_fp16.h", "cuda_bf16.h", "nv/target")


def fake_nvrtc(library: Path, include: Path, *options: str) -> Path:
    library.parent.mkdir(parents=True, exist_ok=True)
    source = SUPPORT / "fake_nvrtc.c"
    command = ["gcc", "-std=gnu11", "-shared", "-fPIC", "-fvisibility=hidden", *options, "-o", library, source]
    subprocess.run(command, check=True)
    for name in HEADERS_NEEDED:
        (include / name).parent.mkdir(parents=True, exist_ok=True)
        (include / name).write_text(f"// {name}\n")
    return library


def fake_toolkit(folder: Path, *options: str) -> Path:
    return fake_nvrtc(folder / "lib64/libnvrtc.so", folder / "include", *options)


def fake_wheels(site: Path, *options: str) -> Path:
    library = fake_nvrtc(site / "nvidia/cuda_nvrtc/lib/libnvrtc.so.12", site / "nvidia/cuda_runtime/include", *options)
    (site / "nvidia/cuda_cccl/include").mkdir(parents=True)
    (site / "nvidia/cuda_runtime/include/nv").rename(site / "nvidia/cuda_cccl/include/nv")
    return library


def test_without_nvrtc_the_wheels_are_asked_for(finder: ModuleType) -> None:
    wheels = finder.required_wheels()
    assert len(wheels) == 3 and all(re.fullmatch(r"nvidia-cuda-\w+-cu12==12\.9\.\d+", wheel) for wheel in wheels)


def test_cpu_build_asks_for_nothing(finder: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVFP4_CUDA", "0")
    assert finder.required_wheels() == []


def test_order_of_search(finder: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = fake_wheels(tmp_path / "site")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "nothing"), str(tmp_path / "site")])
    assert finder.find_compiler().library == wheel and finder.required_wheels() == []
    assert finder.find_compiler().version == (12, 9)
    named = fake_toolkit(tmp_path / "toolkit", "-DMINOR=10")
    monkeypatch.setenv("NVFP4_NVRTC", str(named))
    assert finder.find_compiler().library == named and finder.required_wheels() == []
    assert finder.find_compiler().version == (12, 10)


def test_an_older_nvrtc_of_torch_is_passed_over(
    finder: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_wheels(tmp_path, "-DMINOR=8")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert finder.find_compiler() is None and len(finder.required_wheels()) == 3


def test_named_nvrtc_must_be_usable(finder: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def rejected(library: Path) -> str:
        monkeypatch.setenv("NVFP4_NVRTC", str(library))
        with pytest.raises(SystemExit) as stop:
            finder.find_compiler()
        return str(stop.value)

    assert rejected(Path("/nonexistent/lib")) == (
        "nvfp4: NVFP4_NVRTC is /nonexistent/lib, which is not a file; must be a toolkit's libnvrtc.so."
    )
    old = fake_toolkit(tmp_path / "old", "-DMINOR=8")
    assert rejected(old) == f"nvfp4: NVFP4_NVRTC, {old}: is NVRTC 12.8; must be 12.9 or later."
    text = fake_toolkit(tmp_path / "text")
    text.write_text("not a library")
    assert "is no NVRTC that can be loaded" in rejected(text)
    other = fake_toolkit(tmp_path / "other")
    subprocess.run(["gcc", "-shared", "-o", other, "-x", "c", os.devnull], check=True)
    assert "has no function nvrtcVersion" in rejected(other)
    for name in HEADERS_NEEDED:
        library = fake_toolkit(tmp_path / name)
        (tmp_path / name / "include" / name).unlink()
        assert name in rejected(library)


def test_archs_of_a_folder_of_kernels(finder: ModuleType, tmp_path: Path) -> None:
    """A folder has the architectures of its row; one without a row takes the first that are not of the CPU."""
    table = tmp_path / "backends.def"
    table.write_text(
        '/* NVFP4_BACKEND(SM70, sm70, "a comment", "sm_70") */\n'
        'NVFP4_BACKEND(CPU, cpu, "the CPU", "")\n'
        'NVFP4_BACKEND(SM80, sm80, "a GPU (any)",\n             "sm_80 compute_80")\n'
        'NVFP4_BACKEND(SM90, sm90, "an H100, or H200", "sm_90a compute_90a")\n'
    )
    assert finder.architectures(table, "sm80") == finder.architectures(table, "quantize") == ["sm_80", "compute_80"]
    assert finder.architectures(table, "sm90") == ["sm_90a", "compute_90a"]
    folders = {path.parent.name for path in ROOT.glob("csrc/kernels/*/*.cu")}
    found = {folder: finder.architectures(ROOT / "csrc/backends.def", folder) for folder in folders}
    assert len(set(map(tuple, found.values()))) == len(folders) - 2
    assert found["quantize"] == found["moe"] == found["sm80"]
    if nvfp4.info()["archs"]:
        assert set(nvfp4.info()["archs"]) <= set(sum(found.values(), []))


def test_archs_that_are_asked_for(finder: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name stands for its variants; PTX stays."""
    portable, own = ["sm_80", "sm_90", "sm_120", "compute_80"], ["sm_90a", "compute_90a"]
    known = {*portable, *own, "sm_100f"}
    assert finder.chosen(portable, known) == portable
    monkeypatch.setenv("NVFP4_ARCHS", "sm_90  sm_80")
    assert finder.chosen(portable, known) == ["sm_80", "sm_90", "compute_80"]
    assert finder.chosen(own, known) == own
    assert finder.chosen(["sm_100f", "compute_100f"], known) == ["compute_100f"]
    for wrong in ("sm_91", "sm_90a", "90", "sm_80,sm_90", "compute_80"):
        monkeypatch.setenv("NVFP4_ARCHS", f"sm_80 {wrong}")
        with pytest.raises(SystemExit) as stop:
            finder.chosen(portable, known)
        names = "sm_80 sm_90 sm_100 sm_120"
        assert str(stop.value) == f"nvfp4: NVFP4_ARCHS has {wrong!r}; must be of {names}, separated by spaces."


@dataclass
class Device:
    """Two device sources, compiled by a fake NVRTC; one includes from the root, and from beside."""

    finder: ModuleType
    folder: Path
    nvrtc: Path
    archs: tuple[str, ...] = ("sm_80",)
    flags: tuple[str, ...] = ()

    def compiled(self) -> list[str]:
        """Builds; returns the sources that were compiled."""
        log = self.folder / "log"
        log.unlink(missing_ok=True)
        (self.folder / "out").mkdir(exist_ok=True)
        sources = {self.folder / "kernels" / name: list(self.archs) for name in BOTH}
        self.finder.write_images(sources, self.folder / "out", list(self.flags), self.folder)
        return sorted(log.read_text().splitlines()) if log.exists() else []

    def images(self) -> list[bytes]:
        folder = self.folder / "out"
        return [self.finder.unpacked(path) for path in sorted(folder.glob("*_*.*")) if path.suffix != ".key"]

    def write(self, name: str, text: str) -> None:
        (self.folder / "kernels" / name).write_text(text)


BOTH = ["one.cu", "two.cu"]
ONE = '#include <cuda_fp16.h>\n#  include "kernels/common/header.cuh"\n'


@pytest.fixture
def device(finder: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Device:
    nvrtc = fake_toolkit(tmp_path / "toolkit")
    monkeypatch.setenv("NVFP4_NVRTC", str(nvrtc))
    monkeypatch.setenv("FAKE_NVRTC", str(tmp_path))
    made = Device(finder, tmp_path, nvrtc)
    (tmp_path / "kernels/common").mkdir(parents=True)
    made.write("common/header.cuh", '#include "../deep.h"\n')
    made.write("deep.h", "// first\n")
    made.write("one.cu", ONE)
    made.write("two.cu", "#include <stdint.h>\n")
    assert made.compiled() == BOTH
    assert made.compiled() == []
    return made


def test_only_what_has_other_inputs_is_compiled(device: Device) -> None:
    device.write("deep.h", "// second\n")
    assert device.compiled() == ["one.cu"] and device.compiled() == []
    os.utime(device.folder / "kernels/deep.h")  # contents count
    assert device.compiled() == []
    device.flags = ("-DNVFP4_DUMP",)
    assert device.compiled() == BOTH and device.compiled() == []
    device.flags = ()
    assert device.compiled() == BOTH
    device.archs = ("sm_80", "sm_90a", "compute_90a", "compute_80")
    assert device.compiled() == sorted(BOTH * 2), "the new one, and the PTX of the old one"
    assert device.compiled() == []
    text = (device.folder / "out/images.inc").read_text()
    assert '#define IMAGE_ARCHS "sm_80 sm_90a compute_90a compute_80"' in text and text.count("IMAGE(") == 8
    assert "#define IMAGE_TOOLKIT 12090\n" in text


def test_images_are_what_the_compiler_made(device: Device) -> None:
    """Machine code and PTX of an architecture by one run; Thor's PTX is the B200's but for two lines."""
    device.archs = ("sm_100f", "compute_100f", "compute_110f")
    device.flags = ("-DMORE",)
    assert device.compiled() == BOTH
    out = device.folder / "out"
    code, thor = (device.finder.unpacked(out / f"kernels_one.{name}") for name in device.archs[1:])
    assert code.endswith(b"\0") and b"--gpu-architecture=sm_100f\n" in code and b"\n-DMORE\n" in code
    assert code.replace(b".version 8.8", b".version 9.0").replace(b".target sm_100f", b".target sm_110f") == thor


def test_another_path_of_the_same_nvrtc_is_the_same(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip's isolated builds have NVRTC in another folder each time."""
    shutil.copytree(device.folder / "toolkit", device.folder / "elsewhere")
    monkeypatch.setenv("NVFP4_NVRTC", str(device.folder / "elsewhere/lib64/libnvrtc.so"))
    assert device.compiled() == []


@pytest.mark.parametrize("flag", ["-I/somewhere", "-include=x.h", "--ptxas-options=-v", "@options"])
def test_flags_that_may_hide_an_input_compile_each_time(device: Device, flag: str) -> None:
    device.flags = ("-DONE", flag)
    assert device.compiled() == BOTH and device.compiled() == BOTH
    device.flags = ("-DONE",)
    assert device.compiled() == BOTH and device.compiled() == []


@pytest.mark.parametrize("name", ["lib64/libnvrtc-builtins.so", *(f"include/{name}" for name in HEADERS_NEEDED)])
def test_a_part_of_the_toolkit_that_is_replaced_alone(name: str, device: Device) -> None:
    part = device.folder / "toolkit" / name
    for text in ("of another release", "esaeler rehtona fo"):
        part.write_text(text)
        assert device.compiled() == BOTH and device.compiled() == []
    os.utime(part, (1, 1))  # contents count: an isolated build has the same toolkit at another time
    assert device.compiled() == []


def test_another_version_compiles_again(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVFP4_NVRTC", str(fake_toolkit(device.folder / "newer", "-DMINOR=10")))
    assert device.compiled() == BOTH and device.compiled() == []
    assert "#define IMAGE_TOOLKIT 12100\n" in (device.folder / "out/images.inc").read_text()


@pytest.mark.parametrize("line", ["#include NAME", '#include "not_here.h"'])
def test_an_include_that_is_not_found_compiles_each_time(device: Device, line: str) -> None:
    device.write("two.cu", f"{line}\n")
    assert device.compiled() == ["two.cu"] and device.compiled() == ["two.cu"]


def test_an_image_that_was_touched_is_made_again(device: Device) -> None:
    (device.folder / "out/kernels_one.sm_80").write_text("something else")
    (device.folder / "out/kernels_two.sm_80.key").write_text("half of it")
    assert device.compiled() == BOTH and device.compiled() == []
    (device.folder / "out/kernels_two.sm_80.key").unlink()
    assert device.compiled() == ["two.cu"]


def test_an_interrupted_build_leaves_nothing_to_be_taken(device: Device) -> None:
    """The build dies while a source is compiled; then the source is as before."""
    before = device.images()
    device.write("one.cu", ONE + "// KILLED\n")
    build = (
        "import sys; from pathlib import Path; backend, root = sys.argv[1], Path(sys.argv[2]); "
        "sys.path.insert(0, backend); import nvfp4_cuda; "
        "nvfp4_cuda.write_images({root / 'kernels/one.cu': ['sm_80']}, root / 'out', [], root)"
    )
    command = [sys.executable, "-c", build, ROOT / "build_backend", device.folder]
    assert subprocess.run(command, stdout=subprocess.DEVNULL).returncode == -signal.SIGKILL
    assert device.images() == before
    device.write("one.cu", ONE)
    assert device.compiled() == [] and device.images() == before


def test_a_source_that_changes_meanwhile_is_compiled_again(device: Device) -> None:
    device.write("one.cu", ONE + "// EDITED\n")
    assert device.compiled() == ["one.cu"]
    device.write("one.cu", ONE)
    device.write("deep.h", "// first\n")
    assert device.compiled() == ["one.cu"] and device.compiled() == []


def test_two_builds_at_once_leave_what_one_of_them_made(device: Device) -> None:
    """With different flags, in the same folder: no key may match the output of the other build."""
    names = ("-DFIRST", "-DSECOND")
    both = [Device(device.finder, device.folder, device.nvrtc, flags=(name,)) for name in names]
    device.write("two.cu", "// SLOW\n")
    for _ in range(3):
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(Device.compiled, both))
        for build, name in zip(both, names):
            build.compiled()
            assert all(name.encode() in image for image in build.images())


def test_what_the_compiler_says(device: Device, capfd: pytest.CaptureFixture[str]) -> None:
    """A warning is printed, and with NVFP4_WERROR it ends the build as an error does. A line tells what is done."""
    device.write("one.cu", "// WARNED\n")
    assert device.compiled() == ["one.cu"]
    said = capfd.readouterr().out
    assert re.search(r"^nvfp4: \[[12]/2\] kernels_one for sm_80, \d+ s\na warning$", said, re.M), said
    one = {device.folder / "kernels/one.cu": ["sm_80"]}
    device.write("one.cu", "// WARNED again\n")
    with pytest.raises(SystemExit, match=r"^a warning\nnvfp4: one\.cu could not be compiled for sm_80, its warnings"):
        device.finder.write_images(one, device.folder / "out", [], device.folder, strict=True)
    device.write("one.cu", "// WRONG\n")
    with pytest.raises(
        SystemExit, match=r"nvfp4: one\.cu could not be compiled for sm_80, NVRTC ended with 1; see above"
    ):
        device.compiled()
    assert not list((device.folder / "out").glob("tmp*"))


@pytest.mark.parametrize("letter", ['"', "\\", "\n"])
def test_a_folder_that_no_string_of_c_names(letter: str, finder: ModuleType, tmp_path: Path) -> None:
    """Before anything is compiled, which takes minutes."""
    folder = tmp_path / f"a{letter}b" / "build"
    with pytest.raises(SystemExit, match="^nvfp4: the build folder is .*; must have no quote, backslash or line feed"):
        finder.write_images({tmp_path / "one.cu": ["sm_80"]}, folder, [])
    assert not folder.exists()
    finder.check_folder(tmp_path / "a b's ü")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the sources, with nothing built in it."""
    ignore = shutil.ignore_patterns(".git", "build", "dist", "*.so", "*.egg-info", "__pycache__", ".*cache", ".venv*")
    return Path(shutil.copytree(ROOT, tmp_path / "checkout", symlinks=True, ignore=ignore))


def start_setup_py(checkout: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    pytest.importorskip("setuptools", minversion="77")
    dropped = ("NVFP4_NVRTC", "NVFP4_CUDA", "PYTHONPATH")  # wheels may be there
    environment = {key: value for key, value in os.environ.items() if key not in dropped} | variables
    command = [sys.executable, "setup.py", "-q", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=checkout, env=environment, stdout=pipe, stderr=pipe, text=True)


def setup_py(checkout: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    started = start_setup_py(checkout, *arguments, **variables)
    output, errors = started.communicate()
    return subprocess.CompletedProcess(started.args, started.returncode, output, errors)


@pytest.mark.parametrize("variable", ["CC", "CFLAGS", "CPPFLAGS", "LDFLAGS"])
@pytest.mark.parametrize(
    "flag", ["-ffast-math", "-Ofast", "-funsafe-math-optimizations", "-ffinite-math-only", "-mdaz-ftz"]
)
def test_flags_that_change_results_stop_a_build(flag: str, variable: str, checkout: Path) -> None:
    """With them NaN is missed, and a program that imports the module flushes subnormal numbers."""
    given = f"gcc {flag}" if variable == "CC" else f"-g0 {flag} -O2"
    done = setup_py(checkout, "build_ext", PATH="/nonexistent", **{variable: given})
    assert done.returncode != 0
    assert done.stderr == f"nvfp4: {variable} has {flag}, which changes results; must not have it.\n"


def test_a_free_threaded_python_stops_a_build(checkout: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    code = (
        "import runpy, sysconfig; real = sysconfig.get_config_var; "
        "sysconfig.get_config_var = lambda name: name == 'Py_GIL_DISABLED' or real(name); runpy.run_path('setup.py')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch(
        r"nvfp4: this Python 3\.\S+ is free-threaded, which Python's limited API does not support; "
        r"must be an ordinary build of Python 3\.10 or later\.\n",
        done.stderr,
    )


def test_build_without_nvrtc_says_what_is_missing(checkout: Path) -> None:
    done = setup_py(checkout, "build_ext", PATH="/nonexistent")
    assert done.returncode != 0
    assert "NVRTC 12.9 was not found" in done.stderr and "NVFP4_CUDA=0" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_build_waits_for_another_one(checkout: Path) -> None:
    (checkout / "build").mkdir()
    with open(checkout / "build/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        started = start_setup_py(checkout, "build_ext", PATH="/nonexistent")
        with pytest.raises(subprocess.TimeoutExpired):
            started.communicate(timeout=2)
    _, errors = started.communicate(timeout=60)
    assert "NVRTC 12.9 was not found" in errors


@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
def test_an_installation_leaves_the_module_of_another_one_alone(checkout: Path, tmp_path: Path) -> None:
    """`python -m nvfp4` in a checkout imports the module there. An installation puts its own there, but not over one
    that was built in place, and not one without GPU code over one with it. Here a file of one line takes the place of
    the sources."""
    nvrtc = fake_toolkit(tmp_path / "toolkit")
    for folder in ("kernels", "api", "bindings", "cpu", "driver", "plan"):
        shutil.rmtree(checkout / "csrc" / folder)
    for source in (checkout / "csrc").rglob("*.c"):
        source.unlink()
    module, source = checkout / "nvfp4/_C.abi3.so", checkout / "csrc/one.c"

    def build(text: str, *arguments: str, **variables: str) -> tuple[bool, str]:
        """Whether the module in the checkout is the one that was built, and what the build printed."""
        source.write_text(f'const char text[] = "{text}"; __attribute__((visibility("default"))) int PyInit__C;')
        done = setup_py(checkout, "build_ext", *arguments, NVFP4_NVRTC=str(nvrtc), **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return text.encode() in module.read_bytes(), done.stdout

    assert build("first")[0] and build("second")[0], "a copy is refreshed"
    replaced, said = build("third", NVFP4_CUDA="0")
    assert not replaced and "stays as it is in this checkout: it has GPU code, and this build has none." in said
    assert build("fourth")[0]
    assert build("fifth", "--inplace", NVFP4_CUDA="0")[0]
    for variables in ({}, {"NVFP4_CUDA": "0"}):
        replaced, said = build("sixth", **variables)
        assert not replaced and "it was built in place, for an editable installation." in said
    assert build("seventh", "--inplace")[0]
    module.unlink()
    assert build("eighth", NVFP4_CUDA="0")[0], "there is none"
    assert build("ninth")[0], "one with GPU code replaces a copy without it"
    module.write_bytes(b"another one")
    assert build("tenth", NVFP4_CUDA="0")[0], "nothing is known of it"


def test_source_distribution_is_whole(checkout: Path, tmp_path: Path) -> None:
    done = setup_py(checkout, "sdist", "--dist-dir", str(tmp_path / "dist"))
    assert done.returncode == 0, done.stderr
    (archive,) = (tmp_path / "dist").iterdir()
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data") if hasattr(tarfile, "data_filter") else tar.extractall(tmp_path)
    (unpacked,) = tmp_path.glob("nvfp4-*")
    for pattern in (
        "*.py",
        "*.md",
        "task.yml",
        "LICENSE",
        "csrc/**/*.*",
        "nvfp4/**/*.*",
        "build_backend/*.py",
        "tests/**/*.*",
        "emulator/**/*.*",
    ):
        for path in checkout.glob(pattern):
            name = path.relative_to(checkout)
            if path.is_file() and path.suffix != ".pyc" and "egg-info" not in str(name):
                assert (unpacked / name).read_bytes() == path.read_bytes(), name
    assert not [path for path in unpacked.rglob("*") if path.suffix in (".so", ".pyc", ".fatbin")]


# Continuous integration.


def test_the_long_run_lists_its_steps() -> None:
    """Each function `step_...` is one, and each emulated GPU and each backend with a proof has its own; no other is."""
    done = subprocess.run([ROOT / ".ci/full", "nothing"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("no step nothing; they are: ")
    steps = done.stderr.partition("are: ")[2].split()
    assert len(steps) > 10 and {"ci_run", "wheels", "sanitized"} <= set(steps)
    written = set(re.findall(r"(?m)^step_(\w+)\(\)", (ROOT / ".ci/full").read_text()))
    made = {f"emulated_{device}" for device in emulate.DEVICES}
    made |= {f"{what}_{backend}" for what in ("kernels", "schedules") for backend in proven_backends()}
    assert set(steps) == written | made and {"kernels_sm90", "schedules_sm100", "emulated_sm_80"} <= made
