"""Generated calls of nvfp4.quantize_gemm in guarded memory, as generated_calls.py has them of the other operations. The
definition is nvfp4.quantize and nvfp4.gemm of the same tensors: equal bits, or the same error."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from generated_calls import (
    DTYPES,
    At,
    Draw,
    Gemm,
    draw_at,
    explain,
    gemms,
    is_guarded,
    make_gemm,
    one_of,
    planned,
    prepare,
    tensors,
    wrongly_written,
)
from guarded_memory import Memory
from hypothesis import strategies as st

import nvfp4
from nvfp4 import _C


@dataclass(frozen=True)
class Layer:
    product: Gemm  # whose a is the dtype of A before it is quantized
    global_scale: str | None = None  # "number", "one"
    block_scale: str = "amax6"


@st.composite
def layers(draw: Draw, target: str, volume: float) -> Layer:
    product = draw(gemms(target, volume).filter(lambda x: x.a == "nvfp4" and x.broken not in ("a", "scale_a")))
    dtype = one_of(draw, *DTYPES)
    item = DTYPES[dtype].itemsize
    at = {name: x for name, x in product.at.items() if name not in ("a", "scale_a")}
    at["a"] = draw_at(draw, product.l, product.m, product.k * item, item, one_of(draw, item, 16), False)
    at["global_scale"] = At(slack=4 * one_of(draw, 0, 1, 2), edge=one_of(draw, "end", "begin"))
    typed = "".join(x for x in product.typed if x in "bB")
    product = replace(product, a=dtype, typed=typed, at={name: x for name, x in at.items() if x != At()})
    return Layer(product, one_of(draw, None, "number", "one"), one_of(draw, "amax6", "four_over_six"))


def global_scale_of(case: Layer, device: str) -> float | torch.Tensor | None:
    if case.global_scale != "one":
        return None if case.global_scale is None else 0.75
    at = case.product.at.get("global_scale", At())
    form: dict[str, Any] = {"edge": at.edge, "slack": at.slack, "device": device}
    memory = Memory((1,), (1,), torch.float32, generator=torch.Generator().manual_seed(case.product.seed), **form)
    memory.tensor.fill_(0.25)
    memory.freeze(writable=False)
    tensors["global_scale"] = memory
    return memory.tensor


def by_two(args: dict[str, Any], global_scale: float | torch.Tensor | None, block_scale: str) -> torch.Tensor:
    given = dict(args)
    how = {"global_scale": global_scale, "block_scale": block_scale, "scale_layout": args["scale_layout"]}
    data, scale = nvfp4.quantize(given.pop("a"), **how)
    return nvfp4.gemm(data, given.pop("b"), scale, given.pop("scale_b"), **given)


def run_layer(target: str, case: Layer) -> str:
    """The verdict: "" or what is wrong."""
    product = case.product
    device = prepare(target, product.backend, product.seed, product.threads, product.lanes)
    args = make_gemm(product, device) | {"backend": product.backend}
    del args["scale_a"], args["transpose_b"]
    how = {"global_scale": global_scale_of(case, device), "block_scale": case.block_scale}
    before = args["out"].clone() if "out" in args else None
    try:
        if product.rank:
            shape = planned(replace(product, a="nvfp4"))
            _C.set_candidate(int(product.rank * _C.plan(*shape)["candidates"]))
        try:
            result = nvfp4.quantize_gemm(**args, **how)
        except nvfp4.Error as error:
            return judge_error(target, case, error, args, how)
        if product.broken:
            return f"a call was accepted that breaks a rule of {product.broken}"
        if product.allocated and not is_guarded((result,)):
            return "the result is not in guarded memory"
        if not product.allocated and result.data_ptr() != args["out"].data_ptr():
            return "out was not returned"
        if wrong := wrongly_written():
            return wrong
        got = result.clone()
        if before is not None:
            args["out"].copy_(before)
        expected = by_two(args, **how)
    finally:
        _C.set_candidate(0)
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"the result has shape {tuple(got.shape)} and dtype {got.dtype}"
    same = (got == expected) & (got.signbit() == expected.signbit()) | got.isnan() & expected.isnan()
    return "" if bool(same.all()) else f"{int((~same).sum())} of {same.numel()} values differ from those of two calls"


def judge_error(target: str, case: Layer, error: nvfp4.Error, args: dict[str, Any], how: dict[str, Any]) -> str:
    if case.product.broken:
        if not str(error).startswith(f"{case.product.broken}: "):
            return f"the message does not begin with {case.product.broken}: {error}"
        return "" if all(memory.unchanged() for memory in tensors.values()) else "something was written"
    try:
        by_two(args, **how)
    except nvfp4.Error as other:
        if str(error) == str(other):
            return ""
    return explain(target, error)
