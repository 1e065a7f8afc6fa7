"""The Hopper kernel under the static verifier sentryward, every schedule of some launches (tests/sm90/verify.py has the
full set, minutes long), and bugs planted in the kernel, which the emulator or the verifier must find.

SM90_PLANTED=all tries every bug. Otherwise it is a fourth of them, another one with each NVFP4_TEST_SEED; that all of
them can be planted in the kernel as it is, is looked at in every run.
"""

from __future__ import annotations

import importlib.util
import os

import pytest
from sm90.planted import BUGS, CONTROLS, FINDS, Bug, emulate
from sm90.verify import Launch, prove

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")
needs_verifier = pytest.mark.skipif(
    importlib.util.find_spec("sentryward") is None,
    reason="sentryward is not installed: pip install sentryward==0.1.1, for Linux on x86-64",
)

# A few seconds each: rings that go round, two tiles for one CTA, K cut, parts in place of the rings.
PROVEN = [
    Launch("sm90_gemm_128x8", "ring", 12),
    Launch("sm90_gemm_128x16", "tiles", 3, 16, tiles=5, clusters=1),
    Launch("sm90_gemm_128x16", "split 3 in stages", 3, split_k=3, in_stages=True),
    Launch("sm90_gemm_128x64", "split 2", 3, split_k=2),
]
EMULATED = [bug for bug in BUGS if bug.found_by in ("both", "emulator")]
VERIFIED = [bug for bug in BUGS if bug.found_by == "verifier"]


def chosen(items: list[Bug]) -> list[Bug]:
    if os.environ.get("SM90_PLANTED") == "all":
        return items
    return items[int(os.environ.get("NVFP4_TEST_SEED", 0)) % 4 :: 4]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Here, as the seed is not there before."""
    if "found" in metafunc.fixturenames:
        metafunc.parametrize("found", chosen(EMULATED), ids=lambda bug: bug.name)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_bug_can_be_planted(bug: Bug) -> None:
    bug.source()


def test_emulator_finds(found: Bug) -> None:
    assert emulate(found, found.ptx())


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_emulator_finds_nothing_else(control: Bug) -> None:
    """The launches that bugs are planted in, without one."""
    assert not emulate(control, control.ptx(), 20 if os.environ.get("SM90_PLANTED") == "all" else 4)


@needs_verifier
@pytest.mark.parametrize("launch", PROVEN, ids=lambda launch: launch.name)
def test_every_schedule(launch: Launch) -> None:
    ptx = Bug(launch.name, launch, (), "nobody").ptx()
    verdict = prove(launch, ptx)
    assert verdict.result == "race_free", verdict


@needs_verifier
@pytest.mark.parametrize("bug", VERIFIED, ids=lambda bug: bug.name)
def test_verifier_finds(bug: Bug) -> None:
    """What the emulator does not."""
    verdict = prove(bug.launch, bug.ptx())
    assert verdict.result in FINDS, verdict
