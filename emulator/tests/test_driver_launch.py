"""The driver API by ctypes: modules, links, launches, faults that stick, tensor maps, addresses by name; settings."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
from driver_calls import (
    INT,
    INVALID_CLUSTER,
    INVALID_HANDLE,
    INVALID_PTX,
    INVALID_VALUE,
    LAUNCH_FAILED,
    LIBRARY,
    NO_BINARY,
    NO_FILE,
    NOT_FOUND,
    NOT_SUPPORTED,
    PTR,
    SIZE,
    TOO_LARGE,
    U64,
    UINT,
    WRITES,
    Api,
    exported,
)
from small_kernel import entry, module


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()
    yield made
    made.library.emulator_reset()


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
    api("cuModuleLoad", ctypes.byref(PTR()), b"/no/such.ptx", code=NO_FILE, message="/no/such.ptx cannot be read")
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


def test_options_are_two_arrays(api: Api) -> None:
    """Of as many elements as their count says; a count without them is an error."""
    made, text, numbers, values = ctypes.byref(PTR()), ctypes.c_char_p(WRITES.encode()), (INT * 1)(7), (PTR * 1)(4)
    for given in [(None, None), (numbers, None), (None, values)]:
        api("cuModuleLoadDataEx", made, text, 1, *given, code=INVALID_VALUE)
        api("cuLibraryLoadData", made, text, *given, 1, None, None, 0, code=INVALID_VALUE)
        api("cuLibraryLoadData", made, text, None, None, 0, *given, 1, code=INVALID_VALUE)
        api("cuLibraryLoadFromFile", made, b"/no/such.ptx", *given, 1, None, None, 0, code=INVALID_VALUE)
        api("cuLibraryLoadFromFile", made, b"/no/such.ptx", None, None, 0, *given, 1, code=INVALID_VALUE)
    api("cuModuleLoadDataEx", made, text, 1, numbers, values)
    api("cuLibraryLoadData", made, text, numbers, values, 1, numbers, values, 1)


def test_function_attributes(api: Api) -> None:
    f = api.function(api.load(), "shares")
    values = [api.out("cuFuncGetAttribute", INT, i, f) for i in (0, 1, 5, 6, 8)]
    assert values == [256, 4096, 80, 90, 44 * 1024]
    api("cuFuncSetAttribute", f, 8, 200000)
    assert api.out("cuKernelGetAttribute", INT, 8, f, 0) == 200000
    api("cuKernelSetAttribute", 8, 232448 - 4096, f, 0)
    api("cuFuncSetAttribute", f, 8, 232448 - 4095, code=INVALID_VALUE, message="has at most 228352")
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
    api("cuLinkComplete", link, ctypes.byref(PTR()), None, code=INVALID_VALUE, message="no input has been added")
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
        message="x.cubin is no PTX",
    )
    api("cuLinkAddData_v2", link, 1, data, SIZE(len(data)), b"a.ptx", 0, None, None)
    image, size = PTR(), SIZE()
    api("cuLinkComplete", link, ctypes.byref(image), ctypes.byref(size))
    assert size.value == len(data) + 1
    handle = PTR(api.out("cuModuleLoadData", PTR, image))
    path = tmp_path / "b.ptx"
    path.write_bytes(data)
    api("cuLinkAddFile_v2", link, 1, str(path).encode(), 0, None, None, code=NOT_SUPPORTED, message="the second input")
    api("cuLinkAddFile_v2", link, 1, b"/no/such", 0, None, None, code=NO_FILE)
    api("cuLinkDestroy", link)
    api("cuLinkDestroy", link, code=INVALID_HANDLE)
    assert api.function(handle, "writes").value
    api("cuModuleUnload", handle)
    api("cuLinkCreate_v2", 0, None, None, ctypes.byref(link))
    api("cuLinkAddFile_v2", link, 1, str(path).encode(), 0, None, None)
    api("cuLinkDestroy", link)


def test_images_that_are_none(api: Api) -> None:
    for image, code, message in (
        (b"\x7fELF\x02\x01\x01" + bytes(64), NO_BINARY, "machine code"),
        (b"no ptx at all", INVALID_PTX, "ptx:1"),
        (b"\x50\xed\x55\xba" + bytes(64), NO_BINARY, "the fatbin is damaged"),
        (WRITES.replace("sm_80", "sm_100a").encode(), NO_BINARY, r"its \.target is sm_100a, which sm_90 does not run"),
        (WRITES.replace("trap;", "frobnicate.u32 %r1;").encode(), INVALID_PTX, "frobnicate"),
    ):
        api("cuModuleLoadData", ctypes.byref(PTR()), ctypes.create_string_buffer(image), code=code, message=message)


def test_a_cubin_is_declined(api: Api, capfd: pytest.CaptureFixture[str]) -> None:
    """A program may offer its PTX next: nothing is printed, and the message is of this error alone."""
    api("cuModuleLoadData", ctypes.byref(PTR()), b"\x7fELF" + bytes(64), code=NO_BINARY, message="machine code")
    assert capfd.readouterr().err == ""
    text = ctypes.c_char_p()
    api("cuGetErrorString", NO_BINARY, ctypes.byref(text))
    assert text.value is not None and b"machine code" in text.value
    api("cuGetErrorString", INVALID_HANDLE, ctypes.byref(text))
    assert text.value is not None and b"machine code" not in text.value


# ---- launches -------------------------------------------------------------------------------------------------------


class Attribute(ctypes.Structure):
    _fields_ = [("id", INT), ("pad", INT), ("value", UINT * 16)]


class Config(ctypes.Structure):
    _fields_ = [
        ("shape", UINT * 6),
        ("shared", UINT),
        ("stream", PTR),
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
        message="31 bytes of arguments; it takes 32",
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
        message="argument 2 is missing",
    )
    api("cuLaunchKernel", f, 1, 1, 1, 1, 1, 1, 0, None, None, None, code=INVALID_VALUE, message="argument 0 is missing")


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
        message="attribute 77",
    )
    wide = config_of(16, 32, (4, [16, 1, 1]))
    api(
        "cuLaunchKernelEx",
        ctypes.byref(wide),
        f,
        None,
        None,
        code=INVALID_CLUSTER,
        message="NON_PORTABLE_CLUSTER_SIZE_ALLOWED",
    )
    assert api.out("cuOccupancyMaxPotentialClusterSize", INT, f, ctypes.byref(wide)) == 8
    api("cuFuncSetAttribute", f, 14, 1)
    api("cuLaunchKernelEx", ctypes.byref(wide), f, None, None)
    assert api.out("cuOccupancyMaxPotentialClusterSize", INT, f, ctypes.byref(wide)) == 16
    assert api.out("cuOccupancyMaxActiveClusters", INT, f, ctypes.byref(wide)) == 32 * 7
    api(
        "cuLaunchKernelEx",
        ctypes.byref(config_of(4, 512)),
        f,
        None,
        None,
        code=INVALID_VALUE,
        message=r"its \.maxntid allows 256",
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
        message="at most 1056 blocks",
    )
    api("cuCtxSynchronize")


def test_a_fault_sticks(api: Api) -> None:
    handle = api.load()
    f, other = api.function(handle, "faults"), api.function(handle, "shares")
    p = api.memory(64)
    api("cuLaunchKernel", f, 3, 1, 1, 32, 1, 1, 0, None, None, None)
    api("cuLaunchKernel", other, 3, 1, 1, 32, 1, 1, 0, None, None, None)
    told = "kernel faults, block .*the program stops itself with `trap`"
    api("cuCtxSynchronize", code=LAUNCH_FAILED, message=told)
    host = ctypes.create_string_buffer(8)
    api("cuMemcpyDtoH_v2", host, U64(p), SIZE(8), code=LAUNCH_FAILED)
    api("cuStreamQuery", None, code=LAUNCH_FAILED)
    api("cuMemAlloc_v2", ctypes.byref(U64()), SIZE(64), code=LAUNCH_FAILED)
    api("cuModuleLoadData", ctypes.byref(PTR()), WRITES.encode(), code=LAUNCH_FAILED)
    api("cuModuleLoad", ctypes.byref(PTR()), b"/no/such", code=NO_FILE, message="cannot be read")
    api("cuLaunchKernel", other, 1, 1, 1, 32, 1, 1, 0, None, None, None, code=LAUNCH_FAILED, message=told)
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
        message="cuTensorMapEncodeTiled: ",
    )
    api("cuTensorMapReplaceAddress", at, U64(p + 1024))
    api("cuTensorMapReplaceAddress", at, U64(p + 8), code=INVALID_VALUE, message="cuTensorMapReplaceAddress: ")
    nothing = [None] * 12
    for name in ("cuTensorMapEncodeIm2col", "cuTensorMapEncodeIm2colWide"):
        api(name, at, *nothing, code=NOT_SUPPORTED, message=f"{name}: .*im2col")


# ---- all of them ------------------------------------------------------------


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
    """By these tests and those of test_driver_api.py, with right arguments."""
    if "cuTensorMapEncodeTiled" not in Api.called or "cuCtxGetId" not in Api.called:
        pytest.skip("not all tests of the driver API have run")
    missing = {n for n in exported() if n.startswith("cu")} - Api.called
    assert missing == set()


# ---- settings -------------------------------------------------------------------------------------------------------

WRONG = [
    ("device", "sm_75", "must be sm_80, sm_90, sm_100 or sm_120"),
    ("seed", "soon", "must be a number"),
    ("seed", "", "must be a number"),
    ("arithmetic", "exact", "must be hardware or fp64"),
    ("fences", "none", "must be text or hardware"),
    ("tmem_base", "33", "must be a multiple of 32 below 512"),
    ("tmem_base", "512", "must be a multiple of 32 below 512"),
    ("host_memory", "2", "must be 0 or 1"),
    ("quiet", "yes", "must be 0 or 1"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_wrong_settings(api: Api, name: str, value: str, message: str) -> None:
    assert api.library.emulator_configure(name.encode(), value.encode()) == -1
    assert api.emulator.error() == f"{name} is `{value}`; it {message}"
    assert api.library.emulator_configure(b"wish", b"1") == -1
    assert "is no setting" in api.emulator.error()
    assert api.library.emulator_configure(None, b"1") == -1


def test_wrong_variables_end_the_process() -> None:
    program = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).cuInit(0); print('went on')"
    for name, value, message in [WRONG[0], WRONG[5]]:
        variable = f"EMULATE_{name.upper()}"
        done = subprocess.run(
            [sys.executable, "-c", program, LIBRARY],
            capture_output=True,
            text=True,
            env={**os.environ, variable: value},
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"emulator: {variable} is `{value}`; it {message}\n"
    done = subprocess.run(
        [sys.executable, "-c", program, LIBRARY],
        capture_output=True,
        text=True,
        env={**os.environ, "EMULATE_DEVICE": "sm_120", "EMULATE_SEED": "0x10"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "went on\n", "")


def test_messages_go_to_stderr_unless_quiet(api: Api, capfd: pytest.CaptureFixture[str]) -> None:
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
        ("fences", "hardware"),
        ("arithmetic", "fp64"),
        ("device", "sm_90"),
    ):
        out.numpy()[0] = 0
        api.emulator.set(name, value)
        api.emulator.launch(kernel, args=[out, 0, 0, 0, 0, 0])
        assert out.numpy()[0] == 5
