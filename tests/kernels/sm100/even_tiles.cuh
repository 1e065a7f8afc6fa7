/* In place of kernels/common/grouped_tiles.cuh, for the static verifier, which does not know what is in memory: each
 * group has the rows of one tile, and its scales the blocks of its number (sm100/grouped_mutations.py). */
#include "common/grouped_problem.h"
#include "kernels/common/group_table.h"

template <int THREADS> struct group_table_scratch {
    int unused;
};

struct group_table {
    int32_t rows[NVFP4_MAX_GROUPS + 1], tiles[NVFP4_MAX_GROUPS + 1]; /* not filled */

    template <int THREADS>
    __device__ __forceinline__ void fill(const int32_t *, int, int, int, group_table_scratch<THREADS> &) {
        __syncthreads();
    }
    template <int THREADS> __device__ __forceinline__ void copy_to(uint32_t, int) const {}
};

__device__ __forceinline__ int64_t scale_row_of(const grouped_problem &p, int32_t group, int64_t row) {
    const int32_t blocks = ((int32_t)p.g.m / p.groups + 127) / 128;
    return group * blocks * 128 + row;
}

struct grouped_tile {
    int32_t l, group, part, column, row, rows, row_in_group;
};

struct grouped_tiles {
    const group_table &table;
    const grouped_problem &p;
    uint32_t tiles_n, number, step, across;

    __device__ __forceinline__ grouped_tiles(const group_table &table, const grouped_problem &p, int32_t tiles_n,
                                             uint32_t first, uint32_t step, bool of_all_parts)
        : table(table), p(p), tiles_n((uint32_t)tiles_n), number(first), step(step),
          across((uint32_t)tiles_n * (of_all_parts ? 1 : (uint32_t)p.parts)) {}

    __device__ __forceinline__ bool next(grouped_tile &tile, int32_t tile_rows) {
        if (number >= across * (uint32_t)p.groups) return false;
        tile.group = (int32_t)(number / across);
        tile.part = (int32_t)(number % across / tiles_n);
        tile.l = tile.group * p.parts + tile.part;
        tile.column = (int32_t)(number % tiles_n);
        tile.row = tile.group * tile_rows;
        tile.rows = tile_rows;
        tile.row_in_group = 0;
        number += step;
        return true;
    }
};
