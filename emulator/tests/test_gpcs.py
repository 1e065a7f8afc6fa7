"""A cluster lies in one GPC, so fewer run at once than the SMs would hold."""

from __future__ import annotations

import bisect
import ctypes
import itertools

import numpy
import pytest
from driver_calls import TOO_LARGE
from small_kernel import Emulator, EmulatorError, entry, module

INT, UINT, PTR = ctypes.c_int, ctypes.c_uint, ctypes.c_void_p
SHARED_OPT_IN, SHARED = 8, 227 * 1024  # one block fits an SM
GPCS = {"sm_100": [20, 20, 18, 18, 18, 18, 16, 14, 2, 2, 2], "sm_90": [18, 18, 18, 18, 18, 16, 16, 10]}
# The answers of cuOccupancyMaxActiveClusters on such GPUs, by the blocks of a cluster.
ANSWERS = [("sm_100", {1: 148, 2: 74, 4: 33, 6: 22, 8: 15}), ("sm_90", {1: 132, 2: 66, 4: 30, 8: 15})]
WRITE_SM = """
  mov.u32 %r0, %smid;
  mov.u32 %r1, %ctaid.x;
  mul.wide.u32 %d0, %r1, 4;
  add.u64 %d0, %a0, %d0;
  st.global.u32 [%d0], %r0;
"""


class Attribute(ctypes.Structure):
    _fields_ = [("id", INT), ("pad", INT), ("value", UINT * 16)]


class Config(ctypes.Structure):
    _fields_ = [
        ("shape", UINT * 6), ("shared", UINT), ("stream", PTR), ("attributes", ctypes.POINTER(Attribute)),
        ("count", UINT),
    ]  # fmt: skip


def config(clusters: int, size: int, shared: int, cooperative: bool = False) -> Config:
    attributes = (Attribute * 2)()
    attributes[0].id, attributes[0].value[:3] = 4, [size, 1, 1]
    attributes[1].id, attributes[1].value[0] = 2, int(cooperative)
    return Config((UINT * 6)(clusters * size, 1, 1, 32, 1, 1), shared, None, attributes, 2)


def start(device: str, seed: int = 0):
    emulator = Emulator(device, seed)
    kernel = emulator.load(module(entry(WRITE_SM), device))["run"]
    emulator.call("cuFuncSetAttribute", kernel.handle, SHARED_OPT_IN, SHARED)
    return emulator, kernel


@pytest.mark.parametrize(("device", "clusters"), ANSWERS, ids=[device for device, _ in ANSWERS])
def test_occupancy(device: str, clusters: dict[int, int]) -> None:
    emulator, kernel = start(device)
    for size, wanted in clusters.items():
        for blocks, shared in ((1, SHARED), (2, 113 * 1024)):
            value = INT()
            launch = config(1, size, shared)
            emulator.call("cuOccupancyMaxActiveClusters", ctypes.byref(value), kernel.handle, ctypes.byref(launch))
            assert value.value == blocks * wanted, (size, blocks)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("device", GPCS)
def test_a_cluster_lies_in_one_gpc(device: str, seed: int) -> None:
    ends = list(itertools.accumulate(GPCS[device]))
    emulator, kernel = start(device, seed)
    for size in (2, 4, 8):
        out = emulator.array(numpy.full(40 * size, -1, numpy.int32))
        emulator.launch(kernel, 40 * size, 32, [out, 0, 0, 0, 0, 0], SHARED, size)
        gpcs = numpy.array([bisect.bisect_right(ends, sm) for sm in out.numpy()]).reshape(40, size)
        assert (gpcs == gpcs[:, :1]).all() and gpcs.max() < len(ends), size
        assert size == 2 or all(GPCS[device][gpc] > 2 for gpc in gpcs.flat), size


@pytest.mark.parametrize(("device", "most"), [("sm_100", 33), ("sm_90", 30)])
def test_a_cooperative_grid_has_to_fit(device: str, most: int) -> None:
    """All of it is resident at once, on SMs of its own."""
    emulator, kernel = start(device)
    out = emulator.array(numpy.full(4 * most + 4, -1, numpy.int32))
    values = [ctypes.c_uint64(value) for value in (out.address, 0, 0, 0, 0, 0)]
    arguments = (PTR * 6)(*(ctypes.addressof(value) for value in values))
    fits, does_not = (config(clusters, 4, SHARED, cooperative=True) for clusters in (most, most + 1))
    emulator.call("cuLaunchKernelEx", ctypes.byref(fits), kernel.handle, arguments, None)
    emulator.call("cuCtxSynchronize")
    sms = out.numpy()[: 4 * most]
    assert len(set(sms.tolist())) == 4 * most and sms.min() >= 0
    with pytest.raises(EmulatorError, match=f"at most {4 * most} blocks are resident at once"):
        emulator.call("cuLaunchKernelEx", ctypes.byref(does_not), kernel.handle, arguments, None)
    assert emulator.library.cuLaunchKernelEx(ctypes.byref(does_not), kernel.handle, arguments, None) == TOO_LARGE
