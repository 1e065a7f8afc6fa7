/* How a product of the contest is run: which instantiation of sm100_gemm.cu, which operand is x, how K is cut, and the
 * schedule that follows. The package itself plans by sm100_plan.c, which tries everything and remembers shapes; here a
 * call is planned anew each time, so the rule counts the clocks of a dozen ways. Plain C without a state. */
#ifndef NVFP4_CONTEST_SETTINGS_H
#define NVFP4_CONTEST_SETTINGS_H

#include <stdint.h>

#include "../device/problem.h"
#include "../sm100_configs.h"

/* What a B200 is, beside the number of its SMs and its L2. */
enum {
    CONTEST_SHARED_PER_CTA = 227 * 1024,
    CONTEST_SHARED_PER_SM = 228 * 1024,
    CONTEST_RESERVED = 1024, /* of an SM's shared memory for each CTA */
    CONTEST_GPCS = 8,        /* a cluster lies in one of them */
    CONTEST_MOST_CTAS = 8    /* of a cluster */
};

typedef struct contest_config {
    int32_t cta_group, mma_tile_n, stages, accumulators, cp_async;
} contest_config;

static const contest_config contest_configs[] = {
#define X(id, cta_group, mma_tile_n, stages, accumulators, cp_async)                                                   \
    {cta_group, mma_tile_n, stages, accumulators, cp_async},
    SM100_GEMM_CONFIGS(X)
#undef X
};
enum { CONTEST_CONFIGS = sizeof contest_configs / sizeof *contest_configs };

static inline int32_t contest_shared_bytes(const contest_config *c) {
    return SM100_SHARED_BYTES(c->cta_group, c->mma_tile_n, c->stages);
}

/* CTAs with so much shared memory that an SM holds: this call's, or this one's and the next one's. */
static inline int32_t contest_per_sm(const contest_config *c, int32_t bytes) {
    return SM100_TMEM_COLUMNS(c->mma_tile_n, c->stages, c->accumulators) <= 256 &&
                   2 * (bytes + CONTEST_RESERVED) <= CONTEST_SHARED_PER_SM
               ? 2
               : 1;
}

typedef struct contest_choice {
    int32_t config, swap_ab, split_k;
} contest_choice;

/* x and y as sm100_configs.h has them. */
typedef struct contest_work {
    int64_t x, y, k, l;
    int32_t sm_count;
} contest_work;

static inline int64_t contest_tiles(const contest_config *c, const contest_work *w) {
    return SM100_CEIL_DIV(w->x, SM100_CTA_ROWS * c->cta_group) * SM100_CEIL_DIV(w->y, c->mma_tile_n) * w->l;
}

/* Whether the kernel can cut K so, and all clusters run at once: a cluster adds up one tile and ends. */
static inline int contest_may_cut(const contest_config *c, const contest_work *w, int32_t split_k) {
    int32_t cluster = c->cta_group * split_k;
    int32_t in_gpc = w->sm_count / (2 * CONTEST_GPCS) * 2 * contest_per_sm(c, contest_shared_bytes(c));
    int64_t at_once = CONTEST_GPCS * (int64_t)(in_gpc / cluster);
    return cluster <= CONTEST_MOST_CTAS && c->mma_tile_n % (4 * split_k) == 0 &&
           split_k <= SM100_CEIL_DIV(w->k, SM100_STAGE_K) && contest_tiles(c, w) <= at_once;
}

/* Clocks of a product, without what all its settings have in common. The rates are those of sm100_model.h; nothing here
 * was measured on a B200. */
