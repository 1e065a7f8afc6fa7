/* Operands of tensor_multiply, made ready for eight lanes: rows transposed, elements decoded to fp32, exponents and
 * what the fast paths need to know of each row. */
#include "tensor_lanes.h"

#include "formats.h"

#include <math.h>
#include <string.h>

/* Rows whose exponents lie further apart than this are left to the rule by element: relative to the largest, a
 * product of two such numbers would leave the range of fp32. Only bf16 and tf32 can. */
enum { WIDEST_SPAN = 40 };

typedef uint16_t eight_u16 __attribute__((vector_size(16)));
typedef uint8_t eight_u8 __attribute__((vector_size(8)));

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

static lanes_u32 load_eight(const char *from, int bits) {
    lanes_u32 words;
    eight_u16 halves;
    eight_u8 bytes;
    switch (bits) {
    case 32:
        memcpy(&words, from, 32);
        return words;
    case 16:
        memcpy(&halves, from, 16);
        return __builtin_convertvector(halves, lanes_u32);
    case 8:
        memcpy(&bytes, from, 8);
        return __builtin_convertvector(bytes, lanes_u32);
    default: {
        uint32_t nibbles;
        memcpy(&nibbles, from, 4);
        lanes_u32 all = {nibbles, nibbles, nibbles, nibbles, nibbles, nibbles, nibbles, nibbles};
        return all >> (lanes_u32){0, 4, 8, 12, 16, 20, 24, 28} & 15;
    }
    }
}

/* row[i][j] becomes row[j][i]. */
static void transpose(lanes_u32 row[LANES]) {
    lanes_u32 pairs[LANES], quads[LANES];
    for (int i = 0; i < LANES; i += 2) {
        pairs[i] = __builtin_shuffle(row[i], row[i + 1], (lanes_u32){0, 8, 1, 9, 4, 12, 5, 13});
        pairs[i + 1] = __builtin_shuffle(row[i], row[i + 1], (lanes_u32){2, 10, 3, 11, 6, 14, 7, 15});
    }
    for (int i = 0; i < LANES; i += 4)
        for (int j = 0; j < 2; j++) {
            quads[i + 2 * j] = __builtin_shuffle(pairs[i + j], pairs[i + 2 + j], (lanes_u32){0, 1, 8, 9, 4, 5, 12, 13});
            quads[i + 2 * j + 1] =
                __builtin_shuffle(pairs[i + j], pairs[i + 2 + j], (lanes_u32){2, 3, 10, 11, 6, 7, 14, 15});
        }
    for (int i = 0; i < 4; i++) {
        row[i] = __builtin_shuffle(quads[i], quads[i + 4], (lanes_u32){0, 1, 2, 3, 8, 9, 10, 11});
        row[i + 4] = __builtin_shuffle(quads[i], quads[i + 4], (lanes_u32){4, 5, 6, 7, 12, 13, 14, 15});
    }
}

static void gather_rows(lanes_u32 *raw, const operand_source *source, int first, int k) {
    int bits = element_bits(source->type);
    int rows = source->count - first < LANES ? source->count - first : LANES;
    const char *row = source->rows + first * source->stride;
    if (k % LANES) { /* tf32 with K = 4 */
        for (int i = 0; i < k; i++) raw[i] = (lanes_u32){0};
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < k; i++) {
                uint32_t word;
                memcpy(&word, row + r * source->stride + 4 * i, 4);
                raw[i][r] = word;
            }
        return;
    }
    for (int i = 0; i < k; i += LANES) {
        for (int r = 0; r < rows; r++) raw[i + r] = load_eight(row + r * source->stride + i * bits / 8, bits);
        for (int r = rows; r < LANES; r++) raw[i + r] = (lanes_u32){0};
        transpose(raw + i);
    }
}

typedef struct {
    int exponent_bits, mantissa_bits, bias, shift;
    bool ieee, nan; /* the highest exponent is special; all ones are NaN */
} small_layout;

static small_layout layout_of(tensor_element type) {
    switch (type) {
    case TENSOR_F16:
        return (small_layout){5, 10, 15, 0, true, false};
    case TENSOR_E5M2:
        return (small_layout){5, 2, 15, 0, true, false};
    case TENSOR_E4M3:
        return (small_layout){4, 3, 7, 0, false, true};
    case TENSOR_E2M3:
        return (small_layout){2, 3, 1, 0, false, false};
    case TENSOR_E3M2:
        return (small_layout){3, 2, 3, 0, false, false};
    case TENSOR_E2M1_SHIFTED:
        return (small_layout){2, 1, 1, 2, false, false};
    default:
        return (small_layout){2, 1, 1, 0, false, false};
    }
}

