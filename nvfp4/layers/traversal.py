"""Modules that replace a model's linear layers: the parts of a joined layer, and the hooks of a replaced one. And the
parameters that stay dense beside them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4.layers.linear import Linear
from nvfp4.layers.packed import PackedLinear

# Layers with one parent and, where the model calls them one after another, one input.
FUSED = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("gate_proj", "up_proj"), ("w1", "w3"))
LARGE_BYTES, LARGE_SHARE = 10**6, 0.01  # of a tensor that a report names: the smaller of both
HOOKS = (
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
    *("_backward_hooks", "_backward_pre_hooks", "_is_full_backward_hook"),
)


def keep_hooks(old: torch.nn.Module, new: torch.nn.Module) -> None:
    """Gives a module the forward and backward hooks of the one that it replaces. Their handles still remove them. Hooks
    of torch.nn.utils (weight_norm, pruning) compute the weight, which is quantized, and are left out. The hook of
    accelerate, which a device_map needs, wraps the new module's forward."""
    for name in HOOKS:
        hooks = getattr(old, name)
        if isinstance(hooks, dict) and any(computes_weight(hook) for hook in hooks.values()):
            hooks = type(hooks)((key, hook) for key, hook in hooks.items() if not computes_weight(hook))
        setattr(new, name, hooks)
    if (placed := getattr(old, "_hf_hook", None)) is not None:
        from accelerate.hooks import add_hook_to_module  # here: only a model that accelerate dispatched has one

        add_hook_to_module(new, placed)


def computes_weight(hook: object) -> bool:
    return type(hook).__module__.startswith("torch.nn.utils.")


def large(tensors: Mapping[str, Tensor], everything: int) -> dict[str, int]:
    """The bytes of tensors with more than 1 MB, or more than 1 % of all bytes."""
    limit = min(LARGE_BYTES, everything * LARGE_SHARE)
    return {name: t.nbytes for name, t in tensors.items() if t.nbytes > limit}


def find_dense(model: torch.nn.Module, layers: Iterable[torch.nn.Module], saved: int = 0) -> tuple[dict[str, int], int]:
    """The bytes of each large parameter that is not in one of these layers, and of all other parameters and buffers. A
    tensor with several names counts once, under the first. `saved`: the bytes by which the model was larger before, of
    which a large one is a part."""
    taken = {id(t) for layer in layers for t in (*layer.parameters(recurse=False), *layer.buffers(recurse=False))}
    everything = sum(t.nbytes for t in (*model.parameters(), *model.buffers())) + saved
    others = {name: t for name, t in model.named_parameters() if id(t) not in taken}
    buffers = sum(t.nbytes for t in model.buffers() if id(t) not in taken)
    return large(others, everything), sum(t.nbytes for t in others.values()) + buffers


def as_linear(module: Any) -> torch.nn.Linear | None:
    """A torch.nn.Linear, or one that shares the tensors of GPT-2's Conv1D, which has its weight as [K, N]. None for
    another module."""
    if isinstance(module, torch.nn.Linear):
        return module
    kind = conv1d()
    if kind is None or not isinstance(module, kind):
        return None
    (in_features, out_features), bias = module.weight.shape, module.bias
    linear = torch.nn.Linear(in_features, out_features, device="meta")
    linear.weight = torch.nn.Parameter(module.weight.detach().t(), requires_grad=False)
    linear.bias = bias
    return linear.train(module.training)


def is_plain(module: torch.nn.Module) -> bool:
    """Whether a module that as_linear takes computes x . W^T + bias and nothing else; a subclass may not."""
    return type(module) in (torch.nn.Linear, conv1d())


def conv1d() -> Any:
    """The class of GPT-2's linear layers, if transformers is loaded."""
    return getattr(sys.modules.get("transformers.pytorch_utils"), "Conv1D", None)


def not_linear(model: torch.nn.Module, dense: Mapping[str, int]) -> dict[str, str]:
    """Dense parameters that may be weights of products but are in no linear layer, with the reason: those with 3
    dimensions or more (experts), and those with 2 that are no embedding."""
    found = {}
    for name, count in dense.items():
        t, module = model.get_parameter(name), model.get_submodule(name.rpartition(".")[0])
        embedding = isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag))
        if t.ndim > 2 or (t.ndim == 2 and not embedding and as_linear(module) is None):
            kind = type(module).__name__
            shape = "x".join(map(str, t.shape))
            found[name] = f"is a parameter {shape} of a {kind}, no torch.nn.Linear; {count} bytes stay dense"
    return found


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
        self.kept: tuple[Tensor, int | None, dict[int, Tensor]] | None = None  # input, its version, outputs; of owner

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
        """This part's tensors, as before the layers were joined. They are shared."""
        whole, start = self.joined().packed(), sum(self.sizes[: self.index])
        rows = slice(start, start + self.sizes[self.index])
        scale = whole.weight_global_scale
        return PackedLinear(
            whole.weight[rows],
            whole.weight_scale[rows],
            scale[start] if scale.ndim else scale,
            whole.input_global_scale,
            None if whole.bias is None else whole.bias[rows],
            whole.activations,
            whole.pre_quant_scale,
        )

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__, kept=None)

    def forward(self, x: Tensor) -> Tensor:
        owner = self if self._owner[0] is None else self._owner[0]
        if not isinstance(self.joined(), Linear):
            raise _C.Error(
                f"layer: is joined with others, and a {type(self.joined()).__name__} is in place of the joined layer; "
                "must be an nvfp4.Linear (for adapters use fuse=False)"
            )
        if self.split == (type(self.joined()) is Linear):
            raise _C.Error("layer: is joined with layers that a parallel plan splits; must be in the plan as they are")
        # Inference tensors and those of a traced program have no version.
        traced = torch.compiler.is_dynamo_compiling() or x.is_inference()
        version = None if traced else x._version
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


def places_of(
    model: torch.nn.Module, layers: Mapping[str, torch.nn.Module]
) -> dict[str, list[tuple[torch.nn.Module, str]]]:
    """Maps each layer's name to the modules that have it as a child, with its name there."""
    names = {id(layer): name for name, layer in layers.items()}
    places: dict[str, list[tuple[torch.nn.Module, str]]] = {name: [] for name in layers}
    for module in model.modules():
        for attribute, child in module._modules.items():
            if id(child) in names:
                places[names[id(child)]].append((module, attribute))
    return places


def put(places: list[tuple[torch.nn.Module, str]], layer: torch.nn.Module) -> None:
    for module, attribute in places:
        setattr(module, attribute, layer)


def find_layers(model: torch.nn.Module) -> dict[str, Linear | FusedPart]:
    """The NVFP4 layers by name. A joined layer is listed by its parts."""
    found: dict[str, Linear | FusedPart] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, (Linear, FusedPart)) and name.rpartition(".")[0] not in found:
            found[name] = module
    return found
