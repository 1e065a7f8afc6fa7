"""Launches the kernels of csrc/kernels/sm90/gemm.cu on the emulated H200 without the planner: any instantiation,
split_k, order of the operands and place of the partial sums, and several launches in a row.

The structs mirror csrc/kernels/common/problem.h and csrc/kernels/sm90/gemm_config.h. A C program that includes the
header prints the instantiations and their launch parameters. Operands and results are as in sm100/launch.py."""

from __future__ import annotations

import ctypes
import functools
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import sm100.launch
from emulate import Array
from sm100.launch import (
    BF16,
    CSRC,
    EVICT_FIRST,
    EVICT_LAST,
    FP32,
    NO_SWIZZLE,
    SWIZZLE_128,
    UINT8,
    UINT16,
    Module,
    Problem,
    TensorMap,
    compile_ptx,
    decode,
)

STAGE_K = 128
SPLITS = range(1, 9)
SHARED_LIMIT = 227 * 1024  # of a CTA
ASK_THE_HEADER = r"""
#include <stddef.h>
#include <stdio.h>
#include "kernels/common/problem.h"
#include "kernels/sm90/gemm_config.h"
#define ROW(id, %(numbers)s)                                                                                          \
    printf("\"%%s\": {\"mma_tile_m\": %%d, \"mma_tile_n\": %%d, \"threads\": %%d, \"shared_bytes\": %%d, ", #id,      \
           SM90_MMA_TILE_M(math_warpgroups, wgmmas_m), mma_tile_n, SM90_THREADS(math_warpgroups),              \
           SM90_SHARED_BYTES(%(shared)s));                                                                            \
    printf("\"dequant_b_in_kernel\": %%s, ", SM90_DEQUANT_B_IN_KERNEL(mma_tile_n) ? "true" : "false");              \
    printf("\"partials_bytes\": [0");                                                                                 \
    for (int split = 1; split <= 8; split++)                                                                         \
        printf(", %%d", SM90_PARTIALS_BYTES(math_warpgroups, wgmmas_m, mma_tile_n, split));                          \
    printf("], \"partial_tile_bytes\": %%d}, ", SM90_PARTIAL_TILE_BYTES(math_warpgroups, wgmmas_m, mma_tile_n));
int main(void) {
    printf("{");
    SM90_GEMM_CONFIGS(ROW)
    printf("\"layout\": [%%zu, %%zu, %%zu, %%zu, %%zu, %%zu, %%zu]}\n", sizeof(gemm_problem),
           offsetof(sm90_mma_a_operand, rows), offsetof(sm90_schedule, mma_b), sizeof(sm90_dequant_operand),
           sizeof(sm90_schedule), offsetof(sm90_schedule, partials_in_stages), offsetof(sm90_schedule, fixup_flags));
}
"""


@dataclass(frozen=True)
class Config:
    """A row of SM90_GEMM_CONFIGS and its launch parameters."""

    name: str
    numbers: dict[str, int]  # of the row, by the column names of the header
    mma_tile_m: int
    mma_tile_n: int
    threads: int
    shared_bytes: int
    dequant_b_in_kernel: bool
    partials_bytes: list[int]  # by split_k; additional dynamic shared memory unless partials_in_stages
    partial_tile_bytes: int  # of a stream-K worker

    @property
    def kernel(self) -> str:
        return f"nvfp4_{self.name}"

    @property
    def row(self) -> str:
        return ", ".join([self.name, *map(str, self.numbers.values())])


@functools.cache
def configs() -> dict[str, Config]:
    header = (CSRC / "kernels/sm90/gemm_config.h").read_text()
    names = re.search(r"/\* +id, ([\w, ]+) \*/\n#define SM90_GEMM_CONFIGS", header)[1]
    shared = re.search(r"#define SM90_SHARED_BYTES\(([\w, ]+)\)", header)[1]
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "ask.c"), Path(folder, "ask")
        source.write_text(ASK_THE_HEADER % {"numbers": names, "shared": shared})
        subprocess.run(["cc", f"-I{CSRC}", "-o", str(program), str(source)], check=True)
        answer = json.loads(subprocess.run([program], check=True, capture_output=True, text=True).stdout)
    layout = [ctypes.sizeof(Problem), MmaAOperand.rows.offset, Schedule.mma_b.offset, ctypes.sizeof(DequantOperand)]
    layout += [ctypes.sizeof(Schedule), Schedule.partials_in_stages.offset, Schedule.fixup_flags.offset]
    assert answer.pop("layout") == layout, "the structs of this file differ from those of csrc"
    rows = {name: map(int, row.split(",")) for name, row in re.findall(r"X\((sm90_gemm_\w+), ([\d, ]+)\)", header)}
    return {name: Config(name, dict(zip(names.split(", "), rows[name])), **more) for name, more in answer.items()}


