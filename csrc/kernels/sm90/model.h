/* Modelled time of one sm90 product: a single call with a cold L2 full of written lines, the dequantize pre-pass
 * included, in microseconds.
 *
 * A stage takes as long as the slower of tensor core and decoding, and part of the other; or its bytes on their way to
 * the SM, if they take longer. Around the stages stand the launch and the first bytes, the pre-pass, the sum over
 * split-K, and the stores. Memory works at the same time. It loses where many rows are read at once.
 *
 * The constants are fitted to measured times: single calls of the first plans of 374 shapes on an H200 and an H100
 * (benchmarks/fit_sm90.py), and calls in CUDA graphs of an H100 (benchmarks/neighbours.py), where chosen plans have to
 * be the fastest, by all of them at once. So each one alone says little about the machine, except where it says that it
 * was measured by itself. Clock, rate of memory, its free rows and L2 are an H200's here, and scaled for another GPU.
 */
#ifndef NVFP4_SM90_MODEL_H
#define NVFP4_SM90_MODEL_H

#include <math.h>
#include <stdint.h>

#include "common/device_props.h"
#include "common/math.h"
#include "kernels/sm90/gemm_config.h"

#define SM90_MODEL_PEAK_GB_S 4814.0 /* of an H200's memory: device_props */

/* Name, value, meaning. */
#define SM90_MODEL_CONSTANTS(X)                                                                                        \
    X(clock_ghz, 1.98)   /* the clock of short runs */                                                                 \
    X(dram_tb_s, 4.3)    /* measured by itself: copies and reads */                                                    \
    X(dequant_tb_s, 4.3) /* measured by itself: what the pre-pass reads and writes */                                  \
    X(l2_bytes, 62914560.0)                                                                                            \
    X(overlap, 6.049)       /* p of memory and SMs that work at once: time^p = memory^p + SMs^p */                     \
    X(dirty, 0.3386)        /* share of the L2 that is written back while the operands arrive */                       \
    X(rows_free, 2.178e+04) /* rows of operands that all CTAs together read at the full rate of memory */              \
    X(row_loss, 0.1827)     /* share of time that each further rows_free rows add */                                   \
    X(fixed_us, 4.153)      /* launch, first bytes from DRAM, the last stage, exit */                                  \
    /* gemm.cu */                                                                                                      \
    X(decode_8, 26.34)        /* values a clock that 8 warps of an SM decode */                                        \
    X(decode_16, 27.9)        /* values a clock that 16 warps of an SM decode */                                       \
    X(in_kernel_us, 1.47)     /* added to fixed_us where mma_b is dequantized in the kernel */                         \
    X(in_kernel_per_clk, 2.9) /* values of mma_b a clock that the warps which dequantize it in the kernel decode */    \
    /* The _raw kernels beside those with the pre-pass, in CUDA graphs on an H100, M = 17 to 64 of nine (N, K): the */ \
    /* difference is off by 0.7 us (rms), with 64 rows and long K by 3 */                                              \
    X(raw_32_clk, 242.0)        /* clocks that a stage takes longer where a warpgroup dequantizes mma_b, of 32 rows */ \
    X(raw_64_clk, 500.0)        /* of 64 */                                                                            \
    X(hidden_mma, 0.4436)       /* share of wgmma's clocks that longer decoding does not hide */                       \
    X(hidden_decode, 0.2115)    /* share of decoding's clocks that longer wgmma does not hide */                       \
    X(ingress_b_clk, 56.0)      /* bytes a clock to one SM; more than any measured plan took */                        \
    X(l2_tb_s, 8.0)             /* rate of the L2 to all SMs */                                                        \
    X(uneven, 1.07)             /* CTAs share rows of mma_a and differ in mma_b: mean of 9 pairs, M = 192 and 256 */   \
    X(store_b_clk, 18.84)       /* bytes of results that an SM stores a clock */                                       \
    X(exchange_us, 1.439)       /* until partial sums of a cluster of two begin to arrive */                           \
    X(exchange_each_us, 0.0794) /* added for each further CTA */                                                       \
    X(exchange_b_clk, 9.028)    /* bytes of partial sums that a CTA receives a clock */                                \
    X(min_worker, 8.0)       /* stages of a stream-K worker, at least: no plan with fewer has been measured to win */  \
    X(partial_b_clk, 21.89)  /* bytes of sums that a worker stores in the workspace a clock */                         \
    X(fixup_b_clk, 42.65)    /* bytes of such sums that a CTA adds to its own a clock */                               \
    X(unaligned_split, 0.97) /* an unaligned split must be at least so much faster (sm90_distribute) */                \
    X(worker_us, 1.598)      /* time from a worker's last stage until its sums are visible */                          \
    X(streamk_us, 1.07)      /* added to fixed_us */                                                                   \
    X(streamk_graph_us, 0.494) /* and with an NVFP4 A, for CUDA graphs: single calls do not need it (sm90_gemm.csv) */ \
    /* dequant.cu */                                                                                                   \
    X(dequant_us, 1.913) /* a launch before another */                                                                 \
    X(bf16_loss, 1.11)   /* times as long with bf16 A */                                                               \
    /* prefill.cu */                                                                                                   \
    X(prefill_fixed_us, 2.75)      /* the kernel's own fixed_us */                                                     \
    X(prefill_loss, 1.296)         /* times as long as wgmma's rate says: these run long, and at a lower clock */      \
    X(prefill_divided_loss, 1.008) /* the same where the kernel dequantizes mma_b, and waits for flags */              \
    X(prefill_divided_us, 0.234)   /* added there */                                                                   \
    X(prefill_bf16_loss, 1.005)    /* bf16_loss of these kernels */                                                    \
    X(prefill_store_b_clk, 15.14)  /* bytes of results that an SM stores a clock */                                    \
    /* nn.cu: 790 calls on an H200, M = 1 to 4096 of four (N, K), fp16 and bf16 A: off by 4 % (rms) */                 \
    X(nn_fixed_us, 3.821)      /* the kernel's own fixed_us */                                                         \
    X(nn_decode_clocks, 713.5) /* clocks that dequantizing a stage takes */                                            \
    X(nn_bf16_loss, 1.122)     /* times as long if it dequantizes to bf16 */                                           \
    X(nn_hidden_mma, 0.5723)   /* share of wgmma's clocks that dequantizing does not hide */                           \
    X(nn_store_b_clk, 8.071)   /* bytes of results that an SM stores a clock */                                        \
    /* gemv.cu */                                                                                                      \
    X(gemv_fixed_us, 4.174)  /* the kernel's own fixed_us */                                                           \
    X(gemv_per_clk, 63.6)    /* values a clock and SM, for one row */                                                  \
    X(gemv_row_cost, 0.5465) /* share of that time that each further row adds */                                       \
    X(gemv_row_loss, 0.0193) /* share of memory's time that each further row adds */                                   \
    X(gemv_row_us, 0.415)    /* added to gemv_fixed_us for each further row */                                         \
    /* units.cu: at 16 (N, K) on an H100 */                                                                            \
    X(units_fixed_us, 3.786) /* the kernel's own fixed_us */                                                           \
    X(units_pair_clk, 143.0) /* clocks of an SM for a step of a pair of units, with 8 rows of A */                     \
    X(units_rows_clk, 1.33)  /* times as many with 16 */                                                               \
    X(units_rows_us, 0.664)  /* added to units_fixed_us for 16 */                                                      \
    X(units_a16_loss, 1.024) /* times as many clocks with a 16-bit A */                                                \
    X(units_unhidden, 0.768) /* share of the clocks of the last step of each warp that no load hides */                \
    X(units_line_loss, 1.12) /* times as long for memory where rows of B begin inside lines of 128 bytes */            \
    X(units_pass_loss, 0.01) /* share of time that each further pass adds */                                           \
    /* grouped.cu: 94 products of experts with bf16 A in CUDA graphs on an H200: off by 5 % (rms) */                   \
    X(grouped_fixed_us, 9.75)       /* the kernel's own fixed_us, that of its pre-pass included */                     \
    X(grouped_decode_clocks, 573.0) /* clocks that dequantizing a stage to bf16 takes */                               \
    X(grouped_mma_clocks, 1.116)    /* times as many as wgmma's rate says: the clock under load is lower */            \
    X(grouped_hidden_mma, 0.762)    /* share of wgmma's clocks that longer dequantizing does not hide */               \
    X(grouped_hidden_decode, 0.575) /* share of dequantizing's clocks that longer wgmma does not hide */               \
    X(grouped_tile_clocks, 4135.0)  /* start and end of a tile */                                                      \
    X(grouped_e2m1_us, 2.28)        /* added with NVFP4 A: 140 products of the kernel before this one on an H100 */    \
    X(activation_us, 2.2) /* gated's kernel in a graph, without its bytes: layers of Qwen3-30B-A3B on an H100 */       \
    /* Products that take less keep a launch of their own for the activation: the next product, which is sm80's, */    \
    /* loads its weights meanwhile. A layer of Qwen3-30B-A3B, one token, on an H100: 28.1 us by two launches, 28.8 */  \
    /* by one */                                                                                                       \
    X(activation_least_us, 18.0)                                                                                       \
    /* grouped_few.cu: 90 products of experts with bf16 A in CUDA graphs on an H200: off by 5 % (rms) */               \
    X(group_few_fixed_us, 10.73)      /* the kernel's own fixed_us */                                                  \
    X(group_few_tile_clocks, 852.0)   /* start and end of a tile */                                                    \
    X(group_few_stage_clocks, 2558.0) /* a stage, where tiles have up to 8 rows */                                     \
    X(group_few_row_clocks, 44.2)     /* more for each row beyond 8 that its wgmma has */                              \
    X(group_few_again, 1.0)           /* share of the time of B to read it again for further rows of a group */        \
    /* grouped_units.cu: 424 products of experts with bf16 A, by any tiling, in CUDA graphs on an H100: off by 7 % */  \
    /* (rms); the tilings that are chosen take 1.7 % longer than the best ones */                                      \
    X(group_units_fixed_us, 8.96)        /* the kernel's own fixed_us */                                               \
    X(group_units_tile_clocks, 2031.0)   /* of a team: start and end of a tile */                                      \
    X(group_units_step_clocks, 436.0)    /* of a warp: A of a step */                                                  \
    X(group_units_pair_clocks, 492.0)    /* a step of a pair, with 8 rows of A, where all warps work */                \
    X(group_units_pair16_clocks, 2500.0) /* the same with 16 rows */                                                   \
    X(group_units_dram, 0.945)           /* share of dram_tb_s with which B is read */                                 \
    X(group_units_tb_s, 3.1)     /* that its loads under way reach at most: products of 1 to 32 tokens on an H200 */   \
    X(group_units_again, 0.9)    /* share of that time to read B again for further rows of a group */                  \
    X(group_units_hidden, 0.259) /* share of the shorter of memory and warps that the longer does not hide */          \
    /* factors of the time by teams a CTA, which rank teams: layers have corrected the fit */                          \
    X(group_units_teams8, 1.113) /* with 8 */                                                                          \
    X(group_units_teams4, 0.975) /* with 4 */                                                                          \
    X(group_units_teams2, 0.95)  /* with 2 */                                                                          \
    X(group_units_teams1, 1.0)   /* with 1 */

