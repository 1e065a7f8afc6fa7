/* Shared by control.c and system_calls.c: where the parameters of a call are. */
#ifndef EMULATOR_CONTROL_H
#define EMULATOR_CONTROL_H

#include "machine/machine.h"

/* A register, or bytes of the thread's local memory. */
typedef struct call_place {
    int is_register, bits;
    uint32_t slot, bytes;
    int64_t offset;
} call_place;

typedef struct kept_register {
    uint32_t offset, lane_bytes; /* in the function's part of the register file; 0 bytes: a predicate */
} kept_register;

typedef struct call_target_places {
    const function *function;
    call_place *parameters, *results;
    int parameter_count, result_count;
    kept_register *registers; /* of a recursive function */
    int register_count;
} call_target_places;

/* in->extra of a call. */
typedef struct call_plan {
    call_place *arguments, *results;
    int argument_count, result_count, target_count;
    uint32_t argument_bytes, result_bytes;
    call_target_places *targets; /* one, or through a register all that the entry has */
} call_plan;

void call_read(const warp *w, const call_place *p, uint32_t lane, void *data);
void call_write(warp *w, const call_place *p, uint32_t lane, const void *data);
run_function *system_call(const char *name, int parameters); /* NULL: there is none of that many */

#endif
