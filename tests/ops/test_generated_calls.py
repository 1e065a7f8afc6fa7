"""Calls in guarded memory (guarded_memory.py), generated (generated_calls.py), on every CPU kernel and on the emulated
GPUs.

The sequence of generated calls follows from NVFP4_TEST_SEED; the time says how many of them run. Half a minute in all
by default, with CI_FULL=1 a minute; NVFP4_GENERATED_SECONDS=3600 is an hour for each target. A failure prints the
smallest call that fails, which `python tests/support/generated_calls.py TARGET 'CALL'` repeats.
"""

from __future__ import annotations

import contextlib
import os
import random
import time

import pytest
from call_workers import Workers
from conftest import FULL
from generated_calls import Gemm, gemms
from generated_conversions import Conversion, conversions
from generated_grouped_gemm import Grouped, groupeds
from generated_grouped_quantize import Sorted, sorteds
from generated_moe import Step, steps
from generated_quantize_gemm import Layer, layers
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

SECONDS = 10.0 if FULL else 5.0  # of an emulated GPU; a third of that of a CPU kernel
VOLUME = {"cpu-reference": 5e5, "cpu-portable": 2e6}  # M * N * K * L; of others 4e6
ROUND = 100  # examples of a hypothesis run, which remembers all of them


def test_generated(target: str, workers: Workers) -> None:
    default = SECONDS / 3 if target.startswith("cpu") else SECONDS
    end = time.monotonic() + float(os.environ.get("NVFP4_GENERATED_SECONDS", default))
    volume = VOLUME.get(target, 4e6)
    products, others = gemms(target, volume), [groupeds(target, volume), layers(target, volume)]
    others += [strategy(target) for strategy in (conversions, steps, sorteds)]
    calls = st.sampled_from([*[products] * 6, *others]).flatmap(lambda strategy: strategy)
    failed, count, rounds = False, 0, 0

    def check(case: Gemm | Grouped | Conversion | Step | Sorted | Layer) -> None:
        nonlocal failed, count
        if not failed and time.monotonic() > end:  # after a failure it goes on for the smallest one
            pytest.skip("the time is over")  # ends hypothesis's run at once
        count += 1
        verdict = workers.run(target, case)
        failed = failed or bool(verdict)
        assert not verdict, f"{verdict}\n  python tests/support/generated_calls.py {target} {str(case)!r}"

    while time.monotonic() < end:
        draw = random.Random(f"{os.environ['NVFP4_TEST_SEED']} {target} {rounds}").getrandbits(62)
        limits = settings(
            max_examples=ROUND,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        with contextlib.suppress(pytest.skip.Exception):
            limits(seed(draw)(given(calls)(check)))()
        rounds += 1
    print(f"{count} calls on {target}")
    assert count
