"""No plan of sm100 counts on more clusters than run at a time: what the device says, and without an answer what 148-SM
parts were seen to hold, which the emulated B200 enforces."""

from __future__ import annotations

import ctypes
import os
import shutil

import b200_report as report
import c_model
import model_b200 as model
import pytest
from emulate import Emulator
from emulated_runs import driver
from python_server import python

from nvfp4 import _C

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="gcc not installed")

OLD = (74, 34, 16)  # as a formula of equal GPCs had it
SIZES = (2, 4, 8)
KERNEL = """
.version 9.0
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry run() { ret; }
"""


def emulated() -> list[int]:
    """Clusters of 2, 4 and 8 CTAs, of which each takes an SM, that the emulated B200 has room for."""
    emulator = Emulator("sm_100")
    kernel, shared, found = emulator.load(KERNEL)["run"], 227 * 1024, []
    emulator.call("cuFuncSetAttribute", kernel.handle, 8, shared)
    for size in SIZES:
        attribute = (ctypes.c_uint * 18)(4, 0, size, 1, 1)
        config = (ctypes.c_uint64 * 7)()
        shape = (ctypes.c_uint * 7).from_buffer(config)
        shape[:] = [size, 1, 1, 192, 1, 1, shared]
        config[5], config[6] = ctypes.addressof(attribute), 1
        value = ctypes.c_int()
        emulator.call("cuOccupancyMaxActiveClusters", ctypes.byref(value), kernel.handle, ctypes.byref(config))
        found.append(value.value)
    return found


def test_without_an_answer_as_many_fit_as_an_emulated_b200_has_room_for() -> None:
    b200 = c_model.device("b200")
    found = emulated()
    assert found == [74, 33, 15] == [c_model.clusters_that_fit(b200, size) for size in SIZES] and found != list(OLD)
    assert [c_model.clusters_that_fit(b200, size, 2) for size in SIZES] == [148, 66, 30]
    assert [c_model.clusters_that_fit(c_model.device("h200"), size) for size in SIZES] == [66, 28, 13]
    assert c_model.clusters_that_fit(b200, 1) == 148


@pytest.mark.skipif(not _C.archs, reason="this build has no GPU code")
def test_what_a_device_answers_is_told() -> None:
    """What `first-run` prints, on an emulated B200."""
    variables = {**os.environ, **driver(), "EMULATE_DEVICE": "sm_100"}
    done = python("-c", "from nvfp4 import _C; print(_C.clusters(0))", env=variables)
    assert done.stdout.startswith("((74, 33, 15), ("), done.stdout + done.stderr


def test_the_devices_answer_counts() -> None:
    said = c_model.answering(c_model.device("b200"), (70, 20, -1, 99, 0, 12))
    assert [c_model.clusters_that_fit(said, size) for size in SIZES] == [70, 20, 0]
    assert [c_model.clusters_that_fit(said, size, 2) for size in SIZES] == [99, 40, 12]


def launched(on: c_model.Struct, shape: model.Shape, constants: c_model.Struct) -> tuple[int, int, int]:
    """(clusters that the first plan launches, their CTAs, CTAs that an SM holds)."""
    found = c_model.candidates(constants, on, shape.traits)
    first = min(found, key=lambda candidate: candidate.modelled_us)  # of equals the first
    config = model.configs()[first.kernel]
    cluster = config.cta_group * config.multicast * first.split_k
    return first.grid // cluster, cluster, first.ctas_per_sm


def too_many(on: c_model.Struct) -> list[str]:
    """Shapes of model_b200.py whose first plan, with or without PDL, needs more clusters than a B200 holds."""
    fit = dict(zip(SIZES, emulated())) | {1: 148}
    c, found = model.constants(), []
    for shape in report.ALL:
        for constants in (c, c_model.without_pdl(c)):
            clusters, cluster, per_sm = launched(on, shape, constants)
            if clusters > per_sm * fit[cluster]:
                found.append(str(shape))
    return found


def test_no_first_plan_needs_more_clusters_than_fit() -> None:
    b200 = c_model.device("b200")
    assert too_many(b200) == []
    assert "128x4096x7168" in too_many(c_model.answering(b200, (*OLD, 148, 68, 32)))


def test_no_more_persistent_clusters_are_launched_than_fit() -> None:
    """Every candidate keeps the rule."""
    c = model.constants()
    b200 = c_model.device("b200")
    for on, most in (
        (b200, {1: 148, 2: 74, 4: 33}),
        (c_model.answering(b200, (60, 21, 9) * 2), {1: 148, 2: 60, 4: 21}),
    ):
        filled = set()
        for shape in report.ALL:
            for candidate in c_model.candidates(c, on, shape.traits):
                config = model.configs()[candidate.kernel]
                cluster = config.cta_group * config.multicast
                if candidate.split_k == 1:
                    assert candidate.grid <= cluster * most[cluster], f"{shape} {config}"
                    filled.add(cluster) if candidate.grid == cluster * most[cluster] else None
        assert filled, most
