/* Gated activations, bit for bit as cpu/moe_rows.h: common/gating.h defines them. A thread has
 * ROWS_COLUMNS columns of a row. */
#include "common/gating.h"
#include "common/row_op_problems.h"
#include "kernels/common/dependent.cuh"
#include "kernels/moe/rows.cuh"

template <int ACTIVATION> __device__ __forceinline__ void gated_rows(const gated_problem &p) {
    begin_dependent_grid();
    row_coord at(p.l * p.rows, p.columns, p.tile_log2);
    if (at.count <= 0) return;
    const int64_t batch = p.l > 1 ? at.row / p.rows : 0, row = at.row - batch * p.rows;
    const int bytes = type_bytes(p.type);
    raw_columns gate, up;
    gate.load((const char *)p.gate + batch * p.gate_batch + row * p.gate_pitch + at.column * bytes, bytes, at.count);
    if (p.up) up.load((const char *)p.up + batch * p.up_batch + row * p.up_pitch + at.column * bytes, bytes, at.count);
    float v[ROWS_COLUMNS], factor[ROWS_COLUMNS];
    gate.values(v, p.type);
    if (p.up) up.values(factor, p.type);
    const gating g = gating_of(p.limit, p.alpha, p.up != nullptr);
#pragma unroll
    for (int i = 0; i < ROWS_COLUMNS; i++) v[i] = gated(ACTIVATION, v[i], p.up ? factor[i] : 1.0f, g);
    char *out = (char *)p.out + batch * p.out_batch + row * p.out_pitch + at.column * type_bytes(p.out_type);
    store_columns(v, out, p.out_type, at.count);
}

#define GATED_KERNEL(NAME, ACTIVATION)                                                                                 \
    extern "C" __global__ void __launch_bounds__(ROWS_THREADS)                                                         \
        nvfp4_gated_##NAME(const __grid_constant__ gated_problem p) {                                                  \
        gated_rows<ACTIVATION>(p);                                                                                     \
    }
GATED_KERNEL(silu, NVFP4_SILU)
GATED_KERNEL(gelu_tanh, NVFP4_GELU_TANH)
GATED_KERNEL(relu2, NVFP4_RELU2)
GATED_KERNEL(swiglu, NVFP4_SWIGLU)
