"""A fake H200 for `nvfp4 bench`: it computes no product; its clock gives times by a formula with some noise."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nvfp4.bench import baselines, command, layers, timing
from nvfp4.bench.shapes import Shape
from nvfp4.cli import machine

GPU = torch.device("cuda:0")
COPY, MATH = 4.1e12, 7.0e14
FLUSH_S, EVENTS_S, HOST_S = 160e-6, 20e-6, 4e-6
LAYERS = {layers.W4A4: 1.5, layers.W4A16: 1.25, layers.DENSE["bfloat16"]: 5.0}
PRODUCTS = {"nvfp4 sm90": 1.3, "nvfp4 sm80": 3.0, "torch fp16 matmul": 4.0, "torch fp8 matmul": 2.4}
SPEED = LAYERS | PRODUCTS


def seconds(name: str, shape: Shape) -> float:
    """The time of a back-to-back call; a single call takes 3 us more."""
    return max(shape.bytes / COPY, shape.operations / MATH) * SPEED.get(name, 40.0) + 1e-6


class Clock(timing.DeviceClock):
    """Gives times and sums up how long the GPU and the host would have been busy."""

    def __init__(self, noise: float = 0.05, seed: int = 0) -> None:
        self.flush = SimpleNamespace(numel=lambda: 2**29)
        self.noise, self.random = noise, random.Random(seed)
        self.spent = 0.0

    def one(self, call: Callable[[], Any]) -> float:
        answer = call()
        return answer * (1 + self.random.random() * self.noise) if isinstance(answer, float) else 1.3e-6

    def warm_up(self, call: Callable[[int], object]) -> float:
        self.spent += 4 * FLUSH_S
        return call(0)

    def run(self, calls: Sequence[Callable[[], Any]]) -> list[float]:
        times = [self.one(call) + 3e-6 for call in calls]
        self.spent += sum(times) + len(calls) * (FLUSH_S + EVENTS_S)
        return times

    def back_to_back(self, calls: Sequence[Callable[[], Any]]) -> timing.StreamTime:
        times = [self.one(call) for call in calls]
        self.spent += sum(times) + 4 * FLUSH_S
        return timing.StreamTime(sum(times) / len(times), HOST_S * (1 + self.random.random() * self.noise))

    def empty_pair(self, repeat: int) -> float:
        return 1.3e-6

    def copy_bandwidth(self, repeat: int) -> float:
        return COPY


def prepare_layers(shape: Shape, device, against: Sequence[str], seed, dtype, run="", max_sets=0) -> baselines.Bench:
    calls = {name: partial(lambda i, name: seconds(name, shape), name=name) for name in LAYERS}
    made = [timing.Implementation(name, call, run, ours="nvfp4" in name) for name, call in calls.items()]
    return baselines.Bench(made, cold=True)


def prepare(shape: Shape, device, backends, kinds, seed, dtype, run="", max_sets=0) -> baselines.Bench:
    names = [(baselines.title(b), "") for b in backends] + [
        (baselines.NAMES[k], baselines.NOTES.get(k, "")) for k in kinds
    ]
    return baselines.Bench(
        [
            timing.Implementation(
                name,
                partial(lambda i, name: seconds(name, shape), name=name),
                run,
                ours=name.startswith("nvfp4"),
                kernel=f"nvfp4_{name[-4:]}_gemm_128x256" if name.startswith("nvfp4") else "",
                note=note,
                sets=3,
            )
            for name, note in names
        ],
        cold=True,
    )


def install(monkeypatch: pytest.MonkeyPatch, clock: Clock, capability: tuple[int, int] = (9, 0)) -> None:
    """Makes `main(["bench", ...])` run on the fake GPU."""
    monkeypatch.setattr(command, "prepare", prepare)
    monkeypatch.setattr(layers, "prepare", prepare_layers)
    monkeypatch.setattr(command, "pick_target", lambda backends: machine.Target(GPU, GPU, backends[0]))
    monkeypatch.setattr(timing, "DeviceClock", lambda device: clock)
    monkeypatch.setattr(timing, "matmul_rate", lambda *args, **options: MATH)
    monkeypatch.setattr(machine, "clocks", lambda device: "SM 1980 of 1980 MHz, P0")
    monkeypatch.setattr(machine, "describe", lambda device: "NVIDIA H200 (fake), 132 SMs")
    properties = SimpleNamespace(L2_cache_size=60 * 2**20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100 * 2**30, 141 * 2**30))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
