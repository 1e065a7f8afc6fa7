"""Text for a terminal: a table, a progress bar, names and values of a file."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

try:
    import rich.console
    import rich.progress
except ImportError:
    rich = None


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 120


def printable(text: str) -> str:
    """The text with escapes for control characters, which a terminal would obey, and other unprintable ones."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(value: object) -> str:
    """repr of a value in an error message, abbreviated."""
    return _SHORT.repr(value)


def plain(columns: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[bool]) -> str:
    """The table in plain text, columns two blanks apart."""
    width = [max(map(len, cells)) for cells in zip(columns, *rows)]
    lines = [columns, ["-" * w for w in width], *rows]
    return "\n".join(
        "  ".join(cell.ljust(w) if is_left else cell.rjust(w) for cell, w, is_left in zip(line, width, left)).rstrip()
        for line in lines
    )


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """Yields a function that reports the start of a step; there are `total` steps.

    With rich on a terminal it draws a bar; otherwise it prints one line per step.
    """
    if rich is not None and sys.stderr.isatty():
        columns = (
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TimeRemainingColumn(),
        )
        console = rich.console.Console(stderr=True)
        with rich.progress.Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=total)
            started = 0

            def draw(what: str) -> None:
                nonlocal started
                bar.update(task, description=what, completed=started)
                started += 1

            yield draw
        return

    started = 0

    def say(what: str) -> None:
        nonlocal started
        started += 1
        print(f"[{started}/{total}] {what}", file=sys.stderr, flush=True)

    yield say
