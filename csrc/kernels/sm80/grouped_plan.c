/* Candidates of sm80/grouped.cu, grouped_w4a4.cu and grouped_nn.cu, by a model of clocks under an even routing: where T
 * rows fall on E groups by chance, E * (1 - (1 - 1/E)^T) of them have rows. Ends are on the device, so a plan depends
 * on T, E, N, K alone.
 *
 * A CTA works through chunks of 64 along K, of which the longer of arithmetic and copying hides two thirds of the
 * other. The constants are those of w4a16.cu, with an NVFP4 A those of gemm.cu; a chunk's share of the rows of an A . B
 * tile is included. Those below are fitted to products of experts in CUDA graphs on an H100: 48 with a 16-bit A
 * (benchmarks/log/grouped_h100.csv), off by 14 % (rms), and 239 with an NVFP4 A (grouped_w4a4_h100.csv), by 8 %. */
#include <math.h>

#include "common/group_blocks.h"
#include "common/grouped_problem.h"
#include "common/math.h"
#include "kernels/sm80/plan.h"

typedef struct grouped_config {
    const char *name;
    int32_t kernel, a_type, product_kind;
    int32_t tile_m, tile_n, tile_k, stages, shared_bytes;
} grouped_config;

static const grouped_config configs[] = {
#define X(id, tile_m, stages, ctas_per_sm, bf16)                                                                       \
    {"nvfp4_" #id,        KERNEL_##id, (bf16) ? NVFP4_BF16 : NVFP4_FP16,                                               \
     PRODUCT_GROUPED,     tile_m,      SM80_GROUPED_TILE_N,                                                            \
     SM80_GROUPED_TILE_K, stages,      SM80_GROUPED_SHARED_BYTES(tile_m, stages)},
    SM80_GROUPED_CONFIGS(X)
#undef X
#define X(id, tile_m, stages, ctas_per_sm)                                                                             \
    {"nvfp4_" #id,                                                                                                     \
     KERNEL_##id,                                                                                                      \
     VALUES_E2M1,                                                                                                      \
     PRODUCT_GROUPED,                                                                                                  \
     tile_m,                                                                                                           \
     SM80_GROUPED_W4A4_TILE_N,                                                                                         \
     SM80_GROUPED_W4A4_TILE_K,                                                                                         \
     stages,                                                                                                           \
     SM80_GROUPED_W4A4_SHARED_BYTES(tile_m, stages)},
        SM80_GROUPED_W4A4_CONFIGS(X)
#undef X
#define X(id, warps_n, mmas_m, stages, ctas_per_sm, bf16)                                                              \
    {"nvfp4_" #id,                                                                                                     \
     KERNEL_##id,                                                                                                      \
     (bf16) ? NVFP4_BF16 : NVFP4_FP16,                                                                                 \
     PRODUCT_GROUPED_NN,                                                                                               \
     SM80_GROUPED_NN_TILE_M(mmas_m),                                                                                   \
     SM80_NN_TILE_N(warps_n),                                                                                          \
     SM80_NN_STAGE_K,                                                                                                  \
     stages,                                                                                                           \
     SM80_GROUPED_NN_SHARED_BYTES(warps_n, mmas_m, stages)},
            SM80_GROUPED_NN_CONFIGS(X)
#undef X
};
enum { CONFIGS = sizeof configs / sizeof *configs };

#define FEW  "few rows a group: copying the weights takes longest"
#define MANY "many rows a group, which use each decoded value often"

/* By the type of A: 16 bits, NVFP4. */
static const double CTA_CLOCKS[] = {1000.0, 820.0}; /* start and end of a CTA */
static const double ROW_CLOCKS[] = {0.0, 70.0};     /* the same of a row of its tile */
static const double OVERLAP[] = {0.97, 0.77};       /* factor of the sum of the clocks */
static const double CALL_US[] = {6.9, 8.9};         /* time of a call around them */

