"""The tables of modelled times of the sm120 kernels, which have run on no GPU: the page has what the model says, and
the model says what can be."""

from __future__ import annotations

import shutil

import pytest
import sm120_model

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")


def test_the_page_has_the_models_tables() -> None:
    text = sm120_model.PAGE.read_text(encoding="utf-8")
    shown = text.split(sm120_model.BEGIN)[1].split(sm120_model.END)[0]
    assert shown == sm120_model.tables(), "python benchmarks/sm120_model.py"
    section = text.split("## sm120, modelled")[1].split("\n## ")[0]
    assert "Nothing here was measured by this project" in section


def test_no_time_is_below_its_floor_or_behind_sm80() -> None:
    cases = [
        (i, m, n, k)
        for i in range(len(sm120_model.GPUS))
        for m in sm120_model.ROWS
        for n, k in ((8192, 8192), *sm120_model.SHAPES)
    ]
    for (i, m, n, k), times in zip(cases, sm120_model.modelled(cases)):
        assert sm120_model.floor_us(sm120_model.GPUS[i], m, n, k) < times.own < times.portable


def test_no_time_of_experts_is_below_its_floor_or_behind_sm80() -> None:
    for gpu, pairs in zip(sm120_model.GPUS, sm120_model.experts()):
        for tokens, (own, portable) in zip(sm120_model.ROWS, pairs, strict=True):
            assert sm120_model.experts_floor_us(gpu, tokens) < own < portable


def test_an_activation_in_the_products_launch_is_never_behind_one_of_its_own() -> None:
    for one, two in sum(sm120_model.gated(), []):
        assert one < two
