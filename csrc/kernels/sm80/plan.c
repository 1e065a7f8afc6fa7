/* The sm80 backend: candidates by a model of clocks, and launches.
 *
 * A CTA works through chunks of 64 along K. Decoding costs by the row, mma by the tile, copying by the row that exists;
 * the longer of arithmetic and copying hides two thirds of the other. The grid takes as long as the SM with most CTAs.
 * Split-K gives more CTAs, and costs a second launch and a round trip of the partial sums through L2. */
#include "kernels/sm80/plan.h"

#include "common/error.h"
#include "common/math.h"

typedef struct sm80_config {
    const char *name;
    int32_t a_type; /* as of gemm_problem */
    int octets;     /* of a W4A16 tile, 0: of others */
    int tile_m, tile_n, tile_k, stages, warps;
    int32_t shared_bytes;
    const char *reason, *split_reason;
} sm80_config;

#define FEW   "a narrow tile, whose warps share K: copying the weights takes longest"
#define MANY  "a wide tile, which uses each decoded value often: arithmetic takes longest"
#define SPLIT "; split along K so that every SM has work"

static const sm80_config configs[] = {
#define X(id, tile_m, tile_n, tile_k, stages, warps, ...)                                                              \
    {"nvfp4_" #id,                                                                                                     \
     VALUES_E2M1,                                                                                                      \
     0,                                                                                                                \
     tile_m,                                                                                                           \
     tile_n,                                                                                                           \
     tile_k,                                                                                                           \
     stages,                                                                                                           \
     warps,                                                                                                            \
     SM80_SHARED_BYTES(tile_m, tile_n, tile_k, stages, warps),                                                         \
     (tile_m) <= 16 ? FEW : MANY,                                                                                      \
     (tile_m) <= 16 ? FEW SPLIT : MANY SPLIT},
    SM80_GEMM_CONFIGS(X)
#undef X
#define X(id, tile_m, octets, chunks, stages, warps, ctas_per_sm, bf16)                                                \
    {"nvfp4_" #id,                                                                                                     \
     (bf16) ? NVFP4_BF16 : NVFP4_FP16,                                                                                 \
     octets,                                                                                                           \
     tile_m,                                                                                                           \
     SM80_W4A16_TILE_N(octets),                                                                                        \
     SM80_W4A16_TILE_K(chunks, warps),                                                                                 \
     stages,                                                                                                           \
     warps,                                                                                                            \
     SM80_W4A16_SHARED_BYTES(tile_m, octets, chunks, stages, warps),                                                   \
     (tile_m) <= 16 ? FEW : MANY,                                                                                      \
     (tile_m) <= 16 ? FEW SPLIT : MANY SPLIT},
        SM80_W4A16_CONFIGS(X)
#undef X
};
enum { CONFIGS = sizeof configs / sizeof *configs };
_Static_assert(CONFIGS *(SM80_MAX_WAVES + 1) <= MAX_CANDIDATES, "room for all");

const sm80_model sm80_model_e2m1 = {
#define X(name, e2m1, a16) .name = e2m1,
    SM80_MODEL_CONSTANTS(X)
#undef X
};
const sm80_model sm80_model_a16 = {
#define X(name, e2m1, a16) .name = a16,
    SM80_MODEL_CONSTANTS(X)
#undef X
};

static const sm80_model *measured(const gemm_traits *t) {
    return t->a_type == VALUES_E2M1 ? &sm80_model_e2m1 : &sm80_model_a16;
}

static int64_t tiles_along_n(const sm80_config *c, int64_t n) {
    return c->octets ? SM80_W4A16_TILES_N(n, c->octets) : ceil_div(n, c->tile_n);
}

static double chunk_clocks(const sm80_model *model, const gemm_traits *t, const sm80_config *c) {
    const double decoded = c->a_type == VALUES_E2M1  ? c->tile_m + c->tile_n
                           : c->a_type == NVFP4_BF16 ? c->tile_n * model->bf16_decode
                                                     : c->tile_n;
    const double mma = (double)max_int(c->tile_m, 8) * c->tile_n;
    const double arithmetic = model->decode_clocks * decoded + model->mma_clocks * mma;
    const double copies =
        model->copy_clocks * (model->copy_a * (double)min_int(t->m, c->tile_m) + (double)min_int(t->n, c->tile_n));
    return model->chunk_clocks + (arithmetic > copies ? arithmetic + copies / 3 : copies + arithmetic / 3);
}

