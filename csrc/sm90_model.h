/* Modelled time of a product on sm90, in microseconds: an H200, single call, cold L2, dequantize pre-pass included.
 *
 * A stage takes the longest of tensor core, dequantization, and its bytes on the way to the SM. Around the stages are
 * the launch and the first bytes, the pre-pass, the sums of split-K and stream-K, and the stores.
 *
 * benchmarks/fit_sm90.py fits the constants, all at once, to measured times of the first plans of 136 shapes. A single
 * constant says little about the machine, unless its comment says that it was measured alone. */
#ifndef NVFP4_SM90_MODEL_H
#define NVFP4_SM90_MODEL_H

#include <math.h>
#include <stdint.h>

#include "sm90_configs.h"

#define SM90_CLOCK_GHZ    1.98 /* short runs */
#define SM90_DRAM_TB_S    4.3  /* measured alone: copies and reads */
#define SM90_DEQUANT_TB_S 4.3  /* measured alone: bytes read and written by sm90_dequant.cu */

#define SM90_FIXED_US 3.491 /* launch, first bytes from DRAM, last stage, exit */

/* sm90_gemm.cu */
#define SM90_DECODE_8      22.32  /* values per clock dequantized by 8 warps of an SM */
#define SM90_DECODE_16     25.64  /* by 16 warps */
#define SM90_UNCOVERED     0.3788 /* share of the shorter of wgmma and dequantization that is not hidden */
#define SM90_INGRESS_B_CLK 56.0   /* to one SM; more than any measured plan takes */
#define SM90_L2_TB_S       8.0    /* to all SMs */
#define SM90_UNEVEN                                                                                                    \
    1.07 /* CTAs that share rows of mma_a, with rows of mma_b unevenly divided: mean of 9 pairs, M = 192 and 256 */
#define SM90_STORE_B_CLK    8.263 /* output, an SM */
#define SM90_EXCHANGE_US    1.256 /* until partials begin to arrive */
#define SM90_EXCHANGE_B_CLK 13.14 /* partials received by a CTA */

#define SM90_LEAST_HELP   8.0   /* stages of a stream-K worker: no plan with fewer is measured to win */
#define SM90_PIECE_B_CLK  21.89 /* partial tiles stored by a worker */
#define SM90_ADD_B_CLK    42.65 /* partial tiles added by a CTA (fix-up) */
#define SM90_WHOLE_PIECES 0.97  /* of the time: below it an uneven division into partial tiles is taken */
#define SM90_HELP_US      1.598 /* from a worker's last stage until its partial tile is visible */

/* sm90_dequant.cu */
#define SM90_DEQUANT_US 1.989 /* a launch before another */

/* sm90_prefill.cu */
#define SM90_PREFILL_FIXED_US    5.582 /* as SM90_FIXED_US */
#define SM90_PREFILL_LOSS        1.157 /* wgmma time over its nominal rate: long runs, lower clock */
#define SM90_PREFILL_STORE_B_CLK 8.566 /* output, an SM */

/* sm90_gemv.cu */
#define SM90_GEMV_FIXED_US 3.902  /* as SM90_FIXED_US */
#define SM90_GEMV_PER_CLK  39.76  /* values per clock and SM, one row */
#define SM90_GEMV_ROW_COST 0.4219 /* of that time, a further row */

/* sm80_gemm.cu, for the choice between the families: 16 shapes of M = 1 to 2304 (benchmarks/results/h200.json) */
#define SM80_FIXED_US     7.0   /* as SM90_FIXED_US */
#define SM80_DECODE_CLK   21.0  /* values per clock and SM, loaded and dequantized */
#define SM80_MULTIPLY_CLK 585.0 /* products per clock and SM */

/* Concurrent CTAs, one an SM, in whole clusters. A cluster lies in one GPC of about 16 SMs, so larger clusters leave
 * some SMs idle. Measured: 66 clusters of 2, 36 of 3, 28 of 4, 18 of 5 and 16 of 6 run at once; 32 of 4, 18 of 6, 16 of
 * 7 and 16 of 8 do not. */
