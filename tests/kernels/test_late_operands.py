"""Programmatic dependent launch of calls on a GPU: the grid before a product writes one of its operands late, or reads
what the product overwrites. With `--emulate sm_90` too, one operand by turns for each plan; the emulated counterpart,
with many timings, is test_dependent_launch.py."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import sanitize
import torch
from conftest import NO_GPU, compute_capability, gpu, is_emulated
from emulate import Emulator
from harness.predecessor import Predecessor
from paths import KERNELS

import nvfp4
from nvfp4 import reference

CLOCKS = 400_000  # some 200 us; a call takes 5 us to launch
SEED = int(os.environ["NVFP4_TEST_SEED"])
DEVICE = "cpu" if is_emulated() else "cuda"


class OnGpu:
    """A grid that copies bytes late."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    @contextlib.contextmanager
    def copies(self, to: torch.Tensor, from_: torch.Tensor) -> Iterator[None]:
        """Before what the block queues, and waits for both."""
        torch.cuda.synchronize()
        pointers = (ctypes.c_void_p(to.data_ptr()), ctypes.c_void_p(from_.data_ptr()))
        bytes_, stream = to.untyped_storage().nbytes(), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        assert self.library.late_copy(*pointers, ctypes.c_uint64(bytes_), ctypes.c_int64(CLOCKS), stream) == 0
        yield
        torch.cuda.synchronize()


class OnEmulated:
    def __init__(self) -> None:
        self.emulator = Emulator("sm_90", SEED, library=os.environ["NVFP4_LIBCUDA"], host_memory=1)

    @contextlib.contextmanager
    def copies(self, to: torch.Tensor, from_: torch.Tensor) -> Iterator[None]:
        before = Predecessor(self.emulator, "sm90")
        placed = [SimpleNamespace(address=x.data_ptr(), nbytes=x.untyped_storage().nbytes()) for x in (to, from_)]
        before.copies.append(tuple(placed))
        with before.launched():
            yield


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> OnGpu | OnEmulated:
    if not gpu() and not is_emulated():
        pytest.skip(NO_GPU)
    if compute_capability() // 10 != 9:
        pytest.skip("the kernels of sm80 have no dependent launch; those of sm100 and sm120 have no GPU here")
    if is_emulated():
        return OnEmulated()
    library = tmp_path_factory.mktemp("late") / "late_copy.so"
    command = ["nvcc", "-shared", "-arch=native", "-Xcompiler=-fPIC", "-o", library, KERNELS / "late_copy.cu"]
    subprocess.run(command, check=True)
    return OnGpu(ctypes.CDLL(str(library)))


def plans(shape: tuple[int, int, int, int], **of: Any) -> Iterator[str]:
    """Sets each plan with another kernel, orientation or form of split-K in turn."""
    seen = set()
    for _, plan in sanitize.plans(shape, backend="sm90", **of):
        key = (plan["kernel"], plan["swap_ab"], min(plan["split_k"], 3))
        if key not in seen:
            seen.add(key)
            yield f"{plan['kernel']}, swap_ab {plan['swap_ab']}, split_k {plan['split_k']}"


def every_plan_waits(
    late: OnGpu | OnEmulated,
    shape: tuple[int, int, int, int],
    host: dict[str, torch.Tensor],
    written: list[str],
    **options: Any,
) -> list[str]:
    """Each of the `written` operands written late, and the output read late. Returns the plans."""
    given = {"scale_a": None, **host}
    of = {"a_dtype": str(host["a"].dtype).removeprefix("torch."), "transpose_b": options["transpose_b"]}
    of = of if "scale_a" not in host else {}
    expected = nvfp4.gemm(**given, beta=1.0, out_dtype=torch.float32, backend="cpu", transpose_b=options["transpose_b"])
    right = {name: x.to(DEVICE) for name, x in host.items()}
    out, before = (torch.empty(expected.shape, device=DEVICE) for _ in range(2))
    made = []
    for plan in plans(shape, **of):
        names = [*written, "out"]
        made.append(plan)
        for name in [names[(SEED + len(made)) % len(names)]] if is_emulated() else names:
            given = {"scale_a": None, **{other: x.clone() for other, x in right.items()}}
            out.fill_(torch.nan)
            before.zero_()
            if name != "out":
                given[name].view(torch.uint8).fill_(0x7F)
            with late.copies(*((before, out) if name == "out" else (given[name], right[name]))):
                nvfp4.gemm(**given, beta=1.0, out=out, backend="sm90", **options)
            assert torch.equal(out.cpu(), expected), f"{plan} reads {name} too early"
            assert name != "out" or before.isnan().all(), f"{plan} writes out too early"
    return made


def rest(columns: int, l: int, m: int, alphas: int) -> dict[str, torch.Tensor]:
    return {
        "alpha": torch.full((alphas,), 2.0**-6),
        "bias": torch.randn(columns),
        "c": torch.randn(l, m, columns),
    }


def ids(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize("constant_b", [False, True], ids=["", "constant_b"])
@pytest.mark.parametrize("shape", sanitize.PLANNED, ids=ids)
def test_every_kernel_waits(shape: tuple[int, int, int, int], constant_b: bool, late: OnGpu | OnEmulated) -> None:
    """With constant_b the grid before may write everything but b and scale_b."""
    m, n, k, l = shape
    a, b, scale_a, scale_b = reference.batch_first(reference.generate_input(m, n, k, l, seed=m, device="cpu"))
    host = {"a": a, "b": b, "scale_a": reference.swizzle(scale_a), "scale_b": reference.swizzle(scale_b)}
    host = {name: x.contiguous() for name, x in host.items()} | rest(n, l, m, n)
    written = [name for name in host if not (constant_b and name in ("b", "scale_b"))]
    made = every_plan_waits(late, shape, host, written, constant_b=constant_b, transpose_b=True)
    assert n < 1000 or any("streamk" in plan for plan in made)


@pytest.mark.parametrize("transpose_b", [True, False], ids=["", "not transposed"])
@pytest.mark.parametrize("a_type", [torch.float16, torch.bfloat16], ids=ids)
@pytest.mark.parametrize("shape", sanitize.A16_SHAPES, ids=ids)
def test_every_kernel_of_16_bit_a_waits(
    shape: tuple[int, int, int, int], a_type: torch.dtype, transpose_b: bool, late: OnGpu | OnEmulated
) -> None:
    m, n, k, l = shape
    n = n if transpose_b else (n + 7) // 8 * 8
    _, b, _, scale_b = reference.batch_first(reference.generate_input(m, n, k, l, seed=m, device="cpu"))
    a = (torch.randint(-12, 13, (l, m, k if transpose_b else n)) / 2).to(a_type)
    host = {"a": a, "b": b.contiguous(), "scale_b": reference.swizzle(scale_b).contiguous()}
    host |= rest(n if transpose_b else k, l, m, n if transpose_b else 1)
    made = every_plan_waits(late, (m, n, k, l), host, list(host), transpose_b=transpose_b)
    assert not transpose_b or n < 1000 or any("streamk" in plan for plan in made)
