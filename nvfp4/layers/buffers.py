"""Buffers of a layer that keep their dtype when a module is cast, and float8 buffers that pickle can read back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4.layers.checks import short

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # by the bytes of the number that they stand for


class FixedBuffers(torch.nn.Module):
    """A module in which some buffers keep their dtype.

    Attributes:
        fixed: names of buffers that `.to(dtype)`, `.half()` and similar methods leave alone.
        e4m3: those of them that are float8_e4m3fn.
    """

    fixed: tuple[str, ...] = ()
    e4m3: tuple[str, ...] = ()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FixedBuffers:
        """Gives fn the buffers of fixed dtype as integers, which casting functions leave alone. `type` casts them too:
        they are moved instead."""
        before = {name: t for name in self.fixed if (t := self._buffers.get(name)) is not None}
        given = {name: t.view(_INTEGERS[t.itemsize]) for name, t in before.items()}
        self._buffers.update(given)
        try:
            return super()._apply(casting(fn), recurse)
        finally:
            for name, t in before.items():
                moved = self._buffers[name]
                self._buffers[name] = t if moved is given[name] or moved is None else moved.view(t.dtype)

    def no_tensors(self, state_dict: Mapping[str, Any], prefix: str) -> list[str]:
        """Messages on values of a state dict for this module's buffers that are no tensors, or nested ones."""
        given = {prefix + name: state_dict[prefix + name] for name in self._buffers if prefix + name in state_dict}
        return [
            f"{name}: is {'nested' if isinstance(t, Tensor) else f'of type {type(t).__name__}'}; must be a torch.Tensor"
            for name, t in given.items()
            if not isinstance(t, Tensor) or t.is_nested
        ]

    def wrong_dtypes(self, state_dict: Mapping[str, Any], prefix: str) -> list[str]:
        """Messages on tensors of a state dict that have another dtype than a fixed buffer, or than float32 where this
        module has none. torch would convert the values, or with assign=True keep the dtype."""
        messages = []
        for name in self.fixed:
            t, own = state_dict.get(prefix + name), self._buffers[name]
            dtype = torch.float32 if own is None else own.dtype
            if isinstance(t, Tensor) and t.dtype != dtype:
                wanted = short(dtype) if own is None else f"{short(dtype)} {list(own.shape)}"
                messages.append(f"{prefix}{name}: is {short(t.dtype)} {list(t.shape)}; must be {wanted}")
        return messages

    def __getstate__(self) -> dict[str, Any]:
        """Gives pickle, which cannot read back a float8 tensor, its bytes."""
        state = dict(self.__dict__)
        scales = {name: t for name in self.e4m3 if (t := self._buffers[name]) is not None}
        state["_buffers"] = self._buffers | {name: t.view(torch.uint8) for name, t in scales.items()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for name in self.e4m3:
            if (t := self._buffers[name]) is not None:
                self._buffers[name] = t.view(torch.float8_e4m3fn)


def casting(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function of torch.nn.Module._apply that moves integers and casts floating-point numbers alone."""

    def cast(t: Tensor) -> Tensor:
        result = fn(t)
        if result.dtype == t.dtype:
            return result
        if not t.is_floating_point():
            return t.to(result.device)
        if not result.is_floating_point():
            raise _C.Error(f"dtype: is {short(result.dtype)}; must be a floating-point type")
        return result

    return cast


def loaded(module: torch.nn.Module, name: str) -> dict[str, Tensor]:
    """The buffers of a layer that is loaded, by their names.

    Args:
        name: of the layer in its model, for the error message.
    """
    tensors = {key: t.detach() for key, t in module.named_buffers(recurse=False)}
    for key, t in tensors.items():
        if t.is_meta:
            raise _C.Error(f"{name}.{key}: is not loaded; quantized layers cannot be offloaded")
    return tensors


def aligned(t: Tensor, to: int = 8) -> Tensor:
    """Returns t, or a copy that is contiguous and at a multiple of `to` bytes: 8 for values, 16 for scales in the 128x4
    layout. A tensor in a mapped file may lie anywhere."""
    t = t.contiguous()
    return t.clone() if not t.is_meta and t.data_ptr() % to else t


def round_up(x: int, multiple: int) -> int:
    return math.ceil(x / multiple) * multiple


def stand_in(module: torch.nn.Module) -> None:
    """Gives a layer that holds a checkpoint's tensors what a class's _init_weights reads of a linear layer: a weight
    that counts as initialized, and a bias."""
    if "weight" not in module._buffers:
        weight: Any = torch.empty(0)
        weight._is_hf_initialized = True
        module.__dict__["weight"] = weight
    if "bias" not in module._buffers:
        module.__dict__["bias"] = None


def remove_stand_ins(module: torch.nn.Module) -> None:
    for name in ("weight", "bias"):
        module.__dict__.pop(name, None)
