/* Loads and stores (PTX ISA 9.7.9.8 to 9.7.9.11: ld, ld.global.nc, ldu, st).
 *
 * Threads change one array of bytes in the order in which they run. The memory orders (.weak, .relaxed, .acquire
 * ...) have three effects: an acquire marks the point at which the warp has synchronised, a release lets other
 * clusters' asynchronous copies read what the warp has written (proxy.c), and a .volatile, .relaxed or .acquire load
 * ends the warp's turn, since a loop may be polling with it. */
#include <stdlib.h>

#include "memory/memory.h"
#include "scalar/lanes.h"

enum { MAX_ELEMENTS = 8 };

typedef struct transfer {
    int wide;                    /* the address register has 64 bits */
    uint32_t size, count, bytes; /* of an element, elements, of all */
    int is_signed;
    memory_order_kind order;
    int yields, releases;
    uint32_t slot[MAX_ELEMENTS];
    uint32_t width[MAX_ELEMENTS]; /* of the registers: 4, 8 or 16 bytes a lane */
    uint32_t mask[MAX_ELEMENTS];  /* what a register of 4 bytes keeps: 0xff, 0xffff for those of 8 and 16 bits */
} transfer;

/* ---- modifiers that loads, stores and atomics share ---- */

void take_cache_hints(decoder *d, int policy) {
    static const char *const operators[] = {"ca", "cg", "cs", "lu", "cv", "wb", "wt", NULL};
    static const char *const level1[] = {"L1::evict_normal", "L1::evict_unchanged", "L1::evict_first",
                                         "L1::evict_last",   "L1::no_allocate",     NULL};
    static const char *const level2[] = {"L2::evict_normal", "L2::evict_first", "L2::evict_last", NULL};
    static const char *const prefetch[] = {"L2::64B", "L2::128B", "L2::256B", NULL};
    take_one_of(d, operators);
    take_one_of(d, level1);
    take_one_of(d, level2);
    take_one_of(d, prefetch);
    if (take(d, "L2::cache_hint")) source(d, policy, TYPE_B64);
}

memory_scope take_scope(decoder *d, int needed) {
    static const char *const scopes[] = {"cta", "cluster", "gpu", "sys", NULL};
    int scope = take_one_of(d, scopes);
    if (scope < 0 && needed) reject(d, "a scope (.cta, .cluster, .gpu, .sys) is missing");
    return (memory_scope)scope;
}

static ptx_type transfer_type(decoder *d, transfer *t) {
    static const char *const vectors[] = {"v2", "v4", "v8", NULL};
    int vector = take_one_of(d, vectors);
    t->count = vector < 0 ? 1 : 2u << vector;
    ptx_type type = need_type(d);
    switch (type) {
    case TYPE_S8:
    case TYPE_S16:
    case TYPE_S32:
    case TYPE_S64:
        t->is_signed = 1;
        break;
    case TYPE_B8:
    case TYPE_B16:
    case TYPE_B32:
    case TYPE_B64:
    case TYPE_B128:
    case TYPE_U8:
    case TYPE_U16:
    case TYPE_U32:
    case TYPE_U64:
    case TYPE_F32:
    case TYPE_F64:
        break;
    default:
        reject(d, "type .%s cannot be loaded or stored", type_name(type));
    }
    t->size = (uint32_t)type_bits(type) / 8;
    t->bytes = t->size * t->count;
    if (t->bytes > 16 && !(t->bytes == 32 && (t->size == 4 || t->size == 8)))
        reject(d, "a vector of %u elements of %u bits is too long", t->count, 8 * t->size);
    return type;
}

/* Registers may be wider than the type: the type under which the decoder takes the operand. */
static ptx_type operand_type(decoder *d, const operand *o, ptx_type type) {
    if (o->kind != OPERAND_REGISTER) return type;
    int bits = type_bits(o->reg->type), needed = type_bits(type);
    if (o->reg->type == TYPE_PRED || bits < needed)
        reject(d, "register %s is smaller than the type .%s", o->reg->name, type_name(type));
    return bits == needed ? type
           : bits == 16   ? TYPE_B16
           : bits == 32   ? TYPE_B32
           : bits == 64   ? TYPE_B64
           : bits == 128  ? TYPE_B128
                          : type;
}

