"""NVFP4 layers in Hugging Face PEFT: LoRA adapters that can be merged.

PEFT finds nvfp4.Linear as a torch.nn.Linear and trains adapters beside it without this module. Importing it registers
`LoraLinear` for these layers, which merges an adapter into a dense layer: PEFT's own layer would add it to the packed
weight. quantize_model and the loaders import the module where PEFT or transformers is loaded (nvfp4._adapters).

PEFT has no public entry for a layer's class, save one for each LoraConfig. So `LoraModel._create_new_module`, the
static method that asks PEFT's own dispatchers, is replaced by one that asks `dispatch_nvfp4` before them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from nvfp4 import _C
from nvfp4.linear import Linear
from nvfp4.modules import FusedPart, keep_hooks

TESTED = "0.18.0 and 0.21.2"
try:
    import peft
except ModuleNotFoundError as error:
    if error.name != "peft":
        raise
    raise ModuleNotFoundError("nvfp4.peft needs peft: pip install peft", name="peft") from None
try:
    from peft import LoraConfig
    from peft.tuners.lora import LoraModel
    from peft.tuners.lora.layer import Linear as DenseLoraLinear
    from peft.tuners.tuners_utils import BaseTunerLayer, check_adapters_to_merge

    _own = LoraModel._create_new_module
except (ImportError, AttributeError) as error:
    raise ImportError(
        f"peft: is version {peft.__version__}, which lacks what nvfp4.peft needs ({error}); tested are {TESTED}"
    ) from None

__all__ = ["LoraLinear", "dispatch_nvfp4"]

# Initializations that do not read or change the weight.
INITIALIZATIONS = (True, False, "gaussian", "eva", "orthogonal")


class LoraLinear(DenseLoraLinear):
    """PEFT's LoRA layer around an nvfp4.Linear. Merging makes a dense torch.nn.Linear in place of both."""

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        if isinstance(self.get_base_layer(), Linear) and check_adapters_to_merge(self, adapter_names):
            raise _C.Error(
                "merge: the base layer is NVFP4, which an adapter cannot be added to; use merge_and_unload, which "
                "makes dense layers, or call nvfp4.dequantize_model(model) first"
            )
        super().merge(safe_merge, adapter_names)

    def unload_and_optionally_merge_module(
        self, merge: bool, safe_merge: bool, adapter_names: list[str] | None
    ) -> torch.nn.Module:
        """PEFT's merge_and_unload and unload call this for what replaces the layer in the model."""
        base = self.get_base_layer()
        if merge and isinstance(base, Linear) and check_adapters_to_merge(self, adapter_names):
            dense = base.to_linear().requires_grad_(False)  # as PEFT leaves the layers of a dense model
            keep_hooks(base, dense)
            self.base_layer = dense
        if merge:
            self.merge(safe_merge, adapter_names)
        return self.get_base_layer()


def dispatch_nvfp4(
    target: torch.nn.Module, adapter_name: str, config: LoraConfig, **kwargs: Any
) -> torch.nn.Module | None:
    """Makes the LoRA layer of a target that is NVFP4, as PEFT's dispatchers do. Returns None for another target.

    Raises:
        nvfp4.Error: the target takes no adapter, or the configuration has an initialization that needs a dense weight.
    """
    base = target.get_base_layer() if isinstance(target, BaseTunerLayer) else target
    if isinstance(base, FusedPart):
        raise _C.Error(
            "target: is a layer that is joined with others (fuse=True), which takes no adapter; use fuse=False"
        )
    if not isinstance(base, Linear) or kwargs.get("parameter_name") is not None:
        return None
    if type(base) is not Linear:
        base.packed()  # raises: the layer is split among ranks
    if config.init_lora_weights not in INITIALIZATIONS:
        raise _C.Error(
            f"init_lora_weights: is {config.init_lora_weights!r}, which needs a dense weight; must be one of "
            f"{', '.join(map(repr, INITIALIZATIONS))} for NVFP4 layers"
        )
    if config.fan_in_fan_out:  # recipes for GPT-2 have it, whose Conv1D layers are nvfp4.Linear now
        warnings.warn(
            "fan_in_fan_out is True, but an nvfp4.Linear has its weight as [N, K]; sets it to False", stacklevel=2
        )
        config.fan_in_fan_out = False
    if "fan_in_fan_out" in kwargs:  # PEFT 0.18 passes each option of the configuration
        kwargs["fan_in_fan_out"] = False
    return LoraLinear(target, adapter_name, config=config, **kwargs)


def register() -> None:
    """Has PEFT ask dispatch_nvfp4 first. A second import of this file (importlib.reload) replaces the first one's."""
    asked: Callable[..., torch.nn.Module] = getattr(_own, "before_nvfp4", _own)

    def create_new_module(
        lora_config: LoraConfig, adapter_name: str, target: torch.nn.Module, **kwargs: Any
    ) -> torch.nn.Module:
        module = dispatch_nvfp4(target, adapter_name, lora_config, **kwargs)
        return asked(lora_config, adapter_name, target, **kwargs) if module is None else module

    create_new_module.before_nvfp4 = asked  # type: ignore[attr-defined]
    LoraModel._create_new_module = staticmethod(create_new_module)


register()
