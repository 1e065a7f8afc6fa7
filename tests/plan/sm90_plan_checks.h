/* The rules that the kernels of sm90 rely on in their parameters and launches (their config headers), by kind of
 * kernel. */
#ifndef NVFP4_TESTS_SM90_PLAN_CHECKS_H
#define NVFP4_TESTS_SM90_PLAN_CHECKS_H

#include "kernels/sm90/plan.h"
#include "units_plan_checks.h"

typedef struct config {
    int type; /* of the wgmma operands */
    int math_warpgroups, wgmmas_m, mma_tile_n, stages, dequant_b, streamk;
} config;
static const config configs[] = {
#define X(id, math_warpgroups, wgmmas_m, mma_tile_n, group_words, stages, dequant_b, streamk, bf16)                    \
    {(bf16) ? NVFP4_BF16 : NVFP4_FP16, math_warpgroups, wgmmas_m, mma_tile_n, stages, dequant_b, streamk},
    SM90_GEMM_CONFIGS(X)
#undef X
};
static const struct {
    int rows, warps, stages;
} gemv_configs[] = {
#define X(id, rows, warps, stages) {rows, warps, stages},
    SM90_GEMV_CONFIGS(X)
#undef X
};
static const struct {
    int mma_a_e2m1, stages, divided, bf16;
} prefill_configs[] = {
#define X(id, ...) {__VA_ARGS__},
    SM90_PREFILL_CONFIGS(X)
#undef X
};

static const units_kernel units_configs[] = {SM90_UNITS_CONFIGS(UNITS_ROW)};

typedef enum kind { GEMM, GEMV, PREFILL, UNITS, NN } kind;

/* Numbers of the kernels, which break ties: one kind behind the other. */
enum {
    FIRST_GEMV = COUNT(configs),
    FIRST_PREFILL = FIRST_GEMV + COUNT(gemv_configs),
    FIRST_UNITS = FIRST_PREFILL + COUNT(prefill_configs),
    FIRST_NN = FIRST_UNITS + COUNT(units_configs),
};

static kind kind_of(int32_t kernel) {
    return kernel < FIRST_GEMV      ? GEMM
           : kernel < FIRST_PREFILL ? GEMV
           : kernel < FIRST_UNITS   ? PREFILL
           : kernel < FIRST_NN      ? UNITS
                                    : NN;
}

static size_t param_bytes(int32_t kernel, int32_t index) {
    static const size_t second[] = {[GEMM] = sizeof(sm90_schedule),
                                    [GEMV] = sizeof(sm90_gemv_schedule),
                                    [PREFILL] = sizeof(sm90_prefill_schedule),
                                    [UNITS] = sizeof(units_schedule),
                                    [NN] = sizeof(sm90_nn_schedule)};
    if (kernel == KERNEL_SM90_DEQUANT) return index == 0 ? sizeof(sm90_dequant_schedule) : 0;
    return index == 0 ? sizeof(gemm_problem) : index == 1 ? second[kind_of(kernel)] : 0;
}

static const kernel_entry *entry_of(int32_t kernel) {
    return &gemm_backends[NVFP4_BACKEND_SM90]->kernels->kernels[kernel];
}

/* The parameter of the pre-pass; NULL where there is none. */
static const sm90_dequant_schedule *dequant_of(const launch_plan *plan) {
    const launch_step *step = step_of(plan, KERNEL_SM90_DEQUANT);
    if (!step) return NULL;
    expect(step == &plan->step[0] && plan->steps == 2, "the pre-pass is launched first");
    expect(step->cluster == 0 && step->shared_bytes == 0 && step->grid_y == 1, "its launch");
    return param_of(plan, step, 0);
}

static void check_cache_policies(const gpu *g, const gemm_problem *p, const sm90_schedule *s) {
    const uint64_t normal = 0x1000000000000000, first = 0x12F0000000000000, last = 0x14F0000000000000;
    const int64_t rows[2] = {s->mma_a.rows, s->mma_b.rows};
    int64_t reads[2] = {s->tiles_mma_n, s->tiles_mma_m};
    if (p->a_batch == 0 && p->l > 1) reads[s->swap_ab] *= p->l;
    for (int i = 0; i < 2; i++) {
        const uint64_t policy = i ? s->mma_b.cache_policy : s->mma_a.cache_policy;
        expect(policy == first || policy == last || policy == normal, "a cache policy that exists");
        if (p->k == 0) continue;
        const int fits = rows[i] * (p->k / 2) <= g->props.l2_bytes / 2;
        expect((policy == first) == (reads[i] == 1), "what is read once leaves L2 first");
        expect((policy == last) == (reads[i] > 1 && reads[!i] == 1 && fits),
               "what is read again stays in L2 while the other passes, if half of L2 holds it");
    }
}

