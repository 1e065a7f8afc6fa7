"""The configuration of a checkpoint: `quantization_config` of config.json, or hf_quant_config.json."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from nvfp4 import _C
from nvfp4._text import shown
from nvfp4.checkpoints import compressed_tensors, fp8, modelopt, mxfp4
from nvfp4.checkpoints.files import is_there, read_json
from nvfp4.checkpoints.recipe import W4A4, W4A4_AWQ, W4A4_DYNAMIC, W4A16, W4A16_AWQ, Recipe, table
from nvfp4.layers.experts.module import Experts
from nvfp4.layers.fp8 import Fp8Tensors
from nvfp4.layers.packed import PackedLinear

HF_QUANT = "hf_quant_config.json"
FORMATS = {compressed_tensors.NAME: compressed_tensors, modelopt.NAME: modelopt}  # to write
READ = {**FORMATS, mxfp4.NAME: mxfp4}  # by configurations


def read_recipe(folder: Path) -> Recipe | None:
    """The recipe of config.json or hf_quant_config.json; None if neither says how the model is quantized. Where the
    first does not describe the layers, the second does if it is there."""
    given: dict[str, Mapping[str, Any]] = {}
    for name in ("config.json", HF_QUANT):
        path = folder / name
        if not is_there(path) or describes(given.get("config.json", {})):
            continue
        config: Mapping[str, Any] = read_json(path, folder)
        try:
            if name != HF_QUANT:  # models of text and images may have it in the part for text
                text = table(config, "text_config")
                own = table(config, "quantization_config") or table(text, "quantization_config", "text_config.")
                beside = config.get("expert_dtype")  # where DeepSeek-V4 has it
                config = {"expert_dtype": beside, **own} if own and beside is not None else own
        except _C.Error as error:
            raise _C.Error(f"{path}: {error}") from None
        if config:
            given[name] = config
    name = HF_QUANT if HF_QUANT in given else "config.json"
    if name not in given:
        return None
    if given.get("config.json", {}).get("config_groups") and not describes(unwrapped(given[name])):
        name = "config.json"
    try:
        method = modelopt.NAME if name == HF_QUANT else given[name].get("quant_method")
        if method == modelopt.FP8 and modelopt.has_nvfp4(given[name]):
            method = modelopt.NAME
        if method not in list(READ):
            raise _C.Error(f"quant_method is {shown(method)}; must be one of {', '.join(READ)}")
        return READ[str(method)].recipe(given[name])
    except _C.Error as error:
        raise _C.Error(f"{folder / name}: {error}") from None


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
