/* The CPU backend against its definition.
 *
 * gcc -O3 -Icsrc tests/core/test_cpu.c csrc/cpu/(all).c csrc/common/error.c -Wl,--wrap=parallel_for -lpthread -lm
 * ./a.out [seed]
 *
 * Inputs end at a page that cannot be read; padding is NaN; outputs are poisoned and checked around the edges. Data
 * whose sums are integers below 2^24 must give the same bits in every kernel, with any number of threads; other data
 * must stay within the bound of an fp32 summation of K terms. */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cpu/threads.h"
#include "cpu_operands.h"

static int passed, failed;

static void check(int ok, const char *what) {
    passed += ok;
    failed += !ok;
    if (!ok) printf("FAILED: %s\n", what);
}

/* Every kernel against the definition on integer data, bit by bit, with a random epilogue. */
static void test_integers(int64_t l, int64_t m, int64_t n, int64_t k, int32_t a_type) {
    int layout = (int)below(2), one_batch = below(4) == 0;
    int64_t extra = below(2) * 16 * below(3);
    side a = a_type == VALUES_E2M1 ? side_new(l, m, k, layout, extra, one_batch, integer_scale)
                                   : side_of_16_bit(l, m, k, extra, one_batch, a_type, integer_code);
    side b = side_new(l, n, k, layout, below(2) * 16 * below(3), one_batch, integer_scale);
    gemm_problem p = problem_of(l, m, n, k, layout, a, b);
    p.out_type = NVFP4_FP16 + (int)below(3);
    p.bias_type = NVFP4_FP16 + (int)below(3);
    p.alpha_value = (float)below(2000) / 777.0f - 1.0f;
    guarded alpha = guarded_new(n * 4, 0), bias = guarded_new(n * type_size(p.bias_type), 0);
    for (int64_t i = 0; i < n; i++) {
        float value = (float)below(1000) / 77.0f - 5.0f;
        ((float *)alpha.data)[i] = value;
        store_floats(bias.data + i * type_size(p.bias_type), &value, p.bias_type, 1);
    }
    p.alpha = below(3) ? NULL : (float *)alpha.data;
    p.alpha_stride = below(2);
    p.bias = below(2) ? bias.data : NULL;
    output expected = output_new(&p), got = output_new(&p);
    gemm_problem q = p;
    q.out = expected.memory.data + MARGIN;
    guarded c = guarded_new(l * m * p.out_pitch, 0x42);
    if (below(2)) {
        p.beta = q.beta = 0.37f;
        p.c_pitch = q.c_pitch = p.out_pitch;
        p.c_batch = q.c_batch = p.out_batch;
        p.c = q.c = c.data;
    }
    run_into(q, &expected, CPU_REFERENCE, 1 + (int)below(3), NULL);
    for (int isa = CPU_REFERENCE; isa < CPU_ISA_COUNT; isa++) {
        if (!cpu_isa_usable((cpu_isa)isa)) continue;
        run_into(p, &got, (cpu_isa)isa, 1 + (int)below(3), NULL);
        int same = memcmp(expected.memory.data, got.memory.data, got.memory.bytes) == 0;
        char what[200];
        snprintf(what, sizeof what, "integers, %s: l %lld m %lld n %lld k %lld layout %d a %d out %d",
                 cpu_isa_name((cpu_isa)isa), (long long)l, (long long)m, (long long)n, (long long)k, layout, a_type,
                 p.out_type);
        check(same && margins_intact(&got), what);
    }
    if (p.c) { /* in place: c is out */
        memset(got.memory.data, POISON, got.memory.bytes);
        for (int64_t r = 0; r < l * m; r++) memset((char *)p.out + r * p.out_pitch, 0x42, (size_t)got.row_bytes);
        p.c = p.out;
        cpu_isa isa;
        if (cpu_isa_detect(&isa) != NVFP4_OK || cpu_gemm(&p, isa, 2, 0) != NVFP4_OK) abort();
        check(memcmp(expected.memory.data, got.memory.data, got.memory.bytes) == 0, "c is out");
    }
    guarded_free(alpha), guarded_free(bias), guarded_free(c);
    guarded_free(expected.memory), guarded_free(got.memory);
    side_free(a), side_free(b);
}

