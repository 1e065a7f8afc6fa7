"""Recognises the modules of transformers that hold all experts of a mixture, and quantizes them.

What such a module computes between its products is found by trying its own function on random numbers, so that a class
with another activation is never taken for one that is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C, _api
from nvfp4.experts import DTYPES, GATED, MAX_EXPERTS, PLAIN, Experts
from nvfp4.packed import BLOCK, LARGEST, invertible

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


def of_experts(experts: Experts) -> Description:
    return Description(
        experts.num_experts,
        experts.hidden_size,
        experts.intermediate_size,
        experts.activation,
        experts.gated,
        experts.limit,
        experts.alpha,
        experts.gate_up.bias is not None,
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


def quantized(
    module: torch.nn.Module,
    about: Description,
    one_scale: bool,
    block_scale: str,
    activations: str | None = None,
    input_scales: tuple[Tensor, Tensor] | None = None,
) -> tuple[Experts, float]:
    """The module's experts in NVFP4, on its device, expert by expert, and |W - W_nvfp4| / |W| of all weights.

    Args:
        one_scale: whether all experts of a stack share a global scale, as in formats that store whole stacks. Else each
            expert has its own, which its gate and up share, as vLLM and TensorRT-LLM need it.
        activations: as of nvfp4.Experts.
        input_scales: of the inputs of both products, [E]; None: they are dynamic, or there are none.
    """
    weights, biases = matrices(module, about)
    lost = total = torch.zeros((), dtype=torch.float64, device=weights[0].device)
    made = about.make("meta", biases[0].dtype if biases[0] is not None else weights[0].dtype)
    made.activations = activations
    given = (None, None) if input_scales is None else input_scales
    for stack, weight, bias, own in zip((made.gate_up, made.down), weights, biases, given):
        if own is not None:
            own = own.amax().expand(len(own)) if one_scale else own
            stack.input_global_scale = own.to(weight.device).unsqueeze(1).expand(weight.shape[:2]).contiguous()
        stack._buffers.update(stack.blank(weight.device))
        assert stack.weight is not None and stack.weight_scale is not None
        stack.bias = None if bias is None else bias.contiguous()
        scales = torch.stack([largest_scale(one, block_scale) for one in weight])
        if one_scale:
            scales = scales.amax().expand(len(scales))
        stack.weight_global_scale = scales.unsqueeze(1).expand(weight.shape[:2]).contiguous()
        for e, one in enumerate(weight):
            for p, matrix in enumerate(one.contiguous()):
                data, scale = _api.quantize(matrix, global_scale=scales[e], block_scale=block_scale)
                stack.weight[e, p], stack.weight_scale[e, p] = data, scale
                wide = matrix.float()
                total = total + wide.square().sum(dtype=torch.float64)
                wide = wide - torch.as_tensor(_api.dequantize(data, scale, global_scale=scales[e]))
                lost = lost + wide.square().sum(dtype=torch.float64)
    error = 0.0 if total.is_meta or not total else float(lost / total) ** 0.5
    return made.train(module.training), error


class Reached:
    """Which experts of a module have been called, and the largest absolute value of what each product has read."""

    def __init__(self, module: torch.nn.Module, about: Description) -> None:
        self.module, self.about, self.experts = module, about, about.experts
        self.counts = torch.zeros(about.experts + 1, dtype=torch.int64)
        self.amax = torch.zeros(2, about.experts)

    def record(self, module: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """A hook before the module's forward."""
        given = [*arguments, *keywords.values()]
        index = next((t for t in given[1:] if isinstance(t, Tensor) and not t.is_floating_point()), None)
        x = given[0].detach().reshape(-1, self.about.hidden)
        if not len(x):
            return
        if index is None:  # rows in the order of their experts; those of zeros stand for none
            index = torch.arange(self.experts, device=x.device).repeat_interleave(len(x) // self.experts)
            index = torch.where((x != 0).any(1), index, self.experts)
        index = index.detach().reshape(len(x), -1)
        flat = index.flatten().cpu()
        flat = torch.where((flat < 0) | (flat >= self.experts), self.experts, flat)
        self.counts += torch.bincount(flat, minlength=self.experts + 1)
        weights, biases = matrices(self.module, self.about)
        for e in flat.unique().tolist():
            if e < self.experts:
                self.measure(e, x[(index == e).any(1)], weights[0][e], None if biases[0] is None else biases[0][e])

    def measure(self, expert: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """Notes what an expert's products read: rows x, and what its activation makes of their products."""
        inner = [x @ part.mT if bias is None else x @ part.mT + bias[p] for p, part in enumerate(weight)]
        about, up = self.about, inner[1] if self.about.gated else None
        h = _api.gated(inner[0], up, about.activation, limit=about.limit, alpha=about.alpha, out_dtype=torch.float32)
        for i, read in enumerate((x, h)):
            self.amax[i, expert] = self.amax[i, expert].maximum(read.abs().amax().float().cpu())

    def input_scales(self, name: str) -> tuple[Tensor, Tensor] | None:
        """The global scales of the inputs of both products, [E] each; None where no expert has read a number but zero.
        An expert that has not takes the largest of all."""
        if not bool(self.amax.isfinite().all()):
            raise _C.Error(f"{name}.input: amax is {float(self.amax.amax()):g} while calibrating; must be finite")
        scales = invertible(self.amax / LARGEST["amax6"])  # by which nvfp4.Experts quantizes inputs
        if not bool((scales.amax(1) > 0).all()):
            return None
        gate_up, down = torch.where(scales > 0, scales, scales.amax(1, keepdim=True))
        return gate_up, down

    def missed(self) -> list[int]:
        return [int(e) for e in (self.counts[:-1] == 0).nonzero().flatten()]


def largest_scale(one: Tensor, block_scale: str) -> Tensor:
    """The global scale of one expert's matrices [P, N, K], as each format keeps it."""
    rows = one.contiguous().reshape(-1, one.shape[-1])
    return invertible(torch.as_tensor(_api.amax_scale(rows, block_scale=block_scale))).reshape(())


def check_finite(name: str, module: torch.nn.Module) -> None:
    for key, t in module._parameters.items():
        if t is not None and not t.is_meta and not bool(t.isfinite().all()):
            raise _C.Error(f"{name}.{key}: has a value that is NaN or infinite; must be finite")
