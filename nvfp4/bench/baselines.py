"""The products that `nvfp4 bench` compares on one shape: ours, on one backend or several, and torch's, vLLM's and
Humming's as baselines.

All implementations multiply the same values. Operands of torch's plain products are dequantized in advance, outside the
timing, and so is the A of Marlin and of Humming; "dequantize + matmul" starts from the NVFP4 bytes, like ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from nvfp4 import gemm, swizzle
from nvfp4.bench import humming, marlin
from nvfp4.bench.shapes import Shape
from nvfp4.bench.timing import BACK_TO_BACK_CALLS, Implementation
from nvfp4.cli.machine import free_memory, has_bf16, kernel, last_level_cache, need_torch
from nvfp4.cli.show import Failure

if TYPE_CHECKING:
    import torch
    from torch import Tensor

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
SCALE_BYTES = (0x30, 0x48)  # e4m3 of 0.5 up to below 4: results stay far inside fp16, dequantized values inside e4m3
AGREEMENT = 2e-2  # relative Frobenius norm: bf16 results round at 2^-9, and a wrong product is off by about 1
AGREEMENT_FP8 = 2**-4  # e4m3 has three bits of mantissa: no operand is off by more
L2_MULTIPLE = 4  # a GPU's input sets together take this many times its L2
MAX_SETS = 1000
BYTES = {"nvfp4": 9 / 16, "fp16": 2, "bf16": 2, "fp32": 4, "fp8": 1}  # of a value
OTHERS = {"marlin": marlin, "humming": humming}  # libraries with a product of 16-bit A and NVFP4 weights
PLAIN = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}  # torch.matmul, by the dtype of all its tensors
DTYPES = {PLAIN[kind]: kind for kind in ("bf16", "fp16")}  # of results, and of 16-bit activations
KINDS = (*PLAIN, "fp8", "dequant", *OTHERS)
NAMES = {
    "fp16": "torch fp16 matmul",
    "bf16": "torch bf16 matmul",
    "fp32": "torch fp32 matmul",
    "fp8": "torch fp8 matmul",
    "dequant": "torch dequantize + matmul",
    **{kind: library.NAME for kind, library in OTHERS.items()},
}
NOTES = {"fp8": "not exact: rounds to e4m3"}


def default_kinds(device: torch.device, dtype: str) -> list[str]:
    if device.type == "cuda":
        return [DTYPES[dtype], "fp8", "dequant"]
    return ["bf16", "fp32", "dequant"] if has_bf16() else ["fp32", "dequant"]


def result_dtype(kind: str, device: torch.device, dtype: str) -> str:
    """The dtype of a baseline's results beside ours of `dtype`. On a CPU "dequantize + matmul" takes the fastest."""
    if kind == "dequant" and device.type != "cuda":
        return "bfloat16" if has_bf16() else "float32"
    return PLAIN.get(kind, dtype)


def unavailable(kind: str, device: torch.device, dtype: str | None = None) -> str:
    """Why this baseline cannot run on the device, or not with results of `dtype`, or ""."""
    if dtype and (own := result_dtype(kind, device, dtype)) != dtype:
        return f"its results are {own}, those of --dtype are {dtype}"
    if kind != "fp8" or device.type != "cuda":
        return ""
    major, minor = need_torch().cuda.get_device_capability(device)
    return "" if (major, minor) >= (8, 9) else f"needs compute capability 8.9, this GPU has {major}.{minor}"


@dataclass
class Operand:
    data: torch.Tensor  # [rows, K/2]
    linear: torch.Tensor  # [rows, K/16]
    swizzled: torch.Tensor


