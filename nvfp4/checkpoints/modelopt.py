"""NVFP4 checkpoints of NVIDIA's ModelOpt: quant_algo NVFP4 (W4A4), W4A16_NVFP4, and such layers of MIXED_PRECISION.

    weight           [N, K/2] uint8, the even element in the low nibble
    weight_scale     [N, K/16] float8_e4m3fn
    weight_scale_2   [] float32, a multiplier: amax / (448 * 6)
    input_scale      [] float32, a multiplier; W4A4 alone
    bias             [N]

A value is weight * weight_scale * weight_scale_2. A block of zeros has the scale 1 and not 0. Source:
torch/quantization/qtensor/nvfp4_tensor.py and torch/export/ in ModelOpt 0.47.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from nvfp4 import _C
from nvfp4._text import shown
from nvfp4.checkpoints.common import (
    AUTO,
    W4A4,
    W4A16,
    Recipe,
    check_names,
    one_scale,
    read_scalar,
    resolve,
    strings,
    table,
)
from nvfp4.checkpoints.patterns import by_wildcards
from nvfp4.packed import PackedLinear

NAME = "modelopt"
INPUT_SCALE = "input_scale"
REQUIRED = ("weight", "weight_scale", "weight_scale_2")
KNOWN = (*REQUIRED, INPUT_SCALE, "bias")
MODES = {"NVFP4": W4A4, "W4A16_NVFP4": W4A16}
MIXED = "MIXED_PRECISION"
WILDCARDS = frozenset("*?[")


def read(tensors: Mapping[str, Tensor], activations: str | None = AUTO) -> PackedLinear:
    """A layer's tensors as ours: the same bytes.

    Args:
        tensors: by the names above.
        activations: "nvfp4" (W4A4), None (W4A16), or "auto": W4A4 if there is an input_scale.

    Raises:
        nvfp4.Error: a tensor is missing, unknown (pre_quant_scale of AWQ), or of another shape or dtype, or a global
            scale is not positive and finite.
    """
    check_names(NAME, tensors, REQUIRED, KNOWN)
    scale = tensors.get("input_scale")
    return PackedLinear(
        tensors["weight"],
        tensors["weight_scale"],
        read_scalar("weight_scale_2", tensors["weight_scale_2"]),
        None if scale is None else read_scalar("input_scale", scale),
        tensors.get("bias"),
        resolve(activations, INPUT_SCALE, tensors),
    )


def write(packed: PackedLinear) -> dict[str, Tensor]:
    """Our tensors as the format's: the same bytes.

    Raises:
        nvfp4.Error: the layer has one weight_global_scale for each row.
    """
    tensors = {
        "weight": packed.weight,
        "weight_scale": packed.weight_scale,
        "weight_scale_2": one_scale(NAME, packed.weight_global_scale),
        "input_scale": packed.input_global_scale,
        "bias": packed.bias,
    }
    return {name: t for name, t in tensors.items() if t is not None}


def recipe(config: Mapping[str, Any]) -> Recipe:
    """Reads `quantization_config` of config.json or the content of hf_quant_config.json.

    Names to leave out are wildcards (fnmatch), under `ignore` in the first file, `exclude_modules` in the second.
    `quantized_layers` of MIXED_PRECISION names each layer's algorithm.

    Raises:
        nvfp4.Error: quant_algo is none that has NVFP4 layers.
    """
    config = table(config, "quantization") or config
    algorithm = config.get("quant_algo")
    if algorithm not in [*MODES, MIXED]:
        raise _C.Error(f"quant_algo: is {shown(algorithm)}; must be one of {', '.join((*MODES, MIXED))}")
    group = config.get("group_size", 16)
    if group != 16:
        raise _C.Error(f"group_size: is {shown(group)}; must be 16")
    ignore = set(strings(config, "ignore") or strings(config, "exclude_modules"))
    wild = [by_wildcards("ignore", pattern) for pattern in sorted(ignore) if not WILDCARDS.isdisjoint(pattern)]
    layers = table(config, "quantized_layers")
    algorithms = {name: table(layers, name, "quantized_layers.").get("quant_algo") for name in layers}

    def mode(name: str) -> str | None:
        if name in ignore or any(pattern.match(name) for pattern in wild):
            return None
        if algorithm != MIXED:
            return MODES[algorithm]
        own = algorithms.get(name)
        return None if own is None else MODES.get(str(own), str(own))

    return Recipe(NAME, mode)


def configs(
    targets: Mapping[str, Sequence[str]], modes: Mapping[str, Sequence[str]], ignore: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """`quantization_config` of config.json and the content of hf_quant_config.json, as ModelOpt's
    convert_hf_quant_config_format relates them.

    Args:
        targets: of each mode, "W4A4" or "W4A16": names of layers, or "Linear".
        modes: of each mode the names of its layers.
        ignore: names of linear layers that are not quantized.
    """
    algorithms = {mode: algorithm for algorithm, mode in MODES.items()}
    four = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    groups: dict[str, Any] = {}
    for i, (mode, names) in enumerate(targets.items()):
        inputs = {} if mode == W4A16 else {"input_activations": dict(four)}
        groups[f"group_{i}"] = inputs | {"weights": dict(four), "targets": list(names)}
    (single,) = modes if len(modes) == 1 else (None,)
    algorithm = MIXED if single is None else algorithms[single]
    own: dict[str, Any] = {}
    if single is None:
        own["quantized_layers"] = {
            name: {"quant_algo": algorithms[mode], "group_size": 16} for mode, names in modes.items() for name in names
        }
    producer = {"producer": {"name": "nvfp4", "version": _C.version}}
    config = {"config_groups": groups, "ignore": list(ignore), "quant_algo": algorithm, "quant_method": NAME}
    quantization: dict[str, Any] = {
        "quant_algo": algorithm,
        "kv_cache_quant_algo": None,
        "exclude_modules": list(ignore),
    }
    if single is not None:
        quantization["group_size"] = 16
    return config | own | producer, producer | {"quantization": quantization | own}