def gemm_ptx(*options: str) -> str:
    return compile_ptx(CSRC / "kernels/sm90/gemm.cu", *options, family="sm90")


class MmaAOperand(ctypes.Structure):
    """sm90_mma_a_operand, padded as in the schedule."""

    _fields_ = (
        [("values", TensorMap), ("scale", ctypes.c_uint64)]
        + [(name, ctypes.c_int64) for name in ("scale_pitch", "scale_batch")]
        + [("cache_policy", ctypes.c_uint64), ("rows", ctypes.c_int32), ("padding", ctypes.c_int32)]
        + [("alignment", ctypes.c_uint8 * 24)]  # of the structs: 64
    )


class MmaBOperand(ctypes.Structure):
    """sm90_mma_b_operand, padded as in the schedule."""

    _fields_ = (
        [("values", TensorMap), ("cache_policy", ctypes.c_uint64), ("rows", ctypes.c_int32), ("shared", ctypes.c_int32)]
        + [("alignment", ctypes.c_uint8 * 48)]
    )  # fmt: skip


class DequantOperand(ctypes.Structure):
    """sm90_dequant_operand."""

    _fields_ = (
        [("data", ctypes.c_uint64), ("scale", ctypes.c_uint64)]
        + [(name, ctypes.c_int64) for name in ("pitch", "batch", "scale_pitch", "scale_batch")]
        + [("to", ctypes.c_uint64), ("rows", ctypes.c_int32), ("padding", ctypes.c_int32)]
    )


class Schedule(ctypes.Structure):
    """sm90_schedule."""

    _fields_ = (
        [("mma_a", MmaAOperand), ("mma_b", MmaBOperand), ("mma_b_e2m1", DequantOperand)]
        + [(name, ctypes.c_int32) for name in ("tiles", "tiles_mma_m", "tiles_mma_n", "split_k", "stages_per_split")]
        + [
            (name, ctypes.c_int32)
            for name in ("splits_with_one_more", "swap_ab", "partials_in_stages", "dp_tiles", "k_stages")
        ]
        + [(name, ctypes.c_int32) for name in ("worker_clusters", "streamk_stages", "worker_stages")]
        + [(name, ctypes.c_uint32) for name in ("inv_streamk_stages", "inv_worker_stages", "inv_split_k")]
        + [(name, ctypes.c_uint64) for name in ("partial_tiles", "fixup_flags")]
        + [("alignment", ctypes.c_uint8 * 48)]
    )


@dataclass(frozen=True)
class StreamK:
    """The division of work of a stream-K kernel, as in sm90_schedule."""

    worker_clusters: int
    streamk_stages: int
    worker_stages: int
    dp_tiles: int = 0


