"""The modules of a checkpoint, by its configuration and their tensors: read as layers, skipped by name, or kept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4._text import shown
from nvfp4.checkpoints import compressed_tensors, fp8, kv_cache, mxfp4
from nvfp4.checkpoints.checkpoint import Checkpoint, in_another_way, noted
from nvfp4.checkpoints.configuration import HF_QUANT, READ
from nvfp4.checkpoints.experts.container import Container
from nvfp4.checkpoints.experts.fp8_experts import Fp8Container
from nvfp4.checkpoints.experts.naming import Place, place_of
from nvfp4.checkpoints.grouping import check_unclaimed, grouped, has_scale, keep, other_kind
from nvfp4.checkpoints.names import Modules
from nvfp4.checkpoints.recipe import AUTO, MXFP4, MXFP4_INPUTS, W4A4, W4A4_DYNAMIC, W4A16, Recipe, Verdict
from nvfp4.checkpoints.stacks import add_layer
from nvfp4.checkpoints.tensors import chosen, is_coarse
from nvfp4.layers.checks import prefix_errors

ACTIVATIONS = {W4A4: "nvfp4", W4A4_DYNAMIC: "nvfp4", W4A16: None, AUTO: AUTO}
# hf_quant_config.json has no groups, so it gives each of these modes as the second of its pair.
SIMILAR = {W4A4_DYNAMIC: W4A4, fp8.DYNAMIC: fp8.STATIC, MXFP4_INPUTS: MXFP4}
NVFP4, FP8, OTHER, PLAIN = "NVFP4", "FP8", "other", "plain"  # kinds of modules, as is the mode MXFP4


def read_modules(
    tensors: Mapping[str, Tensor],
    recipe: Recipe,
    errors: dict[str, str] | None = None,
    wanted: str | None = AUTO,
    unwanted: Callable[[str], str | None] | None = None,
    gather: Callable[[Place], str | None] | None = None,
) -> Checkpoint:
    """A checkpoint from all tensors of its files and what its configuration says.

    Args:
        errors: where the error message of a layer goes, instead of being raised.
        wanted: load's `activations`.
        unwanted, gather: as of read; a module whose tensors are all unwanted may be quantized in any way.
    """
    checkpoint = Checkpoint(recipe.format, skipped=dict(recipe.options))
    cache: dict[str, Tensor] = {}
    kinds: dict[str, Kind] = {}
    modules, names = grouped(tensors)
    check_marks(recipe, modules, errors)
    for module, own in modules.items():
        place = place_of(module) if gather is not None else None
        target = None if place is None or gather is None else gather(place)
        reason = unwanted_module(unwanted, [names[module, local] for local in own]) if target is None else None
        if reason is not None:
            checkpoint.skipped[module] = reason
            continue
        for local in [local for local in own if local in kv_cache.NAMES]:
            checkpoint.skipped[names[module, local]] = kv_cache.REASON
            cache[names[module, local]] = own.pop(local)
        with noted(module, errors):
            kind = kinds[module] = kind_of(recipe, module, own)
            if kind.name != PLAIN:
                checkpoint.why[module] = kind.why
            if kind.name == FP8:
                with prefix_errors(module):
                    eight = fp8.read(own, recipe.format, str(kind.mode), wanted is None)
                if place is None or target is None:
                    checkpoint.fp8[module] = eight
                elif place.expert is None:
                    raise _C.Error(f"{module}: is one FP8 layer; must be one for each of the experts {target}")
                else:
                    container_of(checkpoint, target, place, fp8, wanted).put(place, eight)
            elif kind.name == MXFP4:
                read_mxfp4(checkpoint, module, own, names, kind.mode, wanted, place, target)
            elif kind.name == NVFP4 and place is not None and target is not None:
                gather_layer(checkpoint, target, place, own, kind.mode, wanted, is_joined(module, own, names))
            elif kind.name == NVFP4:
                read_layer(checkpoint, module, own, kind.mode, wanted)
            else:
                if kind.name == OTHER:
                    checkpoint.skipped[module] = in_another_way(kind.mode)
                keep(checkpoint, module, own, names)
    checkpoint.skipped |= other_opinion(recipe, kinds)
    checkpoint.kv_cache = kv_cache.KvCache(recipe.format, cache, recipe.kv_cache)
    check_unclaimed(checkpoint, errors)
    return checkpoint


class Kind(NamedTuple):
    """How a module is quantized.

    Attributes:
        name: NVFP4, MXFP4, FP8, OTHER or PLAIN (not at all).
        mode: of a layer of the first three its mode, by the configuration; of OTHER how it is quantized, in words.
        why: the part of the configuration that says so.
    """

    name: str
    mode: str | None
    why: str


def kind_of(recipe: Recipe, module: str, own: Mapping[str, Tensor]) -> Kind:
    """How a module is quantized, by the configuration and its tensors."""
    verdict, other, ours = recipe.look(module), other_kind(own), is_layer(recipe.format, own)
    if mxfp4.names_of(own) is not None:
        mode = verdict.likely
        if mode is None:
            raise _C.Error(f"{module}: the configuration leaves it unquantized, but its tensors are MXFP4")
        return Kind(MXFP4, W4A4_DYNAMIC if MXFP4_INPUTS in (mode, *verdict.others) else W4A16, verdict.why)
    eight = fp8.chosen(own, (verdict.likely, *verdict.others))
    if eight is not None:
        return Kind(FP8, eight, verdict.why)
    mode = nvfp4_mode(module, verdict) if ours else verdict.mode
    if mode is not None and mode not in ACTIVATIONS:
        is_quantized = has_scale(own) or other  # the target "Linear" also matches the names of other modules
        return Kind(OTHER if is_quantized else PLAIN, mode, verdict.why)
    if ours:
        check_groups_of_32(recipe, module, own)
        return Kind(NVFP4, mode, verdict.why)
    return Kind(OTHER if other else PLAIN, other, verdict.why)


def check_groups_of_32(recipe: Recipe, module: str, own: Mapping[str, Tensor]) -> None:
    """Rejects block scales for 32 values that the configuration does not mention: half of the scales may be lost."""
    weight, scale = own.get("weight_packed", own.get("weight")), own.get("weight_scale")
    if recipe.coarse or weight is None or scale is None or not is_coarse(weight, scale):
        return
    wanted = [*scale.shape[:-1], scale.shape[-1] * 2]
    raise _C.Error(f"{module}.weight_scale: shape is {list(scale.shape)}; must be {wanted}, or group_size must be 32")


def nvfp4_mode(module: str, verdict: Verdict) -> str | None:
    """The mode of a layer whose tensors are NVFP4. Where the most specific group of the configuration says FP8, another
    one must say NVFP4."""
    mode = verdict.likely
    other = mode in (*fp8.ACTIVATIONS, MXFP4, MXFP4_INPUTS) or (mode and compressed_tensors.contradicts(mode))
    if mode in ACTIVATIONS or not other:
        return mode
    ours = next((other for other in verdict.others if other in ACTIVATIONS), None)
    if ours is None:
        raise _C.Error(f"{module}: is {mode} by the configuration, but its tensors are NVFP4")
    return ours


def read_layer(
    checkpoint: Checkpoint, module: str, own: dict[str, Tensor], mode: str | None, wanted: str | None
) -> None:
    """Adds an NVFP4 layer, or a stack of experts."""
    format = READ[checkpoint.format]
    check_mode(f"{module}." if module else "", own, checkpoint.format, mode, wanted)
    activations = chosen(own, format.INPUT_SCALE, ACTIVATIONS[str(mode)], wanted, mode == W4A4_DYNAMIC)
    weight = "weight_packed" if "weight_packed" in own else "weight"
    if weight in own and "weight_scale" in own and is_coarse(own[weight], own["weight_scale"]):
        checkpoint.coarse[module] = dict(own)
    scales = [own[key] for key in (format.REQUIRED[2], format.INPUT_SCALE) if key in own]
    if any(t.shape != format.GLOBAL_SHAPE for t in scales):
        checkpoint.reshaped[module] = dict(own)
    add_layer(checkpoint, module, own, weight, functools.partial(format.read, activations=activations), rows=True)


def read_mxfp4(
    checkpoint: Checkpoint,
    module: str,
    own: dict[str, Tensor],
    names: Mapping[tuple[str, str], str],
    mode: str | None,
    wanted: str | None,
    place: Place | None,
    target: str | None,
) -> None:
    """Adds an MXFP4 layer, a stack of experts, or one of these to the experts of the module `target` of the model."""
    for local in [local for local in mxfp4.INPUT_SCALES if local in own]:
        checkpoint.skipped[names[module, local]] = "is a scale of FP8 inputs, which are not quantized here"
        del own[local]
    activations = "nvfp4" if wanted == "nvfp4" or (wanted == AUTO and mode == W4A4_DYNAMIC) else None
    if place is not None and target is not None:
        container = container_of(checkpoint, target, place, mxfp4, wanted)
        container.add(place, own, activations, is_joined(module, own, names), True)
    else:
        mxfp4.add(checkpoint, module, own, activations)


def is_joined(module: str, own: Mapping[str, Tensor], names: Mapping[tuple[str, str], str]) -> bool:
    """Whether tensors are named `up_proj_scales` and not `up_proj.scales`."""
    return any(names[module, local] == f"{module}_{local}" for local in own)


def container_of(
    checkpoint: Checkpoint, target: str, place: Place, format: ModuleType, wanted: str | None
) -> Container:
    """The container of the experts that a module of the model takes."""
    kind = Fp8Container if format is fp8 else Container
    container = checkpoint.containers.setdefault(target, kind(place.container, format, wanted))
    if container.name != place.container:
        raise _C.Error(f"{place.container}: and {container.name} are both {target} of the model")
    if container.format is not format:
        raise _C.Error(f"{place.container}: has experts of {container.format.NAME} and of {format.NAME}; must have one")
    return container


def gather_layer(
    checkpoint: Checkpoint,
    target: str,
    place: Place,
    own: dict[str, Tensor],
    mode: str | None,
    wanted: str | None,
    joined: bool,
) -> None:
    """Adds a layer of an expert, or a stack, to the experts of a module of the model. Some may lack an input scale."""
    format = READ[checkpoint.format]
    container = container_of(checkpoint, target, place, format, wanted)
    check_mode(f"{place.container}.{place.local.format(place.expert)}.", own, checkpoint.format, mode, None)
    dynamic = mode == W4A4_DYNAMIC
    activations = chosen(own, format.INPUT_SCALE, ACTIVATIONS[str(mode)], wanted, dynamic)
    container.add(place, own, activations, joined, dynamic)


def unwanted_module(unwanted: Callable[[str], str | None] | None, names: list[str]) -> str | None:
    """Why none of a module's tensors is read; None: one is."""
    if unwanted is None:
        return None
    first = unwanted(names[0])
    return first if first is not None and all(unwanted(name) for name in names[1:]) else None


