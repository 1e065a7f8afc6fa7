"""Damaged checkpoints, 49 of them, each rejected by name by nvfp4.load."""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import recorded
import torch
from paths import ROOT
from test_load import FORMATS, FP8, Model, config_of, quantized, state, tensors_of, write
from torch import Tensor, nn

import nvfp4
from nvfp4.checkpoints import modelopt
from nvfp4.checkpoints.comfy_kitchen import swap_nibbles
from nvfp4.checkpoints.inspect import inspect

Tensors = dict[str, Tensor]


def changed(**changes: Any) -> Callable[[Tensors, dict[str, Any]], None]:
    """Changes tensors of block.up, or the configuration; None removes. A function is given what was there."""

    def change(tensors: Tensors, config: dict[str, Any]) -> None:
        for name, value in changes.items():
            table, key = (tensors, f"block.up.{name}") if name in UP else (config, name)
            if name.startswith("at_"):
                table, key = tensors, name.removeprefix("at_").replace("__", ".")
            if value is None:
                del table[key]
            else:
                table[key] = value(table[key]) if callable(value) else value

    return change


def with_byte(t: Tensor, row: int, column: int, byte: int) -> Tensor:
    raw = t.clone().view(torch.uint8)
    raw[row, column] = byte
    return raw.view(t.dtype)


UP = ("weight", "weight_scale", "weight_scale_2", "input_scale", "bias", "pre_quant_scale")
STATIC = "the configuration says W4A4; "
MISSING = "a layer of modelopt has weight, weight_scale, weight_scale_2"
DAMAGE: dict[str, Callable[[Tensors, dict[str, Any]], None]] = {
    f"block.up.weight: is missing; {MISSING}": changed(weight=None),
    f"block.up.weight_scale: is missing; {MISSING}": changed(weight_scale=None),
    f"block.up.weight_scale_2: is missing; {MISSING}": changed(weight_scale_2=None),
    f"block.up.input_scale: is missing; {STATIC}": changed(input_scale=None),
    "block.up.pre_quant_scale: shape is [63]; must be [64]": changed(pre_quant_scale=torch.ones(63)),
    "block.up.weight: dtype is int8; must be uint8": changed(weight=lambda t: t.to(torch.int8)),
    "block.up.weight: K is 56; must be a positive multiple of 16": changed(weight=lambda t: t[:, :28].contiguous()),
    "block.up.weight: has 1 dimensions; must have 2 ([N, K/2])": changed(weight=lambda t: t.flatten()),
    "block.up.weight_scale: dtype is bfloat16; must be float8_e4m3fn": changed(weight_scale=lambda t: t.bfloat16()),
    "block.up.weight_scale: shape is [96, 3]; must be [96, 4]": changed(weight_scale=lambda t: t[:, :3].contiguous()),
    "block.up.weight_scale: shape is [128, 4]; must be [96, 4]": changed(weight_scale=nvfp4.swizzle),
    "block.up.weight_scale_2: dtype is bfloat16; must be float32": changed(weight_scale_2=lambda t: t.bfloat16()),
    "block.up.weight_scale_2: shape is [96]; must have 1 element": changed(weight_scale_2=torch.ones(96)),
    "block.up.weight_scale_2: is 0; must be positive and finite": changed(weight_scale_2=torch.tensor(0.0)),
    "block.up.weight_scale_2: is nan; must be positive and finite": changed(weight_scale_2=torch.tensor(torch.nan)),
    "block.up.input_scale: is -1; must be positive and finite": changed(input_scale=torch.tensor(-1.0)),
    "block.up.bias: shape is [95]; must be [96]": changed(bias=lambda t: t[:95].clone()),
    "block.down.input_scale: is there, but the layer is W4A16": changed(quant_algo="W4A16_NVFP4"),
    "block.up: the configuration leaves it unquantized, but its tensors are NVFP4": changed(ignore=["block.u*"]),
    "FOLDER/config.json: quant_algo: is 'FP8'; must be one of NVFP4, ": changed(quant_algo="FP8"),
    "FOLDER/config.json: quant_method is 'gptq'; must be one of compressed-tensors, modelopt, mxfp4": changed(
        quant_method="gptq"
    ),
    "block.up.weight_scale: is nan at row 5, column 2 (1 of 384 are such); must be finite": changed(
        weight_scale=lambda t: with_byte(t, 5, 2, 0xFF)
    ),
    "block.up.weight_scale: is nan at row 95, column 3 (1 of 384 are such); must be finite": changed(
        weight_scale=lambda t: with_byte(t, 95, 3, 0x7F)
    ),
    "block.down.weight_scale: is -1 at row 0, column 1 (1 of 384 are such); must be 0 or more": changed(
        at_block__down__weight_scale=lambda t: with_byte(t, 0, 1, 0xB8)
    ),
    "block.up.weight_scale: is 0 everywhere, but values of the weight are not; must be positive for these": changed(
        weight_scale=torch.zeros_like
    ),
    # Tensors that the model lacks, or has in another form.
    "norm.weight: is in the model but not in the checkpoint": changed(at_norm__weight=None),
    "norm.weight: shape is [1, 64]; must be [64] for the model": changed(at_norm__weight=lambda t: t[None]),
    "norm.weight: dtype is int64; the model has float32": changed(at_norm__weight=lambda t: t.long()),
}


