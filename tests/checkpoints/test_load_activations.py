"""`activations` of nvfp4.load decides before input scales are checked; they are errors only where they are used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_load_names import FOUR, fails, named, opt, packed, write
from torch import Tensor

import nvfp4
from nvfp4.checkpoints import comfy_kitchen, compressed_tensors, gguf, modelopt, torchao

pytest.importorskip("safetensors.torch", reason="comes with the extra `test`")

BAD = {"missing": None, "zero": 0.0, "infinite": torch.inf, "nan": torch.nan, "negative": -1.0, "vector": [1.0, 2.0]}
GROUP = {"targets": ["Linear"], "weights": FOUR, "input_activations": FOUR | {"dynamic": "local"}}
CONFIGS: dict[Any, dict[str, Any]] = {
    modelopt: opt(),
    compressed_tensors: {"quant_method": "compressed-tensors", "config_groups": {"g": GROUP}},
}


def changed(tensors: dict[str, Tensor], name: str, value: Any) -> dict[str, Tensor]:
    others = {key: t for key, t in tensors.items() if key != name}
    return others if value is None else others | {name: torch.tensor(value)}


@pytest.mark.parametrize("stack", [False, True])
@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("format", CONFIGS)
def test_input_scales_that_are_not_used(
    format: Any, kind: str, stack: bool, tmp_path: Path, generator: torch.Generator
) -> None:
    own = changed(format.write(packed(generator)), format.INPUT_SCALE, BAD[kind])
    if stack:
        own = {name: torch.stack([t, t]) for name, t in own.items()}
    folder = write(tmp_path, named("a", own), CONFIGS[format])

    def read(activations: str | None) -> Any:
        checkpoint = nvfp4.load(folder, activations=activations)
        return checkpoint.experts["a"][1] if stack else checkpoint.layers["a"]

    layer = read(None)
    assert layer.activations is None and layer.input_global_scale is None
    for activations in ("auto", "nvfp4"):
        if kind == "missing" and activations == "nvfp4":
            layer = read("nvfp4")
            assert layer.activations == "nvfp4" and layer.input_global_scale is None
        else:
            fails(
                format.INPUT_SCALE if kind == "missing" or not stack else "a[0]",
                folder,
                None,
                None,
                None,
                None,
                activations,
            )


@pytest.mark.parametrize("format", CONFIGS)
def test_a_stored_scale_that_the_configuration_does_not_use(
    format: Any, tmp_path: Path, generator: torch.Generator
) -> None:
    """W4A16 by the configuration; dynamic ones stay so."""
    config = json.loads(json.dumps(CONFIGS[format]))
    if format is modelopt:
        config["quant_algo"] = "W4A16_NVFP4"
    else:
        config["config_groups"]["g"]["input_activations"] = None
    folder = write(tmp_path, named("a", format.write(packed(generator))), config)
    fails(f"{format.INPUT_SCALE}: is there, but the layer is W4A16", folder)
    layer = nvfp4.load(folder, activations="nvfp4").layers["a"]
    assert layer.activations == "nvfp4" and layer.input_global_scale == 0.25
    assert nvfp4.load(folder, activations=None).layers["a"].activations is None
    if format is compressed_tensors:
        dynamic = {"input_activations": FOUR | {"dynamic": True}}
        config["config_groups"]["g"] |= dynamic
        tensors = changed(named("a", format.write(packed(generator))), f"a.{format.INPUT_SCALE}", [torch.inf])
        for activations in ("auto", "nvfp4"):
            layer = nvfp4.load(write(tmp_path, tensors, config), activations=activations).layers["a"]
            assert layer.activations == "nvfp4" and layer.input_global_scale is None


@pytest.mark.parametrize("bad", [0.0, torch.inf])
def test_files_that_describe_themselves(bad: float, tmp_path: Path, generator: torch.Generator) -> None:
    kind = {"_type": "QuantizeTensorToNVFP4Kwargs", "_data": {"use_dynamic_per_tensor_scale": False}}
    data = {"is_swizzled_scales": False, "act_quant_kwargs": kind}
    metadata = {"a.weight": json.dumps({"_type": "NVFP4Tensor", "_data": data}), "tensor_names": '["a.weight"]'}
    tensors = changed(torchao.write(packed(generator)), torchao.INPUT_SCALE, bad)
    folders = [write(tmp_path / "torchao", named("a", tensors), None, metadata)]
    own = comfy_kitchen.write(packed(generator, False)) | {"input_scale": torch.tensor(bad)}
    metadata = {"_quantization_metadata": json.dumps({"layers": {"a": {"format": "nvfp4"}}})}
    folders.append(write(tmp_path / "comfy", named("a", own), None, metadata))
    for folder in folders:
        assert nvfp4.load(folder, activations=None).layers["a"].activations is None
        for activations in ("auto", "nvfp4"):
            with pytest.raises(nvfp4.Error, match="scale: is (0|inf); must be positive and finite"):
                nvfp4.load(folder, activations=activations)


def test_gguf(tmp_path: Path, generator: torch.Generator) -> None:
    package = pytest.importorskip("gguf")
    writer = package.GGUFWriter(tmp_path / "model.gguf", "llama")
    layer = packed(generator)
    writer.add_tensor("a.weight", gguf.write(layer)["blocks"].numpy(), raw_dtype=package.GGMLQuantizationType.NVFP4)
    writer.add_tensor("a.input_scale", torch.tensor([0.0]).numpy())
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    assert nvfp4.load(tmp_path / "model.gguf", activations=None).layers["a"].activations is None
    fails("a.input_scale: is 0; must be positive and finite", tmp_path / "model.gguf")


def test_help_says_what_happens() -> None:
    text = " ".join((nvfp4.load.__doc__ or "").split())
    assert "An input scale that is missing, 0 or infinite is an error only where it is used" in text
