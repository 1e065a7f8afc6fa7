/* Products of groups of a few rows: which instantiation of units/grouped.cuh, how many warps share K, and how many
 * pairs of units a tile has.
 *
 * The plan depends on T, E, N, K alone, by the model of an even routing (plan.h). */
#include "common/group_blocks.h"
#include "kernels/units/plan.h"
#include "plan/even_routing.h"

enum { MAX_TEAM_LOG2 = 3 };
_Static_assert(1 << MAX_TEAM_LOG2 == GROUPED_UNITS_WARPS, "a team is a CTA's math warps or fewer");

static int32_t shared_bytes(const grouped_units_kernel *c) {
    return GROUPED_UNITS_SHARED_BYTES(c->a_units, c->stages, c->a_stages, c->pairs);
}

typedef struct IS_TILING units_tiling {
    int32_t team_log2, tile_pairs, tiles_n, pairs;
    int32_t tile_parts; /* that a tile has, of tile_pairs each */
    int32_t read_once;  /* 1: few groups have more than one tile along their rows */
    int32_t shared_bytes;
} units_tiling;

/* The tiles that a group with rows needs on average, by eighths of the distribution of its rows. */
typedef struct group_tiles {
    double narrow, wide; /* tiles along the rows, of at most 8 and of more rows */
} group_tiles;

static group_tiles tiles_of_group(double rows, int32_t tile_rows) {
    group_tiles sum = {0};
    for (int i = 0; i < EIGHTHS; i++) {
        const double here = rows_of_eighth(rows, i), whole = floor(here / tile_rows);
        const double rest = here - whole * tile_rows;
        *(tile_rows > 8 ? &sum.wide : &sum.narrow) += whole / EIGHTHS;
        if (rest > 0) *(rest > 8 ? &sum.wide : &sum.narrow) += 1.0 / EIGHTHS;
    }
    return sum;
}

/* Loads come at the rate of memory, or of so many TB/s at most. */
static double single_us(const grouped_units_model *m, const device_props *props, const gemm_traits *t,
                        const grouped_units_kernel *c, const units_tiling *tiling, double most_tb_s) {
    const double groups = t->groups, rows = (double)t->m, hit = groups_with_rows(rows, groups);
    const double parts = (double)(t->l / t->groups), pairs = tiling->tile_pairs * tiling->tile_parts;
    const double teams = (double)props->sm_count * (GROUPED_UNITS_WARPS >> tiling->team_log2);
    const double steps = (double)ceil_div(ceil_div(t->k, UNITS_STEP_K), 1 << tiling->team_log2);
    const group_tiles of_group = tiles_of_group(rows / hit, 8 * c->a_units);
    const double tiles = of_group.narrow + of_group.wide, across = tiling->tiles_n * parts / tiling->tile_parts;
    const double a_team = hit * tiles * across / teams;
    const double turns = turns_of(a_team);
    const double around = m->tile_clocks + steps * m->step_clocks;
    const double of_pairs =
        steps * pairs * (of_group.narrow * m->pair_clocks + of_group.wide * m->pair16_clocks) / tiles;
    const double bytes = hit * parts * (double)t->n * (double)t->k * UNITS_VALUE_BYTES;
    const double rate = m->dram * m->dram_tb_s;
    const double memory = (1.0 + m->again * (tiles - 1.0)) * bytes / (rate < most_tb_s ? rate : most_tb_s),
                 memory_us = memory * 1e-6, busy_us = turns * (around + of_pairs) * 1e-3 / m->clock_ghz;
    const double hidden = m->hidden * (memory_us < busy_us ? memory_us : busy_us);
    return m->fixed_us + m->teams[tiling->team_log2] * (max_double(memory_us, busy_us) + hidden);
}

/* Whether teams of so many warps have even shares of K: else most of them wait for some. */
static int divides_steps(int64_t steps, int32_t team_log2) {
    const int64_t warps = (int64_t)1 << team_log2;
    return warps <= steps && ceil_div(steps, warps) * warps <= steps + steps * 15 / 100;
}

/* The tiling of the shortest time, with tile_parts parts of B a tile and teams of 2^least to 2^most warps; 0: there are
 * too many tiles. */
