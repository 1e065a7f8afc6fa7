"""torch.ops.nvfp4: nvfp4 as operators, for torch.compile, torch.export and tensor subclasses.

Importing this module registers them. `import nvfp4` imports it if torch is already imported, and so does the first
traced call. Kernels and schemas are made in C (csrc/bindings/torch/ops.c) from the table of operations. This module
makes their fakes, which check arguments and compute shapes without memory, from the same table (_C.operations()), and
passes a call of nvfp4's functions to an operator.

The arguments of an operator are the tensors that are read, the scalars, and out_dtype where the caller names a dtype;
of its `_out` form the results instead, which it writes, before the scalars that have a default. A list of matrices has
an operator of its own, `_list`:

    gemm(a, b, scale_a, scale_b, alpha, bias, c, alpha_value, beta, scale_layout, backend, flags, out_dtype) -> Tensor
    gemm_out(..., flags, Tensor(a!) out) -> ()
    grouped_gemm_list(a, Tensor[] b, scale_a, Tensor[] scale_b, ends, ..., out_dtype) -> Tensor
    quantize(x, global_scale, global_value, scale_layout, block_scale="amax6") -> (Tensor, Tensor)

A number that may stand for a tensor is an argument beside it (alpha_value, global_value). A uint8 tensor of shape [0]
stands for an absent tensor; backend "auto" chooses by rule; no limit of gated is infinity.
`torch.ops.nvfp4.gemm.default._schema` is the whole schema of an operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C

_C.register_torch_ops()

_ops = torch.ops.nvfp4
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
_16_BIT = (torch.float16, torch.bfloat16)
_LAYOUTS = {"128x4": 0, "linear": 1}  # nvfp4_layout


class Operation:
    """A row of the table of operations: how its operators are called, and what their fakes return."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.name: str = row["name"]
        self.given: str = row["given"]
        self.tensors: list[dict[str, Any]] = row["tensors"]
        self.scalars: list[dict[str, Any]] = row["scalars"]
        self.results: list[dict[str, Any]] = row["results"]
        self.inputs = [t for t in self.tensors if t["role"] != "output" or self.given == "given"]
        self.outputs = [t for t in self.tensors if t not in self.inputs]
        self.lists = [t["name"] for t in self.inputs if t["list"]]
        self.stand_ins = {s["stands_for"]: s for s in self.scalars if s["stands_for"]}
        self.names_dtype = any(result["dtype"] == "caller" for result in self.results)

    # ---- fakes: the C checks without memory, and the shapes of results ----

    def fake(self, *stack: Any) -> Any:
        """A call that makes its results."""
        inputs = list(stack[: len(self.inputs)])
        scalars = self.all_scalars(stack[len(self.inputs) :])
        out_dtype = stack[len(self.inputs) + len(self.scalars)] if self.names_dtype else None
        outputs = [self.result(result, inputs, scalars, out_dtype) for result in self.results]
        self.check(*inputs, *scalars, *outputs)
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def fake_given(self, *stack: Any) -> None:
        """A call that writes results which it is given; scalars with a default come last."""
        first = len(self.inputs) + sum(scalar["default"] is None for scalar in self.scalars)
        required, outputs, rest = stack[len(self.inputs) : first], *_split(stack[first:], len(self.outputs))
        self.check(*stack[: len(self.inputs)], *self.all_scalars((*required, *rest)), *outputs)

    def all_scalars(self, given: tuple[Any, ...]) -> list[Any]:
        """The scalars of a call: torch leaves out those that have their default."""
        return [given[i] if i < len(given) else _default(scalar) for i, scalar in enumerate(self.scalars)]

    def check(self, *arguments: Any) -> None:
        """Checks a call in C by descriptions of its tensors. Symbolic sizes are checked when the operator runs: reading
        them now would specialise them."""
        tensors = [t for x in arguments for t in (x if isinstance(x, list) else [x]) if isinstance(t, Tensor)]
        sizes = [n for t in tensors for n in (*t.shape, *t.stride())]
        if all(isinstance(n, int) for n in sizes) and not any(isinstance(x, torch.SymInt) for x in arguments):
            _C.check(self.name, *(_described(t) if isinstance(t, (Tensor, list)) else t for t in arguments))

    def result(self, row: dict[str, Any], inputs: list[Any], scalars: list[Any], out_dtype: Any) -> Tensor:
        given = [_first(t) if isinstance(t, list) else t for t in inputs]
        names: dict[str, Any] = {tensor["name"]: (tensor["name"], t) for tensor, t in zip(self.inputs, given)}
        names |= {s["name"]: value for s, value in zip(self.scalars, scalars) if s["kind"] == "size"}
        text = row["flag_shape" if self.has_other_shape(row, scalars) else "shape"]
        dtype = {"first": given[0].dtype, "caller": out_dtype}.get(row["dtype"]) or getattr(torch, row["dtype"])
        return given[0].new_empty(eval(text, _SIZES, names), dtype=dtype)

    def has_other_shape(self, row: dict[str, Any], scalars: list[Any]) -> bool:
        for scalar, value in zip(self.scalars, scalars):
            if row["flags"] == scalar["name"]:
                bits = _LAYOUTS.get(value, 0) if scalar["kind"] == "layout" else value
                return bool(bits & row["flags_mask"])
        return False

    # ---- calls, with the arguments of _C's function ----

    def __call__(self, *arguments: Any) -> Any:
        tensors, rest = arguments[: len(self.inputs)], list(arguments[len(self.inputs) :])
        plain = len([s for s in self.scalars if not s["stands_for"]])
        scalars, rest = rest[:plain], rest[plain:]
        out = rest.pop(0) if self.given == "new_or_given" else None
        self.check_tensors(tensors)
        name = f"{self.name}_list" if self.takes_lists(tensors) else self.name
        stack, values = self.split_numbers(tensors)
        given = iter(scalars)
        for scalar in self.scalars:
            value = values[scalar["stands_for"]] if scalar["stands_for"] else next(given)
            stack.append(_plain(scalar["kind"], value))
        if self.given == "given":
            _call(getattr(_ops, name), *stack)
            return tensors[-1]
        if out is None:
            if self.names_dtype:
                stack.append(self.out_dtype(rest[0], tensors))
            return _call(getattr(_ops, name), *stack)
        outputs = self.given_outputs(out)
        if self.names_dtype and _dtype(rest[0], outputs[0].dtype) != outputs[0].dtype:
            raise _error("out_dtype", f"is {rest[0]} but out has {outputs[0].dtype}")
        last = sum(scalar["default"] is not None for scalar in self.scalars)
        required, defaults = _split(stack, len(stack) - last)
        _call(getattr(_ops, f"{name}_out"), *required, *outputs, *defaults)
        return out

    def check_tensors(self, tensors: tuple[Any, ...]) -> None:
        """Arguments that have to be tensors are torch's, and none has a gradient that would be lost."""
        for row, t in zip(self.inputs, tensors):
            number = row["name"] in self.stand_ins
            if row["list"] and isinstance(t, (list, tuple)):
                _check_elements(row["name"], t)
                continue
            if not isinstance(t, Tensor) and not number and not (t is None and row["optional"]):
                raise _error(
                    row["name"], f"is of type {type(t).__name__}", "must be a torch.Tensor, as other arguments are"
                )
        self.check_no_grad((row, t) for row, t in zip(self.inputs, tensors) if row["numbers"])

    def takes_lists(self, tensors: tuple[Any, ...]) -> bool:
        """Whether lists stand for the tensors for which they may: for all or for none."""
        listed = [isinstance(t, (list, tuple)) for row, t in zip(self.inputs, tensors) if row["list"]]
        for name, given in zip(self.lists[1:], listed[1:]):
            if given != listed[0]:
                first = f"{self.lists[0]} is {'one' if listed[0] else 'not'}"
                raise _error(name, f"is {'a' if given else 'no'} list but {first}")
        # TorchScript empties a list of constants when it first passes it.
        if any(listed) and not torch.compiler.is_dynamo_compiling() and torch._C._is_tracing():
            raise _error(self.lists[0], "is a list, which torch.jit.trace does not keep", "must be one tensor")
        return any(listed)

    def check_no_grad(self, tensors: Any) -> None:
        for row, t in tensors:
            if isinstance(t, Tensor) and t.requires_grad and torch.is_grad_enabled():
                name = row["name"]
                rule = f"nvfp4 computes no gradients: pass {name}.detach() or use torch.no_grad()"
                raise _error(name, "requires grad", rule)

    def split_numbers(self, tensors: tuple[Any, ...]) -> tuple[list[Any], dict[str, float]]:
        """The tensors of a call with an empty one for each that is absent, and the numbers that stand for tensors."""
        stack: list[Any] = []
        values: dict[str, float] = {}
        for row, t in zip(self.inputs, tensors):
            name = row["name"]
            if name in self.stand_ins:
                t, values[name] = _number_or_tensor(name, t)
            t = tensors[0].new_empty(0, dtype=torch.uint8) if t is None else t
            stack.append(t if isinstance(t, Tensor) else list(t))
        return stack, values

    def out_dtype(self, out_dtype: Any, tensors: tuple[Any, ...]) -> torch.dtype:
        result = next(result for result in self.results if result["dtype"] == "caller")
        first = tensors[0].dtype
        return _dtype(out_dtype, first if first in _16_BIT else getattr(torch, result["default_dtype"]))

    def given_outputs(self, out: Any) -> tuple[Tensor, ...]:
        if len(self.outputs) > 1 and (not isinstance(out, tuple) or len(out) != len(self.outputs)):
            what = f"has {len(out)} elements" if isinstance(out, tuple) else f"is of type {type(out).__name__}"
            names = [t["name"] for t in self.outputs]
            raise _error("out", what, f"must be a tuple of {', '.join(names[:-1])} and {names[-1]}")
        outputs = out if len(self.outputs) > 1 else (out,)
        for row, t in zip(self.outputs, outputs):
            if not isinstance(t, Tensor):
                raise _error(
                    row["name"], f"is of type {type(t).__name__}", "must be a torch.Tensor, as other arguments are"
                )
        self.check_no_grad(zip(self.outputs, outputs))
        return outputs


