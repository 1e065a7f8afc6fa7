"""The command line: `python -m nvfp4 COMMAND`, also installed as `nvfp4 COMMAND`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from nvfp4.bench import command as bench
from nvfp4.cli import check, commands, convert, info, inspect, quantize

COMMANDS = {
    "check": check,
    "info": info,
    "bench": bench,
    "quantize": quantize,
    "inspect": inspect,
    "convert": convert,
}
DESCRIPTION = (
    "Check and time products of NVFP4 data on CPUs and NVIDIA GPUs; make NVFP4 checkpoints, and look into them."
)


def parser() -> argparse.ArgumentParser:
    return commands.parser("nvfp4", DESCRIPTION, COMMANDS)


def main(argv: Sequence[str] | None = None) -> int:
    return commands.main(parser(), COMMANDS, argv)


if __name__ == "__main__":
    sys.exit(main())