/* An operand as it lies in memory. */
static void check_e2m1(const gemm_problem *p, int is_b, const sm90_dequant_operand *e, int64_t rows) {
    expect(e->data == (is_b ? p->b : p->a) && e->scale == (is_b ? p->scale_b : p->scale_a) && e->rows == rows &&
               e->pitch == (is_b ? p->b_pitch : p->a_pitch) && e->batch == (is_b ? p->b_batch : p->a_batch) &&
               e->scale_pitch == (is_b ? p->scale_b_pitch : p->scale_a_pitch) &&
               e->scale_batch == (is_b ? p->scale_b_batch : p->scale_a_batch) &&
               e->type == (is_b ? VALUES_E2M1 : p->a_type),
           "what is dequantized, or put into order");
}

/* A thread dequantizes one row where that takes no more CTAs than two an SM of an H200. */
static void check_rows_per_thread(const sm90_dequant_schedule *e, int64_t first_batches, int64_t second_batches) {
    const int64_t k = (int64_t)e->chunks * SM90_DEQUANT_K;
    const int64_t first = e->first_ctas ? SM90_DEQUANT_CTAS((int64_t)e->first.rows, k, first_batches, 1) : 0;
    const int64_t second = e->second_ctas ? SM90_DEQUANT_CTAS((int64_t)e->second.rows, k, second_batches, 1) : 0;
    expect(e->rows_per_thread == (first + second <= 264 ? 1 : 4), "rows that a thread dequantizes");
}

/* Rows of a dequantized operand's tensor map. */
static int64_t whole_tiles(int64_t rows, int64_t tile, int64_t k) {
    const int64_t whole = ceil_div(rows, tile) * tile;
    return (whole - rows) * ceil_div(k, 128) * 256 <= 64 << 20 ? whole : rows;
}

/* A dequantized operand: in the workspace, whose end it must not pass; returns where it ends, with the rows that fill
 * the last tile of `tile` rows. The pre-pass dequantizes the first `part` rows of it. */
static uintptr_t check_dequantized(const gemm_problem *p, int is_b, const sm90_dequant_schedule *s, int is_second,
                                   int64_t batches, int64_t tile, int64_t part, uintptr_t from, uintptr_t end) {
    const sm90_dequant_operand *e = is_second ? &s->second : &s->first;
    const int64_t ctas = is_second ? s->second_ctas : s->first_ctas, rows = is_b ? p->n : p->m;
    expect(ctas == ceil_div(part, 32 * s->rows_per_thread) * s->chunks * batches, "CTAs of the pre-pass");
    expect(s->k == p->k && s->scale_layout == p->scale_layout, "K and layout of the scales");
    check_e2m1(p, is_b, e, part);
    uintptr_t to = (uintptr_t)e->to;
    expect(to % 256 == 0 && to >= from, "in the workspace, on 256 bytes, behind the other");
    to += (uintptr_t)(((batches - 1) * rows + whole_tiles(rows, tile, p->k)) * ceil_div(p->k, 128) * 256);
    expect(to <= end, "the workspace has room");
    return to;
}

/* Divides as the kernel does. */
static int64_t divide(int64_t x, uint32_t by) {
    return (int64_t)((uint64_t)x * by >> 31);
}

/* Stream-K: every stage of a stream-K tile that is not the tile's own cluster's is one worker's, and the fix-up knows
 * whose. */
