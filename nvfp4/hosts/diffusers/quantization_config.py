"""Configurations of quantizers, as diffusers keeps them in a model's `quantization_config`, and what such an entry says
of a model's layers."""

from __future__ import annotations

import enum
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from nvfp4 import _C
from nvfp4.checkpoints import compressed_tensors, modelopt
from nvfp4.checkpoints.configuration import Mode, mode_of, quantization_configs
from nvfp4.checkpoints.load import check_format
from nvfp4.checkpoints.recipe import Recipe
from nvfp4.checkpoints.save import is_under
from nvfp4.hosts.diffusers.needed import NVIDIAModelOptConfig, QuantizationConfigMixin
from nvfp4.hosts.loading import check_options, check_unknown, ignored
from nvfp4.layers.checks import check_type
from nvfp4.layers.fp8 import Fp8Linear
from nvfp4.layers.linear import Linear
from nvfp4.layers.traversal import find_layers
from nvfp4.quantizing.selection import check_ignore

OUTSIDE, EDGES = "outside_blocks", "outside_and_edge_blocks"
PRESETS = (OUTSIDE, EDGES)


class Method(str, enum.Enum):
    """The names of the quantizers in diffusers' mappings. diffusers reads the `value` of a method."""

    ON_LOAD = "nvfp4-on-load"
    MODELOPT = "nvfp4-modelopt"
    COMPRESSED_TENSORS = "nvfp4-compressed-tensors"
    SINGLE_FILE = "nvfp4-single-file"


class NVFP4Config(QuantizationConfigMixin):
    """Quantizes a dense model while from_pretrained of diffusers loads it: `quantization_config=NVFP4Config()`.

    The model is never dense as a whole on its device: each layer's weight is released as soon as it is quantized.
    `model.hf_quantizer.report` is the QuantizeReport. `save_pretrained` writes an NVFP4 checkpoint, which does not
    hold block_scale and batch_invariant: a model that is loaded from it has the defaults.

    Args:
        activations (str, optional): "nvfp4" (W4A4, with input scales that each call computes) or None (W4A16), see
            nvfp4.Linear. Default: None.
            Pictures have thousands of rows, where W4A16 takes about as long as bf16 on a Hopper GPU.
        block_scale (str, optional): how nvfp4.quantize chooses the scales of inputs, and of weights with
            weights="round", "amax6" or "four_over_six". Default: "amax6".
        ignore (sequence of str or str, optional): names or patterns of layers to leave as they are, see quantize_model,
            or a preset. Default: "outside_blocks".
            "outside_blocks" leaves all layers that are in none of the model's repeated blocks: those that embed text,
            pixels and the time step, and those that project the output.
            "outside_and_edge_blocks" leaves also the first and the last block of each list of blocks.
        modules_to_not_convert (sequence of str, optional): another name of `ignore`, as diffusers' configurations call
            it. Default: None.
        batch_invariant (bool, optional): makes the bits of a sample independent of its batch in all NVFP4 layers, see
            nvfp4.set_batch_invariant. It needs activations=None. Default: False.
        weights (str, optional): "round" or "search", see quantize_model. Default: "round".

    Raises:
        nvfp4.Error: an argument breaks a rule. from_pretrained raises it if no layer can become NVFP4, if a weight has
            a value that is NaN or infinite, or if the device_map has "disk".

    Examples:
        >>> import nvfp4.diffusers
        >>> from diffusers import FluxTransformer2DModel
        >>> config = nvfp4.diffusers.NVFP4Config()
        >>> model = FluxTransformer2DModel.from_pretrained(
        ...     "black-forest-labs/FLUX.1-dev",
        ...     subfolder="transformer",
        ...     quantization_config=config,
        ...     torch_dtype=torch.bfloat16,
        ... )  # doctest: +SKIP
    """

    def __init__(
        self,
        activations: str | None = None,
        block_scale: str = "amax6",
        ignore: Sequence[str] | str = OUTSIDE,
        modules_to_not_convert: Sequence[str] | str | None = None,
        batch_invariant: bool = False,
        weights: str = "round",
        **unknown: Any,
    ) -> None:
        self.quant_method = Method.ON_LOAD
        unknown.pop("quant_method", None)
        check_unknown(unknown)
        check_options(activations, block_scale, batch_invariant, weights)
        ignore = ignored(ignore, modules_to_not_convert, ignore == OUTSIDE)
        if isinstance(ignore, str) and ignore not in PRESETS:
            presets = " or ".join(map(repr, PRESETS))
            raise _C.Error(f"ignore: is the string {ignore!r}; must be a sequence of patterns, or {presets}")
        if not isinstance(ignore, str):
            check_ignore(ignore)
        self.activations, self.block_scale, self.weights = activations, block_scale, weights
        self.ignore = ignore if isinstance(ignore, str) else list(ignore)
        self.batch_invariant = batch_invariant

    def to_diff_dict(self) -> dict[str, Any]:
        """All entries: QuantizationConfigMixin prints a configuration by this method, and has none."""
        return dict(self.to_dict())


