/* Sums of experts' rows, bit for bit as cpu/moe_rows.h. A thread has ROWS_COLUMNS columns of a token, and adds the rows
 * of the token's choices in their order.
 *
 * A call for one token is bound by latency: places, then rows. So SUMMANDS choices are read at a time, and where whole
 * columns exist on 16 bytes (`whole`) their rows are loaded without a branch, which would put one load behind the
 * other: a choice that is skipped, or lies outside of y, loads row 0 in place of its own. */
#include <math.h>

#include "common/row_op_problems.h"
#include "kernels/common/dependent.cuh"
#include "kernels/moe/rows.cuh"

constexpr int SUMMANDS = 8;

/* Whole columns of a row in one or two loads. */
template <int BYTES> __device__ __forceinline__ void load_whole(raw_columns &raw, const char *from) {
    raw.put(0, *(const uint4 *)from);
    if (BYTES == 4) raw.put(4, ((const uint4 *)from)[1]);
}

/* BYTES: of an element of y where columns are whole; 0: any columns. */
template <int BYTES>
__device__ __forceinline__ void add_choices(const moe_combine_problem &p, const row_coord &at,
                                            float (&sum)[ROWS_COLUMNS]) {
    const int bytes = BYTES ? BYTES : type_bytes(p.y_type);
    const int32_t *places = (const int32_t *)((const char *)p.places + at.row * p.places_pitch);
    const char *weights = p.weights ? (const char *)p.weights + at.row * p.weights_pitch : nullptr;
    const char *y = (const char *)p.y + at.column * bytes;
#pragma unroll 1
    for (int64_t first = 0; first < p.per_token; first += SUMMANDS) {
        int32_t place[SUMMANDS];
        float weight[SUMMANDS];
        raw_columns raw[SUMMANDS];
#pragma unroll
        for (int i = 0; i < SUMMANDS; i++) {
            const int64_t j = min(first + i, p.per_token - 1);
            place[i] = places[j];
            weight[i] = weights ? load_float(weights, j, p.weights_type) : 1.0f;
        }
#pragma unroll
        for (int i = 0; i < SUMMANDS; i++) {
            const bool exists = place[i] >= 0 && place[i] < p.y_rows;
            if (BYTES)
                load_whole<BYTES>(raw[i], y + (exists ? place[i] : 0) * p.y_pitch);
            else if (exists)
                raw[i].load(y + place[i] * p.y_pitch, bytes, at.count);
        }
#pragma unroll
        for (int i = 0; i < SUMMANDS; i++) {
            float v[ROWS_COLUMNS];
            if (first + i >= p.per_token || place[i] < 0) continue;
            raw[i].values(v, p.y_type);
#pragma unroll
            for (int c = 0; c < ROWS_COLUMNS; c++)
                sum[c] = __fmaf_rn(weight[i], place[i] < p.y_rows ? v[c] : NAN, sum[c]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(ROWS_THREADS, 2)
    nvfp4_moe_combine(const __grid_constant__ moe_combine_problem p) {
    begin_dependent_grid();
    row_coord at(p.tokens, p.columns, p.tile_log2);
    if (at.count <= 0) return;
    const bool whole = at.count == ROWS_COLUMNS && p.y_rows > 0 && ((uintptr_t)p.y | p.y_pitch) % 16 == 0;
    float sum[ROWS_COLUMNS] = {};
    if (whole && p.y_type == NVFP4_FP32)
        add_choices<4>(p, at, sum);
    else if (whole)
        add_choices<2>(p, at, sum);
    else
        add_choices<0>(p, at, sum);
    char *out = (char *)p.out + at.row * p.out_pitch + at.column * type_bytes(p.out_type);
    store_columns(sum, out, p.out_type, at.count);
}
