/* wgmma: a warpgroup's matrix multiply on Hopper (PTX ISA 9.7.15).
 *
 * Each of the four warps computes its own 16 rows of D independently, so an operation here is one warp's share of
 * the instruction. It reads shared memory piece by piece, in the order of issue; the accumulators hold poison until
 * wait_group delivers them. A chained wgmma takes the accumulator of the one before, wherever its registers have
 * been moved. With EMULATE_FENCES=hardware an operation begins when all four warps have issued it, and ends for all
 * four at once.
 *
 * Missing: .sp (sparse) and .b1. A wgmma.fence is required for accumulators that a thread writes, not for those it
 * reads. */
#include <stdlib.h>

#include "async/async.h"
#include "control/warpgroup.h"
#include "tensor/arithmetic.h"
#include "tensor/descriptor.h"

typedef struct {
    int n, k;
    tensor_element element, b_element;
    tensor_accumulator d_type;
    int element_bytes, a_in_registers, transpose_a, transpose_b, negate_a, negate_b, saturate;
    const uint32_t *d, *a;
    int d_count, a_count;
    uint32_t a_descriptor, b_descriptor, scale_d;
    int scale_d_negated;
} wgmma_instruction;

enum { ROWS = 16, K_BYTES = 32, MOST_D = 128, SLAB = 64 /* rows of B in a piece */, MOST_RESULTS = 16 };

typedef struct wgmma_op {
    async_op base;
    const wgmma_instruction *what;
    struct wgmma_op *next; /* of the warp, in order of issue */
    int accumulate, done, delivered;
    uint64_t group, serial; /* of the warp's operations */
    int a_read;             /* registers of A */
    uint32_t gathered;      /* rows of B */
    matrix_view a_view, b_view;
    const uint32_t *c[MOST_D]; /* where each accumulator's 32 lanes come from: own copy, or an earlier one's result */
    struct wgmma_op *chained;  /* that one */
    int users;                 /* ops that take their accumulator from here */
    int taken;                 /* true if one has: then registers never get this result */
    int kept;                  /* among the warp's results */
    uint32_t d[MOST_D][WARP_LANES];
    _Alignas(64) uint8_t a[ROWS * K_BYTES];
    _Alignas(64) uint8_t b[256 * K_BYTES];
} wgmma_op;

typedef struct {
    async_queue queue;
    wgmma_op *first, *last;
    uint64_t group;        /* that ops belong to until the next commit_group; committed ones are smaller */
    uint64_t issued, read; /* operations, and those of them that have read shared memory */
    int fenced;
    uint8_t *fenced_registers; /* as they were at the last wgmma.fence; NULL where hardware is forgiving */
    wgmma_op *results;         /* delivered since the last wgmma.fence; `forgotten`: there were more than are kept */
    int result_count, forgotten;
} wgmma_state;

static wgmma_state *state_of(warp *w) {
    if (!w->wgmma) w->wgmma = calloc(1, sizeof(wgmma_state));
    if (!w->wgmma) abort();
    return w->wgmma;
}

/* ---- the multiplication ---- */

/* Row and column of accumulator register i in a lane: as mma.sync's D, repeated every 8 columns. */
static int row_of(int i, int lane) {
    return lane / 4 + 8 * (i >> 1 & 1);
}
static int column_of(int i, int lane) {
    return 8 * (i >> 2) + 2 * (lane % 4) + (i & 1);
}

