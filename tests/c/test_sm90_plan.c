/* The sm90 rules over many shapes and ways to lie in memory: every plan can be launched, and keeps what its kernels
 * rely on (csrc/sm90_*configs.h). Prints "N passed, N failed". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "kernels.h"
#include "kernels/sm90/model.h"
#include "plan_operands.h"
#include "sm90_gemv_plan.h"
#include "sm90_plan.h"

/* Compute capability, has_sm90, has_sm100, SMs, shared memory a CTA and an SM, L2. */
static const struct {
    const char *name;
    device_facts facts;
} gpus[] = {
    {"H200", {90, 1, 0, 132, 232448, 233472, 50 << 20}},
    {"H100 PCIe", {90, 1, 0, 114, 232448, 233472, 50 << 20}},
    {"a slice of it", {90, 1, 0, 16, 232448, 233472, 6 << 20}},
};
static const int64_t sizes[] = {1, 2, 4, 5, 8, 9, 32, 33, 64, 112, 127, 128, 129, 300, 2304, 7168, 100000};
static const int64_t depths[] = {0, 16, 64, 144, 464, 2048, 7168, 16384, 1 << 20, INT32_MAX / 64 * 64};
static const int64_t batches[] = {1, 3, 1000};

typedef enum variant { PLAIN, LINEAR, UNALIGNED, FP32, FAR_ROWS, FAR_BATCHES, ONE_FOR_ALL, VARIANTS } variant;

