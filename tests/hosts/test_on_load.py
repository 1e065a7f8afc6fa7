"""nvfp4.transformers.NVFP4Config: a dense checkpoint becomes, while it is loaded, what quantize_model makes of it."""

from __future__ import annotations

import copy
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_models
import torch
from conftest import NO_GPU, gpu
from paths import ROOT
from torch import Tensor, nn

import nvfp4
from nvfp4.quantizing.selection import matches

pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch", reason="comes with transformers")
import transformers  # noqa: E402
from transformers import AutoModel, AutoModelForCausalLM  # noqa: E402
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING  # noqa: E402

import nvfp4.transformers  # noqa: E402
from nvfp4.hosts.transformers import on_load  # noqa: E402

transformers.utils.logging.disable_progress_bar()
NVFP4Config = nvfp4.transformers.NVFP4Config

IDS = (torch.arange(24) * 37 % 128).view(2, 12)
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
SIZES = tiny_models.SIZES | {"dtype": "bfloat16"}
LAYER = "model.layers.1.mlp.up_proj"


def dense(folder: Path, kind: Any = transformers.Qwen2Config, **more: Any) -> Path:
    """A random model of small sizes, whose biases are random too."""
    model = AutoModelForCausalLM.from_config(kind(**SIZES | more), dtype=torch.bfloat16)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    model.save_pretrained(folder)
    return folder


def tensors_of(folder: Path) -> dict[str, Tensor]:
    return safetensors.load_file(folder / "model.safetensors")


def rewrite(folder: Path, tensors: dict[str, Tensor]) -> None:
    safetensors.save_file({name: t.clone() for name, t in tensors.items()}, folder / "model.safetensors")


def load(folder: Path, config: Any = None, auto_class: Any = AutoModelForCausalLM, **more: Any) -> Any:
    given = {} if config is None else {"quantization_config": config}  # None would remove that of config.json
    return auto_class.from_pretrained(folder, **given, **more)


def after(folder: Path, config: Any, auto_class: Any = AutoModelForCausalLM, **more: Any) -> tuple[Any, Any]:
    """The dense model, quantized once it is there."""
    model = auto_class.from_pretrained(folder, **more)
    given = {"block_scale": config.block_scale, "weights": config.weights}
    return model, nvfp4.quantize_model(model, config.ignore, config.activations, **given)


def logits(model: nn.Module, ids: Tensor = IDS) -> Tensor:
    with torch.no_grad():
        return model(ids.to(model.device)).logits.cpu()


def layers_of(model: nn.Module) -> set[str]:
    return {name for name, module in model.named_modules() if type(module) is nvfp4.Linear}


def state(model: nn.Module) -> dict[str, Any]:
    named = ((name, t) for name, t in (*model.named_parameters(), *model.named_buffers()) if not t.is_meta)
    return {name: (t.dtype, t.shape, t.detach().cpu().reshape(-1).view(torch.uint8).tolist()) for name, t in named}


# ---- the model ----


@pytest.mark.parametrize("block_scale", ["amax6", "four_over_six"])
@pytest.mark.parametrize("activations", ["nvfp4", None])
@pytest.mark.parametrize("kind", [transformers.LlamaConfig, transformers.Qwen2Config])  # the second has biases
def test_the_model_is_that_of_quantize_model(
    kind: Any, activations: str | None, block_scale: str, tmp_path: Path
) -> None:
    folder = dense(tmp_path / "dense", kind)
    config = NVFP4Config(activations, block_scale)
    for dtype in (*DTYPES, "auto"):
        expected, report = after(folder, config, dtype=dtype)
        model = load(folder, config, dtype=dtype)
        assert len(layers_of(model)) == 14 and type(model.lm_head) is nn.Linear and not model.training
        assert state(model) == state(expected) and torch.equal(logits(model), logits(expected))
        assert model.hf_quantizer.report == report and "lm_head" in report.skipped
        modules = [module for module in model.modules() if type(module) is nvfp4.Linear]
        assert {(m.activations, m.block_scale, m.training) for m in modules} == {(activations, block_scale, False)}
    saved = []
    for name, own in (("ours", model), ("theirs", expected)):
        own.save_pretrained(tmp_path / name)
        saved.append(json.loads((tmp_path / name / "config.json").read_text()))
    assert saved[0] == saved[1]
    again = load(tmp_path / "ours")
    assert state(again) == state(model)
    plain = AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
    nvfp4.load(tmp_path / "ours", plain)
    assert state(plain) == state(model)
    for own in (again, plain):
        for module in (module for module in own.modules() if type(module) is nvfp4.Linear):
            assert module.block_scale == "amax6"  # of inputs, no checkpoint keeps another one
            module.block_scale = block_scale
        assert torch.equal(logits(own), logits(model))