typedef struct sm90_model {
#define X(name, value) double name;
    SM90_MODEL_CONSTANTS(X)
#undef X
} sm90_model;

/* CTAs that run at a time, one an SM, in whole clusters. Clusters lie in one GPC of some 16 SMs each, of which larger
 * ones leave some idle. Measured: 66 clusters of 2, 36 of 3, 28 of 4, 18 of 5 and 16 of 6 run at once; 32 of 4, 18 of
 * 6, 16 of 7 and 16 of 8 do not. Of another H200 the driver says 66, 39, 30, 22, 17, 15 and 15 of 2 to 8, and 40 of 3
 * do not run at once (cuOccupancyMaxActiveClusters). */
static inline int64_t sm90_ctas_that_fit(int32_t sm_count, int32_t cluster) {
    const int64_t usable = cluster <= 2   ? sm_count
                           : cluster == 3 ? sm_count * 7 / 8
                           : cluster == 4 ? sm_count * 10 / 11
                                          : sm_count * 3 / 4;
    return usable < cluster ? cluster : usable / cluster * cluster;
}

/* The distribution of a stream-K kernel's work (sm90/schedule.cuh). */
typedef struct sm90_streamk_split {
    int32_t dp_tiles;        /* data-parallel tiles */
    int32_t worker_clusters; /* 0: not a stream-K kernel */
    int32_t streamk_stages;  /* of a tile, that workers compute */
    int32_t worker_stages;   /* of a worker */
} sm90_streamk_split;

