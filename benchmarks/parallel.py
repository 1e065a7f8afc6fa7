"""Times the linear layers of a decoder block of Llama-3.1-70B on several GPUs of one host (nvfp4.parallel).

    python benchmarks/parallel.py [--csv FILE]

The ranks are forked, one for each GPU that torch sees: on 1, 2, 4 .. of them, W4A16, W4A4 with a static and with a
dynamic input scale, torch's own styles in bf16, and the block's two all-reduces alone. On several GPUs a column
"16-bit" has a mode with reduce="bf16", and "16-bit scattered" has it with tokens that o and down scatter and q/k/v and
gate/up gather. q/k/v and gate/up are one layer each, split by columns; o and down are split by rows. A CUDA graph holds
the block BLOCKS times: it reads more than any L2 holds in between. Every layer reads an input of its own; quantization
is in the time, attention is not. Figures are medians of rank 0. First each layer is compared with one GPU's: equal bits
on integers, on random numbers the bound of fp32 sums (tests/support/error_bounds.py); with 16 bits on random numbers
the bound of RowwiseParallel. Exits with 1 if a layer differs.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import recorded
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor import parallel as torch_parallel

import nvfp4
from nvfp4.layers import parallel
from nvfp4.layers.packed import PackedLinear

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))
from error_bounds import gamma, roundings  # noqa: E402

# name, rows of each part, K, whether it is split by columns
LAYERS = [
    ("qkv", (8192, 1024, 1024), 8192, True),
    ("o", (8192,), 8192, False),
    ("gate_up", (28672, 28672), 8192, True),
    ("down", (8192,), 28672, False),
]
ROWS = [1, 8, 32, 128, 2048]
MODES: dict[str, tuple[str | None, float | None]] = {
    "W4A16": (None, None),
    "W4A4": ("nvfp4", 0.01),
    "W4A4 dynamic": ("nvfp4", None),
}
SIXTEEN, SCATTERED = "16-bit", "16-bit scattered"
VARIANTS = [*(f"{mode} {SIXTEEN}" for mode in MODES), f"W4A4 {SCATTERED}"]
BASELINE = "bf16"
REDUCED = {"all-reduce bf16": torch.bfloat16, "all-reduce fp32": torch.float32}
BLOCKS, REPLAYS = 4, 25

Inputs = dict[str, Tensor]


def packed(index: int, activations: str | None, scale: float | None) -> PackedLinear:
    """Random nibbles and integer scales up to 3, equal on all ranks. Sums with integers stay below 2^24 halves."""
    _, parts, k, _ = LAYERS[index]
    generator = torch.Generator("cuda").manual_seed(index)
    n = sum(parts)
    return PackedLinear(
        torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda", generator=generator),
        torch.randint(0, 4, (n, k // 16), device="cuda", generator=generator).float().to(torch.float8_e4m3fn),
        torch.tensor(0.7, device="cuda"),
        None if scale is None else torch.tensor(scale, device="cuda"),
        None,
        activations,
    )


def mode_of(name: str) -> tuple[str, bool, bool]:
    """The mode of a column, whether 16 bits are sent, and whether tokens are scattered."""
    mode, sent, _ = name.partition(f" {SIXTEEN}")
    return mode, bool(sent), name.endswith(SCATTERED)


def split(layer: torch.nn.Module, index: int, mesh: DeviceMesh | None, name: str) -> torch.nn.Module:
    if mesh is None:
        return layer
    _, parts, _, columns = LAYERS[index]
    mode, sixteen, scattered = mode_of(name)
    tokens = Shard(0) if scattered else None
    if mode == BASELINE:
        style = torch_parallel.ColwiseParallel() if columns else torch_parallel.RowwiseParallel()
    elif columns:
        style = parallel.ColwiseParallel(input_layouts=tokens, parts=parts)
    else:
        style = parallel.RowwiseParallel(output_layouts=tokens, reduce="bf16" if sixteen else "fp32")
    return torch_parallel.parallelize_module(layer, mesh, style, src_data_rank=None)


def block(name: str, mesh: DeviceMesh | None) -> dict[str, torch.nn.Module]:
    layers, mode = {}, mode_of(name)[0]
    for i, (each, parts, k, _) in enumerate(LAYERS):
        if mode == BASELINE:
            layer = torch.nn.Linear(k, sum(parts), bias=False, device="cuda", dtype=torch.bfloat16)
        else:
            layer = nvfp4.Linear.from_packed(packed(i, *MODES[mode]))
        layers[each] = split(layer, i, mesh, name)
    return layers


def inputs(m: int, mesh: DeviceMesh | None, integers: bool, scattered: bool = False) -> tuple[Inputs, Inputs]:
    """Whole inputs of the layers, and this rank's. Blocks of integers begin with 6, and so quantize to themselves."""
    generator = torch.Generator("cuda").manual_seed(m)
    whole = {}
    for name, _, k, _ in LAYERS:
        x = torch.randn(m, k, device="cuda", generator=generator)
        if integers:
            x = torch.randint(-4, 5, (m, k), device="cuda", generator=generator).float()
            x[:, ::16] = 6
        whole[name] = x.bfloat16()
    size, rank = (1, 0) if mesh is None else (mesh.size(), mesh.get_local_rank())
    mine = {}
    for name, _, _, columns in LAYERS:
        x = whole[name]
        if not columns or scattered:
            x = x.chunk(size, 0 if columns else 1)[rank].contiguous()
        mine[name] = x
    return whole, mine