def dequantized(data: numpy.ndarray, scales: numpy.ndarray) -> numpy.ndarray:
    """The output of kernels/sm90/dequant.cu, [L, R, 64 ceil(K/64)] fp16: of 64 values along K, 16-byte chunk 4w + q has
    pair q of word w of the four scale groups; all values times 2^-6."""
    values = decode(data, scales) / 64
    l, rows, k = values.shape
    padded = numpy.zeros((l, rows, -(-k // 64) * 64), "f2")
    padded[:, :, :k] = values
    groups = padded.reshape(l, rows, -1, 4, 2, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]]
    groups = groups.reshape(l, rows, -1, 4, 2, 4, 2)  # block, group, word, pair, of two
    return numpy.ascontiguousarray(groups.transpose(0, 1, 2, 4, 5, 3, 6)).reshape(padded.shape)


def stored(values: numpy.ndarray, kind: int) -> numpy.ndarray:
    """The bytes of values that the type holds, [..., bytes]."""
    single = numpy.ascontiguousarray(values, "f4")
    if kind == BF16:
        return (single.view("u4") >> 16).astype("u2").view("u1")
    return single.astype("f4" if kind == FP32 else "f2").view("u1")


class Product(sm100.launch.Product):
    """One product on the emulated H200."""

    workspace: Array  # dequantized mma_b
    partial_tiles: Array  # of stream-K workers
    fixup_flags: Array
    extras: dict[str, float] | None = None  # fields of the problem; None without set_epilogue()
    kept: list[Array]
    scale: numpy.ndarray
    added: numpy.ndarray | float

    def set_epilogue(
        self,
        generator: numpy.random.Generator,
        alpha: Literal["value", "one", "vector"] = "value",
        bias: int | None = None,
        c: Literal["none", "apart", "out"] = "none",
    ) -> None:
        """Other terms of the epilogue. bias: its type. c: in memory of its own, or aliasing out."""
        self.scale, self.added, self.extras, self.kept = numpy.ones(self.n), 0.0, {}, []
        if alpha == "vector":
            self.scale = generator.choice([0.5, 1.0, -1.0, 2.0], self.n)
            self.keep(self.scale.astype("f4"), "alpha", alpha_stride=1)
        elif alpha == "one":
            self.scale *= 0.5
            self.keep(self.scale[:1].astype("f4"), "alpha", alpha_stride=0)
        else:
            self.scale *= -2.0
            self.extras["alpha_value"] = -2.0
        if bias is not None:
            numbers = generator.integers(-8, 9, self.n) / 4
            self.keep(stored(numbers, bias), "bias", bias_type=bias)
            self.added = self.added + numbers
        if c != "none":
            numbers = generator.integers(-8, 9, (self.l, self.m, self.n)).astype("f4")
            rows = numpy.full((self.l, self.m, self.out_pitch), 0xFF, "u1")
            rows[:, :, : self.n * self.item] = stored(numbers, self.out_type)
            form = {"c_pitch": self.out_pitch, "c_batch": self.m * self.out_pitch, "beta": 0.5}
            if c == "out":
                self.out.numpy()[...] = rows
                self.extras |= {"c": self.out.address, **form}
            else:
                self.keep(rows, "c", **form)
            self.added = self.added + 0.5 * numbers

    def keep(self, data: numpy.ndarray, name: str, **form: float) -> None:
        self.kept.append(self.emulator.array(data))
        self.extras |= {name: self.kept[-1].address, **form}

    def problem(self) -> Problem:
        made = super().problem()
        for name, value in (self.extras or {}).items():
            setattr(made, name, value)
        return made

    def expected(self) -> numpy.ndarray:
        product = super().expected()
        return product * self.scale + self.added if self.extras else product

    def mma_a_operand(self, which: int, box_rows: int) -> MmaAOperand:
        p = self.problem()
        data, scale = self.arrays[2 * which : 2 * which + 2]
        rows = (self.m, self.n)[which]
        operand = MmaAOperand(
            scale=scale.address, scale_pitch=p.sfa_pitch, scale_batch=(p.sfa_batch, p.sfb_batch)[which],
            cache_policy=EVICT_FIRST, rows=rows,
        )  # fmt: skip
        if self.k:
            encoded = self.emulator.tensor_map(
                UINT8, data, (self.k // 2, rows, self.l), (self.pitch, rows * self.pitch), (64, box_rows, 1),
                swizzle=NO_SWIZZLE,
            )  # fmt: skip
            operand.values.opaque[:] = encoded
        return operand

    def mma_b_operand(self, which: int, box_rows: int) -> MmaBOperand:
        rows = (self.m, self.n)[which]
        operand = MmaBOperand(cache_policy=EVICT_LAST, rows=rows)
        if self.k:
            made = dequantized(self.data[which][:, :, : self.k // 2], self.scales[which])
            self.workspace = self.emulator.array(made.view("u2"))
            pitch = made.shape[2] * 2
            encoded = self.emulator.tensor_map(
                UINT16, self.workspace, (made.shape[2], rows, self.l), (pitch, rows * pitch), (64, box_rows, 1),
                swizzle=SWIZZLE_128,
            )  # fmt: skip
            operand.values.opaque[:] = encoded
        return operand

    def dequant_operand(self, which: int) -> DequantOperand:
        p = self.problem()
        data, scale = self.arrays[2 * which : 2 * which + 2]
        rows = (self.m, self.n)[which]
        return DequantOperand(
            data=data.address, scale=scale.address, pitch=self.pitch, batch=rows * self.pitch,
            scale_pitch=p.sfa_pitch, scale_batch=(p.sfa_batch, p.sfb_batch)[which], rows=rows,
        )  # fmt: skip

    def schedule(
        self, config: Config, swap_ab: bool, split_k: int, in_stages: bool = False, streamk: StreamK | None = None
    ) -> Schedule:
        mma_a, mma_b = (1, 0) if swap_ab else (0, 1)
        rows = (self.m, self.n)
        tiles_mma_m = -(-rows[mma_a] // config.mma_tile_m)
        tiles_mma_n = -(-rows[mma_b] // config.mma_tile_n)
        stages = -(-self.k // STAGE_K) - (streamk.streamk_stages if streamk else 0)
        in_kernel = config.dequant_b_in_kernel
        made = Schedule(
            mma_a=self.mma_a_operand(mma_a, config.mma_tile_m),
            mma_b=MmaBOperand(rows=rows[mma_b]) if in_kernel else self.mma_b_operand(mma_b, config.mma_tile_n),
            mma_b_e2m1=self.dequant_operand(mma_b) if in_kernel else DequantOperand(),
            tiles=tiles_mma_m * tiles_mma_n * self.l, tiles_mma_m=tiles_mma_m, tiles_mma_n=tiles_mma_n,
            split_k=split_k, stages_per_split=stages // split_k,
            splits_with_one_more=stages % split_k, swap_ab=int(swap_ab), partials_in_stages=int(in_stages),
            inv_split_k=-(-(2**31) // split_k),
        )  # fmt: skip
        if streamk:
            self.set_streamk(made, config, streamk)
        return made

    def set_streamk(self, made: Schedule, config: Config, streamk: StreamK) -> None:
        """A workspace of its own, with zero flags, as the dequantize pre-pass leaves them."""
        workers = streamk.worker_clusters * made.split_k
        room = (workers + made.tiles - streamk.dp_tiles) * config.partial_tile_bytes
        self.partial_tiles = self.emulator.array(numpy.full(room, 0xFF, "u1"))
        self.fixup_flags = self.emulator.array(numpy.zeros(workers, "u4"))
        made.dp_tiles, made.k_stages = streamk.dp_tiles, -(-self.k // STAGE_K)
        made.worker_clusters, made.streamk_stages = streamk.worker_clusters, streamk.streamk_stages
        made.worker_stages = streamk.worker_stages
        made.inv_streamk_stages, made.inv_worker_stages = (
            -(-(2**31) // streamk.streamk_stages),
            -(-(2**31) // streamk.worker_stages),
        )
        made.partial_tiles, made.fixup_flags = self.partial_tiles.address, self.fixup_flags.address

    def launch(
        self,
        module: Module,
        config: Config,
        swap_ab: bool = True,
        split_k: int = 1,
        clusters: int = 0,
        wait: bool = True,
        in_stages: bool | None = None,
        streamk: StreamK | None = None,
    ) -> None:
        """clusters: of the grid; 0: one a tile. in_stages: partials_in_stages; None: only if there is no other room."""
        more = config.partials_bytes[split_k]
        if in_stages is None:
            in_stages = split_k > 1 and config.shared_bytes + more > SHARED_LIMIT
        schedule = self.schedule(config, swap_ab, split_k, in_stages, streamk)
        if streamk:
            clusters = streamk.worker_clusters + schedule.tiles - streamk.dp_tiles
        self.emulator.launch(
            module[config.kernel],
            grid=(split_k, clusters or schedule.tiles),
            block=config.threads,
            args=[bytes(self.problem()), bytes(schedule)],
            shared=config.shared_bytes + (0 if in_stages else more),
            cluster=split_k,
            programmatic=True,
            wait=wait,
        )
