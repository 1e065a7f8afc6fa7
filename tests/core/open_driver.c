/* How a context opens the CUDA driver, describes devices and lets them go, on a libcuda that runs nothing
 * (NVFP4_LIBCUDA). Four threads start device 0 at once. Prints what each call answers and the properties that plans
 * depend on; the entry points that it calls are in FAKE_CALLS. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>

#include "api/context.h"

enum { THREADS = 4 };

static nvfp4_context *context;

static void *start_device(void *status) {
    *(nvfp4_status *)status = nvfp4_init_device(context, 0);
    return NULL;
}

int main(void) {
    if (nvfp4_create(&context)) return 1;
    pthread_t threads[THREADS];
    nvfp4_status started[THREADS];
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, start_device, &started[i])) return 1;
    for (int i = 0; i < THREADS; i++)
        if (pthread_join(threads[i], NULL) || started[i]) return 1;

    static const int32_t devices[] = {1, 1, 3, -7, INT32_MIN};
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        nvfp4_status status = nvfp4_init_device(context, devices[i]);
        printf("%d: %s\n", (int)status, status ? nvfp4_last_error() : "");
    }
    nvfp4_device info;
    nvfp4_status status = nvfp4_device_info(context, -7, &info);
    printf("%d: %s\n", (int)status, status ? nvfp4_last_error() : "");

    const device_props *props;
    if (driver_ready(context->driver, 0, &props)) return 1;
    printf("%d %d %d %d %d %d %" PRId64, props->compute_capability, props->sm_count, props->shared_per_block,
           props->shared_per_sm, props->clock_mhz, props->memory_gb_s, props->l2_bytes);
    for (int i = 0; i < 6; i++) printf(" %d", props->clusters[i / 3][i % 3]);
    printf("\n");
    nvfp4_destroy(context);
    return 0;
}
