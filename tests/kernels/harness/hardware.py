"""A real GPU with the interface of the emulated one (emulator/emulate.py), so that the stages run on both. The
driver compiles the PTX; seeds and the first tensor memory column have no effect.

Arrays have a mirror in host memory, which is copied to the device at each launch and back when a test reads it.

Modules compiled with NVFP4_WATCHDOG get a record for waits that do not end; an error names the places.
"""

from __future__ import annotations

import ctypes
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
from emulate import Array, Emulator, EmulatorError, Module

from harness import watchdog

WATCHDOG_CLOCKS, WATCHDOG_S = 2_000_000_000, 30.0  # of a wait, of all launches
NOT_READY = 600
PORTABLE_AND_MAPPED = 3  # cuMemHostAlloc


class Driver:
    """libcuda, plus the emulator's own entry points."""

    def __init__(self) -> None:
        self.libcuda = ctypes.CDLL("libcuda.so.1")

        def parameter_type(function: Any, index: Any) -> bytes:
            return b""

        self.emulator_parameter_type = parameter_type

    def __getattr__(self, name: str) -> Any:
        return getattr(self.libcuda, name)


class Mirrored(Array):
    """Device memory and its mirror."""

    def __init__(self, device: Hardware, shape: tuple[int, ...], dtype: numpy.dtype) -> None:
        super().__init__(device, shape, dtype)
        self.mirror = numpy.full(max(self.nbytes, 1), 0xFF, numpy.uint8)
        self.looked_at, self.launches = True, device.launches
        device.arrays.add(self)

    def numpy(self) -> numpy.ndarray:
        device = self._emulator
        device.synchronize()
        if self.launches != device.launches:
            device.call("cuMemcpyDtoH_v2", self.mirror.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(self.address),
                        ctypes.c_size_t(self.nbytes))  # fmt: skip
            self.launches = device.launches
        self.looked_at = True
        return self.mirror[: self.nbytes].view(self.dtype).reshape(self.shape)

    def upload(self) -> None:
        if self.looked_at and self.nbytes:
            self._emulator.call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.address),
                                self.mirror.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(self.nbytes))  # fmt: skip
        self.looked_at = False


class Hardware(Emulator):
    """GPU 0. After a fault the process can make no more calls, as with any CUDA context."""

    def __init__(self) -> None:
        self.library = Driver()
        self.arrays: weakref.WeakSet[Mirrored] = weakref.WeakSet()
        self.launches = 0
        self.records: list[int] = []  # of waits, in host memory
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self.library.cuGetErrorString(code, ctypes.byref(text))
            error = (text.value or b"an unknown error").decode()
            raise EmulatorError(f"{name}: {error} ({code}){self.waits()}")

    def waits(self) -> str:
        """Says which waits the kernels' watchdogs have recorded."""
        found = [text for places, text in map(watchdog.describe, self.records) if places]
        return f". It waits at {'; '.join(found)}" if found else ""

    def load(self, ptx: str | bytes | Path) -> Module:
        module = super().load(ptx)
        address, size = ctypes.c_uint64(), ctypes.c_size_t()
        found = (ctypes.byref(address), ctypes.byref(size), module.handle, b"nvfp4_watchdog")
        if self.library.cuModuleGetGlobal_v2(*found):
            return module  # none of its kernels waits
        record, bytes_ = ctypes.c_void_p(), watchdog.record_bytes()
        self.call("cuMemHostAlloc", ctypes.byref(record), ctypes.c_size_t(bytes_), PORTABLE_AND_MAPPED)
        ctypes.memset(record, 0, bytes_)
        state = watchdog.State(record.value, WATCHDOG_CLOCKS, 0)
        self.call("cuMemcpyHtoD_v2", address, ctypes.byref(state), ctypes.c_size_t(ctypes.sizeof(state)))
        self.records.append(record.value)
        return module

    def synchronize(self) -> None:
        """Waits as the emulator does; a kernel that does not end is an error."""
        end = time.monotonic() + WATCHDOG_S
        while self.library.cuStreamQuery(None) == NOT_READY:
            if time.monotonic() > end:
                raise EmulatorError(f"the kernel has not ended after {WATCHDOG_S:.0f} s{self.waits()}")
            time.sleep(1e-4)
        super().synchronize()

    def array(self, data: numpy.ndarray | Sequence[Any]) -> Mirrored:
        values = numpy.ascontiguousarray(data)
        made = Mirrored(self, values.shape, values.dtype)
        made.mirror[: made.nbytes] = values.reshape(-1).view(numpy.uint8)
        return made

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Mirrored:
        return Mirrored(self, (shape,) if isinstance(shape, int) else shape, numpy.dtype(dtype))

    def launch(self, *arguments: Any, **options: Any) -> None:
        for array in self.arrays:
            array.upload()
        self.launches += 1
        super().launch(*arguments, **options)
