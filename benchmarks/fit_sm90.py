"""Fits the constants of csrc/kernels/sm90/model.h to measured times, and reports what the chosen plans cost.

    python benchmarks/fit_sm90.py          the constants as they stand: error, and regret of each shape
    python benchmarks/fit_sm90.py --fit    the same after fitting, and the constants, to be written into the header
    python benchmarks/fit_sm90.py --csv log/sm90_regret.csv    writes the regrets of each GPU
    python benchmarks/fit_sm90.py --measure FILE    on a Hopper GPU: times the plans
    python benchmarks/fit_sm90.py --predict         modelled times of the ranked N and K, also on GPUs not measured: CSV

The C code of csrc/ ranks the plans, through c_model.py, with the constants of this program. Measured times are in
results/sm90_candidates_*.csv, a file for each GPU, and all are fitted together. A row is a shape with its plans,
KERNEL/SWAP_AB/SPLIT_K=MICROSECONDS each. The times are medians of single calls with a cold L2 (nvfp4/cli/timing.py), of
each plan that was modelled to take at most 1.5 times as long as the first one. The regret of a shape is the time of its
chosen plan over that of its fastest measured plan, minus 1. A fit keeps constants that were measured directly and
limits that no measured plan reaches (KEPT). Needs gcc; to measure, torch.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import c_model
import recorded

from nvfp4.bench.shapes import monotone

RESULTS = Path(__file__).resolve().parent / "results"
GPUS = ("h200", "h100")
PREDICTED = (*GPUS, "gh200", "h20")
KEPT = {
    "nn_fixed_us",
    "nn_decode_clocks",
    "nn_bf16_loss",
    "nn_hidden_mma",
    "nn_store_b_clk",
    "streamk_graph_us",  # single calls do not need it
    "raw_32_clk",  # of measurements of their own, as the following
    "raw_64_clk",
    "units_fixed_us",  # of a fit of its own: units.cu is not among the measured plans
    "units_pair_clk",
    "units_rows_clk",
    "units_rows_us",
    "units_a16_loss",
    "units_unhidden",
    "units_pass_loss",
    "units_line_loss",
    "min_worker",
    "uneven",
    # By these stream-K divides its work: a fit to times would move them.
    "fixup_b_clk",
    "partial_b_clk",
    "worker_us",
    "unaligned_split",
    "clock_ghz",
    "dram_tb_s",
    "dequant_tb_s",
    "ingress_b_clk",
    "l2_tb_s",
    "l2_bytes",
    "bf16_loss",
}
EVENT_PAIR_US = 1.25  # an empty pair of events, in each measured time

# The measured shapes: layers of four model families, and the ranked shapes, as `nvfp4 bench --set monotone` has them.
LAYERS = [(shape.n, shape.k) for shape in monotone([1])]
# fmt: off
ROWS = (1, 2, 3, 4, 5, 8, 9, 12, 16, 17, 24, 32, 33, 40, 64, 65, 72, 96,
        128, 129, 160, 192, 224, 256, 320, 384, 448, 512)
# fmt: on
MANY_ROWS = (768, 1024, 2048, 4096)
MORE = [(2304, 4608, 7168), (8192, 8192, 8192)]
REPEAT = 9
SLOWEST = 1.5  # times the first plan's modelled time

Shape = tuple[int, int, int]
Plan = tuple[str, int, int]  # kernel, swap_ab, split_k
Measured = dict[tuple[str, Shape], dict[Plan, float]]  # of a GPU and shape, the microseconds of each plan


def measure(path: Path) -> None:
    """Times the plans of all shapes on this GPU."""
    import torch

    import nvfp4
    from nvfp4 import _C
    from nvfp4.bench.timing import DeviceClock

    device = torch.device("cuda")
    clock = DeviceClock(device)
    shapes = [(m, n, k) for n, k in LAYERS for m in (*ROWS, *(MANY_ROWS if n * k < 2**27 else ()))] + MORE
    pair = clock.empty_pair(99) * 1e6
    rows: list[list[object]] = [["m", "n", "k", "plans"]]
    for m, n, k in shapes:
        a, b = (torch.randint(0, 256, (rows, k // 2), dtype=torch.uint8, device=device) for rows in (m, n))
        bytes_of = [torch.randint(0x28, 0x48, (rows, k // 16), dtype=torch.uint8, device=device) for rows in (m, n)]
        scale_a, scale_b = map(nvfp4.swizzle, bytes_of)
        out = torch.empty(m, n, dtype=torch.float16, device=device)
        call = partial(nvfp4.gemm, a, b, scale_a, scale_b, out=out)
        first, plans = math.inf, []
        try:
            for rank in range(nvfp4.info(m, n, k)["plan"]["candidates"]):
                _C.set_candidate(rank)
                plan = nvfp4.info(m, n, k)["plan"]
                first = min(first, plan["single_us"])
                if plan["single_us"] > SLOWEST * first:
                    break
                call()
                us = statistics.median(clock.run([call] * REPEAT)) * 1e6
                kernel = plan["kernel"].removeprefix("nvfp4_")
                plans.append(f"{kernel}/{int(plan['swap_ab'])}/{plan['split_k']}={us:.2f}")
        finally:
            _C.set_candidate(0)
        rows.append([m, n, k, " ".join(plans)])
    what = f"us of plans by shape: KERNEL/SWAP_AB/SPLIT_K=US; nvfp4 {nvfp4.__version__}; event pair {pair:.2f} us"
    recorded.write(path, rows, torch.cuda.get_device_name(), what=what)


def read_measured() -> Measured:
    """All measured times, without the events."""
    found: Measured = defaultdict(dict)
    for gpu in GPUS:
        for row in recorded.rows(RESULTS / f"sm90_candidates_{gpu}.csv"):
            shape = (int(row["m"]), int(row["n"]), int(row["k"]))
            for each in row["plans"].split():
                plan, us = each.split("=")
                kernel, swap_ab, split_k = plan.split("/")
                found[gpu, shape][kernel, int(swap_ab), int(split_k)] = float(us) - EVENT_PAIR_US
    return found


class Model:
    """The planner, with constants that can be set."""

    def __init__(self) -> None:
        self.constants = c_model.model("sm90")
        self.devices = {gpu: c_model.device(gpu) for gpu in GPUS}

    def rank(self, gpu: str, shape: Shape) -> dict[Plan, float]:
        """Modelled microseconds of a single call, for every plan of a shape."""
        return {
            (found.name.decode().removeprefix("nvfp4_"), found.swap_ab, found.split_k): found.single_us
            for found in c_model.candidates(self.constants, self.devices[gpu], c_model.traits(*shape))
        }


@dataclass
class Outcome:
    gpu: str
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


def outcome(gpu: str, shape: Shape, measured: dict[Plan, float], modelled: dict[Plan, float]) -> Outcome:
    listed = [plan for plan in measured if plan in modelled]  # sm90_skinny was measured, and is gone
    chosen = min(listed, key=lambda plan: modelled[plan])
    best = min(listed, key=lambda plan: measured[plan])
    first = min(modelled, key=lambda plan: modelled[plan])
    return Outcome(
        gpu,
        shape,
        chosen,
        best,
        measured[chosen] + EVENT_PAIR_US,
        measured[best] + EVENT_PAIR_US,
        modelled[chosen] + EVENT_PAIR_US,
        None if first in measured else first,
    )


def loss(model: Model, measured: Measured) -> float:
    """Squared relative errors, weighted towards the fastest plans of a shape, and squared regrets."""
    total = 0.0
    for (gpu, shape), times in measured.items():
        modelled, best = model.rank(gpu, shape), min(times.values())
        for plan, us in times.items():
            if plan in modelled:
                total += (best / us) ** 4 * math.log(modelled[plan] / us) ** 2
        total += 10 * max(outcome(gpu, shape, times, modelled).regret - 0.02, 0.0) ** 2
    return total


def fit(model: Model, measured: Measured) -> None:
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


def predict() -> None:
    """Prints the predicted times of the first plan of each shape."""
    constants = c_model.model("sm90")
    print("m,n,k," + ",".join(PREDICTED))
    for m in (1, 16, 64, 128, 256, 2048):
        for n, k in LAYERS[-3:]:
            plans = [c_model.candidates(constants, c_model.device(gpu), c_model.traits(m, n, k)) for gpu in PREDICTED]
            print(f"{m},{n},{k}," + ",".join(f"{min(each.single_us for each in found):.1f}" for found in plans))


def report(model: Model, measured: Measured) -> None:
    errors, outcomes = [], []
    for (gpu, shape), times in measured.items():
        modelled = model.rank(gpu, shape)
        errors += [math.log(modelled[plan] / us) ** 2 for plan, us in times.items() if plan in modelled]
        outcomes.append(outcome(gpu, shape, times, modelled))
    outcomes.sort(key=lambda o: -o.regret)
    for o in outcomes:
        size = "x".join(map(str, o.shape))
        line = f"{o.gpu} {size:>16} {o.chosen_us:7.2f} us, modelled {o.modelled_us:7.2f}: {describe(o.chosen)}"
        if o.regret > 0:
            line += f"; best {o.best_us:.2f}: {describe(o.best)}; regret {o.regret:.1%}"
        if o.unmeasured:
            line += f"; first, not measured: {describe(o.unmeasured)}"
        print(line)
    spread = math.sqrt(sum(errors) / len(errors))
    print(f"{len(errors)} times; the model is off by {spread:.1%} (root of mean square)")
    for gpu in GPUS:
        lost = [o.regret for o in outcomes if o.gpu == gpu]
        mean, above = sum(lost) / len(lost), sum(regret > 0.05 for regret in lost)
        print(f"{gpu}, {len(lost)} shapes: regret {mean:.2%} on average, at most {lost[0]:.1%}; above 5 %: {above}")


def regrets(model: Model, measured: Measured) -> list[list[str]]:
    """A header, and a row for each GPU: mean and largest regret of its shapes in per cent, and how many exceed 5."""
    rows = [["gpu", "shapes", "mean, %", "most, %", "worst", "above 5 %"]]
    for gpu in GPUS:
        found = [
            outcome(gpu, shape, times, model.rank(gpu, shape))
            for (name, shape), times in measured.items()
            if name == gpu
        ]
        worst, mean = max(found, key=lambda o: o.regret), statistics.fmean(o.regret for o in found)
        above = sum(o.regret > 0.05 for o in found)
        figures = [f"{100 * mean:.2f}", f"{100 * worst.regret:.1f}", "x".join(map(str, worst.shape)), str(above)]
        rows.append([gpu, str(len(found)), *figures])
    return rows


def describe(plan: Plan) -> str:
    kernel, swap_ab, split = plan
    return f"{kernel.removeprefix('sm90_')}{'' if swap_ab else ', A is mma_a'}{f', split {split}' if split > 1 else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=Path, metavar="FILE", help="time the plans on this GPU")
    parser.add_argument("--predict", action="store_true", help="print modelled times of several GPUs")
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help="write the regrets of each GPU instead of printing all"
    )
    parser.add_argument("--fit", action="store_true", help="fit before reporting, and print the constants")
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure)
        return
    if arguments.predict:
        predict()
        return
    model, measured = Model(), read_measured()
    if arguments.fit:
        fit(model, measured)
    if arguments.csv:
        cards = (recorded.head(RESULTS / f"sm90_candidates_{gpu}.csv")["card"] for gpu in GPUS)
        recorded.write(arguments.csv, regrets(model, measured), ", ".join(cards))
        return
    report(model, measured)
    if arguments.fit:
        for name, value in model.constants.members().items():
            print(f"{name} {value:.4g}")


if __name__ == "__main__":
    main()
