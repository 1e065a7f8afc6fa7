"""Generated calls of the quantizers and of what changes a layout, in guarded memory, as generated_calls.py has them of
products. The definition is reference.py: equal bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from generated_calls import (
    DTYPES,
    At,
    Draw,
    Maker,
    backends,
    backends_on_gpu,
    draw_at,
    draw_size,
    explain,
    is_guarded,
    one_of,
    prepare,
    up,
    wrongly_written,
)
from hypothesis import strategies as st

import nvfp4
from nvfp4 import reference

CONVERSIONS = ("quantize", "dequantize", "amax_scale", "swizzle", "unswizzle", "rms_norm_quantize", "silu_mul_quantize")


@dataclass(frozen=True)
class Conversion:
    """quantize, dequantize, amax_scale, swizzle, unswizzle, rms_norm_quantize or silu_mul_quantize of rows x columns
    (K, or scales)."""

    call: str
    rows: int
    columns: int
    l: int | None = None
    layout: str = "128x4"
    dtype: str = "float32"  # of x
    typed: bool = False
    global_scale: str | None = None  # "number", "one", "rows": one each
    block_scale: str = "amax6"  # "importance": search with it
    residual: bool = False
    weight: str = "float32"  # of a norm
    backend: str | None = None
    threads: int = 1
    seed: int = 0
    at: dict[str, At] = field(default_factory=dict)


@st.composite
def conversions(draw: Draw, target: str) -> Conversion:
    call = one_of(draw, *CONVERSIONS)
    l, rows = one_of(draw, None, 1, 2, 3), draw_size(draw, 300)
    columns = draw_size(draw, 20)
    scales = columns
    dtype = one_of(draw, *DTYPES)
    layout = one_of(draw, "128x4", "linear")
    if "swizzle" not in call:
        columns *= 16
    item = DTYPES[dtype].itemsize
    residual = call == "rms_norm_quantize" and one_of(draw, False, True)
    matrices = {"quantize": {"x": (columns * item, item)}, "dequantize": {"data": (columns // 2, 8)}}
    matrices |= {"amax_scale": matrices["quantize"], "swizzle": {"scale": (columns, 1)}, "unswizzle": {}}
    matrices |= {"silu_mul_quantize": {"gate_up": (2 * columns * item, item)}}
    matrices |= {"rms_norm_quantize": matrices["quantize"] | ({"residual": (columns * item, item)} if residual else {})}
    if call == "dequantize" and layout == "linear":
        matrices[call]["scale"] = (scales, 1)
    at = {
        name: draw_at(draw, l, rows, row, unit, one_of(draw, unit, 16), name == "residual")
        for name, (row, unit) in matrices[call].items()
    }
    if "scale" not in at and call in ("dequantize", "unswizzle"):
        at["scale"] = At(edge=one_of(draw, "end", "begin"))
    at["global_scale"] = At(slack=one_of(draw, 0, 4), edge=one_of(draw, "end", "begin"))
    at["result"] = At(edge=one_of(draw, "end", "begin"))
    at["weight"] = At(slack=4 * one_of(draw, 0, 1, 4), edge=one_of(draw, "end", "begin"))
    return Conversion(
        call,
        rows,
        columns,
        l,
        layout,
        dtype,
        one_of(draw, False, True),
        one_of(draw, None, "number", "one", "rows"),
        one_of(draw, "amax6", "four_over_six", "search", "importance"),
        residual,
        one_of(draw, "float32", dtype),
        one_of(draw, *backends(target)),
        threads=one_of(draw, 1, 2) if not backends_on_gpu(target) else 1,
        seed=draw(st.integers(0, 2**20)),
        at=at,
    )


def run_conversion(target: str, case: Conversion) -> str:
    device = prepare(target, case.backend, case.seed, case.threads)
    make, batch = Maker(case.seed, case.at, device), () if case.l is None else (case.l,)
    shape = (*batch, case.rows, case.columns)
    args: dict[str, Any] = {}
    dtype = DTYPES[case.dtype]
    if case.call in ("quantize", "amax_scale", "rms_norm_quantize"):
        args["x"] = make.place("x", make.normal(*shape).to(dtype))
    if case.call in ("quantize", "amax_scale"):
        args["block_scale"] = "search" if case.block_scale == "importance" else case.block_scale
    if case.call == "quantize" and case.block_scale == "importance":
        args["importance"] = make.place("weight", make.normal(case.columns).abs())
    if case.call == "rms_norm_quantize":
        args["weight"] = make.place("weight", make.normal(case.columns).to(DTYPES[case.weight]))
        args["eps"] = 1e-6
        if case.residual:
            args["residual"] = make.place("residual", make.normal(*shape).to(dtype))
    if case.call == "silu_mul_quantize":
        args["gate_up"] = make.place("gate_up", make.normal(*shape[:-1], 2 * case.columns).to(dtype))
    if case.call == "dequantize":
        args["data"] = make.place("data", make.bytes(*batch, case.rows, case.columns // 2))
    if case.call in ("dequantize", "swizzle", "unswizzle"):
        columns = case.columns // 16 if case.call == "dequantize" else case.columns
        scale = make.scales("finite", *batch, case.rows, columns)
        if case.call == "unswizzle" or (case.call == "dequantize" and case.layout == "128x4"):
            scale = reference.swizzle(scale, padding=reference.E4M3_NAN)
            scale = scale.view(*batch, up(case.rows, 128), up(columns, 4))
        args["scale"] = make.place("scale", scale)
        if case.typed:
            args["scale"] = args["scale"].view(torch.float8_e4m3fn)
    if case.call.endswith("quantize"):
        args["scale_layout"] = case.layout
        if case.global_scale == "one":
            args["global_scale"] = make.place("global_scale", torch.tensor([0.25]))
        elif case.global_scale == "rows":
            args["global_scale"] = make.place("global_scale", make.normal(*batch, case.rows).exp())
        elif case.global_scale:
            args["global_scale"] = 0.75
    if case.call == "dequantize":
        args["out_dtype"] = dtype
    if case.call == "unswizzle":
        args |= {"rows": case.rows, "columns": case.columns}
    copies = {name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in args.items()}
    make.guard_results(next(iter(args.values())))
    try:
        got = getattr(nvfp4, case.call)(**args)
    except nvfp4.Error as error:
        return explain(target, error)
    copies = {name: x.cpu() if isinstance(x, torch.Tensor) else x for name, x in copies.items()}
    if case.call in ("swizzle", "unswizzle"):
        expected = getattr(reference, case.call)(*copies.values())
    else:
        expected = getattr(reference, case.call)(**copies)
    got, expected = (x if isinstance(x, tuple) else (x,) for x in (got, expected))
    if not is_guarded(got):
        return "the results are not in guarded memory"
    for mine, theirs in zip(got, expected, strict=True):
        if mine.numel() * mine.element_size() != theirs.numel() * theirs.element_size():
            return f"a result has shape {tuple(mine.shape)}"
        if not torch.equal(mine.cpu().view(torch.uint8).flatten(), theirs.view(torch.uint8).flatten()):
            return "a result differs"
    if case.residual and not torch.equal(args["residual"].cpu(), copies["residual"]):
        return "the residual differs"
    return wrongly_written()