/* Many more threads than rows, and K so long that they are worth it: the same bits as with one. */
static void test_more_threads_than_rows(int64_t m, int64_t n, int64_t k, int32_t a_type) {
    side a = a_type == VALUES_E2M1 ? side_new(1, m, k, NVFP4_128X4, 0, 0, ordinary_scale)
                                   : side_of_16_bit(1, m, k, 0, 0, a_type, ordinary_code);
    side b = side_new(1, n, k, NVFP4_128X4, 0, 0, ordinary_scale);
    gemm_problem p = problem_of(1, m, n, k, NVFP4_128X4, a, b);
    output one = output_new(&p), more = output_new(&p);
    for (int isa = CPU_PORTABLE; isa < CPU_ISA_COUNT; isa++) {
        if (!cpu_isa_usable((cpu_isa)isa)) continue;
        gemm_problem q = p;
        q.out = one.memory.data + MARGIN;
        run_into(q, &one, (cpu_isa)isa, 1, NULL);
        run_into(p, &more, (cpu_isa)isa, 64, NULL);
        char what[200];
        snprintf(what, sizeof what, "64 threads, %s: m %lld n %lld k %lld", cpu_isa_name((cpu_isa)isa), (long long)m,
                 (long long)n, (long long)k);
        check(memcmp(one.memory.data, more.memory.data, one.memory.bytes) == 0, what);
    }
    guarded_free(one.memory), guarded_free(more.memory);
    side_free(a), side_free(b);
}

