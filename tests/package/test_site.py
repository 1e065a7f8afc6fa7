"""The site's own pages (docs/mkdocs.yml): the reference has every public name, and the page of the C header every
declaration. `.ci/run` builds the site, which checks links, anchors and docstrings."""

from __future__ import annotations

import ast
import importlib.util
import re

from paths import CSRC, ROOT

import nvfp4

REFERENCE = re.findall(r"(?m)^::: (\S+)$", (ROOT / "docs/reference.md").read_text(encoding="utf-8"))
NAV = re.findall(r"(?m)^ +- (?:[^\n]*: )?([\w./-]+\.md)$", (ROOT / "docs/mkdocs.yml").read_text(encoding="utf-8"))
# What importing a module is for, beside its functions, and what quantizes behind a public configuration.
INNER = re.compile(r"\w+Quantizer|LoraLinear|ParamWrapper|dispatch_nvfp4|ExactNvFp4LinearKernel|\w+(?<!Fp8)Linear")


def exported(module: str) -> set[str]:
    """The public names of a module, which need not be importable here: __all__, or what it imports by `as`."""
    tree = ast.parse((ROOT / "nvfp4" / f"{module}.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            return set(ast.literal_eval(node.value))
    imported = (alias for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names)
    return {alias.asname for alias in imported if alias.asname and alias.asname == alias.name}


def test_the_reference_has_every_public_name() -> None:
    assert len(set(REFERENCE)) == len(REFERENCE)
    names = {name for name in (*nvfp4.__all__, *nvfp4._LAZY) if name != "__version__"}
    assert {f"nvfp4.{name}" for name in names} <= set(REFERENCE)
    for module in ("transformers", "diffusers", "parallel", "peft", "vllm", "comfy"):
        names = {f"nvfp4.{module}.{name}" for name in exported(module) if not INNER.fullmatch(name)}
        assert names == {name for name in REFERENCE if name.startswith(f"nvfp4.{module}.")}


def test_the_page_of_the_header_has_every_declaration() -> None:
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs/hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    header = (CSRC / "nvfp4.h").read_text(encoding="utf-8")
    page = hooks.header_page(header)
    code = re.sub(r"(?s)/\*.*?\*/", "", header)
    functions = set(re.findall(r"(?m)^(?:static inline )?[\w *]*?\b(nvfp4_[a-z0-9_]+)\(", code))
    types = set(re.findall(r"(?m)^\} (nvfp4_\w+);$", code))
    assert len(functions) > 30 and len(types) > 20
    headings = set(re.findall(r"\w+", " ".join(re.findall(r"(?m)^## (.+)$", page))))
    assert functions | types <= headings
    assert page.count("```c\n") == page.count("\n```\n")


def test_every_page_is_in_the_menu() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md"), *ROOT.glob("*.md")]
    assert {str(path.relative_to(ROOT)) for path in pages} <= set(NAV)
    assert all((ROOT / name).is_file() for name in NAV)
