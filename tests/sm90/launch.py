"""Launches the kernels of csrc/sm90_gemm.cu on the emulated H200 by hand: any instantiation, cut of K, order of the
operands and place of partial sums, whether plan.c would choose it or not, and several launches in a row.

The structs are those of csrc/device/problem.h and csrc/sm90_configs.h. The instantiations, with what their launch asks
for, are what a C program prints that includes that header. Operands and results are as in sm100/launch.py.
"""

from __future__ import annotations

import ctypes
import functools
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import sm100.launch  # noqa: E402
from sm100.launch import (  # noqa: E402
    CSRC,
    EVICT_FIRST,
    EVICT_LAST,
    NO_SWIZZLE,
    UINT8,
    Module,
    Problem,
    TensorMap,
    compile_ptx,
)

SWIZZLE_64 = 2  # CUtensorMapSwizzle
STAGE_K = 128
SPLITS = range(1, 9)
SHARED_LIMIT = 227 * 1024  # of a CTA
ASK_THE_HEADER = r"""
#include <stddef.h>
#include <stdio.h>
#include "device/problem.h"
#include "sm90_configs.h"
#define ROW(id, math, x_tiles, y, stages, y_stages, support, ...)                                                     \
    printf("\"%s\": {\"math_groups\": %d, \"x_tiles\": %d, \"tile_x\": %d, \"tile_y\": %d, ", #id, math, x_tiles,     \
           SM90_TILE_X(math, x_tiles), y);                                                                            \
    printf("\"stages\": %d, \"y_stages\": %d, \"threads\": %d, \"shared_bytes\": %d, \"parts_bytes\": [0", stages,    \
           y_stages, SM90_THREADS(math, support), SM90_SHARED_BYTES(math, x_tiles, y, stages, y_stages));             \
    for (int split = 1; split <= 8; split++) printf(", %d", SM90_PARTS_BYTES(math, x_tiles, y, split));               \
    printf("]}, ");
int main(void) {
    printf("{");
    SM90_GEMM_CONFIGS(ROW)
    printf("\"layout\": [%zu, %zu, %zu, %zu, %zu]}\n", sizeof(gemm_problem), sizeof(sm90_operand),
           offsetof(sm90_operand, rows), sizeof(sm90_schedule), offsetof(sm90_schedule, scales_by_bulk));
}
"""


@dataclass(frozen=True)
class Config:
    """A row of SM90_GEMM_CONFIGS, and what follows from it."""

    name: str
    math_groups: int
    x_tiles: int
    tile_x: int
    tile_y: int
    stages: int
    y_stages: int
    threads: int
    shared_bytes: int
    parts_bytes: tuple[int, ...]  # by split_k; behind the barriers it is more shared memory that a launch asks for

    @property
    def kernel(self) -> str:
        return f"nvfp4_{self.name}"


@functools.cache
def configs() -> dict[str, Config]:
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "ask.c"), Path(folder, "ask")
        source.write_text(ASK_THE_HEADER)
        subprocess.run(["cc", f"-I{CSRC}", "-o", str(program), str(source)], check=True)
        said = json.loads(subprocess.run([program], check=True, capture_output=True, text=True).stdout)
    layout = [ctypes.sizeof(Problem), ctypes.sizeof(Operand), Operand.rows.offset]
    layout += [ctypes.sizeof(Schedule), Schedule.scales_by_bulk.offset]
    assert said.pop("layout") == layout, "the structs of this file are not those of csrc"
    return {name: Config(name, **{**row, "parts_bytes": tuple(row["parts_bytes"])}) for name, row in said.items()}


def gemm_ptx(*options: str) -> str:
    return compile_ptx(CSRC / "sm90_gemm.cu", *options, family="sm90")


class Operand(ctypes.Structure):
    """sm90_operand."""

    _fields_ = (
        [("values", TensorMap), ("data", ctypes.c_uint64), ("scale", ctypes.c_uint64)]
        + [(name, ctypes.c_int64) for name in ("pitch", "batch", "scale_pitch", "scale_batch")]
        + [("policy", ctypes.c_uint64), ("rows", ctypes.c_int32), ("padding", ctypes.c_int32)]
    )


class Schedule(ctypes.Structure):
    """sm90_schedule."""

    _fields_ = (
        [("x", Operand), ("y", Operand)]
        + [(name, ctypes.c_int32) for name in ("tiles", "tiles_x", "tiles_y", "split_k", "k_stages", "swapped")]
        + [(name, ctypes.c_int32) for name in ("parts_in_stages", "values_by_tma", "scales_by_bulk", "padding")]
        + [("alignment", ctypes.c_uint8 * 24)]  # the struct's is 64
    )


class Product(sm100.launch.Product):
    """One product on the emulated H200."""

    def operand(self, which: int, box_rows: int, swizzle: int, policy: int) -> Operand:
        p = self.problem()
        data, scale = self.arrays[2 * which : 2 * which + 2]
        rows = (self.m, self.n)[which]
        operand = Operand(
            data=data.address, scale=scale.address, pitch=self.pitch, batch=rows * self.pitch,
            scale_pitch=p.sfa_pitch, scale_batch=(p.sfa_batch, p.sfb_batch)[which], policy=policy, rows=rows,
        )  # fmt: skip
        if self.k and p.aligned16:
            encoded = self.emulator.tensor_map(
                UINT8, data, (self.k // 2, rows, self.l), (self.pitch, rows * self.pitch), (64, box_rows, 1),
                swizzle=swizzle,
            )  # fmt: skip
            operand.values.opaque[:] = encoded
        return operand

    def schedule(self, config: Config, swapped: bool, split_k: int, in_stages: bool = False) -> Schedule:
        x, y = (1, 0) if swapped else (0, 1)
        rows = (self.m, self.n)
        tiles_x, tiles_y = -(-rows[x] // config.tile_x), -(-rows[y] // config.tile_y)
        return Schedule(
            x=self.operand(x, config.tile_x, NO_SWIZZLE, EVICT_FIRST),
            y=self.operand(y, config.tile_y, SWIZZLE_64, EVICT_LAST),
            tiles=tiles_x * tiles_y * self.l, tiles_x=tiles_x, tiles_y=tiles_y, split_k=split_k,
            k_stages=-(-self.k // STAGE_K), swapped=int(swapped), parts_in_stages=int(in_stages),
            values_by_tma=int(self.pitch % 16 == 0), scales_by_bulk=int(not self.linear),
        )  # fmt: skip

    def launch(
        self,
        module: Module,
        config: Config,
        swapped: bool = True,
        split_k: int = 1,
        clusters: int = 0,
        wait: bool = True,
        in_stages: bool | None = None,
    ) -> None:
        """clusters: of the grid, one a tile unless given. in_stages: where partial sums go; unless given, into the
        stages if there is no other room."""
        more = config.parts_bytes[split_k]
        if in_stages is None:
            in_stages = split_k > 1 and config.shared_bytes + more > SHARED_LIMIT
        schedule = self.schedule(config, swapped, split_k, in_stages)
        self.emulator.launch(
            module[config.kernel],
            grid=(clusters or schedule.tiles) * split_k,
            block=config.threads,
            args=[bytes(self.problem()), bytes(schedule)],
            shared=config.shared_bytes + (0 if in_stages else more),
            cluster=split_k,
            programmatic=True,
            wait=wait,
        )
