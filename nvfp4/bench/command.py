"""Time the product against torch, vLLM's Marlin or Humming, on the same device, in the same run.

Shapes are a set (--set) or a list (--shapes). Sets:
  ranked           the competition's three shapes at M = 1, 16 and 128
  decode, prefill  layers of real models at small and at large M
  hopper           the ranked shapes at M = 1 to 256 and two large shapes
  linear           the ranked (N, K) at M = 1 to 1024, as layers
  monotone         layers of four models at M = 1 to 512; benchmarks/monotone.py finds where fewer rows take longer
  models           all linear layers of one decoder block of four models, with their sums, as layers
  readme           the table of README.md, as layers: with --against marlin as it stands there
  experts          layers of experts of four models, whole; --m are tokens
--m replaces the M of a set. "As layers" means that nvfp4.Linear with 16-bit activations (--dtype) is timed instead of
the product, against torch's layer of that dtype (and those of --against marlin,humming): once in W4A4, where each call
quantizes the activations with a static scale, and once in W4A16.

Our product, on each --backend, alternates with the baselines of --against on the same values. A ratio divides the time
of a baseline by that of the first implementation in the same round; above 1 ours is faster. There are two figures:
  single-call      one product with cold caches (cold L2 on a GPU)
  back-to-back     the time per call of consecutive calls on one stream
On a GPU a buffer that evicts the L2 is written before each single call and each sequence of calls, and inputs rotate
within a sequence; on a CPU inputs rotate through more memory than the largest cache holds. Figures are medians, with
the tenth and ninetieth percentiles in brackets. benchmarks/README.md in the sources describes the method.
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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvfp4 import __version__
from nvfp4.bench import experts, layers, limits, plot, report, timing, tune
from nvfp4.bench.baselines import (
    DTYPES,
    KINDS,
    L2_MULTIPLE,
    NAMES,
    OTHERS,
    Bench,
    default_kinds,
    prepare,
    unavailable,
)
from nvfp4.bench.shapes import OF_LAYERS, SETS, Shape, layer_of, task_shapes
from nvfp4.cli import commands, files, machine, show

if TYPE_CHECKING:
    import torch

HOST_SHAPE = Shape(1, 16, 64)  # negligible arithmetic
HOST_ROUNDS = 20
CPU_S = 20.0  # of single calls, and of back-to-back calls, on a CPU without --repeat
STDOUT = "-"

Prepare = Callable[..., Bench]  # of a shape; run and max_sets by name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        metavar="B",
        action="append",
        help=f"time this backend ({machine.backends()}) instead of the chosen one; repeat it for several in one run",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--set", choices=[*SETS, "experts"], help="the shapes to time (default: ranked)")
    which.add_argument("--shapes", type=shape_list, metavar="MxNxK,...", help="time these shapes instead")
    which.add_argument("--from", dest="stored", metavar="FILE", help="time nothing, and report a run that --json wrote")
    parser.add_argument("--m", type=size_list, metavar="M,...", help="rows of A, instead of those of the set")
    parser.add_argument(
        "--against",
        type=kind_list,
        metavar="BASELINE,...",
        help=f"baselines out of {', '.join(KINDS)}, or none (default: fp16,fp8,dequant on a GPU, bf16,fp8,dequant with "
        "--dtype bfloat16; fp32,dequant on a CPU, and bf16 if it has instructions for it)",
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        help="the dtype of all results, and of the activations of layers and experts; baselines of another one "
        "are left out (default: float16 for our products, bfloat16 for layers and experts)",
    )
    parser.add_argument(
        "--repeat",
        type=size,
        metavar="R",
        help="rounds per shape (default: 200 on a GPU, 100 with --tune; on a CPU up to 50, but all in a minute or so)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random inputs (default: 0)")
    parser.add_argument(
        "--tune",
        action="store_true",
        help="on an H100, H200, B200, B300, RTX 50, RTX PRO 6000 or GB10: time every launch plan of its kernels, "
        "compare with the model that ranks them, and write a file for nvfp4.use_tuning",
    )
    parser.add_argument("--markdown", action="store_true", help="print the tables in markdown")
    parser.add_argument(
        "--json",
        nargs="?",
        const=STDOUT,
        metavar="FILE",
        help="write the run as a JSON object; without FILE, print it",
    )
    parser.add_argument("--csv", metavar="FILE", help="write one line per shape, implementation and figure")
    parser.add_argument("--plot", metavar="FILE", help="draw time over M, with the floor, as SVG; needs matplotlib")


def size(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def size_list(text: str) -> list[int]:
    return [size(part) for part in text.split(",")]


def shape_list(text: str) -> list[Shape]:
    return [Shape(*sizes) for sizes in commands.shapes(text)]


def kind_list(text: str) -> list[str]:
    kinds = [] if text == "none" else text.split(",")
    for kind in kinds:
        if kind not in KINDS:
            raise argparse.ArgumentTypeError(f"{kind!r} is none of {', '.join(KINDS)}, none")
    return list(dict.fromkeys(kinds))


def run(args: argparse.Namespace) -> int:
    if args.markdown and args.json == STDOUT:
        raise show.CommandError("--markdown and --json without a file both print: give --json a file")
    if args.shapes and args.m:
        raise show.CommandError("--m goes with --set: --shapes has its own M")
    if args.tune:
        return run_tune(args)
    if args.set == "experts":
        return experts.run(args)
    for path in (args.json, args.csv, args.plot):
        if path not in (None, STDOUT) and not Path(path).parent.is_dir():
            raise show.CommandError(f"{path}: there is no folder {Path(path).parent}")
    if args.plot:
        plot.need_matplotlib()  # before minutes of timing
    if args.stored:
        if args.backend or args.m or args.against is not None or args.dtype or args.repeat or args.seed:
            raise show.CommandError("--from times nothing: only --markdown, --json, --csv and --plot go with it")
        deliver(report.load(args.stored), args)
        return 0
    if args.set in OF_LAYERS and (args.backend or not set(args.against or []) <= set(OTHERS)):
        raise show.CommandError(
            f"--set {args.set} times nvfp4.Linear against torch's layer: --backend does not go with it, and "
            f"--against only with {' and '.join(OTHERS)}"
        )
    backends = args.backend or [None]
    device = pick_target(backends).device
    for kind in args.against or []:
        if kind in OTHERS:
            OTHERS[kind].need(device)
    shapes = args.shapes or SETS[args.set or "ranked"](args.m)
    check_memory(shapes, device)
    with machine.need_torch().cuda.device(device) if device.type == "cuda" else nullcontext():
        clock: timing.Clock = timing.DeviceClock(device) if device.type == "cuda" else timing.HostClock()
        deliver(measure(args, shapes, device, backends, clock), args)
    return 0


def check_memory(shapes: list[Shape], device: torch.device) -> None:
    """Rejects a shape that the device cannot hold even in NVFP4, before anything is timed."""
    free = machine.free_memory(device)
    for shape in shapes:
        if shape.bytes > free:
            least, have = show.si(shape.bytes, "B"), show.si(free, "B")
            raise show.CommandError(f"{shape}: takes {least} at least, but {have} are free: name smaller sizes")


def preparation(
    args: argparse.Namespace, device: torch.device, backends: list[str | None], kinds: list[str]
) -> Prepare:
    """The function that makes the implementations of a shape."""
    common = {"device": device, "seed": args.seed, "dtype": dtype_of(args)}
    if args.set in OF_LAYERS:
        return partial(layers.prepare, against=args.against or [], **common)
    return partial(prepare, backends=backends, kinds=kinds, **common)


def dtype_of(args: argparse.Namespace) -> str:
    """The dtype of our results."""
    return args.dtype or ("bfloat16" if args.set in OF_LAYERS else "float16")


def run_tune(args: argparse.Namespace) -> int:
    others = (args.set, args.stored, args.against is not None, args.dtype, args.csv, args.plot)
    if any(others) or args.json not in (None, STDOUT):
        raise show.CommandError(
            "--tune times --shapes or the ranked shapes and names its file: --set, --from, --against, --dtype, --csv, "
            "--plot and a file for --json do not go with it"
        )
    backends = args.backend or [None]
    if len(backends) > 1:
        own = " or ".join(row["name"] for row in machine.own_backends())
        raise show.CommandError(f"--tune measures the plans of one backend: {own}")
    args = argparse.Namespace(**{**vars(args), "backend": backends[0]})
    return tune.run(args, pick_target(backends), args.shapes or task_shapes(args.m or [128]))


def pick_target(backends: list[str | None]) -> machine.Target:
    """The target of all of these backends."""
    if len(set(backends)) < len(backends):
        raise show.CommandError("--backend: one is given twice")
    targets = [machine.pick_target(backend) for backend in backends]
    if len({target.device for target in targets}) > 1:
        where = ", ".join(f"{backend} on {target.device}" for backend, target in zip(backends, targets))
        raise show.CommandError(f"--backend: {where}; only implementations on one device can be compared")
    target = targets[0]
    if target.device != target.tensors:
        raise show.CommandError(
            f"{machine.describe(target.device)}: timing it needs a torch that can use it; this one cannot"
        )
    return target


# --- measuring ----------------------------------------------------------------------------------------------------


def measure(
    args: argparse.Namespace, shapes: list[Shape], device: torch.device, backends: list[str | None], clock: timing.Clock
) -> dict[str, Any]:
    """Times all shapes and returns the report that --json writes."""
    on_gpu = device.type == "cuda"
    run_id = uuid.uuid4().hex[:12]
    repeat = args.repeat or (200 if on_gpu else 50)
    kinds = default_kinds(device, dtype_of(args)) if args.against is None else args.against
    kinds = [] if args.set in OF_LAYERS else kinds
    slow = args.against is None and args.set not in OF_LAYERS and not on_gpu and not machine.has_bf16()
    left_out = {NAMES["bf16"]: "this CPU has no bf16 instructions; --against bf16 times it"} if slow else {}
    left_out |= {NAMES[kind]: why for kind in kinds if (why := unavailable(kind, device, args.dtype))}
    kinds = [kind for kind in kinds if NAMES[kind] not in left_out]

    prepare_shape = preparation(args, device, backends, kinds)
    before = machine.clocks(device) if on_gpu else None
    results, rotates = [], True
    with show.progress(len(shapes) + 1) as step:
        for shape in shapes:
            step(f"bench {shape}")
            bench = prepared(prepare_shape, shape, run=run_id)
            rotates = rotates and bench.cold
            left_out |= {name: why for name, why in bench.left_out.items() if name not in left_out}
            budget = timing.BUDGET_S if on_gpu or args.repeat else CPU_S / len(shapes) / len(bench.implementations)
            timing.run_single_call_rounds(bench.implementations, clock, repeat, budget)
            timing.run_back_to_back_rounds(bench.implementations, clock, max(timing.MIN_ROUNDS, repeat // 10), budget)
            results.append(result_of(shape, bench.implementations, run_id))
        step("bench: limits of the hardware")
        found = limits.measure(device, clock, results, args.set in OF_LAYERS)
        host = host_costs(results) if on_gpu else host_costs_on_cpu(prepare_shape, clock)
    measured_under = {"dtype": dtype_of(args), **conditions(device, clock, rotates)}
    if before is not None:
        measured_under |= {"clocks before": before, "clocks after": machine.clocks(device)}
    return {
        "format": report.FORMAT,
        "run": run_id,
        "written": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": command(args),
        "set": None if args.shapes else args.set or "ranked",
        "device": device.type,
        "conditions": measured_under,
        "limits": found,
        "left_out": left_out,
        "host": host,
        "results": results,
    }


def prepared(prepare_shape: Prepare, shape: Shape, **options: Any) -> Bench:
    """The implementations of a shape; an error message if they do not fit into memory."""
    torch = machine.need_torch()
    try:
        return prepare_shape(shape, **options)
    except (MemoryError, torch.OutOfMemoryError) as error:
        reason = error
    except RuntimeError as error:
        if "allocate" not in str(error):
            raise
        reason = error
    text = str(reason).partition("\n")[0] or "out of memory"
    raise show.CommandError(f"{shape}: does not fit into memory: {text}") from None


def command(args: argparse.Namespace) -> str:
    """The command that repeats the measurement, without its output options."""
    words = ["python", "-m", "nvfp4", "bench"]
    if args.set:
        words += ["--set", args.set]
    if args.shapes:
        words += ["--shapes", ",".join(map(str, args.shapes))]
    if args.m:
        words += ["--m", ",".join(map(str, args.m))]
    for backend in args.backend or []:
        words += ["--backend", backend]
    if args.against is not None:
        words += ["--against", ",".join(args.against) or "none"]
    if args.dtype:
        words += ["--dtype", args.dtype]
    if args.repeat:
        words += ["--repeat", str(args.repeat)]
    if args.seed:
        words += ["--seed", str(args.seed)]
    return shlex.join(words)


def result_of(shape: Shape, implementations: list[timing.Implementation], run_id: str) -> dict[str, Any]:
    first, layer = implementations[0], layer_of(shape)
    entries = []
    for implementation in implementations:
        entry: dict[str, Any] = {
            "name": implementation.name,
            "ours": implementation.ours,
            "kernel": implementation.kernel,
            "note": implementation.note,
            "input_sets": implementation.sets,
            "back_to_back_calls": implementation.back_to_back_calls(),
            "seconds": {mode: spread(list(getattr(implementation, mode).values())) for mode in report.MODES},
            "host": spread(implementation.host) if implementation.host else None,
        }
        if implementation is not first:
            entry["ratio"] = {mode: rounded(timing.ratio(implementation, first, mode)) for mode in report.MODES}
        entries.append(entry)
    names = {"model": layer.model, "layer": layer.layer} if layer else {"model": "", "layer": ""}
    return {"run": run_id, "shape": asdict(shape), **names, "implementations": entries}


def spread(samples: list[float]) -> dict[str, Any]:
    return rounded(timing.Spread.of(samples))


def rounded(values: timing.Spread) -> dict[str, Any]:
    """Rounded to five digits: no clock used here is more precise."""
    return {name: value if name == "samples" else float(f"{value:.5g}") for name, value in asdict(values).items()}


def host_costs(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The calling thread's time per call of each implementation: median, minimum and maximum over the shapes."""
    found: dict[str, list[float]] = {}
    for result in results:
        for entry in result["implementations"]:
            found.setdefault(entry["name"], []).append(entry["host"]["median"])
    return {
        "of": "the calling thread, to enqueue a call: median and range over the shapes",
        "seconds": {name: [statistics.median(values), min(values), max(values)] for name, values in found.items()},
    }


