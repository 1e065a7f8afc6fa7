"""Tables and progress for the commands: with rich if it is installed, else as plain text.

Tables go to standard output and progress to standard error, so that `--json` and pipes stay clean.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

try:
    import rich
    import rich.box
    import rich.console
    import rich.table
    import rich.text
except ImportError:
    rich = None

from nvfp4._text import plain as plain
from nvfp4._text import printable as printable
from nvfp4._text import progress as progress


class CommandError(Exception):
    """A command cannot run: its error message is printed, and `status` is the exit status."""

    status = 2


class Failure(CommandError):
    """A command ran and found something wrong."""

    status = 1


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table. A column with a name that starts with "<" is aligned to the left, the others to the right.

    Control characters are escaped. On a narrow terminal cells wrap between words. If that is not enough, the terminal
    wraps the lines: nothing is cut off.
    """
    left = [column.startswith("<") for column in columns]
    columns = [column.removeprefix("<") for column in columns]
    title, rows = printable(title), [[printable(cell) for cell in row] for row in rows]
    if rich is not None and sys.stdout.isatty():
        console = rich.console.Console()
        widths = fitted([*zip(columns, *rows)], console.width - 3 * len(columns) - 1)
        if widths:
            grid = rich.table.Table(
                title=rich.text.Text(title), title_justify="left", box=rich.box.SIMPLE_HEAD, title_style="bold"
            )
            for column, is_left, width in zip(columns, left, widths):
                grid.add_column(column, justify="left" if is_left else "right", width=width)
            for row in rows:
                grid.add_row(*(rich.text.Text(cell) for cell in row))
            console.print(grid)
            return
    print(title)
    print(plain(columns, rows, left))


def fitted(columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """Column widths that keep every word whole and fit into `room`; [] if there are none."""
    full = [max(map(len, cells)) for cells in columns]
    widths = [max(len(word) for cell in cells for word in (cell.split() or [""])) for cells in columns]
    room -= sum(widths)
    if room < 0:
        return []
    for i in sorted(range(len(full)), key=lambda i: full[i] - widths[i]):
        if full[i] - widths[i] <= room:
            room -= full[i] - widths[i]
            widths[i] = full[i]
    return widths


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table in GitHub's markdown."""
    rule = "|".join(":--" if column.startswith("<") else "--:" for column in columns)
    head, *lines = ("| " + " | ".join(line) + " |" for line in [[c.removeprefix("<") for c in columns], *rows])
    return "\n".join([head, f"|{rule}|", *lines])


def si(value: float, unit: str) -> str:
    """Three significant digits with a prefix: si(3.2e12, "B/s") is "3.20 TB/s"."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{digits(value / factor)} {prefix}{unit}"
    return f"{digits(value)} {unit}"


def mebibytes(value: int) -> str:
    return f"{value / 2**20:.0f} MiB"


def seconds(value: float) -> str:
    """A time in the unit that suits it, with three significant digits."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if value >= factor:
            return f"{digits(value / factor)} {unit}"
    return f"{digits(value / 1e-6)} us"


def digits(value: float) -> str:
    if 0 < abs(value) < 0.1:
        return f"{value:.2g}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
