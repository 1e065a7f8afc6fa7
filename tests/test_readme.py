"""README.md does what it says: its examples print what it prints, its byte is where it says, links lead to files."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", README)


def test_the_example_prints_what_the_readme_prints() -> None:
    (code,) = blocks("python")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == blocks("text")[0]


def test_the_worked_byte() -> None:
    (session,) = blocks("pycon")
    test = doctest.DocTestParser().get_doctest(session, {}, "README.md", "README.md", 0)
    assert len(test.examples) == 4
    assert doctest.DocTestRunner().run(test).failed == 0


def test_the_worked_nibbles() -> None:
    """v0 = 0.5, v1 = -6 is byte 0xF1, by the package itself."""
    import torch

    import nvfp4

    assert "v0 = 0.5, v1 = -6:  codes 1 and 15,  byte 0xF1" in README
    x = torch.zeros(1, 16)
    x[0, :2] = torch.tensor([0.5, -6])
    data, _ = nvfp4.quantize(x)
    assert data[0, 0] == 0xF1


def test_the_commands_and_variables_exist() -> None:
    from nvfp4.__main__ import COMMANDS

    table = README.split("## Command line")[1].split("## ")[0]
    assert re.findall(r"(?m)^\| `(\w+)", table) == list(COMMANDS)
    sources = [*(ROOT / "csrc").rglob("*.c"), *(ROOT / "build_backend").glob("*.py"), ROOT / "setup.py"]
    read = set(re.findall(r'"(NVFP4_[A-Z_]+)"', "".join(path.read_text(encoding="utf-8") for path in sources)))
    told = set(re.findall(r"`(NVFP4_[A-Z_]+)", README.split("## Environment variables")[1]))
    assert told == read


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?ms)^```.*?^```$", "", text))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").glob("*.md")]
    pages += list((ROOT / "tests").rglob("*.md"))
    assert len(pages) >= 9
    for path in pages:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n```") % 2 == 0, f"{path}: a code fence is not closed"
        for link, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", re.sub(r"(?ms)^```.*?^```$", "", text)):
            if link.startswith("https://"):
                continue
            target = path.parent / link if link else path
            assert target.exists(), f"{path}: {link}"
            if anchor:
                assert anchor in anchors(target.read_text(encoding="utf-8")), f"{path}: {link}#{anchor}"
