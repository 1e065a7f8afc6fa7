"""In a job of CI, which CI_JOB names, a skipped test is an error unless skips.txt allows its reason there.

Modules that are skipped as a whole (pytest.importorskip) count too. A pytest plugin: tests/conftest.py loads it, and
.ci/run gives it to the tests of emulator/ by `-p skips`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

FILE = Path(__file__).with_suffix(".txt")


@dataclass
class Allowed:
    """An entry of the file."""

    jobs: list[str]
    reason: str  # a regular expression of whole reasons
    why: str
    seen: bool = False


def read(text: str) -> list[Allowed]:
    """The entries: the jobs in brackets hold for all that follow. A reason is a line, and why it may be, an indented
    one below it. Lines that begin with # are comments."""
    entries: list[Allowed] = []
    jobs: list[str] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("["):
            jobs = line.strip("[]").split()
        elif line.startswith(" "):
            entries[-1].why += " " * bool(entries[-1].why) + line.strip()
        else:
            entries.append(Allowed(jobs, line.strip(), ""))
    return entries


class Skips:
    """Compares each skip with the entries of a job."""

    def __init__(self, job: str, entries: list[Allowed]) -> None:
        self.job = job
        self.entries = [entry for entry in entries if job in entry.jobs]
        self.unlisted: list[str] = []

    def see(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        assert isinstance(report.longrepr, tuple)  # path, line, reason
        reason = report.longrepr[2].removeprefix("Skipped: ")
        matching = [entry for entry in self.entries if re.fullmatch(entry.reason, reason)]
        for entry in matching:
            entry.seen = True
        if not matching:
            self.unlisted.append(f"{report.nodeid}: {reason}")

    pytest_runtest_logreport = pytest_collectreport = see

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.unlisted:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        unseen = [entry.reason for entry in self.entries if not entry.seen]
        if self.unlisted:
            terminalreporter.section(f"skips that {FILE.name} does not allow in the job {self.job}", red=True)
            for line in self.unlisted:
                terminalreporter.write_line(f"ERROR {line}")
        if unseen:
            terminalreporter.section(f"entries of {FILE.name} without a skip in the job {self.job}", yellow=True)
            for line in unseen:
                terminalreporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    job = os.environ.pop("CI_JOB", None)  # the runs of pytest that tests start are no jobs
    if job and not hasattr(config, "workerinput"):  # the process that starts xdist's workers gets their reports
        config.pluginmanager.register(Skips(job, read(FILE.read_text(encoding="utf-8"))))
