/* cvt of pairs and groups of four (PTX ISA 9.7.9.21), and cvt.pack (9.7.9.22).
 *
 * The first operand goes to the upper part of the result. .rs (stochastic rounding) adds a fraction of a unit in the
 * last place, made of the random bits, to the magnitude, then truncates. f16 takes 13 random bits, other formats 16,
 * weighted directly below the last place, for subnormal results too. Groups of four take one half of the random
 * operand for each pair; e2m1x4 takes the upper bytes of both halves for one pair and the lower bytes for the other. */
#include <math.h>

#include "scalar/convert.h"

/* One element of a packed type. */
typedef struct {
    ptx_type type;
    int count, bits; /* elements, and places of each in the register */
    const float_format *format;
    uint32_t (*narrow)(float x, rounding_mode rounding, int flags);
    float (*widen)(uint32_t x);
} packed_type;

#define NARROW(name, prefix)                                                                                           \
    static uint32_t name##_narrow(float x, rounding_mode rounding, int flags) {                                        \
        return prefix##_from_float(x, rounding, flags);                                                                \
    }
#define WIDEN(name, type)                                                                                              \
    static float name##_widen(uint32_t x) {                                                                            \
        return name##_to_float((type)x);                                                                               \
    }
NARROW(f16, f16)
NARROW(bf16, bf16)
NARROW(e4m3, e4m3)
NARROW(e5m2, e5m2)
NARROW(e2m3, e2m3)
NARROW(e3m2, e3m2)
NARROW(e2m1, e2m1)
NARROW(ue8m0, ue8m0)
WIDEN(f16, uint16_t)
WIDEN(bf16, uint16_t)
WIDEN(e4m3, uint8_t)
WIDEN(e5m2, uint8_t)
WIDEN(e2m3, uint8_t)
WIDEN(e3m2, uint8_t)
WIDEN(e2m1, uint8_t)
WIDEN(ue8m0, uint8_t)

#define PACKED(type, count, bits, name) {type, count, bits, &format_##name, name##_narrow, name##_widen}
static const packed_type packed_types[] = {
    PACKED(TYPE_F16X2, 2, 16, f16),
    PACKED(TYPE_BF16X2, 2, 16, bf16),
    PACKED(TYPE_E4M3X2, 2, 8, e4m3),
    PACKED(TYPE_E5M2X2, 2, 8, e5m2),
    PACKED(TYPE_E2M3X2, 2, 8, e2m3),
    PACKED(TYPE_E3M2X2, 2, 8, e3m2),
    PACKED(TYPE_E2M1X2, 2, 4, e2m1),
    PACKED(TYPE_E4M3X4, 4, 8, e4m3),
    PACKED(TYPE_E5M2X4, 4, 8, e5m2),
    PACKED(TYPE_E2M3X4, 4, 8, e2m3),
    PACKED(TYPE_E3M2X4, 4, 8, e3m2),
    PACKED(TYPE_E2M1X4, 4, 4, e2m1),
    {TYPE_UE8M0X2, 2, 8, NULL, ue8m0_narrow, ue8m0_widen},
};
static const packed_type *packed(ptx_type t) {
    for (size_t i = 0; i < sizeof packed_types / sizeof *packed_types; i++)
        if (packed_types[i].type == t) return &packed_types[i];
    return NULL;
}

typedef struct {
    const packed_type *to, *from; /* from: NULL for f32 */
    rounding_mode mode;
    int flags;
} packing;

/* ---- handlers ---- */

/* d = {s[0], s[1]}, f32 */
HANDLER(pack_pair) {
    const packing *p = in->extra;
    const uint32_t *pa = r32(w, in->s[0]), *pb = r32(w, in->s[1]);
    uint32_t *d = r32(w, in->d);
    FOR_LANES(i, lanes)
    d[i] = p->to->narrow(float_of(pa[i]), p->mode, p->flags) << p->to->bits |
           p->to->narrow(float_of(pb[i]), p->mode, p->flags);
    return RUN_NEXT;
}
static inline uint32_t bf16_to_nearest(uint32_t x) {
    return (x & 0x7fffffff) > 0x7f800000 ? 0x7fff : (x + 0x7fff + (x >> 16 & 1)) >> 16;
}
HANDLER(pack_bf16x2_rn) {
    const uint32_t *pa = r32(w, in->s[0]), *pb = r32(w, in->s[1]);
    uint32_t *d = r32(w, in->d);
    LANES(i, lanes, { d[i] = bf16_to_nearest(pa[i]) << 16 | bf16_to_nearest(pb[i]); });
    return RUN_NEXT;
}

