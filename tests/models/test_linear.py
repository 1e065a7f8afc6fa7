"""nvfp4.Linear: equal bits where sums are exact, elsewhere the bound of fp32 sums, and gradients."""

from __future__ import annotations

import copy
import math
import re
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from conftest import in_full
from error_bounds import gamma, roundings
from linear_layers import DTYPES, MODES, K, N, dense, exact_layer, expected, integers, same
from torch.utils.checkpoint import checkpoint

import nvfp4
from nvfp4 import reference
from nvfp4.layers.gradient import bf16_parts
from nvfp4.layers.packed import invertible

# ---- numbers ----


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activations", MODES)
def test_exact_sums_give_equal_bits(
    activations: str | None, dtype: torch.dtype, vector: bool, device: str, generator: torch.Generator
) -> None:
    """One rounding: the sums do not fit into 16 bits, and alpha is no power of two."""
    layer = exact_layer(generator, activations, vector=vector)
    x = integers(generator, 50, K)
    want = expected(layer, x, dtype)
    assert reference.sums_are_exact(x, dense(layer))
    twice = layer.alpha * (x.double() @ dense(layer).T).to(dtype).float() + layer.bias
    assert dtype == torch.float32 or not torch.equal(twice.to(dtype), want)  # rounded to 16 bits before alpha
    got = layer.to(device)(x.to(device, dtype))
    assert same(got.cpu(), want)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_random_inputs_stay_within_the_bound(
    dtype: torch.dtype, static: bool, device: str, generator: torch.Generator
) -> None:
    """Against the definition's bytes of x, in fp64: K additions in some order, alpha, bias, and one rounding."""
    linear = torch.nn.Linear(K, N).to(dtype)
    x = torch.randn(33, K, generator=generator).to(dtype)
    amax = x.float().abs().amax()
    g = torch.tensor(0.01) if static else amax / (448 * 6)
    layer = nvfp4.Linear.from_linear(linear, input_global_scale=0.01 if static else None).to(device)
    a = reference.operand(*reference.quantize(x, global_scale=g), "128x4")[0].double()
    w, bias = dense(layer), linear.bias.detach().double()
    alpha = (g * layer.weight_global_scale.cpu()).double()
    exact = alpha * (a @ w.T) + bias
    kernel = "sm80" if device == "cuda" else nvfp4.info()["cpu_kernel"]
    loss = gamma(roundings(kernel, K) + 3) * (alpha * (a.abs() @ w.abs().T) + bias.abs())
    loss += torch.finfo(dtype).eps / 2 * (exact.abs() + loss) + torch.finfo(dtype).smallest_normal
    with torch.no_grad():
        got = layer(x.to(device)).cpu()
    assert got.dtype == dtype
    assert ((got.double() - exact).abs() <= loss).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_weight_only_random_inputs_stay_within_the_bound(
    dtype: torch.dtype, device: str, generator: torch.Generator
) -> None:
    """K products (which round for an fp32 x) and additions in any order, alpha, bias, and one rounding."""
    linear = torch.nn.Linear(K, N).to(dtype)
    layer = nvfp4.Linear.from_linear(linear, activations=None).to(device)
    x = torch.randn(33, K, generator=generator).to(dtype)
    w, bias, alpha = dense(layer), linear.bias.detach().double(), layer.alpha.cpu().double()
    exact = alpha * (x.double() @ w.T) + bias
    loss = gamma(2 * K + 3) * (alpha * (x.double().abs() @ w.abs().T) + bias.abs())
    loss += torch.finfo(dtype).eps / 2 * (exact.abs() + loss) + torch.finfo(dtype).smallest_normal
    with torch.no_grad():
        got = layer(x.to(device)).cpu()
    assert ((got.double() - exact).abs() <= loss).all()


@pytest.mark.parametrize("activations", MODES)
def test_any_leading_shape(activations: str | None, device: str, generator: torch.Generator) -> None:
    layer = exact_layer(generator, activations)
    x = integers(generator, 4, 3, 5, K)
    want = expected(layer, x.view(60, K), torch.float32).view(4, 3, 5, N)
    layer, x = layer.to(device), x.to(device)
    assert same(layer(x).cpu(), want)
    assert same(layer(x[1, 2, 3]).cpu(), want[1, 2, 3])
    assert same(layer(x.transpose(0, 2)).cpu(), want.transpose(0, 2).contiguous())
    assert same(layer(x[:, :1].expand(4, 3, 5, K)).cpu(), want[:, :1].expand(4, 3, 5, N).contiguous())
    columns = x.view(60, K).t().contiguous().t()  # rows that are not contiguous
    assert same(layer(columns).cpu(), want.view(60, N))
    for shape in ((0, K), (2, 0, K), (0, 3, K)):
        assert layer(x.new_empty(shape)).shape == (*shape[:-1], N)


