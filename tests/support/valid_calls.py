"""Valid calls of every public function for fuzzed_calls.py: a function make_NAME draws one, with its definition."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from generated_grouped_gemm import definition, groups_of_rows
from generated_grouped_quantize import by_definition, scale_of_each, sorted_rows
from guarded_buffers import Guarded

import nvfp4
from nvfp4 import reference

Arguments = dict[str, Any]


class Call(NamedTuple):
    call: Callable[..., Any]
    define: Callable[..., Any]  # the expected result
    arguments: Arguments
    written: str | None  # the argument that is the output
    buffers: dict[str, Guarded]


class Maker:
    def __init__(self, draw: Random) -> None:
        self.draw = draw
        self.random = torch.Generator().manual_seed(draw.getrandbits(31))
        self.buffers: dict[str, Guarded] = {}

    def place(self, name: str, values: torch.Tensor) -> torch.Tensor:
        self.buffers[name] = Guarded(values.shape, values.dtype, generator=self.random, values=values)
        return self.buffers[name].tensor

    def data(self, *shape: int) -> torch.Tensor:
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=self.random)

    def scales(self, *shape: int) -> torch.Tensor:
        choices = torch.tensor(reference.SCALE_SETS["contest"], dtype=torch.uint8)
        return choices[torch.randint(0, 4, shape, generator=self.random)]

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.random)

    def pick(self, *choices: Any) -> Any:
        return self.draw.choice(choices)


def as_torch(x: Any) -> Any:
    if isinstance(x, np.ndarray) and x.dtype.name == "bfloat16":  # ml_dtypes' type, which torch.from_numpy rejects
        return torch.from_numpy(x.copy().view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x.copy()) if isinstance(x, np.ndarray) else x


def small_copy(x: Any) -> Any:
    if isinstance(x, np.ndarray) and x.size < 2**20:
        return torch.from_numpy(np.array(x, dtype=x.dtype.newbyteorder("="), order="C"))
    if isinstance(x, torch.Tensor) and x.device.type == "cpu" and x.layout == torch.strided and x.numel() < 2**20:
        return x.detach().clone().resolve_neg()
    return torch.float32 if x is np.float32 else float(x) if isinstance(x, np.floating) else x


def make_gemm(make: Maker) -> Call:
    m, n = make.pick(1, 5, 17, 130, 0), make.pick(1, 3, 16, 33, 0)
    k, batch = make.pick(16, 48, 64, 80, 0), make.pick((), (1,), (2,), (0,))
    layout, dtype = make.pick("128x4", "linear"), make.pick(torch.float16, torch.bfloat16, torch.float32)
    args: Arguments = {}
    for name, rows in (("a", m), ("b", n)):
        args[name] = make.place(name, make.data(*batch, rows, k // 2))
        scale = make.scales(*batch, rows, k // 16)
        args[f"scale_{name}"] = make.place(
            f"scale_{name}", reference.swizzle(scale, 127) if layout == "128x4" else scale
        )
    args["alpha"] = make.pick(None, 0.5, make.place("alpha", make.normal(n)))
    args["bias"] = make.pick(None, make.place("bias", make.normal(n).to(make.pick(torch.float32, dtype))))
    args["c"] = make.pick(None, make.place("c", make.normal(*batch, m, n).to(dtype)))
    args["beta"] = 0.0 if args["c"] is None else make.pick(0.0, 1.5)
    args["out"] = make.place("out", torch.full((*batch, m, n), math.nan, dtype=dtype))
    make.buffers = {name: buffer for name, buffer in make.buffers.items() if args[name] is not None}
    args |= {"out_dtype": make.pick(None, dtype), "scale_layout": layout, "backend": make.pick(None, "cpu")}
    args |= {"batch_invariant": make.pick(False, True), "constant_b": make.pick(False, True), "transpose_b": True}
    return Call(nvfp4.gemm, define_gemm, args, "out", make.buffers)


def define_gemm(
    out: Any, out_dtype: Any, backend: Any, batch_invariant: bool, constant_b: bool, **others: Any
) -> torch.Tensor:
    default = others["a"].dtype if others["a"].dtype in (torch.float16, torch.bfloat16) else torch.float16
    dtype = out.dtype if out is not None else default if out_dtype is None else out_dtype
    return reference.gemm(**others, out_dtype=dtype)


def make_gemm_of_16_bit_a(make: Maker) -> Call:
    m, n, k = make.pick(1, 5, 17, 130, 0), make.pick(1, 3, 16, 33, 0), make.pick(16, 48, 64, 80, 0)
    batch, transpose_b = make.pick((), (1,), (2,), (0,)), make.pick(False, True)
    layout, dtype = make.pick("128x4", "linear"), make.pick(torch.float16, torch.bfloat16, torch.float32)
    a = torch.randint(-8, 9, (*batch, m, k if transpose_b else n), generator=make.random) / 2
    scale = make.scales(*batch, n, k // 16)
    scale = reference.swizzle(scale, 127) if layout == "128x4" else scale
    columns = n if transpose_b else k
    args: Arguments = {
        "a": make.place("a", a.to(make.pick(torch.float16, torch.bfloat16))),
        "b": make.place("b", make.data(*batch, n, k // 2)),
        "scale_a": None,
        "scale_b": make.place("scale_b", scale),
        "alpha": make.pick(None, 0.5, make.place("alpha", make.normal(n if transpose_b else 1))),
        "bias": make.pick(None, make.place("bias", make.normal(columns).to(dtype))),
        "out": make.place("out", torch.full((*batch, m, columns), math.nan, dtype=dtype)),
        "out_dtype": make.pick(None, dtype),
        "scale_layout": layout,
        "backend": make.pick(None, "cpu"),
        "batch_invariant": make.pick(False, True),
        "constant_b": make.pick(False, True),
        "transpose_b": transpose_b,
    }
    make.buffers = {name: buffer for name, buffer in make.buffers.items() if args[name] is not None}
    return Call(nvfp4.gemm, define_gemm, args, "out", make.buffers)


def make_custom_kernel(make: Maker) -> Call:
    m, n, k, batch = make.pick(1, 5, 130), make.pick(1, 3, 33), make.pick(16, 48, 80), make.pick(1, 2)

    def blocks(rows: int) -> torch.Tensor:
        return reference.swizzle(make.scales(batch, rows, k // 16), 127)

    args = {
        "a": make.place("a", make.data(batch, m, k // 2)).permute(1, 2, 0),
        "b": make.place("b", make.data(batch, n, k // 2)).permute(1, 2, 0),
        "sfa_permuted": make.place("sfa_permuted", blocks(m)).permute(3, 4, 1, 5, 2, 0),
        "sfb_permuted": make.place("sfb_permuted", blocks(n)).permute(3, 4, 1, 5, 2, 0),
        "c": make.place("c", torch.full((batch, m, n), math.nan, dtype=torch.float16)).permute(1, 2, 0),
    }

    def define(a: Any, b: Any, sfa_permuted: Any, sfb_permuted: Any, c: Any) -> torch.Tensor:
        a, b = (reference.as_bytes(x).permute(2, 0, 1) for x in (a, b))
        scales = (reference.as_bytes(x).permute(5, 2, 4, 0, 1, 3) for x in (sfa_permuted, sfb_permuted))
        return reference.gemm(a, b, *scales, out_dtype=c.dtype).permute(1, 2, 0)

    return Call(nvfp4.custom_kernel, define, args, "c", make.buffers)


def make_quantize(make: Maker) -> Call:
    shape = (*make.pick((), (2,), (0,)), make.pick(1, 5, 130, 0), make.pick(16, 48, 80, 0))
    x = make.normal(*shape).to(make.pick(torch.float16, torch.bfloat16, torch.float32))
    layout = make.pick("128x4", "linear")
    g = make.pick(None, 0.5, make.place("global_scale", torch.tensor([0.25])))
    block_scale = make.pick("amax6", "four_over_six", "search")
    args = {"x": make.place("x", x), "global_scale": g, "scale_layout": layout, "block_scale": block_scale}
    if block_scale == "search":
        args["importance"] = make.pick(None, make.place("importance", make.normal(shape[-1]).abs()))
    make.buffers = {name: buffer for name, buffer in make.buffers.items() if args[name] is not None}

    def define(global_scale: Any, **others: Any) -> torch.Tensor:
        g = 1.0 if global_scale is None else global_scale
        return torch.cat([p.flatten() for p in reference.quantize(global_scale=g, **others)])

    def call(**args: Any) -> torch.Tensor:
        return torch.cat([torch.as_tensor(p).view(torch.uint8).flatten() for p in nvfp4.quantize(**args)])

    return Call(call, define, args, None, make.buffers)


def make_gptq_block(make: Maker) -> Call:
    n = make.pick(1, 5, 70, 0)
    args: Arguments = {
        "x": make.place("x", make.normal(n, 16)),
        "u": make.place("u", make.normal(16, 16) + torch.eye(16) * 4),
        "global_scale": make.pick(0.01, make.place("global_scale", torch.tensor([0.01]))),
    }
    make.buffers = {name: buffer for name, buffer in make.buffers.items() if isinstance(args[name], torch.Tensor)}

    def flat(parts: Any) -> torch.Tensor:
        """The bytes. Any NaN of the errors counts as the same: its sign follows no rule."""
        *codes, errors = map(as_torch, parts)
        errors = errors.where(~errors.isnan(), torch.nan)
        return torch.cat([part.flatten().clone().view(torch.uint8) for part in (*codes, errors)])

    def define(global_scale: Any, **others: Any) -> torch.Tensor:
        return flat(reference.gptq_block(global_scale=1.0 if global_scale is None else global_scale, **others))

    def call(**args: Any) -> torch.Tensor:
        return flat(nvfp4.gptq_block(**args))

    return Call(call, define, args, None, make.buffers)


def make_quantize_gemm(make: Maker) -> Call:
    """A has a 6 in each block, so that it quantizes to its values and scales."""
    m, n, k = make.pick(1, 5, 130, 0), make.pick(1, 3, 33, 0), make.pick(16, 48, 96, 0)
    batch, layout = make.pick((), (2,), (0,)), make.pick("128x4", "linear")
    data, scale = make.data(*batch, m, k // 2), make.scales(*batch, n, k // 16)
    data[..., ::8] |= 7
    dtype = make.pick(torch.float16, torch.bfloat16, torch.float32)
    a = reference.dequantize(data, make.scales(*batch, m, k // 16), scale_layout="linear", global_scale=0.25)
    args: Arguments = {
        "a": make.place("a", a.to(dtype)),
        "b": make.place("b", make.data(*batch, n, k // 2)),
        "scale_b": make.place("scale_b", reference.swizzle(scale, 127) if layout == "128x4" else scale),
        "global_scale": make.pick(0.25, make.place("global_scale", torch.tensor([0.25]))),
        "alpha": make.pick(None, 0.5, make.place("alpha", make.normal(n))),
        "bias": make.pick(None, make.place("bias", make.normal(n))),
        "out": make.place("out", torch.full((*batch, m, n), math.nan, dtype=dtype)),
        "out_dtype": make.pick(None, dtype),
        "scale_layout": layout,
        "block_scale": make.pick("amax6", "four_over_six", "search"),
        "batch_invariant": make.pick(False, True),
    }
    make.buffers = {name: buffer for name, buffer in make.buffers.items() if isinstance(args[name], torch.Tensor)}

    def define(a: Any, out: Any, out_dtype: Any, global_scale: Any, block_scale: Any, **others: Any) -> torch.Tensor:
        layout = others["scale_layout"]
        g = 1.0 if global_scale is None else torch.as_tensor(global_scale).reshape(())
        data, scale = reference.quantize(a, global_scale=g, scale_layout=layout, block_scale=block_scale)
        dtype = out.dtype if out is not None else a.dtype if out_dtype is None else out_dtype
        others.pop("batch_invariant")
        return reference.gemm(data, others.pop("b"), scale, others.pop("scale_b"), **others, out_dtype=dtype)

    return Call(nvfp4.quantize_gemm, define, args, "out", make.buffers)


def make_dequantize(make: Maker) -> Call:
    batch, rows, k = make.pick((), (2,), (0,)), make.pick(1, 5, 130, 0), make.pick(16, 48, 80, 0)
    layout = make.pick("128x4", "linear")
    scale = make.scales(*batch, rows, k // 16)
    args = {
        "data": make.place("data", make.data(*batch, rows, k // 2)),
        "scale": make.place("scale", reference.swizzle(scale, 127) if layout == "128x4" else scale),
        "global_scale": make.pick(None, 0.5, make.place("global_scale", torch.tensor([0.25]))),
        "scale_layout": layout,
        "out_dtype": make.pick(None, torch.float16, torch.bfloat16, torch.float32),
    }
    make.buffers = {name: buffer for name, buffer in make.buffers.items() if args[name] is not None}

    def define(global_scale: Any, out_dtype: Any, **others: Any) -> torch.Tensor:
        g = 1.0 if global_scale is None else global_scale
        return reference.dequantize(**others, global_scale=g, out_dtype=out_dtype or torch.float32)

    return Call(nvfp4.dequantize, define, args, None, make.buffers)


def make_rms_norm_quantize(make: Maker) -> Call:
    shape = (*make.pick((), (2,), (0,)), make.pick(1, 5, 130, 0), make.pick(16, 48, 80, 0))
    dtype = make.pick(torch.float16, torch.bfloat16, torch.float32)
    args: Arguments = {
        "x": make.place("x", make.normal(*shape).to(dtype)),
        "weight": make.place("weight", make.normal(shape[-1]).to(make.pick(torch.float32, dtype))),
        "eps": make.pick(0.0, 1e-6),
        "scale_layout": make.pick("128x4", "linear"),
        "round_steps": make.pick(False, True),
        "residual": make.place("residual", make.normal(*shape).to(dtype)),
    }

    def define(residual: Any, **others: Any) -> torch.Tensor:
        residual = None if residual is None else residual.clone()
        result = [p.flatten() for p in reference.rms_norm_quantize(residual=residual, **others)]
        return torch.cat(result + ([] if residual is None else [residual.flatten().view(torch.uint8)]))

    def call(residual: Any, **args: Any) -> torch.Tensor:
        result = nvfp4.rms_norm_quantize(residual=residual, **args)
        written = () if residual is None else (residual,)
        return torch.cat([as_torch(p).flatten().view(torch.uint8) for p in (*result, *written)])

    return Call(call, define, args, "residual", make.buffers)


def make_silu_mul_quantize(make: Maker) -> Call:
    shape = (*make.pick((), (2,), (0,)), make.pick(1, 5, 130, 0), make.pick(32, 96, 0))
    x = make.normal(*shape).to(make.pick(torch.float16, torch.bfloat16, torch.float32))
    g = make.pick(None, 0.5, make.place("global_scale", torch.tensor([0.25])))
    args = {"gate_up": make.place("gate_up", x), "global_scale": g, "scale_layout": make.pick("128x4", "linear")}
    make.buffers = {name: buffer for name, buffer in make.buffers.items() if args[name] is not None}

    def define(global_scale: Any, **others: Any) -> torch.Tensor:
        g = 1.0 if global_scale is None else global_scale
        return torch.cat([p.flatten() for p in reference.silu_mul_quantize(global_scale=g, **others)])

    def call(**args: Any) -> torch.Tensor:
        return torch.cat([torch.as_tensor(p).view(torch.uint8).flatten() for p in nvfp4.silu_mul_quantize(**args)])

    return Call(call, define, args, None, make.buffers)


def make_amax_scale(make: Maker) -> Call:
    shape = (*make.pick((), (2,), (0,)), make.pick(1, 5, 130, 0), make.pick(16, 17, 80, 0))
    x = make.normal(*shape).to(make.pick(torch.float16, torch.bfloat16, torch.float32))
    args = {
        "x": make.place("x", x),
        "block_scale": make.pick("amax6", "four_over_six"),
        "by_row": make.pick(False, True) and len(shape) == 2,
    }

    return Call(nvfp4.amax_scale, reference.amax_scale, args, None, make.buffers)


def make_swizzle(make: Maker) -> Call:
    shape = (*make.pick((), (2,), (0,)), make.pick(1, 5, 130, 0), make.pick(1, 5, 8, 0))
    args = {"scale": make.place("scale", make.data(*shape))}

    def define(scale: Any) -> torch.Tensor:
        rows, columns = (-(-size // to) * to for size, to in zip(scale.shape[-2:], (128, 4), strict=True))
        return reference.swizzle(scale).reshape(*scale.shape[:-2], rows, columns)

    return Call(nvfp4.swizzle, define, args, None, make.buffers)


def make_unswizzle(make: Maker) -> Call:
    batch, rows, columns = make.pick(1, 2), make.pick(1, 5, 130), make.pick(1, 5, 8)
    scale = reference.swizzle(make.data(batch, rows, columns)).view(batch, -(-rows // 128) * 128, -(-columns // 4) * 4)
    args = {"scale": make.place("scale", scale), "rows": rows, "columns": columns}

    def define(scale: Any, rows: int, columns: int) -> torch.Tensor:
        linear = reference.unswizzle(scale, rows, columns)
        return linear if scale.ndim == 3 else linear[0]

    return Call(nvfp4.unswizzle, define, args, None, make.buffers)


def make_gated(make: Maker) -> Call:
    shape = (*make.pick((), (2,), (0,)), make.pick(1, 5, 130, 0), make.pick(8, 13, 80, 0))
    dtype = make.pick(torch.float16, torch.bfloat16, torch.float32)
    args: Arguments = {"gate": make.place("gate", make.normal(*shape).to(dtype))}
    args["activation"] = make.pick("silu", "gelu_tanh", "relu2", "swiglu")
    up = (
        make.pick(None, True) if args["activation"] in ("silu", "gelu_tanh") else args["activation"] == "swiglu" or None
    )
    args["up"] = up and make.place("up", make.normal(*shape).to(dtype))
    args["limit"] = make.pick(None, 0.5) if args["activation"] in ("silu", "swiglu") else None
    args["alpha"] = make.pick(None, 1.5) if args["activation"] == "swiglu" else None
    args["out"] = make.place("out", torch.full(shape, math.nan, dtype=make.pick(dtype, torch.float32)))

    def define(out: Any, alpha: Any, **others: Any) -> torch.Tensor:
        dtype = others["gate"].dtype if out is None else out.dtype
        return reference.gated(alpha=1.702 if alpha is None else alpha, out_dtype=dtype, **others)

    return Call(nvfp4.gated, define, args, "out", make.buffers)


def place_groups(make: Maker, t: int, r: int) -> Arguments:
    """ends and a global scale of t sorted rows of r."""
    e = make.pick(1, 3)
    g = make.pick(None, 0.5, torch.tensor([0.25]), make.normal(e).exp(), make.normal(r, 1).exp())
    g = make.place("global_scale", g) if isinstance(g, torch.Tensor) else g
    ends = torch.randint(-1, t + 2, (e,), dtype=torch.int32, generator=make.random)
    return {"ends": make.place("ends", ends), "global_scale": g, "scale_layout": make.pick("128x4", "linear")}


def written_rows(
    values: torch.Tensor,
    x: torch.Tensor,
    ends: Any,
    rows: Any,
    global_scale: Any,
    layout: str,
    block_scale: str = "amax6",
) -> list[list[torch.Tensor]]:
    """The results of sorted rows `values`, those of x, with bytes that are not written as 0 and as 255."""
    g = torch.as_tensor(1.0 if global_scale is None else global_scale, dtype=torch.float32)
    each = scale_of_each(g, ends, rows, len(x), len(values))
    return [list(by_definition(values, each, ends, layout, block_scale, poison)) for poison in (0, 255)]


def joined(parts: Any) -> torch.Tensor:
    return torch.cat([as_torch(part).contiguous().view(torch.uint8).flatten() for part in parts])


def of_groups(
    call: Callable[..., Any], define: Callable[..., list[list[torch.Tensor]]], args: Arguments, make: Maker
) -> Call:
    """A call whose results have bytes that are not written."""

    def masked(**args: Any) -> torch.Tensor:
        got = call(**args)
        if as_torch(got[0]).device.type == "meta":
            return got[0]
        low, high = (joined(parts[: len(got)]) for parts in define(**{name: small_copy(x) for name, x in args.items()}))
        return torch.where(low == high, joined(got), 0)

    def expected(**args: Any) -> torch.Tensor:
        low, high = define(**args)
        count = 3 if args["ends"] is not None and args["scale_layout"] == "128x4" else 2
        return torch.where(joined(low[:count]) == joined(high[:count]), joined(low[:count]), 0)

    return Call(masked, expected, args, None, make.buffers)


def make_quantize_in_groups(make: Maker) -> Call:
    r, k, dtype = make.pick(1, 5, 130), make.pick(16, 48), make.pick(torch.float16, torch.bfloat16, torch.float32)
    t = make.pick(0, 7, 140)
    rows = torch.randint(-1, r + 1, (t,), dtype=torch.int32, generator=make.random) if make.pick(False, True) else None
    args: Arguments = {"x": make.place("x", make.normal(r, k).to(dtype))}
    args |= place_groups(make, r if rows is None else t, r) | {"block_scale": make.pick("amax6", "four_over_six")}
    args["rows"] = None if rows is None else make.place("rows", rows)

    def define(x: Any, rows: Any, ends: Any, global_scale: Any, scale_layout: str, block_scale: str) -> Any:
        return written_rows(sorted_rows(x, rows), x, ends, rows, global_scale, scale_layout, block_scale)

    return of_groups(nvfp4.quantize, define, args, make)


def make_gated_quantize(make: Maker) -> Call:
    r, k, dtype = make.pick(1, 5, 130, 0), make.pick(16, 48), make.pick(torch.float16, torch.bfloat16, torch.float32)
    args: Arguments = {"gate": make.place("gate", make.normal(r, k).to(dtype))} | place_groups(make, r, r)
    args["activation"] = make.pick("silu", "gelu_tanh", "relu2", "swiglu")
    args["up"] = None if args["activation"] == "relu2" else make.place("up", make.normal(r, k).to(dtype))
    args["limit"] = make.pick(None, 0.5) if args["activation"] in ("silu", "swiglu") else None
    args["alpha"] = make.pick(None, 1.5) if args["activation"] == "swiglu" else None
    args["round_steps"] = args["activation"] != "swiglu" and make.pick(False, True)

    def define(gate: Any, ends: Any, global_scale: Any, scale_layout: str, alpha: Any, **others: Any) -> Any:
        alpha = 1.702 if alpha is None else alpha
        values = reference.gated(gate, alpha=alpha, out_dtype=torch.float32, **others)
        return written_rows(values, gate, ends, None, global_scale, scale_layout)

    return of_groups(nvfp4.gated_quantize, define, args, make)


def make_gated_grouped_gemm(make: Maker) -> Call:
    """Sums of small halves are exact. Rows past the last end count as zeros."""
    r, n, k, e = make.pick(1, 5, 40), make.pick(1, 3, 33), make.pick(16, 48, 96), make.pick(1, 3)
    t, parts, layout = make.pick(0, 7, 70), make.pick(1, 2), make.pick("128x4", "linear")
    scale = make.scales(e * parts, n, k // 16)
    scale = reference.swizzle(scale, 127) if layout == "128x4" else scale.view(e, parts, n, -1)
    dtype = make.pick(torch.float16, torch.bfloat16)
    activation = make.pick("silu", "gelu_tanh", "relu2" if parts == 1 else "swiglu")
    args: Arguments = {
        "a": make.place("a", (torch.randint(-12, 13, (r, k), generator=make.random) / 2).to(dtype)),
        "b": make.place("b", make.data(e, parts, n, k // 2)),
        "scale_b": make.place("scale_b", scale),
        "ends": make.place("ends", torch.randint(-1, t + 2, (e,), dtype=torch.int32, generator=make.random)),
        "activation": activation,
        "limit": make.pick(None, 0.5) if activation in ("silu", "swiglu") else None,
        "activation_alpha": make.pick(None, 1.5) if activation == "swiglu" else None,
        "rows": make.place("rows", torch.randint(-1, r + 1, (t,), dtype=torch.int32, generator=make.random)),
        "alpha": make.pick(None, 0.5, make.place("alpha", make.normal(e, parts))),
        "bias": make.pick(None, make.place("bias", make.normal(e, parts, n))),
        "out": make.place("out", torch.full((t, n), math.nan, dtype=make.pick(dtype, torch.float32))),
        "scale_layout": layout,
        "batch_invariant": make.pick(False, True),
    }
    make.buffers = {name: buffer for name, buffer in make.buffers.items() if isinstance(args[name], torch.Tensor)}

    def call(**args: Any) -> torch.Tensor:
        got = as_torch(nvfp4.gated_grouped_gemm(scale_a=None, **args))
        if got.device.type == "meta":
            return got
        got = got.clone()
        got[len(groups_of_rows(as_torch(args["ends"]), len(got))) :] = 0
        return got

    def define(out: Any, activation: str, limit: Any, activation_alpha: Any, **others: Any) -> torch.Tensor:
        dtype = others["a"].dtype if out is None else out.dtype
        y = definition(others | {"scale_a": None, "transpose_b": True, "out_dtype": dtype})
        columns = others["b"].shape[-2]
        gate, up = y[:, :columns], y[:, columns:] if y.shape[1] > columns else None
        alpha = 1.702 if activation_alpha is None else activation_alpha
        rows = others["a" if others["rows"] is None else "rows"]
        result = torch.zeros(len(rows), columns, dtype=dtype)
        result[: len(y)] = reference.gated(gate, up, activation, limit=limit, alpha=alpha)
        return result

    return Call(call, define, args, "out", make.buffers)


def make_moe_route(make: Maker) -> Call:
    ids = torch.randint(-1, 9, (make.pick(1, 5, 70, 0), make.pick(1, 3, 8, 0)), generator=make.random)
    expert_map = make.pick(None, torch.randint(-1, 6, (8,), dtype=torch.int32, generator=make.random))
    args: Arguments = {"ids": make.place("ids", make.pick(ids, ids.int())), "E": make.pick(1, 5, 300)}
    args["expert_map"] = None if expert_map is None else make.place("expert_map", expert_map)

    def flat(parts: Any) -> torch.Tensor:
        return torch.cat([as_torch(part).flatten() for part in parts])

    def define(**args: Any) -> torch.Tensor:
        return flat(reference.moe_route(**args))

    def call(**args: Any) -> torch.Tensor:
        return flat(nvfp4.moe_route(**args))

    return Call(call, define, args, None, make.buffers)


def make_moe_combine(make: Maker) -> Call:
    rows, columns, table = make.pick(1, 9, 0), make.pick(8, 13, 80, 0), (make.pick(1, 5, 70, 0), make.pick(1, 3, 8, 0))
    dtype = make.pick(torch.float16, torch.bfloat16, torch.float32)
    places = torch.randint(-1, rows + 1, table, dtype=torch.int32, generator=make.random)
    args: Arguments = {
        "y": make.place("y", make.normal(rows, columns).to(dtype)),
        "places": make.place("places", places),
    }
    weights = make.pick(None, make.normal(*table).to(make.pick(torch.float16, torch.float32)))
    args["weights"] = None if weights is None else make.place("weights", weights)
    args["out"] = make.place("out", torch.full((table[0], columns), math.nan, dtype=make.pick(dtype, torch.float32)))

    def define(out: Any, **others: Any) -> torch.Tensor:
        return reference.moe_combine(out_dtype=others["y"].dtype if out is None else out.dtype, **others)

    return Call(nvfp4.moe_combine, define, args, "out", make.buffers)


CALLS = {name.removeprefix("make_"): make for name, make in list(globals().items()) if name.startswith("make_")}
