/* Thread block clusters: rank, addresses of each other's shared memory, the barrier of all their threads (PTX ISA 9.0,
 * sections 9.7.9.23 mapa, 9.7.13.4 barrier.cluster), and the order between dependent grids (9.7.13.13 griddepcontrol).
 * Needs sm_90. */
#ifndef NVFP4_DEVICE_CLUSTER_CUH
#define NVFP4_DEVICE_CLUSTER_CUH

#include <stdint.h>

__device__ __forceinline__ uint32_t cluster_ctarank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* The address that a CTA of that rank has for what lies at `address` of this CTA's shared memory. */
__device__ __forceinline__ uint32_t mapa(uint32_t address, uint32_t rank) {
    uint32_t mapped;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
    return mapped;
}

/* Every thread of every CTA of the cluster calls both, converged. What a thread did before its arrival is visible to
 * all behind their wait. */
__device__ __forceinline__ void barrier_cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void barrier_cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* An arrival that promises nothing about memory: for barriers initialised before, which fence_mbarrier_init publishes,
 * and where CTAs must only have come so far. The other one waits for all that the thread has stored. */
__device__ __forceinline__ void barrier_cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

/* Sends four floats to 16 bytes of the shared memory of any CTA of the cluster; its mbarrier counts the bytes when they
 * are there (section 9.7.9.12 st.async). Both addresses by mapa. */
__device__ __forceinline__ void st_async(uint32_t to, uint32_t barrier, float x, float y, float z, float w) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
        "f"(x), "f"(y), "f"(z), "f"(w), "r"(barrier)
        : "memory");
}

/* Lets the next grid of a queue start once every CTA of this one has called it (or ended): it may then prepare. */
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* Waits until the grids before have ended and what they wrote is visible. Each thread that touches global memory that
 * others write, or write of which others read, calls it first. */
__device__ __forceinline__ void griddepcontrol_wait() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

#endif
