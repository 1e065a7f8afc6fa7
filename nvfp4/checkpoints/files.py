"""Files of a checkpoint, which anybody may have made: regular files inside its folder, and JSON within limits."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nvfp4 import _C
from nvfp4._text import printable

# An index has 105 bytes for each tensor: 29 MB for the 276,480 tensors of 60 layers with 384 experts.
MAX_BYTES = 64 * 2**20  # of a JSON text
MAX_CONTAINERS = 2**20  # objects and lists of a JSON text: each takes up to 230 bytes
DEEPEST = 64  # objects and lists inside each other
MAX_DIGITS = 100  # of an integer: int() takes quadratic time
# The exceptions that the readers of safetensors and gguf raise for damaged files, beside errors of their own.
READER_ERRORS = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError)
KINDS = ((stat.S_ISDIR, "folder"), (stat.S_ISFIFO, "FIFO"), (stat.S_ISSOCK, "socket"))
_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|([\[{])|[\]}]', re.DOTALL)  # a string without an end is one too


@contextlib.contextmanager
def file_errors(source: object) -> Iterator[None]:
    """Turns the errors of a file or the file system into an nvfp4.Error without control characters."""
    try:
        yield
    except _C.Error as error:
        if printable(str(error)) == str(error):
            raise
        raise _C.Error(printable(str(error))) from None
    except (OSError, RecursionError, UnicodeError) as error:
        raise _C.Error(printable(f"{source}: cannot be read: {reason(error)}")) from None


def reason(error: BaseException) -> str:
    """An exception's text; of the file system's errors without their number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def is_there(path: Path) -> bool:
    """Whether the folder has an entry of this name. A link to nothing is one, and an error where it is read."""
    return os.path.lexists(path)


def check_file(path: Path, folder: Path | None = None) -> None:
    """Rejects what is no regular file, which might never end, and a link that leaves the folder.

    Args:
        folder: the checkpoint's; None: the caller named the file.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        if os.path.islink(path):
            raise _C.Error(f"{path}: is a link that leads nowhere") from None
        if isinstance(error, FileNotFoundError):
            raise _C.Error(f"{path}: does not exist") from None
        raise _C.Error(f"{path}: cannot be read: {reason(error)}") from None
    if not stat.S_ISREG(mode):
        kind = next((name for test, name in KINDS if test(mode)), "device")
        raise _C.Error(f"{path}: is a {kind}; must be a regular file")
    if folder is not None and not is_inside(path, folder):
        raise _C.Error(
            f"{path}: is a link to {os.path.realpath(path)}, outside of {folder}; must be a file or a link in it"
        )


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a file lies in the folder. Links of a Hub cache's snapshot lead to the same model's blobs."""
    real, base = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    snapshots = [parent.parent / "blobs" for parent in (base, *base.parents) if parent.name == "snapshots"]
    return any(real.is_relative_to(root) for root in (base, *snapshots))


def check_name(where: str, name: str) -> None:
    """Rejects a file name that leads out of the folder of the file that has it."""
    parts = Path(name).parts
    if not parts or Path(name).is_absolute() or ".." in parts or not name.isprintable():
        raise _C.Error(f"{where}: names the file {name!r}; must be a name in the same folder")


def read_json(path: Path, folder: Path | None = None) -> dict[str, Any]:
    """A JSON object; `folder` is as of check_file."""
    check_file(path, folder)
    with file_errors(path), open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise _C.Error(f"{path}: has more than {MAX_BYTES >> 20} MiB, too much for JSON")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _C.Error(f"{path}: is no JSON: {error}") from None
    return parse_json(str(path), text)


def parse_json(where: str, text: str) -> dict[str, Any]:
    """A JSON object; its size and depth are checked first."""
    if len(text) > MAX_BYTES:
        raise _C.Error(f"{where}: has more than {MAX_BYTES >> 20} MiB, too much for JSON")
    check_containers(where, text)
    try:
        content = json.loads(text, parse_int=short_int)
        if "\\ud" in text.lower():
            json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _C.Error(f"{where}: is no JSON: it has half of a surrogate pair") from None
    except ValueError as error:
        raise _C.Error(f"{where}: is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise _C.Error(f"{where}: is a {type(content).__name__}; must be an object")
    return content


def check_containers(where: str, text: str) -> None:
    count = text.count("[") + text.count("{")
    if count > MAX_CONTAINERS:
        raise _C.Error(f"{where}: has more than {MAX_CONTAINERS} objects and lists, too many for JSON")
    if count <= DEEPEST:
        return
    depth = 0
    for token in _TOKENS.finditer(text):
        if token[1]:
            depth += 1
        elif token[0] in "]}":
            depth -= 1
        if depth > DEEPEST:
            raise _C.Error(f"{where}: has more than {DEEPEST} objects and lists inside each other")


def short_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer has {len(digits)} digits; must have at most {MAX_DIGITS}")
    return int(digits)
