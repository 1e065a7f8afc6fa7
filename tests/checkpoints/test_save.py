"""nvfp4.save: what nvfp4.load and the producers' own code read of it, and what it rejects; existing
folders keep what they are, and after an error nothing is left."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from error_bounds import U
from torch import Tensor, nn

import nvfp4
from nvfp4.checkpoints import compressed_tensors, output, write
from nvfp4.layers.fused import FusedPart
from nvfp4.layers.packed import PackedLinear

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
    """All bits: quantize_model chooses global scales that a divisor stores. Joined layers are as before."""
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
    assert list(report.files) == ["model.safetensors"] and not report.rounded
    again = Model()
    loaded = nvfp4.load(folder, again)
    assert loaded.format == format and list(loaded.layers) == sorted(names) and not loaded.skipped
    assert list(loaded.tensors) == sorted(["embed.weight", "norm.weight", "norm.bias", "part", "steps"])
    assert again.lm_head.weight is again.embed.weight and again.down is again.again
    for name in names:
        assert state(packed(alone, name)) == state(loaded.layers[name]) == state(packed(again, name))
    assert torch.equal(again.part, model.part) and torch.equal(again.norm.weight, model.norm.weight)


@pytest.mark.parametrize("format", FORMATS)
def test_global_scales_of_others(format: str, generator: torch.Generator, tmp_path: Path) -> None:
    """A divisor is a rounded reciprocal, which changes some scales. The report names these and no others, and a
    checkpoint that was read once is stored and read to the bit."""
    model = nn.Sequential(*(nn.Linear(16, 4) for _ in range(40)))
    nvfp4.quantize_model(model, calibrate=lambda model: [layer(torch.ones(1, 16)) for layer in model])
    for layer in model:
        for scale in (layer.weight_global_scale, layer.input_global_scale):
            scale.copy_(torch.rand((), generator=generator) + 1e-3)
        layer.update_alpha()
    report, changed = nvfp4.save(model, tmp_path / "first", format), set()
    loaded = nvfp4.load(tmp_path / "first")
    for name, after in loaded.layers.items():
        before = packed(model, name)
        for scale in ("weight_global_scale", "input_global_scale"):
            ours, theirs = getattr(before, scale), getattr(after, scale)
            if not torch.equal(ours, theirs):
                changed.add(f"{name}.{scale}")
                error = abs(float(theirs.double() / ours.double()) - 1)
                assert report.rounded[f"{name}.{scale}"] == error <= 2 * U
    assert changed == set(report.rounded) and bool(changed) == (format == "compressed-tensors")
    nvfp4.load(tmp_path / "first", model)
    assert not nvfp4.save(model, tmp_path / "second", format).rounded
    for name, layer in nvfp4.load(tmp_path / "second").layers.items():
        assert state(layer) == state(loaded.layers[name])


def test_divisors_that_were_read_are_written(generator: torch.Generator, tmp_path: Path) -> None:
    """A seventh of all divisors is not the reciprocal of its reciprocal. They have equal bits again, unless the scale
    has another value then."""
    layers = {f"layers.{i}": four_bits(generator) for i in range(60)}
    wanted = {f"{name}.{key}": t for name, own in layers.items() for key, t in own.items()}
    scales = {name: t for name, t in wanted.items() if name.endswith("global_scale")}
    assert any(not torch.equal(t.reciprocal().reciprocal(), t) for t in scales.values())
    model = nn.Module()
    model.layers = nn.ModuleList(nn.Linear(16, 8, bias=False) for _ in layers)
    safetensors.save_file(wanted, tmp_path / "first.safetensors")
    nvfp4.load(tmp_path / "first.safetensors", model)
    for i, own in enumerate((model, copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model.to(torch.bfloat16))):
        assert not nvfp4.save(own, tmp_path / f"{i}", "compressed-tensors").rounded
        assert raw(safetensors.load_file(tmp_path / f"{i}" / "model.safetensors")) == raw(wanted)
    for layer in model.layers:
        layer.weight_global_scale.mul_(4)
    nvfp4.save(model, tmp_path / "scaled", "compressed-tensors")
    again = safetensors.load_file(tmp_path / "scaled" / "model.safetensors")
    for name, t in scales.items():
        new = (t.reciprocal() * 4).reciprocal() if "weight" in name else t
        assert torch.equal(again[name], new)


def four_bits(generator: torch.Generator) -> dict[str, Tensor]:
    """A layer of compressed-tensors with random divisors."""
    layer = nn.Linear(16, 8, bias=False)
    layer.weight.data = torch.randn(8, 16, generator=generator)
    own = compressed_tensors.write(nvfp4.Linear.from_linear(layer, "nvfp4", 1.0).packed())
    return own | {name: torch.rand(1, generator=generator) + 1 for name in own if name.endswith("global_scale")}


def raw(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name: (t.dtype, t.shape, bytes(t.reshape(-1).view(torch.uint8).numpy())) for name, t in tensors.items()}


def test_the_report_is_a_table_of_files_and_names_rounded_scales(tmp_path: Path) -> None:
    model = torch.nn.Sequential(nvfp4.Linear(64, 32, activations=None))
    model[0].weight_global_scale.fill_(1.0 / 3)
    model[0].update_alpha()
    report = nvfp4.save(model, tmp_path, "compressed-tensors")
    rounded = [f"rounded: {name}: relative error {error:.1e}" for name, error in report.rounded.items()]
    lines = str(report).splitlines()
    assert lines[0].split() == ["file", "bytes"] and lines[2].split() == [
        "model.safetensors",
        str(*report.files.values()),
    ]
    assert lines[3:] == ["compressed-tensors: 1 NVFP4 layers", *rounded]


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


def test_shards_are_those_of_huggingface_hub(generator: torch.Generator) -> None:
    """The same files, with the same tensors. After a tensor that is larger than the limit, huggingface_hub goes on with
    the file before it, and we with a new one. The limit holds there too, for all files but that tensor's."""
    hub = pytest.importorskip("huggingface_hub", reason="comes with transformers")

    def draw(most: int) -> int:
        return int(torch.randint(1, most + 1, (), generator=generator))

    for i in range(200):
        sizes, limit = [draw(100) for _ in range(draw(20))], draw(300)
        if i % 2:
            limit = max(limit, *sizes)
        tensors = {f"t{k}": torch.empty(size, dtype=torch.uint8) for k, size in enumerate(sizes)}
        theirs = hub.split_torch_state_dict_into_shards(tensors, max_shard_size=limit).filename_to_tensors
        ours = write.split(tensors, limit)
        if limit >= max(sizes):
            assert ours == theirs
        else:
            assert [name for names in ours.values() for name in names] == [*tensors]
            for names in ours.values():
                assert sum(tensors[name].nbytes for name in names) <= limit or len(names) == 1
    for size in ("5GB", "20KB", "1.5MB", "0.001GB", 4000):
        for more in (0, 1):  # than fits into one file
            rows = (write.shard_bytes(size) - 1 + more, 1)
            tensors = {str(k): torch.empty(n, dtype=torch.uint8, device="meta") for k, n in enumerate(rows)}
            theirs = hub.split_torch_state_dict_into_shards(tensors, max_shard_size=size).filename_to_tensors
            assert len(theirs) == 1 + more and write.split(tensors, write.shard_bytes(size)) == theirs


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


