/* f32, f32x2 and f64 arithmetic (PTX ISA 9.7.3), and f32 with operands of f16 or bf16 (9.7.5).
 *
 * add sub mul fma div rcp sqrt are exact in every rounding mode. Round-to-nearest is the host's own arithmetic. The
 * others set the host's rounding mode around a loop with volatile operands and results, so that no compiler moves
 * the arithmetic. NaN: f32 gives 0x7fffffff; f64 gives the first NaN operand, made quiet, or 0xfff8000000000000.
 * .ftz flushes operands and the rounded result. Operations other than arithmetic are in float_functions.c. */
#include <fenv.h>
#include <math.h>

#include "scalar/float.h"
#include "scalar/formats.h"

/* ---- f32: each operation by a macro for its modes, which are constants in the two that are frequent ---- */

/* Cells are 32-bit registers, or the 64 halves of 32 f32x2 registers. */
#define EACH_CELL(per_lane, ...)                                                                                       \
    if (lanes == ALL_LANES) {                                                                                          \
        _Pragma("GCC ivdep") for (uint32_t i = 0; i < (per_lane) * WARP_LANES; i++) __VA_ARGS__                        \
    } else                                                                                                             \
        FOR_LANES(lane, lanes) for (uint32_t i = (per_lane) * lane; i < (per_lane) * (lane + 1); i++) __VA_ARGS__

#define F32_LOOP(per_lane, flags, ...)                                                                                 \
    uint32_t *d = r32(w, in->d);                                                                                       \
    const uint32_t *pa = r32(w, in->s[0]), *pb = r32(w, in->s[1]), *pc = r32(w, in->s[2]);                             \
    (void)pb, (void)pc;                                                                                                \
    EACH_CELL(per_lane, {                                                                                              \
        const float a = operand_f32(pa[i], flags);                                                                     \
        d[i] = finish(bits_of(__VA_ARGS__), flags);                                                                    \
    })                                                                                                                 \
    return RUN_NEXT;
#define B operand_f32(pb[i], mode)
#define C operand_f32(pc[i], mode)

/* One operation in the host's rounding mode of the moment. */
typedef enum { ADD, SUB, MUL, FMA, DIV, RCP, SQRT } operation;
#define OPERATE(t, fma_function, sqrt_function)                                                                        \
    volatile t a = a_, b = b_, c = c_, r = 0;                                                                          \
    switch (op) {                                                                                                      \
    case ADD:                                                                                                          \
        r = a + b;                                                                                                     \
        break;                                                                                                         \
    case SUB:                                                                                                          \
        r = a - b;                                                                                                     \
        break;                                                                                                         \
    case MUL:                                                                                                          \
        r = a * b;                                                                                                     \
        break;                                                                                                         \
    case FMA:                                                                                                          \
        r = fma_function(a, b, c);                                                                                     \
        break;                                                                                                         \
    case DIV:                                                                                                          \
        r = a / b;                                                                                                     \
        break;                                                                                                         \
    case RCP:                                                                                                          \
        r = 1 / a;                                                                                                     \
        break;                                                                                                         \
    case SQRT:                                                                                                         \
        r = sqrt_function(a);                                                                                          \
        break;                                                                                                         \
    }                                                                                                                  \
    return r;
static float operate_f32(operation op, float a_, float b_, float c_) {
    OPERATE(float, fmaf, sqrtf)
}
static double operate_f64(operation op, double a_, double b_, double c_) {
    OPERATE(double, fma, sqrt)
}

/* .ftz: what was rounded to +-2^-126 may have been too small for it (float.h). `cells` of r, before d is written. */
static void flush_tiny(const warp *w, const instr *in, operation op, uint32_t *r, uint32_t cells) {
    const uint32_t mode = in->mode, *pa = r32(w, in->s[0]), *pb = r32(w, in->s[1]), *pc = r32(w, in->s[2]);
    uint32_t any = 0;
    for (uint32_t i = 0; i < cells; i++) any |= (r[i] & 0x7fffffff) == 0x00800000;
    for (uint32_t i = 0; any && i < cells; i++) {
        if ((r[i] & 0x7fffffff) != 0x00800000) continue;
        const uint32_t negative = r[i] >> 31;
        const int rounding = (int)in->imm;
        const int away = rounding == (negative ? FE_DOWNWARD : FE_UPWARD);
        fesetround(away ? rounding : FE_TOWARDZERO); /* the bounds are doubles: comparisons with them stay right */
        const double m = fabs(operate_f64(op, operand_f32(pa[i], mode), B, C));
        fesetround(FE_TONEAREST);
        if (rounding == FE_TONEAREST ? m < TINY_TO_NEAREST : away ? m <= TINY_AWAY : m < 0x1p-126)
            r[i] = negative << 31;
    }
}

