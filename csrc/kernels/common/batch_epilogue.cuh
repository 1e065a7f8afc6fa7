/* Epilogue of what batches and groups have of their own (common/grouped_problem.h). */
#ifndef NVFP4_COMMON_BATCH_EPILOGUE_CUH
#define NVFP4_COMMON_BATCH_EPILOGUE_CUH

#include "common/grouped_problem.h"
#include "kernels/common/epilogue.cuh"

/* Takes alpha and bias of one batch, where they are by batch. */
__device__ __forceinline__ void take_batch(four_column_epilogue &columns, const gemm_problem &p, int64_t l) {
    if (!p.by_batch) return;
    for (int i = 0; i < 4; i++) {
        if (p.by_batch & ALPHA_BY_BATCH && i < columns.count)
            columns.alpha[i] = p.alpha[p.alpha_stride ? l * p.n + columns.n + i : l];
        if (p.by_batch & BIAS_BY_BATCH && i < columns.count)
            columns.bias[i] = load_float(p.bias, l * p.n + columns.n + i, p.bias_type);
    }
}

/* The same for one column. */
__device__ __forceinline__ void take_batch(one_column_epilogue &column, const gemm_problem &p, int64_t l) {
    if (p.by_batch & ALPHA_BY_BATCH) column.alpha = p.alpha[p.alpha_stride ? l * p.n + column.n : l];
    if (p.by_batch & BIAS_BY_BATCH) column.bias = load_float(p.bias, l * p.n + column.n, p.bias_type);
}

/* The results of four columns of a row of a group, before rounding, from their sums. */
__device__ __forceinline__ void scale_row(const four_column_epilogue &columns, const gemm_problem &g, float factor,
                                          float (&v)[4]) {
    for (int i = 0; i < 4; i++) {
        v[i] = __fmul_rn(columns.alpha[i], v[i]);
        if (g.bias) v[i] = __fadd_rn(v[i], columns.bias[i]);
        v[i] = __fmul_rn(v[i], factor);
    }
}

#endif
