/* Puts what a debug build (NVFP4_WATCHDOG) records of waits into words. */
#ifndef NVFP4_DRIVER_WATCHDOG_H
#define NVFP4_DRIVER_WATCHDOG_H

#include <stddef.h>

#include "kernels/common/watchdog.h"

/* Writes to `text` which waits of a kernel gave up, and which warps are blocked in an instruction: one for each place
 * in the sources, at most 8 places. Returns the number of places; 0: nothing is recorded, and `text` is empty. */
int watchdog_describe(const watchdog_record *record, char *text, size_t bytes);

#endif
