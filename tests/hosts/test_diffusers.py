"""nvfp4.diffusers: models quantized while they are loaded, saved and loaded again, single files, adapters, errors."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import NO_GPU
from torch import Tensor, nn

import nvfp4
from nvfp4.checkpoints import comfy_kitchen, modelopt

pytest.importorskip("transformers")
pytest.importorskip("diffusers")
safetensors = pytest.importorskip("safetensors.torch", reason="comes with diffusers")
import diffusers  # noqa: E402
import tiny_pipelines  # noqa: E402
from diffusers.models.modeling_utils import get_parameter_dtype  # noqa: E402
from diffusers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING  # noqa: E402

import nvfp4.diffusers  # noqa: E402
from nvfp4.hosts.diffusers.quantization_config import OUTSIDE  # noqa: E402
from nvfp4.hosts.diffusers.while_loading import blocks_of, kept_by  # noqa: E402

diffusers.utils.logging.disable_progress_bar()
NVFP4Config, SingleFileConfig = nvfp4.diffusers.NVFP4Config, nvfp4.diffusers.SingleFileConfig
MODELS = tiny_pipelines.MODELS
BF16 = torch.bfloat16


def dense(folder: Path, name: str = "flux", **more: Any) -> Path:
    """A random model in bfloat16, whose biases are random too."""
    model = MODELS[name]().to(BF16)
    for key, parameter in model.named_parameters():
        if key.endswith("bias"):
            nn.init.normal_(parameter)
    model.save_pretrained(folder, **more)
    return folder


def load(folder: Path, name: str = "flux", config: Any = None, **more: Any) -> Any:
    kind = type(MODELS[name]())
    given = {} if config is None else {"quantization_config": config}
    return kind.from_pretrained(folder, **{"torch_dtype": BF16, **given, **more})


def layers_of(model: nn.Module) -> dict[str, nvfp4.Linear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, nvfp4.Linear)}


def same(a: nn.Module, b: nn.Module) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(
        t.dtype == theirs[key].dtype and torch.equal(t, theirs[key]) for key, t in ours.items()
    )


def inputs(dtype: torch.dtype = BF16) -> dict[str, Tensor]:
    """Inputs of the tiny Flux."""
    return {
        "hidden_states": torch.randn(2, 16, 16, dtype=dtype),
        "encoder_hidden_states": torch.randn(2, 8, 32, dtype=dtype),
        "pooled_projections": torch.randn(2, 32, dtype=dtype),
        "timestep": torch.tensor([0.5, 0.25], dtype=dtype),
        "img_ids": torch.rand(16, 3).round(),
        "txt_ids": torch.zeros(8, 3),
    }


def call(model: nn.Module, given: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return model(**given).sample


# --- quantized while loaded ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_each_class_becomes_what_quantize_model_makes(name: str, tmp_path: Path) -> None:
    """The layers in the blocks are NVFP4, bytes are those of quantize_model, and save_pretrained keeps them."""
    folder = dense(tmp_path / "dense", name)
    model = load(folder, name, NVFP4Config())
    expected = load(folder, name)
    ignore = kept_by(expected, "outside_blocks")
    report = nvfp4.quantize_model(expected, ignore=ignore, activations=None)
    assert same(model, expected) and [row.name for row in model.hf_quantizer.report.layers] == [
        row.name for row in report.layers
    ]
    blocks = {block for names in blocks_of(model).values() for block in names}
    assert len(blocks) >= 2 and all(any(key.startswith(f"{block}.") for block in blocks) for key in layers_of(model))
    model.save_pretrained(tmp_path / "saved")
    again = load(tmp_path / "saved", name)
    assert same(again, model) and {layer.activations for layer in layers_of(again).values()} == {None}
    again.save_pretrained(tmp_path / "twice")
    first, second = (tmp_path / each / "diffusion_pytorch_model.safetensors" for each in ("saved", "twice"))
    assert first.read_bytes() == second.read_bytes()
    configs = [json.loads((tmp_path / each / "config.json").read_text()) for each in ("saved", "twice")]
    assert configs[0]["quantization_config"] == configs[1]["quantization_config"]
    assert configs[0]["quantization_config"]["quant_method"] == "modelopt"


@pytest.mark.parametrize("more", [{}, {"weights": "search"}, {"block_scale": "four_over_six"}])
@pytest.mark.parametrize("activations", ["nvfp4", None])
def test_options(activations: str | None, more: dict[str, Any], tmp_path: Path) -> None:
    folder = dense(tmp_path / "dense")
    model = load(folder, config=NVFP4Config(activations, **more))
    expected = load(folder)
    nvfp4.quantize_model(expected, ignore=kept_by(expected, "outside_blocks"), activations=activations, **more)
    given = inputs()
    assert torch.equal(call(model, given), call(expected, given))
    model.save_pretrained(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert torch.equal(call(again, given), call(model, given)) or more.get("block_scale") == "four_over_six"
    assert {layer.activations for layer in layers_of(again).values()} == {activations}
    method = json.loads((tmp_path / "saved/config.json").read_text())["quantization_config"]["quant_method"]
    assert method == ("modelopt" if activations is None else "compressed-tensors")


def test_presets_and_patterns(tmp_path: Path) -> None:
    folder = dense(tmp_path, "qwen")
    model = load(folder, "qwen", NVFP4Config(ignore="outside_and_edge_blocks"))
    assert {key.split(".")[1] for key in layers_of(model)} == {"1"}
    why = model.hf_quantizer.report.skipped
    assert why["img_in"] == why["transformer_blocks.0.attn.to_q"] == "ignore is 'outside_and_edge_blocks'"
    model = load(folder, "qwen", NVFP4Config(ignore=["*attn*", "norm_out"]))
    assert not any("attn" in key for key in layers_of(model)) and "proj_out" in layers_of(model)
    assert load(folder, "qwen", NVFP4Config(modules_to_not_convert=["*attn*"])).hf_quantizer.report
    unet = MODELS["unet"]()
    kept = " ".join(kept_by(unet, "outside_blocks"))
    assert "time_emb_proj" in kept and "time_embedding" in kept and "attn1" not in kept


def test_what_is_no_block() -> None:
    """HiDream's list of projections of text, and the embedders of the time step in DiT's blocks."""
    block = nn.ModuleDict({"timestep_embedder": nn.Linear(16, 16), "ff": nn.Linear(16, 16)})
    lists = {"caption_projection": nn.ModuleList([nn.Linear(16, 16)]), "blocks": nn.ModuleList([block])}
    model = nn.ModuleDict(lists)
    assert blocks_of(model) == {"blocks": ["blocks.0"]}
    kept = kept_by(model, OUTSIDE)
    assert kept == [f"re:{re.escape(name)}$" for name in ("caption_projection.0", "blocks.0.timestep_embedder")]


def test_a_layer_whose_dtype_is_asked_for() -> None:
    """MiniMax H3 has such layers: diffusers' function takes the dtype of a buffer where there is no parameter."""

    class Modulation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.other = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            return self.other(self.linear(x.to(get_parameter_dtype(self.linear))))

    model = nn.Sequential(Modulation())
    report = nvfp4.quantize_model(model, activations=None)
    assert layers_of(model).keys() == {"0.other"} and "Modulation" in report.skipped["0.linear"]
    model(torch.randn(2, 16))


