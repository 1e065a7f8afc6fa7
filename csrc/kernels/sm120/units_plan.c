/* The instantiations of kernels/units on an RTX 50 and its like, and the constants of their model: the device's own, by
 * the shares that the model of gemm.cu takes from publications. Nothing was measured there. */
#include "kernels/sm120/plan.h"

static const units_kernel of_gemm[] = {SM120_UNITS_CONFIGS(UNITS_ROW)};
static const units_kernels units = {of_gemm, sizeof of_gemm / sizeof *of_gemm};
static const grouped_units_kernel of_groups[] = {SM120_GROUPED_UNITS_CONFIGS(UNITS_ROW)};
static const grouped_units_kernels grouped_units = {of_groups, sizeof of_groups / sizeof *of_groups};

static units_data_sheet sheet_of(const device_props *props) {
    const sm120_model m = sm120_model_of(&sm120_published, props);
    return (units_data_sheet){.clock_ghz = m.clock_ghz,
                              .dram_tb_s = props->memory_gb_s ? m.dram_share * props->memory_gb_s * 1e-3 : INFINITY,
                              .l2_b_clk = m.l2_b_clk,
                              .sm_count = props->sm_count,
                              .l2_bytes = props->l2_bytes};
}

int32_t sm120_units_candidates(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    const units_data_sheet sheet = sheet_of(props);
    const units_model model = units_model_by_data_sheet(&sheet);
    return units_candidates(&model, &units, props, t, out);
}

int32_t sm120_grouped_units_candidates(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    const units_data_sheet sheet = sheet_of(props);
    const grouped_units_model model = grouped_units_model_by_data_sheet(&sheet);
    return grouped_units_candidates(&model, &grouped_units, props, t, out);
}

int32_t sm120_grouped_units_with_activation(const device_props *props, const grouped_problem *p,
                                            const gemm_candidate *of, gemm_candidate *out) {
    const units_data_sheet sheet = sheet_of(props);
    const grouped_units_model model = grouped_units_model_by_data_sheet(&sheet);
    return grouped_units_in_one_launch(&model, &grouped_units, props, p, of, out);
}
