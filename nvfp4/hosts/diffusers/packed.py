"""The quantizer of NVFP4 checkpoints that are folders of ModelOpt or compressed-tensors.

The layers are put into the model before diffusers loads the rest. They lie in the mapped files until diffusers, or
`to`, moves them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4.checkpoints import fp8, modelopt
from nvfp4.checkpoints.checkpoint import Checkpoint, check_scales
from nvfp4.checkpoints.configuration import compared
from nvfp4.checkpoints.files import check_file
from nvfp4.checkpoints.fit import check_layers, fit, unwanted_by
from nvfp4.checkpoints.load import made_layers, replace_modules
from nvfp4.checkpoints.modules import read_modules
from nvfp4.checkpoints.save import is_under
from nvfp4.checkpoints.shards import read_tensors
from nvfp4.hosts.diffusers.quantization_config import PackedConfig, content_of, format_of, layers_in
from nvfp4.hosts.diffusers.quantizer import Quantizer, check_loaded


class Placing(Quantizer):
    """A quantizer that has a checkpoint's layers before diffusers loads its other tensors."""

    checkpoint: Checkpoint | None = None

    def __init__(self, quantization_config: Any, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        self.layers: dict[str, torch.nn.Module] = {}
        self.dense: dict[str, Tensor] = {}  # dense tensors of layers that are packed in the checkpoint
        self.in_fp32: set[str] = set()  # names of modules

    def place(self, model: Any, checkpoint: Checkpoint, in_fp32: Sequence[str]) -> None:
        """Puts the layers into the model, by their names."""
        self.in_fp32 = {*in_fp32}
        kept = {*checkpoint.tensors}
        fit(checkpoint, model, unwanted_by(model, None))
        self.dense = {name: t for name, t in checkpoint.tensors.items() if name not in kept}
        modules = dict(model.named_modules(remove_duplicate=False))
        check_layers(checkpoint, modules)
        for name, reason in checkpoint.skipped.items():
            if name in checkpoint.kept.values():
                raise _C.Error(f"{name}: cannot be put into the model: {reason}")
            warnings.warn(f"{name}: {reason}", stacklevel=2)
        if not checkpoint.layers:
            raise _C.Error(f"quantization_config: says NVFP4, but no layer of {type(model).__name__} is in the files")
        for name in checkpoint.all_layers if self.dtype is not None else ():
            modules[name].to(self.dtype)  # on the meta device: what the layer takes from it is the dtype
        replaced = made_layers(checkpoint, modules, {}, lambda name: None)
        replace_modules(modules, replaced)
        new = {id(layer) for layer in replaced.values()}
        self.layers = {
            name: module for name, module in model.named_modules(remove_duplicate=False) if id(module) in new
        }

    def update_missing_keys(self, model: Any, missing_keys: list[str], prefix: str) -> list[str]:
        return [key for key in missing_keys if key not in self.dense and not is_under(key, self.layers)]

    def check_if_quantized_param(
        self, model: Any, param_value: Any, param_name: str, state_dict: dict[str, Any], **kwargs: Any
    ) -> bool:
        return param_name in self.dense or is_under(param_name, self.layers)

    def create_quantized_param(
        self, model: Any, param_value: Tensor, param_name: str, target_device: Any, *args: Any, **kwargs: Any
    ) -> None:
        """The layer has its tensors already. It goes to its device with the first of them."""
        name, _, local = param_name.rpartition(".")
        owner = model.get_submodule(name)
        if param_name in self.dense:
            dtype = owner._parameters[local].dtype if self.dtype is None else self.dtype
            dtype = torch.float32 if self.in_fp32 & {*name.split(".")} else dtype
            t = self.dense[param_name].to(target_device, dtype)
            owner._parameters[local] = torch.nn.Parameter(t, requires_grad=False)
        else:
            owner.to(target_device)

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        check_loaded(model)
        self.checkpoint, self.layers, self.dense = None, {}, {}
        self.finish(model, format_of(model, self.quantization_config.format))
        return model


class PackedQuantizer(Placing):
    """Loads NVFP4 checkpoints of ModelOpt and compressed-tensors, FP8 layers beside included."""

    def __init__(self, quantization_config: PackedConfig, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        if not self.pre_quantized:
            raise _C.Error(
                "quantization_config: describes a checkpoint that is NVFP4 already, and this one is dense; must be "
                "nvfp4.diffusers.NVFP4Config"
            )

    def maybe_update_loaded_keys(self, loaded_keys: list[str], checkpoint_files: list[Any]) -> list[str]:
        """Reads the layers; diffusers loads the tensors that are left."""
        for file in checkpoint_files:
            if Path(file).suffix != ".safetensors":
                raise _C.Error(f"{file}: is no *.safetensors file; an NVFP4 model is made from these alone")
            check_file(Path(file))
        tensors, _ = read_tensors(map(Path, checkpoint_files))
        config = self.quantization_config
        recipe = config.recipe()
        if config.format is modelopt:
            recipe = compared(recipe, config.content, Path(checkpoint_files[0]).parent)
        self.checkpoint = checkpoint = read_modules(tensors, recipe)
        check_scales(checkpoint)
        fp8.warn_of_inputs(checkpoint.fp8)
        return [key for key in loaded_keys if key in checkpoint.tensors]

    def maybe_update_state_dict(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        if self.checkpoint is None:
            raise _C.Error(
                "quantization_config: is that of a folder; must be nvfp4.diffusers.SingleFileConfig for "
                "from_single_file"
            )
        return state_dict

    def _process_model_before_weight_loading(
        self, model: Any, keep_in_fp32_modules: Sequence[str] = (), **kwargs: Any
    ) -> None:
        assert self.checkpoint is not None
        self.place(model, self.checkpoint, keep_in_fp32_modules)


def attach(model: Any) -> None:
    """Gives a model of diffusers that has NVFP4 layers, and was not loaded by one, a quantizer with which
    save_pretrained stores them."""
    if not layers_in(model) or getattr(model, "hf_quantizer", None) is not None:
        return
    quantizer = PackedQuantizer(PackedConfig(**content_of(model, modelopt)), pre_quantized=True)
    quantizer.finish(model, format_of(model))
    model.hf_quantizer = quantizer