typedef struct config {
    int kernel, math_warpgroups, x_tiles, tile_y, stages, helped;
} config;
static const config configs[] = {
#define X(id, math_warpgroups, x_tiles, tile_y, group_words, stages, helped)                                           \
    {KERNEL_##id, math_warpgroups, x_tiles, tile_y, stages, helped},
    SM90_GEMM_CONFIGS(X)
#undef X
};
static const struct {
    int kernel, rows, warps, stages;
} gemv_configs[] = {
#define X(id, rows, warps, stages) {KERNEL_##id, rows, warps, stages},
    SM90_GEMV_CONFIGS(X)
#undef X
};
static const struct {
    int kernel, x_raw;
} dense_configs[] = {
#define X(id, x_raw, ...) {KERNEL_##id, x_raw},
    SM90_PREFILL_CONFIGS(X)
#undef X
};
#define COUNT(array) (sizeof(array) / sizeof *(array))

static int passed, failed;
static long times_planned[KERNEL_COUNT], times_listed[KERNEL_COUNT];

static char about[256];
static void expect(int holds, const char *rule) {
    passed += holds != 0;
    failed += holds == 0;
    if (!holds) printf("FAILED: %s: %s\n", about, rule);
}

static int64_t ceil_div(int64_t a, int64_t b) {
    return a / b + (a % b > 0);
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static uint8_t memory[5][16] __attribute__((aligned(16))); /* whose addresses stand for operands; nothing is read */

static gemm_problem problem(int64_t m, int64_t n, int64_t k, int64_t l, variant v) {
    int64_t pitch = v == FAR_ROWS ? TENSOR_STRIDE_END : k / 2;
    int64_t scale_pitch = v == LINEAR ? k / 16 : ceil_div(k, 64) * 512;
    return (gemm_problem){
        .m = m,
        .n = n,
        .k = k,
        .l = l,
        .a = memory[0],
        .b = memory[1],
        .a_pitch = m > 1 ? pitch : k / 2,
        .b_pitch = k / 2,
        .a_batch = v == FAR_BATCHES   ? TENSOR_STRIDE_END
                   : v == ONE_FOR_ALL ? 0
                                      : m * pitch,
        .b_batch = n * k / 2,
        .sfa = memory[2],
        .sfb = memory[3],
        .sfa_pitch = scale_pitch,
        .sfb_pitch = scale_pitch,
        .sfa_batch = v == ONE_FOR_ALL ? 0 : scale_pitch * (v == LINEAR ? m : ceil_div(m, 128)),
        .sfb_batch = scale_pitch * (v == LINEAR ? n : ceil_div(n, 128)),
        .out_type = v == FP32 ? OUT_FP32 : OUT_FP16,
        .out_pitch = n * (v == FP32 ? 4 : 2),
        .scale_layout = v == LINEAR ? SCALES_LINEAR : SCALES_128X4,
        .aligned16 = v != UNALIGNED && k % 32 == 0,
    };
}

/* Rows or batches of A further apart than a tensor map can say. */
static int is_far(const gemm_problem *p) {
    int64_t batch = p->a_batch > p->b_batch ? p->a_batch : p->b_batch;
    return (p->m > 1 && p->a_pitch >= TENSOR_STRIDE_END) || (p->l > 1 && batch >= TENSOR_STRIDE_END);
}

static void check_layout(const tensor_layout *t) {
    expect((uintptr_t)t->data % 16 == 0 && t->name && *t->name, "a tensor map's data are aligned");
    expect(t->rank == 3, "a tensor map's rank");
    for (int i = 0; i < t->rank; i++) {
        expect(t->dims[i] >= 1 && t->dims[i] <= (uint64_t)1 << 32, "a dimension is 1 to 2^32");
        expect(t->box[i] >= 1 && t->box[i] <= 256, "a box is 1 to 256");
        if (i == 0) continue;
        expect(t->strides[i - 1] % 16 == 0 && t->strides[i - 1] < (uint64_t)TENSOR_STRIDE_END, "a stride is encodable");
    }
    expect(!t->swizzle || t->box[0] * (uint32_t)t->element_bytes == (uint32_t)t->swizzle, "a box is a swizzle wide");
}

static void check_policies(const gemm_problem *p, const sm90_schedule *s, variant v) {
    const uint64_t normal = 0x1000000000000000, first = 0x12F0000000000000, last = 0x14F0000000000000;
    int64_t reads[2] = {s->tiles_mma_n, s->tiles_mma_m};
    if (v == ONE_FOR_ALL && p->l > 1) reads[s->swap_ab] *= p->l;
    for (int i = 0; i < 2; i++) {
        uint64_t policy = i ? s->mma_b.cache_policy : s->mma_a.cache_policy;
        expect(policy == first || policy == last || policy == normal, "a policy that exists");
        expect(p->k == 0 || (policy == first) == (reads[i] == 1), "what is read once leaves L2 first");
        expect(p->k == 0 || policy != last || reads[!i] == 1, "what stays in L2 does so while the other streams");
    }
}

/* An operand as it lies in memory. */
static void check_raw(const gemm_problem *p, int is_b, const sm90_dequant_operand *e) {
    expect(e->data == (is_b ? p->b : p->a) && e->scale == (is_b ? p->sfb : p->sfa) && e->rows == (is_b ? p->n : p->m) &&
               e->pitch == (is_b ? p->b_pitch : p->a_pitch) && e->batch == (is_b ? p->b_batch : p->a_batch) &&
               e->scale_pitch == (is_b ? p->sfb_pitch : p->sfa_pitch) &&
               e->scale_batch == (is_b ? p->sfb_batch : p->sfa_batch),
           "what is expanded, or decoded inside");
}

/* A thread expands one row where that takes no more CTAs than two an SM of an H200. */
static void check_rows_a_thread(const sm90_dequant_schedule *e, int64_t first_batches, int64_t second_batches) {
    const int64_t first = e->first_ctas ? SM90_DEQUANT_CTAS((int64_t)e->first.rows, e->k, first_batches, 1) : 0;
    const int64_t second = e->second_ctas ? SM90_DEQUANT_CTAS((int64_t)e->second.rows, e->k, second_batches, 1) : 0;
    expect(e->rows_per_thread == (first + second <= 264 ? 1 : 4), "rows that a thread expands");
}

/* An operand that is expanded: in the workspace, whose end it must not pass; returns where it ends. */
static uintptr_t check_expanded(const gemm_problem *p, int is_b, const sm90_dequant_schedule *schedule, int is_second,
                                int64_t batches, uintptr_t from, uintptr_t end) {
    const sm90_dequant_operand *e = is_second ? &schedule->second : &schedule->first;
    const int64_t ctas = is_second ? schedule->second_ctas : schedule->first_ctas, rows = is_b ? p->n : p->m;
    expect(ctas == ceil_div(rows, 32 * schedule->rows_per_thread) * ceil_div(p->k, SM90_DEQUANT_K) * batches,
           "CTAs that expand");
    check_raw(p, is_b, e);
    if (p->k == 0) return from;
    uintptr_t to = (uintptr_t)e->to;
    expect(to % 256 == 0 && to >= from, "in the workspace, on 256 bytes, behind the other");
    to += (uintptr_t)SM90_DEQUANT_BYTES(rows, p->k, batches);
    expect(to <= end, "the workspace has room");
    return to;
}

static uint8_t workspace[16] __attribute__((aligned(16))); /* whose address stands for one */

/* As the kernel divides. */
static int64_t divide(int64_t x, uint32_t by) {
    return (int64_t)((uint64_t)x * by >> 31);
}

/* Helped: every stage of a divided tile that is not the cluster's own is one helper's, and who adds knows whose. */
static void check_help(const device_facts *facts, const nvfp4_plan *plan, const sm90_schedule *s) {
    static int64_t done[SM90_MAX_WORKERS], from[SM90_MAX_WORKERS], to[SM90_MAX_WORKERS];
    static char taken[2 * SM90_MAX_WORKERS];
    const int64_t clusters = plan->grid / s->split_k, divided = s->tiles - s->dp_tiles;
    const int64_t helpers = (int64_t)s->worker_clusters * s->split_k, all = divided * s->streamk_stages;
    expect(s->split_k <= 2 && !s->partials_in_stages, "clusters that fit everywhere, slots for what helpers send");
    expect(clusters == divided + s->worker_clusters && clusters <= facts->sm_count / s->split_k, "all run at once");
    expect(divided > 0 && s->dp_tiles % clusters == 0 && (s->dp_tiles == 0 || s->split_k == 1),
           "rounds of whole tiles");
    expect(helpers > 0 && helpers <= SM90_MAX_WORKERS && divided <= SM90_MAX_WORKERS, "a flag for each helper");
    expect(s->streamk_stages > 0 && s->worker_stages > 0 && s->stages_per_split > 0, "all have stages");
    expect(s->inv_streamk_stages == ceil_div((int64_t)1 << 31, s->streamk_stages) &&
               s->inv_worker_stages == ceil_div((int64_t)1 << 31, s->worker_stages),
           "reciprocals");
    memset(done, 0, sizeof done);
    memset(taken, 0, sizeof taken);
    for (int64_t helper = 0; helper < helpers; helper++) {
        int64_t at = helper * s->worker_stages, end = least(at + s->worker_stages, all);
        expect(at < INT32_MAX - s->worker_stages, "a helper's stages can be counted");
        expect(at >= all || divide(at, s->inv_streamk_stages) == at / s->streamk_stages, "the first tile of a helper");
        for (int64_t next; at < end; at = next) {
            int64_t tile = at / s->streamk_stages;
            next = least(end, (tile + 1) * s->streamk_stages);
            expect(done[tile] == at - tile * s->streamk_stages, "a tile's pieces follow each other");
            expect(!taken[helper + tile], "sums of their own");
            taken[helper + tile] = 1;
            if (done[tile] == 0) from[tile] = helper;
            to[tile] = helper;
            done[tile] += next - at;
        }
    }
    for (int64_t tile = 0; tile < divided; tile++) {
        expect(done[tile] == s->streamk_stages, "all is done");
        expect(divide(tile * s->streamk_stages, s->inv_worker_stages) == from[tile] &&
                   divide((tile + 1) * s->streamk_stages - 1, s->inv_worker_stages) == to[tile],
               "all is added");
    }
}

/* Helpers' sums and flags behind expanded y, which ends at `used`; returns where they end. */
static uintptr_t check_flags(const config *c, const sm90_schedule *s, const sm90_dequant_schedule *e, uintptr_t used,
                             uintptr_t end) {
    const int64_t helpers = (int64_t)s->worker_clusters * s->split_k;
    expect(e->flags == helpers && s->fixup_flags == e->zeroed, "all flags are zeroed");
    expect((helpers > 0) == c->helped, "where there are any");
    if (helpers == 0) return used;
    expect((uintptr_t)s->partial_tiles == used, "helpers' sums lie behind y");
    used += (uintptr_t)(helpers + s->tiles - s->dp_tiles) *
            SM90_PARTIAL_TILE_BYTES(c->math_warpgroups, c->x_tiles, c->tile_y);
    expect((uintptr_t)s->fixup_flags == used && used % 4 == 0, "their flags behind these");
    used += (uintptr_t)helpers * 4;
    expect(used <= end, "the workspace has room for them");
    return used;
}

static void check_gemm(const device_facts *facts, const gemm_problem *p, const nvfp4_plan *plan, sm90_run *run,
                       variant v) {
    sm90_schedule *s = &run->gemm;
    const config *c = configs;
    while (c < configs + COUNT(configs) && c->kernel != plan->kernel) c++;
    expect(c < configs + COUNT(configs), "a GEMM's kernel");
    if (c == configs + COUNT(configs)) return;
    const int32_t tile_x = SM90_MMA_TILE_M(c->math_warpgroups, c->x_tiles);
    const int y_is_b = !s->swap_ab;
    const int64_t rows[2] = {s->swap_ab ? p->n : p->m, s->swap_ab ? p->m : p->n};
    expect(plan->tile_m == (s->swap_ab ? c->tile_y : tile_x) && plan->tile_n == (s->swap_ab ? tile_x : c->tile_y) &&
               plan->tile_k == SM90_STAGE_K && plan->stages == c->stages && plan->swap_ab == s->swap_ab,
           "the plan says the tile");
    expect(s->mma_a.rows == rows[0] && s->mma_b.rows == rows[1], "rows of both sides");
    expect(s->tiles_mma_m == ceil_div(rows[0], tile_x) && s->tiles_mma_n == ceil_div(rows[1], c->tile_y),
           "tiles cover");
    expect(s->tiles == s->tiles_mma_m * s->tiles_mma_n * p->l && s->tiles <= INT32_MAX - facts->sm_count,
           "tiles count");
    expect((int64_t)s->stages_per_split * s->split_k + s->splits_with_one_more + s->streamk_stages ==
               ceil_div(p->k, SM90_STAGE_K),
           "stages cover K");
    expect(s->splits_with_one_more >= 0 && s->splits_with_one_more < s->split_k, "evenly");
    expect(plan->split_k == s->split_k && s->split_k >= 1 && s->split_k <= 8, "a cut of K");
    expect(s->split_k == 1 || s->stages_per_split > 0, "no part of K is empty");
    expect(s->inv_split_k == ceil_div((int64_t)1 << 31, s->split_k), "what is kept is divided by the units");
    const int64_t clusters = plan->grid / s->split_k, room = facts->sm_count;
    expect(sm90_cluster(plan, run) == s->split_k && sm90_grid_x(plan, run) == s->split_k &&
               plan->grid % s->split_k == 0 && clusters > 0 && clusters <= 65535,
           "a grid that can be launched, a CTA for each part");
    if (c->helped)
        check_help(facts, plan, s);
    else if (s->split_k > 1)
        expect(clusters == s->tiles, "one tile a cluster where K is cut");
    else
        expect(clusters <= s->tiles && clusters <= room &&
                   ceil_div(s->tiles, clusters) == ceil_div(s->tiles, least(s->tiles, room)),
               "no more CTAs than tiles or SMs, as few rounds as can be");
    expect(c->tile_y > 32 || s->tiles_mma_n == 1, "a narrow tile holds all of y");
    expect(!(rows[0] == 1 && rows[1] > 1), "a vector is no reason for 128 rows");
    expect(p->aligned16 && !is_far(p) && p->scale_layout == SCALES_128X4, "what x is read by reaches it");

    int32_t fixed = kernels[plan->kernel].shared_bytes, more = sm90_more_shared_bytes(plan, run);
    int32_t parts = SM90_PARTIALS_BYTES(c->math_warpgroups, c->x_tiles, c->tile_y, s->split_k);
    expect(fixed + more <= facts->shared_per_block, "shared memory fits a CTA");
    expect(more == (s->partials_in_stages ? 0 : parts), "partial sums have room");
    expect(!s->partials_in_stages ||
               (s->split_k > 1 && parts <= SM90_PARTIALS_ROOM(c->math_warpgroups, c->x_tiles, c->tile_y, c->stages)),
           "in place of the stages as well");
    expect(s->partials_in_stages == (fixed + parts > facts->shared_per_block), "which is the second choice");
    check_policies(p, s, v);

    const int64_t y_batch = y_is_b ? p->b_batch : p->a_batch, y_scale_batch = y_is_b ? p->sfb_batch : p->sfa_batch;
    const int64_t batches = y_batch == 0 && y_scale_batch == 0 ? 1 : p->l;
    if (!SM90_DEQUANT_B_IN_KERNEL(c->tile_y))
        expect(s->mma_b.shared == (p->l > 1 && batches == 1), "one for all batches");
    expect(s->mma_a.scale == (y_is_b ? p->sfa : p->sfb) &&
               s->mma_a.scale_batch == (y_is_b ? p->sfa_batch : p->sfb_batch) &&
               s->mma_a.scale_pitch == (y_is_b ? p->sfa_pitch : p->sfb_pitch),
           "scales of x");
    sm90_place_workspace(run, workspace);
    const sm90_dequant_schedule *e = &run->expand.schedule;
    uintptr_t end = (uintptr_t)workspace + plan->workspace;
    const int y_raw = SM90_DEQUANT_B_IN_KERNEL(c->tile_y);
    if (y_raw) {
        check_raw(p, y_is_b, &s->mma_b_e2m1);
        expect(plan->workspace == 0 && run->expand.grid == 0, "raw y takes no workspace");
    } else {
        uintptr_t used = check_expanded(p, y_is_b, e, 0, batches, (uintptr_t)workspace, end);
        check_rows_a_thread(e, batches, 0);
        expect(e->second_ctas == 0 && run->expand.grid == e->first_ctas, "y alone is expanded");
        used = check_flags(c, s, e, used, end);
        expect(plan->workspace == 0 || end - used < 256, "and no more workspace than that");
    }

    plan_tensor tensors[PLAN_MOST_TENSORS];
    int count = sm90_tensors(p, plan, run, tensors);
    expect(count == (p->k == 0 ? 0 : y_raw ? 1 : 2), "values have tensor maps, but for raw y");
    for (int i = 0; i < count; i++) {
        const tensor_layout *t = &tensors[i].layout;
        check_layout(t);
        expect(tensors[i].map == (i ? &s->mma_b.values : &s->mma_a.values), "a map for each, in its place");
        expect(t->data == (i ? e->first.to : y_is_b ? p->a : p->b), "of what is there");
        expect(t->element_bytes == (i ? 2 : 1) && t->box[0] == 64 && t->box[1] == (uint32_t)(i ? c->tile_y : tile_x),
               "a box");
        expect(t->swizzle == (i ? 128 : 0), "y is swizzled");
        expect((int64_t)t->dims[0] == (i ? ceil_div(p->k, 64) * 64 : p->k / 2) && (int64_t)t->dims[1] == rows[i] &&
                   (int64_t)t->dims[2] == (i ? batches : p->l),
               "all is there");
    }
}

static void check_gemv(const device_facts *facts, const gemm_problem *p, const nvfp4_plan *plan, sm90_run *run) {
    const sm90_gemv_schedule *s = &run->gemv;
    const gemm_problem exchanged = sm90_gemv_exchanged(p);
    expect(!plan->swap_ab || result_is_column(p), "what is exchanged is a column");
    if (plan->swap_ab) p = &exchanged;
    int i = 0;
    while (gemv_configs[i].kernel != plan->kernel) i++;
    const int64_t rows = gemv_configs[i].rows, warps = gemv_configs[i].warps, cut = (int64_t)1 << s->log2_split_k;
    const int64_t units = SM90_GEMV_TILES(p->n), upc = s->tiles_per_cta;
    expect(p->m <= rows && (plan->swap_ab ? plan->tile_n : plan->tile_m) == rows, "it holds all of A");
    expect(plan->grid == s->ctas * p->l && plan->grid <= INT32_MAX && sm90_cluster(plan, run) == 0, "its grid");
    expect(s->steps == ceil_div(p->k, SM90_GEMV_STEP_K), "steps cover K");
    expect(s->ctas >= 1 && upc == ceil_div(units, s->ctas) && s->full_ctas == units % s->ctas, "units are shared out");
    expect(s->ctas <= units, "no CTA without one");
    expect(cut <= warps && (cut == 1 || cut <= s->steps), "no part of K is empty");
    expect(rows * upc * cut * SM90_GEMV_TILE_N * 4 <= SM90_GEMV_PARTIALS_LIMIT, "sums have room");
    int64_t work = ceil_div(upc, warps / cut) * ceil_div(s->steps, cut);
    for (int64_t other = 1; other <= warps && (other == 1 || other <= s->steps); other *= 2)
        if (rows * upc * other * SM90_GEMV_TILE_N * 4 <= SM90_GEMV_PARTIALS_LIMIT)
            expect(work <= ceil_div(upc, warps / other) * ceil_div(s->steps, other), "no cut is better");
    int64_t bytes = SM90_GEMV_PARTIALS_BYTES(rows, upc, cut) + SM90_GEMV_A_BYTES(rows, (int64_t)s->steps) +
                    SM90_GEMV_STAGES_BYTES(warps, least(gemv_configs[i].stages, work));
    expect(sm90_more_shared_bytes(plan, run) == bytes && bytes <= facts->shared_per_block, "shared memory fits a CTA");
    expect(plan->workspace == 0 && run->expand.grid == 0, "no workspace");
    plan_tensor tensors[PLAN_MOST_TENSORS];
    expect(sm90_tensors(p, plan, run, tensors) == 0, "no tensor maps");
}

static void check_dense(const device_facts *facts, const gemm_problem *p, const nvfp4_plan *plan, sm90_run *run) {
    sm90_prefill_schedule *s = &run->dense;
    const sm90_dequant_schedule *e = &run->expand.schedule;
    int i = 0;
    while (dense_configs[i].kernel != plan->kernel) i++;
    const int raw[2] = {dense_configs[i].x_raw, 0};
    const int64_t rows[2] = {s->swap_ab ? p->n : p->m, s->swap_ab ? p->m : p->n}, clusters = facts->sm_count / 2;
    const int64_t tiles_x = ceil_div(rows[0], 128), tiles_y = ceil_div(rows[1], 256);
    const int64_t pairs = ceil_div(tiles_x, 2) * tiles_y * p->l, rest = pairs % clusters;
    const int64_t halved = 2 * rest <= clusters ? 2 * rest : 0, whole = pairs - halved / 2;
    expect(kernels[plan->kernel].shared_bytes <= facts->shared_per_block && sm90_more_shared_bytes(plan, run) == 0,
           "shared memory fits a CTA");
    expect(s->tiles_mma_m == tiles_x && s->tiles_mma_n == tiles_y && s->dp_pairs == whole && s->split_k_tiles == halved,
           "tiles");
    expect(plan->grid == 2 * least(clusters, whole > halved ? whole : halved), "the grid");
    expect(sm90_cluster(plan, run) == 2 && s->k_stages == ceil_div(p->k, 64), "stages cover K");
    if (raw[0])
        expect(p->scale_layout == SCALES_128X4 && p->k % 64 == 0 && p->aligned16 && !is_far(p), "what raw asks for");
    sm90_place_expansion(&run->expand, workspace);
    sm90_prefill_operand *sides[2] = {&s->mma_a, &s->mma_b};
    const int64_t ctas[2] = {e->second_ctas, e->first_ctas};
    uintptr_t end = (uintptr_t)workspace + plan->workspace, from = (uintptr_t)workspace;
    int64_t counts[2];
    for (int side = 1; side >= 0; side--) {
        int is_b = side == 0 ? s->swap_ab : !s->swap_ab;
        int64_t batch = is_b ? p->b_batch : p->a_batch, scale_batch = is_b ? p->sfb_batch : p->sfa_batch;
        int64_t count = batch == 0 && (raw[side] || scale_batch == 0) ? 1 : p->l;
        expect(sides[side]->rows == rows[side] && sides[side]->batches == count, "rows and batches of a side");
        expect(sides[side]->scale == (is_b ? p->sfb : p->sfa) && sides[side]->scale_batch == scale_batch, "its scales");
        if (raw[side])
            expect(ctas[side] == 0, "what is raw is not expanded");
        else
            from = check_expanded(p, is_b, e, side == 0, count, from, end);
        counts[side] = count;
    }
    check_rows_a_thread(e, counts[1], counts[0]);
    expect(plan->workspace == 0 || end - from < 256, "and no more than that");
    expect(run->expand.grid == ctas[0] + ctas[1], "the grid of the expansion");
    plan_tensor tensors[PLAN_MOST_TENSORS];
    int count = sm90_tensors(p, plan, run, tensors);
    expect(count == (p->k > 0 ? 2 : 0), "two tensor maps");
    for (int j = 0; j < count; j++) {
        int side = tensors[j].map == &s->mma_a.values ? 0 : 1;
        const tensor_layout *t = &tensors[j].layout;
        expect(tensors[j].map == &sides[side]->values, "in its place");
        check_layout(t);
        expect(t->element_bytes == (raw[side] ? 1 : 2) && t->box[0] == (raw[side] ? 32u : 64u) && t->box[1] == 128,
               "a box");
        expect(t->swizzle == (raw[side] ? 0 : 128), "what is expanded is swizzled");
        expect((int64_t)t->dims[1] == rows[side] && (int64_t)t->dims[2] == sides[side]->batches, "all rows are there");
        expect((int64_t)t->dims[0] == (raw[side] ? p->k / 2 : s->k_stages * 64), "all of K is there");
    }
}

/* Whether an operand that has to be expanded is beyond what a tensor map's strides reach: the smaller one, or, where
 * the other cannot be read as it lies, either. */
static int needs_too_much(const gemm_problem *p) {
    const double row = (double)SM90_DEQUANT_PITCH(p->k), end = (double)TENSOR_STRIDE_END;
    const double a = row * (double)p->m * (double)(p->a_batch == 0 && p->sfa_batch == 0 ? 1 : p->l);
    const double b = row * (double)p->n * (double)p->l;
    const int raw = p->scale_layout == SCALES_128X4 && p->aligned16 && !is_far(p);
    return raw ? (a < b ? a : b) >= end : (a > b ? a : b) >= end;
}

/* The plan in that place of the estimate's order; returns how many there are. */
static int32_t one_of(int32_t wanted, const char *gpu, const device_facts *facts, int64_t m, int64_t n, int64_t k,
                      int64_t l, variant v, double *modelled_us) {
    gemm_problem p = problem(m, n, k, l, v);
    nvfp4_plan plan, again;
    sm90_run run, other;
    memset(&plan, 0xff, sizeof plan);
    memset(&run, 0xff, sizeof run);
    snprintf(about, sizeof about, "%s, %lld x %lld x %lld x %lld, variant %d", gpu, (long long)m, (long long)n,
             (long long)k, (long long)l, v);
    const plan_wish wish = {.candidate = wanted};
    nvfp4_status status = sm90_plan(facts, &p, &wish, &plan, &run);
    if (status == NVFP4_UNSUPPORTED && needs_too_much(&p)) {
        expect(strstr(nvfp4_last_error(), "workspace") || strstr(nvfp4_last_error(), "tiles"), nvfp4_last_error());
        return 0;
    }
    expect(status == NVFP4_OK, nvfp4_last_error());
    if (status) return 0;
    snprintf(about, sizeof about, "%s, %lld x %lld x %lld x %lld, variant %d: %s, swap_ab %d, split %d", gpu,
             (long long)m, (long long)n, (long long)k, (long long)l, v, plan.name, plan.swap_ab, plan.split_k);
    times_planned[plan.kernel] += wanted == 0;
    times_listed[plan.kernel]++;
    if (run.form == SM90_GEMV)
        check_gemv(facts, &p, &plan, &run);
    else if (run.form == SM90_DENSE)
        check_dense(facts, &p, &plan, &run);
    else
        check_gemm(facts, &p, &plan, &run, v);
    expect(kernels[plan.kernel].arch == ARCH_SM90 && kernels[plan.kernel].programmatic, "where it runs");
    expect(plan.backend == NVFP4_BACKEND_SM90 && !strcmp(plan.name, kernels[plan.kernel].name), "it says what");
    expect(plan.reason && strlen(plan.reason) > 20, "it says why");
    sm90_plan(facts, &p, &wish, &again, &other);
    expect(again.kernel == plan.kernel && again.grid == plan.grid && again.swap_ab == plan.swap_ab &&
               again.split_k == plan.split_k && again.workspace == plan.workspace,
           "the same twice");
    expect(plan.modelled_us > 0.0 && plan.candidates > 0, "it says how long that is modelled to take");
    *modelled_us = plan.modelled_us;
    return plan.candidates;
}

/* All plans of a shape: each can be launched, none is modelled to be faster than the one before it. */
static void all(const char *gpu, const device_facts *facts, int64_t m, int64_t n, int64_t k, int64_t l, variant v) {
    double before = 0.0, now = 0.0;
    int32_t count = 1;
    for (int32_t i = 0; i < count; i++, before = now) {
        count = one_of(i, gpu, facts, m, n, k, l, v, &now);
        expect(now >= before, "in the order of the estimate");
    }
}

static void check_families(void) {
    const device_facts *h200 = &gpus[0].facts;
    device_facts without = *h200;
    without.has_sm90 = 0;
    snprintf(about, sizeof about, "families");
    expect(plan_family(h200, NVFP4_AUTO) == NVFP4_BACKEND_SM90, "sm90 where it is loaded");
    expect(plan_family(h200, NVFP4_BACKEND_SM90) == NVFP4_BACKEND_SM90, "sm90 by name");
    expect(plan_family(h200, NVFP4_BACKEND_SM80) == NVFP4_BACKEND_SM80, "sm80 by name");
    expect(plan_family(h200, NVFP4_BACKEND_SM100) == NVFP4_AUTO, "sm100 is refused");
    expect(plan_family(&without, NVFP4_AUTO) == NVFP4_BACKEND_SM80, "sm80 elsewhere");
    expect(plan_family(&without, NVFP4_BACKEND_SM90) == NVFP4_AUTO, "sm90 is refused elsewhere");
}

static void check_refusals(void) {
    nvfp4_plan plan;
    sm90_run run;
    device_facts small = gpus[0].facts;
    gemm_problem many = problem(INT32_MAX, 1 << 30, 64, 8, PLAIN), one = problem(8, 8, 64, 1, PLAIN);
    small.shared_per_block = 48 << 10;
    snprintf(about, sizeof about, "refusals");
    expect(sm90_plan(&gpus[0].facts, &many, NULL, &plan, &run) == NVFP4_UNSUPPORTED &&
               strstr(nvfp4_last_error(), "M = 2147483647"),
           "too many tiles are a sentence");
    expect(sm90_plan(&small, &one, NULL, &plan, &run) == NVFP4_UNSUPPORTED &&
               strstr(nvfp4_last_error(), "the GPU has 49152 a CTA"),
           "too little shared memory is a sentence");
}

/* Every plan can be had by its place and by its settings, and no two share settings. */
static void check_wishes(int64_t m, int64_t n, int64_t k, variant v) {
    enum { MOST = 400 };
    static plan_settings all[MOST];
    nvfp4_plan plan;
    sm90_run run;
    gemm_problem p = problem(m, n, k, 1, v);
    snprintf(about, sizeof about, "wishes for %lld x %lld x %lld", (long long)m, (long long)n, (long long)k);
    int32_t count = 1;
    for (int32_t i = 0; i < count; i++) {
        const plan_wish place = {.candidate = i};
        expect(!sm90_plan(&gpus[0].facts, &p, &place, &plan, &run) && plan.candidates <= MOST, "by its place");
        count = plan.candidates;
        all[i] = (plan_settings){plan.kernel, plan.swap_ab, plan.split_k, plan.prefetch_stages};
        for (int32_t j = 0; j < i; j++) expect(memcmp(&all[i], &all[j], sizeof *all) != 0, "no two are alike");
        const plan_wish settings = {.first = all[i]};
        expect(!sm90_plan(&gpus[0].facts, &p, &settings, &plan, &run), "by its settings");
        expect(plan.kernel == all[i].kernel && plan.swap_ab == all[i].swap_ab && plan.split_k == all[i].split_k,
               "that one");
    }
}

/* Of the shapes that matter most: the form, one round of clusters, and whether sm80 is to take what cannot be read as
 * it lies. Times of an H200 stand behind each line (benchmarks/results/sm90_candidates.csv). */
static void check_choices(void) {
    static const struct {
        int64_t m, n, k;
        variant v;
        sm90_form form;
        int swap_ab, yields;
    } choices[] = {
        {7168, 1, 16384, PLAIN, SM90_GEMV, 1, 0},      {4096, 1, 7168, FP32, SM90_GEMV, 1, 0},
        {1, 7168, 16384, PLAIN, SM90_GEMV, 0, 0},      {1, 4096, 7168, PLAIN, SM90_GEMV, 0, 0},
        {1, 7168, 2048, PLAIN, SM90_GEMV, 0, 0},       {2, 7168, 16384, PLAIN, SM90_GEMV, 0, 0},
        {4, 4096, 7168, PLAIN, SM90_GEMV, 0, 0},       {4, 7168, 2048, PLAIN, SM90_GEMV, 0, 0},
        {5, 7168, 2048, PLAIN, SM90_GEMM, 1, 0},       {16, 7168, 16384, PLAIN, SM90_GEMM, 1, 0},
        {16, 4096, 7168, PLAIN, SM90_GEMM, 1, 0},      {16, 7168, 2048, PLAIN, SM90_GEMM, 1, 0},
        {64, 7168, 16384, PLAIN, SM90_GEMM, 1, 0},     {128, 7168, 16384, PLAIN, SM90_GEMM, 1, 0},
        {128, 4096, 7168, PLAIN, SM90_GEMM, 1, 0},     {128, 7168, 2048, PLAIN, SM90_GEMM, 1, 0},
        {16384, 16, 7168, PLAIN, SM90_GEMM, 0, 0},     {256, 7168, 16384, PLAIN, SM90_GEMM, 1, 0},
        {512, 7168, 16384, PLAIN, SM90_GEMM, 1, 0},    {2304, 4608, 7168, PLAIN, SM90_DENSE, 1, 0},
        {1, 7168, 16384, LINEAR, SM90_GEMV, 0, 0},     {16, 7168, 16384, LINEAR, SM90_DENSE, 0, 1},
        {16, 7168, 2048, UNALIGNED, SM90_DENSE, 0, 1}, {128, 4096, 7168, LINEAR, SM90_DENSE, 0, 1},
        {2304, 7168, 16384, LINEAR, SM90_DENSE, 0, 0}, {4096, 4608, 7168, UNALIGNED, SM90_DENSE, 0, 0},
    };
    const device_facts *h200 = &gpus[0].facts;
    for (size_t i = 0; i < COUNT(choices); i++) {
        gemm_problem p = problem(choices[i].m, choices[i].n, choices[i].k, 1, choices[i].v);
        const plan_wish none = {.candidate = 0}, second = {.candidate = 1};
        nvfp4_plan plan;
        sm90_run run;
        nvfp4_status status = sm90_plan(h200, &p, &none, &plan, &run);
        snprintf(about, sizeof about, "choice %lld x %lld x %lld, variant %d: %s, swap_ab %d, split %d, %.1f us",
                 (long long)p.m, (long long)p.n, (long long)p.k, choices[i].v, plan.name, plan.swap_ab, plan.split_k,
                 plan.modelled_us);
        expect(!status && run.form == choices[i].form, "the form that measures fastest");
        if (run.form == SM90_GEMM) {
            expect(plan.swap_ab == choices[i].swap_ab, "what has more rows stays raw");
            expect(plan.grid <= sm90_ctas_that_fit(h200->sm_count, plan.split_k), "all CTAs run at once");
            expect(plan.grid >= 90, "most SMs have work");
        }
        if (run.form == SM90_DENSE)
            expect((plan.kernel == KERNEL_sm90_prefill_mixed) == (choices[i].v == PLAIN), "raw where it can be");
        expect(sm90_yields_to_sm80(h200, &p, &none, &plan) == choices[i].yields, "sm80 takes it");
        expect(!sm90_yields_to_sm80(h200, &p, &second, &plan), "but not where a plan is asked for by its place");
        const plan_wish first = {.first = {plan.kernel, plan.swap_ab, plan.split_k, 0}};
        expect(!sm90_yields_to_sm80(h200, &p, &first, &plan), "or by its settings");
    }
}

int main(void) {
    check_families();
    check_choices();
    check_refusals();
    check_wishes(128, 7168, 16384, PLAIN);
    check_wishes(2, 500, 1040, LINEAR);
    for (size_t g = 0; g < COUNT(gpus); g++)
        for (size_t m = 0; m < COUNT(sizes); m++)
            for (size_t n = 0; n < COUNT(sizes); n++)
                for (size_t k = 0; k < COUNT(depths); k++)
                    for (size_t l = 0; l < COUNT(batches); l++) {
                        double us;
                        if (sizes[m] * sizes[n] * batches[l] > (int64_t)1 << 34) continue; /* that no GPU holds */
                        variant v = (variant)((g + m * 3 + n * 5 + k * 7 + l) % VARIANTS);
                        one_of(0, gpus[g].name, &gpus[g].facts, sizes[m], sizes[n], depths[k], batches[l], v, &us);
                    }
    for (size_t m = 0; m < COUNT(sizes); m += 2)
        for (size_t n = 0; n < COUNT(sizes); n += 3)
            for (size_t k = 0; k < COUNT(depths); k++)
                all("H200", &gpus[0].facts, sizes[m], sizes[n], depths[k], k % 3 ? 1 : 3,
                    k % 2 ? PLAIN : (variant)((m + n) % VARIANTS));
    double us;
    one_of(0, "H200", &gpus[0].facts, INT32_MAX, 8, INT32_MAX / 64 * 64, 1, PLAIN, &us);
    one_of(0, "H200", &gpus[0].facts, 1, INT32_MAX, 1 << 20, 1, LINEAR, &us);
    one_of(0, "H200", &gpus[0].facts, 1, 1, 64, INT32_MAX - 132, PLAIN, &us);
    one_of(0, "H200", &gpus[0].facts, 128, 128, 1 << 20, 1 << 24, PLAIN, &us);
    snprintf(about, sizeof about, "what there is");
    for (int k = 0; k < KERNEL_COUNT; k++)
        if (kernels[k].arch == ARCH_SM90 && k != KERNEL_SM90_DEQUANT) {
            expect(times_listed[k] > 0, kernels[k].name);
            printf("%-32s first %6ld times, listed %7ld\n", kernels[k].name, times_planned[k], times_listed[k]);
        }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
