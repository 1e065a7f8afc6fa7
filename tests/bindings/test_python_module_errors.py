"""The Python module: what it rejects, in which words, before anything is written; and what its signatures are."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from backend_table import QUOTED
from conftest import Backend
from guarded_buffers import Guarded
from paths import ROOT
from small_product import K, M, N, bits
from torch._subclasses.fake_tensor import FakeTensorMode

import nvfp4
import nvfp4._api
from nvfp4 import _C


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
        ("a: has 7 dimensions; must have 0 to 6", {"a": torch.zeros((1,) * 7, dtype=torch.uint8)}),
        ("a: has 7 dimensions; must have at most 6", {"a": np.zeros((1,) * 7, np.uint8)}),
        ("a: has 1 dimensions; must have 2 ([M, K/2]) or 3 ([L, M, K/2])", {"a": torch.zeros(32, dtype=torch.uint8)}),
        ("b: has 3 dimensions but a has 2", {"b": torch.zeros(1, N, 32, dtype=torch.uint8)}),
        ("b: K is 48 but a has K = 64", {"b": torch.zeros(N, 24, dtype=torch.uint8)}),
        ("b: rows are 41 bytes apart; must be 32 (dense) or a multiple of 16: pass a copy, .contiguous()", {"b": odd_rows}),  # noqa: E501
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
        (f"backend: is 'tpu'; must be {QUOTED}", {"backend": "tpu"}),
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
        "x: dtype is >f4; must be float16, bfloat16 or float32": lambda: nvfp4.quantize(np.ones((2, 16), ">f4")),
        "global_scale: has 3 elements; must have 1, or one a row: 2": lambda: nvfp4.quantize(
            torch.zeros(2, 16), global_scale=torch.ones(3)
        ),
        "global_scale: is of type str; must be a real number": lambda: nvfp4.quantize(
            torch.zeros(2, 16), global_scale="1"
        ),
        "x: has 1 dimensions; must have 2 ([R, K]) or 3 ([L, R, K])": lambda: nvfp4.amax_scale(torch.zeros(16)),
        "block_scale: is 'amax4'; must be 'amax6', 'four_over_six' or 'search'": lambda: nvfp4.amax_scale(
            torch.zeros(2, 16), block_scale="amax4"
        ),
        "block_scale: is 'amax'; must be 'amax6', 'four_over_six' or 'search'": lambda: nvfp4.quantize(
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
        "scale: has 512 bytes a batch; the 128x4 layout of 1000 rows and 4 columns has 4096": lambda: nvfp4.unswizzle(
            np.zeros((0, 128, 4), np.uint8), 1000, 4
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
        "quantize": "x, *, global_scale=None, scale_layout='128x4', block_scale='amax6', ends=None, rows=None, "
        "out=None, importance=None",
        "gptq_block": "x, u, *, global_scale=None",
        "dequantize": "data, scale, *, global_scale=None, scale_layout='128x4', out_dtype=None",
        "rms_norm_quantize": "x, weight, eps, *, residual=None, global_scale=None, scale_layout='128x4', "
        "round_steps=False, out=None",
        "silu_mul_quantize": "gate_up, *, global_scale=None, scale_layout='128x4', out=None",
        "quantize_gemm": "a, b, scale_b, *, global_scale=None, alpha=None, bias=None, c=None, beta=0.0, out=None, "
        "out_dtype=None, scale_layout='128x4', block_scale='amax6', backend=None, batch_invariant=False, "
        "constant_b=False",
        "amax_scale": "x, *, block_scale='amax6', by_row=False",
        "swizzle": "scale",
        "unswizzle": "scale, rows, columns",
        "gated": "gate, up=None, activation='silu', *, limit=None, alpha=None, out=None, out_dtype=None",
        "gated_grouped_gemm": "a, b, scale_a, scale_b, ends, activation='silu', *, limit=None, activation_alpha=None, "
        "rows=None, scale_rows=None, row_scale=None, alpha=None, bias=None, out=None, out_dtype=None, "
        "scale_layout='128x4', backend=None, batch_invariant=False, constant_b=False",
        "gated_quantize": "gate, up=None, activation='silu', *, limit=None, alpha=None, global_scale=None, ends=None, "
        "scale_layout='128x4', round_steps=False, out=None",
        "moe_route": "ids, E, expert_map=None",
        "moe_combine": "y, places, weights=None, *, out=None, out_dtype=None",
    }
    for name, expected in signatures.items():
        signature = inspect.signature(getattr(nvfp4, name))
        bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        assert str(signature.replace(parameters=bare, return_annotation=signature.empty)) == f"({expected})"


DOCUMENTED = [
    *("gemm", "custom_kernel", "quantize", "rms_norm_quantize", "silu_mul_quantize", "dequantize", "amax_scale"),
    *("gated", "gptq_block", "moe_route", "moe_combine", "quantize_gemm", "gated_grouped_gemm"),
    *("swizzle", "unswizzle", "info", "init", "use_tuning", "quantize_model", "load", "save"),
    *("Linear", "Linear.from_linear", "Linear.from_packed", "Linear.fuse"),
    *("parallel.ColwiseParallel", "parallel.RowwiseParallel"),
    *("checkpoints.inspect.inspect", "checkpoints.convert.convert"),
]


def arguments_of(text: str) -> dict[str, tuple[str, str]]:
    """The type and the rules of each argument, from the `Args:` of a docstring."""
    section = re.search(r"^Args:\n(.*?)(?=\n\n|\Z)", text, re.M | re.S)
    entries = re.split(r"^    (?=\S)", section[1], flags=re.M)[1:] if section else []
    matches = [re.match(r"(\w+) \(([^)]+)\): (.+)", entry, re.S) for entry in entries]
    assert None not in matches, entries[matches.index(None)]
    return {m[1]: (m[2], " ".join(m[3].split())) for m in matches if m}


def documented_default(default: object) -> str:
    text = repr(default).replace("'", '"')
    return "Default: " if default is None else f"Default: {text.removesuffix('.0')}."


@pytest.mark.parametrize("name", DOCUMENTED)
def test_help_is_the_reference(name: str) -> None:
    """Every argument has an entry with its type and, if it has one, its default; what is raised is told."""
    module, _, attribute = name.rpartition(".")
    owner: Any = nvfp4.Linear if module == "Linear" else import_module(f"nvfp4.{module}".rstrip("."))
    documented = getattr(owner, attribute)
    text = inspect.getdoc(documented)
    assert text is not None
    assert len(text.split("\n")[0]) > 20 and text.split("\n")[1:2] in ([], [""]), "the summary has one line"
    arguments = arguments_of(text)
    parameters = inspect.signature(documented).parameters
    assert [*arguments] == [*parameters]
    for parameter in parameters.values():
        kind, rules = arguments[parameter.name]
        optional = parameter.default is not parameter.empty
        assert kind.endswith(", optional") == optional, parameter.name
        assert not optional or documented_default(parameter.default) in rules, parameter.name
    assert "Returns:" in text or name == "init" or inspect.isclass(documented)
    assert "Raises:\n    nvfp4.Error: " in text or name == "Linear.from_packed"


def test_stubs_name_what_the_module_has() -> None:
    tree = ast.parse(Path(_C.__file__).with_name("_C.pyi").read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    others = {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    assert {*functions, *others, *classes} == {name for name in dir(_C) if not name.startswith("__")}
    assert all(callable(getattr(_C, name)) for name in functions)
    # The table of operations writes the stubs of the operations.
    done = subprocess.run([sys.executable, ROOT / "tools/write_stubs.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_error_is_data(operands: list[torch.Tensor]) -> None:
    a, b, scale_a, scale_b = operands
    with pytest.raises(nvfp4.Error) as error:
        nvfp4.gemm(a, scale_a.float(), scale_a, scale_b)
    parts = (error.value.argument, error.value.value, error.value.rule)
    assert parts == ("b", "dtype is float32", "must be uint8 or float4_e2m1fn_x2")
    assert str(error.value) == "{}: {}; {}".format(*parts)
    with pytest.raises(nvfp4.Error) as error:
        nvfp4.gemm(a, b, scale_a, scale_b, transpose_b=False)
    assert str(error.value) == "a: dtype is uint8; must be float16 or bfloat16 where transpose_b is False"
    assert (nvfp4.Error("x").argument, nvfp4.Error("x").rule) == (None, None)


class Plain(torch.Tensor):
    """A subclass, which torch's dispatcher reads."""


