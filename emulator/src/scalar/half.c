/* f16, f16x2, bf16 and bf16x2 arithmetic (PTX ISA 9.7.4): add sub mul fma neg abs min max tanh ex2.
 *
 * a * b + c is rounded once: the product is exact in double, and the sum is rounded to odd there (its last bit says
 * that something was lost), which leaves enough bits for one rounding to f16 or bf16. NaN is 0x7fff. tanh and ex2
 * are computed in double and rounded once: more accurate than hardware's. */
#include <math.h>

#include "scalar/formats.h"
#include "scalar/half.h"
#include "scalar/lanes.h"

/* What TMA writes outside of a tensor where the map asks for NaN; its sign does not matter, and an H200 looks for it in
 * a and b only. */
#define OOB_NAN 0x7ff7

static inline uint32_t is_nan(uint32_t x, int brain) {
    return (x & 0x7fff) > (brain ? 0x7f80 : 0x7c00);
}
static inline double value_of(uint32_t x, int brain) {
    return brain ? float_of(x << 16) : f16_to_float((uint16_t)x);
}
static inline uint32_t rounded(double x, int brain) {
    return brain ? bf16_from_double(x, ROUND_RN, 0) : f16_from_double(x, ROUND_RN, 0);
}
static inline uint32_t flush(uint32_t x, int brain) {
    return x & (brain ? 0x7f80 : 0x7c00) ? x : x & 0x8000;
}
static inline uint32_t operand_half(uint32_t x, uint32_t mode, int brain) {
    return mode & HALF_FTZ ? flush(x, brain) : x;
}
static inline uint32_t finish(uint32_t x, uint32_t mode, int brain) {
    const uint32_t one = brain ? 0x3f80 : 0x3c00;
    if (is_nan(x, brain)) return mode & HALF_SAT ? 0 : NAN_HALF;
    if (mode & HALF_FTZ) x = flush(x, brain);
    if (mode & (HALF_SAT | HALF_RELU) && x >> 15) x = 0;
    return mode & HALF_SAT && x > one ? one : x;
}

static double add_to_odd(double p, double c) {
    double s = p + c;
    if (!isfinite(s)) return s;
    volatile double c_held = s - p, p_held = s - c_held; /* exact differences: not to be simplified */
    double error = (p - p_held) + (c - c_held);
    uint64_t bits = bits_of_double(s);
    if (error == 0 || bits & 1) return s;
    return double_of((error > 0) == (s > 0) ? bits + 1 : bits - 1);
}

static inline uint32_t arithmetic_half(uint32_t x, uint32_t y, uint32_t z, half_operation op, uint32_t mode,
                                       int brain) {
    if (mode & HALF_OOB && ((x & 0x7fff) == OOB_NAN || (y & 0x7fff) == OOB_NAN)) return 0;
    double a = value_of(operand_half(x, mode, brain), brain), b = value_of(operand_half(y, mode, brain), brain);
    double c = value_of(operand_half(z, mode, brain), brain);
    double r = op == HALF_ADD   ? add_to_odd(a, b)
               : op == HALF_SUB ? add_to_odd(a, -b)
               : op == HALF_MUL ? a * b
                                : add_to_odd(a * b, c);
    if (mode & HALF_FTZ && fabs(r) < TINY_F16) r = copysign(0, r);
    return finish(rounded(r, brain), mode, brain);
}

static inline uint32_t extreme_half(uint32_t x, uint32_t y, int maximum, uint32_t mode, int brain) {
    uint32_t a = operand_half(x, mode, brain), b = operand_half(y, mode, brain), sign = (a ^ b) & 0x8000, r;
    if (mode & HALF_XOR_SIGN) a &= 0x7fff, b &= 0x7fff;
    if (is_nan(a, brain) || is_nan(b, brain)) {
        if (mode & HALF_KEEP_NAN || (is_nan(a, brain) && is_nan(b, brain))) return NAN_HALF;
        r = is_nan(a, brain) ? b : a;
    } else { /* in the order of signed integers, -0 below +0 */
        int32_t p = a & 0x8000 ? -(int32_t)(a & 0x7fff) - 1 : (int32_t)a;
        int32_t q = b & 0x8000 ? -(int32_t)(b & 0x7fff) - 1 : (int32_t)b;
        r = (p < q) != maximum ? a : b;
    }
    return mode & HALF_XOR_SIGN ? (r & 0x7fff) | sign : r;
}

