"""Products of groups of rows, for kernels that take them as they lie in memory: operands, tiles, and the result beside
the definition. A backend adds its schedule (sm100/grouped.py, sm120/grouped.py)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy
import torch
from emulate import Emulator, Module
from paths import CSRC

import nvfp4
from harness import launch
from harness.headers import Config, Struct, headers_of
from harness.launch import SWIZZLE_64, SWIZZLE_128, Generator
from harness.values import BF16, FP16, FP32, INTEGER_SCALES, ceil_div, loaded, rounded, stored, swizzle_scales

Problem, Operand = (headers_of("sm120").structs[name] for name in ("grouped_problem", "mma_operand"))
MAX_GROUPS = int(re.findall(r"define NVFP4_MAX_GROUPS (\d+)", (CSRC / "nvfp4.h").read_text())[0])
ALPHA_BY_BATCH, BIAS_BY_BATCH = 1, 2  # gemm_problem.by_batch
ACTIVATIONS = ("silu", "gelu_tanh", "relu2", "swiglu")  # by nvfp4_activation
SWIGLU_ALPHA = 1.702
ADDRESSES = ("ends", "rows", "scale_rows", "row_scale")


def sizes_of(config: Config, random: Generator) -> list[int]:
    """Rows of some groups: none, one, just a tile, a row more or less, several tiles. Not all are empty, as in every
    product that the plan launches."""
    tile = config.mma_tile_n
    sizes = [0, 1, tile - 1, tile, tile + 1, int(random.integers(1, 2 * tile + 2))]
    chosen = [int(random.choice(sizes)) for _ in range(int(random.integers(2, 7)))]
    return chosen if any(chosen) else [*chosen, 1]


class Groups(launch.Product):
    """One product of groups: random operands, scales of groups in another order than the groups, NaN padding, a
    poisoned result between guard bytes. Sums are exact in fp32 as those of Product."""

    def __init__(
        self,
        emulator: Emulator,
        generator: Generator,
        sizes: Sequence[int],
        n: int,
        k: int,
        parts: int = 1,
        out_type: int = FP32,
        behind: int = 0,  # rows behind the last group's
        missing: Sequence[int] = (),  # groups whose scales do not exist; linear: of whose rows a has none
        integer: bool = True,
        scale_end: int = 0x48,  # of e4m3 codes that are not integers
        linear: bool = False,
        gathers: bool = False,  # rows of a in another order; linear
        pitch: int = 0,  # of values; 0: the next on 16 bytes
        activation: str = "",
        limit: float = float("inf"),
        out_align: int = 16,  # of the rows of the result
        dense: bool = False,  # one group, whose scales lie as its rows, those behind its end too
        has_ends: bool = True,  # else a dense group has no scale_rows either
    ) -> None:
        self.emulator, self.sizes, self.parts, self.linear = emulator, list(sizes), parts, linear
        self.groups, self.m, self.n, self.k = len(sizes), sum(sizes) + behind, n, k
        self.activation, self.limit, self.dense = activation, limit, dense
        self.columns = n * (1 if activation else parts)  # of the result
        self.l, self.pitch = self.groups * parts, pitch or k // 2 + -k // 2 % 16
        self.data, self.scales = [], []
        for l, rows in ((1, self.m), (self.l, n)):
            self.data.append(generator.integers(0, 256, (l, rows, self.pitch), numpy.uint8))
            scales = generator.choice(INTEGER_SCALES, (l, rows, k // 16))
            if not integer:
                scales = generator.integers(0x28, scale_end, (l, rows, k // 16), numpy.uint8)
            self.scales.append(scales)
        self.missing, self.order = set(missing), numpy.arange(self.m)
        assert has_ends or (dense and not behind and not missing)
        kept = {"ends": numpy.cumsum(sizes, dtype="i4")} if has_ends else {}
        if linear:
            placed, scales_of_b, self.scale_a_rows = *self.scales, 0
            if gathers:
                self.order = generator.permutation(self.m)
                kept["rows"] = self.order.astype("i4")
                for e in missing:
                    own = slice(sum(sizes[:e]), sum(sizes[: e + 1]))
                    kept["rows"][own] = generator.choice([-1, self.m, -(2**31), 2**31 - 1], sizes[e])
        else:
            scale_rows, placed = self.place_scales(generator, missing)
            kept |= {"scale_rows": scale_rows} if has_ends else {}
            scales_of_b, self.scale_a_rows = swizzle_scales(self.scales[1]), 128 * len(placed) if k else 2**63 - 1
        operands = (self.data[0], placed, self.data[1], scales_of_b)
        self.arrays = [emulator.array(x if x.size else numpy.zeros(1, "u1")) for x in operands]
        self.place_result(out_type, out_align)
        self.kept = {name: emulator.array(x) for name, x in kept.items()}
        self.factors = numpy.ones(self.m)
        self.scaled: numpy.ndarray | float = 1.0  # alpha and bias of each matrix, [L, 1, N]
        self.biased: numpy.ndarray | float = 0.0

    def place_scales(self, generator: Generator, missing: Sequence[int]) -> tuple[numpy.ndarray, numpy.ndarray]:
        """scale_rows, and blocks of 128 rows of scales."""
        blocks, first = [], numpy.zeros(self.groups, "i4")
        ends = numpy.cumsum([0, *self.sizes])
        for e in generator.permutation(self.groups):
            first[e] = 128 * len(blocks)
            own = self.scales[0][:, ends[e] : ends[e + 1]] if not self.dense else self.scales[0]
            if self.dense or (self.sizes[e] and e not in missing):
                blocks += list(swizzle_scales(own)[0])
        for e in missing:
            first[e] = generator.choice([-128, -1, 1, 64, 128 * len(blocks), 2**31 - 128])
        empty = numpy.zeros((0, ceil_div(self.k, 64), 512), "u1")
        return first, numpy.stack(blocks) if blocks else empty

    def place_result(self, out_type: int, out_align: int) -> None:
        self.out_type, self.item = out_type, 4 if out_type == FP32 else 2
        self.row_bytes = self.columns * self.item
        self.out_pitch = (self.row_bytes // out_align + 2) * out_align
        self.out = self.emulator.empty((1, self.m, self.out_pitch), numpy.uint8)
        self.add, self.shared, self.extras = None, None, {}

    def set_row_scale(self, generator: Generator) -> None:
        self.factors = generator.choice([0.5, 1.0, -2.0], self.m)
        self.kept["row_scale"] = self.emulator.array(self.factors.astype("f4"))

    def set_alpha_and_bias(self, generator: Generator) -> None:
        """One alpha for each matrix, a bias for each of its columns. Arguments of an activation are small."""
        alpha, bias = generator.choice([0.5, -1.0, 2.0], self.l), generator.integers(-8, 9, (self.l, self.n)) / 4
        alpha *= 2.0**-9 if self.activation else 1
        self.scaled, self.biased = alpha[:, None, None], bias[:, None]
        self.keep(alpha.astype("f4"), "alpha", alpha_stride=0)
        self.keep(bias.astype("f4"), "bias", bias_type=FP32)
        self.extras["by_batch"] = ALPHA_BY_BATCH | BIAS_BY_BATCH

    # ---- parameters

    def problem(self) -> Struct:
        g = super().problem()
        g.a_batch = g.scale_a_batch = 0
        g.out_batch = 0 if self.activation else self.n * self.item
        more = {name: self.kept[name].address for name in ADDRESSES if name in self.kept}
        if self.activation:
            more |= {"has_activation": 1, "activation": ACTIVATIONS.index(self.activation)}
        return Problem(
            g=g, a_rows=self.m, scale_a_rows=self.scale_a_rows, groups=self.groups, parts=self.parts, limit=self.limit,
            activation_alpha=SWIGLU_ALPHA, **more,
        )  # fmt: skip

    def operand(self, row_bytes: int, which: int, box_rows: int, cache_policy: int) -> Struct:
        """row_bytes: of a stage."""
        g = self.problem().g
        data, scale = self.arrays[2 * which : 2 * which + 2]
        operand = Operand(
            data=data.address, scale=scale.address, pitch=self.pitch, batch=(g.a_batch, g.b_batch)[which],
            scale_pitch=g.scale_b_pitch, scale_batch=(g.scale_a_batch, g.scale_b_batch)[which], rows=self.rows(which),
            cache_policy=cache_policy,
        )  # fmt: skip
        if self.k and self.pitch % 16 == 0:
            dims, strides = (self.k // 2, self.rows(which), (1, self.l)[which]), (self.pitch, max(g.b_batch, 16))
            swizzle = {128: SWIZZLE_128, 64: SWIZZLE_64}[row_bytes]
            operand.values = self.tensor_map(launch.UINT8, data, dims, strides, (row_bytes, box_rows, 1), swizzle)
        return operand

    def set_numbers(self, numbers: Struct) -> None:
        """Sets the numbers of the activation, as the plan computes them."""
        numbers.limit, numbers.up_limit = self.limit, self.limit if self.parts == 2 else float("inf")
        numbers.alpha, numbers.min_gate = SWIGLU_ALPHA, numpy.float32(-86) / numpy.float32(SWIGLU_ALPHA)

    def launch(self, module: Module, config: Config, grid: int = 0, wait: bool = True) -> None:
        """grid: CTAs; 0: one for each tile. The backend's own."""
        raise NotImplementedError

    def along(self, config: Config) -> int:
        """Tiles along the rows of all groups."""
        return sum(ceil_div(size, config.mma_tile_n) for size in self.sizes)

    # ---- the result

    def expected(self) -> numpy.ndarray:
        """[rows of groups, columns] in float64."""
        made = self.products()
        return self.activated(made) if self.activation else made

    def products(self) -> numpy.ndarray:
        """The products of all parts, side by side, before they are rounded."""
        a, b = self.decoded(0)[0][self.order], self.decoded(1)
        alpha = numpy.broadcast_to(self.scaled, (self.l, 1, 1))
        bias = numpy.broadcast_to(self.biased, (self.l, 1, self.n))
        made, ends = numpy.zeros((sum(self.sizes), self.parts * self.n)), numpy.cumsum([0, *self.sizes])
        for e in range(self.groups):
            rows = slice(ends[e], ends[e + 1])
            for part in range(self.parts):
                l = e * self.parts + part
                made[rows, part * self.n : (part + 1) * self.n] = (a[rows] @ b[l].T) * alpha[l] + bias[l]
            if e in self.missing:
                made[rows] = numpy.nan
        return made * self.factors[: len(made), None]

    def activated(self, products: numpy.ndarray) -> numpy.ndarray:
        """`gated` on the CPU of the parts, which are rounded to the type of the result."""
        return nvfp4.gated(*self.rounded_parts(products), limit=self.finite_limit()).double().numpy()

    def rounded_parts(self, products: numpy.ndarray) -> tuple[torch.Tensor, torch.Tensor | None, str]:
        """gate, up and the activation, as `gated` and `gated_quantize` take them."""
        dtype = {FP32: torch.float32, FP16: torch.float16, BF16: torch.bfloat16}[self.out_type]
        bits = numpy.ascontiguousarray(stored(products, self.out_type)).view("i4" if self.item == 4 else "i2")
        gate, *up = torch.from_numpy(bits).view(dtype).split(products.shape[1] // self.parts, dim=1)
        return gate, up[0] if up else None, self.activation

    def finite_limit(self) -> float | None:
        return self.limit if numpy.isfinite(self.limit) else None

    def result(self) -> numpy.ndarray:
        """[M, columns]."""
        rows = numpy.ascontiguousarray(self.out.numpy()[0, :, : self.row_bytes])
        return loaded(rows, self.out_type).reshape(self.m, -1)

    def check(self, expected: numpy.ndarray | None = None) -> None:
        wanted, end = rounded(self.expected(), self.out_type), sum(self.sizes)
        got, bits = self.result()[:end], self.out.numpy()[0]
        unwritten = (bits[:end, : self.row_bytes].reshape(end, self.columns, self.item) == 0xFF).all(axis=-1)
        wrong = numpy.argwhere(~((got == wanted) | (numpy.isnan(got) & numpy.isnan(wanted) & ~unwritten)))
        assert not len(wrong), (
            f"{len(wrong)} of {got.size} wrong, first at {wrong[0].tolist()}: "
            f"{got[tuple(wrong[0])]} for {wanted[tuple(wrong[0])]}"
        )
        assert (bits[end:] == 0xFF).all() and (bits[:, self.row_bytes :] == 0xFF).all(), "wrote outside"
