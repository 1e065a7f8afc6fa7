/* Chooses the sm100 kernel by an estimate of time, from the shape, the device and how the operands lie.
 *
 * Every instantiation is tried with either operand on the side of the mma that takes 128 rows (x), and with K split
 * over as many CTAs as a cluster may have. What the kernel relies on is a rule here and not an estimate: tiles that are
 * narrow along y hold all of it, what bulk copies cannot take is gathered, parts of K are never empty. */
#include "sm100_plan.h"

#include <math.h>

#include "error.h"
#include "kernels.h"
#include "plan_choice.h"
#include "plan_operands.h"
#include "sm100_model.h"

typedef struct sm100_config {
    kernel_id kernel;
    int32_t cta_group, mma_tile_n, stages, accumulators, cp_async;
    int32_t co_resident;       /* two CTAs share the tensor memory of an SM */
    const char *reasons[2][2]; /* by swap_ab, by whether K is split */
} sm100_config;

#define A_WIDE "A is on the 128-row side of the mma"
#define B_WIDE "B is on the 128-row side of the mma"
#define NARROW ", all rows of the other in one narrow tile: each byte is loaded once"
#define SINGLE ", a CTA computes a tile by itself: more SMs load"
#define PAIR   ", two SMs share a tile and load half of the other each: fewest bytes are loaded"
#define GATHER ", scales are loaded by threads: they are linear, or K or the rows are not aligned to bulk copies"
#define SPLIT  "; K is split over a cluster so that more SMs load"
#define REASON(wide, split, cta_group, mma_tile_n, cp_async)                                                           \
    ((cp_async)           ? wide GATHER split                                                                          \
     : (mma_tile_n) <= 32 ? wide NARROW split                                                                          \
     : (cta_group) == 2   ? wide PAIR split                                                                            \
                          : wide SINGLE split)

enum {
    MAX_CLUSTER = 8,    /* CTAs, of a portable cluster */
    NARROW_TILE = 32,   /* tiles no wider than this have to hold all of y */
    SHARE_COLUMNS = 4,  /* of a tile are added up at a time where K is split */
    TMEM_COLUMNS = 512, /* of an SM (PTX ISA 9.0, 9.7.16.1) */
    PREFETCH_SHARERS = 4,
    PREFETCH_BYTES = 20 << 20, /* of x by all CTAs: what DRAM delivers in the 2 to 3 us between the last copy of a call
                                  and the first of the next (modelled) */
    BOX_BYTES = SM100_STAGE_K / 2,
    RESERVED_BYTES = 1024, /* of an SM's shared memory for each CTA (CUDA programming guide, compute capabilities) */
};

static const sm100_config configs[] = {
#define X(id, cta_group, mma_tile_n, stages, accumulators, cp_async)                                                   \
    {KERNEL_##id,                                                                                                      \
     cta_group,                                                                                                        \
     mma_tile_n,                                                                                                       \
     stages,                                                                                                           \
     accumulators,                                                                                                     \
     cp_async,                                                                                                         \
     SM100_TMEM_COLUMNS(mma_tile_n, stages, accumulators) <= TMEM_COLUMNS / 2,                                         \
     {{REASON(A_WIDE, "", cta_group, mma_tile_n, cp_async), REASON(A_WIDE, SPLIT, cta_group, mma_tile_n, cp_async)},   \
      {REASON(B_WIDE, "", cta_group, mma_tile_n, cp_async), REASON(B_WIDE, SPLIT, cta_group, mma_tile_n, cp_async)}}},
    SM100_GEMM_CONFIGS(X)
#undef X
};

static int64_t ceil_div(int64_t a, int64_t b) {
    return a / b + (a % b > 0);
}

/* ---- how the operands lie ---- */

/* Whether threads have to load: bulk copies take whole atoms of scales, all of whose bytes multiply something. */
static int needs_gather(const gemm_problem *p) {
    return p->scale_layout == SCALES_LINEAR || p->k % SM100_MMA_K != 0 || !values_are_mapped(p);
}

/* Pairs load scales by tensor maps. */
static int scales_are_mapped(const gemm_problem *p) {
    int64_t pitch = p->k / SM100_MMA_K * SM100_ATOM_BYTES;
    int64_t rows = p->m > p->n ? p->m : p->n;
    return p->l == 1 || ceil_div(rows, SM100_ATOM_ROWS) * pitch < TENSOR_STRIDE_END;
}

/* ---- candidates ---- */

