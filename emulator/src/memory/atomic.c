/* Atomic operations (PTX ISA 9.7.13.5 atom, 9.7.13.6 red): lane after lane, lowest first.
 *
 * f32 add flushes subnormals in global memory and keeps them in shared memory, as the ISA says. An atom ends the
 * warp's turn: a loop may be waiting for its result. */
#include <stdlib.h>

#include "async/bulk.h"
#include "memory/memory.h"

enum { ATOMIC_REDUCE, ATOMIC_EXCHANGE, ATOMIC_COMPARE, MAX_VALUES = 8 };

typedef struct atomic {
    int wide, kind, acquires, releases;
    reduction reduction;
    ptx_type type;              /* of one element, as reduce() knows it */
    uint32_t element_size;      /* in memory */
    uint32_t count, value_size; /* registers of an operand, bytes that each holds */
    uint32_t bytes;
    uint32_t d[MAX_VALUES], b[MAX_VALUES], c;
} atomic;

/* ---- running ---- */

/* memcpy and memcmp of the usual sizes, without a call. */
static inline void copy(void *to, const void *from, uint32_t bytes) {
    if (bytes == 4)
        memcpy(to, from, 4);
    else if (bytes == 8)
        memcpy(to, from, 8);
    else
        memcpy(to, from, bytes);
}
static inline int differ(const void *a, const void *b, uint32_t bytes) {
    return bytes == 4 ? memcmp(a, b, 4) != 0 : bytes == 8 ? memcmp(a, b, 8) != 0 : memcmp(a, b, bytes) != 0;
}

static uint32_t lane_bytes(uint32_t value_size) {
    return value_size < 4 ? 4 : value_size;
}

static void read_values(const warp *w, const atomic *a, const uint32_t *slots, uint32_t lane, uint8_t *out) {
    for (uint32_t i = 0; i < a->count; i++)
        copy(out + i * a->value_size, w->registers + slots[i] + lane * lane_bytes(a->value_size), a->value_size);
}

static void write_values(const warp *w, const atomic *a, uint32_t lane, const uint8_t *values) {
    for (uint32_t i = 0; i < a->count; i++) {
        if (a->d[i] == NO_SLOT) continue;
        uint8_t *d = w->registers + a->d[i] + lane * lane_bytes(a->value_size);
        if (a->value_size < 4) memset(d, 0, 4);
        copy(d, values + i * a->value_size, a->value_size);
    }
}

static int in_shared(const instr *in, uint64_t address) {
    return in->space == SPACE_SHARED || in->space == SPACE_SHARED_CLUSTER || (address & WINDOW_MASK) == SHARED_WINDOW;
}

/* The new value in place of the old one. */
static void apply(warp *w, const instr *in, const atomic *a, uint32_t lane, uint64_t address, uint8_t *value) {
    uint8_t b[32], c[16];
    read_values(w, a, a->b, lane, b);
    switch (a->kind) {
    case ATOMIC_EXCHANGE:
        copy(value, b, a->bytes);
        break;
    case ATOMIC_COMPARE:
        if (differ(value, b, a->bytes)) break;
        read_values(w, a, &a->c, lane, c);
        copy(value, c, a->bytes);
        break;
    default:
        for (uint32_t at = 0; at < a->bytes; at += a->element_size)
            if (a->type == TYPE_F32)
                add_f32(value + at, b + at, !in_shared(in, address));
            else
                reduce(a->reduction, a->type, value + at, b + at);
    }
}

/* The lane's operation on bytes that are checked. 1: they have changed in `value`. */
static int operate(warp *w, const instr *in, const atomic *a, uint32_t lane, uint64_t address, const uint8_t *at,
                   uint8_t value[32]) {
    uint8_t old[32];
    copy(old, at, a->bytes);
    copy(value, old, a->bytes);
    apply(w, in, a, lane, address, value);
    write_values(w, a, lane, old);
    return differ(value, old, a->bytes);
}

static void run_lane(warp *w, const instr *in, const atomic *a, uint32_t lane, uint64_t address) {
    uint8_t value[32];
    if (in->space == SPACE_NONE && (address & WINDOW_MASK) == LOCAL_WINDOW)
        fault(w, in, (int)lane, "0x%llx is an address of local memory; atomics act on global and shared memory",
              (unsigned long long)address);
    const uint8_t *at = thread_read(w, in, (int)lane, in->space, address, a->bytes, a->bytes);
    /* an unchanged value is no progress: a loop on a lock that is never released must count as a deadlock */
    if (operate(w, in, a, lane, address, at, value))
        thread_write(w, in, (int)lane, in->space, address, value, a->bytes, a->bytes);
}

/* All lanes at once where nothing has to be noted. */
static int run_direct(warp *w, const instr *in, const atomic *a, uint32_t lanes, const uint64_t address[WARP_LANES]) {
    reach r;
    uint8_t value[32];
    int changed = 0;
    if (!reach_of(w, in->space, address, lanes, a->bytes, a->bytes, &r)) return 0;
    if (r.kind == MEMORY_LOCAL || writes_are_noted(w, r.kind)) return 0;
    FOR_LANES(lane, lanes) {
        uint8_t *at = reach_lane(&r, address[lane], lane);
        if (!operate(w, in, a, lane, address[lane], at, value)) continue;
        copy(at, value, a->bytes);
        changed = 1;
    }
    uint64_t bytes = (uint64_t)a->bytes * (uint32_t)__builtin_popcount(lanes);
    w->cta->traffic[r.kind == MEMORY_GLOBAL ? TRAFFIC_GLOBAL_READ : TRAFFIC_SHARED_READ] += bytes;
    w->cta->traffic[r.kind == MEMORY_GLOBAL ? TRAFFIC_GLOBAL_WRITE : TRAFFIC_SHARED_WRITE] += bytes;
    if (changed) machine_progress(machine_of(w));
    return 1;
}

