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
    """C = alpha * (A . B^T) + beta * c + bias, of matrices A (M x K) and B (N x K): B is NVFP4, A NVFP4 or 16-bit.
    Or without the transposition, alpha * (A . B), of 16-bit A (M x N): the gradient of a linear layer's input.

    Tensors are torch tensors, NumPy arrays or arrays of any library with `__dlpack__` (CuPy, JAX), on the CPU or on one
    CUDA device. On a GPU the work is enqueued on the current stream of the library of out, or else of a: nothing waits,
    and the call can be captured in a CUDA graph. JAX's arrays are inputs, on a GPU with an `out` of another library.
    torch.compile traces the call.

    Args:
        a: [M, K/2], or [L, M, K/2] for L products in one call; uint8 or float4_e2m1fn_x2. Element 2i of a row is the
            low nibble of byte i, element 2i+1 the high one. K is a multiple of 16; M, N, L may be
            any size, 0 included. Rows are contiguous; their pitch is K/2 bytes or a multiple of 16 bytes. The data is
            aligned to 8 bytes.
            Or float16 or bfloat16 values as they are (W4A16): [M, K] or [L, M, K], with data, rows and batches on 16
            bytes, and None for scale_a. CPU, sm80 and sm90 kernels take it, sm90's with 128x4 scales and rows of b on
            16 bytes. `info(m, n, k, a_dtype=...)` shows the plan.
        b: [N, K/2] or [L, N, K/2], as an NVFP4 a.
        scale_a, scale_b: one float8_e4m3fn (or the same as uint8) for every 16 values along K, in `scale_layout`.
            Bit 7 is ignored; 0x7F is NaN and makes its row or column NaN.
        alpha: a number, or float32 on the device of a: a tensor of one element, or a vector of length N that scales
            each column of C by its own factor. Global scales go here, as multipliers.
        bias: vector of length N, float32 or of the dtype of the result; added to every row.
        c: a matrix like the result, same dtype; read only if beta is not 0. May be `out` itself.
        beta: a number.
        out: where to write, [M, N] or [L, M, N]; must not overlap other arguments than c. By default a new tensor.
        out_dtype: torch.float16, torch.bfloat16 or torch.float32; NumPy's types and names such as "float32" are
            accepted too. By default torch.float16, or the dtype of a 16-bit a. With `out`, must be its dtype.
        scale_layout: "128x4", the tensor core's: the scale of row r, column s is at byte
            ((r//128) * ceil(K/64) + s//4) * 512 + (r%32) * 16 + (r%128)//32 * 4 + s%4
            of a contiguous tensor of any shape with L * ceil(rows/128) * ceil(K/64) * 512 bytes. Padding may hold
            anything. Or "linear": [rows, K/16] or [L, rows, K/16].
        backend: None chooses by rule (`info(m, n, k)` shows the plan and the reason); "cpu", "sm80" (any GPU since
            Ampere), "sm90" (H100, H200) or "sm100" (B200, B300) forces one.
        batch_invariant: True: the bits of a row of the result depend neither on M nor on the row's place. One order of
            additions along K serves every M of the same N, K, L, scale layout, alignment and backend on one device;
            tuned plans do not count. Slower, most of all for few rows.
        constant_b: True: your word that b and scale_b are complete before the kernel just before this call on the
            stream starts, as a layer's weights are. `sm90_gemm_*` and `sm100_gemm_*` then load the first weights while
            that kernel runs. If that kernel writes b or scale_b, the flag is the caller's error: nothing detects it and
            the result is undefined, where without the flag it is right. It may write everything else. (A kernel that
            lets its successor start early, by `griddepcontrol`, counts together with those that it does not wait for
            itself; nvfp4's wait for all before letting go.) Without effect on other kernels, and on the bits.
        transpose_b: False: C [M, K] = alpha * (A . B) + beta * c + bias, C[m, k] being a sum over n. b and scale_b lie
            as ever. a is float16 or bfloat16 [M, N] or [L, M, N], of any N, with rows that are contiguous or a multiple
            of 16 bytes apart; faster if data, rows and batches are on 16 bytes. out and c are [M, K] or [L, M, K], bias
            has length K. alpha has one element: factors of b's rows would be within the sums. For these, multiply a by
            them. CPU and sm80 kernels take it, with 128x4 scales and all rows and batches on 16 bytes those of sm90.

    Returns:
        `out`, or a new tensor of a's library on a's device: by its from_dlpack, or on a GPU its empty().

    Sums are accumulated in fp32 from exact products (with bfloat16 values of a below 2^-109 they may underflow); alpha,
    beta * c and bias are applied in fp32; the result is rounded once, to nearest even. The same call on the same device
    gives the same bits every time. No gradient is computed: a bias, c, alpha or out that requires one is rejected while
    gradients are recorded.

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


def reject_switch(**switches: object) -> None:
    """Raises an error that names the first that is no bool: other values would count as True, or have no truth."""
    for name, value in switches.items():
        if type(value) is not bool:
            raise _C.Error(f"{name}: is of type {type(value).__name__}; must be True or False")


def custom_kernel(a: AnyArray, b: AnyArray, sfa_permuted: AnyArray, sfb_permuted: AnyArray, c: Array) -> Array:
    """C = A . B^T on the views that GPU MODE's NVFP4 competition passes; writes c and returns it.

    Args:
        a: [M, K/2, L], b: [N, K/2, L]: float4_e2m1fn_x2 or uint8, in memory (L, rows, K/2).
        sfa_permuted, sfb_permuted: [32, 4, ceil(rows/128), 4, ceil(K/64), L], float8_e4m3fn or uint8: the view
            permute(3, 4, 1, 5, 2, 0) of contiguous (L, ceil(rows/128), ceil(K/64), 32, 4, 4), whose bytes are those of
            gemm's "128x4".
        c: [M, N, L], float16 (or bfloat16, float32), in memory (L, M, N).

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
) -> tuple[Array, Array]:
    """Numbers to NVFP4: returns (data, scale) with x ~ value * scale * global_scale.

    Args:
        x: [R, K] or [L, R, K], float16, bfloat16 or float32; K is a multiple of 16.
        global_scale: a multiplier that dequantize (or gemm's alpha) applies again: a number or a float32 tensor of one
            element, positive and finite. amax_scale(x) uses the whole range of the scales. By default 1.
        scale_layout: of the scales returned, "128x4" or "linear" (see gemm).
        block_scale: "amax6", or "four_over_six": of the scales from amax/6 and from amax/4 the one with the smaller
            sum of squared errors, the first if they are equal. Use amax_scale with the same block_scale: a scale from
            amax/4 is 1.5 times as large and may saturate otherwise.

    Returns:
        data: [.., R, K/2] uint8, two values a byte (data.view(torch.float4_e2m1fn_x2) where the dtype is wanted).
        scale: float8_e4m3fn (uint8 outside torch), "128x4": [.., R rounded up to 128, K/16 rounded up to 4], with zeros
            as padding; "linear": [.., R, K/16].

    A block's scale is amax/6 / global_scale rounded to e4m3, a value is x / (scale * global_scale) rounded to e2m1,
    both to nearest, ties to even, saturating. A block of zeros has scale 0. Finite input never gives NaN or infinity;
    a NaN makes the scale of its block NaN.

    Raises:
        nvfp4.Error: an argument breaks a rule.

    Example:
        >>> import numpy as np, nvfp4
        >>> data, scale = nvfp4.quantize(np.arange(16, dtype=np.float32)[None], scale_layout="linear")
        >>> data.shape, scale.shape
        ((1, 8), (1, 1))
        >>> nvfp4.dequantize(data, scale, scale_layout="linear")[0, :8]
        array([0.  , 1.25, 2.5 , 2.5 , 3.75, 5.  , 5.  , 7.5 ], dtype=float32)
    """
    torch = modules.get("torch")
    if torch is not None and (torch.compiler.is_dynamo_compiling() or torch._C._is_tracing()):
        from nvfp4 import torch_ops

        return torch_ops.call("quantize", x, global_scale, scale_layout, block_scale)
    return _C.quantize(x, global_scale, scale_layout, block_scale)


