"""The machine code of the Hopper kernels in the installed module: the expected instructions, no local memory in the
mainloop, wgmma that are not serialized, registers within the limits of a CTA.

SM90_CUBIN names another file to check: a .cubin or a module.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from harness import sass
from harness.launch import SHARED_LIMIT
from harness.sass import Instruction, Kernel
from sm90.gemm import HEADERS

import nvfp4

SOURCE = Path(os.environ.get("SM90_CUBIN", nvfp4._C.__file__))
PREFIX = "nvfp4_sm90_gemm_"
pytestmark = [
    pytest.mark.skipif(
        "SM90_CUBIN" not in os.environ and "sm_90a" not in nvfp4.info()["archs"],
        reason="this build has no machine code for sm_90a",
    ),
    sass.needed,
]

CONFIGS = {config.short: config for config in HEADERS.configs("gemm").values()}
NAMES = pytest.mark.parametrize("name", CONFIGS)
REGISTERS = 65536  # of an SM


@pytest.fixture(scope="session")
def kernels() -> dict[str, Kernel]:
    return sass.kernels_of(SOURCE, PREFIX)


def main_loop(kernel: Kernel) -> list[Instruction]:
    first, last = kernel.loop("HGMMA")
    return kernel.code[first : last + 1]


def test_all_kernels_are_there(kernels: dict[str, Kernel]) -> None:
    assert set(kernels) == set(CONFIGS), "install the package again: its kernels are not those of sm90"


@NAMES
def test_instructions(name: str, kernels: dict[str, Kernel]) -> None:
    """wgmma of 64 by mma_tile_n with mma_a in registers, and no other mma; TMA loads of values, bulk copies of scales,
    st.async of 16 bytes."""
    kernel, config = kernels[name], CONFIGS[name]
    products = kernel.all("HGMMA")
    assert {i.opcode for i in products} == {f"HGMMA.64x{config.mma_tile_n}x16.F32" + ".BF16" * config.bf16}
    assert all(re.match(r"R\d+, R\d+, gdesc\[UR\d+\], R\d+", i.operands) for i in products)
    assert len(products) == 8 * config.wgmmas_m
    assert not kernel.all("(HMMA|IMMA|QGMMA|IGMMA|BGMMA)\\b")
    assert {i.opcode for i in kernel.all("UTMALDG")} == {"UTMALDG.3D"}
    assert kernel.all("UBLKCP")
    assert {i.opcode for i in kernel.all("STAS")} == {"STAS.128"}


@NAMES
def test_wgmma_are_not_serialized(name: str, kernels: dict[str, Kernel]) -> None:
    """Serialized wgmma (ptxas's warning) have a commit and a wait behind each. Here each group has one commit, and only
    the last wait is for all groups."""
    config, loop = CONFIGS[name], main_loop(kernels[name])
    places = [i for i, instruction in enumerate(loop) if instruction.opcode.startswith("HGMMA")]
    groups = sum(loop[i].operands.endswith("gsb0") for i in places)
    assert groups == 4 // config.group_words
    between = loop[places[0] : places[-1]]
    assert sum(i.opcode == "WARPGROUP.ARRIVE" for i in between) == groups - 1
    assert not [i for i in between if i.opcode == "WARPGROUP.DEPBAR.LE" and i.operands.endswith("0x0")]


@NAMES
def test_no_local_memory(name: str, kernels: dict[str, Kernel]) -> None:
    """In the mainloop."""
    assert not [i for i in main_loop(kernels[name]) if re.match("(LDL|STL)", i.opcode)]


@NAMES
def test_decoding(name: str, kernels: dict[str, Kernel]) -> None:
    """A conversion and a multiplication for two values of mma_a, a conversion for two scales, and nothing twice."""
    loop, config = main_loop(kernels[name]), CONFIGS[name]
    rows = 2 * config.wgmmas_m  # of a thread, each 32 values and 2 scales
    if config.bf16:  # codes by masks; scales by way of fp16 and fp32
        assert sum(i.opcode.startswith("F2FP.F16.E4M3.UNPACK_B") for i in loop) <= rows
        assert sum(bool(re.match("(HMUL2|HFMA2)", i.opcode)) for i in loop) <= 16 * rows
        assert sum(bool(re.match("(FMUL|HADD2)", i.opcode)) for i in loop) <= 4 * rows
        assert not [i for i in loop if re.match(r"(F2F\b|I2F|FFMA)", i.opcode)]
        return
    assert sum(i.opcode.startswith("F2FP.F16.E4M3.UNPACK_B") for i in loop) <= 17 * rows
    assert sum(i.opcode.startswith("HMUL2") for i in loop) <= 16 * rows
    assert not [i for i in loop if re.match(r"(F2F\b|I2F|FMUL|FFMA|HFMA2|HADD2)", i.opcode)]


@NAMES
def test_order_of_the_start(name: str, kernels: dict[str, Kernel]) -> None:
    """Only loads of mma_a precede griddepcontrol.wait; launch_dependents once, behind a wait."""
    kernel, config = kernels[name], CONFIGS[name]
    first_wait, (launch,) = min(i.address for i in kernel.all("ACQBULK")), kernel.all("PREEXIT")
    assert first_wait < launch.address
    assert first_wait < min(i.address for i in kernel.all("STG|LDG|ATOM|RED"))
    copies = [i.address for i in kernel.all("UTMALDG")]
    loader = max((i for i in kernel.all("USETMAXREG.DEALLOC") if i.address < copies[0]), key=lambda i: i.address)
    waits = [i.address for i in kernel.all("ACQBULK") if i.address > loader.address]
    if config.dequant_b_in_kernel and not config.dequant_from_stages:
        # Its warps have a wait of their own, and ordinary loads.
        loads = [i.address for i in kernel.all("LDG") if i.address > loader.address]
        assert waits.pop(waits.index(max(waits))) < min(loads), "mma_b is loaded before griddepcontrol.wait"
    assert sum(address < max(waits) for address in copies) <= 1, "mma_b is loaded before griddepcontrol.wait"


@NAMES
def test_resources(name: str, kernels: dict[str, Kernel]) -> None:
    """After setmaxnreg the warpgroups have no more registers than the launch; the mbarriers lie within shared memory
    as the host requests it."""
    kernel, config = kernels[name], CONFIGS[name]
    assert config.shared_bytes <= SHARED_LIMIT
    (taken,), given = (
        [int(i.operands.split()[-1], 16) for i in kernel.all(f"USETMAXREG.{kind}")] for kind in ("TRY_ALLOC", "DEALLOC")
    )
    raw = config.dequant_from_stages
    assert len(given) == 1 + raw, "the producer's warpgroup, and that which dequantizes"
    math = 128 * config.math_warpgroups
    assert math + 128 * len(given) == config.threads
    at_launch = -(-kernel.registers // 8) * 8
    assert at_launch * config.threads <= REGISTERS
    assert math * taken + 128 * sum(given) <= at_launch * config.threads
    barriers = kernel.barriers()
    assert len(barriers) == (2 + raw) * config.stages + 1
    assert max(barriers) == 24 * config.stages


@NAMES
def test_waits_are_tight(name: str, kernels: dict[str, Kernel]) -> None:
    """Wait loops have few instructions, and no fence."""
    loops = kernels[name].wait_loops()
    assert len(loops) >= 4, "wait loops: the producer's, two of the mainloop, one for partials"
    for body in loops:
        assert len(body) <= 5 and not any(re.match("MEMBAR|ERRBAR", i.opcode) for i in body)
