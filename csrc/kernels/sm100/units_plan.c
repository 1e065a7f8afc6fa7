/* The instantiations of kernels/units on a B200 or a Thor, and the constants of their model. None was measured there. */
#include "kernels/sm100/units_plan.h"

static const units_kernel of_gemm[] = {SM100_UNITS_CONFIGS(UNITS_ROW)};
static const units_kernels units = {of_gemm, sizeof of_gemm / sizeof *of_gemm};
static const grouped_units_kernel of_groups[] = {SM100_GROUPED_UNITS_CONFIGS(UNITS_ROW)};
static const grouped_units_kernels grouped_units = {of_groups, sizeof of_groups / sizeof *of_groups};

static units_data_sheet sheet_of(const sm100_model *m, const device_props *props) {
    return (units_data_sheet){.clock_ghz = m->clock_ghz,
                              .dram_tb_s = m->dram_tb_s,
                              .l2_b_clk = m->ingress_b_clk,
                              .sm_count = props->sm_count,
                              .l2_bytes = props->l2_bytes};
}

int32_t sm100_units_candidates(const sm100_model *m, const device_props *props, const gemm_traits *t,
                               gemm_candidate *out) {
    const units_data_sheet sheet = sheet_of(m, props);
    const units_model model = units_model_by_data_sheet(&sheet);
    return units_candidates(&model, &units, props, t, out);
}

int32_t sm100_grouped_units_candidates(const sm100_model *m, const device_props *props, const gemm_traits *t,
                                       gemm_candidate *out) {
    const units_data_sheet sheet = sheet_of(m, props);
    const grouped_units_model model = grouped_units_model_by_data_sheet(&sheet);
    return grouped_units_candidates(&model, &grouped_units, props, t, out);
}

int32_t sm100_grouped_units_with_activation(const sm100_model *m, const device_props *props, const grouped_problem *p,
                                            const gemm_candidate *of, gemm_candidate *out) {
    const units_data_sheet sheet = sheet_of(m, props);
    const grouped_units_model model = grouped_units_model_by_data_sheet(&sheet);
    return grouped_units_in_one_launch(&model, &grouped_units, props, p, of, out);
}
