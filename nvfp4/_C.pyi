"""The C module. Its functions take all arguments of their namesakes in nvfp4/_api.py, by position."""

from typing import Any

from nvfp4._types import AnyArray, Array, DType

class Error(ValueError):
    """An invalid call; the message says which argument breaks which rule."""

version: str
archs: str

# dtype, device (-1: the CPU), shape, strides: a tensor without memory
_Described = tuple[str, int, tuple[int, ...], tuple[int, ...]]

def gemm(
    a: Array,
    b: AnyArray,
    scale_a: AnyArray,
    scale_b: AnyArray,
    alpha: float | AnyArray | None,
    bias: AnyArray | None,
    c: AnyArray | None,
    beta: float,
    out: Array | None,
    out_dtype: DType | None,
    scale_layout: str,
    backend: str | None,
    flags: int,
    /,
) -> Array: ...
def custom_kernel(a: AnyArray, b: AnyArray, sfa_permuted: AnyArray, sfb_permuted: AnyArray, c: Array, /) -> Array: ...
def quantize(
    x: Array, global_scale: float | AnyArray | None, scale_layout: str, block_scale: str, /
) -> tuple[Array, Array]: ...
def dequantize(
    data: Array,
    scale: AnyArray,
    global_scale: float | AnyArray | None,
    scale_layout: str,
    out_dtype: DType | None,
    /,
) -> Array: ...
def rms_norm_quantize(
    x: Array,
    weight: AnyArray,
    eps: float,
    residual: AnyArray | None,
    global_scale: float | AnyArray | None,
    scale_layout: str,
    out: tuple[Array, Array] | None,
    /,
) -> tuple[Array, Array]: ...
def silu_mul_quantize(
    gate_up: Array,
    global_scale: float | AnyArray | None,
    scale_layout: str,
    out: tuple[Array, Array] | None,
    /,
) -> tuple[Array, Array]: ...
def amax_scale(x: Array, block_scale: str, /) -> Array: ...
def swizzle(scale: Array, /) -> Array: ...
def unswizzle(scale: Array, rows: int, columns: int, /) -> Array: ...
def check_gemm(
    a: _Described,
    b: _Described,
    scale_a: _Described,
    scale_b: _Described,
    alpha: _Described | None,
    bias: _Described | None,
    c: _Described | None,
    out: _Described,
    beta: float,
    scale_layout: str,
    backend: str | None,
    flags: int,
    /,
) -> None: ...
def check_custom_kernel(
    a: _Described, b: _Described, sfa_permuted: _Described, sfb_permuted: _Described, c: _Described, /
) -> None: ...
def check_quantize(
    x: _Described,
    data: _Described,
    scale: _Described,
    global_scale: _Described | None,
    global_value: float,
    scale_layout: str,
    output_is_x: bool,
    /,
) -> None: ...
def check_rms_norm_quantize(
    x: _Described,
    weight: _Described,
    residual: _Described | None,
    data: _Described,
    scale: _Described,
    global_scale: _Described | None,
    global_value: float,
    eps: float,
    scale_layout: str,
    /,
) -> None: ...
def check_silu_mul_quantize(
    gate_up: _Described,
    data: _Described,
    scale: _Described,
    global_scale: _Described | None,
    global_value: float,
    scale_layout: str,
    /,
) -> None: ...
def check_amax_scale(x: _Described, scale: _Described, block_scale: str, /) -> None: ...
def check_swizzle(linear: _Described, swizzled: _Described, output_is_linear: bool, /) -> None: ...
def plan(
    device: int, backend: str | None, a_dtype: str | None, m: int, n: int, k: int, l: int, flags: int, /
) -> dict[str, Any]: ...
def set_candidate(candidate: int, /) -> None: ...
def set_default_backend(backend: str | None, /) -> None: ...
def override_plan(
    device: int,
    backend: str | None,
    a_dtype: str | None,
    m: int,
    n: int,
    k: int,
    l: int,
    flags: int,
    kernel: str,
    swap_ab: bool,
    split_k: int,
    prefetch_stages: int,
    ctas_per_sm: int,
    /,
) -> None: ...
def clear_overrides() -> None: ...
def driver() -> Any: ...
def device(ordinal: int, /) -> dict[str, Any]: ...
def load(ordinal: int, /) -> None: ...
def cpu_kernel() -> str: ...
def register_torch_ops() -> None: ...
def last_error() -> str: ...
