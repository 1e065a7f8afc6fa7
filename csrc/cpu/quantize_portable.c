/* Rows of quantization and back in C, by the definition in cpu/quantize.h. */
#include "cpu/gptq.h"

WITH_FMA static void quantize_row(const quantize_problem *p, row_at at) {
    for (int64_t column = 0; column < p->k / BLOCK; column++) {
        float block[BLOCK];
        load_floats(block, at.x + column * BLOCK * type_size(p->x_type), p->x_type, BLOCK);
        quantize_to(p, at, column, block);
    }
    pad_columns(p, at);
}

static void dequantize_row(const quantize_problem *p, row_at at) {
    float g = at.g, block[BLOCK];
    for (int64_t column = 0; column < p->k / BLOCK; column++) {
        float s = e4m3_decode(at.scale[scale_offset(p->scale_layout, p->scale_pitch, at.row, column)]);
        for (int i = 0; i < BLOCK; i++) block[i] = e2m1_decode(at.data[column * 8 + i / 2] >> i % 2 * 4 & 15) * s * g;
        store_floats(at.x + column * BLOCK * type_size(p->x_type), block, p->x_type, BLOCK);
    }
}

const quantize_kernel quantize_portable = {
    .quantize = quantize_row,
    .dequantize = dequantize_row,
    .gated = portable_gated_row,
    .rms_norm = portable_rms_norm_row,
    .amax = amax_bits,
    .gptq = portable_gptq,
};
