"""What grouped_gemm promises of the bits of a row: they depend neither on its place nor on other groups; with
batch_invariant neither on T, on the plan of a GPU nor on the size of its group. Of sm80's kernels they never depend on
these. The data round at every step, so that another order of additions gives other bits."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from backend_table import ON_GPU, OWN, ROWS
from conftest import Backend, in_full, is_emulated
from python_server import python

import nvfp4
from nvfp4 import _C, reference

SIZES = [1, 0, 9, 40, 17, 3, 0, 66, 5, 8, 7]  # of groups: around the tiles of sm80, and few and many rows on a CPU
E, T = len(SIZES), sum(SIZES)
Given = dict[str, Any]


@pytest.fixture(autouse=True)
def _takes_groups(backend: Backend) -> None:
    if "grouped_gemm" not in ROWS[backend.name]["product_kinds"]:
        pytest.skip("has no such kernel")
    _C.set_default_backend(None)


@pytest.fixture(params=["float16", "bfloat16", "nvfp4", "nvfp4-128x4"])
def given(request: pytest.FixtureRequest, backend: Backend, generator: torch.Generator) -> Given:
    """Rows for each group, and two parts."""
    n, k = (40, 528) if backend.emulated else (70, 1104)
    if backend.name in OWN:  # whose kernels read rows of b on 16 bytes, those of sm100 whole blocks of scales
        k += 48 if backend.name == "sm100" else 16
    a, scale_a = torch.randn(T, k, generator=generator), None
    is_nvfp4 = request.param.startswith("nvfp4")
    listed = "linear_scales" if request.param == "nvfp4" else "product_kinds"
    if ("uint8" if is_nvfp4 else request.param) not in ROWS[backend.name][listed]["grouped_gemm"]:
        pytest.skip("takes no such a")
    if is_nvfp4:  # blocks of all sizes, so that sums of 64 products round too
        a = a * torch.exp2(torch.randint(-6, 5, (T, k // 16), generator=generator)).repeat_interleave(16, -1)
        a, scale_a = reference.quantize(a, scale_layout="linear")
    else:
        a = a.to(getattr(torch, request.param))
    scale = torch.randint(0x20, 0x58, (E, 2, n, k // 16), dtype=torch.uint8, generator=generator)
    given = {
        "a": a,
        "scale_a": scale_a,
        "scale_layout": "128x4" if request.param == "nvfp4-128x4" else "linear",
        "b": torch.randint(0, 256, (E, 2, n, k // 2), dtype=torch.uint8, generator=generator),
        "scale_b": scale,
        "ends": ends_of(SIZES),
        "rows": torch.randperm(T, generator=generator).int(),
        "row_scale": torch.randn(T, generator=generator),
        "alpha": torch.randn(E, 2, generator=generator),
        "bias": torch.randn(E, 2, n, generator=generator),
    }
    return {name: x.to(backend.device) if isinstance(x, torch.Tensor) else x for name, x in given.items()}


def ends_of(sizes: list[int]) -> torch.Tensor:
    return torch.tensor(sizes).cumsum(0).int()


def swizzled(given: Given) -> Given:
    """The same product with 128x4 scales: a in the order of groups, each group's scales behind those of a later one."""
    last = [0, *torch.cummax(given["ends"].cpu(), 0).values.tolist()]
    a, scale = (given[name][given["rows"].long()].cpu() for name in ("a", "scale_a"))
    blocks, first = [], [0] * E
    for e in reversed(range(E)):
        first[e] = 128 * len(blocks)
        blocks += scale[last[e] : last[e + 1]].split(128) if last[e] < last[e + 1] else []
    swizzled_blocks = [reference.swizzle(x[None], padding=reference.E4M3_NAN).flatten() for x in blocks]
    scale_a = torch.cat([torch.zeros(0, dtype=torch.uint8), *swizzled_blocks])
    scale_b = reference.swizzle(given["scale_b"].cpu().flatten(0, -3))
    made = {"a": a, "scale_a": scale_a, "scale_b": scale_b, "scale_rows": torch.tensor(first, dtype=torch.int32)}
    return given | {name: x.to(given["ends"].device) for name, x in made.items()} | {"rows": None}


