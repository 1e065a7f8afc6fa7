/* A debug build's (NVFP4_DUMP) record of one CTA of sm100/gemm.cu at one K block of 64. Plain C; tools/lab/dump.py
 * decodes it. */
#ifndef NVFP4_COMMON_DUMP_H
#define NVFP4_COMMON_DUMP_H

#include <stdint.h>

#define SM100_DUMP_STAGE_BYTES   38912 /* the largest stage, 256x256's */
#define SM100_DUMP_SCALE_COLUMNS 12    /* of a K block: 4 of mma_a, 4 or 8 of mma_b */
#define SM100_DUMP_SUM_COLUMNS   256
#define SM100_DUMP_LANES         128

typedef struct sm100_dump {
    /* Written by the epilogue warps at the start of the kernel. */
    int32_t exists;                        /* 1: the grid has this CTA */
    int32_t cta_group, mma_tile_n, stages; /* of the instantiation */
    int32_t stage_bytes, swap_ab, split_k;
    int32_t rank, split_idx; /* in the pair; among the split_k that share a tile */
    int32_t tiles, k_blocks; /* of this CTA; of each of its tiles */
    int32_t first_block;     /* K block of the whole K at which its sums begin */
    /* Written by the epilogue warps at the chosen K block. */
    int32_t tile, mma_a_row, mma_b_row, batch; /* first rows: of mma_a in this CTA, of mma_b in the tile */
    int32_t k_block;                           /* of the whole K */
    uint32_t stage_address, tmem;              /* shared and tensor memory addresses in this CTA */
    uint32_t accumulator, scales;              /* columns that were read, relative to tmem */
    /* Written by the mma thread (in a pair the leader's): operands of tcgen05.mma. */
    uint32_t stage, phase; /* of the pipeline */
    uint32_t d, instruction, mma_sfa, mma_sfb, add;
    uint64_t mma_a, mma_b;         /* shared memory descriptors of the values */
    uint64_t sfa_atoms, sfb_atoms; /* and of the scales, at the stage's first K block */
    int32_t complete;              /* 1: everything above and below has been written */
    int32_t padding_;
    /* This CTA's memory after the mma of the K block. */
    uint32_t stage_data[SM100_DUMP_STAGE_BYTES / 4];
    uint32_t scale_columns[SM100_DUMP_SCALE_COLUMNS][SM100_DUMP_LANES];
    uint32_t sums[SM100_DUMP_SUM_COLUMNS][SM100_DUMP_LANES];
} sm100_dump;

#endif
