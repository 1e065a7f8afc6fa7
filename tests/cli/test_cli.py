"""The commands as a user runs them: output, exit status and error messages."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from backend_table import ON_GPU
from paths import ROOT
from python_server import python

import nvfp4
from nvfp4 import __main__, reference
from nvfp4.__main__ import main
from nvfp4.bench import shapes
from nvfp4.cli import check, commands, machine, show

README = ROOT / "README.md"
WITHOUT = """
import sys
assert {name!r} not in sys.modules
class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {name!r}:
            raise ModuleNotFoundError("No module named " + name)
sys.meta_path.insert(0, NotInstalled())
from nvfp4.__main__ import main
sys.exit(main({arguments!r}))
"""
UNUSABLE_BACKENDS = """
import sys
from nvfp4 import _C
from nvfp4.__main__ import main
for command in ("check", "bench"):
    for backend in [row["name"] for row in _C.backends() if row["min_capability"]]:
        print(main([command, "--backend", backend]))
        print("of", command, backend, file=sys.stderr)
"""


def nvfp4_command(*arguments: str, without: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs `python -m nvfp4 ...` in a process of its own, without one package if asked."""
    environment = {**os.environ, **variables}
    program = ["-m", "nvfp4", *arguments]
    if without is not None:
        program = ["-c", WITHOUT.format(name=without, arguments=list(arguments))]
    if without in ("numpy", "torch"):
        return subprocess.run([sys.executable, *program], env=environment, capture_output=True, text=True, timeout=600)
    return python(*program, env=environment)


