"""The competition's rules, each tested on a file as far as this machine can."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nvfp4.cli import show

from . import execute
from .execute import last_line

LIMIT = 900_000  # bytes that the competition takes
WORD = "s" + "tream"  # the competition rejects a file that contains it, even in comments
LONGEST_LINE, LONGEST_WORD, MAX_NUMBERS = 120, 60, 24
KERNELGUARD = "0.3.2"


@dataclass(frozen=True)
class Verdict:
    """Whether a file keeps a rule (None: not testable here), and the observation or the reason."""

    passed: bool | None
    why: str

    def __str__(self) -> str:
        return "skipped" if self.passed is None else "pass" if self.passed else "FAIL"


@dataclass(frozen=True)
class Submission:
    path: Path
    task: str
    data: bytes

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")

    def strings(self) -> dict[str, str]:
        """The module-level string constants by name."""
        found = {}
        for node in ast.parse(self.text).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                for target in node.targets:
                    if isinstance(target, ast.Name) and isinstance(node.value.value, str):
                        found[target.id] = node.value.value
        return found


def run(path: Path, task: str) -> list[tuple[str, Verdict]]:
    """Tests every rule and shows progress."""
    with show.progress(len(RULES)) as step:
        return list(check(path, task, step))


def report(path: Path, verdicts: list[tuple[str, Verdict]]) -> None:
    """Prints a line for each rule."""
    show.table(f"Rules for {path}", ["<rule", "<verdict", "<why"], [[n, str(v), v.why] for n, v in verdicts])
    counts = {word: sum(str(v) == word for _, v in verdicts) for word in ("pass", "FAIL", "skipped")}
    print(f"{counts['pass']} of {len(verdicts)} rules passed, {counts['FAIL']} failed, {counts['skipped']} skipped")


def check(path: Path, task: str, step: Callable[[str], None] = lambda name: None) -> Iterator[tuple[str, Verdict]]:
    submission = Submission(path, task, path.read_bytes())
    parses = True
    for name, (rule, needs_python) in RULES.items():
        step(name)
        verdict = rule(submission) if parses or not needs_python else Verdict(None, "the file does not parse")
        parses = parses and (rule is not python or verdict.passed is True)
        yield name, verdict


# --- rules about the text -------------------------------------------------------------------------------------------


def python(submission: Submission) -> Verdict:
    try:
        compile(submission.data, str(submission.path), "exec")
    except (SyntaxError, ValueError) as error:
        return Verdict(False, f"{error}")
    return Verdict(True, "parses")


def word(submission: Submission) -> Verdict:
    for number, line in enumerate(submission.text.splitlines(), start=1):
        if WORD in line.lower():
            return Verdict(False, f"line {number} has the rejected letters: {line.strip()}")
    return Verdict(True, "the rejected letters do not occur")


def size(submission: Submission) -> Verdict:
    return Verdict(len(submission.data) <= LIMIT, f"{len(submission.data):,} bytes; may have {LIMIT:,}")


def encoding(submission: Submission) -> Verdict:
    if not submission.data.isascii():
        at = next(i for i, byte in enumerate(submission.data) if byte > 127)
        return Verdict(False, f"byte {at} is {submission.data[at]:#x}; must be ASCII, which is UTF-8 too")
    if any(byte < 32 and byte != 10 for byte in submission.data):
        return Verdict(False, "has control characters")
    return Verdict(True, "ASCII")


def directives(submission: Submission) -> Verdict:
    """The competition reads directives up to the first line that is not a comment."""
    found = {}
    for line in submission.text.splitlines():
        if not line.startswith(("#", "//")):
            break
        if line.startswith("#!POPCORN "):
            key, _, value = line.removeprefix("#!POPCORN ").partition(" ")
            found[key] = value
    wanted = {"leaderboard": submission.task, "gpu": "NVIDIA"}
    return Verdict(found == wanted, ", ".join(f"{key} {value}" for key, value in found.items()) or "none")


def blobs(submission: Submission) -> Verdict:
    """Binary data as text: long lines, long words, long lists of numbers."""
    for number, line in enumerate(submission.text.splitlines(), start=1):
        if len(line) > LONGEST_LINE:
            return Verdict(False, f"line {number} has {len(line)} characters; may have {LONGEST_LINE}")
        if found := re.search(rf"[\w+/=\\-]{{{LONGEST_WORD + 1},}}", line):
            return Verdict(False, f"line {number} has a word of {len(found[0])} characters; may have {LONGEST_WORD}")
    number = r"[-+]?(?:0x[0-9a-fA-F]+|\d[\d.e]*)"
    if found := re.search(rf"(?:{number}\s*,\s*){{{MAX_NUMBERS},}}", submission.text):
        return Verdict(False, f"more than {MAX_NUMBERS} numbers in a row: {found[0][:40]}...")
    return Verdict(True, "no long lines, words or lists of numbers")


def kernelguard(submission: Submission) -> Verdict:
    """The competition's static checker, called like its bot does."""
    if importlib.util.find_spec("kernelguard") is None:
        return Verdict(None, f"is not installed: pip install kernelguard=={KERNELGUARD}")
    version = importlib.metadata.version("kernelguard")
    command = [sys.executable, "-m", "kernelguard", "--api-mode"]
    done = subprocess.run(command, input=submission.data, capture_output=True)
    try:
        answer = json.loads(done.stdout)
        rejected, kind = answer["should_filter"], answer["classification"]
    except (ValueError, KeyError, TypeError):
        return Verdict(False, f"{version} gave no answer: {last_line(done.stderr.decode(errors='replace'))}")
    patterns = [pattern.get("pattern", "?") for pattern in answer.get("matched_patterns", [])]
    seen = ", ".join(filter(None, [answer.get("filter_reason"), *patterns]))
    return Verdict(not rejected and kind == "valid", f"{version}: {kind}{f' ({seen})' if seen else ''}")