@pytest.mark.parametrize("tied", [False, True])
def test_weights_by_search(tied: bool, tmp_path: Path) -> None:
    """Siblings share a global scale, as after quantize_model."""
    folder = dense(tmp_path, tie_word_embeddings=tied)
    for ignore in (("lm_head",), "mlp_only"):
        config = NVFP4Config(None, "four_over_six", ignore=ignore, weights="search")
        model, (expected, report) = load(folder, config), after(folder, config)
        assert state(model) == state(expected) and model.hf_quantizer.report == report and report.weights == "search"
        mlp = model.model.layers[0].mlp
        assert torch.equal(mlp.gate_proj.weight_global_scale, mlp.up_proj.weight_global_scale)
        assert len(layers_of(model)) == (14 if ignore == ("lm_head",) else 6)


def test_patterns_of_ignored_layers(tmp_path: Path) -> None:
    folder = dense(tmp_path)
    patterns = ["lm_head", "model.layers.0.self_attn*", r"re:.*\.up_proj"]
    for config in (NVFP4Config(ignore=patterns), NVFP4Config(modules_to_not_convert=patterns)):
        model, (expected, report) = load(folder, config), after(folder, config)
        assert len(layers_of(model)) == 8 and state(model) == state(expected)
        assert model.hf_quantizer.report == report
        assert all(any(matches(name, pattern) for pattern in patterns) for name in report.skipped)
    with pytest.raises(nvfp4.Error, match="^ignore: 'nothing' matches no module of the model$"):
        load(folder, NVFP4Config(ignore=["nothing"]))


@pytest.mark.parametrize("kind", [transformers.LlamaConfig, transformers.Qwen2Config])
def test_each_dense_weight_is_released_before_the_next(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, seen = dense(tmp_path, kind), []
    quantize_layer = on_load.quantize_layer

    def watch(name: str, linear: nn.Linear, *arguments: Any) -> Any:
        assert not linear.weight.is_meta
        alive = [other for other, ref, storage in seen if ref() is not None or storage() is not None]
        assert alive == [], f"{alive} are still there when {name} comes"
        seen.append((name, weakref.ref(linear.weight), weakref.ref(linear.weight.untyped_storage())))
        return quantize_layer(name, linear, *arguments)

    monkeypatch.setattr(on_load, "quantize_layer", watch)
    model = load(folder, NVFP4Config(), dtype=torch.float32)  # another dtype than stored, so that no weight is mapped
    assert {name for name, _, _ in seen} == layers_of(model) and len(seen) == 14


@pytest.mark.parametrize("activations", ["nvfp4", None])
def test_a_tied_head(activations: str | None, tmp_path: Path) -> None:
    """The head becomes a layer of its own, or stays the embedding's weight."""
    folder = dense(tmp_path / "dense", tie_word_embeddings=True)
    assert "lm_head.weight" not in tensors_of(folder)
    for ignore in (("lm_head",), ()):
        config = NVFP4Config(activations, ignore=ignore)
        model, (expected, report) = load(folder, config), after(folder, config)
        assert (type(model.lm_head) is nvfp4.Linear) == (not ignore)
        assert (model.lm_head.weight is model.model.embed_tokens.weight) == bool(ignore)
        assert state(model) == state(expected) and torch.equal(logits(model), logits(expected))
        assert model.hf_quantizer.report.layers == report.layers
        model.save_pretrained(tmp_path / "saved")
        assert torch.equal(logits(load(tmp_path / "saved")), logits(model))


def test_parts_of_models_can_be_saved(tmp_path: Path) -> None:
    folder = dense(tmp_path / "dense")
    base = load(folder, NVFP4Config(), AutoModel)
    model = load(folder, NVFP4Config())
    model.model.save_pretrained(tmp_path / "inner")
    inner = load(tmp_path / "inner", auto_class=AutoModel)
    assert state(inner) == state(base) == state(model.model) and len(layers_of(inner)) == 14


def test_push_to_hub_writes_what_save_pretrained_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, found = load(dense(tmp_path / "dense"), NVFP4Config()), []
    repository = SimpleNamespace(repo_id="me/model")
    hub = transformers.utils.hub
    monkeypatch.setattr(hub, "hf_api", lambda: SimpleNamespace(create_repo=lambda *a, **k: repository), raising=False)
    monkeypatch.setattr(hub, "create_repo", lambda *a, **k: repository, raising=False)
    monkeypatch.setattr(hub, "create_and_tag_model_card", lambda *a, **k: SimpleNamespace(save=lambda path: None))
    monkeypatch.setattr(
        type(model), "_upload_modified_files", lambda self, folder, *a, **k: found.append(state(load(Path(folder))))
    )
    model.push_to_hub("me/model")
    assert found == [state(model)]


def test_the_example_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "quantize.md").read_text(encoding="utf-8")
    example = page.split("## While a model is loaded")[1].split("```python\n")[1].split("```")[0]
    scope: dict[str, Any] = {"dense_folder": str(dense(tmp_path / "dense")), "target": str(tmp_path / "saved")}
    exec(example, scope)
    assert "skipped: lm_head: ignore has 'lm_head'" in capsys.readouterr().out
    assert state(load(tmp_path / "saved")) == state(scope["model"])


