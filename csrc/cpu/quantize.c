/* Quantisation and back. The exact fp32 operations, which the GPU repeats so that its bytes are the same; g is the
 * global scale, divisions are IEEE divisions and nothing is contracted:
 *
 *   block of 16 with a NaN:  scale = 0x7F, all codes 0
 *   else                     amax = max |x|
 *                            scale = e4m3((amax / 6) / g)      to nearest even; >= 448 gives 448, <= 0 gives 0
 *                            d = value(scale) * g
 *                            code = e2m1(x / d)                to nearest even; beyond 6 gives 6, NaN gives 0;
 *                                                              the sign of x / d is kept, that of a zero too
 *   scale = 0 or amax = 0    scale = 0, all codes 0
 *   four_over_six            also with scale = e4m3((amax / 4) / g); this one if its error is the smaller number
 *                            error = s16: s0 = 0, s(i+1) = fma(r, r, s(i)), r = fma(-value(code), d * p, x * p);
 *                            p = the power of two with p * amax in [1, 2), or as near as 2^-126 .. 2^126 come
 *   dequantised              (value(code) * value(scale)) * g  rounded once more to the type of x
 *
 * A NaN in g gives scale 0x7F and codes 0, but for blocks of zeros. */
#include "cpu/cpu.h"
#include "cpu/epilogue.h"
#include "cpu/operand.h"
#include "cpu/threads.h"

/* Codes under one of the block scales that a block may get. */
typedef struct candidate {
    uint8_t scale, data[8];
    float d;
} candidate;

static inline candidate encode(const float x[16], uint8_t scale, float g) {
    candidate c = {.scale = scale, .d = e4m3_decode(scale) * g};
    for (int i = 0; i < 16 && scale != 0 && scale != 0x7F; i++)
        c.data[i / 2] |= (uint8_t)(e2m1_encode(x[i] / c.d) << i % 2 * 4);
    return c;
}

static inline float squared_error(const float x[16], const candidate *c, float p) {
    float sum = 0.0f, d = c->d * p;
    for (int i = 0; i < 16; i++) {
        float r = fmaf(-e2m1_decode(c->data[i / 2] >> i % 2 * 4 & 15), d, x[i] * p);
        sum = fmaf(r, r, sum);
    }
    return sum;
}

static inline float normalizer(float amax) {
    uint32_t exponent = float_bits(amax) >> 23;
    return bits_float((254 - (exponent < 1 ? 1 : exponent > 253 ? 253 : exponent)) << 23);
}

static inline void quantize_block(const float x[16], float g, int four_over_six, uint8_t data[8], uint8_t *scale) {
    float amax = 0.0f;
    int nan = 0;
    for (int i = 0; i < 16; i++) {
        nan |= isnan(x[i]);
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    }
    candidate best = encode(x, nan ? 0x7F : amax == 0.0f ? 0 : e4m3_encode(amax / 6.0f / g), g);
    if (four_over_six && !nan) {
        candidate four = encode(x, amax == 0.0f ? 0 : e4m3_encode(amax / 4.0f / g), g);
        float p = normalizer(amax);
        if (squared_error(x, &four, p) < squared_error(x, &best, p)) best = four;
    }
    *scale = best.scale;
    memcpy(data, best.data, 8);
}

static void dequantize_block(float x[16], float g, const uint8_t data[8], uint8_t scale) {
    float s = e4m3_decode(scale);
    for (int i = 0; i < 16; i++) x[i] = e2m1_decode(data[i / 2] >> i % 2 * 4 & 15) * s * g;
}

static float global_scale(const quantize_problem *p) {
    return p->global_scale ? *p->global_scale : p->global_value;
}

/* Rows and scale columns with their padding. */
static int64_t padded_rows(const quantize_problem *p) {
    return p->scale_layout == SCALES_LINEAR ? p->rows : (p->rows + 127) / 128 * 128;
}
static int64_t padded_columns(const quantize_problem *p) {
    return p->scale_layout == SCALES_LINEAR ? p->k / 16 : (p->k / 16 + 3) / 4 * 4;
}

static void quantize_row(void *context, int64_t task, int thread) {
    (void)thread;
    const quantize_problem *p = context;
    int64_t batch = task / padded_rows(p), row = task % padded_rows(p), columns = row < p->rows ? p->k / 16 : 0;
    uint8_t *scale = p->scale + batch * p->scale_batch;
    const char *x = (const char *)p->x + batch * p->x_batch + row * p->x_pitch;
    uint8_t *data = p->data + batch * p->data_batch + row * p->data_pitch;
    float g = global_scale(p), block[16];
    for (int64_t column = 0; column < columns; column++) {
        load_floats(block, x + column * 16 * type_size(p->x_type), p->x_type, 16);
        quantize_block(block, g, p->block_scale == BLOCK_FOUR_OVER_SIX, data + column * 8,
                       scale + scale_offset(p->scale_layout, p->scale_pitch, row, column));
    }
    for (int64_t column = columns; column < padded_columns(p); column++)
        scale[scale_offset(p->scale_layout, p->scale_pitch, row, column)] = 0;
}

static void dequantize_row(void *context, int64_t task, int thread) {
    (void)thread;
    const quantize_problem *p = context;
    int64_t batch = task / p->rows, row = task % p->rows;
    const uint8_t *scale = p->scale + batch * p->scale_batch;
    char *x = (char *)p->x + batch * p->x_batch + row * p->x_pitch;
    const uint8_t *data = p->data + batch * p->data_batch + row * p->data_pitch;
    float g = global_scale(p), block[16];
    for (int64_t column = 0; column < p->k / 16; column++) {
        uint8_t s = scale[scale_offset(p->scale_layout, p->scale_pitch, row, column)];
        dequantize_block(block, g, data + column * 8, s);
        store_floats(x + column * 16 * type_size(p->x_type), block, p->x_type, 16);
    }
}

/* A thread should find some 100 us of work. */
static int worthwhile_threads(const quantize_problem *p, int threads) {
    int64_t worth = 1 + p->rows * p->k * p->l / 65536;
    if (threads <= 0) threads = threads_available();
    return threads < worth ? threads : (int)worth;
}

nvfp4_status cpu_quantize(const quantize_problem *p, int threads) {
    parallel_for(worthwhile_threads(p, threads), p->l * padded_rows(p), quantize_row, (void *)p);
    return NVFP4_OK;
}

nvfp4_status cpu_dequantize(const quantize_problem *p, int threads) {
    parallel_for(worthwhile_threads(p, threads), p->l * p->rows, dequantize_row, (void *)p);
    return NVFP4_OK;
}
