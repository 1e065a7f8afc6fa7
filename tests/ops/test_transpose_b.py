"""gemm(..., transpose_b=False), A . B: its rules, fakes, plans and orders of additions. test_guarded_calls.py and
test_generated_calls.py compare its results with the definition, test_linear.py the gradients of a layer."""

from __future__ import annotations

import re
from typing import Any

import numpy
import pytest
import torch
from backend_table import takes
from conftest import Backend, in_full, one_in
from error_bounds import U, gamma, roundings
from torch._subclasses.fake_tensor import FakeTensorMode

import nvfp4
from nvfp4 import _C, reference

M, N, K = 5, 7, 64


def operands(generator: torch.Generator, m: int = M, n: int = N, k: int = K, finite: bool = False) -> dict[str, Any]:
    """dY [m, n] and the packed weight, 128x4."""
    scales = (0x20, 0x58) if finite else (0x00, 0x30)
    scale = torch.randint(*scales, (n, k // 16), dtype=torch.uint8, generator=generator)
    return {
        "a": torch.randn(m, n, generator=generator).bfloat16(),
        "b": torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, generator=generator),
        "scale_a": None,
        "scale_b": reference.swizzle(scale, padding=reference.E4M3_NAN),
        "transpose_b": False,
    }


BAD: dict[str, dict[str, Any]] = {
    "a: dtype is uint8; must be float16 or bfloat16 where transpose_b is False": {
        "a": torch.zeros(M, N, dtype=torch.uint8),
    },
    "a: dtype is float32; must be uint8, float4_e2m1fn_x2, float16 or bfloat16": {"a": torch.zeros(M, N)},
    "a: stride of the last dimension is 2; must be 1 (dense rows): pass a copy, .contiguous()": {
        "a": torch.zeros(M, 2 * N).bfloat16()[:, ::2]
    },
    "a: rows are 18 bytes apart; must be 14 (dense) or a multiple of 16: pass a copy, .contiguous()": {
        "a": torch.zeros(M, 9).bfloat16()[:, :N]
    },
    "b: N is 7 but a has N = 6": {"a": torch.zeros(M, 6).bfloat16()},
    "b: has 2 dimensions but a has 3": {"a": torch.zeros(2, M, N).bfloat16()},
    "scale_a: is given but a is bfloat16; must be absent, its values have no scales": {
        "scale_a": torch.zeros(512, dtype=torch.uint8)
    },
    "scale_b: has 1024 bytes; the 128x4 layout of 7 rows and K = 64 needs "
    "L * ceil(rows/128) * ceil(K/64) * 512 = 512": {"scale_b": torch.zeros(1024, dtype=torch.uint8)},
    "out: is 5 x 7; must be M x K = 5 x 64": {"out": torch.zeros(M, N)},
    "out: has 3 dimensions but a has 2": {"out": torch.zeros(1, M, K)},
    "c: is 5 x 7; must be M x K = 5 x 64": {"c": torch.zeros(M, N).bfloat16(), "beta": 1.0},
    "alpha: has 7 elements; must have 1 where transpose_b is False, since N is summed over": {"alpha": torch.ones(N)},
    "alpha: has 64 elements; must have 1 where transpose_b is False, since N is summed over": {"alpha": torch.ones(K)},
    "bias: has 7 elements in 1 dimension; must be a vector of length K = 64": {"bias": torch.zeros(N)},
}


@pytest.mark.parametrize("message", BAD)
@pytest.mark.parametrize("fake", [False, True])
def test_bad_arguments(message: str, fake: bool, generator: torch.Generator) -> None:
    """Eager and traced calls give the same message, and write nothing."""
    wrong = BAD[message]
    given = operands(generator) | wrong
    out = given.setdefault("out", torch.full((M, K), 7.0, dtype=torch.bfloat16)).fill_(7.0)
    with pytest.raises(nvfp4.Error) as error:
        if fake:
            with FakeTensorMode() as mode:
                tensors = {x: mode.from_tensor(t) if isinstance(t, torch.Tensor) else t for x, t in given.items()}
                nvfp4.gemm(**tensors)
        else:
            nvfp4.gemm(**given)
    assert str(error.value) == message and (out == 7).all()


def test_batches_have_their_sizes(generator: torch.Generator) -> None:
    given = operands(generator)
    given |= {name: torch.stack([given[name]] * 2) for name in ("a", "b")}
    given["scale_b"] = given["scale_b"].flatten().repeat(2)
    assert nvfp4.gemm(**given).shape == (2, M, K)
    with pytest.raises(nvfp4.Error, match=re.escape("out: is 2 x 5 x 7; must be L x M x K = 2 x 5 x 64")):
        nvfp4.gemm(**given, out=torch.zeros(2, M, N))


def test_numpy(generator: torch.Generator) -> None:
    given = operands(generator) | {"a": torch.randn(M, N, generator=generator).half()}
    expected = nvfp4.gemm(**given)
    arrays = {name: x.numpy() if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    assert numpy.array_equal(nvfp4.gemm(**arrays), expected.numpy())


def needs_kernel(backend: Backend, linear: bool = False) -> None:
    """linear: of any layout of scales."""
    if not takes(backend.name, "bfloat16", transpose_b=False, linear=linear):
        pytest.skip("has no such kernel")


@pytest.mark.parametrize(("m", "n", "k"), [(0, 8, K), (M, 0, K), (M, 8, 0)])
def test_empty(m: int, n: int, k: int, backend: Backend, generator: torch.Generator) -> None:
    """Without terms a sum is 0, and the epilogue remains."""
    needs_kernel(backend)
    given = operands(generator, m, n, k)
    bias = torch.arange(float(k)).bfloat16()
    given = {name: x.to(backend.device) if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    got = nvfp4.gemm(**given, bias=bias.to(backend.device), backend=backend.name).cpu()
    assert got.shape == (m, k) and (n > 0 or torch.equal(got, bias.expand(m, k)))


def test_random_data(backend: Backend, generator: torch.Generator) -> None:
    """Sums that round at every step stay within the bound of test_gemm_bounds.py."""
    needs_kernel(backend)
    m, n, k = (9, 1104, 96) if backend.emulated else (130, 4104, 352)
    given = operands(generator, m, n, k, finite=True)
    x = given["a"].double()
    y = reference.operand(given["b"], given["scale_b"], "128x4")[0].double()
    given = {name: t.to(backend.device) if isinstance(t, torch.Tensor) else t for name, t in given.items()}
    got = nvfp4.gemm(**given, out_dtype="float32", backend=backend.name).cpu().double()
    kernel = nvfp4.info()["cpu_kernel"] if backend.name == "cpu" else backend.name
    bound = (gamma(roundings(kernel, n, True)) + U) * (x.abs() @ y.abs())
    assert ((got - x @ y).abs() <= bound).all()


ROWS = [1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 260]


@pytest.mark.parametrize("layout", ["128x4", "linear"])
def test_batch_invariant(layout: str, backend: Backend, generator: torch.Generator) -> None:
    needs_kernel(backend, linear=True)
    given = operands(generator, max(ROWS), 1100, 80, finite=True)
    if layout == "linear":
        given["scale_b"] = reference.unswizzle(given["scale_b"], 1100, 5)
    given = {name: x.to(backend.device) if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    options = {"scale_layout": layout, "out_dtype": "float32", "backend": backend.name, "batch_invariant": True}
    whole = nvfp4.gemm(**given, **options)
    for m in one_in(5, ROWS) if backend.emulated else ROWS:
        first = int(torch.randint(0, max(ROWS) - m + 1, (), generator=generator))
        rows = given | {"a": given["a"][first : first + m].clone()}
        assert torch.equal(nvfp4.gemm(**rows, **options), whole[first : first + m]), (first, m)


def test_cpu_bits_do_not_depend_on_threads(generator: torch.Generator) -> None:
    given = operands(generator, 300, 530, 336, finite=True)
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            results.append(nvfp4.gemm(**given, out_dtype="float32", backend="cpu"))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(result, results[0]) for result in results)


def test_plans(backend: Backend) -> None:
    """`info` names the kernels; each can be forced by its name; backends that have none say so."""
    info = {"device": "cpu" if backend.name == "cpu" else 0, "backend": backend.name, "a_dtype": "bfloat16"}
    taken = takes(backend.name, "bfloat16", transpose_b=False)
    if not takes(backend.name, "bfloat16", transpose_b=False, linear=True):
        message = "take with 128x4 scales and rows and batches of" if taken else "do not take;"
        with pytest.raises(nvfp4.Error, match=f"^transpose_b: is False, which the {backend.name} kernels {message}"):
            nvfp4.info(M, N, K, **info, transpose_b=False)
    if not taken:
        return
    with pytest.raises(nvfp4.Error, match=r"^transpose_b: is False but a_dtype is none \(NVFP4\); must be True, or"):
        nvfp4.info(M, N, K, **info | {"a_dtype": None}, transpose_b=False)
    plan = nvfp4.info(300, 4096, 7168, **info, transpose_b=False)["plan"]
    if backend.name == "cpu":
        return
    seen = set()
    try:
        for rank in range(plan["candidates"]):
            _C.set_candidate(rank)
            seen.add(nvfp4.info(300, 4096, 7168, **info, transpose_b=False)["plan"]["kernel"])
        _C.set_candidate(0)
        for kernel in seen:
            _C.override_plan(0, None, "bfloat16", 300, 4096, 7168, 1, 4, kernel, False, 1, 0, 0)
            assert nvfp4.info(300, 4096, 7168, **info, transpose_b=False)["plan"]["kernel"] == kernel
    finally:
        _C.set_candidate(0)
        _C.clear_overrides()
    assert len(seen) >= 2
    assert all(kernel.startswith(f"nvfp4_{backend.name}_nn_bf16_") for kernel in seen)


@pytest.mark.parametrize("out", [False, True])
def test_compiled(out: bool, generator: torch.Generator) -> None:
    """The fake has K columns, also for a number of rows that is not known when the call is traced."""

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def run(a: torch.Tensor, b: torch.Tensor, scale: torch.Tensor, into: torch.Tensor | None) -> torch.Tensor:
        return nvfp4.gemm(a, b, None, scale, out=into, transpose_b=False) + 0

    for m in (M, M + 4):
        given = operands(generator, m)
        into = torch.full((m, K), torch.nan).bfloat16() if out else None
        got = run(given["a"], given["b"], given["scale_b"], into)
        assert torch.equal(got, nvfp4.gemm(**given))


def test_cuda_graph(cuda: Backend, generator: torch.Generator) -> None:
    given = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in operands(generator, 3, 1200).items()}
    nvfp4.gemm(**given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = nvfp4.gemm(**given)
    for _ in range(3):
        given["a"].copy_(torch.randn(3, 1200, generator=generator))
        graph.replay()
        assert torch.equal(got, nvfp4.gemm(**given))


@in_full
def test_opcheck(generator: torch.Generator) -> None:
    given, none = operands(generator), torch.empty(0, dtype=torch.uint8)
    tensors = (given["a"], given["b"], none, given["scale_b"], none, none, none)
    arguments = (*tensors, 1.0, 0.0, "128x4", "auto", 4)
    torch.library.opcheck(torch.ops.nvfp4.gemm, (*arguments, torch.bfloat16))
    torch.library.opcheck(torch.ops.nvfp4.gemm_out, (*arguments, torch.zeros(M, K)))


@pytest.mark.parametrize("name", ["batch_invariant", "constant_b", "transpose_b"])
@pytest.mark.parametrize("value", ["False", 1, None, numpy.bool_(True), torch.ones(2)], ids=str)
def test_a_switch_is_a_bool(name: str, value: object, generator: torch.Generator) -> None:
    """Other values would count as True, and a tensor of two has no truth."""
    message = f"^{name}: is of type {type(value).__name__}; must be True or False$"
    with pytest.raises(nvfp4.Error, match=message):
        nvfp4.gemm(**operands(generator) | {name: value})
    if name == "transpose_b":
        with pytest.raises(nvfp4.Error, match=message):
            nvfp4.info(M, N, K, transpose_b=value)
