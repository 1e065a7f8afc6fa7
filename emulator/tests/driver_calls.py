"""libcuda by ctypes, for the tests of the driver API: calls with the codes that they must return."""

from __future__ import annotations

import ctypes
import re
import subprocess
from typing import Any

from small_kernel import Emulator

LIBRARY = Emulator("sm_90").library._name
SUCCESS, INVALID_VALUE, NOT_INITIALIZED, INVALID_DEVICE, INVALID_CONTEXT = 0, 1, 3, 101, 201
NO_BINARY, INVALID_PTX, NO_FILE, INVALID_HANDLE, NOT_FOUND, LAUNCH_FAILED = 209, 218, 301, 400, 500, 719
NOT_SUPPORTED, INVALID_CLUSTER, TOO_LARGE = 801, 912, 720

WRITES = """
.version 9.0
.target sm_80
.address_size 64
.global .align 8 .u64 counter = 41;
.const .align 4 .u32 scale = 3;
.visible .entry writes(.param .u64 to, .param .u32 value, .param .u8 small, .param .align 8 .b8 pair[16])
{
  .reg .u64 a, p; .reg .u32 v, t;
  ld.param.u64 a, [to]; ld.param.u32 v, [value]; ld.param.u8 t, [small]; add.u32 v, v, t;
  ld.param.u64 p, [pair+8]; cvt.u32.u64 t, p; add.u32 v, v, t; ld.const.u32 t, [scale]; mul.lo.u32 v, v, t;
  st.global.u32 [a], v; ret;
}
.visible .entry faults() { trap; }
.visible .entry shares() .maxntid 256, 1, 1 {
  .shared .b8 kept[4096]; .local .b8 own[24]; .reg .b32 r; ld.shared.b32 r, [kept]; ret;
}
"""


def exported() -> list[str]:
    names = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True).stdout
    return sorted(line.split()[2] for line in names.splitlines() if " T " in line)


class Api:
    """Calls with the codes that they must return; `called` has the names."""

    called: set[str] = set()

    def __init__(self) -> None:
        self.emulator = Emulator("sm_90")
        self.library = self.emulator.library

    def __call__(self, name: str, *arguments: Any, code: int = SUCCESS, message: str | None = None) -> None:
        self.called.add(name)
        got = getattr(self.library, name)(*arguments)
        assert got == code, f"{name}: {got}, not {code}: {self.emulator.error()}"
        if message is not None:
            assert re.search(message, self.emulator.error()), self.emulator.error()

    def out(self, name: str, kind: Any, *arguments: Any) -> Any:
        value = kind()
        self(name, ctypes.byref(value), *arguments)
        return value.value

    def load(self, text: str = WRITES) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self("cuModuleLoadData", ctypes.byref(handle), ctypes.c_char_p(text.encode()))
        return handle

    def function(self, handle: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.out("cuModuleGetFunction", ctypes.c_void_p, handle, name.encode()))

    def memory(self, size: int) -> int:
        return int(self.out("cuMemAlloc_v2", ctypes.c_uint64, ctypes.c_size_t(size)))


U64, SIZE, PTR, INT, UINT = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32
