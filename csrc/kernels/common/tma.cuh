/* TMA loads from global to shared memory: cp.async.bulk (PTX ISA 9.0, 9.7.9.25.4) and cp.async.bulk.tensor (9.7.9.27).
 * One thread issues a load; the data are there when the mbarrier's phase completes, which counts the bytes of the whole
 * box. Elements out of bounds load as zeros and count. Needs sm_90; CTA_GROUP 2 needs sm_100. */
#ifndef NVFP4_COMMON_TMA_CUH
#define NVFP4_COMMON_TMA_CUH

#include "common/tensor_map.h"
#include "kernels/common/shared.cuh"

/* Prefetches the tensor map itself, which the first load would wait for. */
__device__ __forceinline__ void prefetch_tensormap(const tensor_map *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Prefetches into L2, which stays coherent with later writes: may be called before griddepcontrol_wait. Address and
 * bytes are multiples of 16. */
__device__ __forceinline__ void cp_async_bulk_prefetch_l2(const void *from, uint32_t bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

/* Prefetches a box of a tensor map into L2. */
__device__ __forceinline__ void tma_prefetch_l2_3d(const tensor_map *map, int32_t x, int32_t y, int32_t z) {
    asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(map), "r"(x), "r"(y),
                 "r"(z)
                 : "memory");
}

/* Both addresses and bytes are multiples of 16. */
__device__ __forceinline__ void cp_async_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier,
                                              uint64_t cache_policy) {
    asm volatile(
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
            to),
        "l"(from), "r"(bytes), "r"(barrier), "l"(cache_policy)
        : "memory");
}

/* The box at (x, y, z) of a rank 3 map. With CTA_GROUP 2 the mbarrier may be that of the pair's other CTA. */
template <int CTA_GROUP>
__device__ __forceinline__ void tma_load_3d(uint32_t to, const tensor_map *map, int32_t x, int32_t y, int32_t z,
                                            uint32_t barrier, uint64_t cache_policy) {
    if constexpr (CTA_GROUP == 2)
        asm volatile("cp.async.bulk.tensor.3d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                     ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                     "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "l"(cache_policy)
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.3d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
                     ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                     "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "l"(cache_policy)
                     : "memory");
}

/* In a pair, into the CTAs of a mask of cluster ranks: to the same offset in each, completing on the mbarrier of the
 * CTA in its pair that has the parity of the named one. */
__device__ __forceinline__ void tma_load_3d_2sm_multicast(uint32_t to, const tensor_map *map, int32_t x, int32_t y,
                                                          int32_t z, uint32_t barrier, uint16_t ctas,
                                                          uint64_t cache_policy) {
    asm volatile("cp.async.bulk.tensor.3d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6, %7;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(ctas), "l"(cache_policy)
                 : "memory");
}

/* The same with a rank 4 map, in a pair. */
__device__ __forceinline__ void tma_load_4d_2sm(uint32_t to, const tensor_map *map, int32_t x, int32_t y, int32_t z,
                                                int32_t w, uint32_t barrier, uint64_t cache_policy) {
    asm volatile("cp.async.bulk.tensor.4d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier), "l"(cache_policy)
                 : "memory");
}

#endif
