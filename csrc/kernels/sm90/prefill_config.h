/* Interface of the large-M (prefill) kernels and the dequantize pre-pass of Hopper: sm90/prefill.cu, sm90/dequant.cu.
 * Host C and device code share this file: plain C preprocessor.
 *
 * mma_a is the wgmma operand of which a CTA takes 128 rows, mma_b the one of which it takes 256. swap_ab selects which
 * user matrix is mma_a (1: B). mma_b is dequantized to fp16 in a workspace first. Three kernels:
 *
 *   sm90_prefill_mixed     mma_a stays e2m1 and is dequantized in the kernel; it should be the operand with more rows
 *   sm90_prefill_fp16      both operands are dequantized first
 *   sm90_prefill_divided   as sm90_prefill_mixed, but most of mma_b is dequantized in the kernel
 *
 * All but sm90_prefill_fp16, which takes everything, need 128x4 scales, K a multiple of 64, values that a tensor map
 * reaches (rows and batches on 16 bytes), and scale, scale_batch and scale_pitch of mma_a on 16 bytes.
 *
 * A call is two launches on one stream, both programmatic (PDL):
 *
 *   1. nvfp4_sm90_dequant(sm90_dequant_schedule)         first_ctas + second_ctas CTAs of SM90_DEQUANT_THREADS
 *                                                        threads
 *   2. nvfp4_<id>(gemm_problem, sm90_prefill_schedule)   clusters of 2 CTAs of SM90_PREFILL_THREADS threads, with
 *                                                        SM90_PREFILL_SHARED_BYTES of dynamic shared memory
 *
 * With K = 0 only the second is launched, with k_stages = 0.
 *
 * sm90_prefill_divided needs one matrix of mma_b for all batches, K above 512, and a first wave not of split-K tiles
 * alone. It dequantizes most of it itself, in warps that would be idle, and the pre-pass only what the first stages
 * need. mma_b is divided into blocks of 256 rows (a tile) by 256 along K, in this order: by groups of group_tiles
 * tiles, which clusters need at the same time; in a group along K; at one place along K by tile. The pre-pass
 * dequantizes the first `ready` blocks: READY_CHUNKS places along K of the first group. Warps of the second kernel take
 * pieces of 8 rows of the other blocks, in order, from a counter. Behind the operands the workspace has 32-bit words:
 *
 *   flags[blocks]   pieces of the block that are dequantized; SM90_PREFILL_BLOCK_PIECES: all
 *   next            the next piece that nobody has taken
 *   done            pieces that are dequantized, in all
 *
 * which the pre-pass sets, so nothing need be known of the workspace before a call.
 *
 * Workspace, on 256 bytes: fp16 mma_b, then fp16 mma_a if there is one. Each is [batches][rows][128 ceil(K/128)],
 * zero past K (unwritten, where sm90_prefill_divided dequantizes), with unwritten rows behind it that fill the last
 * tile, unless these take more than SM90_MAX_UNWRITTEN bytes. batches is L, or 1 if one matrix serves all batches
 * (batch stride 0).
 *
 * Grid of the second launch, with C = sm_count / 2 concurrent clusters:
 *
 *   tiles_mma_m   = ceil(mma_m / 128), tiles_mma_n = ceil(mma_n / 256)
 *   pairs         = ceil(tiles_mma_m / 2) * tiles_mma_n * L
 *   rest          = pairs % C
 *   split_k_tiles = 2 * rest if 2 * rest <= C, else 0
 *   dp_pairs      = pairs - split_k_tiles / 2
 *   grid          = 2 * min(C, max(dp_pairs, split_k_tiles))
 *
 * A pair is 256 rows of mma_a by 256 of mma_b, 128 rows of mma_a a CTA. Cluster c computes pairs c, c + clusters, ...
 * below dp_pairs. Then cluster c < split_k_tiles computes one tile of 128 x 256, half of K a CTA: a last wave that
 * would leave half of the clusters idle takes half the time. */
