"""nvfp4.diffusers in pipelines as people run them, with tiny random models; LoRA through a pipeline; folders that
ModelOpt writes."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import NO_GPU
from paths import ROOT
from torch import nn

import nvfp4

pytest.importorskip("transformers")
pytest.importorskip("diffusers")
pytest.importorskip("accelerate", reason="diffusers needs it to load a quantized model")
import diffusers  # noqa: E402
import tiny_pipelines  # noqa: E402
from diffusers import PipelineQuantizationConfig  # noqa: E402
from PIL import Image  # noqa: E402

import nvfp4.diffusers  # noqa: E402
import nvfp4.transformers  # noqa: E402
from nvfp4.hosts.diffusers.while_loading import kept_by  # noqa: E402

diffusers.utils.logging.disable_progress_bar()
PIPELINES = tiny_pipelines.PIPELINES
TEXT = {"flux": "text_encoder_2", "qwen": "text_encoder", "wan": "text_encoder"}


def picture(pipe: Any, **more: Any) -> np.ndarray:
    pipe.set_progress_bar_config(disable=True)
    given = {"prompt": "a red cat on the house", "height": 32, "width": 32, "num_inference_steps": 2}
    if isinstance(pipe, diffusers.WanPipeline):
        given |= {"num_frames": 5, "negative_prompt": "a dog"}
    given |= {"max_sequence_length": 16, "output_type": "np", "generator": torch.Generator().manual_seed(1)}
    result = pipe(**given, **more)
    return result.frames if isinstance(pipe, diffusers.WanPipeline) else result.images


def close(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal but for sums of torch, which depend on where a tensor lies in memory: the mapped files."""
    return bool(np.abs(a - b).max() < 1e-5)


def made(name: str, folder: Path) -> type:
    pipe = PIPELINES[name]()
    pipe.save_pretrained(folder)
    return type(pipe)


def layers_of(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, nvfp4.Linear)]


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines(name: str, tmp_path: Path) -> None:
    """The transformer and a text encoder are quantized as they are loaded. In fp32 the picture is that of the
    dequantized weights but for the order of sums; it is the same after save_pretrained."""
    kind = made(name, tmp_path / "dense")
    configs = {
        "transformer": nvfp4.diffusers.NVFP4Config(),
        TEXT[name]: nvfp4.transformers.NVFP4Config(activations=None),
    }
    mapping = PipelineQuantizationConfig(quant_mapping=configs)
    pipe = kind.from_pretrained(tmp_path / "dense", quantization_config=mapping, torch_dtype=torch.float32)
    assert layers_of(pipe.transformer) and layers_of(getattr(pipe, TEXT[name]))
    shown = picture(pipe)
    assert shown.min() >= 0 and shown.max() <= 1 and shown.std() > 0
    assert not close(shown, picture(kind.from_pretrained(tmp_path / "dense")))
    pipe.save_pretrained(tmp_path / "saved")
    again = kind.from_pretrained(tmp_path / "saved", torch_dtype=torch.float32)
    assert layers_of(again.transformer) == layers_of(pipe.transformer)
    assert close(picture(again), shown)
    for own in (pipe.transformer, getattr(pipe, TEXT[name])):
        nvfp4.dequantize_model(own)
    assert not layers_of(pipe.transformer) and np.abs(picture(pipe) - shown).max() < 1e-3


def test_one_configuration_for_several_models(tmp_path: Path) -> None:
    """transformers and diffusers know the quantizer by one name."""
    kind = made("flux", tmp_path)
    config = PipelineQuantizationConfig(
        quant_backend="nvfp4-on-load",
        quant_kwargs={"activations": None},
        components_to_quantize=["transformer", "text_encoder_2"],
    )
    pipe = kind.from_pretrained(tmp_path, quantization_config=config, torch_dtype=torch.float32)
    assert layers_of(pipe.transformer) and layers_of(pipe.text_encoder_2) and not layers_of(pipe.text_encoder)


