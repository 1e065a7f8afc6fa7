"""Types of the annotations; imported by type checkers only, so that torch and NumPy stay optional."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, TypeVar, Union

import numpy
import torch


class DLPackArray(Protocol):
    """An array of any library."""

    def __dlpack__(self) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, Any]: ...


# Results are of the library that the first argument is of.
Array = TypeVar("Array", torch.Tensor, "numpy.ndarray[Any, Any]", DLPackArray)
AnyArray: TypeAlias = Union[torch.Tensor, "numpy.ndarray[Any, Any]", DLPackArray]
DType: TypeAlias = Union[torch.dtype, str, type, "numpy.dtype[Any]"]
