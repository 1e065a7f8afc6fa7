"""The pages do what they say: examples print what is shown, figures are the runs', links lead to files."""

from __future__ import annotations

import doctest
import functools
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import backend_table
import goals  # benchmarks/goals.py
import hopper  # benchmarks/hopper.py
import recorded
from paths import ROOT
from python_server import python

README = (ROOT / "README.md").read_text(encoding="utf-8")
FORMAT = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
BENCHMARKS = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
QUANTIZE = (ROOT / "docs" / "quantize.md").read_text(encoding="utf-8")
CLI = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
SOURCES = {".c", ".h", ".cu", ".cuh", ".cpp", ".py"}
FENCED = re.compile(r"(?ms)^```.*?^```$")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", page)


def pages() -> list[Path]:
    found = [
        *ROOT.glob("*.md"),
        *(
            path
            for top in (".github", "docs", "benchmarks", "emulator", "tests")
            for path in (ROOT / top).rglob("*.md")
        ),
    ]
    assert len(found) >= 9
    return found


def test_the_product_prints_what_the_readme_prints() -> None:
    """tests/hosts/test_transformers.py runs the other example, which loads a checkpoint."""
    example, _ = blocks(README, "python")
    done = python("-c", example, timeout=300)
    assert done.returncode == 0, done.stderr
    (printed,) = blocks(README, "text")
    assert done.stdout == printed


def test_the_examples_of_quantize_run() -> None:
    """The first and the last one. Examples of transformers and PEFT run elsewhere: test_invariance.py, test_load.py,
    test_load_experts.py, test_on_load.py, test_peft.py, test_peft_experts.py, test_transformers.py and
    test_fuse_quantizers.py."""
    folders = ("experts", "adapters", "checkpoints", "transformers", "batch-invariance")
    counts = [len(blocks((ROOT / f"docs/{name}.md").read_text(encoding="utf-8"), "python")) for name in folders]
    assert counts == [1, 2, 1, 2, 1]
    example, calibrate, on_load, compare = blocks(QUANTIZE, "python")
    program = f"{example}\n{compare}\nassert len(report.layers) == 2 and kl(model, model, samples) == 0"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "output error" in done.stdout


def test_ci_runs_the_install_commands() -> None:
    """Each command of a chain as a command of its own, in this order: CI starts other tests between two of them."""
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8").replace("pip install -q ", "pip install ")
    steps = [step.strip() for line in ci.splitlines() for step in line.split(" && ")]
    chains = blocks(README, "sh")
    assert len(chains) == 2
    for chain in chains:
        left = iter(steps)
        for command in chain.strip().split(" && "):
            assert any(step == command or step.startswith(f"{command} ") for step in left), command


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_readme_compares_layers_as_the_run_says() -> None:
    """readme_tables.py writes the table; test_readme_tables.py checks that it is current. The text sums it up."""
    rows = list(hopper.beside_marlin())
    assert len(rows) >= 9

    def longer(ours: str, over: str, least: int, most: float = math.inf) -> list[float]:
        """How many % longer than another column ours takes, the least first."""
        return sorted(
            100 * (float(row[f"{ours} back-to-back"]) / float(row[f"{over} back-to-back"]) - 1)
            for shape, row in rows
            if least <= shape.m <= most
        )

    def less(percents: list[float]) -> str:
        assert max(percents) < 0
        return f"{-max(percents):.0f} to {-min(percents):.0f} % less"

    w4a4, w4a16 = "quantize + W4A4", "W4A16"
    text = " ".join(README.split("## How fast")[1].split("\n## ")[0].split())
    few = [less(longer(ours, "Marlin", 1, 16)) for ours in (w4a4, w4a16)]
    assert "Up to 16 rows W4A4 takes {} time than Marlin, and W4A16 takes {}.".format(*few) in text
    many = less(longer(w4a4, "Marlin", 64) + longer(w4a16, "Marlin", 64))
    assert f"From 64 rows on both take {many} time than Marlin." in text
    (thousand,), (thousand16,) = (longer(ours, "bf16", 1024, 1024) for ours in (w4a4, w4a16))
    assert f"bf16 is the fastest: W4A4 takes {thousand:.0f} % longer and W4A16 {thousand16:.0f} % longer." in text
    (most,), (most16,) = (longer(ours, "bf16", 4096, 4096) for ours in (w4a4, w4a16))
    assert f"W4A4 takes {-most:.0f} % less time than bf16, and W4A16 takes {most16:.0f} % longer." in text

    def beside_marlin(file: str, model: str, runs: list[str]) -> list[float]:
        """By how many per cent decoding steps take longer."""
        steps = [row for row in hopper.read(file) if "decode" in row["what"]]
        of = {
            (row["model"], row["run"], row["what"]): float(row["gpu" if file == "vllm_h100.csv" else "gpu least"])
            for row in steps
        }
        keys = [key for key in of if key[0] == model and key[1] in runs]
        return sorted(100 * (of[key] / of[model, "vLLM Marlin", key[2]] - 1) for key in keys)

    dense = beside_marlin("vllm_h100.csv", "llama", ["nvfp4 W4A4", "nvfp4 W4A16"])
    assert f"takes {less(dense)} GPU time than with Marlin" in text and len(dense) == 8
    mixture = beside_marlin("vllm_h200.csv", "mixture", ["nvfp4 W4A16"])
    assert f"experts in W4A16 takes {less(mixture)} on an H200" in text and len(mixture) == 4