static double value_of(const side *s, int layout, int64_t batch, int64_t row, int64_t k) {
    static const double values[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    if (s->type != VALUES_E2M1) {
        uint16_t code;
        memcpy(&code, s->data.data + batch * s->batch + row * s->pitch + k * 2, 2);
        return s->type == NVFP4_FP16 ? fp16_decode(code) : bf16_decode(code);
    }
    uint8_t pair = (uint8_t)s->data.data[batch * s->batch + row * s->pitch + k / 2];
    int code = pair >> k % 2 * 4 & 15;
    uint8_t scale = (uint8_t)s->scale.data[batch * s->scale_batch + scale_offset(layout, s->scale_pitch, row, k / 16)];
    int exponent = scale >> 3 & 15, mantissa = scale & 7;
    double scale_value = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return (code & 8 ? -1 : 1) * values[code & 7] * scale_value;
}

/* Any data: within K roundings of the sum of magnitudes; the same bits with 1, 2 and 3 threads; NaN where a scale or a
 * 16-bit element is. */
static void test_random(int64_t l, int64_t m, int64_t n, int64_t k, draw_scale *scales, int with_nan, int32_t a_type) {
    int layout = (int)below(2);
    side a = a_type == VALUES_E2M1
                 ? side_new(l, m, k, layout, 0, 0, scales)
                 : side_of_16_bit(l, m, k, 0, 0, a_type, scales == any_scale ? any_code : ordinary_code);
    side b = side_new(l, n, k, layout, 32, 0, scales);
    gemm_problem p = problem_of(l, m, n, k, layout, a, b);
    int64_t nan_m = below(m), nan_n = below(n), nan_batch = below(l);
    if (with_nan) {
        int64_t column_a = below(k / 16), column_b = below(k / 16);
        char *row = a.data.data + nan_batch * a.batch + nan_m * a.pitch;
        b.scale.data[nan_batch * b.scale_batch + scale_offset(layout, b.scale_pitch, nan_n, column_b)] = (char)0xFF;
        if (a_type == VALUES_E2M1) {
            a.scale.data[nan_batch * a.scale_batch + scale_offset(layout, a.scale_pitch, nan_m, column_a)] = 0x7F;
            memset(row + column_a * 8, 0, 8); /* zeros: NaN all the same */
        } else {
            uint16_t code = code_of(NAN, a_type);
            memcpy(row + column_a * 32 + below(16) * 2, &code, 2);
        }
    }
    output one = output_new(&p), more = output_new(&p);
    for (int isa = CPU_REFERENCE; isa < CPU_ISA_COUNT; isa++) {
        if (!cpu_isa_usable((cpu_isa)isa)) continue;
        gemm_problem q = p;
        q.out = one.memory.data + MARGIN;
        run_into(q, &one, (cpu_isa)isa, 1, NULL);
        int within = 1, same = 1;
        /* The header of amx.c says what it loses; elsewhere sums of products, multiples of 2^-143, do not underflow. */
        double underflow = isa == CPU_AMX && a_type == NVFP4_BF16 ? ldexp((double)k, -114) : 0.0;
        for (int64_t batch = 0; batch < l; batch++)
            for (int64_t i = 0; i < m; i++)
                for (int64_t j = 0; j < n; j++) {
                    float got = *(float *)((char *)q.out + batch * q.out_batch + i * q.out_pitch + j * 4);
                    if (with_nan && batch == nan_batch && (i == nan_m || j == nan_n)) {
                        within &= isnan(got) != 0;
                        continue;
                    }
                    double sum = 0, magnitude = 0;
                    for (int64_t x = 0; x < k; x++) {
                        double term = value_of(&a, layout, batch, i, x) * value_of(&b, layout, batch, j, x);
                        sum += term;
                        magnitude += fabs(term);
                    }
                    within &= fabs(got - sum) <= ldexp((double)k, -24) * magnitude + underflow;
                }
        for (int threads = 1; threads <= 3; threads++) {
            run_into(p, &more, (cpu_isa)isa, threads, NULL);
            same &= memcmp(one.memory.data, more.memory.data, one.memory.bytes) == 0;
        }
        char what[200];
        snprintf(what, sizeof what,
                 "random, %s: l %lld m %lld n %lld k %lld layout %d a %d nan %d: within %d, same bits %d",
                 cpu_isa_name((cpu_isa)isa), (long long)l, (long long)m, (long long)n, (long long)k, layout, a_type,
                 with_nan, within, same);
        check(within && same, what);
    }
    guarded_free(one.memory), guarded_free(more.memory);
    side_free(a), side_free(b);
}

/* NaN and infinities in a 16-bit a: in each element of the result what the definition has. */
static void test_specials(int64_t m, int64_t n, int64_t k, int32_t a_type) {
    int layout = (int)below(2);
    side a = side_of_16_bit(1, m, k, 16, 0, a_type, integer_code), b = side_new(1, n, k, layout, 0, 0, integer_scale);
    for (int64_t r = 0; r < m; r++)
        for (int64_t i = below(4); i > 0; i--) {
            static const float values[] = {INFINITY, INFINITY, -INFINITY, NAN};
            uint16_t code = code_of(values[below(4)], a_type);
            memcpy(a.data.data + r * a.pitch + (below(2) ? k - 1 : below(k)) * 2, &code, 2);
        }
    for (int64_t r = 0; r < n; r++)
        if (below(2)) /* no zeros, which make infinities NaN */
            for (int64_t i = 0; i < k / 2; i++) b.data.data[r * b.pitch + i] |= 0x11;
    gemm_problem p = problem_of(1, m, n, k, layout, a, b), q = p;
    output expected = output_new(&q), got = output_new(&p);
    run_into(q, &expected, CPU_REFERENCE, 1, NULL);
    for (int isa = CPU_PORTABLE; isa < CPU_ISA_COUNT; isa++) {
        if (!cpu_isa_usable((cpu_isa)isa)) continue;
        run_into(p, &got, (cpu_isa)isa, 2, NULL);
        int same = 1;
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) {
                float x = *(float *)((char *)q.out + i * q.out_pitch + j * 4);
                float y = *(float *)((char *)p.out + i * p.out_pitch + j * 4);
                same &= x == y || (isnan(x) && isnan(y));
            }
        char what[200];
        snprintf(what, sizeof what, "NaN and infinities, %s: m %lld n %lld k %lld a %d", cpu_isa_name((cpu_isa)isa),
                 (long long)m, (long long)n, (long long)k, a_type);
        check(same, what);
    }
    guarded_free(expected.memory), guarded_free(got.memory);
    side_free(a), side_free(b);
}

