"""Quantizers behind norms and activations, one by one and fused, of Llama-3.1-8B's layers in W4A4.

    python benchmarks/fused_quantizers.py OUT.csv [--commit COMMIT] [--rows 1,8,32,128] [--layers 16]

What is timed is a CUDA graph. A part is a norm (or silu(gate) * up) and the layer that reads it, for LAYERS sets of
weights, so that weights come from DRAM. us are those of one call:

    torch      the steps of transformers' modules, a kernel each; quantize_gemm
    compiled   the same steps in one kernel that torch.compile makes; quantize_gemm
    fused      rms_norm_quantize or gated_quantize with round_steps; gemm
    product    gemm alone, of an input that is quantized already

`differs` is the share of bytes of the fused quantizer that torch's steps do not give. A model is the decoder layers of
transformers with random weights and static input scales; a step has one token in each row, without a KV cache: as
quantize_model leaves it, with joined layers (fuse=True), and by fuse_quantizers. `quantizers` are us of a step in the
kernels that quantize, the fused ones included, and `others` in torch's kernels, by torch's profiler; products are the
rest. Its `differs` is the share of values that the first model does not give. Without a GPU small sizes run on the CPU,
which only shows that the program works.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import recorded
import torch
from torch import Tensor

import nvfp4
from nvfp4.layers.quantized_input import rms_norm

EPS, SCALE = 1e-5, 0.01
REPLAYS, ROUNDS = 10, 7
COLUMNS = ["what", "rows", "way", "us", "us least", "us most", "quantizers", "others", "differs", "torch", "date"]
ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
HIDDEN, INNER, QKV, HEADS, KV_HEADS = (4096, 14336, 6144, 32, 8) if ON_GPU else (64, 96, 128, 4, 2)


def timed(call: Callable[[], object], calls: int) -> dict[str, str]:
    """us of one of the calls that `call` makes: the median of rounds, the least and the most."""
    if ON_GPU:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        run, wait = graph.replay, torch.cuda.synchronize
    else:
        run, wait = call, lambda: None
    found = []
    for _ in range(ROUNDS):
        run()
        wait()
        if ON_GPU:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            for _ in range(REPLAYS):
                run()
            last.record()
            wait()
            found.append(first.elapsed_time(last) * 1e3 / REPLAYS / calls)
        else:
            start = time.perf_counter()
            run()
            found.append((time.perf_counter() - start) * 1e6 / calls)
    return {
        "us": f"{statistics.median(found):.2f}",
        "us least": f"{min(found):.2f}",
        "us most": f"{max(found):.2f}",
    }


# ---- a norm or an activation, and a layer ----


class Part:
    """A step before a layer of K x N, for several sets of weights."""

    def __init__(self, name: str, k: int, n: int, sets: int) -> None:
        self.name, self.k = name, k
        self.layers = []
        for _ in range(sets):
            layer = nvfp4.Linear(k, n, False, device=DEVICE, dtype=torch.bfloat16)
            layer.weight.random_(0, 256)
            layer.weight_scale.view(torch.uint8).random_(0x30, 0x40)
            layer.weight_global_scale.fill_(1e-3)
            layer.input_global_scale = torch.full((), SCALE, device=DEVICE)
            layer.update_alpha()
            self.layers.append(layer)
        self.norm = torch.rand(k, device=DEVICE).add(0.5).bfloat16()

    def inputs(self, rows: int) -> list[Tensor]:
        width = self.k if "norm" in self.name else 2 * self.k
        return [torch.randn(rows, width, device=DEVICE).bfloat16() for _ in self.layers]

    def steps(self, x: Tensor) -> Tensor:
        if "norm" in self.name:
            return rms_norm(x, self.norm, EPS)
        gate, up = x.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up

    def fused(self, x: Tensor) -> tuple[Tensor, ...]:
        if "norm" in self.name:
            return nvfp4.rms_norm_quantize(x, self.norm, EPS, global_scale=SCALE, round_steps=True)
        return nvfp4.gated_quantize(*x.chunk(2, -1), global_scale=SCALE, round_steps=True)

    def rows(self, rows: int) -> Iterator[dict[str, object]]:
        inputs = self.inputs(rows)
        quantized = [self.fused(x) for x in inputs]
        expected = [nvfp4.quantize(self.steps(x), global_scale=SCALE) for x in inputs]
        differs = [float((a != b).float().mean()) for (a, _), (b, _) in zip(quantized, expected)]
        torch._dynamo.reset()  # which would compile no more than 8 shapes
        compiled = torch.compile(self.steps, dynamic=False)

        def product(layer: nvfp4.Linear, data: Tensor, scale: Tensor) -> Tensor:
            given = (data, layer.weight, scale, layer.weight_scale)
            return nvfp4.gemm(*given, alpha=layer.alpha, out_dtype=torch.bfloat16)

        ways: dict[str, Callable[[int], object]] = {
            "torch": lambda i: self.layers[i](self.steps(inputs[i])),
            "compiled": lambda i: self.layers[i](compiled(inputs[i])),
            "fused": lambda i: product(self.layers[i], *self.fused(inputs[i])),
            "product": lambda i: product(self.layers[i], *quantized[i]),
        }
        for way, call in ways.items():
            try:
                call(0)
            except Exception as error:  # torch.compile needs Triton and a C compiler
                print(f"{self.name}, {rows} rows, {way}: {type(error).__name__}: {error}"[:300], flush=True)
                continue
            row = timed(lambda call=call: [call(i) for i in range(len(self.layers))], len(self.layers))
            more = {"differs": f"{statistics.mean(differs):.2e}"} if way == "fused" else {}
            yield {"what": self.name, "rows": rows, "way": way} | row | more


# ---- a model ----


def models(layers: int) -> Iterator[tuple[str, Any]]:
    """One model, changed in place from step to step."""
    import transformers

    from nvfp4.hosts.transformers.fuse_quantizers import fuse_quantizers, join

    config = transformers.LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        vocab_size=128,
        rms_norm_eps=EPS,
    )
    with torch.device(DEVICE):
        model = transformers.LlamaModel._from_config(config, dtype=torch.bfloat16).eval()
    samples = torch.randn(64, 1, HIDDEN, device=DEVICE).bfloat16()
    nvfp4.quantize_model(model, calibrate=lambda model: step(model, samples))
    yield "as quantized", model
    for layer in model.layers:
        for module, names in ((layer.self_attn, ("q_proj", "k_proj", "v_proj")), (layer.mlp, ("gate_proj", "up_proj"))):
            join(module, names, [getattr(module, name) for name in names])
    yield "joined", model
    assert len(fuse_quantizers(model)) == 3 * layers
    yield "fused quantizers", model


def step(model: Any, x: Tensor) -> Tensor:
    places = torch.zeros(1, 1, dtype=torch.long, device=x.device)
    rotations = model.rotary_emb(x, places)
    for layer in model.layers:
        x = layer(x, attention_mask=None, position_embeddings=rotations)
    return model.norm(x)


def kernels(call: Callable[[], object]) -> dict[str, str]:
    """us in kernels that quantize, and in torch's."""
    if not ON_GPU:
        return {}
    call()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    quantizers = others = 0.0
    for event in profile.events():
        if "nvfp4_" not in event.name:
            others += event.device_time
        elif "quantize" in event.name and "grouped_gemm" not in event.name:
            quantizers += event.device_time
    return {"quantizers": f"{quantizers:.1f}", "others": f"{others:.1f}"}


