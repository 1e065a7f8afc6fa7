"""tools/mutation: what it changes, and that every source is some area's. `.ci/run` runs it on a few mutants."""

from __future__ import annotations

import csv
import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import recorded
from paths import CSRC, ROOT, TESTS

TOOL = ROOT / "tools" / "mutation"


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(TOOL))
    yield
    for name in ("mutant", "mutators", "areas", "workplace"):
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


def table(name: str) -> list[dict[str, str]]:
    return recorded.rows(ROOT / "docs/proof" / name)


def test_recorded_survivors_have_a_reason_and_a_key_each() -> None:
    rows = table("mutant_survivors.csv")
    assert len({row["key"] for row in rows}) == len(rows) > 100
    assert {row["verdict"] for row in rows} == {"survived", "equivalent"}
    assert all(row["reason"] and re.fullmatch("[0-9a-f]{16}", row["key"]) for row in rows)
    assert all((ROOT / row["file"]).is_file() for row in rows)


def test_a_known_survivor_is_not_run(tmp_path: Path) -> None:
    """The first of two mutants is in the record; the second one is run."""
    pytest.importorskip("tree_sitter", reason="tree-sitter comes with the extra `test`")
    from mutators import mutants_of

    recorded = {row["key"] for row in table("mutant_survivors.csv")}
    file = "csrc/cpu/threads.c"
    text = (ROOT / file).read_bytes()
    found = mutants_of(ROOT, file)
    known = next(one for one in found if one.key(text) in recorded)
    other = next(one for one in found if one.key(text) not in recorded)
    wanted = tmp_path / "list.json"
    wanted.write_text(json.dumps([{"area": "cpu"} | asdict(one) for one in (known, other)]))
    loaded = runpy.run_path(str(TOOL / "__main__.py"))
    options = {"mutants": str(wanted), "results": str(tmp_path / "results.csv"), "area": [], "known": [], "seed": "1"}
    options |= {"start_within": 0.0, "unchanged": False, "again": False}
    run = loaded["Run"](SimpleNamespace(**options))
    assert [one for _, one, _ in iter(run.next, None)] == [other]


def test_ptx_of_the_same_source_is_taken(tmp_path: Path) -> None:
    """And no others: those of a source that has changed, and those that are not what the build left."""
    from workplace import Workplace, nvfp4_cuda

    place, images = Workplace(tmp_path, [0]), tmp_path / "cuda"
    shutil.copytree(CSRC, place.root / "csrc")
    source = place.root / "csrc/kernels/moe/route.cu"
    for folder in (place.made, images):
        folder.mkdir()
    assert not place.take(source, images)
    key = nvfp4_cuda.key_of(source, "compute_80", [], place.root / "csrc")
    made, code = images / "moe_route.compute_80", nvfp4_cuda.packed(b"code")
    made.write_bytes(code)
    made.with_name(f"{made.name}.key").write_text(f"{key} compiler {nvfp4_cuda.sha256(code)} 4")
    assert place.take(source, images)
    assert nvfp4_cuda.unpacked(place.image(source)) == b"code"
    text = source.read_text()
    source.write_text(text + "// another one\n")
    assert not place.take(source, images)
    source.write_text(text)
    made.write_bytes(nvfp4_cuda.packed(b"other code"))
    assert not place.take(source, images)


def test_every_source_is_mutated() -> None:
    from areas import AREAS

    taken = {name for area in AREAS.values() for name in area.sources(ROOT)}
    left = {str(path.relative_to(ROOT)) for path in CSRC.rglob("*.c*") if path.is_file()} - taken
    # The debug build's, and the competition's own programs, whose tests are those of the package.
    contest = {str(path.relative_to(ROOT)) for path in CSRC.glob("contest/*.c[up]*")}
    assert left == {"csrc/kernels/sm100/dump.cuh", *contest}


def test_the_tests_of_the_areas_exist() -> None:
    from areas import AREAS

    for area in AREAS.values():
        paths = [word for tests in area.tests for word in tests if word.endswith(".py")]
        assert paths and all((TESTS / path).is_file() for path in paths)


def test_a_list_by_hand_that_does_not_fit_is_rejected(tmp_path: Path) -> None:
    wanted = tmp_path / "list.json"
    wanted.write_text('[{"area": "cpu", "file": "csrc/cpu/cpu.h", "before": "no such text", "after": ""}]')
    command = [sys.executable, str(TOOL), "run", str(wanted), "--results", str(tmp_path / "results.csv")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "csrc/cpu/cpu.h has the text 'no such text' 0 times; must be once" in done.stderr


def test_report(tmp_path: Path) -> None:
    """Shares of what is decided, with Wilson's interval: 3 of 4 is 30 to 95 %."""
    results = tmp_path / "results.csv"
    columns = ["area", "file", "line", "operator", "before", "after", "verdict", "by", "what", "seconds", "key"]
    with results.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(columns)
        for key, verdict in enumerate(["killed", "killed", "survived", "killed", "broken", "equivalent", "unfinished"]):
            rows.writerow(["cpu", "csrc/cpu/cpu.h", 1, "arithmetic", "+", "-", verdict, "", "", 1, key])
        rows.writerow(["cpu", "csrc/cpu/cpu.h", 1, "arithmetic", "+", "-", "killed", "", "", 1, 0])  # run again
        (known, *_) = (row for row in table("mutant_survivors.csv") if row["verdict"] == "equivalent")
        rows.writerow(["cpu", "csrc/cpu/cpu.h", 1, "arithmetic", "*", "/", "survived", "", "", 1, known["key"]])
    done = subprocess.run([sys.executable, str(TOOL), "report", str(results)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("all"))
    assert line.split() == ["all", "3", "1", "2", "1", "1", "75%", "(30%", "to", "95%)"]
    assert done.stdout.count("csrc/cpu/cpu.h:1  arithmetic") == 1, "a known survivor is not shown again"
