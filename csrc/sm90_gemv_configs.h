/* The instantiations of sm90_gemv.cu and the schedule they run by. Host C and device code both include this, so it is
 * plain C preprocessor.
 *
 * For 1 <= M <= rows; few rows of A, so B is what is read. Rows of B are taken in units of 8: rows i, i + 1 of each of
 * the four quarters (32 rows) of a 128-row block, whose scales are neighbours in the 128x4 layout. Along K a warp takes
 * steps of 512 values of a unit. */
#ifndef NVFP4_SM90_GEMV_CONFIGS_H
#define NVFP4_SM90_GEMV_CONFIGS_H

#include <stdint.h>

/*    id, rows, warps, stages: a warp holds the steps it has asked for in a ring of so many */
#define SM90_GEMV_CONFIGS(X)                                                                                           \
    X(sm90_gemv_1, 1, 8, 3)                                                                                            \
    X(sm90_gemv_2, 2, 16, 2)                                                                                           \
    X(sm90_gemv_4, 4, 16, 2)

#define SM90_GEMV_STEP_K     512 /* values along K */
#define SM90_GEMV_UNIT_ROWS  8
#define SM90_GEMV_STEP_BYTES (SM90_GEMV_UNIT_ROWS * (SM90_GEMV_STEP_K / 2 + SM90_GEMV_STEP_K / 16))

#define SM90_GEMV_CEIL_DIV(a, b) (((a) + (b) - 1) / (b))
#define SM90_GEMV_MIN(a, b)      ((a) < (b) ? (a) : (b))
#define SM90_GEMV_THREADS(warps) (32 * (warps))
#define SM90_GEMV_STEPS(k)       SM90_GEMV_CEIL_DIV(k, SM90_GEMV_STEP_K)
/* Units of the n rows of one batch; the last block of rows may have less than 32 in its first quarter. */
#define SM90_GEMV_UNITS(n) ((n) / 128 * 16 + SM90_GEMV_CEIL_DIV(SM90_GEMV_MIN((n) % 128, 32), 2))
/* Shared memory: the sums of a CTA's units, a part of K each; A as signed bytes, with what its blocks of 16 need; the
 * warps' rings, of which only the slots in use must be there: no more than the steps that a warp has to do. */
#define SM90_GEMV_PARTIALS_BYTES(rows, units_per_cta, cut) ((rows) * (units_per_cta) * (cut) * SM90_GEMV_UNIT_ROWS * 4)
#define SM90_GEMV_A_BYTES(rows, steps)                     ((rows) * (steps) * (SM90_GEMV_STEP_K / 16) * ((rows) == 1 ? 16 + 4 : 16 + 8))
#define SM90_GEMV_RING_BYTES(warps, slots)                 ((warps) * (slots) * SM90_GEMV_STEP_BYTES)
#define SM90_GEMV_PARTIALS_LIMIT                           16384 /* bytes that a schedule's parts may take */

/* Second parameter of the kernels. The grid is ctas * l CTAs: CTA b has batch b / ctas and there units b % ctas,
 * b % ctas + ctas, ... Groups of `cut` warps take a unit each, part i of K in the group's warp i: steps
 * [i * steps / cut, (i + 1) * steps / cut).
 *
 * The rule, for a kernel of `rows` and `warps` (all divisions of integers):
 *   steps         = SM90_GEMV_STEPS(k), units = SM90_GEMV_UNITS(n)
 *   ctas          = max(min(units, max(1, sm_count / l)), CEIL_DIV(units, PARTS_LIMIT / PARTIALS_BYTES(rows, 1, 1)))
 *   units_per_cta = CEIL_DIV(units, ctas), units_left = units % ctas
 *   cut           = of the powers of two from 1 to min(warps, steps), or 1, with PARTIALS_BYTES(rows, units_per_cta,
 * cut)
 *                   <= PARTS_LIMIT the one with the least CEIL_DIV(units_per_cta, warps / cut) * CEIL_DIV(steps, cut),
 *                   which is the number of steps that the busiest warp does; the least of equals, which adds up over
 *                   lanes less often (14336x4096 on an H200: 13.6 us, the greatest 14.6)
 *   slots         = min(stages, that least number)
 *   shared bytes  = PARTIALS_BYTES(rows, units_per_cta, cut) + A_BYTES(rows, steps) + RING_BYTES(warps, slots)
 * Where that is more than a CTA can have (long K), the kernel cannot take the product. */
typedef struct sm90_gemv_schedule {
    int32_t ctas; /* of a batch */
    int32_t units_per_cta;
    int32_t units_left; /* > 0: CTAs from this one on have one unit less */
    int32_t steps;
    int32_t log2_cut;
    int32_t padding_;
} sm90_gemv_schedule;

#endif
