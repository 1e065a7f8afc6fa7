/* The instantiations of kernels/units on a B200 or a Thor, and the constants of their model. None was measured there. */
#include "kernels/sm100/units_plan.h"

static const units_kernel of_gemm[] = {SM100_UNITS_CONFIGS(UNITS_ROW)};
static const grouped_units_kernel of_groups[] = {SM100_GROUPED_UNITS_CONFIGS(UNITS_ROW)};

units_target sm100_units(const sm100_model *m, const device_props *props) {
    return (units_target){.sheet = {.clock_ghz = m->clock_ghz,
                                    .dram_tb_s = m->dram_tb_s,
                                    .l2_b_clk = m->ingress_b_clk,
                                    .sm_count = props->sm_count,
                                    .l2_bytes = props->l2_bytes},
                          .gemm = {of_gemm, sizeof of_gemm / sizeof *of_gemm},
                          .grouped = {of_groups, sizeof of_groups / sizeof *of_groups}};
}
