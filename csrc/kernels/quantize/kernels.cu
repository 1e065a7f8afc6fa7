/* Quantization, dequantization and changes of scale layout on the GPU, bit for bit as cpu/quantize.c. One thread a
 * scale (a block of 16 values); grids are linear and may overshoot.
 *
 *   quantize     a thread for every stored scale, the padding of the 128x4 layout included
 *   dequantize   a thread for every block
 *   swizzle      a thread for every byte of the 128x4 layout; unswizzle: for every scale */
#include <math.h>

#include "kernels/common/ceil_div.h"
#include "kernels/common/epilogue.cuh"
#include "kernels/quantize/kernels.h"

/* Batch, row and column of a scale; padding included. */
struct scale_coord {
    int64_t l, row, column;
};

/* The scale of byte `index` of the 128x4 layout. */
__device__ scale_coord coord_128x4(int64_t index, int64_t rows, int64_t columns) {
    int64_t blocks_k = CEIL_DIV(columns, 4), batch = CEIL_DIV(rows, 128) * blocks_k * 512;
    int64_t l = index / batch, block = index % batch / 512, byte = index % 512;
    return {l, block / blocks_k * 128 + byte % 16 / 4 * 32 + byte / 16, block % blocks_k * 4 + byte % 4};
}

__device__ scale_coord coord_linear(int64_t index, int64_t rows, int64_t columns) {
    return {index / columns / rows, index / columns % rows, index % columns};
}

/* Byte offset of a scale in its batch. */
__device__ int64_t scale_offset(int32_t layout, int64_t pitch, int64_t row, int64_t column) {
    if (layout == SCALES_LINEAR) return row * pitch + column;
    return row / 128 * pitch + column / 4 * 512 + row % 32 * 16 + row % 128 / 32 * 4 + column % 4;
}

__device__ float decode_e4m3(uint8_t code) {
    int magnitude = code & 0x7F;
    if (magnitude == 0x7F) return NAN;
    if (magnitude < 8) return (float)magnitude * 0x1p-9f;
    return __uint_as_float(((uint32_t)magnitude << 20) + ((127u - 7u) << 23));
}

/* To nearest even, saturating at 448. NaN stays NaN; values <= 0 give 0. */
__device__ uint8_t encode_e4m3(float value) {
    if (isnan(value)) return 0x7F;
    if (value <= 0.0f) return 0;
    if (value >= 448.0f) return 0x7E;
    /* The last bit of a float near 2^14 is worth 2^-9, the step of the subnormals. */
    if (value < 0x1p-6f) return (uint8_t)(__float_as_uint(__fadd_rn(value, 0x1p14f)) & 0xF);
    uint32_t bits = __float_as_uint(value);
    bits += 0x7FFFF + (bits >> 20 & 1);
    return (uint8_t)((bits >> 20) - ((127 - 7) << 3));
}

/* To nearest even, saturating at 6; NaN gives 0. */
__device__ uint32_t encode_e2m1(float value) {
    if (isnan(value)) return 0;
    float x = fabsf(value);
    uint32_t code = (x > 0.25f) + (x >= 0.75f) + (x > 1.25f) + (x >= 1.75f) + (x > 2.5f) + (x >= 3.5f) + (x > 5.0f);
    return code | __float_as_uint(value) >> 31 << 3;
}

/* Keeps the sign of zero. */
__device__ float decode_e2m1(uint32_t code) {
    int magnitude = code & 7;
    float value = 0.5f * (float)(magnitude < 2 ? magnitude : (2 + (magnitude & 1)) << (magnitude / 2 - 1));
    return code & 8 ? -value : value;
}

__device__ float global_scale(const quantize_problem &p) {
    return p.global_scale ? *p.global_scale : p.global_value;
}

