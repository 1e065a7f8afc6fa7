"""Test and measure this machine's GPU, for its first hour, and pack what was found.

Runs every check and measurement that this machine allows, one after another, each in a process of its own with a time
limit: a step that fails or hangs does not end the run. Each result is written at once. At the end DIR holds report.txt,
a page that says what passed and what to do next, and DIR.zip holds everything to send.

Exit status: 0 every step passed or was skipped, 1 a step failed or timed out, 2 the run cannot begin.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import nvfp4
from nvfp4.cli.show import CommandError, plain

from . import steps
from .steps import FAILED, PASSED, SKIPPED, TIMED_OUT, Setting, Step

MIN_MINUTES, MAX_MINUTES = 1, 24 * 60
FREE_BYTES = 1 << 30  # of a debug build and all results
KILL_S = 10  # until a killed process has gone; one that is blocked in the driver does not
PROBE_S = 60
TAIL_LINES = 40
PACK_S = 5  # left for the report and the zip
CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGE_PARENT = Path(nvfp4.__file__).resolve().parents[1]
PROBE = [sys.executable, "-m", "lab.programs", "probe"]


@dataclass
class Result:
    step: str
    what: str
    verdict: str
    seconds: float
    why: str = ""  # of a skipped step the reason, else its last line
    output: str = ""  # file in the folder
    advice: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--minutes",
        type=float,
        default=60,
        metavar="M",
        help="take at most M minutes (default: 60); the limits of steps shrink with it",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="the folder for results, new or empty (default: nvfp4-first-run-DATE)",
    )
    parser.add_argument(
        "--steps",
        type=lambda text: text.split(","),
        metavar="NAME,...",
        help="run only these steps, and device: " + ", ".join(step.name for step in steps.STEPS[1:]),
    )


def run(args: argparse.Namespace) -> int:
    check_minutes(args.minutes)
    chosen = choose(args.steps)
    folder = prepared(args.folder or Path(f"nvfp4-first-run-{datetime.datetime.now():%Y%m%d-%H%M%S}"))
    with tempfile.TemporaryDirectory(prefix="nvfp4-first-run-") as scratch:
        runner = Runner(Setting(folder, Path(scratch), CHECKOUT, args.minutes), chosen)
        try:
            runner.run()
        finally:
            runner.finish()
    return int(any(result.verdict in (FAILED, TIMED_OUT) for result in runner.results))


# --- the arguments --------------------------------------------------------------------------------------------------


def check_minutes(minutes: float) -> None:
    if not (math.isfinite(minutes) and MIN_MINUTES <= minutes <= MAX_MINUTES):
        raise CommandError(f"--minutes: is {minutes:g}; must be {MIN_MINUTES} to {MAX_MINUTES}")


def choose(names: Sequence[str] | None) -> list[Step]:
    """The steps of these names, in their order, with the first, on which all depend."""
    if names is None:
        return list(steps.STEPS)
    known = [step.name for step in steps.STEPS]
    if unknown := [name for name in names if name not in known]:
        raise CommandError(f"--steps: there is no step {unknown[0]!r}; must be out of {', '.join(known)}")
    return [step for step in steps.STEPS if step.name in names or not step.requires]


def prepared(folder: Path) -> Path:
    """The folder, made; an error message if results cannot be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if found := sorted(path.name for path in folder.iterdir()):
            raise CommandError(f"--folder {folder}: holds {found[0]!r}; must be new or empty")
        with tempfile.TemporaryFile(dir=folder):
            pass
        with tempfile.TemporaryFile(dir=folder.resolve().parent):  # for the zip
            pass
    except OSError as error:
        raise CommandError(f"--folder {folder}: must be writable, its parent too ({error.strerror})") from None
    free = shutil.disk_usage(folder).free
    if free < FREE_BYTES:
        raise CommandError(f"--folder {folder}: its disk has {free >> 20} MiB free; must have {FREE_BYTES >> 20}")
    return folder.resolve()


# --- running --------------------------------------------------------------------------------------------------------


