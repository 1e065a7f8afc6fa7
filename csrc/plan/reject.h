/* Why a backend has no candidates for a product: what several backends say. */
#ifndef NVFP4_PLAN_REJECT_H
#define NVFP4_PLAN_REJECT_H

#include "plan/gemm_backend.h"

/* NVFP4_OK: a CTA of the GPU has enough shared memory for one of these kernels at least. */
nvfp4_status reject_shared_memory(const char *backend, const kernel_entry *kernels, int32_t count,
                                  const device_props *props);

/* The product has more tiles than a grid or a counter of the kernels takes. */
nvfp4_status reject_tiles(const char *backend, const gemm_traits *traits);

#endif
