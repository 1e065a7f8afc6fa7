"""The driver API by ctypes: devices, contexts, streams, memory, copies; and wrong calls of every entry point, which get
an error and never end the process."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
from driver_calls import (
    INT,
    INVALID_CONTEXT,
    INVALID_DEVICE,
    INVALID_HANDLE,
    INVALID_VALUE,
    LIBRARY,
    NOT_FOUND,
    NOT_INITIALIZED,
    NOT_SUPPORTED,
    PTR,
    SIZE,
    SUCCESS,
    U64,
    UINT,
    Api,
    exported,
)


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()
    yield made
    made.library.emulator_reset()


# ---- wrong calls ----------------------------------------------------------------------------------------------------

SWEEP = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
handles, names = sys.argv[2].split(), sys.argv[3:]
zeros = [ctypes.c_uint64(0)] * 12
for phase in ("before", "after", "handle"):
    if phase == "after":
        assert library.cuInit(0) == 0
    for name in handles if phase == "handle" else names:
        if (phase, name) == ("before", "cuInit"):
            continue
        arguments = zeros if phase != "handle" else [ctypes.c_uint64(0x12340)] + zeros
        print(phase, name, getattr(library, name)(*arguments), flush=True)
"""
# Entry points that nothing at all is a right argument for.
NOTHING_IS_FINE = {
    "cuInit",
    "cuCtxSynchronize",
    "cuCtxSynchronize_v2",
    "cuCtxSetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuCtxGetStreamPriorityRange",
    "cuCtxSetCacheConfig",
    "cuCtxSetLimit",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxReset_v2",
    "cuDevicePrimaryCtxSetFlags_v2",
    "cuMemFree_v2",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemcpy",
    "cuMemcpyAsync",
    "cuMemcpyHtoD_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoD_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8_v2",
    "cuMemsetD8Async",
    "cuMemsetD16_v2",
    "cuMemsetD16Async",
    "cuMemsetD32_v2",
    "cuMemsetD32Async",
    "cuMemsetD2D8_v2",
    "cuMemsetD2D8Async",
    "cuMemsetD2D16_v2",
    "cuMemsetD2D16Async",
    "cuMemsetD2D32_v2",
    "cuMemsetD2D32Async",
    "cuProfilerStart",
    "cuProfilerStop",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamCopyAttributes",
}


TAKES_A_HANDLE = [
    "cuModuleUnload",
    "cuLibraryUnload",
    "cuFuncSetCacheConfig",
    "cuFuncLoad",
    "cuLinkDestroy",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuMemPoolDestroy",
    "cuMemPoolTrimTo",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamQuery",
    "cuLaunchKernel",
]


