/* tcgen05.mma and tcgen05.mma.ws: decoding, and the checks at issue (PTX ISA 9.7.16.10.9). Sparse forms and the
 * zero-column mask of .ws are rejected. */
#include <stdlib.h>

#include "tensor/tcgen05.h"

/* ---- issue ---- */

static void choose_layout(mma_op *o) {
    const mma_instruction *x = o->what;
    uint32_t m = o->shape.m;
    o->rows = m / (uint32_t)x->group;
    o->parts = 1;
    o->layout = LAYOUT_FULL;
    if (x->weight_stationary && m < 128) {
        o->layout = LAYOUT_FOLDED;
        o->parts = 128 / m;
    } else if (x->group == 2 && m == 128) {
        o->layout = LAYOUT_FOLDED;
        o->parts = 2;
    } else if (m == 64) {
        o->layout = LAYOUT_SPREAD;
    }
}

/* D, or A in tensor memory: which lanes its address may name. */
static void check_matrix_lanes(const mma_op *o, warp *w, const instr *in, uint32_t address, const char *name) {
    uint32_t lane = tmem_lane(address);
    if (lane && !(o->layout == LAYOUT_SPREAD && lane == 16))
        fault(w, in, o->base.lane, "the address 0x%x of %s begins at lane %u, which must be %s", address, name, lane,
              o->layout == LAYOUT_SPREAD ? "0 or 16" : "0");
}

static void check_operands(const mma_op *o, warp *w, const instr *in) {
    const mma_instruction *x = o->what;
    const tensor_core *core = o->base.core;
    uint32_t n = o->shape.n;
    check_matrix_lanes(o, w, in, o->d, "D");
    if (x->a_in_tmem) {
        check_matrix_lanes(o, w, in, o->a, "A");
        if (tmem_lane(o->a) != tmem_lane(o->d))
            fault(w, in, o->base.lane, "A begins at lane %u and D at lane %u, which must be the same", tmem_lane(o->a),
                  tmem_lane(o->d));
        if (o->shape.transpose_a)
            fault(w, in, o->base.lane,
                  "A in tensor memory cannot be transposed (bit 15 of the instruction descriptor)");
        if (x->weight_stationary && o->shape.m < 128)
            fault(w, in, o->base.lane,
                  "M = %u with .ws and A in tensor memory: which lanes A takes then is not documented", o->shape.m);
    }
    if (x->ashift && o->shape.m != 128 && o->shape.m != 256)
        fault(w, in, o->base.lane, "M is %u; .ashift is for 128 and 256", o->shape.m);
    if (x->blocks && x->group == 2 && o->shape.m == 128)
        fault(w, in, o->base.lane,
              "M = 128 with cta_group::2 and block scale: where the scale factors lie then is not "
              "documented");
    if (x->blocks && tmem_column(o->sfb) & 1)
        remark_once(machine_of(w), "odd column of scale factors",
                    "scale factors of B begin at column %u: odd columns were seen not to work on hardware",
                    tmem_column(o->sfb));
    for (int i = 0; i < core->group; i++) {
        const cta *c = core->ctas[i];
        if (!x->a_in_tmem) check_matrix(w, in, c, &o->a_view);
        check_matrix(w, in, c, &o->b_view);
        uint32_t lane = tmem_lane(o->d);
        tmem_check(w, in, c, lane, 128 - lane, tmem_column(o->d), n / o->parts, "D");
        if (x->a_in_tmem) tmem_check(w, in, c, lane, 128 - lane, tmem_column(o->a), 8, "A");
        if (!x->blocks) continue;
        tmem_check(w, in, c, tmem_lane(o->sfa), 128, tmem_column(o->sfa), o->rows / 32, "the scale factors of A");
        tmem_check(w, in, c, tmem_lane(o->sfb), 128, tmem_column(o->sfb), (n + 31) / 32, "the scale factors of B");
    }
}

/* The collector buffer must hold what `use` expects. Its content is read from memory: a correct program cannot tell the
 * difference. */
static void use_collector(const mma_op *o, warp *w, const instr *in, uint64_t operand) {
    uint64_t *buffer = &o->base.core->collector[o->what->buffer];
    int use = o->what->collector == COLLECTOR_USE || o->what->collector == COLLECTOR_LASTUSE;
    if (use && *buffer != operand)
        fault(w, in, o->base.lane, "the collector's buffer does not hold this operand: %s",
              *buffer ? "another one was filled in last" : "nothing was filled in, or it was discarded since");
    if (o->what->collector == COLLECTOR_FILL)
        *buffer = operand;
    else if (o->what->collector != COLLECTOR_USE)
        *buffer = 0;
}

