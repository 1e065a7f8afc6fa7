"""`nvfp4 bench --set experts`: layers of experts of real models after routing, against torch's products.

Ours is the whole layer in W4A16: moe_route, gated_grouped_gemm, grouped_gemm of down, moe_combine; and in W4A4, with
quantize of the rows of all experts and gated_grouped_quantize. The baseline is the two products and the activation
alone, with the same weights in 16 bits: torch._grouped_mm on a GPU, on a CPU a loop over the experts that have rows.
The ratio is that of W4A16. With --against marlin vLLM's whole layer is another baseline. With --against humming a
second table has the products alone, of rows in the order of their experts: ours, and Humming's, which has no whole
layer. Activations and results of all are bfloat16, or float16 with --dtype.

Calls rotate through routings drawn at random, and nearly all weights are read from memory: caches hold little of them.
On a GPU they are in one CUDA graph, as the layers of a model would be, and a time is the graph's over their number.
The floor is the time in which a copy of this run reads the weights of the experts that are hit.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from nvfp4 import (
    dequantize,
    gated_grouped_gemm,
    gated_grouped_quantize,
    grouped_gemm,
    moe_combine,
    moe_route,
    quantize,
    swizzle,
    unswizzle,
)
from nvfp4.bench import humming, marlin, timing
from nvfp4.bench.baselines import DTYPES, OTHERS
from nvfp4.cli import machine, show

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SCALE_BYTES = (0x08, 0x18)  # e4m3 of 2^-6 up to below 2^-4: results stay near 1
AGREEMENT = 2e-2  # relative Frobenius norm: bf16 results round at 2^-9, between the products too
AGREEMENT_W4A4 = 0.25  # an input in NVFP4 is off by some 0.1, twice
ROUTINGS = 8
ROUNDS, CPU_ROUNDS = 50, 10
BUDGET_S, CPU_BUDGET_S = 2.0, 10.0  # of the slowest implementation for a model and a number of tokens
TOKENS, CPU_TOKENS = (1, 4, 16, 64, 128, 1024), (1, 4, 16)
DENSE = {dtype: f"torch {kind}" for dtype, kind in DTYPES.items()}
PRODUCTS = ("gate and up", "down")
ACTIVATED = "gate and up, silu"
Call = Callable[[], "Tensor"]


@dataclass(frozen=True)
class Model:
    name: str
    experts: int
    choices: int  # experts of a token
    hidden: int
    inner: int

    @property
    def values(self) -> int:
        """Weights of one expert."""
        return 3 * self.hidden * self.inner


MODELS = (
    Model("DeepSeek-V3", 256, 8, 7168, 2048),
    Model("Qwen3-30B-A3B", 128, 8, 2048, 768),
    Model("gpt-oss-120b", 128, 4, 2880, 2880),
    Model("Qwen3.6-35B-A3B", 256, 8, 2048, 512),
)


@dataclass
class Weights:
    """Stacks [E, P, N, K/2] with 128x4 scales, and the same in 16 bits, [E, P * N, K]."""

    data: tuple[Tensor, Tensor]
    scale: tuple[Tensor, Tensor]
    wide: tuple[Tensor, Tensor]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of activations and results."""
        return self.wide[0].dtype


@dataclass
class Routing:
    x: Tensor
    ids: Tensor
    weights: Tensor
    hit: int  # experts that have rows
    rows: Tensor
    ends: Tensor
    sizes: list[int]  # rows of each expert


@dataclass
class Baselines:
    """The baselines that --against names."""

    marlin: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None  # the layer
    humming: list[Callable[[Tensor, Tensor], Tensor]] | None = None  # the products


def run(args: argparse.Namespace) -> int:
    against = args.against or []
    taken = set(against) <= set(OTHERS)
    for option in ("backend", "csv", "plot", "markdown", *([] if taken else ["against"])):
        if getattr(args, option):
            raise show.CommandError(
                f"--set experts has its own baseline and table: --{option} does not go with it"
                + (f", but for --against {','.join(OTHERS)}" if option == "against" else "")
            )
    torch = machine.need_torch()
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    for kind in against:
        OTHERS[kind].need(device)
    on_gpu = device.type == "cuda"
    tokens, dtype = args.m or (TOKENS if on_gpu else CPU_TOKENS), args.dtype or "bfloat16"
    clock: timing.Clock = timing.DeviceClock(device) if on_gpu else timing.HostClock()
    rate, found, left_out = clock.copy_bandwidth(20), [], {}
    with show.progress(len(MODELS) * len(tokens)) as step:
        for model in MODELS:
            copies = 2 + 9 / 16 * (1 + 2 * len(against))  # each makes its own from one in another layout
            needed, free = int(model.experts * model.values * copies), machine.free_memory(device)
            if needed > free * 0.8:
                left_out[model.name] = f"needs {show.si(needed, 'B')}, {show.si(free, 'B')} are free"
                continue
            generator = torch.Generator(device).manual_seed(args.seed)
            weights = make_weights(model, device, generator, getattr(torch, dtype))
            theirs = make_baselines(against, weights)
            for count in tokens:
                step(f"bench {model.name}, {count} tokens")
                found.append(measure(model, weights, theirs, count, device, clock, rate, args.repeat, generator))
            del weights, theirs
    conditions = {
        "dtype": dtype,
        "hardware": machine.describe(device),
        "copy": show.si(rate, "B/s"),
        "calls": f"a CUDA graph of {ROUTINGS}" if on_gpu else "Python",
    }
    if args.json:
        text = json.dumps({"conditions": conditions, "left_out": left_out, "results": found}, indent=1)
        if args.json == "-":
            print(text)
            return 0
        from nvfp4.cli import files

        files.write_text(args.json, text + "\n")
    display(found, conditions, left_out)
    return 0


