/* Candidates and launches of the kernels of units/gemm.cuh and units/grouped.cuh, for the backends that instantiate
 * them. A backend has a list of instantiations and the constants of its model; it adds its own number and the kernels'
 * names to the candidates. */
#ifndef NVFP4_UNITS_PLAN_H
#define NVFP4_UNITS_PLAN_H

#include "common/grouped_problem.h"
#include "kernels/units/grouped_config.h"
#include "plan/gemm_backend.h"
#include "plan/operands.h"

/* Instantiations, by the rows of a backend's lists: SM90_UNITS_CONFIGS(UNITS_ROW). */
typedef struct units_kernel {
    int32_t kernel; /* number in the backend's kernel_set */
    int32_t a_units, a, stages, a_stages;
} units_kernel;
typedef struct grouped_units_kernel {
    int32_t kernel, a_units, bf16, stages, a_stages, pairs;
} grouped_units_kernel;
#define UNITS_ROW(id, ...) {KERNEL_##id, __VA_ARGS__},

typedef struct units_kernels {
    const units_kernel *all;
    int32_t count;
} units_kernels;
typedef struct grouped_units_kernels {
    const grouped_units_kernel *all;
    int32_t count;
} grouped_units_kernels;

/* Constants of a device, and what was measured of the kernels or is assumed. */
typedef struct units_model {
    double clock_ghz, dram_tb_s, l2_bytes;
    double overlap;   /* p of memory and SMs that work at once: time^p = memory^p + SMs^p */
    double dirty;     /* share of the L2 that is written back while the operands arrive */
    double l2_b_clk;  /* bytes a clock from L2 to an SM: A once a pass, and B. INFINITY: never the bound */
    double fixed_us;  /* a single call around its work */
    double pair_clk;  /* clocks of an SM for a step of a pair of units, with 8 rows of A */
    double rows_clk;  /* times as many with 16 */
    double rows_us;   /* added to fixed_us for 16 */
    double a16_loss;  /* times as many clocks with a 16-bit A */
    double unhidden;  /* share of the clocks of the last step of each warp that no load hides */
    double line_loss; /* times as long for memory where rows of B begin inside lines of 128 bytes */
    double pass_loss; /* share of time that each further pass adds */
} units_model;

typedef struct grouped_units_model {
    double clock_ghz, dram_tb_s;
    double fixed_us;      /* a single call around its work */
    double tile_clocks;   /* of a team: start and end of a tile */
    double step_clocks;   /* of a warp: A of a step */
    double pair_clocks;   /* a step of a pair, with 8 rows of A, where all warps work */
    double pair16_clocks; /* the same with 16 rows */
    double dram;          /* share of dram_tb_s with which B is read */
    double tb_s;          /* that its loads under way reach at most */
    double again;         /* share of that time to read B again for further rows of a group */
    double hidden;        /* share of the shorter of memory and warps that the longer does not hide */
    double teams[4];      /* factors of the time by teams a CTA: 8, 4, 2, 1 */
    double gated_us;      /* a launch of `gated` around its bytes, back to back */
} grouped_units_model;

/* Rates of a GPU on which nothing was measured, as its data sheet has them. */
typedef struct units_data_sheet {
    double clock_ghz, dram_tb_s; /* dram_tb_s: that reads reach */
    double l2_b_clk;             /* as in units_model */
    int32_t sm_count;
    int64_t l2_bytes;
} units_data_sheet;

/* The constants by such rates: an SM takes as many clocks as was measured on an H200 and an H100. */
units_model units_model_by_data_sheet(const units_data_sheet *sheet);
grouped_units_model grouped_units_model_by_data_sheet(const units_data_sheet *sheet);

/* A backend on such a GPU: its instantiations and the rates. */
typedef struct units_target {
    units_data_sheet sheet;
    units_kernels gemm;
    grouped_units_kernels grouped;
} units_target;

/* Whether units of B can be counted and loaded, and there is something to multiply: 128x4 scales, operands that tensor
 * maps describe. */
static inline int units_reach(const gemm_traits *t) {
    return t->scale_layout == NVFP4_128X4 && t->tma_values && t->k > 0 && t->n <= INT32_MAX / 2;
}

/* The functions of a gemm_planner. Candidates have single_us. */
int32_t units_candidates(const units_model *model, const units_kernels *kernels, const device_props *props,
                         const gemm_traits *traits, gemm_candidate *out);
void units_build(const device_props *props, const product_problem *problem, const gemm_candidate *candidate,
                 void *workspace, launch_plan *out);

int32_t grouped_units_candidates(const grouped_units_model *model, const grouped_units_kernels *kernels,
                                 const device_props *props, const gemm_traits *traits, gemm_candidate *out);
/* The kernel of such a candidate with an activation, in teams of as many warps, which give the bits of the product. No
 * times are compared. */
int32_t grouped_units_with_activation(const grouped_units_model *model, const grouped_units_kernels *kernels,
                                      const device_props *props, const gemm_traits *traits, const gemm_candidate *of,
                                      gemm_candidate *out);
/* The same for a gemm_planner: only if it takes no longer than the product and a launch for the activation. */
int32_t grouped_units_in_one_launch(const grouped_units_model *model, const grouped_units_kernels *kernels,
                                    const device_props *props, const grouped_problem *problem, const gemm_candidate *of,
                                    gemm_candidate *out);

/* The three for a target, by the models of its data sheet. */
int32_t units_target_candidates(const units_target *target, const device_props *props, const gemm_traits *traits,
                                gemm_candidate *out);
int32_t units_target_grouped_candidates(const units_target *target, const device_props *props,
                                        const gemm_traits *traits, gemm_candidate *out);
int32_t units_target_in_one_launch(const units_target *target, const device_props *props,
                                   const grouped_problem *problem, const gemm_candidate *of, gemm_candidate *out);

void grouped_units_build(const device_props *props, const product_problem *problem, const gemm_candidate *candidate,
                         void *workspace, launch_plan *out);

/* Says why a backend that multiplies a 16-bit A by these kernels alone has no candidates. */
nvfp4_status reject_units(const char *backend, const gemm_traits *traits);

/* The a16_roundings of a backend whose 16-bit A takes these kernels alone: an mma adds 16 products to a running sum. */
#define UNITS_ROUNDINGS {.per_block = 72, .block_k = 16, .constant = 64}

/* Bytes of a value of B, its share of the scales included. */
#define UNITS_VALUE_BYTES (0.5 + 1.0 / 16)

/* Adds tensor maps of B, as a units_schedule has them; no map of lone units if `units` is NULL. */
void units_maps(const gemm_problem *problem, launch_plan *out, tensor_map *pairs, tensor_map *units, tensor_map *tail,
                tensor_map *scales);

#endif