def test_dtypes_and_shards(tmp_path: Path) -> None:
    folder = dense(tmp_path / "dense", max_shard_size="40KB")
    assert len([*folder.glob("*.safetensors")]) > 2
    for dtype in (torch.float32, torch.float16):
        model = load(folder, config=NVFP4Config(), torch_dtype=dtype)
        layer = model.transformer_blocks[0].attn.to_q
        assert layer.dtype == layer.bias.dtype == model.x_embedder.weight.dtype == dtype
        assert call(model, inputs(dtype)).dtype == dtype
    model.save_pretrained(tmp_path / "saved", max_shard_size="40KB")
    assert len([*(tmp_path / "saved").glob("*.safetensors")]) > 2
    assert same(load(tmp_path / "saved", torch_dtype=torch.float16), model)


def test_results_are_those_of_the_dequantized_weights(tmp_path: Path) -> None:
    """In fp32: sums in another order."""
    folder, given = dense(tmp_path), inputs(torch.float32)
    model = load(folder, config=NVFP4Config(), torch_dtype=torch.float32)
    y = call(model, given)
    other = load(folder, config=NVFP4Config(), torch_dtype=torch.float32).dequantize()
    assert not layers_of(other) and not hasattr(other, "hf_quantizer")
    assert torch.allclose(call(other, given), y, atol=1e-5, rtol=1e-4)
    other.save_pretrained(tmp_path / "dense again")
    assert "quantization_config" not in json.loads((tmp_path / "dense again/config.json").read_text())
    assert same(load(tmp_path / "dense again", torch_dtype=torch.float32), other)


