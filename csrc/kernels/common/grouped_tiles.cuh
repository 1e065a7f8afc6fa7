/* The tiles of a product of groups that a CTA takes one after the other, from the ends of the groups, which are on the
 * device.
 *
 * Tiles are numbered in the order of groups; of a group, first along its rows, then along the columns, part by part. So
 * tiles that share columns of a matrix run at the same time, and it comes from memory once. */
#ifndef NVFP4_COMMON_GROUPED_TILES_CUH
#define NVFP4_COMMON_GROUPED_TILES_CUH

#include "common/grouped_problem.h"
#include "kernels/common/group_scales.cuh"
#include "kernels/common/group_table.cuh"

/* A tile: rows row .. row + rows - 1 of the result, in the order of groups, by one of the tiles_n ranges of columns of
 * a part, or of all parts. */
struct grouped_tile {
    int32_t l; /* the matrix: group * parts + part; the first one of all parts */
    int32_t group, part, column;
    int32_t row, rows;
    int32_t row_in_group; /* of the tile's first row */
};

/* Tiles first, first + step, ... The calls of a warp are converged. TABLE: group_table, or what answers as it does. */
template <class TABLE> struct tiles_by {
    const TABLE &table;
    const grouped_problem &p;
    uint32_t tiles_n, number, step, all;
    bool of_all_parts; /* each tile: of a product with an activation */

    __device__ __forceinline__ tiles_by(const TABLE &table, const grouped_problem &p, int32_t tiles_n, uint32_t first,
                                        uint32_t step, bool of_all_parts = false)
        : table(table), p(p), tiles_n((uint32_t)tiles_n), number(first), step(step),
          all((uint32_t)table.tiles_before(p.groups) * (uint32_t)tiles_n * (of_all_parts ? 1 : (uint32_t)p.parts)),
          of_all_parts(of_all_parts) {}

    /* The next tile, of at most tile_rows rows; false if there is none. EVEN: the rows of a group are split into as
     * many tiles of as few rows as need be, multiples of 8, and else into tiles of tile_rows. */
    template <bool EVEN = false> __device__ __forceinline__ bool next(grouped_tile &tile, int32_t tile_rows) {
        if (number >= all) return false;
        const uint32_t across = tiles_n * (of_all_parts ? 1 : (uint32_t)p.parts);
        const int32_t group = table.group_of(p.groups, (int32_t)(number / across));
        const int32_t before = table.tiles_before(group), along = table.tiles_before(group + 1) - before;
        const uint32_t in_group = number - (uint32_t)before * across, column = in_group / (uint32_t)along;
        const int32_t index = (int32_t)(in_group % (uint32_t)along);
        tile.group = group;
        tile.part = (int32_t)(column / tiles_n);
        tile.l = group * p.parts + tile.part;
        tile.column = (int32_t)(column % tiles_n);
        const int32_t first = table.rows_before(group), rows = table.rows_before(group + 1) - first;
        const int32_t each = EVEN ? (int32_t)(((uint32_t)rows + 8 * along - 1) / (8 * along) * 8) : tile_rows;
        tile.row_in_group = index * each;
        tile.row = first + tile.row_in_group;
        tile.rows = min(each, rows - tile.row_in_group);
        number += step;
        return true;
    }
};
using grouped_tiles = tiles_by<group_table>;

#endif
