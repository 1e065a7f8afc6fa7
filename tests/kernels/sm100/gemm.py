"""Operands, schedule and grid of csrc/kernels/sm100/gemm.cu."""

from __future__ import annotations

from harness import launch
from harness.headers import Config, Struct, headers_of
from harness.launch import EVICT_FIRST, EVICT_LAST, SWIZZLE_128, UINT16
from harness.values import FP32, ceil_div

HEADERS = headers_of("sm100")
CONFIGS = HEADERS.configs("gemm")
Operand, Schedule = HEADERS.structs["mma_operand"], HEADERS.structs["sm100_schedule"]
Divisor = HEADERS.structs["fast_divisor"]
STAGE_K, ATOM_ROWS = HEADERS.value("SM100_STAGE_K"), HEADERS.value("SM100_ATOM_ROWS")
STAGE_ATOMS, CTA_ROWS = HEADERS.value("SM100_STAGE_ATOMS"), HEADERS.value("SM100_CTA_ROWS")


def mma_tile_m(config: Config) -> int:
    return CTA_ROWS * config.cta_group


def splits(config: Config) -> list[int]:
    """Every split_k."""
    return [split for split in (1, 2, 4, 8) if cluster(config, split) <= 8 and config.mma_tile_n >= 4 * split]


def cluster(config: Config, split_k: int = 1) -> int:
    """CTAs."""
    return config.cta_group * config.multicast * split_k


def divisor(d: int) -> Struct:
    shift = (d - 1).bit_length()
    return Divisor(multiplier=ceil_div(1 << 31 + shift, d), shift=shift)


def tmem_base(seed: int, cluster: int) -> int:
    """The first free tensor memory column. For clusters it is 0: with fewer free columns, two clusters could each hold
    columns on an SM that the other needs, and deadlock. On a B200 that cannot happen: shared memory admits no more CTAs
    to an SM than tensor memory does."""
    return seed % 5 * 32 if cluster == 1 else 0


def column_pairs(problem: Struct, swap_ab: bool) -> int:
    """The plan's rule; a kernel may do without."""
    aligned = (problem.out | problem.out_pitch | problem.out_batch) % 4 == 0
    return int(swap_ab and problem.out_type != FP32 and problem.n % 2 == 0 and aligned)


class Product(launch.Product):
    constant_b = False  # the caller's word: grids before do not write B

    def operand(self, which: int, box_rows: int, cache_policy: int) -> Struct:
        operand = Operand(cache_policy=cache_policy, **self.placed(which))
        if self.k and self.problem().aligned16:
            operand.values = self.values_map(which, (STAGE_K // 2, box_rows, 1), SWIZZLE_128)
        return operand

    def scales_map(self, which: int, box_rows: int) -> Struct:
        placed = self.placed(which)
        return self.tensor_map(
            UINT16, self.arrays[2 * which + 1],
            (256, ceil_div(self.k, 64), ceil_div(self.rows(which), ATOM_ROWS), self.l),
            (512, placed["scale_pitch"], placed["scale_batch"]),
            (256, STAGE_ATOMS, ceil_div(box_rows, ATOM_ROWS), 1),
        )  # fmt: skip

    def schedule(self, config: Config, swap_ab: bool, split_k: int, in_stages: bool = False) -> Struct:
        mma_a, mma_b = (1, 0) if swap_ab else (0, 1)
        tiles_mma_m = ceil_div(self.rows(mma_a), mma_tile_m(config))
        tiles_mma_n = ceil_div(self.rows(mma_b), config.mma_tile_n)
        assert tiles_mma_n % config.multicast == 0, f"{config} takes {config.multicast} tiles of mma_b at a time"
        schedule = Schedule(
            mma_a=self.operand(mma_a, CTA_ROWS // config.multicast, EVICT_FIRST),
            mma_b=self.operand(mma_b, config.mma_tile_n // config.cta_group, EVICT_LAST),
            tiles=tiles_mma_m * tiles_mma_n * self.l, tiles_mma_m=tiles_mma_m, tiles_mma_n=tiles_mma_n,
            inv_tiles_mma_m=divisor(tiles_mma_m), inv_tiles_mma_n=divisor(tiles_mma_n), split_k=split_k,
            k_stages=ceil_div(self.k, STAGE_K), swap_ab=int(swap_ab), values_by_tma=int(self.pitch % 16 == 0),
            prefetch_stages=3, partials_in_stages=int(in_stages),
            column_pairs=column_pairs(self.problem(), swap_ab),
            constant_operand=1 + mma_b if self.constant_b and not config.cp_async else 0,
        )  # fmt: skip
        if self.k and config.cta_group == 2:
            schedule.mma_a_scales = self.scales_map(mma_a, CTA_ROWS)
            schedule.mma_b_scales = self.scales_map(mma_b, config.mma_tile_n)
        return schedule

    def clusters(self, config: Config, schedule: Struct, split_k: int) -> int:
        return schedule.tiles // config.multicast

    def grid(self, config: Config, split_k: int, clusters: int) -> tuple[int, int]:
        return clusters * cluster(config, split_k), cluster(config, split_k)
