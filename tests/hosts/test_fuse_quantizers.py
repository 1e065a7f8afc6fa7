"""nvfp4.transformers.fuse_quantizers: the bits of the model before, fewer quantizers, models that it leaves alone."""

from __future__ import annotations

import copy
import io
import os
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import recorded
import tiny_models
import torch
from paths import BENCHMARKS, ROOT
from torch import Tensor

import nvfp4
from nvfp4 import _api, reference
from nvfp4.layers.quantized_input import QuantizingMLP, QuantizingNorm

transformers = pytest.importorskip("transformers")
import nvfp4.transformers  # noqa: E402
from nvfp4.hosts.transformers.fuse_quantizers import fuse_quantizers  # noqa: E402

NORMS = ("input_layernorm", "post_attention_layernorm")
QUANTIZERS = ("quantize_gemm", "rms_norm_quantize", "gated_quantize", "gemm")


def model_of(architecture: str, dtype: torch.dtype = torch.bfloat16, activations: str | None = "nvfp4") -> Any:
    """A dense model whose norms have weights."""
    more = {"pad_token_id": 0} if architecture == "Phi3" else {}
    config = getattr(transformers, f"{architecture}Config")(**tiny_models.SIZES, **more)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(parameter, 1.0, 0.2)
    return model


def quantized(architecture: str, dtype: torch.dtype = torch.bfloat16, **how: Any) -> Any:
    model = model_of(architecture, dtype)
    nvfp4.quantize_model(model, **({"calibrate": tiny_models.logits} | how))
    return model


def fused(model: Any) -> list[str]:
    """Without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return fuse_quantizers(model)


def by_definition(model: Any, norms: Sequence[str] = NORMS, activations: bool = True) -> Any:
    """A copy whose steps are those of csrc/cpu/fused.c and csrc/common/exponential.h, each rounded; torch's factor of a
    norm, and its silu in fp32, depend on the CPU."""
    model = copy.deepcopy(model)
    for layer in model.model.layers:
        for norm in (getattr(layer, name) for name in norms):
            given = (norm.weight.detach(), norm.variance_epsilon)
            norm.forward = lambda x, given=given: reference.rms_norm(x, *given, round_steps=True).to(x.dtype)
        if activations:
            layer.mlp.act_fn.forward = lambda x: reference.silu(x.float()).to(x.dtype)
    return model


def left_alone(model: Any) -> str:
    """The warning about a model of which nothing may change."""
    before = {name: type(module) for name, module in model.named_modules()}
    keys = [*model.state_dict()]
    with pytest.warns(UserWarning) as caught:
        assert fuse_quantizers(model) == []
    assert len(caught) == 1 and keys == [*model.state_dict()]
    assert before == {name: type(module) for name, module in model.named_modules()}
    return str(caught[0].message)


def calls(monkeypatch: pytest.MonkeyPatch, model: Any) -> Counter[str]:
    found: Counter[str] = Counter()

    def counting(name: str) -> Any:
        function = getattr(_api, name)

        def call(*arguments: Any, **more: Any) -> Any:
            found[name] += 1
            return function(*arguments, **more)

        return call

    with monkeypatch.context() as patch:
        for name in QUANTIZERS:
            patch.setattr(_api, name, counting(name))
        tiny_models.logits(model)
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("architecture", ["Llama", "Qwen2", "Qwen3", "Mistral"])
def test_models(architecture: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits are those of the model before, whose norms and activations add squares and compute silu as defined."""
    model = quantized(architecture, dtype)
    before = tiny_models.logits(by_definition(model))
    assert calls(monkeypatch, model) == {"quantize_gemm": 2 * 7}
    layers = range(tiny_models.SIZES["num_hidden_layers"])
    assert fused(model) == [f"model.layers.{i}.{name}" for i in layers for name in (*NORMS, "mlp")]
    assert torch.equal(tiny_models.logits(model), before)
    each = {"rms_norm_quantize": 2, "gated_quantize": 1, "gemm": 3, "quantize_gemm": 1}
    assert calls(monkeypatch, model) == {name: 2 * count for name, count in each.items()}
    assert "nothing" not in left_alone(model) and torch.equal(tiny_models.logits(model), before)
    ids = tiny_models.IDS[:1]
    tokens = model.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0, eos_token_id=None)
    assert tokens.shape == (1, ids.shape[1] + 5)


