/* Long rows by packed vectors, the part that is the same for every ISA and every type of a. A file of kernels includes
 * this once, after it has defined
 *
 *   VECTORS        the most vectors, at most MAX_VECTORS
 *   GROUP_BLOCKS   blocks of a vector_group
 *   vector_group   GROUP_BLOCKS blocks of a packed vector
 *   vector_bytes   the size of a packed vector
 *   rows_at_once   long rows that dots_group takes with `count` vectors, at most MAX_ROWS_AT_ONCE and with all vectors
 *                  at most MAX_VECTORS sums
 *   dots_group     adds GROUP_BLOCKS blocks, of which `blocks` exist, of `rows` long rows by `count` vectors to
 *                  sum[r * count + i], a float for each lane
 *   KEEPS_NAN      1: dots_group takes scales for numbers, and keeps the largest of each row in `largest`, lane by lane
 *                  as fp16, where NaN is above all others. 0: NaN is in the sums
 */
#ifndef NVFP4_CPU_DOTS_H
#define NVFP4_CPU_DOTS_H

#include "cpu/gemm.h"

static inline __attribute__((always_inline)) void dots_rows(float *sums, const operand *x, int64_t row, const int rows,
                                                            const vector_group *v, int64_t blocks, const int count) {
    const size_t pitch = vector_bytes(blocks);
    floats sum[MAX_VECTORS];
    halves largest[MAX_ROWS_AT_ONCE];
    for (int i = 0; i < rows * count; i++) sum[i] = (floats){0};
    for (int r = 0; r < rows; r++) largest[r] = (halves){0};
    int64_t b = 0;
    for (; b + GROUP_BLOCKS <= blocks; b += GROUP_BLOCKS, v++)
        dots_group(sum, largest, x, row, rows, b, GROUP_BLOCKS, v, pitch, count);
    if (b < blocks) dots_group(sum, largest, x, row, rows, b, blocks - b, v, pitch, count);
    for (int r = 0; r < rows; r++) {
        const int nan = KEEPS_NAN && any_nan(largest[r]);
        for (int i = 0; i < count; i++) sums[r * count + i] = nan ? NAN : add_lanes(sum[r * count + i]);
    }
}

static inline __attribute__((always_inline)) void dots_of_count(float *sums, const operand *x, int64_t row,
                                                                int64_t rows, const void *vectors, int64_t blocks,
                                                                const int count) {
    const int at_once = rows_at_once(count);
    for (; at_once > 1 && rows >= at_once; row += at_once, rows -= at_once, sums += at_once * count)
        dots_rows(sums, x, row, at_once, vectors, blocks, count);
    for (; rows > 0; row++, rows--, sums += count) dots_rows(sums, x, row, 1, vectors, blocks, count);
}

#define DOTS_COUNT(COUNT)                                                                                              \
    case COUNT:                                                                                                        \
        if (COUNT <= VECTORS) dots_of_count(sums, x, row, rows, vectors, blocks, COUNT);                               \
        break

static void packed_dots(float *sums, const operand *x, int64_t row, int64_t rows, const void *vectors, int count,
                        int64_t blocks) {
    switch (count) {
        DOTS_COUNT(1);
        DOTS_COUNT(2);
        DOTS_COUNT(3);
        DOTS_COUNT(4);
        DOTS_COUNT(5);
        DOTS_COUNT(6);
        DOTS_COUNT(7);
        DOTS_COUNT(8);
    }
}

#endif
