/* mma.sync: the warp's own matrix multiply (PTX ISA 9.7.14.5), dense and block-scaled.
 *
 * Fragments of every shape follow one pattern. With g = lane / 4, t = lane % 4 and p elements in a register (two fp16,
 * four bytes, eight nibbles, one tf32 or fp64):
 *   A register i: row g + 8 (i % 2) of 16 (g of 8), k = t p + 4 p (i / 2) + 0..p-1   (i % 1, i / 1 where M is 8)
 *   B register i: column g, k = t p + 4 p i + 0..p-1
 *   C, D value i: row g + 8 (i / 2), column 2 t + i % 2
 * Not here: mma.sp (sparse), and m8n8k4 of fp16, which is Volta's. */
#include <fenv.h>
#include <math.h>

#include "machine/machine.h"
#include "tensor/arithmetic.h"

typedef enum { CLASS_TENSOR, CLASS_F64, CLASS_B1, CLASS_NIBBLES } mma_class;

typedef struct {
    mma_class class;
    int m, n, k, bits; /* of an element as it lies in a register */
    tensor_element a_type, b_type;
    tensor_accumulator d_type;
    int a_signed, b_signed; /* of s4, u4 */
    int saturate, is_xor, rounding;
    tensor_scale scale_type;
    int blocks;
    const uint32_t *d, *a, *b, *c;
    int d_count, a_count, b_count;
    uint32_t sfa, a_byte, a_thread, sfb, b_byte, b_thread; /* slots */
} mma;

enum { MOST_K_BYTES = 64 };

static void gather_a(const warp *w, const mma *x, uint8_t out[16][MOST_K_BYTES]) {
    int halves = x->m / 8, cell = x->bits == 64 ? 8 : 4;
    for (int i = 0; i < x->a_count; i++) {
        int row = 8 * (i % halves), byte = 4 * cell * (i / halves);
        const uint8_t *source = w->registers + x->a[i];
        for (int lane = 0; lane < WARP_LANES; lane++)
            memcpy(&out[row + lane / 4][byte + cell * (lane % 4)], source + cell * lane, (size_t)cell);
    }
}

static void gather_b(const warp *w, const mma *x, uint8_t out[8][MOST_K_BYTES]) {
    int cell = x->bits == 64 ? 8 : 4;
    for (int i = 0; i < x->b_count; i++) {
        const uint8_t *source = w->registers + x->b[i];
        for (int lane = 0; lane < WARP_LANES; lane++)
            memcpy(&out[lane / 4][4 * cell * i + cell * (lane % 4)], source + cell * lane, (size_t)cell);
    }
}

/* C and D are exchanged between registers and [16][8] cells, in the type that they have. */
static void gather_c(const warp *w, const mma *x, uint32_t out[16][8]) {
    for (int i = 0; i < x->d_count; i++)
        for (int lane = 0; lane < WARP_LANES; lane++) {
            uint32_t value = r32(w, x->c[i])[lane];
            if (x->d_type == TENSOR_D_F16) {
                out[8 * i + lane / 4][2 * (lane % 4)] = value & 0xffff;
                out[8 * i + lane / 4][2 * (lane % 4) + 1] = value >> 16;
            } else {
                out[8 * (i / 2) + lane / 4][2 * (lane % 4) + i % 2] = value;
            }
        }
}

static void scatter_d(const warp *w, const mma *x, uint32_t in[16][8]) {
    for (int i = 0; i < x->d_count; i++)
        for (int lane = 0; lane < WARP_LANES; lane++) {
            const uint32_t *row = in[x->d_type == TENSOR_D_F16 ? 8 * i + lane / 4 : 8 * (i / 2) + lane / 4];
            int column = 2 * (lane % 4);
            r32(w, x->d[i])[lane] =
                x->d_type == TENSOR_D_F16 ? (row[column] & 0xffff) | row[column + 1] << 16 : row[column + i % 2];
        }
}

/* Scales: of rows g and g + 8 in lanes 4 g + 2 thread-id and the next; of column g in lane 4 g + thread-id; the bytes
 * from byte-id on (PTX ISA 9.7.14.3). */
