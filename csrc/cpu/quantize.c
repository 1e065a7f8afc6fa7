/* Quantisation and back, row by row. cpu/quantize.h defines them. */
#include "cpu/quantize.h"

#include "cpu/cpu.h"

static void dequantize_block(float x[16], float g, const uint8_t data[8], uint8_t scale) {
    float s = e4m3_decode(scale);
    for (int i = 0; i < 16; i++) x[i] = e2m1_decode(data[i / 2] >> i % 2 * 4 & 15) * s * g;
}

WITH_FMA static void quantize_row(void *context, int64_t task, int thread) {
    (void)thread;
    const quantize_problem *p = context;
    quantized_row to = quantized_row_of(p, task);
    const char *x = (const char *)p->x + to.batch * p->x_batch + to.row * p->x_pitch;
    for (int64_t column = 0; column < to.columns; column++) {
        float block[16];
        load_floats(block, x + column * 16 * type_size(p->x_type), p->x_type, 16);
        quantize_to(p, &to, column, block);
    }
    pad_row(p, &to);
}

static void dequantize_row(void *context, int64_t task, int thread) {
    (void)thread;
    const quantize_problem *p = context;
    int64_t batch = task / p->rows, row = task % p->rows;
    const uint8_t *scale = p->scale + batch * p->scale_batch;
    char *x = (char *)p->x + batch * p->x_batch + row * p->x_pitch;
    const uint8_t *data = p->data + batch * p->data_batch + row * p->data_pitch;
    float g = problem_global_scale(p), block[16];
    for (int64_t column = 0; column < p->k / 16; column++) {
        uint8_t s = scale[scale_offset(p->scale_layout, p->scale_pitch, row, column)];
        dequantize_block(block, g, data + column * 8, s);
        store_floats(x + column * 16 * type_size(p->x_type), block, p->x_type, 16);
    }
}

nvfp4_status cpu_quantize(const quantize_problem *p, int threads) {
    parallel_for(worthwhile_threads(p, threads), p->l * padded_rows(p), quantize_row, (void *)p);
    return NVFP4_OK;
}

nvfp4_status cpu_dequantize(const quantize_problem *p, int threads) {
    parallel_for(worthwhile_threads(p, threads), p->l * p->rows, dequantize_row, (void *)p);
    return NVFP4_OK;
}
