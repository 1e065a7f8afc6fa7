/* Estimated time of one sm90 product on an H200: a single call with a cold L2, the expansion before it included, in
 * microseconds.
 *
 * A stage takes as long as the slowest of tensor core, decoding, and its bytes on their way to the SM. Around the
 * stages stand the launch and the first bytes, the expansion of operands, the sum over the parts of K, and the stores.
 *
 * The constants are fitted to measured times of the first plans of 136 shapes by benchmarks/fit_sm90.py, all of them at
 * once; so each one alone says little about the machine, except where it says that it was measured by itself. */
#ifndef NVFP4_SM90_MODEL_H
#define NVFP4_SM90_MODEL_H

#include <math.h>
#include <stdint.h>

#include "sm90_configs.h"

#define SM90_CLOCK_GHZ    1.98 /* of short runs */
#define SM90_DRAM_TB_S    4.3  /* measured by itself: copies and reads */
#define SM90_DEQUANT_TB_S 4.3  /* measured by itself: what sm90_dequant.cu reads and writes */

#define SM90_FIXED_US 3.491 /* launch, first bytes from DRAM, the last stage, leaving */

/* sm90_gemm.cu */
#define SM90_DECODE_8       22.32  /* values a clock that 8 warps of an SM decode */
#define SM90_DECODE_16      25.64  /* and that 16 do */
#define SM90_UNCOVERED      0.3788 /* of the shorter of multiplying and decoding, that the longer does not hide */
#define SM90_INGRESS_B_CLK  56.0   /* to one SM; more than any measured plan took */
#define SM90_L2_TB_S        8.0    /* to all SMs */
#define SM90_UNEVEN         1.07   /* CTAs share rows of x and differ in rows of y: mean of 9 pairs, M = 192 and 256 */
#define SM90_STORE_B_CLK    8.263  /* of results, an SM */
#define SM90_EXCHANGE_US    1.256  /* until partial sums begin to arrive */
#define SM90_EXCHANGE_B_CLK 13.14  /* of partial sums that a CTA receives */

#define SM90_LEAST_HELP   8.0   /* stages of a helper: no plan with fewer has been measured to win */
#define SM90_PIECE_B_CLK  21.89 /* of sums that a helper leaves in the workspace */
#define SM90_ADD_B_CLK    42.65 /* of such sums that a CTA adds to its own */
#define SM90_WHOLE_PIECES 0.97  /* of the time, below which pieces may fall as they like */
#define SM90_HELP_US      1.598 /* from a helper's last stage until its sums are there */

/* sm90_dequant.cu */
#define SM90_DEQUANT_US 1.989 /* a launch before another */

/* sm90_prefill.cu */
#define SM90_PREFILL_FIXED_US    5.582 /* as SM90_FIXED_US */
#define SM90_PREFILL_LOSS        1.157 /* of wgmma, times as long as its rate says: these run long, and at a lower clock */
#define SM90_PREFILL_STORE_B_CLK 8.566 /* of results, an SM */

/* sm90_gemv.cu */
#define SM90_GEMV_FIXED_US 3.902  /* as SM90_FIXED_US */
#define SM90_GEMV_PER_CLK  39.76  /* values a clock and SM, for one row */
#define SM90_GEMV_ROW_COST 0.4219 /* of that time, for each further row */

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

/* How a helped kernel shares out its work (sm90_gemm_parts.cuh). */
typedef struct sm90_help {
    int32_t whole;           /* tiles */
    int32_t worker_clusters; /* 0: the kernel is not helped */
    int32_t streamk_stages, worker_stages;
} sm90_help;

