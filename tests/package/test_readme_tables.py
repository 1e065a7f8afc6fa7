"""The documents agree with the stored runs, and benchmarks/readme_tables.py detects when they do not."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import fake_gpu
import pytest
import recorded
from paths import ROOT, module_at
from python_server import python

from nvfp4.__main__ import main, parser
from nvfp4.bench import plot, report
from nvfp4.cli import show

SCRIPT = ROOT / "benchmarks" / "readme_tables.py"
HOPPER = ["bench", "--set", "hopper", "--backend", "sm90", "--against", "fp16,fp8"]

readme_tables = module_at(SCRIPT)


def test_nothing_is_stale() -> None:
    done = python(SCRIPT, timeout=300)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}run `python benchmarks/readme_tables.py --write`"


def test_tables_are_of_the_csv_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed time, goal or count makes a page stale; a name without a table is an error."""
    hopper = readme_tables.hopper
    shown = "".join(document.read_text(encoding="utf-8") for document in readme_tables.documents(ROOT))
    assert set(re.findall(r"<!-- table: (\w+) -->", shown)) == set(hopper.TABLES)
    shutil.copytree(hopper.LOG, tmp_path / "log")
    monkeypatch.setattr(hopper, "LOG", tmp_path / "log")
    assert not list(readme_tables.stale(ROOT))
    for name, old, new, pages in (
        ("hopper.csv", ",31.46,", ",20.25,", ["benchmarks/README.md"]),
        ("marlin_h100.csv", ",25.6,", ",25.9,", ["README.md", "benchmarks/README.md"]),
        ("vllm_h100.csv", ",101.490,", ",201.490,", ["benchmarks/README.md"]),
        ("constant_b.csv", ",16.47,", ",11.47,", ["benchmarks/README.md"]),
        ("sm90_regret.csv", "graphs,852,", "graphs,853,", ["benchmarks/README.md"]),
    ):
        path = tmp_path / "log" / name
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1
        path.write_text(text.replace(old, new), encoding="utf-8")
        assert [str(page.relative_to(ROOT)) for page, _ in readme_tables.stale(ROOT)] == pages
        if name == "hopper.csv":
            assert "| missed: 1 of 28 met; 4 to 55% over |" in hopper.targets()
            assert "| 20.2/13.2/9.63 | -10/35/27 |" in hopper.goals()
        if name == "constant_b.csv":
            assert "| met: 18.3, " in hopper.targets()
        path.write_text(text, encoding="utf-8")
    with pytest.raises(show.CommandError, match="no table none: hopper.py has layers, marlin, "):
        readme_tables.table(re.match(r"(\w+)", "none"))


def test_products_of_experts_beside_hummings() -> None:
    """What the page says below the table, by its rows."""
    page = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8").split("### Beside Humming")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:2] == "| "]
    ratios = {"gate and up": [], "down": []}
    for model, tokens, _, up, _, theirs, down, down_theirs in [row for row in rows[1:] if len(row) == len(rows[0])]:
        ratios["gate and up"].append((int(tokens), 100 * float(up) / float(theirs) - 100, model))
        if down_theirs != "fails":
            ratios["down"].append((int(tokens), 100 * float(down) / float(down_theirs) - 100, model))
    for row in recorded.rows(ROOT / "benchmarks/log/sm90_grouped_many_h200.csv"):
        if row["tokens"] == "8192" and row["product"] in ratios and row["humming_us"]:
            percent = 100 * float(row["now_us"]) / float(row["humming_us"]) - 100
            ratios[row["product"]].append((8192, percent, row["model"]))
    text = " ".join(page.split())

    def percents(product: str, least: int, most: int) -> list[float]:
        return sorted(percent for tokens, percent, _ in ratios[product] if least <= tokens <= most)

    up, down = percents("gate and up", 1, 2048), percents("down", 1, 2048)
    assert f"gate and up take {-up[-1]:.0f} to {-up[0]:.0f} % less time than Humming's" in text
    assert f"down takes {-down[-3]:.0f} to {-down[0]:.0f} % less, except that of 8 tokens of the two Qwens" in text
    late = {(tokens, model) for tokens, percent, model in ratios["down"] if tokens < 8192 and percent > 0}
    assert late == {(8, "Qwen3-30B-A3B"), (8, "Qwen3.6-35B-A3B")}
    assert f"which takes {down[-2]:.0f} to {down[-1]:.0f} % longer" in text
    up, down = percents("gate and up", 8192, 8192), percents("down", 8192, 8192)
    assert f"from {-up[0]:.0f} % less (gpt-oss-120b) to {up[-1]:.0f} % longer (Qwen3-30B-A3B)" in text
    assert f"down takes {down[0]:.0f} to {down[-1]:.0f} % longer" in text