static inline double contest_clocks(const contest_config *c, const contest_work *w, int32_t split_k) {
    const double tiles = (double)contest_tiles(c, w), ctas = tiles * c->cta_group * split_k;
    const double rounds = (double)SM100_CEIL_DIV((int64_t)ctas, w->sm_count);
    const int32_t k_stages = (int32_t)SM100_CEIL_DIV(w->k, SM100_STAGE_K), part = SM100_CEIL_DIV(k_stages, split_k);

    /* An SM takes in 60 bytes a clock, L2 gives 6,800 to all. */
    const double stage = SM100_STAGE_BYTES(c->cta_group, c->mma_tile_n),
                 loaded = tiles * c->cta_group * k_stages * stage;
    double load = rounds * part * stage / 60;
    if (loaded / 6800 > load) load = loaded / 6800;

    /* DRAM gives 3,700 bytes a clock where enough are asked for at a time: where that is half as much as would do, in
     * the ring of every CTA, all but the first filling of the rings takes twice as long. */
    const double bytes = (double)w->l * (double)(w->x + w->y) * (double)w->k * 0.5625; /* values, and their scales */
    const double launched = split_k > 1 ? ctas : ctas / rounds, ring = c->stages < part ? c->stages : part;
    const double asked = launched * ring * stage * (bytes / loaded);
    const double lack = 3.6e6 / asked, slower = lack < 1 ? lack * lack : 2 * lack - 1;
    const double later = asked < bytes ? bytes - asked : 0;
    const double dram = (bytes + later * slower) / 3700;
    if (dram > load) load = dram;

    /* A lane stores its row at 20 bytes a clock and SM, behind the tile's products, and so before the next tile's
     * unless there is a second accumulator. Where K is cut each unit keeps a part of the columns and sends the others.
     */
    const double store = c->mma_tile_n * SM100_CTA_ROWS * 2 / 20.0 / split_k;
    const double product = part * 2.0 * (c->mma_tile_n > 128 ? c->mma_tile_n : 128); /* of a tile */
    if (c->accumulators == 1) {
        const double busy = rounds * product + (rounds - 1) * (store + 600);
        if (busy > load) load = busy;
    }
    const double sent = c->mma_tile_n * SM100_CTA_ROWS * 4.0 * (split_k - 1) / split_k;
    const double exchange = split_k > 1 ? 500 + sent / 14 : 0;

    /* The last products and the next call's preparations, which only run beside this call where an SM has room. */
    const int32_t room = w->sm_count * contest_per_sm(c, contest_shared_bytes(c));
    const double ends = 3.0 * c->mma_tile_n, begins = 2 * launched > room ? 680 : 0;
    return load + store + exchange + ends + begins;
}

/* The settings that should take the fewest clocks. B is x if it is the larger operand, or fills pairs to 7/8: of a
 * column of the output neighbouring lanes store neighbours. A vector, and up to 32 rows, are y of one narrow tile; all
 * else is multiplied by pairs of SMs, which load three quarters of what two alone would. */
static inline contest_choice contest_choose(const gemm_problem *p, int32_t sm_count) {
    const int64_t pairs = SM100_CEIL_DIV(p->n, 2 * SM100_CTA_ROWS);
    const int swap_ab = p->n >= p->m || 8 * p->n >= 7 * pairs * 2 * SM100_CTA_ROWS;
    const contest_work w = {swap_ab ? p->n : p->m, swap_ab ? p->m : p->n, p->k, p->l, sm_count};
    const int32_t narrow = w.y <= 16 ? 16 : w.y <= 32 ? 32 : 0; /* the tile that holds all of y */
    contest_choice best = {0, swap_ab, 1};
    double least = -1;
    for (int32_t i = 0; i < CONTEST_CONFIGS; i++) {
        const contest_config *c = &contest_configs[i];
        const int too_wide = c->mma_tile_n > 64 && c->mma_tile_n >= 2 * w.y; /* a narrower one holds all of y too */
        if (c->cp_async || (narrow ? c->mma_tile_n != narrow : c->cta_group == 1 || too_wide)) continue;
        for (int32_t split_k = 1; split_k == 1 || contest_may_cut(c, &w, split_k); split_k *= 2) {
            const double clocks = contest_clocks(c, &w, split_k);
            if (least >= 0 && clocks >= least) continue;
            least = clocks, best.config = i, best.split_k = split_k;
        }
    }
    return best;
}

/* L2 policies, as createpolicy.fractional gives them for the fraction 1 (PTX ISA 9.0, 9.7.9.20): what is read once need
 * not stay; what is read again while the other operand passes by should, if it takes no more than half of L2. */
static inline uint64_t contest_policy(int once, int other_once, int64_t bytes, int64_t l2_bytes) {
    return once ? 0x12F0000000000000 : other_once && bytes <= l2_bytes / 2 ? 0x14F0000000000000 : 0x1000000000000000;
}

static inline void contest_operand(const gemm_problem *p, int is_b, sm100_operand *o) {
    o->data = is_b ? p->b : p->a;
    o->scale = is_b ? p->sfb : p->sfa;
    o->pitch = is_b ? p->b_pitch : p->a_pitch;
    o->batch = is_b ? p->b_batch : p->a_batch;
    o->scale_pitch = is_b ? p->sfb_pitch : p->sfa_pitch;
    o->scale_batch = is_b ? p->sfb_batch : p->sfa_batch;
    o->rows = (int32_t)(is_b ? p->n : p->m);
}

/* Fills all of a cleared schedule but its tensor maps. Returns the grid, in CTAs; 0: tiles cannot be counted, since the
 * kernel counts on from a tile by the number of clusters. */
