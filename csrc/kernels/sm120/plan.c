/* The sm120 backend: candidates by a model of clocks and bytes (model.h), and launches.
 *
 * Every instantiation is tried with either operand as mma_a and with K split over as many CTAs as a cluster may have.
 * Two needs of the kernel are rules and not a model: partial sums have room, no split of K is empty. */
#include "kernels/sm120/plan.h"

#include "plan/reject.h"

typedef struct sm120_config {
    const char *name;
    int32_t mma_tile_m, mma_tile_n, stage_k, stages;
    int32_t shared_bytes, partials_room;
    const char *reasons[2][2]; /* by swap_ab, by whether K is split */
} sm120_config;

#define A_ROWS "A is the operand of the mma with 16 rows"
#define B_ROWS "B is the operand of the mma with 16 rows"
#define NARROW ", all rows of the other in one narrow tile: each byte is loaded once"
#define SQUARE ", in tiles of 128 rows: more SMs have work"
#define TALL   ", in tiles of 256 rows: fewest bytes are loaded for a product"
#define SPLIT  "; split along K over a cluster so that more SMs load"
#define REASON(mma_a, split, mma_tile_m, mma_tile_n)                                                                   \
    ((mma_tile_n) <= 16 ? mma_a NARROW split : (mma_tile_m) > 128 ? mma_a TALL split : mma_a SQUARE split)

enum {
    MAX_CLUSTER = 8,  /* CTAs, of a portable cluster */
    NARROW_TILE = 16, /* tiles no wider than this have to hold all of mma_b */
};

static const sm120_config configs[SM120_CONFIGS] = {
#define X(id, mma_tile_m, mma_tile_n, stage_k, stages, warps_m, warps_n)                                               \
    {"nvfp4_" #id,                                                                                                     \
     mma_tile_m,                                                                                                       \
     mma_tile_n,                                                                                                       \
     stage_k,                                                                                                          \
     stages,                                                                                                           \
     SM120_SHARED_BYTES(mma_tile_m, mma_tile_n, stage_k, stages, warps_m, warps_n),                                    \
     (stages) * SM120_STAGE_BYTES(mma_tile_m, mma_tile_n, stage_k),                                                    \
     {{REASON(A_ROWS, "", mma_tile_m, mma_tile_n), REASON(A_ROWS, SPLIT, mma_tile_m, mma_tile_n)},                     \
      {REASON(B_ROWS, "", mma_tile_m, mma_tile_n), REASON(B_ROWS, SPLIT, mma_tile_m, mma_tile_n)}}},
    SM120_GEMM_CONFIGS(X)
#undef X
};
_Static_assert(SM120_CONFIGS * 2 * 4 <= MAX_CANDIDATES, "either order, four splits");

const sm120_model sm120_published = {
#define X(name, value, ...) value,
    SM120_MODEL_CONSTANTS(X)
#undef X
};

typedef struct IS_TILING sm120_tiling {
    int32_t tiles_mma_m, tiles_mma_n, tiles, group_m, k_parts;
    int32_t scales_by_tma, values_by_tma;
    int32_t at_once; /* 1: all tiles are computed at the same time */
} sm120_tiling;

/* Whether bulk copies take the scales: whole atoms, all of whose bytes enter a product. Values are loaded by threads
 * only where these load scales too. */
static int scales_by_tma(const gemm_traits *t) {
    return t->scale_layout == NVFP4_128X4 && t->k % SM120_MMA_K == 0 && t->tma_values;
}

/* Whether a narrower tile holds all of mma_b as well: the columns between would be computed for nothing. */
static int is_too_wide(const sm120_config *config, int64_t mma_n) {
    for (int32_t i = 0; i < SM120_CONFIGS; i++)
        if (mma_n <= configs[i].mma_tile_n && configs[i].mma_tile_n < config->mma_tile_n) return 1;
    return 0;
}

/* Rows of tiles whose columns are computed together: the tiles at a time then cover about as many rows of mma_a as of
 * mma_b, which is the fewest that L2 has to hold. */
static int32_t group_rows(const device_props *props, const sm120_config *config, int64_t tiles_m) {
    int64_t rows = 1;
    while (rows < tiles_m && rows * rows * config->mma_tile_m < (int64_t)props->sm_count * config->mma_tile_n) rows++;
    return (int32_t)rows;
}

