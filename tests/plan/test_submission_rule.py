"""The planner that the competition's file shares with the package: kernels/sm100/plan.c and all that it includes are
C11 and C++17, know nothing of the competition, and plan the same in both languages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from paths import CSRC, ROOT

PROGRAM = ROOT / "tests/plan/sm100_plan_bytes.c"
HEADERS = (
    "plan/launch_plan.h",
    "plan/traits.h",
    "plan/operands.h",
    "common/format.h",
    "common/math.h",
    "common/mma_operand.h",
    "common/problem.h",
    "common/tensor_map.h",
    "common/device_props.h",
    "common/tensor_layout.h",
    "kernels/sm100/model.h",
    "kernels/sm100/plan.h",
)
PLAN = "kernels/sm100/plan.c"
LANGUAGES = {"c11": ["gcc", "-xc", "-std=c11"], "c++17": ["g++", "-xc++", "-std=c++17"]}
WARNINGS = ["-Wall", "-Wextra", "-Werror"]

pytestmark = pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("g++")), reason="needs gcc and g++")


def included(name: str) -> set[str]:
    """The project's files that a file includes, itself among them."""
    command = ["gcc", "-std=c11", "-MM", f"-I{CSRC}", str(CSRC / name)]
    rule = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    paths = rule.partition(":")[2].replace("\\\n", " ").split()
    return {str(Path(path).resolve().relative_to(CSRC)) for path in paths}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("header", HEADERS)
def test_compiles_by_itself(header: str, language: str, tmp_path: Path) -> None:
    """And twice: functions that the including file does not call raise no warning."""
    source = tmp_path / "only.c"
    source.write_text(f'#include "{header}"\n#include "{header}"\nint main(void) {{ return 0; }}\n')
    command = [*LANGUAGES[language], *WARNINGS, "-fsyntax-only", f"-I{CSRC}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_shared_headers() -> None:
    """The plan needs these headers and the kernel's own, none of the package's interface or drivers."""
    needed = included(PLAN)
    assert set(HEADERS) <= needed
    assert all(name in HEADERS or name.startswith(("kernels/common/", "kernels/sm100/")) for name in needed), needed
    assert f'#include "{PLAN}"' in (CSRC / "contest/launch.cu").read_text()


def test_only_its_folder_knows_of_the_competition() -> None:
    """The interface alone names it too: nvfp4.custom_kernel takes its views."""
    files = {path for path in CSRC.rglob("*.*") if path.relative_to(CSRC).parts[0] != "bindings"} - {CSRC / "nvfp4.h"}
    found = {path for path in files if re.search("contest|competition|submission", path.read_text(), re.I)}
    assert found == {path for path in files if path.is_relative_to(CSRC / "contest")}


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_tiling_fits_a_candidate(language: str) -> None:
    source = Path(__file__).with_name("tiling_size.c")
    for more in 0, 1:
        command = [*LANGUAGES[language], *WARNINGS, "-fsyntax-only", f"-I{CSRC}", f"-DMORE={more}", str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode != 0) == bool(more) and ("negative" in done.stderr) == bool(more), done.stderr


def plans(language: str, folder: Path, headers: Path | None = None) -> list[str]:
    """Returns what the program prints, with the headers of a folder before those of csrc if one is given."""
    binary = folder / f"plans_{language}"
    includes = [*([f"-I{headers}"] if headers else []), f"-I{CSRC}"]
    command = [*LANGUAGES[language], *WARNINGS, "-O2", *includes, str(PROGRAM), "-lm", "-o", str(binary)]
    subprocess.run(command, check=True)
    command = [str(binary), os.environ["NVFP4_TEST_SEED"]]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return plans("c11", tmp_path_factory.mktemp("own"))


def differing(x: list[str], y: list[str]) -> list[tuple[str, str]]:
    assert len(x) == len(y), "another number of lines"
    return [(one, other) for one, other in zip(x, y) if one != other]


def test_c_and_cxx_plan_the_same(own: list[str], tmp_path: Path) -> None:
    assert not differing(own, plans("c++17", tmp_path))[:5], os.environ["NVFP4_TEST_SEED"]
    starts = [line.split()[0] for line in own]
    products = [line for line in own if not line.startswith(" ")]
    assert len(products) == 300 and not any(": 0 candidates" in line for line in products)
    names = {name for name in starts if name.startswith("nvfp4_")}
    assert len(names) == len(re.findall(r"X\(sm100_gemm_", (CSRC / "kernels/sm100/config.h").read_text()))
    assert starts.count("step") > 600 and starts.count("map") > 1000


@pytest.mark.parametrize(
    ("header", "old", "new"),
    [
        (
            PLAN,
            "split_k <= MAX_CLUSTER; split_k *= 2",
            "split_k < MAX_CLUSTER; split_k *= 2",
        ),
        (PLAN, "PREFETCH_BYTES = 20 << 20", "PREFETCH_BYTES = 19 << 20"),
        (PLAN, "fill_operand(p, !c->swap_ab,", "fill_operand(p, c->swap_ab,"),
        ("plan/operands.h", "props->l2_bytes / 2", "props->l2_bytes / 4096"),
        ("plan/operands.h", "return size == 1 ? 16", "return size == 1 ? 32"),
        ("plan/traits.h", "pitch % 16 == 0", "pitch % 32 == 0"),
        ("plan/launch_plan.h", "return x->modelled_us < y->modelled_us", "return x->modelled_us > y->modelled_us"),
    ],
)
def test_a_difference_is_seen(header: str, old: str, new: str, own: list[str], tmp_path: Path) -> None:
    text = (CSRC / header).read_text()
    assert text.count(old) == 1
    shadow = tmp_path / "shadow" / header
    shadow.parent.mkdir(parents=True)
    shadow.write_text(text.replace(old, new))
    other = plans("c11", tmp_path, tmp_path / "shadow")
    assert len(own) != len(other) or differing(own, other)
