/* Large products: one operand or both are expanded to fp16 once, in a workspace, and a dense kernel multiplies them.
 * The rules are those of sm90_prefill_configs.h. */
#include "sm90_prefill_plan.h"

#include "kernels.h"
#include "sm90_model.h"

typedef struct dense_config {
    kernel_id kernel;
    int32_t mma_a_e2m1, stages;
    const char *reason;
} dense_config;

#define MANY " so many products repay that"
static const dense_config configs[] = {
#define X(id, mma_a_e2m1, stages)                                                                                      \
    {KERNEL_##id, mma_a_e2m1, stages,                                                                                  \
     (mma_a_e2m1) ? "the operand with fewer rows is expanded to fp16 first, the other decoded in registers:" MANY      \
                  : "both operands are expanded to fp16 first:" MANY},
    SM90_PREFILL_CONFIGS(X)
#undef X
};

enum { CLUSTER_ROWS = 256, BOX_ROWS = 128 }; /* of either side, a cluster; of a tensor copy */

static int64_t ceil_div(int64_t a, int64_t b) {
    return a / b + (a % b > 0);
}

static const dense_config *config_of(int32_t kernel) {
    const dense_config *config = configs;
    while (config->kernel != (kernel_id)kernel) config++;
    return config;
}

typedef struct cut_up {
    sm90_side x, y;
    int64_t tiles_x, tiles_y, k_stages;
    int64_t clusters, whole, halved; /* clusters that run at once; see sm90_prefill_configs.h */
} cut_up;

/* 0: the kernel cannot do it. */
static int cut(const device_facts *facts, const gemm_problem *p, const dense_config *config, int swap_ab, cut_up *c) {
    *c = (cut_up){.clusters = facts->sm_count / 2};
    if (c->clusters == 0 || !sm90_expanded_side(p, !swap_ab, &c->y)) return 0;
    if (config->mma_a_e2m1)
        sm90_raw_side(p, swap_ab, &c->x);
    else if (!sm90_expanded_side(p, swap_ab, &c->x))
        return 0;
    if (config->mma_a_e2m1 && (p->scale_layout != SCALES_128X4 || p->k % 64 != 0 || !values_are_mapped(p))) return 0;
    c->tiles_x = ceil_div(c->x.operand.rows, SM90_PREFILL_MMA_TILE_M);
    c->tiles_y = ceil_div(c->y.operand.rows, SM90_PREFILL_MMA_TILE_N);
    c->k_stages = ceil_div(p->k, SM90_PREFILL_STAGE_K);
    const int64_t most = INT32_MAX - facts->sm_count;
    if (ceil_div(c->tiles_x, 2) * c->tiles_y > most || ceil_div(c->tiles_x, 2) * c->tiles_y * p->l > most) return 0;
    const int64_t pairs = ceil_div(c->tiles_x, 2) * c->tiles_y * p->l, rest = pairs % c->clusters;
    c->halved = 2 * rest <= c->clusters ? 2 * rest : 0;
    c->whole = pairs - c->halved / 2;
    return 1;
}

static double estimate(const gemm_problem *p, const cut_up *c) {
    const double tile = SM90_PREFILL_MMA_TILE_M * SM90_PREFILL_MMA_TILE_N;
    const double stage = SM90_PREFILL_MMA_TILE_M / 64 * (SM90_PREFILL_STAGE_K / 16) * (SM90_PREFILL_MMA_TILE_N / 2.0);
    const double rounds = (double)ceil_div(c->whole, c->clusters);
    const double stages = (double)c->k_stages * (rounds + (c->halved ? 0.5 : 0.0));
    const double stored = tile * (p->out_type == OUT_FP32 ? 4.0 : 2.0) / SM90_PREFILL_STORE_B_CLK;
    const double stores = (rounds + (c->halved ? 0.5 : 0.0)) * stored;
    const double exchange = c->halved ? sm90_exchange_us(tile / 2 * sizeof(float)) : 0.0;
    return SM90_PREFILL_FIXED_US + sm90_dequant_us((double)(c->x.expanded + c->y.expanded) / SM90_FP16_BYTES) +
           sm90_clocks_us(stages * stage * SM90_PREFILL_LOSS + stores) + exchange;
}

