"""Recorded files say in their first lines what was measured, on what and how (benchmarks/recorded.py), and the source
files that they name are there."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import recorded
from paths import ROOT

FOLDERS = ("benchmarks/log", "benchmarks/results", "docs/proof")
TABLES = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.csv"))]
RUNS = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.json"))]
HASH = re.compile(r"\b[0-9a-f]{7,8}\b")
# A name is a path from the checkout, or the end of one: `sm90/dequant.cu`.
NAMED = re.compile(r"(?<![\w./-])(?:[\w-]+/)+[\w-]+\.(?:c|h|cu|cuh|def|cpp|py|md)\b")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@functools.cache
def sources() -> str:
    """All paths of the checkout, a line each."""
    tops = ("csrc", "nvfp4", "tests", "tools", "benchmarks", "docs", "examples", "emulator", "build_backend")
    return "\n" + "\n".join(relative(path) for top in tops for path in (ROOT / top).rglob("*.*")) + "\n"


def gone(text: str) -> set[str]:
    """The source files that a text names and the checkout lacks."""
    return {name for name in NAMED.findall(text) if not re.search(rf"[/\n]{re.escape(name)}\n", sources())}


def about(path: Path) -> dict[str, str]:
    if path.suffix == ".csv":
        return recorded.head(path)
    run = json.loads(path.read_text(encoding="utf-8"))
    card = run.get("hardware") or run.get("device") if "conditions" not in run else run["conditions"]["hardware"]
    return {"commit": run["commit"], "card": card, "command": run["command"]}


@pytest.mark.parametrize("path", [*TABLES, *RUNS], ids=relative)
def test_a_file_says_where_it_is_from(path: Path) -> None:
    found = about(path)
    assert found.keys() >= set(recorded.KEYS) and all(found.values())
    text = path.read_text(encoding="utf-8")
    assert "commit" in (text.splitlines()[0] if path.suffix == ".csv" else text.splitlines()[1])
    if path.suffix == ".csv":
        columns, *rows = recorded.table(path)
        assert "what" in found and rows and all(len(row) == len(columns) for row in rows)
        own = "\n".join(row[columns.index("commit")] for row in rows) if "commit" in columns else ""
        assert HASH.search(found["commit"]) or len(HASH.findall(own)) == len(rows)
    else:
        assert HASH.match(found["commit"])


def test_commits_are_of_this_history() -> None:
    """The commit is in the clone, where its whole history is here."""
    hashes = {one for path in [*TABLES, *RUNS] for one in HASH.findall(about(path)["commit"])}
    git = ["git", "-C", str(ROOT)]
    shallow = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True)
    if shallow.stdout.strip() != "false":
        pytest.skip("not a whole clone")
    asked = subprocess.run(
        [*git, "cat-file", "--batch-check"], input="\n".join(sorted(hashes)), capture_output=True, text=True
    )
    assert not re.findall(r"(?m)^(\w+) missing$", asked.stdout)


@pytest.mark.parametrize("path", [*TABLES, *RUNS], ids=relative)
def test_source_files_that_a_file_names_are_there(path: Path) -> None:
    assert gone(path.read_text(encoding="utf-8")) == set()


def test_every_drawing_is_of_a_file_beside_it() -> None:
    for path in (path for folder in FOLDERS for path in (ROOT / folder).glob("*.svg")):
        names = {other.stem for other in [*TABLES, *RUNS] if other.parent == path.parent}
        assert names & {path.stem, path.stem.rpartition("_")[0]}, path


def test_files_that_are_gone_are_found() -> None:
    assert gone("csrc/api/gemm.c, sm90/dequant.cu and csrc/api/none.c:12") == {"csrc/api/none.c"}


def test_what_is_written_has_a_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the rows are stays; all else is of this run."""
    path = tmp_path / "table.csv"
    path.write_text("# commit: 12345678\n# card: a card\n# command: python old.py\n# what: us by M\nm,us\n1,2\n")
    assert recorded.rows(path) == [{"m": "1", "us": "2"}]
    monkeypatch.setattr(sys, "argv", [str(ROOT / "benchmarks/goals.py"), "--csv", "a b.csv"])
    recorded.write(path, [["m", "us"], [4, 5]], "another")
    head = recorded.head(path)
    assert head.pop("commit") == recorded.commit()
    assert head == {"card": "another", "command": "python benchmarks/goals.py --csv 'a b.csv'", "what": "us by M"}
    assert recorded.table(path) == [["m", "us"], ["4", "5"]]
    run = tmp_path / "run.json"
    run.write_text('{"format": 1}')
    recorded.stamp(run)
    assert json.loads(run.read_text()) == {"commit": recorded.commit(), "format": 1}
