"""nvfp4.load finds every packed tensor's layer by the names of its configuration, or names the tensor in an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import nvfp4
from nvfp4.__main__ import main
from nvfp4.checkpoints import comfy_kitchen, compressed_tensors, modelopt
from nvfp4.checkpoints.configuration import mode_of
from nvfp4.checkpoints.convert import convert
from nvfp4.checkpoints.inspect import inspect
from nvfp4.checkpoints.names import Modules, Names
from nvfp4.layers.packed import PackedLinear

safetensors = pytest.importorskip("safetensors.torch", reason="comes with the extra `test`")

FP8 = torch.float8_e4m3fn
FOUR = {"num_bits": 4, "type": "float", "group_size": 16}
N, K = 48, 64


def packed(generator: torch.Generator, w4a4: bool = True, n: int = N, k: int = K) -> PackedLinear:
    """Global scales are powers of two, whose reciprocals are exact."""
    return PackedLinear(
        torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, generator=generator),
        torch.randint(1, 0x7F, (n, k // 16), dtype=torch.uint8, generator=generator).view(FP8),
        torch.tensor(2.0**-9),
        torch.tensor(0.25) if w4a4 else None,
        activations="nvfp4" if w4a4 else None,
    )


def same(a: PackedLinear, b: PackedLinear) -> bool:
    def described(t: Any) -> Any:
        return (t.dtype, t.shape, t.contiguous().reshape(-1).view(torch.uint8).tolist()) if torch.is_tensor(t) else t

    return all(described(getattr(a, name)) == described(getattr(b, name)) for name in vars(a))


def named(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{name}.{local}": t.contiguous() for local, t in tensors.items()}


def write(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any] | None, metadata: Any = None) -> Path:
    folder.mkdir(exist_ok=True)
    tensors = {name: t.contiguous().clone() for name, t in tensors.items()}
    safetensors.save_file(tensors, folder / "model.safetensors", metadata or {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({} if config is None else {"quantization_config": config}))
    return folder


def mixed(layers: dict[str, str], **more: Any) -> dict[str, Any]:
    described = {name: {"quant_algo": algorithm} for name, algorithm in layers.items()}
    return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": described} | more


def opt(ignore: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ignore or []} | more


def fp8() -> dict[str, Tensor]:
    return {"weight": torch.ones(8, 16).to(FP8), "weight_scale": torch.tensor(0.5)}


def fails(message: str, *arguments: Any) -> None:
    with pytest.raises(nvfp4.Error) as error:
        nvfp4.load(*arguments)
    assert message in str(error.value)


# ---- the resolver ----


@pytest.mark.parametrize(
    ("pattern", "name", "rule"),
    [
        ("model.layers.0.q", "model.layers.0.q", "name"),
        ("model.layers.0.q", "layers.0.q", "prefix"),
        ("model.layers.0.q", "model.language_model.layers.0.q", "prefix"),
        ("language_model.model.layers.0.q", "model.layers.0.q", "prefix"),
        ("blocks.0.q", "model.diffusion_model.blocks.0.q", "prefix"),
        ("model.diffusion_model.blocks.0.q", "blocks.0.q", "prefix"),
        ("layers.0.ffn.experts", "layers.0.ffn.experts.7.w1", "parent"),
        ("model.layers.0.mlp.experts", "layers.0.mlp.experts.7.up_proj", "parent"),
        ("layers.0.attn.qkv_proj", "layers.0.attn.k_proj", "joined name"),
        ("model.layers.0.mlp.gate_up_proj", "layers.0.mlp.gate_proj", "joined name"),
        ("layers.0.experts.gate_up_proj", "layers.0.experts.3.up_proj", "joined name"),
        ("layers.0.experts.3.up_proj", "layers.0.experts.gate_up_proj", "joined name"),
        ("*.mlp.*", "layers.0.mlp.up", "wildcard"),
        ("model.mtp*", "mtp.0.up", "wildcard"),
        ("re:.*mlp.*", "layers.0.mlp.up", "regular expression"),
        (r"re:model\.layers\.0\..*", "model.language_model.layers.0.up", "regular expression"),
        ("model.layers.0.q.weight", "model.layers.0.q", "name"),
        ("model.layers.1", "model.layers.10.q", None),
        ("vision_tower.layers.0.q", "layers.0.q", None),
        ("re:layers", "model.visual.layers.0", None),
        ("lm_head", "visual.lm_head", None),
    ],
)
def test_rules_of_names(pattern: str, name: str, rule: str | None) -> None:
    names, modules = Names([pattern], "here"), Modules([name])
    names.bind(modules)
    match = names.find(name)
    assert (match and match.rule) == rule
    assert names.unmatched(modules) == ([] if rule else [pattern])


def test_an_exact_name_is_no_prefix_of_another() -> None:
    names = Names(["model.layers.0.q"], "here")
    names.bind(Modules(["model.layers.0.q", "transformer.layers.0.q"]))
    assert names.find("model.layers.0.q") and not names.find("transformer.layers.0.q")


# ---- stacks whose tensors carry the layer's name ----


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("style", ["down_proj", "w13_weight"])
def test_joined_names_of_stacked_experts(
    style: str, transposed: bool, tmp_path: Path, generator: torch.Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    """Llama-4 and gpt-oss store K before N, and engines w13 with a scale for gate and one for up."""
    layers = [packed(generator) for _ in range(3)]
    weight, scale = (torch.stack([getattr(x, name) for x in layers]) for name in ("weight", "weight_scale"))
    if transposed:
        weight, scale = weight.transpose(1, 2), scale.transpose(1, 2)
    stem = style.removesuffix("_weight")
    tensors = {f"m.experts.{style}": weight, f"m.experts.{stem}_weight_scale": scale, "norm.weight": torch.ones(4)}
    tensors[f"m.experts.{stem}_weight_scale_2"] = torch.tensor([[2.0**-9] * 2] * 3 if stem == "w13" else 2.0**-9)
    tensors[f"m.experts.{stem}_input_scale"] = torch.tensor(0.25)
    folder = write(tmp_path / "in", tensors, opt())
    checkpoint = nvfp4.load(folder)
    assert list(checkpoint.experts) == [f"m.experts.{stem}"] and list(checkpoint.tensors) == ["norm.weight"]
    for read, layer in zip(checkpoint.experts[f"m.experts.{stem}"], layers):
        if stem == "w13":
            assert torch.equal(read.weight_global_scale, layer.weight_global_scale.expand(N))
            read = PackedLinear(*(vars(read) | {"weight_global_scale": layer.weight_global_scale}).values())
        assert same(read, layer)
    assert nvfp4.load(dict(tensors)).experts
    fails("is a stack of 3 experts, which a model cannot take", folder, torch.nn.Sequential())
    with pytest.raises(nvfp4.Error, match="is a stack of 3 experts"):
        convert(folder, tmp_path / "out", "compressed-tensors")
    assert not (tmp_path / "out").exists()
    assert main(["inspect", str(folder), "--why"]) == 0
    assert f"why: m.experts.{stem}: quant_algo is NVFP4" in capsys.readouterr().out


def test_different_scales_of_gate_and_up(generator: torch.Generator) -> None:
    layer = packed(generator, False)
    tensors = {"e.w13_weight": layer.weight[None], "e.w13_weight_scale": layer.weight_scale[None]}
    tensors["e.w13_weight_scale_2"] = torch.tensor([[0.5, 0.25]])
    (read,) = nvfp4.load(tensors).experts["e.w13"]
    assert read.weight_global_scale.tolist() == [0.5] * (N // 2) + [0.25] * (N // 2)
    tensors["e.w13_input_scale"] = torch.tensor([[0.5, 0.25]])
    fails("e.w13[0].input_global_scale: is 0.5 and 0.25 for gate and up, which have one input; must be equal", tensors)


# ---- configurations ----


@pytest.mark.parametrize("where", ["config.json", "hf_quant_config.json", "fp8", "fp8 alone"])
def test_quantized_layers_name_a_container(where: str, tmp_path: Path, generator: torch.Generator) -> None:
    """DeepSeek-V4 has FP8 layers, NVFP4 experts, and an ignored subtree of MXFP4."""
    experts = {f"layers.0.ffn.experts.{i}.w{j}": packed(generator) for i in range(2) for j in (1, 2, 3)}
    tensors = {name: t for layer, x in experts.items() for name, t in named(layer, modelopt.write(x)).items()}
    tensors |= {"layers.0.attn.wq.weight": torch.ones(8, 16).to(FP8), "layers.0.attn.wq.scale": torch.ones(1, 1)}
    mtp = {"weight": torch.ones(8, 16, dtype=torch.int8), "scale": torch.ones(8, 1).to(torch.float8_e8m0fnu)}
    tensors |= named("mtp.0.ffn.experts.0.w1", mtp)
    config = mixed({"layers.0.ffn.experts": "NVFP4"}, ignore=["mtp.*"])
    if where.startswith("fp8"):
        config |= {"quant_method": "fp8", "moe_quant_algo": "NVFP4", "fmt": "e4m3", "weight_block_size": [128, 128]}
    if where == "fp8 alone":
        del config["quant_algo"], config["quantized_layers"]
    folder = write(tmp_path, tensors, config)
    if where == "hf_quant_config.json":
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "fp8"}}))
        (tmp_path / where).write_text(json.dumps({"quantization": config}))
    checkpoint = nvfp4.load(folder)
    assert all(same(checkpoint.layers.pop(name), x) for name, x in experts.items())
    assert [*checkpoint.layers] == [*checkpoint.mxfp4] == ["mtp.0.ffn.experts.0.w1"]
    other = {}
    if where.startswith("fp8"):  # which says how layers beside the experts are quantized
        assert [mode_of(checkpoint.fp8.pop("layers.0.attn.wq")).mode] == ["FP8 W8A8 per block"]
    else:
        other["layers.0.attn.wq"] = "is quantized in another way: FP8 by its tensors (float8_e4m3fn)"
    assert checkpoint.skipped == other and not checkpoint.fp8
    found = inspect(folder)
    assert not found.damaged and len(found.layers) == 7
    assert found.why["layers.0.ffn.experts.1.w2"] == (
        "moe_quant_algo is NVFP4" if where == "fp8 alone" else "quantized_layers has 'layers.0.ffn.experts' by parent"
    )


@pytest.mark.parametrize("mark", ["model.blocks.0", "model.diffusion_model.blocks.0", "blocks.0"])
@pytest.mark.parametrize("stored", ["model.diffusion_model.blocks.0", "blocks.0"])
def test_marks_of_comfyui_with_another_prefix(
    mark: str, stored: str, tmp_path: Path, generator: torch.Generator
) -> None:
    layer = packed(generator, False)
    tensors = named(stored, comfy_kitchen.write(layer)) | {"norm.weight": torch.ones(4)}
    marks = {"_quantization_metadata": json.dumps({"layers": {mark: {"format": "nvfp4"}}})}
    checkpoint = nvfp4.load(write(tmp_path, tensors, None, marks))
    assert torch.equal(checkpoint.layers[stored].weight, layer.weight) and list(checkpoint.tensors) == ["norm.weight"]


def test_a_mark_that_matches_nothing(tmp_path: Path, generator: torch.Generator) -> None:
    """Each format rejects it; some regular expressions of a group may match nothing."""
    layer = packed(generator)
    four = {"weights": FOUR, "input_activations": FOUR}
    ct = named("a.up", compressed_tensors.write(layer))

    def groups(*targets: str) -> dict[str, Any]:
        groups = {"one": {"targets": ["re:a.*"], **four}, "two": {"targets": list(targets), **four}}
        return {"quant_method": "compressed-tensors", "config_groups": groups}

    comfy = named("a", comfy_kitchen.write(packed(generator, False)))
    metadata = {"_quantization_metadata": json.dumps({"layers": {"a": {"format": "nvfp4"}, "b": {"format": "nvfp4"}}})}
    mark = torch.tensor(list(b'{"format": "nvfp4"}'), dtype=torch.uint8)
    cases: list[tuple[str, Any, Any, Any]] = [
        ("_quantization_metadata.layers: 'b' matches no layer of the checkpoint", comfy, None, metadata),
        ("b.comfy_quant: marks a layer that has no tensors", comfy | {"b.comfy_quant": mark}, None, metadata),
        (
            "quantized_layers: 'b' matches no layer of the checkpoint",
            named("a", modelopt.write(layer)),
            mixed({"a": "NVFP4", "b": "FP8"}),
            None,
        ),
        ("config_groups.two.targets: 'b.up' matches no layer of the checkpoint", ct, groups("b.up", "re:a.*"), None),
        ("config_groups.two.targets: 're:b.*' matches no layer of the checkpoint", ct, groups("re:b.*"), None),
    ]
    for i, (message, tensors, config, given) in enumerate(cases):
        if "b.comfy_quant" in tensors:
            given = None
            tensors["a.comfy_quant"] = mark
        folder = write(tmp_path / str(i), tensors, config, given)
        fails(message, folder)
        assert main(["inspect", str(folder)]) == 1
    for i, targets in enumerate((["re:b.*", "re:a.*"], ["Embedding"], ["re:a$"])):
        assert len(nvfp4.load(write(tmp_path / f"right{i}", ct, groups(*targets))).layers) == 1


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"x.weight": torch.ones(4, 4, dtype=torch.uint8)}, "x.weight: is uint8 [4, 4] and belongs to no layer"),
        ({"x.weight": torch.ones(4, 4), "x.weight_scale": torch.ones(4, 1)}, "x.weight_scale: is float32 [4, 1]"),
        ({"x.weight": torch.ones(4, 4), "x.input_scale": torch.ones(())}, "beside it: weight"),
        ({"x.codes": torch.ones(4).to(FP8)}, "x.codes: is float8_e4m3fn [4] and belongs to no layer"),
        ({"e.up_packed": torch.ones(2, 4, 4, dtype=torch.uint8)}, "e.up_packed: is uint8 [2, 4, 4]"),
        ({"x._weight_qdata": torch.ones(4, 4, dtype=torch.uint8)}, "x._weight_qdata: is uint8 [4, 4]"),
    ],
)
@pytest.mark.parametrize("format", [modelopt, compressed_tensors])
def test_packed_tensors_that_nothing_claims(
    format: Any, tensors: dict[str, Tensor], message: str, tmp_path: Path, generator: torch.Generator
) -> None:
    group = {"targets": ["Linear"], "weights": FOUR, "input_activations": FOUR}
    config = {"quant_method": "compressed-tensors", "config_groups": {"a": group}}
    own = named("a", format.write(packed(generator)))
    folder = write(tmp_path / "in", own | tensors, opt() if format is modelopt else config)
    fails(message, folder)
    fails(message, own | tensors)
    assert inspect(folder).damaged and main(["inspect", str(folder)]) == 1
    with pytest.raises(nvfp4.Error, match="belongs to no layer"):
        convert(folder, tmp_path / "out", "compressed-tensors" if format is modelopt else "modelopt")
    assert not (tmp_path / "out").exists()


def test_layers_of_other_formats_are_named(tmp_path: Path, generator: torch.Generator) -> None:
    """By their tensors, although the configuration calls them NVFP4; bytes that are no weight are kept."""
    others = {
        "fp8": fp8(),
        "blocks": {"weight": torch.ones(8, 16).to(FP8), "weight_scale_inv": torch.ones(1, 1)},
        "int8": {"weight": torch.ones(8, 16, dtype=torch.int8), "weight_scale": torch.ones(8, 1)},
        "gptq": {"qweight": torch.ones(8, 16, dtype=torch.int32), "scales": torch.ones(1, 16)},
    }
    tensors = {name: t for layer, own in others.items() for name, t in named(layer, own).items()}
    tensors |= named("a", modelopt.write(packed(generator)))
    tensors |= {"spiece_model": torch.ones(9, dtype=torch.uint8), "norm.scale": torch.ones(3)}
    checkpoint = nvfp4.load(write(tmp_path / "in", tensors, opt()))
    assert list(checkpoint.layers) == ["a"] and set(checkpoint.skipped) == set(others)
    assert {"spiece_model", "norm.scale", "fp8.weight"} <= set(checkpoint.tensors)
    with pytest.raises(nvfp4.Error, match=r"cannot be converted: is quantized in another way: "):
        convert(tmp_path / "in", tmp_path / "out", "compressed-tensors")
    model = torch.nn.Sequential()
    model.add_module("a", torch.nn.Linear(K, N, bias=False))
    model.add_module("fp8", torch.nn.Linear(16, 8, bias=False))
    tensors = {name: t for name, t in tensors.items() if name.startswith(("a.", "fp8."))}
    fails("fp8.weight: cannot be put into the model: is quantized in another way: FP8 by its tensors", tensors, model)


def test_layers_in_an_ignored_subtree(tmp_path: Path, generator: torch.Generator) -> None:
    """They may have any format; a layer that the configuration ignores itself must not be packed."""
    layer = packed(generator)
    tensors = named("model.layers.0.up", modelopt.write(layer)) | named("mtp.0.up", modelopt.write(layer))
    tensors |= named("mtp.0.fc", fp8())
    for ignore in (["mtp*"], ["mtp.*"], ["mtp"], ["re:.*mtp.*"]):
        checkpoint = nvfp4.load(write(tmp_path, tensors, opt(ignore)))
        assert same(checkpoint.layers["mtp.0.up"], layer) and list(checkpoint.skipped) == ["mtp.0.fc"]
        assert "ignore has" in checkpoint.why["mtp.0.up"]
    for ignore in (["mtp.0.up"], ["*.up"], ["model.layers.0.u*"]):
        fails(
            "the configuration leaves it unquantized, but its tensors are NVFP4", write(tmp_path, tensors, opt(ignore))
        )
    deep = named("model.layers.10.up", modelopt.write(layer))
    fails("leaves it unquantized", write(tmp_path, deep, opt(["model.layers.1*"])))


def test_dense_tensors_are_named_with_their_bytes(
    tmp_path: Path, generator: torch.Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = named("a", modelopt.write(packed(generator))) | {"experts.up": torch.zeros(2, 64, 8)}
    folder = write(tmp_path, tensors | {"norm.weight": torch.ones(2)}, opt())
    checkpoint = nvfp4.load(folder)
    assert checkpoint.dense == {"experts.up": 4096} and checkpoint.other_bytes == 4104
    assert checkpoint.packed_bytes == N * K // 2 + N * K // 16 + 8
    model = torch.nn.Module()
    model.a, model.experts, model.norm = torch.nn.Linear(K, N, bias=False), torch.nn.Module(), torch.nn.Module()
    model.experts.up, model.norm.weight = (torch.nn.Parameter(torch.ones(shape)) for shape in ((2, 64, 8), (2,)))
    checkpoint = nvfp4.load(folder, model)
    assert checkpoint.dense == {"experts.up": 4096} and checkpoint.other_bytes == 4104
    capsys.readouterr()
    assert main(["inspect", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "dense: experts.up: 4.10 kB\n" in out and "total: 1.74 kB in NVFP4 layers, 4.10 kB in other tensors" in out


def test_groups_that_overlap(tmp_path: Path, generator: torch.Generator) -> None:
    """A layer whose tensors are NVFP4 or FP8 is of the group of that kind that has it as a target, or an error."""
    eight = {"num_bits": 8, "type": "float"}
    groups = {"fp8": {"targets": ["re:.*a.*"], "weights": eight, "input_activations": eight}}
    groups["four"] = {"targets": ["re:.*"], "weights": FOUR, "input_activations": FOUR}
    config = {"quant_method": "compressed-tensors", "config_groups": groups}
    layer = packed(generator)
    tensors = named("a", compressed_tensors.write(layer)) | named("ab", fp8() | {"input_scale": torch.ones(1)})
    for order in (["fp8", "four"], ["four", "fp8"]):
        config["config_groups"] = {name: groups[name] for name in order}
        checkpoint = nvfp4.load(write(tmp_path, tensors, config))
        assert same(checkpoint.layers["a"], layer) and set(checkpoint.fp8) == {"ab"} and checkpoint.skipped == {}
    del groups["four"]
    config["config_groups"] = groups
    fails("a: is FP8 W8A8 by the configuration, but its tensors are NVFP4", write(tmp_path, tensors, config))
    groups["fp8"] |= {"weights": FOUR}
    skipped = nvfp4.load(write(tmp_path, tensors, config)).skipped
    assert skipped["a"] == "is quantized in another way: 4-bit float in groups of 16 with activations of 8-bit float"


EIGHT = {"num_bits": 8, "type": "float"}


def by_groups(**groups: Any) -> dict[str, Any]:
    """MIXED_PRECISION whose layers no quantized_layers names."""
    return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "config_groups": groups, "ignore": ["no"]}


def test_groups_of_modelopt_without_quantized_layers(tmp_path: Path, generator: torch.Generator) -> None:
    """They say what quantized_layers else does; in hf_quant_config.json there is neither."""
    layers = {"model.0.up": packed(generator), "model.0.down": packed(generator, False)}
    tensors = {name: t for layer, own in layers.items() for name, t in named(layer, modelopt.write(own)).items()}
    tensors |= named("model.0.eight", fp8() | {"input_scale": torch.tensor(0.25)}) | {"no.weight": torch.ones(2, 2)}
    groups = {
        "a": {"targets": ["model.0.eight"], "weights": EIGHT, "input_activations": EIGHT},
        "b": {"targets": ["0.up"], "weights": FOUR, "input_activations": FOUR},
        "c": {"targets": ["re:.*down"], "weights": FOUR},
    }
    folder = write(tmp_path, tensors, by_groups(**groups))
    for alone in (True, False):
        if not alone:
            other = {"quantization": {"quant_algo": "MIXED_PRECISION", "exclude_modules": []}}
            (folder / "hf_quant_config.json").write_text(json.dumps(other))
        checkpoint = nvfp4.load(folder)
        assert all(same(checkpoint.layers[name], own) for name, own in layers.items())
        assert mode_of(checkpoint.fp8["model.0.eight"]).mode == "FP8 W8A8" and checkpoint.skipped == {}
        assert checkpoint.why["model.0.up"] == "config_groups.b has the target '0.up' by prefix"
    convert(folder, tmp_path / "out", "compressed-tensors")
    assert same(nvfp4.load(tmp_path / "out").layers["model.0.down"], layers["model.0.down"])
    assert mode_of(nvfp4.load(tmp_path / "out").fp8["model.0.eight"]).mode == "FP8 W8A8"


@pytest.mark.parametrize(
    ("message", "group"),
    [
        ("config_groups.b.targets: 'x' matches no layer", {"targets": ["x"], "weights": FOUR}),
        ("a: is FP8 W8A16 by the configuration, but its tensors are NVFP4", {"targets": ["a"], "weights": EIGHT}),
        ("a: the configuration leaves it unquantized, but its", {"targets": ["re:(?!a).*|b"], "weights": FOUR}),
        ("config_groups.b.pre_quant_scale: is True: a scale of", {"weights": FOUR, "pre_quant_scale": True}),
        ("config_groups.b.lora_rank: is 8: a product of low rank", {"weights": FOUR, "lora_rank": 8}),
        ("config_groups.b.weights.symmetric: is False; must", {"weights": FOUR | {"symmetric": False}}),
        ("a.input_scale: is missing; the configuration says W4A4", {"weights": FOUR, "input_activations": FOUR}),
    ],
)
def test_wrong_groups_of_modelopt(
    message: str, group: dict[str, Any], tmp_path: Path, generator: torch.Generator
) -> None:
    tensors = named("a", modelopt.write(packed(generator, False))) | {"b.weight": torch.ones(2, 2)}
    fails(message, write(tmp_path, tensors, by_groups(b=group)))


def test_algorithms_of_modelopt_groups(tmp_path: Path, generator: torch.Generator) -> None:
    """An algorithm counts before the numbers, except for a dynamic input scale."""
    tensors = named("a", modelopt.write(packed(generator)))
    numbers = {"weights": FOUR, "input_activations": FOUR | {"dynamic": True}}
    folder = write(tmp_path, tensors, by_groups(b=numbers))
    assert nvfp4.load(folder).layers["a"].input_global_scale is None
    assert nvfp4.load(write(tmp_path, tensors, by_groups(b={"quant_algo": "NVFP4"}))).layers["a"].activations == "nvfp4"
    for algorithm in ("NVFP4", "NVFP4_AWQ"):
        folder = write(tmp_path, tensors, by_groups(b=numbers | {"quant_algo": algorithm}))
        layer = nvfp4.load(folder).layers["a"]
        assert layer.activations == "nvfp4" and layer.input_global_scale is None
    skipped = nvfp4.load(write(tmp_path, tensors, by_groups(b=numbers | {"quant_algo": "NVFP4_SVD"}))).skipped
    assert skipped == {"a": "is quantized in another way: NVFP4_SVD"}


def test_fp8_groups_of_modelopt(tmp_path: Path, generator: torch.Generator) -> None:
    """Without quantized_layers: channels with a scale for each row of the input, and options that are not done."""
    tensors = named("a", modelopt.write(packed(generator)))
    values = torch.randn(N, K, generator=generator)
    tensors |= {"b.weight": values.to(FP8), "b.weight_scale": torch.full((N,), 0.5)}
    eight = {"num_bits": 8, "type": "float", "dynamic": False}
    own = {"weights": eight | {"strategy": "channel"}, "input_activations": eight, "targets": ["b"]}
    four = {"weights": FOUR, "input_activations": FOUR, "targets": ["a"]}
    checkpoint = nvfp4.load(write(tmp_path, tensors, by_groups(x=four, y=own)))
    assert checkpoint.fp8["b"].activations == "token" and not checkpoint.skipped
    for option in ("has_zero_point", "pre_quant_scale"):
        folder = write(tmp_path, tensors, by_groups(x=four, y=own | {option: True}))
        fails(f"config_groups.y.{option}: is True: ", folder)


def test_a_configuration_in_the_part_for_text(tmp_path: Path, generator: torch.Generator) -> None:
    write(tmp_path, named("a", modelopt.write(packed(generator))), None)
    content = {"text_config": {"quantization_config": mixed({"language_model.a": "NVFP4"})}}
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert nvfp4.load(tmp_path).why == {"a": "quantized_layers has 'language_model.a' by prefix"}