typedef struct sm90_model_input {
    int64_t mma_m, mma_n, k, l; /* rows of mma_a and of mma_b (sm90/gemm_config.h); at least 1 */
    int32_t sm_count;
    int32_t mma_tile_m, mma_tile_n;
    int32_t stage_k;            /* values along K of a stage */
    int32_t warps;              /* that decode */
    int32_t split_k;            /* 1 to 8; at most ceil(k / stage_k) */
    int32_t partials_bytes;     /* of partial sums that a CTA receives */
    int32_t dequant_b;          /* who decodes mma_b (gemm_config.h); 0: the pre-pass */
    int64_t dequant_batches;    /* of mma_b: l, or 1 where one serves all; 0 where there is no pre-pass */
    int32_t output_bytes;       /* of an element */
    int32_t partial_tile_bytes; /* that a worker stores for a tile */
    sm90_streamk_split streamk;
} sm90_model_input;

/* The constants on a device. */
static inline sm90_model sm90_model_of(const sm90_model *h200, const device_props *props) {
    sm90_model m = *h200;
    const double memory = props->memory_gb_s ? props->memory_gb_s / SM90_MODEL_PEAK_GB_S : 1.0;
    m.dram_tb_s *= memory, m.rows_free *= memory;
    if (props->clock_mhz) m.clock_ghz = props->clock_mhz * 1e-3;
    m.l2_tb_s *= m.clock_ghz / h200->clock_ghz;
    if (props->l2_bytes) m.l2_bytes = (double)props->l2_bytes;
    return m;
}

