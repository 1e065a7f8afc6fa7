"""A model that has more or less than the checkpoint: heads, MTP, inv_freq, names that transformers changes."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from test_load_names import fails, named, opt, write
from tiny_models import SIZES
from torch import Tensor, nn

import nvfp4
from nvfp4.checkpoints import modelopt
from nvfp4.layers.packed import PackedLinear

safetensors = pytest.importorskip("safetensors.torch", reason="comes with the extra `test`")
transformers = pytest.importorskip("transformers")
import nvfp4.transformers  # noqa: E402

FP8 = torch.float8_e4m3fn


def llama(**more: Any) -> Any:
    config = transformers.LlamaConfig(**SIZES, architectures=["LlamaForCausalLM"], **more)
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).eval()


def tensors_of(model: nn.Module, ignore: tuple[str, ...] = ("lm_head",)) -> tuple[dict[str, Tensor], Any]:
    """Tensors of ModelOpt, and the model with nvfp4.Linear layers."""
    expected = copy.deepcopy(model)
    nvfp4.quantize_model(expected, ignore=ignore, activations=None)
    layers = {name: module for name, module in expected.named_modules() if isinstance(module, nvfp4.Linear)}
    tensors = {name: t.clone() for name, t in model.state_dict().items() if name.rpartition(".")[0] not in layers}
    for name, layer in layers.items():
        tensors |= {key: t.clone() for key, t in named(name, modelopt.write(layer.packed())).items()}
    return tensors, expected


def folder_of(folder: Path, model: Any, tensors: dict[str, Tensor], ignore: list[str], **config: Any) -> Path:
    write(folder, tensors, None)
    content = model.config.to_dict() | {"quantization_config": opt(ignore, quant_algo="W4A16_NVFP4")} | config
    (folder / "config.json").write_text(json.dumps(content))
    return folder


def loaded(how: str, folder: Path, model: Any) -> Any:
    """By transformers, or by nvfp4.load into a model; and what was skipped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if how == "transformers":
            read = nvfp4.transformers.load(folder, auto_class=type(model))
            return read, read.hf_quantizer.skipped
        read = copy.deepcopy(model)
        return read, nvfp4.load(folder, read).skipped


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model(torch.arange(8)[None]).logits


def mtp(kind: str, layer: PackedLinear, prefix: str = "mtp") -> dict[str, Tensor]:
    if kind == "nvfp4":
        return named(f"{prefix}.layers.0.up", modelopt.write(layer))
    if kind == "nvfp4, damaged":
        return {f"{prefix}.up.weight": torch.ones(4, 8, dtype=torch.uint8), f"{prefix}.up.input_scale": torch.zeros(1)}
    if kind == "fp8":
        return {f"{prefix}.fc.weight": torch.ones(8, 8).to(FP8), f"{prefix}.fc.weight_scale": torch.ones(())}
    if kind == "mxfp4":
        return {
            f"{prefix}.fc.weight": torch.ones(8, 16, dtype=torch.uint8),
            f"{prefix}.fc.weight_scale": torch.ones(8, 1).to(torch.uint8),
        }
    return {f"{prefix}.fc.weight": torch.ones(8, 8)}


@pytest.mark.parametrize("how", ["transformers", "load"])
@pytest.mark.parametrize("kind", ["bf16", "nvfp4", "nvfp4, damaged", "fp8", "mxfp4"])
def test_mtp_that_the_class_leaves_out(kind: str, how: str, tmp_path: Path) -> None:
    model = llama()
    tensors, expected = tensors_of(model)
    layer = expected.model.layers[0].mlp.up_proj.packed()
    more = mtp(kind, layer) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    folder = folder_of(tmp_path, model, tensors | more, ["lm_head"])
    read, skipped = loaded(how, folder, model)
    assert torch.equal(logits(read), logits(expected))
    (name,) = {key.rpartition(".")[0] for key in mtp(kind, layer)}
    assert skipped[name] == "is not in the model: LlamaForCausalLM leaves it out"
    assert len(skipped) == 2


