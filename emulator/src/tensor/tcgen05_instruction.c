/* The instruction descriptor of tcgen05.mma (PTX ISA 9.7.16.4.2, tables 42 to 44) and the shapes that exist (table
 * 39 and 9.7.16.10.1). ptxas checks none of it, so every field is checked here, by name and value. */
#include "tensor/tcgen05.h"

const char *const mma_kind_names[] = {"kind::f16",      "kind::tf32", "kind::f8f6f4",   "kind::i8",
                                      "kind::mxf8f6f4", "kind::mxf4", "kind::mxf4nvf4", NULL};

typedef struct {
    warp *w;
    const instr *in;
    int lane;
    uint32_t bits;
    mma_kind kind;
} fields;

static uint32_t field(const fields *f, int low, int high) {
    return f->bits >> low & ((1u << (high - low + 1)) - 1);
}

/* A field that this kind leaves no choice. */
static void require(const fields *f, int low, int high, const char *name, uint32_t value) {
    uint32_t is = field(f, low, high);
    if (is != value)
        fault(f->w, f->in, f->lane, "instruction descriptor 0x%08x: %s (bits %d-%d) is %u, which must be %u for .%s",
              f->bits, name, low, high, is, value, mma_kind_names[f->kind]);
}

_Noreturn static void wrong(const fields *f, const char *name, uint32_t value, const char *rule) {
    fault(f->w, f->in, f->lane, "instruction descriptor 0x%08x: %s is %u; .%s has %s", f->bits, name, value,
          mma_kind_names[f->kind], rule);
}

static tensor_element element(const fields *f, int low, const char *name) {
    static const tensor_element f8f6f4[] = {TENSOR_E4M3, TENSOR_E5M2, 0, TENSOR_E2M3, TENSOR_E3M2, TENSOR_E2M1};
    uint32_t code = field(f, low, low + 2);
    switch (f->kind) {
    case KIND_F16:
        if (code > 1) wrong(f, name, code, "0 (f16) and 1 (bf16)");
        return code ? TENSOR_BF16 : TENSOR_F16;
    case KIND_TF32:
        if (code != 2) wrong(f, name, code, "2 (tf32) only");
        return TENSOR_TF32;
    case KIND_F8F6F4:
    case KIND_MXF8F6F4:
        if (code > 5 || code == 2) wrong(f, name, code, "0 (e4m3), 1 (e5m2), 3 (e2m3), 4 (e3m2) and 5 (e2m1)");
        return f8f6f4[code];
    case KIND_I8:
        if (code > 1) wrong(f, name, code, "0 (u8) and 1 (s8)");
        return code ? TENSOR_S8 : TENSOR_U8;
    case KIND_MXF4:
    case KIND_MXF4NVF4:
        if (code != 1) wrong(f, name, code, "1 (e2m1) only");
        return TENSOR_E2M1_PACKED;
    }
    return TENSOR_F16;
}

static void types(const fields *f, mma_shape *s) {
    int scaled = f->kind >= KIND_MXF8F6F4;
    s->a_type = element(f, 7, "the type of A (bits 7-9)");
    s->b_type = element(f, 10, "the type of B (bits 10-12)");
    s->negate_a = (int)field(f, 13, 13);
    s->negate_b = (int)field(f, 14, 14);
    s->transpose_a = (int)field(f, 15, 15);
    s->transpose_b = (int)field(f, 16, 16);
    require(f, 2, 2, "sparsity", 0);
    require(f, 6, 6, "a reserved bit", 0);
    s->d_type = TENSOR_D_F32;
    if (scaled) {
        require(f, 0, 1, "a reserved field", 0);
        require(f, 3, 3, "a reserved bit", 0);
        return;
    }
    uint32_t d = field(f, 4, 5);
    if (f->kind == KIND_I8) {
        require(f, 4, 5, "the type of D", 2);
        require(f, 13, 14, "negation", 0);
        s->d_type = TENSOR_D_S32;
        s->saturate = (int)field(f, 3, 3);
        return;
    }
    require(f, 3, 3, "saturation, for integers,", 0);
    if (f->kind == KIND_TF32) require(f, 4, 5, "the type of D", 1);
    if (d > 1) wrong(f, "the type of D (bits 4-5)", d, "0 (f16) and 1 (f32)");
    if (d == 0) s->d_type = TENSOR_D_F16;
    if (d == 0 && (s->a_type == TENSOR_BF16 || s->b_type == TENSOR_BF16))
        wrong(f, "the type of D (bits 4-5)", d, "1 (f32) only where A or B is bf16");
}