static void gather_scales(warp *w, const instr *in, const mma *x, uint8_t sfa[16][4], uint8_t sfb[8][4]) {
    uint32_t ids[4] = {r32(w, x->a_byte)[0], r32(w, x->a_thread)[0], r32(w, x->b_byte)[0], r32(w, x->b_thread)[0]};
    uint32_t step = x->blocks == 1 ? 1 : 2, most = 4 - (uint32_t)x->blocks;
    if (ids[0] > most || ids[0] % step || ids[2] > most || ids[2] % step)
        fault(w, in, -1, "byte-ids %u and %u; with %d scales a row they are multiples of %u up to %u", ids[0], ids[2],
              x->blocks, step, most);
    if (ids[1] > 1) fault(w, in, -1, "thread-id-a is %u; it is 0 or 1", ids[1]);
    if (ids[3] > 3) fault(w, in, -1, "thread-id-b is %u; it is 0 to 3", ids[3]);
    for (int g = 0; g < 8; g++) {
        for (int half = 0; half < 2; half++) {
            uint32_t value = r32(w, x->sfa)[4 * g + 2 * (int)ids[1] + half] >> 8 * ids[0];
            memcpy(sfa[g + 8 * half], &value, 4);
        }
        uint32_t value = r32(w, x->sfb)[4 * g + (int)ids[3]] >> 8 * ids[2];
        memcpy(sfb[g], &value, 4);
    }
}

__attribute__((noinline)) static void multiply_f64(warp *w, const mma *x, uint8_t a[16][MOST_K_BYTES * 2],
                                                   uint8_t b[8][MOST_K_BYTES * 2]) {
    double result[4][WARP_LANES];
    for (int i = 0; i < x->d_count; i++)
        for (int lane = 0; lane < WARP_LANES; lane++) {
            const uint8_t *row = a[8 * (i / 2) + lane / 4], *column = b[2 * (lane % 4) + i % 2];
            double sum, p, q;
            memcpy(&sum, &r64(w, x->c[i])[lane], sizeof sum);
            for (int k = 0; k < x->k; k++) {
                memcpy(&p, row + 8 * k, sizeof p);
                memcpy(&q, column + 8 * k, sizeof q);
                sum = fma(p, q, sum);
            }
            result[i][lane] = sum;
        }
    for (int i = 0; i < x->d_count; i++) memcpy(r64(w, x->d[i]), result[i], sizeof result[i]);
}

static run_result run_f64(warp *w, const instr *in, uint32_t lanes) {
    if (!converge_aligned(w, in, lanes)) return RUN_PARK;
    const mma *x = in->extra;
    uint8_t a[16][MOST_K_BYTES * 2], b[8][MOST_K_BYTES * 2];
    int halves = x->m / 8;
    for (int i = 0; i < x->a_count; i++)
        for (int lane = 0; lane < WARP_LANES; lane++)
            memcpy(&a[8 * (i % halves) + lane / 4][32 * (i / halves) + 8 * (lane % 4)], &r64(w, x->a[i])[lane], 8);
    for (int i = 0; i < x->b_count; i++)
        for (int lane = 0; lane < WARP_LANES; lane++)
            memcpy(&b[lane / 4][32 * i + 8 * (lane % 4)], &r64(w, x->b[i])[lane], 8);
    int before = fegetround();
    fesetround(x->rounding);
    multiply_f64(w, x, a, b);
    fesetround(before);
    return RUN_NEXT;
}

static run_result run_b1(warp *w, const instr *in, uint32_t lanes) {
    if (!converge_aligned(w, in, lanes)) return RUN_PARK;
    const mma *x = in->extra;
    uint8_t a[16][MOST_K_BYTES], b[8][MOST_K_BYTES];
    uint32_t d[16][8];
    gather_a(w, x, a);
    gather_b(w, x, b);
    gather_c(w, x, d);
    for (int i = 0; i < x->m; i++)
        for (int j = 0; j < x->n; j++)
            for (int k = 0; k < x->k / 8; k++)
                d[i][j] += (uint32_t)__builtin_popcount(x->is_xor ? a[i][k] ^ b[j][k] : a[i][k] & b[j][k]);
    scatter_d(w, x, d);
    return RUN_NEXT;
}

static int nibble(const uint8_t *row, int k, int is_signed) {
    int value = row[k / 2] >> 4 * (k % 2) & 15;
    return is_signed && value > 7 ? value - 16 : value;
}

static run_result run_nibbles(warp *w, const instr *in, uint32_t lanes) {
    if (!converge_aligned(w, in, lanes)) return RUN_PARK;
    const mma *x = in->extra;
    uint8_t a[16][MOST_K_BYTES], b[8][MOST_K_BYTES];
    uint32_t d[16][8];
    gather_a(w, x, a);
    gather_b(w, x, b);
    gather_c(w, x, d);
    for (int i = 0; i < x->m; i++)
        for (int j = 0; j < x->n; j++) {
            int64_t sum = (int32_t)d[i][j];
            for (int k = 0; k < x->k; k++) sum += nibble(a[i], k, x->a_signed) * nibble(b[j], k, x->b_signed);
            if (x->saturate) sum = sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum;
            d[i][j] = (uint32_t)sum;
        }
    scatter_d(w, x, d);
    return RUN_NEXT;
}