/* batch_invariant: the bits of a row depend neither on M nor on its place, whichever operand is the longer one. */
static void test_batch_invariance(int64_t m, int64_t n, int64_t k, int32_t a_type) {
    side a = side_of_16_bit(1, m, k, 0, 0, a_type, ordinary_code);
    side b = side_new(1, n, k, NVFP4_LINEAR, 0, 0, ordinary_scale);
    gemm_problem p = problem_of(1, m, n, k, NVFP4_LINEAR, a, b), q = p;
    output whole = output_new(&p), part = output_new(&q);
    for (int isa = CPU_PORTABLE; isa < CPU_ISA_COUNT; isa++) {
        if (!cpu_isa_usable((cpu_isa)isa)) continue;
        if (cpu_gemm(&p, (cpu_isa)isa, 2, 1) != NVFP4_OK) abort();
        int same = 1;
        for (int64_t row = 0, rows; row < m; row += rows) {
            rows = min_int(m - row, 1 + below(below(2) ? 4 : m));
            q.m = rows;
            q.a = p.a + row * a.pitch;
            if (cpu_gemm(&q, (cpu_isa)isa, 1, 1) != NVFP4_OK) abort();
            for (int64_t r = 0; r < rows; r++)
                same &=
                    !memcmp((char *)q.out + r * q.out_pitch, (char *)p.out + (row + r) * p.out_pitch, (size_t)n * 4);
        }
        char what[200];
        snprintf(what, sizeof what, "batch invariance, %s: m %lld n %lld k %lld a %d", cpu_isa_name((cpu_isa)isa),
                 (long long)m, (long long)n, (long long)k, a_type);
        check(same, what);
    }
    guarded_free(whole.memory), guarded_free(part.memory);
    side_free(a), side_free(b);
}

/* All 16 codes times all 256 scale bytes, one product each, in `rows` rows a batch; a and b in either role. ones_type:
 * of what the table meets. */
static uint16_t code_of_one(int32_t type) {
    return code_of(1.0f, type);
}

static void test_decoding(int64_t rows, int64_t others, int table_is_a, int32_t ones_type) {
    int64_t l = 4096 / rows;
    int layout = (int)below(2);
    side table = side_new(l, rows, 16, layout, 0, 0, any_scale), ones;
    if (ones_type == VALUES_E2M1) {
        ones = side_new(l, others, 16, layout, 0, 0, any_scale);
        memset(ones.data.data, 0x22, ones.data.bytes);   /* 1 */
        memset(ones.scale.data, 0x38, ones.scale.bytes); /* 1 */
    } else {
        ones = side_of_16_bit(l, others, 16, 0, 0, ones_type, code_of_one);
    }
    memset(table.data.data, 0, table.data.bytes);
    int64_t position = below(16);
    for (int64_t i = 0; i < 4096; i++) {
        int64_t batch = i / rows, row = i % rows;
        table.data.data[batch * table.batch + row * table.pitch + position / 2] = (char)(i % 16 << position % 2 * 4);
        table.scale.data[batch * table.scale_batch + scale_offset(layout, table.scale_pitch, row, 0)] = (char)(i / 16);
    }
    gemm_problem p = table_is_a ? problem_of(l, rows, others, 16, layout, table, ones)
                                : problem_of(l, others, rows, 16, layout, ones, table);
    output o = output_new(&p);
    for (int isa = CPU_REFERENCE; isa < CPU_ISA_COUNT; isa++) {
        if (!cpu_isa_usable((cpu_isa)isa)) continue;
        run_into(p, &o, (cpu_isa)isa, 2, NULL);
        int right = 1;
        for (int64_t i = 0; i < 4096; i++)
            for (int64_t j = 0; j < others; j++) {
                int64_t row = table_is_a ? i % rows : j, column = table_is_a ? j : i % rows;
                float got = *(float *)((char *)p.out + i / rows * p.out_batch + row * p.out_pitch + column * 4);
                double expected = value_of(&table, layout, i / rows, i % rows, position);
                right &= (i / 16 & 0x7F) == 0x7F ? isnan(got) != 0 : got == (float)expected;
            }
        check(right, "16 codes x 256 scales");
    }
    guarded_free(o.memory);
    side_free(table), side_free(ones);
}

/* Conversions against the compiler's own and against a search for the nearest. */
static double e2m1_value(int code) {
    return (code & 8 ? -0.5 : 0.5) * e2m1_doubled[code & 7];
}

static int nearest(double x, int count, double (*value)(int)) { /* ties to the even code */
    int best = 0;
    for (int i = 1; i < count; i++) {
        double d = fabs(value(i) - x) - fabs(value(best) - x);
        if (d < 0 || (d == 0 && i % 2 == 0)) best = i;
    }
    return best;
}
static double e4m3_value(int code) {
    return e4m3_decode((uint8_t)code);
}

