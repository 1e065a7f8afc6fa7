"""The functions of the package: defaults and documentation. Arguments are read and checked in C (nvfp4._C).

Each function first tests whether torch.compile or torch.jit.trace is tracing it; if so, it calls the operator of
torch.ops.nvfp4 with the same arguments. The test looks torch up in sys.modules and never imports it.
"""

from __future__ import annotations

from sys import modules

from nvfp4 import _C
from nvfp4._C import BATCH_INVARIANT, CONSTANT_B, NO_TRANSPOSE_B

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvfp4._types import AnyArray, Array, DType


def gemm(
    a: Array,
    b: AnyArray,
    scale_a: AnyArray | None,
    scale_b: AnyArray,
    *,
    alpha: float | AnyArray | None = None,
    bias: AnyArray | None = None,
    c: AnyArray | None = None,
    beta: float = 0.0,
    out: Array | None = None,
    out_dtype: DType | None = None,
    scale_layout: str = "128x4",
    backend: str | None = None,
    batch_invariant: bool = False,
    constant_b: bool = False,
    transpose_b: bool = True,
) -> Array:
    """Multiplies matrices: C = alpha * (A . B^T) + beta * c + bias, where B is NVFP4 and A is NVFP4 or 16-bit.

    With `transpose_b=False` it computes C = alpha * (A . B) + beta * c + bias, of a 16-bit A: the gradient with respect
    to a linear layer's input.

    Tensors are torch tensors, NumPy arrays or arrays of any library with `__dlpack__` (CuPy, JAX). All of them lie on
    the CPU or on one CUDA device. On a GPU the work is enqueued on the current stream of the library of out, or else of
    a. The call waits for nothing, and a CUDA graph can capture it. JAX's arrays can be inputs; on a GPU they need an
    `out` of another library. torch.compile traces the call.

    Args:
        a (Tensor): the matrix A, NVFP4 or 16-bit.
            NVFP4: [M, K/2], or [L, M, K/2] for L products in one call; uint8 or float4_e2m1fn_x2.
            Element 2i of a row is the low nibble of byte i, element 2i+1 the high one.
            K is a multiple of 16. M, N and L may have any size, 0 included.
            Rows are contiguous. Their pitch is K/2 bytes or a multiple of 16 bytes. The data is aligned to 8 bytes.
            16-bit (W4A16): [M, K] or [L, M, K], float16 or bfloat16, with None for scale_a.
            Data, rows and batches of a 16-bit a are aligned to 16 bytes. CPU and sm80 kernels take it. So do the sm90
            kernels, with 128x4 scales and rows of b on 16 bytes. `info(m, n, k, a_dtype=...)` shows the plan.
        b (Tensor): the matrix B, [N, K/2] or [L, N, K/2]. It obeys the rules of an NVFP4 a.
        scale_a (Tensor or None): the scales of a, in `scale_layout`; None for a 16-bit a.
            There is one float8_e4m3fn (or the same as uint8) for every 16 values along K.
            Bit 7 is ignored. 0x7F is NaN and makes its row NaN.
        scale_b (Tensor): the scales of b, as those of a; a NaN makes its column of C NaN.
        alpha (float or Tensor, optional): the factor of A . B^T. Default: 1.
            A tensor is float32, on the device of a, and has one element or N.
            A vector of length N scales each column of C by its own factor.
            [L, 1] or [L, N] has factors for each batch (CPU and sm80 kernels).
            Global scales go here, as multipliers.
        bias (Tensor, optional): a vector of length N that is added to every row. Default: None.
            Its dtype is float32 or that of the result. [L, N] has a vector for each batch (CPU and sm80 kernels).
        c (Tensor, optional): a matrix with the shape and the dtype of the result. Default: None.
            It is read only if beta is not 0. It may be `out` itself.
        beta (float, optional): the factor of c. Default: 0.
        out (Tensor, optional): the tensor that the result is written to, [M, N] or [L, M, N]. Default: a new tensor.
            It must not overlap any argument but c.
        out_dtype (dtype, optional): torch.float16, torch.bfloat16 or torch.float32. Default: the dtype of `out`, else
            that of a 16-bit a, else torch.float16.
            NumPy's types and names such as "float32" are accepted too.
            If `out` is given, it must be the dtype of `out`.
        scale_layout (str, optional): the layout of scale_a and scale_b. Default: "128x4".
            "128x4" is the tensor core's. The scale of row r, column s is at byte
            ((r//128) * ceil(K/64) + s//4) * 512 + (r%32) * 16 + (r%128)//32 * 4 + s%4
            of a contiguous tensor of any shape with L * ceil(rows/128) * ceil(K/64) * 512 bytes. Padding may hold
            anything.
            "linear" is [rows, K/16] or [L, rows, K/16].
        backend (str, optional): the kernel family: "cpu", "sm80" (any GPU since Ampere), "sm90" (H100, H200), "sm100"
            (B200, B300, Thor) or "sm120" (RTX 50, RTX PRO 6000, GB10). Default: None.
            None chooses by rule; `info(m, n, k)` shows the plan and the reason.
        batch_invariant (bool, optional): makes the bits of a row of the result independent of M and of the row's place.
            Default: False.
            One order of additions along K serves every M of the same N, K, L, scale layout, alignment and backend on
            one device. Tuned plans do not count.
            The call is slower, most of all with few rows.
        constant_b (bool, optional): a promise that no kernel still running writes b or scale_b. Default: False.
            A kernel that may run when this call starts counts. The promise is true of a layer's weights.
            `sm90_gemm_*`, `sm90_units_*`, `sm100_gemm_*` and `sm120_gemm_*` then load the first weights while the
            kernel just before this call on the stream still runs. That kernel may write everything else.
            A broken promise is undefined behaviour: nothing detects it, and the result may be wrong.
            A kernel that lets its successor start early, by `griddepcontrol`, counts together with the kernels that it
            does not wait for itself. nvfp4's kernels wait for all earlier ones first.
            The flag has no effect on other kernels, and none on the bits.
        transpose_b (bool, optional): whether B is transposed. Default: True.
            False computes C [M, K] = alpha * (A . B) + beta * c + bias, where C[m, k] is a sum over n.
            b and scale_b have the same shapes and layouts as with True.
            a is float16 or bfloat16, [M, N] or [L, M, N], of any N. Its rows are contiguous or a multiple of 16 bytes
            apart. The call is faster if data, rows and batches are aligned to 16 bytes.
            out and c are [M, K] or [L, M, K], and bias has length K.
            alpha has one element. Factors of b's rows lie within the sums: multiply a by them.
            CPU and sm80 kernels take it. So do the sm90 kernels, with 128x4 scales and all rows and batches on 16
            bytes.

    Returns:
        `out`, or a new tensor of a's library on a's device. It is made by the library's from_dlpack, or on a GPU by its
        empty().

    Products are exact, and sums are accumulated in fp32. (With bfloat16 values of a below 2^-109 products may
    underflow.) alpha, beta * c and bias are applied in fp32, and the result is rounded once, to nearest even. The same
    call on the same device gives the same bits every time. No gradient is computed: a bias, c, alpha or out that
    requires one is rejected while gradients are recorded.

    Raises:
        nvfp4.Error: an argument breaks a rule, or the device cannot run the call. The message names the argument,
            the rule and the value. Nothing has been written.

    Example:
        >>> import numpy as np, nvfp4
        >>> a, scale_a = nvfp4.quantize(np.full((2, 32), 1.5, np.float32))
        >>> b, scale_b = nvfp4.quantize(6 * np.eye(3, 32, dtype=np.float32))
        >>> nvfp4.gemm(a, b, scale_a, scale_b, bias=np.float32([0, 10, 20]), out_dtype="float32")
        array([[ 9., 19., 29.],
               [ 9., 19., 29.]], dtype=float32)
    """
    if type(batch_invariant) is not bool or type(constant_b) is not bool or type(transpose_b) is not bool:
        reject_switch(batch_invariant=batch_invariant, constant_b=constant_b, transpose_b=transpose_b)
    flags = BATCH_INVARIANT if batch_invariant else 0
    if constant_b:
        flags |= CONSTANT_B
    if not transpose_b:
        flags |= NO_TRANSPOSE_B
    torch = modules.get("torch")
    if torch is not None and (torch.compiler.is_dynamo_compiling() or torch._C._is_tracing()):
        from nvfp4 import torch_ops

        return torch_ops.call(
            "gemm", a, b, scale_a, scale_b, alpha, bias, c, beta, scale_layout, backend, flags, out, out_dtype
        )
    return _C.gemm(a, b, scale_a, scale_b, alpha, bias, c, beta, scale_layout, backend, flags, out, out_dtype)


