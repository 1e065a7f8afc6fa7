"""Time the product against torch on the same device, in the same run.

Shapes are a set (--set) or a list (--shapes): ranked, the competition's three at M = 1, 16 and 128; decode and prefill,
layers of real models at small and large M; hopper, those that the Hopper kernels have goals for. --m puts other M into
a set.

Contestants take turns on the same numbers: ours, on each --backend, and those of --against. The ratios (the other's
time over that of the first one: above 1 we are faster) compare calls of the same round, never of two runs. There are
two figures: a single call with cold caches, and a call's share of a queue of them, back to back. On a GPU a buffer that
evicts the L2 is written before each single call and each queue, and inputs rotate within a queue; on a CPU they rotate
through more memory than the largest cache holds. Figures are medians, with the tenth and ninetieth percentiles in
brackets. benchmarks/README.md in the sources has more on what they mean.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import shlex
import statistics
import sys
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from . import machine, plot, report, show, timing, tune
from .rivals import KINDS, L2_TURNS, NAMES, default_kinds, line_up, unavailable
from .shapes import SETS, Shape, layer_of, task_shapes

if TYPE_CHECKING:
    import torch

HOST_SHAPE = Shape(1, 16, 64)  # next to no arithmetic
HOST_ROUNDS = 20
STDOUT = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        metavar="B",
        action="append",
        help="run on this backend (cpu, sm80, sm90, sm100), not on the best one; several times for several in one run",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--set", choices=SETS, help="the shapes to time (ranked)")
    which.add_argument("--shapes", type=shape_list, metavar="MxNxK,...", help="time these shapes instead")
    which.add_argument("--from", dest="stored", metavar="FILE", help="time nothing: report a run that --json wrote")
    parser.add_argument("--m", type=size_list, metavar="M,...", help="rows of A, instead of the set's")
    parser.add_argument(
        "--against",
        type=kind_list,
        metavar="RIVAL,...",
        help=f"of {', '.join(KINDS)} (fp16,fp8,dequant on a GPU, bf16,fp32,dequant on a CPU)",
    )
    parser.add_argument(
        "--repeat", type=size, metavar="R", help="rounds a shape (200 on a GPU, 50 on a CPU; 100 with --tune)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random inputs (0)")
    parser.add_argument(
        "--tune",
        action="store_true",
        help="on an H100, H200, B200 or B300: time every plan of its own kernels against the model that chooses among "
        "them, and write a file for nvfp4.use_tuning and for us",
    )
    parser.add_argument("--markdown", action="store_true", help="print the tables in markdown")
    parser.add_argument(
        "--json",
        nargs="?",
        const=STDOUT,
        metavar="FILE",
        help="write the run as a JSON object; without FILE, print it",
    )
    parser.add_argument("--csv", metavar="FILE", help="write a line for each shape, contestant and figure")
    parser.add_argument("--plot", metavar="FILE", help="draw time over M, with the floor, as SVG")


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


def kind_list(text: str) -> list[str]:
    kinds = text.split(",")
    for kind in kinds:
        if kind not in KINDS:
            raise argparse.ArgumentTypeError(f"{kind!r} is none of {', '.join(KINDS)}")
    return list(dict.fromkeys(kinds))


def run(args: argparse.Namespace) -> int:
    if args.markdown and args.json == STDOUT:
        raise show.Refusal("--markdown and --json without a file both print: name a file for --json")
    if args.shapes and args.m:
        raise show.Refusal("--shapes has its own M: --m goes with --set")
    if args.tune:
        return run_tune(args)
    for path in (args.json, args.csv, args.plot):
        if path not in (None, STDOUT) and not Path(path).parent.is_dir():
            raise show.Refusal(f"{path}: there is no folder {Path(path).parent}")
    if args.stored:
        if args.backend or args.m or args.against or args.repeat or args.seed:
            raise show.Refusal("--from times nothing: it goes with --markdown, --json, --csv and --plot alone")
        deliver(report.load(args.stored), args)
        return 0
    backends = args.backend or [None]
    place = pick_place(backends)
    shapes = args.shapes or SETS[args.set or "ranked"](args.m)
    with machine.need_torch().cuda.device(place.device) if place.device.type == "cuda" else nullcontext():
        clock = timing.DeviceClock(place.device) if place.device.type == "cuda" else timing.HostClock()
        deliver(measure(args, shapes, place.device, backends, clock), args)
    return 0


def run_tune(args: argparse.Namespace) -> int:
    if args.set or args.stored or args.against or args.csv or args.plot or args.json not in (None, STDOUT):
        raise show.Refusal("--tune times --shapes or the ranked ones, and names its file itself")
    backends = args.backend or [None]
    if len(backends) > 1:
        raise show.Refusal("--tune measures the plans of one backend, sm90 or sm100")
    args = argparse.Namespace(**{**vars(args), "backend": backends[0]})
    place = pick_place(backends)
    return tune.run(args, place, args.shapes or task_shapes(args.m or [128]))


def pick_place(backends: list[str | None]) -> machine.Place:
    """Where all of these backends compute."""
    if len(set(backends)) < len(backends):
        raise show.Refusal("--backend: one is named twice")
    places = [machine.pick_place(backend) for backend in backends]
    if len({place.device for place in places}) > 1:
        where = ", ".join(f"{backend} on {place.device}" for backend, place in zip(backends, places))
        raise show.Refusal(f"--backend: {where}; only what takes turns on one device can be compared")
    place = places[0]
    if place.device != place.tensors:
        raise show.Refusal(
            f"{machine.describe(place.device)}: timing it needs a torch that can use it; this one cannot"
        )
    return place


# --- measuring ----------------------------------------------------------------------------------------------------


def measure(
    args: argparse.Namespace, shapes: list[Shape], device: torch.device, backends: list[str | None], clock: timing.Clock
) -> dict[str, Any]:
    """Times all shapes: the report as --json writes it."""
    on_gpu = device.type == "cuda"
    run_id = uuid.uuid4().hex[:12]
    repeat = args.repeat or (200 if on_gpu else 50)
    kinds = args.against or default_kinds(device)
    left_out = {NAMES[kind]: why for kind in kinds if (why := unavailable(kind, device))}
    kinds = [kind for kind in kinds if NAMES[kind] not in left_out]

    before = machine.clocks(device) if on_gpu else None
    results, rotates = [], True
    with show.progress(len(shapes) + 1) as step:
        for shape in shapes:
            step(f"bench {shape}")
            bench = line_up(shape, device, backends, kinds, args.seed, run_id)
            rotates = rotates and bench.cold
            left_out |= {name: why for name, why in bench.left_out.items() if name not in left_out}
            timing.compete(bench.contestants, clock, repeat)
            timing.compete_in_queues(bench.contestants, clock, max(timing.MIN_ROUNDS, repeat // 10))
            results.append(result_of(shape, bench.contestants, run_id))
        step("bench: limits of the machine")
        limits = limits_of(device, clock)
        host = host_costs(results) if on_gpu else host_costs_on_cpu(device, backends, kinds, args.seed, clock)
    facts = conditions(device, clock, rotates)
    if before is not None:
        facts |= {"clocks before": before, "clocks after": machine.clocks(device)}
    return {
        "format": report.FORMAT,
        "run": run_id,
        "written": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": command(args),
        "set": None if args.shapes else args.set or "ranked",
        "device": device.type,
        "conditions": facts,
        "limits": limits,
        "left_out": left_out,
        "host": host,
        "results": results,
    }


def command(args: argparse.Namespace) -> str:
    """The command that times the same again, wherever it is to leave the figures."""
    words = ["python", "-m", "nvfp4", "bench"]
    if args.set:
        words += ["--set", args.set]
    if args.shapes:
        words += ["--shapes", ",".join(map(str, args.shapes))]
    if args.m:
        words += ["--m", ",".join(map(str, args.m))]
    for backend in args.backend or []:
        words += ["--backend", backend]
    if args.against:
        words += ["--against", ",".join(args.against)]
    if args.repeat:
        words += ["--repeat", str(args.repeat)]
    if args.seed:
        words += ["--seed", str(args.seed)]
    return shlex.join(words)


def result_of(shape: Shape, contestants: list[timing.Contestant], run_id: str) -> dict[str, Any]:
    first, layer = contestants[0], layer_of(shape)
    entries = []
    for contestant in contestants:
        entry: dict[str, Any] = {
            "name": contestant.name,
            "ours": contestant.ours,
            "kernel": contestant.kernel,
            "note": contestant.note,
            "input_sets": contestant.sets,
            "queue_calls": contestant.queue_calls(),
            "seconds": {mode: spread(list(getattr(contestant, mode).values())) for mode in report.MODES},
            "host": spread(contestant.host) if contestant.host else None,
        }
        if contestant is not first:
            entry["ratio"] = {mode: rounded(timing.ratio(contestant, first, mode)) for mode in report.MODES}
        entries.append(entry)
    names = {"model": layer.model, "layer": layer.layer} if layer else {"model": "", "layer": ""}
    return {"run": run_id, "shape": asdict(shape), **names, "contestants": entries}


def spread(samples: list[float]) -> dict[str, Any]:
    return rounded(timing.Spread.of(samples))


def rounded(values: timing.Spread) -> dict[str, Any]:
    """Five digits: no clock here is better."""
    return {name: value if name == "samples" else float(f"{value:.5g}") for name, value in asdict(values).items()}


def limits_of(device: torch.device, clock: timing.Clock) -> dict[str, Any]:
    """What the floor is drawn from: the best of some copies and of some large products of torch's, in this run."""
    torch = machine.need_torch()
    dtype, name, size = (torch.float16, "fp16", 8192) if device.type == "cuda" else (torch.bfloat16, "bf16", 2048)
    rate = timing.matmul_rate(clock, device, dtype, size, repeat=10)
    return {
        "bytes_per_s": float(f"{clock.copy_bandwidth(20):.4g}"),
        "flops_per_s": float(f"{rate:.4g}"),
        "flops_of": f"torch {name} matmul of {size} x {size} x {size}",
    }