def with_buffer(buffer: Tensor) -> nn.Module:
    model = with_config({})
    model.register_buffer("b", buffer)
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
    "b: layout is sparse_coo; must be strided": (lambda: with_buffer(torch.eye(3).to_sparse()), {}),
    "b: layout is sparse_csr; must be strided": (lambda: with_buffer(torch.eye(3).to_sparse_csr()), {}),
    "b: layout is nested; must be strided": (
        lambda: with_buffer(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)),
        {},
    ),
    "b: dtype is complex128; must be one that safetensors stores": (
        lambda: with_buffer(torch.ones(3, dtype=torch.complex128)),
        {},
    ),
    "b: dtype is quint8; must be one that safetensors stores": (
        lambda: with_buffer(torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.quint8)),
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


def test_what_json_does_not_have_is_written_as_transformers_does(tmp_path: Path) -> None:
    """Its configurations hold infinities: time_step_limit of Mamba2."""
    given = {"a": [0.0, float("inf")], "b": {"c": (-float("inf"), float("nan"))}, "d": 1.5}
    nvfp4.save(with_config(given), tmp_path)

    def rejected(constant: str) -> None:
        raise AssertionError(constant)

    config = json.loads((tmp_path / "config.json").read_text(), parse_constant=rejected)
    tagged = [{"__float__": name} for name in ("Infinity", "-Infinity", "NaN")]
    assert config["a"] == [0.0, tagged[0]] and config["b"] == {"c": tagged[1:]} and config["d"] == 1.5
    transformers = pytest.importorskip("transformers")
    read = transformers.PretrainedConfig.from_pretrained(tmp_path)
    assert read.a == given["a"] and str(read.b) == "{'c': [-inf, nan]}"


def test_expanded_tensors_are_named(tmp_path: Path) -> None:
    """All their values are written, which may be more than memory has."""
    buffer = torch.randn(4, 1).expand(4, 1000)
    model = with_buffer(buffer)
    model.register_buffer("row", torch.arange(5).expand(1, -1))
    model.register_buffer("one", torch.ones(1).expand(7))
    report = nvfp4.save(model, tmp_path)
    assert report.expanded == {"b": 16_000, "one": 28}
    stored = safetensors.load_file(tmp_path / "model.safetensors")
    assert torch.equal(stored["b"], buffer) and torch.equal(stored["one"], torch.ones(7))
    assert sum(report.files.values()) == sum(t.nbytes for t in stored.values())


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
    """transformers' own reader, whose compressed-tensors decompresses the weights to bf16: its own scales are bf16,
    before and after the division by a float32 divisor."""
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
    given = {"quantization_config": transformers.CompressedTensorsConfig(), "dtype": torch.bfloat16}
    with pytest.warns(UserWarning, match="The `quantization_config` from the model will be used"):
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, **given)
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