static void check_streamk(const gpu *g, const gemm_candidate *c, const sm90_schedule *s) {
    static int64_t done[SM90_MAX_WORKERS], from[SM90_MAX_WORKERS], to[SM90_MAX_WORKERS];
    static char taken[2 * SM90_MAX_WORKERS];
    const int64_t clusters = c->grid / s->split_k, streamk_tiles = s->tiles - s->dp_tiles;
    const int64_t workers = (int64_t)s->worker_clusters * s->split_k, all = streamk_tiles * s->streamk_stages;
    expect(s->split_k <= 2 && !s->partials_in_stages, "clusters that fit everywhere, stages for partial tiles");
    expect(clusters == streamk_tiles + s->worker_clusters && clusters <= g->props.sm_count / s->split_k,
           "all run at once");
    expect(streamk_tiles > 0 && s->dp_tiles % clusters == 0 && (s->dp_tiles == 0 || s->split_k == 1),
           "rounds of data-parallel tiles");
    expect(workers > 0 && workers <= SM90_MAX_WORKERS && streamk_tiles <= SM90_MAX_WORKERS, "a flag for each worker");
    expect(s->streamk_stages > 0 && s->worker_stages > 0 && s->stages_per_split > 0, "all have stages");
    expect(s->inv_streamk_stages == ceil_div((int64_t)1 << 31, s->streamk_stages) &&
               s->inv_worker_stages == ceil_div((int64_t)1 << 31, s->worker_stages),
           "reciprocals");
    memset(done, 0, sizeof done);
    memset(taken, 0, sizeof taken);
    for (int64_t worker = 0; worker < workers; worker++) {
        int64_t at = worker * s->worker_stages, end = min_int(at + s->worker_stages, all);
        expect(at < INT32_MAX - s->worker_stages, "a worker's stages can be counted");
        expect(at >= all || divide(at, s->inv_streamk_stages) == at / s->streamk_stages, "the first tile of a worker");
        for (int64_t next; at < end; at = next) {
            const int64_t tile = at / s->streamk_stages;
            next = min_int(end, (tile + 1) * s->streamk_stages);
            expect(done[tile] == at - tile * s->streamk_stages, "a tile's work tiles follow each other");
            expect(!taken[worker + tile], "a partial tile of its own");
            taken[worker + tile] = 1;
            if (done[tile] == 0) from[tile] = worker;
            to[tile] = worker;
            done[tile] += next - at;
        }
    }
    for (int64_t tile = 0; tile < streamk_tiles; tile++) {
        expect(done[tile] == s->streamk_stages, "all is done");
        expect(divide(tile * s->streamk_stages, s->inv_worker_stages) == from[tile] &&
                   divide((tile + 1) * s->streamk_stages - 1, s->inv_worker_stages) == to[tile],
               "all is added");
    }
}

/* Partial tiles and flags behind the dequantized mma_b, which ends at `used`; returns where they end. */
static uintptr_t check_flags(const config *c, const sm90_schedule *s, const sm90_dequant_schedule *e, uintptr_t used,
                             uintptr_t end) {
    const int64_t workers = (int64_t)s->worker_clusters * s->split_k;
    expect(e->flags == workers && s->fixup_flags == e->zeroed, "all flags are zeroed");
    expect((workers > 0) == c->streamk, "where there are any");
    if (workers == 0) return used;
    expect((uintptr_t)s->partial_tiles == used, "partial tiles lie behind mma_b");
    used += (uintptr_t)(workers + s->tiles - s->dp_tiles) *
            SM90_PARTIAL_TILE_BYTES(c->math_warpgroups, c->wgmmas_m, c->mma_tile_n);
    expect((uintptr_t)s->fixup_flags == used && used % 4 == 0, "their flags behind these");
    used += (uintptr_t)workers * 4;
    expect(used <= end, "the workspace has room for them");
    return used;
}

static void check_gemm_memory(const gpu *g, const gemm_candidate *candidate, const config *c, const sm90_schedule *s,
                              const launch_step *gemm) {
    const int32_t fixed = entry_of(candidate->kernel)->shared_bytes, more = gemm->shared_bytes - fixed;
    const int32_t partials = SM90_PARTIALS_BYTES(c->math_warpgroups, c->wgmmas_m, c->mma_tile_n, s->split_k);
    expect(fixed + more <= g->props.shared_per_block, "shared memory fits a CTA");
    expect(more == (s->partials_in_stages ? 0 : partials), "partial sums have room");
    expect(!s->partials_in_stages || (s->split_k > 1 && partials <= SM90_PARTIALS_ROOM(c->math_warpgroups, c->wgmmas_m,
                                                                                       c->mma_tile_n, c->stages)),
           "in place of the stages as well");
    expect(s->partials_in_stages == (fixed + partials > g->props.shared_per_block), "which is the second choice");
}

/* Whether a kernel multiplies A's type: 16 bits come through the pre-pass. */
static int takes_type(const config *c, const gemm_problem *p) {
    if (p->a_type != VALUES_E2M1) return c->type == p->a_type && !c->dequant_b;
    return c->type == NVFP4_FP16;
}

