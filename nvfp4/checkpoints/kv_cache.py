"""The scales of a quantized KV cache, which nvfp4 does not have: a model keeps its checkpoint's until it is saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

GLOBAL = ("k_global_scale", "v_global_scale", "q_global_scale")
NAMES = (
    *GLOBAL,
    "k_scale",
    "v_scale",
    "kv_scale",
    "q_scale",
    "prob_scale",
    "k_zero_point",
    "v_zero_point",
    "q_zero_point",
)
REASON = "is a scale of the KV cache, which nvfp4 does not have"
SCHEME, ALGORITHM = (
    "kv_cache_scheme",
    "kv_cache_quant_algo",
)  # of config.json; of hf_quant_config.json
FP8 = {"dynamic": False, "num_bits": 8, "type": "float"}  # ModelOpt's scheme for its algorithm "FP8"
_ATTRIBUTE = "nvfp4_kv_cache"


@dataclass(frozen=True)
class KvCache:
    """The scales of a KV cache as a checkpoint stores them.

    Attributes:
        format: "compressed-tensors" or "modelopt".
        scales: by their full names.
        config: the entries of the configuration that describe them.
    """

    format: str
    scales: Mapping[str, Tensor] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)

    def renamed(self, new: Callable[[str], str]) -> KvCache:
        return replace(self, scales={new(name): t for name, t in self.scales.items()})

    def configs(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The entries of quantization_config, and of hf_quant_config.json."""
        scheme, algorithm = (self.config.get(name) for name in (SCHEME, ALGORITHM))
        if scheme is None and algorithm is not None:
            scheme = dict(FP8) if algorithm == "FP8" else algorithm
        if algorithm is None and scheme is not None:
            algorithm = "FP8" if scheme == FP8 else scheme
        return {SCHEME: scheme}, {ALGORITHM: algorithm}


def described(config: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a configuration that describe a KV cache."""
    return {name: config[name] for name in (SCHEME, ALGORITHM) if config.get(name) is not None}


def attach(model: torch.nn.Module, cache: KvCache) -> None:
    """Gives a model its checkpoint's scales, copied from the mapped file, or removes those of an earlier one."""
    scales = {name: t.clone() for name, t in cache.scales.items()}
    setattr(model, _ATTRIBUTE, replace(cache, scales=scales) if scales else None)


def of(model: torch.nn.Module) -> KvCache | None:
    return getattr(model, _ATTRIBUTE, None)
