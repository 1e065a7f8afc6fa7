"""MXFP4 by its definition, and tiny checkpoints in the layouts of its producers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tiny_models import SIZES
from torch import Tensor, nn

from nvfp4.layers.packed import PackedLinear

GROUP = 32
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
E2M1 = torch.cat((E2M1, -E2M1))
MODELOPT = {"quant_method": "modelopt", "quant_algo": "mxfp4", "ignore": ["lm_head"]}  # of ModelOpt 0.47.0
# The numbers of llm-compressor 0.14.0.1's schemes MXFP4 and MXFP4A16, without what is null.
FOUR = {"dynamic": False, "group_size": 32, "num_bits": 4, "scale_dtype": "torch.uint8", "strategy": "group"}
FOUR |= {"symmetric": True, "type": "float"}
DEEPSEEK_SIZES = {
    "vocab_size": 128,
    "hidden_size": 128,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 64,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 64,
    "o_lora_rank": 32,
    "o_groups": 2,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "index_n_heads": 4,
    "index_head_dim": 32,
    "index_topk": 8,
    "max_position_embeddings": 128,
}
DEEPSEEK = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "scale_fmt": "ue8m0",
    "weight_block_size": [128, 128],
}
GPT_OSS = {
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
    "quant_method": "mxfp4",
}


def compressed_tensors(inputs: bool = False) -> dict[str, Any]:
    group = {"format": "mxfp4-pack-quantized", "targets": ["Linear"], "weights": FOUR, "output_activations": None}
    group["input_activations"] = FOUR | {"dynamic": True} if inputs else None
    config = {"config_groups": {"group_0": group}, "format": "mxfp4-pack-quantized", "ignore": ["lm_head"]}
    return config | {"quant_method": "compressed-tensors", "quantization_status": "compressed"}


def codes_of(values: Tensor) -> Tensor:
    """The codes [..., K] of bytes [..., K/2], whose low nibble comes first."""
    return torch.stack([values & 15, values >> 4], -1).flatten(-2).long()


def definition(values: Tensor, exponents: Tensor) -> Tensor:
    """The values [..., K] in fp64 of bytes [..., K/2] and e8m0 scales [..., K/32]."""
    scales = torch.exp2(exponents.view(torch.uint8).double() - 127).repeat_interleave(GROUP, -1)
    return E2M1[codes_of(values.view(torch.uint8))] * scales


def dense(layer: PackedLinear) -> Tensor:
    """The values of an NVFP4 layer in fp64."""
    scales = layer.weight_scale.double().repeat_interleave(16, -1)
    factor = layer.weight_global_scale.double()
    return E2M1[codes_of(layer.weight)] * scales * (factor.unsqueeze(-1) if factor.ndim else factor)


def random_layer(generator: torch.Generator, *shape: int, least: int = 110, span: int = 10) -> tuple[Tensor, Tensor]:
    """Bytes [..., N, K/2] and scales [..., N, K/32] of random codes; some blocks are zeros with any scale."""
    *outer, k = shape
    values = torch.randint(0, 256, (*outer, k // 2), dtype=torch.uint8, generator=generator)
    exponents = torch.randint(least, least + span + 1, (*outer, k // GROUP), dtype=torch.uint8, generator=generator)
    empty = torch.rand(exponents.shape, generator=generator) < 0.1
    values.view(*exponents.shape, GROUP // 2)[empty] &= 0x88
    anything = torch.randint(0, 255, exponents.shape, dtype=torch.uint8, generator=generator)
    return values, torch.where(empty, anything, exponents)


def as_blocks(values: Tensor) -> Tensor:
    """Bytes [..., N, K/2] as gpt-oss has them."""
    return values.unflatten(-1, (-1, GROUP // 2)).contiguous()


def gguf_row(values: Tensor, exponents: Tensor) -> Tensor:
    """Bytes of GGUF's type 39, [..., N, K/32 * 17]: a scale, then value j in a low and j + 16 in a high nibble."""
    codes = codes_of(values).unflatten(-1, (-1, GROUP)).to(torch.uint8)
    packed = codes[..., : GROUP // 2] | codes[..., GROUP // 2 :] << 4
    return torch.cat([exponents.unsqueeze(-1), packed], -1).flatten(-2)


def quantized(
    model: Any, folder: Path, config: dict[str, Any], generator: torch.Generator, ignore: tuple[str, ...] = ("lm_head",)
) -> Any:
    """Writes a model of transformers with random MXFP4 weights, in the layout of `config`'s producer. The model gets
    their values."""
    tensors: dict[str, Tensor] = {}
    theirs = config["quant_method"] == "compressed-tensors"
    layers = {name for name, module in model.named_modules() if type(module) is torch.nn.Linear}
    for name, t in model.state_dict().items():
        module, _, local = name.rpartition(".")
        with torch.no_grad():
            if config["quant_method"] == "mxfp4" and t.ndim == 3:  # [E, K, N] in the model
                values, exponents = random_layer(generator, t.shape[0], t.shape[2], t.shape[1])
                tensors |= {f"{name}_blocks": as_blocks(values), f"{name}_scales": exponents}
                t.copy_(definition(values, exponents).transpose(1, 2))
            elif config["quant_method"] != "mxfp4" and module in layers and local == "weight" and module not in ignore:
                values, exponents = random_layer(generator, *t.shape)
                tensors |= {f"{module}.weight{'_packed' * theirs}": values, f"{module}.weight_scale": exponents}
                t.copy_(definition(values, exponents))
            else:
                tensors[name] = t.clone().contiguous()
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    content = model.config.to_dict() | {"quantization_config": config}
    (folder / "config.json").write_text(json.dumps(content))
    return model.eval()


def llama() -> Any:
    import transformers  # here: a test of gguf's files needs none

    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, architectures=["LlamaForCausalLM"]))


