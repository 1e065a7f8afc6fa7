"""Hessians of layers' inputs, sums of x x^T over rows x, collected while `calibrate` runs.

A Hessian has K^2 numbers, so a call of `calibrate` collects as many as fit in memory, and further calls collect the
others. Layers that read one tensor, such as q_proj, k_proj and v_proj, share one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4.layers.gptq import exact_mode
from nvfp4.quantizing.calibration import ROWS, Inputs, Reached, reader, run

MEMORY_SHARE = 4  # Hessians take this part of the free memory


@dataclass(frozen=True)
class Collected:
    """A Hessian, the layers that read these inputs, and how many rows they read."""

    names: tuple[str, ...]
    hessian: Tensor  # float32 [K, K]
    rows: int


class Hessians:
    """The Hessians of some layers.

    `add` is called with each input of each layer. Layers that are siblings share the Hessian of the first of them that
    is called, their leader, if they are called with the same tensor, unchanged. The first call of each layer decides
    that. Where a later call differs, the layer gets a Hessian of its own in the next call of `calibrate`.

    Args:
        names: the layers that need a Hessian.
        siblings: for some layers the names that may read one tensor, their own among them.
        max_bytes: of all Hessians on a device at a time; at least one is collected. None: a quarter of what is free.
    """

    def __init__(self, names: Iterable[str], siblings: Mapping[str, tuple[str, ...]], max_bytes: int | None) -> None:
        self.waiting = dict.fromkeys(names)  # in the model's order
        self.siblings, self.max_bytes = siblings, max_bytes
        self.leaders: dict[str, str] = {}
        self.begin()

    def begin(self) -> None:
        """Prepares for a call of `calibrate`."""
        self.sums: dict[str, Tensor] = {}
        self.room: dict[torch.device, int] = {}
        self.rows: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.differing: set[str] = set()
        # The last inputs of leaders that are siblings, kept so that no other tensor takes their place in memory.
        self.last: dict[str, tuple[Tensor, int | None]] = {}

    def add(self, name: str, x: Tensor) -> None:
        self.calls[name] += 1
        own = (x, None if x.is_inference() else x._version)
        group = self.siblings.get(name, (name,))
        if name not in self.leaders:
            self.leaders[name] = next((n for n in group if n in self.last and same(self.last[n], own)), name)
        leader = self.leaders[name]
        if leader != name:
            followed = self.calls[name] == self.calls[leader] and leader in self.last
            if not followed or not same(self.last[leader], own):
                self.differing.add(name)
            return
        self.last = {n: given for n, given in self.last.items() if n in group}
        self.last[name] = own
        if any(n in self.waiting and self.leaders.get(n, name) == name for n in group):
            self.sum(name, x)

    def wants(self, name: str) -> bool:
        """Whether `add` of a layer without siblings would change its sum, or decide whether there is room for one."""
        return name in self.waiting and (name in self.sums or name not in self.calls)

    def sum(self, name: str, x: Tensor) -> None:
        """Adds an input to the sum of a leader, if there is room for that."""
        k = x.shape[-1]
        if name not in self.sums and not self.make_room(x.device, 4 * k * k):
            return
        rows = x.detach().reshape(-1, k)
        self.rows[name] += len(rows)
        with exact_mode(x.device):
            if name not in self.sums:
                self.sums[name] = torch.zeros(k, k, dtype=torch.float32, device=x.device)
            for part in rows.split(ROWS):
                add_products(self.sums[name], part)

    def make_room(self, device: torch.device, need: int) -> bool:
        """Takes bytes of a device's room, which only shrinks: a sum without room at its layer's first call has none at
        later ones. The first sum always has room."""
        first = device not in self.room
        if first:
            self.room[device] = free_bytes(device) // MEMORY_SHARE if self.max_bytes is None else self.max_bytes
        if need > self.room[device] and not first:
            return False
        self.room[device] -= need
        return True

    def finish(self, inputs: Mapping[str, Inputs]) -> list[Collected]:
        """The Hessians of a call of `calibrate`, which are complete; their layers wait no longer.

        Raises:
            nvfp4.Error: a layer read another number of rows than in the first call, `inputs`.
        """
        self.last = {}
        for name, leader in self.leaders.items():
            if self.calls[name] != self.calls[leader] or not alike(inputs[name], inputs[leader]):
                self.differing.add(name)
        self.leaders.update((name, name) for name in self.differing)
        found = []
        for leader, hessian in self.sums.items():
            names = tuple(n for n in self.waiting if self.leaders.get(n) == leader)
            if names:
                found.append(Collected(names, hessian, self.rows[leader]))
        self.sums = {}
        for collected in found:
            for name in collected.names:
                if collected.rows != inputs[name].rows:
                    raise _C.Error(
                        f"calibrate: gives {name} {collected.rows} rows in a later call and {inputs[name].rows} in its "
                        "first; must run the model on the same samples each time"
                    )
                del self.waiting[name]
        return found


def collect(
    model: torch.nn.Module,
    linears: Mapping[str, torch.nn.Module],
    calibrate: Callable[[torch.nn.Module], Any],
    hessians: Hessians | None,
    inputs: Mapping[str, Inputs] | None = None,
    squares: Collection[str] = (),
    reached: Iterable[Reached] = (),
) -> None:
    """Calls `calibrate`, and notes what linear layers and the products of experts read in `hessians` and `inputs`.

    Args:
        inputs: None: this is a later call.
        squares: names of which the inputs' squares are wanted.
        reached: the modules of experts.
    """

    def note(name: str, x: Tensor) -> None:
        if inputs is not None:
            inputs[name].add(x, name in squares)
        if hessians is not None:
            hessians.add(name, x)

    def wanted(name: str) -> bool:
        return inputs is not None or (hessians is not None and hessians.wants(name))

    if hessians is not None:
        hessians.begin()
    hooks = [(layer, reader(partial(note, name))) for name, layer in linears.items()]
    run(model, calibrate, hooks + [(found.module, found.reader(note, wanted)) for found in reached])


def same(a: tuple[Tensor, int | None], b: tuple[Tensor, int | None]) -> bool:
    """Whether two inputs are one tensor, unchanged, or views of it with equal rows. Inference tensors have no version:
    a change in place goes unseen."""
    (x, version), (y, other) = a, b
    if version != other or x.data_ptr() != y.data_ptr() or (x.dtype, x.device) != (y.dtype, y.device):
        return False
    if x.is_contiguous() and y.is_contiguous():
        return (x.shape[-1], x.numel()) == (y.shape[-1], y.numel())
    return (x.shape, x.stride()) == (y.shape, y.stride())


def alike(a: Inputs, b: Inputs) -> bool:
    """Whether two layers may have read the same rows. This finds changes in place that `same` does not see."""
    return a.rows == b.rows and a.amax is not None and b.amax is not None and torch.equal(a.amax, b.amax)


def add_products(total: Tensor, rows: Tensor) -> None:
    """Adds x x^T of rows x. Products of 16-bit numbers are exact in fp32."""
    if rows.is_cuda and rows.dtype in (torch.float16, torch.bfloat16):
        total += torch.mm(rows.mT, rows, out_dtype=torch.float32)
        return
    rows = rows.float()
    total.addmm_(rows.mT, rows)


def free_bytes(device: torch.device) -> int:
    """Memory that new tensors on a device may take."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
