"""PEFT's parameter targets on nvfp4.Experts: adapters are those of the dense model, train, are saved and load."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import NO_GPU, gpu
from torch import Tensor, nn

import nvfp4

pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
import transformers  # noqa: E402
from moe_models import IDS, MODELS, Mixture  # noqa: E402
from paths import ROOT  # noqa: E402
from peft import LoraConfig, PeftModel, get_peft_model  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

import nvfp4.peft  # noqa: E402
import nvfp4.transformers  # noqa: E402
from nvfp4.layers.experts.module import Experts  # noqa: E402

transformers.utils.logging.disable_progress_bar()

FIRST = {name: "experts.up_proj" if name == "nemotron-h" else "experts.gate_up_proj" for name in MODELS}
BOUND = 2e-5  # twice that of the models without adapters: twice as many sums of up to 96 terms in fp32


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Mixture]:
    made: dict[str, Mixture] = {}

    def make(name: str) -> Mixture:
        if name not in made:
            made[name] = Mixture(name, "W4A16", tmp_path_factory.mktemp(name))
        return made[name]

    return make


def loaded(own: Mixture, folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """transformers 5.17 leaves tensors that it renames in the dtype of the file."""
    return nvfp4.transformers.load(own.write(folder, "modelopt"), dtype=dtype).to(dtype)


def config(name: str, **options: Any) -> LoraConfig:
    targets = {"target_modules": ["q_proj"], "target_parameters": [FIRST[name], "experts.down_proj"]}
    return LoraConfig(**targets | {"r": 4, "task_type": "CAUSAL_LM"} | options)


def adapted(model: Any, name: str, seed: int = 0, **options: Any) -> Any:
    """The model with adapters that are not zero, as those that have trained."""
    torch.manual_seed(seed)
    model = get_peft_model(model, config(name, **options))
    with torch.no_grad():
        for key, t in model.named_parameters():
            if "lora_B" in key:
                t.normal_(std=0.1)
    return model.eval()


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model.eval()(IDS.to(model.device)).logits.float().cpu()


def error(y: Tensor, wanted: Tensor) -> float:
    return float((y - wanted).norm() / wanted.norm())


def experts_of(model: Any) -> list[Experts]:
    return [module for module in model.modules() if isinstance(module, Experts)]


def factors(model: Any) -> dict[str, Tensor]:
    return {key: t for key, t in model.named_parameters() if "lora_" in key}


# ---- adapters of the dense model ----


@pytest.mark.parametrize("name", MODELS)
def test_adapters_of_the_dense_model(name: str, mixture: Callable[[str], Mixture], tmp_path: Path) -> None:
    """They load with their names and shapes, and give its logits and gradients. Saved again they have equal bytes."""
    own = mixture(name)
    dense = adapted(copy.deepcopy(own.dense), name)
    dense.save_pretrained(tmp_path / "adapter")
    base = loaded(own, tmp_path / "base")
    plain = logits(base)
    model = PeftModel.from_pretrained(base, tmp_path / "adapter", is_trainable=True)
    wrapped = [module for module in model.modules() if isinstance(module, nvfp4.peft.ParamWrapper)]
    assert len(wrapped) == 2 * len(experts_of(model)) == 2 * own.mixtures
    assert {key: t.shape for key, t in factors(model).items()} == {key: t.shape for key, t in factors(dense).items()}
    assert not [t for experts in experts_of(model) for t in experts.parameters()]
    assert error(logits(dense), plain) > 1000 * BOUND  # or the comparison would tell nothing
    assert error(logits(model), logits(dense)) < BOUND
    for one in (model, dense):
        one.zero_grad()
        for key, t in one.named_parameters():
            t.requires_grad_("lora_" in key or "router" in key or "gate.weight" in key or "embed_tokens" in key)
        one(IDS).logits.square().mean().backward()
    wanted = {key: t.grad for key, t in dense.named_parameters() if t.requires_grad}
    given = {key: t.grad for key, t in model.named_parameters() if t.requires_grad}
    assert given.keys() == wanted.keys() and len(given) >= 4 * own.mixtures + 2
    for key, t in wanted.items():
        assert t.any() and error(given[key], t) < 100 * BOUND, key
    model.save_pretrained(tmp_path / "again")
    files = [load_file(tmp_path / folder / "adapter_model.safetensors") for folder in ("adapter", "again")]
    assert files[0].keys() == files[1].keys() and all(torch.equal(t, files[1][key]) for key, t in files[0].items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_new_adapters_change_no_bit(
    name: str, dtype: torch.dtype, mixture: Callable[[str], Mixture], tmp_path: Path
) -> None:
    model = loaded(mixture(name), tmp_path, dtype)
    before = logits(model)
    model = get_peft_model(model, config(name))
    assert torch.equal(logits(model), before)
    trainable = {key for key, t in model.named_parameters() if t.requires_grad}
    assert trainable and all("lora_" in key for key in trainable)
    assert {t.dtype for t in factors(model).values()} == {torch.float32}


def test_in_bf16(mixture: Callable[[str], Mixture], tmp_path: Path) -> None:
    """PEFT rounds the sum of weight and adapter to bf16, ours the results of both: some 20 roundings of 2^-9 a
    block."""
    own = mixture("mixtral")
    outputs = []
    for model in (loaded(own, tmp_path, torch.bfloat16), own.reference(torch.bfloat16)):
        outputs.append(logits(adapted(model, "mixtral")))
    plain = logits(loaded(own, tmp_path, torch.bfloat16))
    assert error(outputs[0], outputs[1]) < 0.1 < error(plain, outputs[1])


@pytest.mark.parametrize("parameter", ["experts.gate_up_proj", "experts.down_proj"])
def test_one_parameter(parameter: str, mixture: Callable[[str], Mixture], tmp_path: Path) -> None:
    own = mixture("gpt-oss")
    options = {"target_parameters": [parameter], "use_rslora": True, "rank_pattern": {parameter: 3}}
    model, dense = (adapted(m, "gpt-oss", **options) for m in (loaded(own, tmp_path), copy.deepcopy(own.dense)))
    assert error(logits(model), logits(dense)) < BOUND


def test_all_linear(mixture: Callable[[str], Mixture], tmp_path: Path) -> None:
    """PEFT 0.21 turns the targets of a mixture into parameters, if transformers has the experts as such."""
    own = mixture("qwen3-moe")
    options = {"target_modules": "all-linear", "target_parameters": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, dense = (adapted(m, "qwen3-moe", **options) for m in (loaded(own, tmp_path), copy.deepcopy(own.dense)))
    assert factors(model).keys() == factors(dense).keys()
    assert error(logits(model), logits(dense)) < BOUND


def test_several_adapters(mixture: Callable[[str], Mixture], tmp_path: Path) -> None:
    own = mixture("qwen3-moe")
    model, dense = (adapted(m, "qwen3-moe") for m in (loaded(own, tmp_path), copy.deepcopy(own.dense)))
    first = logits(model)
    try:
        dense.add_adapter("second", config("qwen3-moe", r=8))
    except ValueError as error_of_peft:  # PEFT 0.18
        with pytest.raises(ValueError, match="only one LoRA adapter") as raised:
            model.add_adapter("second", config("qwen3-moe", r=8))
        assert str(raised.value) == str(error_of_peft)
        return
    model.add_adapter("second", config("qwen3-moe", r=8))
    for key, t in factors(model).items():
        if ".second." in key:
            t.data.normal_(std=0.1)
            factors(dense)[key].data.copy_(t)
    for names in (["second"], ["default", "second"]):
        for one in (model, dense):
            one.base_model.set_adapter(names)
        assert error(logits(model), logits(dense)) < BOUND and error(logits(model), first) > 1000 * BOUND
    model.set_adapter("default")
    assert torch.equal(logits(model), first)


# ---- training ----


@pytest.mark.parametrize("place", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["qwen3-moe", "gpt-oss", "nemotron-h"])
def test_the_trainer_of_transformers_lowers_the_loss(
    name: str, dtype: torch.dtype, place: str, mixture: Callable[[str], Mixture], tmp_path: Path
) -> None:
    """20 steps of the adapters of experts alone; the packed bytes stay, and what was trained loads again."""
    pytest.importorskip("accelerate", reason="Trainer needs it")
    if place == "cuda" and not gpu():
        pytest.skip(NO_GPU)
    own = mixture(name)
    base = loaded(own, tmp_path / "base", dtype)
    before = {key: t.clone() for key, t in base.state_dict().items() if ".experts." in key}
    assert before
    model = get_peft_model(base, config(name, target_modules=[]))
    arguments = transformers.TrainingArguments(
        str(tmp_path / "run"),
        max_steps=20,
        learning_rate=1e-2,
        logging_steps=1,
        per_device_train_batch_size=2,
        save_strategy="no",
        report_to=[],
        use_cpu=place == "cpu",
        disable_tqdm=True,
        bf16=False,
    )
    rows = [{"input_ids": row, "labels": row} for row in IDS] * 20
    trainer = transformers.Trainer(model, arguments, train_dataset=rows)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 20 and losses[-1] < losses[0] - 0.1
    after = {key.replace("base_layer.", ""): t for key, t in model.state_dict().items()}
    for key, t in before.items():
        assert torch.equal(after[f"base_model.model.{key}"].cpu().view(torch.uint8), t.view(torch.uint8)), key
    model.save_pretrained(tmp_path / "adapter")
    again = PeftModel.from_pretrained(loaded(own, tmp_path / "base", dtype), tmp_path / "adapter").to(place)
    assert model.device.type == again.device.type == place
    assert torch.equal(logits(again), logits(model))


def test_gradient_checkpointing(mixture: Callable[[str], Mixture], tmp_path: Path) -> None:
    gradients = []
    model = adapted(loaded(mixture("qwen3-moe"), tmp_path), "qwen3-moe")
    for options in (None, {"use_reentrant": False}, {"use_reentrant": True}):
        if options is not None:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
            model.enable_input_require_grads()
        model.train().zero_grad()
        model(IDS, labels=IDS).loss.backward()
        gradients.append([t.grad.clone() for t in factors(model).values()])
    for own in gradients[1:]:
        assert all(torch.equal(a, b) and a.any() for a, b in zip(own, gradients[0]))


def test_a_call_keeps_its_adapters_while_another_thread_calls(
    mixture: Callable[[str], Mixture], tmp_path: Path
) -> None:
    """The other call runs as a whole between the adapters and the experts of the first. Without adapters the other has
    none."""
    model = adapted(loaded(mixture("qwen3-moe"), tmp_path), "qwen3-moe")
    wanted, others = logits(model), []
    with model.disable_adapter():
        plain = logits(model)

    def meanwhile(experts: Experts, *_: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for call in (lambda: logits(model), lambda: base(experts)):
            thread = threading.Thread(target=lambda call=call: others.append(call()))
            thread.start()
            thread.join()

    def base(experts: Experts) -> Tensor:
        """The module itself, beside the adapters, for some rows."""
        rows = torch.randn(3, experts.hidden_size, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            return experts(rows, torch.arange(3)[:, None], torch.ones(3, 1))

    first = experts_of(model)[0]
    alone = base(first)
    handle = first.register_forward_pre_hook(meanwhile)
    assert torch.equal(logits(model), wanted) and not torch.equal(wanted, plain)
    handle.remove()
    assert torch.equal(others[0], wanted) and torch.equal(others[1], alone)


def test_quantized_models_train_too(mixture: Callable[[str], Mixture]) -> None:
    """After quantize_model, without a checkpoint."""
    model = copy.deepcopy(mixture("llama-4").dense)
    nvfp4.quantize_model(model, activations=None, ignore=("lm_head", "*router*"))
    dense = copy.deepcopy(mixture("llama-4").dense)
    model, dense = adapted(model, "llama-4"), adapted(dense, "llama-4")
    model(IDS, labels=IDS).loss.backward()
    assert {k: t.shape for k, t in factors(model).items()} == {k: t.shape for k, t in factors(dense).items()}
    assert all(t.grad is not None and t.grad.any() for t in factors(model).values())


def test_the_example_of_the_page(mixture: Callable[[str], Mixture], tmp_path: Path) -> None:
    page = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
    example = page.split("## Adapters of experts")[1].split("```python\n")[1].split("```")[0]
    folder = mixture("qwen3-moe").write(tmp_path / "base", "modelopt")
    scope: dict[str, Any] = {"mixture_folder": folder, "adapter": tmp_path / "adapter", "ids": IDS}
    exec(example, scope)
    assert len(factors(scope["model"])) == 12
    assert all(t.grad is not None for t in factors(scope["model"]).values())
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()


# ---- without an adapter, and what cannot be ----


def test_disabled_and_unloaded(mixture: Callable[[str], Mixture], tmp_path: Path) -> None:
    base = loaded(mixture("qwen3-moe"), tmp_path)
    expected = logits(base)
    model = adapted(base, "qwen3-moe")
    with model.disable_adapter():
        assert torch.equal(logits(model), expected)
    assert not torch.equal(logits(model), expected)
    unloaded = model.unload()
    assert torch.equal(logits(unloaded), expected) and type(unloaded.model.layers[0].mlp.experts) is Experts


def test_merging_is_an_error(mixture: Callable[[str], Mixture], tmp_path: Path) -> None:
    """Which changes nothing, of other layers too; adapters of other layers alone are merged."""
    own = mixture("qwen3-moe")
    model = adapted(loaded(own, tmp_path), "qwen3-moe")
    expected = logits(model)
    calls = (
        model.merge_adapter,
        model.merge_and_unload,
        lambda: model.merge_and_unload(adapter_names=["default"]),
        lambda: model.base_model.model.model.layers[0].mlp.experts.merge(),
    )
    for call in calls:
        with pytest.raises(nvfp4.Error, match="^merge: .*down_proj.* is of nvfp4.Experts.*into the dense model"):
            call()
        assert torch.equal(logits(model), expected)
    layer = model.base_model.model.model.layers[0].self_attn.q_proj
    assert isinstance(layer, nvfp4.peft.LoraLinear) and isinstance(layer.base_layer, nvfp4.Linear)
    other = adapted(loaded(own, tmp_path), "qwen3-moe", target_parameters=None)
    expected = logits(other)
    merged = other.merge_and_unload()
    assert type(merged.model.layers[0].self_attn.q_proj) is nn.Linear
    assert error(logits(merged), expected) < BOUND


def test_what_is_rejected(mixture: Callable[[str], Mixture], tmp_path: Path) -> None:
    own = mixture("qwen3-moe")
    cases: dict[str, dict[str, Any]] = {
        "^use_dora: is True, which needs the dense weights of experts; must be False": {"use_dora": True},
        "^init_lora_weights: is 'pissa', which needs a dense weight; must be one of": {"init_lora_weights": "pissa"},
        "^init_lora_weights: is 'orthogonal'": {"init_lora_weights": "orthogonal"},
        "^target_modules: has a module of experts, an nvfp4.Experts; must have target_parameters": {
            "target_modules": ["experts"],
            "target_parameters": None,
        },
    }
    for message, options in cases.items():
        model = loaded(own, tmp_path)
        with pytest.raises(nvfp4.Error, match=message):
            get_peft_model(model, config("qwen3-moe", **{"target_modules": []} | options))
        assert not [t for experts in experts_of(model) for t in experts.parameters()]
    with pytest.raises(ValueError, match="does not work with lora_dropout"):
        get_peft_model(loaded(own, tmp_path), config("qwen3-moe", target_modules=[], lora_dropout=0.1))
