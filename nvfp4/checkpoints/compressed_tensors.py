"""The format `nvfp4-pack-quantized` of compressed-tensors (llm-compressor, vLLM).

    weight_packed         [N, K/2] uint8, the even element in the low nibble
    weight_scale          [N, K/16] float8_e4m3fn
    weight_global_scale   [1] float32, a divisor: 448 * 6 / amax
    input_global_scale    [1] float32, a divisor; layers with static activations alone
    bias                  [N]

A value is weight_packed * weight_scale / weight_global_scale. Source: compressors/nvfp4/ in compressed-tensors 0.20.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nvfp4 import _C
from nvfp4.checkpoints.common import (
    AUTO,
    W4A4,
    W4A4_DYNAMIC,
    W4A16,
    Recipe,
    check_names,
    one_scale,
    read_scalar,
    reciprocal,
    resolve,
    strings,
    table,
)
from nvfp4.checkpoints.patterns import Pattern, by_regex
from nvfp4.packed import PackedLinear

NAME = "compressed-tensors"
LINEAR = "Linear"  # the class of modules that are meant where no name is
FORMAT = "nvfp4-pack-quantized"
INPUT_SCALE = "input_global_scale"
REQUIRED = ("weight_packed", "weight_scale", "weight_global_scale")
KNOWN = (*REQUIRED, INPUT_SCALE, "bias")


def read(tensors: Mapping[str, Tensor], activations: str | None = AUTO) -> PackedLinear:
    """A layer's tensors as ours. The global scales become multipliers, with one rounding.

    Args:
        tensors: by the names above.
        activations: "nvfp4" (W4A4), None (W4A16), or "auto": W4A4 if there is an input_global_scale.

    Raises:
        nvfp4.Error: a tensor is missing, unknown, or of another shape or dtype, or a global scale is not positive and
            finite.
    """
    check_names(NAME, tensors, REQUIRED, KNOWN)
    scales = {
        name: reciprocal(name, read_scalar(name, tensors[name]))
        for name in ("weight_global_scale", "input_global_scale")
        if name in tensors
    }
    return PackedLinear(
        tensors["weight_packed"],
        tensors["weight_scale"],
        scales["weight_global_scale"],
        scales.get("input_global_scale"),
        tensors.get("bias"),
        resolve(activations, INPUT_SCALE, tensors),
    )


def write(packed: PackedLinear) -> dict[str, Tensor]:
    """Our tensors as the format's. The global scales become divisors, with one rounding.

    Raises:
        nvfp4.Error: the layer has one weight_global_scale for each row.
    """
    tensors = {
        "weight_packed": packed.weight,
        "weight_scale": packed.weight_scale,
        "weight_global_scale": one_scale(NAME, packed.weight_global_scale),
        "input_global_scale": packed.input_global_scale,
        "bias": packed.bias,
    }
    return {
        name: reciprocal(name, t).reshape(1) if name.endswith("global_scale") else t
        for name, t in tensors.items()
        if t is not None
    }


def recipe(config: Mapping[str, Any]) -> Recipe:
    """Reads `quantization_config` of config.json: the groups' targets, the ignored names, and each group's mode.

    A target or ignored name is a layer's name, a regular expression after "re:" that matches from the start of a name,
    or the class "Linear".
    """
    ignore = targets(config, "ignore")
    groups = []
    for key, group in table(config, "config_groups").items():
        if not isinstance(group, Mapping):
            raise _C.Error(f"config_groups.{key}: is {group!r}; must be a table with targets and weights")
        where = f"config_groups.{key}."
        numbers = table(group, "weights", where), table(group, "input_activations", where)
        groups.append((targets(group, "targets", where), group_mode(*numbers)))

    def mode(name: str) -> str | None:
        if ignore.by_name(name) or ignore.by_regex(name) or ignore.linear:
            return None
        for own, group in groups:  # the most specific target counts
            if own.by_name(name):
                return group
        for own, group in groups:
            if own.by_regex(name):
                return group
        return next((group for own, group in groups if own.linear), None)

    return Recipe(NAME, mode)


@dataclass
class Targets:
    """Names, regular expressions, and whether the class Linear is one."""

    names: frozenset[str]
    regexes: list[Pattern]
    linear: bool

    def by_name(self, name: str) -> bool:
        return name in self.names

    def by_regex(self, name: str) -> bool:
        return any(regex.match(name) for regex in self.regexes)


def targets(config: Mapping[str, Any], name: str, where: str = "") -> Targets:
    """Targets or ignored names."""
    found = set(strings(config, name, where))
    regexes = sorted(target for target in found if target.startswith("re:"))
    names = found.difference(regexes, [LINEAR])
    return Targets(frozenset(names), [by_regex(f"{where}{name}", regex) for regex in regexes], LINEAR in found)


def group_mode(weights: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
    """W4A4, W4A16, or what else the group's numbers are. `dynamic` of the activations is true, or "local": block scales
    alone are computed at run time."""
    if not is_nvfp4(weights):
        return described(weights)
    if not inputs:
        return W4A16
    if not is_nvfp4(inputs):
        return f"{described(weights)} with activations of {described(inputs)}"
    return W4A4_DYNAMIC if inputs.get("dynamic") is True else W4A4


def is_nvfp4(numbers: Mapping[str, Any]) -> bool:
    return numbers.get("num_bits") == 4 and numbers.get("type") == "float" and numbers.get("group_size") == 16


def described(numbers: Mapping[str, Any]) -> str:
    group = numbers.get("group_size")
    return f"{numbers.get('num_bits')}-bit {numbers.get('type')}" + (f" in groups of {group}" if group else "")


def config(targets: Mapping[str, Sequence[str]], ignore: Sequence[str]) -> dict[str, Any]:
    """`quantization_config` of config.json.

    Args:
        targets: of each mode, "W4A4", "W4A4 dynamic" or "W4A16": names of layers, or "Linear".
        ignore: names of linear layers that are not quantized.
    """
    four = {"group_size": 16, "num_bits": 4, "scale_dtype": "torch.float8_e4m3fn", "strategy": "tensor_group"}
    four |= {"symmetric": True, "type": "float"}
    dynamic = {W4A4: "local", W4A4_DYNAMIC: True}
    groups = {
        f"group_{i}": {
            "format": FORMAT,
            "input_activations": None if mode == W4A16 else {**four, "dynamic": dynamic[mode]},
            "output_activations": None,
            "targets": list(names),
            "weights": {**four, "dynamic": False},
        }
        for i, (mode, names) in enumerate(targets.items())
    }
    return {
        "config_groups": groups,
        "format": FORMAT,
        "ignore": list(ignore),
        "kv_cache_scheme": None,
        "quant_method": NAME,
        "quantization_status": "compressed",
    }
