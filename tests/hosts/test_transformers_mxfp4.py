"""MXFP4 checkpoints in transformers: gpt-oss, ModelOpt and compressed-tensors; saved as NVFP4."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from mxfp4_files import GPT_OSS, MODELOPT, compressed_tensors, deepseek_v4, gpt_oss, llama, quantized
from tiny_models import IDS, logits

import nvfp4

transformers = pytest.importorskip("transformers")
from transformers import AutoModelForCausalLM, Mxfp4Config  # noqa: E402

import nvfp4.transformers  # noqa: E402


def generated(model: Any) -> torch.Tensor:
    return model.generate(IDS, attention_mask=torch.ones_like(IDS), max_new_tokens=16, do_sample=False)


def test_gpt_oss_generates_the_same_tokens(tmp_path: Path) -> None:
    """Beside the model that transformers dequantizes, which a user gets who asks for it."""
    # Always the same weights: with others, two logits may be so near that rounding chooses the token.
    torch.manual_seed(0)
    model = quantized(gpt_oss(), tmp_path / "in", GPT_OSS, torch.Generator().manual_seed(0))
    dequantize = Mxfp4Config(dequantize=True)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "in", quantization_config=dequantize, dtype=torch.float32)
    torch.testing.assert_close(logits(theirs), logits(model), rtol=0, atol=1e-3)  # transformers 5.17 rounds to bf16
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "in", dtype=torch.float32)
    experts = ours.model.layers[0].mlp.experts
    assert type(experts) is nvfp4.Experts and experts.mode == "W4A16"
    assert torch.equal(generated(ours), generated(model)) and torch.equal(generated(ours), generated(theirs))
    torch.testing.assert_close(logits(ours), logits(model), rtol=1e-5, atol=1e-5)

    ours.save_pretrained(tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "modelopt" and config["quant_algo"] == "W4A16_NVFP4"
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert torch.equal(logits(again), logits(ours))

    four = nvfp4.transformers.load(tmp_path / "in", activations="nvfp4", dtype=torch.float32)
    assert four.model.layers[0].mlp.experts.mode == "W4A4 dynamic"
    assert logits(four).isfinite().all() and not torch.equal(logits(four), logits(ours))


@pytest.mark.parametrize("kind", ["modelopt", "compressed-tensors", "compressed-tensors, MXFP4 inputs"])
def test_dense_models(kind: str, generator: torch.Generator, tmp_path: Path) -> None:
    config = MODELOPT if kind == "modelopt" else compressed_tensors(inputs="inputs" in kind)
    model = quantized(llama(), tmp_path / "in", config, generator)
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "in", dtype=torch.float32)
    layer = ours.model.layers[0].mlp.up_proj
    assert type(layer) is nvfp4.Linear and layer.activations == ("nvfp4" if "inputs" in kind else None)
    if layer.activations is None:
        torch.testing.assert_close(logits(ours), logits(model), rtol=1e-5, atol=1e-5)
    ours.save_pretrained(tmp_path / "out")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert torch.equal(logits(again), logits(ours))
    content = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    assert "mxfp4" not in json.dumps(content).lower()


def test_deepseek_v4(generator: torch.Generator, tmp_path: Path) -> None:
    """FP8 layers of blocks beside MXFP4 experts; `wo_a`, whose module is no plain linear layer, is dense."""
    model = deepseek_v4(tmp_path, generator)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = nvfp4.transformers.load(tmp_path, activations=None, dtype=torch.float32)
    assert sum("is FP8 in the checkpoint and a dense DeepseekV4GroupedL" in str(x.message) for x in caught) == 2
    read = transformers.DeepseekV4ForCausalLM(model.config).eval()
    checkpoint = nvfp4.load(tmp_path, read, activations=None)
    assert len(checkpoint.fp8) == 14 and len(checkpoint.mixtures) == 2 and len(checkpoint.skipped) == 2
    assert len(ours.hf_quantizer.skipped) == 2
    for own in (ours, read):
        layer = own.model.layers[0]
        assert type(layer.mlp.experts) is nvfp4.Experts and layer.mlp.experts.mode == "W4A16"
        assert type(layer.self_attn.q_a_proj) is nvfp4.Fp8Linear
        assert type(layer.self_attn.o_a_proj).__name__ == "DeepseekV4GroupedLinear"
        torch.testing.assert_close(logits(own), logits(model), rtol=1e-5, atol=1e-5)

    plain = nvfp4.transformers.load(tmp_path, dtype=torch.float32)
    assert plain.model.layers[0].self_attn.q_a_proj.activations == "block"
    plain.save_pretrained(tmp_path / "out")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert torch.equal(logits(again), logits(plain))
    config = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "compressed-tensors" and not again.hf_quantizer.skipped


def test_adapters_train(generator: torch.Generator, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    import nvfp4.peft  # noqa: F401, PLC0415

    torch.manual_seed(0)
    quantized(gpt_oss(), tmp_path, GPT_OSS, generator)
    ours = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    before = logits(ours)
    targets = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], target_parameters=targets, task_type="CAUSAL_LM")
    model = peft.get_peft_model(ours, config)
    assert torch.equal(logits(model), before)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1.0)
    first = None
    for _ in range(4):
        loss = model(IDS, labels=IDS).loss
        first = loss.item() if first is None else first
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert model(IDS, labels=IDS).loss.item() < first
