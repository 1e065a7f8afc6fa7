"""nvfp4.load: files as the producers write them, into models; what does not fit."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from error_bounds import U, gamma
from memory_maps import mapping
from paths import ROOT
from torch import Tensor, nn

import nvfp4
from nvfp4.checkpoints import compressed_tensors, modelopt
from nvfp4.layers.packed import PackedLinear

safetensors = pytest.importorskip("safetensors.torch", reason="comes with the extra `test`")

FOUR = {"num_bits": 4, "type": "float", "group_size": 16}
LOCAL = FOUR | {"dynamic": "local"}
FP8 = torch.float8_e4m3fn
FORMATS = {"modelopt": modelopt, "compressed-tensors": compressed_tensors}


class Model(nn.Module):
    """Two layers to quantize, a head that is not, a norm, a tied embedding, buffers in and outside the state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 64)
        self.block = nn.ModuleDict({"up": nn.Linear(64, 96), "down": nn.Linear(96, 64, bias=False)})
        self.norm = nn.LayerNorm(64)
        self.lm_head = nn.Linear(64, 50, bias=False)
        self.lm_head.weight = self.embed.weight
        self.register_buffer("offset", torch.zeros(2))
        self.register_buffer("steps", torch.arange(3), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        return self.lm_head(self.norm(x + self.block["down"](self.block["up"](x).relu())))


def config_of(format_name: str, w4a4: bool) -> dict[str, Any]:
    if format_name == "modelopt":
        algorithm = "NVFP4" if w4a4 else "W4A16_NVFP4"
        return {"quant_method": format_name, "quant_algo": algorithm, "ignore": ["lm_head", "embed*"]}
    group = {"targets": ["Linear"], "weights": FOUR, "input_activations": LOCAL if w4a4 else None}
    return {"quant_method": format_name, "ignore": ["lm_head"], "config_groups": {"group_0": group}}


def quantized(w4a4: bool = True) -> Model:
    """A model whose global scales are powers of two: compressed-tensors' divisors are exact then."""
    torch.manual_seed(0)
    model = Model()
    model.offset += 0.5
    for name, layer in list(model.block.items()):
        packed = nvfp4.Linear.from_linear(layer, "nvfp4" if w4a4 else None).packed()
        scales = (torch.tensor(2.0**-11), torch.tensor(2.0**-9) if w4a4 else None)
        packed = PackedLinear(packed.weight, packed.weight_scale, *scales, packed.bias, packed.activations)
        model.block[name] = nvfp4.Linear.from_packed(packed)
    return model


def tensors_of(model: Model, format_name: str) -> dict[str, Tensor]:
    tensors = {name: t for name, t in model.state_dict().items() if not name.startswith(("block", "lm_head"))}
    for name, layer in model.block.items():
        tensors |= {f"block.{name}.{key}": t for key, t in FORMATS[format_name].write(layer.packed()).items()}
    return {name: t.clone() for name, t in tensors.items()}


def write(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any] | None) -> Path:
    safetensors.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    content = {"model_type": "llama"} | ({} if config is None else {"quantization_config": config})
    (folder / "config.json").write_text(json.dumps(content))
    return folder


def state(model: nn.Module) -> dict[str, Any]:
    named = (*model.named_parameters(), *model.named_buffers())
    return {name: (t.dtype, t.detach().reshape(-1).view(torch.uint8).tolist()) for name, t in named}


