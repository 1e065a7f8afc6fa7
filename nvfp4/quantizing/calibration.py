"""What each layer and each expert reads while `calibrate` runs: largest values, squares, numbers of rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C, _api, _text
from nvfp4.layers.checks import LARGEST
from nvfp4.layers.experts.mixture import Description, matrices
from nvfp4.layers.gptq import exact_mode
from nvfp4.layers.packed import invertible

ROWS = 4096  # of an input, that are fp32 at a time
Hook = Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], None]


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


class Inputs:
    """What a layer has read: the largest magnitude, the number of rows, and if wanted the sum of squares of each
    channel."""

    def __init__(self) -> None:
        self.amax: Tensor | None = None
        self.rows = 0
        self.squares: Tensor | None = None  # float64 [K]

    def add(self, x: Tensor, squares: bool) -> None:
        with exact_mode(x.device):
            largest = torch.stack(x.detach().aminmax()).abs().amax().float()
            self.amax = largest if self.amax is None else torch.maximum(self.amax, largest)
            rows = x.detach().reshape(-1, x.shape[-1])
            self.rows += len(rows)
            for part in rows.split(ROWS) if squares else ():
                own = part.float().square().sum(0).double()
                self.squares = own if self.squares is None else self.squares + own

    def input_scale(self, name: str, largest_value: float) -> float | None:
        """amax / largest_value as each format keeps it; None for a layer that has read nothing or zeros alone."""
        if self.amax is None:
            return None
        scale = float(invertible(self.amax / largest_value))
        if not scale < float("inf"):
            raise _C.Error(f"{name}.input: amax is {float(self.amax):g} while calibrating; must be finite")
        return scale if scale > 0 else None

    def importance(self) -> Tensor | None:
        """The mean square of each channel over their mean, float32 [K]; None for a layer that has read nothing."""
        if self.squares is None:
            return None
        mean = self.squares.mean()
        return (self.squares / torch.where(mean > 0, mean, 1.0)).float()


def run(
    model: torch.nn.Module, calibrate: Callable[[torch.nn.Module], Any], hooks: Iterable[tuple[torch.nn.Module, Hook]]
) -> None:
    """Calls `calibrate` while these hooks see what their modules read."""
    calls = itertools.count(1)
    handles = [module.register_forward_pre_hook(hook, with_kwargs=True) for module, hook in hooks]
    try:
        with _text.watched(None) as step, torch.no_grad():
            handles.append(model.register_forward_pre_hook(lambda *given: step(f"calibrate: call {next(calls)}")))
            calibrate(model)
    finally:
        for handle in handles:
            handle.remove()


def reader(take: Callable[[Tensor], None]) -> Hook:
    """A hook that gives `take` each input of a layer that has a number."""

    def hook(module: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        x = arguments[0] if arguments else next(iter(keywords.values()))  # forward has one argument
        if x.numel():
            take(x)

    return hook