static inline uint32_t sign_half(uint32_t x, uint32_t keep, uint32_t flip, uint32_t mode, int brain) {
    x = operand_half(x, mode, brain);
    return is_nan(x, brain) ? NAN_HALF : (x & keep) ^ flip;
}

/* Handlers of one or two numbers a register; `expression` computes one from x, y, z. Not vector code: the conversions
 * are calls. */
#define HALF_HANDLER(name, is_brain, parts, ...)                                                                       \
    HANDLER(name) {                                                                                                    \
        enum { brain = is_brain };                                                                                     \
        const uint32_t mode = in->mode, *pa = r32(w, in->s[0]), *pb = r32(w, in->s[1]), *pc = r32(w, in->s[2]);        \
        uint32_t *d = r32(w, in->d);                                                                                   \
        FOR_LANES(i, lanes) {                                                                                          \
            uint32_t all = 0;                                                                                          \
            for (int at = 0; at < 16 * parts; at += 16) {                                                              \
                const uint32_t x = pa[i] >> at & 0xffff, y = pb[i] >> at & 0xffff, z = pc[i] >> at & 0xffff;           \
                (void)y, (void)z;                                                                                      \
                all |= (__VA_ARGS__) << at;                                                                            \
            }                                                                                                          \
            d[i] = all;                                                                                                \
        }                                                                                                              \
        return RUN_NEXT;                                                                                               \
    }