/* A pair in one register to another pair; the value between is exact in f32. */
HANDLER(pair_to_pair) {
    const packing *p = in->extra;
    const int from = p->from->bits, to = p->to->bits;
    const uint32_t *pa = r32(w, in->s[0]);
    uint32_t *d = r32(w, in->d);
    FOR_LANES(i, lanes) {
        uint32_t low = pa[i] & (((uint32_t)1 << from) - 1), high = pa[i] >> from;
        d[i] = p->to->narrow(p->from->widen(high), p->mode, p->flags) << to |
               p->to->narrow(p->from->widen(low), p->mode, p->flags);
    }
    return RUN_NEXT;
}
/* bf16 holds every power of two of ue8m0 but the least, which is subnormal there */
HANDLER(bf16x2_of_ue8m0x2) {
    const uint32_t *pa = r32(w, in->s[0]);
    uint32_t *d = r32(w, in->d);
    FOR_LANES(i, lanes)
    d[i] = (uint32_t)ue8m0_to_bf16((uint8_t)(pa[i] >> 8)) << 16 | ue8m0_to_bf16((uint8_t)pa[i]);
    return RUN_NEXT;
}

/* Stochastic rounding of |x| by `fraction` of a unit in the last place. */
static uint32_t narrow_randomly(const packed_type *to, float x, double fraction, int flags) {
    const float_format *f = to->format;
    if (!isfinite(x) || x == 0) return to->narrow(x, ROUND_RN, flags);
    int exponent, smallest = 1 - f->bias;
    double magnitude = frexp(fabs((double)x), &exponent); /* in [0.5, 1) */
    (void)magnitude;
    int leading = exponent - 1 > smallest ? exponent - 1 : smallest;
    double unit = ldexp(1, leading - f->mantissa_bits), units = floor(fabs((double)x) / unit + fraction);
    return (uint32_t)format_from_double(f, copysign(units * unit, x), ROUND_RN, flags);
}
HANDLER(pack_pair_randomly) {
    const packing *p = in->extra;
    const uint32_t *pa = r32(w, in->s[0]), *pb = r32(w, in->s[1]), *random = r32(w, in->s[2]);
    const int bits = p->to->type == TYPE_F16X2 ? 13 : 16;
    const uint32_t used = ((uint32_t)1 << bits) - 1;
    uint32_t *d = r32(w, in->d);
    FOR_LANES(i, lanes) {
        double high = ldexp(random[i] >> 16 & used, -bits), low = ldexp(random[i] & used, -bits);
        d[i] = narrow_randomly(p->to, float_of(pa[i]), high, p->flags) << 16 |
               narrow_randomly(p->to, float_of(pb[i]), low, p->flags);
    }
    return RUN_NEXT;
}
HANDLER(pack_four_randomly) {
    const packing *p = in->extra;
    const uint32_t *random = r32(w, in->s[0]);
    uint32_t *d = r32(w, in->d);
    FOR_LANES(i, lanes) {
        const uint32_t r = random[i];
        uint32_t first = r >> 16, second = r & 0xffff, all = 0;
        if (p->to->type == TYPE_E2M1X4) {
            first = r >> 24 << 8 | (r >> 8 & 0xff);
            second = (r >> 16 & 0xff) << 8 | (r & 0xff);
        }
        for (int k = 0; k < 4; k++)
            all = all << p->to->bits |
                  narrow_randomly(p->to, float_of(r32(w, in->vs[k])[i]), ldexp(k < 2 ? first : second, -16), p->flags);
        d[i] = all;
    }
    return RUN_NEXT;
}

/* ---- decoding ---- */

static int is_wide_pair(ptx_type t) {
    return t == TYPE_F16X2 || t == TYPE_BF16X2;
}
static ptx_type register_type(const packed_type *p) {
    int bits = p->bits * p->count;
    return bits == 8 ? TYPE_B8 : bits == 16 ? TYPE_B16 : TYPE_B32;
}

