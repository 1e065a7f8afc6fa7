"""The Python module: how objects are read, the errors and their messages, and that nothing leaks."""

from __future__ import annotations

import ast
import contextlib
import doctest
import gc
import inspect
import re
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from buffers import Guarded
from conftest import Backend
from interpreter import python
from torch._subclasses.fake_tensor import FakeTensorMode

import nvfp4
import nvfp4._api
from nvfp4 import _C, reference

M, N, K = 5, 7, 64


def output(program: str) -> str:
    """Of a process of its own that has imported torch."""
    result = python("-c", textwrap.dedent(program), cwd="/")  # not where a checkout would be imported
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture
def operands(generator: torch.Generator) -> list[torch.Tensor]:
    """a, b, scale_a, scale_b (128x4), as uint8; finite."""
    a, b = (torch.randint(0, 256, (rows, K // 2), dtype=torch.uint8, generator=generator) for rows in (M, N))
    scales = torch.randint(0, 0x7F, (2, 128, 4), dtype=torch.uint8, generator=generator)
    return [a, b, *scales]


def bits(x: Any) -> bytes:
    return (x.contiguous().view(torch.uint8).numpy() if isinstance(x, torch.Tensor) else x).tobytes()


# ---- reading ----


def test_examples_of_the_docstrings() -> None:
    result = doctest.testmod(nvfp4._api)
    assert result.attempted >= 8
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


# ---- errors ----


def errors() -> list[tuple[str, dict[str, Any]]]:
    """Sentence and the arguments, beside good ones, that bring it about."""
    tensor = "must be a torch.Tensor, a numpy.ndarray or an array with __dlpack__"
    read_only = np.zeros((M, N), np.float16)
    read_only.flags.writeable = False
    odd_rows = torch.zeros(N, 41, dtype=torch.uint8)[:, :32]
    odd = np.zeros((M, N * 4 + 3), np.uint8)[:, : N * 4].view()
    return [
        ("a: is missing; must be a tensor", {"a": None}),
        (f"a: is of type list; {tensor}", {"a": [[1]]}),
        (f"a: is of type bytes; {tensor}", {"a": b"12345678"}),
        (f"a: is of type MaskedArray; {tensor}", {"a": np.ma.zeros((M, 32), np.uint8)}),
        (f"a: is of type type; {tensor}", {"a": np.ndarray}),
        ("a: has 7 dimensions; must have at most 6", {"a": torch.zeros((1,) * 7, dtype=torch.uint8)}),
        ("a: has 7 dimensions; must have at most 6", {"a": np.zeros((1,) * 7, np.uint8)}),
        ("a: has 1 dimensions; must have 2 ([M, K/2]) or 3 ([L, M, K/2])", {"a": torch.zeros(32, dtype=torch.uint8)}),
        ("b: has 3 dimensions but a has 2", {"b": torch.zeros(1, N, 32, dtype=torch.uint8)}),
        ("b: K is 48 but a has K = 64", {"b": torch.zeros(N, 24, dtype=torch.uint8)}),
        ("b: rows are 41 bytes apart; must be 32 (dense) or a multiple of 16", {"b": odd_rows}),
        ("b: stride of the last dimension is -1; must not be", {"b": np.zeros((N, 32), np.uint8)[:, ::-1]}),
        ("scale_a: is given but a is float16; must be absent, its values have no scales", {"a": torch.zeros(M, K).half()}),  # noqa: E501
        ("alpha: is of type bool; must be a real number", {"alpha": True}),
        ("alpha: is of type str; must be a real number", {"alpha": "1"}),
        ("alpha: is of type complex; must be a real number", {"alpha": 1j}),
        ("alpha: is of type list; must be a real number", {"alpha": [1.0]}),
        ("alpha: is beyond the largest float32, 3.4e38", {"alpha": 1e39}),
        ("alpha: is beyond the largest float32, 3.4e38", {"alpha": 10**400}),
        ("alpha: dtype is float16; must be float32", {"alpha": torch.ones(1, dtype=torch.float16)}),
        ("beta: is of type Tensor; must be a real number", {"beta": torch.ones(1)}),
        ("beta: is of type NoneType; must be a real number", {"beta": None}),
        ("beta: is 1 but c is missing", {"beta": 1.0}),
        ("out_dtype: is float64; must be float16, bfloat16 or float32", {"out_dtype": torch.float64}),
        ("out_dtype: is float64; must be float16, bfloat16 or float32", {"out_dtype": np.float64}),
        ("out_dtype: is half; must be float16, bfloat16 or float32", {"out_dtype": "half"}),
        ("out_dtype: is float16 but out has float32", {"out_dtype": torch.float16, "out": torch.zeros(M, N)}),
        ("out: is read-only; must be writeable", {"out": read_only}),
        ("out: dtype is uint8; must be float16, bfloat16 or float32", {"out": odd}),
        ("scale_layout: is '4x128'; must be '128x4' or 'linear'", {"scale_layout": "4x128"}),
        ("scale_layout: is of type NoneType; must be a string", {"scale_layout": None}),
        ("scale_layout: is of type int; must be a string", {"scale_layout": 1}),
        ("backend: is 'tpu'; must be None, 'cpu', 'sm80', 'sm90' or 'sm100'", {"backend": "tpu"}),
        ("backend: is of type bool; must be a string", {"backend": False}),
    ]  # fmt: skip


@pytest.mark.parametrize(("message", "wrong"), errors(), ids=lambda x: x if isinstance(x, str) else "")
def test_errors(operands: list[torch.Tensor], message: str, wrong: dict[str, Any], generator: torch.Generator) -> None:
    out = Guarded((M, N), torch.float16, generator=generator)
    arguments = dict(zip(("a", "b", "scale_a", "scale_b"), operands)) | wrong
    if "out_dtype" not in wrong:
        arguments.setdefault("out", out.tensor)
    with pytest.raises(nvfp4.Error) as error:
        nvfp4.gemm(**arguments)
    if message.endswith("must not be"):
        assert str(error.value).startswith("b: stride of dimension 1 is -1; must not be negative")
    else:
        assert str(error.value) == message
    assert isinstance(error.value, ValueError)
    assert out.unchanged()


def test_sizes_of_swizzled_scales_are_checked_first(operands: list[torch.Tensor]) -> None:
    a, b, scale_a, scale_b = (x.numpy() for x in operands)
    with pytest.raises(nvfp4.Error, match="^scale_a: stride of dimension 0 is -4; must not be negative$"):
        nvfp4.gemm(a, b, scale_a[::-1], scale_b)


def c_beside_out() -> dict[str, tuple[int | None, Any, Any]]:
    """L, out and c as views of a tensor of 6 x 4M x 16."""
    return {
        "rows twice as far apart": (None, lambda x: x[0, :M, :N], lambda x: x[0, : 2 * M : 2, :N]),
        "a row further on": (None, lambda x: x[0, :M, :N], lambda x: x[0, 1 : M + 1, :N]),
        "a column further on": (None, lambda x: x[0, :M, :N], lambda x: x[0, :M, 1 : N + 1]),
        "batches twice as far apart": (3, lambda x: x[:3, :M, :N], lambda x: x[::2, :M, :N]),
        "rows of batches twice as far apart": (3, lambda x: x[:3, :M, :N], lambda x: x[:3, : 2 * M : 2, :N]),
        "a batch further on": (3, lambda x: x[:3, :M, :N], lambda x: x[1:4, :M, :N]),
        "batch 0 for all": (3, lambda x: x[:3, :M, :N], lambda x: x[:1, :M, :N].expand(3, M, N)),
    }


@pytest.mark.parametrize("how", c_beside_out())
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_c_overlaps_out(operands: list[torch.Tensor], how: str, beta: float) -> None:
    """Only c that is out itself may share its memory: its elements are read where they are then written."""
    l, out, c = c_beside_out()[how]
    memory = torch.full((6, 4 * M, 16), 7.0, dtype=torch.float16)
    given = operands if l is None else [x.expand(l, *x.shape).contiguous() for x in operands]
    with pytest.raises(nvfp4.Error, match="^out: shares memory with c; must not overlap it, it is written$"):
        nvfp4.gemm(*given, out=out(memory), c=c(memory), beta=beta)
    assert bool((memory == 7.0).all())
    nvfp4.gemm(*given, out=out(memory), c=out(memory), beta=beta)


@pytest.mark.parametrize(("l", "m"), [(1, 3), (2, 1), (2, 2), (2, 3), (3, 2), (3, 3)])
def test_rows_of_out_overlap(l: int, m: int) -> None:  # noqa: E741
    """Every distance of rows and batches up to a limit: one lies whole between two of the other, or it is an error that
    writes nothing."""
    n, accepted = 8, 0
    (a, scale_a), (b, scale_b) = (nvfp4.quantize(torch.full((l, rows, 16), 6.0)) for rows in (m, n))
    for pitch in range(0, 64, 8):
        for batch in range(0, 256, 8):
            memory = torch.full((l * 256 + m * 64 + n,), 7.0, dtype=torch.float16)
            out = memory.as_strided((l, m, n), (batch, pitch, 1))
            starts = [[i * batch * (l > 1) + j * pitch * (m > 1) for j in range(m)] for i in range(l)]
            orders = (sum(starts, []), sum(map(list, zip(*starts)), []))
            if any(all(x + n <= y for x, y in zip(order, order[1:])) for order in orders):
                accepted += 1
                nvfp4.gemm(a, b, scale_a, scale_b, out=out)
                assert bool((out == 576.0).all()) and int((memory == 576.0).sum()) == l * m * n
            else:
                with pytest.raises(nvfp4.Error, match="^out: rows overlap"):
                    nvfp4.gemm(a, b, scale_a, scale_b, out=out)
                assert bool((memory == 7.0).all())
    assert accepted


def test_c_of_one_row_is_out_whatever_its_stride(operands: list[torch.Tensor]) -> None:
    a, b, scale_a, scale_b = operands
    memory = torch.full((1, 64), 7.0, dtype=torch.float32)
    expected = nvfp4.gemm(a[:1], b, scale_a, scale_b, c=memory[:, :N].clone(), beta=0.5, out_dtype="float32")
    c = memory.as_strided((1, N), (20, 1))
    assert bits(nvfp4.gemm(a[:1], b, scale_a, scale_b, out=memory[:, :N], c=c, beta=0.5)) == bits(expected)


@pytest.mark.parametrize("l", [None, 2])
def test_c_is_not_read_without_beta(operands: list[torch.Tensor], l: int | None) -> None:
    given = operands if l is None else [x.expand(l, *x.shape).contiguous() for x in operands]
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        expected = nvfp4.gemm(*given, out_dtype=dtype)
        for value in (torch.nan, torch.inf):
            c = torch.full_like(expected, value)
            assert bits(nvfp4.gemm(*given, c=c, beta=0.0, out_dtype=dtype)) == bits(expected)
            assert bits(nvfp4.gemm(*given, c=c, out=c)) == bits(expected)


def test_the_latest_out_dtype_is_kept(operands: list[torch.Tensor]) -> None:
    """It is recognized by its address, which must not become another object's: one reference is held, to one object."""
    names = [("float", "32"), ("float", "16"), ("bfloat", "16")]
    dtypes = ["".join(name) for name in names]  # objects that nothing else refers to
    for i in range(len(dtypes)):
        before = [sys.getrefcount(x) for x in dtypes]
        for _ in range(3):
            nvfp4.gemm(*operands, out_dtype=dtypes[i])
        after = [sys.getrefcount(x) for x in dtypes]
        assert [y - x for x, y in zip(before, after)] == [
            1 if j == i else -1 if j == i - 1 else 0 for j in range(len(dtypes))
        ]


def test_errors_of_conversions() -> None:
    scale = torch.zeros(256, 8, dtype=torch.uint8)
    calls: dict[str, Any] = {
        "x: has 1 dimensions; must have 2, or 3 with a leading batch": lambda: nvfp4.quantize(torch.zeros(16)),
        "x: is missing; must be a tensor": lambda: nvfp4.quantize(None),
        "x: K is 17; must be a multiple of 16": lambda: nvfp4.quantize(torch.zeros(2, 17)),
        "x: dtype is uint8; must be float16, bfloat16 or float32": lambda: nvfp4.quantize(scale),
        "x: dtype is >f4; must be uint8, float4_e2m1fn_x2, float8_e4m3fn, float16, bfloat16 or float32, as its role "
        "asks": lambda: nvfp4.quantize(np.ones((2, 16), ">f4")),
        "global_scale: has 2 elements; must have 1": lambda: nvfp4.quantize(
            torch.zeros(2, 16), global_scale=torch.ones(2)
        ),
        "global_scale: is of type str; must be a real number": lambda: nvfp4.quantize(
            torch.zeros(2, 16), global_scale="1"
        ),
        "x: has 1 dimensions; must have 2 ([R, K]) or 3 ([L, R, K])": lambda: nvfp4.amax_scale(torch.zeros(16)),
        "block_scale: is 'amax4'; must be 'amax6' or 'four_over_six'": lambda: nvfp4.amax_scale(
            torch.zeros(2, 16), block_scale="amax4"
        ),
        "block_scale: is 'amax'; must be 'amax6' or 'four_over_six'": lambda: nvfp4.quantize(
            torch.zeros(2, 16), block_scale="amax"
        ),
        "block_scale: is of type NoneType; must be a string": lambda: nvfp4.amax_scale(
            torch.zeros(2, 16), block_scale=None
        ),
        "data: has 4 dimensions; must have 2, or 3 with a leading batch": lambda: nvfp4.dequantize(
            scale[None, None], scale
        ),
        # Found when the result is there already; the operator, which some tensors need, would not take the array.
        "scale: has 1 bytes; the 128x4 layout of 2 rows and K = 16 needs L * ceil(rows/128) * ceil(K/64) * 512 = "
        "512": lambda: nvfp4.dequantize(np.zeros((2, 8), np.uint8), np.zeros((1, 1), np.uint8)),
        # Both are; the first is named.
        "a: has 1 dimensions; must have 2, or 3 with a leading batch": lambda: nvfp4.gemm(*[scale[0]] * 4),
        "scale: is missing; must be a tensor": lambda: nvfp4.unswizzle(None, 1, 1),
        "rows: is -1; must be between 0 and 2147483647": lambda: nvfp4.unswizzle(scale, -1, 1),
        "rows: is of type float; must be an integer": lambda: nvfp4.unswizzle(scale, 1.0, 1),
        "columns: is of type bool; must be an integer": lambda: nvfp4.unswizzle(scale, 1, True),
        f"columns: is {2**64}; must be between 0 and 2147483647": lambda: nvfp4.unswizzle(scale, 1, 2**64),
        "scale: has 2048 bytes; the 128x4 layout of 257 rows and 8 columns has 3072": lambda: nvfp4.unswizzle(
            scale, 257, 8
        ),
        "scale: is not contiguous; the 128x4 layout must be": lambda: nvfp4.unswizzle(scale[:, ::2], 256, 4),
        "scale: has 4 dimensions; must have 2, or 3 with a leading batch": lambda: nvfp4.swizzle(scale[None, None]),
        "device: is 'tpu'; must be an ordinal, 'cpu', 'cuda' or 'cuda:<ordinal>'": lambda: nvfp4.init("tpu"),
        "m, n, k: only some are given; a shape needs all three": lambda: nvfp4.info(1, 2),
    }
    for message, call in calls.items():
        with pytest.raises(nvfp4.Error) as error:
            call()
        assert str(error.value) == message


def test_signatures_are_those_that_others_write_against() -> None:
    """Names, order, what is by keyword only, and defaults; out_dtype None stands for the documented one."""
    signatures = {
        "gemm": "a, b, scale_a, scale_b, *, alpha=None, bias=None, c=None, beta=0.0, out=None, out_dtype=None, "
        "scale_layout='128x4', backend=None, batch_invariant=False, constant_b=False, transpose_b=True",
        "custom_kernel": "a, b, sfa_permuted, sfb_permuted, c",
        "quantize": "x, *, global_scale=None, scale_layout='128x4', block_scale='amax6'",
        "dequantize": "data, scale, *, global_scale=None, scale_layout='128x4', out_dtype=None",
        "rms_norm_quantize": "x, weight, eps, *, residual=None, global_scale=None, scale_layout='128x4', out=None",
        "silu_mul_quantize": "gate_up, *, global_scale=None, scale_layout='128x4', out=None",
        "amax_scale": "x, *, block_scale='amax6'",
        "swizzle": "scale",
        "unswizzle": "scale, rows, columns",
    }
    for name, expected in signatures.items():
        signature = inspect.signature(getattr(nvfp4, name))
        bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        assert str(signature.replace(parameters=bare, return_annotation=signature.empty)) == f"({expected})"


def test_help_is_the_reference() -> None:
    """Every argument has its line, and says what is raised."""
    names = (
        "gemm custom_kernel quantize rms_norm_quantize silu_mul_quantize dequantize amax_scale swizzle unswizzle info"
    )
    for name in [*names.split(), "use_tuning"]:
        text = getattr(nvfp4, name).__doc__
        told = set(re.findall(r"\w+", " ".join(re.findall(r"(?:^        |, )(\w[\w, ]*):", text, re.M))))
        assert set(inspect.signature(getattr(nvfp4, name)).parameters) <= told, name
        assert "Returns:" in text or name == "custom_kernel"
        assert "Raises:\n        nvfp4.Error: " in text


def test_stubs_name_what_the_module_has() -> None:
    tree = ast.parse(Path(_C.__file__).with_name("_C.pyi").read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    others = {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    assert {*functions, *others, *classes} == {name for name in dir(_C) if not name.startswith("__")}
    assert all(callable(getattr(_C, name)) for name in functions)


def test_wrong_signatures_are_type_errors(operands: list[torch.Tensor]) -> None:
    for call in (
        lambda: nvfp4.gemm(*operands, 1.0),
        lambda: nvfp4.gemm(*operands, gamma=1),
        lambda: nvfp4.gemm(*operands[:3]),
        lambda: _C.gemm(*operands),
    ):
        with pytest.raises(TypeError):
            call()


@pytest.mark.parametrize("flags", [8, 15, 1 << 31, 2**32 - 1])
def test_flags_are_rejected(flags: int, operands: list[torch.Tensor]) -> None:
    """Undefined ones. Neither the functions of nvfp4 nor their fakes can set one."""
    out = torch.full((M, N), 7.0, dtype=torch.float16)
    message = f"flags: is {flags}; must be 0 or a sum of 1 (batch invariant), 2 (constant b), 4 (b not transposed)"
    with pytest.raises(nvfp4.Error) as error:
        _C.gemm(*operands, None, None, None, 0.0, out, None, "128x4", None, flags)
    assert str(error.value) == message and (out == 7).all()
    described = [(str(x.dtype).removeprefix("torch."), -1, tuple(x.shape), x.stride()) for x in (*operands, out)]
    with pytest.raises(nvfp4.Error) as error:
        _C.check_gemm(*described[:4], None, None, None, described[4], 0.0, "128x4", None, flags)
    assert str(error.value) == message
    for defined in range(4):
        _C.check_gemm(*described[:4], None, None, None, described[4], 0.0, "128x4", None, defined)
        _C.gemm(*operands, None, None, None, 0.0, out, None, "128x4", None, defined)


@pytest.mark.parametrize("flags", [-1, 2**32, 2**70])
def test_flags_beyond_32_bits(flags: int, operands: list[torch.Tensor]) -> None:
    with pytest.raises(nvfp4.Error, match=f"^flags: is {flags}; must be between 0 and 4294967295$"):
        _C.gemm(*operands, None, None, None, 0.0, None, None, "128x4", None, flags)


def test_names_end_with_their_last_character(operands: list[torch.Tensor]) -> None:
    for layout in ("128x4\0", "linear\0", "128x4\0x", "\0"):
        for function, arguments in (
            (nvfp4.gemm, operands),
            (nvfp4.quantize, [torch.zeros(2, 16)]),
            (nvfp4.dequantize, operands[::2]),
        ):
            with pytest.raises(nvfp4.Error, match="^scale_layout: contains a null character; must be a name$"):
                function(*arguments, scale_layout=layout)
    with pytest.raises(nvfp4.Error, match="^backend: contains a null character; must be a name$"):
        nvfp4.gemm(*operands, backend="cpu\0")


def test_gradients_are_rejected_not_lost(operands: list[torch.Tensor]) -> None:
    message = "{0}: requires grad; nvfp4 computes no gradients: pass {0}.detach() or use torch.no_grad()"
    vector, matrix = torch.zeros(N, requires_grad=True), torch.zeros(M, N, dtype=torch.float16, requires_grad=True)
    for name, value in {"bias": vector, "alpha": vector, "c": matrix, "out": matrix}.items():
        with pytest.raises(nvfp4.Error) as error:
            nvfp4.gemm(*operands, **{name: value})
        assert str(error.value) == message.format(name)
        with torch.no_grad():
            nvfp4.gemm(*operands, **{name: value})
        nvfp4.gemm(*operands, **{name: value.detach()})
    with pytest.raises(nvfp4.Error, match="x: requires grad"):
        nvfp4.quantize(torch.zeros(1, 16, requires_grad=True))


def test_tensors_of_two_devices_are_rejected(operands: list[torch.Tensor]) -> None:
    """Fake tensors claim a GPU that need not exist; the rule is the one that real ones are read by."""
    names = ("a", "b", "scale_a", "scale_b")
    more = {"alpha": torch.ones(N), "bias": torch.ones(N), "c": torch.ones(M, N), "out": torch.ones(M, N)}
    others = [("cpu", "the CPU")]
    if torch.cuda.device_count() != 1:  # torch checks the ordinal where there is a GPU at all
        others.append(("cuda:1", "cuda:1"))
    with FakeTensorMode() as mode:
        good = {name: mode.from_tensor(x).to("cuda:0") for name, x in (dict(zip(names, operands)) | more).items()}
        nvfp4.gemm(**good, beta=1.0)
        for name in [*names[1:], *more]:
            for device, said in others:
                with pytest.raises(nvfp4.Error, match=f"^{name}: is on {said} but a is on cuda:0$"):
                    nvfp4.gemm(**(good | {name: good[name].to(device)}), beta=1.0)


def test_tensors_of_cpu_and_gpu_are_rejected(cuda: Backend, operands: list[torch.Tensor]) -> None:
    names = ("a", "b", "scale_a", "scale_b")
    more = {"alpha": torch.ones(N), "bias": torch.ones(N), "c": torch.ones(M, N), "out": torch.ones(M, N)}
    cpu = dict(zip(names, operands)) | more
    gpu = {name: x.to(cuda.device) for name, x in cpu.items()}
    for name in [*names[1:], *more]:
        for good, bad in ((cpu, gpu), (gpu, cpu)):
            with pytest.raises(nvfp4.Error, match=f"^{name}: is on .* but a is on "):
                nvfp4.gemm(**(good | {name: bad[name]}), beta=1.0)
    assert all((x["out"] == 1).all() for x in (cpu, gpu))


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
    operator = nvfp4.torch_ops.gemm
    nvfp4.torch_ops.gemm = lambda *arguments: dispatched.append(1) or operator(*arguments)
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
