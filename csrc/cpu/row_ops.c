/* The CPU's planners of the row ops. */
#include "cpu/cpu.h"
#include "plan/row_op.h"

/* The planner of a function that takes the instructions to run with. */
#define PLANNER(name)                                                                                                  \
    static nvfp4_status run_##name(const row_op_problem *problem, int32_t threads) {                                   \
        cpu_isa isa;                                                                                                   \
        nvfp4_status status = cpu_isa_detect(&isa);                                                                    \
        if (!status) cpu_##name(&problem->name, isa, threads);                                                         \
        return status;                                                                                                 \
    }                                                                                                                  \
    const row_op_planner cpu_##name##_planner = {.run_host = run_##name};
PLANNER(quantize)
PLANNER(gptq_block)
PLANNER(dequantize)
PLANNER(grouped_quantize)
PLANNER(rms_norm_quantize)
PLANNER(amax_scale)
PLANNER(gated)
PLANNER(moe_combine)

/* The same function, of a problem with importance. */
const row_op_planner cpu_weighted_quantize_planner = {.run_host = run_quantize};
/* The same function, of a problem with an activation. */
const row_op_planner cpu_silu_mul_quantize_planner = {.run_host = run_grouped_quantize};
const row_op_planner cpu_gated_quantize_planner = {.run_host = run_grouped_quantize};

/* The planner of a function that has no instructions to choose. */
#define PORTABLE_PLANNER(name)                                                                                         \
    static nvfp4_status run_##name(const row_op_problem *problem, int32_t threads) {                                   \
        cpu_##name(&problem->name, threads);                                                                           \
        return NVFP4_OK;                                                                                               \
    }                                                                                                                  \
    const row_op_planner cpu_##name##_planner = {.run_host = run_##name};
PORTABLE_PLANNER(swizzle)
PORTABLE_PLANNER(unswizzle)
PORTABLE_PLANNER(moe_route)