/* 0 where the rate is unknown. */
static double memory_us(const sm80_model *model, const device_props *props, const gemm_traits *t) {
    if (!props->memory_gb_s) return 0;
    const double of_value = 0.5 + 1.0 / 16, of_a = t->a_type == VALUES_E2M1 ? of_value : 2.0;
    const double bytes = (double)t->l * (double)t->k * ((double)t->m * of_a + (double)t->n * of_value);
    const double written_back = bytes < (double)props->l2_bytes ? bytes : (double)props->l2_bytes;
    return (bytes + model->dirty * written_back) / (model->dram_share * props->memory_gb_s) * 1e-3;
}

static double single_us(const sm80_model *model, const device_props *props, const gemm_traits *t, const sm80_config *c,
                        int64_t grid, int64_t k_tiles_per_split, int64_t split) {
    const int64_t ctas = ceil_div(grid, props->sm_count);
    const double chunks = (double)(ctas * k_tiles_per_split * (c->tile_k / SM80_CHUNK));
    const double idle = ctas * c->warps < 8 ? model->few_warps : 1.0;
    double clocks = chunks * chunk_clocks(model, t, c) * idle + model->launch_clocks;
    if (split > 1) {
        const double bytes = 2.0 * sizeof(float) * (double)t->m * (double)t->n * (double)t->l * (double)split;
        clocks += model->reduce_clocks + bytes / model->reduce_bytes / props->sm_count;
    }
    clocks +=
        (double)t->output_bytes * (double)t->m * (double)t->n * (double)t->l / model->store_b_clk / props->sm_count;
    const double busy_us = model->overlap * clocks * 1e-3 / model->clock_ghz;
    return model->call_us + (t->m <= 16 ? model->few_rows_us : 0.0) +
           overlapped(busy_us, memory_us(model, props, t), model->hindered);
}

int32_t sm80_tile(const gemm_traits *t, int64_t tiles_m, int64_t tiles_n, int64_t wanted, gemm_candidate *out) {
    const int64_t k_tiles = ceil_div(t->k, out->tile_k), k_tiles_per_split = ceil_div(k_tiles, wanted);
    const int64_t split = k_tiles_per_split ? ceil_div(k_tiles, k_tiles_per_split) : 1; /* no part is empty */
    *TILING(sm80_tiling, out) = (sm80_tiling){
        .k_tiles_per_split = k_tiles_per_split,
        .reduce_grid = split > 1 ? ceil_div(t->l * t->m * ceil_div(t->n, 4), SM80_REDUCE_THREADS) : 0,
        .tiles_m = (int32_t)tiles_m,
        .tiles_n = (int32_t)tiles_n,
    };
    out->grid = tiles_m * tiles_n * t->l * split;
    out->workspace = split > 1 ? t->l * t->m * t->n * split * (int64_t)sizeof(float) : 0;
    out->backend = NVFP4_BACKEND_SM80;
    out->split_k = (int32_t)split;
    return out->grid <= INT32_MAX;
}

/* One configuration with K in about `wanted` parts. */
static int32_t list_one(const sm80_model *model, const device_props *props, const gemm_traits *t, int32_t kernel,
                        int64_t wanted, gemm_candidate *out) {
    const sm80_config *c = &configs[kernel];
    *out = (gemm_candidate){
        .name = c->name,
        .kernel = kernel,
        .tile_m = c->tile_m,
        .tile_n = c->tile_n,
        .tile_k = c->tile_k,
        .stages = c->stages,
    };
    if (!sm80_tile(t, ceil_div(t->m, c->tile_m), tiles_along_n(c, t->n), wanted, out)) return 0;
    out->reason = out->split_k > 1 ? c->split_reason : c->reason;
    const int64_t k_tiles_per_split = TILING(const sm80_tiling, out)->k_tiles_per_split;
    out->single_us = single_us(model, props, t, c, out->grid, k_tiles_per_split, out->split_k);
    return 1;
}

int32_t sm80_candidates(const sm80_model *model, const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    int32_t count = 0;
    for (int32_t kernel = 0; kernel < CONFIGS; kernel++) {
        const sm80_config *c = &configs[kernel];
        if (c->a_type != t->a_type || c->shared_bytes > props->shared_per_block) continue;
        const int64_t tiles = ceil_div(t->m, c->tile_m) * tiles_along_n(c, t->n) * t->l;
        const int64_t most = min_int(ceil_div(t->k, c->tile_k), SM80_MAX_SPLIT);
        count += list_one(model, props, t, kernel, 1, out + count);
        /* Split to fill the SMs once, twice and so on: a split in between leaves some idle for as long. */
        for (int64_t waves = 1; waves <= SM80_MAX_WAVES; waves++) {
            const int64_t wanted = min_int(waves * props->sm_count / tiles, most);
            if (wanted < 2) continue;
            const int32_t listed = list_one(model, props, t, kernel, wanted, out + count);
            if (listed && out[count].kernel == out[count - 1].kernel && out[count].split_k == out[count - 1].split_k)
                continue; /* the same split as for fewer waves */
            count += listed;
        }
    }
    return set_modelled_us(out, count);
}

