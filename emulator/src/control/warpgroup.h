/* Instructions that all warps of a warpgroup must run (warpgroup.c). */
#ifndef WARPGROUP_H
#define WARPGROUP_H

#include "machine/machine.h"

enum { WARPGROUP = 4 };

/* This warp runs the instruction now; `first` and `second` are descriptors, which must be the same in all warps. Faults
 * where another warp of the warpgroup ran something else in its place, or has exited. */
void warpgroup_common(warp *w, const instr *in, uint64_t first, uint64_t second);

#endif