int32_t sm90_prefill_list(const device_facts *facts, const gemm_problem *p, plan_candidate *all) {
    int32_t count = 0;
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        for (int32_t swap_ab = 0; swap_ab < 2; swap_ab++) {
            cut_up c;
            if (kernels[configs[i].kernel].shared_bytes > facts->shared_per_block ||
                !cut(facts, p, &configs[i], swap_ab, &c))
                continue;
            all[count++] = (plan_candidate){{configs[i].kernel, swap_ab, 1, 0}, estimate(p, &c)};
        }
    return count;
}

static sm90_prefill_operand dense_operand(const sm90_side *s) {
    return (sm90_prefill_operand){.scale = s->operand.scale,
                                  .scale_pitch = s->operand.scale_pitch,
                                  .scale_batch = s->operand.scale_batch,
                                  .rows = s->operand.rows,
                                  .batches = (int32_t)s->batches};
}

void sm90_prefill_fill(const device_facts *facts, const gemm_problem *p, const plan_settings *settings,
                       nvfp4_plan *plan, sm90_dequant_run *expand, sm90_prefill_schedule *schedule) {
    const dense_config *config = config_of(settings->kernel);
    cut_up c;
    cut(facts, p, config, settings->swap_ab, &c);
    const int64_t busy = c.whole > c.halved ? c.whole : c.halved;
    *plan = (nvfp4_plan){
        .backend = NVFP4_BACKEND_SM90,
        .kernel = config->kernel,
        .name = kernels[config->kernel].name,
        .reason = config->reason,
        .tile_m = CLUSTER_ROWS,
        .tile_n = CLUSTER_ROWS,
        .tile_k = SM90_PREFILL_STAGE_K,
        .stages = config->stages,
        .swap_ab = settings->swap_ab,
        .split_k = 1,
        .grid = 2 * (busy < c.clusters ? busy : c.clusters),
        .workspace = sm90_plan_expansion(p, &c.y, &c.x, expand),
    };
    *schedule = (sm90_prefill_schedule){
        .mma_a = dense_operand(&c.x),
        .mma_b = dense_operand(&c.y),
        .tiles_mma_m = (int32_t)c.tiles_x,
        .tiles_mma_n = (int32_t)c.tiles_y,
        .dp_pairs = (int32_t)c.whole,
        .split_k_tiles = (int32_t)c.halved,
        .k_stages = (int32_t)c.k_stages,
        .swap_ab = settings->swap_ab,
    };
}

int sm90_prefill_tensors(const gemm_problem *p, const nvfp4_plan *plan, const sm90_dequant_run *expand,
                         sm90_prefill_schedule *s, plan_tensor tensors[PLAN_MOST_TENSORS]) {
    sm90_prefill_operand *x = &s->mma_a, *y = &s->mma_b;
    const int x_is_b = s->swap_ab;
    if (p->k == 0) return 0;
    const void *x_to = expand->schedule.second.to, *y_to = expand->schedule.first.to;
    tensors[0] = (plan_tensor){sm90_expanded_layout(p, !x_is_b, y_to, y->rows, y->batches, BOX_ROWS), &y->values};
    tensors[1].map = &x->values;
    tensors[1].layout = config_of(plan->kernel)->mma_a_e2m1
                            ? sm90_raw_layout(p, x_is_b, x->batches, SM90_PREFILL_STAGE_K / 2, BOX_ROWS)
                            : sm90_expanded_layout(p, x_is_b, x_to, x->rows, x->batches, BOX_ROWS);
    return 2;
}