def grouped_gemm(
    a: Array,
    b: AnyArray | Sequence[AnyArray],
    scale_a: AnyArray | None,
    scale_b: AnyArray | Sequence[AnyArray],
    ends: AnyArray,
    *,
    rows: AnyArray | None = None,
    scale_rows: AnyArray | None = None,
    row_scale: AnyArray | None = None,
    alpha: float | AnyArray | None = None,
    bias: AnyArray | None = None,
    out: Array | None = None,
    out_dtype: DType | None = None,
    scale_layout: str = "128x4",
    transpose_b: bool = True,
    backend: str | None = None,
    batch_invariant: bool = False,
    constant_b: bool = False,
) -> Array:
    """Multiplies groups of rows, each group by a matrix of its own: the experts of a mixture.

    Row i of the result is row_scale[i] * (alpha[e] * a[rows[i]] . B[e]^T + bias[e]), where e is the group of row i.
    Rows lie in the order of their groups, and `ends` says where each group ends.

    Tensors are as `gemm` takes them. On a GPU `ends`, `rows`, `scale_rows` and `row_scale` are read by the kernel
    alone, so one CUDA graph serves every routing. The call is one launch for any number of groups.

    Args:
        a (Tensor): [R, K], float16 or bfloat16, as a 16-bit a of `gemm`; or NVFP4 data, [R, K/2], uint8 or
            float4_e2m1fn_x2. Its global scale is a factor in `alpha`, by group, or in `row_scale`, by row.
        b (Tensor): the matrices, [E, N, K/2], uint8 or float4_e2m1fn_x2; E is at most 1024.
            [E, P, N, K/2] has P parts, whose results lie side by side: gate and up are two parts.
            On a CPU, also a list of E torch tensors or NumPy arrays of equal layout, [N, K/2] or [P, N, K/2] each, such
            as parts of mapped files: nothing is copied. scale_b is then a list too.
        scale_a (Tensor or None): the scales of an NVFP4 a, in `scale_layout`; None for a 16-bit a.
            "linear": [R, K/16]. "128x4": whole blocks of 128 rows, each group on blocks of its own (`scale_rows`).
        scale_b (Tensor): the scales of b, in `scale_layout`. Each matrix has its own 128x4 blocks:
            E * P * ceil(N/128) * ceil(K/64) * 512 bytes. "linear": [E, N, K/16] or [E, P, N, K/16].
        ends (Tensor): int32 [E]. Group e has rows ends[e-1] .. ends[e] - 1 of the result; group 0 begins with row 0.
            A running maximum of the ends counts, clamped to 0 .. T. So ends that decrease, are negative or exceed T
            lead to empty groups, and never out of a tensor.
        rows (Tensor, optional): int32 [T]. Row i of the result is computed from row rows[i] of a. Default: None.
            None: T = R, and row i from row i. The result of an index outside of a is NaN.
            An NVFP4 a with 128x4 scales has no rows: `quantize` takes `ends` and `rows`, and sorts.
        scale_rows (Tensor, optional): int32 [E], required for an NVFP4 a with 128x4 scales, else None. Default: None.
            Row i of group e, from 0, has its scales in row scale_rows[e] + i of scale_a. scale_rows[e] is a multiple of
            128. Otherwise the results of the group are NaN, as those of rows are that scale_a does not have.
        row_scale (Tensor, optional): float32 [T], a factor for each row of the result, such as the weight of a router.
            Default: None.
        alpha (float or Tensor, optional): the factor of the products. Default: 1.
            A tensor is float32 with one element, one a matrix ([E] or [E, P]), or one a column ([E, N] or [E, P, N]).
        bias (Tensor, optional): [E, N] or [E, P, N], float32 or the dtype of the result. Default: None.
        out (Tensor, optional): [T, N] or [T, P * N], which the result is written to. Default: a new tensor.
        out_dtype (dtype, optional): torch.float16, torch.bfloat16 or torch.float32. Default: the dtype of `out`, else
            that of a.
        scale_layout (str, optional): "128x4" or "linear", as of `gemm`. Default: "128x4".
        transpose_b (bool, optional): whether the matrices are transposed. Default: True.
            False computes [T, K] from a 16-bit a of [R, N], the gradient with respect to a. b has no parts, alpha has
            one element or [E], and bias is [E, K].
        backend (str, optional): "cpu", "sm80" (every GPU since Ampere) or "sm90" (Hopper; a 16-bit a, 128x4 scales,
            rows of a and b on 16 bytes, transpose_b), or None, which chooses by rule. Default: None.
        batch_invariant (bool, optional): makes the bits of a row independent of T and of its group's size.
            Default: False.
        constant_b (bool, optional): a promise that no kernel still running writes b or scale_b, as of `gemm`.
            Default: False.

    Returns:
        `out`, or a new tensor [T, N] or [T, P * N]. Rows at and past the last end are not written.

    Products are exact and summed in fp32. alpha, bias and row_scale are applied in fp32 in this order, and the result
    is rounded once. The bits of a row depend on E, N, K, P, the types and at most on the size of its group: neither on
    the other groups nor on the row's place. On a Hopper GPU, without backend="sm80", they depend on T.

    Raises:
        nvfp4.Error: an argument breaks a rule, or the device cannot run the call. Nothing has been written.

    Example:
        >>> import numpy as np, nvfp4
        >>> b, scale_b = nvfp4.quantize(np.stack([6 * np.eye(2, 16), 3 * np.eye(2, 16)]).astype(np.float32))
        >>> a = np.float16(np.ones((3, 16)))
        >>> nvfp4.grouped_gemm(a, b, None, scale_b, np.int32([1, 3]))
        array([[6., 6.],
               [3., 3.],
               [3., 3.]], dtype=float16)
    """
    if type(batch_invariant) is not bool or type(constant_b) is not bool or type(transpose_b) is not bool:
        reject_switch(batch_invariant=batch_invariant, constant_b=constant_b, transpose_b=transpose_b)
    flags = BATCH_INVARIANT if batch_invariant else 0
    if constant_b:
        flags |= CONSTANT_B
    if not transpose_b:
        flags |= NO_TRANSPOSE_B
    torch = modules.get("torch")
    if torch is not None and (torch.compiler.is_dynamo_compiling() or torch._C._is_tracing()):
        from nvfp4 import torch_ops

        return torch_ops.call(
            "grouped_gemm",
            a,
            b,
            scale_a,
            scale_b,
            ends,
            rows,
            scale_rows,
            row_scale,
            alpha,
            bias,
            scale_layout,
            backend,
            flags,
            out,
            out_dtype,
        )
    return _C.grouped_gemm(
        a,
        b,
        scale_a,
        scale_b,
        ends,
        rows,
        scale_rows,
        row_scale,
        alpha,
        bias,
        scale_layout,
        backend,
        flags,
        out,
        out_dtype,
    )


