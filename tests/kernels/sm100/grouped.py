"""Schedule and grid of csrc/kernels/sm100/grouped.cu, and its results as NVFP4."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy
import torch
from emulate import Module
from harness import groups
from harness.headers import Config, Struct
from harness.launch import EVICT_FIRST, EVICT_LAST, SWIZZLE_128, UINT8, UINT16, Generator, compile_ptx
from harness.values import ceil_div
from sm100.gemm import CTA_ROWS, HEADERS, STAGE_ATOMS, STAGE_K, column_pairs

import nvfp4

CONFIGS = HEADERS.configs("grouped")
Schedule = HEADERS.structs["sm100_grouped_schedule"]
BOX_ROWS = HEADERS.value("SM100_GROUPED_BOX_ROWS")
INTERLEAVED_ROWS = HEADERS.value("SM100_GROUPED_INTERLEAVED_ROWS")
UNWRITTEN = 0xA5
CHANGING_ENDS = Path(__file__).with_name("changing_ends.cu")
GLOBAL_BY_CALL, GLOBAL_BY_ROW, GLOBAL_BY_GROUP = 0, 1, 2


class Groups(groups.Groups):
    quantized: tuple[numpy.ndarray, ...] = ()  # data, scales and where those of each group begin
    global_scale, global_by = numpy.ones(1, "f4"), GLOBAL_BY_CALL
    changer: Module | None = None

    def set_quantized(self, generator: Generator, global_by: int = GLOBAL_BY_GROUP, times: float = 1.0) -> None:
        """Makes the results NVFP4, in the order of groups, between bytes that stay as they are."""
        blocks = sum(ceil_div(size, 128) for size in self.sizes) + 1
        shapes = (self.m, self.n // 2 + 16), (blocks, ceil_div(self.n, 64) * 512), (4 * self.groups,)
        self.quantized = tuple(numpy.full(shape, UNWRITTEN, "u1") for shape in shapes)
        self.kept |= {f"quantized {i}": self.emulator.array(x) for i, x in enumerate(self.quantized)}
        count, self.global_by = (1, self.m, self.groups)[global_by], global_by
        self.global_scale = (generator.choice([0.25, 0.3, 1.0, 3.0], count) * times).astype("f4")
        self.kept["global_scale"] = self.emulator.array(self.global_scale)

    def set_changing_ends(self, other: numpy.ndarray) -> None:
        """Ends change between those of the sizes and others while the kernel runs."""
        self.changer = self.emulator.load(compile_ptx(CHANGING_ENDS, "sm100"))
        self.kept["both ends"] = self.emulator.array(numpy.stack([other, self.kept["ends"].numpy()]))

    def launch(self, module: Module, config: Config, grid: int = 0, wait: bool = True) -> None:
        """grid: CTAs, or pairs of them; 0: one for each tile."""
        assert config.matrices == (self.parts if self.activation else 1), f"{config} has other tiles"
        schedule = Schedule(
            mma_a=self.operand(STAGE_K // 2, 1, CTA_ROWS, EVICT_FIRST),
            mma_b=self.operand(STAGE_K // 2, 0, BOX_ROWS, EVICT_LAST),
            tiles_n=ceil_div(self.n, config.tile_columns), column_pairs=column_pairs(self.problem().g, True),
            is_dense=self.dense,
        )  # fmt: skip
        if config.cta_group == 2 and self.k:
            self.set_maps_of_pair(schedule, interleaved=config.matrices == 2)
        if self.activation:
            self.set_numbers(schedule.numbers)
        if self.quantized:
            q, places = schedule.quantized, [self.kept[f"quantized {i}"].address for i in range(3)]
            q.data, q.scale, q.scale_rows = places
            q.data_pitch, q.scale_pitch = (x.shape[1] for x in self.quantized[:2])
            q.global_scale, q.global_by = self.kept["global_scale"].address, self.global_by
        cluster = config.cta_group if config.cta_group > 1 else None
        grid = (grid or max(1, self.tiles(config))) * config.cta_group
        self.start(module, config, schedule, grid, config.shared_bytes, cluster, wait and not self.changer)
        if self.changer:
            changes = struct.pack("<QQq", self.kept["ends"].address, self.kept["both ends"].address, self.groups)
            self.emulator.launch(self.changer["change_ends"], args=[changes], programmatic=True, wait=wait)

    def set_maps_of_pair(self, schedule: Struct, interleaved: bool) -> None:
        """Scales by tensor maps. interleaved: rows of two matrices alternate in a CTA, 16 at a time."""
        atoms, halves, blocks = ceil_div(self.k, 64), CTA_ROWS // (2 * INTERLEAVED_ROWS), ceil_div(self.n, CTA_ROWS)
        _, scale_a, b, scale_b = self.arrays
        pitch, batch = atoms * 512, blocks * atoms * 512
        if interleaved:
            rows = 2 * INTERLEAVED_ROWS
            schedule.mma_a.values = self.tensor_map(
                UINT8, b, (self.k // 2, rows, self.l, self.n // rows),
                (self.pitch, self.n * self.pitch, rows * self.pitch),
                (STAGE_K // 2, INTERLEAVED_ROWS, 2, halves), SWIZZLE_128,
            )  # fmt: skip
            dims, strides, box = (256, self.l, atoms, blocks), (batch, 512, pitch), (128, 2, STAGE_ATOMS, 1)
        else:
            dims, strides, box = (256, atoms, blocks, self.l), (512, pitch, batch), (256, STAGE_ATOMS, 1, 1)
        schedule.mma_a_scales = self.tensor_map(UINT16, scale_b, dims, strides, box)
        dims = (256, atoms, max(1, self.scale_a_rows // 128), 1)
        schedule.mma_b_scales = self.tensor_map(UINT16, scale_a, dims, (512, pitch, 16), (256, STAGE_ATOMS, 1, 1))

    def tiles(self, config: Config) -> int:
        return self.along(config) * ceil_div(self.n, config.tile_columns) * (self.parts // config.matrices)

    def check(self, expected: numpy.ndarray | None = None) -> None:
        if self.quantized:
            self.check_quantized()
        elif self.changer:
            assert (self.out.numpy()[0][:, self.row_bytes :] == 0xFF).all(), "wrote outside"
        else:
            super().check(expected)

    def check_quantized(self) -> None:
        """The bytes are those of gated_quantize on the CPU, and no others are written."""
        gate, up, activation = self.rounded_parts(self.products())
        shapes = (len(gate), self.n // 2), (128 * (len(self.quantized[1]) - 1), ceil_div(self.n, 64) * 4)
        wanted = [torch.full(shape, UNWRITTEN, dtype=torch.uint8) for shape in shapes]
        wanted.append(torch.zeros(self.groups, dtype=torch.int32))
        by = torch.from_numpy(self.global_scale)
        # More scales than the groups' blocks take, in a buffer as large as any ends can lead to.
        most = 128 * (min(self.groups, len(gate)) + max(len(gate) - self.groups, 0) // 128)
        scale = torch.full((max(most, len(wanted[1])), shapes[1][1]), UNWRITTEN, dtype=torch.uint8)
        nvfp4.gated_quantize(
            gate, up, activation, limit=self.finite_limit(), alpha=groups.SWIGLU_ALPHA,
            global_scale=by[: len(gate), None] if self.global_by == GLOBAL_BY_ROW else by,
            ends=torch.tensor(self.sizes).cumsum(0).int(), out=(wanted[0], scale[:most], wanted[2]),
        )  # fmt: skip
        data, scales, places = (self.kept[f"quantized {i}"].numpy() for i in range(3))
        assert (data[: len(gate), : self.n // 2] == wanted[0].numpy()).all(), "wrong values"
        assert (data[len(gate) :] == UNWRITTEN).all() and (data[:, self.n // 2 :] == UNWRITTEN).all(), "wrote outside"
        blocks = len(self.quantized[1]) - 1
        assert (scales[:blocks].reshape(-1) == scale.numpy().reshape(-1)[: scales[:blocks].size]).all(), "wrong scales"
        assert (scales[blocks] == UNWRITTEN).all(), "wrote outside the scales"
        assert (places.view("i4") == wanted[2].numpy()).all(), "wrong places"
