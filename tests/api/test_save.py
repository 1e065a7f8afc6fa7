"""nvfp4.save: what nvfp4.load and the producers' own code read of it, and what it rejects."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bounds import U
from torch import Tensor, nn

import nvfp4
from nvfp4.modules import FusedPart
from nvfp4.packed import PackedLinear

safetensors = pytest.importorskip("safetensors.torch", reason="comes with the extra `test`")

FORMATS = ("modelopt", "compressed-tensors")
MODES = ("W4A4", "W4A4 dynamic", "W4A16")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, rows in (("q_proj", 64), ("k_proj", 32), ("v_proj", 32)):
            setattr(self, name, nn.Linear(64, rows))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], -1)


class Model(nn.Module):
    """Layers that are joined, one with a bias and one without, a tied head, a tied layer, a view, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 64)
        self.attention = Attention()
        self.down = nn.Linear(128, 64, bias=False)
        self.again = self.down
        self.norm = nn.LayerNorm(64)
        self.lm_head = nn.Linear(64, 50, bias=False)
        self.lm_head.weight = self.embed.weight
        self.register_buffer("part", torch.arange(12.0).view(3, 4)[:, 1:3])
        self.register_buffer("steps", torch.arange(3))

    def forward(self, ids: Tensor) -> Tensor:
        return self.lm_head(self.norm(self.again(self.attention(self.embed(ids)).relu())))


def quantized(mode: str, fuse: bool = False) -> Model:
    torch.manual_seed(0)
    model = Model()
    with torch.no_grad():  # global scales that differ
        model.attention.k_proj.weight *= 1.7
        model.attention.v_proj.weight *= 0.3
    ids = torch.arange(50)[None]
    calibrate = (lambda model: model(ids)) if mode == "W4A4" else None
    nvfp4.quantize_model(model, activations=None if mode == "W4A16" else "nvfp4", calibrate=calibrate, fuse=fuse)
    return model


def packed(model: nn.Module, name: str) -> PackedLinear:
    return model.get_submodule(name).packed()


def state(layer: PackedLinear, but: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        name: (t.dtype, t.shape, t.contiguous().reshape(-1).view(torch.uint8).tolist()) if isinstance(t, Tensor) else t
        for name, t in vars(layer).items()
        if name not in but
    }


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("format", FORMATS)
def test_load_gives_back_what_save_was_given(format: str, mode: str, fuse: bool, tmp_path: Path) -> None:
    """All bits, but the global scales that the report names: a divisor is a rounded reciprocal. Joined layers are those
    that were joined."""
    model, alone, folder = quantized(mode, fuse), quantized(mode), tmp_path / "new" / "folder"
    assert isinstance(model.attention.q_proj, FusedPart) == fuse
    if (format, mode) == ("modelopt", "W4A4 dynamic"):
        with pytest.raises(nvfp4.Error, match="^attention.q_proj: is W4A4 without an input_global_scale; modelopt can"):
            nvfp4.save(model, folder, format)
        assert not files(tmp_path)
        return
    report = nvfp4.save(model, folder, format)
    names = ["attention.q_proj", "attention.k_proj", "attention.v_proj", "down"]
    assert report.layers == names and files(folder.parent) == {"folder"}
    assert list(report.files) == ["model.safetensors"]
    again = Model()
    loaded = nvfp4.load(folder, again)
    assert loaded.format == format and list(loaded.layers) == sorted(names) and not loaded.skipped
    assert list(loaded.tensors) == sorted(["embed.weight", "norm.weight", "norm.bias", "part", "steps"])
    assert again.lm_head.weight is again.embed.weight and again.down is again.again
    scales = ("weight_global_scale", "input_global_scale")
    changed = set()
    for name in names:
        before, after = packed(alone, name), loaded.layers[name]
        assert state(before, scales) == state(after, scales) == state(packed(again, name), scales)
        for scale in scales:
            ours, theirs = getattr(before, scale), getattr(after, scale)
            if ours is not None and not torch.equal(ours, theirs):
                changed.add(f"{name}.{scale}")
                error = abs(float(theirs.double() / ours.double()) - 1)
                assert report.rounded[f"{name}.{scale}"] == error <= 2 * U
    assert changed == set(report.rounded) and (format == "compressed-tensors" or not changed)
    assert torch.equal(again.part, model.part) and torch.equal(again.norm.weight, model.norm.weight)
    # A checkpoint that was read once is stored and read to the bit, in either format.
    second = nvfp4.save(again, tmp_path / "second", format)
    assert not second.rounded and second.files == report.files
    for name, layer in nvfp4.load(tmp_path / "second").layers.items():
        assert state(layer) == state(loaded.layers[name])


