/* Comparison and selection: setp set selp slct (PTX ISA 9.7.6), with f16, bf16 and their pairs (9.7.7). */
#include "scalar/formats.h"
#include "scalar/lanes.h"

/* ---- comparisons give a mask of lanes ---- */

/* `half`: which one of a pair of 16-bit numbers. */
typedef uint32_t compare_function(const warp *w, const instr *in, int half);

enum { EQ, NE, LT, LE, GT, GE, EQU, NEU, LTU, LEU, GTU, GEU, NUM, NAN_, COMPARISONS };

#define COMPARE_INTEGER(name, t, operator)                                                                             \
    static uint32_t name(const warp *w, const instr *in, int half) {                                                   \
        (void)half;                                                                                                    \
        const CELL_##t *pa = REG_##t(w, in->s[0]), *pb = REG_##t(w, in->s[1]);                                         \
        uint32_t mask = 0;                                                                                             \
        for (uint32_t i = 0; i < WARP_LANES; i++) mask |= (uint32_t)((C_##t)pa[i] operator(C_##t) pb[i]) << i;         \
        return mask;                                                                                                   \
    }
#define COMPARE_INTEGERS(t)                                                                                            \
    COMPARE_INTEGER(eq_##t, t, ==)                                                                                     \
    COMPARE_INTEGER(ne_##t, t, !=)                                                                                     \
    COMPARE_INTEGER(lt_##t, t, <)                                                                                      \
    COMPARE_INTEGER(le_##t, t, <=)                                                                                     \
    COMPARE_INTEGER(gt_##t, t, >)                                                                                      \
    COMPARE_INTEGER(ge_##t, t, >=)
COMPARE_INTEGERS(u16)
COMPARE_INTEGERS(s16)
COMPARE_INTEGERS(u32)
COMPARE_INTEGERS(s32)
COMPARE_INTEGERS(u64)
COMPARE_INTEGERS(s64)

/* Two floating-point numbers are less, equal, greater or unordered: a comparison is the set of those it accepts, in
 * imm. */
enum { LESS = 1, EQUAL = 2, GREATER = 4, UNORDERED = 8 };
static const uint8_t accepted[COMPARISONS] = {
    [EQ] = EQUAL,
    [NE] = LESS | GREATER,
    [LT] = LESS,
    [LE] = LESS | EQUAL,
    [GT] = GREATER,
    [GE] = GREATER | EQUAL,
    [EQU] = EQUAL | UNORDERED,
    [NEU] = LESS | GREATER | UNORDERED,
    [LTU] = LESS | UNORDERED,
    [LEU] = LESS | EQUAL | UNORDERED,
    [GTU] = GREATER | UNORDERED,
    [GEU] = GREATER | EQUAL | UNORDERED,
    [NUM] = LESS | EQUAL | GREATER,
    [NAN_] = UNORDERED,
};

#define COMPARE_FLOAT(name, cell, reg, value, load)                                                                    \
    static uint32_t name(const warp *w, const instr *in, int half) {                                                   \
        (void)half;                                                                                                    \
        const cell *pa = reg(w, in->s[0]), *pb = reg(w, in->s[1]);                                                     \
        uint32_t less = 0, equal = 0, greater = 0, set = (uint32_t)in->imm;                                            \
        for (uint32_t i = 0; i < WARP_LANES; i++) {                                                                    \
            const value a = load(pa[i]), b = load(pb[i]);                                                              \
            less |= (uint32_t)(a < b) << i;                                                                            \
            equal |= (uint32_t)(a == b) << i;                                                                          \
            greater |= (uint32_t)(a > b) << i;                                                                         \
        }                                                                                                              \
        return (set & LESS ? less : 0) | (set & EQUAL ? equal : 0) | (set & GREATER ? greater : 0) |                   \
               (set & UNORDERED ? ~(less | equal | greater) : 0);                                                      \
    }
#define FLUSHED(x)      float_of(flush_f32(x))
#define HALF(x)         f16_to_float((uint16_t)((x) >> 16 * half))
#define HALF_FLUSHED(x) f16_to_float((uint16_t)flush_f16((x) >> 16 * half & 0xffff))
#define BRAIN(x)        float_of(((x) >> 16 * half) << 16)
COMPARE_FLOAT(compare_f32, uint32_t, r32, float, float_of)
COMPARE_FLOAT(compare_f32_ftz, uint32_t, r32, float, FLUSHED)
COMPARE_FLOAT(compare_f64, uint64_t, r64, double, double_of)
COMPARE_FLOAT(compare_f16, uint32_t, r32, float, HALF)
COMPARE_FLOAT(compare_f16_ftz, uint32_t, r32, float, HALF_FLUSHED)
COMPARE_FLOAT(compare_bf16, uint32_t, r32, float, BRAIN)

/* ---- setp and set ---- */

typedef struct {
    compare_function *compare;
    enum { PLAIN, AND, OR, XOR } combine;
    int negated;    /* the third operand is !c */
    uint32_t truth; /* what set writes; into each half for pairs */
} comparison;

static uint32_t combined(const warp *w, const instr *in, uint32_t mask) {
    const comparison *x = in->extra;
    if (x->combine == PLAIN) return mask;
    uint32_t c = *predicate(w, in->s[2]) ^ (x->negated ? UINT32_MAX : 0);
    return x->combine == AND ? mask & c : x->combine == OR ? mask | c : mask ^ c;
}

/* p = t op c, q = !t op c */
HANDLER(setp) {
    const comparison *x = in->extra;
    uint32_t mask = x->compare(w, in, 0), p = combined(w, in, mask), q = combined(w, in, ~mask);
    set_predicate(w, in->d, lanes, p);
    set_predicate(w, in->d2, lanes, q);
    return RUN_NEXT;
}
/* p of the lower half, q of the upper one */
HANDLER(setp_pair) {
    const comparison *x = in->extra;
    uint32_t p = combined(w, in, x->compare(w, in, 0)), q = combined(w, in, x->compare(w, in, 1));
    set_predicate(w, in->d, lanes, p);
    set_predicate(w, in->d2, lanes, q);
    return RUN_NEXT;
}
HANDLER(set) {
    const comparison *x = in->extra;
    uint32_t mask = combined(w, in, x->compare(w, in, 0)), truth = x->truth, *d = r32(w, in->d);
    LANES(i, lanes, { d[i] = mask >> i & 1 ? truth : 0; });
    return RUN_NEXT;
}
HANDLER(set_pair) {
    const comparison *x = in->extra;
    uint32_t low = combined(w, in, x->compare(w, in, 0)), high = combined(w, in, x->compare(w, in, 1));
    uint32_t truth = x->truth, *d = r32(w, in->d);
    LANES(i, lanes, { d[i] = (low >> i & 1 ? truth : 0) | (high >> i & 1 ? truth << 16 : 0); });
    return RUN_NEXT;
}

/* ---- selp and slct ---- */

HANDLER(selp_32) {
    const uint32_t p = *predicate(w, in->s[2]) ^ in->mode, *pa = r32(w, in->s[0]), *pb = r32(w, in->s[1]);
    uint32_t *d = r32(w, in->d);
    LANES(i, lanes, { d[i] = p >> i & 1 ? pa[i] : pb[i]; });
    return RUN_NEXT;
}
HANDLER(selp_64) {
    const uint32_t p = *predicate(w, in->s[2]) ^ in->mode;
    const uint64_t *pa = r64(w, in->s[0]), *pb = r64(w, in->s[1]);
    uint64_t *d = r64(w, in->d);
    LANES(i, lanes, { d[i] = p >> i & 1 ? pa[i] : pb[i]; });
    return RUN_NEXT;
}

#define SLCT(name, cell, reg, ...)                                                                                     \
    HANDLER(name) {                                                                                                    \
        const cell *pa = reg(w, in->s[0]), *pb = reg(w, in->s[1]);                                                     \
        const uint32_t *pc = r32(w, in->s[2]);                                                                         \
        cell *d = reg(w, in->d);                                                                                       \
        LANES(i, lanes, {                                                                                              \
            const uint32_t c = pc[i];                                                                                  \
            d[i] = (__VA_ARGS__) ? pa[i] : pb[i];                                                                      \
        });                                                                                                            \
        return RUN_NEXT;                                                                                               \
    }
SLCT(slct_32_s32, uint32_t, r32, (int32_t)c >= 0)
SLCT(slct_64_s32, uint64_t, r64, (int32_t)c >= 0)
SLCT(slct_32_f32, uint32_t, r32, float_of(c) >= 0)
SLCT(slct_64_f32, uint64_t, r64, float_of(c) >= 0)
SLCT(slct_32_f32_ftz, uint32_t, r32, float_of(flush_f32(c)) >= 0)
SLCT(slct_64_f32_ftz, uint64_t, r64, float_of(flush_f32(c)) >= 0)

/* ---- decoding ---- */

#define SIX(t) {eq_##t, ne_##t, lt_##t, le_##t, gt_##t, ge_##t}
static compare_function *const integer_compare[TYPE_COUNT][6] = {
    [TYPE_B16] = {eq_u16, ne_u16}, [TYPE_B32] = {eq_u32, ne_u32}, [TYPE_B64] = {eq_u64, ne_u64},
    [TYPE_U16] = SIX(u16),         [TYPE_U32] = SIX(u32),         [TYPE_U64] = SIX(u64),
    [TYPE_S16] = SIX(s16),         [TYPE_S32] = SIX(s32),         [TYPE_S64] = SIX(s64),
};
static compare_function *const float_compare[TYPE_COUNT] = {
    [TYPE_F32] = compare_f32,   [TYPE_F64] = compare_f64,   [TYPE_F16] = compare_f16,
    [TYPE_F16X2] = compare_f16, [TYPE_BF16] = compare_bf16, [TYPE_BF16X2] = compare_bf16,
};
static compare_function *const float_compare_ftz[TYPE_COUNT] = {
    [TYPE_F32] = compare_f32_ftz, [TYPE_F16] = compare_f16_ftz, [TYPE_F16X2] = compare_f16_ftz};

/* Which comparison; lo ls hi hs are lt le gt ge of unsigned numbers. Its function needs the type: see resolve. */
static int take_comparison(decoder *d, comparison *x, int *unsigned_only) {
    static const char *const names[] = {"eq",  "ne",  "lt",  "le",  "gt", "ge", "equ", "neu", "ltu", "leu",
                                        "gtu", "geu", "num", "nan", "lo", "ls", "hi",  "hs",  NULL};
    static const char *const combinations[] = {"and", "or", "xor", NULL};
    int c = take_one_of(d, names);
    if (c < 0) reject(d, "%s needs a comparison", d->statement->opcode);
    *unsigned_only = c >= COMPARISONS;
    x->combine = PLAIN + 1 + take_one_of(d, combinations);
    return c >= COMPARISONS ? LT + (c - COMPARISONS) : c;
}

static void resolve(decoder *d, comparison *x, int c, int unsigned_only, int ftz, ptx_type t) {
    d->in->type = (uint8_t)t;
    if (float_compare[t]) {
        x->compare = ftz ? float_compare_ftz[t] : float_compare[t];
        d->in->imm = accepted[c];
        if (!x->compare) reject(d, ".ftz does not go with .%s", type_name(t));
        if (unsigned_only) reject(d, "lo, ls, hi and hs compare unsigned numbers");
        return;
    }
    if (ftz) reject(d, ".ftz does not go with .%s", type_name(t));
    x->compare = c < 6 ? integer_compare[t][c] : NULL;
    if (!x->compare) reject(d, "there is no such comparison of .%s", type_name(t));
    if (unsigned_only && t != TYPE_U16 && t != TYPE_U32 && t != TYPE_U64)
        reject(d, "lo, ls, hi and hs compare unsigned numbers");
}

static int is_pair(ptx_type t) {
    return t == TYPE_F16X2 || t == TYPE_BF16X2;
}

static void take_sources(decoder *d, comparison *x, ptx_type t) {
    for (int i = 0; i < 2; i++) d->in->s[i] = source(d, i + 1, t);
    if (x->combine != PLAIN) d->in->s[2] = source_predicate(d, 3, &x->negated);
}

static int decode_setp(decoder *d) {
    comparison *x = d->in->extra = decode_alloc(d, sizeof *x);
    int unsigned_only, c = take_comparison(d, x, &unsigned_only), ftz = take(d, "ftz");
    ptx_type t = need_type(d);
    resolve(d, x, c, unsigned_only, ftz, t);
    d->in->run = is_pair(t) ? setp_pair : setp;
    d->in->d = destination(d, 0, TYPE_PRED);
    d->in->d2 = second_destination(d, 0, TYPE_PRED);
    take_sources(d, x, t);
    return 1;
}

static uint32_t truth_of(decoder *d, ptx_type t, ptx_type compared) {
    switch (t) {
    case TYPE_F32:
        return 0x3f800000;
    case TYPE_F16:
    case TYPE_F16X2:
        return 0x3c00;
    case TYPE_BF16:
    case TYPE_BF16X2:
        return 0x3f80;
    case TYPE_U16:
    case TYPE_S16:
        return 0xffff;
    case TYPE_U32:
    case TYPE_S32:
        return is_pair(compared) ? 0xffff : UINT32_MAX;
    default:
        reject(d, "set cannot write .%s", type_name(t));
    }
}

static int decode_set(decoder *d) {
    comparison *x = d->in->extra = decode_alloc(d, sizeof *x);
    int unsigned_only, c = take_comparison(d, x, &unsigned_only), ftz = take(d, "ftz");
    ptx_type written = need_type(d), t = need_type(d);
    resolve(d, x, c, unsigned_only, ftz, t);
    x->truth = truth_of(d, written, t);
    if (is_pair(t) ? type_bits(written) != 32 || written == TYPE_F32 : is_pair(written))
        reject(d, "set cannot write .%s from .%s", type_name(written), type_name(t));
    d->in->run = is_pair(t) ? set_pair : set;
    d->in->d = result(d, 0, written);
    take_sources(d, x, t);
    return 1;
}

static void need_plain_type(decoder *d, ptx_type t) {
    int plain = (t >= TYPE_B16 && t <= TYPE_B64) || (t >= TYPE_U16 && t <= TYPE_U64) ||
                (t >= TYPE_S16 && t <= TYPE_S64) || t == TYPE_F32 || t == TYPE_F64;
    if (!plain) reject(d, "%s has no type .%s", d->statement->opcode, type_name(t));
    d->in->type = (uint8_t)t;
}

static int decode_selp(decoder *d) {
    ptx_type t = need_type(d);
    int negated = 0;
    need_plain_type(d, t);
    d->in->run = type_bits(t) == 64 ? selp_64 : selp_32;
    operands(d, 2, t);
    d->in->s[2] = source_predicate(d, 3, &negated);
    d->in->mode = negated ? UINT32_MAX : 0;
    return 1;
}

static int decode_slct(decoder *d) {
    int ftz = take(d, "ftz");
    ptx_type t = need_type(d), by = need_type(d);
    need_plain_type(d, t);
    int wide = type_bits(t) == 64;
    if (by == TYPE_S32 && !ftz)
        d->in->run = wide ? slct_64_s32 : slct_32_s32;
    else if (by == TYPE_F32)
        d->in->run = ftz ? (wide ? slct_64_f32_ftz : slct_32_f32_ftz) : wide ? slct_64_f32 : slct_32_f32;
    else
        reject(d, "slct selects by .s32 or .f32");
    operands(d, 2, t);
    d->in->s[2] = source(d, 3, by);
    return 1;
}

const opcode_entry compare_opcodes[] = {
    {"setp", decode_setp}, {"set", decode_set}, {"selp", decode_selp}, {"slct", decode_slct}, {0}};
