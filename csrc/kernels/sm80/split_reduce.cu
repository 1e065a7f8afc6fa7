/* out = epilogue(sum over split_k partials of sm80/gemm.cu), added in the order of K, so equal calls give equal bits. A
 * thread computes 4 neighbours of one row. */
#include "kernels/common/dependent.cuh"
#include "kernels/common/epilogue.cuh"
#include "kernels/sm80/config.h"
#include "kernels/sm80/store_tile.cuh"

extern "C" __global__ void __launch_bounds__(SM80_REDUCE_THREADS)
    nvfp4_sm80_split_reduce(const __grid_constant__ gemm_problem p, const __grid_constant__ sm80_schedule s) {
    begin_dependent_grid();
    int64_t groups = (p.n + 3) / 4;
    int64_t index = (int64_t)blockIdx.x * SM80_REDUCE_THREADS + threadIdx.x;
    if (index >= p.l * p.m * groups) return;
    int64_t row = index / groups, n = index % groups * 4; /* row of all batches */
    int64_t l = row / p.m, m = row % p.m, plane = p.l * p.m * p.n;
    const float *partials = s.partials + row * p.n + n;

    four_column_epilogue epilogue(p, n);
    take_batch(epilogue, p, l);
    float sums[4] = {};
    if (p.n % 4 == 0) {
#pragma unroll 8
        for (int split = 0; split < s.split_k; split++) {
            float4 v = *(const float4 *)(partials + split * plane);
            sums[0] += v.x, sums[1] += v.y, sums[2] += v.z, sums[3] += v.w;
        }
    } else {
        for (int split = 0; split < s.split_k; split++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (i < epilogue.count) sums[i] += partials[split * plane + i];
    }
    epilogue.store(p, l, m, sums);
}
