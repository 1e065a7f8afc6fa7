"""Types of the annotations; imported by type checkers only, so that torch and NumPy stay optional."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar, Union

import numpy
import torch

# Results are of the library that the first argument is of.
Array = TypeVar("Array", torch.Tensor, "numpy.ndarray[Any, Any]")
AnyArray: TypeAlias = Union[torch.Tensor, "numpy.ndarray[Any, Any]"]
DType: TypeAlias = Union[torch.dtype, str, type, "numpy.dtype[Any]"]
