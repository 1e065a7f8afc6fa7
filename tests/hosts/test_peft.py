"""PEFT on NVFP4 layers: adapters are found, train, are saved and merged, after each way to make such a model."""

from __future__ import annotations

import copy
import importlib
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import one_in
from paths import ROOT
from tiny_models import SIZES
from torch import Tensor, nn

import nvfp4

pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
import transformers  # noqa: E402
from peft import LoraConfig, PeftModel, get_peft_model  # noqa: E402
from peft.tuners.tuners_utils import BaseTunerLayer  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

import nvfp4.hosts.peft  # noqa: E402
import nvfp4.peft  # noqa: E402
from nvfp4.layers.fp8 import Fp8Tensors  # noqa: E402

transformers.utils.logging.disable_progress_bar()

NAMES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def dense(dtype: torch.dtype = torch.float32) -> Any:
    return AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SIZES), dtype=dtype).eval()


def quantized(activations: str | None = None, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    model = dense(dtype)
    nvfp4.quantize_model(model, activations=activations, **more)
    return model


def loaded(folder: Path) -> Any:
    nvfp4.save(quantized(), folder)
    model = dense()
    nvfp4.load(folder, model)
    return model


def loaded_by_transformers(folder: Path) -> Any:
    nvfp4.save(quantized(), folder, "compressed-tensors")
    return nvfp4.transformers.load(folder)


def from_pretrained(folder: Path) -> Any:
    quantized().save_pretrained(folder)
    nvfp4.transformers  # noqa: B018  (registers the format)
    return AutoModelForCausalLM.from_pretrained(folder)


SOURCES: dict[str, Callable[[Path], Any]] = {
    "quantize_model": lambda folder: quantized(),
    "load": loaded,
    "transformers.load": loaded_by_transformers,
    "from_pretrained": from_pretrained,
}


@pytest.fixture
def ids(generator: torch.Generator) -> Tensor:
    return torch.randint(0, SIZES["vocab_size"], (4, 16), generator=generator)


def logits(model: Any, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model.eval()(ids).logits


def adapted(model: Any, **options: Any) -> Any:
    """The model with adapters that are not zero, as those that have trained."""
    options = {"target_modules": "all-linear", "task_type": "CAUSAL_LM"} | options
    model = get_peft_model(model, LoraConfig(**options))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.02)
    return model.eval()


def adapted_names(model: Any) -> set[str]:
    """The layers that have an adapter, by their names in the model before."""
    return {
        name.removeprefix("base_model.model.")
        for name, module in model.named_modules()
        if isinstance(module, peft.tuners.lora.LoraLayer)
    }


# ---- adapters are made and train ----


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"]])
@pytest.mark.parametrize("source", SOURCES)
def test_adapters_are_put_on_every_layer_that_is_asked_for(
    source: str, targets: str | list[str], ids: Tensor, tmp_path: Path
) -> None:
    """And with lora_B = 0 they change no bit."""
    model = SOURCES[source](tmp_path)
    expected = logits(model, ids)
    model = get_peft_model(model, LoraConfig(target_modules=targets))
    wanted = NAMES if targets == "all-linear" else targets
    assert {name.rpartition(".")[2] for name in adapted_names(model)} == {*wanted}
    assert len(adapted_names(model)) == 2 * len(wanted)
    assert {type(m) for m in model.modules() if isinstance(m, peft.tuners.lora.LoraLayer)} == {nvfp4.peft.LoraLinear}
    assert torch.equal(logits(model, ids), expected)
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trainable and all("lora_" in name for name in trainable)


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("source", SOURCES)
def test_the_trainer_of_transformers_lowers_the_loss(source: str, dora: bool, ids: Tensor, tmp_path: Path) -> None:
    """20 steps; the packed bytes stay, and what was trained is saved and loads again with equal logits."""
    pytest.importorskip("accelerate", reason="Trainer needs it")
    base = SOURCES[source](tmp_path / "base")
    before = copy.deepcopy(base)
    options = {"target_modules": "all-linear", "task_type": "CAUSAL_LM", "use_dora": dora}
    model = get_peft_model(base, LoraConfig(**options, lora_dropout=0.1 if dora else 0.0))
    arguments = transformers.TrainingArguments(
        str(tmp_path / "run"),
        max_steps=20,
        learning_rate=1e-2,
        logging_steps=1,
        per_device_train_batch_size=4,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    rows = [{"input_ids": row, "labels": row} for row in ids] * 4
    trainer = transformers.Trainer(model, arguments, train_dataset=rows)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 20 and losses[-1] < losses[0] - 0.1
    for name, buffer in before.named_buffers():
        if name.endswith(".weight"):
            own = model.get_submodule(f"base_model.model.{name.rpartition('.')[0]}").get_base_layer()
            assert torch.equal(own.weight, buffer)
    model.save_pretrained(tmp_path / "adapter")
    again = PeftModel.from_pretrained(before, tmp_path / "adapter")
    assert torch.equal(logits(again, ids), logits(model, ids))


@pytest.mark.parametrize("dora", [False, True])
def test_gradients_are_those_of_the_dense_layer(dora: bool, generator: torch.Generator) -> None:
    """The gradients of the adapters and of the input agree within the roundings of both."""
    plain = nn.Sequential(nn.Linear(96, 64), nn.LayerNorm(64), nn.Linear(64, 48))  # PEFT wants a parameter
    nvfp4.quantize_model(plain, activations=None)
    model = adapted(plain, task_type=None, use_dora=dora)
    reference = copy.deepcopy(model)
    nvfp4.dequantize_model(reference, torch.float32)
    x = torch.randn(5, 96, generator=generator)
    gradients = []
    for own in (model, reference):
        given = x.clone().requires_grad_()
        own(given).square().sum().backward()
        named = {name: p.grad for name, p in own.named_parameters() if "lora_" in name}
        gradients.append({"input": given.grad, **named})
    assert len(gradients[0]) == 1 + (6 if dora else 4)
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-4, atol=1e-4)


def test_gradient_checkpointing(ids: Tensor) -> None:
    gradients = []
    model = adapted(quantized())
    for on in (False, True):
        if on:
            model.gradient_checkpointing_enable()
            model.enable_input_require_grads()
        model.train().zero_grad()
        model(ids, labels=ids).loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.requires_grad])
    assert gradients[0] and all(torch.equal(a, b) for a, b in zip(*gradients))


