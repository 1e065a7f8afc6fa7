"""Imports go one way: between the rooms of nvfp4/, by the table of docs/life-of-a-call.md, and between the folders of
csrc/, by the table before it. Inside a room there is no circle. emulator/ knows nothing of the rest."""

from __future__ import annotations

import ast
import re
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from paths import ROOT

import nvfp4


def rooms() -> dict[str, int]:
    """The rooms of nvfp4/, from the lowest on. A room is a folder, but for the root, public modules and __main__."""
    page = (ROOT / "docs" / "life-of-a-call.md").read_text(encoding="utf-8").split("## Which room of nvfp4/")[1]
    names = [line.split("|")[1].strip(" `") for line in page.splitlines() if line.startswith("| ")][1:]
    return {name: level for level, name in enumerate(names)}


ROOMS = rooms()
HOSTS = ("transformers", "diffusers", "peft", "vllm", "comfy")
PUBLIC = ("", "linear", "experts", "fp8", "packed", "parallel", *HOSTS, "_moved")


def room(module: str) -> str:
    top = module.partition(".")[0]
    if top in ROOMS:
        return top
    return "public" if top in PUBLIC else "main" if top == "__main__" else "root"


def modules_of(folder: Path) -> dict[str, Path]:
    """The package's modules without the name of the package: "" is its __init__.py. Stubs stand for extensions."""
    found = {}
    for path in (*folder.rglob("*.pyi"), *folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(module: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The modules that a file imports, inside functions too. A name of a package that is no module is the package's."""
    found: set[str] = set()
    package = module if path.stem == "__init__" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.partition(".")[0] == "nvfp4"]
            found |= {name.partition(".")[2] for name in names}
        if isinstance(node, ast.ImportFrom):
            base = (node.module or "").split(".") if node.module else []
            if node.level:
                above = package.split(".") if package else []
                base = above[: len(above) - node.level + 1] + base
            elif base[0] == "nvfp4":
                base = base[1:]
            else:
                continue
            for alias in node.names:
                inner = ".".join([*base, alias.name])
                found.add(inner if inner in known else ".".join(base))
    return found - {module}


def arrows(folder: Path) -> set[tuple[str, str]]:
    known = modules_of(folder)
    return {(name, other) for name, path in known.items() for other in imports_of(name, path, known)}


def climbs(found: set[tuple[str, str]]) -> list[str]:
    """The arrows that run up."""
    up = sorted((name, other) for name, other in found if ROOMS[room(other)] > ROOMS[room(name)])
    return [f"{name or 'nvfp4'} imports {other or 'nvfp4'}" for name, other in up]


def circle(found: set[tuple[str, str]]) -> list[str]:
    graph = TopologicalSorter()
    for name, other in found:
        graph.add(name, other)
    try:
        graph.prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_import_runs_up() -> None:
    found = arrows(ROOT / "nvfp4")
    assert len(found) > 100
    assert not climbs(found)
    assert not circle(found)


def test_every_room_is_there() -> None:
    assert {room(module) for module in modules_of(ROOT / "nvfp4")} == ROOMS.keys()


def test_names() -> None:
    """No room has the name of a public function, and no two files of a room one name."""
    assert ROOMS.keys().isdisjoint({*nvfp4.__all__, *nvfp4._LAZY})
    for folder in ROOMS:
        files = [path.name for path in (ROOT / "nvfp4" / folder).rglob("*.py") if path.name != "__init__.py"]
        assert len(files) == len({*files}), folder


@pytest.mark.parametrize(
    ("module", "text", "found"),
    [
        ("layers.linear", "import nvfp4", "layers.linear imports nvfp4"),
        ("layers.linear", "from nvfp4 import gemm", "layers.linear imports nvfp4"),
        ("layers.linear", "from nvfp4 import linear", "layers.linear imports linear"),
        ("checkpoints.read", "from nvfp4.quantizing import report", "checkpoints.read imports quantizing.report"),
        ("layers.linear", "def f():\n    from nvfp4.cli import show", "layers.linear imports cli.show"),
        ("layers.linear", "from ..cli.show import plain", "layers.linear imports cli.show"),
        ("layers.hosts", "import nvfp4.hosts.peft as m", "layers.hosts imports hosts.peft"),
        ("checkpoints.read", "from .. import gemm", "checkpoints.read imports nvfp4"),
        ("_api", "from nvfp4.layers.linear import Linear", "_api imports layers.linear"),
        ("hosts.peft", "from nvfp4 import peft", "hosts.peft imports peft"),
        ("cli.show", "from nvfp4.bench import report", "cli.show imports bench.report"),
        ("quantizing.report", "from nvfp4 import _api\nimport os", ""),
    ],
)
def test_what_runs_up_is_found(module: str, text: str, found: str, tmp_path: Path) -> None:
    for name in modules_of(ROOT / "nvfp4"):
        path = tmp_path.joinpath(*name.split(".")) if name else tmp_path
        is_folder = (ROOT / "nvfp4").joinpath(*name.split(".")).is_dir() if name else True
        (path if is_folder else path.parent).mkdir(parents=True, exist_ok=True)
        file = path / "__init__.py" if is_folder else path.with_suffix(".py")
        file.write_text(text if name == module else "")
    assert climbs(arrows(tmp_path)) == [found] * bool(found)


def test_a_circle_is_found() -> None:
    assert circle({("a", "b"), ("b", "c"), ("c", "a")}) and not circle({("a", "b"), ("b", "c"), ("a", "c")})


# ---- csrc/ ----

SOURCES = {".c": "host", ".h": "host", ".cu": "device", ".cuh": "device"}


def allowed_includes() -> dict[tuple[str, str], set[str]]:
    """By folder, and by host or device code: the table of docs/life-of-a-call.md."""
    page = (ROOT / "docs" / "life-of-a-call.md").read_text(encoding="utf-8").split("## Which folder may include")[1]
    found = {}
    for line in page.splitlines():
        if line.startswith("| `csrc/"):
            where, may = line.strip("| ").split(" | ")
            folder = re.findall(r"`csrc/(\w+)`", where)[0]
            for code in ("host", "device"):
                if folder != "kernels" or code in where:
                    found[folder, code] = set(re.findall(r"`([\w/]+)`", may))
    return found


def broken_includes(csrc: Path) -> list[str]:
    """Includes that the table does not have; headers without a folder are everyone's, or are made by the build."""
    allowed, broken = allowed_includes(), []
    for path in sorted(path for path in csrc.rglob("*") if path.suffix in SOURCES):
        own = path.parent.relative_to(csrc)
        if not own.parts or (own.parts[0] == "contest" and path.suffix != ".c"):  # the competition's own program
            continue
        may = allowed.get((own.parts[0], SOURCES[path.suffix]), set())
        for target in re.findall(r'(?m)^\s*#include "([^"]+)"', path.read_text(encoding="utf-8")):
            folder = Path(target).parent
            same = folder == own or (own.parts[0] != "kernels" and folder.parts[:1] == own.parts[:1])
            if folder.parts and not same and str(folder) not in may:
                broken.append(f"{path.relative_to(csrc)}: {target}")
    return broken


def test_includes_of_csrc_go_one_way() -> None:
    assert len(allowed_includes()) >= 12
    assert broken_includes(ROOT / "csrc") == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("common/math.h", "plan/traits.h"),
        ("plan/choose.c", "api/rules.h"),
        ("kernels/sm90/gemm.cu", "plan/traits.h"),
        ("kernels/sm90/plan.c", "kernels/sm80/plan.h"),
        ("driver/driver.c", "plan/launch_plan.h"),
    ],
)
def test_an_include_that_climbs_is_found(tmp_path: Path, path: str, line: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(f'#include "{line}"\n')
    assert broken_includes(tmp_path) == [f"{path}: {line}"]


# ---- emulator/ ----


def strangers(emulator: Path) -> list[str]:
    """The imports, includes and names of emulator/ that a project of its own has not."""
    paths = [path for path in sorted(emulator.rglob("*")) if path.is_file() and path.suffix not in (".npz", ".pyc")]
    paths = [path for path in paths if path.relative_to(emulator).parts[0] not in ("build", ".pytest_cache")]
    modules = {path.stem for path in paths} | sys.stdlib_module_names | {"numpy", "pytest", "torch"}
    found = []
    for path in paths:
        text, name = path.read_text(encoding="utf-8"), path.relative_to(emulator)
        found += [f"{name}: {word}" for word in re.findall(r"(?i)nvfp4", text)]
        for node in ast.walk(ast.parse(text)) if path.suffix == ".py" else ():
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imported += [node.module or "."] if isinstance(node, ast.ImportFrom) else []
            found += [f"{name}: {module}" for module in imported if module.partition(".")[0] not in modules]
        for target in re.findall(r'(?m)^\s*#include "([^"]+)"', text) if path.suffix in SOURCES else ():
            places = [(folder / target).resolve() for folder in (path.parent, emulator / "src")]
            if not any(place.is_file() and emulator.resolve() in place.parents for place in places):
                found.append(f"{name}: {target}")
    return found


def test_the_emulator_is_a_project_of_its_own() -> None:
    assert strangers(ROOT / "emulator") == []


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("tests/test_one.py", "import nvfp4", ["nvfp4", "nvfp4"]),
        ("tests/test_one.py", "def f():\n    from paths import ROOT", ["paths"]),
        ("README.md", "It runs NVFP4 kernels.", ["NVFP4"]),
        ("src/one.c", '#include "../../csrc/common/math.h"', ["../../csrc/common/math.h"]),
        ("src/one.c", '#include "room/one.h"\n#include <math.h>', []),
        ("tests/test_one.py", "import numpy.random\nfrom emulate import build", []),
    ],
)
def test_a_stranger_in_the_emulator_is_found(tmp_path: Path, name: str, text: str, found: list[str]) -> None:
    files = {
        "emulator/emulate.py": "",
        "emulator/src/room/one.h": "",
        "csrc/common/math.h": "",
        f"emulator/{name}": text,
    }
    for file, content in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(content)
    assert strangers(tmp_path / "emulator") == [f"{name}: {what}" for what in found]