#ifndef NVFP4_SM90_PREFILL_CONFIG_H
#define NVFP4_SM90_PREFILL_CONFIG_H

#include <stdint.h>

#include "common/tensor_map.h"

/*    id, mma_a_e2m1, stages, divided, bf16 (wgmma in bf16 for bf16 A) */
#define SM90_PREFILL_CONFIGS(X)                                                                                        \
    X(sm90_prefill_mixed, 1, 5, 0, 0)                                                                                  \
    X(sm90_prefill_fp16, 0, 4, 0, 0)                                                                                   \
    X(sm90_prefill_mixed_bf16, 1, 5, 0, 1)                                                                             \
    X(sm90_prefill_divided, 1, 5, 1, 0)                                                                                \
    X(sm90_prefill_divided_bf16, 1, 5, 1, 1)

#define SM90_PREFILL_THREADS      384 /* a producer warpgroup, two math warpgroups */
#define SM90_PREFILL_STAGE_K      64 /* values along K of a stage: 128 bytes of fp16, one span of the 128-byte swizzle */
#define SM90_PREFILL_MMA_TILE_M   128
#define SM90_PREFILL_MMA_TILE_N   256
#define SM90_PREFILL_BAND         8  /* pairs of tiles along mma_m that are adjacent in time */
#define SM90_PREFILL_BLOCK_PIECES 32 /* pieces of a block, each of 8 rows */
#define SM90_PREFILL_READY_CHUNKS 2  /* blocks along K that the pre-pass dequantizes: 8 stages, of 5 in the pipeline */

/* A stage: mma_b fp16, then mma_a fp16, or mma_a e2m1 (32 bytes a row) and its scales (one 128x4 atom), padded to 1024
 * bytes for the swizzle. */
#define SM90_PREFILL_MMA_B_BYTES (SM90_PREFILL_MMA_TILE_N * SM90_PREFILL_STAGE_K * 2)
#define SM90_PREFILL_MMA_A_BYTES(mma_a_e2m1)                                                                           \
    (SM90_PREFILL_MMA_TILE_M * ((mma_a_e2m1) ? SM90_PREFILL_STAGE_K / 2 : SM90_PREFILL_STAGE_K * 2))
#define SM90_PREFILL_STAGE_BYTES(mma_a_e2m1)                                                                           \
    (SM90_PREFILL_MMA_B_BYTES + SM90_PREFILL_MMA_A_BYTES(mma_a_e2m1) + ((mma_a_e2m1) ? 1024 : 0))
/* Epilogue staging buffer of a warp: 32 columns of 16 rows, fp32, padded; for plain 16-bit output the four buffers of a
 * warpgroup hold 64 columns of 64 rows. */
#define SM90_PREFILL_EPILOGUE_STAGING_BYTES (32 * 20 * 4)
/* Stages, an epilogue staging buffer for each of 8 math warps, a full and an empty mbarrier a stage. */
#define SM90_PREFILL_SHARED_BYTES(mma_a_e2m1, stages)                                                                  \
    ((stages) * SM90_PREFILL_STAGE_BYTES(mma_a_e2m1) + 8 * SM90_PREFILL_EPILOGUE_STAGING_BYTES + 16 * (stages))

/* How an instantiation is loaded: its kernel_entry, for the host. */
#define SM90_PREFILL_ENTRY(id, mma_a_e2m1, stages, ...)                                                                \
    {.name = "nvfp4_" #id,                                                                                             \
     .source = "sm90_prefill",                                                                                         \
     .threads = SM90_PREFILL_THREADS,                                                                                  \
     .shared_bytes = SM90_PREFILL_SHARED_BYTES(mma_a_e2m1, stages),                                                    \
     .pdl = 1},

