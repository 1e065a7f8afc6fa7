"""Which tensors of a file make a layer, and what packed tensors are that make none.

After reading, each packed tensor and each scale belongs to a layer, a stack of experts or a named skip. Any other is an
error: its values would be taken for something else than they are.

A tensor may carry its layer's name before an underscore: experts.gate_up_proj_weight_scale is the weight_scale of
experts.gate_up_proj.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4._text import shown
from nvfp4.checkpoints import mxfp4
from nvfp4.checkpoints.checkpoint import Checkpoint, in_another_way, noted
from nvfp4.checkpoints.patterns import MAX_NAME
from nvfp4.layers.checks import short

EIGHT_BITS = {torch.uint8, torch.int8, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu}
EIGHT_BITS |= {getattr(torch, name) for name in ("float8_e4m3fnuz", "float8_e5m2fnuz", "float4_e2m1fn_x2")}
FP8 = {torch.float8_e4m3fn, torch.float8_e5m2}
JOINED = re.compile(r"(.+)_(weight_packed|weight_scale|weight_scale_2|weight_scale_inv|weight_global_scale|blocks)")
ENDINGS = re.compile(
    r"weight|weight_packed|weight_scale\w*|weight_global_scale|weight_zero_point|weight_shape|weight_amax"
    r"|input_scale|input_global_scale|input_amax|output_scale|pre_quant_scale|bias|k_scale|v_scale|blocks|scales"
)
# Names of scales that no dense layer has, in any format that is known.
SCALE = re.compile(r"(.*_)?(weight_scale\w*|weight_global_scale|input_global_scale|input_scale|output_scale)")
OTHERS = re.compile(r"(.*_)?(pre_quant_scale|weight_zero_point|absmax|quant_map|qzeros|qweight|blocks|scales)")


def grouped(tensors: Mapping[str, Tensor]) -> tuple[dict[str, dict[str, Tensor]], dict[tuple[str, str], str]]:
    """The tensors of each module by their names in it, and the full name of each."""
    for name in tensors:
        if len(name) > MAX_NAME:
            raise _C.Error(f"{shown(name)} has {len(name)} characters; a name must have at most {MAX_NAME}")
    split = {name: name.rpartition(".")[::2] for name in tensors}
    stems: dict[str, set[str]] = {}
    for module, local in split.values():
        match = JOINED.fullmatch(local)
        if match and (match[2] != "blocks" or f"{module}.{match[1]}_scales".lstrip(".") in tensors):
            stems.setdefault(module, set()).add(match[1])
    modules: dict[str, dict[str, Tensor]] = {}
    names: dict[tuple[str, str], str] = {}
    for name, (module, local) in split.items():
        if module in stems:
            stem, ending = divided(local, stems[module])
            if stem:
                module, local = f"{module}.{stem}" if module else stem, ending
        if (module, local) in names:
            raise _C.Error(f"{name}: and {names[module, local]} are both the {local} of {module}")
        modules.setdefault(module, {})[local] = tensors[name]
        names[module, local] = name
    return modules, names


def divided(local: str, stems: Collection[str]) -> tuple[str, str]:
    """The longest of these layers' names that a tensor's name begins with, and the rest. "": there is none."""
    if local in stems:
        return local, "weight"
    at = len(local)
    while (at := local.rfind("_", 0, at)) > 0:
        if local[:at] in stems and ENDINGS.fullmatch(local, at + 1):
            return local[:at], local[at + 1 :]
    return "", local


def has_scale(own: Iterable[str]) -> bool:
    return any(SCALE.fullmatch(local) or OTHERS.fullmatch(local) or local == "scale" for local in own)


def other_kind(own: Mapping[str, Tensor]) -> str | None:
    """How a module's tensors are quantized, if they are in another way than NVFP4 that can be told from them."""
    if mxfp4.names_of(own) is not None:
        return "MXFP4 by its tensors"
    weight = own.get("weight", own.get("weight_packed"))
    scale = next(
        (own[name] for name in ("weight_scale", "weight_scale_inv", "scale_weight", "scale") if name in own), None
    )
    if "qweight" in own:
        return "integers in groups (qweight)"
    if weight is None or "weight_scale_2" in own or "weight_global_scale" in own:
        return None
    eight = scale is not None and scale.dtype in (torch.uint8, torch.float8_e8m0fnu)
    if weight.dtype in (torch.uint8, torch.int8) and eight and scale is not None and scale.ndim > 1:
        return "MXFP8 or integers by its tensors"
    if weight.dtype in FP8:
        return f"FP8 by its tensors ({short(weight.dtype)})" + ("" if scale is not None else ", without a scale")
    if weight.dtype in (torch.int8, torch.int32) and scale is not None:
        return f"integers by its tensors ({short(weight.dtype)})"
    if weight.dtype == torch.uint8 and any(local.endswith(("absmax", "quant_map")) for local in own):
        return "bitsandbytes by its tensors"
    return None


def skip_other(checkpoint: Checkpoint, module: str, own: Mapping[str, Tensor]) -> None:
    """Names a layer that no mark describes if its tensors are quantized in a known other way."""
    other = other_kind(own)
    if other is not None and module not in checkpoint.skipped:
        checkpoint.skipped[module] = in_another_way(other)
        checkpoint.why[module] = "its tensors"


def keep(checkpoint: Checkpoint, module: str, own: Mapping[str, Tensor], names: Mapping[tuple[str, str], str]) -> None:
    """Puts a module's tensors under `tensors`, by their full names."""
    for local, t in own.items():
        name = names[module, local]
        checkpoint.tensors[name] = t
        if module in checkpoint.skipped:
            checkpoint.kept[name] = module


def check_unclaimed(checkpoint: Checkpoint, errors: dict[str, str] | None = None) -> None:
    """Rejects packed tensors and scales that are neither read nor skipped. A vector of bytes without a scale, such as a
    stored tokenizer, is no packed tensor.

    Args:
        errors: as of `noted`.
    """
    modules: dict[str, list[str]] = {}
    for name in checkpoint.tensors:
        if name not in checkpoint.kept and name not in checkpoint.skipped:
            modules.setdefault(name.rpartition(".")[0], []).append(name)
    for names in modules.values():
        locals_of = {name: name.rpartition(".")[2] for name in names}
        scales = [name for name, local in locals_of.items() if SCALE.fullmatch(local) or OTHERS.fullmatch(local)]
        for name in names:
            t = checkpoint.tensors[name]
            packed = t.dtype in EIGHT_BITS and (t.ndim > 1 or bool(scales) or t.dtype != torch.uint8)
            if packed or name in scales:
                what = f"is {short(t.dtype)} {list(t.shape)}"
                with noted(name, errors):
                    raise _C.Error(
                        f"{name}: {what} and belongs to no layer that {checkpoint.format} or the configuration "
                        f"describes; beside it: {beside(name, names)}"
                    )


def beside(name: str, names: Iterable[str]) -> str:
    found = (other.rpartition(".")[2] for other in names if other != name)
    others = list(itertools.islice(found, 7))
    return ", ".join(others[:6]) + (", ..." if len(others) > 6 else "") if others else "nothing"
