/* Modelled time of a product of groups on a B200, by the constants of model.h, in microseconds: back to back, with
 * programmatic dependent launch. Nothing in it was measured on a B200. C11 and C++17.
 *
 * Ends are on the device, so rows are taken to fall on the groups by chance: a group's rows have Poisson's
 * distribution, and what its tiles take is the mean over it. One group alone is taken to have all rows. A call takes
 * the gap between calls, the latencies of the ends and of the first stage, a main loop as long as the slowest of DRAM,
 * L2 and SMs, then the last stage and the stores. */
#ifndef NVFP4_SM100_GROUPED_MODEL_H
#define NVFP4_SM100_GROUPED_MODEL_H

#include "kernels/sm100/grouped_config.h"
#include "kernels/sm100/model.h"

typedef struct sm100_grouped_input {
    int64_t columns, rows, k;                              /* columns of a part, rows of all groups; k at least 1 */
    int32_t groups, parts, is_dense;                       /* dense: no end is read before the first load */
    int32_t cta_group, matrices, mma_tile_n, accumulators; /* of the instantiation */
    int32_t output_bytes;                                  /* of an element */
} sm100_grouped_input;

/* The tiles of all groups in one range of columns: how many, the clocks of a CTA, and the bytes that all CTAs load. */
typedef struct sm100_tile_sums {
    double tiles, clocks, bytes;
} sm100_tile_sums;

/* Clocks in which an SM stores the results of a tile with so many rows. */
static inline double sm100_grouped_store_clk(const sm100_model *m, const sm100_grouped_input *in, double rows) {
    const int32_t cta_columns = SM100_GROUPED_TILE_COLUMNS(in->cta_group, in->matrices) / in->cta_group;
    const double columns = (double)min_int(in->columns, cta_columns);
    return m->tcgen05_ld_cycles + columns * rows * in->output_bytes / m->column_store_b_clk;
}

/* Clocks of the copies of a stage's scales. */
static inline double sm100_grouped_cp_clk(const sm100_model *m, const sm100_grouped_input *in) {
    const int32_t atoms =
        SM100_GROUPED_CTA_MMAS(in->cta_group, in->matrices) + (int32_t)ceil_div(in->mma_tile_n, SM100_ATOM_ROWS);
    return SM100_STAGE_ATOMS * atoms * m->tcgen05_cp_cycles;
}

static inline double sm100_grouped_last_stage_clk(const sm100_model *m, const sm100_grouped_input *in) {
    const double fill = in->cta_group == 2 ? m->mma_fill_2 : m->mma_fill_1;
    return 2 * m->barrier_cycles + m->commit_cycles + sm100_grouped_cp_clk(m, in) + fill;
}

/* Adds `weight` tiles of so many rows. */
static inline void sm100_add_tile(const sm100_model *m, const sm100_grouped_input *in, double weight, double rows,
                                  sm100_tile_sums *sums) {
    const double steps = SM100_GROUPED_MMA_STEP, box = SM100_GROUPED_BOX_ROWS, atom = SM100_MMA_SFA_BYTES;
    const double stages = (double)ceil_div(in->k, SM100_STAGE_K), whole = (double)in->k / SM100_STAGE_K;
    const double mmas = SM100_GROUPED_CTA_MMAS(in->cta_group, in->matrices);
    const double mma_rows = ceil(rows / steps) * steps, cta_rows = mma_rows / in->cta_group;
    const double loaded_rows = ceil(cta_rows / box) * box, atoms = ceil(rows / SM100_ATOM_ROWS);
    const double bytes = mmas * (SM100_MMA_A_BYTES + atom) + loaded_rows * SM100_STAGE_K / 2 + atoms * atom;
    const double read = (SM100_CTA_ROWS + cta_rows) * (SM100_MMA_K / 2.0) / m->shared_b_clk; /* by the tensor core */
    const double mma = mmas * SM100_STAGE_ATOMS * max_double(mma_rows * m->mma_column_cycles, read);
    const double loop =
        max_double(max_double(mma, sm100_grouped_cp_clk(m, in)) * stages, bytes * whole / m->ingress_b_clk);
    const double store = sm100_grouped_store_clk(m, in, rows);
    /* A pair keeps the results of an accumulator in registers while it stores them: its loads are exposed alone. */
    const double loads = ceil((rows < SM100_ATOM_ROWS ? rows : SM100_ATOM_ROWS) / steps) * m->tcgen05_ld_cycles;
    const double exposed = loop + sm100_grouped_last_stage_clk(m, in) + (in->cta_group == 2 ? loads : store);
    sums->tiles += weight;
    sums->clocks += weight * max_double(in->accumulators > 1 ? loop : exposed, store);
    sums->bytes += weight * in->cta_group * bytes * whole;
}

