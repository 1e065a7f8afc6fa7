/* The wgmma kernels of gemm.cu: every instantiation is tried with either operand as mma_a, the one that is decoded in
 * registers, and with K in 1 to 8 parts. What the kernel relies on is a rule here and not a model: no split
 * of K is empty, partial sums have room. Narrow tiles are listed only where one holds all of mma_b. */
#include "kernels/sm90/plan.h"

typedef struct gemm_config {
    int32_t kernel;
    int32_t type; /* of the wgmma operands: NVFP4_FP16 or NVFP4_BF16 */
    int32_t mma_tile_m, mma_tile_n, stages;
    int32_t shared_bytes;
    int32_t partials_room; /* for partial sums in place of the stages */
    int32_t math_warpgroups, wgmmas_m;
    int32_t dequant_b; /* 0: by the pre-pass */
    int32_t streamk;
    const char *reasons[2][2]; /* by swap_ab, by whether K is split */
} gemm_config;

#define A_REGISTERS "A is decoded in registers, B "
#define B_REGISTERS "B is decoded in registers, A "
#define IN_KERNEL   "in the same kernel by warps that would be idle"
#define IN_STAGES   "in the same kernel by a warpgroup of its own: no launch before it"
#define PRE_PASS    "dequantized to fp16 by a pre-pass"
#define NARROW      ", all of whose rows are in one narrow tile: each byte is loaded once"
#define TALL        ", in tiles of 256 rows of the former: each fp16 value is loaded for more products"
#define SQUARE      ", in tiles of 128 rows: more SMs have work"
#define SPLIT       "; split along K over a cluster so that more SMs load"
#define STREAMK     "; stream-K: CTAs without a tile compute the beginning of K for those that have one"
#define REASON(registers, split, mma_tile_m, mma_tile_n, dequant_b, streamk)                                           \
    ((streamk)                             ? registers PRE_PASS split STREAMK                                          \
     : SM90_DEQUANT_FROM_STAGES(dequant_b) ? registers IN_STAGES split                                                 \
     : (dequant_b) == 1                    ? registers IN_KERNEL NARROW split                                          \
     : (mma_tile_n) <= 32                  ? registers PRE_PASS NARROW split                                           \
     : (mma_tile_m) > 128                  ? registers PRE_PASS TALL split                                             \
                                           : registers PRE_PASS SQUARE split)

enum {
    MAX_CLUSTER = 8,         /* CTAs, of a portable cluster */
    STREAMK_MAX_SPLIT_K = 2, /* larger ones leave SMs idle */
    MAX_GRID_Y = 65535,      /* of a grid along y (CUDA programming guide, compute capabilities) */
    NARROW_TILE = 32,        /* tiles no wider than this have to hold all of mma_b */
};

static const gemm_config configs[] = {
#define X(id, math_warpgroups, wgmmas_m, mma_tile_n, group_words, stages, dequant_b, streamk, bf16)                    \
    {KERNEL_##id,                                                                                                      \
     (bf16) ? NVFP4_BF16 : NVFP4_FP16,                                                                                 \
     SM90_MMA_TILE_M(math_warpgroups, wgmmas_m),                                                                       \
     mma_tile_n,                                                                                                       \
     stages,                                                                                                           \
     SM90_SHARED_BYTES(math_warpgroups, wgmmas_m, mma_tile_n, stages),                                                 \
     SM90_PARTIALS_ROOM(math_warpgroups, wgmmas_m, mma_tile_n, stages),                                                \
     math_warpgroups,                                                                                                  \
     wgmmas_m,                                                                                                         \
     dequant_b,                                                                                                        \
     streamk,                                                                                                          \
     {{REASON(A_REGISTERS, "", SM90_MMA_TILE_M(math_warpgroups, wgmmas_m), mma_tile_n, dequant_b, streamk),            \
       REASON(A_REGISTERS, SPLIT, SM90_MMA_TILE_M(math_warpgroups, wgmmas_m), mma_tile_n, dequant_b, streamk)},        \
      {REASON(B_REGISTERS, "", SM90_MMA_TILE_M(math_warpgroups, wgmmas_m), mma_tile_n, dequant_b, streamk),            \
       REASON(B_REGISTERS, SPLIT, SM90_MMA_TILE_M(math_warpgroups, wgmmas_m), mma_tile_n, dequant_b, streamk)}}},
    SM90_GEMM_CONFIGS(X)
#undef X
};
enum { CONFIGS = sizeof configs / sizeof *configs, OTHER_CANDIDATES = 10 /* gemv: 2, prefill: 6, units: 2 */ };
#define X(id, math_warpgroups, wgmmas_m, mma_tile_n, group_words, stages, dequant_b, streamk, bf16) +!(bf16)
_Static_assert((0 SM90_GEMM_CONFIGS(X)) * 2 * MAX_CLUSTER + OTHER_CANDIDATES <= MAX_CANDIDATES,
               "room for all of fp16, which are more");
