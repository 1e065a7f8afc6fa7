"""Finds NVRTC and compiles each .cu file to images, machine code and PTX, unless nothing that goes into them has
changed. As a program it prints the wheels that have NVRTC and its headers, for `pip install`."""

from __future__ import annotations

import functools
import hashlib
import lzma
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import nvrtc

# 12.9, the last one of CUDA 12: drivers from R525 on load its machine code, and it knows sm_100f and sm_120f.
WHEELS = [
    "nvidia-cuda-nvrtc-cu12==12.9.86",
    "nvidia-cuda-runtime-cu12==12.9.79",  # cuda_fp16.h, cuda_bf16.h
    "nvidia-cuda-cccl-cu12==12.9.27",  # nv/target, which they include
]
OLDEST = (12, 9)  # up to 12.8 ptxas serializes the wgmma instructions of sm90/gemm.cu (benchmarks/log/cuda12.csv)
DEBUG = ("NVFP4_DUMP", "NVFP4_WATCHDOG")  # macros of debug builds, whose kernels have other parameters
NOT_FOUND = "nvfp4: NVRTC 12.9 was not found (looked at $NVFP4_NVRTC and for NVIDIA's wheels)"
REMEDY = (
    "`pip install " + " ".join(WHEELS) + "`, or set NVFP4_NVRTC to a toolkit's libnvrtc.so of 12.9 or later, or set "
    "NVFP4_CUDA=0 to build for the CPU alone."
)


def wanted() -> bool:
    return os.environ.get("NVFP4_CUDA", "1") != "0"


def required_wheels() -> list[str]:
    """The packages that a build environment needs besides setuptools."""
    return WHEELS if wanted() and find_compiler() is None else []


@dataclass(frozen=True)
class Compiler:
    library: Path
    includes: tuple[Path, ...]

    @functools.cached_property
    def version(self) -> tuple[int, int]:
        return nvrtc.version(self.library)

    @functools.cached_property
    def digest(self) -> str:
        """Identifies it by its version and by the contents of libraries and headers: one can be exchanged alone."""
        parts = [self.library, *self.library.resolve().parent.glob("libnvrtc-builtins.so*")]
        parts += [path for folder in self.includes for name in ("*.h", "*.hpp", "nv/*") for path in folder.glob(name)]
        contents = (
            part for path in sorted(filter(Path.is_file, parts)) for part in (path.name.encode(), path.read_bytes())
        )
        return sha256(str(self.version).encode(), repr(nvrtc.HEADERS).encode(), *contents)

    def command(self, source: Path, arch: str, output: Path, flags: list[str], root: Path | None) -> list[str]:
        folders = [source.parent, *([root] if root else []), *self.includes]
        include = [f"-I{folder}" for folder in folders]
        return [sys.executable, nvrtc.__file__, str(self.library), str(source), arch, str(output), *include, *flags]


def from_wheels() -> Compiler | None:
    for entry in sys.path:
        top = Path(entry, "nvidia")
        library, runtime = top / "cuda_nvrtc/lib/libnvrtc.so.12", top / "cuda_runtime/include"
        if library.is_file() and (runtime / "cuda_fp16.h").is_file():
            return Compiler(library, (runtime, top / "cuda_cccl/include"))
    return None


def from_toolkit(library: Path) -> Compiler:
    """The NVRTC that NVFP4_NVRTC names, with the headers of its toolkit, lib64/../include or targets/.../include."""
    tops = library.resolve().parents[:3]
    include = next((top / "include" for top in tops if (top / "include/cuda_fp16.h").is_file()), None)
    if include is None:
        sys.exit(
            f"nvfp4: NVFP4_NVRTC is {library}; must be in a CUDA toolkit, whose include/cuda_fp16.h was not found."
        )
    return Compiler(library, tuple(path for path in (include, include / "cccl") if path.is_dir()))


def checked(compiler: Compiler, name: str) -> Compiler:
    try:
        found = compiler.version
    except OSError as error:
        sys.exit(f"nvfp4: {name}: is no NVRTC that can be loaded: {error}")
    if found < OLDEST:
        sys.exit(f"nvfp4: {name}: is NVRTC {found[0]}.{found[1]}; must be {OLDEST[0]}.{OLDEST[1]} or later.")
    for header in ("cuda_fp16.h", "cuda_bf16.h", "nv/target"):
        if not any((folder / header).is_file() for folder in compiler.includes):
            sys.exit(f"nvfp4: {name}: has no {header} beside it; {REMEDY}")
    return compiler


