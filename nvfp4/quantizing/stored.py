"""Results of quantize_model in a folder, so that an interrupted run goes on where it stopped.

    run.json                      what the results depend on
    NAME.safetensors              a layer's result: its tensors, and its numbers as metadata

Each file gets its name when it is whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from nvfp4 import _C
from nvfp4._text import printable, shown
from nvfp4.checkpoints.files import is_there, read_json
from nvfp4.checkpoints.shards import read_tensors
from nvfp4.quantizing.weights import Result

RUN, SUFFIX = "run.json", ".safetensors"
TENSORS = ("weight", "weight_scale", "weight_global_scale")


class StoredResults(MutableMapping[str, Result]):
    """The results of the layers by name, which are read from their files each time."""

    def __init__(self, folder: Path, finished: Callable[[str], None]) -> None:
        self.folder, self.finished = folder, finished

    def file(self, name: str) -> Path:
        return self.folder / (quote(name, safe="") + SUFFIX)

    def __getitem__(self, name: str) -> Result:
        if name not in self:
            raise KeyError(name)
        tensors, metadata = read_tensors([self.file(name)])
        return Result(**tensors, **json.loads(metadata["numbers"]))

    def __setitem__(self, name: str, result: Result) -> None:
        import safetensors.torch

        tensors = {key: getattr(result, key).contiguous() for key in TENSORS}
        numbers = {key.name: getattr(result, key.name) for key in fields(result) if key.name not in TENSORS}
        new = self.folder / "unfinished.tmp"
        safetensors.torch.save_file(tensors, new, {"numbers": json.dumps(numbers)})
        new.replace(self.file(name))
        self.finished(name)

    def __delitem__(self, name: str) -> None:
        self.file(name).unlink()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.file(name).is_file()

    def __iter__(self) -> Iterator[str]:
        return (unquote(file.name.removesuffix(SUFFIX)) for file in sorted(self.folder.glob("*" + SUFFIX)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@contextlib.contextmanager
def stored_results(folder: Path, run: Mapping[str, Any], finished: Callable[[str], None]) -> Iterator[StoredResults]:
    """Yields the results that a folder keeps. The folder is new, or an earlier run of this kind has left it.

    In the end the folder is removed with all that is in it. After an error it stays if it has a result.

    Args:
        run: what the results depend on, as JSON has it.
        finished: is called with the name of each layer after its result has been stored.

    Raises:
        nvfp4.Error: the folder belongs to another program, to another run, or to one that is not over.
    """
    run = json.loads(json.dumps(run))
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        results = StoredResults(folder, finished)
        check_run(results, run)
        new = folder / "run.tmp"
        new.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
        new.replace(folder / RUN)
        try:
            yield results
        except BaseException:
            if not results:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Rejects a folder that another process has locked. The system unlocks it when the process ends."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _C.Error(printable(f"{folder}: is in use by another run; must be that of one run")) from None
        yield
    finally:
        os.close(handle)


def check_run(results: StoredResults, run: Mapping[str, Any]) -> None:
    """Rejects a folder that was not made by an equal run, unless it has no result."""
    folder = results.folder
    if not is_there(folder / RUN):
        if any(folder.iterdir()):
            raise _C.Error(f"{folder}: has no {RUN}, so no run has left it; must be new, or be deleted")
        return
    before = read_json(folder / RUN, folder)
    if before == run:
        for name in results:
            results[name]  # raises an error for a file that is damaged
    if before == run or not results:
        return
    key = next(key for key in (*run, *before) if before.get(key) != run.get(key))
    raise _C.Error(
        printable(
            f"{folder}: has {len(results)} layers of a run whose {key} was {shown(before.get(key))} and is "
            f"{shown(run.get(key))} now; repeat that run, or delete the folder"
        )
    )