def own(y: Tensor, index: int, mesh: DeviceMesh, scattered: bool) -> Tensor:
    """This rank's share of a whole layer's output."""
    _, parts, _, columns = LAYERS[index]
    if not columns:
        return y.chunk(mesh.size())[mesh.get_local_rank()] if scattered else y
    return torch.cat([part.chunk(mesh.size(), -1)[mesh.get_local_rank()] for part in y.split(parts, -1)], -1)


def differences(mode: str, mesh: DeviceMesh, layers: dict[str, torch.nn.Module], m: int) -> list[str]:
    """Lists what is wrong with the ranks' results, compared with one GPU's."""
    wrong = []
    base, sixteen, scattered = mode_of(mode)
    activations, scale = MODES[base]
    for i, (name, _, k, columns) in enumerate(LAYERS):
        rounded = sixteen and not columns
        if not rounded:
            given = packed(i, activations, None if scale is None else 1.0)
            exact = split(nvfp4.Linear.from_packed(given), i, mesh, mode)
            one = nvfp4.Linear.from_packed(given)
            whole, mine = inputs(m, mesh, True, scattered)
            if not torch.equal(exact(mine[name]), own(one(whole[name]), i, mesh, scattered)):
                wrong.append(f"{mode} {name} M={m}: other bits on integers")
        one = nvfp4.Linear.from_packed(packed(i, activations, scale))
        whole, mine = inputs(m, mesh, False, scattered)
        got, want = layers[name](mine[name]).double(), own(one(whole[name]), i, mesh, scattered).double()
        if not torch.equal(layers[name](mine[name]).double(), got):
            wrong.append(f"{mode} {name} M={m}: other bits in a second call")
        one.weight &= 0x77  # no signs: one(|x|) is the sum of absolute values
        sums = own(one(whole[name].abs()), i, mesh, scattered).double() * (1 + 2**-7)
        off = gamma(roundings("sm90", k) + 2) + gamma(roundings("sm90", k, ranks=1 if columns else mesh.size()) + 2)
        shares = mesh.size() * 2**-8 if rounded else 0.0
        off += shares / (1 - shares) * (1 + off)  # the bound of RowwiseParallel: shares are no more than these sums
        if not ((got - want).abs() <= off * sums + 2**-8 * (got.abs() + want.abs())).all():
            wrong.append(f"{mode} {name} M={m}: differs by more than the bound")
    return wrong


def run_block(layers: dict[str, torch.nn.Module], mine: Inputs) -> list[Tensor]:
    return [layer(mine[name]) for name, layer in layers.items()]


def reduce_twice(t: Tensor, group: dist.ProcessGroup) -> None:
    for _ in range(2):
        dist.all_reduce(t, group=group)