def host_costs(results: list[dict[str, Any]]) -> dict[str, Any]:
    """What a call costs the thread that makes it, by contestant: medians of the shapes, and their extremes."""
    found: dict[str, list[float]] = {}
    for result in results:
        for entry in result["contestants"]:
            found.setdefault(entry["name"], []).append(entry["host"]["median"])
    return {
        "of": "the calling thread, to queue a call: over the shapes, median and range",
        "seconds": {name: [statistics.median(values), min(values), max(values)] for name, values in found.items()},
    }


def host_costs_on_cpu(
    device: torch.device, backends: list[str | None], kinds: list[str], seed: int, clock: timing.Clock
) -> dict[str, Any]:
    """The same on a CPU, where a call works in its own thread: of a product with next to no arithmetic."""
    bench = line_up(HOST_SHAPE, device, backends, kinds, seed, most_sets=1)
    timing.compete(bench.contestants, clock, timing.MIN_ROUNDS)
    timing.compete_in_queues(bench.contestants, clock, HOST_ROUNDS)
    found = {c.name: spread(list(c.queued.values())) for c in bench.contestants}
    return {
        "of": f"a call of a {HOST_SHAPE} product, inputs in cache: median, tenth and ninetieth percentile",
        "seconds": {name: [value[key] for key in ("median", "p10", "p90")] for name, value in found.items()},
    }


