"""Tiny models of transformers with experts, and their checkpoints in the layouts of producers."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

import nvfp4
from nvfp4.checkpoints import compressed_tensors, modelopt
from nvfp4.layers.packed import PackedLinear

FORMATS = {"modelopt": modelopt, "compressed-tensors": compressed_tensors}
E, HIDDEN, INNER, VOCABULARY = 6, 64, 48, 128
IDS = (torch.arange(24) * 37 % VOCABULARY).view(2, 12)
COMMON = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
MODELS: dict[str, Callable[[], Any]] = {
    "qwen3-moe": lambda: transformers.Qwen3MoeConfig(
        **COMMON,
        head_dim=16,
        intermediate_size=96,
        num_experts=E,
        num_experts_per_tok=2,
        moe_intermediate_size=INNER,
        norm_topk_prob=True,
    ),
    "mixtral": lambda: transformers.MixtralConfig(
        **COMMON, intermediate_size=INNER, num_local_experts=E, num_experts_per_tok=2
    ),
    "deepseek-v3": lambda: transformers.DeepseekV3Config(
        **COMMON | {"num_key_value_heads": 4},
        intermediate_size=96,
        moe_intermediate_size=INNER,
        n_routed_experts=E,
        num_experts_per_tok=2,
        n_shared_experts=1,
        n_group=2,
        topk_group=2,
        first_k_dense_replace=1,
        q_lora_rank=32,
        kv_lora_rank=32,
        qk_rope_head_dim=16,
        qk_nope_head_dim=16,
        v_head_dim=16,
    ),
    "gpt-oss": lambda: transformers.GptOssConfig(
        **COMMON,
        head_dim=16,
        intermediate_size=INNER,
        num_local_experts=E,
        num_experts_per_tok=2,
        sliding_window=8,
    ),
    "nemotron-h": lambda: transformers.NemotronHConfig(
        **{key: value for key, value in COMMON.items() if key != "num_hidden_layers"},
        layers_block_type=["attention", "moe"],
        head_dim=16,
        intermediate_size=96,
        n_routed_experts=E,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        moe_intermediate_size=INNER,
        moe_shared_expert_intermediate_size=96,
    ),
    "llama-4": lambda: transformers.Llama4TextConfig(
        **COMMON,
        head_dim=16,
        intermediate_size=INNER,
        intermediate_size_mlp=96,
        num_local_experts=E,
        num_experts_per_tok=1,
        interleave_moe_layer_step=1,
    ),
}
STACKED = ("gpt-oss", "llama-4")  # whose producers keep experts in one tensor, with K before N
# Layers of experts by their names in files; routers and shared experts have other names.
EXPERT = re.compile(r"(.*\bexperts)\.(\d+)\.(\w+)\.weight")


class Mixture:
    """A random model, its layers as NVFP4, and the model with their dequantized values."""

    def __init__(self, name: str, mode: str, folder: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> None:
        self.name, self.mode, self.folder = name, mode, folder
        self.config = MODELS[name]()
        for key, value in changes.items():
            setattr(self.config, key, value)
        self.config._experts_implementation = "eager"
        self.dense = AutoModelForCausalLM.from_config(self.config, dtype=dtype).eval()
        with torch.no_grad():
            for key, t in self.dense.named_parameters():
                if t.ndim > 1 or key.endswith("bias"):
                    t.normal_(std=0.3 if "experts" in key else 0.1)
        self.dense.save_pretrained(folder / "dense")
        self.tensors = load_file(folder / "dense" / "model.safetensors")
        self.layers: dict[str, PackedLinear] = {}  # experts and linear layers, as they are in files
        self.stacks: dict[str, list[PackedLinear]] = {}
        linear = {
            key.partition(".")[2] for key, module in self.dense.named_modules() if type(module) is nn.Linear
        }  # without "model.", which may have another name in files
        for key, t in list(self.tensors.items()):
            module = key.removesuffix(".weight")
            if EXPERT.fullmatch(key) or (t.ndim == 2 and module.partition(".")[2] in linear - {""}):
                self.layers[module] = self.packed(t, self.tensors.get(f"{module}.bias"))
                self.tensors[key] = self.values(self.layers[module])
            elif t.ndim == 3 and "experts." in key:
                scale = self.packed(t.flatten(0, 1).transpose(0, 1)).weight_global_scale
                self.stacks[key] = [self.packed(one.transpose(0, 1), scale=scale) for one in t]
                self.tensors[key] = torch.stack([self.values(one).transpose(0, 1) for one in self.stacks[key]])
        save_file(self.tensors, folder / "dense" / "model.safetensors", {"format": "pt"})
        self.dense = self.reference(dtype)
        self.mixtures = sum(1 for key, _ in self.dense.named_modules() if key.endswith(".experts"))

    def reference(self, dtype: torch.dtype) -> Any:
        """transformers' own loop over dense experts."""
        return AutoModelForCausalLM.from_pretrained(
            self.folder / "dense", dtype=dtype, experts_implementation="eager"
        ).eval()

    def packed(self, weight: Tensor, bias: Tensor | None = None, scale: Tensor | None = None) -> PackedLinear:
        """Global scales are no powers of two, and stay equal as divisors."""
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        linear.weight = nn.Parameter(weight.float())
        packed = nvfp4.Linear.from_linear(linear, None).packed()
        data, own = packed.weight, packed.weight_scale
        chosen = packed.weight_global_scale if scale is None else scale
        chosen = chosen.reciprocal().reciprocal()
        if scale is not None:
            data, own = nvfp4.quantize(weight.float().contiguous(), global_scale=chosen, scale_layout="linear")
        given = torch.tensor(600.0 + weight.shape[0]).reciprocal() if self.mode == "W4A4" else None
        return PackedLinear(data, own, chosen, given, bias, "nvfp4" if given is not None else None)

    @staticmethod
    def values(packed: PackedLinear) -> Tensor:
        scale = nvfp4.swizzle(packed.weight_scale)
        return nvfp4.dequantize(packed.weight, scale, global_scale=packed.weight_global_scale)

    def stored(self, format_name: str) -> dict[str, Tensor]:
        """The tensors of a producer's file."""
        result = {key: t.clone() for key, t in self.tensors.items()}
        for name, packed in self.layers.items():
            for key in ("weight", "bias"):
                result.pop(f"{name}.{key}", None)
            result |= {f"{name}.{key}": t.clone() for key, t in FORMATS[format_name].write(packed).items()}
        for name, packed in self.stacks.items():
            del result[name]
            written = [FORMATS[format_name].write(one) for one in packed]
            for key, t in written[0].items():
                end = f"_{key}" if key != "weight" else ""
                if t.ndim == 2:
                    t = torch.stack([one[key].view(torch.uint8).transpose(0, 1) for one in written]).view(t.dtype)
                result[name + end] = t.contiguous().clone()
        return result

    def write(self, folder: Path, format_name: str, tensors: dict[str, Tensor] | None = None, **changes: Any) -> Path:
        folder.mkdir(exist_ok=True, parents=True)
        save_file(self.stored(format_name) if tensors is None else tensors, folder / "model.safetensors")
        config = json.loads((self.folder / "dense" / "config.json").read_text())
        config["quantization_config"] = self.quantization(format_name) | changes
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def quantization(self, format_name: str) -> dict[str, Any]:
        four = {"num_bits": 4, "type": "float", "group_size": 16}
        if format_name != "modelopt":
            four |= {"strategy": "tensor_group", "symmetric": True}
        ignore = [
            "lm_head",
            *{key.removesuffix(".weight") for key in self.tensors if re.search(r"(gate|router)\.weight$", key)},
        ]
        inputs = None if self.mode == "W4A16" else four | {"dynamic": "local" if format_name != "modelopt" else False}
        groups = {"group_0": {"targets": ["Linear"], "weights": four, "input_activations": inputs}}
        config = {"quant_method": format_name, "config_groups": groups, "ignore": ignore}
        if format_name == "modelopt":
            config |= {"quant_algo": "NVFP4" if self.mode == "W4A4" else "W4A16_NVFP4"}
        return config

    def from_config(self) -> Any:
        config = copy.deepcopy(self.config)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def content(folder: Path) -> dict[str, tuple[torch.dtype, tuple[int, ...], bytes]]:
    files = [load_file(file) for file in folder.glob("*.safetensors")]
    return {
        name: (t.dtype, tuple(t.shape), t.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        for file in files
        for name, t in file.items()
    }


def other_tensors() -> dict[str, Tensor]:
    """The tensors of a norm beside experts."""
    return {"norm.weight": torch.ones(8), "norm.bias": torch.zeros(8)}