def product(given: Given, backend: Backend, **options: Any) -> torch.Tensor:
    form = {"out_dtype": torch.float32, "backend": backend.name}
    given = swizzled(given) if given["scale_layout"] == "128x4" else given
    if backend.name in OWN and given["scale_a"] is None:
        if options.get("batch_invariant") and ROWS[backend.name]["a16_rows"]:
            pytest.skip("has no order of additions for every T")
        given = given | {"scale_layout": "128x4", "scale_b": nvfp4.swizzle(given["scale_b"].flatten(0, -3))}
    return nvfp4.grouped_gemm(**given, **form | options).cpu()


def taking(given: Given, rows: torch.Tensor, sizes: list[int]) -> Given:
    """The routing with these rows of the first one, in this order."""
    at = rows.to(given["ends"].device)
    some = {name: given[name][at].contiguous() for name in ("rows", "row_scale")}
    return given | some | {"ends": ends_of(sizes).to(at.device)}


def by_group(sizes: list[int]) -> list[torch.Tensor]:
    return list(torch.arange(sum(sizes)).split(sizes))


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_place_in_a_group(batch_invariant: bool, given: Given, backend: Backend, generator: torch.Generator) -> None:
    whole = product(given, backend, batch_invariant=batch_invariant)
    order = torch.cat([x[torch.randperm(len(x), generator=generator)] for x in by_group(SIZES)])
    got = product(taking(given, order, SIZES), backend, batch_invariant=batch_invariant)
    assert torch.equal(got, whole[order]) and whole.isfinite().all()


def test_order_of_groups(given: Given, backend: Backend, generator: torch.Generator) -> None:
    """The matrices, and their groups with them, in another order."""
    whole = product(given, backend)
    order = torch.randperm(E, generator=generator)
    groups = by_group(SIZES)
    rows = torch.cat([groups[e] for e in order])
    moved = taking(given, rows, [SIZES[e] for e in order])
    moved |= {name: given[name][order.to(backend.device)] for name in ("b", "scale_b", "alpha", "bias")}
    assert torch.equal(product(moved, backend), whole[rows])


def adds_in_several_orders(backend: Backend, given: Given) -> bool:
    """Whether its plans do: those of Hopper, and of few rows of a 16-bit a."""
    return backend.name == "sm90" or (backend.name in OWN and given["scale_a"] is None)


def flags_without_t(backend: Backend, given: Given) -> list[bool]:
    """Values of batch_invariant with which bits do not depend on T."""
    return [True] if adds_in_several_orders(backend, given) else [True, False]


def test_other_groups_and_t(given: Given, backend: Backend) -> None:
    """Each group alone, in a result of its own rows; and all with rows behind the last end."""
    flag = flags_without_t(backend, given)[-1]
    whole = product(given, backend, batch_invariant=flag)
    groups = by_group(SIZES)
    for e in range(E):
        alone = taking(given, groups[e], [SIZES[e] if i == e else 0 for i in range(E)])
        assert torch.equal(product(alone, backend, batch_invariant=flag), whole[groups[e]]), e
    longer = torch.cat([torch.arange(T), torch.arange(50)])
    assert torch.equal(product(taking(given, longer, SIZES), backend, batch_invariant=flag)[:T], whole)


def test_size_of_a_group(given: Given, backend: Backend, generator: torch.Generator) -> None:
    """batch_invariant on a CPU and where plans add in several orders; others always."""
    flags = [True] if backend.name == "cpu" else flags_without_t(backend, given)
    groups = by_group(SIZES)
    for flag in flags:
        whole = product(given, backend, batch_invariant=flag)
        for _ in range(2 if backend.emulated else 10):
            kept = [x[torch.rand(len(x), generator=generator) < torch.rand((), generator=generator)] for x in groups]
            rows = torch.cat(kept)
            got = product(taking(given, rows, [len(x) for x in kept]), backend, batch_invariant=flag)
            assert torch.equal(got, whole[rows]), [len(x) for x in kept]


