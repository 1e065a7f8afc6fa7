"""Layers and one step of diffusion transformers on a GPU: NVFP4 beside bf16, FP8, and weights dequantized at each call.

    python benchmarks/pictures.py [--json FILE] [--model]
    python benchmarks/pictures.py --from FILE --plot FILE      draws a run as SVG, without a GPU

The rows M are those of a picture or a video: 512, 4,608 (1024 x 1024 pixels and 512 words) and 32,760 (5 s of Wan).
Each time is the median of the calls of a CUDA graph, which take turns; inputs are bf16 and random.

    W4A4        nvfp4.Linear with a static input scale; quantizing the input is in the time
    W4A16       nvfp4.Linear with 16-bit inputs
    bf16        torch's linear layer
    dequantize  nvfp4.dequantize of the weight at each call, then torch's product: what ComfyUI does before Blackwell
    FP8         torch._scaled_mm with one scale a tensor; casting the input to float8_e4m3fn is in the time

--model makes a transformer of FLUX.1's size with random weights (needs diffusers), and times one step at 1024 x 1024.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from collections.abc import Callable
from typing import Any

import recorded
import torch

import nvfp4

LAYERS = {
    "FLUX.1 attention": (3072, 3072),
    "FLUX.1 feed-forward": (12288, 3072),
    "FLUX.1 single block, output": (3072, 15360),
    "Qwen-Image modulation": (18432, 3072),
    "Qwen-Image down": (3072, 12288),
    "Wan2.2 attention": (5120, 5120),
    "Wan2.2 feed-forward": (13824, 5120),
}
ROWS = (512, 4608, 32760)
ROUNDS = 7


def graph_of(call: Callable[[], Any], calls: int) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return graph


def times(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Microseconds a call."""
    graphs = {name: graph_of(call, repeats) for name, call in calls.items()}
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            found[name].append(begin.elapsed_time(end) * 1000 / repeats)
    return {name: statistics.median(own) for name, own in found.items()}


