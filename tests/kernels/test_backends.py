"""Every kernel backend with a config header, without a line about any: its instantiations are in the installed module,
use no stack, and fit an SM."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import sass
from harness.headers import Config, headers_of
from harness.launch import SHARED_LIMIT
from paths import gpu_backends

import nvfp4

CONFIGS = {name: config for of in gpu_backends() for name, config in headers_of(of).configs().items()}
REGISTERS = 65536  # of an SM
by_name = pytest.mark.parametrize("name", CONFIGS)


# Bytes that registers are spilled to: of 255 registers; beside nvcc 13.0, which spills none of them, it takes no more
# time (benchmarks/log/compilers.csv), and the second kernel never ran on hardware.
STACK = {"sm80_gemm_64x64": 48, "sm100_grouped_units_bf16_16": 16}


def prefix_of(config: Config) -> str:
    return f"nvfp4_{config.headers.name}_{config.source.stem}_"


@pytest.fixture(scope="module")
def usage(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, int, int]]:
    """The usage of all kernels; of those for every GPU on sm_89. On sm_90 sm80_gemm_32x64 has 24 bytes of stack."""
    found = {}
    for prefix in sorted({prefix_of(config) for config in CONFIGS.values()}):
        arch = "sm_89" if "_sm80_" in prefix else "sm_"
        cubin = sass.find_cubin(Path(nvfp4._C.__file__), tmp_path_factory.mktemp("cubin"), prefix, arch)
        found |= sass.usage_of(cubin)
    return found


@sass.needed
@pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")
@by_name
def test_machine_code(name: str, usage: dict[str, tuple[int, int, int]]) -> None:
    config = CONFIGS[name]
    threads = 32 * config.warps if "warps" in config.columns else config.threads
    registers, stack, local = usage[config.kernel]
    assert (stack, local) == (STACK.get(name, 0), 0)
    assert 0 < registers * threads <= REGISTERS


@by_name
def test_shared_memory(name: str) -> None:
    shared = getattr(CONFIGS[name], "shared_bytes", None)
    if not isinstance(shared, int):
        pytest.skip("depends on the product")
    assert 0 < shared <= SHARED_LIMIT
