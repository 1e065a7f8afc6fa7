"""Models with NVFP4 experts whose attention is FP8, and the same models in plain torch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from fp8_models import CT, KINDS, OPT, Plain, eight_bits
from moe_models import Mixture
from torch import Tensor, nn

from nvfp4.layers.experts.module import Experts


class Mixed(Mixture):
    """A random model with NVFP4 experts and other layers, whose attention is FP8."""

    def __init__(self, name: str, mode: str, folder: Path, kind: str, **changes: Any) -> None:
        super().__init__(name, mode, folder, **changes)
        self.kind = KINDS[kind]
        self.eight: dict[str, dict[str, Tensor]] = {}
        for key, module in self.dense.named_modules():
            if isinstance(module, nn.Linear) and "self_attn" in key:
                self.eight[key] = eight_bits(module.weight.detach(), self.kind)
                if module.bias is not None:
                    self.eight[key]["bias"] = module.bias.detach().clone()
                del self.layers[key]
        assert len(self.eight) == 8

    def stored(self, format_name: str) -> dict[str, Tensor]:
        own = {f"{name}.{key}": t.clone() for name, layer in self.eight.items() for key, t in layer.items()}
        cache = {f"model.layers.{i}.self_attn.{x}_proj.{x}_scale": torch.rand(()) for i in range(2) for x in "kv"}
        return super().stored(format_name) | own | (cache if format_name == OPT else {})

    def quantization(self, format_name: str) -> dict[str, Any]:
        given = super().quantization(format_name)
        if format_name == CT:
            four = {**given["config_groups"]["group_0"], "format": "nvfp4-pack-quantized", "targets": ["re:.*mlp.*"]}
            eight = self.kind.described | {"targets": ["re:.*self_attn.*"]}
            return given | {"format": "mixed-precision", "config_groups": {"group_0": eight, "group_1": four}}
        names = [*self.layers, *(name.rpartition(".")[0] for name in self.stacks)]
        layers = dict.fromkeys(names, {"quant_algo": given["quant_algo"], "group_size": 16})
        layers |= dict.fromkeys(self.eight, {"quant_algo": self.kind.described})
        return {"quant_method": OPT, "quant_algo": "MIXED_PRECISION", "quantized_layers": layers} | {
            "kv_cache_quant_algo": "FP8"
        }

    def plain(self, activations: str | None, experts: nn.Module | None = None) -> nn.Module:
        """The model in plain torch: transformers' loop over dense experts, or another model's experts."""
        return with_plain_attention(self.dense, self.eight, activations, experts)


def with_plain_attention(
    dense: nn.Module, eight: dict[str, dict[str, Tensor]], activations: str | None, experts: nn.Module | None
) -> nn.Module:
    model = copy.deepcopy(dense)
    for name, own in eight.items():
        layer = Plain(own["weight"], own["weight_scale"], activations, own.get("input_scale"), own.get("bias"))
        model.set_submodule(name, layer)
    for name, module in () if experts is None else experts.named_modules():
        if isinstance(module, Experts):
            model.set_submodule(name, module)
    return model