# --- rules that need a compiler and a GPU ---------------------------------------------------------------------------


def find_nvcc() -> Path | None:
    """nvcc in torch's search order, then in NVIDIA's wheels."""
    homes = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    on_path = shutil.which("nvcc")
    homes += [Path(on_path).parent.parent] if on_path else []
    homes += [Path(entry, "nvidia", "cu13") for entry in sys.path]
    return next((home / "bin/nvcc" for home in homes if os.access(home / "bin/nvcc", os.X_OK)), None)


def nvcc(submission: Submission) -> Verdict:
    """Compiles the kernel for a B200 without torch, and checks that it uses no local memory."""
    compiler = find_nvcc()
    if compiler is None:
        return Verdict(None, "no nvcc was found; install the CUDA toolkit, 12.9 or later")
    if not shutil.which("g++"):
        return Verdict(None, "nvcc needs g++, which was not found")
    source = submission.strings().get("KERNEL")
    if source is None:
        return Verdict(False, "no string is named KERNEL")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cu")
        path.write_text(source)
        options = ["-std=c++17", "-O3", "-cubin", "-arch=sm_100a", "--resource-usage"]
        done = subprocess.run([compiler, *options, path, "-o", path.with_suffix(".cubin")], capture_output=True)
    said = (done.stdout + done.stderr).decode(errors="replace")
    if done.returncode != 0:
        errors = [line for line in said.splitlines() if "error" in line]
        return Verdict(False, (errors or [last_line(said)])[0].replace(f"{folder}/", ""))
    frames = [sum(map(int, sizes)) for sizes in re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", said)]
    if not frames:
        return Verdict(False, f"no kernel was compiled: {last_line(said)}")
    if any(frames):
        return Verdict(False, f"{sum(map(bool, frames))} of {len(frames)} kernels use local memory")
    return Verdict(True, f"{len(frames)} kernels for sm_100a, none of which uses local memory")


def harness(submission: Submission) -> Verdict:
    """Imports and calls the file like the competition, on the task's first test."""
    compiler = find_nvcc()
    if compiler is None:
        return Verdict(None, "no nvcc was found; the file compiles its kernel with it")
    if not shutil.which("g++"):
        return Verdict(None, "needs g++, which was not found")
    return Verdict(*execute.run(submission.path, submission.task, compiler))


# name: (rule, whether it needs a file that parses)
RULES: dict[str, tuple[Callable[[Submission], Verdict], bool]] = {
    "python": (python, False),
    "word": (word, False),
    "size": (size, False),
    "encoding": (encoding, False),
    "directives": (directives, False),
    "blobs": (blobs, False),
    "kernelguard": (kernelguard, True),
    "nvcc": (nvcc, True),
    "run": (harness, True),
}