#define SM90_DEQUANT_THREADS 512
#define SM90_DEQUANT_K       256 /* values along K of a CTA, which has 32 rows for each row of a thread */
/* CTAs of one operand. */
#define SM90_DEQUANT_CTAS(rows, k, batches, rows_per_thread)                                                           \
    ((((rows) + 32 * (rows_per_thread) - 1) / (32 * (rows_per_thread))) *                                              \
     (((k) + SM90_DEQUANT_K - 1) / SM90_DEQUANT_K) * (batches))
#define SM90_DEQUANT_PITCH(k) (((k) + 127) / 128 * 256)
#define SM90_MAX_UNWRITTEN    (64 << 20) /* bytes behind an operand, to fill its last tile */

typedef struct sm90_dequant_operand {
    const uint8_t *data, *scale;
    int64_t pitch, batch;             /* bytes between rows (a multiple of 8; 16-bit: of 16), between batches */
    int64_t scale_pitch, scale_batch; /* 128x4: bytes between 128-row blocks; linear: between rows */
    void *to;                         /* in the workspace */
    int32_t rows;
    int32_t type; /* VALUES_E2M1; NVFP4_FP16 or NVFP4_BF16: 16-bit values without scales, as each kernel takes them */
} sm90_dequant_operand;

/* The parameter of nvfp4_sm90_dequant, which puts 16-bit values into order, and of nvfp4_sm90_fake_quantize_fp16 and
 * nvfp4_sm90_fake_quantize_bf16, which quantize them. */
typedef struct sm90_dequant_schedule {
    sm90_dequant_operand first, second; /* second: if second_ctas > 0 */
    int64_t k;
    int32_t scale_layout;            /* nvfp4_layout */
    int32_t first_ctas, second_ctas; /* SM90_DEQUANT_CTAS; second is 0 if mma_a stays e2m1 */
    int32_t rows_per_thread;         /* 4 or 1 */
    uint32_t flags;                  /* words to set: fix-up flags of sm90/gemm.cu to zero, those of sm90/prefill.cu */
    int32_t span;                    /* values along K that are reordered together: 64 (sm90/prefill.cu) or 128 */
    int32_t launch_first;            /* 1: launch_dependents before griddepcontrol.wait (sm90/gemm.cu says when) */
    int32_t chunks;                  /* of SM90_DEQUANT_K along K: all of K, or for sm90/prefill.cu the first ones */
    uint32_t *zeroed;                /* address of the flags */
    uint32_t ready;                  /* of sm90/prefill.cu, see above */
    float global_value;              /* of x that is quantized, where global_scale is NULL */
    const float *global_scale;
} sm90_dequant_schedule;

/* Second parameter of the prefill kernels. The scale fields of an fp16 operand are unused. */
typedef struct sm90_prefill_operand {
    tensor_map values; /* fp16 {128 ceil(K/128), rows of whole clusters, batches}, box {64, 128, 1}, 128-byte swizzle;
                          e2m1: uint8 {K/2, rows, batches}, box {32, 128, 1}, no swizzle */
    const uint8_t *scale;
    int64_t scale_pitch, scale_batch; /* bytes between 128-row blocks, between batches */
    int32_t rows;
    int32_t batches; /* L, or 1 if all batches share the operand */
    uint8_t padding_[32];
} sm90_prefill_operand;

typedef struct sm90_prefill_schedule {
    sm90_prefill_operand mma_a, mma_b;
    int32_t tiles_mma_m, tiles_mma_n;
    int32_t dp_pairs, split_k_tiles; /* see above */
    int32_t k_stages;                /* ceil(K/64) */
    int32_t swap_ab;                 /* 1: mma_a is B, so mma_m counts columns of the output */
    sm90_dequant_operand mma_b_e2m1; /* what this kernel dequantizes, if there are flags */
    uint32_t *flags;                 /* see above; NULL: the pre-pass has dequantized all of mma_b */
    uint32_t blocks, chunks;         /* of mma_b, and along K */
    uint32_t group_tiles;
    uint8_t padding_[20];
} sm90_prefill_schedule;

#endif
