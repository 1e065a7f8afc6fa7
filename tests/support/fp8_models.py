"""Random models whose checkpoints hold FP8 layers beside NVFP4 ones, and the same models in plain torch."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch as safetensors
import torch
import transformers
from fp8_definition import BLOCK, GROUP, bound_of, defined, quantized, weight_of
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

import nvfp4
import nvfp4.transformers
from nvfp4.checkpoints import compressed_tensors, modelopt
from nvfp4.checkpoints.inspect import inspect
from nvfp4.layers.fp8 import FP8
from nvfp4.layers.packed import PackedLinear

transformers.utils.logging.disable_progress_bar()

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "head_dim": 64,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
CONFIGS = {  # the second has biases of q, k and v, the third norms of q and k
    "llama": transformers.LlamaConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
}
IDS = (torch.arange(24) * 37 % 128).view(2, 12)
FOUR = {"num_bits": 4, "type": "float", "group_size": 16}
EIGHT = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False, "strategy": "tensor"}
Q = "model.layers.0.self_attn.q_proj"


@dataclass(frozen=True)
class Kind:
    """A way to store FP8 layers.

    Attributes:
        format: whose it is.
        activations: which part of the input shares a scale; "static": one is stored.
        scales: which part of the weight shares a scale.
        described: quant_algo of the layers, or a group of compressed-tensors.
    """

    format: str
    activations: str | None
    scales: str
    described: Any
    scale_name: str = "weight_scale"


def group(inputs: dict[str, Any] | None, **weights: Any) -> dict[str, Any]:
    return {"weights": EIGHT | weights, "input_activations": inputs, "format": "float-quantized"}


TOKEN, BLOCKS = {"dynamic": True, "strategy": "token"}, {"dynamic": True, "strategy": "group", "group_size": 128}
MX = {"strategy": "group", "group_size": GROUP, "scale_dtype": "torch.uint8"}
CT, OPT = "compressed-tensors", "modelopt"
KINDS = {
    "modelopt FP8": Kind(OPT, "static", "tensor", "FP8"),
    "modelopt per token": Kind(OPT, "token", "channel", "FP8_PER_CHANNEL_PER_TOKEN"),
    "modelopt blocks": Kind(OPT, None, "block", "fp8_pb_wo"),
    "ct static": Kind(CT, "static", "tensor", group(EIGHT)),
    "ct dynamic": Kind(CT, "tensor", "channel", group(EIGHT | {"dynamic": True}, strategy="channel")),
    "ct per token": Kind(CT, "token", "channel", group(EIGHT | TOKEN, strategy="channel")),
    "ct blocks": Kind(CT, "block", "block", group(EIGHT | BLOCKS, strategy="block", block_structure=[128, 128])),
    "ct weights alone": Kind(CT, None, "channel", group(None, strategy="channel")),
    "modelopt MXFP8": Kind(OPT, None, "group", "MXFP8"),
    "ct MXFP8": Kind(CT, None, "group", group(EIGHT | MX | {"dynamic": True}, **MX)),
    "ct MXFP8 weights alone": Kind(CT, None, "group", group(None, **MX)),
}


class Plain(nn.Module):
    """An FP8 layer in plain torch, which multiplies dequantized values."""

    def __init__(
        self,
        weight: Tensor,
        scale: Tensor,
        activations: str | None,
        given: Tensor | None,
        bias: Tensor | None = None,
    ) -> None:
        super().__init__()
        n, k = weight.shape
        self.rows = scale.numel() in (1, n)
        if scale.dtype == torch.uint8:
            self.values = weight_of(weight, 2.0 ** (scale.double() - 127)).float()
        else:
            each = scale.float().reshape(-1, 1) if self.rows else scale.float().reshape(-(-n // BLOCK), -(-k // BLOCK))
            self.values = weight.float() if self.rows else weight.float() * expanded(each, n, k)
            self.scale = each
        self.activations = activations
        self.bias = bias
        self.given = None if given is None else given.float().reshape(())

    def forward(self, x: Tensor) -> Tensor:
        rows, scale = x.reshape(-1, x.shape[-1]).float(), torch.ones(())
        if self.activations is not None:
            kind = "tensor" if self.activations == "static" else self.activations
            q, scale = quantized(rows, kind, self.given)
            rows = q.float()
            if kind == "block":
                rows = rows * scale.repeat_interleave(BLOCK, 1)[:, : rows.shape[1]]
                scale = torch.ones(())
        y = torch.mm(rows, self.values.t()) * scale
        if self.rows:
            y = y * self.scale.flatten()
        if self.bias is not None:
            y = y + self.bias.float()
        return y.reshape(*x.shape[:-1], -1).to(x.dtype)


class Scaled(nn.Module):
    """A layer whose input is multiplied by a pre_quant_scale."""

    def __init__(self, scale: Tensor, layer: nn.Module) -> None:
        super().__init__()
        self.scale, self.layer = scale, layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * self.scale.to(x.dtype))


def scales_of(weight: Tensor, scales: str) -> Tensor:
    """The largest absolute value of each part over 448."""
    if scales == "tensor":
        return weight.abs().amax() / 448
    if scales == "channel":
        return weight.abs().amax(-1) / 448
    if scales == "group":  # the least powers of two with which nothing is clipped
        return 2.0 ** (weight.unflatten(-1, (-1, GROUP)).abs().amax(-1) / 448).log2().ceil()
    pieces = [[piece.abs().amax() for piece in rows.split(BLOCK, 1)] for rows in weight.split(BLOCK)]
    return torch.tensor(pieces) / 448


def expanded(scale: Tensor, n: int, k: int) -> Tensor:
    if scale.ndim < 2:
        return scale.reshape(-1, 1)
    if scale.shape == (n, k // GROUP):
        return scale.repeat_interleave(GROUP, 1)
    if scale.shape == (n, 1):
        return scale
    return scale.repeat_interleave(BLOCK, 0)[:n].repeat_interleave(BLOCK, 1)[:, :k]


def eight_bits(weight: Tensor, kind: Kind) -> dict[str, Tensor]:
    """A layer's tensors as the producer stores them: shapes and dtypes of its scales."""
    scale = scales_of(weight, kind.scales)
    if kind.format == CT:
        scale = scale.bfloat16().float()
    n, k = weight.shape
    tensors = {"weight": (weight / expanded(scale, n, k)).clamp(-448, 448).to(FP8)}
    if kind.scales == "group":
        scale = (scale.log2() + 127).to(torch.uint8)
    elif kind.format == CT:
        scale = scale.reshape({"tensor": (1,), "channel": (n, 1), "block": scale.shape}[kind.scales]).bfloat16()
    elif kind.scales == "block" and kind.scale_name == "weight_scale":
        scale = scale[:, None, :, None]
    tensors[kind.scale_name] = scale.contiguous()
    if kind.activations == "static":
        given = torch.rand(()) * 0.01 + 0.01
        tensors["input_scale"] = given.reshape(1).bfloat16() if kind.format == CT else given
    return tensors