static inline double sm90_clocks_us(const sm90_model *m, double clocks) {
    return clocks * 1e-3 / m->clock_ghz;
}

/* Bytes of a value, its share of the scales included; and of a dequantized one. */
#define SM90_RAW_BYTES  (0.5 + 1.0 / 16)
#define SM90_FP16_BYTES 2.0

/* Until so many bytes have come from DRAM, while lines of the L2 are written back. */
static inline double sm90_memory_us(const sm90_model *m, double bytes, double rows) {
    const double written_back = bytes < m->l2_bytes ? bytes : m->l2_bytes;
    const double loss = 1.0 + m->row_loss * max_double(rows / m->rows_free - 1.0, 0.0);
    return (bytes + m->dirty * written_back) / m->dram_tb_s * 1e-6 * loss;
}

/* The pre-pass over so many values. */
static inline double sm90_dequant_time_us(const sm90_model *m, double values) {
    const double bytes = values * (SM90_FP16_BYTES + SM90_RAW_BYTES);
    return values > 0 ? m->dequant_us + bytes / m->dequant_tb_s * 1e-6 : 0.0;
}

/* Receiving so many bytes of partial sums. */
static inline double sm90_exchange_time_us(const sm90_model *m, int32_t split_k, double bytes) {
    return m->exchange_us + m->exchange_each_us * (split_k - 2) + sm90_clocks_us(m, bytes / m->exchange_b_clk);
}

/* Bytes of a value of mma_b on its way to the SM. */
static inline double sm90_mma_b_value_bytes(const sm90_model_input *in) {
    return in->dequant_b ? SM90_RAW_BYTES : SM90_FP16_BYTES;
}

/* A stage in gemm.cu. wgmma takes steps of 16 along K, each mma_tile_n / 2 clocks for 64 rows of mma_a. */
static inline double sm90_stage_us(const sm90_model *m, const sm90_model_input *in) {
    const double tensor = in->mma_tile_m / 64 * (in->stage_k / 16) * (in->mma_tile_n / 2.0);
    const double mma_a = in->mma_tile_m * in->stage_k / (in->warps <= 8 ? m->decode_8 : m->decode_16);
    const double mma_b = in->dequant_b == 1 ? in->mma_tile_n * in->stage_k / m->in_kernel_per_clk : 0.0;
    const double decode = overlapped(mma_a, mma_b, m->overlap);
    const double both = tensor < decode ? decode + m->hidden_mma * tensor : tensor + m->hidden_decode * decode;
    const double rows_a = (double)min_int(in->mma_m, in->mma_tile_m);
    const double rows_b = (double)min_int(in->mma_n, in->mma_tile_n);
    const double arriving = (rows_a * SM90_RAW_BYTES + rows_b * sm90_mma_b_value_bytes(in)) * in->stage_k;
    const double raw = !SM90_DEQUANT_FROM_STAGES(in->dequant_b) ? 0.0
                       : in->mma_tile_n <= 32                   ? m->raw_32_clk
                                                                : m->raw_64_clk;
    return sm90_clocks_us(m, max_double(both + raw, arriving / m->ingress_b_clk));
}

