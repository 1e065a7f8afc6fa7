/* cvt of one number (PTX ISA 9.7.9.21): integers, f16, bf16, f32, f64, tf32. Pairs are in convert_packed.c.
 *
 * Every number of these formats except a 64-bit integer is exact in double. A conversion takes the exact value and
 * rounds it once (formats.c), independently of the host's rounding mode. */
#include <math.h>

#include "scalar/convert.h"
#include "scalar/float.h"

/* ---- integer to integer ---- */

/* A result narrower than its register is extended by its own sign: mask has the register's bits. */
#define RESULT_u8(x)  ((uint32_t)(uint8_t)(x))
#define RESULT_s8(x)  ((uint32_t)(int8_t)(x))
#define RESULT_u16(x) ((uint32_t)(uint16_t)(x))
#define RESULT_s16(x) ((uint32_t)(int16_t)(x))
#define RESULT_u32(x) ((uint32_t)(x))
#define RESULT_s32(x) ((uint32_t)(x))
#define RESULT_u64(x) ((uint64_t)(int64_t)(x))
#define RESULT_s64(x) ((uint64_t)(int64_t)(x))
#define RESIZE(from, to)                                                                                               \
    HANDLER(to##_of_##from) {                                                                                          \
        const CELL_##from *pa = REG_##from(w, in->s[0]);                                                               \
        CELL_##to *d = REG_##to(w, in->d);                                                                             \
        const CELL_##to mask = (CELL_##to)(int64_t)in->imm;                                                            \
        LANES(i, lanes, { d[i] = RESULT_##to((C_##from)pa[i]) & mask; });                                              \
        return RUN_NEXT;                                                                                               \
    }
#define RESIZE_TO(to)                                                                                                  \
    RESIZE(u8, to)                                                                                                     \
    RESIZE(s8, to)                                                                                                     \
    RESIZE(u16, to)                                                                                                    \
    RESIZE(s16, to)                                                                                                    \
    RESIZE(u32, to)                                                                                                    \
    RESIZE(s32, to)                                                                                                    \
    RESIZE(u64, to)                                                                                                    \
    RESIZE(s64, to)
RESIZE_TO(u8)
RESIZE_TO(s8)
RESIZE_TO(u16)
RESIZE_TO(s16)
RESIZE_TO(u32)
RESIZE_TO(s32)
RESIZE_TO(u64)
RESIZE_TO(s64)
#define TO_ALL(to)                                                                                                     \
    {[TYPE_U8] = to##_of_u8,   [TYPE_S8] = to##_of_s8,   [TYPE_U16] = to##_of_u16, [TYPE_S16] = to##_of_s16,           \
     [TYPE_U32] = to##_of_u32, [TYPE_S32] = to##_of_s32, [TYPE_U64] = to##_of_u64, [TYPE_S64] = to##_of_s64}
static run_function *const resize_table[TYPE_COUNT][TYPE_COUNT] = {
    [TYPE_U8] = TO_ALL(u8),   [TYPE_S8] = TO_ALL(s8),   [TYPE_U16] = TO_ALL(u16), [TYPE_S16] = TO_ALL(s16),
    [TYPE_U32] = TO_ALL(u32), [TYPE_S32] = TO_ALL(s32), [TYPE_U64] = TO_ALL(u64), [TYPE_S64] = TO_ALL(s64),
};

/* An integer of any type by its 64 bits, and whether it is below zero. */
static uint64_t read_integer(const warp *w, uint32_t slot, ptx_type t, uint32_t i, int *negative) {
    uint64_t x = 0;
    switch (t) {
    case TYPE_U8:
        x = (uint8_t)r32(w, slot)[i];
        break;
    case TYPE_U16:
        x = (uint16_t)r32(w, slot)[i];
        break;
    case TYPE_U32:
        x = r32(w, slot)[i];
        break;
    case TYPE_S8:
        x = (uint64_t)(int64_t)(int8_t)r32(w, slot)[i];
        break;
    case TYPE_S16:
        x = (uint64_t)(int64_t)(int16_t)r32(w, slot)[i];
        break;
    case TYPE_S32:
        x = (uint64_t)(int64_t)(int32_t)r32(w, slot)[i];
        break;
    default:
        x = r64(w, slot)[i];
    }
    *negative = t >= TYPE_S8 && t <= TYPE_S64 && x >> 63;
    return x;
}
static void write_integer(const warp *w, const instr *in, uint32_t i, uint64_t x) {
    const conversion *c = in->extra;
    if (c->bits == 64)
        r64(w, in->d)[i] = x;
    else
        r32(w, in->d)[i] = (uint32_t)x & c->mask;
}
/* .sat */
HANDLER(clamp_integer) {
    const conversion *c = in->extra;
    FOR_LANES(i, lanes) {
        int negative;
        uint64_t x = read_integer(w, in->s[0], c->from, i, &negative);
        if (negative ? (int64_t)x < c->low : x > c->high) x = negative ? (uint64_t)c->low : c->high;
        write_integer(w, in, i, x);
    }
    return RUN_NEXT;
}

/* ---- floating point ---- */

static double read_float(const warp *w, uint32_t slot, ptx_type t, uint32_t i, int ftz) {
    switch (t) {
    case TYPE_F16:
        return f16_to_float((uint16_t)r32(w, slot)[i]);
    case TYPE_BF16:
        return bf16_to_float((uint16_t)r32(w, slot)[i]);
    case TYPE_F32:
        return float_of(ftz ? flush_f32(r32(w, slot)[i]) : r32(w, slot)[i]);
    default:
        return double_of(r64(w, slot)[i]);
    }
}

static double integral(double x, cvt_rounding rounding) {
    switch (rounding) {
    case CVT_RNI:
        return rint(x); /* the host rounds to nearest */
    case CVT_RZI:
        return trunc(x);
    case CVT_RMI:
        return floor(x);
    case CVT_RPI:
        return ceil(x);
    default:
        return x;
    }
}

HANDLER(integer_of_float) {
    const conversion *c = in->extra;
    FOR_LANES(i, lanes) {
        double x = read_float(w, in->s[0], c->from, i, c->ftz);
        uint64_t r;
        if (isnan(x)) {
            r = c->nan;
        } else {
            x = integral(x, c->rounding);
            r = x >= c->limit        ? c->high
                : x < (double)c->low ? (uint64_t)c->low
                : c->is_signed       ? (uint64_t)(int64_t)x
                                     : (uint64_t)x;
        }
        write_integer(w, in, i, r);
    }
    return RUN_NEXT;
}

static const float_format *format_of(ptx_type t) {
    switch (t) {
    case TYPE_F16:
        return &format_f16;
    case TYPE_BF16:
        return &format_bf16;
    case TYPE_F32:
        return &format_f32;
    default:
        return &format_f64;
    }
}
static void write_float(const warp *w, const instr *in, uint32_t i, uint64_t x) {
    const conversion *c = in->extra;
    if (c->to == TYPE_F64)
        r64(w, in->d)[i] = x;
    else
        r32(w, in->d)[i] = c->to == TYPE_F32 && c->ftz ? flush_f32((uint32_t)x) : (uint32_t)x;
}

HANDLER(float_of_integer) {
    const conversion *c = in->extra;
    const float_format *format = format_of(c->to);
    FOR_LANES(i, lanes) {
        int negative;
        uint64_t x = read_integer(w, in->s[0], c->from, i, &negative);
        if (c->sat) x = negative ? 0 : x != 0, negative = 0;
        write_float(w, in, i,
                    negative ? format_from_int64(format, (int64_t)x, c->mode, c->flags)
                             : format_from_uint64(format, x, c->mode, c->flags));
    }
    return RUN_NEXT;
}

/* NaN to and from f64 keeps its sign and payload, made quiet, as on an H200; otherwise it is the one of its format. */
static uint64_t convert_nan(const conversion *c, uint64_t bits) {
    const float_format *from = format_of(c->from), *to = format_of(c->to);
    if (c->sat) return 0;
    if (c->from != TYPE_F64 && c->to != TYPE_F64) return ((uint64_t)1 << (to->exponent_bits + to->mantissa_bits)) - 1;
    uint64_t payload = bits & (((uint64_t)1 << from->mantissa_bits) - 1);
    int shift = to->mantissa_bits - from->mantissa_bits, sign_at = from->exponent_bits + from->mantissa_bits;
    uint64_t high = ((uint64_t)2 << to->exponent_bits) - 1; /* the exponent and the quiet bit */
    return bits >> sign_at << (to->exponent_bits + to->mantissa_bits) | high << (to->mantissa_bits - 1) |
           (shift < 0 ? payload >> -shift : payload << shift);
}

/* .ftz flushes a result that would be subnormal with unbounded exponents (float.h). */
static double flush_tiny(double x, rounding_mode mode) {
    int away = mode == ROUND_RP ? x > 0 : mode == ROUND_RM ? x < 0 : 0;
    double m = fabs(x);
    int tiny = mode == ROUND_RN ? m < TINY_TO_NEAREST : away ? m <= TINY_AWAY : m < 0x1p-126;
    return tiny ? copysign(0, x) : x;
}

static uint64_t convert_float(const conversion *c, double x) {
    x = integral(x, c->rounding);
    if (c->ftz && c->to == TYPE_F32) x = flush_tiny(x, c->mode);
    if (c->sat) x = x > 0 ? (x < 1 ? x : 1) : 0; /* NaN too */
    switch (c->to) {
    case TYPE_F16:
        return f16_from_double(x, c->mode, c->flags);
    case TYPE_BF16:
        return bf16_from_double(x, c->mode, c->flags);
    case TYPE_F32:
        return isnan(x) ? 0x7fffffff : bits_of(f32_from_double(x, c->mode));
    default:
        return bits_of_double(x);
    }
}
HANDLER(float_of_float) {
    const conversion *c = in->extra;
    FOR_LANES(i, lanes) {
        double x = read_float(w, in->s[0], c->from, i, c->ftz);
        uint64_t bits = c->from == TYPE_F64 ? r64(w, in->s[0])[i] : r32(w, in->s[0])[i];
        if (c->from == TYPE_F16 || c->from == TYPE_BF16) bits = (uint16_t)bits;
        write_float(w, in, i, isnan(x) ? convert_nan(c, bits) : convert_float(c, x));
    }
    return RUN_NEXT;
}
/* NaN as on an H200: .rna cuts the payload off by integer arithmetic (and .satfinite takes a unit from what is not
 * below infinity, NaN too), the others give one NaN. */
static uint32_t to_tf32(uint32_t x, const conversion *c) {
    if ((x & 0x7fffffff) <= 0x7f800000) return tf32_from_float(float_of(x), c->mode, c->flags);
    if (c->mode != ROUND_RNA) return 0x7fffe000;
    return (x & 0xffffe000) - (c->flags & FORMAT_SATFINITE ? 0x2000 : 0);
}
HANDLER(tf32_of_f32) {
    const uint32_t *pa = r32(w, in->s[0]);
    uint32_t *d = r32(w, in->d);
    FOR_LANES(i, lanes) d[i] = to_tf32(pa[i], in->extra);
    return RUN_NEXT;
}

/* The frequent ones, without modifiers but .rn. */
#define DIRECT(name, from, reg_from, to, reg_to, ...)                                                                  \
    HANDLER(name) {                                                                                                    \
        const from *pa = reg_from(w, in->s[0]);                                                                        \
        to *d = reg_to(w, in->d);                                                                                      \
        LANES(i, lanes, {                                                                                              \
            const from a = pa[i];                                                                                      \
            d[i] = (__VA_ARGS__);                                                                                      \
        });                                                                                                            \
        return RUN_NEXT;                                                                                               \
    }
DIRECT(f32_of_s32, uint32_t, r32, uint32_t, r32, bits_of((float)(int32_t)a))
DIRECT(f32_of_u32, uint32_t, r32, uint32_t, r32, bits_of((float)a))
DIRECT(f64_of_s32, uint32_t, r32, uint64_t, r64, bits_of_double((double)(int32_t)a))
DIRECT(f64_of_u32, uint32_t, r32, uint64_t, r64, bits_of_double((double)a))
DIRECT(f32_of_bf16, uint32_t, r32, uint32_t, r32, a << 16)
DIRECT(f32_of_f16, uint32_t, r32, uint32_t, r32, bits_of(f16_to_float((uint16_t)a)))
static inline uint32_t bf16_to_nearest(uint32_t x) {
    return (x & 0x7fffffff) > 0x7f800000 ? 0x7fff : (x + 0x7fff + (x >> 16 & 1)) >> 16;
}
DIRECT(bf16_of_f32, uint32_t, r32, uint32_t, r32, bf16_to_nearest(a))
DIRECT(f16_of_f32, uint32_t, r32, uint32_t, r32, f16_from_float(float_of(a), ROUND_RN, 0))

static const struct {
    ptx_type to, from;
    run_function *run;
} direct_conversions[] = {
    {TYPE_F32, TYPE_S32, f32_of_s32},   {TYPE_F32, TYPE_U32, f32_of_u32},   {TYPE_F64, TYPE_S32, f64_of_s32},
    {TYPE_F64, TYPE_U32, f64_of_u32},   {TYPE_F32, TYPE_BF16, f32_of_bf16}, {TYPE_F32, TYPE_F16, f32_of_f16},
    {TYPE_BF16, TYPE_F32, bf16_of_f32}, {TYPE_F16, TYPE_F32, f16_of_f32},
};

/* ---- registers wider than the types ---- */

/* The source is cut into a register of its own size, or the result comes in one and is extended. */
HANDLER(through_own_sizes) {
    const conversion *c = in->extra;
    if (c->wide_source) {
        const uint64_t *pa = r64(w, in->s[0]);
        uint32_t *cut = r32(w, c->inner.s[0]);
        LANES(i, lanes, { cut[i] = (uint32_t)pa[i]; });
    }
    c->inner.run(w, &c->inner, lanes);
    if (c->wide_result) {
        uint64_t *d = r64(w, in->d);
        const uint32_t *r = r32(w, c->inner.d);
        const int is_signed = c->is_signed;
        LANES(i, lanes, { d[i] = is_signed ? (uint64_t)(int64_t)(int32_t)r[i] : r[i]; });
    }
    return RUN_NEXT;
}

/* ---- decoding ---- */

static int is_integer(ptx_type t) {
    return t >= TYPE_U8 && t <= TYPE_S64;
}
static int is_signed_type(ptx_type t) {
    return t >= TYPE_S8 && t <= TYPE_S64;
}
static int is_scalar_float(ptx_type t) {
    return t == TYPE_F16 || t == TYPE_BF16 || t == TYPE_F32 || t == TYPE_F64;
}

/* The type of a register that holds at least `t`; t for anything else. */
static ptx_type held_as(const operand *o, ptx_type t) {
    if (o->kind != OPERAND_REGISTER || type_bits(o->reg->type) <= type_bits(t)) return t;
    int bits = type_bits(o->reg->type);
    return bits == 16 ? TYPE_B16 : bits == 32 ? TYPE_B32 : bits == 64 ? TYPE_B64 : t;
}

static void take_registers(decoder *d, conversion *c) {
    instr *in = d->in;
    ptx_type to = held_as(operand_at(d, 0), c->to), from = held_as(operand_at(d, 1), c->from);
    if (to != c->to && (c->to == TYPE_BF16 || c->to == TYPE_TF32))
        reject(d, "the register of a .%s result cannot be wider", type_name(c->to));
    if (from != c->from && c->from == TYPE_BF16) reject(d, "the register of a .bf16 source cannot be wider");
    in->d = result(d, 0, to);
    in->s[0] = source(d, 1, from);
    c->wide_source = type_bits(from) == 64 && type_bits(c->from) < 64;
    c->wide_result = type_bits(to) == 64 && type_bits(c->to) < 64;
    int bits = c->wide_result ? 32 : type_bits(to);
    c->mask = bits >= 32 ? UINT32_MAX : ((uint32_t)1 << bits) - 1;
    in->imm = bits >= 64 ? -1 : (int64_t)c->mask;
    if (!c->wide_source && !c->wide_result) return;
    c->inner = *in;
    if (c->wide_source) c->inner.s[0] = hidden_register(d, "cvt source", TYPE_B32);
    if (c->wide_result) c->inner.d = hidden_register(d, "cvt result", TYPE_B32);
    in->run = through_own_sizes;
}

static void set_bounds(conversion *c) {
    c->bits = type_bits(c->to);
    c->is_signed = is_signed_type(c->to);
    int magnitude = c->bits - c->is_signed;
    c->high = magnitude == 64 ? UINT64_MAX : ((uint64_t)1 << magnitude) - 1;
    c->low = c->is_signed ? -(int64_t)c->high - 1 : 0;
    c->limit = ldexp(1, magnitude);
    c->nan = c->from == TYPE_F64 || c->bits == 64 ? (uint64_t)1 << (c->bits - 1) : 0;
}

static void decode_to_integer(decoder *d, conversion *c) {
    int rounds = c->rounding >= CVT_RNI;
    set_bounds(c);
    if (is_integer(c->from)) {
        if (c->rounding || c->ftz) reject(d, "a conversion between integers has no rounding");
        d->in->run = c->sat ? clamp_integer : resize_table[c->to][c->from];
    } else {
        if (!rounds) reject(d, "a conversion to an integer needs .rni, .rzi, .rmi or .rpi");
        d->in->run = integer_of_float;
    }
}

static int float_rank(ptx_type t) {
    switch (t) {
    case TYPE_BF16:
        return 1;
    case TYPE_F16:
        return 2;
    case TYPE_F32:
        return 3;
    default:
        return 4;
    }
}

static void decode_to_float(decoder *d, conversion *c) {
    int from_integer = is_integer(c->from), integral_rounding = c->rounding >= CVT_RNI;
    /* bf16 to f16 loses range and mantissa the other way round: both need a rounding */
    int narrows =
        from_integer || float_rank(c->to) < float_rank(c->from) || (c->from == TYPE_BF16 && c->to == TYPE_F16);
    if (integral_rounding && c->to != c->from) reject(d, "rounding to an integer keeps the type");
    if (narrows && !c->rounding) reject(d, "this conversion needs a rounding");
    if (!narrows && c->rounding && !integral_rounding && c->to != TYPE_BF16 && c->from != TYPE_BF16)
        reject(d, "this conversion is exact and takes no rounding");
    if (c->rounding == CVT_RNA) reject(d, ".rna is for .tf32");
    if (c->flags && (c->from != TYPE_F32 || (c->to != TYPE_F16 && c->to != TYPE_BF16)))
        reject(d, ".relu and .satfinite go with .f16.f32 and .bf16.f32");
    if (c->sat && c->to == TYPE_BF16) reject(d, ".sat does not go with .bf16");
    d->in->run = from_integer ? float_of_integer : float_of_float;
    int plain = !c->ftz && !c->sat && !c->flags && (c->rounding == CVT_NO_ROUNDING || c->rounding == CVT_RN);
    for (size_t i = 0; plain && i < sizeof direct_conversions / sizeof *direct_conversions; i++)
        if (direct_conversions[i].to == c->to && direct_conversions[i].from == c->from)
            d->in->run = direct_conversions[i].run;
}

static int decode_cvt(decoder *d) {
    static const char *const roundings[] = {"rn", "rz", "rm", "rp", "rna", "rs", "rni", "rzi", "rmi", "rpi", NULL};
    static const rounding_mode modes[] = {
        [CVT_NO_ROUNDING] = ROUND_RN, [CVT_RN] = ROUND_RN,   [CVT_RZ] = ROUND_RZ, [CVT_RM] = ROUND_RM,
        [CVT_RP] = ROUND_RP,          [CVT_RNA] = ROUND_RNA, [CVT_RPI] = ROUND_RN};
    if (take(d, "pack")) return decode_cvt_pack(d);
    conversion *c = d->in->extra = decode_alloc(d, sizeof *c);
    c->rounding = (cvt_rounding)(CVT_RN + take_one_of(d, roundings));
    c->mode = modes[c->rounding];
    c->ftz = take(d, "ftz");
    c->sat = take(d, "sat");
    c->flags = (take(d, "satfinite") ? FORMAT_SATFINITE : 0) | (take(d, "relu") ? FORMAT_RELU : 0);
    c->to = need_type(d);
    c->from = need_type(d);
    d->in->type = (uint8_t)c->to;
    d->in->type2 = (uint8_t)c->from;
    if (decode_packed_conversion(d, c)) return 1;
    if (c->rounding == CVT_RS) reject(d, ".rs is for pairs and fours");
    if (c->ftz && c->to != TYPE_F32 && c->from != TYPE_F32) reject(d, ".ftz needs .f32");
    int from_known = is_integer(c->from) || is_scalar_float(c->from);
    if (c->to == TYPE_TF32 && c->from == TYPE_F32) {
        if (c->rounding != CVT_RNA && c->rounding != CVT_RN && c->rounding != CVT_RZ)
            reject(d, ".tf32 needs .rna, .rn or .rz");
        if (c->ftz || c->sat) reject(d, ".ftz and .sat do not go with .tf32");
        d->in->run = tf32_of_f32;
    } else if (is_integer(c->to) && from_known) {
        if (c->flags) reject(d, ".relu and .satfinite do not go with integers");
        decode_to_integer(d, c);
    } else if (is_scalar_float(c->to) && from_known) {
        decode_to_float(d, c);
    } else
        reject(d, "there is no conversion from .%s to .%s", type_name(c->from), type_name(c->to));
    take_registers(d, c);
    return 1;
}

const opcode_entry convert_opcodes[] = {{"cvt", decode_cvt}, {0}};
