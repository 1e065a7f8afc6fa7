"""The GEMM kernels of each backend that has mutations.py and schedules.py here, under the static verifier sentryward:
every schedule of some launches (prove.py has all of them, minutes long), and mutations of the kernels, each of which
the verifier or the emulator must find.

SM90_MUTATIONS=all, SM100_MUTATIONS=all: the emulator tries every mutation of the backend; by default a twelfth of them,
drawn by NVFP4_TEST_SEED. Of what the verifier proves and finds a run takes a twelfth too, CI_FULL=1 all.
Every run checks that all mutations apply to the source.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import ModuleType
from typing import Any

import prove as program
import pytest
from conftest import in_full, one_in
from harness.mutations import FINDS, SEEDS, Mutation, emulate
from harness.verify import Launch, Verdict, prove
from paths import proven_backends

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")
needs_verifier = pytest.mark.skipif(
    importlib.util.find_spec("sentryward") is None,
    reason="sentryward is not installed: pip install sentryward==0.1.1, for Linux on x86-64",
)
PART = 12  # a run takes one in so many
BACKENDS = {name: importlib.import_module(f"{name}.mutations") for name in proven_backends()}


def tries_all(backend: str) -> bool:
    return os.environ.get(f"{backend.upper()}_MUTATIONS") == "all"


def caught(backend: ModuleType) -> list[Mutation]:
    """The mutations that the verifier must find in this run: quick ones, and those that the emulator does not find."""
    return [one for one in backend.MUTATIONS if one.found_by == "verifier" or one.name in backend.QUICK]


def clean(backend: ModuleType) -> list[Mutation]:
    launches = [one.launch for one in caught(backend)]
    return [one for one in backend.CONTROLS if one.launch in launches]


def emulated(backend: ModuleType) -> list[Mutation]:
    found = [one for one in backend.MUTATIONS if one.found_by in ("both", "emulator")]
    name = next(name for name, module in BACKENDS.items() if module is backend)
    if tries_all(name):
        return found
    drawn = found[int(os.environ.get("NVFP4_TEST_SEED", 0)) % PART :: PART]
    # A fault at the CTA's exit, in every timing: the one check that tensor memory is deallocated.
    return drawn + [one for one in found if one.name == "no dealloc" and one not in drawn]


def each(what: Callable[[ModuleType], list[Any]]) -> pytest.MarkDecorator:
    """Parametrizes with that list of every backend."""
    cases = [(name, one) for name, backend in BACKENDS.items() for one in what(backend)]
    return pytest.mark.parametrize(("backend", "one"), cases, ids=[f"{name}-{one.name}" for name, one in cases])


@pytest.mark.parametrize("words", [[], ["mma"]])
def test_parts_of_the_proof_are_the_whole(words: list[str]) -> None:
    """prove.py --part I/N, of all I."""
    found = [one for backend in BACKENDS.values() for one in backend.MUTATIONS]
    whole = program.chosen(found, words, (1, 1))
    parts = [program.chosen(found, words, (i + 1, 5)) for i in range(5)]
    assert len(whole) >= 5 and max(map(len, parts)) - min(map(len, parts)) <= 1
    assert sorted(one.name for part in parts for one in part) == sorted(one.name for one in whole)


def judge(what: Launch | Mutation) -> Verdict:
    return prove(what, what.ptx()) if isinstance(what, Launch) else prove(what.launch, what.ptx())


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest) -> Iterator[dict[Launch | Mutation, Future[Verdict]]]:
    """The verdicts of the tests that this run has selected; two run at a time, each takes one core."""
    asked = [item.callspec.params["one"] for item in request.session.items if "verdicts" in fixtures_of(item)]
    asked = [one for one in asked if isinstance(one, (Launch, Mutation))]  # not of a test that has no cases
    for launch in {one.config.source: one for one in map(launch_of, asked)}.values():
        launch.ptx()  # which all of them need
    with ThreadPoolExecutor(2) as pool:
        yield {one: pool.submit(judge, one) for one in asked}
        pool.shutdown(cancel_futures=True)


def fixtures_of(item: pytest.Item) -> tuple[str, ...]:
    return getattr(item, "fixturenames", ())


def launch_of(what: Launch | Mutation) -> Launch:
    return what if isinstance(what, Launch) else what.launch


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest) -> Iterator[dict[Mutation, Future[str]]]:
    """PTX, compiled two at a time."""
    asked = [item.callspec.params["one"] for item in request.session.items if "compiled" in fixtures_of(item)]
    for launch in {one.launch.source(): one.launch for one in asked if not one.edits}.values():
        launch.ptx()
    with ThreadPoolExecutor(2) as pool:
        yield {one: pool.submit(one.ptx) for one in asked}
        pool.shutdown(cancel_futures=True)


@each(lambda backend: [*backend.MUTATIONS, *backend.HALVES])
def test_mutation_applies(backend: str, one: Mutation) -> None:
    one.source()


@needs_verifier
@each(lambda backend: one_in(PART, backend.PROVEN))
def test_every_schedule(backend: str, one: Launch, verdicts: dict[Launch, Future[Verdict]]) -> None:
    verdict = verdicts[one].result()
    assert verdict.result == "race_free", verdict


@in_full
@needs_verifier
@each(lambda backend: backend.HALVES[::2])
def test_every_schedule_of_both_halves(backend: str, one: Mutation, verdicts: dict[Mutation, Future[Verdict]]) -> None:
    verdict = verdicts[one].result()
    assert verdict.result == "race_free", verdict


@in_full
@needs_verifier
@each(clean)
def test_verifier_finds_nothing_else(backend: str, one: Mutation, verdicts: dict[Mutation, Future[Verdict]]) -> None:
    """The launches of the mutations, without one."""
    verdict = verdicts[one].result()
    assert verdict.result == "race_free", verdict


@needs_verifier
@each(lambda backend: one_in(PART, caught(backend)))
def test_verifier_finds(backend: str, one: Mutation, verdicts: dict[Mutation, Future[Verdict]]) -> None:
    verdict = verdicts[one].result()
    assert verdict.result in FINDS, verdict


@each(emulated)
def test_emulator_finds(backend: str, one: Mutation, compiled: dict[Mutation, Future[str]]) -> None:
    assert emulate(one, compiled[one].result())


@each(lambda backend: backend.CONTROLS)
def test_emulator_finds_nothing_else(backend: str, one: Mutation, compiled: dict[Mutation, Future[str]]) -> None:
    seeds = SEEDS if tries_all(backend) else BACKENDS[backend].CONTROL_SEEDS
    assert not emulate(one, compiled[one].result(), seeds)