def dequantize(
    data: Array,
    scale: AnyArray,
    *,
    global_scale: float | AnyArray | None = None,
    scale_layout: str = "128x4",
    out_dtype: DType | None = None,
) -> Array:
    """NVFP4 to numbers: value * scale * global_scale, in fp32, rounded once to out_dtype.

    Args:
        data: [R, K/2] or [L, R, K/2], uint8 or float4_e2m1fn_x2.
        scale: the scales, as quantize returns them (see gemm).
        global_scale: a number or a float32 tensor of one element; by default 1.
        scale_layout: "128x4" or "linear".
        out_dtype: torch.float32 (the default), torch.float16 or torch.bfloat16.

    Returns:
        [R, K] or [L, R, K].

    Raises:
        nvfp4.Error: an argument breaks a rule.
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
    """quantize of the RMS norm of rows, x / sqrt(mean(x^2) + eps) * weight, in one pass over memory.

    Args:
        x: [R, K] or [L, R, K], float16, bfloat16 or float32; K is a multiple of 16.
        weight: [K], float32 or of the dtype of x.
        eps: finite, not negative.
        residual: a tensor as x, or None. x + residual, rounded to their dtype, stands for x and replaces the residual.
        global_scale: a number or a float32 tensor of one element, as of quantize.
        scale_layout: of the scales, "128x4" or "linear" (see gemm).
        out: (data, scale), written in place of new tensors.

    Returns:
        data, scale: as of quantize.

    Norms are fp32 and not rounded to the dtype of x. The order of additions and all roundings are defined, the same on
    every backend, and do not depend on the other rows (csrc/cpu/fused.c): the same bytes everywhere.

    Raises:
        nvfp4.Error: an argument breaks a rule. Nothing has been written.
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
    """quantize of silu(gate) * up in one pass over memory; silu(x) = x / (1 + exp(-x)).

    Args:
        gate_up: [R, 2K] or [L, R, 2K], float16, bfloat16 or float32: the K gates of a row, then its K factors. K is a
            multiple of 16.
        global_scale: a number or a float32 tensor of one element, as of quantize.
        scale_layout: of the scales, "128x4" or "linear" (see gemm).
        out: (data, scale), written in place of new tensors.

    Returns:
        data, scale: as of quantize, for [.., R, K].

    Products are fp32 and not rounded to the dtype of gate_up. The operations of silu are defined, the same on
    every backend, and within a few ulp (csrc/kernels/quantize/exponential.h): the same bytes everywhere.

    Raises:
        nvfp4.Error: an argument breaks a rule. Nothing has been written.
    """
    torch = modules.get("torch")
    if torch is not None and (torch.compiler.is_dynamo_compiling() or torch._C._is_tracing()):
        from nvfp4 import torch_ops

        return torch_ops.call("silu_mul_quantize", gate_up, global_scale, scale_layout, out)
    return _C.silu_mul_quantize(gate_up, global_scale, scale_layout, out)