@pytest.fixture
def in_process(capsys: pytest.CaptureFixture[str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The same in this process, without the two seconds in which another one would import torch."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        try:
            status = main(arguments)
        except SystemExit as left:
            status = left.code
        return subprocess.CompletedProcess(arguments, status, *capsys.readouterr())

    return run


def says(done: subprocess.CompletedProcess[str], status: int, *words: str) -> None:
    """The command ended with this status and an error message with these words."""
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr


# --- check ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("forced", [[], ["--backend", "cpu"]])
def test_check_passes_and_says_so(forced: list[str]) -> None:
    done = nvfp4_command("check", "--only", "1", "--seed", "7", "--json", *forced)
    assert done.returncode == 0, done.stderr
    assert "[1/1] check 128x256x256" in done.stderr
    answer = json.loads(done.stdout)
    (test,) = answer["tests"]
    assert answer["passed"] == 1 and test["passed"] and test["exact"] and test["repeats"]
    assert test["seed"] == 7 and test["max_error"] == 0 and test["seconds"] > 0
    assert test["shape"] == {"m": 128, "n": 256, "k": 256, "l": 1}


def test_check_prints_a_table() -> None:
    done = nvfp4_command("check", "--only", "9")
    assert done.returncode == 0, done.stderr
    title, header, _, row, total = done.stdout.splitlines()
    assert " ".join(header.split()) == "test M x N x K x L kernel max error exact time verdict"
    assert row.split()[:2] == ["9", "512x4096x512x1"] and row.endswith("pass")
    assert total == "1 of 1 tests passed"


def test_check_runs_all_ten(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen = []
    monkeypatch.setattr(check, "run_test", lambda test, *_: seen.append(test) or {"passed": len(seen) != 4})
    assert main(["check", "--json", "--backend", "cpu"]) == 1
    assert len(seen) == 10 and json.loads(capsys.readouterr().out)["passed"] == 9


def test_check_of_the_gemv_task(capsys: pytest.CaptureFixture[str]) -> None:
    """Test 1 on this machine, forced and by rule."""
    for forced in ([], ["--backend", "cpu"]):
        assert main(["check", "--task", "nvfp4_gemv", "--only", "1", "--json", *forced]) == 0
        answer = json.loads(capsys.readouterr().out)
        (test,) = answer["tests"]
        assert answer["task"] == "nvfp4_gemv" and test["shape"] == {"m": 128, "n": 1, "k": 256, "l": 1}
        assert test["passed"] and test["exact"] and test["repeats"]


def test_check_knows_the_tasks(in_process) -> None:
    assert tuple(reference.TASKS) == check.TASKS
    says(in_process("check", "--task", "nvfp4_gemx"), 2, "--task", "nvfp4_gemm", "nvfp4_gemv")


def one_wrong(c: torch.Tensor) -> None:
    c[5, 7] += 16


def one_unwritten(c: torch.Tensor) -> None:
    c[-1, -1] = float("nan")


def one_bit(c: torch.Tensor) -> None:
    """Less than 1e-3 of the value: right for the competition, not for us."""
    value = c[0, 0].view(torch.int16)
    value += 1


@pytest.mark.parametrize(
    ("spoil", "message"),
    [(one_wrong, "[5, 7, 0]"), (one_unwritten, "1 of 32768 values are wrong"), (one_bit, "within 0.001")],
)
def test_check_sees_a_wrong_kernel(spoil, message, monkeypatch, capsys) -> None:
    def wrong(a, b, sfa, sfb, c):
        nvfp4.custom_kernel(a, b, sfa, sfb, c)
        spoil(c)
        return c

    monkeypatch.setattr(check, "custom_kernel", wrong)
    assert main(["check", "--only", "1"]) == 1
    out = capsys.readouterr().out
    assert "FAIL" in out and message in out and "0 of 1 tests passed" in out


def test_check_sees_bits_that_change(monkeypatch, capsys) -> None:
    calls = []

    def unsteady(a, b, sfa, sfb, c):
        calls.append(nvfp4.custom_kernel(a, b, sfa, sfb, c))
        if len(calls) == 2:
            one_bit(c)
        return c

    monkeypatch.setattr(check, "custom_kernel", unsteady)
    assert main(["check", "--only", "1"]) == 1
    assert "a second call gave other bits" in capsys.readouterr().out


def test_check_poisons_the_output(monkeypatch) -> None:
    """A kernel that writes nothing at all must fail, whatever an earlier call left in memory."""
    monkeypatch.setattr(check, "custom_kernel", lambda a, b, sfa, sfb, c: c)
    assert main(["check", "--only", "1", "--json"]) == 1


# --- errors: one message, exit status 2 ------------------------------------------------------------------------------


def test_check_rejects_a_test_number(in_process) -> None:
    says(nvfp4_command("check", "--only", "0"), 2, "--only 0", "tests 1 to 10")
    for number in ("0", "11", "-1"):
        says(in_process("check", "--only", number), 2, f"--only {number}", "tests 1 to 10")


@pytest.mark.parametrize("command", ["check", "bench"])
def test_an_unknown_backend_is_rejected(command: str, in_process) -> None:
    says(in_process(command, "--backend", "abacus"), 2, f"nvfp4 {command}:", "backend", "abacus")


def test_a_gpu_backend_without_a_driver_is_rejected() -> None:
    environment = {**os.environ, "NVFP4_LIBCUDA": "/nowhere/libcuda.so.1"}
    done = python("-c", UNUSABLE_BACKENDS, env=environment)
    count = 2 * len(ON_GPU)
    assert count >= 6 and done.stdout.split() == ["2"] * count, done.stderr
    *messages, rest = re.split(r"of \w+ sm\d+\n", done.stderr)
    assert len(messages) == count and not rest
    assert all("/nowhere/libcuda.so.1" in message and "Traceback" not in message for message in messages)


@pytest.mark.parametrize("command", [["check", "--only", "1", "--backend", "cpu"], ["info"]])
def test_without_numpy_nothing_is_said_of_it(command: list[str]) -> None:
    """torch warns when it is imported where NumPy is missing."""
    done = nvfp4_command(*command, without="numpy")
    assert done.returncode == 0, done.stderr
    assert "NumPy" not in done.stderr and "Warning" not in done.stderr


@pytest.mark.parametrize("command", ["check", "bench", "inspect ."])
def test_without_torch_a_message_says_how_to_install_it(command: str) -> None:
    says(nvfp4_command(*command.split(), without="torch"), 2, "torch is needed", "pip install torch")


def test_info_rejects_a_backend_without_a_shape(in_process) -> None:
    says(in_process("info", "--backend", "cpu"), 2, "--backend", "--shape")
    says(in_process("info", "--a-dtype", "float16"), 2, "--a-dtype", "--shape")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["info", "--shape", "1,2"], "argument --shape: '1,2': a shape is MxNxK[xL] or M,N,K[,L]"),
        (["info", "--shape", "1x2x16,1x2x16"], "only one shape"),
        (["bench", "--shapes", "1x2x40"], "multiple of 16"),
        (["bench", "--shapes", "1x2"], "argument --shapes: '1x2': a shape is MxNxK or M,N,K"),
        (["bench", "--shapes", "1,2,16,1"], "MxNxK or M,N,K"),
        (["bench", "--shapes", "1x2x16,2,2,16"], "MxNxK or M,N,K"),
        (["bench", "--shapes", "1x0x32"], "positive"),
        (["bench", "--m", "1,x"], "positive"),
        (["bench", "--repeat", "0"], "positive"),
        (["check", "--only", "two"], "two"),
        (["inspect"], "PATH"),
        (["quantize", "a"], "OUT"),
        (["quantize", "a", "b", "--weights", "best"], "best"),
        (["convert", "a", "b"], "--to"),
        (["convert", "a", "b", "--to", "gguf"], "gguf"),
        (["sing"], "sing"),
        ([], "command"),
    ],
)
def test_arguments_that_cannot_be_read(arguments: list[str], word: str, in_process) -> None:
    says(in_process(*arguments), 2, word)


