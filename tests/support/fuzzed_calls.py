"""Mutated calls of every public function, and the verdict on one of them: it is rejected with an error message that
names the argument, and nothing is written; or it is accepted and the result is right to the bit.

A call starts valid, with each tensor between guard bytes, and gets one to three mutations. A seed draws all of it.

    python tests/support/fuzzed_calls.py gemm 5      # one call again, as a failure prints it
"""

from __future__ import annotations

import math
import re
import sys
from random import Random
from typing import Any

import backend_table
import numpy as np
import torch
from valid_calls import CALLS, Arguments, Call, Maker, as_torch, small_copy

import nvfp4
from nvfp4 import reference

try:  # once it is imported, by any test, nvfp4 gives NumPy results in bfloat16: here in each session, not in some
    import ml_dtypes
except ImportError:
    ml_dtypes = None

HUGE = (2**31, 2**33, 2**40, 2**60)
NUMPY = {torch.uint8: np.uint8, torch.float16: np.float16, torch.float32: np.float32}

# --- mutations ----------------------------------------------------------------------------------------------------
# Each takes (draw, arguments, name) and returns "rejected" or "oversized" if the call must now be rejected, "taken" if
# it is still valid, "either" if that depends on the other arguments.

OPTIONAL = ("alpha", "bias", "c", "out", "residual", "global_scale", "out_dtype", "backend", "scale_a")
OPTIONAL += ("up", "limit", "activation_alpha", "expert_map", "weights", "ends", "importance")
SWITCHES = ("batch_invariant", "constant_b", "constant_ends", "transpose_b", "by_row", "round_steps")
NUMBERS = ("alpha", "beta", "global_scale", "eps", "limit", "activation_alpha")


def junk(draw: Random, args: Arguments, name: str) -> str:
    choices = [None, "text", b"bytes", 7, -2.5, True, 1j, [[1.0]], (1, 2), {}, torch.float16, object(), torch.Tensor]
    args[name] = draw.choice(choices)
    if name in SWITCHES:
        return "either" if isinstance(args[name], bool) else "rejected"
    may = name in OPTIONAL or name in NUMBERS or name in ("rows", "columns", "E")
    good = (
        args[name] is None or isinstance(args[name], (int, float)) or (name, args[name]) == ("out_dtype", torch.float16)
    )
    return "either" if may and good else "rejected"


def other_dtype(draw: Random, args: Arguments, name: str) -> str:
    good = {
        **dict.fromkeys(("a", "b", "data"), (torch.uint8, torch.float4_e2m1fn_x2)),
        **dict.fromkeys(
            ("scale_a", "scale_b", "scale", "sfa_permuted", "sfb_permuted"), (torch.uint8, torch.float8_e4m3fn)
        ),
        **dict.fromkeys(("alpha", "global_scale", "importance", "u"), (torch.float32,)),
        **dict.fromkeys(
            ("bias", "c", "out", "x", "weight", "residual", "gate_up", "gate", "up", "y", "weights"),
            (torch.float16, torch.bfloat16, torch.float32),
        ),
        **dict.fromkeys(("places", "expert_map", "ends", "rows"), (torch.int32,)),
        "ids": (torch.int32, torch.int64),
    }[name]
    every = (torch.int8, torch.bool, torch.int16, torch.int64, torch.float64, torch.complex64, torch.float8_e5m2)
    every += (torch.float8_e4m3fnuz, torch.float8_e8m0fnu, torch.uint16)
    dtype = draw.choice(every + good)
    x = args[name]
    if dtype.itemsize == 1 and x.dtype.itemsize == 1:
        args[name] = x.view(dtype)
        return "taken" if dtype in good else "rejected"
    args[name] = torch.zeros_like(x, dtype=dtype) if dtype != torch.float4_e2m1fn_x2 else x
    return "either" if dtype in good else "rejected"