typedef struct candidate {
    const sm100_config *config;
    int32_t swap_ab, split_k;
    int64_t tiles_mma_m, tiles_mma_n, tiles, clusters, k_stages;
} candidate;

/* Whether a narrower tile holds all of y as well: the columns between would be computed for nothing. A pair, which
 * halves what its CTAs load of y, has nothing to offer against a narrow tile of one. */
static int is_too_wide(const sm100_config *config, int64_t rows_y) {
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        const sm100_config *other = &configs[i];
        int alike = other->cta_group == config->cta_group || other->mma_tile_n <= NARROW_TILE;
        if (alike && other->cp_async == config->cp_async && rows_y <= other->mma_tile_n &&
            other->mma_tile_n < config->mma_tile_n)
            return 1;
    }
    return 0;
}

/* Cuts the product up; 0: the kernel cannot do it, or its tiles cannot be counted. */
static int cut(const device_facts *facts, const gemm_problem *p, candidate *c) {
    const sm100_config *config = c->config;
    int64_t rows_x = c->swap_ab ? p->n : p->m, rows_y = c->swap_ab ? p->m : p->n;
    if (kernels[config->kernel].shared_bytes > facts->shared_per_block) return 0;
    if (config->cp_async != needs_gather(p) || (config->cta_group == 2 && !scales_are_mapped(p))) return 0;
    if (config->mma_tile_n <= NARROW_TILE && rows_y > config->mma_tile_n) return 0;
    if (is_too_wide(config, rows_y)) return 0;
    if (rows_x < rows_y && rows_x == 1) return 0; /* a vector among the 128 rows would leave 127 idle */
    c->tiles_mma_m = ceil_div(rows_x, SM100_CTA_ROWS * config->cta_group);
    c->tiles_mma_n = ceil_div(rows_y, config->mma_tile_n);
    c->k_stages = ceil_div(p->k, SM100_STAGE_K);
    int64_t most = INT32_MAX - facts->sm_count; /* the kernel counts on from a tile by the number of clusters */
    if (c->tiles_mma_m * c->tiles_mma_n > most || c->tiles_mma_m * c->tiles_mma_n * p->l > most) return 0;
    c->tiles = c->tiles_mma_m * c->tiles_mma_n * p->l;
    if (c->split_k > 1) {
        int64_t cluster = config->cta_group * c->split_k;
        if (cluster > MAX_CLUSTER || c->split_k > c->k_stages || config->mma_tile_n % (c->split_k * SHARE_COLUMNS))
            return 0;
        c->clusters = c->tiles;
        return c->tiles * cluster <= INT32_MAX;
    }
    int64_t room = facts->sm_count / config->cta_group;
    if (room == 0) return 0;
    c->clusters = ceil_div(c->tiles, ceil_div(c->tiles, room)); /* each about as many tiles as the others */
    return 1;
}

/* Whether a CTA with so much shared memory leaves room for one of the next call. */
static int leaves_room(const device_facts *facts, const sm100_config *config, int32_t bytes) {
    return config->co_resident && 2 * (bytes + RESERVED_BYTES) <= facts->shared_per_sm;
}

static int32_t parts_bytes(const candidate *c) {
    return SM100_PARTIALS_BYTES(c->config->mma_tile_n, c->split_k);
}

/* Partial sums take the stages' place where room of their own would be none of the device's or the next call's. */
static int partials_in_stages(const device_facts *facts, const candidate *c) {
    int32_t bytes = kernels[c->config->kernel].shared_bytes, all = bytes + parts_bytes(c);
    return c->split_k > 1 && (all > facts->shared_per_block ||
                              (leaves_room(facts, c->config, bytes) && !leaves_room(facts, c->config, all)));
}

/* Stages of x that bulk copies bring into L2 before the call may read: worth it where few read them again, and a CTA
 * can be there while the call before ends. CTAs beside each other along y share the work. */
static int32_t prefetch_stages(const device_facts *facts, const candidate *c) {
    const sm100_config *config = c->config;
    int64_t readers = c->clusters / c->tiles_mma_n * config->cta_group * c->split_k,
            all = ceil_div(c->k_stages, c->split_k);
    if (c->tiles_mma_n > PREFETCH_SHARERS || c->tiles > c->clusters || config->cp_async ||
        !leaves_room(facts, config, kernels[config->kernel].shared_bytes))
        return 0;
    int64_t stages = PREFETCH_BYTES / ((SM100_MMA_A_BYTES + SM100_MMA_SFA_BYTES) * readers);
    return (int32_t)(stages < all ? stages : all);
}

