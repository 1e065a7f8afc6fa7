"""The C models as programs ask them: structs, constants and their ranges, plans ranked by modelled time, published
figures within the error that the document states, and counts that equal the kernels'."""

from __future__ import annotations

import math
import random
import shutil
import subprocess
from pathlib import Path

import b200_ranges as ranges
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
    found = c_model.constants_of("sm100")
    assert [constant.name for constant in found] == list(model.constants().members())
    for constant in found:
        known = ranges.RANGES[constant.name]
        assert constant.value > 0 and constant.source.strip() and known.source.strip(), constant
        assert 0 <= known.low <= constant.value <= known.high and known.low < known.high, constant
        assert constant.unit in ("GHz", "TB/s", "us", "B/clk", "clk"), constant


@pytest.mark.parametrize("backend", ["sm90", "sm100"])
def test_a_constant_changes_the_time(backend: str) -> None:
    """The planner computes with the constants that it is given; the defaults stay."""
    default, on = c_model.model(backend), c_model.device({"sm90": "h200", "sm100": "b200"}[backend])
    of = c_model.traits(128, 7168, 16384)

    def us(constants: c_model.Struct) -> list[float]:
        return [found.modelled_us for found in c_model.candidates(constants, on, of)]

    slow = default.copy(dram_tb_s=default.dram_tb_s / 10)
    assert min(us(slow)) > 1.5 * min(us(default))
    assert us(c_model.model(backend)) == us(default)
    assert us(c_model.model(backend, dram_tb_s=default.dram_tb_s / 10)) == us(slow)


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


# ---- ranges ----


@pytest.mark.parametrize("low, high", [(0.56, 0.72), (0.46, 0.54)])
def test_a_constant_outside_its_range_is_an_error(monkeypatch: pytest.MonkeyPatch, low: float, high: float) -> None:
    monkeypatch.setitem(ranges.RANGES, "first_byte_us", ranges.Range(low, high, "a source"))
    with pytest.raises(ValueError, match=f"first_byte_us: 0.55 is outside its range, {low} to {high}"):
        ranges.span(lambda c: c.first_byte_us, model.constants())


def test_a_constant_without_a_range_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ranges.RANGES, "first_byte_us")
    with pytest.raises(ValueError, match="without a range.*first_byte_us"):
        ranges.ranges()


def test_a_span_adds_the_changes_as_squares() -> None:
    """And its ends take a time's high with a rate's low."""
    first, gap, dram, hidden = (
        ranges.RANGES[name] for name in ("first_byte_us", "dependent_gap_us", "dram_tb_s", "exit_overlap_us")
    )
    c = model.constants()

    def us(k: c_model.Struct) -> float:
        return k.first_byte_us + k.dependent_gap_us + 10 / k.dram_tb_s - k.exit_overlap_us

    s = ranges.span(us, c)
    slow = (first.high, c.first_byte_us), (gap.high, c.dependent_gap_us), (10 / dram.low, 10 / c.dram_tb_s)
    fast = (first.low, c.first_byte_us), (gap.low, c.dependent_gap_us), (10 / dram.high, 10 / c.dram_tb_s)
    assert s.middle == us(c)
    for ends, squares, corner, overlap in ((slow, s.high, s.most, hidden.low), (fast, s.low, s.least, hidden.high)):
        changes = [end - value for end, value in ends] + [c.exit_overlap_us - overlap]
        assert corner == pytest.approx(s.middle + sum(changes))
        assert abs(squares - s.middle) == pytest.approx(math.hypot(*changes))
    assert s.least < s.low < s.middle < s.high < s.most
    # The squares are more than the extremes if the longest time counts.
    slower = ranges.span(lambda k: max(k.first_byte_us - c.first_byte_us, k.dependent_gap_us - c.dependent_gap_us), c)
    most = max(first.high - c.first_byte_us, gap.high - c.dependent_gap_us)
    assert slower.high == slower.most == pytest.approx(most)
    faster = ranges.span(lambda k: min(k.first_byte_us - c.first_byte_us, k.dependent_gap_us - c.dependent_gap_us), c)
    least = min(first.low - c.first_byte_us, gap.low - c.dependent_gap_us)
    assert faster.low == faster.least == pytest.approx(least)


def test_every_candidate_has_a_range() -> None:
    """No constant's end makes a call faster than all fast ends, or slower than all slow ones. With constant_b a call
    takes no longer, its main loop not less than DRAM needs; only one that leaves the next call room gains."""
    seed = random.randrange(2**32)
    c, gains = model.constants(), 0
    for shape in [*report.RANKED, *random_shapes(random.Random(seed), 5)]:
        for plan in model.plans(shape, model.configs(), c):
            told, s = f"seed {seed}: {shape} {plan}", plan.span
            assert s.middle == plan.us, told
            assert 0 < s.least <= s.low <= s.middle <= s.high <= s.most < math.inf, told
            for name, known in ranges.RANGES.items():
                for end in (known.low, known.high):
                    us = model.dependent_us(plan.work, c.copy(**{name: end}))
                    assert s.least - 1e-9 <= us <= s.most + 1e-9, f"{told}, {name} {end}"
            early = model.constant_b_us(shape, plan.work, c)
            floor = (plan.work.dram + plan.work.stores) / (c.dram_tb_s * 1e6)
            assert plan.us - plan.times.call.mainloop + floor < early + 1e-9 < plan.us + 2e-9, told
            assert plan.times.parts.resident or early == pytest.approx(plan.us), told
            gains += early < plan.us - 1e-3
    assert gains