@pytest.mark.parametrize("how", ["transformers", "load"])
def test_layers_that_the_class_names(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a pattern, or by the number of layers that predict further tokens."""
    model = llama()
    tensors, expected = tensors_of(model)
    up = expected.model.layers[0].mlp.up_proj.packed()
    more = named("model.layers.2.mlp.up_proj", modelopt.write(up))
    folder = folder_of(tmp_path, model, tensors | more, ["lm_head"])
    with pytest.raises(nvfp4.Error, match="model.layers.2.mlp.up_proj: is a layer of the checkpoint but no module"):
        loaded(how, folder, model)
    kind = transformers.LlamaForCausalLM
    with monkeypatch.context() as patch:
        patch.setattr(kind, "_keys_to_ignore_on_load_unexpected", [r"model\.layers\.2.*"])
        own = llama()
        assert list(loaded(how, folder, own)[1]) == ["model.layers.2.mlp.up_proj"]
    own = llama(num_nextn_predict_layers=1)
    folder_of(tmp_path, own, tensors | more, ["lm_head"])
    read, skipped = loaded(how, folder, own)
    assert list(skipped) == ["model.layers.2.mlp.up_proj"] and torch.equal(logits(read), logits(expected))


@pytest.mark.parametrize("how", ["transformers", "load"])
def test_a_head_that_the_checkpoint_lacks(how: str, tmp_path: Path) -> None:
    """It stays dense, with a warning; a layer inside the model is an error."""
    tensors, expected = tensors_of(llama())
    del tensors["lm_head.weight"]
    config = transformers.LlamaConfig(**SIZES, num_labels=3, pad_token_id=0, architectures=["LlamaForCausalLM"])
    model = transformers.LlamaForSequenceClassification(config).eval()
    folder = folder_of(tmp_path, model, tensors, [])
    if how == "load":
        read = copy.deepcopy(model)
        with pytest.warns(UserWarning, match="score: is not in the checkpoint and stays as it is in the model"):
            nvfp4.load(folder, read)
        assert torch.equal(read.score.weight, model.score.weight)
    else:
        with pytest.warns(UserWarning, match="score: is not in the checkpoint and stays dense"):
            read = nvfp4.transformers.load(folder, auto_class=type(model))
    assert type(read.score) is nn.Linear and type(read.model.layers[1].mlp.up_proj) is nvfp4.Linear
    kept = {name: t for name, t in tensors.items() if not name.startswith("model.layers.1.mlp.up_proj")}
    folder_of(tmp_path, model, kept, [])
    with pytest.raises(nvfp4.Error, match=r"model.layers.1.mlp.up_proj(.weight)?: is .* but not in the checkpoint"):
        loaded(how, folder, model)


def test_inv_freq_and_mtp_without_transformers(tmp_path: Path) -> None:
    model = nn.ModuleDict({"a": nn.Linear(64, 32, bias=False)})
    layer = nvfp4.Linear.from_linear(model["a"], None).packed()
    tensors = named("a", modelopt.write(layer)) | {"attn.rotary_emb.inv_freq": torch.ones(4)} | mtp("fp8", layer)
    skipped = nvfp4.load(write(tmp_path, tensors, opt(quant_algo="W4A16_NVFP4")), model).skipped
    reason = "is not in the model: ModuleDict leaves it out"
    assert skipped == {"attn.rotary_emb": reason, "mtp.fc": reason}
    fails("rope: is in the checkpoint but not in the model", tensors | {"rope": torch.ones(1)}, model)


def llava(tmp_path: Path) -> tuple[Any, Any, Path]:
    """A model whose checkpoints have other names: see test_names_that_transformers_changes."""
    both = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    image = both | {"model_type": "clip_vision_model", "image_size": 32, "patch_size": 16, "projection_dim": 32}
    text = both | {"model_type": "llama", "num_key_value_heads": 2, "vocab_size": 64}
    config = transformers.LlavaConfig(vision_config=image, text_config=text, image_token_index=3)
    config.architectures = ["LlavaForConditionalGeneration"]
    torch.manual_seed(0)
    model = transformers.LlavaForConditionalGeneration(config).eval()
    tensors, expected = tensors_of(model, ("lm_head", "vision_tower", "multi_modal_projector"))
    prefixes = {"model.language_model.": "language_model.model.", "lm_head.": "language_model.lm_head.", "model.": ""}
    stored = {}
    for name, t in tensors.items():
        prefix = next(prefix for prefix in prefixes if name.startswith(prefix))
        stored[prefixes[prefix] + name.removeprefix(prefix)] = t
    ignore = ["language_model.lm_head", "vision_tower*", "multi_modal_projector*"]
    return model, expected, folder_of(tmp_path, model, stored, ignore)


def test_names_that_transformers_changes(tmp_path: Path) -> None:
    """Into a model, and the configuration with the new names or the old ones."""
    model, expected, folder = llava(tmp_path)
    for ignore in (
        ["language_model.lm_head", "vision_tower*", "multi_modal_projector*"],
        ["lm_head", "model.vision_tower*", "model.multi_modal_projector*"],
    ):
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"]["ignore"] = ignore
        (folder / "config.json").write_text(json.dumps(config))
        for how in ("load", "transformers"):
            read, skipped = loaded(how, folder, model)
            ids = torch.arange(4, 20)[None]
            with torch.no_grad():
                assert torch.equal(read(ids).logits, expected(ids).logits) and not skipped
    assert "model.language_model.layers.0.mlp.up_proj" in nvfp4.load(folder, copy.deepcopy(model)).layers


def test_experts_of_which_one_layer_is_quantized(tmp_path: Path) -> None:
    sizes = SIZES | {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 64}
    torch.manual_seed(0)
    model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**sizes)).eval()
    tensors, expected = tensors_of(model)
    layer = expected.model.layers[0].self_attn.q_proj.packed()
    name = "model.layers.0.mlp.experts.0.gate_proj"
    tensors |= named(name, modelopt.write(layer))
    folder = folder_of(tmp_path, model, tensors, ["lm_head"])
    with pytest.raises(nvfp4.Error, match=r"^model\.layers\.0\.mlp\.experts: has no layers of up; must have gate, up"):
        nvfp4.load(folder, model)


@pytest.mark.parametrize("bad", [None, 0.0, torch.inf])
def test_input_scales_that_are_not_used_by_transformers(bad: float | None, tmp_path: Path) -> None:
    tensors, expected = tensors_of(llama())
    if bad is not None:
        names = [name for name in tensors if name.endswith("weight_scale_2")]
        tensors |= {name.replace("weight_scale_2", "input_scale"): torch.tensor(bad) for name in names}
    folder = folder_of(tmp_path, expected, tensors, ["lm_head"])
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["quant_algo"] = "NVFP4"
    (folder / "config.json").write_text(json.dumps(config))
    read = nvfp4.transformers.load(folder, activations=None)
    assert torch.equal(logits(read), logits(expected))
    with pytest.raises(nvfp4.Error, match="input_scale: is "):
        nvfp4.transformers.load(folder)
    read.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(nvfp4.transformers.load(tmp_path / "again")), logits(expected))