FILE, INDEX = "model.safetensors", "model.safetensors.index.json"


def cut(length: Callable[[bytes], int]) -> Callable[[Path], None]:
    """Truncates the file."""

    def change(folder: Path) -> None:
        whole = (folder / FILE).read_bytes()
        (folder / FILE).write_bytes(whole[: length(whole)])

    return change


def text(name: str, content: Any) -> Callable[[Path], None]:
    """Another content of a file: text, or an object to write as JSON."""
    content = content if isinstance(content, str) else json.dumps(content)

    def change(folder: Path) -> None:
        (folder / name).write_text(content)

    return change


def quantization(**changes: Any) -> Callable[[Path], None]:
    return text("config.json", {"quantization_config": config_of("modelopt", True) | changes})


def groups(**group: Any) -> Callable[[Path], None]:
    config = {"quant_method": "compressed-tensors", "config_groups": {"a": group}}
    return text("config.json", {"quantization_config": config})


def twice(folder: Path) -> None:
    (folder / "z.safetensors").write_bytes((folder / FILE).read_bytes())


DAMAGED, CONFIG = "FOLDER/model.safetensors: is no safetensors file, or damaged: ", "FOLDER/config.json: "
WEIGHT_MAP = "must be an object of tensor names with file names"
# The messages about whole files. A message that ends with a blank is the beginning of the whole one.
FILES: list[tuple[str, Callable[[Path], None]]] = [
    (DAMAGED, cut(lambda whole: len(whole) // 2)),
    (DAMAGED, cut(lambda whole: 8 + struct.unpack_from("<Q", whole)[0] - 1)),
    (DAMAGED, cut(lambda whole: 4)),
    (DAMAGED, cut(lambda whole: 0)),
    (DAMAGED, text(FILE, "GGUF")),
    ("FOLDER: has no *.safetensors file", lambda folder: (folder / FILE).unlink()),
    ("block.down.input_scale: is in z.safetensors and in another file", twice),
    (f"{CONFIG}is no JSON: ", text("config.json", "{")),
    (f"{CONFIG}is a list; must be an object", text("config.json", [1])),
    (f"{CONFIG}quantization_config: is 'x'; must be an object", text("config.json", {"quantization_config": "x"})),
    (
        f"{CONFIG}quant_method is ['a']; must be one of compressed-tensors, modelopt, mxfp4",
        quantization(quant_method=["a"]),
    ),
    (f"{CONFIG}ignore: is 'lm_head'; must be a list of strings", quantization(ignore="lm_head")),
    (
        f"{CONFIG}quantized_layers.a: is 'NVFP4'; must be an object",
        quantization(quant_algo="MIXED_PRECISION", quantized_layers={"a": "NVFP4"}),
    ),
    (f"{CONFIG}config_groups.a.weights: is 4; must be an object", groups(targets=["Linear"], weights=4)),
    (f"{CONFIG}config_groups.a.targets: is 'Linear'; must be a list of strings", groups(targets="Linear")),
    (f"{CONFIG}config_groups.a.targets: 're:(' is no regular expression: ", groups(targets=["re:("])),
    (f"FOLDER/{INDEX}: is no JSON: ", text(INDEX, "{")),
    (f"FOLDER/{INDEX}: weight_map is None; {WEIGHT_MAP}", text(INDEX, {})),
    (f"FOLDER/{INDEX}: weight_map is {{'a': 1}}; {WEIGHT_MAP}", text(INDEX, {"weight_map": {"a": 1}})),
    (f"FOLDER/b: does not exist, but {INDEX} names it", text(INDEX, {"weight_map": {"a": "b"}})),
    (f"a: is not in {FILE}, where {INDEX} says it is", text(INDEX, {"weight_map": {"a": FILE}})),
]


def damaged(case: str | int, folder: Path) -> str:
    """Writes a case of DAMAGE or FILES; returns the message that is expected."""
    tensors, config = tensors_of(quantized(), "modelopt"), config_of("modelopt", True)
    message, change = FILES[case] if isinstance(case, int) else (case, None)
    if change is None:
        DAMAGE[message](tensors, config)
    write(folder, tensors, config)
    if change is not None:
        change(folder)
    return message


@pytest.mark.parametrize("case", [*DAMAGE, *range(len(FILES))])
def test_damage_is_named_and_changes_nothing(case: str | int, tmp_path: Path) -> None:
    message = damaged(case, tmp_path)
    model = Model()
    before = state(model)
    with pytest.raises(nvfp4.Error) as error:
        nvfp4.load(tmp_path, model)
    message = message.replace("FOLDER", str(tmp_path))
    assert str(error.value) == message or (message.endswith(" ") and str(error.value).startswith(message))
    assert state(model) == before and type(model.block["up"]) is nn.Linear


# Rows of docs/proof/damaged_checkpoints.csv: what is wrong, and the case: of DAMAGE the beginning, of FILES the index.
TABLE: dict[str, str | int] = {
    "file cut in the middle": 0,
    "file cut in its header": 1,
    "empty file": 3,
    "no file of tensors": 5,
    "tensor in two files": 6,
    "index that names a missing file": 19,
    "index that names a missing tensor": 20,
    "config.json that is no JSON": 7,
    "unknown format": "FOLDER/config.json: quant_method is 'gptq'",
    "algorithm without NVFP4": "FOLDER/config.json: quant_algo: is 'FP8'",
    "ignored names that are no list": 11,
    "pattern that is no regular expression": 15,
    "packed layer that the configuration ignores": "block.up: the configuration leaves it",
    "no values": "block.up.weight: is missing",
    "no block scales": "block.up.weight_scale: is missing",
    "no global scale": "block.up.weight_scale_2: is missing",
    "no input scale in W4A4": "block.up.input_scale: is missing",
    "input scale in W4A16": "block.down.input_scale: is there",
    "scale of AWQ": "block.up.pre_quant_scale",
    "values of a wrong dtype": "block.up.weight: dtype is int8",
    "block scales of a wrong dtype": "block.up.weight_scale: dtype is bfloat16",
    "global scale of a wrong dtype": "block.up.weight_scale_2: dtype is bfloat16",
    "K no multiple of 16": "block.up.weight: K is 56",
    "too few block scales": "block.up.weight_scale: shape is [96, 3]",
    "block scales in another layout": "block.up.weight_scale: shape is [128, 4]",
    "global scale 0": "block.up.weight_scale_2: is 0",
    "global scale NaN": "block.up.weight_scale_2: is nan",
    "NaN block scale": "block.up.weight_scale: is nan at row 5",
    "negative block scale": "block.down.weight_scale: is -1",
    "block scales all 0": "block.up.weight_scale: is 0 everywhere",
    "bias of a wrong shape": "block.up.bias: shape is [95]",
    "layer missing in the checkpoint": "norm.weight: is in the model but not",
    "layer of another shape in the model": "norm.weight: shape is [1, 64]",
}


def test_the_table_of_damaged_checkpoints(tmp_path: Path) -> None:
    """docs/proof/damaged_checkpoints.csv has the messages of nvfp4.load and inspect; NVFP4_WRITE_TABLES=1 writes it. A
    text of safetensors or json behind ours is left out."""
    rows = []
    for i, (what, case) in enumerate(TABLE.items()):
        if isinstance(case, str):
            (case,) = [message for message in DAMAGE if message.startswith(case)]
        folder = tmp_path / str(i)
        folder.mkdir()
        message = damaged(case, folder)
        with pytest.raises(nvfp4.Error) as error:
            nvfp4.load(folder, Model())
        found = str(error.value).replace(str(folder), "FOLDER")
        rows.append([what, "load", f"{message}..." if message.endswith(" ") else found])
    torch.manual_seed(0)
    norm, up = torch.randn(256).exp(), nn.Linear(256, 96)
    up.weight.data = torch.randn(96, 256) / norm
    tensors = {f"up.{name}": t for name, t in modelopt.write(nvfp4.Linear.from_linear(up, None).packed()).items()}
    tensors |= {"up.weight": swap_nibbles(tensors["up.weight"]), "norm.weight": norm}
    (layer,) = inspect(tensors).layers
    rows.append(["nibbles in the reversed order", "inspect", f"{layer.name}: {layer.damage[0]}"])
    path = ROOT / "docs" / "proof" / "damaged_checkpoints.csv"
    if os.environ.get("NVFP4_WRITE_TABLES"):
        how = "NVFP4_WRITE_TABLES=1 pytest tests/checkpoints/test_load_damage.py"
        recorded.write(path, [["checkpoint", "found by", "message"], *rows], "none: a CPU", command=how)
    stored = recorded.table(path)
    assert len(stored) > 20 and stored[1:] == rows, f"{path}: run this test with NVFP4_WRITE_TABLES=1"
    page = (ROOT / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    assert f"{len(rows)} damaged checkpoints" in re.sub(r"\s+", " ", page)


@pytest.mark.parametrize("format_name", FORMATS)
def test_damaged_block_scales_without_a_model(format_name: str) -> None:
    """Damaged scales of layers and of experts are found. Blocks of zeros may all have the scale 0, and -0 is 0."""
    tensors = tensors_of(quantized(), format_name)
    stack = {name: t for name, t in tensors.items() if name.startswith("block.up")}
    stack = {name.replace("block.up", "experts"): torch.stack([t, t]) for name, t in stack.items()}
    damaged = stack["experts.weight_scale"].view(torch.uint8)
    damaged[1, 7, 3] = 0x7F
    with pytest.raises(
        nvfp4.Error, match=r"^experts\[1\].weight_scale: is nan at row 7, column 3 \(1 of 384 are such\)"
    ):
        nvfp4.load(tensors | stack)
    tensors["block.down.weight_scale"] = with_byte(tensors["block.down.weight_scale"], 3, 4, 0xFE)
    with pytest.raises(nvfp4.Error, match=r"^block.down.weight_scale: is -448 at row 3, column 4 \("):
        nvfp4.load(tensors)
    tensors["block.down.weight_scale"] = torch.zeros(64, 6).to(FP8)
    packed = "block.down.weight" + "_packed" * (format_name != "modelopt")
    tensors[packed] = torch.full_like(tensors[packed], 0x80)
    assert len(nvfp4.load(tensors).layers) == 2
    tensors["block.up.weight_scale"] = with_byte(tensors["block.up.weight_scale"], 0, 0, 0x80)
    assert len(nvfp4.load(tensors).layers) == 2
