"""The keys of each format's descriptions. A key of a layer or a group that is not here may change what the layer
computes, so it is an error; one of the whole configuration is reported."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from nvfp4 import _C
from nvfp4._text import shown
from nvfp4.checkpoints.recipe import table
from nvfp4.layers.packed import BLOCK


def _keys(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# quantization/quant_args.py, quant_scheme.py and quant_config.py, transform/ in compressed-tensors 0.20.
SCHEME = _keys("targets weights input_activations output_activations format")
ARGUMENTS = _keys(
    "num_bits type symmetric group_size strategy block_structure dynamic actorder scale_dtype zp_dtype observer "
    "observer_kwargs"
)
COMPRESSED_TENSORS = _keys(
    "config_groups quant_method kv_cache_scheme format quantization_status ignore global_compression_ratio "
    "moe_sparsity_config sparsity_config transform_config version run_compressed dequantize producer "
    "expert_dtype"  # DeepseekV4Config of transformers puts it into any configuration
)
TRANSFORM = _keys("type apply randomize requires_grad head_dim precision")
TRANSFORM_ARGUMENTS = _keys("targets location inverse ignore")
OFFLINE = ("weight_input", "weight_output")  # transforms that the stored weights have already

# torch/export/ in ModelOpt 0.47: quant_utils.py and convert_hf_config.py. And quant_method "fp8" of DeepSeek-V4.
MODELOPT_LAYER = _keys(
    "quant_algo kv_cache_quant_algo group_size has_zero_point pre_quant_scale lora_rank awq_block_size"
)
MODELOPT = MODELOPT_LAYER + _keys(
    "quant_method moe_quant_algo kv_cache_scheme exclude_modules ignore config_groups quantized_layers producer "
    "quantization activation_scheme fmt scale_fmt weight_block_size modules_to_not_convert version expert_dtype"
)

# Mxfp4Config of transformers 5.24.
MXFP4 = _keys("quant_method modules_to_not_convert dequantize")

# prototype/mx_formats/nvfp4_tensor.py in torchao 0.18.
TORCHAO = _keys("block_size orig_dtype is_swizzled_scales use_triton_kernel act_quant_kwargs")
TORCHAO_ACTIVATIONS = _keys("block_size is_swizzled_scales use_triton_kernel use_dynamic_per_tensor_scale")

# comfy/ops.py and comfy/utils.py in ComfyUI; convrot of comfy-kitchen 0.2.40.
COMFY = _keys(
    "format full_precision_matrix_mult group_size block_size orig_dtype orig_shape num_experts convrot "
    "convrot_groupsize"
)


def check_keys(where: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    """Rejects keys of a layer's or a group's description that are not known; null says nothing."""
    for key, value in given.items():
        if key not in known and value is not None:
            raise _C.Error(
                f"{where}{key}: is {shown(value)}, an option that nvfp4 does not know and that may change what layers "
                f"compute; known are {', '.join(known)}"
            )


def unknown_keys(given: Mapping[str, Any], known: Collection[str]) -> dict[str, str]:
    """Options of a whole configuration that nvfp4 does not know, which the format's own readers leave alone too."""
    return {
        f"quantization_config.{key}": f"is an option that nvfp4 does not know: {shown(value)}"
        for key, value in given.items()
        if key not in known and value not in (None, False, "", [], {})
    }


def check_off(where: str, given: Mapping[str, Any], keys: Collection[str], what: str) -> None:
    """Rejects known options that change what a layer computes, unless they are off."""
    for key in keys:
        if given.get(key):
            raise _C.Error(f"{where}{key}: is {shown(given[key])}: {what}, which nvfp4 does not do")


def check_block(where: str, given: Mapping[str, Any], key: str, size: int = BLOCK) -> None:
    if given.get(key) not in (None, size):
        raise _C.Error(f"{where}{key}: is {shown(given[key])}; must be {size}")


def check_flag(where: str, given: Mapping[str, Any], key: str) -> bool:
    value = given.get(key, False)
    if value is not None and not isinstance(value, bool):
        raise _C.Error(f"{where}{key}: is {shown(value)}; must be true or false")
    return bool(value)


def check_transforms(config: Mapping[str, Any]) -> None:
    """Rejects transforms that are applied at run time: to activations, keys or queries."""
    transforms = table(config, "transform_config")
    check_keys("transform_config.", transforms, ("config_groups",))
    groups = table(transforms, "config_groups", "transform_config.")
    for name in groups:
        where = f"transform_config.config_groups.{name}."
        group = table(groups, name, "transform_config.config_groups.")
        check_keys(where, group, TRANSFORM)
        applied = group.get("apply") or []
        if not isinstance(applied, list) or not all(isinstance(entry, Mapping) for entry in applied):
            raise _C.Error(f"{where}apply: is {shown(applied)}; must be a list of objects")
        for entry in applied:
            check_keys(f"{where}apply.", entry, TRANSFORM_ARGUMENTS)
            location = entry.get("location")
            if location not in OFFLINE:
                kind = shown(group.get("type", "")).strip("'")
                raise _C.Error(
                    f"{where}apply.location: is {shown(location)}: layers apply a {kind} transform at run time, which "
                    f"nvfp4 does not do; must be {' or '.join(map(repr, OFFLINE))}"
                )
