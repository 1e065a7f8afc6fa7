/* The sm100 backend's candidates and launches. C11 and C++17.
 *
 * Every instantiation is tried with either operand as mma_a, the one with 128 rows a CTA, and with K split over as many
 * CTAs as a cluster may have. What the kernel relies on is a rule here and not a model: tiles that are narrow along
 * mma_b hold all of it, what bulk copies cannot take is loaded by cp.async, no split of K is empty. */
#include "kernels/sm100/plan.h"

enum {
    MAX_CLUSTER = 8,  /* CTAs, of a portable cluster */
    NARROW_TILE = 32, /* tiles no wider than this have to hold all of mma_b */
    KEPT_COLUMNS = 4, /* of a tile, that are reduced at a time under split-K */
    PREFETCH_SHARERS = 4,
    PREFETCH_BYTES = 20 << 20, /* of mma_a by all CTAs: what DRAM delivers in the 2 to 3 us between the last load
                                        of a call and the first of the next (modelled) */
    BOX_BYTES = SM100_STAGE_K / 2,
};

/* CTAs of consecutive calls that pile up fill so many times fewer SMs: measured on an H200 (withholds_room). */
#define PILED_UP (120.0 / 88.0)

#define A_ROWS      "A is the 128-row operand of the mma"
#define B_ROWS      "B is the 128-row operand of the mma"
#define NARROW      ", all rows of the other in one narrow tile: each byte is loaded once"
#define SINGLE      ", a CTA computes a tile by itself: more SMs load"
#define PAIR        ", two SMs share a tile and load half of the other each: fewest bytes are loaded"
#define SHARED      ", two pairs load half of it for each other: L2 sends it once"
#define BY_CP_ASYNC ", scales are loaded by cp.async: they are linear, or K or the rows are not aligned to bulk copies"
#define SPLIT       "; split along K over a cluster so that more SMs load"
#define REASON(mma_a, split, cta_group, mma_tile_n, cp_async, multicast)                                               \
    ((cp_async)           ? mma_a BY_CP_ASYNC split                                                                    \
     : (mma_tile_n) <= 32 ? mma_a NARROW split                                                                         \
     : (multicast) == 2   ? mma_a SHARED split                                                                         \
     : (cta_group) == 2   ? mma_a PAIR split                                                                           \
                          : mma_a SINGLE split)

const sm100_config sm100_configs[SM100_CONFIGS] = {
#define X(id, cta_group, mma_tile_n, stages, accumulators, cp_async, multicast)                                        \
    {"nvfp4_" #id,                                                                                                     \
     cta_group,                                                                                                        \
     mma_tile_n,                                                                                                       \
     stages,                                                                                                           \
     accumulators,                                                                                                     \
     cp_async,                                                                                                         \
     multicast,                                                                                                        \
     SM100_SHARED_BYTES(cta_group, mma_tile_n, stages),                                                                \
     SM100_THREADS(mma_tile_n, cp_async),                                                                              \
     SM100_CO_RESIDENT(cta_group, mma_tile_n, stages, accumulators),                                                   \
     {{REASON(A_ROWS, "", cta_group, mma_tile_n, cp_async, multicast),                                                 \
       REASON(A_ROWS, SPLIT, cta_group, mma_tile_n, cp_async, multicast)},                                             \
      {REASON(B_ROWS, "", cta_group, mma_tile_n, cp_async, multicast),                                                 \
       REASON(B_ROWS, SPLIT, cta_group, mma_tile_n, cp_async, multicast)}}},
    SM100_GEMM_CONFIGS(X)
#undef X
};

/* Shared memory of a launch. */
typedef struct shared_room {
    int32_t bytes, partials_in_stages, for_next_call;
} shared_room;

typedef struct IS_TILING sm100_tiling {
    int32_t tiles_mma_m, tiles_mma_n, tiles, clusters, k_stages, values_by_tma;
    int32_t at_once; /* 1: all tiles are computed at the same time */
    shared_room room;
} sm100_tiling;

/* Whether threads have to load: bulk copies take whole atoms of scales, all of whose bytes enter a product. */
static int needs_cp_async(const gemm_traits *t) {
    return t->scale_layout == NVFP4_LINEAR || t->k % SM100_MMA_K != 0 || !t->tma_values;
}

/* CTA pairs load scales by tensor maps. */
static int tma_reaches_scales(const gemm_traits *t) {
    const int64_t pitch = t->k / SM100_MMA_K * SM100_ATOM_BYTES;
    return t->l == 1 || ceil_div(max_int(t->m, t->n), SM100_ATOM_ROWS) * pitch < TENSOR_STRIDE_END;
}