static void describe_register(transfer *t, uint32_t element, ptx_type type, uint32_t slot) {
    int bits = type_bits(type);
    t->slot[element] = slot;
    t->width[element] = bits <= 32 ? 4 : (uint32_t)bits / 8;
    t->mask[element] = bits == 8 ? 0xff : bits == 16 ? 0xffff : UINT32_MAX;
}

static void transfer_registers(decoder *d, transfer *t, int index, ptx_type type, int loads) {
    const operand *o = operand_at(d, index);
    int length = o->kind == OPERAND_VECTOR ? o->count : 1;
    if ((uint32_t)length != t->count) reject(d, "operand %d must have %u elements", index + 1, t->count);
    for (uint32_t i = 0; i < t->count; i++) {
        const operand *element = o->kind == OPERAND_VECTOR ? &o->items[i] : o;
        ptx_type as = operand_type(d, element, type);
        describe_register(t, i, as, loads ? destination_of(d, element, as) : source_of(d, element, as));
    }
}

/* ---- loads ---- */

static uint64_t element_value(const uint8_t *p, uint32_t size, int is_signed) {
    uint8_t b;
    uint16_t h;
    uint32_t s;
    uint64_t l;
    switch (size) {
    case 1:
        b = *p;
        return is_signed ? (uint64_t)(int64_t)(int8_t)b : b;
    case 2:
        memcpy(&h, p, 2);
        return is_signed ? (uint64_t)(int64_t)(int16_t)h : h;
    case 4:
        memcpy(&s, p, 4);
        return is_signed ? (uint64_t)(int64_t)(int32_t)s : s;
    default:
        memcpy(&l, p, 8);
        return l;
    }
}

static void load_element(warp *w, const transfer *t, uint32_t element, uint32_t lane, const uint8_t *p) {
    uint32_t slot = t->slot[element];
    if (slot == NO_SLOT) return;
    if (t->size == 16) {
        memcpy(&r128(w, slot)[lane], p, 16);
        return;
    }
    uint64_t value = element_value(p, t->size, t->is_signed);
    switch (t->width[element]) {
    case 4:
        r32(w, slot)[lane] = (uint32_t)value & t->mask[element];
        break;
    case 8:
        r64(w, slot)[lane] = value;
        break;
    default:
        r128(w, slot)[lane] = t->is_signed ? (unsigned __int128)(__int128)(int64_t)value : value;
    }
}

/* Element `e` of all lanes, from where p says. The common widths have loops of their own. */
static void load_elements(warp *w, const transfer *t, uint32_t e, uint32_t lanes, const uint8_t *const *p) {
    uint32_t slot = t->slot[e], at = e * t->size;
    if (slot == NO_SLOT) return;
    if (t->size == 4 && t->width[e] == 4) {
        uint32_t *d = r32(w, slot);
        LANES(i, lanes, { memcpy(&d[i], p[i] + at, 4); });
    } else if (t->size == 8 && t->width[e] == 8) {
        uint64_t *d = r64(w, slot);
        LANES(i, lanes, { memcpy(&d[i], p[i] + at, 8); });
    } else {
        FOR_LANES(i, lanes) load_element(w, t, e, i, p[i] + at);
    }
}

/* The lanes' elements follow each other, as they do in a register. */
static int is_dense(const transfer *t, const uint64_t address[WARP_LANES]) {
    if (t->count != 1 || t->size < 4 || t->width[0] != t->size) return 0;
    uint64_t wrong = 0;
    for (uint32_t i = 0; i < WARP_LANES; i++) wrong |= address[i] ^ (address[0] + i * t->size);
    return !wrong;
}

static int is_uniform(const uint64_t address[WARP_LANES]) {
    uint64_t wrong = 0;
    for (uint32_t i = 1; i < WARP_LANES; i++) wrong |= address[i] ^ address[0];
    return !wrong;
}

static void load_uniform(warp *w, const transfer *t, const uint8_t *p) {
    for (uint32_t e = 0; e < t->count; e++) {
        uint32_t slot = t->slot[e];
        if (slot == NO_SLOT) continue;
        load_element(w, t, e, 0, p + e * t->size);
        if (t->width[e] == 4) {
            uint32_t *d = r32(w, slot), value = d[0];
            for (int i = 1; i < WARP_LANES; i++) d[i] = value;
        } else if (t->width[e] == 8) {
            uint64_t *d = r64(w, slot), value = d[0];
            for (int i = 1; i < WARP_LANES; i++) d[i] = value;
        } else {
            unsigned __int128 *d = r128(w, slot), value = d[0];
            for (int i = 1; i < WARP_LANES; i++) d[i] = value;
        }
    }
}

