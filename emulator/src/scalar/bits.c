/* Bits: popc clz bfind fns brev bfe bfi szext bmsk (PTX ISA 9.7.1), logic and shifts (9.7.8), prmt (9.7.9). */
#include "scalar/lanes.h"

/* ---- logic ---- */

#define LOGIC(t)                                                                                                       \
    BINARY(and_##t, t, a &b)                                                                                           \
    BINARY(or_##t, t, a | b)                                                                                           \
    BINARY(xor_##t, t, a ^ b)                                                                                          \
    UNARY(not_##t, t, ~(W)a)                                                                                           \
    UNARY(cnot_##t, t, a == 0)
LOGIC(u16)
LOGIC(u32)
LOGIC(u64)

/* Predicates are masks of lanes; `mode` has bit 0 or 1 for a source that is written !p. */
#define LOGIC_PREDICATE(op, ...)                                                                                       \
    HANDLER(op##_pred) {                                                                                               \
        const uint32_t a = *predicate(w, in->s[0]) ^ (in->mode & 1 ? UINT32_MAX : 0);                                  \
        const uint32_t b = *predicate(w, in->s[1]) ^ (in->mode & 2 ? UINT32_MAX : 0);                                  \
        set_predicate(w, in->d, lanes, (__VA_ARGS__));                                                                 \
        return RUN_NEXT;                                                                                               \
    }
LOGIC_PREDICATE(and, a &b)
LOGIC_PREDICATE(or, a | b)
LOGIC_PREDICATE(xor, a ^ b)
HANDLER(not_pred) {
    set_predicate(w, in->d, lanes, ~*predicate(w, in->s[0]) ^ (in->mode & 1 ? UINT32_MAX : 0));
    return RUN_NEXT;
}

/* lop3: bit 4a + 2b + c of the table is the result; imm has it. */
static inline uint32_t lookup(uint32_t a, uint32_t b, uint32_t c, const uint32_t term[8]) {
    return (~a & ((~b & ((~c & term[0]) | (c & term[1]))) | (b & ((~c & term[2]) | (c & term[3]))))) |
           (a & ((~b & ((~c & term[4]) | (c & term[5]))) | (b & ((~c & term[6]) | (c & term[7])))));
}
HANDLER(lop3) {
    const uint32_t *pa = r32(w, in->s[0]), *pb = r32(w, in->s[1]), *pc = r32(w, in->s[2]);
    uint32_t value[WARP_LANES], term[8];
    for (int k = 0; k < 8; k++) term[k] = in->imm >> k & 1 ? UINT32_MAX : 0;
    for (int i = 0; i < WARP_LANES; i++) value[i] = lookup(pa[i], pb[i], pc[i], term);
    if (in->d2 != NO_SLOT) {
        uint32_t set = 0, q = *predicate(w, in->s[3]) ^ (in->mode & 2 ? UINT32_MAX : 0);
        for (uint32_t i = 0; i < WARP_LANES; i++) set |= (uint32_t)(value[i] != 0) << i;
        set_predicate(w, in->d2, lanes, in->mode & 1 ? set & q : set | q);
    }
    if (in->d == NO_SLOT) return RUN_NEXT;
    uint32_t *d = r32(w, in->d);
    LANES(i, lanes, { d[i] = value[i]; });
    return RUN_NEXT;
}

/* ---- shifts: the amount is 32 bits whatever the type, and what is shifted out is gone ---- */

#define SHIFT(name, t, bits, ...)                                                                                      \
    HANDLER(name) {                                                                                                    \
        CELL_##t *d = REG_##t(w, in->d);                                                                               \
        const CELL_##t *pa = REG_##t(w, in->s[0]);                                                                     \
        const uint32_t *pb = r32(w, in->s[1]);                                                                         \
        LANES(i, lanes, {                                                                                              \
            const C_##t a = (C_##t)pa[i];                                                                              \
            const uint32_t n = pb[i], last = bits - 1, over = n > last;                                                \
            (void)over;                                                                                                \
            d[i] = (BITS_##t)(__VA_ARGS__);                                                                            \
        });                                                                                                            \
        return RUN_NEXT;                                                                                               \
    }
#define SHIFTS(unsigned_t, signed_t, bits)                                                                             \
    SHIFT(shl_##unsigned_t, unsigned_t, bits, over ? 0 : (WORK_##unsigned_t)a << (n & last))                           \
    SHIFT(shr_##unsigned_t, unsigned_t, bits, over ? 0 : a >> (n & last))                                              \
    SHIFT(shr_##signed_t, signed_t, bits, a >> (over ? last : n))
SHIFTS(u16, s16, 16)
SHIFTS(u32, s32, 32)
SHIFTS(u64, s64, 64)

static inline uint32_t at_most_32(uint32_t n) {
    return n > 32 ? 32 : n;
}
#define PAIR ((uint64_t)b << 32 | a)
TERNARY(shf_l_clamp, u32, PAIR << at_most_32(c) >> 32)
TERNARY(shf_l_wrap, u32, PAIR << (c & 31) >> 32)
TERNARY(shf_r_clamp, u32, PAIR >> at_most_32(c))
TERNARY(shf_r_wrap, u32, PAIR >> (c & 31))

/* ---- counts and searches ---- */

static inline uint32_t leading_zeros_u32(uint32_t a) {
    return a ? (uint32_t)__builtin_clz(a) : 32;
}
static inline uint32_t leading_zeros_u64(uint64_t a) {
    return a ? (uint32_t)__builtin_clzll(a) : 64;
}
static inline uint32_t find_u32(uint32_t a) {
    return 31 - leading_zeros_u32(a);
} /* all ones for 0 */
static inline uint32_t find_u64(uint64_t a) {
    return 63 - leading_zeros_u64(a);
}
static inline uint32_t shift_amount(uint32_t found, uint32_t last) {
    return found == UINT32_MAX ? found : last - found;
}

/* 32 or 64 bits in, 32 bits out */
#define COUNT(name, t, ...)                                                                                            \
    HANDLER(name) {                                                                                                    \
        uint32_t *d = r32(w, in->d);                                                                                   \
        const CELL_##t *pa = REG_##t(w, in->s[0]);                                                                     \
        LANES(i, lanes, {                                                                                              \
            const C_##t a = (C_##t)pa[i];                                                                              \
            d[i] = (uint32_t)(__VA_ARGS__);                                                                            \
        });                                                                                                            \
        return RUN_NEXT;                                                                                               \
    }
COUNT(popc_b32, u32, __builtin_popcount(a))
COUNT(popc_b64, u64, __builtin_popcountll(a))
COUNT(clz_b32, u32, leading_zeros_u32(a))
COUNT(clz_b64, u64, leading_zeros_u64(a))
COUNT(bfind_u32, u32, find_u32(a))
COUNT(bfind_s32, s32, find_u32((uint32_t)(a < 0 ? ~a : a)))
COUNT(bfind_u64, u64, find_u64(a))
COUNT(bfind_s64, s64, find_u64((uint64_t)(a < 0 ? ~a : a)))
COUNT(bfind_shift_u32, u32, shift_amount(find_u32(a), 31))
COUNT(bfind_shift_s32, s32, shift_amount(find_u32((uint32_t)(a < 0 ? ~a : a)), 31))
COUNT(bfind_shift_u64, u64, shift_amount(find_u64(a), 63))
COUNT(bfind_shift_s64, s64, shift_amount(find_u64((uint64_t)(a < 0 ? ~a : a)), 63))

/* The n-th set bit from a place, upwards or downwards. */
static uint32_t nth_set(uint32_t mask, uint32_t base, int32_t n) {
    if (base > 31) return UINT32_MAX;
    if (n == 0) return mask >> base & 1 ? base : UINT32_MAX;
    int64_t left = n < 0 ? -(int64_t)n : n;
    for (int at = (int)base; at >= 0 && at < 32; at += n < 0 ? -1 : 1)
        if (mask >> at & 1 && --left == 0) return (uint32_t)at;
    return UINT32_MAX;
}
TERNARY(fns, u32, nth_set(a, b, (int32_t)c))

static inline uint32_t reverse_u32(uint32_t x) {
    x = (x >> 1 & 0x55555555) | (x & 0x55555555) << 1;
    x = (x >> 2 & 0x33333333) | (x & 0x33333333) << 2;
    x = (x >> 4 & 0x0f0f0f0f) | (x & 0x0f0f0f0f) << 4;
    return __builtin_bswap32(x);
}
static inline uint64_t reverse_u64(uint64_t x) {
    return (uint64_t)reverse_u32((uint32_t)x) << 32 | reverse_u32((uint32_t)(x >> 32));
}
UNARY(brev_u32, u32, reverse_u32(a))
UNARY(brev_u64, u64, reverse_u64(a))

/* ---- fields: positions and lengths are the low 8 bits of 32-bit operands ---- */

static inline uint64_t low_bits(uint32_t n) {
    return n >= 64 ? UINT64_MAX : ((uint64_t)1 << n) - 1;
}

static inline uint64_t extract(uint64_t a, uint32_t position, uint32_t length, uint32_t bits, int is_signed) {
    position &= 0xff, length &= 0xff;
    if (!length) return 0;
    uint32_t last = position + length - 1 < bits - 1 ? position + length - 1 : bits - 1;
    uint64_t sign = is_signed && a >> last & 1 ? UINT64_MAX : 0;
    if (position >= bits) return sign;
    uint32_t held = bits - position < length ? bits - position : length;
    return (a >> position & low_bits(held)) | (sign & ~low_bits(held));
}
static inline uint64_t insert(uint64_t a, uint64_t b, uint32_t position, uint32_t length) {
    position &= 0xff, length &= 0xff;
    if (position >= 64) return b;
    uint64_t field = low_bits(length) << position;
    return (b & ~field) | (a << position & field);
}
#define FIELDS(t, bits, is_signed)                                                                                     \
    HANDLER(bfe_##t) {                                                                                                 \
        CELL_##t *d = REG_##t(w, in->d);                                                                               \
        const CELL_##t *pa = REG_##t(w, in->s[0]);                                                                     \
        const uint32_t *pb = r32(w, in->s[1]), *pc = r32(w, in->s[2]);                                                 \
        LANES(i, lanes, { d[i] = (CELL_##t)extract(pa[i], pb[i], pc[i], bits, is_signed); });                          \
        return RUN_NEXT;                                                                                               \
    }
FIELDS(u32, 32, 0)
FIELDS(s32, 32, 1)
FIELDS(u64, 64, 0)
FIELDS(s64, 64, 1)
#define INSERTS(t)                                                                                                     \
    HANDLER(bfi_##t) {                                                                                                 \
        CELL_##t *d = REG_##t(w, in->d);                                                                               \
        const CELL_##t *pa = REG_##t(w, in->s[0]), *pb = REG_##t(w, in->s[1]);                                         \
        const uint32_t *pc = r32(w, in->s[2]), *pd = r32(w, in->s[3]);                                                 \
        LANES(i, lanes, { d[i] = (CELL_##t)insert(pa[i], pb[i], pc[i], pd[i]); });                                     \
        return RUN_NEXT;                                                                                               \
    }
INSERTS(u32)
INSERTS(u64)

static inline uint32_t extend(uint32_t a, uint32_t n, int wraps, int is_signed) {
    if (n >= 32 && !wraps) return a;
    n &= 31;
    uint32_t low = (1u << n) - 1;
    return (a & low) | (is_signed && n && a >> (n - 1) & 1 ? ~low : 0);
}
BINARY(szext_clamp_u32, u32, extend(a, b, 0, 0))
BINARY(szext_clamp_s32, u32, extend(a, b, 0, 1))
BINARY(szext_wrap_u32, u32, extend(a, b, 1, 0))
BINARY(szext_wrap_s32, u32, extend(a, b, 1, 1))

static inline uint32_t mask_clamp(uint32_t first, uint32_t width) {
    return first >= 32 ? 0 : (uint32_t)(low_bits(at_most_32(width)) << first);
}
BINARY(bmsk_clamp, u32, mask_clamp(a, b))
BINARY(bmsk_wrap, u32, low_bits(b & 31) << (a & 31))

/* ---- prmt ---- */

static inline uint32_t pick(uint64_t pair, uint32_t selector, int at) {
    uint32_t nibble = selector >> 4 * at & 15, byte = (uint8_t)(pair >> 8 * (nibble & 7));
    if (nibble & 8) byte = byte & 0x80 ? 0xff : 0;
    return byte << 8 * at;
}
static inline uint32_t permute(uint64_t pair, uint32_t selector) {
    return pick(pair, selector, 0) | pick(pair, selector, 1) | pick(pair, selector, 2) | pick(pair, selector, 3);
}
TERNARY(prmt, u32, permute(PAIR, c))
/* The special modes as selectors, by the low two bits of c. */
static const uint16_t prmt_selectors[][4] = {
    {0x3210, 0x4321, 0x5432, 0x6543}, /* f4e */
    {0x5670, 0x6701, 0x7012, 0x0123}, /* b4e */
    {0x0000, 0x1111, 0x2222, 0x3333}, /* rc8 */
    {0x3210, 0x3211, 0x3222, 0x3333}, /* ecl */
    {0x0000, 0x1110, 0x2210, 0x3210}, /* ecr */
    {0x1010, 0x3232, 0x1010, 0x3232}, /* rc16 */
};
TERNARY(prmt_mode, u32, permute(PAIR, prmt_selectors[in->mode][c & 3]))

/* ---- decoding ---- */

#define BY_BITS(op) [TYPE_B16] = op##_u16, [TYPE_B32] = op##_u32, [TYPE_B64] = op##_u64
static const handler_table and_table = {BY_BITS(and), [TYPE_PRED] = and_pred};
static const handler_table or_table = {BY_BITS(or), [TYPE_PRED] = or_pred};
static const handler_table xor_table = {BY_BITS(xor), [TYPE_PRED] = xor_pred};
static const handler_table not_table = {BY_BITS(not), [TYPE_PRED] = not_pred}, cnot_table = {BY_BITS(cnot)};
static const handler_table shl_table = {BY_BITS(shl)}, shr_table = {BY_BITS(shr), BY_TYPE(shr)};
static const handler_table popc_table = {[TYPE_B32] = popc_b32, [TYPE_B64] = popc_b64};
static const handler_table clz_table = {[TYPE_B32] = clz_b32, [TYPE_B64] = clz_b64};
#define BY_SIZE(op) BY_TYPE_32(op), [TYPE_U64] = op##_u64, [TYPE_S64] = op##_s64
static const handler_table bfind_table = {BY_SIZE(bfind)}, bfind_shift_table = {BY_SIZE(bfind_shift)};
static const handler_table brev_table = {[TYPE_B32] = brev_u32, [TYPE_B64] = brev_u64};
static const handler_table bfe_table = {BY_SIZE(bfe)};
static const handler_table bfi_table = {[TYPE_B32] = bfi_u32, [TYPE_B64] = bfi_u64};
static const handler_table szext_clamp_table = {BY_TYPE_32(szext_clamp)}, szext_wrap_table = {BY_TYPE_32(szext_wrap)};

static int decode_logic(decoder *d, const handler_table table, int sources) {
    ptx_type t = need_type(d);
    choose(d, table, t);
    if (t != TYPE_PRED) {
        operands(d, sources, t);
        return 1;
    }
    d->in->d = result(d, 0, t);
    for (int i = 0; i < sources; i++) {
        int negated = 0;
        d->in->s[i] = source_predicate(d, i + 1, &negated);
        if (negated) d->in->mode |= 1u << i;
    }
    return 1;
}
static int decode_and(decoder *d) {
    return decode_logic(d, and_table, 2);
}
static int decode_or(decoder *d) {
    return decode_logic(d, or_table, 2);
}
static int decode_xor(decoder *d) {
    return decode_logic(d, xor_table, 2);
}
static int decode_not(decoder *d) {
    return decode_logic(d, not_table, 1);
}
static int decode_cnot(decoder *d) {
    return decode_logic(d, cnot_table, 1);
}

static int decode_lop3(decoder *d) {
    static const char *const bool_ops[] = {"or", "and", NULL};
    int bool_op = take_one_of(d, bool_ops), negated = 0;
    need(d, "b32");
    instr *in = d->in;
    in->run = lop3;
    in->d = bool_op < 0 ? result(d, 0, TYPE_B32) : destination(d, 0, TYPE_B32);
    for (int i = 0; i < 3; i++) in->s[i] = source(d, i + 1, TYPE_B32);
    in->imm = constant(d, 4);
    if (in->imm < 0 || in->imm > 255) reject(d, "the table of lop3 is a number from 0 to 255");
    if (bool_op < 0) return 1;
    in->d2 = second_destination(d, 0, TYPE_PRED);
    in->s[3] = source_predicate(d, 5, &negated);
    in->mode = (uint32_t)bool_op | (negated ? 2 : 0);
    return 1;
}

static int decode_shift(decoder *d, const handler_table table) {
    ptx_type t = need_type(d);
    choose(d, table, t);
    operands(d, 1, t);
    d->in->s[1] = source(d, 2, TYPE_U32);
    return 1;
}
static int decode_shl(decoder *d) {
    return decode_shift(d, shl_table);
}
static int decode_shr(decoder *d) {
    return decode_shift(d, shr_table);
}

static const char *const clamp_or_wrap[] = {"clamp", "wrap", NULL};
static int take_mode(decoder *d) {
    int mode = take_one_of(d, clamp_or_wrap);
    if (mode < 0) reject(d, "%s needs .clamp or .wrap", d->statement->opcode);
    return mode;
}

static int decode_shf(decoder *d) {
    static run_function *const runs[2][2] = {{shf_l_clamp, shf_l_wrap}, {shf_r_clamp, shf_r_wrap}};
    static const char *const directions[] = {"l", "r", NULL};
    int direction = take_one_of(d, directions);
    if (direction < 0) reject(d, "shf needs .l or .r");
    d->in->run = runs[direction][take_mode(d)];
    need(d, "b32");
    operands(d, 3, TYPE_B32);
    return 1;
}

/* popc, clz, bfind: 32 bits out */
static int decode_count(decoder *d, const handler_table table) {
    ptx_type t = need_type(d);
    choose(d, table, t);
    d->in->d = result(d, 0, TYPE_U32);
    d->in->s[0] = source(d, 1, t);
    return 1;
}
static int decode_popc(decoder *d) {
    return decode_count(d, popc_table);
}
static int decode_clz(decoder *d) {
    return decode_count(d, clz_table);
}
static int decode_bfind(decoder *d) {
    return decode_count(d, take(d, "shiftamt") ? bfind_shift_table : bfind_table);
}

static int decode_fns(decoder *d) {
    need(d, "b32");
    d->in->run = fns;
    operands(d, 3, TYPE_B32);
    return 1;
}
static int decode_brev(decoder *d) {
    ptx_type t = need_type(d);
    choose(d, brev_table, t);
    operands(d, 1, t);
    return 1;
}
static int decode_bfe(decoder *d) {
    ptx_type t = need_type(d);
    choose(d, bfe_table, t);
    operands(d, 1, t);
    for (int i = 1; i < 3; i++) d->in->s[i] = source(d, i + 1, TYPE_U32);
    return 1;
}
static int decode_bfi(decoder *d) {
    ptx_type t = need_type(d);
    choose(d, bfi_table, t);
    operands(d, 2, t);
    for (int i = 2; i < 4; i++) d->in->s[i] = source(d, i + 1, TYPE_U32);
    return 1;
}
static int decode_szext(decoder *d) {
    int wraps = take_mode(d);
    choose(d, wraps ? szext_wrap_table : szext_clamp_table, need_type(d));
    operands(d, 2, TYPE_B32);
    return 1;
}
static int decode_bmsk(decoder *d) {
    d->in->run = take_mode(d) ? bmsk_wrap : bmsk_clamp;
    need(d, "b32");
    operands(d, 2, TYPE_B32);
    return 1;
}
static int decode_prmt(decoder *d) {
    static const char *const modes[] = {"f4e", "b4e", "rc8", "ecl", "ecr", "rc16", NULL};
    need(d, "b32");
    int mode = take_one_of(d, modes);
    d->in->run = mode < 0 ? prmt : prmt_mode;
    d->in->mode = mode < 0 ? 0 : (uint32_t)mode;
    operands(d, 3, TYPE_B32);
    return 1;
}

const opcode_entry bits_opcodes[] = {
    {"and", decode_and},     {"or", decode_or},       {"xor", decode_xor},   {"not", decode_not},
    {"cnot", decode_cnot},   {"lop3", decode_lop3},   {"shl", decode_shl},   {"shr", decode_shr},
    {"shf", decode_shf},     {"popc", decode_popc},   {"clz", decode_clz},   {"fns", decode_fns},
    {"brev", decode_brev},   {"bfind", decode_bfind}, {"bfe", decode_bfe},   {"bfi", decode_bfi},
    {"szext", decode_szext}, {"bmsk", decode_bmsk},   {"prmt", decode_prmt}, {0},
};
