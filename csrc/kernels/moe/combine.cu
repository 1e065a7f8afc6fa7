/* Sums of experts' rows, bit for bit as cpu/moe_rows.h. A thread has ROWS_COLUMNS columns of a token, and loads
 * SUMMANDS of its rows before it adds them, in the order of the token's choices. */
#include <math.h>

#include "common/conversion_problem.h"
#include "kernels/moe/rows.cuh"

constexpr int SUMMANDS = 4;

extern "C" __global__ void __launch_bounds__(ROWS_THREADS)
    nvfp4_moe_combine(const __grid_constant__ moe_combine_problem p) {
    row_coord at(p.tokens, p.columns, p.tile_log2);
    if (at.count <= 0) return;
    const int bytes = type_bytes(p.y_type);
    const int32_t *places = (const int32_t *)((const char *)p.places + at.row * p.places_pitch);
    const char *weights = p.weights ? (const char *)p.weights + at.row * p.weights_pitch : nullptr;
    const char *y = (const char *)p.y + at.column * bytes;
    float sum[ROWS_COLUMNS] = {};
#pragma unroll 1
    for (int64_t first = 0; first < p.per_token; first += SUMMANDS) {
        int32_t place[SUMMANDS];
        float weight[SUMMANDS];
        raw_columns raw[SUMMANDS];
#pragma unroll
        for (int i = 0; i < SUMMANDS; i++) {
            const int64_t j = first + i;
            place[i] = j < p.per_token ? places[j] : -1;
            weight[i] = weights && place[i] >= 0 ? load_float(weights, j, p.weights_type) : 1.0f;
        }
#pragma unroll
        for (int i = 0; i < SUMMANDS; i++)
            if (place[i] >= 0 && place[i] < p.y_rows) raw[i].load(y + place[i] * p.y_pitch, bytes, at.count);
#pragma unroll
        for (int i = 0; i < SUMMANDS; i++) {
            float v[ROWS_COLUMNS];
            if (place[i] < 0) continue;
            raw[i].values(v, p.y_type);
#pragma unroll
            for (int c = 0; c < ROWS_COLUMNS; c++)
                sum[c] = __fmaf_rn(weight[i], place[i] < p.y_rows ? v[c] : NAN, sum[c]);
        }
    }
    char *out = (char *)p.out + at.row * p.out_pitch + at.column * type_bytes(p.out_type);
    store_columns(sum, out, p.out_type, at.count);
}
