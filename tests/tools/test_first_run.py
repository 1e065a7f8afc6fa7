"""`python tools/lab first-run`: steps that fail, hang or cannot run, its folder, report and zip; a run on the emulated
B200."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import in_full
from emulate import build
from lab import constants, first_run, programs, steps
from lab.__main__ import main
from lab.steps import FAILED, PASSED, SKIPPED, TIMED_OUT, Setting, Step
from paths import CSRC, ROOT

import nvfp4
from nvfp4.cli import show

DEVICE = {"hardware": "Fake B200", "backend": "sm100", "compute_capability": 100, "sm_count": 148, "emulated": False}
WRITE_DEVICE = f"open('device.json', 'w').write({json.dumps(json.dumps(DEVICE))}); print('Fake B200')"
HANG = (  # with a child that outlives its parent
    "import os, signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "sleep = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "open('hung.json', 'w').write(str([os.getpid(), sleep.pid]))\n"
    "print('it hangs here', flush=True)\n"
    "time.sleep(600)\n"
)

needs_gpu_code = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")


def python_step(name: str, text: str, limit_s: float = 60, **more: object) -> Step:
    return Step(name, name.upper(), lambda _: [sys.executable, "-c", text], limit_s, min_s=0.1, **more)


TEXT = {"capture_output": True, "text": True}
DEVICE_STEP = python_step("device", WRITE_DEVICE, requires=())
Run = Callable[..., int]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs the command with these steps after the device's; results are in tmp_path/found."""
    monkeypatch.setattr(first_run, "PROBE", [sys.executable, "-c", "print('the GPU answers')"])

    def command(*chosen: Step, options: tuple[str, ...] = ()) -> int:
        monkeypatch.setattr(steps, "STEPS", (DEVICE_STEP, *chosen))
        return main(["first-run", "--folder", str(tmp_path / "found"), *options])

    return command


def results(folder: Path) -> dict[str, tuple[str, str]]:
    """Verdict and reason of each step."""
    return {r["step"]: (r["verdict"], r["why"]) for r in json.loads((folder / "results.json").read_text())}


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# --- running --------------------------------------------------------------------------------------------------------


