/* Estimated time of one sm90 GEMM on an H200, back to back with dependent launch, in microseconds.
 *
 * A CTA's stage takes as long as the slowest of tensor core, decoding and shared memory; the product as long as the
 * slowest of its stages in a row, DRAM and what L2 hands out. Around that stand the expansion of y, the launch and the
 * first bytes, the sum over the parts of K, and the stores. Where a constant was measured it says so; the others
 * are estimates, which rank plans and promise no times. */
#ifndef NVFP4_SM90_MODEL_H
#define NVFP4_SM90_MODEL_H

#include <stdint.h>

#include "sm90_configs.h"

#define SM90_CLOCK_GHZ          1.755 /* under load; 1.98 in short runs */
#define SM90_TENSOR_LOSS        1.12  /* measured: 190 us of dense wgmma at 2304 x 4608 x 7168 */
#define SM90_UNCOVERED          0.25  /* of the shorter of multiplying and decoding, that the longer does not hide */
#define SM90_DRAM_TB_S          4.3   /* measured: copies and reads */
#define SM90_L2_TB_S            5.7   /* to all SMs */
#define SM90_INGRESS_B_CLK      56.0  /* to one SM */
#define SM90_SHARED_B_CLK       128.0 /* of an SM's shared memory */
#define SM90_WGMMA_B_CLK        64.0  /* of y, that the tensor core reads while it multiplies */
#define SM90_FIXED_US           2.5   /* launch, first bytes from DRAM, the last stage, leaving */
#define SM90_STORE_B_CLK        24.0  /* of results, an SM */
#define SM90_EXCHANGE_US        0.5   /* until partial sums begin to arrive */
#define SM90_CLUSTER_BARRIER_US 0.2   /* 365 clocks, measured */
#define SM90_GEMV_PER_CLK       72.0 /* measured: values a clock and SM by 16 warps and dot products of 4, for one row */
#define SM90_GEMV_ROW_COST      0.5  /* of that time, for each further row */
#define SM90_EXPAND_US          0.8  /* a launch before another */
#define SM90_EXPAND_TB_S        4.3  /* bytes read and written by it; measured: 10 us for 2304 x 7168 */

/* Values a clock and SM that so many warps decode. Measured: 35 by 8, 42 to 48 by 16. */
static inline double sm90_decode_per_clk(int32_t warps) {
    return warps >= 18 ? 46.0 : 28.0 + warps;
}

/* Bytes of partial sums a clock that a CTA receives in a cluster of so many. Measured at 2, 4 and 8. */
static inline double sm90_exchange_b_clk(int32_t cluster) {
    return cluster <= 2 ? 20.0 : cluster <= 4 ? 14.0 : 11.0;
}

/* CTAs that run at a time, one an SM, in whole clusters. Clusters lie in one GPC of 16 or 18 SMs each, of which larger
 * ones leave some idle. */
static inline int64_t sm90_ctas_that_fit(int32_t sm_count, int32_t cluster) {
    const int64_t usable = cluster <= 2 ? sm_count : cluster <= 4 ? sm_count * 32 / 33 : sm_count * 10 / 11;
    return usable < cluster ? cluster : usable / cluster * cluster;
}

typedef struct sm90_model_input {
    int64_t x_rows, y_rows, k, l; /* sides as sm90_configs.h has them; at least 1 */
    int32_t sm_count;
    int32_t tile_x, tile_y;
    int32_t stage_k;          /* values along K of a stage */
    int32_t warps;            /* that decode */
    int32_t split_k;          /* 1 to 8; at most ceil(k / stage_k) */
    int32_t parts_bytes;      /* of partial sums that a CTA receives */
    int32_t parts_in_stages;  /* as the schedule has it */
    int64_t expanded_batches; /* of y: l, or 1 where one serves all */
    int32_t output_bytes;     /* of an element */
} sm90_model_input;

/* Expanding so many values before. */
static inline double sm90_expansion_us(double values) {
    return values > 0 ? SM90_EXPAND_US + values * (2.0 + 0.5 + 1.0 / 16) / SM90_EXPAND_TB_S * 1e-6 : 0.0;
}

static inline double sm90_max(double a, double b) {
    return a > b ? a : b;
}

static inline int64_t sm90_least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline double sm90_estimate_us(const sm90_model_input *in) {
    const double clk = 1e-3 / SM90_CLOCK_GHZ; /* us */
    const int64_t tiles_x = SM90_CEIL_DIV(in->x_rows, in->tile_x), tiles_y = SM90_CEIL_DIV(in->y_rows, in->tile_y);
    const int64_t tiles = tiles_x * tiles_y * in->l;
    const int64_t stages = SM90_CEIL_DIV(SM90_CEIL_DIV(in->k, in->stage_k), in->split_k);
    const double l = (double)in->l, k = (double)in->k;
    const double raw = 0.5 + 1.0 / 16, expanded = 2.0; /* bytes a value, scales included */

    /* A stage, in clocks. wgmma takes steps of 16 along K, each tile_y / 2 clocks for 64 rows of x. */
    const double tensor = in->tile_x / 64 * (in->stage_k / 16) * (in->tile_y / 2.0) * SM90_TENSOR_LOSS;
    const double decode = in->tile_x * in->stage_k / sm90_decode_per_clk(in->warps);
    const double x_rows = (double)sm90_least(in->x_rows, in->tile_x);
    const double y_rows = (double)sm90_least(in->y_rows, in->tile_y);
    const double arriving = (x_rows * raw + y_rows * expanded) * in->stage_k;
    const double shared = (tensor * SM90_WGMMA_B_CLK + 2.0 * arriving) / SM90_SHARED_B_CLK;
    const double both = sm90_max(tensor, decode) + SM90_UNCOVERED * (tensor < decode ? tensor : decode);
    const double stage = sm90_max(both, sm90_max(shared, arriving / SM90_INGRESS_B_CLK)) * clk;

    /* A tile's end. */
    const double stored = x_rows * y_rows * in->output_bytes / in->split_k / SM90_STORE_B_CLK * clk;
    double end = stored;
    if (in->split_k > 1) {
        end += SM90_EXCHANGE_US + in->parts_bytes / sm90_exchange_b_clk(in->split_k) * clk;
        if (in->parts_in_stages) end += SM90_CLUSTER_BARRIER_US;
    }

    /* Uncut, a CTA an SM takes tile after tile; cut, a cluster takes one, and the next cluster begins anew. */
    const int64_t fit = sm90_ctas_that_fit(in->sm_count, in->split_k) / in->split_k;
    const int64_t rounds = SM90_CEIL_DIV(tiles, fit);
    const double again = in->split_k > 1 ? (double)(rounds - 1) * SM90_FIXED_US : 0.0;
    const double busy = (double)rounds * ((double)stages * stage + end) + again;

    const double x_bytes = (double)in->x_rows * k * raw, y_bytes = (double)in->y_rows * k * expanded;
    const double stores = (double)in->x_rows * (double)in->y_rows * in->output_bytes;
    const double dram = l * (x_bytes + stores);
    const double handed = l * (x_bytes * (double)tiles_y + y_bytes * (double)tiles_x);
    const double stream = sm90_max(dram / SM90_DRAM_TB_S, handed / SM90_L2_TB_S) * 1e-6;
    const double values = (double)in->expanded_batches * (double)in->y_rows * k;
    return SM90_FIXED_US + sm90_expansion_us(values) + sm90_max(busy, stream + end);
}

#endif