/* Tiles the problem; 0: the kernel cannot do it, or its tiles cannot be counted. */
static int tile(const device_props *props, const gemm_traits *t, const sm120_config *config, int32_t swap_ab,
                int32_t split_k, sm120_tiling *tiling) {
    const int64_t mma_m = swap_ab ? t->n : t->m, mma_n = swap_ab ? t->m : t->n;
    if (config->shared_bytes > props->shared_per_block || is_too_wide(config, mma_n)) return 0;
    if (config->mma_tile_n <= NARROW_TILE && mma_n > config->mma_tile_n) return 0;
    if (mma_m < mma_n && mma_m == 1) return 0; /* a vector as mma_a would leave 127 rows idle */
    const int64_t tiles_m = ceil_div(mma_m, config->mma_tile_m), tiles_n = ceil_div(mma_n, config->mma_tile_n);
    const int64_t most = INT32_MAX - props->sm_count; /* the kernel counts on from a tile by the number of CTAs */
    if (tiles_m * tiles_n > most || tiles_m * tiles_n * t->l > most) return 0;
    const int64_t tiles = tiles_m * tiles_n * t->l, k_parts = ceil_div(t->k, SM120_PART_K);
    if (split_k > 1 &&
        (split_k > k_parts || tiles * split_k > INT32_MAX || sm120_clusters_that_fit(props, split_k) == 0 ||
         SM120_PARTIALS_BYTES(config->mma_tile_m, config->mma_tile_n, split_k) > config->partials_room))
        return 0;
    *tiling = (sm120_tiling){
        .tiles_mma_m = (int32_t)tiles_m,
        .tiles_mma_n = (int32_t)tiles_n,
        .tiles = (int32_t)tiles,
        .group_m = group_rows(props, config, tiles_m),
        .k_parts = (int32_t)k_parts,
        .scales_by_tma = scales_by_tma(t),
        .values_by_tma = t->tma_values,
        .at_once = tiles <= sm120_clusters_that_fit(props, split_k),
    };
    return 1;
}

/* CTAs of a launch: without split-K each takes about as many tiles as the others. */
static int64_t grid_of(const device_props *props, const sm120_tiling *tiling, int32_t split_k) {
    if (split_k > 1) return (int64_t)tiling->tiles * split_k;
    return ceil_div(tiling->tiles, ceil_div(tiling->tiles, props->sm_count));
}

/* One instantiation, order of operands and split: 1, or 0 where it cannot be. */
static int32_t list_one(const sm120_model *model, const device_props *props, const gemm_traits *t, int32_t kernel,
                        int32_t swap_ab, int32_t split_k, gemm_candidate *out) {
    const sm120_config *config = &configs[kernel];
    sm120_tiling tiling;
    if (!tile(props, t, config, swap_ab, split_k, &tiling)) return 0;
    const sm120_model_input in = {
        .mma_m = swap_ab ? t->n : t->m,
        .mma_n = swap_ab ? t->m : t->n,
        .k = max_int(t->k, 1), /* without products there still are tiles to write */
        .l = t->l,
        .mma_tile_m = config->mma_tile_m,
        .mma_tile_n = config->mma_tile_n,
        .stage_k = config->stage_k,
        .split_k = split_k,
        .scales_by_tma = tiling.scales_by_tma,
        .values_by_tma = tiling.values_by_tma,
        .output_bytes = t->output_bytes,
        .group_m = tiling.group_m,
    };
    *out = (gemm_candidate){
        .single_us = sm120_single_us(model, props, &in),
        .name = config->name,
        .reason = config->reasons[swap_ab][split_k > 1],
        .grid = grid_of(props, &tiling, split_k),
        .backend = NVFP4_BACKEND_SM120,
        .kernel = kernel,
        .swap_ab = swap_ab,
        .split_k = split_k,
        .tile_m = swap_ab ? config->mma_tile_n : config->mma_tile_m,
        .tile_n = swap_ab ? config->mma_tile_m : config->mma_tile_n,
        .tile_k = config->stage_k,
        .stages = config->stages,
    };
    *TILING(sm120_tiling, out) = tiling;
    return 1;
}

int32_t sm120_candidates(const sm120_model *model, const device_props *props, const gemm_traits *t,
                         gemm_candidate *out) {
    int32_t count = 0;
    for (int32_t kernel = 0; kernel < SM120_CONFIGS; kernel++)
        for (int32_t swap_ab = 0; swap_ab < 2; swap_ab++)
            for (int32_t split_k = 1; split_k <= MAX_CLUSTER; split_k *= 2)
                count += list_one(model, props, t, kernel, swap_ab, split_k, out + count);
    return set_modelled_us(out, count);
}

