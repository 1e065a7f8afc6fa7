/* The row ops: their checks, and how they run. */
#ifndef NVFP4_API_ROW_OP_H
#define NVFP4_API_ROW_OP_H

#include "api/operation.h"

/* Parts of a row of the table. */
#define COUNT(array)   (int32_t)(sizeof array / sizeof *array)
#define PLANNERS(name) {[ON_HOST] = &cpu_##name##_planner, [ON_GPU] = &gpu_##name##_planner}

nvfp4_status check_quantize(const checked_call *c, prepared_call *call);
nvfp4_status check_weighted_quantize(const checked_call *c, prepared_call *call);
nvfp4_status check_gptq_block(const checked_call *c, prepared_call *call);
nvfp4_status check_dequantize(const checked_call *c, prepared_call *call);
nvfp4_status check_rms_norm_quantize(const checked_call *c, prepared_call *call);
nvfp4_status check_silu_mul_quantize(const checked_call *c, prepared_call *call);
nvfp4_status check_amax_scale(const checked_call *c, prepared_call *call);
nvfp4_status check_swizzle(const checked_call *c, prepared_call *call);
nvfp4_status check_unswizzle(const checked_call *c, prepared_call *call);
nvfp4_status check_gated(const checked_call *c, prepared_call *call);
nvfp4_status check_grouped_quantize(const checked_call *c, prepared_call *call);
nvfp4_status check_gated_quantize(const checked_call *c, prepared_call *call);
nvfp4_status check_moe_route(const checked_call *c, prepared_call *call);
nvfp4_status check_moe_combine(const checked_call *c, prepared_call *call);

void bind_quantize(const checked_call *c, prepared_call *call);
void bind_weighted_quantize(const checked_call *c, prepared_call *call);
void bind_gptq_block(const checked_call *c, prepared_call *call);
void bind_rms_norm_quantize(const checked_call *c, prepared_call *call);
void bind_amax_scale(const checked_call *c, prepared_call *call);
void bind_swizzle(const checked_call *c, prepared_call *call);
void bind_gated(const checked_call *c, prepared_call *call);
void bind_grouped_quantize(const checked_call *c, prepared_call *call);
void bind_silu_mul_quantize(const checked_call *c, prepared_call *call);
void bind_gated_quantize(const checked_call *c, prepared_call *call);
void bind_moe_route(const checked_call *c, prepared_call *call);
void bind_moe_combine(const checked_call *c, prepared_call *call);

nvfp4_status row_op_plan(nvfp4_context *context, const checked_call *c, prepared_call *call);
/* Launches or computes a row op by its planners. */
nvfp4_status row_op_launch(nvfp4_context *context, const row_op_planner *const planners[ROW_OP_TARGETS],
                           const nvfp4_call *how, const target *where, const row_op_problem *problem);
nvfp4_status row_op_run(nvfp4_context *context, const checked_call *c, const prepared_call *call);

#endif