static inline int64_t sm90_ctas_that_fit(int32_t sm_count, int32_t cluster) {
    const int64_t usable = cluster <= 2   ? sm_count
                           : cluster == 3 ? sm_count * 15 / 16
                           : cluster == 4 ? sm_count * 10 / 11
                                          : sm_count * 3 / 4;
    return usable < cluster ? cluster : usable / cluster * cluster;
}

/* The division of work of a stream-K kernel (sm90_schedule.cuh). */
typedef struct sm90_streamk_split {
    int32_t dp_tiles;        /* data-parallel */
    int32_t worker_clusters; /* 0: not a stream-K kernel */
    int32_t streamk_stages, worker_stages;
} sm90_streamk_split;

typedef struct sm90_model_input {
    int64_t mma_m, mma_n, k, l; /* rows of mma_a and of mma_b; all at least 1 */
    int32_t sm_count;
    int32_t mma_tile_m, mma_tile_n;
    int32_t stage_k;             /* values along K of a stage */
    int32_t warps;               /* that dequantize mma_a */
    int32_t split_k;             /* 1 to 8; at most ceil(k / stage_k) */
    int32_t partials_bytes;      /* partials received by a CTA */
    int32_t dequant_b_in_kernel; /* no pre-pass */
    int64_t dequant_batches;     /* of mma_b: L, or 1 if one matrix serves all; 0 without pre-pass */
    int32_t output_bytes;        /* of an element */
    int32_t partial_tile_bytes;  /* stored by a worker */
    sm90_streamk_split streamk;
} sm90_model_input;

static inline double sm90_max(double a, double b) {
    return a > b ? a : b;
}

static inline int64_t sm90_least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline double sm90_clocks_us(double clocks) {
    return clocks * 1e-3 / SM90_CLOCK_GHZ;
}

/* Bytes of an NVFP4 value, with its share of the scales, and of a dequantized one. */
#define SM90_RAW_BYTES  (0.5 + 1.0 / 16)
#define SM90_FP16_BYTES 2.0

/* Dequantize pre-pass of so many values. */
static inline double sm90_dequant_us(double values) {
    const double bytes = values * (SM90_FP16_BYTES + SM90_RAW_BYTES);
    return values > 0 ? SM90_DEQUANT_US + bytes / SM90_DEQUANT_TB_S * 1e-6 : 0.0;
}

/* Exchange of partials: bytes that a CTA receives. */
static inline double sm90_exchange_us(double bytes) {
    return SM90_EXCHANGE_US + sm90_clocks_us(bytes / SM90_EXCHANGE_B_CLK);
}

/* The same product on sm80. */
static inline double sm90_sm80_us(double m, double n, double k, double l, int32_t sm_count) {
    const double clocks = (m + n) / SM80_DECODE_CLK + m * n / SM80_MULTIPLY_CLK;
    return SM80_FIXED_US + sm90_clocks_us(clocks * k * l / sm_count);
}

/* Bytes of a value of mma_b on its way to the SM. */
static inline double sm90_mma_b_value_bytes(const sm90_model_input *in) {
    return in->dequant_b_in_kernel ? SM90_RAW_BYTES : SM90_FP16_BYTES;
}

/* A stage in sm90_gemm.cu. A wgmma K-step of 16 takes mma_tile_n / 2 clocks for 64 rows of mma_a. */
static inline double sm90_stage_us(const sm90_model_input *in) {
    const double tensor = in->mma_tile_m / 64 * (in->stage_k / 16) * (in->mma_tile_n / 2.0);
    const double decoded = (in->mma_tile_m + (in->dequant_b_in_kernel ? in->mma_tile_n : 0)) * in->stage_k;
    const double decode = decoded / (in->warps <= 8 ? SM90_DECODE_8 : SM90_DECODE_16);
    const double both = sm90_max(tensor, decode) + SM90_UNCOVERED * (tensor < decode ? tensor : decode);
    const double rows_m = (double)sm90_least(in->mma_m, in->mma_tile_m);
    const double rows_n = (double)sm90_least(in->mma_n, in->mma_tile_n);
    const double arriving = (rows_m * SM90_RAW_BYTES + rows_n * sm90_mma_b_value_bytes(in)) * in->stage_k;
    return sm90_clocks_us(sm90_max(both, arriving / SM90_INGRESS_B_CLK));
}

