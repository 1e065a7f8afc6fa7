"""The same call gives the same bits: again and again, with any number of threads, from several threads at once.

The data are such that fp32 rounds every sum, so that another order of summation would show.
"""

from __future__ import annotations

import ctypes
import platform
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from conftest import Backend

import nvfp4
from nvfp4 import reference

SHAPES = [(1, 300, 4096), (16, 130, 2048), (64, 257, 1040), (130, 64, 7168)]


@pytest.fixture
def threads_restored() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def arguments(m: int, n: int, k: int, device: str, generator: torch.Generator) -> list[torch.Tensor]:
    seed = int(torch.randint(2**31, (), generator=generator))
    data = reference.generate_input(m, n, k, 1, seed, scales="finite", device=device)
    a, b, sfa, sfb = (x[0] for x in reference.batch_first(data))
    return [a, b, reference.swizzle(sfa), reference.swizzle(sfb)]


def product(args: list[torch.Tensor], backend: Backend, **options: object) -> torch.Tensor:
    return nvfp4.gemm(*args, out_dtype=torch.float32, backend=backend.name, **options)


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_repeated_calls(backend: Backend, m: int, n: int, k: int, generator: torch.Generator) -> None:
    args = arguments(m, n, k, backend.device, generator)
    first = product(args, backend)
    out = torch.empty_like(first)
    differing = torch.zeros((), dtype=torch.int64, device=backend.device)
    for _ in range(5 if backend.emulated else 1000):
        out.fill_(torch.nan)
        differing += (product(args, backend, out=out) != first).sum()
    assert differing.item() == 0 and first.isfinite().all()


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_the_order_would_show(m: int, n: int, k: int, generator: torch.Generator) -> None:
    """Summed from the other end the same products give other bits, so the tests of this file can fail."""
    a, b, sfa, sfb = arguments(m, n, k, "cpu", generator)
    x, y = (reference.operand(*pair, "128x4")[0] for pair in ((a, sfa), (b, sfb)))
    forward, backward = torch.zeros(m, n), torch.zeros(m, n)
    for block in range(k // 16):
        for total, i in ((forward, block), (backward, k // 16 - 1 - block)):
            total += (x[:, 16 * i : 16 * i + 16].double() @ y[:, 16 * i : 16 * i + 16].double().mT).float()
    assert (forward != backward).any()


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.usefixtures("threads_restored")
def test_any_number_of_cpu_threads(m: int, n: int, k: int, generator: torch.Generator) -> None:
    args = arguments(m, n, k, "cpu", generator)
    results = []
    for count in (1, 2, 3, 4, 7):
        torch.set_num_threads(count)
        results.append(product(args, Backend("cpu", "cpu")))
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.usefixtures("threads_restored")
def test_quantize_with_any_number_of_cpu_threads(generator: torch.Generator) -> None:
    x = torch.randn(300, 2048, generator=generator)
    results = []
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        results.append(torch.cat([part.view(torch.uint8).flatten() for part in nvfp4.quantize(x)]))
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_alone_or_in_a_batch(backend: Backend, generator: torch.Generator) -> None:
    """A product does not depend on what is multiplied beside it in the same call."""
    seed = int(torch.randint(2**31, (), generator=generator))
    data = reference.generate_input(33, 70, 528, 3, seed, scales="finite", device=backend.device)
    a, b, sfa, sfb = reference.batch_first(data)
    options = {"out_dtype": torch.float32, "scale_layout": "linear", "backend": backend.name}
    together = nvfp4.gemm(a, b, sfa, sfb, **options)
    again = nvfp4.gemm(a.flip(0), b.flip(0), sfa.flip(0), sfb.flip(0), **options).flip(0)
    assert torch.equal(together, again)


def test_threads_calling_at_once(backend: Backend, generator: torch.Generator) -> None:
    """Eight threads, each with its own shape and forty calls, and errors in between, each thread its own message."""
    work = [arguments(1 + 9 * i, 40 + 11 * i, 16 * (5 + 7 * i), backend.device, generator) for i in range(8)]
    expected = [product(args, backend) for args in work]
    failures: list[str] = []
    start = threading.Barrier(len(work))

    def call(i: int) -> None:
        a, b, scale_a, scale_b = work[i]
        start.wait()
        for _ in range(2 if backend.emulated else 40):
            if not torch.equal(product(work[i], backend), expected[i]):
                failures.append(f"thread {i}: other bits")
            wrong_k = a.shape[1] * 2 + 16 * (i + 1)
            try:
                product(
                    [a, torch.zeros(8, wrong_k // 2, dtype=torch.uint8, device=a.device), scale_a, scale_b], backend
                )
                failures.append(f"thread {i}: a wrong K was taken")
            except nvfp4.Error as error:
                if f"K is {wrong_k} " not in str(error):
                    failures.append(f"thread {i}: message of another thread: {error}")

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_streams_at_once(cuda: Backend, generator: torch.Generator) -> None:
    """Work goes to the current stream, and what one stream needs another does not touch."""
    args = [arguments(7 + i, 500, 7168, "cuda", generator) for i in range(4)]
    expected = [product(a, cuda) for a in args]
    streams = [torch.cuda.Stream() for _ in args]
    torch.cuda.synchronize()
    results: list[list[torch.Tensor]] = [[] for _ in args]
    for _ in range(20):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                results[i].append(product(args[i], cuda))
    torch.cuda.synchronize()
    assert all(torch.equal(got, want) for found, want in zip(results, expected, strict=True) for got in found)


ROUNDING = {"x86_64": (0, 0x400, 0x800, 0xC00), "aarch64": (0, 0x400000, 0x800000, 0xC00000)}  # of fenv.h


@pytest.fixture
def set_rounding() -> Iterator[Callable[[int], int]]:
    """Sets this thread's rounding mode: 0 to nearest, 1 to 3 otherwise. Returns the mode as the C library has it."""
    library, modes = ctypes.CDLL("libm.so.6"), ROUNDING.get(platform.machine())
    if modes is None:
        pytest.skip(f"the rounding modes of {platform.machine()} are not known")

    def set_to(mode: int) -> int:
        library.fesetround(modes[mode])
        return int(library.fegetround())

    yield set_to
    set_to(0)


def test_the_floating_point_mode_of_the_caller(
    set_rounding: Callable[[int], int], threads_restored: None, generator: torch.Generator
) -> None:
    """Neither rounding nor flushed subnormal numbers change a result, on the calling thread and on workers; the mode is
    the caller's again afterwards."""
    torch.set_num_threads(4)
    x = torch.randn(512, 1024, generator=generator) * 1e-38
    gate, up = (torch.randn(64, 512, generator=generator) for _ in range(2))

    def results() -> list[torch.Tensor]:
        data, scale, *_ = nvfp4.quantize(x, global_scale=1e-38)
        return [data, scale.view(torch.uint8), nvfp4.gated(gate, up, "swiglu", alpha=1.702)]

    expected = results()
    for mode in (1, 2, 3):
        now = set_rounding(mode)
        found = results()
        assert now == set_rounding(mode) != set_rounding(0)
        assert all(torch.equal(*pair) for pair in zip(expected, found))
    if torch.set_flush_denormal(True):
        found = results()
        torch.set_flush_denormal(False)
        assert all(torch.equal(*pair) for pair in zip(expected, found))
