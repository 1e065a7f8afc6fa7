/* wmma: warp matrices with opaque fragments (PTX ISA 9.7.14.4: wmma.load, wmma.store, wmma.mma).
 *
 * The position of an element in a fragment is undocumented: a program can only load, multiply, store, and treat all
 * elements alike. Here it is mma.sync's, as on sm_80 and later. With g = lane / 4, t = lane % 4, p elements a
 * register, K' = K / (4 p), and h = 2 where M is a multiple of 16, else 1:
 *   A register r     row 16 (r / (h K')) + g + 8 (r % h), k = t p + 4 p (r / h % K') + 0..p-1
 *   B register r     column 8 (r / K') + g, k = t p + 4 p (r % K') + 0..p-1
 *   C, D value i     tiles of 8 h rows and 8 columns, row by row: row g + 8 (i / 2 % h), column 2 t + i % 2 of the tile
 * fp16's A and B take eight registers in every shape; the surplus ones repeat the first ones. Between memory and
 * registers a matrix is a dense buffer of segments: rows or columns, as the layout says. */
#include <math.h>

#include "memory/memory.h"
#include "scalar/formats.h"
#include "scalar/lanes.h"
#include "tensor/arithmetic.h"

enum { MATRIX_A, MATRIX_B, MATRIX_C, MOST_BYTES = 32 * 16 * 4, MOST_ROWS = 32 };

typedef struct {
    int registers, distinct, bits;    /* bits: of a cell: what is moved in one piece */
    int cells;                        /* in a register */
    uint32_t segments, segment_bytes; /* of the dense buffer */
    uint16_t *at;                     /* [distinct][WARP_LANES][cells]: index of the cell in the dense buffer */
    const uint32_t *slots;
} fragment_map;

typedef struct {
    int m, n, k, element_bits, f64, b1, nibbles, a_signed, b_signed, is_xor, saturate;
    int wide;
    uint32_t stride; /* slot of the operand, NO_SLOT: the segments lie one behind the other */
    tensor_element a_type, b_type;
    ptx_type c_type, d_type;
    fragment_map map, a, b, c; /* map: of a load or store, and D of wmma.mma */
} wmma;

/* Row (of A, C) or column (of B), and the other index. */
static void locate(const wmma *x, int matrix, int pack, int r, int lane, int e, int *outer, int *inner) {
    int g = lane / 4, t = lane % 4, h = x->m % 16 ? 1 : 2, deep = x->k / (4 * pack);
    if (matrix == MATRIX_A) {
        *outer = 16 * (r / (h * deep)) + g + 8 * (r % h);
        *inner = t * pack + 4 * pack * (r / h % deep) + e;
    } else if (matrix == MATRIX_B) {
        *outer = 8 * (r / deep) + g;
        *inner = t * pack + 4 * pack * (r % deep) + e;
    } else {
        int i = r * pack + e, tile = i / (2 * h), across = x->n / 8;
        *outer = 8 * h * (tile / across) + g + 8 * (i / 2 % h);
        *inner = 8 * (tile % across) + 2 * t + i % 2;
    }
}

/* `by_inner`: segments are of the other kind than the outer index: A's columns, B's rows, C's columns. */
static void map_fragment(decoder *d, const wmma *x, fragment_map *f, int matrix, int bits, int by_inner) {
    int outer = matrix == MATRIX_B ? x->n : x->m, inner = matrix == MATRIX_C ? x->n : x->k;
    int cell = bits < 8 ? 32 : bits, lane_bits = bits == 64 ? 64 : 32, pack = lane_bits / bits;
    f->bits = cell;
    f->cells = lane_bits / cell;
    f->distinct = outer * inner * bits / lane_bits / WARP_LANES;
    f->segments = (uint32_t)(by_inner ? inner : outer);
    f->segment_bytes = (uint32_t)((by_inner ? outer : inner) * bits / 8);
    if (f->registers < f->distinct || f->registers % f->distinct)
        reject(d, "%d registers do not hold the matrix of this shape; it takes %d", f->registers, f->distinct);
    f->at = decode_alloc(d, (size_t)(f->distinct * WARP_LANES * f->cells) * sizeof *f->at);
    for (int r = 0, i = 0; r < f->distinct; r++)
        for (int lane = 0; lane < WARP_LANES; lane++)
            for (int e = 0; e < f->cells; e++, i++) {
                int row, column;
                locate(x, matrix, pack, r, lane, e, &row, &column);
                int element = by_inner ? column * outer + row : row * inner + column;
                f->at[i] = (uint16_t)(element * bits / cell);
            }
}

