"""tests/support/skips.py: which skips end a run of CI, and that its list has a reason for each entry."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import skips
from paths import SUPPORT

CONFTEST = """
import skips

LIST = '''
[some other]
there is no [a-z]+
    It is not there.
not reached
    Nothing says so.
[other]
a secret
    Only there.
'''

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(skips.Skips("some", skips.read(LIST)))
"""


def run(
    folder: Path, *options: str, environment: dict[str, str] | None = None, **modules: str
) -> subprocess.CompletedProcess[str]:
    """pytest on such modules, each beside one that passes."""
    for name, text in {"passes": "def test(): pass", **modules}.items():
        (folder / f"test_{name}.py").write_text(f"import pytest\n{text}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, *options, str(folder)]
    variables = {**os.environ, "PYTHONPATH": str(SUPPORT), **(environment or {})}
    return subprocess.run(command, capture_output=True, text=True, env=variables, cwd=folder)


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "workers"])
def test_only_allowed_skips_pass(tmp_path: Path, workers: tuple[str, ...]) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    allowed = "@pytest.mark.skipif(True, reason='there is no gpu')\ndef test(): pass"
    xfail = "@pytest.mark.xfail\ndef test(): assert False"
    done = run(tmp_path, *workers, allowed=allowed, xfail=xfail)
    assert done.returncode == 0, done.stdout
    assert "does not allow" not in done.stdout
    assert re.search(r"entries of skips\.txt without a skip in the job some =*\nnot reached\n", done.stdout)

    inner = "def test(): pytest.skip('a secret')"
    module = "pytest.importorskip('no_such_module')\ndef test(): pass"
    longer = "def test(): pytest.skip('there is no gpu here')"
    done = run(tmp_path, *workers, allowed=allowed, inner=inner, module=module, longer=longer)
    assert done.returncode == 1, done.stdout
    named = done.stdout.partition("skips that skips.txt does not allow in the job some")[2]
    for line in (
        "test_inner.py::test: a secret",
        "test_module.py: could not import 'no_such_module': No module named 'no_such_module'",
        "test_longer.py::test: there is no gpu here",
    ):
        assert f"\nERROR {line}\n" in named
    assert "test_allowed" not in named


def test_a_run_in_which_all_is_skipped_fails(tmp_path: Path) -> None:
    """pytest gives it another exit status. Processes that tests start are no job of CI."""
    skipped = "import os\nassert 'CI_JOB' not in os.environ\npytest.skip('a secret', allow_module_level=True)"
    done = run(tmp_path, "-p", "skips", environment={"CI_JOB": "tests"}, passes=skipped)
    assert done.returncode == 1 and "test_passes.py: a secret\n" in done.stdout, done.stdout
    done = run(tmp_path, "-p", "skips", passes=skipped)
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout


def test_each_entry_has_a_reason() -> None:
    entries = skips.read(skips.FILE.read_text(encoding="utf-8"))
    for entry in entries:
        assert entry.jobs and re.compile(entry.reason) and entry.why.endswith("."), entry
        assert set(entry.jobs) <= {"tests", "emulator", "oldest", "newest", "vllm"}, entry.jobs
    assert len({(job, entry.reason) for entry in entries for job in entry.jobs}) == sum(len(e.jobs) for e in entries)
