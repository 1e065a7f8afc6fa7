"""benchmarks/accuracy.py: what it computes, a small model from quantizing to its row, and the recorded rows."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import accuracy  # benchmarks/accuracy.py
import pytest
import tiny_models
import torch

import nvfp4

TOKENS = {"compound": 48, "licenses": 20, accuracy.SAMPLES: 48}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `prepare` makes, of a small random model and random tokens."""
    transformers = pytest.importorskip("transformers")
    work = tmp_path_factory.mktemp("work")
    sizes = tiny_models.SIZES | {"bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": True}
    config = transformers.LlamaConfig(**sizes, initializer_range=0.3)
    transformers.LlamaForCausalLM(config).save_pretrained(work / "dense")
    tokens = {name: torch.randint(3, config.vocab_size, (count,)).tolist() for name, count in TOKENS.items()}
    (work / "tokens.json").write_text(json.dumps(tokens))
    return work


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "WINDOW", 20)


def figures(row: dict[str, str]) -> list[float]:
    return [float(row[column]) for column in accuracy.COLUMNS if row[column]]


def test_perplexity_and_divergence_are_those_of_the_definition() -> None:
    """A uniform reference of 4 tokens, and a model that gives them 1/2, 1/4, 1/8 and 1/8, whatever came before."""
    ids, p = torch.tensor([3, 0, 1, 2, 3, 0]), torch.tensor([1 / 2, 1 / 4, 1 / 8, 1 / 8])
    shift = torch.randn(())  # logits are logarithms of probabilities up to a constant
    reference = accuracy.Reference({"one": list(ids.split(4))}, lambda ids: torch.zeros(len(ids) - 1, 4))
    perplexity, divergence = reference.compare(lambda ids: (p.log() + shift).expand(len(ids) - 1, 4))
    assert perplexity == pytest.approx(2 ** ((1 + 2 + 3 + 1) / 4))  # of tokens 0, 1, 2 and 0: a window's first has none
    assert divergence == pytest.approx((1 + 2 + 3 + 3) / 4 * math.log(2) - math.log(4), abs=1e-6)


def test_a_checkpoint_has_the_losses_of_its_model(work: Path) -> None:
    """W4A4 takes the samples' largest values, whether or not the checkpoint has them as input scales."""
    accuracy.quantize(work, "nvfp4-round")
    model = accuracy.dense_model(work)
    nvfp4.quantize_model(model, calibrate=lambda model: accuracy.run_samples(work, model))
    nvfp4.save(model, work / "scaled", "compressed-tensors")
    dense, row, scaled = accuracy.evaluate(work, [work / "nvfp4-round", work / "scaled"])
    assert dense["weights"] == "fp32" and dense["W4A16 compound KL"] == "0.0000" and dense["W4A4 compound KL"] == ""
    assert row["weights"] == "nvfp4-round" and row["NVFP4 layers"] == "14" and float(row["processor s"]) >= 0
    assert row["packages"].startswith(f"nvfp4 {nvfp4.__version__}, transformers ")
    assert figures(row) == pytest.approx(figures(scaled), rel=1e-3, abs=2e-4), "scales differ in their last bit"
    assert scaled["packages"] == scaled["processor s"] == ""

    model = accuracy.dense_model(work)
    texts = {text: accuracy.windows(work, text) for text in accuracy.TEXTS}
    with torch.inference_mode():
        reference = accuracy.Reference(texts, lambda ids: accuracy.next_logits(model, ids))
        amax = accuracy.input_amax(work, model)
        nvfp4.quantize_model(model, activations=None)
        expected = [*reference.compare(lambda ids: accuracy.next_logits(model, ids))]
    assert figures(row)[:4] == pytest.approx(expected, abs=6e-3) and min(figures(row)[1::2]) > 0
    assert len(amax) == 14 + 1, "and the head's"


def test_input_scales_are_those_of_the_file_where_it_has_them(work: Path) -> None:
    model = accuracy.dense_model(work)
    name, factor = "model.layers.1.mlp.up_proj", 2.0 ** torch.randint(-4, 5, ()).item()
    nvfp4.quantize_model(model, calibrate=lambda model: accuracy.run_samples(work, model))
    with torch.no_grad():
        model.get_submodule(name).input_global_scale *= factor
    stored = model.get_submodule(name).input_global_scale * 2688 / 1536
    nvfp4.save(model, work / "other")
    model, layers = accuracy.loaded(accuracy.dense_model(work), work / "other", "nvfp4", {})
    layer = model.get_submodule(name)
    assert layers == 14 and layer.block_scale == "four_over_six"
    assert layer.input_global_scale == pytest.approx(stored.item(), rel=1e-6)
    model, layers = accuracy.loaded(accuracy.dense_model(work), work / "other", None, {})
    assert layers == 14 and model.get_submodule(name).input_global_scale is None


def test_rows_of_one_name_are_replaced(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.csv"
    for name, value in (("one", 1.0), ("two", 2.0), ("one", 3.0)):
        accuracy.store(file, accuracy.row(name, {}, 14, [value] * len(accuracy.COLUMNS)))
    assert [(row["weights"], row["W4A4 licenses KL"]) for row in accuracy.read(file)] == [
        ("one", "3.0000"),
        ("two", "2.0000"),
    ]
    monkeypatch.setattr(sys, "argv", ["accuracy.py", "evaluate", str(work), "--csv", str(file)])
    accuracy.main()
    assert [row["weights"] for row in accuracy.read(file)] == ["one", "two", "fp32"]
    assert capsys.readouterr().out.startswith("fp32  ")
    lines = [*accuracy.table(accuracy.read(file))]
    assert "| one | 3.0000 / 3.0000 | 3.00 / 3.00 | 3.0000 / 3.0000 | 3.00 / 3.00 |  |" in lines


def test_recorded_rows_are_of_the_same_model_and_texts() -> None:
    rows = {row["weights"]: row for row in accuracy.read(accuracy.LOG)}
    dense = rows.pop("fp32")
    assert (dense["W4A16 compound perplexity"], dense["W4A16 licenses perplexity"]) == ("12.13", "17.36")
    assert rows.keys() <= accuracy.METHODS.keys() and {"nvfp4-round", "nvfp4-round-four_over_six"} <= rows.keys()
    for name, row in rows.items():
        assert row["NVFP4 layers"] == "210" and row["packages"], name
        assert all(float(row[column]) > float(dense[column]) for column in accuracy.COLUMNS[:4]), name
        for text in accuracy.TEXTS:
            assert float(row[f"W4A4 {text} KL"]) > float(row[f"W4A16 {text} KL"]), name
