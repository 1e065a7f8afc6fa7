/* Tensor-core arithmetic (arithmetic.h): the parameters of each architecture, the combinations that it rejects, and
 * the rule applied literally to one output at a time. arithmetic_lanes.c computes eight outputs at once.
 *
 * fp8 in TENSOR_SM90_MMA: ptxas has no instruction for mma.sync with e4m3 or e5m2 there. It converts the operands to
 * f16 and multiplies twice from a zero accumulator, first the elements with k % 4 < 2, then the others, and adds C
 * with FADD (HADD2 for an f16 C). Source: the SASS of ptxas 13.0 for sm_90a and sm_100a. */
#include "tensor/arithmetic.h"

#include "scalar/formats.h"
#include "tensor/arithmetic_rule.h"

#include <math.h>
#include <string.h>

static bool is_8bit_float(tensor_element type) {
    return type >= TENSOR_E4M3 && type <= TENSOR_E2M1_SHIFTED;
}

static bool is_fp8(tensor_element type) {
    return type == TENSOR_E4M3 || type == TENSOR_E5M2;
}

bool tensor_is_integer(tensor_element type) {
    return type == TENSOR_S8 || type == TENSOR_U8;
}

sum_rule tensor_sum_rule(const tensor_op *op) {
    sum_rule rule = {op->k, op->architecture == TENSOR_SM80_MMA ? 24 : 25, 23, false};
    if (op->a_type == TENSOR_E2M1_PACKED) {
        rule.fraction_bits = 35;
    } else if (is_fp8(op->a_type) && op->architecture == TENSOR_SM90_MMA) {
        rule.via_f16 = true;
        rule.fused = op->k / 2;
    } else if (is_fp8(op->a_type) && op->architecture != TENSOR_SM100) {
        rule.fraction_bits = rule.result_bits = 13;
    }
    if (op->architecture == TENSOR_SM80_MMA) {
        int most = op->a_type == TENSOR_TF32 ? 4 : is_fp8(op->a_type) ? 16 : 8;
        if (rule.fused > most) rule.fused = most;
    }
    return rule;
}

int tensor_k_of(const tensor_op *op, const sum_rule *rule, int i) {
    if (!rule->via_f16) return i;
    int half = op->k / 2, j = i % half;
    return j / 2 * 4 + j % 2 + (i >= half ? 2 : 0);
}

const char *tensor_rejection(const tensor_op *op) {
    bool packed = op->a_type == TENSOR_E2M1_PACKED, integer = tensor_is_integer(op->a_type);
    bool tf32 = op->a_type == TENSOR_TF32, half = op->a_type == TENSOR_F16 || op->a_type == TENSOR_BF16;
    bool mixed = (is_8bit_float(op->a_type) && is_8bit_float(op->b_type)) || (integer && tensor_is_integer(op->b_type));
    if (op->m < 1 || op->m > 256 || op->n < 1 || op->n > 256) return "M and N lie between 1 and 256";
    if (op->a_type != op->b_type && !mixed) return "A and B of these two types cannot be multiplied";
    if (half && op->k != 8 && op->k != 16) return "K is 8 or 16 for 16-bit elements";
    if (tf32 && op->k != 4 && op->k != 8) return "K is 4 or 8 for tf32";
    if ((is_8bit_float(op->a_type) || integer) && op->k != 16 && op->k != 32) return "K is 16 or 32 for 8-bit elements";
    if (packed && op->k != 64) return "K is 64 for packed 4-bit elements";
    if (integer != (op->d_type == TENSOR_D_S32)) return "integer elements and an s32 accumulator need each other";
    if (op->d_type == TENSOR_D_F16 && (op->a_type == TENSOR_BF16 || tf32 || packed))
        return "an f16 accumulator exists for f16, 8-bit and unpacked narrower elements only";
    if (op->saturate && !integer) return "saturation of the sum exists for integer elements only";
    if (op->architecture != TENSOR_SM100) {
        if (packed || op->scale_type != TENSOR_UNSCALED) return "block scales exist from sm_100 on";
        if (!integer && is_8bit_float(op->a_type) && !(is_fp8(op->a_type) && is_fp8(op->b_type)))
            return "6- and 4-bit elements exist from sm_100 on";
        if (op->scale_input_d) return "scale-input-d exists in tcgen05.mma only";
    }
    if (op->scale_input_d < 0 || op->scale_input_d > 15) return "scale-input-d lies between 0 and 15";
    if (op->scale_input_d && !(tf32 || half)) return "scale-input-d exists for tf32, f16 and bf16 only";
    if (packed) {
        if (op->scale_type == TENSOR_UNSCALED) return "packed 4-bit elements need block scales";
        if (op->blocks != 2 && op->blocks != 4) return "packed 4-bit elements take 2 or 4 scales a row";
    } else if (op->scale_type != TENSOR_UNSCALED) {
        if (!is_8bit_float(op->a_type) || op->k != 32) return "these elements take no block scales";
        if (op->scale_type != TENSOR_UE8M0 || op->blocks != 1) return "8-bit elements take one UE8M0 scale a row";
        if (op->d_type != TENSOR_D_F32) return "block scales need an fp32 accumulator";
    } else if (op->blocks != 0) {
        return "there are scales but no type of scale";
    }
    return NULL;
}

