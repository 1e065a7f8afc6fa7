"""What users of nvfp4 0.3.0 hold stays valid: names and signatures, pickled layers, an exported program.

tests/vectors/interface has them as the build of commit 626ee214 made them.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from paths import TESTS

import nvfp4

FOLDER = TESTS / "vectors" / "interface"
sys.path.insert(1, str(FOLDER))

import make as interface  # noqa: E402

NAMES: dict[str, dict[str, str]] = json.loads((FOLDER / "names.json").read_text())
LAYERS: dict[str, Any] = torch.load(FOLDER / "layers.pt", weights_only=False)


@pytest.mark.parametrize("module", sorted(NAMES))
def test_names_and_signatures(module: str) -> None:
    if module in interface.HOSTS:
        pytest.importorskip(interface.HOSTS[module])
    for name, recorded in NAMES[module].items():
        value: Any = importlib.import_module(module)
        for part in name.split("."):
            owner, value = value, getattr(value, part)
        if inspect.isclass(owner):
            value = inspect.getattr_static(owner, part)
        now = interface.signature(value)
        assert recorded in ("class", now) or (recorded[0] == now[0] == "(" and extends(recorded, now)), name


def parameters(signature: str) -> tuple[list[tuple[str, str | None]], list[tuple[str, str | None]]]:
    """Names with defaults of what may be given by position, and of what may be given by name alone."""
    (function,) = ast.parse(f"def f{signature.replace('<factory>', 'factory')}: ...").body  # of a dataclass's field
    assert isinstance(function, ast.FunctionDef)
    given = function.args
    first = [None] * (len(given.args) - len(given.defaults)) + [ast.unparse(default) for default in given.defaults]
    named = [None if default is None else ast.unparse(default) for default in given.kw_defaults]
    stars = [(f"*{star.arg}", None) for star in (given.vararg, given.kwarg) if star is not None]
    return [*zip([p.arg for p in given.args], first)], [*zip([p.arg for p in given.kwonlyargs], named), *stars]


def extends(recorded: str, signature: str) -> bool:
    """Whether each call that a recorded signature takes is one of the signature, and means the same. New parameters
    have defaults and come last."""
    (old, old_named), (new, new_named) = parameters(recorded), parameters(signature)
    added = [p for p in (*new[len(old) :], *new_named) if p not in old_named]
    return new[: len(old)] == old and {*old_named} <= {*new_named} and all(default is not None for _, default in added)


def test_what_extends_a_signature() -> None:
    old = "(x: 'int', y: 'str' = 'a', *, z: 'float' = 1.0) -> 'int'"
    assert extends(old, old) and extends(old, "(x: 'int | str', y='a', new=None, *, z=1.0, other=2)")
    for new in (
        "(x, y='b', *, z=1.0)",
        "(x, new=1, y='a', *, z=1.0)",
        "(x, y='a', *, other=1)",
        "(x, y='a', *, z=1.0, w)",
    ):
        assert not extends(old, new), new


def test_all_of_the_package_is_recorded() -> None:
    public = {*nvfp4.__all__, *nvfp4._LAZY} - {"__version__"}
    assert public <= NAMES["nvfp4"].keys() | {"Error"}


@pytest.mark.parametrize("name", LAYERS)
def test_a_pickled_layer_is_read(name: str) -> None:
    pickle, x, y = LAYERS[name]
    layer = torch.load(io.BytesIO(pickle), weights_only=False)
    assert torch.equal(interface.run(layer, x), y)
    again = torch.load(io.BytesIO(interface.pickled(layer)), weights_only=False)
    assert torch.equal(interface.run(again, x), y)


def test_a_pickle_imports_what_it_needs() -> None:
    """In a process that has not imported nvfp4."""
    program = f"""
import io, torch
for pickle, x, y in torch.load({str(FOLDER / "layers.pt")!r}, weights_only=False).values():
    torch.load(io.BytesIO(pickle), weights_only=False)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_an_exported_program_is_read() -> None:
    program = torch.export.load(FOLDER / "program.pt2")
    inputs, _ = program.example_inputs
    wanted = torch.load(FOLDER / "program_results.pt")
    found = program.module()(*inputs)
    operators = {
        name.partition("::")[2] for name in torch._C._dispatch_get_all_op_names() if name.startswith("nvfp4::")
    }
    assert found.keys() == wanted.keys() <= operators  # newer operators are in no program of that build
    for name in wanted:
        for own, other in zip(tensors(found[name]), tensors(wanted[name]), strict=True):
            assert own.dtype == other.dtype and own.shape == other.shape, name
            assert torch.equal(own.flatten().view(torch.uint8), other.flatten().view(torch.uint8)), name


def tensors(result: Any) -> tuple[torch.Tensor, ...]:
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)
