"""The header of a GGUF file, checked before gguf reads it: gguf reads past the end of a file without an error, and for
each element of an array it makes several objects.

    magic "GGUF", version u32, tensors u64, pairs u64
    pairs     key, type u32, value; an array is the type of its elements, their number u64, and themselves
    tensors   name, dimensions u32, each u64, type u32, offset u64 from the aligned end of the header

A string is its length u64 and its bytes. Source: docs/gguf.md in ggml.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from nvfp4 import _C
from nvfp4.checkpoints.files import check_file

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of numbers by type
STRING, ARRAY = 8, 9
MAX_TENSORS = 2**20
MAX_ELEMENTS = 2**22  # of all arrays; a vocabulary of 262,144 tokens has some 1.3 million in five arrays
MAX_TEXT = 2**16  # bytes of a name or key
MAX_HEADER = 2**28  # bytes
MAX_DIMENSIONS = 4
DEEPEST = 4  # arrays inside arrays
ALIGNMENT, MAX_ALIGNMENT = 32, 2**20


class Header:
    """Reads a header's fields; each is inside the file, or an error."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self.file = path, file
        self.size = os.fstat(file.fileno()).st_size
        self.order, self.at, self.elements, self.alignment = "<", 0, 0, ALIGNMENT

    def damaged(self, what: str) -> _C.Error:
        return _C.Error(f"{self.path}: is no GGUF file, or damaged: {what}")

    def advance(self, count: int) -> None:
        if count > min(self.size, MAX_HEADER) - self.at:
            raise self.damaged(f"the header needs {count} bytes at byte {self.at}, the file has {self.size}")
        self.at += count

    def take(self, count: int) -> bytes:
        self.advance(count)
        return self.file.read(count)

    def skip(self, count: int) -> None:
        self.advance(count)
        self.file.seek(count, os.SEEK_CUR)

    def number(self, kind: str) -> int:
        (value,) = struct.unpack(self.order + kind, self.take(struct.calcsize(kind)))
        return int(value)

    def text(self) -> str:
        length = self.number("Q")
        if length > MAX_TEXT:
            raise self.damaged(f"a name has {length} bytes; must have at most {MAX_TEXT}")
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.damaged(f"a name is no text: {error}") from None

    def pair(self) -> None:
        key, kind = self.text(), self.number("I")
        if key == "general.alignment" and kind == 4:
            self.alignment = self.number("I")
            if not 0 < self.alignment <= MAX_ALIGNMENT or self.alignment & (self.alignment - 1):
                raise self.damaged(f"general.alignment is {self.alignment}; must be a power of two")
        else:
            self.value(kind, 0)

    def value(self, kind: int, depth: int) -> None:
        if kind in SIZES:
            self.skip(SIZES[kind])
        elif kind == STRING:
            self.skip(self.number("Q"))
        elif kind != ARRAY:
            raise self.damaged(f"a value has the unknown type {kind}")
        elif depth == DEEPEST:
            raise self.damaged(f"more than {DEEPEST} arrays are inside each other")
        else:
            inner, count = self.number("I"), self.number("Q")
            self.elements += count
            if self.elements > MAX_ELEMENTS:
                raise self.damaged(f"its arrays have more than {MAX_ELEMENTS} elements")
            if inner in SIZES:
                self.skip(count * SIZES[inner])
            else:
                for _ in range(count):
                    self.value(inner, depth + 1)


def check_header(path: Path, quant_sizes: Mapping[int, tuple[int, int]]) -> None:
    """Rejects a file if its header or tensors do not lie in it.

    Args:
        quant_sizes: elements and bytes of a block by type: gguf.GGML_QUANT_SIZES.

    Raises:
        nvfp4.Error: naming the file and the field.
    """
    check_file(path)
    with path.open("rb") as file:
        header = Header(path, file)
        if header.take(4) != b"GGUF":
            raise header.damaged("it does not begin with GGUF")
        version = header.number("I")
        if version & 0xFFFF == 0:  # the other byte order
            header.order, version = ">", int.from_bytes(version.to_bytes(4, "little"), "big")
        if version not in (2, 3):
            raise header.damaged(f"its version is {version}; must be 2 or 3")
        tensors, pairs = header.number("Q"), header.number("Q")
        for what, count in (("tensors", tensors), ("pairs", pairs)):
            if count > MAX_TENSORS:
                raise header.damaged(f"it has {count} {what}; must have at most {MAX_TENSORS}")
        for _ in range(pairs):
            header.pair()
        ends = [tensor_end(header, quant_sizes) for _ in range(tensors)]
    start = -(-header.at // header.alignment) * header.alignment
    for name, end in ends:
        if start + end > header.size:
            raise header.damaged(f"{name} ends at byte {start + end}, the file at byte {header.size}")


def tensor_end(header: Header, quant_sizes: Mapping[int, tuple[int, int]]) -> tuple[str, int]:
    """A tensor's name, and where it ends after the header."""
    name, dimensions = header.text(), header.number("I")
    if dimensions > MAX_DIMENSIONS:
        raise header.damaged(f"{name} has {dimensions} dimensions; must have at most {MAX_DIMENSIONS}")
    shape = [header.number("Q") for _ in range(dimensions)]
    kind, offset = header.number("I"), header.number("Q")
    if kind not in quant_sizes:
        raise header.damaged(f"{name} has the unknown type {kind}")
    elements, size = quant_sizes[kind]
    if shape and shape[0] % elements:
        raise header.damaged(f"{name} has rows of {shape[0]}; must be a multiple of {elements}")
    count = 1
    for extent in shape:
        count *= extent
        if count == 0 or count > 2**62:
            raise header.damaged(f"{name} has the shape {shape[::-1]}; must have 1 to 2^62 elements")
    return name, offset + count // elements * size
