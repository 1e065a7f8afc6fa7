"""Humming, the quantized products of vLLM's project, as a baseline of `nvfp4 bench`: NVFP4 weights, 16-bit activations
(W4A16).

Humming repacks the bytes of our operands outside of the timing, and compiles a kernel by nvcc at its first call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nvfp4.cli.machine import need_baseline, need_torch

if TYPE_CHECKING:
    import torch
    from torch import Tensor

NAME = "Humming W4A16"


def need(device: torch.device) -> None:
    """Raises an error message where Humming is missing."""
    needs = "humming-kernels (tested: 0.1.20) and nvcc; it"
    need_baseline("humming", "Humming", "humming.layer", needs, device)


def linear(data: Tensor, scale: Tensor, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The product x [M, K] . weight^T by Humming, with a global scale of 1.

    Args:
        data (Tensor): the weight [N, K/2] uint8, which is copied.
        scale (Tensor): [N, K/16] float8_e4m3fn, linear layout.
        dtype (torch.dtype): that of x and of the result, float16 or bfloat16.
    """
    made = layer(data, scale, dtype)
    return lambda x: call(made, x)


def grouped(data: Tensor, scale: Tensor, dtype: torch.dtype) -> Callable[[Tensor, Tensor], Tensor]:
    """The products of rows [T, K], in the order of their groups, by Humming.

    Args:
        data (Tensor): a weight for each group, [E, N, K/2] uint8, which is copied.
        scale (Tensor): [E, N, K/16] float8_e4m3fn, linear layout. Global scales are 1.
        dtype (torch.dtype): that of the rows and of the result, float16 or bfloat16.

    The second argument of the product is where each group begins, and T, as int64 [E + 1].
    """
    made = layer(data, scale, dtype)
    config = {"gemm_type": "grouped_contiguous"}
    return lambda x, begins: call(made, x, expert_layout=begins, compute_config=config)


def layer(data: Tensor, scale: Tensor, dtype: torch.dtype) -> Any:
    from humming.layer import HummingLayer

    *groups, n, half = data.shape
    made = HummingLayer(
        shape_n=n,
        shape_k=2 * half,
        weight_config={"quant_method": "modelopt", "quant_algo": "nvfp4"},
        num_experts=groups[0] if groups else None,
        torch_dtype=dtype,
    ).to(data.device)
    one = need_torch().ones(*groups or [1], device=data.device)
    made.load_from_tensors({"weight": data, "weight_scale": scale, "weight_scale_2": one})
    made.transform()
    return made


def call(made: Any, x: Tensor, **how: Any) -> Tensor:
    """A shape that its choice of tiles does not take is an AssertionError without a text."""
    try:
        result: Tensor = made(x, **how)
    except AssertionError as error:
        raise RuntimeError(f"an assertion fails in Humming: {error}".removesuffix(": ")) from error
    return result
