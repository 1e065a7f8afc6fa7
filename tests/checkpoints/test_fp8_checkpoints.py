"""Checkpoints that hold FP8 layers beside NVFP4 ones, written by hand in the producers' layouts, against the same model
in plain torch. Files of the producers' own code are in test_fp8_producers.py."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from error_bounds import U
from torch import Tensor, nn

import nvfp4
from nvfp4.__main__ import main
from nvfp4.checkpoints import fp8, kv_cache, modelopt
from nvfp4.checkpoints.convert import convert
from nvfp4.checkpoints.inspect import inspect
from nvfp4.layers.fp8 import FP8, Fp8Tensors, StoredScales
from nvfp4.layers.packed import PackedLinear

pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch", reason="comes with transformers")
from fp8_models import (  # noqa: E402
    CT,
    EIGHT,
    KINDS,
    OPT,
    SIZES,
    Kind,
    Made,
    Q,
    check_layers,
    eights,
    four_bits,
    generated,
    group,
    load,
    logits,
    modes,
    plain,
    raw,
    stored,
)


@pytest.fixture
def made(tmp_path: Path, generator: torch.Generator) -> Callable[..., Made]:
    def make(kind: str | Kind, *arguments: Any) -> Made:
        torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
        return Made(tmp_path / "first", KINDS[kind] if isinstance(kind, str) else kind, *arguments)

    return make


@pytest.mark.parametrize(
    ("kind", "architecture"), [*((kind, "llama") for kind in KINDS), ("modelopt FP8", "qwen2"), ("ct blocks", "qwen2")]
)
def test_loads_runs_and_saves(kind: str, architecture: str, made: Callable[..., Made], tmp_path: Path) -> None:
    """Equal bits to the model in plain torch, so equal tokens. Saved again, every tensor has the same bytes."""
    own = made(kind, architecture, architecture == "llama")
    folder, want = own.write(), own.plain()
    model = load(folder, dtype=torch.float32)
    assert eights(model).keys() == own.eight.keys() and model.hf_quantizer.skipped == {}
    assert torch.equal(logits(model), logits(want)) and torch.equal(generated(model), generated(want))
    check_layers(model)
    by_load = copy.deepcopy(own.base)
    checkpoint = nvfp4.load(folder, by_load)
    assert checkpoint.fp8.keys() == own.eight.keys() and not checkpoint.skipped
    assert torch.equal(logits(by_load), logits(want))

    first, described = raw(stored(folder)), modes(folder)
    assert len(described) == 14 and sum("FP8" in mode for mode in described.values()) == 8
    for name, save in (("second", model.save_pretrained), ("third", by_load.save_pretrained)):
        save(tmp_path / name)
        assert raw(stored(tmp_path / name)) == first and modes(tmp_path / name) == described
        assert torch.equal(logits(load(tmp_path / name, dtype=torch.float32)), logits(want))
    report = nvfp4.save(by_load, tmp_path / "fourth", own.kind.format)
    assert {*report.fp8} == {*own.eight} and {*report.layers} == {*own.four} and not report.skipped
    assert raw(stored(tmp_path / "fourth")) == first and modes(tmp_path / "fourth") == described


@pytest.mark.parametrize("kind", KINDS)
def test_other_dtypes(kind: str, made: Callable[..., Made]) -> None:
    """Scales and FP8 weights keep theirs."""
    own = made(kind)
    own.write()
    for dtype in (torch.bfloat16, torch.float16):
        model = load(own.folder, dtype=dtype)
        for layer in eights(model).values():
            assert layer.weight.dtype == FP8 and layer.weight_scale.dtype == torch.float32
        check_layers(model)
        assert raw({name: layer.weight for name, layer in eights(model).items()}) == raw(
            {name: tensors["weight"] for name, tensors in own.eight.items()}
        )


@pytest.mark.parametrize("kind", KINDS)
def test_weights_alone(kind: str, made: Callable[..., Made], tmp_path: Path) -> None:
    """activations=None, which needs no input scale and takes a damaged one; and what is saved then."""
    own = made(kind)
    tensors = own.tensors()
    for name in [name for name in tensors if name.endswith("input_scale")]:
        tensors[name] = tensors[name] * 0
    own.write(tensors)
    want = plain(own.base, own.eight, {n: four_bits_alone(p) for n, p in own.four.items()}, None)
    model = nvfp4.transformers.load(own.folder, dtype=torch.float32, activations=None)
    by_load = copy.deepcopy(own.base)
    nvfp4.load(own.folder, by_load, activations=None)
    for each in (model, by_load):
        assert {layer.activations for layer in eights(each).values()} == {None}
        assert torch.equal(logits(each), logits(want))
    if own.kind.format == CT or own.kind.scales == "block":
        model.save_pretrained(tmp_path / "second")
        eight = "MXFP8 W8A16" if own.kind.scales == "group" else "FP8 W8A16"
        assert {*modes(tmp_path / "second").values()} == {"W4A16", eight}
        assert torch.equal(logits(load(tmp_path / "second", dtype=torch.float32)), logits(want))
    if kind == "modelopt per token":
        with pytest.raises(
            nvfp4.Error, match=r"_proj.weight_scale: is one for each channel of a layer in the mode FP8 W8"
        ):
            nvfp4.save(by_load, tmp_path / "third", OPT)
        assert not (tmp_path / "third").exists()


@pytest.mark.parametrize("kind", ["modelopt FP8", "modelopt blocks", "ct per token"])
def test_quantized_activations_of_the_caller(kind: str, made: Callable[..., Made]) -> None:
    """activations="nvfp4" is for NVFP4 layers: FP8 layers keep their mode."""
    own = made(kind, "llama", False)
    checkpoint = nvfp4.load(own.write(), activations="nvfp4")
    assert {packed.activations for packed in checkpoint.layers.values()} == {"nvfp4"}
    want = {"modelopt FP8": "tensor", "modelopt blocks": None, "ct per token": "token"}[kind]
    assert {tensors.activations for tensors in checkpoint.fp8.values()} == {want}


def four_bits_alone(packed: PackedLinear) -> PackedLinear:
    return PackedLinear(packed.weight, packed.weight_scale, packed.weight_global_scale, activations=None)


# ---- DeepSeek ----


def test_quant_method_fp8(made: Callable[..., Made], generator: torch.Generator) -> None:
    """FP8 layers with weight_scale_inv beside layers of moe_quant_algo: experts, or named ones in a model."""
    own = made(Kind(OPT, "block", "block", None, "weight_scale_inv"))
    config = {"quant_method": "fp8", "moe_quant_algo": "NVFP4", "activation_scheme": "dynamic", "fmt": "e4m3"}
    config |= {
        "weight_block_size": [128, 128],
        "quantized_layers": {name: {"quant_algo": "NVFP4"} for name in own.four},
    }
    folder = own.write(quant_algo=None, **config)
    model = copy.deepcopy(own.base)
    nvfp4.load(folder, model)
    assert torch.equal(logits(model), logits(own.plain()))
    with pytest.raises(nvfp4.Error, match="in the mode FP8 W8A8 per block, which modelopt cannot store"):
        nvfp4.save(model, folder.parent / "second")

    experts = {f"model.layers.0.mlp.experts.{i}.up_proj": packed for i, packed in enumerate(own.four.values())}
    tensors = {f"{name}.{key}": t for name, packed in experts.items() for key, t in modelopt.write(packed).items()}
    del config["quantized_layers"]
    own.write({**tensors, **{f"{Q}.{key}": t for key, t in own.eight[Q].items()}}, **config | {"quant_algo": None})
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    checkpoint = nvfp4.load(folder)
    assert checkpoint.layers.keys() == experts.keys() and checkpoint.fp8.keys() == {Q} and not checkpoint.skipped
    for changes, words in (
        ({"weight_block_size": [64, 64]}, "FP8 in blocks of [64, 64]"),
        ({"fmt": "e5m2"}, "e5m2 with dynamic activations"),
    ):
        (folder / "config.json").write_text(json.dumps({"quantization_config": config | changes}))
        assert nvfp4.load(folder).skipped == {Q: f"is quantized in another way: {words}"}
    groups = torch.randint(100, 150, (256, 8), generator=generator, dtype=torch.uint8)
    mx = {name: t for name, t in stored(folder).items() if name != f"{Q}.weight_scale_inv"}
    safetensors.save_file(mx | {f"{Q}.weight_scale_inv": groups}, folder / "model.safetensors")
    described = {"quantization_config": config | {"weight_block_size": [1, 32]}}
    (folder / "config.json").write_text(json.dumps(described))
    with pytest.warns(UserWarning, match=f"^1 layer is MXFP8 with MXFP8 inputs by the configuration .{Q}.;"):
        assert torch.equal(nvfp4.load(folder).fp8[Q].weight_scale, (2.0 ** (groups.double() - 127)).float())
    tensors = {f"{Q}.{key}": t for key, t in own.eight[Q].items()} | tensors
    for scale, dtype in (("scale", torch.float32), ("scale", torch.float8_e8m0fnu)):
        powers = 2.0 ** tensors[f"{Q}.weight_scale_inv"].log2().round()
        renamed = {name: t for name, t in tensors.items() if name != f"{Q}.weight_scale_inv"}
        safetensors.save_file(renamed | {f"{Q}.{scale}": powers.to(dtype)}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
        assert torch.equal(nvfp4.load(folder).fp8[Q].weight_scale, powers)


# ---- MXFP8 ----


def test_inputs_that_are_not_quantized_are_said_once(made: Callable[..., Made], tmp_path: Path) -> None:
    """A single warning for all layers where the configuration quantizes inputs, and none where it or the caller does
    not."""
    for kind, activations, count in (
        ("modelopt MXFP8", "auto", 1),
        ("ct MXFP8", "nvfp4", 1),
        ("ct MXFP8", None, 0),
        ("ct MXFP8 weights alone", "auto", 0),
    ):
        own = made(kind)
        for read in (nvfp4.load, nvfp4.transformers.load):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                read(own.write(), activations=activations)
            texts = [str(w.message) for w in caught if "MXFP8" in str(w.message)]
            assert len(texts) == count
            first = "8 layers are MXFP8 with MXFP8 inputs by the configuration (model.layers.0.self_attn."
            assert all(text.startswith(first) and text.endswith("with 16-bit inputs") for text in texts)


@pytest.mark.parametrize("kind", ["modelopt MXFP8", "ct MXFP8", "ct MXFP8 weights alone"])
def test_mxfp8_in_the_other_format(kind: str, made: Callable[..., Made], tmp_path: Path) -> None:
    """Weights and scales keep their bytes. ModelOpt stores MXFP8 with MXFP8 inputs alone."""
    own = made(kind)
    other = CT if own.kind.format == OPT else OPT
    if kind == "ct MXFP8 weights alone":
        with pytest.raises(nvfp4.Error, match="in the mode MXFP8 W8A16, which modelopt cannot store"):
            convert(own.write(), tmp_path / "second", other)
        return
    _, report = convert(own.write(), tmp_path / "second", other)
    assert {*report.fp8} == {*own.eight}
    own_bytes = raw({f"{name}.{key}": t for name, tensors in own.eight.items() for key, t in tensors.items()})
    assert own_bytes.items() <= raw(stored(tmp_path / "second")).items()
    assert modes(tmp_path / "second") == modes(own.folder)
    assert torch.equal(logits(load(tmp_path / "second", dtype=torch.float32)), logits(own.plain()))


@pytest.mark.parametrize("kind", ["modelopt MXFP8", "ct MXFP8"])
def test_lost_scales_of_nvfp4_beside_mxfp8(kind: str, made: Callable[..., Made]) -> None:
    """A group_size of 32 is that of MXFP8 alone: half of an NVFP4 layer's scales are damage."""
    own = made(kind)
    tensors, name = own.tensors(), f"{next(iter(own.four))}.weight_scale"
    n, columns = tensors[name].shape
    tensors[name] = tensors[name][:, ::2].contiguous()
    folder = own.write(tensors)
    config = own.quantization()
    if own.kind.format == OPT:
        layers = config["quantized_layers"]
        layers |= {layer: {"quant_algo": "MXFP8", "group_size": 32} for layer in own.eight}
        own.write(tensors, quantized_layers=layers)
    with pytest.raises(nvfp4.Error) as error:
        nvfp4.load(folder)
    assert (
        str(error.value)
        == f"{name}: shape is [{n}, {columns // 2}]; must be [{n}, {columns}], or group_size must be 32"
    )


