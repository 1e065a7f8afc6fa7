"""Input scales from sample inputs: what each layer and each expert reads while `calibrate` runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C, _api, _text
from nvfp4.layers.checks import LARGEST
from nvfp4.layers.experts.mixture import Description, matrices
from nvfp4.layers.packed import invertible


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


def input_scales(
    model: torch.nn.Module,
    linears: dict[str, torch.nn.Module],
    calibrate: Callable[[torch.nn.Module], Any],
    largest_value: float,
    reached: Mapping[str, Reached],
) -> dict[str, float]:
    """amax(|x|) / largest_value over all inputs x of each layer while `calibrate` runs, as each format keeps it;
    nothing for a layer that reads none or zeros alone. Notes in `reached` the experts that are called."""
    amax: dict[str, Tensor] = {}

    def hook(name: str) -> Callable[..., None]:
        def record(module: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            x = arguments[0] if arguments else next(iter(keywords.values()))  # forward has one argument
            if x.numel():
                largest = torch.stack(x.detach().aminmax()).abs().amax().float()
                amax[name] = largest if name not in amax else torch.maximum(amax[name], largest)

        return record

    calls = itertools.count(1)
    hooks = [layer.register_forward_pre_hook(hook(name), with_kwargs=True) for name, layer in linears.items()]
    hooks += [found.module.register_forward_pre_hook(found.record, with_kwargs=True) for found in reached.values()]
    try:
        with _text.watched(None) as step, torch.no_grad():
            hooks.append(model.register_forward_pre_hook(lambda *given: step(f"calibrate: call {next(calls)}")))
            calibrate(model)
    finally:
        for handle in hooks:
            handle.remove()
    scales = {}
    for name, largest in amax.items():
        scale = float(invertible(largest / largest_value))
        if not scale < float("inf"):
            raise _C.Error(f"{name}.input: amax is {float(largest):g} while calibrating; must be finite")
        if scale > 0:
            scales[name] = scale
    return scales