def _error(argument: str, value: str, rule: str | None = None) -> _C.Error:
    """An error with its parts as attributes, as errors from C have them."""
    error = _C.Error(f"{argument}: {value}" + (f"; {rule}" if rule else ""))
    error.argument, error.value, error.rule = argument, value, rule
    return error


def _split(stack: Any, count: int) -> tuple[Any, Any]:
    return stack[:count], stack[count:]


def _is_absent(t: Tensor) -> bool:
    """A uint8 tensor of shape [0] stands for an absent one."""
    return t.dtype == torch.uint8 and t.shape == (0,)


def _first(tensors: list[Tensor]) -> Tensor:
    """The tensor that gives a list's shape to results: the first of the list, with a dimension of size 1 before its
    own. The check rejects an empty list."""
    return tensors[0].unsqueeze(0) if tensors else torch.empty(1, 0, 0, dtype=torch.uint8)


def _check_elements(name: str, tensors: Any) -> None:
    for i, t in enumerate(tensors):
        if not isinstance(t, Tensor):
            what = f"element {i} of the list is of type {type(t).__name__}"
            raise _error(name, what, "must be a torch.Tensor, as other arguments are")


# ---- the functions of the texts of results' sizes (csrc/api/operation.h), of tensors with their names ----

_Named = tuple[str, Tensor]