def test_a_state_dict_with_other_scales(generator: torch.Generator) -> None:
    """What a checkpoint said of an MXFP8 layer does not hold for other scales."""
    eight = Fp8Tensors(torch.randn(4, 64, generator=generator).to(FP8), torch.ones(4, 2), stored=None)
    layer = nvfp4.Fp8Linear.from_packed(eight)
    layer.stored = StoredScales(OPT, {"weight_scale": ("weight_scale", (4, 2), torch.uint8)}, "MXFP8")
    other = nvfp4.Fp8Linear(64, 4, bias=False)
    layer.load_state_dict(other.state_dict())
    assert layer.stored is None and str(fp8.mode_of(layer.packed())) == "FP8 W8A16"


def test_a_nan_of_mxfp8(made: Callable[..., Made]) -> None:
    own = made("ct MXFP8")
    own.eight[Q]["weight_scale"][3, 5] = 0xFF
    with pytest.raises(nvfp4.Error, match=f"^{Q}.weight_scale: is nan; must be positive and finite$"):
        nvfp4.load(own.write())


def test_a_scale_of_a_group_that_is_no_power_of_two(generator: torch.Generator, tmp_path: Path) -> None:
    eight = Fp8Tensors(torch.randn(4, 64, generator=generator).to(FP8), torch.full((4, 2), 0.75))
    model = nn.Sequential(nvfp4.Linear(16, 16, activations=None), nvfp4.Fp8Linear.from_packed(eight))
    with pytest.raises(nvfp4.Error, match="^1.weight_scale: is 0.75 of a group; must be a power of two$"):
        nvfp4.save(model, tmp_path / "folder", CT)
    assert not (tmp_path / "folder").exists()