def times(call: Callable[[], object], stream: torch.cuda.Stream) -> list[float]:
    """Microseconds of a call by replays of a graph. torch.cuda.graph would capture on a stream of the GPU that it saw
    first: on any other GPU it needs one."""
    graph = torch.cuda.CUDAGraph()
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(BLOCKS):
            call()
    pairs = []
    for _ in range(REPLAYS + 5):
        pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        pair[0].record()
        graph.replay()
        pair[1].record()
        pairs.append(pair)
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e3 / BLOCKS for start, end in pairs[5:]]


def measure(mesh: DeviceMesh | None) -> tuple[dict[tuple[str, int], list[float]], list[str]]:
    """Times by mode and M on the mesh, or on this GPU alone, and what is wrong."""
    results: dict[tuple[str, int], list[float]] = {}
    wrong: list[str] = []
    stream = torch.cuda.Stream()
    if mesh is not None:
        for (mode, dtype), m in itertools.product(REDUCED.items(), ROWS):
            t = torch.ones(m, 8192, dtype=dtype, device="cuda")
            results[mode, m] = times(partial(reduce_twice, t, mesh.get_group()), stream)
    for mode in [*MODES, BASELINE, *(VARIANTS if mesh is not None else ())]:
        layers = block(mode, mesh)
        scattered = mode_of(mode)[2]
        for m in ROWS:
            if scattered and mesh is not None and m % mesh.size():
                continue  # from_local takes equal shares of tokens
            if mesh is not None and mode != BASELINE and m <= 128:
                wrong += differences(mode, mesh, layers, m)
            _, mine = inputs(m, mesh, False, scattered)
            results[mode, m] = times(partial(run_block, layers, mine), stream)
    return results, wrong


def run(rank: int, count: int, store: str, path: str | None) -> int:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=count)
    torch.set_grad_enabled(False)
    found: dict[int, dict[tuple[str, int], list[float]]] = {}
    wrong: list[str] = []
    for size in [size for size in (1, 2, 4, 8) if size <= count]:
        mesh = DeviceMesh("cuda", list(range(size))) if size > 1 else None
        if rank < size and (mesh is not None or rank == 0):
            found[size], more = measure(mesh)
            wrong += [f"{size} GPUs, rank {rank}: {text}" for text in more]
        dist.barrier(device_ids=[rank])
    for text in wrong:
        print(text, flush=True)
    if rank == 0:
        report(found, path)
    dist.destroy_process_group()
    return len(wrong)


def report(found: dict[int, dict[tuple[str, int], list[float]]], path: str | None) -> None:
    names = [*MODES, BASELINE, *REDUCED, *VARIANTS]
    columns = ["gpus", "m", *(f"{name} us" for name in names), "p10 and p90 of W4A16 us"]
    rows = []
    for size, results in found.items():
        for m in ROWS:
            figures = [results.get((name, m)) for name in names]
            medians = ["-" if times is None else f"{statistics.median(times):.1f}" for times in figures]
            spread = sorted(results["W4A16", m])
            tenth = len(spread) // 10
            rows.append([str(size), str(m), *medians, f"{spread[tenth]:.1f} {spread[-1 - tenth]:.1f}"])
    for row in [columns, *rows]:
        print("  ".join(f"{cell:>{max(len(name), 6)}}" for cell, name in zip(row, columns)), flush=True)
    if path is not None:
        recorded.write(Path(path), [columns, *rows], f"{max(found)} of {torch.cuda.get_device_name()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", metavar="FILE", help="write the table there")
    path = parser.parse_args().csv
    child = os.fork()  # counting may initialize CUDA, after which nothing can be forked
    if child == 0:
        os._exit(torch.cuda.device_count())
    count = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if count == 0:
        sys.exit("parallel.py: this machine has no NVIDIA GPU")
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(count):  # before anything initializes CUDA
            child = os.fork()
            if child == 0:
                failed = 1
                try:
                    failed = run(rank, count, f"{folder}/store", path)
                finally:
                    sys.stdout.flush()
                    os._exit(1 if failed else 0)
            children.append(child)
        failed = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(1 if any(failed) else 0)


if __name__ == "__main__":
    main()