def amax_scale(x: Array, *, block_scale: str = "amax6") -> Array:
    """The global scale with which quantize uses the whole range of the block scales: amax(|x|) / (448 * 6).

    Args:
        x: [R, K] or [L, R, K], float16, bfloat16 or float32, as of quantize; K may be any number.
        block_scale: that of the quantize call: with "four_over_six" it is amax(|x|) / (256 * 6), since a block scale
            may be 1.5 times as large there.

    Returns:
        float32 [1] on the device of x. The division is done in fp64 and rounded once. 1 if x has a NaN or an infinity
        or is all zeros, or if the quotient rounds to 0. On a GPU it is one launch; nothing waits.

    Raises:
        nvfp4.Error: an argument breaks a rule.

    Example:
        >>> import numpy as np, nvfp4
        >>> nvfp4.amax_scale(np.float32([[0, -1344]]))
        array([0.5], dtype=float32)
    """
    torch = modules.get("torch")
    if torch is not None and (torch.compiler.is_dynamo_compiling() or torch._C._is_tracing()):
        from nvfp4 import torch_ops

        return torch_ops.call("amax_scale", x, block_scale)
    return _C.amax_scale(x, block_scale)


def swizzle(scale: Array) -> Array:
    """Scales from the linear to the 128x4 layout (see gemm), with zeros as padding.

    Args:
        scale: [R, S] or [L, R, S], float8_e4m3fn or uint8; S is K/16.

    Returns:
        [.., R rounded up to 128, S rounded up to 4], contiguous, of the same dtype (uint8 outside torch): a container
        of the right size whose bytes are in 128x4 order.

    Raises:
        nvfp4.Error: an argument breaks a rule.
    """
    torch = modules.get("torch")
    if torch is not None and (torch.compiler.is_dynamo_compiling() or torch._C._is_tracing()):
        from nvfp4 import torch_ops

        return torch_ops.call("swizzle", scale)
    return _C.swizzle(scale)


def unswizzle(scale: Array, rows: int, columns: int) -> Array:
    """Scales from the 128x4 to the linear layout; padding is not read.

    Args:
        scale: contiguous, float8_e4m3fn or uint8. A three-dimensional scale holds L batches in its first dimension,
            any other shape one batch.
        rows: R, the rows that the scales belong to.
        columns: S = K/16, the scales of a row.

    Returns:
        [R, S], or [L, R, S] for a three-dimensional scale.

    Raises:
        nvfp4.Error: an argument breaks a rule.
    """
    torch = modules.get("torch")
    if torch is not None and (torch.compiler.is_dynamo_compiling() or torch._C._is_tracing()):
        from nvfp4 import torch_ops

        return torch_ops.call("unswizzle", scale, rows, columns)
    return _C.unswizzle(scale, rows, columns)
