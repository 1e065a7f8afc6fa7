/* Which rows of a group have 128x4 scales, and where (scale_rows of common/grouped_problem.h): a group begins with a
 * block of 128 rows, or has none. */
#ifndef NVFP4_COMMON_GROUP_SCALES_CUH
#define NVFP4_COMMON_GROUP_SCALES_CUH

#include "common/group_blocks.h"
#include "common/grouped_problem.h"

/* The place, among scale_a_rows rows, of the scales of row `row` of a group; -1: it has none. */
__device__ __forceinline__ int64_t scale_row_of(const grouped_problem &p, int32_t group, int64_t row) {
    const int32_t first = p.scale_rows[group];
    const int64_t at = (int64_t)first + row;
    if (first < 0 || first % SCALE_BLOCK_ROWS || at >= p.scale_a_rows) return -1;
    return at;
}

/* How many rows of a group have scales, from its first on. */
__device__ __forceinline__ int32_t rows_with_scales(const grouped_problem &p, int32_t group) {
    if (!p.scale_rows) return INT32_MAX;
    const int32_t first = p.scale_rows[group];
    return first < 0 || first % SCALE_BLOCK_ROWS ? 0 : (int32_t)min(p.scale_a_rows - first, (int64_t)INT32_MAX);
}

#endif
