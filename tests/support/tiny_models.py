"""Random models of transformers, small enough for a test: arguments of its configurations, and an input."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 64,
}
IDS = (torch.arange(24) * 37 % SIZES["vocab_size"]).view(2, 12)


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model(IDS).logits
