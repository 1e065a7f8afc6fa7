"""Which files make a checkpoint: all parts of one variant, or an error that names the missing part.

an index                            model.safetensors.index.json, or the only *.safetensors.index.json: its files
parts                               NAME-00001-of-00003.safetensors or .gguf; one of them stands for all
a second variant                    NAME.fp16.safetensors beside NAME.safetensors: not read
other names                         Mistral's consolidated*.safetensors beside others: not read
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from nvfp4 import _C
from nvfp4._text import shown
from nvfp4.checkpoints.files import READER_ERRORS, check_file, check_name, is_there, read_json

INDEX = "model.safetensors.index.json"
MISTRAL = "consolidated"  # the files of Mistral, whose tensors have other names
OTHER_NAMES = "has the tensors of model.safetensors by other names; name the file to read it"
PART = re.compile(r"(.+)-(\d{1,5})-of-(\d{1,5})(\.safetensors|\.gguf)")


def parts_of(path: Path) -> list[Path]:
    """All parts of a file that is one; else the file alone."""
    match = PART.fullmatch(path.name)
    if match is None:
        return [path]
    stem, number, total, suffix = match[1], match[2], int(match[3]), match[4]
    names = [f"{stem}-{i:0{len(number)}}-of-{match[3]}{suffix}" for i in range(1, total + 1)]
    if path.name not in names:
        raise _C.Error(f"{path}: is part {int(number)} of {total}; must be one of 1 to {total}")
    for name in names:
        if not is_there(path.parent / name):
            raise _C.Error(f"{path.parent / name}: does not exist, but {path.name} is one of {total} parts")
    return [path.parent / name for name in names]


def find_index(path: Path) -> Path | None:
    """The index of a folder, or of the folder of a file that it names as one of several."""
    if path.name.endswith(".index.json"):
        return path
    folder = path if path.is_dir() else path.parent
    if is_there(folder / INDEX):
        return folder / INDEX
    found = sorted(folder.glob("*.safetensors.index.json"))
    return found[0] if len(found) == 1 else None


def weight_map(index: Path) -> dict[str, str]:
    """The file of each tensor by an index."""
    found = read_json(index, index.parent).get("weight_map")
    if not isinstance(found, dict) or not found or not all(isinstance(name, str) for name in found.values()):
        raise _C.Error(f"{index}: weight_map is {shown(found)}; must be an object of tensor names with file names")
    for name in set(found.values()):
        check_name(str(index), name)
    return found


def files_of(folder: Path) -> tuple[list[Path], dict[str, str]]:
    """The *.safetensors files of a folder without an index, and those that are not read, with the reason."""
    files = sorted(folder.glob("*.safetensors"))
    names, unread = {file.name for file in files}, {}
    stems = {match[1] if (match := PART.fullmatch(name)) else name.removesuffix(".safetensors") for name in names}
    totals: dict[str, str] = {}
    chosen: dict[Path, None] = {}
    has_model = any(name.startswith("model") for name in names)
    for file in files:
        if has_model and file.name.startswith(MISTRAL):
            unread[file.name] = OTHER_NAMES
            continue
        match = PART.fullmatch(file.name)
        stem = match[1] if match else file.name.removesuffix(".safetensors")
        whole, _, variant = stem.rpartition(".")
        if whole in stems and re.fullmatch(r"\w+", variant):
            unread[file.name] = f"is another variant of {whole}.safetensors, which is read; name the file to read it"
            continue
        if match:
            if f"{stem}.safetensors" in names:
                unread[file.name] = f"is a part of another variant than {stem}.safetensors, which is read"
                continue
            if totals.setdefault(stem, match[3]) != match[3]:
                raise _C.Error(f"{file}: is one of {int(match[3])} parts, but others are of {int(totals[stem])}")
        if file not in chosen:
            chosen |= dict.fromkeys(parts_of(file))
    return list(chosen), unread


def unread_files(path: Path) -> dict[str, str]:
    """Files of a folder that hold another variant of the checkpoint and are not read, with the reason."""
    if not path.is_dir():
        return {}
    index = find_index(path)
    if index is None:
        return files_of(path)[1]
    whole, named = path / index.name.removesuffix(".index.json"), {*weight_map(index).values()}
    unread = {file.name: OTHER_NAMES for file in path.glob(f"{MISTRAL}*.safetensors") if file.name not in named}
    if is_there(whole) and whole.name not in named:
        unread[whole.name] = f"is another variant than the files that {index.name} names; name the file to read it"
    return unread


def is_mistral(path: Path) -> bool:
    """Whether the files that are read have Mistral's names of tensors."""
    return all(file.name.startswith(MISTRAL) for file in chosen_files(path)[0])


def chosen_files(path: Path) -> tuple[list[Path], dict[str, str], str]:
    """The files of a checkpoint, the file of each tensor by its index, and the name of that; there may be none."""
    if not path.is_dir():
        check_file(path)
    index = find_index(path)
    expected = {} if index is None else weight_map(index)
    if index is None or (not path.is_dir() and path != index and path.name not in expected.values()):
        files, expected = files_of(path)[0] if path.is_dir() else parts_of(path), {}
    else:
        files = [index.parent / name for name in sorted(set(expected.values()))]
    if not files:
        hint = "; of GGUF give the file itself" if any(path.glob("*.gguf")) else ""
        raise _C.Error(f"{path}: has no *.safetensors file{hint}")
    return files, expected, "" if index is None else index.name


def read_files(path: Path, mmap: bool = True) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a checkpoint's files, mapped or read into memory, and the files' metadata."""
    files, expected, by = chosen_files(path)
    for file in files:
        if expected and not is_there(file):
            raise _C.Error(f"{file}: does not exist, but {by} names it")
        check_file(file, None if file == path else path if path.is_dir() else path.parent)
    tensors, metadata = read_tensors(files, mmap)
    for name, file_name in expected.items():
        if name not in tensors:
            raise _C.Error(f"{name}: is not in {file_name}, where {by} says it is")
    return tensors, metadata


def read_tensors(files: Iterable[Path], mmap: bool = True) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors and the metadata of *.safetensors files, which are regular files."""
    try:
        import safetensors.torch
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError:
        raise ModuleNotFoundError("nvfp4.load needs safetensors: pip install safetensors", name="safetensors") from None
    tensors: dict[str, Tensor] = {}
    metadata: dict[str, str] = {}
    for file in files:
        try:
            if mmap:
                with safe_open(str(file), framework="pt") as opened:
                    metadata |= opened.metadata() or {}
                    own = {name: opened.get_tensor(name) for name in sorted(opened.keys())}
            else:
                content = file.read_bytes()
                own = safetensors.torch.load(content)  # checks the header's length
                metadata |= json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__", {})
        except (SafetensorError, *READER_ERRORS) as error:
            raise _C.Error(f"{file}: is no safetensors file, or damaged: {error}") from None
        for name in own:
            if name in tensors:
                raise _C.Error(f"{name}: is in {file.name} and in another file")
        tensors |= own
    return tensors, metadata
