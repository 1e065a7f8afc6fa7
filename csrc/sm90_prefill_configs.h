/* The Hopper kernels for large products: what sm90_dequant.cu and sm90_prefill.cu agree on with the host. Plain C
 * preprocessor.
 *
 * The side of the product of which a CTA takes 128 rows is called x, the other one, 256 rows, y. Which of A and B is x
 * is the schedule's choice (swap_ab: x is B). y is expanded to fp16 in a workspace first. There are two forms:
 *
 *   x_raw      x is decoded inside: it should be the operand with more rows, so that less is expanded
 *   expanded   both are expanded first
 *
 * x is raw only with 128x4 scales, K a multiple of 64, values that a tensor map reaches (rows and batches on 16 bytes),
 * and scale, scale_batch, scale_pitch of that operand multiples of 16. The form `expanded` takes everything.
 *
 * A call, in this order and on one queue, both launches programmatic:
 *
 *   1. nvfp4_sm90_dequant(sm90_dequant_schedule)           first_ctas + second_ctas CTAs of SM90_DEQUANT_THREADS
 * threads, no dynamic shared memory, no cluster
 *   2. nvfp4_<id>(gemm_problem, sm90_prefill_schedule)     clusters of 2 CTAs of SM90_PREFILL_THREADS threads with
 *                                                        SM90_PREFILL_SHARED_BYTES of dynamic shared memory
 *
 * With K = 0 nothing is expanded: 2 alone, k_stages = 0.
 *
 * The workspace begins on 256 bytes: expanded y, then expanded x where it is. One expanded operand is fp16
 * [batches][rows][64 * k_stages], SM90_DEQUANT_BYTES long, with zeros beyond K; batches is L, or 1 where the operand
 * serves all batches (its batch stride is 0).
 *
 * The grid of 2. With C = sm_count / 2 clusters that run at once,
 *
 *   tiles_x = ceil(rows_x / 128), tiles_y = ceil(rows_y / 256), pairs = ceil(tiles_x / 2) * tiles_y * l
 *   rest    = pairs % C
 *   halved  = 2 * rest if 2 * rest <= C, else 0
 *   whole   = pairs - halved / 2
 *   grid    = 2 * min(C, max(whole, halved))
 *
 * A cluster computes pairs, 256 rows of x by 256 of y, of which each CTA has 128 of x: pair blockIdx.x / 2 and on by
 * the number of clusters while below `whole`. Behind them cluster i < halved computes one single tile, 128 x 256, its
 * CTAs half of K each: so a last round that would leave half of the clusters without work takes half the time. */
#ifndef NVFP4_SM90_PREFILL_CONFIGS_H
#define NVFP4_SM90_PREFILL_CONFIGS_H

#include <stdint.h>

#include "device/tensor_map.h"

/*    id, x_raw, stages */
#define SM90_PREFILL_CONFIGS(X)                                                                                        \
    X(sm90_prefill_mixed, 1, 5)                                                                                        \
    X(sm90_prefill_fp16, 0, 4)

#define SM90_PREFILL_THREADS 384 /* a warpgroup that loads, two that multiply */
#define SM90_PREFILL_STAGE_K 64  /* values along K of a stage: 128 bytes of fp16, one span of the 128-byte swizzle */
#define SM90_PREFILL_TILE_X  128
#define SM90_PREFILL_TILE_Y  256

/* A stage: y fp16, then x fp16, or x raw (32 bytes a row) and its scales (one atom of the 128x4 layout), up to the next
 * multiple of 1024, which the swizzle asks for. */
#define SM90_PREFILL_Y_BYTES (SM90_PREFILL_TILE_Y * SM90_PREFILL_STAGE_K * 2)
#define SM90_PREFILL_X_BYTES(x_raw)                                                                                    \
    (SM90_PREFILL_TILE_X * ((x_raw) ? SM90_PREFILL_STAGE_K / 2 : SM90_PREFILL_STAGE_K * 2))
