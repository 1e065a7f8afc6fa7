"""`nvfp4 quantize`: what it writes, how it goes on after a kill, and what it rejects."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from python_server import python

import nvfp4
from nvfp4.__main__ import main
from nvfp4.checkpoints import modelopt

pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers", reason="comes with transformers")
safetensors = pytest.importorskip("safetensors.torch", reason="comes with transformers")
import transformers  # noqa: E402

import nvfp4.transformers  # noqa: E402

transformers.utils.logging.disable_progress_bar()

WORDS, WINDOW, TOKENS = tiny_models.SIZES["vocab_size"], 48, 200  # the last window is shorter
CALIBRATED = ["--tokens", str(TOKENS), "--window", str(WINDOW)]
# Runs the command until a function has been called so many times, and is killed there.
KILLED = """
import importlib, os, signal, sys
module, owner, name, count = {where!r}
of = importlib.import_module(module)
of = getattr(of, owner) if owner else of
function, calls = getattr(of, name), []
def killed(*arguments):
    calls.append(function(*arguments))
    if len(calls) == count:
        os.kill(os.getpid(), signal.SIGKILL)
setattr(of, name, killed)
from nvfp4.__main__ import main
sys.exit(main({arguments!r}))
"""
STORED = ("nvfp4.quantizing.stored", "StoredResults", "__setitem__")
COPIED = ("nvfp4.checkpoints.output", "", "copy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a tokenizer of words, and a text beside it."""
    root = tmp_path_factory.mktemp("quantize")
    words = {"<unk>": 0} | {f"w{i}": i for i in range(1, WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(root / "in")
    config = transformers.LlamaConfig(**tiny_models.SIZES, bos_token_id=1, eos_token_id=2)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(root / "in")
    # transformers loads this file, but its save_pretrained rejects it.
    (root / "in" / "generation_config.json").write_text('{"temperature": 0.5, "do_sample": false, "eos_token_id": 3}')
    ids = torch.randint(1, WORDS, (TOKENS + 100,)).tolist()
    (root / "text.txt").write_text(" ".join(f"w{i}" for i in ids))
    (root / "ids.json").write_text(json.dumps(ids[:TOKENS]))
    return root


@pytest.fixture
def text(folder: Path) -> list[str]:
    return ["--text", str(folder / "text.txt"), *CALIBRATED]


def command(folder: Path, out: Path, *options: str) -> list[str]:
    return ["quantize", str(folder / "in"), str(out), "--device", "cpu", *options]


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def by_hand(folder: Path, **options: Any) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "in").eval()
    windows = torch.tensor(json.loads((folder / "ids.json").read_text())).split(WINDOW)
    if options.pop("calibrated"):
        options["calibrate"] = lambda model: [model(window[None]) for window in windows]
    nvfp4.quantize_model(model, **options)
    return model


# ---- what it writes ----


@pytest.mark.parametrize(
    ("given", "calibrated", "options", "format"),
    [
        ([], True, {"weights": "gptq"}, "modelopt"),
        ([], False, {"weights": "search"}, "compressed-tensors"),
        (["--activations", "none"], True, {"weights": "gptq", "activations": None}, "modelopt"),
        (
            ["--weights", "search", "--activations", "none", "--format", "compressed-tensors", "--ignore", "*.0.*"],
            True,
            {"weights": "search", "activations": None, "ignore": ["*.0.*"]},
            "compressed-tensors",
        ),
        (
            ["--weights", "round", "--block-scale", "four_over_six", "--ignore", "mlp_only"],
            True,
            {"weights": "round", "block_scale": "four_over_six", "ignore": "mlp_only"},
            "modelopt",
        ),
        (["--ignore"], True, {"weights": "gptq", "ignore": []}, "modelopt"),
    ],
)
def test_the_checkpoint_is_that_of_quantize_model(
    folder: Path,
    text: list[str],
    tmp_path: Path,
    given: list[str],
    calibrated: bool,
    options: dict[str, Any],
    format: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "more" / "out"
    assert main(command(folder, out, *given, *(text if calibrated else []), "--json")) == 0
    answer = capsys.readouterr()
    found = json.loads(answer.out)
    model = by_hand(folder, calibrated=calibrated, **options)
    assert found["format"] == format and found["weights"] == options["weights"]
    assert answer.err.count("\nfinished ") == (0 if options["weights"] == "round" else len(found["layers"]))
    assert [path.name for path in out.parent.iterdir()] == ["out"]  # no other folder is left
    checkpoint, layers = nvfp4.load(out), model.named_modules()
    packed = {name: layer.packed() for name, layer in layers if isinstance(layer, nvfp4.Linear)}
    assert checkpoint.format == format and packed.keys() == checkpoint.layers.keys()
    assert sorted(packed) == sorted(row["name"] for row in found["layers"])
    for name, own in packed.items():
        for key in ("weight", "weight_scale", "weight_global_scale", "input_global_scale"):
            expected, actual = getattr(own, key), getattr(checkpoint.layers[name], key)
            assert (expected is None and actual is None) or torch.equal(expected, actual), (name, key)
    again = nvfp4.transformers.load(out).eval()
    ids = torch.arange(24).view(2, 12)
    if "four_over_six" not in given:  # which no format stores
        with torch.no_grad():
            assert torch.equal(again(ids).logits, model(ids).logits)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (out / name).read_bytes() == (folder / "in" / name).read_bytes()
    assert len({file.stat().st_mode for file in out.iterdir()}) == 1


def test_the_report_and_several_files(
    folder: Path, text: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = command(folder, tmp_path / "out", *text, "--max-shard-size", "40KB", "--dtype", "float32")
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["layer", "N", "x"] and any(line.startswith("skipped: lm_head") for line in lines)
    assert f"{tmp_path / 'out'}: modelopt, 14 NVFP4 layers" in lines[-1]
    assert len([*(tmp_path / "out").glob("*.safetensors")]) > 1
    assert nvfp4.load(tmp_path / "out").tensors["lm_head.weight"].dtype == torch.float32


# ---- interrupted runs ----


@pytest.mark.parametrize(
    ("where", "kept"), [((*STORED, 1), 1), ((*STORED, 6), 6), ((*STORED, 14), 14), ((*COPIED, 1), 14)]
)
def test_a_run_that_was_killed_goes_on(
    folder: Path,
    text: list[str],
    tmp_path: Path,
    where: tuple[Any, ...],
    kept: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a layer alone, in the middle of q, k and v, after all layers, and while the checkpoint is written."""
    whole, out, partial = tmp_path / "whole", tmp_path / "out", tmp_path / "out.partial"
    assert main(command(folder, whole, *text)) == 0
    program = KILLED.format(where=where, arguments=command(folder, out, *text))
    assert python("-c", program).returncode == -signal.SIGKILL
    assert not out.exists() and len([*partial.glob("*.safetensors")]) == kept
    with pytest.raises(nvfp4.Error):
        nvfp4.load(partial)
    (partial / "unfinished.tmp").write_bytes(b"half of a file")
    capsys.readouterr()
    assert main(command(folder, out, *text)) == 0
    answer = capsys.readouterr()
    # q, k and v, of which two are kept, are quantized together again.
    assert f"{kept} now" in answer.err and answer.err.count("\nfinished ") == {1: 13, 6: 10, 14: 0}[kept]
    assert content(out) == content(whole) and not partial.exists()


def killed(folder: Path, out: Path, *options: str, layers: int = 3) -> Path:
    """The folder of a run that was killed after some layers."""
    program = KILLED.format(where=(*STORED, layers), arguments=command(folder, out, *options))
    assert python("-c", program).returncode == -signal.SIGKILL
    return out.with_name(out.name + ".partial")


def test_another_run_does_not_go_on(
    folder: Path, text: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    partial = killed(folder, out, *text)
    before = content(partial)

    def rejected(*words: str, arguments: list[str] | None = None) -> None:
        assert main(arguments or command(folder, out, *text)) == 2
        message = capsys.readouterr().err
        assert all(word in message for word in words) and not out.exists(), message
        assert content(partial) == before

    for options, word in (
        (["--weights", "search"], "--weights"),
        (["--tokens", "100"], "--text"),
        (["--window", "10"], "--text"),
        (["--dtype", "float32"], "--dtype"),
        (["--ignore", "mlp_only"], "--ignore"),
    ):
        rejected(str(partial), "3 layers", word, "delete", arguments=command(folder, out, *text, *options))
    shard = folder / "in" / "model.safetensors"
    times = shard.stat()
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    rejected("3 layers of a run whose IN was", "delete the folder")
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))
    handle = os.open(partial, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    rejected("is in use by another run")
    os.close(handle)
    run = (partial / "run.json").read_bytes()
    (partial / "run.json").write_text("{")
    before = content(partial)
    rejected("run.json", "is no JSON")
    (partial / "run.json").write_bytes(run)
    result = next(partial.glob("*.safetensors"))
    whole = result.read_bytes()
    result.write_bytes(whole[:-1])
    before = content(partial)
    rejected(result.name, "damaged")
    result.write_bytes(whole)
    # These change no weight.
    assert main(command(folder, out, *text, "--activations", "none", "--format", "compressed-tensors")) == 0
    checkpoint = nvfp4.load(out)
    assert all(layer.activations is None for layer in checkpoint.layers.values())
    assert checkpoint.format == "compressed-tensors" and not partial.exists()


def test_a_folder_of_something_else_stays(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "mine.txt").write_text("text")
    assert main(command(folder, tmp_path / "out")) == 2
    assert "run.json" in capsys.readouterr().err
    assert content(tmp_path / "out.partial") == {"mine.txt": b"text"}


def test_nothing_is_left_without_a_result(
    folder: Path, text: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder without a result belongs to nobody: other options may follow."""
    assert main(command(folder, tmp_path / "out", *text, "--ignore", "nothing.like.this")) == 2
    assert "nothing.like.this" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
    program = KILLED.format(
        where=("nvfp4.cli.quantize", "", "load", 1), arguments=command(folder, tmp_path / "out", *text)
    )
    assert python("-c", program).returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == ["out.partial"]
    assert main(command(folder, tmp_path / "out", "--weights", "round")) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# ---- what it rejects ----


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--weights", "gptq"], "--text: is missing"),
        (["--tokens", "5"], "--tokens: is given without --text"),
        (["--window", "5"], "--window: is given without --text"),
        (["--text", "TEXT", "--tokens", "0"], "--tokens: is 0; must be positive"),
        (["--text", "TEXT", "--window", "-1"], "--window: is -1; must be positive"),
        (["--text", "TEXT", "--tokens", "301"], "--tokens: is 301; TEXT has 300"),
        (["--text", "TEXT"], "--tokens: is 4096; TEXT has 300"),
        (["--text", "TEXT", "--tokens", "300", "--window", "65"], "--window: is 65; the model reads at most 64 tokens"),
        (["--text", "NONE"], "No such file or directory: NONE"),
        (["--text", "BYTES"], "--text: BYTES is no UTF-8"),
        (["--text", "TEXT", "--weights", "round", "--activations", "none"], "--text: is given with --weights round"),
        (["--activations", "none", "--block-scale", "amax6"], "--block-scale: is given with --activations none"),
        (["--format", "modelopt"], "--format: is modelopt, which cannot store W4A4 without input scales"),
        (["--device", "tpu"], "--device: is tpu; must be cpu, cuda or cuda:N"),
        (["--device", "meta"], "--device: is meta; must be cpu, cuda or cuda:N"),
        (["--device", "cuda:99"], "--device: is cuda:99; torch can use"),
        (["--max-shard-size", "0"], "max_shard_size: is '0'"),
        (["--ignore", "re:("], "ignore"),
    ],
)
def test_wrong_options(
    folder: Path, tmp_path: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"TEXT": folder / "text.txt", "NONE": tmp_path / "none", "BYTES": folder / "in" / "model.safetensors"}
    arguments = [str(names.get(option, option)) for option in options]
    for name, path in names.items():
        message = message.replace(name, str(path))
    assert main(command(folder, tmp_path / "out", *arguments)) == 2
    answer = capsys.readouterr()
    assert message in answer.err and answer.out == "" and not [*tmp_path.iterdir()]


def copied(folder: Path, into: Path) -> Path:
    into.mkdir()
    for file in (folder / "in").iterdir():
        (into / file.name).write_bytes(file.read_bytes())
    return into


def change_config(model: Path, **changes: Any) -> None:
    config = json.loads((model / "config.json").read_text()) | changes
    (model / "config.json").write_text(json.dumps(config))


def drop(model: Path, name: str) -> None:
    tensors = safetensors.load_file(model / "model.safetensors")
    del tensors[name]
    safetensors.save_file(tensors, model / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: change_config(model, quantization_config={"quant_method": "modelopt"}), "is quantized already"),
        (lambda model: change_config(model, model_type="nobody"), "IN: AutoModelForCausalLM cannot load"),
        (lambda model: (model / "config.json").unlink(), "config.json: does not exist"),
        (lambda model: (model / "config.json").write_text("{"), "config.json: is no JSON"),
        (lambda model: (model / "model.safetensors").unlink(), "IN: AutoModelForCausalLM cannot load"),
        (lambda model: (model / "model.safetensors").write_bytes(b"x" * 99), "IN: AutoModelForCausalLM cannot load"),
        (lambda model: drop(model, "model.norm.weight"), "has no tensor model.norm.weight, which the model needs"),
        (lambda model: (model / "tokenizer.json").write_text("{}"), "IN: AutoTokenizer cannot load"),
        (lambda model: (model / "merges.txt").symlink_to("/etc/hostname"), "merges.txt: is a link to"),
    ],
)
def test_wrong_models(
    folder: Path,
    text: list[str],
    tmp_path: Path,
    change: Callable[[Path], Any],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, out = copied(folder, tmp_path / "in"), tmp_path / "out"
    change(model)
    assert main(["quantize", str(model), str(out), "--device", "cpu", *text]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_folders(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for source, path, message in (
        ("none", "out", f"IN: {tmp_path / 'none'} is no folder"),
        (folder / "in" / "config.json", "out", "is no folder"),
        (folder / "in", "there", f"OUT: {tmp_path / 'there'} exists; must be a new folder"),
        (folder / "in", "link", f"OUT: {tmp_path / 'link'} exists; must be a new folder"),
        (folder / "in", tmp_path / "there" / "..", "exists; must be a new folder"),
    ):
        assert main(["quantize", str(tmp_path / source), str(tmp_path / path)]) == 2
        assert message in capsys.readouterr().err


def test_a_tokenizer_of_another_model(
    folder: Path, text: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = copied(folder, tmp_path / "in")
    small = transformers.LlamaConfig(**tiny_models.SIZES | {"vocab_size": 64})
    transformers.AutoModelForCausalLM.from_config(small).save_pretrained(model)
    assert main(["quantize", str(model), str(tmp_path / "out"), *text]) == 2
    assert "its embedding has 64 rows" in capsys.readouterr().err


def test_without_transformers(folder: Path, tmp_path: Path) -> None:
    program = f"""
import sys
sys.modules["transformers"] = None
from nvfp4.__main__ import main
sys.exit(main({command(folder, tmp_path / "out")!r}))
"""
    done = python("-c", program)
    assert done.returncode == 2 and "transformers is needed" in done.stderr and "pip install" in done.stderr
    assert modelopt.NAME not in done.stdout