def test_subclasses_give_the_same_results_and_errors(operands: list[torch.Tensor]) -> None:
    a, b, scale_a, scale_b = operands
    out = torch.empty(M, N, dtype=torch.float16).as_subclass(Plain)
    assert nvfp4.gemm(a, b, scale_a, scale_b, out=out, out_dtype=torch.float16) is out
    assert bits(out.as_subclass(torch.Tensor)) == bits(nvfp4.gemm(a, b, scale_a, scale_b))
    for tensor, what in ((a.as_subclass(Plain), "C"), (b, "Python")):
        bias = torch.ones(3) if what == "C" else [1.0]
        with pytest.raises(nvfp4.Error) as error:
            nvfp4.gemm(tensor if what == "C" else a.as_subclass(Plain), b, scale_a, scale_b, bias=bias)
        parts = (error.value.argument, error.value.value, error.value.rule)
        assert parts[0] == "bias" and parts[2] and str(error.value) == "{}: {}; {}".format(*parts), what


def test_quoted_text_is_no_mark(operands: list[torch.Tensor]) -> None:
    with pytest.raises(nvfp4.Error, match="^backend: is 'x\\x03y\\x07z'; must be None, 'cpu'"):
        nvfp4.gemm(*operands, backend="x\3y\7z")


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
        _C.gemm(*operands, None, None, None, 0.0, "128x4", None, flags, out, None)
    assert str(error.value) == message and (out == 7).all()
    described = [(str(x.dtype).removeprefix("torch."), -1, tuple(x.shape), x.stride()) for x in (*operands, out)]
    with pytest.raises(nvfp4.Error) as error:
        _C.check("gemm", *described[:4], None, None, None, 1.0, 0.0, "128x4", "auto", flags, described[4])
    assert str(error.value) == message
    for defined in range(4):
        _C.check("gemm", *described[:4], None, None, None, 1.0, 0.0, "128x4", "auto", defined, described[4])
        _C.gemm(*operands, None, None, None, 0.0, "128x4", None, defined, out, None)


