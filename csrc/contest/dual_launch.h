/* The interface between dual_binding.cpp (torch) and dual_launch.cu (CUDA) of the competition's file. */
#ifndef NVFP4_CONTEST_DUAL_LAUNCH_H
#define NVFP4_CONTEST_DUAL_LAUNCH_H

#include <stdint.h>
#include <string>

/* dual_binding.cpp has checked what TMA needs, as for contest_product. Rows of B1 and B2 are as far apart. */
struct contest_dual_product {
    int64_t m, n, k;
    const void *a, *b[2], *sfa, *sfb[2];
    void *c;
    int64_t a_pitch, b_pitch, c_pitch; /* bytes between rows */
    int device;                        /* CUDA device of the tensors; -1: host memory */
};

/* Launches c = silu(a . b[0]^T) * (a . b[1]^T). Returns "" or an error message. */
std::string contest_dual(const contest_dual_product &product);

#endif
