"""Recorded files say in their first lines where their numbers are from:

    # commit: 0c15704c, which stored them     the tree that was measured, or the first one that had the numbers
    # card: NVIDIA H100 80GB HBM3
    # command: python benchmarks/goals.py ... 'not recorded' where nobody knows
    # what: what the rows and columns are

A CSV file has them as comments before its columns, a JSON file as keys (a run of `nvfp4 bench` has its card in
`conditions`). `python benchmarks/recorded.py FILE.json` adds the commit to a run that was just made.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEYS = ("commit", "card", "command")
HEAD = re.compile(r"# (\w+): (.+)")


def head(path: Path) -> dict[str, str]:
    """The lines before the columns of a CSV file."""
    found = {}
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if not (match := HEAD.fullmatch(line.rstrip("\n"))):
                break
            found[match[1]] = match[2]
    return found


def table(path: Path) -> list[list[str]]:
    """The columns and the rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.reader(line for line in lines if not line.startswith("#")))


def rows(path: Path) -> list[dict[str, str]]:
    columns, *found = table(path)
    return [dict(zip(columns, row)) for row in found]


def commit() -> str:
    """That of the checkout, whose files may differ from it."""
    git = ["git", "-C", str(ROOT)]
    found = subprocess.run([*git, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True)
    if found.returncode:
        return "not recorded"
    changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True)
    return found.stdout.strip() + (", changed" if changed.stdout else "")


def command() -> str:
    """How this program was started, from the checkout."""
    words = [str(Path(word).resolve()) if Path(word).exists() else word for word in sys.argv]
    return "python " + shlex.join(word.removeprefix(f"{ROOT}/") for word in words)


def write(path: Path, lines: Iterable[Sequence[object]], card: str, **others: str) -> None:
    """Writes columns and rows behind a head. What the rows are stays as the file says, if it is there."""
    about = {"commit": commit(), "card": card, "command": command()}
    about |= {key: text for key, text in (head(path) if path.exists() else {}).items() if key not in KEYS} | others
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(f"# {key}: {text}\n" for key, text in about.items())
        csv.writer(file, lineterminator="\n").writerows(lines)


def write_rows(
    path: Path, columns: Sequence[str], found: Iterable[Mapping[str, object]], card: str, **others: str
) -> None:
    write(path, [columns, *([row.get(name, "") for name in columns] for row in found)], card, **others)


def stamp(path: Path) -> None:
    """The commit, as the first key of a JSON file."""
    run = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({"commit": commit()} | run, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        stamp(Path(name))