# ---- what transformers does beside ----


def test_weights_that_transformers_renames(tmp_path: Path) -> None:
    """The older names of a model of text and images."""
    both = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    image = both | {"model_type": "clip_vision_model", "image_size": 32, "patch_size": 16, "projection_dim": 32}
    text = both | {"model_type": "llama", "num_key_value_heads": 2, "vocab_size": 64}
    kind = transformers.LlavaForConditionalGeneration
    source = kind(transformers.LlavaConfig(vision_config=image, text_config=text, image_token_index=3))
    source.save_pretrained(tmp_path / "dense")
    prefixes = {"model.language_model.": "language_model.model.", "lm_head.": "language_model.lm_head.", "model.": ""}
    tensors = {}
    for name, t in source.state_dict().items():
        prefix = next(prefix for prefix in prefixes if name.startswith(prefix))
        tensors[prefixes[prefix] + name.removeprefix(prefix)] = t
    rewrite(tmp_path / "dense", tensors)
    config = NVFP4Config(ignore=["lm_head", "model.vision_tower"])
    model = load(tmp_path / "dense", config, kind, dtype=torch.bfloat16)
    expected, report = after(tmp_path / "dense", config, kind, dtype=torch.bfloat16)
    assert len(layers_of(model)) == 9 and state(model) == state(expected) and model.hf_quantizer.report == report
    assert report.towers == {"model.multi_modal_projector": 2}
    model.save_pretrained(tmp_path / "saved")
    assert {name.rpartition(".")[0] for name in tensors} == {
        n.rpartition(".")[0] for n in tensors_of(tmp_path / "saved")
    }
    assert state(load(tmp_path / "saved", auto_class=kind)) == state(model)


def test_weights_that_transformers_splits(tmp_path: Path) -> None:
    """One tensor of the checkpoint makes the three layers of an attention."""
    config = transformers.DetrConfig(
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        num_queries=3,
        num_labels=2,
        use_timm_backbone=False,
        backbone=None,
        backbone_config=transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"]
        ),
    )
    kind = transformers.DetrForObjectDetection
    torch.manual_seed(0)
    kind(config).save_pretrained(tmp_path)
    stored = {*tensors_of(tmp_path)}
    for own in (NVFP4Config(ignore=[]), NVFP4Config(ignore=["re:.*self_attn.q_proj"])):
        model, (expected, report) = load(tmp_path, own, kind), after(tmp_path, own, kind)
        split = [name for name in layers_of(model) if f"{name}.weight" not in {f"model.{s}" for s in stored} | stored]
        assert len(split) >= 3 and state(model) == state(expected) and model.hf_quantizer.report == report


def test_layers_of_gpt2(tmp_path: Path) -> None:
    """Their weights are [K, N]."""
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 64, "n_positions": 16}
    config = transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "dense")
    model, (expected, report) = load(tmp_path / "dense", NVFP4Config()), after(tmp_path / "dense", NVFP4Config())
    assert len(layers_of(model)) == 8 and state(model) == state(expected) and model.hf_quantizer.report == report


