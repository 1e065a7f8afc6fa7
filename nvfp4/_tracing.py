"""Which function runs an operation: nvfp4._C's, or while torch is tracing an operator of torch.ops.nvfp4."""

from __future__ import annotations

from sys import modules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any, TypeVar

    Function = TypeVar("Function", bound=Callable[..., Any])

_torch = modules.get("torch")


def operation(name: str, function: Function) -> Function:
    """Returns `function`, which is _C's of this name. While torch.compile or torch.jit.trace is tracing, returns what
    calls the operator instead, with the same arguments. torch is never imported: without it nothing is traced."""
    torch = _find_torch() if _torch is None else _torch
    if torch is not None and (torch.compiler.is_dynamo_compiling() or torch._C._is_tracing()):
        from nvfp4 import torch_ops

        operator: Any = torch_ops.OPERATIONS[name]
        return operator
    return function


def _find_torch() -> ModuleType | None:
    """torch, if it has been imported since. torch.compile does not trace assignments to globals for good."""
    global _torch
    torch = modules.get("torch")
    if torch is not None and not torch.compiler.is_dynamo_compiling():
        _torch = torch
    return torch
