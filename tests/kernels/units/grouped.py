"""Products of csrc/kernels/units/grouped.cuh: any number of CTAs, any team, any number of pairs a tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import pytest
import torch
from emulate import Array, Emulator, Module
from harness import launch
from harness.headers import Config, Struct, headers_of
from harness.launch import EVICT_FIRST, SWIZZLE_128, UINT8, Generator
from harness.predecessor import Predecessor
from harness.values import BF16, FP16, FP32, NAN, TYPES, ceil_div, rounded, stored, swizzle_scales
from units.gemm import ATOMS, BACKENDS, HEADERS, STEP_K

import nvfp4

CONFIGS = {name: config for of in BACKENDS for name, config in headers_of(of).configs("grouped_units").items()}
Schedule, GroupedProblem = HEADERS.structs["grouped_units_schedule"], HEADERS.structs["grouped_problem"]
WARPS = HEADERS.value("GROUPED_UNITS_WARPS")
DTYPES = {FP16: torch.float16, BF16: torch.bfloat16, FP32: torch.float32}


@dataclass(frozen=True)
class Activation:
    """The activation of a product of groups, as the arguments of nvfp4.gated."""

    number: int
    limit: float | None = None
    alpha: float | None = None

    @property
    def name(self) -> str:
        return ("silu", "gelu_tanh", "relu2", "swiglu")[self.number]

    def fields(self) -> dict[str, float]:
        """Fields of a grouped_problem."""
        limit, alpha = self.limit or float("inf"), self.alpha or 1.702
        return {"has_activation": 1, "activation": self.number, "limit": limit, "activation_alpha": alpha}

    def fill(self, numbers: Struct, parts: int) -> None:
        """The numbers of a schedule, as gating.h's gating_of computes them."""
        of_problem = self.fields()
        numbers.limit, numbers.alpha = of_problem["limit"], of_problem["activation_alpha"]
        numbers.up_limit = numbers.limit if parts == 2 else float("inf")
        numbers.min_gate = numpy.float32(-86) / numpy.float32(numbers.alpha)

    def of(self, results: numpy.ndarray, parts: int, kind: int) -> numpy.ndarray:
        """The CPU's result for those of both parts, which are rounded to that type."""
        gate, *up = (torch.tensor(x.copy()).to(DTYPES[kind]) for x in numpy.split(results, parts, 1))
        return nvfp4.gated(gate, *up, activation=self.name, limit=self.limit, alpha=self.alpha).float().numpy()


def draw_activation(random: Generator, parts: int) -> Activation:
    number = int(random.choice((0, 1, 3) if parts == 2 else (0, 1, 2)))
    limit = float(random.choice([0.75, 7.0])) if number in (0, 3) and random.integers(2) else None
    return Activation(number, limit, float(random.choice([0.5, 1.702])) if number == 3 else None)


