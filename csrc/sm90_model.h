/* Estimated time of one sm90 product on an H200: a single call with a cold L2, the expansion before it included, in
 * microseconds.
 *
 * A stage takes as long as the slowest of tensor core, decoding, and its bytes on their way to the SM. Around the
 * stages stand the launch and the first bytes, the expansion of operands, the sum over the parts of K, and the stores.
 *
 * The constants are fitted to measured times of every plan of 85 shapes by benchmarks/fit_sm90.py, all of them at once;
 * so each one alone says little about the machine, except where it says that it was measured by itself. */
#ifndef NVFP4_SM90_MODEL_H
#define NVFP4_SM90_MODEL_H

#include <stdint.h>

#include "sm90_configs.h"

#define SM90_CLOCK_GHZ   1.98 /* of short runs */
#define SM90_DRAM_TB_S   4.3  /* measured by itself: copies and reads */
#define SM90_EXPAND_TB_S 4.3  /* measured by itself: what sm90_expand.cu reads and writes */

#define SM90_FIXED_US 4.207 /* launch, first bytes from DRAM, the last stage, leaving */

/* sm90_gemm.cu */
#define SM90_DECODE_8       23.3   /* values a clock that 8 warps of an SM decode */
#define SM90_DECODE_16      27.51  /* and that 16 do */
#define SM90_UNCOVERED      0.4666 /* of the shorter of multiplying and decoding, that the longer does not hide */
#define SM90_INGRESS_B_CLK  56.0   /* to one SM; more than any measured plan took */
#define SM90_L2_TB_S        8.0    /* to all SMs */
#define SM90_STORE_B_CLK    3.924  /* of results, an SM */
#define SM90_EXCHANGE_US    1.56   /* until partial sums begin to arrive */
#define SM90_EXCHANGE_B_CLK 13.9   /* of partial sums that a CTA receives */

/* sm90_expand.cu */
#define SM90_EXPAND_US 1.508 /* a launch before another */

/* sm90_dense.cu */
#define SM90_DENSE_LOSS        1.15 /* of wgmma, times as long as its rate says: these run long, and at a lower clock */
#define SM90_DENSE_STORE_B_CLK 12.0 /* of results, an SM */

/* sm90_gemv.cu */
#define SM90_GEMV_FIXED_US 4.845 /* as SM90_FIXED_US */
#define SM90_GEMV_PER_CLK  38.1  /* values a clock and SM, for one row */
#define SM90_GEMV_ROW_COST 0.308 /* of that time, for each further row */

/* sm80_gemm.cu, for the choice between the families; after 16 shapes of M = 1 to 2304 (benchmarks/results/h200.json) */
#define SM80_FIXED_US     7.0   /* as SM90_FIXED_US */
#define SM80_DECODE_CLK   21.0  /* values a clock and SM that arrive and are decoded */
#define SM80_MULTIPLY_CLK 585.0 /* products a clock and SM */

/* CTAs that run at a time, one an SM, in whole clusters. Clusters lie in one GPC of some 16 SMs each, of which larger
 * ones leave some idle. Measured: 66 clusters of 2, 36 of 3, 28 of 4, 18 of 5 and 16 of 6 run at once; 32 of 4, 18 of
 * 6, 16 of 7 and 16 of 8 do not. */
static inline int64_t sm90_ctas_that_fit(int32_t sm_count, int32_t cluster) {
    const int64_t usable = cluster <= 2   ? sm_count
                           : cluster == 3 ? sm_count * 15 / 16
                           : cluster == 4 ? sm_count * 10 / 11
                                          : sm_count * 3 / 4;
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
    int32_t y_raw;            /* y is decoded inside */
    int64_t expanded_batches; /* of y: l, or 1 where one serves all; 0 where y is raw */
    int32_t output_bytes;     /* of an element */
} sm90_model_input;

static inline double sm90_max(double a, double b) {
    return a > b ? a : b;
}

static inline int64_t sm90_least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Microseconds of so many clocks. */
static inline double sm90_clocks_us(double clocks) {
    return clocks * 1e-3 / SM90_CLOCK_GHZ;
}

