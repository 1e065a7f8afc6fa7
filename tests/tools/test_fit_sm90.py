"""benchmarks/fit_sm90.py and hopper_plans.py: what the model of sm90 makes of the stored times of each card, and the
files of constants."""

from __future__ import annotations

import shutil
import sys
import types
from pathlib import Path

import c_model
import fit_sm90
import hopper_plans
import pytest
import recorded
from paths import ROOT

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="gcc not installed")


@pytest.mark.parametrize("card", hopper_plans.CARDS)
def test_plans_of_measured_products(card: str) -> None:
    """In graphs, chosen plans take less than 1 % longer than the fastest measured ones on average, by kind of product,
    and nowhere more than 10 %. Few of them were not measured."""
    times, on = fit_sm90.times_of(card), hopper_plans.device_of(card)
    assert bytes(on) == bytes(c_model.device(card))
    for products in fit_sm90.kinds_of(times).values():
        found = hopper_plans.outcomes({product: times[product] for product in products}, c_model.sm90_on(on), on)
        assert sum(each.regret for each in found) / len(found) < 0.01
        assert not [each for each in found if each.regret > 0.1]
        assert sum(each.unmeasured is not None for each in found) < 0.02 * len(found)


def test_logged_regrets_are_those_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["fit_sm90.py", "--csv", str(tmp_path / "made.csv")])
    assert fit_sm90.main() == 0
    logged = recorded.table(ROOT / "benchmarks/log/sm90_regret.csv")
    assert logged == recorded.table(tmp_path / "made.csv"), "run fit_sm90.py --csv benchmarks/log/sm90_regret.csv"


@pytest.mark.parametrize(
    ("card", "says"),
    [
        ("h100", "measured on an H100"),
        ("h200", "measured on an H200"),
        ("gh200", "measured on an H200, the nearest card"),
        ("h20", "measured on an H200, the nearest card"),
    ],
)
def test_a_device_takes_the_nearest_card(card: str, says: str) -> None:
    on = c_model.device(card)
    constants = c_model.sm90_on(on)
    assert c_model.sm90_name(on) == says
    near = fit_sm90.read_constants(fit_sm90.path_of("h100" if card == "h100" else "h200"))
    ratio = on.memory_gb_s / (3352 if card == "h100" else 4814)
    assert constants.dram_tb_s == pytest.approx(near["dram_tb_s"] * ratio)
    assert constants.fixed_us == near["fixed_us"] and constants.l2_bytes == on.l2_bytes


def test_a_fit_finds_a_constant_again() -> None:
    """Times that a model gives, with another launch time: a fit comes close to it."""
    on = c_model.device("h200")
    true = c_model.sm90_on(on)
    times = {}
    for m, n, k in ((64, 4096, 7168), (128, 7168, 2048), (32, 7168, 16384)):
        product = hopper_plans.Product("gemm", "nvfp4", m, n, k)
        plans = {plan: c.modelled_us for plan, c in hopper_plans.ranked(product, true, on).items() if "gemm" in plan}
        times[product] = {plan: hopper_plans.Timed(None, us) for plan, us in [*plans.items()][:6]}
    wrong = true.copy(fixed_us=1.25 * true.fixed_us)
    products = fit_sm90.timed_plans(times, wrong, on, of_groups=False)
    fit_sm90.descend(wrong, on, products, ["fixed_us"])
    assert wrong.fixed_us == pytest.approx(true.fixed_us, rel=0.02)


@pytest.mark.parametrize("a", ["nvfp4", "bfloat16"])
def test_measured_calls(a: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls that are timed, of small sizes on a CPU: the product of a table's row, to the bit."""
    from nvfp4.bench import experts

    monkeypatch.setattr(hopper_plans, "raise_clock", lambda device: None)
    monkeypatch.setattr(hopper_plans, "shapes", lambda: iter([(3, 32, 64), (5, 32, 64), (2, 48, 32)]))
    monkeypatch.setattr(hopper_plans, "TOKENS", (1, 3))
    monkeypatch.setattr(experts, "MODELS", [None, experts.Model("small", 4, 2, 64, 32)])
    monkeypatch.setattr(experts, "Model", lambda *_: experts.MODELS[1])
    found = [*hopper_plans.gemms(a, "cpu"), *hopper_plans.groups(a, "cpu")]
    assert [(p.operation, p.m, p.n, p.k, p.l, p.groups) for p, _, _ in found[:5]] == [
        ("gemm", 3, 32, 64, 1, 0),
        ("gemm", 5, 32, 64, 1, 0),
        ("gemm", 2, 48, 32, 1, 0),
        ("gated_grouped_gemm", 2, 32, 64, 8, 4),
        ("grouped_gemm", 2, 64, 32, 4, 4),
    ]
    assert len(found) == 3 + 2 * 2 * 2
    for product, calls, plan in found:
        assert product.a == a and plan()["backend"] == "cpu"
        for call in calls:
            assert call().shape == (product.m, product.n)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("CONSTANT(fixed_us", "CONSTANT(gone_us"),
            "h200.def: lacks fixed_us; must have the constants of this ",
        ),
        (("CARD(", "CONSTANT(more_us, 1)\nCARD("), "h200.def: has, which model.h lacks: more_us; "),
    ],
    ids=["missing", "unknown"],
)
def test_constants_of_another_version_are_an_error(
    change: tuple[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "h200.def"
    path.write_text(fit_sm90.path_of("h200").read_text().replace(*change, 1))
    with pytest.raises(fit_sm90.FitError, match=message.replace("(", r"\(")):
        fit_sm90.read_constants(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fit"], "card: is missing; must be given with --measure and --fit"),
        (["h21", "--fit"], "card: is h21, of which there is no sm90_plans_h21.csv; measure it with --measure"),
        (
            ["h20", "--measure"],
            "card: is h20 but this GPU is an NVIDIA H200; must be a GPU with the word H20",
        ),
    ],
    ids=["no card", "no times", "another GPU"],
)
def test_bad_arguments(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cuda = types.SimpleNamespace(get_device_name=lambda: "NVIDIA H200")
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(sys, "argv", ["fit_sm90.py", *arguments])
    assert fit_sm90.main() == 2
    assert message in capsys.readouterr().err


def test_times_of_another_gpu_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = hopper_plans.path_of("h100").read_text().replace("H100", "L40S", 1)
    monkeypatch.setattr(hopper_plans, "RESULTS", tmp_path)
    hopper_plans.path_of("h100").write_text(text)
    with pytest.raises(
        fit_sm90.FitError, match="sm90_plans_h100.csv: is of an NVIDIA L40S 80GB HBM3; must be a GPU with the word H100"
    ):
        fit_sm90.times_of("h100")
