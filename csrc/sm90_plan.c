/* Chooses the sm90 kernel by an estimate of time, from the shape, the device and how the operands lie.
 *
 * Every instantiation is tried with either operand as x, the side that is decoded in registers, and with K cut into 1
 * to 8 parts. What the kernel relies on is a rule here and not an estimate: tiles that are narrow along y hold all of
 * it, parts of K are never empty, partial sums have room. */
#include "sm90_plan.h"

#include <math.h>

#include "error.h"
#include "kernels.h"
#include "plan_choice.h"
#include "sm90_gemv_plan.h"
#include "sm90_model.h"

typedef struct sm90_config {
    kernel_id kernel;
    int32_t math_warpgroups, x_tiles, tile_x, tile_y, stages;
    int32_t parts_room; /* for partial sums in place of the rings, which lie one behind the other */
    int32_t warps;      /* that decode */
    int32_t y_raw;      /* nothing is expanded before */
    int32_t helped;
    const char *reasons[2][2]; /* by swap_ab, by whether K is cut */
} sm90_config;

#define A_REGISTERS "A is decoded in registers, B "
#define B_REGISTERS "B is decoded in registers, A "
#define INSIDE      "beside it by warps that would be idle"
#define BEFORE      "expanded to fp16 before"
#define NARROW      ", all of whose rows are in one narrow tile: each byte is loaded once"
#define TALL        ", for 256 rows of the other: it is loaded and decoded for more products"
#define SQUARE      ", in tiles of 128 rows: more SMs have work"
#define SPLIT       "; K is cut over a cluster so that more SMs load"
#define HELP        "; CTAs without a tile compute the beginning of K for those that have one"
#define REASON(registers, split, tile_x, tile_y, helped)                                                               \
    ((helped)                           ? registers BEFORE split HELP                                                  \
     : SM90_DEQUANT_B_IN_KERNEL(tile_y) ? registers INSIDE NARROW split                                                \
     : (tile_y) <= 32                   ? registers BEFORE NARROW split                                                \
     : (tile_x) > 128                   ? registers BEFORE TALL split                                                  \
                                        : registers BEFORE SQUARE split)

enum {
    MAX_CLUSTER = 8,       /* CTAs, of a portable cluster */
    HELPED_CLUSTER = 2,    /* larger ones leave SMs idle */
    MOST_CLUSTERS = 65535, /* of a grid along y (CUDA programming guide, compute capabilities) */
    NARROW_TILE = 32,      /* tiles no wider than this have to hold all of y */
};

static const sm90_config configs[] = {
#define X(id, math_warpgroups, x_tiles, tile_y, group_words, stages, helped)                                           \
    {KERNEL_##id,                                                                                                      \
     math_warpgroups,                                                                                                  \
     x_tiles,                                                                                                          \
     SM90_MMA_TILE_M(math_warpgroups, x_tiles),                                                                        \
     tile_y,                                                                                                           \
     stages,                                                                                                           \
     SM90_PARTIALS_ROOM(math_warpgroups, x_tiles, tile_y, stages),                                                     \
     4 * (math_warpgroups),                                                                                            \
     SM90_DEQUANT_B_IN_KERNEL(tile_y),                                                                                 \
     helped,                                                                                                           \
     {{REASON(A_REGISTERS, "", SM90_MMA_TILE_M(math_warpgroups, x_tiles), tile_y, helped),                             \
       REASON(A_REGISTERS, SPLIT, SM90_MMA_TILE_M(math_warpgroups, x_tiles), tile_y, helped)},                         \
      {REASON(B_REGISTERS, "", SM90_MMA_TILE_M(math_warpgroups, x_tiles), tile_y, helped),                             \
       REASON(B_REGISTERS, SPLIT, SM90_MMA_TILE_M(math_warpgroups, x_tiles), tile_y, helped)}}},
    SM90_GEMM_CONFIGS(X)
#undef X
};
enum { CONFIGS = sizeof configs / sizeof *configs, ELSEWHERE = 8 /* candidates of the other forms */ };
_Static_assert(CONFIGS * 2 * MAX_CLUSTER + ELSEWHERE <= PLAN_MOST_CANDIDATES, "room for all");