static void multiply(wgmma_op *o, machine *m) {
    const wgmma_instruction *x = o->what;
    static _Alignas(64) uint32_t d[ROWS][256]; /* one host thread runs everything */
    int packed = x->d_type == TENSOR_D_F16, registers = x->d_count;
    for (int i = 0; i < registers && o->accumulate; i++)
        for (int lane = 0; lane < WARP_LANES; lane++) {
            uint32_t value = o->c[i][lane];
            if (packed) {
                int row = lane / 4 + 8 * (i & 1), column = 8 * (i >> 1) + 2 * (lane % 4);
                d[row][column] = value & 0xffff;
                d[row][column + 1] = value >> 16;
            } else {
                d[row_of(i, lane)][column_of(i, lane)] = value;
            }
        }
    tensor_op op = {
        .architecture = TENSOR_SM90_WGMMA,
        .rule = m->arithmetic == ARITHMETIC_FP64 ? TENSOR_FP64 : TENSOR_HARDWARE,
        .m = ROWS,
        .n = x->n,
        .k = x->k,
        .a_type = x->element,
        .b_type = x->b_element,
        .d_type = x->d_type,
        .a = o->a,
        .a_stride = K_BYTES,
        .b = o->b,
        .b_stride = K_BYTES,
        .c = o->accumulate ? d : NULL,
        .c_stride = sizeof d[0],
        .c_step = 4,
        .d = d,
        .d_stride = sizeof d[0],
        .d_step = 4,
        .negate_a = x->negate_a,
        .negate_b = x->negate_b,
        .saturate = x->saturate,
    };
    tensor_multiply(&op);
    for (int i = 0; i < registers; i++)
        for (int lane = 0; lane < WARP_LANES; lane++) {
            if (packed) {
                int row = lane / 4 + 8 * (i & 1), column = 8 * (i >> 1) + 2 * (lane % 4);
                o->d[i][lane] = (d[row][column] & 0xffff) | d[row][column + 1] << 16;
            } else {
                o->d[i][lane] = d[row_of(i, lane)][column_of(i, lane)];
            }
        }
}

static void let_go(wgmma_op *o) {
    if (o->done && o->delivered && !o->kept && o->users == 0) free(o);
}

/* ---- accumulators and wgmma.fence ---- */

/* A thread's writes to accumulators reach the next wgmma only through a fence (9.7.15.7.1). Registers have one copy
 * here, and compilers copy them, so this is seen by values: where an instruction's accumulators got results since the
 * last fence and hold none of these results now, threads have written them. */

static void keep_result(wgmma_state *s, wgmma_op *o) {
    o->delivered = 1;
    if (!o->taken && s->result_count < MOST_RESULTS) {
        o->kept = 1;
        o->next = s->results;
        s->results = o;
        s->result_count++;
    } else {
        s->forgotten |= !o->taken;
        let_go(o);
    }
}

static void forget_results(wgmma_state *s) {
    while (s->results) {
        wgmma_op *o = s->results;
        s->results = o->next;
        o->kept = 0;
        let_go(o);
    }
    s->result_count = s->forgotten = 0;
}

/* What registers had at the last wgmma.fence. Compilers copy registers between it and the operation, so what counts is
 * that some register had the value, or half a 64-bit one. */
static void keep_registers(warp *w) {
    wgmma_state *s = w->wgmma;
    const entry *e = w->cta->grid->launch.entry;
    if (machine_of(w)->fences != FENCES_TEXT) return;
    if (!s->fenced_registers) s->fenced_registers = malloc(e->register_bytes);
    if (!s->fenced_registers) abort();
    memcpy(s->fenced_registers, w->registers, e->register_bytes);
}

static int was_fenced(const warp *w, uint32_t slot) {
    const wgmma_state *s = w->wgmma;
    const uint32_t *value = r32(w, slot);
    size_t row = WARP_LANES * sizeof *value, bytes = w->cta->grid->launch.entry->register_bytes;
    if (!memcmp(s->fenced_registers + slot, value, row)) return 1;
    for (size_t place = 0; place + row <= bytes; place += sizeof *value)
        if (!memcmp(s->fenced_registers + place, value, row)) return 1;
    for (size_t place = 0; place + 2 * row <= bytes; place += sizeof *value) { /* half of a 64-bit register */
        const uint32_t *wide = (const uint32_t *)(s->fenced_registers + place);
        int lane = 0;
        while (lane < WARP_LANES && wide[2 * lane] == value[lane]) lane++;
        if (lane == WARP_LANES) return 1;
    }
    return 0;
}

static int is_result(const wgmma_state *s, const uint32_t *value) {
    for (const wgmma_op *r = s->results; r; r = r->next)
        for (int i = 0; i < r->what->d_count; i++)
            if (!memcmp(r->d[i], value, sizeof r->d[i])) return 1;
    return 0;
}

