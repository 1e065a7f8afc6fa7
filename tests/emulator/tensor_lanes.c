/* tensor_multiply: eight outputs of a row at once, with the bits of tensor_multiply_by_element.
 *
 * A fused sum takes one of two ways. Where a row of A and the eight rows of B hold few significant bits within a
 * narrow range (integers, dequantised 4-bit data) and C fits in as well, alignment provably loses nothing, so the sum
 * of products is taken with fp32 multiply-adds, each of them exact. Otherwise every product is scaled to the common
 * unit and truncated by the conversion to an integer. Rows that infinities reach, or with exponents beyond what fp32
 * can hold, go to the rule by element. */
#include "tensor_lanes.h"

#include <math.h>
#include <string.h>

static lanes_f64 truncated(lanes_f64 x) {
    return __builtin_convertvector(__builtin_convertvector(x, lanes_s64), lanes_f64);
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

/* One fused sum for row `lane` of group a and the rows of group b: exact value before rounding. */
static inline lanes_f64 sum_exactly(const row_group *a, int lane, const row_group *b, int first, int count,
                                    lanes_s32 largest, lanes_f64 c) {
    lanes_f32 sum = lanes_all_f32(0);
    for (int i = first; i < first + count; i++)
        sum = lanes_multiply_add(lanes_all_f32(((const float *)&a->value[i])[lane]), b->value[i], sum);
    return __builtin_convertvector(sum, lanes_f64) * lanes_power_f64(largest) + c;
}

static inline lanes_f64 sum_aligned(const row_group *a, int lane, const row_group *b, int first, int count,
                                    lanes_s32 largest, lanes_f64 c, lanes_s32 c_exponent, int fraction_bits) {
    lanes_s32 top = lanes_all(-1000);
    for (int i = first; i < first + count; i++)
        top = lanes_max(top, lanes_all(((const int32_t *)&a->exponent[i])[lane]) + b->exponent[i]);
    top = lanes_max(top + largest, c_exponent);
    /* Beyond these bounds every product vanishes, or is zero anyway. */
    lanes_s32 up = lanes_min(lanes_max(fraction_bits - (top - largest), lanes_all(-60)), lanes_all(120));
    lanes_f32 unit = lanes_power(up);
    /* 16 products below 2^27 fit an int32. */
    lanes_f64 sum = truncated(c * lanes_power_f64(fraction_bits - top));
    for (int start = first; start < first + count; start += 16) {
        lanes_s32 part = {0};
        int end = start + 16 < first + count ? start + 16 : first + count;
        for (int i = start; i < end; i++)
            part += __builtin_convertvector(lanes_all_f32(((const float *)&a->value[i])[lane]) * b->value[i] * unit,
                                            lanes_s32);
        sum += __builtin_convertvector(part, lanes_f64);
    }
    return sum * lanes_power_f64(top - fraction_bits);
}

/* Whether alignment loses nothing when the products are multiples of 2^-18 (2^-16) of `largest`, their bound: C must
 * neither push them below the last place kept (a zero has an exponent too) nor have bits there itself. */
static inline bool fits(lanes_f32 c, lanes_s32 c_exponent, lanes_s32 largest, int product_bits, int fraction_bits) {
    lanes_s32 magnitude = (lanes_s32)c & 0x7fffffff;
    lanes_s32 lost = c_exponent > largest + (fraction_bits - product_bits);
    lanes_s32 last = lanes_max((magnitude >> 23) - 127, lanes_all(-126)) - 23;
    lanes_s32 below = largest - fraction_bits - last; /* places of C under the last one kept */
    below = lanes_min(lanes_max(below, lanes_all(0)), lanes_all(24));
    lanes_s32 hidden = magnitude >= 0x00800000;
    lanes_s32 significand = (magnitude & 0x7fffff) | (hidden & 0x800000);
    lost |= (significand & ((lanes_all(1) << below) - 1)) != 0;
    return lanes_mask(lost) == 0;
}

static lanes_f32 fused_lanes(const tensor_op *op, const sum_rule *rule, const row_group *a, int lane,
                             const row_group *b, lanes_f32 c, lanes_s32 *by_element) {
    float factor = op->scale_input_d ? ldexpf(1, -op->scale_input_d) : 1;
    lanes_f32 sum = rule->via_f16 ? lanes_all_f32(0) : c;
    int product_bits = rule->fused > 16 ? 16 : 18;
    for (int first = 0, i = 0; first < op->k; first += rule->fused, i++) {
        *by_element |= ((lanes_s32)sum & 0x7f800000) == 0x7f800000;
        lanes_s32 exponent = c_exponents(op, sum), largest = b->largest[i] + ((const int32_t *)&a->largest[i])[lane];
        lanes_f64 wide = __builtin_convertvector(sum, lanes_f64) * (double)factor, exact;
        bool narrow = ((const int32_t *)&a->narrow[i])[lane] && lanes_mask(b->narrow[i]) == 0xff;
        if (narrow && rule->fraction_bits > product_bits && !op->scale_input_d &&
            fits(sum, exponent, largest, product_bits, rule->fraction_bits))
            exact = sum_exactly(a, lane, b, first, rule->fused, largest, wide);
        else
            exact = sum_aligned(a, lane, b, first, rule->fused, largest, wide, exponent, rule->fraction_bits);
        sum = round_result(op, rule, exact);
    }
    if (!rule->via_f16) return sum;
    *by_element |= ((lanes_s32)sum & 0x7f800000) == 0x7f800000;
    if (op->d_type == TENSOR_D_F32) return sum + c;
    return round_to_f16(__builtin_convertvector(sum, lanes_f64) + __builtin_convertvector(c, lanes_f64));
}

/* Four groups of 16 products of 4-bit elements, each exact in fp32 whatever the data. */
static lanes_f32 group_lanes(const tensor_op *op, const sum_rule *rule, const row_group *a, int lane,
                             const row_group *b, lanes_f32 c) {
    lanes_f32 group[4];
    lanes_s32 exponent[4], c_exponent = c_exponents(op, c), top = c_exponent;
    for (int g = 0; g < 4; g++) {
        int block = g * op->blocks / 4;
        lanes_f32 dot = lanes_all_f32(0);
        for (int i = 16 * g; i < 16 * g + 16; i++)
            dot = lanes_multiply_add(lanes_all_f32(((const float *)&a->value[i])[lane]), b->value[i], dot);
        group[g] = dot * b->scale[block] * ((const float *)&a->scale[block])[lane];
        exponent[g] = b->scale_exponent[block] + ((const int32_t *)&a->scale_exponent[block])[lane];
        top = lanes_max(top, exponent[g]);
    }
    lanes_f64 sum = truncated(__builtin_convertvector(c, lanes_f64) * lanes_power_f64(rule->fraction_bits - top));
    for (int g = 0; g < 4; g++)
        sum += truncated(__builtin_convertvector(group[g], lanes_f64) *
                         lanes_power_f64(rule->fraction_bits + exponent[g] - top));
    return round_result(op, rule, sum * lanes_power_f64(top - rule->fraction_bits));
}

static lanes_f32 plain_lanes(const tensor_op *op, const row_group *a, int lane, const row_group *b, lanes_f32 c) {
    int blocks = op->blocks ? op->blocks : 1, length = op->k / blocks;
    lanes_f64 sum = {0};
    for (int block = 0; block < blocks; block++) {
        lanes_f64 dot = {0};
        for (int i = block * length; i < (block + 1) * length; i++)
            dot += __builtin_convertvector(b->value[i], lanes_f64) * (double)((const float *)&a->value[i])[lane];
        if (op->blocks) {
            lanes_s32 exponent = b->scale_exponent[block] + ((const int32_t *)&a->scale_exponent[block])[lane];
            lanes_f32 significand = b->scale[block] * ((const float *)&a->scale[block])[lane];
            dot *= __builtin_convertvector(significand, lanes_f64) * lanes_power_f64(exponent);
        }
        sum += dot;
    }
    lanes_f64 total = sum + __builtin_convertvector(c, lanes_f64) * ldexp(1, -op->scale_input_d);
    if (op->d_type == TENSOR_D_F16) return round_to_f16(total);
    return __builtin_convertvector(total, lanes_f32) + 0.0F; /* makes +0 of a negative zero */
}

/* Products of bytes and their sums stay below 2^24. */
static lanes_s32 integer_lanes(const tensor_op *op, const row_group *a, int lane, const row_group *b, lanes_s32 c) {
    lanes_f32 dot = lanes_all_f32(0);
    for (int i = 0; i < op->k; i++)
        dot = lanes_multiply_add(lanes_all_f32(((const float *)&a->value[i])[lane]), b->value[i], dot);
    lanes_s32 products = __builtin_convertvector(dot, lanes_s32);
    lanes_s32 sum = (lanes_s32)((lanes_u32)products + (lanes_u32)c);
    if (!op->saturate) return sum;
    lanes_s32 overflow = ((products ^ sum) & (c ^ sum)) < 0;
    return lanes_select(overflow, (c >> 31) ^ INT32_MAX, sum);
}

static void multiply_row(const tensor_op *op, const sum_rule *rule, const row_group *a, int lane, int m,
                         const prepared_operand *b) {
    bool f16 = op->d_type == TENSOR_D_F16;
    for (int n = 0; n < op->n; n += LANES) {
        const row_group *columns = &b->group[n / LANES];
        int count = op->n - n < LANES ? op->n - n : LANES;
        lanes_s32 c_bits = {0}, d_bits;
        if (op->c)
            c_bits =
                load_outputs((const char *)op->c + m * op->c_stride + n * op->c_step, op->c_step, count, op->d_type);
        char *to = (char *)op->d + m * op->d_stride + n * op->d_step;
        if (op->d_type == TENSOR_D_S32) {
            store_outputs(to, op->d_step, count, op->d_type, integer_lanes(op, a, lane, columns, c_bits));
            continue;
        }
        lanes_f32 c = f16 ? f16_values(c_bits) : (lanes_f32)c_bits, d;
        lanes_s32 by_element = {0}, nan = columns->nan | ((const int32_t *)&a->nan)[lane];
        if (op->rule == TENSOR_FP64) {
            d = plain_lanes(op, a, lane, columns, c);
            nan |= d != d;
        } else {
            lanes_s32 magnitude = (lanes_s32)c & 0x7fffffff;
            nan |= magnitude > 0x7f800000;
            by_element = columns->by_element | ((const int32_t *)&a->by_element)[lane] | (magnitude == 0x7f800000);
            if (op->a_type == TENSOR_E2M1_PACKED)
                d = group_lanes(op, rule, a, lane, columns, c);
            else
                d = fused_lanes(op, rule, a, lane, columns, c, &by_element);
        }
        d_bits = f16 ? f16_patterns(d) : (lanes_s32)d;
        d_bits = lanes_select(nan, lanes_all(f16 ? TENSOR_NAN_F16 : TENSOR_NAN_F32), d_bits);
        for (unsigned left = lanes_mask(by_element & ~nan) & ((1U << count) - 1); left; left &= left - 1) {
            int i = __builtin_ctz(left);
            d_bits[i] = (int32_t)tensor_element_result(op, rule, m, n + i, (uint32_t)c_bits[i]);
        }
        store_outputs(to, op->d_step, count, op->d_type, d_bits);
    }
}

/* 390 KB together: too much for the stack of a fiber. */
static _Thread_local prepared_operand prepared_a, prepared_b;

void tensor_multiply(const tensor_op *op) {
    sum_rule rule = tensor_sum_rule(op);
    operand_source a = {op->a_type, op->a, op->a_stride, op->m, op->sfa, op->sfa_stride, op->negate_a != op->negate_b};
    operand_source b = {op->b_type, op->b, op->b_stride, op->n, op->sfb, op->sfb_stride, false};
    tensor_prepare(&prepared_a, &a, op, &rule);
    tensor_prepare(&prepared_b, &b, op, &rule);
    for (int m = 0; m < op->m; m++) multiply_row(op, &rule, &prepared_a.group[m / LANES], m % LANES, m, &prepared_b);
}
