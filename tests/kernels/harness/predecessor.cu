/* A grid of one CTA for the stream before a kernel with programmatic dependent launch. It lets the next grid start at
 * once, sleeps until nothing else can run, and then copies bytes. So a copy comes after everything that the next grids
 * do ahead of griddepcontrol.wait.
 *
 * The emulator adds the time of a nanosleep to globaltimer only if nothing has made progress for 64 turns: no store, no
 * barrier, no start of a CTA, no asynchronous operation, which it forces after some 70 such turns. NAPS outlasts a warp
 * that only computes, or rests, for thousands of turns. */
#include <stdint.h>

enum { COPIES = 2, NAP = 1000000 /* ns, the most */, NAPS = 20000 /* in a row */ };

struct late_copies {
    struct {
        uint8_t *to;
        const uint8_t *from;
        uint64_t bytes;
    } copy[COPIES]; /* one after the other */
};

static __device__ __forceinline__ uint64_t globaltimer() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}

extern "C" __global__ void predecessor(const __grid_constant__ late_copies late) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    if (threadIdx.x == 0)
        for (int naps = 0; naps < NAPS;) {
            uint64_t begin = globaltimer();
            __nanosleep(NAP);
            naps = globaltimer() - begin >= NAP ? naps + 1 : 0;
        }
    for (int i = 0; i < COPIES; i++) {
        __syncthreads();
        for (uint64_t at = threadIdx.x; at < late.copy[i].bytes; at += blockDim.x)
            late.copy[i].to[at] = late.copy[i].from[at];
    }
}