@pytest.mark.parametrize("meta", [False, True])
@pytest.mark.parametrize("w4a4", [False, True])
@pytest.mark.parametrize("format_name", FORMATS)
def test_a_folder_into_a_model(format_name: str, w4a4: bool, meta: bool, tmp_path: Path) -> None:
    source = quantized(w4a4)
    tensors = tensors_of(source, format_name) | {"block.up.k_scale": torch.ones(2)}  # 8 bytes: keeps others aligned
    write(tmp_path, tensors, config_of(format_name, w4a4))
    with torch.device("meta" if meta else "cpu"):
        model = Model()
    model.steps = torch.arange(3)
    checkpoint = nvfp4.load(tmp_path, model)
    assert checkpoint.format == format_name and set(checkpoint.layers) == {"block.up", "block.down"}
    assert set(checkpoint.tensors) == {"embed.weight", "norm.weight", "norm.bias", "offset"}
    counts = "2 layers, 0 stacks of experts, 4 other tensors, 1 skipped"
    assert repr(checkpoint) == f"<nvfp4 checkpoint: {format_name}, {counts}>"
    assert checkpoint.skipped == {"block.up.k_scale": "is a scale of the KV cache, which nvfp4 does not have"}
    assert model.lm_head.weight is model.embed.weight and isinstance(model.norm.weight, nn.Parameter)
    assert state(model) == state(source)
    assert model.block["up"].activations == ("nvfp4" if w4a4 else None)
    ids = torch.arange(50).view(2, 25)
    with torch.no_grad():
        assert torch.equal(model(ids), source(ids))
    if meta:
        file = str(tmp_path / "model.safetensors")
        assert all(file in mapping(t) for t in (model.block["up"].weight, model.norm.weight))


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_dict_has_its_format_in_its_names(format_name: str) -> None:
    for w4a4 in (False, True):
        source, model = quantized(w4a4), Model()
        checkpoint = nvfp4.load(tensors_of(source, format_name), model)
        assert checkpoint.format == format_name and state(model) == state(source)
        assert checkpoint.layers["block.up"].activations == ("nvfp4" if w4a4 else None)
        assert nvfp4.load(tensors_of(source, format_name)).skipped == {}


def test_shards(tmp_path: Path) -> None:
    """A layer's tensors in two files; the index names the files, and files that it does not name are not read."""
    source, model = quantized(), Model()
    tensors = tensors_of(source, "modelopt")
    files = [{}, {}]
    for i, (name, t) in enumerate(sorted(tensors.items())):
        files[i % 2][name] = t
    for i, content in enumerate(files):
        safetensors.save_file(content, tmp_path / f"model-{i}.safetensors")
    safetensors.save_file({"other": torch.ones(1)}, tmp_path / "other.safetensors")
    index = {"weight_map": {name: f"model-{i}.safetensors" for i, content in enumerate(files) for name in content}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    quantization = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(quantization))
    assert len(nvfp4.load(tmp_path, model).layers) == 2 and state(model) == state(source)


def test_one_file(tmp_path: Path) -> None:
    """Its folder's configuration counts."""
    path = write(tmp_path, tensors_of(quantized(), "modelopt"), config_of("modelopt", True)) / "model.safetensors"
    assert nvfp4.load(path).layers["block.down"].activations == "nvfp4"
    (tmp_path / "config.json").unlink()
    assert nvfp4.load(path).format == "modelopt"


def test_layers_that_are_quantized_otherwise_are_kept_as_they_are() -> None:
    """Layers of integers and W4A8 layers of mixed precision."""
    tensors = tensors_of(quantized(), "modelopt")
    int8 = {"weight": torch.zeros(8, 32, dtype=torch.int8), "weight_scale": torch.ones(8)}
    tensors |= {f"w4a8.{name}": t for name, t in modelopt.write(quantized(False).block["up"].packed()).items()}
    tensors |= {f"int8.{name}": t for name, t in int8.items()}
    layers = {"block.up": "NVFP4", "block.down": "NVFP4", "int8": "INT8_SQ", "w4a8": "W4A8_NVFP4_FP8"}
    layers = {name: {"quant_algo": algorithm} for name, algorithm in layers.items()}
    from nvfp4.checkpoints.modules import read_modules

    recipe = modelopt.recipe({"quant_algo": "MIXED_PRECISION", "quantized_layers": layers})
    checkpoint = read_modules(tensors, recipe)
    assert set(checkpoint.layers) == {"block.up", "block.down"}
    assert checkpoint.skipped == {
        "w4a8": "is quantized in another way: W4A8_NVFP4_FP8",
        "int8": "is quantized in another way: INT8_SQ",
    }
    assert {"int8.weight", "norm.weight"} <= set(checkpoint.tensors)


