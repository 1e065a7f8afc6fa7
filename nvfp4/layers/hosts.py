"""The libraries that have models with NVFP4 layers, and the modules of nvfp4.hosts that serve them.

Layers, checkpoints and quantizing reach the code for a library only through this table, for a model of that library.
Importing that code registers quantizers with transformers, which save the model, and layers with PEFT. Only
nvfp4.transformers, which a user imports, replaces a library's own reader.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from importlib.util import find_spec
from typing import Any, NoReturn

import torch

from nvfp4 import _C

# By the name of the library: what serves it.
SERVICES = {
    "transformers": "nvfp4.hosts.transformers.services",
    "diffusers": "nvfp4.hosts.diffusers.packed",
    "peft": "nvfp4.hosts.peft",
}
# The class of a library's models, whose save_pretrained stores NVFP4 layers by a quantizer; that of PEFT's adapters.
BASES = {
    "peft": ("peft.tuners.tuners_utils", "BaseTunerLayer"),
    "transformers": ("transformers.modeling_utils", "PreTrainedModel"),
    "diffusers": ("diffusers.models.modeling_utils", "ModelMixin"),
}


def is_model_of(library: str, model: torch.nn.Module) -> bool:
    """Whether a module is a model of a library, or an adapter of PEFT. Before the library is loaded none is."""
    module, name = BASES[library]
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(model, kind)


def is_pretrained(model: torch.nn.Module) -> bool:
    """Whether a model is one of transformers."""
    return is_model_of("transformers", model)


def pretrained_in(model: torch.nn.Module) -> list[Any]:
    """The modules of a model, itself included, that are models of transformers."""
    return [module for module in model.modules() if is_pretrained(module)]


def services(library: str) -> Any:
    """The module that serves a library.

    Raises:
        ImportError: the installed version of the library lacks what nvfp4 needs.
    """
    return importlib.import_module(SERVICES[library])


def layers_replaced(model: torch.nn.Module) -> None:
    """Prepares a model with new NVFP4 layers for save_pretrained and for adapters."""
    prepare_saving(model)
    prepare_adapters(model)


def prepare_saving(model: torch.nn.Module) -> None:
    """Lets save_pretrained of transformers and diffusers store NVFP4 layers, wherever the model or a module of it has
    that method. Where nvfp4 cannot work with the version of the library, save_pretrained raises an error instead."""
    for library in BASES:
        models: list[Any] = [module for module in model.modules() if is_model_of(library, module)]
        if not models:
            continue
        try:
            attach = services(library).attach
        except ImportError:
            for own in models:
                if getattr(own, "hf_quantizer", None) is None:
                    own.hf_quantizer = Unstorable(library)
            continue
        for own in models:
            attach(own)


class Unstorable:
    """The `hf_quantizer` of a model that this version of its library cannot store. save_pretrained asks it how the
    model is quantized, before it writes anything."""

    def __init__(self, library: str) -> None:
        self.library = library

    @property
    def quantization_config(self) -> NoReturn:
        raise _C.Error(
            f"model: is quantized with nvfp4, which this version of {self.library} cannot store (call nvfp4.save), and "
            "is not written"
        )


def prepare_adapters(model: torch.nn.Module) -> None:
    """Registers NVFP4 layers with PEFT: if PEFT is loaded, and for a model of transformers also if PEFT is installed.
    Importing it takes 0.1 s then, as most of that is importing transformers."""
    if SERVICES["peft"] in sys.modules:
        return
    loaded = "peft" in sys.modules
    if loaded or (pretrained_in(model) and find_spec("peft") is not None):
        try:
            services("peft")
        except Exception as error:  # PEFT does not work here: warn only if the program itself imported it
            if loaded:
                warnings.warn(f"peft: adapters of NVFP4 layers cannot be merged: {error}", stacklevel=4)
