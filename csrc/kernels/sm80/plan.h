/* The kernels of the sm80 backend, by their number in its kernel_set, and its model. */
#ifndef NVFP4_SM80_PLAN_H
#define NVFP4_SM80_PLAN_H

#include "kernels/sm80/config.h"
#include "kernels/sm80/grouped_config.h"
#include "kernels/sm80/nn_config.h"
#include "kernels/sm80/w4a16_config.h"
#include "plan/gemm_backend.h"

enum {
#define X(id, ...) KERNEL_##id,
    SM80_GEMM_CONFIGS(X) SM80_W4A16_CONFIGS(X) SM80_NN_CONFIGS(X) SM80_GROUPED_CONFIGS(X) SM80_GROUPED_W4A4_CONFIGS(X)
        SM80_GROUPED_NN_CONFIGS(X)
#undef X
            KERNEL_SM80_SPLIT_REDUCE,
    SM80_KERNELS
};

/* Modelled time of the sm80 kernels: name, value for NVFP4 A, value for 16-bit A, unit and meaning. The former were
 * fitted on an H200 to kernels with their copies or their arithmetic left out; the last five to 420 calls on an H200
 * and an H100 (benchmarks/results/sm90_plans_*.csv), off by 5 % (rms), but call_us to 139 plans of 40 products in
 * CUDA graphs on an H100, with programmatic dependent launches: off by 9 %. The latter to 1,887 calls of 8 (N, K), M =
 * 1 to 512, on an H200, off by 7 % (rms). */
#define SM80_MODEL_CONSTANTS(X)                                                                                        \
    X(clock_ghz, 1.98, 1.98)         /* the clock of short runs on an H200 */                                          \
    X(decode_clocks, 1.6, 2.2)       /* clocks for a row of a chunk of 64 along K */                                   \
    X(bf16_decode, 1.0, 1.15)        /* times as much if it decodes to bf16 */                                         \
    X(mma_clocks, 0.06, 0.071)       /* clocks for a row and column of a chunk */                                      \
    X(copy_clocks, 2.4, 2.0)         /* clocks for a row of a chunk: 36 bytes */                                       \
    X(copy_a, 1.0, 1.23)             /* times as much for a row of A */                                                \
    X(chunk_clocks, 16.0, 19.0)      /* clocks for a chunk: waits, addresses */                                        \
    X(few_warps, 1.2, 1.15)          /* times as long where an SM has less than 8 warps */                             \
    X(launch_clocks, 4500.0, 0.0)    /* clocks until the first copies complete, and after the last sum */              \
    X(reduce_clocks, 7000.0, 9800.0) /* clocks of the second launch */                                                 \
    X(reduce_bytes, 13.0, 13.0)      /* bytes of partial sums a clock and SM, written or read */                       \
    X(store_b_clk, 8.3, 8.3)         /* bytes of results that an SM stores a clock, as in sm90 kernels */              \
    X(overlap, 0.817, 0.86)          /* factor of the sum of the clocks */                                             \
    X(dram_share, 0.8, 0.52)         /* share of the peak rate of memory that is reached; 16-bit A: on an H100 */      \
    X(dirty, 0.6, 0.0)               /* share of the L2 that is written back while the operands arrive */              \
    X(hindered, 4.0, 5.9)            /* p of clocks and memory, which work at once: overlapped() */                    \
    X(call_us, 6.0, 4.25)            /* time of a call around the clocks */                                            \
    X(few_rows_us, 0.0, 2.0)         /* added to it for up to 16 rows: medians of an H200 and an H100 */

typedef struct sm80_model {
#define X(name, ...) double name;
    SM80_MODEL_CONSTANTS(X)
#undef X
} sm80_model;
extern const sm80_model sm80_model_e2m1, sm80_model_a16; /* by the type of A */

/* How a candidate tiles its problem. */
typedef struct IS_TILING sm80_tiling {
    int64_t k_tiles_per_split, reduce_grid;
    int32_t tiles_m, tiles_n;
} sm80_tiling;

enum { SM80_MAX_SPLIT = 32, SM80_MAX_WAVES = 4 /* that splits fill */ };

/* One kernel, whose tile_m .. stages, name and reason `out` has, with K in about `wanted` parts; tiles: along each
 * side. 0: the grid would be too large. Leaves the times. */
int32_t sm80_tile(const gemm_traits *traits, int64_t tiles_m, int64_t tiles_n, int64_t wanted, gemm_candidate *out);

/* The kernels of nn.cu, for the gemm_planner of A . B. */
int32_t sm80_nn_candidates(const device_props *props, const gemm_traits *traits, gemm_candidate *out);
int32_t sm80_nn_batch_invariant(const device_props *props, const gemm_traits *traits, gemm_candidate *out);

/* The kernels of grouped.cu, grouped_w4a4.cu and grouped_nn.cu, for the gemm_planner of products of groups,
 * batch-invariant or not; and the launch of one of them. */
int32_t sm80_grouped_candidates(const device_props *props, const gemm_traits *traits, gemm_candidate *out);
void sm80_add_grouped(const grouped_problem *problem, const gemm_candidate *candidate, int32_t shared_bytes,
                      launch_plan *out);

/* The candidates of the other kernels with their times under given constants. */
int32_t sm80_candidates(const sm80_model *model, const device_props *props, const gemm_traits *traits,
                        gemm_candidate *out);

#endif
