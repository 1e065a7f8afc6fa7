/* Quantization by every ISA that this CPU runs against the portable rows, which test_cpu and the tests in Python
 * compare with the definition: equal bytes, also around what is written.
 *
 * test_quantize [SEED [SHAPES]]: with 100 or more every 16-bit pattern meets scales of every exponent. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/quantize.h"
#include "draw.h"

static int passed, failed;

static void check(int ok, const char *what, cpu_isa isa, int type, int64_t rows, int64_t k) {
    passed += ok;
    failed += !ok;
    if (!ok)
        printf("FAILED: %s, %s, type %d, %lld x %lld\n", what, cpu_isa_name(isa), type, (long long)rows, (long long)k);
}

enum { POISON = 0xA5, BATCHES = 2, GAP = 34, EDGE = 64 }; /* GAP: bytes between rows, which unalign them */

/* Buffers of one call: x and what quantize writes, or the other way round. */
typedef struct buffers {
    size_t x_bytes, data_bytes, scale_bytes;
    char *x, *residual, *data, *scale;
} buffers;

static char *filled(size_t bytes) {
    char *memory = malloc(bytes + 2 * EDGE);
    if (!memory) abort();
    return memset(memory, POISON, bytes + 2 * EDGE);
}

static buffers buffers_new(const quantize_problem *p) {
    buffers b = {(size_t)(p->l * p->x_batch),
                 (size_t)(p->l * p->data_batch),
                 (size_t)(p->l * p->scale_batch),
                 NULL,
                 NULL,
                 NULL,
                 NULL};
    b.x = filled(b.x_bytes), b.residual = filled(b.x_bytes);
    b.data = filled(b.data_bytes), b.scale = filled(b.scale_bytes);
    return b;
}
static void buffers_free(buffers b) {
    free(b.x), free(b.residual), free(b.data), free(b.scale);
}
static int buffers_equal(buffers a, buffers b) {
    return !memcmp(a.x, b.x, a.x_bytes + 2 * EDGE) && !memcmp(a.residual, b.residual, a.x_bytes + 2 * EDGE) &&
           !memcmp(a.data, b.data, a.data_bytes + 2 * EDGE) && !memcmp(a.scale, b.scale, a.scale_bytes + 2 * EDGE);
}
static void buffers_copy(buffers to, buffers from) {
    memcpy(to.x, from.x, from.x_bytes + 2 * EDGE), memcpy(to.residual, from.residual, from.x_bytes + 2 * EDGE);
    memcpy(to.data, from.data, from.data_bytes + 2 * EDGE), memcpy(to.scale, from.scale, from.scale_bytes + 2 * EDGE);
}

/* width: values of a row of x for each of k. */
static quantize_problem problem_of(int64_t rows, int64_t k, int64_t width, int layout, int type, float g) {
    quantize_problem p = {.rows = rows, .k = k, .l = BATCHES, .scale_layout = layout, .x_type = type};
    p.x_pitch = width * k * type_size(type) + GAP / type_size(type) * type_size(type), p.x_batch = rows * p.x_pitch;
    p.data_pitch = k / 2 + GAP, p.data_batch = rows * p.data_pitch;
    p.scale_pitch = layout == NVFP4_LINEAR ? k / 16 + 3 : (k / 16 + 3) / 4 * 512;
    p.scale_batch = layout == NVFP4_LINEAR ? rows * p.scale_pitch : (rows + 127) / 128 * p.scale_pitch;
    p.global_value = g;
    return p;
}

typedef enum operation {
    QUANTIZE,
    FOUR_OVER_SIX,
    DEQUANTIZE,
    SILU_MUL,
    GATED,
    RMS_NORM,
    RESIDUAL,
    OPERATIONS
} operation;
static const char *const names[] = {"quantize", "four_over_six", "dequantize", "silu_mul",
                                    "gated",    "rms_norm",      "residual"};