extern "C" __global__ void __launch_bounds__(QUANTIZE_THREADS)
    nvfp4_quantize_blocks(const __grid_constant__ quantize_problem p) {
    int64_t index = (int64_t)blockIdx.x * QUANTIZE_THREADS + threadIdx.x, columns = p.k / 16;
    scale_coord at =
        p.scale_layout == SCALES_LINEAR ? coord_linear(index, p.rows, columns) : coord_128x4(index, p.rows, columns);
    if (at.l >= p.l) return;
    uint8_t *scale = p.scale + at.l * p.scale_batch + scale_offset(p.scale_layout, p.scale_pitch, at.row, at.column);
    if (at.row >= p.rows || at.column >= columns) {
        *scale = 0;
        return;
    }
    const char *x = (const char *)p.x + at.l * p.x_batch + at.row * p.x_pitch;
    float values[16], amax = 0.0f, g = global_scale(p);
    bool nan = false;
    for (int i = 0; i < 16; i++) {
        values[i] = load_float(x, at.column * 16 + i, p.x_type);
        nan |= isnan(values[i]);
        amax = fmaxf(amax, fabsf(values[i]));
    }
    uint8_t code = nan ? 0x7F : amax == 0.0f ? 0 : encode_e4m3(__fdiv_rn(__fdiv_rn(amax, 6.0f), g));
    *scale = code;
    float unit = __fmul_rn(decode_e4m3(code), g);
    bool empty = code == 0 || code == 0x7F;
    uint8_t *data = p.data + at.l * p.data_batch + at.row * p.data_pitch + at.column * 8;
    for (int i = 0; i < 8; i++)
        data[i] = empty ? 0
                        : (uint8_t)(encode_e2m1(__fdiv_rn(values[2 * i], unit)) |
                                    encode_e2m1(__fdiv_rn(values[2 * i + 1], unit)) << 4);
}

extern "C" __global__ void __launch_bounds__(QUANTIZE_THREADS)
    nvfp4_dequantize_blocks(const __grid_constant__ quantize_problem p) {
    scale_coord at = coord_linear((int64_t)blockIdx.x * QUANTIZE_THREADS + threadIdx.x, p.rows, p.k / 16);
    if (at.l >= p.l) return;
    float g = global_scale(p),
          scale = decode_e4m3(
              p.scale[at.l * p.scale_batch + scale_offset(p.scale_layout, p.scale_pitch, at.row, at.column)]);
    const uint8_t *data = p.data + at.l * p.data_batch + at.row * p.data_pitch + at.column * 8;
    char *x = (char *)p.x + at.l * p.x_batch + at.row * p.x_pitch;
    for (int i = 0; i < 16; i++) {
        float value = decode_e2m1(data[i / 2] >> i % 2 * 4 & 15);
        store_float(x, at.column * 16 + i, p.x_type, __fmul_rn(__fmul_rn(value, scale), g));
    }
}

extern "C" __global__ void __launch_bounds__(QUANTIZE_THREADS)
    nvfp4_swizzle_scales(const __grid_constant__ swizzle_problem p) {
    int64_t index = (int64_t)blockIdx.x * QUANTIZE_THREADS + threadIdx.x;
    scale_coord at = coord_128x4(index, p.rows, p.columns);
    if (at.l >= p.l) return;
    bool inside = at.row < p.rows && at.column < p.columns;
    p.swizzled[index] = inside ? p.linear[at.l * p.linear_batch + at.row * p.linear_pitch + at.column] : 0;
}

extern "C" __global__ void __launch_bounds__(QUANTIZE_THREADS)
    nvfp4_unswizzle_scales(const __grid_constant__ swizzle_problem p) {
    scale_coord at = coord_linear((int64_t)blockIdx.x * QUANTIZE_THREADS + threadIdx.x, p.rows, p.columns);
    if (at.l >= p.l) return;
    int64_t pitch = CEIL_DIV(p.columns, 4) * 512, batch = CEIL_DIV(p.rows, 128) * pitch;
    p.linear[at.l * p.linear_batch + at.row * p.linear_pitch + at.column] =
        p.swizzled[at.l * batch + scale_offset(SCALES_128X4, pitch, at.row, at.column)];
}