/* ---- the launch ---- */

void sm120_add_values_map(const gemm_problem *p, int is_b, int64_t batches, int32_t stage_k, int32_t rows,
                          mma_operand *o, launch_plan *out) {
    const int32_t row_bytes = SM120_ROW_BYTES(stage_k);
    const tensor_layout layout = values_layout(p, is_b, batches, row_bytes, rows, row_bytes);
    add_tensor_map(out, &layout, &o->values);
}

static void build_gemm(const device_props *props, const gemm_problem *p, const gemm_candidate *c, launch_plan *out) {
    const sm120_config *config = &configs[c->kernel];
    const sm120_tiling *tiling = TILING(const sm120_tiling, c);
    const cache_policies policies =
        choose_cache_policies(props, p, c->swap_ab, tiling->tiles_mma_m, tiling->tiles_mma_n, tiling->at_once);
    launch_step *step = add_step(out, c->kernel, c->grid, config->shared_bytes);
    step->cluster = c->split_k;
    *(gemm_problem *)add_param(out, step, sizeof *p) = *p;
    sm120_schedule *s = (sm120_schedule *)add_param(out, step, sizeof(sm120_schedule));
    memset(s, 0, sizeof *s);
    s->tiles = tiling->tiles;
    s->tiles_mma_m = tiling->tiles_mma_m;
    s->tiles_mma_n = tiling->tiles_mma_n;
    s->group_m = tiling->group_m;
    s->split_k = c->split_k;
    s->k_parts = tiling->k_parts;
    s->swap_ab = c->swap_ab;
    s->scales_by_tma = tiling->scales_by_tma;
    s->values_by_tma = tiling->values_by_tma;
    if (p->constant_b && s->scales_by_tma)
        s->constant_operand = c->swap_ab ? SM120_CONSTANT_MMA_A : SM120_CONSTANT_MMA_B;
    fill_operand(p, c->swap_ab, policies.mma_a, &s->mma_a);
    fill_operand(p, !c->swap_ab, policies.mma_b, &s->mma_b);
    if (p->k == 0 || !s->values_by_tma) return;
    sm120_add_values_map(p, c->swap_ab, p->l, config->stage_k, config->mma_tile_m, &s->mma_a, out);
    sm120_add_values_map(p, !c->swap_ab, p->l, config->stage_k, config->mma_tile_n, &s->mma_b, out);
}

/* ---- the backend ---- */

static const kernel_entry kernels[SM120_KERNELS] = {
#define ENTRY(file, id, threads_of_cta, bytes, ctas)                                                                   \
    [KERNEL_##id] = {.name = "nvfp4_" #id,                                                                             \
                     .source = file,                                                                                   \
                     .threads = threads_of_cta,                                                                        \
                     .shared_bytes = bytes,                                                                            \
                     .ctas_per_sm = ctas,                                                                              \
                     .pdl = 1},
#define X(id, mma_tile_m, mma_tile_n, stage_k, stages, warps_m, warps_n)                                               \
    ENTRY("sm120_gemm", id, SM120_THREADS(mma_tile_m, mma_tile_n, warps_m, warps_n),                                   \
          SM120_SHARED_BYTES(mma_tile_m, mma_tile_n, stage_k, stages, warps_m, warps_n), 1)
    SM120_GEMM_CONFIGS(X)
#undef X
#define X(id, mma_tile_m, mma_tile_n, stage_k, stages, warps_m, warps_n)                                               \
    ENTRY("sm120_grouped", id, SM120_THREADS(mma_tile_m, mma_tile_n, warps_m, warps_n),                                \
          SM120_GROUPED_SHARED_BYTES(mma_tile_m, mma_tile_n, stage_k, stages, warps_m, warps_n), 0)
        SM120_GROUPED_CONFIGS(X)
#undef X
#undef ENTRY
            SM120_UNITS_CONFIGS(SM120_UNITS_ENTRY) SM120_GROUPED_UNITS_CONFIGS(SM120_GROUPED_UNITS_ENTRY)};
static const kernel_set set = {
    .kernels = kernels, .count = SM120_KERNELS, .min_capability = 120, .max_capability = 129, .optional = 1};

