/* Tensor maps: the arguments that cuTensorMapEncodeTiled accepts (CUDA driver API; PTX ISA 5.5 and 9.7.9.25.5.1),
 * swizzles (5.5.7), tensormap.replace (9.7.9.26) and tensormap.cp_fenceproxy (9.7.13.16). */
#include "async/tensor_map.h"
#include "async/async.h"

static const uint64_t magic = 0x70616d726f736e74; /* "tnsormap" */

static const struct {
    const char *name;
    int bits;
    ptx_type type;
    int is_float;
} types[TENSOR_TYPE_COUNT] = {
    [TENSOR_U8] = {"u8", 8, TYPE_U8, 0},
    [TENSOR_U16] = {"u16", 16, TYPE_U16, 0},
    [TENSOR_U32] = {"u32", 32, TYPE_U32, 0},
    [TENSOR_S32] = {"s32", 32, TYPE_S32, 0},
    [TENSOR_U64] = {"u64", 64, TYPE_U64, 0},
    [TENSOR_S64] = {"s64", 64, TYPE_S64, 0},
    [TENSOR_F16] = {"f16", 16, TYPE_F16, 1},
    [TENSOR_F32] = {"f32", 32, TYPE_F32, 1},
    [TENSOR_F64] = {"f64", 64, TYPE_F64, 1},
    [TENSOR_BF16] = {"bf16", 16, TYPE_BF16, 1},
    [TENSOR_F32_FTZ] = {"f32.ftz", 32, TYPE_F32, 1},
    [TENSOR_TF32] = {"tf32", 32, TYPE_TF32, 1},
    [TENSOR_TF32_FTZ] = {"tf32.ftz", 32, TYPE_TF32, 1},
    [TENSOR_B4] = {"16 x 4 bits", 4, TYPE_NONE, 0},
    [TENSOR_B4_P64] = {"16 x 4 bits and 64 of padding", 4, TYPE_NONE, 0},
    [TENSOR_B6_P32] = {"16 x 6 bits and 32 of padding", 6, TYPE_NONE, 0},
};

int tensor_element_bits(tensor_type type) {
    return types[type].bits;
}

ptx_type tensor_ptx_type(tensor_type type) {
    return types[type].type;
}

/* ---- swizzles ---- */

uint32_t swizzle_address(uint32_t address, int mode) {
    switch ((tensor_swizzle)mode) {
    case SWIZZLE_NONE:
        break;
    case SWIZZLE_32B:
    case SWIZZLE_96B:
        return address ^ (address >> 7 & 1) << 4;
    case SWIZZLE_64B:
        return address ^ (address >> 7 & 3) << 4;
    case SWIZZLE_128B:
        return address ^ (address >> 7 & 7) << 4;
    case SWIZZLE_128B_ATOM_32B:
        return address ^ (address >> 7 & 3) << 5;
    case SWIZZLE_128B_ATOM_32B_FLIP_8B: /* the ISA does not say which of two lines is flipped; here the odd one */
        return address ^ (address >> 7 & 3) << 5 ^ (address >> 7 & 1) << 3;
    case SWIZZLE_128B_ATOM_64B:
        return address ^ (address >> 7 & 1) << 6;
    }
    return address;
}

/* tensormap.replace keeps the span and the atomicity apart. -1: there is no such combination. */
static int swizzle_of(int mode, int atom) {
    static const tensor_swizzle by_mode[] = {SWIZZLE_NONE, SWIZZLE_32B, SWIZZLE_64B, SWIZZLE_128B, SWIZZLE_96B};
    static const tensor_swizzle by_atom[] = {SWIZZLE_128B, SWIZZLE_128B_ATOM_32B, SWIZZLE_128B_ATOM_32B_FLIP_8B,
                                             SWIZZLE_128B_ATOM_64B};
    if (mode > 4 || atom > 3 || (atom && mode != 3)) return -1;
    return mode == 3 ? (int)by_atom[atom] : (int)by_mode[mode];
}

tensor_swizzle tensor_map_swizzle(const tensor_map *map) {
    return (tensor_swizzle)swizzle_of(map->swizzle_mode, map->swizzle_atom);
}

uint32_t swizzle_span(tensor_swizzle swizzle) {
    switch (swizzle) {
    case SWIZZLE_NONE:
        return UINT32_MAX;
    case SWIZZLE_32B:
        return 32;
    case SWIZZLE_64B:
        return 64;
    case SWIZZLE_96B:
        return 96;
    default:
        return 128;
    }
}

