"""Where the tests keep the PTX that they compile and run: a folder of the temporary directory that is theirs alone."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from harness.launch import own_folder


def test_a_folder_of_somebody_else_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link, a file, a folder that others can write to, and one of another user."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = own_folder("made")
    assert folder == tmp_path / "made" and folder.stat().st_mode & 0o777 == 0o700 and own_folder("made") == folder
    for mode in (0o770, 0o707):
        folder.chmod(mode)
        with pytest.raises(PermissionError, match=f"^{folder}: must be a folder that belongs to this user and that"):
            own_folder("made")
    folder.chmod(0o755)
    assert own_folder("made") == folder
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(PermissionError):
        own_folder("link")
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        own_folder("file")
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    with pytest.raises(PermissionError):
        own_folder("made")
