"""Files, names, options and folders that somebody made to harm: nvfp4.load and inspect end soon, with an nvfp4.Error
that names the file."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from memory_maps import mapping
from torch import Tensor

import nvfp4
from nvfp4.checkpoints import compressed_tensors, grouping, inspect, modelopt, names, shards
from nvfp4.checkpoints.gguf_header import check_header
from nvfp4.checkpoints.left_out import left_out
from nvfp4.checkpoints.shards import read_files

safetensors = pytest.importorskip("safetensors.torch", reason="comes with the extra `test`")

SECONDS = 5.0  # of processor time; the slowest case takes 1
FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": []}


def layer(rows: int = 8) -> dict[str, Tensor]:
    return {
        "a.weight": torch.zeros(rows, 8, dtype=torch.uint8),
        "a.weight_scale": torch.ones(rows, 1).to(torch.float8_e4m3fn),
        "a.weight_scale_2": torch.ones(()),
        "a.input_scale": torch.ones(()),
    }


def checkpoint(folder: Path, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    safetensors.save_file(layer(), folder / FILE)
    (folder / "config.json").write_text(json.dumps({"quantization_config": MODELOPT | config}))
    return folder


def rejected(message: str, source: Any) -> None:
    """By load, and by inspect as an error or as that of the layer, in little processor time."""
    for call in (nvfp4.load, inspect.inspect):
        before, found = time.process_time(), "nothing"
        try:
            answer = call(source)
            found = next(iter(answer.errors.values())) if isinstance(answer, inspect.Inspection) else found
        except nvfp4.Error as error:
            found = str(error)
        assert time.process_time() - before < SECONDS
        assert found.startswith(message), found
        assert found.isprintable() and len(found) < 2000


# ---- what is opened ----


@pytest.mark.parametrize("name", ["config.json", INDEX, FILE, "hf_quant_config.json"])
def test_what_is_no_regular_file(name: str, tmp_path: Path) -> None:
    """A FIFO blocks its reader, a device may never end, and a link to nothing is no absence."""
    kinds: dict[str, Callable[[Path], Any]] = {
        "is a FIFO; must be a regular file": os.mkfifo,
        "is a folder; must be a regular file": os.mkdir,
        "is a device; must be a regular file": lambda path: path.symlink_to("/dev/zero"),
        "is a link that leads nowhere": lambda path: path.symlink_to("none"),
        "is a link that leads": lambda path: path.symlink_to(path.name),
    }
    for i, (message, make) in enumerate(kinds.items()):
        folder = checkpoint(tmp_path / str(i))
        if name == "hf_quant_config.json":
            (folder / "config.json").unlink()
        (folder / name).unlink(missing_ok=True)
        make(folder / name)
        rejected(f"{folder / name}: {message}", folder)
    if importlib.util.find_spec("gguf") is None:
        return
    os.mkfifo(tmp_path / "x.gguf")
    for path in (tmp_path / "x.gguf", Path("/dev/zero")):
        with pytest.raises(nvfp4.Error, match=r"must be a regular file$"):
            nvfp4.load(path)


def test_what_leaves_the_folder(tmp_path: Path) -> None:
    """Names and links; a link inside the folder, and one to the blobs of the same model's cache, are followed."""
    other = checkpoint(tmp_path / "other")
    for i, name in enumerate(("../other/model.safetensors", str(other / FILE), "a/../../other/model.safetensors", "")):
        folder = checkpoint(tmp_path / f"index{i}")
        (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(layer(), name)}))
        rejected(f"{folder / INDEX}: names the file {name!r}; must be a name in the same folder", folder)
    for name in (FILE, "config.json"):
        folder = checkpoint(tmp_path / f"link to {name}")
        (folder / name).unlink()
        (folder / name).symlink_to(other / name)
        rejected(f"{folder / name}: is a link to {other / name}, outside of {folder}; must be", folder)
        (folder / name).unlink()
        (other / name).rename(folder / "stored")
        (folder / name).symlink_to("stored")
        assert len(nvfp4.load(folder).layers) == 1
        (folder / "stored").rename(other / name)
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    for name in (FILE, "config.json"):
        blob = tmp_path / "models--a--b" / "blobs" / name
        blob.parent.mkdir(exist_ok=True)
        (other / name).rename(blob)
        (snapshot / name).symlink_to(Path("..", "..", "blobs", name))
    assert len(nvfp4.load(snapshot).layers) == 1 and len(nvfp4.load(snapshot / FILE).layers) == 1
    (tmp_path / "shortcut").symlink_to(snapshot)
    assert len(nvfp4.load(tmp_path / "shortcut").layers) == 1


