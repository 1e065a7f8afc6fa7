"""Checkpoints of mixed precision that ModelOpt and compressed-tensors write themselves, where they are installed."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nvfp4
from nvfp4.checkpoints import compressed_tensors, modelopt
from nvfp4.layers.fp8 import FP8
from nvfp4.layers.packed import PackedLinear

pytest.importorskip("transformers")
pytest.importorskip("safetensors.torch", reason="comes with transformers")
from fp8_models import (  # noqa: E402
    IDS,
    Plain,
    check_layers,
    generated,
    load,
    logits,
    plain,
    random_model,
    raw,
    scales_of,
    stored,
)


def read_back(folder: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, PackedLinear]]:
    """FP8 layers' tensors and NVFP4 layers of a folder, by the dtype of their weight."""
    modules: dict[str, dict[str, Tensor]] = {}
    for name, t in stored(folder).items():
        module, _, local = name.rpartition(".")
        if local not in ("k_scale", "v_scale"):
            modules.setdefault(module, {})[local] = t
    eight = {name: own for name, own in modules.items() if "weight" in own and own["weight"].dtype == FP8}
    four = {name: modelopt.read(own) for name, own in modules.items() if "weight_scale_2" in own}
    four |= {name: compressed_tensors.read(own) for name, own in modules.items() if "weight_packed" in own}
    return eight, four


def check_producer(folder: Path, base: nn.Module, activations: str | None, tmp_path: Path) -> None:
    eight, four = read_back(folder)
    assert len(eight) == 8 and len(four) == 6
    want = plain(base, eight, four, activations)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the KV cache's scales
        model = load(folder, dtype=torch.float32)
        by_load = copy.deepcopy(base)
        nvfp4.load(folder, by_load)
        assert torch.equal(logits(model), logits(want)) and torch.equal(logits(by_load), logits(want))
        assert torch.equal(generated(model), generated(want))
        check_layers(model)
        model.save_pretrained(tmp_path / "second")
        first, second = (raw(stored(path)) for path in (folder, tmp_path / "second"))
        again = load(tmp_path / "second", dtype=torch.float32)
    assert first.keys() == second.keys()
    kept = [name for name in first if "proj" in name or "_scale" in name]
    # A global scale of compressed-tensors is a divisor: the reciprocal of a reciprocal.
    assert all(first[name] == second[name] for name in kept if not name.endswith("global_scale"))
    assert torch.equal(logits(again), logits(want))


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize("algorithm", ["FP8", "FP8 KV", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "MXFP8"])
def test_a_mixed_checkpoint_that_modelopt_exports(algorithm: str, architecture: str, tmp_path: Path) -> None:
    mtq = pytest.importorskip("modelopt.torch.quantization")
    from modelopt.torch.export import export_hf_checkpoint
    from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP8QTensor

    torch.manual_seed(0)
    base = random_model(architecture, torch.bfloat16)
    four = {"num_bits": (2, 1), "block_sizes": {-1: 16, "type": "dynamic", "scale_bits": (4, 3)}}
    groups = {"block_sizes": {-1: 32, "type": "dynamic", "scale_bits": (8, 0)}}
    weights = {"FP8_PER_CHANNEL_PER_TOKEN": {"axis": 0}, "FP8_PB_WO": {"axis": None, "block_sizes": {-1: 128, -2: 128}}}
    inputs = {"FP8_PER_CHANNEL_PER_TOKEN": {"type": "dynamic", "block_sizes": {-1: None}}, "MXFP8": groups}
    weights["MXFP8"] = groups
    eight = {"num_bits": (4, 3), "axis": None}
    entries: list[dict[str, Any]] = [
        {"quantizer_name": "*", "enable": False},
        {"quantizer_name": "*mlp*weight_quantizer", "cfg": four},
        {"quantizer_name": "*mlp*input_quantizer", "cfg": four},
        {"quantizer_name": "*self_attn*proj*weight_quantizer", "cfg": eight | weights.get(algorithm, {})},
    ]
    if algorithm != "FP8_PB_WO":
        entries += [{"quantizer_name": "*self_attn*proj*input_quantizer", "cfg": eight | inputs.get(algorithm, {})}]
    if algorithm == "FP8 KV":
        entries += mtq.FP8_KV_CFG["quant_cfg"]
    settings = {"quant_cfg": entries, "algorithm": "max"}
    with torch.no_grad():
        calibrated = mtq.quantize(copy.deepcopy(base), settings, lambda model: model(IDS))
        export_hf_checkpoint(calibrated, export_dir=tmp_path / "first")
    activations = {"FP8_PER_CHANNEL_PER_TOKEN": "token", "FP8_PB_WO": None, "MXFP8": None}.get(algorithm, "static")
    check_producer(tmp_path / "first", base.float(), activations, tmp_path)
    if algorithm == "MXFP8":
        for name, own in nvfp4.load(tmp_path / "first").fp8.items():
            scale = stored(tmp_path / "first")[f"{name}.weight_scale"]
            theirs = MXFP8QTensor(own.weight.shape, torch.float32, own.weight)
            assert torch.equal(own.dense(torch.float32), theirs.dequantize(torch.float32, scale=scale)), name
        return
    for name, own in nvfp4.load(tmp_path / "first").fp8.items():
        t = FP8QTensor(own.weight.shape, torch.float32, own.weight)
        scale = own.weight_scale if own.weight_scale.ndim != 1 else own.weight_scale[:, None]
        blocks = {"block_sizes": {-1: 128, -2: 128}} if own.weight_scale.ndim == 2 else {}
        theirs = t.dequantize(torch.float32, scale=scale, **blocks)
        plainly = Plain(own.weight, own.weight_scale, None, None)
        ours = plainly.values * plainly.scale if plainly.rows else plainly.values
        assert torch.equal(ours, theirs), name