static int32_t candidates(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    return sm80_candidates(measured(t), props, t, out);
}

/* The kernels whose warps divide K in the same way, and tiles of 64 columns, so that the parts of K follow from N and
 * K: as many as fill the SMs with one row of tiles, at most 8, since each has its own partial sums. */
static int32_t batch_invariant(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    const sm80_config *first = &configs[t->a_type == NVFP4_FP16   ? KERNEL_sm80_w4a16_fp16_32x64
                                        : t->a_type == NVFP4_BF16 ? KERNEL_sm80_w4a16_bf16_32x64
                                                                  : KERNEL_sm80_gemm_32x64];
    const int64_t k_tiles = ceil_div(t->k, first->tile_k);
    const int64_t wanted = min_int(props->sm_count / ceil_div(t->n, first->tile_n), min_int(k_tiles, 8));
    int32_t count = 0;
    for (int32_t kernel = 0; kernel < CONFIGS; kernel++) {
        const sm80_config *c = &configs[kernel];
        if (c->a_type != t->a_type || c->tile_k != first->tile_k || c->warps != first->warps ||
            c->shared_bytes > props->shared_per_block)
            continue;
        count += list_one(measured(t), props, t, kernel, wanted > 1 ? wanted : 1, out + count);
    }
    return set_modelled_us(out, count);
}

static nvfp4_status reject(const device_props *props, const gemm_traits *t) {
    return fail(NVFP4_UNSUPPORTED,
                "the product of M = %lld, N = %lld, L = %lld needs more CTAs or more shared memory than the GPU "
                "has (%d bytes a CTA)",
                (long long)t->m, (long long)t->n, (long long)t->l, props->shared_per_block);
}

