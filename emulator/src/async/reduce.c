/* The reductions of cp.reduce.async.bulk, cp.reduce.async.bulk.tensor and red.async (PTX ISA 9.7.9.25.4.2,
 * 9.7.9.25.5.3, 9.7.13.7): which combinations exist, and their effect on one element. */
#include <math.h>

#include "async/bulk.h"
#include "scalar/formats.h"

reduction take_reduction(decoder *d) {
    static const char *const names[] = {"add", "min", "max", "inc", "dec", "and", "or", "xor", NULL};
    return (reduction)(1 + take_one_of(d, names));
}

static int is_one_of(ptx_type type, const ptx_type *types) {
    while (*types != TYPE_NONE && *types != type) types++;
    return *types != TYPE_NONE;
}

int reduction_exists(reduction r, ptx_type type) {
    static const ptx_type add[] = {TYPE_U32, TYPE_S32, TYPE_U64, TYPE_F32, TYPE_F64, TYPE_F16, TYPE_BF16, TYPE_NONE};
    static const ptx_type order[] = {TYPE_U32, TYPE_S32, TYPE_U64, TYPE_S64, TYPE_F16, TYPE_BF16, TYPE_NONE};
    static const ptx_type bits[] = {TYPE_B32, TYPE_B64, TYPE_NONE};
    switch (r) {
    case REDUCE_ADD:
        return is_one_of(type, add);
    case REDUCE_MIN:
    case REDUCE_MAX:
        return is_one_of(type, order);
    case REDUCE_INC:
    case REDUCE_DEC:
        return type == TYPE_U32;
    case REDUCE_AND:
    case REDUCE_OR:
    case REDUCE_XOR:
        return is_one_of(type, bits);
    case REDUCE_NONE:
        break;
    }
    return 0;
}

int reduction_exists_in_shared(reduction r, ptx_type type) {
    switch (r) {
    case REDUCE_ADD:
        return type == TYPE_U32 || type == TYPE_S32 || type == TYPE_U64;
    case REDUCE_MIN:
    case REDUCE_MAX:
        return type == TYPE_U32 || type == TYPE_S32;
    case REDUCE_INC:
    case REDUCE_DEC:
        return type == TYPE_U32;
    case REDUCE_AND:
    case REDUCE_OR:
    case REDUCE_XOR:
        return type == TYPE_B32;
    case REDUCE_NONE:
        break;
    }
    return 0;
}

static uint64_t reduce_unsigned(reduction r, uint64_t a, uint64_t b) {
    switch (r) {
    case REDUCE_ADD:
        return a + b;
    case REDUCE_MIN:
        return a < b ? a : b;
    case REDUCE_MAX:
        return a > b ? a : b;
    case REDUCE_INC:
        return a >= b ? 0 : a + 1;
    case REDUCE_DEC:
        return !a || a > b ? b : a - 1;
    case REDUCE_AND:
        return a & b;
    case REDUCE_OR:
        return a | b;
    case REDUCE_XOR:
        return a ^ b;
    case REDUCE_NONE:
        break;
    }
    return a;
}

static int64_t reduce_signed(reduction r, int64_t a, int64_t b) {
    switch (r) {
    case REDUCE_MIN:
        return a < b ? a : b;
    case REDUCE_MAX:
        return a > b ? a : b;
    default:
        return (int64_t)((uint64_t)a + (uint64_t)b);
    }
}

/* min and max prefer a number to a NaN; -0 is less than +0. */
static double reduce_double(reduction r, double a, double b) {
    if (r == REDUCE_ADD) return a + b;
    if (isnan(a)) return b;
    if (isnan(b)) return a;
    int a_is_less = a < b || (a == b && signbit(a));
    return a_is_less == (r == REDUCE_MIN) ? a : b;
}

static float flushed(float x) {
    return fpclassify(x) == FP_SUBNORMAL ? copysignf(0, x) : x;
}

void add_f32(void *into, const void *with, int flushes) {
    float a, b;
    memcpy(&a, into, sizeof a);
    memcpy(&b, with, sizeof b);
    a = flushes ? flushed(flushed(a) + flushed(b)) : a + b;
    uint32_t nan = 0x7fffffff;
    memcpy(into, isnan(a) ? (void *)&nan : (void *)&a, sizeof a);
}

#define REDUCE_AS(integer, function)                                                                                   \
    {                                                                                                                  \
        integer a, b;                                                                                                  \
        memcpy(&a, into, sizeof a);                                                                                    \
        memcpy(&b, with, sizeof b);                                                                                    \
        a = (integer)function(r, a, b);                                                                                \
        memcpy(into, &a, sizeof a);                                                                                    \
        break;                                                                                                         \
    }

void reduce(reduction r, ptx_type type, void *into, const void *with) {
    uint16_t a16, b16;
    switch (type) {
    case TYPE_U32:
    case TYPE_B32:
        REDUCE_AS(uint32_t, reduce_unsigned)
    case TYPE_U64:
    case TYPE_B64:
        REDUCE_AS(uint64_t, reduce_unsigned)
    case TYPE_S32:
        REDUCE_AS(int32_t, reduce_signed)
    case TYPE_S64:
        REDUCE_AS(int64_t, reduce_signed)
    case TYPE_F64:
        REDUCE_AS(double, reduce_double)
    case TYPE_F32:
        add_f32(into, with, 0);
        break;
    case TYPE_F16:
        memcpy(&a16, into, sizeof a16);
        memcpy(&b16, with, sizeof b16);
        a16 = f16_from_double(reduce_double(r, f16_to_float(a16), f16_to_float(b16)), ROUND_RN, 0);
        memcpy(into, &a16, sizeof a16);
        break;
    case TYPE_BF16:
        memcpy(&a16, into, sizeof a16);
        memcpy(&b16, with, sizeof b16);
        a16 = bf16_from_double(reduce_double(r, bf16_to_float(a16), bf16_to_float(b16)), ROUND_RN, 0);
        memcpy(into, &a16, sizeof a16);
        break;
    default:
        break;
    }
}
