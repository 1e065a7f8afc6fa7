/* Passes a launch plan to the driver. */
#ifndef NVFP4_API_LAUNCH_H
#define NVFP4_API_LAUNCH_H

#include "api/context.h"
#include "plan/launch_plan.h"

/* Encodes the tensor maps of a launch plan into its parameters, and launches its steps, kernels of `set`. Waits for
 * them where the GPU works on host memory. */
nvfp4_status launch_steps(nvfp4_context *context, const target *where, const kernel_set *set, launch_plan *plan,
                          void *stream);

#endif