/* ---- between registers and the dense buffer ---- */

#define MOVE_CELLS(type, cells, ...)                                                                                   \
    for (int lane = 0; lane < WARP_LANES; lane++)                                                                      \
        for (int e = 0; e < (cells); e++) {                                                                            \
            type *dense = (type *)buffer + at[lane * (cells) + e], *held = (type *)lanes + lane * (cells) + e;         \
            __VA_ARGS__;                                                                                               \
        }
#define MOVE_REGISTERS(count, ...)                                                                                     \
    for (int r = 0; r < (count); r++) {                                                                                \
        if (f->slots[r] == NO_SLOT) continue;                                                                          \
        const uint16_t *at = f->at + r % f->distinct * WARP_LANES * f->cells;                                          \
        void *lanes = w->registers + f->slots[r];                                                                      \
        switch (f->bits) {                                                                                             \
        case 8:                                                                                                        \
            MOVE_CELLS(uint8_t, 4, __VA_ARGS__)                                                                        \
            break;                                                                                                     \
        case 16:                                                                                                       \
            MOVE_CELLS(uint16_t, 2, __VA_ARGS__)                                                                       \
            break;                                                                                                     \
        case 32:                                                                                                       \
            MOVE_CELLS(uint32_t, 1, __VA_ARGS__)                                                                       \
            break;                                                                                                     \
        default:                                                                                                       \
            MOVE_CELLS(uint64_t, 1, __VA_ARGS__)                                                                       \
        }                                                                                                              \
    }

static void to_registers(const warp *w, const fragment_map *f, void *buffer) {
    MOVE_REGISTERS(f->registers, *held = *dense)
}

static void from_registers(const warp *w, const fragment_map *f, void *buffer) {
    MOVE_REGISTERS(f->distinct, *dense = *held)
}

/* ---- load and store ---- */

/* The address and the stride are the same in all threads. Returns the stride in bytes. */
static uint64_t take_address(warp *w, const instr *in, const wmma *x, uint64_t *base) {
    uint64_t address[WARP_LANES];
    lane_addresses(w, in, x->wide, address);
    uint64_t stride = x->map.segment_bytes * UINT64_C(8);
    for (int lane = 1; lane < WARP_LANES; lane++)
        if (w->executing >> lane & 1 && address[lane] != address[0])
            fault(w, in, lane, "address 0x%llx; lane 0 gives 0x%llx, and all lanes must give the same",
                  (unsigned long long)address[lane], (unsigned long long)address[0]);
    if (x->stride != NO_SLOT) {
        const uint32_t *lanes = r32(w, x->stride);
        for (int lane = 1; lane < WARP_LANES; lane++)
            if (lanes[lane] != lanes[0])
                fault(w, in, lane, "stride %u; lane 0 gives %u, and all lanes must give the same", lanes[lane],
                      lanes[0]);
        stride = (uint64_t)lanes[0] * (uint64_t)x->element_bits;
    }
    *base = address[0];
    return stride / 8;
}

static uint32_t alignment(const wmma *x) {
    return x->map.segment_bytes < 16 ? x->map.segment_bytes : 16;
}

static run_result run_load(warp *w, const instr *in, uint32_t lanes) {
    const wmma *x = in->extra;
    _Alignas(64) uint8_t buffer[MOST_BYTES];
    if (!converge_aligned(w, in, lanes)) return RUN_PARK;
    uint64_t base, stride = take_address(w, in, x, &base);
    uint32_t bytes = x->map.segment_bytes;
    for (uint32_t i = 0; i < x->map.segments; i++)
        memcpy(buffer + i * bytes, thread_read(w, in, 0, in->space, base + i * stride, bytes, alignment(x)), bytes);
    to_registers(w, &x->map, buffer);
    return RUN_NEXT;
}

static run_result run_store(warp *w, const instr *in, uint32_t lanes) {
    const wmma *x = in->extra;
    _Alignas(64) uint8_t buffer[MOST_BYTES];
    if (!converge_aligned(w, in, lanes)) return RUN_PARK;
    uint64_t base, stride = take_address(w, in, x, &base);
    uint32_t bytes = x->map.segment_bytes;
    from_registers(w, &x->map, buffer);
    for (uint32_t i = 0; i < x->map.segments; i++)
        thread_write(w, in, 0, in->space, base + i * stride, buffer + i * bytes, bytes, alignment(x));
    return RUN_NEXT;
}

/* ---- multiply ---- */

