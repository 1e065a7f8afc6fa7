/* Modelled time of one sm120 GEMM, in microseconds: a single call. Nothing in it was measured by this project on such a
 * GPU. The sources of the constants are published measurements on an RTX 5090 and a GB10, and this project's on an H200
 * for what depends little on the chip.
 *
 * A call takes a fixed time, then DRAM and SMs work at once. An SM takes for a stage of a tile the longer of its mma
 * and of what L2 sends it, hindered by the other; then the stores. */
#ifndef NVFP4_SM120_MODEL_H
#define NVFP4_SM120_MODEL_H

#include <math.h>
#include <stdint.h>

#include "common/device_props.h"
#include "common/math.h"
#include "kernels/sm120/config.h"

/* Name, value, unit, source. */
#define SM120_MODEL_CONSTANTS(X)                                                                                       \
    X(clock_ghz, 2.4, "GHz", "boost of an RTX 5090; a device that says its own clock runs at that")                    \
    X(mma_clk, 16.0, "clk", "one mma of 16 x 8 x 64 in a quarter of an SM: 4096 FLOP a clock and SM, measured")        \
    X(l2_b_clk, 17.0, "B/clk", "from L2 to each SM where all load: 7.0 TB/s by TMA alone on an RTX 5090")              \
    X(sm_b_clk, 40.0, "B/clk", "the same where few SMs load: assumed, the port has 64")                                \
    X(stage_clk, 90.0, "clk", "a stage beyond its mma, where a warp has few: an mbarrier's wait, of a B200")           \
    X(tile_clk, 400.0, "clk", "a tile beyond its stages and stores: its place, the pipeline's latency. Assumed")       \
    X(cp_async_clk, 4.0, "clk", "cp.async of a warp: assumed, as for a B200")                                          \
    X(store_b_clk, 14.0, "B/clk", "of C that an SM stores: H200, 8.3 in pieces of 8 bytes, 20 of 64; 32 here")         \
    X(split_clk, 900.0, "clk", "H200: a cluster barrier, 365, st.async until its wait ends, 270, and its sums")        \
    X(remote_b_clk, 11.0, "B/clk", "H200: partial sums to other SMs of a cluster, where all send")                     \
    X(dram_share, 0.845, "", "of the bus: a copy on an RTX 5090 0.84, reads on a GB10 0.85 to 0.86")                   \
    X(hindered, 4.0, "", "p of two resources that work at once, overlapped(): as of sm80 on an H200")                  \
    X(call_us, 4.9, "us", "of a call around its work: as of sm80 on an H200")                                          \
    X(grouped_us, 6.9, "us", "the same of groups, with their ends and the first stage: as of sm80 on an H100")         \
    X(gate_clk, 250.0, "clk", "a wait for gate's results of 16 x 16 sums, from L2: assumed; an H100's takes 270")      \
    X(gated_us, 1.4, "us", "of a launch of `gated` around its work, back to back: call_us less the 3.5 of a single")   \
    X(first_byte_us, 0.8, "us", "until the first stage is there: a cold access to DRAM. Assumed, a B200 has 0.55")

typedef struct sm120_model {
#define X(name, ...) double name;
    SM120_MODEL_CONSTANTS(X)
#undef X
} sm120_model;

typedef struct sm120_model_input {
    int64_t mma_m, mma_n, k, l; /* rows of mma_a and of mma_b; all at least 1 */
    int32_t mma_tile_m, mma_tile_n, stage_k;
    int32_t split_k, scales_by_tma, values_by_tma;
    int32_t output_bytes; /* of an element */
    int32_t group_m;
    int32_t pairs; /* of groups: 1: a tile of part 0 and the same of part 1 follow each other in a CTA */
} sm120_model_input;

/* Clusters of split_k CTAs that run at a time, a CTA an SM. 0: none. */
static inline int64_t sm120_clusters_that_fit(const device_props *props, int32_t split_k) {
    const int32_t said = split_k > 1 ? props->clusters[0][split_k / 4] : 0;
    return said ? max_int(said, 0) : props->sm_count / split_k;
}

/* Clocks that a CTA takes for a stage. */
static inline double sm120_stage_clk(const sm120_model *m, const sm120_model_input *in, double b_clk) {
    const double atoms = in->stage_k / SM120_MMA_K, row = in->stage_k / 2.0;
    const double rows_a = (double)min_int(in->mma_m, in->mma_tile_m);
    const double rows_b = (double)min_int(in->mma_n, in->mma_tile_n);
    const double mma = in->mma_tile_m / 16.0 * in->mma_tile_n / 8.0 * atoms / 4.0 * m->mma_clk;
    const double blocks = (double)(ceil_div(in->mma_tile_m, 128) + ceil_div(in->mma_tile_n, 128));
    double bytes = (rows_a + rows_b) * row + blocks * atoms * SM120_ATOM_BYTES, loading = 0;
    if (!in->scales_by_tma) /* instructions of the one warp that loads */
        loading = (rows_a + rows_b) * (atoms + (in->values_by_tma ? 0 : row / 8)) / 32 * m->cp_async_clk;
    return m->stage_clk + overlapped(mma, max_double(bytes / b_clk, loading), m->hindered);
}

/* Bytes that DRAM sends: each operand once, and mma_b more often where it passes more than once and L2 does not keep
 * it. C is left out, as in sm80's model, so that the times of the two backends compare: it is the same for both. */