def display(found: list[dict[str, Any]], conditions: dict[str, str], left_out: dict[str, str]) -> None:
    dtype = conditions["dtype"]
    names = [name for name in found[0]["seconds"] if name not in of_products()] if found else [*names_of(dtype)]
    columns = ["<experts of", "tokens", "hit", "floor us", *(f"{name} us" for name in names), "ratio"]
    rows = []
    for one in found:
        times = [one["seconds"][name]["median"] for name in names]
        cells = [show.digits(t * 1e6) for t in (one["floor"], *times)]
        rows.append([one["model"], str(one["tokens"]), str(one["hit"]), *cells, f"{one['ratio']['median']:.2f}"])
    print("; ".join(f"{name}: {value}" for name, value in conditions.items()))
    show.table(f"Layers of experts, medians; a ratio above 1: W4A16 is faster than {DENSE[dtype]}", columns, rows)
    if any(ACTIVATED in one["seconds"] for one in found):
        display_products(found)
    for name, why in left_out.items():
        print(f"{name} is left out: {why}")


def display_products(found: list[dict[str, Any]]) -> None:
    names, rows = of_products(), []
    for one in found:
        times = [one["seconds"].get(name) for name in names]
        ratios = [one["product_ratios"].get(name) for name in PRODUCTS]
        rows.append(
            [one["model"], str(one["tokens"])]
            + [show.digits(time["median"] * 1e6) if time else "fails" for time in times]
            + [f"{ratio['median']:.2f}" if ratio else "-" for ratio in ratios]
        )
    columns = ["<experts of", "tokens", *(f"{name} us" for name in names), *(f"ratio, {name}" for name in PRODUCTS)]
    title = f"Products of sorted rows, medians; a ratio above 1: ours is faster than {humming.NAME}"
    show.table(title, columns, rows)
    failures = {f"{one['model']}: {name}: {why}": None for one in found for name, why in one["fails"].items()}
    print("".join(f"{failure}\n" for failure in failures), end="")


# ---- inputs ----


def make_weights(model: Model, device: torch.device, generator: torch.Generator, dtype: torch.dtype) -> Weights:
    gate_up = stack(model.experts, 2, model.inner, model.hidden, device, generator, dtype)
    down = stack(model.experts, 1, model.hidden, model.inner, device, generator, dtype)
    return Weights(*zip(gate_up, down))


