/* Video instructions (PTX ISA 9.7.18): scalar vadd vsub vabsdiff vmin vmax vshl vshr vset with byte or half
 * operands, and vadd2 ... vset4 on pairs of halves and quads of bytes. vmad is missing.
 *
 * Both kinds select parts of the pair {b, a} (64 bits, a in the lower half), extend and combine them, and put the
 * results into parts of d. The other parts of d come from c, or the result is added to or compared with c. */
#include "scalar/lanes.h"

typedef enum { VADD, VSUB, VAVRG, VABSDIFF, VMIN, VMAX, VSET, VSHL, VSHR } video_op;
typedef enum { THEN_NOTHING, THEN_MERGE, THEN_ADD, THEN_MIN, THEN_MAX } second_op;

typedef struct {
    video_op op;
    int parts;                /* 1, 2 or 4 results */
    int bits;                 /* of a result that is merged or clamped: 8, 16 or 32 */
    int a_bits, b_bits;       /* of the parts of the sources */
    int a_part[4], b_part[4]; /* which ones, of {b, a} */
    int a_signed, b_signed, d_signed, saturate, wraps;
    int compare;
    second_op then;
    unsigned mask; /* merged: which parts of d; with one part: its place */
} video;

static int64_t part_of(uint64_t pair, int part, int bits, int is_signed) {
    uint64_t value = pair >> part * bits << (64 - bits);
    return is_signed ? (int64_t)value >> (64 - bits) : (int64_t)(value >> (64 - bits));
}

static int64_t clamp(int64_t t, int bits, int is_signed) {
    int64_t low = is_signed ? -(INT64_C(1) << (bits - 1)) : 0, high = (INT64_C(1) << (is_signed ? bits - 1 : bits)) - 1;
    return t < low ? low : t > high ? high : t;
}

static int64_t combine(const video *v, int64_t a, int64_t b) {
    switch (v->op) {
    case VADD:
        return a + b;
    case VSUB:
        return a - b;
    case VAVRG:
        return (a + b + (a + b >= 0)) >> 1;
    case VABSDIFF:
        return a > b ? a - b : b - a;
    case VMIN:
        return a < b ? a : b;
    case VMAX:
        return a > b ? a : b;
    case VSET:
        return v->compare == 0   ? a == b
               : v->compare == 1 ? a != b
               : v->compare == 2 ? a < b
               : v->compare == 3 ? a <= b
               : v->compare == 4 ? a > b
                                 : a >= b;
    case VSHL:
    case VSHR:
        b = v->wraps ? b & 31 : b > 32 ? 32 : b;
        if (v->op == VSHR) return a >> b;
        /* 32 bits shifted by 32 may not fit: any number as large, with the same low bits, is clamped alike */
        return b == 32 && a > INT32_MAX ? INT64_C(1) << 62 : (int64_t)((uint64_t)a << b);
    }
    return 0;
}

static run_result run_video(warp *w, const instr *in, uint32_t lanes) {
    const video *v = in->extra;
    const uint32_t *a = r32(w, in->s[0]), *b = r32(w, in->s[1]), *c = r32(w, in->s[2]);
    uint32_t *d = r32(w, in->d);
    FOR_LANES(lane, lanes) {
        uint64_t pair = (uint64_t)b[lane] << 32 | a[lane];
        int64_t third = v->d_signed ? (int64_t)(int32_t)c[lane] : (int64_t)c[lane];
        uint32_t merged = c[lane];
        for (int i = 0; i < v->parts; i++) {
            int64_t t = combine(v, part_of(pair, v->a_part[i], v->a_bits, v->a_signed),
                                part_of(pair, v->b_part[i], v->b_bits, v->b_signed));
            if (v->saturate) t = clamp(t, v->bits, v->d_signed);
            int place = v->parts == 1 ? (int)v->mask : i;
            int chosen = v->parts == 1 || v->mask >> i & 1;
            uint32_t field = v->bits == 32 ? UINT32_MAX : ((1u << v->bits) - 1) << place * v->bits;
            if (!chosen) continue;
            switch (v->then) {
            case THEN_NOTHING:
                merged = (uint32_t)t;
                break;
            case THEN_MERGE:
                merged = (merged & ~field) | ((uint32_t)t << place * v->bits & field);
                break;
            case THEN_ADD:
                merged += (uint32_t)t;
                break;
            case THEN_MIN:
                merged = (uint32_t)(t < third ? t : third);
                break;
            case THEN_MAX:
                merged = (uint32_t)(t > third ? t : third);
                break;
            }
        }
        d[lane] = merged;
    }
    return RUN_NEXT;
}

/* ---- decoding ---- */

/* Takes the selector off an operand that may have one; NULL: it has none. */
static const char *selector(decoder *d, int index, operand *plain) {
    *plain = *operand_at(d, index);
    const char *name = plain->kind == OPERAND_REGISTER ? plain->name : NULL;
    if (name) plain->name = NULL;
    return name;
}

/* .b0 ... .h1: the width and the place of one part; without: the whole register. */
static void scalar_part(decoder *d, const char *name, int *bits, int *part) {
    *bits = !name ? 32 : *name == 'b' ? 8 : 16;
    *part = name ? name[1] - '0' : 0;
    if (name && (name[2] || *part >= 32 / *bits))
        reject(d, "the selector .%s is none of .b0 to .b3, .h0 and .h1", name);
}