def test_errors_of_the_file_system(tmp_path: Path) -> None:
    with pytest.raises(nvfp4.Error, match="File name too long"):
        nvfp4.load(tmp_path / ("a" * 300))
    with pytest.raises(nvfp4.Error, match="Not a directory"):
        nvfp4.load(checkpoint(tmp_path) / FILE / "a")


# ---- JSON ----

JSON = {
    "has more than 64 objects and lists inside each other": '{"a": ' + "[" * 500_000 + "]" * 500_000 + "}",
    "has more than 1048576 objects and lists, too many for JSON": '{"a": [' + "[]," * 2**20 + "1]}",
    "is no JSON: an integer has 5000 digits; must have at most 100": '{"a": ' + "9" * 5000 + "}",
    "is no JSON: it has half of a surrogate pair": r'{"a": "\uD800"}',
    "has more than 64 MiB, too much for JSON": '{"a": "' + "b" * 2**26 + '"}',
    "is no JSON: Unterminated string": '{"a": "' + r"\"[" * 1_000_000,
}


@pytest.mark.parametrize("name", ["config.json", INDEX, "hf_quant_config.json"])
@pytest.mark.parametrize("message", JSON)
def test_json_has_limits(message: str, name: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    if name == "hf_quant_config.json":
        (folder / "config.json").unlink()
    (folder / name).write_text(JSON[message])
    rejected(f"{folder / name}: {message}", folder)


def test_brackets_in_a_string_are_no_depth(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    config = {"chat_template": "[" * 100 + '"{' * 100, "quantization_config": MODELOPT}
    (folder / "config.json").write_text(json.dumps(config))
    assert len(nvfp4.load(folder).layers) == 1


def test_values_are_abbreviated(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, ignore="a" * 10**7)
    rejected(f"{folder / 'config.json'}: ignore: is 'aaaa", folder)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": [0] * 10**6}}))
    rejected(f"{folder / INDEX}: weight_map is {{'a': [0, 0, 0, 0, 0, 0, ...]}}; must be", folder)


def test_control_characters_of_a_name(tmp_path: Path) -> None:
    """A terminal would obey them."""
    tensors = layer() | {"b\x1b[2J\n.weight_scale_2": torch.ones(())}
    safetensors.save_file(tensors, tmp_path / FILE)
    with pytest.raises(nvfp4.Error) as error:
        nvfp4.load(tmp_path)
    assert str(error.value).startswith(r"b\x1b[2J\n.weight: is missing; ")


# ---- GGUF ----


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def tensor(shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text("t") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def array(kind: int, count: int, content: bytes = b"") -> bytes:
    return text("k") + struct.pack("<IIQ", 9, kind, count) + content


GGUF = {
    "it does not begin with GGUF": (0, 0, b""),
    "the header needs 8 bytes at byte 24, the file has 24": (0, 1, b""),
    "its version is 4; must be 2 or 3": (0, 0, b""),
    "it has 1048577 pairs; must have at most 1048576": (0, 2**20 + 1, b""),
    "it has 9223372036854775808 tensors; must have at most 1048576": (2**63, 0, b""),
    "its arrays have more than 4194304 elements": (0, 1, array(8, 2**60)),
    "the header needs 4000000 bytes at byte 49, the file has 49": (0, 1, array(0, 4_000_000)),
    "the header needs 18446744073709551615 bytes at byte 45": (0, 1, text("k") + struct.pack("<IQ", 8, 2**64 - 1)),
    "a name has 1099511627776 bytes; must have at most 65536": (0, 1, struct.pack("<Q", 2**40)),
    "a name is no text: ": (0, 1, struct.pack("<Q", 1) + b"\xff" + bytes(8)),
    "more than 4 arrays are inside each other": (0, 1, array(9, 1, struct.pack("<IQ", 9, 1) * 1000)),
    "a value has the unknown type 13": (0, 1, text("k") + struct.pack("<IQ", 13, 0)),
    "general.alignment is 3; must be a power of two": (0, 1, text("general.alignment") + struct.pack("<II", 4, 3)),
    "t has 1000000 dimensions; must have at most 4": (1, 0, text("t") + struct.pack("<I", 1_000_000)),
    "t has the shape [4294967296, 4294967296]; must have 1 to 2^62 elements": (1, 0, tensor((2**32, 2**32))),
    "t has the shape [1, 0]; must have 1 to 2^62 elements": (1, 0, tensor((0, 1))),
    "t has rows of 65; must be a multiple of 64": (1, 0, tensor((65, 1), 40)),
    "t has the unknown type 999": (1, 0, tensor((1,), 999)),
    "t ends at byte 9223372036854775876, the file at byte 57": (1, 0, tensor((1,), 0, 2**63)),
}


@pytest.mark.parametrize("message", GGUF)
def test_headers_of_gguf(message: str, tmp_path: Path) -> None:
    """A file of 49 bytes with an array of 2^60 strings kept gguf reading until memory ended."""
    tensors, pairs, content = GGUF[message]
    begin = b"GGUX" if "begin" in message else b"GGUF"
    version = 4 if "version" in message else 3
    path = tmp_path / "x.gguf"
    path.write_bytes(begin + struct.pack("<IQQ", version, tensors, pairs) + content)
    with pytest.raises(nvfp4.Error) as error:
        check_header(path, {0: (1, 4), 40: (64, 36)})
    assert str(error.value).startswith(f"{path}: is no GGUF file, or damaged: {message}")
    if importlib.util.find_spec("gguf") is not None:
        rejected(str(error.value), path)


# ---- tensors ----


@pytest.mark.parametrize("shape", [[2**62, 0, 8], [300_000, 0, 8], [300_000, 8, 0], [20_000, 1, 8]])
def test_experts_by_the_million(shape: list[int], tmp_path: Path) -> None:
    """Stacks without values need no bytes: 255 bytes claim 2^62 experts."""
    size = 8 * 20_000 if 0 not in shape else 0
    header = {
        "e.weight": {"dtype": "U8", "shape": shape, "data_offsets": [0, size]},
        "e.weight_scale_2": {"dtype": "F32", "shape": [], "data_offsets": [size, size + 4]},
    }
    content = json.dumps(header).encode()
    (tmp_path / FILE).write_bytes(struct.pack("<Q", len(content)) + content + bytes(size) + b"\0\0\x80\x3f")
    rejected(f"e.weight: shape is {shape}; must have values, and at most 16384 experts", tmp_path)


def of_mxfp4() -> dict[str, Tensor]:
    return {"a.weight_packed": torch.zeros(8, 16, dtype=torch.uint8), "a.weight_scale": torch.full((8, 1), 127).byte()}


def of_compressed_tensors() -> dict[str, Tensor]:
    packed = nvfp4.Linear.from_packed(modelopt.read({name[2:]: t for name, t in layer().items()})).packed()
    return {f"a.{name}": t for name, t in compressed_tensors.write(packed).items()}


def beside_fp8() -> dict[str, Tensor]:
    weight = torch.ones(8, 16).to(torch.float8_e4m3fn)
    return layer() | {"b.weight": weight, "b.weight_scale": torch.ones(1), "b.input_scale": torch.ones(1)}


@pytest.mark.parametrize("make", [layer, of_compressed_tensors, beside_fp8, of_mxfp4])
@pytest.mark.parametrize("dimensions", [1, 3, 4, 64, 65, 20_000])
def test_tensors_of_many_dimensions(dimensions: int, make: Callable[[], dict[str, Tensor]], tmp_path: Path) -> None:
    """Each tensor alone, and all. torch's element-wise operations take 64 dimensions."""
    sound = make()
    if make is beside_fp8:
        layers = {"a": {"quant_algo": "NVFP4"}, "b": {"quant_algo": "FP8"}}
        config = MODELOPT | {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))

    def reshaped(t: Tensor) -> Tensor:
        return t.reshape(*[1] * (dimensions - t.ndim), *t.shape)

    for chosen in (*([name] for name in sound), list(sound)):
        tensors = sound | {name: reshaped(sound[name]) for name in chosen}
        safetensors.save_file(tensors, tmp_path / FILE)
        for source in (tensors, tmp_path):
            if dimensions > 64:
                first = chosen[0] if source is tensors else min(chosen)
                rejected(f"{first}: has {dimensions} dimensions; must have at most 64", source)
                continue
            for call in (nvfp4.load, inspect.inspect):
                with contextlib.suppress(nvfp4.Error):  # and no other
                    call(source)


@pytest.mark.parametrize("call", [nvfp4.load, inspect.inspect])
def test_values_that_are_no_tensors(call: Callable[[Any], Any]) -> None:
    for value, what in (
        (3, "is of type int; must be a torch.Tensor"),
        (None, "is of type NoneType; must be a torch.Tensor"),
        (torch.eye(3).to_sparse(), "layout is sparse_coo; must be strided"),
        (torch.nested.as_nested_tensor([torch.ones(2)], layout=torch.jagged), "layout is nested; must be strided"),
    ):
        for name in (*layer(), "other"):
            with pytest.raises(nvfp4.Error) as error:
                call(layer() | {name: value})
            assert str(error.value) == f"{name}: {what}"


def test_marks_and_tensors_without_dimensions(tmp_path: Path) -> None:
    """The marks are those of a file for ComfyUI."""
    mark = torch.tensor(list(b'{"format": "nvfp4"}'), dtype=torch.uint8)
    sound = {"a.comfy_quant": mark} | nvfp4.checkpoints.comfy_kitchen.write(nvfp4.Linear(16, 16).packed())
    sound = {name if "." in name else f"a.{name}": t for name, t in sound.items()}
    safetensors.save_file(sound, tmp_path / FILE)
    assert len(nvfp4.load(tmp_path).layers) == 1
    for message, change in (
        ("a.comfy_quant: dtype is float32; must be uint8", {"a.comfy_quant": torch.ones(4)}),
        ("a.comfy_quant: dtype is int64; must be uint8", {"a.comfy_quant": torch.full((1,), 300)}),
        ("a.comfy_quant: has 99999 bytes; must have at most 65536", {"a.comfy_quant": mark.new_zeros(99999)}),
        ("a.comfy_quant: is no JSON: ", {"a.comfy_quant": mark.new_zeros(())}),
        ("a.weight: has 0 dimensions; must have 2", {"a.weight": mark.new_zeros(())}),
        ("a.bias: shape is []; must be [1]", {"a.bias": torch.ones(())}),
        ("a.scale: has 1 bytes; the 128x4 layout", {"a.weight_scale": torch.ones(()).to(torch.float8_e4m3fn)}),
    ):
        safetensors.save_file(sound | change, tmp_path / FILE)
        rejected(message, tmp_path)


# ---- files that change ----

TRUNCATED = """
import os, sys, nvfp4
checkpoint = nvfp4.load(sys.argv[1], mmap=sys.argv[2] == "True")
os.truncate(sys.argv[3], 0)
print(int(checkpoint.layers["a"].weight.sum()))
"""


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
@pytest.mark.parametrize("mmap", [False, True])
def test_a_file_that_is_truncated(mmap: bool, kind: str, tmp_path: Path) -> None:
    """Ends the process where it is mapped, as the documentation says, and changes nothing where it is not. Weights of
    GGUF are never in the file."""
    rows = 1024
    file, content = tmp_path / FILE, layer(rows)
    content["a.weight"] += 1
    safetensors.save_file(content, file, {"format": "pt"})
    total = rows * 8
    if kind == "gguf":
        package = pytest.importorskip("gguf")
        file = tmp_path / "x.gguf"
        writer = package.GGUFWriter(file, "llama")
        blocks = np.full((rows, 36), 0x11, np.uint8)
        writer.add_tensor("a.weight", blocks, raw_dtype=package.GGMLQuantizationType.NVFP4)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        total = rows * 32 * 0x11
    words = [sys.executable, "-c", TRUNCATED, str(file), str(mmap), str(file)]
    done = subprocess.run(words, capture_output=True, text=True)
    if mmap and kind == "safetensors":
        assert done.returncode == -signal.SIGBUS
    else:
        assert done.returncode == 0 and int(done.stdout) == total, done.stderr


def test_files_that_are_read_are_the_same(tmp_path: Path) -> None:
    folder, tensors = checkpoint(tmp_path), layer() | {"b": torch.arange(6).view(2, 3), "c": torch.ones(0, 3)}
    safetensors.save_file(tensors, folder / FILE, {"k": "v"})
    mapped, read = (read_files(folder, mmap) for mmap in (True, False))
    assert mapped[1] == read[1] == {"k": "v"} and mapped[0].keys() == read[0].keys() == tensors.keys()
    for name, t in tensors.items():
        assert read[0][name].dtype == t.dtype and torch.equal(read[0][name].float(), t.float())
        assert not t.numel() or str(folder / FILE) not in mapping(read[0][name])
    for content in (b"", b"1234567", bytes(8), struct.pack("<Q", 2**40) + b"{}", b"\xff" * 100):
        (folder / FILE).write_bytes(content)
        with pytest.raises(nvfp4.Error, match="is no safetensors file, or damaged"):
            nvfp4.load(folder, mmap=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"quantization": [1]}, "quantization: is [1]; must be an object"),
        ({"quantization": {"exclude_modules": 5}}, "exclude_modules: is 5; must be a list of strings"),
    ],
)
def test_configurations_that_transformers_reads(content: Any, message: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from nvfp4 import transformers

    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(content))
    with pytest.raises(nvfp4.Error) as error:
        transformers.load(tmp_path)
    assert str(error.value) == message


