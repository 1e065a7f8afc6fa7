"""benchmarks/neighbours.py: the stored run of an H100 keeps its rules, but for the pairs that the log names."""

from dataclasses import replace

import neighbours  # benchmarks/neighbours.py
import pytest
import recorded

from nvfp4.bench.shapes import MONOTONE_M, Shape

LONG = 1  # pairs of the rules for fewer rows and other columns, of long calls
AVOIDABLE = 2  # pairs that a measured plan would avoid, and the model does not know


@pytest.fixture(scope="module")
def times() -> neighbours.Times:
    return neighbours.read()


def logged() -> list[list[str]]:
    header, *rows = recorded.table(neighbours.LOG)
    assert header == neighbours.HEADER
    return rows


def test_the_stored_run_has_every_pair(times: neighbours.Times) -> None:
    rules = [rule for rule, _, _ in neighbours.pairs(times)]
    steps, near = len(neighbours.LAYERS) * (len(MONOTONE_M) - 1), len(neighbours.RANKED) * len(neighbours.NEAR_M)
    assert rules.count("M") == rules.count("order") == steps == 660
    assert rules.count("N") == 6 * near and rules.count("K") == 4 * near


def test_neighbours_stay_within_5_percent_but_for_the_log(times: neighbours.Times) -> None:
    broken = neighbours.found(times)
    assert [pair.row(times) for pair in broken] == logged()
    assert all(neighbours.reason(pair) for pair in broken), "each has a reason"
    assert sum(pair.avoidable for pair in broken) <= AVOIDABLE
    others = [pair for pair in broken if pair.rule in ("order", "N")]
    assert len(others) <= LONG and all(neighbours.is_long(pair.other) for pair in others), "other columns, fewer rows"


def test_no_chosen_plan_takes_5_percent_longer_than_another(times: neighbours.Times) -> None:
    assert len(times) == 12 * len(MONOTONE_M) + 3 * len(neighbours.NEAR) * len(neighbours.NEAR_M)
    lost = dict(zip(times, neighbours.regrets(times)))
    assert max(by for shape, by in lost.items() if not neighbours.is_long(shape)) <= neighbours.MAX_LOSS
    assert max(lost.values()) <= 2 * neighbours.MAX_LOSS


def slower(times: neighbours.Times, shape: Shape, by: float) -> neighbours.Times:
    """With another time of the chosen plan."""
    first, *others = times[shape]
    return times | {shape: [replace(first, graph=by * first.graph), *others]}


@pytest.mark.parametrize(
    ("shape", "rules"),
    [
        (Shape(5, 4096, 7168), ("M", "order")),
        (Shape(104, 7168, 16384), ("M", "order")),
        (Shape(128, 4104, 7168), ("N",)),
        (Shape(32, 7168, 2112), ("K",)),
    ],
    ids=str,
)
def test_a_slower_product_is_found(times: neighbours.Times, shape: Shape, rules: tuple[str, ...]) -> None:
    """A fifth more time breaks the rules of a product."""
    before = {(pair.rule, pair.one, pair.other) for pair in neighbours.found(times)}
    changed = slower(times, shape, 1.2)
    pairs = [pair for pair in neighbours.found(changed) if (pair.rule, pair.one, pair.other) not in before]
    assert set(rules) <= {pair.rule for pair in pairs if pair.other == shape}


def test_a_plan_that_is_slower_than_another_is_found(times: neighbours.Times) -> None:
    shape = Shape(8, 7168, 16384)
    assert len(times[shape]) > 1
    assert max(neighbours.regrets(slower(times, shape, 1.2))) > 0.1


def test_rates_are_those_of_the_floor() -> None:
    few, many = Shape(1, 4096, 7168), Shape(4096, 4096, 7168)
    assert neighbours.floor(few) == pytest.approx(few.bytes / 2.9e6)
    assert neighbours.floor(many) == pytest.approx(2 * 4096 * 4096 * 7168 / 6.2e8)
    plans = {few: [neighbours.Timed("a", 9, 6), neighbours.Timed("b", 9, 5)], many: [neighbours.Timed("a", 9, 400)]}
    assert neighbours.fastest(plans[few]) == 5 and neighbours.chosen(plans[few]) == 6
    assert neighbours.regrets(plans) == pytest.approx([0.2, 0])
