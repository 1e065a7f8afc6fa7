"""Folders that a checkpoint is written into: whole or not at all, and never over something else."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from nvfp4 import _C
from nvfp4._text import printable
from nvfp4.checkpoints.files import reason

FIRST, LAST = (".safetensors", ".index.json"), "config.json"  # what is moved first and last


def check_target(path: Path) -> None:
    """Rejects what is no new or empty folder."""
    with writing(path):
        if path.is_symlink() and not path.exists():
            raise _C.Error(f"path: {path} is a link that leads nowhere; must be a new or an empty folder")
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise _C.Error(f"path: {path} exists; must be a new or an empty folder")


@contextlib.contextmanager
def target(path: Path) -> Iterator[Path]:
    """Yields a temporary folder. Its files become those of `path` in the end; after an error nothing is left.

    A new folder is the temporary one, renamed. An existing one, which may be a mount point or belong to somebody else,
    stays: the temporary one is inside, and its files are moved out, config.json last. The temporary name is drawn, so
    that processes with equal numbers in other containers have others.
    """
    path = Path.cwd() / path
    check_target(path)
    exists = path.exists()
    folder = (path if exists else path.parent) / f".nvfp4-{secrets.token_hex(8)}.tmp"
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
    moved: list[Path] = []
    try:
        with writing(path):
            yield folder
            if not exists:
                folder.rename(path)
                return
            if [entry.name for entry in path.iterdir()] != [folder.name]:
                raise _C.Error(f"path: {path} is no longer empty")
            for file in sorted(folder.iterdir(), key=lambda file: (file.name == LAST, not file.name.endswith(FIRST))):
                moved.append(path / file.name)
                file.rename(moved[-1])
            folder.rmdir()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        for file in moved:
            file.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns errors of the file system into an nvfp4.Error: a full disk, missing permissions, too long a name."""
    try:
        yield
    except OSError as error:
        raise _C.Error(printable(f"path: {path} cannot be written: {reason(error)}")) from None


def copy(file: Path, folder: Path) -> None:
    """Copies a file without letting others read what they could not."""
    shutil.copyfile(file, folder / file.name)
    mode = stat.S_IMODE((folder / file.name).stat().st_mode)
    (folder / file.name).chmod(mode & (file.stat().st_mode | stat.S_IWUSR))