#undef X

typedef struct IS_TILING gemm_tiling {
    int32_t tiles_mma_m, tiles_mma_n, tiles, clusters, k_stages;
    int32_t partials_in_stages;
    int32_t shared_bytes, padding_;
    sm90_streamk_split streamk;
    sm90_operand_size mma_b;
} gemm_tiling;

/* Whether the kernel multiplies this type of A: 16-bit A is mma_b, and the pre-pass puts it into order. */
static int takes_type(const gemm_config *config, const gemm_traits *t) {
    return config->type == sm90_wgmma_type(t) && (t->a_type == VALUES_E2M1 || !config->dequant_b);
}

/* Whether a smaller tile holds all of mma_a, or all of mma_b, as well: the rows between would be computed for nothing.
 * One that is dequantized in the kernel costs more in another place: with long K 128x32 is ahead of 128x8 and 128x16.
 */
static int is_too_large(const gemm_config *config, const gemm_traits *t, int64_t mma_m, int64_t mma_n) {
    for (size_t i = 0; i < CONFIGS; i++) {
        const gemm_config *other = &configs[i];
        if (!takes_type(other, t)) continue;
        const int alike = other->dequant_b ? config->dequant_b : other->mma_tile_m == config->mma_tile_m;
        if (alike && mma_n <= other->mma_tile_n && other->mma_tile_n < config->mma_tile_n) return 1;
        if (other->mma_tile_n == config->mma_tile_n && mma_m <= other->mma_tile_m &&
            other->mma_tile_m < config->mma_tile_m)
            return 1;
    }
    return 0;
}

static int32_t partials_bytes(const gemm_config *config, int32_t split_k) {
    return SM90_PARTIALS_BYTES(config->math_warpgroups, config->wgmmas_m, config->mma_tile_n, split_k);
}

static int32_t partial_tile_bytes(const gemm_config *config) {
    return SM90_PARTIAL_TILE_BYTES(config->math_warpgroups, config->wgmmas_m, config->mma_tile_n);
}

static sm90_model_input model_input(const device_props *props, const gemm_traits *t, const gemm_config *config,
                                    int32_t swap_ab, int32_t split_k, int64_t dequant_batches) {
    return (sm90_model_input){
        .mma_m = swap_ab ? t->n : t->m,
        .mma_n = swap_ab ? t->m : t->n,
        .k = t->k > 0 ? t->k : 1, /* without products there still are tiles to write */
        .l = t->l,
        .sm_count = props->sm_count,
        .mma_tile_m = config->mma_tile_m,
        .mma_tile_n = config->mma_tile_n,
        .stage_k = SM90_STAGE_K,
        .warps = 4 * config->math_warpgroups,
        .split_k = split_k,
        .partials_bytes = partials_bytes(config, split_k),
        .is_a16 = t->a_type != VALUES_E2M1,
        .dequant_b = config->dequant_b,
        .dequant_batches = dequant_batches,
        .output_bytes = t->output_bytes,
        .partial_tile_bytes = partial_tile_bytes(config),
    };
}

