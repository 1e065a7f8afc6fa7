"""Print on which SM and when each CTA of back-to-back calls ran.

A build with NVFP4_DUMP=1 records %smid, %globaltimer and %clock64 in each CTA of the GEMM kernels of sm90 and later
(csrc/kernels/common/placement.h). This program makes the calls, decodes the record, and prints, writes and draws it.
"""

from __future__ import annotations

import argparse
import io
import struct
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from nvfp4 import _C, gemm, info, swizzle
from nvfp4.bench import plot
from nvfp4.bench.command import shape_list, size, size_list
from nvfp4.bench.shapes import Shape, task_shapes
from nvfp4.cli import machine, show

from .dump import BUILD

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

CALLS = 12
HEADER = struct.Struct("<2I8x")  # placement_record
ENTRY = struct.Struct("<4i2Qq")  # placement_cta
BACKENDS = [row["name"] for row in machine.own_backends()]


@dataclass(frozen=True)
class Cta:
    """A CTA that ran. Times in us since the first CTA of all started; clocks are of its SM."""

    shape: str
    call: int  # counted from 1
    cta: int
    cluster: int  # index of its cluster
    cluster_size: int
    sm: int
    start: float
    end: float
    clocks: int


def decode(memory: bytes, shape: str) -> list[Cta]:
    """The CTAs of a placement_record in the order of their starts.

    CTA i of a launch starts after all of an earlier launch have started, so the n-th CTA i is of launch n."""
    capacity, count = HEADER.unpack_from(memory)
    if count > capacity:
        raise show.CommandError(f"{count} CTAs ran, and the record holds {capacity}")
    entries = sorted(ENTRY.iter_unpack(memory[HEADER.size : HEADER.size + count * ENTRY.size]), key=lambda e: e[4])
    seen: Counter[int] = Counter()
    found = []
    for cta, _, cluster, sm, start, end, clocks in entries:
        if not end:
            raise show.CommandError(f"CTA {cta} has not ended; the calls are not complete")
        seen[cta] += 1
        times = ((start - entries[0][4]) * 1e-3, (end - entries[0][4]) * 1e-3)
        found.append(Cta(shape, seen[cta], cta, cta // cluster, cluster, sm, *times, clocks))
    return found


# --- the command ----------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend", metavar="B", help=f"record this backend ({', '.join(BACKENDS)}) instead of the chosen one"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--shapes", type=shape_list, metavar="MxNxK,...", help="record these shapes instead of the competition's"
    )
    which.add_argument("--m", type=size_list, metavar="M,...", help="rows of A (default: 128)")
    parser.add_argument(
        "--repeat",
        type=size,
        metavar="R",
        default=CALLS,
        help=f"make R back-to-back calls of a shape (default: {CALLS})",
    )
    parser.add_argument("--csv", metavar="FILE", help="write one line per CTA")
    parser.add_argument("--plot", metavar="FILE", help="draw the CTAs as SVG; needs matplotlib")


def run(args: argparse.Namespace) -> int:
    for path in (args.csv, args.plot):
        if path and not Path(path).parent.is_dir():
            raise show.CommandError(f"{path}: there is no folder {Path(path).parent}")
    if args.plot:
        plot.need_matplotlib()  # before the calls
    target = machine.pick_target(args.backend)
    shapes = args.shapes or task_shapes(args.m or [128])
    with machine.need_torch().cuda.device(target.device) if target.tensors.type == "cuda" else nullcontext():
        return record(args, target, shapes)


def record(args: argparse.Namespace, target: machine.Target, shapes: Sequence[Shape]) -> int:
    if not hasattr(_C, "placement"):
        raise show.CommandError(f"this needs a debug build of nvfp4, which this is not; in a checkout: {BUILD}")
    ctas = []
    for shape in shapes:
        plan = info(shape.m, shape.n, shape.k, device=target.device, backend=target.backend)["plan"]
        if plan["backend"] not in BACKENDS:
            raise show.CommandError(
                f"{shape} runs on {plan['kernel']} ({plan['backend']}); only {', '.join(BACKENDS[:-1])} and "
                f"{BACKENDS[-1]} kernels record it"
            )
        found = measure(shape, target, args.repeat, plan["grid"])
        report(found, f"{shape} by {plan['kernel']} on {machine.describe(target.device)}")
        ctas += found
    if args.csv:
        Path(args.csv).write_text(csv_text(ctas), encoding="utf-8")
    if args.plot:
        Path(args.plot).write_text(svg(ctas), encoding="utf-8")
    return 0


def measure(shape: Shape, target: machine.Target, calls: int, grid: int) -> list[Cta]:
    """Calls on the same operands, one after another without a pause."""
    torch = machine.need_torch()
    operands = []
    for rows in (shape.m, shape.n):
        data = torch.randint(0, 256, (rows, shape.k // 2), dtype=torch.uint8)
        scale = torch.randint(0x28, 0x48, (rows, shape.k // 16), dtype=torch.uint8)
        operands.append((data.to(target.tensors), swizzle(scale).to(target.tensors)))
    (a, scale_a), (b, scale_b) = operands
    out = torch.empty(shape.m, shape.n, dtype=torch.float16, device=target.tensors)
    capacity = calls * grid
    memory = torch.zeros(HEADER.size + capacity * ENTRY.size, dtype=torch.uint8, device=target.tensors)
    memory[:4].copy_(torch.frombuffer(bytearray(capacity.to_bytes(4, "little")), dtype=torch.uint8))

    def call() -> None:
        gemm(a, b, scale_a, scale_b, out=out, backend=target.backend)

    call()  # loads the kernels
    synchronize(target.tensors)
    _C.placement(target.device.index, memory.data_ptr())
    try:
        for _ in range(calls):
            call()
        synchronize(target.tensors)
    finally:
        _C.placement(target.device.index, 0)
    return decode(memory.cpu().numpy().tobytes(), str(shape))


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        machine.need_torch().cuda.synchronize(device)


# --- output ---------------------------------------------------------------------------------------------------------


def report(ctas: Sequence[Cta], title: str) -> None:
    """A line a call, then a line a CTA of the last call."""
    calls = [[cta for cta in ctas if cta.call == call] for call in sorted({cta.call for cta in ctas})]
    rows = []
    for of_call in calls:
        per_sm = Counter(cta.sm for cta in of_call)
        numbers = [of_call[0].call, len(of_call), len(per_sm), sum(count > 1 for count in per_sm.values())]
        times = [f"{edge(getattr(c, end) for c in of_call):.2f}" for end in ("start", "end") for edge in (min, max)]
        rows.append([*map(str, numbers), *times])
    columns = ["call", "CTAs", "SMs", "SMs with two", "first start, us", "last start", "first end", "last end"]
    show.table(title, columns, rows)
    print()
    rows = [
        [str(c.cta), f"{c.cluster} of {c.cluster_size}", str(c.sm), f"{c.start:.2f}", f"{c.end:.2f}", str(c.clocks)]
        for c in sorted(calls[-1], key=lambda c: c.cta)
    ]
    show.table(f"Call {len(calls)}", ["CTA", "cluster of size", "SM", "start, us", "end, us", "clocks"], rows)
    print()


def csv_text(ctas: Sequence[Cta]) -> str:
    lines = [",".join(field.name for field in fields(Cta))]
    lines += [",".join(f"{v:.3f}" if isinstance(v, float) else str(v) for v in astuple(cta)) for cta in ctas]
    return "\n".join(lines) + "\n"


def svg(ctas: Sequence[Cta]) -> str:
    """A panel a shape: a bar a CTA, from start to end, at the height of its SM; a colour a call, by turns."""
    plot.need_matplotlib()
    import matplotlib.style

    text = io.StringIO()
    with matplotlib.style.context(["default", plot.STYLE]):
        figure(ctas).savefig(text, format="svg", metadata={"Title": "Placement of CTAs", "Date": None})
    return text.getvalue()


def figure(ctas: Sequence[Cta]) -> Figure:
    """Two CTAs that share an SM at a time are drawn side by side in its row. Axes are labelled with the shape."""
    from matplotlib.figure import Figure

    shapes = list(dict.fromkeys(cta.shape for cta in ctas))
    made = Figure(figsize=(12, 10 * len(shapes)), layout="constrained")
    for number, shape in enumerate(shapes, 1):
        axes = made.add_subplot(len(shapes), 1, number, label=shape)
        ends: dict[int, list[float]] = {}  # of the lanes of an SM
        for cta in (cta for cta in ctas if cta.shape == shape):
            lanes = ends.setdefault(cta.sm, [])
            lane = next((i for i, end in enumerate(lanes) if end <= cta.start), len(lanes))
            lanes[lane:] = [cta.end, *lanes[lane + 1 :]]
            colour = plot.COLOURS[cta.call % len(plot.COLOURS)][0]
            bar = (cta.start, max(cta.end - cta.start, 1e-3))
            axes.broken_barh([bar], (cta.sm + 0.45 * min(lane, 1), 0.45), color=colour, linewidth=0)
        axes.set_title(shape)
        axes.set_xlabel("us since the first CTA started; colours are calls")
        axes.set_ylabel("SM; a second CTA of an SM in the upper half of its row")
    return made
