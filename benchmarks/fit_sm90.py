"""Fits the constants of csrc/kernels/sm90/model.h to measured times, and says what the plans cost that it chooses.

    python benchmarks/fit_sm90.py          the constants as they stand: error, and regret of each shape
    python benchmarks/fit_sm90.py --fit    the same after fitting, and the constants, to be written into the header

The C code of csrc/ ranks the plans, built with its constants as variables. The measured times are in
results/sm90_candidates.csv. The regret of a shape is the time of its chosen plan over that of its fastest measured
plan, minus 1. A fit keeps constants that were measured directly and limits that no measured plan reaches (KEPT). Needs
gcc.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import math
import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CSRC = HERE.parent / "csrc"
MEASURED = HERE / "results/sm90_candidates.csv"
SOURCES = ["kernels/sm90/gemv_plan.c", "kernels/sm90/prefill_plan.c", "kernels/sm90/dequant_plan.c", "plan_choice.c", "plan_operands.c"]
SOURCES += ["kernels.c", "error.c"]
CONSTANT = re.compile(r"^#define (SM90_\w+) +([0-9.]+)( .*)?$", re.MULTILINE)
KEPT = {
    "SM90_LEAST_HELP",
    "SM90_UNEVEN",
    "SM90_WHOLE_PIECES",
    "SM90_FP16_BYTES",
    "SM90_CLOCK_GHZ",
    "SM90_DRAM_TB_S",
    "SM90_DEQUANT_TB_S",
    "SM90_INGRESS_B_CLK",
    "SM90_L2_TB_S",
}
EVENT_PAIR_US = 1.25  # an empty pair of events, in each measured time
MAX_PLANS = 384

DRIVER = """
#include "kernels/sm90/gemm_plan.c"
double sm90_constants[64];
int rank(long m, long n, long k, int most, const char **names, int *settings, double *times) {
    static const unsigned char memory[16] __attribute__((aligned(16)));
    const device_facts h200 = {90, 1, 0, 132, 232448, 233472, 50 << 20};
    const gemm_problem p = {.m = m, .n = n, .k = k, .l = 1, .a = memory, .b = memory, .a_pitch = k / 2,
        .b_pitch = k / 2, .a_batch = m * k / 2, .b_batch = n * k / 2, .sfa = memory, .sfb = memory,
        .sfa_pitch = k / 64 * 512, .sfb_pitch = k / 64 * 512, .out_type = OUT_FP16, .scale_layout = SCALES_128X4,
        .aligned16 = 1};
    plan_candidate all[PLAN_MOST_CANDIDATES];
    int count = list(&h200, &p, all);
    for (int i = 0; i < count && i < most; i++) {
        names[i] = kernels[all[i].settings.kernel].name;
        settings[2 * i] = all[i].settings.swap_ab, settings[2 * i + 1] = all[i].settings.split_k;
        times[i] = all[i].time;
    }
    return count;
}
"""

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
    """The planner, with constants that can be set."""

    def __init__(self) -> None:
        text = (CSRC / "kernels/sm90/model.h").read_text()
        self.constants = {name: float(value) for name, value, _ in CONSTANT.findall(text)}
        index = {name: i for i, name in enumerate(self.constants)}
        text = CONSTANT.sub(lambda found: f"#define {found[1]} sm90_constants[{index[found[1]]}]", text)
        text = text.replace("#include <stdint.h>", "#include <stdint.h>\nextern double sm90_constants[64];", 1)
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "csrc"
            shutil.copytree(CSRC, source, ignore=shutil.ignore_patterns("*.cu"))
            (source / "kernels/sm90/model.h").write_text(text)
            (source / "rank.c").write_text(DRIVER)
            library = Path(folder) / "rank.so"
            command = ["gcc", "-O2", "-std=gnu11", "-shared", "-fPIC", "-o", str(library), "rank.c", *SOURCES]
            subprocess.run(command, cwd=source, check=True)
            self.library = ctypes.CDLL(str(library))
        self.values = (ctypes.c_double * 64).in_dll(self.library, "sm90_constants")
        self.library.rank.argtypes = [ctypes.c_long] * 3 + [ctypes.c_int] + [ctypes.c_void_p] * 3

    def set(self) -> None:
        for i, value in enumerate(self.constants.values()):
            self.values[i] = value

    def rank(self, shape: Shape) -> dict[Plan, float]:
        """Modelled microseconds of every plan for a shape."""
        names, settings, times = (
            (ctypes.c_char_p * MAX_PLANS)(),
            (ctypes.c_int * (2 * MAX_PLANS))(),
            (ctypes.c_double * MAX_PLANS)(),
        )
        count = self.library.rank(*shape, MAX_PLANS, names, settings, times)
        kernels = [name.decode().removeprefix("nvfp4_") for name in names[:count]]
        return {(kernels[i], settings[2 * i], settings[2 * i + 1]): times[i] for i in range(count)}


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
    model.set()
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
        for name in (name for name in model.constants if name not in KEPT):
            for factor in (1 + step, 1 / (1 + step)):
                old = model.constants[name]
                model.constants[name] = old * factor
                now = loss(model, measured)
                if now < best:
                    best = now
                else:
                    model.constants[name] = old
        if before - best < 0.001 * best:
            step /= 2


def report(model: Model, measured: dict[Shape, dict[Plan, float]]) -> None:
    model.set()
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
        for name, value in model.constants.items():
            print(f"{name} {value:.4g}")


if __name__ == "__main__":
    main()
