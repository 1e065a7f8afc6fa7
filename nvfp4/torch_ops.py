"""torch.ops.nvfp4: nvfp4 as operators, for torch.compile, torch.export and tensor subclasses.

Importing this module registers them. `import nvfp4` imports it if torch is already imported, and so does the first
traced call. The kernels are C (csrc/bindings/torch/ops.c). This module has their fakes, which check arguments and
compute shapes without memory, and the functions that pass a call of nvfp4's functions to an operator.

    gemm(a, b, scale_a, scale_b, alpha, bias, c, alpha_value, beta, scale_layout, backend, flags, out_dtype) -> Tensor
    gemm_out(..., flags, Tensor(a!) out) -> ()
    custom_kernel(a, b, sfa_permuted, sfb_permuted, Tensor(a!) c) -> ()
    quantize(x, global_scale, global_value, scale_layout, block_scale="amax6") -> (Tensor, Tensor)
    dequantize(data, scale, global_scale, global_value, scale_layout, out_dtype) -> Tensor
    rms_norm_quantize(x, weight, Tensor(a!) residual, global_scale, global_value, eps, scale_layout) -> (Tensor, Tensor)
    rms_norm_quantize_out(..., scale_layout, Tensor(b!) data, Tensor(c!) scale) -> ()
    silu_mul_quantize(gate_up, global_scale, global_value, scale_layout) -> (Tensor, Tensor)
    silu_mul_quantize_out(..., scale_layout, Tensor(a!) data, Tensor(b!) scale) -> ()
    amax_scale(x, block_scale) -> Tensor
    swizzle(scale) -> Tensor
    unswizzle(scale, rows, columns) -> Tensor

A uint8 tensor of shape [0] stands for an absent scale_a, alpha, bias, c, residual or global_scale; backend "auto"
chooses by rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C

_C.register_torch_ops()

_ops = torch.ops.nvfp4


# ---- fakes: the C checks without memory, and the shapes of results ----


def _check(check: Callable[..., None], *arguments: Any) -> None:
    """Runs a check of _C on descriptions of the tensors. Symbolic sizes are checked when the operator runs: reading
    them now would specialise them."""
    tensors = [t for t in arguments if isinstance(t, Tensor)]
    if all(isinstance(n, int) for t in tensors for n in (*t.shape, *t.stride())):
        check(*(_described(t) if isinstance(t, Tensor) else t for t in arguments))


def _described(t: Tensor) -> tuple[str, int, tuple[int, ...], tuple[int, ...]] | None:
    """dtype, device, shape and strides as _C takes them; None for an absent tensor."""
    if t.dtype == torch.uint8 and t.shape == (0,):
        return None
    device = (t.device.index or 0) if t.device.type == "cuda" else -2 if t.device.type == "meta" else -1
    return str(t.dtype).removeprefix("torch."), device, tuple(t.shape), tuple(t.stride())


def _rows(name: str, t: Tensor) -> tuple[list[int], int, int]:
    """(batch, rows, columns) of a tensor of two or three dimensions."""
    if t.ndim not in (2, 3):
        raise _C.Error(f"{name}: has {t.ndim} dimensions; must have 2, or 3 with a leading batch")
    for i, size in enumerate(t.shape):  # before anything of that size is allocated
        if isinstance(size, int) and size >= 2**31:
            raise _C.Error(f"{name}: dimension {i} is {size}; must be between 0 and {2**31 - 1}")
    *batch, rows, columns = t.shape
    return batch, rows, columns


def _round_up(x: int, multiple: int) -> int:
    return (x + multiple - 1) // multiple * multiple


@torch.library.register_fake("nvfp4::gemm")
def _(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    alpha: Tensor,
    bias: Tensor,
    c: Tensor,
    alpha_value: float,
    beta: float,
    scale_layout: str,
    backend: str,
    flags: int,
    out_dtype: torch.dtype,
) -> Tensor:
    batch, m, _ = _rows("a", a)
    _, n, half_k = _rows("b", b)
    out = a.new_empty((*batch, m, half_k * 2 if flags & 4 else n), dtype=out_dtype)
    _check(_C.check_gemm, a, b, scale_a, scale_b, alpha, bias, c, out, beta, scale_layout, backend, flags)
    return out


@torch.library.register_fake("nvfp4::gemm_out")
def _(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    alpha: Tensor,
    bias: Tensor,
    c: Tensor,
    alpha_value: float,
    beta: float,
    scale_layout: str,
    backend: str,
    flags: int,
    out: Tensor,
) -> None:
    _check(_C.check_gemm, a, b, scale_a, scale_b, alpha, bias, c, out, beta, scale_layout, backend, flags)


@torch.library.register_fake("nvfp4::custom_kernel")
def _(a: Tensor, b: Tensor, sfa_permuted: Tensor, sfb_permuted: Tensor, c: Tensor) -> None:
    _check(_C.check_custom_kernel, a, b, sfa_permuted, sfb_permuted, c)


def _quantized(like: Tensor, batch: list[int], rows: int, k: int, scale_layout: str) -> tuple[Tensor, Tensor]:
    scales = (rows, k // 16) if scale_layout == "linear" else (_round_up(rows, 128), _round_up(k // 16, 4))
    data = like.new_empty((*batch, rows, k // 2), dtype=torch.uint8)
    return data, like.new_empty((*batch, *scales), dtype=torch.float8_e4m3fn)


@torch.library.register_fake("nvfp4::quantize")
def _(
    x: Tensor, global_scale: Tensor, global_value: float, scale_layout: str, block_scale: str = "amax6"
) -> tuple[Tensor, Tensor]:
    data, scale = _quantized(x, *_rows("x", x), scale_layout)
    _check(_C.check_quantize, x, data, scale, global_scale, global_value, scale_layout, False)
    return data, scale


@torch.library.register_fake("nvfp4::dequantize")
def _(
    data: Tensor, scale: Tensor, global_scale: Tensor, global_value: float, scale_layout: str, out_dtype: torch.dtype
) -> Tensor:
    batch, rows, columns = _rows("data", data)
    x = data.new_empty((*batch, rows, columns * 2), dtype=out_dtype)
    _check(_C.check_quantize, x, data, scale, global_scale, global_value, scale_layout, True)
    return x


@torch.library.register_fake("nvfp4::rms_norm_quantize")
def _(
    x: Tensor,
    weight: Tensor,
    residual: Tensor,
    global_scale: Tensor,
    global_value: float,
    eps: float,
    scale_layout: str,
) -> tuple[Tensor, Tensor]:
    out = _quantized(x, *_rows("x", x), scale_layout)
    _check(_C.check_rms_norm_quantize, x, weight, residual, *out, global_scale, global_value, eps, scale_layout)
    return out


@torch.library.register_fake("nvfp4::rms_norm_quantize_out")
def _(
    x: Tensor,
    weight: Tensor,
    residual: Tensor,
    global_scale: Tensor,
    global_value: float,
    eps: float,
    scale_layout: str,
    data: Tensor,
    scale: Tensor,
) -> None:
    _check(_C.check_rms_norm_quantize, x, weight, residual, data, scale, global_scale, global_value, eps, scale_layout)


@torch.library.register_fake("nvfp4::silu_mul_quantize")
def _(gate_up: Tensor, global_scale: Tensor, global_value: float, scale_layout: str) -> tuple[Tensor, Tensor]:
    batch, rows, columns = _rows("gate_up", gate_up)
    out = _quantized(gate_up, batch, rows, columns // 2, scale_layout)
    _check(_C.check_silu_mul_quantize, gate_up, *out, global_scale, global_value, scale_layout)
    return out


@torch.library.register_fake("nvfp4::silu_mul_quantize_out")
def _(
    gate_up: Tensor, global_scale: Tensor, global_value: float, scale_layout: str, data: Tensor, scale: Tensor
) -> None:
    _check(_C.check_silu_mul_quantize, gate_up, data, scale, global_scale, global_value, scale_layout)


@torch.library.register_fake("nvfp4::amax_scale")
def _(x: Tensor, block_scale: str) -> Tensor:
    scale = x.new_empty(1, dtype=torch.float32)
    _check(_C.check_amax_scale, x, scale, block_scale)
    return scale


@torch.library.register_fake("nvfp4::swizzle")
def _(scale: Tensor) -> Tensor:
    batch, rows, columns = _rows("scale", scale)
    swizzled = scale.new_empty((*batch, _round_up(rows, 128), _round_up(columns, 4)))
    _check(_C.check_swizzle, scale, swizzled, False)
    return swizzled


@torch.library.register_fake("nvfp4::unswizzle")
def _(scale: Tensor, rows: int, columns: int) -> Tensor:
    linear = scale.new_empty((*scale.shape[:1], rows, columns) if scale.ndim == 3 else (rows, columns))
    _check(_C.check_swizzle, linear, scale, True)
    return linear


# ---- calls, with all arguments of the functions in nvfp4._api ----


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
            raise _C.Error(message) from None
        raise


def _check_tensors(required: dict[str, Any], **optional: Any) -> None:
    present = {name: t for name, t in optional.items() if t is not None}
    for name, t in {**required, **present}.items():
        if not isinstance(t, Tensor):
            raise _C.Error(f"{name}: is of type {type(t).__name__}; must be a torch.Tensor, as other arguments are")


def _check_no_grad(**tensors: Any) -> None:
    if torch.is_grad_enabled():
        for name, t in tensors.items():
            if isinstance(t, Tensor) and t.requires_grad:
                raise _C.Error(
                    f"{name}: requires grad; nvfp4 computes no gradients: pass {name}.detach() or use torch.no_grad()"
                )


def _optional(t: Any, like: Tensor) -> Tensor:
    return like.new_empty(0, dtype=torch.uint8) if t is None else t


def _number_or_tensor(name: str, x: Any, like: Tensor) -> tuple[Tensor, float]:
    if isinstance(x, Tensor):
        return x, 1.0
    if hasattr(type(x), "__dlpack__") and getattr(x, "shape", None) != ():
        raise _C.Error(f"{name}: is of type {type(x).__name__}; must be a number or a torch.Tensor")
    return _optional(None, like), 1.0 if x is None else float(x)


_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def _dtype(out_dtype: Any, default: torch.dtype) -> torch.dtype:
    """The torch dtype of out_dtype: a torch dtype, a name, or a NumPy type (whose __name__ is the name)."""
    if out_dtype is None or isinstance(out_dtype, torch.dtype):
        return default if out_dtype is None else out_dtype
    name = out_dtype if isinstance(out_dtype, str) else getattr(out_dtype, "__name__", str(out_dtype))
    if name not in _DTYPES:
        raise _C.Error(f"out_dtype: is {name}; must be float16, bfloat16 or float32")
    return _DTYPES[name]


def gemm(
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    alpha: Any,
    bias: Any,
    c: Any,
    beta: float,
    out: Any,
    out_dtype: Any,
    scale_layout: str,
    backend: str | None,
    flags: int,
) -> Any:
    _check_tensors({"a": a, "b": b, "scale_b": scale_b}, scale_a=scale_a, bias=bias, c=c, out=out)
    _check_no_grad(a=a, alpha=alpha, bias=bias, c=c, out=out)
    alpha_tensor, alpha_value = _number_or_tensor("alpha", alpha, a)
    common = (
        (a, b, _optional(scale_a, a), scale_b, alpha_tensor, _optional(bias, a), _optional(c, a))
        + (alpha_value, float(beta), scale_layout, "auto" if backend is None else backend, flags)
    )  # fmt: skip
    if out is None:
        return _call(
            _ops.gemm, *common, _dtype(out_dtype, torch.bfloat16 if a.dtype == torch.bfloat16 else torch.float16)
        )
    if _dtype(out_dtype, out.dtype) != out.dtype:
        raise _C.Error(f"out_dtype: is {out_dtype} but out has {out.dtype}")
    _call(_ops.gemm_out, *common, out)
    return out


def custom_kernel(a: Any, b: Any, sfa_permuted: Any, sfb_permuted: Any, c: Any) -> Any:
    _check_tensors({"a": a, "b": b, "sfa_permuted": sfa_permuted, "sfb_permuted": sfb_permuted, "c": c})
    _check_no_grad(c=c)
    _call(_ops.custom_kernel, a, b, sfa_permuted, sfb_permuted, c)
    return c


def quantize(x: Any, global_scale: Any, scale_layout: str, block_scale: str) -> Any:
    _check_tensors({"x": x})
    _check_no_grad(x=x, global_scale=global_scale)
    return _call(_ops.quantize, x, *_number_or_tensor("global_scale", global_scale, x), scale_layout, block_scale)


def dequantize(data: Any, scale: Any, global_scale: Any, scale_layout: str, out_dtype: Any) -> Any:
    _check_tensors({"data": data, "scale": scale})
    _check_no_grad(global_scale=global_scale)
    scales = (scale, *_number_or_tensor("global_scale", global_scale, data))
    return _call(_ops.dequantize, data, *scales, scale_layout, _dtype(out_dtype, torch.float32))


def _fused(name: str, out: Any, *arguments: Any) -> Any:
    """An operator, or where `out` is given its form that writes data and scale."""
    if out is None:
        return _call(getattr(_ops, name), *arguments)
    if not isinstance(out, tuple) or len(out) != 2:
        what = f"has {len(out)} elements" if isinstance(out, tuple) else f"is of type {type(out).__name__}"
        raise _C.Error(f"out: {what}; must be a tuple of data and scale")
    _check_tensors({"data": out[0], "scale": out[1]})
    _check_no_grad(data=out[0], scale=out[1])
    _call(getattr(_ops, f"{name}_out"), *arguments, *out)
    return out


def rms_norm_quantize(
    x: Any, weight: Any, eps: float, residual: Any, global_scale: Any, scale_layout: str, out: Any
) -> Any:
    _check_tensors({"x": x, "weight": weight}, residual=residual)
    _check_no_grad(x=x, weight=weight, residual=residual, global_scale=global_scale)
    scales = _number_or_tensor("global_scale", global_scale, x)
    return _fused("rms_norm_quantize", out, x, weight, _optional(residual, x), *scales, float(eps), scale_layout)


def silu_mul_quantize(gate_up: Any, global_scale: Any, scale_layout: str, out: Any) -> Any:
    _check_tensors({"gate_up": gate_up})
    _check_no_grad(gate_up=gate_up, global_scale=global_scale)
    scales = _number_or_tensor("global_scale", global_scale, gate_up)
    return _fused("silu_mul_quantize", out, gate_up, *scales, scale_layout)


def amax_scale(x: Any, block_scale: str) -> Any:
    _check_tensors({"x": x})
    _check_no_grad(x=x)
    return _call(_ops.amax_scale, x, block_scale)


def swizzle(scale: Any) -> Any:
    return _call(_ops.swizzle, scale)


def unswizzle(scale: Any, rows: int, columns: int) -> Any:
    return _call(_ops.unswizzle, scale, rows, columns)
