"""The CUDA driver through ctypes: only what the cases need. The library is the system's or the one it is told."""

import ctypes
from pathlib import Path

import numpy as np

CLUSTER_DIMENSION = 4
MAX_DYNAMIC_SHARED_SIZE = 8


class DriverError(RuntimeError):
    """A driver call that failed; `code` is the driver's."""

    def __init__(self, call: str, code: int, text: str):
        super().__init__(f"{call}: {code} ({text})")
        self.code = code


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint * 16)]


class _Config(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    ]


def aligned_bytes(size: int, alignment: int = 64) -> ctypes.Array:
    """A ctypes buffer whose first byte lies on a multiple of `alignment`."""
    whole = ctypes.create_string_buffer(size + alignment)
    start = -ctypes.addressof(whole) % alignment
    part = (ctypes.c_char * size).from_buffer(whole, start)
    part._keep = whole
    return part


class Driver:
    """One context on device 0."""

    def __init__(self, library: str | None = None):
        self._library = ctypes.CDLL(library or "libcuda.so.1")
        self._call("cuInit", 0)
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._device = device.value
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._modules: dict[Path, ctypes.c_void_p] = {}

    def _call(self, name: str, *args: object) -> None:
        code = getattr(self._library, name)(*args)
        if code:
            raise DriverError(name, code, self.explain(code))

    def explain(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(code, ctypes.byref(text))
        return (text.value or b"").decode()

    def describe(self) -> dict[str, object]:
        """The device and the driver of a recording."""
        name = ctypes.create_string_buffer(128)
        self._call("cuDeviceGetName", name, 128, self._device)
        version = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(version))
        capability = []
        for attribute in (75, 76):
            value = ctypes.c_int()
            self._call("cuDeviceGetAttribute", ctypes.byref(value), attribute, self._device)
            capability.append(value.value)
        return {"device": name.value.decode(), "driver API": version.value, "compute capability": capability}

    def allocate(self, array: np.ndarray) -> int:
        """Device memory with the array's bytes."""
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(array.nbytes))
        array = np.ascontiguousarray(array)
        self._call("cuMemcpyHtoD_v2", pointer, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes))
        return pointer.value

    def free(self, pointer: int) -> None:
        self._call("cuMemFree_v2", ctypes.c_uint64(pointer))

    def read(self, pointer: int, size: int) -> np.ndarray:
        array = np.empty(size, np.uint8)
        self._call(
            "cuMemcpyDtoH_v2", ctypes.c_void_p(array.ctypes.data), ctypes.c_uint64(pointer), ctypes.c_size_t(size)
        )
        return array

    def function(self, image: Path, name: str) -> ctypes.c_void_p:
        if image not in self._modules:
            module = ctypes.c_void_p()
            self._call("cuModuleLoadData", ctypes.byref(module), image.read_bytes() + b"\0")
            self._modules[image] = module
        function = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(function), self._modules[image], name.encode())
        return function

    def encode_tiled(self, spec: dict, address: int) -> tuple[int, ctypes.Array]:
        """cuTensorMapEncodeTiled: its code, and the map."""
        tensor_map = aligned_bytes(128)
        dims, strides = spec["dims"], spec["strides"]
        code = self._library.cuTensorMapEncodeTiled(
            tensor_map,
            ctypes.c_int(spec["dtype"]),
            ctypes.c_uint32(spec.get("rank", len(dims))),
            ctypes.c_uint64(address),
            (ctypes.c_uint64 * max(len(dims), 1))(*dims),
            (ctypes.c_uint64 * max(len(strides), 1))(*strides),
            (ctypes.c_uint32 * max(len(spec["box"]), 1))(*spec["box"]),
            (ctypes.c_uint32 * max(len(dims), 1))(*spec["steps"]),
            ctypes.c_int(spec["interleave"]),
            ctypes.c_int(spec["swizzle"]),
            ctypes.c_int(spec["promotion"]),
            ctypes.c_int(spec["fill"]),
        )
        return code, tensor_map

    def launch(
        self,
        function: ctypes.c_void_p,
        params: list[ctypes.Array | ctypes._SimpleCData],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        cluster: tuple[int, int, int] | None,
    ) -> None:
        """Launches and waits."""
        if shared > 48 * 1024:
            self._call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED_SIZE, shared)
        config = _Config(grid, block, shared, None, None, 0)
        if cluster:
            attribute = _Attribute(CLUSTER_DIMENSION, 0, cluster + (0,) * 13)
            config.attributes, config.attribute_count = ctypes.pointer(attribute), 1
        pointers = (ctypes.c_void_p * len(params))(*[ctypes.addressof(p) for p in params])
        self._call("cuLaunchKernelEx", ctypes.byref(config), function, pointers, None)
        self._call("cuCtxSynchronize")
