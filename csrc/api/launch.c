/* Passes a launch plan to the driver. */
#include "api/launch.h"

#include <stdio.h>

#include "common/error.h"

static nvfp4_status enqueue(driver *d, int32_t device, const kernel_set *set, launch_plan *plan, void *stream) {
    nvfp4_status status = NVFP4_OK;
    for (int32_t i = 0; i < plan->tensor_maps && !status; i++)
        status = driver_encode(d, device, &plan->tensor_map[i].layout, plan->params + plan->tensor_map[i].offset);
    for (int32_t i = 0; i < plan->steps && !status; i++) {
        const launch_step *step = &plan->step[i];
        void *params[PLAN_MAX_PARAMS];
        for (int32_t j = 0; j < step->params; j++) params[j] = plan->params + step->param_offset[j];
        const kernel_launch one = {.set = set,
                                   .kernel = step->kernel,
                                   .cluster = step->cluster,
                                   .grid_x = step->grid_x,
                                   .grid_y = step->grid_y,
                                   .grid_z = step->grid_z,
                                   .shared_bytes = step->shared_bytes,
                                   .params = params,
                                   .stream = stream};
        status = driver_launch(d, device, &one);
    }
    return status ? status : driver_watch(d, device, stream);
}

nvfp4_status launch_steps(nvfp4_context *context, const target *where, const kernel_set *set, launch_plan *plan,
                          void *stream) {
    nvfp4_status status = enqueue(context->driver, where->device, set, plan, stream);
    if (!where->host_memory) return status;
    if (!status) return driver_synchronize(context->driver, where->device, stream);
    /* An earlier launch may still use the caller's memory. If waiting for it fails too, the first error is told. */
    char reason[1024];
    snprintf(reason, sizeof reason, "%s", nvfp4_last_error());
    driver_synchronize(context->driver, where->device, stream);
    return fail(status, "%s", reason);
}
