/* The interface between binding.cpp (torch) and launch.cu (CUDA) of the competition's file. */
#ifndef NVFP4_CONTEST_LAUNCH_H
#define NVFP4_CONTEST_LAUNCH_H

#include <stdint.h>
#include <string>

/* binding.cpp has checked what TMA needs: K % 64 == 0, contiguous whole scale atoms, rows, batches and addresses
 * aligned to 16 bytes. */
struct contest_product {
    int64_t m, n, k, l;
    const void *a, *b, *sfa, *sfb;
    void *c;
    int64_t a_pitch, a_batch, b_pitch, b_batch, c_pitch, c_batch; /* bytes between rows, between batches */
    int device;                                                   /* CUDA device of the tensors; -1: host memory */
};

/* Launches the product. Returns "" or an error message. */
std::string contest_gemm(const contest_product &product);

#endif
