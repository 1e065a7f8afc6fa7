"""tools/mutation: what it changes, and that every source is some family's. `.ci/run` runs it on a few mutants."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths import CSRC, ROOT, TESTS

TOOL = ROOT / "tools" / "mutation"


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(TOOL))
    yield
    for name in ("mutant", "mutators", "families"):
        sys.modules.pop(name, None)


SOURCE = """int wait(int *state, int phase, int m, int n) {
    if (m < n && n != 0) return m;
    mbarrier_wait(state[2], phase ^ 1);
    m = n;
    copy(m, n);
    return phase;
}
"""


@pytest.mark.parametrize("suffix", ["c", "cu"])
def test_operators(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("tree_sitter", reason="tree-sitter comes with the extra `test`")
    from mutators import mutants_of

    name = f"source.{suffix}"
    (tmp_path / name).write_text(SOURCE)
    found = mutants_of(tmp_path, name)
    changes = {(one.operator, one.before, one.after) for one in found}
    assert changes >= {
        ("comparison", "<", "<="),
        ("comparison", "!=", "=="),
        ("predicate dropped", "m < n && n != 0", "m < n"),
        ("predicate dropped", "m < n && n != 0", "n != 0"),
        ("branch inverted", "m < n && n != 0", "!(m < n && n != 0)"),
        ("drop sync", "mbarrier_wait(state[2], phase ^ 1);", ";"),
        (
            "move sync",
            "mbarrier_wait(state[2], phase ^ 1);\n    m = n;",
            "m = n;\n    mbarrier_wait(state[2], phase ^ 1);",
        ),
        ("parity", "phase ^ 1", "phase"),
        ("drop statement", "m = n;", ";"),
        ("name exchanged", "m", "n"),
        ("arguments exchanged", "m, n", "n, m"),
        ("constant by one", "2", "3"),
    }
    for one in found:
        text = one.apply(SOURCE.encode()).decode()
        assert text != SOURCE and len(text) == len(SOURCE) - len(one.before) + len(one.after)


def test_a_key_is_that_of_the_change() -> None:
    """Not of what else the file has; equal lines, and a part that a line has twice, differ."""
    from mutant import Mutant

    old = b"a = b + b;\nx();\na = b + b;\nx();\n"
    places = [(start, line) for line, begin in ((1, 4), (3, 20)) for start in (begin, begin + 4)]
    all_b = [Mutant("f.c", start, start + 1, line, "name exchanged", "b", "c") for start, line in places]
    assert all(one.apply(old) != old for one in all_b) and len({one.key(old) for one in all_b}) == 4
    new = b"int y;\n" + old + b"more();\n"
    for one in all_b[1:]:
        assert one.moved(old, old) == one
        if one.line == 3:
            there = one.moved(old, new)
            assert there is not None and (there.line, there.start) == (4, one.start + 7)
    assert all_b[2].moved(old, old.replace(b"x", b"y")) is None


def test_recorded_mutants_have_one_key_each() -> None:
    with (ROOT / "docs/proof/mutants.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({row["key"] for row in rows}) == len(rows)
    assert {row["verdict with the tests added"] for row in rows} == {"killed", "survived", "equivalent", "broken"}
    found = sum(row["verdict with the tests added"] == "killed" for row in rows)
    first = sum(row["first verdict"] == "killed" for row in rows)
    of = sum(row["first verdict"] in ("killed", "survived") for row in rows)
    text = " ".join((ROOT / "docs/kernels.md").read_text(encoding="utf-8").split())
    assert f"Of {of} that change a result" in text and f"{first} were found" in text and f"{found} after tests" in text
    assert all(row["found by or reason"] for row in rows if row["verdict with the tests added"] != "broken")


def test_recorded_scores_are_those_of_the_record(tmp_path: Path) -> None:
    scores = tmp_path / "scores.csv"
    options = ["--by", "file", "--scores", str(scores)]
    subprocess.run([sys.executable, str(TOOL), "report", str(ROOT / "docs/proof/mutants.csv"), *options], check=True)
    assert scores.read_text() == (ROOT / "docs/proof/mutant_scores.csv").read_text()


def test_every_source_is_mutated() -> None:
    from families import FAMILIES

    taken = {name for family in FAMILIES.values() for name in family.sources(ROOT)}
    left = {str(path.relative_to(ROOT)) for path in CSRC.rglob("*.c*") if path.is_file()} - taken
    # The debug build's, and the competition's, whose tests are those of the package.
    assert {name for name in left if not name.startswith("csrc/contest/")} == {"csrc/kernels/sm100/dump.cuh"}


def test_the_tests_of_the_families_exist() -> None:
    from families import FAMILIES

    for family in FAMILIES.values():
        paths = [word for tests in family.tests for word in tests if word.endswith(".py")]
        assert paths and all((TESTS / path).is_file() for path in paths)


def test_a_list_by_hand_that_does_not_fit_is_rejected(tmp_path: Path) -> None:
    wanted = tmp_path / "list.json"
    wanted.write_text('[{"family": "cpu", "file": "csrc/cpu/cpu.h", "before": "no such text", "after": ""}]')
    command = [sys.executable, str(TOOL), "run", str(wanted), "--results", str(tmp_path / "results.csv")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "csrc/cpu/cpu.h has the text 'no such text' 0 times; must be once" in done.stderr


def test_report(tmp_path: Path) -> None:
    """Shares of what is decided, with Wilson's interval: 3 of 4 is 30 to 95 %."""
    results = tmp_path / "results.csv"
    columns = ["family", "file", "line", "operator", "before", "after", "verdict", "by", "what", "seconds", "key"]
    with results.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(columns)
        for key, verdict in enumerate(["killed", "killed", "survived", "killed", "broken", "equivalent", "unfinished"]):
            rows.writerow(["cpu", "csrc/cpu/cpu.h", 1, "arithmetic", "+", "-", verdict, "", "", 1, key])
        rows.writerow(["cpu", "csrc/cpu/cpu.h", 1, "arithmetic", "+", "-", "killed", "", "", 1, 0])  # run again
    done = subprocess.run([sys.executable, str(TOOL), "report", str(results)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("all"))
    assert line.split() == ["all", "3", "1", "1", "1", "1", "75%", "(30%", "to", "95%)"]
    assert "csrc/cpu/cpu.h:1  arithmetic" in done.stdout
