/* Candidates of sm80/nn.cu, by a model of clocks: of a stage of 64 rows of B, the longer of arithmetic and
 * copying hides two thirds of the other. The grid takes as long as the SM with most CTAs. */
#include "common/math.h"
#include "kernels/sm80/plan.h"

typedef struct nn_config {
    const char *name;
    int32_t kernel, a_type;
    int32_t warps_m, warps_n, mmas_m, stages;
    int32_t shared_bytes;
} nn_config;

static const nn_config configs[] = {
#define X(id, warps_m, warps_n, mmas_m, stages, ctas_per_sm, bf16)                                                     \
    {"nvfp4_" #id,                                                                                                     \
     KERNEL_##id,                                                                                                      \
     (bf16) ? NVFP4_BF16 : NVFP4_FP16,                                                                                 \
     warps_m,                                                                                                          \
     warps_n,                                                                                                          \
     mmas_m,                                                                                                           \
     stages,                                                                                                           \
     SM80_NN_SHARED_BYTES(warps_m, warps_n, mmas_m, stages)},
    SM80_NN_CONFIGS(X)
#undef X
};
enum { CONFIGS = sizeof configs / sizeof *configs };

#define FEW   "a wide tile of few rows: copying the weights takes longest"
#define MANY  "many rows, which use each decoded value often: arithmetic takes longest"
#define SPLIT "; split along the sum so that every SM has work"

/* Fitted to 474 calls on an H200, M = 1 to 4096 of three (N, K), fp16 and bf16 A: off by 10 % (rms). */
static const double CLOCK_GHZ = 1.98;
static const double DECODE_CLOCKS = 1.69;   /* a column of a stage, by one warp */
static const double BF16_DECODE = 1.21;     /* times as much to bf16 */
static const double MMA_CLOCKS = 0.0635;    /* a row and column of a stage */
static const double COPY_CLOCKS = 0.0343;   /* a byte of a stage */
static const double STAGE_CLOCKS = 19.0;    /* a stage: waits, addresses */
static const double LAUNCH_CLOCKS = 8730.0; /* until the first copies complete, and from the last sum to memory */
static const double REDUCE_CLOCKS = 7250.0; /* of the second launch */
static const double REDUCE_BYTES = 13.0;    /* of partial sums a clock and SM, written or read */
static const double STORE_BYTES = 8.3;      /* of results */
static const double FEW_WARPS = 1.015;      /* times as long where an SM has less than 8 warps */
static const double CALL_US = 4.45;

static double single_us(const device_props *props, const gemm_traits *t, const nn_config *c, const gemm_candidate *x) {
    const int64_t k_tiles = TILING(const sm80_tiling, x)->k_tiles_per_split;
    const double sms = props->sm_count, results = (double)t->m * (double)t->n * (double)t->l;
    const int64_t ctas = ceil_div(x->grid, props->sm_count);
    const double arithmetic = DECODE_CLOCKS * (c->a_type == NVFP4_BF16 ? BF16_DECODE : 1.0) * x->tile_n * c->warps_m +
                              MMA_CLOCKS * (double)x->tile_m * (double)x->tile_n;
    const double bytes = (double)min_int(t->m, x->tile_m) * SM80_NN_STAGE_K * 2 +
                         (double)min_int(t->n, x->tile_n) * SM80_NN_STAGE_K * 9 / 16;
    const double copies = COPY_CLOCKS * bytes;
    const double stage = STAGE_CLOCKS + (arithmetic > copies ? arithmetic + copies / 3 : copies + arithmetic / 3);
    const double idle = ctas * c->warps_m * c->warps_n < 8 ? FEW_WARPS : 1.0;
    double clocks = LAUNCH_CLOCKS + (double)(ctas * k_tiles) * stage * idle;
    if (x->split_k > 1) clocks += REDUCE_CLOCKS + 2.0 * sizeof(float) * results * x->split_k / REDUCE_BYTES / sms;
    clocks += t->output_bytes * results / STORE_BYTES / sms;
    return CALL_US + clocks * 1e-3 / CLOCK_GHZ;
}

/* One configuration with the sum in about `wanted` parts. */
static int32_t list_one(const device_props *props, const gemm_traits *t, const nn_config *c, int64_t wanted,
                        gemm_candidate *out) {
    *out = (gemm_candidate){
        .name = c->name,
        .kernel = c->kernel,
        .tile_m = SM80_NN_TILE_M(c->warps_m, c->mmas_m),
        .tile_n = SM80_NN_TILE_N(c->warps_n),
        .tile_k = SM80_NN_STAGE_K,
        .stages = c->stages,
    };
    if (!sm80_tile(t, ceil_div(t->m, out->tile_m), ceil_div(t->n, out->tile_n), wanted, out)) return 0;
    const int few = out->tile_m <= 16, split = out->split_k > 1;
    out->reason = few ? split ? FEW SPLIT : FEW : split ? MANY SPLIT : MANY;
    out->single_us = single_us(props, t, c, out);
    return 1;
}

static int takes(const nn_config *c, const device_props *props, const gemm_traits *t) {
    return c->a_type == t->a_type && c->shared_bytes <= props->shared_per_block;
}

int32_t sm80_nn_candidates(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    int32_t count = 0;
    for (int32_t i = 0; i < CONFIGS; i++) {
        const nn_config *c = &configs[i];
        if (!takes(c, props, t)) continue;
        const int64_t most = min_int(ceil_div(t->k, SM80_NN_STAGE_K), SM80_MAX_SPLIT);
        if (!list_one(props, t, c, 1, out + count)) continue;
        const int64_t tiles = out[count++].grid;
        for (int64_t waves = 1; waves <= SM80_MAX_WAVES; waves++) {
            const int64_t wanted = min_int(waves * props->sm_count / tiles, most);
            if (wanted < 2 || !list_one(props, t, c, wanted, out + count)) continue;
            count += out[count].split_k != out[count - 1].split_k; /* else as for fewer waves */
        }
    }
    return set_modelled_us(out, count);
}

/* All kernels add in the same order, so the parts follow from N and K alone: as many as fill the SMs with one row of
 * the narrower tiles, at most 8, since each has its own partial sums. */
int32_t sm80_nn_batch_invariant(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    const int64_t tiles = ceil_div(t->n, 256), most = min_int(ceil_div(t->k, SM80_NN_STAGE_K), 8);
    const int64_t wanted = min_int(props->sm_count / tiles, most);
    int32_t count = 0;
    for (int32_t i = 0; i < CONFIGS; i++)
        if (takes(&configs[i], props, t))
            count += list_one(props, t, &configs[i], wanted > 1 ? wanted : 1, out + count);
    return set_modelled_us(out, count);
}
