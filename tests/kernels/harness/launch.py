"""Launches kernels on the emulated GPU without the planner: any instantiation, split_k and swap_ab, several launches
back to back. A backend adds its operands and schedule to Product (sm90/gemm.py, sm100/gemm.py)."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy
from emulate import Array, Emulator, Module
from paths import CSRC, ROOT

from harness.hardware import Hardware
from harness.headers import Config, Struct, headers_of
from harness.values import (
    FP32,
    INTEGER_SCALES,
    ceil_div,
    decode,
    loaded,
    rounded,
    stored,
    swizzle_scales,
)

sys.path.append(str(ROOT / "build_backend"))

import nvfp4_cuda  # noqa: E402  (it lies in build_backend)

UINT8, UINT16 = 0, 1  # CUtensorMapDataType
NO_SWIZZLE, SWIZZLE_64, SWIZZLE_128 = 0, 2, 3  # CUtensorMapSwizzle
EVICT_FIRST, EVICT_LAST = 0x12F0000000000000, 0x14F0000000000000
SHARED_LIMIT = 227 * 1024  # of a CTA
ON_HARDWARE = os.environ.get("SM100_HARDWARE") == "1"

Problem = headers_of("sm90").structs["gemm_problem"]
TensorMap = headers_of("sm90").structs["tensor_map"]
Generator = numpy.random.Generator


def own_folder(name: str) -> Path:
    """A folder of the temporary directory that nobody else can write to: its files are run, and anybody can make one of
    this name first."""
    folder = Path(tempfile.gettempdir()) / name
    folder.mkdir(0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder}: must be a folder that belongs to this user and that nobody else can write to")
    return folder


def normalized(ptx: str) -> str:
    """The text without comments and blank lines, and with single spaces."""
    lines = (" ".join(line.partition("//")[0].split()) for line in ptx.splitlines())
    return "".join(f"{line}\n" for line in lines if line)


def built_ptx(source: Path, name: str) -> str | None:
    """The PTX that a build has left in build/cuda, if it was made from the file as it is now."""
    if not source.is_relative_to(CSRC):
        return None
    arch = nvfp4_cuda.virtual(CSRC / "backends.def", name)
    ptx = nvfp4_cuda.left_by_a_build(source, arch, ROOT / "build/cuda", [], CSRC)
    return None if ptx is None else ptx.rstrip(b"\0").decode()


@functools.cache
def compile_ptx(source: Path, name: str, *options: str) -> str:
    """The PTX for the backend of that name, normalized: that of a build; with options, or if the file has changed
    since, nvcc's, which takes up to 24 s and is cached in the temporary folder under a hash of its device code."""
    options += ("-DNVFP4_WATCHDOG",) * ON_HARDWARE  # a hang ends, and its place is named
    built = None if options else built_ptx(source, name)
    if built is not None:
        return normalized(built)
    shared = ("common", "kernels/common", "kernels/quantize", "kernels/units")
    folders = [source.parent, *(CSRC / folder for folder in shared), CSRC / "kernels" / name]
    files = [source, *(path for folder in folders for path in sorted(folder.iterdir()) if path.is_file())]
    content = b"\0".join(path.read_bytes() for path in files)
    key = hashlib.sha256(" ".join(options).encode() + content).hexdigest()[:20]
    folder = own_folder(f"nvfp4-{name}-{os.getuid()}")
    path = folder / f"{source.stem}-{key}.ptx"
    if not path.exists():
        made = folder / f"{path.name}.{os.getpid()}"
        arch = nvfp4_cuda.virtual(CSRC / "backends.def", name)
        command = ["nvcc", "-ptx", f"-arch={arch}", f"-I{CSRC}", *options, "-o", str(made), str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{source.name} does not compile:\n{done.stderr}")
        made.rename(path)
    return normalized(path.read_text())


def ptx_of(config: Config, *options: str) -> str:
    """The PTX of the file with that instantiation."""
    return compile_ptx(config.source, config.headers.name, *options)


@functools.lru_cache(64)
def only_entry(ptx: str, name: str) -> str:
    """The module's text with only that entry: loading and proving take time in proportion to the entries. Splitting a
    megabyte takes 50 ms, which a test of many launches would pay for each."""
    head, *entries = re.split(r"^(?=\.visible \.entry )", ptx, flags=re.MULTILINE)
    return head + next(text for text in entries if re.search(rf"\.entry {name}\(", text))


def shared_limit(config: Config) -> int:
    """Bytes of shared memory that a CTA of its GPU may have."""
    return 99 * 1024 if config.headers.name == "sm120" else SHARED_LIMIT


def device_of(name: str) -> str:
    """The emulated GPU of a backend."""
    return name.replace("sm", "sm_")


def timing(random: Generator, case: int) -> int:
    """A seed; four cases in a row have each kind of timing once. The test and the session choose that of case 0."""
    first = int(random.bit_generator.seed_seq.generate_state(1)[0])
    return int(random.integers(2**30)) * 4 + (first + case) % 4


def load(config: Config, seed: int, tmem_base: int = 0) -> tuple[Emulator, Module]:
    """A GPU of the config's backend, and the module with that kernel alone. SM100_HARDWARE=1: this machine's GPU."""
    print(f"{config.name}, seed {seed}")
    emulator = Hardware() if ON_HARDWARE else Emulator(device_of(config.headers.name), seed=seed, tmem_base=tmem_base)
    return emulator, emulator.load(only_entry(ptx_of(config), config.kernel))


class Product:
    """One product: random operands, NaN padding, a poisoned result between guard bytes.

    Sums are exact in fp32 as long as 324 K <= 2^22: equal bits in any order of summation.
    """

    def __init__(
        self,
        emulator: Emulator,
        generator: Generator,
        m: int,
        n: int,
        k: int,
        l: int = 1,
        out_type: int = FP32,
        linear: bool = False,
        pitch: int = 0,
        integer: bool = True,
        out_align: int = 16,  # of the rows of the result
    ) -> None:
        self.emulator, self.m, self.n, self.k, self.l, self.linear = emulator, m, n, k, l, linear
        self.pitch = pitch or k // 2
        self.data, self.scales, self.arrays = [], [], []
        for rows in (m, n):
            data = generator.integers(0, 256, (l, rows, self.pitch), numpy.uint8)
            scales = generator.choice(INTEGER_SCALES, (l, rows, k // 16))
            if not integer:
                scales = generator.integers(0x28, 0x48, (l, rows, k // 16), numpy.uint8)
            self.data.append(data)
            self.scales.append(scales)
            placed = scales if linear else swizzle_scales(scales)
            self.arrays += [emulator.array(data), emulator.array(placed if placed.size else numpy.zeros(1, "u1"))]
        self.place_result(out_type, out_align)

    def place_result(self, out_type: int, out_align: int) -> None:
        """Makes the result, [L, M, N], and no term of the epilogue."""
        self.out_type, self.item = out_type, 4 if out_type == FP32 else 2
        self.out_pitch = (self.n * self.item // out_align + 2) * out_align  # guard bytes behind each row
        self.out = self.emulator.empty((self.l, self.m, self.out_pitch), numpy.uint8)
        self.add: Product | None = None  # whose result is c, with beta = 1
        self.shared: int | None = None  # the operand, 0 or 1, that all batches share
        self.extras: dict[str, float] = {}  # other fields of the problem
        self.kept: dict[str, Array] = {}  # by field of the problem
        self.alpha: numpy.ndarray | float = 1.0
        self.added: numpy.ndarray | float = 0.0

    # ---- the epilogue's other terms

    def set_epilogue(
        self,
        generator: Generator,
        alpha: Literal["value", "one", "vector"] = "value",
        bias: int | None = None,
        c: Literal["none", "apart", "out"] = "none",
    ) -> None:
        """bias: its type. c: in memory of its own, or aliasing out."""
        self.alpha, self.added = numpy.ones(self.n), 0.0
        if alpha == "vector":
            self.alpha = generator.choice([0.5, 1.0, -1.0, 2.0], self.n)
            self.keep(self.alpha.astype("f4"), "alpha", alpha_stride=1)
        elif alpha == "one":
            self.alpha *= 0.5
            self.keep(self.alpha[:1].astype("f4"), "alpha", alpha_stride=0)
        else:
            self.alpha *= -2.0
            self.extras["alpha_value"] = -2.0
        if bias is not None:
            numbers = generator.integers(-8, 9, self.n) / 4
            self.keep(stored(numbers, bias), "bias", bias_type=bias)
            self.added = self.added + numbers
        if c != "none":
            numbers = generator.integers(-8, 9, (self.l, self.m, self.n)).astype("f4")
            self.place_c(numbers, 0.5, in_place=c == "out")
            self.added = self.added + 0.5 * numbers

    def keep(self, data: numpy.ndarray, name: str, **form: float) -> None:
        """Makes an array that a field of the problem points to."""
        self.kept[name] = self.emulator.array(data)
        self.extras |= {name: self.kept[name].address, **form}

    def memory(self, name: str) -> Array:
        """The array that this pointer of the problem points to."""
        named = dict(zip(("a", "scale_a", "b", "scale_b"), self.arrays)) | {"out": self.out} | self.kept
        return named[name]

    def place_c(self, numbers: numpy.ndarray, beta: float, in_place: bool) -> None:
        rows = numpy.full((self.l, self.m, self.out_pitch), 0xFF, "u1")
        rows[:, :, : self.n * self.item] = stored(numbers, self.out_type).view("u1").reshape(self.l, self.m, -1)
        form = {"c_pitch": self.out_pitch, "c_batch": self.m * self.out_pitch, "beta": beta}
        if in_place:
            self.out.numpy()[...] = rows
            self.extras |= {"c": self.out.address, **form}
        else:
            self.keep(rows, "c", **form)

    def share(self, which: int) -> None:
        """Makes all batches use the first batch of an operand."""
        self.shared = which
        self.data[which] = numpy.repeat(self.data[which][:1], self.l, axis=0)
        self.scales[which] = numpy.repeat(self.scales[which][:1], self.l, axis=0)

    # ---- parameters

    def rows(self, which: int) -> int:
        return (self.m, self.n)[which]

    def batches(self, which: int) -> int:
        return 1 if which == self.shared else self.l

    def problem(self) -> Struct:
        a, scale_a, b, scale_b = (array.address for array in self.arrays)
        scale_pitch = self.k // 16 if self.linear else ceil_div(self.k, 64) * 512
        rows = (self.m, self.n) if self.linear else (ceil_div(self.m, 128), ceil_div(self.n, 128))
        add = self.add
        made = Problem(
            c=add.out.address if add else 0, c_pitch=add.out_pitch if add else 0,
            c_batch=add.m * add.out_pitch if add else 0, beta=1.0,
            m=self.m, n=self.n, k=self.k, l=self.l, a=a, b=b, a_pitch=self.pitch, b_pitch=self.pitch,
            a_batch=self.m * self.pitch, b_batch=self.n * self.pitch, scale_a=scale_a, scale_b=scale_b,
            scale_a_pitch=scale_pitch, scale_b_pitch=scale_pitch, scale_a_batch=rows[0] * scale_pitch,
            scale_b_batch=rows[1] * scale_pitch, out=self.out.address, out_pitch=self.out_pitch,
            out_batch=self.m * self.out_pitch, alpha_value=1.0, scale_layout=int(self.linear), out_type=self.out_type,
            bias_type=FP32, aligned16=int(self.pitch % 16 == 0),
        )  # fmt: skip
        if self.shared is not None:
            for name in (("a_batch", "scale_a_batch"), ("b_batch", "scale_b_batch"))[self.shared]:
                setattr(made, name, 0)
        for name, value in self.extras.items():
            setattr(made, name, value)
        return made

    def placed(self, which: int) -> dict[str, int]:
        """The place of an operand in memory, by the names that the backends' operands have."""
        p = self.problem()
        data, scale = self.arrays[2 * which : 2 * which + 2]
        return {
            "data": data.address, "scale": scale.address, "pitch": self.pitch, "batch": (p.a_batch, p.b_batch)[which],
            "scale_pitch": (p.scale_a_pitch, p.scale_b_pitch)[which],
            "scale_batch": (p.scale_a_batch, p.scale_b_batch)[which], "rows": self.rows(which),
        }  # fmt: skip

    def tensor_map(
        self, kind: int, array: Array, dims: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...],
        swizzle: int = NO_SWIZZLE,
    ) -> Struct:  # fmt: skip
        return TensorMap.from_buffer_copy(self.emulator.tensor_map(kind, array, dims, strides, box, swizzle=swizzle))

    def values_map(self, which: int, box: tuple[int, ...], swizzle: int = NO_SWIZZLE) -> Struct:
        """The tensor map of an operand's e2m1 values; box: bytes along K, rows, 1."""
        rows = self.rows(which)
        dims, strides = (self.k // 2, rows, self.batches(which)), (self.pitch, rows * self.pitch)
        return self.tensor_map(UINT8, self.arrays[2 * which], dims, strides, box, swizzle)

    def schedule(self, config: Config, swap_ab: bool, split_k: int, in_stages: bool = False, **division: Any) -> Struct:
        raise NotImplementedError

    def clusters(self, config: Config, schedule: Struct, split_k: int, **division: Any) -> int:
        """The clusters of a grid that computes everything."""
        return schedule.tiles

    def grid(self, config: Config, split_k: int, clusters: int) -> tuple[int | tuple[int, ...], int]:
        """The grid, and the CTAs of a cluster."""
        raise NotImplementedError

    # ---- a launch and its result

    def launch(
        self,
        module: Module,
        config: Config,
        swap_ab: bool = True,
        split_k: int = 1,
        clusters: int = 0,
        wait: bool = True,
        in_stages: bool | None = None,
        **division: Any,
    ) -> None:
        """clusters: of the grid; 0: all that the schedule needs. in_stages: whether partial sums replace the stages;
        None: only if there is no other room. division: the backend's other arguments of schedule()."""
        more = config.partials_bytes(split_k)
        if in_stages is None:
            in_stages = split_k > 1 and config.shared_bytes + more > SHARED_LIMIT
        schedule = self.schedule(config, swap_ab, split_k, in_stages, **division)
        grid, cluster = self.grid(config, split_k, clusters or self.clusters(config, schedule, split_k, **division))
        self.start(module, config, schedule, grid, config.shared_bytes + (0 if in_stages else more), cluster, wait)

    def start(
        self, module: Module, config: Config, schedule: Struct, grid: int | tuple[int, ...], shared: int,
        cluster: int | None = None, wait: bool = True,
    ) -> None:  # fmt: skip
        self.emulator.launch(
            module[config.kernel], grid=grid, block=config.threads, args=[bytes(self.problem()), bytes(schedule)],
            shared=shared, cluster=cluster, programmatic=True, wait=wait,
        )  # fmt: skip

    def decoded(self, which: int) -> numpy.ndarray:
        """[L, rows, K] in float64."""
        return decode(self.data[which][:, :, : self.k // 2], self.scales[which])

    def expected(self) -> numpy.ndarray:
        """In float64, where sums of these numbers are exact in any order: matmul's is the fastest."""
        return self.decoded(0) @ self.decoded(1).swapaxes(1, 2) * self.alpha + self.added

    def result(self) -> numpy.ndarray:
        rows = numpy.ascontiguousarray(self.out.numpy()[:, :, : self.n * self.item])
        return loaded(rows, self.out_type).reshape(self.l, self.m, self.n)

    def untouched(self) -> bool:
        return bool((self.out.numpy()[:, :, self.n * self.item :] == 0xFF).all())

    def check(self, expected: numpy.ndarray | None = None) -> None:
        """expected: before the rounding to the output's type."""
        wanted = rounded(self.expected() if expected is None else expected, self.out_type)
        got = self.result()
        wrong = numpy.argwhere(~(got == wanted))
        assert not len(wrong), (
            f"{len(wrong)} of {got.size} wrong, first at {wrong[0].tolist()}: "
            f"{got[tuple(wrong[0])]} for {wanted[tuple(wrong[0])]}"
        )
        assert self.untouched(), "wrote outside the result"


def chain(calls: list[Product]) -> list[Product]:
    """Each call adds the result of the one before."""
    for before, call in zip(calls, calls[1:]):
        call.add = before
    return calls


def check_chain(calls: list[Product]) -> None:
    """Every one of them, after they have ended."""
    total: Any = 0
    for call in calls:
        total = total + call.expected()
        call.check(total)
