/* Hooks of the waits: with NVFP4_WATCHDOG a wait on an mbarrier or a flag that exceeds its limit of clocks is recorded
 * (watchdog.h), and the kernel traps; warps blocked in an instruction are recorded while they are. Without it the hooks
 * are empty and the machine code is the same as without them (tests/kernels/test_watchdog.py).
 *
 *   __device__ __forceinline__ void some_wait(..., wait_site site = WAIT_SITE)
 */
#ifndef NVFP4_COMMON_WATCHDOG_CUH
#define NVFP4_COMMON_WATCHDOG_CUH

#ifdef NVFP4_WATCHDOG

#include "kernels/common/watchdog.h"

extern "C" __device__ watchdog_state nvfp4_watchdog;
__device__ watchdog_state nvfp4_watchdog; /* every .cu file is a module of its own */

/* The place of a wait in the sources. */
struct wait_site {
    const char *file;
    int line;
};
#define WAIT_SITE {__builtin_FILE(), __builtin_LINE()}

__device__ __forceinline__ void watchdog_write(volatile watchdog_wait &to, int32_t kind, const wait_site &site,
                                               uint64_t address, uint32_t wanted, uint32_t seen, uint32_t polls) {
    const char *name = site.file;
    for (const char *c = site.file; *c; c++)
        if (*c == '/') name = c + 1;
    for (int i = 0; i < WATCHDOG_FILE_BYTES; i++) {
        to.file[i] = *name;
        if (*name) name++;
    }
    to.line = site.line;
    to.cta_x = blockIdx.x, to.cta_y = blockIdx.y, to.warp = threadIdx.x / 32;
    to.address = address, to.wanted = wanted, to.seen = seen, to.polls = polls;
    __threadfence_system();
    to.kind = kind;
}

__device__ __forceinline__ bool is_first_active_lane() {
    return (__activemask() & ((1u << threadIdx.x % 32) - 1)) == 0;
}

/* A wait that polls: again() after each poll that failed. */
struct polled_wait {
    const int32_t kind;
    const uint64_t address;
    const uint32_t wanted;
    const wait_site &site;
    const int64_t start = clock64();
    uint32_t polls = 0; /* that failed */

    __device__ __forceinline__ polled_wait(int32_t kind, uint64_t address, uint32_t wanted, const wait_site &site)
        : kind(kind), address(address), wanted(wanted), site(site) {}

    __device__ __forceinline__ void again(uint32_t seen = 0) {
        polls++;
        const uint64_t limit = nvfp4_watchdog.limit;
        if (!nvfp4_watchdog.record || (uint64_t)(clock64() - start) < limit) return;
        if (is_first_active_lane()) {
            uint32_t place = atomicAdd(&nvfp4_watchdog.expired, 1);
            if (place < WATCHDOG_EXPIRED)
                watchdog_write(nvfp4_watchdog.record->expired[place], kind, site, address, wanted, seen, polls);
            __threadfence_system();
        }
        /* Time for the waits that expire at about the same time, in this warp and others: all are recorded. */
        for (const int64_t end = clock64(); (uint64_t)(clock64() - end) < limit / 4;) __nanosleep(1000);
        asm volatile("trap;");
    }
};

/* A wait inside one instruction: recorded from construction to destruction. */
struct blocked_wait {
    volatile watchdog_wait *to = nullptr;

    __device__ __forceinline__ blocked_wait(int32_t kind, const wait_site &site) {
        if (!nvfp4_watchdog.record || !is_first_active_lane()) return;
        const uint32_t warps = (blockDim.x + 31) / 32, cta = blockIdx.y * gridDim.x + blockIdx.x;
        to = &nvfp4_watchdog.record->blocked[(cta * warps + threadIdx.x / 32) % WATCHDOG_BLOCKED];
        watchdog_write(*to, kind, site, 0, 0, 0, 0);
    }
    __device__ __forceinline__ ~blocked_wait() {
        if (to) to->kind = WATCHDOG_NONE;
    }
};
#define RECORD_BLOCKED(kind) blocked_wait recorded(kind, site)

#else

struct wait_site {};
#define WAIT_SITE                                                                                                      \
    {                                                                                                                  \
    }
#define RECORD_BLOCKED(kind) (void)site

#endif

#endif
