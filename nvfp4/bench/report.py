"""Reports a run of `nvfp4 bench`, from the object that --json writes: tables, CSV and notes.

Ratios come from within the rounds of the run; only the sums over a block's layers are divided here. A file with results
of two runs is rejected: clocks, temperature and load of the machine differ between runs.
"""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

from nvfp4.bench.shapes import OF_LAYERS, Shape, task_shapes
from nvfp4.cli import show as screen

FORMAT = "nvfp4-bench-2"
MODES = {"single_call": "single-call", "back_to_back": "back-to-back"}
RANKED_M = 128

Report = dict[str, Any]


def load(path: str | Path) -> Report:
    """Reads a stored run. Rejects files of other formats and files with results of two runs."""
    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise screen.CommandError(f"{path}: cannot be read: {error}") from None
    if not isinstance(report, dict) or report.get("format") != FORMAT:
        raise screen.CommandError(f"{path}: is not a run of nvfp4 bench in the format {FORMAT}")
    runs = sorted({report["run"]} | {result["run"] for result in report["results"]})
    if len(runs) > 1:
        raise screen.CommandError(
            f"{path}: has results of runs {' and '.join(runs)}; no ratio is taken between two runs"
        )
    return report


# --- what is in it -------------------------------------------------------------------------------------------------


def shape_of(result: dict[str, Any]) -> Shape:
    return Shape(**result["shape"])


def names(report: Report) -> list[str]:
    """All implementations in the order of their first appearance; ratios are to the first."""
    return list(dict.fromkeys(entry["name"] for result in report["results"] for entry in result["implementations"]))


def entry_of(result: dict[str, Any], name: str) -> dict[str, Any] | None:
    return next((entry for entry in result["implementations"] if entry["name"] == name), None)


def notes(report: Report) -> dict[str, str]:
    found = {e["name"]: e["note"] for result in report["results"] for e in result["implementations"] if e["note"]}
    return {name: found[name] for name in names(report) if name in found}


def floor(report: Report, shape: Shape) -> float:
    """Seconds, the larger of two: the bytes and the operations at the rates measured (limits.py)."""
    limits = report["limits"]
    return max(bytes_of(report, shape) / limits["bytes_per_s"], shape.operations / limits["flops_per_s"])


def bytes_of(report: Report, shape: Shape) -> int:
    return min_bytes(shape, report["set"] in OF_LAYERS)


def min_bytes(shape: Shape, of_layers: bool) -> int:
    """The bytes that a product, or a layer, moves at least."""
    return shape.layer_bytes if of_layers else shape.bytes


def floor_text(report: Report) -> str:
    limits = report["limits"]
    copy, rate = screen.si(limits["bytes_per_s"], "B/s"), screen.si(limits["flops_per_s"], "FLOP/s")
    of = limits.get("bytes_of", "a copy, read and written")  # 0.2.0 wrote no other
    return f"bytes at {copy} ({of}) or 2MNK at {rate} ({limits['flops_of']}), the best of this run"


def caches(report: Report) -> str:
    """The state of the caches before a single call."""
    return "cold L2" if report["device"] == "cuda" else "cold caches"


def mode_title(report: Report, mode: str) -> str:
    return f"{MODES[mode]} ({caches(report)})" if mode == "single_call" else MODES[mode]


def unit(report: Report) -> tuple[str, float]:
    return ("us", 1e6) if report["device"] == "cuda" else ("ms", 1e3)


# --- tables --------------------------------------------------------------------------------------------------------


def spread(values: dict[str, float] | None, scale: float = 1.0) -> str:
    if values is None:
        return "-"
    median, p10, p90 = (screen.digits(values[key] * scale) for key in ("median", "p10", "p90"))
    return f"{median} ({p10}..{p90})"


def starred(report: Report, name: str) -> str:
    return f"{name} *" if name in notes(report) else name


def layer_cell(result: dict[str, Any]) -> str:
    return f"{result['model']}, {result['layer']}" if result["layer"] else "-"


def first_columns(report: Report, result: dict[str, Any] | None) -> list[str]:
    """The cells of a row that name the shape and, in sets of layers, the layer. Without a result: their headings."""
    with_layer = report["set"] in ("decode", "prefill", "models")
    if result is None:
        return ["<M x N x K"] + ["<layer"] * with_layer
    return [str(shape_of(result))] + [layer_cell(result)] * with_layer


