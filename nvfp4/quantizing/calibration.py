"""Statistics of the inputs that layers and experts read while `calibrate` runs: largest values, squares, rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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


class Inputs:
    """Statistics of a layer's inputs: the largest magnitude, the number of rows, and if wanted the sum of squares of
    each channel."""

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
        return None if self.squares is None else importance(self.squares)


def importance(squares: Tensor) -> Tensor:
    """Sums of squares of channels over their mean, float32 [K]."""
    mean = squares.mean()
    return (squares / torch.where(mean > 0, mean, 1.0)).float()


@dataclass(frozen=True)
class Product:
    """The weight of a product of one expert, read when it is asked for: gate and up as one, or down.

    Attributes:
        module, about: the module of all experts, dense.
        which: 0 for gate and up, 1 for down.
    """

    module: torch.nn.Module
    about: Description
    expert: int
    which: int

    @property
    def weight(self) -> Tensor:
        """[P * N, K], the rows of gate before those of up; it may be no view of the module's parameter."""
        return matrices(self.module, self.about)[0][self.which][self.expert].flatten(0, 1)


class Reached:
    """Statistics of what the products of a module's experts read.

    Attributes:
        names: those of the products, a pair for each expert: that of gate and up, and that of down.
        products: the products by name.
        inputs: what each product has read, by name, and by the module's name what its tokens are.
    """

    def __init__(self, name: str, module: torch.nn.Module, about: Description) -> None:
        self.name, self.module, self.about, self.experts = name, module, about, about.experts
        first = "gate_up_proj" if about.gated else "up_proj"
        self.names = [(f"{name}.{e}.{first}", f"{name}.{e}.down_proj") for e in range(about.experts)]
        self.products = {
            key: Product(module, about, e, which) for e, pair in enumerate(self.names) for which, key in enumerate(pair)
        }
        self.inputs = {key: Inputs() for key in (name, *self.products)}

    def reader(self, note: Callable[[str, Tensor], None], wanted: Callable[[str], bool]) -> Hook:
        """A hook before the module's forward that calls note(name, rows) for each product, and for the module itself
        with its tokens, if wanted(name)."""

        def hook(module: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            if not any(wanted(key) for key in self.inputs):
                return
            given = [*arguments, *keywords.values()]
            index = next((t for t in given[1:] if isinstance(t, Tensor) and not t.is_floating_point()), None)
            x = given[0].detach().reshape(-1, self.about.hidden)
            if not len(x):
                return
            if index is None:  # rows in the order of their experts; those of zeros stand for none
                index = torch.arange(self.experts, device=x.device).repeat_interleave(len(x) // self.experts)
                index = torch.where((x != 0).any(1), index, self.experts)
            index = index.detach().reshape(len(x), -1)
            if wanted(self.name):
                note(self.name, x)
            for e in index.unique().tolist():
                if 0 <= e < self.experts and any(map(wanted, self.names[e])):
                    self.measure(e, x[(index == e).any(1)], note, wanted)

        return hook

    def measure(
        self, expert: int, x: Tensor, note: Callable[[str, Tensor], None], wanted: Callable[[str], bool]
    ) -> None:
        """Notes what an expert's products read: rows x, and what its activation makes of their products."""
        first, second = self.names[expert]
        if wanted(first):
            note(first, x)
        if not wanted(second):
            return
        weights, biases = matrices(self.module, self.about)
        weight, bias = weights[0][expert], None if biases[0] is None else biases[0][expert]
        inner = [x @ part.mT if bias is None else x @ part.mT + bias[p] for p, part in enumerate(weight)]
        about, up = self.about, inner[1] if self.about.gated else None
        note(
            second,
            _api.gated(inner[0], up, about.activation, limit=about.limit, alpha=about.alpha, out_dtype=torch.float32),
        )

    def input_scales(self) -> tuple[Tensor, Tensor] | None:
        """The global scales of the inputs of both products, [E] each; None where no expert has read a number but zero.
        An expert that has not takes the largest of all."""
        read = [[self.inputs[pair[which]].amax for pair in self.names] for which in range(2)]
        amax = torch.tensor([[0.0 if t is None else float(t) for t in row] for row in read])
        if not bool(amax.isfinite().all()):
            raise _C.Error(f"{self.name}.input: amax is {float(amax.amax()):g} while calibrating; must be finite")
        scales = invertible(amax / LARGEST["amax6"])  # by which nvfp4.Experts quantizes inputs
        if not bool((scales.amax(1) > 0).all()):
            return None
        gate_up, down = torch.where(scales > 0, scales, scales.amax(1, keepdim=True))
        return gate_up, down

    def missed(self) -> list[int]:
        return [e for e, (first, _) in enumerate(self.names) if not self.inputs[first].rows]


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
