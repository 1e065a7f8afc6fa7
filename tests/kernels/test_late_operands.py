"""Programmatic dependent launch on a GPU: the grid before a product writes one of its operands late, or reads what the
product overwrites. The emulated counterpart, with many timings, is test_dependent_launch.py."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator

import pytest
import sanitize
import torch
from conftest import NO_GPU, gpu
from paths import KERNELS

import nvfp4
from nvfp4 import _C, reference

CLOCKS = 400_000  # some 200 us; a call takes 5 us to launch
SHAPES = [shape for shape in sanitize.PLANNED if shape[1] < 1000]


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if not gpu():
        pytest.skip(NO_GPU)
    library = tmp_path_factory.mktemp("late") / "late_copy.so"
    command = ["nvcc", "-shared", "-arch=native", "-Xcompiler=-fPIC", "-o", library, KERNELS / "late_copy.cu"]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


def copy_late(late: ctypes.CDLL, to: torch.Tensor, from_: torch.Tensor) -> None:
    pointers = (ctypes.c_void_p(to.data_ptr()), ctypes.c_void_p(from_.data_ptr()))
    bytes_, stream = to.untyped_storage().nbytes(), torch.cuda.current_stream().cuda_stream
    assert late.late_copy(*pointers, ctypes.c_uint64(bytes_), ctypes.c_int64(CLOCKS), ctypes.c_void_p(stream)) == 0


def candidates(m: int, n: int, k: int, l: int) -> Iterator[str]:
    """Sets each plan with another kernel, orientation or form of split-K in turn."""
    seen = set()

    def plan() -> dict[str, int | str]:
        return nvfp4.info(m, n, k, l, device=0, backend="sm90")["plan"]

    for place in range(plan()["candidates"]):
        _C.set_candidate(place)
        made = plan()
        key = (made["kernel"], made["swap_ab"], min(made["split_k"], 3))
        if key not in seen:
            seen.add(key)
            yield f"{made['kernel']}, swap_ab {made['swap_ab']}, split_k {made['split_k']}"
    _C.set_candidate(0)


@pytest.mark.parametrize("constant_b", [False, True], ids=["", "constant_b"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_every_kernel_waits(shape: tuple[int, int, int, int], constant_b: bool, late: ctypes.CDLL) -> None:
    """With constant_b the grid before may write everything but b and scale_b."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the kernels of sm80 have no dependent launch; those of sm100 have no GPU here")
    m, n, k, l = shape
    a, b, scale_a, scale_b = reference.batch_first(reference.generate_input(m, n, k, l, seed=m, device="cpu"))
    host = {
        "a": a, "b": b, "scale_a": reference.swizzle(scale_a), "scale_b": reference.swizzle(scale_b),
        "alpha": torch.full((n,), 2.0**-6), "bias": torch.randn(n), "c": torch.randn(l, m, n),
    }  # fmt: skip
    host = {name: x.contiguous() for name, x in host.items()}
    expected = nvfp4.gemm(**host, beta=1.0, out_dtype=torch.float32)
    right = {name: x.cuda() for name, x in host.items()}
    out, before = torch.empty(l, m, n, device="cuda"), torch.empty(l, m, n, device="cuda")
    for plan in candidates(*shape):
        for name in (*host, "out"):
            if constant_b and name in ("b", "scale_b"):
                continue
            given = {other: x.clone() for other, x in right.items()}
            out.fill_(torch.nan)
            if name == "out":
                before.zero_()
                torch.cuda.synchronize()
                copy_late(late, before, out)
            else:
                given[name].view(torch.uint8).fill_(0x7F)
                torch.cuda.synchronize()
                copy_late(late, given[name], right[name])
            nvfp4.gemm(**given, beta=1.0, out=out, backend="sm90", constant_b=constant_b)
            torch.cuda.synchronize()
            assert torch.equal(out.cpu(), expected), f"{plan} reads {name} too early"
            assert name != "out" or before.isnan().all(), f"{plan} writes out too early"
