"""nvfp4.transformers: checkpoints of both formats through from_pretrained, with equal bits to layers made by hand."""

from __future__ import annotations

import copy
import fnmatch
import json
import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from conftest import NO_GPU, gpu
from memory_maps import mapping
from paths import ROOT
from torch import Tensor, nn

import nvfp4
from nvfp4.checkpoints import compressed_tensors, modelopt
from nvfp4.layers.packed import PackedLinear

pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch", reason="comes with transformers")
import transformers  # noqa: E402
from transformers import AutoModel, AutoModelForCausalLM  # noqa: E402

import nvfp4.transformers  # noqa: E402

transformers.utils.logging.disable_progress_bar()

FORMATS = {"modelopt": modelopt, "compressed-tensors": compressed_tensors}
MODES = {"W4A4": "nvfp4", "W4A16": None}
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
IDS = (torch.arange(24) * 37 % 128).view(2, 12)
FOUR = {"num_bits": 4, "type": "float", "group_size": 16}
SIZES = tiny_models.SIZES | {"bos_token_id": 1, "eos_token_id": 2, "dtype": "bfloat16"}
ARCHITECTURES = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}  # the second has q/k/v bias


def quantization(format_name: str, mode: str, ignore: list[str]) -> dict[str, Any]:
    """`quantization_config` as the producers write it."""
    inputs = None if mode == "W4A16" else FOUR | {"dynamic": "local" if format_name != "modelopt" else False}
    groups = {"group_0": {"targets": ["Linear"], "weights": FOUR, "input_activations": inputs}}
    config = {"quant_method": format_name, "config_groups": groups, "ignore": ignore}
    if format_name == "modelopt":
        config |= {"quant_algo": "NVFP4" if mode == "W4A4" else "W4A16_NVFP4", "producer": {"name": "modelopt"}}
    return config


class Source:
    """A random model, the layers that replace its linear layers, and folders of it as checkpoints."""

    def __init__(self, architecture: str, mode: str, tied: bool = False, ignore: list[str] | None = None) -> None:
        torch.manual_seed(0)
        self.mode, self.ignore = mode, ["lm_head"] if ignore is None else ignore
        self.config = ARCHITECTURES[architecture](**SIZES, tie_word_embeddings=tied, use_cache=True)
        self.config.architectures = ["LlamaForCausalLM" if architecture == "llama" else "Qwen2ForCausalLM"]
        self.base = AutoModelForCausalLM.from_config(self.config, dtype=torch.bfloat16).eval()
        for name, parameter in self.base.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter)
        self.layers: dict[str, PackedLinear] = {}
        self.dense = {name: t.clone() for name, t in self.base.state_dict().items()}
        for name, module in self.base.named_modules():
            if isinstance(module, nn.Linear) and not any(fnmatch.fnmatch(name, pattern) for pattern in self.ignore):
                self.layers[name] = self.packed(module)
        if tied:
            del self.dense["lm_head.weight"]
        self.dense = {name: t for name, t in self.dense.items() if name.rpartition(".")[0] not in self.layers}

    def packed(self, linear: nn.Linear) -> PackedLinear:
        """Global scales that are reciprocals, as compressed-tensors stores divisors; no powers of two."""
        packed = nvfp4.Linear.from_linear(linear, MODES[self.mode]).packed()
        scale = packed.weight_global_scale.reciprocal().reciprocal()
        given = None if packed.activations is None else torch.tensor(600.0 * linear.out_features).reciprocal()
        return PackedLinear(packed.weight, packed.weight_scale, scale, given, packed.bias, packed.activations)

    def tensors(self, format_name: str) -> dict[str, Tensor]:
        tensors = dict(self.dense)
        for name, packed in self.layers.items():
            tensors |= {f"{name}.{key}": t for key, t in FORMATS[format_name].write(packed).items()}
        return {name: t.clone() for name, t in tensors.items()}

    def write(self, folder: Path, format_name: str, tensors: dict[str, Tensor] | None = None, **changes: Any) -> Path:
        folder.mkdir(exist_ok=True, parents=True)
        own = self.tensors(format_name) if tensors is None else tensors
        safetensors.save_file(own, folder / "model.safetensors", {"format": "pt"})
        quantized = {"quantization_config": quantization(format_name, self.mode, self.ignore) | changes}
        config = self.config.to_dict() | quantized
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def by_hand(self, dtype: torch.dtype) -> nn.Module:
        """The model with nvfp4.Linear in place of its layers, without any of the code under test."""
        model = AutoModelForCausalLM.from_config(copy.deepcopy(self.config), dtype=dtype).eval()
        missing, unexpected = model.load_state_dict(self.dense, strict=False)
        assert unexpected == [] and {name.rpartition(".")[0] for name in missing} <= {*self.layers, "lm_head"}
        for name, packed in self.layers.items():
            parent, _, leaf = name.rpartition(".")
            layer = nvfp4.Linear.from_packed(packed)
            setattr(model.get_submodule(parent), leaf, layer.to(dtype).eval())
        return model


