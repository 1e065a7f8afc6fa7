"""The machine code of sm90/grouped.cu and its pre-passes in the installed module: a wgmma of each width, none of them
serialized, no local memory, copies that no fence waits for, registers within the limits of a CTA.

SM90_CUBIN names another file to check: a .cubin, a .fatbin or a module.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from harness import sass
from harness.launch import SHARED_LIMIT
from harness.sass import Kernel
from sm90.gemm import HEADERS

import nvfp4

SOURCE = Path(os.environ.get("SM90_CUBIN", nvfp4._C.__file__))
PREFIX = "nvfp4_sm90_grouped_"
pytestmark = [
    pytest.mark.skipif(
        "SM90_CUBIN" not in os.environ and "sm_90a" not in nvfp4.info()["archs"],
        reason="this build has no machine code for sm_90a",
    ),
    sass.needed,
]
CONFIGS = {config.name.removeprefix("sm90_grouped_"): config for config in HEADERS.configs("grouped").values()}
NAMES = pytest.mark.parametrize("name", CONFIGS)
WIDTHS = {64: (8, 16, 32, 48, 64), 128: (32, 64, 96, 128)}
REGISTERS = 65536  # of an SM


@pytest.fixture(scope="session")
def kernels() -> dict[str, Kernel]:
    found = sass.kernels_of(SOURCE, PREFIX)
    return {name: kernel for name, kernel in found.items() if not name.startswith(("units_", "few_"))}


def test_all_kernels_are_there(kernels: dict[str, Kernel]) -> None:
    assert set(kernels) == set(CONFIGS), "install the package again: its kernels are not those of sm90"


@NAMES
def test_instructions(name: str, kernels: dict[str, Kernel]) -> None:
    """Eight wgmma of each width, and no other mma; a TMA load of values, a bulk copy of scales."""
    kernel, config = kernels[name], CONFIGS[name]
    found = sorted(i.opcode for i in kernel.all("HGMMA"))
    kinds = [f"HGMMA.64x{width}x16.F32" + ".BF16" * config.bf16 for width in WIDTHS[config.mma_tile_n]]
    assert found == sorted(kinds * 8)
    assert not kernel.all("(HMMA|IMMA|QGMMA|IGMMA|BGMMA)\\b")
    assert [i.opcode for i in kernel.all("UTMALDG")] == ["UTMALDG.3D"] and len(kernel.all("UBLKCP")) == 1


@NAMES
def test_wgmma_are_not_serialized(name: str, kernels: dict[str, Kernel]) -> None:
    """Each group has one commit: two groups of a stage up to 64 rows, else four."""
    kernel, config = kernels[name], CONFIGS[name]
    groups = sum(i.operands.endswith("gsb0") for i in kernel.all("HGMMA"))
    assert groups == sum(2 if width <= 64 else 4 for width in WIDTHS[config.mma_tile_n])


@NAMES
def test_no_local_memory(name: str, kernels: dict[str, Kernel]) -> None:
    assert not kernels[name].all("LDL|STL")


@NAMES
def test_copies_run_on(name: str, kernels: dict[str, Kernel]) -> None:
    """A lane has two rows of each of its blocks, and two chunks of a row. The one fence is not in their loop."""
    kernel, config = kernels[name], CONFIGS[name]
    copies, (fence,) = kernel.all("LDGSTS"), kernel.all("MEMBAR")
    assert len(copies) == config.mma_tile_n // 8 // 4 * 2 * 2
    assert not min(i.address for i in copies) < fence.address < max(i.address for i in copies)


@NAMES
def test_resources(name: str, kernels: dict[str, Kernel]) -> None:
    """After setmaxnreg the four warpgroups have no more registers than the launch."""
    kernel, config = kernels[name], CONFIGS[name]
    assert config.shared_bytes <= SHARED_LIMIT
    taken = [int(i.operands.split()[-1], 16) for i in kernel.all("USETMAXREG.TRY_ALLOC")]
    given = [int(i.operands.split()[-1], 16) for i in kernel.all("USETMAXREG.DEALLOC")]
    assert len(taken) == 1 and len(given) == 2 and config.threads == 512
    assert -(-kernel.registers // 8) * 8 * config.threads <= REGISTERS
    assert 256 * taken[0] + 128 * sum(given) <= REGISTERS


def test_the_pre_passes() -> None:
    """No local memory. Each stores whole 16-byte chunks. Of an NVFP4 A, a thread has 4 pieces: 16 words and 8 of scales
    are on their way at a time."""
    found = sass.kernels_of(SOURCE, "nvfp4_sm90_reorder")
    assert set(found) == {"", "_e2m1"}
    for kernel in found.values():
        assert kernel.stack == kernel.local == 0 and not kernel.all("LDL|STL")
        assert all(".128" in i.opcode for i in kernel.all("STG"))
    kernel = found["_e2m1"]
    loads, stores = kernel.all("LDG"), kernel.all("STG")
    pieces = [i for i in loads if i.address < stores[0].address]
    assert len(stores) == 16 and len(pieces) >= 24 and kernel.registers * 256 * 4 <= REGISTERS