class Product(launch.Product):
    """Groups that end at `ends`, whose sizes add up to M. 16-bit A of small integers, so that sums are exact; it has
    `a_rows` rows, of which `rows` names those of the result. NaN follows each."""

    def __init__(
        self, emulator: Emulator, generator: Generator, config: Config, ends: list[int], n: int, k: int,
        parts: int = 1, out_type: int = FP32, m: int | None = None, gathers: bool = True,
        activation: Activation | None = None,
    ) -> None:  # fmt: skip
        self.ends, self.parts, self.config, self.activation = ends, parts, config, activation
        self.columns = n if activation else parts * n  # of the result
        m = max(ends) if m is None else m
        super().__init__(emulator, generator, 1, n, k, len(ends) * parts, pitch=ceil_div(k // 2, 16) * 16)
        self.m, self.a_type = m, BF16 if config.bf16 else FP16
        a_rows = int(generator.integers(1, m + 3)) if gathers else m
        self.rows_of = generator.integers(0, a_rows, m).astype("i4") if gathers else numpy.arange(m, dtype="i4")
        self.values = generator.integers(-12, 13, (a_rows, k)) / 2
        self.a_pitch = 2 * k + 16 * int(generator.integers(2))
        self.result_type, self.item = out_type, 4 if out_type == FP32 else 2
        self.out_type = out_type
        self.out_pitch = ceil_div(self.columns * self.item, 16) * 16 + 16
        self.out = emulator.empty((m, self.out_pitch), numpy.uint8)
        self.scale: numpy.ndarray | None = None
        self.placed_rows = emulator.array(self.rows_of) if gathers else None
        self.placed_ends = emulator.array(numpy.array(ends, "i4"))
        self.row_scale: Any = None
        self.place_a()

    def place_a(self) -> None:
        rows = numpy.full((len(self.values), self.a_pitch // 2), 0xFFFF, "u2")
        rows[:, : self.k] = stored(self.values, self.a_type)
        self.arrays[0] = self.emulator.array(rows)

    def scale_rows(self, generator: Generator) -> None:
        """Gives each row of the result a factor."""
        self.scale = generator.choice([0.5, 1.0, -2.0], self.m)
        self.row_scale = self.emulator.array(self.scale.astype("f4"))

    def problem(self) -> Struct:
        one = super().problem()
        one.m, one.a_type, one.product_kind = self.m, self.a_type, 2
        one.out_batch = 0 if self.activation else self.n * self.item
        one.scale_a = one.scale_a_pitch = one.scale_a_batch = one.a_batch = 0
        one.a_pitch, one.out_pitch, one.aligned16 = self.a_pitch, self.out_pitch, 1
        for name, value in self.extras.items():
            setattr(one, name, value)
        return GroupedProblem(
            g=one, ends=self.placed_ends.address, rows=self.placed_rows.address if self.placed_rows else 0,
            row_scale=self.row_scale.address if self.row_scale else 0, a_rows=len(self.values),
            groups=len(self.ends), parts=self.parts, **(self.activation.fields() if self.activation else {}),
        )  # fmt: skip

    def launch(
        self, module: Module, config: Config, ctas: int = 132, team_log2: int = 0, tile_pairs: int = 1,
        wait: bool = True,
    ) -> None:  # fmt: skip
        pairs, steps = HEADERS.value("UNITS_ALL", self.n) // 2, ceil_div(self.k, STEP_K)
        parts = self.parts if self.activation else 1  # of a tile
        assert 1 << team_log2 <= min(steps, WARPS) and tile_pairs * parts * config.a_units <= config.pairs
        made = Schedule(
            a_cache_policy=EVICT_FIRST, b_cache_policy=EVICT_FIRST, team_log2=team_log2, steps=steps, pairs=pairs,
            full_pairs=HEADERS.value("UNITS_FULL", self.n) // 2, tile_pairs=tile_pairs,
            tiles_n=ceil_div(pairs, tile_pairs),
        )  # fmt: skip
        if self.activation:
            self.activation.fill(made.numbers, self.parts)
        b, sfb, l, blocks = self.arrays[2], self.arrays[3], self.l, ceil_div(self.n, 128)
        if self.n >= 128:
            dims = (self.k // 2, 32, self.n // 128 * 4, l)
            strides = (self.pitch, 32 * self.pitch, self.n * self.pitch)
            made.b_pairs = self.tensor_map(UINT8, b, dims, strides, (STEP_K // 2, 4, 4, 1), SWIZZLE_128)
        if self.n % 128:
            made.b_tail = self.values_map(1, (STEP_K // 2, 4, 1), SWIZZLE_128)
        atoms = ceil_div(self.k, 64)
        dims, strides = (512, atoms, blocks, l), (512, atoms * 512, blocks * atoms * 512)
        made.b_scales = self.tensor_map(UINT8, sfb, dims, strides, (64, ATOMS, 1, 1))
        self.start(module, config, made, ctas, config.shared_bytes, wait=wait)

    def expected(self) -> numpy.ndarray:
        """[M, parts * N], before an activation; NaN for an index outside of A; rows that no group has stay as they are
        (here 0)."""
        b = self.decoded(1).reshape(len(self.ends), self.parts * self.n, self.k)
        result, begin = numpy.zeros((self.m, self.parts * self.n)), 0
        for group, end in enumerate(numpy.maximum.accumulate(numpy.clip(self.ends, 0, self.m))):
            of_a = self.rows_of[begin:end]
            inside = (of_a >= 0) & (of_a < len(self.values))
            rows = numpy.where(inside[:, None], self.values[numpy.where(inside, of_a, 0)], numpy.nan)
            result[begin:end] = rows @ b[group].T
            begin = max(begin, int(end))
        self.computed = begin
        return result if self.scale is None else result * self.scale[:, None]

    def result(self) -> numpy.ndarray:
        rows = numpy.ascontiguousarray(self.out.numpy()[:, : self.columns * self.item])
        return launch.loaded(rows, self.out_type).reshape(self.m, -1)

    def untouched(self) -> bool:
        out = self.out.numpy()
        behind = (out[:, self.columns * self.item :] == 0xFF).all()
        return bool(behind and (out[self.computed :] == 0xFF).all())

    def check(self, expected: numpy.ndarray | None = None) -> None:
        wanted = launch.rounded(self.expected() if expected is None else expected, self.out_type)
        if self.activation:
            wanted = self.activation.of(wanted, self.parts, self.out_type)
        wanted = wanted[: self.computed]
        got = self.result()[: self.computed]
        wrong = numpy.argwhere(~((got == wanted) | (numpy.isnan(got) & numpy.isnan(wanted))))
        assert not len(wrong), (
            f"{len(wrong)} of {got.size} wrong, first at {wrong[0].tolist()}: "
            f"{got[tuple(wrong[0])]} for {wanted[tuple(wrong[0])]}"
        )
        assert self.untouched(), "wrote outside the result"


def draw_ends(random: Generator, m: int, groups: int) -> list[int]:
    """Some groups are empty, one may have nearly all rows, and ends may be of any value."""
    ends = numpy.sort(random.integers(0, m + 1, groups))
    kind = int(random.integers(4))
    if kind == 0:
        ends = numpy.where(numpy.arange(groups) < random.integers(groups), 0, m)
    elif kind == 1:
        ends = random.integers(-3, m + 4, groups)
    return [int(end) for end in ends]


def place_nan(product: Product) -> numpy.ndarray:
    """Puts NaN into a scale, a row of A and, by indices outside of A, rows of a product with ends [5, 9] and 150
    columns; returns which results become NaN."""
    product.scales[1][1, 70, 64] = NAN
    product.arrays[2].numpy()[1, 70] = 0
    product.arrays[3].numpy()[:] = swizzle_scales(product.scales[1], NAN)
    product.values[2, 50] = numpy.nan
    product.place_a()
    product.rows_of[:] = numpy.arange(9)
    product.rows_of[[0, 7]] = -1, 2**31 - 1
    product.placed_rows = product.emulator.array(product.rows_of)
    expected = numpy.zeros((9, 150), bool)
    expected[[0, 2, 7]], expected[5:, 70] = True, True
    return expected


def place_epilogue(product: Product, random: Generator, case: int) -> Callable[[], numpy.ndarray]:
    """Gives the product factors of rows and, by case, alpha as a number, of all, of each matrix, or of each of its
    columns, and with the last two a bias of each matrix in any type; returns what computes the results before
    rounding."""
    alpha = random.choice([0.5, 1, -2, 4], (product.l, product.n)).astype("f4")
    if case % 4 == 0:
        alpha[:] = 2.0
        product.extras["alpha_value"] = 2.0
    elif case % 4 == 1:
        alpha[:] = alpha[0, 0]
        product.keep(alpha[0, :1].copy(), "alpha", alpha_stride=0)
    elif case % 4 == 2:
        alpha[:] = alpha[:, :1]
        product.keep(alpha[:, 0].copy(), "alpha", alpha_stride=0, by_batch=1)
    else:
        product.keep(alpha, "alpha", alpha_stride=1, by_batch=1)
    bias = numpy.zeros_like(alpha)
    if case % 4 > 1:
        bias_type = TYPES[int(random.integers(3))]
        bias = rounded(random.integers(-64, 65, alpha.shape), bias_type)
        product.keep(stored(bias, bias_type), "bias", bias_type=bias_type)
        product.extras["by_batch"] = 3
    product.scale_rows(random)

    def results() -> numpy.ndarray:
        scale, product.scale = product.scale, None
        group = numpy.searchsorted(product.ends, numpy.arange(product.m), side="right")
        by_row = [x.reshape(len(product.ends), -1)[group] for x in (alpha, bias)]
        return (product.expected() * by_row[0] + by_row[1]) * scale[:, None]

    return results


def check_activations(
    kind_of_product: type[Product], launch_one: Callable[[Any, Module, int], None], config: Config, random: Generator,
    monkeypatch: pytest.MonkeyPatch, cases: int, most_rows: int, draw_k: Callable[[Generator, int], int],
) -> None:  # fmt: skip
    """Gate and up in one tile, or one part alone: the bits of the product, rounded, and of nvfp4.gated on the CPU. NaN
    of a row outside of A passes. alpha and bias are those of each matrix, so that those of gate are not up's. Lanes of
    a warp in step and apart."""
    for case in range(cases):
        monkeypatch.setenv("EMULATE_LANES", ("together", "apart")[case // 2 % 2])
        emulator, module = launch.load(config, launch.timing(random, case))
        parts, kind = (2, 2, 1, 2)[case % 4], (FP16, BF16)[case % 2]
        m, groups = int(random.integers(1, most_rows)), int(random.integers(1, 5))
        n, k = int(random.integers(1, (300, 60)[case % 2])), draw_k(random, case)
        ends, ctas = draw_ends(random, m, groups), int(random.choice([1, 2, 5]))
        activation = draw_activation(random, parts)
        print(f"{ends} of {m} by {n} x {k}, {parts} parts, {ctas} CTAs, {activation}")
        product = kind_of_product(emulator, random, config, ends, n, k, parts, kind, m, case % 2 == 0, activation)
        results = place_epilogue_of_each_matrix(product, random, case)
        launch_one(product, module, ctas)
        product.check(results())


def check_calls_in_a_row(calls: Sequence[Product], launch_one: Callable[..., None], a_is_fp16: bool) -> None:
    """Launches dependent calls of FP16 results, each with the previous result as A. They are compared if the kernel
    reads A as FP16."""
    for previous, call in zip(calls, calls[1:]):
        call.arrays[0], call.a_pitch = previous.out, previous.out_pitch
    for call in calls:
        call.extras["alpha_value"] = 2.0**-10
        launch_one(call)
    calls[0].emulator.synchronize()
    for previous, call in zip([None, *calls], calls):
        if previous is not None:
            call.values = previous.result().astype("f8")
        if a_is_fp16:
            exact = call.expected() * 2.0**-10
            assert numpy.allclose(call.result(), rounded(exact, FP16), rtol=2**-9, atol=2**-14)


def check_late_operand(
    product: Product, launch_one: Callable[..., None], operand: str, random: Generator, case: int
) -> None:
    """The grid before writes an operand late, or reads the output late and overwrites it."""
    before = Predecessor(product.emulator, product.config.headers.name)
    array, value = late_operand(product, operand, random, case)
    if operand == "out":
        before.reads_and_writes(array)
    else:
        before.writes(array, value)
    with before.launched():
        launch_one(product)
    product.check(product.expected() * product.alpha)


def late_operand(product: Product, operand: str, random: Generator, case: int) -> tuple[Array, int | None]:
    """Gives the product factors of rows and an alpha in memory; returns the operand's memory, and the value that it
    has before."""
    product.scale_rows(random)
    product.alpha = float(random.choice([0.5, 2.0]))
    product.keep(numpy.array([product.alpha], "f4"), "alpha", alpha_stride=0)
    arrays = {"a": product.arrays[0], "b": product.arrays[2], "scale_b": product.arrays[3], "out": product.out}
    arrays |= {"ends": product.placed_ends, "rows": product.placed_rows, "row_scale": product.row_scale}
    value = {"ends": (0, 20, -1)[case % 3], "rows": 0, "b": 0, "scale_b": 0}.get(operand)
    return (arrays | {"alpha": product.kept["alpha"]})[operand], value


def place_epilogue_of_each_matrix(product: Product, random: Generator, case: int) -> Callable[[], numpy.ndarray]:
    """Gives the product an alpha of each matrix or of each of its columns, in some cases a bias of each, factors of
    rows, or a row outside of A; returns what computes the results before rounding. They suit activations: many are
    near 0."""
    emulator, m, n = product.emulator, product.m, product.n
    by_matrix = (product.l, n)
    of_columns = case % 4 < 2
    alpha = random.choice([2.0**-5, -(2.0**-7), 2.0**-8], by_matrix if of_columns else (product.l, 1))
    product.keep(alpha.astype("f4"), "alpha", alpha_stride=int(of_columns), by_batch=1)
    alpha, bias = numpy.broadcast_to(alpha, by_matrix), numpy.zeros(by_matrix)
    if case % 4 in (0, 3):
        bias = random.integers(-8, 9, by_matrix) / 4
        product.keep(stored(bias, FP16), "bias", bias_type=FP16)
        product.extras["by_batch"] = 3
    if case % 2:
        product.scale_rows(random)
    elif product.placed_rows is not None:
        product.rows_of[m // 2] = -1
        product.placed_rows = emulator.array(product.rows_of)
    ends = numpy.maximum.accumulate(numpy.clip(product.ends, 0, m))
    group = numpy.minimum(numpy.searchsorted(ends, numpy.arange(m), side="right"), len(ends) - 1)

    def results() -> numpy.ndarray:
        scale, product.scale = product.scale, None
        by_row = [x.reshape(len(ends), -1)[group] for x in (alpha, bias)]
        unscaled = product.expected() * by_row[0] + by_row[1]
        return unscaled if scale is None else unscaled * scale[:, None]

    return results
