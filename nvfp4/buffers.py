"""Modules whose scales keep their dtype when the module is cast, and survive pickle."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4.packed import short

if TYPE_CHECKING:
    from typing_extensions import Self

# Floating-point buffers that keep their dtype, and the integers that stand for them while a module is cast.
FIXED = {
    "weight_scale": torch.uint8,
    "weight_global_scale": torch.int32,
    "input_global_scale": torch.int32,
    "alpha": torch.int32,
}


class FixedBuffers(torch.nn.Module):
    """A module with some of the buffers of FIXED, and `weight`."""

    weight_scale: Tensor | None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Gives fn the buffers of fixed dtype as integers, which casting functions leave alone. `type` casts them too:
        they are moved instead."""

        def cast(t: Tensor) -> Tensor:
            result = fn(t)
            if result.dtype == t.dtype:
                return result
            if not t.is_floating_point():
                return t.to(result.device)
            if not result.is_floating_point():
                raise _C.Error(f"dtype: is {short(result.dtype)}; must be a floating-point type")
            return result

        before = {name: t for name in FIXED if (t := self._buffers.get(name)) is not None}
        given = {name: t.view(FIXED[name]) for name, t in before.items()}
        self._buffers.update(given)
        try:
            return super()._apply(cast, recurse)
        finally:
            for name, t in before.items():
                moved = self._buffers[name]
                self._buffers[name] = t if moved is given[name] or moved is None else moved.view(t.dtype)

    def __getstate__(self) -> dict[str, Any]:
        """Gives pickle, which cannot read back a float8 tensor, the scales as bytes."""
        state = dict(self.__dict__)
        if self.weight_scale is not None:
            state["_buffers"] = self._buffers | {"weight_scale": self.weight_scale.view(torch.uint8)}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.weight_scale is not None:
            self._buffers["weight_scale"] = self.weight_scale.view(torch.float8_e4m3fn)
