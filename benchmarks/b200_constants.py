"""The constants of the B200 model: each with its number, unit and source.

The sources are public measurements of B200s, collected in the project's notes on that GPU, whose sections are given in
brackets. Where there are none, an H200 was measured (launches, cluster barriers, stores, exchange of partial sums
between CTAs); otherwise the line says "assumed". No figure is from a B200 of ours. A constant changes when a better
source is found, never to reach a result.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields


def constant(value: float, unit: str, source: str) -> float:
    """A field of Constants that knows its unit and its source."""
    return field(default=value, metadata={"unit": unit, "source": source})


@dataclass(frozen=True)
class Constants:
    clock_ghz: float = constant(1.95, "GHz", "SM clock while SemiAnalysis measured, 1.93 to 1.98 (4)")
    dram_tb_s: float = constant(7.25, "TB/s", "best of the TMA streams, 7.06 to 7.31 (4.1)")
    first_byte_us: float = constant(
        0.55, "us", "cold latency: gather4 546 ns, LDGSTS 550 to 620, a small TMA alone 500 (4.1)"
    )
    ingress_b_clk: float = constant(
        60.0, "B/clk", "into one SM's shared memory: 46 seen, 60 inferred, 64 the port (4.2)"
    )
    l2_tb_s: float = constant(13.3, "TB/s", "most that all SMs were seen to take in; L2 alone was never measured (4.2)")
    mma_column_cycles: float = constant(
        0.5, "clk", "a row of mma_b, 64 along K; at most the rate of operands from shared memory (4.4)"
    )
    shared_b_clk: float = constant(128.0, "B/clk", "shared memory of one SM (4.5)")
    mma_fill_1: float = constant(137.0, "clk", "latency of an MMA above N/2, one CTA (4.4)")
    mma_fill_2: float = constant(173.0, "clk", "the same of a pair, M = 256 (4.4)")
    copy_cycles: float = constant(
        16.0, "clk", "assumed: tcgen05.cp writes 2 KB at 128 B/clk, beside the MMAs (4.5: none)"
    )
    commit_cycles: float = constant(30.0, "clk", "tcgen05.commit (4.5)")
    barrier_cycles: float = constant(88.5, "clk", "mbarrier, from arrival to the end of the wait (4.5)")
    tmem_load_cycles: float = constant(
        62.6, "clk", "up to 32 columns and the wait: tcgen05.st's 49.8 taken for ld's, 12.8 (4.5; 420 is cited too)"
    )
    column_store_b_clk: float = constant(
        20.0,
        "B/clk",
        "H200, 112 SMs: fp16 where a lane is a column of C, 64 bytes a warp and row; 20 to 29 where 56 store",
    )
    row_store_b_clk: float = constant(
        15.0,
        "B/clk",
        "where a lane is a row of C: H200 7.5 with 16 bytes a lane; 32, whole sectors, assumed twice that",
    )
    bulk_store_b_clk: float = constant(32.0, "B/clk", "bulk copy out of an SM's shared memory (4.2)")
    remote_b_clk: float = constant(21.0, "B/clk", "to another SM of a cluster of two (4.2); an H200 has 20")
    remote_latency_cycles: float = constant(
        270.0, "clk", "H200: st.async to another CTA until its mbarrier's wait ends, less the bytes' time"
    )
    cluster_barrier_cycles: float = constant(365.0, "clk", "H200: barrier.cluster, 356 to 374 for 2, 4 and 8 CTAs")
    prologue_us: float = constant(0.7, "us", "barriers, tensor memory, descriptors (2.9, derived)")
    plain_gap_us: float = constant(
        3.04,
        "us",
        "tiny CUB kernels back to back, 4.09 (4.6), less the 1.05 that this kernel takes beyond an H200's gap",
    )
    dependent_gap_us: float = constant(
        0.77, "us", "H200, trigger behind the wait, stores' drain included; 1.64 (4.6) less that 1.05 is 0.59"
    )
    early_trigger_us: float = constant(
        0.15, "us", "H200: further gap if the trigger stands before the wait, 0.1 to 0.3"
    )
    exit_overlap_us: float = constant(
        0.35, "us", "H200: of a prologue this much hides behind the drain where CTAs are not co-resident"
    )
    cp_async_cycles: float = constant(
        4.0, "clk", "assumed: cp.async of 16 bytes a lane at 128 B/clk, and no less for fewer"
    )


# KB in flight on each of 148 SMs against TB/s: TMA streams from DRAM (4.1; where it gives a range, its middle).
FLIGHT = ((0.5, 0.17), (1, 0.32), (2, 0.58), (4, 1.15), (8, 2.15), (16, 3.6), (32, 5.65), (64, 7.14), (128, 7.25))
FLIGHT_SMS = 148
FLIGHT_MEASURED = 7.25 * 0.55  # TB/s and us at which these points hold: they stretch when those constants change

# What is left of remote_b_clk where clusters of 2, 4, 8 all exchange by st.async at once: H200, 20, 14 and 11 B/clk.
REMOTE_SHARE = {2: 1.0, 4: 0.7, 8: 0.55}

GPCS = 8  # 4.1; that SMs are spread over them as evenly as pairs allow is assumed (4.3: 16 to 20 each)

# Two CTAs share an SM: 228 KB less 1 KB of the system's for each; half the tensor memory (2.7).
SHARED = 227 * 1024
HALF_SHARED = 113 * 1024
HALF_COLUMNS = 256


def table() -> list[tuple[str, float, str, str]]:
    """(name, value, unit, source) of each constant."""
    return [(f.name, f.default, f.metadata["unit"], f.metadata["source"]) for f in fields(Constants)]