@pytest.fixture(scope="module")
def source() -> Callable[..., Source]:
    made: dict[Any, Source] = {}

    def make(architecture: str = "llama", mode: str = "W4A4", **more: Any) -> Source:
        key = (architecture, mode, str(more))
        if key not in made:
            made[key] = Source(architecture, mode, **more)
        return made[key]

    return make


def load(folder: Path, **more: Any) -> Any:
    """Loads as a user does. Neither transformers nor nvfp4 may warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        return AutoModelForCausalLM.from_pretrained(folder, **more)


def logits(model: nn.Module, ids: Tensor = IDS) -> Tensor:
    with torch.no_grad():
        return model(ids.to(model.device)).logits.cpu()


def generate(model: Any) -> Tensor:
    ids = IDS.to(model.device)
    return model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=16, max_new_tokens=16
    )


def layers_of(model: nn.Module) -> dict[str, nvfp4.Linear]:
    return {name: module for name, module in model.named_modules() if type(module) is nvfp4.Linear}


def state(model: nn.Module) -> dict[str, Any]:
    named = (*model.named_parameters(), *model.named_buffers())
    return {name: (t.dtype, raw(t)) for name, t in named}


def raw(t: Tensor) -> bytes:
    return t.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


# ---- what is loaded ----


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_equal_bits_to_layers_made_by_hand(
    architecture: str, mode: str, source: Callable[..., Source], tmp_path: Path
) -> None:
    own = source(architecture, mode)
    for dtype in DTYPES:
        expected, tokens = own.by_hand(dtype), []
        want = logits(expected)
        assert want.dtype == dtype and want.isfinite().all()
        for format_name in FORMATS:
            folder = own.write(tmp_path / format_name, format_name)
            model = load(folder, dtype=dtype)
            assert {*layers_of(model)} == {*own.layers} and type(model.lm_head) is nn.Linear
            assert not model.training and not any(module.training for module in model.modules())
            assert state(model) == state(expected)
            assert torch.equal(logits(model), want)
            for name, layer in layers_of(model).items():
                assert layer.weight_global_scale.dtype == layer.alpha.dtype == torch.float32
                assert torch.equal(layer.weight_global_scale, own.layers[name].weight_global_scale)
                assert layer.activations == MODES[mode] and layer.weight_scale.dtype == torch.float8_e4m3fn
                assert (layer.bias is None) == (own.layers[name].bias is None)
                assert f"{folder}/model.safetensors" in mapping(layer.weight)
            if dtype == torch.bfloat16:
                tokens.append(generate(model))
        assert dtype != torch.bfloat16 or tokens[0].shape == (2, 28) and torch.equal(*tokens)


def test_layers_that_wildcards_ignore_stay_dense(source: Callable[..., Source], tmp_path: Path) -> None:
    own = source(ignore=["lm_head", "model.layers.0.self_attn*", "*.1.mlp.?p_proj"])
    assert len(own.layers) == 9
    model = load(own.write(tmp_path, "modelopt"))
    assert {*layers_of(model)} == {*own.layers} and type(model.model.layers[0].self_attn.q_proj) is nn.Linear
    assert torch.equal(logits(model), logits(own.by_hand(torch.bfloat16)))


def test_layers_of_mixed_precision(source: Callable[..., Source], tmp_path: Path) -> None:
    """Each layer's algorithm is its own; those without one are dense."""
    own = source(ignore=["lm_head", "model.layers.0.*"])
    layers = {name: {"quant_algo": "NVFP4", "group_size": 16} for name in own.layers}
    config = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers, "ignore": []}
    model = load(own.write(tmp_path / "first", "modelopt", **config))
    assert len(layers_of(model)) == 7 and torch.equal(logits(model), logits(own.by_hand(torch.bfloat16)))
    model.save_pretrained(tmp_path / "second")
    assert state(load(tmp_path / "second")) == state(model)


