"""Types of the annotations; imported by type checkers only, so that torch and NumPy stay optional."""

from __future__ import annotations

from typing import Any, TypeAlias, Union

import numpy
import torch

Array: TypeAlias = Union[torch.Tensor, "numpy.ndarray[Any, Any]"]
DType: TypeAlias = Union[torch.dtype, str, type, "numpy.dtype[Any]"]
