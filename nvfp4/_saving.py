"""save_pretrained of transformers, for a model whose layers have become NVFP4."""

from __future__ import annotations

import sys
from typing import NoReturn

import torch

from nvfp4 import _C
from nvfp4.checkpoints.experts import Naming, naming_of
from nvfp4.mixture import Description


def prepare_saving(model: torch.nn.Module) -> None:
    """Lets save_pretrained of transformers store NVFP4 layers, wherever the model or a module of it has that method.
    Where nvfp4.transformers cannot work with the version of transformers, save_pretrained raises an error instead."""
    loaded = sys.modules.get("transformers.modeling_utils")
    kind = getattr(loaded, "PreTrainedModel", None)
    models = [] if kind is None else [module for module in model.modules() if isinstance(module, kind)]
    if not models:
        return
    try:
        from nvfp4._pretrained import attach
    except ImportError:
        for own in models:
            if getattr(own, "hf_quantizer", None) is None:
                own.hf_quantizer = Unstorable()
        return
    for own in models:
        attach(own)


def naming_in(model: torch.nn.Module, name: str, about: Description) -> Naming:
    """How a checkpoint of this model names and stores the experts of a module."""
    kind = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    locals_of = None
    if kind is not None and isinstance(model, kind):
        try:
            from nvfp4._pretrained import expert_names
        except ImportError:  # a version that nvfp4.transformers cannot work with
            return naming_of(about)
        locals_of = expert_names(model, name, about.gated)
    return naming_of(about, locals_of)


class Unstorable:
    """The `hf_quantizer` of a model that this version of transformers cannot store. save_pretrained asks it how the
    model is quantized, before it writes anything."""

    @property
    def quantization_config(self) -> NoReturn:
        raise _C.Error(
            "model: is quantized with nvfp4, which this version of transformers cannot store (call nvfp4.save), and is "
            "not written"
        )
