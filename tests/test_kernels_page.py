"""docs/kernels.md says what the headers say: its tables of instantiations, and that the tests it names are there."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")

# The rows of each table, printed by the headers' own macros; KIB rounds up.
PROGRAM = r"""
#include "sm100_configs.h"
#include "sm80_configs.h"
#include "sm90_configs.h"
#include "sm90_prefill_configs.h"
#include "sm90_gemv_configs.h"
#include <stdio.h>

#define KIB(bytes) (((bytes) + 1023) / 1024)
#define NAME(id)   (#id + sizeof "smNN_gemm_" - 1)
#define SM80(id, m, n, k, stages, warps, weights_first, ctas)                                                         \
    printf("sm80 | %s | %d | %d | %d | %d | %d | %d |\n", NAME(id), warps, k / warps, stages,                         \
           SM80_STAGE_BYTES(m, n, k), KIB(SM80_SHARED_BYTES(m, n, k, stages, warps)), ctas);
#define SM90(id, groups, tiles, y, words, stages, ...)                                                                \
    printf("sm90 | %s | %d | %d | %d | %d |\n", NAME(id), 4 * groups, stages, SM90_STAGE_BYTES(groups, tiles, y),     \
           KIB(SM90_SHARED_BYTES(groups, tiles, y, stages)));
#define DENSE(id, raw, stages)                                                                                        \
    printf("dense | %s | %d | %d | %d | %d |\n", raw ? "x raw" : "both expanded", 8, stages,                          \
           SM90_PREFILL_STAGE_BYTES(raw), KIB(SM90_PREFILL_SHARED_BYTES(raw, stages)));
#define GEMV(id, rows, warps, stages)                                                                                 \
    printf("gemv | %d | %d | %d | %d | %d |\n", rows, warps, stages, SM90_GEMV_STEP_BYTES,                            \
           KIB(SM90_GEMV_RING_BYTES(warps, stages)));
#define SM100(id, group, y, stages, accumulators, gather)                                                             \
    printf("sm100 | %s | %d | %d | %d | %d | %d x %d | %d x %d from %d | %d of %d |\n", NAME(id) + 1, group, stages,  \
           SM100_STAGE_BYTES(group, y), KIB(SM100_SHARED_BYTES(group, y, stages)), accumulators, y, stages,           \
           SM100_SCALE_COLUMNS(y), accumulators * y, SM100_USED_COLUMNS(y, stages, accumulators),                     \
           SM100_TMEM_COLUMNS(y, stages, accumulators));

int main(void) {
    SM80_GEMM_CONFIGS(SM80)
    SM90_GEMV_CONFIGS(GEMV)
    SM90_GEMM_CONFIGS(SM90)
    SM90_PREFILL_CONFIGS(DENSE)
    SM100_GEMM_CONFIGS(SM100)
    printf("stage | x values %d: %d rows of %d bytes, swizzled | y values %d: its half |", SM100_MMA_A_BYTES,
           SM100_CTA_ROWS, SM100_STAGE_K / 2, SM100_MMA_B_BYTES(2, 128));
    printf(" x scales %d | y scales %d: of all y |\n", SM100_MMA_SFA_BYTES, SM100_MMA_SFB_BYTES(128));
    return 0;
}
"""


def of_the_headers(folder: Path) -> dict[str, list[str]]:
    (folder / "rows.c").write_text(PROGRAM)
    command = ["gcc", f"-I{ROOT / 'csrc'}", "-o", str(folder / "rows"), str(folder / "rows.c")]
    subprocess.run(command, check=True)
    lines = subprocess.run([folder / "rows"], capture_output=True, text=True, check=True).stdout.splitlines()
    tables: dict[str, list[str]] = {}
    for line in lines:
        table, row = line.split(" ", 1)
        tables.setdefault(table, []).append(row)
    return tables


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_tables_are_the_headers(tmp_path: Path) -> None:
    shown = dict(re.findall(r"(?ms)^<!-- instantiations: (\w+) -->\n\|[^\n]*\n\|[-:| ]*\n(.*?)^<!-- end -->$", PAGE))
    tables = of_the_headers(tmp_path)
    (stage,) = tables.pop("stage")
    assert {name: rows.splitlines() for name, rows in shown.items()} == tables
    assert stage in PAGE


def test_the_drawn_columns_are_the_tables() -> None:
    """Of 256x128: where sums end and where each slot's scales begin."""
    (row,) = re.findall(r"(?m)^\| 256x128 \|.*\| 1 x (\d+) \| (\d+) x (\d+) from (\d+) \| (\d+) of \d+ \|$", PAGE)
    sums, slots, width, scales, used = map(int, row)
    drawn = re.search(r"tensor memory, columns\n([ \d]+)\n", PAGE)[1].split()
    assert drawn == ["0", *(str(scales + slot * width) for slot in range(slots)), str(used - 1)] and scales == sums
    assert PAGE.count(f"| x {width // 2}  |  y {width // 2}") == slots


def test_what_shows_a_mistake_is_there() -> None:
    """Bugs and tests that the page names."""
    mistakes = PAGE.split("## Five mistakes")[1]
    assert re.findall(r"(?m)^### (\d)", mistakes) == list("12345")
    named = [" ".join(part.split("\n\n")[0].split()) for part in mistakes.split("Shown by ")[1:]]
    assert len(named) == 6
    planted = (ROOT / "tests/sm100/mutations.py").read_text(encoding="utf-8")
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for shown in named:
        bugs, functions = re.findall(r'"([^"]+)"', shown), re.findall(r"`(test_\w+)`", shown)
        assert bugs
        for name in bugs:
            assert f'"{name}"' in planted, name
        for name in functions:
            assert f"def {name}(" in tests, name


def test_files_that_are_named_are_there() -> None:
    for name in re.findall(r"`((?:csrc|tests)/[\w/]+\.\w+)`", PAGE):
        assert (ROOT / name).exists(), name
