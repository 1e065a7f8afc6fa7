// sm_90a: two grids, of which the second starts before the first has ended (programmatic dependent launch). The first
// writes y = 2 x + 1 and counts; the second writes z, from other blocks' parts of y, and clears x for the next use.
#include "device.cuh"

#define MUTATIONS(X)                                                                                                   \
    X(none)                                                                                                            \
    X(no_wait)                                                                                                         \
    X(wait_by_one_warp)                                                                                                \
    X(reads_before_wait)                                                                                               \
    X(clears_before_wait)                                                                                              \
    X(wait_behind_the_reads)

enum class mutation { MUTATIONS(MUTATION_NAME) };

enum { THREADS = 64, BLOCKS = 6, LENGTH = BLOCKS * THREADS };

static __device__ __forceinline__ void wait_for_first() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS) first(int *x, int *y) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    const u32 i = blockIdx.x * THREADS + threadIdx.x;
    volatile int *const from = x;
    y[i] = 2 * from[i] + 1;
}

template <mutation active> static __device__ __forceinline__ void run(int *x, const int *y, int *z) {
    const u32 i = blockIdx.x * THREADS + threadIdx.x, other = LENGTH - 1 - i;
    volatile const int *const from = y;
    int value = 0;
    if (IS(clears_before_wait)) x[i] = 0;
    if (IS(reads_before_wait)) value = from[other];
    if (IS(wait_behind_the_reads)) value = from[other] + from[i];
    if (!IS(no_wait) && (!IS(wait_by_one_warp) || threadIdx.x < 32)) wait_for_first();
    if (!IS(reads_before_wait) && !IS(wait_behind_the_reads)) value = from[other];
    if (!IS(wait_behind_the_reads)) value += from[i];
    z[i] = value;
    if (!IS(clears_before_wait)) x[i] = 0;
}

#define ENTRY(name)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS) name(int *x, const int *y, int *z) {                         \
        run<mutation::name>(x, y, z);                                                                                  \
    }
MUTATIONS(ENTRY)