def _check_dimensions(name: str, t: Tensor) -> None:
    for i, size in enumerate(t.shape):  # before anything of that size is allocated
        if isinstance(size, int) and size >= 2**31:
            raise _error(name, f"dimension {i} is {size}", f"must be between 0 and {2**31 - 1}")


def _matrix(named: _Named) -> Tensor:
    name, t = named
    if t.ndim not in (2, 3):
        raise _error(name, f"has {t.ndim} dimensions", "must have 2, or 3 with a leading batch")
    _check_dimensions(name, t)
    return t


def _stack(named: _Named) -> Tensor:
    name, t = named
    if t.ndim not in (3, 4):
        raise _error(name, f"has {t.ndim} dimensions", "must have 3, or 4 with parts")
    return t


def _batch_of(named: _Named) -> list[Any]:
    name, t = named
    if t.ndim != 3:
        return []
    _check_dimensions(name, t)
    return [t.shape[0]]


def _count_of(named: _Named) -> Any:
    return 1 if _is_absent(named[1]) else named[1].numel()


def _sorted_rows(rows: _Named, t: _Named) -> Any:
    return _matrix(t).shape[-2] if _is_absent(rows[1]) else rows[1].numel()


def _rows_of_parts(named: _Named) -> Any:
    t = _stack(named)
    return t.shape[-2] * (t.shape[1] if t.ndim == 4 else 1)