def test_two_groups_of_compressed_tensors(tmp_path: Path) -> None:
    """FP8 for the class Linear, which names do not tell from other modules; NVFP4 for some names."""
    tensors = tensors_of(quantized(), "compressed-tensors")
    tensors |= {"q.weight": torch.zeros(8, 8).to(FP8), "q.weight_scale": torch.ones(8, 1)}
    tensors |= {"q.input_scale": torch.ones(1)}
    config = config_of("compressed-tensors", True)
    fp8 = {"num_bits": 8, "type": "float"}
    groups = config["config_groups"] | {"group_1": {"targets": ["Linear"], "weights": fp8, "input_activations": fp8}}
    groups["group_0"]["targets"] = ["re:block.*"]
    checkpoint = nvfp4.load(write(tmp_path, tensors, config | {"config_groups": groups}))
    assert set(checkpoint.layers) == {"block.up", "block.down"}
    assert set(checkpoint.fp8) == {"q"} and checkpoint.skipped == {}
    assert set(checkpoint.tensors) == {"embed.weight", "norm.weight", "norm.bias", "offset"}


def test_an_activation_scale_of_its_own_needs_none_stored(tmp_path: Path) -> None:
    tensors = tensors_of(quantized(False), "compressed-tensors")
    config = config_of("compressed-tensors", True)
    config["config_groups"]["group_0"]["input_activations"] = FOUR | {"dynamic": True}
    layer = nvfp4.load(write(tmp_path, tensors, config)).layers["block.up"]
    assert layer.activations == "nvfp4" and layer.input_global_scale is None


@pytest.mark.parametrize("w4a4", [False, True])
@pytest.mark.parametrize("format_name", FORMATS)
def test_activations_of_the_caller(format_name: str, w4a4: bool) -> None:
    """Another mode than the checkpoint's; of experts too."""
    tensors = tensors_of(quantized(w4a4), format_name)
    stack = {name.replace("block.up", "experts"): t for name, t in tensors.items() if name.startswith("block.up")}
    stack = {name: torch.stack([t, t]) for name, t in stack.items()}
    for activations in ("auto", "nvfp4", None):
        model, mode = Model(), ("nvfp4" if w4a4 else None) if activations == "auto" else activations
        checkpoint = nvfp4.load(tensors, model, activations=activations)
        experts = nvfp4.load(tensors | stack, activations=activations).experts["experts"]
        for layer in (*checkpoint.layers.values(), *model.block.values(), *experts):
            assert layer.activations == mode
            assert (layer.input_global_scale is not None) == (w4a4 and mode is not None)
        expected = nvfp4.Linear.from_packed(checkpoint.layers["block.up"])
        x = torch.randn(3, 64)
        with torch.no_grad():
            assert torch.equal(model.block["up"](x), expected(x))
        w16 = quantized(False)
        assert activations is not None or state(model) == state(w16)
    with pytest.raises(nvfp4.Error, match=r"^activations: is 'W4A16'; must be 'auto', 'nvfp4' or None$"):
        nvfp4.load(tensors, Model(), activations="W4A16")


def test_a_source_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(nvfp4.Error) as error:
        nvfp4.load(tmp_path / "none")
    assert str(error.value) == f"{tmp_path / 'none'}: does not exist"
    for source, model, message in (
        (None, None, "source: is of type NoneType; must be a path, or a dict of tensors by name"),
        ({"a.weight_packed": 1}, None, "a.weight_packed: is of type int; must be a torch.Tensor"),
        ({1: torch.ones(1)}, None, "source: a name: is of type int; must be a string"),
        ({}, {}, "model: is of type dict; must be a torch.nn.Module"),
    ):
        with pytest.raises(nvfp4.Error) as error:
            nvfp4.load(source, model)
        assert str(error.value) == message
    with pytest.raises(nvfp4.Error, match=r"^source: has no weight_packed \(compressed-tensors\), no "):
        nvfp4.load({"weight": torch.ones(2, 2)})


