"""`python tools/lab COMMAND`, in a checkout whose package is installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # the folder of the package `lab`, in place of `lab` itself
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from lab import dump, first_run, placement  # noqa: E402
from nvfp4.cli import commands  # noqa: E402

COMMANDS = {"first-run": first_run, "dump": dump, "placement": placement}
DESCRIPTION = "Bring up a GPU and look into its kernels."


def main(argv: Sequence[str] | None = None) -> int:
    return commands.main(commands.parser("tools/lab", DESCRIPTION, COMMANDS), COMMANDS, argv)


if __name__ == "__main__":
    sys.exit(main())
