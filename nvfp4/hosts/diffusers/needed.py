"""Imports all that nvfp4 needs of diffusers. An error names the part that the installed version lacks."""

from __future__ import annotations

TESTED = "0.42.1"
try:
    import diffusers
except ModuleNotFoundError as error:
    if error.name != "diffusers":
        raise
    message = "nvfp4.diffusers needs diffusers: pip install diffusers accelerate"
    raise ModuleNotFoundError(message, name="diffusers") from None
try:
    from diffusers.loaders.lora_pipeline import FluxLoraLoaderMixin
    from diffusers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING
    from diffusers.quantizers.base import DiffusersQuantizer
    from diffusers.quantizers.quantization_config import NVIDIAModelOptConfig, QuantizationConfigMixin
except ImportError as error:
    raise ImportError(
        f"diffusers: is version {diffusers.__version__}, which lacks what nvfp4.diffusers needs ({error}); tested is "
        f"{TESTED}"
    ) from None

__all__ = [
    "AUTO_QUANTIZATION_CONFIG_MAPPING",
    "AUTO_QUANTIZER_MAPPING",
    "DiffusersQuantizer",
    "FluxLoraLoaderMixin",
    "NVIDIAModelOptConfig",
    "QuantizationConfigMixin",
    "diffusers",
]