def test_modules_that_a_model_keeps_in_fp32(
    source: Callable[..., Source], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers casts their block scales too."""
    own = source()
    monkeypatch.setattr(transformers.LlamaForCausalLM, "_keep_in_fp32_modules_strict", {"up_proj", "norm"})
    for format_name in FORMATS:
        model = load(own.write(tmp_path, format_name))
        assert model.model.norm.weight.dtype == torch.float32
        for name, layer in layers_of(model).items():
            expected = nvfp4.Linear.from_packed(own.layers[name])
            assert state(layer) == state(expected) and f"{tmp_path}/model.safetensors" in mapping(layer.weight)


def test_names_that_transformers_changes(tmp_path: Path) -> None:
    """A model of text and images, with the names of its older checkpoints, which it also saves."""
    both = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    image = both | {"model_type": "clip_vision_model", "image_size": 32, "patch_size": 16, "projection_dim": 32}
    text = both | {"model_type": "llama", "num_key_value_heads": 2, "vocab_size": 64}
    config = transformers.LlavaConfig(vision_config=image, text_config=text, image_token_index=3)
    torch.manual_seed(0)
    expected = transformers.LlavaForConditionalGeneration(config).eval()
    prefixes = {"model.language_model.": "language_model.model.", "lm_head.": "language_model.lm_head.", "model.": ""}
    tensors = {}
    for name, t in expected.state_dict().items():
        prefix = next(prefix for prefix in prefixes if name.startswith(prefix))
        tensors[prefixes[prefix] + name.removeprefix(prefix)] = t.clone()
    for name, module in [*expected.named_modules()]:
        if isinstance(module, nn.Linear) and name.startswith("model.language_model."):
            layer = nvfp4.Linear.from_linear(module, None)
            parent, _, leaf = name.rpartition(".")
            setattr(expected.get_submodule(parent), leaf, layer.eval())
            old = name.replace("model.language_model.", "language_model.model.")
            tensors |= {f"{old}.{key}": t.clone() for key, t in modelopt.write(layer.packed()).items()}
    ignore = ["language_model.lm_head", "vision_tower*", "multi_modal_projector*"]
    config.architectures = ["LlavaForConditionalGeneration"]
    content = config.to_dict() | {"quantization_config": quantization("modelopt", "W4A16", ignore)}
    (tmp_path / "config.json").write_text(json.dumps(content))
    safetensors.save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    model = transformers.LlavaForConditionalGeneration.from_pretrained(tmp_path)
    assert len(layers_of(model)) == 7 and state(model) == state(expected)
    ids = torch.arange(4, 20)[None]
    assert torch.equal(logits(model, ids), logits(expected, ids))
    model.save_pretrained(tmp_path / "again")
    assert {*safetensors.load_file(tmp_path / "again" / "model.safetensors")} == {*tensors}


@pytest.mark.parametrize("format_name", FORMATS)
def test_tied_weights_shards_and_a_round_trip(format_name: str, source: Callable[..., Source], tmp_path: Path) -> None:
    own = source("qwen2", tied=True)
    folder = own.write(tmp_path / "first", format_name)
    model = load(folder)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    model.save_pretrained(tmp_path / "second", max_shard_size="20KB")
    files = sorted((tmp_path / "second").glob("*.safetensors"))
    assert len(files) > 2
    stored = {name: t for file in files for name, t in safetensors.load_file(file).items()}
    before = own.tensors(format_name)
    described = [{name: (t.dtype, t.shape, raw(t)) for name, t in ts.items()} for ts in (stored, before)]
    assert described[0] == described[1]
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("first", "second")]
    assert configs[0]["quantization_config"] == configs[1]["quantization_config"]
    again = load(tmp_path / "second")
    assert again.lm_head.weight is again.model.embed_tokens.weight
    assert state(again) == state(model) and torch.equal(logits(again), logits(model))
    expected = own.by_hand(torch.bfloat16)
    nvfp4.load(tmp_path / "second", expected)
    assert state(expected) == state(model)
    again.save_pretrained(tmp_path / "second", max_shard_size="20KB")  # over the files that it is mapped from
    assert state(load(tmp_path / "second")) == state(model)


@pytest.mark.parametrize("format_name", FORMATS)
def test_an_output_layer_of_its_own_that_the_configuration_ties(
    format_name: str, source: Callable[..., Source], tmp_path: Path
) -> None:
    own = source(ignore=[])
    assert "lm_head" in own.layers
    folder = own.write(tmp_path / "first", format_name)
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    model = load(folder)
    assert torch.equal(logits(model), logits(own.by_hand(torch.bfloat16)))
    model.tie_weights()
    model.save_pretrained(tmp_path / "second")
    assert state(load(tmp_path / "second")) == state(model)


def test_the_base_model_alone(source: Callable[..., Source], tmp_path: Path) -> None:
    """Its names lack the prefix "model."."""
    own = source()
    for format_name in FORMATS:
        folder = own.write(tmp_path / format_name, format_name)
        model = AutoModel.from_pretrained(folder)
        assert len(layers_of(model)) == 14 and type(model).__name__ == "LlamaModel"
        with torch.no_grad():
            want = own.by_hand(torch.bfloat16).model(IDS).last_hidden_state
            assert torch.equal(model(IDS).last_hidden_state, want)


def test_the_memory_footprint_is_exact(source: Callable[..., Source], tmp_path: Path) -> None:
    """It counts every buffer once, and a quantized model's is what the report says."""
    own = source()
    model = load(own.write(tmp_path, "modelopt"))
    tensors = {(t.data_ptr(), t.nbytes) for t in (*model.parameters(), *model.buffers())}
    assert model.get_memory_footprint() == sum(count for _, count in tensors)
    packed = sum(layer.packed().nbytes for layer in layers_of(model).values())
    assert packed < model.get_memory_footprint() < sum(t.nbytes for t in own.base.parameters())
    quantized = copy.deepcopy(own.base)
    assert nvfp4.quantize_model(quantized).bytes_after == quantized.get_memory_footprint()


def test_packed_weights_are_no_parameters(source: Callable[..., Source], tmp_path: Path) -> None:
    """num_parameters counts what is dense, as docs/quantize.md says, and what it leaves out follows from shapes."""
    own = source()
    model = load(own.write(tmp_path, "modelopt"))
    left_out = sum(layer.in_features * layer.out_features for layer in layers_of(model).values())
    assert model.num_parameters() + left_out == own.base.num_parameters()


def test_initializing_weights_leaves_nvfp4_layers_alone(source: Callable[..., Source], tmp_path: Path) -> None:
    for model in (load(source().write(tmp_path, "modelopt")), copy.deepcopy(source().base)):
        nvfp4.quantize_model(model)
        before = [raw(t) for layer in layers_of(model).values() for t in layer.buffers()]
        model.apply(model._initialize_weights)
        assert before == [raw(t) for layer in layers_of(model).values() for t in layer.buffers()]


def test_scales_of_the_kv_cache_are_skipped_and_saved(source: Callable[..., Source], tmp_path: Path) -> None:
    own = source()
    scales = [f"model.layers.{i}.self_attn.{name}" for i in (0, 1) for name in ("k_proj.k_scale", "v_proj.v_scale")]
    scheme = {"num_bits": 8, "type": "float", "dynamic": False}
    for format_name in FORMATS:
        values = {name: torch.rand(()) for name in scales}
        tensors = own.tensors(format_name) | values
        folder = own.write(tmp_path / format_name, format_name, tensors, kv_cache_scheme=scheme)
        with pytest.warns(UserWarning, match=r"^skips 4 scales of the KV cache \(model.layers.0.self_attn.k_proj.k_"):
            model, report = nvfp4.transformers.load(folder, output_loading_info=True)
        assert {*model.hf_quantizer.skipped} == {*scales}
        assert all(not names for names in report.values())
        assert torch.equal(logits(model), logits(own.by_hand(torch.bfloat16)))
        model.save_pretrained(tmp_path / f"{format_name} again")
        assert (
            json.loads((tmp_path / f"{format_name} again/config.json").read_text())["quantization_config"][
                "kv_cache_scheme"
            ]
            == scheme
        )
        again = nvfp4.load(tmp_path / f"{format_name} again")
        assert {*again.skipped} == {*scales} and again.kv_cache is not None
        assert all(torch.equal(again.kv_cache.scales[name], t) for name, t in values.items())


def test_hf_quant_config_alone(source: Callable[..., Source], tmp_path: Path) -> None:
    own = source(mode="W4A16")
    folder = own.write(tmp_path / "first", "modelopt")
    own.config.save_pretrained(folder)
    content = {"quant_algo": "W4A16_NVFP4", "group_size": 16, "exclude_modules": ["lm_h*"]}
    (folder / "hf_quant_config.json").write_text(json.dumps({"producer": {}, "quantization": content}))
    model = nvfp4.transformers.load(folder, dtype="float16", use_cache=False)
    assert model.dtype == torch.float16 and not model.config.use_cache
    assert torch.equal(logits(model), logits(own.by_hand(torch.float16)))
    model.save_pretrained(tmp_path / "second")
    assert state(load(tmp_path / "second")) == state(model)
    saved = json.loads((tmp_path / "second" / "config.json").read_text())["quantization_config"]
    assert saved["ignore"] == ["lm_h*"] and saved["quant_method"] == "modelopt" and "exclude_modules" not in saved
    (folder / "hf_quant_config.json").unlink()
    with pytest.raises(nvfp4.Error, match=r"first: has no quantization_config in config.json and no hf_quant_config"):
        nvfp4.transformers.load(folder)


def test_what_is_done_to_a_loaded_model(source: Callable[..., Source], tmp_path: Path) -> None:
    own = source()
    for format_name in FORMATS:
        model = load(own.write(tmp_path, format_name))
        want = logits(model)
        assert torch.equal(logits(copy.deepcopy(model)), want)
        assert torch.equal(logits(pickle.loads(pickle.dumps(model))), want)
        given = transformers.AutoConfig.from_pretrained(tmp_path)
        for config in (model.config, given):
            before = config.to_dict()
            assert torch.equal(logits(load(tmp_path, config=config)), want)
            assert config.to_dict() == before
        half = own.by_hand(torch.bfloat16).to(torch.float16)
        assert torch.equal(logits(model.to(torch.float16)), logits(half))


@pytest.mark.parametrize("options", [{}, {"fuse": True}, {"calibrate": True}, {"activations": None, "ignore": ()}])
def test_saving_what_quantize_model_made(
    options: dict[str, Any], source: Callable[..., Source], tmp_path: Path
) -> None:
    """In ModelOpt's format, or that of compressed-tensors where an input scale is dynamic."""
    model = copy.deepcopy(source("qwen2").base)
    calibrate = {"calibrate": lambda model: model(IDS)} if options.get("calibrate") else {}
    nvfp4.quantize_model(model, **options | calibrate)
    want, format_name = logits(model), "modelopt" if calibrate or "activations" in options else "compressed-tensors"
    for _ in range(2):  # also into the folder that the weights come from
        model.save_pretrained(tmp_path / "first")
        written = json.loads((tmp_path / "first" / "config.json").read_text())["quantization_config"]
        assert written["quant_method"] == format_name and written["ignore"] == ["lm_head"] * ("ignore" not in options)
        again = load(tmp_path / "first")
        assert len(layers_of(again)) == 14 + ("ignore" in options)
        assert torch.equal(logits(again), want) and torch.equal(logits(model), want)
        if "fuse" not in options:
            assert state(again) == state(model)
        model.model.save_pretrained(tmp_path / "inner")
        inner = nvfp4.transformers.load(tmp_path / "inner", auto_class=AutoModel)
        assert len(layers_of(inner)) == 14
    other = copy.deepcopy(source("qwen2").base)
    nvfp4.load(tmp_path / "first", other)
    assert torch.equal(logits(other), want)
    other.save_pretrained(tmp_path / "third")
    assert state(load(tmp_path / "third")) == state(other)
    if format_name == "modelopt" and "ignore" not in options:
        nvfp4.quantize_model(again, ignore=(), activations=None)  # a layer more than the configuration has
        again.save_pretrained(tmp_path / "fourth")
        assert len(layers_of(load(tmp_path / "fourth"))) == 15 == len(layers_of(again))


def test_a_version_that_cannot_save_says_so(
    source: Callable[..., Source], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = copy.deepcopy(source().base)
    monkeypatch.setitem(sys.modules, "nvfp4.hosts.transformers.services", None)
    nvfp4.quantize_model(model)
    with pytest.raises(ValueError, match=r"is quantized with nvfp4, which .* cannot store \(call nvfp4.save\), and is"):
        model.save_pretrained(tmp_path / "first")
    assert not (tmp_path / "first").exists()


def test_device_map_of_the_cpu(source: Callable[..., Source], tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    own = source("qwen2")
    folder = own.write(tmp_path, "modelopt")
    places = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk", "model.norm": "cpu"}
    places |= {"model.rotary_emb": "cpu", "lm_head": "cpu"}
    want = logits(own.by_hand(torch.bfloat16))
    for device_map in ("cpu", places) if gpu() else ("cpu", "auto", places):
        model = load(folder, device_map=device_map, offload_folder=tmp_path / "offloaded")
        assert len(layers_of(model)) == 14 and torch.equal(logits(model), want)
        assert all(f"{folder}/model.safetensors" in mapping(layer.weight) for layer in layers_of(model).values())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # transformers' of offloaded modules
            model.save_pretrained(tmp_path / "again")
        assert torch.equal(logits(load(tmp_path / "again")), want)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("format_name", FORMATS)
def test_activations_of_the_caller(format_name: str, mode: str, source: Callable[..., Source], tmp_path: Path) -> None:
    """Another mode than the checkpoint's; saved, the configuration is that of the layers."""
    own = source("qwen2", mode)
    folder = own.write(tmp_path / "first", format_name)
    for activations in ("auto", "nvfp4", None):
        model = nvfp4.transformers.load(folder, activations=activations)
        expected = copy.deepcopy(own.base)
        nvfp4.load(folder, expected, activations=activations)
        assert state(model) == state(expected) and torch.equal(logits(model), logits(expected))
        wanted = MODES[mode] if activations == "auto" else activations
        assert {layer.activations for layer in layers_of(model).values()} == {wanted}
        assert torch.equal(logits(nvfp4.transformers.load(folder, config=model.config)), logits(own.by_hand(DTYPES[0])))
        if format_name == "modelopt" and mode == "W4A16" and activations == "nvfp4":
            with pytest.raises(nvfp4.Error, match=r"q_proj: is W4A4 without an input_global_scale; modelopt cannot"):
                model.save_pretrained(tmp_path / "second")
            continue
        model.save_pretrained(tmp_path / "second")
        again = load(tmp_path / "second")
        assert state(again) == state(model) and torch.equal(logits(again), logits(model))
        assert [layer.activations for layer in layers_of(again).values()] == [wanted] * 14
    with pytest.raises(nvfp4.Error, match=r"^activations: is 4; must be 'auto', 'nvfp4' or None$"):
        nvfp4.transformers.load(folder, activations=4)


# ---- the page, and the producers' own files ----


def test_the_example_of_the_page(source: Callable[..., Source], tmp_path: Path, capsys: Any) -> None:
    own = source()
    page = (ROOT / "docs" / "transformers.md").read_text(encoding="utf-8")
    example = page.split("```python\n")[1].split("```")[0]
    scope: dict[str, Any] = {"folder": str(own.write(tmp_path / "source", "modelopt")), "target": str(tmp_path / "t")}
    scope["compressed_tensors_folder"] = str(own.write(tmp_path / "ct", "compressed-tensors"))
    scope["ids"] = IDS
    exec(example, scope)
    assert capsys.readouterr().out.startswith("tensor([[")
    assert state(load(tmp_path / "t")) == state(scope["model"])
    assert len(layers_of(scope["other"])) == 14


@pytest.mark.parametrize("format_name", FORMATS)
def test_the_example_of_the_readme(
    format_name: str, source: Callable[..., Source], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside a vocabulary of single characters."""
    tokenizers = pytest.importorskip("tokenizers", reason="comes with transformers")
    own = source("llama")
    folder = own.write(tmp_path, format_name)
    characters = {chr(i) if 32 <= i < 127 else f"<{i}>": i for i in range(128)}
    letters = tokenizers.Tokenizer(tokenizers.models.WordLevel(characters, unk_token="<0>"))
    letters.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    transformers.PreTrainedTokenizerFast(tokenizer_object=letters).save_pretrained(folder)
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    example = page.split("## Run a checkpoint")[1].split("```python\n")[1].split("```")[0]
    assert example.count('folder = "Llama-3.1-8B-Instruct-NVFP4"') == 1 and len(example.splitlines()) == 8
    scope: dict[str, Any] = {}
    exec(example.replace('"Llama-3.1-8B-Instruct-NVFP4"', repr(str(folder))), scope)
    ids = scope["prompt"]["input_ids"]
    text = scope["tokenizer"].decode(scope["model"].generate(ids, max_new_tokens=16)[0])
    assert ids.shape == (1, 24) and capsys.readouterr().out == f"{text}\n"
    assert len(layers_of(scope["model"])) == 14


@pytest.mark.parametrize("kind", ["W4A4", "W4A16", "KV"])
def test_a_checkpoint_that_modelopt_exports(kind: str, source: Callable[..., Source], tmp_path: Path) -> None:
    mtq = pytest.importorskip("modelopt.torch.quantization")
    from modelopt.torch.export import export_hf_checkpoint

    settings = copy.deepcopy(mtq.NVFP4_DEFAULT_CFG)
    if kind == "W4A16":
        settings = copy.deepcopy(getattr(mtq, "W4A16_NVFP4_CFG", None) or mtq.NVFP4_W4A16_CFG)
    if kind == "KV":
        settings = mtq.update_quant_cfg_with_kv_cache_quant(settings, mtq.FP8_KV_CFG["quant_cfg"])
    base = source("qwen2").base
    with torch.no_grad():
        export_hf_checkpoint(
            mtq.quantize(copy.deepcopy(base), settings, lambda model: model(IDS)), export_dir=tmp_path / "first"
        )
    expected = copy.deepcopy(base)
    nvfp4.load(tmp_path / "first", expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "first")
    assert len(layers_of(model)) == 14 and len(model.hf_quantizer.skipped) == (4 if kind == "KV" else 0)
    assert torch.equal(logits(model), logits(expected)) and state(model) == state(expected)
    model.save_pretrained(tmp_path / "second")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the KV cache's scales, which are saved
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "second")
    assert state(again) == state(model)


@pytest.mark.parametrize("kind", ["W4A4", "W4A16"])
def test_a_checkpoint_that_compressed_tensors_writes(kind: str, source: Callable[..., Source], tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme, apply_quantization_config
    from compressed_tensors.quantization.quant_scheme import NVFP4, NVFP4A16

    base = source("qwen2").base
    model = copy.deepcopy(base)
    scheme = QuantizationScheme(targets=["Linear"], **copy.deepcopy(NVFP4 if kind == "W4A4" else NVFP4A16))
    apply_quantization_config(model, QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"]))
    with torch.no_grad():
        for layer in model.modules():
            if getattr(getattr(layer, "quantization_scheme", None), "weights", None):
                divisor = 448 * 6 / layer.weight.float().abs().max()
                layer.weight_global_scale.fill_(divisor)
                scale = layer.weight.float().view(layer.weight.shape[0], -1, 16).abs().amax(-1) / 6 * divisor
                layer.weight_scale.data = scale.to(torch.float8_e4m3fn).to(layer.weight_scale.dtype)
                if kind == "W4A4":
                    layer.input_global_scale.fill_(600.0)
        compressor = ModelCompressor.from_pretrained_model(model)
        compressor.compress_model(model)
        model.save_pretrained(tmp_path / "first")
        compressor.update_config(tmp_path / "first")
    expected = copy.deepcopy(base)
    nvfp4.load(tmp_path / "first", expected)
    loaded = nvfp4.transformers.load(tmp_path / "first")
    assert len(layers_of(loaded)) == 14
    assert torch.equal(logits(loaded), logits(expected)) and state(loaded) == state(expected)


# ---- a GPU ----


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("format_name", FORMATS)
def test_on_a_gpu(format_name: str, mode: str, source: Callable[..., Source], tmp_path: Path) -> None:
    """Moved there, and by each device_map: the bits of layers made by hand on the GPU."""
    if not gpu():
        pytest.skip(NO_GPU)
    own = source("qwen2", mode)
    folder = own.write(tmp_path / "first", format_name)
    for dtype in DTYPES:
        expected = own.by_hand(dtype).to("cuda")
        model = load(folder, dtype=dtype).to("cuda")
        assert torch.equal(logits(model), logits(expected)) and state(model) == state(expected)
    pytest.importorskip("accelerate")
    tokens = generate(model)
    places = {"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": "cpu", "model.norm": 0}
    places |= {"model.rotary_emb": 0, "lm_head": 0}
    for device_map in ("cuda", "auto", {"": 0}, places):
        model = load(folder, dtype=torch.float32, device_map=device_map)
        assert len(layers_of(model)) == 14
        assert all(layer.weight.is_cuda for layer in layers_of(model).values())
        assert torch.equal(logits(model), logits(expected))
        assert torch.equal(generate(model).to("cuda"), tokens)  # "auto" takes all GPUs
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # transformers' of offloaded modules
            model.save_pretrained(tmp_path / "second")
        assert torch.equal(logits(load(tmp_path / "second").to("cuda")), logits(expected))
