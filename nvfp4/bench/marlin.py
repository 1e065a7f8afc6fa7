"""Marlin, vLLM's kernels for NVFP4 weights and 16-bit activations (W4A16), as a baseline of `nvfp4 bench`.

vLLM repacks the bytes of our operands outside of the timing; a layer of its own does so once, when it is loaded.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import TYPE_CHECKING

from nvfp4.cli.machine import need_baseline, need_torch

if TYPE_CHECKING:
    import torch
    from torch import Tensor

NAME = "vLLM Marlin W4A16"
EXPERT_LOCKS = 4  # for each SM, as vLLM's layers of experts have them


def need(device: torch.device) -> None:
    """Raises an error message where vLLM or its kernels are missing."""
    module = "vllm.model_executor.layers.quantization.utils.marlin_utils_fp4"
    need_baseline("marlin", "Marlin", module, "vLLM with its CUDA kernels (tested: 0.32.0), which", device)


def linear(data: Tensor, scale: Tensor, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The product x [M, K] . weight^T by Marlin, with a global scale of 1.

    Args:
        data (Tensor): the weight [N, K/2] uint8, which is copied.
        scale (Tensor): [N, K/16] float8_e4m3fn, linear layout.
        dtype (torch.dtype): that of x and of the result, float16 or bfloat16.
    """
    torch = need_torch()
    from vllm.model_executor.layers.quantization.utils import marlin_utils_fp4
    from vllm.model_executor.layers.quantization.utils.marlin_utils import marlin_make_workspace_new

    layer = torch.nn.Module()
    n, k = data.shape[0], data.shape[1] * 2
    layer.output_size_per_partition, layer.input_size_per_partition, layer.params_dtype = n, k, dtype
    one = torch.ones((), device=data.device)
    for name, tensor in {"weight": data, "weight_scale": scale, "weight_global_scale": one}.items():
        setattr(layer, name, torch.nn.Parameter(tensor, requires_grad=False))
    marlin_utils_fp4.prepare_fp4_layer_for_marlin(layer)
    return functools.partial(
        marlin_utils_fp4.apply_fp4_marlin_linear,
        weight=layer.weight,
        weight_scale=layer.weight_scale,
        weight_global_scale=layer.weight_global_scale,
        workspace=marlin_make_workspace_new(data.device),
        size_n=n,
        size_k=k,
    )


def experts(
    data: tuple[Tensor, Tensor], scale: tuple[Tensor, Tensor], dtype: torch.dtype
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """A layer of experts with silu by Marlin, of x [T, H], weights [T, k] and ids [T, k] int32.

    Args:
        data: gate and up [E, 2, I, H/2] and down [E, 1, H, I/2], uint8, which are copied.
        scale: their scales in the linear layout, [E, P * rows, K/16]. Global scales are 1.
        dtype: that of x and of the result, float16 or bfloat16.
    """
    torch = need_torch()
    from vllm.model_executor.layers.fused_moe.experts.marlin_moe import fused_marlin_moe
    from vllm.model_executor.layers.quantization.utils import marlin_utils_fp4
    from vllm.model_executor.layers.quantization.utils.marlin_utils import marlin_make_workspace_new
    from vllm.scalar_type import scalar_types

    count, _, inner, half = data[0].shape
    sizes = types.SimpleNamespace(
        num_experts=count, hidden_size=2 * half, intermediate_size_per_partition=inner, params_dtype=dtype
    )
    one = torch.ones(count, device=data[0].device)
    stacks = []
    for packed, linear_scale in zip(data, scale):
        stacks += [packed.flatten(1, 2), linear_scale, one]
    w13, scale13, global13, w2, scale2, global2 = marlin_utils_fp4.prepare_nvfp4_moe_layer_for_marlin(
        sizes, *stacks, True
    )
    workspace = marlin_make_workspace_new(w13.device, EXPERT_LOCKS)

    def layer(x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        return fused_marlin_moe(
            x,
            w13,
            w2,
            None,
            None,
            scale13,
            scale2,
            weights,
            ids,
            scalar_types.float4_e2m1f.id,
            global_num_experts=count,
            global_scale1=global13,
            global_scale2=global2,
            workspace=workspace,
        )

    return layer
