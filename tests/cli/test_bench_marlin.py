"""`nvfp4 bench --against marlin`: what vLLM is given and what is timed, with a fake of vLLM's functions, and messages.

The fake keeps the arguments' layouts: it repacks by copying and multiplies by dequantizing what it was given.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from small_bench import CPU, ON_THE_HOST, SETS, rejected, run, shrink
from torch import Tensor

import nvfp4
from nvfp4.__main__ import main
from nvfp4.bench import baselines, experts, marlin, shapes
from nvfp4.bench.shapes import Shape
from nvfp4.cli.show import CommandError

LAYERS = "vllm.model_executor.layers"
UTILS = f"{LAYERS}.quantization.utils"
NEED = marlin.need


class Vllm:
    """vLLM's functions; `factor` makes its results wrong."""

    def __init__(self) -> None:
        self.factor, self.linears, self.mixtures = 1.0, 0, 0

    def prepare_fp4_layer_for_marlin(self, layer: Any) -> None:
        n, k = layer.output_size_per_partition, layer.input_size_per_partition
        assert layer.weight.shape == (n, k // 2) and layer.weight_scale.shape == (n, k // 16)
        assert layer.weight.dtype == torch.uint8 and layer.weight_scale.dtype == torch.float8_e4m3fn
        assert layer.weight_global_scale.ndim == 0 and layer.params_dtype in (torch.float16, torch.bfloat16)
        layer.weight = torch.nn.Parameter(layer.weight.clone(), requires_grad=False)
        self.linears += 1

    def apply_fp4_marlin_linear(self, x: Tensor, weight, weight_scale, weight_global_scale, workspace, size_n, size_k):
        assert x.dtype in (torch.float16, torch.bfloat16) and x.shape[1] == size_k and workspace.dtype == torch.int32
        w = self.dense(weight, weight_scale) * weight_global_scale
        assert w.shape == (size_n, size_k)
        return (x.float() @ w.T * self.factor).to(x.dtype)

    @staticmethod
    def dense(data: Tensor, scale: Tensor) -> Tensor:
        return nvfp4.dequantize(data.contiguous(), scale, scale_layout="linear", out_dtype=torch.float32)

    def prepare_nvfp4_moe_layer_for_marlin(self, sizes: Any, w13, scale13, global13, w2, scale2, global2, gated):
        e, h, i = sizes.num_experts, sizes.hidden_size, sizes.intermediate_size_per_partition
        assert gated
        self.dtype = sizes.params_dtype
        assert w13.shape == (e, 2 * i, h // 2) and scale13.shape == (e, 2 * i, h // 16) and global13.shape == (e,)
        assert w2.shape == (e, h, i // 2) and scale2.shape == (e, h, i // 16) and global2.shape == (e,)
        self.mixtures += 1
        return w13.clone(), scale13, global13, w2.clone(), scale2, global2

    def fused_marlin_moe(self, x, w13, w2, bias1, bias2, scale13, scale2, weights, ids, kind, **more: Any) -> Tensor:
        assert bias1 is None and bias2 is None and kind == "e2m1" and x.dtype == self.dtype and ids.dtype == torch.int32
        assert more["global_num_experts"] == len(w13) == len(more["global_scale1"]) == len(more["global_scale2"])
        y = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for t, (own, chosen) in enumerate(zip(weights, ids.tolist())):
            for weight, e in zip(own, chosen):
                gate, up = (self.dense(w13[e], scale13[e]) @ x[t].float()).chunk(2)
                y[t] += weight * (self.dense(w2[e], scale2[e]) @ (torch.nn.functional.silu(gate) * up))
        return (y * self.factor).to(x.dtype)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Vllm:
    fake = Vllm()
    names = [".".join(UTILS.split(".")[:i]) for i in range(1, len(UTILS.split(".")) + 1)]
    for name in [*names, f"{LAYERS}.fused_moe", f"{LAYERS}.fused_moe.experts"]:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    workspace = {"marlin_make_workspace_new": lambda device, blocks=1: torch.zeros(blocks, dtype=torch.int32)}
    for name, functions in {
        f"{UTILS}.marlin_utils_fp4": {
            key: getattr(fake, key)
            for key in (
                "prepare_fp4_layer_for_marlin",
                "apply_fp4_marlin_linear",
                "prepare_nvfp4_moe_layer_for_marlin",
            )
        },
        f"{UTILS}.marlin_utils": workspace,
        f"{LAYERS}.fused_moe.experts.marlin_moe": {"fused_marlin_moe": fake.fused_marlin_moe},
        "vllm.scalar_type": {"scalar_types": SimpleNamespace(float4_e2m1f=SimpleNamespace(id="e2m1"))},
    }.items():
        module = ModuleType(name)
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, name, module)
        setattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2], module)
    monkeypatch.setattr(marlin, "need", lambda device: None)
    shrink(monkeypatch)
    return fake


