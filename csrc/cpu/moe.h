/* The rows of the steps around experts by the instructions of a CPU. */
#ifndef NVFP4_CPU_MOE_H
#define NVFP4_CPU_MOE_H

#include "cpu/cpu.h"
#include "cpu/epilogue.h"

enum { CHUNK = 256 }; /* columns that are worked on at a time */

typedef struct moe_kernel {
    void (*gated)(const gated_problem *p, int64_t row);         /* rows of all batches are counted */
    void (*combine)(const moe_combine_problem *p, int64_t row); /* of a token */
} moe_kernel;

extern const moe_kernel moe_portable;
#if defined(__x86_64__)
extern const moe_kernel moe_avx2;
#endif

#endif
