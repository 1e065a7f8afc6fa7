/* Operands of tensor_multiply for eight lanes: rows transposed, elements decoded to fp32, exponents, and the
 * properties of each row that the fast paths need. */
#include "tensor/arithmetic_lanes.h"

#include <string.h>

/* Rows whose exponents lie further apart than this are left to the rule by element: relative to the largest, a
 * product of two such numbers would leave the range of fp32. Only bf16 and tf32 can. */
enum { WIDEST_SPAN = 40 };

typedef uint16_t eight_u16 __attribute__((vector_size(16)));
typedef uint8_t eight_u8 __attribute__((vector_size(8)));
typedef int8_t eight_s8 __attribute__((vector_size(8)));

/* row[i][j] becomes row[j][i]. */
static inline void transpose(lanes_u32 row[LANES]) {
    lanes_u32 pairs[LANES], quads[LANES];
#pragma GCC unroll 4
    for (int i = 0; i < LANES; i += 2) {
        pairs[i] = __builtin_shuffle(row[i], row[i + 1], (lanes_u32){0, 8, 1, 9, 4, 12, 5, 13});
        pairs[i + 1] = __builtin_shuffle(row[i], row[i + 1], (lanes_u32){2, 10, 3, 11, 6, 14, 7, 15});
    }
#pragma GCC unroll 2
    for (int i = 0; i < LANES; i += 4)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            quads[i + 2 * j] = __builtin_shuffle(pairs[i + j], pairs[i + 2 + j], (lanes_u32){0, 1, 8, 9, 4, 5, 12, 13});
            quads[i + 2 * j + 1] =
                __builtin_shuffle(pairs[i + j], pairs[i + 2 + j], (lanes_u32){2, 3, 10, 11, 6, 7, 14, 15});
        }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        row[i] = __builtin_shuffle(quads[i], quads[i + 4], (lanes_u32){0, 1, 2, 3, 8, 9, 10, 11});
        row[i + 4] = __builtin_shuffle(quads[i], quads[i + 4], (lanes_u32){4, 5, 6, 7, 12, 13, 14, 15});
    }
}

typedef struct {
    int exponent_bits, mantissa_bits, bias, shift;
    uint32_t special; /* the least magnitude that is infinity or NaN */
} small_layout;

static small_layout layout_of(tensor_element type) {
    switch (type) {
    case TENSOR_F16:
        return (small_layout){5, 10, 15, 0, 0x7c00};
    case TENSOR_E5M2:
        return (small_layout){5, 2, 15, 0, 0x7c};
    case TENSOR_E4M3:
        return (small_layout){4, 3, 7, 0, 0x7f};
    case TENSOR_E2M3:
        return (small_layout){2, 3, 1, 0, 256};
    case TENSOR_E3M2:
        return (small_layout){3, 2, 3, 0, 256};
    case TENSOR_E2M1_SHIFTED:
        return (small_layout){2, 1, 1, 2, 256};
    default:
        return (small_layout){2, 1, 1, 0, 256};
    }
}

static inline lanes_u32 decode_small(lanes_u32 raw, const small_layout *layout) {
    int width = layout->exponent_bits + layout->mantissa_bits;
    lanes_u32 bits = raw >> layout->shift;
    lanes_u32 magnitude = bits & ((1U << width) - 1);
    lanes_s32 value = (lanes_s32)lanes_small_float(magnitude, layout->mantissa_bits, layout->bias);
    /* The mantissa tells infinity from NaN in fp32 too; e4m3's NaN has one. */
    lanes_s32 special = (lanes_s32)(0x7f800000 | (magnitude & ((1U << layout->mantissa_bits) - 1)));
    value = lanes_select((lanes_s32)(magnitude >= layout->special), special, value);
    return (lanes_u32)value | (bits >> width & 1) << 31;
}

