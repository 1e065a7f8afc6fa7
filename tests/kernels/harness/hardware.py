"""A real GPU with the interface of the emulated one (emulator/emulate.py), so that the stages run on both. The
driver compiles the PTX; seeds and the first tensor memory column have no effect.

Arrays have a mirror in host memory, which is copied to the device at each launch and back when a test reads it.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import numpy
from emulate import Array, Emulator, EmulatorError


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
            raise EmulatorError(f"{name}: {(text.value or b'an unknown error').decode()} ({code})")

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