def other_rank(draw: Random, args: Arguments, name: str) -> str:
    x = args[name]
    shape = draw.choice([(), (1, *x.shape), (*x.shape, 1), (x.numel(),), (1, 1, 1, *x.shape), (1,) * 9 + x.shape])
    args[name] = x.contiguous().flatten()[0] if shape == () and x.numel() else x.reshape(shape or (1, 0, 1))
    return "either"


def other_stride(draw: Random, args: Arguments, name: str) -> str:
    x = args[name]
    if x.ndim == 0 or x.dtype == torch.float4_e2m1fn_x2:
        return "either"
    how = draw.choice(["last step", "transposed", "expanded", "rows apart", "reversed"])
    if how == "last step":
        args[name] = x.unsqueeze(-1).expand(*x.shape, 2).contiguous()[..., 0]
    elif how == "transposed":
        args[name] = x.transpose(0, -1).contiguous().transpose(0, -1)
    elif how == "expanded":
        args[name] = x[:1].expand(x.shape) if x.shape[0] else x
    elif how == "rows apart":
        wide = torch.zeros(*x.shape[:-1], x.shape[-1] + draw.randint(1, 40), dtype=x.dtype)
        args[name] = wide[..., : x.shape[-1]].copy_(x)
    elif x.dtype in NUMPY:
        args[name] = x.numpy()[::-1]
    return "either"


def other_size(draw: Random, args: Arguments, name: str) -> str:
    x = args[name]
    if x.ndim == 0:
        return "either"
    axis = draw.randint(0, x.ndim - 1)
    shape = list(x.shape)
    shape[axis] = max(0, shape[axis] + draw.choice([-16, -8, -1, 1, 3, 8, 16]))
    args[name] = torch.zeros(shape, dtype=torch.uint8).view(x.dtype) if x.dtype.itemsize == 1 else x.new_zeros(shape)
    return "either"


def huge(draw: Random, args: Arguments, name: str) -> str:
    """Sizes whose products overflow, without memory."""
    x = args[name]
    if x.ndim == 0 or x.dtype == torch.float4_e2m1fn_x2:
        return "either"
    axis, shape = draw.randint(0, x.ndim - 1), [1] * x.ndim
    for other in range(x.ndim):
        shape[other] = draw.choice(HUGE) if other == axis else 1
    args[name] = torch.zeros(1, dtype=x.dtype).expand(shape)
    return "oversized"


def on_meta(draw: Random, args: Arguments, name: str) -> str:
    """Without memory; a call whose tensors are all on meta only computes shapes."""
    if args[name].dtype == torch.float4_e2m1fn_x2:
        return "either"
    args[name] = torch.empty_strided(args[name].shape, args[name].stride(), dtype=args[name].dtype, device="meta")
    return "rejected"


def odd_kind(draw: Random, args: Arguments, name: str) -> str:
    x = args[name]
    kind = draw.choice(["sparse", "negated", "gradient", "parameter", "subclass"])
    floating = x.dtype in (torch.float16, torch.bfloat16, torch.float32)
    if kind == "sparse" and floating and x.ndim:
        args[name] = x.to_sparse()
        return "rejected"
    if kind == "negated" and x.dtype == torch.float32:
        args[name] = torch.complex(x, -x).conj().imag
    if kind == "gradient" and floating:
        args[name] = x.detach().clone().requires_grad_()
        return "either" if name == "x" else "rejected"
    if kind == "parameter":
        args[name] = torch.nn.Parameter(x, requires_grad=False)
        return "taken"
    return "either"


def numpy_array(draw: Random, args: Arguments, name: str) -> str:
    x = args[name]
    if x.dtype not in NUMPY:
        return "either"
    array = x.numpy()
    how = draw.choice(["as it is", "read-only", "big-endian", "misaligned"])
    if how == "read-only":
        array = array.view()
        array.flags.writeable = False
    if how == "big-endian" and array.itemsize > 1:
        array = array.astype(array.dtype.newbyteorder(">"))
    if how == "misaligned":
        block = np.zeros(array.nbytes + 17, np.uint8)
        array = np.ndarray(array.shape, array.dtype, block, offset=1)
    args[name] = array
    made_by_numpy = args.get("out_dtype") == torch.bfloat16  # a type that NumPy lacks
    return "taken" if how == "as it is" and not made_by_numpy else "either"


