/* Chooses the sm100 kernel by an estimate of time, from the shape, the device and how the operands lie.
 *
 * Every instantiation is tried with either operand on the side of the mma that takes 128 rows (x), and with K split
 * over as many CTAs as a cluster may have. What the kernel relies on is a rule here and not an estimate: tiles that are
 * narrow along y hold all of it, what bulk copies cannot take is gathered, parts of K are never empty. */
#include "sm100_plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "kernels.h"
#include "sm100_model.h"

typedef struct sm100_config {
    kernel_id kernel;
    int32_t group, tile_y, stages, accumulators, gather;
    int32_t co_resident;       /* two CTAs share the tensor memory of an SM */
    const char *reasons[2][2]; /* by swapped, by whether K is split */
} sm100_config;

#define A_WIDE "A is on the 128-row side of the mma"
#define B_WIDE "B is on the 128-row side of the mma"
#define NARROW ", all rows of the other in one narrow tile: each byte is loaded once"
#define SINGLE ", a CTA computes a tile by itself: more SMs load"
#define PAIR   ", two SMs share a tile and load half of the other each: fewest bytes are loaded"
#define GATHER ", scales are loaded by threads: they are linear, or K or the rows are not aligned to bulk copies"
#define SPLIT  "; K is split over a cluster so that more SMs load"
#define REASON(wide, split, group, tile_y, gather)                                                                     \
    ((gather)         ? wide GATHER split                                                                              \
     : (tile_y) <= 32 ? wide NARROW split                                                                              \
     : (group) == 2   ? wide PAIR split                                                                                \
                      : wide SINGLE split)

enum {
    MAX_CLUSTER = 8,    /* CTAs, of a portable cluster */
    NARROW_TILE = 32,   /* tiles no wider than this have to hold all of y */
    SHARE_COLUMNS = 4,  /* of a tile are added up at a time where K is split */
    TMEM_COLUMNS = 512, /* of an SM (PTX ISA 9.0, 9.7.16.1) */
    PREFETCH_SHARERS = 4,
    PREFETCH_BYTES = 20 << 20, /* of x by all CTAs: what DRAM delivers in the 2 to 3 us between the last copy of a call
                                  and the first of the next (modelled) */
    RESERVED_BYTES = 1024, /* of an SM's shared memory for each CTA (CUDA programming guide, compute capabilities) */
};

static const sm100_config configs[] = {
#define X(id, group, tile_y, stages, accumulators, gather)                                                             \
    {KERNEL_##id,                                                                                                      \
     group,                                                                                                            \
     tile_y,                                                                                                           \
     stages,                                                                                                           \
     accumulators,                                                                                                     \
     gather,                                                                                                           \
     SM100_TMEM_COLUMNS(tile_y, stages, accumulators) <= TMEM_COLUMNS / 2,                                             \
     {{REASON(A_WIDE, "", group, tile_y, gather), REASON(A_WIDE, SPLIT, group, tile_y, gather)},                       \
      {REASON(B_WIDE, "", group, tile_y, gather), REASON(B_WIDE, SPLIT, group, tile_y, gather)}}},
    SM100_GEMM_CONFIGS(X)
#undef X
};

/* L2 cache policies as createpolicy.fractional gives them for the fraction 1 (PTX ISA 9.0, 9.7.9.20). */
static const uint64_t evict_normal = 0x1000000000000000, evict_first = 0x12F0000000000000,
                      evict_last = 0x14F0000000000000;

static int64_t ceil_div(int64_t a, int64_t b) {
    return a / b + (a % b > 0);
}

/* ---- how the operands lie ---- */

static int is_stride(int64_t bytes) {
    return bytes >= 0 && bytes < TENSOR_STRIDE_END && bytes % 16 == 0;
}

/* Whether tensor maps reach the values of an operand; where there is one row or batch the distance does not matter. */
static int values_are_mapped(const gemm_problem *p, int64_t rows, int64_t pitch, int64_t batch) {
    return p->aligned16 && (rows == 1 || is_stride(pitch)) && (p->l == 1 || is_stride(batch));
}