def test_a_run_goes_on(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After a step that fails, one that hangs, one whose tool is missing and one that cannot start."""
    began = time.monotonic()
    status = run(
        python_step("fails", "print('the sums differ'); raise SystemExit(3)", advice="mend the sums"),
        python_step("hangs", HANG, limit_s=1.5),
        python_step("toolless", "print(1)", skip=(steps.tool("no-such-tool", "a shop"),)),
        Step("unstartable", "", lambda _: ["/no/such/program"], 60, min_s=0.1),
        python_step("dependent", "print(1)", requires=("device", "hangs")),
        python_step("crashes", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"),
        python_step(
            "after",
            "import os; print(os.environ['WORD']); print('more')",
            environment=lambda _: {"WORD": "went on"},
            telling="^went",
        ),
    )
    folder = tmp_path / "found"
    assert status == 1 and time.monotonic() - began < 30
    assert results(folder) == {
        "device": (PASSED, "Fake B200"),
        "fails": (FAILED, "the sums differ"),
        "hangs": (TIMED_OUT, "killed after its limit of 2 s; last line: it hangs here"),
        "toolless": (SKIPPED, "no-such-tool is not on PATH; it comes with a shop"),
        "unstartable": (FAILED, "cannot start /no/such/program: No such file or directory"),
        "dependent": (SKIPPED, "needs hangs, which is timed out"),
        "crashes": (FAILED, "ended by signal 11; last line: $ " + results(folder)["crashes"][1].partition("$ ")[2]),
        "after": (PASSED, "went on"),
    }
    hung = json.loads((folder / "hung.json").read_text())
    assert len(hung) == 2 and not any(map(is_running, hung))

    report = (folder / "report.txt").read_text()
    assert report in capsys.readouterr().out and "Fake B200" in report
    assert re.search(r"^toolless +skipped +0  no-such-tool is not on PATH", report, re.M)
    advice = report.partition("What to do next")[2]
    assert "fails failed: read 02-fails.txt. mend the sums" in advice and "hangs timed out" in advice
    assert "The end of 02-fails.txt" in advice and "the sums differ" in advice and "it hangs here" not in advice
    with zipfile.ZipFile(tmp_path / "found.zip") as archive:
        assert archive.read("found/report.txt").decode() == report
        assert sorted(archive.namelist()) == sorted(f"found/{path.name}" for path in folder.iterdir())
        assert {"found/02-fails.txt", "found/results.json", "found/device.json"} <= set(archive.namelist())


def test_all_passed(run: Run, tmp_path: Path) -> None:
    assert run(python_step("one", "print('good')"), options=("--steps", "one")) == 0
    assert "nothing failed" in (tmp_path / "found/report.txt").read_text()


def test_nothing_runs_without_a_device(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = python_step("device", "print('no driver'); raise SystemExit(1)", requires=())
    monkeypatch.setattr(sys.modules[__name__], "DEVICE_STEP", broken)
    assert run(python_step("one", "print('good')")) == 1
    assert results(tmp_path / "found") == {
        "device": (FAILED, "no driver"),
        "one": (SKIPPED, "needs device, which is failed"),
    }
    assert "without a usable GPU" in (tmp_path / "found/report.txt").read_text()


def test_a_lost_gpu_is_not_used_again(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_run, "PROBE", [sys.executable, "-c", "print('no answer'); raise SystemExit(1)"])
    assert run(python_step("fails", "raise SystemExit(1)"), python_step("after", "print(1)")) == 1
    lost = "the GPU does not answer since fails: no answer"
    assert results(tmp_path / "found")["after"] == (SKIPPED, lost)
    assert f"- {lost}. Restart the machine" in (tmp_path / "found/report.txt").read_text()


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_run_is_packed(run: Run, tmp_path: Path) -> None:
    interrupt = "import os, signal, time; os.kill(os.getppid(), signal.SIGINT); time.sleep(600)"
    assert run(python_step("one", interrupt), python_step("two", "print(1)")) == 130
    found = results(tmp_path / "found")
    assert found["device"][0] == PASSED and found["one"] == found["two"] == (SKIPPED, "the run was interrupted")
    assert zipfile.is_zipfile(tmp_path / "found.zip")


def test_the_dump_of_a_failed_check_is_in_the_report(run: Run, tmp_path: Path) -> None:
    tests = {"tests": [{"test": 1, "passed": True}, {"test": 2, "passed": False}]}
    fails = python_step("check", f"open('check.json', 'w').write('''{json.dumps(tests)}'''); raise SystemExit(1)")
    (real,) = (step for step in steps.STEPS if step.name == "dump")
    command = lambda s: [sys.executable, "-c", f"print('table of', {real.command(s)[-2:]})"]  # noqa: E731
    watched = python_step("check-watchdog", """open('check-watchdog.json', 'w').write('{"tests": []}')""")
    assert run(fails, watched, Step("dump", "", command, 60, min_s=0.1, skip=real.skip)) == 1
    assert "table of ['--test', '2']" in (tmp_path / "found/report.txt").read_text().partition("The end of 04-dump")[2]


def test_the_step_of_groups_has_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the GPU's own cases, and the promises of its backend."""
    monkeypatch.setattr(Setting, "backend", "sm120")
    (real,) = (step for step in steps.STEPS if step.name == "groups")
    command = [*real.command(Setting(tmp_path, tmp_path, ROOT, 60)), "--collect-only"]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, **TEXT)
    found = done.stdout.splitlines()
    assert sum("test_grouped_gemm.py::test_" in line and "cuda" in line for line in found) >= 20, done.stdout
    assert not any("sm_" in line or "cpu" in line for line in found if "::" in line)


# --- time and steps -------------------------------------------------------------------------------------------------