def overlapping(draw: Random, args: Arguments, name: str) -> str:
    """The output begins inside the argument."""
    out_name = "out" if "out" in args else "c"
    x, out = args[name], args.get(out_name)
    tensors = isinstance(x, torch.Tensor) and isinstance(out, torch.Tensor) and out_name != name
    if not tensors or "x" in args or "data" in args or x.device.type == "meta" or out.device.type == "meta":
        return "either"
    x_bytes, out_bytes = x.numel() * x.dtype.itemsize, out.numel() * out.dtype.itemsize
    if (
        x_bytes <= 16
        or out_bytes == 0
        or max(x_bytes, out_bytes) > 2**20
        or not (x.is_contiguous() and out.is_contiguous())
    ):
        return "either"
    start = 16 * draw.randint(1, (x_bytes - 1) // 16)
    block = torch.zeros(start + x_bytes + out_bytes + 16, dtype=torch.uint8)
    args[name] = block[:x_bytes].view(x.dtype).view(x.shape)
    args[out_name] = block[start : start + out_bytes].view(out.dtype).view(out.shape)
    return "rejected"


def number(draw: Random, args: Arguments, name: str) -> str:
    args[name] = draw.choice([math.inf, -math.inf, math.nan, 0.0, -0.0, 1e-45, 1e39, 10**400, np.float32(2), 3])
    if name == "beta" and args.get("c") is None:
        return "either"
    if not isinstance(args[name], np.floating) and args[name] in (1e39, 10**400):
        return "rejected"
    return "taken" if name == "alpha" and "gate" not in args else "either"


def word(draw: Random, args: Arguments, name: str) -> str:
    words = [
        "",
        "128X4",
        "swizzled",
        "linear ",
        "sm_80",
        "gpu",
        "CPU",
        "float64",
        "half",
        "\0",
        "ä" * 1000,
        "128x4",
        "linear",
    ]
    args[name] = draw.choice(
        [*words, *backend_table.ROWS, torch.float64, torch.int8, torch.float16, np.float32, 5, None]
    )
    return "either"


TENSOR_MUTATIONS = (
    junk,
    other_dtype,
    other_rank,
    other_stride,
    other_size,
    huge,
    on_meta,
    odd_kind,
    numpy_array,
    overlapping,
)


def switch(draw: Random, args: Arguments, name: str) -> str:
    args[name] = not args[name]
    depends = name in ("transpose_b", "by_row") or (name == "round_steps" and "activation" in args)
    return "either" if depends else "taken"


def mutate(draw: Random, args: Arguments, name: str) -> tuple[str, str]:
    value = args[name]
    if isinstance(value, torch.Tensor):
        do = draw.choice(TENSOR_MUTATIONS if value.numel() < 2**20 else (junk, on_meta))
    elif name in NUMBERS:
        do = draw.choice((junk, number))
    elif name in ("scale_layout", "block_scale", "out_dtype", "backend", "activation"):
        do = draw.choice((junk, word))
    elif name in SWITCHES:
        do = draw.choice((junk, switch))
    else:
        do = junk
    return name, do(draw, args, name)


# --- the verdict --------------------------------------------------------------------------------------------------


def bytes_of(x: Any) -> bytes | None:
    """All bytes of a tensor's storage."""
    if isinstance(x, np.ndarray):
        return x.tobytes() if x.size < 2**20 else None
    if isinstance(x, torch.Tensor) and x.device.type == "cpu" and x.layout == torch.strided:
        return torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage()).numpy().tobytes()
    return None