@pytest.mark.parametrize("format", FORMATS)
def test_each_layer_has_its_mode(format: str, tmp_path: Path) -> None:
    """Layers of several modes are named in the configuration."""
    model = nn.Sequential(*(nn.Linear(32, 16) for _ in range(4)))
    scale = "input_global_scale"
    for i, given in enumerate(({"activations": None}, {scale: 0.25}, {scale: 0.5})):
        model[i] = nvfp4.Linear.from_linear(model[i], **given)
    nvfp4.save(model, tmp_path, format)
    loaded = nvfp4.load(tmp_path)
    assert [loaded.layers[name].activations for name in "012"] == [None, "nvfp4", "nvfp4"]
    assert [float(loaded.layers[name].input_global_scale) for name in "12"] == [0.25, 0.5]
    assert set(loaded.tensors) == {"3.weight", "3.bias"}
    if format == "modelopt":  # readers take either file
        (tmp_path / "config.json").unlink()
        assert nvfp4.load(tmp_path).layers["0"].activations is None


def test_shards(tmp_path: Path) -> None:
    """Files hold no more than the limit, but one tensor; the index names them all."""
    model = quantized("W4A16")
    whole = nvfp4.save(model, tmp_path / "whole").files["model.safetensors"]
    for limit, size in ((4000, 4000), ("4KB", 4000), ("3.5 KiB", 3584), (1, 1), (whole, whole)):
        folder = tmp_path / str(limit)
        report = nvfp4.save(model, folder, max_shard_size=limit)
        assert sum(report.files.values()) == whole and nvfp4.load(folder).layers.keys() == set(report.layers)
        for name, stored in report.files.items():
            content = safetensors.load_file(folder / name)
            assert sum(t.nbytes for t in content.values()) == stored
            assert stored <= size or len(content) == 1
        index = folder / "model.safetensors.index.json"
        assert index.exists() == (len(report.files) > 1)
        if index.exists():
            assert json.loads(index.read_text())["metadata"]["total_size"] == whole
            assert f"model-00001-of-{len(report.files):05}.safetensors" in report.files


def test_the_model_keeps_its_configuration(tmp_path: Path) -> None:
    class Config:
        def to_dict(self) -> dict[str, Any]:
            return {"model_type": "tiny", "quantization_config": {"quant_method": "old"}}

    model = quantized("W4A16")
    model.config = Config()
    nvfp4.save(model, tmp_path, "compressed-tensors")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "tiny" and config["architectures"] == ["Model"]
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"
    assert config["quantization_config"]["ignore"] == ["lm_head"]
    assert files(tmp_path) == {"config.json", "model.safetensors"}


def fused() -> nn.Module:
    layers = [nvfp4.Linear.from_linear(nn.Linear(32, 16), activations=None) for _ in range(2)]
    return nn.Sequential(nvfp4.Linear.fuse(layers))


def with_config(config: Any) -> nn.Module:
    model = fused()
    model[0] = nvfp4.Linear(32, 16, activations=None)
    model.config = config
    return model


SIZE = "must be a positive number of bytes, or one with a unit: '5GB'"
REJECTED: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "format: is 'gguf'; must be 'compressed-tensors' or 'modelopt'": (Model, {"format": "gguf"}),
    "model: has no nvfp4.Linear and no nvfp4.Experts; must have 1 or more": (Model, {}),
    "model: is a Linear itself; must be a module that has it as a child": (lambda: nvfp4.Linear(32, 16), {}),
    **{
        f"max_shard_size: is {size!r}; {SIZE}": (Model, {"max_shard_size": size})
        for size in ("5 apples", 0, -1, "", "GB", True, 0.5, "1e3")
    },
    "0.weight_global_scale: shape is [32]; modelopt stores one scale for a layer: write the layers before they are "
    "fused": (fused, {}),
    "0.weight: is on the meta device; must have values": (
        lambda: nn.Sequential(nvfp4.Linear(32, 16, activations=None, device="meta")),
        {},
    ),
    "1.weight: is on the meta device; must have values": (
        lambda: nn.Sequential(nvfp4.Linear(32, 16, activations=None), nn.Linear(2, 2, device="meta")),
        {},
    ),
    "model.config: cannot be written as JSON: Object of type set is not JSON serializable": (
        lambda: with_config({"a": {1}}),
        {},
    ),
}


