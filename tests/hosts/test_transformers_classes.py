"""Classes of transformers that read, initialize or resize linear layers themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import IDS, SIZES, logits
from torch import Tensor, nn

import nvfp4
from nvfp4.checkpoints import modelopt
from nvfp4.layers import readers
from nvfp4.layers.fp8 import FP8, Fp8Tensors

safetensors = pytest.importorskip("safetensors.torch", reason="comes with transformers")
transformers = pytest.importorskip("transformers")
import nvfp4.transformers  # noqa: E402


@pytest.mark.parametrize("activations", [None, "nvfp4"])  # saved as ModelOpt and as compressed-tensors
@pytest.mark.parametrize("head", ["SequenceClassification", "MaskedLM"])
def test_a_class_that_initializes_its_layers_itself(head: str, activations: str | None, tmp_path: Path) -> None:
    """ModernBERT's _init_weights takes weight and bias of the layers of each module, also of those that are loaded."""
    ids = {f"{name}_token_id": i for i, name in enumerate(("pad", "bos", "eos", "cls", "sep"))}
    config = transformers.ModernBertConfig(**SIZES | ids)
    model = getattr(transformers, f"ModernBertFor{head}")(config).eval()
    nvfp4.quantize_model(model, activations=activations)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, dtype=torch.float32)
    format_name = again.config.quantization_config.format.NAME
    assert format_name == ("modelopt" if activations is None else "compressed-tensors")
    expected, found = model.state_dict(), again.state_dict()
    assert expected.keys() == found.keys()
    for name, t in expected.items():
        assert torch.equal(t.reshape(-1).view(torch.uint8), found[name].reshape(-1).view(torch.uint8)), name


def umt5() -> tuple[Any, Callable[[Any], Tensor]]:
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, "vocab_size": 128}
    model = transformers.UMT5ForConditionalGeneration(transformers.UMT5Config(**sizes, decoder_start_token_id=0))
    return model.eval(), lambda model: model(input_ids=IDS, decoder_input_ids=IDS).logits


def mamba() -> tuple[Any, Callable[[Any], Tensor]]:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 128, "state_size": 16, "time_step_rank": 16}
    model = transformers.MambaForCausalLM(transformers.MambaConfig(**sizes))
    return model.eval(), lambda model: model(IDS).logits


def layoutlmv3() -> tuple[Any, Callable[[Any], Tensor]]:
    """A method indexes the weight of a layer that another one passes to it."""
    sizes = {"coordinate_size": 8, "shape_size": 16, "rel_2d_pos_bins": 64, "visual_embed": False}
    model = transformers.LayoutLMv3Model(transformers.LayoutLMv3Config(**SIZES | sizes))
    return model.eval(), lambda model: model(IDS, bbox=torch.zeros(2, 12, 4, dtype=torch.int64)).last_hidden_state


def rwkv() -> tuple[Any, Callable[[Any], Tensor]]:
    """The model divides the weights of its blocks' layers in place."""
    config = transformers.RwkvConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2)
    return transformers.RwkvForCausalLM(config).eval(), lambda model: model(IDS).logits


def qwen2_vl() -> tuple[Any, Callable[[Any], Tensor]]:
    """A method of the whole says the dtype of a layer three modules below."""
    sizes = {"embed_dim": 64, "hidden_size": 64, "depth": 2, "num_heads": 4, "patch_size": 4, "mlp_ratio": 2}
    kind = transformers.models.qwen2_vl.modeling_qwen2_vl
    model = kind.Qwen2VisionTransformerPretrainedModel(kind.Qwen2VLVisionConfig(**sizes))
    grid, patches = (
        torch.tensor([[1, 4, 4]]),
        torch.randn(16, 3 * 2 * 4 * 4, generator=torch.Generator().manual_seed(1)),
    )
    return model.eval(), lambda model: model(patches.to(model.get_dtype()), grid_thw=grid).last_hidden_state


