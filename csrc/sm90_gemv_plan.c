/* A few rows of A: which instantiation, and how its warps share the rows of B and K (the rule of sm90_gemv_configs.h).
 * One row of B and many of A are the same product, exchanged.
 *
 * The estimate: B streams at the rate of DRAM, or the warp with most to do takes longer. */
#include "sm90_gemv_plan.h"

#include "kernels.h"
#include "plan_operands.h"
#include "sm90_model.h"

typedef struct gemv_config {
    kernel_id kernel;
    int32_t rows, warps, stages;
} gemv_config;

static const gemv_config configs[] = {
#define X(id, rows, warps, stages) {KERNEL_##id, rows, warps, stages},
    SM90_GEMV_CONFIGS(X)
#undef X
};

static int64_t ceil_div(int64_t a, int64_t b) {
    return a / b + (a % b > 0);
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static const gemv_config *config_of(int32_t kernel) {
    const gemv_config *config = configs;
    while (config->kernel != (kernel_id)kernel) config++;
    return config;
}

/* The instantiation with the fewest rows that holds all of A; NULL for none. */
static const gemv_config *config_for(const gemm_problem *p) {
    const gemv_config *found = NULL;
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        if (p->m <= configs[i].rows && (!found || configs[i].rows < found->rows)) found = &configs[i];
    return found;
}

/* Steps that the busiest warp does, where K is cut so. */
static int64_t busiest_steps(const gemv_config *c, const sm90_gemv_schedule *s, int32_t log2_split_k) {
    return ceil_div(s->tiles_per_cta, c->warps >> log2_split_k) * ceil_div(s->steps, (int64_t)1 << log2_split_k);
}

static void cut(const device_facts *facts, const gemm_problem *p, const gemv_config *c, sm90_gemv_schedule *s) {
    const int64_t steps = SM90_GEMV_STEPS(p->k), units = SM90_GEMV_TILES(p->n);
    const int64_t room = SM90_GEMV_PARTIALS_LIMIT / SM90_GEMV_PARTIALS_BYTES(c->rows, 1, 1);
    const int64_t wanted = facts->sm_count > p->l ? facts->sm_count / p->l : 1;
    const int64_t fewest = ceil_div(units, room);
    const int64_t ctas = least(units, wanted) > fewest ? least(units, wanted) : fewest;
    const int64_t tiles_per_cta = ceil_div(units, ctas);
    *s = (sm90_gemv_schedule){.ctas = (int32_t)ctas,
                              .tiles_per_cta = (int32_t)tiles_per_cta,
                              .full_ctas = (int32_t)(units % ctas),
                              .steps = (int32_t)steps};
    for (int32_t log2_split_k = 0; 1 << log2_split_k <= c->warps && (log2_split_k == 0 || 1 << log2_split_k <= steps);
         log2_split_k++) {
        if (SM90_GEMV_PARTIALS_BYTES(c->rows, tiles_per_cta, 1 << log2_split_k) > SM90_GEMV_PARTIALS_LIMIT) break;
        if (busiest_steps(c, s, log2_split_k) < busiest_steps(c, s, s->log2_split_k)) s->log2_split_k = log2_split_k;
    }
}

int64_t sm90_gemv_shared_bytes(int32_t kernel, const sm90_gemv_schedule *s) {
    const gemv_config *c = config_of(kernel);
    const int64_t rows = c->rows, slots = least(c->stages, busiest_steps(c, s, s->log2_split_k));
    return SM90_GEMV_PARTIALS_BYTES(rows, s->tiles_per_cta, 1 << s->log2_split_k) + SM90_GEMV_A_BYTES(rows, s->steps) +
           SM90_GEMV_STAGES_BYTES(c->warps, slots);
}

gemm_problem sm90_gemv_exchanged(const gemm_problem *p) {
    gemm_problem exchanged = *p;
    exchanged.m = p->n, exchanged.n = p->m;
    exchanged.a = p->b, exchanged.b = p->a;
    exchanged.a_pitch = p->b_pitch, exchanged.b_pitch = p->a_pitch;
    exchanged.a_batch = p->b_batch, exchanged.b_batch = p->a_batch;
    exchanged.sfa = p->sfb, exchanged.sfb = p->sfa;
    exchanged.sfa_pitch = p->sfb_pitch, exchanged.sfb_pitch = p->sfa_pitch;
    exchanged.sfa_batch = p->sfb_batch, exchanged.sfb_batch = p->sfa_batch;
    exchanged.alpha_stride = 0; /* that of the only column is everyone's */
    return exchanged;
}

static int32_t list_one(const device_facts *facts, const gemm_problem *p, int32_t swap_ab, plan_candidate *all) {
    const gemv_config *c = config_for(p);
    if (!c) return 0;
    sm90_gemv_schedule s;
    cut(facts, p, c, &s);
    if (s.ctas * p->l > INT32_MAX || sm90_gemv_shared_bytes(c->kernel, &s) > facts->shared_per_block) return 0;
    const double bytes = (double)p->l * (double)p->n * (double)p->k * SM90_RAW_BYTES;
    const double values = (double)busiest_steps(c, &s, s.log2_split_k) * c->warps * SM90_GEMV_TILE_N * SM90_GEMV_STEP_K;
    const double rounds = (double)ceil_div(s.ctas * p->l, facts->sm_count);
    const double rows = 1.0 + SM90_GEMV_ROW_COST * (c->rows - 1);
    const double multiplied = sm90_clocks_us(rounds * values * rows / SM90_GEMV_PER_CLK);
    const double time = SM90_GEMV_FIXED_US + sm90_max(bytes / SM90_DRAM_TB_S * 1e-6, multiplied);
    all[0] = (plan_candidate){{c->kernel, swap_ab, 1, 0}, time};
    return 1;
}

int32_t sm90_gemv_list(const device_facts *facts, const gemm_problem *p, plan_candidate *all) {
    int32_t count = list_one(facts, p, 0, all);
    if (p->m > 1 && result_is_column(p)) {
        const gemm_problem exchanged = sm90_gemv_exchanged(p);
        count += list_one(facts, &exchanged, 1, all + count);
    }
    return count;
}

void sm90_gemv_fill(const device_facts *facts, const gemm_problem *p, int32_t kernel, int32_t swap_ab, nvfp4_plan *plan,
                    sm90_gemv_schedule *schedule) {
    const gemv_config *c = config_of(kernel);
    const gemm_problem seen = swap_ab ? sm90_gemv_exchanged(p) : *p;
    cut(facts, &seen, c, schedule);
    *plan = (nvfp4_plan){
        .backend = NVFP4_BACKEND_SM90,
        .kernel = kernel,
        .name = kernels[kernel].name,
        .reason = swap_ab ? "B has one row only: each row of A streams past it once, through integer dot products"
                          : "A has a few rows only: each row of B streams past them once, through integer dot products",
        .tile_m = swap_ab ? SM90_GEMV_TILE_N : c->rows,
        .tile_n = swap_ab ? c->rows : SM90_GEMV_TILE_N,
        .tile_k = SM90_GEMV_STEP_K,
        .stages = c->stages,
        .swap_ab = swap_ab,
        .split_k = 1,
        .grid = schedule->ctas * p->l,
    };
}