static void check_gemm_schedule(const gpu *g, const gemm_problem *p, const gemm_candidate *candidate, const config *c,
                                const sm90_schedule *s, const launch_step *gemm) {
    const int32_t mma_tile_m = SM90_MMA_TILE_M(c->math_warpgroups, c->wgmmas_m);
    const int64_t rows[2] = {s->swap_ab ? p->n : p->m, s->swap_ab ? p->m : p->n};
    expect(candidate->tile_m == (s->swap_ab ? c->mma_tile_n : mma_tile_m) &&
               candidate->tile_n == (s->swap_ab ? mma_tile_m : c->mma_tile_n) && candidate->tile_k == SM90_STAGE_K &&
               candidate->stages == c->stages && candidate->swap_ab == s->swap_ab,
           "the candidate says the tile");
    expect(s->mma_a.rows == rows[0] && s->mma_b.rows == rows[1], "rows of both operands");
    expect(s->tiles_mma_m == ceil_div(rows[0], mma_tile_m) && s->tiles_mma_n == ceil_div(rows[1], c->mma_tile_n),
           "tiles cover");
    expect(s->tiles == s->tiles_mma_m * s->tiles_mma_n * p->l && s->tiles <= INT32_MAX - g->props.sm_count,
           "tiles count");
    expect((int64_t)s->stages_per_split * s->split_k + s->splits_with_one_more + s->streamk_stages ==
               ceil_div(p->k, SM90_STAGE_K),
           "stages cover K");
    expect(s->splits_with_one_more >= 0 && s->splits_with_one_more < s->split_k, "evenly");
    expect(!c->streamk || s->k_stages == ceil_div(p->k, SM90_STAGE_K), "stream-K counts all stages");
    expect(candidate->split_k == s->split_k && s->split_k >= 1 && s->split_k <= 8, "a split along K");
    expect(s->split_k == 1 || s->stages_per_split > 0, "no split is empty");
    expect(s->inv_split_k == ceil_div((int64_t)1 << 31, s->split_k), "the reciprocal of the split");
    const int64_t clusters = candidate->grid / s->split_k, room = g->props.sm_count;
    expect(gemm->cluster == s->split_k && gemm->grid_x == s->split_k && gemm->grid_y == clusters &&
               candidate->grid % s->split_k == 0 && clusters > 0 && clusters <= 65535,
           "a grid that can be launched, a CTA for each split");
    if (c->streamk)
        check_streamk(g, candidate, s);
    else if (s->split_k > 1)
        expect(clusters == s->tiles, "one tile a cluster under split-K");
    else
        expect(clusters <= s->tiles && clusters <= room &&
                   ceil_div(s->tiles, clusters) == ceil_div(s->tiles, min_int(s->tiles, room)),
               "no more CTAs than tiles or SMs, as few rounds as can be");
    expect(c->mma_tile_n > 32 || s->tiles_mma_n == 1, "a narrow tile holds all of mma_b");
    for (size_t i = 0; i < COUNT(configs); i++) {
        const config *other = &configs[i];
        if (!takes_type(other, p)) continue;
        const int32_t other_m = SM90_MMA_TILE_M(other->math_warpgroups, other->wgmmas_m);
        const int alike = other->dequant_b ? c->dequant_b : other_m == mma_tile_m;
        expect(!alike || other->mma_tile_n >= c->mma_tile_n || rows[1] > other->mma_tile_n,
               "no narrower tile that is dequantized alike holds all of mma_b");
        expect(other->mma_tile_n != c->mma_tile_n || other_m >= mma_tile_m || rows[0] > other_m,
               "no shorter tile holds all of mma_a");
    }
    expect(p->a_type != VALUES_E2M1 || !(rows[0] == 1 && rows[1] > 1), "a vector is no reason for 128 rows");
    expect(needs_tma(p) && p->scale_layout == NVFP4_128X4, "TMA reaches mma_a");
}

