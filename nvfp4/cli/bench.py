"""Time the product against torch on the same device, in the same run.

The shapes are the competition's three, at M = 1, 16 and 128 each. Contestants take turns on the same numbers, and the
ratios (torch's time over ours: above 1 we are faster) compare calls of the same round. Caches are cold: on a GPU a
buffer that evicts the L2 is written before each call; on a CPU the inputs rotate through more memory than the largest
cache holds. Figures are medians, with the tenth and ninetieth percentiles in brackets.
"""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .. import __version__
from . import machine, show, timing, tune
from .rivals import Shape, line_up

if TYPE_CHECKING:
    import torch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--backend", metavar="B", help="run on this backend (cpu, sm80, sm100), not on the best one")
    parser.add_argument("--shapes", type=shape_list, metavar="MxNxK,...", help="time these shapes instead")
    parser.add_argument("--m", type=size_list, metavar="M,...", help="rows of A (1,16,128; 128 with --tune)")
    parser.add_argument(
        "--repeat", type=size, metavar="R", help="rounds a shape (200 on a GPU, 50 on a CPU; 100 with --tune)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random inputs (0)")
    parser.add_argument(
        "--tune",
        action="store_true",
        help="on a B200 or B300: time every plan of the sm100 kernels against the model that chooses among them, and "
        "write a file for nvfp4.use_tuning and for us",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument("--markdown", action="store_true", help="print the tables in markdown, as the README has them")


def size(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def size_list(text: str) -> list[int]:
    return [size(part) for part in text.split(",")]


def shape_list(text: str) -> list[Shape]:
    shapes = []
    for part in text.split(","):
        sizes = part.lower().split("x")
        if len(sizes) != 3:
            raise argparse.ArgumentTypeError(f"{part!r} is not of the form MxNxK")
        shape = Shape(*map(size, sizes))
        if shape.k % 16:
            raise argparse.ArgumentTypeError(f"{part!r}: K must be a multiple of 16")
        shapes.append(shape)
    return shapes


def run(args: argparse.Namespace) -> int:
    place = machine.pick_place(args.backend)
    if place.device != place.tensors:
        raise show.Refusal(
            f"{machine.describe(place.device)}: timing it needs a torch that can use it; this one cannot"
        )
    if args.tune:
        return tune.run(args, place, args.shapes or task_shapes(args.m or [128]))
    device = place.device
    shapes = args.shapes or task_shapes(args.m or [1, 16, 128])
    if device.type == "cuda":
        clock, repeat = timing.DeviceClock(device), args.repeat or 200
    else:
        clock, repeat = timing.HostClock(), args.repeat or 50

    before = machine.clocks(device) if device.type == "cuda" else None
    results = []
    with show.progress(len(shapes)) as step:
        for shape in shapes:
            step(f"bench {shape}")
            results.append(time_shape(shape, device, clock, repeat, args))
    facts = conditions(device, clock, results)
    if before is not None:
        facts |= {"clocks before": before, "clocks after": machine.clocks(device)}

    if args.json:
        print(json.dumps({"conditions": facts, "results": results}, indent=1))
    elif args.markdown:
        print(report_markdown(facts, results))
    else:
        report(facts, results)
    return 0


def task_shapes(rows: list[int]) -> list[Shape]:
    machine.need_torch()
    from ..reference import load_task

    return [Shape(m, test["n"], test["k"]) for test in load_task()["benchmarks"] for m in rows]


def time_shape(shape: Shape, device: torch.device, clock: Any, repeat: int, args: argparse.Namespace) -> dict[str, Any]:
    bench = line_up(shape, device, args.backend, args.seed)
    timing.compete(bench.contestants, clock, repeat)
    ours, *others = bench.contestants
    return {
        "shape": asdict(shape),
        "kernel": machine.kernel(shape.m, shape.n, shape.k, device, args.backend),
        "ratios": {rival.name: asdict(timing.ratio(rival, ours)) for rival in others},
        "seconds": {c.name: asdict(timing.Spread.of(list(c.times.values()))) for c in bench.contestants},
        "input_sets": bench.sets,
        "cold": bench.cold,
    }


def conditions(device: torch.device, clock: Any, results: list[dict[str, Any]]) -> dict[str, str]:
    """What a reader must know to judge the figures."""
    torch = machine.need_torch()
    facts = {
        "hardware": machine.describe(device),
        "software": f"nvfp4 {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
    }
    if device.type == "cuda":
        facts["caches"] = f"cold: {show.mebibytes(clock.flush.numel())} written before each call; 3 input sets rotate"
        facts["clock"] = f"CUDA events; an empty pair takes {show.seconds(clock.empty_pair(200))}, in every figure"
        facts["copy"] = f"{show.si(clock.copy_bandwidth(20), 'B/s')} read and written, in this run"
    else:
        largest = machine.last_level_cache()
        extent = f"a largest cache of {show.mebibytes(largest)}" if largest else "a largest cache of unknown size"
        cold = all(result["cold"] for result in results)
        facts["caches"] = (
            f"cold: the inputs of each contestant rotate through more than {extent}"
            if cold
            else f"NOT cold: too little free memory to rotate the inputs through more than {extent}"
        )
        facts["clock"] = "monotonic clock of the host, threads as torch.get_num_threads() says for all"
    return facts


def spread(values: dict[str, float], scale: float = 1.0) -> str:
    median, p10, p90 = (show.digits(values[key] * scale) for key in ("median", "p10", "p90"))
    return f"{median} ({p10}..{p90})"


def columns_and_rows(results: list[dict[str, Any]]) -> tuple[list[str], list[list[str]], list[str], list[list[str]]]:
    """The table of ratios and the table of times."""
    ratios = list(results[0]["ratios"])
    slowest = max(result["seconds"]["nvfp4"]["median"] for result in results)
    unit, scale = ("ms", 1e3) if slowest > 1e-3 else ("us", 1e6)
    ratio_rows, time_rows = [], []
    for result in results:
        shape = Shape(**result["shape"])
        ours = result["seconds"]["nvfp4"]
        ratio_rows.append([str(shape), *(spread(result["ratios"][rival]) for rival in ratios)])
        time_rows.append(
            [
                str(shape),
                spread(ours, scale),
                show.si(shape.operations / ours["median"], "FLOP/s"),
                show.si(shape.bytes / ours["median"], "B/s"),
                *(spread(result["seconds"][rival], scale) for rival in ratios),
                result["kernel"],
            ]
        )
    ratio_columns = ["<M x N x K", *(f"over {rival}" for rival in ratios)]
    others = (f"{rival}, {unit}" for rival in ratios)
    time_columns = ["<M x N x K", f"nvfp4, {unit}", "rate", "traffic", *others, "<kernel"]
    return ratio_columns, ratio_rows, time_columns, time_rows


RATIO_TITLE = "Speed-up of nvfp4 (above 1: nvfp4 is faster)"


def report(facts: dict[str, str], results: list[dict[str, Any]]) -> None:
    ratio_columns, ratio_rows, time_columns, time_rows = columns_and_rows(results)
    show.table(RATIO_TITLE, ratio_columns, ratio_rows)
    print()
    show.table("Times", time_columns, time_rows)
    print()
    for fact, value in facts.items():
        print(f"{fact}: {value}")


def report_markdown(facts: dict[str, str], results: list[dict[str, Any]]) -> str:
    ratio_columns, ratio_rows, time_columns, time_rows = columns_and_rows(results)
    lines = [f"- {fact}: {value}" for fact, value in facts.items()]
    return "\n".join(
        [
            *lines,
            "",
            show.markdown(ratio_columns, ratio_rows),
            "",
            show.markdown(time_columns, time_rows),
        ]
    )