/* Whether mma_a can be read as e2m1, and mma_b dequantized if there is a pre-pass. */
static int takes_operands(const gemm_config *config, const gemm_traits *t, int32_t swap_ab, sm90_operand_size *mma_b) {
    if (!sm90_reaches(t) || !takes_type(config, t)) return 0;
    if (t->a_type != VALUES_E2M1 && !swap_ab) return 0;
    if (!config->dequant_b) return sm90_fp16_operand(t, !swap_ab, config->mma_tile_n, mma_b);
    *mma_b = sm90_e2m1_operand(t, !swap_ab);
    return 1;
}

/* Tiles the problem; 0: the kernel cannot do it, or its tiles cannot be counted. */
static int tile(const sm90_model *model, const device_props *props, const gemm_traits *t, const gemm_config *config,
                sm90_model_input *in, gemm_tiling *tiling) {
    const int64_t mma_m = in->mma_m, mma_n = in->mma_n;
    if (config->shared_bytes > props->shared_per_block) return 0;
    if (config->mma_tile_n <= NARROW_TILE && mma_n > config->mma_tile_n) return 0;
    if (is_too_large(config, t, mma_m, mma_n)) return 0;
    /* A vector as mma_a would leave its other rows idle; a 16-bit A has no other way. */
    if (mma_m < mma_n && mma_m == 1 && t->a_type == VALUES_E2M1) return 0;
    const int64_t tiles_m = ceil_div(mma_m, config->mma_tile_m), tiles_n = ceil_div(mma_n, config->mma_tile_n);
    const int64_t most = INT32_MAX - props->sm_count; /* tile + clusters must not overflow in the kernel */
    if (tiles_m * tiles_n > most || tiles_m * tiles_n * in->l > most) return 0;
    const int64_t tiles = tiles_m * tiles_n * in->l;
    int64_t clusters = ceil_div(tiles, ceil_div(tiles, props->sm_count)); /* equal numbers of tiles, give or take one */
    if (in->split_k > 1) {
        clusters = tiles;
        if (in->split_k > tiling->k_stages || clusters > MAX_GRID_Y) return 0;
        /* Partial sums lie behind what the kernel always has, or else in place of its stages. */
        tiling->partials_in_stages = config->shared_bytes + in->partials_bytes > props->shared_per_block;
        if (tiling->partials_in_stages && in->partials_bytes > config->partials_room) return 0;
    }
    if (config->streamk) {
        if (tiling->k_stages == 0 || in->split_k > STREAMK_MAX_SPLIT_K || tiling->partials_in_stages ||
            !sm90_plan_streamk(model, in))
            return 0;
        tiling->streamk = in->streamk;
        clusters = tiles - in->streamk.dp_tiles + in->streamk.worker_clusters;
    }
    tiling->tiles_mma_m = (int32_t)tiles_m;
    tiling->tiles_mma_n = (int32_t)tiles_n;
    tiling->tiles = (int32_t)tiles;
    tiling->clusters = (int32_t)clusters;
    tiling->shared_bytes = config->shared_bytes + (tiling->partials_in_stages ? 0 : in->partials_bytes);
    return 1;
}

/* Bytes of the partial tiles, one for each worker and each stream-K tile. The workspace holds them behind the
 * dequantized mma_b, and behind them a flag for each worker. */
static int64_t partial_tiles_bytes(const gemm_config *config, const gemm_tiling *tiling, int32_t split_k) {
    const int64_t workers = (int64_t)tiling->streamk.worker_clusters * split_k;
    return (workers + tiling->tiles - tiling->streamk.dp_tiles) * partial_tile_bytes(config);
}
static int64_t flags_bytes(const gemm_tiling *tiling, int32_t split_k) {
    return (int64_t)tiling->streamk.worker_clusters * split_k * (int64_t)sizeof(uint32_t);
}

