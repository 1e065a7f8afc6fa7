/* Shared by the asynchronous instructions (async.c, mbarrier.c, bulk.c, tma.c, cluster.c): pieces of operations, and
 * operands that are shared addresses. */
#ifndef EMULATOR_ASYNC_H
#define EMULATOR_ASYNC_H

#include "machine/machine.h"

/* ---- pieces (async.c) ---- */

/* How many of `left` (> 0) units an operation does in this step: all of them where the seed is eager. */
uint32_t async_piece(machine *m, uint32_t left);
/* The operation no longer touches the memory of op->touches[which]. Wakes waiting warps. */
void async_untouch(async_op *op, int which);
/* Arrivals of the CTA's threads at mbarriers of other CTAs (mbarrier.c). A cluster barrier completes after them. */
int mbarrier_arrivals_under_way(const cta *from);
/* Drops everything under way: the machine is being destroyed. */
void async_clear(machine *m);

/* Units 0 .. count-1, each once, in an order drawn from the seed. */
typedef struct {
    uint32_t count, done, at, stride;
} piece_order;
piece_order piece_order_of(machine *m, uint32_t count);
uint32_t piece_order_next(piece_order *o);

/* ---- address operands (async.c) ---- */

typedef struct {
    uint32_t slot;
    int bits; /* of the register */
    int64_t offset;
    ptx_space space; /* SPACE_NONE: generic */
} address_operand;

address_operand take_address(decoder *d, int index, ptx_space space);
uint64_t address_value(const warp *w, const address_operand *a, uint32_t lane);
/* The CTA and the offset that a lane's address of shared memory means; faults if it means none, or if the space is
 * .shared::cta and the CTA another one. `what` names the operand in the message. */
cta *shared_operand(warp *w, const instr *in, uint32_t lane, const address_operand *a, uint32_t *offset,
                    const char *what);

#endif