static int32_t of_units(gemm_candidate *all, int32_t count) {
    return complete_candidates(NVFP4_BACKEND_SM120, kernels, all, count);
}

static int32_t candidates(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    if (t->a_type != VALUES_E2M1) {
        const units_target units = sm120_units(props);
        return of_units(out, units_target_candidates(&units, props, t, out));
    }
    return sm120_candidates(&sm120_published, props, t, out);
}

/* Every kernel for an NVFP4 A adds K in the same order, 64 values at a time, and splits it at the same places. Those for
 * 16 bits do not serve every M. */
static int32_t batch_invariant(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    if (t->a_type != VALUES_E2M1) return -1;
    const int fits = sm120_clusters_that_fit(props, 2) > 0;
    const int32_t split_k = fits ? batch_invariant_split_k(props, t, SM120_ATOM_ROWS, SM120_PART_K) : 1;
    return keep_split_k(out, candidates(props, t, out), split_k);
}

static void build(const device_props *props, const product_problem *problem, const gemm_candidate *c, void *workspace,
                  launch_plan *out) {
    if (c->kernel >= SM120_CONFIGS)
        units_build(props, problem, c, workspace, out);
    else /* partial sums of split-K stay in the cluster */
        build_gemm(props, &problem->gemm, c, out);
}

static int32_t grouped_candidates(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    if (t->a_type != VALUES_E2M1) {
        const units_target units = sm120_units(props);
        return of_units(out, units_target_grouped_candidates(&units, props, t, out));
    }
    return sm120_grouped_candidates(props, t, out);
}

static int32_t grouped_batch_invariant(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    return t->a_type == VALUES_E2M1 ? sm120_grouped_candidates(props, t, out) : -1;
}

static int32_t grouped_with_activation(const device_props *props, const grouped_problem *p, const gemm_candidate *of,
                                       gemm_candidate *out) {
    if (p->g.a_type != VALUES_E2M1) {
        const units_target units = sm120_units(props);
        return of_units(out, units_target_in_one_launch(&units, props, p, of, out));
    }
    return sm120_grouped_with_activation(props, p, of, out);
}

static void build_grouped(const device_props *props, const product_problem *problem, const gemm_candidate *c,
                          void *workspace, launch_plan *out) {
    if (c->kernel >= SM120_GROUPED_END)
        grouped_units_build(props, problem, c, workspace, out);
    else
        sm120_grouped_build(props, problem, c, workspace, out);
}

static nvfp4_status reject(const device_props *props, const gemm_traits *t) {
    if (t->a_type != VALUES_E2M1) return reject_units(sm120_name, t);
    const nvfp4_status status = reject_shared_memory(sm120_name, kernels, SM120_CONFIGS, props);
    return status ? status : reject_tiles(sm120_name, t);
}

static nvfp4_status reject_grouped(const device_props *props, const gemm_traits *t) {
    if (t->a_type != VALUES_E2M1) return reject_units(sm120_name, t);
    const nvfp4_status status =
        reject_shared_memory(sm120_name, &kernels[SM120_CONFIGS], SM120_GROUPED_END - SM120_CONFIGS, props);
    return status ? status : reject_tiles(sm120_name, t);
}

static const gemm_planner gemm = {.a_types = TAKES_E2M1 | TAKES_16_BIT,
                                  .tma_a_types = TAKES_16_BIT,
                                  .a16_rows = UNITS_MAX_M,
                                  .candidates = candidates,
                                  .batch_invariant = batch_invariant,
                                  .reject = reject,
                                  .build = build};
static const gemm_planner grouped = {.a_types = TAKES_E2M1 | TAKES_16_BIT,
                                     .takes_by_batch = 1,
                                     .tma_a_types = TAKES_16_BIT,
                                     .candidates = grouped_candidates,
                                     .batch_invariant = grouped_batch_invariant,
                                     .with_activation = grouped_with_activation,
                                     .reject = reject_grouped,
                                     .build = build_grouped};

const gemm_backend sm120_backend = {
    BACKEND_ROW(sm120),
    .kernels = &set,
    .planners = {[PRODUCT_GEMM] = &gemm, [PRODUCT_GROUPED] = &grouped},
    .model = model_of_data_sheets,
    .roundings = {.per_block = 3, .block_k = 64, .constant = 19},
    .a16_roundings = UNITS_ROUNDINGS,
};