/* Adds the tiles of a group with so many rows. */
static inline void sm100_add_group(const sm100_model *m, const sm100_grouped_input *in, double weight, int64_t rows,
                                   sm100_tile_sums *sums) {
    const int64_t rest = rows % in->mma_tile_n;
    if (rows >= in->mma_tile_n) sm100_add_tile(m, in, weight * (double)(rows / in->mma_tile_n), in->mma_tile_n, sums);
    if (rest > 0) sm100_add_tile(m, in, weight, (double)rest, sums);
}

/* The tiles of all groups by the distribution of a group's rows: Poisson's, or, from POISSON_END rows on average on, a
 * normal one at POINTS places. The host computes it at each call with an activation, so its terms are few. */
static inline sm100_tile_sums sm100_tiles_of_groups(const sm100_model *m, const sm100_grouped_input *in) {
    enum { POISSON_END = 16, POISSON_TERMS = 56, POINTS = 32 /* a quarter of a standard deviation apart */ };
    const double mean = (double)in->rows / in->groups;
    sm100_tile_sums sums = {0, 0, 0};
    double total = 0, weight = 1;
    if (in->groups == 1) {
        sm100_add_group(m, in, 1, in->rows, &sums);
        return sums;
    }
    if (mean < POISSON_END) {
        for (int64_t rows = 0; rows < POISSON_TERMS; rows++) {
            sm100_add_group(m, in, weight, rows, &sums);
            total += weight;
            weight *= mean / (double)(rows + 1);
        }
    } else {
        for (int i = 0; i < POINTS; i++) {
            const double deviations = (2 * i + 1 - POINTS) / 8.0;
            weight = exp(-deviations * deviations / 2);
            sm100_add_group(m, in, weight, (int64_t)(mean + sqrt(mean) * deviations), &sums);
            total += weight;
        }
    }
    const double scale = in->groups / total;
    sums.tiles *= scale, sums.clocks *= scale, sums.bytes *= scale;
    return sums;
}

static inline double sm100_grouped_time_us(const sm100_model *m, const device_props *props,
                                           const sm100_grouped_input *in) {
    const double clk = 1e-3 / m->clock_ghz, row = (double)in->k * (0.5 + 1.0 / 16);
    const double at_once = (double)sm100_clusters_that_fit(props, in->cta_group, 1);
    const int32_t tile_columns = SM100_GROUPED_TILE_COLUMNS(in->cta_group, in->matrices);
    const double across = (double)(ceil_div(in->columns, tile_columns) * (in->parts / in->matrices));
    const sm100_tile_sums of_column = sm100_tiles_of_groups(m, in);
    const double tiles = of_column.tiles * across, each = of_column.clocks / of_column.tiles;
    /* Some SMs or pairs have a tile more than others, where all have several. */
    const double rounds = tiles > at_once ? tiles / at_once + 0.5 : 1.0;
    const double hit = in->groups == 1 ? 1 : in->groups * (1.0 - exp(-(double)in->rows / in->groups));
    const double stored = (double)in->rows * (double)in->columns * (in->parts / in->matrices) * in->output_bytes;
    const double weights = hit * in->parts * (double)in->columns * row;
    const double dram = (weights + (double)in->rows * row + stored) / (m->dram_tb_s * 1e6);
    const double l2 = of_column.bytes * across / (m->l2_tb_s * 1e6);
    const double last =
        sm100_grouped_last_stage_clk(m, in) + sm100_grouped_store_clk(m, in, (double)in->rows / of_column.tiles);
    const double table = in->cta_group == 2 ? m->cluster_barrier_cycles : 0; /* one CTA's, for both */
    const double latencies = in->is_dense ? m->first_byte_us : 2 * m->first_byte_us;
    return m->dependent_gap_us + m->prologue_us - m->exit_overlap_us + latencies +
           max_double(max_double(dram, l2), rounds * each * clk) + (table + last) * clk;
}

/* A launch of `gated` behind such a product, back to back: it reads the results of each part, from L2 if they fit, and
 * writes as many as one part has. */
static inline double sm100_gated_us(const sm100_model *m, const device_props *props, const sm100_grouped_input *in) {
    const double bytes = (double)in->rows * (double)in->columns * in->output_bytes * (in->parts + 1);
    const double tb_s = bytes > (double)props->l2_bytes ? m->dram_tb_s : m->l2_tb_s;
    return m->dependent_gap_us + m->first_byte_us + bytes / (tb_s * 1e6);
}

#endif
