"""Names, options and folders that somebody made to harm the recognition of checkpoints: it ends soon, with an
nvfp4.Error."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import nvfp4
from nvfp4.checkpoints import claims, modelopt, names, parts
from nvfp4.checkpoints.fit import left_out
from nvfp4.checkpoints.inspect import inspect as inspect_checkpoint

SECONDS = 5.0  # of processor time


def layer(shape: tuple[int, ...] = (8, 8), scales: tuple[int, ...] = ()) -> dict[str, Tensor]:
    return {
        "a.weight": torch.zeros(shape, dtype=torch.uint8),
        "a.weight_scale": torch.ones(*shape[:-1], shape[-1] // 8).to(torch.float8_e4m3fn),
        "a.weight_scale_2": torch.ones(scales),
    }


def test_the_number_of_a_layer_has_a_limit() -> None:
    """int() raises ValueError for 5,000 digits."""
    model = torch.nn.Module()
    model.config = SimpleNamespace(num_hidden_layers=2, num_nextn_predict_layers=1)
    why = left_out(model)
    assert "predict further tokens" in str(why("layers.2.norm.weight"))
    assert why(f"layers.{'9' * 5000}.norm.weight") is None


def test_a_long_name() -> None:
    name = "a." * 600 + "weight"
    with pytest.raises(nvfp4.Error, match=r"has 1206 characters; a name must have at most 1024$"):
        nvfp4.load(layer() | {name: torch.zeros(2)})


def test_names_above_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "MAX_ABOVE", 1000)
    assert names.Modules([f"a.b.{i}.c" for i in range(50)]).above >= {"a", "a.b", "a.b.3"}
    with pytest.raises(nvfp4.Error, match=r"^modules: the names above them have more than 1000 characters$"):
        names.Modules([f"{i}." + "a." * 100 + "b" for i in range(50)])


def test_many_layers_whose_names_are_joined() -> None:
    """20,000 of them took a regular expression each, for each tensor."""
    tensors = {f"m.l{i}_weight_scale": torch.zeros(1) for i in range(20_000)}
    tensors |= {f"m.l{i}": torch.zeros(1) for i in range(20_000)}
    before = time.process_time()
    modules, _ = claims.grouped(tensors)
    assert time.process_time() - before < SECONDS
    assert len(modules) == 20_000 and set(modules["m.l7"]) == {"weight", "weight_scale"}


@pytest.mark.parametrize(
    ("local", "expected"),
    [
        ("up", ("up", "weight")),
        ("up_weight_scale", ("up_weight_scale", "weight")),  # which is a layer's name too
        ("up_weight_scale_2", ("up", "weight_scale_2")),
        ("up_weight_scale_weight_scale", ("up_weight_scale", "weight_scale")),
        ("up_bias", ("up", "bias")),
        ("up_norm", ("", "up_norm")),
        ("_bias", ("", "_bias")),
    ],
)
def test_the_longest_name_of_a_layer_counts(local: str, expected: tuple[str, str]) -> None:
    assert claims.divided(local, {"up", "up_weight_scale"}) == expected


def test_many_tensors_that_belong_to_no_layer() -> None:
    tensors = layer() | {f"b.{i}": torch.zeros(1, dtype=torch.int8) for i in range(20_000)}
    before = time.process_time()
    errors = inspect_checkpoint(tensors).errors
    assert time.process_time() - before < SECONDS
    assert len(errors) == 20_000 and errors["b.0"].endswith("beside it: 1, 2, 3, 4, 5, 6, ...")


def test_options_of_another_type(tmp_path: Path) -> None:
    for value in ([], {}):
        with pytest.raises(nvfp4.Error, match="^quant_algo: is None; must be one of"):
            modelopt.recipe({"moe_quant_algo": value})
        quantization = {"quant_method": "fp8", "moe_quant_algo": value}
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": quantization}))
        torch_file = pytest.importorskip("safetensors.torch", reason="comes with the extra `test`")
        torch_file.save_file(layer(), tmp_path / "model.safetensors")
        with pytest.raises(nvfp4.Error, match="quant_method is 'fp8'; must be"):
            nvfp4.load(tmp_path)


def test_values_of_options_are_abbreviated() -> None:
    long = "x" * 10**6
    configs: list[dict[str, Any]] = [
        {"quant_algo": long},
        {"quant_algo": "NVFP4", "group_size": long},
        {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "NVFP4", "option": long}}},
        {"quant_algo": "NVFP4", "has_zero_point": long},
    ]
    for config in configs:
        with pytest.raises(nvfp4.Error) as error:
            modelopt.recipe(config)
        assert len(str(error.value)) < 1000


def test_two_scales_where_rows_are_stored_otherwise() -> None:
    """Gate and up can have a scale each where rows of the tensors are rows of the layer; comfy-kitchen swizzles."""
    tensors = layer((2, 256, 32), (2, 2))
    assert len(nvfp4.load(tensors).experts["a"]) == 2
    with pytest.raises(nvfp4.Error, match=r"^a\[0\]\.weight_scale_2: shape is \[2\]; must have 1 element$"):
        nvfp4.load(tensors, format="comfy-kitchen")


@pytest.mark.parametrize("columns", [33, 36])
def test_a_layout_of_no_layer(columns: int) -> None:
    """A shape that both layouts could have, if K were a multiple of 16, is the layer's error."""
    tensors = layer((128, columns)) | {"a.weight_scale": torch.ones(128, 4).to(torch.float8_e4m3fn)}
    with pytest.raises(nvfp4.Error, match=r"^a\.weight: "):
        nvfp4.load(tensors)