# ---- the planner ----


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
    csrc = ROOT / "csrc"
    names = ["plan/choose.c", "plan/reject.c", "common/error.c"]
    names += [f"kernels/sm100/{name}.c" for name in ("backend", "grouped_plan", "units_plan")]
    names += ["kernels/units/plan.c", "kernels/units/grouped_plan.c"]
    sources = [csrc / name for name in names]
    sources += [ROOT / "tests/plan/b200_planner.c", ROOT / "benchmarks/c_model.c"]
    binary = tmp_path / "planner"
    subprocess.run(["gcc", "-std=c11", "-O1", "-DONLY_SM100", f"-I{csrc}", *sources, "-lm", "-o", binary], check=True)
    sizes = "".join(f"{s.m} {s.n} {s.k} {s.l} {rank}\n" for s, rank in zip(shapes, ranks))
    lines = subprocess.run([binary], input=sizes, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(lines) == len(shapes)
    for shape, times, rank, line in zip(shapes, modelled, ranks, lines):
        count, us = line.split()
        assert (int(count), float(us)) == (len(times), times[rank]), f"seed {seed}: {shape}, rank {rank}"


def test_a_plan_takes_as_long_as_its_parts() -> None:
    """The time that the tables divide into parts is the one that the planner ranks by."""
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


def test_the_competitions_file_ranks_by_time_without_pdl() -> None:
    """Its candidates under sm100_without_pdl take as long as the tables say."""
    c = model.constants()
    for shape in [*report.RANKED, *report.TASK]:
        found = list(model.plans(shape, model.configs(), c_model.without_pdl(c)))
        assert found
        for plan in found:
            assert plan.us == pytest.approx(model.times(plan.work, c).call.plain), f"{shape} {plan}"
        first = model.best(shape, model.configs(), c_model.without_pdl(c))
        assert str(first) == str(report.best_plain(shape, model.configs(), c)), shape


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
    found = [peer for peer in report.peers() if peer.kind == "cuBLASLt"]
    assert len(found) == 3
    for peer in found:
        assert abs(peer.error) < 20 and peer.span.low < peer.span.middle < peer.span.high, peer


def test_document_is_current() -> None:
    """`python benchmarks/model_b200.py --write` makes the tables of b200_model.md."""
    text = report.DOCUMENT.read_text()
    for name, lines in report.tables(model.configs(), model.constants()).items():
        assert f"<!-- {name} -->\n" + "\n".join(lines).rstrip() + "\n<!-- end -->" in text, name


def cells(lines: list[str]) -> list[list[str]]:
    """The cells of a table's rows."""
    return [line.strip("| ").split(" | ") for line in lines[2:]]


def prefill_without_multicast(c: c_model.Struct) -> float:
    """How much longer 8192^3 takes by 256x256 than by 256x256_multicast, in %."""
    rows = {config.name: config for config in model.configs()}
    pairs, fours = (
        model.best(model.Shape(8192, 8192, 8192), [rows[name]], c) for name in ("256x256", "256x256_multicast")
    )
    return 100 * (pairs.us / fours.us - 1)


def test_figures_in_the_documents_sentences_are_current() -> None:
    """The page sums up --configurations, --sensitivity and --worst."""
    text = " ".join(report.DOCUMENT.read_text().split())
    table = report.config_table(model.configs(), model.constants())
    changes = {name: [float(cell) for cell in row] for name, *row in cells(table)}
    assert f"without 256x256_multicast prefill takes {changes['without 256x256_multicast'][3]} % longer" in text
    assert max(abs(change) for row in changes.values() for change in row) < 3
    assert f"without 256x64_deep the ranked shapes {changes['without 256x64_deep'][0]} %" in text
    assert any(change == 0 and "without 256x64_multicast" in name for name, row in changes.items() for change in row)
    c = model.constants()
    most = max(float(row[-1]) for row in cells(report.mixed_table(model.configs(), c)))
    assert f"`256x256`, in pairs alone, is within {most} % of the mix" in text
    slower, faster = (prefill_without_multicast(c.copy(l2_tb_s=rate)) for rate in (c.l2_tb_s, 16.9))
    assert f"`256x256` is {slower:.0f} % slower than `256x256_multicast` at 14.2 TB/s" in text
    assert f"{-faster:.0f} % faster at 16.9" in text
    gains, mean = report.measured_gains(), report.measured_mean(model.configs(), c)
    assert f"gain up to {max(gains):.2f} us at M = 128; as much here would make {mean:.2f} us" in text
    others = report.worst_case(report.ALL, model.configs(), c)
    assert not [first.shape for first, _ in others if first.shape in report.RANKED]
    told = f"By the high, {len(others)} of {len(report.ALL)} shapes (`--worst`) would take another plan, of the ranked"
    assert f"{told} ones none, and none within 1 % of the least middle." in text
    assert not report.worst_case(report.ALL, model.configs(), c, within=1)


# ---- counts, against the real kernels in the emulator ----


@pytest.mark.skipif(not shutil.which("nvcc"), reason="the kernels' PTX is made by nvcc")
@pytest.mark.parametrize("name", [config.name for config in model.configs()] if shutil.which("gcc") else [])
def test_counts_are_the_kernels(name, tmp_path):
    """The model times what the kernel does, for whole tiles, one or several, and any split of K."""
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    config = next(config for config in model.configs() if config.name == name)
    launched = CONFIGS[f"sm100_gemm_{name}"]
    emulator, module = load(launched, 0)
    for split in splits(launched):
        swap_ab = draw.random() < 0.5
        mma_m = 128 * config.cta_group * draw.randint(1, 2)
        mma_n = config.mma_tile_n * config.multicast * draw.randint(1, 2 if config.mma_tile_n > 32 else 1)
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