def test_limits(tmp_path: Path) -> None:
    step = python_step("one", "")
    setting = Setting(tmp_path, tmp_path, ROOT, 60, {"device": PASSED})
    assert step.limit(setting, 1000) == 60 and step.limit(setting, 7) == 7
    setting.minutes = 6
    assert step.limit(setting, 1000) == 6
    assert step.why_skipped(setting, 0.05) == "takes 0 s, 0 s are left" and step.why_skipped(setting, 1) == ""
    long = Step("long", "", lambda _: [], 600, min_s=100)
    assert long.limit(setting, 1000) == 100
    assert long.why_skipped(setting, 1000) == "takes 100 s, more than a quarter of --minutes 6"
    assert long.why_skipped(Setting(tmp_path, tmp_path, ROOT, 60), 1000) == "needs device, which is not among the steps"
    assert sum(step.limit_s for step in steps.STEPS) < 100 * 60


def test_the_page_names_the_steps_that_need_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds need NVRTC alone."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / steps.DEVICE_FILE).write_text('{"backend": "sm100"}')
    setting = Setting(tmp_path, tmp_path, ROOT, 60, {"device": PASSED})
    skipped = [step.name for step in steps.STEPS if step.why_skipped(setting, 3600).startswith("nvcc")]
    stages = [f"stage-{name}" for name in "abcdef"]
    assert skipped == [*stages, "constants", "placement-idle"]
    page = (ROOT / "docs/first-run.md").read_text(encoding="utf-8")
    assert "nvcc (`stage-a` to `stage-f`,\n`constants` and `placement-idle`)" in page