static double choose_tiling(const grouped_units_model *model, const device_props *props, const gemm_traits *t,
                            const grouped_units_kernel *c, int32_t tile_parts, int32_t least, int32_t most,
                            units_tiling *chosen) {
    const int64_t pairs = UNITS_ALL(t->n) / 2, steps = ceil_div(t->k, UNITS_STEP_K);
    const int64_t tiles_m = max_group_tiles(t->m, t->groups, 8 * c->a_units);
    double best = 0;
    for (int32_t team_log2 = least; team_log2 <= most; team_log2++) {
        if (!divides_steps(steps, team_log2)) continue;
        /* With 8 teams, tiles of 6 and 8 pairs took 7 and 13 % longer than of 4 (2048x768, 16 and 64 tokens). */
        const int64_t room = min_int(c->pairs / c->a_units, team_log2 ? 8 : 4) / tile_parts;
        for (int32_t tile = 1; tile <= room && tile < 2 * pairs; tile += tile_parts == 2 ? 1 : 1 + (tile > 1)) {
            const int64_t tiles_n = ceil_div(pairs, tile), across = tiles_n * (t->l / t->groups) / tile_parts;
            const int64_t teams = GROUPED_UNITS_WARPS >> team_log2;
            /* A team's next tile must not overflow. */
            if (tiles_m > (INT32_MAX - props->sm_count * teams) / across) continue;
            const units_tiling tiling = {.team_log2 = team_log2,
                                         .tile_pairs = tile,
                                         .tiles_n = (int32_t)tiles_n,
                                         .pairs = (int32_t)pairs,
                                         .tile_parts = tile_parts,
                                         .read_once = t->m <= (int64_t)t->groups * 4 * c->a_units,
                                         .shared_bytes = shared_bytes(c)};
            const double time = single_us(model, props, t, c, &tiling, INFINITY);
            if (best && time >= best) continue;
            best = time;
            *chosen = tiling;
        }
    }
    return best;
}

/* A product takes this much longer because the loads under way do not reach the rate of memory. They hide the
 * differences between tilings, which are therefore chosen as if they did. */
static double added_us(const grouped_units_model *m, const device_props *props, const gemm_traits *t,
                       const grouped_units_kernel *c, const units_tiling *tiling) {
    return single_us(m, props, t, c, tiling, m->tb_s) - single_us(m, props, t, c, tiling, INFINITY);
}

/* A candidate describes a tiling. */
static gemm_candidate candidate_of(const device_props *props, const gemm_traits *t, const grouped_units_kernel *c,
                                   double time, const units_tiling *tiling) {
    const int64_t across = tiling->tiles_n * (t->l / t->groups) / tiling->tile_parts;
    gemm_candidate made = {
        .single_us = time,
        .reason = "few rows a group: each warp reads, dequantizes and multiplies by itself",
        .grid = min_int(max_group_tiles(t->m, t->groups, 8 * c->a_units) * across, props->sm_count),
        .kernel = c->kernel,
        .swap_ab = 1,
        .split_k = 1,
        .tile_m = 8 * c->a_units,
        .tile_n = 16 * tiling->tile_pairs,
        .tile_k = UNITS_STEP_K << tiling->team_log2,
        .stages = c->stages,
    };
    *TILING(units_tiling, &made) = *tiling;
    return made;
}

int32_t grouped_units_candidates(const grouped_units_model *model, const grouped_units_kernels *kernels,
                                 const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    if (!units_reach(t)) return 0;
    int32_t count = 0;
    double least = INFINITY, added = 0;
    for (int32_t i = 0; i < kernels->count; i++) {
        const grouped_units_kernel *c = &kernels->all[i];
        units_tiling tiling;
        if ((c->bf16 ? NVFP4_BF16 : NVFP4_FP16) != t->a_type || shared_bytes(c) > props->shared_per_block) continue;
        const double time = choose_tiling(model, props, t, c, 1, 0, MAX_TEAM_LOG2, &tiling);
        if (!time) continue;
        out[count++] = candidate_of(props, t, c, time, &tiling);
        if (time < least) least = time, added = added_us(model, props, t, c, &tiling);
    }
    for (int32_t i = 0; i < count; i++) out[i].single_us += added;
    return count;
}