#define HALF_HANDLERS(name, ...)                                                                                       \
    HALF_HANDLER(name##_f16, 0, 1, __VA_ARGS__)                                                                        \
    HALF_HANDLER(name##_f16x2, 0, 2, __VA_ARGS__)                                                                      \
    HALF_HANDLER(name##_bf16, 1, 1, __VA_ARGS__)                                                                       \
    HALF_HANDLER(name##_bf16x2, 1, 2, __VA_ARGS__)                                                                     \
    static const handler_table name##_table = {[TYPE_F16] = name##_f16,                                                \
                                               [TYPE_F16X2] = name##_f16x2,                                            \
                                               [TYPE_BF16] = name##_bf16,                                              \
                                               [TYPE_BF16X2] = name##_bf16x2};

/* The four that matter for speed: all lanes at once, and one by one where that is rejected. */
static run_result run_arithmetic(warp *w, const instr *in, uint32_t lanes, half_operation op, int brain, int parts) {
    const uint32_t mode = in->mode, *pa = r32(w, in->s[0]), *pb = r32(w, in->s[1]), *pc = r32(w, in->s[2]);
    uint32_t *d = r32(w, in->d), all[WARP_LANES];
    if (mode & HALF_OOB || !half_vector(op, mode, brain, (const uint16_t *)pa, (const uint16_t *)pb,
                                        (const uint16_t *)pc, (uint16_t *)all))
        FOR_LANES(i, lanes) {
            all[i] = 0;
            for (int at = 0; at < 16 * parts; at += 16)
                all[i] |=
                    arithmetic_half(pa[i] >> at & 0xffff, pb[i] >> at & 0xffff, pc[i] >> at & 0xffff, op, mode, brain)
                    << at;
        }
    LANES(i, lanes, { d[i] = all[i]; });
    return RUN_NEXT;
}
#define ARITHMETIC_HANDLERS(name, op)                                                                                  \
    HANDLER(name##_f16) {                                                                                              \
        return run_arithmetic(w, in, lanes, op, 0, 1);                                                                 \
    }                                                                                                                  \
    HANDLER(name##_f16x2) {                                                                                            \
        return run_arithmetic(w, in, lanes, op, 0, 2);                                                                 \
    }                                                                                                                  \
    HANDLER(name##_bf16) {                                                                                             \
        return run_arithmetic(w, in, lanes, op, 1, 1);                                                                 \
    }                                                                                                                  \
    HANDLER(name##_bf16x2) {                                                                                           \
        return run_arithmetic(w, in, lanes, op, 1, 2);                                                                 \
    }                                                                                                                  \
    static const handler_table name##_table = {[TYPE_F16] = name##_f16,                                                \
                                               [TYPE_F16X2] = name##_f16x2,                                            \
                                               [TYPE_BF16] = name##_bf16,                                              \
                                               [TYPE_BF16X2] = name##_bf16x2};
ARITHMETIC_HANDLERS(add, HALF_ADD)
ARITHMETIC_HANDLERS(sub, HALF_SUB)
ARITHMETIC_HANDLERS(mul, HALF_MUL)
ARITHMETIC_HANDLERS(fma, HALF_FMA)

HALF_HANDLERS(min, extreme_half(x, y, 0, mode, brain))
HALF_HANDLERS(max, extreme_half(x, y, 1, mode, brain))
HALF_HANDLERS(abs, sign_half(x, 0x7fff, 0, mode, brain))
HALF_HANDLERS(neg, sign_half(x, 0xffff, 0x8000, mode, brain))
HALF_HANDLERS(tanh, finish(rounded(tanh(value_of(x, brain)), brain), mode, brain))
HALF_HANDLERS(ex2, finish(rounded(exp2(value_of(operand_half(x, mode, brain), brain)), brain), mode, brain))

/* ---- decoding ---- */

static int is_bf16(ptx_type t) {
    return t == TYPE_BF16 || t == TYPE_BF16X2;
}

/* `sources` operands; those that are missing are the first one again. */
static int finish_decode(decoder *d, const handler_table table, int sources) {
    ptx_type t = need_type(d);
    choose(d, table, t);
    operands(d, sources, t);
    for (int i = sources; i < 3; i++) d->in->s[i] = d->in->s[0];
    return 1;
}
static void take_flag(decoder *d, const char *name, uint32_t flag) {
    if (take(d, name)) d->in->mode |= flag;
}

static int decode_arithmetic(decoder *d, const handler_table table, int is_fma) {
    ptx_type t = peek_type(d);
    if (!is_half(t)) return 0;
    if (!take(d, "rn") && is_fma) reject(d, "fma needs .rn");
    if (is_fma) {
        take_flag(d, "oob", HALF_OOB);
        take_flag(d, "relu", HALF_RELU);
    }
    if (!is_bf16(t) && !(d->in->mode & HALF_OOB)) {
        take_flag(d, "ftz", HALF_FTZ);
        if (!(d->in->mode & HALF_RELU)) take_flag(d, "sat", HALF_SAT);
    }
    return finish_decode(d, table, is_fma ? 3 : 2);
}
static int decode_add(decoder *d) {
    return decode_arithmetic(d, add_table, 0);
}
static int decode_sub(decoder *d) {
    return decode_arithmetic(d, sub_table, 0);
}
static int decode_mul(decoder *d) {
    return decode_arithmetic(d, mul_table, 0);
}
static int decode_fma(decoder *d) {
    return decode_arithmetic(d, fma_table, 1);
}

static int decode_extreme(decoder *d, const handler_table table) {
    ptx_type t = peek_type(d);
    if (!is_half(t)) return 0;
    if (!is_bf16(t)) take_flag(d, "ftz", HALF_FTZ);
    take_flag(d, "NaN", HALF_KEEP_NAN);
    take_flag(d, "xorsign", HALF_XOR_SIGN);
    if (d->in->mode & HALF_XOR_SIGN) need(d, "abs");
    return finish_decode(d, table, 2);
}
static int decode_min(decoder *d) {
    return decode_extreme(d, min_table);
}
static int decode_max(decoder *d) {
    return decode_extreme(d, max_table);
}

static int decode_sign(decoder *d, const handler_table table) {
    ptx_type t = peek_type(d);
    if (!is_half(t)) return 0;
    if (!is_bf16(t)) take_flag(d, "ftz", HALF_FTZ);
    return finish_decode(d, table, 1);
}
static int decode_abs(decoder *d) {
    return decode_sign(d, abs_table);
}
static int decode_neg(decoder *d) {
    return decode_sign(d, neg_table);
}

static int decode_tanh(decoder *d) {
    if (!is_half(peek_type(d))) return 0;
    need(d, "approx");
    return finish_decode(d, tanh_table, 1);
}
/* .ftz is part of the bf16 forms and of no other */
static int decode_ex2(decoder *d) {
    ptx_type t = peek_type(d);
    if (!is_half(t)) return 0;
    need(d, "approx");
    if (is_bf16(t)) {
        need(d, "ftz");
        d->in->mode = HALF_FTZ;
    }
    return finish_decode(d, ex2_table, 1);
}

const opcode_entry half_opcodes[] = {
    {"add", decode_add},
    {"sub", decode_sub},
    {"mul", decode_mul},
    {"fma", decode_fma},
    {"min", decode_min},
    {"max", decode_max},
    {"abs", decode_abs},
    {"neg", decode_neg},
    {"tanh", decode_tanh},
    {"ex2", decode_ex2},
    {0},
};
