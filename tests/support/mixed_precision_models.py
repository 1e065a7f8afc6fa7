"""Models with NVFP4 experts beside FP8 attention or FP8 experts, and the same models in plain torch."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import torch
from fp8_models import CT, KINDS, OPT, Plain, eight_bits
from moe_models import EXPERT, Mixture
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

import nvfp4
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
        if isinstance(module, (Experts, nvfp4.Fp8Experts)):
            model.set_submodule(name, module)
    return model


ROLES = {"gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down", "w2": "down"}


class WithFp8Experts(Mixture):
    """A random model whose first mixture has FP8 experts. Everything else is NVFP4."""

    def __init__(self, name: str, mode: str, folder: Path, kind: str) -> None:
        inner = "intermediate_size" if name == "mixtral" else "moe_intermediate_size"
        super().__init__(name, mode, folder, **{inner: 64})  # whole groups of MXFP8
        self.kind = KINDS[kind]
        names = [key for key in self.layers if EXPERT.fullmatch(f"{key}.weight")]
        first = min(key.partition(".experts.")[0] for key in names)
        self.eight = {
            key: eight_bits(self.values(self.layers.pop(key)), self.kind)
            for key in names
            if key.startswith(f"{first}.")
        }
        for key, own in self.eight.items():
            scale = own["weight_scale"]
            layer = Plain(own["weight"], scale, None, None)
            self.tensors[f"{key}.weight"] = layer.values * layer.scale.reshape(-1, 1) if layer.rows else layer.values

    def stored(self, format_name: str) -> dict[str, Tensor]:
        own = super().stored(format_name)
        for key, tensors in self.eight.items():
            del own[f"{key}.weight"]
            own |= {f"{key}.{local}": t.clone() for local, t in tensors.items()}
        return own

    def quantization(self, format_name: str) -> dict[str, Any]:
        given = super().quantization(format_name)
        container = re.escape(next(iter(self.eight)).partition(".experts.")[0])
        if format_name == CT:
            four = {**given["config_groups"]["group_0"], "format": "nvfp4-pack-quantized"}
            eight = self.kind.described | {"targets": [rf"re:{container}\.experts\..*"]}
            return given | {"format": "mixed-precision", "config_groups": {"group_0": eight, "group_1": four}}
        layers = dict.fromkeys(self.layers, {"quant_algo": given["quant_algo"], "group_size": 16})
        layers |= dict.fromkeys(self.eight, {"quant_algo": self.kind.described})
        return {"quant_method": OPT, "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}

    def plain(self, activations: str | None, loaded: nn.Module | None = None) -> nn.Module:
        """The model in plain torch: transformers' loop over dense experts. Or another model, with a loop over layers
        that quantize their inputs in place of its FP8 experts."""
        if loaded is None:
            dense = self.folder / "with fp8"
            self.dense.save_pretrained(dense)
            save_file({key: t.contiguous() for key, t in self.tensors.items()}, dense / "model.safetensors")
            return AutoModelForCausalLM.from_pretrained(
                dense, dtype=torch.float32, experts_implementation="eager"
            ).eval()
        model = copy.deepcopy(loaded)
        for name, module in model.named_modules():
            if isinstance(module, nvfp4.Fp8Experts):
                model.set_submodule(name, PlainExperts(module, self.eight, activations))
        return model


class PlainExperts(nn.Module):
    """FP8 experts by a loop over experts and rows."""

    def __init__(self, like: nvfp4.Fp8Experts, eight: dict[str, dict[str, Tensor]], activations: str | None) -> None:
        super().__init__()
        self.like = like
        self.layers: dict[tuple[int, str], Plain] = {}
        for key, own in eight.items():
            match = EXPERT.fullmatch(f"{key}.weight")
            assert match is not None
            layer = Plain(own["weight"], own["weight_scale"], activations, own.get("input_scale"))
            self.layers[int(match[2]), ROLES[match[3]]] = layer

    def forward(self, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        each = hidden.new_zeros(*index.shape, hidden.shape[-1])
        for e in range(self.like.num_experts):
            tokens, slots = (index == e).nonzero(as_tuple=True)
            if len(tokens):
                x = hidden[tokens]
                up = self.layers[e, "up"](x)
                gate, up = (self.layers[e, "gate"](x), up) if self.like.gated else (up, None)
                h = nvfp4.gated(gate, up, self.like.activation, limit=self.like.limit, alpha=self.like.alpha)
                each[tokens, slots] = self.layers[e, "down"](h)
        result = torch.zeros_like(hidden)
        for k in range(index.shape[1]):
            result = result + each[:, k] * weights[:, k : k + 1]
        return result
