"""CPU tensors that begin or end exactly where memory is inaccessible: an access past them is a page fault.

    [PROT_NONE page] [slack] [tensor] ........ [PROT_NONE page]     edge "begin"
    [PROT_NONE page] ........ [tensor] [slack] [PROT_NONE page]     edge "end"

`slack` places a tensor whose size is no multiple of the wanted alignment. Everything but the tensor holds random bytes.
The emulated GPU checks addresses of host memory, so that its kernels fault too. On a real GPU the same layout lies in a
plain allocation: compute-sanitizer checks that one. A fault ends the process: worker.py reports it.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

import torch

PROT_NONE = 0  # the module mmap does not have it
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def protect(address: int, size: int, protection: int) -> None:
    if size and _libc.mprotect(address, size, protection):
        raise OSError(ctypes.get_errno(), "mprotect")


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to behind the last one."""
    return 0 if 0 in shape else 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))


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
        random = torch.randint(0, 256, (self._whole,), dtype=torch.uint8, generator=generator)
        if device == "cpu":
            mapping = mmap.mmap(-1, self._whole + 2 * mmap.PAGESIZE)  # unmapped when nothing refers to it
            self._all = torch.frombuffer(mapping, dtype=torch.uint8, offset=mmap.PAGESIZE, count=-1)[: self._whole]
            self._all.copy_(random)
            self._protected = True
            for guard in (self._all.data_ptr() - mmap.PAGESIZE, self._all.data_ptr() + self._whole):
                protect(guard, mmap.PAGESIZE, PROT_NONE)
        else:
            self._all = random.to(device)
            self._protected = False
        start = slack if edge == "begin" else self._whole - slack - size
        self._layout = (start, elements, dtype, tuple(shape), tuple(strides))
        self.tensor = self._view(self._all)
        self.bytes = size

    def _view(self, whole: torch.Tensor) -> torch.Tensor:
        start, elements, dtype, shape, strides = self._layout
        if elements == 0:
            return torch.empty(shape, dtype=dtype, device=whole.device)
        data = whole[start : start + elements * dtype.itemsize].view(dtype)
        return data.as_strided(shape, strides)

    def freeze(self, writable: bool = False) -> None:
        """Remembers the bytes. If not writable, a write is a fault from now on (not on a real GPU)."""
        self._before = self._all.clone()
        if self._protected and not writable:
            protect(self._all.data_ptr(), self._whole, mmap.PROT_READ)

    def forbid(self) -> None:
        """From now on every access is a fault."""
        protect(self._all.data_ptr(), self._whole, PROT_NONE)

    def unchanged(self) -> bool:
        return torch.equal(self._all, self._before)

    def unchanged_around(self) -> bool:
        """Nothing was written but elements of the tensor."""
        expected = self._before.clone()
        if self._layout[1]:
            self._view(expected).copy_(self.tensor)
        return torch.equal(self._all, expected)

    def where(self, address: int) -> str:
        """Where an address lies relative to this tensor; "" if it does not lie near."""
        if self._layout[1] == 0:
            return ""
        first, pages = self.tensor.data_ptr(), self._all.data_ptr()
        if not pages - mmap.PAGESIZE <= address < pages + self._whole + mmap.PAGESIZE:
            return ""
        if address < first:
            return f"{first - address} bytes before the first byte of"
        if address >= first + self.bytes:
            return f"{address - first - self.bytes} bytes behind the last byte of"
        return f"byte {address - first} of {self.bytes}, which it may not access, of"