/* How sums are made is the device's own, whatever target the PTX was written for. */
static tensor_architecture architecture_of(int capability) {
    return capability >= 120 ? TENSOR_SM100 : capability >= 90 ? TENSOR_SM90_MMA : TENSOR_SM80_MMA;
}

static run_result run_mma(warp *w, const instr *in, uint32_t lanes) {
    if (!converge_aligned(w, in, lanes)) return RUN_PARK;
    const mma *x = in->extra;
    _Alignas(64) uint8_t a[16][MOST_K_BYTES], b[8][MOST_K_BYTES];
    _Alignas(64) uint32_t d[16][8];
    uint8_t sfa[16][4], sfb[8][4];
    gather_a(w, x, a);
    gather_b(w, x, b);
    gather_c(w, x, d);
    if (x->blocks) gather_scales(w, in, x, sfa, sfb);
    tensor_op op = {
        .architecture = architecture_of(machine_of(w)->device->cc),
        .rule = machine_of(w)->arithmetic == ARITHMETIC_FP64 ? TENSOR_FP64 : TENSOR_HARDWARE,
        .m = x->m,
        .n = x->n,
        .k = x->k,
        .a_type = x->a_type,
        .b_type = x->b_type,
        .d_type = x->d_type,
        .a = a,
        .a_stride = MOST_K_BYTES,
        .b = b,
        .b_stride = MOST_K_BYTES,
        .c = d,
        .c_stride = sizeof d[0],
        .c_step = 4,
        .d = d,
        .d_stride = sizeof d[0],
        .d_step = 4,
        .scale_type = x->scale_type,
        .blocks = x->blocks,
        .sfa = sfa[0],
        .sfa_stride = 4,
        .sfb = sfb[0],
        .sfb_stride = 4,
        .saturate = x->saturate,
    };
    const char *reason = tensor_rejection(&op);
    if (reason) fault(w, in, -1, "device %s: %s", machine_of(w)->device->key, reason);
    tensor_multiply(&op);
    scatter_d(w, x, d);
    return RUN_NEXT;
}

/* ---- decoding ---- */

static const struct {
    ptx_type type;
    tensor_element element;
    int bits;
} elements[] = {
    {TYPE_F16, TENSOR_F16, 16},   {TYPE_BF16, TENSOR_BF16, 16},
    {TYPE_TF32, TENSOR_TF32, 32}, {TYPE_E4M3, TENSOR_E4M3, 8},
    {TYPE_E5M2, TENSOR_E5M2, 8},  {TYPE_E2M3, TENSOR_E2M3, 8},
    {TYPE_E3M2, TENSOR_E3M2, 8},  {TYPE_E2M1, TENSOR_E2M1_SHIFTED, 8},
    {TYPE_S8, TENSOR_S8, 8},      {TYPE_U8, TENSOR_U8, 8},
    {TYPE_S4, TENSOR_S8, 4},      {TYPE_U4, TENSOR_U8, 4},
    {TYPE_F64, TENSOR_F16, 64},   {TYPE_B1, TENSOR_U8, 1},
};

static void set_element(decoder *d, ptx_type type, tensor_element *element, int *bits) {
    for (size_t i = 0; i < sizeof elements / sizeof *elements; i++)
        if (elements[i].type == type) {
            *element = elements[i].element;
            *bits = elements[i].bits;
            return;
        }
    reject(d, ".%s is no element of mma.sync", type_name(type));
}

static int take_shape(decoder *d, mma *x) {
    static const char *const shapes[] = {"m8n8k4",   "m8n8k16",  "m8n8k32",  "m8n8k128",  "m16n8k4",   "m16n8k8",
                                         "m16n8k16", "m16n8k32", "m16n8k64", "m16n8k128", "m16n8k256", NULL};
    int shape = take_one_of(d, shapes);
    if (shape < 0 || sscanf(shapes[shape], "m%dn%dk%d", &x->m, &x->n, &x->k) != 3) return 0;
    return 1;
}

enum { KIND_MXF8F6F4, KIND_MXF4, KIND_MXF4NVF4, KIND_F8F6F4 };
static const char *const kinds[] = {"kind::mxf8f6f4", "kind::mxf4", "kind::mxf4nvf4", "kind::f8f6f4", NULL};