/* ---- rules ---- */

#define BREAKS(...)                                                                                                    \
    do {                                                                                                               \
        snprintf(error, size, __VA_ARGS__);                                                                            \
        return -1;                                                                                                     \
    } while (0)

static int check_device(const tensor_map *map, const device *d, char *error, size_t size) {
    if (d->cc < 90) BREAKS("tensor maps need compute capability 9.0; this device has %d.%d", d->cc / 10, d->cc % 10);
    if (d->cc < 100 && map->type >= TENSOR_B4)
        BREAKS("the element type is %d (%s); compute capability %d.%d has no 4-bit and 6-bit types", map->type,
               types[map->type].name, d->cc / 10, d->cc % 10);
    if (d->cc < 100 && map->swizzle_atom)
        BREAKS("a swizzle with atoms of more than 16 bytes; compute capability %d.%d has none", d->cc / 10, d->cc % 10);
    if (map->swizzle_mode == 4 && d->cc != 103) BREAKS("the 96-byte swizzle exists on sm_103 only");
    return 0;
}

/* Types whose groups of 16 elements are padded in shared memory. */
static int check_padded(const tensor_map *map, char *error, size_t size) {
    tensor_swizzle swizzle = tensor_map_swizzle(map);
    const char *name = types[map->type].name;
    if (map->address % 32)
        BREAKS("the address 0x%llx must be a multiple of 32 for type %s", (unsigned long long)map->address, name);
    for (int i = 0; i + 1 < map->rank; i++)
        if (map->strides[i] % 32)
            BREAKS("stride %d is %llu bytes, which must be a multiple of 32 for type %s", i,
                   (unsigned long long)map->strides[i], name);
    if (((uint64_t)map->last[0] + 1) % 128)
        BREAKS("dimension 0 has %llu elements, which must be a multiple of 128 for type %s",
               (unsigned long long)map->last[0] + 1, name);
    if (map->box[0] != 128) BREAKS("box dimension 0 is %u, which must be 128 for type %s", map->box[0], name);
    if (swizzle != SWIZZLE_NONE && swizzle != SWIZZLE_128B && swizzle != SWIZZLE_128B_ATOM_32B &&
        !(swizzle == SWIZZLE_128B_ATOM_64B && map->type == TENSOR_B6_P32))
        BREAKS("swizzle %d does not go with type %s", swizzle, name);
    return 0;
}

static int check_box(const tensor_map *map, const device *d, char *error, size_t size) {
    tensor_swizzle swizzle = tensor_map_swizzle(map);
    for (int i = 0; i < map->rank; i++) {
        if (map->box[i] < 1 || map->box[i] > 256) BREAKS("box dimension %d is %u; it must be 1 to 256", i, map->box[i]);
        if (map->element_strides[i] < 1 || map->element_strides[i] > 8)
            BREAKS("element stride %d is %u; it must be 1 to 8", i, map->element_strides[i]);
    }
    if (map->type == TENSOR_B4_P64 || map->type == TENSOR_B6_P32) return check_padded(map, error, size);
    uint64_t bits = (uint64_t)types[map->type].bits;
    int steps = 0;
    for (int i = 0; i < map->rank; i++) {
        bits *= map->box[i];
        steps |= map->element_strides[i] != 1;
    }
    /* Not documented; an H200's driver does this for boxes without element strides only. */
    if (!steps && bits / 8 > (uint64_t)d->shared_per_sm)
        BREAKS("the box has %llu bytes, more than the %d of shared memory", (unsigned long long)bits / 8,
               d->shared_per_sm);
    if (map->interleave) return 0; /* the inner dimension is 16 or 32 bytes of channels, whatever the box says */
    uint32_t inner = map->box[0] * (uint32_t)types[map->type].bits;
    if (inner % 128)
        BREAKS("box dimension 0 is %u elements of %d bits; that must be a multiple of 16 bytes", map->box[0],
               types[map->type].bits);
    if (inner / 8 > swizzle_span(swizzle))
        BREAKS("box dimension 0 is %u bytes; with this swizzle it can be at most %u", inner / 8, swizzle_span(swizzle));
    return 0;
}

