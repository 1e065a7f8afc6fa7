/* What simt.c and machine.c have of each other. */
#ifndef EMULATOR_SIMT_H
#define EMULATOR_SIMT_H

#include "emulator.h"

void warp_start(warp *w);
/* Runs up to `budget` instructions. 1: it ended with a poll that failed. */
int warp_turn(machine *m, warp *w, uint32_t budget);
int warp_can_run(const warp *w);
void machine_ready(warp *w); /* puts it into the ready list, if it is not there and can run */

extern machine *machine_running; /* the one in machine_run, NULL: none */
void cluster_barrier_exit(warp *w, uint32_t lanes);

#endif