static run_result run_load(warp *w, const instr *in, uint32_t lanes) {
    const transfer *t = in->extra;
    uint64_t address[WARP_LANES];
    const uint8_t *p[WARP_LANES];
    reach r;
    lane_addresses(w, in, t->wide, address);
    if (reach_of(w, in->space, address, lanes, t->bytes, t->bytes, &r)) {
        static const traffic kinds[] = {[MEMORY_GLOBAL] = TRAFFIC_GLOBAL_READ,
                                        [MEMORY_SHARED] = TRAFFIC_SHARED_READ,
                                        [MEMORY_LOCAL] = TRAFFIC_LOCAL};
        if (in->space != SPACE_PARAM && in->space != SPACE_CONST) /* of the constant bank */
            w->cta->traffic[kinds[r.kind]] += (uint64_t)t->bytes * (uint32_t)__builtin_popcount(lanes);
        if (lanes == ALL_LANES && !r.stride) {
            if (is_dense(t, address)) {
                if (t->slot[0] != NO_SLOT) memcpy(w->registers + t->slot[0], r.base, WARP_LANES * (size_t)t->size);
                goto done;
            }
            if (is_uniform(address)) {
                load_uniform(w, t, r.base);
                goto done;
            }
        }
        LANES(i, lanes, { p[i] = reach_lane(&r, address[i], i); });
    } else {
        FOR_LANES(i, lanes) p[i] = thread_read(w, in, (int)i, in->space, address[i], t->bytes, t->bytes);
    }
    for (uint32_t e = 0; e < t->count; e++) load_elements(w, t, e, lanes, p);
done:
    if (t->order == ORDER_ACQUIRE) w->sync_time = machine_of(w)->now;
    return t->yields ? RUN_YIELD : RUN_NEXT;
}

/* Takes .weak, .volatile, .relaxed, .acquire, .release and .mmio. */
static void take_order(decoder *d, transfer *t, int loads) {
    static const char *const orders[] = {"weak", "volatile", "relaxed", "acquire", "release", NULL};
    int mmio = take(d, "mmio");
    int order = take_one_of(d, orders);
    if (order == (loads ? 4 : 3)) reject(d, ".%s does not go with %s", orders[order], d->statement->opcode);
    if (mmio && order != 2) reject(d, ".mmio needs .relaxed");
    memory_scope scope = order >= 2 ? take_scope(d, 1) : SCOPE_NONE;
    t->releases = order == 4 && scope >= SCOPE_GPU;
    t->order = order == 3 ? ORDER_ACQUIRE : order == 4 ? ORDER_RELEASE : order > 0 ? ORDER_RELAXED : ORDER_WEAK;
    t->yields = loads && order > 0;
}

static void decode_address(decoder *d, transfer *t, int index) {
    int bits;
    d->in->s[0] = source_address(d, index, &d->in->offset, &bits);
    t->wide = bits == 64;
}

static int decode_ld(decoder *d) {
    transfer *t = decode_alloc(d, sizeof *t);
    take_order(d, t, 1);
    d->in->space = take_space(d);
    if (take(d, "nc") && d->in->space != SPACE_GLOBAL) reject(d, ".nc needs .global");
    take_cache_hints(d, 2);
    ptx_type type = transfer_type(d, t);
    decode_address(d, t, 1);
    transfer_registers(d, t, 0, type, 1);
    d->in->type = type;
    d->in->extra = t;
    d->in->run = run_load;
    return 1;
}

static int decode_ldu(decoder *d) {
    transfer *t = decode_alloc(d, sizeof *t);
    d->in->space = take_space(d);
    if (d->in->space != SPACE_GLOBAL && d->in->space != SPACE_NONE) reject(d, "ldu reads global memory");
    ptx_type type = transfer_type(d, t);
    decode_address(d, t, 1);
    transfer_registers(d, t, 0, type, 1);
    d->in->type = type;
    d->in->extra = t;
    d->in->run = run_load;
    return 1;
}

