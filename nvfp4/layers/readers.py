"""Classes that read the weight of a linear layer below them, found in their source: for a product, an index, or its
dtype, as T5 does. Packed bytes are right for none of these.

Functions that make or reset weights do not count, nor those by which diffusers joins projections on request, nor those
that look for uint8, nor questions whether the dtype is a floating-point one.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias

import torch

# Names from the class's module down to the layer. "*" is any index, a first "" anything.
Path: TypeAlias = tuple[str, ...]
NOT_READERS = ("init", "reset", "fuse_projections")  # parts of names of functions
GETTER = "get_parameter_dtype"
NO_ARGUMENTS = ast.arguments([], [], None, [], [], None, [])


def reader_of(name: str, modules: Mapping[str, torch.nn.Module]) -> str | None:
    """The class of a module above that reads the weight of the layer of this name; None: none does."""
    parts = tuple(name.split("."))
    for i in reversed(range(len(parts))):
        kind: Any = type(modules.get(".".join(parts[:i])))
        if any(matches(path, parts[i:]) for path in weights_read(kind)):
            return str(kind.__name__)
    return None


def matches(path: Path, parts: Path) -> bool:
    if path[0] == "":
        path, parts = path[1:], parts[-len(path) + 1 :]
    return len(path) == len(parts) and all(a == b or (a == "*" and b.isdigit()) for a, b in zip(path, parts))


def emptied(modules: Mapping[str, torch.nn.Module], layers: Collection[str]) -> dict[str, str]:
    """The layers that have all parameters of a module whose first parameter a class asks for, with that class: of
    Wan's time embedder, whose dtype it takes. Packed layers have buffers alone."""
    found: dict[str, str] = {}
    for name, module in modules.items():
        kind: Any = type(module)
        for path in first_parameters_read(kind):
            inside = ".".join(filter(None, (name, *path)))
            owners = (
                {key.rpartition(".")[0] for key, _ in modules[inside].named_parameters()} if inside in modules else {}
            )
            names = [f"{inside}.{owner}" if owner else inside for owner in owners]
            if names and all(each in layers for each in names):
                found |= dict.fromkeys(names, str(kind.__name__))
    return found


@functools.cache
def first_parameters_read(kind: Any) -> frozenset[Path]:
    """The modules below whose first parameter the functions of a class ask for, by next() or by the function of that
    name in diffusers, which takes the first buffer's dtype if there is no parameter."""
    found: set[Path] = set()
    for base in kind.__mro__:
        for text in sources(base).values():
            if ".parameters()" not in text and GETTER not in text:
                continue
            for call in (node for node in ast.walk(parsed(text)) if isinstance(node, ast.Call)):
                if (path_of(call.func) or ("",))[-1] == GETTER and call.args and (path := path_of(call.args[0])):
                    found |= {path[1:]} if path[0] == "self" and len(path) > 1 else set()
                asked = call.args[0] if path_of(call.func) in (("next",), ("iter",)) and call.args else None
                if isinstance(asked, ast.Call) and (path := path_of(asked.func)) and path[-1] == "parameters":
                    found |= {path[1:-1]} if path[0] == "self" and len(path) > 2 else set()
    return frozenset(found)


@functools.cache
def weights_read(kind: Any) -> frozenset[Path]:
    """The layers whose weight the functions of a class read. A function that is given a layer of `self` may read the
    weight of its parameter."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        texts |= sources(base)
    found: set[Path] = set()
    readers: dict[str, set[str]] = {}  # functions, and the parameters of which they read the weight
    for name, text in texts.items():
        if ".weight" not in text or "torch.uint8" in text:
            continue
        for path in filter(None, map(path_of, weights(parsed(text)))):
            if path[0] == "self":
                found.add(path[1:])
            elif len(path) == 1:
                readers.setdefault(name, set()).add(path[0])
            elif not all(part == "*" or part.isdigit() for part in path[1:]):
                found.add(("", *path[1:]))
    for name, read in readers.items():
        names = [parameter.arg for parameter in parsed(texts[name]).args.args[1:]]
        for text in texts.values():
            if f"self.{name}(" in text:
                found.update(layers_given(parsed(text), name, names, read))
    return frozenset(path for path in found if path)


@functools.cache
def sources(base: type) -> dict[str, str]:
    """The texts of a class's own functions; none of torch's."""
    texts: dict[str, str] = {}
    if base.__module__.partition(".")[0] in ("torch", "nvfp4", "builtins"):
        return texts
    for name, function in vars(base).items():
        function = function.fget if isinstance(function, property) else function
        if inspect.isfunction(function) and not any(part in name for part in NOT_READERS):
            try:
                texts[name] = textwrap.dedent(inspect.getsource(function))
            except (OSError, TypeError):  # made without a file
                continue
    return texts


@functools.lru_cache(256)
def parsed(text: str) -> ast.FunctionDef:
    """The syntax tree of a function. A lambda, which stands in another statement, has none of its own."""
    try:
        tree = ast.parse(text).body[0]
    except SyntaxError:
        tree = None
    return tree if isinstance(tree, ast.FunctionDef) else ast.FunctionDef("", NO_ARGUMENTS, [], [])


def layers_given(caller: ast.FunctionDef, name: str, names: list[str], read: set[str]) -> Iterator[Path]:
    """The layers of `self` that a function passes to self.name, if self.name reads the weight of that parameter."""
    for call in (node for node in ast.walk(caller) if isinstance(node, ast.Call)):
        if path_of(call.func) == ("self", name):
            given = [*zip(names, call.args), *((keyword.arg, keyword.value) for keyword in call.keywords)]
            for parameter, value in given:
                path = path_of(value) or ()
                if parameter in read and path[:1] == ("self",):
                    yield path[1:]


def weights(function: ast.FunctionDef) -> Iterator[ast.expr]:
    """The objects whose `.weight` a function reads, as expressions. `outproj_weight` is left out: Mamba-2's fused
    kernel takes it in training alone."""
    above = {child: node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(function):
        if not isinstance(node, ast.Attribute) or node.attr != "weight":
            continue
        use: Any = above[node]
        if isinstance(use, ast.keyword) and use.arg == "outproj_weight":
            continue
        if isinstance(use, ast.Attribute) and use.attr == "device":
            continue
        if isinstance(use, ast.Attribute) and use.attr == "dtype":
            named = above[use]
            question = above[named] if isinstance(named, ast.NamedExpr) else named
            if isinstance(question, ast.Attribute) and question.attr == "is_floating_point":
                continue
        yield node.value


def path_of(node: ast.expr) -> Path | None:
    """The names of `self.blocks[0].mlp`: ("self", "blocks", "0", "mlp"). None for another expression."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute) and (path := path_of(node.value)):
        return (*path, node.attr)
    if isinstance(node, ast.Subscript) and (path := path_of(node.value)):
        index = node.slice
        return (*path, str(index.value) if isinstance(index, ast.Constant) else "*")
    return None