static int64_t ceil_div(int64_t a, int64_t b) {
    return a / b + (a % b > 0);
}

static const sm90_config *config_of(int32_t kernel) {
    const sm90_config *config = configs;
    while (config->kernel != (kernel_id)kernel) config++;
    return config;
}

/* ---- candidates ---- */

typedef struct candidate {
    const sm90_config *config;
    int32_t swap_ab, split_k;
    int32_t partials_in_stages;
    sm90_streamk_split help; /* of a helped kernel */
    int64_t tiles_x, tiles_y, tiles, clusters, k_stages;
    sm90_side x, y;
} candidate;

/* Whether a smaller tile holds all of x, or all of y, as well: the rows between would be computed for nothing. */
static int is_too_large(const sm90_config *config, int64_t rows_x, int64_t rows_y) {
    for (size_t i = 0; i < CONFIGS; i++) {
        const sm90_config *other = &configs[i];
        int alike = other->tile_x == config->tile_x || other->tile_y <= NARROW_TILE;
        if (alike && rows_y <= other->tile_y && other->tile_y < config->tile_y) return 1;
        if (other->tile_y == config->tile_y && rows_x <= other->tile_x && other->tile_x < config->tile_x) return 1;
    }
    return 0;
}

static int32_t parts_bytes(const sm90_config *config, int32_t split_k) {
    return SM90_PARTIALS_BYTES(config->math_warpgroups, config->x_tiles, config->tile_y, split_k);
}

static int32_t contribution_bytes(const sm90_config *config) {
    return SM90_PARTIAL_TILE_BYTES(config->math_warpgroups, config->x_tiles, config->tile_y);
}

/* Whether what the other units send has room behind what the kernel always has, or else in place of its stages. */
static int place_parts(const device_facts *facts, candidate *c) {
    const sm90_config *config = c->config;
    int32_t bytes = parts_bytes(config, c->split_k);
    c->partials_in_stages = kernels[config->kernel].shared_bytes + bytes > facts->shared_per_block;
    return !c->partials_in_stages || bytes <= config->parts_room;
}

static sm90_model_input model_input(const device_facts *facts, const gemm_problem *p, const candidate *c) {
    const sm90_config *config = c->config;
    return (sm90_model_input){
        .mma_m = c->swap_ab ? p->n : p->m,
        .mma_n = c->swap_ab ? p->m : p->n,
        .k = p->k > 0 ? p->k : 1, /* without products there still are tiles to write */
        .l = p->l,
        .sm_count = facts->sm_count,
        .mma_tile_m = config->tile_x,
        .mma_tile_n = config->tile_y,
        .stage_k = SM90_STAGE_K,
        .warps = config->warps,
        .split_k = c->split_k,
        .partials_bytes = parts_bytes(config, c->split_k),
        .dequant_b_in_kernel = config->y_raw,
        .dequant_batches = config->y_raw ? 0 : c->y.batches,
        .output_bytes = p->out_type == OUT_FP32 ? 4 : 2,
        .partial_tile_bytes = contribution_bytes(config),
        .streamk = c->help,
    };
}

/* Whether there are CTAs without a tile, and stages for them; and how these are shared out. */
static int find_help(const device_facts *facts, const gemm_problem *p, candidate *c) {
    sm90_model_input input = model_input(facts, p, c);
    if (p->k == 0 || c->split_k > HELPED_CLUSTER || c->partials_in_stages || !sm90_split_streamk(&input)) return 0;
    c->help = input.streamk;
    c->clusters = c->tiles - c->help.dp_tiles + c->help.worker_clusters;
    return 1;
}