# ---- names, options and folders ----


def layer_of(shape: tuple[int, ...] = (8, 8), scales: tuple[int, ...] = ()) -> dict[str, Tensor]:
    return {
        "a.weight": torch.zeros(shape, dtype=torch.uint8),
        "a.weight_scale": torch.ones(*shape[:-1], shape[-1] // 8).to(torch.float8_e4m3fn),
        "a.weight_scale_2": torch.ones(scales),
    }


def test_the_number_of_a_layer_has_a_limit() -> None:
    """int() raises ValueError for 5,000 digits."""
    model = torch.nn.Module()
    model.config = SimpleNamespace(num_hidden_layers=2, num_nextn_predict_layers=1)
    why = left_out(model)
    assert "predict further tokens" in str(why("layers.2.norm.weight"))
    assert why(f"layers.{'9' * 5000}.norm.weight") is None


def test_a_long_name() -> None:
    name = "a." * 600 + "weight"
    with pytest.raises(nvfp4.Error, match=r"has 1206 characters; a name must have at most 1024$"):
        nvfp4.load(layer_of() | {name: torch.zeros(2)})


def test_names_above_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "MAX_ABOVE", 1000)
    assert names.Modules([f"a.b.{i}.c" for i in range(50)]).above >= {"a", "a.b", "a.b.3"}
    with pytest.raises(nvfp4.Error, match=r"^modules: the names above them have more than 1000 characters$"):
        names.Modules([f"{i}." + "a." * 100 + "b" for i in range(50)])


