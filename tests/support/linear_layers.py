"""Layers of nvfp4.Linear with sums that are exact, and what they should compute."""

from __future__ import annotations

import torch

import nvfp4
from nvfp4 import reference
from nvfp4.layers.packed import PackedLinear

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
MODES = ["nvfp4", None]  # activations
K, N = 96, 37


def integers(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Values of e2m1 in blocks whose largest is 6: with a global scale of 1 they quantize to themselves."""
    table = torch.tensor([0.0, 1, 2, 3, 4, 6, -1, -2, -3, -4, -6])
    x = table[torch.randint(0, len(table), shape, generator=generator)]
    x[..., ::16] = 6.0
    return x


def exact_layer(
    generator: torch.Generator, activations: str | None, rows: int = N, vector: bool = False
) -> nvfp4.Linear:
    """Integer scales, an fp32 bias, and one global scale that is no power of two, or a vector of them."""
    scale = torch.randint(0, 16, (rows, K // 16), generator=generator).float().to(torch.float8_e4m3fn)
    shape = (rows,) if vector else ()
    return nvfp4.Linear.from_packed(
        PackedLinear(
            torch.randint(0, 256, (rows, K // 2), dtype=torch.uint8, generator=generator),
            scale,
            torch.rand(shape, generator=generator) + 0.5,
            None if activations is None else torch.tensor(1.0),
            torch.randn(rows, generator=generator),
            activations,
        )
    )


def dense(layer: nvfp4.Linear) -> torch.Tensor:
    """value * scale of the weight in fp64, without the global scale."""
    return reference.operand(layer.weight.cpu(), layer.weight_scale.cpu(), "128x4")[0].double()


def expected(layer: nvfp4.Linear, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The layer by its definition, for an x [rows, K] that quantizes to itself or stays as it is."""
    sums = (x.double().cpu() @ dense(layer).T).float() + 0.0
    bias = None if layer.bias is None else layer.bias.cpu()
    return reference.epilogue(sums, alpha=layer.alpha.cpu(), bias=bias, out_dtype=dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def state_of(layer: nvfp4.Linear) -> dict[str, torch.Tensor]:
    return {name: t.clone() for name, t in layer.state_dict().items()}


def state_is(layer: nvfp4.Linear, state: dict[str, torch.Tensor]) -> bool:
    own = layer.state_dict()
    raw = {name: (t.dtype, t.reshape(-1).view(torch.uint8).tolist()) for name, t in own.items()}
    return raw == {name: (t.dtype, t.reshape(-1).view(torch.uint8).tolist()) for name, t in state.items()}


def packed(**changes: object) -> PackedLinear:
    tensors: dict[str, object] = {
        "weight": torch.zeros(4, 16, dtype=torch.uint8),
        "weight_scale": torch.zeros(4, 2).to(torch.float8_e4m3fn),
        "weight_global_scale": torch.tensor(1.0),
    }
    return PackedLinear(**(tensors | changes))
