"""docs/kernels.md says what the headers say: its tables of instantiations, and that the tests it names are there."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from paths import ROOT

PAGE = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")

# The rows of each table, printed by the headers' own macros; KIB rounds up.
PROGRAM = r"""
#include "kernels/sm100/config.h"
#include "kernels/sm120/grouped_config.h"
#include "kernels/sm80/config.h"
#include "kernels/sm80/w4a16_config.h"
#include "kernels/sm90/gemm_config.h"
#include "kernels/sm90/prefill_config.h"
#include "kernels/sm90/gemv_config.h"
#include "kernels/sm90/grouped_config.h"
#include "kernels/sm90/grouped_units_config.h"
#include "kernels/sm90/units_config.h"
#include <stdio.h>

#define KIB(bytes) (((bytes) + 1023) / 1024)
#define NAME(id)   (#id + sizeof "smNN_gemm_" - 1)
#define SM80(id, m, n, k, stages, warps, weights_first, ctas)                                                         \
    printf("sm80 | %s | %d | %d | %d | %d | %d |\n", NAME(id), warps, k / warps, stages,                              \
           KIB(SM80_SHARED_BYTES(m, n, k, stages, warps)), ctas);
#define W4A16(id, m, octets, chunks, stages, warps, ctas, bf16)                                                       \
    if (!(bf16))                                                                                                      \
        printf("w4a16 | %s | %d | %d | %d | %d | %d |\n", #id + sizeof "sm80_w4a16_fp16_" - 1, warps,                 \
               chunks * SM80_CHUNK, stages, KIB(SM80_W4A16_SHARED_BYTES(m, octets, chunks, stages, warps)), ctas);
#define SM90(id, groups, tiles, y, words, stages, dequant_b, streamk, bf16)                                           \
    if (!(bf16)) printf("sm90 | %s | %d | %d | %d |\n", NAME(id), 4 * groups, stages,                                 \
           KIB(SM90_SHARED_BYTES(groups, tiles, y, stages)));
#define PREFILL(id, raw, stages, divided, bf16)                                                                      \
    if (!(bf16)) printf("prefill | %s | %d | %d |\n", #id + sizeof "sm90_prefill", stages,                            \
           KIB(SM90_PREFILL_SHARED_BYTES(raw, stages)));
#define GEMV(id, rows, warps, stages)                                                                                 \
    printf("gemv | %d | %d | %d | %d |\n", rows, warps, stages, KIB(SM90_GEMV_STAGES_BYTES(warps, stages)));
#define UNITS(id, a_units, a, stages, a_stages)                                                                       \
    if ((a) < 2)                                                                                                      \
        printf("units | %d | %s | %d | %d | %d |\n", 8 * a_units, a ? "16 bits" : "NVFP4", stages, a_stages,          \
               KIB(SM90_UNITS_STAGES_BYTES(a_units, a, stages, a_stages)));
#define WIDTH(n) " " #n
#define GROUPED(id, rows, stages, bf16)                                                                               \
    if (!(bf16)) printf("grouped | %s |%s | %d | %d |\n", #id + sizeof "sm90_grouped_fp16",                           \
            rows == 64 ? SM90_GROUPED_WIDTHS_64(WIDTH) : SM90_GROUPED_WIDTHS_128(WIDTH), stages,                       \
            KIB(SM90_GROUPED_SHARED_BYTES(rows, stages)));
#define GROUPED_UNITS(id, a_units, bf16, stages, a_stages)                                                            \
    if (!(bf16)) printf("grouped_units | %d | %d | %d | %d | %d |\n", 8 * a_units, SM90_GROUPED_UNITS_PAIRS / a_units, \
            stages, a_stages, KIB(SM90_GROUPED_UNITS_SHARED_BYTES(a_units, stages, a_stages)));
#define SM100(id, group, y, stages, accumulators, gather, multicast)                                                  \
    printf("sm100 | %s | %d | %d | %d | %d x %d | %d x %d | %d of %d |\n", NAME(id) + 1, group, stages,               \
           KIB(SM100_SHARED_BYTES(group, y, stages)), accumulators, y, stages,                                        \
           SM100_SCALE_COLUMNS(y), SM100_USED_COLUMNS(y, stages, accumulators),                                       \
           SM100_TMEM_COLUMNS(y, stages, accumulators));
#define SM120(id, m, n, k, stages, warps_m, warps_n)                                                                  \
    printf("sm120 | %s | %d | %d | %d | %d |\n", NAME(id) + 1, SM120_WARPS(warps_m, warps_n), k, stages,              \
           KIB(SM120_SHARED_BYTES(m, n, k, stages, warps_m, warps_n)));
