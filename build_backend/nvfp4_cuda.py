"""Finds nvcc and compiles each .cu file to a fat binary, unless nothing that goes into it has changed."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# 13.0, so that every driver from R580 on loads the result. All five at the same minor version: nvidia-cuda-nvcc alone
# brings the newest nvvm, whose PTX an older ptxas refuses.
WHEELS = [
    f"{name}==13.0.*"
    for name in ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-runtime", "nvidia-cuda-cccl")
]
OLDEST = (13, 0)
DEBUG = ("NVFP4_DUMP", "NVFP4_WATCHDOG")  # macros of debug builds, whose kernels have other parameters
NOT_FOUND = "nvfp4: no nvcc of CUDA 13 was found (looked at $NVFP4_NVCC, $CUDA_HOME/bin, PATH and NVIDIA's wheels)"
REMEDY = (
    "install the CUDA 13 toolkit, or `pip install " + " ".join(WHEELS) + "`, or set NVFP4_NVCC to the nvcc to use, "
    "or set NVFP4_CUDA=0 to build for the CPU alone."
)


def wanted() -> bool:
    return os.environ.get("NVFP4_CUDA", "1") != "0"


def required_wheels() -> list[str]:
    """The packages that a build environment needs besides setuptools."""
    if not wanted() or find_nvcc() is not None:
        return []
    print(f"{NOT_FOUND}: asking for the wheels. If they cannot be had, {REMEDY}")
    return WHEELS


def says(nvcc: Path) -> str:
    try:
        return subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    except OSError:
        return ""


def new_enough(nvcc: Path) -> bool:
    release = re.search(r"release (\d+)\.(\d+)", says(nvcc))
    return release is not None and (int(release[1]), int(release[2])) >= OLDEST


def find_nvcc() -> Path | None:
    named = os.environ.get("NVFP4_NVCC")
    if named:
        path = Path(named)
        if not (path.is_file() and os.access(path, os.X_OK)):
            sys.exit(f"nvfp4: NVFP4_NVCC is {named}, which is not a program: name the nvcc of a CUDA 13 toolkit.")
        if not new_enough(path):
            sys.exit(f"nvfp4: NVFP4_NVCC is {named}, which is not the nvcc of CUDA 13.0 or later.")
        return path
    places = []
    if os.environ.get("CUDA_HOME"):
        places.append(Path(os.environ["CUDA_HOME"], "bin", "nvcc"))
    on_path = shutil.which("nvcc")
    if on_path:
        places.append(Path(on_path))
    places += [Path(entry, "nvidia", "cu13", "bin", "nvcc") for entry in sys.path]
    return next((path for path in places if path.is_file() and new_enough(path)), None)


def inputs(source: Path, root: Path | None = None) -> list[Path] | None:
    """The file and every file of ours that it includes, beside the file or from the root; what is in <> is the
    compiler's. None if that is not sure."""
    found, queue = {source}, [source]
    while queue:
        path = queue.pop()
        for name in re.findall(r"^\s*#\s*include\s*(\S+)", path.read_text(), re.M):
            if name.startswith("<"):
                continue
            places = (folder / name.strip('"') for folder in (path.parent, root) if folder is not None)
            included = next((place.resolve() for place in places if place.is_file()), None)
            if not name.startswith('"') or included is None:
                return None
            if included not in found:
                found.add(included)
                queue.append(included)
    return sorted(found)


# The PTX that machine code is made from, if it is not that of its own name. The kernels for every GPU ask for nothing
# newer than sm_90, and each PTX costs a pass of the compiler, more than all of ptxas.
PTX_OF = {"sm_100": "compute_90", "sm_120": "compute_90"}


def gencode(arch: str) -> str:
    """sm_90a: machine code for it; compute_90: PTX, which the driver compiles for any later GPU."""
    return f"-gencode=arch={PTX_OF.get(arch, arch.replace('sm_', 'compute_'))},code={arch}"


def preprocesses_cxx() -> bool:
    """Whether gcc can do for nvcc what nvcc leaves to it."""
    if not shutil.which("gcc"):
        return False
    command = ["gcc", "-E", "-x", "c++", "-"]
    return subprocess.run(command, input=b"#include <cmath>\n", capture_output=True).returncode == 0