static inline int64_t sm90_tiles(const sm90_model_input *in) {
    return SM90_CEIL_DIV(in->mma_m, in->mma_tile_m) * SM90_CEIL_DIV(in->mma_n, in->mma_tile_n) * in->l;
}

/* Cost of a partial tile for a worker, beside its stages. */
static inline double sm90_partial_tile_us(const sm90_model_input *in) {
    return sm90_clocks_us(in->partial_tile_bytes / SM90_PIECE_B_CLK);
}

/* The exchange of partials in a cluster. */
static inline double sm90_cluster_us(const sm90_model_input *in) {
    return in->split_k > 1 ? sm90_exchange_us(in->partials_bytes) : 0.0;
}

/* A stream-K tile: from its first stage to the end of the fix-up. */
static inline double sm90_streamk_tile_us(const sm90_model_input *in, int64_t stages, double stage_us) {
    const int64_t streamk_stages = in->streamk.streamk_stages, worker_stages = in->streamk.worker_stages;
    const int64_t own = SM90_CEIL_DIV(stages - streamk_stages, in->split_k);
    const int whole_pieces = worker_stages % streamk_stages == 0 || streamk_stages % worker_stages == 0;
    const int64_t pieces = SM90_CEIL_DIV(worker_stages, streamk_stages) + !whole_pieces; /* of a worker */
    const int64_t added = SM90_CEIL_DIV(streamk_stages, worker_stages) + !whole_pieces;  /* to a tile */
    const double own_us = (double)own * stage_us + sm90_cluster_us(in);
    const double worker_us =
        (double)worker_stages * stage_us + (double)pieces * sm90_partial_tile_us(in) + SM90_HELP_US;
    const double add_us = sm90_clocks_us((double)in->partial_tile_bytes / in->split_k / SM90_ADD_B_CLK);
    return sm90_max(own_us, worker_us) + (double)added * add_us;
}

/* Chooses streamk_stages and worker_stages such that workers and owners end together. All workers take equally many
 * stages: whole partial tiles (one of each of some tiles, or one of several of a tile), or with `uneven` any division.
 * Returns the time; infinity if a worker would have too few stages to gain. */
static inline double sm90_streamk_us(sm90_model_input *in, int64_t workers, int64_t streamk_tiles, int uneven) {
    const double split = in->split_k, tiles_each = (double)streamk_tiles / (double)workers;
    const int64_t stages = SM90_CEIL_DIV(in->k, in->stage_k);
    const double stage_us = sm90_stage_us(in), piece = sm90_partial_tile_us(in) / stage_us; /* in stages */
    /* Time of a worker beside its stages and partial tiles, less that of an owner. */
    const double later = (SM90_HELP_US - sm90_cluster_us(in)) / stage_us, own = (double)stages / split - later;
    int64_t streamk_stages, worker_stages;
    if (uneven) {
        streamk_stages = (int64_t)((own - (tiles_each + 1.0) * piece) / (tiles_each + 1.0 / split));
        worker_stages = SM90_CEIL_DIV(streamk_tiles * streamk_stages, workers);
    } else {
        const int64_t of_tile = workers >= streamk_tiles ? workers / streamk_tiles : 1,
                      of_worker = SM90_CEIL_DIV(streamk_tiles, workers);
        worker_stages = (int64_t)((own - (double)of_worker * piece) / ((double)of_worker + (double)of_tile / split));
        streamk_stages = worker_stages * of_tile, worker_stages *= of_worker;
    }
    if (worker_stages < SM90_LEAST_HELP || streamk_stages < 2 || streamk_stages > stages - in->split_k) return INFINITY;
    const double divisor = (double)(streamk_stages > worker_stages ? streamk_stages : worker_stages);
    if ((double)streamk_tiles * (double)streamk_stages * divisor >= 2147483648.0)
        return INFINITY; /* range of the kernel's divide() */
    in->streamk.streamk_stages = (int32_t)streamk_stages;
    in->streamk.worker_stages = (int32_t)worker_stages;
    return sm90_streamk_tile_us(in, stages, stage_us);
}

/* Divides the work of a stream-K kernel; 0 if no CTA would be a worker, or no tile would be stream-K. Fewer workers
 * than possible are tried as well, since the fix-up of many partial tiles takes long. */