def test_a_model_that_does_not_fit() -> None:
    tensors = tensors_of(quantized(), "modelopt")

    def model(**layers: nn.Module) -> Model:
        own = Model()
        own.block.update(layers)
        return own

    extra = Model()
    extra.more = nn.Parameter(torch.ones(1))
    for message, own, given in (
        ("block.up: is 96 x 64 (N x K); must be 96 x 32 for the model", model(up=nn.Linear(32, 96)), tensors),
        ("block.up.bias: is in the checkpoint but not in the model", model(up=nn.Linear(64, 96, False)), tensors),
        ("block.down.bias: is in the model but not in the checkpoint", model(down=nn.Linear(96, 64)), tensors),
        ("block.up: is a Identity in the model; must be a torch.nn.Linear", model(up=nn.Identity()), tensors),
        ("more: is in the model but not in the checkpoint", extra, tensors),
        ("rope: is in the checkpoint but not in the model", Model(), tensors | {"rope": torch.ones(2)}),
        ("block.up: is a layer of the checkpoint but no module of the model", nn.Sequential(), tensors),
    ):
        before = copy.deepcopy(own)
        with pytest.raises(nvfp4.Error) as error:
            nvfp4.load(given, own)
        assert str(error.value) == message
        assert state(own) == state(before)


# ---- the producers' own files ----


def tiny_llama() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    others = {"num_key_value_heads": 2, "vocab_size": 512, "architectures": ["LlamaForCausalLM"]}
    config = transformers.LlamaConfig(**sizes, **others, max_position_embeddings=128)
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()


