"""The weights of linear layers by weights="search" and "gptq", as tensors that wait for their place in the model.

Each layer's result is kept until all are there, for a model on a GPU in host memory. All of them are computed from the
dense model, so they depend neither on each other nor on how many Hessians fit in memory at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C, _api, _text
from nvfp4.layers.checks import prefix_errors
from nvfp4.layers.fused import FUSED
from nvfp4.layers.gptq import default_damping, exact_mode, factor, gptq
from nvfp4.layers.linear import Linear
from nvfp4.layers.packed import PackedLinear, invertible
from nvfp4.layers.traversal import as_linear
from nvfp4.quantizing.calibration import Inputs
from nvfp4.quantizing.hessians import Collected, Hessians, collect
from nvfp4.quantizing.linears import ERROR_ROWS, describe, replace_layer, weight_error
from nvfp4.quantizing.report import QuantizedLayer


@dataclass(frozen=True)
class Result:
    """A quantized weight, and what a report says of it (see QuantizedLayer).

    Attributes:
        weight, weight_scale, weight_global_scale (Tensor): as of PackedLinear, in host memory for a layer on a GPU.
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


# Keeps finished layers by name. One that stores them lets an interrupted run go on where it stopped.
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


def weight_of(linears: Mapping[str, torch.nn.Module], name: str) -> Tensor:
    linear = as_linear(linears[name])
    assert linear is not None
    return linear.weight.detach().contiguous()


def shared_scale(linears: Mapping[str, torch.nn.Module], names: Sequence[str]) -> Tensor:
    """The global scale of the rows of all these weights, as each format keeps it: that of the largest."""
    weights = [weight_of(linears, name) for name in names]
    scales = [torch.as_tensor(_api.amax_scale(w, block_scale="search")).reshape(()) for w in weights if bool(w.any())]
    return invertible(torch.stack(scales).amax() if scales else weights[0].new_ones((), dtype=torch.float32))


def searched(
    linears: Mapping[str, torch.nn.Module], name: str, names: Sequence[str], read: Inputs | None = None
) -> Result:
    """A layer's weight by "search", with the global scale of `names`, by what the layer has read if that is known."""
    begin, weight = time.perf_counter(), weight_of(linears, name)
    importance = None if read is None else read.importance()
    with exact_mode(weight.device), prefix_errors(name):
        scale = shared_scale(linears, names)
        data, blocks = _api.quantize(
            weight, global_scale=scale, block_scale="search", importance=importance, scale_layout="linear"
        )
        result = Result(data, blocks, scale, weight_error(weight, data, blocks, scale, "linear"))
        if read is not None and importance is not None:
            after, before = output_errors(weight, (data, blocks, scale), importance)
            result = replace(result, output_error=after, output_error_before=before, rows=read.rows)
    return replace(result, seconds=time.perf_counter() - begin)


class Weights:
    """Quantizes the weights of some layers into `results`.

    Args:
        model, linears: the dense layers by name, which stay as they are.
        results: may have layers of an earlier run with the same arguments, which are not quantized again.
    """

    def __init__(self, model: torch.nn.Module, linears: Mapping[str, torch.nn.Module], results: Results) -> None:
        self.model, self.linears, self.results = model, linears, results
        self.siblings = siblings_of(model, linears)

    def names(self, name: str) -> tuple[str, ...]:
        """The layers that share a global scale with this one, itself included."""
        return self.siblings.get(name, (name,))

    def unfinished(self) -> list[str]:
        """The layers without a result, and those that may be quantized in one run with such a layer: the bits of a
        matrix product may depend on its number of rows."""
        return [name for name in self.linears if any(other not in self.results for other in self.names(name))]

    def search(self, inputs: Mapping[str, Inputs]) -> None:
        """Quantizes all layers by "search", each by its own inputs, where it has read any."""
        names = self.unfinished()
        with _text.watched(len(names)) as step:
            for name in names:
                step(name)
                self.keep(name, searched(self.linears, name, self.names(name), inputs[name]))

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
        with _text.watched(len(unreached)) as step:
            for name in unreached:
                step(name)
                self.keep(name, searched(self.linears, name, self.names(name)))
        found = hessians.finish(inputs)
        while True:
            with _text.watched(sum(len(collected.names) for collected in found)) as step:
                while found:
                    self.gptq_group(found.pop(), damping, step)
            if not hessians.waiting:
                return
            before = len(hessians.waiting), dict(hessians.leaders)
            collect(self.model, self.linears, calibrate, hessians)
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
        with exact_mode(collected.hessian.device), prefix_errors(names[0]):
            scale = shared_scale(self.linears, self.names(names[0]))
            factored = factor(collected.hessian, wanted)
            weights = [weight_of(self.linears, name) for name in names]
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
                after, before = output_errors(weight, packed, collected.hessian)
                raised = factored.damping if factored.damping != wanted else None
                result = Result(*packed, weight_error(weight, *packed, "linear"), after, before, collected.rows, raised)
                spent = time.perf_counter() - begin + seconds * len(weight) / max(total, 1)
                self.keep(name, replace(result, seconds=spent))

    def keep(self, name: str, result: Result) -> None:
        tensors = {key: getattr(result, key) for key in ("weight", "weight_scale", "weight_global_scale")}
        waiting = {key: t.cpu() if t.is_cuda else t for key, t in tensors.items()}
        self.results[name] = replace(result, **waiting)


def output_errors(weight: Tensor, packed: tuple[Tensor, Tensor, Tensor], statistics: Tensor) -> tuple[float, float]:
    """sqrt(tr(D H D') / tr(W H W')) of a weight W and its error D: of `packed`, and of "amax6" by the weight's own
    scale. H is `statistics` [K, K], or has them as its diagonal [K]."""
    own = invertible(torch.as_tensor(_api.amax_scale(weight)).reshape(()))
    total = after = before = 0.0
    for row in range(0, len(weight), ERROR_ROWS):
        rows = slice(row, row + ERROR_ROWS)
        w = weight[rows].float()
        data, scale = _api.quantize(weight[rows], global_scale=own, scale_layout="linear")
        total += quadratic(w, statistics)
        after += quadratic(w - dense(packed[0][rows], packed[1][rows], packed[2]), statistics)
        before += quadratic(w - dense(data, scale, own), statistics)
    return ((after / total) ** 0.5, (before / total) ** 0.5) if total else (0.0, 0.0)


def quadratic(rows: Tensor, statistics: Tensor) -> float:
    """The sum of d H d' over rows d. Rounding may make that of an H of low rank negative: it is 0 then."""
    product = rows * statistics if statistics.ndim == 1 else rows @ statistics
    return max(0.0, float((product * rows).sum(dtype=torch.float64)))


def dense(data: Tensor, scale: Tensor, global_scale: Tensor) -> Tensor:
    return torch.as_tensor(_api.dequantize(data, scale, global_scale=global_scale, scale_layout="linear"))