def operands(count: int, rows: int, k: int, device: torch.device, generator: torch.Generator) -> list[Operand]:
    """Random operands, each in memory of its own."""
    torch = need_torch()
    words = torch.randint(-(2**62), 2**62, (count, rows, k // 16), device=device, generator=generator)
    scale = torch.randint(*SCALE_BYTES, words.shape, device=device, generator=generator, dtype=torch.uint8)
    scale = scale.view(torch.float8_e4m3fn)
    return [Operand(*tensors) for tensors in zip(words.view(torch.uint8), scale, swizzle(scale))]


def pair_table(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[256, 2]: the two values that a byte holds, low nibble first."""
    torch = need_torch()
    values = torch.tensor([*E2M1, *(-v for v in E2M1)], dtype=dtype, device=device)
    byte = torch.arange(256, device=device)
    return torch.stack([values[byte & 15], values[byte >> 4]], dim=1)


def dequantized(operand: Operand, table: torch.Tensor) -> torch.Tensor:
    """The operand in the table's dtype, exact in fp16 and in bf16; one gather and one multiplication in place."""
    rows = operand.data.shape[0]
    blocks = table[operand.data.int()].view(rows, -1, 16)
    return blocks.mul_(operand.linear.to(table.dtype).unsqueeze(2)).view(rows, -1)


@dataclass
class Bench:
    implementations: list[Implementation]  # ours first
    cold: bool  # the input sets of each implementation exceed the caches
    left_out: dict[str, str] = field(default_factory=dict)  # baselines that cannot run this shape, and why


def input_bytes(kind: str, shape: Shape) -> int:
    """Bytes of both operands."""
    of_a, of_b = ("fp16", "nvfp4") if kind in OTHERS else (kind, kind)
    return int(shape.m * shape.k * BYTES[of_a] + shape.n * shape.k * BYTES[of_b])


def title(backend: str | None) -> str:
    return "nvfp4" if backend is None else f"nvfp4 {backend}"


def prepare(
    shape: Shape,
    device: torch.device,
    backends: Sequence[str | None],
    kinds: Sequence[str],
    seed: int,
    run: str = "",
    max_sets: int = MAX_SETS,
    dtype: str = "float16",
) -> Bench:
    """Makes the inputs and the implementations, and checks that all compute the same product."""
    torch = need_torch()
    generator = torch.Generator(device).manual_seed(seed)
    own_sets = [kind for kind in kinds if kind != "dequant"]
    sets, cold = rotation({kind: input_bytes(kind, shape) for kind in ("nvfp4", *own_sets)}, device, max_sets)

    a, b = (operands(sets["nvfp4"], rows, shape.k, device, generator) for rows in (shape.m, shape.n))
    packed = list(zip(a, b))
    results = Results(shape, device, getattr(torch, dtype))
    implementations = [
        Implementation(
            title(backend),
            partial(multiply, packed, results.of(results.dtype, len(packed)), backend),
            run,
            ours=True,
            kernel=kernel(shape.m, shape.n, shape.k, device, backend),
            sets=len(packed),
        )
        for backend in backends
    ]
    call: Callable[[int], Tensor]
    for kind in kinds:
        if kind == "dequant":
            table = pair_table(getattr(torch, result_dtype(kind, device, dtype)), device)
            call, count = partial(dequantize_and_matmul, packed, table), len(packed)
        else:
            call, count = OWN_SETS[kind](packed, sets[kind], results, device), sets[kind]
        implementations.append(Implementation(NAMES[kind], call, run, note=NOTES.get(kind, ""), sets=count))
    left_out = agree(shape, implementations)
    return Bench([c for c in implementations if c.name not in left_out], cold, left_out)


class Results:
    """Output tensors: each input set has its own, filled with NaN before the first call."""

    def __init__(self, shape: Shape, device: torch.device, dtype: torch.dtype) -> None:
        self.shape, self.device, self.dtype = shape, device, dtype  # of our results

    def of(self, dtype: torch.dtype, count: int) -> list[torch.Tensor]:
        torch = need_torch()
        size = (self.shape.m, self.shape.n)
        return [torch.full(size, math.nan, dtype=dtype, device=self.device) for _ in range(count)]


Packed = list[tuple[Operand, Operand]]


def multiply(packed: Packed, outputs: list[torch.Tensor], backend: str | None, i: int) -> torch.Tensor:
    i %= len(packed)
    a, b = packed[i]
    return gemm(a.data, b.data, a.swizzled, b.swizzled, out=outputs[i], backend=backend)


def dequantize_and_matmul(packed: Packed, table: torch.Tensor, i: int) -> torch.Tensor:
    a, b = packed[i % len(packed)]
    return dequantized(a, table) @ dequantized(b, table).T


def plain(
    dtype_name: str, packed: Packed, count: int, results: Results, device: torch.device
) -> Callable[[int], Tensor]:
    """torch.matmul of the dequantized values; set i has those of packed set i modulo the number of packed sets."""
    torch = need_torch()
    dtype = getattr(torch, dtype_name)
    table = pair_table(dtype, device)
    pairs = [
        (dequantized(a, table), dequantized(b, table).T) for a, b in (packed[i % len(packed)] for i in range(count))
    ]
    outputs = results.of(dtype, count)

    def call(i: int) -> Tensor:
        return torch.matmul(*pairs[i % count], out=outputs[i % count])

    return call


def scaled(packed: Packed, count: int, results: Results, device: torch.device) -> Callable[[int], Tensor]:
    """torch._scaled_mm of the dequantized values rounded to e4m3, one scale a tensor, with fast accumulation."""
    torch = need_torch()
    table = pair_table(torch.float16, device)
    outputs = results.of(results.dtype, count)
    one = torch.ones((), device=device)  # the values already use e4m3's range

    def rounded(x: Operand) -> Tensor:
        return dequantized(x, table).to(torch.float8_e4m3fn)

    pairs = [(rounded(a), rounded(b).T) for a, b in (packed[i % len(packed)] for i in range(count))]

    def call(i: int) -> Tensor:
        options = {"out_dtype": results.dtype, "use_fast_accum": True, "out": outputs[i % count]}
        return torch._scaled_mm(*pairs[i % count], one, one, **options)

    return call


def by_other(kind: str, packed: Packed, count: int, results: Results, device: torch.device) -> Callable[[int], Tensor]:
    """A library's product of A's dequantized values in 16 bits and B's bytes. It allocates its results."""
    table = pair_table(results.dtype, device)
    pairs = [
        (dequantized(a, table), OTHERS[kind].linear(b.data, b.linear, results.dtype))
        for a, b in (packed[i % len(packed)] for i in range(count))
    ]

    def call(i: int) -> Tensor:
        x, product = pairs[i % count]
        return product(x)

    return call


OWN_SETS: dict[str, Callable[..., Callable[[int], Tensor]]] = {  # kinds that rotate through inputs of their own
    **{kind: partial(plain, dtype) for kind, dtype in PLAIN.items()},
    "fp8": scaled,
    **{kind: partial(by_other, kind) for kind in OTHERS},
}


def agree(shape: Shape, implementations: list[Implementation]) -> dict[str, str]:
    """Compares each result with the first; returns the baselines that reject the shape, with their messages."""
    expected = implementations[0].call(0).double()
    left_out = {}
    for baseline in implementations[1:]:
        try:
            result = baseline.call(0)
        except RuntimeError as error:
            if baseline.ours:
                raise
            left_out[baseline.name] = f"at {shape}: {str(error).splitlines()[0]}"
            continue
        difference = ((result.double() - expected).norm() / expected.norm()).item()
        if not difference < (AGREEMENT_FP8 if baseline.note else AGREEMENT):
            raise Failure(
                f"{shape}: {implementations[0].name} and {baseline.name} differ by {difference:.3g} in norm; "
                "nothing was timed"
            )
    return left_out


def rotation(sizes: dict[str, int], device: torch.device, most: int = MAX_SETS) -> tuple[dict[str, int], bool]:
    """How many input sets each implementation rotates through, and whether that keeps the caches cold.

    On a GPU the sets of each implementation take four times the L2, or each back-to-back call has its own; on a CPU
    they exceed the last-level cache. All sets together take at most half of the free memory.
    """
    if device.type == "cuda":
        cuda = need_torch().cuda
        l2 = cuda.get_device_properties(device).L2_cache_size
        wanted = {
            name: min(BACK_TO_BACK_CALLS, max(3, math.ceil(L2_MULTIPLE * l2 / size))) for name, size in sizes.items()
        }
    else:
        cache = last_level_cache() or 64 * 2**20
        wanted = {name: 1 + math.ceil(cache / size) for name, size in sizes.items()}
    free = free_memory(device)
    total = sum(wanted[name] * size for name, size in sizes.items())
    share = min(1.0, free / 2 / total)
    sets = {name: max(1, min(most, int(count * share))) for name, count in wanted.items()}
    return sets, sets == wanted
