/* tensor_multiply: eight outputs of a row at once, with the bits of tensor_multiply_by_element.
 *
 * A tile of 8 x 8 fused sums takes one of three ways:
 *   - few significant bits in a narrow range (integers, dequantised 4-bit data), and a C that fits: alignment provably
 *     loses nothing, so fp32 multiply-adds are exact
 *   - otherwise every product is scaled to the common unit and truncated by conversion to an integer
 *   - rows with infinities, or with exponents beyond fp32's range, go to the rule by element */
#include "tensor/arithmetic_lanes.h"

#include <math.h>
#include <string.h>

/* Toward zero to integers, for magnitudes below 2^51. */
static lanes_f64 truncated(lanes_f64 x) {
#ifdef __AVX512DQ__
    return __builtin_convertvector(__builtin_convertvector(x, lanes_s64), lanes_f64);
#else
    /* Without a vector instruction for it: to the nearest integer, and back by one where that went too far. */
    lanes_f64 nearest = x + 0x1.8p52 - 0x1.8p52;
    lanes_s64 sign = (lanes_s64)x & INT64_MIN;
    lanes_s64 beyond = ((lanes_s64)nearest & INT64_MAX) > ((lanes_s64)x & INT64_MAX);
    lanes_s64 one = (lanes_s64)((lanes_f64){0} + 1) | sign;
    return nearest - (lanes_f64)(beyond & one);
#endif
}

/* Exact values to fp32, toward zero at `mantissa_bits`; a zero is +0. */
static lanes_f32 round_to_f32(lanes_f64 x, int mantissa_bits) {
    lanes_s64 bits = (lanes_s64)x;
    lanes_s64 exponent = (bits >> 52 & 2047) - 1023;
    /* Below 2^-126 the last place stays, so more of the mantissa goes; from 52 places on all of it does. */
    lanes_s64 cut = 52 - mantissa_bits + ((exponent < -126) & (-126 - exponent));
    lanes_s64 none = cut > 52;
    cut = cut & ~none;
    lanes_f64 kept = (lanes_f64)(bits & ~((((lanes_s64){0} + 1) << cut) - 1) & ~none);
    return __builtin_convertvector(kept, lanes_f32);
}

/* To the nearest fp16 value, ties to even; a zero is +0. */
static lanes_f32 round_to_f16(lanes_f64 x) {
    lanes_s64 exponent = ((lanes_s64)x >> 52 & 2047) - 1023;
    lanes_s64 small = exponent < -14;
    exponent = (small & -14) | (~small & exponent);
    /* 1.5 * 2^(exponent + 42): a sum with it has the last place of fp16. */
    lanes_f64 rounder = (lanes_f64)((exponent + 42 + 1023) << 52 | INT64_C(1) << 51);
    lanes_f64 rounded = x + rounder - rounder;
    lanes_s64 magnitude = (lanes_s64)rounded & INT64_MAX;
    lanes_s64 sign = (lanes_s64)rounded & INT64_MIN;
    lanes_s64 over = (magnitude > INT64_C(0x40effc0000000000)) & (rounded == rounded); /* beyond 65504 */
    lanes_s64 infinity = INT64_C(0x7ff0000000000000) | sign;
    return __builtin_convertvector((lanes_f64)((over & infinity) | (~over & (lanes_s64)rounded)), lanes_f32);
}

static lanes_f32 round_result(const tensor_op *op, const sum_rule *rule, lanes_f64 x) {
    return op->d_type == TENSOR_D_F16 ? round_to_f16(x) : round_to_f32(x, rule->result_bits);
}

/* fp16 values and infinity to patterns. */
static lanes_s32 f16_patterns(lanes_f32 x) {
    lanes_s32 magnitude = (lanes_s32)x & 0x7fffffff, sign = (lanes_s32)x >> 16 & 0x8000;
    lanes_s32 normal = (magnitude >> 13) - (112 << 10);
    lanes_s32 subnormal = __builtin_convertvector((lanes_f32)magnitude * 0x1p24F, lanes_s32);
    lanes_s32 bits = lanes_select(magnitude < 0x38800000, subnormal, normal);
    return lanes_select(magnitude >= 0x47800000, lanes_all(0x7c00), bits) | sign;
}