def of_models(layers: int, counts: list[int]) -> Iterator[dict[str, object]]:
    expected: dict[int, Tensor] = {}
    for way, model in models(layers):
        for rows in counts:
            x = torch.randn(rows, 1, HIDDEN, generator=torch.Generator().manual_seed(rows)).bfloat16().to(DEVICE)
            y = step(model, x)
            differs = float((y != expected.setdefault(rows, y)).float().mean())
            row = timed(lambda model=model, x=x: step(model, x), 1)
            try:
                row |= kernels(lambda model=model, x=x: step(model, x))
            except Exception as error:  # where torch's profiler cannot reach the GPU's counters
                print(f"profiler: {error}"[:300], flush=True)
            what = f"step of {layers} layers"
            yield {"what": what, "rows": rows, "way": way, "differs": f"{differs:.2e}"} | row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--commit", help="of nvfp4, where there is no git")
    parser.add_argument("--rows", default="1,8,32,128", help="numbers of rows, with commas")
    parser.add_argument("--layers", type=int, default=16 if ON_GPU else 2, help="of the model, and sets of weights")
    given = parser.parse_args()
    counts = [int(count) for count in given.rows.split(",")]
    parts = (("norm, qkv", HIDDEN, QKV), ("norm, gate_up", HIDDEN, 2 * INNER), ("silu * up, down", INNER, HIDDEN))
    card = torch.cuda.get_device_name() if ON_GPU else "none: a dry run"
    common = {"torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
    found: list[dict[str, object]] = []
    torch.manual_seed(0)
    with torch.no_grad():
        made = (Part(*part, given.layers) for part in parts)
        rows = itertools.chain(
            (row for part in made for count in counts for row in part.rows(count)), of_models(given.layers, counts)
        )
        for row in rows:
            found.append(row | common)
            print(row, flush=True)
            others = {"what": "norms, activations and quantizers of W4A4, us; differs: share of other bytes or values"}
            others |= {"commit": given.commit} if given.commit else {}
            recorded.write_rows(given.out, COLUMNS, found, card, **others)


if __name__ == "__main__":
    main()
