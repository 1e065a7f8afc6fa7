"""The model of the sm100 kernels: its C form is the Python one, its counts are a kernel's, published figures are where
the table says."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import b200_report as report  # noqa: E402
import b200_trace as trace  # noqa: E402
import model_b200 as model  # noqa: E402

FIELDS = [(name, ctypes.c_int64) for name in ("mma_m", "mma_n", "k", "l")] + [
    (name, ctypes.c_int32)
    for name in (
        "sm_count",
        "cta_group",
        "mma_tile_n",
        "stages",
        "accumulators",
        "swap_ab",
        "split_k",
        "cp_async",
        "cp_async_values",
        "co_resident",
        "partials_in_stages",
        "output_bytes",
    )
]
ESTIMATE = '#include "kernels/sm100/model.h"\ndouble estimate(const sm100_model_input *in) { return sm100_estimate_us(in); }\n'


class Input(ctypes.Structure):
    _fields_ = FIELDS


@pytest.fixture(scope="module")
def estimate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    (folder / "estimate.c").write_text(ESTIMATE)
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", f"-I{ROOT / 'csrc'}"]
    subprocess.run(["gcc", *flags, folder / "estimate.c", "-o", folder / "estimate.so"], check=True)
    function = ctypes.CDLL(str(folder / "estimate.so")).estimate
    function.restype = ctypes.c_double
    function.argtypes = [ctypes.POINTER(Input)]
    return function


def test_c_estimate_is_the_models(estimate):
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    for _ in range(2000):
        shape = model.Shape(*(int(2 ** draw.uniform(0, 13)) for _ in range(2)), 16 * int(2 ** draw.uniform(0, 10)))
        shape = model.Shape(shape.m, shape.n, shape.k, draw.choice((1, 1, 2, 8)))
        config = draw.choice(model.configs())
        split = draw.choice(
            [n for n in (1, 2, 4, 8) if n * config.cta_group <= 8 and n <= model.ceil_div(shape.k, 256)]
        )
        swap_ab, values, sms = draw.random() < 0.5, draw.random() < 0.5, draw.choice((148, 132, 20))
        x, y = (shape.n, shape.m) if swap_ab else (shape.m, shape.n)
        given = Input(
            x,
            y,
            shape.k,
            shape.l,
            sms,
            config.cta_group,
            config.mma_tile_n,
            config.stages,
            config.accumulators,
            swap_ab,
            split,
            config.cp_async,
            values,
            config.co_resident,
            split > 1 and config.partials_in_stages(split),
            2,
        )
        got = estimate(ctypes.byref(given))
        work = model.work_of(shape, config, split, swap_ab, values)
        if model.clusters_that_fit(sms, work.cluster, work.per_sm) == 0:
            assert got == float("inf"), f"seed {seed}"
            continue
        want = model.times(work, model.Constants(), sms).dependent
        assert got == pytest.approx(want, rel=1e-9), f"seed {seed}: {shape} {config} split {split} {swap_ab} {sms}"


# What kernels/sm100/plan.h takes first, of dense operands in the tensor core's layout, on the B200 of the model.
PLANNER = r"""
#include <stdio.h>
#include "kernels.h"
#include "sm100_plan.h"
int main(void) {
    static uint8_t memory[16] __attribute__((aligned(16)));
    device_facts facts = {.compute_capability = 100, .has_sm100 = 1, .sm_count = 148, .shared_per_block = 232448,
                          .shared_per_sm = 233472, .l2_bytes = 126 << 20};
    long long m, n, k, l;
    while (scanf("%lld %lld %lld %lld", &m, &n, &k, &l) == 4) {
        int64_t atoms = k / 64 * 512;
        gemm_problem p = {.m = m, .n = n, .k = k, .l = l, .a = memory, .b = memory, .a_pitch = k / 2,
                          .b_pitch = k / 2, .a_batch = m * k / 2, .b_batch = n * k / 2, .sfa = memory, .sfb = memory,
                          .sfa_pitch = atoms, .sfb_pitch = atoms, .sfa_batch = (m + 127) / 128 * atoms,
                          .sfb_batch = (n + 127) / 128 * atoms, .out_type = OUT_FP16, .scale_layout = SCALES_128X4,
                          .aligned16 = 1};
        nvfp4_plan plan;
        sm100_schedule schedule;
        if (sm100_plan(&facts, &p, NULL, &plan, &schedule)) return 1;
        printf("%s %d %d %.9g\n", plan.name, plan.split_k, plan.swap_ab, plan.modelled_us);
    }
}
"""


def test_plan_takes_what_the_model_calls_fastest(tmp_path):
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    shapes = [*report.RANKED, *report.DECODE, *report.TASK, *report.PREFILL]
    for _ in range(100):
        m, n = (int(2 ** draw.uniform(0, 13)) for _ in range(2))
        shapes.append(model.Shape(m, n, 64 * draw.randint(1, 256), draw.choice((1, 1, 2, 8))))
    (tmp_path / "planner.c").write_text(PLANNER)
    csrc = ROOT / "csrc"
    names = ("kernels/sm100/plan.h", "plan_choice.c", "plan_operands.c", "kernels.c", "error.c")
    sources = [tmp_path / "planner.c", *(csrc / name for name in names)]
    binary = tmp_path / "planner"
    subprocess.run(["gcc", "-std=c11", "-O2", f"-I{csrc}", *sources, "-lm", "-o", binary], check=True)
    sizes = "".join(f"{shape.m} {shape.n} {shape.k} {shape.l}\n" for shape in shapes)
    lines = subprocess.run([binary], input=sizes, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(lines) == len(shapes)
    rows = model.configs()
    for shape, line in zip(shapes, lines):
        name, split, swap_ab, us = line.split()
        assert float(us) == pytest.approx(model.best(shape, rows, model.Constants()).times.dependent), (
            f"seed {seed}: {shape}"
        )
        config = next(config for config in rows if name == f"nvfp4_sm100_gemm_{config.name}")
        work = model.work_of(shape, config, int(split), bool(int(swap_ab)))
        assert float(us) == pytest.approx(model.times(work, model.Constants()).dependent), f"seed {seed}: {shape}"


def test_published_figures():
    """cuBLASLt is the one published kernel whose tile is known and whose time is the GPU's alone."""
    found = [peer for peer in report.peers() if peer.name.startswith("cuBLASLt")]
    assert len(found) == 3
    for peer in found:
        assert peer.time(model.times(peer.work, model.Constants())) == pytest.approx(peer.us, rel=0.2), peer


