"""The products among the functions of the package: defaults and documentation, as in nvfp4._api, which has them all."""

from __future__ import annotations

from nvfp4 import _C
from nvfp4._C import BATCH_INVARIANT, BF16_PRODUCTS, CONSTANT_B, CONSTANT_ENDS, NO_TRANSPOSE_B
from nvfp4._tracing import operation

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
            Data, rows and batches of a 16-bit a are aligned to 16 bytes. CPU and sm80 kernels take it. With 128x4
            scales and rows of b on 16 bytes so do the sm90 kernels, and those of sm100 and sm120 for up to 16 rows.
            `info(m, n, k, a_dtype=...)` shows the plan.
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
        backend (str, optional): the backend that runs: "cpu", "sm80" (any GPU since Ampere), "sm90" (H100, H200),
            "sm100" (B200, B300, Thor) or "sm120" (RTX 50, RTX PRO 6000, GB10). Default: None.
            None chooses by rule; `info(m, n, k)` shows the plan and the reason.
        batch_invariant (bool, optional): makes the bits of a row of the result independent of M and of the row's place.
            Default: False.
            One order of additions along K serves every M of the same N, K, L, scale layout, alignment and backend on
            one device. Tuned plans do not count.
            The call is slower, most of all with few rows.
        constant_b (bool, optional): a promise that no kernel still running writes b or scale_b. Default: False.
            A kernel that may run when this call starts counts. The promise is true of a layer's weights.
            `sm90_gemm_*`, `sm100_gemm_*`, `sm120_gemm_*` and the `units` kernels of all three then load the first
            weights while the kernel just before this call on the stream still runs. That kernel may write everything
            else.
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

    Examples:
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
    return operation("gemm", _C.gemm)(
        a, b, scale_a, scale_b, alpha, bias, c, beta, scale_layout, backend, flags, out, out_dtype
    )


