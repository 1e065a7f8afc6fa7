"""SASS of the sm_100 and sm_110 kernels of the installed module: the expected instructions, no local memory, registers
within the budget of two CTAs an SM, and a mainloop that keeps up with the tensor core.

SM100_CUBIN names another file to check. `python tests/kernels/harness/sass.py` prints the numbers.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from harness import sass
from harness.sass import Instruction, Kernel
from harness.values import ceil_div
from sm100 import gemm

import nvfp4

SOURCE = Path(os.environ.get("SM100_CUBIN", nvfp4._C.__file__))
pytestmark = [
    pytest.mark.skipif(
        "SM100_CUBIN" not in os.environ and "sm_100f" not in nvfp4.info()["archs"],
        reason="this build has no machine code for sm_100",
    ),
    sass.needed,
]

CONFIGS = {config.short: config for config in gemm.CONFIGS.values()}
NAMES = pytest.mark.parametrize("name", CONFIGS)
REGISTERS, SHARED = 65536, 228 * 1024  # of an SM; each CTA reserves 1 KiB of shared memory more
STAGE_INSTRUCTIONS = 100  # of one thread; a stage of 256x128 takes the tensor core 256 clocks


def kernels_for(arch: str, file: str, prefix: str, folder: Path) -> dict[str, Kernel]:
    """sm_110's are what the toolkit's ptxas makes of the PTX for it: that of a Thor's driver cannot be read here."""
    if arch != "sm_110":
        return sass.kernels_of(SOURCE, prefix, arch)
    if not shutil.which("ptxas"):
        pytest.skip("needs ptxas of CUDA 13")
    ptx, cubin = folder / "thor.ptx", folder / "thor.cubin"
    ptx.write_text(ptx_for("compute_110f", file))
    subprocess.run(["ptxas", "-arch=sm_110f", "-o", cubin, ptx], check=True)
    return sass.kernels_of(cubin, prefix, "sm_")


@pytest.fixture(scope="session", params=["sm_"] if "SM100_CUBIN" in os.environ else ["sm_100", "sm_110"])
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kernel]:
    return kernels_for(request.param, "sm100_gemm", "nvfp4_sm100_gemm_", tmp_path_factory.mktemp("gemm"))


def ptx_for(arch: str, file: str = "sm100_gemm") -> str:
    (image,) = (path for path in sass.images(SOURCE.read_bytes(), arch) if path.stem == file)
    return sass.nvfp4_cuda.unpacked(image).rstrip(b"\0").decode()


def test_what_is_proved_of_sm_100_is_of_sm_110_too() -> None:
    """Emulator and static verifier read the PTX of compute_100f."""
    of_thor, lines = ptx_for("compute_110f"), {".target sm_100f": ".target sm_110f", ".version 8.8": ".version 9.0"}
    changed = [lines.get(line, line) for line in ptx_for("compute_100f").splitlines()]
    assert of_thor.splitlines() == changed and ".target sm_110f\n" in of_thor


def of_pairs(kernel: Kernel, pattern: str) -> set[bool]:
    """Whether the instructions of that kind are .2CTA; empty where there are none."""
    return {".2CTA" in instruction.opcode for instruction in kernel.all(pattern)}


def test_all_kernels_are_there(kernels: dict[str, Kernel]) -> None:
    assert set(kernels) == set(CONFIGS), "install the package again: its kernels are not those of sm100"


