"""Options of a checkpoint's configuration that change what a layer computes: honoured, or named in an error.
`activations` of nvfp4.load decides before input scales are checked; they are errors only where they are used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_load_names import FOUR, K, N, fails, named, opt, packed, write
from torch import Tensor

import nvfp4
from nvfp4.checkpoints import comfy_kitchen, compressed_tensors, gguf, modelopt, options, torchao
from nvfp4.checkpoints.convert import convert
from nvfp4.layers.packed import PackedLinear

pytest.importorskip("safetensors.torch", reason="comes with the extra `test`")


def groups(weights: Any = None, inputs: Any = None, **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": FOUR | (weights or {}), "input_activations": FOUR | (inputs or {})}
    return {"quant_method": "compressed-tensors", "config_groups": {"g": group | more}}


def mixed_group(**inputs: Any) -> dict[str, Any]:
    group = {"targets": ["a"], "weights": FOUR, "input_activations": FOUR | inputs}
    return one() | {"config_groups": {"g": group}}


def one(**layer: Any) -> dict[str, Any]:
    layers = {"a": {"quant_algo": "NVFP4"} | layer}
    return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}


def opt_group(**group: Any) -> dict[str, Any]:
    return opt(config_groups={"g": {"weights": FOUR, "input_activations": FOUR | {"dynamic": False}} | group})


WRONG: dict[str, dict[str, Any]] = {
    "config_groups.g.rotation: is 'hadamard', an option that nvfp4 does not know": groups(rotation="hadamard"),
    "config_groups.g.weights.outliers: is 8, an option that nvfp4 does not know": groups({"outliers": 8}),
    "config_groups.g.input_activations.smooth: is True, an option": groups(inputs={"smooth": True}),
    "config_groups.g.output_activations: are quantized": groups(output_activations=FOUR),
    "config_groups.g.weights.symmetric: is False; must be true": groups({"symmetric": False}),
    "config_groups.g.weights.dynamic: is True; must be false": groups({"dynamic": True}),
    "config_groups.g.input_activations.dynamic: is 'token'; must be true, false or 'local'": groups(
        inputs={"dynamic": "token"}
    ),
    "config_groups.g.format: is 'marlin-24'; must be 'nvfp4-pack-quantized'": groups(format="marlin-24"),
    "sparsity_config.format: is 'sparse-24-bitmask'; must be 'dense'": groups()
    | {"sparsity_config": {"format": "sparse-24-bitmask"}},
    "quantized_layers.a.rotate: is True, an option that nvfp4 does not know": one(rotate=True),
    "quantized_layers.a.has_zero_point: is True: a zero point": one(has_zero_point=True),
    "quantized_layers.a.group_size: is 64; must be 16 or 32": one(group_size=64),
    "quantized_layers.a.lora_rank: is 8: a product of low rank": one(lora_rank=8),
    "config_groups.g.input_activations.rotate: is 1, an option": mixed_group(rotate=1),
    "config_groups.g.rotate: is True, an option": opt_group(rotate=True),
    "config_groups.g.input_activations.rotate: is True, an option": opt_group(
        input_activations=FOUR | {"rotate": True}
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_options_that_change_the_arithmetic(message: str, tmp_path: Path, generator: torch.Generator) -> None:
    config = WRONG[message]
    format = modelopt if config["quant_method"] == "modelopt" else compressed_tensors
    fails(message, write(tmp_path, named("a", format.write(packed(generator))), config))


def test_options_that_say_nothing(tmp_path: Path, generator: torch.Generator) -> None:
    """Options that are off, and what producers write beside them."""
    observer = {"observer": "static_minmax", "observer_kwargs": {}, "zp_dtype": None, "actorder": None, "later": None}
    observer |= {"symmetric": True, "strategy": "tensor_group", "scale_dtype": "torch.float8_e4m3fn"}
    config = groups(observer, observer | {"dynamic": "local"}, format="nvfp4-pack-quantized", output_activations=None)
    config |= {"sparsity_config": {}, "transform_config": {}, "version": "0.12.2", "global_compression_ratio": None}
    layer = packed(generator)
    ct = named("a", compressed_tensors.write(layer))
    assert nvfp4.load(write(tmp_path / "a", ct, config)).skipped == {}
    config = one(has_zero_point=False, pre_quant_scale=False, group_size=16)
    assert nvfp4.load(write(tmp_path / "b", named("a", modelopt.write(layer)), config)).skipped == {}


def test_an_option_of_the_whole_configuration_is_reported(tmp_path: Path, generator: torch.Generator) -> None:
    for name, format, config in (("ct", compressed_tensors, groups()), ("opt", modelopt, opt())):
        folder = write(tmp_path / name, named("a", format.write(packed(generator))), config | {"rotations": [1]})
        model = torch.nn.Sequential()
        model.add_module("a", torch.nn.Linear(K, N, bias=False))
        checkpoint = nvfp4.load(folder, model)
        reason = "is an option that nvfp4 does not know: [1]"
        assert checkpoint.skipped == {"quantization_config.rotations": reason}
        other = "modelopt" if format is compressed_tensors else "compressed-tensors"
        read, _ = convert(folder, tmp_path / f"out {name}", other)
        assert read.skipped == {"quantization_config.rotations": reason}


# ---- those that act ----


@pytest.mark.parametrize("stored", [False, True])
def test_dynamic_is_dynamic_beside_a_stored_scale(stored: bool, tmp_path: Path, generator: torch.Generator) -> None:
    layer = packed(generator, stored)
    for name, format, config in (
        ("ct", compressed_tensors, groups(inputs={"dynamic": True})),
        ("opt", modelopt, opt_group(input_activations=FOUR | {"dynamic": True})),
        ("mixed", modelopt, mixed_group(dynamic=True)),
    ):
        read = nvfp4.load(write(tmp_path / name, named("a", format.write(layer)), config)).layers["a"]
        assert read.activations == "nvfp4" and read.input_global_scale is None


def comfy(mark: dict[str, Any], where: str, layer: PackedLinear) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    tensors = named("a", comfy_kitchen.write(layer)) | {"a.input_scale": torch.tensor(0.5)}
    if where == "tensor":
        text = json.dumps({"format": "nvfp4"} | mark).encode()
        return tensors | {"a.comfy_quant": torch.tensor(list(text), dtype=torch.uint8)}, {}
    return tensors, {"_quantization_metadata": json.dumps({"layers": {"a": {"format": "nvfp4"} | mark}})}


@pytest.mark.parametrize("where", ["tensor", "metadata"])
def test_options_of_comfyui(where: str, tmp_path: Path, generator: torch.Generator) -> None:
    layer = packed(generator, False)
    for i, (mark, activations) in enumerate(
        (
            ({"full_precision_matrix_mult": True}, None),
            ({"full_precision_matrix_mult": False, "convrot": False, "group_size": 16}, "nvfp4"),
            ({}, "nvfp4"),
        )
    ):
        tensors, metadata = comfy(mark, where, layer)
        read = nvfp4.load(write(tmp_path / str(i), tensors, None, metadata)).layers["a"]
        assert read.activations == activations and torch.equal(read.weight, layer.weight)
        assert (read.input_global_scale is None) == (activations is None)
    for i, (mark, message) in enumerate(
        (
            ({"convrot": True, "convrot_groupsize": 256}, "a.comfy_quant: convrot: is True: a rotation of the inputs"),
            ({"smooth": 1}, "a.comfy_quant: smooth: is 1, an option that nvfp4 does not know"),
            ({"group_size": 32}, "a.comfy_quant: group_size: is 32; must be 16"),
            ({"full_precision_matrix_mult": "no"}, "full_precision_matrix_mult: is 'no'; must be true or false"),
        )
    ):
        tensors, metadata = comfy(mark, where, layer)
        fails(message, write(tmp_path / f"wrong{i}", tensors, None, metadata))


@pytest.mark.parametrize(
    "data", [{"block_size": 32}, {"rotation": "r"}, {"act_quant_kwargs": {"_data": {"clip": 1.0}}}]
)
def test_options_of_torchao(data: dict[str, Any], tmp_path: Path, generator: torch.Generator) -> None:
    tensors = named("a", torchao.write(packed(generator, False)))
    for more, message in ((data, "metadata of a.weight: "), ({"block_size": 16}, None)):
        metadata = {"a.weight": json.dumps({"_type": "NVFP4Tensor", "_data": more}), "tensor_names": '["a.weight"]'}
        folder = write(tmp_path / str(message is None), tensors, None, metadata)
        if message is None:
            assert list(nvfp4.load(folder).layers) == ["a"]
        else:
            fails(message, folder)


@pytest.mark.parametrize("location", ["input", "output", "weight_input", "weight_output", "k_cache", "q_attn"])
def test_transforms(location: str, tmp_path: Path, generator: torch.Generator) -> None:
    """The stored weights have offline transforms already; online ones are an error, by transformers too."""
    apply = [{"targets": ["Linear"], "location": location, "inverse": False, "ignore": []}]
    transforms = {"config_groups": {"R1": {"type": "hadamard", "apply": apply}}}
    config = groups() | {"transform_config": transforms}
    folder = write(tmp_path, named("a", compressed_tensors.write(packed(generator))), config)
    if location.startswith("weight"):
        assert list(nvfp4.load(folder).layers) == ["a"]
    else:
        fails(f"transform_config.config_groups.R1.apply.location: is '{location}': layers apply a hadamard", folder)


def test_transforms_of_compressed_tensors() -> None:
    package = pytest.importorskip("compressed_tensors.transform")
    for location in package.TransformLocation:
        arguments = package.TransformArgs(targets=["Linear"], location=location)
        scheme = package.TransformScheme(type="hadamard", apply=[arguments])
        config = {"transform_config": package.TransformConfig(config_groups={"a": scheme}).model_dump(mode="json")}
        if location.is_online():
            with pytest.raises(nvfp4.Error, match="at run time"):
                options.check_transforms(config)
        else:
            options.check_transforms(config)


# ---- the lists of known keys, by the producers' own code ----


def test_keys_of_compressed_tensors() -> None:
    package = pytest.importorskip("compressed_tensors.quantization")
    transform = pytest.importorskip("compressed_tensors.transform")
    assert set(package.QuantizationArgs.model_fields) == set(options.ARGUMENTS)
    assert set(package.QuantizationScheme.model_fields) == set(options.SCHEME)
    assert set(package.QuantizationConfig.model_fields) <= set(options.COMPRESSED_TENSORS)
    assert set(transform.TransformScheme.model_fields) == set(options.TRANSFORM)
    assert set(transform.TransformArgs.model_fields) == set(options.TRANSFORM_ARGUMENTS)
    for name in ("NVFP4", "NVFP4A16"):
        scheme = package.QuantizationScheme(targets=["Linear"], **getattr(package.quant_scheme, name))
        group = json.loads(scheme.model_dump_json())
        recipe = compressed_tensors.recipe({"config_groups": {"g": group}})
        assert recipe.mode("a") == ("W4A4" if name == "NVFP4" else "W4A16")


def test_targets_are_those_of_compressed_tensors(generator: torch.Generator) -> None:
    """Random configurations of exact names, regular expressions and the class. Of two regular expressions in different
    groups its alphabet decides, here and in vLLM the order of the groups: a layer has one at most here."""
    match = pytest.importorskip("compressed_tensors.utils.match")
    package = pytest.importorskip("compressed_tensors.quantization")
    blocks = [
        torch.nn.ModuleDict({"self_attn": layers("q_proj", "o_proj"), "mlp": layers("up_proj", "down_proj")})
        for _ in range(3)
    ]
    model = torch.nn.ModuleDict({"model": torch.nn.ModuleDict({"layers": torch.nn.ModuleList(blocks)})})
    model["lm_head"] = torch.nn.Linear(16, 16)
    linears = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    regexes = [
        r"re:.*mlp",
        r"re:.*\.q_proj$",
        r"re:model\.layers\.[01]\.",
        "re:lm_head",
        r"re:.*layers.2.*o_proj",
        "re:proj",
    ]
    inputs = {"W4A4": {"dynamic": "local"}, "W4A4 dynamic": {"dynamic": True}, "W4A16": None}

    def pick(given: list[str], share: float) -> list[str]:
        return [item for item in given if float(torch.rand((), generator=generator)) < share]

    compared = 0
    for _ in range(300):
        drawn = [(target, mode) for mode in inputs for target in pick([*linears, *regexes, "Linear"], 0.1)]
        group_of = dict(drawn)
        ignore = pick([*linears, *regexes, "Linear"], 0.05)
        config_groups = {
            mode: {
                "targets": [target for target, own in group_of.items() if own == mode],
                "weights": FOUR | {"strategy": "tensor_group"},
                "input_activations": None if numbers is None else FOUR | numbers | {"strategy": "tensor_group"},
            }
            for mode, numbers in inputs.items()
        }
        config = {"config_groups": config_groups, "ignore": ignore, "format": "nvfp4-pack-quantized"}
        package.QuantizationConfig.model_validate({**config, "quant_method": "compressed-tensors"})
        recipe = compressed_tensors.recipe(config)
        quantized = dict(match.match_named_modules(model, group_of, ignore))
        for name in linears:
            matched = match.match_targets(name, model.get_submodule(name), group_of) if name in quantized else []
            if name not in matched and len({group_of[t] for t in matched if t.startswith("re:")}) > 1:
                continue
            assert recipe.mode(name) == (group_of[matched[0]] if matched else None), (name, config)
            compared += bool(matched)
    assert compared > 300


def layers(*names: str) -> torch.nn.ModuleDict:
    return torch.nn.ModuleDict({name: torch.nn.Linear(16, 16) for name in names})


def test_keys_of_modelopt() -> None:
    utils = pytest.importorskip("modelopt.torch.export.quant_utils")
    convert_config = pytest.importorskip("modelopt.torch.export.convert_hf_config").convert_hf_quant_config_format
    layers = {"a.quantization": "nvfp4", "b.quantization": "w4a16_nvfp4", "c.quantization": "nvfp4_awq"}
    layers |= {"d.quantization": "nvfp4_svdquant", "e.quantization": "fp8"}
    layers |= {f"{name}.awq_block_size": 16 for name in "abcd"}
    content = utils.process_layer_quant_config(layers)
    for own in content["quantized_layers"].values():
        assert set(own) <= set(options.MODELOPT_LAYER)
    for whole in ({"quantization": content}, convert_config({"quantization": content})):
        recipe = modelopt.recipe(whole)
        assert [recipe.mode(name) for name in "abcde"] == ["W4A4", "W4A16", "auto", "NVFP4_SVD", "FP8 W8A8"]
        assert recipe.options == {}
    groups = convert_config({"quantization": content})  # the same layers, named by groups alone
    del groups["quantized_layers"]
    with pytest.raises(nvfp4.Error, match=r"^config_groups.group_3.pre_quant_scale: is True: a scale of the inputs"):
        modelopt.recipe(groups)
    del groups["config_groups"]["group_3"]
    by_groups = [modelopt.recipe(groups).mode(name) for name in "abcde"]
    assert by_groups[:2] == ["W4A4", "W4A16"] and not {*by_groups[2:]} & {"W4A4", "W4A4 dynamic", "W4A16"}
    single = utils.process_layer_quant_config({"a.quantization": "nvfp4", "a.awq_block_size": 16})
    assert modelopt.recipe(convert_config({"quantization": single})).mode("a") == "W4A4"


def test_keys_of_torchao() -> None:
    module = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
    kind = module.NVFP4Tensor
    assert {*kind.tensor_attribute_names, *kind.optional_tensor_attribute_names} == set(options.TORCHAO)
    assert set(module.QuantizeTensorToNVFP4Kwargs.__dataclass_fields__) == set(options.TORCHAO_ACTIVATIONS)


# ---- activations ----


BAD = {"missing": None, "zero": 0.0, "infinite": torch.inf, "nan": torch.nan, "negative": -1.0, "vector": [1.0, 2.0]}
GROUP = {"targets": ["Linear"], "weights": FOUR, "input_activations": FOUR | {"dynamic": "local"}}
CONFIGS: dict[Any, dict[str, Any]] = {
    modelopt: opt(),
    compressed_tensors: {"quant_method": "compressed-tensors", "config_groups": {"g": GROUP}},
}


def changed(tensors: dict[str, Tensor], name: str, value: Any) -> dict[str, Tensor]:
    others = {key: t for key, t in tensors.items() if key != name}
    return others if value is None else others | {name: torch.tensor(value)}


@pytest.mark.parametrize("stack", [False, True])
@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("format", CONFIGS)
def test_input_scales_that_are_not_used(
    format: Any, kind: str, stack: bool, tmp_path: Path, generator: torch.Generator
) -> None:
    own = changed(format.write(packed(generator)), format.INPUT_SCALE, BAD[kind])
    if stack:
        own = {name: torch.stack([t, t]) for name, t in own.items()}
    folder = write(tmp_path, named("a", own), CONFIGS[format])

    def read(activations: str | None) -> Any:
        checkpoint = nvfp4.load(folder, activations=activations)
        return checkpoint.experts["a"][1] if stack else checkpoint.layers["a"]

    layer = read(None)
    assert layer.activations is None and layer.input_global_scale is None
    for activations in ("auto", "nvfp4"):
        if kind == "missing" and activations == "nvfp4":
            layer = read("nvfp4")
            assert layer.activations == "nvfp4" and layer.input_global_scale is None
        else:
            fails(
                format.INPUT_SCALE if kind == "missing" or not stack else "a[0]",
                folder,
                None,
                None,
                None,
                None,
                activations,
            )


@pytest.mark.parametrize("format", CONFIGS)
def test_a_stored_scale_that_the_configuration_does_not_use(
    format: Any, tmp_path: Path, generator: torch.Generator
) -> None:
    """W4A16 by the configuration; dynamic ones stay so."""
    config = json.loads(json.dumps(CONFIGS[format]))
    if format is modelopt:
        config["quant_algo"] = "W4A16_NVFP4"
    else:
        config["config_groups"]["g"]["input_activations"] = None
    folder = write(tmp_path, named("a", format.write(packed(generator))), config)
    fails(f"{format.INPUT_SCALE}: is there, but the layer is W4A16", folder)
    layer = nvfp4.load(folder, activations="nvfp4").layers["a"]
    assert layer.activations == "nvfp4" and layer.input_global_scale == 0.25
    assert nvfp4.load(folder, activations=None).layers["a"].activations is None
    if format is compressed_tensors:
        dynamic = {"input_activations": FOUR | {"dynamic": True}}
        config["config_groups"]["g"] |= dynamic
        tensors = changed(named("a", format.write(packed(generator))), f"a.{format.INPUT_SCALE}", [torch.inf])
        for activations in ("auto", "nvfp4"):
            layer = nvfp4.load(write(tmp_path, tensors, config), activations=activations).layers["a"]
            assert layer.activations == "nvfp4" and layer.input_global_scale is None


@pytest.mark.parametrize("bad", [0.0, torch.inf])
def test_files_that_describe_themselves(bad: float, tmp_path: Path, generator: torch.Generator) -> None:
    kind = {"_type": "QuantizeTensorToNVFP4Kwargs", "_data": {"use_dynamic_per_tensor_scale": False}}
    data = {"is_swizzled_scales": False, "act_quant_kwargs": kind}
    metadata = {"a.weight": json.dumps({"_type": "NVFP4Tensor", "_data": data}), "tensor_names": '["a.weight"]'}
    tensors = changed(torchao.write(packed(generator)), torchao.INPUT_SCALE, bad)
    folders = [write(tmp_path / "torchao", named("a", tensors), None, metadata)]
    own = comfy_kitchen.write(packed(generator, False)) | {"input_scale": torch.tensor(bad)}
    metadata = {"_quantization_metadata": json.dumps({"layers": {"a": {"format": "nvfp4"}}})}
    folders.append(write(tmp_path / "comfy", named("a", own), None, metadata))
    for folder in folders:
        assert nvfp4.load(folder, activations=None).layers["a"].activations is None
        for activations in ("auto", "nvfp4"):
            with pytest.raises(nvfp4.Error, match="scale: is (0|inf); must be positive and finite"):
                nvfp4.load(folder, activations=activations)


def test_gguf(tmp_path: Path, generator: torch.Generator) -> None:
    package = pytest.importorskip("gguf")
    writer = package.GGUFWriter(tmp_path / "model.gguf", "llama")
    layer = packed(generator)
    writer.add_tensor("a.weight", gguf.write(layer)["blocks"].numpy(), raw_dtype=package.GGMLQuantizationType.NVFP4)
    writer.add_tensor("a.input_scale", torch.tensor([0.0]).numpy())
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    assert nvfp4.load(tmp_path / "model.gguf", activations=None).layers["a"].activations is None
    fails("a.input_scale: is 0; must be positive and finite", tmp_path / "model.gguf")


def test_help_says_what_happens() -> None:
    text = " ".join((nvfp4.load.__doc__ or "").split())
    assert "An input scale that is missing, 0 or infinite is an error only where it is used" in text
