"""Puts the runs in benchmarks/results into the documents that show them, and draws their plots.

    python benchmarks/readme_tables.py [--measure] [--write]
    python benchmarks/readme_tables.py --record NAME.json 'COMMAND'

A document shows a run between `<!-- run: NAME.json -->` and `<!-- end of run -->`: the command, what came of it, the
plot and the conditions, all from that one file. Without --write nothing is changed, what is stale is named, and the
exit status is 1 if anything is. --measure first repeats the command of each run that is of this machine's hardware.

A new run comes in by `python -m nvfp4 bench ... --json benchmarks/results/NAME.json`, or, of any other program, by
--record, which keeps what it prints.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import contest  # noqa: E402  (beside this file)

import nvfp4  # noqa: E402
from nvfp4.cli import machine, plot, report, show  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
RESULTS = "benchmarks/results"
OUTPUT = "nvfp4-output-1"  # what a program printed, as --record keeps it
MARKED = re.compile(r"(?ms)^<!-- run: (\S+) -->\n.*?^<!-- end of run -->$")


def documents(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "benchmarks").glob("*.md"))]


def load(path: Path) -> dict[str, Any]:
    """A run of bench or of contest.py, or what another program printed."""
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise show.Refusal(f"{path}: cannot be read: {error}") from None
    return run if isinstance(run, dict) and run.get("format") in (OUTPUT, contest.FORMAT) else report.load(path)


def block(run: dict[str, Any], name: str, folder: str) -> str:
    """What a document shows of a run; `folder` is where the results are, seen from the document."""
    if run["format"] == OUTPUT:
        lines = [f"`{run['command']}` ([run]({folder}/{name})):", "", "```text", run["output"].rstrip("\n"), "```", ""]
        return "\n".join([*lines, *(f"- {fact}: {run[fact]}" for fact in ("hardware", "software", "written"))])
    if run["format"] == contest.FORMAT:
        lines = [f"`{run['command']}` ([run]({folder}/{name})). {contest.head(run)}:", ""]
        lines += [show.markdown(*contest.time_table(run)), ""]
        return "\n".join(
            [*lines, *(f"- {report.escaped(line)}" for line in [*contest.sentences(run), run["software"]])]
        )
    _, columns, rows = report.compact_table(run)
    first, *others = report.names(run)
    what = "single calls with cold caches, and a call's share of a queue (back to back)"
    ratios = " Speed-ups (above 1: it is faster) by single calls / back to back." if others else ""
    lines = [f"`{run['command']}` ([run]({folder}/{name})), {first}: {what}.{ratios}"]
    lines += ["", show.markdown(columns, rows), ""]
    if has_plot(run):
        lines += [f"![{plot.title(run)}]({folder}/{Path(name).with_suffix('.svg')})", ""]
    lines += [f"- {report.escaped(line)}" for line in report.sentences(run)]
    return "\n".join(lines)


def has_plot(run: dict[str, Any]) -> bool:
    """Whether some N x K was timed at two M: one is no curve."""
    return run["format"] == report.FORMAT and any(len(shapes) > 1 for shapes in plot.groups(run))


def fresh(root: Path) -> Iterator[tuple[Path, str]]:
    """Every file that depends on a run, with the text that it must have."""
    used = set()
    for document in documents(root):
        folder = os.path.relpath(root / RESULTS, document.parent)

        def shown(match: re.Match[str], folder: str = folder) -> str:
            name = match[1]
            used.add(name)
            body = block(load(root / RESULTS / name), name, folder)
            return f"<!-- run: {name} -->\n{body}\n<!-- end of run -->"

        yield document, MARKED.sub(shown, document.read_text(encoding="utf-8"))
    for name in sorted(used):
        run = load(root / RESULTS / name)
        if has_plot(run):
            yield (root / RESULTS / name).with_suffix(".svg"), plot.svg(run)


def stale(root: Path) -> list[tuple[Path, str]]:
    def differs(path: Path, text: str) -> bool:
        return not path.exists() or path.read_text(encoding="utf-8") != text

    return [(path, text) for path, text in fresh(root) if differs(path, text)]


def hardware() -> list[str]:
    """This machine's, as runs name it."""
    torch = machine.need_torch()
    devices = [torch.device("cpu")] + [torch.device("cuda", 0)] * torch.cuda.is_available()
    return [machine.describe(device) for device in devices]


def is_here(run: dict[str, Any]) -> bool:
    """Whether what a run names is here; what follows the first comma of a device may change."""
    named = run["conditions"]["hardware"] if run["format"] == report.FORMAT else run["hardware"]
    here = {device.partition(",")[0] for device in hardware()}
    return {device.partition(",")[0] for device in named.split("; ")} <= here


def shell(command: str, root: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """In the checkout, where `python` is this one."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", command], cwd=root, env=os.environ | {"PATH": path}, text=True, **options)
    if done.returncode != 0:
        raise show.Refusal(f"exit status {done.returncode}: {command}")
    return done


def record(path: Path, command: str, root: Path) -> None:
    """Runs a command and keeps what it prints, with the machine that it ran on."""
    torch = machine.need_torch()
    run = {
        "format": OUTPUT,
        "command": command,
        "written": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "hardware": "; ".join(hardware()),
        "software": f"nvfp4 {nvfp4.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        "output": shell(command, root, stdout=subprocess.PIPE).stdout,
    }
    path.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")


def measure(root: Path) -> None:
    """Runs anew, by the commands that documents show, what they show of hardware that is here."""
    shown = {name for path in documents(root) for name in MARKED.findall(path.read_text(encoding="utf-8"))}
    for name in sorted(shown):
        path = root / RESULTS / name
        run = load(path)
        print(
            f"{name}: {run['command'] if is_here(run) else 'of hardware that is not here: left as it is'}", flush=True
        )
        if is_here(run) and run["format"] == OUTPUT:
            record(path, run["command"], root)
        elif is_here(run):
            shell(f"{run['command']} --json {RESULTS}/{name}", root, stdout=subprocess.DEVNULL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write what is stale")
    parser.add_argument("--measure", action="store_true", help="first run anew what is of this machine's hardware")
    parser.add_argument("--record", nargs=2, metavar=("NAME.json", "COMMAND"), help="keep what a program prints")
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
    except show.Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 2
    for path, text in found:
        if write:
            path.write_text(text, encoding="utf-8")
        print(f"{'written' if write else 'stale'}: {path.relative_to(ROOT)}")
    return 1 if found and not write else 0


if __name__ == "__main__":
    sys.exit(main())
