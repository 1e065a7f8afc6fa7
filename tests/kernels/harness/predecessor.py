"""A grid before a product that writes or reads one of its operands late (predecessor.cu): later than what the product
does ahead of griddepcontrol.wait."""

from __future__ import annotations

import contextlib
import gc
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy
from emulate import Array, Emulator

from harness.launch import compile_ptx

SOURCE = Path(__file__).with_name("predecessor.cu")
COPIES, THREADS = 2, 256


class Predecessor:
    def __init__(self, emulator: Emulator, backend: str) -> None:
        self.emulator, self.module = emulator, emulator.load(compile_ptx(SOURCE, backend))
        self.copies: list[tuple[Array, Array]] = []  # to, from
        self.read: list[tuple[Array, numpy.ndarray]] = []  # and what must be there

    def writes(self, array: Array, before: int | None = None) -> None:
        """Writes the array's content late. Until then its elements are `before`, or bytes of 0xFF: NaN in every type
        but e2m1."""
        held = self.emulator.array(array.numpy())
        if before is None:
            array.numpy().view("u1")[...] = 0xFF
        else:
            array.numpy()[...] = before
        self.copies.append((array, held))

    def reads_and_writes(self, array: Array) -> None:
        """Reads the array late, and must find what it holds now. Then writes the same there, which must not last."""
        held = array.numpy().copy()
        seen = self.emulator.empty(array.shape, array.dtype)
        self.copies += [(seen, array), (array, self.emulator.array(held))]
        self.read.append((seen, held))

    @contextlib.contextmanager
    def launched(self) -> Iterator[None]:
        """Queues it, then what the block queues, and runs both. The block must not wait for the queue, as making an
        array does, and freeing one of an earlier test: no garbage collection meanwhile."""
        copies = [(to.address, source.address, to.nbytes) for to, source in self.copies]
        copies += [(0, 0, 0)] * (COPIES - len(copies))
        parameter = b"".join(struct.pack("<QQQ", *copy) for copy in copies)
        kernel = self.module["predecessor"]
        gc.disable()
        try:
            self.emulator.launch(kernel, block=THREADS, args=[parameter], wait=False)
            yield
            self.emulator.synchronize()
        finally:
            gc.enable()
        for seen, held in self.read:
            assert seen.numpy().tobytes() == held.tobytes(), "was written while the grid before still read it"
