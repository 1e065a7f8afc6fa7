"""PEFT's adapters, for a model whose layers have become NVFP4."""

from __future__ import annotations

import sys
import warnings
from importlib.util import find_spec

import torch


def prepare_adapters(model: torch.nn.Module) -> None:
    """Registers NVFP4 layers with PEFT (nvfp4.peft): if PEFT is loaded, and for a model of transformers also if PEFT is
    installed. Importing it takes 0.1 s then, as most of that is importing transformers."""
    if "nvfp4.peft" in sys.modules:
        return
    kind = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    of_transformers = kind is not None and any(isinstance(module, kind) for module in model.modules())
    loaded = "peft" in sys.modules
    if loaded or (of_transformers and find_spec("peft") is not None):
        try:
            import nvfp4.peft  # noqa: F401
        except Exception as error:  # a PEFT that does not work here; who has not imported it has not asked for it
            if loaded:
                warnings.warn(f"peft: adapters of NVFP4 layers cannot be merged: {error}", stacklevel=3)
