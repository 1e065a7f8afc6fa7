"""Joins a source file and the project files that it includes into one text, each file once, comments included.

Left out are `#include "..."`, include guards and the code of debug builds (LEFT_OUT). csrc/contest/changes.txt names
the files that are left out too. Nothing is rewritten.
"""

from __future__ import annotations

import re
from pathlib import Path

from nvfp4.cli.show import CommandError

SOURCES = Path(__file__).resolve().parents[2] / "csrc"
LEFT_OUT = {("ifdef", "NVFP4_DUMP"), ("ifdef", "NVFP4_WATCHDOG")}  # code of debug builds
MACROS = {name for _, name in LEFT_OUT}

INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')
GUARD = re.compile(r"#ifndef (NVFP4_\w+_C?U?H)\n#define \1\n")
CONDITION = re.compile(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b\s*(\w*)")


def amalgamate(root: str, folder: Path = SOURCES) -> str:
    """The text of the files that a file includes, then its own. Names are relative to the folder."""
    parts: list[str] = []
    seen = {(folder / name).resolve() for name in left_out(folder)}

    def add(path: Path) -> None:
        seen.add(path)
        lines = release_lines(read(path).split("\n"))
        for line in lines:
            included = INCLUDE.match(line)
            if included and (other := (folder / included[1]).resolve()) not in seen:
                add(other)
        text = "\n".join(line for line in lines if not INCLUDE.match(line))
        name = path.relative_to(folder.resolve())
        parts.append(f"/* ==== csrc/{name} ==== */\n{without_guard(text).strip()}\n")

    add((folder / root).resolve())
    return "\n".join(parts)


def left_out(folder: Path = SOURCES) -> list[str]:
    """The files that contest/changes.txt leaves out."""
    without = []
    for line in read(folder / "contest/changes.txt").splitlines():
        match line.split():
            case ["without", name]:
                without.append(name)
            case [] | ["#", *_]:
                pass
            case _:
                raise ValueError(f"contest/changes.txt: unknown: {line}")
    return without


def read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"a source file of the package cannot be read: {error}") from None


def release_lines(lines: list[str]) -> list[str]:
    """The lines of the competition's build: no code for others only, and no directives around such code."""
    kept = []
    asks: list[bool | None] = []  # for each open condition: whether it is left out; None: it is the compiler's
    for line in lines:
        condition = CONDITION.match(line)
        if condition:
            word, name = condition.groups()
            if word.startswith("if"):
                asks.append((word, name) in LEFT_OUT if name in MACROS else None)
                if asks[-1] is not None:
                    continue
            elif asks[-1] is not None:
                if word == "endif":
                    asks.pop()
                elif word == "else":
                    asks[-1] = not asks[-1]
                else:
                    raise ValueError(f"#elif behind #ifdef of another build: {line}")
                continue
            elif word == "endif":
                asks.pop()
        if True not in asks:
            kept.append(line)
    return kept


def without_guard(text: str) -> str:
    guard = GUARD.search(text)
    if not guard:
        return text
    return text[: guard.start()] + text[guard.end() :].rstrip().removesuffix("#endif")
