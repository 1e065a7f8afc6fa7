"""The machine code of the sm_100 kernels that the installed module ships: the instructions that the design asks for,
nothing in local memory, registers within what two CTAs of an SM leave, and a main loop that can keep up.

`python tests/sm100/sass.py` prints the numbers.
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
REGISTERS, SHARED = 65536, 228 * 1024  # of an SM; a CTA's shared memory costs 1 KiB more than it asks for
STAGE_INSTRUCTIONS = 90  # of one thread; a stage of 256x128 keeps the tensor core busy for 256 clocks


@dataclass(frozen=True)
class Budget:
    """What sm100_configs.h says of an instantiation."""

    shared: int
    columns: int
    barriers_at: int


@pytest.fixture(scope="session")
def kernels() -> dict[str, Kernel]:
    return sass.kernels_of(Path(nvfp4._C.__file__))


@pytest.fixture(scope="session")
def budgets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Budget]:
    """By the macros themselves."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("budgets")
    (folder / "budgets.c").write_text("""\
#include <stdio.h>
#include "sm100_configs.h"
#define ROW(id, group, tile_y, stages, accumulators, gather) \\
    printf("%s %d %d %d\\n", #id, SM100_SHARED_BYTES(group, tile_y, stages), \\
           SM100_TMEM_COLUMNS(tile_y, stages, accumulators), stages * SM100_STAGE_BYTES(group, tile_y));
int main(void) {
    SM100_GEMM_CONFIGS(ROW)
}
""")
    subprocess.run([compiler, f"-I{CSRC}", "budgets.c", "-o", "budgets"], cwd=folder, check=True)
    text = subprocess.run([folder / "budgets"], capture_output=True, text=True, check=True).stdout
    rows = (line.split() for line in text.splitlines())
    return {name.removeprefix("sm100_gemm_"): Budget(*map(int, numbers)) for name, *numbers in rows}


def of_pairs(kernel: Kernel, pattern: str) -> set[bool]:
    """Whether the instructions of that kind are those of pairs; empty where there are none."""
    return {".2CTA" in instruction.opcode for instruction in kernel.all(pattern)}


def test_all_kernels_are_there(kernels: dict[str, Kernel]) -> None:
    assert set(kernels) == set(CONFIGS), "install the package again: its kernels are not those of csrc/sm100_configs.h"


@NAMES
def test_instructions(name: str, kernels: dict[str, Kernel]) -> None:
    """Products with four scales a row (block 16), all by pairs or none; scales by tcgen05.cp; tiles by tensor map and,
    without a pair, scales by bulk copies; cp.async where warps gather and nowhere else."""
    kernel, config = kernels[name], CONFIGS[name]
    pair = config.group == 2
    products = kernel.all("UTCOMMA")
    assert products and all(i.opcode.endswith(".4X") for i in products)
    for pattern in ("UTCOMMA", "UTCCP", "UTMALDG", "UTCATOMSWS.*FIND_AND_SET"):
        assert of_pairs(kernel, pattern) == {pair}, pattern
    assert not kernel.all("UT[A-Z]*MMA(?<!UTCOMMA)"), "another kind of product"
    assert all(i.opcode.startswith("UTCCP.T.S") and "4x32dp128bit" in i.opcode for i in kernel.all("UTCCP"))
    assert {".MULTICAST" in i.opcode for i in kernel.all("UTCBAR")} == {pair}
    assert bool(kernel.all("UBLKCP")) == (not pair and not config.gather)
    assert bool(kernel.all("LDGSTS")) == bool(config.gather)
    assert kernel.all("LDTM"), "no load from tensor memory"
    assert kernel.all("STAS.*128"), "partial sums do not go out 16 bytes at a time"
    assert not kernel.all("(HMMA|QMMA|OMMA|IMMA|HGMMA|QGMMA)")


