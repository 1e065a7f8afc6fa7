"""The model of the sm100 kernels: its C form is the Python one, its counts are a kernel's, published figures are where
the table says."""

from __future__ import annotations

import ctypes
import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import model_b200 as model  # noqa: E402

FIELDS = [(name, ctypes.c_int64) for name in ("x_rows", "y_rows", "k", "l")] + [
    (name, ctypes.c_int32)
    for name in (
        "sm_count",
        "group",
        "tile_y",
        "stages",
        "accumulators",
        "swapped",
        "split_k",
        "gather",
        "gather_values",
        "co_resident",
        "parts_in_stages",
        "prefetch_stages",
        "output_bytes",
    )
]
ESTIMATE = '#include "sm100_model.h"\ndouble estimate(const sm100_model_input *in) { return sm100_estimate_us(in); }\n'


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
        split = draw.choice([n for n in (1, 2, 4, 8) if n * config.group <= 8 and n <= model.ceil_div(shape.k, 256)])
        swapped, values, sms = draw.random() < 0.5, draw.random() < 0.5, draw.choice((148, 132, 20))
        prefetch = draw.choice((0, 0, 4, 16))
        x, y = (shape.n, shape.m) if swapped else (shape.m, shape.n)
        given = Input(
            x,
            y,
            shape.k,
            shape.l,
            sms,
            config.group,
            config.tile_y,
            config.stages,
            config.accumulators,
            swapped,
            split,
            config.gather,
            values,
            config.co_resident,
            split > 1 and config.parts_in_stages(split),
            prefetch,
            2,
        )
        got = estimate(ctypes.byref(given))
        work = model.work_of(shape, config, split, swapped, values, prefetch)
        if model.clusters_that_fit(sms, work.cluster, work.per_sm) == 0:
            assert got == float("inf"), f"seed {seed}"
            continue
        want = model.times(work, model.Constants(), sms).dependent
        assert got == pytest.approx(want, rel=1e-9), f"seed {seed}: {shape} {config} split {split} {swapped} {sms}"
