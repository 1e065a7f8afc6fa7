/* What a debug build (NVFP4_DUMP) writes of one CTA and one k_block of sm100_gemm.cu. Plain C; nvfp4/cli/dump.py
 * decodes it. */
#ifndef NVFP4_DEVICE_DUMP_H
#define NVFP4_DEVICE_DUMP_H

#include <stdint.h>

#define SM100_DUMP_STAGE_BYTES   38912 /* of the largest stage, 256x256's */
#define SM100_DUMP_SCALE_COLUMNS 12    /* of a k_block: 4 of x, 4 or 8 of y */
#define SM100_DUMP_SUM_COLUMNS   256
#define SM100_DUMP_LANES         128

/* A k_block is 64 values along K. Addresses are those of shared or tensor memory. */
typedef struct sm100_dump {
    /* By the epilogue, at the kernel's start: which CTA this is, and how much there is of it. */
    int32_t here;                          /* 1: the CTA exists */
    int32_t group, tile_y, stages;         /* of the instantiation */
    int32_t stage_bytes, swap_ab, split_k; /* swap_ab: x is B */
    int32_t rank, unit;                    /* in the pair; in the cluster */
    int32_t tiles, k_blocks;               /* of this CTA; of each of its tiles */
    int32_t first_block;                   /* of the whole K, with which its sums begin */
    /* By the epilogue, at the chosen k_block. */
    int32_t tile, row_x, row_y, batch; /* first rows of the operands: of x in this CTA, of y in the tile */
    int32_t k_block;                   /* of the whole K */
    uint32_t stage, tmem;              /* addresses in this CTA */
    uint32_t accumulator, scales;      /* columns that were read, of the allocation */
    /* By the mma thread, of a pair the leader's: what the instruction was given. */
    uint32_t slot, parity;
    uint32_t d, instruction, sfx, sfy, add;
    uint64_t x, y;             /* descriptors of the values */
    uint64_t atoms_x, atoms_y; /* of the scales, of the stage's first k_block */
    int32_t complete;          /* 1: all of the above and below is there */
    int32_t padding_;
    /* This CTA's memory behind the k_block's products. */
    uint32_t stage_data[SM100_DUMP_STAGE_BYTES / 4]; /* shared memory of the stage */
    uint32_t scale_columns[SM100_DUMP_SCALE_COLUMNS][SM100_DUMP_LANES];
    uint32_t sums[SM100_DUMP_SUM_COLUMNS][SM100_DUMP_LANES];
} sm100_dump;

#endif
