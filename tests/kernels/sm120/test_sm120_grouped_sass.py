"""SASS of csrc/kernels/sm120/grouped.cu in the installed module: the expected instructions, no local memory,
registers that fit an SM, and a main loop that keeps up with the tensor core."""

from __future__ import annotations

import pytest
from harness import sass
from harness.sass import Kernel
from sm120.grouped import CONFIGS
from sm120.test_sm120_sass import REGISTERS, SOURCE, issued_clocks, stage_clocks

import nvfp4

PREFIX = "nvfp4_sm120_grouped_"
pytestmark = [
    pytest.mark.skipif("sm_120f" not in nvfp4.info()["archs"], reason="this build has no machine code for sm_120"),
    sass.needed,
]
SHORT = {config.short: config for config in CONFIGS.values()}
NAMES = pytest.mark.parametrize("name", SHORT)


@pytest.fixture(scope="session")
def kernels() -> dict[str, Kernel]:
    return sass.kernels_of(SOURCE, PREFIX)


def test_all_kernels_are_there(kernels: dict[str, Kernel]) -> None:
    assert set(kernels) == set(SHORT), "install the package again: its kernels are not those of sm120"


@NAMES
def test_instructions(name: str, kernels: dict[str, Kernel]) -> None:
    """The same as of gemm's but for partial sums."""
    kernel = kernels[name]
    assert {i.opcode for i in kernel.all("[A-Z]+MMA")} == {"OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X"}
    # A stage's mma of a warp, without branches and with: the two parts of a gated product share them.
    config = SHORT[name]
    of_warp = config.mma_tile_m * config.mma_tile_n // (16 * 8) // (config.warps_m * config.warps_n)
    assert len(kernel.all("OMMA")) == 2 * of_warp * (config.stage_k // 64)
    for pattern in ("UTMALDG.3D", "UBLKCP", "LDGSTS", "LDSM", "ARRIVES.LDGSTSBAR"):
        assert kernel.all(pattern), pattern
    assert not kernel.all(".*MULTICAST|STAS")
    assert bool(kernel.all("USETMAXREG")) == (name == "256x128")


@NAMES
def test_nothing_is_read_before_the_wait(name: str, kernels: dict[str, Kernel]) -> None:
    kernel = kernels[name]
    (wait,), (launch,) = (kernel.all(p) for p in ("ACQBULK", "PREEXIT"))
    assert wait.address < launch.address
    assert not [i for i in kernel.all("UTMALDG|UBLKCP|LDGSTS|STG|LDG") if i.address < wait.address]


@NAMES
def test_resources(name: str, kernels: dict[str, Kernel]) -> None:
    kernel, config = kernels[name], SHORT[name]
    assert not kernel.all("(LDL|STL)") and kernel.stack == kernel.local == 0
    assert -(-config.threads // 128) * 32 * kernel.registers <= REGISTERS
    assert len(kernel.barriers()) == 2 * config.stages


def test_images_are_small() -> None:
    """Machine code and PTX of the backend's four files."""
    found = [path.stat().st_size for path in sass.images(SOURCE.read_bytes()) if path.name.startswith("sm120_")]
    assert len(found) == 8 and sum(found) < 350_000


@NAMES
def test_a_stage_takes_the_tensor_core_longer_than_its_issue(name: str, kernels: dict[str, Kernel]) -> None:
    assert issued_clocks(kernels[name], SHORT[name]) < stage_clocks(SHORT[name])