def test_lora_through_a_pipeline(tmp_path: Path) -> None:
    """FLUX' loader compares shapes of weights: packed layers have theirs."""
    peft = pytest.importorskip("peft")
    kind = made("flux", tmp_path / "dense")
    mapping = PipelineQuantizationConfig(quant_mapping={"transformer": nvfp4.diffusers.NVFP4Config()})

    def quantized() -> Any:
        return kind.from_pretrained(tmp_path / "dense", quantization_config=mapping, torch_dtype=torch.float32)

    pipe = quantized()
    before, layers = picture(pipe), layers_of(pipe.transformer)
    targets = ["to_q", "to_k", "ff.net.2", "proj_mlp", "x_embedder"]
    pipe.transformer.add_adapter(peft.LoraConfig(r=4, lora_alpha=4, target_modules=targets, init_lora_weights=False))
    expected = picture(pipe)
    assert not close(expected, before)
    state = peft.get_peft_model_state_dict(pipe.transformer)
    kind.save_lora_weights(tmp_path / "lora", transformer_lora_layers=state)
    pipe = quantized()
    pipe.load_lora_weights(str(tmp_path / "lora"), weight_name="pytorch_lora_weights.safetensors")
    assert close(picture(pipe), expected)
    with pytest.raises(nvfp4.Error, match="is NVFP4, into which its adapter cannot be merged; call dequantize"):
        pipe.fuse_lora()  # x_embedder, which is dense and comes first, is not merged either
    pipe.set_adapters(pipe.get_active_adapters(), 0.5)
    assert not close(picture(pipe), expected) and not close(picture(pipe), before)
    pipe.disable_lora()
    assert close(picture(pipe), before)
    pipe.unload_lora_weights()
    assert layers_of(pipe.transformer) == layers and close(picture(pipe), before)
    wrong = {key: t[:, :-1] if "lora_A" in key and "x_embedder" not in key else t for key, t in state.items()}
    kind.save_lora_weights(tmp_path / "wrong", transformer_lora_layers={k: t.contiguous() for k, t in wrong.items()})
    with pytest.raises(Exception, match="size"):
        pipe.load_lora_weights(str(tmp_path / "wrong"), weight_name="pytorch_lora_weights.safetensors")
    assert layers_of(pipe.transformer) == layers and close(picture(pipe), before)
    pipe.load_lora_weights(str(tmp_path / "lora"), weight_name="pytorch_lora_weights.safetensors")
    pipe.transformer.dequantize()
    for change in ("fuse_lora", "unfuse_lora"):
        getattr(pipe, change)()
        assert np.abs(picture(pipe) - expected).max() < 1e-3


@pytest.mark.parametrize("name", ["qwen", "wan"])
def test_folders_that_modelopt_writes(name: str, tmp_path: Path) -> None:
    """Its exporter of diffusers' pipelines: block scales, global scales and input scales are those that it computed."""
    mtq = pytest.importorskip("modelopt.torch.quantization")
    from modelopt.torch.export import export_hf_checkpoint

    pipe = PIPELINES[name]()
    kept = kept_by(pipe.transformer, "outside_blocks")
    dense = {key: t.clone() for key, t in pipe.transformer.state_dict().items()}
    mtq.quantize(pipe.transformer, mtq.NVFP4_DEFAULT_CFG, lambda model: picture(pipe))
    export_hf_checkpoint(pipe, export_dir=tmp_path / "theirs")
    model = type(pipe.transformer).from_pretrained(tmp_path / "theirs/transformer", torch_dtype=torch.float32)
    layers = layers_of(model)
    assert len(layers) > 20 and kept
    for own in layers:
        layer = model.get_submodule(own)
        assert layer.activations == "nvfp4" and layer.input_global_scale is not None
        weight, ours = dense[f"{own}.weight"], layer.to_linear().weight
        assert (ours - weight).norm() < 0.15 * weight.norm()
    pipe.transformer = model
    assert np.isfinite(picture(pipe)).all()
    model.save_pretrained(tmp_path / "ours")
    again = type(model).from_pretrained(tmp_path / "ours", torch_dtype=torch.float32)
    ours, theirs = again.state_dict(), model.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(t, theirs[key]) for key, t in ours.items())


def test_the_example_makes_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples/picture.py"))["main"](tmp_path / "picture.png")
    with Image.open(tmp_path / "picture.png") as image:
        assert image.size == (128, 128) and len(image.convert("RGB").getcolors(1 << 24)) > 1000
    assert "layers of the transformer are NVFP4" in capsys.readouterr().out


def test_a_pipeline_on_a_gpu(tmp_path: Path) -> None:
    """The whole pipeline on the GPU, and one model of it after the other."""
    if not torch.cuda.is_available():
        pytest.skip(NO_GPU)
    kind = made("flux", tmp_path / "dense")
    mapping = PipelineQuantizationConfig(quant_mapping={"transformer": nvfp4.diffusers.NVFP4Config()})
    shown = []
    for offloaded in (False, True):
        pipe = kind.from_pretrained(tmp_path / "dense", quantization_config=mapping, torch_dtype=torch.bfloat16)
        pipe.enable_model_cpu_offload() if offloaded else pipe.to("cuda")
        shown.append(picture(pipe))
    assert np.array_equal(*shown) and shown[0].std() > 0