def test_nothing_as_arguments() -> None:
    """Null pointers and zeros everywhere, before cuInit and after; then a handle that is none."""
    names = [n for n in exported() if n.startswith("cu")]
    done = subprocess.run(
        [sys.executable, "-c", SWEEP, LIBRARY, " ".join(TAKES_A_HANDLE), *names],
        capture_output=True,
        text=True,
        env={**os.environ, "EMULATE_QUIET": "1"},
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"after {lines[-1:]}: {done.stderr[-500:]}"
    codes = {(phase, name): int(code) for phase, name, code in lines}
    before = {n for n in names if n != "cuInit" and codes["before", n] not in (NOT_INITIALIZED, INVALID_VALUE)}
    assert before == set()
    assert {n for n in names if codes["after", n] == SUCCESS} - NOTHING_IS_FINE == set()
    for name in TAKES_A_HANDLE:
        assert codes["handle", name] == INVALID_HANDLE, name


def test_handles_that_have_ended(api: Api) -> None:
    for make, end, use in (
        ("cuStreamCreate", "cuStreamDestroy_v2", lambda h: ("cuStreamSynchronize", h)),
        ("cuEventCreate", "cuEventDestroy_v2", lambda h: ("cuEventRecord", h, None)),
    ):
        handle = PTR(api.out(make, PTR, 0))
        api(*use(handle))
        api(end, handle)
        api(end, handle, code=INVALID_HANDLE)
        name, *arguments = use(handle)
        api(name, *arguments, code=INVALID_HANDLE)
    loaded = api.load()
    f = api.function(loaded, "faults")
    api("cuModuleUnload", loaded)
    api("cuModuleUnload", loaded, code=INVALID_HANDLE)
    api("cuModuleGetFunction", ctypes.byref(PTR()), loaded, b"faults", code=INVALID_HANDLE)
    api("cuLaunchKernel", f, 1, 1, 1, 1, 1, 1, 0, None, None, None, code=INVALID_HANDLE)
    for stream in (None, 1, 2):  # streams that no call has created
        api("cuStreamSynchronize", PTR(stream))
        api("cuStreamDestroy_v2", PTR(stream), code=INVALID_HANDLE)


# ---- right calls ----------------------------------------------------------------------------------------------------


def test_devices_and_contexts(api: Api) -> None:
    api("cuInit", 0)
    api("cuInit", 1, code=INVALID_VALUE)
    assert api.out("cuDriverGetVersion", INT) == 13000
    assert api.out("cuDeviceGetCount", INT) == 1
    assert api.out("cuDeviceGet", INT, 0) == 0
    api("cuDeviceGet", ctypes.byref(INT()), 1, code=INVALID_DEVICE)
    name = ctypes.create_string_buffer(b"xxxxxxxx", 9)
    api("cuDeviceGetName", name, 5, 0)
    assert name.raw == b"Emul\0xxx\0"
    api("cuDeviceGetName", name, 9, 1, code=INVALID_DEVICE)
    uuid = ctypes.create_string_buffer(16)
    api("cuDeviceGetUuid_v2", uuid, 0)
    assert uuid.raw.rstrip(b"\0")
    assert api.out("cuDeviceTotalMem_v2", SIZE, 0) > 2**35
    major, minor = INT(), INT()
    api("cuDeviceComputeCapability", ctypes.byref(major), ctypes.byref(minor), 0)
    assert (major.value, minor.value) == (9, 0)
    assert api.out("cuDeviceGetAttribute", INT, 16, 0) == 132
    api("cuDeviceGetAttribute", ctypes.byref(INT()), 9999, 0, code=INVALID_VALUE)
    assert api.out("cuDeviceCanAccessPeer", INT, 0, 0) == 0
    bus = ctypes.create_string_buffer(32)
    api("cuDeviceGetPCIBusId", bus, 32, 0)
    assert api.out("cuDeviceGetByPCIBusId", INT, bus.value) == 0
    api("cuDeviceGetByPCIBusId", ctypes.byref(INT()), b"0000:77:00.0", code=INVALID_DEVICE)

    api("cuCtxSetCurrent", None)
    assert api.out("cuCtxGetCurrent", PTR) is None
    api("cuCtxGetDevice", ctypes.byref(INT()), code=INVALID_CONTEXT)
    primary = PTR(api.out("cuDevicePrimaryCtxRetain", PTR, 0))
    api("cuCtxPushCurrent_v2", primary)
    api("cuCtxPushCurrent_v2", None)
    assert api.out("cuCtxGetCurrent", PTR) is None
    popped = PTR(7)
    api("cuCtxPopCurrent_v2", ctypes.byref(popped))
    assert popped.value is None
    assert api.out("cuCtxGetCurrent", PTR) == primary.value
    assert api.out("cuCtxGetDevice", INT) == 0
    assert api.out("cuCtxGetDevice_v2", INT, primary) == 0
    identity = U64()
    api("cuCtxGetId", primary, ctypes.byref(identity))
    api("cuCtxGetId", None, ctypes.byref(identity))
    assert identity.value == 1
    assert api.out("cuCtxGetFlags", UINT) == 0
    version = UINT()
    api("cuCtxGetApiVersion", primary, ctypes.byref(version))
    assert version.value == 3020
    api("cuCtxPopCurrent_v2", None)
    api("cuCtxPopCurrent_v2", None, code=INVALID_CONTEXT)
    api("cuCtxSetCurrent", PTR(0x777), code=INVALID_CONTEXT)
    for make, arguments in (
        ("cuCtxCreate_v2", (0, 0)),
        ("cuCtxCreate_v3", (None, 0, 0, 0)),
        ("cuCtxCreate_v4", (None, 0, 0)),
    ):
        context = PTR(api.out(make, PTR, *arguments))
        assert api.out("cuCtxGetCurrent", PTR) == context.value
        api("cuCtxDestroy_v2", context)
        assert api.out("cuCtxGetCurrent", PTR) is None
    least, greatest = INT(), INT()
    api("cuCtxGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
    assert greatest.value < least.value
    api("cuCtxSetLimit", 0, SIZE(12345))
    assert api.out("cuCtxGetLimit", SIZE, 0) == 12345
    api("cuCtxSetCacheConfig", 1)
    assert api.out("cuCtxGetCacheConfig", INT) == 0
    flags, active = UINT(), INT()
    api("cuDevicePrimaryCtxGetState", 0, ctypes.byref(flags), ctypes.byref(active))
    assert active.value == 1
    api("cuDevicePrimaryCtxSetFlags_v2", 0, 4)
    api("cuDevicePrimaryCtxRelease_v2", 0)
    api("cuDevicePrimaryCtxReset_v2", 0)
    api("cuCtxSynchronize")
    api("cuCtxSynchronize_v2", primary)
    mode = INT(2)
    api("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    api("cuProfilerStart")
    api("cuProfilerStop")


def test_streams_and_events(api: Api) -> None:
    stream = PTR(api.out("cuStreamCreateWithPriority", PTR, 1, -2))
    for name, kind, expected in (
        ("cuStreamGetFlags", UINT, 1),
        ("cuStreamGetPriority", INT, -2),
        ("cuStreamGetDevice", INT, 0),
        ("cuStreamIsCapturing", INT, 0),
    ):
        value = kind(77)
        api(name, stream, ctypes.byref(value))
        assert value.value == expected
    identity, context = U64(), PTR()
    api("cuStreamGetId", stream, ctypes.byref(identity))
    api("cuStreamGetCtx", stream, ctypes.byref(context))
    assert context.value == api.out("cuDevicePrimaryCtxRetain", PTR, 0)
    status, graph, nodes, edges, count = INT(5), PTR(1), PTR(1), PTR(1), SIZE(1)
    by = ctypes.byref
    api("cuStreamGetCaptureInfo", stream, by(status), by(identity))
    api("cuStreamGetCaptureInfo_v2", stream, by(status), by(identity), by(graph), by(nodes), by(count))
    api("cuStreamGetCaptureInfo_v3", stream, by(status), by(identity), by(graph), by(nodes), by(edges), by(count))
    assert (status.value, graph.value, nodes.value, edges.value, count.value) == (0, None, None, None, 0)
    api("cuStreamBeginCapture_v2", stream, 0, code=NOT_SUPPORTED, message="no graphs")
    value = ctypes.create_string_buffer(64)
    api("cuStreamSetAttribute", stream, 1, value)
    api("cuStreamGetAttribute", stream, 1, value)
    api("cuStreamCopyAttributes", stream, None)
    start, end = PTR(api.out("cuEventCreate", PTR, 0)), PTR(api.out("cuEventCreate", PTR, 0))
    blind = PTR(api.out("cuEventCreate", PTR, 2))
    elapsed = ctypes.c_float(-1)
    api("cuEventElapsedTime", by(elapsed), start, end, code=INVALID_HANDLE, message="must have been recorded")
    api("cuEventRecord", start, stream)
    api("cuEventRecordWithFlags", end, stream, 0)
    api("cuEventRecord", blind, stream)
    for name in ("cuEventElapsedTime", "cuEventElapsedTime_v2"):
        api(name, by(elapsed), start, end)
        assert 0 <= elapsed.value < 1000
        api(name, by(elapsed), start, blind, code=INVALID_HANDLE)
    for name in ("cuEventQuery", "cuEventSynchronize"):
        api(name, end)
    api("cuStreamWaitEvent", stream, end, 0)
    api("cuStreamQuery", stream)
    seen = []
    host = ctypes.CFUNCTYPE(None, PTR)(lambda argument: seen.append(argument))
    api("cuLaunchHostFunc", stream, host, PTR(99))
    back = ctypes.CFUNCTYPE(None, PTR, INT, PTR)(lambda s, code, argument: seen.append((s, code, argument)))
    api("cuStreamAddCallback", stream, back, PTR(98), 0)
    assert seen == [99, (stream.value, 0, 98)]
    for event in (start, end, blind):
        api("cuEventDestroy_v2", event)
    api("cuStreamDestroy_v2", stream)


def test_memory(api: Api) -> None:
    p = api.memory(1000)
    api("cuMemAlloc_v2", ctypes.byref(U64()), SIZE(0), code=INVALID_VALUE)
    api("cuMemAlloc_v2", ctypes.byref(U64()), SIZE(2**62), code=2, message="no 4611686018427387904 bytes are left")
    base, size = U64(), SIZE()
    api("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), U64(p + 500))
    assert (base.value, size.value) == (p, 1000)
    api("cuMemGetAddressRange_v2", None, None, U64(p + 1000), code=NOT_FOUND)
    kept: list[tuple[int, Any]] = [
        (1, U64()),
        (2, UINT()),
        (3, U64()),
        (9, INT()),
        (11, U64()),
        (12, SIZE()),
        (13, ctypes.c_uint8()),
    ]
    for attribute, value in kept:
        api("cuPointerGetAttribute", ctypes.byref(value), attribute, U64(p + 8))
    assert [v.value for _, v in kept[1:]] == [2, p + 8, 0, p, 1000, 1]
    api("cuPointerGetAttribute", ctypes.byref(U64()), 3, U64(4096), code=INVALID_VALUE)
    ids = (INT * len(kept))(*[a for a, _ in kept])
    places = (PTR * len(kept))(*[ctypes.addressof(v) for _, v in kept])
    api("cuPointerGetAttributes", len(kept), ids, places, U64(4096))
    assert [v.value for _, v in kept] == [0, 0, 0, -2, 0, 0, 0]
    unused, total = SIZE(), SIZE()
    api("cuMemGetInfo_v2", ctypes.byref(unused), ctypes.byref(total))
    assert 0 < unused.value < total.value
    api("cuMemFree_v2", U64(p))
    api("cuMemFree_v2", U64(p), code=INVALID_VALUE, message="is not what cuMemAlloc gave")
    pitch = SIZE()
    q = U64()
    api("cuMemAllocPitch_v2", ctypes.byref(q), ctypes.byref(pitch), SIZE(700), SIZE(3), 4)
    assert pitch.value == 1024
    api("cuMemFree_v2", q)
    for make, free in (("cuMemHostAlloc", "cuMemFreeHost"), ("cuMemAllocHost_v2", "cuMemFreeHost")):
        host = PTR(api.out(make, PTR, SIZE(64), *([0] if make == "cuMemHostAlloc" else [])))
        assert api.out("cuMemHostGetDevicePointer_v2", U64, host, 0) == host.value
        flags = UINT()
        api("cuMemHostGetFlags", ctypes.byref(flags), host)
        api(free, host)
    managed = U64(api.out("cuMemAllocManaged", U64, SIZE(64), 1))
    api("cuMemPrefetchAsync", managed, SIZE(64), 0, None)
    api("cuMemPrefetchAsync_v2", managed, SIZE(64), U64(1), 0, None)
    api("cuMemAdvise", managed, SIZE(64), 1, 0)
    api("cuMemAdvise_v2", managed, SIZE(64), 3, U64(1))
    api("cuMemAdvise", managed, SIZE(65), 1, 0, code=INVALID_VALUE, message="are in no allocation")
    api("cuMemFreeAsync", managed, None)
    late = U64(api.out("cuMemAllocAsync", U64, SIZE(64), None))
    api("cuMemFree_v2", late)
    own = ctypes.create_string_buffer(64)
    api("cuMemHostRegister_v2", own, SIZE(64), 0)
    api("cuMemHostUnregister", own)


def test_pools(api: Api) -> None:
    default = PTR(api.out("cuDeviceGetDefaultMemPool", PTR, 0))
    assert api.out("cuDeviceGetMemPool", PTR, 0) == default.value
    made = PTR(api.out("cuMemPoolCreate", PTR, ctypes.create_string_buffer(88)))
    api("cuDeviceSetMemPool", 0, made)
    assert api.out("cuDeviceGetMemPool", PTR, 0) == made.value
    threshold = U64(2**40)
    api("cuMemPoolSetAttribute", made, 4, ctypes.byref(threshold))
    threshold.value = 0
    api("cuMemPoolGetAttribute", made, 4, ctypes.byref(threshold))
    assert threshold.value == 2**40
    api("cuMemPoolSetAttribute", made, 99, ctypes.byref(threshold), code=INVALID_VALUE)
    api("cuMemPoolSetAccess", made, ctypes.create_string_buffer(12), SIZE(1))
    flags = UINT()
    api("cuMemPoolGetAccess", ctypes.byref(flags), made, ctypes.create_string_buffer(8))
    assert flags.value == 3
    p = U64(api.out("cuMemAllocFromPoolAsync", U64, SIZE(128), made, None))
    api("cuMemFreeAsync", p, None)
    api("cuMemPoolTrimTo", made, SIZE(0))
    api("cuMemPoolDestroy", made)
    api("cuMemPoolDestroy", made, code=INVALID_HANDLE)
    assert api.out("cuDeviceGetMemPool", PTR, 0) == default.value


def test_copies(api: Api) -> None:
    random = numpy.random.default_rng()
    data = random.integers(0, 256, 300).astype(numpy.uint8)
    back = numpy.zeros(300, numpy.uint8)
    p, q = api.memory(300), api.memory(300)
    at = [PTR(v.ctypes.data) for v in (data, back)]
    for suffix, more in (("", ()), ("Async", (None,))):
        v2 = "_v2"
        api(f"cuMemcpyHtoD{suffix}{v2}", U64(p), at[0], SIZE(300), *more)
        api(f"cuMemcpyDtoD{suffix}{v2}", U64(q), U64(p), SIZE(300), *more)
        api(f"cuMemcpyDtoH{suffix}{v2}", at[1], U64(q), SIZE(300), *more)
        assert (back == data).all()
        back[:] = 0
        api(f"cuMemcpy{suffix}", U64(back.ctypes.data), U64(q + 100), SIZE(200), *more)
        assert (back[:200] == data[100:]).all()
    for count in (301, 2**64 - 1, 2**64 - 300):
        api(
            "cuMemcpyHtoD_v2",
            U64(p),
            at[0],
            SIZE(count),
            code=INVALID_VALUE,
            message="in an allocation that ends after 300",
        )
        api("cuMemcpyDtoH_v2", at[1], U64(p), SIZE(count), code=INVALID_VALUE, message="ends after 300")
    api("cuMemcpyHtoD_v2", U64(data.ctypes.data), at[0], SIZE(8), code=INVALID_VALUE, message="is in no allocation")
    api("cuMemcpyHtoD_v2", U64(p + 310), at[0], SIZE(8), code=INVALID_VALUE, message="is in no allocation")
    api("cuMemcpyHtoD_v2", U64(p), PTR(4096), SIZE(8), code=INVALID_VALUE, message="0x1000 is not mapped")
    api("cuMemcpyHtoD_v2", U64(0), at[0], SIZE(8), code=INVALID_VALUE, message="a null pointer")
    api("cuMemFree_v2", U64(q))
    api("cuMemcpyDtoH_v2", at[1], U64(q), SIZE(8), code=INVALID_VALUE, message="is in no allocation")


def test_fills(api: Api) -> None:
    p = api.memory(256)
    view = numpy.frombuffer((ctypes.c_uint8 * 256).from_address(p), numpy.uint8)
    for name, kind, value in (
        ("D8", numpy.uint8, 0x12),
        ("D16", numpy.uint16, 0x1234),
        ("D32", numpy.uint32, 0x12345678),
    ):
        size = numpy.dtype(kind).itemsize
        for suffix, more in (("_v2", ()), ("Async", (None,))):
            view[:] = 0
            api(f"cuMemset{name}{suffix}", U64(p + 8), value, SIZE(5), *more)
            expected = numpy.zeros(256, numpy.uint8)
            expected[8 : 8 + 5 * size] = numpy.full(5, value, kind).view(numpy.uint8)
            assert (view == expected).all()
            view[:] = 0
            api(f"cuMemsetD2{name}{suffix}", U64(p), SIZE(64), value, SIZE(3), SIZE(4), *more)
            expected = numpy.zeros((4, 64), numpy.uint8)
            expected[:, : 3 * size] = numpy.full(3, value, kind).view(numpy.uint8)
            assert (view.reshape(4, 64) == expected).all()
        api(f"cuMemset{name}_v2", U64(p), value, SIZE(256 // size + 1), code=INVALID_VALUE, message="ends after 256")
        api(f"cuMemset{name}_v2", U64(p), value, SIZE(2**63), code=INVALID_VALUE)
        api(
            f"cuMemsetD2{name}_v2",
            U64(p),
            SIZE(64),
            value,
            SIZE(3),
            SIZE(5),
            code=INVALID_VALUE,
            message="ends after 256",
        )
    api("cuMemsetD32_v2", U64(p + 2), 1, SIZE(1), code=INVALID_VALUE, message="not a multiple of 4")


class Plane(ctypes.Structure):
    _fields_ = [
        ("x", SIZE),
        ("y", SIZE),
        ("memory", INT),
        ("host", PTR),
        ("device", U64),
        ("array", PTR),
        ("pitch", SIZE),
    ]


class Copy2D(ctypes.Structure):
    _fields_ = [("source", Plane), ("to", Plane), ("width", SIZE), ("height", SIZE)]


def test_copies_of_two_dimensions(api: Api) -> None:
    random = numpy.random.default_rng()
    source = random.integers(0, 256, (7, 20)).astype(numpy.uint8)
    p = api.memory(10 * 32)
    view = numpy.frombuffer((ctypes.c_uint8 * 320).from_address(p), numpy.uint8).reshape(10, 32)
    view[:] = 0
    host = Plane(x=3, y=1, memory=1, host=source.ctypes.data, pitch=20)
    device = Plane(x=5, y=2, memory=2, device=p, pitch=32)
    api("cuMemcpy2D_v2", ctypes.byref(Copy2D(host, device, 11, 6)))
    expected = numpy.zeros((10, 32), numpy.uint8)
    expected[2:8, 5:16] = source[1:7, 3:14]
    assert (view == expected).all()
    target = numpy.zeros((7, 20), numpy.uint8)
    back = Plane(x=3, y=1, memory=1, host=target.ctypes.data, pitch=20)
    for name, more in (("cuMemcpy2DUnaligned_v2", ()), ("cuMemcpy2DAsync_v2", (None,))):
        target[:] = 0
        api(name, ctypes.byref(Copy2D(device, back, 11, 6)), *more)
        assert (target[1:7, 3:14] == source[1:7, 3:14]).all() and not target[:, :3].any() and not target[0].any()
    api("cuMemcpy2D_v2", ctypes.byref(Copy2D(host, device, 11, 9)), code=INVALID_VALUE, message="ends after")
    api("cuMemcpy2D_v2", ctypes.byref(Copy2D(host, device, 40, 2)), code=INVALID_VALUE, message="a pitch of 32")
    device.memory = 3
    api(
        "cuMemcpy2D_v2",
        ctypes.byref(Copy2D(host, device, 1, 1)),
        code=INVALID_VALUE,
        message="there are no arrays here",
    )
