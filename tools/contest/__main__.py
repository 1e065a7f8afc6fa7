"""`python tools/contest COMMAND`, in a checkout whose package is installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # the folder of the package `contest`, in place of `contest` itself
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from contest import measure, submission  # noqa: E402
from nvfp4.cli import commands  # noqa: E402

COMMANDS = {"submission": submission, "measure": measure}
DESCRIPTION = "Write the file for GPU MODE's competition, and measure as the competition does."


def main(argv: Sequence[str] | None = None) -> int:
    return commands.main(commands.parser("tools/contest", DESCRIPTION, COMMANDS), COMMANDS, argv)


if __name__ == "__main__":
    sys.exit(main())