/* NC/8HWC8 and NC/16HWC16. Such maps can be encoded; tma.c rejects copies that use them. */
static int check_interleaved(const tensor_map *map, char *error, size_t size) {
    uint64_t unit = map->interleave == 1 ? 16 : 32;
    if (map->interleave > 2) BREAKS("the interleave mode is %u; there are 0 to 2", map->interleave);
    if (map->rank < 3) BREAKS("the rank is %u; an interleaved tensor has 3 at least", map->rank);
    if (map->type > TENSOR_B4) BREAKS("type %s cannot be interleaved", types[map->type].name);
    /* 32 requires the 32-byte swizzle by the documentation; an H200's driver also accepts no swizzle. */
    if (unit == 32 && (map->swizzle_mode > 1 || map->swizzle_atom))
        BREAKS("32-byte interleave goes with the 32-byte swizzle only");
    if (map->address % unit)
        BREAKS("the address 0x%llx must be a multiple of %llu", (unsigned long long)map->address,
               (unsigned long long)unit);
    for (int i = 0; i + 1 < map->rank; i++)
        if (map->strides[i] % unit)
            BREAKS("stride %d is %llu bytes, which must be a multiple of %llu", i, (unsigned long long)map->strides[i],
                   (unsigned long long)unit);
    return 0;
}

int tensor_map_check(const tensor_map *map, const device *d, char *error, size_t size) {
    if (map->magic != magic) BREAKS("these 128 bytes are no tensor map");
    if (map->type >= TENSOR_TYPE_COUNT) BREAKS("the element type is %d; there are 0 to 15", map->type);
    if (map->rank < 1 || map->rank > TENSOR_RANK_MAX) BREAKS("the rank is %u; it must be 1 to 5", map->rank);
    if (swizzle_of(map->swizzle_mode, map->swizzle_atom) < 0)
        BREAKS("swizzle mode %u does not go with atomicity %u", map->swizzle_mode, map->swizzle_atom);
    if (check_device(map, d, error, size)) return -1;
    if (map->interleave && check_interleaved(map, error, size)) return -1;
    if (map->address % 16) BREAKS("the address 0x%llx must be a multiple of 16", (unsigned long long)map->address);
    if (map->type == TENSOR_B4 && !(map->last[0] & 1))
        BREAKS("dimension 0 has %llu elements of 4 bits, which must be even", (unsigned long long)map->last[0] + 1);
    for (int i = 0; i + 1 < map->rank; i++)
        if (map->strides[i] % 16 || map->strides[i] >> 40)
            BREAKS("stride %d is %llu bytes; it must be a multiple of 16 and less than 2^40", i,
                   (unsigned long long)map->strides[i]);
    if (map->fill_nan > 1) BREAKS("the fill mode is %u; there are 0 and 1", map->fill_nan);
    if (map->fill_nan && !types[map->type].is_float)
        BREAKS("NaN as fill needs a floating-point type, and the type is %s", types[map->type].name);
    if (map->l2 > 3) BREAKS("the L2 promotion is %u; there are 0 to 3", map->l2);
    return check_box(map, d, error, size);
}

/* ---- the driver API ---- */

int tensor_map_encode_tiled(void *out, int type, uint32_t rank, void *address, const uint64_t *dims,
                            const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                            int interleave, int swizzle, int l2, int fill, const device *d, char *error, size_t size) {
    static const uint8_t modes[][2] = {{0, 0}, {1, 0}, {2, 0}, {3, 0}, {3, 1}, {3, 2}, {3, 3}};
    if (!out || !dims || !box || !element_strides) BREAKS("an argument is NULL");
    if ((uintptr_t)out % TENSOR_MAP_ALIGN) BREAKS("the map is at %p, which must be a multiple of 64", out);
    if (type < 0 || type >= TENSOR_TYPE_COUNT) BREAKS("the element type is %d; there are 0 to 15", type);
    if (rank < 1 || rank > TENSOR_RANK_MAX) BREAKS("the rank is %u; it must be 1 to 5", rank);
    if (rank > 1 && !strides) BREAKS("an argument is NULL");
    if (interleave < 0 || interleave > 2) BREAKS("the interleave mode is %d; there are 0 to 2", interleave);
    if (swizzle < 0 || swizzle > SWIZZLE_128B_ATOM_64B) BREAKS("the swizzle is %d; there are 0 to 6", swizzle);
    if (l2 < 0 || l2 > 3) BREAKS("the L2 promotion is %d; there are 0 to 3", l2);
    if (fill < 0 || fill > 1) BREAKS("the fill mode is %d; there are 0 and 1", fill);
    tensor_map map = {.magic = magic,
                      .address = (uintptr_t)address,
                      .type = (uint8_t)type,
                      .rank = (uint8_t)rank,
                      .interleave = (uint8_t)interleave,
                      .fill_nan = (uint8_t)fill,
                      .l2 = (uint8_t)l2,
                      .swizzle_mode = modes[swizzle][0],
                      .swizzle_atom = modes[swizzle][1]};
    for (uint32_t i = 0; i < rank; i++) {
        if (!dims[i] || dims[i] > (uint64_t)1 << 32)
            BREAKS("dimension %u has %llu elements; it must be 1 to 2^32", i, (unsigned long long)dims[i]);
        if (!box[i] || box[i] > 256) BREAKS("box dimension %u is %u; it must be 1 to 256", i, box[i]);
        uint32_t step = element_strides[i];
        if (!step || step > 8) BREAKS("element stride %u is %u; it must be 1 to 8", i, step);
        map.last[i] = (uint32_t)(dims[i] - 1);
        map.box[i] = (uint16_t)box[i];
        map.element_strides[i] = (uint8_t)step;
        if (i) map.strides[i - 1] = strides[i - 1];
    }
    if (tensor_map_check(&map, d, error, size)) return -1;
    memcpy(out, &map, sizeof map);
    return 0;
}