static void test_numbers(void) {
    int fp16 = 1, bf16 = 1, e4m3 = 1, e2m1 = 1;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t code = (uint16_t)i;
        _Float16 half;
        memcpy(&half, &code, 2);
        float value = (float)half;
        fp16 &= isnan(value) ? isnan(fp16_decode(code)) : __float_as_uint(fp16_decode(code)) == __float_as_uint(value);
        fp16 &= isnan(value) ? isnan(fp16_decode(fp16_encode(value))) != 0 : fp16_encode(value) == code;
    }
    for (int i = 0; i < 200000; i++) {
        uint32_t bits = (uint32_t)draw();
        if (i % 2)
            bits = (bits & 0x80000000) | (0x32000000 + (bits & 0x7FFFFFFF) % 0x16000000); /* around fp16's range */
        if (i % 8 == 1) bits &= 0xFFFFF000;                                               /* and its ties */
        float value = __uint_as_float(bits);
        if (isnan(value)) {
            bf16 &= isnan(bf16_decode(bf16_encode(value))) != 0;
            continue;
        }
        _Float16 half = (_Float16)value;
        uint16_t code;
        memcpy(&code, &half, 2);
        fp16 &= fp16_encode(value) == code;
        float rounded = bf16_decode(bf16_encode(value)),
              step = __uint_as_float((bits & 0x7F800000) | 0x10000) - __uint_as_float(bits & 0x7F800000);
        if (isfinite(rounded)) {
            double error = fabs((double)rounded - value);
            bf16 &= error < step / 2.0 || (error == step / 2.0 && bf16_encode(value) % 2 == 0);
        }
        float magnitude = fabsf(value);
        int expected = magnitude >= 448 ? 0x7E : nearest(magnitude, 127, e4m3_value);
        e4m3 &= e4m3_encode(magnitude) == expected;
        expected = magnitude >= 6 ? 7 : nearest(magnitude, 8, e2m1_value);
        e2m1 &= e2m1_encode(value) == (expected | (bits >> 31 << 3));
    }
    for (int i = 0; i < 16 * 128; i++) { /* every multiple of a sixteenth: the ties of e2m1 */
        float x = (float)i / 16.0f;
        e2m1 &= e2m1_encode(x) == (x >= 6 ? 7 : nearest(x, 8, e2m1_value));
        x = (float)i / 8192.0f; /* the ties of subnormal scales */
        e4m3 &= e4m3_encode(x) == nearest(x, 127, e4m3_value);
    }
    check(fp16, "fp16"), check(bf16, "bf16"), check(e4m3, "e4m3"), check(e2m1, "e2m1");
}

