"""The Python module: how objects are read, and that nothing leaks."""

from __future__ import annotations

import contextlib
import doctest
import gc
import re
import subprocess
import sys
import textwrap
import threading
import time
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Backend
from guarded_buffers import Guarded
from python_server import python
from small_product import K, M, N, bits

import nvfp4
from nvfp4 import reference


def output(program: str) -> str:
    """The output of a process of its own that has imported torch."""
    result = python("-c", textwrap.dedent(program), cwd="/")  # not where a checkout would be imported
    assert result.returncode == 0, result.stderr
    return result.stdout


# ---- reading ----


@pytest.mark.parametrize(
    ("module", "least"),
    [
        ("_api", 20),
        ("_products", 8),
        ("_info", 4),
        ("_tuning", 2),
        ("layers.linear", 3),
        ("quantizing.quantize_model", 4),
        ("quantizing.dequantize_model", 4),
        ("layers.parallel", 1),
        ("checkpoints.load", 6),
        ("checkpoints.save", 4),
        ("checkpoints.inspect", 6),
    ],
)
def test_examples_of_the_docstrings(module: str, least: int) -> None:
    result = doctest.testmod(import_module(f"nvfp4.{module}"))
    assert result.attempted >= least
    assert result.failed == 0


def test_import_brings_neither_torch_nor_numpy() -> None:
    program = "import sys; before = {*sys.modules}; import nvfp4; print(*sorted({*sys.modules} - before))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd="/")
    assert set(result.stdout.split()) <= {
        "__future__",
        "nvfp4",
        "nvfp4._C",
        "nvfp4._api",
        "nvfp4._info",
        "nvfp4._products",
        "nvfp4._tracing",
        "nvfp4._tuning",
    }


def test_dtypes_are_equal_citizens(operands: list[torch.Tensor]) -> None:
    expected = bits(nvfp4.gemm(*operands))
    a, b, scale_a, scale_b = operands
    packed = (a.view(torch.float4_e2m1fn_x2), b.view(torch.float4_e2m1fn_x2))
    assert bits(nvfp4.gemm(*packed, scale_a, scale_b)) == expected
    e4m3 = (scale_a.view(torch.float8_e4m3fn), scale_b.view(torch.float8_e4m3fn))
    assert bits(nvfp4.gemm(a, b, *e4m3)) == expected
    parameters = [torch.nn.Parameter(x, requires_grad=False) for x in (a, b, *e4m3)]
    assert bits(nvfp4.gemm(*parameters)) == expected
    assert bits(nvfp4.gemm(a, b, *(torch.nn.Parameter(s) for s in e4m3))) == expected  # formats have no gradient
    assert bits(nvfp4.gemm(a, b, scale_a.flatten(), scale_b.view(2, 64, 4))) == expected