static void check_gemm(const gpu *g, const gemm_problem *p, const gemm_candidate *candidate, const launch_plan *plan,
                       const launch_step *gemm) {
    const sm90_schedule *s = param_of(plan, gemm, 1);
    const config *c = &configs[candidate->kernel];
    const int32_t mma_tile_m = SM90_MMA_TILE_M(c->math_warpgroups, c->wgmmas_m);
    const int mma_b_is_b = !s->swap_ab, in_kernel = c->dequant_b != 0, raw = SM90_DEQUANT_FROM_STAGES(c->dequant_b);
    const int64_t rows[2] = {s->mma_a.rows, s->mma_b.rows};
    expect(takes_type(c, p) && (p->a_type == VALUES_E2M1 || s->swap_ab), "A of 16 bits is mma_b, in its own type");
    check_gemm_schedule(g, p, candidate, c, s, gemm);
    check_gemm_memory(g, candidate, c, s, gemm);
    check_cache_policies(g, p, s);

    const int64_t b_batch = mma_b_is_b ? p->b_batch : p->a_batch,
                  b_scales = mma_b_is_b ? p->scale_b_batch : p->scale_a_batch;
    const int64_t mma_b_batches = b_batch == 0 && b_scales == 0 ? 1 : p->l;
    if (!in_kernel) expect(s->mma_b.shared == (p->l > 1 && mma_b_batches == 1), "one mma_b for all batches");
    expect(s->mma_a.scale == (mma_b_is_b ? p->scale_a : p->scale_b) &&
               s->mma_a.scale_batch == (mma_b_is_b ? p->scale_a_batch : p->scale_b_batch) &&
               s->mma_a.scale_pitch == (mma_b_is_b ? p->scale_a_pitch : p->scale_b_pitch),
           "scales of mma_a");
    check_e2m1(p, mma_b_is_b, &s->mma_b_e2m1, mma_b_is_b ? p->n : p->m);
    const sm90_dequant_schedule *e = dequant_of(plan);
    const uintptr_t end = WORKSPACE + (uintptr_t)candidate->workspace;
    expect(!!e == (!in_kernel && p->k > 0), "a pre-pass where mma_b is not dequantized in the kernel");
    const int constant_mma_a = p->constant_b && s->swap_ab;
    expect(s->preload_stages == (e || constant_mma_a ? 2 : 0), "loads of mma_a before griddepcontrol.wait");
    if (e) {
        uintptr_t used = check_dequantized(p, mma_b_is_b, e, 0, mma_b_batches, c->mma_tile_n, mma_b_is_b ? p->n : p->m,
                                           WORKSPACE, end);
        expect(e->chunks == ceil_div(p->k, SM90_DEQUANT_K) && e->ready == 0, "all of it");
        expect(e->launch_first == constant_mma_a, "the pre-pass waits first, unless mma_a is constant");
        check_rows_per_thread(e, mma_b_batches, 0);
        expect(e->span == SM90_STAGE_K, "the order along K of sm90/gemm.cu");
        expect(e->second_ctas == 0 && plan->step[0].grid_x == e->first_ctas, "it dequantizes mma_b alone");
        used = check_flags(c, s, e, used, end);
        expect(end - used < 256, "and no more workspace than that");
    } else {
        expect(candidate->workspace == 0, "no workspace without a pre-pass");
    }

    const int32_t maps = p->k == 0 ? 0 : in_kernel && !raw ? 1 : 2;
    expect(plan->tensor_maps == maps, "values have tensor maps, but for mma_b that is read by ordinary loads");
    const tensor_map *const places[2] = {&s->mma_a.values, &s->mma_b.values};
    for (int32_t i = 0; i < maps && i < plan->tensor_maps; i++) {
        const tensor_layout *t = &plan->tensor_map[i].layout;
        const char *names[3][2] = {{"b", "a"}, {"the dequantized a", "the dequantized b"}, {"a", "b"}};
        const int fp16 = i && !raw; /* of mma_b, as the pre-pass writes it */
        expect(t->rank == 3 && !strcmp(t->name, names[i + (i && raw)][mma_b_is_b]), "its rank and name");
        expect((const unsigned char *)places[i] == plan->params + plan->tensor_map[i].offset,
               "a map for each, in its place");
        expect(t->data == (fp16 && e ? e->first.to : mma_b_is_b == i ? p->b : p->a), "of what is there");
        const int64_t raw_rows = min_int(c->mma_tile_n, ceil_div(rows[1], 8) * 8); /* few that are past the end */
        expect(t->element_bytes == (fp16 ? 2 : 1) && t->box[0] == 64 &&
                   t->box[1] == (uint32_t)(fp16 ? c->mma_tile_n
                                           : i  ? raw_rows
                                                : mma_tile_m) &&
                   t->box[2] == 1,
               "a box");
        expect(t->swizzle == (fp16 ? 128 : 0), "mma_b in 16 bits is swizzled");
        expect((int64_t)t->dims[0] == (fp16 ? ceil_div(p->k, 128) * 128 : p->k / 2) &&
                   (int64_t)t->dims[2] == (fp16 ? mma_b_batches : p->l),
               "all is there");
        expect((int64_t)t->dims[1] == (fp16 ? whole_tiles(rows[i], c->mma_tile_n, p->k) : rows[i]),
               "rows, in the workspace of whole tiles");
    }
}

/* Returns the transposed product of a column. */
static gemm_problem transposed(const gemm_problem *p) {
    gemm_problem t = *p;
    t.m = p->n, t.n = p->m;
    t.a = p->b, t.a_pitch = p->b_pitch, t.a_batch = p->b_batch;
    t.scale_a = p->scale_b, t.scale_a_pitch = p->scale_b_pitch, t.scale_a_batch = p->scale_b_batch;
    t.b = p->a, t.b_pitch = p->a_pitch, t.b_batch = p->a_batch;
    t.scale_b = p->scale_a, t.scale_b_pitch = p->scale_a_pitch, t.scale_b_batch = p->scale_a_batch;
    t.alpha_stride = 0;
    return t;
}

