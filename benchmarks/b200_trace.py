"""Counts of the B200 model against what the emulator counted (EMULATE_TRACE, see emulator/README.md)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import c_model
from c_model import Config
from model_b200 import Shape, ceil_div, work_of

LOADS = ("tensor copies from global", "bulk copies from global", "cp.async")
MULTICAST = "from global, multicast to further CTAs"


@dataclass(frozen=True)
class Counts:
    """Counts of one launch: bytes of the busiest CTA and of all of them, instructions of all."""

    cta_loaded: float  # into shared memory, from global memory
    loaded: float
    l2: float  # what L2 sends for that: a multicast once
    cta_stored: float  # C
    stored: float
    cta_sent: float  # partial sums, to other CTAs
    operands: float  # that tensor cores read from shared memory
    scales: float  # copied to tensor memory
    mma: int
    cp: int
    commit: int

    def rows(self) -> dict[str, float]:
        return self.__dict__


def counted(kernel: dict) -> Counts:
    """The counts of a kernel in a trace."""

    def count(prefix: str) -> int:
        return sum(lanes for name, (_, lanes) in kernel["instructions"].items() if name.startswith(prefix))

    def most(*kinds: str) -> int:
        return max(sum(cta["bytes"].get(kind, 0) for kind in kinds) for cta in kernel["ctas"])

    return Counts(
        cta_loaded=most(*LOADS),
        loaded=sum(kernel["bytes"].get(kind, 0) for kind in LOADS),
        l2=sum(kernel["bytes"].get(kind, 0) for kind in LOADS) - kernel["bytes"].get(MULTICAST, 0),
        cta_stored=most("global written by threads"),
        stored=kernel["bytes"].get("global written by threads", 0),
        cta_sent=most("to another CTA's shared memory"),
        operands=kernel["bytes"].get("shared read by tensor cores", 0),
        scales=kernel["bytes"].get("shared to tensor memory", 0),
        mma=count("tcgen05.mma"),
        cp=count("tcgen05.cp"),
        commit=count("tcgen05.commit"),
    )


def modelled(shape: Shape, config: Config, split_k: int, swap_ab: bool) -> Counts:
    """The same from the work that the model's times are made of, for a grid of one cluster a tile."""
    work = work_of(shape, config, split_k, swap_ab)
    stage_k, mma_k, stage_atoms, atom_bytes, cta_rows = (
        c_model.number(f"SM100_{name}") for name in ("STAGE_K", "MMA_K", "STAGE_ATOMS", "ATOM_BYTES", "CTA_ROWS")
    )
    mmas = work.tiles * ceil_div(shape.k, mma_k)
    atoms = work.tcgen05_cp // stage_atoms
    values = cta_rows + config.mma_tile_n // config.cta_group
    return Counts(
        cta_loaded=work.ingress,
        loaded=work.loaded,
        l2=work.l2,
        cta_stored=work.store_bytes,
        stored=work.stores,
        cta_sent=work.partials_bytes,
        operands=mmas * config.cta_group * values * mma_k // 2,
        scales=mmas * config.cta_group * atoms * atom_bytes,
        mma=mmas,
        cp=mmas * atoms,
        commit=work.tiles * (ceil_div(shape.k, stage_k) + split_k),
    )


def read(path: str | Path, kernel: str = "") -> list[dict]:
    """The launches in a trace, of that kernel or of all."""
    launches = json.loads(Path(path).read_text())["kernels"]
    return [launch for launch in launches if kernel in launch["kernel"]]


def compare(path: str, shape: Shape, config: Config, split_k: int, swap_ab: bool) -> list[str]:
    """A table of the last launch of that configuration in a trace beside the model's counts."""
    kernel = f"sm100_gemm_{config.name}"
    launches = [launch for launch in read(path) if launch["kernel"].endswith(kernel)]
    if not launches:
        raise SystemExit(f"{path} has no launch of {kernel}")
    got, want = counted(launches[-1]).rows(), modelled(shape, config, split_k, swap_ab).rows()
    lines = ["| count | traced | model |", "|---|--:|--:|"]
    return lines + [f"| {name} | {got[name]:.0f} | {want[name]:.0f} |" for name in want]
