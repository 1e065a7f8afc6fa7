"""`nvfp4 bench --set linear` and `--set models`: the layers that are timed, the sums over a block, error messages."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import fake_gpu
import monotone  # benchmarks/monotone.py
import pytest
import torch

import nvfp4
from nvfp4.__main__ import main
from nvfp4.bench import baselines, layers, limits, report, shapes, timing
from nvfp4.bench.shapes import Shape

CPU = torch.device("cpu")


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "last_level_cache", lambda: 20000)
    monkeypatch.setattr(timing, "FLUSH_BYTES", 2**20)
    monkeypatch.setattr(timing, "PAUSE_S", 0)
    monkeypatch.setattr(limits, "LARGEST", 256)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> fake_gpu.Clock:
    clock = fake_gpu.Clock(noise=0.0)
    fake_gpu.install(monkeypatch, clock)
    return clock


@pytest.mark.usefixtures("small_cache")
@pytest.mark.parametrize("dtype", baselines.DTYPES)
def test_layers_quantize_without_loss_and_rotate(dtype: str, generator: torch.Generator) -> None:
    """Equal bits of W4A4 and W4A16, for inputs that differ; the kernels are those of the two types of A."""
    seed = int(torch.randint(2**31, (), generator=generator))
    bench = layers.prepare(Shape(5, 48, 96), CPU, seed, "a run", dtype=dtype)
    names = [layers.W4A4, layers.W4A16, layers.DENSE[dtype]]
    assert [each.name for each in bench.implementations] == names and bench.cold
    quantizing, weights_only, plain = bench.implementations
    assert [each.kernel for each in (quantizing, weights_only)] == [
        nvfp4.info(5, 48, 96, device="cpu", a_dtype=a_dtype)["plan"]["kernel"] for a_dtype in (None, dtype)
    ]
    assert quantizing.sets > 2 and plain.sets > 1
    results = [quantizing.call(i) for i in range(3)]
    for i, result in enumerate(results):
        assert result.dtype == plain.call(i).dtype == getattr(torch, dtype)
        assert result.shape == (5, 48) and result.isfinite().all()
        assert torch.equal(result, weights_only.call(i)), seed
    assert not torch.equal(results[0], results[1])
    torch.testing.assert_close(plain.call(1), results[1], rtol=2**-7, atol=2**-7)


@pytest.mark.usefixtures("small_cache")
def test_a_run_on_the_cpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        shapes, "BLOCKS", [shapes.Layer("a model", name, n, 64) for name, n in (("one", 32), ("two", 64))]
    )
    assert main(["bench", "--set", "models", "--m", "1,3", "--repeat", "3"]) == 0
    out = capsys.readouterr().out
    assert out.index("Sums over the layers") < out.index("Speed-up of nvfp4.Linear W4A4")
    assert out.count("a model, two") == 2 * 2 * 2  # M, tables, figures


@pytest.mark.usefixtures("small_cache")
def test_layers_of_the_other_dtype(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    monkeypatch.setitem(shapes.SETS, "linear", lambda m: [Shape(1, 32, 64)])
    monkeypatch.setattr(layers, "kernel", lambda *_, a_dtype=None: f"of {a_dtype}")
    for words, dtype, short in (([], "bfloat16", "bf16"), (["--dtype", "float16"], "float16", "fp16")):
        assert main(["bench", "--set", "linear", *words, "--repeat", "3", "--json", str(path)]) == 0
        run = report.load(path)
        _, of_16_bits, dense = run["results"][0]["implementations"]
        assert of_16_bits["kernel"] == f"of {dtype}" and dense["name"] == f"torch {short} linear"
        assert run["conditions"]["dtype"] == dtype
        assert run["command"].endswith(" ".join(["--set linear", *words, "--repeat 3"]))


@pytest.mark.usefixtures("gpu")
def test_sums_over_a_block(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    assert main(["bench", "--set", "models", "--m", "1,2048", "--repeat", "3", "--json", str(path)]) == 0
    run = report.load(path)
    assert len(run["results"]) == 2 * len(shapes.BLOCKS)
    _, columns, rows = report.sum_table(run, "back_to_back")
    assert [tuple(row[:2]) for row in rows] == [
        (model, m) for model in ("Llama-3.1-8B", "Llama-3.1-70B", "Qwen3-32B", "DeepSeek-V3") for m in ("1", "2048")
    ]
    block = [Shape(2048, layer.n, layer.k) for layer in shapes.BLOCKS if layer.model == "Qwen3-32B"]
    assert len(block) == 4
    sums = [sum(fake_gpu.seconds(name, shape) for shape in block) for name in fake_gpu.LAYERS]
    floors = sum(max(shape.layer_bytes / fake_gpu.COPY, shape.operations / fake_gpu.MATH) for shape in block)
    wanted = [floors * 1e6, *(value * 1e6 for value in sums), sums[2] / sums[0], sums[2] / sums[1]]
    assert [float(cell) for cell in rows[5][2:]] == pytest.approx(wanted, rel=0.02)
    assert len(columns) == len(rows[5])
    _, columns, rows = report.compact_table(run)
    assert columns == ["<model", "M = 1", "M = 2048"] and [row[0] for row in rows][2] == "Qwen3-32B"
    singles = [float(part) for part in rows[2][2].split("/")]
    assert singles == pytest.approx([value * 1e6 + 3 * 4 for value in sums], rel=0.02)


def test_least_work_of_a_layer() -> None:
    """Activations and results take two bytes a value, weights half a byte and a sixteenth."""
    assert Shape(2, 3, 32).layer_bytes == 3 * 18 + 2 * 2 * 32 + 2 * 2 * 3


def test_sets_of_layers() -> None:
    assert [str(shape) for shape in shapes.SETS["linear"]([7])] == ["7x7168x16384", "7x4096x7168", "7x7168x2048"]
    assert len({(shape.n, shape.k) for shape in shapes.SETS["monotone"](None)}) == 12
    found = shapes.SETS["models"](None)
    assert len(found) == len(set(found)) == len(shapes.BLOCKS) * 5
    for shape in found:
        layer = shapes.layer_of(shape)
        assert layer in shapes.BLOCKS and shape.k % 16 == 0


@pytest.mark.usefixtures("gpu")
def test_where_fewer_rows_take_longer(tmp_path: Path, monkeypatch, capsys) -> None:
    """benchmarks/monotone.py, without baselines; a time of the fake GPU is changed."""
    path = tmp_path / "run.json"
    assert main(["bench", "--set", "monotone", "--m", "8,16,512", "--against", "none", "--json", str(path)]) == 0
    run = report.load(path)
    assert run["command"].endswith("--m 8,16,512 --against none") and report.names(run) == ["nvfp4"]
    seconds = run["results"][0]["implementations"][0]["seconds"]["single_call"]
    next_one = run["results"][1]["implementations"][0]["seconds"]["single_call"]["median"]
    seconds["median"] = 1.25 * next_one
    path.write_text(json.dumps(run))
    monkeypatch.setattr(sys, "argv", ["monotone.py", str(path)])
    capsys.readouterr()
    assert monotone.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 14 and lines[1].startswith("6144x4096       8 ") and lines[1].endswith(" 25.0%")
    assert lines[-1] == "1 of 24 points take over 3 % longer than one of a larger M"


@pytest.mark.parametrize("option", [["--backend", "cpu"], ["--against", "fp32"]])
def test_options_that_do_not_go_with_layers(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--set", "linear", *option]) == 2
    streams = capsys.readouterr()
    assert streams.out == "" and "--set linear times nvfp4.Linear" in streams.err and option[0] in streams.err


def test_pictures_of_the_log_are_current() -> None:
    """A panel for each layer, with as many marks as the log has points above 3 %."""
    for gpu, curves in monotone.logged().items():
        above = {name: sum(more > 0.03 for more, _, _ in monotone.excess(points)) for name, points in curves.items()}
        titles = [f"N x K {name}: {count} of {len(curves[name]) - 1}" for name, count in above.items()]
        drawn = monotone.svg(gpu, curves, 3.0)
        committed = monotone.picture(gpu).read_text()
        assert len(titles) == 12 and all(title in text for title in titles for text in (drawn, committed))
