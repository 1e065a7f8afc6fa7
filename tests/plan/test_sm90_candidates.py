"""Every plan of a product on sm90, not only the one ranked first: each instantiation, with and without swap_ab, each
split_k, gemv and prefill kernels, launched through the package. All give the same bits. On an emulated GPU: a random
sample."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Sequence

import exact_products
import pytest
import torch
from conftest import Backend
from harness.headers import headers_of
from harness.values import ceil_div

import nvfp4
from nvfp4 import _C, reference
from nvfp4._tuning import SETTINGS

CASES = [
    exact_products.Case(9, 200, 1088, 2, out_dtype=torch.float32, alpha="vector", bias="out", c="c", pitched=True),
    exact_products.Case(131, 70, 2112, alpha="float", c="out"),
    exact_products.Case(260, 140, 320, bias="fp32", typed=True),
    exact_products.Case(300, 7, 528, 2, layout="linear", out_dtype=torch.bfloat16, alpha="one"),
    exact_products.Case(35, 150, 1072, pitched=True),
    exact_products.Case(40, 24, 1152, out_dtype=torch.float32, bias="fp32"),
    exact_products.Case(24, 40, 0, bias="fp32", c="c"),
    exact_products.Case(14, 290, 1040, out_dtype=torch.bfloat16, alpha="float", pitched=True),
    exact_products.Case(290, 27, 1088, 2, c="out"),
    exact_products.Case(1, 300, 1600, 2, alpha="vector", bias="out", out_dtype=torch.float32),
    exact_products.Case(2, 130, 1040, layout="linear", c="out"),
    exact_products.Case(4, 77, 48, c="c", pitched=True),
    exact_products.Case(300, 1, 1600, 2, alpha="vector", c="c", out_dtype=torch.float32),
    exact_products.Case(77, 1, 528, 3, layout="linear", alpha="one", c="out", out_dtype=torch.bfloat16),
    exact_products.Case(131, 1, 2064, bias="out", c="c"),
    exact_products.Case(300, 280, 1152, 2, alpha="vector", out_dtype=torch.bfloat16),
    exact_products.Case(520, 270, 192, layout="linear", bias="out", c="c"),
    exact_products.Case(30, 270, 4128, alpha="vector", c="c"),
    exact_products.Case(390, 60, 4160, out_dtype=torch.bfloat16, bias="out", pitched=True),
    exact_products.Case(100, 140, 4096, 2, out_dtype=torch.float32),
]
# The pre-pass of some large products ends during their first wave. On an emulated GPU test_sm90_prefill.py has that.
LARGE = exact_products.Case(1540, 1530, 832, alpha="vector", bias="out")
DEVICE = 0
EMULATED_SAMPLE = 3  # plans of a case


def plan(case: exact_products.Case) -> dict[str, object]:
    """The plan for contiguous, aligned data in the 128x4 layout; there are about as many plans as the case has."""
    return nvfp4.info(case.m, case.n, case.k, case.l or 1, device=DEVICE, backend="sm90")["plan"]


def sample(places: Sequence[int], on: Backend, request: pytest.FixtureRequest) -> Sequence[int]:
    """All of them on a GPU; on an emulated one some, others in each session."""
    if not on.emulated:
        return places
    draw = random.Random(f"{os.environ['NVFP4_TEST_SEED']} {request.node.nodeid}")
    return draw.sample(places, min(len(places), EMULATED_SAMPLE))


@pytest.fixture
def sm90(backend: Backend) -> Backend:
    if backend.name != "sm90":
        pytest.skip("needs an sm90 GPU")
    return backend


def test_every_instantiation_is_among_them(sm90: Backend, candidate: None) -> None:
    found, cuts = set(), set()
    for case in [*CASES, LARGE]:
        for i in range(plan(case)["candidates"]):
            _C.set_candidate(i)
            found.add(plan(case)["kernel"])
            cuts.add(plan(case)["split_k"])
    kernels = {config.kernel for config in headers_of("sm90").configs().values()}
    others = re.compile("bf16|units_fp16|sm90_nn_|sm90_grouped_|gemv_quantize_")  # not for products of an NVFP4 A
    own = {kernel for kernel in kernels if not others.search(kernel)}
    assert len(found) > 10 and found == own
    assert cuts == set(range(1, 9))


@pytest.mark.parametrize("case", [*CASES, LARGE], ids=str)
def test_equal_bits(case: exact_products.Case, sm90: Backend, candidate: None, request: pytest.FixtureRequest) -> None:
    """A candidate past the end selects the last one, so counting too far is no error."""
    if case is LARGE and sm90.emulated:
        pytest.skip("takes a GPU")
    for i in sample(range(plan(case)["candidates"]), sm90, request):
        _C.set_candidate(i)
        assert exact_products.run(case, "sm90", sm90.device) == "", f"candidate {i}: {plan(case)}"


def test_one_row_of_b_streams_a(sm90: Backend) -> None:
    """N = 1 runs as M = 1 with swapped operands if C is a contiguous column and there is no bias."""
    for task in reference.load_task("nvfp4_gemv")["benchmarks"]:
        m, k, l = (task[size] for size in "mkl")
        swapped = nvfp4.info(m, 1, k, l, device=DEVICE, backend="sm90")["plan"]
        plain = nvfp4.info(1, m, k, l, device=DEVICE, backend="sm90")["plan"]
        assert swapped["swap_ab"] and not plain["swap_ab"] and swapped["reason"] != plain["reason"]
        assert all(swapped[name] == plain[name] for name in ("kernel", "grid", "workspace", "modelled_us", "single_us"))
        assert swapped["kernel"] == "nvfp4_sm90_gemv_1"
        assert (swapped["tile_m"], swapped["tile_n"]) == (plain["tile_n"], plain["tile_m"])


def test_one_row_of_b_where_c_is_no_column(sm90: Backend, generator: torch.Generator) -> None:
    """Rows of out or of c that lie apart, and a bias, after a call of the same shape without: the same bits, and
    nothing is written between the rows."""
    m, k = 67, 320
    seed = int(torch.randint(2**31, (), generator=generator))
    a, b, sfa, sfb = reference.batch_first(reference.generate_input(m, 1, k, 2, seed, device=sm90.device))
    bias, c = (torch.randn(shape, generator=generator).half().to(sm90.device) for shape in ((1,), (2, m, 8)))
    apart, dense = {"c": c[:, :, :1], "beta": 2.0}, {"c": c[:, :, 1:2].contiguous(), "beta": -1.0}
    for options in ({}, apart, {"bias": bias}, dense, {"bias": bias, **dense}, {"bias": bias, **apart}):
        wanted = reference.gemm(a, b, sfa, sfb, scale_layout="linear", **options)
        for step in (1, 8):
            memory = torch.full((2, m, step), torch.nan, dtype=torch.float16, device=sm90.device)
            nvfp4.gemm(a, b, sfa, sfb, scale_layout="linear", out=memory[:, :, :1], backend="sm90", **options)
            assert reference.compare(memory[:, :, :1], wanted, exact=True)[0], (options.keys(), step)
            assert memory[:, :, 1:].isnan().all()


def streamk_bytes(found: dict[str, int], m: int, n: int) -> int:
    """Partial tiles and fix-up flags of plans without data-parallel tiles."""
    tiles = -(-m // found["tile_m"]) * -(-n // found["tile_n"])
    workers = found["grid"] - tiles * found["split_k"]
    return (workers + tiles) * found["tile_m"] * found["tile_n"] * 4 + workers * 4


@pytest.mark.parametrize("case", CASES[-3:], ids=str)
def test_streamk_plans(
    case: exact_products.Case, sm90: Backend, candidate: None, request: pytest.FixtureRequest
) -> None:
    """Each of them twice in one workspace: the second call starts with the flags of the first."""
    places = []
    for i in range(plan(case)["candidates"]):
        _C.set_candidate(i)
        if "streamk" in plan(case)["kernel"]:
            places.append(i)
    assert len(places) > 1
    for i in sample(places, sm90, request):
        _C.set_candidate(i)
        assert not any(exact_products.run(case, "sm90", sm90.device) for _ in range(2)), f"candidate {i}: {plan(case)}"


@pytest.mark.parametrize(("m", "n", "k"), [(300, 280, 1152), (12, 280, 1152)])
def test_workspace_of_the_plan_is_enough_and_needed(m: int, n: int, k: int, sm90: Backend, candidate: None) -> None:
    """The workspace holds the dequantized operands and the stream-K partial tiles, and nothing else."""
    for i in range(nvfp4.info(m, n, k, device=DEVICE, backend="sm90")["plan"]["candidates"]):
        _C.set_candidate(i)
        found = nvfp4.info(m, n, k, device=DEVICE, backend="sm90")["plan"]
        kernel, tiles = found["kernel"], (found["tile_m"], found["tile_n"])
        whole = [ceil_div(rows, tile) * tile for rows, tile in zip((m, n), tiles)]  # rows of the tensor maps
        mma_n = 0 if found["swap_ab"] else 1
        in_kernel = "gemv" in kernel or "units" in kernel or "_raw" in kernel
        in_kernel = in_kernel or ("gemm" in kernel and tiles[mma_n] <= 16)
        rows = 0 if in_kernel else sum(whole) if kernel.endswith("prefill_fp16") else whole[mma_n]
        wanted = rows * k * 2 + (streamk_bytes(found, m, n) if "streamk" in found["kernel"] else 0)
        assert wanted <= found["workspace"] < wanted + 1024, found


def test_a_preferred_plan_is_taken(sm90: Backend, candidate: None) -> None:
    shape = (24, 384, 1024)
    try:
        for place in (3, 0, 7):
            _C.set_candidate(place)
            wanted = _C.plan(DEVICE, "sm90", None, *shape, 1, 0)
            _C.set_candidate(0)
            settings = [wanted[name] for name in SETTINGS]
            _C.override_plan(DEVICE, None, None, *shape, 1, 0, *settings)
            taken = _C.plan(DEVICE, "sm90", None, *shape, 1, 0)
            assert [taken[name] for name in SETTINGS] == settings
        assert _C.plan(DEVICE, "sm90", None, 25, 384, 1024, 1, 0)["kernel"]  # other shapes are unaffected
        with pytest.raises(nvfp4.Error, match="none of the"):
            _C.override_plan(
                DEVICE, None, None, *shape, 1, 0, "nvfp4_sm90_gemm_128x8", True, 1, 0, 0
            )  # does not hold 24 rows
    finally:
        _C.clear_overrides()


@pytest.mark.parametrize("shared", [0, 1], ids=["a", "b"])
def test_values_for_all_batches(shared: int, sm90: Backend, candidate: None, request: pytest.FixtureRequest) -> None:
    """The tensor map of an operand in the user's memory then has a batch stride of 0."""
    case = exact_products.Case(40, 300, 576, 3)
    call = exact_products.Call(case, exact_products.generator(case, shared), sm90.device)
    given = list(call.operands)
    given[shared] = given[shared][:1].expand(3, *given[shared].shape[1:])  # values; scales must be contiguous
    expected = reference.gemm(*given, scale_layout=case.layout, out_dtype=case.out_dtype)
    for i in sample(range(plan(case)["candidates"]), sm90, request):
        _C.set_candidate(i)
        found = nvfp4.gemm(*given, scale_layout=case.layout, out_dtype=case.out_dtype, backend="sm90")
        equal, message = reference.compare(found, expected, exact=True)
        assert equal, f"candidate {i}: {plan(case)}: {message}"
