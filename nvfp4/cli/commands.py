"""A program of several commands: the command line of `nvfp4`, and of the tools of the checkout."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType

from .. import Error, __version__
from .show import CommandError


def parser(program: str, description: str, commands: Mapping[str, ModuleType]) -> argparse.ArgumentParser:
    """A command is a module with a docstring, `add_arguments` and `run`."""
    top = argparse.ArgumentParser(prog=program, description=description)
    top.add_argument("--version", action="version", version=f"nvfp4 {__version__}")
    names = top.add_subparsers(dest="command", metavar="command", required=True)
    for name, module in commands.items():
        text = module.__doc__ or ""
        sub = names.add_parser(
            name,
            help=text.partition("\n")[0].rstrip("."),
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(sub)
    return top


def main(top: argparse.ArgumentParser, commands: Mapping[str, ModuleType], argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status: 0 done, 1 a check failed or a layer is damaged, 2 it cannot run."""
    words = sys.argv[1:] if argv is None else list(argv)
    args = top.parse_args(words, argparse.Namespace(words=words))
    try:
        return commands[args.command].run(args)
    except (CommandError, Error) as reason:
        print(f"{top.prog} {args.command}: {reason}", file=sys.stderr)
        return getattr(reason, "status", 2)
    except KeyboardInterrupt:
        print(f"{top.prog} {args.command}: interrupted", file=sys.stderr)
        return 130
