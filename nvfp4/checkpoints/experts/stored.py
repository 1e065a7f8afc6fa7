"""The stacks of nvfp4.Experts as tensors of a checkpoint, in the naming that was read."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4.checkpoints import modelopt
from nvfp4.checkpoints.experts.naming import DOWN, GATE, GATE_UP, UP, Naming, naming_of, place_of
from nvfp4.layers.checks import prefix_errors
from nvfp4.layers.experts.mixture import of_experts
from nvfp4.layers.experts.module import Experts
from nvfp4.layers.packed import PackedLinear


def stored(experts: Experts, format: ModuleType) -> dict[str, Tensor]:
    """A module's tensors in a format, by their names after the module's, in the naming that was read."""
    naming: Naming = experts.naming or naming_of(of_experts(experts))
    weight_key, scale_key, global_key = format.REQUIRED
    result: dict[str, Tensor] = {}
    first = [GATE_UP] if GATE_UP in naming.locals else [GATE, UP] if experts.gated else [UP]
    for stack, roles in ((experts.gate_up, first), (experts.down, [DOWN])):
        get = stack.matrices()
        for p, role in enumerate(roles):
            parts = range(p, p + 1) if len(roles) > 1 else range(stack.shape[1])
            indices = slice(parts.start, parts.stop)
            scales = {global_key: stack.weight_global_scale[:, indices]}
            if stack.input_global_scale is not None:
                scales[format.INPUT_SCALE] = stack.input_global_scale[:, indices]
            if format is not modelopt:
                scales = {key: divisors(t, naming.divisors.get((role, key))) for key, t in scales.items()}
            each = []
            for e in range(experts.num_experts):
                pairs = [get(e, part) for part in parts]
                one = {weight_key: [pair[0] for pair in pairs], scale_key: [pair[1] for pair in pairs]}
                if stack.bias is not None:
                    one["bias"] = [stack.bias[e, part] for part in parts]
                each.append({key: joined_parts(ts, naming.interleaved) for key, ts in one.items()})
            if "{" not in naming.locals[role]:
                result |= whole(naming, role, each, scales)
                continue
            shape = () if format is modelopt else (1,)
            for e, tensors in enumerate(each):
                result |= {naming.name(role, key, e): t for key, t in tensors.items()}
                for key, t in scales.items():
                    if not bool(t[e].isnan().any()):
                        size = naming.shapes.get((role, key), shape)
                        result[naming.name(role, key, e)] = one_of(t[e], size).clone()
    return result


def divisors(scales: Tensor, read: Tensor | None) -> Tensor:
    """Multipliers [E, P] as divisors: those that were read, where a multiplier is the reciprocal of one."""
    if read is None or read.shape != scales.shape:
        return scales.reciprocal()
    own = read.to(scales.device)
    return torch.where(own.reciprocal() == scales, own, scales.reciprocal())


def joined_parts(parts: list[Tensor], interleaved: bool) -> Tensor:
    """One expert's [P * N, ...]."""
    if len(parts) == 1:
        return parts[0]
    values = [t.view(torch.uint8) if t.dtype == torch.float8_e4m3fn else t for t in parts]
    whole = torch.stack(values, 1).flatten(0, 1) if interleaved else torch.cat(values)
    return whole.view(parts[0].dtype)


def whole(naming: Naming, role: str, each: list[dict[str, Tensor]], scales: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a stack."""
    result = {}
    for key, first in each[0].items():
        bytes_of = [one[key].view(torch.uint8) if first.dtype == torch.float8_e4m3fn else one[key] for one in each]
        turn = naming.transposed and first.ndim == 2
        stack = torch.stack([t.transpose(0, 1) if turn else t for t in bytes_of])
        result[naming.name(role, key)] = stack.view(first.dtype)
    for key, t in scales.items():
        result[naming.name(role, key)] = one_of(t, naming.shapes.get((role, key), tuple(t.shape))).clone()
    return result


def stored_stack(name: str, layers: list[PackedLinear]) -> dict[str, Tensor]:
    """The layers of a stack as ModelOpt stores those of gpt-oss, [E, K/2, N], by their full names."""
    place, each = place_of(name), []
    if place is None or not layers:
        raise _C.Error(f"{name}: cannot be written: is a stack of experts whose place in a model is not known")
    for i, packed in enumerate(layers):
        with prefix_errors(f"{name}[{i}]"):
            each.append(modelopt.write(packed))
    scales = {"weight_scale_2": torch.stack([one.pop("weight_scale_2") for one in each])[:, None]}
    naming = Naming({place.role: place.local}, True, True, False, {(place.role, "weight_scale_2"): ()})
    tensors = whole(naming, place.role, each, scales)
    return {f"{place.container}.{key}": t for key, t in tensors.items()}


def one_of(scales: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Scales in the shape that they had, which may have one for all, or one an expert; else in their own."""
    size = 1
    for n in shape:
        size *= n
    flat = scales.reshape(scales.shape[0], -1) if scales.ndim > 1 else scales.reshape(1, -1)
    fewer = {1: flat[:1, :1], flat.shape[0]: flat[:, :1], flat.numel(): flat}.get(size)
    if fewer is None or not bool((fewer == flat).all()):
        return scales
    return fewer.reshape(shape)