def reject_switch(**switches: object) -> None:
    """Raises an error that names the first value that is no bool: it would count as True, or have no truth value."""
    for name, value in switches.items():
        if type(value) is not bool:
            raise _C.Error(f"{name}: is of type {type(value).__name__}; must be True or False")


def custom_kernel(a: AnyArray, b: AnyArray, sfa_permuted: AnyArray, sfb_permuted: AnyArray, c: Array) -> Array:
    """Computes C = A . B^T on the views that GPU MODE's NVFP4 competition passes, and writes it to c.

    Args:
        a (Tensor): [M, K/2, L], float4_e2m1fn_x2 or uint8, in memory (L, M, K/2).
        b (Tensor): [N, K/2, L], float4_e2m1fn_x2 or uint8, in memory (L, N, K/2).
        sfa_permuted (Tensor): the scales of a, [32, 4, ceil(M/128), 4, ceil(K/64), L], float8_e4m3fn or uint8.
            It is the view permute(3, 4, 1, 5, 2, 0) of a contiguous tensor (L, ceil(M/128), ceil(K/64), 32, 4, 4),
            whose bytes are those of gemm's "128x4".
        sfb_permuted (Tensor): the scales of b, likewise with N in place of M.
        c (Tensor): the result, [M, N, L], float16, bfloat16 or float32, in memory (L, M, N).

    Returns:
        c.

    Raises:
        nvfp4.Error: an argument breaks a rule, strides included. Nothing has been written.
    """
    torch = modules.get("torch")
    if torch is not None and (torch.compiler.is_dynamo_compiling() or torch._C._is_tracing()):
        from nvfp4 import torch_ops

        return torch_ops.call("custom_kernel", a, b, sfa_permuted, sfb_permuted, c)
    return _C.custom_kernel(a, b, sfa_permuted, sfb_permuted, c)


