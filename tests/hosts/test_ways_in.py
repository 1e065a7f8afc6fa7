"""One rule of reading for all ways in: nvfp4.load alone and into a model, from_pretrained, nvfp4.transformers.load,
`inspect` and `convert` over one list of small checkpoints, with what each way says of them."""

from __future__ import annotations

import copy
import json
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch", reason="comes with transformers")
from fp8_models import CT, FOUR, KINDS, OPT, Made, Q, load  # noqa: E402

import nvfp4  # noqa: E402
import nvfp4.transformers  # noqa: E402
from nvfp4.checkpoints.checkpoint import Checkpoint  # noqa: E402
from nvfp4.checkpoints.configuration import mode_of  # noqa: E402
from nvfp4.checkpoints.convert import convert  # noqa: E402
from nvfp4.checkpoints.inspect import inspect  # noqa: E402
from nvfp4.checkpoints.shards import INDEX  # noqa: E402

HF, PARAMS, MISTRAL = "hf_quant_config.json", "params.json", "consolidated.safetensors"
Layers = dict[str, tuple[Any, ...]]  # of each layer its mode, a checksum of its weight, and its scales
Found = tuple[Layers, frozenset[str]]  # and what is skipped by name
Change = Callable[[Made], Any]  # writes the folder
Error = tuple[type[Exception], str]  # with a text that the message contains


# ---- the ways in ----


def layer_of(packed: Any) -> tuple[Any, ...]:
    four = hasattr(packed, "weight_global_scale")
    scales = packed.weight_global_scale if four else packed.weight_scale
    given = packed.input_global_scale if four else packed.input_scale
    rows = packed.weight.view(torch.uint8).double().sum(1)
    checksum = float((rows * torch.arange(1, len(rows) + 1)).sum())
    return str(mode_of(packed)), checksum, float(scales.double().sum()), None if given is None else float(given)


def of_checkpoint(read: Checkpoint) -> Found:
    return {name: layer_of(packed) for name, packed in read.all_layers.items()}, frozenset(read.skipped)


def of_model(model: nn.Module) -> Layers:
    kinds = (nvfp4.Linear, nvfp4.Fp8Linear)
    return {name: layer_of(module.packed()) for name, module in model.named_modules() if isinstance(module, kinds)}


def into_model(own: Made) -> Found:
    model = copy.deepcopy(own.base)
    read = nvfp4.load(own.folder, model)
    return of_model(model), frozenset(read.skipped)


def by_transformers(model: Any) -> Found:
    return of_model(model), frozenset(model.hf_quantizer.skipped)


def inspected(own: Made) -> Found:
    """It tells modes; the values are those of nvfp4.load."""
    found = inspect(own.folder)
    for message in found.errors.values():
        raise nvfp4.Error(message)
    assert not found.damaged
    read, _ = of_checkpoint(nvfp4.load(own.folder))
    return {layer.name: (layer.mode, *read[layer.name][1:]) for layer in found.all_layers}, frozenset(found.skipped)


def converted(own: Made) -> Found:
    target = own.folder.parent / "converted"
    read, _ = convert(own.folder, target, CT if own.kind.format == OPT else OPT)
    assert not (target / PARAMS).exists()
    layers, skipped = of_checkpoint(nvfp4.load(target))
    assert not skipped
    return layers, frozenset(read.skipped)


WAYS: dict[str, Callable[[Made], Found]] = {
    "load": lambda own: of_checkpoint(nvfp4.load(own.folder)),
    "into a model": into_model,
    "from_pretrained": lambda own: by_transformers(load(own.folder)),
    "transformers.load": lambda own: by_transformers(nvfp4.transformers.load(own.folder)),
    "inspect": inspected,
    "convert": converted,
}
HOST = ("from_pretrained", "transformers.load")


# ---- the checkpoints ----


@dataclass(frozen=True)
class Case:
    """A checkpoint and what the ways in say of it.

    Attributes:
        kind: of fp8_models.KINDS.
        change: writes it.
        skipped: what is skipped by name; the error of all ways.
        but: what single ways skip, or their errors.
        without: layers that are skipped.
    """

    kind: str
    change: Change = Made.write
    skipped: frozenset[str] | Error = frozenset()
    but: Mapping[str, frozenset[str] | Error] = field(default_factory=dict)
    without: tuple[str, ...] = ()