int tensor_map_reject_im2col(char *error, size_t size) {
    BREAKS("im2col tensor maps are not emulated");
}

int tensor_map_replace_address(void *at, void *address, const device *d, char *error, size_t size) {
    tensor_map map;
    if (!at) BREAKS("an argument is NULL");
    memcpy(&map, at, sizeof map);
    map.address = (uintptr_t)address;
    if (tensor_map_check(&map, d, error, size)) return -1;
    memcpy(at, &map, sizeof map);
    return 0;
}

/* ---- tensormap.replace, tensormap.cp_fenceproxy ---- */

typedef enum {
    FIELD_GLOBAL_ADDRESS,
    FIELD_RANK,
    FIELD_BOX_DIM,
    FIELD_GLOBAL_DIM,
    FIELD_GLOBAL_STRIDE,
    FIELD_ELEMENT_STRIDE,
    FIELD_ELEMTYPE,
    FIELD_INTERLEAVE_LAYOUT,
    FIELD_SWIZZLE_MODE,
    FIELD_SWIZZLE_ATOMICITY,
    FIELD_FILL_MODE
} map_field;

typedef struct {
    address_operand map, from;
    map_field field;
    int ordinal;
} map_operands;

/* The element types of tensormap.replace are numbered in their own way. */
static const uint8_t type_of_code[16] = {
    TENSOR_U8,      TENSOR_U16, TENSOR_U32,  TENSOR_S32,  TENSOR_U64,      TENSOR_S64, TENSOR_F16,    TENSOR_F32,
    TENSOR_F32_FTZ, TENSOR_F64, TENSOR_BF16, TENSOR_TF32, TENSOR_TF32_FTZ, TENSOR_B4,  TENSOR_B4_P64, TENSOR_B6_P32};

static void replace_field(tensor_map *map, map_field field, int i, uint64_t value) {
    switch (field) {
    case FIELD_GLOBAL_ADDRESS:
        map->address = value;
        break;
    case FIELD_RANK:
        map->rank = value < UINT8_MAX ? (uint8_t)(value + 1) : 0;
        break;
    case FIELD_BOX_DIM:
        map->box[i] = value <= UINT16_MAX ? (uint16_t)value : 0;
        break;
    case FIELD_GLOBAL_DIM:
        map->last[i] = (uint32_t)value - 1;
        break;
    case FIELD_GLOBAL_STRIDE:
        map->strides[i] = value;
        break;
    case FIELD_ELEMENT_STRIDE:
        map->element_strides[i] = value <= UINT8_MAX ? (uint8_t)value : 0;
        break;
    case FIELD_ELEMTYPE:
        map->type = type_of_code[value];
        break;
    case FIELD_INTERLEAVE_LAYOUT:
        map->interleave = (uint8_t)value;
        break;
    case FIELD_SWIZZLE_MODE:
        map->swizzle_mode = (uint8_t)value;
        break;
    case FIELD_SWIZZLE_ATOMICITY:
        map->swizzle_atom = (uint8_t)value;
        break;
    case FIELD_FILL_MODE:
        map->fill_nan = (uint8_t)value;
        break;
    }
}

