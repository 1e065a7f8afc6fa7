"""Programmatic dependent launch: a kernel reads and writes nothing that a grid before it uses ahead of
griddepcontrol.wait. The grid before writes one operand late, or reads and overwrites the output or the workspace late
(harness/predecessor.py). With constant_b, B is loaded ahead of the wait, and nothing else is. Kernels for every GPU
wait ahead of everything (test_dependent_sass.py), and those that quantize have no dependent launch.

SM90_SEEDS, SM100_SEEDS and SM120_SEEDS are the number of timings of each case (1).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy
import pytest
import sm90.gemm
import sm90.gemv
import sm90.prefill
import sm100.gemm
import sm120.gemm
import units.gemm
from emulate import Emulator
from harness.headers import Config
from harness.launch import Generator, Product, chain, check_chain, load, timing
from harness.predecessor import Predecessor
from harness.values import BF16, FP16, FP32, TYPES
from sm90.gemm import STAGE_K, StreamK
from sm90.operands import dequant_ptx
from sm90.prefill import PrefillProduct

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

READ_BY_MAINLOOP, READ_BY_EPILOGUE = ["a", "scale_a", "b", "scale_b"], ["alpha", "bias", "c"]
PRE_PASS, STREAMK = "sm90_gemm with the pre-pass", "sm90_gemm stream-K"
QUANTIZING = "sm90_gemv that quantizes"


@dataclass(frozen=True)
class Form:
    """Products of one size by one instantiation."""

    emulator: Emulator
    make: Callable[[], Product]  # random data
    queue: Callable[[Product, bool], None]  # its launches; False: without the pre-pass, if there is one

    def run_after(self, before: Predecessor, product: Product, pre_pass: bool = True) -> None:
        with before.launched():
            self.queue(product, pre_pass)
        product.check()


def configs_of_units(backend: str) -> list[Config]:
    return [config for config in units.gemm.CONFIGS.values() if config.headers.name == backend]


def kinds() -> dict[str, list[Config]]:
    """Instantiations by what they do around griddepcontrol.wait."""
    gemm, sm100_gemm = sm90.gemm.CONFIGS.values(), sm100.gemm.CONFIGS.values()
    return {
        "sm90_gemm": [config for config in gemm if config.dequant_b_in_kernel],
        PRE_PASS: [config for config in gemm if not config.dequant_b_in_kernel and not config.streamk],
        STREAMK: [config for config in gemm if config.streamk],
        "sm90_gemv": list(sm90.gemv.CONFIGS.values()),
        QUANTIZING: list(sm90.gemv.QUANTIZING.values()),
        **{f"{of}_units": configs_of_units(of) for of in units.gemm.BACKENDS},
        **{name: [config] for name, config in (sm90.prefill.CONFIGS | sm90.prefill.DIVIDED).items()},
        "sm100_gemm": [config for config in sm100_gemm if not config.cp_async and config.cta_group == 1],
        "sm100_gemm pairs": [config for config in sm100_gemm if config.cta_group == 2],
        "sm100_gemm cp_async": [config for config in sm100_gemm if config.cp_async],
        "sm120_gemm": list(sm120.gemm.CONFIGS.values()),
        "sm120_gemm cp_async": list(sm120.gemm.CONFIGS.values()),
    }


KINDS = kinds()
WITH_PRE_PASS = [PRE_PASS, STREAMK, *sm90.prefill.CONFIGS]
UNITS = [f"{of}_units" for of in units.gemm.BACKENDS]
WITH_CONSTANT_B = ["sm90_gemm", PRE_PASS, STREAMK, *UNITS, "sm100_gemm", "sm100_gemm pairs", "sm120_gemm"]


def seeds(kind: str, random: Generator) -> list[int]:
    count = int(os.environ.get(f"{kind.split('_')[0].upper()}_SEEDS", 1))
    return [timing(random, case) for case in range(count)]


def form_of(
    kind: str, seed: int, random: Generator, out_type: int, empty: bool = False, constant_b: bool = False
) -> Form:
    """A form of one of the instantiations, about one tile; empty: K = 0. constant_b: with that flag, and on sm90 B is
    mma_a."""
    config = KINDS[kind][random.integers(len(KINDS[kind]))]
    emulator, module = load(config, seed)
    swap_ab = (constant_b and kind.startswith("sm90")) or bool(random.integers(2))
    whole = bool(random.integers(2))

    def sizes(mma_m: int, mma_n: int) -> tuple[int, int]:
        mma_m, mma_n = (size if whole else size - int(random.integers(size // 2)) for size in (mma_m, mma_n))
        return (mma_n, mma_m) if swap_ab else (mma_m, mma_n)

    if kind.startswith("sm90_gemv"):
        n, k = int(random.integers(20, 200)), 0 if empty else 32 * int(random.integers(20, 50))
        return Form(
            emulator,
            lambda: sm90.gemv.products_of(config)(emulator, random, config.rows, n, k, out_type=out_type),
            lambda product, _: product.launch(module, config, sms=9, wait=False),
        )
    if kind in UNITS:
        n, k = int(random.integers(20, 200)), 32 * int(random.integers(20, 50))

        def make_units() -> Product:
            product = units.gemm.products_of(config)(emulator, random, 8 * config.a_units, n, k, out_type=out_type)
            product.constant_b = constant_b
            return product

        return Form(emulator, make_units, lambda product, _: product.launch(module, config, sms=9, wait=False))
    if kind.startswith(("sm100", "sm120")):
        own = sm100.gemm if kind.startswith("sm100") else sm120.gemm
        split = 1 if empty else int(random.choice(own.splits(config)[:2]))
        k = 0 if empty else 256 * split + 64 * int(random.integers(4))
        if own is sm100.gemm:
            size = sizes(sm100.gemm.mma_tile_m(config), config.mma_tile_n * config.multicast)
        else:
            size = sizes(config.mma_tile_m, config.mma_tile_n)
        linear = kind.endswith("cp_async")

        def make_blackwell() -> Product:
            product = own.Product(emulator, random, *size, k, out_type=out_type, linear=linear)
            product.constant_b = constant_b
            return product

        return Form(
            emulator,
            make_blackwell,
            lambda product, _: product.launch(module, config, swap_ab, split, wait=False),
        )
    dequant, mma_b = emulator.load(dequant_ptx()), 0 if swap_ab else 1
    if kind.startswith("sm90_prefill"):
        k, clusters = 0 if empty else 64 * int(random.integers(1, 6)), int(random.integers(1, 3))
        if config.divided:
            k, clusters = 64 * int(random.integers(9, 14)), 1
        size = sizes(256, 128)

        def make_prefill() -> Product:
            product = sm90.prefill.PrefillProduct(emulator, random, *size, k, out_type=out_type)
            for which in [mma_b] if config.mma_a_e2m1 else [0, 1]:
                product.outputs[which] = product.dequant_output(which)
            return product

        def queue_prefill(product: Product, pre_pass: bool) -> None:
            product.launch_prefill(dequant if pre_pass else None, module, config, swap_ab, clusters, wait=False)

        return Form(emulator, make_prefill, queue_prefill)

    split, streamk = int(random.integers(1, 3)), None
    k = 0 if empty else STAGE_K * int(random.integers(split + 2, 5)) - 16 * int(random.integers(8))
    size = sizes(config.mma_tile_m, config.mma_tile_n)
    if config.streamk:
        worker_stages = int(random.integers(1, 3))
        streamk = StreamK(-(-2 // (worker_stages * split)), 2, worker_stages)

    def make_gemm() -> Product:
        product = sm90.gemm.product(emulator, random, False, *size, k, out_type=out_type)
        product.constant_b = constant_b
        if not config.dequant_b_in_kernel and not empty:
            product.outputs[mma_b] = product.dequant_output(mma_b)
        product.schedule(config, swap_ab, split, streamk=streamk)  # makes what else is in the workspace
        if product.fixup_flags:
            product.fixup_flags.numpy()[...] = 4 * config.math_warpgroups  # as the product before leaves them
        return product

    def queue_gemm(product: Product, pre_pass: bool) -> None:
        if pre_pass and product.outputs:
            flags = product.fixup_flags.shape[0] if product.fixup_flags else 0
            product.dequantize(dequant, list(product.outputs.items()), flags=flags, zeroed=product.fixup_flags)
        product.launch(module, config, swap_ab, split, wait=False, streamk=streamk)

    return Form(emulator, make_gemm, queue_gemm)


def set_epilogue(product: Product, operand: str, random: Generator) -> None:
    """With that operand; the others at random, or none, which has code of its own."""
    plain = operand not in ("bias", "c") and product.out_type in (FP16, BF16) and bool(random.integers(2))
    alpha, bias, c = random.choice(["one", "value"]), None, "none"
    if not plain:
        alpha, bias, c = random.choice(["vector", "one"]), random.choice(TYPES), random.choice(["none", "apart"])
    product.set_epilogue(
        random,
        "one" if operand == "alpha" and alpha == "value" else alpha,
        int(bias) if bias is not None else None,
        "apart" if operand == "c" else c,
    )


def out_type(random: Generator) -> int:
    return TYPES[random.integers(3)]


def run(kind: str, operand: str, random: Generator, empty: bool = False, constant_b: bool = False) -> None:
    """A product after a grid that writes that operand late, or that reads the output late and overwrites it."""
    for seed in seeds(kind, random):
        form = form_of(kind, seed, random, out_type(random), empty, constant_b)
        product = form.make()
        set_epilogue(product, operand, random)
        before = Predecessor(form.emulator, KINDS[kind][0].headers.name)
        if operand == "out":
            before.reads_and_writes(product.out)
        else:
            before.writes(product.memory(operand))
        form.run_after(before, product)


@pytest.mark.parametrize("operand", [*READ_BY_MAINLOOP, *READ_BY_EPILOGUE, "out"])
@pytest.mark.parametrize("kind", KINDS)
def test_operand(kind: str, operand: str, random: Generator) -> None:
    run(kind, operand, random)


def test_global_scale(random: Generator) -> None:
    run(QUANTIZING, "global_scale", random)


@pytest.mark.parametrize("operand", ["a", "scale_a", *READ_BY_EPILOGUE, "out"])
@pytest.mark.parametrize("kind", WITH_CONSTANT_B)
def test_other_operands_than_a_constant_b(kind: str, operand: str, random: Generator) -> None:
    run(kind, operand, random, constant_b=True)


@pytest.mark.parametrize("operand", ["b", "scale_b"])
@pytest.mark.parametrize("kind", WITH_CONSTANT_B)
def test_constant_b_is_loaded_early(kind: str, operand: str, random: Generator) -> None:
    """A grid that does write it late is the caller's error: the result is wrong."""
    with pytest.raises(AssertionError, match="wrong, first at"):
        run(kind, operand, random, constant_b=True)


