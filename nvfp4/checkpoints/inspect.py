"""Finds what is odd in a checkpoint's NVFP4 and FP8 layers: block scales, global scales, the order of the nibbles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from nvfp4.checkpoints import mxfp4
from nvfp4.checkpoints.checkpoint import Checkpoint
from nvfp4.checkpoints.configuration import mode_of
from nvfp4.checkpoints.files import file_errors
from nvfp4.checkpoints.nibble_order import References, nibble_order
from nvfp4.checkpoints.read import read, report_dense
from nvfp4.layers.fp8 import Fp8Tensors
from nvfp4.layers.fused import FUSED
from nvfp4.layers.packed import BLOCK, PackedLinear

NAN, ZERO, LARGEST = 0x7F, 0x00, 0x7E  # e4m3 without the sign; the largest is 448
ROWS = 1024  # a weight's rows that are looked at, at most
# With amax / (448 * 6) as the global scale, blocks whose largest value is near amax have the scale 448: few or, as of
# uniform weights, half of them. Where a smaller one cuts values, these blocks have more values of 6 than others have,
# or nearly all blocks are such. Weights of one magnitude, or of one and 0, are right with 448 everywhere.
CUT = 1.25  # times as many values of 6 as in other blocks; uniform weights: 0.92, normal ones cut at 1.5 sigma: 1.36
NEARLY_ALL = 0.95
COMPARED = 32  # blocks of each kind, at least


@dataclass
class LayerReport:
    """Reports the findings in a layer.

    Attributes:
        name (str): the name of the module.
        format (str): the format of the checkpoint; "mxfp4" of an MXFP4 layer, which is read as NVFP4.
        mode (str): "W4A4", "W4A4 dynamic" or "W4A16".
        shape (tuple of two ints): (N, K).
        scales (tuple of two floats, or None): the least and the largest block scale other than zero and NaN.
            None: there is no such scale.
        zero, nan, negative, largest (int): the numbers of block scales that are 0, NaN, below 0, and 448.
        lost (int): the number of blocks with the scale 0 and values that are not all 0.
        weight_global_scale, input_global_scale (float): the global scales, as multipliers.
            The largest, if the layer has several.
        nibbles (str or None): "in order" or "reversed". None: the order cannot be told.
        damage (list of str): findings that make the layer compute something else than its producer meant.
        notes (list of str): findings that are unusual and right.
    """

    name: str
    format: str
    mode: str
    shape: tuple[int, int]
    scales: tuple[float, float] | None
    zero: int
    nan: int
    negative: int
    largest: int
    lost: int
    weight_global_scale: float
    input_global_scale: float | None
    nibbles: str | None = None
    damage: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Fp8Report:
    """Reports the findings in an FP8 layer.

    Attributes:
        name (str): the name of the module.
        mode (str): such as "FP8 W8A8 per token", see nvfp4.checkpoints.fp8.
        shape (tuple of two ints): (N, K).
        per (str): which part of the weight shares a scale: "tensor", "channel" or "block".
        scales (tuple of two floats): the least and the largest scale of the weight.
        input_scale (float or None): the scale of the input, if it is stored.
        nan (int): the number of values of the weight that are NaN.
        damage (list of str): findings that make the layer compute something else than its producer meant.
    """

    name: str
    mode: str
    shape: tuple[int, int]
    per: str
    scales: tuple[float, float]
    input_scale: float | None
    nan: int
    damage: list[str] = field(default_factory=list)


@dataclass
class Inspection:
    """Reports the findings in a checkpoint.

    Attributes:
        format (str): the format, as in nvfp4.load's Checkpoint.
        layers (list of LayerReport): the layers that could be read.
        errors (dict of str): the error messages of the others, by name.
        notes (list of str): findings that concern several layers.
        skipped (dict of str): skipped layers and scales, as in nvfp4.load's Checkpoint.
        why (dict of str): what says how each layer is read, as in nvfp4.load's Checkpoint.
        dense (dict of int): the bytes of large tensors that are neither, as in nvfp4.load's Checkpoint.
        packed_bytes, fp8_bytes, other_bytes (int): the bytes of all NVFP4 layers, FP8 layers, and other tensors.
        fp8 (list of Fp8Report): the FP8 layers.
    """

    format: str
    layers: list[LayerReport]
    errors: dict[str, str]
    notes: list[str]
    skipped: dict[str, str]
    why: dict[str, str] = field(default_factory=dict)
    dense: dict[str, int] = field(default_factory=dict)
    packed_bytes: int = 0
    other_bytes: int = 0
    fp8_bytes: int = 0
    fp8: list[Fp8Report] = field(default_factory=list)

    @property
    def damaged(self) -> bool:
        return bool(self.errors) or any(layer.damage for layer in self.all_layers)

    @property
    def all_layers(self) -> list[LayerReport | Fp8Report]:
        return [*self.layers, *self.fp8]


@file_errors("source")
def inspect(source: str | Path | Mapping[str, Tensor], format: str | None = None) -> Inspection:
    """Inspects all NVFP4 and FP8 layers of a checkpoint.

    Args:
        source (str, PathLike or dict): the checkpoint, as for nvfp4.load.
        format (str, optional): None or "comfy-kitchen", as for nvfp4.load. Default: None.

    Returns:
        An Inspection. Its `damaged` tells whether a layer is damaged or cannot be read.

    Raises:
        nvfp4.Error: a file is missing or damaged, or the format is unknown. A layer that cannot be read raises nothing.

    Examples:
        >>> import nvfp4, torch
        >>> from nvfp4.checkpoints import modelopt
        >>> from nvfp4.checkpoints.inspect import inspect
        >>> layer = nvfp4.Linear.from_linear(torch.nn.Linear(64, 32), activations=None)
        >>> tensors = {f"0.{name}": t for name, t in modelopt.write(layer.packed()).items()}
        >>> inspect(tensors).damaged
        False
    """
    errors: dict[str, str] = {}
    checkpoint = read(source, format, errors=errors)
    experts = {f"{name}[{i}]": x for name, stack in checkpoint.experts.items() for i, x in enumerate(stack)}
    given = checkpoint.layers | experts
    references = References(checkpoint, len(given))
    layers = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a layer is too small for several, which wait for each other
    try:
        for name, packed in given.items():
            is_mxfp4 = name in checkpoint.mxfp4 or name.rpartition("[")[0] in checkpoint.mxfp4
            layers.append(inspect_layer(name, packed, mxfp4.NAME if is_mxfp4 else checkpoint.format))
            if not layers[-1].nan:
                layers[-1].nibbles = nibble_order(name, packed, references)
            if layers[-1].nibbles == "reversed":
                layers[-1].damage.append("the nibbles of each byte look reversed")
    finally:
        torch.set_num_threads(threads)
    report_dense(checkpoint)
    return Inspection(
        checkpoint.format,
        layers,
        errors,
        fused_notes(checkpoint),
        checkpoint.skipped,
        checkpoint.why,
        checkpoint.dense,
        checkpoint.packed_bytes,
        checkpoint.other_bytes,
        checkpoint.fp8_bytes,
        [inspect_fp8(name, tensors) for name, tensors in checkpoint.fp8.items()],
    )


def inspect_fp8(name: str, tensors: Fp8Tensors) -> Fp8Report:
    scale, given = tensors.weight_scale, tensors.input_scale
    nan = int((tensors.weight.view(torch.uint8) & 0x7F == NAN).sum())
    return Fp8Report(
        name,
        str(mode_of(tensors)),
        (tensors.out_features, tensors.in_features),
        tensors.scales,
        (float(scale.amin()), float(scale.amax())),
        None if given is None else float(given),
        nan,
        [f"{nan} of {tensors.weight.numel()} values of the weight are NaN"] if nan else [],
    )


def inspect_layer(name: str, packed: PackedLinear, format: str) -> LayerReport:
    scale = packed.weight_scale.contiguous().view(torch.uint8)
    counts = torch.bincount(scale.flatten(), minlength=256)
    both = counts[:128] + counts[128:]
    used = both[1:NAN].nonzero().flatten() + 1
    values = used.to(torch.uint8).view(torch.float8_e4m3fn).float()
    report = LayerReport(
        name,
        format,
        str(mode_of(packed)),
        (packed.out_features, packed.in_features),
        (float(values[0]), float(values[-1])) if len(used) else None,
        zero=int(both[ZERO]),
        nan=int(both[NAN]),
        negative=int(counts[129:255].sum()),
        largest=int(both[LARGEST]),
        lost=lost_blocks(packed, scale) if both[ZERO] else 0,
        weight_global_scale=float(packed.weight_global_scale.amax()),
        input_global_scale=None if packed.input_global_scale is None else float(packed.input_global_scale),
    )
    for count, what in (
        (report.nan, "NaN"),
        (report.negative, "negative"),
        (report.lost, "0 but have values that are not"),
    ):
        if count:
            report.damage.append(f"{count} of {scale.numel()} block scales are {what}")
    if report.zero > report.lost:
        report.notes.append(f"{report.zero - report.lost} blocks of zeros have the scale 0")
    if report.largest >= COMPARED and is_cut(packed, scale):
        report.notes.append(
            f"{report.largest} of {scale.numel()} block scales are 448, and the largest values look cut"
        )
    return report


def is_cut(packed: PackedLinear, scale: Tensor) -> bool:
    """Whether blocks with the scale 448 look as if they had larger values. Reads some rows, if there are many."""
    step = max(1, packed.out_features // ROWS)
    scale = scale[::step] & 0x7F
    codes = packed.weight[::step].reshape(len(scale), -1, BLOCK // 2)
    codes = torch.cat([codes & 7, codes >> 4 & 7], -1)
    sixes = (codes == 7).sum(-1, dtype=torch.float32)
    ours, others = scale == LARGEST, (scale != LARGEST) & (scale > ZERO) & (scale < NAN)
    count, compared = int(ours.sum()), int(others.sum())
    if count > NEARLY_ALL * (count + compared):
        return bool(((codes[ours] > 0) & (codes[ours] < 7)).any())
    return min(count, compared) >= COMPARED and float(sixes[ours].mean()) > CUT * float(sixes[others].mean())


def lost_blocks(packed: PackedLinear, scale: Tensor) -> int:
    """Blocks with the scale 0 and other values than 0 and -0."""
    rows, blocks = (scale & 0x7F == 0).nonzero(as_tuple=True)
    codes = packed.weight.reshape(packed.out_features, -1, BLOCK // 2)[rows, blocks]
    return int((codes & 0x77).any(-1).sum())


def fused_notes(checkpoint: Checkpoint) -> list[str]:
    """Layers that engines join, with global scales that differ: one scale for all of them changes weights."""
    notes = []
    for parent in dict.fromkeys(name.rpartition(".")[0] for name in checkpoint.layers):
        for siblings in FUSED:
            names = [f"{parent}.{sibling}" if parent else sibling for sibling in siblings]
            if not all(name in checkpoint.layers for name in names):
                continue
            for scale in ("weight_global_scale", "input_global_scale"):
                given = [getattr(checkpoint.layers[name], scale) for name in names]
                values = [float(t) for t in given if t is not None]
                if len(set(values)) > 1:
                    ratio = max(values) / min(values)
                    notes.append(f"{', '.join(names)}: {scale} differs, by a factor of up to {ratio:.3g}")
    return notes
