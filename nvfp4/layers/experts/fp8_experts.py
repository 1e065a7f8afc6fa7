"""nvfp4.Fp8Experts: the experts of a mixture with FP8 weights, in place of a module of transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from nvfp4 import _C, _api
from nvfp4.layers.checks import check_type
from nvfp4.layers.experts.routed import Factors, RoutedExperts
from nvfp4.layers.experts.training import Gradient
from nvfp4.layers.fp8 import Fp8Linear, input_gradient


class Fp8Experts(RoutedExperts):
    """The experts of a mixture with FP8 weights. Each of their layers is an nvfp4.Fp8Linear, in the mode that it has.

    nvfp4.load makes it of the FP8 experts of a checkpoint that also has NVFP4 layers.

    Args:
        num_experts (int): E, 1 to 1024.
        hidden_size (int): H, a positive multiple of 16.
        intermediate_size (int): I, a positive multiple of 16.
        layers (dict of Fp8Linear): the layers of all experts by their names, such as "7.gate_proj". They become
            modules of these names.
        first (tuple of str, optional): the names of the layers that read the input, with {} for the number of an
            expert: gate and up, [I, H] each, or one with the rows of both, which alternate if the attribute
            `interleaved` is set. Default: ("{}.gate_proj", "{}.up_proj").
        down (str, optional): the name of the layer behind the activation, [H, I]. Default: "{}.down_proj".
        activation, gated, limit, alpha, apply_router_weight_on_input (optional): as of nvfp4.Experts.

    Shape:
        hidden, top_k_index, top_k_weights, expert_map, output: as of nvfp4.Experts.

    An expert computes with the rows that are routed to it: a scale of the whole input ("tensor" without an input_scale)
    is that of these rows. The results of gate and up, of the activation, and of each expert are rounded to the dtype of
    hidden; the sum over a token's experts is computed in fp32 and rounded once.

    The host reads how many rows each expert has, so that a call is not captured in a CUDA graph, and compiled code
    breaks there. There are gradients with respect to hidden and top_k_weights, if all layers have activations=None.

    Raises:
        nvfp4.Error: an argument breaks a rule.
    """

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        layers: Mapping[str, Fp8Linear],
        first: Sequence[str] = ("{}.gate_proj", "{}.up_proj"),
        down: str = "{}.down_proj",
        activation: str = "silu",
        gated: bool = True,
        limit: float | None = None,
        alpha: float | None = None,
        apply_router_weight_on_input: bool = False,
    ) -> None:
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
        self.first, self.down = tuple(first), down
        if len(self.first) not in ((1, 2) if gated else (1,)):
            raise _C.Error(f"first: has {len(self.first)} names; must have {'1 or 2' if gated else '1'}")
        rows = intermediate_size * (2 if gated else 1) // len(self.first)
        sizes = dict.fromkeys(self.first, (rows, hidden_size)) | {down: (hidden_size, intermediate_size)}
        names = ", ".join(local.format(0) for local in sizes)
        wanted = {local.format(e): size for e in range(num_experts) for local, size in sizes.items()}
        for name, (n, k) in wanted.items():
            if name not in layers:
                raise _C.Error(f"layers: has no {name}; must have {names} of {num_experts} experts")
            layer = layers[name]
            check_type(f"layers: {name}", layer, Fp8Linear, "an nvfp4.Fp8Linear")
            if (layer.out_features, layer.in_features) != (n, k):
                raise _C.Error(
                    f"layers: {name} is {layer.out_features} x {layer.in_features} (N x K); must be {n} x {k}"
                )
        for name in layers:
            if name not in wanted:
                raise _C.Error(f"layers: has {name}, which is none of {names} of {num_experts} experts")
            *path, last = name.split(".")
            parent: torch.nn.Module = self
            for part in path:
                if part not in parent._modules:
                    parent.add_module(part, torch.nn.Module())
                parent = parent.get_submodule(part)
            parent.add_module(last, layers[name])

    def layer(self, local: str, expert: int) -> Fp8Linear:
        """An expert's layer of `first` or `down`."""
        layer = self.get_submodule(local.format(expert))
        assert isinstance(layer, Fp8Linear)
        return layer

    @property
    def layers(self) -> dict[str, Fp8Linear]:
        """All layers by their names."""
        return {name: module for name, module in self.named_modules() if isinstance(module, Fp8Linear)}

    @property
    def nbytes(self) -> int:
        return sum(layer.packed().nbytes for layer in self.layers.values())

    @property
    def bias_dtype(self) -> torch.dtype | None:
        bias = self.layer(self.down, 0).bias
        return None if bias is None else bias.dtype

    def extra_repr(self) -> str:
        text = f"{self.num_experts}, hidden_size={self.hidden_size}, intermediate_size={self.intermediate_size}"
        text += f", activation={self.activation!r}, gated={self.gated}"
        given = {"limit": self.limit, "alpha": self.alpha}
        return text + "".join(f", {name}={value}" for name, value in given.items() if value is not None)

    # ---- the computation ----

    def forward(
        self,
        hidden: Tensor,
        top_k_index: Tensor | None = None,
        top_k_weights: Tensor | None = None,
        expert_map: Tensor | None = None,
    ) -> Tensor:
        return self._routed(hidden, top_k_index, top_k_weights, expert_map, (None,) * 4)

    def _run(
        self, x: Tensor, rows: Tensor, ends: Tensor, places: Tensor, weights: Tensor | None, factors: Factors
    ) -> Tensor:
        if not torch.is_grad_enabled() or not any(t is not None and t.requires_grad for t in (x, weights)):
            return self._computed(x, rows, ends, places, weights)
        for name, layer in self.layers.items():
            if layer.activations is not None:
                raise _C.Error(
                    f"hidden: or top_k_weights requires a gradient, which {name} with activations="
                    f"{layer.activations!r} does not have; use torch.no_grad(), or activations=None"
                )
        result: Tensor = Gradient.apply(self, x, weights, rows, ends, places, *factors)
        return result

    def _computed(
        self, x: Tensor, rows: Tensor, ends: Tensor, places: Tensor, weights: Tensor | None, *adapters: None
    ) -> Tensor:
        y = self._outputs(self._inner(x, rows, ends), ends)
        result: Tensor = _api.moe_combine(y, places, weights, out_dtype=x.dtype)
        return result

    def _inner(self, x: Tensor, rows: Tensor, ends: Tensor) -> Tensor:
        """gate and up of each expert, side by side."""
        y = self._product(self.first, x.index_select(0, rows), ends)
        return y.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1).contiguous() if self._alternates() else y

    def _alternates(self) -> bool:
        """Whether the rows of gate and up alternate in one layer."""
        return self.gated and self.interleaved and len(self.first) == 1

    def _outputs(self, inner: Tensor, ends: Tensor, adapter: None = None) -> Tensor:
        return self._product((self.down,), self._hidden(inner), ends)

    def _product(self, names: tuple[str, ...], x: Tensor, ends: Tensor) -> Tensor:
        """Rows in the order of their experts, each times the layers of these names, side by side. Rows past the last
        end give zeros."""
        y = x.new_zeros(x.shape[0], sum(self.layer(name, 0).out_features for name in names))
        for e, own in spans(ends):
            y[own] = torch.cat([self.layer(name, e)(x[own]) for name in names], 1)
        return y

    def _transposed(self, of_down: bool, dy: Tensor, ends: Tensor) -> Tensor:
        """The gradient with respect to the rows of a product, [T, K] float32, of one with respect to its result."""
        names = (self.down,) if of_down else self.first
        if not of_down and self._alternates():
            dy = dy.unflatten(1, (2, -1)).transpose(1, 2).flatten(1)
        dx = dy.new_zeros(dy.shape[0], self.layer(names[0], 0).in_features, dtype=torch.float32)
        for e, own in spans(ends):
            for name, part in zip(names, dy[own].chunk(len(names), 1)):
                layer = self.layer(name, e)
                dx[own] += input_gradient(part.contiguous(), layer.weight, layer.weight_scale)
        return dx


def spans(ends: Tensor) -> list[tuple[int, slice]]:
    """The experts that have rows, and which. Ends on the meta device have no values, and stand for none."""
    last = [] if ends.is_meta else ends.tolist()
    return [(e, slice(start, end)) for e, (start, end) in enumerate(zip([0, *last], last)) if end > start]
