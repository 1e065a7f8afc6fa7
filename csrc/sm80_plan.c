/* Chooses the sm80 kernel by an estimate of clocks, from the shape and the device alone.
 *
 * The estimate was fitted on an H200 to kernels with their copies or their arithmetic left out. A CTA works through
 * chunks of 64 along K: decoding costs by the row, mma by the tile, copying by the row that exists; the longer of
 * arithmetic and copying hides two thirds of the other. The grid takes as long as the SM with most CTAs. Cutting K into
 * parts gives more CTAs, and costs a second launch and a trip of the partial sums through L2. */
#include "sm80_plan.h"

#include "error.h"
#include "kernels.h"

typedef struct sm80_config {
    kernel_id kernel;
    int tile_m, tile_n, tile_k, stages;
    int warps;
    const char *reason, *split_reason;
} sm80_config;

#define FEW   "a narrow tile, whose warps share K: copying the weights takes longest"
#define MANY  "a wide tile, which uses each decoded value often: arithmetic takes longest"
#define SPLIT "; K is cut so that every SM has work"

static const sm80_config configs[] = {
#define X(id, tile_m, tile_n, tile_k, stages, warps, ...)                                                              \
    {KERNEL_##id,                                                                                                      \
     tile_m,                                                                                                           \
     tile_n,                                                                                                           \
     tile_k,                                                                                                           \
     stages,                                                                                                           \
     warps,                                                                                                            \
     (tile_m) <= 16 ? FEW : MANY,                                                                                      \
     (tile_m) <= 16 ? FEW SPLIT : MANY SPLIT},
    SM80_GEMM_CONFIGS(X)
#undef X
};

static const double decode_clocks = 1.6;    /* a row of a chunk */
static const double multiply_clocks = 0.06; /* a row and column of a chunk */
static const double copy_clocks = 2.4;      /* a row of a chunk: 36 bytes */
static const double chunk_overhead = 16.0;  /* a chunk: waiting, addresses */
static const double few_warps = 1.2;        /* times as long, where an SM has less than 8 */
static const double launch_clocks = 4500.0; /* until the first copies have landed, and from the last sum to memory */
static const double reduce_clocks = 7000.0; /* of the second launch */
static const double reduce_bytes = 13.0;    /* of partial sums a clock and SM, written or read */
enum { MAX_SPLIT = 32, MAX_WAVES = 4 };

static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static double chunk_clocks(const gemm_problem *p, const sm80_config *c) {
    double arithmetic = decode_clocks * (c->tile_m + c->tile_n) + multiply_clocks * c->tile_m * c->tile_n;
    double copies =
        copy_clocks * (double)((p->m < c->tile_m ? p->m : c->tile_m) + (p->n < c->tile_n ? p->n : c->tile_n));
    return chunk_overhead + (arithmetic > copies ? arithmetic + copies / 3 : copies + arithmetic / 3);
}

static double estimate(const device_facts *facts, const gemm_problem *p, const sm80_config *c, int64_t grid,
                       int64_t split_tiles, int64_t split) {
    int64_t ctas = ceil_div(grid, facts->sm_count);
    double chunks = (double)(ctas * split_tiles * (c->tile_k / SM80_CHUNK));
    double idle = ctas * c->warps < 8 ? few_warps : 1.0;
    double clocks = chunks * chunk_clocks(p, c) * idle + launch_clocks;
    if (split > 1) {
        double bytes = 2.0 * sizeof(float) * (double)p->m * (double)p->n * (double)p->l * (double)split;
        clocks += reduce_clocks + bytes / reduce_bytes / facts->sm_count;
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
        int64_t tiles = tiles_m * tiles_n * p->l, most = k_tiles < MAX_SPLIT ? k_tiles : MAX_SPLIT;
        /* Uncut, and cut to fill the SMs once, twice and so on: a cut in between leaves some idle for as long. */
        for (int64_t waves = 0; waves <= MAX_WAVES; waves++) {
            int64_t wanted = waves * facts->sm_count / tiles;
            if (wanted > most) wanted = most;
            if (waves == 0)
                wanted = 1;
            else if (wanted < 2)
                continue;
            int64_t split_tiles = ceil_div(k_tiles, wanted);
            int64_t split = split_tiles ? ceil_div(k_tiles, split_tiles) : 1; /* no part is empty */
            int64_t grid = tiles * split;
            if (grid > INT32_MAX) continue;
            double clocks = estimate(facts, p, c, grid, split_tiles, split);
            if (plan->grid && clocks >= best) continue;
            best = clocks;
            plan->kernel = c->kernel, plan->name = kernels[c->kernel].name;
            plan->reason = split > 1 ? c->split_reason : c->reason;
            plan->tile_m = c->tile_m, plan->tile_n = c->tile_n, plan->tile_k = c->tile_k, plan->stages = c->stages;
            plan->split_k = (int32_t)split, plan->grid = grid;
            *schedule = (sm80_schedule){.tiles_m = (int32_t)tiles_m,
                                        .tiles_n = (int32_t)tiles_n,
                                        .k_tiles_per_split = split_tiles,
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
        schedule->reduce_grid = ceil_div(p->l * p->m * ceil_div(p->n, 4), SM80_REDUCE_THREADS);
    }
    return NVFP4_OK;
}
