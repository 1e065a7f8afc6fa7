/* Which CPU kernel to use: the fastest that the CPU runs, or the one that NVFP4_CPU names. */
#include "../error.h"
#include "cpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[CPU_ISA_COUNT] = {
    [CPU_REFERENCE] = "reference",
    [CPU_PORTABLE] = "portable",
    [CPU_AVX2] = "avx2",
    [CPU_AVX512VNNI] = "avx512vnni",
};

const char *cpu_isa_name(cpu_isa isa) {
    return names[isa];
}

int cpu_isa_usable(cpu_isa isa) {
    switch (isa) {
    case CPU_REFERENCE:
    case CPU_PORTABLE:
        return 1;
#if defined(__x86_64__)
    case CPU_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    case CPU_AVX512VNNI:
        return cpu_isa_usable(CPU_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
#endif
    default:
        return 0;
    }
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char forced[64];                /* NVFP4_CPU */
static cpu_isa chosen = CPU_ISA_COUNT; /* CPU_ISA_COUNT: forced names none */

static void choose(void) {
    const char *variable = getenv("NVFP4_CPU");
    if (variable) strncpy(forced, variable, sizeof forced - 1);
    for (int isa = CPU_ISA_COUNT - 1; isa >= 0 && chosen == CPU_ISA_COUNT; isa--)
        if (forced[0] ? strcmp(forced, names[isa]) == 0 : cpu_isa_usable((cpu_isa)isa)) chosen = (cpu_isa)isa;
}

nvfp4_status cpu_isa_detect(cpu_isa *isa) {
    pthread_once(&once, choose);
    if (chosen == CPU_ISA_COUNT)
        return fail(NVFP4_INVALID, "NVFP4_CPU: must be reference, portable, avx2 or avx512vnni, is \"%s\"", forced);
    if (!cpu_isa_usable(chosen))
        return fail(NVFP4_UNSUPPORTED, "NVFP4_CPU: this CPU has not the instructions that \"%s\" needs", forced);
    *isa = chosen;
    return NVFP4_OK;
}