def test_compiled(tmp_path: Path) -> None:
    model, given = load(dense(tmp_path), config=NVFP4Config(), torch_dtype=torch.float32), inputs(torch.float32)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.allclose(call(compiled, given), call(model, given), atol=1e-5, rtol=1e-4)


# --- models that were quantized otherwise -------------------------------------------------------------------------


def test_save_pretrained_of_a_model_that_quantize_model_changed(tmp_path: Path) -> None:
    model = load(dense(tmp_path / "dense"))
    nvfp4.quantize_model(model, ignore=["*embed*", "proj_out", "norm_out*"], activations=None)
    model.save_pretrained(tmp_path / "saved")
    assert same(load(tmp_path / "saved"), model)
    model.save_pretrained(tmp_path / "saved")  # and once more
    nvfp4.dequantize_model(model)
    model.save_pretrained(tmp_path / "dense again")
    assert same(load(tmp_path / "dense again"), model)


def test_modes_mixed_after_loading(tmp_path: Path) -> None:
    """The format in which a model is saved follows from its layers then."""
    model, given = load(dense(tmp_path / "dense"), config=NVFP4Config(ignore="outside_and_edge_blocks")), inputs()
    nvfp4.quantize_model(model, ignore=["*embed*", "proj_out", "norm_out*"])
    model.save_pretrained(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert {layer.activations for layer in layers_of(again).values()} == {None, "nvfp4"}
    assert same(again, model) and torch.equal(call(again, given), call(model, given))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_is_saved_as_it_is(copied: Callable[[Any], Any], tmp_path: Path) -> None:
    """Not as the model that it was made of, whatever becomes of that."""
    model, given = load(dense(tmp_path / "dense"), config=NVFP4Config()), inputs()
    second, linear = copied(model), nn.Linear(256, 64, dtype=BF16)
    second.set_submodule(NAME, nvfp4.Linear.from_linear(linear, activations=None))
    model.dequantize()
    with pytest.raises(nvfp4.Error, match="^model: has NVFP4 layers"):
        second.fuse_qkv_projections()
    for folder in ("saved", "without the original"):
        second.save_pretrained(tmp_path / folder)
        again = load(tmp_path / folder)
        assert same(again, second) and torch.equal(call(again, given), call(second, given))
        model = None
        gc.collect()
    assert copy.deepcopy(second.hf_quantizer.quantization_config).model() is second


@pytest.mark.parametrize("how", ["config", "folder", "quantize_model"])
def test_nvfp4_save(how: str, tmp_path: Path) -> None:
    folder = dense(tmp_path / "dense")
    model = load(folder, config=None if how == "quantize_model" else NVFP4Config())
    if how == "quantize_model":
        nvfp4.quantize_model(model, ignore=kept_by(model, OUTSIDE), activations=None)
    elif how == "folder":
        model.save_pretrained(tmp_path / "first")
        model = load(tmp_path / "first")
    nvfp4.save(model, tmp_path / "saved")
    again = load(folder)
    nvfp4.load(tmp_path / "saved", again)
    assert same(again, model)


def test_calibrated_scales_are_kept(tmp_path: Path) -> None:
    model, given = load(dense(tmp_path / "dense")), inputs()
    ignore = kept_by(model, "outside_blocks")
    nvfp4.quantize_model(model, ignore=ignore, calibrate=lambda model: call(model, given))
    model.save_pretrained(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert same(again, model) and torch.equal(call(again, given), call(model, given))
    config = json.loads((tmp_path / "saved/config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "modelopt" and config["quant_algo"] == "NVFP4"


def test_fp8_layers_beside(tmp_path: Path) -> None:
    """ModelOpt's mixed precision: one layer in FP8, which is an Fp8Linear."""
    folder = tmp_path / "saved"
    load(dense(tmp_path / "dense"), config=NVFP4Config()).save_pretrained(folder)
    file, name = folder / "diffusion_pytorch_model.safetensors", "transformer_blocks.0.ff.net.2"
    tensors = safetensors.load_file(file)
    rows, columns = tensors[f"{name}.weight"].shape
    tensors = {key: t for key, t in tensors.items() if not key.startswith(f"{name}.weight")}
    tensors[f"{name}.weight"] = torch.randn(rows, 2 * columns).to(torch.float8_e4m3fn)
    tensors[f"{name}.weight_scale"] = torch.tensor(0.01)
    tensors[f"{name}.input_scale"] = torch.tensor(0.1)
    safetensors.save_file(tensors, file, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    layers = {key.removesuffix(".weight_scale_2") for key in tensors if key.endswith("weight_scale_2")}
    modes: dict[str, Any] = {layer: {"quant_algo": "W4A16_NVFP4", "group_size": 16} for layer in layers}
    modes[name] = {"quant_algo": "FP8"}
    config["quantization_config"] = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": modes,
    }
    (folder / "config.json").write_text(json.dumps(config))
    model = load(folder)
    assert isinstance(model.get_submodule(name), nvfp4.Fp8Linear) and call(model, inputs()).isfinite().all()
    model.save_pretrained(tmp_path / "again")
    assert same(load(tmp_path / "again"), model)


# --- single files -------------------------------------------------------------------------------------------------

FLUX2 = {
    "x_embedder": "img_in",
    "context_embedder": "txt_in",
    "time_guidance_embed.timestep_embedder.linear_": "time_in.",
    "time_guidance_embed.guidance_embedder.linear_": "guidance_in.",
    "_modulation_img.linear": "_modulation_img.lin",
    "_modulation_txt.linear": "_modulation_txt.lin",
    "single_stream_modulation.linear": "single_stream_modulation.lin",
    "in.1": "in.in_layer",
    "in.2": "in.out_layer",
    "norm_out.linear": "final_layer.adaLN_modulation.1",
    "attn.to_qkv_mlp_proj": "linear1",
    "attn.norm_added_q": "txt_attn.norm.query_norm",
    "attn.norm_added_k": "txt_attn.norm.key_norm",
    "attn.norm_q": "img_attn.norm.query_norm",
    "attn.norm_k": "img_attn.norm.key_norm",
    "attn.to_out.0": "img_attn.proj",
    "attn.to_add_out": "txt_attn.proj",
    "attn.to_out": "linear2",
    "ff.linear_in": "img_mlp.0",
    "ff.linear_out": "img_mlp.2",
    "ff_context.linear_in": "txt_mlp.0",
    "ff_context.linear_out": "txt_mlp.2",
    "single_transformer_blocks": "single_blocks",
    "transformer_blocks": "double_blocks",
}
JOINED = {"img": ("to_q", "to_k", "to_v"), "txt": ("add_q_proj", "add_k_proj", "add_v_proj")}


def original(name: str) -> str:
    """The name of a module of Flux 2 in a single file."""
    for ours, theirs in FLUX2.items():
        name = name.replace(ours, theirs)
    if name == "proj_out":
        return "final_layer.linear"
    return name.replace("img_attn.norm", "norm") if name.startswith("single_blocks") else name


Writer = Callable[[Any], dict[str, Tensor]]


def write_flux2(file: Path, model: Any, write: Writer, prefix: str = "") -> dict[str, Tensor]:
    """Writes the layers of a dense model's blocks as NVFP4, q, k and v as one layer. Returns their weights as the file
    has them, by the model's names."""
    blocks = {block for names in blocks_of(model).values() for block in names}
    weights: dict[str, Tensor] = {}
    tensors: dict[str, Tensor] = {}

    def add(name: str, ours: tuple[str, ...]) -> None:
        whole = torch.cat([model.get_submodule(each).weight.detach() for each in ours])
        linear = nn.Linear(whole.shape[1], whole.shape[0], bias=False, dtype=BF16)
        linear.weight = nn.Parameter(whole)
        layer = nvfp4.Linear.from_linear(linear, activations=None)
        tensors.update({f"{prefix}{name}.{key}": t for key, t in write(layer.packed()).items()})
        parts = layer.to_linear().weight.detach().chunk(len(ours))
        weights.update(zip(ours, parts))

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and any(name.startswith(f"{block}.") for block in blocks):
            parent, _, own = name.rpartition(".")
            side = next((side for side, names in JOINED.items() if own in names), None)
            if side is None:
                add(original(name), (name,))
            elif own == JOINED[side][0]:
                block = original(parent.removesuffix(".attn"))
                add(f"{block}.{side}_attn.qkv", tuple(f"{parent}.{each}" for each in JOINED[side]))
    for key, t in model.state_dict().items():
        name, _, local = key.rpartition(".")
        if name in weights:
            continue
        if name == "norm_out.linear":
            t = torch.cat(t.chunk(2)[::-1])
        name = original(name)
        tensors[f"{prefix}{name}.{'scale' if re.search('(query|key)_norm$', name) else local}"] = t.contiguous()
    safetensors.save_file(tensors, file)
    return weights


def modelopt_of(packed: Any) -> dict[str, Tensor]:
    return modelopt.write(packed)


def comfy_of(packed: Any) -> dict[str, Tensor]:
    return comfy_kitchen.write(packed)


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
@pytest.mark.parametrize("format, write", [("modelopt", modelopt_of), ("comfy-kitchen", comfy_of)])
def test_single_files(format: str, write: Writer, prefix: str, tmp_path: Path) -> None:
    """q, k and v, which are one layer in the file, are views of its rows with its global scale."""
    folder, file = dense(tmp_path / "dense", "flux2"), tmp_path / "one.safetensors"
    whole = load(folder, "flux2")
    weights = write_flux2(file, whole, write, prefix)
    config = SingleFileConfig(file, format=format)
    kind = diffusers.Flux2Transformer2DModel
    model = kind.from_single_file(file, config=str(folder), quantization_config=config, torch_dtype=BF16)
    assert layers_of(model).keys() == weights.keys()
    for name, weight in weights.items():
        layer = model.get_submodule(name)
        assert layer.activations is None and torch.equal(layer.to_linear().weight, weight)
    others = {key: t for key, t in whole.state_dict().items() if key.rpartition(".")[0] not in weights}
    assert others and all(torch.equal(model.state_dict()[key], t) for key, t in others.items())
    model.save_pretrained(tmp_path / "saved")
    assert same(load(tmp_path / "saved", "flux2"), model)


@pytest.mark.parametrize("seed", [0, 1])
def test_another_single_file_than_the_configuration_has(seed: int, tmp_path: Path) -> None:
    """With other layers, or with the same names and other values."""
    folder, files = dense(tmp_path / "dense", "flux2"), [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for i, file in enumerate(files):
        torch.manual_seed(i * seed)
        write_flux2(file, MODELS["flux2"]().to(BF16), modelopt_of)
    if seed == 0:
        tensors = safetensors.load_file(files[1])
        del tensors[min(tensors)]
        safetensors.save_file(tensors, files[1])
    config, kind = SingleFileConfig(files[1]), diffusers.Flux2Transformer2DModel
    with pytest.raises(nvfp4.Error, match="^file: is .*b.safetensors.* is not that of the file given to from_single"):
        kind.from_single_file(files[0], config=str(folder), quantization_config=config, torch_dtype=BF16)


def test_a_dense_single_file(tmp_path: Path) -> None:
    folder = dense(tmp_path, "qwen")
    file, kind = folder / "diffusion_pytorch_model.safetensors", diffusers.QwenImageTransformer2DModel
    model = kind.from_single_file(file, config=str(folder), quantization_config=NVFP4Config(), torch_dtype=BF16)
    assert same(model, load(folder, "qwen", NVFP4Config())) and layers_of(model)


def test_a_layer_of_another_format_in_a_single_file(tmp_path: Path) -> None:
    """diffusers would cast its codes to numbers."""
    folder, file = dense(tmp_path / "dense", "flux2"), tmp_path / "one.safetensors"
    write_flux2(file, load(folder, "flux2"), comfy_of)
    tensors, name = safetensors.load_file(file), "single_blocks.0.linear2"
    for key in [key for key in tensors if key.startswith(name)]:
        del tensors[key]
    tensors[f"{name}.weight"] = torch.ones(64, 256, dtype=torch.int8)
    tensors[f"{name}.weight_scale"] = torch.ones(64, 1)
    marks = {f"{name}.comfy_quant": b'{"format": "int8_tensorwise"}'}
    for key in [key for key in tensors if key.endswith("weight_scale_2")]:
        marks[key.replace("weight_scale_2", "comfy_quant")] = b'{"format": "nvfp4"}'
    tensors |= {key: torch.tensor([*mark], dtype=torch.uint8) for key, mark in marks.items()}
    safetensors.save_file(tensors, file)
    with pytest.raises(nvfp4.Error, match=f"^{name}: cannot be put into the model: "):
        diffusers.Flux2Transformer2DModel.from_single_file(
            file, config=str(folder), quantization_config=SingleFileConfig(file), torch_dtype=BF16
        )


def test_rows_of_several_layers_are_joined() -> None:
    """A mapping function may join rows of several layers: here of three with different global scales."""
    from nvfp4.hosts.diffusers.single_file import ROWS, SingleFileQuantizer

    layers = [nvfp4.Linear.from_linear(nn.Linear(32, n), activations=None).packed() for n in (16, 24, 16)]
    quantizer = SingleFileQuantizer(SingleFileConfig("file"))
    quantizer.sources = layers
    numbers = torch.cat([torch.arange(4, 9), ROWS + torch.arange(24), 2 * ROWS + torch.arange(16)[torch.randperm(16)]])
    found = quantizer.gathered("name", numbers, None)
    whole = [nvfp4.Linear.from_packed(packed).to_linear().weight for packed in layers]
    expected = torch.stack([whole[int(i) // ROWS][int(i) % ROWS] for i in numbers])
    assert torch.equal(nvfp4.Linear.from_packed(found).to_linear().weight, expected)
    quantizer.sources = [layers[0], nvfp4.Linear.from_linear(nn.Linear(32, 24)).packed()]
    with pytest.raises(nvfp4.Error, match="^name: is joined of layers in different modes"):
        quantizer.gathered("name", numbers[:20], None)


# --- adapters -----------------------------------------------------------------------------------------------------


def test_lora(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    folder, given = dense(tmp_path / "dense"), inputs(torch.float32)
    model = load(folder, config=NVFP4Config(), torch_dtype=torch.float32)
    other = copy.deepcopy(load(folder, config=NVFP4Config(), torch_dtype=torch.float32).dequantize())
    before = call(model, given)
    lora = peft.LoraConfig(r=4, target_modules=["to_q", "to_k", "to_out.0"], init_lora_weights=False)
    results = []
    for each in (model, other):
        torch.manual_seed(1)
        each.add_adapter(copy.deepcopy(lora))
        results.append(call(each, given))
    assert torch.allclose(*results, atol=1e-5, rtol=1e-4) and not torch.allclose(results[0], before, atol=1e-3)
    model.save_lora_adapter(tmp_path / "lora")
    with pytest.raises(
        nvfp4.Error, match="^transformer_blocks.0.attn.to_q: is NVFP4, into which its adapter cannot be"
    ):
        model.fuse_lora()
    assert torch.equal(call(model, given), results[0])
    with pytest.raises(nvfp4.Error, match="^transformer_blocks.0.attn.to_q: has an adapter; call unload_lora"):
        model.save_pretrained(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    model.delete_adapters("default")
    assert torch.equal(call(model, given), before)
    again = load(folder, config=NVFP4Config(), torch_dtype=torch.float32)
    again.load_lora_adapter(str(tmp_path / "lora"), prefix=None, weight_name="pytorch_lora_weights.safetensors")
    assert torch.equal(call(again, given), results[0])
    again.unload_lora()
    assert torch.equal(call(again, given), before) and layers_of(again)
    again.save_pretrained(tmp_path / "saved")
    assert torch.equal(call(load(tmp_path / "saved", torch_dtype=torch.float32), given), before)


# --- errors -------------------------------------------------------------------------------------------------------


def broken(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    file = folder / "diffusion_pytorch_model.safetensors"
    tensors = {key: t.clone() for key, t in safetensors.load_file(file).items()}
    change(tensors)
    safetensors.save_file(tensors, file, {"format": "pt"})


NAME = "transformer_blocks.1.ff.net.2"
BROKEN: dict[str, tuple[Callable[[dict[str, Tensor]], Any], str]] = {
    "absent scale": (lambda t: t.pop(f"{NAME}.weight_scale"), f"{NAME}.weight_scale: is missing"),
    "absent layer": (
        lambda t: [t.pop(key) for key in [*t] if key.startswith(NAME)],
        f"^{NAME}.(weight|bias): is in the model but not in the checkpoint",
    ),
    "absent norm": (
        lambda t: t.pop("transformer_blocks.1.attn.norm_q.weight"),
        "^transformer_blocks.1.attn.norm_q.weight: is in the model but not in the checkpoint",
    ),
    "shape": (lambda t: t.update({f"{NAME}.weight": t[f"{NAME}.weight"][:16]}), f"{NAME}.weight_scale: shape is"),
    "nan": (
        lambda t: t[f"{NAME}.weight_scale"].view(torch.uint8).fill_(0x7F),
        f"^{NAME}.weight_scale: is nan at",
    ),
    "another layer": (
        lambda t: t.update({key.replace(NAME, "strange"): t[key].clone() for key in [*t] if key.startswith(NAME)}),
        "^strange: is a layer of the checkpoint but no module of the model",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_checkpoints(what: str, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    load(dense(tmp_path / "dense"), config=NVFP4Config()).save_pretrained(folder)
    change, message = BROKEN[what]
    broken(folder, change)
    with pytest.raises(nvfp4.Error, match=message):
        load(folder)


def test_wrong_arguments(tmp_path: Path) -> None:
    folder = dense(tmp_path / "dense")
    for config, message in (
        ({"activations": "int8"}, "activations: is 'int8'; must be 'nvfp4' or None"),
        (
            {"ignore": "mlp_only"},
            "ignore: is the string 'mlp_only'; must be a sequence of patterns, or 'outside_blocks'",
        ),
        ({"ignore": [3]}, "ignore: has 3; must have strings alone"),
        ({"weights": "gptq"}, "weights: is 'gptq', which needs samples"),
        ({"batch_invariant": True, "activations": "nvfp4"}, "batch_invariant: is True"),
        ({"quant_type": "fp4"}, "quant_type: is no argument of NVFP4Config"),
        ({"modules_to_not_convert": ["a"], "ignore": ["b"]}, "modules_to_not_convert: is given beside ignore"),
    ):
        with pytest.raises(nvfp4.Error, match=f"^{re.escape(message)}"):
            NVFP4Config(**config)
    with pytest.raises(nvfp4.Error, match="^file: is of type int; must be a path"):
        SingleFileConfig(3)
    with pytest.raises(nvfp4.Error, match="^format: is 'gguf'"):
        SingleFileConfig("file", format="gguf")
    for more, message in (
        ({"torch_dtype": torch.float64}, "torch_dtype: is float64; must be float16, bfloat16 or float32"),
        ({"device_map": {"": "disk"}}, "device_map: has 'disk' for ''"),
    ):
        with pytest.raises(nvfp4.Error, match=f"^{re.escape(message)}"):
            load(folder, config=NVFP4Config(), **more)
    with pytest.raises(nvfp4.Error, match="^ignore: 'nothing' matches no module of the model"):
        load(folder, config=NVFP4Config(ignore=["nothing"]))
    with pytest.raises(
        nvfp4.Error, match="^quantization_config: FluxTransformer2DModel has no linear layer that becomes"
    ):
        load(folder, config=NVFP4Config(ignore=["*"]))
    broken(folder, lambda t: t[f"{NAME}.weight"].fill_(float("nan")))
    with pytest.raises(nvfp4.Error, match=f"^{NAME}"):
        load(folder, config=NVFP4Config())


def test_a_configuration_in_the_wrong_place(tmp_path: Path) -> None:
    folder, saved = dense(tmp_path / "dense", "flux2"), tmp_path / "saved"
    load(folder, "flux2", NVFP4Config()).save_pretrained(saved)
    config = json.loads((saved / "config.json").read_text())
    file = saved / "diffusion_pytorch_model.safetensors"
    with pytest.raises(
        nvfp4.Error, match="^quantization_config: is SingleFileConfig; must be given to from_single_file"
    ):
        load(folder, "flux2", SingleFileConfig(file))
    with pytest.raises(nvfp4.Error, match="^quantization_config: is NVFP4Config, for dense files, but .* is NVFP4"):
        diffusers.Flux2Transformer2DModel.from_single_file(file, config=str(folder), quantization_config=NVFP4Config())
    with pytest.raises(nvfp4.Error, match="^safe_serialization: is False; must be True"):
        load(saved, "flux2").save_pretrained(saved.parent / "unsafe", safe_serialization=False)
    with pytest.raises(nvfp4.Error, match="is none that nvfp4 knows|quant_algo: is"):
        content = config["quantization_config"] | {"quant_algo": "NVFP4_SVD", "lora_rank": 32}
        (saved / "config.json").write_text(json.dumps(config | {"quantization_config": content}))
        load(saved, "flux2")
    with pytest.raises(nvfp4.Error, match="has no NVFP4 layer; load it without quantization_config|no known format"):
        dense_file = folder / "diffusion_pytorch_model.safetensors"
        diffusers.Flux2Transformer2DModel.from_single_file(
            dense_file, config=str(folder), quantization_config=SingleFileConfig(dense_file)
        )


def test_projections_cannot_be_joined(tmp_path: Path) -> None:
    model = load(dense(tmp_path), config=NVFP4Config())
    with pytest.raises(nvfp4.Error, match="^model: has NVFP4 layers, whose projections cannot be joined"):
        model.fuse_qkv_projections()
    model.dequantize().fuse_qkv_projections()


def test_diffusers_own_classes_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that ModelOpt restores has a configuration of diffusers; a second import changes nothing."""
    import importlib

    from diffusers.quantizers.auto import DiffusersAutoQuantizer
    from diffusers.quantizers.quantization_config import NVIDIAModelOptConfig

    theirs = object()
    monkeypatch.setattr(NVIDIAModelOptConfig, "from_dict", lambda *given: theirs)
    assert DiffusersAutoQuantizer.from_dict({"quant_method": "modelopt", "quant_type": "FP8"}) is theirs
    before = dict(AUTO_QUANTIZER_MAPPING), dict(AUTO_QUANTIZATION_CONFIG_MAPPING)
    importlib.reload(nvfp4.diffusers)
    assert before == (AUTO_QUANTIZER_MAPPING, AUTO_QUANTIZATION_CONFIG_MAPPING)
    assert "modelopt" in AUTO_QUANTIZER_MAPPING and AUTO_QUANTIZER_MAPPING["modelopt"].__module__.startswith(
        "diffusers"
    )


# --- devices ------------------------------------------------------------------------------------------------------


def test_on_a_gpu(tmp_path: Path) -> None:
    """device_map, `to`, and offloading of the whole model and of groups of layers: equal results."""
    if not torch.cuda.is_available():
        pytest.skip(NO_GPU)
    folder, given = dense(tmp_path / "dense"), {key: t.to("cuda") for key, t in inputs().items()}
    model = load(folder, config=NVFP4Config(), device_map="cuda")
    assert {t.device.type for t in model.state_dict().values()} == {"cuda"}
    expected = call(model, given)
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(call(load(tmp_path / "saved").to("cuda"), given), expected)
    assert torch.equal(call(load(tmp_path / "saved", device_map="balanced"), given), expected)
    for kind in ("block_level", "leaf_level"):
        offloaded = load(tmp_path / "saved")
        more = {"num_blocks_per_group": 1} if kind == "block_level" else {}
        offloaded.enable_group_offload(torch.device("cuda"), torch.device("cpu"), offload_type=kind, **more)
        assert torch.equal(call(offloaded, given), expected)
