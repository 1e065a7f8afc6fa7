/* out = epilogue(sum over the splits of K), for products that sm80_gemm.cu cut along K. Adds in the order of the
 * splits, so the same call gives the same bits. A thread finishes SM80_REDUCE_COLUMNS neighbours of one row. */
#include "device/epilogue.cuh"
#include "sm80_configs.h"

extern "C" __global__ void __launch_bounds__(SM80_REDUCE_THREADS)
    nvfp4_sm80_split_reduce(const __grid_constant__ gemm_problem p, const __grid_constant__ sm80_schedule s) {
    int64_t groups = (p.n + SM80_REDUCE_COLUMNS - 1) / SM80_REDUCE_COLUMNS;
    int64_t index = (int64_t)blockIdx.x * SM80_REDUCE_THREADS + threadIdx.x;
    if (index >= p.l * p.m * groups) return;
    int64_t row = index / groups, n = index % groups * SM80_REDUCE_COLUMNS; /* row counts those of all batches */
    int64_t l = row / p.m, m = row % p.m, plane = p.l * p.m * p.n;
    const float *partial = s.partial + row * p.n + n;

    float sums[SM80_REDUCE_COLUMNS] = {};
    if (p.n % SM80_REDUCE_COLUMNS == 0) {
#pragma unroll 4
        for (int split = 0; split < s.split_k; split++) {
            float4 v = *(const float4 *)(partial + split * plane);
            sums[0] += v.x, sums[1] += v.y, sums[2] += v.z, sums[3] += v.w;
        }
        store_out_pair(p, l, m, n, sums[0], sums[1]);
        store_out_pair(p, l, m, n + 2, sums[2], sums[3]);
    } else {
        for (int i = 0; i < SM80_REDUCE_COLUMNS && n + i < p.n; i++) {
            for (int split = 0; split < s.split_k; split++) sums[i] += partial[split * plane + i];
            store_out(p, l, m, n + i, sums[i]);
        }
    }
}