def test_accuracies_are_those_of_the_log() -> None:
    """README.md repeats the page, and the page's table is the log's, rounded."""

    def decimals(text: str) -> set[str]:
        return set(re.findall(r"(?<![\d.])\d+\.\d{2,3}(?![\d.])", text))

    page = (ROOT / "docs/accuracy.md").read_text(encoding="utf-8").split("\n## What it is worth")[1]
    table = page[page.index("| weights") :].partition("\n- ")[0]
    ours = decimals(README.split("## How accurate")[1].split("\n## ")[0])
    assert len(ours) == 13 and ours <= decimals(table)
    table_of_log = recorded.table(ROOT / "benchmarks/log/accuracy.csv")
    log = [float(cell) for row in table_of_log for cell in row if re.fullmatch(r"\d+\.\d+", cell)]
    rounded = {f"{value:.{places}f}" for value in log for places in (2, 3)}
    assert decimals(table) <= rounded


def test_what_runs_where_is_the_table_of_backends() -> None:
    """Each GPU of a row runs the backends of its cells, newest first, and the CPU its own."""
    section = README.split("## What runs where")[1].split("\n## ")[0]
    head, _, *rows = (
        [cell.strip() for cell in line.strip("| ").split("|")] for line in section.splitlines() if line[:1] == "|"
    )
    asked = {"W4A4": ("uint8", True), "W4A16": ("float16", True), "A . B (gradient)": ("float16", False)}
    assert head[2:5] == list(asked)
    shown, named = set(), set()
    for row in rows:
        capabilities = [int(text.replace(".", "")) for text in re.findall(r"\d+\.\d", row[1])]
        able = [backend_table.backends_of(f"sm_{capability}") for capability in capabilities] or [("cpu",)]
        for cell, (a, transpose_b) in zip(row[2:5], asked.values()):
            cells = tuple(re.findall(r"`(\w+)`", cell))
            for backends in able:
                assert cells == tuple(f for f in backends if backend_table.takes(f, a, transpose_b)), row
            named |= set(cells)
        shown |= set(capabilities)
    assert named == set(backend_table.ROWS)
    assert {backend_table.ROWS[name]["min_capability"] for name in backend_table.ON_GPU} <= shown


def test_hopper_csv_is_of_the_run_on_the_page() -> None:
    header, *rows = goals.log([goals.load(goals.DEFAULT.with_name(f"{gpu}.json")) for gpu in hopper.GPUS])
    names, *logged = recorded.table(ROOT / "benchmarks/log/hopper.csv")
    assert names == header and logged == [list(map(str, row)) for row in rows]
    assert len(rows) > len(goals.GOALS) and all(float(row[names.index("h100 us")]) > 0 for row in logged)


def test_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    """Every decimal beside its unit or shape: README.md repeats runs, and measures nothing itself."""
    claims = README.split("## What runs where")[0] + README.split("## How fast")[1].split("\n## ")[0]
    text = re.sub(r"(?m)^- (Up to|From|With) .*$", "", claims)  # test_the_readme_compares_layers_as_the_run_says
    figures = set(re.findall(r"\d+\.\d+", text))
    assert len(figures) >= 20
    assert figures <= set(re.findall(r"\d+\.\d+", BENCHMARKS))


