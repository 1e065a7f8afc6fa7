/* mbarrier: barriers in shared memory that count arrivals and bytes (PTX ISA 9.0, 9.7.13.15). A phase completes when
 * all its arrivals have come and as many bytes as expected (expect_tx) have been written. A waiter names the parity of
 * the phase it waits for; a wait for parity 1 on a new barrier returns at once, so a producer begins with it. Needs
 * sm_90. */
#ifndef NVFP4_COMMON_MBARRIER_CUH
#define NVFP4_COMMON_MBARRIER_CUH

#include "kernels/common/shared.cuh"
#include "kernels/common/watchdog.cuh"

/* One thread, before any other use; count: arrivals a phase. */
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

/* The thread that initialized, before the CTA or cluster barrier: makes init visible to the cluster and the async
 * proxy. */
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* On a barrier of any CTA of the cluster (address by mapa), without ordering of this thread's memory accesses: enough
 * after tcgen05.wait and tcgen05.fence. A release would wait for all global stores of the thread. */
__device__ __forceinline__ void mbarrier_arrive_relaxed(uint32_t barrier) {
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrives, and adds `bytes` of asynchronous copies to what this phase expects. */
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* Waits until the phase of that parity completes. Orders what arriving threads of this CTA did before, and the TMA
 * loads and tcgen05 operations that the barrier counts, those of the pair's other CTA too. Does not order ordinary
 * stores of other CTAs: acquire.cluster would invalidate the L1 cache at each wait. */
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity, wait_site site = WAIT_SITE) {
#ifdef NVFP4_WATCHDOG
    uint32_t done;
    for (polled_wait wait(WATCHDOG_MBARRIER, barrier, parity, site);; wait.again()) {
        asm volatile("{ .reg .pred done; mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%1], %2;"
                     " selp.u32 %0, 1, 0, done; }"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
        if (done) return;
    }
#else
    (void)site;
    asm volatile("{ .reg .pred done; WAIT: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;"
                 " @!done bra WAIT; }" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
#endif
}

/* Whether that phase has completed; if so, orders as mbarrier_wait does. */
__device__ __forceinline__ bool mbarrier_test(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    asm volatile("{ .reg .pred done; mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 done, [%1], %2;"
                 " selp.u32 %0, 1, 0, done; }"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done != 0;
}

/* mbarrier_wait with cluster scope, for data that threads of other CTAs have stored. */
__device__ __forceinline__ void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity, wait_site site = WAIT_SITE) {
#ifdef NVFP4_WATCHDOG
    uint32_t done;
    for (polled_wait wait(WATCHDOG_MBARRIER, barrier, parity, site);; wait.again()) {
        asm volatile("{ .reg .pred done; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%1], %2;"
                     " selp.u32 %0, 1, 0, done; }"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
        if (done) return;
    }
#else
    (void)site;
    asm volatile("{ .reg .pred done; WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;"
                 " @!done bra WAIT; }" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
#endif
}

/* The stage of a pipeline and the phase parity of its full barrier; the consumer waits for phase, the producer waits
 * for phase ^ 1 on the empty barrier. */
template <int STAGES> struct pipeline_state {
    uint32_t index = 0, phase = 0;

    __device__ __forceinline__ void advance() {
        index++;
        if (index == STAGES) index = 0, phase ^= 1;
    }
};

#endif
