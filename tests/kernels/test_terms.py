"""Kernels of benchmarks/tcgen05_terms.cu and load_terms.cu run on the emulated B200, which checks every instruction;
its clocks have no meaning beyond their order."""

from __future__ import annotations

import numpy
import pytest
from conftest import in_full
from emulate import Emulator
from harness.launch import Generator, compile_ptx
from paths import BENCHMARKS

import nvfp4

COMMIT, ONE_MMA, FEW_MMA, MANY_MMA, FEW_CP, MANY_CP, LOADS, TERMS = range(8)
SHARED = 128 * 128 + 256 * 128 + 3 * 512 + 16 + 1024


@in_full
@pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")
@pytest.mark.parametrize(("name", "ctas"), [("one_sm", 1), ("pair", 2)])
def test_tcgen05_terms(name: str, ctas: int, random: Generator) -> None:
    """All terms are measured, and the last MMAs' product of ones is right: 48 times K = 64 of 1 * 1."""
    emulator = Emulator("sm_100", seed=int(random.integers(2**30)))
    kernel = emulator.load(compile_ptx(BENCHMARKS / "tcgen05_terms.cu", "sm100"))[name]
    clocks = emulator.array(numpy.full(TERMS, -1, numpy.int64))
    sink = emulator.array(numpy.zeros(32, numpy.float32))
    emulator.launch(kernel, ctas, 128, [clocks, sink], SHARED, cluster=ctas if ctas > 1 else None)
    found = clocks.numpy()
    assert (found > 0).all(), found
    assert found[FEW_MMA] < found[MANY_MMA] and found[FEW_CP] < found[MANY_CP], found
    assert (sink.numpy() == 16 * 48 * 64).all(), sink.numpy()  # of 16 loads, an element each


@pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")
@pytest.mark.parametrize("evict_first", [0, 1])
def test_loads_with_a_cache_policy(evict_first: int, random: Generator) -> None:
    """Every stage of the buffer is read in bounds, with and without the policy that the kernel makes."""
    emulator = Emulator("sm_100", seed=int(random.integers(2**30)))
    text = compile_ptx(BENCHMARKS / "load_terms.cu", "sm100")
    stage, stages, ctas = 16384, 20, 3
    (name,) = (name for name in emulator.load(text).names() if name.startswith("_Z4load"))
    buffer, clocks = emulator.empty(stages * ctas * stage, numpy.uint8), emulator.array(numpy.zeros(1, numpy.int64))
    arguments = [buffer, stages, stages * ctas, evict_first, clocks]
    emulator.launch(emulator.load(text)[name], ctas, 1, arguments, 8 * stage)
    assert clocks.numpy()[0] > 0
