"""Mutations of csrc/kernels/units/grouped.cuh where it computes an activation. Which tiles a CTA has is in memory,
which the static verifier does not know: the emulator finds all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness import verify
from harness.headers import Config
from harness.launch import Generator
from harness.mutations import Mutation, mutation
from harness.values import BF16, FP16
from units.grouped import CONFIGS, Activation, Product, place_epilogue_of_each_matrix


@dataclass(frozen=True)
class Launch(verify.Launch):
    """One launch of a product with an activation, with alpha and bias of each matrix."""

    config_name: str
    note: str
    activation: Activation | None
    ends: tuple[int, ...] = (3, 3, 20)
    n: int = 200
    k: int = 800
    parts: int = 2
    case: int = 0  # of place_epilogue_of_each_matrix

    for_verifier, split_k = False, 1  # the ends are in memory
    inlined = ("kernels/units/grouped.cuh", "kernels/common/grouped_tiles.cuh")
    configs, product = CONFIGS, Product

    @property
    def config(self) -> Config:
        return self.configs[self.config_name]

    @property
    def size(self) -> tuple[int, int, int]:
        return max(self.ends), self.n, self.k

    def start(self, emulator: Any, module: Any, generator: Generator) -> list[Any]:
        kind = (BF16, FP16)[self.case % 2]
        made = self.product(
            emulator, generator, self.config, list(self.ends), self.n, self.k, self.parts, kind,
            activation=self.activation,
        )  # fmt: skip
        results = place_epilogue_of_each_matrix(made, generator, self.case)
        self.run(made, module)
        return [Checked(made, results)]

    def run(self, made: Any, module: Any) -> None:
        made.launch(module, self.config, 2, team_log2=1, tile_pairs=2, wait=False)


@dataclass(frozen=True)
class Checked:
    """The result, with the interface of a product of gemm."""

    product: Product
    results: Any

    def expected(self) -> float:
        return 0.0

    def check(self, _: float) -> None:
        self.product.check(self.results())


SILU, SWIGLU = Activation(0, 0.75), Activation(3, 7.0, 0.5)
PAIRS = Launch("sm90_grouped_units_bf16_8", "gate and up", SILU)
ROWS_16 = Launch("sm90_grouped_units_fp16_16", "gate and up of 16 rows", SWIGLU, case=1)
ALPHAS = Launch("sm90_grouped_units_bf16_8", "an alpha for each matrix", SILU, case=2)
LONE = Launch("sm90_grouped_units_bf16_16", "gate alone", Activation(0), parts=1)

STORED = "gated(NVFP4_SILU, rounded(gate[i], type), rounded(up[i], type)"
MUTATIONS: list[Mutation] = [
    mutation(f"activation: {name}", launch, *edits, found_by="emulator")
    for name, launch, *edits in (
        ("gate's matrix is up's", PAIRS, "load_b(s, to, now.tile.l + part,", "load_b(s, to, now.tile.l,"),
        ("up's pairs are not loaded", PAIRS, "part < parts; part++", "part < 1; part++"),
        ("up's first pairs are left out, too", PAIRS, "part++, ahead = 0)", "part++)"),
        ("up's pairs are not multiplied", PAIRS, "* s.tile_pairs) * parts_of_tile(p)", "* s.tile_pairs)"),
        ("up's sums are gate's", PAIRS, "sums + part_sums, warps, up", "sums, warps, up"),
        ("up's sums of 16 rows are those of 8", ROWS_16, "count * 128,", "count * 64,"),
        ("up has gate's alpha", ALPHAS, "tile.alphas[1], factor", "tile.alphas[0], factor"),
        ("up's alpha is the next group's", ALPHAS, "tile.l + i * (parts_of_tile(p) - 1)", "tile.l + 2 * i"),
        ("up has gate's alpha and bias", PAIRS, "results_of<C>(p.g, tile.l + 1,", "results_of<C>(p.g, tile.l,"),
        ("gate is not rounded", PAIRS, STORED, "gated(NVFP4_SILU, gate[i], rounded(up[i], type)"),
        ("up is not rounded", PAIRS, STORED, "gated(NVFP4_SILU, rounded(gate[i], type), up[i]"),
        ("swiglu is silu", ROWS_16, "gated(activation,", "gated(NVFP4_SILU,"),
        ("gate and up are exchanged", PAIRS, STORED, "gated(NVFP4_SILU, rounded(up[i], type), rounded(gate[i], type)"),
        ("up is read where there is none", LONE, "if (p.parts == 2) results_of", "if (true) results_of"),
        ("tiles of each part", PAIRS, "gridDim.x * teams, p.has_activation", "gridDim.x * teams"),
    )
]  # fmt: skip