def quantize(
    x: Array,
    *,
    global_scale: float | AnyArray | None = None,
    scale_layout: str = "128x4",
    block_scale: str = "amax6",
    ends: AnyArray | None = None,
    rows: AnyArray | None = None,
) -> tuple[Array, ...]:
    """Quantizes numbers to NVFP4: x is approximated by value * scale * global_scale.

    Pass global_scale=amax_scale(x). With the default of 1, small numbers lose accuracy and very small ones are lost:
    normal weights of standard deviation 0.02 get an error of 10.3 % instead of 9.5 %, those of 0.001 become zeros.

    Args:
        x (Tensor): [R, K] or [L, R, K], float16, bfloat16 or float32. K is a multiple of 16.
        global_scale (float or Tensor, optional): the multiplier that dequantize or gemm's alpha applies again. Default:
            1.
            It is positive and finite. A tensor is float32, contiguous, and has one element or one for each row of x.
            With `ends` it has one element, one for each group ([E]) or one for each row of x ([R, 1]).
            amax_scale(x) gives the multiplier with which the whole range of the scales is used.
        scale_layout (str, optional): the layout of the scales that are returned, "128x4" or "linear" (see gemm).
            Default: "128x4".
        block_scale (str, optional): how the scale of a block is chosen, "amax6" or "four_over_six". Default: "amax6".
            "amax6" takes amax/6.
            "four_over_six" takes amax/6 or amax/4, whichever gives the smaller sum of squared errors, and amax/6 if
            both are equal. Call amax_scale with the same block_scale: a scale from amax/4 is 1.5 times as large and may
            saturate otherwise.
        ends (Tensor, optional): int32 [E], E from 1 to 1024. Rows of the result lie in groups, as grouped_gemm takes
            them. Group e has rows ends[e-1] .. ends[e] - 1, group 0 begins with row 0, and a running maximum of the
            ends counts, clamped to 0 .. T. x is [R, K]. Default: None.
        rows (Tensor, optional): int32 [T]. Row i of the result is quantized from row rows[i] of x, [R, K]. An index
            outside of x gives a row of scales NaN. Default: None, where T = R, and row i is row i.

    Returns:
        (data, scale), or with `ends` and "128x4" (data, scale, scale_rows).
        data is [.., R, K/2] uint8, two values a byte; data.view(torch.float4_e2m1fn_x2) has the other dtype.
        scale is float8_e4m3fn (uint8 outside torch). In "128x4" it is [.., R rounded up to 128, K/16 rounded up to 4],
        with zeros as padding. In "linear" it is [.., R, K/16]. With `rows`, T stands for R.
        scale_rows is int32 [E]. In "128x4" each group begins with a 128-row block of its own, and row i of group e,
        which begins with row b, has the scales of row scale_rows[e] + i - b. scale has 128 rows for each of
        m + (T - m) // 128 blocks, m = min(E, T), which are enough for any ends.
        Rows past the last end, their scales, and blocks of no group are not written.

    On a GPU the call is one launch and waits for nothing: ends, rows and global_scale are read by the kernel alone.

    The scale of a block is amax/6 / global_scale rounded to e4m3. A value is x / (scale * global_scale) rounded to
    e2m1. Both are rounded to nearest, ties to even, and saturate. A block of zeros has scale 0. Finite input never
    gives NaN or infinity; a NaN makes the scale of its block NaN.

    Raises:
        nvfp4.Error: an argument breaks a rule.

    Example:
        >>> import numpy as np, nvfp4
        >>> data, scale = nvfp4.quantize(np.arange(16, dtype=np.float32)[None], scale_layout="linear")
        >>> data.shape, scale.shape
        ((1, 8), (1, 1))
        >>> nvfp4.dequantize(data, scale, scale_layout="linear")[0, :8]
        array([0.  , 1.25, 2.5 , 2.5 , 3.75, 5.  , 5.  , 7.5 ], dtype=float32)
        >>> x, rows, ends = np.ones((2, 64), np.float32), np.int32([1, 0, 1]), np.int32([1, 1, 3])
        >>> data, scale, scale_rows = nvfp4.quantize(x, ends=ends, rows=rows)
        >>> data.shape, scale.shape, scale_rows
        ((3, 32), (384, 4), array([  0, 128, 128], dtype=int32))
    """
    torch = modules.get("torch")
    tracing = torch is not None and (torch.compiler.is_dynamo_compiling() or torch._C._is_tracing())
    if tracing:
        from nvfp4 import torch_ops
    if ends is None and rows is None:
        if tracing:
            return torch_ops.call("quantize", x, global_scale, scale_layout, block_scale)
        return _C.quantize(x, global_scale, scale_layout, block_scale)
    if tracing:
        results = torch_ops.call("grouped_quantize", x, global_scale, ends, rows, scale_layout, block_scale, None)
    else:
        results = _C.grouped_quantize(x, global_scale, ends, rows, scale_layout, block_scale, None)
    return results if ends is not None and scale_layout == "128x4" else results[:2]


