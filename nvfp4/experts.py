"""nvfp4.Experts: the experts of a mixture with NVFP4 weights, in place of a module of transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from nvfp4 import _C, _api
from nvfp4.buffers import FixedBuffers
from nvfp4.linear import _bf16_parts
from nvfp4.packed import BLOCK, check_type, round_up, short

GATED, PLAIN = ("silu", "gelu_tanh", "swiglu"), ("silu", "gelu_tanh", "relu2")  # activations, with and without a gate
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MOST = 1024  # experts of one call of grouped_gemm


class Stack(FixedBuffers):
    """E * P NVFP4 matrices [N, K]: those of E experts, each with P parts whose results lie side by side.

    Buffers:
        weight: [E, P, N, K/2] uint8.
        weight_scale: [E, P, N rounded up to 128, K/16 rounded up to 4] float8_e4m3fn in the 128x4 layout.
        weight_global_scale: float32 [E, P], multipliers.
        input_global_scale: float32 [E, P], NaN for an expert without one; or None. Kept for saving.
        bias: [E, P, N], or None.
    """

    weight: Tensor
    weight_global_scale: Tensor
    input_global_scale: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        experts: int,
        parts: int,
        rows: int,
        columns: int,
        bias: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        scales = (experts, parts, round_up(rows, 128), round_up(columns // BLOCK, 4))

        def zeros(*shape: int, dtype: torch.dtype | None) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.register_buffer("weight", zeros(experts, parts, rows, columns // 2, dtype=torch.uint8))
        self.register_buffer("weight_scale", zeros(*scales, dtype=torch.uint8).view(torch.float8_e4m3fn))
        self.register_buffer("weight_global_scale", zeros(experts, parts, dtype=torch.float32) + 1)
        self.register_buffer("input_global_scale", None)
        self.register_buffer("bias", zeros(experts, parts, rows, dtype=dtype) if bias else None)

    @property
    def columns(self) -> int:
        return self.weight.shape[3] * 2

    def linear_scales(self) -> Tensor:
        """weight_scale in the linear layout: [E, P, N, K/16]."""
        experts, parts, rows, _ = self.weight.shape
        scales = self.weight_scale.reshape(experts * parts, *self.weight_scale.shape[2:])
        linear = _api.unswizzle(scales, rows, self.columns // BLOCK)
        return linear.reshape(experts, parts, rows, self.columns // BLOCK)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Also takes a state with input scales where this stack has none, and the reverse. Another dtype is an error."""
        mismatches = []
        for name, own in self._buffers.items():
            t = state_dict.get(prefix + name)
            wanted = torch.float32 if own is None else own.dtype
            if isinstance(t, Tensor) and name != "bias" and t.dtype != wanted:
                mismatches.append(f"{prefix}{name}: is {short(t.dtype)}; must be {short(wanted)}")
        if mismatches:
            arguments[-1].extend(mismatches)  # load_state_dict raises them, with those of other modules
            return
        if prefix + "weight" in state_dict:
            given = state_dict.get(prefix + "input_global_scale")
            self.input_global_scale = None if given is None else torch.empty_like(self.weight_global_scale)
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def extra_repr(self) -> str:
        experts, parts, rows, _ = self.weight.shape
        return f"{experts} x {parts} matrices of {rows} x {self.columns}, bias={self.bias is not None}"

    # ---- the products ----

    def product(self, a: Tensor, ends: Tensor, rows: Tensor | None, batch_invariant: bool) -> Tensor:
        """a [R, K] times each group's matrices, [T, P * N], in the dtype of a: rounded once. For float32 it is the sum of the
        products of three bfloat16 parts, which are exact."""
        bias, total = self.bias, None
        if bias is not None and bias.dtype != a.dtype:
            bias = bias.float()
        parts = [a] if a.dtype != torch.float32 else [*_bf16_parts(a)][::-1]
        for i, part in enumerate(parts):
            y: Tensor = _api.grouped_gemm(
                part,
                self.weight,
                None,
                self.weight_scale,
                ends,
                rows=rows,
                alpha=self.weight_global_scale,
                bias=bias if i == len(parts) - 1 else None,
                out_dtype=a.dtype,
                batch_invariant=batch_invariant,
                constant_b=is_constant(),
            )
            total = y if total is None else total + y
        assert total is not None
        return total

    def transposed(self, dy: Tensor, ends: Tensor, batch_invariant: bool) -> Tensor:
        """The gradient with respect to the rows of a, [T, K] float32, of one with respect to the product, [T, P * N].

        grouped_gemm computes it of one part. With two parts each expert counts as two groups, whose rows follow one
        another: those of gate, then those of up.
        """
        experts, count = self.weight.shape[:2]
        slots = dy.shape[0]
        rows = first = second = None
        if count == 2:
            dy = dy.reshape(slots, 2, -1).transpose(0, 1).reshape(2 * slots, -1)
            slot = torch.arange(slots, device=dy.device, dtype=torch.int32)
            starts = torch.cat((ends.new_zeros(1), ends, ends.new_full((1,), slots)))
            expert = torch.searchsorted(ends, slot, right=True)  # E at and past the last end
            first, second = (slot + starts[expert]).long(), (slot + starts[expert + 1]).long()
            rows = torch.empty(2 * slots, device=dy.device, dtype=torch.int32)
            rows[first], rows[second] = slot, slot + slots
            ends = torch.stack((starts[:-2] + ends, 2 * ends), 1).flatten()
        weight = self.weight.reshape(experts * count, *self.weight.shape[2:])
        total = None
        for part in [dy] if dy.dtype != torch.float32 else [*_bf16_parts(dy)][::-1]:
            dx: Tensor = _api.grouped_gemm(
                part,
                weight,
                None,
                self.weight_scale,
                ends,
                rows=rows,
                alpha=self.weight_global_scale.flatten(),
                out_dtype=torch.float32,
                transpose_b=False,
                batch_invariant=batch_invariant,
                constant_b=is_constant(),
            )
            total = dx if total is None else total + dx
        assert total is not None
        return total if first is None or second is None else total[first] + total[second]


