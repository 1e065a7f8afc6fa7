"""Which of compressed-tensors' checkpoints from_pretrained gives to nvfp4, and which to transformers' own quantizer."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from test_transformers import FOUR, Source, layers_of, load, logits, state
from torch import nn

import nvfp4
from nvfp4.checkpoints import compressed_tensors

transformers = pytest.importorskip("transformers")
from transformers import AutoModelForCausalLM  # noqa: E402
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING  # noqa: E402

EIGHT = {"num_bits": 8, "type": "float", "strategy": "tensor"}
PACKED, NAIVE = "nvfp4-pack-quantized", "float-quantized"
CONFIGURATIONS: list[tuple[bool, dict[str, Any]]] = [
    (True, {"config_groups": {"a": {"weights": FOUR}}}),
    (True, {"config_groups": {"a": {"weights": FOUR}}, "format": PACKED}),
    (True, {"config_groups": {"a": {"weights": EIGHT}, "b": {"weights": FOUR}}}),
    (True, {"config_groups": {"a": {"weights": EIGHT, "format": NAIVE}, "b": {"format": PACKED}}, "format": "mixed"}),
    (True, {"config_groups": {"a": {"weights": EIGHT}}, "format": PACKED}),  # contradicts itself, and is reported
    (True, {"config_groups": None, "format": PACKED}),
    (True, {"config_groups": {"a": {"weights": FOUR | {"group_size": 32, "scale_dtype": "torch.uint8"}}}}),
    (True, {"config_groups": {"a": {"weights": FOUR | {"group_size": 32}}}, "format": "mxfp4-pack-quantized"}),
    (False, {"config_groups": {"a": {"weights": EIGHT}}}),
    (False, {"config_groups": {"a": {"weights": EIGHT}}, "format": NAIVE}),
    (False, {"config_groups": {"a": {"weights": FOUR | {"group_size": 32}}}}),
    (False, {"config_groups": {"a": {"weights": FOUR}}, "format": "dense"}),  # rounded, but not packed
    (False, {"config_groups": {"a": {"weights": FOUR, "format": NAIVE}}, "format": PACKED}),
    (False, {"config_groups": ["a"]}),
    (False, {"config_groups": {"a": 4, "b": {"weights": 4}}}),
    (False, {}),
]


@pytest.mark.parametrize("case", range(len(CONFIGURATIONS)))
def test_which_configurations_are_nvfp4(case: int) -> None:
    ours, config = CONFIGURATIONS[case]
    assert compressed_tensors.has_nvfp4(config) == ours


def test_fp8_without_experts_of_four_bits_stays_with_transformers() -> None:
    config = AUTO_QUANTIZATION_CONFIG_MAPPING["fp8"]
    for given, ours in (({}, False), ({"expert_dtype": "fp4"}, True), ({"moe_quant_algo": "NVFP4"}, True)):
        made = config.from_dict({"quant_method": "fp8", "weight_block_size": [128, 128]} | given)
        assert type(made).__name__ == "FineGrainedFP8Config"
        assert isinstance(made, nvfp4.transformers.FineGrainedFP8Config) == ours


def test_other_checkpoints_of_compressed_tensors_stay_with_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An FP8 checkpoint: the model that transformers makes without nvfp4."""
    pytest.importorskip("compressed_tensors")
    own = Source("llama", "W4A16")
    base = own.base
    tensors = {name: t.clone() for name, t in base.state_dict().items()}
    for name in own.layers:
        scale = tensors[f"{name}.weight"].abs().amax() / 448
        tensors |= {f"{name}.weight": (tensors[f"{name}.weight"] / scale).to(torch.float8_e4m3fn)}
        tensors |= {f"{name}.weight_scale": scale.reshape(1)}
    scheme = EIGHT | {"symmetric": True, "dynamic": False}
    groups = {"group_0": {"targets": ["Linear"], "weights": scheme, "input_activations": None}}
    more = {"config_groups": groups, "format": NAIVE, "quantization_status": "compressed"}
    folder = own.write(tmp_path, "compressed-tensors", tensors, **more)
    model = load(folder)
    with monkeypatch.context() as patch:
        patch.setitem(AUTO_QUANTIZATION_CONFIG_MAPPING, "compressed-tensors", transformers.CompressedTensorsConfig)
        expected = load(folder)
    assert type(model.hf_quantizer) is type(expected.hf_quantizer)
    assert type(model.hf_quantizer).__module__.startswith("transformers.")
    assert type(model.config.quantization_config) is transformers.CompressedTensorsConfig
    assert not layers_of(model) and state(model) == state(expected)
    assert torch.equal(logits(model), logits(expected))


