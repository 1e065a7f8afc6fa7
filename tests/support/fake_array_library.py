"""A library whose arrays have little more than __dlpack__ and __dlpack_device__, and which records what is asked of it.

Memory is NumPy's, on the CPU and on the device alike: an emulated GPU reads host memory. An array exports what it is
told to (version, flags, dtype, device), so that tests can have it break each rule.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np

CODES = {"uint8": (1, 8), "int8": (0, 8), "float16": (2, 16), "float32": (2, 32), "float64": (2, 64)}
CODES |= {"int32": (0, 32), "int64": (0, 64)}
READ_ONLY, COPIED, PADDED = 1, 2, 4
CPU, CUDA = (1, 0), (2, 0)
PLAIN, VERSIONED = b"dltensor", b"dltensor_versioned"


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Unversioned(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("owner", ctypes.c_void_p), ("release", ctypes.c_void_p)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("owner", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, Destructor)(
    ("PyCapsule_New", ctypes.pythonapi)
)
pointer_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_GetName", ctypes.pythonapi))

exports: dict[int, Any] = {}  # what capsules point to, until they are destroyed
streams: list[Any] = []  # that __dlpack__ was called with
asked: list[dict[str, Any]] = []  # its other arguments, where they are not None
current = 0  # what cuda.get_current_stream says


@Destructor
def destroyed(capsule: int) -> None:
    *_, memory = exports.pop(pointer_in(capsule, name_of(capsule)))
    if memory is not None:
        memory.fill(0xFF)


class Buffer:
    """A NumPy array as one of this library, without item assignment. `export` overrides what __dlpack__ gives."""

    def __init__(self, memory: np.ndarray, device: tuple[int, int] = CPU, **export: Any) -> None:
        self.memory, self.device_pair, self.export = memory, device, export

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device_pair

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, copy: Any = None) -> Any:
        return self.capsule(stream, max_version=max_version, copy=copy)

    def capsule(self, stream: Any, max_version: Any = None, **options: Any) -> Any:
        streams.append(stream)
        asked.append({key: value for key, value in options.items() if value is not None})
        x = self.export
        memory = self.memory.copy() if x.get("copies") else self.memory
        code, bits = x.get("dtype") or CODES[str(memory.dtype)]
        shape = (ctypes.c_int64 * memory.ndim)(*memory.shape)
        strides = (ctypes.c_int64 * memory.ndim)(*(s // memory.itemsize for s in memory.strides))
        offset = x.get("byte_offset", 0)
        device = (ctypes.c_int32 * 2)(*x.get("says", self.device_pair))
        data = x.get("data", memory.ctypes.data - offset)
        where = None if x.get("no_strides") else strides
        if "dims" in x:
            shape = (ctypes.c_int64 * len(x["dims"]))(*x["dims"])
        tensor = Tensor(data, device, x.get("ndim", memory.ndim), code, bits, x.get("lanes", 1), shape, where, offset)
        managed: ctypes.Structure
        if max_version is None:
            managed, name = Unversioned(tensor, None, None), PLAIN
        else:
            assert max_version[0] == 1
            managed, name = Versioned(x.get("major", 1), 3, None, None, x.get("flags", 0), tensor), VERSIONED
        exports[ctypes.addressof(managed)] = managed, shape, strides, memory if x.get("copies") else None
        return new_capsule(ctypes.addressof(managed), x.get("name", name), destroyed)


class Array(Buffer):
    def __setitem__(self, key: Any, value: Any) -> None:
        self.memory[key] = value


class OldBuffer(Buffer):
    """A buffer from before DLPack 1.0: __dlpack__ has no other keyword than stream."""

    def __dlpack__(self, *, stream: Any = None) -> Any:  # type: ignore[override]
        return self.capsule(stream)


class OldArray(OldBuffer, Array):
    pass


# ---- the namespace ----

uint8, float16, float32 = np.uint8, np.float16, np.float32


def from_dlpack(x: Any) -> Array:
    return Array(np.from_dlpack(x))


def empty(shape: tuple[int, ...], *, dtype: Any) -> Array:
    """On the device, full of ones."""
    return Array(np.full(np.prod(shape) * np.dtype(dtype).itemsize, 0xFF, np.uint8).view(dtype).reshape(shape), CUDA)


def get_current_stream(device: int) -> Any:
    assert device == 0
    return SimpleNamespace(ptr=current)


cuda = SimpleNamespace(get_current_stream=get_current_stream)