static double estimate(const device_facts *facts, const gemm_problem *p, const candidate *c) {
    const sm100_config *config = c->config;
    const sm100_model_input input = {
        .mma_m = c->swap_ab ? p->n : p->m,
        .mma_n = c->swap_ab ? p->m : p->n,
        .k = p->k > 0 ? p->k : 1, /* without products there still are tiles to write */
        .l = p->l,
        .sm_count = facts->sm_count,
        .cta_group = config->cta_group,
        .mma_tile_n = config->mma_tile_n,
        .stages = config->stages,
        .accumulators = config->accumulators,
        .swap_ab = c->swap_ab,
        .split_k = c->split_k,
        .cp_async = config->cp_async,
        .cp_async_values = config->cp_async && !values_are_mapped(p),
        .co_resident = leaves_room(facts, config, kernels[config->kernel].shared_bytes),
        .partials_in_stages = partials_in_stages(facts, c),
        .output_bytes = p->out_type == OUT_FP32 ? 4 : 2,
    };
    return sm100_estimate_us(&input);
}

/* ---- the plan ---- */

static void fill_operand(const gemm_problem *p, int is_b, sm100_operand *o) {
    *o = (sm100_operand){
        .data = is_b ? p->b : p->a,
        .scale = is_b ? p->sfb : p->sfa,
        .pitch = is_b ? p->b_pitch : p->a_pitch,
        .batch = is_b ? p->b_batch : p->a_batch,
        .scale_pitch = is_b ? p->sfb_pitch : p->sfa_pitch,
        .scale_batch = is_b ? p->sfb_batch : p->sfa_batch,
        .rows = (int32_t)(is_b ? p->n : p->m),
    };
}

static void fill(const device_facts *facts, const gemm_problem *p, const candidate *c, int32_t prefetched,
                 nvfp4_plan *plan, sm100_schedule *s) {
    const sm100_config *config = c->config;
    const read_policies policies = choose_policies(facts, p, c->swap_ab, c->tiles_mma_m, c->tiles_mma_n);
    int32_t rows_x = SM100_CTA_ROWS * config->cta_group;
    *plan = (nvfp4_plan){
        .backend = NVFP4_BACKEND_SM100,
        .kernel = config->kernel,
        .name = kernels[config->kernel].name,
        .reason = config->reasons[c->swap_ab][c->split_k > 1],
        .tile_m = c->swap_ab ? config->mma_tile_n : rows_x,
        .tile_n = c->swap_ab ? rows_x : config->mma_tile_n,
        .tile_k = SM100_STAGE_K,
        .stages = config->stages,
        .swap_ab = c->swap_ab,
        .split_k = c->split_k,
        .grid = c->clusters * config->cta_group * c->split_k,
        .prefetch_stages = prefetched,
    };
    *s = (sm100_schedule){
        .tiles = (int32_t)c->tiles,
        .tiles_mma_m = (int32_t)c->tiles_mma_m,
        .tiles_mma_n = (int32_t)c->tiles_mma_n,
        .split_k = c->split_k,
        .k_stages = (int32_t)c->k_stages,
        .swap_ab = c->swap_ab,
        .values_by_tma = values_are_mapped(p),
        .prefetch_stages = prefetched,
        .partials_in_stages = partials_in_stages(facts, c),
    };
    fill_operand(p, c->swap_ab, &s->mma_a);
    fill_operand(p, !c->swap_ab, &s->mma_b);
    s->mma_a.cache_policy = policies.x, s->mma_b.cache_policy = policies.y;
}

/* Every instantiation, either operand as x, every cut of K, with prefetching or without. */
_Static_assert(sizeof configs / sizeof *configs * 2 * 4 * 2 <= PLAN_MOST_CANDIDATES, "room for all");

static int32_t list(const device_facts *facts, const gemm_problem *p, plan_candidate *all) {
    int32_t count = 0;
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        for (int32_t swap_ab = 0; swap_ab < 2; swap_ab++)
            for (int32_t split = 1; split <= MAX_CLUSTER; split *= 2) {
                candidate c = {.config = &configs[i], .swap_ab = swap_ab, .split_k = split};
                if (!cut(facts, p, &c)) continue;
                double time = estimate(facts, p, &c);
                if (!(time < INFINITY)) continue;
                int32_t ahead = prefetch_stages(facts, &c);
                all[count++] = (plan_candidate){{configs[i].kernel, swap_ab, split, 0}, time};
                if (ahead > 0) all[count++] = (plan_candidate){{configs[i].kernel, swap_ab, split, ahead}, time};
            }
    return count;
}