def _group_blocks(n: Any, ends: _Named) -> Any:
    most = torch.sym_min(_count_of(ends), n)
    return most + (n - most) // 128


_SIZES: dict[str, Any] = {
    "__builtins__": {},
    "batch_of": _batch_of,
    "rows_of": lambda t: _matrix(t).shape[-2],
    "columns_of": lambda t: _matrix(t).shape[-1],
    "count_of": _count_of,
    "sorted_rows": _sorted_rows,
    "rows_of_part": lambda t: _stack(t).shape[-2],
    "columns_of_part": lambda t: _stack(t).shape[-1],
    "rows_of_parts": _rows_of_parts,
    "group_blocks": _group_blocks,
    "round_up": lambda n, m: (n + m - 1) // m * m,
}


def _default(scalar: dict[str, Any]) -> Any:
    """The default of a scalar, with which torch leaves it out of a call."""
    return int(scalar["default"]) if scalar["kind"] == "flags" else scalar["default"]


def _described(t: Tensor | list[Tensor]) -> Any:
    """dtype, device, shape and strides as _C takes them; None for an absent tensor; a list of them for a list."""
    if isinstance(t, list):
        return [_described(one) for one in t]
    if _is_absent(t):
        return None
    device = (t.device.index or 0) if t.device.type == "cuda" else -2 if t.device.type == "meta" else -1
    return str(t.dtype).removeprefix("torch."), device, tuple(t.shape), tuple(t.stride())


def _plain(kind: str, value: Any) -> Any:
    """A scalar as an operator takes it."""
    if kind == "backend":
        return "auto" if value is None else value
    return float(value) if kind == "float" else value


def _number_or_tensor(name: str, x: Any) -> tuple[Tensor | None, float]:
    if isinstance(x, Tensor):
        return x, 1.0
    if hasattr(type(x), "__dlpack__") and getattr(x, "shape", None) != ():
        raise _error(name, f"is of type {type(x).__name__}", "must be a number or a torch.Tensor")
    return None, 1.0 if x is None else float(x)


def _dtype(out_dtype: Any, default: torch.dtype) -> torch.dtype:
    """The torch dtype of out_dtype: a torch dtype, a name, or a NumPy type (whose __name__ is the name)."""
    if out_dtype is None or isinstance(out_dtype, torch.dtype):
        return default if out_dtype is None else out_dtype
    name = out_dtype if isinstance(out_dtype, str) else getattr(out_dtype, "__name__", str(out_dtype))
    if name not in _DTYPES:
        raise _error("out_dtype", f"is {name}", "must be float16, bfloat16 or float32")
    return _DTYPES[name]


def _call(operator: Callable[..., Any], *arguments: Any) -> Any:
    """Runs an operator; turns its error, which torch raises as RuntimeError, back into nvfp4.Error."""
    if torch.compiler.is_dynamo_compiling():
        return operator(*arguments)
    try:
        return operator(*arguments)
    except NotImplementedError as error:  # a sparse tensor, a device of another make
        raise _C.Error(f"torch: {str(error).partition('. ')[0]}") from error
    except RuntimeError as error:
        message = _C.last_error()
        if message and str(error).startswith(message):
            _C.raise_last_error()
        raise


def _register(operation: Operation) -> None:
    fake = operation.fake_given if operation.given == "given" else operation.fake
    for name in (operation.name, f"{operation.name}_list")[: 2 if operation.lists else 1]:
        torch.library.register_fake(f"nvfp4::{name}")(fake)
        if operation.given == "new_or_given":
            torch.library.register_fake(f"nvfp4::{name}_out")(operation.fake_given)


OPERATIONS = {row["name"]: Operation(row) for row in _C.operations()}
for _operation in OPERATIONS.values():
    _register(_operation)


def call(name: str, *arguments: Any) -> Any:
    """Calls the operator of an operation with the arguments of _C's function of this name."""
    return OPERATIONS[name](*arguments)
