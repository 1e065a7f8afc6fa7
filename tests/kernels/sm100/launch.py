"""Launches the kernels of csrc/kernels/sm100/gemm.cu on the emulated B200 directly: any instantiation, split_k and
swap_ab, whether the plan would choose it or not, and several launches back to back.

The structs are those of csrc/kernels/common/problem.h and csrc/kernels/sm100/config.h; the instantiations are read from
the header."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "emulator"))
from emulate import Emulator, Module  # noqa: E402

CSRC = ROOT / "csrc"
VIRTUAL = {"sm90": "compute_90a", "sm100": "compute_100f"}  # architectures that the PTX is for
UINT8, UINT16 = 0, 1  # CUtensorMapDataType
NO_SWIZZLE, SWIZZLE_128 = 0, 3  # CUtensorMapSwizzle
FP16, BF16, FP32 = 4, 5, 6  # OUT_*
EVICT_FIRST, EVICT_LAST = 0x12F0000000000000, 0x14F0000000000000
VALUES = numpy.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


@dataclass(frozen=True)
class Config:
    """A row of SM100_GEMM_CONFIGS."""

    name: str
    cta_group: int
    mma_tile_n: int
    stages: int
    accumulators: int
    cp_async: int

    @property
    def kernel(self) -> str:
        return f"nvfp4_{self.name}"

    @property
    def threads(self) -> int:
        return 320 if self.cp_async else 192

    @property
    def mma_tile_m(self) -> int:
        return 128 * self.cta_group

    @property
    def shared_bytes(self) -> int:
        stage = 16384 + self.mma_tile_n // self.cta_group * 128 + 2048 * (1 + -(-self.mma_tile_n // 128))
        return self.stages * stage + 16 * self.stages + 48

    def partials_bytes(self, split_k: int) -> int:
        """Additional shared memory of a split-K launch, for partial sums."""
        return (split_k - 1) * (self.mma_tile_n // split_k) * 512


def configs() -> dict[str, Config]:
    rows = re.findall(r"X\((sm100_gemm_\w+), ([\d, ]+)\)", (CSRC / "kernels/sm100/config.h").read_text())
    return {name: Config(name, *map(int, numbers.split(","))) for name, numbers in rows}


@functools.cache
def compile_ptx(source: Path, *options: str, family: str = "sm100") -> str:
    """nvcc's PTX for the family, cached in the temporary folder under a hash of all device code."""
    folders = (CSRC / "kernels/common", CSRC / f"kernels/{family}")
    files = [source, *(path for folder in folders for path in sorted(folder.iterdir()))]
    content = b"\0".join(path.read_bytes() for path in files)
    key = hashlib.sha256(" ".join(options).encode() + content).hexdigest()[:20]
    folder = Path(tempfile.gettempdir()) / f"nvfp4-{family}-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    path = folder / f"{source.stem}-{key}.ptx"
    if not path.exists():
        made = folder / f"{path.name}.{os.getpid()}"
        command = ["nvcc", "-ptx", f"-arch={VIRTUAL[family]}", f"-I{CSRC}", *options, "-o", str(made), str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{source.name} does not compile:\n{done.stderr}")
        made.rename(path)
    return path.read_text()


def gemm_ptx(*options: str) -> str:
    return compile_ptx(CSRC / "kernels/sm100/gemm.cu", *options)


def only_entry(ptx: str, name: str) -> str:
    """The module's text with only that entry: loading and proving take time in proportion to the entries."""
    head, *entries = re.split(r"^(?=(?:\t|//.*\n)*\.visible \.entry )", ptx, flags=re.MULTILINE)
    return head + next(text for text in entries if re.search(rf"\.entry {name}\(", text))


class TensorMap(ctypes.Structure):
    _fields_ = [("opaque", ctypes.c_uint8 * 128)]


class Problem(ctypes.Structure):
    """gemm_problem."""

    _fields_ = (
        [(name, ctypes.c_int64) for name in ("m", "n", "k", "l")]
        + [(name, ctypes.c_uint64) for name in ("a", "b")]
        + [(name, ctypes.c_int64) for name in ("a_pitch", "b_pitch", "a_batch", "b_batch")]
        + [(name, ctypes.c_uint64) for name in ("sfa", "sfb")]
        + [(name, ctypes.c_int64) for name in ("sfa_pitch", "sfb_pitch", "sfa_batch", "sfb_batch")]
        + [("out", ctypes.c_uint64), ("out_pitch", ctypes.c_int64), ("out_batch", ctypes.c_int64)]
        + [("c", ctypes.c_uint64), ("c_pitch", ctypes.c_int64), ("c_batch", ctypes.c_int64)]
        + [("alpha", ctypes.c_uint64), ("alpha_stride", ctypes.c_int64), ("bias", ctypes.c_uint64)]
        + [("alpha_value", ctypes.c_float), ("beta", ctypes.c_float)]
        + [(name, ctypes.c_int32) for name in ("scale_layout", "out_type", "bias_type", "aligned16")]
    )


class Operand(ctypes.Structure):
    """sm100_operand."""

    _fields_ = (
        [("values", TensorMap), ("scales", TensorMap)]
        + [("data", ctypes.c_uint64), ("scale", ctypes.c_uint64)]
        + [(name, ctypes.c_int64) for name in ("pitch", "batch", "scale_pitch", "scale_batch")]
        + [("cache_policy", ctypes.c_uint64), ("rows", ctypes.c_int32), ("padding", ctypes.c_int32)]
    )


class Schedule(ctypes.Structure):
    """sm100_schedule."""

    _fields_ = (
        [("mma_a", Operand), ("mma_b", Operand)]
        + [(name, ctypes.c_int32) for name in ("tiles", "tiles_mma_m", "tiles_mma_n", "split_k", "k_stages", "swap_ab")]
        + [(name, ctypes.c_int32) for name in ("values_by_tma", "prefetch_stages")]
        + [(name, ctypes.c_int32) for name in ("partials_in_stages", "padding")]
        + [("alignment", ctypes.c_uint8 * 24)]  # the struct's is 64
    )


def swizzle_scales(scales: numpy.ndarray, padding: int) -> numpy.ndarray:
    """[L, R, S] to the 128x4 layout, [L, ceil(R/128), ceil(S/4), 512], padded with that byte."""
    l, rows, columns = scales.shape
    blocks, atoms = -(-rows // 128), -(-columns // 4)
    padded = numpy.full((l, blocks * 128, atoms * 4), padding, numpy.uint8)
    padded[:, :rows, :columns] = scales
    # (l, block, j, i, atom, s) of row 32j + i to (l, block, atom, i, j, s)
    return padded.reshape(l, blocks, 4, 32, atoms, 4).transpose(0, 1, 4, 3, 2, 5).reshape(l, blocks, atoms, 512)


def decode(data: numpy.ndarray, scales: numpy.ndarray) -> numpy.ndarray:
    """Values times scales in float64: data [L, R, K/2], scales [L, R, K/16] of the set below."""
    values = numpy.stack([VALUES[data & 15], VALUES[data >> 4]], axis=-1).reshape(*data.shape[:2], -1)
    return values * numpy.repeat(E4M3[scales], 16, axis=-1)


def rounded(values: numpy.ndarray, out_type: int) -> numpy.ndarray:
    """fp32 numbers rounded to nearest even to that type, as fp32."""
    single = values.astype("f4")
    if out_type == FP16:
        return single.astype("f2").astype("f4")
    if out_type == BF16:
        bits = single.view("u4")
        return (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).view("f4")
    return single


def e4m3(byte: int) -> float:
    exponent, mantissa = byte >> 3 & 15, byte & 7
    if byte & 127 == 127:
        return float("nan")
    return mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)


E4M3 = numpy.array([e4m3(byte) for byte in range(256)])
INTEGER_SCALES = numpy.array([0x00, 0x38, 0x40, 0x44], numpy.uint8)  # 0, 1, 2, 3
NAN = 0x7F


class Product:
    """One product on the emulator: random operands, NaN padding, a poisoned result between guard bytes.

    Sums are exact in fp32 as long as 324 K <= 2^22: equal bits in any order of summation.
    """

    def __init__(
        self,
        emulator: Emulator,
        generator: numpy.random.Generator,
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
        self.out_type, self.item = out_type, 4 if out_type == FP32 else 2
        self.data, self.scales, self.arrays = [], [], []
        for rows in (m, n):
            data = generator.integers(0, 256, (l, rows, self.pitch), numpy.uint8)
            scales = generator.choice(INTEGER_SCALES, (l, rows, k // 16))
            if not integer:
                scales = generator.integers(0x28, 0x48, (l, rows, k // 16), numpy.uint8)
            self.data.append(data)
            self.scales.append(scales)
            placed = scales if linear else swizzle_scales(scales, NAN)
            self.arrays += [emulator.array(data), emulator.array(placed if placed.size else numpy.zeros(1, "u1"))]
        self.out_pitch = (n * self.item // out_align + 2) * out_align  # guard bytes behind each row
        self.out = emulator.empty((l, m, self.out_pitch), numpy.uint8)
        self.add: Product | None = None  # whose result is c, with beta = 1

    def problem(self) -> Problem:
        a, sfa, b, sfb = (array.address for array in self.arrays)
        scale_pitch = self.k // 16 if self.linear else -(-self.k // 64) * 512
        rows = (self.m, self.n) if self.linear else (-(-self.m // 128), -(-self.n // 128))
        add = self.add
        return Problem(
            c=add.out.address if add else 0, c_pitch=add.out_pitch if add else 0,
            c_batch=add.m * add.out_pitch if add else 0, beta=1.0,
            m=self.m, n=self.n, k=self.k, l=self.l, a=a, b=b, a_pitch=self.pitch, b_pitch=self.pitch,
            a_batch=self.m * self.pitch, b_batch=self.n * self.pitch, sfa=sfa, sfb=sfb,
            sfa_pitch=scale_pitch, sfb_pitch=scale_pitch, sfa_batch=rows[0] * scale_pitch,
            sfb_batch=rows[1] * scale_pitch, out=self.out.address, out_pitch=self.out_pitch,
            out_batch=self.m * self.out_pitch, alpha_value=1.0, scale_layout=int(self.linear), out_type=self.out_type,
            bias_type=FP32, aligned16=int(self.pitch % 16 == 0),
        )  # fmt: skip

    def operand(self, config: Config, which: int, box_rows: int, atoms: int, cache_policy: int) -> Operand:
        p = self.problem()
        data, scale = self.arrays[2 * which : 2 * which + 2]
        rows = (self.m, self.n)[which]
        operand = Operand(
            data=data.address, scale=scale.address, pitch=self.pitch, batch=rows * self.pitch,
            scale_pitch=p.sfa_pitch, scale_batch=(p.sfa_batch, p.sfb_batch)[which], rows=rows,
            cache_policy=cache_policy,
        )  # fmt: skip
        if self.k and p.aligned16:
            encoded = self.emulator.tensor_map(
                UINT8, data, (self.k // 2, rows, self.l), (self.pitch, rows * self.pitch), (128, box_rows, 1),
                swizzle=SWIZZLE_128,
            )  # fmt: skip
            operand.values.opaque[:] = encoded
        if self.k and config.cta_group == 2:
            blocks, columns = -(-rows // 128), -(-self.k // 64)
            encoded = self.emulator.tensor_map(
                UINT16, scale, (256, columns, blocks, self.l), (512, p.sfa_pitch, operand.scale_batch),
                (256, 4, atoms, 1), swizzle=NO_SWIZZLE,
            )  # fmt: skip
            operand.scales.opaque[:] = encoded
        return operand

    def schedule(self, config: Config, swap_ab: bool, split_k: int, in_stages: bool = False) -> Schedule:
        mma_a, mma_b = (1, 0) if swap_ab else (0, 1)
        rows = (self.m, self.n)
        tiles_mma_m, tiles_mma_n = -(-rows[mma_a] // config.mma_tile_m), -(-rows[mma_b] // config.mma_tile_n)
        return Schedule(
            mma_a=self.operand(config, mma_a, 128, 1, EVICT_FIRST),
            mma_b=self.operand(
                config, mma_b, config.mma_tile_n // config.cta_group, -(-config.mma_tile_n // 128), EVICT_LAST
            ),
            tiles=tiles_mma_m * tiles_mma_n * self.l, tiles_mma_m=tiles_mma_m, tiles_mma_n=tiles_mma_n, split_k=split_k,
            k_stages=-(-self.k // 256), swap_ab=int(swap_ab), values_by_tma=int(self.pitch % 16 == 0),
            prefetch_stages=3, partials_in_stages=int(in_stages),
        )  # fmt: skip

    def launch(
        self,
        module: Module,
        config: Config,
        swap_ab: bool = True,
        split_k: int = 1,
        clusters: int = 0,
        wait: bool = True,
        in_stages: bool | None = None,
    ) -> None:
        """clusters: of the grid; 0: one a tile. in_stages: whether partial sums replace the stages; None: if they do
        not fit behind them."""
        more = config.partials_bytes(split_k)
        if in_stages is None:
            in_stages = split_k > 1 and config.shared_bytes + more > 227 * 1024
        schedule = self.schedule(config, swap_ab, split_k, in_stages)
        cluster = config.cta_group * split_k
        self.emulator.launch(
            module[config.kernel],
            grid=(clusters or schedule.tiles) * cluster,
            block=config.threads,
            args=[bytes(self.problem()), bytes(schedule)],
            shared=config.shared_bytes + (0 if in_stages else more),
            cluster=cluster,
            programmatic=True,
            wait=wait,
        )

    def expected(self) -> numpy.ndarray:
        half = self.k // 2
        a, b = (decode(d[:, :, :half], s) for d, s in zip(self.data, self.scales))
        return numpy.einsum("lmk,lnk->lmn", a, b)

    def result(self) -> numpy.ndarray:
        rows = numpy.ascontiguousarray(self.out.numpy()[:, :, : self.n * self.item])
        if self.out_type == BF16:  # the upper half of fp32
            found = (rows.view("u2").astype("u4") << 16).view("f4")
        else:
            found = rows.view("f4" if self.out_type == FP32 else "f2").astype("f4")
        return found.reshape(self.l, self.m, self.n)

    def untouched(self) -> bool:
        return bool((self.out.numpy()[:, :, self.n * self.item :] == 0xFF).all())

    def check(self) -> None:
        expected = rounded(self.expected(), self.out_type)
        got = self.result()
        wrong = numpy.argwhere(~(got == expected))
        assert not len(wrong), (
            f"{len(wrong)} of {got.size} wrong, first at {wrong[0].tolist()}: "
            f"{got[tuple(wrong[0])]} for {expected[tuple(wrong[0])]}"
        )
        assert self.untouched(), "wrote outside the result"