def test_shapes_have_two_spellings() -> None:
    assert commands.shapes("3x5x32") == commands.shapes("3,5,32") == [(3, 5, 32)]
    assert commands.shapes("3X5x32x2", most=4) == commands.shapes("3,5,32,2", most=4) == [(3, 5, 32, 2)]
    assert commands.shapes("0,5,32", least=0) == [(0, 5, 32)]
    assert commands.shapes("3x5x32,7x5x48") == [(3, 5, 32), (7, 5, 48)]
    parse = __main__.parser().parse_args
    assert parse(["bench", "--shapes", "3,5,32"]).shapes == [shapes.Shape(3, 5, 32)]
    assert parse(["info", "--shape", "3,5,32,2"]).shape == parse(["info", "--shape", "3x5x32x2"]).shape == (3, 5, 32, 2)


@pytest.mark.parametrize("command", ["check", "info", "bench", "quantize", "inspect", "convert"])
def test_help(command: str, in_process) -> None:
    done = in_process(command, "--help")
    assert done.returncode == 0 and "--json" in done.stdout and len(done.stdout.splitlines()) > 10
    assert f"  {command} " in in_process("--help").stdout


def test_version_and_console_script() -> None:
    assert nvfp4_command("--version").stdout == f"nvfp4 {nvfp4.__version__}\n"
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="nvfp4")
    assert script.load() is main


# --- info -----------------------------------------------------------------------------------------------------------


def test_info_needs_neither_torch_nor_a_driver() -> None:
    done = nvfp4_command("info", without="torch", NVFP4_LIBCUDA="/nowhere/libcuda.so.1")
    assert done.returncode == 0 and done.stderr == ""
    lines = dict(line.split("  ", 1) for line in done.stdout.splitlines())
    assert lines["torch"].strip().startswith("not installed")
    assert "/nowhere/libcuda.so.1" in lines["CUDA driver"]
    assert lines["nvfp4"].strip() == nvfp4.__version__


def test_info_of_a_shape(in_process) -> None:
    done = nvfp4_command("info", "--shape", "3,5,32,2", "--backend", "cpu", NVFP4_CPU="portable")
    assert "portable (cpu) on cpu: " in done.stdout
    plan = json.loads(in_process("info", "--shape", "3x5x32", "--backend", "cpu", "--json").stdout)["plan"]
    assert plan["backend"] == "cpu" and plan["reason"]
    says(in_process("info", "--shape", "3,5,20", "--backend", "cpu"), 2, "20", "16")


