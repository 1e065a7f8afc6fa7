/* Pre-pass of sm90/grouped.cu: rows of fp16 or bf16 A in the order along K to which dequantizing B in registers leads
 * (sm90/gemm.cu). So a row is put into order once, and not for every tile that it meets. Rows have 128 * ceil(K/128)
 * values, zero past K.
 *
 * A thread has 8 of every 32 of 128 values. As pairs (common/w4a16.cuh) they are a word each of four 16-byte chunks, so
 * its four loads make four whole chunks, which are neighbours.
 *
 * It lets the grid after it start once all grids before it have completed. */
#include "kernels/common/cluster.cuh"
#include "kernels/common/w4a16.cuh"
#include "kernels/sm90/grouped_config.h"

template <int TYPE> __device__ __forceinline__ void store_chunks(uint4 *to, const uint4 (&natural)[4]) {
    uint32_t pairs[4][4];
#pragma unroll
    for (int t = 0; t < 4; t++) w4a16<TYPE>::activations(natural[t], pairs[t]);
#pragma unroll
    for (int q = 0; q < 4; q++) to[q] = make_uint4(pairs[0][q], pairs[1][q], pairs[2][q], pairs[3][q]);
}

extern "C" __global__ void __launch_bounds__(SM90_REORDER_THREADS)
    nvfp4_sm90_reorder(const __grid_constant__ sm90_reorder_schedule s) {
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    const int64_t index = ((int64_t)blockIdx.x * SM90_REORDER_THREADS + threadIdx.x) / 4, row = index / s.stages;
    if (row >= s.count) return;
    const int32_t k = (int32_t)(index % s.stages) * SM90_STAGE_K, eight = threadIdx.x % 4;
    const int64_t from = s.rows ? s.rows[row] : row;
    if (from < 0 || from >= s.a_rows) return; /* what is there is not multiplied */
    uint4 natural[4] = {};
#pragma unroll
    for (int t = 0; t < 4; t++)
        if (k + t * 32 + eight * 8 < s.k)
            natural[t] = *(const uint4 *)(s.a + from * s.a_pitch + (k + t * 32 + eight * 8) * 2);
    uint4 *to = (uint4 *)(s.to + (row * s.stages + k / SM90_STAGE_K) * (SM90_STAGE_K * 2)) + eight * 4;
    if (s.bf16)
        store_chunks<NVFP4_BF16>(to, natural);
    else
        store_chunks<NVFP4_FP16>(to, natural);
}