def test_no_outputs(device: str) -> None:
    for activations in MODES:
        assert nvfp4.Linear(32, 0, activations=activations, device=device)(torch.ones(3, 32, device=device)).shape == (
            3,
            0,
        )


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_that_is_not_finite_leaves_the_others(value: float, device: str, generator: torch.Generator) -> None:
    """A dynamic global scale of NaN would make every row NaN, one of infinity would be rejected."""
    layer = nvfp4.Linear.from_linear(torch.nn.Linear(K, N)).to(device)
    x = torch.randn(5, K, generator=generator)
    x[3, 7] = value
    y = layer(x.to(device)).cpu()
    others = [0, 1, 2, 4]
    assert y[others].isfinite().all() and y[3].isnan().all() == math.isnan(value)
    x[3, 7] = 0
    assert (y[others] - layer(x.to(device)).cpu()[others]).norm() < 0.3 * y[others].norm()
    assert same(layer(torch.zeros(2, K, device=device)), layer.bias.expand(2, N).contiguous())


@pytest.mark.parametrize("dtype", DTYPES)
def test_from_linear_quantizes_by_the_largest_weight(dtype: torch.dtype, device: str) -> None:
    linear = torch.nn.Linear(K, N).to(device, dtype)
    layer = nvfp4.Linear.from_linear(linear)
    scale = linear.weight.detach().float().abs().max().cpu() / (448 * 6)  # a GPU multiplies by the reciprocal of 2688
    scale = (1 / (1 / scale)).to(device)  # as formats of divisors store it
    data, blocks = nvfp4.quantize(linear.weight.detach(), global_scale=scale)
    assert same(layer.weight, data) and same(layer.weight_scale.view(torch.uint8), blocks.view(torch.uint8))
    assert same(layer.weight_global_scale, scale) and same(layer.alpha, scale)
    assert layer.bias.data_ptr() == linear.bias.data_ptr() and not layer.bias.requires_grad
    assert not list(layer.parameters())
    zero = torch.nn.Linear(K, N, bias=False)
    torch.nn.init.zeros_(zero.weight)
    layer = nvfp4.Linear.from_linear(zero)
    assert layer.weight_global_scale == 1 and not layer(torch.ones(1, K)).any()


@pytest.mark.parametrize("static", [False, True])
def test_four_over_six_is_of_weights_and_inputs(static: bool, device: str, generator: torch.Generator) -> None:
    """Each with the global scale that leaves room for the larger block scales."""
    linear, x = torch.nn.Linear(K, N, bias=False).to(device), torch.randn(9, K, generator=generator).to(device)
    how = {"block_scale": "four_over_six"}
    given = nvfp4.amax_scale(x, **how)
    layer = nvfp4.Linear.from_linear(linear, "nvfp4", given if static else None, **how)
    weight = linear.weight.detach()
    scale = invertible(nvfp4.amax_scale(weight, **how).reshape(()))
    data, blocks = nvfp4.quantize(weight, global_scale=scale, **how)
    assert same(layer.weight, data) and same(layer.weight_scale.view(torch.uint8), blocks.view(torch.uint8))
    assert same(layer.weight_global_scale, scale)
    a, scale_a = nvfp4.quantize(x, global_scale=given, **how)
    want = nvfp4.gemm(a, data, scale_a, blocks, alpha=scale * given, out_dtype=torch.float32)
    assert same(layer(x), want) and not torch.equal(nvfp4.Linear.from_packed(layer.packed())(x), want)
    assert same(nvfp4.Linear.fuse([layer, layer])(x), torch.cat([want, want], -1))
    assert repr(copy.deepcopy(layer)).endswith("block_scale='four_over_six')")