static void run(operation o, quantize_problem p, buffers b, const void *weight, int weight_type, int round_steps,
                cpu_isa isa, int threads) {
    p.x = b.x + EDGE, p.data = (uint8_t *)b.data + EDGE, p.scale = (uint8_t *)b.scale + EDGE;
    p.block_scale = o == FOUR_OVER_SIX ? NVFP4_FOUR_OVER_SIX : NVFP4_AMAX6;
    p.round_steps = round_steps;
    norm_problem n = {.q = p,
                      .residual = o == RESIDUAL ? b.residual + EDGE : NULL,
                      .residual_pitch = p.x_pitch,
                      .residual_batch = p.x_batch,
                      .weight = weight,
                      .weight_type = weight_type,
                      .eps = 1e-6f};
    const int32_t ends[] = {0, (int32_t)(p.rows / 3), INT32_MIN, INT32_MAX};
    grouped_quantize_problem gates = {.q = p,
                                      .x_rows = p.rows,
                                      .up = (const char *)p.x + p.k * type_size(p.x_type),
                                      .up_pitch = p.x_pitch,
                                      .up_batch = p.x_batch,
                                      .limit = INFINITY,
                                      .alpha = 1.702f,
                                      .activation = NVFP4_SILU,
                                      .groups = 1};
    if (o == GATED) { /* a batch's rows in groups, limited */
        gates.q.l = 1;
        gates.ends = ends, gates.groups = 4;
        gates.limit = 0.75f, gates.activation = (int32_t)(p.k / 16 % 2 && !round_steps ? NVFP4_SWIGLU : NVFP4_SILU);
    }
    if (o == DEQUANTIZE)
        cpu_dequantize(&p, isa, threads);
    else if (o == SILU_MUL || o == GATED)
        cpu_grouped_quantize(&gates, isa, threads);
    else if (o == RMS_NORM || o == RESIDUAL)
        cpu_rms_norm_quantize(&n, isa, threads);
    else
        cpu_quantize(&p, isa, threads);
}

/* All bytes that the portable rows and every other ISA write, with one thread and with several. */
static void compare(operation o, const quantize_problem *p, buffers inputs, const void *weight, int weight_type) {
    buffers expected = buffers_new(p), got = buffers_new(p);
    const int round_steps = (int)below(2);
    buffers_copy(expected, inputs);
    run(o, *p, expected, weight, weight_type, round_steps, CPU_PORTABLE, 1);
    for (int isa = CPU_PORTABLE; isa < CPU_ISA_COUNT; isa++) {
        if (!cpu_isa_usable((cpu_isa)isa)) continue;
        buffers_copy(got, inputs);
        run(o, *p, got, weight, weight_type, round_steps, (cpu_isa)isa, isa == CPU_PORTABLE ? 3 : 1 + (int)below(3));
        check(buffers_equal(got, expected), names[o], (cpu_isa)isa, p->x_type, p->rows, p->k);
    }
    buffers_free(expected), buffers_free(got);
}

/* Values of a block: of one size, of all sizes, random bits, ties of a scale, or zeros. */
static void draw_block(char *to, int type, float g) {
    float v[16];
    int kind = (int)below(8);
    float size = ldexpf(1.0f + (float)below(256) / 256.0f,
                        (int)below(type == NVFP4_FP16 ? 20 : 60) - (type == NVFP4_FP16 ? 12 : 30));
    float unit = e4m3_decode((uint8_t)(1 + below(126))) * g;
    static const float ties[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 6.0f};
    for (int i = 0; i < 16; i++) {
        float x = (float)below(1 << 24) * 0x1p-23f - 1.0f;
        uint32_t bits = (uint32_t)draw();
        v[i] = kind < 3    ? x * size
               : kind == 3 ? ldexpf(x, (int)below(30) - 15) * g
               : kind == 4 ? 0.0f
               : kind == 5 ? __uint_as_float(bits & (below(4) ? 0xBFFFFFFF : 0xFFFFFFFF))
                           : __uint_as_float(__float_as_uint(ties[below(8)] * unit) + (uint32_t)below(5) - 2) *
                                 (bits & 1 ? 1 : -1);
    }
    if (kind >= 6) v[below(16)] = 6.0f * unit;
    static const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-45f, 3e38f, -1e-3f};
    if (below(8) == 0) v[below(16)] = special[below(8)];
    store_floats(to, v, type, 16);
    if (kind == 5 && below(2)) /* NaN of any bits */
        for (int i = 0; i < 16 * type_size(type); i++) to[i] = (char)draw();
}