def test_products(vllm: Vllm, tmp_path: Path) -> None:
    found = run("marlin", tmp_path / "run.json", "--shapes", "3x64x96,1x32x128")
    assert found["command"].endswith("--against marlin --repeat 3")
    for result in found["results"]:
        ours, theirs = result["implementations"]
        assert theirs["name"] == marlin.NAME and not theirs["ours"] and theirs["ratio"]["single_call"]["median"] > 0
    assert vllm.linears > 2  # a copy for each set of inputs


def test_layers(vllm: Vllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "README_SHAPES", [Shape(3, 64, 96)])
    found = run("marlin", tmp_path / "run.json", "--set", "readme")
    names = [entry["name"] for entry in found["results"][0]["implementations"]]
    assert names == ["nvfp4.Linear W4A4", "nvfp4.Linear W4A16", "torch bf16 linear", marlin.NAME]


@ON_THE_HOST
@pytest.mark.parametrize("dtype", baselines.DTYPES)
def test_experts(dtype: str, vllm: Vllm, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run("marlin", tmp_path / "run.json", "--set", "experts", "--dtype", dtype, "--m", "3,5")
    assert [list(one["seconds"]) for one in found["results"]] == [[*experts.names_of(dtype), marlin.NAME]] * 2
    assert vllm.dtype == getattr(torch, dtype)
    assert vllm.mixtures == 1 and f"{marlin.NAME} us" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--shapes", "3x64x96"],
        ["--set", "readme"],
        pytest.param(["--set", "experts", "--m", "3"], marks=ON_THE_HOST),
    ],
)
def test_a_wrong_result_of_marlin_is_not_timed(
    arguments: list[str], vllm: Vllm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shapes, "README_SHAPES", [Shape(3, 64, 96)])
    vllm.factor = 1.05
    assert main(["bench", *arguments, "--against", "marlin", "--repeat", "3"]) == 1
    streams = capsys.readouterr()
    assert streams.out == "" and f"{marlin.NAME}" in streams.err and "differ by" in streams.err


def test_bytes_of_an_input_set() -> None:
    """fp16 activations beside packed weights; every other baseline has both operands in one type."""
    shape = Shape(3, 64, 96)
    assert baselines.input_bytes("marlin", shape) == 3 * 96 * 2 + 64 * 96 // 2 + 64 * 96 // 16
    assert baselines.input_bytes("bf16", shape) == (3 + 64) * 96 * 2


def test_the_shapes_of_the_readme() -> None:
    """Each is a layer of a model; other rows of A repeat no layer."""
    found = shapes.SETS["readme"](None)
    assert len(found) == len(set(found)) >= 9 and all(shapes.layer_of(shape) for shape in found)
    layers = {(shape.n, shape.k) for shape in found}
    assert sorted(map(str, shapes.SETS["readme"]([2, 5]))) == sorted(f"{m}x{n}x{k}" for n, k in layers for m in (2, 5))


@pytest.mark.parametrize("arguments", SETS)
def test_without_vllm(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    said = rejected("marlin", arguments, capsys)
    assert "--against marlin: needs vLLM with its CUDA kernels" in said
    assert "cannot be imported: No module named 'vllm" in said


@pytest.mark.usefixtures("vllm")
def test_without_a_gpu() -> None:
    with pytest.raises(CommandError, match="^--against marlin: the device is cpu; Marlin runs on a GPU alone$"):
        NEED(CPU)
