"""Imports all that nvfp4 needs of transformers. An error names the part that the installed version lacks."""

from __future__ import annotations

TESTED = "5.17.0 and 5.24.0"
try:
    import transformers
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    message = "nvfp4.transformers needs transformers: pip install transformers"
    raise ModuleNotFoundError(message, name="transformers") from None
try:
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
    from transformers import CompressedTensorsConfig as OriginalCompressedTensorsConfig
    from transformers import FineGrainedFP8Config as OriginalFp8Config
    from transformers import Mxfp4Config as OriginalMxfp4Config
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import (
        ConversionOps,
        WeightConverter,
        WeightRenaming,
        rename_source_key,
        revert_weight_conversion,
    )
    from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING
    from transformers.utils.hub import cached_file
    from transformers.utils.quantization_config import QuantizationConfigMixin
except ImportError as error:
    raise ImportError(
        f"transformers: is version {transformers.__version__}, which lacks what nvfp4.transformers needs "
        f"({error}); tested are {TESTED}"
    ) from None

__all__ = [
    "AUTO_QUANTIZATION_CONFIG_MAPPING",
    "AUTO_QUANTIZER_MAPPING",
    "AutoConfig",
    "AutoModelForCausalLM",
    "ConversionOps",
    "HfQuantizer",
    "OriginalCompressedTensorsConfig",
    "OriginalFp8Config",
    "OriginalMxfp4Config",
    "PreTrainedModel",
    "QuantizationConfigMixin",
    "WeightConverter",
    "WeightRenaming",
    "cached_file",
    "get_model_conversion_mapping",
    "register_quantization_config",
    "register_quantizer",
    "rename_source_key",
    "revert_weight_conversion",
    "transformers",
]
