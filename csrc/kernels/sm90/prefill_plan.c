/* The large-M (prefill) kernels: one operand or both are dequantized to fp16 once, in a workspace. The rules are those
 * of sm90/prefill_config.h. */
#include "kernels/sm90/plan.h"

typedef struct prefill_config {
    int32_t kernel;
    int32_t mma_a_e2m1, stages, divided;
    int32_t type; /* of the wgmma operands */
    int32_t shared_bytes;
    const char *reason;
} prefill_config;

#define MANY " so many products repay that"
static const prefill_config configs[] = {
#define X(id, mma_a_e2m1, stages, divided, bf16)                                                                       \
    {KERNEL_##id,                                                                                                      \
     mma_a_e2m1,                                                                                                       \
     stages,                                                                                                           \
     divided,                                                                                                          \
     (bf16) ? NVFP4_BF16 : NVFP4_FP16,                                                                                 \
     SM90_PREFILL_SHARED_BYTES(mma_a_e2m1, stages),                                                                    \
     (divided)      ? "one operand is dequantized to fp16 during the first wave, the other decoded in registers:" MANY \
     : (mma_a_e2m1) ? "the operand with fewer rows is dequantized to fp16 first, the other decoded in registers:" MANY \
                    : "both operands are dequantized to fp16 first:" MANY},
    SM90_PREFILL_CONFIGS(X)
#undef X
};

enum { CONFIGS = sizeof configs / sizeof *configs };
enum { CLUSTER_ROWS = 256, BOX_ROWS = 128 }; /* of either operand: of a cluster; of a TMA load */

typedef struct IS_TILING prefill_tiling {
    sm90_operand_size mma_a, mma_b;
    int32_t tiles_mma_m, tiles_mma_n, k_stages, dp_pairs, split_k_tiles; /* as in sm90_prefill_schedule */
    int32_t group_tiles;                                                 /* the same; 0: not divided */
} prefill_tiling;

/* Clusters that run at once: a pair of SMs has one. */
static int64_t clusters_of(const device_props *props) {
    return props->sm_count / 2;
}

/* Blocks of mma_b, along K and in all, and those that the pre-pass dequantizes. */
static int64_t chunks_of(const prefill_tiling *tiling) {
    return ceil_div(tiling->k_stages, SM90_DEQUANT_K / SM90_PREFILL_STAGE_K);
}
static int64_t blocks_of(const prefill_tiling *tiling) {
    return tiling->tiles_mma_n * chunks_of(tiling);
}
static int64_t ready_blocks(const prefill_tiling *tiling) {
    return (int64_t)tiling->group_tiles * SM90_PREFILL_READY_CHUNKS;
}
static int64_t flags_bytes(const prefill_tiling *tiling) {
    return tiling->group_tiles ? (blocks_of(tiling) + 2) * (int64_t)sizeof(uint32_t) : 0;
}

/* 0: an operand cannot be dequantized. */
static int takes_operands(const gemm_traits *t, const prefill_config *config, int swap_ab, prefill_tiling *tiling) {
    if (!sm90_fp16_operand(t, !swap_ab, CLUSTER_ROWS, &tiling->mma_b)) return 0;
    if (!config->mma_a_e2m1) return sm90_fp16_operand(t, swap_ab, CLUSTER_ROWS, &tiling->mma_a);
    tiling->mma_a = sm90_e2m1_operand(t, swap_ab);
    return 1;
}

/* Tiles the operands; 0: the kernel cannot do it. */
static int tile(const device_props *props, const gemm_traits *t, const prefill_config *config, prefill_tiling *tiling) {
    const int64_t clusters = clusters_of(props);
    if (clusters == 0) return 0;
    if (config->mma_a_e2m1 && (!sm90_reaches(t) || t->k % 64 != 0)) return 0;
    const int64_t tiles_m = ceil_div(tiling->mma_a.rows, SM90_PREFILL_MMA_TILE_M);
    const int64_t tiles_n = ceil_div(tiling->mma_b.rows, SM90_PREFILL_MMA_TILE_N);
    const int64_t most = INT32_MAX - props->sm_count;
    if (ceil_div(tiles_m, 2) * tiles_n > most || ceil_div(tiles_m, 2) * tiles_n * t->l > most) return 0;
    const int64_t pairs = ceil_div(tiles_m, 2) * tiles_n * t->l, rest = pairs % clusters;
    const int64_t split_k_tiles = 2 * rest <= clusters ? 2 * rest : 0;
    tiling->tiles_mma_m = (int32_t)tiles_m;
    tiling->tiles_mma_n = (int32_t)tiles_n;
    tiling->k_stages = (int32_t)ceil_div(t->k, SM90_PREFILL_STAGE_K);
    tiling->dp_pairs = (int32_t)(pairs - split_k_tiles / 2);
    tiling->split_k_tiles = (int32_t)split_k_tiles;
    return 1;
}

