"""The floor of `nvfp4 bench` on a CPU, what it times there, and shapes that memory does not hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from test_bench import small_cache as small_cache
from test_bench import stored
from torch.utils._python_dispatch import TorchDispatchMode

from nvfp4.__main__ import main
from nvfp4.bench import command, limits, report, timing
from nvfp4.bench.shapes import Shape
from nvfp4.cli import machine

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="these time a CPU; bench would take the GPU")


@pytest.mark.usefixtures("small_cache")
def test_no_time_lies_below_the_floor_on_a_cpu(tmp_path: Path) -> None:
    """This holds for any implementation and either figure, of one row, of many, and of data that a cache holds. A copy
    alone is no bound, nor is one torch product: see limits.py."""
    run = stored(tmp_path, "bench", "--shapes", "1x1024x512,64x256x256,96x512x512,1x16x64", "--repeat", "9")
    for result in run["results"]:
        floor = report.floor(run, report.shape_of(result))
        for entry in result["implementations"]:
            for mode in report.MODES:
                assert floor <= entry["seconds"][mode]["p10"] * (1 + 1e-4), (entry, mode, run["limits"])
    found = run["limits"]
    rate = max(limits.square_rate(timing.HostClock(), name, make) for name, make in limits.products().items())
    assert found["flops_per_s"] > rate[0] / 20 and found["bytes_per_s"] > timing.HostClock().copy_bandwidth(3) / 20


def test_rates_are_rounded_up() -> None:
    assert [limits.rounded_up(rate) for rate in (12340.0, 12341.0, 9999.5, 1.0, 2.5e11 + 1)] == [
        *(12340.0, 12350.0, 10000.0, 1.0, 2.501e11)
    ]


class Types(TorchDispatchMode):
    """Notes the types of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[torch.dtype] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "mm" in func.__name__:
            self.found.add(args[0].dtype)
        return func(*args, **(kwargs or {}))


@pytest.mark.usefixtures("small_cache")
def test_no_bf16_product_without_instructions_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither as a baseline, nor inside of one, nor behind the floor, unless it is asked for: it takes a hundred times
    as long as that of fp32."""
    monkeypatch.setattr(machine, "cpu_flags", lambda: {"avx2", "fma"})
    arguments = ["bench", "--shapes", "3x64x64", "--repeat", "3"]
    with Types() as types:
        run = stored(tmp_path, *arguments)
    assert types.found == {torch.float32}
    assert report.names(run) == ["nvfp4", "torch fp32 matmul", "torch dequantize + matmul"]
    assert run["left_out"] == {"torch bf16 matmul": "this CPU has no bf16 instructions; --against bf16 times it"}
    with Types() as types:
        run = stored(tmp_path, *arguments, "--against", "bf16")
    assert torch.bfloat16 in types.found and not run["left_out"]
    monkeypatch.setattr(machine, "cpu_flags", lambda: {"avx2", "avx512_bf16"})
    with Types() as types:
        run = stored(tmp_path, *arguments)
    assert report.names(run)[1] == "torch bf16 matmul" and not run["left_out"] and torch.bfloat16 in types.found


@pytest.mark.usefixtures("small_cache")
def test_without_repeat_a_cpu_has_one_budget_for_all_shapes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "CPU_S", 0.0)
    shapes = ["bench", "--shapes", "3x64x64,5x64x64", "--against", "none"]
    for extra, samples in (([], 4), (["--repeat", "9"], 9)):
        run = stored(tmp_path, *shapes, *extra)
        for result in run["results"]:
            spreads = result["implementations"][0]["seconds"]
            assert spreads["single_call"]["samples"] == samples and spreads["back_to_back"]["samples"] == 3


def test_shapes_that_memory_does_not_hold(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One line and status 2: before anything is timed, or where torch cannot allocate."""
    assert main(["bench", "--set", "models", "--m", "99999999"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"nvfp4 bench: 99999999x6144x4096: takes 1\.\d\d TB at least, but .* are free: name smaller sizes", line
    )
    huge = ["bench", "--shapes", "2x64x64,99999999x64x64"]
    monkeypatch.setattr(machine, "available_memory", lambda: 2**60)
    for error in (
        torch.OutOfMemoryError("CUDA out of memory.\nMore"),
        RuntimeError("can't allocate memory"),
        MemoryError(),
    ):

        def prepare(shape: Shape, error: BaseException = error, **options: Any) -> None:
            raise error

        monkeypatch.setattr(command, "prepare", prepare)
        assert main(huge) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith("nvfp4 bench: 2x64x64: does not fit into memory: ") and "More" not in line
    monkeypatch.setattr(command, "prepare", lambda shape, **options: torch.ones(2) @ torch.ones(3))
    with pytest.raises(RuntimeError, match="size"):
        main(huge)
