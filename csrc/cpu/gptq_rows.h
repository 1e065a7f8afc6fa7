/* Rows of GPTQ by vectors, LANES rows at a time. cpu/quantize_rows.h, whose names it uses, includes it. */
#ifndef NVFP4_CPU_GPTQ_ROWS_H
#define NVFP4_CPU_GPTQ_ROWS_H

#include "cpu/gptq.h"

/* One column of LANES rows under a scale: rounds it, returns its errors, and the codes if they are wanted. */
static inline __attribute__((always_inline)) floats round_column(floats t, units s, float inverse, ints *code) {
    const ints sign = (ints)t & INT32_MIN & has_codes(s.code);
    floats value = round_values((floats)((ints)t & INT32_MAX), s.high, s.low);
    value = (floats)((ints)value & has_codes(s.code));
    if (code) {
        /* The code as a function of the value is 2 v, v + 2 and v / 2 + 4 one after the other: always the least. */
        const floats least = smaller(smaller(value + value, value + 2.0f), value * 0.5f + 4.0f);
        *code = (__builtin_convertvector(least, ints) | (sign >> 28 & 8)) & (ints)(t == t);
    }
    return fused(-(floats)((ints)value | sign), s.unit, t) * inverse;
}

/* Subtracts the errors of column j from the columns that follow. */
static inline __attribute__((always_inline)) void feed_back(floats t[BLOCK], floats error, const gptq_factor *f,
                                                            const int j) {
#pragma GCC unroll 16
    for (int k = j + 1; k < BLOCK; k++) t[k] = fused(-error, f->u[j][k] - (floats){0}, t[k]);
}

/* The sums of squared errors under two scales: a sum is a chain of operations, and two chains take little longer than
 * one. */
static __attribute__((noinline)) void sums_of_two(const floats x[BLOCK], const gptq_factor *f, units r, units s,
                                                  floats sum[2]) {
    floats t[BLOCK], v[BLOCK], a = {0}, b = {0};
    memcpy(t, x, sizeof t);
    memcpy(v, x, sizeof v);
#pragma GCC unroll 16
    for (int j = 0; j < BLOCK; j++) {
        const floats e = round_column(t[j], r, f->inverse[j], NULL), h = round_column(v[j], s, f->inverse[j], NULL);
        a = fused(e, e, a);
        b = fused(h, h, b);
        feed_back(t, e, f, j);
        feed_back(v, h, f, j);
    }
    sum[0] = a, sum[1] = b;
}

static inline units take_better(units best, units s, floats sum, floats *least, ints searched) {
    const ints better = (sum < *least) & searched;
    *least = (floats)(((ints)sum & better) | ((ints)*least & ~better));
    return choose_units(better, s, best);
}

/* LANES rows: their scales, codes as two words of 8 each, and errors, column by column. */
static __attribute__((noinline)) units gptq_lanes(const floats x[BLOCK], const gptq_factor *f, float g, ints word[2],
                                                  floats error[BLOCK]) {
    floats over_g[2], least = INFINITY - (floats){0}, t[BLOCK];
    ints bits = {0};
    reciprocals(g - (floats){0}, over_g, over_g + 1);
    for (int j = 0; j < BLOCK; j++) {
        const ints magnitude = (ints)x[j] & INT32_MAX;
        bits = (magnitude & (magnitude > bits)) | (bits & (magnitude <= bits));
    }
    const floats amax = (floats)bits, capped = smaller(0x1p62f - (floats){0}, amax);
    const floats part = fused(capped, 0x1.555556p-3f - (floats){0}, capped * -0x1.555556p-28f);
    const units nearest = encode_scales(amax, fused(part, over_g[0], part * over_g[1]), g);
    const ints searched = (bits > 0) & (bits <= 0x7F800000);
    units best = nearest;
    for (int offset = SEARCH_FIRST; offset <= SEARCH_LAST; offset += 2) { /* the 14th is there for its pair's sake */
        const units r = searched_units(nearest.code, offset, g);
        const units s = searched_units(nearest.code, offset < SEARCH_LAST ? offset + 1 : offset, g);
        floats sum[2];
        sums_of_two(x, f, r, s, sum);
        best = take_better(best, r, sum[0], &least, searched);
        best = take_better(best, s, sum[1], &least, searched);
    }
    best.unit = (floats)((ints)best.unit | (best.code == 0x7F)); /* NaN */
    memcpy(t, x, sizeof t);
    word[0] = word[1] = (ints){0};
#pragma GCC unroll 16
    for (int j = 0; j < BLOCK; j++) {
        ints code;
        error[j] = round_column(t[j], best, f->inverse[j], &code);
        word[j / 8] |= code << j % 8 * 4;
        feed_back(t, error[j], f, j);
    }
    return best;
}

/* Rows whose global scales are in range and equal go by LANES; rows without values fill the last. */
static void gptq_rows(const gptq_problem *p, int64_t first, int64_t end) {
    gptq_factor f;
    load_factor(&f, p);
    for (int64_t row = first; row < end; row += LANES) {
        const int64_t count = end - row < LANES ? end - row : LANES;
        const float g = gptq_global_scale(p, row);
        int equal = in_range(g);
        for (int64_t i = 1; i < count; i++) equal &= gptq_global_scale(p, row + i) == g;
        if (!equal) {
            portable_gptq(p, row, row + count);
            continue;
        }
        _Alignas(64) float values[GROUP] = {0};
        floats x[BLOCK], error[BLOCK];
        ints word[2];
        uint8_t scale[LANES];
        for (int64_t i = 0; i < count; i++) memcpy(values + i * BLOCK, gptq_row(p, row + i), BLOCK * 4);
        transpose_16(x, values, BLOCK * 4);
        store_bytes(scale, gptq_lanes(x, &f, g, word, error).code);
        for (int64_t i = 0; i < count; i++) {
            const int32_t codes[2] = {word[0][i], word[1][i]};
            float *to = (float *)((char *)p->error + (row + i) * p->error_pitch);
            memcpy(p->data + (row + i) * p->data_pitch, codes, sizeof codes);
            p->scale[(row + i) * p->scale_pitch] = scale[i];
            for (int j = 0; j < BLOCK; j++) to[j] = error[j][i];
        }
    }
}

#endif