def architectures(table: Path, folder: str) -> list[str]:
    """The architectures that the kernels of a folder are compiled for, by the table of backends (csrc/backends.def)."""
    rows = re.findall(r'^NVFP4_BACKEND\(\w+, (\w+), "[^"]*",\s*"([^"]*)"\)$', table.read_text(), re.MULTILINE)
    portable = next(archs for _, archs in rows if archs)
    return dict(rows).get(folder, portable).split()


def virtual(table: Path, folder: str) -> str:
    """The architecture of the PTX that tests run."""
    return next(arch for arch in architectures(table, folder) if arch.startswith("compute_"))


def chosen(archs: list[str], known: Iterable[str]) -> list[str]:
    """The architectures of a kernel file that NVFP4_ARCHS asks for, "sm_90 sm_120"; without it all. It chooses machine
    code: a name stands for its variants too (sm_90a). PTX stays, which the driver compiles for any other GPU at first
    use."""
    wanted = os.environ.get("NVFP4_ARCHS", "").split()
    names = sorted({arch.rstrip("af") for arch in known if arch.startswith("sm_")}, key=lambda name: int(name[3:]))
    for name in wanted:
        if name not in names:
            sys.exit(f"nvfp4: NVFP4_ARCHS has {name!r}; must be of {' '.join(names)}, separated by spaces.")
    return [arch for arch in archs if not wanted or arch.startswith("compute_") or arch.rstrip("af") in wanted]


def sha256(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"%d " % len(part) + part)
    return digest.hexdigest()


def toolkit(nvcc: Path) -> Path | None:
    """The folder from which nvcc takes its programs and headers; nvcc is not in it if it is a link or a script."""
    command = [nvcc, "--dryrun", "-fatbin", "-x", "cu", os.devnull, "-o", os.devnull]
    found = re.search(r"^#\$ TOP=(.+)$", subprocess.run(command, capture_output=True, text=True).stderr, re.M)
    return Path(found[1]) if found else None


PROGRAMS = ("bin/ptxas", "bin/fatbinary", "nvvm/bin/cicc")
OTHER_PARTS = ("bin/nvcc.profile", "nvvm/libdevice/*.bc", "include/*.h", "include/*.hpp", "include/crt/*")


def parts_of(top: Path) -> list[Path] | None:
    """The toolkit's files that device code is made with or from; None if one that must be there is not found."""
    programs = [top / name for name in PROGRAMS]
    others = sorted(path for pattern in OTHER_PARTS for path in top.glob(pattern) if path.is_file())
    whole = all(path.is_file() for path in (*programs, top / "include/cuda_fp16.h"))
    return programs + others if whole else None


@functools.lru_cache(maxsize=8)
def digest_of(top: Path, stamps: tuple[tuple[Path, int, int], ...]) -> str:
    """The digest of names and contents. Times only tell one process that it knows them already: an isolated build
    unpacks the same toolkit with other times, in another folder."""
    return sha256(*(part for path, *_ in stamps for part in (str(path).encode(), (top / path).read_bytes())))


def compiler_of(nvcc: Path) -> str | None:
    """Identifies nvcc by its version text and by the programs and headers that it uses: one can be exchanged alone."""
    top = toolkit(nvcc)
    parts = parts_of(top) if top else None
    if parts is None:
        return None
    facts = ((path.relative_to(top), path.stat()) for path in parts)
    return says(nvcc) + digest_of(top, tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in facts))


# Flags that name no file whose contents would count, and that are not there for what nvcc prints.
PLAIN_FLAG = re.compile(r"-D.+|-W.+|-G|-lineinfo")
# Variables by which nvcc, or the gcc that preprocesses for it, takes flags or files that are not named in the command.
HIDDEN_INPUTS = (
    "NVCC_PREPEND_FLAGS",
    "NVCC_APPEND_FLAGS",
    "NVCC_CCBIN",
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
)


def key_of(source: Path, options: list[str], flags: list[str], nvcc: Path, root: Path | None) -> str | None:
    """The key of everything that a fat binary is made from; None where that is unclear, and it has to be made anew."""
    files = inputs(source, root)
    hidden = any(os.environ.get(name) for name in HIDDEN_INPUTS)
    if files is None or hidden or not all(map(PLAIN_FLAG.fullmatch, flags)):
        return None
    compiler = compiler_of(nvcc)
    if compiler is None:
        return None
    return sha256(compiler.encode(), "\0".join(options).encode(), *(path.read_bytes() for path in files))


