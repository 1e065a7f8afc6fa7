"""Weights by weights="search" and "gptq", of linear layers and of experts, as tensors that wait for their place.

Each layer's result is kept until all are there, for a model on a GPU in host memory. All of them are computed from the
dense model, so they depend neither on each other nor on how many Hessians fit in memory at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C, _api, _text
from nvfp4.checkpoints.experts.naming import DOWN, place_of
from nvfp4.layers.checks import prefix_errors
from nvfp4.layers.fused import FUSED
from nvfp4.layers.gptq import default_damping, exact_mode, factor, gptq
from nvfp4.layers.linear import Linear
from nvfp4.layers.packed import PackedLinear, invertible
from nvfp4.layers.traversal import as_linear
from nvfp4.quantizing.calibration import Inputs, Product, Reached, importance
from nvfp4.quantizing.hessians import Collected, Hessians, collect
from nvfp4.quantizing.linears import ERROR_ROWS, describe, replace_layer, weight_error
from nvfp4.quantizing.report import QuantizedLayer


@dataclass(frozen=True)
class Result:
    """A quantized weight, and what a report says of it (see QuantizedLayer).

    Attributes:
        weight, weight_scale, weight_global_scale (Tensor): as of PackedLinear, in host memory for a layer on a GPU.
        norm, output_norm (float): tr(W W') and tr(W H W'), over which errors are relative.
    """

    weight: Tensor
    weight_scale: Tensor
    weight_global_scale: Tensor
    error: float
    output_error: float | None = None
    output_error_before: float | None = None
    rows: int | None = None
    damping: float | None = None
    seconds: float = 0.0
    norm: float = 0.0
    output_norm: float = 0.0

    def layer(
        self,
        name: str,
        old: torch.nn.Module,
        activations: str | None,
        input_scale: float | None,
        block_scale: str,
        fused: tuple[str, ...] = (),
    ) -> tuple[Linear, QuantizedLayer]:
        """An NVFP4 layer with this weight on the device of the dense one, whose hooks it takes and whose bias is
        shared, and its description."""
        linear = as_linear(old)
        assert linear is not None
        device, bias = linear.weight.device, None if linear.bias is None else linear.bias.detach()
        data, blocks, scale = (t.to(device) for t in (self.weight, self.weight_scale, self.weight_global_scale))
        given = None if input_scale is None else torch.tensor(input_scale, dtype=torch.float32, device=device)
        packed = PackedLinear(data, blocks, scale, given, bias, activations)
        layer = Linear.from_packed(packed, block_scale, linear.weight.dtype)
        row = describe(name, linear, layer, self.error, input_scale, fused)
        keys = ("output_error", "output_error_before", "rows", "damping", "seconds")
        return replace_layer(old, layer), replace(row, **{key: getattr(self, key) for key in keys})


# Keeps finished layers and products of experts by name. One that stores them lets an interrupted run go on where it
# stopped.
Results = MutableMapping[str, Result]


def siblings_of(model: torch.nn.Module, linears: Mapping[str, torch.nn.Module]) -> dict[str, tuple[str, ...]]:
    """Maps each layer that may read the same tensor as others, by its name and its parent's, to the names of all of
    them. They share a global scale, as hosts that join them need it."""
    groups: dict[str, tuple[str, ...]] = {}
    for parent, _ in model.named_modules():
        for siblings in FUSED:
            alike: dict[Any, list[str]] = {}
            for name in (f"{parent}.{sibling}" if parent else sibling for sibling in siblings):
                if (linear := as_linear(linears.get(name))) is not None:
                    alike.setdefault((linear.in_features, linear.weight.device), []).append(name)
            for names in alike.values():
                if len(names) > 1:
                    groups |= dict.fromkeys(names, tuple(names))
    return groups


def others_of(linears: Iterable[str], reached: Iterable[Reached]) -> dict[str, tuple[str, ...]]:
    """Maps each product of gate and up of an expert to the names whose inputs stand in for its own if no sample reaches
    it: its module's, or those of the same layer of all experts, where these are layers."""
    lists: dict[tuple[str, str], list[str]] = {}
    for name in linears:
        place = place_of(name)
        if place is not None and place.expert is not None and place.role != DOWN:
            lists.setdefault((place.container, place.local), []).append(name)
    others = {name: tuple(names) for names in lists.values() for name in names}
    return others | {first: (found.name,) for found in reached for first, _ in found.names}


def weight_of(layers: Mapping[str, torch.nn.Module | Product], name: str) -> Tensor:
    layer = layers[name]
    owner = layer if isinstance(layer, Product) else as_linear(layer)
    assert owner is not None
    return owner.weight.detach().contiguous()


