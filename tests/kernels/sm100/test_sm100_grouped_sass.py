"""SASS of csrc/kernels/sm100/grouped.cu in the installed module, for sm_100 and sm_110: the expected instructions, no
local memory, registers that fit an SM, and a main loop that keeps up with the loads."""

from __future__ import annotations

import pytest
from harness.sass import Instruction, Kernel
from sm100 import gemm
from sm100.grouped import CONFIGS
from sm100.test_sm100_sass import REGISTERS, check_rounding, kernels_for, last_constant, of_pairs
from sm100.test_sm100_sass import pytestmark as pytestmark

PREFIX = "nvfp4_sm100_grouped_"
SHORT = {config.short: config for config in CONFIGS.values()}
NAMES = pytest.mark.parametrize("name", SHORT)
INGRESS = 60  # bytes a clock into an SM's shared memory, assumed (csrc/kernels/sm100/model.h)
ISSUE = 4  # clocks an instruction of the one thread, assumed


@pytest.fixture(scope="session", params=["sm_100", "sm_110"])
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kernel]:
    return kernels_for(request.param, "sm100_grouped", PREFIX, tmp_path_factory.mktemp("grouped"))


def test_all_kernels_are_there(kernels: dict[str, Kernel]) -> None:
    assert set(kernels) == set(SHORT), "install the package again: its kernels are not those of sm100"


@NAMES
def test_instructions(name: str, kernels: dict[str, Kernel]) -> None:
    """mma with four scales a row (block 16), scales by tcgen05.cp, tiles by TMA, without a pair scales by bulk copies;
    in a pair all are .2CTA, commits are multicast, and st.shared::cluster copies the table of groups."""
    kernel, config = kernels[name], SHORT[name]
    mma, pair = kernel.all("UTCOMMA"), config.cta_group == 2
    assert len(mma) == 4 * config.cta_mmas and all(i.opcode.endswith(".4X") for i in mma)
    for pattern in ("UTCOMMA", "UTCCP", "UTMALDG", "UTCATOMSWS.*FIND_AND_SET"):
        assert of_pairs(kernel, pattern) == {pair}, pattern
    assert {".MULTICAST" in i.opcode for i in kernel.all("UTCBAR")} == {pair}
    assert bool(kernel.all("UBLKCP")) == (not pair)
    assert bool(kernel.all("UTMALDG.4D")) == pair and kernel.all("UTMALDG.3D") and kernel.all("LDTM")
    assert bool(kernel.all("STAS")) == pair
    assert not kernel.all("UTMALDG.*MULTICAST|LDGSTS|UT[A-Z]*MMA(?<!UTCOMMA)")
    assert not kernel.all("(HMMA|QMMA|OMMA|IMMA|HGMMA|QGMMA)")


@NAMES
def test_rounding(name: str, kernels: dict[str, Kernel]) -> None:
    check_rounding(kernels[name])


@pytest.mark.parametrize("name", [name for name, config in SHORT.items() if config.cta_group == 2])
def test_an_accumulator_is_not_held_for_memory(name: str, kernels: dict[str, Kernel]) -> None:
    """A pair has one accumulator: from the first load of sums to the arrival that releases it nothing waits for global
    memory."""
    kernel = kernels[name]
    loads = kernel.all("LDTM")
    assert len(loads) == gemm.CTA_ROWS // 16, "sums are loaded by straight code, 16 rows at a time"
    last = min(i.address for i in kernel.all(r"SYNCS\.ARRIVE") if i.address > loads[-1].address)
    assert not [i for i in kernel.all(r"(LD|LDG|LDL|ATOMG?)\b") if loads[0].address < i.address < last]


@NAMES
def test_nothing_is_read_before_the_wait(name: str, kernels: dict[str, Kernel]) -> None:
    """tcgen05.alloc, then griddepcontrol.wait, then launch_dependents."""
    kernel = kernels[name]
    allocations, (wait,), (launch,) = (kernel.all(p) for p in ("UTCATOMSWS.*FIND", "ACQBULK", "PREEXIT"))
    assert all(i.address < wait.address for i in allocations) and wait.address < launch.address
    assert not [i for i in kernel.all("UTMALDG|UBLKCP|LDGSTS|STG|LDG") if i.address < wait.address]


@NAMES
def test_resources(name: str, kernels: dict[str, Kernel]) -> None:
    kernel, config = kernels[name], SHORT[name]
    assert not kernel.all("(LDL|STL)") and kernel.stack == kernel.local == 0
    assert -(-config.threads // 128) * 128 * kernel.registers <= REGISTERS
    columns = {last_constant(kernel, i.address, i.operands) * 32 for i in kernel.all("UTCATOMSWS.*FIND")}
    assert columns == {512}
    assert kernel.barriers() == {8 * i for i in range(2 * (config.stages + config.accumulators))}


@NAMES
def test_a_stage_is_loaded_longer_than_it_is_issued(name: str, kernels: dict[str, Kernel]) -> None:
    """The instructions of one thread for a whole stage, whose bytes may be as few as those of one box of A."""
    kernel, config = kernels[name], SHORT[name]

    def count(path: list[Instruction], opcode: str) -> int:
        return sum(instruction.opcode.startswith(opcode) for instruction in path)

    mma, cp = 4 * config.cta_mmas, 4 * (config.cta_mmas + config.cta_group)
    stages = [
        p for p in kernel.paths(*kernel.loop("UTCOMMA")) if count(p, "UTCOMMA") == mma and count(p, "UTCCP") == cp
    ]
    least = config.stage_bytes - (config.mma_tile_n // config.cta_group - 32) * gemm.STAGE_K // 2
    assert len(min(stages, key=len)) * ISSUE < least / INGRESS