def dequantize(
    data: Array,
    scale: AnyArray,
    *,
    global_scale: float | AnyArray | None = None,
    scale_layout: str = "128x4",
    out_dtype: DType | None = None,
) -> Array:
    """Converts NVFP4 to numbers: value * scale * global_scale, computed in fp32 and rounded once to out_dtype.

    Args:
        data (Tensor): [R, K/2] or [L, R, K/2], uint8 or float4_e2m1fn_x2.
        scale (Tensor): the scales, as quantize returns them (see gemm).
        global_scale (float or Tensor, optional): the multiplier. Default: 1.
            A tensor is float32, contiguous, and has one element or one for each row.
        scale_layout (str, optional): the layout of scale, "128x4" or "linear". Default: "128x4".
        out_dtype (dtype, optional): torch.float32, torch.float16 or torch.bfloat16. Default: torch.float32.

    Returns:
        [R, K] or [L, R, K].

    Raises:
        nvfp4.Error: an argument breaks a rule.

    Example:
        >>> import numpy as np, nvfp4
        >>> data, scale = nvfp4.quantize(np.full((1, 16), -3, np.float32))
        >>> nvfp4.dequantize(data, scale, global_scale=0.5)[0, :2]
        array([-1.5, -1.5], dtype=float32)
    """
    torch = modules.get("torch")
    if torch is not None and (torch.compiler.is_dynamo_compiling() or torch._C._is_tracing()):
        from nvfp4 import torch_ops

        return torch_ops.call("dequantize", data, scale, global_scale, scale_layout, out_dtype)
    return _C.dequantize(data, scale, global_scale, scale_layout, out_dtype)


def rms_norm_quantize(
    x: Array,
    weight: AnyArray,
    eps: float,
    *,
    residual: AnyArray | None = None,
    global_scale: float | AnyArray | None = None,
    scale_layout: str = "128x4",
    out: tuple[Array, Array] | None = None,
) -> tuple[Array, Array]:
    """Quantizes the RMS norm of rows, x / sqrt(mean(x^2) + eps) * weight, in one pass over memory.

    Args:
        x (Tensor): [R, K] or [L, R, K], float16, bfloat16 or float32. K is a multiple of 16.
        weight (Tensor): [K], float32 or of the dtype of x.
        eps (float): a number that is finite and not negative.
        residual (Tensor, optional): a tensor with the shape and the dtype of x. Default: None.
            x + residual, rounded to their dtype, is used in place of x and is written to residual.
        global_scale (float or Tensor, optional): the multiplier, as for quantize. Default: 1.
        scale_layout (str, optional): the layout of the scales, "128x4" or "linear" (see gemm). Default: "128x4".
        out (tuple of two Tensors, optional): (data, scale), which are written to. Default: new tensors.

    Returns:
        (data, scale), as quantize returns them.

    Norms are fp32 and are not rounded to the dtype of x. The order of additions and all roundings are defined
    (csrc/cpu/fused.c): every backend gives the same bytes, and a row's bytes do not depend on the other rows.

    Raises:
        nvfp4.Error: an argument breaks a rule. Nothing has been written.

    Example:
        >>> import numpy as np, nvfp4
        >>> data, scale = nvfp4.rms_norm_quantize(np.full((1, 16), 8, np.float32), np.full(16, 6, np.float32), 0.0)
        >>> nvfp4.dequantize(data, scale)[0, :2]
        array([6., 6.], dtype=float32)
    """
    torch = modules.get("torch")
    if torch is not None and (torch.compiler.is_dynamo_compiling() or torch._C._is_tracing()):
        from nvfp4 import torch_ops

        return torch_ops.call("rms_norm_quantize", x, weight, residual, global_scale, eps, scale_layout, out)
    return _C.rms_norm_quantize(x, weight, residual, global_scale, eps, scale_layout, out)


