"""Inputs of nvfp4.Linear that come quantized, and the modules that make them in one pass over memory: an RMSNorm, and
the activation of a gated MLP."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nvfp4 import _api
from nvfp4.layers.linear import Linear, QuantizedInput


def quantizes_for(layer: Linear, *inputs: Tensor) -> bool:
    """Whether a fused quantizer takes these tensors of one dtype for a layer. Where it does not, such as for an input
    that requires a gradient, under autocast and with a dynamic input scale, the steps run one by one."""
    first = inputs[0]
    return (
        layer.takes_quantized()
        and all(x.dtype == first.dtype and x.stride(-1) == 1 for x in inputs)
        and first.numel() > 0
        and first.device == layer.weight.device
        and not (torch.is_grad_enabled() and any(x.requires_grad for x in inputs))
        and not torch.is_autocast_enabled(first.device.type)
    )


class QuantizingNorm(torch.nn.Module):
    """An RMSNorm that quantizes its result for the one layer that reads it.

    Args:
        weight (Parameter): [K], of the norm that this module replaces.
        eps (float): the norm's eps.
        layer (Linear): the layer. It is no submodule.
    """

    def __init__(self, weight: torch.nn.Parameter, eps: float, layer: Linear) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = weight, eps
        self._layer = (layer,)  # a tuple, so that it is no submodule

    def forward(self, x: Tensor) -> Tensor | QuantizedInput:
        layer = self._layer[0]
        if not quantizes_for(layer, x) or self.weight.dtype != x.dtype:
            return rms_norm(x, self.weight, self.variance_epsilon)
        data, scale = _api.rms_norm_quantize(
            x.reshape(-1, x.shape[-1]),
            self.weight.detach(),
            self.variance_epsilon,
            global_scale=layer.input_global_scale,
            round_steps=True,
        )
        return QuantizedInput(layer, data, scale, x)

    def _get_name(self) -> str:
        return "nvfp4.QuantizingNorm"

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, eps={self.variance_epsilon}"


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The steps that rms_norm_quantize rounds with round_steps, in torch."""
    h = x.float()
    h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)
    return weight * h.to(x.dtype)


class QuantizingMLP(torch.nn.Module):
    """down_proj(silu(gate_proj(x)) * up_proj(x)), where the product is quantized as it is computed.

    Args:
        mlp (torch.nn.Module): the module that it replaces, with these three layers and the activation `act_fn`.
    """

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = mlp.gate_proj, mlp.up_proj, mlp.down_proj
        self.act_fn = mlp.act_fn
        self.train(mlp.training)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_proj(x), self.up_proj(x)
        layer: Any = self.down_proj
        if type(layer) is not Linear or not quantizes_for(layer, gate, up):
            return layer(self.act_fn(gate) * up)
        rows = (y.reshape(-1, y.shape[-1]) for y in (gate, up))
        data, scale = _api.gated_quantize(*rows, global_scale=layer.input_global_scale, round_steps=True)
        return layer(QuantizedInput(layer, data, scale, gate))

    def _get_name(self) -> str:
        return "nvfp4.QuantizingMLP"
