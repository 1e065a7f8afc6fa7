"""Rules of arguments that several layers share, with their error messages."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from nvfp4 import _C

LARGEST = {"amax6": 6.0 * 448.0, "four_over_six": 6.0 * 256.0}  # by block_scale: amax over the global scale
WEIGHTS = ("round", "search", "gptq")  # how codes and block scales of a weight are chosen


def check_tensor(name: str, t: object, dtype: torch.dtype | None, *shapes: tuple[int, ...]) -> None:
    """Rejects a value that is no tensor, or a tensor of another dtype (None allows float16, bfloat16 and float32) or of
    a shape that is none of these."""
    if not isinstance(t, Tensor):
        raise _C.Error(f"{name}: is of type {type(t).__name__}; must be a torch.Tensor")
    check_strided(name, t)
    if dtype is None and t.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise _C.Error(f"{name}: dtype is {short(t.dtype)}; must be float16, bfloat16 or float32")
    if dtype is not None and t.dtype != dtype:
        raise _C.Error(f"{name}: dtype is {short(t.dtype)}; must be {short(dtype)}")
    if shapes and t.shape not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        raise _C.Error(f"{name}: shape is {list(t.shape)}; must be {wanted}")


def check_strided(name: str, t: Tensor) -> None:
    if t.layout != torch.strided or t.is_nested:
        raise _C.Error(f"{name}: layout is {'nested' if t.is_nested else short(t.layout)}; must be strided")


def check_type(name: str, value: object, kind: type | tuple[type, ...], wanted: str) -> None:
    if not isinstance(value, kind):
        raise _C.Error(f"{name}: is of type {type(value).__name__}; must be {wanted}")


def check_dense_dtype(dtype: torch.dtype) -> None:
    if dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise _C.Error(f"dtype: is {short(dtype)}; must be float16, bfloat16 or float32")


def check_weights(weights: str) -> None:
    if weights not in WEIGHTS:
        raise _C.Error(f"weights: is {weights!r}; must be 'round', 'search' or 'gptq'")


def check_damping(damping: object, weights: str) -> None:
    if damping is None:
        return
    if weights != "gptq":
        raise _C.Error(f"damping: is given but weights is {weights!r}; must be None then")
    if isinstance(damping, bool) or not isinstance(damping, (int, float)):
        raise _C.Error(f"damping: is of type {type(damping).__name__}; must be a number or None")
    if not 0 < damping < math.inf:
        raise _C.Error(f"damping: is {damping:g}; must be positive and finite")


def check_block_scale(block_scale: str) -> None:
    if block_scale not in LARGEST:
        raise _C.Error(f"block_scale: is {block_scale!r}; must be 'amax6' or 'four_over_six'")


def check_positive(name: str, t: Tensor) -> None:
    """Rejects a scale that is not positive and finite; reads it from its device."""
    if t.is_meta:
        return
    wrong = ~((t > 0) & t.isfinite())
    if bool(wrong.any()):
        value = float(t.flatten()[int(wrong.flatten().nonzero()[0])])
        raise _C.Error(f"{name}: is {value:g}; must be positive and finite")


def short(of: torch.dtype | torch.layout) -> str:
    return str(of).removeprefix("torch.")


@contextlib.contextmanager
def prefix_errors(name: str) -> Iterator[None]:
    """Puts a layer's name in front of an error message."""
    try:
        yield
    except _C.Error as error:
        raise _C.Error(f"{name}.{error}") from None
