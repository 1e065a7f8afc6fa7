"""Describes a module of transformers that holds all experts of a mixture: what it computes, how it stores them.

Its computation is found by trying the module's own function on random numbers, so that a class with another activation
is never taken for one that is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _api
from nvfp4.layers.experts.module import Experts
from nvfp4.layers.experts.routed import DTYPES, GATED, MAX_EXPERTS, PLAIN, RoutedExperts
from nvfp4.layers.packed import BLOCK

LIMITS = ("limit", "swiglu_limit")  # attributes of modules, and of their configurations
ALPHAS = ("alpha", "swiglu_alpha")
TRIED = 64  # numbers


@dataclass(frozen=True)
class Description:
    """What a module of experts computes, and how it stores its parameters.

    Attributes:
        experts, hidden, intermediate: E, H and I.
        activation, gated, limit, alpha: as of nvfp4.Experts.
        bias: whether the products have biases.
        transposed: whether parameters are [E, K, N].
        interleaved: whether rows of gate and up alternate.
        is_transposed: what the module says of `transposed`, or False.
    """

    experts: int
    hidden: int
    intermediate: int
    activation: str
    gated: bool
    limit: float | None
    alpha: float | None
    bias: bool
    transposed: bool
    interleaved: bool
    is_transposed: bool = False

    def make(self, device: Any, dtype: torch.dtype) -> Experts:
        made = Experts(
            self.experts,
            self.hidden,
            self.intermediate,
            self.activation,
            self.gated,
            self.bias,
            self.limit,
            self.alpha,
            device=device,
            dtype=dtype,
        )
        made.interleaved = self.interleaved
        made.transposed, made.is_transposed = self.transposed, self.is_transposed
        return made


def of_experts(experts: RoutedExperts) -> Description:
    return Description(
        experts.num_experts,
        experts.hidden_size,
        experts.intermediate_size,
        experts.activation,
        experts.gated,
        experts.limit,
        experts.alpha,
        experts.bias_dtype is not None,
        experts.transposed,
        experts.interleaved,
        experts.is_transposed,
    )


def is_mixture(module: torch.nn.Module) -> bool:
    """Whether a module holds all experts of a mixture in parameters of three dimensions, by their names."""
    first = module._parameters.get("gate_up_proj", module._parameters.get("up_proj"))
    down = module._parameters.get("down_proj")
    return first is not None and down is not None and first.ndim == down.ndim == 3


def describe(module: torch.nn.Module) -> Description | str:
    """What a module of experts computes, or why nvfp4.Experts cannot compute the same."""
    kind = type(module).__name__
    own = module._parameters
    gated = "gate_up_proj" in own
    first, down = own["gate_up_proj" if gated else "up_proj"], own["down_proj"]
    assert first is not None and down is not None
    known = {"gate_up_proj", "up_proj", "down_proj", "gate_up_proj_bias", "up_proj_bias", "down_proj_bias"}
    more = [name for name, t in (*own.items(), *module._buffers.items()) if t is not None and name not in known]
    more += [name for name, child in module._modules.items() if any(True for _ in child.parameters())]
    if more:
        return f"is a {kind} with {more[0]}, which nvfp4.Experts does not have"
    contract = hasattr(module, "is_transposed")  # of transformers' use_experts_implementation
    if not contract and kind != "Llama4TextExperts":
        return f"is a {kind}, whose computation nvfp4 does not know"
    if getattr(module, "has_post_expert_norm", False):
        return f"is a {kind} with a norm after each expert, which nvfp4.Experts does not have"
    transposed = bool(getattr(module, "is_transposed", True))
    interleaved = gated and not getattr(module, "is_concatenated", True)
    experts = first.shape[0]
    rows, hidden = (first.shape[2], first.shape[1]) if transposed else (first.shape[1], first.shape[2])
    intermediate = rows // 2 if gated else rows
    wanted = (experts, intermediate, hidden) if transposed else (experts, hidden, intermediate)
    if tuple(down.shape) != wanted or (gated and rows % 2):
        return f"is a {kind} with down_proj {list(down.shape)}; must be {list(wanted)}"
    if hidden % BLOCK or intermediate % BLOCK or not 1 <= experts <= MAX_EXPERTS:
        sizes = f"{experts} experts {hidden} x {intermediate}"
        return f"is a {kind} of {sizes}; must be multiples of {BLOCK}, at most {MAX_EXPERTS}"
    if first.dtype not in DTYPES:
        return f"is a {kind} of {first.dtype}"
    biases = [f"{name}_bias" in own for name in (("gate_up_proj" if gated else "up_proj"), "down_proj")]
    if biases[0] != biases[1]:
        return f"is a {kind} with one bias of two"
    found = activation_of(module, gated, intermediate, contract)
    if found is None:
        return f"is a {kind} with an activation that nvfp4 does not have"
    activation, limit, alpha = found
    return Description(
        experts,
        hidden,
        intermediate,
        activation,
        gated,
        limit,
        alpha,
        biases[0],
        transposed,
        interleaved,
        bool(getattr(module, "is_transposed", False)),
    )


def activation_of(
    module: Any, gated: bool, intermediate: int, contract: bool
) -> tuple[str, float | None, float | None] | None:
    """The arguments of nvfp4.gated that give what a module's own function gives on random numbers, large and small."""
    generator = torch.Generator("cpu").manual_seed(0)
    with torch.device("cpu"):  # transformers makes modules on the meta device
        x = torch.randn(TRIED, intermediate * (2 if gated else 1), generator=generator, dtype=torch.float32)
        x = x * torch.logspace(-2, 1.7, TRIED, dtype=torch.float32)[:, None]
    own: Callable[[Tensor], Tensor] | None = getattr(module, "_apply_gate", None) if contract and gated else None
    config = getattr(module, "config", None)

    def values(names: tuple[str, ...]) -> list[float | None]:
        found = [getattr(place, name, None) for place in (module, config) for name in names]
        numbers = [float(value) for value in found if isinstance(value, (int, float)) and not isinstance(value, bool)]
        return [None, *dict.fromkeys(numbers)]

    def computed() -> Tensor:
        if own is not None:
            return own(x)
        if not gated:
            return torch.as_tensor(module.act_fn(x))
        gate, up = x.chunk(2, -1)
        return torch.as_tensor(module.act_fn(gate) * up)

    try:
        with torch.no_grad(), torch.device("cpu"):
            wanted = computed().float()
    except (AttributeError, TypeError, RuntimeError):
        return None
    interleaved = gated and not getattr(module, "is_concatenated", True)
    gate, up = (x[:, ::2], x[:, 1::2]) if interleaved else x.chunk(2, -1) if gated else (x, None)
    for limit in values(LIMITS):
        for activation in GATED if gated else PLAIN:
            if limit is not None and activation not in ("silu", "swiglu"):
                continue
            for alpha in values(ALPHAS) if activation == "swiglu" else [None]:
                y = _api.gated(
                    gate.contiguous(), None if up is None else up.contiguous(), activation, limit=limit, alpha=alpha
                )
                if y.shape == wanted.shape and torch.allclose(y, wanted, rtol=1e-4, atol=1e-5):
                    return activation, limit, alpha
    return None


def matrices(module: Any, about: Description) -> tuple[list[Tensor], list[Tensor | None]]:
    """The dense parameters as [E, P, N, K] and their biases as [E, P, N], of gate and up and of down."""
    name = "gate_up_proj" if about.gated else "up_proj"
    weights, biases = [], []
    for own, parts in ((name, 2 if about.gated else 1), ("down_proj", 1)):
        weight, bias = getattr(module, own).detach(), getattr(module, f"{own}_bias", None)
        if about.transposed:
            weight = weight.transpose(1, 2)
        weights.append(divided(weight, parts, about.interleaved and parts == 2))
        biases.append(None if bias is None else divided(bias.detach(), parts, about.interleaved and parts == 2))
    return weights, biases


def divided(t: Tensor, parts: int, interleaved: bool) -> Tensor:
    """[E, P * N, ...] as [E, P, N, ...], of parts that follow one another or alternate."""
    rows = t.shape[1] // parts
    if interleaved:
        return t.unflatten(1, (rows, parts)).transpose(1, 2)
    return t.unflatten(1, (parts, rows))
