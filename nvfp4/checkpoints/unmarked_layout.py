"""Whose layout tensors without a mark have: ModelOpt and comfy-kitchen give them the same names.

    ModelOpt        weight_scale [N, K/16], linear; the even element in the low nibble
    comfy-kitchen   weight_scale in the 128x4 layout; the even element in the high nibble by default

The shapes tell unless N is a multiple of 128 and K one of 64 in all layers. Then the data may: a block of values has no
scale 0, all blocks of zeros have the same scale, and the scales of a real weight follow its rows and columns. For
independent scales the variances of row and column means are chi-squared; the deviation from that, in standard
deviations, must be 6 in one layout and 6 more than in the other. Otherwise the caller has to say it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nvfp4 import _C, _api
from nvfp4.layers.buffers import aligned, round_up
from nvfp4.layers.packed import BLOCK

LINEAR, SWIZZLED = "linear", "128x4"
SIGMAS, LOOKED_AT = 6.0, 16
HINT = "give format='modelopt' (linear scales, even element in the low nibble) or 'comfy-kitchen' (128x4, high nibble)"


@dataclass
class Layout:
    """The layout of a file's block scales, and what tells it."""

    name: str
    why: str


def layout_of(where: str, modules: Mapping[str, Mapping[str, Tensor]]) -> Layout:
    """The layout that all layers have.

    Args:
        where: the source, for error messages.
        modules: the tensors of each module by their names in it.

    Raises:
        nvfp4.Error: neither the shapes nor the data tell it.
    """
    pairs = {name: (own["weight"], own["weight_scale"]) for name, own in modules.items() if is_pair(own)}
    told: dict[str, str] = {}
    for name, (weight, scale) in pairs.items():
        linear = (weight.shape[0], weight.shape[1] * 2 // BLOCK)
        padded = round_up(linear[0], 128) * round_up(linear[1], 4)
        if scale.shape == linear and scale.numel() != padded:
            told.setdefault(LINEAR, name)
        elif scale.shape != linear and scale.numel() == padded:
            told.setdefault(SWIZZLED, name)
        elif scale.shape != linear:
            return Layout(LINEAR, f"{name}.weight_scale has another shape")  # which reading it reports
    if len(told) == 2:
        raise _C.Error(f"{where}: {told[LINEAR]} has linear block scales by its shape, {told[SWIZZLED]} 128x4; {HINT}")
    if told or not pairs:
        ((layout, name),) = told.items() or ((LINEAR, ""),)
        return Layout(layout, f"the shape of {name}.weight_scale")
    return by_data(where, list(pairs.values())[:LOOKED_AT])


def is_pair(own: Mapping[str, Tensor]) -> bool:
    weight, scale = own.get("weight"), own.get("weight_scale")
    if weight is None or scale is None or "weight_scale_2" not in own:
        return False
    right = weight.dtype == torch.uint8 and scale.dtype == torch.float8_e4m3fn
    whole = weight.ndim == 2 and weight.numel() > 0 and weight.shape[1] % (BLOCK // 2) == 0
    return right and whole and not weight.is_meta and not scale.is_meta


def by_data(where: str, pairs: list[tuple[Tensor, Tensor]]) -> Layout:
    lost = {LINEAR: 0, SWIZZLED: 0}  # blocks with the scale 0 and other values
    zeros: dict[str, set[int]] = {LINEAR: set(), SWIZZLED: set()}  # scales of blocks of zeros
    excess = {LINEAR: 0.0, SWIZZLED: 0.0}
    freedom = 0
    for weight, scale in pairs:
        rows, columns = weight.shape[0], weight.shape[1] * 2 // BLOCK
        empty = (weight.reshape(rows, columns, BLOCK // 2) & 0x77 == 0).all(-1)
        layouts = {LINEAR: scale, SWIZZLED: _api.unswizzle(aligned(scale, 16).reshape(-1), rows, columns)}
        freedom += rows - 1 + columns - 1
        for name, t in layouts.items():
            codes = t.contiguous().view(torch.uint8) & 0x7F
            lost[name] += int(((codes == 0) & ~empty).sum())
            zeros[name] |= {*codes[empty].unique().tolist()}
            excess[name] += structure(codes.double())
    deviations = {name: value / (2 * freedom) ** 0.5 for name, value in excess.items()}
    for name, other in ((LINEAR, SWIZZLED), (SWIZZLED, LINEAR)):
        if not lost[name] and lost[other]:
            return Layout(
                name, f"{lost[other]} blocks of values would have the scale 0 with {other} scales, and none here"
            )
        if len(zeros[name]) == 1 and len(zeros[other]) > 1 and not lost[other]:
            return Layout(
                name, f"blocks of zeros have one scale; with {other} scales {len(zeros[other])} different ones"
            )
        if deviations[name] >= SIGMAS and deviations[name] - deviations[other] >= SIGMAS:
            sure = f"{deviations[name]:.0f} standard deviations, {deviations[other]:.0f} with {other} scales"
            return Layout(name, f"the scales follow rows and columns by {sure}")
    raise _C.Error(
        f"{where}: has the names of ModelOpt and of comfy-kitchen, no mark says whose layout its block scales have, "
        f"and the data do not tell; {HINT}"
    )


def structure(codes: Tensor) -> float:
    """By how much the squared row and column means exceed what they are if all scales are independent."""
    rows, columns = codes.shape
    codes = codes - codes.mean()
    variance = float(codes.square().mean())
    if variance == 0:
        return 0.0
    squares = columns * float(codes.mean(1).square().sum()) + rows * float(codes.mean(0).square().sum())
    return squares / variance - (rows - 1 + columns - 1)
