"""The experts of a model of transformers, quantized into nvfp4.Experts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C, _api
from nvfp4.checkpoints.experts.naming import Naming, naming_of
from nvfp4.layers.experts.mixture import Description, matrices
from nvfp4.layers.experts.module import Experts
from nvfp4.layers.hosts import is_pretrained, services
from nvfp4.layers.traversal import keep_hooks, places_of, put
from nvfp4.quantizing.calibration import Reached
from nvfp4.quantizing.report import QuantizedLayer
from nvfp4.quantizing.weights import Result, Results, shared_scale


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
    weights, _ = matrices(module, about)
    lost = total = torch.zeros((), dtype=torch.float64, device=weights[0].device)
    made = blank(module, about, one_scale, activations, input_scales)
    for stack, weight in zip((made.gate_up, made.down), weights):
        assert stack.weight is not None and stack.weight_scale is not None
        rows = (one.contiguous().reshape(-1, one.shape[-1]) for one in weight)
        if one_scale:
            scales = shared_scale(rows, block_scale).expand(len(weight))
        else:
            scales = torch.stack([shared_scale([own], block_scale) for own in rows])
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
    return made, error


def blank(
    module: torch.nn.Module,
    about: Description,
    one_scale: bool,
    activations: str | None,
    input_scales: tuple[Tensor, Tensor] | None,
) -> Experts:
    """The module's experts with weights of zeros, on its device."""
    weights, biases = matrices(module, about)
    made = about.make("meta", biases[0].dtype if biases[0] is not None else weights[0].dtype)
    made.activations = activations
    given = (None, None) if input_scales is None else input_scales
    for stack, weight, bias, own in zip((made.gate_up, made.down), weights, biases, given):
        if own is not None:
            own = own.amax().expand(len(own)) if one_scale else own
            stack.input_global_scale = own.to(weight.device).unsqueeze(1).expand(weight.shape[:2]).contiguous()
        stack._buffers.update(stack.blank(weight.device))
        stack.bias = None if bias is None else bias.contiguous()
    return made.train(module.training)


def check_finite(name: str, module: torch.nn.Module, weights: str = "round") -> None:
    for key, t in module._parameters.items():
        if t is not None and t.is_meta and weights != "round":
            raise _C.Error(f"{name}.{key}: is on the meta device; must have values for weights={weights!r}")
        if t is not None and not t.is_meta and not bool(t.isfinite().all()):
            raise _C.Error(f"{name}.{key}: has a value that is NaN or infinite; must be finite")


def experts_of(
    model: torch.nn.Module,
    name: str,
    about: Description,
    block_scale: str,
    activations: str | None = None,
    input_scales: tuple[Tensor, Tensor] | None = None,
) -> tuple[Experts, QuantizedLayer]:
    """An nvfp4.Experts of a module of experts, and its description."""
    begin, old = time.perf_counter(), model.get_submodule(name)
    naming = naming_in(model, name, about)
    new, error = quantized(old, about, naming.stacked, block_scale, activations, input_scales)
    new.naming = naming
    row = described(name, old, about, new, error, input_scales)
    return new, replace(row, seconds=time.perf_counter() - begin)


def described(
    name: str,
    old: torch.nn.Module,
    about: Description,
    new: Experts,
    error: float,
    input_scales: tuple[Tensor, Tensor] | None,
) -> QuantizedLayer:
    shape = (about.experts, about.hidden, about.intermediate)
    largest = None if input_scales is None else float(input_scales[0].amax())
    return QuantizedLayer(name, shape, error, sum(t.nbytes for t in old.parameters()), new.nbytes, largest)


def experts_from(
    found: Reached,
    results: Results,
    naming: Naming,
    activations: str | None,
    input_scales: tuple[Tensor, Tensor] | None,
) -> tuple[Experts, QuantizedLayer]:
    """An nvfp4.Experts of the weights that "search" or "gptq" gave for each product, and its description."""
    new = blank(found.module, found.about, naming.stacked, activations, input_scales)
    new.naming = naming
    for stack, keys in zip((new.gate_up, new.down), zip(*found.names)):
        assert stack.weight is not None and stack.weight_scale is not None
        (experts, parts, rows, _), device = stack.shape, stack.weight.device
        for e, key in enumerate(keys):
            stack.weight[e] = results[key].weight.unflatten(0, (parts, rows))
            scale = results[key].weight_scale.to(device).unflatten(0, (parts, rows))
            stack.weight_scale[e] = torch.as_tensor(_api.swizzle(scale))
        scales = torch.stack([results[key].weight_global_scale for key in keys]).to(device)
        stack.weight_global_scale = scales.unsqueeze(1).expand(experts, parts).contiguous()
    own = [results[key] for pair in found.names for key in pair]
    row = described(found.name, found.module, found.about, new, total_error(own), input_scales)
    return new, replace(row, **sums(own))


def total_error(results: list[Result]) -> float:
    """|W - W_nvfp4| / |W| of all these weights together."""
    total = sum(result.norm for result in results)
    return (sum(result.error**2 * result.norm for result in results) / total) ** 0.5 if total else 0.0


def sums(results: list[Result]) -> dict[str, Any]:
    """The report of several products as one layer. Products that no sample reached count in none of it."""
    reached = [result for result in results if result.output_error is not None]
    total = sum(result.output_norm for result in reached)

    def relative(errors: Iterator[float | None]) -> float | None:
        lost = sum((e or 0.0) ** 2 * result.output_norm for e, result in zip(errors, reached))
        return None if not reached else (lost / total) ** 0.5 if total else 0.0

    return {
        "output_error": relative(result.output_error for result in reached),
        "output_error_before": relative(result.output_error_before for result in reached),
        "rows": min((result.rows for result in reached if result.rows is not None), default=None),
        "damping": max((result.damping for result in reached if result.damping is not None), default=None),
        "seconds": sum(result.seconds for result in results),
    }


def replace_experts(model: torch.nn.Module, name: str, new: Experts, row: QuantizedLayer) -> QuantizedLayer:
    """Puts it in place of the module, with the hooks of that."""
    old = model.get_submodule(name)
    keep_hooks(old, new)
    put(places_of(model, {name: old})[name], new)
    return row


def quantize_experts(
    model: torch.nn.Module, name: str, about: Description, block_scale: str, activations: str | None = None
) -> QuantizedLayer:
    """Both, without input scales."""
    return replace_experts(model, name, *experts_of(model, name, about, block_scale, activations))


def naming_in(model: torch.nn.Module, name: str, about: Description) -> Naming:
    """How a checkpoint of this model names and stores the experts of a module."""
    if not is_pretrained(model):
        return naming_of(about)
    try:
        expert_names = services("transformers").expert_names
    except ImportError:  # a version that nvfp4.transformers cannot work with
        return naming_of(about)
    return naming_of(about, expert_names(model, name, about.gated))
