"""Fits the constants of csrc/kernels/sm90/model.h to measured times, and reports what the chosen plans cost.

    python benchmarks/fit_sm90.py          the constants as they stand: error, and regret of each shape
    python benchmarks/fit_sm90.py --fit    the same after fitting, and the constants, to be written into the header

The C code of csrc/ ranks the plans, through c_model.py, with the constants of this program. The measured times are in
results/sm90_candidates.csv. The regret of a shape is the time of its chosen plan over that of its fastest measured
plan, minus 1. A fit keeps constants that were measured directly and limits that no measured plan reaches (KEPT). Needs
gcc.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import c_model

MEASURED = Path(__file__).resolve().parent / "results/sm90_candidates.csv"
KEPT = {
    "least_worker",
    "uneven",
    "unaligned_split",
    "clock_ghz",
    "dram_tb_s",
    "dequant_tb_s",
    "ingress_b_clk",
    "l2_tb_s",
}
EVENT_PAIR_US = 1.25  # an empty pair of events, in each measured time

Shape = tuple[int, int, int]
Plan = tuple[str, int, int]  # kernel, swap_ab, split_k


def read_measured() -> dict[Shape, dict[Plan, float]]:
    """Microseconds of every measured plan of every shape, without the events."""
    found: dict[Shape, dict[Plan, float]] = defaultdict(dict)
    with MEASURED.open() as lines:
        for row in csv.DictReader(line for line in lines if not line.startswith("#")):
            shape = (int(row["m"]), int(row["n"]), int(row["k"]))
            plan = (row["kernel"], int(row["swap_ab"]), int(row["split_k"]))
            found[shape][plan] = float(row["us"]) - EVENT_PAIR_US
    return found


class Model:
    """The planner of an H200, with constants that can be set."""

    def __init__(self) -> None:
        self.constants = c_model.model("sm90")
        self.device = c_model.device("h200")

    def rank(self, shape: Shape) -> dict[Plan, float]:
        """Modelled microseconds of every plan for a shape."""
        return {
            (found.name.decode().removeprefix("nvfp4_"), found.swap_ab, found.split_k): found.modelled_us
            for found in c_model.candidates(self.constants, self.device, c_model.traits(*shape))
        }


@dataclass
class Outcome:
    shape: Shape
    chosen: Plan  # of the measured plans, the one modelled to be fastest
    best: Plan  # measured to be fastest
    chosen_us: float
    best_us: float
    modelled_us: float
    unmeasured: Plan | None  # modelled to be faster than `chosen`, but not measured

    @property
    def regret(self) -> float:
        return self.chosen_us / self.best_us - 1


def outcome(shape: Shape, measured: dict[Plan, float], modelled: dict[Plan, float]) -> Outcome:
    chosen = min((plan for plan in measured if plan in modelled), key=lambda plan: modelled[plan])
    best = min(measured, key=lambda plan: measured[plan])
    first = min(modelled, key=lambda plan: modelled[plan])
    return Outcome(
        shape,
        chosen,
        best,
        measured[chosen] + EVENT_PAIR_US,
        measured[best] + EVENT_PAIR_US,
        modelled[chosen] + EVENT_PAIR_US,
        None if first in measured else first,
    )


def loss(model: Model, measured: dict[Shape, dict[Plan, float]]) -> float:
    """Squared relative errors, weighted towards the fastest plans of a shape, and squared regrets."""
    total = 0.0
    for shape, times in measured.items():
        modelled, best = model.rank(shape), min(times.values())
        for plan, us in times.items():
            if plan in modelled:
                total += (best / us) ** 2 * math.log(modelled[plan] / us) ** 2
        total += max(outcome(shape, times, modelled).regret - 0.02, 0.0) ** 2
    return total


def fit(model: Model, measured: dict[Shape, dict[Plan, float]]) -> None:
    """One constant after the other, in steps that become smaller."""
    best, step = loss(model, measured), 0.2
    while step > 0.002:
        before = best
        for name in (name for name in model.constants.members() if name not in KEPT):
            for factor in (1 + step, 1 / (1 + step)):
                old = getattr(model.constants, name)
                setattr(model.constants, name, old * factor)
                now = loss(model, measured)
                if now < best:
                    best = now
                else:
                    setattr(model.constants, name, old)
        if before - best < 0.001 * best:
            step /= 2


def report(model: Model, measured: dict[Shape, dict[Plan, float]]) -> None:
    errors, outcomes = [], []
    for shape, times in measured.items():
        modelled = model.rank(shape)
        errors += [math.log(modelled[plan] / us) ** 2 for plan, us in times.items() if plan in modelled]
        outcomes.append(outcome(shape, times, modelled))
    outcomes.sort(key=lambda o: -o.regret)
    for o in outcomes:
        size = "x".join(map(str, o.shape))
        line = f"{size:>16} {o.chosen_us:7.2f} us, modelled {o.modelled_us:7.2f}: {describe(o.chosen)}"
        if o.regret > 0:
            line += f"; best {o.best_us:.2f}: {describe(o.best)}; regret {o.regret:.1%}"
        if o.unmeasured:
            line += f"; first, not measured: {describe(o.unmeasured)}"
        print(line)
    spread = math.sqrt(sum(errors) / len(errors))
    print(f"{len(errors)} times of {len(outcomes)} shapes; the model is off by {spread:.1%} (root of mean square)")
    print(f"regret: most {outcomes[0].regret:.1%}, above 5 %: {sum(o.regret > 0.05 for o in outcomes)} shapes")


def describe(plan: Plan) -> str:
    kernel, swap_ab, split = plan
    return f"{kernel.removeprefix('sm90_')}{'' if swap_ab else ', A is mma_a'}{f', split {split}' if split > 1 else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true", help="fit before reporting, and print the constants")
    arguments = parser.parse_args()
    model, measured = Model(), read_measured()
    if arguments.fit:
        fit(model, measured)
    report(model, measured)
    if arguments.fit:
        for name, value in model.constants.members().items():
            print(f"{name} {value:.4g}")


if __name__ == "__main__":
    main()