static void check_pair(decoder *d, const conversion *c, const packed_type *to, const packed_type *from) {
    int satfinite = c->flags & FORMAT_SATFINITE, to_scale = to->type == TYPE_UE8M0X2;
    if (c->ftz || c->sat) reject(d, ".ftz and .sat do not go with pairs");
    if (to_scale ? c->rounding != CVT_RZ && c->rounding != CVT_RP
                 : c->rounding != CVT_RN && c->rounding != CVT_RS && !(c->rounding == CVT_RZ && is_wide_pair(to->type)))
        reject(d, "there is no such rounding to .%s", type_name(c->to));
    if (to_scale && c->flags & FORMAT_RELU) reject(d, ".relu does not go with .ue8m0x2");
    if (from && c->rounding != CVT_RN && !to_scale) reject(d, "a pair in one register is converted with .rn");
    if (!is_wide_pair(to->type) && !to_scale && !satfinite)
        reject(d, "conversions to .%s need .satfinite", type_name(c->to));
    if (from && is_wide_pair(to->type) && satfinite)
        reject(d, ".satfinite does not go with conversions to wider pairs");
    if ((to->count == 4) != (c->rounding == CVT_RS && !is_wide_pair(to->type)))
        reject(d, ".rs is for fours, .f16x2 and .bf16x2");
    if (from && !(is_wide_pair(to->type) ? !is_wide_pair(from->type) : is_wide_pair(from->type)))
        reject(d, "there is no conversion from .%s to .%s", type_name(c->from), type_name(c->to));
    int scales = from && (to_scale || from->type == TYPE_UE8M0X2);
    if (scales && (to_scale ? c->from : c->to) != TYPE_BF16X2) reject(d, ".ue8m0x2 is converted from and to .bf16x2");
}

int decode_packed_conversion(decoder *d, conversion *c) {
    const packed_type *to = packed(c->to), *from = packed(c->from);
    if (!to || (!from && c->from != TYPE_F32)) return 0;
    instr *in = d->in;
    packing *p = decode_alloc(d, sizeof *p);
    *p = (packing){to, from, c->rounding == CVT_RS ? ROUND_RN : c->mode, c->flags};
    check_pair(d, c, to, from);
    in->extra = p;
    in->d = result(d, 0, register_type(to));
    if (from) {
        in->s[0] = source(d, 1, register_type(from));
        in->run = from->type == TYPE_UE8M0X2 ? bf16x2_of_ue8m0x2 : pair_to_pair;
    } else if (to->count == 4) {
        int count = 0;
        in->vs = source_vector(d, 1, TYPE_F32, &count);
        if (count != 4) reject(d, "four numbers are needed");
        in->s[0] = source(d, 2, TYPE_B32);
        in->run = pack_four_randomly;
    } else {
        in->s[0] = source(d, 1, TYPE_F32);
        in->s[1] = source(d, 2, TYPE_F32);
        in->run = pack_pair;
        if (to->type == TYPE_BF16X2 && c->rounding == CVT_RN && !c->flags) in->run = pack_bf16x2_rn;
        if (c->rounding == CVT_RS) {
            in->s[2] = source(d, 3, TYPE_B32);
            in->run = pack_pair_randomly;
        }
    }
    return 1;
}

/* ---- cvt.pack: two integers, saturated, below the low bits of a third ---- */

HANDLER(pack_integers) {
    const int bits = (int)in->mode;
    const int32_t low = in->imm ? -(1 << (bits - 1)) : 0, high = (1 << (in->imm ? bits - 1 : bits)) - 1;
    const uint32_t element = ((uint32_t)1 << bits) - 1;
    const uint32_t *pa = r32(w, in->s[0]), *pb = r32(w, in->s[1]), *pc = r32(w, in->s[2]);
    uint32_t *d = r32(w, in->d);
    LANES(i, lanes, {
        const int32_t a = (int32_t)pa[i], b = (int32_t)pb[i];
        const uint32_t x = (uint32_t)(a < low ? low : a > high ? high : a) & element;
        const uint32_t y = (uint32_t)(b < low ? low : b > high ? high : b) & element;
        d[i] = x << bits | y | (bits < 16 ? pc[i] << (2 * bits & 31) : 0);
    });
    return RUN_NEXT;
}

int decode_cvt_pack(decoder *d) {
    static const char *const types[] = {"u2", "s2", "u4", "s4", "u8", "s8", "u16", "s16", NULL};
    static const uint8_t sizes[] = {2, 4, 8, 16};
    instr *in = d->in;
    need(d, "sat");
    int which = take_one_of(d, types);
    if (which < 0) reject(d, "cvt.pack has no such type");
    need(d, "s32");
    in->mode = sizes[which / 2];
    in->imm = which % 2;
    in->run = pack_integers;
    if (in->mode < 16) need(d, "b32");
    operands(d, in->mode < 16 ? 3 : 2, TYPE_B32);
    if (in->mode == 16) in->s[2] = in->s[0];
    return 1;
}