def reshaped(shape: tuple[int, ...]) -> Change:
    """Writes all scales of one number in this shape."""
    return lambda own: own.write({name: t.reshape(shape) if t.numel() == 1 else t for name, t in own.tensors().items()})


def second(changes: dict[str, Any], first: dict[str, Any] | None = None, text: str | None = None) -> Change:
    """Writes hf_quant_config.json too, which says the same as config.json.

    Args:
        changes, first: changes to it, and to config.json.
        text: the whole content, if it is no JSON.
    """

    def write(own: Made) -> None:
        own.write(**(first or {}))
        given = copy.copy(own)
        given.kind = KINDS["modelopt FP8"]
        content = {key: value for key, value in given.quantization().items() if key != "quant_method"} | changes
        (own.folder / HF).write_text(json.dumps({"quantization": content}) if text is None else text)

    return write


def hf_alone(own: Made) -> None:
    second({})(own)
    (own.folder / "config.json").write_text(json.dumps(own.config.to_dict()))


def other_modes(own: Made) -> None:
    layers = dict.fromkeys(own.eight, {"quant_algo": "FP8"}) | dict.fromkeys(own.four, {"quant_algo": "W4A16_NVFP4"})
    second({"quantized_layers": layers})(own)


def mistral(beside: str) -> Change:
    """Writes Mistral's files: beside model.safetensors, beside parts with an index, or beside nothing."""

    def write(own: Made) -> None:
        tensors, params = own.tensors(), {"dim": 256, "quantization": {"config_groups": {}}}
        own.write(tensors)
        whole = own.folder / "model.safetensors"
        if beside == "nothing":
            params["quantization"] = own.quantization()
            whole.rename(own.folder / MISTRAL)
            (own.folder / "config.json").write_text(json.dumps(own.config.to_dict()))
        else:
            safetensors.save_file({"layers.0.attention.wq.weight": torch.zeros(4, 4)}, own.folder / MISTRAL)
        (own.folder / PARAMS).write_text(json.dumps(params))
        if beside == "parts":
            whole.unlink()
            names = {name: f"model-0000{1 + ('layers.1' in name)}-of-00002.safetensors" for name in tensors}
            for file in {*names.values()}:
                part = {name: t for name, t in tensors.items() if names[name] == file}
                safetensors.save_file(part, own.folder / file, {"format": "pt"})
            (own.folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}))

    return write


def cache(own: Made) -> None:
    own.write(own.tensors() | {f"model.layers.0.self_attn.{name}": torch.ones(1) for name in CACHE[own.kind.format]})


def groups_of_32(own: Made) -> None:
    tensors, config = own.tensors(), own.quantization()
    for name, t in tensors.items():
        if name.endswith(".weight_scale") and "mlp" in name:
            tensors[name] = t.view(torch.uint8)[:, ::2].contiguous().view(t.dtype)
    four = FOUR | {"group_size": 32, "scale_dtype": "torch.float8_e4m3fn"}
    if own.kind.format == OPT:
        config["quantized_layers"] |= dict.fromkeys(own.four, {"quant_algo": "NVFP4", "group_size": 32})
    else:
        config["config_groups"]["group_1"] |= {"weights": four, "input_activations": four | {"dynamic": "local"}}
    own.write(tensors, **config)


def integers(own: Made) -> None:
    tensors = own.tensors()
    own.write(tensors | {f"{Q}.weight": torch.zeros(tensors[f"{Q}.weight"].shape, dtype=torch.int8)})


def group_size(own: Made) -> None:
    layers = own.quantization()["quantized_layers"]
    own.write(quantized_layers=layers | {Q: {"quant_algo": "FP8", "group_size": 16}})


def error(message: str) -> Error:
    return nvfp4.Error, message