@pytest.mark.parametrize("flags", [-1, 2**32, 2**70])
def test_flags_beyond_32_bits(flags: int, operands: list[torch.Tensor]) -> None:
    with pytest.raises(nvfp4.Error, match=f"^flags: is {flags}; must be between 0 and 4294967295$"):
        _C.gemm(*operands, None, None, None, 0.0, "128x4", None, flags, None, None)


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


@pytest.mark.parametrize("dimensions", [7, 60, 64])
def test_fake_tensors_of_many_dimensions(dimensions: int) -> None:
    """The rank is the first that is read of a tensor: its sizes have room for 6. Parts of experts are joined before
    other rules."""
    given = {
        "a": ((3, 64), torch.float16),
        "b": ((2, 2, 8, 32), torch.uint8),
        "scale_b": ((2, 2, 8, 4), torch.float8_e4m3fn),
        "ends": ((2,), torch.int32),
        "rows": ((3,), torch.int32),
        "row_scale": ((3,), torch.float32),
        "alpha": ((2, 2), torch.float32),
        "bias": ((2, 2, 8), torch.float16),
    }
    with FakeTensorMode():
        good = {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in given.items()}
        for call in (nvfp4.grouped_gemm, nvfp4.gated_grouped_gemm):
            call(**good, scale_a=None, scale_layout="linear")
            for name, t in good.items():
                many = t.reshape(*[1] * (dimensions - t.ndim), *t.shape)
                with pytest.raises(nvfp4.Error, match=f"^{name}: has {dimensions} dimensions; must "):
                    call(**(good | {name: many}), scale_a=None, scale_layout="linear")
        with pytest.raises(nvfp4.Error, match=f"^x: has {dimensions} dimensions; must "):
            nvfp4.quantize(torch.empty([1] * (dimensions - 1) + [16]))


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