/* Why there is nothing to choose. */
static nvfp4_status refuse(const device_facts *facts, const gemm_problem *p) {
    int32_t least = INT32_MAX;
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        if (kernels[configs[i].kernel].shared_bytes < least) least = kernels[configs[i].kernel].shared_bytes;
    if (least > facts->shared_per_block)
        return fail(NVFP4_UNSUPPORTED, "the sm100 kernels need %d bytes of shared memory or more; the GPU has %d a CTA",
                    least, facts->shared_per_block);
    return fail(NVFP4_UNSUPPORTED,
                "the product of M = %lld, N = %lld, L = %lld has more tiles than the sm100 kernels count, which is %d",
                (long long)p->m, (long long)p->n, (long long)p->l, INT32_MAX);
}

static const sm100_config *config_of(int32_t kernel) {
    const sm100_config *config = configs;
    while (config->kernel != (kernel_id)kernel) config++;
    return config;
}

nvfp4_status sm100_plan(const device_facts *facts, const gemm_problem *p, const plan_wish *wish, nvfp4_plan *plan,
                        sm100_schedule *schedule) {
    const plan_choice choice = plan_choose(NVFP4_BACKEND_SM100, list, facts, p, wish);
    if (choice.candidates == 0) return refuse(facts, p);
    const plan_settings *s = &choice.taken.settings;
    candidate c = {.config = config_of(s->kernel), .swap_ab = s->swap_ab, .split_k = s->split_k};
    cut(facts, p, &c);
    fill(facts, p, &c, s->prefetch_stages, plan, schedule);
    plan->candidates = choice.candidates;
    plan->modelled_us = choice.taken.time;
    return NVFP4_OK;
}

/* ---- tensor maps ---- */

int32_t sm100_cluster(const nvfp4_plan *plan) {
    return config_of(plan->kernel)->cta_group * plan->split_k;
}

int32_t sm100_parts_bytes(const nvfp4_plan *plan, const sm100_schedule *schedule) {
    return schedule->partials_in_stages ? 0 : SM100_PARTIALS_BYTES(config_of(plan->kernel)->mma_tile_n, plan->split_k);
}

/* Atoms as 256 elements of 2 bytes, since a box takes at most 256 along a dimension. */
static tensor_layout scales_layout(const gemm_problem *p, const sm100_operand *o, const char *name, int32_t box_rows) {
    int64_t blocks = ceil_div(o->rows, SM100_ATOM_ROWS);
    return (tensor_layout){
        .name = name,
        .data = o->scale,
        .element_bytes = 2,
        .rank = 4,
        .dims = {SM100_ATOM_BYTES / 2, (uint64_t)p->k / SM100_MMA_K, (uint64_t)blocks, (uint64_t)p->l},
        .strides = {SM100_ATOM_BYTES, mapped_stride(blocks, o->scale_pitch), mapped_stride(p->l, o->scale_batch)},
        .box = {SM100_ATOM_BYTES / 2, SM100_STAGE_ATOMS, (uint32_t)ceil_div(box_rows, SM100_ATOM_ROWS), 1},
    };
}

int sm100_tensors(const gemm_problem *p, const nvfp4_plan *plan, sm100_schedule *s,
                  plan_tensor tensors[PLAN_MOST_TENSORS]) {
    const sm100_config *config = config_of(plan->kernel);
    int count = 0;
    if (p->k == 0 || !s->values_by_tma) return 0;
    tensors[count++] = (plan_tensor){values_layout(p, s->swap_ab, BOX_BYTES, SM100_CTA_ROWS, 128), &s->mma_a.values};
    tensors[count++] = (plan_tensor){
        values_layout(p, !s->swap_ab, BOX_BYTES, config->mma_tile_n / config->cta_group, 128), &s->mma_b.values};
    if (config->cta_group == 1) return count;
    const char *sfx = s->swap_ab ? "scale_b" : "scale_a", *sfy = s->swap_ab ? "scale_a" : "scale_b";
    tensors[count++] = (plan_tensor){scales_layout(p, &s->mma_a, sfx, SM100_CTA_ROWS), &s->mma_a.scales};
    tensors[count++] = (plan_tensor){scales_layout(p, &s->mma_b, sfy, config->mma_tile_n), &s->mma_b.scales};
    return count;
}
