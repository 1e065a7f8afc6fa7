/* A debug build's (NVFP4_WATCHDOG) record of waits that do not end, one an image, in host memory that the GPU
 * writes: it can be read when the kernel has trapped or hangs. Plain C; driver/watchdog.c puts it into words. */
#ifndef NVFP4_COMMON_WATCHDOG_H
#define NVFP4_COMMON_WATCHDOG_H

#include <stdint.h>

enum { WATCHDOG_NONE, WATCHDOG_MBARRIER, WATCHDOG_FLAG, WATCHDOG_CLUSTER, WATCHDOG_GRID };

#define WATCHDOG_FILE_BYTES 16
#define WATCHDOG_EXPIRED    64   /* waits that gave up; later ones are not recorded */
#define WATCHDOG_BLOCKED    8192 /* warps; no GPU has more at once than 8192 of kernels with such waits */

typedef struct watchdog_wait {
    int32_t kind;                   /* WATCHDOG_NONE: nothing is recorded here. Written last */
    int32_t line;                   /* of the call */
    char file[WATCHDOG_FILE_BYTES]; /* its name without folders, cut where it is longer */
    uint32_t cta_x, cta_y, warp;    /* blockIdx; threadIdx.x / 32 */
    uint32_t wanted;                /* parity of an mbarrier's phase, or arrivals of a flag */
    uint32_t seen;                  /* arrivals of a flag */
    uint32_t polls;                 /* that failed */
    uint64_t address;               /* of the mbarrier in shared memory, of the flag in global memory */
} watchdog_wait;

typedef struct watchdog_record {
    watchdog_wait expired[WATCHDOG_EXPIRED];
    /* Warps in barrier.cluster.wait and griddepcontrol.wait, which cannot give up. A warp's entry is its number in the
     * grid modulo WATCHDOG_BLOCKED. */
    watchdog_wait blocked[WATCHDOG_BLOCKED];
} watchdog_record;

/* The kernels' variable nvfp4_watchdog. */
typedef struct watchdog_state {
    watchdog_record *record; /* NULL: waits do not give up */
    uint64_t limit;          /* clocks of a wait */
    uint32_t expired;        /* waits that gave up so far */
    uint32_t padding_;
} watchdog_state;

#endif
