"""`nvfp4 bench --against humming`: what Humming is given and what is timed, with a fake of its layer, and messages.

The fake keeps the weights as they are and multiplies by dequantizing them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from small_bench import CPU, ON_THE_HOST, SETS, TINY, rejected, run, shrink
from torch import Tensor

import nvfp4
from nvfp4.__main__ import main
from nvfp4.bench import baselines, experts, humming, shapes
from nvfp4.bench.shapes import Shape
from nvfp4.cli.show import CommandError

NEED = humming.need


class Fake:
    """The state that all layers of a test share: `factor` makes results wrong, products with K = `failing` fail."""

    factor, failing, layers = 1.0, 0, 0

    def __init__(self) -> None:
        self.dtypes: set[torch.dtype] = set()


class HummingLayer(torch.nn.Module):
    fake: Fake

    def __init__(
        self,
        shape_n: int,
        shape_k: int,
        weight_config: dict[str, str],
        num_experts: int | None,
        torch_dtype: torch.dtype,
    ) -> None:
        super().__init__()
        assert weight_config == {"quant_method": "modelopt", "quant_algo": "nvfp4"}
        self.n, self.k, self.experts, self.dtype = shape_n, shape_k, num_experts, torch_dtype
        self.ready = False

    def load_from_tensors(self, tensors: dict[str, Tensor]) -> None:
        groups = () if self.experts is None else (self.experts,)
        weight, scale = tensors["weight"], tensors["weight_scale"]
        assert weight.shape == (*groups, self.n, self.k // 2) and weight.dtype == torch.uint8
        assert scale.shape == (*groups, self.n, self.k // 16) and scale.dtype == torch.float8_e4m3fn
        assert tensors["weight_scale_2"].shape == (groups or (1,))
        dense = nvfp4.dequantize(weight.contiguous(), scale.contiguous(), scale_layout="linear")
        self.weight, self.weight_scale_2 = dense.float(), tensors["weight_scale_2"]

    def transform(self) -> None:
        self.ready = True
        type(self).fake.layers += 1
        type(self).fake.dtypes.add(self.dtype)

    def forward(self, x: Tensor, expert_layout: Tensor | None = None, compute_config: Any = None) -> Tensor:
        assert self.ready and x.dtype == self.dtype
        if self.k == type(self).fake.failing:
            raise AssertionError
        if expert_layout is None:
            y = x.float() @ self.weight.T * self.weight_scale_2
        else:
            assert compute_config == {"gemm_type": "grouped_contiguous"}
            assert expert_layout.dtype == torch.int64 and len(expert_layout) == self.experts + 1
            assert expert_layout[0] == 0 and expert_layout[-1] == len(x)
            y = torch.cat([part.float() @ w.T for part, w in zip(x.split(expert_layout.diff().tolist()), self.weight)])
        return (y * type(self).fake.factor).to(self.dtype)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    module = ModuleType("humming.layer")
    module.HummingLayer = HummingLayer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "humming", ModuleType("humming"))
    monkeypatch.setitem(sys.modules, "humming.layer", module)
    HummingLayer.fake = Fake()
    monkeypatch.setattr(humming, "need", lambda device: None)
    shrink(monkeypatch)
    return HummingLayer.fake


def test_products(fake: Fake, tmp_path: Path) -> None:
    found = run("humming", tmp_path / "run.json", "--shapes", "3x64x96,1x32x128")
    assert found["command"].endswith("--against humming --repeat 3")
    for result in found["results"]:
        ours, theirs = result["implementations"]
        assert theirs["name"] == humming.NAME and not theirs["ours"] and theirs["ratio"]["single_call"]["median"] > 0
    assert fake.layers > 2  # a copy for each set of inputs


def test_layers(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "README_SHAPES", [Shape(3, 64, 96)])
    found = run("humming", tmp_path / "run.json", "--set", "readme")
    names = [entry["name"] for entry in found["results"][0]["implementations"]]
    assert names == ["nvfp4.Linear W4A4", "nvfp4.Linear W4A16", "torch bf16 linear", humming.NAME]


@pytest.mark.parametrize("dtype", baselines.DTYPES)
@pytest.mark.parametrize("arguments", [["--shapes", "3x64x96"], ["--set", "readme"]], ids=" ".join)
def test_dtype(arguments: list[str], dtype: str, fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer is made for it, and its forward method rejects activations of another."""
    monkeypatch.setattr(shapes, "README_SHAPES", [Shape(3, 64, 96)])
    found = run("humming", tmp_path / "run.json", *arguments, "--dtype", dtype)
    assert fake.dtypes == {getattr(torch, dtype)} and found["left_out"] == {}


