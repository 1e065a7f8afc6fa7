/* Which GPU family runs a product; which kernel runs it on the CPU, and why. Each GPU family has a file of its own
 * (sm80_plan.c, sm100_plan.c). */
#include "plan.h"

int32_t plan_family(const device_facts *facts, int32_t asked) {
    if (asked == NVFP4_BACKEND_SM100 || asked == NVFP4_AUTO) {
        if (facts->has_sm100) return NVFP4_BACKEND_SM100;
        return asked == NVFP4_AUTO ? NVFP4_BACKEND_SM80 : NVFP4_AUTO;
    }
    return NVFP4_BACKEND_SM80;
}

void plan_cpu(cpu_isa isa, nvfp4_plan *plan) {
    static const char *const reasons[CPU_ISA_COUNT] = {
        [CPU_REFERENCE] = "NVFP4_CPU asks for the definition",
        [CPU_PORTABLE] =
            "the CPU has no vector instructions that a faster kernel needs, or NVFP4_CPU asks for this one",
        [CPU_AVX2] = "the CPU has AVX2 but not AVX-512 VNNI, or NVFP4_CPU asks for this one",
        [CPU_AVX512VNNI] = "the CPU has AVX-512 VNNI but not AMX, or NVFP4_CPU asks for this one",
        [CPU_AMX] = "the CPU has AMX tiles for bf16",
    };
    *plan = (nvfp4_plan){
        .backend = NVFP4_BACKEND_CPU, .kernel = isa, .name = cpu_isa_name(isa), .reason = reasons[isa], .split_k = 1};
}