static void test_quantize(int64_t l, int64_t rows, int64_t k, int layout, int type, cpu_isa isa) {
    float g = (float)(1 + below(1000)) / 300.0f;
    int64_t columns = k / 16, x_pitch = k * type_size(type) + 16;
    quantize_problem p = {.rows = rows,
                          .k = k,
                          .l = l,
                          .x_pitch = x_pitch,
                          .x_batch = rows * x_pitch,
                          .data_pitch = k / 2,
                          .data_batch = rows * k / 2,
                          .global_value = g,
                          .scale_layout = layout,
                          .x_type = type};
    p.scale_pitch = layout == NVFP4_LINEAR ? columns : (columns + 3) / 4 * 512;
    p.scale_batch = layout == NVFP4_LINEAR ? rows * columns : (rows + 127) / 128 * p.scale_pitch;
    guarded x = guarded_new(l * p.x_batch - 16, 0xFF), data = guarded_new(l * p.data_batch, POISON);
    guarded scale = guarded_new(l * p.scale_batch, 0x7F), back = guarded_new(l * p.x_batch - 16, POISON);
    p.x = x.data, p.data = (uint8_t *)data.data, p.scale = (uint8_t *)scale.data;
    static const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-45f, 3e38f, -1e-3f};
    for (int64_t r = 0; r < l * rows; r++)
        for (int64_t c = 0; c < columns; c++) {
            float block[16];
            double size = ldexp(1.0, (int)below(20) - 10);
            for (int i = 0; i < 16; i++) block[i] = (float)(size * ((double)below(2001) / 1000.0 - 1.0));
            if (below(8) == 0) block[below(16)] = special[below(8)];
            if (below(16) == 0) memset(block, 0, sizeof block);
            store_floats(x.data + r * x_pitch + c * 16 * type_size(type), block, type, 16);
        }
    cpu_quantize(&p, isa, 2);
    p.x = back.data;
    cpu_dequantize(&p, isa, 2);
    int right = 1, padding = 0;
    for (int64_t r = 0; r < l * rows; r++)
        for (int64_t c = 0; c < columns; c++) {
            float block[16], round_trip[16], amax = 0;
            load_floats(block, x.data + r * x_pitch + c * 16 * type_size(type), type, 16);
            load_floats(round_trip, back.data + r * x_pitch + c * 16 * type_size(type), type, 16);
            int nan = 0;
            for (int i = 0; i < 16; i++) nan |= isnan(block[i]) != 0, amax = fmaxf(amax, fabsf(block[i]));
            int s = p.scale[r / rows * p.scale_batch + scale_offset(layout, p.scale_pitch, r % rows, c)];
            float target = amax / 6.0f / g, d = e4m3_decode((uint8_t)s) * g;
            right &= s == (nan ? 0x7F : target >= 448 ? 0x7E : nearest(target, 127, e4m3_value));
            for (int i = 0; i < 16; i++) {
                int code = p.data[r * p.data_pitch + c * 8 + i / 2] >> i % 2 * 4 & 15;
                float v = block[i] / d;
                int expected =
                    s == 0 || nan ? 0 : (fabsf(v) >= 6 ? 7 : nearest(fabsf(v), 8, e2m1_value)) | (signbit(v) ? 8 : 0);
                right &= code == expected;
                float value = (float)e2m1_value(code) * e4m3_decode((uint8_t)s) * g, stored;
                if (type == NVFP4_FP16) value = fp16_decode(fp16_encode(value));
                if (type == NVFP4_BF16) value = bf16_decode(bf16_encode(value));
                memcpy(&stored, round_trip + i, 4);
                right &= nan ? isnan(stored) != 0 : stored == value;
            }
        }
    if (layout == NVFP4_128X4) /* what is not a scale must be zero */
        for (int64_t batch = 0; batch < l; batch++)
            for (int64_t r = 0; r < (rows + 127) / 128 * 128; r++)
                for (int64_t c = 0; c < (columns + 3) / 4 * 4; c++)
                    if (r >= rows || c >= columns)
                        padding |= p.scale[batch * p.scale_batch + scale_offset(layout, p.scale_pitch, r, c)];
    check(right && !padding, "quantize");
    guarded_free(x), guarded_free(data), guarded_free(scale), guarded_free(back);
}

static void test_swizzle(int64_t l, int64_t rows, int64_t columns) {
    int64_t pitch = columns + 3, swizzled_batch = (rows + 127) / 128 * ((columns + 3) / 4) * 512;
    guarded linear = guarded_new(l * rows * pitch - 3, 0), back = guarded_new(l * rows * pitch - 3, POISON);
    guarded swizzled = guarded_new(l * swizzled_batch, POISON);
    for (size_t i = 0; i < linear.bytes; i++) linear.data[i] = (char)(1 + below(255));
    swizzle_problem p = {rows, columns, l, (uint8_t *)linear.data, pitch, rows * pitch, (uint8_t *)swizzled.data};
    cpu_swizzle(&p, 2);
    int64_t zeros = 0;
    for (size_t i = 0; i < swizzled.bytes; i++) zeros += swizzled.data[i] == 0;
    p.linear = (uint8_t *)back.data;
    cpu_unswizzle(&p, 2);
    int right = zeros == l * (swizzled_batch - rows * columns);
    for (int64_t r = 0; r < l * rows; r++)
        for (int64_t c = 0; c < pitch && r * pitch + c < (int64_t)back.bytes; c++)
            right &= back.data[r * pitch + c] == (c < columns ? linear.data[r * pitch + c] : (char)POISON);
    check(right, "swizzle");
    guarded_free(linear), guarded_free(back), guarded_free(swizzled);
}

/* One product, repeated by several threads at once and by a child process that was forked after the pool was used. */
static const gemm_problem *shared_problem;
static const output *shared_expected;

static void *repeat(void *right) {
    cpu_isa isa;
    gemm_problem p = *shared_problem;
    char *out = malloc((size_t)(p.m * p.n) * 4);
    p.out = out;
    p.out_pitch = p.n * 4;
    *(int *)right = cpu_isa_detect(&isa) == NVFP4_OK;
    for (int i = 0; i < 20; i++) {
        memset(out, POISON, (size_t)(p.m * p.n) * 4);
        *(int *)right &= cpu_gemm(&p, isa, 3, 0) == NVFP4_OK;
        for (int64_t r = 0; r < p.m; r++)
            *(int *)right &=
                !memcmp(out + r * p.out_pitch, shared_expected->memory.data + MARGIN + r * shared_expected->pitch,
                        (size_t)p.n * 4);
    }
    free(out);
    return NULL;
}

