/* Bulk copies from global to shared memory (PTX ISA 9.0, sections 9.7.9.25.4 cp.async.bulk and 9.7.9.27
 * cp.async.bulk.tensor). One thread starts a copy; the memory is the async proxy's until the mbarrier has counted its
 * bytes. A box counts whole, with what lies out of bounds, which arrives as zeros. Needs sm_90; pairs sm_100. */
#ifndef NVFP4_DEVICE_TMA_CUH
#define NVFP4_DEVICE_TMA_CUH

#include "shared.cuh"
#include "tensor_map.h"

/* Asks for the map itself, which the first copy would wait for. */
__device__ __forceinline__ void prefetch_tensormap(const tensor_map *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Brings memory into L2, where later writes of others still reach it: nothing is read yet, so it may stand before
 * griddepcontrol_wait. bytes: a multiple of 16, as the address is. */
__device__ __forceinline__ void cp_async_bulk_prefetch_l2(const void *from, uint32_t bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

/* The same with a box. */
__device__ __forceinline__ void tma_prefetch_l2_3d(const tensor_map *map, int32_t x, int32_t y, int32_t z) {
    asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(map), "r"(x), "r"(y),
                 "r"(z)
                 : "memory");
}

/* bytes: a multiple of 16, as both addresses are. */
__device__ __forceinline__ void cp_async_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier,
                                              uint64_t policy) {
    asm volatile(
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
            to),
        "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
        : "memory");
}

/* The box at (x, y, z) of a map of rank 3. GROUP 2: the barrier may be the pair's other CTA's. */
template <int GROUP>
__device__ __forceinline__ void tma_load_3d(uint32_t to, const tensor_map *map, int32_t x, int32_t y, int32_t z,
                                            uint32_t barrier, uint64_t policy) {
    if constexpr (GROUP == 2)
        asm volatile("cp.async.bulk.tensor.3d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                     ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                     "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "l"(policy)
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.3d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
                     ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                     "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "l"(policy)
                     : "memory");
}

/* The same of rank 4, by a CTA of a pair. */
__device__ __forceinline__ void tma_load_4d_2sm(uint32_t to, const tensor_map *map, int32_t x, int32_t y, int32_t z,
                                                int32_t w, uint32_t barrier, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.4d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier), "l"(policy)
                 : "memory");
}

#endif
