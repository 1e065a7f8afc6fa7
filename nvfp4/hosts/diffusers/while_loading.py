"""The quantizer of NVFP4Config: from_pretrained of diffusers reads a dense model and quantizes each linear layer as it
comes.

diffusers gives it the tensors of a linear layer one by one, on their device and in the model's dtype. An nvfp4.Linear
takes the layer's place as soon as it has all of them, and nothing holds the dense weight any more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4.checkpoints.save import is_under
from nvfp4.hosts.diffusers.quantization_config import EDGES, NVFP4Config, format_of
from nvfp4.hosts.diffusers.quantizer import Quantizer, check_loaded
from nvfp4.hosts.loading import all_names, nothing_becomes_nvfp4
from nvfp4.layers.checks import prefix_errors
from nvfp4.layers.dense import find_dense, not_linear
from nvfp4.layers.gptq import exact_mode
from nvfp4.layers.invariance import set_batch_invariant
from nvfp4.layers.linear import Linear
from nvfp4.layers.traversal import places_of, put
from nvfp4.quantizing.linears import quantize_layer
from nvfp4.quantizing.quantize_model import check_weight
from nvfp4.quantizing.report import QuantizedLayer, QuantizeReport
from nvfp4.quantizing.selection import find_linears
from nvfp4.quantizing.weights import searched, shared_scale, weight_of

# Parts of names. Lists of modules that are no blocks, and modules in blocks that embed the time step.
NOT_BLOCKS = ("projection", "embed", "heads")
TIME_STEP = ("time_emb_proj", "timestep_embedder", "time_pos_embed")


def blocks_of(model: torch.nn.Module) -> dict[str, list[str]]:
    """The repeated blocks of a model by the name of their list: lists of modules, and other children that are blocks by
    name, such as the `mid_block` of a UNet."""
    found = {}
    for name, child in model.named_children():
        if isinstance(child, torch.nn.ModuleList) and not any(part in name for part in NOT_BLOCKS):
            found[name] = [f"{name}.{i}" for i in range(len(child))]
        elif "block" in name:
            found[name] = [name]
    return found


def kept_by(model: torch.nn.Module, preset: str) -> list[str]:
    """Patterns of the linear layers that a preset leaves dense: those outside of all blocks and those that embed the
    time step in a block, and with EDGES those of the first and the last block of each list, too."""
    lists = blocks_of(model)
    blocks = {block for names in lists.values() for block in names}
    if preset == EDGES:
        blocks -= {block for names in lists.values() if len(names) > 1 for block in (names[0], names[-1])}
    names = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    kept = [name for name in names if not is_under(name, blocks) or any(f".{part}" in name for part in TIME_STEP)]
    return [f"re:{re.escape(name)}$" for name in kept]


class OnLoadQuantizer(Quantizer):
    """Quantizes while diffusers loads a dense model."""

    def __init__(self, quantization_config: NVFP4Config, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        self.pre_quantized = False  # from_single_file does not say so
        self.linears: dict[str, Any] = {}  # dense layers that will be NVFP4
        self.names: dict[str, str] = {}  # all names of these, each with the one in `linears`
        self.places: dict[str, list[tuple[torch.nn.Module, str]]] = {}
        self.skipped: dict[str, str] = {}
        self.rows: dict[str, QuantizedLayer] = {}

    @property
    def supports_parallel_loading(self) -> bool:
        return False

    def _process_model_before_weight_loading(
        self, model: Any, device_map: Any = None, keep_in_fp32_modules: Sequence[str] = (), **kwargs: Any
    ) -> None:
        config = self.quantization_config
        ignore = kept_by(model, config.ignore) if isinstance(config.ignore, str) else config.ignore
        self.linears, self.skipped = find_linears(model, ignore)
        if isinstance(config.ignore, str):
            why = f"ignore is {config.ignore!r}"
            self.skipped = {name: why if "'re:" in reason else reason for name, reason in self.skipped.items()}
        for name in [*self.linears]:
            if {*name.split(".")} & {*keep_in_fp32_modules}:
                del self.linears[name]
                self.skipped[name] = "is kept in float32"
        if not self.linears:
            raise nothing_becomes_nvfp4(model, self.skipped)
        self.places = places_of(model, self.linears)
        self.names = all_names(model, self.linears)

    def maybe_update_state_dict(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Asked for a single file alone."""
        for key, t in state_dict.items():
            if isinstance(t, Tensor) and t.dtype == torch.uint8 and f"{key}_scale" in state_dict:
                raise _C.Error(
                    f"quantization_config: is NVFP4Config, for dense files, but {key} is NVFP4; must be "
                    "nvfp4.diffusers.SingleFileConfig"
                )
        return state_dict

    def check_if_quantized_param(
        self, model: Any, param_value: Any, param_name: str, state_dict: dict[str, Any], **kwargs: Any
    ) -> bool:
        return param_name.rpartition(".")[0] in self.names

    def create_quantized_param(
        self, model: Any, param_value: Tensor, param_name: str, target_device: Any, *args: Any, **kwargs: Any
    ) -> None:
        module, _, local = param_name.rpartition(".")
        name = self.names[module]
        if (linear := self.linears.get(name)) is None:
            return  # another name of a layer that is quantized
        linear._parameters[local] = torch.nn.Parameter(param_value.to(target_device), requires_grad=False)
        if not any(p.is_meta for p in linear.parameters()):
            self.quantize(name)

    def quantize(self, name: str) -> None:
        linear, config = self.linears.pop(name), self.quantization_config
        given = (name, linear, config.activations, None, config.block_scale)
        with torch.no_grad(), prefix_errors(name):
            if config.weights == "round":
                layer, row = quantize_layer(*given)
            else:
                check_weight(linear, config.weights)
                weight = weight_of({name: linear}, name)
                with exact_mode(weight.device):
                    scale = shared_scale((weight,), config.weights)
                layer, row = searched(weight, scale).layer(*given)
        self.rows[name] = row
        put(self.places.pop(name), layer)

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        for name, linear in self.linears.items():
            key = next(key for key, p in linear.named_parameters() if p.is_meta)
            raise _C.Error(f"{name}.{key}: is not in the checkpoint; must be there to be quantized")
        check_loaded(model)
        if self.quantization_config.batch_invariant:
            set_batch_invariant(model)
        layers = [module for module in model.modules() if isinstance(module, Linear)]
        now = sum(t.nbytes for layer in layers for t in layer.buffers())
        dense, others = find_dense(model, layers, sum(row.bytes_before for row in self.rows.values()) - now)
        rows = [self.rows[name] for name, _ in model.named_modules() if name in self.rows]
        self.report = QuantizeReport(rows, self.skipped | not_linear(model, dense), dense, others)
        self.report.weights = self.quantization_config.weights
        self.finish(model, format_of(model))
        return model
