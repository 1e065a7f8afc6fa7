"""The path of large products on Hopper (csrc/sm90_dequant.cu, csrc/sm90_prefill.cu), launched by hand on the emulated
H200: every form in which a call may come, few clusters, so that small products have rounds, halves and batches.

SM90_SEEDS is the number of timings that each case is run with (2). The machine code is that of the installed module, or
of the file that SM90_PREFILL_CUBIN names.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import numpy
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from sm90.dense import Config, DenseProduct, configs, dense_ptx, expand_ptx  # noqa: E402
from sm100 import sass  # noqa: E402
from sm100.launch import FP16, FP32, Emulator, Module  # noqa: E402

import nvfp4  # noqa: E402

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

SEEDS = int(os.environ.get("SM90_SEEDS", 2))
BF16 = 5
CONFIGS = configs()
by_rows = pytest.mark.parametrize("rows_a_thread", [1, 4])


def rounded(values: numpy.ndarray, kind: int) -> numpy.ndarray:
    """fp32 numbers to the nearest of that type, ties to even, as fp32."""
    if kind == FP32:
        return values
    if kind == FP16:
        return values.astype(numpy.float16).astype(numpy.float32)
    bits = values.view(numpy.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(numpy.float32)


def result(product: DenseProduct) -> numpy.ndarray:
    """As fp32, exactly."""
    if product.out_type != BF16:
        return product.result().astype(numpy.float32)
    rows = numpy.ascontiguousarray(product.out.numpy()[:, :, : product.n * 2]).view(numpy.uint16)
    return (rows.astype(numpy.uint32) << 16).view(numpy.float32)


def load(config: Config, seed: int) -> tuple[Emulator, Module, Module]:
    emulator = Emulator("sm_90", seed=seed)
    return emulator, emulator.load(expand_ptx()), emulator.load(dense_ptx(config))


@pytest.fixture
def random(request: pytest.FixtureRequest) -> numpy.random.Generator:
    seed = [int(os.environ["NVFP4_TEST_SEED"]), *request.node.nodeid.encode()]
    return numpy.random.default_rng(seed)


@by_rows
@pytest.mark.parametrize("layout", ["128x4", "linear"])
def test_expanded_numbers(layout: str, rows_a_thread: int, random: numpy.random.Generator) -> None:
    """Both operands in one launch, of any number of rows and batches: every number times its scale, zeros beyond K,
    nothing beside it. The first one is longer than a block of scales and its K than a CTA's."""
    for case in range(2 * SEEDS):
        emulator = Emulator("sm_90", seed=case)
        module = emulator.load(expand_ptx())
        m, n, k = (int(random.integers(low, high)) for low, high in ((130, 400), (1, 200), (17, 50)))
        options = {"linear": layout == "linear", "integer": False, "pitch": 8 * (k + int(random.integers(0, 3)))}
        product = DenseProduct(emulator, random, m, n, 16 * k, int(random.integers(1, 4)), **options)
        if case % 2:
            product.share(case // 2 % 2)
        places = {which: product.expanded(which) for which in (1, 0)}
        product.expand(module, list(places.items()), True, rows_a_thread)
        for which, place in places.items():
            expected = product.expected_expansion(which)
            assert (place.numpy() == expected).all(), f"{m} x {n} x {16 * k}, operand {which}"


@by_rows
@pytest.mark.parametrize("layout", ["128x4", "linear"])
@pytest.mark.parametrize(("rows", "k"), [(1, 16), (1, 64), (31, 48), (32, 256), (33, 272), (96, 80), (97, 1040)])
def test_expanded_edges(rows: int, k: int, layout: str, rows_a_thread: int, random: numpy.random.Generator) -> None:
    """One operand that ends with, before or behind what a lane, a quad, a warp or a CTA expands; batches."""
    emulator = Emulator("sm_90", seed=2)
    product = DenseProduct(emulator, random, rows, 1, k, 3, linear=layout == "linear", integer=False)
    place = product.expanded(0)
    product.expand(emulator.load(expand_ptx()), [(0, place)], True, rows_a_thread)
    assert (place.numpy() == product.expected_expansion(0)).all()


@by_rows
def test_expanded_scales(rows_a_thread: int, random: numpy.random.Generator) -> None:
    """Every e4m3 scale, the NaN among them, by every value."""
    emulator = Emulator("sm_90")
    product = DenseProduct(emulator, random, 128, 1, 16, linear=True)
    product.data[0][:] = (numpy.arange(8) * 2 | (numpy.arange(8) * 2 + 1) << 4).astype(numpy.uint8)
    product.scales[0][0, :, 0] = numpy.arange(128)
    product.arrays[0], product.arrays[1] = emulator.array(product.data[0]), emulator.array(product.scales[0])
    place = product.expanded(0)
    product.expand(emulator.load(expand_ptx()), [(0, place)], True, rows_a_thread)
    assert numpy.array_equal(place.numpy(), product.expected_expansion(0), equal_nan=True)
    assert numpy.isnan(place.numpy()[0, 127]).sum() == 16


@by_rows
def test_flags_are_zeroed(rows_a_thread: int, random: numpy.random.Generator) -> None:
    """As many as are asked for, and nothing behind them."""
    emulator = Emulator("sm_90")
    module = emulator.load(expand_ptx())
    for flags in (1, int(random.integers(2, 512)), 512):
        product = DenseProduct(emulator, random, 200, 1, 528)
        words = emulator.array(numpy.full(520, 7, "u4"))
        product.expand(module, [(0, product.expanded(0))], True, rows_a_thread, flags, words)
        assert (words.numpy() == [0] * flags + [7] * (520 - flags)).all()


@pytest.mark.parametrize("swap_ab", [False, True], ids=["x_is_a", "x_is_b"])
@pytest.mark.parametrize("name", CONFIGS)
def test_products(name: str, swap_ab: bool, random: numpy.random.Generator) -> None:
    """Ragged sizes, batches, layouts, types; whole rounds and halved tiles; equal bits, nothing beside the result."""
    config = CONFIGS[name]
    raw = config.x_raw
    for case in range(SEEDS):
        seed = int(random.integers(2**30)) * 4 + 1 + case % 3  # lazy, and both kinds of random timing
        emulator, expand, module = load(config, seed)
        x, y = int(random.integers(1, 600)), int(random.integers(1, 300))
        k = 64 * int(random.integers(1, 14)) if raw else 16 * int(random.integers(1, 40))
        options = {"linear": not raw and case % 2 == 1, "out_type": (FP16, FP32)[int(random.integers(2))]}
        options["pitch"] = (k // 2 + 15) // 16 * 16 if raw or case % 2 else k // 2
        product = DenseProduct(emulator, random, *((y, x) if swap_ab else (x, y)), k, 1 + case % 2, **options)
        clusters = int(random.integers(1, 6))
        print(f"seed {seed}: {product.m} x {product.n} x {k} x {product.l}, {clusters} clusters, {options}")
        product.launch_dense(expand, module, config, swap_ab, clusters)
        product.check()


@pytest.mark.parametrize("name", CONFIGS)
def test_halved_tiles(name: str, random: numpy.random.Generator) -> None:
    """One whole round, then tiles of which each CTA of a cluster has half of K, with an odd number of stages too."""
    config = CONFIGS[name]
    for case in range(SEEDS):
        seed = int(random.integers(2**30)) * 4 + 1 + case % 3
        emulator, expand, module = load(config, seed)
        k = 64 * (2 * int(random.integers(0 if case % 2 else 1, 6)) + case % 2)
        product = DenseProduct(emulator, random, 700, 200, k)
        schedule = product.dense_schedule(False, 2)
        assert (schedule.whole, schedule.halved) == (2, 2)
        print(f"seed {seed}: K = {k}")
        product.launch_dense(expand, module, config, False, clusters=2)
        product.check()


@pytest.mark.parametrize("name", CONFIGS)
def test_shared_operands(name: str, random: numpy.random.Generator) -> None:
    """All batches with one A, or one B, which is expanded once."""
    config = CONFIGS[name]
    emulator, expand, module = load(config, 2)
    for which in range(2):
        product = DenseProduct(emulator, random, 70, 150, 128, l=3)
        product.share(which)
        product.launch_dense(expand, module, config, bool(which), clusters=2)
        product.check()


@pytest.mark.parametrize("swap_ab", [False, True], ids=["x_is_a", "x_is_b"])
@pytest.mark.parametrize("out_type", [FP16, BF16, FP32], ids=["fp16", "bf16", "fp32"])
def test_epilogue(out_type: int, swap_ab: bool, random: numpy.random.Generator) -> None:
    """alpha a column, c and bias, in the order and the roundings of problem.h."""
    config = CONFIGS["sm90_prefill_mixed" if out_type == FP16 else "sm90_prefill_fp16"]
    emulator, expand, module = load(config, int(random.integers(2**30)) * 4 + 2)
    m, n = (int(size) for size in random.integers(1, 260, 2))
    before, product = (DenseProduct(emulator, random, m, n, k, out_type=out_type) for k in (64, 192))
    product.add = before
    alpha, bias = (emulator.array(random.standard_normal(n).astype(numpy.float32)) for _ in range(2))
    product.more = {"alpha": alpha.address, "alpha_stride": 1, "bias": bias.address}
    before.launch_dense(expand, module, config, swap_ab, clusters=1, wait=False)
    product.launch_dense(expand, module, config, swap_ab, clusters=1)
    c = rounded(before.expected().astype(numpy.float32), out_type)
    value = alpha.numpy() * product.expected().astype(numpy.float32) + c + bias.numpy()
    assert (result(product) == rounded(value, out_type)).all(), f"{m} x {n}"
    assert product.untouched()


@pytest.mark.parametrize("swap_ab", [False, True], ids=["x_is_a", "x_is_b"])
@pytest.mark.parametrize("out_type", [FP16, BF16], ids=["fp16", "bf16"])
def test_plain_output(out_type: int, swap_ab: bool, random: numpy.random.Generator) -> None:
    """One alpha and nothing else, N a multiple of 8: stores of eight neighbours."""
    config = CONFIGS["sm90_prefill_mixed" if out_type == BF16 else "sm90_prefill_fp16"]
    emulator, expand, module = load(config, int(random.integers(2**30)) * 4 + 3)
    m, n = int(random.integers(1, 260)), 8 * int(random.integers(1, 40))
    product = DenseProduct(emulator, random, m, n, 128, 2, out_type=out_type)
    alpha = numpy.float32(random.standard_normal())
    product.more = {"alpha_value": alpha}
    product.launch_dense(expand, module, config, swap_ab, clusters=3)
    value = alpha * product.expected().astype(numpy.float32)
    assert (result(product) == rounded(value, out_type)).all(), f"{m} x {n}"
    assert product.untouched()


@pytest.mark.parametrize("name", CONFIGS)
def test_empty_k(name: str, random: numpy.random.Generator) -> None:
    config = CONFIGS[name]
    emulator, expand, module = load(config, 1)
    product = DenseProduct(emulator, random, 3, 5, 0)
    product.launch_dense(expand, module, config, False, clusters=4)
    product.check()


@pytest.mark.parametrize("name", CONFIGS)
def test_calls_in_a_row(name: str, random: numpy.random.Generator) -> None:
    """Under dependent launch, one workspace for all calls, each reading as c what the one before wrote."""
    config = CONFIGS[name]
    for case in range(SEEDS):
        emulator, expand, module = load(config, int(random.integers(2**30)) * 4 + 2 + case % 2)
        calls = [DenseProduct(emulator, random, 300, 20, 512) for _ in range(3)]
        places: dict[int, object] = {}
        for before, call in zip([None, *calls], calls):
            call.add, call.places = before, places
            call.launch_dense(expand, module, config, False, clusters=2, wait=False)
        emulator.synchronize()
        total = 0
        for call in calls:
            total = total + call.expected()
            assert (call.result() == total).all()
            assert call.untouched()


@pytest.mark.skipif("sm_90a" not in nvfp4.info()["archs"], reason="this build has no machine code for sm_90a")
@pytest.mark.skipif(not (sass.tool("nvdisasm") and sass.tool("cuobjdump")), reason=sass.NEEDS)
def test_machine_code() -> None:
    """The widest products alone, four of them to a group, x in registers where it is raw; nothing in local memory; the
    call before is waited for before anything is read or written."""
    source = Path(os.environ.get("SM90_PREFILL_CUBIN", nvfp4._C.__file__))
    kernels = sass.kernels_of(source, "nvfp4_sm90_prefill_")
    assert set(kernels) == {name.removeprefix("sm90_prefill_") for name in CONFIGS}, "install the package again"
    for name, config in CONFIGS.items():
        kernel = kernels[name.removeprefix("sm90_prefill_")]
        products = kernel.all("HGMMA")
        x = r"R\d+, " if config.x_raw else ""
        assert {i.opcode for i in products} == {"HGMMA.64x256x16.F32"} and len(products) == 8
        assert all(re.match(rf"R\d+, {x}gdesc\[UR\d+\], R\d+", i.operands) for i in products)
        assert [i.operands.endswith("gsb0") for i in products] == [False, False, False, True] * 2
        assert not kernel.all("LDL|STL|HMMA")
        # A multicast of y; y by itself, twice, and x.
        assert sorted(i.opcode for i in kernel.all("UTMALDG")) == ["UTMALDG.3D"] * 3 + ["UTMALDG.3D.MULTICAST"]
        (wait,), (launch,) = (kernel.all(pattern) for pattern in ("ACQBULK", "PREEXIT"))
        assert wait.address < launch.address < min(i.address for i in kernel.all("UTMALDG|UBLKCP|STG|LDG"))