# ---- AWQ ----


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("w4a4", [False, True])
def test_pre_quant_scale(w4a4: bool, mixed: bool, made: Callable[..., Made], tmp_path: Path) -> None:
    """NVFP4_AWQ, alone or beside FP8: some layers have the scale, in the others it is folded into the norm before."""
    own = made("modelopt FP8", "llama", w4a4)
    for name in own.four:
        if name.endswith("down_proj"):
            scale = (torch.rand(SIZES["intermediate_size"]) + 0.5).bfloat16()
            own.four[name] = four_bits(own.base.get_submodule(name), w4a4, scale)
    options = {"quant_algo": "NVFP4_AWQ", "group_size": 16, "has_zero_point": False, "pre_quant_scale": True}
    if mixed:
        layers = dict.fromkeys(own.four, options) | {name: {"quant_algo": "FP8"} for name in own.eight}
        own.write(quantized_layers=layers)
    else:
        own.four |= {name: four_bits(own.base.get_submodule(name), w4a4) for name in own.eight}
        own.eight = {}
        own.write(quantized_layers=None, **options, ignore=["lm_head"])
    want = own.plain()
    model = load(own.folder, dtype=torch.float32)
    by_load = copy.deepcopy(own.base)
    nvfp4.load(own.folder, by_load)
    assert torch.equal(logits(model), logits(want)) and torch.equal(logits(by_load), logits(want))
    assert torch.equal(generated(model), generated(want))
    with torch.no_grad():  # the scale changes the results
        model.model.layers[1].mlp.down_proj.pre_quant_scale.fill_(1.0)
    assert not torch.equal(logits(model), logits(want))

    first = raw(stored(own.folder))
    load(own.folder, dtype=torch.float32).save_pretrained(tmp_path / "second")
    nvfp4.save(by_load, tmp_path / "third")
    described = modes(own.folder)
    assert sum(mode == ("W4A4 AWQ" if w4a4 else "W4A16 AWQ") for mode in described.values()) == 2
    for name in ("second", "third"):
        assert raw(stored(tmp_path / name)) == first and modes(tmp_path / name) == described
        assert torch.equal(logits(load(tmp_path / name, dtype=torch.float32)), logits(want))
    with pytest.raises(
        nvfp4.Error, match="down_proj.pre_quant_scale: is there, but compressed-tensors cannot store it"
    ):
        nvfp4.save(by_load, tmp_path / "fourth", CT)