static void check_written(warp *w, const instr *in, const wgmma_op *o) {
    const wgmma_state *s = w->wgmma;
    size_t bytes = (size_t)o->what->d_count * sizeof o->d[0];
    int had_result = 0;
    for (const wgmma_op *r = s->results; r; r = r->next) {
        if (r->what->d_count == o->what->d_count && !memcmp(r->d, o->d, bytes)) return;
        had_result |= r->what->d[0] == o->what->d[0];
    }
    if (had_result && !s->forgotten && machine_of(w)->fences == FENCES_TEXT)
        fault(w, in, -1,
              "the accumulator's registers have been written since a wgmma delivered its result to them, with no "
              "wgmma.fence since: it does not see what was written");
    if (s->forgotten || machine_of(w)->fences != FENCES_TEXT) return;
    for (int i = 0; i < o->what->d_count; i++)
        if (!was_fenced(w, o->what->d[i]) && !is_result(s, o->d[i]))
            fault(w, in, -1,
                  "accumulator register %d has been written since the last wgmma.fence: the operation does not see it",
                  i);
}

/* Whether all four warps have issued the operation, or have done their share. CUTLASS's simplest example has no other
 * barrier between a warp's copies and the others' wgmma than the one that the hardware needs to run them together. */
static int reached_by_all(const warp *w, uint64_t serial, int is_read) {
    for (int i = w->index / 4 * 4, end = i + 4; i < end; i++) {
        const warp *other = &w->cta->warps[i];
        const wgmma_state *s = other->wgmma;
        if (other->live && (!s || (is_read ? s->read : s->issued) <= serial)) return 0;
    }
    return 1;
}

/* The next register of A. By the text it may be read until the wait; nobody must have written it by then. */
static void read_a(wgmma_op *o, const warp *w) {
    int i = o->a_read++;
    const uint32_t *a = r32(w, o->what->a[i]);
    for (int lane = 0; lane < WARP_LANES; lane++)
        memcpy(&o->a[K_BYTES * (lane / 4 + 8 * (i & 1)) + 4 * (lane % 4) + 16 * (i >> 1)], &a[lane], 4);
}

static int step(async_op *base) {
    wgmma_op *o = (wgmma_op *)base;
    machine *m = base->from->grid->on;
    const wgmma_instruction *x = o->what;
    if (o->gathered == 0 && m->fences == FENCES_HARDWARE && !reached_by_all(base->by, o->serial, 0)) return STEP_HELD;
    if (o->a_read < x->a_count) {
        read_a(o, base->by);
        return 0;
    }
    if (o->gathered == 0 && !x->a_in_registers) {
        uint32_t first = (uint32_t)(base->by->index % 4) * ROWS;
        gather_matrix(base->from, &o->a_view, first, ROWS, o->a);
    }
    uint32_t left = (uint32_t)x->n - o->gathered, rows = left < SLAB ? left : SLAB;
    gather_matrix(base->from, &o->b_view, o->gathered, rows, o->b + o->gathered * K_BYTES);
    o->gathered += rows;
    if (o->gathered < (uint32_t)x->n) return 0;
    async_untouch(base, 0); /* shared memory has been read */
    if (base->by->wgmma) ((wgmma_state *)base->by->wgmma)->read++;
    multiply(o, m);
    base->from->traffic[TRAFFIC_MMA_SHARED_READ] += base->bytes;
    o->done = 1;
    return 1;
}

/* The engine is done with the operation; the warp may still have to take its result. */
static void release(async_op *base) {
    wgmma_op *o = (wgmma_op *)base;
    if (o->chained) {
        o->chained->users--;
        let_go(o->chained);
        o->chained = NULL;
    }
    o->done = 1; /* also where it is dropped with the machine: wgmma_warp_end frees it then */
    let_go(o);
}

/* ---- issue ---- */

/* The op under way whose result register i of `o` will be; NULL: the register holds its value. */
static wgmma_op *producer(const wgmma_state *s, const uint32_t *value) {
    for (wgmma_op *p = s->first; p; p = p->next)
        if (value >= p->d[0] && value < p->d[MOST_D - 1] + WARP_LANES) return p;
    return NULL;
}

static void take_accumulator(warp *w, const instr *in, wgmma_op *o) {
    wgmma_state *s = w->wgmma;
    const wgmma_instruction *x = o->what;
    for (int i = 0; i < x->d_count; i++) {
        const uint32_t *value = w->pending ? pending_value(w, x->d[i]) : NULL;
        wgmma_op *from = value ? producer(s, value) : NULL;
        if (value && (!from || (o->chained && from != o->chained)))
            fault(w, in, -1,
                  "accumulator register %d will be written by another operation under way than the first one", i);
        if (from && !o->chained) {
            if (i) fault(w, in, -1, "accumulator register %d is under way, but the first is not", i);
            o->chained = from;
            from->users++;
            from->taken = 1;
        }
        if (value) {
            o->c[i] = value;
        } else {
            if (o->chained) fault(w, in, -1, "accumulator register %d is not under way, but the first is", i);
            memcpy(o->d[i], r32(w, x->d[i]), sizeof o->d[i]);
            o->c[i] = o->d[i];
        }
    }
    if (!o->chained) check_written(w, in, o);
}

