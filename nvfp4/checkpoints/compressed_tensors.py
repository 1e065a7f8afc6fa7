"""The format `nvfp4-pack-quantized` of compressed-tensors (llm-compressor, vLLM).

    weight_packed         [N, K/2] uint8, the even element in the low nibble
    weight_scale          [N, K/16] float8_e4m3fn, or [N, K/32]: each scale counts for two blocks
    weight_global_scale   [1] float32, a divisor: 448 * 6 / amax
    input_global_scale    [1] float32, a divisor; layers with static activations alone
    bias                  [N]

A value is weight_packed * weight_scale / weight_global_scale. Source: compressors/nvfp4/ in compressed-tensors 0.20.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4._text import shown
from nvfp4.checkpoints import fp8, kv_cache
from nvfp4.checkpoints.mxfp4 import GROUP
from nvfp4.checkpoints.names import Names
from nvfp4.checkpoints.options import ARGUMENTS, SCHEME, check_keys, check_transforms, unknown_keys
from nvfp4.checkpoints.options import COMPRESSED_TENSORS as KEYS
from nvfp4.checkpoints.patterns import Work
from nvfp4.checkpoints.recipe import (
    AUTO,
    MXFP4,
    MXFP4_INPUTS,
    W4A4,
    W4A4_DYNAMIC,
    W4A16,
    Recipe,
    Verdict,
    strings,
    table,
)
from nvfp4.checkpoints.tensors import check_names, of_blocks, one_scale, read_scalar, reciprocal, resolve
from nvfp4.layers.packed import BLOCK, PackedLinear

NAME = "compressed-tensors"
LINEAR = "Linear"  # the class of modules that are meant where no name is
FORMAT, MXFP4_FORMAT = "nvfp4-pack-quantized", "mxfp4-pack-quantized"
MODES_OF_FORMATS = {FORMAT: AUTO, MXFP4_FORMAT: MXFP4}  # of a configuration without groups
INPUT_SCALE = "input_global_scale"
GLOBAL_SCALES = ("weight_global_scale", INPUT_SCALE)
GLOBAL_SHAPE = (1,)  # of these in its files; read takes any with one element
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
    stored = {name: read_scalar(name, tensors[name]) for name in GLOBAL_SCALES if name in tensors}
    scales = {name: reciprocal(name, t) for name, t in stored.items()}
    rounded = {name: t for name, t in stored.items() if not t.is_meta and not torch.equal(scales[name].reciprocal(), t)}
    return PackedLinear(
        tensors["weight_packed"],
        of_blocks(tensors["weight_packed"], tensors["weight_scale"]),
        scales["weight_global_scale"],
        scales.get("input_global_scale"),
        tensors.get("bias"),
        resolve(activations, INPUT_SCALE, tensors),
        divisors={name: float(t) for name, t in rounded.items()} or None,
    )


def write(packed: PackedLinear) -> dict[str, Tensor]:
    """Our tensors as the format's. The global scales become divisors, with one rounding, or those that were read.

    Raises:
        nvfp4.Error: the layer has one weight_global_scale for each row, or a pre_quant_scale.
    """
    tensors = {
        "weight_packed": packed.weight,
        "weight_scale": packed.weight_scale,
        "weight_global_scale": one_scale(NAME, packed),
        "input_global_scale": packed.input_global_scale,
        "bias": packed.bias,
    }
    return {
        name: divisor(name, t, packed.divisors or {}).reshape(1) if name in GLOBAL_SCALES else t
        for name, t in tensors.items()
        if t is not None
    }


def divisor(name: str, t: Tensor, read: Mapping[str, float]) -> Tensor:
    """A multiplier as a divisor: the one that was read, if this multiplier is its reciprocal."""
    result = reciprocal(name, t)
    if t.is_meta or name not in read:
        return result
    own = torch.full_like(t, read[name])
    return own if torch.equal(own.reciprocal(), t) else result


def recipe(config: Mapping[str, Any]) -> Recipe:
    """Reads `quantization_config` of config.json: the groups' targets, the ignored names, and each group's mode.

    A target or ignored name is a pattern of nvfp4.checkpoints.names, or a class: "Linear".

    Raises:
        nvfp4.Error: a group has an option that is not known, or transforms are applied at run time.
    """
    check_transforms(config)
    sparse = table(config, "sparsity_config").get("format", "dense")
    if sparse != "dense":
        raise _C.Error(f"sparsity_config.format: is {shown(sparse)}; must be 'dense'")
    ignored = strings(config, "ignore")
    ignores_all = LINEAR in ignored
    work = Work()
    ignore = Names([name for name in ignored if name != LINEAR], "ignore", work)
    groups, coarse = Groups(work), False
    found = table(config, "config_groups")
    for key, group in found.items():
        if not isinstance(group, Mapping):
            raise _C.Error(f"config_groups.{key}: is {shown(group)}; must be a table with targets and weights")
        where = f"config_groups.{key}."
        check_keys(where, group, SCHEME)
        numbers = group_numbers(where, group)
        coarse |= is_e2m1(numbers["weights"]) and numbers["weights"].get("group_size") == GROUP
        eight = fp8.by_group(where, numbers["weights"], numbers["input_activations"], group)
        mode = eight or group_mode(numbers["weights"], numbers["input_activations"])
        if mode in (W4A4, W4A4_DYNAMIC, W4A16):
            check_group(where, group, numbers)
        groups.add(key, strings(group, "targets", where), mode)

    of_all = MODES_OF_FORMATS.get(str(config.get("format"))) if not found else None

    def look(name: str) -> Verdict:
        match = ignore.find(name)
        if match is None and not ignores_all:
            if of_all is not None:
                return Verdict(of_all, f"format is {config['format']}, and there are no config_groups")
            return groups.look(name)
        mode = groups.look(name).mode or AUTO
        subtree = mode if match is not None and match.subtree else None
        return Verdict(None, f"ignore has {match or repr(LINEAR)}", subtree)

    names, options = (ignore, *groups.names), unknown_keys(config, KEYS)
    return Recipe(NAME, look, names, groups.marks, options, kv_cache.described(config), coarse)


class Groups:
    """The groups of a configuration. A layer is of the one that has the most specific target for it.

    Attributes:
        names: the targets of each group that are names.
        marks: of these the ones that must mean a module of the checkpoint.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self.groups: list[tuple[str, Names, list[str], str]] = []

    def add(self, key: str, targets: Sequence[str], mode: str) -> None:
        """Adds config_groups[key].

        Args:
            targets: patterns of nvfp4.checkpoints.names, or classes.
            mode: as of group_mode.
        """
        classes = [target for target in targets if is_class(target)]
        where = f"config_groups.{key}"
        names = Names([target for target in targets if not is_class(target)], f"{where}.targets", self.work)
        self.groups.append((where, names, classes, mode))

    @property
    def names(self) -> tuple[Names, ...]:
        return tuple(names for _, names, _, _ in self.groups)

    @property
    def marks(self) -> tuple[Names, ...]:
        weighted = [group for group in self.groups if group[3] != NOTHING]
        return tuple(names for _, names, classes, _ in weighted if names.patterns and not classes)

    def look(self, name: str) -> Verdict:
        matches = [(match, key, mode) for key, names, _, mode in self.groups if (match := names.find(name)) is not None]
        matches.sort(key=lambda entry: ORDER.index(entry[0].rule))  # the most specific target counts
        found = [(mode, f"{key} has the target {match}") for match, key, mode in matches]
        for linear in (True, False):
            for key, _, classes, mode in self.groups:
                own = [target for target in classes if (target == LINEAR) == linear]
                found += [(mode, f"{key} has the target {target!r}, a class") for target in own]
        if not found:
            return Verdict(None, "no group of the configuration has it as a target")
        return Verdict(*found[0], others=tuple(mode for mode, _ in found[1:]))