/* Cuts the product up; 0: the kernel cannot do it, or its tiles cannot be counted. */
static int cut(const device_facts *facts, const gemm_problem *p, candidate *c) {
    const sm90_config *config = c->config;
    int64_t rows_x = c->swap_ab ? p->n : p->m, rows_y = c->swap_ab ? p->m : p->n;
    if (kernels[config->kernel].shared_bytes > facts->shared_per_block) return 0;
    if (config->tile_y <= NARROW_TILE && rows_y > config->tile_y) return 0;
    if (is_too_large(config, rows_x, rows_y)) return 0;
    if (p->scale_layout != SCALES_128X4 || !values_are_mapped(p)) return 0; /* as x is read */
    if (config->y_raw)
        sm90_raw_side(p, !c->swap_ab, &c->y);
    else if (!sm90_expanded_side(p, !c->swap_ab, &c->y))
        return 0;
    sm90_raw_side(p, c->swap_ab, &c->x);
    if (rows_x < rows_y && rows_x == 1) return 0; /* a vector among the rows of x would leave the others idle */
    c->tiles_x = ceil_div(rows_x, config->tile_x);
    c->tiles_y = ceil_div(rows_y, config->tile_y);
    c->k_stages = ceil_div(p->k, SM90_STAGE_K);
    int64_t most = INT32_MAX - facts->sm_count; /* the kernel counts on from a tile by the number of clusters */
    if (c->tiles_x * c->tiles_y > most || c->tiles_x * c->tiles_y * p->l > most) return 0;
    c->tiles = c->tiles_x * c->tiles_y * p->l;
    c->partials_in_stages = 0;
    if (c->split_k > 1) {
        c->clusters = c->tiles;
        if (c->split_k > c->k_stages || c->clusters > MOST_CLUSTERS || !place_parts(facts, c)) return 0;
    } else {
        c->clusters = ceil_div(c->tiles, ceil_div(c->tiles, facts->sm_count)); /* about as many tiles as the others */
    }
    return !config->helped || find_help(facts, p, c);
}

static double estimate(const device_facts *facts, const gemm_problem *p, const candidate *c) {
    const sm90_model_input input = model_input(facts, p, c);
    return sm90_estimate_us(&input);
}

static int32_t list(const device_facts *facts, const gemm_problem *p, plan_candidate *all) {
    int32_t count = sm90_gemv_list(facts, p, all);
    count += sm90_prefill_list(facts, p, all + count);
    for (size_t i = 0; i < CONFIGS; i++)
        for (int32_t swap_ab = 0; swap_ab < 2; swap_ab++)
            for (int32_t split = 1; split <= MAX_CLUSTER; split++) {
                candidate c = {.config = &configs[i], .swap_ab = swap_ab, .split_k = split};
                if (!cut(facts, p, &c)) continue;
                double time = estimate(facts, p, &c);
                if (time < INFINITY) all[count++] = (plan_candidate){{configs[i].kernel, swap_ab, split, 0}, time};
            }
    return count;
}

/* ---- the plan ---- */

/* The smallest factor f so that x * f >> 31 is x / d where x * d is below 2^31. */
static uint32_t reciprocal(int32_t d) {
    return (uint32_t)ceil_div((int64_t)1 << 31, d);
}

/* What helpers need: their share, and room in the workspace behind y for their sums and then their flags. */
static void plan_help(const candidate *c, nvfp4_plan *plan, sm90_dequant_run *expand, sm90_schedule *s) {
    const sm90_streamk_split *help = &c->help;
    const int64_t helpers = (int64_t)help->worker_clusters * c->split_k, divided = c->tiles - help->dp_tiles;
    s->dp_tiles = help->dp_tiles;
    s->k_stages = (int32_t)c->k_stages;
    s->worker_clusters = help->worker_clusters;
    s->streamk_stages = help->streamk_stages;
    s->worker_stages = help->worker_stages;
    s->inv_streamk_stages = reciprocal(help->streamk_stages);
    s->inv_worker_stages = reciprocal(help->worker_stages);
    expand->schedule.flags = (int32_t)helpers;
    expand->flags_at = expand->second_at + (helpers + divided) * contribution_bytes(c->config);
    plan->workspace += (size_t)(expand->flags_at - expand->second_at + helpers * (int64_t)sizeof(uint32_t));
}

