"""Modelled time of the sm100 kernels on a B200, from counted work. Nothing here was measured on one.

A call is taken apart into what its CTAs must do: bytes from DRAM and through L2, bytes into the shared memory of an SM,
tcgen05.mma and tcgen05.cp, barriers, the ring of stages, the sum over parts of K, the stores, and what stands between
two calls. The stream of a tile takes as long as the slowest of DRAM, L2, ingress, tensor core and loading threads;
before it come the gap between calls and the first byte's latency, behind it the last stage, the sum over parts and the
stores. b200_constants.py has the numbers and their sources, b200_report.py the tables. csrc/kernels/sm100/model.h is the same
formula in C; tests compare them.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import b200_constants as given
from b200_constants import Constants

CONFIGS = Path(__file__).resolve().parent.parent / "csrc" / "kernels/sm100/config.h"
SMS = 148
STAGE_K = 256
MMA_K = 64
ATOM_BYTES = 512
CTA_ROWS = 128
STAGE_ATOMS = STAGE_K // MMA_K
CHUNK = 32  # columns that the epilogue loads at once
MAX_CLUSTER_CTAS = 8  # of a cluster


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class Config:
    """An instantiation: a row of kernels/sm100/config.h."""

    name: str
    cta_group: int
    mma_tile_n: int
    stages: int
    accumulators: int
    cp_async: int

    @property
    def scale_atoms(self) -> int:
        """512-byte atoms of the scales of mma_b for 64 along K."""
        return ceil_div(self.mma_tile_n, 128)

    @property
    def stage_bytes(self) -> int:
        values = (CTA_ROWS + self.mma_tile_n // self.cta_group) * STAGE_K // 2
        return values + STAGE_ATOMS * ATOM_BYTES * (1 + self.scale_atoms)

    @property
    def shared_bytes(self) -> int:
        return self.stages * self.stage_bytes + 16 * self.stages + 48

    def partials_bytes(self, split: int) -> int:
        """Bytes of the partial sums that the other split indices of a cluster send."""
        return (split - 1) * (self.mma_tile_n // split) * CTA_ROWS * 4

    def partials_in_stages(self, split: int) -> bool:
        """Whether the partial sums overlay the stages, for one more barrier: if shared memory lacks room for both."""
        whole = self.shared_bytes + self.partials_bytes(split)
        return whole > given.SHARED or (self.co_resident and whole > given.HALF_SHARED)

    @property
    def columns(self) -> int:
        return self.accumulators * self.mma_tile_n + self.stages * 4 * STAGE_ATOMS * (1 + self.scale_atoms)

    @property
    def co_resident(self) -> bool:
        """Whether an SM holds two CTAs; with split-K too, since the partial sums then overlay the stages."""
        return self.shared_bytes <= given.HALF_SHARED and self.columns <= given.HALF_COLUMNS


def configs(path: Path = CONFIGS) -> list[Config]:
    """The rows of the X-macro, as the header has them."""
    rows = re.findall(r"X\(sm100_gemm_(\w+), (\d+), (\d+), (\d+), (\d+), (\d+)\)", path.read_text())
    return [Config(name, *map(int, numbers)) for name, *numbers in rows]


@dataclass(frozen=True)
class Shape:
    m: int
    n: int
    k: int
    l: int = 1

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}" + (f"x{self.l}" if self.l > 1 else "")


@dataclass(frozen=True)
class Work:
    """The work of a call: of the busiest CTA and one tile, or of the device where a comment says so."""

    tiles: int  # device; a cluster computes one at a time
    cluster: int  # CTAs
    per_sm: int  # CTAs that an SM holds
    k_stages: int  # of one CTA
    stages: int
    stage_bytes: float
    ingress: float
    dram: float  # device; reads
    l2: float  # device; what a multicast delivers counts once
    stores: float  # device; of C
    pair: bool
    mma_tile_n: int
    copies: int  # tcgen05.cp a stage
    store_bytes: float
    store_b_clk: str  # which constant
    split: int = 1
    two_accumulators: bool = False
    partials_in_stages: bool = False
    cp_asyncs: float = 0.0  # warp-wide cp.async a stage


@dataclass(frozen=True)
class Times:
    """Microseconds of a call, from the moment when it may read its inputs."""

    first_byte: float
    dram: float
    l2: float
    ingress: float
    mma: float
    cp_async: float
    drain: float  # epilogues that run beside the next tile's products
    again: float  # what further clusters on the same SMs repeat
    last_stage: float
    reduction: float
    epilogue: float
    resident: bool  # the next call's CTAs find room beside this one's
    c: Constants

    @property
    def binds(self) -> str:
        return max(("dram", "l2", "ingress", "mma", "cp_async", "drain"), key=lambda part: getattr(self, part))

    @property
    def stream(self) -> float:
        return float(getattr(self, self.binds))

    @property
    def body(self) -> float:
        return self.first_byte + self.stream + self.again + self.last_stage + self.reduction + self.epilogue

    @property
    def exposed(self) -> float:
        """Of the prologue, with dependent launch."""
        return 0.0 if self.resident else max(0.0, self.c.prologue_us - self.c.exit_overlap_us)

    @property
    def dependent(self) -> float:
        """Back to back, with dependent launch."""
        return self.c.dependent_gap_us + self.exposed + self.body

    @property
    def plain(self) -> float:
        """Back to back, without."""
        return self.c.plain_gap_us + self.c.prologue_us + self.body

    @property
    def kernel_only(self) -> float:
        """As a profiler's time stamps have it: without what lies between kernels."""
        return self.c.prologue_us + self.body