CACHE = {OPT: ("k_proj.k_scale", "v_proj.v_scale"), CT: ("k_scale", "v_scale")}
BOTH = {"ModelOpt": "modelopt FP8", "compressed-tensors": "ct static"}
NOWHERE = {"quantized_layers": None}
CASES = {
    f"{format}, scales of shape {list(shape)}": Case(kind, reshaped(shape))
    for format, kind in BOTH.items()
    for shape in ((), (1,), (1, 1))
}
CASES |= {kind: Case(kind) for kind in ("modelopt per token", "modelopt blocks", "ct per token")}
STORABLE = error("cannot store: write compressed-tensors")
CASES |= {kind: Case(kind, but={"convert": STORABLE}) for kind in ("ct dynamic", "ct blocks", "ct weights alone")}
for format, kind in BOTH.items():
    scales = frozenset(f"model.layers.0.self_attn.{name}" for name in CACHE[KINDS[kind].format])
    option = frozenset({"quantization_config.rotations"})
    other = dict.fromkeys(("into a model", *HOST), error("cannot be put into the model: is quantized in another way"))
    other["convert"] = error(f"{Q}: cannot be converted: is quantized in another way")
    CASES |= {
        f"{format}, an option": Case(kind, lambda own: own.write(rotations=[1]), option),
        f"{format}, a KV cache": Case(kind, cache, scales),
        f"{format}, groups of 32": Case(kind, groups_of_32),
        f"{format}, integers": Case(kind, integers, frozenset({Q}), other, without=(Q,)),
        f"{format}, another hf_quant_config.json": Case(kind, other_modes, frozenset({HF})),
        f"{format}, a damaged hf_quant_config.json": Case(kind, second({}, text="{"), frozenset({HF})),
    }
CASES |= {
    "equal hf_quant_config.json": Case("modelopt FP8", second({})),
    "compressed-tensors, equal hf_quant_config.json": Case("ct static", second({})),
    "layers in hf_quant_config.json": Case("modelopt FP8", second({}, NOWHERE)),
    "layers nowhere": Case("modelopt FP8", second(NOWHERE, NOWHERE), error("leaves it unquantized, but its tensors")),
    # transformers' from_pretrained reads config.json alone, and asks no quantizer where it says nothing.
    "hf_quant_config.json alone": Case(
        "modelopt FP8", hf_alone, but={"from_pretrained": (RuntimeError, "ignore_mismatched_sizes")}
    ),
    "another algorithm": Case("modelopt FP8", second({}, {"quant_algo": "FP8"}), error("quant_algo: is 'FP8'; must")),
    "a group_size of FP8": Case(
        "modelopt FP8", group_size, frozenset({f"quantization_config.quantized_layers.{Q}.group_size"})
    ),
}
for beside in ("model.safetensors", "parts"):  # transformers chooses the files, and skips others without a name
    but = dict.fromkeys(HOST, frozenset[str]()) | {"convert": frozenset({MISTRAL, PARAMS})}
    CASES[f"Mistral's files beside {beside}"] = Case("ct static", mistral(beside), frozenset({MISTRAL}), but)
CASES["Mistral's files alone"] = Case(
    "ct static",
    mistral("nothing"),
    but={
        "from_pretrained": (OSError, "no file named model.safetensors"),
        "transformers.load": error("has no quantization_config in config.json"),
        "convert": frozenset({PARAMS}),
    },
)


def test_convert_replaces_the_configuration_of_the_part_for_text(tmp_path: Path) -> None:
    """Readers that look there first would find the old format."""
    own = Made(tmp_path / "read", KINDS["ct static"])
    own.write()
    config = {"text_config": {"a": 1, "quantization_config": own.quantization()}}
    (own.folder / "config.json").write_text(json.dumps(config))
    layers, _ = of_checkpoint(nvfp4.load(own.folder))
    convert(own.folder, tmp_path / "converted", OPT)
    assert of_checkpoint(nvfp4.load(tmp_path / "converted"))[0] == layers
    written = json.loads((tmp_path / "converted" / "config.json").read_text())
    assert written["text_config"] == {"a": 1} and written["quantization_config"]["quant_method"] == OPT


@pytest.mark.parametrize("name", CASES)
def test_every_way_in_says_the_same(name: str, tmp_path: Path, generator: torch.Generator) -> None:
    torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
    case = CASES[name]
    own = Made(tmp_path / "read", KINDS[case.kind])
    layers, _ = of_checkpoint(nvfp4.load(own.write()))
    assert {layers[key][0] for key in own.four} == {"W4A4"} and {*layers} == {*own.four, *own.eight}
    layers = {key: layer for key, layer in layers.items() if key not in case.without}
    case.change(own)
    for way, read in WAYS.items():
        wanted = case.but.get(way, case.skipped)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if isinstance(wanted, tuple):
                with pytest.raises(wanted[0], match=re.escape(wanted[1])):
                    read(own)
            else:
                assert (way, read(own)) == (way, (layers, wanted))
