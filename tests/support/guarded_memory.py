"""CPU tensors that begin or end exactly where memory is inaccessible: an access past them is a page fault.

    [PROT_NONE page] [slack] [tensor] ........ [PROT_NONE page]     edge "begin"
    [PROT_NONE page] ........ [tensor] [slack] [PROT_NONE page]     edge "end"

`slack` places a tensor whose size is no multiple of the wanted alignment. Everything but the tensor holds random bytes.
The emulated GPU checks addresses of host memory, so that its kernels fault too. On a real GPU the same layout lies in a
plain allocation: compute-sanitizer checks that one. A fault ends the process: call_workers.py reports it.

A tensor of gigabytes, because its rows or batches lie far apart, has memory in the pages of its rows alone: an access
to others is a fault too.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
from collections.abc import Sequence

import torch

PROT_NONE = 0  # the module mmap does not have it
MAP_NORESERVE = 0x4000  # likewise, before Python 3.11; of Linux
SPARSE = 2**28  # bytes from which on only the pages of rows are accessible
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def protect(address: int, size: int, protection: int) -> None:
    if size and _libc.mprotect(address, size, protection):
        raise OSError(ctypes.get_errno(), "mprotect")


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to behind the last one."""
    return 0 if 0 in shape else 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))


def pages_of_rows(shape: Sequence[int], strides: Sequence[int], item: int, start: int) -> list[tuple[int, int]]:
    """Begin and end of each range of pages that holds rows of a tensor at byte `start`."""
    row, found = shape[-1] * item, []
    for index in itertools.product(*map(range, shape[:-1])):
        at = start + sum(i * stride for i, stride in zip(index, strides)) * item
        begin = at // mmap.PAGESIZE * mmap.PAGESIZE
        found.append((begin, begin + -(-(at + row - begin) // mmap.PAGESIZE) * mmap.PAGESIZE))
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(found):
        if merged and begin <= merged[-1][1]:
            begin, end = merged[-1][0], max(end, merged.pop()[1])
        merged.append((begin, end))
    return merged


class Memory:
    """`tensor`, of the given shape and strides in elements. The mapping lives as long as a tensor that views it."""

    def __init__(
        self,
        shape: Sequence[int],
        strides: Sequence[int],
        dtype: torch.dtype,
        *,
        generator: torch.Generator,
        edge: str = "end",
        slack: int = 0,
        device: str = "cpu",
    ) -> None:
        elements = extent(shape, strides)
        size = elements * dtype.itemsize
        self._whole = max(1, -(-(size + slack) // mmap.PAGESIZE)) * mmap.PAGESIZE
        start = slack if edge == "begin" else self._whole - slack - size
        sparse = self._whole >= SPARSE
        self._ranges = pages_of_rows(shape, strides, dtype.itemsize, start) if sparse else [(0, self._whole)]
        accessible = sum(end - begin for begin, end in self._ranges)
        random = torch.randint(0, 256, (accessible,), dtype=torch.uint8, generator=generator)
        if device == "cpu":
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
            mapping = mmap.mmap(-1, self._whole + 2 * mmap.PAGESIZE, flags)  # unmapped when nothing refers to it
            self._all = torch.frombuffer(mapping, dtype=torch.uint8, offset=mmap.PAGESIZE, count=self._whole)
            self._protected = True
            first, writable = self._all.data_ptr(), mmap.PROT_READ | mmap.PROT_WRITE
            protect(first - mmap.PAGESIZE, self._whole + 2 * mmap.PAGESIZE, PROT_NONE)
            for (begin, end), piece in zip(self._ranges, self._pieces()):
                protect(first + begin, end - begin, writable)
                piece.copy_(random[: end - begin])
                random = random[end - begin :]
        else:
            assert not sparse, "a real GPU has no memory for it"
            self._all = random.to(device)
            self._protected = False
        self._elements = elements
        self.tensor = torch.empty(shape, dtype=dtype, device=device)
        if elements:
            self.tensor = self._all[start : start + size].view(dtype).as_strided(tuple(shape), tuple(strides))
        self.bytes = size

    def _pieces(self) -> list[torch.Tensor]:
        """The parts of the memory that are accessible."""
        return [self._all[begin:end] for begin, end in self._ranges]

    def freeze(self, writable: bool = False) -> None:
        """Remembers the bytes. If not writable, a write is a fault from now on (not on a real GPU)."""
        self._before = [piece.clone() for piece in self._pieces()]
        self.values = self.tensor.clone()  # before a call
        if self._protected and not writable:
            for begin, end in self._ranges:
                protect(self._all.data_ptr() + begin, end - begin, mmap.PROT_READ)

    def forbid(self) -> None:
        """From now on every access is a fault."""
        protect(self._all.data_ptr(), self._whole, PROT_NONE)

    def unchanged(self) -> bool:
        return all(torch.equal(piece, before) for piece, before in zip(self._pieces(), self._before))

    def unchanged_around(self) -> bool:
        """Nothing was written but elements of the tensor. It must be writable."""
        result = self.tensor.clone()
        self.tensor.copy_(self.values)
        same = self.unchanged()
        self.tensor.copy_(result)
        return same

    def where(self, address: int) -> str:
        """Says where an address lies relative to this tensor; "" if it does not lie near."""
        if self._elements == 0:
            return ""
        first, pages = self.tensor.data_ptr(), self._all.data_ptr()
        if not pages - mmap.PAGESIZE <= address < pages + self._whole + mmap.PAGESIZE:
            return ""
        if address < first:
            return f"{first - address} bytes before the first byte of"
        if address >= first + self.bytes:
            return f"{address - first - self.bytes} bytes behind the last byte of"
        return f"byte {address - first} of {self.bytes}, which it may not access, of"