int32_t grouped_units_with_activation(const grouped_units_model *model, const grouped_units_kernels *kernels,
                                      const device_props *props, const gemm_traits *t, const gemm_candidate *of,
                                      gemm_candidate *out) {
    const grouped_units_kernel *c = &kernels->all[of->kernel - kernels->all->kernel];
    const int32_t team_log2 = TILING(const units_tiling, of)->team_log2;
    units_tiling tiling;
    const double time = choose_tiling(model, props, t, c, (int32_t)(t->l / t->groups), team_log2, team_log2, &tiling);
    if (!time) return 0;
    *out = candidate_of(props, t, c, time + added_us(model, props, t, c, &tiling), &tiling);
    out->reason = "few rows a group: each warp reads, dequantizes and multiplies gate and up by itself";
    return 1;
}

/* The times are those of sm90/model.h, rounded; clocks and bytes are those of an SM of an H200. */
grouped_units_model grouped_units_model_by_data_sheet(const units_data_sheet *sheet) {
    return (grouped_units_model){.clock_ghz = sheet->clock_ghz,
                                 .dram_tb_s = sheet->dram_tb_s,
                                 .fixed_us = 9.0,
                                 .tile_clocks = 2030,
                                 .step_clocks = 436,
                                 .pair_clocks = 492,
                                 .pair16_clocks = 2500,
                                 .dram = 0.945,
                                 .tb_s = 11.9e-3 * sheet->sm_count * sheet->clock_ghz, /* bytes a clock and SM */
                                 .again = 0.9,
                                 .hidden = 0.26,
                                 .teams = {1.11, 0.975, 0.95, 1.0},
                                 .gated_us = 2.2};
}

int32_t grouped_units_in_one_launch(const grouped_units_model *model, const grouped_units_kernels *kernels,
                                    const device_props *props, const grouped_problem *p, const gemm_candidate *of,
                                    gemm_candidate *out) {
    gemm_traits t = traits_of(&p->g);
    gemm_candidate fused;
    t.groups = p->groups;
    if (!grouped_units_with_activation(model, kernels, props, &t, of, &fused)) return 0;
    const double bytes = (double)(t.m * t.n) * (p->parts + 1) * t.output_bytes;
    if (fused.single_us > of->single_us + model->gated_us + bytes / model->dram_tb_s * 1e-6) return 0;
    *out = fused;
    return 1;
}

int32_t units_target_grouped_candidates(const units_target *target, const device_props *props, const gemm_traits *t,
                                        gemm_candidate *out) {
    const grouped_units_model model = grouped_units_model_by_data_sheet(&target->sheet);
    return grouped_units_candidates(&model, &target->grouped, props, t, out);
}

int32_t units_target_in_one_launch(const units_target *target, const device_props *props, const grouped_problem *p,
                                   const gemm_candidate *of, gemm_candidate *out) {
    const grouped_units_model model = grouped_units_model_by_data_sheet(&target->sheet);
    return grouped_units_in_one_launch(&model, &target->grouped, props, p, of, out);
}

void grouped_units_build(const device_props *props, const product_problem *problem, const gemm_candidate *c,
                         void *workspace, launch_plan *out) {
    (void)props, (void)workspace;
    const grouped_problem *p = &problem->grouped;
    const gemm_problem *g = &p->g;
    const units_tiling *tiling = TILING(const units_tiling, c);
    launch_step *step = add_step(out, c->kernel, c->grid, tiling->shared_bytes);
    *(grouped_problem *)add_param(out, step, sizeof *p) = *p;
    grouped_units_schedule *s = add_param(out, step, sizeof *s);
    *s = (grouped_units_schedule){.a_cache_policy = L2_EVICT_NORMAL,
                                  .b_cache_policy = tiling->read_once ? L2_EVICT_FIRST : L2_EVICT_NORMAL,
                                  .team_log2 = tiling->team_log2,
                                  .steps = (int32_t)ceil_div(g->k, UNITS_STEP_K),
                                  .pairs = tiling->pairs,
                                  .full_pairs = UNITS_FULL((int32_t)g->n) / 2,
                                  .tile_pairs = tiling->tile_pairs,
                                  .tiles_n = tiling->tiles_n,
                                  .numbers = gating_of(p->limit, p->activation_alpha, p->parts == 2)};
    units_maps(g, out, &s->b_pairs, NULL, &s->b_tail, &s->b_scales);
}