static run_result run_replace(warp *w, const instr *in, uint32_t lanes) {
    const map_operands *o = in->extra;
    FOR_LANES(lane, lanes) {
        uint64_t address = address_value(w, &o->map, lane);
        tensor_map map;
        memcpy(&map, thread_read(w, in, (int)lane, o->map.space, address, sizeof map, TENSOR_MAP_ALIGN), sizeof map);
        if (map.magic != magic)
            fault(w, in, (int)lane, "the 128 bytes at 0x%llx are no tensor map", (unsigned long long)address);
        uint64_t value = in->type == TYPE_B64 ? r64(w, in->s[0])[lane] : r32(w, in->s[0])[lane];
        replace_field(&map, o->field, o->ordinal, value);
        thread_write(w, in, (int)lane, o->map.space, address, &map, sizeof map, TENSOR_MAP_ALIGN);
    }
    return RUN_NEXT;
}

static run_result run_copy_fence(warp *w, const instr *in, uint32_t lanes) {
    const map_operands *o = in->extra;
    if (!converge_aligned(w, in, lanes)) return RUN_PARK;
    FOR_LANES(lane, lanes) {
        uint64_t to = address_value(w, &o->map, lane), from = address_value(w, &o->from, lane);
        uint8_t map[TENSOR_MAP_BYTES];
        memcpy(map, thread_read(w, in, (int)lane, SPACE_SHARED, from, sizeof map, 16), sizeof map);
        thread_write(w, in, (int)lane, SPACE_GLOBAL, to, map, sizeof map, 16);
    }
    return RUN_NEXT;
}

static void decode_replace(decoder *d) {
    static const char *const fields[] = {
        "global_address", "rank",     "box_dim",           "global_dim",   "global_stride",
        "element_stride", "elemtype", "interleave_layout", "swizzle_mode", "swizzle_atomicity",
        "fill_mode",      NULL};
    static const int64_t most[] = {[FIELD_ELEMTYPE] = 15,
                                   [FIELD_INTERLEAVE_LAYOUT] = 2,
                                   [FIELD_SWIZZLE_MODE] = 4,
                                   [FIELD_SWIZZLE_ATOMICITY] = 3,
                                   [FIELD_FILL_MODE] = 1};
    need(d, "tile");
    int field = take_one_of(d, fields);
    if (field < 0) reject(d, "unknown field of a tensor map");
    map_operands *o = decode_alloc(d, sizeof *o);
    o->field = (map_field)field;
    ptx_space space = take_space(d);
    if (space != SPACE_NONE && space != SPACE_GLOBAL && space != SPACE_SHARED)
        reject(d, "the tensor map is in .global or .shared::cta");
    need(d, "b1024");
    int wide = field == FIELD_GLOBAL_ADDRESS || field == FIELD_GLOBAL_STRIDE;
    need(d, wide ? "b64" : "b32");
    d->in->type = wide ? TYPE_B64 : TYPE_B32;
    o->map = take_address(d, 0, space);
    int value = 1;
    if (field >= FIELD_BOX_DIM && field <= FIELD_ELEMENT_STRIDE) {
        int64_t ordinal = constant(d, value++);
        if (ordinal < 0 || ordinal >= TENSOR_RANK_MAX - (field == FIELD_GLOBAL_STRIDE))
            reject(d, "there is no dimension %lld", (long long)ordinal);
        o->ordinal = (int)ordinal;
    } else if (field >= FIELD_ELEMTYPE) {
        int64_t code = constant(d, value);
        if (code < 0 || code > most[field]) reject(d, "the field cannot have the value %lld", (long long)code);
    }
    d->in->s[0] = source(d, value, (ptx_type)d->in->type);
    d->in->extra = o;
    d->in->run = run_replace;
}

static void decode_copy_fence(decoder *d) {
    static const char *const scopes[] = {"cta", "cluster", "gpu", "sys", NULL};
    need(d, "global");
    need(d, "shared::cta");
    need(d, "tensormap::generic");
    need(d, "release");
    if (take_one_of(d, scopes) < 0) reject(d, "the scope is missing");
    need(d, "sync");
    need(d, "aligned");
    map_operands *o = decode_alloc(d, sizeof *o);
    o->map = take_address(d, 0, SPACE_GLOBAL);
    o->from = take_address(d, 1, SPACE_SHARED);
    if (constant(d, 2) != TENSOR_MAP_BYTES) reject(d, "the size can only be 128");
    d->in->extra = o;
    d->in->run = run_copy_fence;
}

int decode_tensormap(decoder *d) {
    if (take(d, "replace"))
        decode_replace(d);
    else if (take(d, "cp_fenceproxy"))
        decode_copy_fence(d);
    else
        return 0;
    return 1;
}
