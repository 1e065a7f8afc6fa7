"""The pages do what they say: examples print what is shown, figures are the runs', links lead to files."""

from __future__ import annotations

import csv
import doctest
import re
import subprocess
import sys
from pathlib import Path

from paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
FORMAT = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
BENCHMARKS = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
CLI = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
SOURCES = {".c", ".h", ".cu", ".cuh", ".cpp", ".py"}
FENCED = re.compile(r"(?ms)^```.*?^```$")
# Uses the module of the second example on the tensors of the first.
USE = """
linear = torch.nn.Linear(64, 3)
with torch.no_grad():
    linear.weight.copy_(w)
out = Linear(linear)(x.view(2, 2, 64))
assert out.shape == (2, 2, 3) and out.dtype == x.dtype and not out.requires_grad
assert torch.equal(out.view(4, 3), y + linear.bias.detach())
"""


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", page)


def pages() -> list[Path]:
    found = [
        *ROOT.glob("*.md"),
        *(path for top in ("docs", "benchmarks", "emulator", "tests") for path in (ROOT / top).rglob("*.md")),
    ]
    assert len(found) >= 9
    return found


def test_the_examples_run_and_print_what_the_readme_prints() -> None:
    example, module = blocks(README, "python")
    program = f"{example}\n{module}\n{USE}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == blocks(README, "text")[0]


def test_ci_runs_the_install_commands() -> None:
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8").replace("pip install -q ", "pip install ")
    commands = [command.strip() for command in blocks(README, "sh")]
    assert len(commands) == 2 and all(command in ci for command in commands)


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_rows_of_the_readme_are_those_of_the_run() -> None:
    """README.md's table is lines of the one that readme_tables.py writes in benchmarks/README.md, without the goals."""
    full = BENCHMARKS.split("<!-- run: h200.json -->")[1].split("<!-- end of run -->")[0]
    table = [line.split(" | ") for line in full.splitlines() if line.startswith("| ")]
    kept = [i for i, column in enumerate(table[0]) if not column.startswith("goal")]
    lines = [" | ".join(row[i] for i in kept) for row in table]
    shown = [line for line in README.split("## Measured")[1].split("## ")[0].splitlines() if line.startswith("| ")]
    assert len(shown) == 7 and shown[:2] == lines[:2]
    assert set(shown) <= set(lines), "README.md's rows are not those of benchmarks/README.md:\n" + "\n".join(lines)


def test_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    """Every decimal beside its unit or shape: README.md repeats runs and the model, and measures nothing itself."""
    known = BENCHMARKS + (ROOT / "benchmarks" / "b200_model.md").read_text(encoding="utf-8")
    claims = README.split("## Install")[0] + README.split("## Measured")[1].split("## Use in a model")[0]
    figures = set(re.findall(r"\d+\.\d+", claims))
    assert len(figures) >= 20
    assert figures <= set(re.findall(r"\d+\.\d+", known))


def test_the_worked_byte() -> None:
    (session,) = blocks(FORMAT, "pycon")
    test = doctest.DocTestParser().get_doctest(session, {}, "format.md", "format.md", 0)
    assert len(test.examples) == 4
    assert doctest.DocTestRunner().run(test).failed == 0


def test_the_worked_nibbles() -> None:
    """v0 = 0.5, v1 = -6 is byte 0xF1, by the package itself."""
    import torch

    import nvfp4

    assert "v0 = 0.5, v1 = -6:  codes 1 and 15,  byte 0xF1" in FORMAT
    x = torch.zeros(1, 16)
    x[0, :2] = torch.tensor([0.5, -6])
    data, _ = nvfp4.quantize(x)
    assert data[0, 0] == 0xF1


def test_the_commands_and_variables_exist() -> None:
    from nvfp4.__main__ import COMMANDS

    table = CLI.split("## Command line")[1].split("## ")[0]
    assert re.findall(r"(?m)^\| `(\w+)", table) == list(COMMANDS)
    sources = [*(ROOT / "csrc").rglob("*.c"), *(ROOT / "build_backend").glob("*.py"), ROOT / "setup.py"]
    read = set(re.findall(r'"(NVFP4_[A-Z_]+)"', "".join(path.read_text(encoding="utf-8") for path in sources)))
    told = set(re.findall(r"`(NVFP4_[A-Z_]+)", CLI.split("## Environment variables")[1]))
    assert told == read


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"(?m)^#+ (.+)$", FENCED.sub("", text))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    for path in pages():
        text = path.read_text(encoding="utf-8")
        assert text.count("\n```") % 2 == 0, f"{path}: a code fence is not closed"
        for link, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", FENCED.sub("", text)):
            if link.startswith("https://"):
                continue
            target = path.parent / link if link else path
            assert target.exists(), f"{path}: {link}"
            if anchor:
                assert anchor in anchors(target.read_text(encoding="utf-8")), f"{path}: {link}#{anchor}"


def test_recorded_tables_are_whole_and_linked() -> None:
    """The CSV files behind the pages: a page of their folder or of docs/ links each; every row has every column."""
    linked = "".join(path.read_text(encoding="utf-8") for path in pages())
    tables = [*(ROOT / "benchmarks" / "log").glob("*.csv"), *(ROOT / "docs" / "proof").glob("*.csv")]
    assert len(tables) >= 9
    for path in tables:
        assert f"({path.name})" in linked or f"(proof/{path.name})" in linked, path
        with path.open(encoding="utf-8", newline="") as file:
            columns, *rows = csv.reader(file)
        assert rows and all(len(row) == len(columns) for row in rows), path


def test_pages_that_sources_name_are_there() -> None:
    """Comments and messages name a page by its path, from the checkout or from a folder above the file."""
    tops = ("csrc", "nvfp4/cli", "emulator", "tests", "benchmarks", "build_backend")
    sources = [path for top in tops for path in (ROOT / top).rglob("*") if path.suffix in SOURCES and path.is_file()]
    assert len(sources) > 100
    for path in [*sources, ROOT / "setup.py"]:
        for name in re.findall(r"(?<![\w/])\w+/[\w/]+\.md\b(?!\")", path.read_text(encoding="utf-8")):
            folders = (ROOT / folder for folder in path.relative_to(ROOT).parents)
            assert any((folder / name).exists() for folder in folders), f"{path}: {name}"