def test_a_layer_with_pre_quant_scale(generator: torch.Generator) -> None:
    """Casts, copies, state dicts, gradients and joined layers."""
    for dtype in (torch.bfloat16, torch.float32):
        scale = (torch.rand(64, generator=generator) + 0.5).to(dtype)
        packed = four_bits(nn.Linear(64, 32, bias=False), False, scale)
        layer = nvfp4.Linear.from_packed(packed)
        without = nvfp4.Linear.from_packed(PackedLinear(*list(vars(packed).values())[:6]))
        x = torch.randn(3, 64, generator=generator)
        want = without(x * scale.float())
        assert torch.equal(layer(x), want) and repr(layer).endswith("pre_quant_scale=[K])")
        fresh = nvfp4.Linear(64, 32, bias=False, activations=None)
        fresh.load_state_dict(layer.state_dict())
        for copied in (copy.deepcopy(layer), copy.deepcopy(layer).half(), copy.deepcopy(layer).bfloat16(), fresh):
            assert torch.equal(copied(x), want) and torch.equal(copied.packed().pre_quant_scale, scale)
            assert copied.pre_quant_scale.dtype == dtype
        fresh.load_state_dict(without.state_dict())
        assert torch.equal(fresh(x), without(x)) and fresh.pre_quant_scale is None
        x.requires_grad_()
        layer(x).sum().backward()
        inner = (x.detach() * scale.float()).requires_grad_()
        without(inner).sum().backward()
        assert torch.equal(x.grad, inner.grad * scale.float())
        fused = nvfp4.Linear.fuse([layer, layer])
        assert torch.equal(fused(x.detach()), torch.cat([want, want], -1))
        with pytest.raises(nvfp4.Error, match="^layers: pre_quant_scale of layer 1 differs from that of layer 0"):
            nvfp4.Linear.fuse([layer, without])


