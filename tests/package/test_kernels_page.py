"""The pages on kernels say what the headers say: tables of instantiations, and that the tests they name are there."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import recorded
from paths import ROOT

DOCS = ROOT / "docs"
MISTAKES = (DOCS / "tcgen05.md").read_text(encoding="utf-8")
KERNELS = "".join(path.read_text(encoding="utf-8") for path in sorted((DOCS / "kernels").glob("*.md")))
PROOF = (DOCS / "proof.md").read_text(encoding="utf-8")
PAGE = KERNELS + PROOF
ROWS = Path(__file__).with_name("kernels_page_rows.c")


def of_the_headers(folder: Path) -> dict[str, list[str]]:
    command = ["gcc", f"-I{ROOT / 'csrc'}", "-o", str(folder / "rows"), str(ROWS)]
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
    """Mutations and tests that docs/tcgen05.md names."""
    assert re.findall(r"(?m)^## (\d)", MISTAKES) == list("12345")
    named = [" ".join(part.split("\n\n")[0].split()) for part in MISTAKES.split("Shown by ")[1:]]
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


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        ("sm100", "{} mutations, each found by the verifier, the emulator or both"),
        ("sm120", "{} mutations ([sm120_mutations.csv](proof/sm120_mutations.csv)). Neither tool finds one:"),
    ],
)
def test_recorded_proofs_are_what_the_page_says(backend: str, said: str) -> None:
    """Counts, times and verdicts of the static verifier's runs; the mutations are those of the tests."""
    launches, mutations = (recorded.rows(DOCS / f"proof/{backend}_{what}.csv") for what in ("launches", "mutations"))
    seconds = [float(launch["processor s"]) for launch in launches]
    most = max(int(launch["MB"]) for launch in launches)
    text = " ".join(PROOF.split())
    assert f"{len(launches)} launches, all race_free, {min(seconds)} to {max(seconds)} s of processor time" in text
    assert f"up to {most} MB each" in text and {launch["verdict"] for launch in launches} == {"race_free"}
    configs = re.findall(rf"X\({backend}_gemm_(\w+),", (ROOT / f"csrc/kernels/{backend}/config.h").read_text())
    if backend == "sm100":
        configs += re.findall(r"X\(sm100_(grouped_\w+),", (ROOT / "csrc/kernels/sm100/grouped_config.h").read_text())
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
