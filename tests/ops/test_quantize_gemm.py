"""quantize_gemm has the bits of quantize and gemm, whichever kernels run; its rules are theirs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Backend
from fake_driver_calls import launches, run

import nvfp4

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
SHAPES = [
    (1, 40, 64),
    (1, 200, 4128),
    (2, 1, 90, 544),
    (3, 200, 544),
    (2, 5, 130, 80),
    (16, 136, 1040),
    (33, 70, 96),
    (2, 24, 136, 528),
    (70, 264, 1056),
]  # [L,] M, N, K


def same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.dtype == y.dtype and torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8))


def weights(
    batch: tuple[int, ...], n: int, k: int, layout: str, device: str, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    w = torch.randn(*batch, n, k, generator=generator)
    data, scale = nvfp4.quantize(w, global_scale=nvfp4.amax_scale(w), scale_layout=layout)
    return data.to(device), scale.to(device)


def by_two(a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor, **options: Any) -> torch.Tensor:
    """The definition: quantize, then gemm."""
    layout = options.get("scale_layout", "128x4")
    how = {name: options.pop(name) for name in ("global_scale", "block_scale") if name in options}
    data, scale = nvfp4.quantize(a, scale_layout=layout, **how)
    options.setdefault("out_dtype", a.dtype)
    return nvfp4.gemm(data, b, scale, scale_b, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_of_two_calls(
    backend: Backend, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> None:
    *batch, m, n, k = shape
    a = torch.randn(*batch, m, k, generator=generator) * 10 ** torch.randn(*batch, m, 1, generator=generator)
    a = a.to(dtype).to(backend.device)
    for layout, block_scale in itertools.product(("128x4", "linear"), ("amax6", "four_over_six")):
        if backend.name == "sm90" and layout == "linear" and k % 32:
            continue  # rows of values off 16 bytes
        b, scale_b = weights(tuple(batch), n, k, layout, backend.device, generator)
        for g in (0.02, torch.tensor([0.003], device=backend.device)):
            options = {"global_scale": g, "scale_layout": layout, "block_scale": block_scale, "backend": backend.name}
            options |= {"alpha": 0.37, "bias": torch.randn(n, generator=generator).to(backend.device)}
            assert same(nvfp4.quantize_gemm(a, b, scale_b, **options), by_two(a, b, scale_b, **options))


def numbers_of(dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Rows of zeros, tiny and huge values, infinities, NaN, and random bits."""
    bits = torch.randint(0, 256, (8, 1056 * dtype.itemsize), dtype=torch.uint8, generator=generator)
    a = bits.view(dtype).clone()
    a[:6] = torch.where(a[:6].isfinite(), a[:6], 0)
    a[0, :32] = 0
    a[1, 5], a[2, 40], a[3, 100] = torch.inf, -torch.inf, torch.nan
    a[4, ::3] = -0.0
    a[5] = a[5] * 1e-4
    return a


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kind_of_number(backend: Backend, dtype: torch.dtype, generator: torch.Generator) -> None:
    a = numbers_of(dtype, generator).to(backend.device)
    b, scale_b = weights((), 72, 1056, "128x4", backend.device, generator)
    for g in (1.0, 1e-4, 2.0**-50, 2.0**50, 1e-38):
        options = {"global_scale": g, "backend": backend.name, "out_dtype": torch.float32}
        for rows in (a, a.repeat(3, 1), *a.split(1)):  # one row or more than 16 may have kernels of their own
            got, want = nvfp4.quantize_gemm(rows, b, scale_b, **options), by_two(rows, b, scale_b, **options)
            assert torch.equal(got.isnan(), want.isnan())
            assert same(got.nan_to_num(7.0, 8.0, 9.0), want.nan_to_num(7.0, 8.0, 9.0)), g


