"""The watchdog of kernels that are compiled with NVFP4_WATCHDOG: its state, and what its record says in words."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path

from paths import CSRC


class State(ctypes.Structure):
    """watchdog_state."""

    _fields_ = (("record", ctypes.c_uint64), ("limit", ctypes.c_uint64), ("expired", ctypes.c_uint32))


@functools.cache
def words() -> ctypes.CDLL:
    """csrc/driver/watchdog.c, and the size of a record."""
    source = '#include "driver/watchdog.c"\nconst size_t record_bytes = sizeof(watchdog_record);\n'
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "watchdog.so"
        command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{CSRC}", "-xc", "-"]
        subprocess.run([*command, "-o", str(library)], input=source, check=True, text=True)
        return ctypes.CDLL(str(library))


def record_bytes() -> int:
    return ctypes.c_size_t.in_dll(words(), "record_bytes").value


def describe(record: int) -> tuple[int, str]:
    """How many places wait, and what the record at that host address says."""
    text = ctypes.create_string_buffer(900)
    places = words().watchdog_describe(ctypes.c_void_p(record), text, ctypes.c_size_t(len(text)))
    return places, text.value.decode()
