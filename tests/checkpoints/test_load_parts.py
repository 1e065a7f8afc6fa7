"""Checkpoints in several files: all parts of one variant are read, or an error names the missing one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_load_names import fails, named, opt, packed, same

import nvfp4
from nvfp4.checkpoints import gguf, modelopt
from nvfp4.checkpoints.convert import convert
from nvfp4.layers.packed import PackedLinear

safetensors = pytest.importorskip("safetensors.torch", reason="comes with the extra `test`")


def shards(folder: Path, generator: torch.Generator, stem: str = "model", total: int = 3) -> dict[str, PackedLinear]:
    """A layer's tensors in different files."""
    layers = {f"l{i}": packed(generator) for i in range(3)}
    tensors = [entry for name, x in layers.items() for entry in named(name, modelopt.write(x)).items()]
    for i in range(total):
        file = folder / f"{stem}-{i + 1:05}-of-{total:05}.safetensors"
        safetensors.save_file({name: t.clone() for name, t in tensors[i::total]}, file)
    (folder / "config.json").write_text(json.dumps({"quantization_config": opt()}))
    return layers


def index(folder: Path, name: str = "model.safetensors.index.json") -> None:
    files = sorted(folder.glob("*-of-*.safetensors"))
    found = {key: file.name for file in files for key in safetensors.load_file(file)}
    (folder / name).write_text(json.dumps({"weight_map": found}))


def right(path: Path, layers: dict[str, PackedLinear]) -> Any:
    checkpoint = nvfp4.load(path)
    assert set(checkpoint.layers) == set(layers) and not checkpoint.tensors
    assert all(same(checkpoint.layers[name], x) for name, x in layers.items())
    return checkpoint


@pytest.mark.parametrize(
    "indexed", ["", "model.safetensors.index.json", "diffusion_pytorch_model.safetensors.index.json"]
)
def test_shards_by_folder_by_index_and_alone(indexed: str, tmp_path: Path, generator: torch.Generator) -> None:
    layers = shards(tmp_path, generator)
    if indexed:
        index(tmp_path, indexed)
        right(tmp_path / indexed, layers)
    for path in (tmp_path, *sorted(tmp_path.glob("*.safetensors"))):
        assert right(path, layers).skipped == {}
    missing = tmp_path / "model-00002-of-00003.safetensors"
    missing.unlink()
    for path in (tmp_path, tmp_path / "model-00001-of-00003.safetensors"):
        fails(f"{missing}: does not exist, but ", path)


def test_shards_of_two_numbers(tmp_path: Path, generator: torch.Generator) -> None:
    shards(tmp_path, generator)
    (tmp_path / "model-00001-of-00003.safetensors").rename(tmp_path / "model-00001-of-00002.safetensors")
    fails(
        "model-00002-of-00002.safetensors: does not exist, but model-00001-of-00002.safetensors is one of 2", tmp_path
    )
    safetensors.save_file({"x": torch.ones(1)}, tmp_path / "model-00002-of-00002.safetensors")
    fails("is one of 3 parts, but others are of 2", tmp_path)
    safetensors.save_file({"x": torch.ones(1)}, tmp_path / "model-00004-of-00003.safetensors")
    fails("is part 4 of 3; must be one of 1 to 3", tmp_path / "model-00004-of-00003.safetensors")


@pytest.mark.parametrize("variant", ["model.fp16.safetensors", "model.bf16-00001-of-00001.safetensors"])
def test_a_second_variant(variant: str, tmp_path: Path, generator: torch.Generator) -> None:
    """It is named and not read, whether its tensors have the same names or not; a file that is no variant is read."""
    folder = tmp_path / "in"
    folder.mkdir()
    layers = shards(folder, generator, total=1)
    (folder / "model-00001-of-00001.safetensors").rename(folder / "model.safetensors")
    dense = {"l0.weight": torch.ones(4, 4), "other.weight": torch.ones(2)}
    safetensors.save_file(dense, folder / variant)
    checkpoint = right(folder, layers)
    assert checkpoint.skipped == {
        variant: "is another variant of model.safetensors, which is read; name the file to read it"
    }
    converted, _ = convert(folder, tmp_path / "out", "compressed-tensors")
    assert list(converted.skipped) == [variant] and not (tmp_path / "out" / variant).exists()
    (folder / variant).rename(folder / "mtp.safetensors")
    fails("l0.weight: is in mtp.safetensors and in another file", folder)


@pytest.mark.parametrize("indexed", [False, True])
def test_one_file_beside_its_shards(indexed: bool, tmp_path: Path, generator: torch.Generator) -> None:
    layers = shards(tmp_path, generator)
    if indexed:
        index(tmp_path)
    whole = {"l0": packed(generator)}
    safetensors.save_file(named("l0", modelopt.write(whole["l0"])), tmp_path / "model.safetensors")
    checkpoint = right(tmp_path, layers if indexed else whole)
    unread = ["model.safetensors"] if indexed else [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    assert list(checkpoint.skipped) == unread
    right(tmp_path / "model.safetensors", whole)


# ---- GGUF ----


def write_gguf(file: Path, tensors: dict[str, Any], number: int = 0, count: int = 1) -> None:
    package = pytest.importorskip("gguf")
    writer = package.GGUFWriter(file, "llama")
    if count > 1:
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
    for name, t in tensors.items():
        kind = package.GGMLQuantizationType.NVFP4 if name.endswith(".weight") else None
        writer.add_tensor(name, np.ascontiguousarray(t.numpy()), raw_dtype=kind)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()


def test_a_split_gguf(tmp_path: Path, generator: torch.Generator) -> None:
    """A layer's values and scale in different parts; each part stands for all."""
    layers = {f"blk.{i}.up": packed(generator) for i in range(2)}
    parts: list[dict[str, torch.Tensor]] = [{}, {}, {}]
    for i, (name, x) in enumerate(layers.items()):
        own = gguf.write(x)
        parts[i][f"{name}.weight"] = own["blocks"]
        parts[i + 1] |= {f"{name}.{key}": own[key].reshape(1) for key in ("scale", "input_scale")}
    files = [tmp_path / f"model-{i + 1:05}-of-00003.gguf" for i in range(3)]
    for i, file in enumerate(files):
        write_gguf(file, parts[i], i, 3)
    for file in files:
        right(file, layers)
    alone = tmp_path / "renamed.gguf"
    alone.write_bytes(files[1].read_bytes())
    fails(f"{alone}: is part 2 of 3 by its header, and 1 of 1 by its name", alone)
    write_gguf(files[2], parts[0], 2, 3)
    fails("blk.0.up.weight: is in two parts of model-00001-of-00003.gguf", files[0])
    files[2].unlink()
    fails(f"{files[2]}: does not exist, but model-00001-of-00003.gguf is one of 3 parts", files[0])
