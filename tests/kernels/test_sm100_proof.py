"""The B200 kernel under the static verifier sentryward: every schedule of some launches (tests/kernels/sm100/verify.py has all
of them, minutes long), and mutations of the kernel, each of which the verifier or the emulator must find.

SM100_MUTATIONS=all emulates every mutation; the default is a quarter of them, chosen by NVFP4_TEST_SEED.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from sm100.launch import gemm_ptx
from sm100.mutations import CONTROLS, EMULATOR, FINDS, HALVES, MUTATIONS, Mutation, emulate
from sm100.verify import Launch, Verdict, prove

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")
needs_verifier = pytest.mark.skipif(
    importlib.util.find_spec("sentryward") is None,
    reason="sentryward is not installed: pip install sentryward==0.1.1, for Linux on x86-64",
)

# A few seconds each: a pipeline that wraps (single CTA, pair, cp.async), two tiles for one CTA, split-K, a tail.
PROVEN = [
    Launch("sm100_gemm_128x64", "wrap", 64, 128, 5),
    Launch("sm100_gemm_256x64", "wrap", 64, 256, 5),
    Launch("sm100_gemm_128x16_cp_async", "wrap", 16, 128, 5, pitch=648),
    Launch("sm100_gemm_128x32", "two tiles", 256, 32, 1, swap_ab=False),
    Launch("sm100_gemm_128x128", "two tiles", 128, 256, 1, swap_ab=False),
    Launch("sm100_gemm_128x16", "split 2", 16, 128, 3, split_k=2),
    Launch("sm100_gemm_128x64", "split 2 in stages", 64, 128, 2, split_k=2, in_stages=True),
    Launch("sm100_gemm_256x128", "tail", 128, 256, 1, tail=64),
    Launch("sm100_gemm_256x256", "one stage", 256, 256, 1),
]
QUICK = ("mma: no wait on full", "dealloc without the CTA barrier", "split-K: partials overlap")
CAUGHT = [mutation for mutation in MUTATIONS if mutation.found_by == "verifier" or mutation.name in QUICK]
EMULATED = [mutation for mutation in MUTATIONS if mutation.found_by in EMULATOR]
if os.environ.get("SM100_MUTATIONS") != "all":
    EMULATED = EMULATED[int(os.environ.get("NVFP4_TEST_SEED", 0)) % 4 :: 4]
CLEAN = [control for control in CONTROLS if control.launch in [mutation.launch for mutation in CAUGHT]]


def judge(what: Launch | Mutation) -> Verdict:
    return prove(what, gemm_ptx()) if isinstance(what, Launch) else prove(what.launch, what.ptx())


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Verdict]]]:
    """By name, for the tests that this run has selected; two at a time, each takes one core."""
    gemm_ptx()
    asked = [item.callspec.params for item in request.session.items if "verdicts" in getattr(item, "fixturenames", ())]
    with ThreadPoolExecutor(2) as pool:
        yield {what.name: pool.submit(judge, what) for parameters in asked for what in parameters.values()}
        pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def compiled() -> dict[str, str]:
    """The PTX of the mutations that the emulator finds, and of the kernel without one."""
    with ThreadPoolExecutor(2) as pool:
        return dict(
            zip((mutation.name for mutation in CONTROLS + EMULATED), pool.map(Mutation.ptx, CONTROLS + EMULATED))
        )


@needs_verifier
@pytest.mark.parametrize("launch", PROVEN, ids=lambda launch: launch.name)
def test_every_schedule(launch: Launch, verdicts: dict[str, Future[Verdict]]) -> None:
    verdict = verdicts[launch.name].result()
    assert verdict.result == "race_free", verdict


@needs_verifier
@pytest.mark.parametrize("half", HALVES[::2], ids=lambda half: half.launch.name)
def test_every_schedule_of_both_halves(half: Mutation, verdicts: dict[str, Future[Verdict]]) -> None:
    verdict = verdicts[half.name].result()
    assert verdict.result == "race_free", verdict


@needs_verifier
@pytest.mark.parametrize("control", CLEAN, ids=lambda control: control.name)
def test_verifier_finds_nothing_else(control: Mutation, verdicts: dict[str, Future[Verdict]]) -> None:
    """The launches of the mutations, without one."""
    verdict = verdicts[control.name].result()
    assert verdict.result == "race_free", verdict


@needs_verifier
@pytest.mark.parametrize("mutation", CAUGHT, ids=lambda mutation: mutation.name)
def test_verifier_finds(mutation: Mutation, verdicts: dict[str, Future[Verdict]]) -> None:
    verdict = verdicts[mutation.name].result()
    assert verdict.result in FINDS, verdict


@pytest.mark.parametrize("mutation", EMULATED, ids=lambda mutation: mutation.name)
def test_emulator_finds(mutation: Mutation, compiled: dict[str, str]) -> None:
    assert emulate(mutation, compiled[mutation.name])


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_emulator_finds_nothing_else(control: Mutation, compiled: dict[str, str]) -> None:
    assert not emulate(control, compiled[control.name])