/* Which of two NaN an addition keeps is the compiler's choice. */
static void clear_second_nan(char *residual, const char *x, int type) {
    float v[16], old[16];
    load_floats(v, x, type, 16), load_floats(old, residual, type, 16);
    for (int i = 0; i < 16; i++)
        if (isnan(v[i]) && isnan(old[i])) memset(residual + i * type_size(type), 0, (size_t)type_size(type));
}

static const float global_scales[] = {0x1.3p-48f, 0x1.7p-48f, 0x1p-48f, 0x1.fp48f, 0x1.8p47f, 0x1p-49f,
                                      1e-45f,     1e-38f,     3e38f,    0.0f,      -0.0f,     -1.0f,
                                      INFINITY,   -INFINITY,  NAN,      77.0f,     0.37f,     1.0f};

static void test_operations(int64_t rows, int64_t k, int layout, int type, float g) {
    int weight_type = NVFP4_FP16 + (int)below(3);
    char *weight = filled((size_t)k * 4);
    for (int64_t i = 0; i < k; i += 16) draw_block(weight + i * type_size(weight_type), weight_type, 1.0f);
    for (int o = 0; o < OPERATIONS; o++) {
        quantize_problem p = problem_of(rows, k, o == SILU_MUL || o == GATED ? 2 : 1, layout, type, g);
        buffers inputs = buffers_new(&p);
        int64_t width = o == SILU_MUL || o == GATED ? 2 * k : k, value = type_size(type);
        for (int64_t r = 0; r < BATCHES * rows; r++)
            for (int64_t i = 0; i < width; i += 16) {
                int64_t at = EDGE + r * p.x_pitch + i * value;
                if (o == DEQUANTIZE) continue;
                draw_block(inputs.x + at, type, g), draw_block(inputs.residual + at, type, g);
                clear_second_nan(inputs.residual + at, inputs.x + at, type);
            }
        if (o == DEQUANTIZE) {
            for (size_t i = 0; i < inputs.data_bytes; i++) inputs.data[EDGE + i] = (char)draw();
            for (size_t i = 0; i < inputs.scale_bytes; i++) inputs.scale[EDGE + i] = (char)draw();
        }
        compare((operation)o, &p, inputs, weight, weight_type);
        buffers_free(inputs);
    }
    free(weight);
}

/* Every 16-bit value in a block whose largest one decides the scale; and every code with every scale back. */
static void test_patterns(int type, float g, uint16_t largest) {
    quantize_problem p = problem_of(64, 1024, 1, NVFP4_LINEAR, type, g);
    p.l = 1;
    buffers inputs = buffers_new(&p);
    for (int64_t i = 0; i < 65536; i++) {
        uint16_t code = i % 16 == 5 ? largest : (uint16_t)(i / 16 % 4096 * 16 + (i + i / 65536) % 16);
        memcpy(inputs.x + EDGE + i / 1024 * p.x_pitch + i % 1024 * 2, &code, 2);
    }
    compare(QUANTIZE, &p, inputs, NULL, NVFP4_FP32);
    for (int64_t r = 0; r < 64; r++)
        for (int64_t c = 0; c < 64; c++) {
            memset(inputs.data + EDGE + r * p.data_pitch + c * 8, 0, 8);
            for (int i = 0; i < 8; i++) inputs.data[EDGE + r * p.data_pitch + c * 8 + i] = (char)(i * 0x22 + 0x10);
            inputs.scale[EDGE + r * p.scale_pitch + c] = (char)(r * 4 + c);
        }
    compare(DEQUANTIZE, &p, inputs, NULL, NVFP4_FP32);
    buffers_free(inputs);
}

