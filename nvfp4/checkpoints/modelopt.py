"""NVFP4 checkpoints of NVIDIA's ModelOpt: quant_algo NVFP4 (W4A4), W4A16_NVFP4, NVFP4_AWQ (either), and such layers of
MIXED_PRECISION.

    weight           [N, K/2] uint8, the even element in the low nibble
    weight_scale     [N, K/16] float8_e4m3fn, or [N, K/32]: each scale counts for two blocks
    weight_scale_2   [] float32, a multiplier: amax / (448 * 6)
    input_scale      [] float32, a multiplier; W4A4 alone
    pre_quant_scale  [K], the dtype of the model: the input is multiplied by it; NVFP4_AWQ alone, where it is not folded
                     into the layer before
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
from nvfp4.checkpoints import fp8, kv_cache
from nvfp4.checkpoints.compressed_tensors import (
    LINEAR,
    Groups,
    check_group,
    group_mode,
    group_numbers,
    is_class,
    is_nvfp4,
)
from nvfp4.checkpoints.fp8 import Fp8Mode
from nvfp4.checkpoints.mxfp4 import GROUP
from nvfp4.checkpoints.names import EXPERT, Names
from nvfp4.checkpoints.options import MODELOPT as KEYS
from nvfp4.checkpoints.options import MODELOPT_LAYER, SCHEME, check_keys, check_off, unknown_keys
from nvfp4.checkpoints.patterns import Work
from nvfp4.checkpoints.recipe import (
    AUTO,
    MXFP4,
    W4A4,
    W4A4_AWQ,
    W4A4_DYNAMIC,
    W4A16,
    W4A16_AWQ,
    Recipe,
    Verdict,
    strings,
    table,
)
from nvfp4.checkpoints.tensors import check_names, of_blocks, one_scale, read_scalar, resolve
from nvfp4.layers.packed import BLOCK, PackedLinear

NAME = "modelopt"
INPUT_SCALE = "input_scale"
GLOBAL_SHAPE = ()  # of global scales in its files; read takes any with one element
REQUIRED = ("weight", "weight_scale", "weight_scale_2")
PRE_QUANT_SCALE = "pre_quant_scale"
KNOWN = (*REQUIRED, INPUT_SCALE, PRE_QUANT_SCALE, "bias")
AWQ = "NVFP4_AWQ"  # which says nothing of activations
MODES = {"NVFP4": W4A4, "W4A16_NVFP4": W4A16, AWQ: AUTO}
MODES |= {"MXFP4": MXFP4, "mxfp4": MXFP4, "W4A8_MXFP4_FP8": MXFP4}
MIXED = "MIXED_PRECISION"
DYNAMIC = {W4A4: W4A4_DYNAMIC, AUTO: W4A4_DYNAMIC, fp8.STATIC: fp8.DYNAMIC}  # where a group says so
FP8 = "fp8"  # quant_method of DeepSeek-V4, beside moe_quant_algo, or its own expert_dtype
FP4 = "fp4"  # expert_dtype: MXFP4


def read(tensors: Mapping[str, Tensor], activations: str | None = AUTO) -> PackedLinear:
    """A layer's tensors as ours: the same bytes.

    Args:
        tensors: by the names above.
        activations: "nvfp4" (W4A4), None (W4A16), or "auto": W4A4 if there is an input_scale.

    Raises:
        nvfp4.Error: a tensor is missing, unknown, or of another shape or dtype, or a global scale is not positive and
            finite.
    """
    check_names(NAME, tensors, REQUIRED, KNOWN)
    scale = tensors.get("input_scale")
    return PackedLinear(
        tensors["weight"],
        of_blocks(tensors["weight"], tensors["weight_scale"]),
        read_scalar("weight_scale_2", tensors["weight_scale_2"]),
        None if scale is None else read_scalar("input_scale", scale),
        tensors.get("bias"),
        resolve(activations, INPUT_SCALE, tensors),
        tensors.get(PRE_QUANT_SCALE),
    )


def write(packed: PackedLinear) -> dict[str, Tensor]:
    """Our tensors as the format's: the same bytes.

    Raises:
        nvfp4.Error: the layer has one weight_global_scale for each row.
    """
    tensors = {
        "weight": packed.weight,
        "weight_scale": packed.weight_scale,
        "weight_scale_2": one_scale(NAME, packed, pre_quant_scale=True),
        "input_scale": packed.input_global_scale,
        PRE_QUANT_SCALE: packed.pre_quant_scale,
        "bias": packed.bias,
    }
    return {name: t for name, t in tensors.items() if t is not None}


def recipe(config: Mapping[str, Any]) -> Recipe:
    """Reads `quantization_config` of config.json or the content of hf_quant_config.json.

    Names to leave out are patterns of nvfp4.checkpoints.names, under `ignore` in the first file, `exclude_modules` in
    the second. `quantized_layers` of MIXED_PRECISION names each layer's algorithm, or that of all layers in a module;
    without it the groups of config_groups do, as those of compressed-tensors. quant_method "fp8" with moe_quant_algo
    has FP8 layers, and experts of that algorithm.

    Raises:
        nvfp4.Error: quant_algo is none that has NVFP4 layers, or a layer has an option that is not known.
    """
    config = table(config, "quantization") or config
    algorithm, experts = config.get("quant_algo"), config.get("moe_quant_algo")
    if algorithm is None and has_nvfp4(config):
        algorithm = MIXED
    if algorithm not in [*MODES, MIXED]:
        raise _C.Error(f"quant_algo: is {shown(algorithm)}; must be one of {', '.join((*MODES, MIXED))}")
    if algorithm != MIXED:
        check_layer("", config, MODES[str(algorithm)])
    ignored = (strings(config, "ignore") or strings(config, "exclude_modules")) + strings(
        config, "modules_to_not_convert"
    )
    layers, work = table(config, "quantized_layers"), Work()
    ignore = Names(ignored, "ignore", work)
    groups = Groups(work)
    dynamic = Names(read_groups(config, groups, algorithm == MIXED and not layers), "config_groups", work)
    algorithms, coarse, unused = {}, config.get("group_size") == GROUP, dict[str, Any]()
    for name in layers:
        own = table(layers, name, "quantized_layers.")
        algorithms[name] = str(own.get("quant_algo"))
        check_keys(f"quantized_layers.{name}.", own, MODELOPT_LAYER)
        if algorithms[name] in MODES:
            coarse |= own.get("group_size") == GROUP
            check_layer(f"quantized_layers.{name}.", own, MODES[algorithms[name]])
        elif (mode := fp8.by_modelopt(algorithms[name])) in fp8.ACTIVATIONS:
            unused |= fp8.check_modelopt(f"quantized_layers.{name}.", own, mode)
    named = Names(layers, "quantized_layers", work)
    by_pattern = {pattern: MODES.get(own, fp8.by_modelopt(own)) for pattern, own in algorithms.items()}

    def by_algorithm(name: str) -> Verdict:
        found = stated(name)
        mode = DYNAMIC.get(str(found.mode))
        group = dynamic.find(name) if mode is not None else None
        return found if group is None else Verdict(mode, f"{found.why}, dynamic in config_groups")

    def stated(name: str) -> Verdict:
        if algorithm != MIXED:
            return Verdict(MODES[algorithm], f"quant_algo is {algorithm}")
        match = named.find(name)
        if match is not None:
            return Verdict(by_pattern[match.pattern], f"quantized_layers has {match}")
        if experts in [*MODES] and EXPERT.search(f"{name}."):
            return Verdict(MODES[experts], f"moe_quant_algo is {experts}")
        if groups.groups and (found := groups.look(name)).mode is not None:
            return found
        if config.get("expert_dtype") == FP4 and EXPERT.search(f"{name}."):
            return Verdict(MXFP4, f"expert_dtype is {FP4}")
        if config.get("quant_method") == FP8:
            return Verdict(fp8.by_deepseek(config), f"quant_method is {FP8}")
        if groups.groups:
            return found
        return Verdict(None, "quantized_layers does not have it")

    def look(name: str) -> Verdict:
        match = ignore.find(name)
        if match is None:
            return by_algorithm(name)
        return Verdict(None, f"ignore has {match}", (by_algorithm(name).mode or AUTO) if match.subtree else None)

    names, marks = (ignore, dynamic, named, *groups.names), (named, *groups.marks)
    options = unknown_keys(config, KEYS) | unused_group_sizes(unused)
    return Recipe(NAME, look, names, marks, options, kv_cache.described(config), coarse)


def says(config: Mapping[str, Any]) -> tuple[Any, ...]:
    """The settings of layers in a configuration, which may be damaged: equal in both files that ModelOpt writes."""
    names = config.get("ignore") or config.get("exclude_modules") or []
    return names, *(config.get(key) for key in ("quant_algo", "moe_quant_algo", "quantized_layers"))


def unused_group_sizes(found: Mapping[str, Any]) -> dict[str, str]:
    """One entry for `skipped` of the group sizes that FP8 layers have in quantized_layers."""
    more = f"; {len(found) - 1} other FP8 layers have one too" if len(found) > 1 else ""
    return {
        f"quantization_config.{key}": f"is {shown(found[key])}, which means nothing for FP8 with one scale for a "
        f"tensor or a channel{more}"
        for key in list(found)[:1]
    }


def has_nvfp4(config: Mapping[str, Any]) -> bool:
    """Whether a configuration of quant_method "fp8" has NVFP4 or MXFP4 layers beside."""
    four = config.get("moe_quant_algo") in [*MODES] or config.get("expert_dtype") == FP4
    return four or config.get("quant_algo") in [*MODES, MIXED]


def check_layer(where: str, given: Mapping[str, Any], mode: str = W4A4) -> None:
    """Rejects options of an NVFP4 or MXFP4 layer, or of all, that change what it computes."""
    allowed = (GROUP,) if mode == MXFP4 else (BLOCK, GROUP)
    group = given.get("group_size") or allowed[0]
    if group not in allowed:
        raise _C.Error(f"{where}group_size: is {shown(group)}; must be {' or '.join(map(str, allowed))}")
    check_off(where, given, ("has_zero_point",), "a zero point")
    check_off(where, given, ("lora_rank",), "a product of low rank beside the layer")


def read_groups(config: Mapping[str, Any], groups: Groups, alone: bool) -> list[str]:
    """Checks config_groups; the targets of groups whose input scales are dynamic, "*" for a class.

    Args:
        groups: where the groups are put, if nothing else names the layers.
        alone: whether that is so.
    """
    found = table(config, "config_groups")
    dynamic: list[str] = []
    for key in found:
        where = f"config_groups.{key}."
        group = table(found, key, "config_groups.")
        check_keys(where, group, (*SCHEME, *MODELOPT_LAYER))
        numbers = group_numbers(where, group)
        weights, inputs = numbers["weights"], numbers["input_activations"]
        targets = strings(group, "targets", where) or [LINEAR]
        classes = ["*" if is_class(target) else target for target in targets]
        mode = group_mode(weights, inputs)
        if alone:
            own, eight = group.get("quant_algo"), fp8.by_group(where, weights, inputs, group)
            stated = (eight or mode) if own is None else MODES.get(str(own), fp8.by_modelopt(str(own)))
            if stated in fp8.ACTIVATIONS:
                fp8.check_modelopt(where, group, str(stated))
            groups.add(key, targets, stated)
        elif fp8.is_e4m3(weights) and inputs.get("dynamic") is True:
            dynamic += classes
        if not is_nvfp4(weights):
            continue
        if alone or config.get("quant_algo") in MODES:  # else quantized_layers has each layer's options
            check_layer(where, group)
        if alone and group.get("quant_algo") != AWQ:  # ModelOpt has it in groups of NVFP4_SVD alone
            check_off(where, group, ("pre_quant_scale",), "a scale of the inputs before NVFP4")
        check_group(where, group, numbers)
        if mode == W4A4_DYNAMIC:
            dynamic += classes
    return dynamic


def configs(
    targets: Mapping[str | Fp8Mode, Sequence[str]],
    modes: Mapping[str | Fp8Mode, Sequence[str]],
    ignore: Sequence[str],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """`quantization_config` of config.json and the content of hf_quant_config.json, as ModelOpt's
    convert_hf_quant_config_format relates them.

    Args:
        targets: of each mode, "W4A4", "W4A16", these with " AWQ", or of FP8 layers: names of layers, or "Linear".
        modes: of each mode the names of its layers.
        ignore: names of linear layers that are not quantized.
    """
    groups = {f"group_{i}": group(mode) | {"targets": list(names)} for i, (mode, names) in enumerate(targets.items())}
    (single,) = modes if len(modes) == 1 else (None,)
    options = {} if single is None else layer_options(single)
    algorithm = options.get("quant_algo", MIXED)
    own: dict[str, Any] = {}
    if single is None:
        own["quantized_layers"] = {name: layer_options(mode) for mode, names in modes.items() for name in names}
    producer = {"producer": {"name": "nvfp4", "version": _C.version}}
    config = {"config_groups": groups, "ignore": list(ignore), "quant_algo": algorithm, "quant_method": NAME}
    quantization: dict[str, Any] = {
        "quant_algo": algorithm,
        "kv_cache_quant_algo": None,
        "exclude_modules": list(ignore),
    }
    quantization |= {key: value for key, value in options.items() if key != "quant_algo"}
    return config | own | producer, producer | {"quantization": quantization | own}


def group(mode: str | Fp8Mode) -> dict[str, Any]:
    """A group of config_groups, without targets."""
    if isinstance(mode, Fp8Mode):
        return fp8.modelopt_group(mode)
    four = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": BLOCK}
    return ({} if mode in (W4A16, W4A16_AWQ) else {"input_activations": dict(four)}) | {"weights": four}


def layer_options(mode: str | Fp8Mode) -> dict[str, Any]:
    """A layer's entry in quantized_layers."""
    if isinstance(mode, Fp8Mode):
        return fp8.modelopt_options(mode)
    if mode in (W4A4_AWQ, W4A16_AWQ):
        return {"quant_algo": AWQ, "group_size": BLOCK, "has_zero_point": False, "pre_quant_scale": True}
    return {"quant_algo": "NVFP4" if mode == W4A4 else "W4A16_NVFP4", "group_size": BLOCK}