/* Bytes of a value, its share of the scales included; and of one that has been expanded. */
#define SM90_RAW_BYTES  (0.5 + 1.0 / 16)
#define SM90_FP16_BYTES 2.0

/* Expanding so many values before. */
static inline double sm90_expansion_us(double values) {
    const double bytes = values * (SM90_FP16_BYTES + SM90_RAW_BYTES);
    return values > 0 ? SM90_EXPAND_US + bytes / SM90_EXPAND_TB_S * 1e-6 : 0.0;
}

/* Receiving so many bytes of partial sums. */
static inline double sm90_exchange_us(double bytes) {
    return SM90_EXCHANGE_US + sm90_clocks_us(bytes / SM90_EXCHANGE_B_CLK);
}

/* The same product by sm80. */
static inline double sm90_sm80_us(double m, double n, double k, double l, int32_t sm_count) {
    const double clocks = (m + n) / SM80_DECODE_CLK + m * n / SM80_MULTIPLY_CLK;
    return SM80_FIXED_US + sm90_clocks_us(clocks * k * l / sm_count);
}

/* By sm90_gemm.cu. */
static inline double sm90_estimate_us(const sm90_model_input *in) {
    const int64_t tiles_x = SM90_CEIL_DIV(in->x_rows, in->tile_x), tiles_y = SM90_CEIL_DIV(in->y_rows, in->tile_y);
    const int64_t tiles = tiles_x * tiles_y * in->l;
    const int64_t stages = SM90_CEIL_DIV(SM90_CEIL_DIV(in->k, in->stage_k), in->split_k);
    const double l = (double)in->l, k = (double)in->k;

    /* A stage, in clocks. wgmma takes steps of 16 along K, each tile_y / 2 clocks for 64 rows of x. */
    const double tensor = in->tile_x / 64 * (in->stage_k / 16) * (in->tile_y / 2.0);
    const double decoded = (in->tile_x + (in->y_raw ? in->tile_y : 0)) * in->stage_k;
    const double decode = decoded / (in->warps <= 8 ? SM90_DECODE_8 : SM90_DECODE_16);
    const double both = sm90_max(tensor, decode) + SM90_UNCOVERED * (tensor < decode ? tensor : decode);
    const double x_rows = (double)sm90_least(in->x_rows, in->tile_x);
    const double y_rows = (double)sm90_least(in->y_rows, in->tile_y);
    const double y_value = in->y_raw ? SM90_RAW_BYTES : SM90_FP16_BYTES;
    const double arriving = (x_rows * SM90_RAW_BYTES + y_rows * y_value) * in->stage_k;
    const double stage = sm90_clocks_us(sm90_max(both, arriving / SM90_INGRESS_B_CLK));

    /* A tile's end. */
    double end = sm90_clocks_us(x_rows * y_rows * in->output_bytes / in->split_k / SM90_STORE_B_CLK);
    if (in->split_k > 1) end += sm90_exchange_us(in->parts_bytes);

    /* Uncut, a CTA an SM takes tile after tile; cut, a cluster takes one, and another follows in its place. */
    const int64_t fit = sm90_ctas_that_fit(in->sm_count, in->split_k) / in->split_k;
    const int64_t rounds = SM90_CEIL_DIV(tiles, fit);
    const double busy = (double)rounds * ((double)stages * stage + end);

    const double x_bytes = (double)in->x_rows * k * SM90_RAW_BYTES, y_bytes = (double)in->y_rows * k * y_value;
    const double stores = (double)in->x_rows * (double)in->y_rows * in->output_bytes;
    const double dram = l * (x_bytes + stores);
    const double handed = l * (x_bytes * (double)tiles_y + y_bytes * (double)tiles_x);
    const double streamed = sm90_max(dram / SM90_DRAM_TB_S, handed / SM90_L2_TB_S) * 1e-6;
    const double values = (double)in->expanded_batches * (double)in->y_rows * k;
    return SM90_FIXED_US + sm90_expansion_us(values) + sm90_max(busy, streamed + end);
}

#endif