/* Eight elements along K as fp32 patterns. `type` is a constant wherever this is inlined, but for the 8-bit kinds. */
static inline __attribute__((always_inline)) lanes_u32 load_eight(const char *from, tensor_element type,
                                                                  const small_layout *layout) {
    lanes_u32 words;
    eight_u16 halves;
    eight_u8 bytes;
    eight_s8 signed_bytes;
    uint32_t nibbles;
    switch (type) {
    case TENSOR_TF32:
        memcpy(&words, from, 32);
        return words & 0xffffe000;
    case TENSOR_BF16:
        memcpy(&halves, from, 16);
        return __builtin_convertvector(halves, lanes_u32) << 16;
    case TENSOR_F16:
        memcpy(&halves, from, 16);
#ifdef __F16C__
        return (lanes_u32)_mm256_cvtph_ps((__m128i)halves);
#else
        return decode_small(__builtin_convertvector(halves, lanes_u32), layout);
#endif
    case TENSOR_S8:
        memcpy(&signed_bytes, from, 8);
        return (lanes_u32) __builtin_convertvector(__builtin_convertvector(signed_bytes, lanes_s32), lanes_f32);
    case TENSOR_U8:
        memcpy(&bytes, from, 8);
        return (lanes_u32) __builtin_convertvector(__builtin_convertvector(bytes, lanes_s32), lanes_f32);
    case TENSOR_E2M1_PACKED: {
        memcpy(&nibbles, from, 4);
        lanes_u32 codes = ((lanes_u32){0} + nibbles) >> (lanes_u32){0, 4, 8, 12, 16, 20, 24, 28};
        lanes_f32 magnitude = __builtin_shuffle((lanes_f32){0, 0.5F, 1, 1.5F, 2, 3, 4, 6}, codes & 7);
        return (lanes_u32)magnitude | (codes & 8) << 28;
    }
    default:
        memcpy(&bytes, from, 8);
        return decode_small(__builtin_convertvector(bytes, lanes_u32), layout);
    }
}

static int element_bits(tensor_element type) {
    switch (type) {
    case TENSOR_F16:
    case TENSOR_BF16:
        return 16;
    case TENSOR_TF32:
        return 32;
    case TENSOR_E2M1_PACKED:
        return 4;
    default:
        return 8;
    }
}

static inline __attribute__((always_inline)) void gather(row_group *group, const char *const row[LANES], int k,
                                                         uint32_t sign, tensor_element type,
                                                         const small_layout *layout) {
    for (int i = 0; i < k; i += LANES) {
        lanes_u32 block[LANES];
#pragma GCC unroll 8
        for (int r = 0; r < LANES; r++) block[r] = load_eight(row[r] + i * element_bits(type) / 8, type, layout) ^ sign;
        transpose(block);
#pragma GCC unroll 8
        for (int j = 0; j < LANES; j++) group->value[i + j] = (lanes_f32)block[j];
    }
}

static void gather_rows(row_group *group, const operand_source *source, int first, int k) {
    static const char zeros[4 * MOST_K];
    const char *row[LANES];
    for (int r = 0; r < LANES; r++)
        row[r] = first + r < source->count ? source->rows + (first + r) * source->stride : zeros;
    char short_row[LANES][32];
    if (k < LANES) { /* tf32 with K = 4 */
        for (int r = 0; r < LANES; r++) row[r] = memcpy(memset(short_row[r], 0, 32), row[r], 16);
    }
    uint32_t sign = source->negate ? 0x80000000U : 0;
    small_layout layout = layout_of(source->type);
    switch (source->type) {
    case TENSOR_F16:
        gather(group, row, k, sign, TENSOR_F16, &layout);
        break;
    case TENSOR_BF16:
        gather(group, row, k, sign, TENSOR_BF16, &layout);
        break;
    case TENSOR_TF32:
        gather(group, row, k, sign, TENSOR_TF32, &layout);
        break;
    case TENSOR_S8:
        gather(group, row, k, sign, TENSOR_S8, &layout);
        break;
    case TENSOR_U8:
        gather(group, row, k, sign, TENSOR_U8, &layout);
        break;
    case TENSOR_E2M1_PACKED:
        gather(group, row, k, sign, TENSOR_E2M1_PACKED, &layout);
        break;
    default:
        gather(group, row, k, sign, TENSOR_E4M3, &layout);
        break;
    }
}