static int32_t list_one(const sm90_model *model, const device_props *props, const gemm_traits *t,
                        const gemm_config *config, int32_t swap_ab, int32_t split_k, gemm_candidate *out) {
    gemm_tiling tiling = {.k_stages = (int32_t)ceil_div(t->k, SM90_STAGE_K)};
    if (!takes_operands(config, t, swap_ab, &tiling.mma_b)) return 0;
    const int64_t dequant_batches = config->dequant_b ? 0 : tiling.mma_b.batches;
    sm90_model_input in = model_input(props, t, config, swap_ab, split_k, dequant_batches);
    if (!tile(model, props, t, config, &in, &tiling)) return 0;
    const double loss = config->type == NVFP4_BF16 ? model->bf16_loss : 1.0;
    const double time = loss * sm90_gemm_time_us(model, &in);
    if (!(time < INFINITY)) return 0;
    const int64_t streamk_bytes =
        config->streamk ? partial_tiles_bytes(config, &tiling, split_k) + flags_bytes(&tiling, split_k) : 0;
    *out = (gemm_candidate){
        .single_us = time,
        .reason = config->reasons[swap_ab][split_k > 1],
        .grid = (int64_t)tiling.clusters * split_k,
        .workspace = sm90_workspace_bytes(tiling.mma_b.dequant_bytes, streamk_bytes),
        .kernel = config->kernel,
        .swap_ab = swap_ab,
        .split_k = split_k,
        .tile_m = swap_ab ? config->mma_tile_n : config->mma_tile_m,
        .tile_n = swap_ab ? config->mma_tile_m : config->mma_tile_n,
        .tile_k = SM90_STAGE_K,
        .stages = config->stages,
    };
    *TILING(gemm_tiling, out) = tiling;
    return 1;
}

/* Every kernel without stream-K adds K in the same order, stage by stage. Linear scales and operands that TMA does not
 * reach have no such kernel; with N = 1 whether TMA reaches A depends on M. */
static int32_t batch_invariant(const sm90_model *model, const device_props *props, const gemm_traits *t,
                               gemm_candidate *out) {
    if (!sm90_reaches(t) || t->n == 1) return -1;
    const int32_t split_k = batch_invariant_split_k(props, t, SM90_ATOM_ROWS, SM90_STAGE_K);
    int32_t count = 0;
    for (int32_t i = 0; i < CONFIGS; i++)
        for (int32_t swap_ab = 0; swap_ab < 2 && !configs[i].streamk; swap_ab++)
            count += list_one(model, props, t, &configs[i], swap_ab, split_k, out + count);
    return count;
}

static int32_t candidates(const sm90_model *model, const device_props *props, const gemm_traits *t,
                          gemm_candidate *out) {
    int32_t count = 0;
    for (int32_t i = 0; i < CONFIGS; i++)
        for (int32_t swap_ab = 0; swap_ab < 2; swap_ab++)
            for (int32_t split_k = 1; split_k <= MAX_CLUSTER; split_k++)
                count += list_one(model, props, t, &configs[i], swap_ab, split_k, out + count);
    return count;
}

/* The pre-pass quantizes A if it dequantizes A. */
static int32_t with_quantizer(const device_props *props, const quantize_gemm_problem *p, const gemm_candidate *of,
                              gemm_candidate *out) {
    (void)props, (void)p;
    if (!of->swap_ab || !TILING(const gemm_tiling, of)->mma_b.dequant_bytes) return 0;
    *out = *of;
    out->reason = "B is decoded in registers, A quantized and dequantized to fp16 by one pre-pass";
    return 1;
}

/* Places the workers' partial tiles and flags `behind` the dequantized mma_b. The pre-pass clears the flags. */
static void build_streamk(const gemm_config *config, const gemm_tiling *tiling, int32_t split_k, uint8_t *behind,
                          sm90_dequant_schedule *dequant, sm90_schedule *s) {
    const sm90_streamk_split *streamk = &tiling->streamk;
    s->dp_tiles = streamk->dp_tiles;
    s->k_stages = tiling->k_stages;
    s->worker_clusters = streamk->worker_clusters;
    s->streamk_stages = streamk->streamk_stages;
    s->worker_stages = streamk->worker_stages;
    s->inv_streamk_stages = sm90_reciprocal(streamk->streamk_stages);
    s->inv_worker_stages = sm90_reciprocal(streamk->worker_stages);
    s->partial_tiles = behind;
    s->fixup_flags = (uint32_t *)(behind + partial_tiles_bytes(config, tiling, split_k));
    dequant->flags = streamk->worker_clusters * split_k;
    dequant->zeroed = s->fixup_flags;
}