class SingleFileConfig(QuantizationConfigMixin):
    """Loads an NVFP4 file of ComfyUI or Black Forest Labs: `from_single_file(file, config=folder,
    quantization_config=SingleFileConfig(file))`.

    Args:
        file (str or PathLike): the file that is given to from_single_file. Its header says how the layers are packed,
            and diffusers does not pass it on.
        activations (str, optional): "nvfp4" (W4A4) or None (W4A16), see nvfp4.load. Default: None.
        format (str, optional): "modelopt" (linear scales, the even element in the low nibble) or "comfy-kitchen" (128x4
            scales, the even element in the high nibble), see nvfp4.load. Default: None, and the file tells.

    Raises:
        nvfp4.Error: an argument breaks a rule. from_single_file raises it if the file has no NVFP4 layer, or a layer
            does not fit the model.

    Examples:
        >>> import nvfp4.diffusers
        >>> from diffusers import Flux2Transformer2DModel
        >>> config = nvfp4.diffusers.SingleFileConfig("flux2-dev-nvfp4.safetensors")
        >>> model = Flux2Transformer2DModel.from_single_file(
        ...     "flux2-dev-nvfp4.safetensors", config="black-forest-labs/FLUX.2-dev", subfolder="transformer",
        ...     quantization_config=config
        ... )  # doctest: +SKIP
    """

    format: ModuleType = modelopt

    def __init__(self, file: str | os.PathLike[str], activations: str | None = None, format: str | None = None) -> None:
        check_type("file", file, (str, os.PathLike), "a path")
        check_format(format)
        if activations not in ("nvfp4", None):
            raise _C.Error(f"activations: is {activations!r}; must be 'nvfp4' or None")
        self.quant_method = Method.SINGLE_FILE
        self.file, self.wanted, self.file_format = Path(file), activations, format

    def to_diff_dict(self) -> dict[str, Any]:
        method, file = self.quant_method.value, str(self.file)
        return {"quant_method": method, "file": file, "activations": self.wanted, "format": self.file_format}

    to_dict = to_diff_dict


class ModelReference:
    """A model as its own quantizer has it: held weakly, so that a model is freed with its last name. In a copy or a
    pickle of the model it is the copy; a copy of the configuration alone is of the same model."""

    def __init__(self, model: Any) -> None:
        self.reference = weakref.ref(model)

    def __call__(self) -> Any:
        return self.reference()

    def __deepcopy__(self, memo: dict[int, Any]) -> ModelReference:
        return ModelReference(memo.get(id(self()), self()))

    def __reduce__(self) -> tuple[Any, ...]:
        return ModelReference, (self(),)


class PackedConfig(QuantizationConfigMixin):
    """`quantization_config` of an NVFP4 checkpoint, kept as it is in config.json. Of a model that is saved it describes
    the layers that the model has then."""

    format: ModuleType = modelopt

    def __init__(self, **content: Any) -> None:
        self.content = content
        self.model: ModelReference | None = None  # once it has its layers
        self.quant_method = Method.MODELOPT if self.format is modelopt else Method.COMPRESSED_TENSORS
        self.recipe()

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs: Any) -> Any:
        config = cls(**config_dict)
        return (config, kwargs) if return_unused_kwargs else config

    def recipe(self) -> Recipe:
        try:
            return self.format.recipe(self.content)
        except _C.Error as error:
            raise _C.Error(f"quantization_config.{error}") from None

    def to_dict(self) -> dict[str, Any]:
        model = None if self.model is None else self.model()
        content = self.content if model is None else content_of(model, self.format)
        return dict(content) | {"quant_method": self.format.NAME}

    to_diff_dict = to_dict

    def update(self, **kwargs: Any) -> dict[str, Any]:
        """Takes nothing: what a checkpoint is cannot be changed by an argument."""
        return kwargs


class ModelOptConfig(PackedConfig):
    """`quantization_config` of a ModelOpt checkpoint."""

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs: Any) -> Any:
        """Makes a configuration of this class if the checkpoint has packed layers, else one of diffusers' own class,
        whose models ModelOpt restores."""
        make = super().from_dict if "quant_algo" in config_dict else NVIDIAModelOptConfig.from_dict
        return make(config_dict, return_unused_kwargs, **kwargs)


class CompressedTensorsConfig(PackedConfig):
    """`quantization_config` of a compressed-tensors checkpoint."""

    format = compressed_tensors


# ---- what it says of a model ----


def layers_in(model: torch.nn.Module) -> dict[str, Any]:
    """The NVFP4 and FP8 layers by name. A joined layer is listed by its parts."""
    modules = model.named_modules(remove_duplicate=False)
    return {**find_layers(model), **{name: module for name, module in modules if isinstance(module, Fp8Linear)}}


def format_of(model: torch.nn.Module, read: ModuleType = modelopt) -> ModuleType:
    """The format in which a model is stored: ModelOpt, which has no dynamic input scale, else compressed-tensors; that
    in which it was read, if that has all layers."""
    layers = [module for module in layers_in(model).values() if isinstance(module, Linear)]
    dynamic = any(layer.activations is not None and layer.input_global_scale is None for layer in layers)
    awq = any(layer.pre_quant_scale is not None for layer in layers)
    if dynamic and not awq:
        return compressed_tensors
    return modelopt if awq else read


def content_of(model: torch.nn.Module, format: ModuleType) -> dict[str, Any]:
    """`quantization_config` of a model's layers in a format."""
    found = layers_in(model)
    modes: dict[str, Mode] = {name: mode_of(layer.packed()) for name, layer in found.items()}
    ignore = [
        name
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, torch.nn.Linear) and not is_under(name, found)
    ]
    content, _ = quantization_configs(format.NAME, modes, ignore)
    return content