typedef struct sm90_model_input {
    int64_t x_rows, y_rows, k, l; /* sides as sm90_configs.h has them; at least 1 */
    int32_t sm_count;
    int32_t tile_x, tile_y;
    int32_t stage_k;            /* values along K of a stage */
    int32_t warps;              /* that decode */
    int32_t split_k;            /* 1 to 8; at most ceil(k / stage_k) */
    int32_t parts_bytes;        /* of partial sums that a CTA receives */
    int32_t y_raw;              /* y is decoded inside */
    int64_t expanded_batches;   /* of y: l, or 1 where one serves all; 0 where y is raw */
    int32_t output_bytes;       /* of an element */
    int32_t contribution_bytes; /* that a helper leaves for a tile */
    sm90_help help;
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
    return values > 0 ? SM90_DEQUANT_US + bytes / SM90_DEQUANT_TB_S * 1e-6 : 0.0;
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

/* Of a value of y on its way to the SM. */
static inline double sm90_y_bytes(const sm90_model_input *in) {
    return in->y_raw ? SM90_RAW_BYTES : SM90_FP16_BYTES;
}

/* A stage in sm90_gemm.cu. wgmma takes steps of 16 along K, each tile_y / 2 clocks for 64 rows of x. */
static inline double sm90_stage_us(const sm90_model_input *in) {
    const double tensor = in->tile_x / 64 * (in->stage_k / 16) * (in->tile_y / 2.0);
    const double decoded = (in->tile_x + (in->y_raw ? in->tile_y : 0)) * in->stage_k;
    const double decode = decoded / (in->warps <= 8 ? SM90_DECODE_8 : SM90_DECODE_16);
    const double both = sm90_max(tensor, decode) + SM90_UNCOVERED * (tensor < decode ? tensor : decode);
    const double x_rows = (double)sm90_least(in->x_rows, in->tile_x);
    const double y_rows = (double)sm90_least(in->y_rows, in->tile_y);
    const double arriving = (x_rows * SM90_RAW_BYTES + y_rows * sm90_y_bytes(in)) * in->stage_k;
    return sm90_clocks_us(sm90_max(both, arriving / SM90_INGRESS_B_CLK));
}

static inline int64_t sm90_tiles(const sm90_model_input *in) {
    return SM90_CEIL_DIV(in->x_rows, in->tile_x) * SM90_CEIL_DIV(in->y_rows, in->tile_y) * in->l;
}

/* What a piece of a tile costs a helper beside its stages. */
static inline double sm90_piece_us(const sm90_model_input *in) {
    return sm90_clocks_us(in->contribution_bytes / SM90_PIECE_B_CLK);
}

/* The sums of a cluster's other CTAs. */
static inline double sm90_cluster_us(const sm90_model_input *in) {
    return in->split_k > 1 ? sm90_exchange_us(in->parts_bytes) : 0.0;
}

/* Of a divided tile: from its first stages until helpers' sums have been added. */
static inline double sm90_divided_us(const sm90_model_input *in, int64_t stages, double stage_us) {
    const int64_t helped = in->help.streamk_stages, each = in->help.worker_stages;
    const int64_t own = SM90_CEIL_DIV(stages - helped, in->split_k);
    const int whole_pieces = each % helped == 0 || helped % each == 0;
    const int64_t pieces = SM90_CEIL_DIV(each, helped) + !whole_pieces; /* of a helper */
    const int64_t added = SM90_CEIL_DIV(helped, each) + !whole_pieces;  /* to a tile */
    const double own_us = (double)own * stage_us + sm90_cluster_us(in);
    const double helper_us = (double)each * stage_us + (double)pieces * sm90_piece_us(in) + SM90_HELP_US;
    const double add_us = sm90_clocks_us((double)in->contribution_bytes / in->split_k / SM90_ADD_B_CLK);
    return sm90_max(own_us, helper_us) + (double)added * add_us;
}

/* So many helpers, so that they and the others end together: all take equally many stages, either whole pieces, one of
 * each of some tiles or one of several of a tile, or as they fall. Returns the time; infinity: no helper would have so
 * many stages that more is won than lost. */
static inline double sm90_share_between(sm90_model_input *in, int64_t helpers, int64_t rest, int fall) {
    const double split = in->split_k, tiles_each = (double)rest / (double)helpers;
    const int64_t stages = SM90_CEIL_DIV(in->k, in->stage_k);
    const double stage_us = sm90_stage_us(in), piece = sm90_piece_us(in) / stage_us; /* in stages */
    /* What a helper needs beside its pieces, less what the others need. */
    const double later = (SM90_HELP_US - sm90_cluster_us(in)) / stage_us, own = (double)stages / split - later;
    int64_t helped, each;
    if (fall) {
        helped = (int64_t)((own - (tiles_each + 1.0) * piece) / (tiles_each + 1.0 / split));
        each = SM90_CEIL_DIV(rest * helped, helpers);
    } else {
        const int64_t of_tile = helpers >= rest ? helpers / rest : 1, of_helper = SM90_CEIL_DIV(rest, helpers);
        each = (int64_t)((own - (double)of_helper * piece) / ((double)of_helper + (double)of_tile / split));
        helped = each * of_tile, each *= of_helper;
    }
    if (each < SM90_LEAST_HELP || helped < 2 || helped > stages - in->split_k) return INFINITY;
    const double divisor = (double)(helped > each ? helped : each);
    if ((double)rest * (double)helped * divisor >= 2147483648.0) return INFINITY; /* the kernel's divisions */
    in->help.streamk_stages = (int32_t)helped;
    in->help.worker_stages = (int32_t)each;
    return sm90_divided_us(in, stages, stage_us);
}

/* Shares out the work of a helped kernel; 0: no CTA would be left to help, or no tile to be helped with. Of all that
 * might help, fewer are tried as well, since to add up many sums takes long. */
static inline int sm90_share_out(sm90_model_input *in) {
    const int64_t tiles = sm90_tiles(in), split = in->split_k, clusters = in->sm_count / split;
    const int64_t whole = split == 1 ? tiles / clusters * clusters : 0, rest = tiles - whole;
    const int64_t most = (clusters - rest) * split;
    if (rest < 1 || rest >= clusters || most > SM90_MAX_WORKERS) return 0;
    sm90_help best = {.worker_clusters = 0};
    double least = INFINITY;
    in->help.whole = (int32_t)whole;
    for (int64_t helpers = most, fall = 0; helpers >= (most < rest ? most : rest); helpers /= 1 + fall, fall = !fall) {
        const double us = sm90_share_between(in, helpers, rest, (int)fall);
        if (us >= (fall ? SM90_WHOLE_PIECES : 1.0) * least) continue;
        const int64_t needed = SM90_CEIL_DIV(rest * in->help.streamk_stages, in->help.worker_stages);
        in->help.worker_clusters = (int32_t)(whole ? clusters - rest : SM90_CEIL_DIV(needed, split));
        least = us, best = in->help;
    }
    in->help = best;
    return best.worker_clusters > 0;
}

/* By sm90_gemm.cu. */
static inline double sm90_estimate_us(const sm90_model_input *in) {
    const int64_t tiles_x = SM90_CEIL_DIV(in->x_rows, in->tile_x), tiles_y = SM90_CEIL_DIV(in->y_rows, in->tile_y);
    const int64_t tiles = sm90_tiles(in), all_stages = SM90_CEIL_DIV(in->k, in->stage_k);
    const int64_t stages = SM90_CEIL_DIV(all_stages, in->split_k);
    const double y_value = sm90_y_bytes(in);
    const double l = (double)in->l, k = (double)in->k, stage = sm90_stage_us(in);
    const double x_rows = (double)sm90_least(in->x_rows, in->tile_x);
    const double y_rows = (double)sm90_least(in->y_rows, in->tile_y);

    /* A tile's end. */
    double end = sm90_clocks_us(x_rows * y_rows * in->output_bytes / in->split_k / SM90_STORE_B_CLK);
    if (in->split_k > 1 && !in->help.worker_clusters) end += sm90_exchange_us(in->parts_bytes);

    /* Uncut, a CTA an SM takes tile after tile; cut, a cluster takes one, and another follows in its place. */
    double busy;
    if (in->help.worker_clusters) {
        const int64_t rounds = in->help.whole / (tiles - in->help.whole + in->help.worker_clusters);
        busy = (double)rounds * ((double)stages * stage + end) + sm90_divided_us(in, all_stages, stage) + end;
    } else {
        const int64_t fit = sm90_ctas_that_fit(in->sm_count, in->split_k) / in->split_k;
        const int64_t rounds = SM90_CEIL_DIV(tiles, fit);
        busy = (double)rounds * ((double)stages * stage + end);
    }

    if (tiles_y > 1 && in->y_rows % in->tile_y) busy *= SM90_UNEVEN;

    const double x_bytes = (double)in->x_rows * k * SM90_RAW_BYTES, y_bytes = (double)in->y_rows * k * y_value;
    const double stores = (double)in->x_rows * (double)in->y_rows * in->output_bytes;
    const double dram = l * (x_bytes + stores);
    const double handed = l * (x_bytes * (double)tiles_y + y_bytes * (double)tiles_x);
    const double streamed = sm90_max(dram / SM90_DRAM_TB_S, handed / SM90_L2_TB_S) * 1e-6;
    const double values = (double)in->expanded_batches * (double)in->y_rows * k;
    return SM90_FIXED_US + sm90_expansion_us(values) + sm90_max(busy, streamed + end);
}

#endif