def shared_scale(weights: Iterable[Tensor], block_scale: str) -> Tensor:
    """The global scale of the rows of all these weights, as each format keeps it: that of the largest. A weight of
    zeros has none, and takes part only where all are zeros: the scale is 1 then."""
    scales = [
        torch.as_tensor(_api.amax_scale(weight, block_scale=block_scale)).reshape(()).where(weight.any(), 0.0)
        for weight in weights
    ]
    largest = torch.stack(scales).amax()
    return invertible(largest.where(largest > 0, 1.0))


def searched(weight: Tensor, scale: Tensor, read: Inputs | None = None, other: Tensor | None = None) -> Result:
    """A weight by "search" with a global scale, by what its layer has read if it has read anything.

    Args:
        other: the importance of columns otherwise. None: all count alike.
    """
    begin, own = time.perf_counter(), None if read is None else read.importance()
    with exact_mode(weight.device):
        data, blocks = _api.quantize(
            weight,
            global_scale=scale,
            block_scale="search",
            importance=other if own is None else own,
            scale_layout="linear",
        )
        result = Result(data, blocks, scale, weight_error(weight, data, blocks, scale, "linear"), norm=norm(weight))
        if read is not None and read.squares is not None and own is not None:
            after, before, total = output_errors(weight, (data, blocks, scale), own)
            total *= float(read.squares.mean())
            result = replace(result, output_error=after, output_error_before=before, rows=read.rows, output_norm=total)
    return replace(result, seconds=time.perf_counter() - begin)


class Weights:
    """Quantizes the weights of some layers, and of the products of experts, into `results`.

    Args:
        model, linears: the dense layers by name, which stay as they are.
        reached: the modules of experts.
        stacked: names of those with one global scale for all experts, as in formats that store whole stacks.
        results: may have layers of an earlier run with the same arguments, which are not quantized again.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        linears: Mapping[str, torch.nn.Module],
        reached: Sequence[Reached],
        stacked: Iterable[str],
        results: Results,
    ) -> None:
        self.model, self.linears, self.reached, self.results = model, linears, reached, results
        self.layers: dict[str, torch.nn.Module | Product] = {**linears}
        self.siblings, self.stacks = siblings_of(model, linears), dict[str, tuple[str, ...]]()
        self.others = others_of(linears, reached)
        self.scales: dict[tuple[str, ...], Tensor] = {}  # of siblings and stacks, by their names
        for found in reached:
            self.layers |= found.products
            for names in zip(*found.names) if found.name in stacked else ():
                self.stacks |= dict.fromkeys(names, names)

    def scale(self, name: str) -> Tensor:
        """The global scale of a layer's weight, which it shares with its siblings or its stack."""
        names = self.siblings.get(name) or self.stacks.get(name) or (name,)
        if names not in self.scales:
            weights = (weight_of(self.layers, each) for each in names)
            with exact_mode(weight_of(self.layers, name).device), prefix_errors(name):
                self.scales[names] = shared_scale(weights, "search")
        return self.scales[names].clone()  # for storage that layers do not share

    def stand_ins(self) -> set[str]:
        """The names with inputs that may stand in for those of others."""
        return {name for names in self.others.values() for name in names}

    def unfinished(self) -> list[str]:
        """The layers without a result, and those that may be quantized in one run with such a layer: the bits of a
        matrix product may depend on its number of rows."""
        groups = {name: self.siblings.get(name, (name,)) for name in self.layers}
        return [name for name, group in groups.items() if any(other not in self.results for other in group)]

    def search(self, names: Sequence[str], inputs: Mapping[str, Inputs]) -> None:
        """Quantizes layers by "search", each by its own inputs, where it has read any."""
        with _text.watched(len(names)) as step:
            for name in names:
                step(name)
                weight, scale = weight_of(self.layers, name), self.scale(name)
                with prefix_errors(name):
                    other = None if inputs[name].rows else self.other_importance(name, inputs, weight.device)
                    self.keep(name, searched(weight, scale, inputs[name], other))

    def other_importance(self, name: str, inputs: Mapping[str, Inputs], device: torch.device) -> Tensor | None:
        """That of the inputs that stand in for a layer's own."""
        squares = [t for other in self.others.get(name, ()) if (t := inputs[other].squares) is not None]
        return importance(torch.stack([t.to(device) for t in squares]).sum(0)) if squares else None

    def gptq(
        self,
        calibrate: Callable[[torch.nn.Module], Any],
        inputs: Mapping[str, Inputs],
        hessians: Hessians,
        damping: float | None,
    ) -> None:
        """Quantizes all layers by GPTQ whose inputs are known, from `hessians` of the first call of `calibrate` and of
        as many further calls as they need; the others by "search"."""
        unreached = [name for name in hessians.waiting if not inputs[name].rows]
        for name in unreached:
            del hessians.waiting[name]
        self.search(unreached, inputs)
        found = hessians.finish(inputs)
        while True:
            with _text.watched(sum(len(collected.names) for collected in found)) as step:
                while found:
                    self.gptq_group(found.pop(), damping, step)
            if not hessians.waiting:
                return
            before = len(hessians.waiting), dict(hessians.leaders)
            collect(self.model, self.linears, calibrate, hessians, reached=self.reached)
            found = hessians.finish(inputs)
            if (len(hessians.waiting), hessians.leaders) == before:
                raise _C.Error(
                    f"calibrate: reaches {next(iter(hessians.waiting))} in its first call but in no later one; must "
                    "run the model on the same samples each time"
                )

    def gptq_group(self, collected: Collected, damping: float | None, step: Callable[[str], None]) -> None:
        """Quantizes the layers that share a Hessian in one run, as if their rows were one weight's."""
        begin, names, k = time.perf_counter(), collected.names, len(collected.hessian)
        step(names[0])
        wanted = default_damping(k, collected.rows) if damping is None else damping
        scale = self.scale(names[0])
        with exact_mode(collected.hessian.device), prefix_errors(names[0]):
            factored = factor(collected.hessian, wanted)
            weights = [weight_of(self.layers, name) for name in names]
            joined = weights[0] if len(weights) == 1 else torch.cat([w.float() for w in weights])
            data, blocks, _ = gptq(joined, factored, scale)
            del joined
            seconds = time.perf_counter() - begin
            sizes, total = [len(w) for w in weights], sum(len(w) for w in weights)
            for name, weight, *own in zip(names, weights, data.split(sizes), blocks.split(sizes)):
                if name != names[0]:
                    step(name)
                begin = time.perf_counter()
                packed = own[0].clone(), own[1].clone(), scale  # for storage that layers do not share
                after, before, output_norm = output_errors(weight, packed, collected.hessian)
                raised = factored.damping if factored.damping != wanted else None
                error = weight_error(weight, *packed, "linear")
                result = Result(*packed, error, after, before, collected.rows, raised, 0.0, norm(weight), output_norm)
                spent = time.perf_counter() - begin + seconds * len(weight) / max(total, 1)
                self.keep(name, replace(result, seconds=spent))

    def keep(self, name: str, result: Result) -> None:
        tensors = {key: getattr(result, key) for key in ("weight", "weight_scale", "weight_global_scale")}
        waiting = {key: t.cpu() if t.is_cuda else t for key, t in tensors.items()}
        self.results[name] = replace(result, **waiting)


