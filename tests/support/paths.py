"""Paths in the checkout, and the modules at some of them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
CSRC, BENCHMARKS, EMULATOR, TESTS = ROOT / "csrc", ROOT / "benchmarks", ROOT / "emulator", ROOT / "tests"
SUPPORT, KERNELS, TOOLS = TESTS / "support", TESTS / "kernels", ROOT / "tools"


def gpu_backends() -> list[str]:
    """The backends of GPU kernels, oldest architecture first: folders of csrc/kernels with a config header."""
    names = {path.parent.name for path in (CSRC / "kernels").glob("sm*/*config.h")}
    return sorted(names, key=lambda name: int(name.removeprefix("sm")))


def proven_backends() -> list[str]:
    """The backends whose folder has launches for the static verifier (schedules.py) and mutations (mutations.py)."""
    return [name for name in gpu_backends() if (KERNELS / name / "mutations.py").exists()]


def module_at(path: Path) -> ModuleType:
    """A program of the checkout as a module, made anew; sys.modules has it while it runs, as its dataclasses need. It
    may import its neighbours."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(path.stem)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
        if before is None:
            del sys.modules[path.stem]
        else:
            sys.modules[path.stem] = before
    return module