@pytest.mark.parametrize(
    ("make", "layers"),
    [
        (umt5, (".wo",)),
        (mamba, (".dt_proj", ".x_proj")),
        (layoutlmv3, (".rel_pos_bias", ".rel_pos_x_bias", ".rel_pos_y_bias")),
        (rwkv, (".attention.output", ".feed_forward.value")),
        (qwen2_vl, ("blocks.0.mlp.fc2",)),
    ],
)
@pytest.mark.parametrize("eight_bits", [False, True])
def test_layers_whose_weight_a_class_reads_are_dense(
    make: Any, layers: tuple[str, ...], eight_bits: bool, tmp_path: Path
) -> None:
    """For its dtype, or for a product of its own: after quantize_model, and where a file has them packed or in FP8."""
    model, call = make()
    report = nvfp4.quantize_model(model, activations=None)
    names = [name for name, _ in model.named_modules() if name.endswith(layers)]
    assert names and all("reads its weight itself" in report.skipped[name] for name in names)
    with torch.no_grad():
        expected = call(model)
    assert expected.isfinite().all()
    model.save_pretrained(tmp_path / "in")
    file, config = tmp_path / "in" / "model.safetensors", tmp_path / "in" / "config.json"
    tensors, content = safetensors.load_file(file), json.loads(config.read_text())
    for name in names:
        linear = nn.Linear(*tensors[f"{name}.weight"].shape[::-1], bias=False)
        linear.weight.data = tensors.pop(f"{name}.weight")
        packed = nvfp4.Linear.from_linear(linear, None).packed()
        own = modelopt.write(packed)
        if eight_bits:
            n, k = linear.weight.shape
            scale = torch.full((-(-n // 128), 1, -(-k // 128), 1), 0.01)
            own = {"weight": (linear.weight.data * 100).to(FP8), "weight_scale": scale}
        tensors |= {f"{name}.{key}": t.contiguous() for key, t in own.items()}
    if eight_bits:
        entries = {key.removesuffix(".weight_scale_2"): {"quant_algo": "W4A16_NVFP4"} for key in tensors if "_2" in key}
        entries |= dict.fromkeys(names, {"quant_algo": "FP8_PB_WO"})
        content["quantization_config"] |= {"quant_algo": "MIXED_PRECISION", "quantized_layers": entries}
    content["quantization_config"]["ignore"] = [n for n in content["quantization_config"]["ignore"] if n not in names]
    safetensors.save_file(tensors, file, {"format": "pt"})
    config.write_text(json.dumps(content))
    with pytest.warns(UserWarning, match="reads its weight itself"):
        ours = type(model).from_pretrained(tmp_path / "in", dtype=torch.float32)
    other, _ = make()
    checkpoint = nvfp4.load(tmp_path / "in", other)
    assert all("reads its weight itself" in checkpoint.skipped[name] for name in names)
    with torch.no_grad():
        found = call(ours)
        assert torch.equal(call(other), found) and found.isfinite().all()
        ours.save_pretrained(tmp_path / "out")
        assert torch.equal(call(type(model).from_pretrained(tmp_path / "out", dtype=torch.float32)), found)


def bert() -> tuple[Any, Callable[[Any], Tensor]]:
    """The decoder's bias is tied to the bias of the module above it."""
    model = transformers.BertForMaskedLM(transformers.BertConfig(**SIZES))
    model.cls.predictions.bias.data.normal_()
    return model.eval(), lambda model: model(IDS).logits


def luke() -> tuple[Any, Callable[[Any], Tensor]]:
    """The reverse: the bias of the module above is tied to the decoder's."""
    config = transformers.LukeConfig(**SIZES, entity_vocab_size=16, entity_emb_size=64)
    model = transformers.LukeForMaskedLM(config)
    model.lm_head.bias.data.normal_()
    return model.eval(), lambda model: model(IDS, attention_mask=torch.ones_like(IDS)).logits


def wav2vec2() -> tuple[Any, Callable[[Any], Tensor]]:
    """The class resets its projections when it is loaded."""
    sizes = SIZES | {"conv_dim": (32, 32), "conv_stride": (5, 4), "conv_kernel": (10, 8), "num_feat_extract_layers": 2}
    sizes |= {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "codevector_dim": 64}
    model = transformers.Wav2Vec2ForPreTraining(transformers.Wav2Vec2Config(**sizes, proj_codevector_dim=64))
    x = torch.randn(1, 800, generator=torch.Generator().manual_seed(1))
    return model.eval(), lambda model: model(x).projected_states


@pytest.mark.parametrize("activations", [None, "nvfp4"])  # saved as ModelOpt and as compressed-tensors
@pytest.mark.parametrize(
    ("make", "layer", "dense"),
    [(bert, "cls.predictions.decoder", None), (luke, "lm_head.decoder", "lm_head.bias is tied to its"),
     (wav2vec2, "project_hid", None)],
)  # fmt: skip
def test_layers_that_a_class_ties_or_resets(
    make: Any, layer: str, dense: str | None, activations: str | None, tmp_path: Path
) -> None:
    model, call = make()
    report = nvfp4.quantize_model(model, ignore=(), activations=activations)
    assert isinstance(model.get_submodule(layer), nvfp4.Linear) is (dense is None)
    assert dense is None or report.skipped[layer].startswith(dense)
    with torch.no_grad():
        expected = call(model)
        model.save_pretrained(tmp_path)
        ours, (other, _) = type(model).from_pretrained(tmp_path, dtype=torch.float32), make()
        nvfp4.load(tmp_path, other)
        for found in (ours, other):
            assert torch.equal(call(found), expected) and expected.isfinite().all()
        ours.save_pretrained(tmp_path / "again")
        assert torch.equal(call(type(model).from_pretrained(tmp_path / "again", dtype=torch.float32)), expected)


def test_experts_whose_names_transformers_changes(tmp_path: Path) -> None:
    """HYV4's gates get another name in the file, which no reader of experts knows: an error before anything is
    written."""
    config = transformers.Qwen3MoeConfig(**SIZES, num_experts=4, moe_intermediate_size=48, head_dim=16)
    model = transformers.Qwen3MoeForCausalLM(config).eval()
    nvfp4.quantize_model(model, activations=None)
    renaming = transformers.core_model_loading.WeightRenaming(r"\.linear_gate", ".gate_proj")
    model._weight_conversions = [renaming]
    with pytest.raises(nvfp4.Error, match=r"^model.layers.0.mlp.experts: has 0.gate_proj.*use nvfp4.save$"):
        model.save_pretrained(tmp_path)
    sizes = {"gate_proj": (48, 64), "up_proj": (48, 64), "down_proj": (64, 48)}
    eight = {
        f"{e}.{name}": nvfp4.Fp8Linear.from_packed(Fp8Tensors(torch.randn(size).to(FP8), torch.ones(())))
        for e in range(4)
        for name, size in sizes.items()
    }
    model.model.layers[0].mlp.experts = nvfp4.Fp8Experts(4, 64, 48, eight)
    with pytest.raises(nvfp4.Error, match=r"^model.layers.\d.mlp.experts: has 0.gate_proj.*use nvfp4.save$"):
        model.save_pretrained(tmp_path)
    model.model.layers[1].mlp.experts = model.model.layers[0].mlp.experts
    with pytest.raises(nvfp4.Error, match=r"^model.layers.0.mlp.experts: has 0.gate_proj.weight.*use nvfp4.save$"):
        model.save_pretrained(tmp_path)
    assert not [*tmp_path.glob("*.safetensors")]


def test_how_a_weight_is_read() -> None:
    """By the functions of the class, in layers anywhere below, and by functions that are given a layer."""

    class Reads(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = x.to(block.first.weight.dtype)
            if (dtype := self.asked.weight.dtype).is_floating_point:
                x = x.to(dtype)
            x = self.product(x.to(self.moved.weight.device), layer=self.given)
            return self.lists[0].own(x.to(self.lists[-1].deep.weight.dtype)) @ self.own.weight

        def product(self, x: Tensor, layer: nn.Linear, other: int = 0) -> Tensor:
            return x @ layer.weight.T

        @property
        def dtype(self) -> torch.dtype:
            return self.of_property.weight.dtype

        def _init_weights(self) -> None:
            self.made.weight.data.zero_()

    read = {("", "first"), ("given",), ("lists", "*", "deep"), ("own",), ("of_property",)}
    assert readers.weights_read(Reads) == read
    modules = {"": nn.Module(), "a": Reads(), "a.blocks.1.first": nn.Linear(1, 1)}
    found = {name for name in ("a.blocks.1.first", "a.given", "a.b.given", "a.lists.4.deep", "a.lists.deep", "given")
             if readers.reader_of(name, modules) == "Reads"}  # fmt: skip
    assert found == {"a.blocks.1.first", "a.given", "a.lists.4.deep"}


def test_resizing_the_embedding_of_a_model_with_a_packed_head() -> None:
    """An error that names the head, before anything changes; a dense head is resized."""
    config = transformers.LlamaConfig(**SIZES, tie_word_embeddings=False)
    model = transformers.LlamaForCausalLM(config).eval()
    nvfp4.quantize_model(model, ignore=(), activations=None)
    before = logits(model)
    with pytest.raises(nvfp4.Error, match=r"^lm_head: is NVFP4 with 128 rows, which cannot become 160"):
        model.resize_token_embeddings(160)
    with pytest.raises(nvfp4.Error, match=r"^lm_head: is NVFP4 with 128 rows, which cannot become 192"):
        model.resize_token_embeddings(pad_to_multiple_of=96)
    assert torch.equal(logits(model), before) and model.config.vocab_size == 128
    assert model.resize_token_embeddings(128) is model.get_input_embeddings()
    model = transformers.LlamaForCausalLM(config).eval()
    nvfp4.quantize_model(model, activations=None)
    model.resize_token_embeddings(160)
    assert logits(model).shape[-1] == 160