static void decode(row_group *group, const lanes_u32 *raw, tensor_element type, int k) {
    if (type == TENSOR_BF16 || type == TENSOR_TF32) {
        int shift = type == TENSOR_BF16 ? 16 : 0;
        for (int i = 0; i < k; i++) group->value[i] = (lanes_f32)(raw[i] << shift & 0xffffe000);
    } else if (tensor_is_integer(type)) {
        int shift = type == TENSOR_S8 ? 24 : 0;
        for (int i = 0; i < k; i++)
            group->value[i] = __builtin_convertvector((lanes_s32)(raw[i] << shift) >> shift, lanes_f32);
    } else {
        small_layout layout = layout_of(type);
        int width = layout.exponent_bits + layout.mantissa_bits;
        uint32_t all_ones = (1U << width) - 1;
        uint32_t special = layout.ieee  ? all_ones - (1U << layout.mantissa_bits) + 1
                           : layout.nan ? all_ones
                                        : all_ones + 1;
        for (int i = 0; i < k; i++) {
            lanes_u32 bits = raw[i] >> layout.shift;
            lanes_u32 magnitude = bits & all_ones;
            lanes_u32 value = (lanes_u32)lanes_small_float(magnitude, layout.mantissa_bits, layout.bias);
            /* Adding the mantissa to infinity's pattern makes NaN of NaN; e4m3's NaN has one. */
            lanes_u32 beyond = 0x7f800000 | (magnitude & ((1U << layout.mantissa_bits) - 1));
            value = (lanes_u32)lanes_select((lanes_s32)(magnitude >= special), (lanes_s32)beyond, (lanes_s32)value);
            group->value[i] = (lanes_f32)(value | (bits >> width & 1) << 31);
        }
    }
}

/* Exponents of one fused sum's elements, everything made relative to the row's largest. */
static void align_rows(row_group *group, int sum, int first, int count, int smallest) {
    lanes_s32 largest = lanes_all(-126), least = lanes_all(127), lowest = lanes_all(smallest);
    for (int i = first; i < first + count; i++) {
        lanes_s32 magnitude = (lanes_s32)group->value[i] & 0x7fffffff;
        lanes_s32 exponent = lanes_max((magnitude >> 23) - 127, lowest), zero = magnitude == 0;
        group->nan |= magnitude > 0x7f800000;
        group->by_element |= magnitude == 0x7f800000;
        least = lanes_min(least, lanes_select(zero, lanes_all(127), exponent));
        exponent = lanes_select(zero, lanes_all(-126), exponent);
        group->exponent[i] = exponent;
        largest = lanes_max(largest, exponent);
    }
    group->by_element |= largest - least > WIDEST_SPAN;
    group->largest[sum] = largest;
    /* 2^-largest in two steps: 2^-127 is subnormal. A row with specials has 128; its values do not count. */
    lanes_f32 half_way = lanes_power(-(largest >> 1)), rest = lanes_power(-(largest - (largest >> 1)));
    /* fp32 has 24 bits. Multiples of 2^-bits below 2 have products below 4 with 2 * bits below the point; summed,
     * `count` of them fit when 2 * bits + 2 + log2(count) is at most 24. Adding and subtracting 1.5 * 2^(23 - bits)
     * rounds to a multiple of 2^-bits. */
    float rounder = 1.5F * (float)(1 << (count > 16 ? 23 - 8 : 23 - 9));
    lanes_s32 narrow = lanes_all(-1);
    for (int i = first; i < first + count; i++) {
        lanes_f32 value = group->value[i] * half_way * rest;
        group->value[i] = value;
        group->exponent[i] -= largest;
        narrow &= (lanes_s32)(value + rounder - rounder == value);
    }
    group->narrow[sum] = narrow;
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

void tensor_prepare(prepared_operand *operand, const operand_source *source, const tensor_op *op,
                    const sum_rule *rule) {
    bool fused = op->rule == TENSOR_HARDWARE && source->type != TENSOR_E2M1_PACKED && op->d_type != TENSOR_D_S32;
    int smallest = tensor_smallest_exponent(source->type, rule);
    for (int first = 0; first < source->count; first += LANES) {
        row_group *group = &operand->group[first / LANES];
        lanes_u32 raw[MOST_K];
        group->nan = group->by_element = lanes_all(0);
        gather_rows(raw, source, first, op->k);
        if (rule->via_f16) {
            lanes_u32 natural[MOST_K];
            memcpy(natural, raw, (size_t)op->k * sizeof natural[0]);
            for (int i = 0; i < op->k; i++) raw[i] = natural[tensor_k_of(op, rule, i)];
        }
        decode(group, raw, source->type, op->k);
        if (source->negate)
            for (int i = 0; i < op->k; i++) group->value[i] = -group->value[i];
        if (op->blocks) prepare_scales(group, source, op, first);
        if (!fused) continue;
        for (int i = 0; i < op->k; i += rule->fused) align_rows(group, i / rule->fused, i, rule->fused, smallest);
        if (op->blocks) group->largest[0] += group->scale_exponent[0];
    }
}