def find_compiler() -> Compiler | None:
    named = os.environ.get("NVFP4_NVRTC")
    if named:
        if not Path(named).is_file():
            sys.exit(f"nvfp4: NVFP4_NVRTC is {named}, which is not a file; must be a toolkit's libnvrtc.so.")
        return checked(from_toolkit(Path(named)), f"NVFP4_NVRTC, {named}")
    found = from_wheels()
    if found is None or found.version < OLDEST:  # torch's own wheels bring an older one
        return None
    return checked(found, str(found.library))


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


# PTX that is another architecture's but for its first lines: that of Thor, which came with PTX 9.0 and its driver.
RETARGETED = {"compute_110f": ("compute_100f", b".version 9.0", b".target sm_110f")}


def passes(archs: Iterable[str]) -> dict[str, list[str]]:
    """The compiler's runs, and the images that come from each: machine code and PTX of one architecture together."""
    runs: dict[str, list[str]] = {}
    for arch in archs:
        name = RETARGETED.get(arch, (arch,))[0].partition("_")[2]
        runs.setdefault(name, []).append(arch)
    return {("sm_" if f"sm_{name}" in made else "compute_") + name: made for name, made in runs.items()}


def retargeted(ptx: bytes, arch: str) -> bytes:
    if arch not in RETARGETED:
        return ptx
    _, version, target = RETARGETED[arch]
    ptx, versions = re.subn(rb"^\.version .*$", version, ptx, flags=re.M)
    ptx, targets = re.subn(rb"^\.target .*$", target, ptx, flags=re.M)
    assert versions == targets == 1
    return ptx


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


# Flags that name no file whose contents would count.
PLAIN_FLAG = re.compile(r"-D.+|-G|-lineinfo")
# csrc/driver/lzma.h has the same parameters. The window is as large as any image.
COMPRESSION = [{"id": lzma.FILTER_LZMA1, "preset": 9, "dict_size": 1 << 24, "lc": 3, "lp": 0, "pb": 2}]


def key_of(source: Path, arch: str, flags: list[str], root: Path | None) -> str | None:
    """The key of all that an image is made from but the compiler; None where that is unclear, and it has to be made
    anew."""
    files = inputs(source, root)
    if files is None or not all(map(PLAIN_FLAG.fullmatch, flags)):
        return None
    words = [arch.partition("_")[2], *nvrtc.OPTIONS, *flags]
    return sha256("\0".join(words).encode(), *(path.read_bytes() for path in files))


def name_of(source: Path) -> str:
    """The name of a kernel file's images: its folder and stem."""
    return f"{source.parent.name}_{source.stem}"


def path_of(source: Path, arch: str, folder: Path) -> Path:
    """A compressed image's. Beside it NAME.ARCH.key has its key, the compiler's digest, its own and its bytes."""
    return folder / f"{name_of(source)}.{arch}"


def note_of(image: Path) -> Path:
    return image.with_name(f"{image.name}.key")


def packed(code: bytes) -> bytes:
    return lzma.compress(code, lzma.FORMAT_RAW, filters=COMPRESSION)


def unpacked(path: Path) -> bytes:
    return lzma.decompress(path.read_bytes(), lzma.FORMAT_RAW, filters=COMPRESSION)


def made_before(image: Path, key: str | None, compiler: Compiler | None = None) -> bool:
    """Whether a build has left this image from what the key identifies, and, if it is given, by the compiler."""
    note = note_of(image)
    if key is None or not image.is_file() or not note.is_file():
        return False
    known, by, digest = note.read_text().split()[:3]
    return known == key and (not compiler or by == compiler.digest) and digest == sha256(image.read_bytes())


def bytes_of(image: Path) -> int:
    """The size of an image, unpacked."""
    return int(note_of(image).read_text().split()[3])


def left_by_a_build(source: Path, arch: str, folder: Path, flags: list[str], root: Path) -> bytes | None:
    """The image that a build has left in the folder, unpacked, if it was made from the file as it is now."""
    image = path_of(source, arch, folder)
    return unpacked(image) if made_before(image, key_of(source.resolve(), arch, flags, root)) else None


