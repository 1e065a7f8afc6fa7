/* What binding.cpp, which knows torch, asks of launch.cu, which knows CUDA. */
#ifndef NVFP4_CONTEST_LAUNCH_H
#define NVFP4_CONTEST_LAUNCH_H

#include <stdint.h>
#include <string>

/* Of which binding.cpp has checked that bulk copies take it: K a multiple of 64, whole atoms of scales one behind the
 * other, rows, batches and addresses on 16 bytes. */
struct contest_product {
    int64_t m, n, k, l;
    const void *a, *b, *sfa, *sfb;
    void *c;
    int64_t a_pitch, a_batch, b_pitch, b_batch, c_pitch, c_batch; /* bytes from row to row, from batch to batch */
    int device;                                                   /* where the tensors are; -1: in host memory */
};

/* Enqueues the product. Returns "", or why it has not. */
std::string contest_gemm(const contest_product &product);

#endif
