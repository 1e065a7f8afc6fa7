/* The CPU's planners of quantizers and changes of scale layout. */
#include "cpu/cpu.h"
#include "plan/conversion.h"

/* The planner of a function that takes the instructions to run with. */
#define PLANNER(name, problem)                                                                                         \
    static nvfp4_status run_##name(const conversion_problem *p, int32_t threads) {                                     \
        cpu_isa isa;                                                                                                   \
        nvfp4_status status = cpu_isa_detect(&isa);                                                                    \
        if (!status) cpu_##name(&p->problem, isa, threads);                                                            \
        return status;                                                                                                 \
    }                                                                                                                  \
    const conversion_planner cpu_##name##_planner = {.run_host = run_##name};
PLANNER(quantize, quantize)
PLANNER(dequantize, quantize)
PLANNER(silu_mul_quantize, quantize)
PLANNER(rms_norm_quantize, norm)
PLANNER(amax_scale, amax)

static nvfp4_status run_swizzle(const conversion_problem *p, int32_t threads) {
    cpu_swizzle(&p->swizzle, threads);
    return NVFP4_OK;
}
const conversion_planner cpu_swizzle_planner = {.run_host = run_swizzle};

static nvfp4_status run_unswizzle(const conversion_problem *p, int32_t threads) {
    cpu_unswizzle(&p->swizzle, threads);
    return NVFP4_OK;
}
const conversion_planner cpu_unswizzle_planner = {.run_host = run_unswizzle};
