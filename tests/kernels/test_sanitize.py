"""What tests/kernels/sanitize.py makes of a sanitizer: here a fake one, which runs no kernel."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
import sanitize

RUNS = """#!{python}
import mmap, re, subprocess, sys, time
path = next(a for a in sys.argv if a.startswith("--under-way=")).partition("=")[2]
sys.path.insert(0, {tests!r})
import sanitize
{then}
"""
CALL = "call 2 of 7x33x80x2, linear, torch.float32, on sm90"


def fake_sanitizer(folder: Path, then: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "compute-sanitizer"
    program.write_text(RUNS.format(python=sys.executable, tests=str(Path(sanitize.__file__).parent), then=then))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_tool_that_does_not_end_is_stopped_and_the_call_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child"
    then = f"""
sanitize.UnderWay(path).say({CALL!r})
process = subprocess.Popen(["sleep", "300"])
open({str(child)!r}, "w").write(str(process.pid))
time.sleep(300)
"""
    fake_sanitizer(tmp_path, then, monkeypatch)
    start = time.monotonic()
    clean, summary = sanitize.sanitize("racecheck", ["sm90"], 5.0)
    assert not clean and summary == f"had not ended after 5 s; under way: {CALL}"
    status = Path(f"/proc/{child.read_text()}/stat")
    while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() - start < 60, "what the tool has started ends with it"
        time.sleep(0.1)


def test_a_tool_that_does_not_end_before_any_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_sanitizer(tmp_path, "time.sleep(300)", monkeypatch)
    assert sanitize.sanitize("memcheck", ["sm90"], 2.0) == (
        False,
        "had not ended after 2 s; under way: no call yet",
    )


@pytest.mark.parametrize(
    ("printed", "status", "clean"),
    [
        ("ERROR SUMMARY: 0 errors; 3 calls agree with the CPU backend", 0, True),
        ("ERROR SUMMARY: 0 errors", 0, False),
        ("3 calls agree with the CPU backend", 0, False),
        ("ERROR SUMMARY: 1 error; 3 calls agree with the CPU backend", 3, False),
    ],
)
def test_clean_is_a_summary_and_calls_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, status: int, clean: bool
) -> None:
    fake_sanitizer(tmp_path, f"print({printed.replace('; ', chr(10))!r}); sys.exit({status})", monkeypatch)
    assert sanitize.sanitize("memcheck", ["sm90"], 60.0)[0] is clean