@pytest.mark.parametrize("value", [0.0, -0.5, float("inf"), float("nan")])
def test_scales_that_no_check_sees(backend: Backend, value: float, generator: torch.Generator) -> None:
    """On a GPU the host does not read a scale in device memory: its bits lead to those of two calls."""
    if backend.device == "cpu":
        pytest.skip("the host reads it")
    b, scale_b = weights((), 72, 1056, "128x4", backend.device, generator)
    for m in (1, 8, 24):
        a = torch.randn(m, 1056, generator=generator).bfloat16().to(backend.device)
        options = {"global_scale": torch.tensor([value], device=backend.device), "backend": backend.name}
        got, want = nvfp4.quantize_gemm(a, b, scale_b, **options), by_two(a, b, scale_b, **options)
        assert torch.equal(got.isnan(), want.isnan()) and same(got.nan_to_num(7.0), want.nan_to_num(7.0))


def test_strided_rows_and_results(backend: Backend, generator: torch.Generator) -> None:
    """Rows of a any distance apart, aligned or not; an `out` inside a larger tensor; beta * c in place."""
    memory = torch.randn(25, 1104, generator=generator).half().to(backend.device)
    b, scale_b = weights((), 72, 1056, "128x4", backend.device, generator)
    for begin, m in itertools.product((0, 8, 3), (8, 24)):
        a = memory[:m, begin : begin + 1056]
        options = {"global_scale": 0.01, "backend": backend.name, "batch_invariant": True, "constant_b": True}
        want = by_two(a, b, scale_b, **options)
        wide = torch.full((m, 80), torch.nan, dtype=torch.float16, device=backend.device)
        assert nvfp4.quantize_gemm(a, b, scale_b, out=wide[:, :72], **options) is not None
        assert same(wide[:, :72], want) and wide[:, 72:].isnan().all()
        base = torch.randn(m, 72, generator=generator).half().to(backend.device)
        want = by_two(a, b, scale_b, c=base, beta=0.5, **options)
        assert same(nvfp4.quantize_gemm(a, b, scale_b, c=base, beta=0.5, out=base, **options), want)
        assert same(base, want)


