"""compute-sanitizer over the GPU kernels, on a machine with a GPU and the CUDA toolkit:

    python tests/kernels/sanitize.py

Runs ragged calls under memcheck, racecheck, synccheck and initcheck in parallel, and prints a table. Each tensor is an
allocation of exactly its size, so that memcheck detects an access one byte past the end. The data come from the host,
so that initcheck knows what is initialized. Each result is compared with the CPU backend's.

`--backend sm90` runs the calls of one backend, `--tool racecheck` one tool. A tool that exceeds `--limit` seconds is
killed, and the current call is printed. racecheck stalls some calls: a process of its own runs them, and ends after
half of that time; how many it has run is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # tests without torch import the shapes
    import torch

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
STALLED = "racecheck,split"  # a process for the calls that racecheck stalls: stopping it is no failure
# Every sm80 instantiation with and without split-K (checked by test_driver.py), tails along M, N and K, K = 0, batches.
SHAPES = [
    (1, 1, 16, 1),
    (1, 300, 2064, 1),
    (7, 33, 80, 2),
    (8, 64, 4096, 1),
    (16, 100, 1040, 1),
    (17, 65, 528, 2),
    (33, 129, 272, 1),
    (64, 48, 0, 1),
    (65, 130, 4160, 1),
    (129, 257, 144, 3),
    (200, 128, 256, 1),
    (5, 1, 8208, 1),
    (50, 57, 8208, 1),
    (385, 65, 528, 1),
    (33, 5000, 16, 1),
    (33, 5000, 272, 1),
    (129, 65, 4112, 1),
    (129, 65, 8208, 1),
]


# Backends with many plans for a product: each kernel, with and without split-K, on the first shape that has it.
PLANNED = [(1, 300, 2064, 2), (2, 65, 544, 1), (4, 130, 1088, 1), (9, 200, 1088, 2), (300, 280, 1152, 1)]
PLANNED += [(30, 200, 1088, 1), (30, 2104, 4160, 1), (40, 2100, 4160, 1), (100, 2100, 4160, 1)]  # the last: stream-K


# 16-bit A has narrow and wide tiles, every quarter of a 128-row block, stream-K, large M, K no multiple of a stage.
A16_SHAPES = [
    (5, 104, 2080, 2),
    (13, 264, 1088, 2),
    (70, 200, 1088, 1),
    (30, 2100, 4160, 1),
    (100, 2104, 4160, 1),
    (300, 280, 1152, 1),
]

LAYOUTS = ("128x4", "linear")
# Output type, whether with the full epilogue: alpha alone in 16 bits is another code path. Their number is odd, so that
# each meets both layouts on successive shapes.
EPILOGUES = (("float16", True), ("float32", True), ("float16", False))

# Under racecheck an mbarrier of these kernels, split along K, sometimes stays incomplete for a warp that waits for it,
# after other warps of its CTA have passed it: 37,000 polls in 0.3 s, up to 34 s a launch (docs/lessons.md).
STALLED_BY_RACECHECK = "nvfp4_sm90_gemm_"


@dataclass(frozen=True)
class Call:
    """A product that is compared with the CPU backend's, by one of the plans for it."""

    shape: tuple[int, int, int, int]
    backend: str
    layout: str
    type_name: str
    everything: bool
    kernel: str
    split_k: int
    candidate: int = 0
    a_type: str = ""
    transpose_b: bool = True

    def __str__(self) -> str:
        of = f" of {self.a_type} A{'' if self.transpose_b else ' without transposition'}" if self.a_type else ""
        end = f"{'everything' if self.everything else 'alpha'} in {self.type_name}"
        shape = "x".join(map(str, self.shape))
        return f"{shape}{of}, {self.layout}, {end}, on {self.kernel}, split {self.split_k}, candidate {self.candidate}"

    @property
    def stalls(self) -> bool:
        return self.kernel.startswith(STALLED_BY_RACECHECK) and self.split_k > 1


class UnderWay:
    """The current call, in a memory-mapped file that another process reads: readable even if a call never ends."""

    SIZE = 256

    def __init__(self, path: str | None) -> None:
        self.file: mmap.mmap | bytearray = bytearray(self.SIZE)
        if path:
            with open(path, "r+b") as file:
                self.file = mmap.mmap(file.fileno(), self.SIZE)

    def say(self, text: str) -> None:
        self.file[:] = text.encode()[: self.SIZE].ljust(self.SIZE)


under_way = UnderWay(None)