static int by_tensor_maps(const gemm_problem *p) {
    return values_are_mapped(p, p->m, p->a_pitch, p->a_batch) && values_are_mapped(p, p->n, p->b_pitch, p->b_batch);
}

/* Whether threads have to load: bulk copies take whole atoms of scales, all of whose bytes multiply something. */
static int needs_gather(const gemm_problem *p) {
    return p->scale_layout == SCALES_LINEAR || p->k % SM100_MMA_K != 0 || !by_tensor_maps(p);
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
    int32_t swapped, split_k;
    int32_t prefetch_stages;
    int64_t tiles_x, tiles_y, tiles, clusters, k_stages;
    double time; /* modelled, us a call */
} candidate;

/* Whether a narrower tile holds all of y as well: the columns between would be computed for nothing. A pair, which
 * halves what its CTAs load of y, has nothing to offer against a narrow tile of one. */
static int is_too_wide(const sm100_config *config, int64_t rows_y) {
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        const sm100_config *other = &configs[i];
        int alike = other->group == config->group || other->tile_y <= NARROW_TILE;
        if (alike && other->gather == config->gather && rows_y <= other->tile_y && other->tile_y < config->tile_y)
            return 1;
    }
    return 0;
}

/* Cuts the product up; 0: the kernel cannot do it, or its tiles cannot be counted. */
static int cut(const device_facts *facts, const gemm_problem *p, candidate *c) {
    const sm100_config *config = c->config;
    int64_t rows_x = c->swapped ? p->n : p->m, rows_y = c->swapped ? p->m : p->n;
    if (kernels[config->kernel].shared_bytes > facts->shared_per_block) return 0;
    if (config->gather != needs_gather(p) || (config->group == 2 && !scales_are_mapped(p))) return 0;
    if (config->tile_y <= NARROW_TILE && rows_y > config->tile_y) return 0;
    if (is_too_wide(config, rows_y)) return 0;
    if (rows_x < rows_y && rows_x == 1) return 0; /* a vector among the 128 rows would leave 127 idle */
    c->tiles_x = ceil_div(rows_x, SM100_CTA_ROWS * config->group);
    c->tiles_y = ceil_div(rows_y, config->tile_y);
    c->k_stages = ceil_div(p->k, SM100_STAGE_K);
    int64_t most = INT32_MAX - facts->sm_count; /* the kernel counts on from a tile by the number of clusters */
    if (c->tiles_x * c->tiles_y > most || c->tiles_x * c->tiles_y * p->l > most) return 0;
    c->tiles = c->tiles_x * c->tiles_y * p->l;
    if (c->split_k > 1) {
        int64_t cluster = config->group * c->split_k;
        if (cluster > MAX_CLUSTER || c->split_k > c->k_stages || config->tile_y % (c->split_k * SHARE_COLUMNS))
            return 0;
        c->clusters = c->tiles;
        return c->tiles * cluster <= INT32_MAX;
    }
    int64_t room = facts->sm_count / config->group;
    if (room == 0) return 0;
    c->clusters = ceil_div(c->tiles, ceil_div(c->tiles, room)); /* each about as many tiles as the others */
    return 1;
}

/* Whether a CTA with so much shared memory leaves room for one of the next call. */
static int leaves_room(const device_facts *facts, const sm100_config *config, int32_t bytes) {
    return config->co_resident && 2 * (bytes + RESERVED_BYTES) <= facts->shared_per_sm;
}

static int32_t parts_bytes(const candidate *c) {
    return SM100_PARTS_BYTES(c->config->tile_y, c->split_k);
}

/* Partial sums take the stages' place where room of their own would be none of the device's or the next call's. */
static int parts_in_stages(const device_facts *facts, const candidate *c) {
    int32_t bytes = kernels[c->config->kernel].shared_bytes, all = bytes + parts_bytes(c);
    return c->split_k > 1 && (all > facts->shared_per_block ||
                              (leaves_room(facts, c->config, bytes) && !leaves_room(facts, c->config, all)));
}

