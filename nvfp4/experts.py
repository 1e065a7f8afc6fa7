"""nvfp4.Experts: the experts of a mixture with NVFP4 weights, in place of a module of transformers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch
from torch import Tensor

from nvfp4 import _C, _api, experts_w4a4
from nvfp4.buffers import FixedBuffers
from nvfp4.experts_gradient import Adapter, Gradient, adapters, low_rank
from nvfp4.gradient import WITH_GRADIENT, NoGradient, as_gemm_takes_it, bf16_parts, is_transformed
from nvfp4.packed import ACTIVATIONS, BLOCK, aligned, check_type, round_up, short

if TYPE_CHECKING:
    from typing_extensions import Self

GATED, PLAIN = ("silu", "gelu_tanh", "swiglu"), ("silu", "gelu_tanh", "relu2")  # activations, with and without a gate
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MOST = 1024  # experts of one call of grouped_gemm


class Stack(FixedBuffers):
    """E * P NVFP4 matrices [N, K]: those of E experts, each with P parts whose results lie side by side.

    On a CPU the matrices may stay where they are, in mapped files that have a tensor for each (`keep`). A state dict
    and another device get the buffers, which are filled expert by expert then.

    Buffers:
        weight: [E, P, N, K/2] uint8, or None.
        weight_scale: [E, P, N rounded up to 128, K/16 rounded up to 4] float8_e4m3fn in the 128x4 layout, or None.
        weight_global_scale: float32 [E, P], multipliers.
        input_global_scale: float32 [E, P], multipliers, NaN for an expert without one; or None.
        bias: [E, P, N], or None.

    Attributes:
        shape: (E, P, N, K).
        kept: of each part the values [N, K/2] and the linear scales [N, K/16] of each expert, as bytes; or None.
    """

    fixed = ("weight_scale", "weight_global_scale", "input_global_scale")
    e4m3 = ("weight_scale",)

    weight: Tensor | None
    weight_scale: Tensor | None
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
        self.shape = (experts, parts, rows, columns)
        self.kept: list[tuple[list[Tensor], list[Tensor]]] | None = None
        self.has_state = True  # False while a state dict is made that leaves this stack out
        self.adapter: Adapter | None = None  # while nvfp4.peft calls the experts
        self._known_scales: Any = None  # of two buffers and their versions, what input_scales returned
        self.register_buffer("weight", None)
        self.register_buffer("weight_scale", None)
        self._buffers.update(self.blank(device))
        self.register_buffer("weight_global_scale", torch.ones(experts, parts, dtype=torch.float32, device=device))
        self.register_buffer("input_global_scale", None)
        zeros = torch.zeros(experts, parts, rows, dtype=dtype, device=device) if bias else None
        self.register_buffer("bias", zeros)

    def blank(self, device: torch.device | str | int | None) -> dict[str, Tensor | None]:
        """weight and weight_scale of zeros, which the scales' padding keeps."""
        experts, parts, rows, columns = self.shape
        scales = (experts, parts, round_up(rows, 128), round_up(columns // BLOCK, 4))
        return {
            "weight": torch.zeros(experts, parts, rows, columns // 2, dtype=torch.uint8, device=device),
            "weight_scale": torch.zeros(scales, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn),
        }

    @property
    def nbytes(self) -> int:
        kept = [t for part in self.kept or () for tensors in part for t in tensors]
        return sum(t.nbytes for t in (*self.buffers(), *kept))

    def keep(self, part: int, weights: list[Tensor], scales: list[Tensor]) -> None:
        """Takes a part's matrices, and their scales in the linear layout, as they are, on a CPU."""
        self.weight = self.weight_scale = None
        if self.kept is None:
            self.kept = [([], [])] * self.shape[1]
        self.kept[part] = ([aligned(t) for t in weights], [t.contiguous().view(torch.uint8) for t in scales])

    def stacked(self, device: torch.device) -> dict[str, Tensor | None]:
        """weight and weight_scale of the matrices that are kept, on a device."""
        experts, parts, rows, columns = self.shape
        assert self.kept is not None
        result = self.blank(device)
        weight, scale = result["weight"], result["weight_scale"]
        assert weight is not None and scale is not None
        linear = torch.empty(experts, rows, columns // BLOCK, dtype=torch.uint8, device=device)
        for p, (values, scales) in enumerate(self.kept):
            for e in range(experts):
                weight[e, p].copy_(values[e])
                linear[e].copy_(scales[e])
            scale[:, p] = swizzled(linear)
        return result

    def gather(self, device: torch.device) -> None:
        """Copies matrices that are kept to buffers on a device. Compiled code on a CPU needs it."""
        if self.kept is not None:
            self._buffers.update(self.stacked(device))
            self.kept = None

    def matrices(self) -> Callable[[int, int], tuple[Tensor, Tensor]]:
        """A function of expert and part: the values [N, K/2] and the linear scales [N, K/16]."""
        kept, weight, scale = self.kept, self.weight, self.weight_scale
        if kept is not None:
            return lambda e, p: (kept[p][0][e], kept[p][1][e].view(torch.float8_e4m3fn))
        assert weight is not None and scale is not None
        experts, parts, rows, columns = self.shape
        blocks = scale.reshape(experts * parts, *scale.shape[2:])
        linear = _api.unswizzle(blocks, rows, columns // BLOCK).reshape(experts, parts, rows, columns // BLOCK)
        return lambda e, p: (weight[e, p], linear[e, p])

    # ---- what torch.nn.Module does with the buffers ----

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        if self.kept is not None:
            device = fn(torch.empty(0, dtype=torch.uint8)).device
            if device.type != "cpu":
                self.gather(device)
        return super()._apply(fn, recurse)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        if not self.has_state:
            return
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.kept is not None:
            destination.update({prefix + name: t for name, t in self.stacked(torch.device("cpu")).items()})

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Also takes a state with input scales where this stack has none, and the reverse. Another dtype is an
        error."""
        mismatches = []
        wanted = {"weight": torch.uint8, "weight_scale": torch.float8_e4m3fn}
        for name in ("weight", "weight_scale", "weight_global_scale", "input_global_scale"):
            t, dtype = state_dict.get(prefix + name), wanted.get(name, torch.float32)
            if isinstance(t, Tensor) and t.dtype != dtype:
                mismatches.append(f"{prefix}{name}: is {short(t.dtype)}; must be {short(dtype)}")
        if mismatches:
            arguments[-1].extend(mismatches)  # load_state_dict raises them, with those of other modules
            return
        if prefix + "weight" in state_dict:
            given = state_dict.get(prefix + "input_global_scale")
            self.input_global_scale = None if given is None else torch.empty_like(self.weight_global_scale)
            if self.kept is not None:
                self._buffers.update(self.blank("cpu"))
                self.kept = None
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def extra_repr(self) -> str:
        experts, parts, rows, columns = self.shape
        return f"{experts} x {parts} matrices of {rows} x {columns}, bias={self.bias is not None}"

    # ---- the products ----

    def input_scales(self) -> tuple[Tensor | None, Tensor]:
        """The global scale of each expert's quantized input, [E], or None without one, and alpha with it, [E, P]. The
        parts of an expert share their input, and the largest of their scales; an expert without one takes the largest
        of all."""
        given, own = self.input_global_scale, self.weight_global_scale
        if given is None:
            return None, own
        # What a graph computes while it is captured has no value yet; inference tensors have no version.
        capturing = torch.compiler.is_compiling() or (given.is_cuda and torch.cuda.is_current_stream_capturing())
        lasting = not (capturing or given.is_inference() or own.is_inference())
        versions = (given._version, own._version) if lasting else None
        known = self._known_scales
        if lasting and known is not None and known[0] is given and known[1] is own and known[2] == versions:
            return known[3]
        largest = given.nan_to_num(0.0).amax(1)
        scales = torch.where(largest > 0, largest, largest.amax())
        result = scales, own * scales[:, None]
        if lasting:
            self._known_scales = (given, own, versions, result)
        return result

    def product(self, a: Tensor, ends: Tensor, rows: Tensor | None, batch_invariant: bool) -> Tensor:
        """a [R, K] times each group's matrices, [T, P * N], in the dtype of a: rounded once. For float32 it is the sum
        of the products of three bfloat16 parts, which are exact."""
        if self.kept is None:
            return self._product(
                a, self.weight, self.weight_scale, self.weight_global_scale, self.bias, ends, rows, batch_invariant
            )
        used, ends = self.used(ends)
        results = []
        for p in range(self.shape[1]):
            bias = None if self.bias is None else self.bias[used, p]
            values, scales = ([tensors[e] for e in used] for tensors in self.kept[p])
            alpha = self.weight_global_scale[used, p]
            results.append(self._product(a, values, scales, alpha, bias, ends, rows, batch_invariant))
        return results[0] if len(results) == 1 else torch.cat(results, 1)

    def used(self, ends: Tensor) -> tuple[list[int], Tensor]:
        """The experts that have rows, and their ends. Lists are read on the host, so a call passes no more than it
        needs: few of many experts for a single token."""
        if torch.compiler.is_compiling():
            return [*range(self.shape[0])], ends
        used = ends.diff(prepend=ends.new_zeros(1)).nonzero().flatten()
        used = used if used.numel() else used.new_zeros(1)
        return used.tolist(), ends[used].contiguous()

    @staticmethod
    def _product(
        a: Tensor,
        weight: Any,
        scale: Any,
        alpha: Tensor,
        bias: Tensor | None,
        ends: Tensor,
        rows: Tensor | None,
        batch_invariant: bool,
        transpose_b: bool = True,
        out_dtype: torch.dtype | None = None,
    ) -> Tensor:
        """grouped_gemm, of float32 by parts, the smallest first."""
        if bias is not None and bias.dtype != a.dtype:
            bias = bias.float()
        total = None
        parts = [a] if a.dtype != torch.float32 else [*bf16_parts(a)][::-1]
        for i, part in enumerate(parts):
            y: Tensor = _api.grouped_gemm(
                part,
                weight,
                None,
                scale,
                ends,
                rows=rows,
                alpha=alpha,
                bias=bias if i == len(parts) - 1 else None,
                out_dtype=a.dtype if out_dtype is None else out_dtype,
                scale_layout="128x4" if isinstance(scale, Tensor) else "linear",
                transpose_b=transpose_b,
                batch_invariant=batch_invariant,
                constant_b=is_constant(),
            )
            total = y if total is None else total + y
        assert total is not None
        return total

    def transposed(self, dy: Tensor, ends: Tensor, batch_invariant: bool) -> Tensor:
        """The gradient with respect to the rows of a, [T, K] float32, of one with respect to the product, [T, P * N].

        grouped_gemm computes it of one part. In a stack with two parts each expert counts as two groups, whose rows
        follow one another: those of gate, then those of up.
        """
        experts, parts, size, _ = self.shape
        if self.kept is not None:
            used, ends = self.used(ends)
            total = None
            for p, each in enumerate(dy.split(size, 1)):
                values, scales = ([tensors[e] for e in used] for tensors in self.kept[p])
                alpha = self.weight_global_scale[used, p]
                dx = self._gradient(each.contiguous(), values, scales, alpha, ends, None, batch_invariant)
                total = dx if total is None else total + dx
            assert total is not None
            return total
        assert self.weight is not None
        weight, alpha = self.weight.flatten(0, 1), self.weight_global_scale.flatten()
        if parts == 1:
            return self._gradient(dy, weight, self.weight_scale, alpha, ends, None, batch_invariant)
        slots = dy.shape[0]
        dy = dy.reshape(slots, 2, -1).transpose(0, 1).reshape(2 * slots, -1)
        slot = torch.arange(slots, device=dy.device, dtype=torch.int32)
        starts = torch.cat((ends.new_zeros(1), ends, ends.new_full((1,), slots)))
        expert = torch.searchsorted(ends, slot, right=True)  # E at and past the last end
        first, second = (slot + starts[expert]).long(), (slot + starts[expert + 1]).long()
        rows = torch.empty(2 * slots, device=dy.device, dtype=torch.int32)
        rows[first], rows[second] = slot, slot + slots
        ends = torch.stack((starts[:-2] + ends, 2 * ends), 1).flatten()
        dx = self._gradient(dy, weight, self.weight_scale, alpha, ends, rows, batch_invariant)
        return dx[first] + dx[second]

    def _gradient(
        self,
        dy: Tensor,
        weight: Any,
        scale: Any,
        alpha: Tensor,
        ends: Tensor,
        rows: Tensor | None,
        batch_invariant: bool,
    ) -> Tensor:
        return self._product(
            dy, weight, scale, alpha, None, ends, rows, batch_invariant, transpose_b=False, out_dtype=torch.float32
        )


def swizzled(linear: Tensor) -> Tensor:
    """Linear scales [L, N, K/16] in the 128x4 layout: [L, N rounded up to 128, K/16 rounded up to 4] float8_e4m3fn."""
    count, rows, columns = linear.shape
    scales: Tensor = _api.swizzle(linear.view(torch.float8_e4m3fn))
    return scales.reshape(count, round_up(rows, 128), round_up(columns, 4))


@contextlib.contextmanager
def left_out_of_state(model: torch.nn.Module) -> Iterator[None]:
    """Makes state dicts without stacks, whose matrices would be copied."""
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    for stack in stacks:
        stack.has_state = False
    try:
        yield
    finally:
        for stack in stacks:
            stack.has_state = True


class Experts(torch.nn.Module):
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
        output: [..., H] in the dtype of hidden.

    Without index and weights the rows of hidden are those of expert 0, then as many of expert 1, ..., and so are the
    output's, as in transformers' Llama4TextExperts. Rows of zeros are skipped where there is no bias.

    The results of gate and up, of the activation, and of each expert are rounded to the dtype of hidden. The sum over a
    token's experts is computed in fp32 in the order of its indices and rounded once. For float32 each product of W4A16
    is the sum of the products of three bfloat16 parts, which are exact: three times the work.

    With activations="nvfp4" the result of the activation is not rounded before it is quantized. gate and up of an
    expert read one input, quantized with the larger of their scales. An expert without a scale, as producers leave them
    that no sample reached, takes the largest of all.

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
        super().__init__()
        if activations not in ACTIVATIONS:
            raise _C.Error(f"activations: is {activations!r}; must be 'nvfp4' or None")
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
        self.activations = activations
        self.interleaved = False  # whether rows of gate and up alternate in a checkpoint's stack
        self.transposed = False  # whether the parameters of the module of transformers are [E, K, N]
        self.is_transposed = False  # what that module says about it, which PEFT asks
        self.naming: Any = None  # nvfp4.checkpoints.experts.Naming of the checkpoint, for saving
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

    def _get_name(self) -> str:
        return f"nvfp4.{type(self).__name__}"  # in the repr of a model, beside transformers' modules

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
    ) -> Tensor:
        x = self._checked(hidden).reshape(-1, self.hidden_size)
        if top_k_index is None and top_k_weights is None:
            return self._sorted(x).reshape(hidden.shape)
        index, weights = self._routing(x, top_k_index, top_k_weights)
        if x.shape[0] == 0 or index.shape[1] == 0:
            return x.new_zeros(hidden.shape)
        if self.apply_router_weight_on_input:
            # Each choice of an expert has an input of its own.
            scaled = (x.unsqueeze(1).float() * weights.unsqueeze(2).float()).to(x.dtype).reshape(-1, x.shape[1])
            rows, ends, places = _api.moe_route(index.reshape(-1, 1), self.num_experts, expert_map)
            places = places.reshape(index.shape)
            return self._run(scaled, rows, ends, places, None).reshape(hidden.shape)
        rows, ends, places = _api.moe_route(index, self.num_experts, expert_map)
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
        factors = [t for stack in (self.gate_up, self.down) for t in stack.adapter or (None, None)]
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
        factors: Sequence[Tensor | None],
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
        y = self._outputs(self._inner(x, rows, ends, first), ends, second)
        result: Tensor = _api.moe_combine(y, places, weights, out_dtype=x.dtype)
        return result

    def _inner(self, x: Tensor, rows: Tensor, ends: Tensor, adapter: Adapter | None = None) -> Tensor:
        """gate and up of each expert, side by side."""
        if self.activations is not None:
            a = experts_w4a4.quantized(self.gate_up, x, ends, rows)
            y = experts_w4a4.product(self.gate_up, a, ends, x.dtype, self.batch_invariant, is_constant())
        else:
            y = self.gate_up.product(as_gemm_takes_it(x), ends, rows, self.batch_invariant)
        return y if adapter is None else y + low_rank(x.index_select(0, rows), *adapter, ends)

    def _hidden(self, inner: Tensor) -> Tensor:
        gate, up = inner.split(self.intermediate_size, 1) if self.gated else (inner, None)
        return _api.gated(gate, up, self.activation, limit=self.limit, alpha=self.alpha, out_dtype=inner.dtype)

    def _outputs(self, inner: Tensor, ends: Tensor, adapter: Adapter | None = None) -> Tensor:
        if self.activations is None:
            h = self._hidden(inner)
            y = self.down.product(h, ends, None, self.batch_invariant)
            return y if adapter is None else y + low_rank(h, *adapter, ends)
        gate, up = inner.split(self.intermediate_size, 1) if self.gated else (inner, None)
        a = experts_w4a4.activated(self.down, gate, up, ends, self.activation, self.limit, self.alpha)
        y = experts_w4a4.product(self.down, a, ends, inner.dtype, self.batch_invariant, is_constant())
        return y if adapter is None else y + low_rank(self._hidden(inner), *adapter, ends)

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


def is_constant() -> bool:
    """Whether no kernel in flight can write the weights, as of Linear: compiled code may compute them just before."""
    return not (torch.compiler.is_compiling() or torch._C._is_tracing())