NEMOTRON = {"head_dim": 16, "num_hidden_layers": None, "layers_block_type": ["attention", "moe"], "n_group": 1}
NEMOTRON |= {"topk_group": 1, "n_routed_experts": 4, "moe_intermediate_size": 48}
NEMOTRON |= {"moe_shared_expert_intermediate_size": 96}
EXPERTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "a layer for each": (transformers.MixtralConfig, {"num_local_experts": 2}),
    "stacks with biases": (transformers.GptOssConfig, {"num_local_experts": 4, "head_dim": 16}),
    "no gate": (transformers.NemotronHConfig, NEMOTRON),
}


@pytest.mark.parametrize("activations", ["nvfp4", None])
@pytest.mark.parametrize("case", EXPERTS)
def test_experts(case: str, activations: str | None, tmp_path: Path) -> None:
    """They become those of quantize_model, which are saved as the checkpoint has them."""
    kind, more = EXPERTS[case]
    folder, config = dense(tmp_path / "dense", kind, **more), NVFP4Config(activations)
    for dtype in (torch.bfloat16, torch.float32):
        model, (expected, report) = load(folder, config, dtype=dtype), after(folder, config, dtype=dtype)
        assert any(isinstance(module, nvfp4.Experts) for module in model.modules())
        assert state(model) == state(expected) and torch.equal(logits(model), logits(expected))
        assert model.hf_quantizer.report == report and report.dense.keys().isdisjoint(report.skipped)
    model.save_pretrained(tmp_path / "saved")
    names = {name.rpartition(".")[0] for name in tensors_of(folder) if ".experts." in name}
    assert {n.rpartition(".")[0] for n in tensors_of(tmp_path / "saved") if ".experts." in n} == names != set()
    again = load(tmp_path / "saved", dtype=torch.float32)
    own, theirs = again.state_dict(), model.state_dict()
    assert own.keys() == theirs.keys() and all(torch.equal(own[name], theirs[name]) for name in own)
    assert torch.equal(logits(again), logits(model))


def test_dense_experts_are_released_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, seen = dense(tmp_path, transformers.MixtralConfig, num_local_experts=2), []
    quantize_experts = on_load.quantize_experts

    def watch(model: nn.Module, name: str, *arguments: Any) -> Any:
        alive = [other for other, ref in seen if ref() is not None]
        assert alive == [], f"{alive} are still there when {name} comes"
        seen.extend((name, weakref.ref(t)) for t in model.get_submodule(name).parameters())
        assert not any(t.is_meta for t in model.get_submodule(name).parameters())
        return quantize_experts(model, name, *arguments)

    monkeypatch.setattr(on_load, "quantize_experts", watch)
    load(folder, NVFP4Config(), dtype=torch.float32)
    assert len(seen) == 4 and not any(ref() is not None for _, ref in seen)


def test_experts_in_another_dtype_or_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that the model keeps in fp32 is quantized at the end."""
    folder = dense(tmp_path, transformers.MixtralConfig, num_local_experts=2)
    ignoring = NVFP4Config(ignore=["lm_head", "model.layers.0.mlp"])
    model, (expected, report) = load(folder, ignoring), after(folder, ignoring)
    assert state(model) == state(expected) and model.hf_quantizer.report == report
    assert report.skipped["model.layers.0.mlp.experts"] == "ignore has 'model.layers.0.mlp'"
    monkeypatch.setattr(transformers.MixtralForCausalLM, "_keep_in_fp32_modules_strict", {"down_proj", "norm"})
    model, (expected, report) = load(folder, NVFP4Config()), after(folder, NVFP4Config())
    assert state(model) == state(expected) and model.hf_quantizer.report == report
    assert isinstance(model.model.layers[0].mlp.experts, nvfp4.Experts)


def test_damaged_experts_are_named(tmp_path: Path) -> None:
    folder = dense(tmp_path, transformers.MixtralConfig, num_local_experts=2)
    tensors = tensors_of(folder)
    name = next(name for name in tensors if ".experts.1.w2" in name)
    tensors[name][3, 5] = float("nan")
    rewrite(folder, tensors)
    with pytest.raises(nvfp4.Error, match=r"^model\.layers\.0\.mlp\.experts\.down_proj: has a value that is NaN or "):
        load(folder, NVFP4Config())


def test_modules_that_a_model_keeps_in_fp32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their weights are read as fp32, and quantized from that."""
    folder = dense(tmp_path)
    tensors = tensors_of(folder)
    rewrite(folder, {name: t.float() + torch.randn(t.shape) / 512 for name, t in tensors.items()})
    without = state(load(folder, NVFP4Config(), dtype=torch.bfloat16))
    monkeypatch.setattr(transformers.Qwen2ForCausalLM, "_keep_in_fp32_modules_strict", {"up_proj", "norm"})
    model = load(folder, NVFP4Config(), dtype=torch.bfloat16)
    assert state(model) == state(after(folder, NVFP4Config(), dtype=torch.bfloat16)[0]) != without
    assert model.model.norm.weight.dtype == torch.float32


