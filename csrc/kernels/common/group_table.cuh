/* Which rows a group has, and which tiles, in shared memory: for CTAs that take many tiles of a product of groups
 * (common/grouped_problem.h) one after the other. As in group_tile.cuh each group has whole tiles of its own, numbered
 * in the order of groups. */
#ifndef NVFP4_COMMON_GROUP_TABLE_CUH
#define NVFP4_COMMON_GROUP_TABLE_CUH

#include "kernels/common/cluster.cuh"
#include "kernels/common/group_table.h"
#include "kernels/common/group_tile.cuh"
#include "kernels/common/shared.cuh"

template <int THREADS> struct group_table_scratch {
    int greatest[THREADS / 32], counts[THREADS / 32];
};

/* The table has, for each group and behind the last, the rows and the tiles before it. */
struct group_table {
    int32_t rows[NVFP4_MAX_GROUPS + 1], tiles[NVFP4_MAX_GROUPS + 1];

    __device__ __forceinline__ int32_t rows_before(int group) const { return rows[group]; }
    __device__ __forceinline__ int32_t tiles_before(int group) const { return tiles[group]; }

    /* Called by all THREADS threads of the CTA; ends with a barrier. m: rows of all groups. Ends are read once, into
     * the rows of the same groups: if they change meanwhile, neither rows nor tiles fall from one group to the next. */
    template <int THREADS>
    __device__ __forceinline__ void fill(const int32_t *ends, int groups, int m, int tile_rows,
                                         group_table_scratch<THREADS> &scratch) {
        const int each = (groups + THREADS - 1) / THREADS;
        const int first = min((int)threadIdx.x * each, groups), last = min(first + each, groups);
        int most = 0;
        for (int e = first; e < last; e++) {
            rows[e] = min(ends[e], m);
            most = max(most, rows[e]);
        }
        const int begin = scan_before<greater_of, THREADS>(most, scratch.greatest);

        int count = 0, at = begin;
        for (int e = first; e < last; e++) {
            const int end = max(at, rows[e]);
            count += tiles_of_rows(at, end, tile_rows);
            at = end;
        }
        count = scan_before<sum_of, THREADS>(count, scratch.counts);

        at = begin;
        for (int e = first; e < last; e++) {
            const int end = max(at, rows[e]);
            rows[e] = at, tiles[e] = count;
            count += tiles_of_rows(at, end, tile_rows);
            at = end;
        }
        if (first < last && last == groups) rows[groups] = at, tiles[groups] = count;
        __syncthreads();
    }

    /* Copies the table to the same place in another CTA of the cluster, which has started. Called by all THREADS
     * threads behind fill; a cluster barrier must follow. */
    template <int THREADS> __device__ __forceinline__ void copy_to(uint32_t rank, int groups) const {
        const uint32_t to_rows = mapa(shared_address(rows), rank), to_tiles = mapa(shared_address(tiles), rank);
        for (int e = (int)threadIdx.x; e <= groups; e += THREADS) {
            st_shared_cluster(to_rows + 4 * e, (uint32_t)rows[e]);
            st_shared_cluster(to_tiles + 4 * e, (uint32_t)tiles[e]);
        }
    }

    /* The group with tile `number`, which one has: the last with at most so many tiles before it. Called by a converged
     * warp, which looks at 32 groups at a time: at the first of every 32, then at those behind the one it finds. */
    __device__ __forceinline__ int group_of(int groups, int number) const {
        static_assert(NVFP4_MAX_GROUPS <= 32 * 32, "two steps find the group");
        const int lane = threadIdx.x % 32;
        const int block = 32 * last_lane(groups, number, lane * 32);
        return block + last_lane(groups, number, block + lane);
    }

  private:
    __device__ __forceinline__ int last_lane(int groups, int number, int group) const {
        return __popc(__ballot_sync(0xFFFFFFFF, group < groups && tiles[group] <= number)) - 1;
    }
};
static_assert(sizeof(group_table) == GROUP_TABLE_BYTES, "as the host reserves it");

#endif
