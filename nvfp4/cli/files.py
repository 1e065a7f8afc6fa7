"""Files that commands write: whole, or the old one stays."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path


def write_text(path: str | Path, text: str) -> None:
    """Writes a file beside the old one, with its mode and owner, and then replaces it. A device or a pipe is
    written as it is. Raises OSError."""
    path = Path(os.path.realpath(path))
    old = path.stat() if path.exists() else None
    if old is not None and not stat.S_ISREG(old.st_mode):
        path.write_text(text, encoding="utf-8", newline="\n")
        return
    new = path.with_name(f".nvfp4-{secrets.token_hex(8)}.tmp")
    try:
        new.write_text(text, encoding="utf-8", newline="\n")
        if old is not None:
            with contextlib.suppress(PermissionError):
                os.chown(new, old.st_uid, old.st_gid)
            new.chmod(stat.S_IMODE(old.st_mode))
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