def quantize_gemm(
    a: Array,
    b: AnyArray,
    scale_b: AnyArray,
    *,
    global_scale: float | AnyArray | None = None,
    alpha: float | AnyArray | None = None,
    bias: AnyArray | None = None,
    c: AnyArray | None = None,
    beta: float = 0.0,
    out: Array | None = None,
    out_dtype: DType | None = None,
    scale_layout: str = "128x4",
    block_scale: str = "amax6",
    backend: str | None = None,
    batch_invariant: bool = False,
    constant_b: bool = False,
) -> Array:
    """Quantizes A, then multiplies: C = alpha * (Q(A) . B^T) + beta * c + bias, a layer with NVFP4 weights and inputs.

    The result has the bits of `quantize(a, ...)` and `gemm` of its data and scales. Without tensors for these, the call
    needs less of the host's time. Its own workspace takes their place.

    Args:
        a (Tensor): the matrix A, [M, K] or [L, M, K], float16, bfloat16 or float32, as the x of `quantize`.
        b (Tensor): the matrix B, [N, K/2] or [L, N, K/2], NVFP4, as in `gemm`.
        scale_b (Tensor): the scales of b, in `scale_layout`.
        global_scale (float or Tensor, optional): the divisor of `quantize`. Default: 1.
            It is positive and finite. A tensor is float32, on the device of a, and has one element.
            It is no factor of the result: `alpha` is the product of all global scales.
        alpha (float or Tensor, optional): the factor of Q(A) . B^T, as in `gemm`. Default: 1.
        bias (Tensor, optional): a vector of length N that is added to every row, as in `gemm`. Default: None.
        c (Tensor, optional): a matrix with the shape and the dtype of the result, as in `gemm`. Default: None.
        beta (float, optional): the factor of c. Default: 0.
        out (Tensor, optional): the tensor that the result is written to, [M, N] or [L, M, N]. Default: a new tensor.
            It must not overlap any argument but c.
        out_dtype (dtype, optional): torch.float16, torch.bfloat16 or torch.float32. Default: the dtype of `out`, else
            that of a.
        scale_layout (str, optional): the layout of scale_b, "128x4" or "linear", as in `gemm`. Default: "128x4".
        block_scale (str, optional): how the scales of a's blocks are chosen, "amax6" or "four_over_six", as of
            `quantize`. Default: "amax6".
        backend (str, optional): the backend that runs, as in `gemm`. Default: None.
        batch_invariant (bool, optional): makes the bits of a row of the result independent of M and of the row's place,
            as in `gemm`. Default: False.
        constant_b (bool, optional): a promise that no kernel still running writes b or scale_b, as in `gemm`.
            Default: False.

    Returns:
        `out`, or a new tensor of a's library on a's device.

    Raises:
        nvfp4.Error: an argument breaks a rule, or the device cannot run the call. Nothing has been written.

    Examples:
        >>> import numpy as np, nvfp4
        >>> b, scale_b = nvfp4.quantize(6 * np.eye(3, 32, dtype=np.float32))
        >>> nvfp4.quantize_gemm(np.full((2, 32), 1.5, np.float32), b, scale_b, bias=np.float32([0, 10, 20]))
        array([[ 9., 19., 29.],
               [ 9., 19., 29.]], dtype=float32)
    """
    if type(batch_invariant) is not bool or type(constant_b) is not bool:
        reject_switch(batch_invariant=batch_invariant, constant_b=constant_b)
    flags = BATCH_INVARIANT if batch_invariant else 0
    if constant_b:
        flags |= CONSTANT_B
    arguments = (a, b, scale_b, global_scale, alpha, bias, c, beta, scale_layout, block_scale, backend, flags, out)
    return operation("quantize_gemm", _C.quantize_gemm)(*arguments, out_dtype)


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
    constant_ends: bool = False,
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
            [E, P, N, K/2] has P parts, such as gate and up. Their results lie side by side.
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
        scale_layout (str, optional): "128x4" or "linear", as in `gemm`. Default: "128x4".
        transpose_b (bool, optional): whether the matrices are transposed. Default: True.
            False computes [T, K] from a 16-bit a of [R, N], the gradient with respect to a. b has no parts, alpha has
            one element or [E], and bias is [E, K].
        backend (str, optional): "cpu", "sm80" (every GPU since Ampere), or "sm90", "sm100" or "sm120" (one
            architecture; a 16-bit a needs 128x4 scales, rows of a and b on 16 bytes and transpose_b), or None, which
            chooses by rule. Default: None.
        batch_invariant (bool, optional): makes the bits of a row independent of T and of its group's size.
            Default: False.
        constant_b (bool, optional): a promise that no kernel still running writes b or scale_b, as in `gemm`.
            Default: False.
        constant_ends (bool, optional): a promise that no kernel still running writes ends. Default: False.
            It is true of the ends of `moe_route` for the second product of a layer, since the first lies between.

    Returns:
        `out`, or a new tensor [T, N] or [T, P * N]. Rows at and past the last end are not written.

    Products are exact and summed in fp32. alpha, bias and row_scale are applied in fp32 in this order, and the result
    is rounded once. The bits of a row depend on E, N, K, P, the types and at most on the size of its group: neither on
    the other groups nor on the row's place. On a Hopper GPU, and with a 16-bit a on the GPUs after it, they depend on T
    unless batch_invariant is set or the backend is "sm80".

    Raises:
        nvfp4.Error: an argument breaks a rule, or the device cannot run the call. Nothing has been written.

    Examples:
        >>> import numpy as np, nvfp4
        >>> b, scale_b = nvfp4.quantize(np.stack([6 * np.eye(2, 16), 3 * np.eye(2, 16)]).astype(np.float32))
        >>> a = np.float16(np.ones((3, 16)))
        >>> nvfp4.grouped_gemm(a, b, None, scale_b, np.int32([1, 3]))
        array([[6., 6.],
               [3., 3.],
               [3., 3.]], dtype=float16)
    """
    if not (type(batch_invariant) is type(constant_b) is type(constant_ends) is type(transpose_b) is bool):
        promises = {"constant_b": constant_b, "constant_ends": constant_ends}
        reject_switch(batch_invariant=batch_invariant, transpose_b=transpose_b, **promises)
    flags = BATCH_INVARIANT if batch_invariant else 0
    if constant_b:
        flags |= CONSTANT_B
    if constant_ends:
        flags |= CONSTANT_ENDS
    if not transpose_b:
        flags |= NO_TRANSPOSE_B
    tensors = (a, b, scale_a, scale_b, ends, rows, scale_rows, row_scale, alpha, bias)
    return operation("grouped_gemm", _C.grouped_gemm)(*tensors, scale_layout, backend, flags, out, out_dtype)


def gated_grouped_gemm(
    a: Array,
    b: AnyArray | Sequence[AnyArray],
    scale_a: AnyArray | None,
    scale_b: AnyArray | Sequence[AnyArray],
    ends: AnyArray,
    activation: str = "silu",
    *,
    limit: float | None = None,
    activation_alpha: float | None = None,
    rows: AnyArray | None = None,
    scale_rows: AnyArray | None = None,
    row_scale: AnyArray | None = None,
    alpha: float | AnyArray | None = None,
    bias: AnyArray | None = None,
    out: Array | None = None,
    out_dtype: DType | None = None,
    scale_layout: str = "128x4",
    backend: str | None = None,
    batch_invariant: bool = False,
    constant_b: bool = False,
) -> Array:
    """Multiplies groups of rows by their gate and up, and computes the gated activation: the first half of an expert.

    The result has the bits of `grouped_gemm`, rounded to the dtype of this result, followed by `gated` of its two
    halves. On a GPU some plans compute both in one launch (`fused` of `info`). Otherwise the products lie in
    the call's own workspace.

    Args:
        a (Tensor): [R, K], float16, bfloat16 or NVFP4, as in `grouped_gemm`.
        b (Tensor): the matrices, as in `grouped_gemm`: [E, 2, N, K/2], gate and up of each group. [E, N, K/2] or
            [E, 1, N, K/2] has one matrix each, without up. On a CPU, also a list of E tensors of [2, N, K/2],
            [1, N, K/2] or [N, K/2].
        scale_a (Tensor or None): the scales of an NVFP4 a, as in `grouped_gemm`; None for a 16-bit a.
        scale_b (Tensor): the scales of b, as in `grouped_gemm`.
        ends (Tensor): int32 [E], the end of each group, as in `grouped_gemm`.
        activation (str, optional): the function, as in `gated`: "silu", "gelu_tanh", "relu2" or "swiglu". Default:
            "silu". "swiglu" needs two parts, "relu2" takes one. "silu" and "gelu_tanh" of one part are without up.
        limit (float, optional): the limit of "silu" and "swiglu", a positive number, as in `gated`. Default: None.
        activation_alpha (float, optional): the alpha of "swiglu", a number from 2^-64 to 2^64. Default: 1.702.
        rows (Tensor, optional): int32 [T]. Row i of the result is computed from row rows[i] of a, as in `grouped_gemm`.
            Default: None.
        scale_rows (Tensor, optional): int32 [E], for an NVFP4 a with 128x4 scales, as in `grouped_gemm`. Default: None.
        row_scale (Tensor, optional): float32 [T], a factor for each row of the products, before they are rounded.
            Default: None.
        alpha (float or Tensor, optional): the factor of the products, as in `grouped_gemm`. Default: 1.
            A tensor is float32 with one element, one a matrix ([E] or [E, P]), or one a column ([E, N] or [E, P, N]).
        bias (Tensor, optional): [E, N] or [E, P, N], float32 or the dtype of the result, added to the products.
            Default: None.
        out (Tensor, optional): [T, N], which the result is written to. Default: a new tensor.
            It must not overlap any argument.
        out_dtype (dtype, optional): torch.float16, torch.bfloat16 or torch.float32. Default: the dtype of `out`, else
            that of a 16-bit a, else torch.float16.
        scale_layout (str, optional): "128x4" or "linear", as in `gemm`. Default: "128x4".
        backend (str, optional): the backend that runs, as in `grouped_gemm`. Default: None.
        batch_invariant (bool, optional): makes the bits of a row independent of T and of its group's size.
            Default: False.
        constant_b (bool, optional): a promise that no kernel still running writes b or scale_b, as in `gemm`.
            Default: False.

    Returns:
        `out`, or a new tensor [T, N]. Rows at and past the last end hold anything.

    Raises:
        nvfp4.Error: an argument breaks a rule, or the device cannot run the call. Nothing has been written.

    Examples:
        >>> import numpy as np, nvfp4
        >>> gate_up = np.stack([6 * np.eye(2, 16), 3 * np.eye(2, 16)]).astype(np.float32)[None]
        >>> b, scale_b = nvfp4.quantize(gate_up.reshape(2, 2, 16))
        >>> b, a = b.reshape(1, 2, 2, 8), np.float16(np.ones((3, 16)))
        >>> nvfp4.gated_grouped_gemm(a, b, None, scale_b, np.int32([3]), "swiglu", limit=5.0)
        array([[20., 20.],
               [20., 20.],
               [20., 20.]], dtype=float16)
    """
    if type(batch_invariant) is not bool or type(constant_b) is not bool:
        reject_switch(batch_invariant=batch_invariant, constant_b=constant_b)
    flags = BATCH_INVARIANT if batch_invariant else 0
    if constant_b:
        flags |= CONSTANT_B
    limit = float("inf") if limit is None else limit
    activation_alpha = 1.702 if activation_alpha is None else activation_alpha
    tensors = (a, b, scale_a, scale_b, ends, rows, scale_rows, row_scale, alpha, bias)
    gating = (activation, limit, activation_alpha)
    return operation("gated_grouped_gemm", _C.gated_grouped_gemm)(
        *tensors, *gating, scale_layout, backend, flags, out, out_dtype
    )


def gated_grouped_quantize(
    a: Array,
    b: AnyArray,
    scale_a: AnyArray | None,
    scale_b: AnyArray,
    ends: AnyArray,
    activation: str = "silu",
    *,
    limit: float | None = None,
    activation_alpha: float | None = None,
    rows: AnyArray | None = None,
    scale_rows: AnyArray | None = None,
    row_scale: AnyArray | None = None,
    alpha: float | AnyArray | None = None,
    bias: AnyArray | None = None,
    global_scale: float | AnyArray | None = None,
    product_dtype: str = "float16",
    out: tuple[Array, Array, Array] | None = None,
    scale_layout: str = "128x4",
    backend: str | None = None,
    batch_invariant: bool = False,
    constant_b: bool = False,
) -> tuple[Array, ...]:
    """Multiplies groups of rows by their gate and up, and quantizes the gated activation: the input of an expert's
    second product.

    The results have the bytes of `grouped_gemm` with results of `product_dtype`, and of `gated_quantize` of its two
    halves. On a B200 one kernel computes both. Elsewhere the products lie in the call's own workspace.

    Args:
        a (Tensor): [R, K], float16, bfloat16 or NVFP4, as in `grouped_gemm`.
        b (Tensor): [E, 2, N, K/2], gate and up of each group, as in `gated_grouped_gemm`; [E, N, K/2] or [E, 1, N, K/2]
            has one matrix each. N is a multiple of 16, E at least 1.
        scale_a (Tensor or None): the scales of an NVFP4 a, as in `grouped_gemm`; None for a 16-bit a.
        scale_b (Tensor): the scales of b, as in `grouped_gemm`.
        ends (Tensor): int32 [E], the end of each group, as in `grouped_gemm`.
        activation (str, optional): the function, as in `gated_grouped_gemm`. Default: "silu".
        limit (float, optional): the limit of "silu" and "swiglu", as in `gated`. Default: None.
        activation_alpha (float, optional): the alpha of "swiglu", a number from 2^-64 to 2^64. Default: 1.702.
        rows (Tensor, optional): int32 [T], as in `grouped_gemm`. Default: None.
        scale_rows (Tensor, optional): int32 [E], where the scales of a begin, as in `grouped_gemm`. Default: None.
        row_scale (Tensor, optional): float32 [T], a factor for each row of the products. Default: None.
        alpha (float or Tensor, optional): the factor of the products, as in `gated_grouped_gemm`. Default: 1.
        bias (Tensor, optional): [E, N] or [E, P, N], float32 or `product_dtype`, added to the products. Default: None.
        global_scale (float or Tensor, optional): the multiplier of the results, as in `gated_quantize`. Default: 1.
            A tensor is float32 with one element, one a group ([E]), or one a row ([T, 1]).
        product_dtype (str, optional): "float16" or "bfloat16", to which gate and up are rounded. Default: "float16".
        out (tuple of three Tensors, optional): (data, scale, scale_rows), which are written to. Default: new tensors.
        scale_layout (str, optional): "128x4" or "linear", of the scales of a and b and of the results.
            Default: "128x4".
        backend (str, optional): the backend that runs, as in `grouped_gemm`. Default: None.
        batch_invariant (bool, optional): makes the bytes of a row independent of T and of its group's size.
            Default: False.
        constant_b (bool, optional): a promise that no kernel still running writes b or scale_b, as in `gemm`.
            Default: False.

    Returns:
        (data, scale, scale_rows), or (data, scale) with "linear", as `quantize` returns them with `ends` for [T, N].

    Raises:
        nvfp4.Error: an argument breaks a rule, or the device cannot run the call. Nothing has been written.

    Examples:
        >>> import numpy as np, nvfp4
        >>> gate_up = np.stack([6 * np.eye(16), 3 * np.eye(16)]).astype(np.float32)
        >>> b, scale_b = nvfp4.quantize(gate_up, scale_layout="linear")
        >>> a = np.float16(np.ones((2, 16)))
        >>> call = {"limit": 5.0, "scale_layout": "linear"}
        >>> data, scale = nvfp4.gated_grouped_quantize(a, b[None], None, scale_b[None], np.int32([2]), "swiglu", **call)
        >>> nvfp4.dequantize(data, scale, scale_layout="linear")[0, :2]
        array([19.5, 19.5], dtype=float32)
    """
    if type(batch_invariant) is not bool or type(constant_b) is not bool:
        reject_switch(batch_invariant=batch_invariant, constant_b=constant_b)
    if product_dtype not in ("float16", "bfloat16"):
        raise _C.Error(f'product_dtype: is {product_dtype!r}; must be "float16" or "bfloat16"')
    flags = BATCH_INVARIANT if batch_invariant else 0
    if constant_b:
        flags |= CONSTANT_B
    if product_dtype == "bfloat16":
        flags |= BF16_PRODUCTS
    limit = float("inf") if limit is None else limit
    activation_alpha = 1.702 if activation_alpha is None else activation_alpha
    tensors = (a, b, scale_a, scale_b, ends, rows, scale_rows, row_scale, alpha, bias, global_scale)
    results = operation("gated_grouped_quantize", _C.gated_grouped_quantize)(
        *tensors, activation, limit, activation_alpha, scale_layout, backend, flags, out
    )
    return results if scale_layout == "128x4" else results[:2]


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
            It is the view permute(3, 4, 1, 5, 2, 0) of a contiguous tensor (L, ceil(M/128), ceil(K/64), 32, 4, 4)
            with the bytes of gemm's "128x4".
        sfb_permuted (Tensor): the scales of b, likewise with N in place of M.
        c (Tensor): the result, [M, N, L], float16, bfloat16 or float32, in memory (L, M, N).

    Returns:
        c.

    Raises:
        nvfp4.Error: an argument breaks a rule, strides included. Nothing has been written.
    """
    return operation("custom_kernel", _C.custom_kernel)(a, b, sfa_permuted, sfb_permuted, c)