@pytest.mark.parametrize("activations", MODES)
def test_fused_layers_are_their_parts(activations: str | None, device: str, generator: torch.Generator) -> None:
    """Sizes that are no multiple of 128 rows, so that no part's scales begin a tile; each keeps its global scale."""
    parts = [exact_layer(generator, activations, rows) for rows in (130, 37, 5)]
    x = integers(generator, 9, K).to(device)
    want = torch.cat([part.to(device)(x) for part in parts], -1)
    fused = nvfp4.Linear.fuse(parts)
    assert fused.alpha.shape == (172,) and len(set(fused.alpha.tolist())) == 3
    assert same(fused(x), want)
    again = nvfp4.Linear.fuse([fused, parts[0]])
    assert same(again(x), torch.cat([want, parts[0](x)], -1))
    twice = nvfp4.Linear.fuse([parts[0], parts[0]])
    assert twice.alpha.ndim == 0 and same(twice(x), torch.cat([parts[0](x)] * 2, -1))


# ---- gradients ----


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_of_the_input(dtype: torch.dtype, vector: bool, device: str, generator: torch.Generator) -> None:
    layer = exact_layer(generator, None, vector=vector)
    if vector:  # lies along the sums: exact as a power of two
        layer.weight_global_scale = 2.0 ** torch.randint(-2, 3, (N,), generator=generator)
        layer.update_alpha()
    dy = torch.randint(-4, 5, (2, 3, N), generator=generator).float()
    scaled = dy.double() * (layer.alpha.double() if vector else 1)
    want = (scaled @ dense(layer)).float() * (1 if vector else layer.alpha)
    layer, x = layer.to(device), integers(generator, 2, 3, K).to(device, dtype).requires_grad_()
    layer(x).backward(dy.to(device, dtype))
    assert same(x.grad.cpu(), want.to(dtype))


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_random_gradients_stay_within_the_bound(
    dtype: torch.dtype, vector: bool, device: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum of N exact products, and beyond it five roundings at most: alpha, and of three parts the additions. A whole
    weight is not dequantized."""
    layer = nvfp4.Linear.from_linear(torch.nn.Linear(K, 1100), activations=None)
    if vector:
        layer.weight_global_scale = layer.weight_global_scale * (torch.rand(1100, generator=generator) + 0.5)
        layer.update_alpha()
    dy = torch.randn(9, 1100, generator=generator).to(dtype)
    scaled, w = dy.double() * layer.alpha.double(), dense(layer)
    exact = scaled @ w
    kernel = "sm80" if device == "cuda" else nvfp4.info()["cpu_kernel"]
    loss = gamma(roundings(kernel, 1100, True) + 5) * (scaled.abs() @ w.abs())
    loss += torch.finfo(dtype).eps / 2 * (exact.abs() + loss) + torch.finfo(dtype).smallest_normal
    layer, x = layer.to(device), torch.randn(9, K, generator=generator).to(device, dtype).requires_grad_()
    y = layer(x)
    monkeypatch.delattr(nvfp4._api, "dequantize")
    y.backward(dy.to(device))
    assert ((x.grad.cpu().double() - exact).abs() <= loss).all()


def test_parts_of_a_gradient_are_exact(generator: torch.Generator) -> None:
    """All significant bits, of large and small numbers; what is not finite stays so."""
    bits = torch.randint(-(2**31), 2**31, (4096,), generator=generator).int()
    x = bits.view(torch.float32)
    x = x[x.isfinite() & ((x == 0) | (x.abs() > 2.0**-100))]
    parts = bf16_parts(x)
    assert parts.dtype == torch.bfloat16 and torch.equal(parts.double().sum(0), x.double())
    special = torch.tensor([math.inf, -math.inf, math.nan, 3.4028234e38, 0.0])
    assert same(bf16_parts(special).float().sum(0)[[0, 1, 3, 4]], special[[0, 1, 3, 4]])
    odd = torch.tensor([0x7F800001, 0x7FFFFFFF], dtype=torch.int32).view(torch.float32)  # NaN in the low bits alone
    assert bf16_parts(torch.cat([special[2:3], odd])).float().sum(0).isnan().all()


@in_full
def test_a_compiled_gradient_keeps_its_parts(generator: torch.Generator) -> None:
    if shutil.which("g++") is None:
        pytest.skip("inductor needs g++")
    torch._dynamo.reset()
    layer = nvfp4.Linear.from_linear(torch.nn.Linear(K, 64), activations=None)
    layer.weight_global_scale = layer.weight_global_scale * (torch.rand(64, generator=generator) + 0.5)
    layer.update_alpha()
    dy, gradients = torch.randn(5, 64, generator=generator), []
    for run in (torch.compile(layer, fullgraph=True), layer):
        x = torch.ones(5, K, requires_grad=True)
        run(x).backward(dy)
        gradients.append(x.grad)
    assert same(*gradients)


def test_adapters_train(generator: torch.Generator) -> None:
    """Low-rank factors (LoRA) on two frozen layers; those of the first get their gradient through the second."""
    layers = [nvfp4.Linear.from_linear(torch.nn.Linear(K, K), activations=None) for _ in range(2)]
    factors = [torch.randn(*shape, generator=generator) / 8 for shape in ((K, 4), (4, K)) * 2]
    factors = [factor.bfloat16().requires_grad_() for factor in factors]
    x, target = (torch.randn(16, K, generator=generator).bfloat16() for _ in range(2))
    optimizer, losses = torch.optim.Adam(factors, lr=0.02), []
    for _ in range(10):
        y = x
        for layer, down, up in zip(layers, factors[::2], factors[1::2]):
            y = layer(y) + y @ down @ up
        loss = (y - target).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        assert all(factor.grad.float().norm() > 0 for factor in factors)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_backward_keeps_only_packed_bytes(generator: torch.Generator) -> None:
    layer = exact_layer(generator, None)
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        layer(torch.ones(2, K, requires_grad=True))
    assert saved and sum(t.nbytes for t in saved) <= sum(t.nbytes for t in layer.buffers())


NO_GRADIENT = "activations: is 'nvfp4' (W4A4), which has no gradient; must be activations=None"


@pytest.mark.parametrize("static", [False, True])
def test_w4a4_runs_forward_with_gradients_recorded_and_its_backward_raises(
    static: bool, generator: torch.Generator
) -> None:
    layer = nvfp4.Linear.from_linear(torch.nn.Linear(K, N), "nvfp4", 0.01 if static else None)
    x = torch.randn(2, 3, K, generator=generator)
    with torch.no_grad():
        expected = layer(x)
        assert not layer(x.clone().requires_grad_()).requires_grad
    recorded = layer(x.clone().requires_grad_())
    assert same(recorded.detach(), expected) and recorded.requires_grad
    with pytest.raises(nvfp4.Error, match=f"^{re.escape(NO_GRADIENT)}"):
        recorded.sum().backward()
    # A layer behind one that trains, whose input requires a gradient, and one before it, whose input does not.
    behind = torch.nn.Linear(N, 4)
    behind(layer(x)).sum().backward()
    assert behind.weight.grad is not None
    checkpointed = checkpoint(layer, x.clone().requires_grad_(), use_reentrant=False)
    assert same(checkpointed.detach(), expected)
    assert layer(x[:, :0].clone().requires_grad_()).shape == (2, 0, N)


@pytest.mark.parametrize("static", [False, True])
def test_transformed_w4a4_rejects_an_input_that_requires_grad(static: bool) -> None:
    layer = nvfp4.Linear.from_linear(torch.nn.Linear(K, N), "nvfp4", 0.01 if static else None)
    x = torch.ones(2, K)
    torch._dynamo.reset()
    runs = {
        "compile": lambda: torch.compile(layer, backend="aot_eager")(x.clone().requires_grad_()),
        "export": lambda: torch.export.export(layer, (x.clone().requires_grad_(),)),
        "trace": lambda: torch.jit.trace(layer, x.clone().requires_grad_()),
        "grad": lambda: torch.func.grad(lambda x: layer(x).sum())(x),
        "vjp": lambda: torch.func.vjp(layer, x),
    }
    for name, run in runs.items():
        with warnings.catch_warnings(), pytest.raises(nvfp4.Error, match="^x: requires grad") as error:
            warnings.simplefilter("ignore")  # of torch.jit, which is deprecated
            run()
        assert "torch.no_grad()" in str(error.value) and "activations=None" in str(error.value), name
    with pytest.raises(nvfp4.Error, match="^x: has a tangent"):
        torch.func.jvp(layer, (x,), (x,))


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch has no torch.distributed")
def test_distributed_data_parallel_without_broadcasting_buffers(tmp_path: Path) -> None:
    """gloo cannot broadcast scales in float8, and need not: docs/adapters.md has the argument."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = torch.nn.Sequential(torch.nn.Linear(8, K), nvfp4.Linear.from_linear(torch.nn.Linear(K, N), None))
        with pytest.raises(RuntimeError, match="Invalid scalar type"):
            torch.nn.parallel.DistributedDataParallel(model)
        run = torch.nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
        run(torch.ones(2, 8)).sum().backward()
        assert model[0].weight.grad is not None
    finally:
        torch.distributed.destroy_process_group()
