/* mov, packing and unpacking (PTX ISA 9.7.9.3, 9.7.9.4), cvta and isspacep (9.7.9.19, 9.7.9.20). */
#include "scalar/lanes.h"

/* ---- mov ---- */

/* A register that an operation under way will write may be moved before the wait: the claim moves with it. */
static void carry_claim(warp *w, uint32_t to, uint32_t to_stride, uint32_t from, uint32_t lanes) {
    if (w->pending) pending_copy(w, to, to_stride, from, lanes);
}

HANDLER(mov_32) {
    uint32_t *d = r32(w, in->d);
    const uint32_t *a = r32(w, in->s[0]);
    LANES(i, lanes, { d[i] = a[i]; });
    if (w->pending) carry_claim(w, in->d, 4, in->s[0], lanes);
    return RUN_NEXT;
}
HANDLER(mov_64) {
    uint64_t *d = r64(w, in->d);
    const uint64_t *a = r64(w, in->s[0]);
    LANES(i, lanes, { d[i] = a[i]; });
    if (w->pending) {
        carry_claim(w, in->d, 8, in->s[0], lanes);
        carry_claim(w, in->d + 4, 8, in->s[0] + 4, lanes);
    }
    return RUN_NEXT;
}
HANDLER(mov_128) {
    unsigned __int128 *d = r128(w, in->d);
    const unsigned __int128 *a = r128(w, in->s[0]);
    LANES(i, lanes, { d[i] = a[i]; });
    return RUN_NEXT;
}
HANDLER(mov_predicate) {
    set_predicate(w, in->d, lanes, *predicate(w, in->s[0]) ^ in->mode);
    return RUN_NEXT;
}

/* ---- packing: vs or vd have in->vector elements of in->mode bits ---- */

HANDLER(pack_16x2) {
    uint32_t *d = r32(w, in->d);
    const uint32_t *a = r32(w, in->vs[0]), *b = r32(w, in->vs[1]);
    LANES(i, lanes, { d[i] = a[i] | b[i] << 16; });
    return RUN_NEXT;
}
HANDLER(pack_32x2) {
    uint64_t *d = r64(w, in->d);
    const uint32_t *a = r32(w, in->vs[0]), *b = r32(w, in->vs[1]);
    LANES(i, lanes, { d[i] = a[i] | (uint64_t)b[i] << 32; });
    for (uint32_t k = 0; k < 2; k++) carry_claim(w, in->d + 4 * k, 8, in->vs[k], lanes);
    return RUN_NEXT;
}
HANDLER(unpack_16x2) {
    const uint32_t *a = r32(w, in->s[0]);
    for (uint32_t k = 0; k < 2; k++) {
        if (in->vd[k] == NO_SLOT) continue;
        uint32_t *d = r32(w, in->vd[k]);
        LANES(i, lanes, { d[i] = a[i] >> 16 * k & 0xffff; });
    }
    return RUN_NEXT;
}
HANDLER(unpack_32x2) {
    const uint64_t *a = r64(w, in->s[0]);
    for (uint32_t k = 0; k < 2; k++) {
        if (in->vd[k] == NO_SLOT) continue;
        uint32_t *d = r32(w, in->vd[k]);
        LANES(i, lanes, { d[i] = (uint32_t)(a[i] >> 32 * k); });
        carry_claim(w, in->vd[k], 4, in->s[0] + 4 * k, lanes);
    }
    return RUN_NEXT;
}

static unsigned __int128 read_cell(const warp *w, uint32_t slot, uint32_t bits, uint32_t i) {
    return bits > 64 ? r128(w, slot)[i] : bits > 32 ? r64(w, slot)[i] : r32(w, slot)[i];
}
static void write_cell(const warp *w, uint32_t slot, uint32_t bits, uint32_t i, unsigned __int128 value) {
    if (bits > 64)
        r128(w, slot)[i] = value;
    else if (bits > 32)
        r64(w, slot)[i] = (uint64_t)value;
    else
        r32(w, slot)[i] = (uint32_t)value;
}
/* The shapes that are rare: 2x8, 4x8, 4x16, 4x32, 2x64. */
HANDLER(pack) {
    FOR_LANES(i, lanes) {
        unsigned __int128 value = 0;
        for (uint32_t k = 0; k < in->vector; k++) value |= read_cell(w, in->vs[k], in->mode, i) << k * in->mode;
        write_cell(w, in->d, in->vector * in->mode, i, value);
    }
    return RUN_NEXT;
}
HANDLER(unpack) {
    const unsigned __int128 element = ((unsigned __int128)1 << in->mode) - 1;
    FOR_LANES(i, lanes) {
        const unsigned __int128 value = read_cell(w, in->s[0], in->vector * in->mode, i);
        for (uint32_t k = 0; k < in->vector; k++)
            if (in->vd[k] != NO_SLOT) write_cell(w, in->vd[k], in->mode, i, value >> k * in->mode & element);
    }
    return RUN_NEXT;
}

