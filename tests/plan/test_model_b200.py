"""The C models as programs ask them: structs and constants, plans ranked by modelled time, published figures within the
error that the document states, and counts that equal the kernels'."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import b200_report as report
import b200_trace as trace
import c_model
import model_b200 as model
import numpy
import pytest
from harness.launch import load
from harness.values import FP16
from paths import ROOT
from sm100.gemm import CONFIGS, Product, splits

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="gcc not installed")


def random_shapes(draw: random.Random, count: int) -> list[model.Shape]:
    sizes = [[int(2 ** draw.uniform(0, 13)) for _ in range(2)] for _ in range(count)]
    return [model.Shape(m, n, 64 * draw.randint(1, 256), draw.choice((1, 1, 2, 8))) for m, n in sizes]


# ---- c_model.py ----


def test_every_constant_has_a_unit_and_a_source() -> None:
    found = c_model.sm100_constants()
    assert [constant.name for constant in found] == list(model.constants().members())
    for constant in found:
        assert constant.value > 0 and constant.source.strip(), constant
        assert constant.unit in ("GHz", "TB/s", "us", "B/clk", "clk"), constant


@pytest.mark.parametrize("family", ["sm90", "sm100"])
def test_a_constant_changes_the_time(family: str) -> None:
    """The planner computes with the constants that it is given; the defaults stay."""
    default, on = c_model.model(family), c_model.device({"sm90": "h200", "sm100": "b200"}[family])
    of = c_model.traits(128, 7168, 16384)

    def us(constants: c_model.Struct) -> list[float]:
        return [found.modelled_us for found in c_model.candidates(constants, on, of)]

    slow = default.copy(dram_tb_s=default.dram_tb_s / 10)
    assert min(us(slow)) > 1.5 * min(us(default))
    assert us(c_model.model(family)) == us(default)
    assert us(c_model.model(family, dram_tb_s=default.dram_tb_s / 10)) == us(slow)


def test_an_unknown_constant_is_an_error() -> None:
    constants = model.constants()
    with pytest.raises(AttributeError, match="dram_gb_s"):
        model.constants(dram_gb_s=7250.0)
    with pytest.raises(AttributeError, match="dram_gb_s"):
        constants.copy(dram_gb_s=7250.0)
    with pytest.raises(AttributeError, match="dram_gb_s"):
        constants.dram_gb_s = 7250.0


def test_a_member_that_is_not_described_is_an_error() -> None:
    library = c_model.library()
    (size,) = (int(size) for owner, size in library.facts["size"] if owner == "gemm_candidate")
    rows = [row[1:] for row in library.facts["field"] if row[0] == "gemm_candidate"]
    assert c_model.struct("gemm_candidate", size, rows)
    for i in range(len(rows)):
        with pytest.raises(TypeError, match="gemm_candidate"):
            c_model.struct("gemm_candidate", size, rows[:i] + rows[i + 1 :])


# ---- the planner ----

# What plan_choose takes with the sm100 family alone, on the B200 of the model, at a rank.
PLANNER = r"""
#include <stdio.h>
#include "plan/choose.h"
extern const gemm_family sm100_family;
const gemm_family *const gemm_families[GEMM_FAMILIES] = {[NVFP4_BACKEND_SM100] = &sm100_family};
extern const device_props b200_props;
void contiguous_traits(int64_t m, int64_t n, int64_t k, int64_t l, gemm_traits *out);
int main(void) {
    long long m, n, k, l;
    int rank;
    while (scanf("%lld %lld %lld %lld %d", &m, &n, &k, &l, &rank) == 5) {
        plan_query query;
        memset(&query, 0, sizeof query);
        query.props = b200_props;
        contiguous_traits(m, n, k, l, &query.traits);
        query.families = 1u << NVFP4_BACKEND_SM100;
        query.rank = rank;
        const plan_choice *choice = plan_choose(&query);
        printf("%d %.17g\n", choice->candidates, choice->taken.modelled_us);
    }
}
"""


def test_plan_takes_what_the_model_calls_fastest(tmp_path: Path) -> None:
    """And at any rank what is modelled to take that place."""
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    shapes = [*report.RANKED, *report.DECODE, *report.TASK, *report.PREFILL, *random_shapes(draw, 100)]
    modelled = [
        sorted(
            found.modelled_us for found in c_model.candidates(model.constants(), c_model.device("b200"), shape.traits)
        )
        for shape in shapes
    ]
    ranks = [draw.choice((0, draw.randrange(len(times)))) for times in modelled]
    (tmp_path / "planner.c").write_text(PLANNER)
    csrc = ROOT / "csrc"
    sources = [csrc / name for name in ("plan/choose.c", "kernels/sm100/family.c", "common/error.c")]
    sources += [tmp_path / "planner.c", ROOT / "benchmarks/c_model.c"]
    binary = tmp_path / "planner"
    subprocess.run(["gcc", "-std=c11", "-O1", f"-I{csrc}", *sources, "-lm", "-o", binary], check=True)
    sizes = "".join(f"{s.m} {s.n} {s.k} {s.l} {rank}\n" for s, rank in zip(shapes, ranks))
    lines = subprocess.run([binary], input=sizes, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(lines) == len(shapes)
    for shape, times, rank, line in zip(shapes, modelled, ranks, lines):
        count, us = line.split()
        assert (int(count), float(us)) == (len(times), times[rank]), f"seed {seed}: {shape}, rank {rank}"


def test_a_plan_takes_as_long_as_its_parts() -> None:
    """What the tables divide into parts is the time that the planner ranks by."""
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    rows = model.configs()
    for shape in [*report.RANKED, *report.DECODE, *random_shapes(draw, 50)]:
        constants = model.constants()
        name = draw.choice(list(constants.members()))
        setattr(constants, name, getattr(constants, name) * draw.uniform(0.5, 2))
        for plan in model.plans(shape, rows, constants):
            parts, call = plan.times.parts, plan.times.call
            body = parts.first_byte + getattr(parts, plan.times.bound_by) + parts.again
            body += parts.last_stage + parts.reduction + parts.epilogue
            wanted = pytest.approx(constants.dependent_gap_us + call.exposed + body)
            assert call.dependent == wanted and plan.us == wanted, f"seed {seed}: {shape} {plan}"
            assert call.plain == pytest.approx(constants.plain_gap_us + constants.prologue_us + body)


def test_other_instantiations_take_the_place_of_the_kernels() -> None:
    shape = report.RANKED[0]
    (known,) = (config for config in model.configs() if config.name == "256x64")
    alone = list(model.plans(shape, [known], model.constants()))
    among = [plan for plan in model.plans(shape, model.configs(), model.constants()) if plan.config == known]
    assert alone and [(str(plan), plan.us) for plan in alone] == [(str(plan), plan.us) for plan in among]
    deeper = known._replace(name="256x64, 8 stages", stages=8)
    assert {plan.config for plan in model.plans(shape, [deeper], model.constants())} == {deeper}
    assert model.work_of(shape, deeper).stages == 8


# ---- the tables ----


def test_published_figures() -> None:
    """cuBLASLt is the one published kernel whose tile is known and whose time is the GPU's alone."""
    found = [peer for peer in report.peers() if peer.name.startswith("cuBLASLt")]
    assert len(found) == 3
    for peer in found:
        assert peer.time(model.times(peer.work, model.constants())) == pytest.approx(peer.us, rel=0.2), peer


