#!/usr/bin/env python3
"""Rejects words that this project has replaced by those of the PTX ISA, CUDA, CUTLASS and BLAS (words.txt).

    python tools/check_words.py [FILE ...]

Searches every file of the checkout that git does not ignore, or those named, and prints a line for each match:
`file:line: found, write: replacement`. A line of words.txt is `pattern => replacement`, or `pattern @ glob =>
replacement` for files that match the glob alone; patterns are regular expressions that grep -E and Python read alike.
Exits with 1 if there is a match.
"""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
WORDS = HERE / "words.txt"
# Recorded data, the emulator, a project with words of its own, and the list itself, which names old ones.
EXEMPT = (
    "tools/words.txt",
    "benchmarks/results/*",
    "benchmarks/log/*.csv",
    "docs/proof/*.csv",
    "emulator/*",
    "LICENSE",
)


class Rule(NamedTuple):
    pattern: re.Pattern[str]
    glob: str
    replacement: str


def read_rules(text: str) -> list[Rule]:
    rules = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        left, arrow, replacement = line.partition(" => ")
        if not arrow:
            raise ValueError(f"{WORDS.name}: no ' => ' in: {line}")
        pattern, _, glob = left.partition(" @ ")
        rules.append(Rule(re.compile(pattern.strip()), glob.strip() or "*", replacement.strip()))
    return rules


def matches(path: str, line: str, rules: list[Rule]) -> list[str]:
    """`found, write: replacement` of each match in a line of a file."""
    return [
        f"{match[0]!r}, write: {rule.replacement}"
        for rule in rules
        if fnmatch.fnmatch(path, rule.glob)
        for match in rule.pattern.finditer(line)
    ]


def candidates(rules: list[Rule], names: list[str]) -> list[tuple[str, str, str]]:
    """(file, line number, line) of the lines that some pattern matches, by git's own search: Python's takes seconds."""
    pattern = "|".join(f"({rule.pattern.pattern})" for rule in rules)
    command = ["git", "grep", "-z", "-n", "-I", "-E", "--untracked", "-e", pattern, "--", *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"})
    if done.returncode > 1:
        raise RuntimeError(done.stderr)
    lines = (line.split("\0", 2) for line in done.stdout.splitlines())
    return [(parts[0], parts[1], parts[2]) for parts in lines if len(parts) == 3]


def main(names: list[str]) -> int:
    rules = read_rules(WORDS.read_text())
    found = [
        f"{path}:{number}: {message}"
        for path, number, line in candidates(rules, names)
        if not any(fnmatch.fnmatch(path, glob) for glob in EXEMPT)
        for message in matches(path, line, rules)
    ]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