def test_folders_of_many_files(tmp_path: Path) -> None:
    """The time grows with the number of files, not with its square."""
    for i in range(1, 1501):
        (tmp_path / f"model-{i:05}-of-01500.safetensors").touch()
        (tmp_path / f"other{i}.safetensors").touch()
        (tmp_path / f"other{i}.fp16.safetensors").touch()
    before = time.process_time()
    files, unread = parts.files_of(tmp_path)
    assert time.process_time() - before < SECONDS
    assert len(files) == 3000 and len(unread) == 1500


def test_parts_outside_of_the_folder(tmp_path: Path) -> None:
    """The caller names one part, which may be a link to anywhere; the others may not."""
    save_file = pytest.importorskip("safetensors.torch", reason="comes with the extra `test`").save_file
    folder, other = tmp_path / "folder", tmp_path / "other"
    for path in (folder, other):
        path.mkdir()
    first, second = (f"model-{i:05}-of-00002.safetensors" for i in (1, 2))
    save_file(layer(), other / first)
    save_file({"norm": torch.zeros(8)}, other / second)
    (folder / first).symlink_to(other / first)
    (folder / second).symlink_to(other / second)
    with pytest.raises(nvfp4.Error, match=f"{second}: is a link to .*, outside of"):
        nvfp4.load(folder / first)
    (folder / second).unlink()
    (other / second).rename(folder / second)
    assert set(nvfp4.load(folder / first).tensors) == {"norm"}


def test_a_warning_names_the_line_that_calls_load() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_labels=2
    )
    model = transformers.LlamaForSequenceClassification(config)
    gate = nvfp4.Linear.from_linear(torch.nn.Linear(32, 64, bias=False), activations=None).packed()
    tensors = {name: t for name, t in model.state_dict().items() if not name.startswith("score") and "gate" not in name}
    tensors |= {f"model.layers.0.mlp.gate_proj.{key}": t for key, t in modelopt.write(gate).items()}
    with pytest.warns(UserWarning, match="^score: is not in the checkpoint") as caught:
        nvfp4.load(tensors, model)
    assert {warning.filename for warning in caught} == {__file__}
