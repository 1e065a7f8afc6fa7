/* Which CPU kernel to use: the fastest that the CPU runs, or the one that NVFP4_CPU names. */
#define _GNU_SOURCE
#include "common/error.h"
#include "cpu/cpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

static const char *const names[CPU_ISA_COUNT] = {
    [CPU_REFERENCE] = "reference",   [CPU_PORTABLE] = "portable", [CPU_AVX2] = "avx2",
    [CPU_AVX512VNNI] = "avx512vnni", [CPU_AMX] = "amx",
};

const char *cpu_isa_name(cpu_isa isa) {
    return names[isa];
}

#if defined(__x86_64__)
/* The kernel lends the tile registers to a process that asks; it says no where it cannot save them. */
static int tiles_permitted(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#endif

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
    case CPU_AMX:
        return cpu_isa_usable(CPU_AVX512VNNI) && __builtin_cpu_supports("amx-tile") &&
               __builtin_cpu_supports("amx-bf16") && tiles_permitted();
#endif
    default:
        return 0;
    }
}

static pthread_once_t read_once = PTHREAD_ONCE_INIT, choose_once = PTHREAD_ONCE_INIT;
static char forced[64];                /* NVFP4_CPU */
static cpu_isa chosen = CPU_ISA_COUNT; /* CPU_ISA_COUNT: forced names none */

static void read_variable(void) {
    const char *variable = getenv("NVFP4_CPU");
    if (variable) strncpy(forced, variable, sizeof forced - 1);
}

void cpu_isa_read_environment(void) {
    pthread_once(&read_once, read_variable);
}

static void choose(void) {
    cpu_isa_read_environment();
    for (int isa = CPU_ISA_COUNT - 1; isa >= 0 && chosen == CPU_ISA_COUNT; isa--)
        if (forced[0] ? strcmp(forced, names[isa]) == 0 : cpu_isa_usable((cpu_isa)isa)) chosen = (cpu_isa)isa;
}

int cpu_isa_is_forced(void) {
    cpu_isa_read_environment();
    return forced[0] != 0;
}

nvfp4_status cpu_isa_detect(cpu_isa *isa) {
    pthread_once(&choose_once, choose);
    if (chosen == CPU_ISA_COUNT)
        return fail(NVFP4_INVALID, "NVFP4_CPU: must be reference, portable, avx2, avx512vnni or amx, is \"%s\"",
                    forced);
    if (!cpu_isa_usable(chosen))
        return fail(NVFP4_UNSUPPORTED, "NVFP4_CPU: this CPU has not the instructions that \"%s\" needs", forced);
    *isa = chosen;
    return NVFP4_OK;
}
