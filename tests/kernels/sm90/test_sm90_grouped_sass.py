"""The machine code of sm90/grouped.cu and its pre-passes in the installed module: a wgmma of each width, none of them
serialized, no local memory, registers within the limits of a CTA.

SM90_CUBIN names another file to check: a .cubin or a module.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from harness import sass
from harness.launch import SHARED_LIMIT
from harness.sass import Kernel
from sm90.gemm import HEADERS
from sm90.grouped import WIDTHS

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
REGISTERS = 65536  # of an SM


@pytest.fixture(scope="session")
def kernels() -> dict[str, Kernel]:
    found = sass.kernels_of(SOURCE, PREFIX)
    return {name: kernel for name, kernel in found.items() if not name.startswith(("units_", "few_"))}


def test_all_kernels_are_there(kernels: dict[str, Kernel]) -> None:
    assert set(kernels) == set(CONFIGS), "install the package again: its kernels are not those of sm90"


@NAMES
def test_instructions(name: str, kernels: dict[str, Kernel]) -> None:
    """Eight wgmma of each width, and no other mma. TMA loads and bulk copies of scales: two boxes of B and a tile of A,
    for the first stages, those that wait for the pre-pass, and all others."""
    kernel, config = kernels[name], CONFIGS[name]
    found = sorted(i.opcode for i in kernel.all("HGMMA"))
    kinds = [f"HGMMA.64x{width}x16.F32" + ".BF16" * config.bf16 for width in WIDTHS[config.mma_tile_n]]
    assert found == sorted(kinds * 8)
    assert not kernel.all("(HMMA|IMMA|QGMMA|IGMMA|BGMMA)\\b")
    assert [i.opcode for i in kernel.all("UTMALDG")] == ["UTMALDG.3D"] * 6 and len(kernel.all("UBLKCP")) == 4


@NAMES
def test_wgmma_are_not_serialized(name: str, kernels: dict[str, Kernel]) -> None:
    """Each group has one commit: four groups of a stage."""
    groups = sum(i.operands.endswith("gsb0") for i in kernels[name].all("HGMMA"))
    assert groups == 4 * len(WIDTHS[CONFIGS[name].mma_tile_n])


@NAMES
def test_no_local_memory(name: str, kernels: dict[str, Kernel]) -> None:
    assert not kernels[name].all("LDL|STL")


@NAMES
def test_resources(name: str, kernels: dict[str, Kernel]) -> None:
    """After setmaxnreg the three warpgroups have no more registers than the launch."""
    kernel, config = kernels[name], CONFIGS[name]
    assert config.shared_bytes <= SHARED_LIMIT
    taken = [int(i.operands.split()[-1], 16) for i in kernel.all("USETMAXREG.TRY_ALLOC")]
    given = [int(i.operands.split()[-1], 16) for i in kernel.all("USETMAXREG.DEALLOC")]
    assert len(taken) == 1 and len(given) == 1 and config.threads == 384
    assert -(-kernel.registers // 8) * 8 * config.threads <= REGISTERS
    assert 256 * taken[0] + 128 * sum(given) <= REGISTERS


def test_the_pre_passes() -> None:
    """No local memory. Each stores whole 16-byte chunks, which neighbours in a warp have as neighbours. Of a 16-bit A a
    thread has 4 pieces at a time, of an NVFP4 A 16 words and 16 scales."""
    found = sass.kernels_of(SOURCE, "nvfp4_sm90_reorder")
    assert set(found) == {"", "_e2m1"}
    for kernel, at_once in ((found[""], 4), (found["_e2m1"], 32)):
        assert kernel.stack == kernel.local == 0 and not kernel.all("LDL|STL")
        stores = [i for i in kernel.all("STG") if ".128" in i.opcode]
        assert len(kernel.all("STG")) - len(stores) == 1, "the count of claimed tiles"
        first = stores[0].address
        assert len([i for i in kernel.all("LDG") if i.address < first]) >= at_once
        assert kernel.registers * 256 * 4 <= REGISTERS