static lanes_f32 f16_values(lanes_s32 bits) {
    lanes_u32 magnitude = (lanes_u32)bits & 0x7fff;
    lanes_s32 value = (lanes_s32)lanes_small_float(magnitude, 10, 15);
    lanes_s32 special = (lanes_s32)(0x7f800000 | (magnitude & 0x3ff));
    value = lanes_select((lanes_s32)(magnitude >= 0x7c00), special, value);
    return (lanes_f32)(value | (bits & 0x8000) << 16);
}

/* Eight patterns of C or D from n on, fewer at the end of a row. */
static lanes_s32 load_outputs(const char *from, ptrdiff_t step, int count, tensor_accumulator type) {
    lanes_s32 bits = {0};
    if (count == LANES && type != TENSOR_D_F16 && step == 4) {
        memcpy(&bits, from, sizeof bits);
    } else if (type == TENSOR_D_F16) {
        for (int i = 0; i < count; i++) {
            uint16_t half;
            memcpy(&half, from + i * step, 2);
            bits[i] = half;
        }
    } else {
        for (int i = 0; i < count; i++) {
            int32_t word;
            memcpy(&word, from + i * step, 4);
            bits[i] = word;
        }
    }
    return bits;
}

static void store_outputs(char *to, ptrdiff_t step, int count, tensor_accumulator type, lanes_s32 bits) {
    if (count == LANES && type != TENSOR_D_F16 && step == 4) {
        memcpy(to, &bits, sizeof bits);
        return;
    }
    size_t size = type == TENSOR_D_F16 ? 2 : 4;
    for (int i = 0; i < count; i++) {
        int32_t one = bits[i];
        memcpy(to + i * step, &one, size);
    }
}

/* The exponents that C is aligned by. Zeros have field 0, which gives -126 as well, unless they are fp16. */
static lanes_s32 c_exponents(const tensor_op *op, lanes_f32 c) {
    lanes_s32 magnitude = (lanes_s32)c & 0x7fffffff;
    int smallest = op->d_type == TENSOR_D_F16 ? -14 : -126;
    lanes_s32 exponent = lanes_max((magnitude >> 23) - 127, lanes_all(smallest)) - op->scale_input_d;
    return lanes_select(magnitude == 0, lanes_all(-126), exponent);
}

/* Lane `row` of a vector of A. */
static inline float value_of(const lanes_f32 *vector, int row) {
    return ((const float *)vector)[row];
}

static inline int32_t number_of(const lanes_s32 *vector, int row) {
    return ((const int32_t *)vector)[row];
}