def test_biases_that_come_late_or_never(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bias that the checkpoint lacks is what transformers gives the dense model: zeros."""
    folder = dense(tmp_path)
    tensors = tensors_of(folder)
    del tensors["model.layers.0.self_attn.q_proj.bias"]
    rewrite(folder, tensors)
    model, (expected, report) = load(folder, NVFP4Config()), after(folder, NVFP4Config())
    assert state(model) == state(expected) and model.hf_quantizer.report == report
    assert not model.model.layers[0].self_attn.q_proj.bias.any()
    order = transformers.core_model_loading.dot_natural_key
    monkeypatch.setattr(
        transformers.core_model_loading,
        "dot_natural_key",
        lambda name: [(2, 0), *order(name)] if name.endswith("bias") else [(1, 0), *order(name)],
    )
    assert state(load(folder, NVFP4Config())) == state(expected)


class Shared(transformers.LlamaForCausalLM):  # type: ignore[misc]
    """The second block has the MLP of the first."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.layers[1].mlp = self.model.layers[0].mlp


@pytest.mark.parametrize("kept", ["both", "first", "second"])
def test_a_layer_with_two_names(kept: str, tmp_path: Path) -> None:
    folder = dense(tmp_path, transformers.LlamaConfig)
    tensors = tensors_of(folder)
    for name in [name for name in tensors if ".0.mlp." in name]:
        other = name.replace(".0.", ".1.")
        tensors[other] = tensors[name]
        if kept != "both":
            del tensors[name if kept == "second" else other]
    rewrite(folder, tensors)
    model, (expected, report) = load(folder, NVFP4Config(), Shared), after(folder, NVFP4Config(), Shared)
    assert len(report.layers) == 11 and model.model.layers[0].mlp is model.model.layers[1].mlp
    assert layers_of(model) == layers_of(expected)
    if kept == "both":  # else transformers may make up what the checkpoint lacks
        assert state(model) == state(expected) and model.hf_quantizer.report == report


def test_device_maps(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    folder = dense(tmp_path / "dense")
    expected = state(after(folder, NVFP4Config())[0])
    places = dict.fromkeys(("model.embed_tokens", "model.layers", "model.norm", "model.rotary_emb", "lm_head"), "cpu")
    for device_map in ("cpu", {"": "cpu"}, places) if gpu() else ("cpu", "auto", {"": "cpu"}, places):
        model = load(folder, NVFP4Config(), device_map=device_map)
        assert state(model) == expected
    size = sum(t.nbytes for t in model.state_dict().values())  # the dense model has twice as much
    model = load(folder, NVFP4Config(), device_map="auto", max_memory={"cpu": 1.2 * size})
    assert state(model) == expected
    for more in ({"device_map": places | {"model.norm": "disk"}}, {"device_map": "auto", "max_memory": {"cpu": 50000}}):
        with pytest.raises(nvfp4.Error, match="^device_map: has 'disk' for '.*'; must have devices alone, where NVFP4"):
            load(folder, NVFP4Config(), offload_folder=tmp_path / "offloaded", **more)


@pytest.mark.parametrize("device_map", ["cuda", "auto", "split"])
def test_on_a_gpu(device_map: Any, tmp_path: Path) -> None:
    if not gpu():
        pytest.skip(NO_GPU)
    pytest.importorskip("accelerate")
    folder = dense(tmp_path)
    if device_map == "split":
        device_map = {"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": "cpu"}
        device_map |= {"model.norm": 0, "model.rotary_emb": 0, "lm_head": 0}
    model, expected = load(folder, NVFP4Config(), device_map=device_map), after(folder, NVFP4Config())[0].to("cuda")
    offloaded = {name for name, p in model.named_parameters() if p.is_meta}  # accelerate brings them for each call
    assert bool(offloaded) == isinstance(device_map, dict)
    found, wanted = state(model), state(expected)
    assert found == {name: own for name, own in wanted.items() if name not in offloaded}
    assert torch.equal(logits(model), logits(expected))
    assert all(layer.weight.is_cuda for layer in model.modules() if type(layer) is nvfp4.Linear)


# ---- the configuration ----


def test_the_configuration_as_a_dict(tmp_path: Path) -> None:
    config = NVFP4Config(None, "four_over_six", ignore=["lm_head", "*.up_proj"])
    content = config.to_dict()
    assert json.loads(json.dumps(content)) == content and NVFP4Config.from_dict(content).to_dict() == content
    folder = dense(tmp_path)
    assert state(load(folder, content)) == state(load(folder, config))
    assert copy.deepcopy(config).to_dict() == content and "four_over_six" in repr(config)


def test_transformers_own_class_of_this_name_stays() -> None:
    own = getattr(transformers, "NVFP4Config", None)
    assert own is not NVFP4Config and AUTO_QUANTIZATION_CONFIG_MAPPING.get("nvfp4") is own
    assert AUTO_QUANTIZATION_CONFIG_MAPPING["nvfp4-on-load"] is NVFP4Config


ARGUMENTS: dict[str, Callable[[], Any]] = {
    "activations: is 'fp8'; must be 'nvfp4' or None": lambda: NVFP4Config("fp8"),
    "block_scale: is 6; must be 'amax6' or 'four_over_six'": lambda: NVFP4Config(block_scale=6),
    "ignore: is the string 'lm_head'; must be a sequence of patterns, or 'mlp_only' or 'experts_only'": lambda: (
        NVFP4Config(ignore="lm_head")
    ),
    "ignore: is of type int; must be a sequence of patterns": lambda: NVFP4Config(modules_to_not_convert=4),
    "ignore: has 4; must have strings alone": lambda: NVFP4Config(ignore=[4]),
    "modules_to_not_convert: is given beside ignore; must be given alone, as the same list": lambda: NVFP4Config(
        ignore=["a"], modules_to_not_convert=["b"]
    ),
    "calibrate: is no argument of NVFP4Config; must be activations, block_scale, ignore, modules_to_not_convert, "
    "batch_invariant or weights": lambda: NVFP4Config(calibrate=print),
    "weights: is 'gptq', which needs samples and the whole dense model; must be 'round' or 'search' here, or be given "
    "to nvfp4.quantize_model after loading": lambda: NVFP4Config(weights="gptq"),
    "weights: is 'best'; must be 'round', 'search' or 'gptq'": lambda: NVFP4Config(weights="best"),
    "quant_method: is 'nvfp4'; must be 'nvfp4-on-load'": lambda: NVFP4Config.from_dict({"quant_method": "nvfp4"}),
}


@pytest.mark.parametrize("message", ARGUMENTS)
def test_bad_arguments_are_named(message: str) -> None:
    with pytest.raises(nvfp4.Error) as error:
        ARGUMENTS[message]()
    assert str(error.value) == message


def test_weights_that_cannot_be_quantized_are_named(tmp_path: Path) -> None:
    folder = dense(tmp_path)
    good = tensors_of(folder)
    for change, message in (
        (lambda t: t * float("nan"), "weight: has a value that is NaN or infinite; must be finite"),
        (lambda t: t[:, :32], r"weight: shape is \[96, 32\]; must be \[96, 64\] for the model"),
    ):
        rewrite(folder, good | {f"{LAYER}.weight": change(good[f"{LAYER}.weight"])})
        with pytest.raises(nvfp4.Error, match=f"^{LAYER}.{message}$"):
            load(folder, NVFP4Config())


def test_other_rejected_calls(tmp_path: Path) -> None:
    folder = dense(tmp_path / "dense")
    with pytest.raises(nvfp4.Error, match=r"^dtype: is float64; must be float16, bfloat16 or float32$"):
        load(folder, NVFP4Config(), dtype=torch.float64)
    nothing = "^quantization_config: {} has no linear layer that becomes NVFP4; must have 1 or more"
    with pytest.raises(nvfp4.Error, match=nothing.format("Qwen2ForCausalLM") + r" \(skipped: .*q_proj ignore has '\*'"):
        load(folder, NVFP4Config(ignore=["*"]))
    load(folder, NVFP4Config(None)).save_pretrained(tmp_path / "packed")
    with pytest.raises(ValueError, match="quantized with ModelOptConfig but you are passing a NVFP4Config"):
        load(tmp_path / "packed", NVFP4Config())
    content = json.loads((folder / "config.json").read_text()) | {"quantization_config": NVFP4Config().to_dict()}
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(
        nvfp4.Error, match="^quant_method: is 'nvfp4-on-load' in config.json; must be given to from_pre"
    ):
        load(folder)