@pytest.mark.parametrize("operand", [*READ_BY_EPILOGUE, "out"])
@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind not in (STREAMK, *UNITS, QUANTIZING, *sm90.prefill.DIVIDED)]
)
def test_operand_with_empty_k(kind: str, operand: str, random: Generator) -> None:
    """The epilogue then has no pre-pass before it, and waits for no main loop."""
    run(kind, operand, random, empty=True)


@pytest.mark.parametrize("kind", WITH_PRE_PASS)
def test_pre_pass_is_late(kind: str, random: Generator) -> None:
    """The grid before writes the dequantized operands, and zeroes the flags, in place of the pre-pass."""
    for seed in seeds(kind, random):
        form = form_of(kind, seed, random, out_type(random))
        product = form.make()
        before = Predecessor(form.emulator, "sm90")
        for which, output in product.outputs.items():
            output.numpy()[...] = product.expected_dequant(which)
            before.writes(output)
        if flags := getattr(product, "fixup_flags", None):
            arrived = flags.numpy()[0]
            flags.numpy()[...] = 0
            before.writes(flags, before=arrived)
        form.run_after(before, product, pre_pass=False)


@pytest.mark.parametrize("used", ["data", "scale", "output", "flags"])
def test_pre_pass(used: str, random: Generator) -> None:
    """Alone, for both operands. Its output and the flags are the workspace of the product before."""
    for seed in seeds("sm90", random):
        emulator = Emulator("sm_90", seed=seed)
        module = emulator.load(dequant_ptx())
        product = PrefillProduct(emulator, random, int(random.integers(20, 200)), int(random.integers(20, 200)), 320)
        outputs = {which: product.dequant_output(which) for which in (0, 1)}
        flags = emulator.array(numpy.full(9, 8, "u4"))
        before, which = Predecessor(emulator, "sm90"), int(random.integers(2))
        print(f"{product.m} x {product.n}, operand {which}")
        if used in ("data", "scale"):
            before.writes(product.arrays[2 * which + (used == "scale")])
        else:
            before.reads_and_writes(outputs[which] if used == "output" else flags)
        with before.launched():
            product.dequantize(module, list(outputs.items()), flags=9, zeroed=flags)
        for each, output in outputs.items():
            assert (output.numpy() == product.expected_dequant(each)).all(), f"operand {each}"
        assert not flags.numpy().any()