/* ---- stores ---- */

/* The low bytes of the registers of a lane, side by side. A register's bytes lie in memory's order. */
static void gather(const warp *w, const transfer *t, uint32_t lane, uint8_t *out) {
    for (uint32_t e = 0; e < t->count; e++)
        memcpy(out + e * t->size, w->registers + t->slot[e] + lane * t->width[e], t->size);
}

/* Element `e` of all lanes, to where p says: the counterpart of load_elements. */
static void store_elements(const warp *w, const transfer *t, uint32_t e, uint32_t lanes, uint8_t *const *p) {
    const uint8_t *s = w->registers + t->slot[e];
    /* 64 bits: with 32, GCC 12 writes vpscatterqd (%ebx,...) for AVX-512, which cuts the addresses to 32 bits. */
    const size_t at = (size_t)e * t->size, step = t->width[e];
    if (t->size == 4 && step == 4)
        LANES(i, lanes, { memcpy(p[i] + at, s + i * 4, 4); });
    else if (t->size == 8 && step == 8)
        LANES(i, lanes, { memcpy(p[i] + at, s + i * 8, 8); });
    else if (t->size == 2 && step == 4)
        LANES(i, lanes, { memcpy(p[i] + at, s + i * 4, 2); });
    else
        FOR_LANES(i, lanes) memcpy(p[i] + at, s + i * step, t->size);
}

static void store_direct(warp *w, const transfer *t, uint32_t lanes, const uint64_t *address, const reach *r) {
    if (lanes == ALL_LANES && !r->stride && is_dense(t, address)) {
        memcpy(r->base, w->registers + t->slot[0], WARP_LANES * (size_t)t->size);
        return;
    }
    uint8_t *p[WARP_LANES];
    LANES(i, lanes, { p[i] = reach_lane(r, address[i], i); });
    for (uint32_t e = 0; e < t->count; e++) store_elements(w, t, e, lanes, p);
}

static run_result run_store(warp *w, const instr *in, uint32_t lanes) {
    const transfer *t = in->extra;
    uint64_t address[WARP_LANES];
    reach r;
    if (t->releases) release_global(w, lanes);
    lane_addresses(w, in, t->wide, address);
    if (reach_of(w, in->space, address, lanes, t->bytes, t->bytes, &r) && !writes_are_noted(w, r.kind)) {
        static const traffic kinds[] = {[MEMORY_GLOBAL] = TRAFFIC_GLOBAL_WRITE,
                                        [MEMORY_SHARED] = TRAFFIC_SHARED_WRITE,
                                        [MEMORY_LOCAL] = TRAFFIC_LOCAL};
        w->cta->traffic[kinds[r.kind]] += (uint64_t)t->bytes * (uint32_t)__builtin_popcount(lanes);
        store_direct(w, t, lanes, address, &r);
        machine_progress(machine_of(w));
        return RUN_NEXT;
    }
    FOR_LANES(i, lanes) {
        uint8_t data[32];
        gather(w, t, i, data);
        thread_write(w, in, (int)i, in->space, address[i], data, t->bytes, t->bytes);
    }
    return RUN_NEXT;
}

static int decode_st(decoder *d) {
    if (has_modifier(d, "async") || has_modifier(d, "bulk")) return 0;
    transfer *t = decode_alloc(d, sizeof *t);
    take_order(d, t, 0);
    d->in->space = take_space(d);
    if (d->in->space == SPACE_CONST) reject(d, "constants cannot be stored to");
    take_cache_hints(d, 2);
    ptx_type type = transfer_type(d, t);
    decode_address(d, t, 0);
    transfer_registers(d, t, 1, type, 0);
    d->in->type = type;
    d->in->extra = t;
    d->in->run = run_store;
    return 1;
}

const opcode_entry memory_opcodes[] = {
    {"ld", decode_ld},
    {"ldu", decode_ldu},
    {"st", decode_st},
    {"prefetch", decode_prefetch},
    {"prefetchu", decode_prefetchu},
    {"applypriority", decode_applypriority},
    {"discard", decode_discard},
    {"createpolicy", decode_createpolicy},
    {"fence", decode_fence},
    {"membar", decode_fence},
    {0},
};
