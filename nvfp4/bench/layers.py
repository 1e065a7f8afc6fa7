"""The layers that the sets `linear` and `models` of `nvfp4 bench` compare on one shape.

They are nvfp4.Linear with activations in NVFP4 (W4A4: quantize and product), nvfp4.Linear with activations as they are
(W4A16), torch's layer with the same weights in 16 bits, and on request vLLM's Marlin and Humming (W4A16).

Activations and results of all have one dtype, bfloat16 or float16. Each block of 16 activations holds values of e2m1
times a scale of e4m3, one of them 6 times the scale: quantizing loses nothing, so all layers must compute the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from nvfp4.bench.baselines import (
    BYTES,
    DTYPES,
    MAX_SETS,
    OTHERS,
    Bench,
    Operand,
    agree,
    dequantized,
    operands,
    pair_table,
    rotation,
)
from nvfp4.bench.shapes import Shape
from nvfp4.bench.timing import Implementation
from nvfp4.cli.machine import kernel, need_torch

if TYPE_CHECKING:
    import torch

W4A4, W4A16 = "nvfp4.Linear W4A4", "nvfp4.Linear W4A16"
DENSE = {dtype: f"torch {kind} linear" for dtype, kind in DTYPES.items()}  # torch's layer
SIX = 7  # the nibble of 6, the largest value of e2m1


def prepare(
    shape: Shape,
    device: torch.device,
    seed: int,
    run: str = "",
    max_sets: int = MAX_SETS,
    against: Sequence[str] = (),
    dtype: str = "bfloat16",
) -> Bench:
    """Makes the activations and the layers, and checks that all compute the same."""
    torch = need_torch()
    of_16_bits = getattr(torch, dtype)
    generator = torch.Generator(device).manual_seed(seed)
    activations = 2 * shape.m * shape.k
    weights = {name: int(shape.n * shape.k * BYTES[name]) for name in ("nvfp4", DTYPES[dtype])}
    sets, cold = rotation({name: activations + size for name, size in weights.items()}, device, max_sets)

    table = pair_table(of_16_bits, device)
    x, w = (operands(sets["nvfp4"], rows, shape.k, device, generator) for rows in (shape.m, shape.n))
    for operand in x:
        words = operand.data.view(torch.int64)  # 16 values each
        words.bitwise_and_(~0xF).bitwise_or_(SIX)
    inputs = [dequantized(operand, table) for operand in x]
    ours = {
        W4A4: (linears(w, "nvfp4"), kernel(shape.m, shape.n, shape.k, device, None)),
        W4A16: (linears(w, None), kernel(shape.m, shape.n, shape.k, device, None, a_dtype=dtype)),
    }
    implementations = [
        Implementation(name, partial(call, inputs, layers), run, ours=True, kernel=named, sets=len(layers))
        for name, (layers, named) in ours.items()
    ]
    dense = (dequantized(w[i % len(w)], table) for i in range(sets[DTYPES[dtype]]))
    wide = [partial(torch.nn.functional.linear, weight=weight) for weight in dense]
    implementations.append(Implementation(DENSE[dtype], partial(call, inputs, wide), run, sets=len(wide)))
    for library in (OTHERS[kind] for kind in against):
        theirs = [library.linear(each.data, each.linear, of_16_bits) for each in w]
        implementations.append(Implementation(library.NAME, partial(call, inputs, theirs), run, sets=len(theirs)))
    left_out = agree(shape, implementations)
    return Bench([each for each in implementations if each.name not in left_out], cold, left_out)


def linears(weights: list[Operand], activations: str | None) -> list[torch.nn.Module]:
    """A layer for each weight, with all global scales 1; they share the weight's memory but for the block scales."""
    from nvfp4.layers.linear import Linear
    from nvfp4.layers.packed import PackedLinear

    torch = need_torch()
    one = torch.ones((), device=weights[0].data.device)
    scale = one if activations else None
    return [Linear.from_packed(PackedLinear(w.data, w.linear, one, scale, None, activations)) for w in weights]


def call(inputs: list[torch.Tensor], layers: Sequence[Callable[[torch.Tensor], torch.Tensor]], i: int) -> torch.Tensor:
    return layers[i % len(layers)](inputs[i % len(inputs)])