/* {byte-id, thread-id} */
static void take_ids(decoder *d, int index, uint32_t *byte, uint32_t *thread) {
    int count;
    const uint32_t *ids = source_vector(d, index, TYPE_U16, &count);
    if (count != 2) reject(d, "operand %d must be {byte-id, thread-id}", index + 1);
    *byte = ids[0];
    *thread = ids[1];
}

/* The register that holds scales: it may stand in braces. */
static uint32_t take_scale_data(decoder *d, int index) {
    int count;
    const uint32_t *data = source_vector(d, index, TYPE_B32, &count);
    if (count != 1) reject(d, "operand %d must be one register of scales", index + 1);
    return *data;
}

static void take_scales(decoder *d, mma *x, int kind) {
    static const char *const vectors[] = {"scale_vec::1X", "scale_vec::2X", "scale_vec::4X", NULL};
    int vector = take_one_of(d, vectors);
    if (vector < 0 && kind == KIND_MXF4NVF4) reject(d, ".kind::mxf4nvf4 needs a .scale_vec size");
    if (vector < 0) vector = kind == KIND_MXF8F6F4 ? 0 : 1;
    if ((kind == KIND_MXF8F6F4) != (vector == 0) || (kind == KIND_MXF4 && vector != 1))
        reject(d, ".%s does not exist for .%s", vectors[vector], kinds[kind]);
    x->blocks = 1 << vector;
}

static void take_scale_type(decoder *d, mma *x, int kind) {
    ptx_type scale = need_type(d);
    if (scale != TYPE_UE4M3 && scale != TYPE_UE8M0) reject(d, "a scale is .ue4m3 or .ue8m0");
    if (scale == TYPE_UE4M3 && (kind != KIND_MXF4NVF4 || x->blocks != 4))
        reject(d, "a scale of .ue4m3 needs .kind::mxf4nvf4 and .scale_vec::4X");
    if (scale == TYPE_UE8M0 && x->blocks == 4 && d->module->version < 91)
        reject(d, ".scale_vec::4X with .ue8m0 needs .version 9.1");
    x->scale_type = scale == TYPE_UE4M3 ? TENSOR_UE4M3 : TENSOR_UE8M0;
}

/* What the types ask of the kind and of the target. */
static void check_types(decoder *d, const mma *x, int kind, ptx_type a_type, ptx_type b_type) {
    int narrow = 0, fp8 = 0;
    const ptx_type types[] = {a_type, b_type};
    for (int i = 0; i < 2; i++) {
        narrow |= types[i] == TYPE_E2M1 || types[i] == TYPE_E2M3 || types[i] == TYPE_E3M2;
        fp8 |= types[i] == TYPE_E4M3 || types[i] == TYPE_E5M2;
    }
    if (narrow && kind < 0) reject(d, "6- and 4-bit floating point needs a .kind");
    if (kind >= 0 && !narrow && !fp8) reject(d, ".%s does not multiply .%s", kinds[kind], type_name(a_type));
    if (fp8 && d->module->sm < 89) reject(d, ".%s needs .target sm_89", type_name(a_type));
    if (a_type == TYPE_F64 && x->m == 16 && d->module->sm < 90) reject(d, "this shape of .f64 needs .target sm_90");
}