static void fill(const device_facts *facts, const gemm_problem *p, const candidate *c, nvfp4_plan *plan,
                 sm90_dequant_run *expand, sm90_schedule *s) {
    const sm90_config *config = c->config;
    const read_policies policies = choose_policies(facts, p, c->swap_ab, c->tiles_x, c->tiles_y);
    const sm90_dequant_operand *x = &c->x.operand;
    const sm90_side nothing = {.expanded = 0};
    *plan = (nvfp4_plan){
        .backend = NVFP4_BACKEND_SM90,
        .kernel = config->kernel,
        .name = kernels[config->kernel].name,
        .reason = config->reasons[c->swap_ab][c->split_k > 1],
        .tile_m = c->swap_ab ? config->tile_y : config->tile_x,
        .tile_n = c->swap_ab ? config->tile_x : config->tile_y,
        .tile_k = SM90_STAGE_K,
        .stages = config->stages,
        .swap_ab = c->swap_ab,
        .split_k = c->split_k,
        .grid = c->clusters * c->split_k,
        .workspace = sm90_plan_expansion(p, &c->y, &nothing, expand),
    };
    *s = (sm90_schedule){
        .mma_a = {.scale = x->scale,
                  .scale_pitch = x->scale_pitch,
                  .scale_batch = x->scale_batch,
                  .cache_policy = policies.x,
                  .rows = x->rows},
        .mma_b = {.cache_policy = policies.y, .rows = c->y.operand.rows, .shared = p->l > 1 && c->y.batches == 1},
        .mma_b_e2m1 = c->y.operand,
        .tiles = (int32_t)c->tiles,
        .tiles_mma_m = (int32_t)c->tiles_x,
        .tiles_mma_n = (int32_t)c->tiles_y,
        .split_k = c->split_k,
        .stages_per_split = (int32_t)((c->k_stages - c->help.streamk_stages) / c->split_k),
        .splits_with_one_more = (int32_t)((c->k_stages - c->help.streamk_stages) % c->split_k),
        .swap_ab = c->swap_ab,
        .partials_in_stages = c->partials_in_stages,
        .inv_split_k = reciprocal(c->split_k),
    };
    if (config->helped) plan_help(c, plan, expand, s);
}

/* Why there is nothing to choose. */
static nvfp4_status refuse(const device_facts *facts, const gemm_problem *p) {
    int32_t least = INT32_MAX;
    for (size_t i = 0; i < CONFIGS; i++)
        if (kernels[configs[i].kernel].shared_bytes < least) least = kernels[configs[i].kernel].shared_bytes;
    if (least > facts->shared_per_block)
        return fail(NVFP4_UNSUPPORTED, "the sm90 kernels need %d bytes of shared memory or more; the GPU has %d a CTA",
                    least, facts->shared_per_block);
    sm90_side a, b;
    if (!sm90_expanded_side(p, 0, &a) || !sm90_expanded_side(p, 1, &b))
        return fail(
            NVFP4_UNSUPPORTED,
            "the product of M = %lld, N = %lld, K = %lld, L = %lld needs a workspace beyond the %lld bytes that "
            "the sm90 kernels reach; must be smaller, or backend sm80",
            (long long)p->m, (long long)p->n, (long long)p->k, (long long)p->l, (long long)TENSOR_STRIDE_END);
    return fail(NVFP4_UNSUPPORTED,
                "the product of M = %lld, N = %lld, L = %lld has more tiles than the sm90 kernels count, which is %d",
                (long long)p->m, (long long)p->n, (long long)p->l, INT32_MAX);
}

static sm90_form form_of(int32_t kernel) {
    switch (kernel) {
#define X(id, ...) case KERNEL_##id:
        SM90_GEMV_CONFIGS(X)
#undef X
        return SM90_GEMV;
#define X(id, ...) case KERNEL_##id:
        SM90_PREFILL_CONFIGS(X)
#undef X
        return SM90_DENSE;
    default:
        return SM90_GEMM;
    }
}