/* Registers of A need the fence too. */
static void check_a(warp *w, const instr *in) {
    const wgmma_instruction *x = in->extra;
    for (int i = 0; i < x->a_count && machine_of(w)->fences == FENCES_TEXT; i++)
        if (!was_fenced(w, x->a[i]))
            fault(w, in, -1,
                  "register %d of A has been written since the last wgmma.fence: the operation does not see the write",
                  i);
}

/* The same in every lane, as the text asks of the whole warpgroup. */
static matrix_descriptor descriptor_of(warp *w, const instr *in, uint32_t slot, const char *name) {
    const uint64_t *bits = r64(w, slot);
    for (int lane = 1; lane < WARP_LANES; lane++)
        if (bits[lane] != bits[0])
            fault(w, in, lane, "%s is 0x%016llx, and 0x%016llx in lane 0: it must be the same everywhere", name,
                  (unsigned long long)bits[lane], (unsigned long long)bits[0]);
    return wgmma_descriptor(w, in, bits[0], name);
}

static run_result run_wgmma(warp *w, const instr *in, uint32_t lanes) {
    if (!converge_aligned(w, in, lanes)) return RUN_PARK;
    if (lanes != ALL_LANES) fault(w, in, -1, "only lanes %08x of the warp are left; wgmma needs all 32", lanes);
    const wgmma_instruction *x = in->extra;
    wgmma_state *s = state_of(w);
    if (!s->fenced) fault(w, in, -1, "no wgmma.fence before the first wgmma.mma_async: it does not see the registers");
    if (w->index / 4 * 4 + 4 > w->cta->warp_count)
        fault(w, in, -1, "the warp is not in a full warpgroup of four: the block has %d warps", w->cta->warp_count);
    wgmma_op *o = aligned_alloc(64, (sizeof *o + 63) / 64 * 64);
    if (!o) abort();
    memset(o, 0, offsetof(wgmma_op, d));
    o->what = x;
    uint32_t bytes = 0;
    if (x->a_in_registers) {
        check_a(w, in);
        while (machine_of(w)->fences == FENCES_HARDWARE && o->a_read < x->a_count) read_a(o, w);
    } else {
        o->a_view = (matrix_view){.descriptor = descriptor_of(w, in, x->a_descriptor, "a-desc"),
                                  .rows = 64,
                                  .k_bytes = K_BYTES,
                                  .mn_major = x->transpose_a,
                                  .element_bytes = (uint32_t)x->element_bytes};
        check_matrix(w, in, w->cta, &o->a_view);
        bytes += ROWS * K_BYTES;
    }
    o->b_view = (matrix_view){.descriptor = descriptor_of(w, in, x->b_descriptor, "b-desc"),
                              .rows = (uint32_t)x->n,
                              .k_bytes = K_BYTES,
                              .mn_major = x->transpose_b,
                              .element_bytes = (uint32_t)x->element_bytes};
    check_matrix(w, in, w->cta, &o->b_view);
    bytes += (uint32_t)x->n * K_BYTES / 4; /* the four warps share one reading of B */
    warpgroup_common(w, in, x->a_in_registers ? 0 : *r64(w, x->a_descriptor), *r64(w, x->b_descriptor));
    uint32_t scale_d = *predicate(w, x->scale_d);
    if (x->scale_d_negated) scale_d = ~scale_d;
    if (scale_d != 0 && scale_d != ALL_LANES) fault(w, in, -1, "scale-d differs among the lanes: %08x", scale_d);
    o->accumulate = scale_d != 0;
    if (o->accumulate) take_accumulator(w, in, o);
    o->group = s->group;
    o->serial = s->issued++;
    if (s->last)
        s->last->next = o;
    else
        s->first = o;
    s->last = o;
    for (int i = 0; i < x->d_count; i++) pending_claim(w, x->d[i], 4, ALL_LANES, o->d[i]);
    o->base.step = step;
    o->base.release = release;
    o->base.what = "wgmma";
    o->base.bytes = bytes;
    o->base.touches[0] = w->cta;
    async_start(machine_of(w), &o->base, w, in, &s->queue);
    return RUN_NEXT;
}

