"""The shapes that `nvfp4 bench` times: the competition's, layers of real models, a set for the Hopper kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nvfp4.cli.machine import need_torch


@dataclass(frozen=True)
class Shape:
    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def operations(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """The minimum traffic: both operands and their scales read once, fp16 results written once."""
        return (self.m + self.n) * (self.k // 2 + self.k // 16) + 2 * self.m * self.n

    @property
    def layer_bytes(self) -> int:
        """The same of a layer, which has 16-bit activations."""
        return self.n * (self.k // 2 + self.k // 16) + 2 * self.m * self.k + 2 * self.m * self.n


@dataclass(frozen=True)
class Layer:
    """A linear layer as inference engines run it: projections of the same input are one product."""

    model: str
    layer: str
    n: int
    k: int


LAYERS = (
    # 128 heads of 128 values; experts of 2048; dense layers of 18432, here an eighth of one.
    Layer("DeepSeek-V3", "attention output", 7168, 16384),
    Layer("DeepSeek-V3", "expert gate and up", 4096, 7168),
    Layer("DeepSeek-V3", "expert down", 7168, 2048),
    Layer("DeepSeek-V3", "dense gate and up on 1 of 8 GPUs", 4608, 7168),
    # 32 heads of 128 values and 8 of keys and values; a feed-forward of 14336.
    Layer("Llama-3.1-8B", "query, key, value", 6144, 4096),
    Layer("Llama-3.1-8B", "attention output", 4096, 4096),
    Layer("Llama-3.1-8B", "gate and up", 28672, 4096),
    Layer("Llama-3.1-8B", "down", 4096, 14336),
)
# All linear layers of one decoder block.
BLOCKS = (
    *(layer for layer in LAYERS if layer.model == "Llama-3.1-8B"),
    # 64 heads of 128 values and 8 of keys and values; a feed-forward of 28672.
    Layer("Llama-3.1-70B", "query, key, value", 10240, 8192),
    Layer("Llama-3.1-70B", "attention output", 8192, 8192),
    Layer("Llama-3.1-70B", "gate and up", 57344, 8192),
    Layer("Llama-3.1-70B", "down", 8192, 28672),
    # 64 heads of 128 values and 8 of keys and values; a feed-forward of 25600.
    Layer("Qwen3-32B", "query, key, value", 10240, 5120),
    Layer("Qwen3-32B", "attention output", 5120, 8192),
    Layer("Qwen3-32B", "gate and up", 51200, 5120),
    Layer("Qwen3-32B", "down", 5120, 25600),
    # One of the first three blocks, which have no experts. Queries of rank 1536; keys and values of rank 512 and 64
    # values of position; 128 heads of 128 + 64 values for queries, 128 + 128 for keys and values.
    Layer("DeepSeek-V3", "down to the ranks of query, key, value", 2112, 7168),
    Layer("DeepSeek-V3", "query", 24576, 1536),
    Layer("DeepSeek-V3", "key, value", 32768, 512),
    LAYERS[0],
    Layer("DeepSeek-V3", "dense gate and up", 36864, 7168),
    Layer("DeepSeek-V3", "dense down", 7168, 18432),
)
DECODE_M = (1, 2, 4, 8, 16, 32, 64)  # concurrent sequences, one token each
PREFILL_M = (512, 1024, 2048, 4096)  # prompt tokens
LINEAR_M = (1, 16, 128, 1024)
BLOCKS_M = (1, 8, 32, 128, 2048)
MONOTONE_M = (*range(1, 33), *range(40, 129, 8), *range(160, 513, 32))
HOPPER_M = (1, 2, 4, 8, 16, 32, 64, 128, 256)
README_SHAPES = [  # layers of LAYERS: few rows, many, and both
    *(Shape(*size) for size in ((1, 7168, 16384), (8, 7168, 16384), (16, 28672, 4096), (1, 6144, 4096))),
    *(Shape(*size) for size in ((1, 7168, 2048), (64, 4096, 7168), (128, 7168, 16384), (1024, 4096, 7168))),
    Shape(4096, 28672, 4096),
]
HOPPER_LARGE = [Shape(2304, 4608, 7168), Shape(8192, 8192, 8192)]  # the first: of the competition's tests


def layer_of(shape: Shape) -> Layer | None:
    """The layer with this N and K, or None."""
    return next((layer for layer in (*LAYERS, *BLOCKS) if (layer.n, layer.k) == (shape.n, shape.k)), None)


def task_shapes(rows: list[int]) -> list[Shape]:
    """The three shapes that rank in the competition, with these M."""
    need_torch()
    from nvfp4.reference import load_task

    return [Shape(m, test["n"], test["k"]) for test in load_task()["benchmarks"] for m in rows]


def shapes_of(layers: Sequence[Layer], rows: Sequence[int]) -> list[Shape]:
    return [Shape(m, layer.n, layer.k) for layer in layers for m in rows]


def ranked(rows: list[int] | None) -> list[Shape]:
    return task_shapes(rows or [1, 16, 128])


def decode(rows: list[int] | None) -> list[Shape]:
    return shapes_of(LAYERS, rows or DECODE_M)


def prefill(rows: list[int] | None) -> list[Shape]:
    return shapes_of(LAYERS, rows or PREFILL_M)


def hopper(rows: list[int] | None) -> list[Shape]:
    return task_shapes(rows or [*HOPPER_M]) + ([] if rows else HOPPER_LARGE)


def monotone(rows: list[int] | None) -> list[Shape]:
    """Three layers of each of the four models: every size of N and K among theirs."""
    chosen = [layer for i, layer in enumerate(BLOCKS) if i in (0, 2, 3, 4, 6, 7, 8, 10, 11)]
    return shapes_of([*chosen, *LAYERS[:3]], rows or MONOTONE_M)


def linear(rows: list[int] | None) -> list[Shape]:
    return task_shapes(rows or [*LINEAR_M])


def models(rows: list[int] | None) -> list[Shape]:
    return shapes_of(BLOCKS, rows or BLOCKS_M)


def readme(rows: list[int] | None) -> list[Shape]:
    """The shapes of the table; with other M each of its layers once for each."""
    if rows is None:
        return [*README_SHAPES]
    return [Shape(m, n, k) for n, k in dict.fromkeys((shape.n, shape.k) for shape in README_SHAPES) for m in rows]


SETS: dict[str, Callable[[list[int] | None], list[Shape]]] = {
    "ranked": ranked,
    "decode": decode,
    "prefill": prefill,
    "hopper": hopper,
    "monotone": monotone,
    "linear": linear,
    "models": models,
    "readme": readme,
}
OF_LAYERS = ("linear", "models", "readme")  # sets that time nvfp4.Linear in place of the product
