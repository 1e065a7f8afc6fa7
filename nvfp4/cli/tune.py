"""`nvfp4 bench --tune`: times every launch plan of the GPU's own kernels and compares it with the model's ranking.

The plans of a shape differ in kernel, in swap_ab, in split_k, in the prefetch of weights and in whether an SM has room
for a CTA of the next call. sm90, sm100 and sm120 rank them by models (model.h in their folders of csrc/kernels). Each
plan is first checked bit for bit against torch's fp64 product, on data whose sums are exact. Then all correct plans
alternate, in a new random order each round, and are timed in CUDA graphs of consecutive calls, each on its own inputs,
after writes that evict the L2. The fastest plan is selected on the even rounds and compared with the model's choice on
the odd ones, so that the comparison is unbiased.

The result is a file that nvfp4.use_tuning (nvfp4/_tuning.py) reads. It is written anew after each shape, so that a
run that is interrupted leaves the shapes that it finished.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import platform
import random
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .. import _C, Error, __version__, gemm, info
from .._tuning import DEVICE, FORMAT, SETTINGS
from . import files, machine, show, timing
from .shapes import Shape

if TYPE_CHECKING:
    import torch

CALLS = 50  # consecutive, each on its own inputs: as in the competition
ROUNDS = 100
SCALES = ((0x00, 0x38, 0x40, 0x44), (0x00, 0x38))  # e4m3: the competition's 0, 1, 2, 3; 0 and 1 where K is large
LARGEST_VALUE = 6
EXACT_SUM = 2.0**22  # fp32 sums of multiples of 1/4 are exact below (reference.sums_are_exact)
SIZES = ("shared_per_block", "shared_per_sm", "l2_bytes", "memory_bytes")  # of the device, for whoever fits a model
WIDE_BYTES = 1 << 28  # of B in fp64 at a time, for the expected results


class Clock(Protocol):
    def describe(self) -> str: ...

    def run(self, calls: Sequence[Callable[[], object]]) -> float:
        """Seconds per call, over consecutive calls."""


class GraphClock:
    """Times a CUDA graph of consecutive calls, after writes that evict the L2: kernels follow each other as in a model
    whose step is captured, and the host has no part in it."""

    def __init__(self, device: torch.device) -> None:
        self.clock = timing.DeviceClock(device)

    def describe(self) -> str:
        flush = show.mebibytes(self.clock.flush.numel())
        return f"one pair of CUDA events around a CUDA graph of the calls, enqueued during writes of {flush} before it"

    def run(self, calls: Sequence[Callable[[], object]]) -> float:
        replay = timing.captured(calls)
        replay()  # the first one also loads the graph
        return self.clock.run([replay])[0] / len(calls)


@dataclass
class Candidate:
    rank: int  # by the model, 0 is its choice
    plan: dict[str, Any]  # of _C.plan
    wrong: str = ""  # the error, for a plan that is not timed
    samples: list[float] = field(default_factory=list)  # us a call, one a round

    def __str__(self) -> str:
        settings = "".join(
            [
                ", swap_ab" if self.plan["swap_ab"] else "",
                f", split-K {self.plan['split_k']}" if self.plan["split_k"] > 1 else "",
                f", prefetch {self.plan['prefetch_stages']}" if self.plan["prefetch_stages"] else "",
                f", {self.plan['ctas_per_sm']} CTAs an SM" if self.plan["ctas_per_sm"] > 1 else "",
            ]
        )
        return f"{short(self.plan['kernel'])}{settings}"

    @property
    def median(self) -> float:
        return statistics.median(self.samples)


class Lost(Exception):
    """The GPU has a sticky error: nothing can run on it in this process."""


@contextmanager
def forced(rank: int) -> Iterator[None]:
    """Within the context, products use the plan of this rank."""
    _C.set_candidate(rank)
    try:
        yield
    finally:
        _C.set_candidate(0)


def backend_of(ordinal: int) -> str:
    """The backend of the GPU's own kernels."""
    own = machine.own_backend(info()["devices"][ordinal]["compute_capability"])
    assert own is not None, "tunable has seen to that"
    return str(own["name"])


def candidates(shape: Shape, ordinal: int) -> list[Candidate]:
    backend = backend_of(ordinal)
    found = [Candidate(0, _C.plan(ordinal, backend, None, shape.m, shape.n, shape.k, 1, 0))]
    for rank in range(1, found[0].plan["candidates"]):
        with forced(rank):
            found.append(Candidate(rank, _C.plan(ordinal, backend, None, shape.m, shape.n, shape.k, 1, 0)))
    return found


# --- inputs -------------------------------------------------------------------------------------------------------