static run_result run_f64(warp *w, const instr *in, uint32_t lanes) {
    const wmma *x = in->extra;
    double a[8][4], b[8][4], c[8][8];
    if (!converge_aligned(w, in, lanes)) return RUN_PARK;
    from_registers(w, &x->a, a);
    from_registers(w, &x->b, b);
    from_registers(w, &x->c, c);
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++)
            for (int k = 0; k < 4; k++) c[i][j] = fma(a[i][k], b[j][k], c[i][j]);
    to_registers(w, &x->map, c);
    return RUN_NEXT;
}

static run_result run_b1(warp *w, const instr *in, uint32_t lanes) {
    const wmma *x = in->extra;
    uint32_t a[8][4], b[8][4], c[8][8];
    if (!converge_aligned(w, in, lanes)) return RUN_PARK;
    from_registers(w, &x->a, a);
    from_registers(w, &x->b, b);
    from_registers(w, &x->c, c);
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++)
            for (int k = 0; k < 4; k++)
                c[i][j] += (uint32_t)__builtin_popcount(x->is_xor ? a[i][k] ^ b[j][k] : a[i][k] & b[j][k]);
    to_registers(w, &x->map, c);
    return RUN_NEXT;
}

static void widen(const uint8_t *from, uint8_t *to, int count, int is_signed) {
    for (int i = 0; i < count; i++) {
        uint8_t nibble = from[i / 2] >> 4 * (i % 2) & 15;
        to[i] = is_signed && nibble > 7 ? nibble | 0xf0 : nibble;
    }
}

static tensor_op multiplication(const wmma *x, int capability) {
    return (tensor_op){
        .architecture = capability >= 120  ? TENSOR_SM100
                        : capability >= 90 ? TENSOR_SM90_MMA
                                           : TENSOR_SM80_MMA,
        .m = x->m,
        .n = x->n,
        .k = x->k,
        .a_type = x->a_type,
        .b_type = x->b_type,
        .d_type = x->d_type == TYPE_S32                            ? TENSOR_D_S32
                  : x->d_type == TYPE_F16 && x->c_type == TYPE_F16 ? TENSOR_D_F16
                                                                   : TENSOR_D_F32,
        .saturate = x->saturate,
    };
}

/* Where C and D differ the sum is fp32's: C becomes it exactly, or D is rounded from it. */
static void f32_of_f16(uint8_t *buffer, int count) {
    for (int i = count - 1; i >= 0; i--) {
        uint16_t half;
        memcpy(&half, buffer + 2 * i, sizeof half);
        float value = f16_to_float(half);
        memcpy(buffer + 4 * i, &value, sizeof value);
    }
}

static void f16_of_f32(uint8_t *buffer, int count) {
    for (int i = 0; i < count; i++) {
        float value;
        memcpy(&value, buffer + 4 * i, sizeof value);
        uint16_t half = (uint16_t)f16_from_double(value, ROUND_RN, 0);
        memcpy(buffer + 2 * i, &half, sizeof half);
    }
}

static run_result run_mma(warp *w, const instr *in, uint32_t lanes) {
    const wmma *x = in->extra;
    _Alignas(64) uint8_t a[MOST_BYTES], b[MOST_BYTES], c[MOST_BYTES], wide_a[MOST_BYTES], wide_b[MOST_BYTES];
    if (!converge_aligned(w, in, lanes)) return RUN_PARK;
    from_registers(w, &x->a, a);
    from_registers(w, &x->b, b);
    from_registers(w, &x->c, c);
    if (x->nibbles) {
        widen(a, wide_a, x->m * x->k, x->a_signed);
        widen(b, wide_b, x->n * x->k, x->b_signed);
    }
    if (x->c_type == TYPE_F16 && x->d_type == TYPE_F32) f32_of_f16(c, x->m * x->n);
    tensor_op op = multiplication(x, machine_of(w)->device->cc);
    op.rule = machine_of(w)->arithmetic == ARITHMETIC_FP64 ? TENSOR_FP64 : TENSOR_HARDWARE;
    op.a = x->nibbles ? wide_a : a;
    op.b = x->nibbles ? wide_b : b;
    op.a_stride = op.b_stride = (ptrdiff_t)x->a.segment_bytes * (x->nibbles ? 2 : 1);
    op.c = op.d = c;
    op.c_step = op.d_step = op.d_type == TENSOR_D_F16 ? 2 : 4;
    op.c_stride = op.d_stride = op.c_step * x->n;
    tensor_multiply(&op);
    if (x->c_type == TYPE_F32 && x->d_type == TYPE_F16) f16_of_f32(c, x->m * x->n);
    to_registers(w, &x->map, c);
    return RUN_NEXT;
}

