"""rms_norm_quantize and silu_mul_quantize, bit for bit against the definition in reference.py and against fp64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from conftest import FULL, Backend
from guarded_buffers import Guarded

import nvfp4
from nvfp4 import reference

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
EPS = 1e-6
# Rows of one warp to a CTA of eight; of more than 8192 values some are loaded twice.
SHAPES = [(1, 16), (3, 512), (2, 5, 528), (130, 1040), (2, 3, 4112), (2, 8208)]


def equal(got: Any, expected: Any) -> bool:
    return all(
        torch.equal(a.cpu().view(torch.uint8).flatten(), b.view(torch.uint8).flatten())
        for a, b in zip(got, expected, strict=True)
    )


def norm(
    x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None, device: str, **others: Any
) -> tuple[bool, torch.Tensor | None]:
    """Whether bytes and the residual are those of the definition, and the new residual."""
    mine = None if residual is None else residual.to(device, copy=True)
    theirs = None if residual is None else residual.clone()
    got = nvfp4.rms_norm_quantize(x.to(device), weight.to(device), EPS, residual=mine, **others)
    same = equal(got, reference.rms_norm_quantize(x, weight, EPS, residual=theirs, **others))
    if residual is not None:
        same &= reference.compare(mine.cpu(), theirs, exact=True)[0]
    return same, mine


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm(backend: Backend, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> None:
    x = (torch.randn(shape, generator=generator) * 10 ** torch.randn(*shape[:-1], 1, generator=generator)).to(dtype)
    residual = torch.randn(shape, generator=generator).to(dtype)
    weight = torch.randn(shape[-1], generator=generator)
    assert norm(x, weight, residual, backend.device, scale_layout="linear", global_scale=0.01)[0], "linear"
    assert norm(x, weight.to(dtype), None, backend.device)[0]
    assert norm(x, weight.to(dtype), residual, backend.device, round_steps=True, global_scale=0.01)[0], "rounded"
    assert norm(x, weight, None, backend.device, round_steps=True)[0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_mul(backend: Backend, dtype: torch.dtype, generator: torch.Generator) -> None:
    for shape, layout in (((1, 32), "128x4"), ((3, 96), "linear"), ((2, 130, 160), "128x4"), ((5, 2080), "linear")):
        x = torch.randn(shape, generator=generator) * 10 ** torch.randn(*shape[:-1], 1, generator=generator)
        for g in (1.0, 0.003, 2.0**-50):
            got = nvfp4.silu_mul_quantize(x.to(dtype).to(backend.device), global_scale=g, scale_layout=layout)
            assert equal(got, reference.silu_mul_quantize(x.to(dtype), global_scale=g, scale_layout=layout))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kind_of_number(backend: Backend, dtype: torch.dtype, generator: torch.Generator) -> None:
    """Random bits: NaN, infinities, sums of squares that overflow or vanish."""
    bits = torch.randint(0, 256, (40, 160 * dtype.itemsize), dtype=torch.uint8, generator=generator)
    x = bits.view(dtype)
    x[:8] = torch.where(x[:8].isfinite(), x[:8], 0)
    x[8] = 0
    x[9] = 1e-30
    weight = torch.randn(160, generator=generator)
    for g in (1.0, 1e-4, 2.0**50):
        for residual, round_steps in ((None, True), (None, False), (x.flip(0), True), (x.flip(0), False)):
            assert norm(x, weight, residual, backend.device, global_scale=g, round_steps=round_steps)[0]
        got = nvfp4.silu_mul_quantize(x.to(backend.device), global_scale=g)
        assert equal(got, reference.silu_mul_quantize(x, global_scale=g))


def test_the_definition_is_rms_norm_and_silu(generator: torch.Generator) -> None:
    """In fp64: the ulp of silu that exponential.h promises; half an ulp for each rounding of a norm and of its sum."""
    x = torch.randn(7, 8192, generator=generator) * 20
    x[0] = torch.linspace(-89, 89, 8192)
    exact = torch.nn.functional.silu(x.double())
    ulp = torch.finfo(torch.float32).eps * exact.abs()
    assert ((reference.silu(x).double() - exact).abs() <= (4 + x.abs() / 3) * ulp + 4e-36).all()
    weight = torch.randn(8192, generator=generator)
    exact = torch.nn.functional.rms_norm(x.double(), (8192,), weight.double(), EPS)
    got = reference.rms_norm(x, weight, EPS).double()
    assert ((got - exact).abs() <= (16 + 8 + 6) / 2 * torch.finfo(torch.float32).eps * exact.abs() + 1e-40).all()


@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_rounded_steps_are_those_of_torch(backend: Backend, dtype: torch.dtype, generator: torch.Generator) -> None:
    """In integers, whose squares have an exact mean, the bytes of a model's steps in torch: the sum with the residual,
    the norm, the product with the weight; silu and the product with up."""
    k = 512
    x, residual = (torch.randint(-7, 8, (40, k), generator=generator).to(dtype) for _ in range(2))
    weight = torch.randn(k, generator=generator).to(dtype)
    h = x + residual
    factor = torch.rsqrt(h.float().square().mean(-1, keepdim=True))
    exact = 1 / h.double().square().mean(-1, keepdim=True).sqrt().float()  # of two roundings, as cpu/fused.c has it
    assert (factor == exact).float().mean() > 0.5
    expected = reference.quantize(weight * (h.float() * exact).to(dtype), global_scale=0.01)
    how = {"global_scale": 0.01, "round_steps": True}
    mine = residual.to(backend.device)
    got = nvfp4.rms_norm_quantize(x.to(backend.device), weight.to(backend.device), 0.0, residual=mine, **how)
    assert torch.equal(mine.cpu(), h) and equal(got, expected)
    once = nvfp4.rms_norm_quantize(h.to(backend.device), weight.to(backend.device), 0.0, global_scale=0.01)
    assert not equal(once, expected)
    gate, up = (torch.randn(40, k, generator=generator).to(dtype) for _ in range(2))
    gate = torch.where(reference.silu(gate.float()).to(dtype) == torch.nn.functional.silu(gate), gate, 0)
    assert (gate == 0).float().mean() < 0.01  # 4 ulp of fp32 seldom change a rounding to 16 bits
    product = torch.nn.functional.silu(gate) * up
    got = nvfp4.gated_quantize(gate.to(backend.device), up.to(backend.device), **how)
    assert equal(got, reference.quantize(product, global_scale=0.01))
    once = nvfp4.gated_quantize(gate.to(backend.device), up.to(backend.device), global_scale=0.01)
    assert not equal(once, reference.quantize(product, global_scale=0.01))


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_around_is_left_alone(backend: Backend, dtype: torch.dtype, generator: torch.Generator) -> None:
    """Rows with a pitch, values aligned to themselves alone, given outputs; poison around all of them."""
    values = torch.randn(5, 96, generator=generator).to(dtype)
    weight = torch.randn(96, generator=generator).to(dtype)

    def guarded(t: torch.Tensor, **pitch: int) -> Guarded:
        return Guarded(t.shape, t.dtype, backend.device, generator=generator, values=t, **pitch)

    pitch = 96 * dtype.itemsize + 16
    x, residual, w = guarded(values, pitch=pitch), guarded(values.flip(0), pitch=pitch), guarded(weight)
    data = guarded(torch.full((5, 48), 255, dtype=torch.uint8))
    scale = guarded(torch.full((128, 8), 255, dtype=torch.uint8))
    expected_residual = values.flip(0).clone()
    out = nvfp4.rms_norm_quantize(
        x.tensor, w.tensor, EPS, residual=residual.tensor, out=(data.tensor, scale.tensor), global_scale=0.1
    )
    assert out[0] is data.tensor and out[1] is scale.tensor
    assert equal(out, reference.rms_norm_quantize(values, weight, EPS, residual=expected_residual, global_scale=0.1))
    assert torch.equal(residual.tensor.cpu(), expected_residual)
    assert x.unchanged() and w.unchanged() and all(y.unchanged_around() for y in (residual, data, scale))
    half = guarded(torch.full((5, 24), 255, dtype=torch.uint8))
    linear = guarded(torch.full((5, 3), 255, dtype=torch.uint8))
    out = nvfp4.silu_mul_quantize(x.tensor, out=(half.tensor, linear.tensor), scale_layout="linear")
    assert equal(out, reference.silu_mul_quantize(values, scale_layout="linear"))
    assert x.unchanged() and half.unchanged_around() and linear.unchanged_around()
    for offset in range(1, 16 // dtype.itemsize):
        memory, others = (torch.zeros(600, dtype=dtype).to(backend.device) for _ in range(2))
        for m, t in ((memory, values), (others, values.flip(0))):
            m[offset : offset + 480] = t.flatten().to(backend.device)
        shifted, added = memory[offset : offset + 480].view(5, 96), others[offset : offset + 480].view(5, 96)
        assert equal(nvfp4.silu_mul_quantize(shifted), reference.silu_mul_quantize(values))
        got = nvfp4.rms_norm_quantize(shifted, w.tensor, EPS, residual=added)
        assert equal(got, reference.rms_norm_quantize(values, weight, EPS, residual=values.flip(0).clone()))
        assert torch.equal(added.cpu(), expected_residual)


@pytest.mark.parametrize("shape", [(0, 32), (5, 0), (0, 3, 32), (2, 0, 32)])
def test_nothing_to_do(backend: Backend, shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape, device=backend.device)
    data, scale = nvfp4.rms_norm_quantize(x, torch.zeros(shape[-1], device=backend.device), EPS)
    assert data.shape == (*shape[:-1], shape[-1] // 2) and scale.numel() == 0
    assert nvfp4.silu_mul_quantize(x)[0].shape == (*shape[:-1], shape[-1] // 4)


@pytest.mark.skipif(not FULL, reason="CI_FULL=1 runs it")
def test_many_rows(backend: Backend, generator: torch.Generator) -> None:
    x = torch.randn(70000, 32, generator=generator)
    assert norm(x, torch.ones(32), None, backend.device)[0]
    assert equal(nvfp4.silu_mul_quantize(x.to(backend.device)), reference.silu_mul_quantize(x))


def test_errors() -> None:
    x, w = torch.ones(2, 32), torch.ones(32)
    data, scale = torch.full((2, 16), 255, dtype=torch.uint8), torch.full((2, 2), 255, dtype=torch.uint8)

    def rms(*args: Any, **others: Any) -> Any:
        return nvfp4.rms_norm_quantize(*args, out=(data, scale), scale_layout="linear", **others)

    def silu(*args: Any, **others: Any) -> Any:
        return nvfp4.silu_mul_quantize(*args, out=(data[:, :8], scale[:, :1]), scale_layout="linear", **others)

    calls = {
        "x: is missing; must be a tensor": lambda: rms(None, w, EPS),
        "weight: is missing; must be a tensor": lambda: rms(x, None, EPS),
        "weight: has 16 elements in 1 dimension; must be a vector of length K = 32": lambda: rms(x, w[:16], EPS),
        "weight: stride is 2; must be 1: pass a copy, .contiguous()": lambda: rms(x, torch.ones(64)[::2], EPS),
        "weight: dtype is bfloat16; must be float32 or that of x, float32": lambda: rms(x, w.bfloat16(), EPS),
        "eps: is -1; must be finite and not negative": lambda: rms(x, w, -1),
        "eps: is nan; must be finite and not negative": lambda: rms(x, w, math.nan),
        "eps: is of type str; must be a real number": lambda: rms(x, w, "1"),
        "round_steps: is of type int; must be True or False": lambda: rms(x, w, EPS, round_steps=1),
        "residual: dtype is float16; must be that of x, float32": lambda: rms(x, w, EPS, residual=x.half()),
        "residual: is 1 x 3 x 32; must be as x, 1 x 2 x 32, in 2 dimensions": lambda: rms(
            x, w, EPS, residual=torch.ones(3, 32)
        ),
        "residual: shares memory with x; must not overlap it, it is written": lambda: rms(x, w, EPS, residual=x),
        "residual: rows overlap (strides of 0 and 0 bytes); must not, it is written": lambda: rms(
            x, w, EPS, residual=torch.ones(1, 32).expand(2, 32)
        ),
        "data: shares memory with weight; must not overlap it, it is written": lambda: nvfp4.rms_norm_quantize(
            x, w, EPS, out=(w.view(torch.uint8)[96:].view(2, 16), scale), scale_layout="linear"
        ),
        "scale: shares memory with weight; must not overlap it, it is written": lambda: nvfp4.rms_norm_quantize(
            x, w, EPS, out=(data, w.view(torch.uint8)[:4].view(2, 2)), scale_layout="linear"
        ),
        "global_scale: is 0; must be positive and finite": lambda: rms(x, w, EPS, global_scale=0.0),
        "x: K is 17; must be a multiple of 16": lambda: nvfp4.rms_norm_quantize(x[:, :17].contiguous(), w[:17], EPS),
        "gate_up: has 33 columns; must have 2 K, K a multiple of 16": lambda: silu(torch.ones(2, 33)),
        "gate_up: has 48 columns; must have 2 K, K a multiple of 16": lambda: silu(torch.ones(2, 48)),
        "gate_up: has 1 dimensions; must have 2 ([R, 2 K]) or 3 ([L, R, 2 K])": lambda: silu(w),
        "gate_up: has 1 dimensions; must have 2, or 3 with a leading batch": lambda: nvfp4.silu_mul_quantize(w),
        "gate_up: is missing; must be a tensor": lambda: nvfp4.silu_mul_quantize(None),
        "gate_up: dtype is uint8; must be float16, bfloat16 or float32": lambda: silu(torch.ones(2, 32).byte()),
        "out: is of type int; must be a tuple of data and scale": lambda: nvfp4.silu_mul_quantize(x, out=3),
        "out: has 1 elements; must be a tuple of data and scale": lambda: nvfp4.silu_mul_quantize(x, out=(data,)),
        "data: is 1 x 2 x 16; gate_up needs L x R x K/2 = 1 x 2 x 8 in 2 dimensions": lambda: nvfp4.silu_mul_quantize(
            x, out=(data, scale), scale_layout="linear"
        ),
        "scale_layout: is '4'; must be '128x4' or 'linear'": lambda: nvfp4.silu_mul_quantize(x, scale_layout="4"),
    }
    for message, call in calls.items():
        with pytest.raises(nvfp4.Error) as error:
            call()
        assert str(error.value) == message
    memory = torch.ones(2, 64)
    overlapping = memory.view(torch.uint8).flatten()[320:336].view(2, 8)  # in the last factors
    with pytest.raises(nvfp4.Error, match="^data: shares memory with gate_up; must not overlap it, it is written$"):
        nvfp4.silu_mul_quantize(memory[:, :32], out=(overlapping, scale[:, :1].clone()), scale_layout="linear")
    assert (data == 255).all() and (scale == 255).all() and (x == 1).all() and (w == 1).all()


def test_no_gradient_is_promised() -> None:
    x, w = torch.ones(2, 32, requires_grad=True), torch.ones(32, requires_grad=True)
    for call in (
        lambda: nvfp4.silu_mul_quantize(x),
        lambda: nvfp4.rms_norm_quantize(x, w.detach(), EPS),
        lambda: nvfp4.rms_norm_quantize(x.detach(), w, EPS),
        lambda: nvfp4.rms_norm_quantize(x.detach(), w.detach(), EPS, residual=x),
    ):
        with pytest.raises(nvfp4.Error, match="requires grad"):
            call()


def test_numpy() -> None:
    x, w = torch.randn(3, 64), torch.randn(64)
    r = torch.randn(3, 64).numpy()
    expected = reference.rms_norm_quantize(x, w, EPS, residual=(residual := torch.from_numpy(r).clone()))
    got = nvfp4.rms_norm_quantize(x.numpy(), w.numpy(), EPS, residual=r)
    assert equal((torch.from_numpy(y) for y in got), expected) and torch.equal(torch.from_numpy(r), residual)


def block(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, out: tuple[torch.Tensor, ...]) -> Any:
    """Does a layer's work: the residual is read after it was written, and so is out."""
    x = x + 1
    data, scale = nvfp4.rms_norm_quantize(x, weight, EPS, residual=residual, global_scale=nvfp4.amax_scale(x))
    nvfp4.silu_mul_quantize(residual * 2, out=out, scale_layout="linear")
    return data, scale.view(torch.uint8), residual + 1, out[0] + 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in (3, 5):
        x, weight = torch.randn(rows, 64), torch.randn(64)
        runs = []
        for call in (compiled, block):
            residual = torch.ones(rows, 64)
            out = (torch.zeros(rows, 16, dtype=torch.uint8), torch.zeros(rows, 2, dtype=torch.uint8))
            runs.append([*call(x, residual, weight, out), residual, *out])
        assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