def output_errors(
    weight: Tensor, packed: tuple[Tensor, Tensor, Tensor], statistics: Tensor
) -> tuple[float, float, float]:
    """sqrt(tr(D H D') / tr(W H W')) of a weight W and its error D: of `packed`, and of "amax6" by the weight's own
    scale; and tr(W H W'). H is `statistics` [K, K], or has them as its diagonal [K]."""
    own = invertible(torch.as_tensor(_api.amax_scale(weight)).reshape(()))
    total = after = before = 0.0
    for row in range(0, len(weight), ERROR_ROWS):
        rows = slice(row, row + ERROR_ROWS)
        w = weight[rows].float()
        data, scale = _api.quantize(weight[rows], global_scale=own, scale_layout="linear")
        total += quadratic(w, statistics)
        after += quadratic(w - dense(packed[0][rows], packed[1][rows], packed[2]), statistics)
        before += quadratic(w - dense(data, scale, own), statistics)
    return ((after / total) ** 0.5, (before / total) ** 0.5, total) if total else (0.0, 0.0, 0.0)


def norm(weight: Tensor) -> float:
    """The sum of squares, by slices of rows."""
    return sum(float(w.float().square().sum(dtype=torch.float64)) for w in weight.split(ERROR_ROWS))


def quadratic(rows: Tensor, statistics: Tensor) -> float:
    """The sum of d H d' over rows d. Rounding may make that of an H of low rank negative: it is 0 then."""
    product = rows * statistics if statistics.ndim == 1 else rows @ statistics
    return max(0.0, float((product * rows).sum(dtype=torch.float64)))


def dense(data: Tensor, scale: Tensor, global_scale: Tensor) -> Tensor:
    return torch.as_tensor(_api.dequantize(data, scale, global_scale=global_scale, scale_layout="linear"))
