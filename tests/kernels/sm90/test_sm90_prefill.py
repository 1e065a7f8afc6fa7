"""The large-M (prefill) kernels of Hopper (csrc/kernels/sm90/dequant.cu, csrc/kernels/sm90/prefill.cu), launched on the
emulated H200 without the planner, with few clusters, so that small products have several waves, split-K tiles and
batches.

SM90_SEEDS is the number of timings of each case (2). The machine code is that of the installed module, or of the file
that SM90_PREFILL_CUBIN names.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy
import pytest
from emulate import Emulator, EmulatorError, Module
from harness import launch, sass
from harness.headers import Config
from harness.launch import chain, check_chain, timing
from harness.values import BF16, FP16, FP32, rounded, stored
from sm90.operands import dequant_ptx
from sm90.prefill import ALL_CONFIGS, CHUNK, CONFIGS, DIVIDED, PIECES, A16Product, PrefillProduct

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

SEEDS = int(os.environ.get("SM90_SEEDS", 2))
by_rows = pytest.mark.parametrize("rows_per_thread", [1, 4])


def load(config: Config, seed: int) -> tuple[Emulator, Module, Module]:
    emulator, module = launch.load(config, seed)
    return emulator, emulator.load(dequant_ptx()), module


@by_rows
@pytest.mark.parametrize("layout", ["128x4", "linear"])
def test_dequantized_values(layout: str, rows_per_thread: int, random: numpy.random.Generator) -> None:
    """Both operands in one launch, any number of rows and batches: every value times its scale, zeros past K, nothing
    out of bounds. The first operand has more than one block of scales, and K exceeds that of a CTA."""
    for case in range(2 * SEEDS):
        emulator = Emulator("sm_90", seed=case)
        module = emulator.load(dequant_ptx())
        m, n, k = (int(random.integers(low, high)) for low, high in ((130, 400), (1, 200), (17, 50)))
        options = {"linear": layout == "linear", "integer": False, "pitch": 8 * (k + int(random.integers(0, 3)))}
        product = PrefillProduct(emulator, random, m, n, 16 * k, int(random.integers(1, 4)), **options)
        if case % 2:
            product.share(case // 2 % 2)
        outputs = {which: product.dequant_output(which) for which in (1, 0)}
        product.dequantize(module, list(outputs.items()), True, rows_per_thread)
        for which, output in outputs.items():
            expected = product.expected_dequant(which)
            assert (output.numpy() == expected).all(), f"{m} x {n} x {16 * k}, operand {which}"


@by_rows
@pytest.mark.parametrize("layout", ["128x4", "linear"])
@pytest.mark.parametrize(("rows", "k"), [(1, 16), (1, 64), (31, 48), (32, 256), (33, 272), (96, 80), (97, 1040)])
def test_dequantized_edges(
    rows: int, k: int, layout: str, rows_per_thread: int, random: numpy.random.Generator
) -> None:
    """One operand that ends at, before or behind the part of a lane, a quad, a warp or a CTA; batches."""
    emulator = Emulator("sm_90", seed=2)
    product = PrefillProduct(emulator, random, rows, 1, k, 3, linear=layout == "linear", integer=False)
    output = product.dequant_output(0)
    product.dequantize(emulator.load(dequant_ptx()), [(0, output)], True, rows_per_thread)
    assert (output.numpy() == product.expected_dequant(0)).all()


@by_rows
@pytest.mark.parametrize("x_type", [FP16, BF16])
@pytest.mark.parametrize(("rows", "k"), [(1, 16), (31, 48), (33, 272), (97, 1040)])
def test_quantized_values(rows: int, k: int, x_type: int, rows_per_thread: int, random: numpy.random.Generator) -> None:
    """A 16-bit A that is quantized first, beside a dequantized B; the global scale in memory, by value, and out of the
    range in which a reciprocal serves. Each block has a 6 or -6, so that it quantizes to itself."""
    scales = [(0.125, True), (0.125, False)] + [(2.0**-60, True)] * (x_type == BF16)  # no fp16 number reaches the last
    for g, in_memory in scales:
        emulator = Emulator("sm_90", seed=rows)
        product = PrefillProduct(emulator, random, rows, 70, k, 2, integer=False)
        product.data[0][:, :, ::8] |= 7
        x = stored(product.decoded(0) * g, x_type)
        memory = emulator.array(numpy.float32([g if in_memory else numpy.nan]))
        outputs = {which: product.dequant_output(which) for which in (1, 0)}
        product.dequantize(
            emulator.load(dequant_ptx()), list(outputs.items()), True, rows_per_thread, x=(x_type, emulator.array(x)),
            global_scale=memory.address if in_memory else 0, global_value=numpy.nan if in_memory else g,
        )  # fmt: skip
        for which, output in outputs.items():
            assert (output.numpy() == product.expected_dequant(which)).all(), f"operand {which}, {g}"


@by_rows
def test_dequantized_scales(rows_per_thread: int, random: numpy.random.Generator) -> None:
    """Every e4m3 scale, NaN included, times every value."""
    emulator = Emulator("sm_90")
    product = PrefillProduct(emulator, random, 128, 1, 16, linear=True)
    product.data[0][:] = (numpy.arange(8) * 2 | (numpy.arange(8) * 2 + 1) << 4).astype(numpy.uint8)
    product.scales[0][0, :, 0] = numpy.arange(128)
    product.arrays[0], product.arrays[1] = emulator.array(product.data[0]), emulator.array(product.scales[0])
    output = product.dequant_output(0)
    product.dequantize(emulator.load(dequant_ptx()), [(0, output)], True, rows_per_thread)
    assert numpy.array_equal(output.numpy(), product.expected_dequant(0), equal_nan=True)
    assert numpy.isnan(output.numpy()[0, 127]).sum() == 16


@by_rows
def test_flags_are_zeroed(rows_per_thread: int, random: numpy.random.Generator) -> None:
    """`flags` words, and nothing behind them."""
    emulator = Emulator("sm_90")
    module = emulator.load(dequant_ptx())
    for flags in (1, int(random.integers(2, 512)), 512):
        product = PrefillProduct(emulator, random, 200, 1, 528)
        words = emulator.array(numpy.full(520, 7, "u4"))
        product.dequantize(module, [(0, product.dequant_output(0))], True, rows_per_thread, flags, words)
        assert (words.numpy() == [0] * flags + [7] * (520 - flags)).all()


@pytest.mark.parametrize("swap_ab", [False, True], ids=["mma_a_is_a", "mma_a_is_b"])
@pytest.mark.parametrize("name", CONFIGS)
def test_products(name: str, swap_ab: bool, random: numpy.random.Generator) -> None:
    """Ragged sizes, batches, layouts, types; data-parallel and split-K tiles; equal bits, nothing out of bounds."""
    config = CONFIGS[name]
    e2m1 = config.mma_a_e2m1
    for case in range(SEEDS):
        seed = timing(random, case)
        emulator, dequant, module = load(config, seed)
        mma_m, mma_n = int(random.integers(1, 600)), int(random.integers(1, 300))
        k = 64 * int(random.integers(1, 14)) if e2m1 else 16 * int(random.integers(1, 40))
        options = {"linear": not e2m1 and case % 2 == 1, "out_type": (FP16, FP32)[int(random.integers(2))]}
        options["pitch"] = (k // 2 + 15) // 16 * 16 if e2m1 or case % 2 else k // 2
        product = PrefillProduct(
            emulator, random, *((mma_n, mma_m) if swap_ab else (mma_m, mma_n)), k, 1 + case % 2, **options
        )
        clusters = int(random.integers(1, 6))
        print(f"seed {seed}: {product.m} x {product.n} x {k} x {product.l}, {clusters} clusters, {options}")
        product.launch_prefill(dequant, module, config, swap_ab, clusters)
        product.check()


@pytest.mark.parametrize("rest", ["some pairs", "split-K at the end", "two bands"])
@pytest.mark.parametrize("name", DIVIDED)
def test_divided_dequantization(name: str, rest: str, random: numpy.random.Generator) -> None:
    """K of at least three blocks, the last of 64 to 256: the kernel dequantizes what the pre-pass leaves, in one group
    of tiles of mma_b or several, the last one smaller, and once. The workspace holds anything before the call."""
    config = ALL_CONFIGS[name]
    for case in range(SEEDS):
        seed = timing(random, case)
        emulator, dequant, module = load(config, seed)
        if rest == "split-K at the end":
            mma_m, mma_n, clusters = int(random.integers(1, 257)), int(random.integers(769, 1024)), 3
        elif rest == "two bands":
            mma_m, mma_n, clusters = 2048 + int(random.integers(1, 257)), int(random.integers(257, 600)), 9
        else:
            mma_m, mma_n, clusters = int(random.integers(257, 520)), int(random.integers(1025, 1300)), 4
        k = 2 * CHUNK + 64 * int(random.integers(1, 5 if rest == "two bands" else 13))
        swap_ab = bool(case % 2)
        product = PrefillProduct(emulator, random, *((mma_n, mma_m) if swap_ab else (mma_m, mma_n)), k)
        schedule = product.prefill_schedule(config, swap_ab, clusters)
        assert schedule.group_tiles and (rest != "split-K at the end" or schedule.split_k_tiles == 2)
        assert rest != "some pairs" or schedule.tiles_mma_n > schedule.group_tiles
        print(f"seed {seed}: {product.m} x {product.n} x {k}, {clusters} clusters, {schedule.group_tiles} in a group")
        product.launch_prefill(dequant, module, config, swap_ab, clusters)
        product.check()
        flags, which = product.flags.numpy(), int(not swap_ab)
        assert (flags[:-2] == PIECES).all() and flags[-2] >= PIECES * schedule.blocks == flags[-1]
        assert (product.outputs[which].numpy() == product.expected_dequant(which))[:, :, :k].all()


def test_flags_are_read_until_the_last_piece(random: numpy.random.Generator) -> None:
    """The flag of the last block and the number of all pieces lack one: the producer waits for the flag for ever."""
    config = ALL_CONFIGS["sm90_prefill_divided"]
    for case in range(SEEDS):
        emulator, dequant, module = load(config, timing(random, case))
        product = PrefillProduct(emulator, random, 300, 1100, 2 * CHUNK + 320)
        product.lacks_a_piece = True
        with pytest.raises(EmulatorError, match="deadlock"):
            product.launch_prefill(dequant, module, config, False, clusters=4)


@pytest.mark.parametrize("name", [name for name, config in ALL_CONFIGS.items() if config.divided])
def test_flags_are_acquired(name: str) -> None:
    """The number of pieces and the flag of a block are read by acquires, which the emulator does not ask for."""
    config = ALL_CONFIGS[name]
    text = launch.only_entry(launch.ptx_of(config), config.kernel)
    assert re.findall(r"\bld\.(?:acquire|relaxed|volatile|mmio)[.\w:]*", text) == ["ld.acquire.gpu.global.u32"] * 2


@pytest.mark.parametrize("name", [name for name, config in ALL_CONFIGS.items() if config.mma_a_e2m1])
def test_a16_products(name: str, random: numpy.random.Generator) -> None:
    """16-bit A, NaN behind its rows: dequantized by the pre-pass alone, with batches, of which some share A; divided,
    in several groups, the last piece partly behind the last row."""
    config = ALL_CONFIGS[name]
    for case in range(2 * SEEDS):
        emulator, dequant, module = load(config, timing(random, case))
        m, n, clusters, k, l = *(int(random.integers(1, most)) for most in (600, 400, 6, 20)), 1 + case // 2 % 2
        if config.divided:
            m, n, clusters, k, l = int(random.integers(257, 800)), int(random.integers(257, 400)), 2, k % 8 + 9, 1
        out_type = (FP16, FP32, BF16)[int(random.integers(3))]
        product = A16Product(emulator, random, config, m, n, 64 * k, l, out_type=out_type)
        if l > 1 and case % 2:
            product.shared, product.values = 0, numpy.repeat(product.values[:1], l, axis=0)
            product.extras |= {"a_batch": 0}
        print(f"{m} x {n} x {64 * k} x {l}, {clusters} clusters, type {out_type}")
        product.launch_prefill(dequant, module, config, True, clusters)
        product.check()


@by_rows
def test_flags_of_prefill(rows_per_thread: int, random: numpy.random.Generator) -> None:
    """The pre-pass of a divided dequantization sets every flag, dequantizes its part and writes nothing else."""
    emulator = Emulator("sm_90")
    product = PrefillProduct(emulator, random, 300, 1, 5 * CHUNK - 64, integer=False)
    output = product.dequant_output(0)
    before = output.numpy().copy()
    words = emulator.array(random.integers(0, 2**32, 130, "u4"))
    kept = words.numpy()[121:].copy()
    product.dequantize(emulator.load(dequant_ptx()), [(0, output)], True, rows_per_thread, 121, words, (256, 2 * CHUNK),
                       ready=24)  # fmt: skip
    wanted = [PIECES] * 24 + [0] * 95 + [24 * PIECES] * 2
    assert (words.numpy()[:121] == wanted).all() and (words.numpy()[121:] == kept).all()
    made = numpy.zeros(output.shape, bool)
    made[:, :256, : 2 * CHUNK] = True
    assert (output.numpy() == product.expected_dequant(0))[made].all()
    assert (output.numpy().view("u2") == before.view("u2"))[~made].all()


@pytest.mark.parametrize("name", CONFIGS)
def test_split_k_tiles(name: str, random: numpy.random.Generator) -> None:
    """One data-parallel wave, then tiles split along K over the CTAs of a cluster, also for an odd k_stages."""
    config = CONFIGS[name]
    for case in range(SEEDS):
        seed = timing(random, case)
        emulator, dequant, module = load(config, seed)
        k = 64 * (2 * int(random.integers(0 if case % 2 else 1, 6)) + case % 2)
        product = PrefillProduct(emulator, random, 700, 200, k)
        schedule = product.prefill_schedule(config, False, 2)
        assert (schedule.dp_pairs, schedule.split_k_tiles) == (2, 2)
        print(f"seed {seed}: K = {k}")
        product.launch_prefill(dequant, module, config, False, clusters=2)
        product.check()


@pytest.mark.parametrize("name", CONFIGS)
def test_bands_of_tiles(name: str, random: numpy.random.Generator) -> None:
    """More tiles along mma_m than a band holds: each is computed once."""
    config = CONFIGS[name]
    emulator, dequant, module = load(config, timing(random, 0))
    product = PrefillProduct(emulator, random, 2048 + int(random.integers(1, 300)), 257, 64)
    product.launch_prefill(dequant, module, config, False, clusters=3)
    product.check()


@pytest.mark.parametrize("name", CONFIGS)
def test_shared_operands(name: str, random: numpy.random.Generator) -> None:
    """All batches share A, or B, which is dequantized once."""
    config = CONFIGS[name]
    emulator, dequant, module = load(config, 2)
    for which in range(2):
        product = PrefillProduct(emulator, random, 70, 150, 128, l=3)
        product.share(which)
        product.launch_prefill(dequant, module, config, bool(which), clusters=2)
        product.check()


@pytest.mark.parametrize("swap_ab", [False, True], ids=["mma_a_is_a", "mma_a_is_b"])
@pytest.mark.parametrize("out_type", [FP16, BF16, FP32], ids=["fp16", "bf16", "fp32"])
def test_epilogue(out_type: int, swap_ab: bool, random: numpy.random.Generator) -> None:
    """alpha per column, c and bias, with the order and rounding of problem.h."""
    config = CONFIGS["sm90_prefill_mixed" if out_type == FP16 else "sm90_prefill_fp16"]
    emulator, dequant, module = load(config, int(random.integers(2**30)) * 4 + 2)
    m, n = (int(size) for size in random.integers(1, 260, 2))
    before, product = (PrefillProduct(emulator, random, m, n, k, out_type=out_type) for k in (64, 192))
    product.add = before
    alpha, bias = (emulator.array(random.standard_normal(n).astype(numpy.float32)) for _ in range(2))
    product.extras = {"alpha": alpha.address, "alpha_stride": 1, "bias": bias.address}
    before.launch_prefill(dequant, module, config, swap_ab, clusters=1, wait=False)
    product.launch_prefill(dequant, module, config, swap_ab, clusters=1)
    c = rounded(before.expected().astype(numpy.float32), out_type)
    product.check(alpha.numpy() * product.expected().astype(numpy.float32) + c + bias.numpy())


@pytest.mark.parametrize("swap_ab", [False, True], ids=["mma_a_is_a", "mma_a_is_b"])
@pytest.mark.parametrize("out_type", [FP16, BF16], ids=["fp16", "bf16"])
def test_plain_output(out_type: int, swap_ab: bool, random: numpy.random.Generator) -> None:
    """alpha alone, N a multiple of 8: 16-byte stores. Two tiles or more along M and N; split-K tiles;
    batches."""
    config = CONFIGS["sm90_prefill_mixed" if out_type == BF16 else "sm90_prefill_fp16"]
    emulator, dequant, module = load(config, int(random.integers(2**30)) * 4 + 3)
    for clusters in (3, 5):
        m, n = int(random.integers(257, 520)), 8 * int(random.integers(33, 65))
        product = PrefillProduct(emulator, random, m, n, 128, clusters // 2, out_type=out_type)
        split_k_tiles = product.prefill_schedule(config, swap_ab, clusters).split_k_tiles
        print(f"{m} x {n}, {clusters} clusters, {split_k_tiles} split-K tiles")
        alpha = numpy.float32(random.standard_normal())
        product.extras = {"alpha_value": alpha}
        product.launch_prefill(dequant, module, config, swap_ab, clusters)
        product.check(alpha * product.expected().astype(numpy.float32))


@pytest.mark.parametrize("name", CONFIGS)
def test_empty_k(name: str, random: numpy.random.Generator) -> None:
    config = CONFIGS[name]
    emulator, dequant, module = load(config, 1)
    product = PrefillProduct(emulator, random, 3, 5, 0)
    product.launch_prefill(dequant, module, config, False, clusters=4)
    product.check()


@pytest.mark.parametrize("name", [*CONFIGS, *DIVIDED])
def test_calls_in_a_row(name: str, random: numpy.random.Generator) -> None:
    """Dependent launches in one workspace, each reading the previous output as c."""
    config = ALL_CONFIGS[name]
    for case in range(SEEDS):
        emulator, dequant, module = load(config, int(random.integers(2**30)) * 4 + 2 + case % 2)
        k = 832 if config.divided else 512  # with flags: those of the call before
        calls = chain([PrefillProduct(emulator, random, 600 if config.divided else 300, 20, k) for _ in range(3)])
        for call in calls:
            call.outputs, call.flags = calls[0].outputs, calls[0].flags
            call.launch_prefill(dequant, module, config, False, clusters=2, wait=False)
        emulator.synchronize()
        check_chain(calls)


@pytest.mark.skipif("sm_90a" not in nvfp4.info()["archs"], reason="this build has no machine code for sm_90a")
@sass.needed
def test_machine_code() -> None:
    """wgmma m64n256k16 only, four to a group, e2m1 mma_a in registers; no local memory; griddepcontrol.wait before any
    access to global memory."""
    source = Path(os.environ.get("SM90_PREFILL_CUBIN", nvfp4._C.__file__))
    kernels = sass.kernels_of(source, "nvfp4_sm90_prefill_")
    configs = ALL_CONFIGS
    assert set(kernels) == {name.removeprefix("sm90_prefill_") for name in configs}, "install the package again"
    for name, config in configs.items():
        kernel = kernels[name.removeprefix("sm90_prefill_")]
        products = kernel.all("HGMMA")
        a = r"R\d+, " if config.mma_a_e2m1 else ""
        opcode = "HGMMA.64x256x16.F32" + ".BF16" * config.bf16
        assert {i.opcode for i in products} == {opcode} and len(products) == 8
        assert all(re.match(rf"R\d+, {a}gdesc\[UR\d+\], R\d+", i.operands) for i in products)
        assert [i.operands.endswith("gsb0") for i in products] == [False, False, False, True] * 2
        assert not kernel.all("LDL|STL|HMMA")
        # mma_b: a multicast load, and two loads for split-K tiles; mma_a: one.
        assert sorted(i.opcode for i in kernel.all("UTMALDG")) == ["UTMALDG.3D"] * 3 + ["UTMALDG.3D.MULTICAST"]
        (wait,), (launch,) = (kernel.all(pattern) for pattern in ("ACQBULK", "PREEXIT"))
        assert wait.address < launch.address < min(i.address for i in kernel.all("UTMALDG|UBLKCP|STG|LDG"))
