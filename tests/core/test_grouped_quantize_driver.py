"""The quantizers of groups and rows on a libcuda that runs nothing (support/fake_libcuda.c): what they launch, and
that the host reads none of their tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_driver_calls import launches
from test_grouped_driver import HIDDEN

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

# Names as of nvfp4's functions. T rows, of R = 300 that x has, in E groups.
TENSORS = """
    def tensors(t, k, e):
        x = hidden(300 * k, np.float32).reshape(300, k)
        return x, hidden(e, np.int32), hidden(t, np.int32), hidden(t * k, np.float16).reshape(t, k)
"""
CALLS = {
    "nvfp4_grouped_quantize": "nvfp4.quantize(x, ends=ends, rows=rows)",
    "nvfp4_grouped_four_over_six": "nvfp4.quantize(x, rows=rows, scale_layout='linear', block_scale='four_over_six')",
    "nvfp4_gated_quantize_silu": "nvfp4.gated_quantize(gate, gate, limit=1.0, ends=ends)",
    "nvfp4_gated_quantize_gelu_tanh": "nvfp4.gated_quantize(gate, gate, 'gelu_tanh', ends=ends, scale_layout='linear')",
    "nvfp4_gated_quantize_relu2": "nvfp4.gated_quantize(gate, activation='relu2')",
    "nvfp4_gated_quantize_swiglu": "nvfp4.gated_quantize(gate, gate, 'swiglu', alpha=1.5, ends=ends)",
    "nvfp4_amax_scale_rows": "nvfp4.amax_scale(x, by_row=True)",
}


def launched(call: str, sizes: str, fake_driver: Path, log: Path, **variables: str) -> list[list[str]]:
    """What a call launches for each (t, k, e) of the sizes."""
    code = f"{HIDDEN.strip()}\n{TENSORS}\n    for t, k, e in {sizes}:\n"
    code += f"        x, ends, rows, gate = tensors(t, k, e)\n        {call}"
    return launches(code, fake_driver, log, NVFP4_BACKEND="sm80", **variables)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("capability", ["80", "90", "100"])
def test_one_launch(name: str, capability: str, fake_driver: Path, tmp_path: Path) -> None:
    """There is one for any number of groups and rows. All tensors are in memory that the host may not access."""
    sizes = "[(t, 64, e) for t in (1, 37, 2000) for e in (1, 8, 1024)]"
    rows = launched(CALLS[name], sizes, fake_driver, tmp_path / "log", FAKE_CC=capability)
    assert len(rows) == 9 and {row[0] for row in rows} == {name}
    early = capability != "80" and "amax" not in name
    assert all(row[5:] == ["0", str(int(early))] for row in rows)  # no cluster; launched programmatically


def test_the_grid_has_every_block(fake_driver: Path, tmp_path: Path) -> None:
    """It is a multiple of the most 128-row blocks that any ends lead to, and no block has more CTAs than work."""
    sizes = [(1, 16, 1), (1, 512, 1024), (128, 16, 1), (129, 16, 2), (5000, 4096, 8), (300000, 32, 1024)]
    call = CALLS["nvfp4_grouped_quantize"]
    for (t, k, e), (_, grid, *_) in zip(sizes, launched(call, str(sizes), fake_driver, tmp_path / "log"), strict=True):
        most = min(t, e)
        blocks, warps = most + (t - most) // 128, min(t, 128) * -(-k // 512)
        assert int(grid) % blocks == 0 and 1 <= int(grid) // blocks <= -(-warps // 8)
        assert int(grid) >= min(1056, blocks * -(-warps // 8))  # 8 for each SM of a large GPU, if there is work


@pytest.mark.parametrize("name", CALLS)
def test_no_rows(name: str, fake_driver: Path, tmp_path: Path) -> None:
    """One CTA says where the groups begin; nothing needs to be said of rows."""
    rows = launched(CALLS[name].replace("(x,", "(x[:0],"), "[(0, 64, 3)]", fake_driver, tmp_path / "log")
    assert [(row[0], int(row[1])) for row in rows] == ([] if name == "nvfp4_amax_scale_rows" else [(name, 1)])


def test_silu_of_one_tensor_keeps_its_kernel(fake_driver: Path, tmp_path: Path) -> None:
    rows = launched("nvfp4.silu_mul_quantize(gate)", "[(5, 64, 1)]", fake_driver, tmp_path / "log")
    assert [row[0] for row in rows] == ["nvfp4_silu_mul_quantize_fp16"]
