/* Shared by mma, cp, shift and commit: operations that threads issue to the tensor core of their CTA or pair, and
 * the instruction descriptor (PTX ISA 9.7.16.4.2). */
#ifndef EMULATOR_TCGEN05_H
#define EMULATOR_TCGEN05_H

#include "async/async.h"
#include "tensor/arithmetic.h"
#include "tensor/descriptor.h"
#include "tensor/tmem.h"

/* ---- the queue (tcgen05_commit.c) ---- */

/* mma, cp and shift run in the order in which they were issued, whichever thread did: the text promises less (it says
 * nothing of cp behind mma), but programs that are right on hardware count on it. A commit tracks the operations of its
 * own thread only. The family embeds this as its first member. */
typedef struct core_op {
    async_op op;
    tensor_core *core;
    int lane;
    struct core_commit *commits; /* that this operation, the last of its thread, lets go when it ends */
    tmem_reader reader;
    tmem_note note;
} core_op;

/* Queues it for the core, which fault()s where the peer has exited. The operation was allocated with malloc. */
void core_start(core_op *op, warp *w, const instr *in, int lane, tensor_core *core, int (*step)(async_op *),
                const char *what);

/* ---- the instruction descriptor (tcgen05_instruction.c) ---- */

typedef enum { KIND_F16, KIND_TF32, KIND_F8F6F4, KIND_I8, KIND_MXF8F6F4, KIND_MXF4, KIND_MXF4NVF4 } mma_kind;
extern const char *const mma_kind_names[]; /* "kind::f16" ..., NULL-ended */

typedef struct {
    uint32_t m, n, k;
    tensor_element a_type, b_type;
    tensor_accumulator d_type;
    int negate_a, negate_b, transpose_a, transpose_b, saturate;
    uint32_t sfa_id, sfb_id;
    tensor_scale scale_type;
} mma_shape;

/* Takes it apart, and faults on every field that this kind does not allow. `blocks`: scales a row, 0 without. */
mma_shape mma_shape_of(warp *w, const instr *in, int lane, uint32_t bits, mma_kind kind, int group,
                       int weight_stationary, int blocks);

/* ---- mma: issue in tcgen05_mma.c, execution in tcgen05_multiply.c ---- */

/* Where rows and columns of D lie (9.7.16.10.5, table "data path layout"). */
typedef enum {
    LAYOUT_FULL,   /* A, D: lane = row of the CTA */
    LAYOUT_SPREAD, /* F: 16 rows in each quarter */
    LAYOUT_FOLDED  /* B, E, G: columns in 2 or 4 parts, one above the other in lanes */
} mma_layout;

/* The instruction. */
typedef struct {
    mma_kind kind;
    int group, weight_stationary, blocks, a_in_tmem, ashift;
    enum { COLLECTOR_DISCARD, COLLECTOR_FILL, COLLECTOR_USE, COLLECTOR_LASTUSE } collector;
    int buffer; /* of the collector: 0 a, 1-4 b0-b3 */
    address_operand d, a, sfa, sfb;
    uint32_t a_descriptor, b_descriptor, instruction; /* slots */
    uint32_t enable;                                  /* slot; NO_SLOT: enable_constant says it */
    int enable_negated, enable_constant;
    int masks; /* words of disable-output-lane: 0, 4, 8 */
    const uint32_t *mask;
    int scale_input_d;
} mma_instruction;

/* One execution. */
typedef struct {
    core_op base;
    const mma_instruction *what;
    mma_shape shape;
    mma_layout layout;
    uint32_t parts;          /* of N, of LAYOUT_FOLDED */
    uint32_t rows;           /* of M in each CTA */
    uint32_t d, a, sfa, sfb; /* addresses */
    matrix_view a_view, b_view;
    int accumulate;
    uint32_t mask[8];
    uint32_t done; /* rows, of all CTAs */
} mma_op;

/* A tensor_op with all that does not depend on rows. */
tensor_op mma_arithmetic(const mma_op *o, const machine *m);
int mma_step(async_op *op);

#endif
