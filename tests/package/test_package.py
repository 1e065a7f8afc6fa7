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
from paths import ROOT, module_at, proven_backends

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


# The build: the search for nvcc, the wheels if there is none, and what is compiled again.


@pytest.fixture
def finder(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """build_backend/nvfp4_cuda.py on a machine without nvcc."""
    module = module_at(ROOT / "build_backend/nvfp4_cuda.py")
    for name in ("NVFP4_CUDA", "NVFP4_NVCC", "NVFP4_ARCHS", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(sys, "path", [])
    return module


TOOLKIT = ("bin/ptxas", "bin/fatbinary", "nvvm/bin/cicc", "include/cuda_fp16.h", "include/crt/mma.h")


def fake_nvcc(folder: Path, release: str = "13.0") -> Path:
    """An nvcc that prints its release or its toolkit (its folder), or writes a line to LOG and an output."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOOLKIT:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    path = folder / "nvcc"
    path.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = --version ]; then echo "Cuda compilation tools, release {release}, V{release}.1"; exit; fi\n'
        f'if [ "$1" = --dryrun ]; then echo "#$ TOP={folder}/bin/.." >&2; exit; fi\n'
        f'echo "$@" >> {folder}/log\n'
        'while [ "$1" != -o ]; do shift; done\n'
        'echo fatbin > "$2"\n'
    )
    path.chmod(0o755)
    return path


def test_no_nvcc_asks_for_the_wheels(finder: ModuleType) -> None:
    wheels = finder.required_wheels()
    assert len(wheels) == 5 and all(wheel.endswith("==13.0.*") for wheel in wheels)


def test_cpu_build_asks_for_nothing(finder: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVFP4_CUDA", "0")
    assert finder.required_wheels() == []


def test_order_of_search(finder: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = fake_nvcc(tmp_path / "site/nvidia/cu13/bin")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    assert finder.find_nvcc() == wheel
    on_path = fake_nvcc(tmp_path / "path")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert finder.find_nvcc() == on_path
    home = fake_nvcc(tmp_path / "home/bin")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert finder.find_nvcc() == home
    named = fake_nvcc(tmp_path / "named")
    monkeypatch.setenv("NVFP4_NVCC", str(named))
    assert finder.find_nvcc() == named
    assert finder.required_wheels() == []


def test_older_nvcc_is_passed_over(finder: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_nvcc(tmp_path, "12.8")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert finder.find_nvcc() is None
    assert len(finder.required_wheels()) == 5


def test_named_nvcc_must_be_usable(finder: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NVFP4_NVCC", "/nonexistent/nvcc")
    with pytest.raises(SystemExit, match="NVFP4_NVCC is /nonexistent/nvcc, which is not a program"):
        finder.find_nvcc()
    old = fake_nvcc(tmp_path, "12.8")
    monkeypatch.setenv("NVFP4_NVCC", str(old))
    with pytest.raises(SystemExit, match=r"not the nvcc of CUDA 13\.0"):
        finder.find_nvcc()


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
    """Two device sources, compiled by an nvcc that logs its arguments; one includes from the root, and from beside."""

    finder: ModuleType
    folder: Path
    nvcc: Path
    archs: tuple[str, ...] = ("sm_80",)
    flags: tuple[str, ...] = ()

    def compiled(self) -> list[str]:
        """Builds; returns the sources that nvcc compiled."""
        log = self.nvcc.parent / "log"
        log.unlink(missing_ok=True)
        sources = {self.folder / "kernels" / name: list(self.archs) for name in ("one.cu", "two.cu")}
        self.finder.write_fatbins(sources, self.folder / "out", list(self.flags), self.folder)
        return sorted(Path(line.split()[-1]).name for line in log.read_text().splitlines()) if log.exists() else []

    def fatbins(self) -> list[str]:
        return [path.read_text() for path in sorted((self.folder / "out").glob("*.fatbin"))]


BOTH = ["one.cu", "two.cu"]


@pytest.fixture
def device(finder: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Device:
    nvcc = fake_nvcc(tmp_path / "bin")
    monkeypatch.setenv("NVFP4_NVCC", str(nvcc))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for name in finder.HIDDEN_INPUTS:
        monkeypatch.delenv(name, raising=False)
    kernels = tmp_path / "kernels"
    (kernels / "common").mkdir(parents=True)
    (kernels / "common/header.cuh").write_text('#include "../deep.h"\n')
    (kernels / "deep.h").write_text("// first\n")
    (kernels / "one.cu").write_text('#include <cuda_fp16.h>\n#  include "kernels/common/header.cuh"\n')
    (kernels / "two.cu").write_text("#include <stdint.h>\n")
    made = Device(finder, tmp_path, nvcc)
    assert made.compiled() == BOTH
    assert made.compiled() == []
    return made


def test_only_what_has_other_inputs_is_compiled(device: Device) -> None:
    (device.folder / "kernels/deep.h").write_text("// second\n")
    assert device.compiled() == ["one.cu"] and device.compiled() == []
    os.utime(device.folder / "kernels/deep.h")  # contents count
    assert device.compiled() == []
    device.flags = ("-DNVFP4_DUMP",)
    assert device.compiled() == BOTH and device.compiled() == []
    device.flags = ()
    assert device.compiled() == BOTH
    device.archs = ("sm_80", "compute_90")
    assert device.compiled() == BOTH and device.compiled() == []
    text = (device.folder / "out/fatbins.inc").read_text()
    assert '#define FATBIN_ARCHS "sm_80 compute_90"' in text and text.count("FATBIN(") == 2
    fake_nvcc(device.nvcc.parent, "13.1")
    assert device.compiled() == BOTH and device.compiled() == []


def test_another_path_of_the_same_nvcc_is_the_same(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip's isolated builds have nvcc in another folder each time."""
    device.nvcc = fake_nvcc(device.folder / "elsewhere")
    monkeypatch.setenv("NVFP4_NVCC", str(device.nvcc))
    assert device.compiled() == []


@pytest.mark.parametrize("flag", ["-I/somewhere", "-include=x.h", "-Xptxas=-v", "@options"])
def test_flags_that_may_hide_an_input_compile_each_time(device: Device, flag: str) -> None:
    device.flags = ("-DONE", flag)
    assert device.compiled() == BOTH and device.compiled() == BOTH
    device.flags = ("-DONE",)
    assert device.compiled() == BOTH and device.compiled() == []


@pytest.mark.parametrize(
    "name",
    ["NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"],
)
def test_hidden_inputs_of_the_environment_compile_each_time(
    name: str, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "/somewhere")
    assert device.compiled() == BOTH and device.compiled() == BOTH


@pytest.mark.parametrize("name", TOOLKIT)
def test_a_part_of_the_toolkit_that_is_replaced_alone(name: str, device: Device) -> None:
    """With the same output of nvcc; also by a file of the same size, and back again."""
    part = device.nvcc.parent / name
    assert part.read_text() == name
    for text in (f"{name} of another release", name[::-1], name):
        part.write_text(text)
        assert device.compiled() == BOTH and device.compiled() == []
    os.utime(part, (1, 1))  # contents count: an isolated build has the same toolkit at another time
    assert device.compiled() == []


def test_an_nvcc_that_is_a_script_or_a_link_elsewhere(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    (device.folder / "other").mkdir()
    for name in ("script", "link"):
        path = device.folder / "other" / name
        if name == "link":
            path.symlink_to(device.nvcc)
        else:
            path.write_text(f'#!/bin/sh\nexec {device.nvcc} "$@"\n')
            path.chmod(0o755)
        monkeypatch.setenv("NVFP4_NVCC", str(path))
        assert device.compiled() == []
        (device.nvcc.parent / "nvvm/bin/cicc").write_text(f"for {name}")
        assert device.compiled() == BOTH and device.compiled() == []


@pytest.mark.parametrize("name", ["bin/ptxas", "nvvm/bin/cicc", "include/cuda_fp16.h"])
def test_a_toolkit_of_another_form_compiles_each_time(name: str, device: Device) -> None:
    (device.nvcc.parent / name).unlink()
    assert device.compiled() == BOTH and device.compiled() == BOTH


@pytest.mark.parametrize("line", ["#include NAME", '#include "not_here.h"'])
def test_an_include_that_is_not_found_compiles_each_time(device: Device, line: str) -> None:
    (device.folder / "kernels/two.cu").write_text(f"{line}\n")
    assert device.compiled() == ["two.cu"] and device.compiled() == ["two.cu"]


def test_a_fat_binary_that_was_touched_is_made_again(device: Device) -> None:
    (device.folder / "out/kernels_one.fatbin").write_text("something else")
    (device.folder / "out/kernels_two.key").write_text("half")
    assert device.compiled() == BOTH and device.compiled() == []


def test_an_interrupted_build_leaves_nothing_to_be_taken(device: Device) -> None:
    """nvcc dies after a partial output, with other flags; then the first flags again."""
    before, nvcc = device.fatbins(), device.nvcc.read_text()
    device.nvcc.write_text(nvcc.replace("echo fatbin", "echo half") + "kill -9 $PPID $$\n")
    device.flags = ("-DOTHER",)
    build = (
        "import sys; from pathlib import Path; backend, root = sys.argv[1], Path(sys.argv[2]); "
        "sys.path.insert(0, backend); import nvfp4_cuda; "
        "nvfp4_cuda.write_fatbins({root / 'kernels/one.cu': ['sm_80']}, root / 'out', ['-DOTHER'], root)"
    )
    arguments = [ROOT / "build_backend", device.folder]
    environment = os.environ | {"NVFP4_NVCC": str(device.nvcc)}
    command = [sys.executable, "-c", build, *arguments]
    assert subprocess.run(command, env=environment, stdout=subprocess.DEVNULL).returncode == -signal.SIGKILL
    assert device.fatbins() == before
    device.nvcc.write_text(nvcc)
    device.flags = ()
    assert device.compiled() == [] and device.fatbins() == before


def test_a_source_that_changes_meanwhile_is_compiled_again(device: Device) -> None:
    nvcc, header = device.nvcc.read_text(), (device.folder / "kernels/deep.h").read_text()
    device.nvcc.write_text(nvcc + f"echo '// third' > {device.folder}/kernels/deep.h\n")
    device.flags = ("-DOTHER",)
    assert device.compiled() == BOTH
    device.nvcc.write_text(nvcc)
    (device.folder / "kernels/deep.h").write_text(header)
    assert "one.cu" in device.compiled() and device.compiled() == []


def test_two_builds_at_once_leave_what_one_of_them_made(device: Device) -> None:
    """With different flags, in the same folder: no key may match the output of the other build."""
    names = ("-DFIRST", "-DSECOND")
    both = [Device(device.finder, device.folder, device.nvcc, flags=(name,)) for name in names]
    nvcc = device.nvcc.read_text().replace("echo fatbin", 'sleep 0.0$(($$ % 7)); echo fatbin "$all"')
    device.nvcc.write_text(nvcc.replace("while", 'all="$@"\nwhile', 1))
    for _ in range(3):
        with ThreadPoolExecutor(2) as pool:
            list(
                pool.map(
                    lambda build: build.finder.write_fatbins(
                        {build.folder / "kernels" / name: ["sm_80"] for name in BOTH},
                        build.folder / "out",
                        list(build.flags),
                        build.folder,
                    ),
                    both,
                )
            )
        for build, name in zip(both, names):
            build.compiled()
            assert all(name in text for text in build.fatbins())


def test_nvcc_without_a_cxx_compiler(finder: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvcc = fake_nvcc(tmp_path)
    nvcc.write_text(nvcc.read_text().replace("while", "exit 1; while"))
    monkeypatch.setenv("NVFP4_NVCC", str(nvcc))
    source = tmp_path / "one.cu"
    source.touch()
    with pytest.raises(SystemExit, match=r"could not compile one\.cu, .*install g\+\+"):
        finder.compile_fatbin(source, ["sm_80"], tmp_path, [])
    assert not list(tmp_path.glob("*.key"))


@pytest.mark.parametrize("letter", ['"', "\\", "\n"])
def test_a_folder_that_no_string_of_c_names(letter: str, finder: ModuleType, tmp_path: Path) -> None:
    """Before anything is compiled, which takes minutes."""
    folder = tmp_path / f"a{letter}b" / "build"
    with pytest.raises(SystemExit, match="^nvfp4: the build folder is .*; must have no quote, backslash or line feed"):
        finder.write_fatbins({tmp_path / "one.cu": ["sm_80"]}, folder, [])
    assert not folder.exists()
    finder.check_folder(tmp_path / "a b's ü")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the sources, with nothing built in it."""
    ignore = shutil.ignore_patterns(".git", "build", "dist", "*.so", "*.egg-info", "__pycache__", ".*cache", ".venv*")
    return Path(shutil.copytree(ROOT, tmp_path / "checkout", symlinks=True, ignore=ignore))


def start_setup_py(checkout: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    pytest.importorskip("setuptools", minversion="77")
    dropped = ("NVFP4_NVCC", "NVFP4_CUDA", "CUDA_HOME")
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


def test_build_without_nvcc_says_what_is_missing(checkout: Path) -> None:
    done = setup_py(checkout, "build_ext", PATH="/nonexistent")
    assert done.returncode != 0
    assert "no nvcc of CUDA 13 was found" in done.stderr and "NVFP4_CUDA=0" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_build_waits_for_another_one(checkout: Path) -> None:
    (checkout / "build").mkdir()
    with open(checkout / "build/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        started = start_setup_py(checkout, "build_ext", PATH="/nonexistent")
        with pytest.raises(subprocess.TimeoutExpired):
            started.communicate(timeout=2)
    _, errors = started.communicate(timeout=60)
    assert "no nvcc of CUDA 13 was found" in errors


@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
def test_an_installation_leaves_the_module_of_another_one_alone(checkout: Path) -> None:
    """`python -m nvfp4` in a checkout imports the module there. An installation puts its own there, but not over one
    that was built in place, and not one without GPU code over one with it. Here a file of one line takes the place of
    the sources."""
    for folder in ("kernels", "api", "bindings", "cpu", "driver", "plan"):
        shutil.rmtree(checkout / "csrc" / folder)
    for source in (checkout / "csrc").rglob("*.c"):
        source.unlink()
    module, source = checkout / "nvfp4/_C.abi3.so", checkout / "csrc/one.c"

    def build(text: str, *arguments: str, **variables: str) -> tuple[bool, str]:
        """Whether the module in the checkout is the one that was built, and what the build printed."""
        source.write_text(f'const char text[] = "{text}"; __attribute__((visibility("default"))) int PyInit__C;')
        done = setup_py(checkout, "build_ext", *arguments, NVFP4_NVCC=shutil.which("true"), **variables)
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
