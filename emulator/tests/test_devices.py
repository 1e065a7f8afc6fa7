"""Properties of the four devices equal those of the real ones."""

from __future__ import annotations

import ctypes

import pytest
from small_kernel import Emulator, entry, module

# by the numbers of CUdevice_attribute
ATTRIBUTES = {
    "threads per block": 1,
    "shared per block": 8,
    "warp": 10,
    "sms": 16,
    "l2": 38,
    "threads per sm": 39,
    "major": 75,
    "minor": 76,
    "shared per sm": 81,
    "registers per sm": 82,
    "shared opt-in": 97,
    "blocks per sm": 106,
    "shared reserved": 111,
    "clusters": 120,
    "tensor maps": 127,
}
KB = 1024
DEVICES = {
    "sm_80": ("A100", 80, (1024, 48 * KB, 32, 108, 40 * KB * KB, 2048, 8, 0, 164 * KB, 65536, 163 * KB, 32, KB, 0, 0)),
    "sm_90": ("H200", 141, (1024, 48 * KB, 32, 132, 60 * KB * KB, 2048, 9, 0, 228 * KB, 65536, 227 * KB, 32, KB, 1, 1)),
    "sm_100": ("B200", 180, (1024, 48 * KB, 32, 148, 132644864, 2048, 10, 0, 228 * KB, 65536, 227 * KB, 32, KB, 1, 1)),
    "sm_120": (
        "RTX 5090",
        32,
        (1024, 48 * KB, 32, 170, 96 * KB * KB, 1536, 12, 0, 100 * KB, 65536, 99 * KB, 24, KB, 1, 1),
    ),
}


@pytest.mark.parametrize("key", DEVICES)
def test_attributes(key: str) -> None:
    name, gib, values = DEVICES[key]
    library = Emulator(key).library
    text, bytes_, value = ctypes.create_string_buffer(64), ctypes.c_size_t(), ctypes.c_int()
    major, minor = ctypes.c_int(), ctypes.c_int()
    assert library.cuDeviceGetName(text, 64, 0) == 0
    assert text.value.decode() == f"Emulated {name}"
    assert library.cuDeviceTotalMem_v2(ctypes.byref(bytes_), 0) == 0
    assert bytes_.value == gib << 30
    assert library.cuDeviceComputeCapability(ctypes.byref(major), ctypes.byref(minor), 0) == 0
    assert f"sm_{major.value}{minor.value}" == key
    for attribute, expected in zip(ATTRIBUTES, values, strict=True):
        assert library.cuDeviceGetAttribute(ctypes.byref(value), ATTRIBUTES[attribute], 0) == 0
        assert value.value == expected, attribute


@pytest.mark.parametrize(
    ("key", "threads", "shared", "blocks"),
    [
        ("sm_90", 32, 0, 32),
        ("sm_90", 1024, 0, 2),
        ("sm_90", 33, 0, 32),
        ("sm_90", 96, 0, 21),
        ("sm_90", 32, 227 * KB, 1),
        ("sm_90", 32, 113 * KB, 2),
        ("sm_90", 32, 114 * KB, 1),
        ("sm_120", 32, 0, 24),
        ("sm_120", 1024, 0, 1),
        ("sm_120", 512, 30 * KB, 3),
        ("sm_80", 256, 40 * KB, 4),
        ("sm_80", 256, 164 * KB, 0),
        ("sm_100", 1025, 0, 0),
    ],
)
def test_occupancy(key: str, threads: int, shared: int, blocks: int) -> None:
    emulator = Emulator(key)
    kernel = emulator.load(module(entry(""), key))["run"]
    value = ctypes.c_int()
    emulator.library.cuFuncSetAttribute(kernel.handle, 8, min(shared, {"sm_80": 163, "sm_120": 99}.get(key, 227) * KB))
    emulator.call(
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        ctypes.byref(value),
        kernel.handle,
        threads,
        ctypes.c_size_t(shared),
    )
    assert value.value == blocks


def test_choosing_a_device_again_keeps_nothing_of_the_other() -> None:
    for key, sms in (("sm_80", 108), ("sm_100", 148), ("sm_80", 108)):
        emulator, value = Emulator(key), ctypes.c_int()
        emulator.call("cuDeviceGetAttribute", ctypes.byref(value), 16, 0)
        assert value.value == sms
        emulator.launch(emulator.load(module(entry(""), key))["run"], args=[0] * 6)