def test_parts_of_a_model() -> None:
    """Phi3's MLP and Qwen3-MoE's have other forms, Cohere's norms other steps. Layers may be joined already."""
    for architecture, names, why in (
        ("Phi3", NORMS, "model.layers.0.mlp: its forward is not self.down_proj("),
        ("Qwen3Moe", NORMS[:1], "model.layers.0.post_attention_layernorm: the source uses hidden_states for more"),
    ):
        model = quantized(architecture)
        before = tiny_models.logits(by_definition(model, names, activations=False))
        with pytest.warns(UserWarning, match="^fuse_quantizers: leaves") as caught:
            assert fuse_quantizers(model) == [f"model.layers.{i}.{name}" for i in range(2) for name in names]
        assert len(caught) == 1 and why in str(caught[0].message)
        assert torch.equal(tiny_models.logits(model), before)
    model = quantized("Llama", fuse=True)
    before = tiny_models.logits(by_definition(model))
    assert len(fused(model)) == 6 and torch.equal(tiny_models.logits(model), before)


def test_models_that_are_left_alone() -> None:
    assert "Gemma2RMSNorm rounds at other places" in left_alone(quantized("Gemma2"))
    assert "q_proj is a Linear, no nvfp4.Linear" in left_alone(model_of("Llama"))
    assert "q_proj takes 16-bit inputs (W4A16)" in left_alone(quantized("Llama", activations=None, calibrate=None))
    assert "q_proj has a dynamic input scale" in left_alone(quantized("Llama", calibrate=None))
    assert "block_scale='four_over_six'" in left_alone(quantized("Llama", block_scale="four_over_six"))
    assert "has no module with input_layernorm" in left_alone(torch.nn.Linear(3, 3))
    with pytest.raises(nvfp4.Error, match="^model: is of type int; must be a torch.nn.Module"):
        fuse_quantizers(3)  # type: ignore[arg-type]


def only_mlps(model: Any) -> str:
    with pytest.warns(UserWarning) as caught:
        assert all(name.endswith("mlp") for name in fuse_quantizers(model))
    return str(caught[0].message)