def test_the_worked_byte_and_groups() -> None:
    sessions = blocks(FORMAT, "pycon")
    test = doctest.DocTestParser().get_doctest("".join(sessions), {}, "format.md", "format.md", 0)
    assert len(sessions) == 2 and len(test.examples) == 6
    assert doctest.DocTestRunner().run(test).failed == 0


def test_the_worked_nibbles() -> None:
    """v0 = 0.5, v1 = -6 is byte 0xF1, by the package itself."""
    import torch

    import nvfp4

    assert "v0 = 0.5, v1 = -6:  codes 1 and 15,  byte 0xF1" in FORMAT
    x = torch.zeros(1, 16)
    x[0, :2] = torch.tensor([0.5, -6])
    data, _ = nvfp4.quantize(x)
    assert data[0, 0] == 0xF1


def test_the_commands_and_variables_exist() -> None:
    from contest import __main__ as contest
    from lab import __main__ as lab

    from nvfp4.__main__ import COMMANDS

    table = CLI.split("## Command line")[1].split("## ")[0]
    assert re.findall(r"(?m)^\| `([\w-]+)", table) == list(COMMANDS)
    programs = re.findall(r"(?m)^\| `python tools/(\w+) ([\w-]+)", CLI.split("## Programs of the checkout")[1])
    assert programs == [*(("lab", name) for name in lab.COMMANDS), *(("contest", name) for name in contest.COMMANDS)]
    sources = [*(ROOT / "csrc").rglob("*.c"), *(ROOT / "build_backend").glob("*.py"), ROOT / "setup.py"]
    sources += (ROOT / "nvfp4").rglob("*.py")
    read = set(re.findall(r'"(NVFP4_[A-Z0-9_]+)"', "".join(path.read_text(encoding="utf-8") for path in sources)))
    told = set(re.findall(r"`(NVFP4_[A-Z0-9_]+)", CLI.split("## Environment variables")[1]))
    assert told == read - {"NVFP4_AUTO", "NVFP4_AWQ"}  # an enumerator, which error messages name; ModelOpt's algorithm


def anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of headings."""
    headings = re.findall(r"(?m)^#+ (.+)$", FENCED.sub("", text))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    for path in pages():
        text = path.read_text(encoding="utf-8")
        assert text.count("\n```") % 2 == 0, f"{path}: a code fence is not closed"
        for link, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", FENCED.sub("", text)):
            if link.startswith("https://"):
                continue
            target = path.parent / link if link else path
            assert target.exists(), f"{path}: {link}"
            if anchor:
                assert anchor in anchors(target.read_text(encoding="utf-8")), f"{path}: {link}#{anchor}"


def test_recorded_tables_are_linked() -> None:
    """The CSV files behind the pages: a page of their folder or of docs/ links each."""
    linked = "".join(path.read_text(encoding="utf-8") for path in pages())
    tables = [*(ROOT / "benchmarks" / "log").glob("*.csv"), *(ROOT / "docs" / "proof").glob("*.csv")]
    assert len(tables) >= 9
    for path in tables:
        assert f"({path.name})" in linked or f"(proof/{path.name})" in linked, path


def in_code(text: str) -> Iterator[str]:
    """The words of `code` and of shell commands, each alternative of a{b,c}d by itself."""
    parts = [*re.findall(r"`([^`\n]+)`", FENCED.sub("", text)), *blocks(text, "sh")]
    for word in " ".join(parts).split():
        before, *braced = re.split(r"\{([^}]*)\}", word)
        choices = [before]
        for inside, behind in zip(braced[::2], braced[1::2]):
            choices = [f"{choice}{one}{behind}" for choice in choices for one in inside.split(",")]
        yield from choices


@functools.cache
def checkout() -> tuple[frozenset[Path], frozenset[str]]:
    """Its files, and every word of those that may define a name: neither pages nor stored results."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True)
    paths = [Path(name) for name in listed.stdout.splitlines()] if listed.returncode == 0 else []
    if not paths:  # a source distribution
        paths = [path.relative_to(ROOT) for path in ROOT.rglob("*")]
    paths = [path for path in paths if (ROOT / path).is_file()]
    defining = {*SOURCES, ".pyi", ".toml", ".yml", ".csv", ""}
    texts = [(ROOT / path).read_text(encoding="utf-8", errors="ignore") for path in paths if path.suffix in defining]
    return frozenset(paths), frozenset(re.findall(r"\w+", "\n".join(texts)))