/* .b7654: the highest place first. */
static void vector_parts(decoder *d, const char *name, int parts, int first, int part[4]) {
    for (int i = 0; i < parts; i++) part[i] = first + i;
    if (!name) return;
    if (*name != (parts == 4 ? 'b' : 'h') || (int)strlen(name) != parts + 1)
        reject(d, "the selector .%s must name %d parts", name, parts);
    for (int i = 0; i < parts; i++) {
        part[i] = name[parts - i] - '0';
        if (part[i] >= 2 * parts) reject(d, "the selector .%s names a part that there is not", name);
    }
}

static unsigned mask_of(decoder *d, const char *name, int parts) {
    if (!name) return (1u << parts) - 1;
    unsigned mask = 0;
    for (int i = 1, before = parts; name[i]; before = name[i++] - '0') {
        if (*name != (parts == 4 ? 'b' : 'h') || name[i] - '0' >= before)
            reject(d, "the mask .%s must name parts from the highest to the lowest", name);
        mask |= 1u << (name[i] - '0');
    }
    return mask;
}

static int take_signed(decoder *d) {
    ptx_type t = need_type(d);
    if (t != TYPE_U32 && t != TYPE_S32) reject(d, "video instructions have types .u32 and .s32");
    return t == TYPE_S32;
}

static int decode_video(decoder *d) {
    static const char *const names[] = {"vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax", "vset", "vshl", "vshr"};
    static const char *const comparisons[] = {"eq", "ne", "lt", "le", "gt", "ge", NULL};
    static const char *const modes[] = {"clamp", "wrap", NULL};
    static const char *const seconds[] = {"add", "min", "max", NULL};
    const char *opcode = d->statement->opcode;
    size_t length = strcspn(opcode, "24");
    video *v = decode_alloc(d, sizeof *v);
    while (strncmp(opcode, names[v->op], length) != 0 || names[v->op][length]) v->op++;
    v->parts = opcode[length] ? opcode[length] - '0' : 1;
    v->d_signed = v->op == VSET ? 0 : take_signed(d);
    v->a_signed = take_signed(d);
    v->b_signed = take_signed(d);
    v->saturate = v->op != VSET && take(d, "sat");
    if (v->op == VSET && (v->compare = take_one_of(d, comparisons)) < 0) reject(d, "the comparison is missing");
    if (v->op == VSHL || v->op == VSHR) {
        int mode = take_one_of(d, modes);
        if (mode < 0) reject(d, ".clamp or .wrap is missing");
        if (v->b_signed) reject(d, "the amount of a shift is .u32");
        v->wraps = mode;
    }
    int second = take_one_of(d, seconds);
    if (second > 0 && v->parts > 1) reject(d, "results of several parts are added only");
    if (second >= 0 && v->saturate && v->parts > 1) reject(d, ".sat does not go with .add here");

    operand place, a, b;
    const char *to = selector(d, 0, &place), *from_a = selector(d, 1, &a), *from_b = selector(d, 2, &b);
    if (v->parts == 1) {
        int part;
        scalar_part(d, to, &v->bits, &part);
        v->mask = (unsigned)part;
        scalar_part(d, from_a, &v->a_bits, &v->a_part[0]);
        scalar_part(d, from_b, &v->b_bits, &v->b_part[0]);
        v->b_part[0] += 32 / v->b_bits;
        if (to && second >= 0) reject(d, "a part of d and a second operation do not go together");
    } else {
        v->bits = v->a_bits = v->b_bits = 32 / v->parts;
        v->mask = mask_of(d, to, v->parts);
        vector_parts(d, from_a, v->parts, 0, v->a_part);
        vector_parts(d, from_b, v->parts, v->parts, v->b_part);
    }
    v->then = second >= 0 ? THEN_ADD + second : to || v->parts > 1 ? THEN_MERGE : THEN_NOTHING;
    d->in->d = destination_of(d, &place, TYPE_B32);
    if (d->in->d == NO_SLOT) reject(d, "the result cannot be the sink");
    d->in->s[0] = source_of(d, &a, TYPE_B32);
    d->in->s[1] = source_of(d, &b, TYPE_B32);
    d->in->s[2] = v->then == THEN_NOTHING ? d->in->s[0] : source(d, 3, TYPE_B32);
    d->in->extra = v;
    d->in->run = run_video;
    return 1;
}

const opcode_entry video_opcodes[] = {
    {"vadd", decode_video},
    {"vsub", decode_video},
    {"vabsdiff", decode_video},
    {"vmin", decode_video},
    {"vmax", decode_video},
    {"vset", decode_video},
    {"vshl", decode_video},
    {"vshr", decode_video},
    {"vadd2", decode_video},
    {"vsub2", decode_video},
    {"vavrg2", decode_video},
    {"vabsdiff2", decode_video},
    {"vmin2", decode_video},
    {"vmax2", decode_video},
    {"vset2", decode_video},
    {"vadd4", decode_video},
    {"vsub4", decode_video},
    {"vavrg4", decode_video},
    {"vabsdiff4", decode_video},
    {"vmin4", decode_video},
    {"vmax4", decode_video},
    {"vset4", decode_video},
    {0},
};