# --- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("minutes", ["0.5", "-3", "nan", "inf", "1441"])
def test_minutes(minutes: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(options=(f"--minutes={minutes}",)) == 2
    assert capsys.readouterr().err == f"tools/lab first-run: --minutes: is {float(minutes):g}; must be 1 to 1440\n"
    assert not (tmp_path / "found").exists()


def test_folders(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "found"

    def said() -> str:
        assert run() == 2
        return capsys.readouterr().err.removeprefix("tools/lab first-run: ").rstrip()

    folder.mkdir()
    (folder / "old.txt").write_text("kept")
    assert said() == f"--folder {folder}: holds 'old.txt'; must be new or empty"
    assert [path.name for path in folder.iterdir()] == ["old.txt"]
    shutil.rmtree(folder)
    folder.write_text("a file")
    assert said() == f"--folder {folder}: must be writable, its parent too (File exists)"
    folder.unlink()
    full = shutil.disk_usage(tmp_path)._replace(free=3 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    assert said() == f"--folder {folder}: its disk has 3 MiB free; must have 1024"


def test_results_that_cannot_be_written(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report goes to standard output."""
    remove = f"import shutil; shutil.rmtree({str(tmp_path / 'found')!r})"
    assert run(python_step("one", remove), python_step("two", "print(1)")) == 2
    said = capsys.readouterr()
    assert re.search(r"^one +passed", said.out, re.M)
    assert f"--folder {tmp_path / 'found'}: must be writable (No such file or directory)" in said.err


def test_unknown_steps(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(python_step("one", ""), options=("--steps", "one,tow")) == 2
    assert "--steps: there is no step 'tow'; must be out of device, one" in capsys.readouterr().err


# --- constants ------------------------------------------------------------------------------------------------------

# The output of launch_terms.cu on an H200.
LAUNCH_TERMS = """\
112 CTAs of 100 KB, clusters of 2, plain: gap 1.71 us, 2.41 with a prologue of 0.7
112 CTAs of 100 KB, clusters of 2, trigger before the wait: gap 0.87 us, 0.88 with a prologue of 0.7
112 CTAs of 100 KB, clusters of 2, behind it: gap 0.76 us, 0.76 with a prologue of 0.7
112 CTAs of 200 KB, clusters of 2, behind it: gap 0.77 us, 1.10 with a prologue of 0.7
stores, 112 CTAs,  64 rows of 64 bytes a warp: 1.16 us beyond the body
stores,  56 CTAs, 128 numbers of each lane's row: 2.96 us beyond the body
clusters of 2,  64 columns: barrier 362, exchange 1079 clocks
clusters of 2, 128 columns: barrier 372, exchange 1892 clocks
clusters of 4, 128 columns: barrier 364, exchange 2900 clocks
"""


def test_constants_of_launches() -> None:
    found = constants.of_launches(LAUNCH_TERMS, {"clock_ghz": 2.0})
    assert found == pytest.approx(
        {
            "plain_gap_us": 1.71,
            "dependent_gap_us": 0.76,
            "early_trigger_us": 0.11,
            "exit_overlap_us": 0.37,
            "cluster_barrier_cycles": 366,
            "remote_b_clk": 16384 / 813,
            "remote_latency_cycles": 1079 - 813,
            "column_store_b_clk": 16384 / 800,
            "row_store_b_clk": 32768 / 4400,
        }
    )
    assert "column_store_b_clk" not in constants.of_launches(LAUNCH_TERMS, {})
    with pytest.raises(show.CommandError, match=r"launch_terms\.cu: its output"):
        constants.of_launches("nothing", {})


def test_constants_of_the_model() -> None:
    """All rows of the table in model.h are read, and programs measure nothing else but what is named here."""
    model = constants.modelled()
    text = constants.MODEL.read_text()
    table = text.partition("#define SM100_MODEL_CONSTANTS(X)")[2].partition("\n\n")[0]
    assert list(model) == re.findall(r"X\((\w+),", table) and model["clock_ghz"] == (1.95, "GHz")
    printed = [
        re.findall(r'"(\w+) %', (ROOT / "benchmarks" / f"{name}_terms.cu").read_text()) for name in ("load", "tcgen05")
    ]
    found = {*printed[0], *printed[1], *constants.of_launches(LAUNCH_TERMS, {"clock_ghz": 2.0})}
    assert found - {*model} == {constants.COMMIT_AND_WAIT, constants.EVICT_NORMAL, constants.EVICT_FIRST}
    assert {*model} - found == {"prologue_us", "commit_cycles"}  # nothing measures the first one alone
    assert constants.named("clock_ghz 1.9800\na line\ndram_tb_s 4.6\n") == {
        "clock_ghz": 1.98,
        "dram_tb_s": 4.6,
    }


@needs_gpu_code
@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "benchmarks").glob("*.cu")))
def test_programs_compile(name: str, tmp_path: Path) -> None:
    """With the headers as they are; unoptimized, which takes half a second."""
    options = ["-ptx", "-arch=compute_100f", "-Xcicc", "-O0", f"-I{CSRC}", "-o", str(tmp_path / "program.ptx")]
    done = subprocess.run(["nvcc", *options, str(ROOT / "benchmarks" / name)], **TEXT)
    assert done.returncode == 0, done.stderr


def test_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One program fails; the others' constants are kept."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "device.json").write_text(json.dumps(DEVICE))
    printed = {"load_terms": "barrier_cycles 60\nclock_ghz 2\n", "tcgen05_terms": "commit_and_wait_cycles 92.5\n"}

    def output_of(source: Path) -> str:
        if source.stem not in printed:
            raise show.CommandError(f"{source.name}: broken")
        return printed[source.stem]

    monkeypatch.setattr(constants, "output_of", output_of)
    found = constants.measure(tmp_path)
    assert (
        found["commit_cycles"] == 32.5
        and found["clock_ghz"] == 2
        and "launch_terms.cu: broken" in capsys.readouterr().out
    )
    printed.clear()
    with pytest.raises(show.CommandError, match="nothing was measured"):
        constants.measure(tmp_path)
    assert constants.code_for(100) == "-gencode=arch=compute_100a,code=sm_100a"
    assert constants.code_for(89) == "-gencode=arch=compute_89,code=sm_89"


def test_wrong_constants_are_named() -> None:
    model = {"right": (2.0, "us"), "high": (1.0, "us"), "low": (1.0, "clk"), "unknown": (1.0, "clk")}
    text = constants.report({"right": 2.2, "high": 1.2, "low": 0.8}, model, "Fake B200")
    assert text.endswith("beyond 15%: high, low.\n")
    assert re.search(r"^right +us +2 +2.2 +1.10  agrees$", text, re.M)
    assert re.search(r"^unknown +clk +1 +- +-  not measured$", text, re.M)
    assert "of a B200" in constants.report({"high": 1.2}, model, "H200").splitlines()[-1]


def test_the_gain_by_evict_first_is_told() -> None:
    text = constants.report({"evict_first_tb_s": 6.6, "evict_normal_tb_s": 6.0}, {"high": (1.0, "us")}, "Fake B200")
    assert "\nread once: 6.60 TB/s with EVICT_FIRST, 6.00 without (+10.0%)\n" in text
    assert "EVICT" not in constants.report({"evict_first_tb_s": 6.6}, {"high": (1.0, "us")}, "Fake B200")


# --- programs, on the emulated B200 ---------------------------------------------------------------------------------


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def choose(device: str) -> None:
        for name, value in {
            "NVFP4_LIBCUDA": str(build()),
            "EMULATE_DEVICE": device,
            "CUDA_VISIBLE_DEVICES": "",
        }.items():
            monkeypatch.setenv(name, value)

    return choose


@needs_gpu_code
def test_check_on_the_emulated_b200(emulated: Callable[[str], None], tmp_path: Path) -> None:
    emulated("sm_100")
    folder = tmp_path / "found"
    assert main(["first-run", "--minutes", "5", "--folder", str(folder), "--steps", "check"]) == 0
    assert json.loads((folder / "device.json").read_text())["backend"] == "sm100"
    assert results(folder)["check"] == (PASSED, "1 of 1 tests passed")
    assert "sm100_gemm" in json.loads((folder / "check.json").read_text())["tests"][0]["kernel"]


@needs_gpu_code
@in_full
@pytest.mark.parametrize("device", ["sm_100", "sm_90"])
def test_every_step_on_an_emulated_gpu(device: str, emulated: Callable[[str], None], tmp_path: Path) -> None:
    emulated(device)
    folder = tmp_path / "found"
    assert main(["first-run", "--minutes", "30", "--folder", str(folder)]) == 0
    found = results(folder)
    passed = {name for name, (verdict, _) in found.items() if verdict == PASSED}
    stages = {f"stage-{name}" for name in "abcdef"} | {"submission"}
    assert passed == {"device", "check", "ragged", "equal-calls"} | (stages if device == "sm_100" else set())
    assert all(verdict == SKIPPED for name, (verdict, _) in found.items() if name not in passed)


@in_full
def test_a_debug_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the CPU alone: nvcc takes minutes. The source tree's own module stays."""
    monkeypatch.setenv("NVFP4_CUDA", "0")
    to, module = tmp_path / "made", Path(nvfp4._C.__file__)
    before = module.read_bytes()
    assert programs.main(["build", str(ROOT), str(to), *steps.PLACEMENT]) == 0
    code = "import nvfp4; from nvfp4 import _C; print(hasattr(_C, 'dump'), hasattr(_C, 'placement'), nvfp4.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=to, env=os.environ | {"PYTHONPATH": str(to)}, **TEXT)
    assert done.stdout.split() == ["True", "True", str(to / "nvfp4/__init__.py")], done.stderr
    assert module.read_bytes() == before


def test_equal_calls_find_a_difference(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On the CPU; with a product that is wrong in its third call, and one that leaves an element unwritten."""
    real, calls = nvfp4.gemm, []
    words = ["equal-calls", "--backend", "cpu", "--calls", "5", "--shapes", "3x8x64"]
    assert programs.main(words) == 0
    assert capsys.readouterr().out == "3x8x64: 5 calls, equal bits\n"

    def wrong(*arguments: object, out: object, **options: object) -> object:
        calls.append(out)
        result = real(*arguments, out=out, **options)
        if len(calls) == 3:
            result[2, 7] += 1
        return result

    monkeypatch.setattr(programs, "gemm", wrong)
    assert programs.main(words) == 1
    assert capsys.readouterr().out == "3x8x64: 5 calls, call 2 and 0 more differ\n"
    monkeypatch.setattr(programs, "gemm", lambda *_, out, **__: out)
    assert programs.main(words) == 1
    assert "equal bits, NaN in the first" in capsys.readouterr().out
