"""mkdocs.yml needs this beside plugins: the page of the C header, made from its comments, and pipes in the code of
tables, which Python-Markdown leaves escaped. MkDocs calls the functions that begin with `on_`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEADER = Path(__file__).resolve().parent.parent / "csrc" / "nvfp4.h"
MARK = "<!-- nvfp4.h -->"
COMMENT = re.compile(r"/\*.*?\*/\n", re.DOTALL)


def on_page_markdown(markdown: str, **_: Any) -> str:
    return markdown.replace(MARK, header_page(HEADER.read_text(encoding="utf-8"))) if MARK in markdown else markdown


def on_page_content(html: str, **_: Any) -> str:
    return re.sub(r"<code>[^<]*</code>", lambda code: code[0].replace("\\|", "|"), html)


def header_page(header: str) -> str:
    return "\n".join(section(comment, code) for comment, code in parts(header))


def parts(header: str) -> Iterator[tuple[str, str]]:
    """The comment and the code of each declaration, first the header's own comment with no code. A declaration begins
    at a comment in the first column or behind an empty line. Include guards and the like belong to none."""
    yield COMMENT.match(header)[0], ""  # type: ignore[index]
    body = header[header.index("#define NVFP4_VERSION") : header.rindex("#ifdef NVFP4_LIBRARY")]
    body = re.sub(r"(?m)^#(ifn?def|endif|pragma|define NVFP4_COMMON_).*\n", "", body)
    for block in re.findall(r"(?ms)^(?:/\*.*?\*/\n)?(?:^(?!/\*)[^\n]+\n)+", body):
        comment = COMMENT.match(block)
        text = comment[0] if comment else ""
        yield text, block[len(text) :]


def section(comment: str, code: str) -> str:
    declared = r"(?m)^\} (\w+);$|^[\w *]*?\b(nvfp4_\w+)\(|^#define (\w+)|^typedef struct \w+ (\w+);$"
    names = list(dict.fromkeys(name for row in re.findall(declared, code) for name in row if name))
    names = [name for name in names if name.islower()] or names  # macros are named where nothing else is
    heading = f"## {', '.join(names)}\n\n" if names else ""
    return f"{heading}{prose(comment)}\n" + (f"```c\n{code.rstrip()}\n```\n" if code else "")


def prose(comment: str) -> str:
    """A comment as Markdown: paragraphs, and a list of the lines that begin with a name and, behind it, a text."""
    out: list[str] = []
    in_list = False
    for line in comment.strip().removesuffix("*/").splitlines():
        text = re.sub(r"^/?\s?\*+ ?", "", line).rstrip()
        entry = re.match(r"  ((?:\w+(?:\(.*?\))?(?:, )?)+) +(\S.*)", text)
        escaped = re.sub(r"([*<_])", r"\\\1", text.strip())
        if entry:
            name = re.sub(r"([*<_])", r"\\\1", entry[1])
            out += [*([] if in_list else [""]), f"- **{name}** {escaped[len(name) :].lstrip()}"]
            in_list = True
        elif in_list and text.startswith("  "):
            out.append(f"  {escaped}")
        else:
            out += ["", escaped] if in_list else [escaped]
            in_list = False
    return "\n".join(out) + "\n"