static run_result run_fence(warp *w, const instr *in, uint32_t lanes) {
    if (!converge_aligned(w, in, lanes)) return RUN_PARK;
    warpgroup_common(w, in, 0, 0);
    wgmma_state *s = state_of(w);
    s->fenced = 1;
    forget_results(s);
    keep_registers(w);
    return RUN_NEXT;
}

static run_result run_commit(warp *w, const instr *in, uint32_t lanes) {
    if (!converge_aligned(w, in, lanes)) return RUN_PARK;
    warpgroup_common(w, in, 0, 0);
    state_of(w)->group++;
    return RUN_NEXT;
}

/* Ops of groups that are to have ended: all but the `allowed` latest committed ones. */
static run_result run_wait(warp *w, const instr *in, uint32_t lanes) {
    if (!converge_aligned(w, in, lanes)) return RUN_PARK;
    wgmma_state *s = state_of(w);
    uint64_t allowed = (uint64_t)in->imm, end = s->group > allowed ? s->group - allowed : 0;
    for (wgmma_op *o = s->first; o && o->group < end; o = o->next)
        if (!o->done || (machine_of(w)->fences == FENCES_HARDWARE && !reached_by_all(w, o->serial, 1)))
            return park(w, WAIT_ASYNC, allowed, 0);
    warpgroup_common(w, in, 0, 0);
    while (s->first && s->first->group < end) {
        wgmma_op *o = s->first;
        s->first = o->next;
        if (!s->first) s->last = NULL;
        pending_deliver(w, o->d[0], (size_t)MOST_D * WARP_LANES);
        keep_result(s, o);
    }
    return RUN_NEXT;
}

/* Ops under way belong to the engine, which releases them; results that nobody waited for go with the warp. */
void wgmma_warp_end(warp *w) {
    wgmma_state *s = w->wgmma;
    if (!s) return;
    forget_results(s);
    while (s->first) {
        wgmma_op *o = s->first;
        s->first = o->next;
        o->delivered = 1;
        let_go(o);
    }
    free(s->fenced_registers);
    free(s);
    w->wgmma = NULL;
}

/* ---- decoding ---- */

static void take_elements(decoder *d, wgmma_instruction *x, ptx_type *d_type, ptx_type *a_type, ptx_type *b_type) {
    static const struct {
        ptx_type type;
        tensor_element element;
        int bytes, k;
    } elements[] = {
        {TYPE_F16, TENSOR_F16, 2, 16},   {TYPE_BF16, TENSOR_BF16, 2, 16}, {TYPE_TF32, TENSOR_TF32, 4, 8},
        {TYPE_E4M3, TENSOR_E4M3, 1, 32}, {TYPE_E5M2, TENSOR_E5M2, 1, 32}, {TYPE_S8, TENSOR_S8, 1, 32},
        {TYPE_U8, TENSOR_U8, 1, 32},
    };
    *d_type = need_type(d);
    *a_type = need_type(d);
    *b_type = need_type(d);
    int found = 0;
    for (size_t i = 0; i < sizeof elements / sizeof *elements; i++) {
        if (elements[i].type == *a_type) {
            x->element = elements[i].element;
            x->element_bytes = elements[i].bytes;
            found++;
            if (elements[i].k != x->k) reject(d, "K is %d; with .%s it is %d", x->k, type_name(*a_type), elements[i].k);
        }
        if (elements[i].type == *b_type) {
            x->b_element = elements[i].element;
            found += elements[i].k == x->k;
        }
    }
    if (found != 2) reject(d, ".%s and .%s are not multiplied by wgmma", type_name(*a_type), type_name(*b_type));
    x->d_type = *d_type == TYPE_F16 ? TENSOR_D_F16 : *d_type == TYPE_S32 ? TENSOR_D_S32 : TENSOR_D_F32;
    int integer = *a_type == TYPE_S8 || *a_type == TYPE_U8;
    if (integer != (*d_type == TYPE_S32) || (!integer && *d_type != TYPE_F32 && *d_type != TYPE_F16))
        reject(d, "the sum of .%s products cannot be .%s", type_name(*a_type), type_name(*d_type));
    if (integer && x->n > 32 && x->n % 16) reject(d, "N is %d; with integers it is a multiple of 16 from 32 on", x->n);
}