def test_w4a4_runs_with_adapters_and_its_backward_names_activations_none(ids: Tensor) -> None:
    model = adapted(quantized("nvfp4"))
    assert logits(model, ids).isfinite().all()
    loss = model.train()(ids, labels=ids).loss
    with pytest.raises(nvfp4.Error, match=r"^activations: is 'nvfp4' \(W4A4\).*must be activations=None"):
        loss.backward()


def test_a_model_with_adapters_is_not_quantized(ids: Tensor) -> None:
    """The factors would become NVFP4, and train no more."""
    model = adapted(dense())
    expected = logits(model, ids)
    with pytest.raises(nvfp4.Error, match="^model: .*self_attn.q_proj has an adapter; must have none"):
        nvfp4.quantize_model(model, activations=None)
    assert torch.equal(logits(model, ids), expected)
    merged = model.merge_and_unload()
    assert nvfp4.quantize_model(merged, activations=None).layers


# ---- adapters are merged ----


@pytest.mark.parametrize("safe", [False, True])
@pytest.mark.parametrize("dora", [False, True])
def test_merging_gives_dense_layers_of_the_sum(dora: bool, safe: bool, ids: Tensor, tmp_path: Path) -> None:
    model = adapted(quantized(), use_dora=dora)
    expected = logits(model, ids)
    dense_sum = copy.deepcopy(model)
    nvfp4.dequantize_model(dense_sum)
    merged, reference = model.merge_and_unload(safe_merge=safe), dense_sum.merge_and_unload(safe_merge=safe)
    for name, module in merged.named_modules():
        if name.rpartition(".")[2] in NAMES:
            assert type(module) is nn.Linear and not module.weight.requires_grad
            assert torch.equal(module.weight, reference.get_submodule(name).weight)
    torch.testing.assert_close(logits(merged, ids), expected, rtol=1e-4, atol=1e-4)
    merged.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not hasattr(again.config, "quantization_config") and torch.equal(logits(again, ids), logits(merged, ids))


def test_a_part_is_merged_and_the_rest_stays_nvfp4(ids: Tensor, tmp_path: Path) -> None:
    merged = adapted(from_pretrained(tmp_path / "base"), target_modules=["q_proj"]).merge_and_unload()
    assert type(merged.model.layers[0].self_attn.q_proj) is nn.Linear
    assert type(merged.model.layers[0].self_attn.k_proj) is nvfp4.Linear
    merged.save_pretrained(tmp_path / "merged")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert torch.equal(logits(again, ids), logits(merged, ids))


