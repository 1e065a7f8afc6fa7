"""grouped_gemm on a libcuda that runs nothing (tests/fake_driver): what it launches, and that the host reads neither
`ends` nor what else the kernel reads."""

from __future__ import annotations

import signal
import textwrap
from pathlib import Path

import pytest
from interpreter import python
from test_driver import launches, run

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

HIDDEN = """
    import ctypes, mmap
    import numpy as np
    def hidden(count, dtype):
        # An array in memory that the process may not access.
        memory = mmap.mmap(-1, (count // 1024 + 1) * 4096)
        array = np.frombuffer(memory, dtype, count)
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(len(memory)), 0) == 0
        return array
"""

CALL = (
    HIDDEN
    + """
    def call(t, n, k, e, parts=1, ends=None, nvfp4_a=False):
        a, b = np.zeros((3, k), np.float16), np.zeros((e, parts, n, k // 2), np.uint8)
        extra = {"scale_a": None, "rows": hidden(t, np.int32)}
        if nvfp4_a:
            a, scale_a = np.zeros((t, k // 2), np.uint8), np.zeros((t // 128 + e) * -(-k // 64) * 512, np.uint8)
            extra = {"scale_a": scale_a, "scale_rows": hidden(e, np.int32)}
        scale = np.zeros(e * parts * -(-n // 128) * -(-k // 64) * 512, np.uint8)
        ends = hidden(e, np.int32) if ends is None else np.int32(ends)
        row_scale = hidden(t, np.float32)
        return nvfp4.grouped_gemm(a, b, scale_b=scale, ends=ends, row_scale=row_scale, backend="sm80", **extra)
"""
)


def launched(code: str, fake_driver: Path, log: Path, **variables: str) -> list[tuple[str, int]]:
    """Kernels and their grids. None starts before the grid before it has ended, so operands may come late."""
    rows = launches(f"{CALL.strip()}\n    {code}", fake_driver, log, **variables)
    assert all(row[5:] == ["0", "0"] for row in rows)  # cluster, programmatic dependent launch
    return [(row[0], int(row[1])) for row in rows]


@pytest.mark.parametrize(("nvfp4_a", "kind"), [(False, "fp16"), (True, "w4a4")])
@pytest.mark.parametrize("capability", ["80", "90", "100", "120"])
def test_one_launch(nvfp4_a: bool, kind: str, capability: str, fake_driver: Path, tmp_path: Path) -> None:
    """There is one for any number of groups. Ends, rows, where scales begin and the rows' factors are in memory that is
    not accessible."""
    calls = f"[call(t, 200, 96, e, p, nvfp4_a={nvfp4_a}) for t in (1, 37, 2000) for p in (1, 2)]"
    rows = launched(f"for e in (1, 8, 1024): {calls}", fake_driver, tmp_path / "log", FAKE_CC=capability)
    assert len(rows) == 18 and all(name.startswith(f"nvfp4_sm80_grouped_{kind}_") for name, _ in rows)


def test_the_guard() -> None:
    """The host may not read that memory."""
    code = textwrap.dedent(CALL) + "\nhidden(3, np.int32)[0]"
    assert python("-c", code, library="numpy").returncode == -signal.SIGSEGV


def test_the_grid_does_not_depend_on_the_ends(fake_driver: Path, tmp_path: Path) -> None:
    code = "[call(37, 200, 96, 4, ends=ends) for ends in ([37] * 4, [0] * 4, [1, 2, 3, 37], [9, -1, 50, 2])]"
    rows = launched(code, fake_driver, tmp_path / "log")
    assert len(rows) == 4 and len(set(rows)) == 1


@pytest.mark.parametrize("nvfp4_a", [False, True])
def test_the_grid_has_a_tile_for_every_row(nvfp4_a: bool, fake_driver: Path, tmp_path: Path) -> None:
    """A group with rows adds less than a tile to T / tile_m, and a part as many CTAs as another."""
    routings = ((5, 8), (1000, 8), (64, 1), (3000, 1024))
    code = f"[call(t, 130, 96, e, 2, nvfp4_a={nvfp4_a}) for t, e in {routings}]"
    rows = launched(code, fake_driver, tmp_path / "log")
    assert len({name for name, _ in rows}) > 1  # tiles of another height for more rows
    for (name, grid), (t, e) in zip(rows, routings, strict=True):
        tile_m = int(name.rpartition("_")[2].partition("x")[0])
        assert grid == (t + min(t, e) * (tile_m - 1)) // tile_m * 3 * 2  # two tiles for 128 columns, one for two more


def test_no_rows_are_no_launch(fake_driver: Path, tmp_path: Path) -> None:
    code = "call(0, 130, 96, 3); call(5, 0, 96, 3); call(5, 130, 96, 0)"
    assert launched(code, fake_driver, tmp_path / "log") == []


@pytest.mark.parametrize(("backend", "capability"), [("sm90", "90"), ("sm100", "100")])
def test_families_without_such_a_kernel(backend: str, capability: str, fake_driver: Path) -> None:
    code = CALL.strip().replace('"sm80"', repr(backend)) + "\n    call(5, 7, 64, 3)"
    said = run(code, fake_driver, FAKE_CC=capability)
    assert said == f"backend: is one of the {backend} kernels, which do not take products of groups; must be sm80"


@pytest.mark.parametrize(("nvfp4_a", "a_dtype"), [(False, "float16"), (True, None)])
def test_info_shows_what_is_launched(nvfp4_a: bool, a_dtype: str | None, fake_driver: Path, tmp_path: Path) -> None:
    """A GPU whose own family takes no groups runs sm80's kernels, and info says so."""
    code = f"call(37, 200, 96, 4, nvfp4_a={nvfp4_a})"
    (name, grid), *more = launched(code, fake_driver, tmp_path / "log", FAKE_CC="90")
    assert not more
    plan = f"nvfp4.info(37, 200, 96, groups=4, a_dtype={a_dtype!r}, device=0)['plan']"
    code = f"p = {plan}; print(p['backend'], p['kernel'], p['grid'])"
    assert run(code, fake_driver, FAKE_CC="90").split() == ["sm80", name, str(grid)]
