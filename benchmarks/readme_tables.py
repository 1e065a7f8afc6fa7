"""Writes the runs in benchmarks/results into the documents that show them, and draws their plots.

    python benchmarks/readme_tables.py [--measure] [--write]
    python benchmarks/readme_tables.py --record NAME.json 'COMMAND'

A document shows a run between `<!-- run: NAME.json -->` and `<!-- end of run -->`: the command, its results, the plot
and the conditions, all from that one file; after `NAME.json, without its table`, all but the results, the floor, the
software and the footnote. Between `<!-- table: NAME -->` and `<!-- end of table -->` it shows a table of hopper.py.
Without --write nothing changes: stale files are listed, and the exit status is 1 if there are any. A plot is stale if
it was drawn from another run. --measure first repeats the command of each run of this machine's hardware.

To add a run: `python -m nvfp4 bench ... --json benchmarks/results/NAME.json`, then `python benchmarks/recorded.py` of
this file, which adds the commit; or, for any other program, --record, which stores its output.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools")]

import hopper  # noqa: E402  (beside this file)
import recorded  # noqa: E402
from contest import measure as contest  # noqa: E402  (in tools)

import nvfp4  # noqa: E402
from nvfp4.bench import plot, report  # noqa: E402
from nvfp4.cli import machine, show  # noqa: E402

RESULTS = "benchmarks/results"
OUTPUT = "nvfp4-output-1"  # the output of a program, stored by --record
# Notes that documents leave to the run's file: clocks, temperature, power, host cost, and what README.md's method says.
UNSHOWN = ("host cost", "clocks ", "clocks: ", "clock: ", "single-call: ", "back-to-back: ", "between two events: ")
MARKED = re.compile(r"(?ms)^<!-- run: (\S+?)(?:, without its table)? -->\n.*?^<!-- end of run -->$")
MARKED_TABLE = re.compile(r"(?ms)^<!-- table: (\S+) -->\n.*?^<!-- end of table -->$")


def documents(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "benchmarks").glob("*.md"))]


def load(path: Path) -> dict[str, Any]:
    """A run of bench or of the competition's measurement, or the output of another program."""
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise show.CommandError(f"{path}: cannot be read: {error}") from None
    return run if isinstance(run, dict) and run.get("format") in (OUTPUT, contest.FORMAT) else report.load(path)


def block(run: dict[str, Any], name: str, folder: str, with_table: bool = True) -> str:
    """The text that shows a run; `folder` is the path of the results relative to the document."""
    if run["format"] == OUTPUT:
        lines = [f"`{run['command']}` ([run]({folder}/{name})):", "", "```text", run["output"].rstrip("\n"), "```", ""]
        return "\n".join([*lines, *(f"- {name}: {run[name]}" for name in ("hardware", "software", "written"))])
    if run["format"] == contest.FORMAT:
        lines = [f"`{run['command']}` ([run]({folder}/{name})). {contest.head(run)}:", ""]
        lines += [show.markdown(*contest.time_table(run)), ""]
        return "\n".join([*lines, *shown_lines([*contest.summary(run), run["software"]])])
    title, columns, rows = report.compact_table(run)
    first, *others = report.names(run)
    if run["set"] == "models":
        lines = [f"`{run['command']}` ([run]({folder}/{name})), sums of single-call medians: {title}.", ""]
        shown = [line for line in shown_lines(report.summary(run)) if not line.startswith("- floor")]
        return "\n".join([*lines, show.markdown(columns, rows), "", *shown])
    if not with_table:
        lines = [f"`{run['command']}` ([run]({folder}/{name})).", ""]
        rest = [line for line in report.summary(run) if not line.startswith(("floor: ", "software: ", "* "))]
        return "\n".join([*lines, *plot_lines(run, name, folder), *shown_lines(rest)])
    what = f"{report.mode_title(run, 'single_call')} median (p10..p90) and back-to-back median"
    ratios = f" Speed-ups (above 1: {first} is faster): single-call / back-to-back." if others else ""
    lines = [f"`{run['command']}` ([run]({folder}/{name})), {first}: {what}.{ratios}"]
    lines += ["", show.markdown(columns, rows), "", *plot_lines(run, name, folder)]
    return "\n".join([*lines, *shown_lines(report.summary(run))])


def plot_lines(run: dict[str, Any], name: str, folder: str) -> list[str]:
    return [f"![{plot.title(run)}]({folder}/{Path(name).with_suffix('.svg')})", ""] if has_plot(run) else []


def shown_lines(summary: list[str]) -> list[str]:
    return [f"- {report.escaped(line)}" for line in summary if not line.startswith(UNSHOWN)]