def four_bits(linear: nn.Linear, w4a4: bool, scale: Tensor | None = None) -> PackedLinear:
    """Global scales that are powers of two: compressed-tensors' divisors are exact then."""
    packed = nvfp4.Linear.from_linear(linear, "nvfp4" if w4a4 else None).packed()
    given = torch.tensor(2.0**-9) if w4a4 else None
    power = 2.0 ** torch.tensor(float(packed.weight_global_scale)).log2().round()
    return PackedLinear(packed.weight, packed.weight_scale, power, given, None, packed.activations, scale)


def random_model(architecture: str, dtype: torch.dtype) -> Any:
    config = CONFIGS[architecture](**SIZES)
    config.architectures = [f"{architecture.capitalize()}ForCausalLM"]
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


class Made:
    """A random model, its layers in both formats, and the folder of its checkpoint."""

    def __init__(self, folder: Path, kind: Kind, architecture: str = "llama", w4a4: bool = True) -> None:
        self.folder, self.kind, self.w4a4 = folder, kind, w4a4
        self.base = random_model(architecture, torch.float32)
        self.config = self.base.config
        self.eight: dict[str, dict[str, Tensor]] = {}
        self.four: dict[str, PackedLinear] = {}
        for name, module in self.base.named_modules():
            if isinstance(module, nn.Linear) and "self_attn" in name:
                self.eight[name] = eight_bits(module.weight.detach(), kind)
                if module.bias is not None:
                    self.eight[name]["bias"] = torch.randn(module.out_features)
            elif isinstance(module, nn.Linear) and "mlp" in name:
                self.four[name] = four_bits(module, w4a4)

    def tensors(self) -> dict[str, Tensor]:
        format = modelopt if self.kind.format == OPT else compressed_tensors
        layers = {name: format.write(packed) for name, packed in self.four.items()} | self.eight
        dense = {name: t for name, t in self.base.state_dict().items() if name.rpartition(".")[0] not in layers}
        own = {f"{name}.{key}": t for name, tensors in layers.items() for key, t in tensors.items()}
        return {name: t.clone() for name, t in (dense | own).items()}

    def quantization(self) -> dict[str, Any]:
        if self.kind.format == OPT:
            algorithm = "NVFP4" if self.w4a4 else "W4A16_NVFP4"
            layers = {name: {"quant_algo": algorithm, "group_size": 16} for name in self.four}
            layers |= {name: {"quant_algo": self.kind.described} for name in self.eight}
            return {"quant_method": OPT, "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
        inputs = FOUR | {"dynamic": "local"} if self.w4a4 else None
        four = {"weights": FOUR, "input_activations": inputs, "format": "nvfp4-pack-quantized"}
        groups = {"group_0": self.kind.described | {"targets": ["re:.*self_attn.*"]}}
        groups["group_1"] = four | {"targets": ["re:.*mlp.*"]}
        return {"quant_method": CT, "format": "mixed-precision", "ignore": ["lm_head"], "config_groups": groups}

    def write(self, tensors: dict[str, Tensor] | None = None, **changes: Any) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        safetensors.save_file(self.tensors() if tensors is None else tensors, self.folder / "model.safetensors")
        config = self.config.to_dict() | {"quantization_config": self.quantization() | changes}
        (self.folder / "config.json").write_text(json.dumps(config))
        return self.folder

    def plain(self) -> nn.Module:
        """The model in plain torch, with nvfp4.Linear made by hand in place of the NVFP4 layers."""
        return plain(self.base, self.eight, self.four, self.kind.activations)


def plain(
    base: nn.Module, eight: dict[str, dict[str, Tensor]], four: dict[str, PackedLinear], activations: str | None
) -> nn.Module:
    model = copy.deepcopy(base)
    for name, own in eight.items():
        (scale,) = (t for key, t in own.items() if key.startswith("weight_scale"))
        model.set_submodule(name, Plain(own["weight"], scale, activations, own.get("input_scale"), own.get("bias")))
    for name, packed in four.items():
        scale = packed.pre_quant_scale
        layer: nn.Module = nvfp4.Linear.from_packed(PackedLinear(*list(vars(packed).values())[:6]))
        model.set_submodule(name, layer if scale is None else Scaled(scale, layer))
    return model


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(IDS).logits


def generated(model: Any) -> Tensor:
    """32 greedy tokens after each of two prompts."""
    with torch.no_grad():
        return model.generate(IDS, max_new_tokens=32, min_new_tokens=32, do_sample=False)


def load(folder: Path, **options: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, **options)


def stored(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in folder.glob("*.safetensors"):
        tensors |= safetensors.load_file(file)
    return tensors


def raw(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name: (t.dtype, t.shape, bytes(t.reshape(-1).view(torch.uint8).numpy())) for name, t in tensors.items()}


def eights(model: nn.Module) -> dict[str, nvfp4.Fp8Linear]:
    return {name: m for name, m in model.named_modules() if type(m) is nvfp4.Fp8Linear}


def check_layers(model: nn.Module) -> None:
    """Each FP8 layer's result for the input that it has in the model, against the definition in fp64."""
    seen = []

    def hook(layer: nvfp4.Fp8Linear, inputs: tuple[Tensor], y: Tensor) -> None:
        x = inputs[0].reshape(-1, layer.in_features)
        off = (y.reshape(-1, layer.out_features).double() - defined(layer, x)).abs()
        seen.append(bool((off <= bound_of(layer, x)).all()))

    handles = [layer.register_forward_hook(hook) for layer in eights(model).values()]
    logits(model)
    for handle in handles:
        handle.remove()
    assert len(seen) == 8 and all(seen)


def modes(folder: Path) -> dict[str, str]:
    found = inspect(folder)
    assert not found.damaged and not found.skipped
    return {layer.name: layer.mode for layer in found.all_layers}