static ptx_type element_type(decoder *d, ptx_type t, int count) {
    if (t < TYPE_B16 || t > TYPE_B128) reject(d, "packing and unpacking have the types .b16, .b32, .b64 and .b128");
    int bits = count == 2 || count == 4 ? type_bits(t) / count : 0;
    d->in->mode = (uint32_t)bits;
    d->in->vector = (uint32_t)count;
    switch (bits) {
    case 8:
        return TYPE_B8;
    case 16:
        return TYPE_B16;
    case 32:
        return TYPE_B32;
    case 64:
        return TYPE_B64;
    default:
        reject(d, "there is no vector of %d elements in .%s", count, type_name(t));
    }
}

static int decode_mov(decoder *d) {
    instr *in = d->in;
    ptx_type t = need_type(d);
    in->type = (uint8_t)t;
    if (operand_count(d) != 2) reject(d, "mov has two operands");
    const operand *to = operand_at(d, 0), *from = operand_at(d, 1);
    int count = 0, negated = 0;
    if (to->kind == OPERAND_VECTOR) {
        ptx_type element = element_type(d, t, to->count);
        in->s[0] = source(d, 1, t);
        in->vd = destination_vector(d, 0, element, &count);
        in->run = count == 2 && element == TYPE_B32   ? unpack_32x2
                  : count == 2 && element == TYPE_B16 ? unpack_16x2
                                                      : unpack;
        return 1;
    }
    in->d = result(d, 0, t);
    if (from->kind == OPERAND_VECTOR) {
        ptx_type element = element_type(d, t, from->count);
        in->vs = source_vector(d, 1, element, &count);
        in->run = count == 2 && element == TYPE_B32 ? pack_32x2 : count == 2 && element == TYPE_B16 ? pack_16x2 : pack;
        return 1;
    }
    if (t == TYPE_PRED) {
        in->s[0] = source_predicate(d, 1, &negated);
        in->mode = negated ? UINT32_MAX : 0;
        in->run = mov_predicate;
        return 1;
    }
    int plain = (t >= TYPE_B16 && t <= TYPE_S64 && t != TYPE_U8 && t != TYPE_S8) || t == TYPE_F32 || t == TYPE_F64 ||
                t == TYPE_F16 || t == TYPE_BF16 || t == TYPE_F16X2 || t == TYPE_BF16X2;
    if (!plain) reject(d, "mov has no type .%s", type_name(t));
    in->s[0] = source(d, 1, t);
    in->run = type_bits(t) == 128 ? mov_128 : type_bits(t) == 64 ? mov_64 : mov_32;
    return 1;
}

/* ---- addresses ---- */

/* Generic addresses of global memory, constants and parameters equal the addresses in their space. Shared and local
 * memory have a window; a .shared::cta address may hold this CTA's rank or none.
 *
 * An address outside the window is undefined by the ISA. cvta.to.local gives all ones, which every access rejects.
 * cvta.to.shared gives what ptxas 13.0 makes of it: from sm_90 on the low 32 bits, so that null gives 0 (CUTLASS's
 * pointer_flagged.hpp asserts that); before, the difference from the window's base. */