def mutated(name: str, seed: int) -> tuple[Call, list[tuple[str, str]]]:
    """The call, and each argument that was mutated with what is then expected."""
    draw = Random(seed)
    call = CALLS[name](Maker(draw))
    names = draw.sample(list(call.arguments), min(draw.randint(1, 3), len(call.arguments)))
    names.sort(key=lambda name: name != call.written)  # the output mutates first: an overlap is with its final memory
    return call, [mutate(draw, call.arguments, name) for name in names]


def judge(name: str, seed: int) -> None:
    """Raises AssertionError if the call ends otherwise than it must."""
    torch.set_num_threads(1)
    call, touched = mutated(name, seed)
    args = call.arguments
    before = {name: bytes_of(x) for name, x in args.items()}
    copies = {name: small_copy(x) for name, x in args.items()}
    try:
        result = call.call(**args)
    except nvfp4.Error as error:
        message = str(error)
        assert {verdict for _, verdict in touched} - {"taken"}, f"a valid call was rejected: {message}"
        if args.get("backend") in backend_table.ON_GPU and re.match("no CUDA (driver|device): ", message):
            return  # the machine, not an argument
        assert re.match(rf"({'|'.join(args)}): \S", message), message
        named = [name for name, _ in touched]
        if len(named) == 1:
            related = named + (["a", "b"] if named[0] in ("a", "b") else []) + (["out"] if named == ["c"] else [])
            by_size = touched[0][1] in ("either", "oversized")  # the message may name the argument that does not fit it
            assert by_size or any(re.search(rf"\b{name}\b", message) for name in related), (touched, message)
        assert {name: bytes_of(x) for name, x in args.items()} == before, "something was written"
        assert all(buffer.unchanged() for buffer in call.buffers.values()), "something was written"
        return
    got = as_torch(result)
    if got.device.type == "meta":
        tensors = [as_torch(x) for x in args.values() if isinstance(x, (torch.Tensor, np.ndarray))]
        assert all(x.device.type == "meta" for x in tensors), f"taken: {touched}"
        return
    assert not {"rejected", "oversized"} & {verdict for _, verdict in touched}, f"taken: {touched}"
    expected = call.define(**copies)
    if got.dtype != torch.uint8 and got.dtype.itemsize == 1:
        got, expected = got.view(torch.uint8), expected.view(torch.uint8)
    if expected.dtype.itemsize == 1:
        assert torch.equal(got, expected.view(torch.uint8))
    else:
        assert reference.compare(got, expected, exact=True)[0], reference.compare(got, expected, exact=True)[1]
    for name, x in args.items():
        assert name == call.written or bytes_of(x) == before[name] or x is args.get(call.written), f"{name} was written"
    for name, buffer in call.buffers.items():
        assert buffer.unchanged_around() if name == call.written else buffer.unchanged(), f"{name} was written"


# --- a call by its name and seed ----------------------------------------------------------------------------------


def verdict(name: str, seed: int) -> str:
    """For call_workers.py, which answers with the traceback of an exception."""
    judge(name, seed)
    return ""


def shown(x: Any) -> str:
    if isinstance(x, torch.Tensor):
        strides = x.stride() if x.layout == torch.strided else x.layout
        return f"{type(x).__name__} {x.dtype} {tuple(x.shape)}, strides {strides}, {x.device}"
    if isinstance(x, np.ndarray):
        return f"array {x.dtype.str} {x.shape}, strides {x.strides}"
    return repr(x)[:100]


def describe(name: str, seed: int) -> str:
    """Without calling it."""
    call, touched = mutated(name, seed)
    expected = {arg: f" ({verdict})" for arg, verdict in touched}
    lines = [f"  {arg} = {shown(x)}{expected.get(arg, '')}" for arg, x in call.arguments.items()]
    return "\n".join([f"python tests/support/fuzzed_calls.py {name} {seed}", *lines])


if __name__ == "__main__":
    print(describe(sys.argv[1], int(sys.argv[2])), flush=True)
    judge(sys.argv[1], int(sys.argv[2]))
