/* The rows of the tables of docs/kernels/, printed by the config headers' own macros: the table's name, then the row.
 * KIB rounds up. */
#include "kernels/sm100/config.h"
#include "kernels/sm100/grouped_config.h"
#include "kernels/sm100/grouped_units_config.h"
#include "kernels/sm100/units_config.h"
#include "kernels/sm120/grouped_config.h"
#include "kernels/sm120/grouped_units_config.h"
#include "kernels/sm120/units_config.h"
#include "kernels/sm80/config.h"
#include "kernels/sm80/w4a16_config.h"
#include "kernels/sm90/gemm_config.h"
#include "kernels/sm90/gemv_config.h"
#include "kernels/sm90/grouped_config.h"
#include "kernels/sm90/grouped_few_config.h"
#include "kernels/sm90/grouped_units_config.h"
#include "kernels/sm90/prefill_config.h"
#include "kernels/sm90/units_config.h"
#include <stdio.h>
#include <string.h>

#define KIB(bytes)  (((bytes) + 1023) / 1024)
#define NAME(id)    (#id + sizeof "smNN_gemm_" - 1)
#define BACKEND(id) (int)strcspn(#id, "_"), #id
#define SM80(id, m, n, k, stages, warps, weights_first, ctas)                                                          \
    printf("sm80 | %s | %d | %d | %d | %d | %d |\n", NAME(id), warps, k / warps, stages,                               \
           KIB(SM80_SHARED_BYTES(m, n, k, stages, warps)), ctas);
#define W4A16(id, m, octets, chunks, stages, warps, ctas, bf16)                                                        \
    if (!(bf16))                                                                                                       \
        printf("w4a16 | %s | %d | %d | %d | %d | %d |\n", #id + sizeof "sm80_w4a16_fp16_" - 1, warps,                  \
               chunks * SM80_CHUNK, stages, KIB(SM80_W4A16_SHARED_BYTES(m, octets, chunks, stages, warps)), ctas);
#define SM90(id, groups, tiles, y, words, stages, dequant_b, streamk, bf16)                                            \
    if (!(bf16))                                                                                                       \
        printf("sm90 | %s | %d | %d | %d |\n", NAME(id), 4 * groups, stages,                                           \
               KIB(SM90_SHARED_BYTES(groups, tiles, y, stages)));
#define PREFILL(id, raw, stages, divided, bf16)                                                                        \
    if (!(bf16))                                                                                                       \
        printf("prefill | %s | %d | %d |\n", #id + sizeof "sm90_prefill", stages,                                      \
               KIB(SM90_PREFILL_SHARED_BYTES(raw, stages)));
#define GEMV(id, rows, warps, stages)                                                                                  \
    printf("gemv | %d | %d | %d | %d |\n", rows, warps, stages, KIB(SM90_GEMV_STAGES_BYTES(warps, stages)));
#define UNITS(id, a_units, a, stages, a_stages)                                                                        \
    if ((a) < 2)                                                                                                       \
        printf("units | %.*s | %d | %s | %d | %d | %d |\n", BACKEND(id), 8 * a_units, a ? "16 bits" : "NVFP4", stages, \
               a_stages, KIB(UNITS_STAGES_BYTES(a_units, a, stages, a_stages)));
#define WIDTH(n) " " #n
#define GROUPED(id, rows, stages, bf16)                                                                                \
    if (!(bf16))                                                                                                       \
        printf("grouped | %s |%s | %d | %d |\n", #id + sizeof "sm90_grouped_fp16",                                     \
               rows == 96 ? SM90_GROUPED_WIDTHS_96(WIDTH) : SM90_GROUPED_WIDTHS_152(WIDTH), stages,                    \
               KIB(SM90_GROUPED_SHARED_BYTES(rows, stages)));
#define FEW_WIDTH(n)                                                                                                   \
    if (2 * n >= rows && n <= rows) printf(" %d", n);