def test_a_merged_layer_has_the_dtype_of_the_model(ids: Tensor) -> None:
    merged = adapted(quantized(dtype=torch.bfloat16)).merge_and_unload()
    assert {p.dtype for p in merged.parameters()} == {torch.bfloat16} and logits(merged, ids).isfinite().all()


def test_merging_in_place_says_what_to_do(ids: Tensor) -> None:
    """And changes nothing, of dense layers before the NVFP4 ones too."""
    model = adapted(quantized(ignore=["*.q_proj"]))
    expected = logits(model, ids)
    with pytest.raises(nvfp4.Error, match="^merge: .*merge_and_unload.*nvfp4.dequantize_model") as error:
        model.merge_adapter()
    assert "NVFP4" in str(error.value) and torch.equal(logits(model, ids), expected)
    assert not any(module.merged for module in model.modules() if isinstance(module, peft.tuners.lora.LoraLayer))
    nvfp4.dequantize_model(model)
    model.merge_adapter()
    torch.testing.assert_close(logits(model, ids), expected, rtol=1e-4, atol=1e-4)


def test_unloading_gives_the_nvfp4_model_back(ids: Tensor) -> None:
    model = quantized()
    expected = logits(model, ids)
    unloaded = adapted(model).unload()
    assert type(unloaded.model.layers[0].mlp.up_proj) is nvfp4.Linear and torch.equal(logits(unloaded, ids), expected)


def test_two_adapters_on_a_layer(ids: Tensor) -> None:
    model = adapted(quantized())
    first = logits(model, ids)
    model.add_adapter("second", LoraConfig(target_modules="all-linear", r=4))
    model.set_adapter("second")
    with model.disable_adapter():
        base = logits(model, ids)
    assert torch.equal(logits(model, ids), base) and not torch.equal(first, base)
    model.set_adapter("default")
    assert torch.equal(logits(model, ids), first)
    merged = model.merge_and_unload(adapter_names=["default"])
    torch.testing.assert_close(logits(merged, ids), first, rtol=1e-4, atol=1e-4)


# ---- what takes no adapter ----


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj"]])
def test_joined_layers_are_rejected(targets: str | list[str], ids: Tensor) -> None:
    with pytest.raises(nvfp4.Error, match="fuse=False"):
        logits(get_peft_model(quantized(fuse=True), LoraConfig(target_modules=targets)), ids)


@pytest.mark.parametrize("kind", ["LoraConfig", "AdaLoraConfig", "IA3Config"])
def test_all_linear_names_fp8_layers(kind: str, ids: Tensor) -> None:
    """They take no adapter; the others have one, and their gradients pass through the FP8 layers."""
    model = quantized()
    layers = {name: m for name, m in model.named_modules() if name.endswith("q_proj")} | {"lm_head": model.lm_head}
    for name, module in layers.items():
        values = torch.randn(module.out_features, module.in_features).to(torch.float8_e4m3fn)
        model.set_submodule(name, nvfp4.Fp8Linear.from_packed(Fp8Tensors(values, torch.tensor(0.02))))
    options = {"total_step": 10} if kind == "AdaLoraConfig" else {}
    options |= {"feedforward_modules": []} if kind == "IA3Config" else {}
    config = getattr(peft, kind)(target_modules="all-linear", task_type="CAUSAL_LM", **options)
    names = "model.layers.0.self_attn.q_proj, model.layers.1.self_attn.q_proj"
    with pytest.warns(UserWarning, match=f"^target_modules: is 'all-linear', but FP8 layers take no adapter: {names}$"):
        adapter = get_peft_model(copy.deepcopy(model), config)
    found = {name.rpartition(".")[2] for name, m in adapter.named_modules() if isinstance(m, BaseTunerLayer)}
    assert found == {*NAMES} - {"q_proj"}
    adapter(input_ids=ids, labels=ids).loss.backward()
    assert any(p.grad is not None for p in adapter.parameters())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="target_modules")
        excluded = getattr(peft, kind)(target_modules="all-linear", exclude_modules=["q_proj"], **options)
        get_peft_model(copy.deepcopy(model), excluded)
    if kind == "LoraConfig":
        get_peft_model(
            copy.deepcopy(model), LoraConfig(target_modules=["q_proj", "v_proj"], exclude_modules=["q_proj"])
        )
    state = {name: type(m) for name, m in model.named_modules()}
    for targets in (["q_proj", "v_proj"], r".*\.[qv]_proj"):
        named = getattr(peft, kind)(target_modules=targets, task_type="CAUSAL_LM", **options)
        error = (
            "^target_modules: has model.layers.0.self_attn.q_proj, an FP8 layer, which takes no adapter; leave it out"
        )
        with pytest.raises(nvfp4.Error, match=error):
            get_peft_model(model, named)
        assert {name: type(m) for name, m in model.named_modules()} == state