Table = tuple[str, list[str], list[list[str]]]


def ratio_table(report: Report, mode: str) -> Table:
    first, *others = names(report)
    columns = [*first_columns(report, None), *(f"over {starred(report, name)}" for name in others)]
    rows = []
    for result in report["results"]:
        entries = [entry_of(result, name) for name in others]
        rows.append([*first_columns(report, result), *(spread(e and e["ratio"][mode]) for e in entries)])
    return f"Speed-up of {first}, {mode_title(report, mode)}; above 1: {first} is faster", columns, rows


def time_table(report: Report, mode: str) -> Table:
    name, scale = unit(report)
    everyone = names(report)
    columns = [*first_columns(report, None), f"floor, {name}"]
    columns += [*(f"{starred(report, each)}, {name}" for each in everyone), "rate", "traffic", "<kernel"]
    rows = []
    for result in report["results"]:
        shape, first = shape_of(result), result["implementations"][0]
        row = [*first_columns(report, result), screen.digits(floor(report, shape) * scale)]
        entries = [entry_of(result, each) for each in everyone]
        row += [spread(entry and entry["seconds"][mode], scale) for entry in entries]
        ours = first["seconds"][mode]["median"]
        row += [screen.si(shape.operations / ours, "FLOP/s"), screen.si(bytes_of(report, shape) / ours, "B/s")]
        rows.append([*row, first["kernel"]])
    return f"Times, {mode_title(report, mode)}", columns, rows


def blocks(report: Report) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """The results for each model and M."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for result in report["results"]:
        found.setdefault((result["model"], shape_of(result).m), []).append(result)
    return found


def sum_of(results: list[dict[str, Any]], name: str, mode: str) -> float:
    """The sum of an implementation's medians."""
    entries = (entry_of(result, name) for result in results)
    return sum(entry["seconds"][mode]["median"] for entry in entries if entry)


def sum_table(report: Report, mode: str) -> Table:
    """For each model and M of the set `models`: the sums of the medians of its layers, and the last one's ratios."""
    everyone = names(report)
    *ours, last = everyone
    name, scale = unit(report)
    columns = ["<model", "M", f"floor, {name}", *(f"{each}, {name}" for each in everyone)]
    columns += [f"{last} / {each}" for each in ours]
    rows = []
    for (model, m), results in blocks(report).items():
        sums = [sum_of(results, each, mode) for each in everyone]
        floors = sum(floor(report, shape_of(result)) for result in results)
        row = [model, str(m), *(screen.digits(value * scale) for value in (floors, *sums))]
        rows.append([*row, *(screen.digits(sums[-1] / value) for value in sums[:-1])])
    return f"Sums over the layers of a block, {mode_title(report, mode)}", columns, rows


def tables(report: Report) -> list[Table]:
    found = [sum_table(report, mode) for mode in MODES] if report["set"] == "models" else []
    found += [] if len(names(report)) == 1 else [ratio_table(report, mode) for mode in MODES]
    return found + [time_table(report, mode) for mode in MODES]


def compact_sum_table(report: Report) -> Table:
    """One row for each model: at each M the sums of the single calls of all implementations."""
    name, scale = unit(report)
    found = blocks(report)
    rows = list(dict.fromkeys(m for _, m in found))
    models = dict.fromkeys(model for model, _ in found)

    def cell(results: list[dict[str, Any]]) -> str:
        return "/".join(screen.digits(sum_of(results, each, "single_call") * scale) for each in names(report))

    table = [[model, *(cell(found[model, m]) for m in rows)] for model in models]
    return f"{'/'.join(names(report))}, {name}", ["<model", *(f"M = {m}" for m in rows)], table


def compact_table(report: Report) -> Table:
    """One table for a document: our times, and the median ratios of both figures."""
    if report["set"] == "models":
        return compact_sum_table(report)
    first, *others = names(report)
    name, scale = unit(report)
    columns = [*first_columns(report, None), f"floor, {name}", f"{first}, {name}", f"{MODES['back_to_back']}, {name}"]
    columns += [f"over {starred(report, other)}" for other in others]
    rows = []
    for result in report["results"]:
        shape, ours = shape_of(result), result["implementations"][0]
        row = [*first_columns(report, result), screen.digits(floor(report, shape) * scale)]
        row += [
            spread(ours["seconds"]["single_call"], scale),
            screen.digits(ours["seconds"]["back_to_back"]["median"] * scale),
        ]
        for entry in (entry_of(result, c) for c in others):
            medians = [screen.digits(entry["ratio"][mode]["median"]) for mode in MODES] if entry else ["-"]
            row.append("/".join(medians))
        rows.append(row)
    return "Times and speed-ups", columns, rows


