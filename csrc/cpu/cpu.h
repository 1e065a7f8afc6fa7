/* The CPU backend, as plan.c and row_ops.c call it. Problems have been checked. */
#ifndef NVFP4_CPU_CPU_H
#define NVFP4_CPU_CPU_H

#include "common/grouped_problem.h"
#include "common/row_op_problems.h"
#include "nvfp4.h"

typedef enum cpu_isa {
    CPU_REFERENCE, /* the definition: the loop of reference.c */
    CPU_PORTABLE,
    CPU_AVX2,
    CPU_AVX512VNNI,
    CPU_AMX,
    CPU_ISA_COUNT,
} cpu_isa;

/* Reads NVFP4_CPU, in the process's first call. */
void cpu_isa_read_environment(void);
/* The fastest that this CPU runs; NVFP4_CPU=reference|portable|avx2|avx512vnni|amx in the environment forces one.
 * Fails when the variable names one that is unknown or that this CPU cannot run. */
nvfp4_status cpu_isa_detect(cpu_isa *isa);
/* 1 if NVFP4_CPU names it. */
int cpu_isa_is_forced(void);
/* 1 if this CPU runs it. */
int cpu_isa_usable(cpu_isa isa);
const char *cpu_isa_name(cpu_isa isa);

/* threads: 0 means all CPUs that the process may run on. */
nvfp4_status cpu_gemm(const gemm_problem *problem, cpu_isa isa, int threads, int batch_invariant);
nvfp4_status cpu_grouped_gemm(const grouped_problem *problem, cpu_isa isa, int threads, int batch_invariant);
void cpu_quantize(const quantize_problem *problem, cpu_isa isa, int threads);
void cpu_gptq_block(const gptq_problem *problem, cpu_isa isa, int threads);
void cpu_dequantize(const quantize_problem *problem, cpu_isa isa, int threads);
void cpu_amax_scale(const amax_problem *problem, cpu_isa isa, int threads);
void cpu_rms_norm_quantize(const norm_problem *problem, cpu_isa isa, int threads);
void cpu_grouped_quantize(const grouped_quantize_problem *problem, cpu_isa isa, int threads);
void cpu_swizzle(const swizzle_problem *problem, int threads);
void cpu_unswizzle(const swizzle_problem *problem, int threads);
void cpu_gated(const gated_problem *problem, cpu_isa isa, int threads);
void cpu_moe_route(const moe_route_problem *problem, int threads);
void cpu_moe_combine(const moe_combine_problem *problem, cpu_isa isa, int threads);

#endif