static double single_us(const device_props *props, const gemm_traits *t, const grouped_config *c, int64_t tiles_n) {
    const int a_is_e2m1 = c->a_type == VALUES_E2M1;
    const sm80_model *model = a_is_e2m1 ? &sm80_model_e2m1 : &sm80_model_a16;
    const double m = (double)t->m, n = (double)t->n, k = (double)t->k, groups = t->groups, sms = props->sm_count;
    const double parts = (double)(t->l / t->groups);
    const double hit = groups * (1.0 - pow(1.0 - 1.0 / groups, m)), rows = m / hit;
    const double tiles = hit * fmax(1.0, rows / c->tile_m + 0.5 * (c->tile_m - 1) / c->tile_m);
    const double decoded =
        (c->a_type == NVFP4_BF16 ? model->bf16_decode : 1.0) * c->tile_n + (a_is_e2m1 ? c->tile_m : 0);
    const double arithmetic = model->decode_clocks * decoded + model->mma_clocks * c->tile_m * c->tile_n;
    const double copies = model->copy_clocks * (model->copy_a * fmin(rows, c->tile_m) + fmin(n, c->tile_n));
    const double chunk =
        model->chunk_clocks + (arithmetic > copies ? arithmetic + copies / 3 : copies + arithmetic / 3);
    const double chunks = (double)(ceil_div(t->k, c->tile_k) * (c->tile_k / SM80_CHUNK));
    const double ctas = ceil(tiles * (double)tiles_n * parts / sms);
    const double clocks = ctas * (chunks * chunk + CTA_CLOCKS[a_is_e2m1] + ROW_CLOCKS[a_is_e2m1] * c->tile_m) +
                          t->output_bytes * m * n * parts / model->store_b_clk / sms;
    const double bytes = hit * parts * n * k * 9 / 16 + m * k * (a_is_e2m1 ? 9.0 / 16 : 2.0);
    const double memory = props->memory_gb_s ? bytes / (model->dram_share * props->memory_gb_s) * 1e-3 : 0;
    return CALL_US[a_is_e2m1] +
           overlapped(OVERLAP[a_is_e2m1] * clocks * 1e-3 / model->clock_ghz, memory, model->hindered);
}

static int64_t tiles_along_n(const gemm_traits *t, const grouped_config *c) {
    return c->product_kind == PRODUCT_GROUPED && c->a_type != VALUES_E2M1
               ? SM80_W4A16_TILES_N(t->n, SM80_GROUPED_OCTETS)
               : ceil_div(t->n, c->tile_n);
}

int32_t sm80_grouped_candidates(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    int32_t count = 0;
    for (int32_t i = 0; i < CONFIGS; i++) {
        const grouped_config *c = &configs[i];
        if (c->a_type != t->a_type || c->product_kind != t->product_kind || c->shared_bytes > props->shared_per_block)
            continue;
        const int64_t tiles_m = max_group_tiles(t->m, t->groups, c->tile_m), tiles_n = tiles_along_n(t, c),
                      parts = t->l / t->groups;
        if (tiles_m > INT32_MAX / (tiles_n * parts)) continue;
        gemm_candidate *x = &out[count++];
        *x = (gemm_candidate){
            .name = c->name,
            .reason = c->tile_m <= 16 ? FEW : MANY,
            .backend = NVFP4_BACKEND_SM80,
            .kernel = c->kernel,
            .grid = tiles_m * tiles_n * parts,
            .split_k = 1,
            .tile_m = c->tile_m,
            .tile_n = c->tile_n,
            .tile_k = c->tile_k,
            .stages = c->stages,
            .single_us = single_us(props, t, c, tiles_n),
        };
        *TILING(sm80_tiling, x) = (sm80_tiling){.tiles_m = (int32_t)tiles_m, .tiles_n = (int32_t)tiles_n};
    }
    return set_modelled_us(out, count);
}

void sm80_add_grouped(const grouped_problem *problem, const gemm_candidate *c, int32_t shared_bytes, launch_plan *out) {
    const sm80_tiling *tiling = TILING(const sm80_tiling, c);
    launch_step *step = add_step(out, c->kernel, c->grid, shared_bytes);
    *(grouped_problem *)add_param(out, step, sizeof *problem) = *problem;
    *(sm80_grouped_schedule *)add_param(out, step, sizeof(sm80_grouped_schedule)) =
        (sm80_grouped_schedule){.tiles_m = tiling->tiles_m, .tiles_n = tiling->tiles_n};
}
