/* Tensor copies (PTX ISA 9.7.9.25.5): cp.async.bulk.tensor, cp.reduce.async.bulk.tensor,
 * cp.async.bulk.prefetch.tensor.
 *
 * A box moves row by row in an order drawn from the seed; a row is its extent in dimension 0. Rows lie in shared
 * memory without gaps; the swizzle then moves 16-byte units. Elements outside the tensor are filled by a load and
 * dropped by a store, except those in the same 16 bytes as the tensor's end. The mbarrier counts the bytes of the
 * full box. im2col modes and interleaved maps are rejected. */
#include <math.h>
#include <stdlib.h>

#include "async/bulk.h"
#include "async/tensor_map.h"
#include "scalar/formats.h"

enum {
    SHARED_ALIGN = 128,
    ROW_MAX = 256 * 8, /* bytes */
    PADDED_ROW = 128,  /* bytes in shared memory of 128 elements with padding */
    GATHERED_ROWS = 4
};

typedef struct {
    address_operand map, shared, barrier;
    uint32_t coordinates[TENSOR_RANK_MAX]; /* slots */
    int rank, rows_by_name;                /* rows_by_name: gather4, scatter4 */
    uint32_t mask;                         /* slot, NO_SLOT: no multicast */
    int pair;                              /* .cta_group::2 */
    reduction reduction;
} tensor_operands;

/* A box of a tensor: where its rows are. */
typedef struct {
    tensor_map map;
    tensor_swizzle swizzle;
    int bits; /* of an element */
    int64_t at[TENSOR_RANK_MAX];
    int64_t named_rows[GATHERED_ROWS];
    int rows_by_name;
    uint32_t count[TENSOR_RANK_MAX]; /* elements that are moved along each dimension */
    uint32_t rows;
    uint32_t row_bytes;    /* in global memory: the bytes that the mbarrier counts */
    uint32_t shared_bytes; /* of a row in shared memory */
    uint32_t pitch;        /* from row to row in shared memory */
    int64_t first, end;    /* the elements of a row that are inside of the tensor, from its start */
    int64_t stored;        /* the end of those that a store or reduction writes */
} tensor_box;

/* ---- boxes ---- */

static void read_map(warp *w, const instr *in, uint32_t lane, tensor_map *map) {
    const tensor_operands *o = in->extra;
    uint64_t address = address_value(w, &o->map, lane);
    if (address & WINDOW_MASK)
        fault(
            w, in, (int)lane,
            "the tensor map is at 0x%llx, in shared or local memory; it must be a parameter, or in constant or global "
            "memory",
            (unsigned long long)address);
    memcpy(map, thread_read(w, in, (int)lane, SPACE_NONE, address, TENSOR_MAP_BYTES, TENSOR_MAP_ALIGN), sizeof *map);
    char error[256];
    if (tensor_map_check(map, machine_of(w)->device, error, sizeof error))
        fault(w, in, (int)lane, "the tensor map at 0x%llx: %s", (unsigned long long)address, error);
}

