"""Classes of transformers that read, initialize or resize linear layers themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import IDS, SIZES, logits
from torch import Tensor, nn

import nvfp4
from nvfp4.checkpoints import modelopt

safetensors = pytest.importorskip("safetensors.torch", reason="comes with transformers")
transformers = pytest.importorskip("transformers")
import nvfp4.transformers  # noqa: E402


@pytest.mark.parametrize("activations", [None, "nvfp4"])  # saved as ModelOpt and as compressed-tensors
@pytest.mark.parametrize("head", ["SequenceClassification", "MaskedLM"])
def test_a_class_that_initializes_its_layers_itself(head: str, activations: str | None, tmp_path: Path) -> None:
    """ModernBERT's _init_weights takes weight and bias of the layers of each module, also of those that are loaded."""
    ids = {f"{name}_token_id": i for i, name in enumerate(("pad", "bos", "eos", "cls", "sep"))}
    config = transformers.ModernBertConfig(**SIZES | ids)
    model = getattr(transformers, f"ModernBertFor{head}")(config).eval()
    nvfp4.quantize_model(model, activations=activations)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, dtype=torch.float32)
    format_name = again.config.quantization_config.format.NAME
    assert format_name == ("modelopt" if activations is None else "compressed-tensors")
    expected, found = model.state_dict(), again.state_dict()
    assert expected.keys() == found.keys()
    for name, t in expected.items():
        assert torch.equal(t.reshape(-1).view(torch.uint8), found[name].reshape(-1).view(torch.uint8)), name


def umt5() -> tuple[Any, Callable[[Any], Tensor]]:
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, "vocab_size": 128}
    model = transformers.UMT5ForConditionalGeneration(transformers.UMT5Config(**sizes, decoder_start_token_id=0))
    return model.eval(), lambda model: model(input_ids=IDS, decoder_input_ids=IDS).logits


def mamba() -> tuple[Any, Callable[[Any], Tensor]]:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 128, "state_size": 16, "time_step_rank": 16}
    model = transformers.MambaForCausalLM(transformers.MambaConfig(**sizes))
    return model.eval(), lambda model: model(IDS).logits


@pytest.mark.parametrize(("make", "layers"), [(umt5, (".wo",)), (mamba, (".dt_proj", ".x_proj"))])
def test_layers_whose_weight_a_class_reads_are_dense(make: Any, layers: tuple[str, ...], tmp_path: Path) -> None:
    """For its dtype, or for a product of its own: after quantize_model, and where a file has them packed."""
    model, call = make()
    report = nvfp4.quantize_model(model, activations=None)
    names = [name for name, _ in model.named_modules() if name.endswith(layers)]
    assert names and all("reads its weight itself" in report.skipped[name] for name in names)
    with torch.no_grad():
        expected = call(model)
    assert expected.isfinite().all()
    model.save_pretrained(tmp_path / "in")
    file, config = tmp_path / "in" / "model.safetensors", tmp_path / "in" / "config.json"
    tensors, content = safetensors.load_file(file), json.loads(config.read_text())
    for name in names:
        linear = nn.Linear(*tensors[f"{name}.weight"].shape[::-1], bias=False)
        linear.weight.data = tensors.pop(f"{name}.weight")
        packed = nvfp4.Linear.from_linear(linear, None).packed()
        tensors |= {f"{name}.{key}": t.contiguous() for key, t in modelopt.write(packed).items()}
    content["quantization_config"]["ignore"] = [n for n in content["quantization_config"]["ignore"] if n not in names]
    safetensors.save_file(tensors, file, {"format": "pt"})
    config.write_text(json.dumps(content))
    with pytest.warns(UserWarning, match="reads its weight itself"):
        ours = type(model).from_pretrained(tmp_path / "in", dtype=torch.float32)
    other, _ = make()
    checkpoint = nvfp4.load(tmp_path / "in", other)
    assert all("reads its weight itself" in checkpoint.skipped[name] for name in names)
    with torch.no_grad():
        found = call(ours)
        assert torch.equal(call(other), found) and found.isfinite().all()
        ours.save_pretrained(tmp_path / "out")
        assert torch.equal(call(type(model).from_pretrained(tmp_path / "out", dtype=torch.float32)), found)


def test_resizing_the_embedding_of_a_model_with_a_packed_head() -> None:
    """An error that names the head, before anything changes; a dense head is resized."""
    config = transformers.LlamaConfig(**SIZES, tie_word_embeddings=False)
    model = transformers.LlamaForCausalLM(config).eval()
    nvfp4.quantize_model(model, ignore=(), activations=None)
    before = logits(model)
    with pytest.raises(nvfp4.Error, match=r"^lm_head: is NVFP4 with 128 rows, which cannot become 160"):
        model.resize_token_embeddings(160)
    with pytest.raises(nvfp4.Error, match=r"^lm_head: is NVFP4 with 128 rows, which cannot become 192"):
        model.resize_token_embeddings(pad_to_multiple_of=96)
    assert torch.equal(logits(model), before) and model.config.vocab_size == 128
    assert model.resize_token_embeddings(128) is model.get_input_embeddings()
    model = transformers.LlamaForCausalLM(config).eval()
    nvfp4.quantize_model(model, activations=None)
    model.resize_token_embeddings(160)
    assert logits(model).shape[-1] == 160
