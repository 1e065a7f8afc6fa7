/* A grid of one CTA that lets the next grid of the stream start at once, waits, and then copies bytes: what the next
 * grid does ahead of griddepcontrol.wait comes before the copy. */
#include <stdint.h>

static __global__ void late_copy_kernel(uint8_t *to, const uint8_t *from, uint64_t bytes, int64_t clocks) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    for (const int64_t start = clock64(); clock64() - start < clocks;) {
    }
    for (uint64_t i = threadIdx.x; i < bytes; i += blockDim.x) to[i] = from[i];
}

/* Returns a cudaError_t. */
extern "C" int late_copy(void *to, const void *from, uint64_t bytes, int64_t clocks, cudaStream_t stream) {
    late_copy_kernel<<<1, 1024, 0, stream>>>((uint8_t *)to, (const uint8_t *)from, bytes, clocks);
    return cudaGetLastError();
}