#define GROUPED120(id, m, n, k, stages, warps_m, warps_n)                                                             \
    printf("grouped120 | %s | %d | %d | %d |\n", #id + sizeof "sm120_grouped", k, stages,                             \
           KIB(SM120_GROUPED_SHARED_BYTES(m, n, k, stages, warps_m, warps_n)));

int main(void) {
    SM80_GEMM_CONFIGS(SM80)
    SM80_W4A16_CONFIGS(W4A16)
    SM90_GEMV_CONFIGS(GEMV)
    SM90_UNITS_CONFIGS(UNITS)
    SM90_GROUPED_CONFIGS(GROUPED)
    SM90_GROUPED_UNITS_CONFIGS(GROUPED_UNITS)
    SM90_GEMM_CONFIGS(SM90)
    SM90_PREFILL_CONFIGS(PREFILL)
    SM100_GEMM_CONFIGS(SM100)
    SM120_GEMM_CONFIGS(SM120)
    SM120_GROUPED_CONFIGS(GROUPED120)
    printf("stage | mma_a values %d: %d rows of %d bytes, swizzled | mma_b values %d: its half |", SM100_MMA_A_BYTES,
           SM100_CTA_ROWS, SM100_STAGE_K / 2, SM100_MMA_B_BYTES(2, 128));
    printf(" mma_a scales %d | mma_b scales %d: of all mma_b |\n", SM100_MMA_SFA_BYTES, SM100_MMA_SFB_BYTES(128));
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
    """The page draws for 256x128 where sums end and where each stage's scales begin."""
    (row,) = re.findall(r"(?m)^\| 256x128 \|.*\| 1 x (\d+) \| (\d+) x (\d+) \| (\d+) of \d+ \|$", PAGE)
    sums, slots, width, used = map(int, row)
    drawn = re.search(r"tensor memory, columns\n([ \d]+)\n", PAGE)[1].split()
    assert drawn == ["0", *(str(sums + slot * width) for slot in range(slots)), str(used - 1)]
    assert PAGE.count(f"| mma_a {width // 2} | mma_b {width // 2}") == slots


def test_what_shows_a_mistake_is_there() -> None:
    """Mutations and tests that the page names."""
    mistakes = PAGE.split("## Five mistakes")[1]
    assert re.findall(r"(?m)^### (\d)", mistakes) == list("12345")
    named = [" ".join(part.split("\n\n")[0].split()) for part in mistakes.split("Shown by ")[1:]]
    assert len(named) == 6
    mutations = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests/kernels/sm100").glob("*.py"))
    files = [path for top in ("tests", "emulator") for path in (ROOT / top).rglob("test_*.py")]
    tests = "".join(path.read_text(encoding="utf-8") for path in files)
    for shown in named:
        names, functions = re.findall(r'"([^"]+)"', shown), re.findall(r"`(test_\w+)`", shown)
        assert names
        for name in names:
            assert f'"{name}"' in mutations, name
        for name in functions:
            assert f"def {name}(" in tests, name


def recorded(name: str) -> list[dict[str, str]]:
    with (ROOT / "docs" / "proof" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        ("sm100", "{} mutations, each found by the verifier, the emulator or both"),
        ("sm120", "{} mutations ([sm120_mutations.csv](proof/sm120_mutations.csv)). Neither tool finds one:"),
    ],
)
def test_recorded_proofs_are_what_the_page_says(backend: str, said: str) -> None:
    """Counts, times and verdicts of the static verifier's runs; the mutations are those of the tests."""
    launches, mutations = recorded(f"{backend}_launches.csv"), recorded(f"{backend}_mutations.csv")
    seconds = [float(launch["processor s"]) for launch in launches]
    most = max(int(launch["MB"]) for launch in launches)
    text = " ".join(PAGE.split())
    assert f"{len(launches)} launches, all race_free, {min(seconds)} to {max(seconds)} s of processor time" in text
    assert f"up to {most} MB each" in text and {launch["verdict"] for launch in launches} == {"race_free"}
    configs = re.findall(rf"X\({backend}_gemm_(\w+),", (ROOT / f"csrc/kernels/{backend}/config.h").read_text())
    assert {launch["kernel"] for launch in launches} == set(configs)
    assert said.format(len(mutations)) in text
    unseen = [row for row in mutations if {row["verifier"], row["emulator (seed)"]} == {"-"}]
    assert len(unseen) == said.count("Neither tool finds one")
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / f"tests/kernels/{backend}").glob("*.py"))
    for row in mutations:
        assert f'"{row["mutation"]}"' in tests, row["mutation"]


def test_files_that_are_named_are_there() -> None:
    named = re.findall(r"`(?:python )?((?:csrc|tests|benchmarks)/[\w/]+\.\w+)[` ]", PAGE)
    assert len(named) >= 10
    for name in named:
        assert (ROOT / name).exists(), name
