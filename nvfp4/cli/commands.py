"""A program of several commands: the command line of `nvfp4`, and of the tools of the checkout."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType

from nvfp4 import Error, __version__
from nvfp4._text import printable
from nvfp4.cli.show import CommandError


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


def shapes(text: str, most: int = 3, least: int = 1) -> list[tuple[int, ...]]:
    """The type of an argument: shapes as `MxNxK,...`, or one as `M,N,K`. With `most` = 4 a shape may also have L."""
    parts = text.lower().split(",") if "x" in text.lower() else [text.replace(",", "x")]
    found = []
    for part in parts:
        sizes = part.split("x")
        if len(sizes) not in range(3, most + 1) or not all(size.isdecimal() for size in sizes):
            length = "[xL] or M,N,K[,L]" if most == 4 else " or M,N,K"
            raise argparse.ArgumentTypeError(f"{text!r}: a shape is MxNxK{length}")
        shape = tuple(map(int, sizes))
        if min(shape) < least:
            raise argparse.ArgumentTypeError(f"{part!r}: sizes must be positive")
        if shape[2] % 16:
            raise argparse.ArgumentTypeError(f"{part!r}: K must be a multiple of 16")
        found.append(shape)
    return found


def main(top: argparse.ArgumentParser, commands: Mapping[str, ModuleType], argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status: 0 done, 1 a check failed or a layer is damaged, 2 it cannot run."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names that its encoding lacks
    words = sys.argv[1:] if argv is None else list(argv)
    args = top.parse_args(words, argparse.Namespace(words=words))
    try:
        return commands[args.command].run(args)
    except (CommandError, Error) as reason:
        text = printable(str(reason)) if isinstance(reason, Error) else str(reason)
        print(f"{top.prog} {args.command}: {text}", file=sys.stderr)
        return getattr(reason, "status", 2)
    except BrokenPipeError:  # `| head` has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered goes nowhere
        return 2
    except OSError as error:
        what = f"{error.strerror}: {error.filename}" if error.filename else error.strerror or error
        print(f"{top.prog} {args.command}: {printable(str(what))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{top.prog} {args.command}: interrupted", file=sys.stderr)
        return 130