def test_many_layers_whose_names_are_joined() -> None:
    """20,000 of them took a regular expression each, for each tensor."""
    tensors = {f"m.l{i}_weight_scale": torch.zeros(1) for i in range(20_000)}
    tensors |= {f"m.l{i}": torch.zeros(1) for i in range(20_000)}
    before = time.process_time()
    modules, _ = grouping.grouped(tensors)
    assert time.process_time() - before < SECONDS
    assert len(modules) == 20_000 and set(modules["m.l7"]) == {"weight", "weight_scale"}


@pytest.mark.parametrize(
    ("local", "expected"),
    [
        ("up", ("up", "weight")),
        ("up_weight_scale", ("up_weight_scale", "weight")),  # which is a layer's name too
        ("up_weight_scale_2", ("up", "weight_scale_2")),
        ("up_weight_scale_weight_scale", ("up_weight_scale", "weight_scale")),
        ("up_bias", ("up", "bias")),
        ("up_norm", ("", "up_norm")),
        ("_bias", ("", "_bias")),
    ],
)
def test_the_longest_name_of_a_layer_counts(local: str, expected: tuple[str, str]) -> None:
    assert grouping.divided(local, {"up", "up_weight_scale"}) == expected


def test_many_tensors_that_belong_to_no_layer() -> None:
    tensors = layer_of() | {f"b.{i}": torch.zeros(1, dtype=torch.int8) for i in range(20_000)}
    before = time.process_time()
    errors = inspect.inspect(tensors).errors
    assert time.process_time() - before < SECONDS
    assert len(errors) == 20_000 and errors["b.0"].endswith("beside it: 1, 2, 3, 4, 5, 6, ...")


