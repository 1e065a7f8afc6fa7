"""SASS of the sm_100 kernels in the installed module: the expected instructions, no local memory, registers within the
budget of two CTAs an SM, and a mainloop that keeps up with the tensor core.

`python tests/kernels/sm100/sass.py` prints the numbers.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from sm100 import sass
from sm100.launch import CSRC, configs
from sm100.sass import Kernel

import nvfp4

pytestmark = [
    pytest.mark.skipif("sm_100f" not in nvfp4.info()["archs"], reason="this build has no machine code for sm_100"),
    pytest.mark.skipif(not (sass.tool("nvdisasm") and sass.tool("cuobjdump")), reason=sass.NEEDS),
]

CONFIGS = {name.removeprefix("sm100_gemm_"): config for name, config in configs().items()}
NAMES = pytest.mark.parametrize("name", CONFIGS)
REGISTERS, SHARED = 65536, 228 * 1024  # of an SM; each CTA reserves 1 KiB of shared memory more
STAGE_INSTRUCTIONS = 90  # of one thread; a stage of 256x128 takes the tensor core 256 clocks


@dataclass(frozen=True)
class Budget:
    """Sizes of an instantiation from kernels/sm100/config.h."""

    shared: int
    columns: int
    barriers_at: int


@pytest.fixture(scope="session")
def kernels() -> dict[str, Kernel]:
    return sass.kernels_of(Path(nvfp4._C.__file__))


@pytest.fixture(scope="session")
def budgets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Budget]:
    """Computed by the macros themselves."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("budgets")
    (folder / "budgets.c").write_text("""\
#include <stdio.h>
#include "kernels/sm100/config.h"
#define ROW(id, cta_group, mma_tile_n, stages, accumulators, cp_async) \\
    printf("%s %d %d %d\\n", #id, SM100_SHARED_BYTES(cta_group, mma_tile_n, stages), \\
           SM100_TMEM_COLUMNS(mma_tile_n, stages, accumulators), stages * SM100_STAGE_BYTES(cta_group, mma_tile_n));
int main(void) {
    SM100_GEMM_CONFIGS(ROW)
}
""")
    subprocess.run([compiler, f"-I{CSRC}", "budgets.c", "-o", "budgets"], cwd=folder, check=True)
    text = subprocess.run([folder / "budgets"], capture_output=True, text=True, check=True).stdout
    rows = (line.split() for line in text.splitlines())
    return {name.removeprefix("sm100_gemm_"): Budget(*map(int, numbers)) for name, *numbers in rows}


def of_pairs(kernel: Kernel, pattern: str) -> set[bool]:
    """Whether the instructions of that kind are .2CTA; empty where there are none."""
    return {".2CTA" in instruction.opcode for instruction in kernel.all(pattern)}


def test_all_kernels_are_there(kernels: dict[str, Kernel]) -> None:
    assert set(kernels) == set(CONFIGS), "install the package again: its kernels are not those of sm100"


@NAMES
def test_instructions(name: str, kernels: dict[str, Kernel]) -> None:
    """mma with four scales a row (block 16), all or none of them .2CTA; scales by tcgen05.cp; tiles by TMA, without a
    pair scales by cp.async.bulk; cp.async only in _cp_async kernels."""
    kernel, config = kernels[name], CONFIGS[name]
    pair = config.cta_group == 2
    mma = kernel.all("UTCOMMA")
    assert mma and all(i.opcode.endswith(".4X") for i in mma)
    for pattern in ("UTCOMMA", "UTCCP", "UTMALDG", "UTCATOMSWS.*FIND_AND_SET"):
        assert of_pairs(kernel, pattern) == {pair}, pattern
    assert not kernel.all("UT[A-Z]*MMA(?<!UTCOMMA)"), "another kind of mma"
    assert all(i.opcode.startswith("UTCCP.T.S") and "4x32dp128bit" in i.opcode for i in kernel.all("UTCCP"))
    assert {".MULTICAST" in i.opcode for i in kernel.all("UTCBAR")} == {pair}
    assert bool(kernel.all("UBLKCP")) == (not pair and not config.cp_async)
    assert bool(kernel.all("LDGSTS")) == bool(config.cp_async)
    assert kernel.all("LDTM"), "no load from tensor memory"
    assert kernel.all("STAS.*128"), "partial sums are not sent 16 bytes at a time"
    assert not kernel.all("(HMMA|QMMA|OMMA|IMMA|HGMMA|QGMMA)")


