"""Puts the runs in benchmarks/results into the documents that show them, and draws their plots.

    python benchmarks/readme_tables.py [--write]

A document shows a run between `<!-- run: NAME.json -->` and `<!-- end of run -->`: the command, the table, the plot and
the conditions, all from that one file. Without --write nothing is changed, what is stale is named, and the exit status
is 1 if anything is. A new run comes in by `python -m nvfp4 bench ... --json benchmarks/results/NAME.json`.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nvfp4.cli import plot, report, show

ROOT = Path(__file__).resolve().parent.parent
RESULTS = "benchmarks/results"
MARKED = re.compile(r"(?ms)^<!-- run: (\S+) -->\n.*?^<!-- end of run -->$")


def documents(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "benchmarks").glob("*.md"))]


def block(run: dict[str, Any], name: str, folder: str) -> str:
    """What a document shows of a run; `folder` is where the results are, seen from the document."""
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
    return any(len(shapes) > 1 for shapes in plot.groups(run))


def fresh(root: Path) -> Iterator[tuple[Path, str]]:
    """Every file that depends on a run, with the text that it must have."""
    used = set()
    for document in documents(root):
        folder = os.path.relpath(root / RESULTS, document.parent)

        def shown(match: re.Match[str], folder: str = folder) -> str:
            name = match[1]
            used.add(name)
            body = block(report.load(root / RESULTS / name), name, folder)
            return f"<!-- run: {name} -->\n{body}\n<!-- end of run -->"

        yield document, MARKED.sub(shown, document.read_text(encoding="utf-8"))
    for name in sorted(used):
        run = report.load(root / RESULTS / name)
        if has_plot(run):
            yield (root / RESULTS / name).with_suffix(".svg"), plot.svg(run)


def stale(root: Path) -> list[tuple[Path, str]]:
    def differs(path: Path, text: str) -> bool:
        return not path.exists() or path.read_text(encoding="utf-8") != text

    return [(path, text) for path, text in fresh(root) if differs(path, text)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write what is stale")
    write = parser.parse_args().write
    try:
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
