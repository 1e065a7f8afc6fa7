"""Runs tests/kernels/sanitize.py with a fake sanitizer, which runs no kernel."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import sanitize
from emulated_runs import driver
from python_server import python

import nvfp4

RUNS = """#!{python}
import mmap, re, subprocess, sys, time
path = next(a for a in sys.argv if a.startswith("--under-way=")).partition("=")[2]
sys.path.insert(0, {tests!r})
import sanitize
{then}
"""
CALL = "2 of 9 calls done; 7x33x80x2, linear, torch.float32, on sm90"


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
    assert not clean and summary == f"stopped after 5 s; {CALL}"
    status = Path(f"/proc/{child.read_text()}/stat")
    while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() - start < 60, "what the tool has started ends with it"
        time.sleep(0.1)


def test_a_tool_that_does_not_end_before_any_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_sanitizer(tmp_path, "time.sleep(300)", monkeypatch)
    assert sanitize.sanitize("memcheck", ["sm90"], 2.0) == (
        False,
        "stopped after 2 s; no call begun",
    )


@pytest.mark.parametrize(
    ("tool", "done", "hazard", "clean"),
    [
        (sanitize.STALLED, 2, "", True),
        (sanitize.STALLED, 0, "", False),
        (sanitize.STALLED, 2, "========= Error: Race reported between Write access", False),
        ("racecheck", 2, "", False),
    ],
)
def test_the_process_of_stalled_calls_may_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, done: int, hazard: str, clean: bool
) -> None:
    then = f"""
print("========= COMPUTE-SANITIZER", {hazard!r}, sep=chr(10), flush=True)
sanitize.UnderWay(path).say("{done} of 9 calls done; x")
time.sleep(300)
"""
    fake_sanitizer(tmp_path, then, monkeypatch)
    assert sanitize.sanitize(tool, ["sm90"], 3.0) == (clean, f"stopped after 3 s; {done} of 9 calls done; x")


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


def test_calls_that_racecheck_stalls_have_a_process_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    split = sanitize.Call((2, 65, 544, 1), "sm90", "128x4", "float16", True, "nvfp4_sm90_gemm_128x8", 3, 6)
    whole, other = replace(split, split_k=1, candidate=0), replace(split, kernel="nvfp4_sm80_gemm_8x32")
    ran: list[sanitize.Call] = []
    monkeypatch.setattr(sanitize, "agrees", lambda call: not ran.append(call))
    monkeypatch.setattr(sanitize, "products", lambda backends: [split, whole, split, other])
    monkeypatch.setattr(sanitize, "run_conversions", lambda tool: 6)
    monkeypatch.setattr(sanitize, "run_groups", lambda backends: 3)
    monkeypatch.setattr(sanitize, "run_experts", lambda: 1)
    for tool, calls, conversions in (
        ("racecheck", [whole, other], 10),
        (sanitize.STALLED, [split, split], 0),
        ("memcheck", [split, whole, split, other], 10),
    ):
        ran.clear()
        assert sanitize.run(["sm90"], tool) == conversions + len(calls) and ran == calls
    monkeypatch.setattr(sanitize, "agrees", lambda call: call != other)
    with pytest.raises(SystemExit, match="on nvfp4_sm80_gemm_8x32, split 3, candidate 6: differs from the CPU"):
        sanitize.run(["sm90"], "racecheck")


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvfp4.info", lambda: {"devices": []})
    monkeypatch.setattr(sys, "argv", ["sanitize.py"])
    with pytest.raises(SystemExit, match=r"^this machine has no GPU that nvfp4 can use; `python -m nvfp4 info` says"):
        sanitize.main()


@pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")
def test_products_of_groups() -> None:
    """The calls that the tools run agree with the CPU's on an emulated GPU."""
    code = f"import sys; sys.path.append({str(Path(sanitize.__file__).parent)!r}); import sanitize\n"
    code += "print(sanitize.run_groups(sanitize.gpu_backends()))"
    done = python("-c", code, env={**os.environ, **driver(), "EMULATE_DEVICE": "sm_90"})
    assert done.stdout == "104\n", done.stdout + done.stderr