/* The divisor for which the low part of the reciprocal must be rounded towards zero: a quarter of it is a tie. */
static void test_hard_divisor(int exponent) {
    quantize_problem p = problem_of(3, 512, 1, NVFP4_LINEAR, NVFP4_FP32, ldexpf(0x1.fffffep0f, exponent));
    buffers inputs = buffers_new(&p);
    for (int64_t r = 0; r < BATCHES * p.rows; r++)
        for (int i = 0; i < 512; i++) {
            float x = i % 16 ? ldexpf(i % 2 ? 0.5f : -0.5f, exponent) : 6.0f * p.global_value;
            memcpy(inputs.x + EDGE + r * p.x_pitch + i * 4, &x, 4);
        }
    compare(QUANTIZE, &p, inputs, NULL, NVFP4_FP32);
    buffers_free(inputs);
}

static void test_swizzle(int64_t rows, int64_t columns) {
    int64_t pitch = columns + below(3), swizzled_batch = (rows + 127) / 128 * ((columns + 3) / 4) * 512;
    size_t linear_bytes = (size_t)(BATCHES * rows * pitch), swizzled_bytes = (size_t)(BATCHES * swizzled_batch);
    char *linear = filled(linear_bytes), *back = filled(linear_bytes);
    char *expected = filled(swizzled_bytes), *swizzled = filled(swizzled_bytes);
    memset(expected + EDGE, 0, swizzled_bytes);
    for (int64_t r = 0; r < BATCHES * rows; r++)
        for (int64_t c = 0; c < columns; c++) {
            char *to = expected + EDGE + r / rows * swizzled_batch;
            to[scale_offset(NVFP4_128X4, (columns + 3) / 4 * 512, r % rows, c)] = linear[EDGE + r * pitch + c] =
                (char)draw();
        }
    swizzle_problem p = {
        rows, columns, BATCHES, (uint8_t *)linear + EDGE, pitch, rows * pitch, (uint8_t *)swizzled + EDGE};
    cpu_swizzle(&p, 1 + (int)below(3));
    int right = !memcmp(swizzled, expected, swizzled_bytes + 2 * EDGE);
    p.linear = (uint8_t *)back + EDGE;
    cpu_unswizzle(&p, 1 + (int)below(3));
    right &= !memcmp(back, linear, linear_bytes + 2 * EDGE) && !memcmp(swizzled, expected, swizzled_bytes + 2 * EDGE);
    check(right, "swizzle", CPU_PORTABLE, 0, rows, columns);
    free(linear), free(back), free(expected), free(swizzled);
}

int main(int argc, char **argv) {
    state = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    int shapes = argc > 2 ? atoi(argv[2]) : 20, full = shapes >= 100;
    static const int64_t sizes[] = {1, 2, 3, 5, 31, 33, 100, 127, 128, 129, 200, 260};
    for (int i = 0; i < shapes * (full ? 10 : 3); i++) {
        int64_t k = 16 * (1 + below(below(4) ? 40 : 300));
        test_operations(i % 6 ? 1 + below(4) : sizes[below(12)], i % 6 ? k : 16 * (1 + below(20)), i % 2,
                        NVFP4_FP16 + i % 3, below(2) ? (float)(1 + below(1000)) / 3000.0f : global_scales[below(18)]);
    }
    for (int type = NVFP4_FP16; type <= NVFP4_BF16; type++)
        for (int i = 0; i < (full ? 400 : 4); i++)
            test_patterns(type, __uint_as_float((uint32_t)(127 + below(60) - 30) << 23 | (uint32_t)below(1 << 23)),
                          full ? (uint16_t)(i * 79) : (uint16_t)below(0x7F80));
    test_operations(3, 176, NVFP4_LINEAR, NVFP4_FP32, INFINITY); /* whose NaN have bits of their own */
    for (int exponent = -40; exponent <= 40; exponent += 20) test_hard_divisor(exponent);
    for (int i = 0; i < 4 * shapes; i++) test_swizzle(i % 2 ? sizes[below(12)] : 1 + below(700), 1 + below(90));
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