def conditions(device: torch.device, clock: Any, rotates: bool) -> dict[str, str]:
    """What a reader must know to judge the figures."""
    torch = machine.need_torch()
    facts = {
        "hardware": machine.describe(device),
        "software": f"nvfp4 {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
    }
    if device.type == "cuda":
        l2 = show.mebibytes(torch.cuda.get_device_properties(device).L2_cache_size)
        flush = show.mebibytes(clock.flush.numel())
        facts["single calls"] = (
            f"cold: {flush} written before each; an empty pair of CUDA events takes "
            f"{show.seconds(clock.empty_pair(200))}, in every figure"
        )
        facts["back to back"] = (
            f"a plain queue (no graph) of up to {timing.QUEUE_CALLS} calls between one pair of events, behind writes "
            f"of {flush}; inputs "
            + (
                f"rotate through {L2_TURNS} times the L2 of {l2}, or each call has its own"
                if rotates
                else "do not fill the L2 often enough"
            )
        )
    else:
        largest = machine.last_level_cache()
        extent = f"a largest cache of {show.mebibytes(largest)}" if largest else "a largest cache of unknown size"
        facts["caches"] = (
            f"cold: the inputs of each contestant rotate through more than {extent}"
            if rotates
            else f"NOT cold: inputs do not rotate through more than {extent}; too little free memory, or a tiny shape"
        )
        facts["back to back"] = (
            f"calls in a loop, up to {timing.QUEUE_CALLS} or {show.seconds(timing.QUEUE_S)}; before single calls and "
            f"loops a pause of {show.seconds(timing.PAUSE_S)}"
        )
        facts["clock"] = "monotonic clock of the host, threads as torch.get_num_threads() says for all"
    return facts


# --- what is printed and written --------------------------------------------------------------------------------------


def deliver(measured: dict[str, Any], args: argparse.Namespace) -> None:
    """Writes the files that were asked for and prints the report in one form."""
    writers: dict[str, Callable[[dict[str, Any]], str]] = {"json": to_json, "csv": report.csv_text, "plot": plot.svg}
    for name, writer in writers.items():
        path = getattr(args, name)
        if path not in (None, STDOUT):
            Path(path).write_text(writer(measured), encoding="utf-8")
            print(f"written: {path}", file=sys.stderr)
    if args.json == STDOUT:
        print(to_json(measured), end="")
    elif args.markdown:
        print(report.markdown(measured))
    else:
        report.display(measured)


def to_json(measured: dict[str, Any]) -> str:
    """One contestant a line, so that a stored run can be read and two of them compared by eye."""
    head = json.dumps({**measured, "results": []}, indent=1).removesuffix("[]\n}")
    blocks = []
    for result in measured["results"]:
        entries = ",\n   ".join(json.dumps(entry) for entry in result["contestants"])
        frame = json.dumps({**result, "contestants": []}).removesuffix("[]}")
        blocks.append(f"  {frame}[\n   {entries}\n  ]}}")
    return head + "[\n" + ",\n".join(blocks) + "\n ]\n}\n"