def silu_mul_quantize(
    gate_up: Array,
    *,
    global_scale: float | AnyArray | None = None,
    scale_layout: str = "128x4",
    out: tuple[Array, Array] | None = None,
) -> tuple[Array, Array]:
    """Quantizes silu(gate) * up in one pass over memory, where silu(x) = x / (1 + exp(-x)).

    Args:
        gate_up (Tensor): [R, 2K] or [L, R, 2K], float16, bfloat16 or float32. K is a multiple of 16.
            A row has its K gates first, then its K factors.
        global_scale (float or Tensor, optional): the multiplier, as for quantize. Default: 1.
        scale_layout (str, optional): the layout of the scales, "128x4" or "linear" (see gemm). Default: "128x4".
        out (tuple of two Tensors, optional): (data, scale), which are written to. Default: new tensors.

    Returns:
        (data, scale), as quantize returns them for [.., R, K].

    Products are fp32 and are not rounded to the dtype of gate_up. The operations of silu are defined
    (csrc/kernels/common/exponential.h): every backend gives the same bytes, within a few ulp of the exact value.

    Raises:
        nvfp4.Error: an argument breaks a rule. Nothing has been written.

    Example:
        >>> import numpy as np, nvfp4
        >>> data, scale = nvfp4.silu_mul_quantize(np.full((1, 32), 64, np.float32), global_scale=2.0)
        >>> nvfp4.dequantize(data, scale, global_scale=2.0)[0, :2]
        array([4224., 4224.], dtype=float32)
    """
    torch = modules.get("torch")
    if torch is not None and (torch.compiler.is_dynamo_compiling() or torch._C._is_tracing()):
        from nvfp4 import torch_ops

        return torch_ops.call("silu_mul_quantize", gate_up, global_scale, scale_layout, out)
    return _C.silu_mul_quantize(gate_up, global_scale, scale_layout, out)


def amax_scale(x: Array, *, block_scale: str = "amax6", by_row: bool = False) -> Array:
    """Computes the global scale with which quantize uses the whole range of the block scales: amax(|x|) / (448 * 6).

    Args:
        x (Tensor): [R, K] or [L, R, K], float16, bfloat16 or float32. K may be any number.
        block_scale (str, optional): the block_scale of the quantize call. Default: "amax6".
            With "four_over_six" the scale is amax(|x|) / (256 * 6), since a block scale may be 1.5 times as large
            there.
        by_row (bool, optional): whether each row of x, [R, K], gets a scale of its own (per token). Default: False.

    Returns:
        float32 [1], by row [R], on the device of x. The division is done in fp64 and rounded once. The scale is 1 if x
        (by row: its row) has a NaN or an infinity or is all zeros, or if the quotient rounds to 0. On a GPU it is one
        launch, and the call waits for nothing.

    Raises:
        nvfp4.Error: an argument breaks a rule.

    Example:
        >>> import numpy as np, nvfp4
        >>> nvfp4.amax_scale(np.float32([[0, -1344]]))
        array([0.5], dtype=float32)
    """
    if type(by_row) is not bool:
        reject_switch(by_row=by_row)
    torch = modules.get("torch")
    if torch is not None and (torch.compiler.is_dynamo_compiling() or torch._C._is_tracing()):
        from nvfp4 import torch_ops

        return torch_ops.call("amax_scale", x, block_scale, 1 if by_row else 0)
    return _C.amax_scale(x, block_scale, 1 if by_row else 0)


def swizzle(scale: Array) -> Array:
    """Rearranges scales from the linear to the 128x4 layout (see gemm), with zeros as padding.

    Args:
        scale (Tensor): [R, S] or [L, R, S] with S = K/16, float8_e4m3fn or uint8.

    Returns:
        [.., R rounded up to 128, S rounded up to 4], contiguous, of the same dtype (uint8 outside torch). It is a
        container of the right size whose bytes are in 128x4 order.

    Raises:
        nvfp4.Error: an argument breaks a rule.

    Example:
        >>> import numpy as np, nvfp4
        >>> nvfp4.swizzle(np.ones((3, 2), np.uint8)).shape
        (128, 4)
    """
    torch = modules.get("torch")
    if torch is not None and (torch.compiler.is_dynamo_compiling() or torch._C._is_tracing()):
        from nvfp4 import torch_ops

        return torch_ops.call("swizzle", scale)
    return _C.swizzle(scale)