/* Whether a narrower tile holds all of mma_b as well: the columns between would be computed for nothing. A pair, whose
 * CTAs load half of mma_b each, gains nothing over a narrow tile of one CTA. */
static int is_too_wide(const sm100_config *config, int64_t mma_n) {
    for (int32_t i = 0; i < SM100_CONFIGS; i++) {
        const sm100_config *other = &sm100_configs[i];
        const int alike = other->cta_group == config->cta_group || other->mma_tile_n <= NARROW_TILE;
        if (alike && other->cp_async == config->cp_async && mma_n <= other->mma_tile_n &&
            other->mma_tile_n < config->mma_tile_n)
            return 1;
    }
    return 0;
}

/* CTAs of a cluster. */
static int32_t cluster_ctas(const sm100_config *config, int32_t split_k) {
    return config->cta_group * config->multicast * split_k;
}

/* Whether a CTA with so much shared memory leaves room for one of the next call. */
static int leaves_room(const device_props *props, const sm100_config *config, int32_t bytes) {
    return config->co_resident && 2 * (bytes + RESERVED_SHARED) <= props->shared_per_sm;
}

/* Whether CTAs of the next call must not share an SM with those of this one. On an H200 dependent launches of 32
 * clusters of 4, all that fit apart, fall from 120 SMs to 88; 28 stay apart. Of more than fit two share an SM anyway.
 */
static int withholds_room(const device_props *props, int32_t cluster, int64_t clusters) {
    const int64_t fit = sm100_clusters_that_fit(props, cluster, 1);
    return cluster >= 4 && 8 * clusters > 7 * fit && clusters <= fit;
}

/* Partial sums lie in the pipeline stages where memory of their own would exceed the device's limit, or cost the next
 * call its room. More shared memory than a CTA needs withholds it. against_rule: the next call is given room where
 * withholds_room says not to, and the other way round. */
static shared_room room_of(const device_props *props, const sm100_config *config, int32_t split_k, int64_t clusters,
                           int against_rule) {
    const int32_t stages = config->shared_bytes, all = stages + SM100_PARTIALS_BYTES(config->mma_tile_n, split_k);
    shared_room room;
    room.for_next_call = leaves_room(props, config, stages) &&
                         withholds_room(props, cluster_ctas(config, split_k), clusters) == against_rule;
    room.partials_in_stages =
        split_k > 1 && (all > props->shared_per_block || (room.for_next_call && !leaves_room(props, config, all)));
    room.bytes = room.partials_in_stages ? stages : all;
    if (!room.for_next_call && leaves_room(props, config, room.bytes)) room.bytes = shared_alone(props);
    return room;
}

/* Tiles the problem; 0: the kernel cannot do it, or its tiles cannot be counted. */
static int tile(const device_props *props, const gemm_traits *t, const sm100_config *config, int32_t swap_ab,
                int32_t split_k, int against_rule, sm100_tiling *tiling) {
    const int64_t mma_m = swap_ab ? t->n : t->m, mma_n = swap_ab ? t->m : t->n;
    if (config->shared_bytes > props->shared_per_block) return 0;
    if (config->cp_async != needs_cp_async(t) || (config->cta_group == 2 && !tma_reaches_scales(t))) return 0;
    if (config->mma_tile_n <= NARROW_TILE && mma_n > config->mma_tile_n) return 0;
    if (is_too_wide(config, mma_n)) return 0;
    if (mma_m < mma_n && mma_m == 1) return 0; /* a vector as mma_a would leave 127 rows idle */
    const int64_t tiles_m = ceil_div(mma_m, SM100_CTA_ROWS * config->cta_group);
    const int64_t tiles_n = ceil_div(mma_n, config->mma_tile_n), k_stages = ceil_div(t->k, SM100_STAGE_K);
    const int64_t most = INT32_MAX - props->sm_count; /* the kernel counts on from a tile by the number of clusters */
    if (tiles_m * tiles_n > most || tiles_m * tiles_n * t->l > most) return 0;
    if (tiles_n % config->multicast) return 0;
    const int64_t tiles = tiles_m * tiles_n * t->l, cluster = cluster_ctas(config, split_k);
    const int64_t room = sm100_clusters_that_fit(props, cluster_ctas(config, 1), 1);
    int64_t clusters = tiles / config->multicast;
    if (split_k > 1) {
        if (cluster > MAX_CLUSTER || split_k > k_stages || config->mma_tile_n % (split_k * KEPT_COLUMNS) ||
            clusters * cluster > INT32_MAX)
            return 0;
    } else {
        if (room == 0) return 0;
        clusters = ceil_div(clusters, ceil_div(clusters, room)); /* each about as many tiles as the others */
    }
    tiling->tiles_mma_m = (int32_t)tiles_m;
    tiling->tiles_mma_n = (int32_t)tiles_n;
    tiling->tiles = (int32_t)tiles;
    tiling->clusters = (int32_t)clusters;
    tiling->k_stages = (int32_t)k_stages;
    tiling->values_by_tma = t->tma_values;
    tiling->room = room_of(props, config, split_k, clusters, against_rule);
    tiling->at_once = clusters * config->multicast == tiles &&
                      clusters <= sm100_clusters_that_fit(props, (int32_t)cluster, 1 + tiling->room.for_next_call);
    return 1;
}

