"""nvfp4.Experts: the experts of a mixture with NVFP4 weights, in place of a module of transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C, _api
from nvfp4.layers.checks import short
from nvfp4.layers.experts import w4a4, w4a16
from nvfp4.layers.experts.routed import DTYPES, Factors, RoutedExperts
from nvfp4.layers.experts.stack import Adapter, Stack
from nvfp4.layers.experts.training import Gradient, adapters, low_rank
from nvfp4.layers.gradient import WITH_GRADIENT, NoGradient, as_gemm_takes_it, is_constant, is_transformed
from nvfp4.layers.packed import ACTIVATIONS


class Experts(RoutedExperts):
    """The experts of a mixture with NVFP4 weights.

    Expert e computes down[e] . act(gate[e] . x, up[e] . x), or down[e] . act(up[e] . x) without a gate. The result for
    a token is the sum over its experts, each times its router's weight.

    A new module holds zeros. `nvfp4.load`, `nvfp4.quantize_model` and `load_state_dict` fill it.

    Args:
        num_experts (int): E, 1 to 1024.
        hidden_size (int): H, a positive multiple of 16.
        intermediate_size (int): I, a positive multiple of 16.
        activation (str, optional): "silu", "gelu_tanh" or "swiglu" (gpt-oss) with a gate; "silu", "gelu_tanh" or
            "relu2" without one. Default: "silu". See nvfp4.gated.
        gated (bool, optional): whether each expert has a gate beside up. Default: True.
        bias (bool, optional): whether all products have biases. Default: False.
        limit (float, optional): the limit of nvfp4.gated. Default: None.
        alpha (float, optional): the alpha of nvfp4.gated. Default: None.
        apply_router_weight_on_input (bool, optional): whether the router's weights multiply the input instead of the
            experts' outputs. Default: False.
        batch_invariant (bool, optional): makes the bits of a token's result independent of the other tokens.
            Default: False.
        activations (str, optional): None or "nvfp4". Default: None.
            None leaves inputs as they are (W4A16).
            "nvfp4" quantizes the input of each product (W4A4), with the input_global_scale of its expert. Without one
                each token has its own, nvfp4.amax_scale of its input (dynamic).
        device (torch.device, str or int, optional): the device of the buffers. Default: torch's default device.
        dtype (torch.dtype, optional): the dtype of the biases. Default: torch.get_default_dtype().

    Buffers:
        gate_up: a Stack of [I, H] matrices; an expert's parts are gate and up, or up alone.
        down: a Stack of [H, I] matrices.

    Shape:
        hidden: [..., H] in float16, bfloat16 or float32. Under autocast it is first cast to autocast's dtype.
        top_k_index: [..., k] int32 or int64. An index outside of 0 .. E-1 stands for an expert elsewhere: it adds 0.
        top_k_weights: [..., k] in a floating-point dtype.
        expert_map: int32 [G], the expert here of each index, as of nvfp4.moe_route. Default: None.
        gate_up_adapter, down_adapter: what nvfp4.peft passes, the low-rank factors of what is added to the weights of
            this call: left [E, P * N, r] and right [E, r, K]. Default: None.
        output: [..., H] in the dtype of hidden.

    Without index and weights the rows of hidden are those of expert 0, then as many of expert 1, ..., and so are the
    output's, as in transformers' Llama4TextExperts. Rows of zeros are skipped where there is no bias.

    The results of gate and up, of the activation, and of each expert are rounded to the dtype of hidden. The sum over a
    token's experts is computed in fp32 in the order of its indices and rounded once. For float32 each product of W4A16
    is the sum of the products of three bfloat16 parts, which are exact: three times the work.

    With activations="nvfp4" the result of the activation is not rounded before it is quantized. gate and up of an
    expert read one input, quantized with the larger of their scales. An expert without a scale, which no sample of the
    calibration reached, takes the largest of all. The first call computes what follows from these
    scales and keeps it. A CUDA graph that is captured later reads it, and load_state_dict renews it in its place.

    W4A16 has gradients with respect to hidden and top_k_weights, by products with the packed weights, and to the
    low-rank adapters of nvfp4.peft; none with respect to the weights. W4A4 has none, as nvfp4.Linear.
    `batch_invariant` does not hold for adapters, whose products are torch's.

    Raises:
        nvfp4.Error: an argument breaks a rule.
    """

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        activation: str = "silu",
        gated: bool = True,
        bias: bool = False,
        limit: float | None = None,
        alpha: float | None = None,
        apply_router_weight_on_input: bool = False,
        batch_invariant: bool = False,
        activations: str | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if activations not in ACTIVATIONS:
            raise _C.Error(f"activations: is {activations!r}; must be 'nvfp4' or None")
        super().__init__(
            num_experts,
            hidden_size,
            intermediate_size,
            activation,
            gated,
            limit,
            alpha,
            apply_router_weight_on_input,
        )
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if dtype not in DTYPES:
            raise _C.Error(f"dtype: is {short(dtype)}; must be float16, bfloat16 or float32")
        self.batch_invariant = batch_invariant
        self.activations = activations
        place = {"bias": bias, "device": device, "dtype": dtype}
        self.gate_up = Stack(num_experts, 2 if gated else 1, intermediate_size, hidden_size, **place)
        self.down = Stack(num_experts, 1, hidden_size, intermediate_size, **place)

    @property
    def nbytes(self) -> int:
        return self.gate_up.nbytes + self.down.nbytes

    @property
    def mode(self) -> str:
        """ "W4A16", "W4A4", or "W4A4 dynamic" without input scales."""
        if self.activations is None:
            return "W4A16"
        given = (stack.input_global_scale is not None for stack in (self.gate_up, self.down))
        return "W4A4" if all(given) else "W4A4 dynamic"

    @property
    def bias_dtype(self) -> torch.dtype | None:
        return None if self.gate_up.bias is None else self.gate_up.bias.dtype

    def extra_repr(self) -> str:
        text = f"{self.num_experts}, hidden_size={self.hidden_size}, intermediate_size={self.intermediate_size}"
        text += f", activation={self.activation!r}, gated={self.gated}, {self.mode.partition(' ')[0]}"
        if self.activations is not None:
            text += f", input_global_scale={'static' if self.mode == 'W4A4' else 'dynamic'}"
        given = {"limit": self.limit, "alpha": self.alpha}
        text += "".join(f", {name}={value}" for name, value in given.items() if value is not None)
        flags = ("apply_router_weight_on_input", "batch_invariant")
        return text + "".join(f", {name}=True" for name in flags if getattr(self, name))

    # ---- the computation ----

    def forward(
        self,
        hidden: Tensor,
        top_k_index: Tensor | None = None,
        top_k_weights: Tensor | None = None,
        expert_map: Tensor | None = None,
        *,
        gate_up_adapter: Adapter | None = None,
        down_adapter: Adapter | None = None,
    ) -> Tensor:
        factors = (
            *self.gate_up.factors("gate_up_adapter", gate_up_adapter),
            *self.down.factors("down_adapter", down_adapter),
        )
        return self._routed(hidden, top_k_index, top_k_weights, expert_map, factors)

    def _run(
        self, x: Tensor, rows: Tensor, ends: Tensor, places: Tensor, weights: Tensor | None, factors: Factors
    ) -> Tensor:
        given = any(t is not None and t.requires_grad for t in (x, weights, *factors))
        if torch.is_grad_enabled() and given and self.activations is not None:
            return self._without_gradient(x, rows, ends, places, weights, factors)
        if torch.is_grad_enabled() and given:
            result: Tensor = Gradient.apply(self, x, weights, rows, ends, places, *factors)
            return result
        return self._computed(x, rows, ends, places, weights, *adapters(factors))

    def _without_gradient(
        self,
        x: Tensor,
        rows: Tensor,
        ends: Tensor,
        places: Tensor,
        weights: Tensor | None,
        factors: Factors,
    ) -> Tensor:
        if is_transformed():
            raise _C.Error(
                "hidden: or top_k_weights requires grad, which compiled, traced or transformed W4A4 code cannot take; "
                f"use torch.no_grad(), or {WITH_GRADIENT}"
            )

        def run(x: Tensor, weights: Tensor | None, *more: Any) -> Tensor:
            return self._computed(x, rows, ends, places, weights, *adapters(factors))

        trained = next((t for t in factors if t is not None and t.requires_grad), None)
        result: Tensor = NoGradient.apply(x, run, weights, trained, None, x.dtype)
        return result

    def _computed(
        self,
        x: Tensor,
        rows: Tensor,
        ends: Tensor,
        places: Tensor,
        weights: Tensor | None,
        first: Adapter | None,
        second: Adapter | None,
    ) -> Tensor:
        if first is None and self.activations is None and w4a16.activates(self.gate_up, x.dtype):
            gating = self.activation, self.limit, self.alpha
            h = w4a16.activated(self.gate_up, as_gemm_takes_it(x), ends, rows, self.batch_invariant, *gating)
            y = self._down(h, ends, second)
        elif first is None and second is None and self._quantizes_products(x.dtype):
            invariant, constant = self.batch_invariant, is_constant()
            gating = self.activation, self.limit, self.alpha
            a = w4a4.quantized(self.gate_up, x, ends, rows)
            a = w4a4.quantized_products(self.gate_up, self.down, a, ends, x.dtype, invariant, constant, *gating)
            y = w4a4.product(self.down, a, ends, x.dtype, invariant, constant)
        else:
            y = self._outputs(self._inner(x, rows, ends, first), ends, second)
        result: Tensor = _api.moe_combine(y, places, weights, out_dtype=x.dtype)
        return result

    def _quantizes_products(self, dtype: torch.dtype) -> bool:
        return self.activations is not None and w4a4.quantizes_products(self.gate_up, self.down, dtype)

    def _inner(self, x: Tensor, rows: Tensor, ends: Tensor, adapter: Adapter | None = None) -> Tensor:
        """gate and up of each expert, side by side."""
        if self.activations is not None:
            a = w4a4.quantized(self.gate_up, x, ends, rows)
            y = w4a4.product(self.gate_up, a, ends, x.dtype, self.batch_invariant, is_constant())
        else:
            y = w4a16.product(self.gate_up, as_gemm_takes_it(x), ends, rows, self.batch_invariant)
        return y if adapter is None else y + low_rank(x.index_select(0, rows), *adapter, ends)

    def _outputs(self, inner: Tensor, ends: Tensor, adapter: Adapter | None = None) -> Tensor:
        if self.activations is None:
            return self._down(self._hidden(inner), ends, adapter)
        gate, up = inner.split(self.intermediate_size, 1) if self.gated else (inner, None)
        a = w4a4.activated(self.down, gate, up, ends, self.activation, self.limit, self.alpha)
        y = w4a4.product(self.down, a, ends, inner.dtype, self.batch_invariant, is_constant())
        return y if adapter is None else y + low_rank(self._hidden(inner), *adapter, ends)

    def _down(self, h: Tensor, ends: Tensor, adapter: Adapter | None) -> Tensor:
        y = w4a16.product(self.down, h, ends, None, self.batch_invariant, constant_ends=is_constant())
        return y if adapter is None else y + low_rank(h, *adapter, ends)

    def _transposed(self, of_down: bool, dy: Tensor, ends: Tensor) -> Tensor:
        """The gradient with respect to the rows of a product, [T, K] float32, of one with respect to its result."""
        return w4a16.transposed(self.down if of_down else self.gate_up, dy, ends, self.batch_invariant)