static void check_gemv(const gpu *g, const gemm_problem *p, const gemm_candidate *c, const launch_plan *plan,
                       const launch_step *gemm) {
    const sm90_gemv_schedule *s = param_of(plan, gemm, 1);
    const gemm_problem other = transposed(p);
    const int element = p->out_type == NVFP4_FP32 ? 4 : 2;
    expect(!c->swap_ab || (p->n == 1 && p->m > 1 && !p->bias && p->out_pitch == element),
           "what is transposed is a column");
    if (c->swap_ab) p = &other;
    expect(!memcmp(param_of(plan, gemm, 0), p, sizeof *p), "the kernel gets the product, or the transposed one");
    const int i = c->kernel - FIRST_GEMV;
    const int64_t rows = gemv_configs[i].rows, warps = gemv_configs[i].warps, split_k = (int64_t)1 << s->log2_split_k;
    const int64_t tiles = SM90_GEMV_TILES(p->n), per_cta = s->tiles_per_cta;
    expect(p->m <= rows && (c->swap_ab ? c->tile_n : c->tile_m) == rows, "it holds all of A");
    for (size_t j = 0; j < COUNT(gemv_configs); j++)
        expect(gemv_configs[j].rows >= rows || p->m > gemv_configs[j].rows, "no smaller one does");
    expect(c->grid == s->ctas * p->l && c->grid <= INT32_MAX && gemm->cluster == 0 && gemm->grid_y == 1, "its grid");
    expect(s->steps == ceil_div(p->k, SM90_GEMV_STEP_K), "steps cover K");
    expect(s->ctas >= 1 && per_cta == ceil_div(tiles, s->ctas) && s->full_ctas == tiles % s->ctas,
           "tiles are shared out");
    expect(s->ctas <= tiles, "no CTA without one");
    expect(split_k <= warps && (split_k == 1 || split_k <= s->steps), "no split is empty");
    expect(rows * per_cta * split_k * SM90_GEMV_TILE_N * 4 <= SM90_GEMV_PARTIALS_LIMIT, "sums have room");
    const int64_t work = ceil_div(per_cta, warps / split_k) * ceil_div(s->steps, split_k);
    for (int64_t parts = 1; parts <= warps && (parts == 1 || parts <= s->steps); parts *= 2)
        if (rows * per_cta * parts * SM90_GEMV_TILE_N * 4 <= SM90_GEMV_PARTIALS_LIMIT)
            expect(work + (parts < split_k) <= ceil_div(per_cta, warps / parts) * ceil_div(s->steps, parts),
                   "no split is better, and no lesser one as good");
    const int64_t bytes = SM90_GEMV_PARTIALS_BYTES(rows, per_cta, split_k) +
                          SM90_GEMV_A_BYTES(rows, (int64_t)s->steps) +
                          SM90_GEMV_STAGES_BYTES(warps, min_int(gemv_configs[i].stages, work));
    expect(gemm->shared_bytes >= bytes && gemm->shared_bytes <= g->props.shared_per_block, "shared memory fits a CTA");
    const int is_alone = 2 * (gemm->shared_bytes + 1024) > g->props.shared_per_sm;
    expect(is_alone || c->grid > g->props.sm_count, "two CTAs of a grid that fits the SMs share none");
    expect(gemm->shared_bytes == bytes ||
               (c->grid <= g->props.sm_count && 2 * (bytes + 1024) <= g->props.shared_per_sm),
           "no more than that takes");
    expect(c->workspace == 0 && plan->steps == 1, "no workspace");
    expect(plan->tensor_maps == 0, "no tensor maps");
}

