"""`python tools/contest submission`: the file is the checkout's sources and nothing else, --check finds what the
competition rejects, and the file, compiled by torch's load_inline and called like the harness does, gives right
results."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import emulate
import pytest
from conftest import in_full, one_in
from contest import dual, execute, rules, submission
from contest.__main__ import main
from contest.amalgamate import amalgamate, left_out, release_lines, without_guard
from paths import CSRC, ROOT, TOOLS

import nvfp4
from nvfp4 import __version__
from nvfp4.cli.show import CommandError

TASKS = list(submission.TASKS)
NAMES = ("BINDING", "KERNEL")
GEMM, DUAL = ("nvfp4_gemm", dual.NAME)
TEXTS = [(task, i) for task in (GEMM, DUAL) for i in range(2)]  # and which of its source texts
MARKER = re.compile(r"/\* ==== (csrc/\S+) ==== \*/\n")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("file") / "submission.py"
    path.write_text(submission.submission("nvfp4_gemm"))
    return path


def embedded(text: str) -> list[str]:
    """The two source texts in a submission."""
    return [text.partition(f"{name} = r'''\n")[2].partition("'''\n")[0] for name in NAMES]


# --- the text is the package's sources ------------------------------------------------------------------------------


def tokens(source: Path, folder: Path) -> str:
    """A file preprocessed by g++ with our own includes; system headers, and files that are left out, are empty files in
    the folder."""
    texts = [amalgamate(name) for task in (GEMM, DUAL) for name in submission.TASKS[task].files]
    system = re.findall(r"^#include <(.+)>", "".join(texts), re.M)
    for name in [*system, *left_out()]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    command = ["g++", "-E", "-P", "-nostdinc", "-nostdinc++", f"-I{folder}", f"-I{CSRC}", "-x", "c++", source]
    return " ".join(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(("task", "i"), TEXTS)
def test_the_text_is_the_sources_to_the_compiler(task: str, i: int, tmp_path: Path) -> None:
    if not shutil.which("g++"):
        pytest.skip("needs g++")
    text = embedded(submission.submission(task))[i]
    source = CSRC / submission.TASKS[task].files[i]
    (tmp_path / "text").write_text(text)
    ours, theirs = (tokens(path, tmp_path / "system") for path in (tmp_path / "text", source))
    assert ours == theirs and len(ours) > 1000
    (tmp_path / "text").write_text(text + "int more;\n")
    assert tokens(tmp_path / "text", tmp_path / "system") != theirs


@pytest.mark.parametrize(("task", "i"), TEXTS)
def test_the_text_is_the_sources_to_a_reader(task: str, i: int) -> None:
    """Every line of every file in order, comments too, except includes, guards and code of debug builds."""
    _, *parts = MARKER.split(embedded(submission.submission(task))[i])
    found = dict(zip(parts[::2], parts[1::2]))
    assert len(found) == len(parts) // 2, "each file once"
    command = ["g++", "-MM", "-MG", "-x", "c++", "-isystem/", f"-I{CSRC}", CSRC / submission.TASKS[task].files[i]]
    wanted = subprocess.run(command, capture_output=True, text=True, check=True).stdout.replace("\\\n", " ").split()
    paths = {Path(path).resolve() for path in wanted[1:] if Path(path).is_absolute()}
    absent = {CSRC / "kernels/sm100/cp_async_producer.cuh", CSRC / "kernels/common/cp_async.cuh"}
    absent = absent if (task, NAMES[i]) == (GEMM, "KERNEL") else set()
    assert absent < paths or not absent
    assert {str(path.relative_to(ROOT)) for path in paths - absent} == set(found)
    for path, text in found.items():
        lines, other = iter(text.strip().split("\n")), False
        line = next(lines)
        for original in (ROOT / path).read_text().strip().split("\n"):
            if line == original:
                line = next(lines, None)
                continue
            other = other or original in ("#ifdef NVFP4_DUMP", "#ifdef NVFP4_WATCHDOG")
            joins = re.match(r'#include "|#ifndef NVFP4_\w+H$|#define NVFP4_\w+H$|#endif$|#else$|$', original)
            assert joins or other, f"{path}: not in the file: {original}"
            other = other and original != "#endif"
        assert line is None, f"{path}: not in the source: {line}"


def test_no_debug_code(file: Path) -> None:
    assert not re.search(r"sm100_dump\b|watchdog_wait|^\s*#.*NVFP4_(DUMP|WATCHDOG)", file.read_text(), re.M)


BLOCKS = """\
first
#ifdef NVFP4_DUMP
debug
#if OTHER
debug too
#else
debug as well
#endif
#else
release
#ifdef OTHER
other
#else
not other
#endif
#endif
#ifndef NVFP4_DUMP
release too
#endif
#ifdef NVFP4_WATCHDOG
debug again
#endif
last"""
RELEASE = "first\nrelease\n#ifdef OTHER\nother\n#else\nnot other\n#endif\nrelease too\nlast"


def test_blocks_of_other_builds() -> None:
    assert release_lines(BLOCKS.splitlines()) == RELEASE.splitlines()
    with pytest.raises(ValueError, match="#elif"):
        release_lines(["#ifdef NVFP4_DUMP", "#elif OTHER", "#endif"])


def test_guards() -> None:
    guard = "/* what */\n#ifndef NVFP4_X_CUH\n#define NVFP4_X_CUH\n\n#if A\n#endif\nint x;\n\n#endif\n"
    assert " ".join(without_guard(guard).split()) == "/* what */ #if A #endif int x;"
    assert without_guard("int x;\n#if A\n#endif") == "int x;\n#if A\n#endif"


def test_files_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "contest").mkdir()
    (tmp_path / "contest/changes.txt").write_text("# comment\n\nwithout b.h\n")
    (tmp_path / "a.cu").write_text('#include "b.h"\n#include "c.h"\nint a;\n')
    (tmp_path / "b.h").write_text('#include "d.h"\nint b;\n')
    (tmp_path / "c.h").write_text('#include "b.h"\nint c;\n')
    assert amalgamate("a.cu", tmp_path) == "/* ==== csrc/c.h ==== */\nint c;\n\n/* ==== csrc/a.cu ==== */\nint a;\n"
    (tmp_path / "contest/changes.txt").write_text("rename old new\n")
    with pytest.raises(ValueError, match="unknown: rename old new"):
        amalgamate("a.cu", tmp_path)


def test_launches_by_names_alone(file: Path) -> None:
    """A launch attribute that the competition's rules refuse by its name is not there by its number either."""
    text = embedded(file.read_text())[1]
    assert re.findall(r"\bcudaLaunchAttribute\w+", text) == ["cudaLaunchAttributeClusterDimension"]
    assert not re.search(r"\(cudaLaunchAttributeID\)|cudaLaunchAttributeID\(|memcpy\(&\w+(\[\w\])?\.val", text)


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "csrc", tmp_path / "csrc")
    (tmp_path / "csrc/kernels/common/tma.cuh").unlink()
    with pytest.raises(CommandError, match=r"a source file of the package cannot be read.*tma\.cuh"):
        amalgamate("contest/launch.cu", tmp_path / "csrc")


