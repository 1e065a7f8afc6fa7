"""Show a checkpoint's NVFP4 and FP8 layers and what is odd in them.

The table shows the mode, the shape and the scales of each layer: the least and the largest block scale, and how many
are 0 or 448. Global scales are multipliers. A layer is damaged if it would compute something else: block scales are NaN
or negative, a block of values has the scale 0, nibbles look reversed, or a tensor is missing or has a wrong shape. A
packed tensor that belongs to no layer is damage too, and a configuration that describes layers which are not there.
FP8 layers have a table of their own; a NaN in the weight is damage.
Notes name what is unusual but not wrong, such as q, k and v with different global scales, and what nvfp4.load skips.

To find the order of nibbles, the command compares a layer with tensors that have the same channels and are not packed
along them: norms, embeddings, the rows of the layer before. The column is empty if the comparison tells nothing.

Exit status: 0 no layer is damaged, 1 a layer is, 2 the checkpoint cannot be read.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any

from nvfp4.cli import machine, show

if TYPE_CHECKING:
    from nvfp4.checkpoints.inspect import Fp8Report, Inspection, LayerReport

MXFP4 = "mxfp4"  # the format of a layer
COLUMNS = ["<layer", "<mode", "N x K", "block scales", "0", "448", "global", "input", "<nibbles", "<odd"]
FP8_COLUMNS = ["<layer", "<mode", "N x K", "<a scale per", "scales", "input", "<odd"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="a checkpoint's folder, or one *.safetensors or *.gguf file")
    parser.add_argument(
        "--format", choices=["modelopt", "comfy-kitchen"], help="the format, if the file itself does not say it"
    )
    parser.add_argument("--why", action="store_true", help="say which part of the configuration describes each layer")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    machine.need_torch()
    from nvfp4.checkpoints.inspect import inspect

    try:
        found = inspect(args.path, args.format)
    except ModuleNotFoundError as error:
        raise show.CommandError(str(error)) from None
    if args.json:
        print(json.dumps(plain(dataclasses.asdict(found) | {"damaged": found.damaged}), indent=1))
    else:
        report(args.path, found, args.why)
    return 1 if found.damaged else 0


def plain(value: Any) -> Any:
    """Without NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def report(path: str, found: Inspection, why: bool = False) -> None:
    stored = sum(layer.format == MXFP4 for layer in found.layers)
    counts = f"{len(found.layers)} NVFP4 layers" + (f", {stored} of them MXFP4 in the file" if stored else "")
    show.table(f"{path}: {found.format}, {counts}", COLUMNS, [row(x) for x in found.layers])
    if found.fp8:
        show.table(f"{path}: {len(found.fp8)} FP8 layers", FP8_COLUMNS, [fp8_row(x) for x in found.fp8])
    for own in found.all_layers:
        for text in own.damage:
            print(show.printable(f"DAMAGE: {own.name}: {text}"))
    for message in found.errors.values():
        print(show.printable(f"DAMAGE: {message}"))
    for layer in found.layers:
        for text in layer.notes:
            print(show.printable(f"note: {layer.name}: {text}"))
    for text in found.notes:
        print(show.printable(f"note: {text}"))
    for name, reason in found.skipped.items():
        print(show.printable(f"skipped: {name}: {reason}"))
    for name, count in found.dense.items():
        print(show.printable(f"dense: {name}: {show.si(count, 'B')}"))
    total = f"total: {show.si(found.packed_bytes, 'B')} in NVFP4 layers, "
    total += f"{show.si(found.fp8_bytes, 'B')} in FP8 layers, " if found.fp8 else ""
    print(f"{total}{show.si(found.other_bytes, 'B')} in other tensors")
    for name, text in found.why.items() if why else ():
        print(show.printable(f"why: {name}: {text}"))
    damaged = sum(bool(layer.damage) for layer in found.all_layers) + len(found.errors)
    print(f"{damaged} of {len(found.all_layers) + len(found.errors)} layers are damaged")


def fp8_row(layer: Fp8Report) -> list[str]:
    return [
        layer.name,
        layer.mode,
        "x".join(map(str, layer.shape)),
        layer.per,
        f"{layer.scales[0]:.3g}..{layer.scales[1]:.3g}",
        "-" if layer.input_scale is None else f"{layer.input_scale:.3g}",
        "DAMAGE" if layer.damage else "",
    ]


def row(layer: LayerReport) -> list[str]:
    return [
        layer.name,
        layer.mode,
        "x".join(map(str, layer.shape)),
        "-" if layer.scales is None else f"{layer.scales[0]:g}..{layer.scales[1]:g}",
        str(layer.zero),
        str(layer.largest),
        f"{layer.weight_global_scale:.3g}",
        "-" if layer.input_global_scale is None else f"{layer.input_global_scale:.3g}",
        layer.nibbles or "",
        "DAMAGE" if layer.damage else "note" if layer.notes else "",
    ]