static void test_concurrency(int64_t m) {
    side a = side_new(1, m, 1024, NVFP4_LINEAR, 0, 0, integer_scale);
    side b = side_new(1, 700, 1024, NVFP4_LINEAR, 0, 0, integer_scale);
    gemm_problem p = problem_of(1, m, 700, 1024, NVFP4_LINEAR, a, b);
    output expected = output_new(&p);
    run_into(p, &expected, CPU_REFERENCE, 2, NULL);
    shared_problem = &p;
    shared_expected = &expected;
    pthread_t threads[4];
    int right[4] = {0};
    for (int i = 0; i < 4; i++)
        if (pthread_create(threads + i, NULL, repeat, right + i)) abort();
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    check(right[0] && right[1] && right[2] && right[3], "four threads at once");
    const char *forks = getenv("NVFP4_TEST_FORK");
    if (!forks || strcmp(forks, "0") != 0) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            repeat(right);
            _exit(right[0] ? 0 : 1);
        }
        int status = 1;
        waitpid(child, &status, 0);
        check(status == 0, "in a forked child");
    }
    guarded_free(expected.memory);
    side_free(a), side_free(b);
}

static void test_choice(void) {
    cpu_isa isa;
    if (getenv("NVFP4_CPU")) return;
    check(cpu_isa_detect(&isa) == NVFP4_OK && cpu_isa_usable(isa), "the chosen kernel runs here");
    for (int better = isa + 1; better < CPU_ISA_COUNT; better++)
        check(!cpu_isa_usable((cpu_isa)better), "no better kernel runs here");
}

/* test_cpu [SEED [SHAPES]]: fewer shapes for a sanitizer or an emulator. NVFP4_TEST_FORK=0: qemu-user 7.2 cannot fork a
 * process of several threads. */
static int64_t most_tasks; /* of a loop; 0: loops run as ever, else their first task and their last alone */

void __real_parallel_for(int threads, int64_t tasks, void (*body)(void *, int64_t, int), void *context);
void __wrap_parallel_for(int threads, int64_t tasks, void (*body)(void *, int64_t, int), void *context);

void __wrap_parallel_for(int threads, int64_t tasks, void (*body)(void *, int64_t, int), void *context) {
    if (!most_tasks) {
        __real_parallel_for(threads, tasks, body, context);
        return;
    }
    if (tasks > most_tasks) most_tasks = tasks;
    body(context, 0, 0);
    if (tasks > 0) body(context, tasks - 1, 0);
}

/* 2^31 matrices, which lie in the memory of one, as their results do: no task of theirs has a number of 32 bits. */
static void test_many_matrices(void) {
    enum { GROUPS = NVFP4_MAX_GROUPS, PARTS = 1 << 21, K = 16 };
    static uint16_t a[GROUPS][K];
    static int32_t ends[GROUPS];
    const uint8_t b[K / 2] = {0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22}, scale_b = 0x40; /* 1; 2 */
    float out = 0;
    for (int e = 0; e < GROUPS; e++) {
        ends[e] = e + 1;
        for (int k = 0; k < K; k++) a[e][k] = e < GROUPS - 1 ? 0 : 0x3C00; /* 1 in the last group */
    }
    const grouped_problem p = {.g = {.m = GROUPS,
                                     .n = 1,
                                     .k = K,
                                     .l = (int64_t)GROUPS * PARTS,
                                     .a = (const uint8_t *)a,
                                     .b = b,
                                     .a_pitch = K * 2,
                                     .b_pitch = K / 2,
                                     .scale_b = &scale_b,
                                     .scale_b_pitch = 1,
                                     .out = &out,
                                     .alpha_value = 1,
                                     .scale_layout = NVFP4_LINEAR,
                                     .out_type = NVFP4_FP32,
                                     .a_type = NVFP4_FP16,
                                     .product_kind = PRODUCT_GROUPED},
                               .ends = ends,
                               .a_rows = GROUPS,
                               .groups = GROUPS,
                               .parts = PARTS};
    cpu_isa isa;
    if (cpu_isa_detect(&isa) != NVFP4_OK) abort();
    most_tasks = 1;
    check(cpu_grouped_gemm(&p, isa, 1, 0) == NVFP4_OK && most_tasks == (int64_t)GROUPS * PARTS, "2^31 matrices");
    check(out == 32, "the last matrix of the last group");
    most_tasks = 0;
}