def stack(
    experts: int, parts: int, rows: int, k: int, device: torch.device, generator: torch.Generator, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Random matrices, expert by expert: data, scales, and the values in 16 bits, which hold them exactly."""
    torch = machine.need_torch()
    data = torch.empty(experts, parts, rows, k // 2, dtype=torch.uint8, device=device)
    wide = torch.empty(experts, parts * rows, k, dtype=dtype, device=device)
    scales = []
    for e in range(experts):
        data[e] = torch.randint(0, 256, data[e].shape, dtype=torch.uint8, device=device, generator=generator)
        shape = (parts, rows, k // 16)
        linear = torch.randint(*SCALE_BYTES, shape, dtype=torch.uint8, device=device, generator=generator)
        linear = linear.view(torch.float8_e4m3fn)
        scales.append(swizzle(linear))
        wide[e] = dequantize(data[e], linear, scale_layout="linear", out_dtype=dtype).view(parts * rows, k)
    return data, torch.stack(scales), wide


def make_routing(
    model: Model, tokens: int, device: torch.device, generator: torch.Generator, dtype: torch.dtype
) -> Routing:
    """Each token's experts are drawn at random without repetition."""
    torch = machine.need_torch()
    x = torch.randn(tokens, model.hidden, device=device, generator=generator).to(dtype)
    weights, ids = torch.rand(tokens, model.experts, device=device, generator=generator).topk(model.choices, 1)
    rows, ends, _ = moe_route(ids, model.experts)
    sizes = torch.bincount(ids.flatten(), minlength=model.experts).tolist()
    return Routing(x, ids, weights / weights.sum(1, keepdim=True), sum(s > 0 for s in sizes), rows, ends, sizes)


def make_baselines(against: Sequence[str], weights: Weights) -> Baselines:
    made = Baselines()
    if not against:
        return made
    torch = machine.need_torch()
    scales = []
    for packed, swizzled in zip(weights.data, weights.scale):
        rows, columns = packed.shape[2], packed.shape[3] // 8
        linear = (torch.cat([unswizzle(part, rows, columns) for part in own]) for own in swizzled)
        scales.append(torch.stack([*linear]))
    if "marlin" in against:
        made.marlin = marlin.experts(weights.data, (scales[0], scales[1]), weights.dtype)
    if "humming" in against:
        stacks = [data.flatten(1, 2) for data in weights.data]
        made.humming = [humming.grouped(*of, weights.dtype) for of in zip(stacks, scales)]
    return made


def names_of(dtype: str) -> tuple[str, ...]:
    """The names of the layer's implementations."""
    return "layer", "route and combine", DENSE[dtype], "layer W4A4"


def of_products() -> list[str]:
    """The names of the products' implementations."""
    return [PRODUCTS[0], ACTIVATED, f"{humming.NAME} {PRODUCTS[0]}", PRODUCTS[1], f"{humming.NAME} {PRODUCTS[1]}"]


# ---- implementations ----


def layer(model: Model, weights: Weights, routing: Routing) -> Tensor:
    rows, ends, places = moe_route(routing.ids, model.experts)
    h = gated_grouped_gemm(routing.x, weights.data[0], None, weights.scale[0], ends, rows=rows, constant_b=True)
    y = grouped_gemm(h, weights.data[1], None, weights.scale[1], ends, constant_b=True, constant_ends=True)
    return moe_combine(y, places, routing.weights)


def layer_w4a4(model: Model, weights: Weights, routing: Routing) -> Tensor:
    """The same with global scales of 1, which serve rows of numbers near 1."""
    dtype = routing.x.dtype
    rows, ends, places = moe_route(routing.ids, model.experts)
    a, scale, first = quantize(routing.x, ends=ends, rows=rows)
    form = {"ends": ends, "scale_rows": first, "product_dtype": str(dtype).removeprefix("torch."), "constant_b": True}
    a, scale, first = gated_grouped_quantize(a, weights.data[0], scale, weights.scale[0], **form)
    form = {"ends": ends, "scale_rows": first, "out_dtype": dtype, "constant_b": True}
    y = grouped_gemm(a, weights.data[1], scale, weights.scale[1], **form)
    return moe_combine(y, places, routing.weights)


def route_and_combine(model: Model, y: Tensor, routing: Routing) -> Tensor:
    _, _, places = moe_route(routing.ids, model.experts)
    return moe_combine(y, places, routing.weights)


def baseline(model: Model, weights: Weights, routing: Routing) -> Tensor:
    """The experts' rows, in their order."""
    torch = machine.need_torch()
    x = routing.x[routing.rows]
    if x.is_cuda:
        y = torch._grouped_mm(x, weights.wide[0].transpose(1, 2), routing.ends)
        h = torch.nn.functional.silu(y[:, : model.inner]) * y[:, model.inner :]
        return torch._grouped_mm(h, weights.wide[1].transpose(1, 2), routing.ends)
    parts = []
    for e, own in enumerate(x.split(routing.sizes)):
        if len(own):
            y = own @ weights.wide[0][e].T
            h = torch.nn.functional.silu(y[:, : model.inner]) * y[:, model.inner :]
            parts.append(h @ weights.wide[1][e].T)
    return torch.cat(parts)


def product_calls(
    model: Model, weights: Weights, theirs: list[Callable[[Tensor, Tensor], Tensor]], routings: list[Routing]
) -> tuple[dict[str, list[Call]], dict[str, str]]:
    """The calls of each product by ours and by Humming, which agree; and why some of Humming fail."""
    torch = machine.need_torch()
    calls: dict[str, list[Call]] = {}
    fails: dict[str, str] = {}
    for i, name in enumerate(PRODUCTS):
        given = []
        for routing in routings:
            rows = routing.x[routing.rows]
            x = rows if i == 0 else torch.randn(len(rows), model.inner, device=rows.device).to(rows.dtype)
            begins = torch.cat([routing.ends.new_zeros(1), routing.ends]).long()
            given.append((x, routing.ends, begins))
        of = None, weights.scale[i]
        ours: list[Call] = [
            partial(grouped_gemm, x, weights.data[i], *of, ends, constant_b=True) for x, ends, _ in given
        ]
        calls[name] = ours
        if i == 0:
            calls[ACTIVATED] = [
                partial(gated_grouped_gemm, x, weights.data[i], *of, ends, constant_b=True) for x, ends, _ in given
            ]
        own = f"{humming.NAME} {name}"
        others: list[Call] = [partial(theirs[i], x, begins) for x, _, begins in given]
        try:
            for one, other in zip(ours, others):
                check_agreement(model, len(routings[0].x), other(), one(), name=own)
        except RuntimeError as error:
            fails[own] = str(error).partition("\n")[0]
        else:
            calls[own] = others
    return calls, fails


def measure(
    model: Model,
    weights: Weights,
    theirs: Baselines,
    tokens: int,
    device: torch.device,
    clock: timing.Clock,
    rate: float,
    repeat: int | None,
    generator: torch.Generator,
) -> dict[str, Any]:
    torch = machine.need_torch()
    on_gpu = device.type == "cuda"
    routings = [make_routing(model, tokens, device, generator, weights.dtype) for _ in range(ROUTINGS)]
    y = torch.randn(tokens * model.choices, model.hidden, device=device).to(weights.dtype)
    names = names_of(str(weights.dtype).removeprefix("torch."))
    calls: dict[str, list[Call]] = {
        names[0]: [partial(layer, model, weights, routing) for routing in routings],
        names[1]: [partial(route_and_combine, model, y, routing) for routing in routings],
        names[2]: [partial(baseline, model, weights, routing) for routing in routings],
        names[3]: [partial(layer_w4a4, model, weights, routing) for routing in routings],
    }
    if theirs.marlin is not None:
        calls[marlin.NAME] = [partial(theirs.marlin, each.x, each.weights, each.ids.int()) for each in routings]
    for i, routing in enumerate(routings):
        wanted = route_and_combine(model, calls[names[2]][i](), routing)
        check_agreement(model, tokens, calls[names[0]][i](), wanted)
        check_agreement(model, tokens, calls[names[3]][i](), wanted, AGREEMENT_W4A4)
        if theirs.marlin is not None:
            check_agreement(model, tokens, calls[marlin.NAME][i](), wanted, name=marlin.NAME)
    fails: dict[str, str] = {}
    if theirs.humming is not None:
        products, fails = product_calls(model, weights, theirs.humming, routings)
        calls |= products
    each_call = 1 / ROUTINGS if on_gpu else 1.0
    if on_gpu:
        calls = {name: [timing.captured(own)] for name, own in calls.items()}
    implementations = [
        timing.Implementation(name, partial(nth, own), "this", ours=not is_baseline(name), sets=len(own))
        for name, own in calls.items()
    ]
    with torch.cuda.device(device) if on_gpu else nullcontext():
        time_all(implementations, clock, repeat, on_gpu)
    hit = sum(routing.hit for routing in routings) / len(routings)
    spreads = {
        each.name: timing.Spread.of([seconds * each_call for seconds in each.back_to_back.values()])
        for each in implementations
    }
    by_name = {each.name: each for each in implementations}
    result = {
        "model": model.name,
        "tokens": tokens,
        "hit": round(hit, 1),
        "floor": hit * model.values * 9 / 16 / rate,
        "seconds": {name: vars(spread) for name, spread in spreads.items()},
        "ratio": vars(timing.ratio(implementations[2], implementations[0], "back_to_back")),
    }
    if theirs.humming is not None:
        result["fails"] = fails
        result["product_ratios"] = {
            name: vars(timing.ratio(other, by_name[name], "back_to_back"))
            for name in PRODUCTS
            if (other := by_name.get(f"{humming.NAME} {name}"))
        }
    return result


def is_baseline(name: str) -> bool:
    return name in (*DENSE.values(), marlin.NAME) or name.startswith(humming.NAME)


def time_all(
    implementations: list[timing.Implementation], clock: timing.Clock, repeat: int | None, on_gpu: bool
) -> None:
    rounds, budget = (ROUNDS, BUDGET_S) if on_gpu else (CPU_ROUNDS, CPU_BUDGET_S)
    timing.run_single_call_rounds(implementations, clock, timing.MIN_ROUNDS)
    timing.run_back_to_back_rounds(implementations, clock, repeat or rounds, budget)


def nth(calls: list[Call], i: int) -> Tensor:
    return calls[i % len(calls)]()


def check_agreement(
    model: Model, tokens: int, result: Tensor, wanted: Tensor, most: float = AGREEMENT, name: str = "our layer"
) -> None:
    error = float((result.float() - wanted.float()).norm() / wanted.float().norm())
    if not error <= most:
        raise show.Failure(f"{model.name}, {tokens} tokens: {name} and torch's differ by {error:.2g} of the norm")
