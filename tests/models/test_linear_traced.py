"""nvfp4.Linear in torch.compile, traces, CUDA graphs, autocast, forward mode, and with meta and fake tensors."""

from __future__ import annotations

import shutil
import warnings

import pytest
import torch
from conftest import FULL, NO_GPU, gpu
from error_bounds import U
from linear_layers import DTYPES, MODES, K, N, exact_layer, same
from torch._subclasses.fake_tensor import FakeTensorMode

import nvfp4


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
@pytest.mark.parametrize(("activations", "static"), [("nvfp4", False), ("nvfp4", True), (None, False)])
def test_compile(activations: str | None, static: bool, compiler: str, device: str, generator: torch.Generator) -> None:
    if compiler == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor needs g++")
    torch._dynamo.reset()
    layer = nvfp4.Linear.from_linear(torch.nn.Linear(K, N), activations, 0.01 if static else None).to(device)
    compiled = torch.compile(layer, fullgraph=True, backend=compiler)
    modes = [torch.no_grad, torch.inference_mode]  # a graph each, which takes inductor seconds
    for rows in (5, 9, 130):
        x = torch.randn(2, rows, K, generator=generator).to(device, torch.bfloat16)
        for mode in modes[: None if compiler == "aot_eager" or FULL else 1]:
            with mode():
                assert same(compiled(x), layer(x))
    if activations is None:
        gradients = []
        for run in (compiled, layer):
            x = torch.ones(3, K, dtype=torch.bfloat16, device=device, requires_grad=True)
            run(x).sum().backward()
            gradients.append(x.grad)
        assert same(*gradients)


@pytest.mark.parametrize(("activations", "static"), [("nvfp4", False), ("nvfp4", True), (None, False)])
def test_cuda_graph(activations: str | None, static: bool, generator: torch.Generator) -> None:
    if not gpu():
        pytest.skip(NO_GPU)
    layer = nvfp4.Linear.from_linear(torch.nn.Linear(K, N), activations, 0.01 if static else None).cuda()
    x = torch.zeros(7, K, dtype=torch.bfloat16, device="cuda")
    with torch.no_grad():
        layer(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(x)
        for _ in range(3):
            x.copy_(torch.randn(7, K, generator=generator))
            graph.replay()
            assert same(y, layer(x))


def within_a_contraction(traced: torch.Tensor, eager: torch.Tensor, bias: torch.Tensor) -> bool:
    """Whether the two differ by no more than s * alpha + bias with one rounding and with two. On a GPU torch.jit fuses
    this multiplication and this addition, which W4A16 leaves to torch for fp32 inputs, into a kernel with an fma. With
    p = s * alpha the results are (p (1 + d1) + bias) (1 + d2) and (p + bias) (1 + d3), where no d exceeds U, so they
    differ by U |p| + 2 U |p + bias| at most, but for terms of U^2. |p| <= |p + bias| + |bias|."""
    bound = U * (3 * eager.double().abs() + bias.double().abs()) * (1 + 8 * U)
    return traced.dtype == eager.dtype and bool(((traced.double() - eager.double()).abs() <= bound).all())


def test_the_bound_of_a_contraction(generator: torch.Generator) -> None:
    """It holds for an fma, also where the sum cancels, and is no more than some units in the last place."""
    sums, bias = torch.randn(2, 100_000, generator=generator)
    alpha = torch.rand((), generator=generator) + 0.5
    bias[::3] = -(sums * alpha)[::3]
    eager = sums * alpha + bias
    fused = (sums.double() * alpha.double() + bias.double()).float()
    assert not torch.equal(eager, fused) and within_a_contraction(fused, eager, bias)
    assert not within_a_contraction(eager * (1 + 2.0**-20), eager, bias)


def test_jit_trace_runs_the_operators(device: str, generator: torch.Generator) -> None:
    """Otherwise a trace has no record of what wrote the result."""
    for activations, static in (("nvfp4", True), ("nvfp4", False), (None, False)):
        layer = exact_layer(generator, activations).to(device)
        if not static:
            layer.input_global_scale = None
            layer.update_alpha()
        for dtype in DTYPES:
            x = torch.randn(3, K, generator=generator).to(device, dtype)
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # deprecated; sizes become constants
                traced = torch.jit.trace(layer, x)
                for rows in (3, 5):
                    y = torch.randn(rows, K, generator=generator).to(device, dtype)
                    if device == "cuda" and activations is None and dtype == torch.float32:
                        assert within_a_contraction(traced(y), layer(y), layer.bias)
                    else:
                        assert same(traced(y), layer(y))
                quantized = torch.jit.trace(lambda x: nvfp4.quantize(x)[0], x)
                assert same(quantized(-x), nvfp4.quantize(-x)[0])


def test_forward_mode_is_rejected_where_it_would_be_0(generator: torch.Generator) -> None:
    x = torch.randn(3, K, generator=generator)
    for activations, dtype in (("nvfp4", torch.float32), ("nvfp4", torch.bfloat16), (None, torch.float16)):
        layer, given = exact_layer(generator, activations), x.to(dtype)
        with pytest.raises(nvfp4.Error, match=r"^x: has a tangent; nvfp4 has no forward-mode derivatives"):
            torch.func.jvp(layer, (given,), (given,))
        with torch.autograd.forward_ad.dual_level():
            assert same(layer(given), layer(given.clone()))
    layer = exact_layer(generator, None)
    layer.bias.zero_()
    y, tangent = torch.func.jvp(layer, (x,), (x,))
    assert torch.allclose(y, tangent)  # without a bias it is linear


@pytest.mark.parametrize("activations", MODES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_casts_the_input(
    dtype: torch.dtype, activations: str | None, device: str, generator: torch.Generator
) -> None:
    layer = nvfp4.Linear.from_linear(torch.nn.Linear(K, N), activations).to(device)
    x = torch.randn(5, K, generator=generator).to(device)
    for given in (x, x.bfloat16(), x.half()):
        with torch.no_grad():
            want = layer(given.to(dtype))
            with torch.autocast(device, dtype):
                assert same(layer(given), want)
                assert layer(given).dtype == torch.nn.Linear(K, N, device=device)(given).dtype
    if activations is None:
        with torch.autocast(device, dtype):
            x.requires_grad_()
            layer(x).sum().backward()
        assert x.grad is not None and x.grad.dtype == torch.float32


@pytest.mark.parametrize("activations", MODES)
def test_meta_tensors(activations: str | None) -> None:
    layer = nvfp4.Linear(K, N, activations=activations, device="meta")
    assert {t.device.type for t in layer.buffers()} == {"meta"}
    y = layer(torch.empty(2, 3, K, dtype=torch.float16, device="meta"))
    assert (y.shape, y.dtype, y.device.type) == ((2, 3, N), torch.float16, "meta")
    linear = torch.nn.Linear(K, N, device="meta")
    assert nvfp4.Linear.from_linear(linear, activations).weight.device.type == "meta"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activations", MODES)
def test_fake_tensors_of_a_gpu(activations: str | None, dtype: torch.dtype) -> None:
    """The GPU that they claim to be on need not exist; weight-only products take another path there."""
    with FakeTensorMode():
        layer = nvfp4.Linear(K, N, activations=activations, device="cuda:0")
        with torch.no_grad():
            y = layer(torch.empty(2, 3, K, dtype=dtype, device="cuda:0"))
    assert (y.shape, y.dtype, str(y.device)) == ((2, 3, N), dtype, "cuda:0")
