/* f32 and f64: abs neg min max testp copysign, and the approximations (PTX ISA 9.7.3).
 *
 * The approximations (.approx, .full) are computed in double and rounded once, with the ISA's results for special
 * values. They are more accurate than hardware's: no test may depend on their last bits. */
#include <math.h>

#include "scalar/float.h"

/* ---- sign ---- */

#define F32_UNARY(name, ...)                                                                                           \
    HANDLER(name) {                                                                                                    \
        const uint32_t mode = in->mode, *pa = r32(w, in->s[0]);                                                        \
        uint32_t *d = r32(w, in->d);                                                                                   \
        LANES(i, lanes, {                                                                                              \
            const uint32_t a = operand_bits(pa[i], mode);                                                              \
            d[i] = canonical(__VA_ARGS__);                                                                             \
        });                                                                                                            \
        return RUN_NEXT;                                                                                               \
    }
F32_UNARY(abs_f32, a & 0x7fffffff)
F32_UNARY(neg_f32, a ^ 0x80000000)
UNARY(abs_f64, u64, is_nan_f64(a) ? quiet(a) : a &INT64_MAX)
UNARY(neg_f64, u64, is_nan_f64(a) ? quiet(a) : a ^ (uint64_t)INT64_MIN)
BINARY(copysign_f32, u32, (b & 0x7fffffff) | (a & 0x80000000))
BINARY(copysign_f64, u64, (b & INT64_MAX) | (a & (uint64_t)INT64_MIN))

/* ---- testp: a set of classes ---- */

enum { CLASS_ZERO = 1, CLASS_SUBNORMAL = 2, CLASS_NORMAL = 4, CLASS_INFINITE = 8, CLASS_NAN = 16 };
#define CLASSIFY(name, cell, reg, exponent, mantissa)                                                                  \
    HANDLER(name) {                                                                                                    \
        const cell *pa = reg(w, in->s[0]);                                                                             \
        uint32_t mask = 0;                                                                                             \
        for (uint32_t i = 0; i < WARP_LANES; i++) {                                                                    \
            const cell e = pa[i] & exponent, m = pa[i] & mantissa;                                                     \
            const uint32_t class = e == exponent ? (m ? CLASS_NAN : CLASS_INFINITE)                                    \
                                   : e           ? CLASS_NORMAL                                                        \
                                   : m           ? CLASS_SUBNORMAL                                                     \
                                                 : CLASS_ZERO;                                                                   \
            mask |= (uint32_t)((class & in->mode) != 0) << i;                                                          \
        }                                                                                                              \
        set_predicate(w, in->d, lanes, mask);                                                                          \
        return RUN_NEXT;                                                                                               \
    }
CLASSIFY(testp_f32, uint32_t, r32, 0x7f800000u, 0x007fffffu)
CLASSIFY(testp_f64, uint64_t, r64, 0x7ff0000000000000u, 0x000fffffffffffffu)

/* ---- min and max ---- */

enum { KEEP_NAN = 2, ABSOLUTE = 4, XOR_SIGN = 8 }; /* beside FTZ, in->mode */

/* Numbers by their bits: as integers they are in order, -0 below +0. */
static inline int32_t order(uint32_t x) {
    return (int32_t)(x ^ ((uint32_t)((int32_t)x >> 31) & 0x7fffffff));
}
static inline int64_t order_f64(uint64_t x) {
    return (int64_t)(x ^ ((uint64_t)((int64_t)x >> 63) & INT64_MAX));
}