/* Tiles of mma_b that clusters need at the same time: those of the first wave, in the order of tile_scheduler::locate.
 * 0: the kernel cannot dequantize mma_b itself. Split-K tiles alone need both halves of K at once. */
static int32_t group_tiles(const device_props *props, const prefill_tiling *tiling) {
    const int64_t width = min_int(ceil_div(tiling->tiles_mma_m, 2), SM90_PREFILL_BAND);
    if (tiling->dp_pairs == 0 || tiling->mma_b.batches != 1 || chunks_of(tiling) <= SM90_PREFILL_READY_CHUNKS) return 0;
    /* The kernel counts pieces in 32 bits, with those that warps take in vain. */
    if (blocks_of(tiling) > INT32_MAX / SM90_PREFILL_BLOCK_PIECES) return 0;
    return (int32_t)min_int(tiling->tiles_mma_n, ceil_div(clusters_of(props), width));
}

static double single_us(const sm90_model *m, const device_props *props, const gemm_traits *t,
                        const prefill_tiling *tiling) {
    const double elements = SM90_PREFILL_MMA_TILE_M * SM90_PREFILL_MMA_TILE_N;
    const double stage = SM90_PREFILL_MMA_TILE_M / 64 * (SM90_PREFILL_STAGE_K / 16) * (SM90_PREFILL_MMA_TILE_N / 2.0);
    const double rounds = (double)ceil_div(tiling->dp_pairs, clusters_of(props));
    const double stages = (double)tiling->k_stages * (rounds + (tiling->split_k_tiles ? 0.5 : 0.0));
    const double stored = elements * t->output_bytes / m->prefill_store_b_clk;
    const double stores = (rounds + (tiling->split_k_tiles ? 0.5 : 0.0)) * stored;
    const double exchange = tiling->split_k_tiles ? sm90_exchange_time_us(m, 2, elements / 2 * sizeof(float)) : 0.0;
    /* The pre-pass of a 16-bit A reads more than that of NVFP4. */
    const double more = t->a_type == VALUES_E2M1 ? 1.0 : 2.0 * SM90_FP16_BYTES / (SM90_FP16_BYTES + SM90_RAW_BYTES);
    const double all = more * (double)(tiling->mma_a.dequant_bytes + tiling->mma_b.dequant_bytes) / SM90_FP16_BYTES;
    const double ready = more * (double)ready_blocks(tiling) * SM90_PREFILL_MMA_TILE_N * SM90_DEQUANT_K;
    const double loss = m->prefill_loss * (tiling->group_tiles ? m->prefill_divided_loss : 1.0);
    const double fixed = m->prefill_fixed_us + (tiling->group_tiles ? m->prefill_divided_us : 0.0);
    return fixed + sm90_dequant_time_us(m, tiling->group_tiles ? ready : all) +
           sm90_clocks_us(m, stages * stage * loss + stores) + exchange;
}

static int32_t list_one(const sm90_model *model, const device_props *props, const gemm_traits *t,
                        const prefill_config *config, int32_t swap_ab, gemm_candidate *out) {
    prefill_tiling tiling = {.group_tiles = 0};
    if (config->type != sm90_wgmma_type(t)) return 0;
    if (t->a_type != VALUES_E2M1 && !(config->mma_a_e2m1 && swap_ab)) return 0; /* 16-bit A is mma_b */
    if (config->shared_bytes > props->shared_per_block || !takes_operands(t, config, swap_ab, &tiling) ||
        !tile(props, t, config, &tiling))
        return 0;
    /* Few tiles of mma_a would wait for many of mma_b: 768 x 28672 x 4096 with B as mma_b takes 408 us on an H100, with
     * A 240. */
    if (config->divided && tiling.mma_b.rows > tiling.mma_a.rows) return 0;
    tiling.group_tiles = config->divided ? group_tiles(props, &tiling) : 0;
    if (config->divided && tiling.group_tiles == 0) return 0;
    *out = (gemm_candidate){
        .single_us =
            (config->type == NVFP4_BF16 ? model->prefill_bf16_loss : 1.0) * single_us(model, props, t, &tiling),
        .reason = config->reason,
        .grid = 2 * min_int(max_int(tiling.dp_pairs, tiling.split_k_tiles), clusters_of(props)),
        .workspace =
            sm90_workspace_bytes(tiling.mma_a.dequant_bytes + tiling.mma_b.dequant_bytes, flags_bytes(&tiling)),
        .kernel = config->kernel,
        .swap_ab = swap_ab,
        .split_k = 1,
        .tile_m = CLUSTER_ROWS,
        .tile_n = CLUSTER_ROWS,
        .tile_k = SM90_PREFILL_STAGE_K,
        .stages = config->stages,
    };
    *TILING(prefill_tiling, out) = tiling;
    return 1;
}

static int32_t candidates(const sm90_model *model, const device_props *props, const gemm_traits *t,
                          gemm_candidate *out) {
    int32_t count = 0;
    for (int32_t i = 0; i < CONFIGS; i++)
        for (int32_t swap_ab = 0; swap_ab < 2; swap_ab++)
            count += list_one(model, props, t, &configs[i], swap_ab, out + count);
    return count;
}

