/* The rows of the groups of sm100/grouped.cu: as the table of groups has them, or dense: one group whose tiles and
 * scales follow from the parameters, so that no role waits for memory before its first load. Rows from its end on,
 * which is memory's where there are ends, are multiplied too; only the epilogue, which does not store them, reads
 * it. */
#ifndef NVFP4_SM100_GROUPS_CUH
#define NVFP4_SM100_GROUPS_CUH

#include "kernels/common/grouped_tiles.cuh"
#include "kernels/sm100/grouped_config.h"

/* Answers as group_table does, which is filled where the group is not dense. */
struct groups_of_call {
    const group_table &table;
    const bool is_dense;
    const int32_t rows, tiles; /* of the dense group */

    __device__ __forceinline__ groups_of_call(const group_table &table, const grouped_problem &p,
                                              const sm100_grouped_schedule &s, int32_t tile_rows)
        : table(table), is_dense(s.is_dense), rows((int32_t)p.g.m), tiles(tiles_of_rows(0, rows, tile_rows)) {}

    __device__ __forceinline__ int32_t rows_before(int group) const {
        return !is_dense ? table.rows[group] : group == 0 ? 0 : rows;
    }
    __device__ __forceinline__ int32_t tiles_before(int group) const {
        return !is_dense ? table.tiles[group] : group == 0 ? 0 : tiles;
    }
    __device__ __forceinline__ int group_of(int groups, int number) const {
        return is_dense ? 0 : table.group_of(groups, number);
    }

    __device__ __forceinline__ int32_t rows_of(int group) const { return rows_before(group + 1) - rows_before(group); }

    /* How many rows of a group are results: those of a dense one before its end. */
    __device__ __forceinline__ int32_t results_of(const grouped_problem &p, int group) const {
        return is_dense && p.ends ? max(0, min(p.ends[0], rows)) : rows_of(group);
    }
};
using tiles_of_call = tiles_by<groups_of_call>;

/* The place of the scales of row `row` of a group; negative: there are none. Those of a dense group lie as its rows. */
__device__ __forceinline__ int64_t loaded_scale_row(const grouped_problem &p, const sm100_grouped_schedule &s,
                                                    int32_t group, int64_t row) {
    return s.is_dense ? row : scale_row_of(p, group, row);
}

/* Whether row `row` of a group has scales. */
__device__ __forceinline__ bool has_scales(const grouped_problem &p, const sm100_grouped_schedule &s, int32_t group,
                                           int64_t row) {
    if (!s.is_dense) return scale_row_of(p, group, row) >= 0;
    return !p.scale_rows || p.scale_rows[0] == 0;
}

#endif