def has_nvfp4(config: Mapping[str, Any]) -> bool:
    """Whether a configuration, which may be damaged, has NVFP4 or MXFP4 layers as this format stores them. A group's
    `format` comes before that of the whole."""
    groups = config.get("config_groups")
    found = [group for group in groups.values() if isinstance(group, Mapping)] if isinstance(groups, Mapping) else []
    for group in found:
        format, weights = group.get("format") or config.get("format"), group.get("weights")
        ours = isinstance(weights, Mapping) and (is_nvfp4(weights) or is_mxfp4(weights))
        if format in (FORMAT, MXFP4_FORMAT) or (format is None and ours):
            return True
    return not found and config.get("format") in (FORMAT, MXFP4_FORMAT)


ORDER = ("name", "prefix", "joined name", "wildcard", "regular expression", "parent")  # specific ones first
BITS = "-bit"  # in all modes of groups that are not NVFP4, but for NOTHING
NOTHING = "no weights"  # a group of attention, with activations alone


def is_class(target: str) -> bool:
    """Whether a target is a class of modules, "Linear" or "LlamaAttention", and no name."""
    return target.isidentifier() and target[0].isupper()


def group_numbers(where: str, group: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """How a group's weights, inputs and outputs are quantized; empty: not."""
    numbers = {name: table(group, name, where) for name in ("weights", "input_activations", "output_activations")}
    for name, given in numbers.items():
        check_keys(f"{where}{name}.", given, ARGUMENTS)
    return numbers


def check_group(where: str, group: Mapping[str, Any], numbers: Mapping[str, Mapping[str, Any]]) -> None:
    """Rejects options of an NVFP4 group that change what its layers compute."""
    if numbers["output_activations"]:
        raise _C.Error(f"{where}output_activations: are quantized, which nvfp4 does not do; must be null")
    if group.get("format") not in (None, FORMAT):
        raise _C.Error(f"{where}format: is {shown(group['format'])}; must be {FORMAT!r}")
    for name in ("weights", "input_activations"):
        given = numbers[name]
        if given.get("symmetric") is False:
            raise _C.Error(f"{where}{name}.symmetric: is False; must be true: NVFP4 has no zero points")
        dynamic = given.get("dynamic")
        if dynamic not in ((None, False) if name == "weights" else (None, False, True, "local")):
            raise _C.Error(f"{where}{name}.dynamic: is {shown(dynamic)}; must be {DYNAMIC[name]}")


DYNAMIC = {"weights": "false", "input_activations": "true, false or 'local'"}


def contradicts(mode: str) -> bool:
    """Whether a mode of a group's numbers excludes the tensors of an NVFP4 layer."""
    four = described({"num_bits": 4, "type": "float", "group_size": 16})
    return (BITS in mode or mode == NOTHING) and not mode.startswith(four)


def group_mode(weights: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
    """W4A4, W4A16, MXFP4, or what else the group's numbers are. `dynamic` of the activations is true, or "local":
    block scales alone are computed at run time."""
    if is_mxfp4(weights):
        return MXFP4_INPUTS if is_mxfp4(inputs) else MXFP4
    if not is_nvfp4(weights):
        return described(weights)
    if not inputs:
        return W4A16
    if not is_nvfp4(inputs):
        return f"{described(weights)} with activations of {described(inputs)}"
    return W4A4_DYNAMIC if inputs.get("dynamic") is True else W4A4


def is_nvfp4(numbers: Mapping[str, Any]) -> bool:
    scale = numbers.get("scale_dtype")
    if scale is not None and not str(scale).endswith("float8_e4m3fn"):
        return False
    group = numbers.get("group_size")
    return is_e2m1(numbers) and (group == BLOCK or (group == GROUP and scale is not None))


def is_mxfp4(numbers: Mapping[str, Any]) -> bool:
    power = str(numbers.get("scale_dtype")).endswith(("uint8", "float8_e8m0fnu"))
    return is_e2m1(numbers) and power and numbers.get("group_size") == GROUP


def is_e2m1(numbers: Mapping[str, Any]) -> bool:
    return bool(numbers.get("num_bits") == 4 and numbers.get("type") == "float")


def described(numbers: Mapping[str, Any]) -> str:
    if not numbers:
        return NOTHING
    group = numbers.get("group_size")
    return f"{numbers.get('num_bits')}{BITS} {numbers.get('type')}" + (f" in groups of {group}" if group else "")


def config(targets: Mapping[str | fp8.Fp8Mode, Sequence[str]], ignore: Sequence[str]) -> dict[str, Any]:
    """`quantization_config` of config.json.

    Args:
        targets: of each mode, "W4A4", "W4A4 dynamic", "W4A16" or of FP8 layers: names of layers, or "Linear".
        ignore: names of linear layers that are not quantized.
    """
    groups = {f"group_{i}": group(mode) | {"targets": list(names)} for i, (mode, names) in enumerate(targets.items())}
    formats = {group["format"] for group in groups.values()}
    return {
        "config_groups": groups,
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "ignore": list(ignore),
        "kv_cache_scheme": None,
        "quant_method": NAME,
        "quantization_status": "compressed",
    }


def group(mode: str | fp8.Fp8Mode) -> dict[str, Any]:
    """A group of config_groups, without targets."""
    if isinstance(mode, fp8.Fp8Mode):
        return fp8.group(mode)
    four = {"group_size": 16, "num_bits": 4, "scale_dtype": "torch.float8_e4m3fn", "strategy": "tensor_group"}
    four |= {"symmetric": True, "type": "float"}
    dynamic = {W4A4: "local", W4A4_DYNAMIC: True}
    return {
        "format": FORMAT,
        "input_activations": None if mode == W4A16 else {**four, "dynamic": dynamic[mode]},
        "output_activations": None,
        "weights": {**four, "dynamic": False},
    }