static int64_t min_of(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t max_of(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* The address of a row's first element, or 0 if the row is outside of the tensor. */
static uint64_t row_address(const tensor_box *b, uint32_t row) {
    uint64_t address = b->map.address;
    for (int i = 1; i < b->map.rank; i++) {
        int64_t at =
            b->rows_by_name ? b->named_rows[row] : b->at[i] + (int64_t)(row % b->count[i]) * b->map.element_strides[i];
        row /= b->count[i];
        if (at < 0 || at > (int64_t)b->map.last[i]) return 0;
        address += (uint64_t)at * b->map.strides[i - 1];
    }
    return address + (uint64_t)(b->at[0] * b->bits / 8);
}

static void take_coordinates(warp *w, const instr *in, uint32_t lane, tensor_box *b) {
    const tensor_operands *o = in->extra;
    int count = o->rows_by_name ? 1 + GATHERED_ROWS : o->rank;
    for (int i = 0; i < count; i++) {
        int64_t at = (int32_t)r32(w, o->coordinates[i])[lane];
        if (i && o->rows_by_name)
            b->named_rows[i - 1] = at;
        else
            b->at[i] = at;
    }
    /* Coordinates count elements, but an H200 takes rows from 16-byte boundaries only; padded types, from 128 elements.
     */
    int64_t unit = b->map.type > TENSOR_B4 ? 128 : 128 / b->bits;
    if (b->at[0] % unit)
        fault(w, in, (int)lane, "the first coordinate is %lld; with elements of %d bits it must be a multiple of %lld",
              (long long)b->at[0], b->bits, (long long)unit);
}

static void reject_negative(warp *w, const instr *in, uint32_t lane, const tensor_box *b) {
    for (int i = 0; i < (b->rows_by_name ? 1 : b->map.rank); i++)
        if (b->at[i] < 0)
            fault(w, in, (int)lane,
                  "coordinate %d is %lld: loads may start before the tensor, stores and reductions may not (an H200 "
                  "takes it for an illegal instruction)",
                  i, (long long)b->at[i]);
}

/* The box that a lane's instruction names; what it touches of global memory is checked. */
static tensor_box box_of(warp *w, const instr *in, uint32_t lane) {
    const tensor_operands *o = in->extra;
    tensor_box b = {.rows = 1, .rows_by_name = o->rows_by_name};
    read_map(w, in, lane, &b.map);
    if (b.map.rank != o->rank)
        fault(w, in, (int)lane, "the instruction has %d dimensions and the tensor map %u", o->rank, b.map.rank);
    if (!b.map.address) fault(w, in, (int)lane, "the tensor map's address is 0");
    if (b.map.interleave)
        fault(w, in, (int)lane, "the tensor map is interleaved (%u), which is not emulated", b.map.interleave);
    b.swizzle = tensor_map_swizzle(&b.map);
    b.bits = tensor_element_bits((tensor_type)b.map.type);
    take_coordinates(w, in, lane, &b);
    b.count[0] = b.map.box[0]; /* a stride of dimension 0 counts in interleaved layouts only */
    for (int i = 1; i < o->rank; i++)
        b.count[i] = (b.map.box[i] + b.map.element_strides[i] - 1u) / b.map.element_strides[i];
    if (o->rows_by_name) {
        if (b.map.box[1] != 1)
            fault(w, in, (int)lane, "box dimension 1 is %u; with four rows by name it must be 1", b.map.box[1]);
        b.count[1] = GATHERED_ROWS;
    }
    for (int i = 1; i < o->rank; i++) b.rows *= b.count[i];
    b.row_bytes = b.map.box[0] * (uint32_t)b.bits / 8;
    b.shared_bytes = b.map.type > TENSOR_B4 ? PADDED_ROW : b.row_bytes;
    b.pitch = b.swizzle == SWIZZLE_NONE ? b.shared_bytes : swizzle_span(b.swizzle);
    b.first = min_of(max_of(0, -b.at[0]), b.map.box[0]);
    b.end = max_of(b.first, min_of(b.map.box[0], (int64_t)b.map.last[0] + 1 - b.at[0]));
    /* An H200 clips what it writes by 16 bytes, not by elements. */
    int64_t unit = b.map.type > TENSOR_B4 ? 1 : 128 / b.bits;
    b.stored = (b.end + unit - 1) / unit * unit;
    uint64_t low = UINT64_MAX, high = 0;
    for (uint32_t row = 0; b.end > b.first && row < b.rows; row++) {
        uint64_t address = row_address(&b, row);
        if (!address) continue;
        low = address < low ? address : low;
        high = address > high ? address : high;
    }
    if (low <= high)
        check_global(w, in, low + (uint64_t)(b.first * b.bits / 8),
                     high - low + (uint64_t)((b.end - b.first) * b.bits / 8), 1, "the box of the tensor");
    return b;
}

/* Bytes of shared memory that the box needs room for. */
static uint32_t box_bytes(const tensor_box *b) {
    return b->rows * b->pitch;
}

/* A row between `data` and shared memory, unit by unit. */
static void move_row(const tensor_box *b, cta *c, uint32_t at, uint32_t row, uint8_t *data, int write) {
    uint32_t unit = b->swizzle == SWIZZLE_NONE ? b->shared_bytes : b->swizzle == SWIZZLE_128B_ATOM_32B_FLIP_8B ? 8 : 16;
    for (uint32_t i = 0; i < b->shared_bytes; i += unit) {
        uint32_t where = swizzle_address(at + row * b->pitch + i, b->swizzle);
        if (write)
            async_write_shared(c, where, data + i, unit);
        else
            async_read_shared(c, where, data + i, unit);
    }
}

/* ---- elements ---- */

/* The fill of elements outside the tensor. The NaN is 0x7ff7 in every 16 bits, for every type (measured). */
static void fill_row(const tensor_box *b, uint8_t *row) {
    for (uint32_t i = 0; i < b->row_bytes; i++) row[i] = !b->map.fill_nan ? 0 : i & 1 ? 0x7f : 0xf7;
}

/* Rounds to tf32; both tf32 types and f32.ftz keep subnormals (measured). */
static void convert_row(const tensor_box *b, uint8_t *row) {
    if (b->map.type != TENSOR_TF32 && b->map.type != TENSOR_TF32_FTZ) return;
    for (int64_t i = b->first; i < b->end; i++) {
        float x;
        memcpy(&x, row + i * 4, sizeof x);
        uint32_t bits = isnan(x) ? 0x7fffe000 : tf32_from_float(x, ROUND_RN, 0);
        memcpy(row + i * 4, &bits, sizeof bits);
    }
}

/* Adds the padding behind groups of 16 elements. */
static void pad_row(const tensor_box *b, const uint8_t *packed, uint8_t *padded) {
    uint32_t group = 16 * (uint32_t)b->bits / 8;
    memset(padded, POISON_BYTE, PADDED_ROW);
    for (uint32_t i = 0; i < PADDED_ROW / 16; i++) memcpy(padded + 16 * i, packed + group * i, group);
}

/* Stores of 6-bit elements, one a byte, drop the two bits above. */
static void pack_row(const uint8_t *bytes, uint8_t *packed) {
    memset(packed, 0, PADDED_ROW * 6 / 8);
    for (uint32_t i = 0; i < PADDED_ROW; i++) {
        uint32_t bit = 6 * i, value = bytes[i] & 63u;
        packed[bit / 8] |= (uint8_t)(value << bit % 8);
        if (bit % 8 > 2) packed[bit / 8 + 1] |= (uint8_t)(value >> (8 - bit % 8));
    }
}

/* ---- loads ---- */

typedef struct {
    shared_load load;
    tensor_box box;
} tensor_load;

static uint32_t load_row(shared_load *l, uint32_t row) {
    const tensor_box *b = &((tensor_load *)l)->box;
    uint8_t data[ROW_MAX], padded[PADDED_ROW];
    uint64_t address = row_address(b, row);
    if (!address || b->first > 0 || b->end < b->map.box[0]) fill_row(b, data);
    if (address && b->end > b->first) {
        int64_t skipped = b->first * b->bits / 8;
        async_read_global(l->op.from, address + (uint64_t)skipped, data + skipped,
                          (uint32_t)((b->end - b->first) * b->bits / 8));
        convert_row(b, data);
    }
    if (b->map.type > TENSOR_B4) pad_row(b, data, padded);
    move_row(b, l->to, l->at, row, b->map.type > TENSOR_B4 ? padded : data, 1);
    return b->row_bytes;
}

static run_result run_tensor_load(warp *w, const instr *in, uint32_t lanes) {
    const tensor_operands *o = in->extra;
    FOR_LANES(lane, lanes) {
        tensor_box box = box_of(w, in, lane);
        load_target targets[16];
        int count = load_targets(w, in, lane, &o->shared, &o->barrier, o->mask, o->pair, box_bytes(&box), SHARED_ALIGN,
                                 targets);
        for (int i = 0; i < count; i++) {
            tensor_load *l = calloc(1, sizeof *l);
            if (!l) abort();
            l->box = box;
            l->load.unit = load_row;
            l->load.op.bytes = box.rows * box.row_bytes;
            l->load.op.what = "tensor load";
            w->cta->traffic[TRAFFIC_TMA_READ] += l->load.op.bytes;
            if (i > 0) w->cta->traffic[TRAFFIC_MULTICAST] += l->load.op.bytes;
            load_start(&l->load, &targets[i], NULL, w, in, box.rows);
        }
    }
    return RUN_NEXT;
}

/* ---- stores ---- */

typedef struct {
    global_store store;
    tensor_box box;
    uint32_t from;
    reduction reduction;
    ptx_type type; /* for the reduction */
    uint8_t data[];
} tensor_store;

static void store_read_row(global_store *s, uint32_t row) {
    tensor_store *t = (tensor_store *)s;
    move_row(&t->box, s->op.from, t->from, row, t->data + row * t->box.shared_bytes, 0);
}

/* How much of a row is written. Past the tensor's end it stays inside the allocation: on a GPU the bytes behind it are
 * padding that no program sees. */
static uint32_t stored_bytes(const tensor_box *b, uint64_t address) {
    uint32_t inside = (uint32_t)(b->end * b->bits / 8), all = (uint32_t)(b->stored * b->bits / 8);
    uint64_t start, bytes;
    if (all == inside) return all;
    if (!device_range(address, &start, &bytes)) return inside;
    uint64_t left = start + bytes - address, element = b->bits < 8 ? 1 : (uint64_t)b->bits / 8;
    return left < all ? (uint32_t)(left / element * element) : all;
}

static void store_write_row(global_store *s, uint32_t row) {
    const tensor_store *t = (tensor_store *)s;
    const tensor_box *b = &t->box;
    grid *g = s->op.from->grid;
    uint64_t address = row_address(b, row);
    if (!address || b->end <= b->first) return;
    const uint8_t *data = t->data + row * b->shared_bytes;
    uint8_t packed[PADDED_ROW], old[ROW_MAX];
    if (b->map.type > TENSOR_B4) {
        pack_row(data, packed);
        data = packed;
    }
    uint32_t bytes = stored_bytes(b, address);
    if (t->reduction != REDUCE_NONE) {
        async_read_global(s->op.from, address, old, bytes);
        for (uint32_t i = 0; i < bytes; i += (uint32_t)b->bits / 8)
            if (b->map.type == TENSOR_F32_FTZ) /* the only type that flushes subnormals (H200) */
                add_f32(old + i, data + i, 1);
            else
                reduce(t->reduction, t->type, old + i, data + i);
        data = old;
    }
    async_write_global(g, address, data, bytes);
}

static ptx_type reduction_type(warp *w, const instr *in, uint32_t lane, const tensor_map *map) {
    reduction r = ((const tensor_operands *)in->extra)->reduction;
    int bits = tensor_element_bits((tensor_type)map->type);
    ptx_type type = r < REDUCE_AND ? tensor_ptx_type((tensor_type)map->type)
                    : bits == 32   ? TYPE_B32
                    : bits == 64   ? TYPE_B64
                                   : TYPE_NONE;
    if (!reduction_exists(r, type))
        fault(w, in, (int)lane,
              "the tensor map's elements have type %u (%d bits), for which this reduction does not exist", map->type,
              bits);
    return type;
}

static run_result run_tensor_store(warp *w, const instr *in, uint32_t lanes) {
    const tensor_operands *o = in->extra;
    FOR_LANES(lane, lanes) {
        tensor_box box = box_of(w, in, lane);
        reject_negative(w, in, lane, &box);
        uint32_t from;
        shared_operand(w, in, lane, &o->shared, &from, "the source");
        check_shared(w, in, w->cta, from, box_bytes(&box), SHARED_ALIGN, "the source");
        if (box.map.type == TENSOR_B4_P64)
            fault(w, in, (int)lane, "the tensor map's elements have 4 bits with padding, which cannot be stored");
        if (box.swizzle == SWIZZLE_128B_ATOM_32B_FLIP_8B)
            fault(w, in, (int)lane, "the tensor map's swizzle, 32-byte atoms with an 8-byte flip, is for loads only");
        ptx_type type = o->reduction == REDUCE_NONE ? TYPE_NONE : reduction_type(w, in, lane, &box.map);
        tensor_store *t = calloc(1, sizeof *t + box.rows * box.shared_bytes);
        if (!t) abort();
        t->box = box;
        t->from = from;
        t->reduction = o->reduction;
        t->type = type;
        t->store.read = store_read_row;
        t->store.write = store_write_row;
        t->store.op.bytes = box.rows * box.row_bytes;
        t->store.op.what = o->reduction == REDUCE_NONE ? "tensor store" : "tensor reduction";
        w->cta->traffic[TRAFFIC_TMA_WRITE] += t->store.op.bytes;
        store_start(&t->store, w, in, lane, box.rows);
    }
    return RUN_NEXT;
}

/* Only a hint, but its operands are checked as those of a copy. */
static run_result run_tensor_prefetch(warp *w, const instr *in, uint32_t lanes) {
    FOR_LANES(lane, lanes) box_of(w, in, lane);
    return RUN_NEXT;
}

/* ---- decoding ---- */

/* [map, {coordinates}] */
static void take_tensor(decoder *d, tensor_operands *o, int index) {
    const operand *at = operand_at(d, index);
    o->map = take_address(d, index, SPACE_NONE);
    if (at->count != 2 || at->items[1].kind != OPERAND_VECTOR) reject(d, "the tensor needs a vector of coordinates");
    int count = o->rows_by_name ? 1 + GATHERED_ROWS : o->rank;
    if (at->items[1].count != count)
        reject(d, "%d coordinates are written, and %d are needed", at->items[1].count, count);
    for (int i = 0; i < count; i++) o->coordinates[i] = source_of(d, &at->items[1].items[i], TYPE_S32);
}

/* .1d .. .5d and the load mode. */
static void take_shape(decoder *d, tensor_operands *o, const char *rows_mode) {
    static const char *const dimensions[] = {"1d", "2d", "3d", "4d", "5d", NULL};
    static const char *const im2col[] = {"im2col", "im2col::w", "im2col::w::128", "im2col_no_offs", NULL};
    o->rank = 1 + take_one_of(d, dimensions);
    if (!o->rank) reject(d, "the number of dimensions is missing");
    if (take_one_of(d, im2col) >= 0) reject(d, "the im2col modes are not emulated");
    o->rows_by_name = rows_mode && take(d, rows_mode);
    if (o->rows_by_name && o->rank != 2) reject(d, ".%s is for two dimensions", rows_mode);
    if (!o->rows_by_name) take(d, "tile");
}

/* [dst], [map, {coordinates}], [mbar] {, mask} {, policy} */
static void decode_tensor_load(decoder *d, tensor_operands *o, ptx_space to) {
    take_shape(d, o, "tile::gather4");
    need(d, "mbarrier::complete_tx::bytes");
    int multicast = to == SPACE_SHARED_CLUSTER && take(d, "multicast::cluster");
    o->pair = take(d, "cta_group::2");
    if (!o->pair) take(d, "cta_group::1");
    int hint = take(d, "L2::cache_hint");
    o->shared = take_address(d, 0, to);
    take_tensor(d, o, 1);
    /* With .cta_group::2 the mbarrier may be the one of the other CTA, whatever the destination's space. */
    o->barrier = take_address(d, 2, o->pair ? SPACE_SHARED_CLUSTER : to);
    if (multicast) o->mask = source(d, 3, TYPE_B16);
    if (hint) source(d, 3 + multicast, TYPE_B64);
    d->in->run = run_tensor_load;
}

/* [map, {coordinates}], [src] {, policy} */
static void decode_tensor_store(decoder *d, tensor_operands *o) {
    take_shape(d, o, o->reduction == REDUCE_NONE ? "tile::scatter4" : NULL);
    need(d, "bulk_group");
    int hint = take(d, "L2::cache_hint");
    take_tensor(d, o, 0);
    o->shared = take_address(d, 1, SPACE_SHARED);
    if (hint) source(d, 2, TYPE_B64);
    d->in->run = run_tensor_store;
}

static int decode_tensor_copy(decoder *d) {
    if (!has_modifier(d, "tensor") || !has_modifier(d, "bulk")) return 0;
    int reduces = take(d, "reduce");
    need(d, "async");
    need(d, "bulk");
    int prefetches = !reduces && take(d, "prefetch");
    need(d, "tensor");
    tensor_operands *o = decode_alloc(d, sizeof *o);
    o->mask = NO_SLOT;
    d->in->extra = o;
    if (prefetches) {
        take_shape(d, o, "tile::gather4");
        need(d, "L2");
        need(d, "global");
        int hint = take(d, "L2::cache_hint");
        take_tensor(d, o, 0);
        if (hint) source(d, 1, TYPE_B64);
        d->in->run = run_tensor_prefetch;
        return 1;
    }
    ptx_space to = take_space(d), from = take_space(d);
    if (reduces) {
        o->reduction = take_reduction(d);
        if (o->reduction == REDUCE_NONE) reject(d, "the reduction is missing");
    }
    if (to == SPACE_GLOBAL && from == SPACE_SHARED)
        decode_tensor_store(d, o);
    else if (!reduces && (to == SPACE_SHARED || to == SPACE_SHARED_CLUSTER) && from == SPACE_GLOBAL)
        decode_tensor_load(d, o, to);
    else
        reject(d, "tensor copies go from .global to .shared::cta or .shared::cluster, or from .shared::cta to .global");
    return 1;
}

const opcode_entry tma_opcodes[] = {{"cp", decode_tensor_copy}, {"tensormap", decode_tensormap}, {0}};
