/* Sorts a router's choices by expert, as cpu/moe.c: a stable counting sort, the same on every run.
 *
 * Each CTA places the choices of a range, whose segments its warps have. It counts those of the other ranges too, so
 * that CTAs need nothing of each other.
 *
 *   1  warp w counts the choices of each expert in segment w of the range: next[w][e]; all warps count those before the
 *      range and those behind it: outside[0][e] and outside[1][e]
 *   2  thread e adds the counts of expert e over the segments, a scan over the threads gives its end, and next[w][e]
 *      becomes the place of the segment's first choice of e
 *   3  warp w goes through its segment again, 32 choices at a time in their order. A choice's place is next[w][e] and
 *      the number of lanes before it with the same expert
 *
 * Each segment has a multiple of 32 choices. A range has as many segments as there are warps, or as there is shared
 * memory for. */
#include <stdint.h>

#include "common/row_op_problems.h"
#include "kernels/common/dependent.cuh"
#include "kernels/moe/kernels.h"

/* The expert of a choice; -1: none here, or there is no such choice. is_dense: all ids follow each other. */
__device__ __forceinline__ int32_t expert_of(const moe_route_problem &p, bool is_dense, uint32_t choice, uint32_t end) {
    if (choice >= end) return -1;
    const uint32_t token = is_dense ? 0 : choice / (uint32_t)p.per_token, j = choice - token * (uint32_t)p.per_token;
    const char *row = (const char *)p.ids + token * p.ids_pitch;
    const int64_t id = p.ids_type == NVFP4_INT64 ? ((const long long *)row)[j] : ((const int32_t *)row)[j];
    if (id < 0 || id >= p.ids_end) return -1;
    const int32_t expert = p.maps_ids ? p.expert_map[id] : (int32_t)id;
    return expert >= 0 && expert < p.experts ? expert : -1;
}

/* The sum of `value` over this thread and those before it. Every thread of the CTA calls it, once. */
__device__ __forceinline__ int32_t scan_cta(int32_t value) {
    __shared__ int32_t of_warp[ROUTE_THREADS / 32];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (uint32_t n = 1; n < 32; n *= 2) {
        const int32_t before = __shfl_up_sync(~0u, value, n);
        if (lane >= n) value += before;
    }
    if (lane == 31) of_warp[warp] = value;
    __syncthreads();
    for (uint32_t w = 0; w < warp; w++) value += of_warp[w];
    return value;
}

extern "C" __global__ void __launch_bounds__(ROUTE_THREADS)
    nvfp4_moe_route(const __grid_constant__ moe_route_problem p) {
    __shared__ int32_t counters[ROUTE_COUNTERS], outside[2][ROUTE_THREADS];
    __shared__ int32_t placed;
    begin_dependent_grid();
    const uint32_t thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const uint32_t experts = (uint32_t)p.experts, segments = (uint32_t)p.segments, choices = (uint32_t)p.choices;
    const bool is_dense = p.ids_pitch == p.per_token * (p.ids_type == NVFP4_INT64 ? 8 : 4);
    for (uint32_t i = thread; i < segments * experts; i += ROUTE_THREADS) counters[i] = 0;
    outside[0][thread] = outside[1][thread] = 0;
    __syncthreads();

    int32_t *next = counters + warp * experts;
    const uint32_t range = segments * (uint32_t)p.segment, first = blockIdx.x * range;
    const uint32_t begin = min(first + warp * (uint32_t)p.segment, choices);
    const uint32_t end = warp < segments ? min(begin + (uint32_t)p.segment, choices) : begin;
#pragma unroll 4
    for (uint32_t i = begin + lane; i < end; i += 32) {
        const int32_t expert = expert_of(p, is_dense, i, end);
        if (expert >= 0) atomicAdd(next + expert, 1);
    }
#pragma unroll 8
    for (uint32_t i = thread; i < choices && gridDim.x > 1; i += ROUTE_THREADS) {
        const bool is_own = i - first < range;
        const int32_t expert = is_own ? -1 : expert_of(p, is_dense, i, choices);
        if (expert >= 0) atomicAdd(&outside[i >= first][expert], 1);
    }
    __syncthreads();

    int32_t count = outside[0][thread];
    for (uint32_t s = 0; s < segments && thread < experts; s++) {
        const int32_t here = counters[s * experts + thread];
        counters[s * experts + thread] = count;
        count += here;
    }
    count += outside[1][thread];
    const int32_t past = scan_cta(count);
    for (uint32_t s = 0; s < segments && thread < experts; s++) counters[s * experts + thread] += past - count;
    if (thread < experts && blockIdx.x == 0) p.ends[thread] = past;
    if (thread == experts - 1) placed = past;
    __syncthreads();

    int32_t expert = expert_of(p, is_dense, begin + lane, end);
#pragma unroll 1
    for (uint32_t i = begin; i < end; i += 32) {
        const int32_t following = expert_of(p, is_dense, i + 32 + lane, end); /* while this one is placed */
        const uint32_t peers = __match_any_sync(~0u, expert), rank = __popc(peers & ((1u << lane) - 1));
        const int32_t place = expert >= 0 ? next[expert] + (int32_t)rank : -1;
        __syncwarp();
        if (expert >= 0 && rank == 0) next[expert] += __popc(peers);
        __syncwarp();
        if (i + lane < end) p.places[i + lane] = place;
        if (place >= 0) p.rows[place] = (int32_t)((i + lane) / (uint32_t)p.per_token);
        expert = following;
    }
    for (uint32_t i = (uint32_t)placed + blockIdx.x * ROUTE_THREADS + thread; i < choices;
         i += gridDim.x * ROUTE_THREADS)
        p.rows[i] = 0;
}