def layer(m: int, n: int, k: int) -> dict[str, float]:
    dense = torch.nn.Linear(k, n, bias=False, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    scale = float(x.abs().max()) / (448 * 6)
    w4a4 = nvfp4.Linear.from_linear(dense, activations="nvfp4", input_global_scale=scale)
    w4a16 = nvfp4.Linear.from_linear(dense, activations=None)
    fp8, one = torch.float8_e4m3fn, torch.ones((), device="cuda")
    weight = dense.weight.detach().to(fp8)

    def dequantized() -> torch.Tensor:
        own = nvfp4.dequantize(
            w4a16.weight, w4a16.weight_scale, global_scale=w4a16.weight_global_scale, out_dtype=torch.bfloat16
        )
        return torch.nn.functional.linear(x, own)

    calls = {
        "W4A4": lambda: w4a4(x),
        "W4A16": lambda: w4a16(x),
        "bf16": lambda: dense(x),
        "dequantize": dequantized,
        "FP8": lambda: torch._scaled_mm(x.to(fp8), weight.t(), one, one, out_dtype=torch.bfloat16),
    }
    with torch.no_grad():
        expected = torch.nn.functional.linear(x, dense.weight).float()
        for name, call in calls.items():
            error = (call().float() - expected).norm() / expected.norm()
            assert error < 0.2, f"{name}: error {error}"
        return times(calls, max(1, min(20, 10**13 // (2 * m * n * k))))


def flux(activations: str | None, quantized: bool) -> Any:
    """A transformer of FLUX.1's size with random weights. A layer is NVFP4 before the next one has memory."""
    from diffusers import FluxTransformer2DModel

    from nvfp4.hosts.diffusers.while_loading import kept_by
    from nvfp4.layers.traversal import places_of, put
    from nvfp4.quantizing.selection import find_linears

    with torch.device("meta"):
        model = FluxTransformer2DModel(guidance_embeds=True).to(torch.bfloat16)
    if quantized:
        linears, _ = find_linears(model, kept_by(model, "outside_blocks"))
        places = places_of(model, linears)
        for name, linear in linears.items():
            own = torch.nn.Linear(linear.in_features, linear.out_features, device="cuda", dtype=torch.bfloat16)
            put(places[name], nvfp4.Linear.from_linear(own, activations))
    for module in model.modules():
        for key, p in module._parameters.items():
            if p is not None and p.is_meta:
                own = torch.randn(p.shape, device="cuda", dtype=p.dtype) * 0.02
                module._parameters[key] = torch.nn.Parameter(own, requires_grad=False)
    return model.requires_grad_(False)


def step(activations: str | None, quantized: bool) -> dict[str, float]:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model = flux(activations, quantized)
    weights = torch.cuda.memory_allocated() - before
    new = {"device": "cuda", "dtype": torch.bfloat16}
    given = {
        "hidden_states": torch.randn(1, 4096, 64, **new),
        "encoder_hidden_states": torch.randn(1, 512, 4096, **new),
        "pooled_projections": torch.randn(1, 768, **new),
        "timestep": torch.tensor([0.5], **new),
        "guidance": torch.tensor([3.5], **new),
        "img_ids": torch.rand(4096, 3, device="cuda").round(),
        "txt_ids": torch.zeros(512, 3, device="cuda"),
    }
    with torch.no_grad():
        found = times({"step": lambda: model(**given).sample}, 1)["step"] / 1000
    peak = torch.cuda.max_memory_allocated() - before
    return {"weights_gb": weights / 1e9, "peak_gb": peak / 1e9, "step_ms": found}


def plot(run: dict[str, Any], rows: int) -> str:
    """Bars of bf16's time over that of each method: above 1 a method is faster."""
    import io

    import matplotlib.style
    from matplotlib.figure import Figure

    from nvfp4.bench.plot import COLOURS, STYLE, for_readers

    found = [own for own in run["layers"] if own["m"] == rows]
    methods = ("W4A4", "W4A16", "dequantize", "FP8")
    text = io.StringIO()
    with matplotlib.style.context(["default", STYLE]):
        figure = Figure(figsize=(10.5, 5.2), layout="constrained")
        axes = figure.subplots()
        for i, method in enumerate(methods):
            at = [place + (i - 1.5) * 0.2 for place in range(len(found))]
            axes.bar(at, [own["bf16"] / own[method] for own in found], 0.18, color=COLOURS[i][0], label=method)
        axes.axhline(1, color=STYLE["axes.edgecolor"], linewidth=1)
        axes.set_xticks(range(len(found)), [own["layer"].replace(" ", "\n", 2) for own in found])
        axes.set_title(f"Speed over bf16's, {rows:,} rows, {run['device']}")
        axes.grid(axis="y")
        axes.legend(ncols=len(methods), loc="upper left")
        axes.set_ylim(0, 2.1)
        figure.savefig(text, format="svg", metadata={"Date": None})
    return for_readers(text.getvalue())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--model", action="store_true", help="time one step of a whole model too")
    parser.add_argument("--from", dest="stored", help="take the figures of this file instead of measuring")
    parser.add_argument("--plot", help="write a plot of 4,608 rows to this file")
    args = parser.parse_args()
    if args.stored:
        with open(args.stored, encoding="utf-8") as file:
            run = json.load(file)
    else:
        run = {"commit": recorded.commit(), "command": recorded.command()} | measured(args.model)
    for path, text in (
        (args.json, json.dumps(run, indent=1) + "\n"),
        (args.plot, plot(run, 4608) if args.plot else ""),
    ):
        if path:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)


def measured(with_model: bool) -> dict[str, Any]:
    run: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "layers": []}
    print(run["device"])
    for name, (n, k) in LAYERS.items():
        for m in ROWS:
            found = layer(m, n, k)
            run["layers"].append({"layer": name, "m": m, "n": n, "k": k, **found})
            shown = "  ".join(f"{key} {value:.1f}" for key, value in found.items())
            print(f"{name:28} {m:6} x {n:5} x {k:5}  {shown}", flush=True)
    if with_model:
        for name, given in {"bf16": (None, False), "W4A16": (None, True), "W4A4": ("nvfp4", True)}.items():
            run[name] = step(*given)
            print(f"FLUX.1 {name:6}", {key: round(value, 2) for key, value in run[name].items()}, flush=True)
    return run


if __name__ == "__main__":
    main()
