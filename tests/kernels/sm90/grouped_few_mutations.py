"""Mutations of csrc/kernels/sm90/grouped_few.cu, grouped.cu and grouped_roles.cuh. Which tiles a CTA has is
in memory, which the static verifier does not know: the emulator finds all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.mutations import Mutation, mutation
from sm90 import grouped, grouped_mutations
from sm90.grouped_few import CONFIGS, Product
from units.grouped import Activation


@dataclass(frozen=True)
class Launch(grouped_mutations.Launch):
    """One launch with alpha and bias of each matrix. Each CTA has several tiles, and a tile more stages than the
    pipeline."""

    activation: Activation | None = None
    ends: tuple[int, ...] = (3, 3, 60, 64)
    n: int = 328
    k: int = 1360  # ends inside a stage, an atom and the 32 values of a lane's half

    inlined = ("kernels/sm90/grouped_roles.cuh",)
    configs, product = CONFIGS, Product

    def run(self, made: Any, module: Any) -> None:
        made.launch_few(module, self.config, 2, wait=False)


@dataclass(frozen=True)
class WideLaunch(Launch):
    """The same of grouped.cu, behind its pre-pass."""

    ends: tuple[int, ...] = (3, 3, 170, 260)
    k: int = 656  # more stages than the pipeline has, and one that K ends in

    configs, product = grouped.CONFIGS, grouped.Product

    def run(self, made: Any, module: Any) -> None:
        made.make_workspace()
        made.queue(made.emulator.load(grouped.reorder_ptx()), module, self.config, 2)


SILU, SWIGLU = Activation(0, 0.75), Activation(3, 7.0, 0.5)
ROWS_16 = Launch("sm90_grouped_few_bf16_256x16", "16 rows")
ROWS_32 = Launch("sm90_grouped_few_fp16_256x32", "32 rows, factors of rows", case=1)
ROWS_48 = Launch("sm90_grouped_few_bf16_256x48", "48 rows, an alpha for each matrix", case=2)
SHORT = Launch("sm90_grouped_few_bf16_256x16", "tiles of one stage", n=1400, k=208, case=1)
ODD = Launch("sm90_grouped_few_bf16_256x16", "columns that end inside a chunk", n=332, parts=1)
GATED = Launch("sm90_grouped_few_bf16_256x16", "gate and up", SILU)
GATED_48 = Launch("sm90_grouped_few_fp16_256x48", "gate and up of 48 rows", SWIGLU, case=1)
ALPHAS = Launch("sm90_grouped_few_bf16_256x16", "an alpha of gate and of up", SILU, case=2)
LONE = Launch("sm90_grouped_few_bf16_256x16", "gate alone", Activation(0), parts=1)

BEFORE_B = "mbarrier_wait(cta.empty(state.index), state.phase ^ 1);\n        "
WAIT, RELEASE = "wgmma_wait_group<1>();", "if (word == 0 && h == 0 && k > 0) mbarrier_arrive(cta.empty(previous));"
IN_TURN, TOO_EARLY = ("\n                ".join(lines) for lines in ((WAIT, RELEASE), (RELEASE, WAIT)))

WIDE = WideLaunch("sm90_grouped_bf16_256x152", "many rows")
WIDE_96 = WideLaunch("sm90_grouped_fp16_256x96", "many rows in tiles of 96, factors of rows", case=1)
WIDE_GATED = WideLaunch("sm90_grouped_fp16_256x152", "gate and up of many rows", SWIGLU, case=1)
WIDE_SHORT = WideLaunch("sm90_grouped_bf16_256x96", "many rows by one stage", n=700, k=48)
FULL = "mbarrier_wait(cta.full(state.index), state.phase);"
FREE = "if (step == 0 && k > 0) mbarrier_arrive(cta.empty(previous));"

WIDE_MUTATIONS: list[Mutation] = [
    mutation(f"many rows: {name}", launch, *edits, found_by="emulator")
    for name, launch, *edits in (
        ("a stage is not awaited", WIDE, FULL, ""),
        ("a stage is overwritten", WIDE, BEFORE_B + "b.load", "b.load"),
        ("a stage is released too early", WIDE, f"{WAIT}\n            {FREE}", f"{FREE}\n            {WAIT}"),
        ("too few bytes of A are awaited", WIDE_96, "width.ROWS * 128;", "width.ROWS * 64;"),
        ("staging is not drained", WIDE_SHORT, "if (!is_fp32) mbarrier_wait(cta.drained(), phase);", ""),
        ("scales behind K are not masked", WIDE, "k == own.k_tail ? own.tail_mask : 0x7F7F", "0x7F7F"),
        ("the other wgmma's columns are the first's", WIDE, "first_column + m * 64", "first_column"),
        ("the second row's scale is the first's", WIDE_96, "(first | second << 8)", "(first | first << 8)"),
        ("word 1 is word 0", WIDE, "words[step / 2][m][0]", "words[0][m][0]"),
        ("up's matrix is gate's", WIDE_GATED, "ls[i] = both ? l + i : l,", "ls[i] = l,"),
    )
]

MUTATIONS: list[Mutation] = [
    *WIDE_MUTATIONS,
    *(
        mutation(f"few rows: {name}", launch, *edits, found_by="emulator")
        for name, launch, *edits in (
            ("a stage is not awaited", ROWS_16, "mbarrier_wait(cta.full(state.index), state.phase);", ""),
            (
                "a stage is overwritten by B",
                ROWS_16,
                BEFORE_B + "b.load",
                "b.load",
            ),
            (
                "a stage is overwritten by A",
                ROWS_32,
                "if (i % ROWS == 0) mbarrier_wait(cta.empty(state.index), state.phase ^ 1);",
                "",
            ),
            ("A is passed on before it is copied", ROWS_16, "mbarrier_wait(cta.copied(state.index), state.phase);", ""),
            ("no fence behind the copies", ROWS_48, "fence_proxy_async();", ""),
            ("a stage is released too early", ROWS_16, IN_TURN, TOO_EARLY),
            ("staging is not drained", SHORT, "mbarrier_wait(cta.drained(), phase);", ""),
            ("staging is not awaited", SHORT, "mbarrier_wait(cta.staged(), phase);", ""),
            ("a description is overwritten", SHORT, "mbarrier_wait(cta.tile_empty(slot.index), slot.phase ^ 1);", ""),
            (
                "a description is released too early",
                SHORT,
                "mbarrier_init(cta.tile_empty(i), C::TILE_READERS);",
                "mbarrier_init(cta.tile_empty(i), 32);",
            ),
            ("A behind K is not zero", ROWS_16, "if (from && at < left)", "if (from)"),
            ("scales behind K are not masked", ROWS_32, "k == own.k_tail ? own.tail_masks[h] : 0x7F7F", "0x7F7F"),
            (
                "the second half's scales are the first's",
                ROWS_16,
                "scales = stage + own.scales + 2 * h;",
                "scales = stage + own.scales;",
            ),
            (
                "the second half's A is the first's",
                ROWS_16,
                "cta.stage(current) + h * 2 * C::SPAN",
                "cta.stage(current)",
            ),
            ("a row's factor is its neighbour's", ROWS_32, "of_row[r]);", "of_row[0]);"),
            ("the other box is the first one", ROWS_48, "both ? column : column + i * BOX_ROWS", "column"),
            ("scales of the other box are the first's", ROWS_48, "(columns[i] < g.n ? columns[i] : column)", "column"),
            (
                "a wider store than the result",
                ODD,
                "if (count >= 8 && (uintptr_t)to % 16 == 0) {",
                "if ((uintptr_t)to % 16 == 0) {",
            ),
            ("up's matrix is gate's", GATED, "ls[i] = both ? l + i : l,", "ls[i] = l,"),
            ("up has gate's alpha and bias", GATED, "const int64_t l = tile.l + part,", "const int64_t l = tile.l,"),
            ("up has gate's alpha", ALPHAS, "alpha[i] = tile.alphas[part],", "alpha[i] = tile.alphas[0],"),
            ("up is gate", GATED_48, "both ? at + BOX_ROWS * 2 : 0", "both ? at : 0"),
            ("up is read where there is none", LONE, "both ? at + BOX_ROWS * 2 : 0", "at + BOX_ROWS * 2"),
            ("swiglu is silu", GATED_48, "activate_chunk_by<NVFP4_SWIGLU>", "activate_chunk_by<NVFP4_SILU>"),
            ("tiles of each part", GATED, "blockIdx.x, gridDim.x, p.has_activation)", "blockIdx.x, gridDim.x)"),
        )
    ),
]
