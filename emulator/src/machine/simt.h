/* Shared by simt.c, machine.c and start.c. */
#ifndef EMULATOR_SIMT_H
#define EMULATOR_SIMT_H

#include "machine/machine.h"

void warps_start(cta *c); /* start.c: with registers as they are before the first instruction */
void warps_free(cta *c);
void forget_image(grid *g); /* the grid ends */
/* start.c: memory that CTAs take and give back; not initialised, aligned to 64 bytes. */
void *spare_take(machine *m, size_t bytes);
void spare_give(machine *m, void *p, size_t bytes);
void spare_free(machine *m);
/* Runs up to `budget` instructions. 1: it ended with a poll that failed. */
int warp_turn(machine *m, warp *w, uint32_t budget);
int warp_can_run(const warp *w);
void machine_ready(warp *w); /* puts it into the ready list, if it is not there and can run */

extern machine *machine_running; /* the one in machine_run, NULL: none */
void cluster_barrier_exit(warp *w, uint32_t lanes);

#endif
