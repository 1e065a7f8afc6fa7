"""FP8 experts of a checkpoint, a layer for each expert, read into nvfp4.Fp8Experts."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from nvfp4 import _C
from nvfp4.checkpoints import fp8
from nvfp4.checkpoints.configuration import Mode
from nvfp4.checkpoints.experts.container import Container
from nvfp4.checkpoints.experts.naming import DOWN
from nvfp4.layers.experts.fp8_experts import Fp8Experts
from nvfp4.layers.experts.mixture import Description
from nvfp4.layers.experts.routed import RoutedExperts
from nvfp4.layers.fp8 import Fp8Linear, Fp8Tensors


class Fp8Container(Container):
    """A Container with an Fp8Tensors for each layer."""

    def by_name(self) -> Iterator[tuple[str, Fp8Tensors]]:
        """The layers by their names after the container's."""
        for role, layers in self.layers.items():
            for expert, tensors in layers.items():
                yield self.locals[role].format(expert), tensors

    def fp8_layers(self) -> dict[str, Fp8Tensors]:
        return {f"{self.name}.{local}": tensors for local, tensors in self.by_name()}

    def modes_of(self, name: str) -> dict[str, Mode]:
        return {f"{name}.{local}": fp8.mode_of(tensors) for local, tensors in self.by_name()}

    def make(self, about: Description, dtype: torch.dtype) -> Fp8Experts:
        first = self.check(about.gated, about.experts)
        for local, tensors in self.by_name():
            if (tensors.bias is not None) != about.bias:
                has, has_not = ("model", "checkpoint") if about.bias else ("checkpoint", "model")
                raise _C.Error(f"{self.name}.{local}.bias: is in the {has} but not in the {has_not}")
        layers = {local: Fp8Linear.from_packed(tensors) for local, tensors in self.by_name()}
        for layer in layers.values():
            layer.bias = None if layer.bias is None else layer.bias.to(dtype)
        try:
            made = Fp8Experts(
                about.experts,
                about.hidden,
                about.intermediate,
                layers,
                [self.locals[role] for role in first],
                self.locals[DOWN],
                about.activation,
                about.gated,
                about.limit,
                about.alpha,
            )
        except _C.Error as error:
            raise _C.Error(f"{self.name}: {error}") from None
        made.interleaved, made.transposed = about.interleaved, about.transposed
        made.is_transposed = about.is_transposed
        return made.to("meta")

    def fill(self, experts: RoutedExperts, interleaved: bool, device: torch.device | None = None) -> Fp8Experts:
        assert isinstance(experts, Fp8Experts)
        own = experts.layers
        for local, tensors in self.by_name():
            layer = own[local]
            place = layer.weight.device if device is None else device
            made = Fp8Linear.from_packed(tensors)
            if layer.bias is not None and made.bias is not None:
                made.bias = made.bias.to(layer.bias.dtype)
            layer._buffers.update((made if place.type == "meta" else made.to(place))._buffers)
        return experts