# Names of things that a reader makes or has elsewhere: outputs, examples, other libraries.
NOT_OURS = {
    *("submission.py", "kernel.ptx", "run.json", "run.csv", "run.svg", "gemv.json", "reverse.cu"),
    *("from_config", "from_pretrained"),
    "CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION",  # CUDA's
    "apply_fp4_marlin_linear",  # vLLM's
    "ddp_broadcast_buffers=False",  # transformers'
    *("cli_evaluate", 'cli_evaluate()"', "--model_args", "softmax_dtype"),  # lm_eval's
    *("weight_scale_2", "input_scale", "per_tensor_scale", "act_per_tensor_scale"),
    *("weight_global_scale", "input_global_scale", "OMP_WAIT_POLICY=PASSIVE", "CUDA_HOME", "LD_LIBRARY_PATH"),
    "PKG_CONFIG_PATH=$HOME/nvfp4/lib/pkgconfig",
}


def missing(text: str, folder: Path) -> tuple[list[str], int]:
    """Files and names in a page's code that do not exist, and how many were looked up. A file may be named by its path
    from the checkout, from the page's folder or from one above, or by its name alone; an identifier may be anywhere."""
    found, words = checkout()
    names, folders = {path.name for path in found}, {parent for path in found for parent in path.parents}
    bases = [folder, *folder.parents]
    absent, checked = [], 0
    for word in (word.strip("();:,") for word in in_code(text)):
        if word in NOT_OURS or "sm130" in word.lower() or "NAME" in word or "..." in word:
            continue
        if re.fullmatch(r"[\w./-]+\.(cu?|cuh|h|cpp|py|pyi|md|csv|yml|toml)", word):
            exists = word in names or any(base / word in found or (ROOT / base / word).is_file() for base in bases)
        elif re.fullmatch(r"([\w.-]+/)+", word):
            exists = any(base / word in folders or (ROOT / base / word).is_dir() for base in bases)
        elif name := re.fullmatch(r"(?:nvfp4\.|--)?([A-Za-z]\w*_\w*[A-Za-z0-9]|(?<=nvfp4\.)\w+)([=(].*)?", word):
            exists = name[1] in words
        else:
            continue
        checked += 1
        if not exists:
            absent.append(word)
    return absent, checked


def test_files_and_names_in_the_pages_exist() -> None:
    absent, checked = [], 0
    for page in pages():
        words, count = missing(page.read_text(encoding="utf-8"), page.parent.relative_to(ROOT))
        absent += [f"{page.relative_to(ROOT)}: {word}" for word in words]
        checked += count
    assert checked >= 200
    assert not absent, "\n".join(absent)


def test_missing_files_and_names_are_found() -> None:
    nothing = "_".join(["nvfp4", "nothing"])  # a word that no source has
    page = f"""`csrc/nvfp4.h` `../docs/none.md` `gemm.cu` `none.cu` `src/none/` `nvfp4_override_plan` `{nothing}(1)`
```sh
pytest tests/{{conftest,none}}.py
```
"""
    absent, checked = missing(page, Path("emulator"))
    assert absent == ["../docs/none.md", "none.cu", "src/none/", f"{nothing}(1", "tests/none.py"] and checked == 9


def test_pages_that_sources_name_are_there() -> None:
    """Comments and messages name a page by its path, from the checkout or from a folder above the file."""
    tops = ("csrc", "nvfp4/cli", "emulator", "tests", "tools", "benchmarks", "build_backend")
    sources = [path for top in tops for path in (ROOT / top).rglob("*") if path.suffix in SOURCES and path.is_file()]
    assert len(sources) > 100
    for path in [*sources, ROOT / "setup.py"]:
        for name in re.findall(r"(?<![\w/])\w+/[\w/]+\.md\b(?!\")", path.read_text(encoding="utf-8")):
            folders = (ROOT / folder for folder in path.relative_to(ROOT).parents)
            assert any((folder / name).exists() for folder in folders), f"{path}: {name}"