def test_the_data_tell_orders_apart(given: Given, backend: Backend) -> None:
    """With K turned by some blocks the same products give other bits. On a CPU a group of one row is computed otherwise
    than one of many, too, unless both add in one order, as they do for an NVFP4 a of this K."""
    kernel = nvfp4.info()["cpu_kernel"] if backend.name == "cpu" else backend.name
    if kernel == "reference":
        pytest.skip("sums in fp64")
    whole = product(given, backend)
    shifts = {"a": 128, "b": 64, "scale_b": 8}
    if given["scale_a"] is not None:
        shifts |= {"a": 64, "scale_a": 8}
    turned = {name: given[name].roll(shift, -1) for name, shift in shifts.items()}
    assert not torch.equal(product(given | turned, backend), whole)
    if kernel not in ("portable", *ON_GPU) and given["scale_a"] is None:
        first = torch.cat([x[:1] for x in by_group(SIZES)])
        got = product(taking(given, first, [min(1, size) for size in SIZES]), backend)
        assert not torch.equal(got, whole[first])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plans(dtype: torch.dtype, given: Given, backend: Backend) -> None:
    """Every plan of a GPU gives the same bits, of sm80 without batch_invariant, too. sm100's pairs of CTAs have results
    of 16 bits."""
    if backend.name == "cpu":
        pytest.skip("has one plan")
    flags = flags_without_t(backend, given)
    expected = product(given, backend, batch_invariant=True, out_dtype=dtype)
    try:
        for rank in range(4):
            _C.set_candidate(rank)
            for flag in flags:
                assert torch.equal(product(given, backend, batch_invariant=flag, out_dtype=dtype), expected), rank
    finally:
        _C.set_candidate(0)


def test_without_the_transposition(given: Given, backend: Backend, generator: torch.Generator) -> None:
    """Gradients promise the same: neither the plan nor, with batch_invariant, the size of a group counts."""
    if given["scale_a"] is not None or "grouped_gemm_nn" not in ROWS[backend.name]["product_kinds"]:
        pytest.skip("has no such kernel")
    n, k = given["b"].shape[2], given["a"].shape[1]
    first = {name: given[name][:, 0].contiguous() for name in ("b", "scale_b", "alpha")}
    drawn = {"a": torch.randn(T, n, generator=generator), "bias": torch.randn(E, k, generator=generator)}
    drawn["a"] = drawn["a"].to(given["a"].dtype)
    turned = given | first | {name: x.to(backend.device) for name, x in drawn.items()}
    options = {"transpose_b": False, "batch_invariant": True}
    whole = product(turned, backend, **options)
    groups = by_group(SIZES)
    try:
        for rank in range(1 if backend.name == "cpu" else 2):
            _C.set_candidate(rank)
            kept = [x[torch.rand(len(x), generator=generator) < 0.5] for x in groups]
            got = product(taking(turned, torch.cat(kept), [len(x) for x in kept]), backend, **options)
            assert torch.equal(got, whole[torch.cat(kept)]), rank
            if backend.name != "cpu":
                assert torch.equal(product(turned, backend, transpose_b=False), whole), rank
    finally:
        _C.set_candidate(0)


def test_repeated_calls(given: Given, backend: Backend) -> None:
    first = product(given, backend)
    for _ in range(2 if backend.emulated else 50):
        assert torch.equal(product(given, backend), first)


def test_threads(given: Given, backend: Backend) -> None:
    if backend.name != "cpu":
        pytest.skip("has no threads of the host")
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            results += [product(given, backend, batch_invariant=flag) for flag in (False, True)]
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(result, results[i % 2]) for i, result in enumerate(results))


def test_parts_are_products_of_their_own(given: Given, backend: Backend) -> None:
    """A part's results do not depend on how many parts there are."""
    whole = product(given, backend)
    for part in range(2):
        some = {name: given[name][:, part].contiguous() for name in ("b", "scale_b", "alpha", "bias")}
        assert torch.equal(product(given | some, backend), whole.unflatten(1, (2, -1))[:, part])


@in_full
@pytest.mark.skipif(is_emulated(), reason="is not what --emulate asks for")
@pytest.mark.parametrize("isa", ["reference", "portable", "avx2", "amx"])
def test_instruction_sets(isa: str, backend: Backend) -> None:
    """This file by the other CPU kernels, each in a process of its own."""
    if backend.name != "cpu" or os.environ.get("NVFP4_CPU"):
        pytest.skip("is not of an instruction set")
    environment = {**os.environ, "NVFP4_CPU": isa}
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "cpu", __file__, env=environment)
    if "this CPU has not the instructions" in done.stdout + done.stderr:
        pytest.skip(f"this CPU has not the instructions of {isa}")
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-3000:] + done.stderr[-1000:]
