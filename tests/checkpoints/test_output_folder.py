"""Where nvfp4.save writes: existing folders keep what they are, and after an error nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

import nvfp4
from nvfp4.checkpoints import output

pytest.importorskip("safetensors.torch", reason="comes with the extra `test`")


def model() -> nn.Module:
    given = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    nvfp4.quantize_model(given, activations=None)
    return given


def test_an_empty_folder_stays_the_same(tmp_path: Path) -> None:
    """Its inode, mode and group: it may be a mount point, or somebody else's. So may the one that a link leads to."""
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    folder.chmod(0o2770)
    link.symlink_to(folder)
    before = folder.stat()
    for path in (folder, link):
        nvfp4.save(model(), path, max_shard_size="3KB")
        after = folder.stat()
        assert (after.st_ino, after.st_mode, after.st_gid) == (before.st_ino, before.st_mode, before.st_gid)
        names = ["config.json", "hf_quant_config.json", *sorted(file.name for file in folder.glob("model*"))]
        assert sorted(file.name for file in folder.iterdir()) == names and len(names) == 5
        assert len(nvfp4.load(folder).layers) == 2 and link.is_symlink()
        for file in folder.iterdir():
            file.unlink()


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i, path in enumerate((".", "", "../b", "c/d")):
        (tmp_path / str(i)).mkdir()
        monkeypatch.chdir(tmp_path / str(i))
        nvfp4.save(model(), path)
        assert len(nvfp4.load(tmp_path / str(i) / path).layers) == 2


def test_what_is_rejected_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "nowhere").symlink_to("none")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    before = sorted(tmp_path.iterdir())
    for name, message in (
        ("nowhere", "is a link that leads nowhere; must be a new or an empty folder"),
        ("loop", "is a link that leads nowhere; must be a new or an empty folder"),
        ("file", "exists; must be a new or an empty folder"),
        ("file/a", "cannot be written: "),
        ("a" * 256, "cannot be written: File name too long"),
        ("b\x1b[2J" + "a" * 256, "cannot be written: File name too long"),
    ):
        with pytest.raises(nvfp4.Error) as error:
            nvfp4.save(model(), tmp_path / name)
        assert message in str(error.value) and str(error.value).isprintable()
        assert sorted(tmp_path.iterdir()) == before


def test_the_longest_name(tmp_path: Path) -> None:
    """The temporary folder's name does not grow with it."""
    nvfp4.save(model(), tmp_path / ("a" * 255))
    assert len(nvfp4.load(tmp_path / ("a" * 255)).layers) == 2


@pytest.mark.parametrize("exists", [False, True])
def test_nothing_is_left_after_an_error(exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where files are moved out already."""
    folder = tmp_path / "out"
    if exists:
        folder.mkdir()

    def rename(self: Path, to: Path, whole: object = Path.rename) -> None:
        if to.name in ("config.json", "out"):
            raise PermissionError(13, "Permission denied", str(to))
        whole(self, to)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(nvfp4.Error, match="out cannot be written: Permission denied: "):
        nvfp4.save(model(), folder)
    assert list(tmp_path.rglob("*")) == ([folder] if exists else [])


def test_somebody_else_writes_into_it(tmp_path: Path) -> None:
    with pytest.raises(nvfp4.Error, match="is no longer empty"), output.target(tmp_path) as folder:
        (folder / "a").touch()
        (tmp_path / "other").touch()
    assert [file.name for file in tmp_path.iterdir()] == ["other"]


def test_temporary_names_differ(tmp_path: Path) -> None:
    """Processes in two containers may have one number and one folder; a killed one leaves its own."""
    with output.target(tmp_path / "a") as first, output.target(tmp_path / "b") as second:
        assert first.parent == second.parent == tmp_path and first.name != second.name


@pytest.mark.parametrize("exists", [False, True])
def test_a_full_disk(exists: bool, tmp_path: Path) -> None:
    """The limit of a file's size raises the same errors. The command's exit status is 2."""
    nvfp4.save(model(), tmp_path / "in")
    if exists:
        (tmp_path / "out").mkdir()
    command = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)); import nvfp4.__main__ as m"
    )
    words = ["convert", str(tmp_path / "in"), str(tmp_path / "out"), "--to", "compressed-tensors"]
    done = subprocess.run(
        [sys.executable, "-c", f"{command}; sys.exit(m.main({words!r}))"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 2 and done.stdout == ""
    assert f"path: {tmp_path / 'out'} cannot be written: " in done.stderr and "Traceback" not in done.stderr
    assert (tmp_path / "out").exists() == exists and not any((tmp_path / "out").glob("*"))
    assert {path.name for path in tmp_path.iterdir()} <= {"in", "out"}


def test_sizes_that_are_no_numbers() -> None:
    for size in ("9" * 400 + "GB", "9" * 5000, 10**400, -1, True):
        with pytest.raises(nvfp4.Error, match="max_shard_size: is "):
            nvfp4.save(nn.Sequential(nvfp4.Linear.from_linear(nn.Linear(16, 16))), "unused", max_shard_size=size)