int tensor_smallest_exponent(tensor_element type, const sum_rule *rule) {
    switch (type) {
    case TENSOR_F16:
    case TENSOR_E5M2:
        return -14;
    case TENSOR_E4M3:
        return rule->via_f16 ? -14 : -6;
    case TENSOR_E3M2:
        return -2;
    case TENSOR_E2M3:
    case TENSOR_E2M1:
    case TENSOR_E2M1_SHIFTED:
    case TENSOR_E2M1_PACKED:
        return 0;
    default:
        return -126;
    }
}

static float element_value(tensor_element type, const void *row, int k) {
    const uint8_t *bytes = row;
    uint16_t half;
    uint32_t word;
    switch (type) {
    case TENSOR_F16:
        memcpy(&half, bytes + 2 * k, 2);
        return f16_to_float(half);
    case TENSOR_BF16:
        memcpy(&half, bytes + 2 * k, 2);
        return bf16_to_float(half);
    case TENSOR_TF32:
        memcpy(&word, bytes + 4 * k, 4);
        return tf32_to_float(word);
    case TENSOR_E4M3:
        return e4m3_to_float(bytes[k]);
    case TENSOR_E5M2:
        return e5m2_to_float(bytes[k]);
    case TENSOR_E2M3:
        return e2m3_to_float(bytes[k]);
    case TENSOR_E3M2:
        return e3m2_to_float(bytes[k]);
    case TENSOR_E2M1:
        return e2m1_to_float(bytes[k]);
    case TENSOR_E2M1_SHIFTED:
        return e2m1_to_float(bytes[k] >> 2);
    case TENSOR_E2M1_PACKED:
        return e2m1_to_float(bytes[k / 2] >> (k % 2 * 4));
    case TENSOR_S8:
        return (int8_t)bytes[k];
    case TENSOR_U8:
        return bytes[k];
    }
    return NAN;
}

static float scale_value(tensor_scale type, const uint8_t *scales, int block) {
    if (type == TENSOR_UNSCALED) return 1;
    return type == TENSOR_UE4M3 ? ue4m3_to_float(scales[block]) : ue8m0_to_float(scales[block]);
}

/* x = significand * 2^(exponent - 23) with the exponent that the hardware aligns by: not below `smallest`, -126 for
 * zero. */
typedef struct {
    int64_t significand;
    int exponent;
} aligned_number;

static aligned_number take_apart(float x, int smallest) {
    if (x == 0) return (aligned_number){0, -126};
    int exponent = ilogbf(x);
    if (exponent < smallest) exponent = smallest;
    return (aligned_number){(int64_t)ldexp(x, 23 - exponent), exponent};
}

/* significand * 2^-bits, truncated toward zero to a multiple of 2^-kept after a shift down by `down` places, in units
 * of 2^-kept. */
static int64_t align(int64_t significand, int bits, int kept, int down) {
    int shift = bits - kept + down;
    if (shift <= 0) return significand * (INT64_C(1) << -shift);
    if (shift > 62) return 0;
    int64_t magnitude = (significand < 0 ? -significand : significand) >> shift;
    return significand < 0 ? -magnitude : magnitude;
}

/* sum * 2^exponent as the result's pattern. A result of zero is +0, and truncation gives infinity beyond the range. */
static uint32_t result_of(const tensor_op *op, const sum_rule *rule, int64_t sum, int exponent) {
    uint64_t magnitude = sum < 0 ? -(uint64_t)sum : (uint64_t)sum;
    uint32_t bits;
    if (op->d_type == TENSOR_D_F16) {
        bits = (uint32_t)format_encode(&format_f16, sum < 0, magnitude, exponent, false, ROUND_RN, 0);
        return bits & 0x7fff ? bits : 0;
    }
    if (sum != 0 && 63 - __builtin_clzll(magnitude) + exponent > 127) return sum < 0 ? 0xff800000U : 0x7f800000U;
    float_format format = {8, rule->result_bits, 127, SPECIALS_IEEE};
    bits = (uint32_t)format_encode(&format, sum < 0, magnitude, exponent, false, ROUND_RZ, 0)
           << (23 - rule->result_bits);
    return bits & 0x7fffffff ? bits : 0;
}

