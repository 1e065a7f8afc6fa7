"""The configuration of a checkpoint: `quantization_config` of config.json, hf_quant_config.json, or params.json."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from nvfp4 import _C
from nvfp4._text import shown
from nvfp4.checkpoints import compressed_tensors, fp8, modelopt, mxfp4
from nvfp4.checkpoints.files import is_there, read_json
from nvfp4.checkpoints.recipe import W4A4, W4A4_AWQ, W4A4_DYNAMIC, W4A16, W4A16_AWQ, Recipe, strings, table
from nvfp4.layers.experts.module import Experts
from nvfp4.layers.fp8 import Fp8Tensors
from nvfp4.layers.packed import PackedLinear

CONFIG, HF_QUANT, PARAMS = "config.json", "hf_quant_config.json", "params.json"
FORMATS = {compressed_tensors.NAME: compressed_tensors, modelopt.NAME: modelopt}  # to write
READ = {**FORMATS, mxfp4.NAME: mxfp4}  # by configurations


def read_recipe(folder: Path, mistral: bool = False) -> Recipe | None:
    """The recipe of a folder; None if no file says how the model is quantized.

    quantization_config of config.json counts if it describes the layers, or else hf_quant_config.json. Both may be
    there: see `compared`.

    Args:
        mistral: whether the tensors have Mistral's names. `quantization` of params.json then counts before the others.
    """
    if mistral and (own := quantization_in(folder, PARAMS)):
        return recipe_of(folder / PARAMS, {"quant_method": compressed_tensors.NAME, **own})
    own = quantization_in(folder, CONFIG)
    if describes(own):
        return compared(recipe_of(folder / CONFIG, own), own, folder)
    other = quantization_in(folder, HF_QUANT)
    if second_counts(own, other):
        return recipe_of(folder / HF_QUANT, other, modelopt.NAME)
    return recipe_of(folder / CONFIG, own) if own else None


def quantization_in(folder: Path, name: str) -> Mapping[str, Any]:
    """The quantization configuration in a file of a checkpoint; empty if the file is not there or has none."""
    path = folder / name
    if not is_there(path):
        return {}
    config: Mapping[str, Any] = read_json(path, folder)
    if name == HF_QUANT:
        return config
    try:
        if name == PARAMS:
            return table(config, "quantization")
        text = table(config, "text_config")  # models of text and images may have it in the part for text
        own = table(config, "quantization_config") or table(text, "quantization_config", "text_config.")
        beside = config.get("expert_dtype")  # where DeepSeek-V4 has it
        return {"expert_dtype": beside, **own} if own and beside is not None else own
    except _C.Error as error:
        raise _C.Error(f"{path}: {error}") from None


def recipe_of(path: Path, config: Mapping[str, Any], method: str | None = None) -> Recipe:
    """The recipe of what a file says; `method` where that has none."""
    try:
        method = config.get("quant_method") if method is None else method
        if method == modelopt.FP8 and modelopt.has_nvfp4(config):
            method = modelopt.NAME
        if method not in list(READ):
            raise _C.Error(f"quant_method is {shown(method)}; must be one of {', '.join(READ)}")
        return READ[str(method)].recipe(config)
    except _C.Error as error:
        raise _C.Error(f"{path}: {error}") from None


def second_counts(own: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether hf_quant_config.json counts, by its content and by quantization_config of config.json."""
    if describes(own) or not other:
        return False
    return not own.get("config_groups") or describes(unwrapped(other))


def compared(recipe: Recipe, own: Mapping[str, Any], folder: Path) -> Recipe:
    """The recipe of config.json with that of hf_quant_config.json beside it: read_modules names in `skipped` what the
    second says otherwise."""
    try:
        other = quantization_in(folder, HF_QUANT)
        if not other or modelopt.says(own) == modelopt.says(unwrapped(other)):
            return recipe
        return replace(recipe, other=recipe_of(folder / HF_QUANT, other, modelopt.NAME))
    except _C.Error as error:
        return replace(recipe, options={**recipe.options, HF_QUANT: f"is not used, config.json is: {error}"})


def as_quantization_config(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of hf_quant_config.json in the form of config.json's."""
    quantization = dict(table(content, "quantization"))
    ignore = strings(quantization, "exclude_modules")
    quantization.pop("exclude_modules", None)
    more = {"producer": content["producer"]} if "producer" in content else {}
    return quantization | more | {"ignore": ignore, "quant_method": modelopt.NAME}


def unwrapped(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of hf_quant_config.json that describes layers."""
    own = config.get("quantization")
    return own if isinstance(own, Mapping) else config


def describes(config: Mapping[str, Any]) -> bool:
    """Whether `quantization_config` of config.json says enough, so that hf_quant_config.json need not be read."""
    if config.get("quant_method") == modelopt.FP8:
        return modelopt.has_nvfp4(config)
    return bool(config) and (config.get("quant_algo") != modelopt.MIXED or bool(config.get("quantized_layers")))


Mode: TypeAlias = "str | fp8.Fp8Mode"


def mode_of(packed: PackedLinear | Fp8Tensors | Experts) -> Mode:
    if isinstance(packed, Experts):
        return packed.mode
    if isinstance(packed, Fp8Tensors):
        return fp8.mode_of(packed)
    if packed.activations is None:
        return W4A16 if packed.pre_quant_scale is None else W4A16_AWQ
    if packed.input_global_scale is None:
        return W4A4_DYNAMIC
    return W4A4 if packed.pre_quant_scale is None else W4A4_AWQ


def quantization_configs(
    format: str, layers: Mapping[str, Mode], ignore: Iterable[str], experts: Collection[str] = ()
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """`quantization_config` of config.json, and the content of hf_quant_config.json if the format has one; of layers
    with their modes, of which some are modules of experts."""
    modes: dict[Mode, list[str]] = {}
    for name, mode in layers.items():
        modes.setdefault(mode, []).append(name)
    # With one mode the class is the target, as the producers write it; else vLLM would take a group by its class
    # before it looks up the parts of a fused layer by name.
    targets = {mode: ["Linear"] if len(modes) == 1 else names for mode, names in modes.items()}
    names = sorted(set(ignore) - set(layers))
    if format == modelopt.NAME:
        return modelopt.configs(targets, modes, names)
    # Its own readers look up each expert's layer.
    targets = {
        mode: [rf"re:{re.escape(name)}\..*" if name in experts else name for name in targets]
        for mode, targets in targets.items()
    }
    return compressed_tensors.config(targets, names), None
