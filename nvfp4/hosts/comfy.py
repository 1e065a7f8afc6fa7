"""nvfp4 as a backend of comfy-kitchen, which multiplies for ComfyUI.

comfy-kitchen calls the first backend, by priority, that accepts a call by its constraints. Its own backends quantize
and dequantize NVFP4 on any device, and multiply it from compute capability 10.0 on. Importing this module registers a
backend for the CPU and for compute capability 8.0 to 9.0:

    quantize_nvfp4     nvfp4.quantize, block_scale "amax6": the bytes of comfy-kitchen's eager backend
    dequantize_nvfp4   nvfp4.dequantize: one rounding to the dtype of the result
    scaled_mm_nvfp4    nvfp4.gemm: exact products, fp32 sums, one rounding

comfy-kitchen puts the even element into the high nibble unless hi_first=False says otherwise. The bytes that quantize
returns and dequantize takes have their nibbles exchanged. A product needs no exchange: in both operands the two
elements of a byte belong to the same block, so the terms of a sum are the same.

Two questions decide whether a product is asked for at all. The layout of NVFP4 tensors has `supports_fast_matmul`, and
ComfyUI's comfy.model_management has `supports_nvfp4_compute`: where it is false, each call dequantizes the whole
weight. `register` makes both true for these devices too. ComfyUI must be imported before, as it is when a custom node
is imported.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C, _api, _products
from nvfp4._info import info
from nvfp4.layers.buffers import aligned, round_up
from nvfp4.layers.packed import BLOCK

TESTED = "0.2.40"
try:
    import comfy_kitchen
except ModuleNotFoundError as error:
    if error.name != "comfy_kitchen":
        raise
    raise ModuleNotFoundError(
        "nvfp4.comfy needs comfy-kitchen: pip install comfy-kitchen, in ComfyUI's environment", name="comfy_kitchen"
    ) from None

__all__ = ["register", "unregister"]

NAME = "nvfp4"  # of the backend
FIRST, LAST = (8, 0), (9, 0)  # compute capabilities: above, comfy-kitchen has kernels for tensor cores with NVFP4
ROWS = 16  # to a multiple of which pad_16x pads rows and columns
TINY = torch.finfo(torch.float32).tiny
MANAGEMENT, SUPPORTS = "comfy.model_management", "supports_nvfp4_compute"  # of ComfyUI
FLOATS = frozenset({torch.float32, torch.float16, torch.bfloat16})


# ---- the functions of the backend, with comfy-kitchen's names ----


def quantize_nvfp4(
    x: Tensor, per_tensor_scale: Tensor, epsilon: float = 0.0, pad_16x: bool = False, hi_first: bool = True
) -> tuple[Tensor, Tensor]:
    """The packed values [R, K/2], and the block scales in the 128x4 layout. `_takes` leaves a nonzero epsilon to other
    backends.

    A global scale of 0, that of an input of zeros, gives values 0. One that is NaN or infinite is in the product again.
    """
    rows, columns = x.shape
    more = -columns % BLOCK
    if more and not pad_16x:
        raise _C.Error(f"x: has {columns} columns; must be a multiple of {BLOCK}, or give pad_16x=True")
    if more:
        x = torch.nn.functional.pad(x, (0, more))
    scale = scalar("per_tensor_scale", per_tensor_scale).nan_to_num(1.0, 1.0).clamp_min(TINY)
    data, block_scales = _api.quantize(x.detach().contiguous(), global_scale=scale)
    stored = round_up(rows, ROWS) if pad_16x else rows
    result = data.new_empty(stored, data.shape[1])
    result[rows:] = 0
    if hi_first:
        torch.bitwise_or(data << 4, data >> 4, out=result[:rows])
    else:
        result[:rows] = data
    return result, block_scales


def dequantize_nvfp4(
    qx: Tensor,
    per_tensor_scale: Tensor,
    block_scales: Tensor,
    output_type: torch.dtype = torch.bfloat16,
    hi_first: bool = True,
) -> Tensor:
    """The numbers [R, K]: value * scale * per_tensor_scale in fp32, rounded once."""
    check_operand("qx", qx, "block_scales", block_scales)
    data = (qx << 4 | qx >> 4) if hi_first else qx
    return _api.dequantize(
        aligned(data.contiguous()),
        aligned(block_scales.contiguous(), 16),
        global_scale=scalar("per_tensor_scale", per_tensor_scale),
        out_dtype=output_type,
    )


def scaled_mm_nvfp4(
    a: Tensor,
    b: Tensor,
    tensor_scale_a: Tensor,
    tensor_scale_b: Tensor,
    block_scale_a: Tensor,
    block_scale_b: Tensor,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    alpha: Tensor | None = None,
) -> Tensor:
    """alpha * (A . B^T) + bias [M, N], rounded once; alpha is tensor_scale_a * tensor_scale_b if it is None."""
    check_operand("a", a, "block_scale_a", block_scale_a)
    check_operand("b", b, "block_scale_b", block_scale_b)
    dtype = torch.bfloat16 if out_dtype is None else out_dtype
    if alpha is None:
        alpha = scalar("tensor_scale_a", tensor_scale_a) * scalar("tensor_scale_b", tensor_scale_b)
    return _products.gemm(
        aligned(a.contiguous()),
        aligned(b.contiguous()),
        aligned(block_scale_a.contiguous(), 16),
        aligned(block_scale_b.contiguous(), 16),
        alpha=scalar("alpha", alpha).float(),
        bias=None if bias is None else padded_bias(bias.detach(), b.shape[0], dtype),
        out_dtype=dtype,
    )


def scalar(name: str, t: Tensor) -> Tensor:
    if t.numel() != 1:
        raise _C.Error(f"{name}: shape is {list(t.shape)}; must have 1 element")
    return t.detach().reshape(())


def padded_bias(bias: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """The bias of a layer in a dtype that gemm takes, with zeros for the rows with which the weight is padded."""
    more = rows - bias.numel()
    if bias.ndim != 1 or more and (more < 0 or round_up(bias.numel(), ROWS) != rows):
        raise _C.Error(f"bias: shape is {list(bias.shape)}; must be [{rows}], or that of the layer before padding")
    bias = torch.nn.functional.pad(bias, (0, more)) if more else bias.contiguous()
    return bias if bias.dtype == dtype else bias.float()


def check_operand(name: str, t: Tensor, scale_name: str, scale: Tensor) -> None:
    """Rejects packed values [R, K/2] with columns that are not whole blocks, or block scales that are not 128x4."""
    rows, columns = t.shape[0], t.shape[1] * 2
    if columns % BLOCK:
        raise _C.Error(f"{name}: has {columns} columns; must be a multiple of {BLOCK}, so quantize with pad_16x=True")
    wanted = [round_up(rows, 128), round_up(columns // BLOCK, 4)]
    if scale.numel() != wanted[0] * wanted[1]:
        raise _C.Error(
            f"{scale_name}: shape is {list(scale.shape)}; must be {wanted}, the 128x4 layout for {rows} x {columns}"
        )


# ---- which calls the backend takes ----


def why_not(device: torch.device | None) -> str:
    """Why a device is left to other backends; "": it is not. None is torch's current GPU, or the CPU without one."""
    if device is None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        return ""
    if device.type != "cuda" or torch.version.cuda is None:
        return f"the device is {device.type}; must be the CPU or an NVIDIA GPU"
    return why_not_gpu(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def why_not_gpu(index: int) -> str:
    found = torch.cuda.get_device_capability(index)
    if not FIRST <= found <= LAST:
        first, last, own = (".".join(map(str, capability)) for capability in (FIRST, LAST, found))
        return f"the compute capability is {own}; must be {first} to {last}"
    try:
        info(1, 16, 16, device=index)
    except _C.Error as error:  # an old driver, or a build without its kernels
        return str(error)
    return ""


def _constraints(first: str, **dtypes: frozenset[torch.dtype]) -> FunctionConstraints:
    """A function takes arguments of these dtypes. The first one has two dimensions, and its device decides."""

    def takes(given: Mapping[str, Any]) -> ValidationResult:
        reason = why_not(given[first].device)
        if reason:
            return ValidationResult.fail(first, reason)
        if given.get("epsilon"):
            return ValidationResult.fail("epsilon", f"is {given['epsilon']}; must be 0")
        return ValidationResult.ok()

    params = {name: ParamConstraint(dtypes=allowed) for name, allowed in dtypes.items()}
    params[first] = ParamConstraint(dtypes=dtypes[first], shape_rules=(ExactDims(2),))
    return FunctionConstraints(params=params, default_devices=frozenset({"cpu", "cuda"}), call_rules=(takes,))


# ---- registration ----


def register() -> None:
    """Registers the backend with comfy-kitchen, before its own, and makes ComfyUI ask for packed products if
    comfy.model_management is imported. Importing nvfp4.comfy calls it. A second call changes nothing, but finds a
    ComfyUI that was imported in the meantime.

    Raises:
        ImportError: ComfyUI's comfy.model_management has no `supports_nvfp4_compute`. Nothing is registered.
    """
    management = sys.modules.get(MANAGEMENT)
    if management is not None and not hasattr(management, SUPPORTS):
        raise ImportError(
            f"{MANAGEMENT}: has no {SUPPORTS}, by which ComfyUI decides whether NVFP4 layers are multiplied packed; "
            "update ComfyUI, or remove the custom node that imports nvfp4.comfy"
        )
    registry.register(NAME, sys.modules[__name__], CAPABILITIES)
    registry.enable(NAME)
    registry.set_priority([NAME, *others()])
    TensorCoreNVFP4Layout.supports_fast_matmul = supports_fast_matmul
    if management is not None and not isinstance(getattr(management, SUPPORTS), SupportsNvfp4):
        setattr(management, SUPPORTS, SupportsNvfp4(getattr(management, SUPPORTS)))


def unregister() -> None:
    """Undoes `register`. Models that ComfyUI has loaded keep asking for packed products until they are loaded again."""
    registry.set_priority(others())
    registry.disable(NAME)
    TensorCoreNVFP4Layout.supports_fast_matmul = _own_answer
    ours = getattr(sys.modules.get(MANAGEMENT), SUPPORTS, None)
    if isinstance(ours, SupportsNvfp4):
        setattr(sys.modules[MANAGEMENT], SUPPORTS, ours.own)


def others() -> list[str]:
    return [name for name in registry._priority if name != NAME]


def supports_fast_matmul() -> bool:
    """Whether the current device multiplies NVFP4 without dequantizing it."""
    return not why_not(None) or bool(_own_answer())


class SupportsNvfp4:
    """comfy.model_management.supports_nvfp4_compute, with our devices beside ComfyUI's."""

    def __init__(self, own: Callable[..., bool]) -> None:
        self.own = own

    def __call__(self, device: torch.device | None = None) -> bool:
        return not why_not(device) or bool(self.own(device))


try:
    from comfy_kitchen.backends import eager
    from comfy_kitchen.constraints import ExactDims, FunctionConstraints, ParamConstraint, ValidationResult
    from comfy_kitchen.tensor import TensorCoreNVFP4Layout

    registry = comfy_kitchen.registry  # the object, which hides its module
    _own_answer = TensorCoreNVFP4Layout.supports_fast_matmul
    _bytes, _fp32, _e4m3 = (frozenset({dtype}) for dtype in (torch.uint8, torch.float32, torch.float8_e4m3fn))
    _scales = dict.fromkeys(("tensor_scale_a", "tensor_scale_b", "alpha"), _fp32)
    _block_scales = dict.fromkeys(("block_scale_a", "block_scale_b"), _e4m3)
    CAPABILITIES = {
        "quantize_nvfp4": _constraints("x", x=FLOATS, per_tensor_scale=_fp32),
        "dequantize_nvfp4": _constraints(
            "qx", qx=_bytes, per_tensor_scale=_fp32, block_scales=_e4m3, output_type=FLOATS
        ),
        "scaled_mm_nvfp4": _constraints(
            "a", a=_bytes, b=_bytes, **_scales, **_block_scales, bias=FLOATS, out_dtype=FLOATS
        ),
    }
    for _name in CAPABILITIES:
        _wanted, _given = (list(inspect.signature(f).parameters) for f in (getattr(eager, _name), globals()[_name]))
        if _wanted != _given:
            raise ImportError(f"{_name} takes {', '.join(_wanted)}")
    others()
except (ImportError, AttributeError, TypeError) as error:
    raise ImportError(
        f"comfy-kitchen: is version {version('comfy-kitchen')}, with which nvfp4.comfy does not work ({error}); "
        f"install {TESTED}, which is tested, or remove the custom node that imports nvfp4.comfy"
    ) from None

register()