/* Stages of mma_a to prefetch into L2 before the call may read: of use where few CTAs read them again, and a CTA can be
 * resident while the call before it ends. CTAs with the same rows of mma_a share the work. */
static int32_t stages_to_prefetch(const sm100_config *config, const sm100_tiling *tiling, int32_t split_k) {
    const int64_t readers = (int64_t)(tiling->clusters / tiling->tiles_mma_n) * config->cta_group * split_k;
    if (tiling->tiles_mma_n > PREFETCH_SHARERS || tiling->tiles > tiling->clusters || config->cp_async ||
        !tiling->room.for_next_call)
        return 0;
    return (int32_t)min_int(PREFETCH_BYTES / ((SM100_MMA_A_BYTES + SM100_MMA_SFA_BYTES) * readers),
                            ceil_div(tiling->k_stages, split_k));
}

static sm100_model_input model_input(const gemm_traits *t, const sm100_config *config, int32_t swap_ab, int32_t split_k,
                                     const shared_room *room) {
    sm100_model_input in;
    in.mma_m = swap_ab ? t->n : t->m;
    in.mma_n = swap_ab ? t->m : t->n;
    in.k = t->k > 0 ? t->k : 1; /* without products there still are tiles to write */
    in.l = t->l;
    in.cta_group = config->cta_group;
    in.mma_tile_n = config->mma_tile_n;
    in.stages = config->stages;
    in.accumulators = config->accumulators;
    in.swap_ab = swap_ab;
    in.split_k = split_k;
    in.cp_async = config->cp_async;
    in.cp_async_values = config->cp_async && !t->tma_values;
    in.multicast = config->multicast;
    in.co_resident = room->for_next_call;
    in.partials_in_stages = room->partials_in_stages;
    in.output_bytes = t->output_bytes;
    return in;
}

/* One instantiation, order of operands and split: 1, or 0 where it cannot be. Against the rule for the next call's room
 * too, where there is a choice: `bench --tune` times both. */
static int32_t candidate(const sm100_model *model, const device_props *props, const gemm_traits *t, int32_t kernel,
                         int32_t swap_ab, int32_t split_k, int against_rule, gemm_candidate *out) {
    const sm100_config *config = &sm100_configs[kernel];
    const int32_t mma_tile_m = SM100_CTA_ROWS * config->cta_group;
    sm100_tiling tiling;
    if (against_rule && !leaves_room(props, config, config->shared_bytes)) return 0;
    if (!tile(props, t, config, swap_ab, split_k, against_rule, &tiling)) return 0;
    const sm100_model_input in = model_input(t, config, swap_ab, split_k, &tiling.room);
    memset(out, 0, sizeof *out);
    out->modelled_us = sm100_gemm_time_us(model, props, &in);
    if (!(out->modelled_us < INFINITY)) return 0;
    if (against_rule && tiling.room.for_next_call) out->modelled_us *= PILED_UP;
    out->single_us = out->modelled_us + SINGLE_CALL_US;
    out->name = config->name;
    out->reason = config->reasons[swap_ab][split_k > 1];
    out->grid = (int64_t)tiling.clusters * cluster_ctas(config, split_k);
    out->kernel = kernel;
    out->swap_ab = swap_ab;
    out->split_k = split_k;
    out->tile_m = swap_ab ? config->mma_tile_n : mma_tile_m;
    out->tile_n = swap_ab ? mma_tile_m : config->mma_tile_n;
    out->tile_k = SM100_STAGE_K;
    out->stages = config->stages;
    out->ctas_per_sm = 1 + tiling.room.for_next_call;
    *TILING(sm100_tiling, out) = tiling;
    return 1;
}

/* The same by the rule, without L2 prefetching and, where it is of use, with it; and against the rule. */
static int32_t list_one(const sm100_model *model, const device_props *props, const gemm_traits *t, int32_t kernel,
                        int32_t swap_ab, int32_t split_k, gemm_candidate *out) {
    int32_t count = candidate(model, props, t, kernel, swap_ab, split_k, 0, out);
    if (count == 0) return 0;
    const int32_t prefetch_stages =
        stages_to_prefetch(&sm100_configs[kernel], TILING(const sm100_tiling, out), split_k);
    if (prefetch_stages > 0) {
        out[count] = out[0];
        out[count++].prefetch_stages = prefetch_stages;
    }
    return count + candidate(model, props, t, kernel, swap_ab, split_k, 1, out + count);
}