/* ---- decoding ---- */

static const struct {
    ptx_type type;
    tensor_element element;
    int bits;
    const char *shapes[4];
} kinds[] = {
    {TYPE_F16, TENSOR_F16, 16, {"m16n16k16", "m8n32k16", "m32n8k16"}},
    {TYPE_BF16, TENSOR_BF16, 16, {"m16n16k16", "m8n32k16", "m32n8k16"}},
    {TYPE_TF32, TENSOR_TF32, 32, {"m16n16k8"}},
    {TYPE_F64, TENSOR_F16, 64, {"m8n8k4"}},
    {TYPE_S8, TENSOR_S8, 8, {"m16n16k16", "m8n32k16", "m32n8k16"}},
    {TYPE_U8, TENSOR_U8, 8, {"m16n16k16", "m8n32k16", "m32n8k16"}},
    {TYPE_S4, TENSOR_S8, 4, {"m8n8k32"}},
    {TYPE_U4, TENSOR_U8, 4, {"m8n8k32"}},
    {TYPE_B1, TENSOR_U8, 1, {"m8n8k128"}},
};

static int kind_of(ptx_type type) {
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].type == type) return (int)i;
    return -1;
}

/* Returns the shape's name; sets m, n and k. */
static const char *take_shape(decoder *d, wmma *x) {
    static const char *const shapes[] = {"m16n16k16", "m8n32k16", "m32n8k16", "m16n16k8",
                                         "m8n8k4",    "m8n8k32",  "m8n8k128", NULL};
    int shape = take_one_of(d, shapes);
    if (shape < 0 || sscanf(shapes[shape], "m%dn%dk%d", &x->m, &x->n, &x->k) != 3)
        reject(d, "the shape is not one of wmma's");
    return shapes[shape];
}

static int take_layout(decoder *d) {
    static const char *const layouts[] = {"row", "col", NULL};
    int layout = take_one_of(d, layouts);
    if (layout < 0) reject(d, ".row or .col is missing");
    return layout;
}

static void check_shape(decoder *d, ptx_type type, const char *shape) {
    int kind = kind_of(type);
    if (kind < 0) reject(d, ".%s is no element of wmma", type_name(type));
    for (int i = 0; i < 4 && kinds[kind].shapes[i]; i++)
        if (!strcmp(shape, kinds[kind].shapes[i])) return;
    reject(d, ".%s does not go with .%s", shape, type_name(type));
}

static ptx_type cell_type(ptx_type type) {
    return type == TYPE_F64 ? TYPE_F64 : type == TYPE_F32 || type == TYPE_S32 ? type : TYPE_B32;
}

static int decode_memory(decoder *d, int stores) {
    static const char *const matrices[] = {"a", "b", "c", "d", NULL};
    wmma *x = decode_alloc(d, sizeof *x);
    int matrix = take_one_of(d, matrices), bits;
    if (matrix < 0 || (stores ? matrix != 3 : matrix == 3)) reject(d, "the matrix is missing");
    if (matrix == 3) matrix = MATRIX_C;
    need(d, "sync");
    need(d, "aligned");
    int columns = take_layout(d);
    const char *shape = take_shape(d, x);
    d->in->space = take_space(d);
    if (d->in->space != SPACE_NONE && d->in->space != SPACE_GLOBAL && d->in->space != SPACE_SHARED)
        reject(d, "a matrix lies in .global or .shared");
    ptx_type type = need_type(d);
    if (matrix != MATRIX_C) {
        check_shape(d, type, shape);
        x->element_bits = kinds[kind_of(type)].bits;
        if (x->element_bits < 8 && columns != (matrix == MATRIX_B))
            reject(d, "A of .%s lies by rows and B by columns", type_name(type));
    } else {
        if (type != TYPE_F16 && type != TYPE_F32 && type != TYPE_S32 && type != TYPE_F64)
            reject(d, ".%s is no type of C or D", type_name(type));
        x->element_bits = type_bits(type);
        if ((type == TYPE_F64) != !strcmp(shape, "m8n8k4"))
            reject(d, ".%s does not go with .%s", shape, type_name(type));
    }
    d->in->s[0] = source_address(d, !stores, &d->in->offset, &bits);
    x->wide = bits == 64;
    x->stride = operand_count(d) > 2 ? source(d, 2, TYPE_B32) : NO_SLOT;
    x->map.slots = stores ? source_vector(d, 1, cell_type(type), &x->map.registers)
                          : destination_vector(d, 0, cell_type(type), &x->map.registers);
    map_fragment(d, x, &x->map, matrix, x->element_bits, columns != (matrix == MATRIX_B));
    d->in->extra = x;
    d->in->run = stores ? run_store : run_load;
    return 1;
}