def name_of(source: Path) -> str:
    """The name of a kernel file's fat binary: its folder and stem."""
    return f"{source.parent.name}_{source.stem}"


def options_of(archs: list[str], flags: list[str]) -> list[str]:
    """nvcc's, of a fat binary."""
    return ["-fatbin", "--compress-mode=size", "-O3", "-std=c++17", *flags, *map(gencode, archs)]


def made_before(output: Path, key: str | None) -> bool:
    """Whether a build has left this fat binary, with its note, and from what the key identifies."""
    note = output.with_suffix(".key")
    known = key is not None and output.is_file() and note.is_file()
    return known and note.read_text() == f"{key} {sha256(output.read_bytes())}"


def compile_fatbin(
    source: Path, archs: list[str], folder: Path, flags: list[str], threads: int = 1, root: Path | None = None
) -> Path:
    """Beside the output stands a file with its key and its own digest: an output is taken again if both are right.
    Includes are found beside the file or from the root."""
    nvcc = find_nvcc()
    if nvcc is None:
        sys.exit(f"{NOT_FOUND}: {REMEDY}")
    source = source.resolve()
    output = folder / f"{name_of(source)}.fatbin"
    options = options_of(archs, flags)
    key, note = key_of(source, options, flags, nvcc, root), output.with_suffix(".key")
    if made_before(output, key):
        return output
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch, output.name)
        include = [f"-I{root}"] if root else []
        command = [str(nvcc), *options, *include, f"--threads={threads}", "-o", str(made), str(source)]
        print(" ".join(command), flush=True)
        if subprocess.run(command).returncode != 0:
            reason = "see above" if preprocesses_cxx() else "it needs a C++ compiler and its headers: install g++"
            sys.exit(f"nvfp4: nvcc could not compile {source.name}, {reason}; NVFP4_CUDA=0 builds for the CPU alone.")
        record = f"{key} {sha256(made.read_bytes())}"
        made.replace(output)
    if key and key == key_of(source, options, flags, nvcc, root):  # else a file was changed meanwhile
        note.write_text(record)
    return output


def check_folder(folder: Path) -> None:
    """Stops a build in a folder whose name the assembler would not read back from a string of C."""
    path = str(folder.resolve())
    if not path.isprintable() or '"' in path or "\\" in path:
        sys.exit(f"nvfp4: the build folder is {path!r}; must have no quote, backslash or line feed: move the checkout.")


def write_fatbins(archs_of: dict[Path, list[str]], folder: Path, flags: list[str], root: Path | None = None) -> None:
    """Compiles every source, the longest work first, and writes fatbins.inc, which csrc/driver/fatbin.c includes and
    which does not compile without the macros of a debug build: its kernels have other parameters."""
    check_folder(folder)
    cores = os.cpu_count() or 1
    threads = max(1, cores // max(1, len(archs_of)))
    longest_first = sorted(archs_of, key=lambda source: -len(archs_of[source]) * source.stat().st_size)
    with ThreadPoolExecutor(cores) as pool:
        work = {s: pool.submit(compile_fatbin, s, archs_of[s], folder, flags, threads, root) for s in longest_first}
        try:
            fatbins = {source: future.result() for source, future in work.items()}
        finally:
            pool.shutdown(cancel_futures=True)
    macros = [name for name in DEBUG if f"-D{name}" in flags]
    lines = [f"#ifndef {name}\n#error build/cuda has the code of a build with {name}\n#endif\n" for name in macros]
    all_archs: list[str] = []
    for source, archs in archs_of.items():
        lines.append(f'FATBIN({name_of(source)}, "{fatbins[source].resolve()}", "{" ".join(archs)}")\n')
        all_archs += [arch for arch in archs if arch not in all_archs]
    lines += ["#undef FATBIN_ARCHS\n", f'#define FATBIN_ARCHS "{" ".join(all_archs)}"\n']
    (folder / "fatbins.inc").write_text("".join(lines))