static const kernel_entry kernels[SM80_KERNELS] = {
#define X(id, tile_m, tile_n, tile_k, stages, warps, ...)                                                              \
    [KERNEL_##id] = {.name = "nvfp4_" #id,                                                                             \
                     .source = "sm80_gemm",                                                                            \
                     .threads = 32 * (warps),                                                                          \
                     .shared_bytes = SM80_SHARED_BYTES(tile_m, tile_n, tile_k, stages, warps),                         \
                     .pdl = 1},
    SM80_GEMM_CONFIGS(X)
#undef X
#define X(id, tile_m, octets, chunks, stages, warps, ctas_per_sm, bf16)                                                \
    [KERNEL_##id] = {.name = "nvfp4_" #id,                                                                             \
                     .source = "sm80_w4a16",                                                                           \
                     .threads = 32 * (warps),                                                                          \
                     .shared_bytes = SM80_W4A16_SHARED_BYTES(tile_m, octets, chunks, stages, warps),                   \
                     .pdl = 1},
        SM80_W4A16_CONFIGS(X)
#undef X
#define X(id, warps_m, warps_n, mmas_m, stages, ...)                                                                   \
    [KERNEL_##id] = {.name = "nvfp4_" #id,                                                                             \
                     .source = "sm80_nn",                                                                              \
                     .threads = SM80_NN_THREADS(warps_m, warps_n),                                                     \
                     .shared_bytes = SM80_NN_SHARED_BYTES(warps_m, warps_n, mmas_m, stages),                           \
                     .pdl = 1},
            SM80_NN_CONFIGS(X)
#undef X
#define X(id, tile_m, stages, ...)                                                                                     \
    [KERNEL_##id] = {.name = "nvfp4_" #id,                                                                             \
                     .source = "sm80_grouped",                                                                         \
                     .threads = SM80_GROUPED_THREADS,                                                                  \
                     .shared_bytes = SM80_GROUPED_SHARED_BYTES(tile_m, stages),                                        \
                     .pdl = 1},
                SM80_GROUPED_CONFIGS(X)
#undef X
#define X(id, tile_m, stages, ...)                                                                                     \
    [KERNEL_##id] = {.name = "nvfp4_" #id,                                                                             \
                     .source = "sm80_grouped_w4a4",                                                                    \
                     .threads = SM80_GROUPED_W4A4_THREADS,                                                             \
                     .shared_bytes = SM80_GROUPED_W4A4_SHARED_BYTES(tile_m, stages),                                   \
                     .pdl = 1},
                    SM80_GROUPED_W4A4_CONFIGS(X)
#undef X
#define X(id, warps_n, mmas_m, stages, ...)                                                                            \
    [KERNEL_##id] = {.name = "nvfp4_" #id,                                                                             \
                     .source = "sm80_grouped_nn",                                                                      \
                     .threads = SM80_GROUPED_NN_THREADS(warps_n),                                                      \
                     .shared_bytes = SM80_GROUPED_NN_SHARED_BYTES(warps_n, mmas_m, stages),                            \
                     .pdl = 1},
                        SM80_GROUPED_NN_CONFIGS(X)
#undef X
                            [KERNEL_SM80_SPLIT_REDUCE] = {.name = "nvfp4_sm80_split_reduce",
                                                          .source = "sm80_split_reduce",
                                                          .threads = SM80_REDUCE_THREADS,
                                                          .pdl = 1},
};
static void build(const device_props *props, const product_problem *problem, const gemm_candidate *c, void *workspace,
                  launch_plan *out) {
    const gemm_problem *p = &problem->gemm;
    (void)props;
    const sm80_tiling *tiling = TILING(const sm80_tiling, c);
    launch_step *step = add_step(out, c->kernel, c->grid, kernels[c->kernel].shared_bytes);
    *(gemm_problem *)add_param(out, step, sizeof *p) = *p;
    *(sm80_schedule *)add_param(out, step, sizeof(sm80_schedule)) = (sm80_schedule){
        .partials = workspace,
        .k_tiles_per_split = tiling->k_tiles_per_split,
        .reduce_grid = tiling->reduce_grid,
        .tiles_m = tiling->tiles_m,
        .tiles_n = tiling->tiles_n,
        .split_k = c->split_k,
    };
    if (tiling->reduce_grid == 0) return;
    launch_step *reduce = add_step(out, KERNEL_SM80_SPLIT_REDUCE, tiling->reduce_grid, 0);
    reduce->params = step->params; /* the same two */
    memcpy(reduce->param_offset, step->param_offset, sizeof reduce->param_offset);
}

static void build_grouped(const device_props *props, const product_problem *problem, const gemm_candidate *c,
                          void *workspace, launch_plan *out) {
    (void)props, (void)workspace;
    sm80_add_grouped(&problem->grouped, c, kernels[c->kernel].shared_bytes, out);
}

static const kernel_set set = {
    .kernels = kernels, .count = SM80_KERNELS, .min_capability = 80, .max_capability = INT32_MAX};

static const gemm_planner gemm = {.a_types = TAKES_E2M1 | TAKES_16_BIT,
                                  .takes_by_batch = 1,
                                  .candidates = candidates,
                                  .batch_invariant = batch_invariant,
                                  .reject = reject,
                                  .build = build};
static const gemm_planner gemm_nn = {.a_types = TAKES_16_BIT,
                                     .takes_by_batch = 1,
                                     .candidates = sm80_nn_candidates,
                                     .batch_invariant = sm80_nn_batch_invariant,
                                     .reject = reject,
                                     .build = build};

static const gemm_planner grouped = {.a_types = TAKES_E2M1 | TAKES_16_BIT,
                                     .takes_by_batch = 1,
                                     .candidates = sm80_grouped_candidates,
                                     .batch_invariant = sm80_grouped_candidates,
                                     .reject = reject,
                                     .build = build_grouped};
static const gemm_planner grouped_nn = {.a_types = TAKES_16_BIT,
                                        .takes_by_batch = 1,
                                        .candidates = sm80_grouped_candidates,
                                        .batch_invariant = sm80_grouped_candidates,
                                        .reject = reject,
                                        .build = build_grouped};

static const char *model_name(const device_props *props) {
    (void)props;
    return "measured on an H200";
}

const gemm_backend sm80_backend = {
    BACKEND_ROW(sm80),
    .kernels = &set,
    .planners = {[PRODUCT_GEMM] = &gemm,
                 [PRODUCT_GEMM_NN] = &gemm_nn,
                 [PRODUCT_GROUPED] = &grouped,
                 [PRODUCT_GROUPED_NN] = &grouped_nn},
    .model = model_name,
    .roundings = {.per_block = 72, .block_k = 16, .constant = 64},
};
