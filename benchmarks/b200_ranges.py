"""How far each constant of the B200 model may be off, and what that does to a modelled time.

The values, with their sources, are in csrc/kernels/sm100/model.h; here are the ends of their ranges, which the library
does not need. "fast.cu's port": NVFP4 at 8192^3 on a B200 in 173.2 us (cfregly/ai-performance-engineering,
labs/fast_cu), 14 tiles of at most 256x256 a pair. "TK": ThunderKittens' kernel without multicast of values,
8192x8192x33024 on 144 SMs of a B300 at 1.91 GHz in 571 us, beside a CUTLASS kernel whose tensor cores were 77 % busy
(the notes in its kernels/gemm/nvfp4_b300)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import c_model
from c_model import Struct


@dataclass(frozen=True)
class Range:
    low: float
    high: float
    source: str  # of either end; numbers in brackets as in model.h


RANGES = {
    "clock_ghz": Range(1.85, 1.98, "QuACK's model (4.1); the highest while SemiAnalysis measured (4)"),
    "dram_tb_s": Range(6.98, 7.31, "least and most of TMA reads with 57 KB or more in flight on an SM (4.1)"),
    "first_byte_us": Range(0.46, 0.72, "900 clk, one TMA load at a time; 1 KB loads of all SMs at once (4.1)"),
    "ingress_b_clk": Range(51, 81, "taken in by fast.cu's port; by CUTLASS on a B300, where TK has 60"),
    "l2_tb_s": Range(13.3, 16.9, "most that all SMs took in (4.2); SemiAnalysis, 16 CTAs sharing, into SMs"),
    "mma_column_cycles": Range(0.5, 0.516, "most sizes; 49.5 clk for 96 columns in a pair (4.4)"),
    "shared_b_clk": Range(118, 128, "5,120 bytes in 43.3 clk, a pair of 256x64 (4.4); the port"),
    "mma_fill_1": Range(18.5, 149, "if (4.4) includes commit and wait, 118.5; with the 12 of a batch (4.4)"),
    "mma_fill_2": Range(54.5, 185, "the same"),
    "tcgen05_cp_cycles": Range(4, 62, "512 bytes read at 128 B/clk; 12 a stage in fast.cu's port, 753 clk"),
    "commit_cycles": Range(12, 66, "overhead of a batch of MMAs; 30 and the 36 that a pair's MMA takes longer (4.4)"),
    "barrier_cycles": Range(58, 118.5, "an H200's; commit and wait together (4.5)"),
    "tcgen05_ld_cycles": Range(37.7, 420, "half of tcgen05.st's 49.8 and the wait; cited under load (4.5)"),
    "column_store_b_clk": Range(14.3, 29, "H200: 3.3 TB/s from all SMs (dequantize pre-pass); 56 CTAs"),
    "row_store_b_clk": Range(7.5, 32, "H200 with 16 bytes a lane; as bulk copies"),
    "bulk_store_b_clk": Range(14.3, 32, "H200: 3.3 TB/s from all SMs; (4.2)"),
    "remote_b_clk": Range(20, 32, "H200; bulk copies between SMs (4.2)"),
    "remote_latency_cycles": Range(180, 412, "H100, a load (arXiv 2402.13499); 270 as mbarriers: 88.5 to an H200's 58"),
    "cluster_barrier_cycles": Range(180, 557, "H100, one message; 365 as mbarriers: 88.5 to an H200's 58"),
    "prologue_us": Range(
        0.3, 1.0, "FlashInfer's lean kernel of 1.54 us leaves no more; a cluster barrier waited for (5.3, 27)"
    ),
    "plain_gap_us": Range(1.73, 3.89, "0.96 more than with PDL (4.6); CUB's 4.09 less an L2 latency (4.6)"),
    "dependent_gap_us": Range(0.77, 2.0, "the H200's; 3.04 less the 1 at most that PDL saves in a B300's chains"),
    "early_trigger_us": Range(0.1, 0.3, "H200, least and most"),
    "exit_overlap_us": Range(0.0, 0.7, "nothing, or all, of a prologue: H200 half, no figure of a B200"),
    "cp_async_cycles": Range(4, 6, "128 B/clk; H200"),
}

# The competition's harness fills L2, 126.5 MiB, with random numbers before 50 calls. Calls whose loads displace these
# dirty lines have them written back: so much a call if all are.
DIRTY_L2_US = 126.5 * 2**20 / 50 / 7.25e6


def ranges() -> dict[str, Range]:
    """RANGES, in the model's order. ValueError: a constant has no range or lies outside it."""
    constants = c_model.constants_of("sm100")
    if {constant.name for constant in constants} != set(RANGES):
        raise ValueError(
            f"constants without a range, or ranges without: {sorted({c.name for c in constants} ^ set(RANGES))}"
        )
    for constant in constants:
        found = RANGES[constant.name]
        if not found.low <= constant.value <= found.high:
            raise ValueError(
                f"{constant.name}: {constant.value:g} is outside its range, {found.low:g} to {found.high:g}"
            )
    return {constant.name: RANGES[constant.name] for constant in constants}


def more_is_faster(constant: c_model.Constant) -> bool:
    """Rates, and what is hidden of a prologue; the others are times."""
    return constant.unit in ("GHz", "TB/s", "B/clk") or constant.name == "exit_overlap_us"


def ends() -> tuple[dict[str, float], dict[str, float]]:
    """All constants at their fast ends, all at their slow ones."""
    fast, slow = {}, {}
    known = ranges()
    for constant in c_model.constants_of("sm100"):
        r = known[constant.name]
        slow[constant.name], fast[constant.name] = (r.low, r.high) if more_is_faster(constant) else (r.high, r.low)
    return fast, slow


@dataclass(frozen=True)
class Span:
    """A modelled time, us. low and high: the constants are off independently, so the changes that each one's ends make
    alone are added as squares. least and most: all constants at their fast, all at their slow ends."""

    least: float
    low: float
    middle: float
    high: float
    most: float


def span(us: Callable[[Struct], float], constants: Struct) -> Span:
    """The span of a time, given as a function of the constants."""
    fast, slow = ends()
    middle, least, most = us(constants), us(constants.copy(**fast)), us(constants.copy(**slow))
    faster, slower = (
        math.hypot(*(us(constants.copy(**{name: value})) - middle for name, value in side.items()))
        for side in (fast, slow)
    )
    return Span(least, max(least, middle - faster), middle, min(most, middle + slower), most)
