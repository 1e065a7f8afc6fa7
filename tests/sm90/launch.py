"""Launches the kernels of csrc/sm90_gemm.cu on the emulated H200 by hand: any instantiation, cut of K, order of the
operands and place of partial sums, whether plan.c would choose it or not, and several launches in a row.

The structs are those of csrc/device/problem.h and csrc/sm90_configs.h. The instantiations, with what their launch asks
for, are what a C program prints that includes that header. Operands and results are as in sm100/launch.py.
"""

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
#include "device/problem.h"
#include "sm90_configs.h"
#define ROW(id, %(numbers)s)                                                                                          \
    printf("\"%%s\": {\"tile_x\": %%d, \"tile_y\": %%d, \"threads\": %%d, \"shared_bytes\": %%d, ", #id,              \
           SM90_TILE_X(math_warpgroups, x_tiles), tile_y, SM90_THREADS(math_warpgroups),                      \
           SM90_SHARED_BYTES(%(shared)s));                                                                            \
    printf("\"y_raw\": %%s, ", SM90_Y_RAW(tile_y) ? "true" : "false");                                                 \
    printf("\"parts_bytes\": [0");                                                                                    \
    for (int split = 1; split <= 8; split++) printf(", %%d", SM90_PARTIALS_BYTES(math_warpgroups, x_tiles, tile_y, split));  \
    printf("], \"contribution_bytes\": %%d}, ", SM90_PARTIAL_TILE_BYTES(math_warpgroups, x_tiles, tile_y));
