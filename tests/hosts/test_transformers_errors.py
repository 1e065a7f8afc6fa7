"""Checkpoints and calls that nvfp4.transformers rejects, by messages that name what is wrong."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_transformers import FOUR, SIZES, Source, load, quantization
from test_transformers import source as source
from torch import Tensor

import nvfp4
from nvfp4.checkpoints import modelopt

pytest.importorskip("transformers")
import transformers  # noqa: E402

import nvfp4.transformers  # noqa: E402
from nvfp4.hosts.transformers import library, quantizers  # noqa: E402

Tensors = dict[str, Tensor]
UP = "model.layers.1.mlp.up_proj"


def without(*names: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith(names)]:
            del tensors[name]

    return change


def changed(name: str, function: Callable[[Tensor], Tensor]) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[f"{UP}.{name}"] = function(tensors[f"{UP}.{name}"]).contiguous()

    return change


def others_dense(tensors: Tensors) -> None:
    """Replaces all NVFP4 layers but UP."""
    for name, t in [*tensors.items()]:
        if UP not in name and "scale" in name:
            del tensors[name]
        elif UP not in name and t.dtype == torch.uint8:
            tensors[name] = torch.zeros(t.shape[0], t.shape[1] * 2)


def int8(tensors: Tensors) -> None:
    without(UP)(tensors)
    tensors |= {f"{UP}.weight": torch.zeros(96, 64, dtype=torch.int8), f"{UP}.weight_scale": torch.ones(96)}


MIXED = {"quantized_layers": {UP: {"quant_algo": "INT8_SQ"}}, "quant_algo": "MIXED_PRECISION"}
DAMAGE: dict[str, tuple[Callable[[Tensors], None], dict[str, Any]]] = {
    "quantization_config.quant_algo: is 'FP8'; must be one of NVFP4, W4A16_NVFP4, NVFP4_AWQ, MXFP4, mxfp4, "
    "W4A8_MXFP4_FP8, MIXED_PRECISION": (
        without("none"),
        {"quant_algo": "FP8"},
    ),
    f"{UP}: is NVFP4 by the configuration but not in the checkpoint": (without(UP), {}),
    f"{UP}.weight_scale: is missing; a layer of modelopt has weight, weight_scale, weight_scale_2": (
        lambda tensors: tensors.pop(f"{UP}.weight_scale"),
        {},
    ),
    f"{UP}.input_scale: is missing; the configuration says W4A4; activations=None reads the layer without it, and "
    'activations="nvfp4" with a scale that each call computes': (without(f"{UP}.input_scale"), {}),
    f"{UP}: is 96 x 32 (N x K); must be 96 x 64 for the model": (
        lambda tensors: (
            changed("weight", lambda t: t[:, :16])(tensors),
            changed("weight_scale", lambda t: t[:, :2])(tensors),
        ),
        {},
    ),
    f"{UP}.weight_scale: shape is [96, 2]; must be [96, 4], or group_size must be 32": (
        changed("weight_scale", lambda t: t[:, :2]),
        {},
    ),
    f"{UP}.weight_scale: is nan at row 0, column 0 (384 of 384 are such); must be finite": (
        changed("weight_scale", lambda t: torch.full_like(t.float(), torch.nan).to(t.dtype)),
        {},
    ),
    f"{UP}.weight_scale_2: dtype is bfloat16; must be float32": (changed("weight_scale_2", Tensor.bfloat16), {}),
    f"{UP}.weight_scale_2: is inf; must be positive and finite": (changed("weight_scale_2", lambda t: t / 0), {}),
    f"{UP}.pre_quant_scale: shape is [32]; must be [64]": (
        lambda tensors: tensors.update({f"{UP}.pre_quant_scale": torch.ones(32)}),
        {},
    ),
    f"{UP}: cannot be put into the model: is quantized in another way: INT8_SQ": (
        lambda tensors: (int8(tensors), others_dense(tensors)),
        MIXED,
    ),
    "model.layers.7.fc: is a layer of the checkpoint but no module of the model": (
        lambda tensors: tensors.update(
            {f"model.layers.7.fc{n.removeprefix(UP)}": t.clone() for n, t in tensors.items() if n.startswith(UP)}
        ),
        {},
    ),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damage_is_named(message: str, source: Callable[..., Source], tmp_path: Path) -> None:
    own = source()
    tensors = own.tensors("modelopt")
    change, config = DAMAGE[message]
    change(tensors)
    with pytest.raises(nvfp4.Error) as error:
        load(own.write(tmp_path, "modelopt", tensors, **config))
    assert str(error.value) == message


def test_damage_of_compressed_tensors_is_named(source: Callable[..., Source], tmp_path: Path) -> None:
    """By from_pretrained and by nvfp4.transformers.load alike."""
    own = source()
    changes: list[tuple[str, Callable[[Tensors], None], dict[str, Any]]] = [
        (
            f"{UP}.weight_scale: shape is [96, 2]; must be [96, 4], or group_size must be 32",
            changed("weight_scale", lambda t: t[:, :2]),
            {},
        ),
        (f"{UP}.weight_global_scale: is 0; must be positive", changed("weight_global_scale", lambda t: t * 0), {}),
        (
            "quantization_config.transform_config",
            without("none"),
            {"transform_config": {"config_groups": {"a": {"apply": [{"location": "input"}]}}}},
        ),
        (
            "quantization_config.config_groups.a.weights.symmetric: is False; must be true",
            without("none"),
            {"config_groups": {"a": {"targets": ["Linear"], "weights": FOUR | {"symmetric": False}}}},
        ),
    ]
    for message, change, config in changes:
        tensors = own.tensors("compressed-tensors")
        change(tensors)
        folder = own.write(tmp_path, "compressed-tensors", tensors, **config)
        found = []
        for read in (load, nvfp4.transformers.load):
            with pytest.raises(nvfp4.Error) as error:
                read(folder)
            found.append(str(error.value))
        assert found[0] == found[1] and found[0].startswith(message), found


def test_experts_without_all_layers_are_rejected(source: Callable[..., Source], tmp_path: Path) -> None:
    own = source(mode="W4A16")
    more = {"num_local_experts": 2, "num_hidden_layers": 1}
    config = transformers.MixtralConfig(**SIZES | more, architectures=["MixtralForCausalLM"]).to_dict()
    expert = "model.layers.0.block_sparse_moe.experts.0.w1"
    tensors = {f"{expert}.{key}": t for key, t in modelopt.write(own.layers[UP]).items()}
    own.write(tmp_path, "modelopt", tensors)
    config["quantization_config"] = quantization("modelopt", "W4A16", [])
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(nvfp4.Error, match=rf"^{expert[:-5]}: has no layers of up; must have gate, up, down$"):
        load(tmp_path)


def test_other_rejected_calls(source: Callable[..., Source], tmp_path: Path) -> None:
    own = source()
    folder = own.write(tmp_path / "first", "modelopt")
    with pytest.raises(nvfp4.Error, match=r"^dtype: is float64; must be float16, bfloat16 or float32$"):
        load(folder, dtype=torch.float64)
    (folder / "model.safetensors").write_bytes(b"GGUF")
    with pytest.raises(Exception, match="model.safetensors|[Hh]eader"):  # transformers reads it before us
        load(folder)
    torch.save(own.tensors("modelopt"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(nvfp4.Error, match=r"pytorch_model.bin: is no \*.safetensors file$"):
        load(folder, use_safetensors=False)
    other = own.write(tmp_path / "other", "modelopt", quant_method="gptq")
    with pytest.raises(
        nvfp4.Error, match="other: quant_method is 'gptq'; must be one of compressed-tensors, modelopt, mxfp4$"
    ):
        nvfp4.transformers.load(other)
    with pytest.raises(ValueError, match="does require the model to be pre-quantized"):
        own.base.save_pretrained(tmp_path / "dense")
        config = nvfp4.transformers.ModelOptConfig(**quantization("modelopt", "W4A4", []))
        load(tmp_path / "dense", quantization_config=config)


def test_a_version_that_lacks_something_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a version alone is no error."""
    package = sys.modules["transformers"]  # its own code replaces it at times
    monkeypatch.setattr(package, "__version__", "6.1.0")
    module = importlib.reload(quantizers)
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

    assert AUTO_QUANTIZER_MAPPING["modelopt"] is module.ModelOptQuantizer
    monkeypatch.setattr(package, "__version__", "4.57.1")
    monkeypatch.delattr(package.quantizers, "register_quantizer")
    message = r"^transformers: is version 4.57.1, which lacks .*register_quantizer.*; tested are 5.17.0 and 5.24.0$"
    with pytest.raises(ImportError, match=message):
        importlib.reload(library)