#define GROUPED_FEW(id, mma_tile_n, stages, bf16)                                                                      \
    if (!(bf16)) {                                                                                                     \
        const int rows = mma_tile_n;                                                                                   \
        printf("grouped_few | %s |", #id + sizeof "sm90_grouped_few_fp16");                                            \
        SM90_GROUPED_FEW_WIDTHS(FEW_WIDTH)                                                                             \
        printf(" | %d | %d |\n", stages, KIB(SM90_GROUPED_FEW_SHARED_BYTES(rows, stages)));                            \
    }
#define GROUPED_UNITS(id, a_units, bf16, stages, a_stages, pairs)                                                      \
    if (!(bf16))                                                                                                       \
        printf("grouped_units | %.*s | %d | %d | %d | %d | %d |\n", BACKEND(id), 8 * a_units, (pairs) / a_units,       \
               stages, a_stages, KIB(GROUPED_UNITS_SHARED_BYTES(a_units, stages, a_stages, pairs)));
#define SM100(id, group, y, stages, accumulators, gather, multicast)                                                   \
    printf("sm100 | %s | %d | %d | %d | %d x %d | %d x %d | %d of %d |\n", NAME(id) + 1, group, stages,                \
           KIB(SM100_SHARED_BYTES(group, y, stages)), accumulators, y, stages, SM100_SCALE_COLUMNS(y),                 \
           SM100_USED_COLUMNS(y, stages, accumulators), SM100_TMEM_COLUMNS(y, stages, accumulators));
#define GROUPED100(id, group, matrices, y, stages, accumulators)                                                       \
    printf("grouped100 | %s | %d | %d | %d | %d x %d | %d x %d | %d of %d |\n", #id + sizeof "sm100_grouped", group,   \
           stages, KIB(SM100_GROUPED_SHARED_BYTES(group, matrices, y, stages, accumulators)), accumulators,            \
           SM100_GROUPED_SUMS(group, matrices, y), stages, SM100_GROUPED_SCALE_COLUMNS(group, matrices, y),            \
           SM100_GROUPED_USED_COLUMNS(group, matrices, y, stages, accumulators), SM100_GROUPED_TMEM_COLUMNS);
#define SM120(id, m, n, k, stages, warps_m, warps_n)                                                                   \
    printf("sm120 | %s | %d | %d | %d | %d |\n", NAME(id) + 1, SM120_WARPS(warps_m, warps_n), k, stages,               \
           KIB(SM120_SHARED_BYTES(m, n, k, stages, warps_m, warps_n)));
#define GROUPED120(id, m, n, k, stages, warps_m, warps_n)                                                              \
    printf("grouped120 | %s | %d | %d | %d |\n", #id + sizeof "sm120_grouped", k, stages,                              \
           KIB(SM120_GROUPED_SHARED_BYTES(m, n, k, stages, warps_m, warps_n)));

int main(void) {
    SM80_GEMM_CONFIGS(SM80)
    SM80_W4A16_CONFIGS(W4A16)
    SM90_GEMV_CONFIGS(GEMV)
    SM90_UNITS_CONFIGS(UNITS)
    SM100_UNITS_CONFIGS(UNITS)
    SM120_UNITS_CONFIGS(UNITS)
    SM90_GROUPED_CONFIGS(GROUPED)
    SM90_GROUPED_UNITS_CONFIGS(GROUPED_UNITS)
    SM100_GROUPED_UNITS_CONFIGS(GROUPED_UNITS)
    SM120_GROUPED_UNITS_CONFIGS(GROUPED_UNITS)
    SM90_GROUPED_FEW_CONFIGS(GROUPED_FEW)
    SM90_GEMM_CONFIGS(SM90)
    SM90_PREFILL_CONFIGS(PREFILL)
    SM100_GEMM_CONFIGS(SM100)
    SM100_GROUPED_CONFIGS(GROUPED100)
    SM120_GEMM_CONFIGS(SM120)
    SM120_GROUPED_CONFIGS(GROUPED120)
    printf("stage | mma_a values %d: %d rows of %d bytes, swizzled | mma_b values %d: its half |", SM100_MMA_A_BYTES,
           SM100_CTA_ROWS, SM100_STAGE_K / 2, SM100_MMA_B_BYTES(2, 128));
    printf(" mma_a scales %d | mma_b scales %d: of all mma_b |\n", SM100_MMA_SFA_BYTES, SM100_MMA_SFB_BYTES(128));
    return 0;
}