static inline int sm90_split_streamk(sm90_model_input *in) {
    const int64_t tiles = sm90_tiles(in), split = in->split_k, clusters = in->sm_count / split;
    const int64_t dp_tiles = split == 1 ? tiles / clusters * clusters : 0, streamk_tiles = tiles - dp_tiles;
    const int64_t most = (clusters - streamk_tiles) * split;
    if (streamk_tiles < 1 || streamk_tiles >= clusters || most > SM90_MAX_WORKERS) return 0;
    sm90_streamk_split best = {.worker_clusters = 0};
    double least = INFINITY;
    in->streamk.dp_tiles = (int32_t)dp_tiles;
    for (int64_t workers = most, uneven = 0; workers >= (most < streamk_tiles ? most : streamk_tiles);
         workers /= 1 + uneven, uneven = !uneven) {
        const double us = sm90_streamk_us(in, workers, streamk_tiles, (int)uneven);
        if (us >= (uneven ? SM90_WHOLE_PIECES : 1.0) * least) continue;
        const int64_t needed = SM90_CEIL_DIV(streamk_tiles * in->streamk.streamk_stages, in->streamk.worker_stages);
        in->streamk.worker_clusters = (int32_t)(dp_tiles ? clusters - streamk_tiles : SM90_CEIL_DIV(needed, split));
        least = us, best = in->streamk;
    }
    in->streamk = best;
    return best.worker_clusters > 0;
}

/* Time of sm90_gemm.cu. */
static inline double sm90_estimate_us(const sm90_model_input *in) {
    const int64_t tiles_m = SM90_CEIL_DIV(in->mma_m, in->mma_tile_m),
                  tiles_n = SM90_CEIL_DIV(in->mma_n, in->mma_tile_n);
    const int64_t tiles = sm90_tiles(in), all_stages = SM90_CEIL_DIV(in->k, in->stage_k);
    const int64_t stages = SM90_CEIL_DIV(all_stages, in->split_k);
    const double b_value_bytes = sm90_mma_b_value_bytes(in);
    const double l = (double)in->l, k = (double)in->k, stage = sm90_stage_us(in);
    const double rows_m = (double)sm90_least(in->mma_m, in->mma_tile_m);
    const double rows_n = (double)sm90_least(in->mma_n, in->mma_tile_n);

    double end = sm90_clocks_us(rows_m * rows_n * in->output_bytes / in->split_k / SM90_STORE_B_CLK);
    if (in->split_k > 1 && !in->streamk.worker_clusters) end += sm90_exchange_us(in->partials_bytes);

    /* split_k = 1: a CTA an SM takes tile after tile. split_k > 1: a cluster takes one tile, and another cluster
     * follows in its place. */
    double busy;
    if (in->streamk.worker_clusters) {
        const int64_t rounds = in->streamk.dp_tiles / (tiles - in->streamk.dp_tiles + in->streamk.worker_clusters);
        busy = (double)rounds * ((double)stages * stage + end) + sm90_streamk_tile_us(in, all_stages, stage) + end;
    } else {
        const int64_t fit = sm90_ctas_that_fit(in->sm_count, in->split_k) / in->split_k;
        const int64_t rounds = SM90_CEIL_DIV(tiles, fit);
        busy = (double)rounds * ((double)stages * stage + end);
    }

    if (tiles_n > 1 && in->mma_n % in->mma_tile_n) busy *= SM90_UNEVEN;

    const double a_bytes = (double)in->mma_m * k * SM90_RAW_BYTES, b_bytes = (double)in->mma_n * k * b_value_bytes;
    const double stores = (double)in->mma_m * (double)in->mma_n * in->output_bytes;
    const double dram = l * (a_bytes + stores);
    const double handed = l * (a_bytes * (double)tiles_n + b_bytes * (double)tiles_m);
    const double streamed = sm90_max(dram / SM90_DRAM_TB_S, handed / SM90_L2_TB_S) * 1e-6;
    const double values = (double)in->dequant_batches * (double)in->mma_n * k;
    return SM90_FIXED_US + sm90_dequant_us(values) + sm90_max(busy, streamed + end);
}

#endif
