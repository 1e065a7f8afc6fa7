"""What PEFT trains, casts and resizes beside adapters, in models with NVFP4 layers: right, or an nvfp4.Error before
anything changes."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import SIZES
from torch import Tensor, nn

import nvfp4

pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
import transformers  # noqa: E402
from peft import LoraConfig, PeftModel, get_peft_model  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

import nvfp4.peft  # noqa: E402
import nvfp4.transformers  # noqa: E402

transformers.utils.logging.disable_progress_bar()
LAYER = "model.layers.0.mlp.down_proj"
NVFP4 = "which is NVFP4 and has no parameter to train; quantize the model with this layer in `ignore`"


@pytest.fixture
def ids(generator: torch.Generator) -> Tensor:
    return torch.randint(0, SIZES["vocab_size"], (4, 16), generator=generator)


@pytest.fixture
def make(generator: torch.Generator) -> Callable[..., Any]:
    """A function that makes equal quantized models."""
    seed = int(torch.randint(2**31, (), generator=generator))

    def made(kind: Any = transformers.LlamaConfig, auto: Any = AutoModelForCausalLM, **options: Any) -> Any:
        torch.manual_seed(seed)
        config = {key: options.pop(key) for key in ("tie_word_embeddings", "num_labels") if key in options}
        model = auto.from_config(kind(**SIZES, pad_token_id=0, **config), dtype=torch.float32).eval()
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                nn.init.normal_(parameter)
        nvfp4.quantize_model(model, activations=None, **options)
        return model

    return made


def lora(*targets: str, **more: Any) -> LoraConfig:
    return LoraConfig(**{"target_modules": list(targets or ("q_proj",)), "task_type": "CAUSAL_LM"} | more)


def outputs(model: Any, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model.eval()(ids).logits


def trained(model: Any, ids: Tensor) -> Any:
    """The model after two steps, which have to lower the loss."""
    steps = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.5)
    losses = []
    for _ in range(3):
        losses.append(model.train()(input_ids=ids, labels=ids).loss)
        steps.zero_grad()
        losses[-1].backward()
        steps.step()
    assert losses[-1] < losses[0]
    return model.eval()


def saved_equals_loaded(model: Any, base: Any, folder: Path, ids: Tensor) -> None:
    model.save_pretrained(folder)
    assert torch.equal(outputs(PeftModel.from_pretrained(base, folder), ids), outputs(model, ids))


def fails(message: str, model: Any, ids: Tensor, call: Callable[[], Any]) -> None:
    """The call raises, and the model has the modules, the parameters and the bits that it had."""
    modules, before = {name: type(m) for name, m in model.named_modules()}, outputs(model, ids)
    with pytest.raises(nvfp4.Error) as caught:
        call()
    assert message in str(caught.value)
    assert {name: type(m) for name, m in model.named_modules()} == modules
    assert torch.equal(outputs(model, ids), before)


# ---- modules_to_save ----


@pytest.mark.parametrize("names", [["down_proj"], ["mlp"], ["lm_head"], ["layers.0"]])
def test_packed_modules_to_save_are_rejected(names: list[str], make: Callable[..., Any], ids: Tensor) -> None:
    """PEFT would train a copy without parameters, and save its packed bytes."""
    model = make(ignore=())
    ia3 = peft.IA3Config(target_modules=["q_proj"], feedforward_modules=[], modules_to_save=names)
    for config in (lora(modules_to_save=names), ia3):
        fails(NVFP4, model, ids, functools.partial(get_peft_model, model, config))
        fails(NVFP4, model, ids, functools.partial(peft.inject_adapter_in_model, config, model))
    second = get_peft_model(model, lora())
    with pytest.raises(nvfp4.Error, match="^modules_to_save: has .*, which is NVFP4"):
        second.add_adapter("second", lora("k_proj", modules_to_save=names))


@pytest.mark.parametrize("task", ["SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS"])
def test_packed_heads_that_peft_trains(task: str, make: Callable[..., Any], ids: Tensor, tmp_path: Path) -> None:
    """PEFT adds them to modules_to_save by the task. Dense ones train."""
    auto, head = {
        "SEQ_CLS": (transformers.AutoModelForSequenceClassification, "score"),
        "TOKEN_CLS": (transformers.AutoModelForTokenClassification, "score"),
        "QUESTION_ANS": (transformers.AutoModelForQuestionAnswering, "qa_outputs"),
    }[task]
    options = {"auto": auto, "num_labels": 32} if task != "QUESTION_ANS" else {"auto": auto}
    if task != "QUESTION_ANS":  # whose head has two rows and stays dense
        model = make(**options)
        assert isinstance(model.get_submodule(head), nvfp4.Linear)
        fails(NVFP4, model, ids, lambda: get_peft_model(model, lora(task_type=task)))
        prompts = peft.PromptTuningConfig(task_type=task, num_virtual_tokens=4)
        with pytest.raises(nvfp4.Error, match="^modules_to_save: has .*, which is NVFP4"):
            get_peft_model(copy.deepcopy(model), prompts)
    model = get_peft_model(make(**options, ignore=[head]), lora(task_type=task))
    assert any(head in name and p.requires_grad for name, p in model.named_parameters())


@pytest.mark.parametrize("names", [["lm_head"], ["embed_tokens"], ["norm", "lm_head"]])
def test_dense_modules_to_save_train(names: list[str], make: Callable[..., Any], ids: Tensor, tmp_path: Path) -> None:
    model = get_peft_model(make(), lora(modules_to_save=names))
    own = {name: p.detach().clone() for name, p in model.named_parameters() if "modules_to_save" in name}
    assert own
    trained(model, ids)
    assert all(not torch.equal(p, own[name]) for name, p in model.named_parameters() if name in own)
    saved_equals_loaded(model, make(), tmp_path, ids)
    if "lm_head" in names:  # such an adapter does not fit a packed head
        base = make(ignore=())
        fails(NVFP4, base, ids, lambda: PeftModel.from_pretrained(base, tmp_path))


# ---- biases ----


@pytest.mark.parametrize("bias", ["all", "lora_only"])
def test_biases_of_packed_layers_do_not_train(bias: str, make: Callable[..., Any], ids: Tensor, tmp_path: Path) -> None:
    model = make(transformers.Qwen2Config)  # q, k and v have biases
    for targets in (["q_proj"], "all-linear"):
        message = f"bias: is {bias!r}, but the bias of model.layers.0.self_attn.q_proj is a buffer"
        config = lora(bias=bias, target_modules=targets)
        fails(message, model, ids, functools.partial(get_peft_model, model, config))
    if bias == "lora_only":  # down_proj has none
        get_peft_model(model, lora("down_proj", bias=bias))
    model = make(transformers.Qwen2Config, ignore=["*.q_proj", "*.k_proj", "*.v_proj", "lm_head"])
    model = get_peft_model(model, lora("q_proj", "down_proj", bias=bias))
    dense = [name for name, p in model.named_parameters() if name.endswith(".bias") and p.requires_grad]
    assert len(dense) == (6 if bias == "all" else 2)
    trained(model, ids)
    base = make(transformers.Qwen2Config, ignore=["*.q_proj", "*.k_proj", "*.v_proj", "lm_head"])
    if bias == "all" or peft.__version__ >= "0.21":  # 0.18 does not save the bias of a layer with an adapter
        saved_equals_loaded(model, base, tmp_path, ids)
    get_peft_model(make(), lora(bias=bias))  # Llama has no biases


def test_biases_of_adapters(make: Callable[..., Any], ids: Tensor, tmp_path: Path) -> None:
    model = trained(get_peft_model(make(transformers.Qwen2Config), lora("q_proj", "v_proj", lora_bias=True)), ids)
    assert all(p.any() for name, p in model.named_parameters() if "lora_B" in name and name.endswith("bias"))
    saved_equals_loaded(model, make(transformers.Qwen2Config), tmp_path, ids)
    expected = outputs(model, ids)
    torch.testing.assert_close(outputs(model.merge_and_unload(), ids), expected, rtol=1e-4, atol=1e-5)


# ---- dtypes ----


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_with_adapters_changes_its_dtype(
    dtype: torch.dtype, make: Callable[..., Any], ids: Tensor, tmp_path: Path
) -> None:
    """Packed bytes stay. Loaded again the model has the same bits, and merged layers have the dtype."""
    model = trained(get_peft_model(make(transformers.Qwen2Config), lora("q_proj", "down_proj")), ids)
    packed = {name: b.clone() for name, b in model.named_buffers() if b.dtype in (torch.uint8, torch.float8_e4m3fn)}
    full = outputs(model, ids)
    model.to(dtype)
    for name, t in model.named_buffers():
        assert name not in packed or torch.equal(t.view(torch.uint8), packed[name].view(torch.uint8))
    y = outputs(model, ids)
    assert y.dtype == dtype and (y.float() - full).norm() < 0.02 * full.norm()
    model.save_pretrained(tmp_path)
    base = PeftModel.from_pretrained(make(transformers.Qwen2Config), tmp_path).to(dtype)
    assert torch.equal(outputs(base, ids), y)
    model.train()(input_ids=ids, labels=ids).loss.backward()
    factors = [p for name, p in model.named_parameters() if "lora_" in name]
    assert all(p.dtype == dtype and p.grad.isfinite().all() for p in factors) and any(p.grad.any() for p in factors)
    assert {m.weight.dtype for m in model.merge_and_unload().modules() if type(m) is nn.Linear} == {dtype}


# ---- embeddings ----


def test_embeddings_are_resized_beside_adapters(make: Callable[..., Any], ids: Tensor, tmp_path: Path) -> None:
    def resized(model: Any) -> Any:
        torch.manual_seed(0)  # of the new rows
        model.resize_token_embeddings(140)
        return model

    model = get_peft_model(make(), lora("q_proj", "down_proj"))
    before = outputs(model, ids)
    resized(model)
    torch.testing.assert_close(outputs(model, ids)[..., : SIZES["vocab_size"]], before)
    trained(model, ids)
    saved_equals_loaded(model, resized(make()), tmp_path, ids)


@pytest.mark.parametrize("targets", [["q_proj"], ["q_proj", "lm_head"]])
def test_a_packed_head_is_not_resized(targets: list[str], make: Callable[..., Any], ids: Tensor) -> None:
    model = get_peft_model(make(ignore=()), lora(*targets))
    fails("is NVFP4 with 128 rows, which cannot become 140", model, ids, lambda: model.resize_token_embeddings(140))
    assert model.get_input_embeddings().weight.shape[0] == SIZES["vocab_size"]


@pytest.mark.parametrize(
    "options",
    [{"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}, {"trainable_token_indices": [1, 2]}],
)
def test_a_packed_head_is_not_tied(
    options: dict[str, Any], make: Callable[..., Any], ids: Tensor, tmp_path: Path
) -> None:
    """PEFT goes by the configuration of the model, and would put the embedding in place of the head."""
    model = make(tie_word_embeddings=True, ignore=())
    assert isinstance(model.lm_head, nvfp4.Linear)
    fails("set model.config.tie_word_embeddings = False", model, ids, lambda: get_peft_model(model, lora(**options)))
    if peft.__version__ < "0.21" and "modules_to_save" in options:  # which does not look at the configuration
        return
    bases = [model, make(tie_word_embeddings=True, ignore=())]
    for base in bases:
        base.config.tie_word_embeddings = False
    before = outputs(model, ids)
    adapted = get_peft_model(model, lora(**options))
    assert torch.equal(outputs(adapted, ids), before)
    saved_equals_loaded(trained(adapted, ids), bases[1], tmp_path, ids)
    tied = make(tie_word_embeddings=True)  # the head is dense and tied
    saved_equals_loaded(
        trained(get_peft_model(tied, lora(**options)), ids), make(tie_word_embeddings=True), tmp_path / "tied", ids
    )


def test_ln_tuning_trains_norms_alone(make: Callable[..., Any], ids: Tensor) -> None:
    model = make()
    config = peft.LNTuningConfig(target_modules=["down_proj"])
    fails(
        f"{LAYER}: is NVFP4, and LNTuningConfig trains a copy of the", model, ids, lambda: get_peft_model(model, config)
    )
    trained(get_peft_model(model, peft.LNTuningConfig(target_modules=["input_layernorm", "norm"])), ids)
