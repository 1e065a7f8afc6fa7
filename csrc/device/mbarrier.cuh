/* mbarrier: barriers in shared memory that count arrivals and bytes (PTX ISA 9.0, section 9.7.13.15). A phase ends when
 * all arrivals of it have come and as many bytes as were expected have landed. A waiter names the parity of the phase
 * whose end it waits for; on a fresh barrier parity 1 passes at once, so that a ring's producer begins with it.
 * Needs sm_90. */
#ifndef NVFP4_DEVICE_MBARRIER_CUH
#define NVFP4_DEVICE_MBARRIER_CUH

#include "shared.cuh"

/* One thread, before any other use; count arrivals a phase. */
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

/* By the thread that initialised, before the cluster's barrier that lets others use them: also the async proxy. */
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* At a barrier of any CTA of the cluster (address by mapa), without a promise about this thread's memory: what
 * was read of tensor memory is ordered by tcgen05's own wait and fence. A release here would wait until all that the
 * thread has stored to global memory has landed. */
__device__ __forceinline__ void mbarrier_arrive_relaxed(uint32_t barrier) {
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrives and expects so many bytes of asynchronous copies more in this phase. */
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* Waits for the end of the phase of that parity. What arrivers of this CTA did before is then visible, and what bulk
 * copies and tensor cores did that the barrier counts, of the pair's other CTA too. Ordinary stores of other CTAs are
 * not: that scope would drop the SM's L1 cache behind every wait. */
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{ .reg .pred done; WAIT: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;"
                 " @!done bra WAIT; }" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* The same where other CTAs of the cluster have sent data by their threads. */
__device__ __forceinline__ void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity) {
    asm volatile("{ .reg .pred done; WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;"
                 " @!done bra WAIT; }" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* A place in a ring of slots, and the parity of the phase that ends when the slot is filled this time round. */
template <int STAGES> struct pipeline_state {
    uint32_t index = 0, phase = 0;

    __device__ __forceinline__ void advance() {
        index++;
        if (index == STAGES) index = 0, phase ^= 1;
    }
};

#endif