int main(void) {
    printf("{");
    SM90_GEMM_CONFIGS(ROW)
    printf("\"layout\": [%%zu, %%zu, %%zu, %%zu, %%zu, %%zu, %%zu]}\n", sizeof(gemm_problem),
           offsetof(sm90_operand, rows), offsetof(sm90_schedule, y), sizeof(sm90_dequant_operand), sizeof(sm90_schedule),
           offsetof(sm90_schedule, partials_in_stages), offsetof(sm90_schedule, fixup_flags));
}
"""


@dataclass(frozen=True)
class Config:
    """A row of SM90_GEMM_CONFIGS, and what follows from it."""

    name: str
    numbers: dict[str, int]  # of the row, by the names that the header gives
    tile_x: int
    tile_y: int
    threads: int
    shared_bytes: int
    y_raw: bool  # y is decoded by the kernel itself
    parts_bytes: list[int]  # by split_k; behind the barriers it is more shared memory that a launch asks for
    contribution_bytes: int  # of a helper, for a tile

    @property
    def kernel(self) -> str:
        return f"nvfp4_{self.name}"

    @property
    def row(self) -> str:
        return ", ".join([self.name, *map(str, self.numbers.values())])


@functools.cache
def configs() -> dict[str, Config]:
    header = (CSRC / "sm90_configs.h").read_text()
    names = re.search(r"/\* +id, ([\w, ]+) \*/\n#define SM90_GEMM_CONFIGS", header)[1]
    shared = re.search(r"#define SM90_SHARED_BYTES\(([\w, ]+)\)", header)[1]
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "ask.c"), Path(folder, "ask")
        source.write_text(ASK_THE_HEADER % {"numbers": names, "shared": shared})
        subprocess.run(["cc", f"-I{CSRC}", "-o", str(program), str(source)], check=True)
        said = json.loads(subprocess.run([program], check=True, capture_output=True, text=True).stdout)
    layout = [ctypes.sizeof(Problem), Operand.rows.offset, Schedule.y.offset, ctypes.sizeof(RawRows)]
    layout += [ctypes.sizeof(Schedule), Schedule.partials_in_stages.offset, Schedule.fixup_flags.offset]
    assert said.pop("layout") == layout, "the structs of this file are not those of csrc"
    rows = {name: map(int, row.split(",")) for name, row in re.findall(r"X\((sm90_gemm_\w+), ([\d, ]+)\)", header)}
    return {name: Config(name, dict(zip(names.split(", "), rows[name])), **more) for name, more in said.items()}


def gemm_ptx(*options: str) -> str:
    return compile_ptx(CSRC / "sm90_gemm.cu", *options, family="sm90")


class Operand(ctypes.Structure):
    """sm90_operand, as it lies in the schedule."""

    _fields_ = (
        [("values", TensorMap), ("scale", ctypes.c_uint64)]
        + [(name, ctypes.c_int64) for name in ("scale_pitch", "scale_batch")]
        + [("policy", ctypes.c_uint64), ("rows", ctypes.c_int32), ("padding", ctypes.c_int32)]
        + [("alignment", ctypes.c_uint8 * 24)]  # the structs' is 64
    )


class Expanded(ctypes.Structure):
    """sm90_mma_b_operand, as it lies in the schedule."""

    _fields_ = (
        [("values", TensorMap), ("policy", ctypes.c_uint64), ("rows", ctypes.c_int32), ("shared", ctypes.c_int32)]
        + [("alignment", ctypes.c_uint8 * 48)]
    )  # fmt: skip


class RawRows(ctypes.Structure):
    """sm90_dequant_operand, as it lies in the schedule."""

    _fields_ = (
        [("data", ctypes.c_uint64), ("scale", ctypes.c_uint64)]
        + [(name, ctypes.c_int64) for name in ("pitch", "batch", "scale_pitch", "scale_batch")]
        + [("to", ctypes.c_uint64), ("rows", ctypes.c_int32), ("padding", ctypes.c_int32)]
    )


class Schedule(ctypes.Structure):
    """sm90_schedule."""

    _fields_ = (
        [("x", Operand), ("y", Expanded), ("raw_y", RawRows)]
        + [(name, ctypes.c_int32) for name in ("tiles", "tiles_x", "tiles_y", "split_k", "stages_per_split")]
        + [
            (name, ctypes.c_int32)
            for name in ("splits_with_one_more", "swap_ab", "partials_in_stages", "whole", "k_stages")
        ]
        + [(name, ctypes.c_int32) for name in ("worker_clusters", "streamk_stages", "worker_stages")]
        + [(name, ctypes.c_uint32) for name in ("inv_streamk_stages", "inv_worker_stages", "inv_split_k")]
        + [(name, ctypes.c_uint64) for name in ("partial_tiles", "fixup_flags")]
        + [("alignment", ctypes.c_uint8 * 48)]
    )


@dataclass(frozen=True)
class Help:
    """How a helped kernel shares out its work: the numbers of sm90_schedule."""

    worker_clusters: int
    streamk_stages: int
    worker_stages: int
    whole: int = 0


def expanded(data: numpy.ndarray, scales: numpy.ndarray) -> numpy.ndarray:
    """What sm90_dequant.cu makes of an operand, [L, R, 64 ceil(K/64)] fp16: of 64 values along K piece 4w + q, 16
    bytes, is pair q of word w of the four groups that have a scale each; everything 2^-6 of what it is."""
    values = decode(data, scales) / 64
    l, rows, k = values.shape
    padded = numpy.zeros((l, rows, -(-k // 64) * 64), "f2")
    padded[:, :, :k] = values
    groups = padded.reshape(l, rows, -1, 4, 2, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]]
    groups = groups.reshape(l, rows, -1, 4, 2, 4, 2)  # block, group, word, pair, of two
    return numpy.ascontiguousarray(groups.transpose(0, 1, 2, 4, 5, 3, 6)).reshape(padded.shape)


def placed(values: numpy.ndarray, kind: int) -> numpy.ndarray:
    """The bytes of numbers that the type has, [..., bytes]."""
    single = numpy.ascontiguousarray(values, "f4")
    if kind == BF16:
        return (single.view("u4") >> 16).astype("u2").view("u1")
    return single.astype("f4" if kind == FP32 else "f2").view("u1")


class Product(sm100.launch.Product):
    """One product on the emulated H200."""

    workspace: Array  # what y is expanded into
    partial_tiles: Array  # and helpers' sums and flags
    fixup_flags: Array
    extras: dict[str, float] | None = None  # fields of the problem, where finish() was called
    kept: list[Array]
    scale: numpy.ndarray
    added: numpy.ndarray | float

    def finish(
        self,
        generator: numpy.random.Generator,
        alpha: Literal["value", "one", "vector"] = "value",
        bias: int | None = None,
        c: Literal["none", "apart", "out"] = "none",
    ) -> None:
        """An epilogue beside the plain one. bias: of that type. c: in memory of its own, or the output's."""
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
            self.keep(placed(numbers, bias), "bias", bias_type=bias)
            self.added = self.added + numbers
        if c != "none":
            numbers = generator.integers(-8, 9, (self.l, self.m, self.n)).astype("f4")
            rows = numpy.full((self.l, self.m, self.out_pitch), 0xFF, "u1")
            rows[:, :, : self.n * self.item] = placed(numbers, self.out_type)
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

    def raw(self, which: int, box_rows: int) -> Operand:
        p = self.problem()
        data, scale = self.arrays[2 * which : 2 * which + 2]
        rows = (self.m, self.n)[which]
        operand = Operand(
            scale=scale.address, scale_pitch=p.sfa_pitch, scale_batch=(p.sfa_batch, p.sfb_batch)[which],
            policy=EVICT_FIRST, rows=rows,
        )  # fmt: skip
        if self.k:
            encoded = self.emulator.tensor_map(
                UINT8, data, (self.k // 2, rows, self.l), (self.pitch, rows * self.pitch), (64, box_rows, 1),
                swizzle=NO_SWIZZLE,
            )  # fmt: skip
            operand.values.opaque[:] = encoded
        return operand

    def expand(self, which: int, box_rows: int) -> Expanded:
        rows = (self.m, self.n)[which]
        operand = Expanded(policy=EVICT_LAST, rows=rows)
        if self.k:
            made = expanded(self.data[which][:, :, : self.k // 2], self.scales[which])
            self.workspace = self.emulator.array(made.view("u2"))
            pitch = made.shape[2] * 2
            encoded = self.emulator.tensor_map(
                UINT16, self.workspace, (made.shape[2], rows, self.l), (pitch, rows * pitch), (64, box_rows, 1),
                swizzle=SWIZZLE_128,
            )  # fmt: skip
            operand.values.opaque[:] = encoded
        return operand

    def raw_rows(self, which: int) -> RawRows:
        p = self.problem()
        data, scale = self.arrays[2 * which : 2 * which + 2]
        rows = (self.m, self.n)[which]
        return RawRows(
            data=data.address, scale=scale.address, pitch=self.pitch, batch=rows * self.pitch,
            scale_pitch=p.sfa_pitch, scale_batch=(p.sfa_batch, p.sfb_batch)[which], rows=rows,
        )  # fmt: skip

    def schedule(
        self, config: Config, swap_ab: bool, split_k: int, in_stages: bool = False, help: Help | None = None
    ) -> Schedule:
        x, y = (1, 0) if swap_ab else (0, 1)
        rows = (self.m, self.n)
        tiles_x, tiles_y = -(-rows[x] // config.tile_x), -(-rows[y] // config.tile_y)
        stages = -(-self.k // STAGE_K) - (help.streamk_stages if help else 0)
        made = Schedule(
            x=self.raw(x, config.tile_x), y=Expanded(rows=rows[y]) if config.y_raw else self.expand(y, config.tile_y),
            raw_y=self.raw_rows(y) if config.y_raw else RawRows(), tiles=tiles_x * tiles_y * self.l,
            tiles_x=tiles_x, tiles_y=tiles_y, split_k=split_k, stages_per_split=stages // split_k,
            splits_with_one_more=stages % split_k, swap_ab=int(swap_ab), partials_in_stages=int(in_stages),
            inv_split_k=-(-(2**31) // split_k),
        )  # fmt: skip
        if help:
            self.help(made, config, help)
        return made

    def help(self, made: Schedule, config: Config, help: Help) -> None:
        """With a workspace of its own, whose flags are 0 as the expansion leaves them."""
        helpers = help.worker_clusters * made.split_k
        room = (helpers + made.tiles - help.whole) * config.contribution_bytes
        self.partial_tiles = self.emulator.array(numpy.full(room, 0xFF, "u1"))
        self.fixup_flags = self.emulator.array(numpy.zeros(helpers, "u4"))
        made.whole, made.k_stages = help.whole, -(-self.k // STAGE_K)
        made.worker_clusters, made.streamk_stages = help.worker_clusters, help.streamk_stages
        made.worker_stages = help.worker_stages
        made.inv_streamk_stages, made.inv_worker_stages = (
            -(-(2**31) // help.streamk_stages),
            -(-(2**31) // help.worker_stages),
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
        help: Help | None = None,
    ) -> None:
        """clusters: of the grid, one a tile unless given. in_stages: where partial sums go; unless given, into the
        stages if there is no other room."""
        more = config.parts_bytes[split_k]
        if in_stages is None:
            in_stages = split_k > 1 and config.shared_bytes + more > SHARED_LIMIT
        schedule = self.schedule(config, swap_ab, split_k, in_stages, help)
        if help:
            clusters = help.worker_clusters + schedule.tiles - help.whole
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
