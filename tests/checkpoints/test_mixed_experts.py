"""NVFP4 experts beside other layers: FP8 attention in a checkpoint of mixed precision, and adapters."""

from __future__ import annotations

import copy
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")
pytest.importorskip("safetensors.torch", reason="comes with transformers")
from fp8_models import CT, KINDS, OPT, check_layers, eights, logits, modes  # noqa: E402
from mixed_precision_models import Mixed, WithFp8Experts, with_plain_attention  # noqa: E402
from moe_models import IDS, MODELS, Mixture, content  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

import nvfp4  # noqa: E402
import nvfp4.transformers  # noqa: E402
from nvfp4.checkpoints import modelopt  # noqa: E402
from nvfp4.layers.experts.module import Experts  # noqa: E402
from nvfp4.layers.fp8 import FP8  # noqa: E402

BOUND = 1e-5  # fp32: each of some 20 products sums up to 96 terms
FOUR = {"num_bits": 4, "type": "float", "group_size": 16}
Q = "model.layers.0.self_attn.q_proj"


def loaded(how: str, base: Callable[[], Any], folder: Path, **more: Any) -> Any:
    """The model in fp32, without the warning of the KV cache."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*scales of the KV cache")
        if how == "transformers":
            return nvfp4.transformers.load(folder, dtype=torch.float32, **more)
        model = base()
        nvfp4.load(folder, model, **more)
        return model


def error(y: Tensor, wanted: Tensor) -> float:
    return float((y - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("how", ["load", "transformers"])
@pytest.mark.parametrize("mode", ["W4A16", "W4A4"])
@pytest.mark.parametrize("kind", ["modelopt FP8", "modelopt per token", "ct static", "ct weights alone"])
@pytest.mark.parametrize("name", ["qwen3-moe", "gpt-oss"])
def test_loads_runs_and_saves(name: str, kind: str, mode: str, how: str, tmp_path: Path) -> None:
    """With 16-bit activations the logits of a plain loop. Then, with FP8 activations, those of plain attention around
    the same experts, to the bit. Saved again, every tensor has the same bytes."""
    own = Mixed(name, mode, tmp_path, kind)
    folder = own.write(tmp_path / "read", own.kind.format)
    alone = loaded(how, own.from_config, folder, activations=None)
    assert sum(isinstance(module, Experts) for module in alone.modules()) == own.mixtures == 2
    assert eights(alone).keys() == own.eight.keys()
    assert error(logits(alone), logits(own.plain(None))) < BOUND

    model = loaded(how, own.from_config, folder)
    wanted = logits(own.plain(own.kind.activations, model))
    assert torch.equal(logits(model), wanted)
    assert (own.kind.activations is None and mode == "W4A16") == (error(wanted, logits(alone)) < BOUND)
    check_layers(model)
    assert {module.mode for module in model.modules() if isinstance(module, Experts)} == {mode}

    report = nvfp4.save(model, tmp_path / "by save", own.kind.format)
    assert {*report.fp8} == {*own.eight} and not report.skipped
    model.save_pretrained(tmp_path / "by transformers")
    for saved in (tmp_path / "by save", tmp_path / "by transformers"):
        assert content(saved) == content(folder)
        described = json.loads((saved / "config.json").read_text())["quantization_config"]
        assert own.kind.format == CT or described["quant_algo"] == "MIXED_PRECISION"
        for again in ("load", "transformers"):
            assert torch.equal(logits(loaded(again, own.from_config, saved)), wanted)


def test_experts_of_the_reports(tmp_path: Path) -> None:
    own = Mixed("qwen3-moe", "W4A16", tmp_path, "modelopt FP8")
    model = own.from_config()
    checkpoint = nvfp4.load(own.write(tmp_path / "read", OPT), model)
    assert checkpoint.fp8.keys() == own.eight.keys() and len(checkpoint.mixtures) == 2
    assert "8 FP8 layers" in repr(checkpoint) and "2 modules of experts" in repr(checkpoint)
    packed = sum(m.nbytes for m in model.modules() if isinstance(m, Experts))
    assert checkpoint.packed_bytes == packed and not [name for name in checkpoint.dense if "experts" in name]


@pytest.mark.parametrize("how", ["load", "transformers"])
@pytest.mark.parametrize(
    ("name", "kind", "mode"),
    [
        *(("qwen3-moe", kind, "W4A16") for kind in KINDS),
        ("mixtral", "modelopt FP8", "W4A4"),
        ("mixtral", "ct MXFP8 weights alone", "W4A16"),
        ("nemotron-h", "modelopt MXFP8", "W4A16"),
        ("nemotron-h", "ct static", "W4A4"),
        ("deepseek-v3", "modelopt blocks", "W4A16"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*are MXFP8 with MXFP8 inputs")
def test_fp8_experts(name: str, kind: str, mode: str, how: str, tmp_path: Path) -> None:
    """With 16-bit activations the logits of a plain loop over dense experts, then those of a loop over layers that
    quantize their inputs. Saved again, every tensor has the same bytes."""
    own = WithFp8Experts(name, mode, tmp_path, kind)
    folder = own.write(tmp_path / "read", own.kind.format)
    alone = loaded(how, own.from_config, folder, activations=None)
    (eight,) = [module for module in alone.modules() if isinstance(module, nvfp4.Fp8Experts)]
    assert eight.layers.keys() == {name.partition(".experts.")[2] for name in own.eight}
    assert sum(isinstance(module, Experts) for module in alone.modules()) == own.mixtures - 1
    assert error(logits(alone), logits(own.plain(None))) < BOUND

    model = loaded(how, own.from_config, folder)
    wanted = logits(model)
    assert error(wanted, logits(own.plain(own.kind.activations, model))) < 1e-6
    assert (own.kind.activations is None and mode == "W4A16") == (error(wanted, logits(alone)) < BOUND)

    saved = [tmp_path / "by transformers"]
    model.save_pretrained(saved[0])
    if name in ("qwen3-moe", "deepseek-v3"):  # the other models have other names than their files
        saved.append(tmp_path / "by save")
        assert {*nvfp4.save(model, saved[1], own.kind.format).fp8} == {*own.eight}
    for path in saved:
        assert content(path) == content(folder) and modes(path) == modes(folder)
        for again in ("load", "transformers"):
            assert torch.equal(logits(loaded(again, own.from_config, path)), wanted)


def test_fp8_experts_of_the_reports(tmp_path: Path) -> None:
    own = WithFp8Experts("qwen3-moe", "W4A16", tmp_path, "ct blocks")
    model = own.from_config()
    folder = own.write(tmp_path / "read", CT)
    checkpoint = nvfp4.load(folder, model)
    assert not checkpoint.fp8 and len(checkpoint.mixtures) == 2 and not checkpoint.skipped
    stored = sum(
        t.nbytes + s.nbytes for t, s in ((own["weight"], own["weight_scale"].float()) for own in own.eight.values())
    )
    assert checkpoint.fp8_bytes == stored
    assert not [name for name in checkpoint.dense if "experts" in name]
    assert {*nvfp4.load(folder).fp8} == {*own.eight}  # without a model they are layers
    with pytest.raises(nvfp4.Error, match=r"experts\.0\.\w+\.weight: is FP8, which torch multiplies"):
        nvfp4.load(folder, own.from_config(), batch_invariant=True)
    with pytest.raises(nvfp4.Error, match="is an Fp8Linear, which dequantize_model cannot make dense"):
        nvfp4.dequantize_model(model)


def test_fp8_experts_that_do_not_fit(tmp_path: Path) -> None:
    """One is missing, of another size, NVFP4 or has a bias: an error that names it, and the model is unchanged."""
    own = WithFp8Experts("qwen3-moe", "W4A16", tmp_path, "modelopt FP8")
    first = "model.layers.0.mlp.experts"
    base = own.stored(OPT)
    entries = own.quantization(OPT)["quantized_layers"]
    name = f"{first}.3.up_proj"
    four = modelopt.write(nvfp4.Linear.from_linear(torch.nn.Linear(64, 64, bias=False), None).packed())
    without = {key: t for key, t in base.items() if not key.startswith(f"{name}.")}
    small = {f"{name}.weight": torch.zeros(64, 32).to(FP8)}
    cases: dict[str, tuple[dict[str, Tensor], dict[str, Any]]] = {
        f"{name}: is missing; the model has 6 experts": (without, {}),
        f"{first}: layers: 3.up_proj is 64 x 32 \\(N x K\\); must be 64 x 64": (base | small, {}),
        f"{first}: has experts of (FP8|modelopt) and of (FP8|modelopt); must have one": (
            without | {f"{name}.{key}": t for key, t in four.items()},
            {name: {"quant_algo": "W4A16_NVFP4"}},
        ),
        f"{name}.bias: is in the checkpoint but not in the model": (base | {f"{name}.bias": torch.zeros(64)}, {}),
        f"{first}.down_proj: is one FP8 layer; must be one for each of the experts {first}": (
            base
            | {
                f"{first}.down_proj.weight": base[f"{name}.weight"].clone(),
                f"{first}.down_proj.weight_scale": torch.ones(()),
            },
            {f"{first}.down_proj": {"quant_algo": "FP8_PB_WO"}},
        ),
    }
    for i, (message, (tensors, changes)) in enumerate(cases.items()):
        folder = own.write(tmp_path / str(i), OPT, tensors, quantized_layers=entries | changes)
        model = own.from_config()
        before = {key: t.clone() for key, t in model.state_dict().items()}
        with pytest.raises(nvfp4.Error, match=f"^{message}$"):
            nvfp4.load(folder, model)
        assert all(torch.equal(t, before[key]) for key, t in model.state_dict().items())
        with pytest.raises(nvfp4.Error, match=f"^{message}$"):
            loaded("transformers", None, folder)


@pytest.mark.parametrize("eight_bits", [False, True])
def test_a_layer_of_gate_and_up_for_each_expert_of_gpt_oss(eight_bits: bool, tmp_path: Path) -> None:
    """Their rows alternate, as in the model. They are saved as they were read, and so are stacks that are loaded over
    them."""
    own = Mixture("gpt-oss", "W4A16", tmp_path)
    tensors = {key: t for key, t in own.stored(OPT).items() if ".experts." not in key}
    dense, layers = dict(own.tensors), dict.fromkeys(own.layers, {"quant_algo": "W4A16_NVFP4"})
    for name, stack in own.stacks.items():
        container, _, local = name.rpartition(".")
        bias, values = own.tensors[f"{name}_bias"], []
        for e, packed in enumerate(stack):
            layer = f"{container}.{e}.{local}"
            if eight_bits:
                weight = own.values(packed)
                eight = {"weight": (weight * 100).to(FP8), "weight_scale": torch.full((1, 1, 1, 1), 0.01)}
                values.append((eight["weight"].float() * 0.01).T)
            else:
                eight = modelopt.write(packed)
                values.append(own.values(packed).T)
            layers[layer] = {"quant_algo": "FP8_PB_WO" if eight_bits else "W4A16_NVFP4"}
            tensors |= {f"{layer}.{key}": t.clone() for key, t in {**eight, "bias": bias[e]}.items()}
        dense[name] = torch.stack(values)
    own.dense.save_pretrained(tmp_path / "dense values")
    save_file({key: t.contiguous() for key, t in dense.items()}, tmp_path / "dense values" / "model.safetensors")
    wanted = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "dense values", dtype=torch.float32).eval())
    config = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    folder = own.write(tmp_path / "read", OPT, tensors, **config)
    for how in ("load", "transformers"):
        model = loaded(how, own.from_config, folder)
        assert error(logits(model), wanted) < BOUND
        model.save_pretrained(tmp_path / how)
        assert content(tmp_path / how) == content(folder)
        assert torch.equal(logits(loaded(how, own.from_config, tmp_path / how)), logits(model))
    stacks = own.write(tmp_path / "stacks", OPT)
    by_load = own.from_config()
    nvfp4.load(folder, by_load)
    nvfp4.load(stacks, by_load)
    assert torch.equal(logits(by_load), logits(loaded("load", own.from_config, stacks)))


def test_adapters_beside_fp8_experts(tmp_path: Path) -> None:
    """They take none, which a warning says; as named modules they are an error before anything changes."""
    peft = pytest.importorskip("peft")
    own = WithFp8Experts("qwen3-moe", "W4A16", tmp_path, "ct weights alone")
    folder = own.write(tmp_path / "read", CT)
    model = loaded("transformers", None, folder)
    parameters = ["experts.gate_up_proj", "experts.down_proj"]
    with pytest.warns(
        UserWarning, match="^target_parameters: FP8 experts take no adapter: model.layers.0.mlp.experts$"
    ):
        adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"], target_parameters=parameters))
    adapted(input_ids=IDS, labels=IDS).loss.backward()
    assert all(p.grad is not None for p in adapted.parameters() if p.requires_grad)
    model = loaded("transformers", None, folder)
    before = {name: type(module) for name, module in model.named_modules()}
    with pytest.raises(nvfp4.Error, match=r"^target_modules: has model.layers.0.mlp.experts.0.gate_proj, an FP8 layer"):
        peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj", "gate_proj"]))
    assert {name: type(module) for name, module in model.named_modules()} == before


def test_hooks_of_accelerate_on_experts(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    own = WithFp8Experts("qwen3-moe", "W4A16", tmp_path, "ct weights alone")
    folder = own.write(tmp_path / "read", CT)
    model = own.from_config()
    wanted = logits(loaded("load", own.from_config, folder))
    places = {name: "cpu" for name, _ in model.named_modules() if name.endswith("experts")}
    accelerate.dispatch_model(model, {"": "cpu", **places}, force_hooks=True)
    nvfp4.load(folder, model)
    assert torch.equal(logits(model), wanted)
    assert all(hasattr(model.get_submodule(name), "_hf_hook") for name in places)


def test_experts_cannot_be_made_dense(tmp_path: Path) -> None:
    own = Mixture("qwen3-moe", "W4A16", tmp_path)
    model = loaded("load", own.from_config, own.write(tmp_path / "read", OPT))
    wanted = logits(model)
    with pytest.raises(nvfp4.Error, match=r"^model\.layers\.0\.mlp\.experts: is an Experts, which dequantize_model "):
        nvfp4.dequantize_model(model)
    assert torch.equal(logits(model), wanted)


@pytest.mark.parametrize("eight_bits", ["attention", "attention and the first experts"])
def test_a_checkpoint_that_modelopt_exports(eight_bits: str, tmp_path: Path) -> None:
    mtq = pytest.importorskip("modelopt.torch.quantization")
    from modelopt.torch.export import export_hf_checkpoint

    base = AutoModelForCausalLM.from_config(MODELS["qwen3-moe"](), dtype=torch.bfloat16).eval()
    base.config.architectures = [type(base).__name__]
    four = {"num_bits": (2, 1), "block_sizes": {-1: 16, "type": "dynamic", "scale_bits": (4, 3)}}
    eight = {"num_bits": (4, 3), "axis": None}
    entries: list[dict[str, Any]] = [
        {"quantizer_name": "*", "enable": False},
        {"quantizer_name": "*mlp.experts*weight_quantizer*", "cfg": four},
        {"quantizer_name": "*mlp.experts*input_quantizer*", "cfg": four},
        {"quantizer_name": "*self_attn*proj*weight_quantizer", "cfg": eight},
        {"quantizer_name": "*self_attn*proj*input_quantizer", "cfg": eight},
    ]
    if eight_bits != "attention":
        entries += [
            {"quantizer_name": f"*layers.0.mlp.experts*{x}_quantizer*", "cfg": eight} for x in ("weight", "input")
        ]
    with torch.no_grad():
        settings = {"quant_cfg": entries, "algorithm": "max"}
        calibrated = mtq.quantize(copy.deepcopy(base), settings, logits)
        export_hf_checkpoint(calibrated, export_dir=tmp_path / "first")
    tensors = load_file(tmp_path / "first" / "model.safetensors")
    found: dict[str, dict[str, Tensor]] = {}
    for name, t in tensors.items():
        module, _, local = name.rpartition(".")
        found.setdefault(module, {})[local] = t
    in_fp8 = {name: own for name, own in found.items() if own.get("weight", torch.empty(0)).dtype == FP8}
    dense = base.float()
    filled = 0
    with torch.no_grad():
        for name, own in found.items():
            if match := re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)_proj", name):
                module, expert = dense.get_submodule(match[1]), int(match[2])
                gate, up = module.gate_up_proj[expert].chunk(2)
                place = {"gate": gate, "up": up, "down": module.down_proj[expert]}[match[3]]
                if name in in_fp8:
                    place.copy_(own["weight"].float() * own["weight_scale"])
                    del in_fp8[name]
                else:
                    place.copy_(Mixture.values(modelopt.read(own)))
                filled += 1
    assert len(in_fp8) == 8 and filled == 2 * 6 * 3

    alone = loaded("transformers", None, tmp_path / "first", activations=None)
    assert error(logits(alone), logits(with_plain_attention(dense, in_fp8, None, None))) < BOUND
    experts = loaded("transformers", None, tmp_path / "first")
    assert {module.mode for module in experts.modules() if isinstance(module, Experts)} == {"W4A4"}
    wanted = logits(with_plain_attention(dense, in_fp8, "static", experts))
    for how in ("load", "transformers"):
        model = loaded(how, lambda: copy.deepcopy(dense), tmp_path / "first")
        assert torch.equal(logits(model), wanted)
        assert sum(isinstance(m, nvfp4.Fp8Experts) for m in model.modules()) == (eight_bits != "attention")
        if eight_bits == "attention":
            check_layers(model)
        model.save_pretrained(tmp_path / how)
        first, second = content(tmp_path / "first"), content(tmp_path / how)
        kept = [name for name in first if first[name][0] != torch.bfloat16]  # embeddings and norms are fp32 now
        assert first.keys() == second.keys() and all(first[name] == second[name] for name in kept)


def test_adapters_beside_experts(tmp_path: Path) -> None:
    """Once they are merged into all other layers, the experts alone are NVFP4, and are saved as such."""
    peft = pytest.importorskip("peft")
    own = Mixture("qwen3-moe", "W4A16", tmp_path)
    model = loaded("transformers", None, own.write(tmp_path / "read", OPT))
    targets = {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"], "target_parameters": ["gate.weight"]}
    settings = peft.LoraConfig(**targets, task_type="CAUSAL_LM", init_lora_weights=False)
    adapted = peft.get_peft_model(model, settings)
    adapted(input_ids=IDS, labels=IDS).loss.backward()
    adapters = [p for p in adapted.parameters() if p.requires_grad]
    assert len(adapters) == 2 * 10  # of attention and routers
    assert all(p.grad is not None and p.grad.any() for p in adapters)
    before = logits(adapted)
    merged = adapted.merge_and_unload()
    after = logits(merged)
    assert not [m for m in merged.modules() if isinstance(m, nvfp4.Linear)] and error(after, before) < BOUND
    merged.save_pretrained(tmp_path / "saved")
    assert torch.equal(logits(loaded("transformers", None, tmp_path / "saved")), after)
    experts = {name: t for name, t in content(tmp_path / "read").items() if ".experts." in name}
    assert experts.items() <= content(tmp_path / "saved").items() and len(experts) == 2 * 6 * 3 * 3