def test_the_square_shape_on_both_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside cuBLAS."""
    hopper = readme_tables.hopper
    (tmp_path / "log").mkdir()
    for path in hopper.LOG.glob("*.csv"):
        shutil.copy(path, tmp_path / "log")
    path = tmp_path / "log/hopper.csv"
    *others, last = path.read_text().splitlines()
    assert last.startswith("8192,8192,8192,")
    path.write_text("\n".join([*others, "8192,8192,8192,,,,1300,1,1,1,1,1310,1,1400,1,1,1,1,1390,1"]))
    monkeypatch.setattr(hopper, "LOG", tmp_path / "log")
    assert "| met: 1300 for 1310 | missed: 1400 for 1390 | [csv](log/hopper.csv) |" in hopper.targets()
    assert "1 of 28 met" in hopper.targets()


def test_a_run_without_its_table(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = tree / "README.md"
    readme.write_text(readme.read_text().replace("gpu.json -->", "gpu.json, without its table -->"))
    assert run_script(monkeypatch, "--write") == 0 and run_script(monkeypatch) == 0
    text = readme.read_text()
    assert "\n| " not in text and "](benchmarks/results/gpu.svg)" in text and "- hardware: " in text
    assert "\n| " in (tree / "benchmarks" / "hopper.md").read_text()


def test_every_stored_run_is_shown() -> None:
    shown = "".join(document.read_text(encoding="utf-8") for document in readme_tables.documents(ROOT))
    stored = {path.name for path in (ROOT / readme_tables.RESULTS).glob("*.json")}
    assert stored == set(readme_tables.MARKED.findall(shown))
    drawn = {path.stem for path in (ROOT / readme_tables.RESULTS).glob("*.svg")}
    assert drawn <= {Path(name).stem for name in stored}


def test_the_commands_in_the_documents_are_understood() -> None:
    found = set()
    for document in [ROOT / "CONTRIBUTING.md", *readme_tables.documents(ROOT)]:
        found |= set(re.findall(r"(?m)python -m nvfp4 (bench[^`#|\n]*)", document.read_text(encoding="utf-8")))
    assert len(found) >= 4
    for command in found:
        parser().parse_args(command.split())


def test_stored_plots_are_redrawn_alike() -> None:
    """By the matplotlib that drew them; another version may place digits differently."""
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib comes with the extra `plot`")
    drawn = sorted((ROOT / readme_tables.RESULTS).glob("*.svg"))
    assert drawn
    for path in drawn:
        text, run = path.read_text(encoding="utf-8"), report.load(path.with_suffix(".json"))
        assert plot.digest(run) in text
        (version,) = re.findall(r"Matplotlib v(\S+),", text)
        if version != matplotlib.__version__:
            pytest.skip(f"drawn by matplotlib {version}, this is {matplotlib.__version__}")
        assert plot.svg(run) == text, path.name


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one run, shown in both documents."""
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra `plot`")
    fake_gpu.install(monkeypatch, fake_gpu.Clock())
    results = tmp_path / readme_tables.RESULTS
    results.mkdir(parents=True)
    marked = "before\n\n<!-- run: gpu.json -->\nold\n<!-- end of run -->\n\nafter\n"
    (tmp_path / "README.md").write_text(marked)
    (tmp_path / "benchmarks" / "hopper.md").write_text(marked)
    assert main([*HOPPER, "--json", str(results / "gpu.json")]) == 0
    monkeypatch.setattr(readme_tables, "ROOT", tmp_path)
    return tmp_path


def run_script(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["readme_tables.py", *arguments])
    return readme_tables.main()


