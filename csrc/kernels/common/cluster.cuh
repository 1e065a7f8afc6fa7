/* Thread block clusters: rank, mapa, barrier.cluster, st.async (PTX ISA 9.0, 9.7.9.23, 9.7.13.4, 9.7.9.12), and
 * griddepcontrol, the order between dependent grids (9.7.13.13). Needs sm_90. */
#ifndef NVFP4_COMMON_CLUSTER_CUH
#define NVFP4_COMMON_CLUSTER_CUH

#include <stdint.h>

#include "kernels/common/watchdog.cuh"

__device__ __forceinline__ uint32_t cluster_ctarank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* The shared::cluster address of the same offset in the CTA of that rank. */
__device__ __forceinline__ uint32_t mapa(uint32_t address, uint32_t rank) {
    uint32_t mapped;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
    return mapped;
}

/* Every thread of every CTA of the cluster, converged, calls arrive and then wait. The wait orders all accesses before
 * the arrivals. */
__device__ __forceinline__ void barrier_cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void barrier_cluster_wait(wait_site site = WAIT_SITE) {
    RECORD_BLOCKED(WATCHDOG_CLUSTER);
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Arrives without ordering memory: after fence_mbarrier_init, or where only progress counts. The release form waits for
 * all stores of the thread. */
__device__ __forceinline__ void barrier_cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

/* Stores to shared memory of any CTA of the cluster (address by mapa), which must have started. */
__device__ __forceinline__ void st_shared_cluster(uint32_t to, uint32_t word) {
    asm volatile("st.shared::cluster.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}

/* Stores four floats to 16-byte aligned shared memory of any CTA of the cluster and completes 16 bytes on its mbarrier.
 * Both addresses by mapa. */
__device__ __forceinline__ void st_async(uint32_t to, uint32_t barrier, float x, float y, float z, float w) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
        "f"(x), "f"(y), "f"(z), "f"(w), "r"(barrier)
        : "memory");
}

/* The dependent grid may start when every CTA of this grid has called this or exited. */
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* Waits until the prerequisite grids have completed and their writes are visible. Each thread that reads what they
 * write, or writes what they read, calls it first. */
__device__ __forceinline__ void griddepcontrol_wait(wait_site site = WAIT_SITE) {
    RECORD_BLOCKED(WATCHDOG_GRID);
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

#endif