def test_layers_that_are_left_alone() -> None:
    def scales(layer: Any) -> None:
        for projection in (layer.self_attn.k_proj, layer.mlp.up_proj):
            projection.input_global_scale *= 2
            projection.update_alpha()

    def hooks(layer: Any) -> None:
        for norm in NORMS:
            getattr(layer, norm).register_forward_hook(lambda *given: None)

    def forwards(layer: Any) -> None:
        for norm in NORMS:
            getattr(layer, norm).forward = getattr(layer, norm).forward

    def readers(layer: Any) -> None:
        """A class that reads the norm's result twice."""

        class Other(type(layer)):  # type: ignore[misc]
            def forward(self, hidden_states: Tensor, **more: Any) -> Tensor:
                y = self.input_layernorm(hidden_states)
                y, _ = self.self_attn(y, y, **more)
                z = self.post_attention_layernorm(y)
                return self.mlp(z) + z

        layer.__class__ = Other

    for change, why in (
        (scales, "q_proj, k_proj, v_proj cannot be joined: layers: input_global_scale of layer 1"),
        (hooks, "LlamaRMSNorm has hooks"),
        (forwards, "LlamaRMSNorm has a forward of its own"),
        (readers, "does not say that one module alone reads the result"),
    ):
        model = quantized("Llama")
        for layer in model.model.layers:
            change(layer)
        assert why in only_mlps(model)
        types = {type(getattr(layer, norm)).__name__ for layer in model.model.layers for norm in NORMS}
        assert types == {"LlamaRMSNorm"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_random_rows(dtype: torch.dtype) -> None:
    """torch adds the squares in another order, so factors differ by some 2^-22 of their value. A value that is rounded
    to 8 bits (bfloat16) or 11 moves with a probability of that times 2^9 or 2^12: one of 1024. It changes its own
    byte, and where it is the largest of its block, one of 16, perhaps all 8 bytes."""
    torch.manual_seed(0)
    k, rows = 4096, 256
    norm = transformers.models.llama.modeling_llama.LlamaRMSNorm(k, 1e-5).to(dtype)
    torch.nn.init.normal_(norm.weight, 1.0, 0.2)
    layer = nvfp4.Linear.from_linear(torch.nn.Linear(k, 16, False, dtype=dtype), input_global_scale=0.01)
    x = (torch.randn(rows, k) * torch.randn(rows, 1).exp()).to(dtype)
    with torch.no_grad():
        got = QuantizingNorm(norm.weight, 1e-5, layer)(x)
        expected = nvfp4.quantize(norm(x), global_scale=0.01)
    assert not isinstance(got, Tensor)
    for mine, theirs in ((got.data, expected[0]), (got.scale.view(torch.uint8), expected[1].view(torch.uint8))):
        assert (mine != theirs).float().mean() < 1.5 / 1024
    whole = (torch.randint(-7, 8, (rows, k))).to(dtype)
    with torch.no_grad():
        got, expected = QuantizingNorm(norm.weight, 1e-5, layer)(whole), nvfp4.quantize(norm(whole), global_scale=0.01)
    factors = torch.rsqrt(whole.float().square().mean(-1) + 1e-5)
    exact = 1 / (whole.float().square().mean(-1) + 1e-5).double().sqrt().float()
    same = factors == exact
    assert same.float().mean() > 0.5 and torch.equal(got.data[same], expected[0][same])
    rounded = reference.rms_norm_quantize(whole, norm.weight.detach(), 1e-5, global_scale=0.01, round_steps=True)
    assert torch.equal(got.data, rounded[0])


def test_where_steps_run_one_by_one() -> None:
    """With a gradient, under autocast, of another dtype, of no rows, and after a state with other scales."""
    model, plain = quantized("Llama"), quantized("Llama")
    assert len(fused(model)) == 6
    assert model.model.layers[0].mlp(torch.ones(0, 64)).shape == (0, 64)
    outputs = [each(tiny_models.IDS).logits for each in (model, plain)]
    assert torch.equal(*outputs)
    with pytest.raises(nvfp4.Error, match="which has no gradient"):
        outputs[0].sum().backward()
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        assert torch.equal(model(tiny_models.IDS).logits, plain(tiny_models.IDS).logits)
    x = torch.randn(3, 64)
    with torch.no_grad():
        for name in (*NORMS, "mlp"):
            mine, theirs = (getattr(each.model.layers[0], name) for each in (model, plain))
            assert torch.equal(mine(x), theirs(x))


def test_a_layer_takes_its_own_input_alone() -> None:
    model = quantized("Llama")
    fused(model)
    layer = model.model.layers[0]
    with torch.no_grad():
        x = layer.input_layernorm(torch.ones(2, 64, dtype=torch.bfloat16))
        with pytest.raises(nvfp4.Error, match="^x: is quantized for another layer"):
            layer.mlp.down_proj(x)
        nvfp4.dequantize_model(model)
        with pytest.raises(nvfp4.Error, match="^x: is quantized for an nvfp4.Linear that is not in its place any more"):
            model(tiny_models.IDS)


def test_saved_and_copied(tmp_path: Path) -> None:
    model = quantized("Llama")
    plain = tiny_models.logits(model)
    model.save_pretrained(tmp_path / "before")
    fused(model)
    model.save_pretrained(tmp_path / "after")
    before = tiny_models.logits(model)
    page = (ROOT / "docs" / "transformers.md").read_text(encoding="utf-8")
    example: dict[str, Any] = {"folder": tmp_path / "after", "nvfp4": nvfp4}
    exec(page.split("## Fused quantizers")[1].split("```python\n")[1].split("```")[0], example)
    assert len(example["names"]) == 6 and torch.equal(tiny_models.logits(example["model"]), before)
    for name in ("before", "after"):
        other = nvfp4.transformers.load(tmp_path / name, dtype="bfloat16")
        assert torch.equal(tiny_models.logits(other), plain)
        assert len(fused(other)) == 6 and torch.equal(tiny_models.logits(other), before)
    state = io.BytesIO()
    torch.save(model, state)
    state.seek(0)
    for other in (copy.deepcopy(model), torch.load(state, weights_only=False)):
        assert torch.equal(tiny_models.logits(other), before)
        kinds = {type(module) for module in other.modules()}
        assert {QuantizingNorm, QuantizingMLP} <= kinds


def test_the_benchmark_runs(tmp_path: Path) -> None:
    """With small sizes, on the CPU."""
    command = [sys.executable, BENCHMARKS / "fused_quantizers.py", tmp_path / "out.csv", "--rows", "2", "--layers", "1"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([*map(str, command), "--commit", "0"], check=True, timeout=300, env=environment)
    assert recorded.head(tmp_path / "out.csv")["commit"] == "0"
    found = recorded.rows(tmp_path / "out.csv")
    ways = [row["way"] for row in found]
    assert ways == [*("torch", "compiled", "fused", "product") * 3, "as quantized", "joined", "fused quantizers"]
    assert all(float(row["us"]) > 0 for row in found)


def test_compiled() -> None:
    model = quantized("Llama")
    fused(model)
    before = tiny_models.logits(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(tiny_models.logits(compiled), before)
