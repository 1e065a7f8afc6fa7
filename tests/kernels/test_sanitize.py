"""What tests/kernels/sanitize.py makes of a sanitizer: here a fake one, which runs no kernel."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
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
        ("2 calls of split kernels not begun, from x on; ERROR SUMMARY: 0 errors", 0, False),
        ("ERROR SUMMARY: 1 error; 3 calls agree with the CPU backend", 3, False),
    ],
)
def test_clean_is_a_summary_and_calls_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, status: int, clean: bool
) -> None:
    fake_sanitizer(tmp_path, f"print({printed.replace('; ', chr(10))!r}); sys.exit({status})", monkeypatch)
    assert sanitize.sanitize("memcheck", ["sm90"], 60.0)[0] is clean


def test_calls_that_racecheck_stalls_come_last_and_not_late(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    split = sanitize.Call((2, 65, 544, 1), "sm90", "128x4", "float16", True, "nvfp4_sm90_gemm_128x8", 3, 6)
    whole, other = replace(split, split_k=1, candidate=0), replace(split, kernel="nvfp4_sm80_gemm_8x32")
    ran: list[sanitize.Call] = []
    monkeypatch.setattr(sanitize, "agrees", lambda call: not ran.append(call))
    calls, soon = [split, whole, split, other], time.monotonic() + 60
    assert sanitize.run_calls(calls, "racecheck", soon) == 4 and ran == [whole, other, split, split]
    ran.clear()
    assert sanitize.run_calls(calls, "memcheck", 0.0) == 4 and ran == calls
    ran.clear()
    capsys.readouterr()
    assert sanitize.run_calls(calls, "racecheck", 0.0) == 2 and ran == [whole, other]
    name = "2x65x544x1, 128x4, everything in float16, on nvfp4_sm90_gemm_128x8, split 3, candidate 6"
    assert capsys.readouterr().out == f"2 calls of split kernels not begun, from {name} on\n"
    monkeypatch.setattr(sanitize, "agrees", lambda call: call != other)
    with pytest.raises(SystemExit, match="on nvfp4_sm80_gemm_8x32, split 3, candidate 6: differs from the CPU"):
        sanitize.run_calls(calls, "racecheck", soon)