@NAMES
def test_instructions(name: str, kernels: dict[str, Kernel]) -> None:
    """mma with four scales a row (block 16), all or none of them .2CTA; scales by tcgen05.cp; tiles by TMA, without a
    pair scales by cp.async.bulk; multicast loads and cp.async only in the kernels named so."""
    kernel, config = kernels[name], CONFIGS[name]
    pair = config.cta_group == 2
    mma = kernel.all("UTCOMMA")
    assert mma and all(i.opcode.endswith(".4X") for i in mma)
    for pattern in ("UTCOMMA", "UTCCP", "UTMALDG", "UTCATOMSWS.*FIND_AND_SET"):
        assert of_pairs(kernel, pattern) == {pair}, pattern
    assert not kernel.all("UT[A-Z]*MMA(?<!UTCOMMA)"), "another kind of mma"
    assert all(i.opcode.startswith("UTCCP.T.S") and "4x32dp128bit" in i.opcode for i in kernel.all("UTCCP"))
    assert {".MULTICAST" in i.opcode for i in kernel.all("UTCBAR")} == {pair}
    assert {".MULTICAST" in i.opcode for i in kernel.all("UTMALDG")} == {False, config.multicast > 1}
    assert bool(kernel.all("UBLKCP")) == (not pair and not config.cp_async)
    assert bool(kernel.all("LDGSTS")) == bool(config.cp_async)
    assert kernel.all("LDTM"), "no load from tensor memory"
    assert kernel.all("STAS.*128"), "partial sums are not sent 16 bytes at a time"
    assert not kernel.all("(HMMA|QMMA|OMMA|IMMA|HGMMA|QGMMA)")


def check_rounding(kernel: Kernel) -> None:
    """Results of 16 bits come from F2FP, two at a time where neighbours are stored together. F2F has one result, and of
    two a PRMT makes a pair."""
    assert not kernel.all(r"F2F\."), "fp32 is rounded by F2F"
    for kind in ("F16", "BF16"):
        packed = kernel.all(rf"F2FP\.{kind}\.F32\.PACK_AB$")
        assert [i for i in packed if not re.search(r"\bRZ\b", i.operands)], f"no two results of {kind} at a time"


@NAMES
def test_rounding(name: str, kernels: dict[str, Kernel]) -> None:
    check_rounding(kernels[name])


@NAMES
def test_prologue_order(name: str, kernels: dict[str, Kernel]) -> None:
    """tcgen05.alloc, then griddepcontrol.wait, then launch_dependents: one wait and one launch, in that order. Only TMA
    loads, those of a constant b, come before the wait."""
    kernel = kernels[name]
    allocations, (wait,), (launch,) = (kernel.all(p) for p in ("UTCATOMSWS.*FIND", "ACQBULK", "PREEXIT"))
    assert all(i.address < wait.address for i in allocations) and wait.address < launch.address
    early = {i.opcode.split(".")[0] for i in kernel.all("UTMALDG|UBLKCP|LDGSTS|STG|LDG") if i.address < wait.address}
    assert early <= ({"UTMALDG", "UBLKCP"} if not CONFIGS[name].cp_async else set()), "before griddepcontrol.wait"


@NAMES
def test_no_division(name: str, kernels: dict[str, Kernel]) -> None:
    """An integer division starts from an approximate reciprocal: the loads would wait for several of them."""
    assert not kernels[name].all("MUFU.RCP|I2F")


@NAMES
def test_only_the_mma_warp_and_the_epilogue_wait_for_tensor_memory(name: str, kernels: dict[str, Kernel]) -> None:
    """Between the allocation and griddepcontrol.wait the mma warp arrives and nobody waits for a barrier."""
    kernel = kernels[name]
    (wait,) = kernel.all("ACQBULK")
    first = min(i.address for i in kernel.all("UTCATOMSWS.*FIND"))
    between = [i.opcode for i in kernel.all("BAR|UCGABAR") if first < i.address < wait.address]
    assert between == ["BAR.ARV"], between


@NAMES
def test_no_local_memory(name: str, kernels: dict[str, Kernel]) -> None:
    kernel = kernels[name]
    assert not kernel.all("(LDL|STL)"), "local memory"
    assert kernel.stack == kernel.local == 0


