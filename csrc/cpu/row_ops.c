/* The CPU's planners of the row ops. */
#include "cpu/cpu.h"
#include "plan/row_op.h"

/* The planner of a function that takes the instructions to run with. */
#define PLANNER(name, problem)                                                                                         \
    static nvfp4_status run_##name(const row_op_problem *p, int32_t threads) {                                         \
        cpu_isa isa;                                                                                                   \
        nvfp4_status status = cpu_isa_detect(&isa);                                                                    \
        if (!status) cpu_##name(&p->problem, isa, threads);                                                            \
        return status;                                                                                                 \
    }                                                                                                                  \
    const row_op_planner cpu_##name##_planner = {.run_host = run_##name};
PLANNER(quantize, quantize)
PLANNER(gptq_block, gptq)
PLANNER(dequantize, quantize)
PLANNER(grouped_quantize, grouped)
PLANNER(rms_norm_quantize, norm)
PLANNER(amax_scale, amax)
PLANNER(gated, gated)
PLANNER(moe_combine, moe_combine)

/* The same function, of a problem with importance. */
const row_op_planner cpu_weighted_quantize_planner = {.run_host = run_quantize};
/* The same function, of a problem with an activation. */
const row_op_planner cpu_silu_mul_quantize_planner = {.run_host = run_grouped_quantize};
const row_op_planner cpu_gated_quantize_planner = {.run_host = run_grouped_quantize};

/* The planner of a function that has no instructions to choose. */
#define PORTABLE_PLANNER(name, problem)                                                                                \
    static nvfp4_status run_##name(const row_op_problem *p, int32_t threads) {                                         \
        cpu_##name(&p->problem, threads);                                                                              \
        return NVFP4_OK;                                                                                               \
    }                                                                                                                  \
    const row_op_planner cpu_##name##_planner = {.run_host = run_##name};
PORTABLE_PLANNER(swizzle, swizzle)
PORTABLE_PLANNER(unswizzle, swizzle)
PORTABLE_PLANNER(moe_route, moe_route)