class Products:
    """`count` products of one shape, each with its own inputs, output and expected result."""

    def __init__(self, shape: Shape, target: machine.Target, count: int, seed: int) -> None:
        torch = machine.need_torch()
        from .. import reference

        self.reference, self.device = reference, target.tensors
        self.backend = backend_of(target.device.index) if target.device.type == "cuda" else "cpu"
        generator = torch.Generator(target.tensors).manual_seed(seed)

        def operand(rows: int, scales: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
            def draw(end: int, columns: int) -> torch.Tensor:
                size = (rows, columns)
                return torch.randint(end, size, dtype=torch.uint8, device=target.tensors, generator=generator)

            table = torch.tensor(scales, dtype=torch.uint8, device=target.tensors)
            linear = table[draw(len(scales), shape.k // 16).int()]
            return draw(256, shape.k // 2), reference.swizzle(linear, padding=reference.E4M3_NAN)

        def is_exact(a: torch.Tensor, scale: torch.Tensor, scales: Sequence[int]) -> bool:
            largest_b = LARGEST_VALUE * reference.e4m3_table()[max(scales)].item()
            row_sums = reference.operand(a, scale, "128x4").abs().sum(dim=-1)
            return row_sums.max().item() * largest_b <= EXACT_SUM

        self.inputs, self.outputs, self.expected = [], [], []
        for _ in range(count):
            for scales in SCALES:
                (a, scale_a), (b, scale_b) = (operand(rows, scales) for rows in (shape.m, shape.n))
                if is_exact(a, scale_a, scales):
                    break
            else:
                raise show.CommandError(
                    f"{shape}: K is too large for random data with exact sums, with which --tune checks the plans"
                )
            inputs = (a, b, scale_a, scale_b)
            self.inputs.append(inputs)
            self.outputs.append(torch.empty((shape.m, shape.n), dtype=torch.float16, device=target.tensors))
            self.expected.append(self.product(*inputs))

    def product(self, a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
        """A . B^T in float16, by torch in fp64, where these sums are exact in any order: on the device of the inputs,
        since the CPU takes a minute and a half for the inputs of the largest ranked shape."""
        torch = machine.need_torch()
        wide_a = self.reference.operand(a, scale_a, "128x4")[0].double()
        scales = self.reference.scale_rows(scale_b, b.shape[0], wide_a.shape[1] // 16, "128x4")[0]
        rows = max(1, WIDE_BYTES // (8 * wide_a.shape[1]))
        parts = [
            (wide_a @ self.reference.operand(part, scale, "linear")[0].double().T).half()
            for part, scale in zip(b.split(rows), scales.split(rows))
        ]
        return torch.cat(parts, dim=1)

    def calls(self) -> list[Callable[[], object]]:
        pairs = zip(self.inputs, self.outputs)
        return [lambda i=inputs, o=output: gemm(*i, out=o, backend=self.backend) for inputs, output in pairs]

    def check(self) -> str:
        """Runs all calls; returns "" or the first error in the results."""
        for output in self.outputs:
            output.fill_(math.nan)
        message = ""
        try:
            for call in self.calls():
                call()
        except Error as error:
            message = str(error)
        wait(self.device)
        if message:
            return message
        for number, (output, expected) in enumerate(zip(self.outputs, self.expected)):
            equal, why = self.reference.compare(output, expected, exact=True)
            if not equal:
                return f"call {number} of {len(self.outputs)}: {why}"
        return ""


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        machine.need_torch().cuda.synchronize()


def fits(shape: Shape, device: torch.device, count: int) -> None:
    """Rejects a shape whose inputs take more than half of the GPU's free memory."""
    if device.type != "cuda":
        return
    free, _ = machine.need_torch().cuda.mem_get_info(device)
    need = count * (shape.bytes + 2 * shape.m * shape.n)
    if need > free // 2:
        raise show.CommandError(
            f"{shape}: {count} input sets take {show.si(need, 'B')}, more than half of the {show.si(free, 'B')} of "
            "free memory on the GPU"
        )


# --- measuring ----------------------------------------------------------------------------------------------------


def tune_shape(
    shape: Shape,
    target: machine.Target,
    clock: Clock,
    rounds: int,
    seed: int,
    calls: int = CALLS,
    say: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:
    fits(shape, target.tensors, calls)
    order = random.Random(seed)
    found = candidates(shape, target.device.index)
    say(f"{shape}: {calls} input sets and their expected results")
    products = Products(shape, target, calls, seed)
    consecutive = products.calls()

    def guarded(candidate: Candidate, step: Callable[[], Any]) -> Any:
        try:
            with forced(candidate.rank):
                return step()
        except (RuntimeError, Error) as error:  # from torch and from nvfp4, for a fault on the GPU
            raise Lost(f"{shape}: {candidate}: {str(error).splitlines()[0]}") from error

    for candidate in found:
        say(f"{shape}: checking {candidate}")
        candidate.wrong = guarded(candidate, products.check)
    right = [candidate for candidate in found if not candidate.wrong]
    say(f"{shape}: timing {len(right)} plans, {rounds} rounds")
    for _ in range(rounds):
        for candidate in order.sample(right, len(right)):
            candidate.samples.append(1e6 * guarded(candidate, lambda: clock.run(consecutive)))
    for candidate in right:  # again: a race may show late
        candidate.wrong = guarded(candidate, products.check)
    return {"operation": "gemm", "a_dtype": None, "shape": asdict(shape), "calls": calls} | judge(found)


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


# --- the command --------------------------------------------------------------------------------------------------


def tunable(args: argparse.Namespace, target: machine.Target) -> None:
    backends = machine.own_backends()
    names = [row["name"] for row in backends]
    places = "; ".join(f"{row['name']} on {row['runs_on']}" for row in backends)
    what = f"--tune measures the plans of kernels for one architecture ({places})"
    if args.backend not in (None, *names):
        raise show.CommandError(f"{what}; --backend is {args.backend}: must be {', '.join(names)} or left out")
    if target.device.type == "cpu":
        raise show.CommandError(f"{what}; there is no usable GPU here")
    gpu = info()["devices"][target.device.index]
    major, minor = divmod(gpu["compute_capability"], 10)
    own = machine.own_backend(gpu["compute_capability"])
    if own is None or args.backend not in (None, own["name"]):
        raise show.CommandError(f"{what}; {target.device} is {gpu['name']}, of compute capability {major}.{minor}")


def run(
    args: argparse.Namespace,
    target: machine.Target,
    shapes: list[Shape],
    clock: Clock | None = None,
    calls: int = CALLS,
) -> int:
    tunable(args, target)
    with machine.need_torch().cuda.device(target.device) if clock is None else nullcontext():
        path = new_path(target.device.index)
        report = tune(
            shapes,
            target,
            clock or GraphClock(target.device),
            args.repeat or ROUNDS,
            args.seed,
            calls,
            keep=lambda report: write(report, path),
        )
    if args.json:
        print(f"written to {path}", file=sys.stderr)
        print(json.dumps(report, indent=1))
    else:
        show_report(report, path, markdown=args.markdown)
    wrong = any(candidate["wrong"] for result in report["results"] for candidate in result["candidates"])
    return 1 if wrong or report["failure"] else 0


def tune(
    shapes: list[Shape],
    target: machine.Target,
    clock: Clock,
    rounds: int,
    seed: int,
    calls: int = CALLS,
    keep: Callable[[dict[str, Any]], None] = lambda report: None,
) -> dict[str, Any]:
    """Times the plans of each shape and returns the content of the file; `keep` gets it after each shape."""
    torch = machine.need_torch()
    on_gpu = target.tensors.type == "cuda"
    properties = info()
    device = properties["devices"][target.device.index]
    before = machine.clocks(target.device) if on_gpu else None
    results: list[dict[str, Any]] = []
    failure = ""

    def report() -> dict[str, Any]:
        return {
            "format": FORMAT,
            "nvfp4": __version__,
            "written": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "device": {
                name: device[name]
                for name in (*DEVICE, "shared_per_block", "shared_per_sm", "l2_bytes", "memory_bytes")
            },
            "driver": properties["driver"],
            "software": f"torch {torch.__version__}, Python {platform.python_version()}",
            "clocks_before": before,
            "clocks_after": machine.clocks(target.device) if on_gpu and not failure else None,
            "clock": clock.describe(),
            "seed": seed,
            "failure": failure,
            "fitted_from_this_run": fit(results),
            "results": results,
        }

    steps = sum(len(candidates(shape, target.device.index)) + 2 for shape in shapes)
    with show.progress(steps) as step:
        for shape in shapes:
            try:
                results.append(tune_shape(shape, target, clock, rounds, seed, calls, step))
            except Lost as loss:
                failure = str(loss)
            keep(report())
            if failure:
                break
    return report()


def new_path(ordinal: int) -> Path:
    """A name in the current folder that no file has."""
    gpu = re.sub(r"[^a-z0-9]+", "-", str(info()["devices"][ordinal]["name"]).lower()).strip("-")
    stem = f"nvfp4-tune-{gpu}-{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}"
    names = (f"{stem}{suffix}.json" for suffix in ("", *(f"-{i}" for i in range(2, 1000))))
    return next(path for path in map(Path, names) if not path.exists())


def write(report: dict[str, Any], path: Path) -> None:
    files.write_text(path, json.dumps(report, indent=1) + "\n")


def short(kernel: str) -> str:
    return re.sub(r"nvfp4_sm\d+_(gemm_)?", "", kernel)


COLUMNS = [
    "rank by model",
    "<kernel",
    "<tile",
    "split-K",
    "prefetch",
    "CTAs an SM",
    "modelled, us",
    "measured, us",
    "over fastest",
    "over model",
]


def rows(result: dict[str, Any]) -> list[list[str]]:
    """The table of one shape: by time, untimed plans last."""
    medians = {c["rank"]: statistics.median(c["samples_us"]) for c in result["candidates"] if c["samples_us"]}
    best = medians.get(result["fastest"])
    lines = []
    for candidate in sorted(result["candidates"], key=lambda c: medians.get(c["rank"], math.inf)):
        lines.append(
            [
                str(candidate["rank"] + 1),
                short(candidate["kernel"]),
                f"{candidate['tile_m']}x{candidate['tile_n']}{', swap_ab' if candidate['swap_ab'] else ''}",
                str(candidate["split_k"]),
                str(candidate["prefetch_stages"] or "-"),
                str(candidate["ctas_per_sm"] or "-"),
                f"{candidate['modelled_us']:.2f}",
                *measured(candidate, medians.get(candidate["rank"]), best),
            ]
        )
    return lines


def measured(candidate: dict[str, Any], median: float | None, best: float | None) -> list[str]:
    if candidate["wrong"] or median is None or best is None:
        return ["WRONG", "", ""]
    spread = timing.Spread.of(candidate["samples_us"])
    figures = f"{spread.median:.2f} ({spread.p10:.2f}..{spread.p90:.2f})"
    return [figures, f"{median / best:.2f}", f"{median / candidate['modelled_us']:.2f}"]


def summary(result: dict[str, Any]) -> list[str]:
    by_rank = {candidate["rank"]: candidate for candidate in result["candidates"]}
    lines = [f"WRONG: {Candidate(c['rank'], c)}: {c['wrong']}" for c in result["candidates"] if c["wrong"]]
    if result["fastest"] is None:
        return [*lines, "No plan gave a correct result."]
    best, loss = by_rank[result["fastest"]], result["loss"]
    name = Candidate(best["rank"], best)
    if best["rank"] == 0:
        lines.append(f"The model's choice is the fastest: {name}.")
    else:
        lines.append(f"Fastest: {name}, ranked {best['rank'] + 1} by the model.")
        if loss:
            figures = f"{loss['median']:.3f} ({loss['p10']:.3f}..{loss['p90']:.3f})"
            lines.append(f"The model's choice takes {figures} times as long, in the rounds that did not select.")
        if result["selected"] != best["rank"]:
            lines.append("It is slower in fewer than nine of ten of them: use_tuning keeps it.")
    if result["rank_correlation"] is not None:
        timed = sum(bool(c["samples_us"]) and not c["wrong"] for c in result["candidates"])
        lines.append(f"Rank correlation of model and measurement: {result['rank_correlation']:.2f} over {timed} plans.")
    return lines


def show_report(report: dict[str, Any], path: Path, markdown: bool) -> None:
    for result in report["results"]:
        title = f"{Shape(**result['shape'])}, {result['calls']} back-to-back calls"
        if markdown:
            print(f"**{title}**\n\n{show.markdown(COLUMNS, rows(result))}\n")
        else:
            show.table(title, COLUMNS, rows(result))
        print("\n".join(summary(result)) + "\n")
    fitted = report["fitted_from_this_run"]
    if fitted:
        print(
            f"Fitted from this run: measured = {fitted['offset_us']:.2f} us + {fitted['scale']:.3f} * modelled, to "
            f"{100 * fitted['relative_error']:.0f}% over {fitted['plans']} plans."
        )
    device = report["device"]
    print(f"hardware: {device['name']}, {device['sm_count']} SMs, CUDA driver {report['driver']}")
    print(f"software: nvfp4 {report['nvfp4']}, {report['software']}")
    print(f"clock: {report['clock']}; clocks before: {report['clocks_before']}; after: {report['clocks_after']}")
    if report["failure"]:
        print(f"\nTHE GPU STOPPED: {report['failure']}. The file has the measurements before the fault.")
    print(
        f'\n{path} has these results with every sample. To use the plans: nvfp4.use_tuning("{path}"). To improve the '
        f'model, please attach the file to an issue of the nvfp4 project, "bench --tune on {device["name"]}"; it has '
        f"the GPU, the driver, versions, clocks, plans and times, and nothing else."
    )