/* Makes one fused sum's elements relative to the row's largest exponent. */
static void align_rows(row_group *group, int sum, int first, int count, int smallest, bool wide) {
    lanes_s32 greatest = lanes_all(0);
#pragma GCC unroll 4
    for (int i = first; i < first + count; i++) greatest = lanes_max(greatest, (lanes_s32)group->value[i] & 0x7fffffff);
    lanes_s32 largest = lanes_max((greatest >> 23) - 127, lanes_all(smallest));
    largest = lanes_select(greatest == 0, lanes_all(-126), largest);
    group->nan |= greatest > 0x7f800000;
    group->by_element |= greatest == 0x7f800000;
    group->largest[sum] = group->element_largest[sum] = largest;
    lanes_f32 factor = lanes_power(-largest); /* not for a row of specials, whose values do not count */
    if (wide) {
        lanes_s32 least = greatest;
        lanes_f32 half_way = lanes_power(-(largest >> 1)); /* 2^-127 would be subnormal */
        for (int i = first; i < first + count; i++) {
            lanes_s32 magnitude = (lanes_s32)group->value[i] & 0x7fffffff;
            least = lanes_min(least, lanes_select(magnitude == 0, greatest, magnitude));
            group->value[i] *= half_way;
        }
        group->by_element |= (greatest >> 23) - (least >> 23) > WIDEST_SPAN;
        factor = lanes_power(-(largest - (largest >> 1)));
    }
    /* Adding 1.5 * 2^(23 - 13) rounds a value below 2 to a multiple of 2^-13, and leaves that multiple in the low bits
     * of the pattern, where the mantissa of the constant itself has zeros. */
    const float rounder = 1.5F * (float)(1 << (23 - 13));
    lanes_s32 same = lanes_all(-1), multiples = lanes_all(1 << 13);
#pragma GCC unroll 4
    for (int i = first; i < first + count; i++) {
        lanes_f32 value = group->value[i] * factor, rounded = value + rounder;
        group->value[i] = value;
        same &= (lanes_s32)(rounded - rounder == value);
        multiples |= (lanes_s32)rounded;
    }
    multiples |= __builtin_shuffle(multiples, (lanes_s32){4, 5, 6, 7, 0, 1, 2, 3});
    multiples |= __builtin_shuffle(multiples, (lanes_s32){2, 3, 0, 1, 6, 7, 4, 5});
    group->bits[sum] = 13 - __builtin_ctz((unsigned)(multiples[0] | multiples[1]));
    if (lanes_mask(same) != 0xff) group->bits[sum] = MANY_BITS;
}

void tensor_fill_exponents(row_group *group, tensor_element type, const tensor_op *op, const sum_rule *rule) {
    int smallest = tensor_smallest_exponent(type, rule);
    for (int first = 0, sum = 0; first < op->k; first += rule->fused, sum++) {
        lanes_s32 least = smallest - group->element_largest[sum], of_zero = -126 - group->element_largest[sum];
        for (int i = first; i < first + rule->fused; i++) {
            lanes_s32 magnitude = (lanes_s32)group->value[i] & 0x7fffffff;
            lanes_s32 exponent = lanes_max((magnitude >> 23) - 127, least);
            group->exponent[i] = lanes_select(magnitude == 0, of_zero, exponent);
        }
    }
    group->has_exponents = true;
}

static void prepare_scales(row_group *group, const operand_source *source, const tensor_op *op, int first) {
    int rows = source->count - first < LANES ? source->count - first : LANES;
    for (int block = 0; block < op->blocks; block++) {
        lanes_u32 bytes = {0};
        for (int r = 0; r < rows; r++) bytes[r] = source->scales[(first + r) * source->scale_stride + block];
        if (op->scale_type == TENSOR_UE8M0) {
            group->nan |= (lanes_s32)(bytes == 255);
            group->scale[block] = lanes_all_f32(1);
            group->scale_exponent[block] = (lanes_s32)bytes - 127;
        } else {
            lanes_u32 magnitude = bytes & 127;
            lanes_s32 exponent = lanes_max((lanes_s32)(magnitude >> 3) - 7, lanes_all(-6));
            group->nan |= (lanes_s32)(magnitude == 127);
            group->scale[block] = lanes_small_float(magnitude, 3, 7) * lanes_power(-exponent);
            group->scale_exponent[block] = lanes_select((lanes_s32)(magnitude == 0), lanes_all(-126), exponent);
        }
    }
}

/* Puts first, within K, what the sums through f16 take first. */
static void reorder(row_group *group, const tensor_op *op, const sum_rule *rule) {
    lanes_f32 natural[MOST_K];
    memcpy(natural, group->value, sizeof natural);
    for (int i = 0; i < op->k; i++) group->value[i] = natural[tensor_k_of(op, rule, i)];
}

void tensor_prepare(prepared_operand *operand, const operand_source *source, const tensor_op *op,
                    const sum_rule *rule) {
    bool fused = op->rule == TENSOR_HARDWARE && source->type != TENSOR_E2M1_PACKED && op->d_type != TENSOR_D_S32;
    bool wide = source->type == TENSOR_BF16 || source->type == TENSOR_TF32;
    int smallest = tensor_smallest_exponent(source->type, rule);
    for (int first = 0; first < source->count; first += LANES) {
        row_group *group = &operand->group[first / LANES];
        group->nan = group->by_element = lanes_all(0);
        group->has_exponents = false;
        gather_rows(group, source, first, op->k);
        if (rule->via_f16) reorder(group, op, rule);
        if (op->blocks) prepare_scales(group, source, op, first);
        if (!fused) continue;
        for (int i = 0; i < op->k; i += rule->fused) align_rows(group, i / rule->fused, i, rule->fused, smallest, wide);
        if (op->blocks) group->largest[0] += group->scale_exponent[0];
        group->plain = lanes_mask(group->nan | group->by_element) == 0;
    }
}
