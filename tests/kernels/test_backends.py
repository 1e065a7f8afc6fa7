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


def prefix_of(config: Config) -> str:
    return f"nvfp4_{config.headers.name}_{config.source.stem}_"


@pytest.fixture(scope="module")
def usage(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, int, int]]:
    """The usage of all kernels; of those for every GPU on sm_89. On sm_80 sm80_gemm_64x64 has 64 bytes of stack, on
    sm_90 sm80_gemm_32x64 has 32."""
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
    assert (stack, local) == (0, 0)
    assert 0 < registers * threads <= REGISTERS


@by_name
def test_shared_memory(name: str) -> None:
    shared = getattr(CONFIGS[name], "shared_bytes", None)
    if not isinstance(shared, int):
        pytest.skip("depends on the product")
    assert 0 < shared <= SHARED_LIMIT