@pytest.mark.parametrize("message", REJECTED)
def test_what_is_rejected_writes_nothing(message: str, tmp_path: Path) -> None:
    make, given = REJECTED[message]
    with pytest.raises(nvfp4.Error) as error:
        nvfp4.save(make(), tmp_path / "a" / "b", **given)
    assert str(error.value) == message and not files(tmp_path)


def test_a_folder_with_files_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, file = quantized("W4A16"), tmp_path / "file"
    file.write_text("a")
    for path in (tmp_path, file):
        with pytest.raises(nvfp4.Error) as error:
            nvfp4.save(model, path)
        assert str(error.value) == f"path: {path} exists; must be a new or an empty folder"
        assert files(tmp_path) == {"file"}

    def full(*arguments: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(safetensors, "save_file", full)
    with pytest.raises(nvfp4.Error, match="new cannot be written: No space left"):
        nvfp4.save(model, tmp_path / "new")
    assert files(tmp_path) == {"file"}


# ---- the producers' own code ----


def llama() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=64, max_position_embeddings=64)
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()


@pytest.mark.parametrize("mode", MODES)
def test_transformers_loads_compressed_tensors(mode: str, tmp_path: Path) -> None:
    """from_pretrained, whose compressed-tensors decompresses the weights to bf16: its own scales are bf16, before and
    after the division by a float32 divisor."""
    pytest.importorskip("compressed_tensors")
    transformers = pytest.importorskip("transformers")
    from compressed_tensors.quantization import QuantizationConfig

    base, ids = llama(), torch.arange(32)[None]
    calibrate = (lambda model: model(ids)) if mode == "W4A4" else None
    nvfp4.quantize_model(base, activations=None if mode == "W4A16" else "nvfp4", calibrate=calibrate)
    nvfp4.save(base, tmp_path, "compressed-tensors", max_shard_size="20KB")
    quantization = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    (group,) = QuantizationConfig.model_validate(quantization).config_groups.values()
    assert (group.input_activations is None) == (mode == "W4A16")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    with torch.no_grad():
        model(ids)  # the first call decompresses
        for name, layer in base.named_modules():
            if isinstance(layer, nvfp4.Linear):
                ours = nvfp4.dequantize(layer.weight, layer.weight_scale, global_scale=layer.weight_global_scale)
                theirs = model.get_submodule(name).weight.double()
                assert ((ours.double() - theirs).abs() <= 3 * 2.0**-8 * theirs.abs()).all(), name
    assert torch.equal(model.lm_head.weight, base.lm_head.weight)


def test_modelopt_decodes_what_save_wrote(tmp_path: Path) -> None:
    """Its tensor class, and its own conversion of one configuration into the other."""
    pytest.importorskip("modelopt.torch.quantization")
    from modelopt.torch.export.convert_hf_config import convert_hf_quant_config_format
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    for mode in ("W4A4", "W4A16"):
        model, folder = quantized(mode), tmp_path / mode
        nvfp4.save(model, folder)
        both = [json.loads((folder / name).read_text()) for name in ("config.json", "hf_quant_config.json")]
        assert convert_hf_quant_config_format(both[1]) == both[0]["quantization_config"]
        stored = safetensors.load_file(folder / "model.safetensors")
        for name in ("attention.k_proj", "down"):
            layer = packed(model, name)
            shape = torch.Size((layer.out_features, layer.in_features))
            quantized_ = NVFP4QTensor(shape, torch.float32, stored[f"{name}.weight"])
            scales = {"scale": stored[f"{name}.weight_scale"], "double_scale": stored[f"{name}.weight_scale_2"]}
            theirs = quantized_.dequantize(torch.float32, **scales, block_sizes={-1: 16}).double()
            ours = nvfp4.dequantize(
                layer.weight, nvfp4.swizzle(layer.weight_scale), global_scale=layer.weight_global_scale
            )
            assert ((ours.double() - theirs).abs() <= 3 * U * 1.001 * theirs.abs()).all()