def test_the_example_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a folder as ModelOpt writes one."""
    base, ids = tiny_llama(), torch.arange(32)[None]
    base.config.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"quantization_config": config_of("modelopt", True)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    nvfp4.quantize_model(base, calibrate=lambda model: model(ids))
    layers = {name: module for name, module in base.named_modules() if isinstance(module, nvfp4.Linear)}
    tensors = {name: t for name, t in base.state_dict().items() if name.rpartition(".")[0] not in layers}
    for name, layer in layers.items():
        tensors |= {f"{name}.{key}": t for key, t in modelopt.write(layer.packed()).items()}
    safetensors.save_file(tensors, tmp_path / "model.safetensors")
    page = (ROOT / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    example = page.split("## Load a checkpoint")[1].split("```python\n")[1].split("```")[0]
    scope = {"nvfp4": nvfp4, "folder": str(tmp_path)}
    exec(example, scope)
    assert capsys.readouterr().out == "modelopt 14 {}\n"
    with torch.no_grad():
        assert torch.equal(scope["model"].to(torch.bfloat16)(ids).logits, base(ids).logits)


@pytest.mark.parametrize("kind", ["W4A4", "W4A16", "KV"])
def test_a_checkpoint_that_modelopt_exports(kind: str, tmp_path: Path, generator: torch.Generator) -> None:
    """Each layer computes the product of what ModelOpt's own functions decode and quantize, in fp64, but for the
    roundings of fp32. (ModelOpt's simulated quantization needs a GPU.) Inputs lie on the grid, where one formula for
    their scales cannot round otherwise than the other."""
    mtq = pytest.importorskip("modelopt.torch.quantization")
    from modelopt.torch.export import export_hf_checkpoint
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    def decoded(quantized: Any, scale: Tensor, scale_2: Tensor) -> Tensor:
        options = {"scale": scale, "double_scale": scale_2, "block_sizes": {-1: 16}}
        return quantized.dequantize(torch.float32, **options).double()

    base, ids = tiny_llama(), torch.arange(64).view(2, 32)
    settings = copy.deepcopy(mtq.NVFP4_DEFAULT_CFG)
    if kind == "W4A16":
        settings = copy.deepcopy(getattr(mtq, "W4A16_NVFP4_CFG", None) or mtq.NVFP4_W4A16_CFG)
    if kind == "KV":
        settings = mtq.update_quant_cfg_with_kv_cache_quant(settings, mtq.FP8_KV_CFG["quant_cfg"])
    with torch.no_grad():
        calibrated = mtq.quantize(copy.deepcopy(base), settings, lambda model: model(ids))
        export_hf_checkpoint(calibrated, export_dir=tmp_path)
        checkpoint = nvfp4.load(tmp_path, base)
        assert base(ids).logits.isfinite().all()
    stored = safetensors.load_file(tmp_path / "model.safetensors")
    assert len(checkpoint.layers) == 14 and len(checkpoint.skipped) == (4 if kind == "KV" else 0)
    for name, packed in checkpoint.layers.items():
        shape = torch.Size((packed.out_features, packed.in_features))
        quantized = NVFP4QTensor(shape, torch.float32, stored[f"{name}.weight"])
        w = decoded(quantized, stored[f"{name}.weight_scale"], stored[f"{name}.weight_scale_2"])
        table = torch.tensor([0.5, -1.0, 1.5, -2.0, 3.0, -4.0, 6.0])
        x = table[torch.randint(0, 7, (5, packed.in_features), generator=generator)]
        x[:, ::16] = 6.0
        scales = torch.rand(5, packed.in_features // 16, generator=generator).add(0.1).to(FP8).float()
        x = x * scales.repeat_interleave(16, dim=-1)
        assert packed.activations == (None if kind == "W4A16" else "nvfp4")
        seen = x.double()
        if packed.input_global_scale is not None:
            x = x * packed.input_global_scale
            seen = decoded(*NVFP4QTensor.quantize(x.clone(), 16, None, packed.input_global_scale))
            assert ((seen - x.double()).abs() <= 3 * U * x.double().abs()).all()
        got = base.get_submodule(name)(x).double()
        bound = gamma(2 * packed.in_features + 9) * (seen.abs() @ w.abs().T)
        assert ((got - seen @ w.T).abs() <= bound).all()


@pytest.mark.parametrize("w4a4", [False, True])
def test_a_checkpoint_that_compressed_tensors_saves(w4a4: bool, tmp_path: Path) -> None:
    """Every weight equals the one that its own decompressor gives, within the roundings of bf16."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationConfig,
        QuantizationScheme,
        apply_quantization_config,
        quant_scheme,
    )

    base = tiny_llama()
    model = copy.deepcopy(base)
    scheme = copy.deepcopy(quant_scheme.NVFP4 if w4a4 else quant_scheme.NVFP4A16)
    groups = {"group_0": QuantizationScheme(targets=["Linear"], **scheme)}
    apply_quantization_config(model, QuantizationConfig(config_groups=groups, ignore=["lm_head"]))
    for module in model.modules():
        if getattr(getattr(module, "quantization_scheme", None), "weights", None):
            weight = module.weight.data.float()
            divisor = 448 * 6 / weight.abs().max()
            module.weight_global_scale.data.fill_(divisor)
            scale = weight.view(len(weight), -1, 16).abs().amax(-1) / 6 * divisor
            module.weight_scale.data = scale.to(FP8).to(module.weight_scale.dtype)
            if w4a4:
                module.input_global_scale.data.fill_(448 * 6 / 4.0)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(tmp_path)
    compressor.update_config(tmp_path)
    original = {name: module.weight for name, module in base.named_modules() if isinstance(module, nn.Linear)}
    checkpoint = nvfp4.load(tmp_path, base)
    assert len(checkpoint.layers) == 14 and "lm_head.weight" in checkpoint.tensors
    for name, packed in checkpoint.layers.items():
        assert packed.activations == ("nvfp4" if w4a4 else None)
        layer = base.get_submodule(name)
        w = nvfp4.dequantize(layer.weight, layer.weight_scale, global_scale=layer.weight_global_scale)
        assert (w - original[name].float()).norm() / w.norm() < 0.12
    with torch.no_grad():
        assert base(torch.arange(32)[None]).logits.isfinite().all()