def test_dense_again(made: Callable[..., Made], generator: torch.Generator) -> None:
    """A dense weight has the pre_quant_scale in its columns; of a model with FP8 layers nothing is made dense."""
    scale = torch.rand(64, generator=generator) + 0.5
    layer = nvfp4.Linear.from_packed(four_bits(nn.Linear(64, 32, bias=False), False, scale))
    model = nn.Sequential(copy.deepcopy(layer))
    (described,) = nvfp4.dequantize_model(model, torch.float32).layers
    assert 0 < described.error <= 2 * U and type(model[0]) is nn.Linear  # two multiplications
    assert torch.equal(model[0].weight, layer.dequantize(torch.float32))
    x = torch.eye(64)
    assert ((layer(x).T - model[0].weight).abs() <= 4 * U * model[0].weight.abs()).all()

    own = made("modelopt FP8")
    model = copy.deepcopy(own.base)
    nvfp4.load(own.write(), model)
    before = raw(model.state_dict())
    with pytest.raises(nvfp4.Error, match=f"^{Q}: is an Fp8Linear, which dequantize_model cannot make dense$"):
        nvfp4.dequantize_model(model)
    assert raw(model.state_dict()) == before


# ---- the KV cache, other formats ----


@pytest.mark.parametrize("kind", ["modelopt FP8", "ct static"])
def test_scales_of_the_kv_cache_are_written_again(kind: str, made: Callable[..., Made], tmp_path: Path) -> None:
    own = made(kind)
    stem = "model.layers.{}.self_attn."
    names = ("k_proj.k_scale", "v_proj.v_scale") if own.kind.format == OPT else ("k_scale", "v_scale")
    shape, dtype = ((), torch.float32) if own.kind.format == OPT else ((1,), torch.bfloat16)
    cache = {stem.format(i) + name: (torch.rand(shape) + 0.5).to(dtype) for i in (0, 1) for name in names}
    scheme = {"dynamic": False, "num_bits": 8, "type": "float"}
    own.write(own.tensors() | cache, kv_cache_scheme=scheme)
    first = raw(stored(own.folder))
    with pytest.warns(UserWarning, match="^skips 4 scales of the KV cache"):
        model = load(own.folder, dtype=torch.float32)
    by_load = copy.deepcopy(own.base)
    checkpoint = nvfp4.load(own.folder, by_load)
    assert {*checkpoint.skipped} == {*cache} and checkpoint.kv_cache is not None
    kept = kv_cache.of(by_load)
    assert kept is not None and kept.scales.keys() == cache.keys()
    assert all(t.data_ptr() != checkpoint.kv_cache.scales[name].data_ptr() for name, t in kept.scales.items())
    assert torch.equal(logits(model), logits(own.plain()))
    copied = copy.deepcopy(by_load)
    (own.folder / "model.safetensors").unlink()  # the scales do not need the file
    model.save_pretrained(tmp_path / "second")
    by_load.save_pretrained(tmp_path / "third")
    nvfp4.save(copied, tmp_path / "fourth", own.kind.format)
    for name in ("second", "third", "fourth"):
        assert raw(stored(tmp_path / name)) == first
        config = json.loads((tmp_path / name / "config.json").read_text())["quantization_config"]
        assert config["kv_cache_scheme"] == scheme
    if own.kind.format == OPT:
        content = json.loads((tmp_path / "fourth" / "hf_quant_config.json").read_text())
        assert content["quantization"]["kv_cache_quant_algo"] == "FP8"
    other = CT if own.kind.format == OPT else OPT
    report = nvfp4.save(by_load, tmp_path / "fifth", other)
    assert report.skipped == dict.fromkeys(cache, f"is a scale of the KV cache, as {own.kind.format} stores it")
    assert cache.keys().isdisjoint(stored(tmp_path / "fifth"))