static run_result run_red(warp *w, const instr *in, uint32_t lanes) {
    const atomic *a = in->extra;
    uint64_t address[WARP_LANES];
    if (a->releases) release_global(w, lanes);
    lane_addresses(w, in, a->wide, address);
    if (!run_direct(w, in, a, lanes, address)) {
        FOR_LANES(lane, lanes) {
            run_lane(w, in, a, lane, address[lane]);
        }
    }
    if (a->acquires) w->sync_time = machine_of(w)->now;
    return RUN_NEXT;
}

static run_result run_atom(warp *w, const instr *in, uint32_t lanes) {
    run_red(w, in, lanes);
    return RUN_YIELD;
}

/* ---- decoding ---- */

static ptx_type element_of(ptx_type type) {
    return type == TYPE_F16X2 ? TYPE_F16 : type == TYPE_BF16X2 ? TYPE_BF16 : type;
}

static void check_type(decoder *d, const atomic *a, ptx_type type, int vector) {
    int halves = type == TYPE_F16 || type == TYPE_BF16, packed = type == TYPE_F16X2 || type == TYPE_BF16X2;
    int ok;
    switch (a->kind) {
    case ATOMIC_EXCHANGE:
        ok = type == TYPE_B32 || type == TYPE_B64 || type == TYPE_B128;
        break;
    case ATOMIC_COMPARE:
        ok = type == TYPE_B16 || type == TYPE_B32 || type == TYPE_B64 || type == TYPE_B128;
        break;
    default:
        ok = reduction_exists(a->reduction, element_of(type));
        if ((halves || packed) && !vector) ok = ok && a->reduction == REDUCE_ADD;
    }
    if (!ok) reject(d, "there is no such operation on .%s", type_name(type));
    if (vector && !(halves || (packed && vector <= 4) || (type == TYPE_F32 && vector <= 4)))
        reject(d, "there is no vector of %d elements of .%s", vector, type_name(type));
    if ((halves || packed) && !take(d, "noftz")) reject(d, ".noftz is missing");
}

static void take_values(decoder *d, int index, ptx_type type, uint32_t count, uint32_t *slots, int writes) {
    const operand *o = operand_at(d, index);
    int length = o->kind == OPERAND_VECTOR ? o->count : 1;
    if (writes && count > 1 && o->kind == OPERAND_SINK) {
        for (uint32_t i = 0; i < count; i++) slots[i] = NO_SLOT;
        return;
    }
    if ((uint32_t)length != count) reject(d, "operand %d must have %u elements", index + 1, count);
    for (uint32_t i = 0; i < count; i++) {
        const operand *element = o->kind == OPERAND_VECTOR ? &o->items[i] : o;
        slots[i] = writes ? destination_of(d, element, type) : source_of(d, element, type);
    }
}

static int decode_atomic(decoder *d) {
    static const char *const orders[] = {"relaxed", "acquire", "release", "acq_rel", NULL};
    static const char *const vectors[] = {"v2", "v4", "v8", NULL};
    if (has_modifier(d, "async")) return 0;
    int returns = d->statement->opcode[0] == 'a';
    atomic *a = decode_alloc(d, sizeof *a);
    instr *in = d->in;
    int order = take_one_of(d, orders);
    if (!returns && (order == 1 || order == 3)) reject(d, "red cannot acquire");
    a->acquires = order == 1 || order == 3;
    memory_scope scope = take_scope(d, 0);
    a->releases = order >= 2 && (scope == SCOPE_NONE || scope >= SCOPE_GPU); /* .gpu where none is written */
    in->space = take_space(d);
    if (in->space != SPACE_NONE && in->space != SPACE_GLOBAL && in->space != SPACE_SHARED &&
        in->space != SPACE_SHARED_CLUSTER)
        reject(d, "atomics act on global and shared memory");
    a->kind = returns && take(d, "cas") ? ATOMIC_COMPARE : returns && take(d, "exch") ? ATOMIC_EXCHANGE : ATOMIC_REDUCE;
    if (a->kind == ATOMIC_REDUCE) a->reduction = take_reduction(d);
    if (a->kind == ATOMIC_REDUCE && a->reduction == REDUCE_NONE) reject(d, "the operation is missing");
    int vector = take_one_of(d, vectors);
    vector = vector < 0 ? 0 : 2 << vector;
    ptx_type type = need_type(d);
    check_type(d, a, type, vector);
    if (vector && in->space != SPACE_NONE && in->space != SPACE_GLOBAL) reject(d, "vectors need global memory");
    a->type = element_of(type);
    a->count = vector ? (uint32_t)vector : 1;
    a->value_size = (uint32_t)type_bits(type) / 8;
    a->element_size = (uint32_t)type_bits(a->type) / 8;
    a->bytes = a->value_size * a->count;

    int bits, at = returns;
    if (returns)
        take_values(d, 0, type, a->count, a->d, 1);
    else
        for (uint32_t i = 0; i < a->count; i++) a->d[i] = NO_SLOT;
    in->s[0] = source_address(d, at, &in->offset, &bits);
    a->wide = bits == 64;
    take_values(d, at + 1, type, a->count, a->b, 0);
    if (a->kind == ATOMIC_COMPARE)
        take_values(d, at + 2, type, 1, &a->c, 0);
    else if (take(d, "L2::cache_hint"))
        source(d, at + 2, TYPE_B64);
    in->type = type;
    in->extra = a;
    in->run = returns ? run_atom : run_red;
    return 1;
}

const opcode_entry atomic_opcodes[] = {
    {"atom", decode_atomic},
    {"red", decode_atomic},
    {0},
};
