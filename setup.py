"""Builds nvfp4/_C.abi3.so: the C core, its Python module and the device code. Everything else is in pyproject.toml.

Environment: NVFP4_CUDA=0 builds for the CPU alone; NVFP4_ARCHS="sm_90 sm_120" compiles machine code for these GPUs
alone; NVFP4_NVRTC names the NVRTC to use; NVFP4_WERROR=1 makes warnings errors; NVFP4_NVRTC_FLAGS are given to it too
(-lineinfo for profilers and compute-sanitizer); NVFP4_DUMP=1 and NVFP4_WATCHDOG=1 add code for debugging
(docs/debugging.md); NVFP4_SANITIZE=1 compiles the C code with AddressSanitizer and UBSan, whose libraries have to be
loaded before Python (.ci/full).
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import shlex
import shutil
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import setuptools
from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()
sys.path.insert(0, str(ROOT / "build_backend"))

import nvfp4_cuda  # noqa: E402  (it lies in build_backend)

if int(setuptools.__version__.split(".")[0]) < 77:  # as pyproject.toml asks, which a build without isolation ignores
    sys.exit(f"nvfp4: building needs setuptools 77 or later, this is {setuptools.__version__}.")

DEBUG = [name for name in nvfp4_cuda.DEBUG if os.environ.get(name, "0") == "1"]
WERROR = os.environ.get("NVFP4_WERROR", "0") == "1"
SANITIZERS = ["-fsanitize=address,undefined"] if os.environ.get("NVFP4_SANITIZE", "0") == "1" else []
CFLAGS = ["-std=c11", "-Wall", "-Wextra", "-fvisibility=hidden", "-fexceptions", *SANITIZERS]
# Python's own flags have -fwrapv, with which no signed overflow is undefined.
CFLAGS += ["-O1", "-g1", "-fno-wrapv", "-fno-sanitize-recover=all"] if SANITIZERS else ["-O3", "-g0"]


# Flags under which the compiler changes results, or a program starts with subnormal numbers flushed.
UNSAFE = ("-ffast-math", "-Ofast", "-funsafe-math-optimizations", "-ffinite-math-only", "-fassociative-math")
UNSAFE += ("-freciprocal-math", "-fno-signed-zeros", "-mdaz-ftz", "-ffp-model=fast")


def check_flags() -> None:
    """Stops a build with flags of the environment that would change results."""
    for name in ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS"):
        for flag in os.environ.get(name, "").split():
            if flag in UNSAFE:
                sys.exit(f"nvfp4: {name} has {flag}, which changes results; must not have it.")


def check_python() -> None:
    """Stops a build for a Python without the limited API, which the module is written in."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        sys.exit(
            f"nvfp4: this Python {sys.version.split()[0]} is free-threaded, which Python's limited API does not "
            "support; must be an ordinary build of Python 3.10 or later."
        )


def version() -> str:
    return re.search(r'#define NVFP4_VERSION\s+"(.+)"', (ROOT / "csrc/nvfp4.h").read_text())[1]


def relative(pattern: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern))


@functools.cache
def one_at_a_time() -> None:
    """All that a build leaves in build/ is that of one: another one waits here until this process has ended."""
    try:
        (ROOT / "build").mkdir(exist_ok=True)
        lock = os.open(ROOT / "build" / "lock", os.O_CREAT | os.O_RDWR)
    except OSError as error:
        sys.exit(f"nvfp4: {error.filename}: {error.strerror}; must be writable: build in a copy of the sources.")
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(lock, fcntl.LOCK_EX)


class Build(build):
    def run(self) -> None:
        one_at_a_time()
        # Files that an earlier build left here would be packed too, those of deleted sources included.
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class BuildExt(build_ext):
    def finalize_options(self) -> None:
        super().finalize_options()
        self.force = True  # flags, environment and images may have changed as well as files

    def build_extension(self, ext: Extension) -> None:
        if nvfp4_cuda.wanted():
            folder = ROOT / "build" / "cuda"
            flags = shlex.split(os.environ.get("NVFP4_NVRTC_FLAGS", "")) + [f"-D{name}" for name in DEBUG]
            sources = [ROOT / name for name in relative("csrc/kernels/**/*.cu")]
            folder.mkdir(parents=True, exist_ok=True)
            all_archs = {s: nvfp4_cuda.architectures(ROOT / "csrc/backends.def", s.parent.name) for s in sources}
            known = set(sum(all_archs.values(), []))
            archs = {s: nvfp4_cuda.chosen(all_archs[s], known) for s in sources}
            nvfp4_cuda.write_images(archs, folder, flags, ROOT / "csrc", strict=WERROR)
            ext.define_macros.append(("NVFP4_CUDA", "1"))
            ext.include_dirs.append(str(folder))

        # The module links nothing of Python's, so the interpreter's own search paths have no place in it.
        self.compiler.linker_so = [a for a in self.compiler.linker_so if not a.startswith(("-L", "-Wl,-rpath"))]
        compile_one = self.compiler.compile

        def compile_all(sources: list[str], **options: object) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return sum(pool.map(lambda source: compile_one([source], **options), sources), [])

        self.compiler.compile = compile_all
        link = self.compiler.link_shared_object

        def link_whole(objects: list[str], output: str, **options: object) -> None:
            """A link that is interrupted leaves the module of before, or none."""
            link(objects, f"{output}.part", **options)
            os.replace(f"{output}.part", output)

        self.compiler.link_shared_object = link_whole
        super().build_extension(ext)

    def run(self) -> None:
        one_at_a_time()
        super().run()
        if not self.inplace:
            # `python -m nvfp4` in a checkout imports the nvfp4 folder it stands in, not the installed package.
            why = why_it_stays()
            if why:
                print(f"nvfp4: {MODULE.relative_to(ROOT)} stays as it is in this checkout: {why}.")
                return
            self.copy_extensions_to_source()
        NOTE.write_text(f"{digest_of(MODULE)}{IN_PLACE * self.inplace}{GPU * nvfp4_cuda.wanted()}\n")


# The checkout's own module, and a note of the build that put it there: the module's digest and these words.
MODULE, NOTE = ROOT / "nvfp4" / "_C.abi3.so", ROOT / "build" / "module"
IN_PLACE, GPU = " in-place", " gpu"


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def why_it_stays() -> str:
    """Why an installation, into this environment or another one, must not replace the checkout's module; "": it may."""
    note = NOTE.read_text() if NOTE.is_file() and MODULE.is_file() else ""
    if not note.startswith(digest_of(MODULE) if note else " "):
        return ""
    if IN_PLACE in note:
        return "it was built in place, for an editable installation"
    return "it has GPU code, and this build has none" if GPU in note and not nvfp4_cuda.wanted() else ""


check_python()
check_flags()
setup(
    version=version(),
    ext_modules=[
        Extension(
            "nvfp4._C",
            sources=relative("csrc/**/*.c"),
            include_dirs=["csrc"],
            define_macros=[("Py_LIMITED_API", "0x030A0000")] + [(name, "1") for name in DEBUG],
            extra_compile_args=CFLAGS + ["-Werror"] * WERROR,
            extra_link_args=SANITIZERS or ["-Wl,-s"],
            libraries=["m", "dl", "pthread"],
            py_limited_api=True,
        )
    ],
    cmdclass={"build": Build, "build_ext": BuildExt},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
