"""What the quantizers of nvfp4.diffusers share: a model with NVFP4 layers is saved, compiled and dequantized."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, NoReturn

import torch

from nvfp4 import _C
from nvfp4.checkpoints import modelopt
from nvfp4.checkpoints.save import is_under
from nvfp4.checkpoints.write import SaveReport, packed_tensors
from nvfp4.hosts.diffusers.needed import DiffusersQuantizer, FluxLoraLoaderMixin, diffusers
from nvfp4.hosts.diffusers.quantization_config import (
    CompressedTensorsConfig,
    ModelOptConfig,
    ModelReference,
    content_of,
    format_of,
    layers_in,
)
from nvfp4.hosts.loading import check_device_map, check_dtype
from nvfp4.layers.checks import prefix_errors
from nvfp4.layers.fp8 import Fp8Linear
from nvfp4.layers.hosts import services
from nvfp4.layers.linear import Linear
from nvfp4.quantizing.dequantize_model import dequantize_model

# Methods of a model that would change some of its layers before they fail at an NVFP4 layer.
FUSE_PROJECTIONS, FUSE_LORA = "fuse_qkv_projections", "fuse_lora"


def fuse_projections(model: ModelReference) -> NoReturn:
    raise _C.Error(
        "model: has NVFP4 layers, whose projections cannot be joined; call fuse_qkv_projections on the dense model, or "
        "not at all"
    )


def fuse_lora(reference: ModelReference, *args: Any, **kwargs: Any) -> Any:
    model = reference()
    for name in layers_in(model):
        if name.endswith(".base_layer"):
            raise _C.Error(
                f"{name.removesuffix('.base_layer')}: is NVFP4, into which its adapter cannot be merged; call "
                "dequantize() of the model first"
            )
    return type(model).fuse_lora(model, *args, **kwargs)


def check_loaded(model: torch.nn.Module) -> None:
    for name, p in model.named_parameters():
        if p.is_meta:
            raise _C.Error(f"{name}: is in the model but not in the checkpoint")


class Quantizer(DiffusersQuantizer):
    """What all quantizers of this file share: a model with NVFP4 layers is saved, compiled and dequantized."""

    use_keep_in_fp32_modules = True
    model: ModelReference
    dtype: torch.dtype | None = None  # that of the model's other layers, where the caller names one

    def validate_environment(self, device_map: Any = None, **kwargs: Any) -> None:
        check_device_map(device_map)

    def update_torch_dtype(self, torch_dtype: torch.dtype | None) -> torch.dtype | None:
        self.dtype = None if torch_dtype is None else check_dtype("torch_dtype", torch_dtype)
        return torch_dtype

    def finish(self, model: Any, format: ModuleType) -> None:
        """Notes how the model is saved, if its layers stay as they are."""
        config = (ModelOptConfig if format is modelopt else CompressedTensorsConfig)(**content_of(model, format))
        config.model = self.model = ModelReference(model)
        self.quantization_config = config
        self.pre_quantized = True
        model.is_quantized = False  # by which diffusers forbids `to` another dtype: NVFP4 layers follow
        model.quantization_method = config.quant_method
        model.register_to_config(quantization_config=config)
        for method, ours in ((FUSE_PROJECTIONS, fuse_projections), (FUSE_LORA, fuse_lora)):
            if hasattr(model, method):
                setattr(model, method, functools.partial(ours, self.model))
        prepare_adapters()

    def get_state_dict_and_metadata(
        self, state_dict: dict[str, Any], safe_serialization: bool = False
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The state dict with the format's tensors of each NVFP4 layer, for save_pretrained."""
        if not safe_serialization:
            raise _C.Error("safe_serialization: is False; must be True, since NVFP4 layers are read from safetensors")
        layers = layers_in(self.model())
        state = {key: t for key, t in state_dict.items() if not is_under(key, layers)}
        report = SaveReport(self.quantization_config.format.NAME)
        for name, module in layers.items():
            with prefix_errors(name):
                state |= packed_tensors(name, module.packed(), report)
        return state, {}

    def dequantize(self, model: Any) -> Any:
        dequantize_model(model)  # which calls remove_quantization_config
        return model

    def remove_quantization_config(self, model: Any) -> None:
        """Takes what `finish` gave it from a model with layers that are dense now."""
        config = {key: value for key, value in model.config.items() if key != "quantization_config"}
        model._internal_dict = type(model.config)(config)  # FrozenDict has no way to take an entry out
        for name in ("hf_quantizer", "quantization_method", FUSE_PROJECTIONS, FUSE_LORA):
            model.__dict__.pop(name, None)

    @property
    def is_serializable(self) -> bool:
        """Asked by save_pretrained before it writes anything."""
        model = self.model()
        for name in layers_in(model):
            if name.endswith(".base_layer"):
                raise _C.Error(f"{name.removesuffix('.base_layer')}: has an adapter; call unload_lora before saving")
        self.finish(model, format_of(model, self.quantization_config.format))
        return True

    @property
    def is_trainable(self) -> bool:
        return True  # adapters train; the backward of a W4A4 layer raises an error that says what to do

    @property
    def is_compileable(self) -> bool:
        return True


def prepare_adapters() -> None:
    """Registers NVFP4 layers with PEFT, where it is installed, and lets the LoRA loader of FLUX see their shapes: it
    would replace a layer whose weight has fewer columns than the adapter's by a dense one, made of the packed bytes."""
    if not diffusers.utils.is_peft_available():
        return
    services("peft")
    own = FluxLoraLoaderMixin._calculate_module_shape
    if hasattr(own, "before_nvfp4"):
        return

    @functools.wraps(own)
    def shape_of(model: Any, base_module: Any = None, base_weight_param_name: str | None = None) -> Any:
        module = base_module
        if module is None and base_weight_param_name is not None:
            module = model.get_submodule(base_weight_param_name.removesuffix(".weight"))
        if isinstance(module, (Linear, Fp8Linear)):
            return torch.Size((module.out_features, module.in_features))
        return own(model, base_module, base_weight_param_name)

    shape_of.before_nvfp4 = own  # type: ignore[attr-defined]
    FluxLoraLoaderMixin._calculate_module_shape = staticmethod(shape_of)
