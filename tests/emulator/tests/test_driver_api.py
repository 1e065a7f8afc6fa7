"""The driver API by ctypes: every entry point called rightly and wrongly, faults that stick, settings, images, copies,
launches. A wrong call gets an error; it never ends the process."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from small_kernel import Emulator, entry, module

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

    def __call__(self, name: str, *arguments: Any, code: int = SUCCESS, sentence: str | None = None) -> None:
        self.called.add(name)
        got = getattr(self.library, name)(*arguments)
        assert got == code, f"{name}: {got}, not {code}: {self.emulator.error()}"
        if sentence is not None:
            assert re.search(sentence, self.emulator.error()), self.emulator.error()

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


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()
    yield made
    made.library.emulator_reset()


U64, SIZE, PTR, INT, UINT = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32

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
    for stream in (None, 1, 2):  # those that nobody made
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
    api("cuStreamBeginCapture_v2", stream, 0, code=NOT_SUPPORTED, sentence="no graphs")
    value = ctypes.create_string_buffer(64)
    api("cuStreamSetAttribute", stream, 1, value)
    api("cuStreamGetAttribute", stream, 1, value)
    api("cuStreamCopyAttributes", stream, None)
    start, end = PTR(api.out("cuEventCreate", PTR, 0)), PTR(api.out("cuEventCreate", PTR, 0))
    blind = PTR(api.out("cuEventCreate", PTR, 2))
    elapsed = ctypes.c_float(-1)
    api("cuEventElapsedTime", by(elapsed), start, end, code=INVALID_HANDLE, sentence="must have been recorded")
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
    api("cuMemAlloc_v2", ctypes.byref(U64()), SIZE(2**62), code=2, sentence="no 4611686018427387904 bytes are left")
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
    api("cuMemFree_v2", U64(p), code=INVALID_VALUE, sentence="is not what cuMemAlloc gave")
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
    api("cuMemAdvise", managed, SIZE(65), 1, 0, code=INVALID_VALUE, sentence="are in no allocation")
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
            sentence="in an allocation that ends after 300",
        )
        api("cuMemcpyDtoH_v2", at[1], U64(p), SIZE(count), code=INVALID_VALUE, sentence="ends after 300")
    api("cuMemcpyHtoD_v2", U64(data.ctypes.data), at[0], SIZE(8), code=INVALID_VALUE, sentence="is in no allocation")
    api("cuMemcpyHtoD_v2", U64(p + 310), at[0], SIZE(8), code=INVALID_VALUE, sentence="is in no allocation")
    api("cuMemcpyHtoD_v2", U64(p), PTR(4096), SIZE(8), code=INVALID_VALUE, sentence="0x1000 is not mapped")
    api("cuMemcpyHtoD_v2", U64(0), at[0], SIZE(8), code=INVALID_VALUE, sentence="a null pointer")
    api("cuMemFree_v2", U64(q))
    api("cuMemcpyDtoH_v2", at[1], U64(q), SIZE(8), code=INVALID_VALUE, sentence="is in no allocation")


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
        api(f"cuMemset{name}_v2", U64(p), value, SIZE(256 // size + 1), code=INVALID_VALUE, sentence="ends after 256")
        api(f"cuMemset{name}_v2", U64(p), value, SIZE(2**63), code=INVALID_VALUE)
        api(
            f"cuMemsetD2{name}_v2",
            U64(p),
            SIZE(64),
            value,
            SIZE(3),
            SIZE(5),
            code=INVALID_VALUE,
            sentence="ends after 256",
        )
    api("cuMemsetD32_v2", U64(p + 2), 1, SIZE(1), code=INVALID_VALUE, sentence="not a multiple of 4")


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
    api("cuMemcpy2D_v2", ctypes.byref(Copy2D(host, device, 11, 9)), code=INVALID_VALUE, sentence="ends after")
    api("cuMemcpy2D_v2", ctypes.byref(Copy2D(host, device, 40, 2)), code=INVALID_VALUE, sentence="a pitch of 32")
    device.memory = 3
    api(
        "cuMemcpy2D_v2",
        ctypes.byref(Copy2D(host, device, 1, 1)),
        code=INVALID_VALUE,
        sentence="there are no arrays here",
    )


# ---- modules --------------------------------------------------------------------------------------------------------


def test_modules(api: Api, tmp_path: Path) -> None:
    path = tmp_path / "k.ptx"
    path.write_text(WRITES)
    text = ctypes.c_char_p(WRITES.encode())
    loaded = [PTR(api.out("cuModuleLoadDataEx", PTR, text, 0, None, None))]
    loaded.append(PTR(api.out("cuModuleLoadFatBinary", PTR, text)))
    loaded.append(PTR(api.out("cuModuleLoad", PTR, str(path).encode())))
    loaded.append(PTR(api.out("cuLibraryLoadData", PTR, text, None, None, 0, None, None, 0)))
    loaded.append(PTR(api.out("cuLibraryLoadFromFile", PTR, str(path).encode(), None, None, 0, None, None, 0)))
    api("cuModuleLoad", ctypes.byref(PTR()), b"/no/such.ptx", code=NO_FILE, sentence="/no/such.ptx cannot be read")
    assert api.out("cuModuleGetLoadingMode", INT) == 1
    for handle in loaded:
        assert api.out("cuModuleGetFunctionCount", UINT, handle) == 3
        assert api.out("cuLibraryGetKernelCount", UINT, handle) == 3
        functions = (PTR * 5)()
        api("cuModuleEnumerateFunctions", functions, 5, handle)
        api("cuLibraryEnumerateKernels", functions, 2, handle)
        names = [api.out("cuFuncGetName", ctypes.c_char_p, PTR(f)) for f in functions if f]
        assert names == [b"writes", b"faults", b"shares"]
        f = PTR(functions[0])
        assert f.value == api.function(handle, "writes").value
        assert api.out("cuLibraryGetKernel", PTR, handle, b"writes") == f.value
        assert api.out("cuKernelGetFunction", PTR, f) == f.value
        assert api.out("cuKernelGetName", ctypes.c_char_p, f) == b"writes"
        assert api.out("cuFuncGetModule", PTR, f) == api.out("cuKernelGetLibrary", PTR, f) == handle.value
        assert api.out("cuLibraryGetModule", PTR, handle) == handle.value
        state = INT()
        api("cuFuncIsLoaded", ctypes.byref(state), f)
        api("cuFuncLoad", f)
        assert state.value == 1
        for name in ("cuFuncGetParamInfo", "cuKernelGetParamInfo"):
            offset, size = SIZE(), SIZE()
            found = []
            for index in range(4):
                api(name, f, SIZE(index), ctypes.byref(offset), ctypes.byref(size))
                found.append((offset.value, size.value))
            assert found == [(0, 8), (8, 4), (12, 1), (16, 16)]
            api(name, f, SIZE(4), ctypes.byref(offset), ctypes.byref(size), code=INVALID_VALUE)
        for name in ("cuModuleGetGlobal_v2", "cuLibraryGetGlobal"):
            pointer, size = U64(), SIZE()
            api(name, ctypes.byref(pointer), ctypes.byref(size), handle, b"counter")
            assert size.value == 8
            value = U64()
            api("cuMemcpyDtoH_v2", ctypes.byref(value), pointer, SIZE(8))
            assert value.value == 41
            api(name, ctypes.byref(pointer), None, handle, b"scale")
            api(name, ctypes.byref(pointer), None, handle, b"nothing", code=NOT_FOUND)
    api("cuModuleGetFunction", ctypes.byref(PTR()), loaded[0], b"nothing", code=NOT_FOUND)
    for handle in loaded[:3]:
        api("cuModuleUnload", handle)
    for handle in loaded[3:]:
        api("cuLibraryUnload", handle)


def test_function_attributes(api: Api) -> None:
    f = api.function(api.load(), "shares")
    values = [api.out("cuFuncGetAttribute", INT, i, f) for i in (0, 1, 5, 6, 8)]
    assert values == [256, 4096, 80, 90, 44 * 1024]
    api("cuFuncSetAttribute", f, 8, 200000)
    assert api.out("cuKernelGetAttribute", INT, 8, f, 0) == 200000
    api("cuKernelSetAttribute", 8, 232448 - 4096, f, 0)
    api("cuFuncSetAttribute", f, 8, 232448 - 4095, code=INVALID_VALUE, sentence="has at most 228352")
    api("cuFuncSetAttribute", f, 0, 1, code=INVALID_VALUE)
    api("cuFuncGetAttribute", ctypes.byref(INT()), 99, f, code=INVALID_VALUE)
    api("cuFuncSetCacheConfig", f, 1)
    api("cuKernelSetCacheConfig", f, 1, 0)
    for name in ("cuOccupancyMaxActiveBlocksPerMultiprocessor", "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags"):
        more = (0,) if name.endswith("Flags") else ()
        assert api.out(name, INT, f, 256, SIZE(0), *more) == 8
        assert api.out(name, INT, f, 256, SIZE(100000), *more) == 2
        api(name, ctypes.byref(INT()), f, 0, SIZE(0), *more, code=INVALID_VALUE)
    for name in ("cuOccupancyMaxPotentialBlockSize", "cuOccupancyMaxPotentialBlockSizeWithFlags"):
        grid, block = INT(), INT()
        more = (0,) if name.endswith("Flags") else ()
        api(name, ctypes.byref(grid), ctypes.byref(block), f, None, SIZE(0), 0, *more)
        assert (grid.value, block.value) == (8 * 132, 256)
        shared = ctypes.CFUNCTYPE(SIZE, INT)(lambda threads: threads * 1000)
        api(name, ctypes.byref(grid), ctypes.byref(block), f, shared, SIZE(0), 128, *more)
        assert grid.value // 132 * block.value >= 192
    room = SIZE()
    api("cuOccupancyAvailableDynamicSMemPerBlock", ctypes.byref(room), f, 2, 128)
    assert room.value == (228 // 2 - 1) * 1024 - 4096


def test_links(api: Api, tmp_path: Path) -> None:
    link = PTR()
    api("cuLinkCreate_v2", 0, None, None, ctypes.byref(link))
    api("cuLinkComplete", link, ctypes.byref(PTR()), None, code=INVALID_VALUE, sentence="no input has been added")
    data = WRITES.encode()
    api(
        "cuLinkAddData_v2",
        link,
        0,
        data,
        SIZE(len(data)),
        b"x.cubin",
        0,
        None,
        None,
        code=200,
        sentence="x.cubin is no PTX",
    )
    api("cuLinkAddData_v2", link, 1, data, SIZE(len(data)), b"a.ptx", 0, None, None)
    image, size = PTR(), SIZE()
    api("cuLinkComplete", link, ctypes.byref(image), ctypes.byref(size))
    assert size.value == len(data) + 1
    handle = PTR(api.out("cuModuleLoadData", PTR, image))
    path = tmp_path / "b.ptx"
    path.write_bytes(data)
    api("cuLinkAddFile_v2", link, 1, str(path).encode(), 0, None, None, code=NOT_SUPPORTED, sentence="the second input")
    api("cuLinkAddFile_v2", link, 1, b"/no/such", 0, None, None, code=NO_FILE)
    api("cuLinkDestroy", link)
    api("cuLinkDestroy", link, code=INVALID_HANDLE)
    assert api.function(handle, "writes").value
    api("cuModuleUnload", handle)
    api("cuLinkCreate_v2", 0, None, None, ctypes.byref(link))
    api("cuLinkAddFile_v2", link, 1, str(path).encode(), 0, None, None)
    api("cuLinkDestroy", link)


def test_images_that_are_none(api: Api) -> None:
    for image, code, sentence in (
        (b"\x7fELF\x02\x01\x01" + bytes(64), NO_BINARY, "machine code"),
        (b"no ptx at all", INVALID_PTX, "ptx:1"),
        (b"\x50\xed\x55\xba" + bytes(64), NO_BINARY, "the fatbin is damaged"),
        (WRITES.replace("sm_80", "sm_100a").encode(), NO_BINARY, r"its \.target is sm_100a, which sm_90 does not run"),
        (WRITES.replace("trap;", "frobnicate.u32 %r1;").encode(), INVALID_PTX, "frobnicate"),
    ):
        api("cuModuleLoadData", ctypes.byref(PTR()), ctypes.create_string_buffer(image), code=code, sentence=sentence)


# ---- launches -------------------------------------------------------------------------------------------------------


class Attribute(ctypes.Structure):
    _fields_ = [("id", INT), ("pad", INT), ("value", UINT * 16)]


class Config(ctypes.Structure):
    _fields_ = [
        ("shape", UINT * 6),
        ("shared", UINT),
        ("queue", PTR),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", UINT),
    ]


def test_parameters_both_ways(api: Api) -> None:
    f = api.function(api.load(), "writes")
    p = api.memory(4)
    result = ctypes.c_uint32.from_address(p)
    pair = (U64 * 2)(5, 300)
    values = [U64(p), UINT(1000), ctypes.c_uint8(200), pair]
    pointers = (PTR * 4)(*[ctypes.addressof(v) for v in values])
    api("cuLaunchKernel", f, 1, 1, 1, 1, 1, 1, 0, None, pointers, None)
    api("cuCtxSynchronize")
    assert result.value == 3 * (1000 + 200 + 300)
    buffer = ctypes.create_string_buffer(32)
    ctypes.memmove(buffer, ctypes.byref(U64(p)), 8)
    ctypes.memmove(ctypes.byref(buffer, 8), ctypes.byref(UINT(7)), 4)
    buffer[12] = 9
    ctypes.memmove(ctypes.byref(buffer, 16), pair, 16)
    size = SIZE(32)
    extra = (PTR * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), None)
    api("cuLaunchKernel", f, 1, 1, 1, 1, 1, 1, 0, None, None, extra)
    api("cuCtxSynchronize")
    assert result.value == 3 * (7 + 9 + 300)
    size.value = 31
    api(
        "cuLaunchKernel",
        f,
        1,
        1,
        1,
        1,
        1,
        1,
        0,
        None,
        None,
        extra,
        code=INVALID_VALUE,
        sentence="31 bytes of arguments; it takes 32",
    )
    pointers[2] = None
    api(
        "cuLaunchKernel",
        f,
        1,
        1,
        1,
        1,
        1,
        1,
        0,
        None,
        pointers,
        None,
        code=INVALID_VALUE,
        sentence="argument 2 is missing",
    )
    api(
        "cuLaunchKernel", f, 1, 1, 1, 1, 1, 1, 0, None, None, None, code=INVALID_VALUE, sentence="argument 0 is missing"
    )


def config_of(grid: int, block: int, *attributes: tuple[int, list[int]]) -> Config:
    made = (Attribute * max(len(attributes), 1))()
    for slot, (number, values) in zip(made, attributes, strict=False):
        slot.id = number
        slot.value[: len(values)] = values
    return Config((UINT * 6)(grid, 1, 1, block, 1, 1), 0, None, made, len(attributes))


def test_launch_attributes(api: Api) -> None:
    f = api.function(api.load(), "shares")
    for attributes in ([], [(4, [2, 1, 1])], [(6, [1])], [(2, [1])], [(0, [0])], [(11, [2, 1, 1]), (8, [3])]):
        api("cuLaunchKernelEx", ctypes.byref(config_of(4, 32, *attributes)), f, None, None)
    api(
        "cuLaunchKernelEx",
        ctypes.byref(config_of(4, 32, (77, [1]))),
        f,
        None,
        None,
        code=INVALID_VALUE,
        sentence="attribute 77",
    )
    wide = config_of(16, 32, (4, [16, 1, 1]))
    api(
        "cuLaunchKernelEx",
        ctypes.byref(wide),
        f,
        None,
        None,
        code=INVALID_CLUSTER,
        sentence="NON_PORTABLE_CLUSTER_SIZE_ALLOWED",
    )
    assert api.out("cuOccupancyMaxPotentialClusterSize", INT, f, ctypes.byref(wide)) == 8
    api("cuFuncSetAttribute", f, 14, 1)
    api("cuLaunchKernelEx", ctypes.byref(wide), f, None, None)
    assert api.out("cuOccupancyMaxPotentialClusterSize", INT, f, ctypes.byref(wide)) == 16
    assert api.out("cuOccupancyMaxActiveClusters", INT, f, ctypes.byref(wide)) == 32 * (132 // 16)
    api(
        "cuLaunchKernelEx",
        ctypes.byref(config_of(4, 512)),
        f,
        None,
        None,
        code=INVALID_VALUE,
        sentence=r"its \.maxntid allows 256",
    )
    api("cuLaunchCooperativeKernel", f, 132 * 8, 1, 1, 256, 1, 1, 0, None, None)
    api(
        "cuLaunchCooperativeKernel",
        f,
        132 * 8 + 1,
        1,
        1,
        256,
        1,
        1,
        0,
        None,
        None,
        code=TOO_LARGE,
        sentence="at most 1056 blocks",
    )
    api("cuCtxSynchronize")


def test_a_fault_sticks(api: Api) -> None:
    handle = api.load()
    f, other = api.function(handle, "faults"), api.function(handle, "shares")
    p = api.memory(64)
    api("cuLaunchKernel", f, 3, 1, 1, 32, 1, 1, 0, None, None, None)
    api("cuLaunchKernel", other, 3, 1, 1, 32, 1, 1, 0, None, None, None)
    told = "kernel faults, block .*the program stops itself with `trap`"
    api("cuCtxSynchronize", code=LAUNCH_FAILED, sentence=told)
    host = ctypes.create_string_buffer(8)
    api("cuMemcpyDtoH_v2", host, U64(p), SIZE(8), code=LAUNCH_FAILED)
    api("cuStreamQuery", None, code=LAUNCH_FAILED)
    api("cuMemAlloc_v2", ctypes.byref(U64()), SIZE(64), code=LAUNCH_FAILED)
    api("cuModuleLoadData", ctypes.byref(PTR()), WRITES.encode(), code=LAUNCH_FAILED)
    api("cuModuleLoad", ctypes.byref(PTR()), b"/no/such", code=NO_FILE, sentence="cannot be read")
    api("cuLaunchKernel", other, 1, 1, 1, 32, 1, 1, 0, None, None, None, code=LAUNCH_FAILED, sentence=told)
    text = ctypes.c_char_p()
    api("cuGetErrorString", LAUNCH_FAILED, ctypes.byref(text))
    assert text.value and re.search(told.encode(), text.value)
    api("cuModuleUnload", handle, code=LAUNCH_FAILED)  # unloaded all the same; nothing of it is left in the machine
    api.library.emulator_reset()
    api("cuCtxSynchronize")
    assert api.emulator.error() == ""
    api("cuMemcpyDtoH_v2", host, U64(p), SIZE(8))  # memory outlives the fault
    again = api.function(api.load(), "shares")
    api("cuLaunchKernel", again, 1, 1, 1, 32, 1, 1, 0, None, None, None)
    api("cuCtxSynchronize")


def test_errors_have_names(api: Api) -> None:
    text = ctypes.c_char_p()
    for code, name in (
        (0, b"CUDA_SUCCESS"),
        (1, b"CUDA_ERROR_INVALID_VALUE"),
        (400, b"CUDA_ERROR_INVALID_HANDLE"),
        (719, b"CUDA_ERROR_LAUNCH_FAILED"),
    ):
        api("cuGetErrorName", code, ctypes.byref(text))
        assert text.value == name
        api("cuGetErrorString", code, ctypes.byref(text))
        assert text.value
    api("cuGetErrorName", 424242, ctypes.byref(text), code=INVALID_VALUE)


def test_tensor_maps(api: Api) -> None:
    p = api.memory(4096)
    raw = ctypes.create_string_buffer(256)
    at = PTR((ctypes.addressof(raw) + 63) // 64 * 64)
    dims, strides, box, ones = (U64 * 2)(32, 32), (U64 * 1)(128), (UINT * 2)(8, 8), (UINT * 2)(1, 1)
    api("cuTensorMapEncodeTiled", at, 7, 2, U64(p), dims, strides, box, ones, 0, 0, 0, 0)
    box[0] = 7
    api(
        "cuTensorMapEncodeTiled",
        at,
        7,
        2,
        U64(p),
        dims,
        strides,
        box,
        ones,
        0,
        0,
        0,
        0,
        code=INVALID_VALUE,
        sentence="cuTensorMapEncodeTiled: ",
    )
    api("cuTensorMapReplaceAddress", at, U64(p + 1024))
    api("cuTensorMapReplaceAddress", at, U64(p + 8), code=INVALID_VALUE, sentence="cuTensorMapReplaceAddress: ")
    nothing = [None] * 12
    for name in ("cuTensorMapEncodeIm2col", "cuTensorMapEncodeIm2colWide"):
        api(name, at, *nothing, code=NOT_SUPPORTED, sentence=f"{name}: .*im2col")


def test_procedure_addresses(api: Api) -> None:
    """Every entry point by its name; names without a suffix mean what they mean at the version that is asked for."""
    pointer, status = PTR(), INT()
    addresses: dict[tuple[str, int], int | None] = {}
    for name in exported():
        if not name.startswith("cu"):
            continue
        for asked in {name, re.sub(r"_v\d$", "", name)}:
            api("cuGetProcAddress_v2", asked.encode(), ctypes.byref(pointer), 13000, U64(0), ctypes.byref(status))
            assert pointer.value and status.value == 0
            addresses[asked, 13000] = pointer.value
    for name, version, symbol in (
        ("cuCtxCreate", 3020, "cuCtxCreate_v2"),
        ("cuCtxCreate", 12050, "cuCtxCreate_v4"),
        ("cuMemAdvise", 8000, "cuMemAdvise"),
        ("cuMemAdvise", 13000, "cuMemAdvise_v2"),
        ("cuMemPrefetchAsync", 12000, "cuMemPrefetchAsync"),
        ("cuGetProcAddress", 11030, "cuGetProcAddress"),
        ("cuGetProcAddress", 12000, "cuGetProcAddress_v2"),
        ("cuStreamGetCaptureInfo", 10010, "cuStreamGetCaptureInfo"),
        ("cuStreamGetCaptureInfo", 13000, "cuStreamGetCaptureInfo_v3"),
        ("cuMemAlloc", 3020, "cuMemAlloc_v2"),
    ):
        api("cuGetProcAddress_v2", name.encode(), ctypes.byref(pointer), version, U64(0), None)
        assert pointer.value == ctypes.cast(getattr(api.library, symbol), PTR).value, (name, version)
    api("cuGetProcAddress", b"cuInit", ctypes.byref(pointer), 13000, U64(0))
    api("cuGetProcAddress_v2", b"cuNothing", ctypes.byref(pointer), 13000, U64(0), ctypes.byref(status), code=NOT_FOUND)
    assert pointer.value is None and status.value == 1
    api("cuGetExportTable", ctypes.byref(pointer), ctypes.create_string_buffer(16))
    assert ctypes.c_size_t.from_address(pointer.value or 0).value == 8


def test_every_entry_point_was_called() -> None:
    """By the tests above, with right arguments."""
    if "cuTensorMapEncodeTiled" not in Api.called or "cuCtxGetId" not in Api.called:
        pytest.skip("not all tests of this file have run")
    missing = {n for n in exported() if n.startswith("cu")} - Api.called
    assert missing == set()


# ---- settings -------------------------------------------------------------------------------------------------------

WRONG = [
    ("device", "sm_75", "must be sm_80, sm_90, sm_100 or sm_120"),
    ("seed", "soon", "must be a number"),
    ("seed", "", "must be a number"),
    ("arithmetic", "exact", "must be silicon or fp64"),
    ("fences", "none", "must be text or silicon"),
    ("tmem_base", "33", "must be a multiple of 32 below 512"),
    ("tmem_base", "512", "must be a multiple of 32 below 512"),
    ("host_memory", "2", "must be 0 or 1"),
    ("quiet", "yes", "must be 0 or 1"),
]


@pytest.mark.parametrize(("name", "value", "sentence"), WRONG)
def test_wrong_settings(api: Api, name: str, value: str, sentence: str) -> None:
    assert api.library.emulator_configure(name.encode(), value.encode()) == -1
    assert api.emulator.error() == f"{name} is `{value}`; it {sentence}"
    assert api.library.emulator_configure(b"wish", b"1") == -1
    assert "is no setting" in api.emulator.error()
    assert api.library.emulator_configure(None, b"1") == -1


def test_wrong_variables_end_the_process() -> None:
    program = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).cuInit(0); print('went on')"
    for name, value, sentence in [WRONG[0], WRONG[5]]:
        variable = f"EMULATE_{name.upper()}"
        done = subprocess.run(
            [sys.executable, "-c", program, LIBRARY],
            capture_output=True,
            text=True,
            env={**os.environ, variable: value},
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"emulator: {variable} is `{value}`; it {sentence}\n"
    done = subprocess.run(
        [sys.executable, "-c", program, LIBRARY],
        capture_output=True,
        text=True,
        env={**os.environ, "EMULATE_DEVICE": "sm_120", "EMULATE_SEED": "0x10"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "went on\n", "")


def test_sentences_go_to_stderr_unless_quiet(api: Api, capfd: pytest.CaptureFixture[str]) -> None:
    for quiet in (0, 1):
        api.emulator.set("quiet", quiet)
        api("cuModuleLoad", ctypes.byref(PTR()), b"/no/such", code=NO_FILE)
        assert capfd.readouterr().err == ("" if quiet else "emulator: cuModuleLoad: /no/such cannot be read\n")


def test_modules_live_through_a_change_of_settings(api: Api) -> None:
    text = module(entry("mov.u32 %r1, %smid; st.global.u32 [%a0], 5;"), "sm_80")
    kernel = api.emulator.load(text)["run"]
    out = api.emulator.array(numpy.zeros(1, numpy.uint32))
    for name, value in (
        ("seed", 3),
        ("device", "sm_100"),
        ("fences", "silicon"),
        ("arithmetic", "fp64"),
        ("device", "sm_90"),
    ):
        out.numpy()[0] = 0
        api.emulator.set(name, value)
        api.emulator.launch(kernel, args=[out, 0, 0, 0, 0, 0])
        assert out.numpy()[0] == 5
