"""The steps of `first-run`: what each one runs, its time limits, and why it may be skipped.

A step is a child process. Some run a program of programs.py, others a command of nvfp4, and others another program of
the checkout.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvfp4.cli import machine

PASSED, FAILED, TIMED_OUT, SKIPPED = "passed", "failed", "timed out", "skipped"
DEVICE_FILE, CHECK_FILES = "device.json", ("check.json", "check-watchdog.json")  # left in the folder for later steps
STAGES = {
    "a": ("loads into shared memory", "test_a_"),
    "b": ("allocation of tensor memory", "test_b_"),
    "c": ("scales in tensor memory", "test_c_"),
    "d": ("tcgen05.mma and the loop over K", "test_d_"),
    "e": ("the epilogue", "test_e_"),
}
# The tests of each stage that an emulated B200 runs: it takes a thousand times as long.
EMULATED_STAGES = {
    "a": "test_a_scales_by_bulk_copy",
    "b": "test_b_letting_go_before_the_allocation_deadlocks and 512",
    "c": "test_c_ and 1-1",
    "d": "test_d_one_mma and 128x16",
    "e": "test_e_alpha and 128x16 and plain",
}
STAGE_TESTS, WHOLE_TESTS = "tests/kernels/sm100/test_sm100_stages.py", "tests/kernels/sm100/test_sm100_gemm.py"
PYTEST_NEEDS = ("pytest", "numpy", "elftools", "ml_dtypes")


@dataclass
class Setting:
    """The setting that steps depend on. `backend` and `emulated` are known once the step "device" has ended."""

    folder: Path  # of the results
    scratch: Path  # deleted at the end
    checkout: Path
    minutes: float
    verdicts: dict[str, str] = field(default_factory=dict)  # of the steps that have ended

    @property
    def device(self) -> dict[str, Any]:
        return read_json(self.folder / DEVICE_FILE)

    @property
    def backend(self) -> str:
        return self.device.get("backend", "")

    @property
    def emulated(self) -> bool:
        return bool(self.device.get("emulated"))

    @property
    def failed_test(self) -> int | None:
        """The first test of `check` that failed, counted from 1."""
        tests = [test for name in CHECK_FILES for test in read_json(self.folder / name).get("tests", [])]
        return next((test["test"] for test in tests if not test["passed"]), None)

    def build(self, *flags: str) -> Path:
        """The folder of the package that is built with these flags."""
        return self.scratch / "-".join(flags)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file that a child wrote, or {}: it may have been killed while it wrote."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


Reason = Callable[[Setting], str]


@dataclass(frozen=True)
class Step:
    """limit_s is for --minutes 60 and shrinks with it, but not below min_s, what the step takes at the least."""

    name: str
    what: str
    command: Callable[[Setting], list[str]]
    limit_s: float
    min_s: float = 20
    requires: tuple[str, ...] = ("device",)  # steps that must have passed
    skip: tuple[Reason, ...] = ()  # each gives a reason to skip the step, or ""
    environment: Callable[[Setting], Mapping[str, str]] = lambda _: {}
    advice: str = ""  # what to do next if it has not passed
    telling: str = ""  # regular expression of the line of its output that the report shows, instead of the last one

    def why_skipped(self, setting: Setting, left_s: float) -> str:
        """Why the step is not run, or "". Checked right before it would start."""
        missing = [name for name in self.requires if setting.verdicts.get(name) != PASSED]
        if missing:
            return f"needs {missing[0]}, which is {setting.verdicts.get(missing[0], 'not among the steps')}"
        for reason in self.skip:
            if why := reason(setting):
                return why
        if self.min_s > setting.minutes * 60 / 4:
            return f"takes {self.min_s:.0f} s, more than a quarter of --minutes {setting.minutes:g}"
        return f"takes {self.min_s:.0f} s, {max(left_s, 0):.0f} s are left" if self.min_s > left_s else ""

    def limit(self, setting: Setting, left_s: float) -> float:
        return min(max(self.limit_s * min(setting.minutes / 60, 1), self.min_s), left_s)


# --- why a step is skipped ------------------------------------------------------------------------------------------


def tool(name: str, where: str) -> Reason:
    return lambda _: "" if shutil.which(name) else f"{name} is not on PATH; it comes with {where}"


def only_sm100(setting: Setting) -> str:
    return "" if setting.backend == "sm100" else f"is of the sm100 kernels; this GPU runs {setting.backend or 'none'}"


def only_tuned(setting: Setting) -> str:
    own = [row["name"] for row in machine.own_backends()]
    return "" if setting.backend in own else f"is of GPUs with {' or '.join(own)} kernels"


def real_gpu(setting: Setting) -> str:
    return "an emulated GPU has no time and no counters" if setting.emulated else ""


def test_packages(_: Setting) -> str:
    missing = [name for name in PYTEST_NEEDS if importlib.util.find_spec(name) is None]
    return f"{', '.join(missing)} cannot be imported; pip install '.[test]'" if missing else ""


def submitted(setting: Setting) -> str:
    is_there = setting.backend != "sm100" or setting.verdicts.get("submission") == PASSED
    return "" if is_there else "needs submission, which has not passed"


def nothing_failed(setting: Setting) -> str:
    return "" if setting.failed_test else "no test of check failed: there is nothing to dump"


SEED = {"NVFP4_TEST_SEED": "1"}  # of the tests' data, so that a run can be repeated
NVCC = tool("nvcc", "the CUDA toolkit")


# --- commands -------------------------------------------------------------------------------------------------------


def nvfp4(*arguments: str) -> Callable[[Setting], list[str]]:
    return lambda _: [sys.executable, "-m", "nvfp4", *arguments]


def program(name: str, *arguments: str) -> Callable[[Setting], list[str]]:
    return lambda _: [sys.executable, "-m", "lab.programs", name, *arguments]


def tool_of(folder: str, *arguments: str) -> Callable[[Setting], list[str]]:
    return lambda setting: [sys.executable, in_tree(f"tools/{folder}")(setting), *arguments]


def in_tree(path: str) -> Callable[[Setting], str]:
    return lambda setting: str(setting.checkout / path)


def check(file: str) -> Callable[[Setting], list[str]]:
    """The result goes to that file."""

    def command(setting: Setting) -> list[str]:
        few = ["--only", "1"] if setting.emulated else []
        return program("check", "--backend", setting.backend, "--to", file, *few)(setting)

    return command


def dump(setting: Setting) -> list[str]:
    where = "cta=0,k_block=0,lanes=0:4,columns=0:4"
    return tool_of("lab", "dump", where, "--backend", "sm100", "--test", str(setting.failed_test))(setting)


def stage(name: str) -> Callable[[Setting], list[str]]:
    def command(setting: Setting) -> list[str]:
        chosen = EMULATED_STAGES[name] if setting.emulated else STAGES[name][1]
        return pytest(setting, STAGE_TESTS, chosen)

    return command


def whole(setting: Setting) -> list[str]:
    chosen = "test_ragged_products and 128x16 and mma_a_is_b" if setting.emulated else "ragged_products or split"
    return pytest(setting, WHOLE_TESTS, chosen)


def pytest(setting: Setting, path: str, chosen: str) -> list[str]:
    words = ["-q", "-x", "--tb=short", "-p", "no:cacheprovider", in_tree(path)(setting), "-k", chosen]
    return [sys.executable, "-m", "pytest", *words]


def on_hardware(setting: Setting) -> dict[str, str]:
    where = {"SM100_SEEDS": "1"} if setting.emulated else {"SM100_SEEDS": "2", "SM100_HARDWARE": "1"}
    return SEED | where


def build(*flags: str) -> Callable[[Setting], list[str]]:
    def command(setting: Setting) -> list[str]:
        return program("build", str(setting.checkout), str(setting.build(*flags)), *flags)(setting)

    return command


def built(*flags: str) -> Callable[[Setting], dict[str, str]]:
    """Runs a step in the build with these flags."""
    return lambda setting: {"PYTHONPATH": str(setting.build(*flags))}


def ragged(setting: Setting) -> list[str]:
    return [
        sys.executable,
        in_tree("tests/support/exact_products.py")(setting),
        setting.backend,
        "100" if setting.emulated else "1",
    ]


OF_GROUPS = ("gated_grouped_gemm", "gated_grouped_quantize", "grouped_invariance")


def groups(setting: Setting) -> list[str]:
    others = [in_tree(f"tests/ops/test_{name}.py")(setting) for name in OF_GROUPS]
    return [*pytest(setting, "tests/ops/test_grouped_gemm.py", f"cuda or {setting.backend}"), *others]


def sanitizer(setting: Setting) -> list[str]:
    limit = max(SANITIZER_S * min(setting.minutes / 60, 1), SANITIZER_MIN_S) * 0.9  # of each of its tools
    script = in_tree("tests/kernels/sanitize.py")(setting)
    return [sys.executable, script, "--backend", setting.backend, "--limit", f"{limit:.0f}"]


def equal_calls(setting: Setting) -> list[str]:
    few = ["--calls", "3", "--shapes", "16x128x256"] if setting.emulated else []
    return program("equal-calls", "--backend", setting.backend, *few)(setting)


def tune(setting: Setting) -> list[str]:
    rounds = "100" if setting.minutes >= 30 else "20"
    return nvfp4("bench", "--tune", "--backend", setting.backend, "--repeat", rounds)(setting)


def contest(setting: Setting) -> list[str]:
    what = ["--backend", setting.backend] if setting.backend != "sm100" else ["--submission", "submission.py"]
    seconds = f"{min(setting.minutes, 60) / 2:g}"
    return tool_of("contest", "measure", *what, "--seconds", seconds, "--json", "contest.json")(setting)


def placement(setting: Setting) -> list[str]:
    few = ["--shapes", "16x256x512"] if setting.emulated else []
    pictures = ["--plot", "placement.svg"] if importlib.util.find_spec("matplotlib") else []
    words = ["--backend", setting.backend, "--csv", "placement.csv", *pictures, *few]
    return tool_of("lab", "placement", *words)(setting)


def counters(setting: Setting) -> list[str]:
    sections = ("SpeedOfLight", "LaunchStats", "Occupancy", "MemoryWorkloadAnalysis", "WarpStateStats")
    options = ["--clock-control", "none", "--target-processes", "all", "--kernel-name", "regex:nvfp4_sm"]
    options += ["--launch-count", "6", "--page", "details"]
    options += ["--log-file", "counters.txt", *(word for name in sections for word in ("--section", name))]
    return ["ncu", *options, *program("equal-calls", "--backend", setting.backend, "--calls", "2")(setting)]


# --- the steps, in order --------------------------------------------------------------------------------------------

SANITIZER_S, SANITIZER_MIN_S = 420, 60
# The watchdog makes kernels slow and each call wait: placement is recorded without it.
DEBUG, PLACEMENT = ("NVFP4_WATCHDOG", "NVFP4_DUMP"), ("NVFP4_DUMP",)
BUILD_ADVICE = (
    "the steps that need it are skipped. It needs setuptools 77 or later, and the wheels that "
    "`python build_backend/nvfp4_cuda.py` prints."
)
STAGE_S = 240  # the first one compiles for a minute
NEEDS_TESTS = (only_sm100, test_packages, NVCC)

STEPS = (
    Step(
        "device",
        "the GPU, its driver, the software",
        program("device"),
        60,
        requires=(),
        advice="the output says why nvfp4 cannot use the GPU. It needs a driver from release 525 on that knows it.",
    ),
    Step(
        "debug-build",
        "a build with the watchdog and the dump",
        build(*DEBUG),
        600,
        min_s=240,
        skip=(real_gpu, only_tuned),
        advice=BUILD_ADVICE,
    ),
    *(
        Step(
            f"stage-{name}",
            f"stage {name.upper()}: {what}",
            stage(name),
            STAGE_S,
            skip=NEEDS_TESTS,
            telling="^FAILED",
            environment=on_hardware,
            advice=f"the docstring of the failed test in {STAGE_TESTS} says what its failure means. Mend the first "
            "failed stage first: later ones use it.",
        )
        for name, (what, _) in STAGES.items()
    ),
    Step(
        "stage-f",
        "stage F: the whole kernel, every instantiation",
        whole,
        STAGE_S,
        skip=NEEDS_TESTS,
        telling="^FAILED",
        environment=on_hardware,
        advice="if stages A to E passed, the fault is between them: see the step dump, and docs/debugging.md.",
    ),
    Step(
        "check",
        "the competition's ten tests, to the bit",
        check(CHECK_FILES[0]),
        180,
        advice="see the step dump for the first one.",
    ),
    Step(
        "check-watchdog",
        "the same in the debug build",
        check(CHECK_FILES[1]),
        180,
        requires=("device", "debug-build"),
        environment=built(*DEBUG),
        advice="its message names the place of each wait that did not end.",
    ),
    Step(
        "dump",
        "the operands of the first failed test",
        dump,
        120,
        requires=("device", "debug-build"),
        skip=(only_sm100, nothing_failed),
        environment=built(*DEBUG),
        advice="the first table that differs shows the broken step (docs/debugging.md).",
    ),
    Step(
        "ragged",
        "every shape and form, to the bit",
        ragged,
        300,
        environment=lambda _: SEED,
        advice="see docs/debugging.md.",
    ),
    Step(
        "groups",
        "products of experts, to the bit, and what they promise",
        groups,
        300,
        skip=(real_gpu, only_tuned, test_packages),
        environment=lambda _: SEED,
        telling="^FAILED",
        advice="python tests/support/generated_grouped_gemm.py cuda 'Grouped(...)' repeats a call that is named.",
    ),
    Step(
        "sanitizer",
        "compute-sanitizer",
        sanitizer,
        SANITIZER_S,
        SANITIZER_MIN_S,
        skip=(real_gpu, tool("compute-sanitizer", "the CUDA toolkit")),
        telling="FAILED",
        advice="memory errors and races are defects whatever the results were.",
    ),
    Step(
        "equal-calls",
        "1,000 equal calls of each ranked shape give equal bits",
        equal_calls,
        120,
        advice="a race: repeat with `python -m lab.programs equal-calls` in tools/.",
    ),
    Step(
        "constants",
        "the constants of the B200 model, measured",
        lambda setting: program("constants", str(setting.checkout))(setting),
        180,
        min_s=60,
        skip=(real_gpu, NVCC),
        advice="compile and run the programs by hand: their headers have the command.",
    ),
    Step(
        "tune",
        "every plan of the ranked shapes, timed",
        tune,
        420,
        min_s=45,
        skip=(real_gpu, only_tuned),
        telling="^Fitted from this run",
        advice="a plan that is wrong is named in the output.",
    ),
    Step(
        "submission",
        "the competition's file",
        tool_of("contest", "submission", "-o", "submission.py"),
        60,
        skip=(only_sm100,),
    ),
    Step(
        "contest",
        "the competition's measurement",
        contest,
        420,
        min_s=60,
        skip=(real_gpu, submitted),
        telling="^geometric mean",
    ),
    Step(
        "placement-build",
        "a build that records placement",
        build(*PLACEMENT),
        600,
        min_s=240,
        skip=(real_gpu, only_tuned),
        advice=BUILD_ADVICE,
    ),
    Step(
        "placement",
        "SM, start and end of each CTA",
        placement,
        120,
        requires=("device", "placement-build"),
        skip=(only_tuned,),
        environment=built(*PLACEMENT),
    ),
    Step(
        "placement-idle",
        "where launches of our plans' sizes go, idle bodies",
        lambda setting: program("compiled", str(setting.checkout), "placement")(setting),
        60,
        skip=(real_gpu, NVCC),
    ),
    Step(
        "counters",
        "ncu counters of the ranked shapes",
        counters,
        180,
        skip=(real_gpu, tool("ncu", "Nsight Compute")),
        advice="ERR_NVGPUCTRPERM: counters are for root, or need NVreg_RestrictProfilingToAdminUsers=0 on the host.",
    ),
)
