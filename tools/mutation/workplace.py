"""A copy of the checkout in which one mutant after another is built and tested.

Host code is compiled with -O1, device code to PTX alone, which the emulated GPU runs. Only what includes the mutated
file is compiled again. Where the checkout's build has left PTX of the same source, that serves until the first mutant
of that source.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from mutant import Mutant
from suites import Arguments

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "build_backend"))

import nvfp4_cuda  # noqa: E402  (it lies in build_backend)

CFLAGS = [
    "-std=c11",
    "-O1",
    "-fvisibility=hidden",
    "-fexceptions",
    "-g0",
    "-fPIC",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-DPy_LIMITED_API=0x030A0000",
    "-DNVFP4_CUDA=1",
]


NO_END = "no end"


class Broken(Exception):
    """The mutant does not compile."""


@dataclass
class Workplace:
    folder: Path
    cores: list[int]
    objects: dict[Path, bytes] = field(default_factory=dict)  # of the unchanged sources, by the files that are made
    said: str = ""  # by the last test that failed
    bytes_of: dict[Path, int] = field(default_factory=dict)  # the image of a source, unpacked
    unchanged: dict[Arguments, bool] = field(default_factory=dict)  # whether these tests end early without a mutant

    @property
    def root(self) -> Path:
        return self.folder / "checkout"

    @property
    def made(self) -> Path:
        return self.folder / "made"

    @classmethod
    def create(cls, checkout: Path, folder: Path, cores: list[int]) -> Workplace:
        """Copies what git tracks, and the emulator's build."""
        listed = subprocess.run(["git", "ls-files", "-zco", "--exclude-standard"], cwd=checkout, capture_output=True)
        names = [name.decode() for name in listed.stdout.split(b"\0") if name]
        names = [name for name in names if os.path.lexists(checkout / name)]
        if listed.returncode:  # not a repository: a copy of one
            files = [path.relative_to(checkout) for path in checkout.rglob("*") if path.is_file() or path.is_symlink()]
            names = [str(path) for path in files if path.parts[0] not in ("build", ".git") and path.suffix != ".so"]
        subprocess.run(["make", "-s", "-C", "emulator", f"-j{len(cores)}"], cwd=checkout, check=True)
        made = [path for path in (checkout / "emulator/build").rglob("*") if path.is_file()]
        names += [str(path.relative_to(checkout)) for path in made]
        place = cls(folder, cores)
        for name in names:
            (place.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(checkout / name, place.root / name, follow_symlinks=False)
        (folder / "tmp").mkdir()
        place.made.mkdir()
        return place

    def copy(self, folder: Path, cores: list[int]) -> Workplace:
        shutil.copytree(self.folder, folder, symlinks=True)
        other = Workplace(folder, cores)
        other.objects = {folder / path.relative_to(self.folder): data for path, data in self.objects.items()}
        other.bytes_of = {folder / path.relative_to(self.folder): size for path, size in self.bytes_of.items()}
        other.write_table()
        other.compile([other.root / "csrc/driver/image.c"])
        other.objects[other.output(other.root / "csrc/driver/image.c")] = b""  # names this folder
        other.link()
        return other

    # ---- building

    def sources(self) -> list[Path]:
        csrc = self.root / "csrc"
        return sorted(csrc.rglob("*.c")) + sorted((csrc / "kernels").rglob("*.cu"))

    def virtual(self, source: Path) -> str:
        """The architecture of its PTX; emulated GPUs of later generations run it too."""
        return nvfp4_cuda.virtual(self.root / "csrc/backends.def", source.parent.name)

    def output(self, source: Path) -> Path:
        name = "-".join(source.relative_to(self.root / "csrc").parts)
        return self.made / (name + (".ptx" if source.suffix == ".cu" else ".o"))

    def compile(self, sources: list[Path]) -> None:
        with ThreadPoolExecutor(len(self.cores)) as pool:
            list(pool.map(self.compile_one, sources))

    def compile_one(self, source: Path) -> None:
        output = self.output(source)
        if source.suffix == ".cu":
            arch = self.virtual(source)
            command = ["nvcc", "-ptx", f"-arch={arch}", f"-I{self.root}/csrc", "-o", str(output), str(source)]
        else:
            include = [f"-I{self.root}/csrc", f"-I{sysconfig.get_paths()['include']}", f"-I{self.made}"]
            command = ["gcc", *CFLAGS, *include, "-c", str(source), "-o", str(output)]
        if self.call(command, 300)[0]:
            raise Broken
        if source.suffix == ".cu":
            self.pack(source, output.read_bytes() + b"\0")

    def image(self, source: Path) -> Path:
        return self.output(source).with_suffix(".image")

    def pack(self, source: Path, ptx: bytes) -> None:
        """PTX into an image."""
        self.image(source).write_bytes(nvfp4_cuda.packed(ptx))
        self.bytes_of[source] = len(ptx)

    def write_table(self) -> None:
        sources = [path for path in self.sources() if path.suffix == ".cu"]
        rows = ((nvfp4_cuda.name_of(s), self.virtual(s), self.image(s), self.bytes_of[s]) for s in sources)
        (self.made / "images.inc").write_text(nvfp4_cuda.table(rows))

    def link(self) -> None:
        objects = [str(self.output(source)) for source in self.sources() if source.suffix == ".c"]
        module = self.root / "nvfp4/_C.abi3.so"
        module.unlink(missing_ok=True)  # a process may still have it open
        if self.call(["gcc", "-shared", "-Wl,-s", "-o", str(module), *objects, "-lm", "-ldl", "-lpthread"], 60)[0]:
            raise Broken

    def build_all(self, images: Path) -> None:
        """images: the folder in which the checkout's build leaves them."""
        device = [source for source in self.sources() if source.suffix == ".cu"]
        self.compile([source for source in device if not self.take(source, images)])
        self.write_table()
        self.compile([source for source in self.sources() if source.suffix == ".c"])
        self.objects = {path: path.read_bytes() for path in self.made.iterdir() if path.suffix in (".o", ".ptx")}
        self.link()

    def take(self, source: Path, images: Path) -> bool:
        """Takes the PTX that a build of this environment made of the source, if there is one."""
        flags = shlex.split(os.environ.get("NVFP4_NVRTC_FLAGS", ""))
        ptx = nvfp4_cuda.left_by_a_build(source, self.virtual(source), images, flags, self.root / "csrc")
        if ptx is not None:
            self.pack(source, ptx)
        return ptx is not None

    def compile_unchanged(self, sources: list[Path]) -> None:
        """Makes the PTX of sources whose PTX was taken from a build, with which that of a mutant is compared."""
        missing = [source for source in sources if self.output(source) not in self.objects]
        self.compile(missing)
        self.objects |= {self.output(source): self.output(source).read_bytes() for source in missing}

    def includers(self, file: str) -> list[Path]:
        """Sources that the file goes into. Of image.c, which includes what the build writes, itself alone."""
        path = (self.root / file).resolve()
        inputs = {source: nvfp4_cuda.inputs(source.resolve(), self.root / "csrc") for source in self.sources()}
        return [source for source, files in inputs.items() if source.resolve() == path or path in (files or ())]

    # ---- testing

    def call(self, command: list[str], seconds: float, cwd: Path | None = None) -> tuple[int | None, str]:
        """The exit status, None if it ran past the time, and the output."""
        environment = os.environ | {
            "TMPDIR": str(self.folder / "tmp"),
            "PYTHONPATH": os.pathsep.join([str(self.root), os.environ.get("PYTHONPATH", "")]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                ["taskset", "-c", ",".join(map(str, self.cores)), *command],
                cwd=cwd,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            if code is None or code:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # pytest's own processes
                process.wait()
            output.seek(0)
            return code, output.read().decode(errors="replace")

    def test(self, tests: tuple[Arguments, ...], seconds: float, seed: str) -> tuple[str, str]:
        """The first of them that fails, and what, or NO_END; ("", "") if none does."""
        for arguments in tests:
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "-rf"]
            os.environ["NVFP4_TEST_SEED"] = seed
            code, output = self.call([*command, *arguments], seconds, self.root / "tests")
            if code is None:
                return " ".join(arguments), NO_END
            if code:
                failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.M)
                self.said = output
                return " ".join(arguments), failed[0] if failed else output.strip()[-200:]
        return "", ""

    def ends_unchanged(self, arguments: Arguments, seconds: float, seed: str) -> bool:
        """Whether these tests take at most a third of the time without a mutant."""
        if arguments not in self.unchanged:
            self.link()
            self.unchanged[arguments] = self.test((arguments,), seconds / 3, seed) == ("", "")
        return self.unchanged[arguments]

    def run(self, one: Mutant, tests: tuple[Arguments, ...], seconds: float, seed: str) -> dict[str, object]:
        """The verdict: killed, survived, equivalent (the same machine code or PTX), broken (does not compile),
        unfinished (tests ran past the time, but the machine may just be slow)."""
        begin = time.monotonic()
        path = self.root / one.file
        original = path.read_bytes()
        verdict, by, what = "survived", "", ""
        changed: list[Path] = []
        try:
            including = self.includers(one.file)
            self.compile_unchanged(including)
            path.write_bytes(one.apply(original))
            changed = including
            self.compile(changed)
            made = [self.output(source) for source in changed]
            if all(output.read_bytes() == self.objects[output] for output in made):
                verdict = "equivalent"
            else:
                if any(source.suffix == ".cu" for source in changed):
                    self.compile([self.root / "csrc/driver/image.c"])
                self.link()
                by, what = self.test(tests, seconds, seed)
                verdict = "killed" if by else "survived"
        except Broken:
            verdict = "broken"
        finally:
            path.write_bytes(original)
            for source in changed:
                output = self.output(source)
                output.write_bytes(self.objects[output])
                if source.suffix == ".cu":
                    self.pack(source, self.objects[output] + b"\0")
            if changed:
                self.compile([self.root / "csrc/driver/image.c"])
        if what == NO_END and not self.ends_unchanged(next(t for t in tests if " ".join(t) == by), seconds, seed):
            verdict = "unfinished"
        return {"verdict": verdict, "by": by, "what": what, "seconds": round(time.monotonic() - begin, 1)}
