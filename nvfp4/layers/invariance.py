"""nvfp4.set_batch_invariant: the bits of a row that do not depend on the other rows, in all NVFP4 layers of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from nvfp4 import _C
from nvfp4.layers.checks import check_type
from nvfp4.layers.experts.module import Experts
from nvfp4.layers.fp8 import Fp8Linear, Fp8Tensors
from nvfp4.layers.linear import NOT_INVARIANT, Linear
from nvfp4.layers.packed import PackedLinear


def set_batch_invariant(model: torch.nn.Module, batch_invariant: bool = True) -> None:
    """Sets `batch_invariant` of all nvfp4.Linear and nvfp4.Experts of a model.

    The bits that these layers give for a sequence are then the same alone and in a batch, beside any other sequence.
    That holds for the whole model only if torch's part is batch invariant too: attention, norms, dense layers.

    Args:
        model (torch.nn.Module): any module with one or more NVFP4 layers, or such a layer.
        batch_invariant (bool, optional): the new value. Default: True.

    Raises:
        nvfp4.Error: the model has no NVFP4 layer, or it has an FP8 layer, or a W4A4 layer that computes its input scale
            at each call from all rows together. The model is unchanged.

    Examples:
        >>> import nvfp4, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
        >>> report = nvfp4.quantize_model(model, activations=None)
        >>> nvfp4.set_batch_invariant(model)
        >>> x = torch.randn(9, 64)
        >>> torch.equal(model[0](x[4:5]), model[0](x)[4:5])
        True
    """
    check_type("model", model, torch.nn.Module, "a torch.nn.Module")
    check_type("batch_invariant", batch_invariant, bool, "a bool")
    modules = dict(model.named_modules())
    layers = {name: module for name, module in modules.items() if isinstance(module, (Linear, Experts))}
    if not layers:
        raise _C.Error("model: has no nvfp4.Linear or nvfp4.Experts; must have 1 or more")
    if batch_invariant:
        check_invariant(modules)
    for layer in layers.values():
        layer.batch_invariant = batch_invariant


def check_invariant(layers: Mapping[str, Any]) -> None:
    """Raises an error that names the first layer, as a module or as tensors, that cannot be batch invariant."""
    for name, layer in layers.items():
        prefix = f"{name}." if name else ""
        if isinstance(layer, (Linear, PackedLinear)):
            if layer.activations is not None and layer.input_global_scale is None:
                raise _C.Error(f"{prefix}input_global_scale: is None, {NOT_INVARIANT}")
        elif isinstance(layer, (Fp8Linear, Fp8Tensors)):
            raise _C.Error(f"{prefix}weight: is FP8, which torch multiplies; must be NVFP4 for batch_invariant=True")