@NAMES
def test_resources(name: str, kernels: dict[str, Kernel]) -> None:
    """Registers admit a CTA of the next call wherever shared and tensor memory do, even if warp w runs on sub-partition
    w % 4 only: 128 a thread of 6 warps. Allocated columns and barrier offsets are those of the macros, which the host
    launches by."""
    kernel, config = kernels[name], CONFIGS[name]
    ctas = min(SHARED // (config.shared_bytes + 1024), 512 // config.tmem_columns, 2)
    warps = config.threads // 32 if ctas == 1 else ceil_div(config.threads, 128) * 4
    assert kernel.registers <= REGISTERS // (ctas * warps) // 256 * 8, f"{ctas} CTAs do not fit"
    columns = {last_constant(kernel, i.address, i.operands) * 32 for i in kernel.all("UTCATOMSWS.*FIND")}
    assert columns == {config.tmem_columns}
    count, barriers = (2 + (not config.cp_async)) * config.stages + 2 * config.accumulators + 1, kernel.barriers()
    assert barriers == {8 * i for i in range(count)}
    assert config.stages * config.stage_bytes + 8 * count <= config.shared_bytes


def last_constant(kernel: Kernel, address: int, operands: str) -> int:
    """The constant in the last register that the instruction there names."""
    register = re.findall(r"UR\d+", operands)[-1]
    moves = [i for i in kernel.all("UMOV") if i.address < address and i.operands.startswith(f"{register}, ")]
    return int(moves[-1].operands.split(", ")[1], 16)


def mainloop_stage(kernel: Kernel, atoms: int) -> list[Instruction]:
    """The instructions of one full K stage in the mma warp: in the innermost loop with UTCOMMA, the shortest path with
    four of them and the UTCCP of their scales. atoms: of a K block."""

    def count(path: list[Instruction], opcode: str) -> int:
        return sum(instruction.opcode.startswith(opcode) for instruction in path)

    paths = kernel.paths(*kernel.loop("UTCOMMA"))
    return min((p for p in paths if count(p, "UTCOMMA") == 4 and count(p, "UTCCP") == 4 * atoms), key=len)


@NAMES
def test_mainloop_stage(name: str, kernels: dict[str, Kernel]) -> None:
    """A full stage: one cp an atom, four consecutive mma, one commit; the wait for the values and the test of the next
    stage between cp and mma. One thread's work, so the only branches are the loop, the tail and the waits, and no loop
    goes over lanes."""
    stage = mainloop_stage(kernels[name], 1 + ceil_div(CONFIGS[name].mma_tile_n, gemm.ATOM_ROWS))
    opcodes = [i.opcode for i in stage]

    def places(start: str) -> list[int]:
        return [i for i, opcode in enumerate(opcodes) if opcode.startswith(start)]

    assert len(places("UTCOMMA")) == 4 and len(places("UTCBAR")) == 1
    assert max(places("UTCCP")) < min(places("UTCOMMA")) < max(places("UTCOMMA")) < places("UTCBAR")[0]
    assert max(places("UTCOMMA")) - min(places("UTCOMMA")) < 12, "the mma are not consecutive"
    waits = 1 if CONFIGS[name].cp_async else 2  # the retry loops lie outside
    assert len(places("SYNCS.PHASECHK")) == waits and max(places("UTCCP")) < min(places("SYNCS.PHASECHK"))
    assert max(places("SYNCS.PHASECHK")) < min(places("UTCOMMA"))
    assert len(places("BRA")) <= 5
    assert not [o for o in opcodes if re.match("(LDS|LD|LDG|ST|STS|STG|ATOM|MEMBAR|CCTL|BAR|VOTE|MATCH)\\b", o)]
    assert len(stage) <= STAGE_INSTRUCTIONS


@NAMES
def test_waits_are_tight(name: str, kernels: dict[str, Kernel]) -> None:
    """A wait loop has a few instructions and no fence."""
    loops = kernels[name].wait_loops()
    assert len(loops) >= 5, "wait loops: the producer's and its drain, the mma's two, the epilogue's"
    for body in loops:
        assert len(body) <= 5 and not any(re.match("MEMBAR|ERRBAR", i.opcode) for i in body)