static inline uint32_t extreme(uint32_t a, uint32_t b, int maximum, uint32_t mode) {
    uint32_t r = (order(a) < order(b)) != maximum ? a : b;
    r = is_nan(a) ? b : is_nan(b) ? a : r;
    return mode & KEEP_NAN && is_nan(a) ? NAN_F32 : mode & KEEP_NAN && is_nan(b) ? NAN_F32 : canonical(r);
}
#define EXTREME(name, maximum)                                                                                         \
    BINARY(name##_f32, u32, extreme(a, b, maximum, 0))                                                                 \
    HANDLER(name##_f32_modes) {                                                                                        \
        const uint32_t mode = in->mode, *pa = r32(w, in->s[0]), *pb = r32(w, in->s[1]), *pc = r32(w, in->s[2]);        \
        const uint32_t keep = mode & ABSOLUTE ? 0x7fffffff : UINT32_MAX, three = in->vector;                           \
        uint32_t *d = r32(w, in->d);                                                                                   \
        LANES(i, lanes, {                                                                                              \
            const uint32_t a = operand_bits(pa[i], mode), b = operand_bits(pb[i], mode);                               \
            uint32_t r = extreme(a & keep, b & keep, maximum, mode);                                                   \
            if (three) r = extreme(r, operand_bits(pc[i], mode) & keep, maximum, mode);                                \
            if (mode & XOR_SIGN && !is_nan(r)) r = (r & 0x7fffffff) | ((a ^ b) & 0x80000000);                          \
            d[i] = r;                                                                                                  \
        });                                                                                                            \
        return RUN_NEXT;                                                                                               \
    }                                                                                                                  \
    static inline uint64_t extreme_##name##_f64(uint64_t a, uint64_t b) {                                              \
        if (is_nan_f64(a)) return is_nan_f64(b) ? quiet(a) : b;                                                        \
        return is_nan_f64(b) || (order_f64(a) < order_f64(b)) != maximum ? a : b;                                      \
    }                                                                                                                  \
    BINARY(name##_f64, u64, extreme_##name##_f64(a, b))
EXTREME(min, 0)
EXTREME(max, 1)

/* ---- approximations ---- */

#define APPROXIMATION(name, ...)                                                                                       \
    HANDLER(name) {                                                                                                    \
        const uint32_t mode = in->mode, *pa = r32(w, in->s[0]), *pb = r32(w, in->s[1]);                                \
        uint32_t *d = r32(w, in->d);                                                                                   \
        FOR_LANES(i, lanes) {                                                                                          \
            const double a = operand_f32(pa[i], mode), b = operand_f32(pb[i], mode);                                   \
            (void)b;                                                                                                   \
            d[i] = finish(bits_of((float)(__VA_ARGS__)), mode);                                                        \
        }                                                                                                              \
        return RUN_NEXT;                                                                                               \
    }
/* hardware multiplies by a reciprocal, which is flushed beyond 2^126 */
static double divide_approximately(double a, double b) {
    return fabs(b) > 0x1p126 && !isnan(b) ? a * copysign(0, b) : a / b;
}
APPROXIMATION(div_approx, divide_approximately(a, b))
APPROXIMATION(div_full, a / b)
APPROXIMATION(rcp_approx, 1 / a)
APPROXIMATION(sqrt_approx, sqrt(a))
APPROXIMATION(rsqrt_approx, 1 / sqrt(a))
APPROXIMATION(sin_approx, sin(a))
APPROXIMATION(cos_approx, cos(a))
APPROXIMATION(lg2_approx, log2(a))
APPROXIMATION(ex2_approx, exp2(a))
APPROXIMATION(tanh_approx, tanh(a))

HANDLER(rsqrt_f64) {
    const uint64_t *pa = r64(w, in->s[0]);
    uint64_t *d = r64(w, in->d);
    FOR_LANES(i, lanes) {
        uint64_t x = bits_of_double(1 / sqrt(double_of(pa[i])));
        d[i] = is_nan_f64(pa[i]) ? quiet(pa[i]) : is_nan_f64(x) ? NAN_F64 : x;
    }
    return RUN_NEXT;
}
/* .approx.ftz.f64: the upper words of a and of the result are all there is. */
static uint64_t flush_word(uint64_t x) {
    return x & 0x7ff0000000000000 ? x & 0xffffffff00000000 : x & (uint64_t)INT64_MIN;
}
static uint64_t finish_word(double r) {
    uint64_t x = bits_of_double(r);
    if (is_nan_f64(x)) return 0x7fffffff00000000;
    return flush_word(isinf(r) ? x : x + 0x80000000);
}
HANDLER(rcp_word) {
    const uint64_t *pa = r64(w, in->s[0]);
    uint64_t *d = r64(w, in->d);
    FOR_LANES(i, lanes) d[i] = finish_word(1 / double_of(flush_word(pa[i])));
    return RUN_NEXT;
}
HANDLER(rsqrt_word) {
    const uint64_t *pa = r64(w, in->s[0]);
    uint64_t *d = r64(w, in->d);
    FOR_LANES(i, lanes) d[i] = finish_word(1 / sqrt(double_of(flush_word(pa[i]))));
    return RUN_NEXT;
}

/* ---- decoding ---- */

static const struct {
    const char *opcode, *kind;
    int sources;
    run_function *f32, *f64, *f64_ftz;
} approximations[] = {
    {"div", "approx", 2, div_approx, NULL, NULL},
    {"div", "full", 2, div_full, NULL, NULL},
    {"rcp", "approx", 1, rcp_approx, NULL, rcp_word},
    {"sqrt", "approx", 1, sqrt_approx, NULL, NULL},
    {"rsqrt", "approx", 1, rsqrt_approx, rsqrt_f64, rsqrt_word},
    {"sin", "approx", 1, sin_approx, NULL, NULL},
    {"cos", "approx", 1, cos_approx, NULL, NULL},
    {"lg2", "approx", 1, lg2_approx, NULL, NULL},
    {"ex2", "approx", 1, ex2_approx, NULL, NULL},
    {"tanh", "approx", 1, tanh_approx, NULL, NULL},
};

int decode_approximation(decoder *d) {
    instr *in = d->in;
    for (size_t i = 0; i < sizeof approximations / sizeof *approximations; i++) {
        if (strcmp(d->statement->opcode, approximations[i].opcode) || !has_modifier(d, approximations[i].kind))
            continue;
        need(d, approximations[i].kind);
        ptx_type t = need_type(d);
        int tanh_of = approximations[i].f32 == tanh_approx;
        if (!tanh_of && take(d, "ftz")) in->mode |= FTZ;
        in->type = (uint8_t)t;
        in->run = t == TYPE_F32   ? approximations[i].f32
                  : t != TYPE_F64 ? NULL
                  : in->mode      ? approximations[i].f64_ftz
                                  : approximations[i].f64;
        if (!in->run) reject(d, "%s.approx has no such form of .%s", d->statement->opcode, type_name(t));
        operands(d, approximations[i].sources, t);
        if (approximations[i].sources == 1) in->s[1] = in->s[0];
        return 1;
    }
    return 0;
}

static int decode_unary(decoder *d, run_function *f32, run_function *f64) {
    ptx_type t = peek_type(d);
    if (t != TYPE_F32 && t != TYPE_F64) return 0;
    need_type(d);
    d->in->type = (uint8_t)t;
    if (t == TYPE_F32 && take(d, "ftz")) d->in->mode = FTZ;
    d->in->run = t == TYPE_F32 ? f32 : f64;
    operands(d, 1, t);
    return 1;
}
int decode_float_abs(decoder *d) {
    return decode_unary(d, abs_f32, abs_f64);
}
int decode_float_neg(decoder *d) {
    return decode_unary(d, neg_f32, neg_f64);
}

static int decode_extreme(decoder *d, run_function *f32, run_function *f32_modes, run_function *f64) {
    ptx_type t = peek_type(d);
    if (t != TYPE_F32 && t != TYPE_F64) return 0;
    instr *in = d->in;
    need_type(d);
    in->type = (uint8_t)t;
    in->run = f64;
    if (t == TYPE_F64) {
        operands(d, 2, t);
        return 1;
    }
    int three = operand_count(d) == 4;
    if (take(d, "ftz")) in->mode |= FTZ;
    if (take(d, "NaN")) in->mode |= KEEP_NAN;
    if (!three && take(d, "xorsign")) {
        in->mode |= XOR_SIGN | ABSOLUTE;
        need(d, "abs");
    }
    if (three && take(d, "abs")) in->mode |= ABSOLUTE;
    in->vector = (uint32_t)three;
    in->run = in->mode || three ? f32_modes : f32;
    operands(d, 2 + three, t);
    if (!three) in->s[2] = in->s[0];
    return 1;
}
int decode_float_min(decoder *d) {
    return decode_extreme(d, min_f32, min_f32_modes, min_f64);
}
int decode_float_max(decoder *d) {
    return decode_extreme(d, max_f32, max_f32_modes, max_f64);
}

int decode_testp(decoder *d) {
    static const char *const names[] = {"finite", "infinite", "number", "notanumber", "normal", "subnormal", NULL};
    static const uint8_t classes[] = {CLASS_ZERO | CLASS_SUBNORMAL | CLASS_NORMAL,
                                      CLASS_INFINITE,
                                      CLASS_ZERO | CLASS_SUBNORMAL | CLASS_NORMAL | CLASS_INFINITE,
                                      CLASS_NAN,
                                      CLASS_ZERO | CLASS_NORMAL,
                                      CLASS_SUBNORMAL};
    static const handler_table table = {[TYPE_F32] = testp_f32, [TYPE_F64] = testp_f64};
    int which = take_one_of(d, names);
    if (which < 0) reject(d, "testp needs a property");
    ptx_type t = need_type(d);
    choose(d, table, t);
    d->in->mode = classes[which];
    d->in->d = result(d, 0, TYPE_PRED);
    d->in->s[0] = source(d, 1, t);
    return 1;
}

int decode_copysign(decoder *d) {
    static const handler_table table = {[TYPE_F32] = copysign_f32, [TYPE_F64] = copysign_f64};
    ptx_type t = need_type(d);
    choose(d, table, t);
    operands(d, 2, t);
    return 1;
}