static void take_types(decoder *d, wmma *x, const char *shape, ptx_type *a, ptx_type *b) {
    ptx_type types[4] = {TYPE_NONE};
    int count = 0;
    while (count < 4 && (types[count] = take_type(d)) != TYPE_NONE) count++;
    if (count == 2) {
        *a = *b = TYPE_F16;
        x->d_type = types[0];
        x->c_type = types[1];
    } else if (count == 4) {
        x->d_type = types[0];
        *a = types[1];
        *b = types[2];
        x->c_type = types[3];
    } else {
        reject(d, "wmma.mma takes two types or four");
    }
    check_shape(d, *a, shape);
    if (kind_of(*b) < 0 || kinds[kind_of(*a)].bits != kinds[kind_of(*b)].bits)
        reject(d, ".%s and .%s do not go together", type_name(*a), type_name(*b));
    int halves = *a == TYPE_F16 && (x->d_type == TYPE_F16 || x->d_type == TYPE_F32) &&
                 (x->c_type == TYPE_F16 || x->c_type == TYPE_F32);
    ptx_type sum = *a == TYPE_F64 ? TYPE_F64 : *a == TYPE_BF16 || *a == TYPE_TF32 ? TYPE_F32 : TYPE_S32;
    if (!halves && (x->d_type != sum || x->c_type != sum))
        reject(d, "C and D are .%s and .%s; .%s is summed in .%s", type_name(x->c_type), type_name(x->d_type),
               type_name(*a), *a == TYPE_F16 ? "f16 or .f32" : type_name(sum));
}

static int decode_mma(decoder *d) {
    static const char *const operations[] = {"xor", "and", NULL};
    wmma *x = decode_alloc(d, sizeof *x);
    ptx_type a, b;
    int operation = take_one_of(d, operations), population = take(d, "popc");
    need(d, "sync");
    need(d, "aligned");
    take_layout(d);
    take_layout(d);
    const char *shape = take_shape(d, x);
    x->saturate = take(d, "satfinite");
    take_types(d, x, shape, &a, &b);
    x->f64 = a == TYPE_F64;
    x->b1 = a == TYPE_B1;
    if (x->b1 != (operation >= 0) || x->b1 != population) reject(d, ".xor.popc or .and.popc belongs to .b1");
    x->is_xor = operation == 0;
    if (x->saturate && x->d_type != TYPE_S32) reject(d, ".satfinite is emulated for integers only");
    if (x->f64) {
        static const char *const roundings[] = {"rn", "rz", "rm", "rp", NULL};
        if (take_one_of(d, roundings) > 0) reject(d, "fp64 is multiplied with .rn only");
    }
    x->nibbles = a == TYPE_S4 || a == TYPE_U4;
    x->a_signed = a == TYPE_S4;
    x->b_signed = b == TYPE_S4;
    x->a_type = kinds[kind_of(a)].element;
    x->b_type = kinds[kind_of(b)].element;
    int bits = kinds[kind_of(a)].bits;
    if (!x->f64 && !x->b1) {
        tensor_op op = multiplication(x, d->module->sm);
        const char *reason = tensor_rejection(&op);
        if (reason) reject(d, "%s", reason);
    }
    x->map.slots = destination_vector(d, 0, cell_type(x->d_type), &x->map.registers);
    x->a.slots = source_vector(d, 1, cell_type(a), &x->a.registers);
    x->b.slots = source_vector(d, 2, cell_type(b), &x->b.registers);
    x->c.slots = source_vector(d, 3, cell_type(x->c_type), &x->c.registers);
    map_fragment(d, x, &x->map, MATRIX_C, type_bits(x->d_type), 0);
    map_fragment(d, x, &x->a, MATRIX_A, bits, 0);
    map_fragment(d, x, &x->b, MATRIX_B, bits, 0);
    map_fragment(d, x, &x->c, MATRIX_C, type_bits(x->c_type), 0);
    d->in->extra = x;
    d->in->run = x->f64 ? run_f64 : x->b1 ? run_b1 : run_mma;
    return 1;
}

static int decode_wmma(decoder *d) {
    if (take(d, "load")) return decode_memory(d, 0);
    if (take(d, "store")) return decode_memory(d, 1);
    need(d, "mma");
    return decode_mma(d);
}

const opcode_entry wmma_opcodes[] = {{"wmma", decode_wmma}, {0}};
