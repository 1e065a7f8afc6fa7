"""Whether tensors lie in files that are mapped into memory."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor


def mapping(t: Tensor) -> str:
    """The line of /proc/self/maps that has a tensor's memory."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(number, 16) for number in line.split()[0].split("-"))
        if start <= t.data_ptr() < end:
            return line
    return ""