@pytest.mark.usefixtures("fake")
def test_a_shape_that_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    HummingLayer.fake.failing = 96
    found = run("humming", tmp_path / "run.json", "--shapes", "3x64x96,1x32x128")
    assert [len(result["implementations"]) for result in found["results"]] == [1, 2]
    assert found["left_out"] == {humming.NAME: "at 3x64x96: an assertion fails in Humming"}
    assert "an assertion fails in Humming" in capsys.readouterr().out


@ON_THE_HOST
@pytest.mark.parametrize("dtype", baselines.DTYPES)
def test_experts(dtype: str, fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run("humming", tmp_path / "run.json", "--set", "experts", "--dtype", dtype, "--m", "3,5")
    names = [*experts.names_of(dtype), "gate and up", "gate and up, silu", f"{humming.NAME} gate and up"]
    for one in found["results"]:
        assert set(one["seconds"]) == {*names, "down", f"{humming.NAME} down"} and one["fails"] == {}
        assert all(one["product_ratios"][name]["median"] > 0 for name in experts.PRODUCTS)
    lines = capsys.readouterr().out.splitlines()
    assert fake.layers == 2 and fake.dtypes == {getattr(torch, dtype)}
    assert any(line.startswith("Products of sorted rows, medians") for line in lines)
    rows = [line.split() for line in lines if line.startswith("tiny")]
    assert [row[1] for row in rows] == ["3", "5", "3", "5"] and [len(row) for row in rows[2:]] == [9, 9]


@ON_THE_HOST
def test_experts_that_fail(fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rest is timed."""
    fake.failing = TINY.inner
    found = run("humming", tmp_path / "run.json", "--set", "experts", "--m", "1")
    one = found["results"][0]
    assert one["fails"] == {f"{humming.NAME} down": "an assertion fails in Humming"}
    assert set(one["product_ratios"]) == {"gate and up"} and f"{humming.NAME} down" not in one["seconds"]
    out = capsys.readouterr().out
    assert [line.split()[6:] for line in out.splitlines() if line.startswith("tiny")][1][0] == "fails"
    assert f"tiny: {humming.NAME} down: an assertion fails in Humming\n" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--shapes", "3x64x96"],
        ["--set", "readme"],
        pytest.param(["--set", "experts", "--m", "3"], marks=ON_THE_HOST),
    ],
)
def test_a_wrong_result_of_humming_is_not_timed(
    arguments: list[str], fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shapes, "README_SHAPES", [Shape(3, 64, 96)])
    fake.factor = 1.05
    assert main(["bench", *arguments, "--against", "humming", "--repeat", "3"]) == 1
    streams = capsys.readouterr()
    assert streams.out == "" and humming.NAME in streams.err and "differ by" in streams.err


@pytest.mark.parametrize("arguments", SETS)
def test_without_humming(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "humming", None)
    said = rejected("humming", arguments, capsys)
    assert "--against humming: needs humming-kernels (tested: 0.1.20) and nvcc" in said
    assert "cannot be imported: " in said


@pytest.mark.usefixtures("fake")
def test_without_a_gpu() -> None:
    with pytest.raises(CommandError, match="^--against humming: the device is cpu; Humming runs on a GPU alone$"):
        NEED(CPU)
