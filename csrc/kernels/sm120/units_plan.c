/* The instantiations of kernels/units on an RTX 50 and its like, and the constants of their model: the device's own, by
 * the shares that the model of gemm.cu takes from publications. Nothing was measured there. */
#include "kernels/sm120/plan.h"

static const units_kernel of_gemm[] = {SM120_UNITS_CONFIGS(UNITS_ROW)};
static const grouped_units_kernel of_groups[] = {SM120_GROUPED_UNITS_CONFIGS(UNITS_ROW)};

units_target sm120_units(const device_props *props) {
    const sm120_model m = sm120_model_of(&sm120_published, props);
    return (units_target){
        .sheet = {.clock_ghz = m.clock_ghz,
                  .dram_tb_s = props->memory_gb_s ? m.dram_share * props->memory_gb_s * 1e-3 : INFINITY,
                  .l2_b_clk = m.l2_b_clk,
                  .sm_count = props->sm_count,
                  .l2_bytes = props->l2_bytes},
        .gemm = {of_gemm, sizeof of_gemm / sizeof *of_gemm},
        .grouped = {of_groups, sizeof of_groups / sizeof *of_groups}};
}