@pytest.mark.parametrize("kind", ["modelopt FP8", "modelopt per token", "modelopt blocks"])
def test_conversion_and_back(kind: str, made: Callable[..., Made], tmp_path: Path) -> None:
    own = made(kind)
    folder = own.write()
    convert(folder, tmp_path / "ct", CT)
    model = nvfp4.transformers.load(tmp_path / "ct", dtype=torch.float32)
    assert torch.equal(logits(model), logits(own.plain()))
    convert(tmp_path / "ct", tmp_path / "back", OPT)
    assert raw(stored(tmp_path / "back")) == raw(stored(folder)) and modes(tmp_path / "back") == modes(folder)


def test_the_commands_name_fp8_layers(
    made: Callable[..., Made], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = made("modelopt FP8")
    folder = own.write()
    assert main(["inspect", str(folder), "--why"]) == 0
    out = capsys.readouterr().out
    assert f"{folder}: 8 FP8 layers" in out and "0 of 14 layers are damaged" in out and " in FP8 layers, " in out
    (row,) = [line.split() for line in out.splitlines() if line.startswith(f"{Q} ")]
    scale, given = own.eight[Q]["weight_scale"], own.eight[Q]["input_scale"]
    assert row[1:] == ["FP8", "W8A8", "256x256", "tensor", f"{scale:.3g}..{scale:.3g}", f"{given:.3g}"]
    assert f"why: {Q}: quantized_layers has {Q!r} by name" in out
    assert main(["convert", str(folder), str(tmp_path / "ct"), "--to", CT]) == 0
    assert "modelopt to compressed-tensors: 6 layers, 8 FP8 layers, " in capsys.readouterr().out
    own.eight[Q]["weight"].view(torch.uint8)[0, 0] = 0x7F
    assert main(["inspect", str(own.write())]) == 1
    out = capsys.readouterr().out
    assert f"DAMAGE: {Q}: 1 of 65536 values of the weight are NaN" in out and "1 of 14 layers are damaged" in out


def test_modelopt_has_no_dynamic_inputs(made: Callable[..., Made], tmp_path: Path) -> None:
    for kind in ("ct dynamic", "ct blocks", "ct weights alone"):
        own = made(kind)
        with pytest.raises(nvfp4.Error, match="cannot store: write compressed-tensors$"):
            convert(own.write(), tmp_path / "second", OPT)
        assert not (tmp_path / "second").exists()


# ---- damage ----


def changed(**tensors: Any) -> Callable[[dict[str, Tensor]], None]:
    """Changes tensors of Q: a function, a new tensor, or None to remove it."""

    def change(all_tensors: dict[str, Tensor]) -> None:
        for key, new in tensors.items():
            name = f"{Q}.{key}"
            if new is None:
                del all_tensors[name]
            else:
                all_tensors[name] = new(all_tensors[name]) if callable(new) else new

    return change


def spoiled(value: float) -> Callable[[Tensor], Tensor]:
    def change(t: Tensor) -> Tensor:
        t = t.clone()
        t.view(-1)[-1] = value
        return t

    return change


SHAPES = "[], [1], [256], [256, 1], [2, 2] or [2, 1, 2, 1] for a weight of 256 x 256"
DAMAGE = {
    "weight_scale: is nan; must be positive and finite": ("ct blocks", changed(weight_scale=spoiled(torch.nan))),
    "weight_scale: is 0; must be positive and finite": ("ct per token", changed(weight_scale=spoiled(0.0))),
    "weight_scale: is -1; must be positive and finite": ("modelopt FP8", changed(weight_scale=spoiled(-1.0))),
    "weight_scale: is inf; must be positive and finite": ("modelopt blocks", changed(weight_scale=spoiled(torch.inf))),
    "input_scale: is 0; must be positive and finite": ("modelopt FP8", changed(input_scale=spoiled(0.0))),
    "input_scale: shape is [2]; must have 1 element": ("ct static", changed(input_scale=torch.ones(2))),
    f"weight_scale: shape is [255]; must be {SHAPES}": ("modelopt per token", changed(weight_scale=torch.ones(255))),
    f"weight_scale: shape is [2, 1]; must be {SHAPES}": ("ct blocks", changed(weight_scale=torch.ones(2, 1))),
    "weight_scale: dtype is int32; must be float32, bfloat16, float16, float8_e8m0fnu": (
        "ct static",
        changed(weight_scale=torch.ones(1, dtype=torch.int32)),
    ),
    "weight_scale: is missing; an FP8 layer has one of weight_scale, weight_scale_inv, scale": (
        "ct per token",
        changed(weight_scale=None),
    ),
    "weight_scale: are both there: weight_scale, weight_scale_inv; an FP8 layer has one of weight_scale, "
    "weight_scale_inv, scale": ("ct per token", changed(weight_scale_inv=torch.ones(()))),
    "input_scale: is missing; the configuration says FP8 W8A8": ("modelopt FP8", changed(input_scale=None)),
    "input_scale: is there, but the configuration says FP8 W8A8 per token": (
        "ct per token",
        changed(input_scale=torch.ones(1)),
    ),
    "pre_quant_scale: is no tensor of an FP8 layer: weight, weight_scale, weight_scale_inv, scale, input_scale, bias": (
        "modelopt FP8",
        changed(pre_quant_scale=torch.ones(256)),
    ),
    "weight_scale: is float32 [256, 8]; must be uint8 or float8_e8m0fnu [256, 8], for each 32 values of a weight of "
    "256 x 256": ("modelopt MXFP8", changed(weight_scale=torch.ones(256, 8))),
    "weight_scale: is uint8 [256]; must be uint8 or float8_e8m0fnu [256, 8], for each 32 values of a weight of "
    "256 x 256": ("ct MXFP8", changed(weight_scale=torch.ones(256, dtype=torch.uint8))),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damage_is_named_and_changes_nothing(message: str, made: Callable[..., Made]) -> None:
    kind, change = DAMAGE[message]
    own = made(kind)
    tensors = own.tensors()
    change(tensors)
    folder = own.write(tensors)
    model = copy.deepcopy(own.base)
    for call in (lambda: nvfp4.load(folder), lambda: nvfp4.load(folder, model), lambda: load(folder)):
        with pytest.raises(nvfp4.Error) as error:
            call()
        assert str(error.value) == f"{Q}.{message}"
    assert raw(model.state_dict()) == raw(own.base.state_dict()) and not eights(model)
    assert inspect(folder).errors == {Q: f"{Q}.{message}"}


def test_nan_in_a_weight_is_damage(made: Callable[..., Made]) -> None:
    own = made("ct static")
    own.eight[Q]["weight"].view(torch.uint8)[3, 5] = 0xFF
    (layer,) = [layer for layer in inspect(own.write()).fp8 if layer.damage]
    assert layer.name == Q and layer.nan == 1
    assert layer.damage == ["1 of 65536 values of the weight are NaN"]


OTHER = {
    "8-bit float in groups of 64": group(None, group_size=64, strategy="group", scale_dtype="torch.uint8"),
    "8-bit float in groups of 32": group(None, group_size=32, strategy="group"),
    "8-bit float": group(None, strategy="block", block_structure=[64, 64]),
    "8-bit int": group(None, type="int"),
}


@pytest.mark.parametrize("words", OTHER)
def test_other_ways_stay_an_error(words: str, made: Callable[..., Made]) -> None:
    """Other groups, groups of other scales, other blocks, integers."""
    own = made(Kind(CT, None, "channel", OTHER[words]))
    folder = own.write()
    reason = f"is quantized in another way: {words}"
    assert nvfp4.load(folder).skipped == dict.fromkeys(own.eight, reason)
    for call in (lambda: nvfp4.load(folder, copy.deepcopy(own.base)), lambda: load(folder)):
        with pytest.raises(nvfp4.Error, match=f"cannot be put into the model: {reason}$"):
            call()


def test_options_of_fp8_layers_are_checked(made: Callable[..., Made]) -> None:
    wrong = {
        "output_activations: is set, which nvfp4 does not do for FP8 layers": group(EIGHT)
        | {"output_activations": EIGHT},
        "weights.dynamic: is set, which nvfp4 does not do for FP8 layers": group(EIGHT, dynamic=True),
        "format: is 'marlin'; must be 'float-quantized' or 'naive-quantized'": group(EIGHT) | {"format": "marlin"},
    }
    for message, described in wrong.items():
        with pytest.raises(nvfp4.Error, match=f"config_groups.group_0.{message}"):
            nvfp4.load(made(Kind(CT, "static", "tensor", described)).write())
    own = made("modelopt FP8")
    for key, value in (("pre_quant_scale", True), ("lora_rank", 4), ("has_zero_point", True)):
        layers = own.quantization()["quantized_layers"]
        layers[Q] = {"quant_algo": "FP8", key: value}
        with pytest.raises(nvfp4.Error, match=f"quantized_layers.{Q}.{key}: is {value}"):
            nvfp4.load(own.write(quantized_layers=layers))


@pytest.mark.parametrize("kind", ["modelopt FP8", "modelopt per token", "modelopt blocks"])
def test_group_size_of_fp8_layers(kind: str, made: Callable[..., Made], tmp_path: Path) -> None:
    """It means nothing where a tensor or a channel has a scale: named, and read alike. Blocks have theirs."""
    own = made(kind)
    layers = own.quantization()["quantized_layers"]
    algorithm = {"quant_algo": own.kind.described}
    want = raw(stored(own.write()))
    before = logits(load(own.folder))
    if kind == "modelopt blocks":
        layers[Q] = algorithm | {"group_size": 16}
        with pytest.raises(nvfp4.Error, match=f"quantized_layers.{Q}.group_size: is 16; must be 128$"):
            nvfp4.load(own.write(quantized_layers=layers))
        return
    first = f"quantization_config.quantized_layers.{Q}.group_size"
    reason = "is 16, which means nothing for FP8 with one scale for a tensor or a channel"
    for names, more in (([Q], ""), ([*own.eight], f"; {len(own.eight) - 1} other FP8 layers have one too")):
        own.write(quantized_layers=layers | dict.fromkeys(names, algorithm | {"group_size": 16}))
        assert nvfp4.load(own.folder).skipped == {first: reason + more}
        assert inspect(own.folder).skipped == {first: reason + more}
        with pytest.warns(UserWarning, match=f"{first}: {reason}{more}$"):
            model = load(own.folder)
        assert torch.equal(logits(model), before)
        model.save_pretrained(tmp_path / f"second{more[:4]}")
        assert raw(stored(tmp_path / f"second{more[:4]}")) == want


def test_tensors_of_the_other_kind(made: Callable[..., Made]) -> None:
    """NVFP4 tensors of a layer that is FP8 by the configuration are an error; FP8 tensors of an NVFP4 one too, in a
    model."""
    own = made("modelopt FP8")
    layers = own.quantization()["quantized_layers"]
    name = next(iter(own.four))
    with pytest.raises(nvfp4.Error, match=f"^{name}: is FP8 W8A8 by the configuration, but its tensors are NVFP4$"):
        nvfp4.load(own.write(quantized_layers=layers | {name: {"quant_algo": "FP8"}}))
    folder = own.write(quantized_layers=layers | {Q: {"quant_algo": "NVFP4"}})
    reason = "is quantized in another way: FP8 by its tensors (float8_e4m3fn)"
    assert nvfp4.load(folder).skipped == {Q: reason}
    with pytest.raises(nvfp4.Error, match=f"^{Q}.*: cannot be put into the model: is quantized in another way: FP8"):
        nvfp4.load(folder, copy.deepcopy(own.base))