def test_options_of_another_type(tmp_path: Path) -> None:
    for value in ([], {}):
        with pytest.raises(nvfp4.Error, match="^quant_algo: is None; must be one of"):
            modelopt.recipe({"moe_quant_algo": value})
        quantization = {"quant_method": "fp8", "moe_quant_algo": value}
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": quantization}))
        torch_file = pytest.importorskip("safetensors.torch", reason="comes with the extra `test`")
        torch_file.save_file(layer_of(), tmp_path / "model.safetensors")
        with pytest.raises(nvfp4.Error, match="quant_method is 'fp8'; must be"):
            nvfp4.load(tmp_path)


def test_values_of_options_are_abbreviated() -> None:
    long = "x" * 10**6
    configs: list[dict[str, Any]] = [
        {"quant_algo": long},
        {"quant_algo": "NVFP4", "group_size": long},
        {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "NVFP4", "option": long}}},
        {"quant_algo": "NVFP4", "has_zero_point": long},
    ]
    for config in configs:
        with pytest.raises(nvfp4.Error) as error:
            modelopt.recipe(config)
        assert len(str(error.value)) < 1000


def test_two_scales_where_rows_are_stored_otherwise() -> None:
    """Gate and up can have a scale each where rows of the tensors are rows of the layer; comfy-kitchen swizzles."""
    tensors = layer_of((2, 256, 32), (2, 2))
    assert len(nvfp4.load(tensors).experts["a"]) == 2
    with pytest.raises(nvfp4.Error, match=r"^a\[0\]\.weight_scale_2: shape is \[2\]; must have 1 element$"):
        nvfp4.load(tensors, format="comfy-kitchen")