def check_marks(recipe: Recipe, modules: Mapping[str, Any], errors: dict[str, str] | None) -> None:
    """Rejects a configuration that describes layers which the checkpoint does not have."""
    found = Modules(modules)
    for patterns in (*recipe.names, *(() if recipe.other is None else recipe.other.names)):
        patterns.bind(found)
    for patterns in recipe.marks:
        for pattern in patterns.unmatched(found):
            with noted(f"{patterns.where}: {pattern}", errors):
                raise _C.Error(f"{patterns.where}: {shown(pattern)} matches no layer of the checkpoint")


def other_opinion(recipe: Recipe, kinds: Mapping[str, Kind]) -> dict[str, str]:
    """An entry for `skipped` where a second configuration gives other modes to quantized layers."""
    if recipe.other is None:
        return {}
    found = []
    for module, kind in kinds.items():
        if kind.name not in (NVFP4, FP8, MXFP4):
            continue
        ours, theirs = (SIMILAR.get(str(mode), mode) for mode in (kind.mode, recipe.other.look(module).likely))
        if kind.name == MXFP4:
            ours = MXFP4
        if ours != theirs and AUTO not in (ours, theirs):
            found.append(f"{module} is {theirs or 'not quantized'} here and {ours} in config.json, which counts")
    more = f"; {len(found) - 1} other layers differ too" if len(found) > 1 else ""
    return {HF_QUANT: found[0] + more} if found else {}


def check_mode(prefix: str, own: Mapping[str, Tensor], format_name: str, mode: str | None, wanted: str | None) -> None:
    input_scale = READ[format_name].INPUT_SCALE
    if mode is None:
        raise _C.Error(f"{prefix.rstrip('.')}: the configuration leaves it unquantized, but its tensors are NVFP4")
    if mode == W4A4 and wanted == AUTO and input_scale not in own:
        raise _C.Error(
            f"{prefix}{input_scale}: is missing; the configuration says {mode}; activations=None reads the layer "
            'without it, and activations="nvfp4" with a scale that each call computes'
        )


def is_layer(format_name: str, own: Mapping[str, Tensor]) -> bool:
    """Whether a module's tensors are an NVFP4 layer's, whole or not."""
    if other_kind(own):
        return False
    if format_name == compressed_tensors.NAME:
        return "weight_packed" in own or "weight_global_scale" in own
    weight = own.get("weight")
    return "weight_scale_2" in own or (weight is not None and weight.dtype == torch.uint8 and "weight_scale" in own)