def gpc_sms(sms: int) -> list[int]:
    """SMs of each GPC: pairs, spread evenly."""
    pairs = sms // 2
    return [2 * (pairs // given.GPCS + (i < pairs % given.GPCS)) for i in range(given.GPCS)]


def clusters_that_fit(sms: int, cluster: int, per_sm: int) -> int:
    """At a time. A cluster of two and more lies in one GPC."""
    if cluster == 1:
        return sms * per_sm
    return sum(count * per_sm // cluster for count in gpc_sms(sms))


def dram_rate(stages_bytes: float, idle: float, c: Constants) -> float:
    """Bytes a us at which DRAM fills stages of `stages_bytes` in all, each idle for a time between its use and the next
    copy: where flight + rate(flight) * idle = stages_bytes; the rate is linear between the measured points."""
    peak = c.dram_tb_s * 1e6
    scale = given.FLIGHT_SMS * 1024 * (c.dram_tb_s * c.first_byte_us) / given.FLIGHT_MEASURED
    x0 = y0 = 0.0
    for kb, tb_s in given.FLIGHT:
        y1 = tb_s / given.FLIGHT[-1][1] * peak
        x1 = kb * scale + y1 * idle
        if stages_bytes < x1:
            return y0 + (y1 - y0) * (stages_bytes - x0) / (x1 - x0)
        x0, y0 = x1, y1
    return peak


def mma_cycles(work: Work, c: Constants) -> tuple[float, float]:
    """(clocks from one MMA to the next, further clocks until its result is there)."""
    operands = (CTA_ROWS + work.mma_tile_n / (2 if work.pair else 1)) * MMA_K / 2 / c.shared_b_clk
    return max(work.mma_tile_n * c.mma_column_cycles, operands), c.mma_fill_2 if work.pair else c.mma_fill_1


def grid(work: Work, sms: int = SMS) -> tuple[int, int, int, int]:
    """(clusters that fit, clusters at work at a time, clusters launched, rounds of tiles)."""
    fit = clusters_that_fit(sms, work.cluster, work.per_sm)
    if fit == 0:
        raise ValueError(f"a cluster of {work.cluster} does not fit")
    if work.split == 1:  # persistent: a CTA an SM, each as many tiles as the others
        rounds = ceil_div(work.tiles, min(fit, sms // work.cluster))
        active = ceil_div(work.tiles, rounds)
        return fit, active, active, rounds
    active = min(work.tiles, fit)  # one cluster per tile; the hardware starts them as others end
    return fit, active, work.tiles, ceil_div(work.tiles, active)


def times(work: Work, c: Constants, sms: int = SMS) -> Times:
    clk = 1e-3 / c.clock_ghz  # us
    persistent = work.split == 1
    fit, active, launched, rounds = grid(work, sms)
    ctas = active * work.cluster
    busy = rounds * ceil_div(ctas, sms)  # tiles on the busiest SM

    one, fill = mma_cycles(work, c)
    copies = work.copies * c.copy_cycles
    stage = max(STAGE_ATOMS * one, copies)
    # A stage is idle from the arrival of its last byte until its next copy is issued.
    idle = (stage + fill + c.commit_cycles + 2 * c.barrier_cycles) * clk
    last = (2 * c.barrier_cycles + c.commit_cycles + copies + STAGE_ATOMS * one + fill) * clk
    stores = work.store_bytes / getattr(c, work.store_b_clk)
    # Of loads from tensor memory the first is seen; a pair's last cluster barrier is hidden by the drain of the stores.
    epilogue = (c.tmem_load_cycles + stores) * clk
    reduction = 0.0
    if work.split > 1:  # each split index sends the columns that it does not keep and adds those of the others
        sums = CTA_ROWS * work.mma_tile_n * 4
        others = sums - sums / work.split
        sending = (
            c.tmem_load_cycles + c.remote_latency_cycles + others / (c.remote_b_clk * given.REMOTE_SHARE[work.split])
        )
        barrier = c.cluster_barrier_cycles if work.partials_in_stages else 0.0
        reduction = (barrier + sending + others / c.shared_b_clk) * clk

    # The stages fill at the full rate; after that a byte is requested when a stage is released.
    stages_filled = min(work.stages, work.k_stages * (rounds if persistent else 1))
    stages_bytes = ctas * stages_filled * work.stage_bytes * (work.dram / work.l2)
    at_once = min(work.dram, stages_bytes)
    dram = (at_once + work.stores) / (c.dram_tb_s * 1e6) + (work.dram - at_once) / dram_rate(stages_bytes, idle, c)
    mma = busy * work.k_stages * stage * clk
    again = drain = 0.0
    if not persistent:
        again = (rounds - 1) * (c.prologue_us + c.first_byte_us + last + reduction + epilogue)
    elif work.two_accumulators:
        drain = (busy - 1) * epilogue
    else:
        mma += (rounds - 1) * (last + epilogue)
    return Times(
        first_byte=c.first_byte_us,
        dram=dram,
        l2=work.l2 / (c.l2_tb_s * 1e6),
        ingress=work.ingress * busy / c.ingress_b_clk * clk,
        mma=mma,
        cp_async=busy * work.k_stages * work.cp_asyncs * c.cp_async_cycles * clk,
        drain=drain,
        again=again,
        last_stage=last,
        reduction=reduction,
        epilogue=epilogue,
        resident=2 * launched <= fit,
        c=c,
    )


def work_of(shape: Shape, config: Config, split: int = 1, swap_ab: bool = False, gather_values: bool = False) -> Work:
    """Counted work of one of our kernels: see the schedule in kernels/sm100/config.h."""
    x, y = (shape.n, shape.m) if swap_ab else (shape.m, shape.n)
    group, tile_y, atoms = config.group, config.tile_y, config.scale_atoms
    tiles_x, tiles_y = ceil_div(x, CTA_ROWS * group), ceil_div(y, tile_y)
    k_stages = ceil_div(ceil_div(shape.k, STAGE_K), split)
    row = shape.k / 2  # bytes of values
    scales = ceil_div(shape.k, MMA_K) * ATOM_BYTES  # bytes, of 128 rows
    part = min(1.0, k_stages * STAGE_K / shape.k)  # of K, in the longest part
    ingress = (min(mma_m, CTA_ROWS) + min(mma_n, mma_tile_n) / cta_group) * row + (1 + atoms) * scales
    l2 = (
        (mma_m * row + ceil_div(mma_m, 128) * scales) * tiles_mma_n
        + mma_n * row * tiles_mma_m
        + tiles_mma_m * cta_group * tiles_mma_n * atoms * scales
    )
    dram = (mma_m + mma_n) * row + (ceil_div(mma_m, 128) + ceil_div(mma_n, 128)) * scales
    lanes = 4 * (CTA_ROWS + mma_tile_n) + (16 * (CTA_ROWS + mma_tile_n) if cp_async_values else 0)
    return Work(
        tiles=tiles_mma_m * tiles_mma_n * shape.l,
        cluster=cta_group * split,
        per_sm=2 if config.co_resident else 1,
        k_stages=k_stages,
        stages=config.stages,
        stage_bytes=config.stage_bytes,
        ingress=ingress * part,
        dram=dram * shape.l,
        l2=l2 * shape.l,
        stores=shape.m * shape.n * 2 * shape.l,
        pair=cta_group == 2,
        mma_tile_n=mma_tile_n,
        copies=STAGE_ATOMS * (1 + atoms),
        store_bytes=min(mma_m, CTA_ROWS) * min(mma_n, mma_tile_n) * 2 / split,
        store_b_clk="column_store_b_clk" if swap_ab else "row_store_b_clk",
        split=split,
        partials_in_stages=split > 1 and config.partials_in_stages(split),
        two_accumulators=config.accumulators > 1,
        cp_asyncs=lanes / 32 if config.cp_async else 0.0,
    )


@dataclass(frozen=True)
class Plan:
    """A configuration with its split and side, and what it is modelled to take."""

    shape: Shape
    config: Config
    split: int
    swap_ab: bool
    times: Times

    def __str__(self) -> str:
        split = f" split {self.split}" if self.split > 1 else ""
        return f"{self.config.name}{split}{' swap_ab' if self.swap_ab else ''}"


def allowed(shape: Shape, config: Config, split: int, swap_ab: bool, rows: list[Config]) -> bool:
    """What kernels/sm100/plan.h takes: tiles up to 32 wide hold all of y, and no wider one is tried where such a one or a
    narrower of as many CTAs does; no part of K is empty, each CTA keeps 4 columns or more of a split tile."""
    x, y = (shape.n, shape.m) if swap_ab else (shape.m, shape.n)
    if (config.tile_y <= 32 and y > config.tile_y) or x == 1 < y:
        return False
    for other in rows:
        alike = other.cp_async == config.cp_async and (other.cta_group == config.cta_group or other.mma_tile_n <= 32)
        if alike and mma_n <= other.mma_tile_n < config.mma_tile_n:
            return False
    return split == 1 or (
        split <= ceil_div(shape.k, STAGE_K)
        and split * config.cta_group <= MAX_CLUSTER_CTAS
        and config.mma_tile_n >= 4 * split
    )


def plans(shape: Shape, rows: list[Config], c: Constants) -> Iterator[Plan]:
    """All ways to run a shape, without the cp.async kernels, which are for operands that TMA cannot load."""
    for config in rows:
        for split, swap_ab in itertools.product((1, 2, 4, 8), (False, True)):
            if not config.cp_async and allowed(shape, config, split, swap_ab, rows):
                yield Plan(shape, config, split, swap_ab, times(work_of(shape, config, split, swap_ab), c))


def best(shape: Shape, rows: list[Config], c: Constants) -> Plan:
    return min(plans(shape, rows, c), key=lambda plan: plan.times.dependent)


def main() -> None:
    import b200_report as report
    import b200_trace as trace

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="Modelled, not measured.")
    parser.add_argument("--shape", metavar="M,N,K[,L]", help="this one, instead of the ranked ones, decode and prefill")
    parser.add_argument("--all", action="store_true", help="every configuration, split and side, best first")
    parser.add_argument("--peers", action="store_true", help="published figures against the model")
    parser.add_argument("--sensitivity", action="store_true", help="each constant 20 %% less and more")
    parser.add_argument(
        "--count", metavar="TRACE", help="compare the counts with a trace of the emulator; needs --shape"
    )
    parser.add_argument("--config", default="256x64", help="for --count: %(default)s unless given")
    parser.add_argument("--split", type=int, default=1, help="for --count")
    parser.add_argument("--swap_ab", action="store_true", help="for --count")
    parser.add_argument("--write", action="store_true", help="put the tables into b200_model.md")
    options = parser.parse_args()
    rows, c = configs(), Constants()
    shapes = [Shape(*map(int, options.shape.split(",")))] if options.shape else list(report.RANKED)
    if options.write:
        report.write(rows, c)
    elif options.peers:
        print("\n".join(report.peer_table()))
    elif options.sensitivity:
        print("\n".join(report.sensitivity_table(rows)))
    elif options.count:
        config = next(config for config in rows if config.name == options.config)
        print("\n".join(trace.compare(options.count, shapes[0], config, options.split, options.swap_ab)))
    elif options.all:
        for shape in shapes:
            print("\n".join(report.all_table(shape, rows, c, 1000)))
    else:
        if not options.shape:
            print("\n".join(report.goal_table(rows, c)) + "\n")
            shapes += [*report.DECODE, *report.TASK, *report.PREFILL]
        print("\n".join(report.shape_table(shapes, rows, c)))


if __name__ == "__main__":
    main()
