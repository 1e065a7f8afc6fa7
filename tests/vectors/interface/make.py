"""Writes what users of a build hold, into the files beside this one: its names, pickled layers, an exported program.

    names.json     signatures of the public functions, classes and methods, by module
    layers.pt      for each layer a pickle of the whole module, an input and the bits of its output
    program.pt2    one exported program that calls every operator, with its inputs; its results: program_results.pt

The build of commit 626ee214 made them, and later builds must read them. A module that did not exist then is added by
`python make.py --names MODULE ...`. All numbers are such that no sum rounds, so that every CPU kernel gives the same
bits.
"""

from __future__ import annotations

import importlib
import inspect
import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch

import nvfp4

HERE = Path(__file__).resolve().parent
OF_LAYERS = ("nvfp4.linear", "nvfp4.experts", "nvfp4.fp8", "nvfp4.packed", "nvfp4.parallel")
FORMATS = ("compressed_tensors", "modelopt", "torchao", "gguf", "comfy_kitchen")
MODULES = ("nvfp4", *OF_LAYERS, "nvfp4.reference", *(f"nvfp4.checkpoints.{name}" for name in FORMATS))
HOSTS = {"nvfp4.transformers": "transformers", "nvfp4.peft": "peft", "nvfp4.vllm": "vllm"}
M, N, K = 5, 7, 64


# ---- names ----


def signatures(module: str) -> dict[str, str]:
    """The signatures of a module's public functions, classes and methods, by their names in the module.

    A module of layers has its classes alone, a format `read` and `write`. A host's module has its classes as "class":
    their signatures are the host's.
    """
    owner = importlib.import_module(module)
    of_host = module in HOSTS
    found = {}
    listed = [*getattr(owner, "__all__", ()), *getattr(owner, "_LAZY", ())]
    for name in listed or sorted(vars(owner)):
        value = getattr(owner, name)
        if owner.__name__.startswith("nvfp4.checkpoints.") and name not in ("read", "write"):
            continue
        if name.startswith("_") or not (listed or getattr(value, "__module__", "") == module):
            continue
        if not inspect.isclass(value):
            if module not in OF_LAYERS:
                found[name] = signature(value)
            continue
        found[name] = "class" if of_host else signature(value)
        for key, member in vars(value).items():
            if not key.startswith("_") and not of_host:
                found[f"{name}.{key}"] = signature(member)
    return found


def signature(value: Any) -> str:
    if isinstance(value, (classmethod, staticmethod)):
        value = value.__func__
    try:
        return str(inspect.signature(value))
    except (TypeError, ValueError):
        return type(value).__name__


# ---- layers ----


def integers(*shape: int, most: int = 8) -> torch.Tensor:
    return torch.randint(-most, most + 1, shape).float()


def weights(*shape: int) -> torch.Tensor:
    """Values of e2m1, with a 6 in each block of 16, so that all blocks of the quantized weight have one scale."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])[torch.randint(8, shape)] * (torch.randint(2, shape) * 2 - 1)
    values.view(-1, 16)[:, 0] = 6
    return values


def dense_layer(n: int) -> torch.nn.Linear:
    layer = torch.nn.Linear(64, n)
    layer.weight.data, layer.bias.data = weights(n, 64), integers(n)
    return layer


def layers() -> dict[str, tuple[torch.nn.Module, torch.Tensor]]:
    """Modules with random weights, and an input for each."""
    dense = [dense_layer(n) for n in (32, 16, 16)]
    x = integers(5, 64)
    linear = nvfp4.Linear.from_linear
    fused = importlib.import_module("nvfp4.modules").FusedPart.join([linear(layer) for layer in dense])
    naming_of = importlib.import_module("nvfp4.checkpoints.experts").naming_of
    mixture = importlib.import_module("nvfp4.mixture")
    found: dict[str, tuple[torch.nn.Module, torch.Tensor]] = {
        "Linear W4A4": (linear(dense[0], "nvfp4", 0.01), x),
        "Linear W4A4 dynamic": (linear(dense[0]), x.bfloat16()),
        "Linear W4A16": (linear(dense[0], None), x.half()),
        "FusedPart": (torch.nn.ModuleList(fused), x),
    }
    fp8 = importlib.import_module("nvfp4.fp8")
    tensors = fp8.Fp8Tensors(integers(32, 64).to(torch.float8_e4m3fn), torch.tensor(0.5), activations=None)
    found["Fp8Linear"] = (nvfp4.Fp8Linear.from_packed(tensors), x)
    for name, activations in (("Experts W4A16", None), ("Experts W4A4", "nvfp4")):
        about = mixture.of_experts(nvfp4.Experts(3, 64, 32, "relu2", gated=False))
        old = torch.nn.Module()
        old.up_proj = torch.nn.Parameter(weights(3, 32, 64))
        old.down_proj = torch.nn.Parameter(weights(3, 64, 32))
        experts, _ = mixture.quantized(old, about, False, "amax6", activations)
        experts.naming = naming_of(about)
        found[name] = (experts, integers(6, 64, most=1).half())
    return found


def run(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The output of a module, or of each in a list side by side."""
    parts = module if isinstance(module, torch.nn.ModuleList) else [module]
    with torch.no_grad():
        return torch.cat([part(x) for part in parts], -1)


