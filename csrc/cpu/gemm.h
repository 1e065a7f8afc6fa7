/* Inside the CPU backend: the kernels that cpu_gemm chooses from. */
#ifndef NVFP4_CPU_GEMM_H
#define NVFP4_CPU_GEMM_H

#include "cpu.h"

nvfp4_status reference_gemm(const gemm_problem *problem, int threads);

#endif
