/* How many tiles the rows of groups need, each group in tiles of its own. C11. */
#ifndef NVFP4_COMMON_GROUP_BLOCKS_H
#define NVFP4_COMMON_GROUP_BLOCKS_H

#include "common/math.h"

enum { SCALE_BLOCK_ROWS = 128 }; /* of the 128x4 layout: each group begins with a block of its own */

/* The most tiles that `rows` rows need, of tile_rows each, whatever the ends of the groups. A group of n > 0 rows needs
 * 1 + floor((n - 1) / tile_rows). Over g groups with rows that is at most g + floor((rows - g) / tile_rows), which does
 * not fall with g, and one large group beside groups of one row needs as many. */
static inline int64_t max_group_tiles(int64_t rows, int64_t groups, int64_t tile_rows) {
    const int64_t most = min_int(groups, rows);
    return most + (rows - most) / tile_rows;
}

#endif