@dataclass(frozen=True)
class Build:
    """How images are made. Includes are found beside a file or from the root."""

    compiler: Compiler
    folder: Path
    flags: list[str]
    root: Path | None
    strict: bool  # what the compiler says is an error

    def make(self, source: Path, arch: str, made: list[str]) -> str:
        """Makes the images of one of the passes, unless they are there. Returns what the compiler said."""
        key = key_of(source, arch, self.flags, self.root)
        if all(made_before(path_of(source, name, self.folder), key, self.compiler) for name in made):
            return ""
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            output = Path(scratch, "image")
            command = self.compiler.command(source, arch, output, self.flags, self.root)
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            said = done.stdout.decode(errors="replace")
            if done.returncode != 0 or (self.strict and said):
                failed = f"NVRTC ended with {done.returncode}" if done.returncode else "its warnings are errors here"
                sys.exit(f"{said}\nnvfp4: {source.name} could not be compiled for {arch}, {failed}; see above.")
            if key != key_of(source, arch, self.flags, self.root):  # a file was changed meanwhile
                key = None
            for name in made:
                suffix = ".ptx" if name.startswith("compute_") else ".cubin"
                code = retargeted(output.with_suffix(suffix).read_bytes(), name)
                small = packed(code)
                note = f"{key} {self.compiler.digest} {sha256(small)} {len(code)}\n"
                image = path_of(source, name, self.folder)
                for content, path in (
                    (small, image),
                    (note.encode(), note_of(image)),
                ):  # a note of another is not believed
                    part = output.with_name(path.name)
                    part.write_bytes(content)
                    part.replace(path)
        return said


def table(images: Iterable[tuple[str, str, Path, int]], toolkit: tuple[int, int] = OLDEST) -> str:
    """The content of images.inc. An image has the name of its file, its architecture, its path and its bytes."""
    rows = list(images)
    archs = " ".join(dict.fromkeys(arch for _, arch, *_ in rows))
    lines = [f'IMAGE({name}, {arch}, "{path}", {size})' for name, arch, path, size in rows]
    lines += ["#undef IMAGE_ARCHS", f'#define IMAGE_ARCHS "{archs}"']
    lines += ["#undef IMAGE_TOOLKIT", f"#define IMAGE_TOOLKIT {1000 * toolkit[0] + 10 * toolkit[1]}"]
    return "".join(f"{line}\n" for line in lines)


def check_folder(folder: Path) -> None:
    """Stops a build in a folder whose name the assembler would not read back from a string of C."""
    path = str(folder.resolve())
    if not path.isprintable() or '"' in path or "\\" in path:
        sys.exit(f"nvfp4: the build folder is {path!r}; must have no quote, backslash or line feed: move the checkout.")


class Progress:
    """A line for each pass that is done. pip shows them with -v."""

    def __init__(self, count: int) -> None:
        self.count, self.done, self.lock = count, 0, threading.Lock()

    def line(self, source: Path, arch: str, seconds: float, said: str) -> None:
        with self.lock:
            self.done += 1
            print(f"nvfp4: [{self.done}/{self.count}] {name_of(source)} for {arch}, {seconds:.0f} s", flush=True)
            if said:
                print(said, flush=True)


def write_images(
    archs_of: dict[Path, list[str]], folder: Path, flags: list[str], root: Path | None = None, *, strict: bool = False
) -> None:
    """Compiles every source, the longest work first, and writes images.inc, which csrc/driver/image.c includes and
    which does not compile without the macros of a debug build: its kernels have other parameters."""
    check_folder(folder)
    compiler = find_compiler() if archs_of else None
    if archs_of and compiler is None:
        sys.exit(f"{NOT_FOUND}: {REMEDY}")
    archs_of = {source.resolve(): archs for source, archs in archs_of.items()}
    work = [(source, arch, made) for source, archs in archs_of.items() for arch, made in passes(archs).items()]
    work.sort(key=lambda item: -item[0].stat().st_size)
    progress = Progress(len(work))

    def make(source: Path, arch: str, made: list[str]) -> None:
        assert compiler is not None
        start = time.monotonic()
        said = Build(compiler, folder, flags, root, strict).make(source, arch, made)
        progress.line(source, arch, time.monotonic() - start, said)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        futures = [pool.submit(make, *item) for item in work]
        try:
            for future in futures:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)
    macros = [name for name in DEBUG if f"-D{name}" in flags]
    guards = (f"#ifndef {name}\n#error build/cuda has the code of a build with {name}\n#endif\n" for name in macros)
    images = [
        (name_of(source), arch, path_of(source, arch, folder).resolve())
        for source, archs in archs_of.items()
        for arch in archs
    ]
    rows = ((name, arch, path, bytes_of(path)) for name, arch, path in images)
    (folder / "images.inc").write_text("".join(guards) + table(rows, compiler.version if compiler else OLDEST))


if __name__ == "__main__":
    print(*WHEELS)