@pytest.mark.parametrize("name", ["pissa", "olora", "corda"])
def test_initializations_that_change_the_weight_are_rejected(name: str) -> None:
    with pytest.raises(nvfp4.Error, match=f"^init_lora_weights: is '{name}'.*must be one of True, False, 'gaussian'"):
        get_peft_model(quantized(), LoraConfig(target_modules="all-linear", init_lora_weights=name))


def test_layers_of_gpt2_are_no_longer_transposed(ids: Tensor) -> None:
    """Recipes for GPT-2 set fan_in_fan_out, which fits Conv1D and no NVFP4 layer."""
    config = transformers.GPT2Config(n_embd=64, n_layer=1, n_head=4, vocab_size=SIZES["vocab_size"], n_positions=32)
    config.bos_token_id = config.eos_token_id = 1
    model = transformers.GPT2LMHeadModel(config).eval()
    nvfp4.quantize_model(model, activations=None)
    with pytest.warns(UserWarning, match="fan_in_fan_out is True"):
        model = adapted(model, fan_in_fan_out=True)
    expected = logits(model, ids)
    assert len(adapted_names(model)) == 4
    torch.testing.assert_close(logits(model.merge_and_unload(), ids), expected, rtol=1e-4, atol=1e-4)


# ---- other methods, other orders of imports ----


@pytest.mark.parametrize("kind", ["IA3Config", "VeraConfig", "AdaLoraConfig"])
def test_other_methods_train_and_merge_after_dequantize_model(kind: str, ids: Tensor) -> None:
    options: dict[str, Any] = {"target_modules": ["q_proj", "down_proj"]}
    options |= {"feedforward_modules": ["down_proj"]} if kind == "IA3Config" else {}
    options |= {"total_step": 20} if kind == "AdaLoraConfig" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = get_peft_model(quantized(), getattr(peft, kind)(**options)).train()
    model(ids, labels=ids).loss.backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters() if p.requires_grad)
    expected = logits(model, ids)
    nvfp4.dequantize_model(model)
    torch.testing.assert_close(logits(model.merge_and_unload(), ids), expected, rtol=1e-4, atol=1e-4)


try:
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING as CONFIGS
    from peft.mapping import PEFT_TYPE_TO_TUNER_MAPPING as TUNERS
except ImportError:
    CONFIGS = TUNERS = {}
# Methods that adapt layers by their names; the others have no target_modules, or none of these.
METHODS = [t for t in TUNERS if TUNERS[t] and "target_modules" in getattr(CONFIGS.get(t), "__dataclass_fields__", ())]
OF_OTHERS = {"TRAINABLE_TOKENS", "LN_TUNING", "ADAPTION_PROMPT"}
OPTIONS: dict[str, dict[str, Any]] = {
    "IA3": {"feedforward_modules": []},
    "ADALORA": {"total_step": 10},
    "C3A": {"block_size": 32},
    "VBLORA": {"vector_length": 32, "num_vectors": 16},
    "SHIRA": {"r": 4},
    "ROAD": {"group_size": 32},
    "WAVEFT": {"n_frequency": 100},
}


@pytest.mark.parametrize("method", one_in(4, [t for t in METHODS if t.name not in OF_OTHERS]), ids=lambda t: t.name)
def test_every_method_runs_beside_the_layers_or_is_rejected(method: Any, ids: Tensor) -> None:
    """One that runs gives what it gives beside the dense layers, and its merging, in a model or of a layer, is an error
    that changes nothing."""
    config = CONFIGS[method]
    options = {"target_modules": ["q_proj", "v_proj"]} | OPTIONS.get(method.name, {})
    fields = config.__dataclass_fields__
    for name in ("init_weights", "init_lora_weights"):
        if name in fields and method.name != "TINYLORA":
            options.setdefault(name, False)
    model = quantized()
    expected = copy.deepcopy(model)
    nvfp4.dequantize_model(expected)
    package = TUNERS[method].__module__.split(".")[2]
    before = {name: t.clone() for name, t in model.state_dict().items()}

    def unchanged() -> bool:
        now = {name.replace(".base_layer", ""): t for name, t in model.state_dict().items()}
        return all(torch.equal(raw(t), raw(now[name])) for name, t in before.items())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if package not in nvfp4.hosts.peft.BESIDE:
            with pytest.raises(nvfp4.Error, match=r"q_proj: is NVFP4, and \w+ computes with the dense weight"):
                get_peft_model(model, config(**options))
            assert unchanged() and not any(isinstance(m, BaseTunerLayer) for m in model.modules())
            return
        torch.manual_seed(1)
        own = get_peft_model(model, config(**options))
        torch.manual_seed(1)
        other = get_peft_model(expected, config(**options))
        shapes = {name: t.shape for name, t in other.state_dict().items()}
        same = {name: t for name, t in own.state_dict().items() if t.shape == shapes.get(name)}
        other.load_state_dict(same, strict=False)
        if method.name != "UNILORA":  # whose random indices are no state
            torch.testing.assert_close(logits(own, ids), logits(other, ids), rtol=1e-4, atol=1e-4)
        layer = next(m for m in own.modules() if isinstance(m, BaseTunerLayer))
        for merge in (own.merge_adapter, own.merge_and_unload, layer.merge):
            if method.name != "LORA" or merge != own.merge_and_unload:
                with pytest.raises(nvfp4.Error, match="^merge: .* NVFP4, "):
                    merge()
        assert unchanged()