def test_document_is_current() -> None:
    """`python benchmarks/model_b200.py --write` makes the tables of b200_model.md."""
    text = report.DOCUMENT.read_text()
    for name, lines in report.tables(model.configs(), model.constants()).items():
        assert f"<!-- {name} -->\n" + "\n".join(lines).rstrip() + "\n<!-- end -->" in text, name


def cells(lines: list[str]) -> list[list[str]]:
    """Of a table's rows."""
    return [line.strip("| ").split(" | ") for line in lines[2:]]


def test_figures_in_the_documents_sentences_are_current() -> None:
    """Those of --configurations and --sensitivity, which the page sums up."""
    text = " ".join(report.DOCUMENT.read_text().split())
    table = report.config_table(model.configs(), model.constants())
    changes = {name: [float(cell) for cell in row] for name, *row in cells(table)}
    prefill, ranked = changes.pop("without 256x256")[3], changes.pop("without 256x64")[0]
    assert f"Without 256x256 prefill takes {prefill} % longer, without 256x64 the ranked shapes {ranked} %." in text
    assert max(abs(change) for row in changes.values() for change in row) < 3
    first, second, third = ((name, most) for name, *_, most in cells(report.sensitivity_table(model.configs()))[:3])
    most = f"20 % of `{first[0]}` change the mean most, by {first[1]} %;"
    assert f"{most} then `{second[0]}` ({second[1]} %) and `{third[0]}` ({third[1]} %)." in text


# ---- counts, against the real kernels in the emulator ----


@pytest.mark.skipif(not shutil.which("nvcc"), reason="the kernels' PTX is made by nvcc")
@pytest.mark.parametrize("name", [config.name for config in model.configs()] if shutil.which("gcc") else [])
def test_counts_are_the_kernels(name, tmp_path):
    """Of whole tiles, one or several, any split of K: what the model times is what the kernel does."""
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    config = next(config for config in model.configs() if config.name == name)
    launched = CONFIGS[f"sm100_gemm_{name}"]
    emulator, module = load(launched, 0)
    for split in splits(launched):
        swap_ab = draw.random() < 0.5
        mma_m = 128 * config.cta_group * draw.randint(1, 2)
        mma_n = config.mma_tile_n * draw.randint(1, 2 if config.mma_tile_n > 32 else 1)
        shape = model.Shape(*((mma_n, mma_m) if swap_ab else (mma_m, mma_n)), 256 * split * draw.randint(1, 3))
        product = Product(emulator, numpy.random.default_rng(seed), shape.m, shape.n, shape.k, out_type=FP16)
        path = tmp_path / f"{split}.json"
        emulator.set("trace", str(path))
        product.launch(module, launched, swap_ab, split)
        emulator.set("trace", "")
        (kernel,) = trace.read(path, launched.kernel)
        got, want = trace.counted(kernel).rows(), trace.modelled(shape, config, split, swap_ab).rows()
        if config.cp_async:  # these warps load only scales that exist
            got, want = ({key: counts[key] for key in ("stored", "operands", "mma", "cp")} for counts in (got, want))
        assert got == want, f"seed {seed}: {shape}, split {split}, swap_ab {swap_ab}"