/* 1 or -1 */
static int take_sign(decoder *d, int index) {
    int64_t sign = constant(d, index);
    if (sign != 1 && sign != -1) reject(d, "operand %d is %lld; it must be 1 or -1", index + 1, (long long)sign);
    return sign < 0;
}

static int take_bit(decoder *d, int index) {
    int64_t bit = constant(d, index);
    if (bit != 0 && bit != 1) reject(d, "operand %d is %lld; it must be 0 or 1", index + 1, (long long)bit);
    return (int)bit;
}

static int decode_mma_async(decoder *d) {
    if (has_modifier(d, "sp")) reject(d, "sparse wgmma is not emulated");
    if (has_modifier(d, "b1")) reject(d, "wgmma of single bits is not emulated");
    wgmma_instruction *x = decode_alloc(d, sizeof *x);
    need(d, "sync");
    need(d, "aligned");
    char shape[32];
    for (x->n = 256; x->n > 0; x->n -= 8) {
        static const int ks[] = {8, 16, 32};
        for (size_t i = 0; i < 3 && !x->k; i++) {
            snprintf(shape, sizeof shape, "m64n%dk%d", x->n, ks[i]);
            if (take(d, shape)) x->k = ks[i];
        }
        if (x->k) break;
    }
    if (!x->k) reject(d, "the shape is not one of wgmma's");
    ptx_type d_type, a_type, b_type;
    take_elements(d, x, &d_type, &a_type, &b_type);
    x->saturate = take(d, "satfinite");
    tensor_op op = {.architecture = TENSOR_SM90_WGMMA,
                    .m = ROWS,
                    .n = x->n,
                    .k = x->k,
                    .a_type = x->element,
                    .b_type = x->b_element,
                    .d_type = x->d_type,
                    .saturate = x->saturate};
    const char *reason = tensor_rejection(&op);
    if (reason) reject(d, "%s", reason);
    x->d = destination_vector(d, 0, d_type == TYPE_F16 ? TYPE_B32 : d_type, &x->d_count);
    int wanted = d_type == TYPE_F16 ? x->n / 4 : x->n / 2;
    if (x->d_count != wanted) reject(d, "D has %d registers; it needs %d", x->d_count, wanted);
    x->a_in_registers = d->statement->operands[1].kind == OPERAND_VECTOR;
    if (x->a_in_registers) {
        x->a = source_vector(d, 1, TYPE_B32, &x->a_count);
        if (x->a_count != 4) reject(d, "A has %d registers; it needs 4", x->a_count);
    } else {
        x->a_descriptor = source(d, 1, TYPE_B64);
    }
    x->b_descriptor = source(d, 2, TYPE_B64);
    x->scale_d = source_predicate(d, 3, &x->scale_d_negated);
    int next = 4;
    if (d_type != TYPE_S32) {
        x->negate_a = take_sign(d, next++);
        x->negate_b = take_sign(d, next++);
    }
    if (a_type == TYPE_F16 || a_type == TYPE_BF16) {
        if (!x->a_in_registers) x->transpose_a = take_bit(d, next++);
        x->transpose_b = take_bit(d, next++);
    }
    d->in->extra = x;
    d->in->run = run_wgmma;
    return 1;
}

static int decode_wgmma(decoder *d) {
    static const char *const actions[] = {"mma_async", "fence", "commit_group", "wait_group", NULL};
    if (d->module->sm != 90 || d->module->suffix != 'a') reject(d, "wgmma needs .target sm_90a");
    int action = take_one_of(d, actions);
    if (action < 0) reject(d, "one of .mma_async, .fence, .commit_group and .wait_group is missing");
    if (action == 0) return decode_mma_async(d);
    need(d, "sync");
    need(d, "aligned");
    static run_function *const runs[] = {NULL, run_fence, run_commit, run_wait};
    d->in->run = runs[action];
    if (action == 3) {
        d->in->imm = constant(d, 0);
        if (d->in->imm < 0) reject(d, "the number of groups is negative");
    }
    return 1;
}

const opcode_entry wgmma_opcodes[] = {{"wgmma", decode_wgmma}, {0}};