def raw(t: Tensor) -> Tensor:
    return t.reshape(-1).view(torch.uint8)


MAKE = """
import torch, nvfp4
layer = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 32))
{first}
nvfp4.quantize_model(layer, activations=None)
{then}
from peft import LoraConfig, get_peft_model
model = get_peft_model(layer, LoraConfig(target_modules="all-linear", init_lora_weights=False))
x = torch.ones(2, 64)
y = model(x)
y.sum().backward()
print(type(model.base_model.model[0]).__module__)
{last}
"""
MERGE = """
merged = model.merge_and_unload()
assert type(merged[0]) is torch.nn.Linear and (merged(x) - y).abs().max() < 1e-4
"""


@pytest.mark.parametrize(
    ("first", "then", "last", "module"),
    [
        ("import peft", "", MERGE, "nvfp4.hosts.peft"),
        ("", "import nvfp4.peft", MERGE, "nvfp4.hosts.peft"),
        ("", "nvfp4.peft", MERGE, "nvfp4.hosts.peft"),
        # Neither PEFT nor transformers was imported before: adapters train, and merging takes one call more.
        ("", "", f"nvfp4.dequantize_model(model){MERGE}", "peft.tuners.lora.layer"),
    ],
)
def test_the_order_of_imports(first: str, then: str, last: str, module: str) -> None:
    code = MAKE.format(first=first, then=then, last=last)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == module, done.stderr


def test_a_model_of_transformers_is_prepared_before_peft_is_imported() -> None:
    code = (
        "import sys, nvfp4, transformers\n"
        f"model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{SIZES}))\n"
        "assert 'peft' not in sys.modules\n"
        "nvfp4.quantize_model(model, activations=None)\n"
        "assert 'nvfp4.hosts.peft' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_example_of_the_page(ids: Tensor, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
    example = page.split("```python\n")[1].split("```")[0]
    quantized("nvfp4", calibrate=lambda model: model(ids)).save_pretrained(tmp_path / "base")
    scope: dict[str, Any] = {"folder": str(tmp_path / "base"), "adapter": str(tmp_path / "adapter"), "ids": ids}
    exec(example, scope)
    assert all(p.grad is not None for p in scope["model"].parameters() if p.requires_grad)
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    assert type(scope["merged"].model.layers[0].mlp.up_proj) is nn.Linear


def test_peft_counts_no_packed_weights(capsys: pytest.CaptureFixture[str]) -> None:
    """The page on adapters says so."""
    model = adapted(quantized())
    model.print_trainable_parameters()
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    dense = sum(p.numel() for p in model.parameters())
    assert f"trainable params: {trainable:,} || all params: {dense:,} " in capsys.readouterr().out
    packed = sum(m.in_features * m.out_features for m in model.modules() if type(m) is nvfp4.Linear)
    assert packed and dense - trainable == quantized().num_parameters()


def test_a_second_import_replaces_the_first() -> None:
    own = peft.tuners.lora.LoraModel._create_new_module.before_nvfp4
    importlib.reload(nvfp4.peft)
    assert peft.tuners.lora.LoraModel._create_new_module.before_nvfp4 is own


def test_a_version_that_lacks_something_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(peft.tuners.lora.LoraModel, "_create_new_module")
    with pytest.raises(ImportError, match=f"^peft: is version {peft.__version__}, .*_create_new_module.*; tested are"):
        importlib.reload(nvfp4.hosts.peft)