/* The products of all rows of group a with the rows of group b, summed in fp32. */
static inline void multiply_groups(const row_group *a, const row_group *b, int first, int count, lanes_f32 sum[LANES]) {
    lanes_f32 row[LANES] = {{0}};
    for (int i = first; i < first + count; i++) {
        lanes_f32 column = b->value[i];
#pragma GCC unroll 8
        for (int r = 0; r < LANES; r++)
            row[r] = lanes_multiply_add(lanes_all_f32(value_of(&a->value[i], r)), column, row[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < LANES; r++) sum[r] = row[r];
}

/* One fused sum for all rows of group a and the rows of group b, in units of 2^(top - fraction_bits), without C. On
 * entry top holds C's exponents. */
static void align_groups(const row_group *a, const row_group *b, int sum_index, int count, int fraction_bits,
                         lanes_s32 top[LANES], lanes_f64 sum[LANES]) {
    int first = sum_index * count;
    lanes_s32 highest[LANES];
    lanes_f32 unit[LANES];
#pragma GCC unroll 8
    for (int r = 0; r < LANES; r++) highest[r] = lanes_all(-1000);
    for (int i = first; i < first + count; i++) {
        lanes_s32 column = b->exponent[i];
#pragma GCC unroll 8
        for (int r = 0; r < LANES; r++) highest[r] = lanes_max(highest[r], number_of(&a->exponent[i], r) + column);
    }
    for (int r = 0; r < LANES; r++) {
        lanes_s32 largest = b->largest[sum_index] + number_of(&a->largest[sum_index], r);
        top[r] = lanes_max(highest[r] + largest, top[r]);
        /* Beyond these bounds every product vanishes, or is zero anyway. */
        lanes_s32 up = fraction_bits - (top[r] - largest);
        unit[r] = lanes_power(lanes_min(lanes_max(up, lanes_all(-60)), lanes_all(120)));
        sum[r] = (lanes_f64){0};
    }
    /* 16 products below 2^27 fit an int32. */
    for (int start = first; start < first + count; start += 16) {
        lanes_s32 part[LANES] = {{0}};
        int end = start + 16 < first + count ? start + 16 : first + count;
        for (int i = start; i < end; i++) {
            lanes_f32 column = b->value[i];
#pragma GCC unroll 8
            for (int r = 0; r < LANES; r++)
                part[r] += __builtin_convertvector(value_of(&a->value[i], r) * column * unit[r], lanes_s32);
        }
#pragma GCC unroll 8
        for (int r = 0; r < LANES; r++) sum[r] += __builtin_convertvector(part[r], lanes_f64);
    }
}

/* x + y toward zero, where neither overflow nor subnormal numbers can occur: the rounding error of the sum is an fp32
 * number too, and its sign says whether the sum went too far. */
static inline lanes_f32 add_toward_zero(lanes_f32 x, lanes_f32 y) {
    lanes_f32 sum = x + y, part = sum - x;
    lanes_f32 error = (x - (sum - part)) + (y - part);
    lanes_s32 beyond = (error != 0) & (((lanes_s32)error ^ (lanes_s32)sum) < 0);
    return (lanes_f32)((lanes_s32)sum + beyond);
}

/* A whole tile of fused sums with an fp32 C and D where alignment provably loses nothing; false, with D untouched,
 * where that is not certain. Products are multiples of 2^(largest - product_bits) below 2^(largest + 2): C must not
 * push them below the last place kept (a zero has an exponent too), nor have bits there itself. That keeps out NaN and
 * infinity as well. */
static bool exact_tile(const tensor_op *op, const sum_rule *rule, const row_group *a, const row_group *b, const char *c,
                       char *d) {
    /* `fused` products below 4 make a sum below 2^(2 + log2(fused)); fp32 has 24 bits for it. */
    int kept = rule->fraction_bits, most_bits = 22 - __builtin_ctz((unsigned)rule->fused);
    if (most_bits > kept) most_bits = kept;
    if (!a->plain || !b->plain) return false;
    lanes_f32 sum[LANES];
    for (int r = 0; r < LANES; r++) {
        sum[r] = lanes_all_f32(0);
        if (c) memcpy(&sum[r], c + r * op->c_stride, sizeof sum[r]);
    }
    lanes_s32 lost = {0};
    for (int i = 0; i * rule->fused < op->k; i++) {
        lanes_f32 products[LANES];
        int product_bits = a->bits[i] + b->bits[i];
        if (product_bits > most_bits) return false;
        multiply_groups(a, b, i * rule->fused, rule->fused, products);
#pragma GCC unroll 8
        for (int r = 0; r < LANES; r++) {
            lanes_s32 largest = b->largest[i] + number_of(&a->largest[i], r);
            lanes_s32 exponent = lanes_max((((lanes_s32)sum[r] & 0x7fffffff) >> 23) - 127, lanes_all(-126));
            lost |= exponent > largest + (kept - product_bits);
            /* add_toward_zero's condition, and that 2^largest is an fp32 number. */
            lost |= (largest > 90) | (largest < -90);
            /* C of 24 bits may have some under 2^(largest - kept) if it is below that times 2^23. Adding and
             * subtracting 1.5 * 2^23 times that place, with C's sign, leaves C alone only if it has none. */
            lanes_s32 rounder = (lanes_s32)(lanes_power(largest + (23 - kept)) * 1.5F);
            rounder |= (lanes_s32)sum[r] & INT32_MIN;
            lanes_s32 same = (lanes_s32)(sum[r] + (lanes_f32)rounder - (lanes_f32)rounder == sum[r]);
            lost |= ~same & (exponent < largest - kept + 23);
            sum[r] = add_toward_zero(products[r] * lanes_power(largest), sum[r]);
        }
    }
    if (lanes_mask(lost)) return false;
    for (int r = 0; r < LANES; r++) memcpy(d + r * op->d_stride, &sum[r], sizeof sum[r]);
    return true;
}

/* What the rows of one group of A and one group of B give: C in, D out, as values. */
typedef struct {
    lanes_f32 value[LANES];
    lanes_s32 by_element[LANES];
} output_tile;

static void fused_tile(const tensor_op *op, const sum_rule *rule, int rows, row_group *a, row_group *b,
                       output_tile *tile) {
    double factor = op->scale_input_d ? ldexp(1, -op->scale_input_d) : 1;
    lanes_f32 c[LANES];
    for (int r = 0; r < rows && rule->via_f16; r++) {
        c[r] = tile->value[r];
        tile->value[r] = lanes_all_f32(0);
    }
    for (int i = 0; i * rule->fused < op->k; i++) {
        lanes_s32 exponent[LANES] = {{0}};
        for (int r = 0; r < rows; r++) {
            exponent[r] = c_exponents(op, tile->value[r]);
            tile->by_element[r] |= ((lanes_s32)tile->value[r] & 0x7f800000) == 0x7f800000;
        }
        if (!a->has_exponents) tensor_fill_exponents(a, op->a_type, op, rule);
        if (!b->has_exponents) tensor_fill_exponents(b, op->b_type, op, rule);
        lanes_f64 sum[LANES];
        align_groups(a, b, i, rule->fused, rule->fraction_bits, exponent, sum);
        for (int r = 0; r < rows; r++) {
            lanes_f64 value = __builtin_convertvector(tile->value[r], lanes_f64) * factor;
            value = sum[r] + truncated(value * lanes_power_f64(rule->fraction_bits - exponent[r]));
            tile->value[r] = round_result(op, rule, value * lanes_power_f64(exponent[r] - rule->fraction_bits));
        }
    }
    for (int r = 0; r < rows && rule->via_f16; r++) {
        lanes_f32 sum = tile->value[r];
        tile->by_element[r] |= ((lanes_s32)sum & 0x7f800000) == 0x7f800000;
        if (op->d_type == TENSOR_D_F32)
            tile->value[r] = sum + c[r];
        else
            tile->value[r] =
                round_to_f16(__builtin_convertvector(sum, lanes_f64) + __builtin_convertvector(c[r], lanes_f64));
    }
}

/* Four groups of 16 products of 4-bit elements, each exact in fp32 whatever the data. */
static void group_tile(const tensor_op *op, const sum_rule *rule, int rows, const row_group *a, const row_group *b,
                       output_tile *tile) {
    lanes_f32 group[4][LANES];
    for (int g = 0; g < 4; g++) multiply_groups(a, b, 16 * g, 16, group[g]);
    for (int r = 0; r < rows; r++) {
        lanes_s32 exponent[4], c_exponent = c_exponents(op, tile->value[r]), top = c_exponent;
#pragma GCC unroll 4
        for (int g = 0; g < 4; g++) {
            int block = g * op->blocks / 4;
            exponent[g] = b->scale_exponent[block] + number_of(&a->scale_exponent[block], r);
            top = lanes_max(top, exponent[g]);
        }
        int kept = rule->fraction_bits;
        lanes_f64 sum = truncated(__builtin_convertvector(tile->value[r], lanes_f64) * lanes_power_f64(kept - top));
#pragma GCC unroll 4
        for (int g = 0; g < 4; g++) {
            int block = g * op->blocks / 4;
            lanes_f32 scaled = group[g][r] * b->scale[block] * value_of(&a->scale[block], r);
            sum += truncated(__builtin_convertvector(scaled, lanes_f64) * lanes_power_f64(kept + exponent[g] - top));
        }
        tile->value[r] = round_result(op, rule, sum * lanes_power_f64(top - kept));
    }
}

static lanes_f32 plain_sum(const tensor_op *op, const row_group *a, int row, const row_group *b, lanes_f32 c) {
    int blocks = op->blocks ? op->blocks : 1, length = op->k / blocks;
    lanes_f64 sum = {0};
    for (int block = 0; block < blocks; block++) {
        lanes_f64 dot = {0};
        for (int i = block * length; i < (block + 1) * length; i++)
            dot += __builtin_convertvector(b->value[i], lanes_f64) * (double)value_of(&a->value[i], row);
        if (op->blocks) {
            lanes_s32 exponent = b->scale_exponent[block] + number_of(&a->scale_exponent[block], row);
            lanes_f32 significand = b->scale[block] * value_of(&a->scale[block], row);
            dot *= __builtin_convertvector(significand, lanes_f64) * lanes_power_f64(exponent);
        }
        sum += dot;
    }
    lanes_f64 total = sum + __builtin_convertvector(c, lanes_f64) * ldexp(1, -op->scale_input_d);
    if (op->d_type == TENSOR_D_F16) return round_to_f16(total);
    return __builtin_convertvector(total, lanes_f32) + 0.0F; /* makes +0 of a negative zero */
}

/* Products of bytes and their sums stay below 2^24. */
static lanes_s32 integer_sum(const tensor_op *op, lanes_f32 dot, lanes_s32 c) {
    lanes_s32 products = __builtin_convertvector(dot, lanes_s32);
    lanes_s32 sum = (lanes_s32)((lanes_u32)products + (lanes_u32)c);
    if (!op->saturate) return sum;
    lanes_s32 overflow = ((products ^ sum) & (c ^ sum)) < 0;
    return lanes_select(overflow, (c >> 31) ^ INT32_MAX, sum);
}

static void multiply_tile(const tensor_op *op, const sum_rule *rule, int m, int n, row_group *a, row_group *b) {
    int rows = op->m - m < LANES ? op->m - m : LANES, count = op->n - n < LANES ? op->n - n : LANES;
    bool f16 = op->d_type == TENSOR_D_F16;
    char *to = (char *)op->d + m * op->d_stride + n * op->d_step;
    const char *from = op->c ? (const char *)op->c + m * op->c_stride + n * op->c_step : NULL;
    bool fused = op->rule == TENSOR_HARDWARE && op->a_type != TENSOR_E2M1_PACKED && !rule->via_f16;
    bool whole = rows == LANES && count == LANES && op->d_step == 4 && (op->c_step == 4 || !op->c);
    if (fused && whole && op->d_type == TENSOR_D_F32 && !op->scale_input_d && exact_tile(op, rule, a, b, from, to))
        return;
    lanes_s32 c_bits[LANES];
    for (int r = 0; r < rows; r++) {
        c_bits[r] = lanes_all(0);
        if (from) c_bits[r] = load_outputs(from + r * op->c_stride, op->c_step, count, op->d_type);
    }
    if (op->d_type == TENSOR_D_S32) {
        lanes_f32 products[LANES];
        multiply_groups(a, b, 0, op->k, products);
        for (int r = 0; r < rows; r++)
            store_outputs(to + r * op->d_stride, op->d_step, count, op->d_type,
                          integer_sum(op, products[r], c_bits[r]));
        return;
    }
    output_tile tile;
    lanes_s32 nan[LANES];
    for (int r = 0; r < rows; r++) {
        tile.value[r] = f16 ? f16_values(c_bits[r]) : (lanes_f32)c_bits[r];
        lanes_s32 magnitude = (lanes_s32)tile.value[r] & 0x7fffffff;
        nan[r] = b->nan | number_of(&a->nan, r) | (magnitude > 0x7f800000);
        tile.by_element[r] = b->by_element | number_of(&a->by_element, r) | (magnitude == 0x7f800000);
    }
    if (op->rule == TENSOR_FP64) {
        for (int r = 0; r < rows; r++) {
            tile.value[r] = plain_sum(op, a, r, b, tile.value[r]);
            nan[r] |= tile.value[r] != tile.value[r];
            tile.by_element[r] = lanes_all(0);
        }
    } else if (op->a_type == TENSOR_E2M1_PACKED) {
        group_tile(op, rule, rows, a, b, &tile);
    } else {
        fused_tile(op, rule, rows, a, b, &tile);
    }
    for (int r = 0; r < rows; r++) {
        lanes_s32 bits = f16 ? f16_patterns(tile.value[r]) : (lanes_s32)tile.value[r];
        bits = lanes_select(nan[r], lanes_all(f16 ? TENSOR_NAN_F16 : TENSOR_NAN_F32), bits);
        for (unsigned left = lanes_mask(tile.by_element[r] & ~nan[r]) & ((1U << count) - 1); left; left &= left - 1) {
            int i = __builtin_ctz(left);
            bits[i] = (int32_t)tensor_element_result(op, rule, m + r, n + i, (uint32_t)c_bits[r][i]);
        }
        store_outputs(to + r * op->d_stride, op->d_step, count, op->d_type, bits);
    }
}

/* 390 KB together: too much for the stack of a small thread. */
static _Thread_local prepared_operand prepared_a, prepared_b;

void tensor_multiply(const tensor_op *op) {
    sum_rule rule = tensor_sum_rule(op);
    operand_source a = {op->a_type, op->a, op->a_stride, op->m, op->sfa, op->sfa_stride, op->negate_a != op->negate_b};
    operand_source b = {op->b_type, op->b, op->b_stride, op->n, op->sfb, op->sfb_stride, false};
    tensor_prepare(&prepared_a, &a, op, &rule);
    tensor_prepare(&prepared_b, &b, op, &rule);
    for (int m = 0; m < op->m; m += LANES)
        for (int n = 0; n < op->n; n += LANES)
            multiply_tile(op, &rule, m, n, &prepared_a.group[m / LANES], &prepared_b.group[n / LANES]);
}
