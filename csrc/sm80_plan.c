/* Chooses the sm80 kernel by an estimate of clocks, from the shape and the device alone.
 *
 * An SM decodes some 32 values a clock and multiplies some 1,024 pairs a clock by mma.sync; the longer of the two
 * hides half of the shorter. What is spread unevenly waits for the SM with most CTAs. Cutting K into parts gives more
 * CTAs, and costs a second launch and a trip of the partial sums through L2. */
#include "sm80_plan.h"

#include "error.h"
#include "kernels.h"

typedef struct sm80_config {
    kernel_id kernel;
    int tile_m, tile_n, tile_k, stages;
    int decoded_rows; /* of both operands, counted once for every warp that decodes them */
    const char *reason, *split_reason;
} sm80_config;

#define FEW                  "few rows of A: the weights take the wide side of mma and the warps of a CTA share K"
#define SOME                 "some rows of A: one tile holds them all and each warp decodes little twice"
#define MANY                 "many rows of A: the largest tile decodes each value the fewest times"
#define SPLIT                "; K is cut so that every SM has work"
#define REASON(tile_m)       ((tile_m) <= 16 ? FEW : (tile_m) < 128 ? SOME : MANY)
#define SPLIT_REASON(tile_m) ((tile_m) <= 16 ? FEW SPLIT : (tile_m) < 128 ? SOME SPLIT : MANY SPLIT)

static const sm80_config configs[] = {
#define X(id, tile_m, tile_n, tile_k, stages, warps_m, warps_n, ...)                                                   \
    {KERNEL_##id,         tile_m, tile_n, tile_k, stages, (tile_m) * (warps_n) + (tile_n) * (warps_m), REASON(tile_m), \
     SPLIT_REASON(tile_m)},
    SM80_GEMM_CONFIGS(X)
#undef X
};

enum {
    DECODED_A_CLOCK = 32,
    MULTIPLIED_A_CLOCK = 1024,
    FILL_CLOCKS = 1500,        /* until the first stage has arrived */
    REDUCE_CLOCKS = 4500,      /* of a second launch */
    REDUCE_BYTES_A_CLOCK = 20, /* and SM: one write and one read of each partial sum */
    MAX_SPLIT = 64,
};

static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static double stage_clocks(const sm80_config *c) {
    double decode = (double)c->decoded_rows * c->tile_k / DECODED_A_CLOCK;
    double multiply = (double)c->tile_m * c->tile_n * c->tile_k / MULTIPLIED_A_CLOCK;
    return decode > multiply ? decode + multiply / 2 : multiply + decode / 2;
}

static double estimate(const device_facts *facts, const gemm_problem *p, const sm80_config *c, int64_t grid,
                       int64_t split_tiles, int64_t split) {
    int64_t ctas_an_sm = ceil_div(grid, facts->sm_count);
    double clocks = (double)ctas_an_sm * (double)split_tiles * stage_clocks(c) + FILL_CLOCKS;
    if (split > 1) {
        double bytes = 8.0 * (double)p->m * (double)p->n * (double)p->l * (double)split;
        clocks += REDUCE_CLOCKS + bytes / REDUCE_BYTES_A_CLOCK / facts->sm_count;
    }
    return clocks;
}

nvfp4_status sm80_plan(const device_facts *facts, const gemm_problem *problem, nvfp4_plan *plan,
                       sm80_schedule *schedule) {
    const gemm_problem *p = problem;
    double best = 0.0;
    *plan = (nvfp4_plan){.backend = NVFP4_BACKEND_SM80};
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        const sm80_config *c = &configs[i];
        if (kernels[c->kernel].shared_bytes > facts->shared_per_block) continue;
        int64_t tiles_m = ceil_div(p->m, c->tile_m), tiles_n = ceil_div(p->n, c->tile_n);
        int64_t k_tiles = ceil_div(p->k, c->tile_k);
        for (int64_t wanted = 1; wanted <= MAX_SPLIT && wanted <= (k_tiles ? k_tiles : 1); wanted++) {
            int64_t split_tiles = ceil_div(k_tiles, wanted);
            int64_t split = split_tiles ? ceil_div(k_tiles, split_tiles) : 1; /* no part is empty */
            int64_t grid = tiles_m * tiles_n * p->l * split;
            double clocks = estimate(facts, p, c, grid, split_tiles, split);
            if (split != wanted || grid > INT32_MAX || (plan->grid && clocks >= best)) continue;
            best = clocks;
            plan->kernel = c->kernel, plan->name = kernels[c->kernel].name;
            plan->reason = split > 1 ? c->split_reason : c->reason;
            plan->tile_m = c->tile_m, plan->tile_n = c->tile_n, plan->tile_k = c->tile_k, plan->stages = c->stages;
            plan->split_k = (int32_t)split, plan->grid = grid;
            *schedule = (sm80_schedule){

                .tiles_m = (int32_t)tiles_m,
                .tiles_n = (int32_t)tiles_n,
                .split_tiles = split_tiles,
                .split_k = (int32_t)split};
        }
    }
    if (plan->grid == 0)
        return fail(NVFP4_UNSUPPORTED,
                    "the product of M = %lld, N = %lld, L = %lld needs more CTAs or more shared memory than the GPU "
                    "has (%d bytes a CTA)",
                    (long long)p->m, (long long)p->n, (long long)p->l, facts->shared_per_block);
    if (plan->split_k > 1) {
        plan->workspace = (size_t)(p->l * p->m * p->n) * (size_t)plan->split_k * sizeof(float);
        schedule->reduce_grid = ceil_div(p->l * p->m * ceil_div(p->n, SM80_REDUCE_COLUMNS), SM80_REDUCE_THREADS);
    }
    return NVFP4_OK;
}