#define SM90_PREFILL_STAGE_BYTES(x_raw) (SM90_PREFILL_Y_BYTES + SM90_PREFILL_X_BYTES(x_raw) + ((x_raw) ? 1024 : 0))
/* Where a warp turns 32 columns of 16 rows of sums into the order of the output: fp32, rows padded against bank
 * conflicts; or, of 16-bit outputs, the four of a warpgroup 64 columns of 64 rows. */
#define SM90_PREFILL_EPILOGUE_STAGING_BYTES (32 * 20 * 4)
/* Stages, a turning place for each of 8 math warps, then a full and an empty barrier for each stage. */
#define SM90_PREFILL_SHARED_BYTES(x_raw, stages)                                                                       \
    ((stages) * SM90_PREFILL_STAGE_BYTES(x_raw) + 8 * SM90_PREFILL_EPILOGUE_STAGING_BYTES + 16 * (stages))

#define SM90_DEQUANT_THREADS 512
#define SM90_DEQUANT_K       256 /* a CTA expands so many values along K of 32 rows of one batch for each of a thread's */
/* CTAs for one operand, and its bytes: a multiple of 256, so that the next one may follow. */
#define SM90_DEQUANT_CTAS(rows, k, batches, rows_a_thread)                                                             \
    ((((rows) + 32 * (rows_a_thread) - 1) / (32 * (rows_a_thread))) * (((k) + SM90_DEQUANT_K - 1) / SM90_DEQUANT_K) *  \
     (batches))
#define SM90_DEQUANT_PITCH(k)                (((k) + SM90_PREFILL_STAGE_K - 1) / SM90_PREFILL_STAGE_K * (SM90_PREFILL_STAGE_K * 2))
#define SM90_DEQUANT_BYTES(rows, k, batches) (((rows) * (batches) * SM90_DEQUANT_PITCH(k) + 255) / 256 * 256)

typedef struct sm90_dequant_operand {
    const uint8_t *data, *scale;
    int64_t pitch, batch;             /* bytes from row to row (a multiple of 8), from batch to batch of data */
    int64_t scale_pitch, scale_batch; /* 128x4: bytes from 128-row block to block; linear: from row to row */
    void *to;                         /* in the workspace */
    int32_t rows;
    int32_t padding_;
} sm90_dequant_operand;

/* The parameter of nvfp4_sm90_dequant. */
typedef struct sm90_dequant_schedule {
    sm90_dequant_operand first, second; /* second: only where there are second_ctas */
    int64_t k;
    int32_t scale_layout;            /* SCALES_* */
    int32_t first_ctas, second_ctas; /* SM90_DEQUANT_CTAS; second 0 where x is raw */
    int32_t rows_a_thread;           /* 4, or 1 */
    int32_t flags;                   /* words to be zeroed for sm90_gemm.cu, at most SM90_MAX_WORKERS ... */
    int32_t padding_;
    uint32_t *zeroed; /* ... and where */
} sm90_dequant_schedule;

/* Second parameter of the dense kernels. Where an operand is expanded its scale is not looked at. */
typedef struct sm90_prefill_operand {
    tensor_map values; /* expanded: fp16 {64 * k_stages, rows, batches}, box {64, 128, 1}, 128-byte swizzle;
                          raw: uint8 {K/2, rows, batches}, box {32, 128, 1}, as it lies */
    const uint8_t *scale;
    int64_t scale_pitch, scale_batch; /* bytes from 128-row block to block, from batch to batch */
    int32_t rows;
    int32_t batches; /* L, or 1 where all batches share the operand */
    uint8_t padding_[32];
} sm90_prefill_operand;

typedef struct sm90_prefill_schedule {
    sm90_prefill_operand x, y;
    int32_t tiles_x, tiles_y;
    int32_t whole, halved; /* see above */
    int32_t k_stages;      /* ceil(K/64) */
    int32_t swap_ab;       /* 1: x is B, so that x counts columns of the output */
    uint8_t padding_[40];
} sm90_prefill_schedule;

#endif