static uint32_t special_result(const tensor_op *op, double value) {
    bool f16 = op->d_type == TENSOR_D_F16;
    if (value != value) return f16 ? TENSOR_NAN_F16 : TENSOR_NAN_F32;
    uint32_t infinity = f16 ? 0x7c00 : 0x7f800000;
    return value < 0 ? infinity | (f16 ? 0x8000 : 0x80000000U) : infinity;
}

static float accumulator_value(const tensor_op *op, uint32_t bits) {
    if (op->d_type == TENSOR_D_F16) return f16_to_float((uint16_t)bits);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t fused_sum(const tensor_op *op, const sum_rule *rule, int m, int n, int first, uint32_t c_bits) {
    const char *a_row = (const char *)op->a + m * op->a_stride, *b_row = (const char *)op->b + n * op->b_stride;
    float c = accumulator_value(op, c_bits);
    float sa = scale_value(op->scale_type, op->sfa + (op->sfa ? m * op->sfa_stride : 0), 0);
    float sb = scale_value(op->scale_type, op->sfb + (op->sfb ? n * op->sfb_stride : 0), 0);
    int scale_exponent = 0;
    if (op->scale_type != TENSOR_UNSCALED && sa == sa && sb == sb) scale_exponent = ilogbf(sa) + ilogbf(sb);

    int64_t products[64];
    int exponents[64];
    double value = c;
    aligned_number c_number = {0, -126};
    if (isfinite(c)) c_number = take_apart(c, op->d_type == TENSOR_D_F16 ? -14 : -126);
    if (c != 0) c_number.exponent -= op->scale_input_d;
    int largest = c_number.exponent;
    for (int i = 0; i < rule->fused; i++) {
        int k = tensor_k_of(op, rule, first + i);
        float x = element_value(op->a_type, a_row, k), y = element_value(op->b_type, b_row, k);
        if (op->negate_a != op->negate_b) x = -x;
        value += (double)x * y * sa * sb;
        if (!isfinite(x) || !isfinite(y)) continue;
        aligned_number xs = take_apart(x, tensor_smallest_exponent(op->a_type, rule));
        aligned_number ys = take_apart(y, tensor_smallest_exponent(op->b_type, rule));
        products[i] = (xs.significand >> 12) * (ys.significand >> 12); /* at most 11 bits of each are there */
        exponents[i] = xs.exponent + ys.exponent + scale_exponent;
        if (exponents[i] > largest) largest = exponents[i];
    }
    if (!isfinite(value)) return special_result(op, value);
    int kept = rule->fraction_bits;
    int64_t sum = align(c_number.significand, 23, kept, largest - c_number.exponent);
    for (int i = 0; i < rule->fused; i++) sum += align(products[i], 22, kept, largest - exponents[i]);
    return result_of(op, rule, sum, largest - kept);
}

/* The 4-bit kinds: four groups of 16 products, each summed exactly, then one fused sum of the groups and C. */
static uint32_t group_sum(const tensor_op *op, const sum_rule *rule, int m, int n, uint32_t c_bits) {
    const char *a_row = (const char *)op->a + m * op->a_stride, *b_row = (const char *)op->b + n * op->b_stride;
    float c = accumulator_value(op, c_bits);
    int64_t groups[4];
    int exponents[4];
    if (c != c) return TENSOR_NAN_F32;
    aligned_number c_number = {0, -126};
    if (isfinite(c)) c_number = take_apart(c, -126);
    int largest = c_number.exponent;
    for (int g = 0; g < 4; g++) {
        float sa = scale_value(op->scale_type, op->sfa + m * op->sfa_stride, g * op->blocks / 4);
        float sb = scale_value(op->scale_type, op->sfb + n * op->sfb_stride, g * op->blocks / 4);
        if (sa != sa || sb != sb) return TENSOR_NAN_F32;
        int smallest = op->scale_type == TENSOR_UE4M3 ? -6 : -127;
        aligned_number as = take_apart(sa, smallest), bs = take_apart(sb, smallest);
        float dot = 0; /* a multiple of 1/4 up to 576 */
        for (int k = 16 * g; k < 16 * g + 16; k++)
            dot += element_value(op->a_type, a_row, k) * element_value(op->b_type, b_row, k);
        if (op->negate_a != op->negate_b) dot = -dot;
        groups[g] = (int64_t)(dot * 4) * (as.significand >> 20) * (bs.significand >> 20);
        exponents[g] = as.exponent + bs.exponent;
        if (exponents[g] > largest) largest = exponents[g];
    }
    if (!isfinite(c)) return special_result(op, c);
    int kept = rule->fraction_bits;
    int64_t sum = align(c_number.significand, 23, kept, largest - c_number.exponent);
    for (int g = 0; g < 4; g++) sum += align(groups[g], 8, kept, largest - exponents[g]);
    return result_of(op, rule, sum, largest - kept);
}

static uint32_t integer_sum(const tensor_op *op, int m, int n, uint32_t c) {
    const char *a_row = (const char *)op->a + m * op->a_stride, *b_row = (const char *)op->b + n * op->b_stride;
    int64_t sum = 0;
    for (int k = 0; k < op->k; k++)
        sum += (int64_t)element_value(op->a_type, a_row, k) * (int64_t)element_value(op->b_type, b_row, k);
    if (op->negate_a != op->negate_b) sum = -sum;
    sum += (int32_t)c;
    if (op->saturate && sum > INT32_MAX) return INT32_MAX;
    if (op->saturate && sum < INT32_MIN) return (uint32_t)INT32_MIN;
    return (uint32_t)sum;
}

/* The rule TENSOR_FP64: a block's products in the order of k, the blocks in their order, C last. */
static uint32_t plain_sum(const tensor_op *op, int m, int n, uint32_t c_bits) {
    const char *a_row = (const char *)op->a + m * op->a_stride, *b_row = (const char *)op->b + n * op->b_stride;
    int blocks = op->blocks ? op->blocks : 1, length = op->k / blocks;
    double sum = 0;
    for (int block = 0; block < blocks; block++) {
        double sa = 1, sb = 1, dot = 0;
        if (op->blocks) {
            sa = scale_value(op->scale_type, op->sfa + m * op->sfa_stride, block);
            sb = scale_value(op->scale_type, op->sfb + n * op->sfb_stride, block);
        }
        for (int k = block * length; k < (block + 1) * length; k++)
            dot += (double)element_value(op->a_type, a_row, k) * element_value(op->b_type, b_row, k);
        sum += dot * (sa * sb);
    }
    if (op->negate_a != op->negate_b) sum = -sum;
    sum += ldexp(accumulator_value(op, c_bits), -op->scale_input_d);
    if (!isfinite(sum)) return special_result(op, sum);
    const float_format *format = op->d_type == TENSOR_D_F16 ? &format_f16 : &format_f32;
    uint32_t bits = (uint32_t)format_from_double(format, sum, ROUND_RN, 0);
    return bits & (op->d_type == TENSOR_D_F16 ? 0x7fff : 0x7fffffff) ? bits : 0;
}

uint32_t tensor_element_result(const tensor_op *op, const sum_rule *rule, int m, int n, uint32_t c) {
    if (op->d_type == TENSOR_D_S32) return integer_sum(op, m, n, c);
    if (op->rule == TENSOR_FP64) return plain_sum(op, m, n, c);
    if (op->a_type == TENSOR_E2M1_PACKED) return group_sum(op, rule, m, n, c);
    uint32_t sum = rule->via_f16 ? 0 : c;
    for (int first = 0; first < op->k; first += rule->fused) sum = fused_sum(op, rule, m, n, first, sum);
    if (!rule->via_f16) return sum;
    double total = (double)accumulator_value(op, c) + accumulator_value(op, sum);
    if (!isfinite(total)) return special_result(op, total);
    return (uint32_t)format_from_double(op->d_type == TENSOR_D_F16 ? &format_f16 : &format_f32, total, ROUND_RN, 0);
}

void tensor_multiply_by_element(const tensor_op *op) {
    sum_rule rule = tensor_sum_rule(op);
    size_t size = op->d_type == TENSOR_D_F16 ? 2 : 4;
    for (int m = 0; m < op->m; m++)
        for (int n = 0; n < op->n; n++) {
            uint32_t c = 0;
            if (op->c) memcpy(&c, (const char *)op->c + m * op->c_stride + n * op->c_step, size);
            uint32_t d = tensor_element_result(op, &rule, m, n, c);
            memcpy((char *)op->d + m * op->d_stride + n * op->d_step, &d, size);
        }
}
