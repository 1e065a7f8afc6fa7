/* Modelled time of one sm90 product: a single call with a cold L2 full of written lines, the dequantize pre-pass
 * included, in microseconds.
 *
 * A stage takes as long as the slower of tensor core and decoding, and part of the other; or its bytes on their way to
 * the SM, if they take longer. Around the stages stand the launch and the first bytes, the pre-pass, the sum over
 * split-K, and the stores. Memory works at the same time. It loses where many rows are read at once.
 *
 * The constants are those of a card (cards.c): benchmarks/fit_sm90.py measures plans on it and fits them, so that the
 * chosen plans are the fastest. They are fitted all at once, so one alone says less about the machine than all do.
 */
#ifndef NVFP4_SM90_MODEL_H
#define NVFP4_SM90_MODEL_H

#include <math.h>
#include <stdint.h>

#include "common/device_props.h"
#include "common/math.h"
#include "kernels/sm90/gemm_config.h"

/* Name, unit, meaning. */
#define SM90_MODEL_CONSTANTS(X)                                                                                        \
    X(clock_ghz, "GHz", "the clock of short runs")                                                                     \
    X(dram_tb_s, "TB/s", "rate of the memory, measured by itself: copies and reads")                                   \
    X(dequant_tb_s, "TB/s", "the same of what the pre-pass reads and writes")                                          \
    X(l2_bytes, "B", "of the L2")                                                                                      \
    X(overlap, "1", "exponent p of memory and SMs that work at once: time^p = memory^p + SMs^p")                       \
    X(dirty, "share", "of the L2 that is written back while the operands arrive")                                      \
    X(rows_free, "rows", "of operands that all CTAs together read at the full rate of memory")                         \
    X(row_loss, "share", "of time that each further rows_free rows add")                                               \
    X(fixed_us, "us", "gemm.cu: launch, first bytes from DRAM, the last stage, exit")                                  \
    X(decode_8, "values/clk", "that 8 warps of an SM decode")                                                          \
    X(decode_16, "values/clk", "that 16 warps of an SM decode")                                                        \
    X(in_kernel_us, "us", "more than fixed_us where mma_b is dequantized in the kernel")                               \
    X(in_kernel_per_clk, "values/clk", "of mma_b that the warps which dequantize it in the kernel decode")             \
    X(raw_32_clk, "clk", "more for a stage where a warpgroup dequantizes mma_b, of 32 rows")                           \
    X(raw_64_clk, "clk", "the same, of 64 rows")                                                                       \
    X(hidden_mma, "share", "of wgmma's clocks that longer decoding does not hide")                                     \
    X(hidden_decode, "share", "of decoding's clocks that longer wgmma does not hide")                                  \
    X(ingress_b_clk, "B/clk", "that reach one SM; more than any measured plan took")                                   \
    X(l2_tb_s, "TB/s", "rate of the L2 to all SMs")                                                                    \
    X(uneven, "factor", "of the SMs' time where CTAs share rows of mma_a and differ in mma_b")                         \
    X(store_b_clk, "B/clk", "of results that an SM stores")                                                            \
    X(exchange_us, "us", "until partial sums of a cluster of two begin to arrive")                                     \
    X(exchange_each_us, "us", "more for each further CTA")                                                             \
    X(exchange_b_clk, "B/clk", "of partial sums that a CTA receives")                                                  \
    X(min_worker, "stages", "of a stream-K worker, at least: no plan with fewer was measured to win")                  \
    X(partial_b_clk, "B/clk", "of sums that a worker stores in the workspace")                                         \
    X(fixup_b_clk, "B/clk", "of such sums that a CTA adds to its own")                                                 \
    X(unaligned_split, "factor", "of the time that an unaligned split must reach at least (sm90_distribute)")          \
    X(worker_us, "us", "from a worker's last stage until its sums are visible")                                        \
    X(streamk_us, "us", "more than fixed_us for a stream-K kernel")                                                    \
    X(a16_fixed_us, "us", "fixed_us with a 16-bit A, which no pre-pass of this call wrote")                            \
    X(dequant_us, "us", "dequant.cu: a launch before another")                                                         \
    X(bf16_loss, "factor", "of the SMs' time with a bf16 A")                                                           \
    X(prefill_fixed_us, "us", "prefill.cu: its fixed_us")                                                              \
    X(prefill_loss, "factor", "of wgmma's time: these run long, and at a lower clock")                                 \
    X(prefill_divided_loss, "factor", "the same where the kernel dequantizes mma_b and waits for flags")               \
    X(prefill_divided_us, "us", "added there")                                                                         \
    X(prefill_bf16_loss, "factor", "its bf16_loss")                                                                    \
    X(prefill_store_b_clk, "B/clk", "its store_b_clk")                                                                 \
    X(nn_fixed_us, "us", "nn.cu: its fixed_us")                                                                        \
    X(nn_decode_clocks, "clk", "that dequantizing a stage takes")                                                      \
    X(nn_bf16_loss, "factor", "of them if it dequantizes to bf16")                                                     \
    X(nn_hidden_mma, "share", "of wgmma's clocks that dequantizing does not hide")                                     \
    X(nn_store_b_clk, "B/clk", "its store_b_clk")                                                                      \
    X(gemv_fixed_us, "us", "gemv.cu: its fixed_us")                                                                    \
    X(gemv_per_clk, "values/clk", "of an SM, for one row")                                                             \
    X(gemv_row_cost, "share", "of that time that each further row adds")                                               \
    X(gemv_row_loss, "share", "of memory's time that each further row adds")                                           \
    X(gemv_row_us, "us", "more than gemv_fixed_us for each further row")                                               \
    X(units_fixed_us, "us", "units.cu: its fixed_us")                                                                  \
    X(units_pair_clk, "clk", "of an SM for a step of a pair of units, with 8 rows of A")                               \
    X(units_rows_clk, "factor", "of them with 16")                                                                     \
    X(units_rows_us, "us", "more than units_fixed_us for 16")                                                          \
    X(units_a16_loss, "factor", "of the clocks with a 16-bit A")                                                       \
    X(units_unhidden, "share", "of the clocks of each warp's last step that no load hides")                            \
    X(units_line_loss, "factor", "of memory's time where rows of B begin inside lines of 128 bytes")                   \
    X(units_pass_loss, "share", "of time that each further pass adds")                                                 \
    X(grouped_fixed_us, "us", "grouped.cu: its fixed_us, that of its pre-pass included")                               \
    X(grouped_decode_clocks, "clk", "that dequantizing a stage to bf16 takes")                                         \
    X(grouped_mma_clocks, "factor", "of wgmma's clocks: the clock under load is lower")                                \
    X(grouped_hidden_mma, "share", "of wgmma's clocks that longer dequantizing does not hide")                         \
    X(grouped_hidden_decode, "share", "of dequantizing's clocks that longer wgmma does not hide")                      \
    X(grouped_tile_clocks, "clk", "of start and end of a tile")                                                        \
    X(grouped_tb_s, "TB/s", "that its loads of B under way reach at most")                                             \
    X(grouped_e2m1_us, "us", "more with an NVFP4 A")                                                                   \
    X(activation_us, "us", "of gated's kernel in a graph, without its bytes")                                          \
    X(activation_least_us, "us",                                                                                       \
      "of a product that does its activation: below, down loads weights during gated's kernel")                        \
    X(group_few_fixed_us, "us", "grouped_few.cu: its fixed_us")                                                        \
    X(group_few_tile_clocks, "clk", "of start and end of a tile")                                                      \
    X(group_few_stage_clocks, "clk", "of a stage, where tiles have up to 8 rows")                                      \
    X(group_few_row_clocks, "clk", "more for each row beyond 8 that its wgmma has")                                    \
    X(group_units_fixed_us, "us", "grouped_units.cu: its fixed_us")                                                    \
    X(group_units_tile_clocks, "clk", "of a team for start and end of a tile")                                         \
    X(group_units_step_clocks, "clk", "of a warp for A of a step")                                                     \
    X(group_units_pair_clocks, "clk", "of a step of a pair, with 8 rows of A, where all warps work")                   \
    X(group_units_pair16_clocks, "clk", "the same with 16 rows")                                                       \
    X(group_units_dram, "share", "of dram_tb_s with which B is read")                                                  \
    X(group_units_tb_s, "TB/s", "that its loads under way reach at most")                                              \
    X(group_units_again, "share", "of that time to read B again for further rows of a group")                          \
    X(group_units_hidden, "share", "of the shorter of memory and warps that the longer does not hide")                 \
    X(group_units_teams8, "factor", "of the time with 8 teams a CTA, over that with 1; layers corrected the fit")      \
    X(group_units_teams4, "factor", "with 4 teams")                                                                    \
    X(group_units_teams2, "factor", "with 2 teams")

typedef struct sm90_model {
#define X(name, ...) double name;
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
    int32_t is_a16;             /* A has 16 bits */
    int32_t dequant_b;          /* who decodes mma_b (gemm_config.h); 0: the pre-pass */
    int64_t dequant_batches;    /* of mma_b: l, or 1 where one serves all; 0 where there is no pre-pass */
    int32_t output_bytes;       /* of an element */
    int32_t partial_tile_bytes; /* that a worker stores for a tile */
    sm90_streamk_split streamk;
} sm90_model_input;

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
    const double fixed = (in->is_a16 ? m->a16_fixed_us : m->fixed_us) + (in->dequant_b == 1 ? m->in_kernel_us : 0.0) +
                         (in->streamk.worker_clusters ? m->streamk_us : 0.0);
    return fixed + sm90_dequant_time_us(m, values) + overlapped(busy, memory, m->overlap);
}

#endif