nvfp4_status sm90_plan(const device_facts *facts, const gemm_problem *p, const plan_wish *wish, nvfp4_plan *plan,
                       sm90_run *run) {
    const plan_choice choice = plan_choose(NVFP4_BACKEND_SM90, list, facts, p, wish);
    if (choice.candidates == 0) return refuse(facts, p);
    const plan_settings *s = &choice.taken.settings;
    run->form = form_of(s->kernel);
    if (run->form == SM90_GEMV) {
        run->expand = (sm90_dequant_run){.grid = 0};
        sm90_gemv_fill(facts, p, s->kernel, s->swap_ab, plan, &run->gemv);
    } else if (run->form == SM90_DENSE) {
        sm90_prefill_fill(facts, p, s, plan, &run->expand, &run->dense);
    } else {
        candidate c = {.config = config_of(s->kernel), .swap_ab = s->swap_ab, .split_k = s->split_k};
        cut(facts, p, &c);
        fill(facts, p, &c, plan, &run->expand, &run->gemm);
    }
    plan->candidates = choice.candidates;
    plan->modelled_us = choice.taken.time;
    return NVFP4_OK;
}

int sm90_yields_to_sm80(const device_facts *facts, const gemm_problem *p, const plan_wish *wish,
                        const nvfp4_plan *plan) {
    if (plan->kernel != KERNEL_sm90_prefill_fp16 || wish->candidate > 0 || wish->first.kernel == plan->kernel) return 0;
    return plan->modelled_us > sm90_sm80_us((double)p->m, (double)p->n, (double)p->k, (double)p->l, facts->sm_count);
}

/* ---- what the launch needs ---- */

void sm90_place_workspace(sm90_run *run, void *workspace) {
    sm90_dequant_schedule *e = &run->expand.schedule;
    sm90_place_expansion(&run->expand, workspace);
    if (run->form != SM90_GEMM || e->flags == 0) return;
    run->gemm.partial_tiles = (uint8_t *)e->first.to + run->expand.second_at;
    e->zeroed = run->gemm.fixup_flags = (uint32_t *)((uint8_t *)e->first.to + run->expand.flags_at);
}

int32_t sm90_cluster(const nvfp4_plan *plan, const sm90_run *run) {
    return run->form == SM90_GEMV ? 0 : run->form == SM90_DENSE ? 2 : plan->split_k;
}

int64_t sm90_grid_x(const nvfp4_plan *plan, const sm90_run *run) {
    return run->form == SM90_GEMM ? plan->split_k : plan->grid;
}

int32_t sm90_more_shared_bytes(const nvfp4_plan *plan, const sm90_run *run) {
    if (run->form == SM90_GEMV) return (int32_t)sm90_gemv_shared_bytes(plan->kernel, &run->gemv);
    if (run->form == SM90_DENSE || run->gemm.partials_in_stages) return 0;
    return parts_bytes(config_of(plan->kernel), plan->split_k);
}

int sm90_tensors(const gemm_problem *p, const nvfp4_plan *plan, sm90_run *run, plan_tensor tensors[PLAN_MOST_TENSORS]) {
    if (run->form == SM90_GEMV) return 0;
    if (run->form == SM90_DENSE) return sm90_prefill_tensors(p, plan, &run->expand, &run->dense, tensors);
    if (p->k == 0) return 0;
    sm90_schedule *s = &run->gemm;
    const sm90_config *config = config_of(plan->kernel);
    tensors[0] = (plan_tensor){values_layout(p, s->swap_ab, SM90_STAGE_K / 2, config->tile_x, 0), &s->mma_a.values};
    if (config->y_raw) return 1;
    const void *y = run->expand.schedule.first.to;
    tensors[1].map = &s->mma_b.values;
    tensors[1].layout =
        sm90_expanded_layout(p, !s->swap_ab, y, s->mma_b.rows, s->mma_b.shared ? 1 : p->l, config->tile_y);
    return 2;
}