/* Stages of x that bulk copies bring into L2 before the call may read: worth it where few read them again, and a CTA
 * can be there while the call before ends. CTAs beside each other along y share the work. */
static int32_t prefetch_stages(const device_facts *facts, const candidate *c) {
    const sm100_config *config = c->config;
    int64_t readers = c->clusters / c->tiles_y * config->group * c->split_k, all = ceil_div(c->k_stages, c->split_k);
    if (c->tiles_y > PREFETCH_SHARERS || c->tiles > c->clusters || config->gather ||
        !leaves_room(facts, config, kernels[config->kernel].shared_bytes))
        return 0;
    int64_t stages = PREFETCH_BYTES / ((SM100_X_BYTES + SM100_SFX_BYTES) * readers);
    return (int32_t)(stages < all ? stages : all);
}

static double estimate(const device_facts *facts, const gemm_problem *p, const candidate *c) {
    const sm100_config *config = c->config;
    const sm100_model_input input = {
        .x_rows = c->swapped ? p->n : p->m,
        .y_rows = c->swapped ? p->m : p->n,
        .k = p->k > 0 ? p->k : 1, /* without products there still are tiles to write */
        .l = p->l,
        .sm_count = facts->sm_count,
        .group = config->group,
        .tile_y = config->tile_y,
        .stages = config->stages,
        .accumulators = config->accumulators,
        .swapped = c->swapped,
        .split_k = c->split_k,
        .gather = config->gather,
        .gather_values = config->gather && !by_tensor_maps(p),
        .co_resident = leaves_room(facts, config, kernels[config->kernel].shared_bytes),
        .parts_in_stages = parts_in_stages(facts, c),
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

/* An operand that is read once need not stay in L2; one that is read again and again while the other streams through
 * should, if there is room for it. */
static void choose_policies(const device_facts *facts, const gemm_problem *p, const candidate *c, sm100_schedule *s) {
    int x_again = p->l > 1 && s->x.batch == 0, y_again = p->l > 1 && s->y.batch == 0; /* one for all batches */
    int64_t room = facts->l2_bytes / 2;
    int x_once = c->tiles_y == 1 && !x_again, y_once = c->tiles_x == 1 && !y_again;
    int x_stays = !x_once && y_once && s->x.rows * (p->k / 2) <= room;
    int y_stays = !y_once && x_once && s->y.rows * (p->k / 2) <= room;
    s->x.policy = x_once ? evict_first : x_stays ? evict_last : evict_normal;
    s->y.policy = y_once ? evict_first : y_stays ? evict_last : evict_normal;
}

static void fill(const device_facts *facts, const gemm_problem *p, const candidate *c, nvfp4_plan *plan,
                 sm100_schedule *s) {
    const sm100_config *config = c->config;
    int32_t rows_x = SM100_CTA_ROWS * config->group;
    *plan = (nvfp4_plan){
        .backend = NVFP4_BACKEND_SM100,
        .kernel = config->kernel,
        .name = kernels[config->kernel].name,
        .reason = config->reasons[c->swapped][c->split_k > 1],
        .tile_m = c->swapped ? config->tile_y : rows_x,
        .tile_n = c->swapped ? rows_x : config->tile_y,
        .tile_k = SM100_STAGE_K,
        .stages = config->stages,
        .swapped = c->swapped,
        .split_k = c->split_k,
        .grid = c->clusters * config->group * c->split_k,
        .prefetch_stages = c->prefetch_stages,
        .modelled_us = c->time,
    };
    *s = (sm100_schedule){
        .tiles = (int32_t)c->tiles,
        .tiles_x = (int32_t)c->tiles_x,
        .tiles_y = (int32_t)c->tiles_y,
        .split_k = c->split_k,
        .k_stages = (int32_t)c->k_stages,
        .swapped = c->swapped,
        .values_by_tma = by_tensor_maps(p),
        .prefetch_stages = c->prefetch_stages,
        .parts_in_stages = parts_in_stages(facts, c),
    };
    fill_operand(p, c->swapped, &s->x);
    fill_operand(p, !c->swapped, &s->y);
    choose_policies(facts, p, c, s);
}

/* All that the choice depends on. */
typedef struct question {
    int64_t m, n, k, l;
    int32_t gather, tensor_maps, scale_maps, wide_output;
    int32_t sm_count, shared_per_block, shared_per_sm;
    sm100_wish wish;
} question;

typedef struct answer {
    question question;
    candidate choice;
    int32_t candidates; /* 0: there is none to choose */
} answer;

/* Every instantiation, either operand as x, every cut of K, with prefetching or without. */
enum { MAX_CANDIDATES = sizeof configs / sizeof *configs * 2 * 4 * 2 };

/* Ties are broken by what is in the candidates, so that the choice is the same every time. Without prefetching comes
 * first: the estimate does not know of it, and an H200 loses by it (benchmarks/b200_model.md). */
static int is_slower(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->time != y->time) return x->time < y->time ? -1 : 1;
    if (x->prefetch_stages != y->prefetch_stages) return x->prefetch_stages < y->prefetch_stages ? -1 : 1;
    if (x->config != y->config) return x->config < y->config ? -1 : 1;
    if (x->swapped != y->swapped) return x->swapped < y->swapped ? -1 : 1;
    return (x->split_k > y->split_k) - (x->split_k < y->split_k);
}

static int32_t rank_candidates(const device_facts *facts, const gemm_problem *p, candidate *all) {
    int32_t count = 0;
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        for (int32_t swapped = 0; swapped < 2; swapped++)
            for (int32_t split = 1; split <= MAX_CLUSTER; split *= 2) {
                candidate c = {.config = &configs[i], .swapped = swapped, .split_k = split};
                if (!cut(facts, p, &c)) continue;
                int32_t ahead = prefetch_stages(facts, &c);
                for (int32_t prefetching = 0; prefetching <= (ahead > 0); prefetching++) {
                    c.prefetch_stages = prefetching ? ahead : 0;
                    c.time = estimate(facts, p, &c);
                    if (c.time < INFINITY) all[count++] = c;
                }
            }
    return count;
}

static void put_first(candidate *all, int32_t count, const sm100_settings *s) {
    for (int32_t i = 0; i < count; i++)
        if ((int32_t)all[i].config->kernel == s->kernel && all[i].swapped == s->swapped &&
            all[i].split_k == s->split_k && all[i].prefetch_stages == s->prefetch_stages) {
            candidate first = all[i];
            memmove(all + 1, all, (size_t)i * sizeof *all);
            all[0] = first;
            return;
        }
}

static void choose(const device_facts *facts, const gemm_problem *p, answer *a) {
    candidate all[MAX_CANDIDATES];
    a->candidates = rank_candidates(facts, p, all);
    if (a->candidates == 0) return;
    qsort(all, (size_t)a->candidates, sizeof *all, is_slower);
    const sm100_wish *wish = &a->question.wish;
    put_first(all, a->candidates, &wish->first);
    a->choice = all[wish->candidate < a->candidates ? wish->candidate : a->candidates - 1];
}

/* Estimates of all candidates take longer than the rest of a call, so the thread keeps the answers of some shapes. */
static const answer *recall(const device_facts *facts, const gemm_problem *p, const sm100_wish *wish) {
    static _Thread_local answer answers[64]; /* a shape has one place, so that the latest stays */
    const question q = {
        .m = p->m,
        .n = p->n,
        .k = p->k,
        .l = p->l,
        .gather = needs_gather(p),
        .tensor_maps = by_tensor_maps(p),
        .scale_maps = scales_are_mapped(p),
        .wide_output = p->out_type == OUT_FP32,
        .sm_count = facts->sm_count,
        .shared_per_block = facts->shared_per_block,
        .shared_per_sm = facts->shared_per_sm,
        .wish = wish ? *wish : (sm100_wish){.candidate = 0},
    };
    uint64_t hash = (uint64_t)p->m * 31 + (uint64_t)p->n * 0x9E3779B97F4A7C15 + (uint64_t)p->k * 0xC2B2AE3D27D4EB4F;
    answer *a = &answers[hash >> 58];
    if (!a->candidates || memcmp(&a->question, &q, sizeof q) != 0) {
        a->question = q;
        choose(facts, p, a);
    }
    return a;
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

nvfp4_status sm100_plan(const device_facts *facts, const gemm_problem *p, const sm100_wish *wish, nvfp4_plan *plan,
                        sm100_schedule *schedule) {
    const answer *a = recall(facts, p, wish);
    if (!a->candidates) return refuse(facts, p);
    fill(facts, p, &a->choice, plan, schedule);
    plan->candidates = a->candidates;
    return NVFP4_OK;
}

/* ---- tensor maps ---- */

static const sm100_config *config_of(const nvfp4_plan *plan) {
    const sm100_config *config = configs;
    while (config->kernel != (kernel_id)plan->kernel) config++;
    return config;
}

int32_t sm100_cluster(const nvfp4_plan *plan) {
    return config_of(plan)->group * plan->split_k;
}

int32_t sm100_parts_bytes(const nvfp4_plan *plan, const sm100_schedule *schedule) {
    return schedule->parts_in_stages ? 0 : SM100_PARTS_BYTES(config_of(plan)->tile_y, plan->split_k);
}

/* The distance of what there is only one of is free, but must be a valid one. */
static uint64_t stride(int64_t count, int64_t bytes) {
    return count == 1 ? 16 : (uint64_t)bytes;
}

static tensor_layout values_layout(const gemm_problem *p, const sm100_operand *o, const char *name, int32_t box_rows) {
    return (tensor_layout){
        .name = name,
        .data = o->data,
        .element_bytes = 1,
        .rank = 3,
        .dims = {(uint64_t)p->k / 2, (uint64_t)o->rows, (uint64_t)p->l},
        .strides = {stride(o->rows, o->pitch), stride(p->l, o->batch)},
        .box = {SM100_STAGE_K / 2, (uint32_t)box_rows, 1},
        .swizzled = 1,
    };
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
        .strides = {SM100_ATOM_BYTES, stride(blocks, o->scale_pitch), stride(p->l, o->scale_batch)},
        .box = {SM100_ATOM_BYTES / 2, SM100_STAGE_ATOMS, (uint32_t)ceil_div(box_rows, SM100_ATOM_ROWS), 1},
    };
}

int sm100_tensors(const gemm_problem *p, const nvfp4_plan *plan, sm100_schedule *s,
                  sm100_tensor tensors[SM100_TENSORS]) {
    const sm100_config *config = config_of(plan);
    int count = 0;
    if (p->k == 0 || !s->values_by_tma) return 0;
    const char *x = s->swapped ? "b" : "a", *y = s->swapped ? "a" : "b";
    tensors[count++] = (sm100_tensor){values_layout(p, &s->x, x, SM100_CTA_ROWS), &s->x.values};
    tensors[count++] = (sm100_tensor){values_layout(p, &s->y, y, config->tile_y / config->group), &s->y.values};
    if (config->group == 1) return count;
    const char *sfx = s->swapped ? "scale_b" : "scale_a", *sfy = s->swapped ? "scale_a" : "scale_b";
    tensors[count++] = (sm100_tensor){scales_layout(p, &s->x, sfx, SM100_CTA_ROWS), &s->x.scales};
    tensors[count++] = (sm100_tensor){scales_layout(p, &s->y, sfy, config->tile_y), &s->y.scales};
    return count;
}
