/* Modelled time of one sm100 GEMM on a B200, back to back with dependent launch, in microseconds.
 *
 * The formula and the constants are those of benchmarks/model_b200.py, where each has its source; tests compare the
 * two. A call takes the gap between calls, the first byte's latency, a stream as long as the slowest of DRAM, L2,
 * ingress of an SM, tensor core and loading threads, then the last stage, the sum over the parts of K and the stores.
 * Nothing in it was measured on a B200. */
#ifndef NVFP4_SM100_MODEL_H
#define NVFP4_SM100_MODEL_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "sm100_configs.h"

#define SM100_CLOCK_GHZ              1.95
#define SM100_DRAM_TB_S              7.25
#define SM100_FIRST_BYTE_US          0.55
#define SM100_INGRESS_B_CLK          60.0
#define SM100_L2_TB_S                13.3
#define SM100_MMA_COLUMN_CYCLES      0.5
#define SM100_SHARED_B_CLK           128.0
#define SM100_MMA_FILL_1             137.0
#define SM100_MMA_FILL_2             173.0
#define SM100_COPY_CYCLES            16.0
#define SM100_COMMIT_CYCLES          30.0
#define SM100_BARRIER_CYCLES         88.5
#define SM100_TMEM_LOAD_CYCLES       62.6
#define SM100_COLUMN_STORE_B_CLK     20.0
#define SM100_ROW_STORE_B_CLK        15.0
#define SM100_REMOTE_B_CLK           21.0
#define SM100_REMOTE_LATENCY_CYCLES  270.0
#define SM100_CLUSTER_BARRIER_CYCLES 365.0
#define SM100_PROLOGUE_US            0.7
#define SM100_DEPENDENT_GAP_US       0.77
#define SM100_EXIT_OVERLAP_US        0.35
#define SM100_GATHER_CYCLES          4.0
#define SM100_GPCS                   8

typedef struct sm100_model_input {
    int64_t mma_m, mma_n, k, l; /* sides as sm100_configs.h has them; at least 1 */
    int32_t sm_count;
    int32_t cta_group, mma_tile_n, stages, accumulators;
    int32_t swap_ab;
    int32_t split_k;            /* 1, 2, 4 or 8; at most ceil(k / SM100_STAGE_K) */
    int32_t cp_async;           /* scales are loaded by cp.async */
    int32_t cp_async_values;    /* and so are values */
    int32_t co_resident;        /* an SM holds two CTAs: at most 113 KB of shared memory and 256 columns */
    int32_t partials_in_stages; /* as the schedule has it */
    int32_t output_bytes;       /* of an element */
} sm100_model_input;

static inline double sm100_max(double a, double b) {
    return a > b ? a : b;
}

static inline int64_t sm100_least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Clusters that fit on the device at a time: those of two and more lie in one GPC, over which SMs are spread in pairs.
 */
static inline int64_t sm100_clusters_that_fit(int32_t sm_count, int32_t cluster, int32_t per_sm) {
    int64_t fit = 0, pairs = sm_count / 2;
    if (cluster == 1) return (int64_t)sm_count * per_sm;
    for (int i = 0; i < SM100_GPCS; i++) fit += 2 * (pairs / SM100_GPCS + (i < pairs % SM100_GPCS)) * per_sm / cluster;
    return fit;
}

/* Bytes a microsecond from DRAM into rings of so many bytes in all, each byte of which lies idle for so long. */
static inline double sm100_dram_rate(double ring_bytes, double idle_us) {
    static const double kb[] = {0.5, 1, 2, 4, 8, 16, 32, 64, 128}; /* under way on each of 148 SMs */
    static const double tb_s[] = {0.17, 0.32, 0.58, 1.15, 2.15, 3.6, 5.65, 7.14, 7.25};
    double x0 = 0.0, y0 = 0.0;
    for (size_t i = 0; i < sizeof kb / sizeof *kb; i++) {
        double y1 = tb_s[i] * 1e6, x1 = kb[i] * 148.0 * 1024.0 + y1 * idle_us;
        if (ring_bytes < x1) return y0 + (y1 - y0) * (ring_bytes - x0) / (x1 - x0);
        x0 = x1, y0 = y1;
    }
    return SM100_DRAM_TB_S * 1e6;
}