@pytest.mark.parametrize("used", ["data", "output", "flags"])
@pytest.mark.parametrize("a_type", [FP16, BF16], ids=["fp16", "bf16"])
def test_pre_pass_of_16_bit_a(a_type: int, used: str, random: Generator) -> None:
    """A is put into order alone, for a kernel that takes B as it is. The bits are those of the pre-pass after no other
    grid. Which order that is tests of products see."""
    for seed in seeds("sm90", random):
        emulator = Emulator("sm_90", seed=seed)
        module = emulator.load(dequant_ptx())
        product = PrefillProduct(emulator, random, int(random.integers(20, 200)), 8, 32 * int(random.integers(1, 20)))
        product.span = int(random.choice([64, STAGE_K]))
        pitch = 2 * product.k + 16
        data = emulator.array(random.integers(0, 2**16, (product.m, pitch // 2), "u2"))
        placed = {"data": data.address, "pitch": pitch, "rows": product.m, "type": a_type}
        product.placed = lambda _, placed=placed: placed
        alone, output = product.dequant_output(0), product.dequant_output(0)
        product.dequantize(module, [(0, alone)], wait=True)
        flags = emulator.array(numpy.full(9, 8, "u4"))
        before = Predecessor(emulator, "sm90")
        print(f"{product.m} x {product.k}, span {product.span}")
        if used == "data":
            before.writes(data)
        else:
            before.reads_and_writes(output if used == "output" else flags)
        with before.launched():
            product.dequantize(module, [(0, output)], flags=9, zeroed=flags)
        got, given = output.numpy().view("u2")[0], data.numpy()[:, : product.k]
        assert (got == alone.numpy().view("u2")[0]).all() and not flags.numpy().any()
        given = numpy.pad(given, ((0, 0), (0, got.shape[1] - product.k)))
        assert (numpy.sort(got) == numpy.sort(given)).all()


@pytest.mark.parametrize(
    ("kind", "constant_b"), [*((kind, False) for kind in WITH_PRE_PASS), (PRE_PASS, True), (STREAMK, True)]
)
def test_products_share_a_workspace(kind: str, constant_b: bool, random: Generator) -> None:
    """Three products of one size and other data, each with its pre-pass and with the result before as c."""
    for seed in seeds(kind, random):
        form = form_of(kind, seed, random, FP32, constant_b=constant_b)
        calls = chain([form.make() for _ in range(3)])
        for call in calls[1:]:
            for name in ("outputs", "partial_tiles", "fixup_flags"):
                if hasattr(calls[0], name):
                    setattr(call, name, getattr(calls[0], name))
        for call in calls:
            form.queue(call, True)
        form.emulator.synchronize()
        check_chain(calls)
