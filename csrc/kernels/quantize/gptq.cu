/* A block of GPTQ, bit for bit as cpu/gptq.c, which has its definition.
 *
 * A row has GPTQ_LANES lanes of a warp, a CTA QUANTIZE_THREADS / GPTQ_LANES rows. Lane i < 13 rounds the row's 16
 * columns under the i-th scale of the search, with the columns in its registers; the last lane does so under the scale
 * of amax / 6, which is the result where the search has none. u is in shared memory, where all lanes read one word at a
 * time. */
#include "kernels/quantize/block.cuh"

enum { SCALES = SEARCH_LAST - SEARCH_FIRST + 1, LAST_LANE = GPTQ_LANES - 1 };
static_assert(SCALES < GPTQ_LANES, "the last lane is not one of the search");

struct rounded {
    float sum, error[16];
    uint32_t codes[2];
};

/* The columns t of a row under a scale. */
__device__ __forceinline__ rounded round_columns(float (&t)[16], const float (&u)[16][16], const float (&inverse)[16],
                                                 uint32_t scale, float g) {
    const float unit = __fmul_rn(decode_e4m3(scale), g);
    const bool in_range = g >= MIN_SCALE && g <= MAX_SCALE, has_codes = scale - 1 < 0x7E;
    const reciprocal r = reciprocal_of(unit);
    rounded result = {};
#pragma unroll
    for (int j = 0; j < 16; j++) {
        const float magnitude = fabsf(t[j]), q = in_range ? quotient(magnitude, r) : __fdiv_rn(magnitude, unit);
        const bool coded = has_codes && !isnan(in_range ? t[j] : q);
        float value = coded ? nearest_e2m1(q) : 0.0f;
        /* The code as a function of the value is 2 v, v + 2 and v / 2 + 4 one after the other: always the least. */
        uint32_t code = (uint32_t)fminf(fminf(value + value, value + 2.0f), __fmaf_rn(value, 0.5f, 4.0f));
        if (coded) {
            code |= __float_as_uint(t[j]) >> 31 << 3;
            value = copysignf(value, t[j]);
        }
        result.codes[j / 8] |= code << j % 8 * 4;
        const float error = __fmul_rn(__fmaf_rn(-value, unit, t[j]), inverse[j]);
        result.error[j] = error;
        result.sum = __fmaf_rn(error, error, result.sum);
#pragma unroll
        for (int k = j + 1; k < 16; k++) t[k] = __fmaf_rn(-error, u[j][k], t[k]);
    }
    return result;
}

/* The lane with the least sum, the first of those that are equal; the last lane where no sum is finite. */
__device__ __forceinline__ uint32_t best_lane(float sum, uint32_t lane) {
    if (!(sum < INFINITY) || lane >= SCALES) sum = INFINITY, lane = LAST_LANE;
#pragma unroll
    for (int distance = GPTQ_LANES / 2; distance > 0; distance /= 2) {
        const float other = __shfl_xor_sync(~0u, sum, distance, GPTQ_LANES);
        const uint32_t other_lane = __shfl_xor_sync(~0u, lane, distance, GPTQ_LANES);
        if (other < sum || (other == sum && other_lane < lane)) sum = other, lane = other_lane;
    }
    return lane;
}

extern "C" __global__ void __launch_bounds__(QUANTIZE_THREADS)
    nvfp4_gptq_block(const __grid_constant__ gptq_problem p) {
    __shared__ float u[16][16], inverse[16];
    const uint32_t lane = threadIdx.x % GPTQ_LANES, across = threadIdx.x / GPTQ_LANES;
    u[across][lane] = *(const float *)((const char *)p.u + across * p.u_pitch + lane * 4);
    if (lane == across) inverse[lane] = __frcp_rn(u[lane][lane]);
    __syncthreads();
    const int64_t own = blockIdx.x * (int64_t)(QUANTIZE_THREADS / GPTQ_LANES) + across;
    const int64_t row = min(own, p.rows - 1); /* lanes without a row of their own take part in the shuffles */
    const float x = *(const float *)((const char *)p.x + row * p.x_pitch + lane * 4);
    const float g = p.global_scale ? p.global_scale[p.global_by == GLOBAL_BY_ROW ? row : 0] : p.global_value;
    float t[16];
    uint32_t bits = 0;
#pragma unroll
    for (int j = 0; j < 16; j++) {
        t[j] = __shfl_sync(~0u, x, j, GPTQ_LANES);
        bits = max(bits, __float_as_uint(fabsf(t[j]))); /* NaN is above infinity */
    }
    const float amax = __uint_as_float(bits);
    const uint32_t nearest = plain_scale(isnan(amax), amax, 6.0f, g);
    const uint32_t scale = lane < SCALES ? searched_scale(nearest, SEARCH_FIRST + (int)lane) : nearest;
    const rounded result = round_columns(t, u, inverse, scale, g);
    /* The shuffles are outside of any branch: the two rows of a warp may differ. Zeros and a NaN have no search. */
    const uint32_t best = best_lane(amax > 0.0f ? result.sum : INFINITY, lane);
    if (lane != best || own >= p.rows) return;
    *(uint2 *)(p.data + row * p.data_pitch) = make_uint2(result.codes[0], result.codes[1]);
    p.scale[row * p.scale_pitch] = (uint8_t)scale;
    float *error = (float *)((char *)p.error + row * p.error_pitch);
#pragma unroll
    for (int j = 0; j < 16; j++) error[j] = result.error[j];
}
