"""Files that producers and hosts write in other ways than the rest: without groups, beside a second file, in groups of
32, with a scale of the input."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_load_names import FP8, K, named, opt, packed, same, write
from torch import Tensor

import nvfp4
from nvfp4.checkpoints import comfy_kitchen, compressed_tensors, modelopt
from nvfp4.checkpoints.convert import convert
from nvfp4.checkpoints.inspect import inspect

safetensors = pytest.importorskip("safetensors.torch", reason="comes with the extra `test`")


def test_the_format_without_config_groups(tmp_path: Path, generator: torch.Generator) -> None:
    layer = packed(generator)
    config = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "ignore": ["b"]}
    tensors = named("a", compressed_tensors.write(layer)) | {"b.weight": torch.ones(2, 2)}
    checkpoint = nvfp4.load(write(tmp_path, tensors, config))
    assert same(checkpoint.layers["a"], layer) and [*checkpoint.tensors] == ["b.weight"]
    assert checkpoint.why == {"a": "format is nvfp4-pack-quantized, and there are no config_groups"}


def test_mistrals_consolidated_file_is_not_read(tmp_path: Path, generator: torch.Generator) -> None:
    layer = packed(generator)
    folder = write(tmp_path, named("model.a", modelopt.write(layer)), opt())
    safetensors.save_file(named("layers.a", modelopt.write(layer)), folder / "consolidated.safetensors")
    checkpoint = nvfp4.load(folder)
    assert [*checkpoint.layers] == ["model.a"]
    assert checkpoint.skipped["consolidated.safetensors"].startswith("has the tensors of model.safetensors by other")


def coarse(own: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Tensors of a format with block scales for 32 values, and with each scale twice, for 16."""
    codes = {name: t.view(torch.uint8)[..., ::2] for name, t in own.items() if name.endswith("weight_scale")}
    wide = {name: t.contiguous().view(FP8) for name, t in codes.items()}
    fine = {name: t.repeat_interleave(2, -1).view(FP8) for name, t in codes.items()}
    return own | wide, own | fine


@pytest.mark.parametrize("format_name", ["modelopt", "compressed-tensors"])
def test_groups_of_32(format_name: str, tmp_path: Path, generator: torch.Generator) -> None:
    format = {"modelopt": modelopt, "compressed-tensors": compressed_tensors}[format_name]
    wide, fine = coarse(named("a", format.write(packed(generator))))
    four = {"num_bits": 4, "type": "float", "group_size": 32, "scale_dtype": "torch.float8_e4m3fn"}
    group = {"targets": ["Linear"], "weights": four, "input_activations": four}
    config = {"quant_method": "compressed-tensors", "config_groups": {"a": group}}
    if format is modelopt:
        config = opt(group_size=32)
    checkpoint = nvfp4.load(write(tmp_path / "in", wide, config))
    expected = format.read({name.removeprefix("a."): t for name, t in fine.items()}, "nvfp4")
    assert same(checkpoint.layers["a"], expected) and [*checkpoint.coarse] == ["a"]
    assert not inspect(tmp_path / "in").damaged
    convert(tmp_path / "in", tmp_path / "out", "modelopt" if format is compressed_tensors else "compressed-tensors")
    again = nvfp4.load(tmp_path / "out")
    assert same(again.layers["a"], expected) and not again.coarse


def test_experts_in_groups_of_32(tmp_path: Path) -> None:
    """By transformers, which saves them in blocks of 16."""
    transformers = pytest.importorskip("transformers")
    importlib.import_module("nvfp4.transformers")
    from moe_models import IDS, Mixture  # noqa: PLC0415

    own = Mixture("qwen3-moe", "W4A16", tmp_path, moe_intermediate_size=64)
    config = {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "ignore": ["lm_head", "*.gate"]}
    logits = []
    for name, tensors in zip(("wide", "fine"), coarse(own.stored("modelopt")), strict=True):
        folder = write(tmp_path / name, tensors, None)
        content = own.config.to_dict() | {"quantization_config": config | {"group_size": 32 if name == "wide" else 16}}
        (folder / "config.json").write_text(json.dumps(content))
        for again in range(2):
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            with torch.no_grad():
                logits.append(model(IDS).logits)
            folder = tmp_path / f"{name} {again}"
            model.save_pretrained(folder)
    assert all(torch.equal(found, logits[0]) for found in logits)


def test_comfy_kitchen_with_a_scale_of_the_input(generator: torch.Generator) -> None:
    layer = replace(packed(generator, w4a4=False), pre_quant_scale=torch.rand(K, generator=generator) + 0.5)
    tensors = named("a", comfy_kitchen.write(layer))
    checkpoint = nvfp4.load(tensors, format="comfy-kitchen", activations=None)
    assert same(checkpoint.layers["a"], layer)
