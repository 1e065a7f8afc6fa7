"""Text for a terminal: a table, a progress bar, names and values of a file."""

from __future__ import annotations

import importlib.util
import reprlib
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

try:
    import rich.console
    import rich.markup
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
def progress(total: int | None) -> Iterator[Callable[[str], None]]:
    """Yields a function that reports the start of a step; there are `total` steps, or an unknown number (None).

    With rich, on a terminal or in a notebook, it draws a bar. Without it the step stands there in one line, which
    changes. Elsewhere each step is a line.
    """
    notebook = in_notebook()
    changing = notebook or sys.stderr.isatty()
    if rich is not None and (has_widgets() if notebook else sys.stderr.isatty()):
        columns = (
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TimeRemainingColumn(),
        )
        console = rich.console.Console(stderr=True, force_jupyter=notebook)
        with rich.progress.Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=total)
            started = 0

            def draw(what: str) -> None:
                nonlocal started
                bar.update(task, description=rich.markup.escape(printable(what)), completed=started)
                started += 1

            yield draw
        return

    started = 0
    of = "" if total is None else f"/{total}"

    def say(what: str) -> None:
        nonlocal started
        started += 1
        line, room = f"[{started}{of}] {printable(what)}", shutil.get_terminal_size().columns - 1
        text, end = (f"\r{line[:room]:<{room}}", "") if changing else (line, "\n")
        print(text, end=end, file=sys.stderr, flush=True)

    try:
        yield say
    finally:
        if changing and started:
            print(file=sys.stderr)


def watched(total: int | None) -> AbstractContextManager[Callable[[str], None]]:
    """Is `progress` where somebody looks: on a terminal or in a notebook. Elsewhere the function does nothing."""
    return progress(total) if sys.stderr.isatty() or in_notebook() else nullcontext(unwatched)


def unwatched(what: str) -> None:
    """Reports nothing."""


def in_notebook() -> bool:
    """Whether Jupyter runs this program: then standard error is no terminal, but is shown below the cell."""
    ipython = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(ipython).__mro__)


def has_widgets() -> bool:
    """Whether a notebook can redraw output, for which rich needs ipywidgets."""
    return importlib.util.find_spec("ipywidgets") is not None