static void check_prefill(const gpu *g, const gemm_problem *p, const gemm_candidate *c, const launch_plan *plan,
                          const launch_step *gemm) {
    const sm90_prefill_schedule *s = param_of(plan, gemm, 1);
    const sm90_dequant_schedule *e = dequant_of(plan);
    const int e2m1[2] = {prefill_configs[c->kernel - FIRST_PREFILL].mma_a_e2m1, 0};
    const int64_t rows[2] = {s->swap_ab ? p->n : p->m, s->swap_ab ? p->m : p->n}, clusters = g->props.sm_count / 2;
    const int64_t tiles_m = ceil_div(rows[0], 128), tiles_n = ceil_div(rows[1], 256);
    const int64_t pairs = ceil_div(tiles_m, 2) * tiles_n * p->l, rest = pairs % clusters;
    const int64_t split_k_tiles = 2 * rest <= clusters ? 2 * rest : 0, dp_pairs = pairs - split_k_tiles / 2;
    expect(prefill_configs[c->kernel - FIRST_PREFILL].bf16 == (p->a_type == NVFP4_BF16) &&
               (p->a_type == VALUES_E2M1 || (e2m1[0] && s->swap_ab)),
           "A of 16 bits is mma_b, in its own type");
    expect(entry_of(c->kernel)->shared_bytes <= g->props.shared_per_block &&
               gemm->shared_bytes == entry_of(c->kernel)->shared_bytes,
           "shared memory fits a CTA");
    expect(s->tiles_mma_m == tiles_m && s->tiles_mma_n == tiles_n && s->dp_pairs == dp_pairs &&
               s->split_k_tiles == split_k_tiles,
           "tiles");
    expect(c->grid == 2 * min_int(clusters, max_int(dp_pairs, split_k_tiles)) && gemm->grid_y == 1, "the grid");
    expect(gemm->cluster == 2 && s->k_stages == ceil_div(p->k, 64), "stages cover K");
    expect(s->swap_ab == c->swap_ab && c->split_k == 1, "the candidate says the order");
    expect(c->tile_m == 256 && c->tile_n == 256 && c->tile_k == SM90_PREFILL_STAGE_K &&
               c->stages == prefill_configs[c->kernel - FIRST_PREFILL].stages,
           "the candidate says the tile");
    if (e2m1[0]) expect(p->scale_layout == NVFP4_128X4 && p->k % 64 == 0 && needs_tma(p), "what e2m1 operands need");
    const sm90_prefill_operand *operands[2] = {&s->mma_a, &s->mma_b};
    const uintptr_t end = WORKSPACE + (uintptr_t)c->workspace;
    uintptr_t from = WORKSPACE;
    int64_t counts[2];
    expect(!!e == (p->k > 0), "a pre-pass, unless there is no K");
    const int64_t chunks = ceil_div(p->k, SM90_DEQUANT_K), blocks = tiles_n * chunks;
    const int divided = prefill_configs[c->kernel - FIRST_PREFILL].divided && p->k > 0;
    if (divided)
        expect(e2m1[0] && dp_pairs > 0 && s->mma_b.batches == 1 && chunks > 2 && blocks <= INT32_MAX / 32,
               "a mma_b that the kernel can dequantize");
    const int64_t group = min_int(tiles_n, ceil_div(clusters, min_int(8, ceil_div(tiles_m, 2))));
    const int64_t first_rows = divided ? min_int(rows[1], 256 * group) : rows[1];
    expect(!!s->flags == divided, "a kernel that dequantizes has flags");
    for (int i = 1; i >= 0; i--) {
        const int is_b = i == 0 ? s->swap_ab : !s->swap_ab;
        const int64_t batch = is_b ? p->b_batch : p->a_batch, scale_batch = is_b ? p->scale_b_batch : p->scale_a_batch;
        const int64_t count = batch == 0 && (e2m1[i] || scale_batch == 0) ? 1 : p->l;
        expect(operands[i]->rows == rows[i] && operands[i]->batches == count, "rows and batches of an operand");
        expect(operands[i]->scale == (is_b ? p->scale_b : p->scale_a) && operands[i]->scale_batch == scale_batch &&
                   operands[i]->scale_pitch == (is_b ? p->scale_b_pitch : p->scale_a_pitch),
               "its scales");
        if (e && e2m1[i])
            expect((i ? e->first_ctas : e->second_ctas) == 0, "what is read as e2m1 is not dequantized");
        else if (e)
            from = check_dequantized(p, is_b, e, i == 0, count, 256, i ? first_rows : rows[0], from, end);
        counts[i] = count;
    }
    if (divided) {
        expect(s->blocks == blocks && s->chunks == chunks && s->group_tiles == group,
               "blocks, in groups of tiles that are needed at the same time");
        expect(e->chunks == 2 && e->ready == 2 * group, "of which two are ready");
        expect((uintptr_t)s->flags == from && e->zeroed == s->flags && e->flags == blocks + 2,
               "a flag for each block behind the operand, and two counters");
        check_e2m1(p, !s->swap_ab, &s->mma_b_e2m1, rows[1]);
        expect(s->mma_b_e2m1.to == e->first.to, "into the same place");
        from += (uintptr_t)(blocks + 2) * 4;
    } else if (e) {
        expect(e->flags == 0 && e->chunks == chunks && e->ready == 0, "all, and no flags");
    }
    expect(c->workspace > 0 ? end - from < 256 && from <= end : !e, "and no more than that");
    if (e) {
        check_rows_per_thread(e, counts[1], counts[0]);
        expect(e->span == SM90_PREFILL_STAGE_K, "the order along K of sm90/prefill.cu");
        expect(plan->step[0].grid_x == e->first_ctas + e->second_ctas, "the grid of the pre-pass");
        expect(!e->launch_first, "the pre-pass waits first");
    }
    expect(plan->tensor_maps == (p->k > 0 ? 2 : 0), "two tensor maps");
    for (int32_t j = 0; j < plan->tensor_maps; j++) {
        const unsigned char *place = plan->params + plan->tensor_map[j].offset;
        const int i = place == (const unsigned char *)&s->mma_a.values ? 0 : 1;
        const int is_b = i == 0 ? s->swap_ab : !s->swap_ab;
        const tensor_layout *t = &plan->tensor_map[j].layout;
        expect(place == (const unsigned char *)&operands[i]->values, "in its place");
        expect(t->data == (e2m1[i] ? (is_b ? p->b : p->a)
                           : e     ? (i ? e->first.to : e->second.to)
                                   : NULL),
               "of what is there");
        expect(t->rank == 3 && !strcmp(t->name, e2m1[i] ? is_b ? "b" : "a"
                                                : is_b  ? "the dequantized b"
                                                        : "the dequantized a"),
               "its rank and name");
        expect(t->element_bytes == (e2m1[i] ? 1 : 2) && t->box[0] == (e2m1[i] ? 32u : 64u) && t->box[1] == 128 &&
                   t->box[2] == 1,
               "a box");
        expect(t->swizzle == (e2m1[i] ? 0 : 128), "what is dequantized is swizzled");
        expect((int64_t)t->dims[1] == (e2m1[i] ? rows[i] : whole_tiles(rows[i], 256, p->k)) &&
                   (int64_t)t->dims[2] == operands[i]->batches,
               "all rows are there, in the workspace of whole tiles");
        expect((int64_t)t->dims[0] == (e2m1[i] ? p->k / 2 : ceil_div(p->k, 128) * 128), "all of K is there");
    }
}