/* Infinity where a cluster fits nowhere. */
static inline double sm100_estimate_us(const sm100_model_input *in) {
    const double clk = 1e-3 / SM100_CLOCK_GHZ;
    const int32_t cluster = in->cta_group * in->split_k;
    const int64_t fit = sm100_clusters_that_fit(in->sm_count, cluster, in->co_resident ? 2 : 1);
    if (fit == 0) return INFINITY;

    /* Counted work: bytes of values and of scales of 128 rows along K, then of one CTA and of the device. */
    const int64_t tiles_mma_m = SM100_CEIL_DIV(in->mma_m, SM100_CTA_ROWS * in->cta_group);
    const int64_t tiles_mma_n = SM100_CEIL_DIV(in->mma_n, in->mma_tile_n);
    const int64_t tiles = tiles_mma_m * tiles_mma_n * in->l;
    const int64_t k_stages = SM100_CEIL_DIV(SM100_CEIL_DIV(in->k, SM100_STAGE_K), in->split_k);
    const double tile_atoms = SM100_CEIL_DIV(in->mma_tile_n, SM100_ATOM_ROWS);
    const double row = (double)in->k / 2, atom = (double)SM100_CEIL_DIV(in->k, SM100_MMA_K) * SM100_ATOM_BYTES;
    const double atoms_x = (double)SM100_CEIL_DIV(in->mma_m, SM100_ATOM_ROWS);
    const double atoms_y = (double)SM100_CEIL_DIV(in->mma_n, SM100_ATOM_ROWS);
    const double x = (double)in->mma_m, y = (double)in->mma_n, l = (double)in->l;
    const double tile_x_rows = (double)sm100_least(in->mma_m, SM100_CTA_ROWS);
    const double tile_y_rows = (double)sm100_least(in->mma_n, in->mma_tile_n);
    const double part = (double)(k_stages * SM100_STAGE_K) / (double)in->k;
    const double ingress =
        (part < 1.0 ? part : 1.0) * (tile_x_rows * row + tile_y_rows / in->cta_group * row + (1 + tile_atoms) * atom);
    const double l2 = l * ((x * row + atoms_x * atom) * (double)tiles_mma_n + y * row * (double)tiles_mma_m +
                           (double)(tiles_mma_m * in->cta_group * tiles_mma_n) * tile_atoms * atom);
    const double dram = l * ((x + y) * row + (atoms_x + atoms_y) * atom);
    const double stores = l * x * y * in->output_bytes;
    const double store_bytes = tile_x_rows * tile_y_rows * in->output_bytes / in->split_k;

    /* The schedule. Uncut, a CTA an SM takes tile after tile; cut, a cluster takes one. */
    const int persistent = in->split_k == 1;
    int64_t active = sm100_least(tiles, fit), rounds = SM100_CEIL_DIV(tiles, active), launched = tiles;
    if (persistent) {
        rounds = SM100_CEIL_DIV(tiles, sm100_least(fit, in->sm_count / cluster));
        active = launched = SM100_CEIL_DIV(tiles, rounds);
    }
    const int64_t ctas = active * cluster, beside = SM100_CEIL_DIV(ctas, in->sm_count);
    const double busy = (double)(rounds * beside), again = (double)(rounds - 1);

    const double one =
        sm100_max(in->mma_tile_n * SM100_MMA_COLUMN_CYCLES,
                  (SM100_CTA_ROWS + in->mma_tile_n / in->cta_group) * (SM100_MMA_K / 2) / SM100_SHARED_B_CLK);
    const double fill = in->cta_group == 2 ? SM100_MMA_FILL_2 : SM100_MMA_FILL_1;
    const double copies = SM100_STAGE_ATOMS * (1 + tile_atoms) * SM100_COPY_CYCLES;
    const double products = SM100_STAGE_ATOMS * one, stage = sm100_max(products, copies);
    const double idle = (stage + fill + SM100_COMMIT_CYCLES + 2 * SM100_BARRIER_CYCLES) * clk;
    const double last = (2 * SM100_BARRIER_CYCLES + SM100_COMMIT_CYCLES + copies + products + fill) * clk;
    /* Of loads from tensor memory the first is seen. A unit sends what it does not keep, and adds up what it gets. */
    const double stored = store_bytes / (in->swap_ab ? SM100_COLUMN_STORE_B_CLK : SM100_ROW_STORE_B_CLK);
    const double epilogue = (SM100_TMEM_LOAD_CYCLES + stored) * clk;
    const double others = (double)SM100_CTA_ROWS * in->mma_tile_n * 4 * (in->split_k - 1) / in->split_k;
    const double exchanged = SM100_REMOTE_B_CLK * (in->split_k == 8 ? 0.55 : in->split_k == 4 ? 0.7 : 1.0);
    const double barrier = in->partials_in_stages ? SM100_CLUSTER_BARRIER_CYCLES : 0.0;
    const double sending = SM100_TMEM_LOAD_CYCLES + SM100_REMOTE_LATENCY_CYCLES + others / exchanged;
    const double reduction = persistent ? 0.0 : (barrier + sending + others / SM100_SHARED_B_CLK) * clk;
    const double tail = last + reduction + epilogue;

    /* The stream: rings fill at the full rate, and behind that as slots are released. */
    const int64_t ring = sm100_least(in->stages, persistent ? k_stages * rounds : k_stages);
    const double ring_bytes = (double)(ctas * ring) * SM100_STAGE_BYTES(in->cta_group, in->mma_tile_n) * dram / l2;
    const double at_once = dram < ring_bytes ? dram : ring_bytes, peak = SM100_DRAM_TB_S * 1e6;
    const double lanes = (in->cp_async_values ? 20.0 : 4.0) * (SM100_CTA_ROWS + in->mma_tile_n);
    double stream = (at_once + stores) / peak + (dram - at_once) / sm100_dram_rate(ring_bytes, idle);
    double mma = busy * (double)k_stages * stage * clk;
    if (persistent && in->accumulators == 1) mma += again * (last + epilogue);
    if (persistent && in->accumulators > 1) stream = sm100_max(stream, (busy - 1) * epilogue);
    stream = sm100_max(stream, sm100_max(l2 / (SM100_L2_TB_S * 1e6), ingress * busy / SM100_INGRESS_B_CLK * clk));
    stream = sm100_max(stream, mma);
    if (in->cp_async) stream = sm100_max(stream, busy * (double)k_stages * lanes / 32 * SM100_GATHER_CYCLES * clk);

    if (!persistent) stream += again * (SM100_PROLOGUE_US + SM100_FIRST_BYTE_US + tail);
    const double exposed = 2 * launched <= fit ? 0.0 : SM100_PROLOGUE_US - SM100_EXIT_OVERLAP_US;
    return SM100_DEPENDENT_GAP_US + exposed + SM100_FIRST_BYTE_US + stream + tail;
}

#endif