int main(int count, char **arguments) {
    int shapes = count > 2 ? atoi(arguments[2]) : 150;
    const int few = shapes < 10; /* under a sanitizer, which takes five times as long */
    state = count > 1 ? strtoull(arguments[1], NULL, 0) : (uint64_t)time(NULL);
    printf("seed %llu\n", (unsigned long long)state);
    test_choice();
    test_numbers();
    test_many_matrices();
    for (int table_is_a = 0; table_is_a < 2; table_is_a++) {
        test_decoding(4096, 1, table_is_a, VALUES_E2M1);
        test_decoding(4096, 20, table_is_a, VALUES_E2M1);
        test_decoding(128, 129, table_is_a, VALUES_E2M1);
        test_decoding(8, 9, table_is_a, VALUES_E2M1);
    }
    for (int type = NVFP4_FP16; type <= NVFP4_BF16; type++) {
        test_decoding(4096, 1, 0, type);
        test_decoding(4096, 20, 0, type);
        test_decoding(128, 129, 0, type);
        test_decoding(8, 9, 0, type);
        test_decoding(1, 16, 0, type);
    }
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 33, 64, 65, 127, 128, 129, 200};
    static const int64_t depths[] = {0, 16, 32, 48, 64, 80, 240, 256, 272, 512, 528, 1040, 2048, 2064, 4112};
    enum { SIZES = sizeof sizes / sizeof *sizes, DEPTHS = sizeof depths / sizeof *depths };
    static const int32_t a_types[] = {VALUES_E2M1, NVFP4_FP16, VALUES_E2M1, NVFP4_BF16};
    for (int i = 0; i < shapes * 2; i++)
        test_integers(1 + below(3), sizes[below(SIZES)], sizes[below(SIZES)], depths[below(DEPTHS)], a_types[i % 4]);
    for (int i = 0; i < shapes / 3; i++) {
        int64_t k = depths[1 + below(DEPTHS - 1)], m = sizes[below(SIZES)], n = sizes[below(SIZES)];
        test_random(1 + below(2), m, n, k, below(2) ? any_scale : ordinary_scale, i / 4 % 2, a_types[i % 4]);
    }
    for (int i = 0; i < shapes / 2; i++)
        test_specials(sizes[below(SIZES)], sizes[below(SIZES)], depths[1 + below(DEPTHS - 1)], NVFP4_FP16 + i % 2);
    for (int i = 0; i < shapes / 6; i++)
        test_batch_invariance(sizes[below(SIZES)], sizes[below(SIZES)], depths[1 + below(DEPTHS - 1)],
                              NVFP4_FP16 + i % 2);
    for (int i = 0; i < 4; i++) {
        test_integers(1, 0, 5, 32, a_types[i]), test_integers(1, 5, 0, 32, a_types[i]);
        test_integers(0, 5, 5, 32, a_types[i]), test_integers(1, 3, 1100, 64, a_types[i]);
        test_integers(1, 1100, 20, 64, a_types[i]), test_integers(1, 1100, 3, few ? 528 : 4112, a_types[i]);
    }
    test_concurrency(1), test_concurrency(50);
    for (int i = 0; i < 4; i += 1 + few) { /* 2^21 products a thread */
        test_more_threads_than_rows(1, 2, few ? 3 << 19 : 3 << 20, a_types[i]);
        test_more_threads_than_rows(9, 9, few ? 3 << 14 : 3 << 16, a_types[3 - i]);
    }
    for (int i = 0; i < 30; i++)
        for (int isa = CPU_PORTABLE; isa < CPU_ISA_COUNT; isa++)
            if (cpu_isa_usable((cpu_isa)isa))
                test_quantize(1 + below(2), sizes[below(SIZES)], 16 * (1 + below(20)), i % 2, NVFP4_FP16 + i % 3,
                              (cpu_isa)isa);
    for (int i = 0; i < 20; i++) test_swizzle(1 + below(3), sizes[below(SIZES)], 1 + below(40));
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