def gpt_oss() -> Any:
    """Also its biases are random."""
    import transformers

    sizes = SIZES | {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}
    config = transformers.GptOssConfig(**sizes, sliding_window=8, architectures=["GptOssForCausalLM"])
    model = transformers.GptOssForCausalLM(config)
    for name, p in model.named_parameters():
        if name.endswith(("bias", "sinks")):
            nn.init.normal_(p, std=0.5)
    return model


def deepseek_v4(folder: Path, generator: torch.Generator) -> Any:
    """Writes a tiny DeepSeek-V4 as it is published: attention and shared experts in FP8 blocks of 128 x 128, experts in
    MXFP4, both with e8m0 scales, by the names that transformers saves. Returns the dense model of these values."""
    import transformers

    config = transformers.DeepseekV4Config(**DEEPSEEK_SIZES, architectures=["DeepseekV4ForCausalLM"])
    transformers.DeepseekV4ForCausalLM(config).save_pretrained(folder / "dense")
    dense, tensors = {}, {}
    for name, t in load_file(folder / "dense" / "model.safetensors").items():
        module = name.removesuffix(".weight")
        dense[name] = tensors[name] = t
        if module == name or t.ndim != 2:
            continue
        if ".ffn.experts." in name:
            values, exponents = random_layer(generator, *t.shape)
            tensors |= {name: values.view(torch.int8), f"{module}.scale": exponents.view(torch.float8_e8m0fnu)}
            dense[name] = definition(values, exponents).float()
        elif ".attn.w" in name or "shared_experts" in name:
            n, k = t.shape
            values = (torch.randn(n, k, generator=generator) * 4).to(torch.float8_e4m3fn)
            exponents = torch.randint(118, 121, (-(-n // 128), -(-k // 128)), dtype=torch.uint8, generator=generator)
            tensors |= {name: values, f"{module}.scale": exponents.view(torch.float8_e8m0fnu)}
            scales = torch.exp2(exponents.float() - 127).repeat_interleave(128, 0).repeat_interleave(128, 1)
            dense[name] = values.float() * scales[:n, :k]
    save_file(dense, folder / "dense" / "model.safetensors", {"format": "pt"})
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    content = json.loads((folder / "dense" / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"expert_dtype": "fp4", "quantization_config": DEEPSEEK}))
    return transformers.DeepseekV4ForCausalLM.from_pretrained(folder / "dense", dtype=torch.float32).eval()
