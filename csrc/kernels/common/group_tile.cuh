/* Which rows a CTA has of a product of groups (common/grouped_problem.h).
 *
 * Each group has whole tiles of its own, and tiles are numbered in the order of groups. A grid has as many as any ends
 * can lead to, so its size does not depend on them; CTAs past the last tile have no rows. Every CTA reads all ends:
 * with at most 1024 of them that is a few loads a thread and two scans, about as long as one access to memory. */
#ifndef NVFP4_COMMON_GROUP_TILE_CUH
#define NVFP4_COMMON_GROUP_TILE_CUH

#include <stdint.h>

struct group_tile {
    int group;
    int row;   /* the first, in the order of groups */
    int rows;  /* of the group from there on; 0: there is no such tile */
    int begin; /* the group's first row */
};

struct sum_of {
    static __device__ __forceinline__ int combine(int x, int y) { return x + y; }
};
struct greater_of {
    static __device__ __forceinline__ int combine(int x, int y) { return max(x, y); }
};

/* Tiles of the rows at .. end - 1. Unsigned: there may be 2^31 - 1 of them. */
__device__ __forceinline__ int tiles_of_rows(int at, int end, int tile_m) {
    return (int)(((uint32_t)(end - at) + (uint32_t)tile_m - 1) / (uint32_t)tile_m);
}

/* Combines the values of all earlier threads of the CTA; 0 for the first. Values are not negative. `warps` is
 * shared memory for one value a warp, which no thread may use before the next barrier. */
template <class OP, int THREADS> __device__ __forceinline__ int scan_before(int value, int *warps) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int through = value;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xFFFFFFFF, through, step);
        if (lane >= step) through = OP::combine(through, other);
    }
    if (lane == 31) warps[warp] = through;
    int before = __shfl_up_sync(0xFFFFFFFF, through, 1);
    if (lane == 0) before = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++)
        if (i < warp) before = OP::combine(before, warps[i]);
    return before;
}

template <int THREADS> struct group_tile_scratch {
    int greatest[THREADS / 32], counts[THREADS / 32];
    group_tile found;
};

/* The tile of this number, of at most tile_m rows. m: rows of all groups. Called by all THREADS threads of the CTA;
 * scratch is shared memory, free again after the next barrier. */
template <int THREADS>
__device__ __forceinline__ group_tile find_group_tile(const int32_t *ends, int groups, int m, int tile_m,
                                                      int64_t number, group_tile_scratch<THREADS> &scratch) {
    const int each = (groups + THREADS - 1) / THREADS;
    const int first = threadIdx.x * each, last = min(first + each, groups);
    if (threadIdx.x == 0) scratch.found.rows = 0;

    int most = 0;
    for (int e = first; e < last; e++) most = max(most, min(ends[e], m));
    const int begin = scan_before<greater_of, THREADS>(most, scratch.greatest);

    int tiles = 0, at = begin;
    for (int e = first; e < last; e++) {
        const int end = max(at, min(ends[e], m));
        tiles += tiles_of_rows(at, end, tile_m);
        at = end;
    }
    const int before = scan_before<sum_of, THREADS>(tiles, scratch.counts);

    int64_t left = number - before; /* tiles of this thread's groups that come before */
    if (left >= 0 && left < tiles) {
        at = begin;
        for (int e = first; e < last; e++) {
            const int end = max(at, min(ends[e], m)), own = tiles_of_rows(at, end, tile_m);
            if (left < own) {
                const int row = at + (int)left * tile_m;
                scratch.found = {e, row, end - row, at};
                break;
            }
            left -= own;
            at = end;
        }
    }
    __syncthreads();
    return scratch.found;
}

#endif
