"""The Hopper kernel under the static verifier sentryward, every schedule of some launches (tests/kernels/sm90/verify.py has the
full set, minutes long), and mutations of the kernel, which the emulator or the verifier must find.

SM90_MUTATIONS=all tries every mutation. Otherwise NVFP4_TEST_SEED selects a fourth of them. Every run checks that all
mutations apply to the source.
"""

from __future__ import annotations

import importlib.util
import os

import pytest
from sm90.mutations import CONTROLS, FINDS, MUTATIONS, Mutation, emulate
from sm90.verify import Launch, prove

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")
needs_verifier = pytest.mark.skipif(
    importlib.util.find_spec("sentryward") is None,
    reason="sentryward is not installed: pip install sentryward==0.1.1, for Linux on x86-64",
)

# A few seconds each: pipelines that wrap around, two tiles for one CTA, split-K, partials in the stages.
PROVEN = [
    Launch("sm90_gemm_128x8", "wrap", 12),
    Launch("sm90_gemm_128x16", "tiles", 3, 16, tiles=5, clusters=1),
    Launch("sm90_gemm_128x16", "split 3 in stages", 3, split_k=3, in_stages=True),
    Launch("sm90_gemm_128x64", "split 2", 3, split_k=2),
]
EMULATED = [mutation for mutation in MUTATIONS if mutation.found_by in ("both", "emulator")]
VERIFIED = [mutation for mutation in MUTATIONS if mutation.found_by == "verifier"]


def chosen(items: list[Mutation]) -> list[Mutation]:
    if os.environ.get("SM90_MUTATIONS") == "all":
        return items
    return items[int(os.environ.get("NVFP4_TEST_SEED", 0)) % 4 :: 4]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """conftest.py sets the seed after this module is imported."""
    if "found" in metafunc.fixturenames:
        metafunc.parametrize("found", chosen(EMULATED), ids=lambda mutation: mutation.name)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_mutation_applies(mutation: Mutation) -> None:
    mutation.source()


def test_emulator_finds(found: Mutation) -> None:
    assert emulate(found, found.ptx())


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_emulator_finds_nothing_else(control: Mutation) -> None:
    """The launches of the mutations, with the unchanged kernel."""
    assert not emulate(control, control.ptx(), 20 if os.environ.get("SM90_MUTATIONS") == "all" else 4)


@needs_verifier
@pytest.mark.parametrize("launch", PROVEN, ids=lambda launch: launch.name)
def test_every_schedule(launch: Launch) -> None:
    ptx = Mutation(launch.name, launch, (), "nobody").ptx()
    verdict = prove(launch, ptx)
    assert verdict.result == "race_free", verdict


@needs_verifier
@pytest.mark.parametrize("mutation", VERIFIED, ids=lambda mutation: mutation.name)
def test_verifier_finds(mutation: Mutation) -> None:
    """Mutations that only the verifier finds."""
    verdict = prove(mutation.launch, mutation.ptx())
    assert verdict.result in FINDS, verdict