def test_info_of_16_bit_activations(fake_driver: Path) -> None:  # noqa: F811
    """The fake GPU's plan in W4A16 is another kernel than in W4A4; both say what the model was measured on."""
    fake = {"NVFP4_LIBCUDA": str(fake_driver), "FAKE_CAPABILITY": "90"}
    lines = [
        nvfp4_command("info", "--shape", "64x4096x7168", *more, **fake) for more in ([], ["--a-dtype", "bfloat16"])
    ]
    assert all(done.returncode == 0 for done in lines)
    assert "sm90_gemm_128x64" in lines[0].stdout and "sm90_gemm_bf16_128x64" in lines[1].stdout
    assert "constants of the model: measured on an H" in lines[1].stdout


def test_info_lists_a_gpu(fake_driver: Path) -> None:  # noqa: F811
    done = nvfp4_command("info", NVFP4_LIBCUDA=str(fake_driver), FAKE_CC="75", FAKE_DEVICES="2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sm_75") == 2 and done.stdout.count("NOT usable: ") == 2


@pytest.mark.parametrize(("capability", "said"), [("110", True), ("103", False)])
def test_info_says_whose_code_never_ran(capability: str, said: bool, fake_driver: Path) -> None:  # noqa: F811
    done = nvfp4_command("info", NVFP4_LIBCUDA=str(fake_driver), FAKE_CC=capability)
    lines = dict(line.split("  ", 1) for line in done.stdout.splitlines())
    label = "assembled only, never run"
    assert ("compute_110f" in nvfp4.info()["archs"]) == (f"compute_110f ({label})" in lines["GPU code for"])
    assert (label in lines["GPU 0"]) == said and ": usable" in lines["GPU 0"]


def test_info_json_is_plain() -> None:
    properties = json.loads(nvfp4_command("info", "--json").stdout)
    assert properties["version"] == nvfp4.__version__ and properties["torch"] == torch.__version__
    assert properties["cpu_kernel"] in ("amx", "avx512vnni", "avx2", "portable", "reference")


# --- tables, with rich and without ------------------------------------------------------------------------------------


def test_tables_do_not_need_rich() -> None:
    done = nvfp4_command("check", "--only", "1", without="rich")
    assert done.returncode == 0 and "1 of 1 tests passed" in done.stdout


@pytest.mark.parametrize("with_rich", [True, False])
def test_table_shows_every_cell(with_rich: bool, monkeypatch, capsys) -> None:
    if with_rich:
        pytest.importorskip("rich")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", "100")
    else:
        monkeypatch.setattr(show, "rich", None)
    show.table("A title", ["<name", "value"], [["left [red]", "1.50"], ["x", "12.00"]])
    out = capsys.readouterr().out
    assert all(cell in out for cell in ("A title", "name", "value", "left [red]", "1.50", "12.00"))


@pytest.mark.parametrize("width", [300, 90, 40])
def test_a_narrow_terminal_cuts_nothing_off(width: int, monkeypatch, capsys) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    columns = ["<name", *(f"implementation {i}, us" for i in range(5))]
    rows = [[f"row{i}", *(f"1{i}.{j} (0{i}.{j}..2{i}.{j})" for j in range(5))] for i in range(3)]
    show.table("A title", columns, rows)
    out = capsys.readouterr().out
    words = [word for row in [columns[1:], *rows] for cell in row for word in cell.split()]
    assert "\u2026" not in out and all(word in out for word in words)


def test_progress_without_a_terminal_is_a_line_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    with show.progress(2) as step:
        step("one")
        step("two")
    assert capsys.readouterr().err == "[1/2] one\n[2/2] two\n"


def test_units() -> None:
    assert show.si(4.3e12, "B/s") == "4.30 TB/s" and show.si(512, "B") == "512 B" and show.mebibytes(2**29) == "512 MiB"
    assert show.digits(0.0163) == "0.016" and show.digits(0.0) == "0.00" and show.digits(0.63) == "0.63"
    assert show.seconds(1.5e-6) == "1.50 us" and show.seconds(0.0421) == "42.1 ms" and show.seconds(2) == "2.00 s"


def test_machine_properties() -> None:
    assert machine.cpu_name() and machine.available_memory() > 2**20
    assert machine.last_level_cache() is None or machine.last_level_cache() >= 2**14