def host_costs_on_cpu(prepare_shape: Prepare, clock: timing.Clock) -> dict[str, Any]:
    """The same on a CPU. The calling thread computes there, so the product has negligible arithmetic."""
    bench = prepare_shape(HOST_SHAPE, max_sets=1)
    timing.run_single_call_rounds(bench.implementations, clock, timing.MIN_ROUNDS)
    timing.run_back_to_back_rounds(bench.implementations, clock, HOST_ROUNDS)
    found = {c.name: spread(list(c.back_to_back.values())) for c in bench.implementations}
    return {
        "of": f"a call of a {HOST_SHAPE} product, inputs in cache: median, tenth and ninetieth percentile",
        "seconds": {name: [value[key] for key in ("median", "p10", "p90")] for name, value in found.items()},
    }


def conditions(device: torch.device, clock: Any, rotates: bool) -> dict[str, str]:
    """The hardware, the software and the method of the measurement."""
    torch = machine.need_torch()
    found = {
        "hardware": machine.describe(device),
        "software": f"nvfp4 {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
    }
    if device.type == "cuda":
        l2 = show.mebibytes(torch.cuda.get_device_properties(device).L2_cache_size)
        flush = show.mebibytes(clock.flush.numel())
        found["single-call"] = (
            f"cold L2: {flush} written before each call; each figure includes an empty pair of CUDA events, "
            f"{show.seconds(clock.empty_pair(200))}"
        )
        found["back-to-back"] = (
            f"up to {timing.BACK_TO_BACK_CALLS} calls on a stream (no graph) between one pair of events, after writes "
            f"of {flush}; inputs "
            + (
                f"rotate through {L2_MULTIPLE} times the L2 of {l2}, or each call has its own"
                if rotates
                else f"take less than {L2_MULTIPLE} times the L2 of {l2}: too little free memory"
            )
        )
    else:
        largest = machine.last_level_cache()
        extent = f"a largest cache of {show.mebibytes(largest)}" if largest else "a largest cache of unknown size"
        found["caches"] = (
            f"cold: the inputs of each implementation rotate through more than {extent}"
            if rotates
            else f"NOT cold: inputs do not rotate through more than {extent}; too little free memory, or a small shape"
        )
        found["back-to-back"] = (
            f"calls in a loop, up to {timing.BACK_TO_BACK_CALLS} or {show.seconds(timing.BACK_TO_BACK_S)}; a pause of "
            f"{show.seconds(timing.PAUSE_S)} before each single call and each loop"
        )
        found["clock"] = "monotonic clock of the host; all implementations use torch.get_num_threads() threads"
    return found


# --- output ---------------------------------------------------------------------------------------------------------


def deliver(measured: dict[str, Any], args: argparse.Namespace) -> None:
    """Writes the requested files and prints the report."""
    writers: dict[str, Callable[[dict[str, Any]], str]] = {"json": to_json, "csv": report.csv_text, "plot": plot.svg}
    for name, writer in writers.items():
        path = getattr(args, name)
        if path not in (None, STDOUT):
            files.write_text(path, writer(measured))
            print(f"written: {path}", file=sys.stderr)
    if args.json == STDOUT:
        print(to_json(measured), end="")
    elif args.markdown:
        print(report.markdown(measured))
    else:
        report.display(measured)


def to_json(measured: dict[str, Any]) -> str:
    """One implementation a line, so that stored runs can be read and compared with diff."""
    head = json.dumps({**measured, "results": []}, indent=1).removesuffix("[]\n}")
    blocks = []
    for result in measured["results"]:
        entries = ",\n   ".join(json.dumps(entry) for entry in result["implementations"])
        frame = json.dumps({**result, "implementations": []}).removesuffix("[]}")
        blocks.append(f"  {frame}[\n   {entries}\n  ]}}")
    return head + "[\n" + ",\n".join(blocks) + "\n ]\n}\n"
