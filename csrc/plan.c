/* Which GPU family runs a product; which kernel runs it on the CPU, and why. Each GPU family has a file of its own
 * (sm80_plan.c, sm90_plan.c, sm100_plan.c). */
#include "plan.h"

int32_t plan_family(const device_facts *facts, int32_t asked) {
    int32_t best = facts->has_sm100 ? NVFP4_BACKEND_SM100 : facts->has_sm90 ? NVFP4_BACKEND_SM90 : NVFP4_BACKEND_SM80;
    if (asked == NVFP4_AUTO || asked == best) return best;
    return asked == NVFP4_BACKEND_SM80 ? asked : NVFP4_AUTO; /* sm80 runs everywhere, the others on their own GPU */
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