static uint32_t element_bytes(tensor_element type) {
    return type == TENSOR_TF32 ? 4 : type == TENSOR_F16 || type == TENSOR_BF16 ? 2 : 1;
}

/* CUTLASS leaves the scale factors' ID in the two upper bits of their address. Hardware ignores these bits, although
 * the ISA has no such lanes. */
static uint32_t scales_address(const warp *w, const address_operand *a, uint32_t lane) {
    uint32_t address = (uint32_t)address_value(w, a, lane);
    return machine_of(w)->fences == FENCES_HARDWARE ? address & 0x3fffffff : address;
}

static void issue(warp *w, const instr *in, uint32_t lane, tensor_core *core) {
    const mma_instruction *x = in->extra;
    mma_op *o = calloc(1, sizeof *o);
    if (!o) abort();
    o->what = x;
    o->base.core = core;
    o->base.lane = (int)lane;
    o->shape = mma_shape_of(w, in, (int)lane, r32(w, x->instruction)[lane], x->kind, x->group, x->weight_stationary,
                            x->blocks);
    choose_layout(o);
    o->d = (uint32_t)address_value(w, &x->d, lane);
    if (x->blocks) {
        o->sfa = scales_address(w, &x->sfa, lane);
        o->sfb = scales_address(w, &x->sfb, lane);
    }
    if (x->a_in_tmem)
        o->a = (uint32_t)address_value(w, &x->a, lane);
    else
        o->a_view = (matrix_view){tcgen05_descriptor(w, in, r64(w, x->a_descriptor)[lane], "a-desc"), o->rows, 32,
                                  o->shape.transpose_a, element_bytes(o->shape.a_type)};
    o->b_view =
        (matrix_view){tcgen05_descriptor(w, in, r64(w, x->b_descriptor)[lane], "b-desc"),
                      o->shape.n / (uint32_t)x->group, 32, o->shape.transpose_b, element_bytes(o->shape.b_type)};
    o->accumulate = x->enable_constant;
    if (x->enable != NO_SLOT) o->accumulate = (int)(*predicate(w, x->enable) >> lane & 1) ^ x->enable_negated;
    for (int i = 0; i < x->masks; i++) o->mask[i] = r32(w, x->mask[i])[lane];
    check_operands(o, w, in);
    use_collector(o, w, in,
                  x->buffer      ? o->b_view.descriptor.bits
                  : x->a_in_tmem ? 1ull << 32 | o->a
                                 : o->a_view.descriptor.bits);
    tensor_op arithmetic = mma_arithmetic(o, machine_of(w));
    const char *rejection = tensor_rejection(&arithmetic);
    if (rejection) fault(w, in, (int)lane, "%s", rejection);
    for (int i = 0; i < core->group; i++) {
        uint32_t bytes = 32 * (o->b_view.rows + (x->a_in_tmem ? 0 : o->rows));
        core->ctas[i]->traffic[TRAFFIC_MMA_SHARED_READ] += bytes;
        o->base.op.bytes += bytes;
    }
    core_start(&o->base, w, in, (int)lane, core, mma_step, "tensor multiply");
}

static run_result run_mma(warp *w, const instr *in, uint32_t lanes) {
    tensor_core *core = tensor_core_of(w, in, ((const mma_instruction *)in->extra)->group);
    FOR_LANES(lane, lanes) issue(w, in, lane, core);
    return RUN_NEXT;
}

/* ---- decoding ---- */

static int scale_blocks(decoder *d, mma_kind kind) {
    static const char *const vectors[] = {"scale_vec::1X", "scale_vec::2X", "scale_vec::4X",
                                          "block16",       "block32",       NULL};
    static const int blocks[] = {1, 2, 4, 4, 0};
    need(d, "block_scale");
    int vector = take_one_of(d, vectors), standard = kind == KIND_MXF8F6F4 ? 1 : 2;
    if (vector < 0 && kind == KIND_MXF4NVF4) reject(d, ".kind::mxf4nvf4 needs a size of the scale vector");
    if (vector >= 0 && vector < 3 && d->module->suffix == 'f')
        reject(d, ".%s needs an architecture-specific target (sm_100a); .block16 and .block32 do not", vectors[vector]);
    int count = vector < 0 || vector == 4 ? standard : blocks[vector];
    if (count != standard && !(kind == KIND_MXF4NVF4 && count == 4))
        reject(d, ".%s does not exist for .%s", vectors[vector], mma_kind_names[kind]);
    return count;
}

