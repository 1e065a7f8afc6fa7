"""Configurations of NVFP4 checkpoints, as transformers keeps them in `quantization_config`."""

from __future__ import annotations

import copy
from pathlib import Path
from types import ModuleType
from typing import Any

from nvfp4 import _C
from nvfp4.checkpoints import compressed_tensors, modelopt, mxfp4
from nvfp4.checkpoints.configuration import (
    HF_QUANT,
    as_quantization_config,
    compared,
    describes,
    quantization_in,
    second_counts,
)
from nvfp4.checkpoints.recipe import AUTO, Recipe
from nvfp4.hosts.transformers.library import (
    OriginalCompressedTensorsConfig,
    OriginalFp8Config,
    OriginalMxfp4Config,
    QuantizationConfigMixin,
)

# The names of quantizers in transformers' registry, in which theirs are taken.
COMPRESSED_TENSORS, MXFP4, FP8 = "nvfp4-compressed-tensors", "nvfp4-mxfp4", "nvfp4-fp8"
REGISTERED = {compressed_tensors.NAME: COMPRESSED_TENSORS, mxfp4.NAME: MXFP4, modelopt.FP8: FP8}
ACTIVATIONS = "nvfp4_activations"  # load's argument, beside what the checkpoint's configuration has


class ModelOptConfig(QuantizationConfigMixin):
    """`quantization_config` of a ModelOpt checkpoint, kept as it is in config.json.

    Raises:
        nvfp4.Error: quant_algo is none that has NVFP4 layers, or group_size is not 16.
    """

    format: ModuleType = modelopt

    def __init__(self, **content: Any) -> None:
        self.quant_method = content.get("quant_method")
        self.activations: str | None = content.pop(ACTIVATIONS, AUTO)
        self.content = content
        self.recipe()

    def recipe(self) -> Recipe:
        try:
            return self.format.recipe(self.content)
        except _C.Error as error:
            raise _C.Error(f"quantization_config.{error}") from None

    def recipe_beside(self, folder: Path) -> Recipe:
        """The recipe in a checkpoint's folder, by the rule of nvfp4.load. Where hf_quant_config.json counts, its
        content becomes this one's."""
        if self.format is not modelopt or describes(self.content):
            return compared(self.recipe(), self.content, folder)
        other = quantization_in(folder, HF_QUANT)
        if second_counts(self.content, other):
            self.content = as_quantization_config(other)
        return self.recipe()

    def get(self, key: str, default: Any = None) -> Any:
        """Reads an entry as transformers reads it of a dict: a loaded model's configuration, used again, has this
        object.
        """
        return self.content.get(key, default)

    def to_dict(self) -> dict[str, Any]:
        return copy.deepcopy(self.content) | {"quant_method": self.format.NAME}


class Replacement(ModelOptConfig):
    """A configuration in place of one of transformers' own, with its name and base class. from_pretrained then takes
    one of those beside it, and sets the loading options of that one here.

    Attributes:
        original: transformers' own class.
    """

    original: Any

    def get_loading_attributes(self) -> dict[str, Any]:
        return {}

    @property
    def dequantize(self) -> bool:
        return False

    @dequantize.setter
    def dequantize(self, value: bool) -> None:
        """Turns this object into one of transformers' own class, with its quantizer. from_pretrained sets the option
        only if the caller passes a configuration of that class."""
        original = self.original.from_dict(self.to_dict())
        self.__class__, self.__dict__ = self.original, vars(original)
        self.dequantize = value

    to_diff_dict = ModelOptConfig.to_dict


class CompressedTensorsConfig(Replacement, OriginalCompressedTensorsConfig):
    """`quantization_config` of a compressed-tensors checkpoint, kept as it is in config.json."""

    format, original = compressed_tensors, OriginalCompressedTensorsConfig

    def __init__(self, **content: Any) -> None:
        super().__init__(**content | {"quant_method": COMPRESSED_TENSORS})

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs: Any) -> Any:
        """Makes a configuration of this class if the method is ours or a group of layers is NVFP4, else one of
        transformers' own class."""
        ours = config_dict.get("quant_method") == COMPRESSED_TENSORS or compressed_tensors.has_nvfp4(config_dict)
        make = super().from_dict if ours else OriginalCompressedTensorsConfig.from_dict
        return make(config_dict, return_unused_kwargs, **kwargs)


class FineGrainedFP8Config(Replacement, OriginalFp8Config):
    """`quantization_config` of FP8 layers beside experts in NVFP4 or MXFP4, as DeepSeek-V4 has them."""

    original = OriginalFp8Config

    def __init__(self, **content: Any) -> None:
        super().__init__(**content | {"quant_method": FP8})
        self.content = self.content | {"quant_method": modelopt.FP8}

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs: Any) -> Any:
        """Makes a configuration of this class if experts are NVFP4 or MXFP4, else one of transformers' own class."""
        make = super().from_dict if modelopt.has_nvfp4(config_dict) else OriginalFp8Config.from_dict
        return make(config_dict, return_unused_kwargs, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        return copy.deepcopy(self.content)


class Mxfp4Config(Replacement, OriginalMxfp4Config):
    """`quantization_config` of gpt-oss, which says that experts are MXFP4."""

    format, original = mxfp4, OriginalMxfp4Config

    def __init__(self, **content: Any) -> None:
        super().__init__(**content | {"quant_method": MXFP4})
