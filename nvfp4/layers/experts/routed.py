"""The base of nvfp4.Experts and nvfp4.Fp8Experts: the way of tokens to experts, and the activation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, SupportsIndex, TypeAlias

import torch
from torch import Tensor

from nvfp4 import _C, _api
from nvfp4.layers.checks import check_strided, check_type, short
from nvfp4.layers.packed import BLOCK

GATED, PLAIN = ("silu", "gelu_tanh", "swiglu"), ("silu", "gelu_tanh", "relu2")  # activations, with and without a gate
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_EXPERTS = 1024  # experts of one call of grouped_gemm

Factors: TypeAlias = tuple[Tensor | None, ...]  # of the adapters of gate and up, and of down: two of each


class RoutedExperts(torch.nn.Module):
    """The experts of a mixture. A class of them has `_run`, which computes rows that are routed to their experts.

    Args:
        num_experts, hidden_size, intermediate_size, activation, gated, limit, alpha, apply_router_weight_on_input: as
            of nvfp4.Experts.

    Attributes:
        interleaved: whether rows of gate and up alternate in a checkpoint's stack.
        transposed: whether the parameters of the module of transformers are [E, K, N].
        is_transposed: what that module says about it, which PEFT asks.
        naming: nvfp4.checkpoints.experts.Naming of the checkpoint, for saving; None: there was none.
    """

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        activation: str,
        gated: bool,
        limit: float | None,
        alpha: float | None,
        apply_router_weight_on_input: bool,
    ) -> None:
        super().__init__()
        sizes = {"num_experts": num_experts, "hidden_size": hidden_size, "intermediate_size": intermediate_size}
        for name, size in sizes.items():
            check_type(name, size, SupportsIndex, "an integer")
            if name == "num_experts" and not 1 <= size <= MAX_EXPERTS:
                raise _C.Error(f"{name}: is {size}; must be 1 to {MAX_EXPERTS}")
            if name != "num_experts" and (size <= 0 or size % BLOCK):
                raise _C.Error(f"{name}: is {size}; must be a positive multiple of {BLOCK}")
        allowed = GATED if gated else PLAIN
        if activation not in allowed:
            raise _C.Error(
                f"activation: is {activation!r} {'with' if gated else 'without'} a gate; must be "
                f"{', '.join(map(repr, allowed))}"
            )
        # gated's rules of limit and alpha, by the names that they have here.
        nothing = torch.empty(0, BLOCK, device="cpu", dtype=torch.float32)
        _api.gated(nothing, nothing if gated else None, activation, limit=limit, alpha=alpha)
        self.num_experts, self.hidden_size, self.intermediate_size = num_experts, hidden_size, intermediate_size
        self.activation, self.gated, self.limit, self.alpha = activation, gated, limit, alpha
        self.apply_router_weight_on_input = apply_router_weight_on_input
        self.interleaved = self.transposed = self.is_transposed = False
        self.naming: Any = None

    @property
    def bias_dtype(self) -> torch.dtype | None:
        """The dtype of the biases; None: there are none."""
        raise NotImplementedError

    def _run(
        self, x: Tensor, rows: Tensor, ends: Tensor, places: Tensor, weights: Tensor | None, factors: Factors
    ) -> Tensor:
        """The sums over the experts of each token, [tokens, H]; rows, ends and places are those of nvfp4.moe_route."""
        raise NotImplementedError

    def _get_name(self) -> str:
        return f"nvfp4.{type(self).__name__}"  # in the repr of a model, beside transformers' modules

    # ---- the way to the experts ----

    def _routed(
        self,
        hidden: Tensor,
        top_k_index: Tensor | None,
        top_k_weights: Tensor | None,
        expert_map: Tensor | None,
        factors: Factors,
    ) -> Tensor:
        x = self._checked(hidden).reshape(-1, self.hidden_size)
        if top_k_index is None and top_k_weights is None:
            return self._sorted(x, factors).reshape(hidden.shape)
        index, weights = self._routing(x, top_k_index, top_k_weights)
        if x.shape[0] == 0 or index.shape[1] == 0:
            return x.new_zeros(hidden.shape)
        if self.apply_router_weight_on_input:
            # Each choice of an expert has an input of its own.
            scaled = (x.unsqueeze(1).float() * weights.unsqueeze(2).float()).to(x.dtype).reshape(-1, x.shape[1])
            rows, ends, places = _api.moe_route(index.reshape(-1, 1), self.num_experts, expert_map)
            places = places.reshape(index.shape)
            return self._run(scaled, rows, ends, places, None, factors).reshape(hidden.shape)
        rows, ends, places = _api.moe_route(index, self.num_experts, expert_map)
        return self._run(x, rows, ends, places, weights, factors).reshape(hidden.shape)

    def _checked(self, hidden: Tensor) -> Tensor:
        """The input in the dtype that the module computes in."""
        check_type("hidden", hidden, Tensor, "a torch.Tensor")
        check_strided("hidden", hidden)
        if hidden.ndim == 0 or hidden.shape[-1] != self.hidden_size:
            raise _C.Error(
                f"hidden: shape is {list(hidden.shape)}; the last dimension must be hidden_size = {self.hidden_size}"
            )
        if hidden.dtype not in DTYPES:
            raise _C.Error(f"hidden: dtype is {short(hidden.dtype)}; must be float16, bfloat16 or float32")
        if not hidden.is_meta and torch.is_autocast_enabled(hidden.device.type):
            hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
        return hidden

    def _routing(self, x: Tensor, index: Tensor | None, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """Index and weights as [tokens, k]."""
        for name, t in (("top_k_index", index), ("top_k_weights", weights)):
            check_type(name, t, Tensor, "a torch.Tensor")
            check_strided(name, t)
        assert index is not None and weights is not None
        if index.dtype not in (torch.int32, torch.int64):
            raise _C.Error(f"top_k_index: dtype is {short(index.dtype)}; must be int32 or int64")
        if weights.dtype not in DTYPES:
            raise _C.Error(f"top_k_weights: dtype is {short(weights.dtype)}; must be float16, bfloat16 or float32")
        if weights.shape != index.shape:
            raise _C.Error(
                f"top_k_weights: shape is {list(weights.shape)}; must be that of top_k_index: {list(index.shape)}"
            )
        tokens = 1
        for size in index.shape[:-1]:
            tokens *= size
        if index.ndim == 0 or tokens != x.shape[0]:
            raise _C.Error(f"top_k_index: shape is {list(index.shape)}; must be [{x.shape[0]}, k] for these tokens")
        return index.reshape(tokens, index.shape[-1]), weights.reshape(tokens, index.shape[-1])

    def _sorted(self, x: Tensor, factors: Factors) -> Tensor:
        """Rows in the order of their experts. A row of zeros, by which Llama-4 stands for a token that does not go to
        an expert, gives zeros without a bias."""
        experts = torch.arange(self.num_experts, device=x.device, dtype=torch.int32)
        if x.shape[0] % self.num_experts:
            raise _C.Error(f"hidden: has {x.shape[0]} rows; must be a multiple of num_experts = {self.num_experts}")
        if x.shape[0] == 0:
            return torch.zeros_like(x)
        index = experts.repeat_interleave(x.shape[0] // self.num_experts)
        if self.bias_dtype is None:
            index = torch.where((x != 0).any(1), index, -1)
        rows, ends, places = _api.moe_route(index.unsqueeze(1), self.num_experts)
        return self._run(x, rows, ends, places, None, factors)

    # ---- the activation ----

    def _hidden(self, inner: Tensor) -> Tensor:
        gate, up = inner.split(self.intermediate_size, 1) if self.gated else (inner, None)
        return _api.gated(gate, up, self.activation, limit=self.limit, alpha=self.alpha, out_dtype=inner.dtype)

    def _activated(self, inner: Tensor) -> Tensor:
        """_hidden in torch, in fp32, for gradients."""
        gate, up = inner.split(self.intermediate_size, 1) if self.gated else (inner, None)
        alpha = 1.702 if self.alpha is None else self.alpha
        if self.limit is not None:
            gate = gate.clamp(max=self.limit)
            up = None if up is None else up.clamp(-self.limit, self.limit)
        activations: dict[str, Callable[[Tensor], Tensor]] = {
            "silu": torch.nn.functional.silu,
            "gelu_tanh": lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
            "relu2": lambda t: torch.relu(t).square(),
            "swiglu": lambda t: t * torch.sigmoid(alpha * t),
        }
        h = activations[self.activation](gate)
        return h if up is None else h * (up + 1 if self.activation == "swiglu" else up)