def gpu(x: torch.Tensor) -> torch.Tensor:
    """On the GPU; an emulated GPU takes CPU tensors."""
    import torch

    return x.to("cuda" if torch.cuda.is_available() else "cpu")


def rows() -> dict[str, dict[str, Any]]:
    """The table of backends, without the CPU's."""
    import nvfp4

    return {row["name"]: row for row in nvfp4._C.backends() if row["min_capability"]}


def gpu_backends() -> list[str]:
    """The backends of this GPU."""
    import nvfp4

    devices = nvfp4.info()["devices"]
    if not devices:
        sys.exit("this machine has no GPU that nvfp4 can use; `python -m nvfp4 info` says why")
    capability = devices[0]["compute_capability"]
    ends = ((name, row["min_capability"], row["max_capability"] or capability) for name, row in rows().items())
    return [name for name, least, most in ends if least <= capability <= most]


def agrees(call: Call) -> bool:
    """Whether a product of random data is the CPU backend's, bit for bit."""
    import torch

    import nvfp4

    (m, n, k, batch), dtype = call.shape, getattr(torch, call.type_name)
    operands = []
    for rows in (m, n):
        data = torch.randint(0, 256, (batch, rows, k // 2), dtype=torch.uint8)
        scale = torch.tensor([0, 0x38, 0x40, 0x44], dtype=torch.uint8)[torch.randint(0, 4, (batch, rows, k // 16))]
        operands.append((data, nvfp4.swizzle(scale) if call.layout == "128x4" else scale))
    (a, scale_a), (b, scale_b) = operands
    if call.a_type:
        a = torch.randint(-12, 13, (batch, m, k if call.transpose_b else n)) / 2
        a, scale_a = a.to(getattr(torch, call.a_type)), None
    columns = n if call.transpose_b else k
    alpha, bias = torch.full((n if call.transpose_b else 1,), 2.0**-10), torch.randn(columns).to(dtype)
    c = torch.randn(batch, m, columns).to(dtype)
    given = {"alpha": alpha, "bias": bias, "c": c} if call.everything else {"alpha": alpha[:1]}
    options = {"out_dtype": dtype, "scale_layout": call.layout, "transpose_b": call.transpose_b} | (
        {"beta": 0.5} if call.everything else {}
    )
    expected = nvfp4.gemm(a, b, scale_a, scale_b, **given, **options)
    given = {name: gpu(x) for name, x in given.items()}
    operands = [None if x is None else gpu(x) for x in (a, b, scale_a, scale_b)]
    out = nvfp4.gemm(*operands, **given, **options, backend=call.backend)
    return torch.equal(out.cpu(), expected)


def plans(shape: tuple[int, int, int, int], **of: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every plan for a product, with its place."""
    import nvfp4
    from nvfp4 import _C

    try:
        for place in range(nvfp4.info(*shape, device=0, **of)["plan"]["candidates"]):
            _C.set_candidate(place)
            yield place, nvfp4.info(*shape, device=0, **of)["plan"]
    finally:
        _C.set_candidate(0)


def epilogues(
    shape: tuple[int, int, int, int], backend: str, place: int, plan: dict[str, Any], first: int
) -> Iterator[Call]:
    """By one plan, with three epilogues, in the two scale layouts by turns: "128x4" first if `first` is even."""
    for i, (type_name, everything) in enumerate(EPILOGUES, first):
        yield Call(shape, backend, LAYOUTS[i % 2], type_name, everything, plan["kernel"], plan["split_k"], place)


def first_plans(backend: str) -> Iterator[Call]:
    """Each shape by its first plan."""
    for i, shape in enumerate(SHAPES):
        place, plan = next(plans(shape, backend=backend))
        yield from epilogues(shape, backend, place, plan, i)


def every_kernel(backend: str) -> Iterator[Call]:
    """Each kernel among the plans once with split_k 1, 2 (a code path of its own) and more."""
    seen = set()
    for shape in PLANNED:
        for place, plan in plans(shape, backend=backend):
            key = (plan["kernel"], plan["swap_ab"], min(plan["split_k"], 3))
            if key not in seen:
                yield from epilogues(shape, backend, place, plan, len(seen))
                seen.add(key)


def of_16_bit_a(backend: str) -> Iterator[Call]:
    """Yields the calls of every_kernel for fp16 and bf16 A, without the transposition too; layouts (where linear scales
    are taken) and epilogues take turns."""
    seen = set()
    row = rows()[backend]
    for a_type, transpose_b in itertools.product(("float16", "bfloat16"), (True, False)):
        kind = "gemm" if transpose_b else "gemm_nn"
        if a_type not in row["product_kinds"].get(kind, []):
            continue
        linear = a_type in row["linear_scales"][kind]
        for m, n, k, batch in A16_SHAPES:
            if row["a16_rows"] and m > row["a16_rows"]:
                continue
            aligned = not linear and not transpose_b  # which needs rows of A on 16 bytes
            shape = (m, (n + 7) // 8 * 8 if aligned else n, k, batch)
            for place, plan in plans(shape, backend=backend, a_dtype=a_type, transpose_b=transpose_b):
                key = (plan["kernel"], min(plan["split_k"], 3))
                if key in seen:
                    continue
                turn = len(seen)
                seen.add(key)
                layout = LAYOUTS[turn % 2] if linear else "128x4"
                how = (*EPILOGUES[turn % 3], plan["kernel"], plan["split_k"], place)
                yield Call(shape, backend, layout, *how, a_type, transpose_b)


def run_calls(calls: list[Call]) -> int:
    """Returns the number of calls that agree with the CPU: all, or the program exits."""
    from nvfp4 import _C

    for done, call in enumerate(calls):
        under_way.say(f"{done} of {len(calls)} calls done; {call}")
        _C.set_candidate(call.candidate)
        try:
            if not agrees(call):
                sys.exit(f"{call}: differs from the CPU backend")
        finally:
            _C.set_candidate(0)
    return len(calls)


def run_fused(x: torch.Tensor, layout: str) -> None:
    import torch

    import nvfp4

    weight, residual = torch.randn(x.shape[-1]), torch.randn_like(x)

    def calls(place: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        y, r = place(x), place(residual.clone())
        return {
            "four_over_six": nvfp4.quantize(y, block_scale="four_over_six", scale_layout=layout),
            "search": nvfp4.quantize(y, block_scale="search", scale_layout=layout),
            "importance": nvfp4.quantize(y, block_scale="search", scale_layout=layout, importance=place(weight.abs())),
            "gptq_block": nvfp4.gptq_block(y.reshape(-1, y.shape[-1])[:, 3:19].float(), place(torch.eye(16))),
            "rms_norm_quantize": nvfp4.rms_norm_quantize(y, place(weight), 1e-6, residual=r, scale_layout=layout),
            "silu_mul_quantize": nvfp4.silu_mul_quantize(place(x[..., :64].contiguous()), scale_layout=layout),
        }

    expected = calls(lambda y: y)
    for name, got in calls(gpu).items():
        if not all(torch.equal(p.cpu(), q) for p, q in zip(got, expected[name])):
            sys.exit(f"{name} {layout}: differs from the CPU backend")


def run_layers() -> int:
    """quantize_gemm of one row, which is one kernel on Hopper, of three, and of 24, which a pre-pass quantizes there:
    the bits of two calls."""
    import torch

    import nvfp4

    b, scale_b = map(gpu, nvfp4.quantize(torch.randn(200, 1056)))
    for rows in (1, 3, 24):
        under_way.say(f"quantize_gemm of {rows} rows")
        x = gpu(torch.randn(rows, 1056).bfloat16())
        got = nvfp4.quantize_gemm(x, b, scale_b, global_scale=0.01)
        a, scale_a = nvfp4.quantize(x, global_scale=0.01)
        if not torch.equal(got, nvfp4.gemm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16)):
            sys.exit(f"quantize_gemm of {rows} rows: differs from quantize and gemm")
    return 9


def run_steps() -> int:
    """The steps around experts: choices of one warp and of several, ragged columns; quantizers of groups, which need
    every block of their scales, with rows outside of x."""
    import torch

    import nvfp4

    ids, x, weights = torch.randint(-1, 40, (70, 6)), torch.randn(420, 83), torch.randn(70, 6)
    gate, g = x[:, :80].contiguous(), torch.rand(3) + 0.5
    ends, rows = torch.tensor([1, 2, 420], dtype=torch.int32), torch.randint(-1, 421, (420,), dtype=torch.int32)

    def quantized(place: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, tuple[torch.Tensor, ...]]:
        y = place(gate)
        groups = {"global_scale": place(g), "ends": place(ends)}
        how = {"rows": place(rows), "scale_layout": "linear", "block_scale": "four_over_six"}
        fused = dict.fromkeys(("silu", "gelu_tanh", "swiglu"), y) | {"relu2": None}
        return {
            "amax_scale by row": (nvfp4.amax_scale(place(x), by_row=True),),
            "quantize in groups": nvfp4.quantize(y, rows=place(rows), **groups),
            "four_over_six in groups": nvfp4.quantize(y, **groups, **how),
        } | {name: nvfp4.gated_quantize(y, up, name, **groups) for name, up in fused.items()}

    def calls(place: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, list[torch.Tensor]]:
        routed = nvfp4.moe_route(place(ids), 40)
        y = nvfp4.gated(place(x), place(x), "swiglu", out_dtype="bfloat16")
        few = nvfp4.moe_route(place(ids[:3]), 40)
        return {
            "moe_route": [*routed, *few],
            "gated": [y],
            "moe_combine": [nvfp4.moe_combine(y, routed[2], place(weights))],
        }

    expected, got = calls(lambda y: y) | quantized(lambda y: y), calls(gpu) | quantized(gpu)
    for name, results in expected.items():
        if not all(torch.equal(p.cpu().view(torch.uint8), q.view(torch.uint8)) for p, q in zip(got[name], results)):
            sys.exit(f"{name}: differs from the CPU backend")
    return len(expected) + 1  # moe_route ran twice


def rows_of_groups(a_type: str, layout: str, columns: int) -> dict[str, torch.Tensor]:
    """a, its scales, and 90 rows in three groups, of which 79 count."""
    import torch

    import nvfp4

    ends, rows = torch.tensor([70, 70, 79], dtype=torch.int32), torch.randint(-1, 34, (90,), dtype=torch.int32)
    if a_type != "uint8":
        a = (torch.randint(-12, 13, (33, columns)) / 2).to(getattr(torch, a_type))
        return {"a": a, "ends": ends, "rows": rows}
    scale = torch.tensor([0, 0x38, 0x40, 0x44], dtype=torch.uint8)[torch.randint(0, 4, (256, columns // 16))]
    a = torch.randint(0, 256, (90, columns // 2), dtype=torch.uint8)
    if layout == "linear":
        return {"a": a[:33], "scale_a": scale[:33], "ends": ends, "rows": rows}
    places = torch.tensor([128, 0, 256], dtype=torch.int32)  # the last group has no scales
    return {"a": a, "scale_a": nvfp4.swizzle(scale), "ends": ends.new_tensor([70, 75, 79]), "scale_rows": places}


def run_groups(backends: list[str]) -> int:
    """Returns the number of products of groups that agree with the CPU: by each plan for fp16, bf16 and NVFP4 A, or the
    program exits. Groups have no, few and many rows, there are rows past the last end, and some are outside of A or of
    its scales."""
    import torch

    import nvfp4
    from nvfp4 import _C

    calls, n, k = 0, 200, 160  # rows of b on 16 bytes, as some kernels need
    types = (("float16", "128x4"), ("bfloat16", "linear"), ("uint8", "128x4"), ("uint8", "linear"))
    forms = itertools.product(backends, (True, False), types)
    for backend, transpose_b, (a_type, layout) in forms:
        kind = "grouped_gemm" if transpose_b else "grouped_gemm_nn"
        if a_type not in rows()[backend]["product_kinds"].get(kind, []):
            continue
        if a_type not in rows()[backend]["linear_scales"].get(kind, []):
            layout = "128x4"
        leading, columns = ((3, 2), n) if transpose_b else ((3,), k)
        matrices = math.prod(leading)
        scale = torch.tensor([0, 0x38, 0x40, 0x44], dtype=torch.uint8)[torch.randint(0, 4, (matrices, n, k // 16))]
        tensors = rows_of_groups(a_type, layout, k if transpose_b else n) | {
            "b": torch.randint(0, 256, (*leading, n, k // 2), dtype=torch.uint8),
            "scale_b": nvfp4.swizzle(scale) if layout == "128x4" else scale.view(*leading, n, k // 16),
            "row_scale": torch.randn(90),
            "alpha": torch.randn(leading),
            "bias": torch.randn(*leading, columns),
        }
        options: dict[str, Any] = {"scale_layout": layout, "transpose_b": transpose_b}
        if "scale_a" not in tensors:
            options["scale_a"] = None
        expected = nvfp4.grouped_gemm(**tensors, **options, backend="cpu")[:79]
        given = {name: gpu(x) for name, x in tensors.items()}
        for place, promised in itertools.product(range(4), (False, True) if transpose_b else (False,)):
            what = f"{kind} of {a_type} A, {layout}, on {backend}, candidate {place}, promises {promised}"
            promises = {"constant_b": promised, "constant_ends": promised}
            under_way.say(f"{calls} products of groups done; {what}")
            _C.set_candidate(place)
            try:
                got = nvfp4.grouped_gemm(**given, **options, **promises, backend=backend)[:79].cpu()
            finally:
                _C.set_candidate(0)
            if not torch.equal(got.nan_to_num(nan=7.5), expected.nan_to_num(nan=7.5)):
                sys.exit(f"{what}: differs from the CPU backend")
            calls += 1
        if transpose_b:
            calls += run_activations(tensors, options, backend)
    return calls


def run_activations(tensors: dict[str, torch.Tensor], options: dict[str, Any], backend: str) -> int:
    """gated_grouped_gemm by each plan. All rows count: gated's kernel reads rows past the last end, too."""
    import torch

    import nvfp4
    from nvfp4 import _C

    n, what = tensors["b"].shape[-2], f"gated_grouped_gemm of {tensors['a'].dtype} A on {backend}"
    tensors = tensors | {"ends": torch.cat([tensors["ends"][:-1], torch.tensor([90], dtype=torch.int32)])}
    options = {name: x for name, x in options.items() if name != "transpose_b"}
    y = nvfp4.grouped_gemm(**tensors, **options, backend="cpu")
    expected = nvfp4.gated(y[:, :n], y[:, n:], "swiglu", limit=7.0).nan_to_num(nan=7.5)
    given = {name: gpu(x) for name, x in tensors.items()}
    for place in range(4):
        under_way.say(f"{what}, candidate {place}")
        _C.set_candidate(place)
        try:
            got = nvfp4.gated_grouped_gemm(**given, **options, activation="swiglu", limit=7.0, backend=backend)
        finally:
            _C.set_candidate(0)
        if not torch.equal(got.cpu().nan_to_num(nan=7.5), expected):
            sys.exit(f"{what}: differs from the CPU backend")
    return 4


def run_experts() -> int:
    """Gate, up and activation of 4 tokens of a mixture: sm90 takes one kernel for products of this size and no less."""
    import torch

    import nvfp4

    under_way.say("gated_grouped_gemm of 4 tokens")
    experts, hidden, inner = 128, 2048, 768
    scale = torch.randint(0x08, 0x18, (experts, 2 * inner * hidden // 16), dtype=torch.uint8)
    b = torch.randint(0, 256, (experts, 2, inner, hidden // 2), dtype=torch.uint8)
    rows, ends, _ = nvfp4.moe_route(torch.rand(4, experts).topk(8).indices, experts)
    tensors = {"a": torch.randn(4, hidden).bfloat16(), "b": b, "scale_b": scale.view(-1), "ends": ends, "rows": rows}
    given = {name: gpu(x) for name, x in tensors.items()}
    got = nvfp4.gated_grouped_gemm(**given, scale_a=None)
    y = nvfp4.grouped_gemm(**given, scale_a=None)
    if not torch.equal(got, nvfp4.gated(y[:, :inner], y[:, inner:])):
        sys.exit("gated_grouped_gemm of 4 tokens: differs from grouped_gemm and gated")
    return 3


def products(backends: list[str]) -> list[Call]:
    calls = [call for backend in backends for call in first_plans(backend)]
    own = [backend for backend in backends if rows()[backend]["max_capability"]]
    calls += [call for backend in own for call in every_kernel(backend)]
    return calls + [call for backend in backends for call in of_16_bit_a(backend)]


def run_conversions(tool: str) -> int:
    """Returns the number of calls that agree with the CPU: all that the tool can run, or the program exits."""
    import torch

    import nvfp4

    under_way.say("the steps around experts")
    calls = run_steps() + run_layers()
    x = torch.randn(2, 129, 80)
    for layout in ("128x4", "linear"):
        under_way.say(f"quantize, swizzle, dequantize, {layout}")
        data, scale = nvfp4.quantize(gpu(x), scale_layout=layout)
        expected = nvfp4.quantize(x, scale_layout=layout)
        swizzled = nvfp4.swizzle(gpu(nvfp4.quantize(x, scale_layout="linear")[1]))
        back = nvfp4.dequantize(data, scale, scale_layout=layout)
        run_fused(x, layout)
        # amax_scale counts arrivals in memory that nobody has cleared: initcheck reports that, and nothing else.
        if tool != "initcheck" and not torch.equal(nvfp4.amax_scale(gpu(x)).cpu(), nvfp4.amax_scale(x)):
            sys.exit("amax_scale: differs from the CPU backend")
        if not torch.equal(data.cpu(), expected[0]) or not torch.equal(scale.cpu(), expected[1]):
            sys.exit(f"quantize {layout}: differs from the CPU backend")
        if not torch.equal(back.cpu(), nvfp4.dequantize(*expected, scale_layout=layout)):
            sys.exit(f"dequantize {layout}: differs from the CPU backend")
        if not torch.equal(nvfp4.unswizzle(swizzled, 129, 5).cpu(), nvfp4.quantize(x, scale_layout="linear")[1]):
            sys.exit("swizzle and unswizzle: do not give back the scales")
        calls += 7 - (tool == "initcheck")
    return calls


def run(backends: list[str], tool: str) -> int:
    """Runs the calls of a tool, or all; returns their number."""
    calls = products(backends)
    if tool == STALLED:
        return run_calls([call for call in calls if call.stalls])
    others = run_conversions(tool) + run_groups(backends) + run_experts()
    return others + run_calls([call for call in calls if tool != "racecheck" or not call.stalls])


def sanitize(of: str, backends: list[str], limit_s: float) -> tuple[bool, str]:
    tool = of.partition(",")[0]
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "3", "--target-processes", "all"]
    if tool != "initcheck":  # initcheck must see the writes of all kernels
        command += ["--kernel-name", "kns=nvfp4"]
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    # For a build with NVFP4_WATCHDOG: a launch under a tool takes seconds, and one that hangs ends before the limit.
    environment.setdefault("NVFP4_WATCHDOG_CLOCKS", f"{limit_s / 2 * 1e9:.0f}")
    environment.setdefault("NVFP4_WATCHDOG_SECONDS", f"{limit_s / 2:.0f}")
    command += [sys.executable, __file__, "--run", f"--tool={of}"]
    command += [f"--backend={backend}" for backend in backends]
    start = time.monotonic()
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(UnderWay.SIZE)
        command.append(f"--under-way={file.name}")
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)
        try:
            output, _ = done.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired as late:
            output = (late.output or b"").decode()
            calls_done = file.read().decode().strip("\0 ") or "no call begun"
            clean = of == STALLED and calls_done[0] in "123456789" and output.count("=========") == 1  # its title
            if not clean:
                print(output[-4000:])
            return clean, f"stopped after {limit_s:.0f} s; {calls_done}"
        finally:  # also after KeyboardInterrupt
            if done.poll() is None:
                os.killpg(done.pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):  # a thread blocked in the driver does not exit
                    done.wait(10)
    summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", output)
    calls = re.findall(r"\d+ calls agree with the CPU backend", output)
    clean = done.returncode == 0 and bool(summary) and bool(calls)
    if not clean:
        print(output[-4000:])
    told = [summary[-1] if summary else f"no summary, exit status {done.returncode}", *calls]
    return clean, f"{', '.join(told)}, {time.monotonic() - start:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", action="append", help="of this GPU; default: all")
    parser.add_argument("--tool", action="append", choices=[*TOOLS, STALLED], help="default: all")
    parser.add_argument("--run", action="store_true", help="run the calls in this process, those that --tool can run")
    parser.add_argument("--under-way", help="with --run: file for the current call")
    parser.add_argument("--limit", type=float, default=200, help="time limit of a tool in seconds")
    args = parser.parse_args()
    backends = args.backend or gpu_backends()
    if args.run:
        global under_way
        under_way = UnderWay(args.under_way)
        calls = run(backends, args.tool[0] if args.tool else "")
        print(f"{calls} calls agree with the CPU backend", flush=True)
        return
    if not shutil.which("compute-sanitizer"):
        sys.exit("compute-sanitizer is not on PATH; it comes with the CUDA toolkit")
    tools = args.tool or [*TOOLS, STALLED]
    with ThreadPoolExecutor(len(tools)) as pool:
        limit = {STALLED: args.limit / 2}
        results = list(pool.map(lambda tool: sanitize(tool, backends, limit.get(tool, args.limit)), tools))
    for tool, (clean, summary) in zip(tools, results):
        print(f"{tool:16}  {'clean' if clean else 'FAILED':6}  {', '.join(backends)}: {summary}")
    sys.exit(not all(clean for clean, _ in results))


if __name__ == "__main__":
    main()
