"""The command line: `python -m nvfp4 COMMAND`, also installed as `nvfp4 COMMAND`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import Error, __version__
from .cli import bench, check, convert, first_run, info, inspect, submission
from .cli.show import CommandError

COMMANDS = {
    "check": check,
    "info": info,
    "bench": bench,
    "inspect": inspect,
    "convert": convert,
    "submission": submission,
    "first-run": first_run,
}


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="nvfp4", description="Matrix products of NVFP4 data, on CPUs and NVIDIA GPUs.")
    top.add_argument("--version", action="version", version=f"nvfp4 {__version__}")
    commands = top.add_subparsers(dest="command", metavar="command", required=True)
    for name, module in COMMANDS.items():
        summary = module.__doc__.partition("\n")[0]
        sub = commands.add_parser(
            name,
            help=summary.rstrip("."),
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(sub)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status: 0 done, 1 a check failed or a layer is damaged, 2 it cannot run."""
    args = parser().parse_args(argv)
    try:
        return COMMANDS[args.command].run(args)
    except (CommandError, Error) as reason:
        print(f"nvfp4 {args.command}: {reason}", file=sys.stderr)
        return getattr(reason, "status", 2)
    except KeyboardInterrupt:
        print(f"nvfp4 {args.command}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
