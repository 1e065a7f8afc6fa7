"""Rules that transformers' and diffusers' quantizers share: arguments of NVFP4Config, and those of from_pretrained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from nvfp4 import _C
from nvfp4.layers.checks import short
from nvfp4.quantizing.quantize_model import check_modes


def check_unknown(unknown: Mapping[str, Any]) -> None:
    if unknown:
        raise _C.Error(
            f"{sorted(unknown)[0]}: is no argument of NVFP4Config; must be activations, block_scale, ignore, "
            "modules_to_not_convert, batch_invariant or weights"
        )


def check_options(activations: str | None, block_scale: str, batch_invariant: bool, weights: str) -> None:
    check_modes(activations, block_scale, batch_invariant, False, weights)
    if weights == "gptq":
        raise _C.Error(
            "weights: is 'gptq', which needs samples and the whole dense model; must be 'round' or 'search' here, "
            "or be given to nvfp4.quantize_model after loading"
        )


def ignored(
    ignore: Sequence[str] | str, not_converted: Sequence[str] | str | None, is_default: bool
) -> Sequence[str] | str:
    """`ignore`, or `modules_to_not_convert`, its other name."""
    if not_converted is None:
        return ignore
    if not is_default:
        raise _C.Error("modules_to_not_convert: is given beside ignore; must be given alone, as the same list")
    return not_converted


def check_device_map(device_map: Any) -> None:
    for name, place in device_map.items() if isinstance(device_map, Mapping) else ():
        if place == "disk":
            raise _C.Error(f"device_map: has 'disk' for {name!r}; must have devices alone, where NVFP4 layers stay")


def check_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    if dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise _C.Error(f"{name}: is {short(dtype)}; must be float16, bfloat16 or float32")
    return dtype


def nothing_becomes_nvfp4(model: torch.nn.Module, skipped: Mapping[str, str]) -> _C.Error:
    reasons = "; ".join(f"{name} {reason}" for name, reason in [*skipped.items()][:3])
    return _C.Error(
        f"quantization_config: {type(model).__name__} has no linear layer that becomes NVFP4; must have 1 or more"
        + (f" (skipped: {reasons})" if reasons else "")
    )


def all_names(model: torch.nn.Module, layers: Mapping[str, torch.nn.Module]) -> dict[str, str]:
    """All names that layers have in a model, each with the one in `layers`."""
    own = {id(layer): name for name, layer in layers.items()}
    modules = model.named_modules(remove_duplicate=False)
    return {name: own[id(module)] for name, module in modules if id(module) in own}
