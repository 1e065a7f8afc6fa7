/* Integer arithmetic (PTX ISA 9.7.1: add to max, dp4a, dp2a) and the carry chain (9.7.2).
 *
 * Where the ISA is silent, ptxas's code decides: x / 0 gives all ones, x % 0 gives x, MIN / -1 wraps. */
#include "scalar/lanes.h"

/* ---- one handler for each operation and type ---- */

#define WRAPPING(t)                                                                                                    \
    BINARY(add_##t, t, (W)a + (W)b)                                                                                    \
    BINARY(sub_##t, t, (W)a - (W)b)                                                                                    \
    BINARY(mul_lo_##t, t, (W)a *(W)b)                                                                                  \
    TERNARY(mad_lo_##t, t, (W)a *(W)b + (W)c)                                                                          \
    TERNARY(sad_##t, t, (W)c + (a < b ? (W)b - (W)a : (W)a - (W)b))                                                    \
    BINARY(min_##t, t, a < b ? a : b)                                                                                  \
    BINARY(max_##t, t, a > b ? a : b)
WRAPPING(u16)
WRAPPING(s16)
WRAPPING(u32)
WRAPPING(s32)
WRAPPING(u64)
WRAPPING(s64)

/* Products of twice the width. */
#define WIDE_u16 uint32_t
#define WIDE_s16 int32_t
#define WIDE_u32 uint64_t
#define WIDE_s32 int64_t
#define WIDE_u64 unsigned __int128
#define WIDE_s64 __int128
#define HIGH(t, bits)                                                                                                  \
    static inline WORK_##t high_##t(C_##t a, C_##t b) {                                                                \
        return (WORK_##t)(((WIDE_##t)a * (WIDE_##t)b) >> bits);                                                        \
    }                                                                                                                  \
    BINARY(mul_hi_##t, t, high_##t(a, b))                                                                              \
    TERNARY(mad_hi_##t, t, high_##t(a, b) + (W)c)
HIGH(u16, 16)
HIGH(s16, 16)
HIGH(u32, 32)
HIGH(s32, 32)
HIGH(u64, 64)
HIGH(s64, 64)

#define WIDENING(t, wide)                                                                                              \
    HANDLER(mul_wide_##t) {                                                                                            \
        CELL_##wide *d = REG_##wide(w, in->d);                                                                         \
        const uint32_t *pa = r32(w, in->s[0]), *pb = r32(w, in->s[1]);                                                 \
        LANES(i, lanes, { d[i] = (CELL_##wide)((WIDE_##t)(C_##t)pa[i] * (WIDE_##t)(C_##t)pb[i]); });                   \
        return RUN_NEXT;                                                                                               \
    }                                                                                                                  \
    HANDLER(mad_wide_##t) {                                                                                            \
        CELL_##wide *d = REG_##wide(w, in->d);                                                                         \
        const uint32_t *pa = r32(w, in->s[0]), *pb = r32(w, in->s[1]);                                                 \
        const CELL_##wide *pc = REG_##wide(w, in->s[2]);                                                               \
        LANES(i, lanes, { d[i] = (CELL_##wide)((WIDE_##t)(C_##t)pa[i] * (WIDE_##t)(C_##t)pb[i]) + pc[i]; });           \
        return RUN_NEXT;                                                                                               \
    }
WIDENING(u16, u32)
WIDENING(s16, s32)
WIDENING(u32, u64)
WIDENING(s32, s64)

#define DIVIDING_UNSIGNED(t)                                                                                           \
    BINARY(div_##t, t, b ? a / b : (C_##t) ~(C_##t)0)                                                                  \
    BINARY(rem_##t, t, b ? a % b : a)
DIVIDING_UNSIGNED(u16)
DIVIDING_UNSIGNED(u32)
DIVIDING_UNSIGNED(u64)
#define DIVIDING_SIGNED(t)                                                                                             \
    BINARY(div_##t, t, b == 0 ? ~(W)0 : b == -1 ? (W)0 - (W)a : (W)(a / b))                                            \
    BINARY(rem_##t, t, b == 0 ? a : b == -1 ? 0 : a % b)                                                               \
    UNARY(abs_##t, t, a < 0 ? (W)0 - (W)a : (W)a)                                                                      \
    UNARY(neg_##t, t, (W)0 - (W)a)
DIVIDING_SIGNED(s16)
DIVIDING_SIGNED(s32)
DIVIDING_SIGNED(s64)

/* Saturation and relu. */
static inline int64_t clamp(int64_t x, int64_t low, int64_t high) {
    return x < low ? low : x > high ? high : x;
}
static inline uint32_t saturate_s32(int64_t x) {
    return (uint32_t)clamp(x, INT32_MIN, INT32_MAX);
}
BINARY(add_sat_s32, s32, saturate_s32((int64_t)a + b))
BINARY(sub_sat_s32, s32, saturate_s32((int64_t)a - b))
BINARY(add_sat_u32, u32, (uint32_t)(a + b) < a ? UINT32_MAX : a + b)
BINARY(sub_sat_u32, u32, a < b ? 0 : a - b)
TERNARY(mad_hi_sat_s32, s32, saturate_s32((int64_t)(int32_t)high_s32(a, b) + c))
BINARY(min_relu_s32, s32, (a < b ? a : b) < 0 ? 0 : a < b ? a : b)
BINARY(max_relu_s32, s32, (a > b ? a : b) < 0 ? 0 : a > b ? a : b)

/* 24-bit operands. */
static inline int64_t product24_s32(int32_t a, int32_t b) {
    return (int64_t)((int32_t)((uint32_t)a << 8) >> 8) * ((int32_t)((uint32_t)b << 8) >> 8);
}
static inline uint64_t product24_u32(uint32_t a, uint32_t b) {
    return (uint64_t)(a & 0xffffff) * (b & 0xffffff);
}
#define PRODUCT24(t)                                                                                                   \
    BINARY(mul24_lo_##t, t, (W)product24_##t(a, b))                                                                    \
    BINARY(mul24_hi_##t, t, (W)(product24_##t(a, b) >> 16))                                                            \
    TERNARY(mad24_lo_##t, t, (W)product24_##t(a, b) + (W)c)                                                            \
    TERNARY(mad24_hi_##t, t, (W)(product24_##t(a, b) >> 16) + (W)c)
PRODUCT24(u32)
PRODUCT24(s32)
TERNARY(mad24_hi_sat_s32, s32, saturate_s32((int64_t)(int32_t)(product24_s32(a, b) >> 16) + c))

/* Two halves or four quarters of a register: `expression` computes one from a and b. */
#define PACKED(name, part, bits, ...)                                                                                  \
    static inline uint32_t part_##name(uint32_t x, uint32_t y) {                                                       \
        uint32_t all = 0;                                                                                              \
        for (int at = 0; at < 32; at += bits) {                                                                        \
            const int32_t a = (part)(x >> at), b = (part)(y >> at);                                                    \
            all |= ((uint32_t)(__VA_ARGS__) & ((1u << bits) - 1)) << at;                                               \
        }                                                                                                              \
        return all;                                                                                                    \
    }                                                                                                                  \
    BINARY(name, u32, part_##name(a, b))
#define RELU(x) ((x) < 0 ? 0 : (x))
PACKED(add_u16x2, uint16_t, 16, a + b)
PACKED(min_u16x2, uint16_t, 16, a < b ? a : b)
PACKED(max_u16x2, uint16_t, 16, a > b ? a : b)
PACKED(min_s16x2, int16_t, 16, a < b ? a : b)
PACKED(max_s16x2, int16_t, 16, a > b ? a : b)
PACKED(min_relu_s16x2, int16_t, 16, RELU(a < b ? a : b))
PACKED(max_relu_s16x2, int16_t, 16, RELU(a > b ? a : b))

/* ---- dot products ---- */

static inline int64_t byte_of(uint32_t x, int i, int is_signed) {
    return is_signed ? (int8_t)(x >> 8 * i) : (uint8_t)(x >> 8 * i);
}
static inline int64_t half_of(uint32_t x, int i, int is_signed) {
    return is_signed ? (int16_t)(x >> 16 * i) : (uint16_t)(x >> 16 * i);
}
static inline uint32_t dot4(uint32_t a, uint32_t b, uint32_t c, int a_signed, int b_signed) {
    int64_t sum = c;
    for (int i = 0; i < 4; i++) sum += byte_of(a, i, a_signed) * byte_of(b, i, b_signed);
    return (uint32_t)sum;
}
static inline uint32_t dot2(uint32_t a, uint32_t b, uint32_t c, int first, int a_signed, int b_signed) {
    int64_t sum = c;
    for (int i = 0; i < 2; i++) sum += half_of(a, i, a_signed) * byte_of(b, first + i, b_signed);
    return (uint32_t)sum;
}
TERNARY(dp4a_uu, u32, dot4(a, b, c, 0, 0))
TERNARY(dp4a_us, u32, dot4(a, b, c, 0, 1))
TERNARY(dp4a_su, u32, dot4(a, b, c, 1, 0))
TERNARY(dp4a_ss, u32, dot4(a, b, c, 1, 1))
TERNARY(dp2a_lo_uu, u32, dot2(a, b, c, 0, 0, 0))
TERNARY(dp2a_lo_us, u32, dot2(a, b, c, 0, 0, 1))
TERNARY(dp2a_lo_su, u32, dot2(a, b, c, 0, 1, 0))
TERNARY(dp2a_lo_ss, u32, dot2(a, b, c, 0, 1, 1))
TERNARY(dp2a_hi_uu, u32, dot2(a, b, c, 2, 0, 0))
TERNARY(dp2a_hi_us, u32, dot2(a, b, c, 2, 0, 1))
TERNARY(dp2a_hi_su, u32, dot2(a, b, c, 2, 1, 0))
TERNARY(dp2a_hi_ss, u32, dot2(a, b, c, 2, 1, 1))

/* ---- the carry chain ---- */

/* The carry flag of each lane is a bit of a predicate that no program names: d2 where it is written, s[5] where it is
 * read. s[0] + s[1] (or their product's half) + s[2] + carry; subtraction adds the complement, and its flag says that a
 * borrow was needed. */
#define CARRY(name, t, first, second, in_flip)                                                                         \
    HANDLER(name) {                                                                                                    \
        CELL_##t *d = REG_##t(w, in->d);                                                                               \
        const CELL_##t *pa = REG_##t(w, in->s[0]), *pb = REG_##t(w, in->s[1]),                                         \
                       *pc = in->s[2] == NO_SLOT ? NULL : REG_##t(w, in->s[2]);                                        \
        const uint32_t carry = (in->s[5] == NO_SLOT ? 0 : *predicate(w, in->s[5])) ^ (in_flip);                        \
        uint32_t out = 0;                                                                                              \
        FOR_LANES(i, lanes) {                                                                                          \
            const C_##t a = (C_##t)pa[i], b = (C_##t)pb[i], c = pc ? (C_##t)pc[i] : 0;                                 \
            (void)c;                                                                                                   \
            unsigned __int128 sum = (unsigned __int128)(BITS_##t)(first) + (BITS_##t)(second) + (carry >> i & 1);      \
            d[i] = (BITS_##t)sum;                                                                                      \
            out |= (uint32_t)(sum >> (8 * sizeof(BITS_##t)) & 1) << i;                                                 \
        }                                                                                                              \
        set_predicate(w, in->d2, lanes, out ^ (in_flip));                                                              \
        return RUN_NEXT;                                                                                               \
    }
#define CARRIES(t)                                                                                                     \
    CARRY(addc_##t, t, a, b, 0)                                                                                        \
    CARRY(subc_##t, t, a, ~b, UINT32_MAX)                                                                              \
    CARRY(madc_lo_##t, t, (WORK_##t)a *(WORK_##t)b, c, 0)                                                              \
    CARRY(madc_hi_##t, t, high_##t(a, b), c, 0)
CARRIES(u32)
CARRIES(s32)
CARRIES(u64)
CARRIES(s64)

/* ---- decoding ---- */

#define BY_SIGNED(op) [TYPE_S16] = op##_s16, [TYPE_S32] = op##_s32, [TYPE_S64] = op##_s64
#define BY_NARROW(op) [TYPE_U16] = op##_u16, [TYPE_S16] = op##_s16, BY_TYPE_32(op)
#define BY_CARRY(op)  BY_TYPE_32(op), [TYPE_U64] = op##_u64, [TYPE_S64] = op##_s64
static const handler_table add_table = {BY_TYPE(add)}, sub_table = {BY_TYPE(sub)};
static const handler_table add_sat_table = {BY_TYPE_32(add_sat)}, sub_sat_table = {BY_TYPE_32(sub_sat)};
static const handler_table mul_lo_table = {BY_TYPE(mul_lo)}, mul_hi_table = {BY_TYPE(mul_hi)};
static const handler_table mad_lo_table = {BY_TYPE(mad_lo)}, mad_hi_table = {BY_TYPE(mad_hi)};
static const handler_table mul_wide_table = {BY_NARROW(mul_wide)}, mad_wide_table = {BY_NARROW(mad_wide)};
static const handler_table mad_hi_sat_table = {[TYPE_S32] = mad_hi_sat_s32};
static const handler_table mul24_lo_table = {BY_TYPE_32(mul24_lo)}, mul24_hi_table = {BY_TYPE_32(mul24_hi)};
static const handler_table mad24_lo_table = {BY_TYPE_32(mad24_lo)}, mad24_hi_table = {BY_TYPE_32(mad24_hi)};
static const handler_table mad24_hi_sat_table = {[TYPE_S32] = mad24_hi_sat_s32};
static const handler_table sad_table = {BY_TYPE(sad)}, div_table = {BY_TYPE(div)}, rem_table = {BY_TYPE(rem)};
static const handler_table abs_table = {BY_SIGNED(abs)}, neg_table = {BY_SIGNED(neg)};
static const handler_table min_table = {BY_TYPE(min)}, max_table = {BY_TYPE(max)};
static const handler_table min_relu_table = {[TYPE_S32] = min_relu_s32}, max_relu_table = {[TYPE_S32] = max_relu_s32};
static const handler_table addc_table = {BY_CARRY(addc)}, subc_table = {BY_CARRY(subc)};
static const handler_table madc_lo_table = {BY_CARRY(madc_lo)}, madc_hi_table = {BY_CARRY(madc_hi)};

/* add, sub, mul, mad, div, abs, neg, min and max are floating-point instructions too. */
static int is_packed(const decoder *d) {
    return has_modifier(d, "u16x2") || has_modifier(d, "s16x2");
}
static int is_ours(const decoder *d) {
    ptx_type t = peek_type(d);
    return is_packed(d) || (t >= TYPE_U8 && t <= TYPE_S64);
}

static int decode_packed(decoder *d, run_function *run_unsigned, run_function *run_signed) {
    int is_signed = !take(d, "u16x2");
    if (is_signed) need(d, "s16x2");
    d->in->run = is_signed ? run_signed : run_unsigned;
    if (!d->in->run) reject(d, "%s has no such packed form", d->statement->opcode);
    operands(d, 2, TYPE_B32);
    return 1;
}

static int decode_plain(decoder *d, const handler_table table, int sources) {
    ptx_type t = need_type(d);
    choose(d, table, t);
    operands(d, sources, t);
    return 1;
}

/* The instructions of the carry chain: .cc writes the flag, `carry_in` reads it. */
static int decode_carry(decoder *d, const handler_table table, int sources, int carry_in) {
    ptx_type t = need_type(d);
    choose(d, table, t);
    uint32_t flag = hidden_register(d, "carry", TYPE_PRED);
    if (take(d, "cc")) d->in->d2 = flag;
    if (carry_in) d->in->s[5] = flag;
    operands(d, sources, t);
    return 1;
}

static int decode_add(decoder *d) {
    if (!is_ours(d)) return 0;
    if (is_packed(d)) return decode_packed(d, add_u16x2, add_u16x2);
    if (has_modifier(d, "cc")) return decode_carry(d, addc_table, 2, 0);
    return decode_plain(d, take(d, "sat") ? add_sat_table : add_table, 2);
}

static int decode_addc(decoder *d) {
    return decode_carry(d, addc_table, 2, 1);
}

static int decode_sub(decoder *d) {
    if (!is_ours(d)) return 0;
    if (has_modifier(d, "cc")) return decode_carry(d, subc_table, 2, 0);
    return decode_plain(d, take(d, "sat") ? sub_sat_table : sub_table, 2);
}

static int decode_subc(decoder *d) {
    return decode_carry(d, subc_table, 2, 1);
}

enum { LO, HI, WIDE };
static int take_part(decoder *d) {
    static const char *const parts[] = {"lo", "hi", "wide", NULL};
    int part = take_one_of(d, parts);
    if (part < 0) reject(d, "%s of integers needs .lo, .hi or .wide", d->statement->opcode);
    return part;
}

static int decode_wide(decoder *d, const handler_table table, int sources) {
    ptx_type t = need_type(d);
    choose(d, table, t);
    ptx_type wide = type_bits(t) == 16 ? TYPE_B32 : TYPE_B64;
    d->in->d = result(d, 0, wide);
    for (int i = 0; i < sources; i++) d->in->s[i] = source(d, i + 1, i == 2 ? wide : t);
    return 1;
}

static int decode_mul(decoder *d) {
    if (!is_ours(d)) return 0;
    int part = take_part(d);
    if (part == WIDE) return decode_wide(d, mul_wide_table, 2);
    return decode_plain(d, part == HI ? mul_hi_table : mul_lo_table, 2);
}

static int decode_mad(decoder *d) {
    if (!is_ours(d)) return 0;
    int part = take_part(d);
    if (part == WIDE) return decode_wide(d, mad_wide_table, 3);
    if (has_modifier(d, "cc")) return decode_carry(d, part == HI ? madc_hi_table : madc_lo_table, 3, 0);
    if (part == HI && take(d, "sat")) return decode_plain(d, mad_hi_sat_table, 3);
    return decode_plain(d, part == HI ? mad_hi_table : mad_lo_table, 3);
}

static int decode_madc(decoder *d) {
    int part = take_part(d);
    if (part == WIDE) reject(d, "madc has no .wide");
    return decode_carry(d, part == HI ? madc_hi_table : madc_lo_table, 3, 1);
}

static int decode_mul24(decoder *d) {
    int part = take_part(d);
    if (part == WIDE) reject(d, "mul24 has no .wide");
    return decode_plain(d, part == HI ? mul24_hi_table : mul24_lo_table, 2);
}

static int decode_mad24(decoder *d) {
    int part = take_part(d);
    if (part == WIDE) reject(d, "mad24 has no .wide");
    if (part == HI && take(d, "sat")) return decode_plain(d, mad24_hi_sat_table, 3);
    return decode_plain(d, part == HI ? mad24_hi_table : mad24_lo_table, 3);
}

static int decode_sad(decoder *d) {
    return decode_plain(d, sad_table, 3);
}
static int decode_div(decoder *d) {
    return is_ours(d) ? decode_plain(d, div_table, 2) : 0;
}
static int decode_rem(decoder *d) {
    return decode_plain(d, rem_table, 2);
}
static int decode_abs(decoder *d) {
    return is_ours(d) ? decode_plain(d, abs_table, 1) : 0;
}
static int decode_neg(decoder *d) {
    return is_ours(d) ? decode_plain(d, neg_table, 1) : 0;
}

static int decode_min(decoder *d) {
    if (!is_ours(d)) return 0;
    int relu = take(d, "relu");
    if (is_packed(d)) return decode_packed(d, relu ? NULL : min_u16x2, relu ? min_relu_s16x2 : min_s16x2);
    return decode_plain(d, relu ? min_relu_table : min_table, 2);
}

static int decode_max(decoder *d) {
    if (!is_ours(d)) return 0;
    int relu = take(d, "relu");
    if (is_packed(d)) return decode_packed(d, relu ? NULL : max_u16x2, relu ? max_relu_s16x2 : max_s16x2);
    return decode_plain(d, relu ? max_relu_table : max_table, 2);
}

/* dp4a.atype.btype, dp2a.lo.atype.btype: each .u32 or .s32 */
static int decode_dot(decoder *d, run_function *const runs[4]) {
    ptx_type a = need_type(d), b = need_type(d);
    if ((a != TYPE_U32 && a != TYPE_S32) || (b != TYPE_U32 && b != TYPE_S32)) reject(d, "its types are .u32 or .s32");
    d->in->run = runs[2 * (a == TYPE_S32) + (b == TYPE_S32)];
    operands(d, 3, TYPE_B32);
    return 1;
}
static int decode_dp4a(decoder *d) {
    static run_function *const runs[] = {dp4a_uu, dp4a_us, dp4a_su, dp4a_ss};
    return decode_dot(d, runs);
}
static int decode_dp2a(decoder *d) {
    static run_function *const runs[2][4] = {{dp2a_lo_uu, dp2a_lo_us, dp2a_lo_su, dp2a_lo_ss},
                                             {dp2a_hi_uu, dp2a_hi_us, dp2a_hi_su, dp2a_hi_ss}};
    int part = take_part(d);
    if (part == WIDE) reject(d, "dp2a has no .wide");
    return decode_dot(d, runs[part]);
}

const opcode_entry integer_opcodes[] = {
    {"add", decode_add},
    {"addc", decode_addc},
    {"sub", decode_sub},
    {"subc", decode_subc},
    {"mul", decode_mul},
    {"mad", decode_mad},
    {"madc", decode_madc},
    {"mul24", decode_mul24},
    {"mad24", decode_mad24},
    {"sad", decode_sad},
    {"div", decode_div},
    {"rem", decode_rem},
    {"abs", decode_abs},
    {"neg", decode_neg},
    {"min", decode_min},
    {"max", decode_max},
    {"dp4a", decode_dp4a},
    {"dp2a", decode_dp2a},
    {0},
};