def test_empty(backend: Backend) -> None:
    """No rows, no columns; and no K, where C is the bias."""
    dtype, none = torch.float16, torch.zeros(0, dtype=torch.uint8, device=backend.device)
    block = torch.full((512,), 0x38, dtype=torch.uint8, device=backend.device)
    for m, n, k, scales in ((0, 3, 32, block), (3, 0, 32, none), (3, 4, 0, none)):
        a = torch.ones(m, k, dtype=dtype, device=backend.device)
        b = torch.zeros(n, k // 2, dtype=torch.uint8, device=backend.device)
        bias = torch.arange(n, dtype=dtype, device=backend.device)
        out = nvfp4.quantize_gemm(a, b, scales, bias=bias, backend=backend.name)
        assert out.shape == (m, n) and out.dtype == dtype and (out == bias).all()


def test_error_messages(operands: list[torch.Tensor]) -> None:
    _, b, _, scale_b = operands
    n, k = b.shape[0], b.shape[1] * 2
    a, out = torch.ones(3, k), torch.full((3, n), torch.nan)
    call = nvfp4.quantize_gemm
    calls = {
        "a: has 1 dimensions; must have 2 ([M, K]) or 3 ([L, M, K])": lambda: call(a[0], b, scale_b, out=out),
        "a: dtype is uint8; must be float16, bfloat16 or float32": lambda: call(b, b, scale_b, out=out),
        "a: K is 40; must be a multiple of 16": lambda: call(torch.ones(3, 40), b, scale_b, out=out),
        f"b: K is {k} but a has K = 16": lambda: call(a[:, :16], b, scale_b, out=out),
        "a: is missing; must be a tensor": lambda: call(None, b, scale_b, out=out),  # type: ignore[arg-type]
        "scale_b: is missing; must be a tensor": lambda: call(a, b, None, out=out),  # type: ignore[arg-type]
        "global_scale: is 0; must be positive and finite": lambda: call(a, b, scale_b, global_scale=0.0, out=out),
        "global_scale: is nan; must be positive and finite": lambda: call(
            a, b, scale_b, global_scale=torch.tensor([torch.nan]), out=out
        ),
        "global_scale: has 3 elements; must have 1": lambda: call(
            a, b, scale_b, global_scale=torch.ones(3, 1), out=out
        ),
        "scale_layout: is 'x'; must be '128x4' or 'linear'": lambda: call(a, b, scale_b, scale_layout="x", out=out),
        "block_scale: is 'x'; must be 'amax6', 'four_over_six' or 'search'": lambda: call(
            a, b, scale_b, block_scale="x", out=out
        ),
        "beta: is 1 but c is missing": lambda: call(a, b, scale_b, beta=1.0, out=out),
        f"out: is 3 x {n + 1}; must be M x N = 3 x {n}": lambda: call(a, b, scale_b, out=torch.ones(3, n + 1)),
        "constant_b: is of type int; must be True or False": lambda: call(a, b, scale_b, constant_b=1),  # type: ignore[arg-type]
    }
    for message, rejected in calls.items():
        with pytest.raises(nvfp4.Error) as error:
            rejected()
        assert str(error.value) == message
    assert out.isnan().all()
    memory = torch.full((3, k), torch.nan)
    with pytest.raises(nvfp4.Error, match="^out: shares memory with a"):
        call(memory, b, scale_b, out=memory[:, :n])


def test_compiled(operands: list[torch.Tensor]) -> None:
    """torch.compile traces one operator, with sizes that are known and with symbolic ones."""
    _, b, _, scale_b = operands

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def layer(a: torch.Tensor) -> torch.Tensor:
        return nvfp4.quantize_gemm(a, b, scale_b, global_scale=0.5, alpha=2.0)

    for m in (3, 8):
        a = torch.randn(m, b.shape[1] * 2).bfloat16()
        assert same(layer(a), nvfp4.quantize_gemm(a, b, scale_b, global_scale=0.5, alpha=2.0))


# ---- which kernels run ----

CALL = """
    import torch
    def layer(m, n=4096, k=4096, dtype=torch.bfloat16, at=0, l=None, layout="128x4", **options):
        batch = () if l is None else (l,)
        a = torch.zeros(*batch, m, k + 8, dtype=dtype)[..., at : at + k]
        b = torch.zeros(*batch, n, k // 2, dtype=torch.uint8)
        columns = k // 16 if layout == "linear" else -(-k // 64) * 4
        scale = torch.zeros(*batch, n if layout == "linear" else -(-n // 128) * 128, columns, dtype=torch.uint8)
        nvfp4.quantize_gemm(a, b, scale, scale_layout=layout, **options)
"""
ONE: list[str | None] = ["nvfp4_sm90_gemv_quantize_bf16_1"]
needs_gpu_code = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")


def launched(calls: Iterable[str], fake_driver: Path, log: Path, **variables: str) -> list[str]:
    """The kernels of calls in one process."""
    rows = launches("\n    ".join([CALL.strip(), *calls]), fake_driver, log, **variables)
    return [row[0] for row in rows if row[0].startswith("nvfp4_")]


@needs_gpu_code
def test_one_row_is_one_launch(fake_driver: Path, tmp_path: Path) -> None:
    """The kernel takes 16-bit numbers on 16 bytes, where sm90_gemv_1 is the plan, A is not too long and no SM quantizes
    it twice."""
    calls: dict[str, list[str | None]] = {
        "layer(1)": ONE,
        "layer(1, k=32768)": ONE,
        "layer(1, l=3)": ONE,
        "layer(1, dtype=torch.float16)": ["nvfp4_sm90_gemv_quantize_fp16_1"],
        "layer(1, at=8)": ONE,
        "layer(1, k=32768 + 512)": ["nvfp4_quantize_bf16", "nvfp4_sm90_gemv_1"],
        "layer(1, l=200)": ["nvfp4_quantize_bf16", "nvfp4_sm90_gemv_1"],
        "layer(1, n=4128, k=4128 + 16)": ["nvfp4_quantize_bf16", None],
        "layer(1, at=1)": ["nvfp4_quantize_bf16", "nvfp4_sm90_gemv_1"],
        "layer(1, dtype=torch.float32)": ["nvfp4_quantize_fp32", "nvfp4_sm90_gemv_1"],
        "layer(1, block_scale='four_over_six')": ["nvfp4_four_over_six_bf16", "nvfp4_sm90_gemv_1"],
        "layer(1, layout='linear')": ["nvfp4_quantize_bf16", None],
        "layer(8)": ["nvfp4_quantize_bf16", None],
    }
    check_kernels(calls, fake_driver, tmp_path / "log")


def check_kernels(calls: dict[str, list[str | None]], fake_driver: Path, log: Path) -> None:
    """Whether each call launches the kernels of these names; None: any."""
    found = launched(calls, fake_driver, log, FAKE_CC="90", NVFP4_BACKEND="sm90")
    for call, names in calls.items():
        kernels, found = found[: len(names)], found[len(names) :]
        assert len(kernels) == len(names), call
        assert all(name in (None, kernel) for kernel, name in zip(kernels, names, strict=True)), (call, kernels)
    assert not found


@needs_gpu_code
def test_a_pre_pass_quantizes(fake_driver: Path, tmp_path: Path) -> None:
    """The pre-pass of a product on Hopper quantizes an A of 16-bit numbers on 16 bytes, also for prefill, unless the
    kernel dequantizes a part of A itself."""
    quantized: list[str | None] = ["nvfp4_sm90_fake_quantize_bf16", None]
    calls: dict[str, list[str | None]] = {
        "layer(128)": quantized,
        "layer(128, l=3)": quantized,
        "layer(128, at=8)": quantized,
        "layer(128, dtype=torch.float16)": ["nvfp4_sm90_fake_quantize_fp16", None],
        "layer(128, k=4096 + 16)": quantized,
        "layer(4096, n=28672)": ["nvfp4_sm90_fake_quantize_bf16", "nvfp4_sm90_prefill_mixed"],
        "layer(128, at=1)": ["nvfp4_quantize_bf16", "nvfp4_sm90_dequant", None],
        "layer(128, dtype=torch.float32)": ["nvfp4_quantize_fp32", "nvfp4_sm90_dequant", None],
        "layer(128, block_scale='four_over_six')": ["nvfp4_four_over_six_bf16", "nvfp4_sm90_dequant", None],
        "layer(4096)": ["nvfp4_quantize_bf16", "nvfp4_sm90_dequant", "nvfp4_sm90_prefill_divided"],
    }
    check_kernels(calls, fake_driver, tmp_path / "log")


@needs_gpu_code
def test_info_shows_what_runs(fake_driver: Path) -> None:
    """A quantizer of its own needs memory for A, and is not in the product's plan."""
    code = """
        for m, dtype in ((1, "bfloat16"), (1, "float16"), (1, "float32"), (16, "bfloat16")):
            plan = nvfp4.info(m, 4096, 4096, a_dtype=dtype, device=0, backend="sm90", operation="quantize_gemm")["plan"]
            product = nvfp4.info(m, 4096, 4096, device=0, backend="sm90")["plan"]
            print(plan["kernel"], plan["fused"], plan["workspace"] - product["workspace"], product["fused"])
    """
    assert run(code, fake_driver, FAKE_CC="90").splitlines() == [
        "nvfp4_sm90_gemv_quantize_bf16_1 True 0 False",
        "nvfp4_sm90_gemv_quantize_fp16_1 True 0 False",
        f"nvfp4_sm90_gemv_1 False {2048 + 128 * 256} False",
        f"nvfp4_sm90_units_16 False {16 * 2048 + 128 * 256} False",
    ]


@needs_gpu_code
def test_other_gpus_launch_two(fake_driver: Path, tmp_path: Path) -> None:
    for capability, backend in (("80", "sm80"), ("90", "sm80"), ("100", "sm100"), ("120", "sm120")):
        log = tmp_path / f"{capability} {backend}"
        found = launched(["layer(1)"], fake_driver, log, FAKE_CC=capability, NVFP4_BACKEND=backend)
        assert found[0] == "nvfp4_quantize_bf16" and found[1].startswith(f"nvfp4_{backend}_")
