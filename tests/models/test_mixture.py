"""Every class of experts of the installed transformers: nvfp4.Experts computes the same, or says why not."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import one_in
from torch import Tensor, nn

import nvfp4
from nvfp4.layers.experts.mixture import Description, describe, is_mixture, matrices
from nvfp4.layers.experts.stack import Stack
from nvfp4.quantizing.experts import quantized

transformers = pytest.importorskip("transformers")

E, H, INNER, TOKENS, K = 4, 32, 16, 7, 2
BOUND = 64 * 2.0**-24 * 4  # sums of 32 and 16 products, and up to four functions of them
FILES = sorted((Path(transformers.__file__).parent / "models").glob("*/modeling_*.py"))
CLASS = re.compile(r"^@use_experts_implementation(?:\(.*\))?\nclass (\w+)\(nn\.Module\):", re.MULTILINE)
CLASSES = [(file, name) for file in FILES for name in CLASS.findall(file.read_text(encoding="utf-8"))]
REASONS = {
    "MuseSpark": "post_expert_norm, which nvfp4.Experts does not have",
    "Inkling2": "an activation that nvfp4 does not have",
}


class Sizes:
    """The configuration of any model: transformers' classes ask it for sizes by many names."""

    hidden_size, moe_latent_size = H, None
    hidden_act, hidden_activation, mlp_hidden_act = "silu", "gelu_pytorch_tanh", "relu2"
    swiglu_limit, swiglu_alpha, _experts_implementation = 3.0, 1.5, "eager"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return INNER if "intermediate" in name else E if "expert" in name else 2


def made(file: Path, name: str) -> Any:
    module = importlib.import_module(f"transformers.models.{file.parent.name}.{file.stem}")
    experts = getattr(module, name)(Sizes())
    for parameter in experts.parameters():
        nn.init.normal_(parameter, std=0.5)
    return experts


def dequantized(stack: Stack) -> Tensor:
    get, (experts, parts, _, _) = stack.matrices(), stack.shape

    def one(e: int, p: int) -> Tensor:
        data, scale = get(e, p)
        return nvfp4.dequantize(data, nvfp4.swizzle(scale), global_scale=stack.weight_global_scale[e, p])

    return torch.stack([torch.stack([one(e, p) for p in range(parts)]) for e in range(experts)])


def test_there_are_classes() -> None:
    assert len(CLASSES) > 50 and {"Qwen3MoeExperts", "GptOssExperts"} <= {name for _, name in CLASSES}


@pytest.mark.parametrize(
    ("file", "name"), one_in(5, CLASSES), ids=lambda value: value if isinstance(value, str) else ""
)
def test_class_of_experts(file: Path, name: str, generator: torch.Generator) -> None:
    torch.manual_seed(generator.initial_seed() % 2**63)
    own = made(file, name)
    assert is_mixture(own)
    about = describe(own)
    if isinstance(about, str):
        assert any(name.startswith(start) and about.endswith(reason) for start, reason in REASONS.items()), about
        return
    assert isinstance(about, Description)
    assert (about.experts, about.hidden, about.intermediate) == (E, H, INNER)
    experts, lost = quantized(own, about, one_scale=about.transposed, block_scale="amax6")
    weights, _ = matrices(own, about)  # views of the parameters
    total = difference = 0.0
    with torch.no_grad():
        for weight, stack in zip(weights, (experts.gate_up, experts.down)):
            values = dequantized(stack)
            total, difference = (
                total + float(weight.square().sum()),
                difference + float((weight - values).square().sum()),
            )
            weight.copy_(values)
        assert abs(lost - (difference / total) ** 0.5) < 1e-5 and 0.05 < lost < 0.15
        hidden = torch.randn(TOKENS, H, generator=generator) * 2
        index = torch.stack([torch.randperm(E, generator=generator)[:K] for _ in range(TOKENS)])
        factors = torch.rand(TOKENS, K, generator=generator)
        y, wanted = experts(hidden, index, factors), own(hidden, index, factors)
    assert y.shape == wanted.shape and float((y - wanted).norm() / wanted.norm()) < BOUND
    one = [scale for stack in (experts.gate_up, experts.down) for scale in stack.weight_global_scale]
    assert all(bool((scale == scale[0]).all()) for scale in one)  # of gate and up