# --- notes ---------------------------------------------------------------------------------------------------------


def geometric_means(report: Report) -> list[str]:
    """Our time and the ratios over the ranked shapes at M = 128; nothing if the run lacks one of the three shapes."""
    wanted = task_shapes([RANKED_M])
    by_shape = {shape_of(result): result for result in report["results"]}
    if any(shape not in by_shape for shape in wanted):
        return []
    results = [by_shape[shape] for shape in wanted]
    name, scale = unit(report)
    first, *others = names(report)
    lines = []
    for mode in MODES:
        ours = mean([result["implementations"][0]["seconds"][mode]["median"] for result in results])
        parts = [f"{first} {screen.digits(ours * scale)} {name}"]
        for other in others:
            entries = [entry_of(result, other) for result in results]
            ratios = [entry["ratio"][mode]["median"] for entry in entries if entry]
            if len(ratios) == len(entries):
                ratio = mean(ratios)
                parts.append(f"{screen.digits(ratio)} over {starred(report, other)}")
        lines.append(
            f"geometric means, ranked shapes at M = {RANKED_M}, {mode_title(report, mode)}: {', '.join(parts)}"
        )
    return lines


def mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def host_line(report: Report) -> str:
    host = report["host"]
    costs = []
    for name, values in host["seconds"].items():
        median, low, high = (screen.digits(value * 1e6) for value in values)
        costs.append(f"{name} {median} ({low}..{high}) us")
    return f"host cost, {host['of']}: {', '.join(costs)}"


def summary(report: Report) -> list[str]:
    lines = geometric_means(report)
    lines.append(host_line(report))
    lines.append(f"floor: {floor_text(report)}")
    lines += [f"* {name}: {note}" for name, note in notes(report).items()]
    lines += [f"left out: {name}: {why}" for name, why in report["left_out"].items()]
    lines += [f"{name}: {value}" for name, value in report["conditions"].items()]
    return [*lines, f"run: {report['run']}, {report['written']}"]


def display(report: Report) -> None:
    for title, columns, rows in tables(report):
        screen.table(title, columns, rows)
        print()
    print("\n".join([*summary(report), f"command: {report['command']}"]))


def markdown(report: Report) -> str:
    parts = [f"{title}:\n\n{screen.markdown(columns, rows)}\n" for title, columns, rows in tables(report)]
    lines = [*(escaped(line) for line in summary(report)), f"command: `{report['command']}`"]
    return "\n".join([*(f"- {line}" for line in lines), "", *parts]).rstrip()


def escaped(line: str) -> str:
    return line.replace("*", "\\*")


# --- CSV ------------------------------------------------------------------------------------------------------------

CSV_COLUMNS = (
    *("run", "set", "model", "layer", "m", "n", "k", "implementation", "ours", "kernel", "note", "figure"),
    *("median_us", "p10_us", "p90_us", "samples", "ratio", "ratio_p10", "ratio_p90", "host_us", "floor_us"),
)


def csv_text(report: Report) -> str:
    """One line per shape, implementation and figure; `ratio` is its time over that of the first implementation."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)

    def us(seconds: float) -> str:
        return f"{seconds * 1e6:.5g}"

    for result in report["results"]:
        shape = shape_of(result)
        where = [report["run"], report["set"] or "", result["model"], result["layer"], shape.m, shape.n, shape.k]
        for entry in result["implementations"]:
            what = [entry["name"], int(entry["ours"]), entry["kernel"], entry["note"]]
            host = us(entry["host"]["median"]) if entry["host"] else ""
            for mode, values in entry["seconds"].items():
                times = [us(values["median"]), us(values["p10"]), us(values["p90"]), values["samples"]]
                ratio = entry["ratio"][mode] if "ratio" in entry else {}
                ratios = [ratio.get(key, "") for key in ("median", "p10", "p90")]
                writer.writerow([*where, *what, mode, *times, *ratios, host, us(floor(report, shape))])
    return text.getvalue()