def test_a_configuration_of_transformers_own_turns_the_quantizer_off(tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    quantized, folder = Source("llama", "W4A4").base, tmp_path
    nvfp4.quantize_model(quantized)
    quantized.save_pretrained(folder)
    ours = load(folder)
    for dequantize in (False, True):
        given = transformers.CompressedTensorsConfig(dequantize=dequantize)
        with pytest.warns(UserWarning, match="loading attributes"):
            model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=given)
        assert not layers_of(model) and type(model.model.layers[0].mlp.up_proj) is nn.Linear
        if not dequantize:
            assert type(model.config.quantization_config) is transformers.CompressedTensorsConfig
        difference = (logits(model).float() - logits(ours).float()).norm() / logits(ours).float().norm()
        assert 0 < difference < 0.5  # W4A4 quantizes inputs too
    with pytest.warns(UserWarning, match="The `quantization_config` from the model will be used.$"):
        model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=ours.config.quantization_config)
    assert state(model) == state(ours)


def test_another_packages_configuration_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(transformers.CompressedTensorsConfig):  # type: ignore[misc]
        pass

    monkeypatch.setitem(AUTO_QUANTIZATION_CONFIG_MAPPING, "compressed-tensors", Other)
    module = importlib.reload(nvfp4.transformers)
    assert AUTO_QUANTIZATION_CONFIG_MAPPING["compressed-tensors"] is Other
    monkeypatch.undo()
    module = importlib.reload(nvfp4.transformers)
    assert AUTO_QUANTIZATION_CONFIG_MAPPING["compressed-tensors"] is module.CompressedTensorsConfig


SAVE_AND_LOAD = """
import sys
import torch, transformers, nvfp4
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING as CONFIGS

sizes = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)
ids = torch.arange(9)[None]
folder = sys.argv[1]


def make():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=100, **sizes)).eval()


def logits(model):
    with torch.no_grad():
        return model(ids).logits


first = make()
nvfp4.quantize_model(first, calibrate=CALIBRATE)
first.save_pretrained(folder + "/first")
second = make()
nvfp4.load(folder + "/first", second)
second.save_pretrained(folder + "/second")
assert torch.equal(logits(first), logits(second))
assert "nvfp4.transformers" not in sys.modules
assert CONFIGS["compressed-tensors"] is transformers.CompressedTensorsConfig
assert "nvfp4-on-load" not in CONFIGS

import nvfp4.transformers

assert CONFIGS["compressed-tensors"] is nvfp4.transformers.CompressedTensorsConfig
assert "nvfp4-on-load" in CONFIGS
third = transformers.AutoModelForCausalLM.from_pretrained(folder + "/second")
assert torch.equal(logits(first), logits(third))
"""


@pytest.mark.parametrize("calibrate", ["None", "lambda model: model(ids)"])  # compressed-tensors, ModelOpt
def test_saving_needs_no_import_of_ours(calibrate: str, tmp_path: Path) -> None:
    """What is imported for save_pretrained replaces no reader of transformers; the user's import does."""
    program = SAVE_AND_LOAD.replace("CALIBRATE", calibrate)
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