static inline double sm120_dram_bytes(const device_props *props, const sm120_model_input *in) {
    const double row = (double)in->k * (0.5 + 1.0 / 16), a = (double)in->mma_m * row, b = (double)in->mma_n * row;
    const double sweeps = (double)ceil_div(in->mma_m, (int64_t)in->mma_tile_m * in->group_m);
    const double missing = max_double(0.0, 1 - (double)props->l2_bytes / (2 * b)); /* of mma_b, in a further sweep */
    return (double)in->l * (a + b * (1 + missing * (sweeps - 1)));
}

/* The constants on a device. */
static inline sm120_model sm120_model_of(const sm120_model *constants, const device_props *props) {
    sm120_model m = *constants;
    if (props->clock_mhz) m.clock_ghz = props->clock_mhz * 1e-3;
    return m;
}

/* Clocks of a tile, but for what depends on split-K, where so many SMs have one. `rows`: of C that are stored. */
static inline double sm120_tile_clk(const sm120_model *m, const device_props *props, const sm120_model_input *in,
                                    double active, double rows) {
    const double b_clk = m->l2_b_clk * (double)props->sm_count / active;
    const double stage = sm120_stage_clk(m, in, b_clk < m->sm_b_clk ? b_clk : m->sm_b_clk);
    const double stages = (double)ceil_div(ceil_div(in->k, in->split_k), in->stage_k);
    const double stored = (double)min_int(in->mma_m, in->mma_tile_m) * rows;
    return stages * stage + stored * in->output_bytes / in->split_k / m->store_b_clk + m->tile_clk;
}

static inline double sm120_memory_us(const sm120_model *m, const device_props *props, double bytes) {
    return props->memory_gb_s ? bytes / (m->dram_share * props->memory_gb_s) * 1e-3 : 0;
}

/* Infinite where the clusters fit nowhere. */
static inline double sm120_single_us(const sm120_model *constants, const device_props *props,
                                     const sm120_model_input *in) {
    const sm120_model m = sm120_model_of(constants, props);
    const int64_t tiles = ceil_div(in->mma_m, in->mma_tile_m) * ceil_div(in->mma_n, in->mma_tile_n) * in->l;
    const int64_t fit = sm120_clusters_that_fit(props, in->split_k);
    if (fit == 0) return INFINITY;
    const int64_t rounds = ceil_div(tiles, fit), active = min_int(tiles, fit) * in->split_k;
    double tile = sm120_tile_clk(&m, props, in, (double)active, (double)min_int(in->mma_n, in->mma_tile_n));
    if (in->split_k > 1) {
        const double sent = (double)in->mma_tile_m * in->mma_tile_n * 4 * (in->split_k - 1) / in->split_k;
        tile += m.split_clk + sent / m.remote_b_clk;
    }
    double busy_us = (double)rounds * tile * 1e-3 / m.clock_ghz;
    if (in->split_k > 1) busy_us += (double)(rounds - 1) * m.first_byte_us; /* further clusters start anew */
    return m.call_us + m.first_byte_us +
           overlapped(busy_us, sm120_memory_us(&m, props, sm120_dram_bytes(props, in)), m.hindered);
}

/* A product of groups under an even routing: where T rows fall on E groups by chance, E * (1 - (1 - 1/E)^T) of them
 * have rows. `in` is of one group, with mma_n = T and l = parts. Bytes of C are left out, as above. */
static inline double sm120_grouped_single_us(const sm120_model *constants, const device_props *props, int64_t groups,
                                             const sm120_model_input *in) {
    const sm120_model m = sm120_model_of(constants, props);
    const double all = (double)in->mma_n, each = (double)groups, tile_n = in->mma_tile_n;
    const double hit = each * (1.0 - pow(1.0 - 1.0 / each, all)), rows = all / hit;
    const double along = hit * max_double(1.0, rows / tile_n + 0.5 * (tile_n - 1) / tile_n);
    const double sms = props->sm_count, in_cta = 1.0 + in->pairs;
    const double tiles = along * (double)(ceil_div(in->mma_m, in->mma_tile_m) * in->l) / in_cta;
    double tile = in_cta * sm120_tile_clk(&m, props, in, tiles < sms ? tiles : sms, all / along);
    if (in->pairs) /* 8 warps store 16 x 16 sums at a time */
        tile += (double)min_int(in->mma_m, in->mma_tile_m) * (all / along) / (8 * 16 * 16) * m.gate_clk;
    const double busy_us = ceil(tiles / sms) * tile * 1e-3 / m.clock_ghz;
    const double row = (double)in->k * (0.5 + 1.0 / 16), bytes = (hit * (double)(in->mma_m * in->l) + all) * row;
    return m.grouped_us + overlapped(busy_us, sm120_memory_us(&m, props, bytes), m.hindered);
}

/* A launch of `gated` behind such a product, back to back: it reads the results of each part, from L2 if they fit, and
 * writes as many as one part has. */
static inline double sm120_gated_us(const sm120_model *constants, const device_props *props,
                                    const sm120_model_input *in) {
    const sm120_model m = sm120_model_of(constants, props);
    const double bytes = (double)(in->mma_n * in->mma_m * in->output_bytes * (in->l + 1));
    const double l2_us = bytes / m.l2_b_clk / props->sm_count * 1e-3 / m.clock_ghz;
    return m.gated_us + (bytes > (double)props->l2_bytes ? sm120_memory_us(&m, props, bytes) : l2_us);
}

#endif