def test_stale_files_are_listed_and_written(tree: Path, monkeypatch, capsys) -> None:
    svg = tree / readme_tables.RESULTS / "gpu.svg"
    assert run_script(monkeypatch) == 1
    told = capsys.readouterr().out.splitlines()
    files = ("README.md", "benchmarks/hopper.md", "benchmarks/results/gpu.svg")
    assert told[-3:] == [f"stale: {name}" for name in files] and not svg.exists()
    assert run_script(monkeypatch, "--write") == 0 and svg.exists()
    assert run_script(monkeypatch) == 0
    readme = (tree / "README.md").read_text()
    assert readme.startswith("before\n\n<!-- run: gpu.json -->\n`python -m nvfp4 bench --set hopper")
    assert readme.endswith("<!-- end of run -->\n\nafter\n") and "\nold\n" not in readme
    assert (
        "(benchmarks/results/gpu.svg)" in readme and "(results/gpu.svg)" in (tree / "benchmarks/hopper.md").read_text()
    )
    assert "not exact" in readme and "\\* torch fp8" in readme
    rows = [line for line in readme.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + 29 and all(row.count("|") == rows[0].count("|") for row in rows)

    (tree / "README.md").write_text(readme.replace("nvfp4 sm90", "nvfp4 sm91", 1))
    assert run_script(monkeypatch) == 1
    run = json.loads((tree / readme_tables.RESULTS / "gpu.json").read_text())
    assert run_script(monkeypatch, "--write") == 0
    run["results"][3]["implementations"][0]["seconds"]["single_call"]["median"] *= 2
    (tree / readme_tables.RESULTS / "gpu.json").write_text(json.dumps(run))
    capsys.readouterr()
    assert run_script(monkeypatch) == 1 and len(capsys.readouterr().out.splitlines()) == 3


def test_a_document_never_mixes_two_runs(tree: Path, monkeypatch, capsys) -> None:
    path = tree / readme_tables.RESULTS / "gpu.json"
    run = report.load(path)
    run["results"][0]["run"] = "another"
    path.write_text(json.dumps(run))
    assert run_script(monkeypatch, "--write") == 2
    assert "no ratio is taken between two runs" in capsys.readouterr().err
    with pytest.raises(show.CommandError):
        report.load(path)


@pytest.fixture
def output(tree: Path, monkeypatch) -> Path:
    """A recorded program, instead of the run of bench in the README."""
    path = tree / readme_tables.RESULTS / "out.json"
    gpu = report.load(path.with_name("gpu.json"))["conditions"]["hardware"]
    monkeypatch.setattr(readme_tables, "hardware", lambda: ["A CPU (avx2), 2 threads", gpu])
    command = "printf 'one %s\\n' \"$(cat counter)\"; python -c 'import sys; print(sys.prefix)'"
    (tree / "counter").write_text("1")
    assert run_script(monkeypatch, "--record", "out.json", command) == 0
    (tree / "README.md").write_text((tree / "README.md").read_text().replace("gpu.json", "out.json"))
    return path


def test_output_of_a_program(tree: Path, output: Path, monkeypatch, capsys) -> None:
    run = json.loads(output.read_text())
    assert run["output"] == f"one 1\n{sys.prefix}\n", "python is not this one"
    assert run_script(monkeypatch, "--write") == 0 and run_script(monkeypatch) == 0
    readme = (tree / "README.md").read_text()
    assert (
        f"`{run['command']}` ([run](benchmarks/results/out.json)):\n\n```text\none 1\n{sys.prefix}\n```\n\n" in readme
    )
    assert f"- hardware: {run['hardware']}\n" in readme and not (output.with_suffix(".svg")).exists()
    run["output"] = "two\n"
    output.write_text(json.dumps(run))
    assert run_script(monkeypatch) == 1 and "stale: README.md" in capsys.readouterr().out


def test_measure_repeats_the_runs_of_this_machine(tree: Path, output: Path, monkeypatch, capsys) -> None:
    (tree / "counter").write_text("2")
    ran = []
    shell = readme_tables.shell

    def note(command: str, root: Path, **options):
        ran.append(command)
        return shell("true" if "nvfp4 bench" in command else command, root, **options)

    monkeypatch.setattr(readme_tables, "shell", note)
    assert run_script(monkeypatch, "--measure", "--write") == 0
    assert "one 2\n" in (tree / "README.md").read_text()
    bench = report.load(tree / readme_tables.RESULTS / "gpu.json")
    of_gpu = f"{bench['command']} --json {readme_tables.RESULTS}/gpu.json"
    assert ran == [of_gpu, json.loads(output.read_text())["command"]]  # the fake GPU is here

    # One of both devices that the recorded program named is here, and none of the other run's.
    monkeypatch.setattr(readme_tables, "hardware", lambda: ["A CPU (avx2), 99 threads", "another GPU"])
    (tree / "counter").write_text("3")
    ran.clear()
    assert run_script(monkeypatch, "--measure", "--write") == 0
    assert not ran and "one 2\n" in (tree / "README.md").read_text()
    assert "other hardware, not measured" in capsys.readouterr().out


def test_a_run_of_the_competitions_measurement(tree: Path, monkeypatch) -> None:
    shape = {"m": 128, "n": 7168, "k": 16384, "l": 1}
    seconds = {"mean": 50e-6, "error": 1e-8, "best": 49e-6, "repeats": 100}
    run = {
        "format": "nvfp4-contest-2",
        "task": "nvfp4_gemm",
        "command": "python tools/contest measure --backend sm90",
        "ran": "nvfp4 0.1.0, backend sm90",
        "hardware": "NVIDIA H200, 132 SMs",
        "software": "torch 2",
        "inputs": 50,
        "timed": True,
        "mode": "back-to-back",
        "bytes_per_s": 4e12,
        "clocks before": "SM 1 MHz",
        "clocks after": "SM 2 MHz",
        "flush": "62.5 GiB written before",
        "shapes": [{"shape": shape, "right": True, "why": "", "seconds": seconds, "stopped by": "error"}],
    }
    (tree / readme_tables.RESULTS / "contest.json").write_text(json.dumps(run))
    (tree / "README.md").write_text((tree / "README.md").read_text().replace("gpu.json", "contest.json"))
    assert run_script(monkeypatch, "--write") == 0 and run_script(monkeypatch) == 0
    readme = (tree / "README.md").read_text()
    assert f"`{run['command']}` ([run](benchmarks/results/contest.json)). The competition's nvfp4_gemm: nvfp4" in readme
    assert "| 128x7168x16384x1 | 50.00 | 0.02% | 49.00 | 100 | error |" in readme
    assert "- geometric mean: 50.00 us\n" in readme and "mean / speed of light" not in readme


def test_a_program_that_fails_leaves_the_stored_output(tree: Path, output: Path, monkeypatch, capsys) -> None:
    before = output.read_text()
    assert run_script(monkeypatch, "--record", "out.json", "echo half; exit 3") == 2
    assert "exit status 3: echo half; exit 3" in capsys.readouterr().err and output.read_text() == before


def test_one_m_has_no_plot(tree: Path, monkeypatch) -> None:
    assert main(["bench", "--m", "128", "--json", str(tree / readme_tables.RESULTS / "gpu.json")]) == 0
    assert run_script(monkeypatch, "--write") == 0
    assert not (tree / readme_tables.RESULTS / "gpu.svg").exists() and ".svg" not in (tree / "README.md").read_text()


# ---- docs/several-gpus.md ----


PAGE = (ROOT / "docs" / "several-gpus.md").read_text(encoding="utf-8")
MODES = ("bf16", "W4A4", "W4A4 dynamic", "W4A16")


def test_times_on_several_gpus_are_those_of_the_run() -> None:
    """Each cell, where bf16 is faster, and the sentences' figures."""
    rows = recorded.rows(ROOT / "benchmarks/log/parallel_h200.csv")
    runs = {(int(row["gpus"]), int(row["m"])): row for row in rows}
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    shown = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert shown[0][1:] == ["bf16 (1, 2)", *(f"{mode} (1, 2, 16 bits)" for mode in MODES[1:])]

    def us(gpus: int, m: int, mode: str) -> float:
        return float(runs[gpus, m][f"{mode} us"])

    def cell(m: int, mode: str) -> str:
        figures = [us(1, m, mode), us(2, m, mode), *([] if mode == "bf16" else [us(2, m, f"{mode} 16-bit")])]
        return ", ".join(f"{figure:.0f}" for figure in figures)

    rows = (1, 8, 32, 128, 2048)
    assert shown[1:] == [[str(m), *(cell(m, mode) for mode in MODES)] for m in rows]
    losses = {(gpus, m, mode) for gpus, m in runs for mode in MODES[1:] if us(gpus, m, mode) > us(gpus, m, "bf16")}
    assert losses == {(2, 128, "W4A4 dynamic"), *((2, 2048, mode) for mode in MODES[1:])}
    over = {(m, mode): us(2, m, f"{mode} 16-bit") / us(2, m, "bf16") for m in rows for mode in MODES[1:]}
    dynamic = over.pop((128, "W4A4 dynamic"))
    words = re.sub(r"\s+", " ", PAGE)
    assert (
        "With fp32 sums bf16 is the fastest on two GPUs at M = 2048, and at M = 128 it beats W4A4 with dynamic" in words
    )
    assert f"layers take at most {max(over.values()):.2f} times bf16's time, except" in words
    assert f"at M = 128, which takes {dynamic:.2f} times." in words
    assert ({gpus for gpus, _ in runs} == {1, 2}) == ("Four GPUs were not timed" in words)
    saved = {m: us(2, m, "all-reduce fp32") - us(2, m, "all-reduce bf16") for m in (128, 2048)}
    assert f"{saved[2048]:.0f} us longer than those of bf16 at M = 2048, and {saved[128]:.0f} us longer at" in words
    scattered, whole = ({m: us(2, m, f"W4A4 16-bit{end}") for m in (128, 2048)} for end in (" scattered", ""))
    rest = us(2, 2048, "W4A4") - whole[2048] - saved[2048]
    assert f"The other {rest:.0f} us that W4A4 saves at M = 2048" in words
    longer = {m: f"{scattered[m] - whole[m]:.0f}" for m in (128, 2048)}
    assert f"W4A4 takes {scattered[2048]:.0f} us at M = 2048, {longer[2048]} longer than without" in words
    assert f"and {scattered[128]:.0f} at M = 128, {longer[128]} longer" in words
