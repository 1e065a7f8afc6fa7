/* The steps around experts on the GPU: gated activations, the sort of choices by expert, sums of experts' rows. */
#ifndef NVFP4_MOE_KERNELS_H
#define NVFP4_MOE_KERNELS_H

#define ROWS_THREADS   256 /* of a CTA of gated or combine, whose threads have ROWS_COLUMNS columns of a row each */
#define ROWS_COLUMNS   8
#define ROUTE_THREADS  1024 /* one for each expert that there may be */
#define ROUTE_COUNTERS 8192 /* 32 KiB of shared memory */
/* A CTA takes choices once each warp has 32. All of them count all choices. */
#define ROUTE_MAX_CTAS 64

#endif
