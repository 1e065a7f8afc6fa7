"""The C module. Operations take all their arguments, by position; the part between the two marks is written by
tools/write_stubs.py from the table of operations."""

from collections.abc import Sequence
from typing import Any, NoReturn

from nvfp4._types import AnyArray, Array, DType

class Error(ValueError):
    """A call that nvfp4 rejects. The message says which argument breaks which rule; these are its parts."""

    argument: str | None
    value: str | None
    rule: str | None

version: str
archs: str
BATCH_INVARIANT: int
BF16_PRODUCTS: int
CONSTANT_B: int
CONSTANT_ENDS: int
NO_TRANSPOSE_B: int

# ---- operations ----

def gemm(
    a: Array,
    b: AnyArray,
    scale_a: AnyArray | None,
    scale_b: AnyArray,
    alpha: float | AnyArray | None,
    bias: AnyArray | None,
    c: AnyArray | None,
    beta: float,
    scale_layout: str,
    backend: str | None,
    flags: int,
    out: Array | None,
    out_dtype: DType | None,
    /,
) -> Array: ...
def quantize_gemm(
    a: Array,
    b: AnyArray,
    scale_b: AnyArray,
    global_scale: float | AnyArray | None,
    alpha: float | AnyArray | None,
    bias: AnyArray | None,
    c: AnyArray | None,
    beta: float,
    scale_layout: str,
    block_scale: str,
    backend: str | None,
    flags: int,
    out: Array | None,
    out_dtype: DType | None,
    /,
) -> Array: ...
def grouped_gemm(
    a: Array,
    b: AnyArray | Sequence[AnyArray],
    scale_a: AnyArray | None,
    scale_b: AnyArray | Sequence[AnyArray],
    ends: AnyArray,
    rows: AnyArray | None,
    scale_rows: AnyArray | None,
    row_scale: AnyArray | None,
    alpha: float | AnyArray | None,
    bias: AnyArray | None,
    scale_layout: str,
    backend: str | None,
    flags: int,
    out: Array | None,
    out_dtype: DType | None,
    /,
) -> Array: ...
def gated_grouped_gemm(
    a: Array,
    b: AnyArray | Sequence[AnyArray],
    scale_a: AnyArray | None,
    scale_b: AnyArray | Sequence[AnyArray],
    ends: AnyArray,
    rows: AnyArray | None,
    scale_rows: AnyArray | None,
    row_scale: AnyArray | None,
    alpha: float | AnyArray | None,
    bias: AnyArray | None,
    activation: str,
    limit: float,
    activation_alpha: float,
    scale_layout: str,
    backend: str | None,
    flags: int,
    out: Array | None,
    out_dtype: DType | None,
    /,
) -> Array: ...
def gated_grouped_quantize(
    a: Array,
    b: AnyArray,
    scale_a: AnyArray | None,
    scale_b: AnyArray,
    ends: AnyArray,
    rows: AnyArray | None,
    scale_rows: AnyArray | None,
    row_scale: AnyArray | None,
    alpha: float | AnyArray | None,
    bias: AnyArray | None,
    global_scale: float | AnyArray | None,
    activation: str,
    limit: float,
    activation_alpha: float,
    scale_layout: str,
    backend: str | None,
    flags: int,
    out: tuple[Array, Array, Array] | None,
    /,
) -> tuple[Array, Array, Array]: ...
def quantize(
    x: Array, global_scale: float | AnyArray | None, scale_layout: str, block_scale: str, /
) -> tuple[Array, Array]: ...
def weighted_quantize(
    x: Array, importance: AnyArray, global_scale: float | AnyArray | None, scale_layout: str, /
) -> tuple[Array, Array]: ...
def gptq_block(x: Array, u: AnyArray, global_scale: float | AnyArray | None, /) -> tuple[Array, Array, Array]: ...
def dequantize(
    data: Array, scale: AnyArray, global_scale: float | AnyArray | None, scale_layout: str, out_dtype: DType | None, /
) -> Array: ...
def rms_norm_quantize(
    x: Array,
    weight: AnyArray,
    residual: AnyArray | None,
    global_scale: float | AnyArray | None,
    eps: float,
    scale_layout: str,
    round_steps: int,
    out: tuple[Array, Array] | None,
    /,
) -> tuple[Array, Array]: ...
def silu_mul_quantize(
    gate_up: Array, global_scale: float | AnyArray | None, scale_layout: str, out: tuple[Array, Array] | None, /
) -> tuple[Array, Array]: ...
def grouped_quantize(
    x: Array,
    global_scale: float | AnyArray | None,
    ends: AnyArray | None,
    rows: AnyArray | None,
    scale_layout: str,
    block_scale: str,
    out: tuple[Array, Array, Array] | None,
    /,
) -> tuple[Array, Array, Array]: ...
def gated_quantize(
    gate: Array,
    up: AnyArray | None,
    global_scale: float | AnyArray | None,
    ends: AnyArray | None,
    activation: str,
    limit: float,
    alpha: float,
    scale_layout: str,
    round_steps: int,
    out: tuple[Array, Array, Array] | None,
    /,
) -> tuple[Array, Array, Array]: ...
def amax_scale(x: Array, block_scale: str, by_row: int, /) -> Array: ...
def swizzle(scale: Array, /) -> Array: ...
def unswizzle(scale: Array, rows: int, columns: int, /) -> Array: ...
def gated(
    gate: Array,
    up: AnyArray | None,
    activation: str,
    limit: float,
    alpha: float,
    out: Array | None,
    out_dtype: DType | None,
    /,
) -> Array: ...
def moe_route(ids: Array, expert_map: AnyArray | None, E: int, /) -> tuple[Array, Array, Array]: ...
def moe_combine(
    y: Array, places: AnyArray, weights: AnyArray | None, out: Array | None, out_dtype: DType | None, /
) -> Array: ...
def custom_kernel(a: Array, b: AnyArray, sfa_permuted: AnyArray, sfb_permuted: AnyArray, c: Array, /) -> Array: ...

# ---- end of operations ----

def operations() -> list[dict[str, Any]]: ...

# arguments: tensors that are read, all scalars, results; a tensor is None or (dtype, device, shape, strides)
def check(operation: str, /, *arguments: Any) -> None: ...
def plan(
    device: int,
    backend: str | None,
    a_dtype: str | None,
    m: int,
    n: int,
    k: int,
    l: int,
    flags: int,
    groups: int = 0,
    operation: int = 0,
    /,
) -> dict[str, Any]: ...

# name, number, runs_on, architectures, min_capability, max_capability (None: the CPU's; any later GPU), operations
# and linear_scales ("gemm", "gemm_nn": dtypes of A), a16_rows (of gemm with a 16-bit A, at most; None: any number),
# roundings and a16_roundings (per_block, block_k, constant; None: by kernel)
def backends() -> list[dict[str, Any]]: ...
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
def clusters(ordinal: int, /) -> tuple[tuple[int, int, int], tuple[int, int, int]]: ...
def load(ordinal: int, /) -> None: ...
def cpu_kernel() -> str: ...
def register_torch_ops() -> None: ...
def last_error() -> str: ...
def raise_last_error() -> NoReturn: ...
