"""The machine code of the Hopper kernels that the installed module ships: the instructions that the design asks for,
nothing in local memory in the main loop, products that follow each other, registers within what a CTA has.

SM90_CUBIN names another file to look at: a .cubin, a .fatbin or a module.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from sm90.launch import SHARED_LIMIT, configs
from sm100 import sass
from sm100.sass import Instruction, Kernel

import nvfp4

SOURCE = Path(os.environ.get("SM90_CUBIN", nvfp4._C.__file__))
PREFIX = "nvfp4_sm90_gemm_"
pytestmark = [
    pytest.mark.skipif(
        "SM90_CUBIN" not in os.environ and "sm_90a" not in nvfp4.info()["archs"],
        reason="this build has no machine code for sm_90a",
    ),
    pytest.mark.skipif(not (sass.tool("nvdisasm") and sass.tool("cuobjdump")), reason=sass.NEEDS),
]

CONFIGS = {name.removeprefix("sm90_gemm_"): config for name, config in configs().items()}
NAMES = pytest.mark.parametrize("name", CONFIGS)
REGISTERS = 65536  # of an SM


@pytest.fixture(scope="session")
def kernels() -> dict[str, Kernel]:
    return sass.kernels_of(SOURCE, PREFIX)


def smallest_loop(kernel: Kernel, pattern: str) -> list[Instruction]:
    """Around all instructions of that kind."""
    places = [i for i, instruction in enumerate(kernel.code) if re.match(pattern, instruction.opcode)]
    loops = [
        (last - first, first, last)
        for last, instruction in enumerate(kernel.code)
        if instruction.target and (first := kernel.labels[instruction.target]) <= places[0] and places[-1] <= last
    ]
    _, first, last = min(loops)
    return kernel.code[first : last + 1]


def main_loop(kernel: Kernel) -> list[Instruction]:
    return smallest_loop(kernel, "HGMMA")


def test_all_kernels_are_there(kernels: dict[str, Kernel]) -> None:
    assert set(kernels) == set(CONFIGS), "install the package again: its kernels are not those of csrc/sm90_configs.h"


@NAMES
def test_instructions(name: str, kernels: dict[str, Kernel]) -> None:
    """Products of 64 by tile_y with x in registers, and no other kind; values by tensor map, scales by bulk copies,
    partial sums 16 bytes at a time."""
    kernel, config = kernels[name], CONFIGS[name]
    products = kernel.all("HGMMA")
    assert {i.opcode for i in products} == {f"HGMMA.64x{config.tile_y}x16.F32"}
    assert all(re.match(r"R\d+, R\d+, gdesc\[UR\d+\], R\d+", i.operands) for i in products)
    assert len(products) == 8 * config.numbers["x_tiles"]
    assert not kernel.all("(HMMA|IMMA|QGMMA|IGMMA|BGMMA)\\b")
    assert {i.opcode for i in kernel.all("UTMALDG")} == {"UTMALDG.3D"}
    assert kernel.all("UBLKCP")
    assert {i.opcode for i in kernel.all("STAS")} == {"STAS.128"}


@NAMES
def test_products_follow_each_other(name: str, kernels: dict[str, Kernel]) -> None:
    """What ptxas calls serialized has an end and a wait behind each product. Here a group of products ends once, and a
    wait for all of them stands only behind the last."""
    config, loop = CONFIGS[name], main_loop(kernels[name])
    places = [i for i, instruction in enumerate(loop) if instruction.opcode.startswith("HGMMA")]
    groups = sum(loop[i].operands.endswith("gsb0") for i in places)
    assert groups == 4 // config.numbers["group_words"]
    between = loop[places[0] : places[-1]]
    assert sum(i.opcode == "WARPGROUP.ARRIVE" for i in between) == groups - 1
    assert not [i for i in between if i.opcode == "WARPGROUP.DEPBAR.LE" and i.operands.endswith("0x0")]


@NAMES
def test_no_local_memory(name: str, kernels: dict[str, Kernel]) -> None:
    """In the loop around the products."""
    assert not [i for i in main_loop(kernels[name]) if re.match("(LDL|STL)", i.opcode)]


@NAMES
def test_decoding(name: str, kernels: dict[str, Kernel]) -> None:
    """A conversion and a multiplication for two values of x, a conversion for two scales, and nothing twice."""
    loop, numbers = main_loop(kernels[name]), CONFIGS[name].numbers
    rows = 2 * numbers["x_tiles"]  # of a thread, each 32 values and 2 scales
    assert sum(i.opcode.startswith("F2FP.F16.E4M3.UNPACK_B") for i in loop) <= 17 * rows
    assert sum(i.opcode.startswith("HMUL2") for i in loop) <= 16 * rows
    assert not [i for i in loop if re.match(r"(F2F\b|I2F|FMUL|FFMA|HFMA2|HADD2)", i.opcode)]


@NAMES
def test_order_of_the_start(name: str, kernels: dict[str, Kernel]) -> None:
    """Only copies of x stand before a griddepcontrol.wait, and where y is raw not even they; launch_dependents behind
    one, and once."""
    kernel = kernels[name]
    first_wait, (launch,) = min(i.address for i in kernel.all("ACQBULK")), kernel.all("PREEXIT")
    assert first_wait < launch.address
    assert first_wait < min(i.address for i in kernel.all("STG|LDG|ATOM|RED"))
    (loader,), copies = kernel.all("USETMAXREG.DEALLOC"), [i.address for i in kernel.all("UTMALDG")]
    waits = [i.address for i in kernel.all("ACQBULK") if i.address > loader.address]
    if CONFIGS[name].y_raw:
        assert min(waits) < min(copies), "x is loaded before the grids before have ended"
    else:
        assert sum(address < max(waits) for address in copies) <= 1, (
            "y is loaded before the grid that expands it has ended"
        )


@NAMES
def test_resources(name: str, kernels: dict[str, Kernel]) -> None:
    """The registers that the groups end up with are no more than those that the launch gets; barriers lie where the
    host's count of shared memory has room for them."""
    kernel, config = kernels[name], CONFIGS[name]
    assert config.shared_bytes <= SHARED_LIMIT
    (taken,), (given,) = (
        [int(i.operands.split()[-1], 16) for i in kernel.all(f"USETMAXREG.{kind}")] for kind in ("TRY_ALLOC", "DEALLOC")
    )
    math, support = 128 * config.numbers["math_warpgroups"], 128
    assert math + support == config.threads
    at_launch = -(-kernel.registers // 8) * 8
    assert at_launch * config.threads <= REGISTERS
    assert math * taken + support * given <= at_launch * config.threads
    barriers = {int(at, 16) for i in kernel.all(r"SYNCS\.EXCH") for at in re.findall(r"\+(0x[0-9a-f]+)\]", i.operands)}
    rings = [number for what, number in config.numbers.items() if what.endswith("stages")]
    assert len(barriers) == 2 * sum(rings) + 1
    assert max(barriers) + 8 <= config.shared_bytes and max(barriers) - min(barriers) == 16 * sum(rings)


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
    assert tight >= 4, "loops that wait: the loader's, the products' two, the parts'"