static inline int64_t sm90_tiles(const sm90_model_input *in) {
    return ceil_div(in->mma_m, in->mma_tile_m) * ceil_div(in->mma_n, in->mma_tile_n) * in->l;
}

/* The cost of a work tile to a worker, beside its stages. */
static inline double sm90_work_tile_us(const sm90_model *m, const sm90_model_input *in) {
    return sm90_clocks_us(m, in->partial_tile_bytes / m->partial_b_clk);
}

/* The time to receive the sums of a cluster's other CTAs. */
static inline double sm90_cluster_us(const sm90_model *m, const sm90_model_input *in) {
    return in->split_k > 1 ? sm90_exchange_time_us(m, in->split_k, in->partials_bytes) : 0.0;
}

/* The time of a stream-K tile, from its first stages until the fix-up ends. */
static inline double sm90_streamk_tile_us(const sm90_model *m, const sm90_model_input *in, int64_t stages,
                                          double stage_us) {
    const int64_t of_tile = in->streamk.streamk_stages, of_worker = in->streamk.worker_stages;
    const int64_t own = ceil_div(stages - of_tile, in->split_k);
    const int aligned = of_worker % of_tile == 0 || of_tile % of_worker == 0;
    const int64_t work_tiles = ceil_div(of_worker, of_tile) + !aligned; /* of a worker */
    const int64_t added = ceil_div(of_tile, of_worker) + !aligned;      /* to a tile */
    const double own_us = (double)own * stage_us + sm90_cluster_us(m, in);
    const double worker_us =
        (double)of_worker * stage_us + (double)work_tiles * sm90_work_tile_us(m, in) + m->worker_us;
    const double add_us = sm90_clocks_us(m, (double)in->partial_tile_bytes / in->split_k / m->fixup_b_clk);
    return max_double(own_us, worker_us) + (double)added * add_us;
}

/* Chooses the stages of each worker and of each stream-K tile so that `workers` workers and the clusters that own
 * the `rest` stream-K tiles end at the same time. All workers take equally many stages. An aligned split gives a
 * worker whole work tiles: one of each of some tiles, or one of several of a tile. An unaligned one lets them end at
 * any stage. Returns the time; infinity: no worker would have so many stages that more is won than lost. */
static inline double sm90_distribute(const sm90_model *m, sm90_model_input *in, int64_t workers, int64_t rest,
                                     int unaligned) {
    const double split = in->split_k, tiles_each = (double)rest / (double)workers;
    const int64_t stages = ceil_div(in->k, in->stage_k);
    const double stage_us = sm90_stage_us(m, in), work_tile = sm90_work_tile_us(m, in) / stage_us; /* in stages */
    /* The time that a worker needs beside its work tiles, less that of the clusters. */
    const double later = (m->worker_us - sm90_cluster_us(m, in)) / stage_us, own = (double)stages / split - later;
    int64_t of_tile, of_worker;
    if (unaligned) {
        of_tile = (int64_t)((own - (tiles_each + 1.0) * work_tile) / (tiles_each + 1.0 / split));
        of_worker = ceil_div(rest * of_tile, workers);
    } else {
        const int64_t workers_a_tile = workers >= rest ? workers / rest : 1, tiles_a_worker = ceil_div(rest, workers);
        of_worker = (int64_t)((own - (double)tiles_a_worker * work_tile) /
                              ((double)tiles_a_worker + (double)workers_a_tile / split));
        of_tile = of_worker * workers_a_tile, of_worker *= tiles_a_worker;
    }
    if (of_worker < m->min_worker || of_tile < 2 || of_tile > stages - in->split_k) return INFINITY;
    const double divisor = (double)(of_tile > of_worker ? of_tile : of_worker);
    if ((double)rest * (double)of_tile * divisor >= 2147483648.0) return INFINITY; /* the kernel's divisions */
    in->streamk.streamk_stages = (int32_t)of_tile;
    in->streamk.worker_stages = (int32_t)of_worker;
    return sm90_streamk_tile_us(m, in, stages, stage_us);
}

