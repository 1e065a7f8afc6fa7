"""The rules of grouped_gemm: each that is broken has its message, in a call and a traced call. Nothing is written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import nvfp4
from nvfp4 import reference

E, P, N, K, T, R = 3, 2, 7, 64, 5, 4
INT32, UINT8 = torch.int32, torch.uint8
PARTS = "must lie one after the other: use .contiguous()"
BY_MATRIX = "must have one element for each matrix of b, or 6 x 7, a row for each batch"
SCALES_RULE = "the 128x4 layout of 7 rows and K = 64 needs L * ceil(rows/128) * ceil(K/64) * 512 ="
Arguments = dict[str, Any]


def operands() -> Arguments:
    return {
        "a": torch.randn(R, K).half(),
        "b": torch.randint(0, 256, (E, P, N, K // 2), dtype=UINT8),
        "scale_a": None,
        "scale_b": reference.swizzle(torch.full((E * P, N, K // 16), 0x38, dtype=UINT8)),
        "ends": torch.tensor([1, 3, 4], dtype=INT32),
        "rows": torch.tensor([0, 3, 1, 1, 2], dtype=INT32),
        "row_scale": torch.ones(T),
    }


TURNED: Arguments = {
    "a": torch.ones(R, N).half(),
    "b": torch.zeros(E, N, K // 2, dtype=UINT8),
    "scale_b": torch.zeros(E * 512, dtype=UINT8),
    "transpose_b": False,
}

NVFP4_A: Arguments = {
    "a": torch.zeros(T, K // 2, dtype=UINT8),
    "scale_a": torch.zeros(E * 512, dtype=UINT8),
    "scale_rows": torch.tensor([0, 128, 256], dtype=INT32),
    "rows": None,
}
LINEAR_A: Arguments = {
    "a": torch.zeros(R, K // 2, dtype=UINT8),
    "scale_a": torch.zeros(R, K // 16, dtype=UINT8),
    "scale_b": torch.zeros(E, P, N, K // 16, dtype=UINT8),
    "scale_layout": "linear",
}
BLOCKS_RULE = "the 128x4 layout of groups and K = 64 needs a multiple of ceil(K/64) * 512 = 512"

BAD: dict[str, Arguments] = {
    # a
    "a: dtype is float32; must be uint8, float4_e2m1fn_x2, float16 or bfloat16": {"a": torch.zeros(R, K)},
    "a: dtype is uint8; must be float16 or bfloat16 where transpose_b is False": TURNED
    | {"a": torch.zeros(R, K // 2, dtype=UINT8), "scale_a": torch.zeros(512, dtype=UINT8)},
    "a: has 3 dimensions; must have 2 ([R, K/2])": NVFP4_A | {"a": torch.zeros(1, T, K // 2, dtype=UINT8)},
    "a: K is 8 (4 bytes a row); must be a multiple of 16": NVFP4_A | {"a": torch.zeros(T, 4, dtype=UINT8)},
    "b: K is 64 but a has K = 32": NVFP4_A | {"a": torch.zeros(T, 16, dtype=UINT8)},
    # scale_a and scale_rows
    "scale_a: is missing; must be a tensor where a is NVFP4": NVFP4_A | {"scale_a": None},
    f"scale_a: has 700 bytes; {BLOCKS_RULE}": NVFP4_A | {"scale_a": torch.zeros(700, dtype=UINT8)},
    "scale_a: is not contiguous; the 128x4 layout must be": NVFP4_A | {"scale_a": torch.zeros(1024, dtype=UINT8)[::2]},
    "scale_a: dtype is float16; must be float8_e4m3fn or uint8": NVFP4_A | {"scale_a": torch.zeros(512).half()},
    "scale_a: is 1 x 5 x 4; the linear layout needs L x rows x K/16 = 1 x 4 x 4": LINEAR_A
    | {"scale_a": torch.zeros(R + 1, K // 16, dtype=UINT8)},
    "scale_rows: is missing; must be a tensor where a is NVFP4 with 128x4 scales": NVFP4_A | {"scale_rows": None},
    "scale_rows: is given but the scales of a are linear; must be absent: they lie as the rows of a do": LINEAR_A
    | {"scale_rows": torch.zeros(E, dtype=INT32)},
    "scale_rows: is given but a is float16; must be absent, its values have no scales": {
        "scale_rows": torch.zeros(E, dtype=INT32)
    },
    "scale_rows: has length 2; must be a vector of length E = 3": NVFP4_A
    | {"scale_rows": torch.zeros(E - 1, dtype=INT32)},
    "scale_rows: dtype is int64; must be int32": NVFP4_A | {"scale_rows": torch.zeros(E, dtype=torch.int64)},
    "scale_rows: is on no device but a is on the CPU": NVFP4_A
    | {"scale_rows": torch.zeros(E, dtype=INT32, device="meta")},
    "rows: is given but a has 128x4 scales, which lie in the order of groups; must be absent: quantize in that order, "
    "by quantize's ends and rows": NVFP4_A | {"rows": torch.zeros(T, dtype=INT32)},
    "scale_a: is given but a is float16; must be absent, its values have no scales": {
        "scale_a": torch.zeros(512, dtype=UINT8)
    },
    "a: has 3 dimensions; must have 2 ([R, K])": {"a": torch.zeros(1, R, K).half()},
    "a: has 3 dimensions; must have 2 ([R, N])": TURNED | {"a": torch.zeros(1, R, N).half()},
    "a: K is 40; must be a multiple of 16": {"a": torch.zeros(R, 40).half()},
    "a: stride of the last dimension is 2; must be 1 (dense rows): pass a copy, .contiguous()": {
        "a": torch.zeros(R, 2 * K).half()[:, ::2]
    },
    # b
    "b: K is 64 but a has K = 48": {"a": torch.zeros(R, 48).half()},
    "b: N is 7 but a has N = 6": TURNED | {"a": torch.zeros(R, 6).half()},
    "b: has 2 dimensions; must have 3, or 4 with parts": {"b": torch.zeros(N, K // 2, dtype=UINT8)},
    "b: has 5 dimensions; must have 3, or 4 with parts": {"b": torch.zeros(1, E, P, N, K // 2, dtype=UINT8)},
    f"b: parts are 224 elements apart and experts 896; {PARTS}": {
        "b": torch.zeros(E, 2 * P, N, K // 2, dtype=UINT8)[:, :P]
    },
    "b: has 0 matrices in 0 parts; must have as many of each part": {"b": torch.zeros(E, 0, N, K // 2, dtype=UINT8)},
    "b: has 6 matrices in 2 parts; must have one part where transpose_b is False": TURNED
    | {"b": torch.zeros(E, P, N, K // 2, dtype=UINT8)},
    "b: E is 1025; must be at most 1024": {
        "b": torch.zeros(1025, N, K // 2, dtype=UINT8),
        "scale_b": torch.zeros(1025 * 512, dtype=UINT8),
        "ends": torch.zeros(1025, dtype=INT32),
    },
    # scale_b
    f"scale_b: has 512 bytes; {SCALES_RULE} 3072": {"scale_b": torch.zeros(512, dtype=UINT8)},
    f"scale_b: has 3072 bytes; {SCALES_RULE} 1536": {"b": torch.zeros(E, N, K // 2, dtype=UINT8)},
    f"scale_b: parts are 28 elements apart and experts 112; {PARTS}": {
        "scale_b": torch.zeros(E, 2 * P, N, 4, dtype=UINT8)[:, :P],
        "scale_layout": "linear",
    },
    "scale_b: begins with 2 x 3; must begin with E x P = 3 x 2": {
        "scale_b": torch.zeros(P, E, N, 4, dtype=UINT8),
        "scale_layout": "linear",
    },
    "scale_b: is 6 x 7 x 3; the linear layout needs L x rows x K/16 = 6 x 7 x 4": {
        "scale_b": torch.zeros(E, P, N, 3, dtype=UINT8),
        "scale_layout": "linear",
    },
    # ends, rows, row_scale
    "ends: is on no device but a is on the CPU": {"ends": torch.zeros(E, dtype=INT32, device="meta")},
    "ends: dtype is int64; must be int32": {"ends": torch.zeros(E, dtype=torch.int64)},
    "ends: has length 2; must be a vector of length E = 3": {"ends": torch.zeros(2, dtype=INT32)},
    "ends: has 2 dimensions; must be a vector of length E": {"ends": torch.zeros(1, E, dtype=INT32)},
    "ends: has 0 dimensions; must be a vector of length E": {"ends": torch.tensor(3, dtype=INT32)},
    "ends: stride is 2; must be 1: pass a copy, .contiguous()": {"ends": torch.zeros(2 * E, dtype=INT32)[::2]},
    "rows: is on no device but a is on the CPU": {"rows": torch.zeros(T, dtype=INT32, device="meta")},
    "rows: dtype is int64; must be int32": {"rows": torch.zeros(T, dtype=torch.int64)},
    "rows: has 2 dimensions; must be a vector of length T": {"rows": torch.zeros(1, T, dtype=INT32)},
    "rows: stride is 2; must be 1: pass a copy, .contiguous()": {"rows": torch.zeros(2 * T, dtype=INT32)[::2]},
    "row_scale: is on no device but a is on the CPU": {"row_scale": torch.ones(T, device="meta")},
    "row_scale: dtype is float16; must be float32": {"row_scale": torch.ones(T).half()},
    "row_scale: has length 6; must be a vector of length T = 5": {"row_scale": torch.ones(T + 1)},
    "row_scale: has length 5; must be a vector of length T = 4": {"rows": None},
    "row_scale: has 2 dimensions; must be a vector of length T": {"row_scale": torch.ones(T, 1)},
    "row_scale: stride is 2; must be 1: pass a copy, .contiguous()": {"row_scale": torch.ones(2 * T)[::2]},
    # alpha and bias
    f"alpha: has 3 elements in 1 dimension; {BY_MATRIX}": {"alpha": torch.ones(E)},
    f"alpha: has 7 elements in 1 dimension; {BY_MATRIX}": {"alpha": torch.ones(N)},
    f"alpha: has 48 elements in 2 dimensions; {BY_MATRIX}": {"alpha": torch.ones(E, P, N + 1)},
    "alpha: begins with 2 x 3; must begin with E x P = 3 x 2": {"alpha": torch.ones(P, E)},
    "alpha: begins with 6 x 7; must begin with E x P = 3 x 2": {"alpha": torch.ones(E * P, N)},
    "alpha: dtype is float16; must be float32": {"alpha": torch.ones(E, P).half()},
    f"alpha: parts are 1 elements apart and experts 4; {PARTS}": {"alpha": torch.ones(E, 2 * P)[:, :P]},
    "alpha: is not contiguous; must be, with a row for each batch": {"alpha": torch.ones(E, P, 2 * N)[..., ::2]},
    "alpha: has 192 elements; must have 1 a batch where transpose_b is False, since N is summed over": TURNED
    | {"alpha": torch.ones(E, K)},
    "bias: has 7 elements in 1 dimension; must have 6 x 7, a row for each batch": {"bias": torch.ones(N)},
    "bias: has 21 elements in 2 dimensions; must have 6 x 7, a row for each batch": {"bias": torch.ones(E, N)},
    "bias: has 21 elements in 2 dimensions; must have 3 x 64, a row for each batch": TURNED
    | {"bias": torch.ones(E, N)},
    "bias: begins with 2 x 3; must begin with E x P = 3 x 2": {"bias": torch.ones(P, E, N)},
    f"bias: parts are 7 elements apart and experts 28; {PARTS}": {"bias": torch.ones(E, 2 * P, N)[:, :P]},
    "bias: is not contiguous; must be, with a row for each batch": {"bias": torch.ones(E, P, 2 * N)[..., ::2]},
    "bias: dtype is bfloat16; must be float32 or that of out, float16": {"bias": torch.ones(E, P, N).bfloat16()},
    # out
    "out: is 5 x 7; must be T x parts * N = 5 x 14": {"out": torch.zeros(T, N).half()},
    "out: is 4 x 14; must be T x parts * N = 5 x 14": {"out": torch.zeros(R, P * N).half()},
    "out: is 5 x 7; must be T x K = 5 x 64": TURNED | {"out": torch.zeros(T, N).half()},
    "out: has 3 dimensions; must have 2": {"out": torch.zeros(T, P, N).half()},
    "out: dtype is int32; must be float16, bfloat16 or float32": {"out": torch.zeros(T, P * N, dtype=INT32)},
    # the rest
    "transpose_b: is of type int; must be True or False": {"transpose_b": 0},
    "batch_invariant: is of type NoneType; must be True or False": {"batch_invariant": None},
    "constant_b: is of type int; must be True or False": {"constant_b": 1},
    "constant_ends: is of type int; must be True or False": {"constant_ends": 1},
    "scale_layout: is '4'; must be '128x4' or 'linear'": {"scale_layout": "4"},
}


@pytest.mark.parametrize("message", BAD)
@pytest.mark.parametrize("fake", [False, True])
def test_bad_arguments(message: str, fake: bool) -> None:
    given = operands() | BAD[message]
    columns = K if given.get("transpose_b") is False else P * N
    out = given.setdefault("out", torch.zeros(T, columns).half()).fill_(7)
    with pytest.raises(nvfp4.Error) as error:
        if fake:
            with FakeTensorMode() as mode:
                tensors = {x: mode.from_tensor(t) if isinstance(t, torch.Tensor) else t for x, t in given.items()}
                nvfp4.grouped_gemm(**tensors)
        else:
            nvfp4.grouped_gemm(**given)
    assert str(error.value) == message and (out == 7).all()


@pytest.mark.parametrize("message", [x for x in BAD if not x.startswith("out: ")])
def test_bad_arguments_without_out(message: str) -> None:
    """Before a result is allocated, sizes are read from the arguments."""
    with pytest.raises(nvfp4.Error) as error:
        nvfp4.grouped_gemm(**operands() | BAD[message])
    assert str(error.value) == message


def test_lists() -> None:
    """A rule that holds for all matrices is checked where they are listed, too."""
    given = operands()
    lists = {"b": list(given["b"]), "scale_b": list(given["scale_b"].view(E, -1))}
    assert torch.equal(nvfp4.grouped_gemm(**given | lists)[:4], nvfp4.grouped_gemm(**given)[:4])
    short = [x[:512].clone() for x in lists["scale_b"]]
    with pytest.raises(nvfp4.Error, match="^scale_b: has 512 bytes; "):
        nvfp4.grouped_gemm(**given | lists | {"scale_b": short})


def test_what_must_be_there() -> None:
    for name in ("a", "b", "scale_b", "ends"):
        with pytest.raises(nvfp4.Error, match=f"^{name}: is missing; must be a tensor$"):
            nvfp4.grouped_gemm(**operands() | {name: None})


def test_results_overlap_nothing() -> None:
    memory = torch.zeros(T * P * N)
    given = operands() | {"out": memory.view(T, P * N)}
    for name, x in {
        "row_scale": memory[:T],
        "ends": memory.view(INT32)[2 : 2 + E],
        "rows": memory.view(INT32)[:T],
        "scale_rows": memory.view(INT32)[1 : 1 + E],
        "scale_a": torch.zeros(1024, dtype=UINT8)[:512],
    }.items():
        some = given | (NVFP4_A if name.startswith("scale") else {})
        if name == "scale_a":
            some["out"] = x.view(torch.float16)[: T * P * N].view(T, P * N)
        with pytest.raises(nvfp4.Error, match=f"^out: shares memory with {name}; must not overlap it, it is written$"):
            nvfp4.grouped_gemm(**some | {name: x})


@pytest.mark.parametrize("alpha", [torch.full(shape, 2.0) for shape in ((), (1,), (1, 1), (1, 1, 1))])
def test_one_alpha_has_any_shape(alpha: torch.Tensor) -> None:
    given = operands()
    one = {"b": given["b"][:1, :1], "scale_b": given["scale_b"].flatten()[:512], "ends": given["ends"][:1]}
    for some in (given, given | one):
        rows = int(some["ends"][-1])
        expected = nvfp4.grouped_gemm(**some, alpha=2.0)[:rows]
        assert torch.equal(nvfp4.grouped_gemm(**some, alpha=alpha)[:rows], expected) and expected.any()


@pytest.mark.parametrize(
    ("message", "given"),
    [
        ("groups: are 1025 with L = 1; must be between 0 and 1024, with L = 1", {"groups": 1025}),
        ("groups: are 3 with L = 2; must be between 0 and 1024, with L = 1", {"groups": 3, "l": 2}),
        (
            "transpose_b: is False but a_dtype is none (NVFP4); must be True, or a_dtype must be float16 or bfloat16",
            {"groups": 3, "a_dtype": None, "transpose_b": False},
        ),
    ],
)
def test_shapes_that_info_rejects(message: str, given: dict[str, Any]) -> None:
    with pytest.raises(nvfp4.Error) as error:
        nvfp4.info(8, 64, 64, device="cpu", **{"a_dtype": "float16"} | given)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("message", "given"),
    [
        ("operation: is 'gemm'; must be 'quantize_gemm', 'gated_grouped_gemm' or None", {"operation": "gemm"}),
        ("groups: are 3; must be 0 for quantize_gemm", {"operation": "quantize_gemm", "groups": 3}),
        ("groups: are 0; must be at least 1 for gated_grouped_gemm", {"operation": "gated_grouped_gemm"}),
        (
            "a_dtype: is none; must be float16, bfloat16 or float32 for quantize_gemm",
            {"operation": "quantize_gemm", "a_dtype": None},
        ),
        (
            "a_dtype: is float32; must be none (NVFP4), float16 or bfloat16",
            {"operation": "gated_grouped_gemm", "groups": 3, "a_dtype": "float32"},
        ),
        (
            "transpose_b: is False; must be True for quantize_gemm and gated_grouped_gemm",
            {"operation": "gated_grouped_gemm", "groups": 3, "transpose_b": False},
        ),
    ],
)
def test_operations_that_info_rejects(message: str, given: dict[str, Any]) -> None:
    with pytest.raises(nvfp4.Error) as error:
        nvfp4.info(8, 64, 64, device="cpu", **{"a_dtype": "float16"} | given)
    assert str(error.value) == message


def test_info_of_groups_on_a_cpu() -> None:
    for a_dtype in ("float16", None):
        assert nvfp4.info(8, 64, 64, device="cpu", a_dtype=a_dtype, groups=3)["plan"]["backend"] == "cpu"
        gated = nvfp4.info(8, 64, 64, device="cpu", a_dtype=a_dtype, groups=3, operation="gated_grouped_gemm")["plan"]
        assert gated["backend"] == "cpu" and not gated["fused"] and gated["workspace"] == 0