HANDLER(cvta_same) {
    uint64_t *d = r64(w, in->d);
    const uint64_t *a = r64(w, in->s[0]);
    LANES(i, lanes, { d[i] = a[i]; });
    return RUN_NEXT;
}
HANDLER(cvta_local) {
    uint64_t *d = r64(w, in->d);
    const uint64_t *a = r64(w, in->s[0]);
    LANES(i, lanes, { d[i] = LOCAL_WINDOW | a[i]; });
    return RUN_NEXT;
}
HANDLER(cvta_to_local) {
    uint64_t *d = r64(w, in->d);
    const uint64_t *a = r64(w, in->s[0]);
    LANES(i, lanes, { d[i] = (a[i] & WINDOW_MASK) == LOCAL_WINDOW ? a[i] & ~WINDOW_MASK : UINT64_MAX; });
    return RUN_NEXT;
}
HANDLER(cvta_shared_cta) {
    const uint64_t rank = (uint64_t)w->cta->rank << RANK_SHIFT;
    uint64_t *d = r64(w, in->d);
    const uint64_t *a = r64(w, in->s[0]);
    LANES(i, lanes, { d[i] = SHARED_WINDOW | (a[i] >> RANK_SHIFT ? a[i] : a[i] | rank); });
    return RUN_NEXT;
}
HANDLER(cvta_shared_cluster) {
    uint64_t *d = r64(w, in->d);
    const uint64_t *a = r64(w, in->s[0]);
    LANES(i, lanes, { d[i] = SHARED_WINDOW | a[i]; });
    return RUN_NEXT;
}
HANDLER(cvta_to_shared) {
    uint64_t *d = r64(w, in->d);
    const uint64_t *a = r64(w, in->s[0]);
    if (machine_of(w)->device->cc >= 90)
        LANES(i, lanes, { d[i] = (uint32_t)a[i]; });
    else
        LANES(i, lanes, { d[i] = a[i] - SHARED_WINDOW; });
    return RUN_NEXT;
}

/* take_space says .shared::cta for .shared too. */
static int decode_cvta(decoder *d) {
    instr *in = d->in;
    int to = take(d, "to");
    ptx_space space = take_space(d);
    ptx_type t = need_type(d);
    if (t != TYPE_U64) reject(d, "addresses have 64 bits here: cvta needs .u64");
    in->space = (uint8_t)space;
    switch (space) {
    case SPACE_GLOBAL:
    case SPACE_CONST:
    case SPACE_PARAM:
        in->run = cvta_same;
        break;
    case SPACE_LOCAL:
        in->run = to ? cvta_to_local : cvta_local;
        break;
    case SPACE_SHARED:
        in->run = to ? cvta_to_shared : cvta_shared_cta;
        break;
    case SPACE_SHARED_CLUSTER:
        in->run = to ? cvta_to_shared : cvta_shared_cluster;
        break;
    default:
        reject(d, "cvta needs a state space");
    }
    operands(d, 1, t);
    return 1;
}

static int is_constant_address(const warp *w, uint64_t a) {
    for (const variable *v = w->cta->grid->launch.entry->in->variables; v; v = v->next)
        if (v->space == SPACE_CONST && a - (uint64_t)v->address < (uint64_t)v->bytes) return 1;
    return 0;
}

static int is_in_space(const warp *w, ptx_space space, uint64_t a) {
    const cta *c = w->cta;
    const launch *l = &c->grid->launch;
    uint64_t window = a & WINDOW_MASK;
    switch (space) {
    case SPACE_SHARED:
        return window == SHARED_WINDOW && (a & ~WINDOW_MASK) >> RANK_SHIFT == c->rank;
    case SPACE_SHARED_CLUSTER:
        return window == SHARED_WINDOW && (a & ~WINDOW_MASK) >> RANK_SHIFT < (uint64_t)c->cluster->size;
    case SPACE_LOCAL:
        return window == LOCAL_WINDOW;
    case SPACE_CONST:
        return is_constant_address(w, a);
    case SPACE_PARAM:
        return a - (uint64_t)(uintptr_t)l->parameters < (uint64_t)l->entry->parameter_bytes;
    default:
        return window == 0 && !is_constant_address(w, a); /* global: parameters are in it */
    }
}

HANDLER(isspacep) {
    uint32_t mask = 0;
    FOR_LANES(i, lanes) {
        uint64_t a = in->type == TYPE_U64 ? r64(w, in->s[0])[i] : r32(w, in->s[0])[i];
        mask |= (uint32_t)is_in_space(w, (ptx_space)in->space, a) << i;
    }
    set_predicate(w, in->d, lanes, mask);
    return RUN_NEXT;
}

static int decode_isspacep(decoder *d) {
    instr *in = d->in;
    in->space = (uint8_t)take_space(d);
    if (in->space == SPACE_NONE) reject(d, "isspacep needs a state space");
    const operand *a = operand_at(d, 1);
    in->type = a->kind == OPERAND_REGISTER && type_bits(a->reg->type) == 32 ? TYPE_U32 : TYPE_U64;
    in->run = isspacep;
    in->d = result(d, 0, TYPE_PRED);
    in->s[0] = source(d, 1, (ptx_type)in->type);
    return 1;
}

const opcode_entry move_opcodes[] = {{"mov", decode_mov}, {"cvta", decode_cvta}, {"isspacep", decode_isspacep}, {0}};