/* Distributes the work of a stream-K kernel; 0: no CTA would be left to be a worker, or no tile to work on. Fewer than
 * all possible workers are tried as well, since to add up many sums takes long. */
static inline int sm90_plan_streamk(const sm90_model *m, sm90_model_input *in) {
    const int64_t tiles = sm90_tiles(in), split = in->split_k, clusters = in->sm_count / split;
    const int64_t dp_tiles = split == 1 ? tiles / clusters * clusters : 0, rest = tiles - dp_tiles;
    const int64_t most = (clusters - rest) * split;
    if (rest < 1 || rest >= clusters || most > SM90_MAX_WORKERS) return 0;
    sm90_streamk_split best = {.worker_clusters = 0};
    double least = INFINITY;
    in->streamk.dp_tiles = (int32_t)dp_tiles;
    for (int64_t workers = most, unaligned = 0; workers >= (most < rest ? most : rest);
         workers /= 1 + unaligned, unaligned = !unaligned) {
        const double us = sm90_distribute(m, in, workers, rest, (int)unaligned);
        if (us >= (unaligned ? m->unaligned_split : 1.0) * least) continue;
        const int64_t needed = ceil_div(rest * in->streamk.streamk_stages, in->streamk.worker_stages);
        in->streamk.worker_clusters = (int32_t)(dp_tiles ? clusters - rest : ceil_div(needed, split));
        least = us, best = in->streamk;
    }
    in->streamk = best;
    return best.worker_clusters > 0;
}

/* The time by gemm.cu. */
static inline double sm90_gemm_time_us(const sm90_model *m, const sm90_model_input *in) {
    const int64_t tiles_m = ceil_div(in->mma_m, in->mma_tile_m), tiles_n = ceil_div(in->mma_n, in->mma_tile_n);
    const int64_t tiles = sm90_tiles(in), all_stages = ceil_div(in->k, in->stage_k);
    const int64_t stages = ceil_div(all_stages, in->split_k);
    const double l = (double)in->l, k = (double)in->k, stage = sm90_stage_us(m, in);
    const double rows_a = (double)min_int(in->mma_m, in->mma_tile_m);
    const double rows_b = (double)min_int(in->mma_n, in->mma_tile_n);

    /* A tile's end. */
    double end = sm90_clocks_us(m, rows_a * rows_b * in->output_bytes / in->split_k / m->store_b_clk);
    if (in->split_k > 1 && !in->streamk.worker_clusters)
        end += sm90_exchange_time_us(m, in->split_k, in->partials_bytes);

    /* Without split-K a CTA an SM takes tile after tile; with it a cluster takes one, and another follows it. */
    double busy;
    if (in->streamk.worker_clusters) {
        const int64_t rounds = in->streamk.dp_tiles / (tiles - in->streamk.dp_tiles + in->streamk.worker_clusters);
        busy = (double)rounds * ((double)stages * stage + end) + sm90_streamk_tile_us(m, in, all_stages, stage) + end;
    } else {
        const int64_t fit = sm90_ctas_that_fit(in->sm_count, in->split_k) / in->split_k;
        const int64_t rounds = ceil_div(tiles, fit);
        busy = (double)rounds * ((double)stages * stage + end);
    }

    if (tiles_n > 1 && in->mma_n % in->mma_tile_n) busy *= m->uneven;

    const double bytes_a = (double)in->mma_m * k * SM90_RAW_BYTES;
    const double bytes_b = (double)in->mma_n * k * sm90_mma_b_value_bytes(in);
    const double stores = (double)in->mma_m * (double)in->mma_n * in->output_bytes;
    const double dram = l * (bytes_a + stores);
    const double rows_at_once = (double)min_int(tiles * in->split_k, in->sm_count) * rows_a;
    const double from_l2 = l * (bytes_a * (double)tiles_n + bytes_b * (double)tiles_m);
    const double memory = max_double(sm90_memory_us(m, dram, rows_at_once), from_l2 / m->l2_tb_s * 1e-6);
    const double values = (double)in->dequant_batches * (double)in->mma_n * k;
    const double fixed = m->fixed_us + (in->dequant_b == 1 ? m->in_kernel_us : 0.0) +
                         (in->streamk.worker_clusters ? m->streamk_us : 0.0);
    return fixed + sm90_dequant_time_us(m, values) + overlapped(busy, memory, m->overlap);
}

#endif
