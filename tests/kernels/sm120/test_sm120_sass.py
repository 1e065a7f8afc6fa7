"""SASS of the sm_120 kernels in the installed module: the expected instructions, no local memory, registers that fit an
SM, and a main loop that keeps up with the tensor core.

`python tests/kernels/harness/sass.py nvfp4_sm120_gemm_` prints the numbers.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import sass
from harness.headers import Config
from harness.sass import Kernel
from sm120 import gemm

import nvfp4

SOURCE = Path(nvfp4._C.__file__)
pytestmark = [
    pytest.mark.skipif("sm_120f" not in nvfp4.info()["archs"], reason="this build has no machine code for sm_120"),
    sass.needed,
]

CONFIGS = {config.short: config for config in gemm.CONFIGS.values()}
NAMES = pytest.mark.parametrize("name", CONFIGS)
REGISTERS = 65536 // 4  # of a quarter of an SM
MMA_CLOCKS = 16  # one OMMA in a quarter of an SM


@pytest.fixture(scope="session")
def kernels() -> dict[str, Kernel]:
    return sass.kernels_of(SOURCE, "nvfp4_sm120_gemm_")


def stage_mmas(config: Config) -> int:
    """OMMA of a warp in a stage."""
    warps = config.warps_m * config.warps_n
    return config.mma_tile_m // 16 * (config.mma_tile_n // 8) * (config.stage_k // 64) // warps


def issued_clocks(kernel: Kernel, config: Config) -> int:
    """The two warps of a quarter issue the shortest path of the loop over stages that has a whole stage's mma."""
    paths, mmas = kernel.paths(*kernel.loop("OMMA")), stage_mmas(config)
    return 2 * min(len(path) for path in paths if sum(i.opcode[:4] == "OMMA" for i in path) == mmas)


def stage_clocks(config: Config) -> float:
    """A narrow tile waits for memory: a stage of 21 KB takes an SM 500 clocks at the 40 bytes a clock that one may
    receive."""
    return max(2 * stage_mmas(config) * MMA_CLOCKS, config.stage_bytes / 40)


def test_all_kernels_are_there(kernels: dict[str, Kernel]) -> None:
    assert set(kernels) == set(CONFIGS), "install the package again: its kernels are not those of sm120"


@NAMES
def test_instructions(name: str, kernels: dict[str, Kernel]) -> None:
    """One kind of mma, with a scale for 16 values; values by TMA or cp.async, scales by bulk copies or cp.async,
    without multicast, which these chips have not; partial sums 16 bytes at a time."""
    kernel = kernels[name]
    assert {i.opcode for i in kernel.all("[A-Z]+MMA")} == {"OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X"}
    for pattern in ("UTMALDG.3D", "UBLKCP", "LDGSTS", "LDSM", "STAS.*128", "ARRIVES.LDGSTSBAR"):
        assert kernel.all(pattern), pattern
    assert not kernel.all(".*MULTICAST")
    assert bool(kernel.all("USETMAXREG")) == (name == "256x128")


@NAMES
def test_prologue_order(name: str, kernels: dict[str, Kernel]) -> None:
    """One griddepcontrol.wait, then launch_dependents. Only TMA loads, those of a constant b, come before the wait."""
    kernel = kernels[name]
    (wait,), (launch,) = (kernel.all(p) for p in ("ACQBULK", "PREEXIT"))
    assert wait.address < launch.address
    early = {i.opcode.split(".")[0] for i in kernel.all("UTMALDG|UBLKCP|LDGSTS|STG|LDG") if i.address < wait.address}
    assert early == {"UTMALDG", "UBLKCP"}


@NAMES
def test_resources(name: str, kernels: dict[str, Kernel]) -> None:
    """No local memory; the warps of a quarter of an SM share its registers; barrier offsets are those of the macros."""
    kernel, config = kernels[name], CONFIGS[name]
    assert not kernel.all("(LDL|STL)") and kernel.stack == kernel.local == 0
    warps = -(-config.threads // 128)
    assert warps * 32 * kernel.registers <= REGISTERS
    assert len(kernel.barriers()) == 2 * config.stages + 1


@NAMES
def test_a_stage_takes_the_tensor_core_longer_than_its_issue(name: str, kernels: dict[str, Kernel]) -> None:
    kernel = kernels[name]
    paths = [
        p
        for p in kernel.paths(*kernel.loop("OMMA"))
        if sum(i.opcode[:4] == "OMMA" for i in p) == stage_mmas(CONFIGS[name])
    ]
    issued = 2 * min(map(len, paths))  # by the two warps of a quarter
    stage = CONFIGS[name].stage_bytes
    assert issued < max(2 * stage_mmas(CONFIGS[name]) * MMA_CLOCKS, stage / 40)