static void build(const device_props *props, const product_problem *problem, const gemm_candidate *c, void *workspace,
                  launch_plan *out) {
    const gemm_problem *p = &problem->gemm;
    const gemm_config *config = &configs[c->kernel - configs->kernel];
    const gemm_tiling *tiling = TILING(const gemm_tiling, c);
    const sm90_operand_size *mma_b = &tiling->mma_b, no_operand = {.dequant_bytes = 0};
    const int mma_a_is_b = c->swap_ab;
    const cache_policies policies =
        choose_cache_policies(props, p, c->swap_ab, tiling->tiles_mma_m, tiling->tiles_mma_n, 0);
    uint8_t *mma_b_fp16, *behind;
    sm90_dequant_schedule *dequant =
        sm90_add_dequant(p, !mma_a_is_b, mma_b, &no_operand, workspace, out, &mma_b_fp16, &behind);
    /* gemm.cu says which operands may be loaded before griddepcontrol.wait. */
    const int constant_mma_a = mma_a_is_b && p->constant_b;
    if (dequant) dequant->span = SM90_STAGE_K, dequant->launch_first = constant_mma_a;
    if (c->quantizes) sm90_quantize_operand(&problem->quantize_gemm.q, &dequant->first, dequant, out);

    launch_step *step = add_step(out, c->kernel, c->split_k, tiling->shared_bytes);
    step->grid_y = tiling->clusters;
    step->cluster = c->split_k;
    *(gemm_problem *)add_param(out, step, sizeof *p) = *p;
    sm90_schedule *s = add_param(out, step, sizeof *s);
    const sm90_dequant_operand mma_a = sm90_operand_of(p, mma_a_is_b);
    const int32_t split_stages = tiling->k_stages - tiling->streamk.streamk_stages;
    *s = (sm90_schedule){
        .mma_a = {.scale = mma_a.scale,
                  .scale_pitch = mma_a.scale_pitch,
                  .scale_batch = mma_a.scale_batch,
                  .cache_policy = policies.mma_a,
                  .rows = mma_a.rows},
        .mma_b = {.cache_policy = policies.mma_b, .rows = mma_b->rows, .shared = p->l > 1 && mma_b->batches == 1},
        .mma_b_e2m1 = sm90_operand_of(p, !mma_a_is_b),
        .tiles = tiling->tiles,
        .tiles_mma_m = tiling->tiles_mma_m,
        .tiles_mma_n = tiling->tiles_mma_n,
        .split_k = c->split_k,
        .stages_per_split = split_stages / c->split_k,
        .splits_with_one_more = split_stages % c->split_k,
        .swap_ab = c->swap_ab,
        .partials_in_stages = tiling->partials_in_stages,
        .preload_stages = dequant || constant_mma_a ? SM90_PRELOAD_STAGES : 0,
        .inv_split_k = sm90_reciprocal(c->split_k),
    };
    if (config->streamk) build_streamk(config, tiling, c->split_k, behind, dequant, s);
    if (p->k == 0) return;
    const tensor_layout values = values_layout(p, mma_a_is_b, p->l, SM90_STAGE_K / 2, config->mma_tile_m, 0);
    add_tensor_map(out, &values, &s->mma_a.values);
    if (config->dequant_b && !SM90_DEQUANT_FROM_STAGES(config->dequant_b)) return;
    const tensor_layout mma_b_values = SM90_DEQUANT_FROM_STAGES(config->dequant_b)
                                           ? values_layout(p, !mma_a_is_b, p->l, SM90_STAGE_K / 2,
                                                           SM90_RAW_BOX_ROWS(config->mma_tile_n, mma_b->rows), 0)
                                           : sm90_fp16_layout(p, !mma_a_is_b, mma_b_fp16, mma_b, config->mma_tile_n);
    add_tensor_map(out, &mma_b_values, &s->mma_b.values);
}

const sm90_kind sm90_gemm_kind = {
    .product_kind = PRODUCT_GEMM,
    .candidates = candidates,
    .batch_invariant = batch_invariant,
    .with_quantizer = with_quantizer,
    .build = build,
};
