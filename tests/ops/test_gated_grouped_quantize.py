"""gated_grouped_quantize has the bytes of grouped_gemm and gated_quantize, whichever kernels run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from backend_table import ROWS
from conftest import Backend

import nvfp4

Arguments = dict[str, Any]
SIZES = [3, 0, 131, 17, 64, 1]
ACTIVATIONS = {1: ("silu", "gelu_tanh", "relu2"), 2: ("silu", "gelu_tanh", "swiglu")}
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
UNWRITTEN = 0xA5


def ends_of(sizes: list[int]) -> torch.Tensor:
    return torch.tensor(sizes).cumsum(0).int()


def operands(
    generator: torch.Generator, sizes: list[int], n: int, k: int, parts: int, layout: str, behind: int = 2
) -> Arguments:
    """An NVFP4 a with rows of random sizes, and what the epilogue may have."""
    t, groups = sum(sizes) + behind, len(sizes)
    x = torch.randn(t, k, generator=generator) * torch.exp2(torch.randint(-3, 3, (t, 1), generator=generator))
    ends = ends_of(sizes)
    a, scale_a, *places = nvfp4.quantize(x, ends=ends, scale_layout=layout)
    w = torch.randn(groups * parts, n, k, generator=generator)
    b, scale_b = nvfp4.quantize(w, scale_layout=layout)
    given = {"a": a, "scale_a": scale_a, "b": b.view(groups, parts, n, k // 2), "ends": ends}
    given["scale_b"] = scale_b if layout == "128x4" else scale_b.view(groups, parts, n, k // 16)
    if places:
        given["scale_rows"] = places[0]
    alpha = torch.rand(groups, parts, generator=generator) / 8
    bias = torch.randn(groups, parts, n, generator=generator)
    return given | {
        "row_scale": torch.rand(t, generator=generator), "alpha": alpha, "bias": bias, "scale_layout": layout
    }  # fmt: skip


def moved(given: Arguments, device: str) -> Arguments:
    return {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in given.items()}


def poisoned(results: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.full_like(x.view(torch.uint8), UNWRITTEN).view(x.dtype) for x in results)


def by_two(given: Arguments, product_dtype: str, gating: Arguments, out: Any, **options: Any) -> None:
    """The two calls, of the same backend, into out."""
    given = dict(given)
    global_scale = given.pop("global_scale", None)
    products = nvfp4.grouped_gemm(**given, out_dtype=DTYPES[product_dtype], **options)
    n = given["b"].shape[2]
    gate, *up = products.split(n, dim=1)
    gating = dict(gating)
    alpha = gating.pop("activation_alpha", None)
    nvfp4.gated_quantize(
        gate, *up, **gating, alpha=alpha, global_scale=global_scale, ends=given["ends"],
        scale_layout=given["scale_layout"], out=out,
    )  # fmt: skip


def global_scale_of(which: str, generator: torch.Generator, t: int, groups: int) -> torch.Tensor | float | None:
    draw = torch.rand(max(t, groups), generator=generator) + 0.05
    return {
        "none": None, "number": 0.3, "one": draw[:1], "group": draw[:groups], "row": draw[:t, None],
        "tiny": draw[:1] * 2.0**-60,
    }[which]  # fmt: skip


def layouts_of(backend: Backend) -> list[str]:
    takes = ROWS[backend.name]
    if "uint8" not in takes["product_kinds"].get("grouped_gemm", []):
        pytest.skip("takes no such a")
    return ["128x4", "linear"] if "uint8" in takes["linear_scales"]["grouped_gemm"] else ["128x4"]


@pytest.mark.parametrize("product_dtype", DTYPES)
@pytest.mark.parametrize("parts", [1, 2])
def test_bytes_of_the_two_calls(parts: int, product_dtype: str, backend: Backend, generator: torch.Generator) -> None:
    """Every activation and global scale, groups of no rows, of one, of a tile and of more than a block of scales, one
    group alone, N of whole atoms of scales and not. Rows past the last end, their scales and further blocks stay as
    they were."""
    for layout in layouts_of(backend):
        scales = ("none", "number", "one", "group", "row", "tiny")
        for i, (activation, which) in enumerate((a, s) for a in ACTIVATIONS[parts] for s in scales):
            if i % 3 != (len(layout) + parts) % 3 and backend.emulated:
                continue
            n, k = ((144, 192) if i % 2 else (64, 64)) if backend.emulated else (16 * (1 + i), 64 * (1 + i % 3))
            sizes = [70] if i % 4 == 3 else SIZES
            given = operands(generator, sizes, n, k, parts, layout)
            if (scale := global_scale_of(which, generator, len(given["a"]), len(sizes))) is not None:
                given["global_scale"] = scale
            gating: Arguments = {"activation": activation}
            if activation in ("silu", "swiglu") and i % 2:
                gating |= {"limit": 2.0}
            if activation == "swiglu":
                gating |= {"activation_alpha": 1.3}
            given = moved(given, backend.device)
            options = {"backend": backend.name} if backend.emulated or backend.device == "cpu" else {}
            shapes = nvfp4.gated_grouped_quantize(**given, **gating, product_dtype=product_dtype, **options)
            three = shapes if len(shapes) == 3 else (*shapes, torch.zeros(len(sizes), dtype=torch.int32))
            got, wanted = poisoned(moved_all(three, backend.device)), poisoned(moved_all(three, backend.device))
            nvfp4.gated_grouped_quantize(**given, **gating, product_dtype=product_dtype, out=got, **options)
            by_two(given, product_dtype, gating, wanted, **options)
            for name, x, y in zip(("data", "scale", "scale_rows"), got, wanted):
                assert torch.equal(x.view(torch.uint8), y.view(torch.uint8)), (name, activation, which, n, k, layout)


def moved_all(tensors: tuple[torch.Tensor, ...], device: str) -> tuple[torch.Tensor, ...]:
    return tuple(x.to(device) for x in tensors)


def test_rows_without_scales_become_nan(backend: Backend, generator: torch.Generator) -> None:
    """Groups whose scales do not exist: a scale of NaN and codes of 0."""
    layouts_of(backend)
    given = operands(generator, [3, 20, 2], 32, 64, 2, "128x4", behind=0)
    given["scale_rows"][1] = -128
    given = moved(given, backend.device)
    data, scale, places = nvfp4.gated_grouped_quantize(**given, backend=backend.name)
    rows = nvfp4.dequantize(data[3:23], scale[128:256].contiguous())
    assert rows.isnan().all() and not data[3:23].any() and places.tolist() == [0, 128, 256]
    assert nvfp4.dequantize(data[:3], scale[:128].contiguous()).isfinite().all()


def test_no_rows(backend: Backend, generator: torch.Generator) -> None:
    """scale_rows of nothing are zeros."""
    for layout in layouts_of(backend):
        given = moved(operands(generator, [0, 0], 32, 64, 2, layout, behind=0), backend.device)
        scale = torch.zeros((0,) if layout == "128x4" else (0, 2), dtype=torch.float8_e4m3fn)
        out = (torch.zeros(0, 16, dtype=torch.uint8), scale, torch.full((2,), 7, dtype=torch.int32))
        out = moved_all(out, backend.device)
        nvfp4.gated_grouped_quantize(**given, out=out, backend=backend.name)
        assert out[2].tolist() == [0, 0]


def test_a_16_bit_a(generator: torch.Generator) -> None:
    """W4A16 on the CPU, of rows in any order."""
    given = operands(generator, [4, 9], 48, 64, 2, "linear", behind=0)
    x = torch.randn(7, 64, generator=generator).half()
    rows = torch.randint(0, 7, (13,), generator=generator).int()
    given |= {"a": x, "scale_a": None, "rows": rows}
    data, scale = nvfp4.gated_grouped_quantize(**given)
    wanted = (torch.zeros_like(data), torch.zeros_like(scale), torch.zeros(2, dtype=torch.int32))
    by_two(given, "float16", {"activation": "silu"}, wanted)
    assert torch.equal(data, wanted[0]) and torch.equal(scale.view(torch.uint8), wanted[1].view(torch.uint8))


BAD = {
    "b: N is 24; must be a multiple of 16: results are quantized along N": ({"n": 24}, {}),
    'product_dtype: is "float32"'.replace('"', "'"): ({}, {"product_dtype": "float32"}),
    "b: has 3 parts; must have 1 or 2 (gate and up)": ({"parts": 3}, {}),
    "b: has 2 parts; must have 1: relu2 is a function of gate alone": ({}, {"activation": "relu2"}),
    "global_scale: is -1; must be positive and finite": ({}, {"global_scale": -1.0}),
    "global_scale: has 3 elements in 1 dimension; must have 1, be [E] = [2], or [R, 1] = [5, 1] for rows": (
        {}, {"global_scale": torch.ones(3)},
    ),
    "batch_invariant: is of type int; must be True or False": ({}, {"batch_invariant": 1}),
    "bias: dtype is bfloat16": ({}, {"bias": torch.zeros(2, 2, 32).bfloat16()}),
}  # fmt: skip


@pytest.mark.parametrize("said", BAD)
def test_errors(said: str, generator: torch.Generator) -> None:
    """They name the argument, the rule and the value."""
    sizes, more = BAD[said]
    given = operands(generator, [2, 3], sizes.get("n", 32), 64, sizes.get("parts", 2), "128x4", behind=0)
    with pytest.raises(nvfp4.Error) as error:
        nvfp4.gated_grouped_quantize(**given | more)
    assert str(error.value).startswith(said), error.value