def test_document_is_current():
    """`python benchmarks/model_b200.py --write` makes the tables of b200_model.md."""
    text = report.DOCUMENT.read_text()
    for name, lines in report.tables(model.configs(), model.Constants()).items():
        assert f"<!-- {name} -->\n" + "\n".join(lines).rstrip() + "\n<!-- end -->" in text, name


# ---- counts, against the real kernels in the emulator ----


@pytest.mark.skipif(not shutil.which("nvcc"), reason="the kernels' PTX is made by nvcc")
@pytest.mark.parametrize("name", [config.name for config in model.configs()])
def test_counts_are_the_kernels(name, tmp_path):
    """Of whole tiles, one or several, any cut of K: what the model times is what the kernel does."""
    import numpy
    from sm100.launch import FP16, Emulator, Product, configs, gemm_ptx, only_entry

    seed = random.randrange(2**32)
    draw = random.Random(seed)
    config = next(config for config in model.configs() if config.name == name)
    launched = configs()[f"sm100_gemm_{name}"]
    emulator = Emulator("sm_100", seed=0)
    module = emulator.load(only_entry(gemm_ptx(), launched.kernel))
    for split in [split for split in (1, 2, 4, 8) if split * config.cta_group <= 8 and config.mma_tile_n >= 4 * split]:
        swap_ab = draw.random() < 0.5
        x = 128 * config.cta_group * draw.randint(1, 2)
        y = config.mma_tile_n * draw.randint(1, 2 if config.mma_tile_n > 32 else 1)
        shape = model.Shape(*((y, x) if swap_ab else (x, y)), 256 * split * draw.randint(1, 3))
        product = Product(emulator, numpy.random.default_rng(seed), shape.m, shape.n, shape.k, out_type=FP16)
        path = tmp_path / f"{split}.json"
        emulator.set("trace", str(path))
        product.launch(module, launched, swap_ab, split)
        emulator.set("trace", "")
        (kernel,) = trace.read(path, launched.kernel)
        got, want = trace.counted(kernel).rows(), trace.modelled(shape, config, split, swap_ab).rows()
        if config.cp_async:  # their threads load of scales what exists
            got, want = ({key: counts[key] for key in ("stored", "operands", "mma", "cp")} for counts in (got, want))
        assert got == want, f"seed {seed}: {shape}, split {split}, swap_ab {swap_ab}"