/* Only 8-, 16- and 32-bit elements can lie MN-major. */
static void transposition(const fields *f, const mma_shape *s, int group) {
    int narrow_a = s->a_type == TENSOR_E2M3 || s->a_type == TENSOR_E3M2 || s->a_type == TENSOR_E2M1;
    int narrow_b = s->b_type == TENSOR_E2M3 || s->b_type == TENSOR_E3M2 || s->b_type == TENSOR_E2M1;
    if (s->transpose_a && narrow_a) wrong(f, "transpose A (bit 15)", 1, "K-major only for 4- and 6-bit elements");
    if (s->transpose_b && narrow_b) wrong(f, "transpose B (bit 16)", 1, "K-major only for 4- and 6-bit elements");
    if (s->transpose_b && f->kind != KIND_F16 && f->kind != KIND_TF32 && s->n % (16 * (uint32_t)group))
        wrong(f, "N (bits 17-22, times 8)", s->n,
              group == 2 ? "multiples of 32 where an 8-bit B is transposed and cta_group is 2"
                         : "multiples of 16 where an 8-bit B is transposed");
}

static void scales(const fields *f, mma_shape *s, int blocks) {
    s->sfb_id = field(f, 4, 5);
    s->sfa_id = field(f, 29, 30);
    require(f, 24, 26, "a reserved field", 0);
    if (f->kind == KIND_MXF8F6F4) {
        require(f, 23, 23, "the type of scales", 1);
        require(f, 31, 31, "a reserved bit", 0);
        s->scale_type = TENSOR_UE8M0;
        return;
    }
    require(f, 12, 12, "a reserved bit", 0);
    require(f, 15, 16, "transposition", 0);
    if (field(f, 31, 31)) wrong(f, "K (bit 31)", 1, "K = 96 on sm_103a only");
    if (f->kind == KIND_MXF4) require(f, 23, 23, "the type of scales", 1);
    s->scale_type = field(f, 23, 23) ? TENSOR_UE8M0 : TENSOR_UE4M3;
    if (s->scale_type == TENSOR_UE4M3 && blocks != 4)
        wrong(f, "the type of scales (bit 23)", 0, "ue4m3 scales with blocks of 16 (scale_vec::4X) only");
    const uint32_t allowed = blocks == 4 ? 1 : 5; /* a mask of 0, or of 0 and 2 */
    if (!(allowed >> s->sfa_id & 1))
        wrong(f, "scale factor A's id (bits 29-30)", s->sfa_id, blocks == 4 ? "0 with 4X" : "0 and 2 with 2X");
    if (!(allowed >> s->sfb_id & 1))
        wrong(f, "scale factor B's id (bits 4-5)", s->sfb_id, blocks == 4 ? "0 with 4X" : "0 and 2 with 2X");
}

static void sizes(const fields *f, mma_shape *s, int group, int weight_stationary) {
    uint32_t n = s->n = field(f, 17, 22) * 8;
    if (f->kind >= KIND_MXF8F6F4) {
        s->m = field(f, 27, 28) * 128;
        if (group == 1 && s->m != 128) wrong(f, "M (bits 27-28, times 128)", s->m, "128 with cta_group::1");
    } else {
        s->m = field(f, 24, 28) * 16;
        require(f, 23, 23, "a reserved bit", 0);
        require(f, 29, 29, "a reserved bit", 0);
        if (!weight_stationary) require(f, 30, 31, "the shift of .ws", 0);
        if (weight_stationary && s->m != 32 && s->m != 64 && s->m != 128)
            wrong(f, "M (bits 24-28, times 16)", s->m, "32, 64 and 128 with .ws");
        if (!weight_stationary && group == 1 && s->m != 64 && s->m != 128)
            wrong(f, "M (bits 24-28, times 16)", s->m, "64 and 128 with cta_group::1");
    }
    if (group == 2 && s->m != 128 && s->m != 256) wrong(f, "M", s->m, "128 and 256 with cta_group::2");
    if (weight_stationary) {
        if (n != 64 && n != 128 && n != 256) wrong(f, "N (bits 17-22, times 8)", n, "64, 128 and 256 with .ws");
        return;
    }
    /* With one CTA, M 128 takes every multiple of 8 as M 64 does: the table of shapes in 9.7.16.2.1 has one row for
     * both.
     */
    if (!n || n > 256) wrong(f, "N (bits 17-22, times 8)", n, "8 to 256");
    if (group == 2 && n % 16) wrong(f, "N (bits 17-22, times 8)", n, "multiples of 16 with cta_group::2");
    if (f->kind == KIND_I8 && group == 2 && n % 32)
        wrong(f, "N (bits 17-22, times 8)", n, "multiples of 32 with cta_group::2");
    if (f->kind == KIND_I8 && n > 32 && n % 16) wrong(f, "N (bits 17-22, times 8)", n, "multiples of 16 above 32");
}

mma_shape mma_shape_of(warp *w, const instr *in, int lane, uint32_t bits, mma_kind kind, int group,
                       int weight_stationary, int blocks) {
    static const uint32_t depth[] = {16, 8, 32, 32, 32, 64, 64};
    const fields f = {w, in, lane, bits, kind};
    mma_shape s = {.k = depth[kind], .scale_type = TENSOR_UNSCALED};
    types(&f, &s);
    sizes(&f, &s, group, weight_stationary);
    if (kind >= KIND_MXF8F6F4) scales(&f, &s, blocks);
    transposition(&f, &s, group);
    return s;
}
