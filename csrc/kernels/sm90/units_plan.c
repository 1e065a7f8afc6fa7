/* A few rows of A, and groups of a few rows, by the kernels of kernels/units: their instantiations for Hopper, and the
 * constants of the model. */
#include "kernels/sm90/plan.h"

static const units_kernel of_gemm[] = {SM90_UNITS_CONFIGS(UNITS_ROW)};
static const units_kernels units = {of_gemm, sizeof of_gemm / sizeof *of_gemm};
static const grouped_units_kernel of_groups[] = {SM90_GROUPED_UNITS_CONFIGS(UNITS_ROW)};
static const grouped_units_kernels grouped_units = {of_groups, sizeof of_groups / sizeof *of_groups};

static int32_t candidates(const sm90_model *m, const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    const units_model model = {.clock_ghz = m->clock_ghz,
                               .dram_tb_s = m->dram_tb_s,
                               .l2_bytes = m->l2_bytes,
                               .overlap = m->overlap,
                               .dirty = m->dirty,
                               .l2_b_clk = INFINITY,
                               .fixed_us = m->units_fixed_us,
                               .pair_clk = m->units_pair_clk,
                               .rows_clk = m->units_rows_clk,
                               .rows_us = m->units_rows_us,
                               .a16_loss = m->units_a16_loss,
                               .unhidden = m->units_unhidden,
                               .line_loss = m->units_line_loss,
                               .pass_loss = m->units_pass_loss};
    return units_candidates(&model, &units, props, t, out);
}

static grouped_units_model grouped_model_of(const sm90_model *m) {
    return (grouped_units_model){.clock_ghz = m->clock_ghz,
                                 .dram_tb_s = m->dram_tb_s,
                                 .fixed_us = m->group_units_fixed_us,
                                 .tile_clocks = m->group_units_tile_clocks,
                                 .step_clocks = m->group_units_step_clocks,
                                 .pair_clocks = m->group_units_pair_clocks,
                                 .pair16_clocks = m->group_units_pair16_clocks,
                                 .dram = m->group_units_dram,
                                 .tb_s = m->group_units_tb_s,
                                 .again = m->group_units_again,
                                 .hidden = m->group_units_hidden,
                                 .teams = {m->group_units_teams8, m->group_units_teams4, m->group_units_teams2, 1.0}};
}

static int32_t grouped_candidates(const sm90_model *m, const device_props *props, const gemm_traits *t,
                                  gemm_candidate *out) {
    const grouped_units_model model = grouped_model_of(m);
    return grouped_units_candidates(&model, &grouped_units, props, t, out);
}

static int32_t grouped_with_activation(const sm90_model *m, const device_props *props, const gemm_traits *t,
                                       const gemm_candidate *of, gemm_candidate *out) {
    const grouped_units_model model = grouped_model_of(m);
    return grouped_units_with_activation(&model, &grouped_units, props, t, of, out);
}

const sm90_kind sm90_units_kind = {.product_kind = PRODUCT_GEMM, .candidates = candidates, .build = units_build};
/* Teams of other sizes add in another order, so none serves every T: sm90/grouped.cu does. */
const sm90_kind sm90_grouped_units_kind = {.product_kind = PRODUCT_GROUPED,
                                           .candidates = grouped_candidates,
                                           .with_activation = grouped_with_activation,
                                           .build = grouped_units_build};