def has_plot(run: dict[str, Any]) -> bool:
    """Whether some N x K was timed at two M or more, a single point is not a curve; of a model's layers only sums are
    shown."""
    return (
        run["format"] == report.FORMAT
        and run["set"] != "models"
        and any(len(shapes) > 1 for shapes in plot.groups(run))
    )


def shown_text(root: Path) -> Iterator[tuple[Path, str]]:
    """Each document with the text that it must have."""
    for document in documents(root):
        folder = os.path.relpath(root / RESULTS, document.parent)

        def shown(match: re.Match[str], folder: str = folder) -> str:
            marker = match[0].partition("\n")[0]
            body = block(load(root / RESULTS / match[1]), match[1], folder, "without its table" not in marker)
            return f"{marker}\n{body}\n<!-- end of run -->"

        text = MARKED.sub(shown, document.read_text(encoding="utf-8"))
        yield document, MARKED_TABLE.sub(table, text)


def table(match: re.Match[str]) -> str:
    if match[1] not in hopper.TABLES:
        raise show.CommandError(f"no table {match[1]}: hopper.py has {', '.join(hopper.TABLES)}")
    return f"<!-- table: {match[1]} -->\n{hopper.TABLES[match[1]]()}\n<!-- end of table -->"


def shown_runs(root: Path) -> list[str]:
    return sorted({name for path in documents(root) for name in MARKED.findall(path.read_text(encoding="utf-8"))})


def stale(root: Path) -> list[tuple[Path, Callable[[], str]]]:
    """The files that are not as their runs say, each with a function that gives the new text."""

    def text_of(path: Path) -> str:
        return path.read_text(encoding="utf-8") if path.exists() else ""

    found = [(path, partial(str, text)) for path, text in shown_text(root) if text_of(path) != text]
    for name in shown_runs(root):
        run, path = load(root / RESULTS / name), (root / RESULTS / name).with_suffix(".svg")
        if has_plot(run) and plot.digest(run) not in text_of(path):
            found.append((path, partial(plot.svg, run)))
    return found


def hardware() -> list[str]:
    """The hardware of this machine, named as in the runs."""
    torch = machine.need_torch()
    devices = [torch.device("cpu")] + [torch.device("cuda", 0)] * torch.cuda.is_available()
    return [machine.describe(device) for device in devices]


def is_here(run: dict[str, Any]) -> bool:
    """Whether this machine has the hardware of a run; the text after the first comma of a device may differ."""
    named = run["conditions"]["hardware"] if run["format"] == report.FORMAT else run["hardware"]
    here = {device.partition(",")[0] for device in hardware()}
    return {device.partition(",")[0] for device in named.split("; ")} <= here


def shell(command: str, root: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command in the checkout; `python` is this Python."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", command], cwd=root, env=os.environ | {"PATH": path}, text=True, **options)
    if done.returncode != 0:
        raise show.CommandError(f"exit status {done.returncode}: {command}")
    return done


def record(path: Path, command: str, root: Path) -> None:
    """Runs a command and stores its output with the name of the hardware."""
    torch = machine.need_torch()
    run = {
        "commit": recorded.commit(),
        "format": OUTPUT,
        "command": command,
        "written": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "hardware": "; ".join(hardware()),
        "software": f"nvfp4 {nvfp4.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        "output": shell(command, root, stdout=subprocess.PIPE).stdout,
    }
    path.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")


def measure(root: Path) -> None:
    """Repeats the commands of the shown runs that are of this machine's hardware."""
    for name in shown_runs(root):
        path = root / RESULTS / name
        run = load(path)
        print(f"{name}: {run['command'] if is_here(run) else 'other hardware, not measured'}", flush=True)
        if is_here(run) and run["format"] == OUTPUT:
            record(path, run["command"], root)
        elif is_here(run):
            shell(f"{run['command']} --json {RESULTS}/{name}", root, stdout=subprocess.DEVNULL)
            recorded.stamp(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write stale files")
    parser.add_argument("--measure", action="store_true", help="first repeat the runs of this machine's hardware")
    parser.add_argument("--record", nargs=2, metavar=("NAME.json", "COMMAND"), help="store the output of a program")
    options = parser.parse_args()
    write = options.write
    try:
        if options.record:
            name, command = options.record
            record(ROOT / RESULTS / name, command, ROOT)
            return 0
        if options.measure:
            measure(ROOT)
        found = stale(ROOT)
        for path, text in found:
            if write:
                path.write_text(text(), encoding="utf-8")
            print(f"{'written' if write else 'stale'}: {path.relative_to(ROOT)}")
    except show.CommandError as error:
        print(error, file=sys.stderr)
        return 2
    return 1 if found and not write else 0


if __name__ == "__main__":
    sys.exit(main())
