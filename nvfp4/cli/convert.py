"""Write a checkpoint of ModelOpt as one of compressed-tensors, or the reverse.

Weights and block scales keep their bytes: nothing is decoded. The global scales of the two formats are reciprocals of
each other, each rounded once; the command says how many of them nvfp4.load reads with other bits than before. Files
without weights are copied. Scales of a KV cache are left out. FP8 layers are converted too, if the other format has
such layers. A checkpoint with layers that are quantized in another way is rejected.

Exit status: 0 done, 2 the checkpoint cannot be read or converted: nothing is written.
"""

from __future__ import annotations

import argparse
import dataclasses
import json

from nvfp4.cli import machine, show

FORMATS = ("modelopt", "compressed-tensors")  # of nvfp4.save, which needs torch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="IN", help="a checkpoint's folder")
    parser.add_argument("path", metavar="OUT", help="a folder that is new or empty")
    parser.add_argument("--to", choices=FORMATS, required=True, help="the format to write")
    add_output_arguments(parser)


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of a command that writes a checkpoint."""
    parser.add_argument(
        "--max-shard-size",
        default="5GB",
        metavar="SIZE",
        help="write at most so many bytes of tensors into a file, such as 500MB (default: 5GB)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    machine.need_torch()
    from nvfp4.checkpoints.convert import convert

    try:
        read, wrote = convert(args.source, args.path, args.to, args.max_shard_size)
    except ModuleNotFoundError as error:
        raise show.CommandError(str(error)) from None
    if args.json:
        more = {"from": read.format, "skipped": read.skipped, "mxfp4": [*read.mxfp4]}
        print(json.dumps(dataclasses.asdict(wrote) | more, indent=1))
        return 0
    for name, reason in read.skipped.items():
        print(show.printable(f"left out: {name}: {reason}"))
    size = show.si(sum(wrote.files.values()), "B")
    layers = f"{len(wrote.layers)} layers" + (f", {len(wrote.fp8)} FP8 layers" if wrote.fp8 else "")
    print(f"{read.format} to {wrote.format}: {layers}, {size} in {len(wrote.files)} files")
    if read.mxfp4:
        print(f"MXFP4 layers that became NVFP4 with equal values: {len(read.mxfp4)}")
    if wrote.rounded:
        largest = max(wrote.rounded.values())
        print(f"global scales that changed: {len(wrote.rounded)}, by at most {largest:.2g} of their value")
    else:
        print("global scales that changed: none")
    return 0
