"""docs/glossary.md: a sorted table whose terms the sources have."""

from __future__ import annotations

import re

from paths import CSRC, ROOT

ROWS = re.findall(r"^\| (?!term \|)(.+?) \| (.+) \| (.+) \|$", (ROOT / "docs/glossary.md").read_text(), re.M)


def forms(term: str) -> list[str]:
    """The words or phrases of a term's cell."""
    return [form.strip("`") for form in term.split(", ")]


def test_terms_are_sorted_and_explained() -> None:
    terms = [term.replace("`", "").lower() for term, _, _ in ROWS]
    assert terms == sorted(terms) and len(set(terms)) == len(terms) > 70
    assert all(meaning.endswith(".") for _, meaning, _ in ROWS)


def test_terms_occur_in_the_sources() -> None:
    """In the singular or plural, with a space, a hyphen or an underscore between words, or as a part of a name."""
    files = [path for path in CSRC.rglob("*") if path.suffix in (".c", ".h", ".cu", ".cuh", ".def")]
    files += [*(ROOT / "nvfp4").rglob("*.py"), *(ROOT / "tools").rglob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files).lower()
    wanted = [form for term, _, _ in ROWS for form in forms(term)]
    patterns = {
        form: r"(?<![a-z0-9])" + re.sub(r"[-_ ]", r"[-_\\s]", form.lower()) + r"(s|es)?(?![a-z0-9])" for form in wanted
    }
    assert [form for form, pattern in patterns.items() if not re.search(pattern, text)] == []


def test_pages_link_to_it() -> None:
    for page in ("README.md", "CONTRIBUTING.md"):
        assert "(docs/glossary.md)" in (ROOT / page).read_text(encoding="utf-8"), page
