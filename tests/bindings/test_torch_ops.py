"""torch.ops.nvfp4: opcheck, compiled programs in every form, fakes, and calls that reach the dispatcher."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from backend_table import QUOTED
from conftest import Backend, in_full, one_in
from python_server import python
from small_product import K, M, N
from torch._subclasses.fake_tensor import FakeTensorMode

import nvfp4
from nvfp4 import reference

ops = torch.ops.nvfp4
AUTO = ("128x4", "auto", 0)  # scale_layout, backend, flags
QUANTIZED = ("128x4", "amax6", "auto", 0)  # with block_scale
FLAGS_RULE = "must be 0 or a sum of 1 (batch invariant), 2 (constant b), 4 (b not transposed)"


def same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.dtype == y.dtype and x.shape == y.shape and torch.equal(x.view(torch.uint8), y.view(torch.uint8))


# ---- the operators themselves ----


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_opcheck(place: str, operands: list[torch.Tensor], request: pytest.FixtureRequest) -> None:
    """torch's own tests of an operator: schema against behaviour, fake against real, under AOT autograd."""
    if place == "cuda":
        request.getfixturevalue("cuda")
    a, b, scale_a, scale_b = (x.to(place) for x in operands)
    none, x, bias = (
        torch.empty(0, dtype=torch.uint8, device=place),
        torch.randn(2, 33, 48, device=place),
        torch.randn(N, device=place),
    )
    out, c = torch.zeros(M, N, device=place), torch.randn(M, N, device=place)
    views = reference.generate_input(130, 67, 96, 2, 7, device=place)
    views = [v.view(torch.uint8) for v in views[:6]] + [views[6]]  # opcheck compares inputs, which e4m3 cannot
    linear = torch.zeros(33, 3, dtype=torch.uint8, device=place)
    one = torch.ones(1, device=place)
    weight, residual = torch.randn(48, device=place), torch.randn(2, 33, 48, device=place)
    packed, blocks = (
        torch.zeros(2, 33, 24, dtype=torch.uint8, device=place),
        torch.zeros_like(linear[None].expand(2, -1, -1)),
    )
    gates = torch.randn(2, 33, 96, device=place)
    ids, gains = torch.randint(-1, 6, (7, 4), device=place), torch.rand(7, 4, device=place)
    experts = (torch.stack([b, b]).view(2, 1, N, K // 2), none, scale_b.flatten().repeat(2))
    ends, rows = (torch.tensor(x, dtype=torch.int32, device=place) for x in ([2, 5], [4, 0, 3, 3, 1]))
    routed = (torch.randn(M, K, device=place).half(), *experts, ends)
    layer = (torch.randn(M, K, device=place), b, scale_b)
    weighted = (
        *routed,
        rows,
        none,
        torch.randn(5, device=place),
        torch.randn(2, 1, device=place),
        torch.stack([bias, bias]),
    )
    first = torch.tensor([128, 0], dtype=torch.int32, device=place)
    sorted_values = (a, experts[0], scale_a.flatten().repeat(2), experts[2], ends, none, first)
    silu = (0.5, "silu", 2.0, 1.702, *AUTO)
    in_lists = (
        routed[0],
        [b, b.flip(0)],
        none,
        [torch.full((N, K // 16), x, dtype=torch.uint8) for x in (56, 64)],
        ends,
    )
    in_lists = (*in_lists, rows, none, *[none] * 3, 0.5)
    linear_auto = ("linear", "auto", 0)
    even = (torch.zeros(2, 2, 16, K // 2, dtype=torch.uint8, device=place), none, scale_b.flatten().repeat(4))
    of_16, quantized = (routed[0], *even, ends), (0.5, "silu", 2.0, 1.702, 1.0, *AUTO, 0)
    new_groups = (
        torch.zeros(5, 8, dtype=torch.uint8, device=place),
        torch.zeros(1024, dtype=torch.uint8, device=place),
        torch.zeros(2, dtype=torch.int32, device=place),
    )
    out_of_groups = (packed[0, :5], blocks[0, :5].clone(), torch.zeros(2, dtype=torch.int32, device=place))
    checks: list[tuple[Any, tuple[Any, ...]]] = [
        (ops.gemm, (a, b, scale_a, scale_b, none, none, none, 0.5, 0.0, *AUTO, torch.bfloat16)),
        (ops.gemm, (a, b, scale_a, scale_b, bias, bias, c, 1.0, 2.0, *AUTO, torch.float32)),
        (ops.gemm_out, (a, b, scale_a, scale_b, none, bias, c, 0.5, 2.0, *AUTO, out)),
        (ops.quantize_gemm, (*layer, one, none, none, none, 1.0, 0.5, 0.0, *QUANTIZED, torch.bfloat16)),
        (ops.quantize_gemm, (*layer, none, bias, bias, c, 0.25, 1.0, 2.0, *QUANTIZED, torch.float32)),
        (ops.quantize_gemm_out, (*layer, none, none, bias, c, 0.25, 0.5, 2.0, *QUANTIZED, out)),
        (ops.grouped_gemm, (*routed, none, none, none, none, none, 0.5, *AUTO, torch.bfloat16)),
        (ops.grouped_gemm, (*sorted_values, none, none, none, 1.0, *AUTO, torch.float16)),
        (ops.grouped_gemm, (*weighted, 1.0, *AUTO, torch.float32)),
        (ops.grouped_gemm_out, (*weighted, 1.0, *AUTO, torch.zeros(5, N, device=place))),
        *[(ops.grouped_gemm_list, (*in_lists, *linear_auto, torch.bfloat16))] * (place == "cpu"),
        *[(ops.grouped_gemm_list_out, (*in_lists, *linear_auto, torch.zeros(5, N)))] * (place == "cpu"),
        (ops.gated_grouped_gemm, (*routed, none, none, none, none, none, *silu, torch.bfloat16)),
        (ops.gated_grouped_gemm, (*sorted_values, none, none, none, *silu, torch.float16)),
        (ops.gated_grouped_gemm_out, (*weighted, *silu, torch.zeros(5, N, device=place))),
        *[(ops.gated_grouped_gemm_list, (*in_lists, *silu[1:4], *linear_auto, torch.float16))] * (place == "cpu"),
        *[(ops.gated_grouped_gemm_list_out, (*in_lists, *silu[1:4], *linear_auto, torch.zeros(5, N)))]
        * (place == "cpu"),
        (ops.gated_grouped_quantize, (*of_16, none, none, none, none, none, none, *quantized[:-1])),
        (ops.gated_grouped_quantize_out, (*of_16, rows, *[none] * 4, one, *quantized[:-1], *new_groups)),
        (ops.custom_kernel, (views[0], views[1], views[4], views[5], views[6])),
        (ops.quantize, (x, none, 0.5, "128x4")),
        (ops.quantize, (x.bfloat16(), one, 1.0, "linear")),
        (ops.quantize, (x, none, 0.5, "linear", "four_over_six")),
        (ops.quantize, (x, none, 0.5, "linear", "search")),
        (ops.weighted_quantize, (x, weight.abs(), none, 0.5, "128x4")),
        (ops.weighted_quantize, (x.half(), weight.abs(), one, 1.0, "linear")),
        (ops.gptq_block, (x[0][:, 3:19], torch.eye(16, device=place), none, 0.5)),
        (ops.gptq_block, (x[0][:, :16], torch.eye(48, device=place)[16:32, 16:32], one, 1.0)),
        (ops.dequantize, (a, scale_a, none, 0.5, "128x4", torch.float16)),
        (ops.dequantize, (a, scale_a, one, 1.0, "128x4", torch.float32)),
        (ops.rms_norm_quantize, (x, weight, none, one, 1.0, 1e-6, "128x4")),
        (ops.rms_norm_quantize, (x, weight, residual, none, 0.5, 1e-6, "128x4")),
        (ops.rms_norm_quantize, (x, weight, residual, none, 0.5, 1e-6, "128x4", 1)),
        (ops.rms_norm_quantize_out, (x, weight, residual, none, 0.5, 1e-6, "linear", packed, blocks)),
        (ops.rms_norm_quantize_out, (x, weight, residual, none, 0.5, 1e-6, "linear", packed, blocks, 1)),
        (ops.silu_mul_quantize, (gates, one, 1.0, "128x4")),
        (ops.silu_mul_quantize_out, (gates, none, 0.5, "linear", packed, blocks)),
        (ops.grouped_quantize, (x[0], one, ends, rows, 1.0, "128x4", "amax6")),
        (ops.grouped_quantize, (x[0].half(), none, none, none, 0.5, "linear", "four_over_six")),
        (
            ops.grouped_quantize_out,
            (x[0], none, none, rows, 0.5, "linear", "amax6", *out_of_groups[:2], out_of_groups[2][:1]),
        ),
        (ops.amax_scale, (x.bfloat16(), "four_over_six")),
        (ops.amax_scale, (x[0], "amax6", 1)),
        (ops.swizzle, (linear,)),
        (ops.swizzle, (linear[None],)),
        (ops.unswizzle, (scale_a, 5, 4)),
        (ops.unswizzle, (scale_a[None], 5, 4)),
        (ops.gated, (x, x.flip(0), "swiglu", 2.0, 1.5, torch.float16)),
        (ops.gated, (x, none, "gelu_tanh", math.inf, 1.702, torch.float32)),
        (ops.gated_out, (x, none, "relu2", math.inf, 1.702, torch.zeros_like(x))),
        (ops.gated_quantize, (x[0], x[1], one, ends + 28, 1.0, "swiglu", 2.0, 1.5, "128x4")),
        (ops.gated_quantize, (x, none, none, none, 0.5, "gelu_tanh", math.inf, 1.702, "linear")),
        (ops.gated_quantize, (x, x.flip(0), none, none, 0.5, "silu", math.inf, 1.702, "linear", 1)),
        (
            ops.gated_quantize_out,
            (x[0][:5], none, none, ends, 0.5, "relu2", math.inf, 1.702, "linear", *out_of_groups),
        ),
        (ops.moe_route, (ids, none, 5)),
        (ops.moe_route, (ids.int(), torch.tensor([2, -1, 0], dtype=torch.int32, device=place), 3)),
        (ops.moe_combine, (x[0], ids.int(), none, torch.bfloat16)),
        (ops.moe_combine, (x[0].half(), ids.int(), gains, torch.float16)),
        (ops.moe_combine_out, (x[0], ids.int(), gains, torch.zeros(7, 48, device=place))),
    ]
    for operator, arguments in checks:
        torch.library.opcheck(operator.default, arguments)
    names = {o.partition("::")[2] for o in torch._C._dispatch_get_all_op_names() if o.startswith("nvfp4::")}
    on_the_host_alone = {name for name in names if "_list" in name and place != "cpu"}
    assert names - on_the_host_alone == {operator.__name__ for operator, _ in checks}


def test_operators_equal_functions(operands: list[torch.Tensor]) -> None:
    a, b, scale_a, scale_b = operands
    none, x, g = torch.empty(0, dtype=torch.uint8), torch.randn(2, 33, 48), torch.tensor([0.25])
    bias = torch.arange(N, dtype=torch.float32)
    assert same(
        ops.gemm(*operands, none, bias, none, 0.5, 0.0, *AUTO, torch.float32),
        nvfp4.gemm(*operands, alpha=0.5, bias=bias, out_dtype="float32"),
    )
    if hasattr(torch, "float4_e2m1fn_x2"):
        typed = (a.view(torch.float4_e2m1fn_x2), b.view(torch.float4_e2m1fn_x2), *(scale_a, scale_b))
        got = ops.gemm(*typed, none, none, none, 1.0, 0.0, *AUTO, torch.float16)
        assert same(got, nvfp4.gemm(*operands))
    for layout in ("128x4", "linear"):
        data, scale = ops.quantize(x, g, 1.0, layout)
        expected = nvfp4.quantize(x, global_scale=0.25, scale_layout=layout)
        assert same(data, expected[0])
        assert same(scale, expected[1])
        back = ops.dequantize(data, scale, none, 0.25, layout, torch.bfloat16)
        assert same(back, nvfp4.dequantize(data, scale, global_scale=g, scale_layout=layout, out_dtype="bfloat16"))
    wide = torch.randn(M, K)
    layer = ops.quantize_gemm(wide, b, scale_b, g, none, none, none, 1.0, 0.5, 0.0, *QUANTIZED, torch.float32)
    assert same(layer, nvfp4.quantize_gemm(wide, b, scale_b, global_scale=g, alpha=0.5))
    assert same(ops.amax_scale(x, "amax6"), nvfp4.amax_scale(x))
    assert same(ops.amax_scale(x[0], "amax6", 1), nvfp4.amax_scale(x[0], by_row=True))
    ends, rows = (torch.tensor(values, dtype=torch.int32) for values in ([2, 5], [4, 0, 3, 40, 1]))
    half, two = wide.half(), (torch.stack([b, b]), none, scale_b.flatten().repeat(2), ends[:2])
    expert = ops.gated_grouped_gemm(half, *two, *[none] * 5, 1.0, "relu2", math.inf, 1.702, *AUTO, torch.float32)
    options = {"activation": "relu2", "out_dtype": "float32"}
    assert same(expert, nvfp4.gated_grouped_gemm(half, two[0], None, *two[2:], **options))
    grouped = ops.grouped_quantize(x[0], g, ends, rows, 1.0, "128x4", "amax6")
    assert all(map(same, grouped, nvfp4.quantize(x[0], global_scale=g, ends=ends, rows=rows)))
    fused = ops.gated_quantize(x[0][:5], x[1][:5], none, ends, 0.25, "swiglu", 2.0, 1.5, "128x4")
    options = {"limit": 2.0, "alpha": 1.5, "global_scale": 0.25}
    assert all(map(same, fused, nvfp4.gated_quantize(x[0][:5], x[1][:5], "swiglu", ends=ends, **options)))
    assert same(ops.swizzle(scale), nvfp4.swizzle(scale))
    assert same(ops.unswizzle(ops.swizzle(scale), 33, 3), scale)
    ids, gains = torch.randint(-1, 6, (7, 4)), torch.rand(7, 4)
    routed = nvfp4.moe_route(ids, 5)
    assert all(map(same, ops.moe_route(ids, none, 5), routed))
    assert same(ops.moe_combine(x[0], routed[2], gains, torch.float32), nvfp4.moe_combine(x[0], routed[2], gains))
    gated = ops.gated(x, x, "silu", math.inf, 1.702, torch.float16)
    assert same(gated, nvfp4.gated(x, x, out_dtype="float16"))


def test_operators_raise_error_messages(operands: list[torch.Tensor]) -> None:
    a, b, scale_a, scale_b = operands
    none, out = torch.empty(0, dtype=torch.uint8), torch.full((M, N), float("nan"))
    calls: dict[str, Any] = {
        "b: K is 32 but a has K = 64": lambda: ops.gemm_out(
            a, b[:, :16], scale_a, scale_b, none, none, none, 1.0, 0.0, *AUTO, out
        ),
        "scale_layout: is '4'; must be '128x4' or 'linear'": lambda: ops.gemm_out(
            *operands, none, none, none, 1.0, 0.0, "4", "auto", 0, out
        ),
        f"backend: is ''; must be {QUOTED}": lambda: ops.gemm_out(
            *operands, none, none, none, 1.0, 0.0, "128x4", "", 0, out
        ),
        f"flags: is 8; {FLAGS_RULE}": lambda: ops.gemm_out(
            *operands, none, none, none, 1.0, 0.0, "128x4", "auto", 8, out
        ),
        f"flags: is 2147483648; {FLAGS_RULE}": lambda: ops.gemm(
            *operands, none, none, none, 1.0, 0.0, "128x4", "auto", 1 << 31, torch.float16
        ),
        "flags: is -1; must be between 0 and 4294967295": lambda: ops.gemm(
            *operands, none, none, none, 1.0, 0.0, "128x4", "auto", -1, torch.float16
        ),
        "flags: is 4294967296; must be between 0 and 4294967295": lambda: ops.gemm_out(
            *operands, none, none, none, 1.0, 0.0, "128x4", "auto", 1 << 32, out
        ),
        "scale_layout: contains a null character; must be a name": lambda: ops.gemm_out(
            *operands, none, none, none, 1.0, 0.0, "128x4\0", "auto", 0, out
        ),
        "backend: contains a null character; must be a name": lambda: ops.gemm_out(
            *operands, none, none, none, 1.0, 0.0, "128x4", "cpu\0", 0, out
        ),
        "beta: is 1 but c is missing": lambda: ops.gemm_out(*operands, none, none, none, 1.0, 1.0, *AUTO, out),
        "a: has 2 dimensions; must have 3 ([M, K/2, L])": lambda: ops.custom_kernel(a, b, scale_a, scale_b, out),
        "x: K is 17; must be a multiple of 16": lambda: ops.quantize(torch.zeros(1, 17), none, 1.0, "linear"),
        "scale: is not contiguous; the 128x4 layout must be": lambda: ops.unswizzle(
            torch.zeros(128, 8, dtype=torch.uint8)[:, ::2], 128, 4
        ),
        "block_scale: is 'amax'; must be 'amax6', 'four_over_six' or 'search'": lambda: ops.amax_scale(out, "amax"),
        "rows: is -1; must be between 0 and 2147483647": lambda: ops.unswizzle(scale_a, -1, 4),
        "rows: is 2147483648; must be between 0 and 2147483647": lambda: ops.unswizzle(scale_a, 2**31, 4),
        "columns: is 2147483648; must be between 0 and 2147483647": lambda: ops.unswizzle(scale_a, 128, 2**31),
    }
    for message, call in calls.items():
        with pytest.raises(RuntimeError) as error:
            call()
        assert str(error.value).splitlines()[0] == message
    assert out.isnan().all()


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_only_an_empty_vector_is_absent(shape: tuple[int, int], operands: list[torch.Tensor]) -> None:
    empty, none, out = torch.empty(shape, dtype=torch.uint8), torch.empty(0, dtype=torch.uint8), torch.full((M, N), 7.0)
    for place, name in {2: "scale_a", 4: "alpha", 5: "bias", 6: "c"}.items():
        given = [*operands, none, none, none]
        given[place] = empty
        with pytest.raises(RuntimeError, match=f"^{name}: "):
            ops.gemm_out(*given, 1.0, 0.0, *AUTO, out)
    with pytest.raises(RuntimeError, match="^global_scale: "):
        ops.quantize(torch.zeros(1, 16), empty, 1.0, "linear")
    assert (out == 7).all()


def test_a_cut_text_is_still_text(operands: list[torch.Tensor]) -> None:
    """A message quotes 80 bytes of a word; a character that they truncate is not valid UTF-8."""
    none = torch.empty(0, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="^scale_layout: is 'xé+\\?'; must be '128x4' or 'linear'"):
        ops.gemm(*operands, none, none, none, 1.0, 0.0, "x" + "é" * 60, "auto", 0, torch.float16)


def test_numbers_beyond_fp32(operands: list[torch.Tensor]) -> None:
    """torch's numbers are doubles; the functions reject such a value, and a compiled call has the operator alone."""
    none, x = torch.empty(0, dtype=torch.uint8), torch.zeros(4, 16)
    data, scale = nvfp4.quantize(x)
    for name, call in {
        "alpha": lambda: ops.gemm(*operands, none, none, none, 1e39, 0.0, *AUTO, torch.float16),
        "beta": lambda: ops.gemm(*operands, none, none, none, 1.0, -1e300, *AUTO, torch.float16),
        "global_scale": lambda: ops.dequantize(data, scale, none, 1e39, "128x4", torch.float32),
    }.items():
        with pytest.raises(RuntimeError, match=f"^{name}: is beyond the largest float32"):
            call()


def test_kernels_keep_no_references(operands: list[torch.Tensor]) -> None:
    """A boxed kernel owns its arguments: on success and on error it must release each."""
    none, out = torch.empty(0, dtype=torch.uint8), torch.zeros(M, N)
    tensors = [*operands, none, out]
    before = [x._use_count() for x in tensors]
    for _ in range(10):
        ops.gemm_out(*operands, none, none, none, 1.0, 0.0, *AUTO, out)
        ops.gemm(*operands, none, none, none, 1.0, 0.0, *AUTO, torch.float16)
        ops.dequantize(operands[0], operands[2], none, 1.0, "128x4", torch.float16)
        for layout, backend in (("4", "auto"), ("128x4", "tpu")):
            with pytest.raises(RuntimeError):
                ops.gemm_out(*operands, none, none, none, 1.0, 0.0, layout, backend, 0, out)
    assert [x._use_count() for x in tensors] == before


def in_lists(groups: int = 3) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
    """Matrices and their linear scales in lists, and ends of 5 rows."""
    b = [torch.randint(256, (N, K // 2), dtype=torch.uint8) for _ in range(groups)]
    scale_b = [torch.randint(0x30, 0x48, (N, K // 16), dtype=torch.uint8) for _ in range(groups)]
    return b, scale_b, torch.tensor([2, 2, 5, 5][:groups], dtype=torch.int32)


def test_kernels_keep_no_elements_of_lists() -> None:
    """On success, and where an error ends the reading of a list."""
    (b, scale_b, ends), none = in_lists(), torch.empty(0, dtype=torch.uint8)
    before = [x._use_count() for x in (*b, *scale_b)]
    a, more = torch.randn(5, K).half(), (*[none] * 5, 1.0, "linear", "auto", 0, torch.float16)
    expected = nvfp4.grouped_gemm(a, b, None, scale_b, ends, scale_layout="linear")
    for _ in range(10):
        assert same(ops.grouped_gemm_list(a, b, none, scale_b, ends, *more), expected)
        copies = [[t.clone() for t in tensors] for tensors in (b, scale_b)]  # the call alone keeps these
        assert same(ops.grouped_gemm_list(a, copies.pop(0), none, copies.pop(0), ends, *more), expected)
        for message, other in {
            "b: element 1 of the list differs from the first in dtype, shape or strides": [b[0], b[1][1:], b[2]],
            "scale_b: is a list of 3 tensors but b has 2": b[:2],
            "b: is a list of 0 tensors; must have between 1 and 1024": [],
            "b: dtype is float32; must be uint8 or float4_e2m1fn_x2": [b[0].float()] * 3,
        }.items():
            with pytest.raises(RuntimeError) as error:
                ops.grouped_gemm_list(a, other, none, scale_b, ends, *more)
            assert str(error.value).splitlines()[0] == message
    assert [x._use_count() for x in (*b, *scale_b)] == before


# ---- torch.compile ----


def program(
    x: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor, bias: torch.Tensor, out: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Every function, and beta * c from a tensor that was written before."""
    g = nvfp4.amax_scale(x, block_scale="four_over_six")
    a, scale_a = nvfp4.quantize(x.relu() - 0.5, global_scale=g, block_scale="four_over_six")
    nvfp4.gemm(a, b, scale_a, scale_b, bias=bias, out=out, alpha=0.5)
    y = nvfp4.gemm(a, b, scale_a, scale_b, alpha=bias, c=out, beta=2.0, out_dtype=torch.float32)
    linear = nvfp4.unswizzle(scale_a, x.shape[0], 4)
    z = nvfp4.dequantize(a, linear, scale_layout="linear", global_scale=bias[:1], out_dtype="bfloat16")
    return y + 1, z, nvfp4.swizzle(linear).view(torch.uint8)


def compare_program(run: Any, m: int, device: str = "cpu") -> None:
    x = torch.randn(m, K, device=device)
    b = torch.randint(0, 256, (N, K // 2), dtype=torch.uint8, device=device)
    scale_b = torch.randint(0, 0x50, (128, 4), dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)
    bias = torch.randn(N, device=device)
    out, expected_out = (torch.full((m, N), float("nan"), device=device) for _ in range(2))
    got, expected = run(x, b, scale_b, bias, out), program(x, b, scale_b, bias, expected_out)
    assert all(same(p, q) for p, q in zip((*got, out), (*expected, expected_out)))


INDUCTOR = pytest.param("inductor", None, marks=in_full)  # 15 s; an ordinary run compiles a layer with it


@pytest.mark.parametrize(("compiler", "dynamic"), [("aot_eager", False), ("aot_eager", True), INDUCTOR])
def test_compile(compiler: str, dynamic: bool | None) -> None:
    if compiler == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor needs g++")
    torch._dynamo.reset()
    compiled = torch.compile(program, fullgraph=True, backend=compiler, dynamic=dynamic)
    for m in (5, 9, 130):
        compare_program(compiled, m)


def test_compile_on_the_gpu(cuda: Backend) -> None:
    torch._dynamo.reset()
    for options in ({"backend": "aot_eager"}, {"backend": "inductor"}, {"mode": "reduce-overhead"}):
        compiled = torch.compile(program, fullgraph=True, **options)
        for m in (5, 5, 5, 130):
            compare_program(compiled, m, cuda.device)


@pytest.mark.parametrize("l", [1, 2])
def test_compile_custom_kernel(l: int) -> None:  # noqa: E741
    torch._dynamo.reset()
    a, b, _, _, sfa, sfb, c = reference.generate_input(130, 67, 96, l, 7)
    expected = nvfp4.custom_kernel(a, b, sfa, sfb, c).clone()
    c.fill_(float("nan"))
    compiled = torch.compile(nvfp4.custom_kernel, fullgraph=True, backend="aot_eager")
    a, b = a.view(torch.uint8), b.view(torch.uint8)
    assert compiled(a, b, sfa, sfb, c) is c
    assert torch.equal(c, expected)


IMPORTS = """
    import {first}
    import {second}
    import nvfp4, torch
    a = torch.full((2, 8), 0x22, dtype=torch.uint8)
    s = torch.full((512,), 0x38, dtype=torch.uint8)
    for use in {uses}:
        print(use(lambda a, s: nvfp4.gemm(a, a, s, s))(a, s).tolist() == [[16.0] * 2] * 2)
"""


@pytest.mark.parametrize(
    ("order", "compiled_first"),
    one_in(3, [(("torch", "nvfp4"), True), (("nvfp4", "torch"), True), (("nvfp4", "torch"), False)]),
)
def test_import_orders(order: tuple[str, str], compiled_first: bool) -> None:
    compiled = "lambda f: torch.compile(f, fullgraph=True, backend='aot_eager')"
    uses = [compiled, "lambda f: f", compiled] if compiled_first else ["lambda f: f", compiled]
    text = IMPORTS.format(first=order[0], second=order[1], uses=f"[{', '.join(uses)}]")
    program = ("-c", textwrap.dedent(text))
    if order[0] == "torch":
        result = python(*program, cwd="/")
    else:
        result = subprocess.run([sys.executable, *program], capture_output=True, text=True, cwd="/")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "True\n" * len(uses)


def test_errors_while_tracing(operands: list[torch.Tensor]) -> None:
    """The message is in what torch.compile raises."""
    a, b, scale_a, scale_b = operands
    weight, ends = torch.zeros(N, requires_grad=True), torch.tensor([5], dtype=torch.int32)
    calls: dict[str, Any] = {
        "b: K is 32 but a has K = 64": lambda: nvfp4.gemm(a, b[:, :16].contiguous(), scale_a, scale_b),
        "out_dtype: is float64; must be float16, bfloat16 or float32": lambda: nvfp4.gemm(
            *operands, out_dtype="float64"
        ),
        "scale_layout: is '4'; must be '128x4' or 'linear'": lambda: nvfp4.gemm(*operands, scale_layout="4"),
        "bias: requires grad; nvfp4 computes no gradients": lambda: nvfp4.gemm(*operands, bias=weight),
        "x: K is 17; must be a multiple of 16": lambda: nvfp4.quantize(torch.zeros(1, 17)),
        "scale_b: is no list but b is one": lambda: nvfp4.grouped_gemm(a.half(), [b], None, scale_b, ends),
        "b: is a list of 0 tensors; must have between 1 and 1024": lambda: nvfp4.grouped_gemm(
            a.half(), [], None, [], ends
        ),
        "b: element 1 of the list is of type int; must be a torch.Tensor": lambda: nvfp4.grouped_gemm(
            a.half(), [b, 1], None, [scale_b] * 2, ends
        ),
        "scale_b: is a list of 1 tensors but b has 2": lambda: nvfp4.grouped_gemm(
            a.half(), [b, b], None, [scale_b], ends
        ),
        "sfb_permuted: has 2 dimensions": lambda: nvfp4.custom_kernel(
            a[..., None], b[..., None], scale_a.new_zeros(512).view(1, 1, 1, 32, 4, 4).permute(3, 4, 1, 5, 2, 0),
            scale_b, torch.zeros(M, N, 1),
        ),
    }  # fmt: skip
    for message, call in calls.items():
        torch._dynamo.reset()
        with pytest.raises(Exception) as error:  # noqa: B017, PT011  (torch wraps it in its own types)
            torch.compile(call, fullgraph=True, backend="aot_eager")()
        assert message.replace("'", "") in str(error.value).replace("\\'", "").replace("'", "")


def test_export(operands: list[torch.Tensor]) -> None:
    class Model(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor, s: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return nvfp4.gemm(a, b, s, t, out_dtype=torch.float32)

    exported = torch.export.export(Model(), tuple(operands))
    assert ops.gemm.default in [node.target for node in exported.graph.nodes]
    assert same(exported.module()(*operands), nvfp4.gemm(*operands, out_dtype="float32"))


@pytest.mark.parametrize("function", [nvfp4.grouped_gemm, nvfp4.gated_grouped_gemm])
def test_compiled_lists(function: Any) -> None:
    (b, scale_b, ends), a = in_lists(), torch.randn(5, K).half()

    def call(out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        options = {"scale_layout": "linear", "alpha": 0.5}
        function(a, b, None, scale_b, ends, out=out, **options)
        return function(a, tuple(b), None, scale_b, ends, out_dtype="float32", **options), out + 1

    torch._dynamo.reset()
    out, expected_out = torch.zeros(2, 5, N)
    got, expected = torch.compile(call, fullgraph=True, backend="aot_eager")(out), call(expected_out)
    assert all(same(x, y) for x, y in zip((*got, out), (*expected, expected_out))) and out.any()


def test_lists_that_only_torch_reads() -> None:
    """Fake tensors in lists get the shapes of results and the errors. TorchScript, which empties lists of constants,
    gets an error."""
    b, scale_b, ends = in_lists()
    a, options = torch.randn(5, K).half(), {"scale_layout": "linear"}
    with FakeTensorMode() as mode:
        fakes = [[mode.from_tensor(x) for x in tensors] for tensors in (b, scale_b, [ends, a])]
        y = nvfp4.grouped_gemm(fakes[2][1], fakes[0], None, fakes[1], fakes[2][0], **options)
        assert y.shape == (5, N) and y.dtype == torch.float16
        with pytest.raises(nvfp4.Error, match=r"^ends: has length 3; must be a vector of length E = 2$"):
            nvfp4.grouped_gemm(fakes[2][1], fakes[0][:2], None, fakes[1][:2], fakes[2][0], **options)
    with pytest.raises(nvfp4.Error, match=r"^b: is a list, which torch.jit.trace does not keep; must be one tensor$"):
        torch.jit.trace(lambda a: nvfp4.grouped_gemm(a, b, None, scale_b, ends, **options), (a,))


# ---- tensors that only the dispatcher can read ----


def test_fake_and_meta_tensors(operands: list[torch.Tensor]) -> None:
    with FakeTensorMode() as mode:  # the GPU that they claim to be on need not exist
        on_gpu = [torch.empty(x.shape, dtype=x.dtype, device="cuda:0") for x in operands]
        short = torch.empty(N, 16, dtype=torch.uint8, device="cuda:0")
    for a, b, *scales in (on_gpu, [mode.from_tensor(x) for x in operands], [x.to("meta") for x in operands]):
        out = nvfp4.gemm(a, b, *scales, out_dtype=torch.bfloat16)
        assert (out.shape, out.dtype, out.device) == ((M, N), torch.bfloat16, a.device)
        with pytest.raises(nvfp4.Error, match=r"^b: K is 32 but a has K = 64$"):
            nvfp4.gemm(a, short if a is on_gpu[0] else b[:, :16], *scales)
    x = torch.empty(2, 200, 160, dtype=torch.float16, device="meta")
    assert (nvfp4.amax_scale(x).shape, nvfp4.amax_scale(x).dtype) == ((1,), torch.float32)
    with pytest.raises(nvfp4.Error, match=r"^x: dtype is uint8; must be float16, bfloat16 or float32$"):
        nvfp4.amax_scale(a)
    for layout, shape in {"128x4": (2, 256, 12), "linear": (2, 200, 10)}.items():
        data, scale = nvfp4.quantize(x, scale_layout=layout)
        assert (data.shape, data.dtype) == ((2, 200, 80), torch.uint8)
        assert (scale.shape, scale.dtype) == (shape, torch.float8_e4m3fn)
        assert nvfp4.dequantize(data, scale, scale_layout=layout).shape == x.shape
        with pytest.raises(nvfp4.Error, match="^scale: "):
            nvfp4.dequantize(data, scale[:1], scale_layout=layout)
    assert nvfp4.unswizzle(nvfp4.swizzle(scale), 200, 10).shape == scale.shape
    assert (nvfp4.gated(x, x).shape, nvfp4.gated(x, x).dtype) == (x.shape, x.dtype)
    rows, ends, places = nvfp4.moe_route(torch.empty(9, 4, dtype=torch.int64, device="meta"), 6)
    assert [(t.shape, t.dtype) for t in (rows, ends, places)] == [(s, torch.int32) for s in ((36,), (6,), (9, 4))]
    assert nvfp4.moe_combine(x[0], places, out_dtype="float32").shape == (9, 160)
    with pytest.raises(nvfp4.Error, match=r"^E: is 0; must be between 1 and 1024$"):
        nvfp4.moe_route(places, 0)
    for grouped in (
        nvfp4.quantize(x[0], ends=ends, rows=rows),
        nvfp4.gated_quantize(torch.empty(36, 160, device="meta"), ends=ends),
    ):
        assert [(t.shape, t.dtype) for t in grouped] == [
            ((36, 80), torch.uint8),
            ((6 * 128, 12), torch.float8_e4m3fn),
            ((6,), torch.int32),
        ]
    assert nvfp4.quantize(x[0], rows=rows)[1].shape == (128, 12)
    assert nvfp4.amax_scale(x[0], by_row=True).shape == (200,)
    with pytest.raises(nvfp4.Error, match=r"^ends: E is 1025; must be between 1 and 1024$"):
        nvfp4.quantize(x[0], ends=torch.empty(1025, dtype=torch.int32, device="meta"))


def test_subclasses(operands: list[torch.Tensor]) -> None:
    class Seen(torch.Tensor):
        names: list[str] = []

        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            cls.names.append(str(function))
            return super().__torch_function__(function, types, args, kwargs or {})

    got = nvfp4.gemm(operands[0].as_subclass(Seen), *operands[1:])
    assert any("nvfp4.gemm" in name for name in Seen.names)
    assert same(got.as_subclass(torch.Tensor), nvfp4.gemm(*operands))
    with pytest.raises(nvfp4.Error, match=r"^b: K is 32 but a has K = 64$"):
        nvfp4.gemm(operands[0].as_subclass(Seen), operands[1][:, :16], *operands[2:])
    with pytest.raises(nvfp4.Error, match=r"^alpha: is of type str"):
        nvfp4.gemm(operands[0].as_subclass(Seen), *operands[1:], alpha="1")


def test_transforms_of_torch_func(operands: list[torch.Tensor]) -> None:
    a, *rest = operands
    batched = torch.vmap(lambda x: nvfp4.gemm(x, *rest))(torch.stack([a, a]))
    assert same(batched, torch.stack([nvfp4.gemm(*operands)] * 2))
    assert same(torch.func.functionalize(lambda x: nvfp4.gemm(x, *rest))(a), nvfp4.gemm(*operands))


def test_tensors_that_nothing_can_read() -> None:
    with pytest.raises(nvfp4.Error, match=r"^x: layout is torch.sparse_coo; must be torch.strided$"):
        nvfp4.quantize(torch.eye(16).to_sparse())
    mkldnn = torch.eye(16).to_mkldnn()
    with pytest.raises(nvfp4.Error, match=r"^x: layout is torch._mkldnn; must be torch.strided$"):
        nvfp4.quantize(mkldnn)


def test_errors_of_others_keep_their_words() -> None:
    """Also in a thread where nvfp4 has raised no error yet, so that it has no message of its own."""

    class Broken(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, *_: Any, **__: Any) -> Any:
            raise RuntimeError("words of the subclass")

    x = torch.zeros(4, 16).as_subclass(Broken)
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="words of the subclass"):
        pool.submit(nvfp4.quantize, x).result()


# ---- streams ----

# A torch without CUDA gets tensors that say cuda:0, in host memory, and a libtorch_cuda.so with one function.
ON_STREAM = """
import ctypes, torch
torch.cuda._lazy_init = lambda: None
tensor_in = ctypes.pythonapi.PyCapsule_GetPointer
tensor_in.restype, tensor_in.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
def on_gpu(x):
    capsule = torch.utils.dlpack.to_dlpack(x)
    device = (ctypes.c_int32 * 2).from_address(tensor_in(capsule, b"dltensor") + 8)
    device[:] = 2, 0
    return torch._C._from_dlpack(capsule)
library = torch.library.Library("aten", "IMPL", "CUDA")
empty = lambda size, stride, dtype=None, **options: on_gpu(torch.empty_strided(size, stride, dtype=dtype))
library.impl("empty_strided", empty)
cuda = ctypes.CDLL({cuda!r})
import nvfp4
ops = torch.ops.nvfp4
def zeros(*shape, dtype=torch.uint8): return on_gpu(torch.zeros(shape, dtype=dtype))
none, x, one = zeros(0), zeros(5, 64, dtype=torch.float32), zeros(64, dtype=torch.float32)
a, scale, linear, auto = zeros(5, 32), zeros(128, 4), zeros(5, 4), ("128x4", "auto", 0)
half = zeros(5, 5, dtype=torch.float16)
column, factor = zeros(5, 16, dtype=torch.float32), zeros(16, 16, dtype=torch.float32)
layer = x, a, scale, none, none, none, none, 1.0, 1.0, 0.0
products = a, a, scale, scale, none, none, none, 1.0, 0.0, *auto
packed, gates = (zeros(5, 32), zeros(512)), zeros(5, 128, dtype=torch.float32)
ids, ends = zeros(3, 2, dtype=torch.int32), zeros(2, dtype=torch.int32)
grouped = zeros(5, 32), zeros(5, 4), zeros(2, dtype=torch.int32)
stack = zeros(5, 64, dtype=torch.float16), zeros(2, 2, 5, 32), none, zeros(4, 128, 4), ends
expert = *stack, *[none] * 5, 1.0, "swiglu", 1.0, 1.5, *auto
even = stack[0], zeros(2, 2, 16, 32), *stack[2:], *[none] * 6, 1.0, "swiglu", 1.0, 1.5, 1.0, *auto
of_even = zeros(5, 8), zeros(1024), zeros(2, dtype=torch.int32)
calls = {{
    "gemm": lambda: ops.gemm(*products, torch.float32),
    "gemm_out": lambda: ops.gemm_out(*products, half),
    "quantize": lambda: ops.quantize(x, none, 1.0, "128x4"),
    "weighted_quantize": lambda: ops.weighted_quantize(x, one, none, 1.0, "128x4"),
    "gptq_block": lambda: ops.gptq_block(column, factor, none, 1.0),
    "dequantize": lambda: ops.dequantize(a, scale, none, 1.0, "128x4", torch.float16),
    "rms_norm_quantize": lambda: ops.rms_norm_quantize(x, one, none, none, 1.0, 1e-5, "128x4"),
    "rms_norm_quantize_out": lambda: ops.rms_norm_quantize_out(x, one, none, none, 1.0, 1e-5, "128x4", *packed),
    "silu_mul_quantize": lambda: ops.silu_mul_quantize(gates, none, 1.0, "128x4"),
    "silu_mul_quantize_out": lambda: ops.silu_mul_quantize_out(gates, none, 1.0, "128x4", *packed),
    "quantize_gemm": lambda: ops.quantize_gemm(*layer, "128x4", "amax6", "auto", 0, torch.float32),
    "quantize_gemm_out": lambda: ops.quantize_gemm_out(*layer, "128x4", "amax6", "auto", 0, half),
    "gated_grouped_gemm": lambda: ops.gated_grouped_gemm(*expert, torch.float16),
    "gated_grouped_gemm_out": lambda: ops.gated_grouped_gemm_out(*expert, half),
    "gated_grouped_quantize": lambda: ops.gated_grouped_quantize(*even),
    "gated_grouped_quantize_out": lambda: ops.gated_grouped_quantize_out(*even, *of_even),
    "grouped_quantize": lambda: ops.grouped_quantize(x, none, ends, none, 1.0, "128x4", "amax6"),
    "grouped_quantize_out": lambda: ops.grouped_quantize_out(x, none, ends, none, 1.0, "linear", "amax6", *grouped),
    "amax_scale": lambda: ops.amax_scale(x, "amax6"),
    "amax_scale by row": lambda: ops.amax_scale(x, "amax6", 1),
    "swizzle": lambda: ops.swizzle(linear),
    "unswizzle": lambda: ops.unswizzle(scale, 5, 4),
    "gated": lambda: ops.gated(x, x, "silu", 1.0, 1.702, torch.float32),
    "gated_out": lambda: ops.gated_out(x, none, "relu2", float("inf"), 1.702, zeros(5, 64, dtype=torch.float32)),
    "gated_quantize": lambda: ops.gated_quantize(x, x, none, ends, 1.0, "silu", 1.0, 1.702, "128x4"),
    "gated_quantize_out": lambda: ops.gated_quantize_out(x, x, none, ends, 1.0, "silu", 1.0, 1.702, "linear", *grouped),
    "moe_route": lambda: ops.moe_route(ids, none, 8),
    "moe_combine": lambda: ops.moe_combine(x, ids, none, torch.float16),
    "moe_combine_out": lambda: ops.moe_combine_out(x, ids, none, zeros(3, 64, dtype=torch.float32)),
}}
for i, (name, call) in enumerate(calls.items()):
    ctypes.c_void_p.in_dll(cuda, "stream").value = 0x5000 + i
    call()
    print(name)
"""


@pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")
@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="torch's own CUDA tensors are on its own streams")
def test_launches_are_on_torchs_current_stream(fake_driver: Path, tmp_path: Path) -> None:
    """Every operator is called on a libcuda that runs nothing."""
    source, cuda, log = tmp_path / "cuda.c", tmp_path / "libtorch_cuda.so", tmp_path / "log"
    function = "int aoti_torch_get_current_cuda_stream(int device, void **out) { *out = stream; return device; }"
    source.write_text(f"void *stream;\n{function}\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libtorch_cuda.so", "-o", cuda, source], check=True)
    environment = {**os.environ, "NVFP4_LIBCUDA": str(fake_driver), "FAKE_LOG": str(log)}
    done = python("-c", ON_STREAM.format(cuda=str(cuda)), env=environment)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in log.read_text().splitlines() if line.startswith("nvfp4_")]
    assert {int(row[4], 0) for row in rows} == {0x5000 + i for i in range(len(done.stdout.splitlines()))}