/* The pre-pass quantizes A if it dequantizes all of A. */
static int32_t with_quantizer(const device_props *props, const quantize_gemm_problem *p, const gemm_candidate *of,
                              gemm_candidate *out) {
    const prefill_tiling *tiling = TILING(const prefill_tiling, of);
    const int64_t bytes = of->swap_ab ? tiling->mma_b.dequant_bytes : tiling->mma_a.dequant_bytes;
    (void)props, (void)p;
    if (tiling->group_tiles || !bytes) return 0;
    *out = *of;
    out->reason = "A is quantized and dequantized to fp16 by one pre-pass:" MANY;
    return 1;
}

static sm90_prefill_operand prefill_operand(const gemm_problem *p, int is_b, const sm90_operand_size *size) {
    return (sm90_prefill_operand){.scale = is_b ? p->scale_b : p->scale_a,
                                  .scale_pitch = is_b ? p->scale_b_pitch : p->scale_a_pitch,
                                  .scale_batch = is_b ? p->scale_b_batch : p->scale_a_batch,
                                  .rows = size->rows,
                                  .batches = size->batches};
}

/* The kernel dequantizes what the pre-pass leaves of mma_b. */
static void build_flags(const prefill_tiling *tiling, uint8_t *behind, sm90_dequant_schedule *dequant,
                        sm90_prefill_schedule *s) {
    s->mma_b_e2m1 = dequant->first;
    s->mma_b_e2m1.rows = tiling->mma_b.rows;
    s->flags = (uint32_t *)behind;
    s->blocks = (uint32_t)blocks_of(tiling);
    s->chunks = (uint32_t)chunks_of(tiling);
    s->group_tiles = (uint32_t)tiling->group_tiles;
    dequant->zeroed = s->flags;
    dequant->flags = s->blocks + 2;
    dequant->ready = (uint32_t)ready_blocks(tiling);
}

static void build(const device_props *props, const product_problem *problem, const gemm_candidate *c, void *workspace,
                  launch_plan *out) {
    const gemm_problem *p = &problem->gemm;
    (void)props;
    const prefill_config *config = &configs[c->kernel - configs->kernel];
    const prefill_tiling *tiling = TILING(const prefill_tiling, c);
    const int mma_a_is_b = c->swap_ab;
    uint8_t *mma_b_fp16, *mma_a_fp16;
    const int64_t rows = tiling->group_tiles * (int64_t)SM90_PREFILL_MMA_TILE_N;
    sm90_dequant_schedule *dequant = sm90_add_dequant_part(
        p, !mma_a_is_b, &tiling->mma_b, tiling->group_tiles ? min_int(rows, tiling->mma_b.rows) : tiling->mma_b.rows,
        tiling->group_tiles ? SM90_PREFILL_READY_CHUNKS * SM90_DEQUANT_K : p->k, &tiling->mma_a, workspace, out,
        &mma_b_fp16, &mma_a_fp16);
    if (c->quantizes)
        sm90_quantize_operand(&problem->quantize_gemm.q, mma_a_is_b ? &dequant->first : &dequant->second, dequant, out);
    launch_step *step = add_step(out, c->kernel, c->grid, config->shared_bytes);
    step->cluster = 2;
    *(gemm_problem *)add_param(out, step, sizeof *p) = *p;
    sm90_prefill_schedule *s = add_param(out, step, sizeof *s);
    *s = (sm90_prefill_schedule){
        .mma_a = prefill_operand(p, mma_a_is_b, &tiling->mma_a),
        .mma_b = prefill_operand(p, !mma_a_is_b, &tiling->mma_b),
        .tiles_mma_m = tiling->tiles_mma_m,
        .tiles_mma_n = tiling->tiles_mma_n,
        .dp_pairs = tiling->dp_pairs,
        .split_k_tiles = tiling->split_k_tiles,
        .k_stages = tiling->k_stages,
        .swap_ab = c->swap_ab,
    };
    if (p->k == 0) return;
    if (tiling->group_tiles) build_flags(tiling, mma_a_fp16, dequant, s);
    const tensor_layout mma_b = sm90_fp16_layout(p, !mma_a_is_b, mma_b_fp16, &tiling->mma_b, BOX_ROWS);
    const tensor_layout mma_a =
        config->mma_a_e2m1 ? values_layout(p, mma_a_is_b, tiling->mma_a.batches, SM90_PREFILL_STAGE_K / 2, BOX_ROWS, 0)
                           : sm90_fp16_layout(p, mma_a_is_b, mma_a_fp16, &tiling->mma_a, BOX_ROWS);
    add_tensor_map(out, &mma_b, &s->mma_b.values);
    add_tensor_map(out, &mma_a, &s->mma_a.values);
}

const sm90_kind sm90_prefill_kind = {
    .product_kind = PRODUCT_GEMM, .candidates = candidates, .with_quantizer = with_quantizer, .build = build};