@NAMES
def test_prologue_order(name: str, kernels: dict[str, Kernel]) -> None:
    """tcgen05.alloc, then griddepcontrol.wait, then launch_dependents: one wait and one launch, in that order."""
    kernel = kernels[name]
    allocations, (wait,), (launch,) = (kernel.all(p) for p in ("UTCATOMSWS.*FIND", "ACQBULK", "PREEXIT"))
    assert all(i.address < wait.address for i in allocations) and wait.address < launch.address
    first_copy = min(i.address for i in kernel.all("UTMALDG|UBLKCP|LDGSTS|STG|LDG"))
    assert wait.address < first_copy, "accesses global memory before griddepcontrol.wait"


@NAMES
def test_no_local_memory(name: str, kernels: dict[str, Kernel]) -> None:
    kernel = kernels[name]
    assert not kernel.all("(LDL|STL)"), "local memory"
    assert kernel.stack == kernel.local == 0


@NAMES
def test_resources(name: str, kernels: dict[str, Kernel], budgets: dict[str, Budget]) -> None:
    """Where shared and tensor memory admit a CTA of the next call, registers do too. Allocated columns and barrier
    offsets are those of the macros, which the host launches by."""
    kernel, config, budget = kernels[name], CONFIGS[name], budgets[name]
    ctas = min(SHARED // (budget.shared + 1024), 512 // budget.columns, 2)
    warps = config.threads // 32
    assert kernel.registers <= REGISTERS // (ctas * warps) // 256 * 8, f"{ctas} CTAs do not fit"
    columns = {last_constant(kernel, i.address, i.operands) * 32 for i in kernel.all("UTCATOMSWS.*FIND")}
    assert columns == {budget.columns}
    barriers = {int(at, 16) for i in kernel.all(r"SYNCS\.EXCH") for at in re.findall(r"\+(0x[0-9a-f]+)\]", i.operands)}
    count = 2 * config.stages + 2 * config.accumulators + 1
    assert barriers == {budget.barriers_at + 8 * i for i in range(count)}
    assert max(barriers) + 8 <= budget.shared


def last_constant(kernel: Kernel, address: int, operands: str) -> int:
    """The constant in the last register that the instruction there names."""
    register = re.findall(r"UR\d+", operands)[-1]
    moves = [i for i in kernel.all("UMOV") if i.address < address and i.operands.startswith(f"{register}, ")]
    return int(moves[-1].operands.split(", ")[1], 16)


@NAMES
def test_mainloop_stage(name: str, kernels: dict[str, Kernel]) -> None:
    """A full stage: four consecutive mma, one cp an atom, one commit; one thread's work, so the only branches are the
    loop, the tail and the wait, and no loop goes over lanes."""
    stage = kernels[name].mainloop_stage()
    opcodes = [i.opcode for i in stage]

    def places(start: str) -> list[int]:
        return [i for i, opcode in enumerate(opcodes) if opcode.startswith(start)]

    assert len(places("UTCOMMA")) == 4 and len(places("UTCBAR")) == 1
    assert max(places("UTCCP")) < min(places("UTCOMMA")) < max(places("UTCOMMA")) < places("UTCBAR")[0]
    assert max(places("UTCOMMA")) - min(places("UTCOMMA")) < 12, "the mma are not consecutive"
    assert len(places("SYNCS.PHASECHK")) == 1, "one wait; its retry loop lies outside"
    assert len(places("BRA")) <= 4
    assert not [o for o in opcodes if re.match("(LDS|LD|LDG|ST|STS|STG|ATOM|MEMBAR|CCTL|BAR|VOTE|MATCH)\\b", o)]
    assert len(stage) <= STAGE_INSTRUCTIONS


@NAMES
def test_waits_are_tight(name: str, kernels: dict[str, Kernel]) -> None:
    """A wait loop has a few instructions and no fence."""
    kernel, tight = kernels[name], 0
    for last, instruction in enumerate(kernel.code):
        first = kernel.labels.get(instruction.target, last) if instruction.target else last
        body = kernel.code[first:last]
        if first < last and len(body) <= 8 and any("TRYWAIT" in i.opcode for i in body):
            assert len(body) <= 5 and not any(re.match("MEMBAR|ERRBAR", i.opcode) for i in body)
            tight += 1
    assert tight >= 5, "wait loops: the producer's and its drain, the mma's two, the epilogue's"
