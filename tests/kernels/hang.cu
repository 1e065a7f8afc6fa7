/* A wait that does not end (test_watchdog.py). */
#include "kernels/common/mbarrier.cuh"

extern "C" __global__ void hang() {
    __shared__ __align__(8) uint64_t barrier;
    uint32_t address = (uint32_t)__cvta_generic_to_shared(&barrier);
    mbarrier_init(address, 1);
    mbarrier_wait(address, 0);
}