static int decode_mma(decoder *d) {
    if (has_modifier(d, "sp") || has_modifier(d, "sp::ordered_metadata")) reject(d, "sparse mma is not emulated");
    mma *x = decode_alloc(d, sizeof *x);
    need(d, "sync");
    need(d, "aligned");
    if (!take_shape(d, x)) reject(d, "the shape is not one of mma.sync's");
    need(d, "row");
    need(d, "col");
    int kind = take_one_of(d, kinds), scaled = take(d, "block_scale");
    if (kind >= 0 && d->module->sm < 120) reject(d, ".%s needs .target sm_120a", kinds[kind]);
    if (scaled != (kind >= 0 && kind != KIND_F8F6F4))
        reject(d, ".block_scale belongs to .kind::mxf8f6f4, .kind::mxf4 and .kind::mxf4nvf4, and they need it");
    if (scaled) take_scales(d, x, kind);
    x->saturate = take(d, "satfinite");
    ptx_type d_type = need_type(d), a_type = need_type(d), b_type = need_type(d), c_type = need_type(d);
    int a_bits = 0, b_bits = 0;
    set_element(d, a_type, &x->a_type, &a_bits);
    set_element(d, b_type, &x->b_type, &b_bits);
    if (a_bits != b_bits) reject(d, ".%s and .%s do not go together", type_name(a_type), type_name(b_type));
    x->bits = a_bits;
    if (scaled) take_scale_type(d, x, kind);
    check_types(d, x, kind, a_type, b_type);
    if (kind == KIND_MXF4 || kind == KIND_MXF4NVF4) {
        x->a_type = x->b_type = TENSOR_E2M1_PACKED;
        x->bits = 4;
        if (a_type != TYPE_E2M1 || b_type != TYPE_E2M1) reject(d, ".%s multiplies .e2m1 only", kinds[kind]);
    }
    if (d_type != TYPE_F16 && d_type != TYPE_F32 && d_type != TYPE_S32 && d_type != TYPE_F64)
        reject(d, "the sum cannot be .%s", type_name(d_type));
    if (d_type != c_type) reject(d, "C of another type than D is not emulated");
    int f64 = a_type == TYPE_F64, b1 = a_type == TYPE_B1;
    if (x->k * x->bits / 8 > (f64 ? 2 : 1) * MOST_K_BYTES)
        reject(d, "the shape does not go with .%s", type_name(a_type));
    x->d_type = d_type == TYPE_F16 ? TENSOR_D_F16 : d_type == TYPE_S32 ? TENSOR_D_S32 : TENSOR_D_F32;
    x->a_signed = a_type == TYPE_S4;
    x->b_signed = b_type == TYPE_S4;
    x->class = f64 ? CLASS_F64 : b1 ? CLASS_B1 : x->bits == 4 && kind < 0 ? CLASS_NIBBLES : CLASS_TENSOR;
    if (x->class == CLASS_NIBBLES && d_type != TYPE_S32) reject(d, "the sum of integers is .s32");
    if (b1 && (d_type != TYPE_S32 || x->saturate)) reject(d, "the sum of .b1 is .s32, which wraps");
    if (f64) {
        static const char *const roundings[] = {"rn", "rz", "rm", "rp", NULL};
        static const int modes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
        int rounding = take_one_of(d, roundings);
        x->rounding = modes[rounding < 0 ? 0 : rounding];
        if (x->saturate) reject(d, ".satfinite is for integers");
        if (d_type != TYPE_F64) reject(d, "the sum of .f64 is .f64");
    }
    if (b1) {
        static const char *const operations[] = {"xor", "and", NULL};
        int operation = take_one_of(d, operations);
        if (operation < 0) reject(d, ".b1 needs .xor or .and");
        need(d, "popc");
        x->is_xor = operation == 0;
    }
    if (x->m == 8 && x->k == 4 && !f64) reject(d, "m8n8k4 is emulated for .f64 only");
    if (x->class == CLASS_TENSOR) {
        tensor_op op = {.architecture = architecture_of(d->module->sm),
                        .m = x->m,
                        .n = x->n,
                        .k = x->k,
                        .a_type = x->a_type,
                        .b_type = x->b_type,
                        .d_type = x->d_type,
                        .scale_type = x->scale_type,
                        .blocks = x->blocks,
                        .saturate = x->saturate};
        const char *reason = tensor_rejection(&op);
        if (reason) reject(d, "%s", reason);
    }

    ptx_type cell = f64 ? TYPE_F64 : TYPE_B32, sum = f64 ? TYPE_F64 : d_type == TYPE_F16 ? TYPE_B32 : d_type;
    int c_count;
    x->d = destination_vector(d, 0, sum, &x->d_count);
    x->a = source_vector(d, 1, cell, &x->a_count);
    x->b = source_vector(d, 2, cell, &x->b_count);
    x->c = source_vector(d, 3, sum, &c_count);
    int lane_bits = f64 ? 64 : 32;
    if (x->a_count * lane_bits * WARP_LANES != x->m * x->k * x->bits ||
        x->b_count * lane_bits * WARP_LANES != x->n * x->k * x->bits || c_count != x->d_count ||
        x->d_count * WARP_LANES * (d_type == TYPE_F16 ? 2 : 1) != x->m * x->n)
        reject(d, "%d, %d, %d and %d registers do not hold the matrices of this shape", x->d_count, x->a_count,
               x->b_count, c_count);
    if (scaled) {
        x->sfa = take_scale_data(d, 4);
        take_ids(d, 5, &x->a_byte, &x->a_thread);
        x->sfb = take_scale_data(d, 6);
        take_ids(d, 7, &x->b_byte, &x->b_thread);
    }
    d->in->extra = x;
    static run_function *const runs[] = {run_mma, run_f64, run_b1, run_nibbles};
    d->in->run = runs[x->class];
    return 1;
}

const opcode_entry mma_opcodes[] = {{"mma", decode_mma}, {0}};