static inline run_result store(warp *w, const instr *in, uint32_t lanes, const uint32_t *r, uint32_t per_lane) {
    uint32_t *d = r32(w, in->d);
    EACH_CELL(per_lane, { d[i] = r[i]; })
    return RUN_NEXT;
}

/* Round to nearest, plain and with modifiers. */
#define NEAREST_MODES(name, op, per_lane, ...)                                                                         \
    HANDLER(name) {                                                                                                    \
        const uint32_t mode = in->mode, *pa = r32(w, in->s[0]), *pb = r32(w, in->s[1]), *pc = r32(w, in->s[2]);        \
        uint32_t r[(per_lane) * WARP_LANES];                                                                           \
        (void)pb, (void)pc;                                                                                            \
        for (uint32_t i = 0; i < (per_lane) * WARP_LANES; i++) {                                                       \
            const float a = operand_f32(pa[i], mode);                                                                  \
            r[i] = finish(bits_of(__VA_ARGS__), mode);                                                                 \
        }                                                                                                              \
        if (mode & FTZ) flush_tiny(w, in, op, r, (per_lane) * WARP_LANES);                                             \
        return store(w, in, lanes, r, per_lane);                                                                       \
    }
#define NEAREST(name, op, ...)                                                                                         \
    HANDLER(name##_f32) {                                                                                              \
        enum { mode = 0 };                                                                                             \
        F32_LOOP(1, mode, __VA_ARGS__)                                                                                 \
    }                                                                                                                  \
    NEAREST_MODES(name##_f32_modes, op, 1, __VA_ARGS__)
#define NEAREST_X2(name, op, ...)                                                                                      \
    HANDLER(name##_f32x2) {                                                                                            \
        enum { mode = 0 };                                                                                             \
        F32_LOOP(2, mode, __VA_ARGS__)                                                                                 \
    }                                                                                                                  \
    NEAREST_MODES(name##_f32x2_modes, op, 2, __VA_ARGS__)
NEAREST(add, ADD, a + B)
NEAREST(sub, SUB, a - B)
NEAREST(mul, MUL, a *B)
NEAREST(fma, FMA, __builtin_fmaf(a, B, C))
NEAREST(div, DIV, a / B)
NEAREST(rcp, RCP, 1.0f / a)
NEAREST(sqrt, SQRT, sqrtf(a))
NEAREST_X2(add, ADD, a + B)
NEAREST_X2(sub, SUB, a - B)
NEAREST_X2(mul, MUL, a *B)
NEAREST_X2(fma, FMA, __builtin_fmaf(a, B, C))

/* Other roundings. */
static inline run_result directed(warp *w, const instr *in, uint32_t lanes, operation op, uint32_t per_lane) {
    const uint32_t mode = in->mode, *pa = r32(w, in->s[0]), *pb = r32(w, in->s[1]), *pc = r32(w, in->s[2]);
    uint32_t r[2 * WARP_LANES];
    fesetround((int)in->imm);
    for (uint32_t i = 0; i < per_lane * WARP_LANES; i++)
        r[i] = finish(bits_of(operate_f32(op, operand_f32(pa[i], mode), B, C)), mode);
    fesetround(FE_TONEAREST);
    if (mode & FTZ) flush_tiny(w, in, op, r, per_lane * WARP_LANES);
    return store(w, in, lanes, r, per_lane);
}
#define DIRECTED(name, op)                                                                                             \
    HANDLER(name##_f32_directed) {                                                                                     \
        return directed(w, in, lanes, op, 1);                                                                          \
    }                                                                                                                  \
    HANDLER(name##_f32x2_directed) {                                                                                   \
        return directed(w, in, lanes, op, 2);                                                                          \
    }
DIRECTED(add, ADD)
DIRECTED(sub, SUB)
DIRECTED(mul, MUL)
DIRECTED(fma, FMA)
#undef B
#undef C
HANDLER(div_f32_directed) {
    return directed(w, in, lanes, DIV, 1);
}
HANDLER(rcp_f32_directed) {
    return directed(w, in, lanes, RCP, 1);
}
HANDLER(sqrt_f32_directed) {
    return directed(w, in, lanes, SQRT, 1);
}

/* ---- f64 ---- */

static inline uint64_t finish_f64(double r, uint64_t a, uint64_t b, uint64_t c) {
    uint64_t x = bits_of_double(r);
    if (!is_nan_f64(x)) return x;
    return is_nan_f64(a) ? quiet(a) : is_nan_f64(b) ? quiet(b) : is_nan_f64(c) ? quiet(c) : NAN_F64;
}
static inline run_result run_f64(warp *w, const instr *in, uint32_t lanes, operation op, int operands) {
    const uint64_t *pa = r64(w, in->s[0]), *pb = r64(w, in->s[operands > 1 ? 1 : 0]),
                   *pc = r64(w, in->s[operands > 2 ? 2 : 0]);
    uint64_t *d = r64(w, in->d);
    fesetround((int)in->imm);
    FOR_LANES(i, lanes) {
        const uint64_t a = pa[i], b = pb[i], c = pc[i];
        d[i] = finish_f64(operate_f64(op, double_of(a), double_of(b), double_of(c)), a, b, c);
    }
    fesetround(FE_TONEAREST);
    return RUN_NEXT;
}
HANDLER(add_f64) {
    return run_f64(w, in, lanes, ADD, 2);
}
HANDLER(sub_f64) {
    return run_f64(w, in, lanes, SUB, 2);
}
HANDLER(mul_f64) {
    return run_f64(w, in, lanes, MUL, 2);
}
HANDLER(fma_f64) {
    return run_f64(w, in, lanes, FMA, 3);
}
HANDLER(div_f64) {
    return run_f64(w, in, lanes, DIV, 2);
}
HANDLER(rcp_f64) {
    return run_f64(w, in, lanes, RCP, 1);
}
HANDLER(sqrt_f64) {
    return run_f64(w, in, lanes, SQRT, 1);
}

/* ---- f16 or bf16 beside f32: a (and b of fma) are widened, which is exact; in->type2 says from what ---- */

static float widen(uint32_t x, uint32_t type) {
    return type == TYPE_F16 ? f16_to_float((uint16_t)x) : float_of(x << 16);
}
static inline run_result mixed(warp *w, const instr *in, uint32_t lanes, operation op) {
    const uint32_t *pa = r32(w, in->s[0]), *pb = r32(w, in->s[1]), *pc = r32(w, in->s[2]);
    uint32_t *d = r32(w, in->d);
    fesetround((int)in->imm);
    FOR_LANES(i, lanes) {
        float a = widen(pa[i], in->type2), b = op == FMA ? widen(pb[i], in->type2) : float_of(pb[i]);
        d[i] = finish(bits_of(operate_f32(op, a, b, float_of(pc[i]))), in->mode);
    }
    fesetround(FE_TONEAREST);
    return RUN_NEXT;
}
HANDLER(add_mixed) {
    return mixed(w, in, lanes, ADD);
}
HANDLER(sub_mixed) {
    return mixed(w, in, lanes, SUB);
}
HANDLER(fma_mixed) {
    return mixed(w, in, lanes, FMA);
}

/* ---- decoding: arithmetic ---- */

typedef struct {
    run_function *f32, *f32_modes, *f32_directed, *f32x2, *f32x2_modes, *f32x2_directed, *f64, *mixed;
    int sources;
    int needs_rounding; /* no default */
    int saturates;
} arithmetic_family;

static const char *const roundings[] = {"rn", "rz", "rm", "rp", NULL};
static const int host_roundings[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};

static int decode_arithmetic(decoder *d, const arithmetic_family *f) {
    ptx_type first = peek_type(d);
    if (!is_single_or_double(first)) return 0;
    instr *in = d->in;
    int rounding = take_one_of(d, roundings);
    if (rounding < 0 && f->needs_rounding) reject(d, "%s needs a rounding", d->statement->opcode);
    in->imm = host_roundings[rounding < 0 ? 0 : rounding];
    ptx_type t = need_type(d), narrow = t == TYPE_F32 ? take_type(d) : TYPE_NONE;
    in->type = (uint8_t)t;
    if (t != TYPE_F64 && narrow == TYPE_NONE && take(d, "ftz")) in->mode |= FTZ;
    if (t == TYPE_F32 && f->saturates && take(d, "sat")) in->mode |= SAT;
    if (narrow != TYPE_NONE) {
        if (!f->mixed || (narrow != TYPE_F16 && narrow != TYPE_BF16))
            reject(d, "%s has no form with .%s", d->statement->opcode, type_name(narrow));
        in->run = f->mixed;
        in->type2 = (uint8_t)narrow;
        in->d = result(d, 0, t);
        for (int i = 0; i < f->sources; i++) in->s[i] = source(d, i + 1, i == f->sources - 1 ? t : narrow);
    } else {
        in->run = t == TYPE_F64     ? f->f64
                  : t == TYPE_F32X2 ? (rounding > 0 ? f->f32x2_directed
                                       : in->mode   ? f->f32x2_modes
                                                    : f->f32x2)
                  : rounding > 0    ? f->f32_directed
                  : in->mode        ? f->f32_modes
                                    : f->f32;
        if (!in->run) reject(d, "%s has no type .%s", d->statement->opcode, type_name(t));
        operands(d, f->sources, t == TYPE_F32X2 ? TYPE_B64 : t);
    }
    /* handlers read three operands */
    for (int i = f->sources; i < 3; i++) in->s[i] = in->s[0];
    return 1;
}

#define FAMILY(op)                                                                                                     \
    .f32 = op##_f32, .f32_modes = op##_f32_modes, .f32_directed = op##_f32_directed, .f32x2 = op##_f32x2,              \
    .f32x2_modes = op##_f32x2_modes, .f32x2_directed = op##_f32x2_directed, .f64 = op##_f64
#define FAMILY_1(op)                                                                                                   \
    .f32 = op##_f32, .f32_modes = op##_f32_modes, .f32_directed = op##_f32_directed, .f64 = op##_f64,                  \
    .needs_rounding = 1

static int decode_add(decoder *d) {
    static const arithmetic_family f = {FAMILY(add), .mixed = add_mixed, .sources = 2, .saturates = 1};
    return decode_arithmetic(d, &f);
}
static int decode_sub(decoder *d) {
    static const arithmetic_family f = {FAMILY(sub), .mixed = sub_mixed, .sources = 2, .saturates = 1};
    return decode_arithmetic(d, &f);
}
static int decode_mul(decoder *d) {
    static const arithmetic_family f = {FAMILY(mul), .sources = 2, .saturates = 1};
    return decode_arithmetic(d, &f);
}
static int decode_fma(decoder *d) {
    static const arithmetic_family f = {FAMILY(fma), .mixed = fma_mixed, .sources = 3, .needs_rounding = 1,
                                        .saturates = 1};
    return decode_arithmetic(d, &f);
}
/* the same as fma, but not for pairs and mixed operands */
static int decode_mad(decoder *d) {
    static const arithmetic_family f = {FAMILY_1(fma), .sources = 3, .saturates = 1};
    return decode_arithmetic(d, &f);
}
static int decode_div(decoder *d) {
    if (decode_approximation(d)) return 1;
    static const arithmetic_family f = {FAMILY_1(div), .sources = 2};
    return decode_arithmetic(d, &f);
}
static int decode_rcp(decoder *d) {
    if (decode_approximation(d)) return 1;
    static const arithmetic_family f = {FAMILY_1(rcp), .sources = 1};
    return decode_arithmetic(d, &f);
}
static int decode_sqrt(decoder *d) {
    if (decode_approximation(d)) return 1;
    static const arithmetic_family f = {FAMILY_1(sqrt), .sources = 1};
    return decode_arithmetic(d, &f);
}
/* lg2 of f32, ex2 of f32: half.c has the others */
static int decode_function_of_f32(decoder *d) {
    return peek_type(d) == TYPE_F32 ? decode_approximation(d) : 0;
}

const opcode_entry float_opcodes[] = {
    {"add", decode_add},
    {"sub", decode_sub},
    {"mul", decode_mul},
    {"fma", decode_fma},
    {"mad", decode_mad},
    {"div", decode_div},
    {"rcp", decode_rcp},
    {"sqrt", decode_sqrt},
    {"rsqrt", decode_approximation},
    {"sin", decode_approximation},
    {"cos", decode_approximation},
    {"lg2", decode_approximation},
    {"ex2", decode_function_of_f32},
    {"tanh", decode_function_of_f32},
    {"abs", decode_float_abs},
    {"neg", decode_float_neg},
    {"min", decode_float_min},
    {"max", decode_float_max},
    {"testp", decode_testp},
    {"copysign", decode_copysign},
    {0},
};