@NAMES
def test_order_of_the_start(name: str, kernels: dict[str, Kernel]) -> None:
    """Tensor memory first, then griddepcontrol.wait, then launch_dependents: one each, in that order."""
    kernel = kernels[name]
    allocations, (wait,), (launch,) = (kernel.all(p) for p in ("UTCATOMSWS.*FIND", "ACQBULK", "PREEXIT"))
    assert all(i.address < wait.address for i in allocations) and wait.address < launch.address
    first_copy = min(i.address for i in kernel.all("UTMALDG|UBLKCP|LDGSTS|STG|LDG"))
    assert wait.address < first_copy, "touches global memory before the grids before have ended"


@NAMES
def test_no_local_memory(name: str, kernels: dict[str, Kernel]) -> None:
    kernel = kernels[name]
    assert not kernel.all("(LDL|STL)"), "local memory"
    assert kernel.stack == kernel.local == 0


@NAMES
def test_resources(name: str, kernels: dict[str, Kernel], budgets: dict[str, Budget]) -> None:
    """Where shared and tensor memory let a CTA of the next call in, registers do too. Columns asked for and the place
    of the barriers are those of the macros, by which the host launches."""
    kernel, config, budget = kernels[name], CONFIGS[name], budgets[name]
    ctas = min(SHARED // (budget.shared + 1024), 512 // budget.columns, 2)
    warps = config.threads // 32
    assert kernel.registers <= REGISTERS // (ctas * warps) // 256 * 8, f"{ctas} CTAs do not fit"
    columns = {given_to(kernel, i.address, i.operands) * 32 for i in kernel.all("UTCATOMSWS.*FIND")}
    assert columns == {budget.columns}
    barriers = {int(at, 16) for i in kernel.all(r"SYNCS\.EXCH") for at in re.findall(r"\+(0x[0-9a-f]+)\]", i.operands)}
    count = 2 * config.stages + 2 * config.accumulators + 1
    assert barriers == {budget.barriers_at + 8 * i for i in range(count)}
    assert max(barriers) + 8 <= budget.shared


def given_to(kernel: Kernel, address: int, operands: str) -> int:
    """The constant in the last register that the instruction there names."""
    register = re.findall(r"UR\d+", operands)[-1]
    moves = [i for i in kernel.all("UMOV") if i.address < address and i.operands.startswith(f"{register}, ")]
    return int(moves[-1].operands.split(", ")[1], 16)


@NAMES
def test_a_stage_of_products(name: str, kernels: dict[str, Kernel]) -> None:
    """A full stage: four products with nothing between them, a copy an atom, one arrival; one thread's work, so no
    branch but back, over the tail and out of the wait, and no loop that goes over lanes."""
    stage = kernels[name].stage_of_products()
    opcodes = [i.opcode for i in stage]

    def places(start: str) -> list[int]:
        return [i for i, opcode in enumerate(opcodes) if opcode.startswith(start)]

    assert len(places("UTCOMMA")) == 4 and len(places("UTCBAR")) == 1
    assert max(places("UTCCP")) < min(places("UTCOMMA")) < max(places("UTCOMMA")) < places("UTCBAR")[0]
    assert max(places("UTCOMMA")) - min(places("UTCOMMA")) < 12, "products do not follow each other"
    assert len(places("SYNCS.PHASECHK")) == 1, "one wait, whose repetition lies outside"
    assert len(places("BRA")) <= 4
    assert not [o for o in opcodes if re.match("(LDS|LD|LDG|ST|STS|STG|ATOM|MEMBAR|CCTL|BAR|VOTE|MATCH)\\b", o)]
    assert len(stage) <= STAGE_INSTRUCTIONS


@NAMES
def test_waits_are_tight(name: str, kernels: dict[str, Kernel]) -> None:
    """Who waits repeats a few instructions, and no fence."""
    kernel, tight = kernels[name], 0
    for last, instruction in enumerate(kernel.code):
        first = kernel.labels.get(instruction.target, last) if instruction.target else last
        body = kernel.code[first:last]
        if first < last and len(body) <= 8 and any("TRYWAIT" in i.opcode for i in body):
            assert len(body) <= 5 and not any(re.match("MEMBAR|ERRBAR", i.opcode) for i in body)
            tight += 1
    assert tight >= 5, "loops that wait: the producer's and its drain, the mma's two, the epilogue's"