class Experts(torch.nn.Module):
    """The experts of a mixture with NVFP4 weights and 16-bit activations (W4A16).

    Expert e computes down[e] . act(gate[e] . x, up[e] . x), or down[e] . act(up[e] . x) without a gate. The result for a
    token is the sum over its experts, each times its router's weight.

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
        device (torch.device, str or int, optional): the device of the buffers. Default: torch's default device.
        dtype (torch.dtype, optional): the dtype of the biases. Default: torch.get_default_dtype().

    Buffers:
        gate_up: a Stack of [I, H] matrices; an expert's parts are gate and up, or up alone.
        down: a Stack of [H, I] matrices.

    Shape:
        hidden: [..., H] in float16, bfloat16 or float32. Under autocast it is first cast to autocast's dtype.
        top_k_index: [..., k] int32 or int64. An index outside of 0 .. E-1 stands for an expert elsewhere: it adds 0.
        top_k_weights: [..., k] in a floating-point dtype.
        output: [..., H] in the dtype of hidden.

    Without index and weights the rows of hidden are those of expert 0, then as many of expert 1, ..., and so are the
    output's, as in transformers' Llama4TextExperts. Rows of zeros are skipped where there is no bias.

    The results of gate and up, of the activation, and of each expert are rounded to the dtype of hidden. The sum over a
    token's experts is computed in fp32 in the order of its indices and rounded once. For float32 each product is that of
    three bfloat16 parts, whose sum the input is: three times the work, with exact products.

    There are gradients with respect to hidden and top_k_weights, by products with the packed weights; none with respect
    to the weights.

    Experts of a W4A4 checkpoint run in this way too. `mode` is what the checkpoint says, and `input_global_scale` of the
    stacks is kept for saving.

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
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        sizes = {"num_experts": num_experts, "hidden_size": hidden_size, "intermediate_size": intermediate_size}
        for name, size in sizes.items():
            check_type(name, size, SupportsIndex, "an integer")
            if name == "num_experts" and not 1 <= size <= MOST:
                raise _C.Error(f"{name}: is {size}; must be 1 to {MOST}")
            if name != "num_experts" and (size <= 0 or size % BLOCK):
                raise _C.Error(f"{name}: is {size}; must be a positive multiple of {BLOCK}")
        allowed = GATED if gated else PLAIN
        if activation not in allowed:
            raise _C.Error(
                f"activation: is {activation!r} {'with' if gated else 'without'} a gate; must be "
                f"{', '.join(map(repr, allowed))}"
            )
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if dtype not in DTYPES:
            raise _C.Error(f"dtype: is {short(dtype)}; must be float16, bfloat16 or float32")
        self.num_experts, self.hidden_size, self.intermediate_size = num_experts, hidden_size, intermediate_size
        self.activation, self.gated, self.limit, self.alpha = activation, gated, limit, alpha
        self.apply_router_weight_on_input = apply_router_weight_on_input
        self.batch_invariant = batch_invariant
        self.mode = "W4A16"  # as stored
        self.naming: Any = None  # nvfp4.checkpoints.experts.Naming of the checkpoint, for saving
        place = {"bias": bias, "device": device, "dtype": dtype}
        self.gate_up = Stack(num_experts, 2 if gated else 1, intermediate_size, hidden_size, **place)
        self.down = Stack(num_experts, 1, hidden_size, intermediate_size, **place)

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.buffers())

    def extra_repr(self) -> str:
        text = f"{self.num_experts}, hidden_size={self.hidden_size}, intermediate_size={self.intermediate_size}"
        text += f", activation={self.activation!r}, gated={self.gated}"
        given = {"limit": self.limit, "alpha": self.alpha}
        text += "".join(f", {name}={value}" for name, value in given.items() if value is not None)
        flags = ("apply_router_weight_on_input", "batch_invariant")
        return text + "".join(f", {name}=True" for name in flags if getattr(self, name))

    # ---- the computation ----

    def forward(self, hidden: Tensor, top_k_index: Tensor | None = None, top_k_weights: Tensor | None = None) -> Tensor:
        x = self._checked(hidden).reshape(-1, self.hidden_size)
        if top_k_index is None and top_k_weights is None:
            return self._sorted(x).reshape(hidden.shape)
        index, weights = self._routing(x, top_k_index, top_k_weights)
        if x.shape[0] == 0 or index.shape[1] == 0:
            return x.new_zeros(hidden.shape)
        if self.apply_router_weight_on_input:
            # Each choice of an expert has an input of its own.
            scaled = (x.unsqueeze(1).float() * weights.unsqueeze(2).float()).to(x.dtype).reshape(-1, x.shape[1])
            rows, ends, places = _api.moe_route(index.reshape(-1, 1), self.num_experts)
            places = places.reshape(index.shape)
            return self._run(scaled, rows, ends, places, None).reshape(hidden.shape)
        rows, ends, places = _api.moe_route(index, self.num_experts)
        return self._run(x, rows, ends, places, weights).reshape(hidden.shape)

    def _checked(self, hidden: Tensor) -> Tensor:
        """The input in the dtype that the module computes in."""
        check_type("hidden", hidden, Tensor, "a torch.Tensor")
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

    def _sorted(self, x: Tensor) -> Tensor:
        """Rows in the order of their experts. A row of zeros, by which Llama-4 stands for a token that does not go to
        an expert, gives zeros without a bias."""
        experts = torch.arange(self.num_experts, device=x.device, dtype=torch.int32)
        if x.shape[0] % self.num_experts:
            raise _C.Error(f"hidden: has {x.shape[0]} rows; must be a multiple of num_experts = {self.num_experts}")
        if x.shape[0] == 0:
            return torch.zeros_like(x)
        index = experts.repeat_interleave(x.shape[0] // self.num_experts)
        if self.gate_up.bias is None:
            index = torch.where((x != 0).any(1), index, -1)
        rows, ends, places = _api.moe_route(index.unsqueeze(1), self.num_experts)
        return self._run(x, rows, ends, places, None)

    def _run(self, x: Tensor, rows: Tensor, ends: Tensor, places: Tensor, weights: Tensor | None) -> Tensor:
        given = x.requires_grad or (weights is not None and weights.requires_grad)
        if torch.is_grad_enabled() and given:
            result: Tensor = _Gradient.apply(self, x, weights, rows, ends, places)
            return result
        return self._computed(x, rows, ends, places, weights)

    def _computed(self, x: Tensor, rows: Tensor, ends: Tensor, places: Tensor, weights: Tensor | None) -> Tensor:
        y = self._outputs(self._inner(x, rows, ends), ends)
        result: Tensor = _api.moe_combine(y, places, weights, out_dtype=x.dtype)
        return result

    def _inner(self, x: Tensor, rows: Tensor, ends: Tensor) -> Tensor:
        """gate and up of each expert, side by side."""
        return self.gate_up.product(dense(x), ends, rows, self.batch_invariant)

    def _outputs(self, inner: Tensor, ends: Tensor) -> Tensor:
        gate, up = inner.split(self.intermediate_size, 1) if self.gated else (inner, None)
        h: Tensor = _api.gated(gate, up, self.activation, limit=self.limit, alpha=self.alpha, out_dtype=inner.dtype)
        return self.down.product(h, ends, None, self.batch_invariant)

    def _activated(self, inner: Tensor) -> Tensor:
        """gated() in torch, in fp32, for gradients."""
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


class _Gradient(torch.autograd.Function):
    """Experts with gradients with respect to the input and the router's weights. The backward pass computes gate and up
    again, so that it keeps no more than the input."""

    @staticmethod
    def forward(
        ctx: Any, experts: Experts, x: Tensor, weights: Tensor | None, rows: Tensor, ends: Tensor, places: Tensor
    ) -> Tensor:
        ctx.experts = experts
        ctx.save_for_backward(x, weights, rows, ends, places)
        return experts._computed(x, rows, ends, places, weights)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        experts: Experts = ctx.experts
        x, weights, rows, ends, places = ctx.saved_tensors
        inner = experts._inner(x, rows, ends)
        slots = rows.shape[0]
        at = torch.where(places < 0, slots, places).long()  # a row more, for experts elsewhere
        each_dy = dy.float().unsqueeze(1)
        dout = dy.new_zeros((slots + 1, dy.shape[1]), dtype=torch.float32)
        dout[at] = each_dy if weights is None else each_dy * weights.float().unsqueeze(2)
        dout = dout[:slots]
        dweights = None
        if weights is not None and ctx.needs_input_grad[2]:
            y = experts._outputs(inner, ends)[at.clamp(max=slots - 1)]
            dweights = torch.where(places < 0, 0.0, (y.float() * each_dy).sum(2)).to(weights.dtype)
        dx = None
        if ctx.needs_input_grad[1]:
            dh = experts.down.transposed(dout.to(x.dtype), ends, experts.batch_invariant)
            with torch.enable_grad():
                wide = inner.detach().float().requires_grad_()
                (dinner,) = torch.autograd.grad(experts._activated(wide), wide, dh)
            each = experts.gate_up.transposed(dinner.to(x.dtype), ends, experts.batch_invariant)
            dx = _api.moe_combine(each, backward_places(places, rows, x), None, out_dtype=x.dtype)
        return None, dx, dweights, None, None, None


def backward_places(places: Tensor, rows: Tensor, x: Tensor) -> Tensor:
    """The slots that each row of x was read into: those of its token, or its own if it stands for one choice."""
    return places if places.shape[0] == x.shape[0] else places.reshape(-1, 1)


def dense(x: Tensor) -> Tensor:
    """Contiguous rows on 16 bytes, as grouped_gemm takes them. A traced tensor has no address."""
    x = x.contiguous()
    traced = torch.compiler.is_compiling() or type(x) is not Tensor
    return x if traced or x.data_ptr() % 16 == 0 else x.clone()


def is_constant() -> bool:
    """Whether no kernel in flight can write the weights, as of Linear: compiled code may compute them just before."""
    return not (torch.compiler.is_compiling() or torch._C._is_tracing())