static void take_collector(decoder *d, mma_instruction *x) {
    static const char *const operations[] = {"discard", "fill", "use", "lastuse"};
    static const char *const buffers[] = {"a", "b0", "b1", "b2", "b3"};
    x->buffer = x->weight_stationary;
    for (int buffer = x->weight_stationary; buffer < (x->weight_stationary ? 5 : 1); buffer++)
        for (int operation = 0; operation < 4; operation++) {
            char name[32];
            snprintf(name, sizeof name, "collector::%s::%s", buffers[buffer], operations[operation]);
            if (!take(d, name)) continue;
            x->buffer = buffer;
            x->collector = operation;
        }
    if (x->ashift && (x->collector == COLLECTOR_FILL || x->collector == COLLECTOR_USE))
        reject(d, ".ashift excludes .collector::a::%s", operations[x->collector]);
}

static void take_enable(decoder *d, mma_instruction *x, int index) {
    int64_t value;
    x->enable = NO_SLOT;
    if (is_constant(d, index, &value)) {
        operand_at(d, index);
        x->enable_constant = value != 0;
    } else {
        x->enable = source_predicate(d, index, &x->enable_negated);
    }
}

static int take_operands(decoder *d, mma_instruction *x) {
    int next = 4;
    x->d = take_address(d, 0, SPACE_NONE);
    x->a_in_tmem = operand_at(d, 1)->kind == OPERAND_ADDRESS;
    if (x->a_in_tmem)
        x->a = take_address(d, 1, SPACE_NONE);
    else
        x->a_descriptor = source(d, 1, TYPE_B64);
    x->b_descriptor = source(d, 2, TYPE_B64);
    x->instruction = source(d, 3, TYPE_B32);
    if (x->blocks) {
        x->sfa = take_address(d, next++, SPACE_NONE);
        x->sfb = take_address(d, next++, SPACE_NONE);
    } else if (next < operand_count(d) && operand_at(d, next)->kind == OPERAND_VECTOR) {
        if (x->weight_stationary) reject(d, ".ws has no disable-output-lane");
        x->mask = source_vector(d, next++, TYPE_B32, &x->masks);
        if (x->masks != 4 * x->group)
            reject(d, "disable-output-lane has %d words; cta_group::%d needs %d", x->masks, x->group, 4 * x->group);
    }
    if (next >= operand_count(d)) reject(d, "enable-input-d is missing");
    take_enable(d, x, next++);
    return next;
}

int decode_tcgen05_mma(decoder *d) {
    if (!has_modifier(d, "mma")) return 0;
    mma_instruction *x = decode_alloc(d, sizeof *x);
    need(d, "mma");
    if (has_modifier(d, "sp")) reject(d, "sparse tcgen05.mma is not emulated");
    x->weight_stationary = take(d, "ws");
    x->group = take_cta_group(d);
    if (x->weight_stationary && x->group != 1) reject(d, ".ws needs .cta_group::1");
    int kind = take_one_of(d, mma_kind_names);
    if (kind < 0) reject(d, "needs a .kind");
    x->kind = (mma_kind)kind;
    if (x->kind == KIND_I8 && d->module->suffix == 'f')
        reject(d, ".kind::i8 needs an architecture-specific target (sm_100a)");
    if (x->kind >= KIND_MXF8F6F4) {
        if (x->weight_stationary) reject(d, ".ws has no block-scaled form");
        x->blocks = scale_blocks(d, x->kind);
    }
    x->ashift = take(d, "ashift");
    take_collector(d, x);
    int next = take_operands(d, x);
    if (x->ashift && (!x->a_in_tmem || x->blocks || x->weight_stationary))
        reject(d, ".ashift needs A in tensor memory, and no block scale");
    if (next < operand_count(d)) {
        if (x->weight_stationary) reject(d, "the zero-column mask of .ws is not emulated");
        if (x->kind != KIND_F16 && x->kind != KIND_TF32)
            reject(d, "scale-input-d is for .kind::f16 and .kind::tf32 only");
        int64_t exponent = constant(d, next);
        if (exponent < 0 || exponent > 15) reject(d, "scale-input-d is %lld; it must be 0 to 15", (long long)exponent);
        x->scale_input_d = (int)exponent;
    }
    d->entry->uses_async_proxy = 1;
    d->in->extra = x;
    d->in->run = run_mma;
    return 1;
}