int32_t sm100_candidates(const sm100_model *model, const device_props *props, const gemm_traits *t,
                         gemm_candidate *out) {
    int32_t count = 0;
    for (int32_t kernel = 0; kernel < SM100_CONFIGS; kernel++)
        for (int32_t swap_ab = 0; swap_ab < 2; swap_ab++)
            for (int32_t split_k = 1; split_k <= MAX_CLUSTER; split_k *= 2)
                count += list_one(model, props, t, kernel, swap_ab, split_k, out + count);
    return count;
}

/* ---- the launch ---- */

/* CTA pairs load scales by tensor maps too, since no other copy can signal the mbarrier of the pair's other CTA. The
 * values of mma_b are halved between the two; either has all its scales. */
static inline void add_tensor_maps(const gemm_problem *p, const sm100_config *config, sm100_schedule *s,
                                   launch_plan *out) {
    const int mma_a_is_b = s->swap_ab;
    const tensor_layout a = values_layout(p, mma_a_is_b, p->l, BOX_BYTES, SM100_CTA_ROWS / config->multicast, 128);
    const tensor_layout b = values_layout(p, !mma_a_is_b, p->l, BOX_BYTES, config->mma_tile_n / config->cta_group, 128);
    add_tensor_map(out, &a, &s->mma_a.values);
    add_tensor_map(out, &b, &s->mma_b.values);
    if (config->cta_group == 1) return;
    const tensor_layout sfa =
        sm100_scales_layout(p, mma_a_is_b, &s->mma_a, ceil_div(s->mma_a.rows, SM100_ATOM_ROWS), p->l);
    tensor_layout sfb = sm100_scales_layout(p, !mma_a_is_b, &s->mma_b, ceil_div(s->mma_b.rows, SM100_ATOM_ROWS), p->l);
    sfb.box[2] = (uint32_t)ceil_div(config->mma_tile_n, SM100_ATOM_ROWS);
    add_tensor_map(out, &sfa, &s->mma_a_scales);
    add_tensor_map(out, &sfb, &s->mma_b_scales);
}

static fast_divisor divisor_of(int32_t divisor) {
    fast_divisor d = {0, 0};
    while ((int64_t)1 << d.shift < divisor) d.shift++;
    d.multiplier = (uint32_t)ceil_div((int64_t)1 << (31 + d.shift), divisor);
    return d;
}

void sm100_build(const device_props *props, const gemm_problem *p, const gemm_candidate *c, launch_plan *out) {
    const sm100_config *config = &sm100_configs[c->kernel];
    const sm100_tiling *tiling = TILING(const sm100_tiling, c);
    const cache_policies policies =
        choose_cache_policies(props, p, c->swap_ab, tiling->tiles_mma_m, tiling->tiles_mma_n, tiling->at_once);
    launch_step *step = add_step(out, c->kernel, c->grid, tiling->room.bytes);
    step->cluster = cluster_ctas(config, c->split_k);
    *(gemm_problem *)add_param(out, step, sizeof *p) = *p;
    sm100_schedule *s = (sm100_schedule *)add_param(out, step, sizeof(sm100_schedule));
    memset(s, 0, sizeof *s);
    s->tiles = tiling->tiles;
    s->tiles_mma_m = tiling->tiles_mma_m;
    s->tiles_mma_n = tiling->tiles_mma_n;
    s->inv_tiles_mma_m = divisor_of(tiling->tiles_mma_m);
    s->inv_tiles_mma_n = divisor_of(tiling->tiles_mma_n);
    s->split_k = c->split_k;
    s->k_stages = tiling->k_stages;
    s->swap_ab = c->swap_ab;
    s->values_by_tma = tiling->values_by_tma;
    s->prefetch_stages = c->prefetch_stages;
    s->partials_in_stages = tiling->room.partials_in_stages;
    s->column_pairs = !config->cp_async && sm100_column_pairs(p, c->swap_ab);
    if (p->constant_b && !config->cp_async)
        s->constant_operand = c->swap_ab ? SM100_CONSTANT_MMA_A : SM100_CONSTANT_MMA_B;
    fill_operand(p, c->swap_ab, policies.mma_a, &s->mma_a);
    fill_operand(p, !c->swap_ab, policies.mma_b, &s->mma_b);
#ifdef NVFP4_DUMP
    s->dump = (sm100_dump *)out->dump;
    s->dump_cta = out->dump_cta, s->dump_block = out->dump_k_block;
#endif
    if (p->k > 0 && s->values_by_tma) add_tensor_maps(p, config, s, out);
}
