"""The functions of the package: defaults and documentation. Arguments are read and checked in C (nvfp4._C). The
products are defined in nvfp4._products.

While torch.compile or torch.jit.trace traces a function, it calls an operator of torch.ops.nvfp4 with the same
arguments (nvfp4._tracing).
"""

from __future__ import annotations

from nvfp4 import _C
from nvfp4._products import custom_kernel as custom_kernel
from nvfp4._products import gated_grouped_gemm as gated_grouped_gemm
from nvfp4._products import gated_grouped_quantize as gated_grouped_quantize
from nvfp4._products import gemm as gemm
from nvfp4._products import grouped_gemm as grouped_gemm
from nvfp4._products import quantize_gemm as quantize_gemm
from nvfp4._products import reject_switch
from nvfp4._tracing import operation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvfp4._types import AnyArray, Array, DType


def quantize(
    x: Array,
    *,
    global_scale: float | AnyArray | None = None,
    scale_layout: str = "128x4",
    block_scale: str = "amax6",
    ends: AnyArray | None = None,
    rows: AnyArray | None = None,
    out: tuple[Array, Array, Array] | None = None,
    importance: AnyArray | None = None,
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
        block_scale (str, optional): how the scale of a block is chosen, "amax6", "four_over_six" or "search".
            Default: "amax6".
            "amax6" takes amax/6.
            "four_over_six" takes amax/6 or amax/4, whichever gives the smaller sum of squared errors, and amax/6 if
            both are equal. Call amax_scale with the same block_scale: a scale from amax/4 is 1.5 times as large and may
            saturate otherwise.
            "search" takes the scale with the smallest sum of squared errors among 13: with c the code of amax/6, those
            of c - 5 to c + 7, within 1 to 126, and the first of equals. It is for weights: it takes about 8 times as
            long. Not with `ends` or `rows`.
        ends (Tensor, optional): int32 [E], E from 1 to 1024. Rows of the result lie in groups, as grouped_gemm takes
            them. Group e has rows ends[e-1] .. ends[e] - 1, group 0 begins with row 0, and a running maximum of the
            ends counts, clamped to 0 .. T. x is [R, K]. Default: None.
        rows (Tensor, optional): int32 [T]. Row i of the result is quantized from row rows[i] of x, [R, K]. An index
            outside of x gives a row of scales NaN. Default: None, where T = R, and row i is row i.
        out (tuple of three Tensors, optional): (data, scale, scale_rows), which are written to, with `ends` or `rows`.
            scale_rows has E elements, 1 without `ends`, and is written in both layouts. Default: new tensors.
        importance (Tensor, optional): float32 [K], contiguous, on the device of x, for "search" alone. Each squared
            error counts as many times as importance says for its column. Default: None, all count once.
            The numbers are finite and not negative; on a GPU they are not read by the host, and others give an
            arbitrary scale. 16 zeros for a block count as ones. For a weight [N, K], the mean of the squares of each
            input channel makes the sum the expected squared error of the layer's outputs, correlations aside.

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

    With "amax6" the scale of a block is amax/6 / global_scale rounded to e4m3. A value is x / (scale * global_scale)
    rounded to e2m1. Both are rounded to nearest, ties to even, and saturate. A block of zeros has scale 0. Finite input
    never gives NaN or infinity; a NaN makes the scale of its block NaN.

    Raises:
        nvfp4.Error: an argument breaks a rule.

    Examples:
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
    if importance is not None:
        if block_scale != "search":
            raise _C.Error(f"importance: is given but block_scale is {block_scale!r}; must be None, or it 'search'")
        if ends is not None or rows is not None or out is not None:
            raise _C.Error("importance: is given with ends, rows or out; must be None then")
        return operation("weighted_quantize", _C.weighted_quantize)(x, importance, global_scale, scale_layout)
    if ends is None and rows is None:
        if out is not None:
            raise _C.Error("out: is given without ends and rows; must be None then")
        return operation("quantize", _C.quantize)(x, global_scale, scale_layout, block_scale)
    quantize_groups = operation("grouped_quantize", _C.grouped_quantize)
    results = quantize_groups(x, global_scale, ends, rows, scale_layout, block_scale, out)
    return results if ends is not None and scale_layout == "128x4" else results[:2]


def gptq_block(x: Array, u: AnyArray, *, global_scale: float | AnyArray | None = None) -> tuple[Array, Array, Array]:
    """Rounds a block of 16 columns of a weight to NVFP4 by GPTQ, and searches the scale of each row's block meanwhile.

    GPTQ is Frantar et al., https://arxiv.org/abs/2210.17323. quantize_model(weights="gptq") calls this function.
    For each row t of x and each of the 13 scales of quantize's "search", with d = scale * global_scale:

        for j = 0 .. 15:  v_j = e2m1(t_j / d);  e_j = (t_j - v_j d) / u_jj;  t_k -= e_j u_jk for k > j

    and the first scale with the smallest sum of e_j^2 is taken. The caller then subtracts error . u' from the columns
    that follow, where u' are the block's 16 rows of the factor.

    Args:
        x (Tensor): float32 [N, 16], the block's columns in the order in which they are rounded. Rows may lie any
            distance apart.
        u (Tensor): float32 [16, 16], the block's part of the upper Cholesky factor of the inverse of the Hessian. Rows
            may lie any distance apart, the lower triangle is not read. The diagonal must be positive.
        global_scale (float or Tensor, optional): as in quantize, one element or one for each row. Default: 1.

    Returns:
        (data, scale, error): uint8 [N, 8], column j of x as value j; float8_e4m3fn [N, 1] (uint8 outside torch),
        linear; float32 [N, 16], the e_j. A row of zeros has scale 0; one with a NaN has scale NaN and errors NaN.

    Every backend gives the same bits.

    Raises:
        nvfp4.Error: an argument breaks a rule.

    Examples:
        >>> import numpy as np, nvfp4
        >>> x, u = np.linspace(-6, 6, 16, dtype=np.float32)[None], np.eye(16, dtype=np.float32)
        >>> data, scale, error = nvfp4.gptq_block(x, u)
        >>> nvfp4.dequantize(data, scale, scale_layout="linear")[0, :4]
        array([-5.5  , -5.5  , -4.125, -4.125], dtype=float32)
    """
    return operation("gptq_block", _C.gptq_block)(x, u, global_scale)


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

    Examples:
        >>> import numpy as np, nvfp4
        >>> data, scale = nvfp4.quantize(np.full((1, 16), -3, np.float32))
        >>> nvfp4.dequantize(data, scale, global_scale=0.5)[0, :2]
        array([-1.5, -1.5], dtype=float32)
    """
    return operation("dequantize", _C.dequantize)(data, scale, global_scale, scale_layout, out_dtype)


def rms_norm_quantize(
    x: Array,
    weight: AnyArray,
    eps: float,
    *,
    residual: AnyArray | None = None,
    global_scale: float | AnyArray | None = None,
    scale_layout: str = "128x4",
    round_steps: bool = False,
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
        round_steps (bool, optional): whether steps are rounded to the dtype of x. Default: False.
            True rounds x / sqrt(mean(x^2) + eps), and then its product with weight. These are the roundings of RMSNorm
            in transformers and of vLLM's kernels.
        out (tuple of two Tensors, optional): (data, scale), which are written to. Default: new tensors.

    Returns:
        (data, scale), as quantize returns them.

    Norms are fp32. The order of additions and all roundings are defined (csrc/cpu/fused.c): every backend gives the
    same bytes, and a row's bytes do not depend on the other rows. With round_steps the bytes are those of a 16-bit
    RMSNorm and of quantize wherever both compute the same 1 / sqrt(mean(x^2) + eps) in fp32. Libraries add the squares
    in other orders, so that this number can differ in the last bits.

    Raises:
        nvfp4.Error: an argument breaks a rule. Nothing has been written.

    Examples:
        >>> import numpy as np, nvfp4
        >>> data, scale = nvfp4.rms_norm_quantize(np.full((1, 16), 8, np.float32), np.full(16, 6, np.float32), 0.0)
        >>> nvfp4.dequantize(data, scale)[0, :2]
        array([6., 6.], dtype=float32)
    """
    if type(round_steps) is not bool:
        reject_switch(round_steps=round_steps)
    return operation("rms_norm_quantize", _C.rms_norm_quantize)(
        x, weight, residual, global_scale, eps, scale_layout, 1 if round_steps else 0, out
    )


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
    (csrc/common/exponential.h): every backend gives the same bytes, within a few ulp of the exact value.

    Raises:
        nvfp4.Error: an argument breaks a rule. Nothing has been written.

    Examples:
        >>> import numpy as np, nvfp4
        >>> data, scale = nvfp4.silu_mul_quantize(np.full((1, 32), 64, np.float32), global_scale=2.0)
        >>> nvfp4.dequantize(data, scale, global_scale=2.0)[0, :2]
        array([4224., 4224.], dtype=float32)
    """
    return operation("silu_mul_quantize", _C.silu_mul_quantize)(gate_up, global_scale, scale_layout, out)


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

    Examples:
        >>> import numpy as np, nvfp4
        >>> nvfp4.amax_scale(np.float32([[0, -1344]]))
        array([0.5], dtype=float32)
    """
    if type(by_row) is not bool:
        reject_switch(by_row=by_row)
    return operation("amax_scale", _C.amax_scale)(x, block_scale, 1 if by_row else 0)


def swizzle(scale: Array) -> Array:
    """Rearranges scales from the linear to the 128x4 layout (see gemm), with zeros as padding.

    Args:
        scale (Tensor): [R, S] or [L, R, S] with S = K/16, float8_e4m3fn or uint8.

    Returns:
        [.., R rounded up to 128, S rounded up to 4], contiguous, of the same dtype (uint8 outside torch). Its bytes
        are in 128x4 order; the shape only has the right size.

    Raises:
        nvfp4.Error: an argument breaks a rule.

    Examples:
        >>> import numpy as np, nvfp4
        >>> nvfp4.swizzle(np.ones((3, 2), np.uint8)).shape
        (128, 4)
    """
    return operation("swizzle", _C.swizzle)(scale)


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

    Examples:
        >>> import numpy as np, nvfp4
        >>> nvfp4.unswizzle(nvfp4.swizzle(np.uint8([[1, 2], [3, 4]])), 2, 2)
        array([[1, 2],
               [3, 4]], dtype=uint8)
    """
    return operation("unswizzle", _C.unswizzle)(scale, rows, columns)


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
    (csrc/common/gating.h): every backend gives the same bits, within a few ulp of the exact value. A NaN
    gives NaN.

    Raises:
        nvfp4.Error: an argument breaks a rule. Nothing has been written.

    Examples:
        >>> import numpy as np, nvfp4
        >>> gate_up = np.float32([[-3, 100, 2, 5]])
        >>> nvfp4.gated(gate_up[:, :2], gate_up[:, 2:], limit=40.0)[:, 1]
        array([200.], dtype=float32)
        >>> nvfp4.gated(gate_up[:, 2:], activation="relu2")
        array([[ 4., 25.]], dtype=float32)
    """
    limit = float("inf") if limit is None else limit
    alpha = 1.702 if alpha is None else alpha
    return operation("gated", _C.gated)(gate, up, activation, limit, alpha, out, out_dtype)


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
    round_steps: bool = False,
    out: tuple[Array, Array, Array] | None = None,
) -> tuple[Array, ...]:
    """Quantizes a gated activation in one pass over memory: quantize of gated's result in float32, which is not stored.

    Args:
        gate (Tensor): [R, N] or [L, R, N], float16, bfloat16 or float32; N is a multiple of 16.
            Rows are contiguous and may lie any distance apart: gate and up may be halves of one [R, 2N].
        up (Tensor, optional): the factors, as in gated. Default: None.
        activation (str, optional): "silu", "gelu_tanh", "relu2" or "swiglu" (see gated). Default: "silu".
        limit (float, optional): the limit of "silu" and "swiglu", a positive number. Default: None.
        alpha (float, optional): the alpha of "swiglu". Default: 1.702.
        global_scale (float or Tensor, optional): the multiplier, as for quantize. Default: 1.
            With `ends`, [E] has one for each group.
        ends (Tensor, optional): int32 [E], the ends of groups of rows, as for quantize. gate is [R, N]. Default: None.
        scale_layout (str, optional): the layout of the scales, "128x4" or "linear" (see gemm). Default: "128x4".
        round_steps (bool, optional): whether steps are rounded to the dtype of gate. Default: False.
            True rounds the activation of gate, and then its product with up, as models in 16 bits do. Not with
            "swiglu".
        out (tuple of three Tensors, optional): (data, scale, scale_rows), which are written to. Default: new tensors.
            scale_rows is int32 and has E elements, 1 without `ends`.

    Returns:
        (data, scale), or with `ends` and "128x4" (data, scale, scale_rows), as quantize returns them for [.., R, N].

    Every backend gives the same bytes. silu_mul_quantize is the same for gate and up in one tensor.

    Raises:
        nvfp4.Error: an argument breaks a rule.

    Examples:
        >>> import numpy as np, nvfp4
        >>> gate, up = np.full((1, 16), 8, np.float32), np.full((1, 16), 5, np.float32)
        >>> data, scale = nvfp4.gated_quantize(gate, up, limit=3.0, scale_layout="linear")
        >>> nvfp4.dequantize(data, scale, scale_layout="linear")[0, :2]
        array([8.25, 8.25], dtype=float32)
    """
    limit = float("inf") if limit is None else limit
    alpha = 1.702 if alpha is None else alpha
    if type(round_steps) is not bool:
        reject_switch(round_steps=round_steps)
    results = operation("gated_quantize", _C.gated_quantize)(
        gate, up, global_scale, ends, activation, limit, alpha, scale_layout, 1 if round_steps else 0, out
    )
    return results if ends is not None and scale_layout == "128x4" else results[:2]


def moe_route(ids: Array, E: int, expert_map: AnyArray | None = None) -> tuple[Array, Array, Array]:
    """Sorts a router's choices by expert, as products of groups need their rows.

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

    Examples:
        >>> import numpy as np, nvfp4
        >>> rows, ends, places = nvfp4.moe_route(np.int32([[2, 0], [0, -1], [2, 0]]), 3)
        >>> rows, ends
        (array([0, 1, 2, 0, 2, 0], dtype=int32), array([3, 3, 5], dtype=int32))
        >>> places
        array([[ 3,  0],
               [ 1, -1],
               [ 4,  2]], dtype=int32)
    """
    return operation("moe_route", _C.moe_route)(ids, expert_map, E)


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

    Examples:
        >>> import numpy as np, nvfp4
        >>> y, places = np.float32([[1, 2], [10, 20], [100, 200]]), np.int32([[2, 0], [1, -1]])
        >>> nvfp4.moe_combine(y, places, np.float32([[0.5, 2], [1, 7]]))
        array([[ 52., 104.],
               [ 10.,  20.]], dtype=float32)
    """
    return operation("moe_combine", _C.moe_combine)(y, places, weights, out, out_dtype)