def unswizzle(scale: Array, rows: int, columns: int) -> Array:
    """Rearranges scales from the 128x4 to the linear layout; padding is not read.

    Args:
        scale (Tensor): a contiguous tensor, float8_e4m3fn or uint8.
            A three-dimensional scale holds L batches in its first dimension. Any other shape holds one batch.
        rows (int): R, the number of rows that the scales belong to.
        columns (int): S = K/16, the number of scales of a row.

    Returns:
        [R, S], or [L, R, S] for a three-dimensional scale.

    Raises:
        nvfp4.Error: an argument breaks a rule.

    Example:
        >>> import numpy as np, nvfp4
        >>> nvfp4.unswizzle(nvfp4.swizzle(np.uint8([[1, 2], [3, 4]])), 2, 2)
        array([[1, 2],
               [3, 4]], dtype=uint8)
    """
    torch = modules.get("torch")
    if torch is not None and (torch.compiler.is_dynamo_compiling() or torch._C._is_tracing()):
        from nvfp4 import torch_ops

        return torch_ops.call("unswizzle", scale, rows, columns)
    return _C.unswizzle(scale, rows, columns)


def gated(
    gate: Array,
    up: AnyArray | None = None,
    activation: str = "silu",
    *,
    limit: float | None = None,
    alpha: float | None = None,
    out: Array | None = None,
    out_dtype: DType | None = None,
) -> Array:
    """Computes a gated activation, as an expert does between its two products, in one pass over memory.

    Args:
        gate (Tensor): [R, N] or [L, R, N], float16, bfloat16 or float32.
            Rows are contiguous and may lie any distance apart: gate and up may be halves of one [R, 2N].
        up (Tensor, optional): the factors, with the shape and the dtype of gate. Default: None.
            "swiglu" needs it, and "relu2" has none. None stands for 1 with "silu" and "gelu_tanh".
        activation (str, optional): the function. Default: "silu".
            "silu" is silu(gate) * up.
            "gelu_tanh" is gelu(gate) * up, with the approximation of gelu by tanh.
            "relu2" is relu(gate)^2.
            "swiglu" is gate * sigmoid(alpha * gate) * (up + 1), the function of gpt-oss.
        limit (float, optional): the limit of "silu" and "swiglu", a positive number. Default: None.
            min(gate, limit) stands for gate, and up is clamped to -limit .. limit.
        alpha (float, optional): the alpha of "swiglu", a number from 2^-64 to 2^64. Default: 1.702.
        out (Tensor, optional): the tensor that the result is written to, with the shape of gate. Default: a new tensor.
            It must not overlap gate or up.
        out_dtype (dtype, optional): torch.float16, torch.bfloat16 or torch.float32. Default: the dtype of `out`, else
            that of gate.

    Returns:
        `out`, or a new tensor with the shape of gate.

    The arithmetic is fp32, and the result is rounded once. Its operations are defined
    (csrc/kernels/common/activation.h): every backend gives the same bits, within a few ulp of the exact value. A NaN
    gives NaN.

    Raises:
        nvfp4.Error: an argument breaks a rule. Nothing has been written.

    Example:
        >>> import numpy as np, nvfp4
        >>> gate_up = np.float32([[-3, 100, 2, 5]])
        >>> nvfp4.gated(gate_up[:, :2], gate_up[:, 2:], limit=40.0)[:, 1]
        array([200.], dtype=float32)
        >>> nvfp4.gated(gate_up[:, 2:], activation="relu2")
        array([[ 4., 25.]], dtype=float32)
    """
    limit = float("inf") if limit is None else limit
    alpha = 1.702 if alpha is None else alpha
    torch = modules.get("torch")
    if torch is not None and (torch.compiler.is_dynamo_compiling() or torch._C._is_tracing()):
        from nvfp4 import torch_ops

        return torch_ops.call("gated", gate, up, activation, limit, alpha, out, out_dtype)
    return _C.gated(gate, up, activation, limit, alpha, out, out_dtype)


def gated_quantize(
    gate: Array,
    up: AnyArray | None = None,
    activation: str = "silu",
    *,
    limit: float | None = None,
    alpha: float | None = None,
    global_scale: float | AnyArray | None = None,
    ends: AnyArray | None = None,
    scale_layout: str = "128x4",
) -> tuple[Array, ...]:
    """Quantizes a gated activation in one pass over memory: quantize of gated's result in float32, which is not stored.

    Args:
        gate (Tensor): [R, N] or [L, R, N], float16, bfloat16 or float32; N is a multiple of 16.
            Rows are contiguous and may lie any distance apart: gate and up may be halves of one [R, 2N].
        up (Tensor, optional): the factors, as of gated. Default: None.
        activation (str, optional): "silu", "gelu_tanh", "relu2" or "swiglu" (see gated). Default: "silu".
        limit (float, optional): the limit of "silu" and "swiglu", a positive number. Default: None.
        alpha (float, optional): the alpha of "swiglu". Default: 1.702.
        global_scale (float or Tensor, optional): the multiplier, as for quantize. Default: 1.
            With `ends`, [E] has one for each group.
        ends (Tensor, optional): int32 [E], the ends of groups of rows, as for quantize. gate is [R, N]. Default: None.
        scale_layout (str, optional): the layout of the scales, "128x4" or "linear" (see gemm). Default: "128x4".

    Returns:
        (data, scale), or with `ends` and "128x4" (data, scale, scale_rows), as quantize returns them for [.., R, N].

    Every backend gives the same bytes. silu_mul_quantize is the same for gate and up in one tensor, and can write to
    tensors that exist.

    Raises:
        nvfp4.Error: an argument breaks a rule.

    Example:
        >>> import numpy as np, nvfp4
        >>> gate, up = np.full((1, 16), 8, np.float32), np.full((1, 16), 5, np.float32)
        >>> data, scale = nvfp4.gated_quantize(gate, up, limit=3.0, scale_layout="linear")
        >>> nvfp4.dequantize(data, scale, scale_layout="linear")[0, :2]
        array([8.25, 8.25], dtype=float32)
    """
    limit = float("inf") if limit is None else limit
    alpha = 1.702 if alpha is None else alpha
    torch = modules.get("torch")
    if torch is not None and (torch.compiler.is_dynamo_compiling() or torch._C._is_tracing()):
        from nvfp4 import torch_ops

        results = torch_ops.call(
            "gated_quantize", gate, up, global_scale, ends, activation, limit, alpha, scale_layout, None
        )
    else:
        results = _C.gated_quantize(gate, up, global_scale, ends, activation, limit, alpha, scale_layout, None)
    return results if ends is not None and scale_layout == "128x4" else results[:2]