# ---- where it writes ----


def model() -> nn.Module:
    given = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    nvfp4.quantize_model(given, activations=None)
    return given


def test_an_empty_folder_stays_the_same(tmp_path: Path) -> None:
    """Its inode, mode and group: it may be a mount point, or somebody else's. So may the one that a link leads to."""
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    folder.chmod(0o2770)
    link.symlink_to(folder)
    before = folder.stat()
    for path in (folder, link):
        nvfp4.save(model(), path, max_shard_size="3KB")
        after = folder.stat()
        assert (after.st_ino, after.st_mode, after.st_gid) == (before.st_ino, before.st_mode, before.st_gid)
        names = ["config.json", "hf_quant_config.json", *sorted(file.name for file in folder.glob("model*"))]
        assert sorted(file.name for file in folder.iterdir()) == names and len(names) == 5
        assert len(nvfp4.load(folder).layers) == 2 and link.is_symlink()
        for file in folder.iterdir():
            file.unlink()


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i, path in enumerate((".", "", "../b", "c/d")):
        (tmp_path / str(i)).mkdir()
        monkeypatch.chdir(tmp_path / str(i))
        nvfp4.save(model(), path)
        assert len(nvfp4.load(tmp_path / str(i) / path).layers) == 2


def test_what_is_rejected_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "nowhere").symlink_to("none")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    before = sorted(tmp_path.iterdir())
    for name, message in (
        ("nowhere", "is a link that leads nowhere; must be a new or an empty folder"),
        ("loop", "is a link that leads nowhere; must be a new or an empty folder"),
        ("file", "exists; must be a new or an empty folder"),
        ("file/a", "cannot be written: "),
        ("a" * 256, "cannot be written: File name too long"),
        ("b\x1b[2J" + "a" * 256, "cannot be written: File name too long"),
    ):
        with pytest.raises(nvfp4.Error) as error:
            nvfp4.save(model(), tmp_path / name)
        assert message in str(error.value) and str(error.value).isprintable()
        assert sorted(tmp_path.iterdir()) == before


def test_the_longest_name(tmp_path: Path) -> None:
    """The temporary folder's name does not grow with it."""
    nvfp4.save(model(), tmp_path / ("a" * 255))
    assert len(nvfp4.load(tmp_path / ("a" * 255)).layers) == 2


@pytest.mark.parametrize("exists", [False, True])
def test_nothing_is_left_after_an_error(exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where files are moved out already."""
    folder = tmp_path / "out"
    if exists:
        folder.mkdir()

    def rename(self: Path, to: Path, whole: object = Path.rename) -> None:
        if to.name in ("config.json", "out"):
            raise PermissionError(13, "Permission denied", str(to))
        whole(self, to)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(nvfp4.Error, match="out cannot be written: Permission denied: "):
        nvfp4.save(model(), folder)
    assert list(tmp_path.rglob("*")) == ([folder] if exists else [])


def test_somebody_else_writes_into_it(tmp_path: Path) -> None:
    with pytest.raises(nvfp4.Error, match="is no longer empty"), output.target(tmp_path) as folder:
        (folder / "a").touch()
        (tmp_path / "other").touch()
    assert [file.name for file in tmp_path.iterdir()] == ["other"]


def test_temporary_names_differ(tmp_path: Path) -> None:
    """Processes in two containers may have one number and one folder; a killed one leaves its own."""
    with output.target(tmp_path / "a") as first, output.target(tmp_path / "b") as second:
        assert first.parent == second.parent == tmp_path and first.name != second.name


@pytest.mark.parametrize("exists", [False, True])
def test_a_full_disk(exists: bool, tmp_path: Path) -> None:
    """The limit of a file's size raises the same errors. The command's exit status is 2."""
    nvfp4.save(model(), tmp_path / "in")
    if exists:
        (tmp_path / "out").mkdir()
    command = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)); import nvfp4.__main__ as m"
    )
    words = ["convert", str(tmp_path / "in"), str(tmp_path / "out"), "--to", "compressed-tensors"]
    done = subprocess.run(
        [sys.executable, "-c", f"{command}; sys.exit(m.main({words!r}))"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 2 and done.stdout == ""
    assert f"path: {tmp_path / 'out'} cannot be written: " in done.stderr and "Traceback" not in done.stderr
    assert (tmp_path / "out").exists() == exists and not any((tmp_path / "out").glob("*"))
    assert {path.name for path in tmp_path.iterdir()} <= {"in", "out"}


def test_sizes_that_are_no_numbers() -> None:
    for size in ("9" * 400 + "GB", "9" * 5000, 10**400, -1, True):
        with pytest.raises(nvfp4.Error, match="max_shard_size: is "):
            nvfp4.save(nn.Sequential(nvfp4.Linear.from_linear(nn.Linear(16, 16))), "unused", max_shard_size=size)