def pickled(module: torch.nn.Module) -> bytes:
    buffer = io.BytesIO()
    torch.save(module, buffer)
    return buffer.getvalue()


# ---- operators ----


def calls() -> dict[str, tuple[torch.Tensor, ...]]:
    """The tensors of a call of each operator; what else it takes stands in Program."""
    a, b = (torch.randint(0, 256, (rows, K // 2), dtype=torch.uint8) for rows in (M, N))
    scale_a, scale_b = (torch.randint(0x38, 0x48, (128, 4), dtype=torch.uint8) for _ in range(2))  # 1 to 4
    x, bias = integers(33, 48), integers(N)
    experts, scales = torch.stack([b, b]).view(2, 1, N, K // 2), scale_b.flatten().repeat(2)
    ends, rows = (torch.tensor(t, dtype=torch.int32) for t in ([2, 5], [4, 0, 3, 3, 1]))
    views = importlib.import_module("nvfp4.reference").generate_input(5, 7, 64, 1, 7)
    views = [views[i].view(torch.uint8) for i in (0, 1, 4, 5)] + [views[6]]
    ids, packed, blocks = torch.randint(-1, 6, (7, 4)), torch.zeros(33, 24).byte(), torch.zeros(33, 3).byte()
    routed = (integers(M, K).half(), experts, scales, ends, rows)
    return {
        "gemm": (a, b, scale_a, scale_b, bias),
        "gemm_out": (a, b, scale_a, scale_b, bias, torch.zeros(M, N)),
        "quantize_gemm": (integers(M, K), b, scale_b, bias),
        "quantize_gemm_out": (integers(M, K), b, scale_b, bias, torch.zeros(M, N)),
        "grouped_gemm": routed,
        "grouped_gemm_out": (*routed, torch.zeros(5, N)),
        "gated_grouped_gemm": routed,
        "gated_grouped_gemm_out": (*routed, torch.zeros(5, N)),
        "custom_kernel": tuple(views),
        "quantize": (x,),
        "dequantize": (a, scale_a),
        "rms_norm_quantize": (x, integers(48), integers(33, 48)),
        "rms_norm_quantize_out": (x, integers(48), integers(33, 48), packed, blocks),
        "silu_mul_quantize": (integers(33, 96),),
        "silu_mul_quantize_out": (integers(33, 96), packed, blocks),
        "grouped_quantize": (x, ends, rows),
        "grouped_quantize_out": (x, rows, packed[:5], blocks[:5], torch.zeros(1, dtype=torch.int32)),
        "amax_scale": (x,),
        "swizzle": (torch.randint(0, 0x7F, (33, 3), dtype=torch.uint8),),
        "unswizzle": (scale_a,),
        "gated": (x, x.flip(0)),
        "gated_out": (x, torch.zeros_like(x)),
        "gated_quantize": (x, x.flip(0), ends + 28),
        "gated_quantize_out": (x[:5], ends, packed[:5], blocks[:5], torch.zeros(2, dtype=torch.int32)),
        "moe_route": (ids,),
        "moe_combine": (x, ids.int(), torch.rand(7, 4)),
        "moe_combine_out": (x, ids.int(), torch.rand(7, 4), torch.zeros(7, 48)),
    }


class Program(torch.nn.Module):
    """Calls every operator. Returns its results, or what it has written, by its name."""

    def forward(self, given: dict[str, tuple[torch.Tensor, ...]]) -> dict[str, Any]:
        ops, none = torch.ops.nvfp4, torch.empty(0, dtype=torch.uint8)
        auto, quantized = ("128x4", "auto", 0), ("128x4", "amax6", "auto", 0)
        silu = (0.5, "silu", 2.0, 1.702, *auto)
        results: dict[str, Any] = {}

        def call(name: str, *arguments: Any, written: int = 0) -> None:
            arguments = tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in arguments)
            result = getattr(ops, name)(*arguments)
            results[name] = arguments[-written:] if written else result

        for out in ("", "_out"):
            a, b, scale_a, scale_b, bias, *c = given[f"gemm{out}"]
            last = c or [torch.bfloat16]
            call(f"gemm{out}", a, b, scale_a, scale_b, none, bias, none, 0.5, 0.0, *auto, *last, written=len(c))
            x, b, scale_b, bias, *c = given[f"quantize_gemm{out}"]
            last = c or [torch.float32]
            call(
                *(f"quantize_gemm{out}", x, b, scale_b, none, none, bias, none, 0.25, 1.0, 0.0, *quantized, *last),
                written=len(c),
            )
            x, b, scale_b, ends, rows, *c = given[f"grouped_gemm{out}"]
            last = c or [torch.float32]
            layer = (x, b, none, scale_b, ends, rows, none, none, none, none)
            call(f"grouped_gemm{out}", *layer, 0.5, *auto, *last, written=len(c))
            x, b, scale_b, ends, rows, *c = given[f"gated_grouped_gemm{out}"]
            layer = (x, b, none, scale_b, ends, rows, none, none, none, none)
            call(f"gated_grouped_gemm{out}", *layer, *silu, *(c or [torch.float32]), written=len(c))
        call("custom_kernel", *given["custom_kernel"], written=1)
        call("quantize", *given["quantize"], none, 0.5, "128x4", "four_over_six")
        call("dequantize", *given["dequantize"], none, 0.5, "128x4", torch.float16)
        x, weight, residual = given["rms_norm_quantize"]
        call("rms_norm_quantize", x, weight, residual, none, 0.5, 1e-6, "128x4")
        x, weight, residual, data, scale = given["rms_norm_quantize_out"]
        call("rms_norm_quantize_out", x, weight, residual, none, 0.5, 1e-6, "linear", data, scale, written=2)
        call("silu_mul_quantize", *given["silu_mul_quantize"], none, 0.5, "128x4")
        x, data, scale = given["silu_mul_quantize_out"]
        call("silu_mul_quantize_out", x, none, 0.5, "linear", data, scale, written=2)
        x, ends, rows = given["grouped_quantize"]
        call("grouped_quantize", x, none, ends, rows, 0.5, "128x4", "amax6")
        x, rows, *c = given["grouped_quantize_out"]
        call("grouped_quantize_out", x, none, none, rows, 0.5, "linear", "amax6", *c, written=3)
        call("amax_scale", *given["amax_scale"], "four_over_six")
        call("swizzle", *given["swizzle"])
        call("unswizzle", *given["unswizzle"], 5, 4)
        call("gated", *given["gated"], "swiglu", 2.0, 1.5, torch.float16)
        x, out_tensor = given["gated_out"]
        call("gated_out", x, none, "relu2", math.inf, 1.702, out_tensor, written=1)
        x, y, ends = given["gated_quantize"]
        call("gated_quantize", x, y, none, ends, 0.5, "swiglu", 2.0, 1.5, "128x4")
        x, ends, *c = given["gated_quantize_out"]
        call("gated_quantize_out", x, none, none, ends, 0.5, "relu2", math.inf, 1.702, "linear", *c, written=3)
        call("moe_route", *given["moe_route"], none, 5)
        call("moe_combine", *given["moe_combine"], torch.bfloat16)
        call("moe_combine_out", *given["moe_combine_out"], written=1)
        return results


def main() -> None:
    names = HERE / "names.json"
    if sys.argv[1:2] == ["--names"]:
        recorded = json.loads(names.read_text())
    else:
        torch.manual_seed(0)
        made = {name: (pickled(layer), x, run(layer, x)) for name, (layer, x) in layers().items()}
        torch.save(made, HERE / "layers.pt")
        given = calls()
        exported = torch.export.export(Program(), (given,))
        for node in exported.graph.nodes:
            node.meta.pop("stack_trace", None)  # which has paths of this machine
        torch.export.save(exported, HERE / "program.pt2")  # with its inputs
        torch.save(exported.module()(given), HERE / "program_results.pt")
        recorded = {module: signatures(module) for module in MODULES}
    recorded |= {module: signatures(module) for module in sys.argv[2:]}
    names.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