@pytest.mark.parametrize("columns", [33, 36])
def test_a_layout_of_no_layer(columns: int) -> None:
    """A shape that both layouts could have, if K were a multiple of 16, is the layer's error."""
    tensors = layer_of((128, columns)) | {"a.weight_scale": torch.ones(128, 4).to(torch.float8_e4m3fn)}
    with pytest.raises(nvfp4.Error, match=r"^a\.weight: "):
        nvfp4.load(tensors)


def test_folders_of_many_files(tmp_path: Path) -> None:
    """The time grows with the number of files, not with its square."""
    for i in range(1, 1501):
        (tmp_path / f"model-{i:05}-of-01500.safetensors").touch()
        (tmp_path / f"other{i}.safetensors").touch()
        (tmp_path / f"other{i}.fp16.safetensors").touch()
    before = time.process_time()
    files, unread = shards.files_of(tmp_path)
    assert time.process_time() - before < SECONDS
    assert len(files) == 3000 and len(unread) == 1500


def test_parts_outside_of_the_folder(tmp_path: Path) -> None:
    """The caller names one part, which may be a link to anywhere; the others may not."""
    save_file = pytest.importorskip("safetensors.torch", reason="comes with the extra `test`").save_file
    folder, other = tmp_path / "folder", tmp_path / "other"
    for path in (folder, other):
        path.mkdir()
    first, second = (f"model-{i:05}-of-00002.safetensors" for i in (1, 2))
    save_file(layer_of(), other / first)
    save_file({"norm": torch.zeros(8)}, other / second)
    (folder / first).symlink_to(other / first)
    (folder / second).symlink_to(other / second)
    with pytest.raises(nvfp4.Error, match=f"{second}: is a link to .*, outside of"):
        nvfp4.load(folder / first)
    (folder / second).unlink()
    (other / second).rename(folder / second)
    assert set(nvfp4.load(folder / first).tensors) == {"norm"}


def test_a_warning_names_the_line_that_calls_load() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_labels=2
    )
    model = transformers.LlamaForSequenceClassification(config)
    gate = nvfp4.Linear.from_linear(torch.nn.Linear(32, 64, bias=False), activations=None).packed()
    tensors = {name: t for name, t in model.state_dict().items() if not name.startswith("score") and "gate" not in name}
    tensors |= {f"model.layers.0.mlp.gate_proj.{key}": t for key, t in modelopt.write(gate).items()}
    with pytest.warns(UserWarning, match="^score: is not in the checkpoint") as caught:
        nvfp4.load(tensors, model)
    assert {warning.filename for warning in caught} == {__file__}