class Runner:
    """Runs the steps and keeps their results, in memory and in the folder."""

    def __init__(self, setting: Setting, chosen: Sequence[Step]) -> None:
        self.setting, self.chosen = setting, chosen
        self.results: list[Result] = []
        self.end = time.monotonic() + setting.minutes * 60 - PACK_S
        self.lost = ""  # why no further step can use the GPU
        self.child: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        for number, step in enumerate(self.chosen, 1):
            print(f"[{number}/{len(self.chosen)}] {step.name}: {step.what}", file=sys.stderr, flush=True)
            left = self.end - time.monotonic()
            why = self.lost or step.why_skipped(self.setting, left)
            if why:
                result = Result(step.name, step.what, SKIPPED, 0.0, why)
            else:
                result = self.run_step(number, step, step.limit(self.setting, left))
            self.setting.verdicts[step.name] = result.verdict
            self.results.append(result)
            print(f"    {result.verdict}, {result.seconds:.0f} s: {result.why}", file=sys.stderr, flush=True)
            self.write()

    def run_step(self, number: int, step: Step, limit_s: float) -> Result:
        output = self.setting.folder / f"{number:02}-{step.name}.txt"
        start = time.monotonic()
        environment = step.environment(self.setting)
        status = self.child_status(step.command(self.setting), environment, output, limit_s)
        seconds = time.monotonic() - start
        verdict = TIMED_OUT if status is None else PASSED if status == 0 else FAILED
        why = last_line(output, step.telling)
        if status is None:
            why = f"killed after its limit of {limit_s:.0f} s; last line: {why}"
        elif status < 0:
            why = f"ended by signal {-status}; last line: {why}"
        if verdict != PASSED and step.requires:
            self.probe(step.name)
        return Result(
            step.name, step.what, verdict, seconds, why, output.name, "" if verdict == PASSED else step.advice
        )

    def child_status(
        self, command: Sequence[str], environment: Mapping[str, str], output: Path, limit_s: float
    ) -> int | None:
        """The exit status of a child, whose process group is killed at the limit: then None. It imports this nvfp4, or
        the one at the front of the environment's PYTHONPATH."""
        paths = [environment.get("PYTHONPATH", str(PACKAGE_PARENT)), str(CHECKOUT / "tools")]
        paths.append(os.environ.get("PYTHONPATH", ""))
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        with open(output, "wb") as file:
            file.write(f"$ {' '.join(map(str, command))}\n".encode())
            file.flush()
            try:
                self.child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    cwd=self.setting.folder,
                    env=environment,
                    start_new_session=True,
                )
            except OSError as error:
                file.write(f"cannot start {command[0]}: {error.strerror}\n".encode())
                return 127
            try:
                return self.child.wait(limit_s)
            except subprocess.TimeoutExpired:
                return None
            finally:
                self.kill()

    def kill(self) -> None:
        """Ends the child and all that it started in its session."""
        child, self.child = self.child, None
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(KILL_S)

    def probe(self, name: str) -> None:
        """Whether the GPU still answers after a step that did not pass."""
        limit = min(PROBE_S, max(self.end - time.monotonic(), 1))
        output = self.setting.folder / f"probe-after-{name}.txt"
        if self.child_status(PROBE, {}, output, limit) != 0:
            self.lost = f"the GPU does not answer since {name}: {last_line(output)}"

    # --- results

    def write(self) -> None:
        """Writes what is known so far: a machine may be taken away at any moment."""
        text = self.report()
        try:
            results = [asdict(result) for result in self.results]
            (self.setting.folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
            (self.setting.folder / "report.txt").write_text(text)
        except OSError as error:
            print(text)
            raise CommandError(f"--folder {self.setting.folder}: must be writable ({error.strerror})") from None

    def finish(self) -> None:
        """Kills what is running, writes the report and the zip, prints the report."""
        self.kill()
        for step in self.chosen[len(self.results) :]:
            self.results.append(Result(step.name, step.what, SKIPPED, 0.0, "the run was interrupted"))
        self.write()
        print(self.report())
        packed = self.setting.folder.parent / f"{self.setting.folder.name}.zip"
        try:
            pack(self.setting.folder, packed)
        except OSError as error:
            raise CommandError(f"{packed}: cannot be written ({error.strerror}); send the folder") from None
        print(f"send {packed}")

    def report(self) -> str:
        device = self.setting.device
        head = [
            f"nvfp4 {nvfp4.__version__}, first run on {device.get('hardware', 'a machine without a usable GPU')}",
            f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC, --minutes {self.setting.minutes:g}, "
            f"source tree {self.setting.checkout}, package {PACKAGE_PARENT / 'nvfp4'}",
            "",
        ]
        rows = [[r.step, r.verdict, f"{r.seconds:.0f}", shortened(r.why)] for r in self.results]
        body = plain(["step", "verdict", "s", "why, or its last line"], rows, [True, True, False, True])
        return "\n".join([*head, body, "", *self.next_steps(), *self.first_wrong(), *self.constants()]) + "\n"

    def next_steps(self) -> list[str]:
        wrong = [result for result in self.results if result.verdict in (FAILED, TIMED_OUT)]
        lines = ["What to do next"]
        if self.lost:
            lines.append(f"- {self.lost}. Restart the machine (or nvidia-smi --gpu-reset), then --steps for the rest.")
        for result in wrong:
            lines.append(f"- {result.step} {result.verdict}: read {result.output}. {result.advice}".rstrip())
        skipped = [result.step for result in self.results if result.verdict == SKIPPED]
        if skipped:
            lines.append(f"- skipped, for the reasons above: {', '.join(skipped)}.")
        if not wrong:
            lines.append("- nothing failed. nvfp4.use_tuning(FILE) takes the file nvfp4-tune-*.json, if there is one.")
        return [*lines, "- send the zip to the project, with how the machine was rented.", ""]

    def first_wrong(self) -> list[str]:
        """The end of the output of the first step that went wrong, and of the dump."""
        wrong = [result for result in self.results if result.verdict in (FAILED, TIMED_OUT)]
        shown = wrong[:1] + [r for r in self.results if r.step == "dump" and r.output and r not in wrong[:1]]
        lines = []
        for result in shown:
            lines += [f"The end of {result.output}", *tail(self.setting.folder / result.output), ""]
        return lines

    def constants(self) -> list[str]:
        path = self.setting.folder / "constants.txt"
        return path.read_text().splitlines() if path.is_file() else []


def tail(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()[-TAIL_LINES:]
    except OSError:
        return []


def last_line(path: Path, telling: str = "") -> str:
    """The last line that is not blank, or the last telling one."""
    lines = [line.strip() for line in tail(path) if line.strip()] or ["no output"]
    return next((line for line in reversed(lines) if telling and re.search(telling, line)), lines[-1])


def shortened(text: str, most: int = 150) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def pack(folder: Path, to: Path) -> None:
    """A zip of all files of the folder, under its name."""
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, Path(folder.name) / path.relative_to(folder))
