"""Linear layers that share an input and are computed as one: the parts of a joined layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4.layers.linear import Linear, QuantizedInput
from nvfp4.layers.packed import PackedLinear

# Layers with one parent and, where the model calls them one after another, one input.
FUSED = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("gate_proj", "up_proj"), ("w1", "w3"))


class FusedPart(torch.nn.Module):
    """One of several linear layers that share an input and are computed as one, `linear`, by the first that is called.

    The outputs of the other parts are kept until each is called with the same tensor object, unchanged. `join` makes
    the parts; the first of them owns the joined layer, and with it the state dict's tensors.
    """

    def __init__(self, owner: FusedPart | None, linear: Linear, index: int, sizes: list[int]) -> None:
        super().__init__()
        self.linear = linear if owner is None else None
        self._owner = (owner,)  # a tuple, so that it is no submodule
        self.in_features, self.out_features = linear.in_features, sizes[index]
        self.index, self.sizes = index, sizes
        self.split = False  # among ranks, by nvfp4.parallel; `linear` and `sizes` are this rank's from the first on
        # The owner keeps an input, its version and the outputs of other parts.
        self.kept: tuple[Tensor | QuantizedInput, int | None, dict[int, Tensor]] | None = None

    @classmethod
    def join(cls, layers: Sequence[Linear]) -> list[FusedPart]:
        linear, sizes = Linear.fuse(layers), [layer.out_features for layer in layers]
        linear.train(layers[0].training)
        first = cls(None, linear, 0, sizes).train(layers[0].training)
        others = [cls(first, linear, i, sizes).train(layers[i].training) for i in range(1, len(layers))]
        return [first, *others]

    def joined(self) -> Linear:
        """Returns the layer that computes all parts."""
        owner = self if self._owner[0] is None else self._owner[0]
        assert owner.linear is not None
        return owner.linear

    def packed(self) -> PackedLinear:
        """This part's tensors, as before the layers were joined. Those with rows are shared; the others are copies, as
        save_pretrained stores no tensor under two names."""
        whole, start = self.joined().packed(), sum(self.sizes[: self.index])
        rows = slice(start, start + self.sizes[self.index])
        scale = whole.weight_global_scale
        given, before = (None if t is None else t.clone() for t in (whole.input_global_scale, whole.pre_quant_scale))
        return PackedLinear(
            whole.weight[rows],
            whole.weight_scale[rows],
            scale[start] if scale.ndim else scale.clone(),
            given,
            None if whole.bias is None else whole.bias[rows],
            whole.activations,
            before,
        )

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__, kept=None)

    def forward(self, x: Tensor | QuantizedInput) -> Tensor:
        owner = self if self._owner[0] is None else self._owner[0]
        if not isinstance(self.joined(), Linear):
            raise _C.Error(
                f"layer: is joined with others, and a {type(self.joined()).__name__} is in place of the joined layer; "
                "must be an nvfp4.Linear (for adapters use fuse=False)"
            )
        if self.split == (type(self.joined()) is Linear):
            raise _C.Error("layer: is joined with layers that a parallel plan splits; must be in the plan as they are")
        # Inference tensors and those of a traced program have no version.
        if isinstance(x, QuantizedInput) or torch.compiler.is_dynamo_compiling() or x.is_inference():
            version = None
        else:
            version = x._version
        if owner.kept is not None:
            given, given_version, outputs = owner.kept
            if given is x and given_version == version and self.index in outputs:
                y = outputs.pop(self.index)
                if not outputs:
                    owner.kept = None
                return y
        parts = self.joined()(x).split(self.sizes, -1)
        owner.kept = (x, version, {i: part for i, part in enumerate(parts) if i != self.index})
        return parts[self.index]

    def _get_name(self) -> str:
        return "nvfp4.FusedPart"  # as nvfp4.Linear's

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, index={self.index}"