def test_numpy_gives_the_same_bits(operands: list[torch.Tensor], tmp_path: Any) -> None:
    arrays = [x.numpy() for x in operands]
    for name in ("float16", "float32"):
        expected = nvfp4.gemm(*operands, out_dtype=name)
        for out_dtype in (name, np.dtype(name), getattr(np, name), getattr(torch, name)):
            got = nvfp4.gemm(*arrays, out_dtype=out_dtype)
            assert isinstance(got, np.ndarray)
            assert got.dtype == name
            assert bits(got) == bits(expected)
    assert type(nvfp4.gemm(arrays[0], *operands[1:])) is np.ndarray  # a's library
    assert type(nvfp4.gemm(operands[0], *arrays[1:])) is torch.Tensor
    mapped = np.memmap(tmp_path / "a", np.uint8, "w+", shape=(M, K // 2))
    mapped[:] = arrays[0]
    assert bits(nvfp4.gemm(mapped, *arrays[1:])) == bits(nvfp4.gemm(*operands))
    mapped._mmap.close()


def test_numpy_strides_count_bytes(operands: list[torch.Tensor]) -> None:
    arrays = [x.numpy() for x in operands]
    wide = np.full((M, N + 9), np.nan, np.float32)
    out = wide[:, :N]
    assert out.strides == (16 * 4, 4)
    assert nvfp4.gemm(*arrays, out=out) is out
    assert bits(out) == bits(nvfp4.gemm(*operands, out_dtype="float32"))
    assert np.isnan(wide[:, N:]).all()


def test_numpy_converts(operands: list[torch.Tensor], generator: torch.Generator) -> None:
    x = torch.randn(3, 33, 48, generator=generator)
    for layout in ("128x4", "linear"):
        data, scale = nvfp4.quantize(x.numpy(), scale_layout=layout)
        expected = nvfp4.quantize(x, scale_layout=layout)
        assert (data.dtype, scale.dtype) == (np.uint8, np.uint8)
        assert [bits(data), bits(scale)] == [bits(t) for t in expected]
        back = nvfp4.dequantize(data, scale, scale_layout=layout)
        assert back.dtype == np.float32
        assert bits(back) == bits(nvfp4.dequantize(*expected, scale_layout=layout))
    assert bits(nvfp4.swizzle(scale)) == bits(nvfp4.swizzle(expected[1]))
    assert bits(nvfp4.unswizzle(nvfp4.swizzle(scale), 33, 3)) == bits(scale)


def test_bfloat16_of_ml_dtypes(operands: list[torch.Tensor]) -> None:
    arrays = [x.numpy() for x in operands]
    ml_dtypes = pytest.importorskip("ml_dtypes")
    got = nvfp4.gemm(*arrays, out_dtype=ml_dtypes.bfloat16)
    assert got.dtype == ml_dtypes.bfloat16
    assert bits(got) == bits(nvfp4.gemm(*operands, out_dtype=torch.bfloat16))


@pytest.mark.parametrize("name", ["float16", "float32", "bfloat16"])
def test_numpy_strides_of_each_type(name: str) -> None:
    """NumPy says how many bytes lie between rows, nvfp4_tensor how many elements."""
    dtype = pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else np.dtype(name)
    padded = np.random.default_rng().standard_normal((5, 48)).astype(dtype)[:, :32]
    assert padded.strides != np.ascontiguousarray(padded).strides
    for got, expected in zip(nvfp4.quantize(padded), nvfp4.quantize(np.ascontiguousarray(padded))):
        assert np.array_equal(got, expected)


def test_bfloat16_without_ml_dtypes() -> None:
    program = """
        import sys
        sys.modules["ml_dtypes"] = None
        import numpy as np, nvfp4
        a, s = np.zeros((1, 8), np.uint8), np.zeros(512, np.uint8)
        try: nvfp4.gemm(a, a, s, s, out_dtype="bfloat16")
        except nvfp4.Error as error: print(error)
    """
    assert output(program) == "out_dtype: is bfloat16, which NumPy has only when ml_dtypes has been imported\n"


@pytest.mark.parametrize(
    "alpha", [2, 2.0, np.float32(2), np.float64(2), np.int8(2), torch.tensor(2.0), np.float32([2])]
)
def test_alpha_is_any_real_number(operands: list[torch.Tensor], alpha: Any) -> None:
    expected = nvfp4.gemm(*operands, out_dtype="float32") * 2
    assert bits(nvfp4.gemm(*operands, alpha=alpha, out_dtype="float32")) == bits(expected)
    if isinstance(alpha, (int, float)):
        assert bits(nvfp4.gemm(*operands, c=expected, beta=alpha / 4, alpha=alpha / 4, out_dtype="float32")) == bits(
            expected * 0.75
        )


def test_out_is_written_and_returned(operands: list[torch.Tensor], generator: torch.Generator) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        expected = nvfp4.gemm(*operands, out_dtype=dtype)
        assert expected.dtype == dtype
        out = Guarded((M, N), dtype, generator=generator, pitch=64)
        returned = nvfp4.gemm(*operands, out=out.tensor), nvfp4.gemm(*operands, out=out.tensor, out_dtype=dtype)
        assert all(x is out.tensor for x in returned)
        assert bits(out.tensor) == bits(expected)
        assert out.unchanged_around()


# ---- custom_kernel's views ----


@pytest.mark.parametrize("l", [1, 2])
def test_views_of_any_stride_along_one(l: int) -> None:  # noqa: E741
    a, b, _, _, sfa, sfb, c = reference.generate_input(130, 67, 96, l, 7)
    expected = nvfp4.custom_kernel(a, b, sfa, sfb, c).clone()
    if l == 1:  # then the stride along L means nothing
        a, b, sfa, sfb = (x.as_strided(x.shape, (*x.stride()[:-1], 1), x.storage_offset()) for x in (a, b, sfa, sfb))
        c = c.as_strided(c.shape, (*c.stride()[:-1], 3))
    c.fill_(float("nan"))
    assert nvfp4.custom_kernel(a, b, sfa, sfb, c) is c
    assert torch.equal(c, expected)


def test_the_stride_of_one_element_means_nothing() -> None:
    (a, scale_a), (b, scale_b) = (nvfp4.quantize(torch.ones(rows, 32)) for rows in (3, 1))
    bias = torch.tensor([2.5, 7.0])
    expected = nvfp4.gemm(a, b, scale_a, scale_b, bias=bias[:1])
    assert torch.equal(nvfp4.gemm(a, b, scale_a, scale_b, bias=bias.as_strided((1,), (5,))), expected)
    out = torch.zeros(32, dtype=torch.float16).as_strided((3, 1), (8, 5))
    assert torch.equal(nvfp4.gemm(a, b, scale_a, scale_b, bias=bias[:1], out=out), expected)


def test_views_that_are_not_what_they_claim() -> None:
    a, b, _, _, sfa, sfb, c = reference.generate_input(130, 67, 96, 2, 7)
    c.fill_(float("nan"))
    wrong = {
        "a: has 2 dimensions; must have 3 ([M, K/2, L])": [a[..., 0], b, sfa, sfb, c],
        "a: stride of dimension 1 is 2; must be 1 ([M, K/2, L] in memory order L, rows, columns)": [
            a.view(torch.uint8).contiguous(), b, sfa, sfb, c,
        ],
        "b: K is 64 but a has K = 96": [a, b[:, :32], sfa, sfb, c],
        "sfa_permuted: has 5 dimensions; must have 6 ([32, 4, rest_m, 4, rest_k, L])": [a, b, sfa[..., 0], sfb, c],
        "sfa_permuted: dimension 2 is 1; must be 2 ([32, 4, rest_m, 4, rest_k, L])": [a, b, sfb, sfa, c],
        "sfa_permuted: stride of dimension 5 is 1; must be 2048 (a view of contiguous (L, rest_m, rest_k, 32, 4, 4))": [
            a, b, sfa.contiguous(), sfb, c,
        ],
        "sfb_permuted: is missing; must be a tensor": [a, b, sfa, None, c],
        "sfb_permuted: dtype is float16; must be float8_e4m3fn or uint8": [a, b, sfa, sfb.half(), c],
        "c: is 2 x 129 x 67; must be L x M x N = 2 x 130 x 67": [a, b, sfa, sfb, c[:129]],
        "c: is missing; must be a tensor": [a, b, sfa, sfb, None],
        "c: dtype is uint8; must be float16, bfloat16 or float32": [a, b, sfa, sfb, a.view(torch.uint8)[:, :67]],
    }  # fmt: skip
    for message, arguments in wrong.items():
        with pytest.raises(nvfp4.Error) as error:
            nvfp4.custom_kernel(*arguments)
        assert str(error.value) == message
    assert c.isnan().all()


@pytest.mark.parametrize("kernel", ["portable", "avx2", "avx512vnni", "amx", "reference", None])
def test_the_reason_of_a_cpu_kernel_is_one(kernel: str | None) -> None:
    """Either NVFP4_CPU names it, or the CPU runs no faster one."""
    setting = "" if kernel is None else f"os.environ['NVFP4_CPU'] = {kernel!r}"
    program = f"""
        import os
        os.environ.pop("NVFP4_CPU", None)
        {setting}
        import nvfp4
        try:
            plan = nvfp4.info(2, 2, 16, device="cpu")["plan"]
            print(plan["kernel"], plan["reason"], sep=": ")
        except nvfp4.Error as error:
            print(error)
    """
    told = output(program).strip()
    if kernel is None:
        assert " NVFP4_CPU" not in told and re.fullmatch(r"\w+: the CPU has .*", told), told
    elif "this CPU has not the instructions" not in told:
        assert told == f"{kernel}: NVFP4_CPU asks for it"


def test_only_names_are_renamed() -> None:
    """custom_kernel's c is gemm's out; the word elsewhere, as in a driver's "out of memory", stays."""
    program = """
        import os
        os.environ["NVFP4_CPU"] = "out of order"
        import nvfp4
        from nvfp4 import reference
        a, b, _, _, sfa, sfb, c = reference.generate_input(4, 4, 16, 1, 0, device="cpu")
        try:
            nvfp4.custom_kernel(a, b, sfa, sfb, c)
        except nvfp4.Error as error:
            print(error)
    """
    assert output(program).endswith('is "out of order"\n')


# ---- the exchange table ----

ANOTHER_TABLE = """
    import ctypes, torch
    word = ctypes.c_uint64
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    real = get(torch.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api")
    future = (word * 7)(2)  # of major version 2, with functions that nobody may call
    import nvfp4
    a, b, s = torch.full((2, 8), 0x22, dtype=torch.uint8), torch.full((3, 8), 0x22, dtype=torch.uint8), torch.zeros(512)
    s = (s + 1).to(torch.float8_e4m3fn)
    dispatched = []
    operator = nvfp4.torch_ops.call
    nvfp4.torch_ops.call = lambda *arguments: dispatched.append(1) or operator(*arguments)
    def show(): print(nvfp4.gemm(a, b, s, s).tolist() == [[16.0] * 3] * 2, bool(dispatched))
"""


@pytest.mark.parametrize(
    ("published", "by_dispatcher"),
    [
        ("torch.Tensor.__dlpack_c_exchange_api__", False),
        ("real", False),  # an int, as the first releases had it
        ('new(ctypes.addressof(future), b"dlpack_exchange_api", None)', True),
        ('future.__setitem__(1, real) or new(ctypes.addressof(future), b"dlpack_exchange_api", None)', False),
        ('new(ctypes.addressof(future), b"another_name", None)', True),
    ],
)
def test_exchange_tables(published: str, by_dispatcher: bool) -> None:
    """A table of an unknown version, unless it leads to an older one, sends every tensor through the dispatcher."""
    program = textwrap.dedent(ANOTHER_TABLE) + f"torch.Tensor.__dlpack_c_exchange_api__ = {published}\nshow()\n"
    assert output(program) == f"True {by_dispatcher}\n"


def test_a_torch_without_the_table_is_named() -> None:
    program = """
        import torch, nvfp4
        del torch.Tensor.__dlpack_c_exchange_api__
        torch.__version__ = "2.9.1"
        try: nvfp4.swizzle(torch.zeros(1, 1, dtype=torch.uint8))
        except nvfp4.Error as error: print(error)
    """
    assert output(program) == "torch: version is 2.9.1; must be 2.10 or newer\n"


# ---- references and threads ----


def test_nothing_leaks(operands: list[torch.Tensor]) -> None:
    arrays = [x.numpy() for x in operands]
    x, out, bias = torch.zeros(2, 16), torch.zeros(M, N, dtype=torch.float16), torch.zeros(N)
    views = reference.generate_input(4, 4, 16, 1, 0)

    def calls() -> None:
        nvfp4.gemm(*operands, out=out, bias=bias, alpha=bias, c=out, beta=0.5, out_dtype=torch.float16)
        nvfp4.gemm(*arrays, out_dtype="float32")
        nvfp4.custom_kernel(views[0], views[1], *views[4:])
        data, scale = nvfp4.quantize(x, global_scale=2.0)
        nvfp4.dequantize(data, scale)
        nvfp4.unswizzle(nvfp4.swizzle(scale), 128, 4)
        nvfp4.info(1, 1, 16)
        for wrong in ({"a": [1]}, {"out": x}, {"out_dtype": "x"}, {"alpha": "x"}, {"backend": 1}, {"bias": x}):
            with contextlib.suppress(nvfp4.Error):
                nvfp4.gemm(**(dict(zip(("a", "b", "scale_a", "scale_b"), operands)) | wrong))

    def growth(rounds: int) -> int:
        gc.collect()
        before = sys.getallocatedblocks()
        for _ in range(rounds):
            calls()
        gc.collect()
        return sys.getallocatedblocks() - before

    # Caches fill at first and now and then; a leak would show in every round.
    assert any(growth(100) < 50 for _ in range(20))
    objects = [*operands, out, bias, x, *views]
    counts = [sys.getrefcount(o) for o in objects]
    for _ in range(50):
        calls()
    assert [sys.getrefcount(o) for o in objects] == counts


def test_threads_keep_their_own_messages(operands: list[torch.Tensor]) -> None:
    """Calls that succeed and calls that fail, at once; the lock is released while numbers are computed."""
    a, b, scale_a, scale_b = operands
    expected = bits(nvfp4.gemm(*operands))
    failures: list[str] = []

    def work(k: int) -> None:
        for _ in range(200):
            if bits(nvfp4.gemm(*operands)) != expected:
                failures.append("numbers")
            try:
                nvfp4.gemm(a, b[:, : k // 2], scale_a, scale_b)
            except nvfp4.Error as error:
                if str(error) != f"b: K is {k} but a has K = {K}":
                    failures.append(str(error))

    threads = [threading.Thread(target=work, args=(k,)) for k in (16, 32, 48)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_python_runs_while_a_product_is_computed() -> None:
    """The lock is released: another thread counts while one large call is under way."""
    a = torch.zeros(2048, 2048, dtype=torch.uint8)
    scale = torch.zeros(2048, 256, dtype=torch.uint8)
    ticks, done = [0], threading.Event()

    def count() -> None:
        while not done.is_set():
            ticks[0] += 1
            time.sleep(1e-4)  # which gives the lock back

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=count)
    thread.start()
    sys.setswitchinterval(1000)  # only a release of the lock lets the other thread run
    try:
        before = ticks[0]
        nvfp4.gemm(a, a, scale, scale)
        after = ticks[0]
    finally:
        sys.setswitchinterval(interval)
        done.set()
    thread.join()
    assert after > before


@pytest.mark.parametrize("call", ["nvfp4.gemm(a, a, s, s)", "torch.ops.nvfp4.gemm(a, a, s, s, *rest)"])
def test_threads_are_as_many_as_torch_says(call: str) -> None:
    program = """
        import os, torch
        torch.set_num_threads({count})
        import nvfp4
        a, s = torch.zeros(256, 2048, dtype=torch.uint8), torch.zeros(256, 256, dtype=torch.uint8)
        none = torch.empty(0, dtype=torch.uint8)
        rest = none, none, none, 1.0, 0.0, "128x4", "auto", 0, torch.float16
        before = len(os.listdir("/proc/self/task"))
        {call}
        print(len(os.listdir("/proc/self/task")) - before)
    """
    for count in (1, 2, 3):
        assert output(textwrap.dedent(program).format(count=count, call=call)) == f"{count - 1}\n"


def test_current_stream_is_used(cuda: Backend) -> None:
    """Work enqueued on a side stream that still waits is not seen by the default one."""
    a = torch.full((128, 2048), 0x22, dtype=torch.uint8, device="cuda")
    scale = torch.full((128 * 256,), 0x38, dtype=torch.uint8, device="cuda")
    out = torch.zeros(128, 128, device="cuda")
    nvfp4.init("cuda")
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(500_000_000)
        nvfp4.gemm(a, a, scale, scale, out=out)
    early = out.cpu()
    side.synchronize()
    assert (early == 0).all()
    assert (out == 4096).all()


def test_no_memory_for_the_workspace(cuda: Backend) -> None:
    """A split-K product needs device memory; torch's error becomes a message and nothing is written."""
    a = torch.full((128, 8192), 0x22, dtype=torch.uint8, device="cuda")
    scale = torch.full((128 * 1024,), 0x38, dtype=torch.uint8, device="cuda")
    out = torch.full((128, 128), 7.0, device="cuda")
    size = nvfp4.info(128, 128, 16384, device=out.device, backend="sm80")["plan"]["workspace"]
    assert size > 0
    held = []
    torch.cuda.set_per_process_memory_fraction(1e-6)
    with contextlib.suppress(torch.OutOfMemoryError):  # what the allocator still has of this size
        while True:
            held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    try:
        with pytest.raises(nvfp4.Error, match=r"^workspace: torch could not allocate \d+ bytes: .*out of memory"):
            nvfp4.gemm(a, a, scale, scale, out=out, backend="sm80")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        del held
    assert (out == 7).all()
    assert (nvfp4.gemm(a, a, scale, scale, out=out, backend="sm80") == 16384).all()