def setup_py(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "setup.py", "-q", *arguments]
    environment = os.environ | {"NVFP4_CUDA": "0"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ignore = shutil.ignore_patterns(".git", "build", "dist", "*.so", "*.egg-info", "__pycache__", ".*cache", ".venv*")
    return Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("copy") / "nvfp4", symlinks=True, ignore=ignore))


@pytest.fixture(scope="module", params=["checkout", "source distribution"])
def tree(request: pytest.FixtureRequest, checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source tree."""
    pytest.importorskip("setuptools", minversion="77")
    if request.param == "checkout":
        return checkout
    folder = tmp_path_factory.mktemp("sdist")
    setup_py(checkout, "sdist", "--dist-dir", str(folder))
    (archive,) = folder.iterdir()
    shutil.unpack_archive(archive, folder)
    return archive.parent / archive.name.removesuffix(".tar.gz")


def test_a_source_tree_writes_the_same_file(tree: Path, file: Path, tmp_path: Path) -> None:
    """A copy of the checkout and a source distribution, each with the package that this test has; from anywhere."""
    command = [sys.executable, tree / "tools/contest", "submission"]
    environment = os.environ | {"PYTHONPATH": str(Path(nvfp4.__file__).resolve().parents[1])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert embedded((tmp_path / "submission.py").read_text()) == embedded(file.read_text())
    hidden = tree / "csrc/kernels/common/tma.cuh"
    away = hidden.rename(tmp_path / "tma.cuh")
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    shutil.move(away, hidden)
    assert done.returncode == 2 and f"'{hidden}'" in done.stderr


def test_a_wheel_has_no_sources(tree: Path, tmp_path: Path) -> None:
    """Python, stubs and the two tasks, none of them a link; nothing of the laboratory or the competition."""
    setup_py(tree, "build_py", "--build-lib", str(tmp_path))
    paths = [path for path in (tmp_path / "nvfp4").rglob("*") if not path.is_dir()]
    names = {str(path.relative_to(tmp_path / "nvfp4")) for path in paths}
    assert not any(path.is_symlink() for path in paths)
    assert {"reference.py", "task.yml", "task_gemv.yml", "py.typed", "_C.pyi", "cli/check.py"} <= names
    assert {Path(name).suffix for name in names - {"py.typed"}} == {".py", ".pyi", ".yml"}
    folders = {str(path.parent.relative_to(ROOT / "nvfp4")) for path in (ROOT / "nvfp4").rglob("*.py")}
    assert {str(Path(name).parent) for name in names} == folders
    tools = {path.stem for name in ("lab", "contest") for path in (TOOLS / name).glob("*.py")}
    assert not {Path(name).stem for name in names} & (tools - {"__init__", "__main__"})


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
def test_is_the_same_every_time(task: str, tmp_path: Path) -> None:
    files = []
    for i in range(2):
        folder = tmp_path / str(i)
        folder.mkdir()
        environment = os.environ | {"PYTHONHASHSEED": str(i), "TZ": f"UTC{i}"}
        command = [sys.executable, TOOLS / "contest", "submission", "--task", task]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.startswith(f"submission.py: {os.path.getsize(folder / 'submission.py'):,} bytes for {task}")
        files.append((folder / "submission.py").read_bytes())
    assert files[0] == files[1] == submission.submission(task).encode()


def test_gemm_and_gemv_share_the_kernel() -> None:
    one, other, dual_gemm = (submission.submission(task) for task in TASKS)
    assert embedded(one) == embedded(other) and one != other
    assert not set(embedded(one)) & set(embedded(dual_gemm))


def test_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submission", "-o", "-"]) == 0
    assert capsys.readouterr().out == submission.submission("nvfp4_gemm")


def test_argument_errors(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["submission", "-o", str(tmp_path)]) == 2
    assert "Is a directory" in capsys.readouterr().err
    assert main(["submission", "-o", "-", "--check"]) == 2
    assert "--check: checks a file" in capsys.readouterr().err
    assert main(["submission", "-o", "-", "--json"]) == 2
    assert "--json: reports on a file" in capsys.readouterr().err


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "submission.py"
    command = ["submission", "-o", str(path), "--task", "nvfp4_gemv", "--json"]
    assert main(command) == 0
    size = len(submission.submission("nvfp4_gemv"))
    wanted = {"file": str(path), "bytes": size, "task": "nvfp4_gemv"}
    assert json.loads(capsys.readouterr().out) == wanted | {"rules": []}
    few = {name: rules.RULES[name] for name in ("python", "size", "nvcc")}
    monkeypatch.setattr(rules, "RULES", few)
    monkeypatch.setattr(rules, "find_nvcc", lambda: None)
    assert main([*command, "--check"]) == 0
    answer = json.loads(capsys.readouterr().out)
    found = [(rule["name"], rule["verdict"]) for rule in answer["rules"]]
    assert found == [("python", "pass"), ("size", "pass"), ("nvcc", "skipped")]
    assert answer["rules"][2]["why"].startswith("no nvcc was found")
    assert answer == wanted | {"rules": answer["rules"]}
    monkeypatch.setattr(rules, "LIMIT", size - 1)
    assert main([*command, "--check"]) == 1
    assert json.loads(capsys.readouterr().out)["rules"][1]["verdict"] == "FAIL"


def test_commit_is_named_if_the_sources_are_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not shutil.which("git"):
        pytest.skip("needs git")
    checkout = tmp_path / "checkout"
    (checkout / "csrc").mkdir(parents=True)
    (checkout / "csrc/file.h").write_text("one\n")
    monkeypatch.setattr(submission, "SOURCES", checkout / "csrc")
    assert submission.provenance() == __version__

    def git(*arguments: str, folder: Path = checkout) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e"]
        done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "-q")
    assert submission.provenance() == __version__  # no commit yet
    git("add", ".")
    git("commit", "-q", "-m", "m")
    assert submission.provenance() == f"{__version__}, commit {git('rev-parse', 'HEAD')}"
    (checkout / "submission.py").write_text("untracked\n")
    assert "commit" in submission.provenance()
    (checkout / "csrc/file.h").write_text("two\n")
    assert submission.provenance() == __version__
    git("checkout", "-q", ".")
    # A source distribution unpacked inside another repository.
    unpacked = checkout / "nvfp4-0.0/csrc"
    unpacked.mkdir(parents=True)
    monkeypatch.setattr(submission, "SOURCES", unpacked)
    assert submission.provenance() == __version__
    monkeypatch.setattr(submission, "SOURCES", checkout / "csrc")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert submission.provenance() == __version__


# --- the rules that need no compiler --------------------------------------------------------------------------------


def verdicts(path: Path, task: str = "nvfp4_gemm", skip: tuple[str, ...] = ("nvcc", "run")) -> dict[str, str]:
    """The verdict of each rule, by name."""
    few = {name: rule for name, rule in rules.RULES.items() if name not in skip}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "RULES", few)
        return {name: str(verdict) for name, verdict in rules.check(path, task)}


@pytest.mark.parametrize("commit", ["", ", commit " + "0123456789" * 4], ids=["version", "commit"])
@pytest.mark.parametrize("task", TASKS)
def test_keeps_the_rules(task: str, commit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "provenance", lambda: __version__ + commit)
    path = tmp_path / "submission.py"
    path.write_text(submission.submission(task))
    expected = dict.fromkeys(("python", "word", "size", "encoding", "directives", "blobs"), "pass")
    have_kernelguard = rules.importlib.util.find_spec("kernelguard") is not None
    assert verdicts(path, task) == expected | {"kernelguard": "pass" if have_kernelguard else "skipped"}


WORD = "s" + "tream"
REPLAY = """
KEPT = {}


def custom_kernel(data: input_t) -> output_t:
    key = data[0].data_ptr()
    if key in KEPT:
        return KEPT[key]
    KEPT[key] = compute(data)
    return KEPT[key]
"""
MUTATIONS = {
    "a bracket": ("python", "def custom_kernel(", "def custom_kernel(("),
    "the word in a comment": ("word", "# For g++", f"# up{WORD.upper()} of g++"),
    "the word in CUDA": ("word", "cudaLaunchConfig_t config_of(", f"cuda{WORD.title()}_t config_of("),
    "much": ("size", "import torch\n", "import torch\n" + "# more of the same\n" * 50_000),
    "an accent": ("encoding", "# For g++", "# F\u00fcr g++"),
    "a tab": ("encoding", "    gemm(a,", "\tgemm(a,"),
    "another board": ("directives", "leaderboard nvfp4_gemm", "leaderboard nvfp4_gemv"),
    "a directive too late": ("directives", "#!POPCORN gpu NVIDIA\n\n", "\n#!POPCORN gpu NVIDIA\n"),
    "a long line": ("blobs", "# For g++", "# " + "very " * 24 + "long"),
    "base64": ("blobs", "# For g++", "# " + "AbC4" * 20),
    "a table": ("blobs", "import torch\n", "import torch\nT = [\n" + "    1, 0x2, 3, 4, 5,\n" * 10 + "]\n"),
    "a kept result": ("kernelguard", "def custom_kernel(data: input_t) -> output_t:", "def compute(data):"),
    "torch's own product": (
        "kernelguard",
        "    gemm(a,",
        "    return torch._scaled_mm(a, b, sfa_permuted)\n    gemm(a,",
    ),
}


@pytest.mark.parametrize("what", MUTATIONS)
def test_a_broken_rule_fails(what: str, file: Path, tmp_path: Path) -> None:
    rule, there, instead = MUTATIONS[what]
    if rule == "kernelguard":
        pytest.importorskip("kernelguard")
    text = file.read_text()
    assert text.count(there) == 1
    path = tmp_path / "submission.py"
    path.write_text(text.replace(there, instead) + (REPLAY if what == "a kept result" else ""))
    assert verdicts(path)[rule] == "FAIL"


def test_a_file_that_does_not_parse_is_not_run(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "submission.py"
    path.write_text(file.read_text().replace("def custom_kernel(", "def custom_kernel(("))
    found = verdicts(path, skip=())
    assert found["python"] == "FAIL" and {found[name] for name in ("kernelguard", "nvcc", "run")} == {"skipped"}


def test_reports_what_is_missing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "find_nvcc", lambda: None)
    find = rules.importlib.util.find_spec
    monkeypatch.setattr(rules.importlib.util, "find_spec", lambda n: None if n == "kernelguard" else find(n))
    found = dict(rules.check(file, "nvfp4_gemm"))
    said = {name: (str(found[name]), found[name].why) for name in ("kernelguard", "nvcc", "run")}
    assert said["kernelguard"] == ("skipped", "is not installed: pip install kernelguard==0.3.2")
    assert said["nvcc"][0] == "skipped" and "no nvcc" in said["nvcc"][1]
    assert said["run"][0] == "skipped" and "no nvcc" in said["run"][1]


def test_reports_a_missing_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rules, "find_nvcc", lambda: Path("nvcc"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["submission", "-o", str(tmp_path / "submission.py"), "--check"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^nvcc +skipped +nvcc needs g\+\+, which was not found$", said, re.M), said
    assert re.search(r"^run +skipped +needs g\+\+, which was not found$", said, re.M), said


def test_reports_a_failing_compiler(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    if torch.version.cuda is not None:
        pytest.skip("needs a torch for CPUs")
    pytest.importorskip("ninja")
    (tmp_path / "g++").write_text("#!/bin/sh\necho 'first' >&2\necho 'no room' >&2\nexit 1\n")
    (tmp_path / "g++").chmod(0o755)
    (tmp_path / execute.RUNTIME).touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("NVFP4_LIBCUDA", str(tmp_path / "libcuda.so.1"))
    assert execute.run(file, "nvfp4_gemm", Path("nvcc")) == (False, "g++ cannot link a library: no room")


@pytest.mark.parametrize("missing", ["torch", "ninja"])
def test_reports_a_missing_package(missing: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = execute.importlib.util.find_spec
    monkeypatch.setattr(execute.importlib.util, "find_spec", lambda n: None if n == missing else find(n))
    assert execute.run(file, "nvfp4_gemm", Path("nvcc")) == (None, f"is not installed: pip install {missing}")


def test_reports_why_there_is_no_gpu(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "SOURCES", tmp_path / "csrc")
    monkeypatch.setenv("NVFP4_LIBCUDA", str(tmp_path / "libcuda.so.1"))
    driver, why_not = execute.emulator()
    assert driver is None and str(tmp_path / "emulator/emulate.py") in why_not


# --- the rules that need a compiler ---------------------------------------------------------------------------------


def nvcc() -> Path:
    found = rules.find_nvcc()
    if found is None or not shutil.which("g++"):
        lacks("nvcc and g++")
    return found


def lacks(what: str) -> None:
    """Skips the test; fails in .ci/run, which installs everything, so that each rule is tested there."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(f"needs {what}")


def judged_by_nvcc(text: str, tmp_path: Path) -> rules.Verdict:
    path = tmp_path / "submission.py"
    path.write_text(text)
    return rules.nvcc(rules.Submission(path, "nvfp4_gemm", path.read_bytes()))


SPILLS = 'extern "C" __global__ void f(int *p) { int a[99]; for (int i = 0; i < 99; i++) a[p[i]] = i; p[0] = a[p[1]]; }'


def test_nvcc_errors_are_reported(tmp_path: Path) -> None:
    nvcc()
    wrong = judged_by_nvcc("KERNEL = '''\nint f() { return nothing; }\n'''\n", tmp_path)
    assert str(wrong) == "FAIL" and wrong.why.startswith("kernel.cu(2): error: ") and "nothing" in wrong.why
    local = judged_by_nvcc(f"KERNEL = '''{SPILLS}'''\n", tmp_path)
    assert str(local) == "FAIL" and local.why == "1 of 1 kernels use local memory"
    assert str(judged_by_nvcc("OTHER = ''\n", tmp_path)) == "FAIL"
    assert str(judged_by_nvcc("KERNEL = 'int f();'\n", tmp_path)) == "FAIL"


@pytest.fixture(scope="module")
def extensions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """torch's build cache, shared by this module; and the emulated GPU, built even if the tested package is
    installed."""
    import torch

    if torch.version.cuda is not None:
        pytest.skip("needs a torch for CPUs")
    if execute.importlib.util.find_spec("ninja") is None:
        lacks("ninja")
    nvcc()
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("extensions")
        patch.setenv("NVFP4_LIBCUDA", str(emulate.build()))
        patch.setenv("TORCH_EXTENSIONS_DIR", str(folder))
        yield folder


@in_full
def test_check_passes_every_rule(extensions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Slow: torch compiles the file."""
    path = tmp_path / "submission.py"
    status = main(["submission", "-o", str(path), "--check"])
    said = capsys.readouterr().out
    assert status == 0, said
    assert re.search(r"^run +pass .*128x256x256x1: every bit is equal, on an emulated B200", said, re.M), said
    rows = re.findall(r"X\(sm100_gemm_\w+, \d, \d+, \d, \d, 0,", (CSRC / "kernels/sm100/config.h").read_text())
    assert re.search(rf"^nvcc +pass +{len(rows)} kernels for sm_100a, none", said, re.M), said
    may_lack = not os.environ.get("CI") or sys.version_info < (3, 11)  # for which there is no kernelguard
    skips = re.findall(r"^(\w+) +skipped", said, re.M)
    assert "0 failed" in said and (not skips or (may_lack and skips == ["kernelguard"])), said


@in_full  # 30 s of compiling the same kernels; the file's text is tested in every run
def test_gemv_too(extensions: Path, tmp_path: Path) -> None:
    path = tmp_path / "submission.py"
    path.write_text(submission.submission("nvfp4_gemv"))
    passed, why = execute.run(path, "nvfp4_gemv", nvcc())
    assert passed and "128x1x256x1: every bit is equal" in why


# One CTA and pairs; M, N, K of no whole tile; either order in memory of b1 and b2, and of their scales.
DUAL_CALLS = """
import os, sys

sys.path.insert(0, sys.argv[1])
import torch
from torch.utils import cpp_extension

cpp_extension.CUDA_HOME = os.environ["CUDA_HOME"]
from contest import dual, execute
from submission import custom_kernel


def swapped(data, which):
    \"\"\"Puts these two tensors into one allocation, the second in front.\"\"\"
    data = list(data)
    first, second = (data[i] for i in which)
    size = first.untyped_storage().nbytes()
    both = torch.empty(2 * size, dtype=torch.uint8)
    for i, at in zip(which, (size, 0)):
        own = both[at : at + size]
        own.copy_(torch.empty(0, dtype=torch.uint8).set_(data[i].untyped_storage()))
        data[i] = own.view(data[i].dtype).as_strided(data[i].shape, data[i].stride(), at // data[i].element_size())
    return tuple(data)


for m, n, k in ((300, 160, 320), (77, 130, 64), (500, 96, 576)):
    for order in ((), (1, 2), (7, 8), (1, 2, 7, 8)):
        data = dual.generate_input(m, n, k, 1, m + len(order), exact=True)
        for which in (order[:2], order[2:]):
            data = swapped(data, which) if which else data
        output = custom_kernel(data)
        execute.finish()
        passed, why = dual.check_implementation(data, output, exact=True)
        assert passed, (m, n, k, order, why)
data = dual.generate_input(128, 64, 128, 1, 0)
for i, said in ((0, "a: is"), (2, "b2: is"), (8, "sfb2_permuted: is"), (9, "c: is")):
    wrong = list(data)
    wrong[i] = data[i][..., :0] if i == 9 else data[i][:1]
    try:
        custom_kernel(tuple(wrong))
    except RuntimeError as error:
        assert said in str(error), error
    else:
        raise AssertionError(i)
"""


@in_full  # torch compiles the file, and an emulated product of the competition's sizes takes minutes
def test_dual(extensions: Path, tmp_path: Path) -> None:
    path = tmp_path / "submission.py"
    path.write_text(submission.submission(dual.NAME))
    passed, why = execute.run(path, dual.NAME, nvcc())
    assert passed and "within 0.001 + 0.001 * |expected|; every bit is equal" in why
    (tmp_path / "task.py").write_text(execute.TASK)
    driver, why_not = execute.emulator()
    assert driver, why_not
    with execute.emulated(driver, nvcc()) as settings:
        settings["PYTHONPATH"] = os.pathsep.join([str(TOOLS), *filter(None, [settings.get("PYTHONPATH")])])
        command = [sys.executable, "-c", DUAL_CALLS, tmp_path]
        done = subprocess.run(command, env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_dual_is_as_torch_computes_it() -> None:
    """The definition of the task: silu of torch, products in fp32."""
    import torch

    from nvfp4 import reference

    data = dual.generate_input(**dual.load_task()["tests"][2])
    a, *b = (
        reference.operand(*(reference.as_bytes(x).permute(2, 0, 1) for x in data[i : i + 4 : 3]), "linear")[0]
        for i in range(3)
    )
    gate, up = (a @ x.T for x in b)
    wanted = (torch.nn.functional.silu(gate) * up).half()[..., None]
    assert dual.check_implementation(data, wanted)[0]
    wrong = wanted.clone()
    wrong[3, 5] += 1
    assert "1 of" in dual.check_implementation(data, wrong)[1]
    assert (data[3].float() < 1.01).all() and data[3].float().std() > 0.2


def test_other_calls(extensions: Path, file: Path, tmp_path: Path) -> None:
    """Products of other shapes, of every kernel but the largest, and calls that must raise errors."""
    shutil.copy(file, tmp_path / "submission.py")
    (tmp_path / "task.py").write_text(execute.TASK)
    script = Path(__file__).with_name("submission_calls.py")
    driver, why_not = execute.emulator()
    assert driver, why_not
    with execute.emulated(driver, nvcc()) as settings:
        command = [sys.executable, script, tmp_path]
        done = subprocess.run(command, env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["products"] >= 15 and answer["errors"] >= 19


def test_host_memory_that_the_gpu_cannot_read_is_rejected(extensions: Path, file: Path) -> None:
    driver, _ = execute.emulator()
    with execute.emulated(driver, nvcc()) as settings:
        settings["EMULATE_HOST_MEMORY"] = "0"
        passed, why = execute.in_process(file, "nvfp4_gemm", "here", settings)
    assert passed is False and "the tensors are in host memory, which the GPU cannot read" in why


FORGED = """
import json, os, sys
print(json.dumps({"passed": True, "why": "every bit is equal", "build_s": 1}), flush=True)
os._exit(STATUS)
"""


@pytest.mark.parametrize("status", [0, 3])
def test_a_forged_verdict_fails(status: int, tmp_path: Path) -> None:
    """A file without a kernel that prints a verdict and exits when it is imported."""
    path = tmp_path / "submission.py"
    path.write_text(FORGED.replace("STATUS", str(status)))
    settings = os.environ | {"CUDA_HOME": str(tmp_path)}
    passed, why = execute.in_process(path, "nvfp4_gemm", "here", settings)
    assert passed is False
    assert why.startswith("ended with status 3: " if status else "it ended the process before there were results")


CALL = "gemm(a, b, sfa_permuted, sfb_permuted, c)"
WRONG_CALLS = {
    "the first result again": (
        f"    {CALL}\n    return c\n",
        f"    if KEPT:\n        return c.copy_(KEPT[0])\n    {CALL}\n    KEPT.append(c)\n    return c\n\n\nKEPT = []\n",
        "of 32768 values are wrong",
    ),
    "a copy": ("    return c\n", "    return c.clone()\n", "what was returned is not c"),
    "a bad end": ("import torch\n", "import atexit, os, torch\natexit.register(os._exit, 3)\n", "ended with status 3"),
    "nothing computed": (f"    {CALL}\n", "", "32768 of 32768 values are wrong"),
    "an argument for another": (CALL, CALL.replace("a, b", "b, a"), "a: is [256, 128, 1]; must be [128, 128, 1]"),
    "mma_a scales for mma_b, in the kernel": (
        "        sfb = sfa + 4 * SM100_STAGE_ATOMS;\n        uint64_t mma_a",
        "        sfb = sfa;\n        uint64_t mma_a",
        "values are wrong",
    ),
}
*HOST, IN_KERNEL = WRONG_CALLS  # the last one takes 15 s to compile


@pytest.mark.parametrize("what", [*one_in(2, HOST), pytest.param(IN_KERNEL, marks=in_full)])
def test_a_wrong_result_fails(what: str, extensions: Path, file: Path, tmp_path: Path) -> None:
    there, instead, said = WRONG_CALLS[what]
    text = file.read_text()
    assert text.count(there) == 1
    path = tmp_path / "submission.py"
    path.write_text(text.replace(there, instead))
    passed, why = execute.run(path, "nvfp4_gemm", nvcc())
    assert passed is False and said in why