def moe_route(ids: Array, E: int, expert_map: AnyArray | None = None) -> tuple[Array, Array, Array]:
    """Sorts a router's choices by expert, for products whose rows are grouped by expert.

    Args:
        ids (Tensor): [S, k], int32 or int64: the k experts of each of S tokens.
            Rows are contiguous and may lie any distance apart. An expert may occur in a row more than once.
        E (int): the number of experts here, from 1 to 1024.
        expert_map (Tensor, optional): int32 [G], contiguous: the expert here, 0 .. E-1, of each id. Default: None.
            Any other number in it says that the expert is elsewhere.

    Returns:
        (rows, ends, places), int32, in the sorted order: by expert, and for one expert in the order of ids.
        rows [S*k] is the token of each place, 0 for places that no choice has.
        ends [E]: the choices of expert e have the places ends[e-1] .. ends[e]-1, from 0 for e = 0.
        places [S, k] is the place of each choice, -1 for one of no expert here.

    A choice is of no expert here if its id is negative, is E or more (with expert_map: G or more), or if expert_map
    says so. On a GPU it is one launch, and the call waits for nothing. The result is the same every time.

    Raises:
        nvfp4.Error: an argument breaks a rule.

    Example:
        >>> import numpy as np, nvfp4
        >>> rows, ends, places = nvfp4.moe_route(np.int32([[2, 0], [0, -1], [2, 0]]), 3)
        >>> rows, ends
        (array([0, 1, 2, 0, 2, 0], dtype=int32), array([3, 3, 5], dtype=int32))
        >>> places
        array([[ 3,  0],
               [ 1, -1],
               [ 4,  2]], dtype=int32)
    """
    torch = modules.get("torch")
    if torch is not None and (torch.compiler.is_dynamo_compiling() or torch._C._is_tracing()):
        from nvfp4 import torch_ops

        return torch_ops.call("moe_route", ids, expert_map, E)
    return _C.moe_route(ids, expert_map, E)


def moe_combine(
    y: Array,
    places: AnyArray,
    weights: AnyArray | None = None,
    *,
    out: Array | None = None,
    out_dtype: DType | None = None,
) -> Array:
    """Adds the rows that experts made of each token: out[t] is the sum over j of weights[t, j] * y[places[t, j]].

    Args:
        y (Tensor): [R, N], float16, bfloat16 or float32: the experts' rows, in the order of moe_route.
        places (Tensor): int32 [S, k], as moe_route returns it.
            A negative place adds nothing. A place of R or more adds NaN.
        weights (Tensor, optional): [S, k], float32, float16 or bfloat16. Default: 1 for each.
        out (Tensor, optional): the tensor that the result is written to, [S, N]. Default: a new tensor.
            It must not overlap the others.
        out_dtype (dtype, optional): torch.float16, torch.bfloat16 or torch.float32. Default: the dtype of `out`, else
            that of y.

    Returns:
        `out`, or a new tensor [S, N].

    Rows of all tensors are contiguous and may lie any distance apart. Sums are fp32. They begin with 0, add by fma in
    the order of j, and are rounded once, so every backend gives the same bits.

    Raises:
        nvfp4.Error: an argument breaks a rule. Nothing has been written.

    Example:
        >>> import numpy as np, nvfp4
        >>> y, places = np.float32([[1, 2], [10, 20], [100, 200]]), np.int32([[2, 0], [1, -1]])
        >>> nvfp4.moe_combine(y, places, np.float32([[0.5, 2], [1, 7]]))
        array([[ 52., 104.],
               [ 10.,  20.]], dtype=float32)
    """
    torch = modules.get("torch")
    if torch is not None and (torch.compiler.is_dynamo_compiling() or torch._C._is_tracing()):
        from nvfp4 import torch_ops

        return torch_ops.call("moe_combine", y, places, weights, out, out_dtype)
    return _C.moe_combine(y, places, weights, out, out_dtype)