static void check_nn(const gemm_problem *p, const gemm_candidate *c, const launch_plan *plan, const launch_step *gemm) {
    const sm90_nn_schedule *s = param_of(plan, gemm, 1);
    expect(strstr(c->name, p->a_type == NVFP4_FP16 ? "_fp16_" : "_bf16_") != NULL, "of A's type");
    expect(p->scale_layout == NVFP4_128X4 && p->aligned16, "scales and rows that the kernel takes");
    expect((int64_t)s->tiles_m * c->tile_m >= p->m && (int64_t)(s->tiles_m - 1) * c->tile_m < p->m, "tiles cover M");
    expect((int64_t)s->tiles_n * c->tile_n >= p->n && (int64_t)(s->tiles_n - 1) * c->tile_n < p->n, "tiles cover N");
    const int64_t stages = ceil_div(p->k, 64), split_k = c->split_k;
    expect(c->grid == (int64_t)s->tiles_m * s->tiles_n * p->l * split_k && gemm->grid_x == c->grid, "a CTA a part");
    expect(split_k >= 1 && split_k <= 8 && (split_k == 1 || split_k <= stages), "a stage for each CTA of a cluster");
    expect(gemm->cluster == (split_k > 1 ? split_k : 0) && s->split_k == split_k, "a cluster a tile");
    const int64_t bits = (int64_t)1 << 31;
    expect(s->inv_split_k * split_k >= bits && (s->inv_split_k - 1) * split_k < bits, "the reciprocal");
    expect(plan->steps == 1 && c->workspace == 0, "one launch");
    expect(s->a_batches == (p->a_batch ? p->l : 1) && s->b_batches == (p->b_batch ? p->l : 1), "batches of the maps");
    expect(plan->tensor_maps == (p->k > 0 ? 2 : 0), "two tensor maps");
    for (int32_t i = 0; i < plan->tensor_maps; i++) {
        const tensor_layout *t = &plan->tensor_map[i].layout;
        const int is_b = plan->params + plan->tensor_map[i].offset == (const unsigned char *)&s->b;
        expect(t->data == (is_b ? p->b : p->a) && t->element_bytes == (is_b ? 1 : 2) && t->rank == 3, "an operand");
        expect((int64_t)t->dims[0] == (is_b ? p->n / 2 : p->k) && (int64_t)t->dims[1] == (is_b ? p->k : p->m),
               "as it lies");
        const int64_t rows = is_b ? 64 : p->m < c->tile_m ? p->m : c->tile_m;
        expect(t->box[0] == (is_b ? 128 : 64) && t->box[1] == rows && t->swizzle == 128, "a stage, no rows past M");
    }
}

#endif
