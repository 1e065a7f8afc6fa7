"""Programmatic dependent launch of the kernels for every GPU. Their machine code for sm_90 and later waits for the
grids before it ahead of everything that touches memory, and then lets the next grid start. That for older GPUs, and
what the driver makes of PTX of sm_80, has neither: there driver.c launches them as any other kernel. And memory
descriptors of all machine code for sm_90, since it is disassembled here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from harness import sass

import nvfp4

SOURCE = Path(nvfp4._C.__file__)
PREFIXES = [
    *("nvfp4_sm80_gemm_", "nvfp4_sm80_w4a16_", "nvfp4_sm80_nn_", "nvfp4_sm80_split_reduce", "nvfp4_sm80_grouped_fp16_"),
    *("nvfp4_sm80_grouped_w4a4_", "nvfp4_sm80_grouped_nn_", "nvfp4_gated_silu", "nvfp4_moe_route", "nvfp4_moe_combine"),
]
# Loads, stores and copies of global memory, and what leaves the kernel. A kernel may compute ahead of its wait.
MEMORY = r"(LD|ST|LDG|STG|LDGSTS|LDGDEPBAR|ATOM|ATOMG|RED|REDG|UBLKCP|UTMALDG|CCTL|MEMBAR|EXIT|RET)\b"
pytestmark = [pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code"), sass.needed]


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return list(sass.cubins(SOURCE.read_bytes(), tmp_path_factory.mktemp("cubins")))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_kernels_wait_first(arch: str, cubins: list[Path]) -> None:
    if arch not in nvfp4.info()["archs"]:
        pytest.skip(f"this build has no machine code for {arch}")
    own = [cubin for cubin in cubins if cubin.name.endswith(f".{arch}.cubin")]
    wanted = [cubin for cubin in own if any(prefix.encode() in cubin.read_bytes() for prefix in PREFIXES)]
    kernels = {name: kernel for cubin in wanted for name, kernel in sass.disassemble(cubin, "").items()}
    assert all(any(name.startswith(prefix) for name in kernels) for prefix in PREFIXES)
    for name, kernel in kernels.items():
        waits, launches = kernel.all("ACQBULK"), kernel.all("PREEXIT")
        if arch == "sm_80":
            assert not waits and not launches, name
            continue
        assert len(waits) == len(launches) == 1, name
        assert waits[0].address < launches[0].address and not waits[0].guard, name
        early = [i for i in kernel.code if i.address < waits[0].address]
        assert not [i for i in early if re.match(MEMORY, i.opcode)], name
        assert not [i for i in early if i.target], f"{name} branches ahead of its wait"
        # ld.global.nc: what the grid before writes is not read-only while this one runs
        assert not [i for i in kernel.all("LDG") if "CONSTANT" in i.opcode], name


def test_no_memory_descriptor_is_odd(cubins: list[Path]) -> None:
    """Memory descriptors are even uniform registers. For sm_90 ptxas has encoded copies with a cache policy otherwise,
    which the GPU rejects as illegal and the emulator, which runs PTX, does not see (docs/lessons.md)."""
    found = 0
    for cubin in cubins:
        if "sm_90" not in cubin.name:
            continue
        code = sass.code_of(cubin)
        numbers = re.findall(r"desc\[UR(\d+)\]", code)
        found += len(numbers)
        odd = {f"desc[UR{number}]" for number in numbers if int(number) % 2}
        assert not odd, [line for line in code.splitlines() if any(one in line for one in odd)][:3]
    assert found