@pytest.mark.parametrize("scale", ["layer", "folded"])
def test_awq_that_modelopt_exports(scale: str, tmp_path: Path) -> None:
    """The scale in the checkpoint, or folded into the layer before. awq_lite itself needs a GPU."""
    mtq = pytest.importorskip("modelopt.torch.quantization")
    from modelopt.torch.export import export_hf_checkpoint
    from modelopt.torch.quantization.model_calib import apply_pre_quant_scale_and_smooth

    torch.manual_seed(0)
    base = random_model("llama", torch.bfloat16)
    with torch.no_grad():
        model = mtq.quantize(copy.deepcopy(base), copy.deepcopy(mtq.NVFP4_DEFAULT_CFG), lambda model: model(IDS))
        for name, module in model.named_modules():
            if name.endswith("proj") and (scale == "folded" or name.endswith("o_proj")):
                k = module.in_features
                module.input_quantizer._amax_for_smoothing = torch.rand(k) + 0.5
                apply_pre_quant_scale_and_smooth(module, torch.rand(k) + 0.5)
        export_hf_checkpoint(model, export_dir=tmp_path / "first")
    tensors = stored(tmp_path / "first")
    named = [name for name in tensors if name.endswith("pre_quant_scale")]
    assert named
    eight, four = read_back(tmp_path / "first")
    dense = base.float()
    dense.load_state_dict(
        {n: t for n, t in tensors.items() if n in dense.state_dict() and t.is_floating_point()}, False
    )
    want = plain(dense, eight, four, None)
    loaded = load(tmp_path / "first", dtype=torch.float32)
    assert torch.equal(logits(loaded), logits(want))
    loaded.save_pretrained(tmp_path / "second")
    again = stored(tmp_path / "second")
    assert raw({name: again[name] for name in named}) == raw({name: tensors[name] for name in named})


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize("preset", ["FP8", "FP8_DYNAMIC", "FP8_BLOCK", "MXFP8", "MXFP8A16"])
def test_a_mixed_checkpoint_that_compressed_tensors_writes(preset: str, architecture: str, tmp_path: Path) -> None:
    """With scales as llm-compressor's observers compute them."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationConfig,
        QuantizationScheme,
        apply_quantization_config,
        quant_scheme,
    )

    torch.manual_seed(0)
    base = random_model(architecture, torch.bfloat16)
    model = copy.deepcopy(base)
    groups = {
        "group_0": QuantizationScheme(targets=["re:.*mlp.*"], **copy.deepcopy(quant_scheme.NVFP4)),
        "group_1": QuantizationScheme(targets=["re:.*self_attn.*"], **copy.deepcopy(getattr(quant_scheme, preset))),
    }
    apply_quantization_config(model, QuantizationConfig(config_groups=groups, ignore=["lm_head"]))
    for layer in model.modules():
        weights = getattr(getattr(layer, "quantization_scheme", None), "weights", None)
        if weights is None:
            continue
        w = layer.weight.data.float()
        if weights.num_bits == 4:
            divisor = 448 * 6 / w.abs().max()
            layer.weight_global_scale.data.fill_(divisor)
            scale = w.view(len(w), -1, 16).abs().amax(-1) / 6 * divisor
            layer.weight_scale.data = scale.to(FP8).to(layer.weight_scale.dtype)
            layer.input_global_scale.data.fill_(448 * 6 / 4.0)
            continue
        scale = scales_of(w, str(weights.strategy.value if hasattr(weights.strategy, "value") else weights.strategy))
        layer.weight_scale.data = scale.reshape(layer.weight_scale.shape).to(layer.weight_scale.dtype)
        if hasattr(layer, "input_scale"):
            layer.input_scale.data.fill_(4.0 / 448)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(tmp_path / "first")
    compressor.update_config(tmp_path / "first")
    activations = {"FP8": "static", "FP8_DYNAMIC": "token", "FP8_BLOCK": "block"}.get(preset)
    check_producer(tmp_path / "first", base.float(), activations, tmp_path)
