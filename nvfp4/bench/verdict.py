"""Which of the measured plans is the fastest, and what the model's ranking is worth."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from nvfp4._tuning import SETTINGS
from nvfp4.bench import timing
from nvfp4.bench.plans import Candidate


def judge(found: list[Candidate]) -> dict[str, Any]:
    """The fastest plan, the time of the model's choice relative to it, and the plan that use_tuning takes."""
    timed = [candidate for candidate in found if candidate.samples and not candidate.wrong]
    verdict: dict[str, Any] = {"fastest": None, "loss": None, "selected": None, "rank_correlation": None}
    if timed:
        fastest = min(timed, key=lambda candidate: statistics.median(candidate.samples[::2]))
        choice = found[0]
        verdict["fastest"] = verdict["selected"] = fastest.rank
        if choice in timed:
            pairs = list(zip(choice.samples, fastest.samples))
            loss = timing.Spread.of([ours / best for ours, best in pairs[1::2] or pairs])
            verdict["loss"] = asdict(loss)
            if loss.p10 <= 1:  # faster in fewer than nine of ten rounds: keep the model's choice
                verdict["selected"] = choice.rank
        modelled = [candidate.plan["modelled_us"] for candidate in timed]
        verdict["rank_correlation"] = rank_correlation(modelled, [candidate.median for candidate in timed])
    listed = [
        {
            "rank": candidate.rank,
            **{name: candidate.plan[name] for name in SETTINGS},
            **{name: candidate.plan[name] for name in ("tile_m", "tile_n", "stages", "grid", "modelled_us")},
            "wrong": candidate.wrong,
            "samples_us": candidate.samples,
        }
        for candidate in found
    ]
    return verdict | {"candidates": listed}


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks in ascending order from 1 on; equal values share the mean of their ranks."""
    ordered = sorted(values)
    first: dict[float, int] = {}
    last: dict[float, int] = {}
    for rank, value in enumerate(ordered, start=1):
        first.setdefault(value, rank)
        last[value] = rank
    return [(first[value] + last[value]) / 2 for value in values]


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's coefficient; None if all values of x or of y are equal."""
    if len(set(x)) < 2 or len(set(y)) < 2:
        return None
    return statistics.correlation(ranks(x), ranks(y))


def fit(results: list[dict[str, Any]]) -> dict[str, Any] | None:
    """measured = offset_us + scale * modelled, by least squares of relative errors over all plans of all shapes.

    The offset corrects the model's fixed terms (the gap between calls, the first byte), the scale the terms that grow
    with the work.
    """
    points = [
        (candidate["modelled_us"], statistics.median(candidate["samples_us"]))
        for result in results
        for candidate in result["candidates"]
        if candidate["samples_us"] and not candidate["wrong"]
    ]
    if len({modelled for modelled, _ in points}) < 3:
        return None
    weight = [measured**-2 for _, measured in points]
    total = sum(weight)
    x, y = (sum(w * point[i] for w, point in zip(weight, points)) / total for i in range(2))
    spread = sum(w * (modelled - x) ** 2 for w, (modelled, _) in zip(weight, points))
    scale = sum(w * (modelled - x) * (measured - y) for w, (modelled, measured) in zip(weight, points)) / spread
    offset = y - scale * x
    errors = [(offset + scale * modelled) / measured - 1 for modelled, measured in points]
    return {
        "offset_us": offset,
        "scale": scale,
        "relative_error": math.sqrt(sum(error**2 for error in errors) / len(errors)),
        "plans": len(points),
    }