static inline int32_t contest_schedule(const gemm_problem *p, contest_choice choice, int32_t sm_count, int64_t l2_bytes,
                                       sm100_schedule *s) {
    const contest_config *c = &contest_configs[choice.config];
    const int swap_ab = choice.swap_ab, split_k = choice.split_k;
    const int64_t x = swap_ab ? p->n : p->m, y = swap_ab ? p->m : p->n;
    const int64_t tiles_mma_m = SM100_CEIL_DIV(x, SM100_CTA_ROWS * c->cta_group),
                  tiles_mma_n = SM100_CEIL_DIV(y, c->mma_tile_n);
    const int64_t most = (INT32_MAX - sm_count) / (c->cta_group * split_k), room = sm_count / c->cta_group;
    if (tiles_mma_m * tiles_mma_n > most || tiles_mma_m * tiles_mma_n * p->l > most || room == 0) return 0;
    const int64_t tiles = tiles_mma_m * tiles_mma_n * p->l;
    s->tiles = (int32_t)tiles;
    s->tiles_mma_m = (int32_t)tiles_mma_m;
    s->tiles_mma_n = (int32_t)tiles_mma_n;
    s->split_k = split_k;
    s->k_stages = (int32_t)SM100_CEIL_DIV(p->k, SM100_STAGE_K);
    s->swap_ab = swap_ab;
    s->values_by_tma = 1;
    /* The partial sums lie in the stages where room of their own would be none of the SM's or the next call's. */
    const int32_t bytes = contest_shared_bytes(c), all = bytes + SM100_PARTIALS_BYTES(c->mma_tile_n, split_k);
    s->partials_in_stages =
        split_k > 1 && (all > CONTEST_SHARED_PER_CTA || contest_per_sm(c, all) < contest_per_sm(c, bytes));
    contest_operand(p, swap_ab, &s->mma_a);
    contest_operand(p, !swap_ab, &s->mma_b);
    const int x_once = tiles_mma_n == 1, y_once = tiles_mma_m == 1;
    s->mma_a.cache_policy = contest_policy(x_once, y_once, x * (p->k / 2), l2_bytes);
    s->mma_b.cache_policy = contest_policy(y_once, x_once, y * (p->k / 2), l2_bytes);
    /* Cut, a cluster has one tile; uncut, each about as many as the others. */
    const int64_t units = split_k > 1 ? tiles : SM100_CEIL_DIV(tiles, SM100_CEIL_DIV(tiles, room));
    return (int32_t)(units * c->cta_group * split_k);
}

/* What a tensor map describes, in elements and bytes. Rank 3: values, as bytes {K/2, rows, L} under the 128-byte
 * swizzle; rank 4: scales, as 2-byte elements {256, atoms along K, along the rows, L}. */
typedef struct contest_map {
    tensor_map *map;
    const void *data;
    uint32_t rank;
    uint64_t dims[4], distances[3];
    uint32_t box[4];
} contest_map;

/* The distance between what there is only one of is free, but must be a valid one. */
static inline uint64_t contest_distance(int64_t count, int64_t bytes) {
    return count == 1 ? 16 : (uint64_t)bytes;
}

static inline contest_map contest_map_of(const gemm_problem *p, sm100_operand *o, int is_scales, int32_t box_rows) {
    const int64_t blocks = SM100_CEIL_DIV((int64_t)o->rows, SM100_ATOM_ROWS);
    const uint64_t k = (uint64_t)p->k, l = (uint64_t)p->l;
    const contest_map values = {&o->values,
                                o->data,
                                3,
                                {k / 2, (uint64_t)o->rows, l},
                                {contest_distance(o->rows, o->pitch), contest_distance(p->l, o->batch)},
                                {SM100_STAGE_K / 2, (uint32_t)box_rows, 1}};
    const contest_map scales = {
        &o->scales,
        o->scale,
        4,
        {SM100_ATOM_BYTES / 2, k / SM100_MMA_K, (uint64_t)blocks, l},
        {SM100_ATOM_BYTES, contest_distance(blocks, o->scale_pitch), contest_distance(p->l, o->scale_batch)},
        {SM100_ATOM_BYTES / 2, SM100_STAGE_ATOMS, SM100_CEIL_DIV((uint32_t)box_rows, SM100_ATOM_ROWS), 1}};
    return is_scales ? scales : values;
}

/* The maps of a schedule; returns how many. Pairs load scales by them too, since no other copy can signal the barrier
 * of a pair's other CTA; y's values are halved between the two, but either has the scales of all of y. */
static inline int contest_maps(const gemm_problem *p, const contest_config *c, sm100_schedule *s, contest_map maps[4]) {
    maps[0] = contest_map_of(p, &s->mma_a, 0, SM100_CTA_ROWS);
    maps[1] = contest_map_of(p, &s->mma_b, 0, c->mma_tile_n / c->cta_group);
    if (c->cta_group == 1) return 2;
    maps[2] = contest_map_of(p, &s->mma_a, 1, SM100_CTA_ROWS);
    maps[3] = contest_map_of(p, &s->mma_b, 1, c->mma_tile_n);
    return 4;
}

#endif
